//! The model of every request: injection, NoC, channels, completions.

use std::collections::VecDeque;

use tilesim_traces::launch::{Transfer, WorkItem};
use tilesim_traces::model::Direction;

use super::arbiter::Packet;
use super::channel_map::ChannelMapper;
use super::channels::Counts;
use super::flights::{Flights, Origin};
use super::l2::L2Stats;
use super::lines::{LineWalker, LinesError, Run};
use super::noc::Noc;
use super::simple::Credit;
use super::{ChannelStats, Completion, NumaCounts, RowSpace};
use crate::clock::Timeline;
use crate::dram::{Area, DramStats, Frame};
use crate::machine::Machine;

/// Steps worked at once, of the core's and the NoC's clock.
const PIECE: u64 = 256;

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

/// Counts requests by whether they stay in their core's partition of the channels.
#[derive(Debug)]
struct Numa {
    /// Channels of a partition.
    channels: u32,
    /// Per core: its own partition.
    home: Vec<u32>,
    counts: Vec<NumaCounts>,
}

impl Numa {
    fn of(machine: &Machine) -> Option<Numa> {
        let numa = machine.dram.numa.as_ref()?;
        Some(Numa {
            channels: (machine.dram.channels / numa.partitions.max(1)).max(1),
            home: numa.home.clone(),
            counts: (0..machine.cores.count)
                .map(|core| NumaCounts {
                    core,
                    ..NumaCounts::default()
                })
                .collect(),
        })
    }

    #[inline]
    fn count(&mut self, core: usize, channel: u32) {
        let counts = &mut self.counts[core];
        if channel / self.channels == self.home[core] {
            counts.local += 1;
        } else {
            counts.remote += 1;
        }
    }
}

#[derive(Debug, Default)]
struct Injector {
    // Boxed: they are large, and move from end to end.
    queue: VecDeque<Box<Sending>>,
    #[allow(clippy::vec_box)]
    spare: Vec<Box<Sending>>,
}

/// Every request of one run.
#[derive(Debug)]
pub struct Requests {
    time: Timeline,
    ports: u32,
    channels: u32,
    map: ChannelMapper,
    request_bytes: u32,
    max_rows: u64,
    injectors: Vec<Injector>,
    numa: Option<Numa>,
    noc: Noc,
    /// Core steps before this one are worked.
    worked: u64,
    /// NoC steps before this one are injected.
    noc_step: u64,
    /// No reply that is not yet known is delivered before this NoC step, whatever is pushed from
    /// `noc_step` on.
    unknown: u64,
    safe: u64,
    started: u64,
}

impl Requests {
    /// The memory system of a machine. `max_rows` bounds the rows of one transfer.
    pub fn new(machine: &Machine, max_rows: u64) -> Requests {
        let time = Timeline::new(&machine.clocks);
        let cores = machine.cores.count;
        Requests {
            time,
            ports: machine.cores.injection_ports,
            channels: machine.dram.channels,
            map: ChannelMapper::of(&machine.dram),
            request_bytes: machine.dram.request_bytes,
            max_rows,
            injectors: (0..cores).map(|_| Injector::default()).collect(),
            numa: Numa::of(machine),
            noc: Noc::new(machine, Flights::new(cores, time.noc_to_core)),
            worked: 0,
            noc_step: 0,
            unknown: 0,
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
        origin: Origin,
    ) -> Result<u64, LinesError> {
        let injector = &mut self.injectors[core as usize];
        let mut sending = injector.spare.pop().unwrap_or_default();
        sending
            .walker
            .start(item, transfer, self.request_bytes, self.max_rows)?;
        let lines = sending.walker.lines();
        if lines == 0 {
            injector.spare.push(sending);
            return Ok(0);
        }
        self.started += lines;
        sending.run = None;
        sending.start = step;
        sending.taken = 0;
        sending.write = transfer.direction == Direction::Store;
        let flights = &mut self.noc.flights;
        let first = !flights.any();
        sending.transfer = flights.start(core, token, origin, lines, sending.write);
        injector.queue.push_back(sending);
        if first {
            // Nothing is under way, so it meets an idle system.
            self.worked = self.worked.max(step);
            let push = self.time.core_to_noc.at_or_after(step);
            self.unknown = self.unknown.max(self.noc.earliest_delivery(push));
            self.safe = u64::MAX;
        }
        // It passes the front queue in a later core step than the one it is sent in, and its reply
        // is seen in a later one still.
        self.safe = self.safe.min(self.all_missing(lines).max(step + 2));
        Ok(lines)
    }

    /// First core step in which a transfer that misses so many replies may be seen to be complete: a
    /// port takes one reply a step.
    fn all_missing(&self, replies: u64) -> u64 {
        let lanes = u64::from(self.ports.min(self.channels));
        let more = replies.div_ceil(lanes).saturating_sub(1);
        self.time
            .noc_to_core
            .after(self.unknown.saturating_add(more))
    }

    /// Whether any request has not been answered.
    pub fn is_busy(&self) -> bool {
        self.noc.flights.any()
    }

    /// Every completion with a core step below this is known; `u64::MAX` when nothing is in flight.
    pub fn safe(&self) -> u64 {
        if self.is_busy() { self.safe } else { u64::MAX }
    }

    /// The next known completion of a core.
    #[inline]
    pub fn peek(&self, core: u32) -> Option<&Completion> {
        self.noc.flights.peek(core)
    }

    /// Take it.
    pub fn pop(&mut self, core: u32) -> Option<Completion> {
        self.noc.flights.pop(core)
    }

    /// Requests of all transfers started so far.
    pub fn started(&self) -> u64 {
        self.started
    }

    /// Most rows of one transfer.
    pub fn max_rows(&self) -> u64 {
        self.max_rows
    }

    /// Whether [`Requests::canonical`] knows the models.
    pub fn has_canonical(&self) -> bool {
        self.noc.has_canonical()
    }

    /// See [`super::Memory::period`].
    pub fn period(&self) -> Option<u64> {
        let lines = self.map.period()?;
        self.noc.period(lines * u64::from(self.request_bytes))
    }

    /// See [`super::Memory::row_space`].
    pub fn row_space(&self) -> Option<RowSpace> {
        let dram = &self.noc.dram;
        let map_bytes = self.map.period()? * u64::from(self.request_bytes);
        Some(RowSpace {
            step: dram.row_step_lines()?.checked_mul(map_bytes)?,
            steps: dram.row_steps()?,
        })
    }

    /// What rows are counted from.
    pub fn frame(&self, areas: Vec<Area>) -> Option<Frame> {
        self.noc.dram.frame(areas)
    }

    /// Everything before core step `now` is done: work the memory up to there.
    pub fn settle(&mut self, now: u64) {
        self.advance(now);
        self.noc.dram.settle(now);
    }

    /// Words that [`Requests::canonical`] looks at beside what it appends, about.
    pub fn scanned(&self) -> u64 {
        self.noc.dram.scanned()
    }

    /// Append the state but bandwidth credit to `out`, times relative to core step `now` (to which
    /// all is settled), work-items to `base`, rows to `frame`.
    pub fn canonical(&self, now: u64, base: u64, frame: Option<&Frame>, out: &mut Vec<u64>) {
        let noc = self.time.core_to_noc.at_or_after(now);
        let dram = self.time.core_to_dram.at_or_after(now);
        // Where in each other clock's period this core step lies.
        out.push(self.time.core_to_noc.phase(now));
        out.push(self.time.core_to_dram.phase(now));
        out.push(self.noc_step.wrapping_sub(noc));
        for injector in &self.injectors {
            out.push(injector.queue.len() as u64);
            for s in &injector.queue {
                out.push(self.noc.flights.name(s.transfer, base));
                out.push(s.start.wrapping_sub(now));
                out.push(s.taken);
                out.push(s.walker.lines());
            }
        }
        self.noc.canonical(now, dram, noc, base, frame, out);
    }

    /// Bandwidth credit per channel at core step `now`.
    pub fn credit(&self, now: u64) -> Vec<Credit> {
        self.noc
            .dram
            .credit(self.time.core_to_dram.at_or_after(now))
    }

    /// Start to look for the least bandwidth credit left over.
    pub fn reset_spare(&mut self) {
        self.noc.dram.reset_spare();
    }

    /// Account for work that was jumped over: `times` times what happened since `before`, and
    /// credit per channel.
    pub fn jump(&mut self, times: u64, before: &Counts, credit: &[i128]) {
        self.noc.dram.repeat(times, before);
        self.noc.dram.add_credit(credit);
    }

    /// What the channels counted.
    pub fn counts(&self) -> Counts {
        self.noc.dram.counts()
    }

    /// Counts per channel.
    pub fn stats(&self) -> &[ChannelStats] {
        self.noc.dram.stats()
    }

    /// Requests per core by partition; empty where the channels have one.
    pub fn numa_stats(&self) -> Vec<NumaCounts> {
        self.numa
            .as_ref()
            .map_or_else(Vec::new, |n| n.counts.clone())
    }

    /// The L2 slices' counts; empty without an L2.
    pub fn l2_stats(&self) -> Vec<L2Stats> {
        self.noc.dram.l2_stats()
    }

    /// The banked controllers' counts up to core step `end`; empty for other models.
    pub fn dram_stats(&mut self, end: u64) -> Vec<DramStats> {
        self.noc.dram.dram_stats(end)
    }

    /// No transfer starts before core step `core_step` that has not been handed over: work
    /// everything up to there.
    pub fn advance(&mut self, core_step: u64) {
        // In pieces: what a piece injects is under way while it is worked, and should stay in the
        // processor's caches.
        while self.worked < core_step {
            let piece = if self.injectors.iter().all(|i| i.queue.is_empty()) {
                core_step
            } else {
                let in_noc = self.noc_step.saturating_add(PIECE);
                let in_noc = self.time.noc_to_core.last_at_or_before(in_noc);
                self.worked.saturating_add(PIECE).max(in_noc)
            };
            self.worked = core_step.min(piece);
            let horizon = self.time.core_to_noc.at_or_after(self.worked);
            self.inject(horizon);
            self.unknown = self.noc.advance(horizon, self.worked);
        }
        let lanes = u64::from(self.ports.min(self.channels));
        self.safe = self.all_missing(self.noc.flights.fewest_missing(lanes));
    }

    /// Inject every NoC step before `horizon`.
    fn inject(&mut self, horizon: u64) {
        let ports = u64::from(self.ports);
        while self.noc_step < horizon {
            let step = self.noc_step;
            let core_step = self.time.noc_to_core.last_at_or_before(step);
            let mut next_start = u64::MAX;
            for core in 0..self.injectors.len() {
                let Requests {
                    injectors,
                    numa,
                    noc,
                    map,
                    ..
                } = self;
                let injector = &mut injectors[core];
                let first_port = core as u32 * ports as u32;
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
                        // With all ports taken the next NoC step may send, else only the next core
                        // step has more to send.
                        let next = if ready == 0 { core_step + 1 } else { 0 };
                        next_start = next_start.min(next);
                        break;
                    }
                    sending.taken += take;
                    while take > 0 {
                        let Some(mut run) = sending.run.or_else(|| sending.walker.next_run())
                        else {
                            break;
                        };
                        let group = map.group(run.first);
                        let now = take.min(run.count).min(group.lines);
                        let by_line = noc.rule.of_line(group.inner);
                        for i in 0..now {
                            let channel = map.channel(&group, i);
                            if let Some(numa) = numa {
                                numa.count(core, channel);
                            }
                            let reply = by_line.unwrap_or_else(|| noc.rule.of_channel(channel));
                            let packet = Packet {
                                line: group.inner,
                                pushed: step,
                                transfer: sending.transfer,
                                source: (first_port + port as u32) as u16,
                                reply_to: (first_port + reply) as u16,
                                write: sending.write,
                                ..Packet::default()
                            };
                            noc.push(channel, packet);
                            port += 1;
                        }
                        take -= now;
                        run.first += now;
                        run.count -= now;
                        sending.run = (run.count > 0).then_some(run);
                    }
                    if sending.taken == sending.walker.lines()
                        && let Some(done) = injector.queue.pop_front()
                    {
                        injector.spare.push(done);
                    }
                }
            }
            self.noc_step = match next_start {
                0 => step + 1,
                u64::MAX => horizon,
                start => self.time.core_to_noc.at_or_after(start).max(step + 1),
            };
        }
    }
}
