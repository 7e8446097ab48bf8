//! A tilesim server, as a Rust client sees it.

use std::{
    future::Future,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tilesim_core::Launch;
use tilesim_proto::{
    TENANT_HEADER,
    v1::{
        self, machines_client::MachinesClient, server_client::ServerClient,
        simulation_client::SimulationClient, traces_client::TracesClient,
    },
};
use tilesim_server::{
    catalog::MachineRequest,
    error::{Kind, ServiceError},
    ids::Digest,
    rank::{Candidate, CandidateOutcome, Order},
    runner::RunResult,
};
use tokio::sync::mpsc;
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tonic::{
    Request,
    metadata::{Ascii, MetadataValue},
    transport::{Channel, Endpoint},
};

use crate::wire;

/// How to reach a server.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// On whose behalf.
    pub tenant: Option<String>,
    /// How often to try to connect before the server counts as unreachable.
    pub attempts: u32,
    /// How long to wait before the second attempt; it doubles from one to the next.
    pub backoff: Duration,
    /// How long each call may take.
    pub timeout: Option<Duration>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            tenant: None,
            attempts: 5,
            backoff: Duration::from_millis(100),
            timeout: None,
        }
    }
}

/// Bytes of a message that a server may send.
const MESSAGE_BYTES: usize = 256 << 20;
/// Bytes of one part of an upload.
const CHUNK: usize = 256 << 10;
/// How often a call is tried again while the server's queue is full.
const FULL_RETRIES: u32 = 20;

/// A connection to a server. Cheap to clone; clones share the connection.
#[derive(Clone)]
pub struct Client {
    channel: Channel,
    tenant: Option<MetadataValue<Ascii>>,
    timeout: Option<Duration>,
}

impl Client {
    /// Connects to `address`: `host:port`, or a URL.
    pub async fn connect(address: &str, options: ClientOptions) -> Result<Self, ServiceError> {
        let url = if address.contains("://") {
            address.to_owned()
        } else {
            format!("http://{address}")
        };
        let endpoint = Endpoint::from_shared(url)
            .map_err(|e| {
                ServiceError::invalid(
                    "client.bad_address",
                    "--server",
                    format!("`{address}`: {e}"),
                )
                .hint("use host:port")
            })?
            .connect_timeout(Duration::from_secs(2))
            .tcp_nodelay(true);
        let tenant = match &options.tenant {
            None => None,
            Some(tenant) => Some(tenant.parse().map_err(|_| {
                let message = format!("`{tenant}` is not a tenant name");
                ServiceError::invalid("client.bad_tenant", "--tenant", message)
            })?),
        };
        let mut wait = options.backoff;
        let mut attempt = 1;
        let channel = loop {
            match endpoint.connect().await {
                Ok(channel) => break channel,
                Err(error) if attempt >= options.attempts => {
                    let cause = std::error::Error::source(&error)
                        .map_or_else(|| error.to_string(), ToString::to_string);
                    return Err(ServiceError::new(
                        Kind::Unavailable,
                        "client.unreachable",
                        "--server",
                        format!("no server answers at {address} after {attempt} attempts: {cause}"),
                    )
                    .hint("start one with `tilesim serve`, or leave --server out"));
                }
                Err(_) => {
                    tokio::time::sleep(wait).await;
                    wait *= 2;
                    attempt += 1;
                }
            }
        };
        Ok(Self {
            channel,
            tenant,
            timeout: options.timeout,
        })
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(tenant) = &self.tenant {
            request.metadata_mut().insert(TENANT_HEADER, tenant.clone());
        }
        if let Some(timeout) = self.timeout {
            request.set_timeout(timeout);
        }
        request
    }

    fn traces(&self) -> TracesClient<Channel> {
        TracesClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_BYTES)
    }

    fn machines(&self) -> MachinesClient<Channel> {
        MachinesClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_BYTES)
    }

    fn simulation(&self) -> SimulationClient<Channel> {
        SimulationClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_BYTES)
    }

    /// Facts about the server.
    pub async fn info(&self) -> Result<v1::ServerInfoResponse, ServiceError> {
        let mut client = ServerClient::new(self.channel.clone());
        let answer = client.info(self.request(v1::ServerInfoRequest {})).await;
        answer
            .map(tonic::Response::into_inner)
            .map_err(|s| wire::error(&s))
    }

    /// Uploads a trace file, whatever its encoding.
    pub async fn upload_trace(
        &self,
        name: &str,
        bytes: &[u8],
    ) -> Result<v1::UploadTraceResponse, ServiceError> {
        use v1::upload_trace_request::Part;
        let part = |part| v1::UploadTraceRequest { part: Some(part) };
        let header = v1::UploadTraceHeader {
            name: name.to_owned(),
            size_bytes: bytes.len() as u64,
        };
        let mut parts = vec![part(Part::Header(header))];
        parts.extend(bytes.chunks(CHUNK).map(|c| part(Part::Data(c.to_vec()))));
        let request = self.request(tokio_stream::iter(parts));
        let answer = self
            .traces()
            .upload(request)
            .await
            .map_err(|s| wire::error(&s))?;
        Ok(answer.into_inner())
    }

    /// Which of the traces the server does not have.
    pub async fn missing_traces(&self, digests: &[Digest]) -> Result<Vec<String>, ServiceError> {
        let digests = digests.iter().map(ToString::to_string).collect();
        let request = self.request(v1::FindMissingTracesRequest { digests });
        let answer = self
            .traces()
            .find_missing(request)
            .await
            .map_err(|s| wire::error(&s))?;
        Ok(answer.into_inner().missing)
    }

    /// All stored traces.
    pub async fn list_traces(&self) -> Result<Vec<v1::StoredObject>, ServiceError> {
        let mut traces = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = self.request(v1::ListTracesRequest {
                page_size: 1000,
                page_token,
            });
            let page = self
                .traces()
                .list(request)
                .await
                .map_err(|s| wire::error(&s))?
                .into_inner();
            traces.extend(page.traces);
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return Ok(traces);
            }
        }
    }

    /// Presets and stored machines.
    pub async fn list_machines(
        &self,
    ) -> Result<(Vec<v1::PresetInfo>, Vec<v1::StoredObject>), ServiceError> {
        let (mut presets, mut machines) = (Vec::new(), Vec::new());
        let mut page_token = String::new();
        loop {
            let request = self.request(v1::ListMachinesRequest {
                page_size: 1000,
                page_token,
            });
            let page = self
                .machines()
                .list(request)
                .await
                .map_err(|s| wire::error(&s))?
                .into_inner();
            presets.extend(page.presets);
            machines.extend(page.machines);
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return Ok((presets, machines));
            }
        }
    }

    /// Simulates one launch of a stored trace. Waits and tries again while the server's queue is
    /// full.
    pub async fn simulate(
        &self,
        machine: &MachineRequest,
        trace: Digest,
        launch: &Launch,
    ) -> Result<RunResult, ServiceError> {
        let message = v1::SimulateRequest {
            machine: Some(wire::machine(machine)),
            launch: Some(wire::launch(trace, launch)),
        };
        retry_while_full(|| async {
            let request = self.request(message.clone());
            let answer = self
                .simulation()
                .simulate(request)
                .await
                .map_err(|s| wire::error(&s))?;
            wire::result(answer.into_inner().result)
        })
        .await
    }

    /// Ranks candidates. Outcomes go to `outcomes` as they come; the order is returned.
    pub async fn rank(
        &self,
        machine: &MachineRequest,
        candidates: &[Candidate],
        top_k: u32,
        outcomes: &mpsc::Sender<CandidateOutcome>,
    ) -> Result<Order, ServiceError> {
        use v1::rank_response::Part;
        let request = self.request(v1::RankRequest {
            machine: Some(wire::machine(machine)),
            candidates: candidates.iter().map(wire::candidate).collect(),
            top_k,
        });
        let answer = self
            .simulation()
            .rank(request)
            .await
            .map_err(|s| wire::error(&s))?;
        let mut parts = answer.into_inner();
        while let Some(response) = parts.message().await.map_err(|s| wire::error(&s))? {
            match response.part {
                Some(Part::Outcome(outcome)) => {
                    // Whoever reads outcomes may have seen enough.
                    let _ = outcomes.send(wire::outcome(outcome)?).await;
                }
                Some(Part::Order(order)) => return wire::order(order),
                None => {}
            }
        }
        Err(ServiceError::new(
            Kind::Internal,
            "client.malformed_answer",
            "",
            "the ranking ended without an order",
        ))
    }

    /// Simulates a list of launches. What becomes of them goes to `outcomes` as it comes, with the
    /// position in the list.
    pub async fn replay(
        &self,
        launches: impl Iterator<Item = (String, MachineRequest, Digest, Launch)> + Send + 'static,
        outcomes: &mpsc::Sender<(usize, Result<RunResult, ServiceError>)>,
    ) -> Result<(), ServiceError> {
        use v1::replay_response::Outcome;
        let (sender, receiver) = mpsc::channel(16);
        let sent = std::sync::Arc::new(AtomicU64::new(0));
        let count = std::sync::Arc::clone(&sent);
        let feed = tokio::spawn(async move {
            for (key, machine, trace, launch) in launches {
                let message = v1::ReplayRequest {
                    key,
                    machine: Some(wire::machine(&machine)),
                    launch: Some(wire::launch(trace, &launch)),
                };
                count.fetch_add(1, Ordering::Relaxed);
                if sender.send(message).await.is_err() {
                    break;
                }
            }
        });
        let request = self.request(ReceiverStream::new(receiver));
        let answer = self
            .simulation()
            .replay(request)
            .await
            .map_err(|s| wire::error(&s))?;
        let mut answers = answer.into_inner();
        let mut received = 0;
        while let Some(response) = answers.next().await {
            let response = response.map_err(|s| wire::error(&s))?;
            let outcome = match response.outcome {
                Some(Outcome::Result(result)) => wire::result(Some(result)),
                Some(Outcome::Problem(problem)) => Err(ServiceError {
                    kind: Kind::Invalid,
                    problem: Box::new(wire::problem(problem)),
                    retry_after: None,
                }),
                Some(Outcome::OverBudgetCycles(cycles)) => Err(ServiceError::new(
                    Kind::OverBudget { cycles },
                    "run.over_budget",
                    "",
                    format!("the cycle budget ended the run at {cycles} cycles"),
                )),
                None => continue,
            };
            received += 1;
            let _ = outcomes.send((response.index as usize, outcome)).await;
        }
        feed.abort();
        if received < sent.load(Ordering::Relaxed) {
            let message = "the server ended the replay early";
            return Err(ServiceError::new(
                Kind::Unavailable,
                "client.cut_short",
                "",
                message,
            ));
        }
        Ok(())
    }
}

/// Makes a call again, after the delay that the server asks for, while its queue is full.
async fn retry_while_full<T, F: Future<Output = Result<T, ServiceError>>>(
    call: impl Fn() -> F,
) -> Result<T, ServiceError> {
    let mut retries = 0;
    loop {
        match call().await {
            Err(ServiceError {
                kind: Kind::Exhausted,
                retry_after: Some(delay),
                ..
            }) if retries < FULL_RETRIES => {
                retries += 1;
                tokio::time::sleep(delay.min(LONGEST_WAIT)).await;
            }
            outcome => return outcome,
        }
    }
}

/// The longest wait before a call is tried again, whatever the server says.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
