//! `tilesim import`: what other simulators' users have.

use std::{fs, path::PathBuf};

use anyhow::Context as _;
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use tilesim_server::error::ServiceError;
use tilesim_traces::{import::pytorchsim::Options, model::Bounds};

use super::{Failure, Outcome, folder, output, trace};

/// Turns what other simulators use into traces.
#[derive(Subcommand)]
pub enum Import {
    /// Turn a PyTorchSim kernel folder into a trace. Its C++ is read as data, never compiled or run.
    Pytorchsim(Pytorchsim),
}

impl Import {
    pub fn run(self) -> Outcome {
        match self {
            Import::Pytorchsim(import) => import.run(),
        }
    }
}

/// Imports a kernel folder.
#[derive(Args)]
pub struct Pytorchsim {
    /// The kernel's folder: the producer's C++ source, `trace_cycles.tsv` or `m5out/stats.txt`, and
    /// what else PyTorchSim writes beside them.
    folder: PathBuf,
    /// File to write: `.tile` (or nothing) for the text form, `.tilec` for the binary container. Without it only
    /// the report is printed.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The trace ABI of the producer's calls (11 to 15) [default: inferred from them].
    #[arg(long, value_name = "N")]
    abi: Option<u32>,
    /// The producer's file, if it is not the one that would be chosen.
    #[arg(long, value_name = "NAME")]
    source: Option<String>,
    /// What a transfer outside its tensor means [default: off, because the folder's tensor shapes
    /// are those of one launch].
    #[arg(long, value_enum)]
    bounds: Option<BoundsFlag>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What a transfer outside its tensor means.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum BoundsFlag {
    /// An error.
    Strict,
    /// It is counted in the result.
    Off,
}

#[derive(Serialize)]
struct ImportJson {
    kernel: String,
    digest: String,
    source: String,
    abi: u32,
    abi_inferred: bool,
    axes: u8,
    shape: Option<Vec<u64>>,
    unrolled: u64,
    used: Vec<String>,
    notes: Vec<String>,
}

impl Pytorchsim {
    fn run(self) -> Outcome {
        let fail = |e: ServiceError| Failure::Service(e, self.json);
        let options = Options {
            abi: self.abi,
            source: self.source.clone(),
            bounds: self.bounds.map(|b| match b {
                BoundsFlag::Strict => Bounds::Strict,
                BoundsFlag::Off => Bounds::Off,
            }),
            ..Options::default()
        };
        if let Some(path) = &self.output {
            trace::check_extension(path).map_err(fail)?;
        }
        let (file, imported) = folder::import(&self.folder, &options).map_err(fail)?;
        if let Some(path) = &self.output {
            let bytes = trace::encode(path, None, &file.trace).map_err(fail)?;
            fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
        }
        if self.json {
            let report = &imported.report;
            output::json(&ImportJson {
                kernel: imported.trace.header.kernel.clone(),
                digest: file.digest.to_string(),
                source: report.source.clone(),
                abi: report.abi,
                abi_inferred: report.abi_inferred,
                axes: imported.trace.axes,
                shape: report.shape.clone(),
                unrolled: report.unrolled,
                used: report.used.clone(),
                notes: report.notes.clone(),
            })?;
        } else {
            for line in folder::report_lines(&file, &imported) {
                output::line(&line)?;
            }
            if let Some(path) = &self.output {
                output::line(&format!("written to {}", path.display()))?;
            }
        }
        Ok(())
    }
}
