//! The one place of this crate where wire messages and domain types turn into each other.

use std::sync::Arc;

use tilesim_core::{
    Launch, Report,
    memory::{ChannelStats, NumaCounts},
    report::{AdmittedUnit, CoreReport, DramReport, Identity, StackEntry, TileReport, UnitReport},
};
use tilesim_proto::{ERROR_DOMAIN, v1};
use tilesim_server::{
    catalog::{MachineRequest, MachineSource},
    error::{Kind, Problem, ServiceError},
    ids::Digest,
    rank::{Candidate, CandidateOutcome, Order, Ranked, Status, StatusCount, Verdict},
    runner::{Envelope, Origin, RunResult},
};
use tonic::Code;
use tonic_types::StatusExt;

/// What a server must not leave out.
fn required<T>(part: Option<T>, what: &str) -> Result<T, ServiceError> {
    part.ok_or_else(|| malformed(format!("the answer has no {what}")))
}

fn malformed(message: String) -> ServiceError {
    ServiceError::new(Kind::Internal, "client.malformed_answer", "", message)
        .hint("client and server may be of different versions")
}

/// A status as the failure it stands for.
pub fn error(status: &tonic::Status) -> ServiceError {
    let details = status.get_error_details();
    let info = details.error_info().filter(|i| i.domain == ERROR_DOMAIN);
    let metadata = |name: &str| info.and_then(|i| i.metadata.get(name)).cloned();
    let code = info.map(|i| i.reason.clone());
    let kind = match status.code() {
        Code::InvalidArgument | Code::OutOfRange => Kind::Invalid,
        Code::FailedPrecondition => match metadata("cycles").and_then(|c| c.parse().ok()) {
            Some(cycles) => Kind::OverBudget { cycles },
            None => Kind::Precondition,
        },
        Code::NotFound => Kind::NotFound,
        Code::ResourceExhausted => Kind::Exhausted,
        Code::DeadlineExceeded => Kind::Deadline,
        // The client's own timer says so when it fires before the server's answer is here.
        Code::Cancelled if status.message() == "Timeout expired" => {
            return ServiceError::deadline();
        }
        Code::Cancelled => Kind::Cancelled,
        Code::Unavailable => Kind::Unavailable,
        Code::Unimplemented => Kind::Unimplemented,
        Code::DataLoss => Kind::DataLoss,
        _ => Kind::Internal,
    };
    let code = code.unwrap_or_else(|| format!("grpc.{:?}", status.code()).to_lowercase());
    let mut error = ServiceError::new(
        kind,
        code,
        metadata("path").unwrap_or_default(),
        status.message(),
    )
    .hint(metadata("hint").unwrap_or_default());
    error.retry_after = details.retry_info().and_then(|r| r.retry_delay);
    error
}

/// A machine, as a message.
pub fn machine(request: &MachineRequest) -> v1::MachineRef {
    use v1::machine_ref::Source;
    let source = match &request.source {
        MachineSource::Preset(name) => Source::Preset(name.clone()),
        MachineSource::Stored(digest) => Source::Digest(digest.to_string()),
        MachineSource::Document(document) => Source::Document(document.clone()),
    };
    let overrides = request
        .overrides
        .iter()
        .map(|(path, value)| v1::Override {
            path: path.clone(),
            value: value.clone(),
        })
        .collect();
    v1::MachineRef {
        source: Some(source),
        overrides,
    }
}

/// A launch, as a message. Limits of the default size are left to the server.
pub fn launch(trace: Digest, launch: &Launch) -> v1::Launch {
    let Launch { args, options } = launch;
    let default = tilesim_core::RunOptions::default();
    let unless = |value: u64, default: u64| (value != default).then_some(value);
    v1::Launch {
        trace_digest: trace.to_string(),
        grid: args.grid.clone(),
        params: args.params.clone(),
        extents: args
            .extents
            .iter()
            .map(|(name, extents)| {
                (
                    name.clone(),
                    v1::Extents {
                        extents: extents.clone(),
                    },
                )
            })
            .collect(),
        placement: args.placement.clone(),
        allow_overlap: args.allow_overlap,
        options: Some(v1::RunOptions {
            cycle_budget: options.cycle_budget,
            max_work_items: unless(options.limits.max_work_items, default.limits.max_work_items),
            max_requests: unless(options.max_requests, default.max_requests),
            allow_cost_mismatch: options.allow_cost_mismatch,
            registers_per_item: options.registers_per_item,
            threads_per_item: options.threads_per_item,
        }),
    }
}

/// A candidate, as a message.
pub fn candidate(candidate: &Candidate) -> v1::Candidate {
    let key = candidate.key.clone();
    match &candidate.launches {
        Ok(launches) => {
            let launches = launches
                .iter()
                .map(|w| v1::WeightedLaunch {
                    launch: Some(launch(w.trace, &w.launch)),
                    weight: w.weight,
                })
                .collect();
            v1::Candidate {
                key,
                launches,
                pre_failure: None,
            }
        }
        Err(problem) => {
            let Problem {
                code,
                path,
                message,
                hint,
            } = problem.clone();
            let pre_failure = v1::Problem {
                code: code.into_owned(),
                path,
                message,
                hint,
            };
            v1::Candidate {
                key,
                launches: Vec::new(),
                pre_failure: Some(pre_failure),
            }
        }
    }
}

/// A result from its message.
pub fn result(result: Option<v1::Result>) -> Result<RunResult, ServiceError> {
    let v1::Result { report, envelope } = required(result, "result")?;
    Ok(RunResult {
        report: Arc::new(self::report(required(report, "report")?)?),
        envelope: self::envelope(required(envelope, "envelope")?),
    })
}

fn envelope(envelope: v1::Envelope) -> Envelope {
    let origin = match envelope.origin() {
        v1::Origin::Unspecified | v1::Origin::Simulated => Origin::Simulated,
        v1::Origin::Joined => Origin::Joined,
        v1::Origin::Cached => Origin::Cached,
    };
    let v1::Envelope {
        queue_ms,
        run_ms,
        host,
        computed_unix_s,
        ..
    } = envelope;
    Envelope {
        origin,
        queue_ms,
        run_ms,
        host,
        computed_unix_s,
    }
}

fn report(report: v1::Report) -> Result<Report, ServiceError> {
    let identity = required(report.identity, "identity")?;
    let unit = |u: v1::UnitReport| UnitReport {
        unit: u.unit,
        active: u.active_cycles,
        idle: u.idle_cycles,
        ops: u.ops,
    };
    let dram = required(report.dram, "DRAM statistics")?;
    Ok(Report {
        cycles: report.cycles,
        ns: report.ns,
        work_items: report.work_items,
        dram_requests: report.dram_requests,
        cores: report
            .cores
            .into_iter()
            .map(|c| CoreReport {
                id: c.core,
                units: c.units.into_iter().map(unit).collect(),
                work_items: c.work_items,
                loads: c.loads,
                stores: c.stores,
                computes: c.computes,
                waits: c.waits,
                requests: c.dram_requests,
                admitted: c.admitted.into_iter().map(admitted).collect(),
            })
            .collect(),
        cycle_stack: report
            .cycle_stack
            .into_iter()
            .map(|e| {
                Ok(StackEntry {
                    core: e.core,
                    cause: named(&e.cause)?,
                    cycles: e.cycles,
                })
            })
            .collect::<Result<_, ServiceError>>()?,
        notes: report.notes,
        exactness: named(&report.exactness)?,
        identity: Identity {
            trace: identity.trace,
            machine: identity.machine,
            launch: identity.launch,
            model_version: identity.model_version,
        },
        dram: DramReport {
            bytes_read: dram.bytes_read,
            bytes_written: dram.bytes_written,
            channels: dram
                .channels
                .into_iter()
                .map(|c| ChannelStats {
                    reads: c.reads,
                    writes: c.writes,
                })
                .collect(),
            controllers: dram
                .controllers
                .into_iter()
                .map(counters)
                .collect::<Result<_, ServiceError>>()?,
            l2: dram
                .l2
                .into_iter()
                .map(counters)
                .collect::<Result<_, ServiceError>>()?,
            numa: dram
                .numa
                .into_iter()
                .map(|n| NumaCounts {
                    core: n.core,
                    local: n.local,
                    remote: n.remote,
                })
                .collect(),
        },
        out_of_bounds_transfers: report.out_of_bounds_transfers,
        energy: report.energy.map(counters).transpose()?,
        tiles: report
            .tiles
            .into_iter()
            .map(|t| TileReport {
                tile: t.tile,
                cycles: t.cycles,
                runs: t.runs,
            })
            .collect(),
    })
}

fn admitted(unit: v1::AdmittedUnit) -> AdmittedUnit {
    AdmittedUnit {
        unit: unit.unit,
        work: unit.work,
        capacity_per_cycle: unit.capacity_per_cycle,
        instances: unit.instances,
        admitted: unit.admitted,
        active: unit.active_cycles,
        idle: unit.idle_cycles,
    }
}

/// A model's own counts, by the names they are serialised under.
fn counters<T: serde::de::DeserializeOwned>(
    counters: v1::ModelCounters,
) -> Result<T, ServiceError> {
    let counts = counters
        .counters
        .into_iter()
        .map(|(name, counter)| match counter.values.as_slice() {
            [value] => (name, serde_json::Value::from(*value)),
            values => (name, serde_json::Value::from(values)),
        })
        .collect();
    serde_json::from_value(serde_json::Value::Object(counts))
        .map_err(|e| malformed(format!("counts are not known here: {e}")))
}

/// A choice by its stable name: the one it is serialised under.
fn named<T: serde::de::DeserializeOwned>(name: &str) -> Result<T, ServiceError> {
    let value = if name.starts_with('{') {
        serde_json::from_str(name)
    } else {
        Ok(serde_json::Value::String(name.to_owned()))
    };
    value
        .and_then(serde_json::from_value)
        .map_err(|e| malformed(format!("`{name}` is not known here: {e}")))
}

/// A problem from its message.
pub fn problem(problem: v1::Problem) -> Problem {
    let v1::Problem {
        code,
        path,
        message,
        hint,
    } = problem;
    Problem {
        code: code.into(),
        path,
        message,
        hint,
    }
}

/// What became of a candidate, from its message.
pub fn outcome(outcome: v1::CandidateOutcome) -> Result<CandidateOutcome, ServiceError> {
    use v1::CandidateStatus as S;
    let verdict = match outcome.status() {
        S::Ok => Verdict::Ok {
            score: required(outcome.score, "score")?,
            results: outcome
                .results
                .into_iter()
                .map(|r| result(Some(r)))
                .collect::<Result<_, _>>()?,
        },
        S::Failed => Verdict::Failed(problem(required(outcome.problem, "problem")?)),
        S::OverBudget => Verdict::OverBudget {
            cycles: required(outcome.budget_cycles, "budget")?,
        },
        S::Pruned => {
            let v1::Pruned {
                bound,
                reason,
                resource,
                by_bound,
            } = required(outcome.pruned, "bound")?;
            Verdict::Pruned {
                bound,
                resource,
                by_bound,
                reason,
            }
        }
        S::Cancelled => Verdict::Cancelled,
        S::DuplicateOf => Verdict::DuplicateOf {
            index: required(outcome.duplicate_of, "original")? as usize,
            score: outcome.score,
        },
        S::Unspecified => return Err(malformed("a candidate has no status".to_owned())),
    };
    Ok(CandidateOutcome {
        index: outcome.index as usize,
        key: outcome.key,
        verdict,
    })
}

/// The order of a ranking, from its message.
pub fn order(order: v1::RankOrder) -> Result<Order, ServiceError> {
    let ranked = order
        .ranked
        .into_iter()
        .map(|r| Ranked {
            index: r.index as usize,
            key: r.key,
            score: r.score,
            tie_group: r.tie_group as usize,
            margin: r.margin,
        })
        .collect();
    let counts = order
        .counts
        .into_iter()
        .map(|c| {
            use v1::CandidateStatus as S;
            let status = match c.status() {
                S::Ok => Status::Ok,
                S::Failed => Status::Failed,
                S::OverBudget => Status::OverBudget,
                S::Pruned => Status::Pruned,
                S::Cancelled => Status::Cancelled,
                S::DuplicateOf => Status::DuplicateOf,
                S::Unspecified => return Err(malformed("a count has no status".to_owned())),
            };
            Ok(StatusCount {
                status,
                count: c.count as usize,
            })
        })
        .collect::<Result<_, _>>()?;
    Ok(Order {
        ranked,
        counts,
        note: order.note,
    })
}
