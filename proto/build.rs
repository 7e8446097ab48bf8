//! Generates the gRPC code from `tilesim/v1/*.proto` with protox, so that no protoc is needed.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

const FILES: [&str; 5] = [
    "tilesim/v1/common.proto",
    "tilesim/v1/machines.proto",
    "tilesim/v1/server.proto",
    "tilesim/v1/simulation.proto",
    "tilesim/v1/traces.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=tilesim");
    let descriptors = protox::compile(FILES, ["."])?;
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    fs::write(out.join("tilesim.v1.bin"), descriptors.encode_to_vec())?;
    // Maps are ordered, so that equal messages have equal bytes.
    tonic_prost_build::configure()
        .btree_map(".")
        .compile_fds(descriptors)?;
    Ok(())
}
