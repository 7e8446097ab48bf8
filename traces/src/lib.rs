//! The trace language of tilesim: one kernel as a small, data-only program.
//!
//! A [`Trace`] says what ONE work-item of a kernel does: transfers between DRAM and scratchpad,
//! compute tiles with a cost, waits, loops and conditions over integer expressions. It is data, never
//! code: accepting one from a stranger is safe. Three types mark how far it has come:
//!
//! | type | what is known |
//! |---|---|
//! | [`Trace`] | it has the right shape; nothing else |
//! | [`ValidTrace`] | every id, depth and limit is right, whatever the launch |
//! | [`Bound`] | it fits a launch: grid, parameters and tensor placement are known; expressions are compiled |
//!
//! A bound trace expands one work-item at a time into a reused [`WorkItem`], so memory does not depend
//! on the grid.
//!
//! ```
//! use tilesim_traces::{Bound, LaunchArgs, Limits, WorkItem, load_bytes, show};
//!
//! let trace = load_bytes("copy.tile", br#"
//!     tilesim trace 1
//!     kernel "copy"
//!     axes 1
//!     param N
//!     tensor x: 32 bit in [N]
//!     tensor y: 32 bit out [N]
//!     buffer tile 4096
//!     body {
//!       let n = min(1024, N - p0 * 1024)
//!       load x[p0 * 1024] dims [1024: 1 valid n] async 0 writes [tile]
//!       wait 0 for 1024
//!       store y[p0 * 1024] dims [1024: 1 valid n] reads [tile]
//!     }
//! "#)?;
//! let args = LaunchArgs { grid: vec![3], params: [("N".into(), 2500)].into(), ..Default::default() };
//! let bound = Bound::new(&trace, &args, &Limits::default())?;
//! let mut item = WorkItem::default();
//! let mut moved = 0;
//! for index in 0..bound.items() {
//!     bound.expand(bound.pid(index), &mut item)?;
//!     moved += item.transfers.iter().map(|t| t.valid_elements).sum::<u64>();
//! }
//! assert_eq!(moved, 2 * 2500);
//! println!("{}", show::show(&bound, [2, 0, 0])?);
//! # Ok::<(), tilesim_traces::TraceError>(())
//! ```
//!
//! Where to look: [`model`] the data; [`expr`] what an operator means; [`mod@validate`] which traces are
//! well-formed; [`bind`] and [`expand`] launches and work-items; [`text`] (with `GRAMMAR.md`),
//! [`container`] and [`json`] the encodings, [`load`] all of them at once; [`mod@digest`] identity;
//! [`error`] every way to be wrong; [`limits`] how much is too much.
//!
//! Rules of this crate: no panics, no unsafe code, checked arithmetic, no order that depends on
//! hashing, and every recursion bounded by a limit that is checked first.

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
pub mod import;
pub mod json;
pub mod kernels;
pub mod launch;
pub mod limits;
pub mod load;
pub mod model;
mod motion;
mod program;
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
pub use motion::Motion;
pub use validate::{ValidTrace, validate};
