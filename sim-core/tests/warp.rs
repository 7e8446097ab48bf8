//! Jumping over work that repeats changes no figure: every report equals the one of the full run,
//! but for the line that says how it came about.

#![allow(clippy::expect_used)]
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod cases;
mod twin;

use std::path::PathBuf;

use tilesim_core::machine::{BankedDevice, ChannelMap, DramModel, Machine};
use tilesim_core::report::Exactness;
use tilesim_core::{Launch, Report, SimError, simulate};
use tilesim_traces::{LaunchArgs, ValidTrace, json, validate};

/// Both ways; how many work-items were jumped over.
fn both(
    machine: &Machine,
    trace: &ValidTrace,
    args: &LaunchArgs,
) -> (Result<Report, SimError>, u64) {
    let mut launch = Launch {
        args: args.clone(),
        ..Launch::default()
    };
    let quick = simulate(machine, trace, &launch, &mut ());
    launch.options.full = true;
    let full = simulate(machine, trace, &launch, &mut ());
    match (quick, full) {
        (Ok(mut quick), Ok(full)) => {
            let jumped = match quick.exactness {
                Exactness::ExactWarped { jumped, .. } => jumped,
                Exactness::ExactFull | Exactness::TransferLevel => 0,
            };
            quick.exactness = full.exactness.clone();
            quick.identity = full.identity.clone();
            assert_eq!(quick, full);
            (Ok(full), jumped)
        }
        (quick, full) => {
            assert_eq!(quick.as_ref().err(), full.as_ref().err());
            (full, 0)
        }
    }
}

fn golden(path: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/golden")
        .join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A golden program with tensors large enough for any grid here.
fn program(name: &str) -> ValidTrace {
    let text = golden(&format!("togsim/programs/{name}.json"));
    let mut trace = json::import(&text, &json::no_files).unwrap().trace;
    for tensor in &mut trace.tensors {
        for extent in &mut tensor.extents {
            *extent = tilesim_traces::model::Expr::Const(1 << 15);
        }
    }
    // What tiles ask of units is counted on the way, so jumps must count it too.
    for (tile, k) in trace.tiles.iter_mut().zip(1..) {
        tile.admissions = vec![tilesim_traces::model::Admission {
            unit: "Systolic".to_owned(),
            work: "rows".to_owned(),
            capacity_per_cycle: 1024.0,
            admitted: k,
        }];
    }
    validate(trace).unwrap()
}

fn machine(map: ChannelMap, cores: u32) -> Machine {
    let mut machine = Machine::preset("tpuv3_simple_dram").unwrap();
    machine.dram.channel_map = map;
    machine.cores.count = cores;
    machine.cores.partition = vec![0; cores as usize];
    machine
}

/// A preset with banked DRAM, an interleaved map and no refresh.
fn banked(preset: &str, cores: u32) -> Machine {
    let mut machine = Machine::preset(preset).unwrap();
    machine.dram.channel_map = ChannelMap::Interleave;
    machine.cores.count = cores;
    machine.cores.partition = vec![0; cores as usize];
    let DramModel::Banked { device } = &mut machine.dram.model else {
        panic!("{preset} is not banked");
    };
    **device = without_refresh(device);
    machine
}

fn one_clock(mut machine: Machine) -> Machine {
    machine.clocks.noc_khz = machine.clocks.core_khz;
    machine.clocks.dram_khz = machine.clocks.core_khz;
    machine
}
fn truncated(mut machine: Machine) -> Machine {
    machine.clocks.truncate_to_ps = true;
    println!("{:?}", machine.clocks);
    machine
}

fn without_refresh(device: &BankedDevice) -> BankedDevice {
    let mut tree = device.tree().clone();
    tree["refresh_manager"] = serde_json::json!({"impl": "NoRefresh"});
    BankedDevice::from_tree(&tree).unwrap()
}

#[test]
fn explore() {
    let machines = [
        ("simple1", machine(ChannelMap::Interleave, 1)),
        ("tpuv3-1", one_clock(banked("tpuv3", 1))),
        ("tpuv3-2", one_clock(banked("tpuv3", 2))),
        ("tpuv6e", one_clock(banked("tpuv6e", 1))),
        ("trunc", truncated(banked("tpuv3", 1))),
        ("exact", banked("tpuv3", 1)),
    ];
    let n: u64 = std::env::var("N").map_or(1, |n| n.parse().unwrap());
    for (name, grid) in [
        ("large_grid", vec![10000 * n]),
        ("vecadd_sync", vec![10000 * n]),
        ("vecadd_async_big", vec![200 * n]),
        ("softmax_rows", vec![1000 * n]),
        ("gemm_256", vec![50 * n, 5]),
        ("gemm_1024_k", vec![50 * n, 4]),
        ("gemm_compute_bound", vec![50 * n, 4]),
        ("gemm_double_buffered", vec![50 * n, 4]),
    ] {
        if !std::env::var("P").map_or(true, |p| name.contains(&p)) {
            continue;
        }
        let trace = program(name);
        for (on, machine) in &machines {
            let mut launch = Launch {
                args: LaunchArgs { grid: grid.clone(), ..LaunchArgs::default() },
                ..Launch::default()
            };
            let t = std::time::Instant::now();
            let quick = simulate(machine, &trace, &launch, &mut ()).unwrap();
            let dt = t.elapsed();
            launch.options.full = true;
            let t = std::time::Instant::now();
            let full = simulate(machine, &trace, &launch, &mut ()).unwrap();
            let df = t.elapsed();
            let same = quick.cycles == full.cycles && quick.dram == full.dram && quick.cores == full.cores;
            println!("{name} {grid:?} {on}: {:?} {dt:?} full {df:?} same {same}", quick.exactness);
        }
    }
}

#[test]
fn golden_programs_repeat() {
    for (name, grid, cores) in [
        ("large_grid", vec![4096], 1),
        ("large_grid", vec![4096], 2),
        ("vecadd_sync", vec![3000], 1),
        ("vecadd_async_big", vec![512], 1),
        ("softmax_rows", vec![1024], 1),
        ("gemm_256", vec![16, 20], 1),
    ] {
        let args = LaunchArgs {
            grid,
            ..LaunchArgs::default()
        };
        let (report, jumped) = both(
            &machine(ChannelMap::Interleave, cores),
            &program(name),
            &args,
        );
        let report = report.unwrap();
        let runs: u64 = report.tiles.iter().map(|t| t.runs).sum();
        assert_eq!(runs, report.cores.iter().map(|c| c.computes).sum::<u64>());
        assert!(
            jumped * 2 > report.work_items,
            "{name} on {cores}: {jumped} of {}",
            report.work_items
        );
    }
}

#[test]
fn a_hashed_map_is_simulated_in_full() {
    let args = LaunchArgs {
        grid: vec![2048],
        ..LaunchArgs::default()
    };
    let (_, jumped) = both(
        &machine(ChannelMap::Ipoly, 1),
        &program("large_grid"),
        &args,
    );
    assert_eq!(jumped, 0);
}

/// Work does not grow with the grid where the run repeats itself: a million items, in well under a
/// second.
#[test]
fn a_million_items_cost_what_ten_thousand_do() {
    let machine = machine(ChannelMap::Interleave, 1);
    let trace = program("large_grid");
    let jumped = |n: u64| {
        let launch = Launch {
            args: LaunchArgs {
                grid: vec![n],
                ..LaunchArgs::default()
            },
            ..Launch::default()
        };
        let report = simulate(&machine, &trace, &launch, &mut ()).unwrap();
        match report.exactness {
            Exactness::ExactWarped { jumped, .. } => (n - jumped, report.cycles),
            Exactness::ExactFull | Exactness::TransferLevel => panic!("not jumped"),
        }
    };
    let (small, cycles) = jumped(10_000);
    let (large, more_cycles) = jumped(1_000_000);
    assert!(large <= 2 * small, "{small} and {large} items simulated");
    assert!(more_cycles > 99 * cycles);
}

#[test]
fn random_programs_repeat_or_not_with_the_same_figures() {
    let total: u64 = std::env::var("TILESIM_RANDOM_CASES").map_or(300, |n| n.parse().unwrap());
    let mut jumps = 0;
    for seed in 0..total {
        let mut case = cases::case(seed, true);
        // Long enough to repeat, in tensors that hold it, on a map that shifts.
        case.machine.dram.channel_map = ChannelMap::Interleave;
        case.args.grid = vec![1; case.args.grid.len()];
        case.args.grid[0] = 600 + seed % 97;
        case.trace.bounds = tilesim_traces::model::Bounds::Off;
        for tensor in &mut case.trace.tensors {
            tensor.extents = vec![tilesim_traces::model::Expr::Const(1 << 24)];
        }
        let trace = validate(case.trace).unwrap();
        let (_, jumped) = both(&case.machine, &trace, &case.args);
        jumps += u64::from(jumped > 0);
    }
    assert!(
        jumps * 200 > total,
        "{jumps} of {total} jumped: the test should see more"
    );
}
