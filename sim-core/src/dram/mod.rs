//! Banked DRAM: devices as tables of timing constraints, and the controllers that drive them.
//!
//! # What is modelled
//!
//! A *device* ([`DramSpec`]) is data: a hierarchy (channel, rank or pseudo-channel, stack id, bank group, bank, row,
//! column), clocks, and a table of constraints (level, earlier commands, later commands, cycles, window, sibling), in the
//! form of Ramulator 2.1's fully resolved files, which load directly ([`DramSpec::from_ramulator`]). Ten devices are
//! shipped ([`PRESETS`]); every file names its source.
//!
//! A [`Channel`] is the state of one channel. The *Ramulator controller* ([`Scheduler::Ramulator`]) follows Ramulator 2.1
//! rule for rule: read and write queue per channel, first-ready first-come-first-served over timing-ready commands,
//! requests whose row was opened for them first, refreshes before the queues, write drain between watermarks, reads
//! answered from queued writes, writes to one address coalesced; one command per tick (DDR4, DDR5, GDDR6), split activates
//! and clock synchronisation (LPDDR5), a row and a column command per tick shared by the pseudo-channels (HBM2), half-clock
//! ticks with pairing rules (HBM3); all-bank and per-bank refresh; open rows or, as an option, auto-precharge with the last
//! queued access. The *look-ahead controller* ([`Scheduler::PerBank`]) has DRAMsim3's shape: posted writes
//! and a queue per bank.
//!
//! # Time
//!
//! Ticks are the device's clock (half clocks for HBM3, see [`DramSpec::tck_ps`]). In tick `t` the front queue is offered
//! first, then the controller acts; a completion in that tick carries `t`. Time is computed, not ticked: a channel jumps
//! from one command to the next, and the best candidate of each class of commands is kept while it stays the best.
//!
//! # What is not modelled
//!
//! Power, refresh management (RFM), self refresh and power-down, ECC, training, data contents. The known gaps to the
//! references are numbered in `docs/deviations/dram.md`.

mod channel;
mod frame;
mod lookahead;
mod mapping;
mod presets;
mod ring;
mod spec;
mod standards;
mod stats;
mod timing;

pub use channel::CommandRecord;
pub use frame::{Area, Frame};
pub use mapping::{AddressMap, ChannelMapper, Field};
pub use presets::PRESETS;
pub use spec::{
    Bus, Constraint, DramSpec, DramSpecError, RamulatorFile, Refresh, RowPolicy, Scheduler,
};
pub use standards::{Cmd, Standard};
pub use stats::{Done, DramStats, LATENCY_BUCKETS, WaitCause};

use channel::Exact;
use lookahead::LookAhead;

/// One channel: all state apart from the spec.
///
/// Every call takes the spec the channel was made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel(Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// Up to 64 banks.
    Exact(Box<Exact<1>>),
    /// Up to 256.
    Large(Box<Exact<4>>),
    LookAhead(Box<LookAhead>),
}

impl Channel {
    /// An idle channel with all banks closed at tick 0, under the spec's scheduler.
    pub fn new(spec: &DramSpec) -> Channel {
        Channel(match spec.scheduler {
            Scheduler::Ramulator if spec.banks() <= 64 => Kind::Exact(Box::new(Exact::new(spec))),
            Scheduler::Ramulator => Kind::Large(Box::new(Exact::new(spec))),
            Scheduler::PerBank { .. } => Kind::LookAhead(Box::new(LookAhead::new(spec))),
        })
    }

    /// Puts a request into the channel's unbounded front queue.
    ///
    /// It is offered to the controller from DRAM tick `at` on, in push order, at most `accepts_per_tick` per tick, the
    /// head blocking while its queue is full. `addr` is the byte address inside the channel. Calls come in
    /// non-decreasing `at`, none before a horizon that was already simulated.
    #[inline]
    pub fn push(&mut self, at: u64, addr: u64, write: bool, tag: u32) {
        match &mut self.0 {
            Kind::Exact(c) => c.push(at, addr, write, tag),
            Kind::Large(c) => c.push(at, addr, write, tag),
            Kind::LookAhead(c) => c.push(at, addr, write, tag),
        }
    }

    /// Offers a request at the current tick, past the front queue; `false` if its queue is full.
    ///
    /// The current tick is the horizon of the last [`Channel::advance`]. A write that merges with a queued one may
    /// complete at once.
    pub fn try_accept(
        &mut self,
        spec: &DramSpec,
        addr: u64,
        write: bool,
        tag: u32,
        out: &mut Vec<Done>,
    ) -> bool {
        match &mut self.0 {
            Kind::Exact(c) => c.try_accept(spec, addr, write, tag, out),
            Kind::Large(c) => c.try_accept(spec, addr, write, tag, out),
            Kind::LookAhead(c) => c.try_accept(spec, addr, write, tag),
        }
    }

    /// Simulates all ticks before `horizon`.
    ///
    /// Every request with `at < horizon` must have been pushed. Completions are appended in the order in
    /// which the controller makes them: reads when their data has returned; writes when their column command issues, or
    /// one tick after acceptance under the look-ahead controller.
    pub fn advance(&mut self, spec: &DramSpec, horizon: u64, out: &mut Vec<Done>) {
        match &mut self.0 {
            Kind::Exact(c) => c.advance(spec, horizon, out),
            Kind::Large(c) => c.advance(spec, horizon, out),
            Kind::LookAhead(c) => c.advance(spec, horizon, out, None),
        }
    }

    /// As [`Channel::advance`], and appends every command to `log`.
    pub fn advance_logged(
        &mut self,
        spec: &DramSpec,
        horizon: u64,
        out: &mut Vec<Done>,
        log: &mut Vec<CommandRecord>,
    ) {
        match &mut self.0 {
            Kind::Exact(c) => c.advance_logged(spec, horizon, out, log),
            Kind::Large(c) => c.advance_logged(spec, horizon, out, log),
            Kind::LookAhead(c) => c.advance(spec, horizon, out, Some(log)),
        }
    }

    /// A tick before which no completion can happen although nothing further is pushed; `u64::MAX` when idle.
    pub fn next_activity(&self, spec: &DramSpec) -> u64 {
        match &self.0 {
            Kind::Exact(c) => c.next_activity(spec),
            Kind::Large(c) => c.next_activity(spec),
            Kind::LookAhead(c) => c.next_activity(),
        }
    }

    /// The next tick at which the controller may do anything; nothing changes before it unless something is pushed.
    pub fn next_event(&self) -> u64 {
        match &self.0 {
            Kind::Exact(c) => c.next_event(),
            Kind::Large(c) => c.next_event(),
            Kind::LookAhead(c) => c.next_event(),
        }
    }

    /// Requests pushed and not completed.
    pub fn outstanding(&self) -> usize {
        match &self.0 {
            Kind::Exact(c) => c.outstanding(),
            Kind::Large(c) => c.outstanding(),
            Kind::LookAhead(c) => c.outstanding(),
        }
    }

    /// Whether every request has completed. Posted writes may still be on their way to the device.
    pub fn is_idle(&self) -> bool {
        self.outstanding() == 0
    }

    /// Posted writes that have completed and not reached the device; 0 under the Ramulator controller.
    pub fn unwritten(&self) -> usize {
        match &self.0 {
            Kind::Exact(_) | Kind::Large(_) => 0,
            Kind::LookAhead(c) => c.unwritten(),
        }
    }

    /// Free entries of the read and of the write queue; of the fullest pseudo-channel under the look-ahead controller.
    pub fn room(&self, spec: &DramSpec) -> (u32, u32) {
        match &self.0 {
            Kind::Exact(c) => c.room(spec),
            Kind::Large(c) => c.room(spec),
            Kind::LookAhead(c) => c.room(spec),
        }
    }

    /// Counters up to the last horizon.
    pub fn stats(&self) -> &DramStats {
        match &self.0 {
            Kind::Exact(c) => c.stats(),
            Kind::Large(c) => c.stats(),
            Kind::LookAhead(c) => c.stats(),
        }
    }

    /// Appends the state as words that do not depend on when and where: times relative to tick `now`, places relative
    /// to `frame`, ages as ranks; `name` appends what stands for a tag.
    ///
    /// `now` is the horizon of the last `advance`. Two channels of one spec whose words are equal behave alike from
    /// here on, moved in time and place, counters included.
    pub fn canonical(
        &self,
        spec: &DramSpec,
        now: u64,
        frame: &Frame,
        name: &mut impl FnMut(u32, &mut Vec<u64>),
        out: &mut Vec<u64>,
    ) {
        match &self.0 {
            Kind::Exact(c) => c.canonical(spec, now, frame, name, out),
            Kind::Large(c) => c.canonical(spec, now, frame, name, out),
            Kind::LookAhead(c) => c.canonical(spec, now, frame, name, out),
        }
    }

    /// Adds `times` times what was counted since `before`.
    pub fn repeat(&mut self, times: u64, before: &DramStats) {
        let stats = match &mut self.0 {
            Kind::Exact(c) => c.stats_mut(),
            Kind::Large(c) => c.stats_mut(),
            Kind::LookAhead(c) => c.stats_mut(),
        };
        stats.repeat(times, before);
    }
}
