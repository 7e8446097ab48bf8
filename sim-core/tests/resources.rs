//! What a run takes from the heap: a bounded amount at its start and as its buffers grow to the most
//! that is in flight, then nothing; and nothing that grows with the grid or stays behind.

#![allow(clippy::unwrap_used, missing_docs)]

use std::ops::ControlFlow;

use allocation_counter::{AllocationInfo, measure};

mod launches;
use launches::{Loaded, load, load_beyond};
use tilesim_core::machine::{Machine, MemoryModel};
use tilesim_core::{Launch, Progress, Watch, simulate};
use tilesim_traces::{LaunchArgs, validate};

/// What one run takes, loading aside, and its requests.
fn run(loaded: &Loaded) -> (AllocationInfo, u64) {
    let mut requests = 0;
    let taken = measure(|| requests = loaded.run().dram_requests);
    (taken, requests)
}

const BANKED: &str = "systolic_ws_128x128_c1_simple_noc_tpuv3";
const BANKED_C2: &str = "systolic_ws_128x128_c2_simple_noc_tpuv3";
const SIMPLE: &str = "tpuv3_simple_dram";
const L2: &str = "systolic_ws_256x256_c1_simple_noc_tpuv6e";
const FLIT: &str = "systolic_ws_128x128_c1_booksim_tpuv3";

/// Program, a small grid, a larger one, machine.
const CASES: &[(&str, &str, &str, &str)] = &[
    ("large_grid", "1024", "4096", SIMPLE),
    ("large_grid", "1024", "4096", BANKED),
    ("large_grid", "1024", "4096", BANKED_C2),
    ("vecadd_sync", "1024", "4096", SIMPLE),
    ("vecadd_sync", "1024", "4096", BANKED),
    ("vecadd_async_big", "16", "64", SIMPLE),
    ("vecadd_async_big", "16", "64", BANKED),
    ("many_small_loads", "32", "128", SIMPLE),
    ("many_small_loads", "32", "128", BANKED),
    ("softmax_rows", "64", "256", BANKED),
    ("gemm_256", "2x4", "4x8", SIMPLE),
    ("gemm_256", "2x4", "4x8", BANKED),
    ("gemm_256", "2x4", "4x8", BANKED_C2),
    ("gemm_double_buffered", "1x3", "2x6", BANKED),
    ("preload_ahead", "4", "16", SIMPLE),
    ("chain_reduce", "8", "32", SIMPLE),
    ("zero_cost_tiles", "64", "256", BANKED_C2),
    ("row_conflict", "16", "64", BANKED),
    ("large_grid", "1024", "4096", L2),
    ("gemm_256", "4x4", "8x8", L2),
    ("large_grid", "256", "1024", FLIT),
    ("gemm_256", "2x4", "4x8", FLIT),
];

#[test]
fn four_times_the_work_items_take_no_more_from_the_heap() {
    let mut wrong = Vec::new();
    let requests = CASES.iter().map(|case| (case, MemoryModel::Requests));
    let transfers = CASES.iter().map(|case| (case, MemoryModel::Transfer));
    for (&(program, small, large, machine), memory) in requests.chain(transfers) {
        let load = |grid| {
            let mut loaded = load_beyond(program, grid, machine);
            loaded.machine.memory = memory;
            loaded
        };
        let (few, sent) = run(&load(small));
        let (many, sent_more) = run(&load(large));
        let line = format!(
            "{program} {small}..{large} {machine} {memory:?}: {} -> {} allocations, peak {} -> {} \
             bytes",
            few.count_total, many.count_total, few.bytes_max, many.bytes_max
        );
        eprintln!("{line}");
        // Queues may still grow to the most that is ever in them: a few doublings each.
        let doublings = 16 + (sent_more - sent) / 1000;
        if many.count_total > few.count_total + doublings || many.bytes_max > few.bytes_max * 3 / 2
        {
            wrong.push(line);
        }
    }
    assert!(wrong.is_empty(), "the heap grew:\n{}", wrong.join("\n"));
}

#[test]
fn ten_times_the_grid_takes_the_same_memory() {
    for machine in [SIMPLE, "tpuv3_simple_dram_c2"] {
        // Tables with a bound (such as the core's of versions that other items use) take some
        // thousand items to fill: 200 items peak at 50 to 65 KB, these at 77 and 135 KB.
        let (few, _) = run(&load_beyond("large_grid", "4000", machine));
        let (many, _) = run(&load_beyond("large_grid", "40000", machine));
        let line = format!(
            "{machine}: {} -> {} allocations, peak {} -> {} bytes",
            few.count_total, many.count_total, few.bytes_max, many.bytes_max
        );
        eprintln!("{line}");
        assert!(many.bytes_max <= few.bytes_max * 11 / 10, "{line}");
        assert!(many.count_total <= few.count_total + 16, "{line}");
    }
}

#[test]
fn a_hundred_times_the_grid_takes_the_same_memory_where_every_item_is_run() {
    let load = |grid| {
        let mut loaded = load_beyond("large_grid", grid, SIMPLE);
        loaded.launch.options.full = true;
        loaded
    };
    let (few, _) = run(&load("4000"));
    let (many, _) = run(&load("400000"));
    let line = format!("peak {} -> {} bytes", few.bytes_max, many.bytes_max);
    eprintln!("{line}");
    assert!(many.bytes_max <= few.bytes_max * 11 / 10, "{line}");
    assert!(many.count_total <= few.count_total + 16, "{line}");
}

#[test]
fn ten_thousand_launches_leave_nothing_behind() {
    for (machine, launches) in [(SIMPLE, 10_000), (BANKED, 1000)] {
        let loaded = load("large_grid", "2", machine);
        loaded.run();
        let all = measure(|| {
            for _ in 0..launches {
                loaded.run();
            }
        });
        assert_eq!(all.bytes_current, 0, "{machine}: bytes kept");
        assert_eq!(all.count_current, 0, "{machine}: allocations kept");
    }
}

#[test]
fn a_long_tile_costs_as_many_events_as_a_short_one() {
    struct Polls(u64);
    impl Watch for Polls {
        fn poll(&mut self, _: &Progress) -> ControlFlow<()> {
            self.0 += 1;
            ControlFlow::Continue(())
        }
    }
    let polls = |cycles: u64| {
        let mut loaded = load_beyond("large_grid", "4096", SIMPLE);
        loaded.launch.options.full = true;
        let mut trace = (*loaded.trace).clone();
        for tile in &mut trace.tiles {
            tile.cycles = Some(cycles);
        }
        let trace = validate(trace).unwrap();
        let mut polls = Polls(0);
        let report = simulate(&loaded.machine, &trace, &loaded.launch, &mut polls).unwrap();
        assert!(report.cycles > 4096 / 2 * cycles);
        polls.0
    };
    // One poll every 256 events.
    let (short, long) = (polls(2), polls(2_000_000));
    eprintln!("{short} and {long} polls");
    assert!(short > 50);
    // Where tiles are long, memory is idle in between and waited for once more.
    assert!(long <= short * 3 / 2, "{short} -> {long} polls");
}

#[test]
fn nothing_stays_behind() {
    for machine in [SIMPLE, BANKED] {
        let loaded = load("gemm_256", "2x2", machine);
        loaded.run();
        let (first, _) = run(&loaded);
        let twenty = measure(|| {
            for _ in 0..20 {
                loaded.run();
            }
        });
        assert_eq!(twenty.bytes_current, 0, "{machine}: bytes kept");
        assert_eq!(twenty.count_current, 0, "{machine}: allocations kept");
        assert_eq!(
            twenty.bytes_max, first.bytes_max,
            "{machine}: later runs take more"
        );
        assert_eq!(twenty.count_total, 20 * first.count_total, "{machine}");
    }
}

#[test]
fn golden_launches_stay_under_64_mib() {
    for (program, grid) in [("gemm_1024_k", "1x1"), ("gemm512_core_serial", "1x1")] {
        for machine in [SIMPLE, BANKED, "systolic_ws_256x256_c1_simple_noc_tpuv6e"] {
            let loaded = load(program, grid, machine);
            let peak = run(&loaded).0.bytes_max;
            assert!(peak < 64 << 20, "{program} {grid} {machine}: {peak} bytes");
        }
    }
}

/// Whatever clocks and latencies a machine file has: how far apart things happen takes neither memory
/// nor a look at every cycle between them (which would take hours here).
#[test]
fn extreme_clocks_take_no_more() {
    let text = "tilesim trace 1
kernel \"copy\"
axes 1
tensor A: 32 bit in [g0, 16384]
tensor B: 32 bit out [g0, 16384]
buffer b 65536
body {
  load A[p0 * 16384] dims [16384: 1] writes [b]
  store B[p0 * 16384] dims [16384: 1] reads [b]
}
";
    let trace = tilesim_traces::load_bytes("copy.tile", text.as_bytes()).unwrap();
    let launch = Launch {
        args: LaunchArgs {
            grid: vec![16],
            ..LaunchArgs::default()
        },
        ..Launch::default()
    };
    for clocks in 0..8 {
        let mhz = [0, 1, 2].map(|clock| if clocks >> clock & 1 == 0 { 1 } else { 100_000 });
        let slow = |channels| {
            format!(
                "noc: {{latency_cycles: 1000000}}
dram: {{channels: {channels}, latency_cycles: 1000000, bytes_per_cycle: 0.001}}"
            )
        };
        for rest in [
            slow(16),
            slow(1024),
            "dram: {channels: 16, latency_cycles: 1}".to_owned(),
            "dram: {channels: 16, model: banked, device: HBM2_TPUv3}".to_owned(),
            "noc: {model: flit, topology: {crossbar: {ports: 18}}}
dram: {channels: 16, latency_cycles: 1000}"
                .to_owned(),
        ] {
            let banked = rest.contains("banked");
            let dram_mhz = if banked {
                String::new()
            } else {
                format!(", dram_mhz: {}", mhz[2])
            };
            let machine = Machine::from_yaml(&format!(
                "clocks: {{core_mhz: {}, noc_mhz: {}{dram_mhz}}}
cores: {{injection_ports: 2}}
{rest}",
                mhz[0], mhz[1]
            ))
            .unwrap();
            let taken = measure(|| {
                let report = simulate(&machine, &trace, &launch, &mut ()).unwrap();
                assert_eq!(report.cores[0].requests, 2 * 16 * 2048);
            });
            assert!(
                taken.bytes_max < 32 << 20,
                "{mhz:?} MHz, {rest}: {} bytes at once",
                taken.bytes_max
            );
        }
    }
}
