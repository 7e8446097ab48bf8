//! One core: its resident work-items, issue, units, weight slots, scratchpad and DMA.
//!
//! The core acts only in steps in which something can change: [`Core::next`] names the next one.
//! Within a step the order is: compute tiles whose time is up retire; loads whose data is complete
//! retire; the DMA drops the transfer it has sent and takes the next one; the counter advances; timed
//! effects happen (waits, weight slots); the issue scan; retirement of a finished work-item. Step `s`
//! issues at counter `s + 1`.
//!
//! Ready ops are kept in lists by what can hold them up, each in the order in which its ops became
//! ready, so that the scan looks at list heads and never walks over what is blocked.

use std::collections::VecDeque;
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use tilesim_traces::launch::WorkItem;
use tilesim_traces::model::Unit;

use crate::error::{ItemError, ItemErrorKind};
use crate::graph::{Graph, Node, NodeKind};
use crate::machine::{ComputeIssue, CoreSpec};
use crate::memory::{Completion, Memory, Origin};
use crate::stack::{Cause, CycleStack};

const NONE: u32 = u32::MAX;

/// Token of transfers nobody waits for.
const STORE: u64 = u64::MAX;

/// A work-item ready to be delivered.
#[derive(Debug, Default)]
pub struct Prepared {
    /// Its place in dispatch order.
    pub index: u64,
    /// Its expansion.
    pub item: WorkItem,
    /// Its graph.
    pub graph: Rc<Graph>,
}

/// What can hold up a ready op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    /// Nothing.
    Free,
    /// The busy compute unit.
    Unit,
    /// A weight slot and the busy unit.
    Slot,
    /// A weight slot.
    SlotOnly,
    /// Scratchpad room.
    LoadRoom,
    /// Scratchpad room, and what holds up a compute tile.
    ComputeRoom,
}

const GATES: usize = 6;

fn gate(node: &Node) -> Gate {
    match node.kind {
        NodeKind::Load { .. } if node.alloc_bytes > 0 => Gate::LoadRoom,
        NodeKind::Compute { .. } if node.alloc_bytes > 0 => Gate::ComputeRoom,
        NodeKind::Compute {
            unit: Unit::Preload,
            cost,
        } if cost.cycles == 0 => Gate::SlotOnly,
        NodeKind::Compute {
            unit: Unit::Preload,
            ..
        } => Gate::Slot,
        NodeKind::Compute { cost, .. } if cost.cycles > 0 => Gate::Unit,
        _ => Gate::Free,
    }
}

/// A work-item on a core.
#[derive(Debug, Default)]
struct Resident {
    work: Prepared,
    deps: Vec<u32>,
    /// When an op became ready, as a running number.
    joined: Vec<u32>,
    next_join: u32,
    state: Vec<OpState>,
    unfinished: u32,
    /// First op in program order that has not completed.
    oldest: u32,
    ready: [VecDeque<u32>; GATES],
    /// Loads before this position of the `LoadRoom` list need at least `load_need` bytes.
    load_from: usize,
    load_need: u64,
    /// Loads of a batch whose data is missing, and its wait once issued.
    batch_left: Vec<u32>,
    batch_wait: Vec<u32>,
    /// Slot of the core's allocation table per version.
    slots: Vec<u32>,
    /// Token of a preload, array of a matmul.
    weight: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum OpState {
    /// Waits for others.
    #[default]
    Waiting,
    /// Could issue.
    Ready,
    /// Issued.
    Issued,
    /// Its transfer is with the memory system.
    InMemory,
    /// Completed.
    Done,
}

#[derive(Clone, Copy, Debug)]
struct InFlight {
    finish: u64,
    resident: u32,
    op: u32,
}

#[derive(Clone, Copy, Debug)]
struct Token {
    array: u32,
    users: u32,
}

#[derive(Clone, Copy, Debug)]
struct CurrentTransfer {
    resident: u32,
    op: u32,
    drop_step: u64,
    lines: u64,
}

/// Cycles of one unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitStats {
    /// Core cycles it worked.
    pub active: u64,
    /// Ops it ran.
    pub ops: u64,
}

/// What one core did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoreStats {
    /// Vector unit, then each systolic array, then the cross-lane unit.
    pub units: Vec<UnitStats>,
    /// Core cycles the DMA sent requests in.
    pub dma_active: u64,
    /// Loads, stores, compute tiles (also zero-cost ones) and waits issued.
    pub loads: u64,
    /// Stores issued.
    pub stores: u64,
    /// Compute tiles issued, also those of no cost.
    pub computes: u64,
    /// Waits issued.
    pub waits: u64,
    /// Requests sent.
    pub requests: u64,
    /// Work-items finished.
    pub work_items: u64,
    /// Where its cycles went.
    pub stack: CycleStack,
    /// Runs of each compute tile; empty unless asked for with [`Core::count_tiles`].
    pub tile_runs: Vec<u64>,
}

/// The number of a slot or token by order of first mention.
fn mention(seen: &mut Vec<u32>, x: u32) -> u64 {
    if x == NONE {
        return u64::MAX;
    }
    let at = seen.iter().position(|&s| s == x).unwrap_or_else(|| {
        seen.push(x);
        seen.len() - 1
    });
    at as u64
}

impl CoreStats {
    /// Add `times` times the difference to `before`.
    fn add_since(&mut self, times: u64, before: &CoreStats) {
        let add = |now: &mut u64, before: u64| *now += times * (*now - before);
        for (unit, was) in self.units.iter_mut().zip(&before.units) {
            add(&mut unit.active, was.active);
            add(&mut unit.ops, was.ops);
        }
        add(&mut self.dma_active, before.dma_active);
        add(&mut self.loads, before.loads);
        add(&mut self.stores, before.stores);
        add(&mut self.computes, before.computes);
        add(&mut self.waits, before.waits);
        add(&mut self.requests, before.requests);
        add(&mut self.work_items, before.work_items);
        for (runs, was) in self.tile_runs.iter_mut().zip(&before.tile_runs) {
            add(runs, *was);
        }
        self.stack.add_since(times, &before.stack);
    }
}

/// One core's state.
#[derive(Debug)]
pub struct Core {
    id: u32,
    residents: Vec<Resident>,
    /// Live residents in order of arrival.
    order: Vec<u32>,
    spare: Vec<u32>,
    /// What a resident without work points to, so that giving work back allocates nothing.
    no_graph: Rc<Graph>,
    units: Vec<VecDeque<InFlight>>,
    /// Serial issue: the counter at which the next tile may start.
    busy_until: u64,
    tokens: Vec<Token>,
    free_tokens: Vec<u32>,
    slots_used: Vec<u32>,
    array_pointer: u32,
    /// Weight holds that end: (counter, running number, token).
    holds: std::collections::BinaryHeap<std::cmp::Reverse<(u64, u64, u32)>>,
    hold_number: u64,
    spad_used: u64,
    /// The last scan freed scratchpad.
    made_room: bool,
    /// Bytes per allocation slot, and who knows it: work-items and entries of `carried`.
    allocs: Vec<u64>,
    holders: Vec<u32>,
    free_allocs: Vec<u32>,
    /// Versions that several work-items use: (index of the item that opened it, buffer, slot).
    carried: Vec<(u64, u32, u32)>,
    loads: VecDeque<(u32, u32)>,
    stores: VecDeque<(u32, u32)>,
    current: Option<CurrentTransfer>,
    /// Transfers without lines: (step in which they end, resident or `NONE` for a store, op).
    empty: VecDeque<(u64, u32, u32)>,
    woken: Vec<(u32, u32, Cause)>,
    next: u64,
    /// Attribution: how far it got, and what the time since is spent on.
    accounted: u64,
    computing: [u64; 3],
    waiting: Waiting,
    pending_memory: u64,
    stats: CoreStats,
    last_active: u64,
}

/// What the oldest op waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    Known(Cause),
    /// A transfer's data: the cause is known when it arrives.
    Memory {
        resident: u32,
        op: u32,
    },
}

/// What a core step changed for others.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepOutcome {
    /// A work-item left.
    pub retired: bool,
}

impl Core {
    /// An idle core.
    pub fn new(id: u32, spec: &CoreSpec) -> Core {
        let units = spec.systolic_arrays as usize + 2;
        Core {
            id,
            residents: Vec::new(),
            order: Vec::new(),
            spare: Vec::new(),
            no_graph: Rc::default(),
            units: vec![VecDeque::new(); units],
            busy_until: 0,
            tokens: Vec::new(),
            free_tokens: Vec::new(),
            slots_used: vec![0; spec.systolic_arrays as usize],
            array_pointer: 0,
            holds: std::collections::BinaryHeap::new(),
            hold_number: 0,
            spad_used: 0,
            made_room: false,
            allocs: Vec::new(),
            holders: Vec::new(),
            free_allocs: Vec::new(),
            carried: Vec::new(),
            loads: VecDeque::new(),
            stores: VecDeque::new(),
            current: None,
            empty: VecDeque::new(),
            woken: Vec::new(),
            next: u64::MAX,
            accounted: 0,
            computing: [0; 3],
            waiting: Waiting::Known(Cause::NoWorkItem),
            pending_memory: 0,
            stats: CoreStats {
                units: vec![UnitStats::default(); units],
                ..CoreStats::default()
            },
            last_active: 0,
        }
    }

    /// Count the runs of each of `tiles` compute tiles.
    pub fn count_tiles(&mut self, tiles: usize) {
        self.stats.tile_runs = vec![0; tiles];
    }

    /// The next step in which this core must act, completions aside; `u64::MAX` for none.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Resident work-items.
    pub fn residents(&self) -> usize {
        self.order.len()
    }

    /// Whether its DMA has nothing left to end.
    pub fn is_quiet(&self) -> bool {
        self.current.is_none() && self.empty.is_empty()
    }

    /// Their graphs, oldest first.
    pub fn resident_graphs(&self) -> impl Iterator<Item = &Graph> {
        self.order
            .iter()
            .map(|&r| &*self.residents[r as usize].work.graph)
    }

    /// The last step in which it retired a work-item or saw a completion.
    pub fn last_active(&self) -> u64 {
        self.last_active
    }

    /// What it did, complete up to `total` cycles.
    pub fn finish(mut self, total: u64) -> CoreStats {
        self.account(total);
        self.flush_memory(Cause::DramLatency);
        self.stats
    }

    /// Scratchpad bytes in use.
    pub fn spad_used(&self) -> u64 {
        self.spad_used
    }

    /// Weight slots in use.
    pub fn weight_slots_used(&self) -> u32 {
        self.slots_used.iter().sum()
    }

    /// Deliver a work-item before step `step`.
    pub fn deliver(&mut self, step: u64, work: Prepared) {
        let at = match self.spare.pop() {
            Some(at) => at,
            None => {
                self.residents.push(Resident::default());
                (self.residents.len() - 1) as u32
            }
        };
        self.order.push(at);
        let graph = Rc::clone(&work.graph);
        let r = &mut self.residents[at as usize];
        let n = graph.nodes.len();
        r.deps.clear();
        r.deps.extend(graph.nodes.iter().map(|n| n.deps));
        r.joined.clear();
        r.joined.resize(n, 0);
        r.state.clear();
        r.state.resize(n, OpState::Waiting);
        r.weight.clear();
        r.weight.resize(n, NONE);
        r.next_join = 0;
        r.unfinished = n as u32;
        r.oldest = 0;
        r.load_from = 0;
        r.load_need = u64::MAX;
        r.batch_left.clear();
        r.batch_left.extend_from_slice(&graph.batches);
        r.batch_wait.clear();
        r.batch_wait.resize(graph.batches.len(), NONE);
        r.slots.clear();
        r.slots.resize(graph.versions as usize, NONE);
        let index = work.index;
        r.work = work;
        for &(buffer, version, ago) in &graph.carry_in {
            self.carry(at, index.saturating_sub(ago), buffer, version);
        }
        for &(buffer, version) in &graph.carry_out {
            self.carry(at, index, buffer, version);
        }
        for op in 0..n as u32 {
            let node = &graph.nodes[op as usize];
            if let NodeKind::Wait { batch: NONE } = node.kind {
                // A repeated wait is free.
                let r = &mut self.residents[at as usize];
                r.state[op as usize] = OpState::Done;
                r.unfinished -= 1;
            } else if node.deps == 0 {
                self.residents[at as usize].enqueue(op, node);
            }
        }
        self.next = step;
    }

    /// Tie a version that `opener` opened to the slot it has on this core.
    fn carry(&mut self, resident: u32, opener: u64, buffer: u32, version: u32) {
        let slot = match self.carried.iter().find(|c| (c.0, c.1) == (opener, buffer)) {
            Some(&(_, _, slot)) => {
                self.holders[slot as usize] += 1;
                slot
            }
            None => {
                // Its reader may be on another core and never come: keep a bounded memory.
                if self.carried.len() >= 1024 {
                    let (_, _, forgotten) = self.carried.remove(0);
                    self.let_go(forgotten);
                }
                let slot = self.new_slot();
                self.holders[slot as usize] = 2;
                self.carried.push((opener, buffer, slot));
                slot
            }
        };
        self.residents[resident as usize].slots[version as usize] = slot;
    }

    fn new_slot(&mut self) -> u32 {
        match self.free_allocs.pop() {
            Some(slot) => {
                self.holders[slot as usize] = 1;
                slot
            }
            None => {
                self.allocs.push(0);
                self.holders.push(1);
                (self.allocs.len() - 1) as u32
            }
        }
    }

    /// One that knew a slot forgets it. Bytes still in it stay in use: nothing can free them.
    fn let_go(&mut self, slot: u32) {
        let holders = &mut self.holders[slot as usize];
        *holders -= 1;
        if *holders == 0 {
            self.allocs[slot as usize] = 0;
            self.free_allocs.push(slot);
        }
    }

    /// Act in step `step`.
    pub fn step(
        &mut self,
        step: u64,
        spec: &CoreSpec,
        memory: &mut Memory,
    ) -> Result<StepOutcome, ItemError> {
        self.account(step);
        self.retire_computes(step);
        self.retire_loads(step, memory);
        self.drive_dma(step, spec, memory)?;
        let counter = step + 1;
        self.timed_effects(counter);
        let issued = self.scan(counter, spec);
        let mut outcome = StepOutcome::default();
        let mut finished_left = false;
        if !issued {
            if let Some(at) = self.finished_resident() {
                self.retire_resident(at);
                outcome.retired = true;
                self.last_active = step;
                finished_left = self.finished_resident().is_some();
            }
        } else {
            finished_left = self.finished_resident().is_some();
        }
        self.plan(step, spec, issued, finished_left);
        self.judge(spec);
        Ok(outcome)
    }

    fn finished_resident(&self) -> Option<usize> {
        self.order
            .iter()
            .position(|&r| self.residents[r as usize].unfinished == 0)
    }

    fn retire_resident(&mut self, at: usize) {
        let id = self.order.remove(at);
        let mut slots = std::mem::take(&mut self.residents[id as usize].slots);
        for slot in slots.drain(..) {
            if slot != NONE {
                self.let_go(slot);
            }
        }
        let r = &mut self.residents[id as usize];
        r.slots = slots;
        self.stats.work_items += 1;
        self.spare.push(id);
    }

    /// Give back the buffers of a work-item that retired, for reuse.
    pub fn reclaim(&mut self) -> Option<Prepared> {
        let id = *self.spare.last()?;
        let none = Prepared {
            index: 0,
            item: WorkItem::default(),
            graph: Rc::clone(&self.no_graph),
        };
        Some(std::mem::replace(
            &mut self.residents[id as usize].work,
            none,
        ))
    }

    fn retire_computes(&mut self, step: u64) {
        for unit in 0..self.units.len() {
            while let Some(&f) = self.units[unit].front() {
                if f.finish > step {
                    break;
                }
                self.units[unit].pop_front();
                self.complete(f.resident, f.op, None);
            }
        }
    }

    fn retire_loads(&mut self, step: u64, memory: &mut Memory) {
        loop {
            let arrived = memory.peek(self.id).filter(|c| c.step <= step).copied();
            if let Some(Completion { token, cause, .. }) = arrived {
                memory.pop(self.id);
                self.last_active = step;
                if token != STORE {
                    self.arrived((token >> 32) as u32, token as u32, cause);
                }
                continue;
            }
            match self.empty.front() {
                Some(&(at, resident, op)) if at <= step => {
                    self.empty.pop_front();
                    self.last_active = step;
                    if resident != NONE {
                        self.arrived(resident, op, Cause::Dma);
                    }
                }
                _ => return,
            }
        }
    }

    /// All data of a load is here.
    fn arrived(&mut self, resident: u32, op: u32, cause: Cause) {
        let r = &mut self.residents[resident as usize];
        match r.work.graph.nodes[op as usize].kind {
            NodeKind::Load { batch: NONE, .. } => self.complete(resident, op, Some(cause)),
            NodeKind::Load { batch, .. } => {
                let left = &mut r.batch_left[batch as usize];
                *left -= 1;
                if *left == 0 && r.batch_wait[batch as usize] != NONE {
                    self.woken
                        .push((resident, r.batch_wait[batch as usize], cause));
                }
            }
            _ => {}
        }
    }

    fn drive_dma(
        &mut self,
        step: u64,
        spec: &CoreSpec,
        memory: &mut Memory,
    ) -> Result<(), ItemError> {
        if let Some(current) = self.current {
            if current.drop_step > step {
                return Ok(());
            }
            self.current = None;
            let node =
                self.residents[current.resident as usize].work.graph.nodes[current.op as usize];
            match node.kind {
                NodeKind::Load { batch: NONE, .. } => {}
                _ => self.complete(current.resident, current.op, None),
            }
            if current.lines == 0 {
                // Nothing will come back; what a reply would have ended ends in the next step.
                let load = matches!(node.kind, NodeKind::Load { .. });
                let resident = if load { current.resident } else { NONE };
                self.empty.push_back((step + 1, resident, current.op));
            }
        }
        let Some((resident, op)) = self.loads.pop_front().or_else(|| self.stores.pop_front())
        else {
            return Ok(());
        };
        let r = &mut self.residents[resident as usize];
        let (transfer, token) = match r.work.graph.nodes[op as usize].kind {
            NodeKind::Load { transfer, .. } => {
                (transfer, u64::from(resident) << 32 | u64::from(op))
            }
            NodeKind::Store { transfer } => (transfer, STORE),
            _ => return Ok(()),
        };
        r.state[op as usize] = OpState::InMemory;
        let item = &r.work.item;
        let lines = memory
            .start(
                self.id,
                step,
                item,
                &item.transfers[transfer as usize],
                token,
                Origin {
                    item: r.work.index,
                    op,
                },
            )
            .map_err(|_| ItemError {
                op,
                site: item.ops[op as usize].site,
                pid: item.pid,
                kind: ItemErrorKind::TransferTooLarge(memory.max_rows()),
            })?;
        let steps = lines.div_ceil(u64::from(spec.injection_ports));
        self.stats.dma_active += steps;
        self.stats.requests += lines;
        self.current = Some(CurrentTransfer {
            resident,
            op,
            drop_step: step + steps.max(1),
            lines,
        });
        Ok(())
    }

    fn timed_effects(&mut self, counter: u64) {
        for k in 0..self.woken.len() {
            let (resident, op, cause) = self.woken[k];
            self.complete(resident, op, Some(cause));
        }
        self.woken.clear();
        while let Some(&std::cmp::Reverse((at, _, token))) = self.holds.peek() {
            if at > counter {
                break;
            }
            self.holds.pop();
            let t = &mut self.tokens[token as usize];
            t.users -= 1;
            if t.users == 0 {
                self.slots_used[t.array as usize] -= 1;
                self.free_tokens.push(token);
            }
        }
    }

    /// Start what can start: any number of zero-cost tiles, and then at most one op with cost.
    /// Returns whether an op with cost (or a wait) was issued.
    fn scan(&mut self, counter: u64, spec: &CoreSpec) -> bool {
        let mut at = 0;
        // The scan walks a ready list once: what it has passed over waits for the next one, also if
        // a zero-cost tile makes room for it.
        let mut passed = 0;
        self.made_room = false;
        while at < self.order.len() {
            let resident = self.order[at];
            match self.candidate(resident, passed, counter, spec) {
                None => {
                    at += 1;
                    passed = 0;
                }
                Some((list, position, op)) => {
                    let r = &mut self.residents[resident as usize];
                    passed = r.joined[op as usize] + 1;
                    if position == 0 {
                        r.ready[list].pop_front();
                    } else {
                        r.ready[list].remove(position);
                    }
                    if self.issue(resident, op, counter, spec) {
                        return true;
                    }
                }
            }
        }
        false
    }

    /// The op of a resident that starts next, among those that became ready as number `passed` or
    /// later: (list, position, op).
    fn candidate(
        &mut self,
        resident: u32,
        passed: u32,
        counter: u64,
        spec: &CoreSpec,
    ) -> Option<(usize, usize, u32)> {
        let unit_free = match spec.compute_issue {
            ComputeIssue::Serial => counter >= self.busy_until,
            ComputeIssue::PerUnit => true,
        };
        let slot_free = self.slots_used.iter().any(|&u| u < spec.weight_slots);
        let room = match spec.scratchpad_bytes {
            0 => u64::MAX,
            all => all.saturating_sub(self.spad_used),
        };
        let r = &mut self.residents[resident as usize];
        let mut best: Option<(usize, usize, u32)> = None;
        let mut best_join = u32::MAX;
        let mut consider = |list: Gate, position: usize, op: u32, join: u32| {
            if join < best_join {
                best_join = join;
                best = Some((list as usize, position, op));
            }
        };
        for (list, open) in [
            (Gate::Free, true),
            (Gate::Unit, unit_free),
            (Gate::Slot, unit_free && slot_free),
            (Gate::SlotOnly, slot_free),
        ] {
            if open && let Some(&op) = r.ready[list as usize].front() {
                consider(list, 0, op, r.joined[op as usize]);
            }
        }
        if !r.ready[Gate::LoadRoom as usize].is_empty() {
            if room >= r.load_need {
                r.load_from = 0;
                r.load_need = u64::MAX;
            }
            let list = &r.ready[Gate::LoadRoom as usize];
            while r.load_from < list.len() {
                let op = list[r.load_from];
                let need = r.work.graph.nodes[op as usize].alloc_bytes;
                if need <= room && r.joined[op as usize] >= passed {
                    consider(Gate::LoadRoom, r.load_from, op, r.joined[op as usize]);
                    break;
                }
                r.load_need = r.load_need.min(need);
                r.load_from += 1;
            }
        }
        for (position, &op) in r.ready[Gate::ComputeRoom as usize].iter().enumerate() {
            let node = &r.work.graph.nodes[op as usize];
            let NodeKind::Compute { unit, cost } = node.kind else {
                continue;
            };
            let open = node.alloc_bytes <= room
                && r.joined[op as usize] >= passed
                && (unit_free || cost.cycles == 0)
                && (slot_free || unit != Unit::Preload);
            if open {
                consider(Gate::ComputeRoom, position, op, r.joined[op as usize]);
                break;
            }
        }
        best
    }

    /// Issue an op at `counter`. Returns whether it takes the step's issue slot.
    fn issue(&mut self, resident: u32, op: u32, counter: u64, spec: &CoreSpec) -> bool {
        let graph = Rc::clone(&self.residents[resident as usize].work.graph);
        let node = &graph.nodes[op as usize];
        self.residents[resident as usize].state[op as usize] = OpState::Issued;
        if spec.scratchpad_bytes > 0 {
            for &(version, bytes) in &graph.allocs[node.allocs.range()] {
                let mut slot = self.residents[resident as usize].slots[version as usize];
                if slot == NONE {
                    slot = self.new_slot();
                    self.residents[resident as usize].slots[version as usize] = slot;
                }
                self.allocs[slot as usize] += bytes;
                self.spad_used += bytes;
            }
        }
        let takes_slot = match node.kind {
            NodeKind::Load { .. } => {
                self.stats.loads += 1;
                self.loads.push_back((resident, op));
                true
            }
            NodeKind::Store { .. } => {
                self.stats.stores += 1;
                self.stores.push_back((resident, op));
                true
            }
            NodeKind::Wait { batch } => {
                self.stats.waits += 1;
                let r = &mut self.residents[resident as usize];
                if r.batch_left[batch as usize] == 0 {
                    self.complete(resident, op, None);
                } else {
                    r.batch_wait[batch as usize] = op;
                }
                true
            }
            NodeKind::Compute { unit, cost } => {
                self.stats.computes += 1;
                if let Some(runs) = self.stats.tile_runs.get_mut(cost.tile as usize) {
                    *runs += 1;
                }
                self.issue_compute(
                    resident,
                    op,
                    &graph,
                    unit,
                    cost.cycles,
                    cost.overlap,
                    counter,
                    spec,
                )
            }
        };
        // A zero-cost tile has completed by now; what it frees is freed all the same.
        if spec.scratchpad_bytes > 0 {
            for &version in &graph.releases[node.releases.range()] {
                let slot = self.residents[resident as usize].slots[version as usize];
                if slot != NONE {
                    self.made_room = true;
                    self.spad_used -= self.allocs[slot as usize];
                    self.allocs[slot as usize] = 0;
                    if graph.shared[version as usize] {
                        // Its last reader is here: nobody else will look for it.
                        if let Some(at) = self.carried.iter().position(|c| c.2 == slot) {
                            self.carried.swap_remove(at);
                            self.let_go(slot);
                        }
                    } else {
                        self.let_go(slot);
                        self.residents[resident as usize].slots[version as usize] = NONE;
                    }
                }
            }
        }
        takes_slot
    }

    #[allow(clippy::too_many_arguments)]
    fn issue_compute(
        &mut self,
        resident: u32,
        op: u32,
        graph: &Graph,
        unit: Unit,
        cycles: u64,
        overlap: u64,
        counter: u64,
        spec: &CoreSpec,
    ) -> bool {
        let node = &graph.nodes[op as usize];
        let arrays = self.slots_used.len() as u32;
        let lane = match unit {
            Unit::Vector => 0,
            Unit::CrossLane => arrays + 1,
            Unit::Preload => {
                // The scan has checked that an array has a free slot.
                let mut array = self.array_pointer;
                while self.slots_used[array as usize] >= spec.weight_slots {
                    array = (array + 1) % arrays;
                }
                self.array_pointer = (array + 1) % arrays;
                self.slots_used[array as usize] += 1;
                let token = Token {
                    array,
                    users: node.users.max(1),
                };
                let token = match self.free_tokens.pop() {
                    Some(at) => {
                        self.tokens[at as usize] = token;
                        at
                    }
                    None => {
                        self.tokens.push(token);
                        (self.tokens.len() - 1) as u32
                    }
                };
                self.residents[resident as usize].weight[op as usize] = token;
                for &user in &graph.edges[node.on_issue.range()] {
                    if let NodeKind::Compute {
                        unit: Unit::Matmul, ..
                    } = graph.nodes[user as usize].kind
                    {
                        self.residents[resident as usize].weight[user as usize] = array;
                    }
                }
                array + 1
            }
            Unit::Matmul => {
                let mut array = self.residents[resident as usize].weight[op as usize];
                if array == NONE {
                    // No preload: the arrays take turns.
                    array = self.array_pointer;
                    self.array_pointer = (array + 1) % arrays;
                }
                array + 1
            }
        };
        let finish = match spec.compute_issue {
            _ if cycles == 0 => counter,
            ComputeIssue::Serial => counter.saturating_add(cycles),
            ComputeIssue::PerUnit => match self.units[lane as usize].back() {
                None => counter.saturating_add(cycles),
                Some(last) => {
                    let start = last.finish.saturating_sub(overlap).max(counter);
                    start.saturating_add(cycles).max(last.finish)
                }
            },
        };
        // Successors that stream behind it may go.
        self.release(resident, &graph.edges[node.on_issue.range()], graph);
        let hold_end = match spec.compute_issue {
            ComputeIssue::Serial => finish,
            ComputeIssue::PerUnit => finish.saturating_sub(overlap),
        }
        .max(counter + 1);
        match unit {
            Unit::Matmul => {
                for &preload in &graph.preloads[node.preloads.range()] {
                    let token = self.residents[resident as usize].weight[preload as usize];
                    self.hold_until(hold_end, token);
                }
            }
            Unit::Preload if node.users == 0 => {
                let token = self.residents[resident as usize].weight[op as usize];
                self.hold_until(hold_end, token);
            }
            _ => {}
        }
        let busy_before = self.units[lane as usize]
            .back()
            .map_or(0, |last| last.finish);
        let stats = &mut self.stats.units[lane as usize];
        stats.ops += 1;
        stats.active += finish - busy_before.max(counter).min(finish);
        if cycles == 0 {
            self.complete(resident, op, None);
            return false;
        }
        self.busy_until = counter.saturating_add(cycles);
        let kind = match unit {
            Unit::Matmul | Unit::Preload => 0,
            Unit::Vector => 1,
            Unit::CrossLane => 2,
        };
        self.computing[kind] = self.computing[kind].max(finish);
        self.units[lane as usize].push_back(InFlight {
            finish,
            resident,
            op,
        });
        true
    }

    fn hold_until(&mut self, counter: u64, token: u32) {
        self.hold_number += 1;
        self.holds
            .push(std::cmp::Reverse((counter, self.hold_number, token)));
    }

    /// An op has completed: its readers may go.
    fn complete(&mut self, resident: u32, op: u32, memory_cause: Option<Cause>) {
        let graph = Rc::clone(&self.residents[resident as usize].work.graph);
        let r = &mut self.residents[resident as usize];
        r.state[op as usize] = OpState::Done;
        r.unfinished -= 1;
        let node = &graph.nodes[op as usize];
        self.release(resident, &graph.edges[node.on_done.range()], &graph);
        if let Some(cause) = memory_cause
            && self.waiting == (Waiting::Memory { resident, op })
        {
            self.flush_memory(cause);
        }
    }

    fn release(&mut self, resident: u32, successors: &[u32], graph: &Graph) {
        let r = &mut self.residents[resident as usize];
        for &next in successors {
            let deps = &mut r.deps[next as usize];
            *deps -= 1;
            if *deps == 0 {
                r.enqueue(next, &graph.nodes[next as usize]);
            }
        }
    }

    /// When to act next.
    fn plan(&mut self, step: u64, spec: &CoreSpec, issued: bool, finished_left: bool) {
        let mut next = u64::MAX;
        let mut blocked_on_unit = false;
        for &r in &self.order {
            let r = &self.residents[r as usize];
            if (issued || self.made_room) && r.ready.iter().any(|l| !l.is_empty()) {
                next = step + 1;
            }
            for list in [Gate::Unit, Gate::Slot, Gate::ComputeRoom] {
                blocked_on_unit |= !r.ready[list as usize].is_empty();
            }
        }
        if finished_left {
            next = step + 1;
        }
        match self.current {
            Some(current) => next = next.min(current.drop_step),
            None if !(self.loads.is_empty() && self.stores.is_empty()) => next = step + 1,
            None => {}
        }
        if let Some(&(at, ..)) = self.empty.front() {
            next = next.min(at);
        }
        for unit in &self.units {
            if let Some(f) = unit.front() {
                next = next.min(f.finish);
            }
        }
        if spec.compute_issue == ComputeIssue::Serial
            && blocked_on_unit
            && self.busy_until > step + 1
        {
            next = next.min(self.busy_until - 1);
        }
        if let Some(&std::cmp::Reverse((at, ..))) = self.holds.peek() {
            next = next.min(at - 1);
        }
        self.next = next.max(step + 1);
    }

    /// Attribute the cycles up to `step`.
    fn account(&mut self, step: u64) {
        let mut from = self.accounted;
        self.accounted = step.max(from);
        for (kind, cause) in [Cause::Systolic, Cause::Vector, Cause::CrossLane]
            .iter()
            .enumerate()
        {
            // A tile with finish f uses its unit until step f - 1.
            let until = self.computing[kind].saturating_sub(1).min(step);
            if until > from {
                self.stats.stack.add(*cause, until - from);
                from = until;
            }
        }
        if step > from {
            match self.waiting {
                Waiting::Known(cause) => self.stats.stack.add(cause, step - from),
                Waiting::Memory { .. } => self.pending_memory += step - from,
            }
        }
    }

    fn flush_memory(&mut self, cause: Cause) {
        self.stats.stack.add(cause, self.pending_memory);
        self.pending_memory = 0;
    }

    /// Find out what the oldest op waits for, for the cycles to come.
    fn judge(&mut self, spec: &CoreSpec) {
        let was = self.waiting;
        self.waiting = self.oldest_waits_for(spec);
        if self.waiting != was && self.pending_memory > 0 {
            // The op it waited for completed otherwise.
            self.flush_memory(Cause::DramLatency);
        }
    }

    fn oldest_waits_for(&mut self, spec: &CoreSpec) -> Waiting {
        let Some(&id) = self.order.first() else {
            return Waiting::Known(Cause::NoWorkItem);
        };
        let r = &mut self.residents[id as usize];
        while r.state.get(r.oldest as usize) == Some(&OpState::Done) {
            r.oldest += 1;
        }
        let op = r.oldest;
        let Some(node) = r.work.graph.nodes.get(op as usize) else {
            return Waiting::Known(Cause::Dependency);
        };
        let state = r.state[op as usize];
        let cause = match (node.kind, state) {
            (NodeKind::Load { batch: NONE, .. }, OpState::InMemory) => {
                return Waiting::Memory { resident: id, op };
            }
            (NodeKind::Wait { .. }, OpState::Issued) => {
                return Waiting::Memory { resident: id, op };
            }
            (
                NodeKind::Load { .. } | NodeKind::Store { .. },
                OpState::Issued | OpState::InMemory,
            ) => Cause::Dma,
            (_, OpState::Ready) => {
                let room = match spec.scratchpad_bytes {
                    0 => u64::MAX,
                    all => all.saturating_sub(self.spad_used),
                };
                let preload = matches!(
                    node.kind,
                    NodeKind::Compute {
                        unit: Unit::Preload,
                        ..
                    }
                );
                if node.alloc_bytes > room {
                    Cause::Scratchpad
                } else if preload && self.slots_used.iter().all(|&u| u >= spec.weight_slots) {
                    Cause::WeightSlot
                } else {
                    Cause::Dependency
                }
            }
            _ => Cause::Dependency,
        };
        Waiting::Known(cause)
    }

    /// What it counted so far.
    pub fn stats(&self) -> &CoreStats {
        &self.stats
    }

    /// Add `times` times what happened since `before` to the counts.
    pub fn jump(&mut self, times: u64, before: &CoreStats) {
        self.stats.add_since(times, before);
    }

    /// Append the state to `out`, times relative to step `now` (before which everything is done),
    /// work-items to `base`. Counts are no part of it.
    pub fn canonical(&self, now: u64, base: u64, out: &mut Vec<u64>) {
        let place = |resident: u32| -> u64 {
            let at = self.order.iter().position(|&r| r == resident);
            at.map_or(u64::from(NONE), |at| at as u64)
        };
        let ahead = |t: u64| t.saturating_sub(now);
        let op_of = |resident: u32, op: u32| place(resident) << 32 | u64::from(op);
        // Slots and tokens go by their first mention, whatever number they have.
        let mut slots: Vec<u32> = Vec::new();
        let mut tokens: Vec<u32> = Vec::new();
        out.push(self.order.len() as u64);
        for &id in &self.order {
            let r = &self.residents[id as usize];
            out.push(r.work.index.wrapping_sub(base));
            out.push(u64::from(r.unfinished) << 32 | u64::from(r.oldest));
            for (op, node) in r.work.graph.nodes.iter().enumerate() {
                let state = r.state[op];
                let joined = match state {
                    OpState::Ready => r.next_join - r.joined[op],
                    _ => 0,
                };
                out.push(u64::from(r.deps[op]) << 32 | u64::from(joined));
                out.push(state as u64);
                let weight = r.weight[op];
                out.push(match node.kind {
                    NodeKind::Compute {
                        unit: Unit::Preload,
                        ..
                    } => match state {
                        // Its token may have gone to another preload by now, unless matmuls of
                        // this work-item still hold it; those name it through `holds`.
                        OpState::Waiting | OpState::Ready => u64::MAX,
                        _ => mention(&mut tokens, weight),
                    },
                    _ => u64::from(weight),
                });
            }
            for list in &r.ready {
                out.push(list.len() as u64);
                out.extend(list.iter().map(|&op| u64::from(op)));
            }
            out.push(r.load_from as u64);
            out.push(r.load_need);
            out.extend(r.batch_left.iter().map(|&x| u64::from(x)));
            out.extend(r.batch_wait.iter().map(|&x| u64::from(x)));
            for &slot in &r.slots {
                out.push(mention(&mut slots, slot));
            }
        }
        for unit in &self.units {
            out.push(unit.len() as u64);
            for f in unit {
                out.push(ahead(f.finish));
                out.push(op_of(f.resident, f.op));
            }
        }
        out.push(ahead(self.busy_until));
        out.push(u64::from(self.array_pointer));
        out.extend(self.slots_used.iter().map(|&x| u64::from(x)));
        let mut holds: Vec<(u64, u64, u32)> = self.holds.iter().map(|h| h.0).collect();
        holds.sort_unstable();
        out.push(holds.len() as u64);
        for (at, _, token) in holds {
            out.push(at.wrapping_sub(now));
            out.push(mention(&mut tokens, token));
        }
        for &token in &tokens {
            let t = self.tokens[token as usize];
            out.push(u64::from(t.array) << 32 | u64::from(t.users));
        }
        out.push(self.spad_used);
        out.push(u64::from(self.made_room));
        out.push(self.carried.len() as u64);
        for &(opener, buffer, slot) in &self.carried {
            out.push(opener.wrapping_sub(base));
            out.push(u64::from(buffer));
            out.push(mention(&mut slots, slot));
        }
        for &slot in &slots {
            out.push(self.allocs[slot as usize]);
            out.push(u64::from(self.holders[slot as usize]));
        }
        for list in [&self.loads, &self.stores] {
            out.push(list.len() as u64);
            out.extend(list.iter().map(|&(resident, op)| op_of(resident, op)));
        }
        match self.current {
            None => out.push(u64::MAX),
            Some(c) => {
                out.push(op_of(c.resident, c.op));
                out.push(ahead(c.drop_step));
                out.push(c.lines);
            }
        }
        out.push(self.empty.len() as u64);
        for &(at, resident, op) in &self.empty {
            out.push(ahead(at));
            out.push(op_of(resident, op));
        }
        out.push(match self.next {
            u64::MAX => u64::MAX,
            next => next.wrapping_sub(now),
        });
        out.push(now - self.accounted.min(now));
        out.extend(self.computing.iter().map(|&t| ahead(t)));
        match self.waiting {
            Waiting::Known(cause) => out.push(cause as u64),
            Waiting::Memory { resident, op } => out.push(1 << 63 | op_of(resident, op)),
        }
        out.push(self.pending_memory);
    }

    /// Describe what is blocked, oldest first, up to `limit` ops.
    pub fn blocked(&self, spec: &CoreSpec, limit: usize, out: &mut Vec<crate::error::BlockedOp>) {
        for &id in &self.order {
            let r = &self.residents[id as usize];
            for (op, node) in r.work.graph.nodes.iter().enumerate() {
                if out.len() >= limit {
                    return;
                }
                let state = r.state[op];
                if state == OpState::Done {
                    continue;
                }
                let what = match node.kind {
                    NodeKind::Load { .. } => "load",
                    NodeKind::Store { .. } => "store",
                    NodeKind::Wait { .. } => "wait",
                    NodeKind::Compute { unit, .. } => match unit {
                        Unit::Vector => "compute on the vector unit",
                        Unit::Matmul => "matmul",
                        Unit::Preload => "preload",
                        Unit::CrossLane => "compute on the cross-lane unit",
                    },
                };
                let room = spec.scratchpad_bytes.saturating_sub(self.spad_used);
                let waits_for = match state {
                    OpState::Ready if spec.scratchpad_bytes > 0 && node.alloc_bytes > room => {
                        format!(
                            "{} bytes of scratchpad ({room} of {} are free)",
                            node.alloc_bytes, spec.scratchpad_bytes
                        )
                    }
                    OpState::Ready => "a weight slot".to_string(),
                    OpState::Waiting => format!("{} earlier ops", r.deps[op]),
                    _ => "its data".to_string(),
                };
                out.push(crate::error::BlockedOp {
                    core: self.id,
                    work_item: r.work.item.pid,
                    op: op as u32,
                    what: what.to_string(),
                    waits_for,
                });
            }
        }
    }
}

impl Resident {
    fn enqueue(&mut self, op: u32, node: &Node) {
        self.joined[op as usize] = self.next_join;
        self.next_join += 1;
        self.state[op as usize] = OpState::Ready;
        self.ready[gate(node) as usize].push_back(op);
    }
}
