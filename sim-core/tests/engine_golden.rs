//! The engine against the figures of the reference simulator (`tests/golden/togsim`), through the
//! importers a user goes through.
//!
//! `TILESIM_GOLDEN_ALL=1` also runs rows of more than two million requests.

#![allow(clippy::expect_used)]
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::path::PathBuf;

use tilesim_core::machine::import::ImportOptions;
use tilesim_core::machine::{Machine, load};
use tilesim_core::{Launch, Report, SimError, simulate};
use tilesim_traces::{LaunchArgs, json, validate};

fn golden(path: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/golden")
        .join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn machine(name: &str) -> Machine {
    let text = golden(&format!("pytorchsim/configs/{name}.yml"));
    let files = |path: &str| -> Result<String, String> {
        let path = path.trim_start_matches("../configs/");
        Ok(golden(&format!("pytorchsim/configs/{path}")))
    };
    load(name, &text, &files, ImportOptions::default())
        .unwrap()
        .machine
}

fn run(program: &str, grid: &str, machine_name: &str) -> Result<Report, SimError> {
    let import = json::import(program, &json::no_files).unwrap();
    let trace = validate(import.trace).unwrap();
    let args = LaunchArgs {
        grid: grid.split('x').map(|n| n.parse().unwrap()).collect(),
        ..LaunchArgs::default()
    };
    let launch = Launch {
        args,
        ..Launch::default()
    };
    simulate(&machine(machine_name), &trace, &launch, &mut ())
}

fn outcome(result: &Result<Report, SimError>) -> String {
    match result {
        Ok(report) => report.cycles.to_string(),
        Err(SimError::Deadlock(_)) => "deadlock".into(),
        Err(e) => format!("{} {e}", e.code()),
    }
}

#[test]
fn golden_rows_are_equal_to_the_cycle() {
    let all = std::env::var_os("TILESIM_GOLDEN_ALL").is_some();
    let mut wrong = Vec::new();
    let mut rows = 0;
    for line in golden("togsim/golden.csv").lines().skip(1) {
        let row: Vec<&str> = line.split(',').collect();
        let requests: u64 = row[4].parse().unwrap();
        if !row[2].starts_with("tpuv3_simple_dram") || (!all && requests > 2_000_000) {
            continue;
        }
        rows += 1;
        let result = run(
            &golden(&format!("togsim/programs/{}.json", row[0])),
            row[1],
            row[2],
        );
        let got = outcome(&result);
        if got != row[3] {
            wrong.push(format!(
                "{} {} {}: {} but {got}",
                row[0], row[1], row[2], row[3]
            ));
        }
        if let Ok(report) = result {
            check_report(&report);
            if report.dram_requests != requests {
                wrong.push(format!("{line}: {} requests", report.dram_requests));
            }
        }
    }
    assert!(rows >= 80, "{rows}");
    assert!(
        wrong.is_empty(),
        "{} of {rows} rows differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn banked_rows_are_close() {
    let all = std::env::var_os("TILESIM_GOLDEN_ALL").is_some();
    let mut wrong = Vec::new();
    let (mut rows, mut logs) = (0, 0.0);
    for line in golden("togsim/golden.csv").lines().skip(1) {
        let row: Vec<&str> = line.split(',').collect();
        let requests: u64 = row[4].parse().unwrap();
        if row[2].starts_with("tpuv3_simple_dram") || (!all && requests > 300_000) {
            continue;
        }
        rows += 1;
        let want: f64 = row[3].parse().unwrap();
        match run(
            &golden(&format!("togsim/programs/{}.json", row[0])),
            row[1],
            row[2],
        ) {
            Ok(report) => {
                check_report(&report);
                assert_eq!(report.dram_requests, requests, "{line}");
                let ratio = report.cycles as f64 / want;
                logs += ratio.ln().abs();
                eprintln!("{:+.2} % {line} {}", (ratio - 1.0) * 100.0, report.cycles);
                if (ratio - 1.0).abs() > 0.001 {
                    wrong.push(format!(
                        "{line}: {} is {:+.1} %",
                        report.cycles,
                        (ratio - 1.0) * 100.0
                    ));
                }
            }
            Err(e) => wrong.push(format!("{line}: {e}")),
        }
    }
    eprintln!("mean absolute log ratio {}", logs / f64::from(rows));
    assert!(
        wrong.is_empty(),
        "{} of {rows} rows differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn random_rows_are_equal_to_the_cycle() {
    let programs: Vec<String> = golden("togsim/random/programs.jsonl")
        .lines()
        .map(String::from)
        .collect();
    let mut wrong = Vec::new();
    let mut rows = 0;
    for line in golden("togsim/random/golden.csv").lines().skip(1) {
        let row: Vec<&str> = line.split(',').collect();
        let start = format!("{{\"name\": \"{}\",", row[0]);
        let text = programs.iter().find(|p| p.starts_with(&start)).unwrap();
        rows += 1;
        let result = run(text, row[1], row[2]);
        let got = outcome(&result);
        if got != row[3] {
            wrong.push(format!(
                "{} {} {}: {} but {got}",
                row[0], row[1], row[2], row[3]
            ));
        }
        if let Ok(report) = result {
            check_report(&report);
        }
    }
    assert_eq!(rows, 183);
    assert!(
        wrong.is_empty(),
        "{} of {rows} rows differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// What holds for every result.
fn check_report(report: &Report) {
    for core in &report.cores {
        for unit in &core.units {
            assert_eq!(unit.active + unit.idle, report.cycles, "{}", unit.unit);
        }
        let stack: u64 = report
            .cycle_stack
            .iter()
            .filter(|e| e.core == core.id)
            .map(|e| e.cycles)
            .sum();
        assert_eq!(stack, report.cycles, "the cycle stack sums to the total");
    }
    let sent: u64 = report.cores.iter().map(|c| c.requests).sum();
    assert_eq!(sent, report.dram_requests);
}

#[test]
fn semaphore_cases() {
    let config = "tpuv3_simple_dram";
    assert!(
        run(
            &golden("togsim/programs/semaphore_two_loads.json"),
            "1",
            config
        )
        .is_ok()
    );
    for (name, code) in [
        ("refuse_no_wait", "trace.read_before_wait"),
        ("refuse_wait_count", "trace.wait_count"),
        ("refuse_wait_unsignalled", "trace.wait_unsignalled"),
    ] {
        let error = run(
            &golden(&format!("togsim/programs/{name}.json")),
            "1",
            config,
        )
        .unwrap_err();
        assert_eq!(error.code(), code);
    }
}

/// Tiles that add up past 2^64 cycles end in an error, not in a wrapped number.
#[test]
fn totals_beyond_a_cycle_number_are_refused() {
    let text = r#"{"name": "long", "axes": 1, "grids": [[1]], "tensors": [[1, 64, 4]],
        "spad_buffer_bytes": [64], "cycle_table": [[9007199254740991, 0]],
        "body": [{"op": "loop", "var": "i", "start": 0, "stop": 4096, "step": 1, "body": [
            {"op": "compute", "tile": 0, "ct": 0, "reads": [], "writes": []}]}]}"#;
    let trace = validate(json::import(text, &json::no_files).unwrap().trace).unwrap();
    for issue in [
        tilesim_core::machine::ComputeIssue::Serial,
        tilesim_core::machine::ComputeIssue::PerUnit,
    ] {
        let mut machine = machine("tpuv3_simple_dram");
        machine.cores.compute_issue = issue;
        let launch = Launch {
            args: LaunchArgs {
                grid: vec![1],
                ..LaunchArgs::default()
            },
            ..Launch::default()
        };
        let error = simulate(&machine, &trace, &launch, &mut ()).unwrap_err();
        assert_eq!(error.code(), "run.over_budget");
    }
}
