//! The memory system: transfers in, completions out.
//!
//! A core hands over a whole transfer when its DMA takes it; from then on everything is known that
//! will be injected until the DMA is free again. Requests flow one way through stages (injection,
//! request port, front queue, DRAM, reply port, core) and no stage pushes back on an earlier one, so
//! each stage computes the times of a request from its own state as soon as the order of arrivals is
//! known. The system advances in windows: [`Memory::advance`] is told that no transfer starts before
//! a core step, and works everything up to that point; [`Memory::safe`] says up to which core step
//! all completions are known. Nothing ticks.
//!
//! [`Memory`] is one of two models behind one interface: every request (above), or whole transfers
//! (`transfer`), where the machine asks for that.
//!
//! Not modelled here: back pressure from DRAM queues into the NoC (queues in front of a channel are
//! unlimited, as in the reference).

pub mod arbiter;
mod cached;
pub mod calendar;
pub mod channel_map;
pub mod channels;
mod flights;
pub mod l2;
pub mod lines;
pub mod noc;
mod requests;
pub mod simple;
mod slab;
mod transfer;

use serde::{Deserialize, Serialize};
use tilesim_traces::launch::{Transfer, WorkItem};

use crate::dram::{Area, DramStats, Frame};
use crate::machine::{Machine, MemoryModel};
use crate::stack::Cause;
pub use channels::Counts;
pub use flights::Origin;
use l2::L2Stats;
use lines::LinesError;
use requests::Requests;
pub use simple::Credit;
use transfer::Transfers;

pub use transfer::{DIFFERENCES as TRANSFER_DIFFERENCES, note as transfer_note};

/// A finished transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Core step that sees it: the first after its last reply was handed over.
    pub step: u64,
    /// What [`Memory::start`] was given.
    pub token: u64,
    origin: Origin,
    /// What delayed the last-arriving request most.
    pub cause: Cause,
    /// Hand-over order: NoC step, then port.
    order: (u64, u32),
}

/// Counts of one channel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelStats {
    /// Read requests answered.
    pub reads: u64,
    /// Write requests answered.
    pub writes: u64,
}

/// One core's requests, by whether the partition of the channels that serves them is its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumaCounts {
    /// Core number.
    pub core: u32,
    /// Requests to its own partition.
    pub local: u64,
    /// Requests to the others.
    pub remote: u64,
}

/// How addresses lie in the rows of banked DRAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowSpace {
    /// Bytes that share the rows of one number: moving by them changes rows only.
    pub step: u64,
    /// Steps until the device ends and addresses start over.
    pub steps: u64,
}

/// The memory system of one run.
#[derive(Debug)]
pub enum Memory {
    /// Every request.
    Requests(Box<Requests>),
    /// Whole transfers.
    Transfers(Box<Transfers>),
}

macro_rules! either {
    ($memory:expr, $m:ident => $value:expr) => {
        match $memory {
            Memory::Requests($m) => $value,
            Memory::Transfers($m) => $value,
        }
    };
}

impl Memory {
    /// The memory system of a machine. `max_rows` bounds the rows of one transfer.
    pub fn new(machine: &Machine, max_rows: u64) -> Memory {
        match machine.memory {
            MemoryModel::Requests => Memory::Requests(Box::new(Requests::new(machine, max_rows))),
            MemoryModel::Transfer => Memory::Transfers(Box::new(Transfers::new(machine, max_rows))),
        }
    }

    /// Core `core`'s DMA starts sending `transfer` in core step `step`, `injection_ports` requests a
    /// step. Returns how many requests it has; 0 means that nothing is in flight and no completion
    /// will be reported.
    ///
    /// # Errors
    ///
    /// The transfer has more rows or dimensions than the limit.
    #[inline]
    pub fn start(
        &mut self,
        core: u32,
        step: u64,
        item: &WorkItem,
        transfer: &Transfer,
        token: u64,
        origin: Origin,
    ) -> Result<u64, LinesError> {
        either!(self, m => m.start(core, step, item, transfer, token, origin))
    }

    /// Whether any request has not been answered.
    #[inline]
    pub fn is_busy(&self) -> bool {
        either!(self, m => m.is_busy())
    }

    /// Every completion with a core step below this is known; `u64::MAX` when nothing is in flight.
    #[inline]
    pub fn safe(&self) -> u64 {
        either!(self, m => m.safe())
    }

    /// The next known completion of a core.
    #[inline]
    pub fn peek(&self, core: u32) -> Option<&Completion> {
        either!(self, m => m.peek(core))
    }

    /// Take it.
    pub fn pop(&mut self, core: u32) -> Option<Completion> {
        either!(self, m => m.pop(core))
    }

    /// Requests of all transfers started so far.
    pub fn started(&self) -> u64 {
        either!(self, m => m.started())
    }

    /// Most rows of one transfer.
    pub fn max_rows(&self) -> u64 {
        either!(self, m => m.max_rows())
    }

    /// Whether [`Memory::canonical`] knows the models.
    pub fn has_canonical(&self) -> bool {
        match self {
            Memory::Requests(m) => m.has_canonical(),
            Memory::Transfers(_) => false,
        }
    }

    /// Bytes by which all addresses can move with no effect but on the rows of banked DRAM; `None`
    /// where there is no such distance.
    pub fn period(&self) -> Option<u64> {
        match self {
            Memory::Requests(m) => m.period(),
            Memory::Transfers(_) => None,
        }
    }

    /// The rows that addresses lie in; `None` where the model has none.
    pub fn row_space(&self) -> Option<RowSpace> {
        match self {
            Memory::Requests(m) => m.row_space(),
            Memory::Transfers(_) => None,
        }
    }

    /// What rows are counted from; `None` where no state can be named so.
    pub fn frame(&self, areas: Vec<Area>) -> Option<Frame> {
        match self {
            Memory::Requests(m) => m.frame(areas),
            Memory::Transfers(_) => None,
        }
    }

    /// Everything before core step `now` is done: work all of the memory up to there.
    pub fn settle(&mut self, now: u64) {
        if let Memory::Requests(m) = self {
            m.settle(now);
        }
    }

    /// Append the state but bandwidth credit to `out`, times relative to core step `now` (to which
    /// all is settled), work-items to `base`, rows to `frame`.
    pub fn canonical(&self, now: u64, base: u64, frame: Option<&Frame>, out: &mut Vec<u64>) {
        if let Memory::Requests(m) = self {
            m.canonical(now, base, frame, out);
        }
    }

    /// Words that [`Memory::canonical`] looks at beside what it appends, about.
    pub fn scanned(&self) -> u64 {
        match self {
            Memory::Requests(m) => m.scanned(),
            Memory::Transfers(_) => 0,
        }
    }

    /// What the channels counted.
    pub fn counts(&self) -> Counts {
        match self {
            Memory::Requests(m) => m.counts(),
            Memory::Transfers(_) => Counts::default(),
        }
    }

    /// Bandwidth credit per channel at core step `now`; empty for models without.
    pub fn credit(&self, now: u64) -> Vec<Credit> {
        match self {
            Memory::Requests(m) => m.credit(now),
            Memory::Transfers(_) => Vec::new(),
        }
    }

    /// Start to look for the least bandwidth credit left over.
    pub fn reset_spare(&mut self) {
        if let Memory::Requests(m) = self {
            m.reset_spare();
        }
    }

    /// Account for work that was jumped over: `times` times what happened since `before`, and
    /// credit per channel.
    pub fn jump(&mut self, times: u64, before: &Counts, credit: &[i128]) {
        if let Memory::Requests(m) = self {
            m.jump(times, before, credit);
        }
    }

    /// Counts per channel.
    pub fn stats(&self) -> &[ChannelStats] {
        either!(self, m => m.stats())
    }

    /// The L2 slices' counts; empty without an L2. The transfer-level model has one entry for all.
    pub fn l2_stats(&self) -> Vec<L2Stats> {
        either!(self, m => m.l2_stats())
    }

    /// Requests per core by partition; empty where the channels have one.
    pub fn numa_stats(&self) -> Vec<NumaCounts> {
        match self {
            Memory::Requests(m) => m.numa_stats(),
            Memory::Transfers(_) => Vec::new(),
        }
    }

    /// The banked controllers' counts up to core step `end`; empty for other models.
    pub fn dram_stats(&mut self, end: u64) -> Vec<DramStats> {
        match self {
            Memory::Requests(m) => m.dram_stats(end),
            Memory::Transfers(_) => Vec::new(),
        }
    }

    /// No transfer starts before core step `core_step` that has not been handed over: work
    /// everything up to there.
    #[inline]
    pub fn advance(&mut self, core_step: u64) {
        either!(self, m => m.advance(core_step));
    }
}
