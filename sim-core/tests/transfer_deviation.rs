//! The transfer-level memory model against request by request, over the golden set.
//!
//! `docs/deviations/transfer.md` has the figures; `UPDATE_PUBLISHED=1` writes them anew, with
//! `TILESIM_GOLDEN_ALL=1` also for the rows of more than 300,000 requests.

#![allow(clippy::expect_used, clippy::panic)]
#![allow(clippy::unwrap_used, missing_docs)]

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Instant;

use tilesim_core::machine::import::ImportOptions;
use tilesim_core::machine::{Machine, MemoryModel, load};
use tilesim_core::memory::TRANSFER_DIFFERENCES;
use tilesim_core::report::Exactness;
use tilesim_core::{Launch, Report, SimError, simulate};
use tilesim_traces::{LaunchArgs, ValidTrace, json, validate};

fn golden(path: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/golden")
        .join(path);
    std::fs::read_to_string(path).unwrap()
}

fn machine(name: &str) -> Machine {
    let text = golden(&format!("pytorchsim/configs/{name}.yml"));
    let files = |path: &str| -> Result<String, String> {
        Ok(golden(&format!(
            "pytorchsim/configs/{}",
            path.trim_start_matches("../configs/")
        )))
    };
    load(name, &text, &files, ImportOptions::default())
        .unwrap()
        .machine
}

fn run(machine: &Machine, trace: &ValidTrace, grid: &str) -> Result<Report, SimError> {
    let grid = grid.split('x').map(|n| n.parse().unwrap()).collect();
    let args = LaunchArgs {
        grid,
        ..LaunchArgs::default()
    };
    simulate(
        machine,
        trace,
        &Launch {
            args,
            ..Launch::default()
        },
        &mut (),
    )
}

#[test]
fn differences_over_the_golden_set() {
    let all = std::env::var_os("TILESIM_GOLDEN_ALL").is_some();
    let mut table = String::new();
    let (mut rows, mut logs, mut worst) = (0u32, 0.0, 0.0f64);
    for line in golden("togsim/golden.csv").lines().skip(1) {
        let row: Vec<&str> = line.split(',').collect();
        let requests: u64 = row[4].parse().unwrap();
        if row[3] == "deadlock" || (!all && requests > 300_000) {
            continue;
        }
        let exact = machine(row[2]);
        let coarse = Machine {
            memory: MemoryModel::Transfer,
            ..exact.clone()
        };
        let text = golden(&format!("togsim/programs/{}.json", row[0]));
        let trace = validate(json::import(&text, &json::no_files).unwrap().trace).unwrap();
        let begin = Instant::now();
        let Ok(want) = run(&exact, &trace, row[1]) else {
            continue;
        };
        let exact_time = begin.elapsed();
        let begin = Instant::now();
        let got = run(&coarse, &trace, row[1]).unwrap();
        let coarse_time = begin.elapsed();
        assert_eq!(got.dram_requests, requests, "{line}");
        assert_eq!(got.exactness, Exactness::TransferLevel);
        assert!(got.notes.iter().any(|n| n.contains("approximate")));
        let again = run(&coarse, &trace, row[1]).unwrap();
        assert_eq!(again, got);
        let ratio = got.cycles as f64 / want.cycles as f64;
        rows += 1;
        logs += ratio.ln().abs();
        worst = worst.max((ratio - 1.0).abs());
        writeln!(
            table,
            "| {} | {} | {} | {} | {} | {:+.1} |",
            row[0],
            row[1],
            row[2],
            want.cycles,
            got.cycles,
            (ratio - 1.0) * 100.0
        )
        .unwrap();
        eprintln!(
            "{:+6.1} % {line} exact {} coarse {} time {exact_time:?} {coarse_time:?}",
            (ratio - 1.0) * 100.0,
            want.cycles,
            got.cycles
        );
    }
    let mean = ((logs / f64::from(rows)).exp() - 1.0) * 1000.0;
    eprintln!(
        "{rows} rows, mean {mean:.1}, worst {:.1} tenths of a per cent",
        worst * 1000.0
    );
    let (said_mean, said_worst) = TRANSFER_DIFFERENCES;
    if all {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/deviations/transfer.md");
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        let head = found
            .split("| program |")
            .next()
            .unwrap_or_default()
            .to_string();
        let text = format!(
            "{head}| program | grid | machine | requests | transfer | % |\n|---|---|---|---|---|---|\n{table}"
        );
        if std::env::var_os("UPDATE_PUBLISHED").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        assert_eq!(mean.round() as u32, said_mean, "over all rows");
        assert_eq!((worst * 1000.0).round() as u32, said_worst);
    }
    // What is said covers the part of the rows that is run here.
    assert!(mean <= f64::from(said_mean) + 5.0, "{mean}");
    assert!(worst * 1000.0 <= f64::from(said_worst) + 1.0, "{worst}");
}
