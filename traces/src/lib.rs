//! The trace language of tilesim: one kernel as a small, data-only program.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod bind;
mod code;
mod codes;
pub mod container;
pub mod digest;
pub mod error;
pub mod expand;
#[cfg(test)]
mod expand_tests;
pub mod expr;
pub mod generate;
pub mod json;
pub mod launch;
pub mod limits;
pub mod load;
pub mod model;
pub mod show;
mod syntax;
pub mod text;
pub mod validate;

pub use bind::{Bound, BoundTensor};
pub use digest::Digest;
pub use error::{ErrorCode, TextSpan, TraceError};
pub use launch::{LaunchArgs, WorkItem};
pub use limits::Limits;
pub use load::{load_bytes, load_bytes_with, to_container, to_text};
pub use model::Trace;
pub use validate::{ValidTrace, validate};
