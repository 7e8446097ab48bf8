//! sim-core

pub mod dram;
