//! The model to beat: waves of programs, each as long as one program alone.

use tilesim_core::machine::Machine;

use crate::data::{Measured, Shape};

/// Microseconds of a launch: as many waves as it takes with one program a core, each the K steps of a
/// program at what a step costs one program alone whose addresses stand still.
pub fn time_us(m: &Measured, shape: &Shape, machine: &Machine) -> f64 {
    let [rows, columns, length] = shape.size;
    let programs = rows.div_ceil(m.config.bm) * columns.div_ceil(m.config.bn);
    let waves = programs.div_ceil(u64::from(machine.cores.count).max(1));
    let steps = length.div_ceil(m.config.bk);
    let step_ns = match shape.aligned() {
        true => m.slopes.held,
        false => m.slopes.unaligned,
    };
    waves as f64 * steps as f64 * step_ns / 1e3
}
