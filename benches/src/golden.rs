//! The golden rows, and launches from the files of `tests/golden`.

use std::path::{Path, PathBuf};

use tilesim_core::machine::import::ImportOptions;
use tilesim_core::machine::{Machine, load};
use tilesim_core::{Launch, Report, simulate};
use tilesim_traces::{LaunchArgs, ValidTrace, json, validate};

use crate::Error;

/// One row of `tests/golden/togsim/golden.csv`.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Program.
    pub program: String,
    /// Grid, as `4x4`.
    pub grid: String,
    /// Machine file, without its extension.
    pub machine: String,
    /// Core cycles the reference counted; none where it ended otherwise.
    pub cycles: Option<u64>,
    /// DRAM requests.
    pub requests: u64,
    /// CPU seconds the reference took.
    pub reference_s: f64,
}

impl Row {
    /// `program grid machine`.
    pub fn name(&self) -> String {
        format!("{} {} {}", self.program, self.grid, self.machine)
    }

    /// Whether DRAM banks are simulated (the other rows have constant latency).
    pub fn is_banked(&self) -> bool {
        is_banked(&self.machine)
    }
}

/// Whether a machine file of the golden set has banked DRAM.
pub fn is_banked(machine: &str) -> bool {
    !machine.contains("simple_dram")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden")
}

/// Where a golden program is.
pub fn program_path(name: &str) -> PathBuf {
    root().join(format!("togsim/programs/{name}.json"))
}

/// Where a golden machine file is.
pub fn machine_path(name: &str) -> PathBuf {
    root().join(format!("pytorchsim/configs/{name}.yml"))
}

/// Every golden row.
///
/// # Errors
///
/// The file cannot be read, or a line of it is not a row.
pub fn rows() -> Result<Vec<Row>, Error> {
    read(&root().join("togsim/golden.csv"))?
        .lines()
        .skip(1)
        .map(|line| row(line).ok_or_else(|| format!("not a golden row: {line}")))
        .collect()
}

fn row(line: &str) -> Option<Row> {
    let mut cells = line.split(',');
    Some(Row {
        program: cells.next()?.to_string(),
        grid: cells.next()?.to_string(),
        machine: cells.next()?.to_string(),
        cycles: cells.next()?.parse().ok(),
        requests: cells.next()?.parse().ok()?,
        reference_s: cells.next()?.trim().parse().ok()?,
    })
}

/// A launch ready to run.
#[derive(Debug)]
pub struct Loaded {
    /// The machine.
    pub machine: Machine,
    /// The trace.
    pub trace: ValidTrace,
    /// Grid and options.
    pub launch: Launch,
}

impl Loaded {
    /// Load a work-item (JSON) and a machine file, in the order a user's process does.
    ///
    /// # Errors
    ///
    /// What the importers say.
    pub fn new(program: &Path, grid: &str, machine: &Path) -> Result<Loaded, Error> {
        let dir = machine.parent().unwrap_or(Path::new("."));
        let files = |path: &str| read(&dir.join(path.trim_start_matches("../configs/")));
        let name = machine.file_stem().unwrap_or_default().to_string_lossy();
        let machine = load(&name, &read(machine)?, &files, ImportOptions::default())
            .map_err(|e| e.to_string())?
            .machine;
        let import = json::import(&read(program)?, &json::no_files).map_err(|e| e.to_string())?;
        let trace = validate(import.trace).map_err(|e| format!("{e:?}"))?;
        let grid = grid
            .split('x')
            .map(|n| n.parse().map_err(|_| format!("not a grid: {grid}")))
            .collect::<Result<_, Error>>()?;
        let launch = Launch {
            args: LaunchArgs {
                grid,
                ..LaunchArgs::default()
            },
            ..Launch::default()
        };
        Ok(Loaded {
            machine,
            trace,
            launch,
        })
    }

    /// Load a golden program and a golden machine by name.
    ///
    /// # Errors
    ///
    /// What the importers say.
    pub fn golden(program: &str, grid: &str, machine: &str) -> Result<Loaded, Error> {
        Loaded::new(&program_path(program), grid, &machine_path(machine))
    }

    /// Run it.
    ///
    /// # Errors
    ///
    /// What the engine says.
    pub fn run(&self) -> Result<Report, Error> {
        simulate(&self.machine, &self.trace, &self.launch, &mut ()).map_err(|e| e.to_string())
    }
}

fn read(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}
