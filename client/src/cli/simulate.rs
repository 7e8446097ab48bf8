//! `tilesim simulate`.

use std::{path::PathBuf, sync::Arc};

use clap::Args;
use tilesim_core::Launch;
use tilesim_server::{catalog::MachineRequest, error::ServiceError, runner::RunResult};

use super::{
    Failure, Outcome,
    args::{LaunchFlags, MachineArgs, WhereArgs, pair},
    files::{self, TraceFile},
    lists::{self, Files, LaunchLine},
    output::{self, ResultJson},
    progress::Bar,
};
use crate::backend::Backend;

/// Simulates one launch.
#[derive(Args)]
pub struct Simulate {
    /// Trace file in any encoding, or a PyTorchSim kernel folder.
    #[arg(required_unless_present = "launch_file")]
    trace: Option<PathBuf>,
    /// File of a launch (trace, grid, parameters, options, machine: a line of a replay), instead of a
    /// trace and its flags.
    #[arg(long = "launch", value_name = "FILE", conflicts_with_all = ["trace", "grid", "params",
        "extents", "placement", "allow_overlap", "cycle_budget", "max_work_items", "max_requests",
        "allow_cost_mismatch", "registers_per_item", "threads_per_item"])]
    launch_file: Option<PathBuf>,
    /// Machine: a preset's name (see `tilesim machine list`) or a file; before the one that the file of
    /// a launch names.
    #[arg(
        long,
        short,
        value_name = "MACHINE",
        required_unless_present = "launch_file"
    )]
    machine: Option<String>,
    /// Change a value of the machine, for example `dram.channels=8`; after the changes in the file of a
    /// launch.
    #[arg(long = "set", value_name = "PATH=VALUE", value_parser = pair)]
    set: Vec<(String, String)>,
    #[command(flatten)]
    launch: LaunchFlags,
    #[command(flatten)]
    place: WhereArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Simulate {
    pub async fn run(self) -> Outcome {
        let (name, notes, result) = self
            .simulate()
            .await
            .map_err(|e| Failure::Service(e, self.json))?;
        if self.json {
            output::json(&ResultJson::from(&result))?;
        } else {
            output::result(&name, &result)?;
            for note in notes {
                output::line(&format!("import: {note}"))?;
            }
        }
        Ok(())
    }

    /// The file that names it, the trace, its launch and its machine.
    fn what(&self) -> Result<(PathBuf, TraceFile, Launch, MachineRequest), ServiceError> {
        let mut files = Files::default();
        if let Some(list) = &self.launch_file {
            let line = LaunchLine::parse(&files::read_text(list)?)
                .map_err(|e| lists::syntax(list, None, &e))?;
            let named = self.machine.as_ref().or(line.machine.as_ref());
            let named = named.ok_or_else(|| lists::no_machine(list.display().to_string()))?;
            let mut overrides = lists::overrides(&line.set);
            overrides.extend(self.set.iter().cloned());
            let machine = files.machine(list, named, overrides)?;
            let trace = files.trace(list, &line.launch.trace)?;
            let launch = line.launch.launch(&trace)?;
            return Ok((list.clone(), trace, launch, machine));
        }
        let machine = MachineArgs {
            machine: self.machine.clone().unwrap_or_default(),
            set: self.set.clone(),
        };
        let path = self.trace.clone().unwrap_or_default();
        let trace = files::trace(&path)?;
        let launch = self.launch.launch(&trace)?;
        Ok((path, trace, launch, machine.request()?))
    }

    async fn simulate(&self) -> Result<(String, Vec<String>, RunResult), ServiceError> {
        let (path, trace, launch, machine) = self.what()?;
        let backend = self.place.backend().await?;
        let progress = matches!(backend, Backend::Local(_)).then(Arc::default);
        let _bar = Bar::run(progress.clone());
        backend.put_trace(&trace.name, &trace.trace).await?;
        let result = backend
            .simulate(&machine, trace.digest, &launch, progress)
            .await?;
        let notes = trace
            .imported
            .as_ref()
            .map_or_else(Vec::new, |i| i.report.notes.clone());
        Ok((path.display().to_string(), notes, result))
    }
}
