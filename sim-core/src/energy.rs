//! Energy of a launch: what was counted, times what the machine says it costs.
//!
//! Figures are whole femtojoules, each rounded once, so that reports are equal byte by byte.
//!
//! # What is counted
//!
//! DRAM: rows opened and refreshes (banked DRAM only), bits read and written, the same bits over the
//! pins and the physical layer, and background power over the whole launch. On the chip: bytes that
//! cross the NoC (each request's data once), bytes that the L2 serves, fills and writes back, bytes
//! that DMA moves into and out of the scratchpads, active cycles of the units times their cells or
//! lanes.
//!
//! Not counted: what compute tiles read and write in the scratchpad, instruction supply, leakage of
//! the chip.
//!
//! Sources of costs: PyTorchSim's energy tables load (`energy_cost_table_path`); its `hbm2.yml` has
//! 909 pJ an activation and 1.51, 1.17 and 0.80 pJ a bit for array, I/O and PHY. Costs beyond that
//! are the machine file's own.

use serde::{Deserialize, Serialize};

use crate::cores::CoreStats;
use crate::machine::{EnergySpec, Machine};
use crate::report::DramReport;

/// Energy of a launch in femtojoules. The parts sum to the total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnergyReport {
    /// Opening and closing DRAM rows.
    pub dram_activation_fj: u64,
    /// Reading open DRAM rows.
    pub dram_read_fj: u64,
    /// Writing open DRAM rows.
    pub dram_write_fj: u64,
    /// The DRAM's pins.
    pub dram_io_fj: u64,
    /// The physical layer on the chip's side.
    pub dram_phy_fj: u64,
    /// DRAM refreshes.
    pub dram_refresh_fj: u64,
    /// What the DRAM draws all the time.
    pub dram_background_fj: u64,
    /// The NoC.
    pub noc_fj: u64,
    /// The L2.
    pub l2_fj: u64,
    /// The scratchpads' DMA side.
    pub scratchpad_fj: u64,
    /// Systolic arrays.
    pub array_fj: u64,
    /// Vector units.
    pub vector_fj: u64,
    /// Cross-lane units.
    pub cross_lane_fj: u64,
    /// All of it.
    pub total_fj: u64,
    /// The total over the launch's time, in microwatts.
    pub average_uw: u64,
}

/// `count` times `each` attojoules, in femtojoules, rounded half up.
fn fj(count: u128, each: u64) -> u64 {
    narrow((count.saturating_mul(u128::from(each)).saturating_add(500)) / 1000)
}

fn narrow(x: u128) -> u64 {
    u64::try_from(x).unwrap_or(u64::MAX)
}

/// The energy of a launch of `cycles` core cycles; `None` if the machine has no costs.
pub fn energy(
    machine: &Machine,
    cycles: u64,
    cores: &[CoreStats],
    dram: &DramReport,
) -> Option<EnergyReport> {
    let cost: &EnergySpec = machine.energy.as_ref()?;
    let sum = |values: &mut dyn Iterator<Item = u64>| values.map(u128::from).sum::<u128>();
    let bytes = u128::from(machine.dram.request_bytes);
    let (read, written) = (
        u128::from(dram.bytes_read) * 8,
        u128::from(dram.bytes_written) * 8,
    );
    let sent = sum(&mut cores.iter().map(|c| c.requests)) * bytes;
    let in_l2 = sum(&mut dram
        .l2
        .iter()
        .map(|l| l.accesses() + l.dram_reads + l.write_backs));
    // Units: vector, arrays, cross-lane.
    let (mut vector, mut arrays, mut cross) = (0u128, 0u128, 0u128);
    for core in cores {
        let last = core.units.len().saturating_sub(1);
        for (i, unit) in core.units.iter().enumerate() {
            let active = u128::from(unit.active);
            match i {
                0 => vector += active,
                i if i == last => cross += active,
                _ => arrays += active,
            }
        }
    }
    let spec = &machine.cores;
    let cells = u128::from(spec.array_rows) * u128::from(spec.array_cols);
    // Microwatts over nanoseconds are femtojoules; a core cycle is 10^6 / kHz nanoseconds.
    let khz = u128::from(machine.clocks.core_khz.max(1));
    let background = u128::from(cost.background_uw)
        * u128::from(machine.dram.channels)
        * u128::from(cycles)
        * 1_000_000;
    let mut report = EnergyReport {
        dram_activation_fj: fj(
            sum(&mut dram.controllers.iter().map(|c| c.activates)),
            cost.activation,
        ),
        dram_read_fj: fj(read, cost.read_bit),
        dram_write_fj: fj(written, cost.write_bit),
        dram_io_fj: fj(read + written, cost.io_bit),
        dram_phy_fj: fj(read + written, cost.phy_bit),
        dram_refresh_fj: fj(
            sum(&mut dram.controllers.iter().map(|c| c.refreshes)),
            cost.refresh,
        ),
        dram_background_fj: narrow((background + khz / 2) / khz),
        noc_fj: fj(sent, cost.noc_byte),
        l2_fj: fj(in_l2 * bytes, cost.l2_byte),
        scratchpad_fj: fj(sent, cost.scratchpad_byte),
        array_fj: fj(arrays * cells, cost.array_cell_cycle),
        vector_fj: fj(
            vector * u128::from(spec.vector_lanes),
            cost.vector_lane_cycle,
        ),
        cross_lane_fj: fj(cross, cost.cross_lane_cycle),
        ..EnergyReport::default()
    };
    report.total_fj = report
        .parts()
        .iter()
        .fold(0u64, |sum, part| sum.saturating_add(part.1));
    let time = u128::from(cycles) * 1_000_000;
    report.average_uw = match time {
        0 => 0,
        time => narrow((u128::from(report.total_fj) * khz + time / 2) / time),
    };
    Some(report)
}

impl EnergyReport {
    /// The parts by name, in femtojoules.
    pub fn parts(&self) -> [(&'static str, u64); 13] {
        [
            ("dram activation", self.dram_activation_fj),
            ("dram read", self.dram_read_fj),
            ("dram write", self.dram_write_fj),
            ("dram io", self.dram_io_fj),
            ("dram phy", self.dram_phy_fj),
            ("dram refresh", self.dram_refresh_fj),
            ("dram background", self.dram_background_fj),
            ("noc", self.noc_fj),
            ("l2", self.l2_fj),
            ("scratchpad", self.scratchpad_fj),
            ("systolic arrays", self.array_fj),
            ("vector units", self.vector_fj),
            ("cross-lane units", self.cross_lane_fj),
        ]
    }
}

/// What the machine has costs for and the memory model does not count.
pub fn uncounted(machine: &Machine, dram: &DramReport) -> Option<String> {
    let cost = machine.energy.as_ref()?;
    let rows = cost.activation != 0 || cost.refresh != 0;
    (rows && dram.controllers.is_empty()).then(|| {
        "energy: this memory model counts no DRAM rows and refreshes; both are left out".to_string()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn femtojoules_are_rounded_once() {
        assert_eq!(fj(3, 499), 1, "1.497");
        assert_eq!(fj(3, 500), 2, "1.5");
        assert_eq!(fj(8, 1_510_000), 12_080, "a byte at 1.51 pJ a bit");
        assert_eq!(fj(u128::MAX, 2), u64::MAX);
    }
}
