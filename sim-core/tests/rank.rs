//! Rankings give the same result for every schedule, and the first k of the ranking without pruning.
//!
//! `TILESIM_RANDOM_CASES` sets how many random candidate sets are run.

#![allow(clippy::expect_used)]
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use tilesim_core::rank::{
    Entry, FailedAt, Failure, Job, LaunchEntry, Outcome, PruneReason, RankOptions, RankResult,
    Ranking, Status,
};

/// A small generator: the tests choose schedules, so they need their own numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// What a launch really does: acts in steps 0 to `cycles` - 1, or fails after so many steps.
#[derive(Clone, Copy, Debug)]
struct Truth {
    cycles: u64,
    fails: Option<(u64, FailedAt)>,
}

#[derive(Clone, Debug)]
struct Set {
    entries: Vec<Entry>,
    truths: Vec<Vec<Truth>>,
    options: RankOptions,
}

fn failure(code: u64) -> Failure {
    Failure {
        code: format!("test.{code}"),
        path: String::new(),
        message: String::new(),
        hint: None,
    }
}

fn set(r: &mut Random) -> Set {
    let n = r.below(14) as usize;
    // Few different values, so that ties are common.
    let spread = [3, 12, 200][r.below(3) as usize];
    let mut entries = Vec::new();
    let mut truths = Vec::new();
    for index in 0..n {
        let mut launches = Vec::new();
        let mut truth = Vec::new();
        for _ in 0..if r.one_in(12) { 0 } else { 1 + r.below(3) } {
            let cycles = 1 + r.below(spread);
            let bound = match r.below(4) {
                0 => 0,
                1 => cycles,
                _ => r.below(cycles + 1),
            };
            let weight = [0, 1, 1, 1, 2, 3][r.below(6) as usize];
            let cycle_budget = r.one_in(10).then(|| r.below(spread + 2));
            let fails = r.one_in(6).then(|| {
                let step = r.below(cycles);
                match r.below(3) {
                    0 => (0, FailedAt::Start),
                    1 => (step, FailedAt::Step(step)),
                    _ => (step, FailedAt::Unknown),
                }
            });
            launches.push(LaunchEntry {
                weight,
                bound,
                cycle_budget,
                known: None,
            });
            truth.push(Truth { cycles, fails });
        }
        let entry = match r.below(16) {
            0 => Entry::Prefailed(failure(99)),
            1 if index > 0 => Entry::DuplicateOf(r.below(index as u64) as usize),
            _ => Entry::Launches(launches),
        };
        entries.push(entry);
        truths.push(truth);
    }
    let options = RankOptions {
        top_k: if r.one_in(5) {
            None
        } else {
            NonZeroUsize::new(1 + r.below(5) as usize)
        },
        cycle_budget: r.one_in(4).then(|| r.below(spread + 2)),
    };
    Set {
        entries,
        truths,
        options,
    }
}

/// A run under a budget, as the engine does it: it acts in steps below the budget only.
fn engine(truth: &Truth, budget: Option<u64>, code: u64) -> Outcome {
    let budget = budget.unwrap_or(u64::MAX);
    match truth.fails {
        Some((_, FailedAt::Start)) => Outcome::Failed(failure(code), FailedAt::Start),
        Some((step, at)) if step < budget => Outcome::Failed(failure(code), at),
        Some(_) => Outcome::Exceeded,
        None if truth.cycles <= budget => Outcome::Done(truth.cycles),
        None => Outcome::Exceeded,
    }
}

/// The ranking without pruning, written down plainly: per candidate its score or not.
fn scores(set: &Set) -> Vec<Option<u128>> {
    set.entries
        .iter()
        .zip(&set.truths)
        .map(|(entry, truths)| {
            let Entry::Launches(launches) = entry else {
                return None;
            };
            if launches.is_empty() {
                return None;
            }
            let mut score = 0u128;
            for (l, t) in launches.iter().zip(truths) {
                let own = l.cycle_budget.unwrap_or(u64::MAX);
                let own = own.min(set.options.cycle_budget.unwrap_or(u64::MAX));
                if t.fails.is_some() || t.cycles > own {
                    return None;
                }
                score += u128::from(l.weight) * u128::from(t.cycles);
            }
            Some(score)
        })
        .collect()
}

/// Drives a ranking with random workers.
fn drive(set: &Set, r: &mut Random) -> (RankResult, u64) {
    // Some totals are remembered from the start.
    let remembered = [0, 0, 3, 10][r.below(4) as usize];
    let mut entries = set.entries.clone();
    for (entry, truths) in entries.iter_mut().zip(&set.truths) {
        if let Entry::Launches(launches) = entry {
            for (launch, truth) in launches.iter_mut().zip(truths) {
                if truth.fails.is_none() && r.below(10) < remembered {
                    launch.known = Some(truth.cycles);
                }
            }
        }
    }
    let mut ranking = Ranking::new(entries, set.options);
    let mut early: BTreeMap<usize, Status> = BTreeMap::new();
    let workers = 1 + r.below(6) as usize;
    // How ready this host's cache is.
    let cached = [0, 0, 2, 5][r.below(4) as usize];
    let mut cache: BTreeMap<(usize, usize), bool> = BTreeMap::new();
    // Jobs with the step they have reached and their start budget.
    let mut running: Vec<(Job, u64)> = Vec::new();
    let mut jobs = 0;
    loop {
        while running.len() < workers && !r.one_in(4) {
            let Some(job) = ranking.next() else { break };
            jobs += 1;
            running.push((job, 0));
        }
        if running.is_empty() {
            if ranking.is_finished() {
                break;
            }
            continue;
        }
        let at = r.below(running.len() as u64) as usize;
        let (job, step) = running[at];
        let truth = set.truths[job.candidate][job.launch];
        let code = (job.candidate * 10 + job.launch) as u64;
        let hit = cached > 0
            && *cache
                .entry((job.candidate, job.launch))
                .or_insert_with(|| r.below(6) < cached);
        let outcome = if hit && !(job.recheck && truth.fails.is_some()) {
            // Remembered from an unlimited run. The budget may have had no part in it.
            Some(match engine(&truth, None, code) {
                Outcome::Failed(f, FailedAt::Unknown) => Outcome::Failed(f, FailedAt::Remembered),
                other => other,
            })
        } else {
            // It goes on for a while, and looks whether it should stop.
            let end = truth.fails.map_or(truth.cycles, |f| f.0);
            let step = step + 1 + r.below(20);
            let limit = ranking.budget_of(&job);
            assert!(limit.unwrap_or(u64::MAX) <= job.cycle_budget.unwrap_or(u64::MAX));
            if step >= end || r.one_in(3) {
                Some(engine(&truth, job.cycle_budget, code))
            } else if limit.is_some_and(|l| step > l) {
                Some(Outcome::Exceeded)
            } else {
                running[at].1 = step;
                None
            }
        };
        if let Some(outcome) = outcome {
            running.swap_remove(at);
            ranking.report(&job, outcome);
            early.extend(ranking.settled());
        }
    }
    let result = ranking.finish();
    for (index, status) in early {
        assert_eq!(status, result.statuses[index], "{index} of {set:?}");
    }
    (result, jobs)
}

#[test]
fn every_schedule_gives_one_result_and_the_first_k_of_the_full_ranking() {
    let total: u64 = std::env::var("TILESIM_RANDOM_CASES").map_or(20_000, |n| n.parse().unwrap());
    let (mut pruned, mut ok, mut failed, mut over, mut saved, mut all) = (0, 0, 0, 0, 0, 0);
    for seed in 0..total {
        let mut r = Random(seed);
        let set = set(&mut r);
        let (first, _) = drive(&set, &mut r);
        assert!(first.complete, "seed {seed}");
        for _ in 0..4 {
            let (other, _) = drive(&set, &mut r);
            assert_eq!(other, first, "seed {seed}: {set:?}");
        }
        // Against the ranking without pruning.
        let scores = scores(&set);
        let mut full: Vec<(u128, usize)> = scores
            .iter()
            .enumerate()
            .filter_map(|(i, s)| Some(((*s)?, i)))
            .collect();
        full.sort_unstable();
        let k = set.options.top_k.map_or(usize::MAX, NonZeroUsize::get);
        let top: Vec<(u128, usize)> = first
            .order
            .iter()
            .filter(|p| p.in_top)
            .map(|p| (p.score, p.candidate))
            .collect();
        let want: Vec<(u128, usize)> = full.iter().copied().take(k).collect();
        assert_eq!(top, want, "seed {seed}: {set:?}");
        // What is kept beyond the first k ties with the k-th; what is pruned is worse than it.
        let kth = full.get(k.wrapping_sub(1)).map(|s| s.0);
        assert_eq!(first.kth_score, kth, "seed {seed}");
        for (index, status) in first.statuses.iter().enumerate() {
            match status {
                Status::Ok { score, .. } => {
                    ok += 1;
                    assert_eq!(Some(*score), scores[index], "seed {seed}");
                    assert!(kth.is_none_or(|k| *score <= k), "seed {seed}");
                }
                Status::Pruned { bound, why } => {
                    pruned += 1;
                    let kth = kth.unwrap();
                    assert!(scores[index].is_none_or(|s| s > kth), "seed {seed}");
                    assert_eq!(*why == PruneReason::Bound, *bound > kth, "seed {seed}");
                }
                Status::Failed(_) => failed += 1,
                Status::OverBudget { .. } => over += 1,
                Status::DuplicateOf(_) => {}
                Status::Cancelled => panic!("seed {seed}: {index} is cancelled: {set:?}"),
            }
            if !matches!(status, Status::Ok { .. }) {
                assert!(
                    scores[index].is_none_or(|s| kth.is_some_and(|k| s > k)),
                    "seed {seed}"
                );
            }
        }
        // And what it saves.
        let mut one = Random(seed);
        let (_, jobs) = drive(
            &Set {
                options: RankOptions {
                    top_k: NonZeroUsize::new(1),
                    ..set.options
                },
                ..set.clone()
            },
            &mut one,
        );
        let launches: usize = set.truths.iter().map(Vec::len).sum();
        saved += (launches as u64).saturating_sub(jobs);
        all += launches as u64;
    }
    println!(
        "ok {ok}, pruned {pruned}, failed {failed}, over budget {over}; top 1 leaves out {saved} of {all} launches"
    );
    assert!(ok > 0 && pruned > 0 && failed > 0 && over > 0);
}

#[test]
fn the_order_of_candidates_decides_ties_only() {
    for seed in 0..3000 {
        let mut r = Random(seed);
        let mut set = set(&mut r);
        // Duplicates name an index; leave them out.
        for (entry, truths) in set.entries.iter_mut().zip(&mut set.truths) {
            if matches!(entry, Entry::DuplicateOf(_)) {
                *entry = Entry::Prefailed(failure(0));
                truths.clear();
            }
        }
        let (before, _) = drive(&set, &mut r);
        let mut shuffled: Vec<usize> = (0..set.entries.len()).collect();
        for i in (1..shuffled.len()).rev() {
            shuffled.swap(i, r.below(i as u64 + 1) as usize);
        }
        let other = Set {
            entries: shuffled.iter().map(|&i| set.entries[i].clone()).collect(),
            truths: shuffled.iter().map(|&i| set.truths[i].clone()).collect(),
            options: set.options,
        };
        let (after, _) = drive(&other, &mut r);
        let scores = |r: &RankResult| -> Vec<(u128, usize)> {
            r.order.iter().map(|p| (p.score, p.tie_group)).collect()
        };
        assert_eq!(scores(&before), scores(&after), "seed {seed}");
        for (now, &was) in shuffled.iter().enumerate() {
            let (a, b) = (&after.statuses[now], &before.statuses[was]);
            match (a, b) {
                // Errors of the test name the candidate.
                (Status::Failed(_), Status::Failed(_)) => {}
                _ => assert_eq!(a, b, "seed {seed}"),
            }
        }
    }
}

fn one(weight: u64, bound: u64) -> Entry {
    Entry::Launches(vec![LaunchEntry {
        weight,
        bound,
        cycle_budget: None,
        known: None,
    }])
}

#[test]
fn places_ties_and_margins() {
    let entries = vec![one(1, 0), one(1, 0), one(2, 0), one(1, 0)];
    let mut ranking = Ranking::new(entries, RankOptions::default());
    let cycles = [30u64, 10, 15, 10];
    while let Some(job) = ranking.next() {
        assert_eq!(job.cycle_budget, None);
        ranking.report(&job, Outcome::Done(cycles[job.candidate]));
    }
    let result = ranking.finish();
    let order: Vec<(usize, u128, usize)> = result
        .order
        .iter()
        .map(|p| (p.candidate, p.score, p.tie_group))
        .collect();
    assert_eq!(order, [(1, 10, 0), (3, 10, 0), (0, 30, 1), (2, 30, 1)]);
    let p = &result.order[1];
    assert_eq!(
        (p.to_next, p.next_ratio, p.behind_best, p.best_ratio),
        (Some(20), Some(3.0), 0, Some(1.0))
    );
    assert_eq!(result.order[3].to_next, None);
}

#[test]
fn jobs_start_by_bound_and_stop_at_the_best() {
    let entries = vec![one(1, 50), one(1, 20), one(3, 10), one(1, 101)];
    let options = RankOptions {
        top_k: NonZeroUsize::new(1),
        cycle_budget: None,
    };
    let mut ranking = Ranking::new(entries, options);
    let first = ranking.next().unwrap();
    let second = ranking.next().unwrap();
    assert_eq!((first.candidate, second.candidate), (1, 2));
    ranking.report(&first, Outcome::Done(100));
    // 3 x 33 is still below 100, 3 x 34 is not.
    assert_eq!(ranking.budget_of(&second), Some(33));
    let third = ranking.next().unwrap();
    assert_eq!((third.candidate, third.cycle_budget), (0, Some(100)));
    assert!(ranking.next().is_none());
    ranking.report(&second, Outcome::Exceeded);
    ranking.report(&third, Outcome::Done(100));
    assert!(ranking.is_finished());
    let result = ranking.finish();
    assert!(result.complete);
    let top: Vec<(usize, bool)> = result
        .order
        .iter()
        .map(|p| (p.candidate, p.in_top))
        .collect();
    assert_eq!(
        top,
        [(0, true), (1, false)],
        "equal scores: the lower index"
    );
    assert_eq!(
        result.statuses[3],
        Status::Pruned {
            bound: 101,
            why: PruneReason::Bound
        }
    );
    assert_eq!(
        result.statuses[2],
        Status::Pruned {
            bound: 30,
            why: PruneReason::Passed
        }
    );
}

#[test]
fn scores_do_not_overflow() {
    let entries = vec![one(u64::MAX, 0), one(u64::MAX, 0)];
    let mut ranking = Ranking::new(entries, RankOptions::default());
    while let Some(job) = ranking.next() {
        ranking.report(&job, Outcome::Done(u64::MAX - job.candidate as u64));
    }
    let result = ranking.finish();
    assert_eq!(result.order[0].candidate, 1);
    assert_eq!(result.order[0].to_next, Some(u64::MAX.into()));
}

#[test]
fn cancelling_keeps_what_is_known() {
    let mut ranking = Ranking::new(
        vec![one(1, 0), one(1, 1), one(1, 2)],
        RankOptions::default(),
    );
    let job = ranking.next().unwrap();
    let stopped = ranking.next().unwrap();
    ranking.report(&job, Outcome::Done(5));
    ranking.cancel();
    assert!(ranking.next().is_none());
    ranking.report(&stopped, Outcome::Cancelled);
    let result = ranking.finish();
    assert!(!result.complete);
    assert_eq!(
        result.statuses[0],
        Status::Ok {
            score: 5,
            cycles: vec![5]
        }
    );
    assert_eq!(result.statuses[1..], [Status::Cancelled, Status::Cancelled]);
}
