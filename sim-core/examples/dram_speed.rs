//! Requests per second of the banked DRAM model, per device and pattern, on one core.
//!
//! `cargo run --release -p tilesim-core --example dram_speed -- [requests] [device substring] [pattern]`
#![allow(clippy::panic, missing_docs)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

use std::time::Instant;

use tilesim_core::dram::{Channel, DramSpec};

#[path = "../tests/dram_common/mod.rs"]
mod dram_common;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let n: usize = args
        .get(1)
        .and_then(|a| a.parse().ok())
        .unwrap_or(1_000_000);
    let want = args.get(2).cloned().unwrap_or_default();
    let only = args.get(3).cloned().unwrap_or_default();
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/dram/devices");
    for dev in [
        "DDR4_2400R",
        "DDR4_3200AA",
        "HBM2_2000",
        "HBM3_6400",
        "LPDDR5_6400",
    ] {
        if !dev.contains(&want) {
            continue;
        }
        let text =
            std::fs::read_to_string(dir.join(format!("{dev}.1ch.ref.yaml"))).expect("device file");
        let mut spec = DramSpec::from_ramulator(&text).expect("device").spec;
        spec.accepts_per_tick = u32::MAX;
        for pattern in ["seq", "tile", "rand", "mixseq", "mixrand", "mix3arr"] {
            if !only.is_empty() && only != pattern {
                continue;
            }
            let reqs = dram_common::stream(pattern, spec.tx_bytes().into(), n);
            let mut best = f64::MAX;
            for _ in 0..std::env::var("REPS")
                .ok()
                .and_then(|r| r.parse().ok())
                .unwrap_or(3)
            {
                let mut ch = Channel::new(&spec);
                let mut out = Vec::with_capacity(n);
                let start = Instant::now();
                for (i, &(addr, write)) in reqs.iter().enumerate() {
                    ch.push(0, addr, write, i as u32);
                }
                let mut horizon = 0;
                while !ch.is_idle() {
                    horizon += 1_000_000;
                    ch.advance(&spec, horizon, &mut out);
                }
                best = best.min(start.elapsed().as_secs_f64());
                assert_eq!(out.len(), n);
            }
            println!(
                "{dev:12} {pattern:8} {:7.2} M requests/s",
                n as f64 / best / 1e6
            );
        }
    }
}
