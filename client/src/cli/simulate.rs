//! `tilesim simulate`.

use std::{path::PathBuf, sync::Arc};

use clap::Args;
use tilesim_core::Launch;
use tilesim_server::{error::ServiceError, runner::RunResult};

use super::{
    Failure, Outcome,
    args::{LaunchFlags, MachineArgs, WhereArgs},
    files::{self, TraceFile},
    lists::{self, Files, LaunchEntry},
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
    /// File of a launch (trace, grid, parameters, options: an entry of a list of candidates), instead of
    /// a trace and its flags.
    #[arg(long = "launch", value_name = "FILE", conflicts_with_all = ["trace", "grid", "params",
        "extents", "placement", "allow_overlap", "cycle_budget", "max_work_items", "max_requests",
        "allow_cost_mismatch", "registers_per_item", "threads_per_item"])]
    launch_file: Option<PathBuf>,
    #[command(flatten)]
    machine: MachineArgs,
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

    /// The trace and its launch.
    fn what(&self) -> Result<(PathBuf, TraceFile, Launch), ServiceError> {
        if let Some(list) = &self.launch_file {
            let entry: LaunchEntry = serde_json::from_str(&files::read_text(list)?)
                .map_err(|e| lists::syntax(list, None, &e))?;
            let trace = Files::default().trace(list, &entry.trace)?;
            let launch = entry.launch(&trace)?;
            return Ok((list.clone(), trace, launch));
        }
        let path = self.trace.clone().unwrap_or_default();
        let trace = files::trace(&path)?;
        let launch = self.launch.launch(&trace)?;
        Ok((path, trace, launch))
    }

    async fn simulate(&self) -> Result<(String, Vec<String>, RunResult), ServiceError> {
        let (path, trace, launch) = self.what()?;
        let machine = self.machine.request()?;
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
