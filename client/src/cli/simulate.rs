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
    /// Trace file, in any encoding.
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
        let result = self
            .simulate()
            .await
            .map_err(|e| Failure::Service(e, self.json))?;
        if self.json {
            output::json(&ResultJson::from(&result))?;
        } else {
            output::result(&self.trace.display().to_string(), &result)?;
        }
        Ok(())
    }

    async fn simulate(&self) -> Result<RunResult, ServiceError> {
        let trace = files::trace(&self.trace)?;
        let machine = self.machine.request()?;
        let backend = self.place.backend().await?;
        let progress = matches!(backend, Backend::Local(_)).then(Arc::default);
        let _bar = Bar::run(progress.clone());
        backend.put_trace(&trace.name, &trace.trace).await?;
        backend
            .simulate(&machine, trace.digest, &self.launch.launch(), progress)
            .await
    }
}
