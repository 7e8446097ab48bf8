//! The dependency graph of one work-item.
//!
//! Edges come from buffers, not from program order. Per buffer the current writers are kept; reading
//! waits for all of them, writing replaces them. A matmul that writes a buffer accumulates: it waits
//! for the last op that replaced the writers, and joins them. Between a matmul or preload and a
//! matmul that reads its result, the edge is released at *issue* (they stream through the array),
//! otherwise at *completion*.
//!
//! Scratchpad versions are found here too: the first write after the last read of a buffer opens a
//! version, which holds its bytes from then until its last reader in program order issues. Versions
//! outlive a work-item where the next one reads or fills them first, so the builder is told what the
//! neighbours in dispatch order do with each buffer (a [`Summary`]).

use tilesim_traces::launch::{OpKind, Span, WorkItem};
use tilesim_traces::model::{Direction, Unit};

use crate::error::ItemError;

const NONE: u32 = u32::MAX;

/// What the graph builder must know of a launch.
#[derive(Clone, Debug, Default)]
pub struct GraphContext {
    /// Cycles and overlap per tile of the cost table.
    pub tiles: Vec<TileCost>,
    /// Bytes per buffer.
    pub buffer_bytes: Vec<u64>,
    /// Whether some DMA of the trace moves it: only such buffers occupy scratchpad.
    pub moved: Vec<bool>,
    /// Names, for messages.
    pub buffer_names: Vec<String>,
}

/// What one tile costs, in core cycles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TileCost {
    /// From issue to the end of its use of the unit.
    pub cycles: u64,
    /// How much of it may overlap its predecessor on the same unit.
    pub overlap: u64,
    /// Its row in the trace's table, for counting runs.
    pub tile: u32,
}

/// What an op is to the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// A load; `batch` is the wait that collects it, if it is asynchronous.
    Load {
        /// Index into [`WorkItem::transfers`].
        transfer: u32,
        /// Batch, or `u32::MAX` for a blocking load.
        batch: u32,
    },
    /// A store.
    Store {
        /// Index into [`WorkItem::transfers`].
        transfer: u32,
    },
    /// A compute tile.
    Compute {
        /// Its unit.
        unit: Unit,
        /// Its cost.
        cost: TileCost,
    },
    /// A wait for a batch of loads.
    Wait {
        /// The batch.
        batch: u32,
    },
}

/// One op of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// What it is.
    pub kind: NodeKind,
    /// Events it waits for.
    pub deps: u32,
    /// Ops released when it issues (span of [`Graph::edges`]).
    pub on_issue: Span,
    /// Ops released when it completes.
    pub on_done: Span,
    /// Scratchpad it takes when it issues (span of [`Graph::allocs`]).
    pub allocs: Span,
    /// Sum of those bytes.
    pub alloc_bytes: u64,
    /// Versions it frees when it issues (span of [`Graph::releases`]).
    pub releases: Span,
    /// A matmul's preloads (span of [`Graph::preloads`]).
    pub preloads: Span,
    /// A preload's matmuls.
    pub users: u32,
}

/// The graph of one work-item.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graph {
    /// Ops in program order.
    pub nodes: Vec<Node>,
    /// Pool of successor ops.
    pub edges: Vec<u32>,
    /// Pool of (version, bytes).
    pub allocs: Vec<(u32, u64)>,
    /// Pool of versions.
    pub releases: Vec<u32>,
    /// Pool of preload ops.
    pub preloads: Vec<u32>,
    /// Loads per batch.
    pub batches: Vec<u32>,
    /// Versions in all.
    pub versions: u32,
    /// Per version: whether a neighbour in dispatch order shares it.
    pub shared: Vec<bool>,
    /// Versions that other work-items opened: (buffer, version, how many items ago).
    pub carry_in: Vec<(u32, u32, u64)>,
    /// Versions opened here that later work-items use: (buffer, version).
    pub carry_out: Vec<(u32, u32)>,
    /// Bytes of the scratchpad buffers it touches.
    pub footprint: u64,
    /// Bytes of all versions it ever fills.
    pub all_bytes: u64,
}

impl Graph {
    /// Whether no version is shared with another work-item.
    pub fn carries_nothing(&self) -> bool {
        self.carry_in.is_empty() && self.carry_out.is_empty()
    }
}

/// What a work-item does with one buffer's versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferUse {
    /// It opens, fills or reads a version.
    pub touched: bool,
    /// Its first use is a read.
    pub reads_first: bool,
    /// It reads.
    pub reads: bool,
    /// It leaves a version that further writes join.
    pub ends_open: bool,
    /// It writes after it has read: that write opens a version whatever was before.
    pub opens: bool,
    /// Looking back: how many work-items ago the current version was opened (0: not known).
    pub opened_ago: u64,
}

/// What a work-item does with every buffer's versions.
pub type Summary = Vec<BufferUse>;

/// Builds graphs, reusing its buffers.
#[derive(Debug, Default)]
pub struct GraphBuilder {
    writers: Vec<Vec<u32>>,
    replaced_by: Vec<u32>,
    pending_async: Vec<u32>,
    stamp_issue: Vec<u32>,
    stamp_done: Vec<u32>,
    issue_edges: Vec<(u32, u32)>,
    done_edges: Vec<(u32, u32)>,
    starts: Vec<u32>,
    semaphores: Vec<Semaphore>,
    version_of: Vec<u32>,
    open: Vec<bool>,
    last_reader: Vec<u32>,
    continues: Vec<bool>,
    version_allocs: Vec<(u32, u32, u64)>,
    touched: Vec<bool>,
    merged: Vec<u32>,
}

#[derive(Debug)]
struct Semaphore {
    id: u32,
    batch: u32,
    loads: Vec<u32>,
    elements: u64,
    /// Elements of the last batch a wait collected.
    waited: Option<u64>,
}

impl GraphBuilder {
    /// What `item` does with each buffer.
    pub fn summary(&mut self, context: &GraphContext, item: &WorkItem, out: &mut Summary) {
        out.clear();
        out.resize(context.buffer_bytes.len(), BufferUse::default());
        for op in &item.ops {
            let reads = &item.buffers[op.reads.range()];
            let writes = &item.buffers[op.writes.range()];
            let in_place = matches!(op.kind, OpKind::Compute { .. });
            for b in reads {
                let b = b.index();
                if in_place && writes.iter().any(|w| w.index() == b) {
                    continue;
                }
                let u = &mut out[b];
                u.reads_first |= !u.touched;
                u.touched = true;
                u.reads = true;
                u.ends_open = false;
            }
            if is_store(item, op.kind) {
                continue;
            }
            for b in writes {
                let b = b.index();
                if in_place && reads.iter().any(|r| r.index() == b) {
                    continue;
                }
                let u = &mut out[b];
                u.opens |= u.reads && !u.ends_open;
                u.touched = true;
                u.ends_open = true;
            }
        }
    }

    /// Build the graph of `item`; `before` and `after` are the summaries of its neighbours in
    /// dispatch order.
    pub fn build(
        &mut self,
        context: &GraphContext,
        item: &WorkItem,
        before: Option<&Summary>,
        after: Option<&Summary>,
        graph: &mut Graph,
    ) -> Result<(), ItemError> {
        let buffers = context.buffer_bytes.len();
        let ops = item.ops.len();
        self.reset(buffers, ops);
        graph.nodes.clear();
        graph.edges.clear();
        graph.preloads.clear();
        graph.batches.clear();

        for (index, op) in item.ops.iter().enumerate() {
            let x = index as u32;
            let reads = &item.buffers[op.reads.range()];
            let writes = &item.buffers[op.writes.range()];
            let fail = |kind| ItemError {
                op: x,
                site: op.site,
                pid: item.pid,
                kind,
            };
            let mut node = Node {
                kind: NodeKind::Wait { batch: 0 },
                deps: 0,
                on_issue: Span::default(),
                on_done: Span::default(),
                allocs: Span::default(),
                alloc_bytes: 0,
                releases: Span::default(),
                preloads: Span::default(),
                users: 0,
            };
            match op.kind {
                OpKind::Dma(transfer) => {
                    let t = &item.transfers[transfer as usize];
                    self.read_all(graph, x, reads, None, context)
                        .map_err(fail)?;
                    match (t.direction, t.semaphore) {
                        (Direction::Store, _) => node.kind = NodeKind::Store { transfer },
                        (Direction::Load, None) => {
                            node.kind = NodeKind::Load {
                                transfer,
                                batch: NONE,
                            };
                        }
                        (Direction::Load, Some(semaphore)) => {
                            let s = self.semaphore(semaphore.0);
                            let sem = &mut self.semaphores[s];
                            if sem.loads.is_empty() {
                                sem.batch = graph.batches.len() as u32;
                                sem.elements = 0;
                                graph.batches.push(0);
                            }
                            sem.loads.push(x);
                            sem.elements = sem.elements.saturating_add(t.full_elements);
                            graph.batches[sem.batch as usize] += 1;
                            node.kind = NodeKind::Load {
                                transfer,
                                batch: sem.batch,
                            };
                        }
                    }
                    let asynchronous = t.direction == Direction::Load && t.semaphore.is_some();
                    for b in writes {
                        self.replace(b.index(), x);
                        self.pending_async[b.index()] = if asynchronous { x } else { NONE };
                    }
                }
                OpKind::Compute { tile, unit } => {
                    let cost = context.tiles[tile.index()];
                    let matmul = unit == Unit::Matmul;
                    self.read_all(graph, x, reads, matmul.then_some(writes), context)
                        .map_err(fail)?;
                    for b in writes {
                        let b = b.index();
                        if matmul {
                            if self.pending_async[b] != NONE {
                                return Err(fail(unwaited(context, b)));
                            }
                            let seed = self.replaced_by[b];
                            if seed != NONE {
                                self.edge_done(seed, x);
                            }
                            self.writers[b].push(x);
                        } else {
                            self.replace(b, x);
                            self.pending_async[b] = NONE;
                        }
                    }
                    node.kind = NodeKind::Compute { unit, cost };
                }
                OpKind::Wait {
                    semaphore,
                    expected,
                } => {
                    let s = self.semaphore(semaphore.0);
                    if self.semaphores[s].loads.is_empty() {
                        // A repeated wait on the same batch is free; it changes nothing.
                        match self.semaphores[s].waited {
                            None => return Err(fail(ItemErrorKind::Unsignalled(semaphore.0))),
                            Some(n) if n != expected => {
                                return Err(fail(ItemErrorKind::WaitCount {
                                    semaphore: semaphore.0,
                                    expected,
                                    moved: n,
                                }));
                            }
                            Some(_) => node.kind = NodeKind::Wait { batch: NONE },
                        }
                    } else {
                        let elements = self.semaphores[s].elements;
                        if elements != expected {
                            return Err(fail(ItemErrorKind::WaitCount {
                                semaphore: semaphore.0,
                                expected,
                                moved: elements,
                            }));
                        }
                        let loads = std::mem::take(&mut self.semaphores[s].loads);
                        for &load in &loads {
                            self.edge_done(load, x);
                            let op = &item.ops[load as usize];
                            for b in &item.buffers[op.writes.range()] {
                                self.replace(b.index(), x);
                                self.pending_async[b.index()] = NONE;
                            }
                        }
                        let sem = &mut self.semaphores[s];
                        sem.loads = loads;
                        sem.loads.clear();
                        sem.waited = Some(elements);
                        node.kind = NodeKind::Wait { batch: sem.batch };
                    }
                }
            }
            graph.nodes.push(node);
        }
        for sem in &self.semaphores {
            if let Some(&load) = sem.loads.first() {
                let op = &item.ops[load as usize];
                return Err(ItemError {
                    op: load,
                    site: op.site,
                    pid: item.pid,
                    kind: ItemErrorKind::NeverWaited(sem.id),
                });
            }
        }
        self.lay_out_edges(graph);
        self.versions(context, item, before, after, graph);
        Ok(())
    }

    fn reset(&mut self, buffers: usize, ops: usize) {
        self.writers.resize_with(buffers, Vec::new);
        self.writers.iter_mut().for_each(Vec::clear);
        for v in [&mut self.replaced_by, &mut self.pending_async] {
            v.clear();
            v.resize(buffers, NONE);
        }
        for v in [&mut self.stamp_issue, &mut self.stamp_done] {
            v.clear();
            v.resize(ops, NONE);
        }
        self.issue_edges.clear();
        self.done_edges.clear();
        for sem in &mut self.semaphores {
            sem.loads.clear();
            sem.waited = None;
        }
    }

    fn semaphore(&mut self, id: u32) -> usize {
        match self.semaphores.iter().position(|s| s.id == id) {
            Some(at) => at,
            None => {
                let new = Semaphore {
                    id,
                    batch: 0,
                    loads: Vec::new(),
                    elements: 0,
                    waited: None,
                };
                self.semaphores.push(new);
                self.semaphores.len() - 1
            }
        }
    }

    fn replace(&mut self, b: usize, x: u32) {
        self.writers[b].clear();
        self.writers[b].push(x);
        self.replaced_by[b] = x;
    }

    fn edge_done(&mut self, from: u32, to: u32) {
        if self.stamp_done[from as usize] != to {
            self.stamp_done[from as usize] = to;
            self.done_edges.push((from, to));
        }
    }

    fn edge_issue(&mut self, from: u32, to: u32) {
        if self.stamp_issue[from as usize] != to {
            self.stamp_issue[from as usize] = to;
            self.issue_edges.push((from, to));
        }
    }

    /// Edges for everything `x` reads; `matmul_writes` is what it writes if it is a matmul.
    fn read_all(
        &mut self,
        graph: &mut Graph,
        x: u32,
        reads: &[tilesim_traces::model::BufferId],
        matmul_writes: Option<&[tilesim_traces::model::BufferId]>,
        context: &GraphContext,
    ) -> Result<(), ItemErrorKind> {
        for b in reads {
            let i = b.index();
            if self.pending_async[i] != NONE {
                return Err(unwaited(context, i));
            }
            if matmul_writes.is_some_and(|w| w.contains(b)) {
                continue; // accumulates: handled with the writes
            }
            for k in 0..self.writers[i].len() {
                let w = self.writers[i][k];
                let streams = matmul_writes.is_some()
                    && matches!(
                        graph.nodes[w as usize].kind,
                        NodeKind::Compute {
                            unit: Unit::Matmul | Unit::Preload,
                            ..
                        }
                    );
                if streams {
                    self.edge_issue(w, x);
                } else {
                    self.edge_done(w, x);
                }
            }
        }
        Ok(())
    }

    /// Successor lists in program order, dependency counts, and who uses which preload.
    fn lay_out_edges(&mut self, graph: &mut Graph) {
        let n = graph.nodes.len();
        for &(_, to) in self.issue_edges.iter().chain(&self.done_edges) {
            graph.nodes[to as usize].deps += 1;
        }
        for issue in [true, false] {
            let list = if issue {
                &self.issue_edges
            } else {
                &self.done_edges
            };
            self.starts.clear();
            self.starts.resize(n + 1, 0);
            for &(from, _) in list {
                self.starts[from as usize + 1] += 1;
            }
            let base = graph.edges.len() as u32;
            for i in 0..n {
                self.starts[i + 1] += self.starts[i];
                let span = Span {
                    start: base + self.starts[i],
                    end: base + self.starts[i + 1],
                };
                if issue {
                    graph.nodes[i].on_issue = span;
                } else {
                    graph.nodes[i].on_done = span;
                }
            }
            graph.edges.resize(base as usize + list.len(), 0);
            for &(from, to) in list {
                let at = &mut self.starts[from as usize];
                graph.edges[(base + *at) as usize] = to;
                *at += 1;
            }
        }
        // Issue edges come grouped by their target, as targets were visited in order.
        let mut k = 0;
        while k < self.issue_edges.len() {
            let to = self.issue_edges[k].1;
            let start = graph.preloads.len() as u32;
            while k < self.issue_edges.len() && self.issue_edges[k].1 == to {
                let from = self.issue_edges[k].0;
                if let NodeKind::Compute {
                    unit: Unit::Preload,
                    ..
                } = graph.nodes[from as usize].kind
                {
                    graph.preloads.push(from);
                    graph.nodes[from as usize].users += 1;
                }
                k += 1;
            }
            graph.nodes[to as usize].preloads = Span {
                start,
                end: graph.preloads.len() as u32,
            };
        }
    }

    /// Scratchpad versions: who takes bytes, who frees them.
    fn versions(
        &mut self,
        context: &GraphContext,
        item: &WorkItem,
        before: Option<&Summary>,
        after: Option<&Summary>,
        graph: &mut Graph,
    ) {
        let buffers = context.buffer_bytes.len();
        graph.allocs.clear();
        graph.releases.clear();
        graph.carry_in.clear();
        graph.carry_out.clear();
        self.version_of.clear();
        self.version_of.resize(buffers, NONE);
        self.open.clear();
        self.open.resize(buffers, false);
        self.touched.clear();
        self.touched.resize(buffers, false);
        self.last_reader.clear();
        self.continues.clear();
        self.version_allocs.clear();
        for b in 0..buffers {
            let entering = before.map(|s| s[b]).filter(|u| u.touched);
            if let (Some(u), true) = (entering, context.moved[b]) {
                self.version_of[b] = self.new_version();
                self.open[b] = u.ends_open;
                graph
                    .carry_in
                    .push((b as u32, self.version_of[b], u.opened_ago));
            }
        }
        // Versions below this number were opened by other work-items.
        let entering = self.last_reader.len() as u32;
        for (index, op) in item.ops.iter().enumerate() {
            let x = index as u32;
            let reads = &item.buffers[op.reads.range()];
            let writes = &item.buffers[op.writes.range()];
            let compute = matches!(op.kind, OpKind::Compute { .. });
            for b in reads {
                let i = b.index();
                self.touched[i] = true;
                if !context.moved[i] || (compute && writes.contains(b)) {
                    continue;
                }
                if self.version_of[i] != NONE {
                    self.last_reader[self.version_of[i] as usize] = x;
                    self.open[i] = false;
                }
            }
            let store = is_store(item, op.kind);
            for b in writes {
                let i = b.index();
                self.touched[i] = true;
                if store || !context.moved[i] || (compute && reads.contains(b)) {
                    continue;
                }
                let opens = self.version_of[i] == NONE || !self.open[i];
                if opens {
                    self.version_of[i] = self.new_version();
                    self.open[i] = true;
                }
                let bytes = match op.kind {
                    OpKind::Dma(t) => moved_bytes(item, t),
                    _ if opens => context.buffer_bytes[i],
                    _ => 0,
                };
                if bytes > 0 {
                    self.version_allocs.push((x, self.version_of[i], bytes));
                }
            }
        }
        if let Some(after) = after {
            for (b, u) in after.iter().enumerate() {
                let v = self.version_of[b];
                if v == NONE {
                    continue;
                }
                if if self.open[b] { u.reads } else { u.reads_first } {
                    self.continues[v as usize] = true;
                    if v >= entering {
                        graph.carry_out.push((b as u32, v));
                    }
                }
            }
        }
        graph.footprint = 0;
        for b in 0..buffers {
            if self.touched[b] && context.moved[b] {
                graph.footprint = graph.footprint.saturating_add(context.buffer_bytes[b]);
            }
        }
        graph.versions = self.last_reader.len() as u32;
        graph.shared.clear();
        graph.shared.resize(self.last_reader.len(), false);
        // Of what others opened, keep what is read here or passed on.
        let (readers, continues) = (&self.last_reader, &self.continues);
        graph
            .carry_in
            .retain(|&(_, v, _)| readers[v as usize] != NONE || continues[v as usize]);
        for &(_, version, _) in &graph.carry_in {
            graph.shared[version as usize] = true;
        }
        for &(_, version) in &graph.carry_out {
            graph.shared[version as usize] = true;
        }
        // Allocations were met in program order; keep those whose version is ever read.
        for &(x, version, bytes) in &self.version_allocs {
            let v = version as usize;
            if self.last_reader[v] == NONE && !self.continues[v] {
                continue;
            }
            let node = &mut graph.nodes[x as usize];
            if node.alloc_bytes == 0 {
                node.allocs.start = graph.allocs.len() as u32;
            }
            graph.allocs.push((version, bytes));
            node.allocs.end = graph.allocs.len() as u32;
            node.alloc_bytes = node.alloc_bytes.saturating_add(bytes);
        }
        graph.all_bytes = graph
            .allocs
            .iter()
            .fold(0u64, |sum, &(_, bytes)| sum.saturating_add(bytes));
        self.merged.clear();
        self.merged.extend(
            (0..graph.versions)
                .filter(|&v| self.last_reader[v as usize] != NONE && !self.continues[v as usize]),
        );
        let last = &self.last_reader;
        self.merged.sort_by_key(|&v| (last[v as usize], v));
        for &v in &self.merged {
            let node = &mut graph.nodes[last[v as usize] as usize];
            if node.releases == Span::default() {
                node.releases.start = graph.releases.len() as u32;
            }
            graph.releases.push(v);
            node.releases.end = graph.releases.len() as u32;
        }
    }

    fn new_version(&mut self) -> u32 {
        self.last_reader.push(NONE);
        self.continues.push(false);
        (self.last_reader.len() - 1) as u32
    }
}

fn is_store(item: &WorkItem, kind: OpKind) -> bool {
    matches!(kind, OpKind::Dma(t) if item.transfers[t as usize].direction == Direction::Store)
}

/// Scratchpad bytes of a transfer.
fn moved_bytes(item: &WorkItem, transfer: u32) -> u64 {
    use tilesim_traces::launch::ResolvedIndirect;
    let t = &item.transfers[transfer as usize];
    match t.indirect {
        ResolvedIndirect::Lines { count, bytes } => count.saturating_mul(u64::from(bytes)),
        _ => (u128::from(t.valid_elements) * u128::from(t.element_bits))
            .div_ceil(8)
            .min(u128::from(u64::MAX)) as u64,
    }
}

fn unwaited(context: &GraphContext, b: usize) -> ItemErrorKind {
    let name = context
        .buffer_names
        .get(b)
        .cloned()
        .unwrap_or_else(|| b.to_string());
    ItemErrorKind::ReadBeforeWait(name)
}

pub use crate::error::ItemErrorKind;
