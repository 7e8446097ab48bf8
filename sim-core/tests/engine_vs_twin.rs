//! The engine against the naive twin on random programs and machines: equal to the cycle, and the
//! same refusals and deadlocks.
//!
//! `TILESIM_RANDOM_CASES` sets how many cases are run.

#![allow(clippy::expect_used)]
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod cases;
mod twin;

use tilesim_core::{Launch, SimError, simulate};
use twin::TwinError;
use twin::launch::simulate as simulate_twin;

fn how_many(default: u64) -> u64 {
    std::env::var("TILESIM_RANDOM_CASES").map_or(default, |n| n.parse().unwrap())
}

/// `numa`: per core, requests to its own partition of the channels and to the others.
fn figures(cycles: u64, requests: u64, numa: &[[u64; 2]]) -> String {
    format!("{cycles} cycles, {requests} requests, {numa:?} local and remote")
}

#[test]
fn engine_and_twin_agree() {
    let mut wrong = Vec::new();
    for seed in 0..how_many(3000) {
        let case = cases::case(seed, true);
        let want = match simulate_twin(&case.machine, &case.trace, &case.args) {
            Ok(r) => figures(r.cycles, r.dram_requests, &r.numa),
            Err(TwinError::Deadlock { .. }) => "deadlock".to_string(),
            Err(TwinError::Refused { .. }) => "refused".to_string(),
            Err(TwinError::Trace(e)) => e.to_string(),
        };
        let trace = tilesim_traces::validate(case.trace.clone()).unwrap();
        let launch = Launch {
            args: case.args.clone(),
            ..Launch::default()
        };
        let got = match simulate(&case.machine, &trace, &launch, &mut ()) {
            Ok(r) => {
                for core in &r.cores {
                    let stack: u64 = r
                        .cycle_stack
                        .iter()
                        .filter(|e| e.core == core.id)
                        .map(|e| e.cycles)
                        .sum();
                    assert_eq!(
                        stack, r.cycles,
                        "seed {seed}: the cycle stack sums to the total"
                    );
                    for unit in &core.units {
                        assert_eq!(
                            unit.active + unit.idle,
                            r.cycles,
                            "seed {seed}: {}",
                            unit.unit
                        );
                    }
                }
                let numa: Vec<_> = r.dram.numa.iter().map(|n| [n.local, n.remote]).collect();
                figures(r.cycles, r.dram_requests, &numa)
            }
            Err(SimError::Deadlock(d)) => {
                assert!(
                    !d.blocked.is_empty(),
                    "seed {seed}: a deadlock names what is blocked"
                );
                "deadlock".to_string()
            }
            Err(SimError::Item { .. }) => "refused".to_string(),
            Err(e) => format!("{e}"),
        };
        if got != want {
            wrong.push(format!("seed {seed}: twin {want}, engine {got}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} cases differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
