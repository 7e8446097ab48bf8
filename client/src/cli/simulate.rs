//! `tilesim simulate`.

use std::{path::PathBuf, sync::Arc};

use clap::Args;
use tilesim_server::{error::ServiceError, runner::RunResult};

use super::{
    Failure, Outcome,
    args::{LaunchFlags, MachineArgs, WhereArgs},
    files,
    output::{self, ResultJson},
    progress::Bar,
};
use crate::backend::Backend;

/// Simulates one launch.
#[derive(Args)]
pub struct Simulate {
    /// Trace file in any encoding, or a PyTorchSim kernel folder.
    trace: PathBuf,
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
        let (notes, result) = self
            .simulate()
            .await
            .map_err(|e| Failure::Service(e, self.json))?;
        if self.json {
            output::json(&ResultJson::from(&result))?;
        } else {
            output::result(&self.trace.display().to_string(), &result)?;
            for note in notes {
                output::line(&format!("import: {note}"))?;
            }
        }
        Ok(())
    }

    async fn simulate(&self) -> Result<(Vec<String>, RunResult), ServiceError> {
        let trace = files::trace(&self.trace)?;
        let launch = self.launch.launch(&trace)?;
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
        Ok((notes, result))
    }
}
