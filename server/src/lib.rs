//! The tilesim daemon: gRPC services over a store, a queue and worker threads.
//!
//! ```text
//! services   thin: message -> domain types -> answer            (async)
//! catalog    traces and machines by name                        (async, blocking work elsewhere)
//! rank       many runs, one order                               (async)
//! runner     queue, single flight, result cache, worker threads (runs off the async runtime)
//! store      files and index                                    (blocking)
//! ```
//!
//! [`error`] is the only place that knows which error becomes which status, [`wire`] the only one
//! where messages turn into domain types. [`catalog`], [`rank`] and [`runner`] know nothing of
//! gRPC: the command line uses them in its own process.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod catalog;
pub mod config;
pub mod error;
pub mod guard;
pub mod ids;
mod lru;
pub mod rank;
pub mod runner;
mod serve;
pub mod services;
pub mod store;
pub mod wire;

pub use config::{Config, ServeArgs};
pub use serve::{App, Server, ServerBuilder, main};
