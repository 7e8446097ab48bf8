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
mod mapping;
mod presets;
mod spec;
mod standards;
mod stats;
mod timing;

pub use channel::{Channel, CommandRecord};
pub use mapping::{AddressMap, ChannelMapper, Field};
pub use presets::PRESETS;
pub use spec::{Bus, Constraint, DramSpec, DramSpecError, RamulatorFile, Refresh, RowPolicy, Scheduler};
pub use standards::{Cmd, Standard};
pub use stats::{DramStats, LATENCY_BUCKETS};
