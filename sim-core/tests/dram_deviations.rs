//! The known gaps of `docs/deviations/dram.md`, by number. Closing one trips its test.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod dram_common;

use dram_common::{golden_text, run_one, stream};
use tilesim_core::dram::{Channel, DramSpec};

fn refused(from: &str, to: &str) -> String {
    let text = golden_text("devices/HBM3_6400.1ch.ref.yaml");
    assert!(text.contains(from));
    DramSpec::from_ramulator(&text.replacen(from, to, 1))
        .unwrap_err()
        .path
}

#[test]
fn number_1_closed_cap_is_refused() {
    assert_eq!(
        refused("impl: Open", "impl: ClosedCAP"),
        "memory_system.controllers[0].row_policy.impl"
    );
}

#[test]
fn number_2_other_refresh_managers_are_refused() {
    let manager = "memory_system.controllers[0].refresh_manager";
    assert_eq!(
        refused("impl: AllBank", "impl: HBM34PerBankRefresh"),
        format!("{manager}.impl")
    );
    assert_eq!(
        refused("scatter_interval: 0", "scatter_interval: 9"),
        format!("{manager}.scatter_interval")
    );
}

#[test]
fn number_3_the_older_controller_counts_before_the_command() {
    let file = DramSpec::from_ramulator(&golden_text("pytorchsim/HBM2_TPUv3.yaml")).unwrap();
    let run = run_one(&file.spec, &stream("rowstride.HBM2", 32, 500), false);
    // One bank, one row after another: the first finds it closed, and so do those right after a
    // refresh; the others find another row.
    assert_eq!((run.stats[0].misses, run.stats[0].conflicts), (5, 495));
}

#[test]
fn number_5_posted_writes_stay_behind() {
    let mut spec = DramSpec::preset("DDR4_2400R").unwrap();
    spec.set_look_ahead(8).unwrap();
    let mut ch = Channel::new(&spec);
    ch.push(0, 0, true, 0);
    let mut out = Vec::new();
    ch.advance(&spec, 10_000, &mut out);
    assert_eq!(out.len(), 1);
    assert_eq!((out[0].tick, out[0].tag), (1, 0));
    assert_eq!(ch.unwritten(), 1);
    assert!(ch.is_idle());
}

#[test]
fn number_6_half_clocks_are_whole_picoseconds() {
    assert_eq!(DramSpec::preset("HBM3_6400").unwrap().tck_ps(), 312);
    assert_eq!(DramSpec::preset("HBM3_5200").unwrap().tck_ps(), 384);
}

#[test]
fn number_8_waits_sum_to_the_time_in_the_queue() {
    for name in ["DDR4_2400R", "HBM3_6400", "LPDDR5_6400"] {
        let spec = DramSpec::preset(name).unwrap();
        let reqs = stream("rand", spec.tx_bytes().into(), 4000);
        let run = run_one(&spec, &reqs, false);
        let s = &run.stats[0];
        // Latency counts from the clock before acceptance to the data, the wait from there to the read command.
        let queued = s.read_latency_sum - s.reads * (u64::from(spec.read_latency) + 1);
        assert_eq!(s.wait_refresh + s.wait_bank + s.wait_bus, queued, "{name}");
        assert!(
            s.wait_refresh > 0 && s.wait_bank > 0 && s.wait_bus > 0,
            "{name}"
        );
    }
}
