//! Jumping over work that repeats changes no figure: every report equals the one of the full run,
//! but for the line that says how it came about.

#![allow(clippy::expect_used)]
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod cases;
mod twin;

use std::path::PathBuf;

use tilesim_core::machine::{BankedDevice, ChannelMap, DramModel, Machine, ReplyPort};
use tilesim_core::report::Exactness;
use tilesim_core::{Launch, Report, SimError, simulate};
use tilesim_traces::model::{BinaryOp, Bounds, Expr, Stmt};
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
            assert!(quick == full, "{}", difference(&quick, &full));
            (Ok(full), jumped)
        }
        (quick, full) => {
            assert_eq!(quick.as_ref().err(), full.as_ref().err());
            (full, 0)
        }
    }
}

/// Where two reports differ first, with some of what is around.
fn difference(quick: &Report, full: &Report) -> String {
    let (quick, full) = (format!("{quick:?}"), format!("{full:?}"));
    let at = quick
        .bytes()
        .zip(full.bytes())
        .position(|(a, b)| a != b)
        .unwrap_or(0);
    let part = |s: &str| -> String { s.chars().skip(at.saturating_sub(200)).take(400).collect() };
    format!("quick: ...{}...\nfull: ...{}...", part(&quick), part(&full))
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
            *extent = Expr::Const(1 << 15);
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

/// A preset with banked DRAM, an interleaved map, one clock and no refresh.
fn banked(preset: &str, cores: u32) -> Machine {
    let mut machine = Machine::preset(preset).unwrap();
    machine.dram.channel_map = ChannelMap::Interleave;
    machine.cores.count = cores;
    machine.cores.partition = vec![0; cores as usize];
    // One clock for all, as the truncated periods of the original machine files have it.
    machine.clocks.noc_khz = machine.clocks.core_khz;
    machine.clocks.dram_khz = machine.clocks.core_khz;
    let DramModel::Banked { device } = &mut machine.dram.model else {
        panic!("{preset} is not banked");
    };
    **device = without_refresh(device);
    machine
}

/// The same device without refresh.
fn without_refresh(device: &BankedDevice) -> BankedDevice {
    let mut tree = device.tree().clone();
    tree["refresh_manager"] = serde_json::json!({"impl": "NoRefresh"});
    BankedDevice::from_tree(&tree).unwrap()
}

/// Programs, and grids that are long enough for each to repeat itself.
const REPEATING: [(&str, &[u64]); 9] = [
    ("large_grid", &[4096]),
    ("vecadd_sync", &[4096]),
    ("vecadd_async_big", &[160]),
    ("softmax_rows", &[1024]),
    ("gemm_256", &[30, 5]),
    ("gemm_1024_k", &[60, 2]),
    ("gemm_compute_bound", &[60, 2]),
    ("gemm_double_buffered", &[60, 2]),
    ("gemm512_core_serial", &[64, 1]),
];

/// Both ways, and so that some is jumped over and nothing lost on the way.
fn repeats(name: &str, grid: &[u64], machine: &Machine) {
    let args = LaunchArgs {
        grid: grid.to_vec(),
        ..LaunchArgs::default()
    };
    let (report, jumped) = both(machine, &program(name), &args);
    let report = report.unwrap();
    let runs: u64 = report.tiles.iter().map(|t| t.runs).sum();
    assert_eq!(runs, report.cores.iter().map(|c| c.computes).sum::<u64>());
    assert!(
        jumped > 0,
        "{name} on {} with {} cores: {jumped} of {}",
        machine.name,
        machine.cores.count,
        report.work_items
    );
}

#[test]
fn golden_programs_repeat() {
    for (name, grid) in REPEATING {
        for cores in [1, 2] {
            let mut grid = grid.to_vec();
            grid[0] *= u64::from(cores);
            repeats(name, &grid, &machine(ChannelMap::Interleave, cores));
        }
    }
}

#[test]
fn golden_programs_repeat_on_banked_dram() {
    for (name, grid) in REPEATING {
        repeats(name, grid, &banked("tpuv3", 1));
    }
    for (name, grid) in &REPEATING[..4] {
        let longer: Vec<u64> = grid.iter().map(|n| n * 3).collect();
        repeats(name, &longer, &banked("tpuv3", 2));
        repeats(name, &longer, &banked("tpuv2", 1));
    }
}

/// Transfers that leave their tensor are counted as if each had been looked at.
#[test]
fn transfers_out_of_bounds_are_counted() {
    let on_simple = machine(ChannelMap::Interleave, 1);
    let on_banked = banked("tpuv3", 1);
    for (name, grid, machine) in [
        ("large_grid", vec![4096], &on_simple),
        ("gemm_256", vec![40, 4], &on_simple),
        ("large_grid", vec![4096], &on_banked),
    ] {
        let mut trace = (*program(name)).clone();
        trace.bounds = Bounds::Off;
        for tensor in &mut trace.tensors {
            tensor.extents = vec![Expr::Const(400_000)];
        }
        let args = LaunchArgs {
            grid,
            ..LaunchArgs::default()
        };
        let (report, jumped) = both(machine, &validate(trace).unwrap(), &args);
        assert!(jumped > 0, "{name}");
        assert!(report.unwrap().out_of_bounds_transfers > 0, "{name}");
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

/// The same device with so many rows a bank: memory enough for a large launch.
fn with_rows(device: &BankedDevice, rows: u64) -> BankedDevice {
    let mut tree = device.tree().clone();
    let counts = tree["dram"]["org"]["count"].as_array_mut().unwrap();
    let place = counts.len() - 2;
    counts[place] = rows.into();
    BankedDevice::from_tree(&tree).unwrap()
}

/// Programs whose work must not grow with the grid, and the columns of the grid of those with two axes.
const FLAT: [(&str, Option<u64>); 8] = [
    ("large_grid", None),
    ("vecadd_async_big", None),
    ("softmax_rows", None),
    ("gemm_256", Some(4)),
    ("gemm_1024_k", Some(4)),
    ("gemm_compute_bound", Some(4)),
    ("gemm_double_buffered", Some(4)),
    ("gemm512_core_serial", Some(2)),
];

/// Work does not grow with the grid where the run repeats itself: counted in work-items and requests
/// simulated.
fn cost_of_a_million_items(machine: &Machine) {
    for (name, columns) in FLAT {
        let mut trace = (*program(name)).clone();
        for tensor in &mut trace.tensors {
            tensor.extents = vec![Expr::Const(1 << 38)];
        }
        let trace = validate(trace).unwrap();
        let run = |items: u64| {
            let launch = Launch {
                args: LaunchArgs {
                    grid: columns.map_or(vec![items], |columns| vec![items / columns, columns]),
                    ..LaunchArgs::default()
                },
                ..Launch::default()
            };
            let report = simulate(machine, &trace, &launch, &mut ()).unwrap();
            assert_eq!(report.work_items, items);
            match report.exactness {
                Exactness::ExactWarped { jumped, .. } => (items - jumped, report.cycles),
                Exactness::ExactFull | Exactness::TransferLevel => {
                    panic!("{name} on {}: not jumped", machine.name)
                }
            }
        };
        let (few, cycles) = run(10_000);
        let (many, more_cycles) = run(1_000_000);
        println!(
            "{name} on {}: {few} and {many} items simulated",
            machine.name
        );
        assert!(
            many <= 2 * few,
            "{name} on {}: {few} and {many} items simulated",
            machine.name
        );
        assert!(more_cycles > 99 * cycles);
    }
}

#[test]
fn a_million_items_cost_what_ten_thousand_do() {
    cost_of_a_million_items(&machine(ChannelMap::Interleave, 1));
}

#[test]
fn a_million_items_cost_what_ten_thousand_do_on_banked_dram() {
    let mut machine = banked("tpuv3", 1);
    let DramModel::Banked { device } = &mut machine.dram.model else {
        panic!("not banked");
    };
    // The launches move through up to half a terabyte per tensor.
    **device = with_rows(device, 1 << 24);
    cost_of_a_million_items(&machine);
}

/// Multiplies program ids, so that items lie further apart.
fn spread(e: &mut Expr, by: i64) {
    match e {
        Expr::Pid(_) => {
            let pid = Box::new(e.clone());
            *e = Expr::Binary(BinaryOp::Mul, pid, Box::new(Expr::Const(by)));
        }
        Expr::Const(_) | Expr::Grid(_) | Expr::Param(_) | Expr::Var(_) => {}
        Expr::Unary(_, a) => spread(a, by),
        Expr::Binary(_, a, b) => [a, b].into_iter().for_each(|e| spread(e, by)),
        Expr::Select(a, b, c) => [a, b, c].into_iter().for_each(|e| spread(e, by)),
    }
}

/// Makes transfers lie further apart, some further than others where `by` says so.
fn spread_transfers(body: &mut [Stmt], by: &mut impl FnMut() -> i64) {
    for stmt in body {
        match stmt {
            Stmt::For(f) => spread_transfers(&mut f.body, by),
            Stmt::If(i) => {
                spread_transfers(&mut i.then, by);
                spread_transfers(&mut i.otherwise, by);
            }
            Stmt::Dma(dma) => spread(&mut dma.offset, by()),
            Stmt::Compute(_) | Stmt::Wait(_) => {}
        }
    }
}

/// A small banked device: rows of one or two transactions, so that work comes back to where rows
/// repeat soon, and few rows in some, so that addresses start over.
fn small_device(seed: u64) -> BankedDevice {
    let Machine { dram, .. } = Machine::preset(["tpuv3", "tpuv6e"][(seed % 2) as usize]).unwrap();
    let DramModel::Banked { device } = dram.model else {
        panic!("not banked");
    };
    let mut tree = without_refresh(&device).tree().clone();
    let columns = tree["dram"]["org"]["count"][5].as_u64().unwrap();
    let tx = device.spec().tx_bytes();
    let least = u64::from(tx) * 8 / u64::from(device.spec().channel_width);
    let columns = columns.min(least << (seed / 2 % 2));
    let rows = [16, 65536][(seed / 4 % 2) as usize];
    tree["dram"]["org"]["count"] = serde_json::json!([1, 2, 1, 2, rows, columns]);
    if seed.is_multiple_of(3) {
        tree["row_policy"] = serde_json::json!({"impl": "Closed"});
    }
    BankedDevice::from_tree(&tree).unwrap()
}

/// A random case that may repeat: long, uniform in part, on a map that shifts.
fn long_case(seed: u64) -> cases::Case {
    let mut case = cases::case(seed, true);
    case.machine.dram.channel_map = ChannelMap::Interleave;
    case.machine.dram.numa = None;
    if seed.is_multiple_of(4) {
        case.machine.dram.reply_port = ReplyPort::InnerLine;
    }
    let axes = case.args.grid.len();
    case.args.grid = vec![1; axes];
    case.args.grid[0] = 400 + seed % 97;
    if axes > 1 && seed % 8 < 5 {
        case.args.grid[axes - 1] = 2 + seed % 5;
        case.args.grid[0] /= 2;
    }
    if seed % 16 > 1 {
        case.machine.clocks.noc_khz = case.machine.clocks.core_khz;
        case.machine.clocks.dram_khz = case.machine.clocks.core_khz;
    }
    if seed % 4 > 1 {
        case.machine.cores.scratchpad_bytes = 0;
    }
    case.trace.bounds = Bounds::Off;
    for tensor in &mut case.trace.tensors {
        tensor.extents = vec![Expr::Const(if seed.is_multiple_of(5) {
            1 << 10
        } else {
            1 << 24
        })];
    }
    // Far enough apart, and from address 0, that a transfer which leaves its tensor meets nothing.
    for (tensor, k) in case.trace.tensors.iter().zip(1..) {
        case.args.placement.insert(tensor.name.clone(), k << 30);
    }
    let mut turn = seed;
    spread_transfers(&mut case.trace.body, &mut || {
        turn = turn
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(seed);
        match seed % 3 {
            0 => 1,
            1 => 64,
            _ => 1 << (turn >> 60),
        }
    });
    case
}

#[test]
fn random_programs_repeat_or_not_with_the_same_figures() {
    let total: u64 = std::env::var("TILESIM_RANDOM_CASES").map_or(300, |n| n.parse().unwrap());
    let (mut simple, mut banked) = (0, 0);
    for seed in 0..total {
        // Shown when the test fails.
        println!("seed {seed}");
        let mut case = long_case(seed);
        let trace = validate(case.trace).unwrap();
        let (_, jumped) = both(&case.machine, &trace, &case.args);
        simple += u64::from(jumped > 0);
        let device = small_device(seed);
        case.machine.dram.request_bytes = device.spec().tx_bytes();
        case.machine.dram.model = DramModel::Banked {
            device: Box::new(device),
        };
        let (_, jumped) = both(&case.machine, &trace, &case.args);
        banked += u64::from(jumped > 0);
    }
    println!("{simple} and {banked} of {total} jumped");
    assert!(
        simple * 50 > total && banked * 50 > total,
        "{simple} and {banked} of {total} jumped: the test should see more"
    );
}
