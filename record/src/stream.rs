//! What the child writes and the parent reads: a line per work-item and op.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write as _};

use crate::RecordError;

/// Work-items of a recording, at most.
const MAX_ITEMS: usize = 1 << 20;
/// Ops of a recording, at most.
const MAX_OPS: usize = 1 << 23;

/// What a producer emitted for one launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    /// The trace ABI of its calls.
    pub abi: u32,
    /// Bytes of its scratchpad buffers, if it says so.
    pub sizes: Option<Vec<i64>>,
    /// The work-items in dispatch order.
    pub items: Vec<Item>,
}

/// One work-item.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Item {
    /// The loop indices it was dispatched with.
    pub ids: Vec<i64>,
    /// Its ops in program order.
    pub ops: Vec<Op>,
}

/// One op.
#[derive(Clone, Debug, PartialEq)]
pub struct Op {
    /// What it does.
    pub kind: OpKind,
    /// Buffers read.
    pub reads: Vec<i64>,
    /// Buffers written.
    pub writes: Vec<i64>,
}

/// What an op does.
#[derive(Clone, Debug, PartialEq)]
pub enum OpKind {
    /// A transfer.
    Dma {
        /// Store, not load.
        store: bool,
        /// Which argument.
        tensor: u32,
        /// First element.
        offset: i64,
        /// Bits per element.
        bits: u32,
        /// Its semaphore, if asynchronous.
        semaphore: Option<u32>,
        /// Gather or scatter.
        indirect: bool,
        /// Elements along each dimension, outermost first.
        dims: Vec<i64>,
        /// Elements between neighbours.
        strides: Vec<i64>,
    },
    /// A compute tile.
    Compute {
        /// Row of the cycle table.
        tile: u32,
        /// 0 vector, 1 matmul, 2 preload, 3 cross-lane.
        unit: u32,
    },
    /// A wait.
    Wait {
        /// On which semaphore.
        semaphore: u32,
        /// For how many elements.
        expected: i64,
    },
}

/// A record as the producer makes it: semaphores are still (semaphore, 0) or (tag, slot).
#[derive(Debug, PartialEq)]
pub(crate) enum Raw {
    Head {
        abi: u32,
        sizes: Option<Vec<i64>>,
    },
    Item(Vec<i64>),
    Dma {
        store: bool,
        tensor: u32,
        offset: i64,
        bits: u32,
        semaphore: Option<(u64, u64)>,
        indirect: bool,
        dims: Vec<i64>,
        strides: Vec<i64>,
        reads: Vec<i64>,
        writes: Vec<i64>,
    },
    Compute {
        tile: u64,
        unit: i32,
        reads: Vec<i64>,
        writes: Vec<i64>,
    },
    Wait {
        key: (u64, u64),
        expected: Option<i64>,
    },
    End,
}

/// Writes records.
pub(crate) struct Writer(BufWriter<File>);

impl Writer {
    pub(crate) fn new(file: File) -> Writer {
        Writer(BufWriter::new(file))
    }

    pub(crate) fn write(&mut self, raw: &Raw) -> Result<(), String> {
        let mut line = print(raw);
        line.push('\n');
        self.0
            .write_all(line.as_bytes())
            .map_err(|e| format!("cannot write the recording: {e}"))
    }

    pub(crate) fn finish(mut self) -> Result<(), String> {
        self.0
            .flush()
            .map_err(|e| format!("cannot write the recording: {e}"))
    }
}

fn print(raw: &Raw) -> String {
    let list = |v: &[i64]| {
        let words: Vec<String> = v.iter().map(i64::to_string).collect();
        words.join(",")
    };
    match raw {
        Raw::Head { abi, sizes } => match sizes {
            Some(sizes) => format!("H {abi} sized {}", list(sizes)),
            None => format!("H {abi} unsized "),
        },
        Raw::Item(ids) => format!("I {}", list(ids)),
        Raw::Dma {
            store,
            tensor,
            offset,
            bits,
            semaphore,
            indirect,
            dims,
            strides,
            reads,
            writes,
        } => {
            let semaphore = semaphore.map_or("-".to_owned(), |(a, b)| format!("{a}:{b}"));
            format!(
                "D {} {tensor} {offset} {bits} {semaphore} {} {} {} {} {}",
                u8::from(*store),
                u8::from(*indirect),
                list(dims),
                list(strides),
                list(reads),
                list(writes)
            )
        }
        Raw::Compute {
            tile,
            unit,
            reads,
            writes,
        } => format!("C {tile} {unit} {} {}", list(reads), list(writes)),
        Raw::Wait { key, expected } => {
            let expected = expected.map_or("-".to_owned(), |n| n.to_string());
            format!("W {}:{} {expected}", key.0, key.1)
        }
        Raw::End => "E".to_owned(),
    }
}

/// Numbers for semaphores: their own where all are plain, else in order of first appearance.
#[derive(Default)]
struct Semaphores {
    order: HashMap<(u64, u64), u32>,
    plain: bool,
}

/// Reads a recording.
pub(crate) fn parse(text: &str) -> Result<Recording, RecordError> {
    let mut semaphores = Semaphores {
        plain: true,
        ..Semaphores::default()
    };
    for line in text.lines() {
        let word = match line.as_bytes().first() {
            Some(b'D') => line.split(' ').nth(5),
            Some(b'W') => line.split(' ').nth(1),
            _ => None,
        };
        if let Some(key) = word.and_then(key) {
            semaphores.plain &= key.1 == 0 && u32::try_from(key.0).is_ok();
            let next = semaphores.order.len() as u32;
            semaphores.order.entry(key).or_insert(next);
        }
    }
    let mut lines = text.lines().enumerate();
    let malformed = |line: usize, message: &str| RecordError::Malformed {
        line: line + 1,
        message: message.to_owned(),
    };
    let (abi, sizes) = match lines.next() {
        Some((at, line)) => {
            let words: Vec<&str> = line.split(' ').collect();
            let bad = || malformed(at, "no header");
            let ["H", abi, how, sizes] = words.as_slice() else {
                return Err(bad());
            };
            let abi = abi.parse().map_err(|_| bad())?;
            let sizes = list(sizes).ok_or_else(bad)?;
            (abi, (*how == "sized").then_some(sizes))
        }
        None => return Err(malformed(0, "it is empty")),
    };
    let mut recording = Recording {
        abi,
        sizes,
        items: Vec::new(),
    };
    let (mut ops, mut ended) = (0usize, false);
    let mut loads: HashMap<u32, i64> = HashMap::new();
    for (at, line) in lines {
        if ended {
            return Err(malformed(at, "something after the end"));
        }
        if line == "E" {
            ended = true;
        } else if let Some(ids) = line.strip_prefix("I ") {
            let ids = list(ids).ok_or_else(|| malformed(at, "no loop indices"))?;
            if recording.items.len() == MAX_ITEMS {
                return Err(RecordError::TooLarge(format!(
                    "more than {MAX_ITEMS} work-items: record a smaller grid"
                )));
            }
            recording.items.push(Item {
                ids,
                ops: Vec::new(),
            });
            loads.clear();
        } else {
            let op = op(line, &semaphores, &mut loads).ok_or_else(|| malformed(at, "no op"))?;
            ops += 1;
            if ops > MAX_OPS {
                return Err(RecordError::TooLarge(format!(
                    "more than {MAX_OPS} ops: record a smaller grid"
                )));
            }
            match recording.items.last_mut() {
                Some(item) => item.ops.push(op),
                None => return Err(malformed(at, "an op before every work-item")),
            }
        }
    }
    if ended {
        Ok(recording)
    } else {
        Err(malformed(text.lines().count(), "it has no end"))
    }
}

fn op(line: &str, semaphores: &Semaphores, loads: &mut HashMap<u32, i64>) -> Option<Op> {
    let semaphore = |word: &str| {
        let key = key(word)?;
        if semaphores.plain {
            u32::try_from(key.0).ok()
        } else {
            semaphores.order.get(&key).copied()
        }
    };
    let flag = |word: &str| match word {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    };
    let words: Vec<&str> = line.split(' ').collect();
    Some(match words.as_slice() {
        [
            "D",
            store,
            tensor,
            offset,
            bits,
            sem,
            indirect,
            dims,
            strides,
            reads,
            writes,
        ] => {
            let semaphore = match *sem {
                "-" => None,
                sem => Some(semaphore(sem)?),
            };
            let dims = list(dims)?;
            let strides = list(strides)?;
            if dims.len() != strides.len() {
                return None;
            }
            if let Some(semaphore) = semaphore {
                let elements = dims.iter().try_fold(1i64, |n, d| n.checked_mul(*d))?;
                loads.insert(semaphore, elements);
            }
            Op {
                kind: OpKind::Dma {
                    store: flag(store)?,
                    tensor: tensor.parse().ok()?,
                    offset: offset.parse().ok()?,
                    bits: bits.parse().ok()?,
                    semaphore,
                    indirect: flag(indirect)?,
                    dims,
                    strides,
                },
                reads: list(reads)?,
                writes: list(writes)?,
            }
        }
        ["C", tile, unit, reads, writes] => Op {
            kind: OpKind::Compute {
                tile: tile.parse().ok()?,
                unit: unit.parse().ok().filter(|u| *u <= 3)?,
            },
            reads: list(reads)?,
            writes: list(writes)?,
        },
        ["W", sem, expected] => {
            let semaphore = semaphore(sem)?;
            // Older versions pair a barrier with the latest load on its tag and slot.
            let expected = match *expected {
                "-" => loads.get(&semaphore).copied().unwrap_or(0),
                expected => expected.parse().ok()?,
            };
            Op {
                kind: OpKind::Wait {
                    semaphore,
                    expected,
                },
                reads: Vec::new(),
                writes: Vec::new(),
            }
        }
        _ => return None,
    })
}

fn key(word: &str) -> Option<(u64, u64)> {
    let (a, b) = word.split_once(':')?;
    Some((a.parse().ok()?, b.parse().ok()?))
}

fn list(word: &str) -> Option<Vec<i64>> {
    if word.is_empty() {
        return Some(Vec::new());
    }
    word.split(',').map(|n| n.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let raws = [
            Raw::Head {
                abi: 12,
                sizes: Some(vec![64, 0]),
            },
            Raw::Item(vec![1, -2]),
            Raw::Dma {
                store: false,
                tensor: 3,
                offset: -7,
                bits: 32,
                semaphore: Some((5, 9)),
                indirect: false,
                dims: vec![2, 3],
                strides: vec![3, 1],
                reads: vec![],
                writes: vec![0],
            },
            Raw::Wait {
                key: (5, 9),
                expected: None,
            },
            Raw::Compute {
                tile: 1,
                unit: 2,
                reads: vec![0],
                writes: vec![1],
            },
            Raw::End,
        ];
        let text: Vec<String> = raws.iter().map(print).collect();
        let recording = parse(&text.join("\n")).unwrap();
        assert_eq!((recording.abi, recording.sizes), (12, Some(vec![64, 0])));
        let item = &recording.items[0];
        assert_eq!(item.ids, [1, -2]);
        assert_eq!(
            item.ops[1].kind,
            OpKind::Wait {
                semaphore: 0,
                expected: 6
            }
        );
        assert_eq!(item.ops.len(), 3);
    }

    #[test]
    fn what_is_malformed_is_refused() {
        for bad in [
            "",
            "H",
            "H x sized ",
            "H 15 unsized ",
            "H 15 unsized \nW 0:0 1\nE",
            "H 15 unsized \nI 0\nW 0 1\nE",
            "H 15 unsized \nI 0\nD 2 0 0 32 - 0    \nE",
            "H 15 unsized \nI 0\nD 0 0 0 32 0:0 0 9223372036854775807,2 1,1  \nE",
            "H 15 unsized \nI 0\nC 0 4  \nE",
            "H 15 unsized \nI x\nE",
            "H 15 unsized \nE\nI 0",
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
