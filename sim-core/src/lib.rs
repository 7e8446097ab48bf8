//! Machine model and engine of tilesim. Pure: no I/O, no threads, no clock, no randomness.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod bound;
pub mod clock;
pub mod cores;
pub mod dispatch;
pub mod dram;
pub mod energy;
pub mod engine;
pub mod error;
pub mod graph;
pub mod machine;
pub mod memory;
pub mod noc;
pub mod rank;
pub mod report;
pub mod stack;
pub mod units;
pub mod warp;

pub use bound::{LowerBound, Resource, lower_bound, lower_bound_of, lower_bound_within};
pub use engine::{Launch, Progress, RunOptions, Watch, simulate};
pub use error::SimError;
pub use report::{MODEL_VERSION, Report};
