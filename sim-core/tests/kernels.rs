//! The kernel library on a machine: every kernel runs to its end, and the requests of the run are
//! the lines that its transfers cover, counted here one by one.

#![allow(clippy::expect_used)]
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use proptest::prelude::*;
use tilesim_core::machine::import::ImportOptions;
use tilesim_core::machine::{Machine, Residency, load};
use tilesim_core::{Launch, Report, simulate};
use tilesim_traces::kernels::args::{KINDS, parse_args};
use tilesim_traces::kernels::{self, CostModel, GivenCost, Kernel, KernelSpec, Matmul};
use tilesim_traces::model::{Direction, Stmt, Trace};
use tilesim_traces::{Bound, Limits, ValidTrace, WorkItem, to_text};

const LINE: i128 = 32;

fn machine() -> Machine {
    let name = "tpuv3_simple_dram";
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join(format!("../tests/golden/pytorchsim/configs/{name}.yml"));
    let text = std::fs::read_to_string(path).unwrap();
    let files = |path: &str| Err(format!("no {path}"));
    load(name, &text, &files, ImportOptions::default())
        .unwrap()
        .machine
}

/// What a caller fills in from the machine.
fn cost(machine: &Machine) -> CostModel {
    let c = &machine.cores;
    CostModel {
        array_rows: c.array_rows,
        array_cols: c.array_cols,
        lanes: c.vector_lanes,
        vector_bits: c.vector_bits,
        ..CostModel::default()
    }
}

/// Bytes that valid elements take, and lines that they touch, loaded and stored.
#[derive(Debug, Default, PartialEq)]
struct Stated {
    loaded: u64,
    stored: u64,
    lines_read: u64,
    lines_written: u64,
}

fn stated(bound: &Bound) -> Stated {
    let mut sum = Stated::default();
    let mut item = WorkItem::default();
    for index in 0..bound.items() {
        bound.expand(bound.pid(index), &mut item).unwrap();
        for t in &item.transfers {
            let mut lines = BTreeSet::new();
            let bits = i128::from(t.element_bits);
            let mut dims = &item.dims[t.dims.range()];
            // A contiguous row is one run of bits.
            let mut run = bits;
            if let Some((last, outer)) = dims.split_last().filter(|(last, _)| last.stride == 1) {
                run = bits * i128::from(last.extent);
                dims = outer;
            }
            let mut firsts = vec![t.first_bit];
            for dim in dims {
                let step = i128::from(dim.stride) * bits;
                firsts = firsts
                    .iter()
                    .flat_map(|f| (0..i128::from(dim.extent)).map(move |i| f + i * step))
                    .collect();
            }
            for first in firsts.into_iter().filter(|_| run > 0) {
                lines.extend(first / 8 / LINE..=(first + run - 1) / 8 / LINE);
            }
            let bytes = (t.valid_elements * u64::from(t.element_bits)).div_ceil(8);
            match t.direction {
                Direction::Load => {
                    sum.loaded += bytes;
                    sum.lines_read += lines.len() as u64;
                }
                Direction::Store => {
                    sum.stored += bytes;
                    sum.lines_written += lines.len() as u64;
                }
            }
        }
    }
    sum
}

fn run(machine: &Machine, spec: &KernelSpec) -> (Report, Stated) {
    let trace = ValidTrace::try_from(kernels::generate(spec).unwrap()).unwrap();
    let args = kernels::launch(spec).unwrap();
    let bound = Bound::new(&trace, &args, &Limits::default()).unwrap();
    let launch = Launch {
        args,
        ..Launch::default()
    };
    let report = simulate(machine, &trace, &launch, &mut ())
        .unwrap_or_else(|e| panic!("{e}\n{spec:?}\n{}", to_text(&trace)));
    let stated = stated(&bound);
    assert_eq!(
        report.dram.bytes_read,
        stated.lines_read * LINE as u64,
        "{spec:?}"
    );
    assert_eq!(
        report.dram.bytes_written,
        stated.lines_written * LINE as u64,
        "{spec:?}"
    );
    assert_eq!(report.work_items, bound.items());
    for core in &report.cores {
        let stack: u64 = report
            .cycle_stack
            .iter()
            .filter(|e| e.core == core.id)
            .map(|e| e.cycles)
            .sum();
        assert_eq!(stack, report.cycles);
    }
    (report, stated)
}

fn options(text: &str) -> BTreeMap<String, String> {
    text.split(' ')
        .map(|o| o.split_once('=').unwrap())
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect()
}

fn spec(kind: &str, text: &str) -> KernelSpec {
    parse_args(kind, &options(text), &cost(&machine())).unwrap_or_else(|e| panic!("{kind}: {e}"))
}

const CASES: &[(&str, &str)] = &[
    ("matmul", "m=256 n=256 k=256 tile=128x128x128"),
    (
        "matmul",
        "m=257 n=131 k=193 tile=128x64x64 group=2 stages=3",
    ),
    (
        "matmul",
        "m=256 n=256 k=512 tile=128x256x256 form=systolic stages=0",
    ),
    (
        "matmul",
        "m=100 n=90 k=500 tile=64x64x64 split_k=3 trans_a=true trans_b=true",
    ),
    (
        "matmul",
        "m=100 n=90 k=100 tile=32x32x32 persistent=3 group=2",
    ),
    (
        "batched_matmul",
        "batch=3 m=61 n=53 k=47 tile=32x32x16 form=systolic",
    ),
    (
        "batched_matmul",
        "batch=3 m=61 n=53 k=47 tile=32x32x16 shared_b=true split_k=2",
    ),
    (
        "conv",
        "images=2 height=14 width=13 channels=24 filters=20 kernel=3x3 padding=1x1 stride=2x1 tile=4x8x16x16",
    ),
    (
        "conv",
        "images=1 height=9 width=9 channels=8 filters=8 kernel=3x2 dilation=2x3 tile=4x4x8x8 layout=nchw form=systolic",
    ),
    ("softmax", "rows=37 cols=1000 tile=8x256 online=true"),
    ("softmax", "rows=37 cols=1000 tile=8x1024"),
    (
        "layer_norm",
        "rows=37 cols=1000 tile=8x256 online=true stages=1",
    ),
    ("layer_norm", "rows=37 cols=1000 tile=8x1024"),
    (
        "attention",
        "heads=4 share=2 queries=100 keys=131 head_dim=64 tile=32x64",
    ),
    (
        "attention",
        "heads=4 queries=100 keys=100 head_dim=64 tile=32x32 causal=true form=systolic",
    ),
    (
        "attention",
        "heads=1 queries=100 keys=20 head_dim=16 tile=32x32 causal=true stages=0",
    ),
    ("elementwise", "n=100003 block=4096 inputs=3"),
    ("elementwise", "n=1000 block=512 inputs=0"),
    ("reduction", "rows=100 cols=1001 tile=16x128"),
    (
        "reduction",
        "rows=1001 cols=100 axis=0 tile=128x16 stages=3",
    ),
    (
        "matmul",
        "m=31 n=33 k=65 tile=16x16x32 dtype=i4 acc=i32 out=i32",
    ),
];

#[test]
fn every_kind_runs_to_its_end() {
    let machine = machine();
    let mut seen = BTreeSet::new();
    for &(kind, text) in CASES {
        let (report, _) = run(&machine, &spec(kind, text));
        assert!(report.cycles > 0);
        seen.insert(kind);
    }
    assert_eq!(seen.len(), KINDS.len());
}

fn moved_bytes(trace: &Trace) -> u64 {
    fn walk(body: &[Stmt], moved: &mut BTreeSet<usize>) {
        for stmt in body {
            match stmt {
                Stmt::For(f) => walk(&f.body, moved),
                Stmt::If(i) => {
                    walk(&i.then, moved);
                    walk(&i.otherwise, moved);
                }
                Stmt::Dma(d) => moved.extend(d.reads.iter().chain(&d.writes).map(|b| b.index())),
                Stmt::Compute(_) | Stmt::Wait(_) => {}
            }
        }
    }
    let mut moved = BTreeSet::new();
    walk(&trace.body, &mut moved);
    moved.into_iter().map(|b| trace.buffers[b].bytes).sum()
}

/// A scratchpad that holds one work-item's buffers is enough: nothing locks, however little more
/// there is. (Without reuse of buffers, `stages=0`, loads that run ahead can fill the scratchpad of two
/// residents: that is the reference's rule, and the lock is reported.)
#[test]
fn every_kind_runs_in_a_tight_scratchpad() {
    for &(kind, text) in CASES.iter().filter(|c| !c.1.contains("stages=0")) {
        let spec = spec(kind, text);
        let bytes = moved_bytes(&kernels::generate(&spec).unwrap());
        for slack in [0, 1, bytes / 3, bytes - 1, bytes, bytes + bytes / 2] {
            for cores in 1..3 {
                let mut machine = machine();
                machine.cores.count = cores;
                machine.cores.scratchpad_bytes = bytes + slack;
                run(&machine, &spec);
            }
        }
    }
}

#[test]
fn aligned_bytes_are_those_of_the_problem() {
    let machine = machine();
    let (m, n, k, bm, bn) = (512u64, 384u64, 256u64, 128u64, 64u64);
    let (report, stated) = run(
        &machine,
        &spec("matmul", "m=512 n=384 k=256 tile=128x64x32 group=4"),
    );
    assert_eq!(stated.loaded, 2 * (m * k * (n / bn) + k * n * (m / bm)));
    assert_eq!(stated.stored, 2 * m * n);
    assert_eq!(report.dram.bytes_read, stated.loaded);
    assert_eq!(report.dram.bytes_written, stated.stored);
    let (report, stated) = run(&machine, &spec("softmax", "rows=64 cols=2048 tile=8x2048"));
    assert_eq!(
        (stated.loaded, stated.stored),
        (64 * 2048 * 4, 64 * 2048 * 4)
    );
    assert_eq!(report.dram.bytes_read, stated.loaded);
}

/// Nothing here is fitted: public formulas and the machine's own figures. The cycles are those that
/// the project's reference figures give for a TPU v3 (`tpu_v3_kernels.csv`).
#[test]
fn analytic_gemms_come_near_a_tpu_v3() {
    let machine = machine();
    for (n, want) in [(256, 3101), (512, 9490), (1024, 47099), (2048, 317_435)] {
        let k = 256.min(n);
        let (tile, arrays) = (512.min(n), machine.cores.systolic_arrays);
        let text = format!(
            "m={n} n={n} k={n} tile={tile}x{tile}x{k} dtype=f32 matmul_cost=onnxim_ws arrays={arrays}"
        );
        let got = run(&machine, &spec("matmul", &text)).0.cycles;
        let off = got as f64 / f64::from(want) - 1.0;
        eprintln!("{n}: {got}, {want} on hardware, {:+.1} %", off * 100.0);
        assert!(off.abs() < 0.2, "{n}: {got} for {want}");
    }
}

/// With compute as long as transfers, each buffer more hides more of them, up to what the dependency
/// on freed buffers allows; without that dependency two buffers would be as good as many.
#[test]
fn stages_hide_latency() {
    let machine = machine();
    let cycles = |stages: u32| {
        let kernel = Kernel::Matmul(Matmul {
            stages,
            ..Matmul::new(64, 64, 4096, [64, 64, 64])
        });
        let mut cost = cost(&machine);
        cost.fixed.insert(
            "dot".into(),
            GivenCost {
                cycles: 60,
                overlap: 0,
            },
        );
        run(&machine, &KernelSpec::new(kernel, cost)).0.cycles
    };
    let measured: Vec<u64> = [1, 2, 3, 4, 8, 0].into_iter().map(cycles).collect();
    eprintln!("stages 1 2 3 4 8 as-fits: {measured:?}");
    let [one, two, three, four, eight, fits] = measured.as_slice() else {
        panic!()
    };
    // One buffer: load, then compute, 64 times; the load takes 85 cycles of latency and more.
    assert!(*one > 64 * (85 + 60));
    assert!(*two * 10 < *one * 8);
    assert!(three <= two && four <= three && eight <= four);
    // As many as fit: like eight, but for the order in which ops take the issue slot.
    assert!(fits.abs_diff(*eight) * 100 < *eight);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn kernels_run_in_a_tight_scratchpad(
        mnk in [1u64..80, 1u64..80, 1u64..120],
        tile in proptest::sample::select(&[[16u64, 16, 16], [32, 16, 8], [64, 64, 32], [8, 32, 64]][..]),
        (stages, group, split_k) in (1u32..5, 1u64..4, 1u64..4),
        (systolic, trans) in any::<(bool, bool)>(),
        slack in prop_oneof![Just(0u64), 0u64..20_000],
        cores in 1u32..3,
    ) {
        let mut machine = machine();
        machine.cores.count = cores;
        let form = if systolic { kernels::Form::Systolic } else { kernels::Form::Dot };
        let kernel = Kernel::Matmul(Matmul {
            stages, group, split_k, form, trans_a: trans, trans_b: !trans,
            ..Matmul::new(mnk[0], mnk[1], mnk[2], tile)
        });
        let spec = KernelSpec::new(kernel, cost(&machine));
        let trace = kernels::generate(&spec).unwrap();
        let bytes = moved_bytes(&trace);
        machine.cores.scratchpad_bytes = bytes + slack;
        run(&machine, &spec);
    }
}

#[test]
fn declared_threads_and_registers_limit_residents() {
    let mut machine = machine();
    machine.cores.residency = Residency::Resources {
        max: 8,
        registers: 65_536,
        threads: 2048,
    };
    let options = "m=256 n=256 k=64 tile=32x32x32 acc_in_registers=true";
    let cycles = |more: &str, per_item: [Option<u64>; 2]| {
        let spec = spec("matmul", &format!("{options}{more}"));
        let trace = ValidTrace::try_from(kernels::generate(&spec).unwrap()).unwrap();
        let mut launch = Launch {
            args: kernels::launch(&spec).unwrap(),
            ..Launch::default()
        };
        [
            launch.options.registers_per_item,
            launch.options.threads_per_item,
        ] = per_item;
        let report = simulate(&machine, &trace, &launch, &mut ()).unwrap();
        (report.cycles, report.identity.launch)
    };
    let many = cycles("", [None, None]).0;
    let one = cycles(" threads=2048", [None, None]).0;
    assert!(one > many, "one resident {one}, eight {many}");
    assert_eq!(cycles(" registers=40000", [None, None]).0, one);
    assert_eq!(cycles(" threads=256 registers=8192", [None, None]).0, many);
    // A launch says otherwise.
    assert_eq!(cycles(" threads=2048", [None, Some(256)]).0, many);
    assert_eq!(cycles("", [None, Some(2048)]).0, one);
    // What is declared and said alike is one launch.
    let said = cycles(" threads=2048", [None, Some(2048)]);
    assert_eq!(said, cycles(" threads=2048", [None, None]));
    assert_ne!(said.1, cycles(" threads=2048", [None, Some(256)]).1);
}
