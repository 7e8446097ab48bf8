//! Tests of the flit-level networks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod booksim_table;
mod traffic;
