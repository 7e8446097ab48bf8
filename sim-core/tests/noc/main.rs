//! Tests of the flit-level networks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod booksim_run;
mod booksim_table;
mod closed_form;
mod configs;
mod knuth;
mod naive;
mod random;
mod speed;
mod twin;
