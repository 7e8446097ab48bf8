//! sim-core
pub mod noc;
