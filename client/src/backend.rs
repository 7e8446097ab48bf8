//! Where simulations run: in this process, or on a server. The verbs do not care.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tilesim_core::Launch;
use tilesim_server::{
    catalog::{Catalog, MachineRequest},
    error::ServiceError,
    ids::{Digest, Tenant},
    rank::{self, Candidate, CandidateOutcome, Order, RankJob},
    runner::{Admission, RunProgress, RunRequest, RunResult, Runner, RunnerConfig},
};
use tilesim_traces::ValidTrace;
use tokio::{sync::mpsc, task::JoinSet};

use crate::remote::Client;

/// A launch of a replay: key, machine, trace, launch.
pub type ReplayItem = (String, MachineRequest, Digest, Launch);

/// Where simulations run.
#[derive(Clone)]
pub enum Backend {
    /// In this process.
    Local(Local),
    /// On a server.
    Remote(Client),
}

/// Simulations in this process: the server's own parts, without a network or a store.
#[derive(Clone)]
pub struct Local {
    catalog: Arc<Catalog>,
    runner: Runner,
    timeout: Option<Duration>,
}

impl Local {
    /// Starts one worker thread per processor.
    pub fn start(timeout: Option<Duration>) -> Result<Self, ServiceError> {
        let config = RunnerConfig {
            workers: std::thread::available_parallelism().map_or(1, usize::from),
            queue: 64,
            memory_bytes: 256 << 20,
        };
        let runner = Runner::start(&config, None)
            .map_err(|e| ServiceError::internal(format!("cannot start worker threads: {e}")))?;
        Ok(Self {
            catalog: Arc::new(Catalog::new(None)),
            runner,
            timeout,
        })
    }

    fn deadline(&self) -> Option<Instant> {
        self.timeout.and_then(|t| Instant::now().checked_add(t))
    }

    async fn simulate(
        &self,
        machine: &MachineRequest,
        trace: Digest,
        launch: &Launch,
        deadline: Option<Instant>,
        progress: Option<Arc<RunProgress>>,
    ) -> Result<RunResult, ServiceError> {
        let tenant = Tenant::default();
        let machine = self
            .catalog
            .machine(&tenant, machine.clone(), "machine")
            .await?;
        let trace = self.catalog.trace(&tenant, trace, "trace").await?;
        let launch = launch.clone();
        let request = RunRequest {
            tenant,
            machine,
            trace,
            launch,
            deadline,
            progress,
        };
        self.runner.run(request, Admission::OrWait).await
    }
}

impl Backend {
    /// Makes a trace known. A server is sent it only if it does not have it.
    pub async fn put_trace(&self, name: &str, trace: &ValidTrace) -> Result<Digest, ServiceError> {
        let digest = Digest(trace.digest().0);
        match self {
            Backend::Local(local) => {
                local.catalog.keep_trace(&Tenant::default(), trace.clone());
            }
            Backend::Remote(client) => {
                if !client.missing_traces(&[digest]).await?.is_empty() {
                    client
                        .upload_trace(name, &tilesim_traces::to_container(trace)?)
                        .await?;
                }
            }
        }
        Ok(digest)
    }

    /// Simulates one launch. `progress` shows how far a run in this process is.
    pub async fn simulate(
        &self,
        machine: &MachineRequest,
        trace: Digest,
        launch: &Launch,
        progress: Option<Arc<RunProgress>>,
    ) -> Result<RunResult, ServiceError> {
        match self {
            Backend::Local(local) => {
                local
                    .simulate(machine, trace, launch, local.deadline(), progress)
                    .await
            }
            Backend::Remote(client) => client.simulate(machine, trace, launch).await,
        }
    }

    /// Ranks candidates. Outcomes go to `outcomes` as they come; the order is returned.
    pub async fn rank(
        &self,
        machine: &MachineRequest,
        candidates: Vec<Candidate>,
        top_k: u32,
        outcomes: &mpsc::Sender<CandidateOutcome>,
    ) -> Result<Order, ServiceError> {
        match self {
            Backend::Local(local) => {
                let tenant = Tenant::default();
                let deadline = local.deadline();
                let machine = local
                    .catalog
                    .machine(&tenant, machine.clone(), "machine")
                    .await?;
                let job = RankJob {
                    tenant,
                    machine,
                    candidates,
                    top_k,
                    deadline,
                };
                rank::rank(&local.runner, &local.catalog, job, outcomes).await
            }
            Backend::Remote(client) => client.rank(machine, &candidates, top_k, outcomes).await,
        }
    }

    /// Simulates a list of launches. What becomes of them goes to `outcomes` as it comes, with the
    /// position in the list.
    pub async fn replay(
        &self,
        launches: Vec<ReplayItem>,
        outcomes: &mpsc::Sender<(usize, Result<RunResult, ServiceError>)>,
    ) -> Result<(), ServiceError> {
        let local = match self {
            Backend::Local(local) => local,
            Backend::Remote(client) => return client.replay(launches.into_iter(), outcomes).await,
        };
        let deadline = local.deadline();
        let mut tasks = JoinSet::new();
        let mut waiting = launches.into_iter().enumerate();
        loop {
            while tasks.len() <= local.runner.workers()
                && let Some((index, (_, machine, trace, launch))) = waiting.next()
            {
                let local = local.clone();
                tasks.spawn(async move {
                    (
                        index,
                        local
                            .simulate(&machine, trace, &launch, deadline, None)
                            .await,
                    )
                });
            }
            let Some(done) = tasks.join_next().await else {
                return Ok(());
            };
            let done =
                done.map_err(|e| ServiceError::internal(format!("a launch's task failed: {e}")))?;
            // Whoever reads outcomes may have seen enough.
            let _ = outcomes.send(done).await;
        }
    }
}
