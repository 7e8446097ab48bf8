//! The twin's rules on cases small enough to work out by hand: exact lists of (counter, op).

#![allow(clippy::expect_used)]
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod togsim;
mod twin;

use tilesim_core::machine::{ComputeIssue, DispatchPolicy, Machine, Residency};
use togsim::{Program, machine};
use twin::{TwinError, TwinReport, run};

/// A program of tiles `[cycles, overlap]`, with buffers 0 to 3 of 64 bytes and 4 and 5 virtual.
fn program(tiles: &str, body: &[&str]) -> Program {
    Program::new(&format!(
        r#"{{"tensors": [[1, 4096, 4]], "spad_buffer_bytes": [64, 64, 64, 64, 0, 0],
            "cycle_table": {tiles}, "body": [{}]}}"#,
        body.join(",")
    ))
}

fn tile(tile: u32, unit: &str, reads: &str, writes: &str) -> String {
    let ct = ["vector", "matmul", "preload", "cross-lane"]
        .iter()
        .position(|u| *u == unit)
        .unwrap();
    format!(
        r#"{{"op": "compute", "tile": {tile}, "ct": {ct}, "reads": {reads}, "writes": {writes}}}"#
    )
}

fn dma(dir: &str, is_async: bool, buffer: u32) -> String {
    let (reads, writes) = if dir == "load" {
        (String::new(), buffer.to_string())
    } else {
        (buffer.to_string(), String::new())
    };
    format!(
        r#"{{"op": "dma", "dir": "{dir}", "arg": 0, "offset_elems": "p0*16", "dims": [16],
            "strides": [1], "elem_bits": 32, "is_async": {is_async}, "sem": {buffer},
            "reads": [{reads}], "writes": [{writes}]}}"#
    )
}

fn wait(buffer: u32) -> String {
    format!(r#"{{"op": "wait", "sem": {buffer}, "expected": 16}}"#)
}

fn per_unit() -> Machine {
    let mut m = machine("tpuv3_simple_dram");
    m.cores.compute_issue = ComputeIssue::PerUnit;
    m
}

fn report(m: &Machine, p: &Program, items: u64) -> Result<TwinReport, TwinError> {
    run(m, &p.tiles, &p.buffers, |n| p.item(&[items], n))
}

/// (counter, op) of one work-item's run, in issue order.
fn issues(m: &Machine, p: &Program) -> Vec<(u64, usize)> {
    report(m, p, 1)
        .unwrap()
        .issues
        .iter()
        .map(|i| (i.cycle, i.op))
        .collect()
}

#[test]
fn serial_runs_one_tile_at_a_time() {
    let body = [
        tile(0, "vector", "[]", "[]"),
        tile(1, "cross-lane", "[]", "[]"),
    ];
    let p = program("[[10, 0], [7, 0]]", &body.each_ref().map(String::as_str));
    let m = machine("tpuv3_simple_dram");
    assert_eq!(issues(&m, &p), [(2, 0), (12, 1)]);
    // 12 + 7 = 19 retires in the step that makes the counter 20.
    assert_eq!(report(&m, &p, 1).unwrap().cycles, 20);
}

#[test]
fn units_run_side_by_side_and_issue_never_waits_for_a_unit() {
    let body = [
        tile(0, "vector", "[]", "[0]"),
        tile(0, "vector", "[]", "[1]"),
        tile(1, "cross-lane", "[]", "[]"),
        tile(2, "vector", "[1]", "[]"),
    ];
    let p = program(
        "[[10, 4], [7, 0], [1, 0]]",
        &body.each_ref().map(String::as_str),
    );
    // Op 0 runs 2..12. Op 1 issues at 3 and starts 4 before op 0 ends: 8..18. Its reader: 19.
    assert_eq!(issues(&per_unit(), &p), [(2, 0), (3, 1), (4, 2), (19, 3)]);
}

#[test]
fn an_overlap_never_starts_a_tile_before_it_issues() {
    let body = [
        tile(0, "vector", "[]", "[0]"),
        tile(1, "vector", "[]", "[1]"),
        tile(2, "cross-lane", "[1]", "[]"),
    ];
    let p = program(
        "[[10, 0], [20, 100], [1, 0]]",
        &body.each_ref().map(String::as_str),
    );
    // Op 1 issues and starts at 3, ends at 23.
    assert_eq!(issues(&per_unit(), &p), [(2, 0), (3, 1), (24, 2)]);
}

#[test]
fn a_matmul_streams_behind_its_preload_and_holds_the_weight_slot() {
    let body = [
        tile(0, "preload", "[]", "[4]"),
        tile(1, "matmul", "[4]", "[0]"),
        tile(0, "preload", "[]", "[5]"),
        tile(1, "matmul", "[5]", "[1]"),
    ];
    let p = program("[[5, 0], [20, 0]]", &body.each_ref().map(String::as_str));
    let mut m = per_unit();
    (m.cores.systolic_arrays, m.cores.weight_slots) = (1, 1);
    // Both preloads are ready at 2; the second waits for the slot. The matmul ends at 7 + 20 and
    // lets go of the slot then.
    assert_eq!(issues(&m, &p), [(2, 0), (3, 1), (27, 2), (28, 3)]);
    m.cores.weight_slots = 2;
    assert_eq!(issues(&m, &p), [(2, 0), (3, 2), (4, 1), (5, 3)]);
    m.cores.compute_issue = ComputeIssue::Serial;
    // Serial: the second preload is older in the ready list than the first matmul.
    assert_eq!(issues(&m, &p), [(2, 0), (7, 2), (12, 1), (32, 3)]);
}

#[test]
fn zero_cost_tiles_take_no_time_and_no_slot() {
    let body = [
        tile(0, "vector", "[]", "[0]"),
        tile(0, "vector", "[0]", "[1]"),
        tile(1, "vector", "[1]", "[]"),
    ];
    let p = program("[[0, 0], [3, 0]]", &body.each_ref().map(String::as_str));
    let m = machine("tpuv3_simple_dram");
    assert_eq!(issues(&m, &p), [(2, 0), (2, 1), (2, 2)]);
    assert_eq!(report(&m, &p, 1).unwrap().cycles, 6);
}

#[test]
fn a_wait_issues_when_requests_are_sent_and_completes_when_data_is_there() {
    let body = [
        dma("load", true, 0),
        wait(0),
        tile(0, "vector", "[0]", "[]"),
    ];
    let p = program("[[3, 0]]", &body.each_ref().map(String::as_str));
    let m = machine("tpuv3_simple_dram");
    // Sent in step 3, dropped in step 4, where the wait issues; data after 2 + 84; reader 2 + 85.
    assert_eq!(issues(&m, &p), [(2, 0), (4, 1), (87, 2)]);
}

#[test]
fn a_younger_work_item_can_overtake() {
    // Two slots: item 3 waits in slot 1 while slot 0 is bound and served again and again.
    let body = [tile(0, "vector", "[]", "[0]")];
    let p = program("[[50, 0]]", &body.each_ref().map(String::as_str));
    let m = machine("tpuv3_simple_dram");
    let order = |m: &Machine| -> Vec<usize> {
        report(m, &p, 8)
            .unwrap()
            .issues
            .iter()
            .map(|i| i.item)
            .collect()
    };
    assert_eq!(order(&m), [0, 1, 2, 4, 5, 6, 7, 3]);
    let mut one = m.clone();
    one.cores.residency = Residency::Shared { max: 1 };
    assert_eq!(order(&one), [0, 1, 2, 3, 4, 5, 6, 7]);
    let mut dynamic = m;
    dynamic.dispatch = DispatchPolicy::Dynamic;
    assert_eq!(order(&dynamic), [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_version_freed_on_another_core_leaks() {
    // The load is never read by its own work-item; the next one's store (on the other core) is the
    // version's last reader.
    let body = [dma("store", false, 0), dma("load", false, 0)];
    let p = program("[[1, 0]]", &body.each_ref().map(String::as_str));
    let mut m = machine("tpuv3_simple_dram");
    m.cores.scratchpad_bytes = 128;
    assert!(report(&m, &p, 12).is_ok());
    (m.cores.count, m.cores.partition) = (2, vec![0, 0]);
    assert!(matches!(
        report(&m, &p, 12),
        Err(TwinError::Deadlock { .. })
    ));
}
