//! A naive cycle-stepping twin of the engine: slow, simple, and written from the rules alone.
//!
//! It steps every clock edge of every component and shares nothing with the engine but the public
//! data types ([`Machine`], [`WorkItem`]), so that a mistake in one is not a mistake in the other.
//! Used only by tests, on small programs.
//!
//! - [`program`]: work-items become ops with edges, scratchpad versions and weight users.
//! - [`launch`]: a trace and a launch become work-items.
//! - [`core`]: one step of a core (retire, DMA, timed effects, issue scan).
//! - [`memory`]: NoC switch, channel queues and DRAM.
//! - this file: clocks, delivery of work-items, the end of a run and the deadlock test.

#![allow(dead_code)]

pub mod core;
pub mod launch;
pub mod lines;
pub mod memory;
pub mod program;

use std::collections::VecDeque;

use tilesim_core::machine::{
    ArraySplit, ComputeIssue, DispatchPolicy, DramModel, Machine, NocSpec, Residency,
};
use tilesim_traces::launch::WorkItem;

use self::core::Core;
use self::memory::{Dram, Noc, Packet};
use self::program::{Item, build};

/// A scratchpad buffer as the twin needs it.
#[derive(Clone, Copy, Debug)]
pub struct BufferInfo {
    /// Its bytes.
    pub bytes: u64,
    /// Some DMA statement of the trace names it: only such buffers take scratchpad.
    pub moved: bool,
}

/// A compute tile's cost.
#[derive(Clone, Copy, Debug)]
pub struct TileCost {
    /// Core cycles.
    pub cycles: u64,
    /// By how much it may overlap its predecessor on the same unit (`per_unit` only).
    pub overlap: u64,
}

/// Why a program is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A wait on a semaphore no async load has signalled.
    NobodySignals,
    /// A wait expects another number of elements than its loads move.
    WrongCount { expected: u64, signalled: u64 },
    /// An async load whose wait never comes.
    NeverWaitedFor,
    /// A buffer is read while its async load has not been waited for.
    ReadBeforeWait { buffer: u32 },
    /// A buffer larger than the scratchpad.
    BufferTooLarge { buffer: u32 },
    /// The twin does not know this machine option.
    Unsupported(&'static str),
}

/// How a run ends without a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TwinError {
    /// Work remains and nothing can ever happen.
    Deadlock {
        /// The core cycle in which that became so.
        cycle: u64,
    },
    /// The program is refused.
    Refused {
        /// Number of the work-item in dispatch order.
        item: usize,
        /// Number of the op in it.
        op: usize,
        /// Why.
        why: Refusal,
    },
    /// The trace or the launch is invalid; the twin saw no work-item.
    Trace(String),
}

/// One issued op, for comparing two simulators event by event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Issue {
    /// The core's counter when it issued.
    pub cycle: u64,
    /// The core.
    pub core: usize,
    /// The work-item, in dispatch order.
    pub item: usize,
    /// The op in it, in program order (repeated waits, which are free, never issue).
    pub op: usize,
}

/// What one core did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoreReport {
    /// Cycles of the tiles run by the vector unit.
    pub vector_busy: u64,
    /// Cycles of the tiles run by each systolic array.
    pub array_busy: Vec<u64>,
    /// Cycles of the tiles run by the cross-lane unit.
    pub cross_lane_busy: u64,
    /// Steps in which the DMA held a transfer that was not sent yet.
    pub dma_active: u64,
    /// Loads issued.
    pub loads: u64,
    /// Stores issued.
    pub stores: u64,
    /// Waits issued (a repeated wait never issues).
    pub waits: u64,
    /// Compute tiles issued, zero-cost ones included.
    pub computes: u64,
    /// Compute tiles of no cost.
    pub zero_cost: u64,
    /// Requests sent.
    pub requests: u64,
    /// Work-items finished.
    pub items: u64,
}

/// What a run gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TwinReport {
    /// Core cycles from launch until nothing is outstanding.
    pub cycles: u64,
    /// Requests answered by DRAM.
    pub dram_requests: u64,
    /// Per core, where the channels have partitions: requests to its own and to the others.
    pub numa: Vec<[u64; 2]>,
    /// Per core.
    pub cores: Vec<CoreReport>,
    /// Every op in the order of issue.
    pub issues: Vec<Issue>,
}

/// The order in which clock edges of one instant happen is the order of these.
#[derive(Clone, Copy)]
enum Clock {
    Core,
    Dram,
    Noc,
}

/// Runs `items` (called with 0, 1, 2 ... until it gives `None`: dispatch order) on `machine`.
pub fn run(
    machine: &Machine,
    tiles: &[TileCost],
    buffers: &[BufferInfo],
    mut items: impl FnMut(u64) -> Option<WorkItem>,
) -> Result<TwinReport, TwinError> {
    let unsupported = |what| TwinError::Refused {
        item: 0,
        op: 0,
        why: Refusal::Unsupported(what),
    };
    let Residency::Shared { max: slots } = machine.cores.residency else {
        return Err(unsupported("residency"));
    };
    if machine.cores.array_split != ArraySplit::None || machine.l2.is_some() {
        return Err(unsupported("array split or l2"));
    }
    let spad = machine.cores.scratchpad_bytes;
    for (b, info) in buffers.iter().enumerate() {
        if info.moved && spad > 0 && info.bytes > spad {
            let why = Refusal::BufferTooLarge { buffer: b as u32 };
            return Err(TwinError::Refused {
                item: 0,
                op: 0,
                why,
            });
        }
    }
    let mut raw = Vec::new();
    while let Some(item) = items(raw.len() as u64) {
        raw.push(item);
    }
    let built = build(&raw, tiles, buffers)?;
    if built.is_empty() {
        return Ok(TwinReport::default());
    }
    Sim::new(machine, slots as usize, built).run()
}

struct Sim<'a> {
    machine: &'a Machine,
    slots: usize,
    items: Vec<Item>,
    cores: Vec<Core>,
    noc: Noc,
    dram: Dram,
    /// Work-items nobody has bound yet, per core (round robin) or in `shared` (dynamic).
    own: Vec<VecDeque<usize>>,
    shared: VecDeque<usize>,
    /// Work-item bound to each slot of each core, not delivered yet.
    bound: Vec<Vec<Option<usize>>>,
    next_core: usize,
    core_steps: u64,
    issues: Vec<Issue>,
    dram_requests: u64,
    numa: Vec<[u64; 2]>,
}

impl<'a> Sim<'a> {
    fn new(machine: &'a Machine, slots: usize, items: Vec<Item>) -> Sim<'a> {
        let n = machine.cores.count as usize;
        let ports = machine.cores.injection_ports as usize;
        let channels = machine.dram.channels as usize;
        let NocSpec::Simple {
            latency: noc_latency,
        } = machine.noc
        else {
            panic!("the twin has the simple NoC only")
        };
        let DramModel::Simple {
            latency,
            bytes_per_cycle,
        } = machine.dram.model
        else {
            panic!("the twin has the simple DRAM only")
        };
        let home = machine.cores.partition.first().copied().unwrap_or(0);
        let used: Vec<usize> = (0..n)
            .filter(|c| machine.cores.partition.get(*c).copied().unwrap_or(0) == home)
            .collect();
        let mut own = vec![VecDeque::new(); n];
        let mut shared = VecDeque::new();
        for i in 0..items.len() {
            match machine.dispatch {
                DispatchPolicy::RoundRobin => own[used[i % used.len()]].push_back(i),
                DispatchPolicy::Dynamic => shared.push_back(i),
            }
        }
        Sim {
            machine,
            slots,
            items,
            cores: (0..n)
                .map(|id| Core::new(id, &machine.cores, machine.dram.request_bytes))
                .collect(),
            noc: Noc::new(n * ports + channels, u64::from(noc_latency)),
            dram: Dram::new(
                channels,
                u64::from(latency),
                bytes_per_cycle,
                machine.dram.request_bytes,
            ),
            own,
            shared,
            bound: vec![vec![None; slots]; n],
            next_core: 0,
            core_steps: 0,
            issues: Vec::new(),
            dram_requests: 0,
            numa: match &machine.dram.numa {
                Some(_) => vec![[0; 2]; machine.cores.count as usize],
                None => Vec::new(),
            },
        }
    }

    fn run(mut self) -> Result<TwinReport, TwinError> {
        let clocks = &self.machine.clocks;
        let (core, dram, noc) = (clocks.core_khz, clocks.dram_khz, clocks.noc_khz);
        let (mut core, mut dram, mut noc) = (u128::from(core), u128::from(dram), u128::from(noc));
        // The time of edge k of a clock is k / frequency; a common denominator makes it whole.
        let mut period = [dram * noc, core * noc, core * dram];
        if clocks.truncate_to_ps {
            core = 1_000_000_000 / core;
            dram = 1_000_000_000 / dram;
            noc = 1_000_000_000 / noc;
            period = [core, dram, noc];
        }
        let mut time = [0u128; 3];
        while self.running() {
            let now = time[0].min(time[1]).min(time[2]);
            for clock in [Clock::Core, Clock::Dram, Clock::Noc] {
                let i = clock as usize;
                if time[i] != now {
                    continue;
                }
                time[i] += period[i];
                match clock {
                    Clock::Core => {
                        if !self.core_step() {
                            return Err(TwinError::Deadlock {
                                cycle: self.core_steps,
                            });
                        }
                    }
                    Clock::Dram => self.dram.step(),
                    Clock::Noc => self.noc_step(),
                }
            }
        }
        Ok(TwinReport {
            cycles: self.core_steps,
            dram_requests: self.dram_requests,
            numa: self.numa,
            cores: self.cores.into_iter().map(|c| c.report).collect(),
            issues: self.issues,
        })
    }

    fn undelivered(&self) -> bool {
        !self.shared.is_empty()
            || self.own.iter().any(|q| !q.is_empty())
            || self.bound.iter().flatten().any(Option::is_some)
    }

    fn running(&self) -> bool {
        self.undelivered() || self.cores.iter().any(Core::running)
    }

    /// One core clock edge. False if work remains and nothing can ever happen again.
    fn core_step(&mut self) -> bool {
        let mut progress = self.core_steps == 0;
        progress |= match self.machine.dispatch {
            DispatchPolicy::RoundRobin => self.deliver_round_robin(),
            DispatchPolicy::Dynamic => self.core_steps > 0 && self.deliver_dynamic(),
        };
        for core in &mut self.cores {
            progress |= core.step(&mut self.items, &mut self.issues);
        }
        self.dram.pass_front_queues();
        self.core_steps += 1;
        progress || !self.running() || self.cores.iter().any(Core::in_flight)
    }

    fn has_room(&self, core: usize, item: usize) -> bool {
        let spad = self.machine.cores.scratchpad_bytes;
        let alone = spad > 0 && self.items[item].footprint > spad / self.slots as u64;
        self.cores[core].residents.len() < if alone { 1 } else { self.slots }
    }

    fn deliver_round_robin(&mut self) -> bool {
        let mut progress = false;
        for slot in 0..self.slots {
            for core in 0..self.cores.len() {
                match self.bound[core][slot] {
                    None => {
                        self.bound[core][slot] = self.own[core].pop_front();
                        progress |= self.bound[core][slot].is_some();
                    }
                    Some(item) => {
                        if self.has_room(core, item) {
                            self.bound[core][slot] = None;
                            self.cores[core].deliver(item, &mut self.items);
                            progress = true;
                            break;
                        }
                    }
                }
            }
        }
        progress
    }

    fn deliver_dynamic(&mut self) -> bool {
        let Some(item) = self.shared.front().copied() else {
            return false;
        };
        let n = self.cores.len();
        let home = self.machine.cores.partition.first().copied().unwrap_or(0);
        for i in 0..n {
            let core = (self.next_core + i) % n;
            let partition = self.machine.cores.partition.get(core).copied().unwrap_or(0);
            if partition == home && self.has_room(core, item) {
                self.shared.pop_front();
                self.next_core = (core + 1) % n;
                self.cores[core].deliver(item, &mut self.items);
                return true;
            }
        }
        false
    }

    fn noc_step(&mut self) {
        let ports = self.machine.cores.injection_ports as usize;
        let channels = self.machine.dram.channels as usize;
        let first_channel = self.cores.len() * ports;
        for core in 0..self.cores.len() {
            for port in 0..ports {
                let node = core * ports + port;
                if let Some(request) = self.cores[core].requests.pop_front() {
                    let channel = lines::channel(request.line, &self.machine.dram);
                    if let Some(numa) = &self.machine.dram.numa {
                        let partition = channel / (channels / numa.partitions as usize);
                        let local = partition == numa.home[core] as usize;
                        self.numa[core][usize::from(!local)] += 1;
                    }
                    let packet = Packet {
                        core,
                        item: request.item,
                        op: request.op,
                        channel,
                    };
                    self.noc.push(node, first_channel + channel, packet);
                }
                if let Some(reply) = self.noc.out[node].pop_front() {
                    self.dram_requests += 1;
                    self.cores[core].reply(reply.item, reply.op, &mut self.items);
                }
            }
        }
        for channel in 0..channels {
            let node = first_channel + channel;
            if let Some(request) = self.noc.out[node].pop_front() {
                self.dram.front[channel].push_back(request);
            }
            if let Some(reply) = self.dram.outgoing[channel].pop_front() {
                let to = reply.core * ports + channel % ports;
                self.noc.push(node, to, reply);
            }
        }
        self.noc.switch();
    }
}

/// Whether the machine runs one compute tile per core at a time.
pub fn is_serial(machine: &Machine) -> bool {
    machine.cores.compute_issue == ComputeIssue::Serial
}
