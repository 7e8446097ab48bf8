//! How fast the engine is: the golden rows as work to measure, and ways to measure it.
//!
//! The binary `perf` prints the table; `benches/parts.rs` times the parts on their own. Everything
//! is measured on whole processes, one per row, as the reference's seconds were.

pub mod golden;
pub mod instructions;
pub mod process;

/// What went wrong, in words.
pub type Error = String;
