//! Ranking: simulate candidates side by side, tell each outcome as it comes, then the order.
//!
//! Every candidate is simulated. The order does not depend on which finishes first.

use std::{collections::HashMap, sync::Arc, time::Instant};

use serde::{Deserialize, Serialize};
use tilesim_core::Launch;
use tokio::{sync::mpsc, task::JoinSet};

use crate::{
    catalog::{Catalog, LoadedMachine},
    error::{Kind, Problem, ServiceError},
    ids::{Digest, Tenant},
    runner::{Admission, RunRequest, RunResult, Runner},
};

/// A ranking to do.
pub struct RankJob {
    /// On whose behalf.
    pub tenant: Tenant,
    /// What to run on.
    pub machine: Arc<LoadedMachine>,
    /// The candidates.
    pub candidates: Vec<Candidate>,
    /// When nobody wants the ranking any more.
    pub deadline: Option<Instant>,
}

/// One candidate.
#[derive(Clone)]
pub struct Candidate {
    /// The client's name for it.
    pub key: String,
    /// Its launches, or why it failed before it came here.
    pub launches: Result<Vec<WeightedLaunch>, Problem>,
}

/// A launch and its weight.
#[derive(Clone)]
pub struct WeightedLaunch {
    /// The trace.
    pub trace: Digest,
    /// The launch.
    pub launch: Launch,
    /// How often it counts; at least 1.
    pub weight: u32,
}

/// What became of a candidate.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// Simulated.
    Ok {
        /// Weighted sum of cycles.
        score: u64,
        /// Results of its launches.
        results: Vec<RunResult>,
    },
    /// It cannot be simulated.
    Failed(Problem),
    /// Its budget ran out.
    OverBudget {
        /// Core cycles simulated when it did.
        cycles: u64,
    },
    /// It provably is not among the wanted best.
    Pruned {
        /// Lower bound of its score.
        bound: u64,
        /// Why that excludes it.
        reason: String,
    },
    /// The ranking ended before it did.
    Cancelled,
    /// It equals an earlier candidate.
    DuplicateOf {
        /// Position of that candidate.
        index: usize,
        /// Its score, if it has one.
        score: Option<u64>,
    },
}

/// The name of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Status {
    /// See [`Verdict::Ok`].
    Ok,
    /// See [`Verdict::Failed`].
    Failed,
    /// See [`Verdict::OverBudget`].
    OverBudget,
    /// See [`Verdict::Pruned`].
    Pruned,
    /// See [`Verdict::Cancelled`].
    Cancelled,
    /// See [`Verdict::DuplicateOf`].
    DuplicateOf,
}

impl Verdict {
    /// Its name.
    pub fn status(&self) -> Status {
        match self {
            Verdict::Ok { .. } => Status::Ok,
            Verdict::Failed(_) => Status::Failed,
            Verdict::OverBudget { .. } => Status::OverBudget,
            Verdict::Pruned { .. } => Status::Pruned,
            Verdict::Cancelled => Status::Cancelled,
            Verdict::DuplicateOf { .. } => Status::DuplicateOf,
        }
    }

    /// Its score, if it has one.
    pub fn score(&self) -> Option<u64> {
        match self {
            Verdict::Ok { score, .. } => Some(*score),
            Verdict::DuplicateOf { score, .. } => *score,
            _ => None,
        }
    }
}

/// A candidate is decided.
#[derive(Clone, Debug)]
pub struct CandidateOutcome {
    /// Its position in the request.
    pub index: usize,
    /// Its key.
    pub key: String,
    /// What became of it.
    pub verdict: Verdict,
}

/// The order of a ranking.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Candidates with a score, best first.
    pub ranked: Vec<Ranked>,
    /// How many candidates ended in which status.
    pub counts: Vec<StatusCount>,
    /// A remark, for example that every candidate failed.
    pub note: String,
}

/// How many candidates ended in a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusCount {
    /// The status.
    pub status: Status,
    /// How many.
    pub count: usize,
}

/// One place of the order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ranked {
    /// Position in the request.
    pub index: usize,
    /// The candidate's key.
    pub key: String,
    /// Its score: weighted core cycles.
    pub score: u64,
    /// Candidates of one score share a tie group.
    pub tie_group: usize,
    /// Its score less the best one.
    pub margin: u64,
}

/// Puts decided candidates in order: ascending score, ties by position. Whatever order they come
/// in, the answer is the same.
pub fn order(outcomes: &[(usize, String, Status, Option<u64>)]) -> Order {
    let mut scored: Vec<(u64, usize, &String)> = outcomes
        .iter()
        .filter_map(|(index, key, _, score)| score.map(|s| (s, *index, key)))
        .collect();
    scored.sort_unstable_by_key(|(score, index, _)| (*score, *index));
    let best = scored.first().map_or(0, |s| s.0);
    let mut ranked: Vec<Ranked> = Vec::with_capacity(scored.len());
    for (score, index, key) in scored {
        let tie_group = match ranked.last() {
            Some(last) if last.score == score => last.tie_group,
            Some(last) => last.tie_group + 1,
            None => 0,
        };
        ranked.push(Ranked {
            index,
            key: key.clone(),
            score,
            tie_group,
            margin: score - best,
        });
    }
    let mut counts = std::collections::BTreeMap::<Status, usize>::new();
    for (_, _, status, _) in outcomes {
        *counts.entry(*status).or_default() += 1;
    }
    let note = if ranked.is_empty() {
        "no candidate has a score".to_owned()
    } else {
        String::new()
    };
    let counts = counts
        .into_iter()
        .map(|(status, count)| StatusCount { status, count })
        .collect();
    Order {
        ranked,
        counts,
        note,
    }
}

/// Ranks. Outcomes go to `events` as they come; the order is returned. Ends early, with an error,
/// when the deadline passes, the server stops, or nobody reads the events any more.
pub async fn rank(
    runner: &Runner,
    catalog: &Arc<Catalog>,
    job: RankJob,
    events: &mpsc::Sender<CandidateOutcome>,
) -> Result<Order, ServiceError> {
    let RankJob {
        tenant,
        machine,
        candidates,
        deadline,
    } = job;
    let first_of = originals(&candidates);
    let mut undecided: HashMap<usize, Vec<usize>> = HashMap::new();
    for (index, original) in first_of.iter().enumerate() {
        if *original != index {
            undecided.entry(*original).or_default().push(index);
        }
    }
    let mut decided = Vec::with_capacity(candidates.len());
    let mut tasks = JoinSet::new();
    let mut waiting = candidates
        .iter()
        .enumerate()
        .filter(|(i, _)| first_of[*i] == *i);
    // One more than there are workers, so that none is idle while an outcome is handed on.
    let at_once = runner.workers() + 1;
    loop {
        while tasks.len() < at_once
            && let Some((index, candidate)) = waiting.next()
        {
            let (runner, catalog) = (runner.clone(), Arc::clone(catalog));
            let (tenant, machine) = (tenant.clone(), Arc::clone(&machine));
            let candidate = candidate.clone();
            tasks.spawn(async move {
                let verdict =
                    decide(&runner, &catalog, &tenant, &machine, &candidate, deadline).await;
                (index, verdict)
            });
        }
        let Some(task) = tasks.join_next().await else {
            break;
        };
        let (index, verdict) =
            task.map_err(|e| ServiceError::internal(format!("a candidate's task failed: {e}")))?;
        let verdict = verdict?;
        let score = verdict.score();
        let duplicates = undecided.remove(&index).unwrap_or_default();
        let mut verdicts = vec![(index, verdict)];
        verdicts.extend(
            duplicates
                .into_iter()
                .map(|d| (d, Verdict::DuplicateOf { index, score })),
        );
        for (index, verdict) in verdicts {
            let key = candidates[index].key.clone();
            decided.push((index, key.clone(), verdict.status(), verdict.score()));
            let outcome = CandidateOutcome {
                index,
                key,
                verdict,
            };
            events
                .send(outcome)
                .await
                .map_err(|_| ServiceError::cancelled())?;
        }
    }
    Ok(order(&decided))
}

/// For each candidate, the first one that is the same (itself, if none is).
fn originals(candidates: &[Candidate]) -> Vec<usize> {
    let mut seen: HashMap<Vec<u8>, usize> = HashMap::new();
    let same = |candidate: &Candidate| -> Option<Vec<u8>> {
        let launches = candidate.launches.as_ref().ok()?;
        let mut identity = Vec::new();
        for WeightedLaunch {
            trace,
            launch,
            weight,
        } in launches
        {
            identity.extend_from_slice(&trace.0);
            identity.extend_from_slice(&weight.to_le_bytes());
            let launch = serde_json::to_vec(launch).ok()?;
            identity.extend_from_slice(&(launch.len() as u64).to_le_bytes());
            identity.extend_from_slice(&launch);
        }
        Some(identity)
    };
    candidates
        .iter()
        .enumerate()
        .map(|(index, candidate)| match same(candidate) {
            Some(identity) => *seen.entry(identity).or_insert(index),
            None => index,
        })
        .collect()
}

/// Simulates one candidate. An error is one that ends the whole ranking.
async fn decide(
    runner: &Runner,
    catalog: &Catalog,
    tenant: &Tenant,
    machine: &Arc<LoadedMachine>,
    candidate: &Candidate,
    deadline: Option<Instant>,
) -> Result<Verdict, ServiceError> {
    let launches = match &candidate.launches {
        Ok(launches) => launches,
        Err(problem) => return Ok(Verdict::Failed(problem.clone())),
    };
    let mut results = Vec::with_capacity(launches.len());
    let mut score = 0_u64;
    for (number, weighted) in launches.iter().enumerate() {
        let place = format!("launches[{number}]");
        let run = async {
            let path = "launch.trace_digest";
            let trace = catalog.trace(tenant, weighted.trace, path).await?;
            let request = RunRequest {
                tenant: tenant.clone(),
                machine: Arc::clone(machine),
                trace,
                launch: weighted.launch.clone(),
                deadline,
                progress: None,
            };
            runner.run(request, Admission::OrWait).await
        };
        let result = match run.await {
            Ok(result) => result,
            Err(error) => return failed(error.under(&place)),
        };
        let weighted_cycles = result.report.cycles.checked_mul(u64::from(weighted.weight));
        let Some(sum) = weighted_cycles.and_then(|c| score.checked_add(c)) else {
            return failed(
                ServiceError::invalid(
                    "rank.score_overflow",
                    place,
                    "the weighted sum of cycles does not fit 64 bits",
                )
                .hint("use smaller weights"),
            );
        };
        score = sum;
        results.push(result);
    }
    Ok(Verdict::Ok { score, results })
}

/// What a failed run means for its candidate, or for the whole ranking.
fn failed(error: ServiceError) -> Result<Verdict, ServiceError> {
    match error.kind {
        Kind::OverBudget { cycles } => Ok(Verdict::OverBudget { cycles }),
        Kind::Deadline | Kind::Cancelled | Kind::Unavailable | Kind::Exhausted => Err(error),
        _ => Ok(Verdict::Failed(*error.problem)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_break_by_position_in_any_arrival_order() {
        let outcomes = [
            (3, "d".to_owned(), Status::Ok, Some(7)),
            (0, "a".to_owned(), Status::Failed, None),
            (2, "c".to_owned(), Status::Ok, Some(5)),
            (1, "b".to_owned(), Status::Ok, Some(7)),
        ];
        let places = |order: &Order| -> Vec<(usize, usize, u64)> {
            order
                .ranked
                .iter()
                .map(|r| (r.index, r.tie_group, r.margin))
                .collect()
        };
        let one = order(&outcomes);
        assert_eq!(places(&one), [(2, 0, 0), (1, 1, 2), (3, 1, 2)]);
        let mut reversed = outcomes.clone();
        reversed.reverse();
        assert_eq!(order(&reversed), one);
    }
}
