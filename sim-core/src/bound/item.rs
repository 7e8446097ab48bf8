//! What one work-item costs at least: sums per resource, paths through its graph, lines of its
//! transfers.

use tilesim_traces::Bound;
use tilesim_traces::launch::{OpKind, ResolvedIndirect, Transfer, WorkItem};
use tilesim_traces::model::{Direction, Unit};

use super::MemoryPath;
use crate::error::SimError;
use crate::graph::{Graph, GraphBuilder, GraphContext, NodeKind};
use crate::machine::{ComputeIssue, Machine, Residency};

const NONE: u32 = u32::MAX;

/// Core steps per unit; `u64::MAX` where an item does not use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PerUnit {
    pub vector: u64,
    pub systolic: u64,
    pub cross_lane: u64,
    pub dma: u64,
}

impl PerUnit {
    pub const NEVER: PerUnit = PerUnit {
        vector: u64::MAX,
        systolic: u64::MAX,
        cross_lane: u64::MAX,
        dma: u64::MAX,
    };

    /// The least over the compute units.
    pub fn compute(&self) -> u64 {
        self.vector.min(self.systolic).min(self.cross_lane)
    }

    fn lower(&mut self, unit: Unit, to: u64) {
        let entry = match unit {
            Unit::Vector => &mut self.vector,
            Unit::Matmul | Unit::Preload => &mut self.systolic,
            Unit::CrossLane => &mut self.cross_lane,
        };
        *entry = (*entry).min(to);
    }
}

/// What each work-item of a class costs at least.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs {
    /// Work-items in the class.
    pub items: u64,
    /// Core cycles of all compute tiles.
    pub compute: u64,
    /// By how much the tiles move their unit's last finish, in core cycles.
    pub vector: u64,
    pub systolic: u64,
    pub cross_lane: u64,
    /// Ops that take an issue slot.
    pub slots: u64,
    /// Core steps of DMA.
    pub dma_steps: u64,
    pub load_lines: u64,
    pub store_lines: u64,
    /// Lines loaded that nothing stores to.
    pub fresh_lines: u64,
    /// Core steps from step 1 of the run to the first issue on a unit, whichever item it is.
    pub head: PerUnit,
    /// Core steps from the end of a use of a unit to the end of the run.
    pub tail: PerUnit,
    /// Core steps from step 1 to the end of an item, its stores' replies included.
    pub end: u64,
    /// Core steps from step 1 to the retirement of an item.
    pub stay_first: u64,
    /// Core steps from an item's delivery to its retirement.
    pub stay: u64,
    /// Most such items on a core at once.
    pub residents: u64,
}

/// A transfer's times, in core steps.
#[derive(Clone, Copy, Default)]
struct Flight {
    lines: u64,
    /// For which it occupies the DMA.
    steps: u64,
    /// From its issue to the step in which its data is there, or its acknowledgements.
    arrival: u64,
    /// From step 1 of the run to that, for any such transfer.
    floor: u64,
}

/// Analyses work-items; keeps its buffers from one to the next.
pub(super) struct Analysis<'a> {
    machine: &'a Machine,
    path: &'a MemoryPath,
    context: &'a GraphContext,
    builder: GraphBuilder,
    item: WorkItem,
    graph: Graph,
    flights: Vec<Flight>,
    earliest: Vec<u64>,
    batch: Vec<u64>,
    batch_wait: Vec<u32>,
    /// From an op's completion: to retirement, to the end.
    after: Vec<(u64, u64)>,
    /// From its issue.
    left: Vec<(u64, u64)>,
}

impl<'a> Analysis<'a> {
    pub fn new(machine: &'a Machine, path: &'a MemoryPath, context: &'a GraphContext) -> Self {
        Analysis {
            machine,
            path,
            context,
            builder: GraphBuilder::default(),
            item: WorkItem::default(),
            graph: Graph::default(),
            flights: Vec::new(),
            earliest: Vec::new(),
            batch: Vec::new(),
            batch_wait: Vec::new(),
            after: Vec::new(),
            left: Vec::new(),
        }
    }

    /// The costs of a class of `items` work-items of which `pid` is one.
    pub fn item(&mut self, bound: &Bound, pid: [u64; 3], items: u64) -> Result<Costs, SimError> {
        bound.expand(pid, &mut self.item)?;
        self.builder
            .build(self.context, &self.item, None, None, &mut self.graph)
            .map_err(|error| SimError::Item {
                path: bound.site_path(error.site),
                error,
            })?;
        let mut costs = Costs {
            items,
            compute: 0,
            vector: 0,
            systolic: 0,
            cross_lane: 0,
            slots: 0,
            dma_steps: 0,
            load_lines: 0,
            store_lines: 0,
            fresh_lines: 0,
            head: PerUnit::NEVER,
            tail: PerUnit::NEVER,
            end: 0,
            stay_first: 0,
            stay: 0,
            residents: self.residents(),
        };
        self.sums(&mut costs);
        // Delivered in step 1 of the run: what any item's ops cannot be earlier than.
        (costs.stay_first, costs.end) = self.walk(true, &mut costs.head);
        // Delivered at any time.
        let mut head = PerUnit::NEVER;
        (costs.stay, _) = self.walk(false, &mut head);
        let to_retirement = self.backward(&mut costs.tail);
        // The item alone on a resource: first issue, all its uses, and what follows the last of them.
        let serial = matches!(self.machine.cores.compute_issue, ComputeIssue::Serial);
        if serial && costs.compute > 0 {
            let alone = (1 + head.compute())
                .saturating_add(costs.compute)
                .saturating_add(to_retirement.compute());
            costs.stay = costs.stay.max(alone);
        }
        if costs.dma_steps > 0 {
            let alone = (1 + head.dma)
                .saturating_add(costs.dma_steps)
                .saturating_add(to_retirement.dma);
            costs.stay = costs.stay.max(alone);
        }
        costs.stay = costs.stay.max(costs.slots);
        costs.stay_first = costs.stay_first.max(costs.stay);
        costs.end = costs.end.max(costs.stay_first);
        Ok(costs)
    }

    /// How many such items a core can hold.
    fn residents(&self) -> u64 {
        let spec = &self.machine.cores;
        let max = match spec.residency {
            Residency::Shared { max } | Residency::Safe { max } => max,
            Residency::Resources { max, .. } => max,
        };
        let max = u64::from(max.max(1));
        // Such an item is delivered only to an empty core.
        let alone = spec.scratchpad_bytes > 0 && self.graph.footprint > spec.scratchpad_bytes / max;
        if alone { 1 } else { max }
    }

    fn sums(&mut self, costs: &mut Costs) {
        self.flights.clear();
        // Transfers come in op order.
        let sites = self
            .item
            .ops
            .iter()
            .filter(|op| matches!(op.kind, OpKind::Dma(_)));
        for (transfer, op) in self.item.transfers.iter().zip(sites) {
            let lines = least_lines(&self.item, transfer, self.path.line_bits);
            let write = transfer.direction == Direction::Store;
            let fresh = !write
                && self
                    .path
                    .fresh
                    .get(op.site as usize)
                    .copied()
                    .unwrap_or(false);
            let steps = self.path.send_steps(lines);
            let flight = if lines == 0 {
                // Dropped a step after it was taken; the data is there in the step after that.
                Flight {
                    lines,
                    steps,
                    arrival: 3,
                    floor: 0,
                }
            } else {
                Flight {
                    lines,
                    steps,
                    // Taken in the step after its issue, sent for `steps` steps.
                    arrival: steps.saturating_add(self.path.round_trip(lines, write, fresh)),
                    floor: self.path.first_trip(lines, write, fresh).saturating_add(1),
                }
            };
            self.flights.push(flight);
            costs.dma_steps = costs.dma_steps.saturating_add(steps);
            let lines_of = if write {
                &mut costs.store_lines
            } else {
                &mut costs.load_lines
            };
            *lines_of = lines_of.saturating_add(lines);
            if fresh {
                costs.fresh_lines = costs.fresh_lines.saturating_add(lines);
            }
        }
        for node in &self.graph.nodes {
            match node.kind {
                NodeKind::Load { .. } | NodeKind::Store { .. } => costs.slots += 1,
                NodeKind::Wait { batch } => costs.slots += u64::from(batch != NONE),
                NodeKind::Compute { cost, .. } if cost.cycles == 0 => {}
                NodeKind::Compute { unit, cost } => {
                    costs.slots += 1;
                    costs.compute = costs.compute.saturating_add(cost.cycles);
                    let sum = match unit {
                        Unit::Vector => &mut costs.vector,
                        Unit::Matmul | Unit::Preload => &mut costs.systolic,
                        Unit::CrossLane => &mut costs.cross_lane,
                    };
                    *sum = sum.saturating_add(cost.cycles.saturating_sub(cost.overlap));
                }
            }
        }
    }

    /// Steps from issue until ops that stream behind a tile of `cycles` may issue.
    fn behind(&self, cycles: u64, to: u32) -> u64 {
        if cycles == 0 {
            return 0;
        }
        let costs = matches!(
            self.graph.nodes[to as usize].kind,
            NodeKind::Compute { cost, .. } if cost.cycles > 0
        );
        match self.machine.cores.compute_issue {
            ComputeIssue::Serial if costs => cycles,
            // The issue slot is taken.
            _ => 1,
        }
    }

    /// Earliest issue of every op, in steps from delivery; edges lead to later ops. Returns the steps
    /// to retirement and to the end of all replies; the earliest use of each unit goes to `head`.
    /// `first`: delivery is in step 1 of the run, and no transfer was sent before step 2.
    fn walk(&mut self, first: bool, head: &mut PerUnit) -> (u64, u64) {
        let n = self.graph.nodes.len();
        self.earliest.clear();
        self.earliest.resize(n, 0);
        self.batch.clear();
        self.batch.resize(self.graph.batches.len(), 0);
        let (mut retired, mut end) = (0u64, 0u64);
        for i in 0..n {
            let node = self.graph.nodes[i];
            let at = self.earliest[i];
            let done = match node.kind {
                NodeKind::Load { transfer, batch } => {
                    head.dma = head.dma.min(at);
                    let f = self.flights[transfer as usize];
                    let mut arrived = at.saturating_add(f.arrival);
                    if first {
                        arrived = arrived.max(f.floor);
                    }
                    end = end.max(arrived);
                    if batch == NONE {
                        arrived
                    } else {
                        let last = &mut self.batch[batch as usize];
                        *last = (*last).max(arrived);
                        at.saturating_add(1).saturating_add(f.steps)
                    }
                }
                NodeKind::Store { transfer } => {
                    head.dma = head.dma.min(at);
                    let f = self.flights[transfer as usize];
                    if f.lines > 0 {
                        end = end.max(at.saturating_add(f.arrival));
                        if first {
                            end = end.max(f.floor);
                        }
                    }
                    at.saturating_add(1).saturating_add(f.steps)
                }
                NodeKind::Wait { batch: NONE } => continue,
                NodeKind::Wait { batch } => at.saturating_add(1).max(self.batch[batch as usize]),
                NodeKind::Compute { unit, cost } => {
                    if cost.cycles > 0 {
                        head.lower(unit, at);
                    }
                    for k in node.on_issue.range() {
                        let to = self.graph.edges[k];
                        let then = at.saturating_add(self.behind(cost.cycles, to));
                        let e = &mut self.earliest[to as usize];
                        *e = (*e).max(then);
                    }
                    match cost.cycles {
                        0 => at,
                        // Issued at counter `at + 1`.
                        cycles => at.saturating_add(1).saturating_add(cycles),
                    }
                }
            };
            retired = retired.max(done);
            for &to in &self.graph.edges[node.on_done.range()] {
                let e = &mut self.earliest[to as usize];
                *e = (*e).max(done);
            }
        }
        (retired, end.max(retired))
    }

    /// Least times from the end of each unit's uses to the end of the run into `tail`; returns those
    /// to the item's retirement.
    fn backward(&mut self, tail: &mut PerUnit) -> PerUnit {
        let n = self.graph.nodes.len();
        self.after.clear();
        self.after.resize(n, (0, 0));
        self.left.clear();
        self.left.resize(n, (0, 0));
        self.batch_wait.clear();
        self.batch_wait.resize(self.graph.batches.len(), NONE);
        let mut to_retirement = PerUnit::NEVER;
        for i in (0..n).rev() {
            let node = self.graph.nodes[i];
            let mut after = (0u64, 0u64);
            for &to in &self.graph.edges[node.on_done.range()] {
                let left = self.left[to as usize];
                after = (after.0.max(left.0), after.1.max(left.1));
            }
            self.after[i] = after;
            let add = |x: (u64, u64), by: u64| (x.0.saturating_add(by), x.1.saturating_add(by));
            let max = |x: (u64, u64), y: (u64, u64)| (x.0.max(y.0), x.1.max(y.1));
            self.left[i] = match node.kind {
                NodeKind::Load { transfer, batch } => {
                    let f = self.flights[transfer as usize];
                    let dropped = f.steps.saturating_add(1);
                    let mut left = match batch {
                        NONE => add(after, f.arrival),
                        _ => {
                            let wait = self.batch_wait[batch as usize];
                            let behind = self.after.get(wait as usize).copied();
                            max(
                                add(after, dropped),
                                add(behind.unwrap_or((0, 0)), f.arrival),
                            )
                        }
                    };
                    left.1 = left.1.max(f.arrival);
                    tail.dma = tail.dma.min(left.1.saturating_sub(dropped));
                    to_retirement.dma = to_retirement.dma.min(left.0.saturating_sub(dropped));
                    left
                }
                NodeKind::Store { transfer } => {
                    let f = self.flights[transfer as usize];
                    let dropped = f.steps.saturating_add(1);
                    let mut left = add(after, dropped);
                    if f.lines > 0 {
                        left.1 = left.1.max(f.arrival);
                    }
                    tail.dma = tail.dma.min(left.1.saturating_sub(dropped));
                    to_retirement.dma = to_retirement.dma.min(left.0.saturating_sub(dropped));
                    left
                }
                NodeKind::Wait { batch: NONE } => (0, 0),
                NodeKind::Wait { batch } => {
                    self.batch_wait[batch as usize] = i as u32;
                    add(after, 1)
                }
                NodeKind::Compute { unit, cost } => {
                    let mut left = match cost.cycles {
                        0 => after,
                        cycles => {
                            tail.lower(unit, after.1);
                            to_retirement.lower(unit, after.0);
                            add(after, cycles.saturating_add(1))
                        }
                    };
                    for k in node.on_issue.range() {
                        let to = self.graph.edges[k];
                        let behind = self.behind(cost.cycles, to);
                        left = max(left, add(self.left[to as usize], behind));
                    }
                    left
                }
            };
        }
        to_retirement
    }
}

/// Lines a transfer touches at least, wherever it starts: its shape alone decides.
///
/// Dimensions are folded as in `memory::lines`: what leaves a gap smaller than a line joins the row
/// below it, and all lines from the first to the last of such a row are touched. A row of b bits
/// touches at least `ceil(b / line)`. A dimension whose neighbours are at least a line apart
/// multiplies. One that leaves less keeps them disjoint at least, so neighbours share one line at
/// most, and every k-th of them are far enough apart. One whose neighbours overlap counts once. A
/// gather counts one index, since all may be equal.
pub(super) fn least_lines(item: &WorkItem, transfer: &Transfer, line_bits: u64) -> u64 {
    match transfer.indirect {
        ResolvedIndirect::Lines { count, bytes } => declared_lines(count, bytes, line_bits),
        ResolvedIndirect::Indices(ids) if ids.range().is_empty() => 0,
        ResolvedIndirect::None | ResolvedIndirect::Indices(_) => {
            let dims = item.dims[transfer.dims.range()]
                .iter()
                .map(|d| (d.extent, d.stride));
            strided_lines(dims, transfer.element_bits, line_bits)
        }
    }
}

/// As [`least_lines`], of `count` pieces of `bytes` one after another.
pub(super) fn declared_lines(count: u64, bytes: u32, line_bits: u64) -> u64 {
    let bits = u128::from(count).saturating_mul(u128::from(bytes) * 8);
    u64::try_from(bits.div_ceil(u128::from(line_bits.max(1)))).unwrap_or(u64::MAX)
}

/// As [`least_lines`], of elements at (extent, stride), in elements.
pub(super) fn strided_lines(
    dims: impl Iterator<Item = (u64, i64)>,
    element_bits: u32,
    line_bits: u64,
) -> u64 {
    const MOST: usize = 16;
    let line = i128::from(line_bits.max(1));
    let bits = i128::from(element_bits);
    let ceil = |x: i128| u64::try_from(x.saturating_add(line - 1) / line).unwrap_or(u64::MAX);
    let mut levels = [(0i128, 0u64); MOST];
    let mut depth = 0;
    for (extent, stride) in dims {
        if extent == 0 {
            return 0;
        }
        if extent == 1 || stride == 0 {
            continue;
        }
        // Dimensions beyond the most count as one element.
        if let Some(level) = levels.get_mut(depth) {
            *level = (i128::from(stride).abs() * bits, extent);
            depth += 1;
        }
    }
    let levels = &mut levels[..depth];
    levels.sort_unstable();
    let mut row = bits;
    let mut at = 0;
    while let Some(&(stride, extent)) = levels.get(at) {
        if stride - row >= line {
            break;
        }
        row = row.saturating_add(stride.saturating_mul(i128::from(extent - 1)));
        at += 1;
    }
    let mut lines = ceil(row);
    let mut span = row;
    for &(stride, extent) in &levels[at..] {
        if stride - span >= line {
            lines = lines.saturating_mul(extent);
        } else {
            let mut best = lines;
            if stride >= span {
                best = best.max(lines.saturating_mul(extent) - (extent - 1));
            }
            // Every k-th is a line apart.
            let k = u64::try_from(span.saturating_add(line + stride - 1) / stride.max(1))
                .unwrap_or(u64::MAX);
            best = best.max(lines.saturating_mul(extent.div_ceil(k.max(1))));
            lines = best;
        }
        span = span.saturating_add(stride.saturating_mul(i128::from(extent - 1)));
    }
    lines
}
