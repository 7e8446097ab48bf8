//! How work-items reach the cores.
//!
//! Round robin (the reference's rule): item k belongs to core k mod n of the partition. Each core
//! has as many slots as it can hold residents. In every core step the slots are scanned in order,
//! and in each slot the cores by index: an empty slot binds the core's next item, a bound one
//! delivers if the core has room and is empty again. The scan of a slot ends with a delivery.
//!
//! Dynamic: at most one item per step goes to the first core with room, looking from the core after
//! the one served last.
//!
//! Items are expanded when they are bound and dropped when they retire. Where control does not
//! depend on program ids all items share one graph (the first and the last have their own).

use std::rc::Rc;

use tilesim_traces::Bound;
use tilesim_traces::launch::WorkItem;
use tilesim_traces::model::Resources;

use crate::cores::{Core, Prepared};
use crate::engine::RunOptions;
use crate::error::SimError;
use crate::graph::{BufferUse, Graph, GraphBuilder, GraphContext, Summary};
use crate::machine::{DispatchPolicy, Machine, Residency};

/// Work-items whose use of buffers is remembered.
const REMEMBERED: u64 = 64;

/// How many work-items on either side are asked what they do with a buffer.
const NEIGHBOURS: u64 = 16;

/// Hands out the work-items of one launch.
#[derive(Debug)]
pub struct Dispatcher<'a> {
    bound: &'a Bound,
    context: GraphContext,
    builder: GraphBuilder,
    policy: DispatchPolicy,
    residency: Residency,
    residents_max: usize,
    /// What one work-item takes of a core besides scratchpad.
    per_item: Resources,
    spad: u64,
    /// Cores of the partition.
    cores: Vec<u32>,
    /// Bound items per slot and core.
    slots: Vec<Option<Prepared>>,
    /// Next item per core (round robin), or the next of all in entry 0.
    next: Vec<u64>,
    first_core: usize,
    items: u64,
    /// Work-items jumped over: item k does, where it stands, what item k + `skipped` of the launch
    /// does elsewhere.
    skipped: u64,
    delivered: u64,
    out_of_bounds: u64,
    look: u64,
    pool: Vec<Prepared>,
    /// Graphs of uniform launches by (has a predecessor, has a successor).
    shared: [Option<Rc<Graph>>; 4],
    uniform: bool,
    summaries: Vec<(Option<u64>, Summary)>,
    before: Summary,
    after: Summary,
    writer: Vec<u64>,
    scratch: WorkItem,
}

impl<'a> Dispatcher<'a> {
    /// For all items of a bound launch.
    pub fn new(
        machine: &Machine,
        bound: &'a Bound,
        context: GraphContext,
        options: &RunOptions,
    ) -> Dispatcher<'a> {
        let partition = machine.cores.partition.first().copied().unwrap_or(0);
        let cores: Vec<u32> = (0..machine.cores.count)
            .filter(|&c| {
                machine
                    .cores
                    .partition
                    .get(c as usize)
                    .copied()
                    .unwrap_or(0)
                    == partition
            })
            .collect();
        let max = match machine.cores.residency {
            Residency::Shared { max } | Residency::Safe { max } => max,
            Residency::Resources { max, .. } => max,
        }
        .max(1) as usize;
        let policy = machine.dispatch;
        let slots = match policy {
            DispatchPolicy::RoundRobin => max * cores.len(),
            DispatchPolicy::Dynamic => 1,
        };
        Dispatcher {
            bound,
            context,
            builder: GraphBuilder::default(),
            policy,
            residency: machine.cores.residency.clone(),
            residents_max: max,
            per_item: options.resources(bound.trace()),
            spad: machine.cores.scratchpad_bytes,
            next: (0..cores.len() as u64).collect(),
            slots: (0..slots).map(|_| None).collect(),
            cores,
            first_core: 0,
            items: bound.items(),
            skipped: 0,
            delivered: 0,
            out_of_bounds: 0,
            look: 0,
            pool: Vec::new(),
            shared: [None, None, None, None],
            uniform: bound.control_is_uniform(),
            summaries: (0..REMEMBERED).map(|_| (None, Summary::new())).collect(),
            before: Summary::new(),
            writer: Vec::new(),
            after: Summary::new(),
            scratch: WorkItem::default(),
        }
    }

    /// The next step in which something may be bound or delivered.
    pub fn next_look(&self) -> u64 {
        self.look
    }

    /// A core has room again after step `step`.
    pub fn wake(&mut self, step: u64) {
        if self.delivered < self.items {
            self.look = self.look.min(step + 1);
        }
    }

    /// Work-items not delivered yet.
    pub fn waiting(&self) -> u64 {
        self.items - self.delivered
    }

    /// Work-items delivered so far, jumped ones left out.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Work-items that have not been expanded.
    pub fn waiting_to_expand(&self) -> u64 {
        let furthest = self.next.iter().copied().max().unwrap_or(0);
        self.items.saturating_sub(furthest)
    }

    /// The work-item before which all have been handed to a slot.
    pub fn base(&self) -> u64 {
        match self.policy {
            DispatchPolicy::RoundRobin => self.next.iter().copied().min().unwrap_or(0),
            DispatchPolicy::Dynamic => self.next[0],
        }
    }

    /// Leave out `items` work-items of those not yet expanded. Only right where they would only
    /// have repeated what was done: see [`crate::warp`].
    pub fn skip(&mut self, items: u64) {
        self.skipped += items;
        self.items -= items;
    }

    /// The work-items that are bound and not delivered, by slot.
    pub fn bound_items(&self) -> impl Iterator<Item = Option<&Prepared>> {
        self.slots.iter().map(Option::as_ref)
    }

    /// Move the transfers of the work-item in a slot to other places.
    pub fn replace(&mut self, slot: usize, first_bits: &[i128]) {
        if let Some(Some(work)) = self.slots.get_mut(slot) {
            for (transfer, &first) in work.item.transfers.iter_mut().zip(first_bits) {
                transfer.first_bit = first;
            }
        }
    }

    /// Append the state to `out`, steps relative to `now`, work-items to `base`. Where bound ones lie
    /// is no part of it.
    pub fn canonical(&self, now: u64, base: u64, out: &mut Vec<u64>) {
        let count = match self.policy {
            DispatchPolicy::RoundRobin => self.next.len(),
            DispatchPolicy::Dynamic => 1,
        };
        out.extend(self.next[..count].iter().map(|n| n.wrapping_sub(base)));
        for slot in &self.slots {
            // An item that shares no version is like any other with its graph, wherever it stands;
            // one may be overtaken for long.
            out.extend(match slot {
                None => [u64::MAX; 2],
                Some(work) if work.graph.carries_nothing() => [self.variant(work.index) as u64, 0],
                Some(work) => [4, work.index.wrapping_sub(base)],
            });
        }
        out.push(self.first_core as u64);
        out.push(match self.look {
            u64::MAX => u64::MAX,
            look => look.wrapping_sub(now),
        });
    }

    /// Transfers outside their tensor so far.
    pub fn out_of_bounds(&self) -> u64 {
        self.out_of_bounds
    }

    /// Take back a retired work-item's buffers.
    pub fn recycle(&mut self, work: Prepared) {
        self.pool.push(work);
    }

    /// Look once, before the cores act in step `step`.
    pub fn run(&mut self, step: u64, cores: &mut [Core]) -> Result<(), SimError> {
        let changed = match self.policy {
            DispatchPolicy::RoundRobin => self.scan_slots(step, cores)?,
            DispatchPolicy::Dynamic => self.serve_one(step, cores)?,
        };
        self.look = if changed && self.delivered < self.items {
            step + 1
        } else {
            u64::MAX
        };
        Ok(())
    }

    fn scan_slots(&mut self, step: u64, cores: &mut [Core]) -> Result<bool, SimError> {
        let n = self.cores.len();
        let mut changed = false;
        for slot in 0..self.residents_max {
            for k in 0..n {
                let at = slot * n + k;
                let core = self.cores[k] as usize;
                match &self.slots[at] {
                    None => {
                        let index = self.next[k];
                        if index < self.items {
                            self.next[k] = index.saturating_add(n as u64);
                            self.slots[at] = Some(self.prepare(index)?);
                            changed = true;
                        }
                    }
                    Some(work) => {
                        if self.has_room(&cores[core], &work.graph) {
                            if let Some(work) = self.slots[at].take() {
                                cores[core].deliver(step, work);
                                self.delivered += 1;
                                changed = true;
                            }
                            break;
                        }
                    }
                }
            }
        }
        Ok(changed)
    }

    fn serve_one(&mut self, step: u64, cores: &mut [Core]) -> Result<bool, SimError> {
        if self.slots[0].is_none() && self.next[0] < self.items {
            let index = self.next[0];
            self.next[0] += 1;
            self.slots[0] = Some(self.prepare(index)?);
        }
        if step == 0 {
            return Ok(true);
        }
        let Some(work) = &self.slots[0] else {
            return Ok(false);
        };
        let graph = Rc::clone(&work.graph);
        let n = self.cores.len();
        for k in 0..n {
            let at = (self.first_core + k) % n;
            let core = self.cores[at] as usize;
            if self.has_room(&cores[core], &graph) {
                if let Some(work) = self.slots[0].take() {
                    cores[core].deliver(step, work);
                    self.delivered += 1;
                }
                self.first_core = (at + 1) % n;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a core may take one more work-item.
    fn has_room(&self, core: &Core, arriving: &Graph) -> bool {
        let residents = core.residents();
        if residents >= self.residents_max {
            return false;
        }
        if residents == 0 || self.spad == 0 {
            return self.fits_resources(residents);
        }
        match self.residency {
            Residency::Shared { .. } => arriving.footprint <= self.spad / self.residents_max as u64,
            // No op of any resident will ever wait for room.
            Residency::Safe { .. } => {
                let all = core
                    .resident_graphs()
                    .fold(arriving.all_bytes, |sum, graph| {
                        sum.saturating_add(graph.all_bytes)
                    });
                all <= self.spad
            }
            Residency::Resources { .. } => {
                let all = core
                    .resident_graphs()
                    .fold(arriving.footprint, |sum, graph| {
                        sum.saturating_add(graph.footprint)
                    });
                all <= self.spad && self.fits_resources(residents)
            }
        }
    }

    /// Whether registers and threads allow one more.
    fn fits_resources(&self, residents: usize) -> bool {
        let Residency::Resources {
            registers, threads, ..
        } = self.residency
        else {
            return true;
        };
        let n = residents as u64 + 1;
        residents == 0
            || [
                (registers, self.per_item.registers),
                (threads, self.per_item.threads),
            ]
            .iter()
            .all(|&(all, each)| all == 0 || each.saturating_mul(n) <= all)
    }

    /// Which graph of a uniform launch an item has.
    fn variant(&self, index: u64) -> usize {
        usize::from(index > 0) + 2 * usize::from(index + 1 < self.items)
    }

    fn prepare(&mut self, index: u64) -> Result<Prepared, SimError> {
        let mut work = self.pool.pop().unwrap_or_default();
        work.index = index;
        self.bound.expand(self.bound.pid(index), &mut work.item)?;
        work.item.pid = self.bound.pid(index + self.skipped);
        self.out_of_bounds += work.item.out_of_bounds;
        let (first, last) = (index == 0, index + 1 == self.items);
        let variant = self.variant(index);
        if self.uniform
            && let Some(graph) = &self.shared[variant]
        {
            work.graph = Rc::clone(graph);
            return Ok(work);
        }
        let mut before = std::mem::take(&mut self.before);
        let mut after = std::mem::take(&mut self.after);
        if self.spad > 0 {
            self.look_back(index, &mut before)?;
            self.look_ahead(index, &mut after)?;
        }
        if Rc::get_mut(&mut work.graph).is_none() {
            work.graph = Rc::new(Graph::default());
        }
        if let Some(graph) = Rc::get_mut(&mut work.graph) {
            let known = self.spad > 0;
            let before = (known && !first).then_some(&before);
            let after = (known && !last).then_some(&after);
            self.builder
                .build(&self.context, &work.item, before, after, graph)
                .map_err(|error| self.item_error(error))?;
        }
        self.before = before;
        self.after = after;
        if self.uniform {
            self.shared[variant] = Some(Rc::clone(&work.graph));
        }
        Ok(work)
    }

    /// Say where an item error is.
    pub fn item_error(&self, error: crate::error::ItemError) -> SimError {
        SimError::Item {
            path: self.bound.site_path(error.site),
            error,
        }
    }

    /// What the work-items before `index` left in each buffer, and which of them opened the version.
    fn look_back(&mut self, index: u64, out: &mut Summary) -> Result<(), SimError> {
        out.clear();
        out.resize(self.context.buffer_bytes.len(), BufferUse::default());
        // A first write opens a version only if it does not join an open one, which shows one
        // toucher further back: until then the writer is kept here.
        let mut writer = std::mem::take(&mut self.writer);
        writer.clear();
        writer.resize(out.len(), 0);
        for back in 1..=NEIGHBOURS.min(index) {
            let summary = self.summary(index - back)?;
            let mut unknown = false;
            for ((known, found), writer) in out.iter_mut().zip(summary).zip(&mut writer) {
                if known.opened_ago == 0 && found.touched {
                    if !known.touched {
                        known.touched = true;
                        known.ends_open = found.ends_open;
                    }
                    if *writer > 0 && !found.ends_open {
                        known.opened_ago = *writer;
                    } else if found.opens {
                        known.opened_ago = back;
                    } else if !found.reads_first {
                        *writer = back;
                    }
                }
                unknown |= known.opened_ago == 0;
            }
            if !unknown || (self.uniform && back == 2) {
                break;
            }
        }
        for (known, &writer) in out.iter_mut().zip(&writer) {
            if known.opened_ago == 0 {
                known.opened_ago = writer;
                // Only read so far: there is no version.
                known.touched &= writer > 0;
            }
        }
        self.writer = writer;
        Ok(())
    }

    /// What the nearest work-items after `index` do with each buffer, up to the first read.
    fn look_ahead(&mut self, index: u64, out: &mut Summary) -> Result<(), SimError> {
        out.clear();
        out.resize(self.context.buffer_bytes.len(), BufferUse::default());
        for ahead in 1..=NEIGHBOURS.min(self.items - 1 - index) {
            let summary = self.summary(index + ahead)?;
            let mut open = false;
            for (known, found) in out.iter_mut().zip(summary) {
                if !known.touched {
                    *known = *found;
                } else if !known.reads {
                    known.reads = found.reads;
                }
                open |= !known.reads;
            }
            if self.uniform || !open {
                break;
            }
        }
        Ok(())
    }

    fn summary(&mut self, index: u64) -> Result<&Summary, SimError> {
        let at = (index % REMEMBERED) as usize;
        if self.summaries[at].0 != Some(index) {
            let pid = self.bound.pid(index);
            self.bound.expand(pid, &mut self.scratch)?;
            let (known, summary) = &mut self.summaries[at];
            self.builder.summary(&self.context, &self.scratch, summary);
            *known = Some(index);
        }
        Ok(&self.summaries[at].1)
    }
}
