//! `tilesim rank`.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use clap::Args;
use serde::{Deserialize, Serialize};
use tilesim_server::{
    error::{Problem, ServiceError},
    rank::{Candidate, CandidateOutcome, Order, Status, Verdict, WeightedLaunch},
};
use tokio::sync::mpsc;

use super::{
    Failure, Outcome,
    args::{WhereArgs, pair},
    files, list_outcome,
    lists::{self, Files, LaunchEntry, ProblemEntry},
    output::{self, ResultJson, grouped},
    progress::Bar,
};

/// Orders candidates by simulated cycles.
#[derive(Args)]
pub struct Rank {
    /// JSON file of candidates (docs/schemas/candidates.schema.json).
    candidates: PathBuf,
    /// Machine: a preset's name or a file [default: the one in the file].
    #[arg(long, short, value_name = "MACHINE")]
    machine: Option<String>,
    /// Change a value of the machine, for example `dram.channels=8`.
    #[arg(long = "set", value_name = "PATH=VALUE", value_parser = pair)]
    set: Vec<(String, String)>,
    #[command(flatten)]
    place: WhereArgs,
    /// Only the best so many matter; the others may be pruned. 0: all [default: the number in the
    /// file, or 0].
    #[arg(long, short = 'k', value_name = "K")]
    top_k: Option<u32>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A file of candidates.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CandidatesFile {
    #[serde(default)]
    machine: Option<String>,
    #[serde(default)]
    set: BTreeMap<String, serde_json::Value>,
    #[serde(default)]
    top_k: u32,
    candidates: Vec<CandidateEntry>,
}

/// A candidate: `launches`, or the fields of one launch, or the `error` it failed with.
#[derive(Deserialize)]
struct CandidateEntry {
    key: Option<String>,
    launches: Option<Vec<LaunchEntry>>,
    error: Option<ProblemEntry>,
    #[serde(flatten)]
    launch: serde_json::Map<String, serde_json::Value>,
}

#[derive(Serialize)]
struct RankJson<'a> {
    #[serde(flatten)]
    order: &'a Order,
    outcomes: Vec<OutcomeJson<'a>>,
}

#[derive(Serialize)]
struct OutcomeJson<'a> {
    index: usize,
    key: &'a str,
    status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    score: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    results: Vec<ResultJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a Problem>,
    #[serde(skip_serializing_if = "Option::is_none")]
    budget_cycles: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bound: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<&'a String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by_bound: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duplicate_of: Option<usize>,
}

impl<'a> From<&'a CandidateOutcome> for OutcomeJson<'a> {
    fn from(outcome: &'a CandidateOutcome) -> Self {
        let verdict = &outcome.verdict;
        let mut json = OutcomeJson {
            index: outcome.index,
            key: &outcome.key,
            status: verdict.status(),
            score: verdict.score(),
            results: Vec::new(),
            error: None,
            budget_cycles: None,
            bound: None,
            resource: None,
            by_bound: None,
            reason: None,
            duplicate_of: None,
        };
        match verdict {
            Verdict::Ok { results, .. } => {
                json.results = results.iter().map(ResultJson::from).collect();
            }
            Verdict::Failed(problem) => json.error = Some(problem),
            Verdict::OverBudget { cycles } => json.budget_cycles = Some(*cycles),
            Verdict::Pruned {
                bound,
                resource,
                by_bound,
                reason,
            } => {
                json.bound = Some(*bound);
                json.resource = Some(resource).filter(|r| !r.is_empty());
                json.by_bound = Some(*by_bound);
                json.reason = Some(reason);
            }
            Verdict::Cancelled => {}
            Verdict::DuplicateOf { index, .. } => json.duplicate_of = Some(*index),
        }
        json
    }
}

impl Rank {
    pub async fn run(self) -> Outcome {
        let (order, outcomes) = self
            .rank()
            .await
            .map_err(|e| Failure::Service(e, self.json))?;
        if self.json {
            let outcomes = outcomes.iter().map(OutcomeJson::from).collect();
            output::json(&RankJson {
                order: &order,
                outcomes,
            })?;
        } else {
            print(&order, &outcomes)?;
        }
        let failed = |o: &CandidateOutcome| {
            matches!(o.verdict, Verdict::Failed(_) | Verdict::OverBudget { .. })
        };
        let without = outcomes.iter().filter(|o| match &o.verdict {
            Verdict::DuplicateOf { index, .. } => outcomes.get(*index).is_some_and(failed),
            _ => failed(o),
        });
        list_outcome(without.count(), outcomes.len())
    }

    /// The order, and the outcomes by position.
    async fn rank(&self) -> Result<(Order, Vec<CandidateOutcome>), ServiceError> {
        let path = &self.candidates;
        let file: CandidatesFile = serde_json::from_str(&files::read_text(path)?)
            .map_err(|e| lists::syntax(path, None, &e))?;
        if file.candidates.is_empty() {
            return Err(ServiceError::invalid(
                "rank.no_candidates",
                "candidates",
                "there are no candidates to rank",
            )
            .hint("list at least one"));
        }
        let mut files = Files::default();
        let machine = self.machine.as_ref().or(file.machine.as_ref());
        let machine = machine.ok_or_else(|| lists::no_machine("machine".to_owned()))?;
        let mut overrides = lists::overrides(&file.set);
        overrides.extend(self.set.iter().cloned());
        let machine = files.machine(path, machine, overrides)?;
        let candidates: Vec<Candidate> = file
            .candidates
            .into_iter()
            .enumerate()
            .map(|(index, entry)| candidate(&mut files, path, index, entry))
            .collect::<Result<_, _>>()?;
        let backend = self.place.backend().await?;
        for trace in files.traces() {
            backend.put_trace(&trace.name, &trace.trace).await?;
        }
        let bar = Bar::list("candidates", candidates.len());
        let top_k = self.top_k.unwrap_or(file.top_k);
        let (sender, mut receiver) = mpsc::channel(16);
        let work = async move { backend.rank(&machine, candidates, top_k, &sender).await };
        let collect = async {
            let mut outcomes = Vec::new();
            while let Some(outcome) = receiver.recv().await {
                outcomes.push(outcome);
                bar.step();
            }
            outcomes
        };
        let (order, mut outcomes) = tokio::join!(work, collect);
        outcomes.sort_unstable_by_key(|o| o.index);
        Ok((order?, outcomes))
    }
}

/// A candidate of the file. One whose trace cannot be read has failed; one that is not a candidate
/// at all makes the file wrong.
fn candidate(
    files: &mut Files,
    path: &Path,
    index: usize,
    entry: CandidateEntry,
) -> Result<Candidate, ServiceError> {
    let place = |e: serde_json::Error| {
        let mut error = lists::syntax(path, None, &e);
        error
            .problem
            .path
            .push_str(&format!(": candidates[{index}]"));
        error
    };
    let key = entry.key.unwrap_or_else(|| index.to_string());
    let single = !entry.launch.is_empty();
    let launches = match (entry.launches, entry.error) {
        (None, Some(error)) if !single => {
            return Ok(Candidate {
                key,
                launches: Err(error.into()),
            });
        }
        (Some(launches), None) if !single => launches,
        (None, None) => {
            let launch = serde_json::Value::Object(entry.launch);
            vec![serde_json::from_value(launch).map_err(place)?]
        }
        _ => {
            let message =
                "a candidate has either `launches`, or the fields of one launch, or `error`";
            return Err(ServiceError::invalid(
                "client.bad_list",
                format!("{}: candidates[{index}]", path.display()),
                message,
            )
            .hint("docs/schemas/candidates.schema.json describes the format"));
        }
    };
    let launches = launches
        .iter()
        .map(|entry| {
            let trace = files.trace(path, &entry.trace).map_err(|e| *e.problem)?;
            let weight = entry.weight.unwrap_or(1).max(1);
            Ok(WeightedLaunch {
                trace: trace.digest,
                launch: entry.launch(&trace).map_err(|e| *e.problem)?,
                weight,
            })
        })
        .collect();
    Ok(Candidate { key, launches })
}

fn print(order: &Order, outcomes: &[CandidateOutcome]) -> anyhow::Result<()> {
    if !order.ranked.is_empty() {
        let mut table = output::table(&[
            "place",
            "candidate",
            "cycles",
            "over best",
            "most cycles on",
        ]);
        for (place, ranked) in order.ranked.iter().enumerate() {
            let best = order.ranked[0].score.max(1);
            let why = outcomes
                .iter()
                .find(|o| o.index == ranked.index)
                .map_or_else(String::new, main_cause);
            table.add_row([
                (place + 1).to_string(),
                ranked.key.clone(),
                grouped(ranked.score),
                format!("{:.1} %", ranked.margin as f64 * 100.0 / best as f64),
                why,
            ]);
        }
        for column in [0, 2, 3] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(comfy_table::CellAlignment::Right);
            }
        }
        output::line(&table.to_string())?;
    }
    for outcome in outcomes {
        let key = &outcome.key;
        match &outcome.verdict {
            Verdict::Failed(problem) => output::line(&format!("{key}: failed: {problem}"))?,
            Verdict::OverBudget { cycles } => {
                output::line(&format!(
                    "{key}: over its budget at {} cycles",
                    grouped(*cycles)
                ))?;
            }
            Verdict::Pruned { bound, reason, .. } => {
                output::line(&format!(
                    "{key}: pruned: at least {} cycles, {reason}",
                    grouped(*bound)
                ))?;
            }
            Verdict::Cancelled => output::line(&format!("{key}: cancelled"))?,
            Verdict::DuplicateOf { index, .. } => {
                output::line(&format!("{key}: the same as candidate {index}"))?;
            }
            Verdict::Ok { .. } => {}
        }
    }
    if !order.note.is_empty() {
        output::line(&format!("note: {}", order.note))?;
    }
    Ok(())
}

/// The cause that took most of a candidate's cycles, over all cores of its first launch.
fn main_cause(outcome: &CandidateOutcome) -> String {
    let Verdict::Ok { results, .. } = &outcome.verdict else {
        return String::new();
    };
    let Some(result) = results.first() else {
        return String::new();
    };
    let mut sums = BTreeMap::new();
    for entry in &result.report.cycle_stack {
        *sums.entry(entry.cause).or_insert(0) += entry.cycles;
    }
    let most = sums.into_iter().max_by_key(|(_, cycles)| *cycles);
    most.map_or_else(String::new, |(cause, _)| output::cause(cause))
}
