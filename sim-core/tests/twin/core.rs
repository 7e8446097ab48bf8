//! One core: retirement, DMA, timed effects and the issue scan, in that order, every step.

use std::collections::{BTreeMap, VecDeque};

use tilesim_core::machine::{ComputeIssue, CoreSpec};
use tilesim_traces::model::Unit;

use super::program::{Hold, Item, Kind, Version};
use super::{CoreReport, Issue};

/// A request for one memory line.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub line: u64,
    pub item: usize,
    pub op: usize,
}

/// An op of a resident work-item.
#[derive(Clone, Copy, Debug)]
struct OpRef {
    item: usize,
    op: usize,
}

/// A transfer the DMA is sending.
struct Current {
    op: OpRef,
    lines: VecDeque<u64>,
}

/// Something that happens when the counter reaches a cycle.
enum Due {
    /// All data of a wait's batch has arrived.
    WaitDone(OpRef),
    /// One user of a weight slot is done with it.
    Release(Hold),
}

/// Users of one weight slot.
struct Slot {
    array: usize,
    users: usize,
}

enum Outcome {
    Blocked,
    ZeroCost,
    Issued,
}

pub struct Core {
    id: usize,
    serial: bool,
    ports: usize,
    request_bytes: u32,
    scratchpad: u64,
    weight_slots: usize,
    counter: u64,
    /// Work-items by arrival.
    pub residents: Vec<usize>,
    /// Tiles in flight with the cycle they finish: vector unit, arrays, cross-lane unit.
    units: Vec<VecDeque<(u64, OpRef)>>,
    busy_until: u64,
    load_queue: VecDeque<OpRef>,
    store_queue: VecDeque<OpRef>,
    current: Option<Current>,
    /// Transfers that have been dropped and wait for replies.
    waiting: usize,
    /// Transfers whose replies are all here, in the order of the last one.
    arrived: VecDeque<OpRef>,
    due: BTreeMap<u64, VecDeque<Due>>,
    pub requests: VecDeque<Request>,
    used: u64,
    versions: BTreeMap<Version, u64>,
    slots_used: Vec<usize>,
    next_array: usize,
    slots: Vec<Slot>,
    /// Something happened in this step.
    progress: bool,
    pub report: CoreReport,
}

impl Core {
    pub fn new(id: usize, spec: &CoreSpec, request_bytes: u32) -> Core {
        let arrays = spec.systolic_arrays as usize;
        Core {
            id,
            serial: spec.compute_issue == ComputeIssue::Serial,
            ports: spec.injection_ports as usize,
            request_bytes,
            scratchpad: spec.scratchpad_bytes,
            weight_slots: spec.weight_slots as usize,
            counter: 0,
            residents: Vec::new(),
            units: vec![VecDeque::new(); arrays + 2],
            busy_until: 0,
            load_queue: VecDeque::new(),
            store_queue: VecDeque::new(),
            current: None,
            waiting: 0,
            arrived: VecDeque::new(),
            due: BTreeMap::new(),
            requests: VecDeque::new(),
            used: 0,
            versions: BTreeMap::new(),
            slots_used: vec![0; arrays],
            next_array: 0,
            slots: Vec::new(),
            progress: false,
            report: CoreReport {
                array_busy: vec![0; arrays],
                ..CoreReport::default()
            },
        }
    }

    /// Takes a work-item: its unblocked ops are ready, in program order.
    pub fn deliver(&mut self, item: usize, items: &mut [Item]) {
        self.residents.push(item);
        for op in 0..items[item].nodes.len() {
            let node = &items[item].nodes[op];
            if node.blockers == 0 && !matches!(node.kind, Kind::Nothing) {
                items[item].ready.push(op);
            }
        }
    }

    /// Work remains.
    pub fn running(&self) -> bool {
        !self.residents.is_empty() || self.busy()
    }

    /// Something is under way that will end by itself.
    pub fn in_flight(&self) -> bool {
        self.busy() || !self.due.is_empty()
    }

    fn busy(&self) -> bool {
        self.units.iter().any(|u| !u.is_empty())
            || !self.load_queue.is_empty()
            || !self.store_queue.is_empty()
            || self.current.is_some()
            || self.waiting > 0
            || !self.arrived.is_empty()
    }

    /// The reply to one request of transfer `op` is here.
    pub fn reply(&mut self, item: usize, op: usize, items: &mut [Item]) {
        let node = &mut items[item].nodes[op];
        node.outstanding -= 1;
        if node.outstanding == 0 && node.dropped {
            self.waiting -= 1;
            self.arrived.push_back(OpRef { item, op });
        }
    }

    /// One core clock edge. True if anything happened.
    pub fn step(&mut self, items: &mut [Item], issues: &mut Vec<Issue>) -> bool {
        self.progress = false;
        self.retire_tiles(items);
        self.dma(items);
        self.counter += 1;
        self.timed_effects(items);
        let issued = self.scan(items, issues);
        if !issued {
            let finished = self
                .residents
                .iter()
                .position(|item| items[*item].unfinished == 0);
            if let Some(i) = finished {
                self.residents.remove(i);
                self.report.items += 1;
                self.progress = true;
            }
        }
        self.progress
    }

    fn retire_tiles(&mut self, items: &mut [Item]) {
        for unit in 0..self.units.len() {
            while let Some((finish, op)) = self.units[unit].front().copied() {
                if finish > self.counter {
                    break;
                }
                self.units[unit].pop_front();
                self.complete(op, items);
            }
        }
    }

    fn dma(&mut self, items: &mut [Item]) {
        while let Some(op) = self.arrived.pop_front() {
            self.progress = true;
            let Kind::Load { is_async, waiters } = items[op.item].nodes[op.op].kind.clone() else {
                // A store has completed when its requests went out.
                continue;
            };
            if !is_async {
                self.complete(op, items);
            }
            for wait in waiters {
                if let Kind::Wait { missing, issued } = &mut items[op.item].nodes[wait].kind {
                    *missing -= 1;
                    if *missing == 0 && *issued {
                        let due = Due::WaitDone(OpRef {
                            item: op.item,
                            op: wait,
                        });
                        self.due.entry(self.counter).or_default().push_back(due);
                    }
                }
            }
        }
        if self.current.as_ref().is_none_or(|c| c.lines.is_empty()) {
            if let Some(Current { op, .. }) = self.current.take() {
                self.drop_transfer(op, items);
            }
            let next = self
                .load_queue
                .pop_front()
                .or_else(|| self.store_queue.pop_front());
            self.current = next.map(|op| Current {
                op,
                lines: items[op.item].lines(op.op, self.request_bytes).into(),
            });
        }
        let Some(current) = &mut self.current else {
            return;
        };
        self.progress = true;
        self.report.dma_active += 1;
        for _ in 0..self.ports {
            let Some(line) = current.lines.pop_front() else {
                break;
            };
            let OpRef { item, op } = current.op;
            items[item].nodes[op].outstanding += 1;
            self.requests.push_back(Request { line, item, op });
            self.report.requests += 1;
        }
    }

    /// All requests of a transfer are sent: the DMA lets go of it.
    fn drop_transfer(&mut self, op: OpRef, items: &mut [Item]) {
        self.progress = true;
        let node = &mut items[op.item].nodes[op.op];
        node.dropped = true;
        if node.outstanding == 0 {
            self.arrived.push_back(op);
        } else {
            self.waiting += 1;
        }
        if !matches!(
            node.kind,
            Kind::Load {
                is_async: false,
                ..
            }
        ) {
            self.complete(op, items);
        }
    }

    fn timed_effects(&mut self, items: &mut [Item]) {
        while let Some(entry) = self.due.first_entry() {
            if *entry.key() > self.counter {
                break;
            }
            for due in entry.remove() {
                self.progress = true;
                match due {
                    Due::WaitDone(op) => self.complete(op, items),
                    Due::Release(hold) => {
                        let slot = &mut self.slots[hold.0];
                        slot.users -= 1;
                        if slot.users == 0 {
                            self.slots_used[slot.array] -= 1;
                        }
                    }
                }
            }
        }
    }

    /// Lets go what waits for `op` to complete.
    fn complete(&mut self, op: OpRef, items: &mut [Item]) {
        self.progress = true;
        let item = &mut items[op.item];
        item.unfinished -= 1;
        for to in std::mem::take(&mut item.nodes[op.op].on_done) {
            unblock(item, to);
        }
    }

    /// True if an op with a cost issued.
    fn scan(&mut self, items: &mut [Item], issues: &mut Vec<Issue>) -> bool {
        for item in self.residents.clone() {
            let mut i = 0;
            while i < items[item].ready.len() {
                let op = items[item].ready[i];
                let outcome = self.try_issue(OpRef { item, op }, i, items);
                if matches!(outcome, Outcome::Blocked) {
                    i += 1;
                    continue;
                }
                self.progress = true;
                issues.push(Issue {
                    cycle: self.counter,
                    core: self.id,
                    item,
                    op,
                });
                if matches!(outcome, Outcome::Issued) {
                    return true;
                }
            }
        }
        false
    }

    /// Issues the op at `place` of its work-item's ready list, if it can start now.
    fn try_issue(&mut self, at: OpRef, place: usize, items: &mut [Item]) -> Outcome {
        let item = &mut items[at.item];
        let node = &item.nodes[at.op];
        let bytes: u64 = node.takes.iter().map(|(_, bytes)| bytes).sum();
        if self.scratchpad > 0 && self.used + bytes > self.scratchpad {
            return Outcome::Blocked;
        }
        let mut array = None;
        if let Kind::Compute { unit, cycles, .. } = node.kind {
            if self.serial && cycles > 0 && self.counter < self.busy_until {
                return Outcome::Blocked;
            }
            if unit == Unit::Preload {
                array = self.free_array();
                if array.is_none() {
                    return Outcome::Blocked;
                }
            }
        }
        // From here on it issues.
        item.ready.remove(place);
        if self.scratchpad > 0 {
            for (version, bytes) in item.nodes[at.op].takes.clone() {
                self.used += bytes;
                *self.versions.entry(version).or_default() += bytes;
            }
            for version in item.nodes[at.op].frees.clone() {
                self.used -= self.versions.remove(&version).unwrap_or(0);
            }
        }
        match item.nodes[at.op].kind.clone() {
            Kind::Load { .. } => {
                self.report.loads += 1;
                self.load_queue.push_back(at);
                Outcome::Issued
            }
            Kind::Store => {
                self.report.stores += 1;
                self.store_queue.push_back(at);
                Outcome::Issued
            }
            Kind::Wait { missing, .. } => {
                self.report.waits += 1;
                if missing == 0 {
                    self.complete(at, items);
                } else {
                    item.nodes[at.op].kind = Kind::Wait {
                        missing,
                        issued: true,
                    };
                }
                Outcome::Issued
            }
            Kind::Compute {
                unit,
                cycles,
                overlap,
            } => self.start_tile(at, unit, cycles, overlap, array, items),
            Kind::Nothing => Outcome::ZeroCost,
        }
    }

    /// The next array, round robin, with a free weight slot.
    fn free_array(&self) -> Option<usize> {
        let arrays = self.slots_used.len();
        (0..arrays)
            .map(|i| (self.next_array + i) % arrays)
            .find(|array| self.slots_used[*array] < self.weight_slots)
    }

    fn start_tile(
        &mut self,
        at: OpRef,
        unit: Unit,
        cycles: u64,
        overlap: u64,
        free: Option<usize>,
        items: &mut [Item],
    ) -> Outcome {
        let arrays = self.slots_used.len();
        let item = &mut items[at.item];
        self.report.computes += 1;
        // Which unit: 0 is the vector unit, then the arrays, then the cross-lane unit.
        let mut holds = Vec::new();
        let place = match unit {
            Unit::Vector => 0,
            Unit::CrossLane => arrays + 1,
            Unit::Matmul => {
                holds = item.nodes[at.op].holds.clone();
                let array = item.nodes[at.op].array.unwrap_or_else(|| {
                    let array = self.next_array;
                    self.next_array = (array + 1) % arrays;
                    array
                });
                array + 1
            }
            Unit::Preload => {
                let array = free.unwrap_or(0);
                self.next_array = (array + 1) % arrays;
                self.slots_used[array] += 1;
                let hold = Hold(self.slots.len());
                let users = item.nodes[at.op].on_issue.clone();
                self.slots.push(Slot {
                    array,
                    users: users.len().max(1),
                });
                if users.is_empty() {
                    holds.push(hold);
                }
                for user in users {
                    item.nodes[user].holds.push(hold);
                    item.nodes[user].array = Some(array);
                }
                array + 1
            }
        };
        match unit {
            Unit::Vector => self.report.vector_busy += cycles,
            Unit::CrossLane => self.report.cross_lane_busy += cycles,
            Unit::Matmul | Unit::Preload => self.report.array_busy[place - 1] += cycles,
        }
        // When it finishes, and when it stops reading its weights.
        let mut finish = self.counter + cycles;
        let mut drained = finish;
        if cycles > 0 && !self.serial {
            if let Some((last, _)) = self.units[place].back().copied() {
                let start = self.counter.max(last.saturating_sub(overlap));
                finish = (start + cycles).max(last);
            }
            drained = self.counter.max(finish.saturating_sub(overlap));
        }
        for to in std::mem::take(&mut item.nodes[at.op].on_issue) {
            unblock(item, to);
        }
        for hold in holds {
            self.due
                .entry(drained)
                .or_default()
                .push_back(Due::Release(hold));
        }
        if cycles == 0 {
            self.report.zero_cost += 1;
            self.complete(at, items);
            return Outcome::ZeroCost;
        }
        if self.serial {
            self.busy_until = finish;
        }
        self.units[place].push_back((finish, at));
        Outcome::Issued
    }
}

/// One edge into `op` has cleared.
fn unblock(item: &mut Item, op: usize) {
    item.nodes[op].blockers -= 1;
    if item.nodes[op].blockers == 0 {
        item.ready.push(op);
    }
}
