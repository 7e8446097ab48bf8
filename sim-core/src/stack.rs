//! Where the cycles of a core went: every cycle has exactly one cause.

use serde::{Deserialize, Serialize};

/// What a core cycle was spent on. When several apply: computing first, else what the oldest
/// unfinished op waits for, and for memory what delayed its last-arriving request most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(u8)]
pub enum Cause {
    /// A systolic array computes.
    #[serde(rename = "compute.systolic")]
    Systolic,
    /// The vector unit computes and no array does.
    #[serde(rename = "compute.vector")]
    Vector,
    /// Only the cross-lane unit computes.
    #[serde(rename = "compute.cross_lane")]
    CrossLane,
    /// DRAM access time.
    #[serde(rename = "dram.latency")]
    DramLatency,
    /// Waiting in front of DRAM: bandwidth, queues.
    #[serde(rename = "dram.queue")]
    DramQueue,
    /// Another row had to be closed or opened.
    #[serde(rename = "dram.bank_conflict")]
    DramBankConflict,
    /// The DRAM data bus was taken.
    #[serde(rename = "dram.bus")]
    DramBus,
    /// DRAM refresh.
    #[serde(rename = "dram.refresh")]
    DramRefresh,
    /// NoC latency and contention.
    #[serde(rename = "noc")]
    Noc,
    /// L2 look-up and its queues.
    #[serde(rename = "l2")]
    L2,
    /// A transfer waits for the core's DMA or is being sent.
    #[serde(rename = "dma")]
    Dma,
    /// No room in the scratchpad.
    #[serde(rename = "scratchpad")]
    Scratchpad,
    /// No free weight slot.
    #[serde(rename = "weight_slot")]
    WeightSlot,
    /// Issue order and the pipeline between dependent ops.
    #[serde(rename = "dependency")]
    Dependency,
    /// No work-item.
    #[serde(rename = "no_work_item")]
    NoWorkItem,
}

impl Cause {
    /// Every cause, in display order.
    pub const ALL: [Cause; 15] = [
        Cause::Systolic,
        Cause::Vector,
        Cause::CrossLane,
        Cause::DramLatency,
        Cause::DramQueue,
        Cause::DramBankConflict,
        Cause::DramBus,
        Cause::DramRefresh,
        Cause::Noc,
        Cause::L2,
        Cause::Dma,
        Cause::Scratchpad,
        Cause::WeightSlot,
        Cause::Dependency,
        Cause::NoWorkItem,
    ];
}

/// Cycles per cause of one core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CycleStack([u64; Cause::ALL.len()]);

impl CycleStack {
    /// Add `cycles` to a cause.
    #[inline]
    pub fn add(&mut self, cause: Cause, cycles: u64) {
        self.0[cause as usize] += cycles;
    }

    /// Add `times` times the difference to `before`.
    pub fn add_since(&mut self, times: u64, before: &CycleStack) {
        for (now, before) in self.0.iter_mut().zip(&before.0) {
            *now += times * (*now - before);
        }
    }

    /// Cycles of a cause.
    pub fn get(&self, cause: Cause) -> u64 {
        self.0[cause as usize]
    }

    /// All cycles.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}
