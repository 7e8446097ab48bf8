//! Banked DRAM: devices as tables of timing constraints, and the controllers that drive them.

mod channel;
mod mapping;
mod spec;
mod standards;
mod stats;
mod timing;

pub use channel::{Channel, CommandRecord};
pub use mapping::{AddressMap, ChannelMapper, Field};
pub use spec::{Bus, Constraint, DramSpec, DramSpecError, RamulatorFile, Refresh, RowPolicy, Scheduler};
pub use standards::{Cmd, Standard};
pub use stats::{DramStats, LATENCY_BUCKETS};
