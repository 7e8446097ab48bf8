//! `tilesimd`: the tilesim daemon.

use std::process::ExitCode;

use clap::Parser;
use tilesim_server::ServeArgs;

/// The tilesim daemon: simulates tile kernels over gRPC.
#[derive(Parser)]
#[command(name = "tilesimd", version)]
struct Cli {
    #[command(flatten)]
    serve: ServeArgs,
}

fn main() -> ExitCode {
    match tilesim_server::main(Cli::parse().serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tilesimd: {error:#}");
            ExitCode::FAILURE
        }
    }
}
