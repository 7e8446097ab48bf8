//! The performance report: golden rows, one process each, against the reference's recorded seconds.
//!
//! ```text
//! perf [--filter TEXT] [--max-requests N] [--repeat N] [--instructions] [--json FILE]
//! perf --check FILE        fail if instructions per request grew by over 2 %
//! perf --write FILE        write that baseline
//! perf scaling N           N launches on N threads against one alone
//! perf run PROGRAM.json GRID MACHINE.yml [--every-item] [--full | --sample]
//! ```

#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;
use tilesim_benches::golden::{self, Row, is_banked, machine_path, program_path};
use tilesim_benches::{Error, instructions, process};

/// By how much a count may grow.
const TOLERANCE: f64 = 0.02;

fn main() -> ExitCode {
    match run(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("perf: {e}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Default)]
struct Options {
    filter: String,
    max_requests: Option<u64>,
    repeat: u32,
    instructions: bool,
    json: Option<String>,
    check: Option<String>,
    write: Option<String>,
}

fn run(mut args: impl Iterator<Item = String>) -> Result<(), Error> {
    let mut options = Options {
        repeat: 1,
        ..Options::default()
    };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "run" => return run_one(&args.collect::<Vec<_>>()),
            "scaling" => return scaling(number(&value()?)?),
            "--filter" => options.filter = value()?,
            "--max-requests" => options.max_requests = Some(number(&value()?)?),
            "--repeat" => options.repeat = number(&value()?)?,
            "--instructions" => options.instructions = true,
            "--json" => options.json = Some(value()?),
            "--check" => options.check = Some(value()?),
            "--write" => options.write = Some(value()?),
            _ => return Err(format!("unknown argument {arg}: see the head of perf.rs")),
        }
    }
    match (&options.check, &options.write) {
        (Some(file), _) => check(file, &options.filter),
        (None, Some(file)) => write(file, &instructions::count_all(&options.filter)?),
        (None, None) => report(&options),
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, Error> {
    text.parse().map_err(|_| format!("not a number: {text}"))
}

fn run_one(args: &[String]) -> Result<(), Error> {
    let [program, grid, machine, rest @ ..] = args else {
        return Err(
            "usage: perf run PROGRAM.json GRID MACHINE.yml [--every-item] [--full | --sample]"
                .into(),
        );
    };
    let (mut every_item, mut print) = (false, None);
    for argument in rest {
        match argument.as_str() {
            "--every-item" => every_item = true,
            "--full" | "--sample" => print = Some(argument.as_str()),
            other => return Err(format!("unknown argument {other}")),
        }
    }
    let (sample, full) =
        process::run_here(Path::new(program), grid, Path::new(machine), every_item)?;
    match print {
        Some("--full") => println!("{full}"),
        Some(_) => println!(
            "{}",
            serde_json::to_string(&sample).map_err(|e| e.to_string())?
        ),
        None => println!(
            "{} cycles, {} requests, {:.3} ms, {} KiB",
            sample.cycles, sample.requests, sample.simulate_ms, sample.rss_kib
        ),
    }
    Ok(())
}

/// Launches of one thread in a measurement of [`scaling`], and measurements, of which the best counts.
const LAUNCHES: u32 = 8;
const MEASUREMENTS: u32 = 5;

/// Throughput of `threads` threads that run launches side by side, over that of one alone.
fn scaling(threads: u32) -> Result<(), Error> {
    for machine in [
        "tpuv3_simple_dram",
        "systolic_ws_128x128_c1_simple_noc_tpuv3",
    ] {
        let loaded = golden::Loaded::golden("gemm_256", "2x2", machine)?;
        loaded.run()?;
        let (mut alone, mut together) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..MEASUREMENTS {
            alone = alone.min(side_by_side(&loaded, 1)?);
            together = together.min(side_by_side(&loaded, threads)?);
        }
        println!(
            "{machine}: {threads} threads do {:.2} times the launches of one",
            f64::from(threads) * alone / together
        );
    }
    Ok(())
}

/// Seconds until `threads` threads have run [`LAUNCHES`] launches each.
fn side_by_side(loaded: &golden::Loaded, threads: u32) -> Result<f64, Error> {
    let start = std::time::Instant::now();
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|_| scope.spawn(|| (0..LAUNCHES).try_for_each(|_| loaded.run().map(|_| ()))))
            .collect();
        running.into_iter().try_for_each(|thread| {
            thread
                .join()
                .map_err(|_| "a launch panicked".to_string())
                .flatten()
        })
    })?;
    Ok(start.elapsed().as_secs_f64())
}

/// One line of the table.
#[derive(Serialize)]
struct Line {
    program: String,
    grid: String,
    machine: String,
    requests: u64,
    cycles: u64,
    simulate_ms: f64,
    cpu_ms: f64,
    requests_per_s: f64,
    ns_per_request: f64,
    cycles_per_s: f64,
    rss_kib: u64,
    reference_s: f64,
    /// Reference CPU seconds over CPU seconds of the whole process.
    ratio: f64,
}

impl Line {
    fn new(row: &Row, s: &process::Sample) -> Line {
        let seconds = s.cpu_ms / 1e3;
        Line {
            program: row.program.clone(),
            grid: row.grid.clone(),
            machine: row.machine.clone(),
            requests: s.requests,
            cycles: s.cycles,
            simulate_ms: s.simulate_ms,
            cpu_ms: s.cpu_ms,
            requests_per_s: s.requests as f64 / seconds,
            ns_per_request: s.cpu_ms * 1e6 / (s.requests as f64).max(1.0),
            cycles_per_s: s.cycles as f64 / seconds,
            rss_kib: s.rss_kib,
            reference_s: row.reference_s,
            ratio: row.reference_s / seconds,
        }
    }
}

/// Ratios to the reference over the rows that took it more than a second.
#[derive(Serialize)]
struct Against {
    rows: usize,
    geometric_mean: f64,
    least: f64,
}

#[derive(Serialize)]
struct Report {
    cpu: String,
    rows: Vec<Line>,
    banked: Option<Against>,
    simple: Option<Against>,
    instructions_per_request: BTreeMap<String, f64>,
}

fn report(options: &Options) -> Result<(), Error> {
    let mut lines = Vec::new();
    println!(
        "{:<22}{:<8}{:<42}{:>9}{:>9}{:>9}{:>9}{:>9}{:>8}{:>9}{:>8}{:>8}",
        "program",
        "grid",
        "machine",
        "requests",
        "cycles",
        "sim ms",
        "cpu ms",
        "Mreq/s",
        "ns/req",
        "Mcyc/s",
        "RSS MiB",
        "ratio"
    );
    for row in golden::rows()? {
        let wanted = row.name().contains(&options.filter)
            && options.max_requests.is_none_or(|max| row.requests <= max);
        if !wanted {
            continue;
        }
        let mut best: Option<process::Sample> = None;
        for _ in 0..options.repeat.max(1) {
            let sample = process::run_apart(
                &program_path(&row.program),
                &row.grid,
                &machine_path(&row.machine),
            )?;
            if best.as_ref().is_none_or(|b| sample.cpu_ms < b.cpu_ms) {
                best = Some(sample);
            }
        }
        let Some(sample) = best else { continue };
        let line = Line::new(&row, &sample);
        println!(
            "{:<22}{:<8}{:<42}{:>9}{:>9}{:>9.2}{:>9.2}{:>9.2}{:>8.1}{:>9.2}{:>8.1}{:>8.1}",
            line.program,
            line.grid,
            line.machine,
            line.requests,
            line.cycles,
            line.simulate_ms,
            line.cpu_ms,
            line.requests_per_s / 1e6,
            line.ns_per_request,
            line.cycles_per_s / 1e6,
            line.rss_kib as f64 / 1024.0,
            line.ratio
        );
        lines.push(line);
    }
    let banked = against(&lines, true);
    let simple = against(&lines, false);
    for (name, against) in [("banked", &banked), ("simple", &simple)] {
        if let Some(a) = against {
            println!(
                "{name}: {} rows of over one reference second: geometric mean {:.1}x, least {:.1}x",
                a.rows, a.geometric_mean, a.least
            );
        }
    }
    let mut counts = BTreeMap::new();
    if options.instructions {
        if instructions::available() {
            counts = instructions::count_all(&options.filter)?;
            for (name, count) in &counts {
                println!("{name:<80}{count:>9.1} instructions/request");
            }
        } else {
            println!("no valgrind: instructions are not counted");
        }
    }
    if let Some(file) = &options.json {
        let report = Report {
            cpu: cpu(),
            rows: lines,
            banked,
            simple,
            instructions_per_request: counts,
        };
        write(file, &report)?;
    }
    Ok(())
}

fn against(lines: &[Line], banked: bool) -> Option<Against> {
    let ratios: Vec<f64> = lines
        .iter()
        .filter(|l| l.reference_s > 1.0 && is_banked(&l.machine) == banked)
        .map(|l| l.ratio)
        .collect();
    (!ratios.is_empty()).then(|| Against {
        rows: ratios.len(),
        geometric_mean: (ratios.iter().map(|r| r.ln()).sum::<f64>() / ratios.len() as f64).exp(),
        least: ratios.iter().copied().fold(f64::INFINITY, f64::min),
    })
}

fn check(file: &str, filter: &str) -> Result<(), Error> {
    if !instructions::available() {
        return Err("valgrind is missing: install it".into());
    }
    let text = std::fs::read_to_string(file).map_err(|e| format!("{file}: {e}"))?;
    let baseline: BTreeMap<String, f64> =
        serde_json::from_str(&text).map_err(|e| format!("{file}: {e}"))?;
    let mut failures = 0;
    for (name, now) in instructions::count_all(filter)? {
        let Some(&was) = baseline.get(&name) else {
            println!("{name:<80}{now:>9.1}  not in the baseline");
            failures += 1;
            continue;
        };
        let change = now / was - 1.0;
        let verdict = if change > TOLERANCE {
            failures += 1;
            "grew"
        } else if change < -TOLERANCE {
            "fell: write the baseline anew"
        } else {
            ""
        };
        println!(
            "{name:<80}{was:>9.1} ->{now:>9.1} {:>+7.2} %  {verdict}",
            change * 100.0
        );
    }
    if failures > 0 {
        return Err(format!(
            "{failures} counts grew by over {} %; if that is meant: perf --write {file}",
            TOLERANCE * 100.0
        ));
    }
    Ok(())
}

fn write(file: &str, value: &impl Serialize) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(value).map_err(|e| e.to_string())?;
    std::fs::write(file, text + "\n").map_err(|e| format!("{file}: {e}"))
}

fn cpu() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|l| l.strip_prefix("model name"));
    name.map_or_else(
        || "unknown".into(),
        |n| n.trim_start_matches([' ', '\t', ':']).to_string(),
    )
}
