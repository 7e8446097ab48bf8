//! `tilesim record`: a trace from a producer that exists as a shared object only.

use std::{
    fs,
    io::{self, BufRead as _, IsTerminal as _, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use clap::Args;
use serde::Serialize;
use tilesim_record::{Fitted, RecordError, Request, Tables};
use tilesim_server::error::ServiceError;
use tilesim_traces::import::pytorchsim::{parse_cycle_table, parse_numbers, parse_units};

use super::{Failure, Outcome, files, output, trace};

/// Runs a producer's shared object on this machine and writes what it emits as a trace.
#[derive(Args)]
#[command(after_help = RISK)]
pub struct Record {
    /// The producer: a shared object with `togsim_kernel`.
    object: PathBuf,
    /// The producer's shape arguments; for most producers, work-items along each axis.
    #[arg(long, value_delimiter = ',', required = true, value_name = "N,...")]
    grid: Vec<i64>,
    /// File to write: `.tile` (or nothing) for the text form, `.tilec` for the binary container.
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Cycles and overlap of each compute tile [default: trace_cycles.tsv or cycles.tsv beside the
    /// object, if there].
    #[arg(long, value_name = "FILE")]
    cycles: Option<PathBuf>,
    /// Rows, columns and element bytes of each tensor [default: trace_tensor_shapes.txt beside the
    /// object, if there].
    #[arg(long, value_name = "FILE")]
    tensors: Option<PathBuf>,
    /// What tiles ask of named units [default: units.tsv beside the object, if there].
    #[arg(long, value_name = "FILE")]
    units: Option<PathBuf>,
    /// The kernel's name [default: the object's].
    #[arg(long, value_name = "NAME")]
    kernel: Option<String>,
    /// The trace ABI of the producer's calls (11 to 15) [default: what the object says].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(11..=15))]
    abi: Option<u32>,
    /// Stop the producer after so many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    time: u64,
    /// Let the producer use so many MiB of address space.
    #[arg(long, value_name = "MIB", default_value_t = 4096, value_parser = clap::value_parser!(u64).range(64..=1_048_576))]
    memory: u64,
    /// Run it without asking.
    #[arg(long)]
    yes: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const RISK: &str = "This runs native code with your rights. The child process has limits on time and \
memory, which stop accidents; it is no sandbox against malice. Where there is C++ source, \
`tilesim import pytorchsim` reads it without running anything.";

/// Bytes of what a producer emits, at most.
const OUTPUT_BYTES: u64 = 512 << 20;

#[derive(Serialize)]
struct RecordJson<'a> {
    kernel: &'a str,
    digest: String,
    grid: &'a [u64],
    work_items: u64,
    bodies: usize,
    exact: bool,
    notes: &'a [String],
}

impl Record {
    pub fn run(self) -> Outcome {
        let json = self.json;
        let fail = |e: ServiceError| Failure::Service(e, json);
        // Everything that can be wrong is, before anything runs.
        let tables = self.tables().map_err(fail)?;
        trace::check_extension(&self.output).map_err(fail)?;
        self.confirm().map_err(fail)?;
        let fitted = self.record(&tables).map_err(fail)?;
        let bytes = trace::encode(&self.output, None, &fitted.trace).map_err(fail)?;
        fs::write(&self.output, bytes)
            .with_context(|| format!("cannot write {}", self.output.display()))?;
        let items = fitted.grid.iter().product();
        let digest = fitted.trace.digest().to_string();
        if json {
            output::json(&RecordJson {
                kernel: &tables.kernel,
                digest,
                grid: &fitted.grid,
                work_items: items,
                bodies: fitted.groups,
                exact: fitted.exact,
                notes: &fitted.notes,
            })?;
            return Ok(());
        }
        output::line(&format!("kernel {}, digest {digest}", tables.kernel))?;
        output::line(&format!(
            "{} work-items recorded, grid {:?}, {} {}, {}",
            output::grouped(items),
            fitted.grid,
            fitted.groups,
            if fitted.groups == 1 { "body" } else { "bodies" },
            if fitted.exact {
                "every number fits the program ids exactly"
            } else {
                "some work-items are stored one by one"
            },
        ))?;
        output::line("the trace expands to every recorded work-item")?;
        for note in &fitted.notes {
            output::line(&format!("note: {note}"))?;
        }
        output::line(&format!("written to {}", self.output.display()))?;
        Ok(())
    }

    /// Says what is about to happen, and asks.
    fn confirm(&self) -> Result<(), ServiceError> {
        eprintln!(
            "about to run native code: {}\n  on this machine, with your rights, in a child process \
             of at most {} s and {} MiB\n  it calls togsim_kernel with shape arguments {:?} and \
             records what it emits; nothing is sent anywhere",
            self.object.display(),
            self.time,
            self.memory,
            self.grid,
        );
        if self.yes {
            return Ok(());
        }
        let refused = |message: &str| {
            ServiceError::invalid("record.not_confirmed", "--yes", message)
                .hint("give --yes to run it without asking")
        };
        if !io::stdin().is_terminal() {
            return Err(refused("running native code needs a confirmation"));
        }
        eprint!("go on? [y/N] ");
        let _ = io::stderr().flush();
        let mut answer = String::new();
        match io::stdin().lock().read_line(&mut answer) {
            Ok(_) if matches!(answer.trim(), "y" | "Y" | "yes") => Ok(()),
            _ => Err(refused("not confirmed")),
        }
    }

    fn tables(&self) -> Result<Tables, ServiceError> {
        let beside = self.object.parent().unwrap_or(Path::new(""));
        let find = |given: &Option<PathBuf>, names: &[&str]| match given {
            Some(path) => Some(path.clone()),
            None => names.iter().map(|n| beside.join(n)).find(|p| p.is_file()),
        };
        let shown = |path: &Path| path.display().to_string();
        let mut tables = Tables {
            kernel: self.kernel.clone().unwrap_or_else(|| {
                self.object
                    .file_stem()
                    .map_or_else(String::new, |n| n.to_string_lossy().into_owned())
            }),
            ..Tables::default()
        };
        if let Some(path) = find(&self.cycles, &["trace_cycles.tsv", "cycles.tsv"]) {
            tables.cycles = Some(parse_cycle_table(&files::read(&path)?, &shown(&path))?);
        }
        if let Some(path) = find(&self.units, &["units.tsv", "trace_units.tsv"]) {
            tables.units = parse_units(&files::read(&path)?, &shown(&path))?;
        }
        if let Some(path) = find(&self.tensors, &["trace_tensor_shapes.txt"]) {
            let rows = parse_numbers(&files::read(&path)?, &shown(&path), 3)?;
            tables.tensors = Some(
                rows.iter()
                    .filter_map(|row| row.as_slice().try_into().ok())
                    .collect(),
            );
        }
        Ok(tables)
    }

    fn record(&self, tables: &Tables) -> Result<Fitted, ServiceError> {
        let failed = |e: RecordError| {
            let error =
                ServiceError::invalid(e.code(), self.object.display().to_string(), e.to_string());
            match e {
                RecordError::Differs { .. } => {
                    error.hint("this is a bug in tilesim; please report it")
                }
                _ => error,
            }
        };
        let program = std::env::current_exe().map_err(|error| {
            ServiceError::internal(format!("cannot tell which program this is: {error}"))
        })?;
        let recording = tilesim_record::record(&Request {
            program,
            object: self.object.clone(),
            shape: self.grid.clone(),
            abi: self.abi,
            time: Duration::from_secs(self.time),
            memory: self.memory << 20,
            output: OUTPUT_BYTES,
        })
        .map_err(failed)?;
        tilesim_record::fit(&recording, tables).map_err(failed)
    }
}

/// The child process of a recording; not for people.
#[derive(Args)]
pub struct RecordChild {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl RecordChild {
    pub fn run(self) -> Outcome {
        match tilesim_record::child_main(&self.arguments) {
            0 => Ok(()),
            code => Err(Failure::Told(code)),
        }
    }
}
