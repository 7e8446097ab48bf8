//! Instructions per DRAM request, counted by callgrind.
//!
//! Each case runs a small and a large grid of one work-item; the difference of the two, over the
//! requests the large one has more, has no start-up in it.

use std::collections::BTreeMap;
use std::process::Command;

use crate::Error;
use crate::golden::{machine_path, program_path};
use crate::process::Sample;

/// A work-item with two grids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Program.
    pub program: &'static str,
    /// The grid that is subtracted.
    pub small: &'static str,
    /// The grid that is counted.
    pub large: &'static str,
    /// Machine file, without its extension.
    pub machine: &'static str,
}

const fn case(
    program: &'static str,
    small: &'static str,
    large: &'static str,
    machine: &'static str,
) -> Case {
    Case {
        program,
        small,
        large,
        machine,
    }
}

const SIMPLE: &str = "tpuv3_simple_dram";
const BANKED: &str = "systolic_ws_128x128_c1_simple_noc_tpuv3";
const BANKED_C2: &str = "systolic_ws_128x128_c2_simple_noc_tpuv3";
const V6E: &str = "systolic_ws_256x256_c1_simple_noc_tpuv6e";

/// What is counted: streams, tiles, conflicts, many small transfers, much compute.
pub const CASES: &[Case] = &[
    case("vecadd_async_big", "4", "16", SIMPLE),
    case("gemm_double_buffered", "1x1", "1x4", SIMPLE),
    case("many_small_loads", "4", "16", SIMPLE),
    case("softmax_rows", "16", "64", SIMPLE),
    case("vecadd_async_big", "4", "16", BANKED),
    case("gemm_double_buffered", "1x1", "1x4", BANKED),
    case("gemm_1024_k", "1x1", "1x4", BANKED),
    case("gemm_double_buffered", "1x1", "1x4", V6E),
    case("gemm_1024_k", "1x1", "1x4", BANKED_C2),
    case("row_conflict", "2", "8", BANKED),
    case("many_small_loads", "4", "16", BANKED),
    case("vecadd_sync", "64", "256", BANKED),
    case("large_grid", "64", "512", BANKED),
];

impl Case {
    /// `program small..large machine`.
    pub fn name(&self) -> String {
        format!(
            "{} {}..{} {}",
            self.program, self.small, self.large, self.machine
        )
    }

    /// Instructions per request.
    ///
    /// # Errors
    ///
    /// Callgrind is missing or says nothing, or a run fails.
    pub fn count(&self) -> Result<f64, Error> {
        let (i0, r0) = callgrind(self.program, self.small, self.machine)?;
        let (i1, r1) = callgrind(self.program, self.large, self.machine)?;
        let requests = r1.checked_sub(r0).filter(|&r| r > 0).ok_or_else(|| {
            format!(
                "{}: the large grid has no more requests than the small",
                self.name()
            )
        })?;
        Ok((i1 as f64 - i0 as f64) / requests as f64)
    }
}

/// Count every case whose name contains `filter`.
///
/// # Errors
///
/// As [`Case::count`].
pub fn count_all(filter: &str) -> Result<BTreeMap<String, f64>, Error> {
    CASES
        .iter()
        .filter(|case| case.name().contains(filter))
        .map(|case| Ok((case.name(), case.count()?)))
        .collect()
}

/// Whether valgrind can be started.
pub fn available() -> bool {
    Command::new("valgrind")
        .arg("--version")
        .output()
        .is_ok_and(|out| out.status.success())
}

fn callgrind(program: &str, grid: &str, machine: &str) -> Result<(u64, u64), Error> {
    let me = std::env::current_exe().map_err(|e| e.to_string())?;
    let out = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(me)
        .arg("run")
        .args([program_path(program).as_os_str(), grid.as_ref()])
        .arg(machine_path(machine))
        .arg("--sample")
        .output()
        .map_err(|e| format!("valgrind: {e}"))?;
    let log = String::from_utf8_lossy(&out.stderr);
    if !out.status.success() {
        return Err(format!("{program} {grid} {machine}: {log}"));
    }
    let sample: Sample = serde_json::from_slice(&out.stdout).map_err(|e| e.to_string())?;
    let count = log
        .lines()
        .find_map(|l| l.split_once("Collected :"))
        .and_then(|(_, n)| n.trim().parse().ok())
        .ok_or_else(|| format!("no instruction count in: {log}"))?;
    Ok((count, sample.requests))
}
