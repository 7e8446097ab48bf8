//! The L2 inside the memory system and inside whole launches.

#![allow(clippy::expect_used, clippy::panic)]
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::PathBuf;

use proptest::prelude::*;
use tilesim_core::machine::import::ImportOptions;
use tilesim_core::machine::{L2WriteAllocate, Machine, MemoryModel, load};
use tilesim_core::memory::{Memory, Origin};
use tilesim_core::stack::Cause;
use tilesim_core::{Launch, Report, simulate};
use tilesim_traces::launch::{ResolvedDim, ResolvedIndirect, Span, Transfer, WorkItem};
use tilesim_traces::model::{Direction, TensorId};
use tilesim_traces::{LaunchArgs, json, validate};

const L2: &str = "\nl2: {model: datacache, sets: 8, ways: 4, mshr_entries: 6, mshr_merges: 3, \
                  miss_queue: 5, hit_latency_cycles: 7}\n";

fn machines() -> Vec<Machine> {
    [
        "clocks: {core_mhz: 940, noc_mhz: 1000, dram_mhz: 700}\n\
         cores: {count: 2, injection_ports: 4}\n\
         dram: {channels: 2, latency_cycles: 40, bytes_per_cycle: 20}",
        "clocks: {core_mhz: 1050}\ncores: {count: 2, injection_ports: 2}\n\
         noc: {latency_cycles: 3}\ndram: {channels: 4, model: banked, device: HBM2_TPUv3}",
        "clocks: {core_mhz: 500}\ncores: {count: 2, injection_ports: 1}\n\
         noc: {model: flit, topology: {crossbar: {ports: 4}}}\n\
         dram: {channels: 2, model: banked, device: HBM2_TPUv3}",
    ]
    .iter()
    .map(|text| Machine::from_yaml(&format!("{text}{L2}")).unwrap())
    .collect()
}

fn transfer(row: u64, rows: u64, stride: i64, start: u64, write: bool) -> WorkItem {
    let mut item = WorkItem {
        dims: vec![
            ResolvedDim {
                extent: rows,
                stride,
            },
            ResolvedDim {
                extent: row,
                stride: 1,
            },
        ],
        ..WorkItem::default()
    };
    item.transfers.push(Transfer {
        direction: if write {
            Direction::Store
        } else {
            Direction::Load
        },
        tensor: TensorId(0),
        first_bit: i128::from(start) * 8,
        element_bits: 8,
        dims: Span { start: 0, end: 2 },
        semaphore: None,
        full_elements: 0,
        valid_elements: 0,
        indirect: ResolvedIndirect::None,
    });
    item
}

type Seen = Vec<(u32, u64, u64, Cause)>;

/// Transfers (core, step, item), advancing in windows as told.
fn run(machine: &Machine, starts: &[(u32, u64, WorkItem)], windows: &[u64]) -> (Seen, String) {
    let mut memory = Memory::new(machine, 1 << 20);
    let mut seen = Seen::new();
    let (mut next, mut step, mut w) = (0, 0, 0);
    while next < starts.len() || memory.is_busy() {
        let until = step + windows[w % windows.len()];
        w += 1;
        while next < starts.len() && starts[next].1 < until {
            let (core, at, item) = &starts[next];
            let origin = Origin {
                item: next as u64,
                op: 0,
            };
            memory
                .start(*core, *at, item, &item.transfers[0], next as u64, origin)
                .unwrap();
            next += 1;
        }
        let promised = memory.safe();
        memory.advance(until);
        step = until;
        for core in 0..2 {
            while let Some(c) = memory.pop(core) {
                assert!(
                    promised == u64::MAX || c.step >= promised,
                    "{c:?} below {promised}"
                );
                seen.push((core, c.token, c.step, c.cause));
            }
        }
        assert!(step < 1 << 30, "stuck");
    }
    seen.sort();
    (seen, format!("{:?}", memory.stats()))
}

/// Steps to the one before, core, bytes of a row, rows, stride, first byte, store.
type Start = (u64, u32, u64, u64, i64, u64, bool);

/// Completions are the same whether everything is worked at once or in windows.
fn check_windows(machine: &Machine, list: &[Start], windows: &[u64]) {
    let mut at = 0;
    let starts: Vec<_> = list
        .iter()
        .map(|&(gap, core, row, rows, stride, start, write)| {
            at += gap;
            (core, at, transfer(row, rows, stride, start, write))
        })
        .collect();
    for memory in [MemoryModel::Requests, MemoryModel::Transfer] {
        for l2 in [machine.l2.clone(), None] {
            let machine = Machine {
                memory,
                l2,
                ..machine.clone()
            };
            let whole = run(&machine, &starts, &[1 << 16]);
            let parts = run(&machine, &starts, windows);
            assert_eq!(whole.0, parts.0);
        }
    }
}

/// Cases that once differed, the first because of transfers that end in one step after slots were used
/// again.
#[test]
fn windows_that_have_mattered() {
    let machine = &machines()[0];
    let ends_together = [
        (11, 0, 1, 1, 0, 0, false),
        (16, 0, 1, 1, 0, 0, false),
        (54, 1, 109, 4, 52, 1688, true),
        (1, 0, 73, 2, 153, 4159, false),
    ];
    check_windows(machine, &ends_together, &[28]);
    let waits = [
        (0, 0, 1, 1, 0, 0, false),
        (0, 0, 1, 1, 0, 0, false),
        (13, 0, 149, 2, 160, 3756, false),
        (48, 0, 1, 2, 33, 32, false),
    ];
    check_windows(machine, &waits, &[1]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]
    #[test]
    fn windows_do_not_matter(
        which in 0usize..3,
        list in prop::collection::vec(
            (
                // Many start together: ties are where windows could show.
                prop_oneof![0u64..2, 0u64..60],
                0u32..2,
                1u64..300,
                1u64..5,
                0i64..900,
                0u64..6000,
                prop::bool::ANY,
            ),
            1..14,
        ),
        windows in prop::collection::vec(1u64..90, 1..4),
    ) {
        check_windows(&machines()[which], &list, &windows);
    }
}

fn golden(path: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/golden")
        .join(path);
    std::fs::read_to_string(path).unwrap()
}

fn launch(program: &str, grid: &[u64], machine: &Machine) -> Report {
    let text = golden(&format!("togsim/programs/{program}.json"));
    let trace = validate(json::import(&text, &json::no_files).unwrap().trace).unwrap();
    let args = LaunchArgs {
        grid: grid.to_vec(),
        ..LaunchArgs::default()
    };
    simulate(
        machine,
        &trace,
        &Launch {
            args,
            ..Launch::default()
        },
        &mut (),
    )
    .unwrap()
}

#[test]
fn a_machine_file_of_the_reference_brings_its_l2() {
    let name = "pytorchsim/configs/systolic_ws_256x256_c1_simple_noc_tpuv6e.yml";
    let files = |path: &str| -> Result<String, String> {
        Ok(golden(&format!(
            "pytorchsim/configs/{}",
            path.trim_start_matches("../configs/")
        )))
    };
    let text = golden(name);
    let options = ImportOptions {
        as_configured: true,
    };
    let machine = load("v6e", &text, &files, options).unwrap().machine;
    let l2 = machine.l2.clone().unwrap();
    // S:128:128:512,32,L:T:m:W:L,A:192:4,32:0,32
    assert_eq!(
        (l2.sets, l2.line_bytes, l2.ways, l2.sector_bytes),
        (128, 128, 512, 32)
    );
    assert_eq!(
        (l2.mshr_entries, l2.mshr_merges, l2.miss_queue),
        (192, 4, 32)
    );
    assert_eq!(l2.write_allocate, L2WriteAllocate::WriteAndFetch);
    let without = load("v6e", &text, &files, ImportOptions::default())
        .unwrap()
        .machine;
    assert_eq!(without.l2, None);

    for (from, why) in [
        ("S:128:128:512", "S:127:128:512"),
        ("S:128:128:512", "S:128:4096:512"),
        ("S:128:128:512", "Q:128:128:512"),
        ("L:T:m:W:L", "L:E:m:W:L"),
        ("L:T:m:W:L", "F:T:m:W:L"),
        (",A:192:4,32:0,32", ""),
    ] {
        let text = text.replace(from, why);
        let error = load("v6e", &text, &files, options).unwrap_err();
        assert_eq!(error.path, "l2d_config", "{why}: {error}");
    }
}

#[test]
fn reuse_stays_on_the_chip() {
    let base = "clocks: {core_mhz: 940}\ncores: {systolic_arrays: 2, scratchpad_bytes: 16 MiB, \
                injection_ports: 16}\nnoc: {latency_cycles: 10}\n\
                dram: {channels: 16, model: banked, device: HBM2_TPUv3}\n";
    let plain = Machine::from_yaml(base).unwrap();
    let l2 = "l2: {model: datacache, sets: 64, ways: 16, hit_latency_cycles: 20}";
    let cached = Machine::from_yaml(&format!("{base}{l2}")).unwrap();
    let mut saved = 0;
    for line in golden("togsim/golden.csv").lines().skip(1) {
        let row: Vec<&str> = line.split(',').collect();
        if row[2] != "systolic_ws_128x128_c1_simple_noc_tpuv3"
            || row[4].parse::<u64>().unwrap() > 40_000
        {
            continue;
        }
        let grid: Vec<u64> = row[1].split('x').map(|n| n.parse().unwrap()).collect();
        let without = launch(row[0], &grid, &plain);
        let with = launch(row[0], &grid, &cached);
        assert!(without.dram.l2.is_empty());
        let mut l2 = tilesim_core::memory::l2::L2Stats::default();
        with.dram.l2.iter().for_each(|s| l2.add(s));
        assert_eq!(l2.accesses(), without.dram_requests, "{line}");
        assert_eq!(l2.dram_reads + l2.dram_writes, with.dram_requests, "{line}");
        assert_eq!(
            l2.read_hits + l2.write_hits + l2.misses + l2.sector_misses + l2.merges,
            l2.accesses()
        );
        let coarse = Machine {
            memory: MemoryModel::Transfer,
            ..cached.clone()
        };
        let coarse = launch(row[0], &grid, &coarse);
        let of_all = coarse.dram.l2[0];
        assert_eq!(of_all.accesses(), l2.accesses(), "{line}");
        assert_eq!(
            of_all.dram_reads + of_all.dram_writes,
            coarse.dram_requests,
            "{line}"
        );
        if l2.accesses() > 4096 {
            let (a, b) = (coarse.cycles as f64, with.cycles as f64);
            assert!((a / b - 1.0).abs() < 0.25, "{line}: {a} {b}");
            let (a, b) = (of_all.dram_reads as f64, l2.dram_reads as f64);
            assert!(
                (a - b).abs() < 0.1 * l2.accesses() as f64,
                "{line}: {a} {b}"
            );
        }
        // Written data stays, nothing is read twice within 2 MiB.
        assert!(with.dram_requests <= without.dram_requests, "{line}");
        saved += without.dram_requests - with.dram_requests;
        let stack: u64 = with.cycle_stack.iter().map(|e| e.cycles).sum();
        assert_eq!(stack, with.cycles);
        if l2.read_hits > l2.reads / 2 {
            assert!(
                with.cycle_stack.iter().any(|e| e.cause == Cause::L2),
                "{line}"
            );
        }
    }
    assert!(saved > 0);
}
