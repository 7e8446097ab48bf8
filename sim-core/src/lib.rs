//! Machine model and engine of tilesim. Pure: no I/O, no threads, no clock, no randomness.

pub mod dram;
pub mod machine;
pub mod noc;
pub mod units;
