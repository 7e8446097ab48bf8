//! The twin on a trace and a launch.

use tilesim_core::machine::Machine;
use tilesim_traces::model::{Stmt, Trace};
use tilesim_traces::{Bound, LaunchArgs, Limits, ValidTrace, WorkItem};

use super::{BufferInfo, TileCost, TwinError, TwinReport, run};

/// Binds `trace` and runs it.
pub fn simulate(
    machine: &Machine,
    trace: &Trace,
    args: &LaunchArgs,
) -> Result<TwinReport, TwinError> {
    let invalid = |e: tilesim_traces::TraceError| TwinError::Trace(e.to_string());
    let trace = ValidTrace::try_from(trace.clone()).map_err(invalid)?;
    let bound = Bound::new(&trace, args, &Limits::default()).map_err(invalid)?;
    let tiles: Vec<TileCost> = trace
        .tiles
        .iter()
        .map(|t| TileCost {
            cycles: t.cycles.unwrap_or(0),
            overlap: t.overlap,
        })
        .collect();
    let mut moved = vec![false; trace.buffers.len()];
    mark_moved(&trace.body, &mut moved);
    let buffers: Vec<BufferInfo> = trace
        .buffers
        .iter()
        .zip(moved)
        .map(|(b, moved)| BufferInfo {
            bytes: b.bytes,
            moved,
        })
        .collect();
    let mut items = Vec::new();
    for n in 0..bound.items() {
        let mut item = WorkItem::default();
        bound.expand(bound.pid(n), &mut item).map_err(invalid)?;
        items.push(item);
    }
    run(machine, &tiles, &buffers, |n| {
        items.get(n as usize).cloned()
    })
}

/// Marks the buffers that some DMA statement names, wherever it stands.
fn mark_moved(body: &[Stmt], moved: &mut [bool]) {
    for stmt in body {
        match stmt {
            Stmt::For(f) => mark_moved(&f.body, moved),
            Stmt::If(i) => {
                mark_moved(&i.then, moved);
                mark_moved(&i.otherwise, moved);
            }
            Stmt::Dma(dma) => {
                for b in dma.reads.iter().chain(&dma.writes) {
                    moved[b.index()] = true;
                }
            }
            Stmt::Compute(_) | Stmt::Wait(_) => {}
        }
    }
}
