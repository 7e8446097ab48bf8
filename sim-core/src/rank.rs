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
//!
//! # Final before the end
//!
//! K is at most T, and at least the k-th smallest of what the candidates take at least. A status that is
//! the same for either is final ([`Ranking::settled`]): as K grows, a candidate passes from pruned by its
//! bound to pruned because it passed K to what it is by itself, once each.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};
use tilesim_traces::{Bound, ValidTrace};

use crate::bound::{Resource, lower_bound_of};
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
    /// Its total, if that is remembered from another time: it is not run then.
    pub known: Option<u64>,
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
    /// Run it with this [`crate::RunOptions::cycle_budget`]; see also [`Ranking::budget_of`].
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
    /// The k-th best score, which pruned candidates exceed; none if fewer have one, or without `top_k`.
    pub kth_score: Option<u128>,
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

impl State {
    /// The next launch became this.
    fn note(&mut self, known: Known) {
        if let (Known::Done(cycles), Some(launch)) = (&known, self.launches.get(self.known.len())) {
            self.spent = self.spent.saturating_add(times(launch.weight, *cycles));
            self.left = self.left.saturating_sub(launch.least());
        }
        self.known.push(known);
    }

    /// It takes at least this.
    fn least(&self) -> u128 {
        self.spent.saturating_add(self.left)
    }
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
        let states = entries
            .iter()
            .map(|entry| {
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
                Some(State {
                    launches,
                    known: Vec::new(),
                    spent: 0,
                    left: bound,
                    bound,
                })
            })
            .collect();
        let mut ranking = Ranking {
            options,
            entries,
            states,
            ready: BTreeSet::new(),
            running: BTreeMap::new(),
            next_id: 0,
            best: BinaryHeap::new(),
            rechecks: None,
            cancelled: false,
        };
        for candidate in 0..ranking.states.len() {
            ranking.go_on(candidate);
        }
        ranking
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
                (Some(t), Some(Some(s))) => s.least() > t,
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
            let best = self.threshold();
            let list = (0..self.states.len()).filter_map(|i| match self.judge(i, best) {
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
        lower(limit, own)
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
        let done = matches!(known, Known::Done(_));
        state.note(known);
        if done {
            reported.score = self.go_on(job.candidate);
            let all = |s: &State| s.known.len() == s.launches.len();
            let state = self.states.get(job.candidate);
            reported.settled = state.is_some_and(|s| s.as_ref().is_some_and(all));
        }
        reported
    }

    /// After a launch of a candidate is done (or before its first): makes the next one ready, unless
    /// its total is remembered. Its score, if it has one now.
    fn go_on(&mut self, candidate: usize) -> Option<u128> {
        let state = self.states.get_mut(candidate)?.as_mut()?;
        while let Some(launch) = state.launches.get(state.known.len()) {
            let Some(cycles) = launch.known else {
                let fresh = state.known.is_empty();
                self.ready.insert((fresh, state.bound, candidate));
                return None;
            };
            state.note(Known::Done(cycles));
        }
        if state.launches.is_empty() {
            return None;
        }
        let score = state.spent;
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
        Some(score)
    }

    /// Hand out nothing more.
    pub fn cancel(&mut self) {
        self.cancelled = true;
    }

    /// A candidate by the rules of this module, `best` being the k-th best score.
    fn judge(&self, index: usize, best: Option<u128>) -> Judged {
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
        let pruned = |why| {
            Judged::Is(Status::Pruned {
                bound: state.bound,
                why,
            })
        };
        if best.is_some_and(|best| state.bound > best) {
            return pruned(PruneReason::Bound);
        }
        let mut spent = 0u128;
        let mut left = state.bound;
        let mut cycles = Vec::with_capacity(state.launches.len());
        for (launch, entry) in state.launches.iter().enumerate() {
            if best.is_some_and(|best| spent.saturating_add(left) > best) {
                return pruned(PruneReason::Passed);
            }
            let limit = best.and_then(|best| limit(best, spent, &state.launches, launch));
            let budget = lower(limit, entry.cycle_budget);
            // More cycles than the budget: the caller's counts where it is not above the limit.
            let beyond = || match (limit, entry.cycle_budget) {
                (limit, Some(own)) if limit.is_none_or(|limit| own <= limit) => {
                    Judged::Is(Status::OverBudget {
                        launch,
                        cycles: own,
                    })
                }
                (Some(_), _) => pruned(PruneReason::Passed),
                (None, _) => Judged::Is(Status::Cancelled),
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
                        (FailedAt::Step(step), Some(budget)) => *step < budget,
                        (FailedAt::Unknown, _) if *ran == budget => true,
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

    /// The candidates whose status is final already, whatever becomes of the others. Looks at all of
    /// them.
    pub fn settled(&self) -> Vec<(usize, Status)> {
        let (least, most) = (self.least_threshold(), self.threshold());
        (0..self.entries.len())
            .filter_map(
                |index| match (self.judge(index, least), self.judge(index, most)) {
                    (Judged::Is(a), Judged::Is(b)) if a == b && a != Status::Cancelled => {
                        Some((index, a))
                    }
                    _ => None,
                },
            )
            .collect()
    }

    /// What the k-th best score is at least; none if there cannot be one.
    fn least_threshold(&self) -> Option<u128> {
        let k = self.options.top_k?.get();
        let mut least: Vec<u128> = self
            .states
            .iter()
            .flatten()
            .filter(|s| !s.launches.is_empty())
            .map(State::least)
            .collect();
        if least.len() < k {
            return None;
        }
        let (_, kth, _) = least.select_nth_unstable(k - 1);
        Some(*kth)
    }

    /// The result as far as it is known; complete if everything was run that had to be.
    pub fn finish(mut self) -> RankResult {
        let finished = self.is_finished() && !self.cancelled;
        let kth_score = self.threshold();
        let statuses: Vec<Status> = (0..self.entries.len())
            .map(|index| match self.judge(index, kth_score) {
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
            kth_score,
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

/// What decides the outcome of a launch in a ranking: equal keys, equal outcomes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LaunchKey {
    weight: u64,
    identity: Identity,
    cycle_budget: Option<u64>,
    max_requests: u64,
    allow_cost_mismatch: bool,
}

/// What is known of a launch before it runs.
#[derive(Clone, Debug)]
pub struct Looked {
    /// What decides its outcome.
    pub key: LaunchKey,
    /// For the scheduler.
    pub entry: LaunchEntry,
    /// What gives its bound.
    pub binding: Option<Resource>,
}

/// Looks at a launch before it runs. A bound that cannot be computed is 0 (the simulation will say what
/// is wrong), and so is one that is not `bounded`.
///
/// # Errors
///
/// What the simulation would find before it begins: arguments that do not fit the trace, a trace that
/// does not fit the machine.
pub fn look(
    machine: &Machine,
    trace: &ValidTrace,
    launch: &Launch,
    weight: u64,
    bounded: bool,
) -> Result<Looked, SimError> {
    let options = &launch.options;
    let bound = Bound::new(trace, &launch.args, &options.limits)?;
    engine::context(machine, trace, options)?;
    let key = LaunchKey {
        weight,
        identity: engine::identity(machine, &bound, options)?,
        cycle_budget: options.cycle_budget,
        max_requests: options.max_requests,
        allow_cost_mismatch: options.allow_cost_mismatch,
    };
    let least = if bounded {
        lower_bound_of(machine, &bound, options).ok()
    } else {
        None
    };
    Ok(Looked {
        key,
        entry: LaunchEntry {
            weight,
            bound: least.as_ref().map_or(0, |b| b.cycles),
            cycle_budget: options.cycle_budget,
            known: None,
        },
        binding: least.and_then(|b| b.binding),
    })
}

/// Finds candidates that repeat an earlier one.
#[derive(Debug, Default)]
pub struct Duplicates(BTreeMap<Vec<LaunchKey>, usize>);

impl Duplicates {
    /// The candidate that candidate `index` repeats; all earlier ones have been asked about.
    pub fn original_of(&mut self, index: usize, launches: Vec<LaunchKey>) -> Option<usize> {
        if launches.is_empty() {
            return None;
        }
        let first = *self.0.entry(launches).or_insert(index);
        Some(first).filter(|first| *first != index)
    }
}

/// Entries of candidates: duplicates found, bounds computed.
pub fn entries(
    candidates: &[Candidate],
    traces: &[ValidTrace],
    machines: &[Machine],
) -> Vec<Entry> {
    let mut duplicates = Duplicates::default();
    let looked = |index: usize, number: usize, l: &CandidateLaunch| {
        let (Some(trace), Some(machine)) = (traces.get(l.trace), machines.get(l.machine)) else {
            return Err(Failure {
                code: "rank.no_such_input".into(),
                path: format!("candidates[{index}].launches[{number}]"),
                message: format!("there is no trace {} or no machine {}", l.trace, l.machine),
                hint: None,
            });
        };
        look(machine, trace, &l.launch, l.weight, true).map_err(|e| Failure::from(&e))
    };
    candidates
        .iter()
        .enumerate()
        .map(|(index, candidate)| {
            let all = candidate.launches.as_ref().map_err(Clone::clone);
            let all = all.and_then(|launches| {
                launches
                    .iter()
                    .enumerate()
                    .map(|(number, l)| looked(index, number, l))
                    .collect::<Result<Vec<_>, _>>()
            });
            match all {
                Err(failure) => Entry::Prefailed(failure),
                Ok(all) => {
                    let (keys, launches) = all.into_iter().map(|l| (l.key, l.entry)).unzip();
                    match duplicates.original_of(index, keys) {
                        Some(first) => Entry::DuplicateOf(first),
                        None => Entry::Launches(launches),
                    }
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
