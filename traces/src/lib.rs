//! The trace language of tilesim: one kernel as a small, data-only program.

pub mod launch;
pub mod model;
