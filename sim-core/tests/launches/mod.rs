//! Launches of golden programs on golden machines.
#![allow(dead_code, missing_docs, clippy::unwrap_used, clippy::panic)]

use std::path::Path;

use tilesim_core::machine::Machine;
use tilesim_core::machine::import::ImportOptions;
use tilesim_core::{Launch, Report, simulate};
use tilesim_traces::model::Bounds;
use tilesim_traces::{LaunchArgs, ValidTrace, json, validate};

/// A launch ready to run.
pub struct Loaded {
    pub machine: Machine,
    pub trace: ValidTrace,
    pub launch: Launch,
}

impl Loaded {
    /// Run it.
    pub fn run(&self) -> Report {
        simulate(&self.machine, &self.trace, &self.launch, &mut ()).unwrap()
    }
}

fn golden(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/golden")
        .join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A golden program on a golden machine, by name.
pub fn load(program: &str, grid: &str, machine: &str) -> Loaded {
    load_with(program, grid, machine, Bounds::default())
}

/// The same with a grid that may lead out of the program's tensors.
pub fn load_beyond(program: &str, grid: &str, machine: &str) -> Loaded {
    load_with(program, grid, machine, Bounds::Off)
}

fn load_with(program: &str, grid: &str, machine: &str, bounds: Bounds) -> Loaded {
    let files = |path: &str| -> Result<String, String> {
        let path = path.trim_start_matches("../configs/");
        Ok(golden(&format!("pytorchsim/configs/{path}")))
    };
    let text = golden(&format!("pytorchsim/configs/{machine}.yml"));
    let machine = tilesim_core::machine::load(machine, &text, &files, ImportOptions::default())
        .unwrap()
        .machine;
    let text = golden(&format!("togsim/programs/{program}.json"));
    let mut trace = json::import(&text, &json::no_files).unwrap().trace;
    trace.bounds = bounds;
    let trace = validate(trace).unwrap();
    let args = LaunchArgs {
        grid: grid.split('x').map(|n| n.parse().unwrap()).collect(),
        ..LaunchArgs::default()
    };
    let launch = Launch {
        args,
        ..Launch::default()
    };
    Loaded {
        machine,
        trace,
        launch,
    }
}
