//! The memory system: transfers in, completions out.
//!
//! A core hands over a whole transfer when its DMA takes it; from then on everything is known that
//! will be injected until the DMA is free again. Requests flow one way through stages (injection,
//! request port, front queue, DRAM, reply port, core) and no stage pushes back on an earlier one, so
//! each stage computes the times of a request from its own state as soon as the order of arrivals is
//! known. The system advances in windows: [`Memory::advance`] is told that no transfer starts before
//! a core step, and works everything up to that point; [`Memory::safe`] says up to which core step
//! all completions are known. Nothing ticks.
//!
//! Not modelled here: back pressure from DRAM queues into the NoC (queues in front of a channel are
//! unlimited, as in the reference).

pub mod arbiter;
pub mod channel_map;
pub mod lines;
pub mod simple;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use tilesim_traces::launch::{Transfer, WorkItem};
use tilesim_traces::model::Direction;

use crate::clock::Timeline;
use crate::machine::{DramModel, Machine, NocSpec};
use crate::stack::Cause;
use arbiter::{Arbiter, Packet};
use channel_map::ChannelMapper;
use lines::{LineWalker, LinesError, Run};
use simple::{SimpleChannel, SimpleDram};

/// A finished transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Core step that sees it: the first after its last reply was handed over.
    pub step: u64,
    /// What [`Memory::start`] was given.
    pub token: u64,
    /// What delayed the last-arriving request most.
    pub cause: Cause,
    /// Hand-over order: NoC step, then port.
    order: (u64, u32),
}

/// Counts of one channel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelStats {
    /// Read requests answered.
    pub reads: u64,
    /// Write requests answered.
    pub writes: u64,
}

/// A transfer in flight.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    core: u32,
    token: u64,
    /// Replies not yet accounted for.
    remaining: u64,
    last: (u64, u32),
    cause: Cause,
    /// Position in `Memory::active`.
    at: u32,
}

/// A transfer being sent by a core's DMA.
#[derive(Debug, Default)]
struct Sending {
    walker: LineWalker,
    run: Option<Run>,
    start: u64,
    taken: u64,
    transfer: u32,
    write: bool,
}

#[derive(Debug, Default)]
struct Injector {
    queue: VecDeque<Sending>,
    spare: Vec<Sending>,
}

/// Reply ports of the `simple` NoC.
#[derive(Debug)]
enum ReplyPorts {
    /// Every port hears from one channel only: a queue needs no arbitration. First free step per
    /// (core, port).
    Direct(Vec<u64>),
    /// Ports with several channels behind them.
    Shared {
        ports: Vec<Arbiter>,
        /// Replies whose push step lies ahead, per (core, channel).
        coming: Vec<VecDeque<Packet>>,
    },
}

/// Everything behind the request ports.
#[derive(Debug)]
struct Downstream {
    time: Timeline,
    noc_latency: u64,
    ports: u32,
    channels: u32,
    dram: SimpleDram,
    state: Vec<SimpleChannel>,
    /// First core step a channel's front queue is free in.
    front_free: Vec<u64>,
    /// First NoC step in which a channel may hand over its next reply.
    reply_free: Vec<u64>,
    replies: ReplyPorts,
    flights: Vec<InFlight>,
    free_flights: Vec<u32>,
    active: Vec<u32>,
    done: Vec<VecDeque<Completion>>,
    stats: Vec<ChannelStats>,
}

/// The memory system of one run.
#[derive(Debug)]
pub struct Memory {
    map: ChannelMapper,
    request_bytes: u32,
    max_rows: u64,
    injectors: Vec<Injector>,
    requests: Vec<Arbiter>,
    down: Downstream,
    /// NoC steps before this one are injected.
    noc_step: u64,
    safe: u64,
    started: u64,
}

impl Memory {
    /// The memory system of a machine. `max_rows` bounds the rows of one transfer.
    pub fn new(machine: &Machine, max_rows: u64) -> Memory {
        let cores = machine.cores.count;
        let ports = machine.cores.injection_ports;
        let channels = machine.dram.channels;
        let NocSpec::Simple { latency } = machine.noc;
        let noc_latency = u64::from(latency);
        let DramModel::Simple { latency, bytes_per_cycle } = machine.dram.model;
        let replies = if channels <= ports {
            ReplyPorts::Direct(vec![0; (cores * ports) as usize])
        } else {
            ReplyPorts::Shared {
                ports: (0..cores * ports)
                    .map(|p| Arbiter::new((channels + ports - 1 - p % ports) / ports, noc_latency))
                    .collect(),
                coming: vec![VecDeque::new(); (cores * channels) as usize],
            }
        };
        let n = channels as usize;
        Memory {
            map: ChannelMapper::new(machine.dram.channel_map, channels),
            request_bytes: machine.dram.request_bytes,
            max_rows,
            injectors: (0..cores).map(|_| Injector::default()).collect(),
            requests: (0..channels).map(|_| Arbiter::new(cores * ports, noc_latency)).collect(),
            down: Downstream {
                time: Timeline::new(&machine.clocks),
                noc_latency,
                ports,
                channels,
                dram: SimpleDram::new(latency, bytes_per_cycle, machine.dram.request_bytes),
                state: vec![SimpleChannel::default(); n],
                front_free: vec![0; n],
                reply_free: vec![0; n],
                replies,
                flights: Vec::new(),
                free_flights: Vec::new(),
                active: Vec::new(),
                done: vec![VecDeque::new(); cores as usize],
                stats: vec![ChannelStats::default(); n],
            },
            noc_step: 0,
            safe: 0,
            started: 0,
        }
    }

    /// Core `core`'s DMA starts sending `transfer` in core step `step`, `injection_ports` requests a
    /// step. Returns how many requests it has; 0 means that nothing is in flight and no completion
    /// will be reported.
    pub fn start(
        &mut self,
        core: u32,
        step: u64,
        item: &WorkItem,
        transfer: &Transfer,
        token: u64,
    ) -> Result<u64, LinesError> {
        let injector = &mut self.injectors[core as usize];
        let mut sending = injector.spare.pop().unwrap_or_default();
        sending.walker.start(item, transfer, self.request_bytes, self.max_rows)?;
        let lines = sending.walker.lines();
        if lines == 0 {
            injector.spare.push(sending);
            return Ok(0);
        }
        let flight = InFlight {
            core,
            token,
            remaining: lines,
            last: (0, 0),
            cause: Cause::DramLatency,
            at: self.down.active.len() as u32,
        };
        let index = match self.down.free_flights.pop() {
            Some(index) => {
                self.down.flights[index as usize] = flight;
                index
            }
            None => {
                self.down.flights.push(flight);
                (self.down.flights.len() - 1) as u32
            }
        };
        self.down.active.push(index);
        self.started += lines;
        // A request passes the front queue in a later core step than the one it was sent in, and its
        // reply is seen in a later one still.
        self.safe = self.safe.min(step + 2);
        sending.run = None;
        sending.start = step;
        sending.taken = 0;
        sending.transfer = index;
        sending.write = transfer.direction == Direction::Store;
        injector.queue.push_back(sending);
        Ok(lines)
    }

    /// Whether any request has not been answered.
    pub fn is_busy(&self) -> bool {
        !self.down.active.is_empty()
    }

    /// Every completion with a core step below this is known; `u64::MAX` when nothing is in flight.
    pub fn safe(&self) -> u64 {
        if self.is_busy() { self.safe } else { u64::MAX }
    }

    /// The next known completion of a core.
    pub fn peek(&self, core: u32) -> Option<&Completion> {
        self.down.done[core as usize].front()
    }

    /// Take it.
    pub fn pop(&mut self, core: u32) -> Option<Completion> {
        self.down.done[core as usize].pop_front()
    }

    /// Requests of all transfers started so far.
    pub fn started(&self) -> u64 {
        self.started
    }

    /// Most rows of one transfer.
    pub fn max_rows(&self) -> u64 {
        self.max_rows
    }

    /// Counts per channel.
    pub fn stats(&self) -> &[ChannelStats] {
        &self.down.stats
    }

    /// No transfer starts before core step `core_step` that has not been handed over: work
    /// everything up to there.
    pub fn advance(&mut self, core_step: u64) {
        let horizon = self.down.time.core_to_noc.at_or_after(core_step);
        self.inject(horizon);
        let Memory { requests, down, .. } = self;
        for (channel, port) in requests.iter_mut().enumerate() {
            if !port.is_idle() {
                port.serve(horizon, |step, packet| down.accept(channel, step, packet));
            }
        }
        let unknown_reply = down.earliest_reply(horizon);
        down.serve_replies(unknown_reply);
        self.safe = down.next_unknown_completion(unknown_reply);
    }

    /// Inject every NoC step before `horizon`.
    fn inject(&mut self, horizon: u64) {
        let ports = u64::from(self.down.ports);
        while self.noc_step < horizon {
            let step = self.noc_step;
            let core_step = self.down.time.noc_to_core.last_at_or_before(step);
            let mut next_start = u64::MAX;
            for core in 0..self.injectors.len() {
                let Memory { injectors, requests, down, map, .. } = self;
                let injector = &mut injectors[core];
                let mut port = 0u64;
                while let Some(sending) = injector.queue.front_mut() {
                    if sending.start > core_step {
                        next_start = next_start.min(sending.start);
                        break;
                    }
                    let ready = (core_step + 1 - sending.start)
                        .saturating_mul(ports)
                        .min(sending.walker.lines())
                        - sending.taken;
                    let mut take = ready.min(ports - port);
                    if take == 0 {
                        next_start = 0;
                        break;
                    }
                    sending.taken += take;
                    while take > 0 {
                        let Some(mut run) = sending.run.or_else(|| sending.walker.next_run())
                        else {
                            break;
                        };
                        let now = take.min(run.count);
                        for line in run.first..run.first + now {
                            let (channel, inner) = map.locate(line);
                            let packet = Packet {
                                line: inner,
                                transfer: sending.transfer,
                                source: core as u32 * ports as u32 + port as u32,
                                write: sending.write,
                                cause: 0,
                                pushed: step,
                            };
                            requests[channel as usize].push(packet, |step, packet| {
                                down.accept(channel as usize, step, packet)
                            });
                            port += 1;
                        }
                        take -= now;
                        run.first += now;
                        run.count -= now;
                        sending.run = (run.count > 0).then_some(run);
                    }
                    if sending.taken == sending.walker.lines() {
                        if let Some(done) = injector.queue.pop_front() {
                            injector.spare.push(done);
                        }
                    }
                }
                if !injector.queue.is_empty() && next_start == u64::MAX {
                    next_start = 0;
                }
            }
            self.noc_step = match next_start {
                0 => step + 1,
                u64::MAX => horizon,
                start => self.down.time.core_to_noc.at_or_after(start).max(step + 1),
            };
        }
    }
}

impl Downstream {
    /// A request leaves its port in NoC step `step`.
    #[inline]
    fn accept(&mut self, channel: usize, step: u64, packet: Packet) {
        // The channel takes it in the next NoC step; the front queue passes one request on per core
        // step; a core step precedes the DRAM step of the same instant.
        let reached = self.time.noc_to_core.after(step + 1);
        let front = reached.max(self.front_free[channel]);
        self.front_free[channel] = front + 1;
        let at = self.time.core_to_dram.at_or_after(front);
        let (admitted, returned) = self.dram.admit(&mut self.state[channel], at);
        let stats = &mut self.stats[channel];
        if packet.write {
            stats.writes += 1;
        } else {
            stats.reads += 1;
        }
        let noc = step - packet.pushed;
        let queued = (front - reached) + (admitted - at);
        let service = returned - admitted;
        let cause = if queued >= service && queued >= noc {
            Cause::DramQueue
        } else if service >= noc {
            Cause::DramLatency
        } else {
            Cause::Noc
        };
        self.reply(channel, returned, packet, cause);
    }

    /// DRAM returns a request in DRAM step `returned`.
    #[inline]
    fn reply(&mut self, channel: usize, returned: u64, packet: Packet, cause: Cause) {
        let push =
            self.time.dram_to_noc.at_or_after(returned).max(self.reply_free[channel]);
        self.reply_free[channel] = push + 1;
        let core = packet.source / self.ports;
        let port = channel as u32 % self.ports;
        match &mut self.replies {
            ReplyPorts::Direct(free) => {
                let free = &mut free[(core * self.ports + port) as usize];
                let leave = if push < *free { *free } else { push + self.noc_latency };
                *free = leave + 1;
                self.deliver(leave + 1, port, packet.transfer, cause);
            }
            ReplyPorts::Shared { coming, .. } => {
                let packet = Packet {
                    source: channel as u32 / self.ports,
                    cause: cause as u8,
                    pushed: push,
                    ..packet
                };
                coming[core as usize * self.channels as usize + channel].push_back(packet);
            }
        }
    }

    /// Serve shared reply ports before `horizon`, given that every reply pushed before it is known.
    fn serve_replies(&mut self, horizon: u64) {
        let ReplyPorts::Shared { ports, coming } = &mut self.replies else { return };
        let mut ports = std::mem::take(ports);
        let mut coming = std::mem::take(coming);
        for (index, arbiter) in ports.iter_mut().enumerate() {
            let (core, port) = (index as u32 / self.ports, index as u32 % self.ports);
            let row = (core * self.channels) as usize;
            let queues = &mut coming[row..row + self.channels as usize];
            loop {
                let mut best: Option<(u64, usize)> = None;
                for channel in (port as usize..queues.len()).step_by(self.ports as usize) {
                    if let Some(packet) = queues[channel].front() {
                        if packet.pushed < horizon && best.is_none_or(|(b, _)| packet.pushed < b) {
                            best = Some((packet.pushed, channel));
                        }
                    }
                }
                let Some(packet) = best.and_then(|(_, channel)| queues[channel].pop_front()) else {
                    break;
                };
                arbiter.push(packet, |step, p| {
                    self.deliver(step + 1, port, p.transfer, Cause::ALL[p.cause as usize]);
                });
            }
            arbiter.serve(horizon, |step, p| {
                self.deliver(step + 1, port, p.transfer, Cause::ALL[p.cause as usize]);
            });
        }
        self.replies = ReplyPorts::Shared { ports, coming };
    }

    /// A core's port takes a reply in NoC step `step`.
    #[inline]
    fn deliver(&mut self, step: u64, port: u32, transfer: u32, cause: Cause) {
        let flight = &mut self.flights[transfer as usize];
        flight.remaining -= 1;
        if (step, port) >= flight.last {
            flight.last = (step, port);
            flight.cause = cause;
        }
        if flight.remaining == 0 {
            self.complete(transfer);
        }
    }

    fn complete(&mut self, transfer: u32) {
        let flight = self.flights[transfer as usize];
        self.active.swap_remove(flight.at as usize);
        if let Some(&moved) = self.active.get(flight.at as usize) {
            self.flights[moved as usize].at = flight.at;
        }
        self.free_flights.push(transfer);
        let completion = Completion {
            step: self.time.noc_to_core.after(flight.last.0),
            token: flight.token,
            cause: flight.cause,
            order: flight.last,
        };
        let queue = &mut self.done[flight.core as usize];
        let mut at = queue.len();
        while at > 0 && queue[at - 1].order > completion.order {
            at -= 1;
        }
        queue.insert(at, completion);
    }

    /// No reply that is not yet known is pushed before this NoC step, when the request ports have
    /// been served before `horizon`.
    fn earliest_reply(&self, horizon: u64) -> u64 {
        let front = self.time.noc_to_core.after(horizon.saturating_add(1));
        let admitted = self.time.core_to_dram.at_or_after(front);
        self.time.dram_to_noc.at_or_after(admitted.saturating_add(self.dram.min_latency()))
    }

    /// The first core step that may see a completion that is not yet known.
    fn next_unknown_completion(&self, unknown_reply: u64) -> u64 {
        let leave = match self.replies {
            // A reply pushed now leaves after `latency`, or right after the one before it.
            ReplyPorts::Direct(_) => unknown_reply.saturating_add(self.noc_latency.min(1)),
            ReplyPorts::Shared { .. } => unknown_reply,
        };
        // A port takes one reply a step, so a transfer's last reply is further away the more are
        // missing.
        let lanes = u64::from(self.ports.min(self.channels));
        let mut missing = u64::MAX;
        for &transfer in &self.active {
            missing = missing.min(self.flights[transfer as usize].remaining);
            if missing <= lanes {
                break;
            }
        }
        let more = missing.div_ceil(lanes).saturating_sub(1);
        self.time.noc_to_core.after(leave.saturating_add(1).saturating_add(more))
    }
}
