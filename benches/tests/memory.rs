//! Most memory a process has resident while it runs a launch.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::path::Path;
use std::process::Command;

use tilesim_benches::golden::{machine_path, program_path};
use tilesim_benches::process::Sample;

/// Run a launch in a process of its own.
fn run(program: &Path, grid: &str, machine: &str, flags: &[&str]) -> Sample {
    let out = Command::new(env!("CARGO_BIN_EXE_perf"))
        .arg("run")
        .args([program.as_os_str(), grid.as_ref()])
        .arg(machine_path(machine))
        .arg("--sample")
        .args(flags)
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    serde_json::from_slice(&out.stdout).unwrap()
}

const SIMPLE: &str = "tpuv3_simple_dram";
const BANKED: &str = "systolic_ws_128x128_c1_simple_noc_tpuv3";

/// A program of `name`d kind for grids of any size, in a directory that is kept until the end.
fn any_grid(dir: &Path, name: &str, body: &str) -> std::path::PathBuf {
    let path = dir.join(format!("{name}.json"));
    let text = format!(
        r#"{{"name": "{name}", "axes": 1, "grids": [[1]],
            "tensors": [[1, 65536, 4], [1, 65536, 4]], "spad_buffer_bytes": [2048, 2048],
            "cycle_table": [[40, 0]], "body": [{body}],
            "compute_types": {{"0": "vector", "1": "matmul", "2": "preload", "3": "cross-lane"}}}}"#
    );
    std::fs::write(&path, text).unwrap();
    path
}

const COMPUTE: &str = r#"{"op": "compute", "tile": 0, "ct": 0, "reads": [], "writes": [1]}"#;
const LOAD: &str = r#"{"op": "dma", "dir": "load", "arg": 0, "offset_elems": "0", "dims": [64],
    "strides": [1], "elem_bits": 32, "is_async": true, "sem": 0, "reads": [], "writes": [0],
    "indirect": 0}, {"op": "wait", "sem": 0, "expected": 64}"#;

#[test]
fn resident_memory_does_not_depend_on_the_grid() {
    let dir = tempfile::tempdir().unwrap();
    let compute = any_grid(dir.path(), "compute", COMPUTE);
    let load = any_grid(dir.path(), "load", &format!("{LOAD}, {COMPUTE}"));
    // Where work repeats, the largest grid takes no longer than a small one; else every item is run.
    for (program, machine, large, flags) in [
        (&compute, SIMPLE, "10000000", &[][..]),
        (&load, SIMPLE, "10000000", &[]),
        (&compute, SIMPLE, "300000", &["--every-item"]),
        (&load, BANKED, "30000", &["--every-item"]),
    ] {
        let few = run(program, "100", machine, flags);
        let many = run(program, large, machine, flags);
        let line = format!(
            "{} {machine} {flags:?}: {} KiB for 100 items, {} KiB for {large}",
            program.file_stem().unwrap().display(),
            few.rss_kib,
            many.rss_kib
        );
        eprintln!("{line}");
        assert!(many.cycles > few.cycles * 100, "{line}");
        assert!(many.rss_kib * 10 <= few.rss_kib * 11, "{line}");
    }
}

#[test]
fn golden_launches_stay_under_64_mib() {
    // The rows with the largest transfers, the most in flight, and an L2.
    for (program, grid, machine) in [
        ("tight_scratchpad", "1", SIMPLE),
        ("tight_scratchpad", "1", BANKED),
        ("gemm_1024_k", "1x1", BANKED),
        (
            "gemm_1024_k",
            "1x1",
            "systolic_ws_256x256_c1_simple_noc_tpuv6e",
        ),
        (
            "gemm512_core_serial",
            "1x1",
            "systolic_ws_128x128_c2_simple_noc_tpuv3",
        ),
    ] {
        let sample = run(&program_path(program), grid, machine, &[]);
        let line = format!("{program} {grid} {machine}: {} KiB", sample.rss_kib);
        eprintln!("{line}");
        assert!(sample.rss_kib < 64 << 10, "{line}");
    }
}
