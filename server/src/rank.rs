//! Ranking: simulate candidates side by side, tell each outcome as it is final, then the order.
//!
//! [`tilesim_core::rank`] says what to run and how far; here it is run. The result does not depend
//! on which run ends first.

use std::{
    collections::HashMap,
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use tilesim_core::{
    Launch, Resource,
    rank::{
        self, Duplicates, Entry, FailedAt, Failure, Job as CoreJob, Looked, Outcome, PruneReason,
        RankOptions, Ranking, Status as CoreStatus,
    },
};
use tokio::{sync::mpsc, task::JoinSet};

use crate::{
    catalog::{Catalog, LoadedMachine},
    error::{Kind, Problem, ServiceError},
    ids::{Digest, Tenant},
    runner::{Admission, RunProgress, RunRequest, RunResult, Runner},
};

/// A ranking to do.
pub struct RankJob {
    /// On whose behalf.
    pub tenant: Tenant,
    /// What to run on.
    pub machine: Arc<LoadedMachine>,
    /// The candidates.
    pub candidates: Vec<Candidate>,
    /// How many of the best are wanted; the rest may be pruned. 0: all.
    pub top_k: u32,
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
        /// What gives the bound; empty if nothing is known.
        resource: String,
        /// The bound excludes it; otherwise its simulation went on for too long.
        by_bound: bool,
        /// Why it is excluded.
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

/// Ranks. Outcomes go to `events` as soon as they are final; the order is returned. Ends early, with an
/// error, when the deadline passes, the server stops, or nobody reads the events any more.
pub async fn rank(
    runner: &Runner,
    catalog: &Arc<Catalog>,
    job: RankJob,
    events: &mpsc::Sender<CandidateOutcome>,
) -> Result<Order, ServiceError> {
    let job = Arc::new(job);
    let Entries {
        entries,
        problems,
        results,
        bindings,
    } = entries(runner, catalog, &job, events).await?;
    let options = RankOptions {
        top_k: NonZeroUsize::new(job.top_k as usize),
        cycle_budget: None,
    };
    let mut telling = Telling {
        job: &job,
        events,
        duplicates: duplicates(&entries),
        problems,
        results,
        bindings,
        decided: vec![false; entries.len()],
        told: Vec::with_capacity(entries.len()),
    };
    // Looking for what is final takes as long as there are candidates: so it is done a bounded number
    // of times.
    let look_every = (entries.len() / LOOKS).max(1);
    let mut ranking = Ranking::new(entries, options);
    telling.settled(&ranking).await?;
    let mut tasks = JoinSet::new();
    let mut running: HashMap<u64, (CoreJob, Arc<AtomicU64>)> = HashMap::new();
    // One more than there are workers, so that none is idle while an outcome is handed on. Where
    // candidates are pruned that one could begin although the outcome excludes it.
    let at_once = runner.workers() + usize::from(options.top_k.is_none());
    let mut reports = 0_usize;
    loop {
        while tasks.len() < at_once
            && let Some(next) = ranking.next()
        {
            let ceiling = Arc::new(AtomicU64::new(next.cycle_budget.unwrap_or(u64::MAX)));
            running.insert(next.id, (next, Arc::clone(&ceiling)));
            let (runner, catalog, job) = (runner.clone(), Arc::clone(catalog), Arc::clone(&job));
            tasks.spawn(
                async move { (next, launch(&runner, &catalog, &job, &next, &ceiling).await) },
            );
        }
        let Some(task) = tasks.join_next().await else {
            break;
        };
        let (done, result) =
            task.map_err(|e| ServiceError::internal(format!("a candidate's task failed: {e}")))?;
        running.remove(&done.id);
        let outcome = match result {
            None => Outcome::Exceeded,
            Some(Ok(result)) => {
                let cycles = result.report.cycles;
                telling.keep(done.candidate, done.launch, result);
                Outcome::Done(cycles)
            }
            Some(Err(error)) => match error.kind {
                Kind::OverBudget { .. } => Outcome::Exceeded,
                Kind::Unavailable => {
                    telling.settled(&ranking).await?;
                    telling.cancelled().await?;
                    return Err(error);
                }
                Kind::Deadline | Kind::Cancelled | Kind::Exhausted => return Err(error),
                _ => {
                    let problem = *error.under(&format!("launches[{}]", done.launch)).problem;
                    let failure = failure(&problem);
                    telling.problems.insert(done.candidate, problem);
                    // Runs are shared by equal budget only, and errors are not remembered.
                    Outcome::Failed(failure, FailedAt::Unknown)
                }
            },
        };
        let reported = ranking.report(&done, outcome);
        let threshold = ranking.threshold();
        if let (Some(score), Some(threshold)) = (reported.score, threshold)
            && score > threshold
        {
            // It will be pruned.
            telling.forget(done.candidate);
        }
        for (job, ceiling) in running.values() {
            let budget = ranking.budget_of(job).unwrap_or(u64::MAX);
            ceiling.store(budget, Ordering::Relaxed);
        }
        reports += 1;
        if reports.is_multiple_of(look_every) {
            telling.settled(&ranking).await?;
        }
    }
    for (index, status) in ranking.finish().statuses.into_iter().enumerate() {
        telling.status(index, status).await?;
    }
    Ok(order(&telling.told))
}

/// How often a ranking is looked at for what has become final.
const LOOKS: usize = 256;

/// How often a run is looked at that may have passed what the ranking leaves it.
const LOOK: Duration = Duration::from_millis(5);

/// Runs one launch; nothing, if it passed `ceiling` before it ended.
async fn launch(
    runner: &Runner,
    catalog: &Catalog,
    job: &RankJob,
    next: &CoreJob,
    ceiling: &AtomicU64,
) -> Option<Result<RunResult, ServiceError>> {
    let weighted = job
        .candidates
        .get(next.candidate)
        .and_then(|c| c.launches.as_ref().ok())
        .and_then(|l| l.get(next.launch));
    let Some(weighted) = weighted else {
        return Some(Err(ServiceError::internal("a ranking lost a launch")));
    };
    let mut request = match request(catalog, job, weighted).await {
        Ok(request) => request,
        Err(error) => return Some(Err(error)),
    };
    request.launch.options.cycle_budget = next.cycle_budget;
    if job.top_k == 0 {
        return Some(runner.run(request, Admission::OrWait).await);
    }
    let progress = Arc::new(RunProgress::default());
    request.progress = Some(Arc::clone(&progress));
    let run = runner.run(request.clone(), Admission::OrWait);
    tokio::pin!(run);
    loop {
        tokio::select! {
            result = &mut run => return Some(result),
            () = tokio::time::sleep(LOOK) => {
                let ceiling = ceiling.load(Ordering::Relaxed);
                if progress.cycle.load(Ordering::Relaxed) > ceiling {
                    // Leaving the run stops it, unless somebody else waits for it.
                    return match runner.note_exceeded(&request, ceiling) {
                        Ok(()) => None,
                        Err(error) => Some(Err(error)),
                    };
                }
            }
        }
    }
}

async fn request(
    catalog: &Catalog,
    job: &RankJob,
    weighted: &WeightedLaunch,
) -> Result<RunRequest, ServiceError> {
    let path = "launch.trace_digest";
    Ok(RunRequest {
        tenant: job.tenant.clone(),
        machine: Arc::clone(&job.machine),
        trace: catalog.trace(&job.tenant, weighted.trace, path).await?,
        launch: weighted.launch.clone(),
        deadline: job.deadline,
        progress: None,
    })
}

/// Tells outcomes, each once.
struct Telling<'a> {
    job: &'a RankJob,
    events: &'a mpsc::Sender<CandidateOutcome>,
    /// The candidates that equal one.
    duplicates: HashMap<usize, Vec<usize>>,
    /// Why candidates failed.
    problems: HashMap<usize, Problem>,
    /// Of each launch of each candidate, as far as they are there and may be wanted.
    results: Vec<Vec<Option<RunResult>>>,
    /// What gives the bounds of candidates.
    bindings: Vec<Option<Resource>>,
    decided: Vec<bool>,
    told: Vec<(usize, String, Status, Option<u64>)>,
}

impl Telling<'_> {
    fn keep(&mut self, candidate: usize, launch: usize, result: RunResult) {
        let results = self.results.get_mut(candidate);
        if let Some(slot) = results.and_then(|r| r.get_mut(launch)) {
            *slot = Some(result);
        }
    }

    fn forget(&mut self, candidate: usize) {
        if let Some(results) = self.results.get_mut(candidate) {
            results.clear();
        }
    }

    /// Tells what is final and has not been told.
    async fn settled(&mut self, ranking: &Ranking) -> Result<(), ServiceError> {
        for (index, status) in ranking.settled() {
            self.status(index, status).await?;
        }
        Ok(())
    }

    /// The ranking ends before it is done.
    async fn cancelled(&mut self) -> Result<(), ServiceError> {
        for index in 0..self.decided.len() {
            self.status(index, CoreStatus::Cancelled).await?;
        }
        Ok(())
    }

    async fn status(&mut self, index: usize, status: CoreStatus) -> Result<(), ServiceError> {
        if self.decided.get(index).copied().unwrap_or(true) {
            return Ok(());
        }
        let verdict = match status {
            // Told with the one it equals.
            CoreStatus::DuplicateOf(_) => return Ok(()),
            CoreStatus::Ok { score, .. } => match u64::try_from(score) {
                Ok(score) => Verdict::Ok {
                    score,
                    results: self.take_results(index),
                },
                Err(_) => Verdict::Failed(Problem {
                    code: "rank.score_overflow".into(),
                    path: "launches".to_owned(),
                    message: "the weighted sum of cycles does not fit 64 bits".to_owned(),
                    hint: "use smaller weights".to_owned(),
                }),
            },
            CoreStatus::Failed(failure) => {
                let problem = self.problems.remove(&index);
                Verdict::Failed(problem.unwrap_or_else(|| Problem {
                    code: failure.code.into(),
                    path: failure.path,
                    message: failure.message,
                    hint: failure.hint.unwrap_or_default(),
                }))
            }
            CoreStatus::OverBudget { cycles, .. } => Verdict::OverBudget { cycles },
            CoreStatus::Pruned { bound, why } => Verdict::Pruned {
                bound: u64::try_from(bound).unwrap_or(u64::MAX),
                resource: self.resource(index).to_owned(),
                by_bound: why == PruneReason::Bound,
                reason: self.reason(index, why),
            },
            CoreStatus::Cancelled => Verdict::Cancelled,
        };
        self.forget(index);
        self.tell(index, verdict).await
    }

    fn take_results(&mut self, index: usize) -> Vec<RunResult> {
        let results = self.results.get_mut(index).map(std::mem::take);
        results.into_iter().flatten().flatten().collect()
    }

    /// What gives a candidate's bound.
    fn resource(&self, index: usize) -> &'static str {
        let binding = self.bindings.get(index).copied().flatten();
        binding.map_or("", Resource::name)
    }

    fn reason(&self, index: usize, why: PruneReason) -> String {
        let best = match self.job.top_k {
            1 => "the best takes fewer".to_owned(),
            k => format!("the best {k} take fewer"),
        };
        match why {
            PruneReason::Bound => format!("for {} alone, and {best}", self.resource(index)),
            PruneReason::Passed => format!("and its simulation went on until {best}"),
        }
    }

    async fn tell(&mut self, index: usize, verdict: Verdict) -> Result<(), ServiceError> {
        let score = verdict.score();
        self.send(index, verdict).await?;
        for duplicate in self.duplicates.remove(&index).unwrap_or_default() {
            self.send(duplicate, Verdict::DuplicateOf { index, score })
                .await?;
        }
        Ok(())
    }

    async fn send(&mut self, index: usize, verdict: Verdict) -> Result<(), ServiceError> {
        if let Some(decided) = self.decided.get_mut(index) {
            *decided = true;
        }
        let key = self.job.candidates.get(index).map(|c| c.key.clone());
        let key = key.unwrap_or_default();
        self.told
            .push((index, key.clone(), verdict.status(), verdict.score()));
        let outcome = CandidateOutcome {
            index,
            key,
            verdict,
        };
        self.events
            .send(outcome)
            .await
            .map_err(|_| ServiceError::cancelled())
    }
}

fn failure(problem: &Problem) -> Failure {
    Failure {
        code: problem.code.to_string(),
        path: problem.path.clone(),
        message: problem.message.clone(),
        hint: Some(problem.hint.clone()),
    }
}

fn duplicates(entries: &[Entry]) -> HashMap<usize, Vec<usize>> {
    let mut duplicates: HashMap<usize, Vec<usize>> = HashMap::new();
    for (index, entry) in entries.iter().enumerate() {
        if let Entry::DuplicateOf(original) = entry {
            duplicates.entry(*original).or_default().push(index);
        }
    }
    duplicates
}

/// Every candidate as the scheduler wants it, and what goes with them.
struct Entries {
    entries: Vec<Entry>,
    /// Of those that have failed already.
    problems: HashMap<usize, Problem>,
    /// Of each launch of each candidate, if it is remembered.
    results: Vec<Vec<Option<RunResult>>>,
    /// What gives the largest part of each bound.
    bindings: Vec<Option<Resource>>,
}

type LookedAll = Result<Vec<(Looked, Option<RunResult>)>, Problem>;

async fn entries(
    runner: &Runner,
    catalog: &Arc<Catalog>,
    job: &Arc<RankJob>,
    events: &mpsc::Sender<CandidateOutcome>,
) -> Result<Entries, ServiceError> {
    let mut looked: Vec<Option<LookedAll>> = job.candidates.iter().map(|_| None).collect();
    let mut tasks = JoinSet::new();
    let mut waiting = 0..job.candidates.len();
    loop {
        while tasks.len() < runner.workers()
            && let Some(index) = waiting.next()
        {
            let (runner, catalog, job) = (runner.clone(), Arc::clone(catalog), Arc::clone(job));
            tasks.spawn(async move { (index, look_all(&runner, &catalog, &job, index).await) });
        }
        let Some(task) = tasks.join_next().await else {
            break;
        };
        if job.deadline.is_some_and(|d| Instant::now() >= d) {
            return Err(ServiceError::deadline());
        }
        if events.is_closed() {
            return Err(ServiceError::cancelled());
        }
        let (index, outcome) =
            task.map_err(|e| ServiceError::internal(format!("a candidate's task failed: {e}")))?;
        if let Some(slot) = looked.get_mut(index) {
            *slot = Some(outcome?);
        }
    }
    let mut originals = Duplicates::default();
    let mut all = Entries {
        entries: Vec::with_capacity(looked.len()),
        problems: HashMap::new(),
        results: Vec::with_capacity(looked.len()),
        bindings: Vec::with_capacity(looked.len()),
    };
    for (index, looked) in looked.into_iter().enumerate() {
        let mut results = Vec::new();
        let mut binding = None;
        all.entries.push(match looked {
            Some(Ok(looked)) => {
                let (looked, found): (Vec<Looked>, _) = looked.into_iter().unzip();
                results = found;
                binding = looked
                    .iter()
                    .max_by_key(|l| u128::from(l.entry.bound) * u128::from(l.entry.weight))
                    .and_then(|l| l.binding);
                let (keys, launches) = looked.into_iter().map(|l| (l.key, l.entry)).unzip();
                match originals.original_of(index, keys) {
                    Some(first) => Entry::DuplicateOf(first),
                    None => Entry::Launches(launches),
                }
            }
            Some(Err(problem)) => {
                let entry = Entry::Prefailed(failure(&problem));
                all.problems.insert(index, problem);
                entry
            }
            None => return Err(ServiceError::internal("a candidate was not looked at")),
        });
        all.results.push(results);
        all.bindings.push(binding);
    }
    Ok(all)
}

/// Looks at one candidate before anything runs. An error is one that ends the whole ranking.
async fn look_all(
    runner: &Runner,
    catalog: &Catalog,
    job: &Arc<RankJob>,
    candidate: usize,
) -> Result<LookedAll, ServiceError> {
    let launches = match job.candidates.get(candidate).map(|c| &c.launches) {
        Some(Ok(launches)) => launches,
        Some(Err(problem)) => return Ok(Err(problem.clone())),
        None => return Err(ServiceError::internal("a ranking lost a candidate")),
    };
    let mut all = Vec::with_capacity(launches.len());
    for (number, weighted) in launches.iter().enumerate() {
        let look = async {
            let request = request(catalog, job, weighted).await?;
            let found = runner.recall(&request).await?;
            let (weight, bounded) = (u64::from(weighted.weight), job.top_k > 0);
            let work = move || {
                let (machine, trace) = (&request.machine.machine, &request.trace.trace);
                rank::look(machine, trace, &request.launch, weight, bounded)
            };
            let mut looked = tokio::task::spawn_blocking(work).await.map_err(|e| {
                ServiceError::internal(format!("looking at a launch failed: {e}"))
            })??;
            looked.entry.known = found.as_ref().map(|r| r.report.cycles);
            Ok((looked, found))
        };
        match look.await {
            Ok(looked) => all.push(looked),
            Err(error) => {
                let error: ServiceError = error;
                return match error.kind {
                    Kind::Deadline | Kind::Cancelled | Kind::Unavailable | Kind::Exhausted => {
                        Err(error)
                    }
                    _ => Ok(Err(*error.under(&format!("launches[{number}]")).problem)),
                };
            }
        }
    }
    Ok(Ok(all))
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
