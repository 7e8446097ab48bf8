//! Rankings of real launches: pruning leaves the first k as they are, and work undone.

#![allow(clippy::expect_used)]
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod cases;

use std::num::NonZeroUsize;
use std::ops::ControlFlow;

use tilesim_core::machine::Machine;
use tilesim_core::rank::{Candidate, CandidateLaunch, Failure, RankOptions, Status, run};
use tilesim_core::{Launch, Progress, Watch};
use tilesim_traces::{LaunchArgs, ValidTrace, load_bytes, validate};

#[test]
fn random_launches_rank_the_same_with_and_without_pruning() {
    let (mut sets, mut pruned) = (0, 0);
    for first in (0..1200u64).step_by(12) {
        let mut traces: Vec<ValidTrace> = Vec::new();
        let mut machines: Vec<Machine> = Vec::new();
        let mut candidates = Vec::new();
        for seed in first..first + 12 {
            let case = cases::case(seed, true);
            let Ok(trace) = validate(case.trace) else {
                continue;
            };
            traces.push(trace);
            machines.push(case.machine);
            let at = traces.len() - 1;
            let launch = Launch {
                args: case.args,
                ..Launch::default()
            };
            let one = |weight| CandidateLaunch {
                weight,
                launch: launch.clone(),
                trace: at,
                machine: at,
            };
            let launches = match seed % 5 {
                0 => vec![one(1), one(2)],
                1 => vec![one(1 + seed % 3)],
                _ => vec![one(1)],
            };
            candidates.push(Candidate {
                key: format!("seed {seed}"),
                launches: Ok(launches),
            });
        }
        candidates.push(candidates[0].clone());
        let gone = Failure {
            code: "x".into(),
            path: String::new(),
            message: String::new(),
            hint: None,
        };
        candidates.push(Candidate {
            key: "gone".into(),
            launches: Err(gone),
        });
        let full = run(
            &candidates,
            &traces,
            &machines,
            RankOptions::default(),
            &mut (),
        );
        assert!(full.complete);
        assert_eq!(full.statuses[candidates.len() - 2], Status::DuplicateOf(0));
        for k in [1, 3] {
            let options = RankOptions {
                top_k: NonZeroUsize::new(k),
                cycle_budget: None,
            };
            let some = run(&candidates, &traces, &machines, options, &mut ());
            assert!(some.complete, "{first}");
            let top = |r: &tilesim_core::rank::RankResult| -> Vec<(usize, u128)> {
                r.order
                    .iter()
                    .take(k)
                    .map(|p| (p.candidate, p.score))
                    .collect()
            };
            assert_eq!(top(&full), top(&some), "{first}");
            for (a, b) in full.statuses.iter().zip(&some.statuses) {
                match b {
                    Status::Pruned { .. } => pruned += 1,
                    _ => assert_eq!(a, b, "{first}"),
                }
            }
        }
        sets += 1;
    }
    println!("{sets} sets, {pruned} candidates pruned");
    assert!(pruned > sets);
}

/// A matmul's tile sizes, ragged edges included.
#[test]
fn tile_sizes_are_pruned_by_their_bounds() {
    struct Count(u64);
    impl Watch for Count {
        fn poll(&mut self, _: &Progress) -> ControlFlow<()> {
            self.0 += 1;
            ControlFlow::Continue(())
        }
    }
    let machine = Machine::preset("tpuv3_simple_dram").unwrap();
    let (mut traces, mut candidates) = (Vec::new(), Vec::new());
    for (m, n, k) in [
        (32, 32, 32),
        (64, 64, 64),
        (128, 128, 64),
        (128, 64, 128),
        (256, 128, 128),
        (64, 256, 64),
        (16, 16, 64),
    ] {
        let cycles = (m * n * k) / (128 * 128) + 40;
        let text = format!(
            "tilesim trace 1\nkernel \"mm\"\naxes 2\nparam M\nparam N\nparam K\n\
             tensor a: 32 bit in [M, K]\ntensor b: 32 bit in [K, N]\ntensor c: 32 bit out [M, N]\n\
             buffer x {x}\nbuffer y {y}\nbuffer z {z}\ntile t cycles {cycles}\n\
             body {{\n  for k in 0..(K + {k} - 1) / {k} {{\n\
               load a[p0 * {m} * K + k * {k}] dims [{m}: K valid min({m}, M - p0 * {m}), {k}: 1 valid min({k}, K - k * {k})] async 0 writes [x]\n\
               load b[k * {k} * N + p1 * {n}] dims [{k}: N valid min({k}, K - k * {k}), {n}: 1 valid min({n}, N - p1 * {n})] async 0 writes [y]\n\
               wait 0 for {e}\n  compute t vector reads [x, y, z] writes [z]\n }}\n\
             store c[p0 * {m} * N + p1 * {n}] dims [{m}: N valid min({m}, M - p0 * {m}), {n}: 1 valid min({n}, N - p1 * {n})] reads [z]\n}}\n",
            x = m * k * 4,
            y = k * n * 4,
            z = m * n * 4,
            e = m * k + k * n,
        );
        traces
            .push(load_bytes("mm.tile", text.as_bytes()).unwrap_or_else(|e| panic!("{e}\n{text}")));
        let (big_m, big_n): (u64, u64) = (500, 300);
        let params = [("M", 500), ("N", 300), ("K", 200)].map(|(n, v)| (n.to_string(), v));
        let args = LaunchArgs {
            grid: vec![big_m.div_ceil(m), big_n.div_ceil(n)],
            params: params.into(),
            ..LaunchArgs::default()
        };
        let launch = Launch {
            args,
            ..Launch::default()
        };
        let launches = vec![CandidateLaunch {
            weight: 1,
            launch,
            trace: traces.len() - 1,
            machine: 0,
        }];
        candidates.push(Candidate {
            key: format!("{m}x{n}x{k}"),
            launches: Ok(launches),
        });
    }
    let machines = [machine];
    let mut full_polls = Count(0);
    let full = run(
        &candidates,
        &traces,
        &machines,
        RankOptions::default(),
        &mut full_polls,
    );
    let mut polls = Count(0);
    let options = RankOptions {
        top_k: NonZeroUsize::new(1),
        cycle_budget: None,
    };
    let top = run(&candidates, &traces, &machines, options, &mut polls);
    for (c, (a, b)) in candidates
        .iter()
        .zip(full.statuses.iter().zip(&top.statuses))
    {
        println!("{:<12} {a:?} {b:?}", c.key);
    }
    println!("{} polls of {}", polls.0, full_polls.0);
    assert_eq!(full.order.len(), candidates.len());
    assert_eq!(full.order[0].candidate, top.order[0].candidate);
    assert!(polls.0 * 2 < full_polls.0);
}
