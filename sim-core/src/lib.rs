//! Machine model and engine of tilesim. Pure: no I/O, no threads, no clock, no randomness.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod clock;
pub mod machine;
pub mod memory;
pub mod stack;

mod shim;
pub use shim::{Launch,RunOptions,Progress,Watch,Report,CoreReport,UnitReport,StackEntry,Identity,SimError,simulate,MODEL_VERSION};
pub use machine::{Machine,MachineError};
