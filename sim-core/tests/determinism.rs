//! The same launch gives the same bytes: on any number of threads, in any build, on any machine.
//!
//! `TILESIM_UPDATE_DIGESTS=1` writes `report_digests.txt` anew; the change is reviewed as a diff.

#![allow(clippy::unwrap_used, missing_docs)]

use std::fmt::Write as _;

mod launches;
use launches::load;

const LAUNCHES: &[(&str, &str, &str)] = &[
    ("vecadd_sync", "64", "tpuv3_simple_dram"),
    ("gemm_256", "2x2", "tpuv3_simple_dram_clocks"),
    ("preload_ahead", "2", "tpuv3_simple_dram_c2"),
    ("zero_cost_tiles", "16", "tpuv3_simple_dram_32ch"),
    ("gemm_256", "2x2", "systolic_ws_128x128_c1_simple_noc_tpuv3"),
    (
        "softmax_rows",
        "64",
        "systolic_ws_128x128_c1_simple_noc_tpuv3",
    ),
    (
        "row_conflict",
        "8",
        "systolic_ws_128x128_c1_simple_noc_tpuv3",
    ),
    (
        "gemm_1024_k",
        "1x1",
        "systolic_ws_128x128_c2_simple_noc_tpuv3",
    ),
    (
        "many_small_loads",
        "4",
        "systolic_ws_256x256_c1_simple_noc_tpuv6e",
    ),
    (
        "large_grid",
        "512",
        "systolic_ws_128x128_c2_simple_noc_tpuv3",
    ),
];

fn report(&(program, grid, machine): &(&str, &str, &str)) -> String {
    serde_json::to_string(&load(program, grid, machine).run()).unwrap()
}

#[test]
fn reports_are_the_same_bytes_in_every_build() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/report_digests.txt");
    let mut now = String::new();
    for launch in LAUNCHES {
        let digest = blake3::hash(report(launch).as_bytes()).to_hex();
        writeln!(now, "{} {} {} {digest}", launch.0, launch.1, launch.2).unwrap();
    }
    if std::env::var_os("TILESIM_UPDATE_DIGESTS").is_some() {
        std::fs::write(&path, &now).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap();
    assert_eq!(
        now, kept,
        "reports changed: if that is meant, set TILESIM_UPDATE_DIGESTS=1"
    );
}

#[test]
fn threads_do_not_matter() {
    let one: Vec<String> = LAUNCHES.iter().map(report).collect();
    for threads in [2, 8] {
        let next = std::sync::atomic::AtomicUsize::new(0);
        let runs: Vec<(usize, String)> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|_| {
                    scope.spawn(|| {
                        let mut done = Vec::new();
                        loop {
                            // Every launch twice, so that the same one also runs beside itself.
                            let k = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                            match LAUNCHES.get(k / 2) {
                                Some(launch) => done.push((k / 2, report(launch))),
                                None => return done,
                            }
                        }
                    })
                })
                .collect();
            workers
                .into_iter()
                .flat_map(|w| w.join().unwrap())
                .collect()
        });
        assert_eq!(runs.len(), 2 * LAUNCHES.len());
        for (k, bytes) in runs {
            assert!(bytes == one[k], "{:?} on {threads} threads", LAUNCHES[k]);
        }
    }
}
