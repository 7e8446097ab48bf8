//! `lower_bound`: a number of core cycles that a launch provably does not beat.
//!
//! # Method
//!
//! Work-items with the same control (the same ops, the same transfers up to their address) form a
//! class. One item of each class is expanded and its dependency graph is walked twice: forwards for
//! the earliest step in which each op can issue, backwards for the least time from each op to the end.
//! Together with the class's sums per resource this gives the components, each a bound by itself; the
//! bound is their maximum. Nothing here depends on the number of work-items: a launch with uniform
//! control is one class; otherwise the grid is cut into boxes until control is the same inside each
//! box (see `classes`). Items of boxes that are not settled within a fixed budget count with the least
//! that any item's sums can be, loops run least, conditions go the cheaper way and masks at their
//! narrowest, and without paths.
//!
//! # Why each component is a bound
//!
//! Times are core steps. No work-item is delivered before step 1, so nothing issues before step 1
//! (counter 2) and no DMA starts before step 2. The total is one more than the last step in which a
//! work-item retires or a reply is seen. A resource that serves its uses one after another ends no
//! earlier than *head + sum of its uses + tail*, the head being the earliest time of any use, the tail
//! the least time from the end of any use to the end of the run. On the busiest core there are at
//! least `ceil(items / cores)` work-items and at least the average of every sum. In detail:
//!
//! - **compute** (serial issue): a tile of N cycles issued at counter c keeps every other tile with
//!   cost from issuing before c + N, and completes in step c + N.
//! - **vector, systolic, cross_lane** (issue per unit): behind a tile that finishes at f, the next on
//!   the same unit finishes no earlier than f + N - overlap. Arrays share their sum.
//! - **issue**: a core step starts one op with cost at most, and retires one work-item only if it
//!   started none; each takes a step of its own.
//! - **dma**: a transfer occupies the DMA for max(1, ceil(lines / ports)) steps. Lines are counted
//!   for the alignment that needs fewest.
//! - **latency**: the longest path through the graph of one item, with every transfer's way to DRAM
//!   and back at its least. Queues of the `simple` NoC hand a packet on one step after the one before
//!   it, so only the first packets of a core are known to take the full latency.
//! - **residency**: at most R items are resident. Of m items, ceil(m / R) follow one another, each
//!   from its delivery to its retirement.
//! - **dispatch**: at most one item (times the slots, for round robin) is delivered per step.
//! - **noc_requests, noc_replies, dram**: some channel gets at least ceil(requests / channels)
//!   requests, some port of the busiest core at least its share of replies. A channel's port takes one
//!   packet per NoC step, its front queue passes one per core step, its controller takes one per DRAM
//!   step, within the bandwidth cap of the `simple` model. Under the Ramulator controller, reads of
//!   lines that nothing stores to each need a read command on the data bus.
//!
//! The order of events inside these chains is that of `memory`; every conversion between clocks is
//! done with the exact ratio of their periods and rounded down.

mod classes;
mod item;

use serde::{Deserialize, Serialize};
use tilesim_traces::{Bound, ValidTrace};

use crate::dram::{Cmd, DramSpec, Scheduler};
use crate::engine::{self, Launch, RunOptions};
use crate::error::SimError;
use crate::machine::{
    Clocks, ComputeIssue, DispatchPolicy, DramModel, Machine, NocSpec, ReplyPort, Residency,
};
use item::{Analysis, Costs};

/// Most work-items that are analysed where control is not uniform.
const MAX_CLASSES: usize = 128;

/// What can bound a launch from below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// The compute units of the busiest core, one tile at a time.
    Compute,
    /// Its vector unit.
    Vector,
    /// Its systolic arrays.
    Systolic,
    /// Its cross-lane unit.
    CrossLane,
    /// Its issue slot.
    Issue,
    /// Its DMA.
    Dma,
    /// The dependencies of one work-item.
    Latency,
    /// Work-items one after another, as many at once as a core holds.
    Residency,
    /// Delivery of work-items to cores.
    Dispatch,
    /// Requests into the busiest channel.
    NocRequests,
    /// Replies into the ports of the busiest core.
    NocReplies,
    /// The busiest DRAM channel.
    Dram,
}

impl Resource {
    /// Its name, as it is serialized.
    pub fn name(self) -> &'static str {
        match self {
            Resource::Compute => "compute",
            Resource::Vector => "vector",
            Resource::Systolic => "systolic",
            Resource::CrossLane => "cross_lane",
            Resource::Issue => "issue",
            Resource::Dma => "dma",
            Resource::Latency => "latency",
            Resource::Residency => "residency",
            Resource::Dispatch => "dispatch",
            Resource::NocRequests => "noc_requests",
            Resource::NocReplies => "noc_replies",
            Resource::Dram => "dram",
        }
    }
}

/// One resource's bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Component {
    /// The resource.
    pub resource: Resource,
    /// Core cycles the launch takes at least because of it.
    pub cycles: u64,
}

/// A bound on a launch's cycles from below.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LowerBound {
    /// Core cycles: the simulated total is this or more. 0 for an empty grid.
    pub cycles: u64,
    /// The resource that gives it; none for an empty grid.
    pub binding: Option<Resource>,
    /// All components that apply, in a fixed order.
    pub components: Vec<Component>,
}

/// A bound on the cycles of `launch` from below: if [`crate::simulate`] returns a report for it (without
/// regard to `options.cycle_budget`), its `cycles` are not fewer.
///
/// # Errors
///
/// What is wrong with the launch as far as it was looked at; the simulation fails too, perhaps at
/// another place. No error does not mean that the simulation succeeds.
pub fn lower_bound(
    machine: &Machine,
    trace: &ValidTrace,
    launch: &Launch,
) -> Result<LowerBound, SimError> {
    let bound = Bound::new(trace, &launch.args, &launch.options.limits)?;
    lower_bound_of(machine, &bound, &launch.options)
}

/// [`lower_bound`] of a trace that is bound already.
///
/// # Errors
///
/// As [`lower_bound`].
pub fn lower_bound_of(
    machine: &Machine,
    bound: &Bound,
    options: &RunOptions,
) -> Result<LowerBound, SimError> {
    lower_bound_within(machine, bound, options, MAX_CLASSES)
}

/// [`lower_bound_of`] that analyses `classes` work-items at most where control is not uniform: fewer
/// take less time and give a bound that is not as close.
///
/// # Errors
///
/// As [`lower_bound`].
pub fn lower_bound_within(
    machine: &Machine,
    bound: &Bound,
    options: &RunOptions,
    classes: usize,
) -> Result<LowerBound, SimError> {
    let context = engine::context(machine, bound.trace(), options)?;
    if bound.items() == 0 {
        return Ok(LowerBound {
            cycles: 0,
            binding: None,
            components: Vec::new(),
        });
    }
    let path = MemoryPath::new(machine, bound);
    let mut analysis = Analysis::new(machine, &path, &context);
    let mut all = Vec::new();
    if bound.control_is_uniform() {
        all.push(analysis.item(bound, bound.pid(0), bound.items())?);
    } else {
        let unknown = classes::classes(bound, classes, |pid, count| {
            all.push(analysis.item(bound, pid, count)?);
            Ok::<(), SimError>(())
        })?;
        if unknown > 0 {
            all.push(classes::any_item(machine, bound, &path, &context, unknown));
        }
    }
    Ok(combine(machine, &path, bound.items(), &all))
}

/// Least times on the way from a core to DRAM and back. Times are in units of which each clock's
/// period is a whole number.
#[derive(Clone, Debug)]
pub(crate) struct MemoryPath {
    core: u128,
    noc: u128,
    dram: u128,
    /// A core step that comes strictly after a NoC step does so by this much.
    strictly: u128,
    ports: u64,
    channels: u64,
    /// NoC steps of a packet: the first of a queue, and any.
    hop_first: u64,
    hop: u64,
    /// All replies of a channel to a core pass one queue of the `simple` NoC.
    one_queue: bool,
    /// DRAM steps of a read, of a write, and what a read that needs a command takes besides.
    read: u64,
    write: u64,
    read_latency: u64,
    /// Read commands: DRAM steps between two on the same bus, buses per channel; if they are counted.
    bus: Option<(u64, u64)>,
    /// Per statement: it is a load of lines that nothing stores to, so that no queued write answers it.
    pub(crate) fresh: Vec<bool>,
    /// Flits of packets without and with data, for networks that count them.
    flits: (u64, u64),
    pub(crate) line_bits: u64,
}

impl MemoryPath {
    fn new(machine: &Machine, bound: &Bound) -> MemoryPath {
        let (core, noc, dram) = periods(&machine.clocks);
        let (hop_first, hop, flits) = match &machine.noc {
            NocSpec::Simple { latency } => {
                (u64::from(*latency), u64::from(*latency).min(1), (1, 1))
            }
            NocSpec::Flit { network } => (
                network.min_latency(),
                network.min_latency(),
                (
                    u64::from(network.flits(crate::memory::noc::CONTROL_BYTES)).max(1),
                    u64::from(network.flits(machine.dram.request_bytes)).max(1),
                ),
            ),
        };
        let mut fresh = Vec::new();
        let (read, write, read_latency, bus) = match &machine.dram.model {
            // An L2 may answer before DRAM does.
            _ if machine.l2.is_some() => (0, 0, 0, None),
            DramModel::Simple { latency, .. } => {
                (u64::from(*latency), u64::from(*latency), 0, None)
            }
            DramModel::Banked { device } => {
                let spec = device.spec();
                fresh = classes::fresh_sites(bound, u64::from(machine.dram.request_bytes));
                (1, 1, u64::from(spec.read_latency), read_spacing(spec))
            }
        };
        MemoryPath {
            core,
            noc,
            dram,
            strictly: gcd(core, noc),
            ports: u64::from(machine.cores.injection_ports.max(1)),
            channels: u64::from(machine.dram.channels.max(1)),
            hop_first,
            hop,
            one_queue: matches!(machine.noc, NocSpec::Simple { .. })
                && machine.dram.reply_port == ReplyPort::Channel,
            read,
            write,
            read_latency,
            bus,
            fresh,
            flits,
            line_bits: u64::from(machine.dram.request_bytes) * 8,
        }
    }

    /// From a request's core step to the DRAM step that takes it.
    fn request(&self, hop: u64) -> u128 {
        // Its NoC step is not before its core step; it leaves `hop` later; the channel takes it in
        // the NoC step after; the front queue passes it on in a core step strictly after that.
        u128::from(hop + 1) * self.noc + self.strictly
    }

    /// From the DRAM step of a return to the core step that sees the reply.
    fn reply(&self, hop: u64) -> u128 {
        u128::from(hop + 1) * self.noc + self.strictly
    }

    fn service(&self, write: bool, fresh: bool) -> u128 {
        let steps = match (write, fresh) {
            (true, _) => self.write,
            (false, false) => self.read,
            (false, true) => self.read + self.read_latency,
        };
        u128::from(steps) * self.dram
    }

    /// Time between the first and the last of `requests` at one channel, `fresh` ones reading for sure.
    fn spread(&self, requests: u64, fresh: u64) -> u128 {
        let pace = self.noc.max(self.core).max(self.dram);
        let all = u128::from(requests.saturating_sub(1)) * pace;
        match self.bus {
            Some((gap, buses)) if fresh > 0 => {
                let steps = u128::from(fresh.div_ceil(buses) - 1) * u128::from(gap);
                all.max(steps.saturating_mul(self.dram))
            }
            _ => all,
        }
    }

    /// Core steps from the step in which a transfer's last request is sent to the one that sees its
    /// last reply, at least.
    pub(crate) fn round_trip(&self, lines: u64, write: bool, fresh: bool) -> u64 {
        let alone = self.request(self.hop) + self.service(write, fresh) + self.reply(self.hop);
        // Some channel gets its share of the lines; the first of them may be sent at once.
        let sending = u128::from(self.send_steps(lines) - 1) * self.core;
        let spread = (alone.saturating_add(self.share(lines, fresh))).saturating_sub(sending);
        narrow(alone.max(spread).div_ceil(self.core))
    }

    /// Core steps from the step in which a core sends its very first request to the one that sees the
    /// last reply of any transfer like this, at least.
    ///
    /// A packet's latency is short only behind another packet of its queue, and the first of each run
    /// of packets takes the full one. So no request arrives earlier than the very first could, and no
    /// reply leaves earlier than the first reply of that request could; the last of several may follow
    /// closely. Where all replies of a channel to a core share a queue they leave one a step.
    pub(crate) fn first_trip(&self, lines: u64, write: bool, fresh: bool) -> u64 {
        let there = self.request(self.hop_first) + self.service(write, fresh);
        let queued = if self.one_queue {
            lines.div_ceil(self.channels).saturating_sub(1)
        } else {
            0
        };
        let first = there + self.reply(self.hop_first) + u128::from(queued) * self.noc;
        let last = there
            .saturating_add(self.share(lines, fresh))
            .saturating_add(self.reply(self.hop));
        narrow(first.max(last).div_ceil(self.core))
    }

    fn share(&self, lines: u64, fresh: bool) -> u128 {
        let share = lines.div_ceil(self.channels);
        self.spread(share, if fresh { share } else { 0 })
    }

    /// Core steps for which a transfer occupies the DMA.
    pub(crate) fn send_steps(&self, lines: u64) -> u64 {
        lines.div_ceil(self.ports).max(1)
    }
}

/// Periods of the three clocks in one unit.
fn periods(clocks: &Clocks) -> (u128, u128, u128) {
    let khz = [clocks.core_khz, clocks.noc_khz, clocks.dram_khz].map(|k| u128::from(k.max(1)));
    let [core, noc, dram] = if clocks.truncate_to_ps {
        khz.map(|k| (1_000_000_000 / k).max(1))
    } else {
        let [c, n, d] = khz;
        [n * d, c * d, c * n]
    };
    let g = gcd(gcd(core, noc), dram).max(1);
    (core / g, noc / g, dram / g)
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

fn narrow(x: u128) -> u64 {
    u64::try_from(x).unwrap_or(u64::MAX)
}

/// DRAM steps between two read commands, and how many buses of a channel can each have one: the
/// strongest rule of the device. `None` where reads may be merged.
fn read_spacing(spec: &DramSpec) -> Option<(u64, u64)> {
    if spec.scheduler != Scheduler::Ramulator {
        return None;
    }
    let reads = [Cmd::Rd, Cmd::RdA];
    let mut best = (1u64, 1u64);
    let mut nodes = 1u64;
    for (level, count) in spec.levels.iter().enumerate() {
        nodes = nodes.saturating_mul(u64::from(*count));
        // The rule must hold between reads of every kind.
        let mut gap = u64::MAX;
        for before in reads {
            for after in reads {
                let rule = spec
                    .constraints
                    .iter()
                    .filter(|c| {
                        usize::from(c.level) == level
                            && c.window == 1
                            && !c.sibling
                            && c.before.contains(&before)
                            && c.after.contains(&after)
                    })
                    .map(|c| u64::from(c.cycles))
                    .max()
                    .unwrap_or(0);
                gap = gap.min(rule);
            }
        }
        // Reads per step: nodes / gap.
        if u128::from(gap) * u128::from(best.1) > u128::from(best.0) * u128::from(nodes) {
            best = (gap, nodes);
        }
    }
    Some(best)
}

/// Sums of a resource over all items.
#[derive(Clone, Copy, Default)]
struct Sum {
    /// Over all items.
    all: u128,
    /// The least of any item.
    least: u64,
}

/// The bound from the classes, which hold all items.
fn combine(machine: &Machine, path: &MemoryPath, items: u64, classes: &[Costs]) -> LowerBound {
    let partition = machine.cores.partition.first().copied().unwrap_or(0);
    let cores = (0..machine.cores.count as usize)
        .filter(|&c| machine.cores.partition.get(c).copied().unwrap_or(0) == partition)
        .count()
        .max(1) as u64;
    let per_core = items.div_ceil(cores);
    let sum = |of: fn(&Costs) -> u64| {
        let mut s = Sum {
            all: 0,
            least: u64::MAX,
        };
        for class in classes {
            s.all = s
                .all
                .saturating_add(u128::from(of(class)) * u128::from(class.items));
            s.least = s.least.min(of(class));
        }
        s
    };
    // Heads and tails: the least of any item that uses the resource.
    let least = |of: fn(&Costs) -> u64| {
        classes
            .iter()
            .map(of)
            .min()
            .filter(|&x| x != u64::MAX)
            .unwrap_or(0)
    };
    // What the busiest core has at least.
    let busiest = |s: Sum| {
        s.all
            .div_ceil(u128::from(cores))
            .max(u128::from(s.least) * u128::from(per_core))
    };
    let mut components = Vec::new();
    let mut add = |resource, cycles: u128| {
        if cycles > 0 {
            components.push(Component {
                resource,
                cycles: narrow(cycles),
            });
        }
    };

    // A unit: first issue at counter 2 + head; the last tile completes in the step of its finish.
    let unit = |work: u128, head: u64, tail: u64| {
        if work == 0 {
            0
        } else {
            3 + u128::from(head) + work + u128::from(tail)
        }
    };
    match machine.cores.compute_issue {
        ComputeIssue::Serial => {
            let work = busiest(sum(|c| c.compute));
            add(
                Resource::Compute,
                unit(
                    work,
                    least(|c| c.head.compute()),
                    least(|c| c.tail.compute()),
                ),
            );
        }
        ComputeIssue::PerUnit => {
            let work = busiest(sum(|c| c.vector));
            add(
                Resource::Vector,
                unit(work, least(|c| c.head.vector), least(|c| c.tail.vector)),
            );
            let arrays = u128::from(machine.cores.systolic_arrays.max(1));
            let work = busiest(sum(|c| c.systolic)).div_ceil(arrays);
            add(
                Resource::Systolic,
                unit(work, least(|c| c.head.systolic), least(|c| c.tail.systolic)),
            );
            let work = busiest(sum(|c| c.cross_lane));
            add(
                Resource::CrossLane,
                unit(
                    work,
                    least(|c| c.head.cross_lane),
                    least(|c| c.tail.cross_lane),
                ),
            );
        }
    }

    // Every issue and every retirement takes a step of its own, from step 1 on.
    let slots = sum(|c| c.slots);
    let retired = Sum {
        all: u128::from(items),
        least: 1,
    };
    let steps = busiest(Sum {
        all: slots.all.saturating_add(retired.all),
        least: slots.least.saturating_add(retired.least),
    });
    add(Resource::Issue, 1 + steps);

    // The DMA starts in step 2 + head at the earliest and is free after its last transfer's steps.
    let work = busiest(sum(|c| c.dma_steps));
    if work > 0 {
        let (head, tail) = (least(|c| c.head.dma), least(|c| c.tail.dma));
        add(
            Resource::Dma,
            3 + u128::from(head) + work + u128::from(tail),
        );
    }

    // One item: delivered in step 1.
    add(
        Resource::Latency,
        2 + u128::from(classes.iter().map(|c| c.end).max().unwrap_or(0)),
    );

    // Items one after another: each is resident from its delivery to its retirement, both steps
    // included; the next is delivered in a later step. The first ends no earlier than any item can.
    let max = match machine.cores.residency {
        Residency::Shared { max } | Residency::Safe { max } => max,
        Residency::Resources { max, .. } => max,
    };
    let residents = classes.iter().map(|c| c.residents).max().unwrap_or(1);
    let waves = per_core.div_ceil(residents.max(1));
    let (first, stay) = (least(|c| c.stay_first), least(|c| c.stay));
    add(
        Resource::Residency,
        2 + u128::from(first) + u128::from(waves - 1) * (u128::from(stay) + 1),
    );

    // The last item delivered.
    let slots = match machine.dispatch {
        DispatchPolicy::RoundRobin => u64::from(max.max(1)),
        DispatchPolicy::Dynamic => 1,
    };
    add(
        Resource::Dispatch,
        u128::from(items.div_ceil(slots)) + u128::from(stay) + 1,
    );

    memory(
        machine,
        path,
        &sum,
        least(|c| c.head.dma),
        &mut add,
        &busiest,
    );

    let mut best: Option<Component> = None;
    for c in &components {
        if best.is_none_or(|b| c.cycles > b.cycles) {
            best = Some(*c);
        }
    }
    LowerBound {
        cycles: best.map_or(0, |b| b.cycles),
        binding: best.map(|b| b.resource),
        components,
    }
}

/// The memory system's components.
fn memory(
    machine: &Machine,
    path: &MemoryPath,
    sum: &dyn Fn(fn(&Costs) -> u64) -> Sum,
    head: u64,
    add: &mut dyn FnMut(Resource, u128),
    busiest: &dyn Fn(Sum) -> u128,
) {
    let (loads, stores, fresh) = (
        sum(|c| c.load_lines),
        sum(|c| c.store_lines),
        sum(|c| c.fresh_lines),
    );
    let all = loads.all.saturating_add(stores.all);
    if all == 0 {
        return;
    }
    let channels = u128::from(path.channels);
    let total = |time: u128| time.div_ceil(path.core).saturating_add(1);
    // The first request of all is sent in step 2 + head.
    let sent = u128::from(head.saturating_add(2)) * path.core;
    let in_front = sent + path.request(path.hop_first);
    let service = u128::from(path.read.min(path.write)) * path.dram;
    let back = path.reply(path.hop);

    // A channel's port takes one flit per NoC step. (Packets of the `simple` NoC count as one flit.)
    let (bare, data) = path.flits;
    let longest = u128::from(bare.max(data));
    let flits = (loads.all.saturating_mul(bare.into()))
        .saturating_add(stores.all.saturating_mul(data.into()))
        .div_ceil(channels);
    let port = in_front.saturating_add(flits.saturating_sub(longest).saturating_mul(path.noc));
    add(
        Resource::NocRequests,
        total(port.saturating_add(service + back)),
    );

    // Replies into the ports of one core: read data, acknowledgements.
    let flits = busiest(Sum {
        all: (loads.all.saturating_mul(data.into()))
            .saturating_add(stores.all.saturating_mul(bare.into())),
        least: loads
            .least
            .saturating_mul(data)
            .saturating_add(stores.least.saturating_mul(bare)),
    })
    .div_ceil(u128::from(path.ports.min(path.channels)));
    let first = in_front + service + path.reply(path.hop_first);
    add(
        Resource::NocReplies,
        total(first.saturating_add(flits.saturating_sub(longest).saturating_mul(path.noc))),
    );

    // The channel itself.
    if machine.l2.is_some() {
        return;
    }
    let share = narrow(all.div_ceil(channels));
    let reads = narrow(fresh.all.div_ceil(channels));
    let mut last = in_front.saturating_add(path.spread(share, reads));
    if let DramModel::Simple {
        bytes_per_cycle: Some(bytes),
        ..
    } = machine.dram.model
    {
        // Admission number m (from 0) needs bytes x (step + 1) >= request x (m - 1); rounded down
        // by more than the arithmetic can err.
        let owed = f64::from(machine.dram.request_bytes) * share.saturating_sub(2) as f64;
        let step = (owed / bytes) * (1.0 - 1e-12) - 1.0;
        if step.is_finite() && step > 0.0 && step < 1e18 {
            last = last.max((step.floor() as u128) * path.dram);
        }
    }
    add(Resource::Dram, total(last.saturating_add(service + back)));
}
