//! The client side of tilesim: a Rust client library, and the command line built on it.
//!
//! ```no_run
//! use tilesim_client::{Client, ClientOptions};
//! use tilesim_core::{Launch, RunOptions};
//! use tilesim_server::{catalog::{MachineRequest, MachineSource}, error::ServiceError, ids::Digest};
//! use tilesim_traces::LaunchArgs;
//!
//! # async fn example() -> Result<(), ServiceError> {
//! let client = Client::connect("127.0.0.1:7625", ClientOptions::default()).await?;
//! let uploaded = client.upload_trace("kernel.json", b"...").await?;
//! let trace = Digest::parse(&uploaded.trace.unwrap_or_default().digest, "digest")?;
//! let source = MachineSource::Preset("tpuv3".to_owned());
//! let machine = MachineRequest { source, overrides: vec![] };
//! let args = LaunchArgs { grid: vec![4, 4], ..LaunchArgs::default() };
//! let launch = Launch { args, options: RunOptions::default() };
//! let result = client.simulate(&machine, trace, &launch).await?;
//! println!("{} cycles", result.report.cycles);
//! # Ok(())
//! # }
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod backend;
mod cli;
mod remote;
pub mod wire;

pub use cli::main;
pub use remote::{Client, ClientOptions};
