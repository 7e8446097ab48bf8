//! One launch per process, and what the process took.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::golden::Loaded;

/// What a process that runs one launch reports about itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Core cycles.
    pub cycles: u64,
    /// DRAM requests.
    pub requests: u64,
    /// Wall milliseconds of the simulation alone.
    pub simulate_ms: f64,
    /// CPU milliseconds of the whole process, loading included.
    pub cpu_ms: f64,
    /// Most memory it had resident, in KiB.
    pub rss_kib: u64,
}

/// Run a launch in this process; `every_item` also where work repeats.
///
/// # Errors
///
/// What the importers and the engine say.
pub fn run_here(
    program: &Path,
    grid: &str,
    machine: &Path,
    every_item: bool,
) -> Result<(Sample, String), Error> {
    let mut loaded = Loaded::new(program, grid, machine)?;
    loaded.launch.options.full = every_item;
    let start = Instant::now();
    let report = loaded.run()?;
    let simulate_ms = start.elapsed().as_secs_f64() * 1e3;
    let sample = Sample {
        cycles: report.cycles,
        requests: report.dram_requests,
        simulate_ms,
        cpu_ms: cpu_ms().unwrap_or(simulate_ms),
        rss_kib: peak_rss_kib().unwrap_or(0),
    };
    let full = serde_json::to_string_pretty(&report).map_err(|e| e.to_string())?;
    Ok((sample, full))
}

/// Run a launch in a process of its own (this program's `run` subcommand).
///
/// # Errors
///
/// The process cannot be started or fails.
pub fn run_apart(program: &Path, grid: &str, machine: &Path) -> Result<Sample, Error> {
    let me = std::env::current_exe().map_err(|e| e.to_string())?;
    let out = Command::new(me)
        .arg("run")
        .args([program.as_os_str(), grid.as_ref(), machine.as_os_str()])
        .arg("--sample")
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| e.to_string())?;
    if !out.status.success() {
        return Err(format!("{} {grid}: {}", program.display(), out.status));
    }
    serde_json::from_slice(&out.stdout).map_err(|e| e.to_string())
}

/// CPU milliseconds of this process's main thread.
fn cpu_ms() -> Option<f64> {
    // The kernel brings the count up to date when the thread leaves the processor.
    std::thread::sleep(std::time::Duration::from_micros(1));
    let text = std::fs::read_to_string("/proc/self/schedstat").ok()?;
    let ns: f64 = text.split_whitespace().next()?.parse().ok()?;
    (ns > 0.0).then_some(ns / 1e6)
}

/// Most memory this process had resident.
fn peak_rss_kib() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find(|l| l.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
