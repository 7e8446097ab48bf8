//! End-to-end tests: real server processes, real sockets, the real command line.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod bad_input;
mod cli;
mod daemon;
mod lifecycle;
mod pytorchsim;
mod ranking;
mod running;
mod schemas;
mod storing;
mod validate;
