//! `tilesim serve`.

use clap::Args;
use tilesim_server::ServeArgs;

use super::{Failure, Outcome};

/// Runs the server.
#[derive(Args)]
pub struct Serve {
    #[command(flatten)]
    serve: ServeArgs,
}

impl Serve {
    pub fn run(self) -> Outcome {
        tilesim_server::main(self.serve).map_err(Failure::Internal)
    }
}
