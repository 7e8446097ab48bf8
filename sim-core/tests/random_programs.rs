//! The twin on random programs: what must hold whatever a program does.
//!
//! `TILESIM_RANDOM_CASES` sets how many cases are run.

#![allow(clippy::expect_used)]
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod cases;
mod twin;

use std::collections::BTreeMap;

use twin::launch::simulate;
use twin::{Refusal, TwinError};

fn how_many(default: u64) -> u64 {
    std::env::var("TILESIM_RANDOM_CASES").map_or(default, |n| n.parse().unwrap())
}

#[test]
fn random_programs_run_deadlock_or_are_refused() {
    let total = how_many(400);
    let mut ends: BTreeMap<&str, u64> = BTreeMap::new();
    let mut sum: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in 0..total {
        let recipe = cases::recipe(seed, true);
        let case = recipe.case();
        case.machine.check().unwrap();
        let result = simulate(&case.machine, &case.trace, &case.args);
        let end = match &result {
            Ok(report) => {
                let work: u64 = report.cores.iter().map(|c| c.items).sum();
                assert_eq!(work, case.args.grid.iter().product::<u64>(), "seed {seed}");
                let sent: u64 = report.cores.iter().map(|c| c.requests).sum();
                assert_eq!(sent, report.dram_requests, "seed {seed}");
                for core in &report.cores {
                    assert!(core.dma_active <= report.cycles, "seed {seed}");
                }
                for (what, n) in [
                    ("cycles", report.cycles),
                    ("requests", report.dram_requests),
                    ("ops", report.issues.len() as u64),
                    ("waits", report.cores.iter().map(|c| c.waits).sum()),
                    (
                        "zero-cost tiles",
                        report.cores.iter().map(|c| c.zero_cost).sum(),
                    ),
                    ("no requests", u64::from(report.dram_requests == 0)),
                ] {
                    *sum.entry(what).or_default() += n;
                }
                "ok"
            }
            Err(TwinError::Deadlock { .. }) => "deadlock",
            Err(TwinError::Refused { why, .. }) => match why {
                Refusal::NobodySignals => "nobody signals",
                Refusal::WrongCount { .. } => "wrong count",
                Refusal::NeverWaitedFor => "never waited for",
                Refusal::ReadBeforeWait { .. } => "read before wait",
                other => panic!("seed {seed}: {other:?}"),
            },
            Err(TwinError::Trace(e)) => panic!("seed {seed}: {e}"),
        };
        if recipe.flaw.is_none() {
            assert!(
                matches!(end, "ok" | "deadlock"),
                "seed {seed}: {end} without a flaw"
            );
        }
        *ends.entry(end).or_default() += 1;
    }
    println!("{ends:?}; {sum:?}");
    assert!(ends["ok"] * 2 > total, "most programs must run: {ends:?}");
    assert!(
        ends.contains_key("deadlock"),
        "some programs must deadlock: {ends:?}"
    );
}

#[test]
fn the_twin_is_deterministic() {
    for seed in 0..20 {
        let case = cases::case(seed, true);
        let once = simulate(&case.machine, &case.trace, &case.args);
        assert_eq!(once, simulate(&case.machine, &case.trace, &case.args));
    }
}

#[test]
fn what_a_case_shrinks_to_is_a_case() {
    use proptest::strategy::{Strategy, ValueTree};
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    for _ in 0..20 {
        let mut tree = cases::recipes(true).new_tree(&mut runner).unwrap();
        for step in 0..200 {
            // Both answers a shrinking run may give.
            let moved = if step % 3 == 2 {
                tree.complicate()
            } else {
                tree.simplify()
            };
            let recipe = tree.current();
            let case = recipe.case();
            let result = simulate(&case.machine, &case.trace, &case.args);
            if recipe.flaw.is_none() {
                let legal = matches!(result, Ok(_) | Err(TwinError::Deadlock { .. }));
                assert!(legal, "{result:?} of {recipe:?}");
            }
            if !moved && step % 3 != 2 {
                break;
            }
        }
    }
}
