//! The one place of this crate where wire messages and domain types turn into each other.

use tilesim_core::memory::ChannelStats;
use tilesim_core::{
    Launch, Report, RunOptions,
    machine::{Machine, PRESETS},
    report::{AdmittedUnit, CoreReport, UnitReport},
};
use tilesim_proto::v1;
use tilesim_traces::{LaunchArgs, model};

use crate::{
    catalog::{LoadedMachine, LoadedTrace, MachineRequest, MachineSource},
    config::Limits,
    error::{Problem, ServiceError},
    ids::Digest,
    rank::{Candidate, CandidateOutcome, Order, Status, Verdict, WeightedLaunch},
    runner::{Envelope, Origin, RunResult},
    store::Entry,
};

/// A part of a request that must be there.
pub fn required<T>(part: Option<T>, path: &str) -> Result<T, ServiceError> {
    part.ok_or_else(|| {
        ServiceError::invalid("request.missing", path, format!("`{path}` is missing"))
            .hint("set it")
    })
}

/// Checks a number of things against a limit.
pub fn at_most(count: usize, limit: u32, path: &str) -> Result<(), ServiceError> {
    if count as u64 <= u64::from(limit) {
        return Ok(());
    }
    Err(ServiceError::invalid(
        "request.too_many",
        path,
        format!("{count} entries are more than the limit of {limit}"),
    )
    .hint("send fewer at once; Server.Info states the limits"))
}

/// Overrides of one machine, at most.
const OVERRIDES: u32 = 256;
/// Bytes of a key or name.
const NAME_BYTES: usize = 1024;
/// Entries of a launch's maps, at most.
const LAUNCH_ENTRIES: u32 = 4096;

/// A name within its limit.
pub fn name(text: String, path: &str) -> Result<String, ServiceError> {
    if text.len() <= NAME_BYTES {
        return Ok(text);
    }
    let message = format!(
        "{} bytes are more than the limit of {NAME_BYTES}",
        text.len()
    );
    Err(ServiceError::invalid("request.too_long", path, message).hint("use a shorter name"))
}

/// Which machine a request means.
pub fn machine(
    reference: Option<v1::MachineRef>,
    path: &str,
) -> Result<MachineRequest, ServiceError> {
    use v1::machine_ref::Source;
    let v1::MachineRef { source, overrides } = required(reference, path)?;
    at_most(overrides.len(), OVERRIDES, &format!("{path}.overrides"))?;
    let source = match source {
        Some(Source::Preset(preset)) => MachineSource::Preset(preset),
        Some(Source::Digest(digest)) => {
            MachineSource::Stored(Digest::parse(&digest, &format!("{path}.digest"))?)
        }
        Some(Source::Document(document)) => MachineSource::Document(document),
        None => {
            return Err(ServiceError::invalid(
                "request.missing",
                path,
                "the machine has no source",
            )
            .hint("set one of `preset`, `digest` and `document`"));
        }
    };
    let overrides = overrides.into_iter().map(|o| (o.path, o.value)).collect();
    Ok(MachineRequest { source, overrides })
}

/// A launch and the trace it means.
pub fn launch(
    launch: Option<v1::Launch>,
    path: &str,
    limits: &Limits,
) -> Result<(Digest, Launch), ServiceError> {
    let launch = required(launch, path)?;
    let digest = Digest::parse(&launch.trace_digest, &format!("{path}.trace_digest"))?;
    at_most(
        launch.params.len(),
        LAUNCH_ENTRIES,
        &format!("{path}.params"),
    )?;
    at_most(
        launch.extents.len(),
        LAUNCH_ENTRIES,
        &format!("{path}.extents"),
    )?;
    at_most(
        launch.placement.len(),
        LAUNCH_ENTRIES,
        &format!("{path}.placement"),
    )?;
    let args = LaunchArgs {
        grid: launch.grid,
        params: launch.params,
        extents: launch
            .extents
            .into_iter()
            .map(|(k, v)| (k, v.extents))
            .collect(),
        placement: launch.placement,
        allow_overlap: launch.allow_overlap,
    };
    let options = options(launch.options.unwrap_or_default(), path, limits)?;
    Ok((digest, Launch { args, options }))
}

fn options(
    options: v1::RunOptions,
    path: &str,
    limits: &Limits,
) -> Result<RunOptions, ServiceError> {
    let capped = |asked: Option<u64>, limit: u64, field: &str| match asked {
        Some(asked) if asked > limit => Err(ServiceError::invalid(
            "request.above_limit",
            format!("{path}.options.{field}"),
            format!("{asked} is above the server's limit of {limit}"),
        )
        .hint("ask for less, or run a server with a higher limit")),
        asked => Ok(asked.unwrap_or(limit)),
    };
    let mut run = RunOptions {
        cycle_budget: options.cycle_budget,
        max_requests: capped(options.max_requests, limits.requests, "max_requests")?,
        allow_cost_mismatch: options.allow_cost_mismatch,
        registers_per_item: options.registers_per_item,
        threads_per_item: options.threads_per_item,
        ..RunOptions::default()
    };
    run.limits.max_work_items =
        capped(options.max_work_items, limits.work_items, "max_work_items")?;
    Ok(run)
}

/// A candidate of a ranking. What is wrong with it becomes its own failure, not the ranking's.
pub fn candidate(candidate: v1::Candidate, limits: &Limits) -> Candidate {
    let v1::Candidate {
        key,
        launches,
        pre_failure,
    } = candidate;
    if let Some(pre_failure) = pre_failure {
        return Candidate {
            key,
            launches: Err(problem_from(pre_failure)),
        };
    }
    let parse = || {
        if launches.is_empty() {
            let message = "the candidate has no launch";
            return Err(
                ServiceError::invalid("rank.no_launches", "launches", message)
                    .hint("give it one, or the problem it failed with"),
            );
        }
        at_most(launches.len(), limits.launches_per_candidate, "launches")?;
        launches
            .into_iter()
            .enumerate()
            .map(|(i, weighted)| {
                let (trace, launch) =
                    self::launch(weighted.launch, &format!("launches[{i}].launch"), limits)?;
                Ok(WeightedLaunch {
                    trace,
                    launch,
                    weight: weighted.weight.max(1),
                })
            })
            .collect()
    };
    let launches = parse().map_err(|e: ServiceError| *e.problem);
    Candidate { key, launches }
}

fn problem_from(problem: v1::Problem) -> Problem {
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

/// A problem, as a message.
pub fn problem(problem: Problem) -> v1::Problem {
    let Problem {
        code,
        path,
        message,
        hint,
    } = problem;
    v1::Problem {
        code: code.into_owned(),
        path,
        message,
        hint,
    }
}

/// A result, as a message.
pub fn result(result: &RunResult) -> v1::Result {
    v1::Result {
        report: Some(report(&result.report)),
        envelope: Some(envelope(&result.envelope)),
    }
}

fn envelope(envelope: &Envelope) -> v1::Envelope {
    let origin = match envelope.origin {
        Origin::Simulated => v1::Origin::Simulated,
        Origin::Joined => v1::Origin::Joined,
        Origin::Cached => v1::Origin::Cached,
    };
    v1::Envelope {
        origin: origin.into(),
        queue_ms: envelope.queue_ms,
        run_ms: envelope.run_ms,
        host: envelope.host.clone(),
        computed_unix_s: envelope.computed_unix_s,
    }
}

fn report(report: &Report) -> v1::Report {
    let unit = |u: &UnitReport| v1::UnitReport {
        unit: u.unit.clone(),
        active_cycles: u.active,
        idle_cycles: u.idle,
        ops: u.ops,
    };
    let core = |c: &CoreReport| v1::CoreReport {
        core: c.id,
        units: c.units.iter().map(unit).collect(),
        work_items: c.work_items,
        loads: c.loads,
        stores: c.stores,
        computes: c.computes,
        waits: c.waits,
        dram_requests: c.requests,
        admitted: c.admitted.iter().map(admitted).collect(),
    };
    let channel = |c: &ChannelStats| v1::ChannelReport {
        reads: c.reads,
        writes: c.writes,
    };
    v1::Report {
        cycles: report.cycles,
        ns: report.ns.clone(),
        work_items: report.work_items,
        dram_requests: report.dram_requests,
        cores: report.cores.iter().map(core).collect(),
        cycle_stack: report
            .cycle_stack
            .iter()
            .map(|e| v1::CycleStackEntry {
                core: e.core,
                cause: name_of(&e.cause),
                cycles: e.cycles,
            })
            .collect(),
        notes: report.notes.clone(),
        exactness: name_of(&report.exactness),
        identity: Some(v1::Identity {
            trace: report.identity.trace.clone(),
            machine: report.identity.machine.clone(),
            launch: report.identity.launch.clone(),
            model_version: report.identity.model_version.clone(),
        }),
        dram: Some(v1::DramReport {
            bytes_read: report.dram.bytes_read,
            bytes_written: report.dram.bytes_written,
            channels: report.dram.channels.iter().map(channel).collect(),
            controllers: report.dram.controllers.iter().map(counters).collect(),
            l2: report.dram.l2.iter().map(counters).collect(),
            numa: report
                .dram
                .numa
                .iter()
                .map(|n| v1::NumaReport {
                    core: n.core,
                    local: n.local,
                    remote: n.remote,
                })
                .collect(),
        }),
        out_of_bounds_transfers: report.out_of_bounds_transfers,
        energy: report.energy.as_ref().map(counters),
        tiles: report
            .tiles
            .iter()
            .map(|t| v1::TileReport {
                tile: t.tile.clone(),
                cycles: t.cycles,
                runs: t.runs,
            })
            .collect(),
    }
}

fn admitted(unit: &AdmittedUnit) -> v1::AdmittedUnit {
    v1::AdmittedUnit {
        unit: unit.unit.clone(),
        work: unit.work.clone(),
        capacity_per_cycle: unit.capacity_per_cycle,
        instances: unit.instances,
        admitted: unit.admitted,
        active_cycles: unit.active,
        idle_cycles: unit.idle,
    }
}

/// A model's own counts, by the names they are serialised under.
fn counters(counts: &impl serde::Serialize) -> v1::ModelCounters {
    use serde_json::Value;
    let values = |value: &Value| match value {
        Value::Array(values) => values.iter().filter_map(Value::as_u64).collect(),
        value => value.as_u64().into_iter().collect(),
    };
    let counters = match serde_json::to_value(counts) {
        Ok(Value::Object(counts)) => counts
            .iter()
            .map(|(name, value)| {
                (
                    name.clone(),
                    v1::Counter {
                        values: values(value),
                    },
                )
            })
            .collect(),
        _ => std::collections::BTreeMap::new(),
    };
    v1::ModelCounters { counters }
}

/// The stable name of a choice: the one it is serialised under.
fn name_of(choice: &impl serde::Serialize) -> String {
    match serde_json::to_value(choice) {
        Ok(serde_json::Value::String(name)) => name,
        // A choice with figures travels as its JSON text.
        Ok(other) => other.to_string(),
        Err(_) => String::new(),
    }
}

/// What became of a candidate, as a message.
pub fn candidate_outcome(outcome: CandidateOutcome) -> v1::RankResponse {
    let CandidateOutcome {
        index,
        key,
        verdict,
    } = outcome;
    let mut message = v1::CandidateOutcome {
        index: index as u32,
        key,
        status: status(verdict.status()).into(),
        score: verdict.score(),
        ..v1::CandidateOutcome::default()
    };
    match verdict {
        Verdict::Ok { results, .. } => message.results = results.iter().map(result).collect(),
        Verdict::Failed(why) => message.problem = Some(problem(why)),
        Verdict::OverBudget { cycles } => message.budget_cycles = Some(cycles),
        Verdict::Pruned {
            bound,
            resource,
            by_bound,
            reason,
        } => {
            message.pruned = Some(v1::Pruned {
                bound,
                reason,
                resource,
                by_bound,
            });
        }
        Verdict::Cancelled => {}
        Verdict::DuplicateOf { index, .. } => message.duplicate_of = Some(index as u32),
    }
    v1::RankResponse {
        part: Some(v1::rank_response::Part::Outcome(message)),
    }
}

/// The order of a ranking, as a message.
pub fn order(order: Order) -> v1::RankResponse {
    let ranked = order
        .ranked
        .into_iter()
        .map(|r| v1::RankedCandidate {
            index: r.index as u32,
            key: r.key,
            score: r.score,
            tie_group: r.tie_group as u32,
            margin: r.margin,
        })
        .collect();
    let counts = order
        .counts
        .iter()
        .map(|c| v1::StatusCount {
            status: status(c.status).into(),
            count: c.count as u32,
        })
        .collect();
    let order = v1::RankOrder {
        ranked,
        counts,
        note: order.note,
    };
    v1::RankResponse {
        part: Some(v1::rank_response::Part::Order(order)),
    }
}

fn status(status: Status) -> v1::CandidateStatus {
    match status {
        Status::Ok => v1::CandidateStatus::Ok,
        Status::Failed => v1::CandidateStatus::Failed,
        Status::OverBudget => v1::CandidateStatus::OverBudget,
        Status::Pruned => v1::CandidateStatus::Pruned,
        Status::Cancelled => v1::CandidateStatus::Cancelled,
        Status::DuplicateOf => v1::CandidateStatus::DuplicateOf,
    }
}

/// A trace's description, as a message.
pub fn trace_info(loaded: &LoadedTrace) -> v1::TraceInfo {
    let trace: &model::Trace = &loaded.trace;
    let header = &trace.header;
    let producer = [header.producer.as_str(), header.producer_version.as_str()];
    v1::TraceInfo {
        digest: loaded.digest.to_string(),
        kernel: header.kernel.clone(),
        producer: producer.join(" ").trim().to_owned(),
        axes: u32::from(trace.axes),
        params: trace
            .params
            .iter()
            .map(|p| v1::TraceParam {
                name: p.name.clone(),
                default_value: p.default,
            })
            .collect(),
        tensors: trace.tensors.iter().map(tensor).collect(),
        buffers: trace
            .buffers
            .iter()
            .map(|b| v1::TraceBuffer {
                name: b.name.clone(),
                size_bytes: b.bytes,
            })
            .collect(),
        tiles: trace.tiles.iter().map(tile).collect(),
        statements: count(&trace.body),
        strict_bounds: trace.bounds == model::Bounds::Strict,
        registers: trace.resources.registers,
        threads: trace.resources.threads,
    }
}

fn tensor(tensor: &model::Tensor) -> v1::TraceTensor {
    let role = match tensor.role {
        model::Role::In => "in",
        model::Role::Out => "out",
        model::Role::InOut => "inout",
    };
    v1::TraceTensor {
        name: tensor.name.clone(),
        element_bits: tensor.element_bits,
        role: role.to_owned(),
        axes: tensor.extents.len() as u32,
    }
}

fn tile(tile: &model::Tile) -> v1::TraceTile {
    let source = match &tile.source {
        model::CostSource::Measured => "measured".to_owned(),
        model::CostSource::Analytic(formula) => format!("analytic: {formula}"),
        model::CostSource::Declared => "declared".to_owned(),
    };
    v1::TraceTile {
        name: tile.name.clone(),
        cycles: tile.cycles,
        overlap_cycles: tile.overlap,
        source,
    }
}

fn count(body: &[model::Stmt]) -> u64 {
    body.iter()
        .map(|statement| match statement {
            model::Stmt::For(f) => 1 + count(&f.body),
            model::Stmt::If(i) => 1 + count(&i.then) + count(&i.otherwise),
            _ => 1,
        })
        .sum()
}

/// A machine's description, as a message.
pub fn machine_info(loaded: &LoadedMachine) -> v1::MachineInfo {
    let machine = &loaded.machine;
    v1::MachineInfo {
        digest: loaded.digest.to_string(),
        name: machine.name.clone(),
        cores: machine.cores.count,
        dram_channels: machine.dram.channels,
        scratchpad_bytes: machine.cores.scratchpad_bytes,
        core_khz: machine.clocks.core_khz,
        peaks: machine
            .peaks()
            .to_string()
            .lines()
            .map(str::to_owned)
            .collect(),
        notes: loaded.notes.clone(),
    }
}

/// An entry of the store, as a message.
pub fn stored(entry: Entry) -> v1::StoredObject {
    v1::StoredObject {
        digest: entry.digest.to_string(),
        name: entry.name,
        size_bytes: entry.size,
        stored_unix_s: entry.stored_unix_s,
    }
}

/// The embedded machines, as messages.
pub fn presets() -> Result<Vec<v1::PresetInfo>, ServiceError> {
    PRESETS
        .iter()
        .map(|preset| {
            Ok(v1::PresetInfo {
                name: preset.name.to_owned(),
                summary: preset.about().to_owned(),
                digest: Machine::preset(preset.name)?.digest()?.to_string(),
            })
        })
        .collect()
}
