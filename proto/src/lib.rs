//! The wire contract of tilesim: what `tilesim/v1/*.proto` says, as Rust.
//!
//! This crate holds generated code only. Messages turn into domain types, and back, in exactly two
//! places: `tilesim_server::wire` and `tilesim_client::wire`.

/// Version 1 of the contract.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod v1 {
    tonic::include_proto!("tilesim.v1");
}

/// The compiled contract (a serialised `FileDescriptorSet`), for server reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/tilesim.v1.bin"));

/// Metadata header that names the tenant.
pub const TENANT_HEADER: &str = "x-tilesim-tenant";

/// `domain` of every `google.rpc.ErrorInfo` that the server sends.
pub const ERROR_DOMAIN: &str = "tilesim";
