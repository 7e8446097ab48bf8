//! `lower_bound` is never above what the simulation gives, and how close it comes.
//!
//! `TILESIM_RANDOM_CASES` sets how many random cases are run; `TILESIM_GOLDEN_ALL=1` also simulates
//! golden rows of more than a million requests (else the reference's figure stands in for them where
//! it is exact).

#![allow(clippy::expect_used)]
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod cases;

use std::ops::ControlFlow;
use std::path::PathBuf;

use tilesim_core::machine::import::ImportOptions;
use tilesim_core::machine::{
    ComputeIssue, DispatchPolicy, Machine, NocSpec, ReplyPort, Residency, load,
};
use tilesim_core::noc::{FlitNetworkSpec, NetworkParams, Topology};
use tilesim_core::{
    Launch, LowerBound, Progress, SimError, Watch, lower_bound, lower_bound_within, simulate,
};
use tilesim_traces::{Bound, LaunchArgs, ValidTrace, json, validate};

fn how_many(default: u64) -> u64 {
    std::env::var("TILESIM_RANDOM_CASES").map_or(default, |n| n.parse().unwrap())
}

fn golden(path: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/golden")
        .join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn machine(name: &str) -> Machine {
    let text = golden(&format!("pytorchsim/configs/{name}.yml"));
    let files = |path: &str| -> Result<String, String> {
        let path = path.trim_start_matches("../configs/");
        Ok(golden(&format!("pytorchsim/configs/{path}")))
    };
    load(name, &text, &files, ImportOptions::default())
        .unwrap()
        .machine
}

fn trace(text: &str) -> ValidTrace {
    validate(json::import(text, &json::no_files).unwrap().trace).unwrap()
}

fn launch(grid: &str) -> Launch {
    let args = LaunchArgs {
        grid: grid.split('x').map(|n| n.parse().unwrap()).collect(),
        ..LaunchArgs::default()
    };
    Launch {
        args,
        ..Launch::default()
    }
}

/// Simulates and compares; the ratio of bound and total if there is a total.
fn check(what: &str, machine: &Machine, trace: &ValidTrace, launch: &Launch) -> Option<f64> {
    let total = simulate(machine, trace, launch, &mut ()).ok()?.cycles;
    let bound = lower_bound(machine, trace, launch).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(bound.cycles <= total, "{what}: {total} but {bound:?}");
    let limits = &launch.options.limits;
    let placed = Bound::new(trace, &launch.args, limits).unwrap();
    for classes in [0, 2] {
        let coarse = lower_bound_within(machine, &placed, &launch.options, classes).unwrap();
        assert!(
            coarse.cycles <= total,
            "{what}, {classes} classes: {total} but {coarse:?}"
        );
    }
    if total < 2_000 {
        check_budget(what, machine, trace, launch, total);
    }
    assert_eq!(
        bound.cycles,
        bound.components.iter().map(|c| c.cycles).max().unwrap_or(0)
    );
    Some(bound.cycles as f64 / total.max(1) as f64)
}

/// A budget of one more than its total lets a run through, one of one less does not: what pruning
/// relies on. (With the total itself a run may be stopped: its last step may be one that does not
/// count.)
fn check_budget(what: &str, machine: &Machine, trace: &ValidTrace, launch: &Launch, total: u64) {
    struct Furthest(u64);
    impl Watch for Furthest {
        fn poll(&mut self, p: &Progress) -> ControlFlow<()> {
            self.0 = self.0.max(p.cycle);
            ControlFlow::Continue(())
        }
    }
    let mut launch = launch.clone();
    launch.options.cycle_budget = Some(total + 1);
    let mut furthest = Furthest(0);
    let same = simulate(machine, trace, &launch, &mut furthest).map(|r| r.cycles);
    assert_eq!(same, Ok(total), "{what}");
    assert!(furthest.0 <= total + 1, "{what}");
    launch.options.cycle_budget = Some(total - 1);
    let over = simulate(machine, trace, &launch, &mut ());
    assert!(matches!(over, Err(SimError::OverBudget { .. })), "{what}");
}

/// Machines that differ from a case's own in what a bound must follow.
fn variants(seed: u64, machine: &Machine) -> Vec<Machine> {
    let mut all = vec![machine.clone()];
    let mut other = machine.clone();
    other.cores.compute_issue = match other.cores.compute_issue {
        ComputeIssue::Serial => ComputeIssue::PerUnit,
        ComputeIssue::PerUnit => ComputeIssue::Serial,
    };
    other.dispatch = match other.dispatch {
        DispatchPolicy::RoundRobin => DispatchPolicy::Dynamic,
        DispatchPolicy::Dynamic => DispatchPolicy::RoundRobin,
    };
    all.push(other);
    let mut other = machine.clone();
    other.cores.residency = Residency::Shared { max: 4 };
    other.cores.injection_ports = 1;
    other.clocks.truncate_to_ps = !other.clocks.truncate_to_ps;
    all.push(other);
    // Banked DRAM with its own reply ports, and a network of flits.
    let mut other = machine.clone();
    let banked = Machine::preset(["tpuv3", "tpuv4", "tpuv6e"][seed as usize % 3]).unwrap();
    other.dram = banked.dram;
    other.dram.channels = machine.dram.channels;
    other.dram.channel_map = machine.dram.channel_map;
    other.clocks.dram_khz = banked.clocks.dram_khz;
    if seed.is_multiple_of(2) {
        other.dram.reply_port = ReplyPort::InnerLine;
    }
    all.push(other);
    let mut other = machine.clone();
    let ports = other.cores.count * other.cores.injection_ports + other.dram.channels;
    let mut params = NetworkParams::new(Topology::Crossbar { ports });
    params.router.routing_delay = (seed % 3) as u32;
    let network = FlitNetworkSpec::try_from(params).unwrap();
    other.noc = NocSpec::Flit {
        network: Box::new(network),
    };
    all.push(other);
    all
}

#[test]
fn never_above_the_total_on_random_programs() {
    let total = how_many(3000);
    let (mut rows, mut logs) = (0u64, 0.0);
    for seed in 0..total {
        let case = cases::case(seed, true);
        let Ok(trace) = validate(case.trace) else {
            continue;
        };
        let args = case.args;
        for (k, machine) in variants(seed, &case.machine).iter().enumerate() {
            // Some with a larger grid: more waves, more boxes.
            let mut args = args.clone();
            if seed % 3 == 1 {
                args.grid.iter_mut().for_each(|n| *n = *n * 3 + 1);
            }
            let launch = Launch {
                args,
                ..Launch::default()
            };
            if let Some(ratio) = check(
                &format!("seed {seed} machine {k}"),
                machine,
                &trace,
                &launch,
            ) {
                rows += 1;
                logs += ratio.max(1e-9).ln();
            }
        }
    }
    println!(
        "{rows} launches, geometric mean of bound / total {:.3}",
        (logs / rows as f64).exp()
    );
    assert!(rows > total);
}

#[test]
fn never_above_the_total_on_random_rows() {
    let programs: Vec<String> = golden("togsim/random/programs.jsonl")
        .lines()
        .map(String::from)
        .collect();
    let (mut rows, mut logs) = (0, 0.0);
    for line in golden("togsim/random/golden.csv").lines().skip(1) {
        let row: Vec<&str> = line.split(',').collect();
        let Ok(total) = row[3].parse::<u64>() else {
            continue;
        };
        let start = format!("{{\"name\": \"{}\",", row[0]);
        let text = programs.iter().find(|p| p.starts_with(&start)).unwrap();
        let bound = lower_bound(&machine(row[2]), &trace(text), &launch(row[1])).unwrap();
        assert!(bound.cycles <= total, "{line}: {bound:?}");
        rows += 1;
        logs += (bound.cycles as f64 / total as f64).ln();
    }
    println!(
        "{rows} rows, geometric mean of bound / total {:.3}",
        (logs / f64::from(rows)).exp()
    );
}

/// Every program on every machine file, small grids.
#[test]
fn never_above_the_total_on_all_machine_files() {
    let mut rows = 0;
    for entry in std::fs::read_dir(
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/pytorchsim/configs"),
    )
    .unwrap()
    {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let Some(name) = name.strip_suffix(".yml") else {
            continue;
        };
        let text = golden(&format!("pytorchsim/configs/{name}.yml"));
        let files = |path: &str| -> Result<String, String> {
            let path = path.trim_start_matches("../configs/");
            let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
            std::fs::read_to_string(root.join("../tests/golden/pytorchsim/configs").join(path))
                .map_err(|e| e.to_string())
        };
        let Ok(loaded) = load(name, &text, &files, ImportOptions::default()) else {
            continue;
        };
        for (program, grids) in [
            ("vecadd_sync", ["1", "37"]),
            ("vecadd_async_big", ["1", "3"]),
            ("gemm_256", ["1x1", "3x2"]),
            ("int8_bytes", ["1", "5"]),
            ("row_conflict", ["1", "3"]),
            ("many_small_loads", ["1", "3"]),
            ("softmax_rows", ["1", "9"]),
            ("zero_cost_tiles", ["1", "33"]),
            ("chain_reduce", ["1", "3"]),
            ("preload_ahead", ["1", "2"]),
            ("large_grid", ["1", "100"]),
        ] {
            let trace = trace(&golden(&format!("togsim/programs/{program}.json")));
            for grid in grids {
                let mut launch = launch(grid);
                launch.options.allow_cost_mismatch = true;
                let what = format!("{program} {grid} {name}");
                rows += u32::from(check(&what, &loaded.machine, &trace, &launch).is_some());
            }
        }
    }
    println!("{rows} launches");
    assert!(rows > 300, "{rows}");
}

/// What the golden rows' bounds come to: bound / total, geometric mean per machine. Raise these when
/// the bound gets better.
const TIGHTNESS: &[(&str, f64)] = &[
    ("tpuv3_simple_dram", 0.917),
    ("tpuv3_simple_dram_c2", 0.851),
    ("tpuv3_simple_dram_clocks", 0.917),
    ("tpuv3_simple_dram_32ch", 0.891),
    ("tpuv3_simple_dram_4ch", 0.921),
    ("systolic_ws_128x128_c1_simple_noc_tpuv3", 0.665),
    ("systolic_ws_256x256_c1_simple_noc_tpuv6e", 0.66),
    ("systolic_ws_128x128_c2_simple_noc_tpuv3", 0.745),
    ("systolic_ws_128x128_c1_booksim_tpuv3", 0.79),
    ("all", 0.81),
];

#[test]
fn tightness_on_golden_rows() {
    let all = std::env::var_os("TILESIM_GOLDEN_ALL").is_some();
    let mut groups: Vec<(String, f64, u32)> = Vec::new();
    for line in golden("togsim/golden.csv").lines().skip(1) {
        let row: Vec<&str> = line.split(',').collect();
        let (reference, requests): (u64, u64) = (row[3].parse().unwrap(), row[4].parse().unwrap());
        let (machine, trace) = (
            machine(row[2]),
            trace(&golden(&format!("togsim/programs/{}.json", row[0]))),
        );
        let launch = launch(row[1]);
        let bound: LowerBound = lower_bound(&machine, &trace, &launch).unwrap();
        // The engine equals the reference on simple DRAM, and is close on banked DRAM.
        let exact = row[2].starts_with("tpuv3_simple_dram");
        let total = if exact && !all {
            reference
        } else if requests <= 600_000 || all {
            simulate(&machine, &trace, &launch, &mut ()).unwrap().cycles
        } else {
            continue;
        };
        assert!(bound.cycles <= total, "{line}: {bound:?}");
        let ratio = bound.cycles as f64 / total as f64;
        let binding = bound.binding.map_or("none", |r| r.name());
        println!(
            "{ratio:.3} {:<22} {:>5} {:<42} {total:>8} {:>8} {binding}",
            row[0], row[1], row[2], bound.cycles
        );
        match groups.iter_mut().find(|g| g.0 == row[2]) {
            Some(g) => {
                g.1 += ratio.ln();
                g.2 += 1;
            }
            None => groups.push((row[2].to_string(), ratio.ln(), 1)),
        }
    }
    let (mut logs, mut rows) = (0.0, 0);
    for (name, log, n) in &groups {
        println!("{:.3} {name} ({n} rows)", (log / f64::from(*n)).exp());
        logs += log;
        rows += n;
    }
    println!("{:.3} all ({rows} rows)", (logs / f64::from(rows)).exp());
    for (name, least) in TIGHTNESS {
        let (log, n) = match *name {
            "all" => (logs, rows),
            _ => groups
                .iter()
                .find(|g| g.0 == *name)
                .map(|g| (g.1, g.2))
                .unwrap(),
        };
        let mean = (log / f64::from(n)).exp();
        assert!(mean >= *least, "{name}: {mean} was {least}");
    }
}
