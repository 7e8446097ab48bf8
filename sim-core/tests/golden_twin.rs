//! The naive twin against the figures of the reference simulator (`tests/golden/togsim`).
//!
//! Set `TILESIM_GOLDEN_ALL=1` to run the rows of more than 400,000 requests too.

#![allow(clippy::expect_used)]
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod togsim;
mod twin;

use tilesim_traces::launch::{OpKind, Span, WorkItem};
use tilesim_traces::{Bound, LaunchArgs, Limits, ValidTrace, json};
use togsim::{Program, machine, read};
use twin::{Refusal, TwinError, TwinReport, run};

fn simulate(program: &Program, grid: &str, on: &str) -> Result<TwinReport, TwinError> {
    let grid: Vec<u64> = grid.split('x').map(|n| n.parse().unwrap()).collect();
    run(&machine(on), &program.tiles, &program.buffers, |n| {
        program.item(&grid, n)
    })
}

fn check_rows(rows: &[(Program, Vec<String>)]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (program, row) in rows {
        let result = simulate(program, &row[1], &row[2]);
        let got = match &result {
            Ok(r) => r.cycles.to_string(),
            Err(TwinError::Deadlock { .. }) => "deadlock".into(),
            Err(e) => format!("{e:?}"),
        };
        if got != row[3] {
            wrong.push(format!(
                "{} {} {}: {} but {got}",
                row[0], row[1], row[2], row[3]
            ));
        }
        if let (Ok(r), Some(requests)) = (&result, row.get(4))
            && r.dram_requests.to_string() != *requests
        {
            wrong.push(format!(
                "{} {}: {requests} requests but {}",
                row[0], row[1], r.dram_requests
            ));
        }
    }
    wrong
}

#[test]
fn golden_rows_agree_to_the_cycle() {
    let all = std::env::var_os("TILESIM_GOLDEN_ALL").is_some();
    let mut rows = Vec::new();
    for line in read("togsim/golden.csv").lines().skip(1) {
        let row: Vec<String> = line.split(',').map(String::from).collect();
        let requests: u64 = row[4].parse().unwrap();
        if row[2].starts_with("tpuv3_simple_dram") && (all || requests <= 400_000) {
            let program = read(&format!("togsim/programs/{}.json", row[0]));
            rows.push((Program::new(&program), row));
        }
    }
    assert_eq!(rows.len(), if all { 83 } else { 73 });
    let wrong = check_rows(&rows);
    assert!(
        wrong.is_empty(),
        "{} of {} rows differ:\n{}",
        wrong.len(),
        rows.len(),
        wrong.join("\n")
    );
}

#[test]
fn random_rows_agree_to_the_cycle() {
    let programs: Vec<String> = read("togsim/random/programs.jsonl")
        .lines()
        .map(String::from)
        .collect();
    let mut rows = Vec::new();
    for line in read("togsim/random/golden.csv").lines().skip(1) {
        let row: Vec<String> = line.split(',').map(String::from).collect();
        let start = format!("{{\"name\": \"{}\",", row[0]);
        let text = programs.iter().find(|p| p.starts_with(&start)).unwrap();
        rows.push((Program::new(text), row));
    }
    assert_eq!(rows.len(), 183);
    let wrong = check_rows(&rows);
    assert!(
        wrong.is_empty(),
        "{} of {} rows differ:\n{}",
        wrong.len(),
        rows.len(),
        wrong.join("\n")
    );
}

#[test]
fn refused_programs_are_refused() {
    for (name, want) in [
        ("refuse_no_wait", Refusal::ReadBeforeWait { buffer: 1 }),
        (
            "refuse_wait_count",
            Refusal::WrongCount {
                expected: 16,
                signalled: 4112,
            },
        ),
        ("refuse_wait_unsignalled", Refusal::NobodySignals),
    ] {
        let program = Program::new(&read(&format!("togsim/programs/{name}.json")));
        let error = simulate(&program, "1", "tpuv3_simple_dram").unwrap_err();
        let TwinError::Refused { item: 0, why, .. } = error else {
            panic!("{name}: {error:?}")
        };
        assert_eq!(why, want, "{name}");
    }
    let program = Program::new(&read("togsim/programs/semaphore_two_loads.json"));
    assert!(simulate(&program, "1", "tpuv3_simple_dram").is_ok());
}

#[test]
fn the_worked_round_trip() {
    // A load issued at counter c: its dependents issue at c + 85.
    let machine = machine("tpuv3_simple_dram");
    let text = r#"{"tensors": [[1, 64, 4]], "spad_buffer_bytes": [32], "cycle_table": [[7, 0]],
        "body": [
        {"op": "dma", "dir": "load", "arg": 0, "offset_elems": 0, "dims": [8], "strides": [1],
         "elem_bits": 32, "is_async": false, "sem": 0, "reads": [], "writes": [0]},
        {"op": "compute", "tile": 0, "ct": 0, "reads": [0], "writes": []}]}"#;
    let program = Program::new(text);
    let report = run(&machine, &program.tiles, &program.buffers, |n| {
        program.item(&[1], n)
    })
    .unwrap();
    let cycles: Vec<u64> = report.issues.iter().map(|i| i.cycle).collect();
    assert_eq!(cycles, [2, 87]);
    // The tile retires in the step after 87 + 7; the work-item with it.
    assert_eq!(report.cycles, 95);
}

#[test]
fn the_machine_import_reads_the_same_machines() {
    for suffix in ["", "_32ch", "_4ch", "_c2", "_clocks", "_r1", "_r2", "_r3"] {
        let name = format!("tpuv3_simple_dram{suffix}");
        let text = read(&format!("pytorchsim/configs/{name}.yml"));
        let resolver = |_: &str| Err("not found".to_owned());
        let loaded = tilesim_core::machine::load(
            &name,
            &text,
            &resolver,
            tilesim_core::machine::import::ImportOptions {
                as_configured: false,
            },
        );
        let mut want = machine(&name);
        let got = loaded.unwrap().machine;
        // The files do not say how large an array is.
        (want.cores.array_rows, want.cores.array_cols) =
            (got.cores.array_rows, got.cores.array_cols);
        assert_eq!(got, want, "{name}");
    }
}

/// An op without the work-item's pools: what it is, its buffers, the lines it moves.
fn flat(item: &WorkItem) -> Vec<String> {
    let list = |span: Span| &item.buffers[span.range()];
    item.ops
        .iter()
        .map(|op| {
            let (reads, writes) = (list(op.reads), list(op.writes));
            let what = match op.kind {
                OpKind::Dma(t) => {
                    let t = &item.transfers[t as usize];
                    let lines = twin::lines::lines(item, t, 32);
                    let (way, on, elements) = (t.direction, t.semaphore, t.full_elements);
                    format!("{way:?} {on:?} {elements} {lines:?}")
                }
                other => format!("{other:?}"),
            };
            format!("{what} {reads:?} {writes:?}")
        })
        .collect()
}

#[test]
fn the_json_import_reads_the_same_programs() {
    let mut texts: Vec<String> = read("togsim/random/programs.jsonl")
        .lines()
        .map(String::from)
        .collect();
    for file in std::fs::read_dir(togsim::golden().join("togsim/programs")).unwrap() {
        texts.push(std::fs::read_to_string(file.unwrap().path()).unwrap());
    }
    assert_eq!(texts.len(), 81);
    for text in &texts {
        let program = Program::new(text);
        let import = json::import(text, &json::no_files).unwrap();
        let grid = import.grids[0].clone();
        let trace = ValidTrace::try_from(import.trace).unwrap();
        let args = LaunchArgs {
            grid: grid.clone(),
            ..LaunchArgs::default()
        };
        let bound = Bound::new(&trace, &args, &Limits::default()).unwrap();
        let mut item = WorkItem::default();
        for n in 0..bound.items().min(8) {
            bound.expand(bound.pid(n), &mut item).unwrap();
            let want = program.item(&grid, n).unwrap();
            assert_eq!(item.pid, want.pid);
            assert_eq!(flat(&item), flat(&want), "{} {n}", trace.header.kernel);
        }
    }
}
