//! Writes a kernel in the trace language.
//!
//! Kernels are written as text and read by the parser of the text form: a generator then looks like
//! what it generates. Only numbers, and names fixed in this crate, enter the text.

use std::fmt::Write as _;

use super::cost::{Cost, CostModel, Work};
use super::element::ElementType;
use super::overflow;
use crate::error::TraceError;
use crate::model::{CostSource, Header, Trace, Unit};
use crate::text::{TEXT_MAGIC, TEXT_VERSION, parse, unit_word};

type Result<T> = std::result::Result<T, TraceError>;

/// A kernel that is being written.
pub(super) struct Writer<'a> {
    cost: &'a CostModel,
    axes: u8,
    declarations: String,
    buffers: String,
    tiles: Vec<(String, Unit, Cost)>,
    body: String,
    depth: usize,
    releases: bool,
}

impl<'a> Writer<'a> {
    /// An empty kernel.
    pub fn new(axes: u8, cost: &'a CostModel) -> Self {
        Writer {
            cost,
            axes,
            declarations: String::new(),
            buffers: String::new(),
            tiles: Vec::new(),
            body: String::new(),
            depth: 1,
            releases: false,
        }
    }

    /// An integer parameter.
    pub fn param(&mut self, name: &str) {
        let _ = writeln!(self.declarations, "param {name}");
    }

    /// A tensor argument; `extents` is a list of expressions.
    pub fn tensor(&mut self, name: &str, element: ElementType, role: &str, extents: &str) {
        let bits = element.bits();
        let _ = writeln!(
            self.declarations,
            "tensor {name}: {bits} bit {role} [{extents}]"
        );
    }

    /// A buffer of so many elements.
    pub fn buffer(&mut self, name: &str, elements: u64, element: ElementType) -> Result<()> {
        let bits = u128::from(elements) * u128::from(element.bits());
        let bytes = u64::try_from(bits.div_ceil(8)).map_err(|_| overflow("kernel"))?;
        let _ = writeln!(self.buffers, "buffer {name} {bytes}");
        Ok(())
    }

    /// A buffer that takes no scratchpad.
    pub fn virtual_buffer(&mut self, name: &str) {
        let _ = writeln!(self.buffers, "buffer {name} 0");
    }

    /// A compute tile.
    pub fn tile(&mut self, name: &str, unit: Unit, work: Work) -> Result<()> {
        let cost = self.cost.cost(self.tiles.len(), name, work)?;
        self.tiles.push((name.to_owned(), unit, cost));
        Ok(())
    }

    /// A line of the body.
    pub fn line(&mut self, text: &str) {
        for _ in 0..self.depth {
            self.body.push_str("  ");
        }
        self.body.push_str(text);
        self.body.push('\n');
    }

    /// `let`, over the rest of the block.
    pub fn set(&mut self, name: &str, value: &str) {
        self.line(&format!("let {name} = {value}"));
    }

    /// A statement with a block.
    pub fn block(&mut self, head: &str, inner: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.line(&format!("{head} {{"));
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        self.line("}");
        result
    }

    /// A run of a tile, on the unit it was declared for.
    pub fn compute(&mut self, tile: &str, reads: &[&str], writes: &[&str]) {
        let unit = self
            .tiles
            .iter()
            .find(|t| t.0 == tile)
            .map_or(Unit::Vector, |t| t.1);
        let mut text = format!("compute {tile} {}", unit_word(unit));
        for (word, names) in [("reads", reads), ("writes", writes)] {
            if !names.is_empty() {
                let _ = write!(text, " {word} [{}]", names.join(", "));
            }
        }
        self.line(&text);
    }

    /// Says that matmuls which wrote these are through: matmuls join a buffer's writers, and a tile of
    /// no cost takes their place, so that who waits for the buffer waits for one op.
    pub fn release(&mut self, free: &[String]) {
        if !free.is_empty() {
            self.releases = true;
            let names = free.join(", ");
            self.line(&format!(
                "compute release vector reads [{names}] writes [{names}]"
            ));
        }
    }

    /// The trace.
    pub fn finish(self, kernel: &str) -> Result<Trace> {
        let names: Vec<String> = self.tiles.iter().map(|t| t.0.clone()).collect();
        self.cost.check_names(&names)?;
        let mut text = format!("{TEXT_MAGIC} {TEXT_VERSION}\naxes {}\n", self.axes);
        text.push_str(&self.declarations);
        text.push_str(&self.buffers);
        for (name, unit, cost) in &self.tiles {
            let _ = writeln!(
                text,
                "tile {name} unit {} cycles {} overlap {}",
                unit_word(*unit),
                cost.cycles,
                cost.overlap
            );
        }
        if self.releases {
            text.push_str("tile release unit vector cycles 0 source declared\n");
        }
        // The kernel's program ids count as Triton's do: p0 fastest.
        text.push_str("dispatch order");
        for axis in (0..self.axes).rev() {
            let _ = write!(text, " p{axis}");
        }
        let _ = write!(text, "\nbody {{\n{}}}\n", self.body);
        let mut trace = parse(&text)?;
        for (tile, (_, _, cost)) in trace.tiles.iter_mut().zip(&self.tiles) {
            tile.source = cost.source.clone();
        }
        // Costs that somebody declared hold wherever they like.
        let of_machine = |t: &(String, Unit, Cost)| t.2.source != CostSource::Declared;
        trace.header = Header {
            kernel: kernel.to_owned(),
            producer: "tilesim kernel library".into(),
            producer_version: env!("CARGO_PKG_VERSION").into(),
            measured_on: if self.tiles.iter().any(of_machine) {
                self.cost.measured_on()
            } else {
                None
            },
            origins: Vec::new(),
        };
        Ok(trace)
    }
}

/// One operand that a loop streams in, a tile a step.
pub(super) struct Stream<'s> {
    /// Name of its buffers.
    pub name: &'s str,
    /// Elements of a tile, masked ones included.
    pub elements: u64,
    /// Their type.
    pub element: ElementType,
    /// The load, up to its dims; uses the step number `t`.
    pub load: &'s str,
    /// Operands of one group are waited for together.
    pub group: u32,
}

/// A loop over tiles that are loaded ahead.
///
/// With `stages` above 0 each operand has so many buffers, used in turn; a buffer is filled again
/// once what read it has completed, so at most `stages` tiles of each operand are there or on their
/// way. With 0 a single name stands for as many buffers as the scratchpad has room for.
pub(super) struct Pipeline<'s> {
    /// Number of steps, an expression.
    pub steps: String,
    /// Buffers per operand; 0: as many as fit.
    pub stages: u32,
    /// The operands.
    pub streams: &'s [Stream<'s>],
    /// Names that their loads use, over the step number `t`.
    pub lets: &'s [(&'s str, String)],
}

/// What the body of a pipelined loop may name: the buffers of its step.
pub(super) struct Step<'s> {
    slot: u32,
    stages: u32,
    streams: &'s [Stream<'s>],
}

impl Step<'_> {
    /// The buffer that holds an operand in this step.
    pub fn buffer(&self, name: &str) -> String {
        if self.stages <= 1 {
            name.to_owned()
        } else {
            format!("{name}_{}", self.slot)
        }
    }

    /// What an op must write to say that it was the last to read the operand; nothing when buffers
    /// are not reused.
    pub fn free(&self, name: &str) -> Option<String> {
        (self.stages > 0).then(|| format!("{}_free", self.buffer(name)))
    }

    /// Waits for a group of operands.
    pub fn wait(&self, w: &mut Writer<'_>, group: u32) -> Result<()> {
        let mut sum: u64 = 0;
        for s in self.streams.iter().filter(|s| s.group == group) {
            sum = sum
                .checked_add(s.elements)
                .ok_or_else(|| overflow("kernel"))?;
        }
        w.line(&format!("wait {} for {sum}", self.semaphore(group)));
        Ok(())
    }

    fn semaphore(&self, group: u32) -> u32 {
        let groups = self.streams.iter().map(|s| s.group + 1).max().unwrap_or(1);
        self.slot * groups + group
    }

    fn loads(&self, w: &mut Writer<'_>) {
        for s in self.streams {
            let buffer = self.buffer(s.name);
            let semaphore = self.semaphore(s.group);
            let tail = match self.free(s.name) {
                Some(free) => format!("reads [{free}] writes [{buffer}]"),
                None => format!("writes [{buffer}]"),
            };
            w.line(&format!("load {} async {semaphore} {tail}", s.load));
        }
    }
}

impl Pipeline<'_> {
    /// Declares the buffers.
    pub fn declare(&self, w: &mut Writer<'_>) -> Result<()> {
        for s in self.streams {
            for slot in 0..self.stages.max(1) {
                let step = self.step(slot);
                w.buffer(&step.buffer(s.name), s.elements, s.element)?;
                if let Some(free) = step.free(s.name) {
                    w.virtual_buffer(&free);
                }
            }
        }
        Ok(())
    }

    fn step(&self, slot: u32) -> Step<'_> {
        Step {
            slot,
            stages: self.stages,
            streams: self.streams,
        }
    }

    /// The loads of step `t` into a slot.
    fn loads(&self, w: &mut Writer<'_>, t: &str, slot: u32) -> Result<()> {
        w.block(&format!("let t = {t}"), |w| {
            for (name, value) in self.lets {
                w.set(name, value);
            }
            self.step(slot).loads(w);
            Ok(())
        })
    }

    /// The loop. `body` writes one step, in which `k` is the step's number.
    pub fn write(
        &self,
        w: &mut Writer<'_>,
        mut body: impl FnMut(&mut Writer<'_>, &Step<'_>) -> Result<()>,
    ) -> Result<()> {
        let slots = self.stages.max(1);
        let ahead = slots - 1;
        w.set("steps", &self.steps);
        for slot in 0..ahead {
            w.block(&format!("if {slot} < steps"), |w| {
                self.loads(w, &slot.to_string(), slot)
            })?;
        }
        let mut one = |w: &mut Writer<'_>, slot: u32| {
            if ahead == 0 {
                self.loads(w, "k", slot)?;
            } else {
                w.block(&format!("if k + {ahead} < steps"), |w| {
                    self.loads(w, &format!("k + {ahead}"), (slot + ahead) % slots)
                })?;
            }
            body(w, &self.step(slot))
        };
        if slots == 1 {
            return w.block("for k in 0..steps", |w| one(w, 0));
        }
        w.block(&format!("for round in 0..steps step {slots}"), |w| {
            w.block("let k = round", |w| one(w, 0))?;
            for slot in 1..slots {
                w.block(&format!("if round + {slot} < steps"), |w| {
                    w.block(&format!("let k = round + {slot}"), |w| one(w, slot))
                })?;
            }
            Ok(())
        })
    }
}
