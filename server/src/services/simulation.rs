//! `tilesim.v1.Simulation`.

use std::{future::Future, pin::Pin, sync::Arc, time::Instant};

use tilesim_proto::v1::{self, simulation_server::Simulation};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming, async_trait};

use super::{Caller, Services};
use crate::{
    error::{Kind, ServiceError},
    guard::incoming,
    ids::Tenant,
    rank::{self, RankJob},
    runner::{Admission, RunRequest, RunResult},
    wire,
};

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Messages of a stream that wait for a slow client.
const BACKLOG: usize = 16;

#[async_trait]
impl Simulation for Services {
    async fn simulate(
        &self,
        request: Request<v1::SimulateRequest>,
    ) -> Result<Response<v1::SimulateResponse>, Status> {
        let caller = self.caller(&request)?;
        let v1::SimulateRequest { machine, launch } = request.into_inner();
        let result = self
            .run(
                &caller.tenant,
                caller.deadline,
                machine,
                launch,
                Admission::OrRefuse,
            )
            .await?;
        Ok(Response::new(v1::SimulateResponse {
            result: Some(wire::result(&result)),
        }))
    }

    type RankStream = Answers<v1::RankResponse>;

    async fn rank(
        &self,
        request: Request<v1::RankRequest>,
    ) -> Result<Response<Self::RankStream>, Status> {
        let Caller { tenant, deadline } = self.caller(&request)?;
        let v1::RankRequest {
            machine,
            candidates,
            top_k,
        } = request.into_inner();
        let limits = self.app.config.limits.clone();
        if candidates.is_empty() {
            let message = "there are no candidates to rank";
            return Err(
                ServiceError::invalid("rank.no_candidates", "candidates", message)
                    .hint("send at least one")
                    .into(),
            );
        }
        wire::at_most(candidates.len(), limits.candidates, "candidates")?;
        let machine = wire::machine(machine, "machine")?;
        let machine = self
            .app
            .catalog
            .machine(&tenant, machine, "machine")
            .await?;
        let app = Arc::clone(&self.app);
        Ok(stream(deadline, move |answers| async move {
            let candidates = candidates
                .into_iter()
                .map(|c| wire::candidate(c, &limits))
                .collect();
            let job = RankJob {
                tenant,
                machine,
                candidates,
                top_k,
                deadline,
            };
            let (sender, mut outcomes) = mpsc::channel(BACKLOG);
            let forward = async {
                while let Some(outcome) = outcomes.recv().await {
                    if answers
                        .send(Ok(wire::candidate_outcome(outcome)))
                        .await
                        .is_err()
                    {
                        break;
                    }
                }
                outcomes.close();
            };
            let work = async {
                let order = rank::rank(&app.runner, &app.catalog, job, &sender).await;
                drop(sender);
                order
            };
            let (order, ()) = tokio::join!(work, forward);
            // Whoever went away does not read this.
            let _ = answers.send(Ok(wire::order(order?))).await;
            Ok(())
        }))
    }

    type ReplayStream = Answers<v1::ReplayResponse>;

    async fn replay(
        &self,
        request: Request<Streaming<v1::ReplayRequest>>,
    ) -> Result<Response<Self::ReplayStream>, Status> {
        let Caller { tenant, deadline } = self.caller(&request)?;
        let mut requests = request.into_inner();
        let services = self.clone();
        Ok(stream(deadline, move |answers| async move {
            let mut tasks = JoinSet::new();
            let at_once = services.app.runner.workers() + 1;
            let mut index = 0;
            let mut open = true;
            while open || !tasks.is_empty() {
                tokio::select! {
                    message = requests.message(), if open && tasks.len() < at_once => {
                        let Some(message) = message.map_err(incoming)? else {
                            open = false;
                            continue;
                        };
                        let (services, tenant) = (services.clone(), tenant.clone());
                        let number = index;
                        index += 1;
                        tasks.spawn(async move {
                            services.replay_one(&tenant, deadline, number, message).await
                        });
                    }
                    Some(done) = tasks.join_next() => {
                        let response = done.map_err(|e| {
                            ServiceError::internal(format!("a launch's task failed: {e}"))
                        })??;
                        if answers.send(Ok(response)).await.is_err() {
                            break;
                        }
                    }
                }
            }
            Ok(())
        }))
    }

    async fn submit_job(
        &self,
        _: Request<v1::SubmitJobRequest>,
    ) -> Result<Response<v1::SubmitJobResponse>, Status> {
        Err(no_jobs().into())
    }

    type WatchJobStream = Answers<v1::WatchJobResponse>;

    async fn watch_job(
        &self,
        _: Request<v1::WatchJobRequest>,
    ) -> Result<Response<Self::WatchJobStream>, Status> {
        Err(no_jobs().into())
    }

    async fn cancel_job(
        &self,
        _: Request<v1::CancelJobRequest>,
    ) -> Result<Response<v1::CancelJobResponse>, Status> {
        Err(no_jobs().into())
    }

    async fn list_jobs(
        &self,
        _: Request<v1::ListJobsRequest>,
    ) -> Result<Response<v1::ListJobsResponse>, Status> {
        Err(no_jobs().into())
    }
}

impl Services {
    async fn run(
        &self,
        tenant: &Tenant,
        deadline: Option<Instant>,
        machine: Option<v1::MachineRef>,
        launch: Option<v1::Launch>,
        admission: Admission,
    ) -> Result<RunResult, ServiceError> {
        let machine = wire::machine(machine, "machine")?;
        let (digest, launch) = wire::launch(launch, "launch", &self.app.config.limits)?;
        let machine = self.app.catalog.machine(tenant, machine, "machine").await?;
        let trace = self
            .app
            .catalog
            .trace(tenant, digest, "launch.trace_digest")
            .await?;
        let tenant = tenant.clone();
        let request = RunRequest {
            tenant,
            machine,
            trace,
            launch,
            deadline,
            progress: None,
        };
        self.app.runner.run(request, admission).await
    }

    /// Runs one launch of a replay. An error is one that ends the whole replay.
    async fn replay_one(
        &self,
        tenant: &Tenant,
        deadline: Option<Instant>,
        index: u64,
        request: v1::ReplayRequest,
    ) -> Result<v1::ReplayResponse, ServiceError> {
        use v1::replay_response::Outcome;
        let v1::ReplayRequest {
            key,
            machine,
            launch,
        } = request;
        let run = self
            .run(tenant, deadline, machine, launch, Admission::OrWait)
            .await;
        let outcome = match run {
            Ok(result) => Outcome::Result(wire::result(&result)),
            Err(error) => match error.kind {
                Kind::OverBudget { cycles } => Outcome::OverBudgetCycles(cycles),
                Kind::Deadline | Kind::Cancelled | Kind::Unavailable => return Err(error),
                _ => Outcome::Problem(wire::problem(*error.problem)),
            },
        };
        Ok(v1::ReplayResponse {
            index,
            key,
            outcome: Some(outcome),
        })
    }
}

/// Answers a call with a stream that `work` fills. The work is dropped when the client goes away,
/// and ended when its deadline passes; its error is the last message.
fn stream<T, W, F>(deadline: Option<Instant>, work: W) -> Response<Answers<T>>
where
    T: Send + 'static,
    W: FnOnce(mpsc::Sender<Result<T, Status>>) -> F + Send + 'static,
    F: Future<Output = Result<(), ServiceError>> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(BACKLOG);
    let work = work(sender.clone());
    tokio::spawn(async move {
        let limited = async {
            match deadline {
                None => work.await,
                Some(deadline) => tokio::time::timeout_at(deadline.into(), work)
                    .await
                    .unwrap_or_else(|_| Err(ServiceError::deadline())),
            }
        };
        let outcome = tokio::select! {
            outcome = limited => outcome,
            () = sender.closed() => return,
        };
        if let Err(error) = outcome {
            // Whoever went away does not read this.
            let _ = sender.send(Err(error.into())).await;
        }
    });
    Response::new(Box::pin(ReceiverStream::new(receiver)))
}

fn no_jobs() -> ServiceError {
    ServiceError::new(
        Kind::Unimplemented,
        "server.no_jobs",
        "",
        "this server does not keep jobs",
    )
    .hint("use Replay or Rank, which stream results while the connection lasts")
}
