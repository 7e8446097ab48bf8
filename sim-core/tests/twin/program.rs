//! From expanded work-items to ops with edges, scratchpad versions and refusals.

use std::collections::{BTreeMap, BTreeSet};

use tilesim_traces::launch::{OpKind, ResolvedIndirect, WorkItem};
use tilesim_traces::model::{Direction, Unit};

use super::lines::lines;
use super::{BufferInfo, Refusal, TileCost, TwinError};

/// Number of a buffer version, in dispatch order over the whole launch.
pub type Version = usize;

/// What an op does.
#[derive(Clone, Debug)]
pub enum Kind {
    /// A load; `waiters` are the waits of its batch (async loads only).
    Load { is_async: bool, waiters: Vec<usize> },
    /// A store.
    Store,
    /// A compute tile.
    Compute {
        unit: Unit,
        cycles: u64,
        overlap: u64,
    },
    /// A wait; `missing` counts the loads of its batch whose data has not arrived.
    Wait { missing: usize, issued: bool },
    /// A repeated wait: it never runs.
    Nothing,
}

/// A hold on a weight slot, shared by the matmuls that use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold(pub usize);

/// One op.
#[derive(Clone, Debug)]
pub struct Node {
    pub kind: Kind,
    /// Edges into it that have not cleared.
    pub blockers: usize,
    /// Ops that wait for its issue, in program order.
    pub on_issue: BTreeSet<usize>,
    /// Ops that wait for its completion, in program order.
    pub on_done: BTreeSet<usize>,
    /// Scratchpad it takes on issue.
    pub takes: Vec<(Version, u64)>,
    /// Versions it frees on issue.
    pub frees: Vec<Version>,
    /// Transfers: index into the work-item's transfers.
    pub transfer: Option<u32>,
    /// Replies still to come.
    pub outstanding: u64,
    /// All requests are sent and the DMA has dropped the transfer.
    pub dropped: bool,
    /// Matmuls: holds to release and the array to run on.
    pub holds: Vec<Hold>,
    pub array: Option<usize>,
}

/// One work-item.
#[derive(Clone, Debug)]
pub struct Item {
    pub nodes: Vec<Node>,
    /// Bytes of the tracked buffers it touches.
    pub footprint: u64,
    /// Ops ready to issue, in the order in which they became ready.
    pub ready: Vec<usize>,
    /// Ops that have not completed.
    pub unfinished: usize,
    raw: WorkItem,
}

impl Item {
    /// The lines transfer `op` touches.
    pub fn lines(&self, op: usize, request_bytes: u32) -> Vec<u64> {
        match self.nodes[op].transfer {
            Some(t) => lines(&self.raw, &self.raw.transfers[t as usize], request_bytes),
            None => Vec::new(),
        }
    }
}

/// The current writers of a buffer inside one work-item.
#[derive(Default)]
struct Writers {
    /// The last op that replaced the writers: anything but a matmul.
    initial: Option<usize>,
    /// Matmuls that have accumulated into it since.
    matmuls: Vec<usize>,
}

/// Async loads on one semaphore since the last wait, or those of the last wait.
#[derive(Default)]
struct Batch {
    loads: Vec<usize>,
    elements: u64,
    waited: bool,
}

/// Builds all work-items, in dispatch order.
pub fn build(
    raw: &[WorkItem],
    tiles: &[TileCost],
    buffers: &[BufferInfo],
) -> Result<Vec<Item>, TwinError> {
    let mut items = Vec::new();
    for (number, item) in raw.iter().enumerate() {
        items.push(link(number, item, tiles, buffers)?);
    }
    versions(&mut items, buffers);
    Ok(items)
}

fn edge(nodes: &mut [Node], from: usize, to: usize, on_issue: bool) {
    let set = if on_issue {
        &mut nodes[from].on_issue
    } else {
        &mut nodes[from].on_done
    };
    if set.insert(to) {
        nodes[to].blockers += 1;
    }
}

fn link(
    number: usize,
    raw: &WorkItem,
    tiles: &[TileCost],
    buffers: &[BufferInfo],
) -> Result<Item, TwinError> {
    let mut nodes: Vec<Node> = Vec::new();
    let mut writers: BTreeMap<u32, Writers> = BTreeMap::new();
    let mut batches: BTreeMap<u32, Batch> = BTreeMap::new();
    // Async loads whose wait has not come yet.
    let mut open: BTreeSet<usize> = BTreeSet::new();
    let mut touched: BTreeSet<u32> = BTreeSet::new();
    let mut unfinished = 0;
    for (n, op) in raw.ops.iter().enumerate() {
        let refuse = |why| TwinError::Refused {
            item: number,
            op: n,
            why,
        };
        let reads: Vec<u32> = raw.buffers[op.reads.range()].iter().map(|b| b.0).collect();
        let writes: Vec<u32> = raw.buffers[op.writes.range()].iter().map(|b| b.0).collect();
        touched.extend(&reads);
        touched.extend(&writes);
        let mut transfer = None;
        let kind = match op.kind {
            OpKind::Dma(t) => {
                transfer = Some(t);
                let moved = &raw.transfers[t as usize];
                match moved.direction {
                    Direction::Store => Kind::Store,
                    Direction::Load => {
                        if let Some(semaphore) = moved.semaphore {
                            let batch = batches.entry(semaphore.0).or_default();
                            if batch.waited {
                                *batch = Batch::default();
                            }
                            batch.loads.push(n);
                            batch.elements += moved.full_elements;
                            open.insert(n);
                        }
                        Kind::Load {
                            is_async: moved.semaphore.is_some(),
                            waiters: Vec::new(),
                        }
                    }
                }
            }
            OpKind::Compute { tile, unit } => {
                let cost = tiles[tile.index()];
                Kind::Compute {
                    unit,
                    cycles: cost.cycles,
                    overlap: cost.overlap,
                }
            }
            OpKind::Wait {
                semaphore,
                expected,
            } => {
                let Some(batch) = batches.get(&semaphore.0) else {
                    return Err(refuse(Refusal::NobodySignals));
                };
                if batch.elements != expected {
                    let signalled = batch.elements;
                    return Err(refuse(Refusal::WrongCount {
                        expected,
                        signalled,
                    }));
                }
                if batch.waited {
                    Kind::Nothing
                } else {
                    Kind::Wait {
                        missing: batch.loads.len(),
                        issued: false,
                    }
                }
            }
        };
        let is_matmul = matches!(
            kind,
            Kind::Compute {
                unit: Unit::Matmul,
                ..
            }
        );
        if !matches!(kind, Kind::Nothing) {
            unfinished += 1;
        }
        nodes.push(Node {
            kind,
            blockers: 0,
            on_issue: BTreeSet::new(),
            on_done: BTreeSet::new(),
            takes: Vec::new(),
            frees: Vec::new(),
            transfer,
            outstanding: 0,
            dropped: false,
            holds: Vec::new(),
            array: None,
        });
        if let OpKind::Wait { semaphore, .. } = op.kind {
            if matches!(nodes[n].kind, Kind::Wait { .. })
                && let Some(batch) = batches.get_mut(&semaphore.0)
            {
                batch.waited = true;
                for load in batch.loads.clone() {
                    edge(&mut nodes, load, n, false);
                    if let Kind::Load { waiters, .. } = &mut nodes[load].kind {
                        waiters.push(n);
                    }
                    open.remove(&load);
                    for b in &raw.buffers[raw.ops[load].writes.range()] {
                        let w = writers.entry(b.0).or_default();
                        *w = Writers {
                            initial: Some(n),
                            matmuls: Vec::new(),
                        };
                    }
                }
            }
            continue;
        }
        for b in &reads {
            let Some(w) = writers.get(b) else { continue };
            if w.initial.is_some_and(|i| open.contains(&i)) {
                return Err(refuse(Refusal::ReadBeforeWait { buffer: *b }));
            }
            if is_matmul && writes.contains(b) {
                continue;
            }
            if let Some(i) = w.initial {
                let preload = matches!(
                    nodes[i].kind,
                    Kind::Compute {
                        unit: Unit::Preload,
                        ..
                    }
                );
                edge(&mut nodes, i, n, is_matmul && preload);
            }
            for m in &w.matmuls {
                edge(&mut nodes, *m, n, is_matmul);
            }
        }
        for b in &writes {
            let w = writers.entry(*b).or_default();
            if is_matmul {
                if let Some(i) = w.initial {
                    if open.contains(&i) {
                        return Err(refuse(Refusal::ReadBeforeWait { buffer: *b }));
                    }
                    edge(&mut nodes, i, n, false);
                }
                w.matmuls.push(n);
            } else {
                *w = Writers {
                    initial: Some(n),
                    matmuls: Vec::new(),
                };
            }
        }
    }
    if let Some(load) = open.first() {
        let why = Refusal::NeverWaitedFor;
        return Err(TwinError::Refused {
            item: number,
            op: *load,
            why,
        });
    }
    let footprint = touched
        .iter()
        .map(|b| buffers[*b as usize])
        .filter(|b| b.moved)
        .map(|b| b.bytes)
        .sum();
    Ok(Item {
        nodes,
        footprint,
        ready: Vec::new(),
        unfinished,
        raw: raw.clone(),
    })
}

/// Gives every write into a tracked buffer its version, and every version its last reader.
fn versions(items: &mut [Item], buffers: &[BufferInfo]) {
    #[derive(Default)]
    struct Made {
        /// (item, op, bytes) of everything that puts bytes into the version.
        takes: Vec<(usize, usize, u64)>,
        last_reader: Option<(usize, usize)>,
    }
    let mut made: Vec<Made> = Vec::new();
    // Per buffer: its current version and whether a write still joins it.
    let mut current: BTreeMap<u32, (Version, bool)> = BTreeMap::new();
    for (i, item) in items.iter().enumerate() {
        for n in 0..item.nodes.len() {
            let raw = &item.raw;
            let op = &raw.ops[n];
            let reads: Vec<u32> = raw.buffers[op.reads.range()].iter().map(|b| b.0).collect();
            let writes: Vec<u32> = raw.buffers[op.writes.range()].iter().map(|b| b.0).collect();
            let tracked = |b: &u32| buffers[*b as usize].moved;
            let (closes, opens): (Vec<u32>, Vec<u32>) = match &item.nodes[n].kind {
                Kind::Wait { .. } | Kind::Nothing => continue,
                Kind::Store => (reads, Vec::new()),
                Kind::Load { .. } => (reads, writes),
                Kind::Compute { .. } => (
                    reads
                        .iter()
                        .copied()
                        .filter(|b| !writes.contains(b))
                        .collect(),
                    writes
                        .iter()
                        .copied()
                        .filter(|b| !reads.contains(b))
                        .collect(),
                ),
            };
            for b in closes.iter().filter(|b| tracked(b)) {
                if let Some((version, is_open)) = current.get_mut(b) {
                    made[*version].last_reader = Some((i, n));
                    *is_open = false;
                }
            }
            let opens: BTreeSet<u32> = opens.into_iter().collect();
            for b in opens.iter().filter(|b| tracked(b)) {
                let fresh = !current.get(b).is_some_and(|(_, is_open)| *is_open);
                if fresh {
                    current.insert(*b, (made.len(), true));
                    made.push(Made::default());
                }
                let Some((version, _)) = current.get(b).copied() else {
                    continue;
                };
                match item.nodes[n].transfer {
                    Some(t) => made[version].takes.push((i, n, transfer_bytes(raw, t))),
                    None if fresh => made[version].takes.push((i, n, buffers[*b as usize].bytes)),
                    None => {}
                }
            }
        }
    }
    for (version, m) in made.into_iter().enumerate() {
        // A version nobody reads takes nothing.
        let Some((i, n)) = m.last_reader else {
            continue;
        };
        items[i].nodes[n].frees.push(version);
        for (i, n, bytes) in m.takes {
            items[i].nodes[n].takes.push((version, bytes));
        }
    }
}

fn transfer_bytes(raw: &WorkItem, transfer: u32) -> u64 {
    let t = &raw.transfers[transfer as usize];
    match t.indirect {
        ResolvedIndirect::Lines { count, bytes } => count * u64::from(bytes),
        _ => (t.valid_elements * u64::from(t.element_bits)).div_ceil(8),
    }
}
