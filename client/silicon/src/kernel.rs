//! The launch of one configuration, its costs from one-program measurements.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tilesim_core::{Launch, machine::Machine};
use tilesim_traces::kernels::{self, CostModel, GivenCost, Kernel, KernelSpec, Matmul};
use tilesim_traces::model::Resources as Declared;
use tilesim_traces::{TraceError, ValidTrace};

use crate::data::{Measured, Slopes};

/// Figures that are neither measured per configuration nor in the machine file.
///
/// `wide_rate`, `narrow_rate`, `shared_rate`, `l2_rate`, `softness` and `program_us` were chosen on the
/// shapes of `client/silicon/data` together, in the middle of where moving one changes little; how well
/// they carry to other shapes has not been measured. `instruction_rate` is a guess that nothing measured
/// supports.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constants {
    /// Floating-point operations a nanosecond and core, products of 64 rows and more.
    pub wide_rate: f64,
    /// Likewise, below 64 rows.
    pub narrow_rate: f64,
    /// Bytes of shared memory a nanosecond and core.
    pub shared_rate: f64,
    /// Bytes a nanosecond and core from the L2 when every core loads its own tiles.
    pub l2_rate: f64,
    /// Exponent of the norm by which the limits of a K step add up; the larger, the nearer to their
    /// maximum.
    pub softness: f64,
    /// Bytes a nanosecond and core from the L2 when all cores read the same.
    pub held_rate: f64,
    /// Nanoseconds from a load to its data in the L2, as the machine file has it.
    pub hit_ns: f64,
    /// Nanoseconds that DRAM adds to that, likewise.
    pub miss_ns: f64,
    /// Microseconds of a launch; the same for all, so that it moves no order.
    pub launch_us: f64,
    /// Microseconds of a program beside its K steps.
    pub program_us: f64,
    /// Warp instructions a nanosecond and core.
    pub instruction_rate: f64,
}

impl Default for Constants {
    fn default() -> Self {
        Constants {
            wide_rate: 8500.0,
            narrow_rate: 3300.0,
            shared_rate: 232.0,
            l2_rate: 115.0,
            softness: 5.3,
            held_rate: 60.0,
            hit_ns: 140.0,
            miss_ns: 440.0,
            launch_us: 3.7,
            program_us: 1.0,
            instruction_rate: 8.0,
        }
    }
}

/// Shared memory that the driver keeps for itself in each program, in bytes.
const RESERVED: u64 = 1024;

/// What a K step costs a core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepCost {
    /// Nanoseconds of the core's units.
    pub unit: f64,
    /// Nanoseconds from the data to the end of the step.
    pub latency: f64,
}

/// Programs that a core holds.
pub fn residents(machine: &Machine, m: &Measured, aligned: bool) -> u64 {
    let r = if aligned { m.resources } else { m.unaligned };
    let threads = 32 * m.config.num_warps;
    let by_registers = 65536 / (r.regs.max(1) * threads).max(1);
    (machine.cores.scratchpad_bytes / (r.shared + RESERVED))
        .min(by_registers)
        .min(2048 / threads)
        .clamp(1, 32)
}

/// Warps along M and N, as Triton 3.6 places them for `mma.sync`.
fn warps(m: &Measured) -> (u64, u64) {
    let c = m.config;
    let (mut along_m, mut along_n) = (1, 1);
    while along_m * along_n < c.num_warps {
        if along_m * 16 < c.bm && c.bm * along_n >= c.bn * along_m {
            along_m *= 2;
        } else {
            along_n *= 2;
        }
    }
    (along_m, along_n)
}

/// What limits that overlap imperfectly take together: their norm with exponent `p`, which is near
/// their maximum where one is far above the others.
fn softly(limits: &[f64], p: f64) -> f64 {
    let most = limits.iter().copied().fold(0.0, f64::max);
    if most == 0.0 {
        return 0.0;
    }
    let sum: f64 = limits.iter().map(|limit| (limit / most).powf(p)).sum();
    most * sum.powf(1.0 / p)
}

/// What the tensor unit, shared memory and a core's share of the L2 take for a K step, in
/// nanoseconds.
pub fn throughput(m: &Measured, k: &Constants) -> f64 {
    let c = m.config;
    let (a, b) = ((c.bm * c.bk * 2) as f64, (c.bn * c.bk * 2) as f64);
    let operations = (2 * c.bm * c.bn * c.bk) as f64;
    let (rate, reads) = if c.bm >= 64 {
        (k.wide_rate, a + b * (c.bm as f64 / 64.0))
    } else {
        let (along_m, along_n) = warps(m);
        (k.narrow_rate, a * along_n as f64 + b * along_m as f64)
    };
    let limits = [
        operations / rate,
        (reads + a + b) / k.shared_rate,
        (a + b) / k.l2_rate,
    ];
    softly(&limits, k.softness)
}

/// The cost of a K step from the measured slopes.
pub fn step_cost(m: &Measured, aligned: bool, machine: &Machine, k: &Constants) -> StepCost {
    let c = m.config;
    let s: &Slopes = &m.slopes;
    let fits = residents(machine, m, aligned);
    let bytes = ((c.bm + c.bn) * c.bk * 2) as f64;
    let mut unit = throughput(m, k);
    if !aligned {
        let loads = ((c.bm + c.bn) * c.bk) as f64 / 32.0;
        unit = unit.max(loads * 8.0 / k.instruction_rate);
        if fits == 1 {
            unit = unit.max(s.unaligned - k.hit_ns);
        }
        return StepCost {
            unit,
            latency: (s.unaligned - k.hit_ns).max(unit),
        };
    }
    // A program that is slower than its loads and units explain (spilled registers) is so for its
    // neighbours too.
    let mut most = s.held.min(s.l2);
    for (n, all) in [1u64, 2, 4].into_iter().zip(s.all) {
        if let Some(all) = all
            && n <= fits
        {
            most = most.min(all / n as f64);
        }
    }
    if most > 1.5 * unit.max(bytes / k.held_rate) {
        unit = most;
    }
    let ahead = f64::from(c.num_stages.max(2) - 1);
    if fits == 1 {
        unit = unit.max(s.l2.min(s.held));
    }
    let latency = (s.l2 * ahead - k.hit_ns).min(s.cold * ahead - k.hit_ns - k.miss_ns);
    StepCost {
        unit,
        latency: latency.max(unit),
    }
}

/// Trace and launch of a configuration on a problem.
///
/// # Errors
///
/// A size or tile that the generator refuses.
pub fn launch(
    m: &Measured,
    size: [u64; 3],
    machine: &Machine,
    k: &Constants,
) -> Result<(ValidTrace, Launch), TraceError> {
    let c = m.config;
    let aligned = size[1].is_multiple_of(16) && size[2].is_multiple_of(16);
    let resources = if aligned { m.resources } else { m.unaligned };
    let cycles = |ns: f64| (ns * machine.clocks.core_khz as f64 / 1e6).round().max(1.0) as u64;
    let cost = step_cost(m, aligned, machine, k);
    let (unit, latency) = (cycles(cost.unit), cycles(cost.latency));
    let mut fixed = BTreeMap::new();
    let given = |cycles: u64, overlap: u64| GivenCost { cycles, overlap };
    fixed.insert("dot".to_owned(), given(latency, latency - unit));
    fixed.insert("zero".to_owned(), given(1, 0));
    let program = cycles(k.program_us * 1e3);
    fixed.insert("cast".to_owned(), given(program, program - 1));
    let stages = if aligned { c.num_stages.max(2) - 1 } else { 1 };
    let spec = KernelSpec {
        kernel: Kernel::Matmul(Matmul {
            stages,
            group: c.group,
            acc_in_registers: true,
            ..Matmul::new(size[0], size[1], size[2], [c.bm, c.bn, c.bk])
        }),
        cost: CostModel {
            tied: false,
            fixed,
            ..CostModel::default()
        },
        resources: Declared {
            registers: resources.regs * 32 * c.num_warps,
            threads: 32 * c.num_warps,
        },
    };
    let mut trace = kernels::generate(&spec)?;
    // What it takes of shared memory beyond the tiles in flight goes with the sums: both stay to the
    // end.
    let tiles: u64 = trace.buffers.iter().map(|b| b.bytes).sum();
    if let Some(sums) = trace.buffers.iter_mut().find(|b| b.name == "acc") {
        sums.bytes = (resources.shared + RESERVED).saturating_sub(tiles);
    }
    let launch = Launch {
        args: kernels::launch(&spec)?,
        ..Launch::default()
    };
    Ok((ValidTrace::try_from(trace)?, launch))
}
