//! What a run returns.

use serde::{Deserialize, Serialize};

use crate::cores::CoreStats;
use crate::dram::DramStats;
use crate::energy::EnergyReport;
use crate::machine::{ArraySplit, ComputeIssue, Machine};
use crate::memory::l2::L2Stats;
use crate::memory::{ChannelStats, NumaCounts};
use crate::stack::Cause;
use crate::units::{UnitError, UnitUse};
use tilesim_traces::ValidTrace;

/// Version of the timing model: part of every result's identity, raised whenever a figure moves.
pub const MODEL_VERSION: &str = "1";

/// The deterministic result of a launch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Core cycles from launch until nothing is outstanding.
    pub cycles: u64,
    /// The same in nanoseconds, to three decimals.
    pub ns: String,
    /// Work-items run.
    pub work_items: u64,
    /// DRAM requests answered.
    pub dram_requests: u64,
    /// How the figures came about.
    pub exactness: Exactness,
    /// Per core.
    pub cores: Vec<CoreReport>,
    /// Where every cycle of every core went; per core the cycles sum to the total.
    pub cycle_stack: Vec<StackEntry>,
    /// What became of each compute tile, if the trace says what tiles ask of named units.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiles: Vec<TileReport>,
    /// DRAM.
    pub dram: DramReport,
    /// Energy, if the machine has costs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy: Option<EnergyReport>,
    /// Transfers that left their tensor (only with `bounds: off`).
    pub out_of_bounds_transfers: u64,
    /// Remarks.
    pub notes: Vec<String>,
    /// What was run.
    pub identity: Identity,
}

/// How the figures came about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exactness {
    /// Every work-item was simulated.
    ExactFull,
    /// Every work-item was simulated, its memory transfer by transfer: approximate.
    TransferLevel,
    /// The state recurred: so many work-items were counted without simulating them again. Every
    /// figure equals that of the full run.
    ExactWarped {
        /// Work-items of one period.
        period: u64,
        /// Work-items left out.
        jumped: u64,
    },
}

/// One core's part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CoreReport {
    /// Core number.
    pub id: u32,
    /// Its units; for each, active + idle = cycles.
    pub units: Vec<UnitReport>,
    /// Work-items it finished.
    pub work_items: u64,
    /// Loads issued.
    pub loads: u64,
    /// Stores issued.
    pub stores: u64,
    /// Compute tiles issued.
    pub computes: u64,
    /// Waits issued.
    pub waits: u64,
    /// Requests its DMA sent.
    pub requests: u64,
    /// What its tiles asked of named units, if the trace says so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub admitted: Vec<AdmittedUnit>,
}

/// What one core's tiles asked of one named unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdmittedUnit {
    /// Its name, as in the trace's table.
    pub unit: String,
    /// What is counted.
    pub work: String,
    /// How much one such unit takes per core cycle.
    pub capacity_per_cycle: f64,
    /// How many of it work side by side.
    pub instances: u32,
    /// How much it was given.
    pub admitted: u64,
    /// Core cycles that takes, rounded half up. With `idle` it sums to `instances` times the total.
    pub active: u64,
    /// The others.
    pub idle: u64,
}

/// What became of one compute tile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TileReport {
    /// Its name.
    pub tile: String,
    /// Core cycles of one run on this machine (less than the trace says where a matmul is spread
    /// over several arrays).
    pub cycles: u64,
    /// How often it ran, on all cores.
    pub runs: u64,
}

/// One unit's part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnitReport {
    /// `vector`, `systolic[0]`..., `cross_lane`, `dma`.
    pub unit: String,
    /// Core cycles it worked (the DMA: sent requests).
    pub active: u64,
    /// The others.
    pub idle: u64,
    /// Ops it ran.
    pub ops: u64,
}

/// Cycles of one core spent on one cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackEntry {
    /// Core number.
    pub core: u32,
    /// What on.
    pub cause: Cause,
    /// Core cycles, above 0.
    pub cycles: u64,
}

/// DRAM's part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DramReport {
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Requests per channel.
    pub channels: Vec<ChannelStats>,
    /// The L2 slices' counts, one a channel; empty without an L2.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub l2: Vec<L2Stats>,
    /// The banked controllers' own counts per channel; empty for other models.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub controllers: Vec<DramStats>,
    /// Requests per core by partition of the channels; empty where there is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub numa: Vec<NumaCounts>,
}

/// What was run: equal identities give equal reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// Digest of the trace.
    pub trace: String,
    /// Digest of the machine.
    pub machine: String,
    /// Digest of the launch and of every option that can change the result.
    pub launch: String,
    /// [`MODEL_VERSION`].
    pub model_version: String,
}

/// `cycles` at `khz` in nanoseconds, to three decimals, rounded half up.
pub fn nanoseconds(cycles: u64, khz: u64) -> String {
    let khz = u128::from(khz.max(1));
    let thousandths = (u128::from(cycles) * 1_000_000_000 * 2 + khz) / (khz * 2);
    format!("{}.{:03}", thousandths / 1000, thousandths % 1000)
}

impl CoreReport {
    /// From a core's counts over `cycles`.
    pub fn new(id: u32, stats: &CoreStats, cycles: u64) -> CoreReport {
        let arrays = stats.units.len().saturating_sub(2);
        let mut units: Vec<UnitReport> = stats
            .units
            .iter()
            .enumerate()
            .map(|(i, u)| UnitReport {
                unit: match i {
                    0 => "vector".to_string(),
                    i if i == arrays + 1 => "cross_lane".to_string(),
                    i => format!("systolic[{}]", i - 1),
                },
                active: u.active,
                idle: cycles.saturating_sub(u.active),
                ops: u.ops,
            })
            .collect();
        units.push(UnitReport {
            unit: "dma".to_string(),
            active: stats.dma_active,
            idle: cycles.saturating_sub(stats.dma_active),
            ops: stats.loads + stats.stores,
        });
        CoreReport {
            id,
            units,
            work_items: stats.work_items,
            loads: stats.loads,
            stores: stats.stores,
            computes: stats.computes,
            waits: stats.waits,
            requests: stats.requests,
            admitted: Vec::new(),
        }
    }
}

/// What one core's tiles asked of named units in `cycles` core cycles.
///
/// Every unit stands alone, except that a core has as many array units as systolic arrays where
/// those can work side by side.
///
/// # Errors
///
/// A unit was given more than it can take in that time.
pub fn admitted(
    machine: &Machine,
    trace: &ValidTrace,
    runs: &[u64],
    cycles: u64,
) -> Result<Vec<AdmittedUnit>, UnitError> {
    let mut used = UnitUse::default();
    for (tile, &runs) in trace.tiles.iter().zip(runs) {
        used.add(&tile.admissions, runs);
    }
    let arrays = machine.cores.systolic_arrays.max(1);
    let (array_unit, side_by_side) = match &machine.cores.array_split {
        ArraySplit::RoundRobin { unit } => (unit.as_str(), true),
        ArraySplit::None => (
            "Systolic",
            machine.cores.compute_issue == ComputeIssue::PerUnit,
        ),
    };
    used.totals()
        .iter()
        .map(|total| {
            let instances = if side_by_side && total.unit == array_unit {
                arrays
            } else {
                1
            };
            let time = cycles.saturating_mul(u64::from(instances));
            total.check(time)?;
            // Checked: it is busy for at most `time`.
            let active = u64::try_from(total.active_cycles())
                .unwrap_or(time)
                .min(time);
            Ok(AdmittedUnit {
                unit: total.unit.clone(),
                work: total.work.clone(),
                capacity_per_cycle: total.capacity_per_cycle,
                instances,
                admitted: u64::try_from(total.admitted).unwrap_or(u64::MAX),
                active,
                idle: time - active,
            })
        })
        .collect()
}

/// What became of each compute tile that costs `costs` core cycles; empty costs: nobody asked.
pub fn tiles(trace: &ValidTrace, costs: &[u64], cores: &[CoreStats]) -> Vec<TileReport> {
    trace
        .tiles
        .iter()
        .zip(costs)
        .enumerate()
        .map(|(at, (tile, &cycles))| TileReport {
            tile: tile.name.clone(),
            cycles,
            runs: cores.iter().filter_map(|c| c.tile_runs.get(at)).sum(),
        })
        .collect()
}

/// The cycle stack of all cores, causes in display order, zeros left out.
pub fn cycle_stack(cores: &[CoreStats]) -> Vec<StackEntry> {
    let mut out = Vec::new();
    for (core, stats) in cores.iter().enumerate() {
        for cause in Cause::ALL {
            let cycles = stats.stack.get(cause);
            if cycles > 0 {
                out.push(StackEntry {
                    core: core as u32,
                    cause,
                    cycles,
                });
            }
        }
    }
    out
}

/// DRAM's part from the channels' counts.
pub fn dram(
    machine: &Machine,
    channels: &[ChannelStats],
    controllers: Vec<DramStats>,
    l2: Vec<L2Stats>,
    numa: Vec<NumaCounts>,
) -> DramReport {
    let bytes = u64::from(machine.dram.request_bytes);
    DramReport {
        bytes_read: channels.iter().map(|c| c.reads).sum::<u64>() * bytes,
        bytes_written: channels.iter().map(|c| c.writes).sum::<u64>() * bytes,
        channels: channels.to_vec(),
        l2,
        controllers,
        numa,
    }
}
