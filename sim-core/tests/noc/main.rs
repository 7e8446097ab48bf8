//! Tests of the flit-level networks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod booksim_table;
mod closed_form;
mod configs;
mod naive;
mod speed;
mod traffic;
mod twin;
