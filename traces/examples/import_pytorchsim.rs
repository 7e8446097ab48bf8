//! Prints a PyTorchSim kernel folder (or one producer) as a trace in text form, with its report.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]
use std::path::Path;

use tilesim_traces::ValidTrace;
use tilesim_traces::import::pytorchsim::{KernelFolder, Options, import};

fn main() {
    let path = std::env::args().nth(1).unwrap_or_else(|| ".".into());
    let folder = if path.ends_with(".cpp") {
        let mut f = KernelFolder::new();
        std::fs::read(&path)
            .map_err(|e| e.to_string())
            .and_then(|b| f.add("trace.cpp", b).map_err(|e| e.to_string()))
            .map(|()| f)
    } else {
        KernelFolder::read(Path::new(&path)).map_err(|e| e.to_string())
    };
    let done = folder
        .and_then(|f| import(&f, &Options::default()).map_err(|e| e.to_string()))
        .and_then(|i| {
            let trace = ValidTrace::try_from(i.trace).map_err(|e| format!("{e:?}"))?;
            println!("{}", tilesim_traces::to_text(&trace));
            println!("{:#?}", i.report);
            Ok(())
        });
    if let Err(e) = done {
        eprintln!("{e}");
        std::process::exit(1);
    }
}
