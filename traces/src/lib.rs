//! The trace language of tilesim: one kernel as a small, data-only program.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod bind;
mod code;
pub mod error;
pub mod expand;
#[cfg(test)]
mod expand_tests;
pub mod expr;
pub mod generate;
pub mod json;
pub mod launch;
pub mod limits;
pub mod model;
mod syntax;
pub mod validate;

pub use bind::{Bound, BoundTensor};
pub use error::{ErrorCode, TextSpan, TraceError};
pub use launch::{LaunchArgs, WorkItem};
pub use limits::Limits;
pub use model::Trace;
pub use validate::{ValidTrace, validate};

mod shim;
pub use shim::*;
