//! Ranking candidates by simulated cycles: what to run next, when to stop it, and the result.
//!
//! A [`Ranking`] is a state machine without threads or clock. Whoever drives it (the daemon's workers,
//! the command line, [`run`]) asks [`Ranking::next`] for jobs, keeps to [`Ranking::budget_of`] while
//! they run, and [`Ranking::report`]s outcomes, in any order and from any number of workers.
//!
//! # Score and order
//!
//! A candidate's score is the sum of weight x cycles over its launches. The order is by score, then by
//! index; equal scores form a tie group. A candidate's launches run one after another, in their order;
//! the first one that gives no cycles decides its status.
//!
//! # Pruning
//!
//! With `top_k`, let T be the k-th smallest score known so far (none before k are known). T never
//! rises, and ends as K, the k-th smallest score of all. A candidate is given up when what it has
//! spent plus the lower bounds of what is left of it is *more than* T: its score is then more than T,
//! hence more than K, so it is not among the first k, whatever its index. A candidate whose score is at
//! most K is never given up, since what it has spent plus bounds is at most its score. So the k-th
//! smallest score of all candidates that ran to the end is K, and the first k are those of the ranking
//! without pruning, for every schedule.
//!
//! # The result does not depend on the schedule
//!
//! How far a candidate beyond K gets before it is given up depends on who was faster. The result does
//! not say: at the end every candidate is judged by K alone. Its launches are gone through in their
//! order, each allowed what K leaves: `limit = (K - spent - bounds of the later launches) / weight`
//! cycles, rounded down.
//!
//! 1. The lower bounds add up to more than K: [`Status::Pruned`] because of its bound.
//! 2. What is spent plus the bounds of what is left is more than K, or a launch takes more than its
//!    limit: [`Status::Pruned`] because it passed K, also if it happened to run to its end, or to an
//!    error or a budget beyond the limit.
//! 3. A launch takes more than the caller's own budget, which is not above the limit:
//!    [`Status::OverBudget`].
//! 4. A launch fails before its limit: [`Status::Failed`].
//! 5. All launches end: [`Status::Ok`]. Its score is at most K.
//!
//! Every schedule finds out enough for this, because no limit it sets is below that of K. One case
//! needs a second look: a launch failed under a wider limit than K leaves, and it is not known how far
//! it was. It is run once more with the limit of K ([`Job::recheck`]), at the very end.
//!
//! A duplicate takes no place in the order; it is what the candidate it repeats is.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};
use tilesim_traces::{Bound, ValidTrace};

use crate::bound::lower_bound_of;
use crate::engine::{self, Launch, Watch};
use crate::error::SimError;
use crate::machine::Machine;
use crate::report::Identity;
use crate::simulate;

/// Why a candidate has no score.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Stable code.
    pub code: String,
    /// Where.
    pub path: String,
    /// What.
    pub message: String,
    /// What to do.
    pub hint: Option<String>,
}

impl From<&SimError> for Failure {
    fn from(e: &SimError) -> Failure {
        Failure {
            code: e.code().to_string(),
            path: e.path(),
            message: e.to_string(),
            hint: e.hint(),
        }
    }
}

/// One launch of a candidate.
#[derive(Clone, Debug, PartialEq)]
pub struct CandidateLaunch {
    /// How much a cycle of it counts.
    pub weight: u64,
    /// Grid, parameters, placement, options.
    pub launch: Launch,
    /// Index of its trace in the caller's list.
    pub trace: usize,
    /// Index of its machine in the caller's list.
    pub machine: usize,
}

/// One thing to rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The caller's name for it.
    pub key: String,
    /// Its launches, or why it has none.
    pub launches: Result<Vec<CandidateLaunch>, Failure>,
}

/// What the scheduler knows of a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Failed before it began.
    Prefailed(Failure),
    /// The same launches as the candidate of this (lower) index.
    DuplicateOf(usize),
    /// To be simulated, in this order.
    Launches(Vec<LaunchEntry>),
}

/// What the scheduler knows of a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchEntry {
    /// How much a cycle of it counts.
    pub weight: u64,
    /// Core cycles it takes at least; 0 if nothing is known.
    pub bound: u64,
    /// The caller's own budget for it, in core cycles.
    pub cycle_budget: Option<u64>,
}

impl LaunchEntry {
    fn least(&self) -> u128 {
        times(self.weight, self.bound)
    }
}

/// How a ranking is done. All of it decides the result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankOptions {
    /// Only the first so many matter; none: all.
    pub top_k: Option<NonZeroUsize>,
    /// Core cycles any launch may take, besides the budget of its own; none: no limit.
    pub cycle_budget: Option<u64>,
}

/// A launch to simulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// Running number.
    pub id: u64,
    /// Candidate index.
    pub candidate: usize,
    /// Index among its launches.
    pub launch: usize,
    /// Run it with this [`crate::RunOptions::cycle_budget`]; see also [`Ranking::budget_of`]. One more
    /// than what the launch may take: the engine's last step may be one after the last that counts.
    pub cycle_budget: Option<u64>,
    /// The launch failed before, under a wider budget: run it again, exactly with this one. A
    /// remembered error must not answer it; a remembered total may.
    pub recheck: bool,
}

/// How far a failed run was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailedAt {
    /// It did not begin.
    Start,
    /// The last core step in which it acted.
    Step(u64),
    /// Not known; it ran with the job's budget.
    Unknown,
    /// Not known, and the error is remembered from a run under another budget.
    Remembered,
}

/// What became of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The total in core cycles. It may exceed the job's budget (a remembered result).
    Done(u64),
    /// It passed the job's budget, or what [`Ranking::budget_of`] said while it ran.
    Exceeded,
    /// It failed.
    Failed(Failure, FailedAt),
    /// The caller gave up.
    Cancelled,
}

impl Outcome {
    /// From a simulation whose budget was the job's. A [`SimError::Cancelled`] is [`Outcome::Exceeded`]
    /// if `by_budget`: the caller's [`Watch`] stopped it because it passed [`Ranking::budget_of`].
    pub fn of(result: Result<u64, &SimError>, by_budget: bool) -> Outcome {
        match result {
            Ok(cycles) => Outcome::Done(cycles),
            Err(SimError::OverBudget { .. }) => Outcome::Exceeded,
            Err(SimError::Cancelled { .. }) if by_budget => Outcome::Exceeded,
            Err(SimError::Cancelled { .. }) => Outcome::Cancelled,
            Err(e) => {
                let at = match e {
                    SimError::Deadlock(d) => match d.cycle.checked_sub(1) {
                        Some(step) => FailedAt::Step(step),
                        None => FailedAt::Start,
                    },
                    SimError::BufferTooLarge { .. }
                    | SimError::CostMismatch { .. }
                    | SimError::Split { .. } => FailedAt::Start,
                    _ => FailedAt::Unknown,
                };
                Outcome::Failed(Failure::from(e), at)
            }
        }
    }
}

/// Why a candidate was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PruneReason {
    /// Its lower bound is more than the k-th best score.
    Bound,
    /// Its simulation passed the k-th best score.
    Passed,
}

/// What became of a candidate. Each has exactly one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It has a score.
    Ok {
        /// Sum of weight x cycles.
        score: u128,
        /// Core cycles of each launch.
        cycles: Vec<u64>,
    },
    /// It failed.
    Failed(Failure),
    /// A launch takes more than the caller's budget.
    OverBudget {
        /// Which launch.
        launch: usize,
        /// The budget in core cycles.
        cycles: u64,
    },
    /// It cannot be among the first k.
    Pruned {
        /// Its score is at least this: the lower bound known before anything ran.
        bound: u128,
        /// The k-th best score, which it exceeds.
        best: u128,
        /// How that is known.
        why: PruneReason,
    },
    /// The caller gave up before it was known.
    Cancelled,
    /// The same as another one.
    DuplicateOf(usize),
}

/// One candidate's place in the order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// Candidate index.
    pub candidate: usize,
    /// Sum of weight x cycles.
    pub score: u128,
    /// Number of its group of equal scores, from 0.
    pub tie_group: usize,
    /// Among the first k (always, without `top_k`).
    pub in_top: bool,
    /// Score of the next place less its own; none for the last.
    pub to_next: Option<u128>,
    /// Score of the next place over its own; none for the last, or for a score of 0.
    pub next_ratio: Option<f64>,
    /// Its score less the best.
    pub behind_best: u128,
    /// Its score over the best; none for a best score of 0.
    pub best_ratio: Option<f64>,
}

/// The result of a ranking.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankResult {
    /// Candidates with a score, best first.
    pub order: Vec<Place>,
    /// One per candidate.
    pub statuses: Vec<Status>,
    /// Every candidate's status is final. Only then does the result not depend on the schedule.
    pub complete: bool,
}

/// What a report changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reported {
    /// The candidate.
    pub candidate: usize,
    /// Nothing more of it will be run (but for a recheck).
    pub settled: bool,
    /// Its score, if it has one now. In the result it may be pruned all the same.
    pub score: Option<u128>,
}

/// What is known of one launch.
#[derive(Clone, Debug)]
enum Known {
    Done(u64),
    Exceeded,
    Failed {
        failure: Failure,
        at: FailedAt,
        budget: Option<u64>,
    },
    Cancelled,
}

#[derive(Clone, Debug)]
struct State {
    launches: Vec<LaunchEntry>,
    known: Vec<Known>,
    /// Sum over the launches that are done.
    spent: u128,
    /// Sum of bounds of those that are not.
    left: u128,
    bound: u128,
}

/// The scheduler of one ranking.
#[derive(Clone, Debug)]
pub struct Ranking {
    options: RankOptions,
    entries: Vec<Entry>,
    states: Vec<Option<State>>,
    /// Candidates with a launch to run: those under way first, then by bound, then by index.
    ready: BTreeSet<(bool, u128, usize)>,
    running: BTreeMap<u64, Job>,
    next_id: u64,
    /// The k smallest scores.
    best: BinaryHeap<u128>,
    rechecks: Option<VecDeque<(usize, usize)>>,
    cancelled: bool,
}

/// The budget an engine run needs so that it surely ends if it takes no more than `cycles`: after the
/// last event that counts the engine may act in one more step (a weight slot falls free).
fn engine_budget(cycles: u64) -> u64 {
    cycles.saturating_add(1)
}

/// The lower of two budgets.
fn lower(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

fn times(weight: u64, cycles: u64) -> u128 {
    u128::from(weight) * u128::from(cycles)
}

impl Ranking {
    /// A ranking of `entries`, none of them begun.
    pub fn new(entries: Vec<Entry>, options: RankOptions) -> Ranking {
        let mut ready = BTreeSet::new();
        let states = entries
            .iter()
            .enumerate()
            .map(|(index, entry)| {
                let Entry::Launches(launches) = entry else {
                    return None;
                };
                let mut launches = launches.clone();
                for launch in &mut launches {
                    launch.cycle_budget = lower(launch.cycle_budget, options.cycle_budget);
                }
                let bound = launches
                    .iter()
                    .fold(0u128, |sum, l| sum.saturating_add(l.least()));
                if !launches.is_empty() {
                    ready.insert((true, bound, index));
                }
                Some(State {
                    launches,
                    known: Vec::new(),
                    spent: 0,
                    left: bound,
                    bound,
                })
            })
            .collect();
        Ranking {
            options,
            entries,
            states,
            ready,
            running: BTreeMap::new(),
            next_id: 0,
            best: BinaryHeap::new(),
            rechecks: None,
            cancelled: false,
        }
    }

    /// The k-th smallest score so far; none before k are known.
    pub fn threshold(&self) -> Option<u128> {
        let k = self.options.top_k?.get();
        if self.best.len() == k {
            self.best.peek().copied()
        } else {
            None
        }
    }

    /// Jobs handed out and not reported.
    pub fn in_flight(&self) -> usize {
        self.running.len()
    }

    /// Nothing is left to do: [`Ranking::next`] gives no job and none is in flight.
    pub fn is_finished(&mut self) -> bool {
        self.running.is_empty() && !self.prepare()
    }

    /// The next launch to run. `None`: nothing now; ask again after a report, unless
    /// [`Ranking::is_finished`].
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<Job> {
        if !self.prepare() {
            return None;
        }
        let (candidate, launch, recheck) = match self.ready.pop_first() {
            Some((_, _, candidate)) => {
                let launch = self.states.get(candidate)?.as_ref()?.known.len();
                (candidate, launch, false)
            }
            None => {
                let (candidate, launch) = self.rechecks.as_mut()?.pop_front()?;
                (candidate, launch, true)
            }
        };
        let mut job = Job {
            id: self.next_id,
            candidate,
            launch,
            cycle_budget: None,
            recheck,
        };
        self.next_id += 1;
        job.cycle_budget = self.budget_of(&job);
        self.running.insert(job.id, job);
        Some(job)
    }

    /// Drop what is beyond the threshold from `ready`; whether there is a job to hand out.
    fn prepare(&mut self) -> bool {
        if self.cancelled {
            return false;
        }
        while let Some(&(fresh, key, candidate)) = self.ready.first() {
            let beyond = match (self.threshold(), self.states.get(candidate)) {
                (Some(t), Some(Some(s))) => s.spent.saturating_add(s.left) > t,
                _ => false,
            };
            if !beyond {
                return true;
            }
            self.ready.remove(&(fresh, key, candidate));
        }
        if !self.running.is_empty() {
            return false;
        }
        if self.rechecks.is_none() {
            let list = (0..self.states.len()).filter_map(|i| match self.judge(i) {
                Judged::Again(launch) => Some((i, launch)),
                Judged::Is(_) => None,
            });
            self.rechecks = Some(list.collect());
        }
        self.rechecks.as_ref().is_some_and(|list| !list.is_empty())
    }

    /// The budget of a job as things stand, in core cycles (as [`Job::cycle_budget`]); a run whose
    /// [`crate::Progress::cycle`] is above it may be stopped and reported as [`Outcome::Exceeded`]. It
    /// never rises. `None`: no limit.
    pub fn budget_of(&self, job: &Job) -> Option<u64> {
        let state = self.states.get(job.candidate)?.as_ref()?;
        let own = state.launches.get(job.launch)?.cycle_budget;
        let spent = state
            .known
            .iter()
            .zip(&state.launches)
            .take(job.launch)
            .fold(0u128, |sum, (known, launch)| match known {
                Known::Done(cycles) => sum.saturating_add(times(launch.weight, *cycles)),
                _ => sum,
            });
        let limit = self
            .threshold()
            .and_then(|t| limit(t, spent, &state.launches, job.launch));
        lower(limit, own).map(engine_budget)
    }

    /// A job ended. Reports of jobs that are not in flight change nothing.
    pub fn report(&mut self, job: &Job, outcome: Outcome) -> Reported {
        let mut reported = Reported {
            candidate: job.candidate,
            settled: true,
            score: None,
        };
        let Some(job) = self.running.remove(&job.id) else {
            return reported;
        };
        let Some(Some(state)) = self.states.get_mut(job.candidate) else {
            return reported;
        };
        let budget = job.cycle_budget;
        let known = match outcome {
            Outcome::Done(cycles) => Known::Done(cycles),
            Outcome::Exceeded => Known::Exceeded,
            Outcome::Failed(failure, at) => Known::Failed {
                failure,
                at,
                budget,
            },
            Outcome::Cancelled => Known::Cancelled,
        };
        if job.recheck {
            if let Some(entry) = state.known.get_mut(job.launch) {
                *entry = known;
            }
            return reported;
        }
        let done = if let Known::Done(cycles) = known {
            Some(cycles)
        } else {
            None
        };
        state.known.push(known);
        let (Some(cycles), Some(launch)) = (done, state.launches.get(job.launch)) else {
            return reported;
        };
        state.spent = state.spent.saturating_add(times(launch.weight, cycles));
        state.left = state.left.saturating_sub(launch.least());
        if state.known.len() < state.launches.len() {
            self.ready.insert((false, state.bound, job.candidate));
            reported.settled = false;
            return reported;
        }
        let score = state.spent;
        reported.score = Some(score);
        // A launch over the caller's own budget (a remembered total) does not count.
        let within = state
            .known
            .iter()
            .zip(&state.launches)
            .all(|(known, launch)| {
                let own = launch.cycle_budget.unwrap_or(u64::MAX);
                matches!(known, Known::Done(cycles) if *cycles <= own)
            });
        if let (Some(k), true) = (self.options.top_k, within) {
            self.best.push(score);
            if self.best.len() > k.get() {
                self.best.pop();
            }
        }
        reported
    }

    /// Hand out nothing more.
    pub fn cancel(&mut self) {
        self.cancelled = true;
    }

    /// A candidate by the rules of this module, with the threshold as it stands.
    fn judge(&self, index: usize) -> Judged {
        let state = match (self.entries.get(index), self.states.get(index)) {
            (Some(Entry::Prefailed(failure)), _) => {
                return Judged::Is(Status::Failed(failure.clone()));
            }
            (Some(Entry::DuplicateOf(other)), _) => {
                return Judged::Is(Status::DuplicateOf(*other));
            }
            (_, Some(Some(state))) => state,
            _ => return Judged::Is(Status::Cancelled),
        };
        if state.launches.is_empty() {
            return Judged::Is(Status::Failed(Failure {
                code: "rank.no_launches".into(),
                path: format!("candidates[{index}].launches"),
                message: "the candidate has no launch".into(),
                hint: Some("give it at least one".into()),
            }));
        }
        let best = self.threshold();
        let pruned = |best, why| {
            Judged::Is(Status::Pruned {
                bound: state.bound,
                best,
                why,
            })
        };
        if let Some(best) = best.filter(|&best| state.bound > best) {
            return pruned(best, PruneReason::Bound);
        }
        let mut spent = 0u128;
        let mut left = state.bound;
        let mut cycles = Vec::with_capacity(state.launches.len());
        for (launch, entry) in state.launches.iter().enumerate() {
            if let Some(best) = best.filter(|&best| spent.saturating_add(left) > best) {
                return pruned(best, PruneReason::Passed);
            }
            let limit = best.and_then(|best| limit(best, spent, &state.launches, launch));
            let budget = lower(limit, entry.cycle_budget);
            // More cycles than the budget: the caller's counts where it is not above the limit.
            let beyond = || match (limit, entry.cycle_budget, best) {
                (None, Some(own), _) => Judged::Is(Status::OverBudget {
                    launch,
                    cycles: own,
                }),
                (Some(limit), Some(own), _) if own <= limit => Judged::Is(Status::OverBudget {
                    launch,
                    cycles: own,
                }),
                (_, _, Some(best)) => pruned(best, PruneReason::Passed),
                _ => Judged::Is(Status::Cancelled),
            };
            match state.known.get(launch) {
                Some(Known::Done(c)) if budget.is_none_or(|budget| *c <= budget) => {
                    spent = spent.saturating_add(times(entry.weight, *c));
                    left = left.saturating_sub(entry.least());
                    cycles.push(*c);
                }
                Some(Known::Done(_) | Known::Exceeded) => return beyond(),
                Some(Known::Failed {
                    failure,
                    at,
                    budget: ran,
                }) => {
                    // A run with a budget acts in core steps below it only.
                    let reached = match (at, budget) {
                        (FailedAt::Start, _) | (_, None) => true,
                        (FailedAt::Step(step), Some(budget)) => *step < engine_budget(budget),
                        (FailedAt::Unknown, _) if *ran == budget.map(engine_budget) => true,
                        (FailedAt::Unknown | FailedAt::Remembered, _) => {
                            return Judged::Again(launch);
                        }
                    };
                    return if reached {
                        Judged::Is(Status::Failed(failure.clone()))
                    } else {
                        beyond()
                    };
                }
                Some(Known::Cancelled) | None => return Judged::Is(Status::Cancelled),
            }
        }
        Judged::Is(Status::Ok {
            score: spent,
            cycles,
        })
    }

    /// The result as far as it is known; complete if everything was run that had to be.
    pub fn finish(mut self) -> RankResult {
        let finished = self.is_finished() && !self.cancelled;
        let statuses: Vec<Status> = (0..self.entries.len())
            .map(|index| match self.judge(index) {
                Judged::Is(status) => status,
                Judged::Again(_) => Status::Cancelled,
            })
            .collect();
        let complete = finished && !statuses.contains(&Status::Cancelled);
        let mut scores: Vec<(u128, usize)> = statuses
            .iter()
            .enumerate()
            .filter_map(|(index, status)| match status {
                Status::Ok { score, .. } => Some((*score, index)),
                _ => None,
            })
            .collect();
        scores.sort_unstable();
        let top = self.options.top_k.map_or(usize::MAX, NonZeroUsize::get);
        let best = scores.first().map_or(0, |s| s.0);
        let ratio = |a: u128, b: u128| {
            if b == 0 {
                None
            } else {
                Some(a as f64 / b as f64)
            }
        };
        let mut group = 0;
        let mut order = Vec::with_capacity(scores.len());
        for (place, &(score, candidate)) in scores.iter().enumerate() {
            let before = place.checked_sub(1).and_then(|p| scores.get(p));
            if before.is_some_and(|b| b.0.cmp(&score) == Ordering::Less) {
                group += 1;
            }
            let next = scores.get(place + 1).map(|s| s.0);
            order.push(Place {
                candidate,
                score,
                tie_group: group,
                in_top: place < top,
                to_next: next.map(|n| n - score),
                next_ratio: next.and_then(|n| ratio(n, score)),
                behind_best: score - best,
                best_ratio: ratio(score, best),
            });
        }
        RankResult {
            order,
            statuses,
            complete,
        }
    }
}

enum Judged {
    Is(Status),
    /// This launch must be run again with the limit of the threshold.
    Again(usize),
}

/// Cycles that launch number `at` may take so that a score of `best` is not passed, `spent` having
/// been taken by those before it and the later ones taking their bounds; `None`: any number.
fn limit(best: u128, spent: u128, launches: &[LaunchEntry], at: usize) -> Option<u64> {
    let later = launches
        .iter()
        .skip(at + 1)
        .fold(spent, |sum, l| sum.saturating_add(l.least()));
    match launches.get(at) {
        Some(launch) if launch.weight > 0 => {
            let cycles = best.saturating_sub(later) / u128::from(launch.weight);
            Some(u64::try_from(cycles).unwrap_or(u64::MAX))
        }
        _ => None,
    }
}

/// Entries of candidates: duplicates found, bounds computed. A launch whose bound cannot be computed
/// gets 0; its simulation will say what is wrong.
pub fn entries(
    candidates: &[Candidate],
    traces: &[ValidTrace],
    machines: &[Machine],
) -> Vec<Entry> {
    let mut seen: BTreeMap<Vec<(u64, Identity, Option<u64>)>, usize> = BTreeMap::new();
    candidates
        .iter()
        .enumerate()
        .map(|(index, candidate)| {
            let launches = match &candidate.launches {
                Ok(launches) => launches,
                Err(failure) => return Entry::Prefailed(failure.clone()),
            };
            let mut identity = Vec::with_capacity(launches.len());
            let mut bounds = Vec::with_capacity(launches.len());
            for (number, l) in launches.iter().enumerate() {
                let (Some(trace), Some(machine)) = (traces.get(l.trace), machines.get(l.machine))
                else {
                    return Entry::Prefailed(Failure {
                        code: "rank.no_such_input".into(),
                        path: format!("candidates[{index}].launches[{number}]"),
                        message: format!(
                            "there is no trace {} or no machine {}",
                            l.trace, l.machine
                        ),
                        hint: None,
                    });
                };
                let cycle_budget = l.launch.options.cycle_budget;
                let options = &l.launch.options;
                let known = Bound::new(trace, &l.launch.args, &options.limits)
                    .map_err(SimError::from)
                    .and_then(|bound| {
                        let id = engine::identity(machine, &bound, options)?;
                        Ok((id, bound))
                    });
                let bound = match known {
                    Ok((id, bound)) => {
                        identity.push((l.weight, id, cycle_budget));
                        bound
                    }
                    Err(e) => return Entry::Prefailed(Failure::from(&e)),
                };
                let bound = lower_bound_of(machine, &bound, options).map_or(0, |b| b.cycles);
                bounds.push(LaunchEntry {
                    weight: l.weight,
                    bound,
                    cycle_budget,
                });
            }
            match seen.get(&identity) {
                Some(first) if !identity.is_empty() => Entry::DuplicateOf(*first),
                _ => {
                    seen.insert(identity, index);
                    Entry::Launches(bounds)
                }
            }
        })
        .collect()
}

/// Rank candidates on the calling thread. `watch` can cancel; what is known by then is in the result.
pub fn run(
    candidates: &[Candidate],
    traces: &[ValidTrace],
    machines: &[Machine],
    options: RankOptions,
    watch: &mut impl Watch,
) -> RankResult {
    let mut ranking = Ranking::new(entries(candidates, traces, machines), options);
    while let Some(job) = ranking.next() {
        let launch = candidates
            .get(job.candidate)
            .and_then(|c| c.launches.as_ref().ok())
            .and_then(|l| l.get(job.launch));
        let outcome = match launch {
            Some(l) => match (traces.get(l.trace), machines.get(l.machine)) {
                (Some(trace), Some(machine)) => {
                    let mut launch = l.launch.clone();
                    launch.options.cycle_budget = job.cycle_budget;
                    let result = simulate(machine, trace, &launch, watch);
                    Outcome::of(result.as_ref().map(|r| r.cycles), false)
                }
                _ => Outcome::Cancelled,
            },
            None => Outcome::Cancelled,
        };
        if outcome == Outcome::Cancelled {
            ranking.cancel();
        }
        ranking.report(&job, outcome);
    }
    ranking.finish()
}
