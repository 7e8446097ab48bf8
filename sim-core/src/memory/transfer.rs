//! The transfer-level model: whole transfers against shares of latency and bandwidth.
//!
//! # What is modelled
//!
//! A transfer sends its requests evenly over the core cycles that its DMA needs for them. All
//! channels together are one server with a queue, first come first served: while transfers send, its
//! backlog grows with their *work* and shrinks with time, and a transfer's last request waits for
//! the backlog that it finds. The core's own NoC ports are a second such server. The way there and
//! back has the latency of an idle system.
//!
//! The work of a transfer is what its *shape* (rows, strides, direction) costs the channels. A shape
//! is looked at once per run: its lines are counted per channel, and the share of the most loaded
//! one is played to that channel's controller alone, twice over; the second time is its work, spread
//! over the channels as evenly as its lines are. `simple` DRAM has a closed form instead. So row
//! locality, bank conflicts, bursts and refresh are in the figures, and a transfer costs a few dozen
//! operations however long it is. Request counts are exact.
//!
//! With an L2, blocks of lines touched before and not yet replaced (least recently used first) cost
//! no DRAM work; capacity counts the sectors touched. Lines on their way from DRAM are waited for, by
//! whoever asked first and by all who ask after: programs in step that share an operand all see its
//! latency. The slices together are a server too: each takes a request per core cycle and answers one
//! per NoC cycle, hit or miss.
//!
//! # What is not modelled
//!
//! Channels that are loaded unevenly for long, turnarounds between the reads and writes of different
//! transfers, contention inside the NoC, miss registers, and the order of requests within a
//! transfer. `docs/deviations/transfer.md` has the measured differences.
//!
//! All arithmetic is on integers: times in core cycles and 2^-20 of them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use tilesim_traces::launch::{Transfer, WorkItem};
use tilesim_traces::model::Direction;

use super::channel_map::ChannelMapper;
use super::flights::Origin;
use super::l2::L2Stats;
use super::lines::{LineWalker, LinesError, Shape};
use super::{ChannelStats, Completion};
use crate::clock::Timeline;
use crate::dram::{self, DramSpec};
use crate::machine::{DramModel, Machine, NocSpec, ReplyPort};
use crate::noc::{FlitNetwork, PacketKind};
use crate::stack::Cause;

/// Mean (geometric) and largest difference to request by request over the golden set, in tenths of a
/// per cent; `docs/deviations/transfer.md` has the rows, and a test measures them.
pub const DIFFERENCES: (u32, u32) = (18, 206);

/// What every result of this model says.
pub fn note() -> String {
    let (mean, most) = DIFFERENCES;
    format!(
        "memory: transfer is approximate: over the golden set its totals differ from those of \
         memory: requests by {}.{} % on average and by {}.{} % at most (docs/deviations/transfer.md)",
        mean / 10,
        mean % 10,
        most / 10,
        most % 10
    )
}

/// One core cycle.
const ONE: u64 = 1 << 20;
/// Lines of a shape that are played to one channel's controller; longer ones are scaled.
const PLAYED: usize = 2048;
/// Requests of one channel from which on a transfer is measured by what it adds to the one before.
const LONG: u64 = 16;
/// Shapes remembered.
const SHAPES: usize = 256;

/// What a shape costs.
#[derive(Clone, Copy, Debug)]
struct Cost {
    /// Of all channels together, in 2^-20 core cycles.
    work: u64,
    /// What its most loaded channel takes longer than that, likewise.
    tail: u64,
    /// What one request occupies its channel, likewise.
    line: u64,
    /// What the bandwidth cap takes of all channels together, likewise; `simple` DRAM only.
    cap: u64,
    /// Core cycles that its replies wait at the busiest port of their core, if they come at once.
    port: u64,
}

/// A transfer whose requests are being sent.
#[derive(Clone, Copy, Debug)]
struct Sending {
    token: u64,
    origin: Origin,
    core: u32,
    write: bool,
    lines: u64,
    begin: u64,
    /// First core step after its last request.
    end: u64,
    cost: Cost,
    /// Answered by the L2 alone.
    hit: bool,
    /// DRAM cycles of the access itself.
    access: u64,
    /// First step in which all lines that others asked DRAM for have come.
    fetched: u64,
}

/// The idle system's part of the way.
#[derive(Clone, Copy, Debug)]
struct Latencies {
    /// NoC cycles from a core's port to a channel, reads and writes.
    request: [u64; 2],
    /// And back.
    reply: [u64; 2],
    /// DRAM cycles of an access, reads and writes: row open, bank closed, another row open.
    dram: [[u64; 2]; 3],
    /// Core cycles of the L2.
    l2: u64,
}

#[derive(Debug)]
enum Device {
    Simple {
        /// 2^-20 DRAM cycles a request.
        pace: u64,
    },
    Banked {
        /// The device, without refresh.
        spec: Box<DramSpec>,
        /// Row last used in each bank plus one, of any channel: all see the same rows.
        open: Vec<u32>,
    },
}

#[derive(Clone, Copy, Debug, Default)]
struct Server {
    /// Work waiting, in 2^-20 core cycles; negative: credit.
    backlog: i128,
    /// Idle time is kept as credit, as the `simple` DRAM's cap has it.
    credit: bool,
    /// Work arriving per core cycle.
    rate: u64,
    now: u64,
    /// Refresh: 2^-20 core cycles from one to the next, and what each takes; 0: none.
    interval: u64,
    busy: u64,
    /// When the next one is due, in 2^-20 core cycles.
    due: u128,
}

impl Server {
    fn new(interval: u64, busy: u64) -> Server {
        Server {
            interval,
            busy,
            due: u128::from(interval),
            ..Server::default()
        }
    }

    /// Up to core step `to`; a refresh is work that arrives at once.
    fn advance(&mut self, to: u64) {
        while self.interval != 0 && self.due < u128::from(to) * u128::from(ONE) {
            let at = (self.due / u128::from(ONE)) as u64;
            self.drain(at);
            self.backlog += i128::from(self.busy);
            // Refreshes of an idle time leave nothing behind.
            let idle = u128::from(to - at) * u128::from(ONE) / u128::from(self.interval);
            let skip = if self.rate == 0 && self.backlog < i128::from(self.interval) {
                idle.max(1)
            } else {
                1
            };
            self.due += skip * u128::from(self.interval);
        }
        self.drain(to);
    }

    fn drain(&mut self, to: u64) {
        let dt = to.saturating_sub(self.now);
        self.now = self.now.max(to);
        self.backlog += i128::from(dt) * (i128::from(self.rate) - i128::from(ONE));
        if !self.credit {
            self.backlog = self.backlog.max(0);
        }
    }

    /// Work that waits.
    fn waiting(&self) -> u64 {
        u64::try_from(self.backlog.max(0)).unwrap_or(u64::MAX)
    }
}

/// The memory system of one run, transfer by transfer.
#[derive(Debug)]
pub struct Transfers {
    time: Timeline,
    ports: u64,
    channels: u64,
    request_bytes: u32,
    max_rows: u64,
    map: ChannelMapper,
    walker: LineWalker,
    device: Device,
    latencies: Latencies,
    /// 2^-20 core cycles that a request takes at a channel's NoC port, and at a core's port.
    port_pace: u64,
    /// Shapes seen: shape, stores.
    shapes: Vec<(Shape, bool)>,
    /// Costs known: shape before, shape, cost.
    costs: Vec<(u32, u32, Cost)>,
    /// The transfer before: at the start of its lines, and its shape.
    before: LineWalker,
    before_shape: u32,
    per_channel: Vec<u64>,
    per_port: Vec<u64>,
    /// Replies go to ports by the line's number inside its channel.
    by_inner: bool,
    dram: Server,
    cap: Server,
    /// The L2's slices; idle without an L2.
    slices: Server,
    /// Their work for one request, in 2^-20 core cycles.
    slice_line: u64,
    cores: Vec<Server>,
    dma_free: Vec<u64>,
    /// Starts and ends of sending, by time: (step, is an end, lines started with it, index). Of one
    /// step, the transfer that was started first comes first: slots are used again, so their order
    /// tells nothing.
    events: BinaryHeap<Reverse<(u64, bool, u64, u32)>>,
    sending: super::slab::Slab<Sending>,
    in_flight: u64,
    done: Vec<VecDeque<Completion>>,
    safe: u64,
    least: u64,
    started: u64,
    stats: Vec<ChannelStats>,
    next_channel: u64,
    l2: Option<Box<Blocks>>,
}

impl Transfers {
    /// The memory system of a machine. `max_rows` bounds the rows of one transfer.
    pub fn new(machine: &Machine, max_rows: u64) -> Transfers {
        let time = Timeline::new(&machine.clocks);
        let channels = u64::from(machine.dram.channels);
        let request_bytes = machine.dram.request_bytes;
        let mut server = Server::default();
        let (device, dram) = match &machine.dram.model {
            DramModel::Simple {
                latency,
                bytes_per_cycle,
            } => {
                let line = f64::from(request_bytes);
                let cycles = bytes_per_cycle.map_or(1.0, |bytes| (line / bytes).max(1.0));
                let pace = (cycles * ONE as f64) as u64;
                (Device::Simple { pace }, [[u64::from(*latency); 2]; 3])
            }
            DramModel::Banked { device } => {
                let spec = device.spec();
                if let (dram::Refresh::AllBank { interval, .. }, Some(busy)) =
                    (spec.refresh, spec.timing("nRFC"))
                {
                    let core =
                        |ticks: u32| time.dram_to_core.last_at_or_before(u64::from(ticks) * ONE);
                    server = Server::new(core(interval), core(busy));
                }
                banked(spec)
            }
        };
        let noc = idle_noc(machine);
        let latencies = Latencies {
            request: noc.request,
            reply: noc.reply,
            dram,
            l2: machine
                .l2
                .as_ref()
                .map_or(0, |l2| u64::from(l2.hit_latency)),
        };
        let cores = machine.cores.count as usize;
        let mut model = Transfers {
            time,
            ports: u64::from(machine.cores.injection_ports),
            channels,
            request_bytes,
            max_rows,
            map: ChannelMapper::of(&machine.dram),
            walker: LineWalker::default(),
            device,
            latencies,
            port_pace: time.noc_to_core.last_at_or_before(noc.flits * ONE),
            shapes: Vec::new(),
            costs: Vec::new(),
            before: LineWalker::default(),
            before_shape: NONE,
            per_channel: vec![0; channels as usize],
            per_port: vec![0; machine.cores.injection_ports as usize],
            by_inner: machine.dram.reply_port == ReplyPort::InnerLine,
            dram: server,
            cap: Server {
                credit: true,
                ..Server::default()
            },
            slices: Server::default(),
            slice_line: 0,
            cores: vec![Server::default(); cores],
            dma_free: vec![0; cores],
            events: BinaryHeap::new(),
            sending: super::slab::Slab::new(),
            in_flight: 0,
            done: vec![VecDeque::new(); cores],
            safe: 0,
            least: 0,
            started: 0,
            stats: vec![ChannelStats::default(); channels as usize],
            next_channel: 0,
            l2: machine.l2.as_ref().map(|l2| {
                let bytes = u64::from(l2.sets) * u64::from(l2.ways) * u64::from(l2.line_bytes);
                Box::new(Blocks::new(
                    bytes.saturating_mul(channels),
                    l2.sector_bytes,
                    request_bytes,
                ))
            }),
        };
        if model.l2.is_some() {
            model.slice_line = model.port_pace.max(ONE) / channels;
        }
        // What the way takes at least, whatever the clocks' phases.
        let shortest = |write: bool| {
            let access = model.latencies.dram[0][usize::from(write)];
            model.arrival(1 << 20, 0, access, write, model.l2.is_some()) - (1 << 20)
        };
        model.least = shortest(false).min(shortest(true)).saturating_sub(4);
        model
    }

    /// See [`super::Memory::start`].
    pub fn start(
        &mut self,
        core: u32,
        step: u64,
        item: &WorkItem,
        transfer: &Transfer,
        token: u64,
        origin: Origin,
    ) -> Result<u64, LinesError> {
        self.walker
            .start(item, transfer, self.request_bytes, self.max_rows)?;
        let lines = self.walker.lines();
        if lines == 0 {
            return Ok(0);
        }
        self.started += lines;
        let write = transfer.direction == Direction::Store;
        let shape = self.walker.shape();
        let (first, last) = self.walker.ends();
        let cost = self.cost(shape, write);
        let access = self.open_rows(first, last, write);
        let begin = step.max(self.dma_free[core as usize]);
        let end = begin + lines.div_ceil(self.ports);
        let (mut to_dram, mut backs, mut fetched) = (lines, 0, 0);
        if self.l2.is_some() {
            // Without queueing: how far the queues are known here depends on the windows in which
            // cores and memory advance, and no result may.
            let due = self.arrival(end - 1, 0, access, false, false);
            if let Some(l2) = &mut self.l2 {
                let touched = l2.touch(self.walker.clone(), write, due);
                to_dram = touched.missing;
                backs = touched.written_back;
                fetched = touched.fetched;
            }
        }
        std::mem::swap(&mut self.walker, &mut self.before);
        let part =
            |x: u64| (u128::from(x) * u128::from(to_dram + backs) / u128::from(lines)) as u64;
        let cost = Cost {
            work: part(cost.work),
            tail: part(cost.tail),
            cap: part(cost.cap),
            ..cost
        };
        let (reads, writes) = if write {
            (0, to_dram + backs)
        } else {
            (to_dram, backs)
        };
        self.count(reads, writes);
        self.dma_free[core as usize] = end;
        let index = self.sending.insert(Sending {
            token,
            origin,
            core,
            write,
            lines,
            begin,
            end,
            cost,
            hit: to_dram == 0 && self.l2.is_some(),
            access,
            fetched,
        });
        self.events
            .push(Reverse((begin, false, self.started, index)));
        self.events.push(Reverse((end, true, self.started, index)));
        self.in_flight += 1;
        self.safe = self.safe.min(step + 1);
        Ok(lines)
    }

    /// Notes the rows of a transfer as open; the DRAM cycles of its last access.
    fn open_rows(&mut self, first: u64, last: u64, write: bool) -> u64 {
        let dram = &self.latencies.dram;
        let Device::Banked { spec, open, .. } = &mut self.device else {
            return dram[0][usize::from(write)];
        };
        let tx = u64::from(spec.tx_bytes());
        let (first, last) = (self.map.locate(first).1, self.map.locate(last).1);
        let (bank, row) = spec.map().bank_row(last * tx);
        let state = match open[bank as usize] {
            0 => 1,
            open if open == row + 1 => 0,
            _ => 2,
        };
        // A few rows are worth the while; of many, some are enough.
        let step = ((last.saturating_sub(first) + 1) / 32).max(4);
        let mut line = first;
        loop {
            let (bank, row) = spec.map().bank_row(line * tx);
            open[bank as usize] = row + 1;
            if line >= last {
                break;
            }
            line = (line + step).min(last);
        }
        dram[state][usize::from(write)]
    }

    /// Spread counts over the channels.
    fn count(&mut self, reads: u64, writes: u64) {
        let n = self.channels;
        for (total, write) in [(reads, false), (writes, true)] {
            let (each, rest) = (total / n, total % n);
            if total == 0 {
                continue;
            }
            for c in 0..n {
                let more = u64::from((c + n - self.next_channel) % n < rest);
                let stats = &mut self.stats[c as usize];
                *(if write {
                    &mut stats.writes
                } else {
                    &mut stats.reads
                }) += each + more;
            }
            self.next_channel = (self.next_channel + rest) % n;
        }
    }

    /// What the transfer that the walker stands at costs after the one before, from memory where
    /// the two shapes were seen in this order.
    fn cost(&mut self, shape: Shape, write: bool) -> Cost {
        let known = self
            .shapes
            .iter()
            .position(|(s, w)| *w == write && *s == shape);
        let index = match known {
            Some(at) => at as u32,
            None => {
                if self.shapes.len() == SHAPES {
                    self.shapes.clear();
                    self.costs.clear();
                    self.before_shape = NONE;
                }
                self.shapes.push((shape, write));
                (self.shapes.len() - 1) as u32
            }
        };
        let before = std::mem::replace(&mut self.before_shape, index);
        if let Some(found) = self.costs.iter().find(|c| c.0 == before && c.1 == index) {
            return found.2;
        }
        let cost = self.measure(before, write);
        self.costs.push((before, index, cost));
        cost
    }

    fn measure(&mut self, before: u32, write: bool) -> Cost {
        // Count its lines per channel, then take those of the most loaded one.
        self.per_channel.fill(0);
        self.per_port.fill(0);
        let mut walker = self.walker.clone();
        while let Some(run) = walker.next_run() {
            for line in run.first..run.first + run.count {
                let (channel, inner) = self.map.locate(line);
                self.per_channel[channel as usize] += 1;
                let by = if self.by_inner {
                    self.map.locate(inner).0
                } else {
                    channel
                };
                self.per_port[(u64::from(by) % self.ports) as usize] += 1;
            }
        }
        let most = self.per_channel.iter().copied().max().unwrap_or(0);
        let busiest = self
            .per_channel
            .iter()
            .position(|&n| n == most)
            .unwrap_or(0) as u32;
        let lines = self.walker.lines();
        let mut cap = 0;
        let longest = match &self.device {
            Device::Simple { pace } => {
                let all = lines.saturating_mul(*pace) / self.channels;
                cap = self.time.dram_to_core.last_at_or_before(all);
                // Credit lets them pass one a cycle.
                self.time
                    .dram_to_core
                    .last_at_or_before(most.saturating_mul(ONE))
            }
            Device::Banked { spec, .. } => {
                let mut parts = Vec::new();
                let mut stores = write;
                if let Some(&(_, before)) = self.shapes.get(before as usize) {
                    stores = before;
                    self.share(self.before.clone(), busiest, before, &mut parts);
                }
                let context = parts.len();
                self.share(self.walker.clone(), busiest, write, &mut parts);
                let (ticks, played) = if most >= LONG {
                    // What it adds to the one before, beyond the latencies of their last requests.
                    let idle = self.latencies.dram[1];
                    let (a, b) = (idle[usize::from(stores)], idle[usize::from(write)]);
                    let both = (play(spec, &parts) + a).saturating_sub(b);
                    let before = play(spec, &parts[..context]);
                    (both.saturating_sub(before), parts.len() - context)
                } else {
                    // What both add to themselves: waiting for answers is not work.
                    let round = parts.len();
                    let once = play(spec, &parts);
                    again(&mut parts);
                    (play(spec, &parts).saturating_sub(once), round)
                };
                let ticks =
                    u128::from(ticks) * u128::from(ONE) * u128::from(most) / played.max(1) as u128;
                let ticks = u64::try_from(ticks).unwrap_or(u64::MAX);
                self.time.dram_to_core.last_at_or_before(ticks)
            }
        };
        // A channel's port and its front queue take one request a cycle.
        let longest = longest.max(most.saturating_mul(self.port_pace.max(ONE)));
        let work = (u128::from(longest) * u128::from(lines)
            / (u128::from(most.max(1)) * u128::from(self.channels))) as u64;
        let at_port = self.per_port.iter().copied().max().unwrap_or(0);
        let even = lines.div_ceil(self.ports);
        Cost {
            work,
            tail: longest - work.min(longest),
            line: longest / most.max(1),
            cap,
            port: at_port.saturating_sub(even).saturating_mul(self.port_pace) / ONE,
        }
    }

    /// Appends a channel's part of a transfer, or the start of it: its line numbers there.
    fn share(&self, mut walker: LineWalker, channel: u32, write: bool, out: &mut Vec<Play>) {
        let limit = out.len() + PLAYED;
        let from = out.len();
        while out.len() < limit
            && let Some(run) = walker.next_run()
        {
            let lines = (run.first..run.first + run.count).map(|line| self.map.locate(line));
            let lines = lines.filter(|l| l.0 == channel).map(|l| l.1);
            out.extend(lines.map(|line| Play {
                line,
                write,
                span: 0,
            }));
        }
        out.truncate(limit);
        let of_it = out.get_mut(from..).unwrap_or_default();
        if let (Some(first), Some(last)) = (of_it.first().copied(), of_it.last().copied()) {
            let span = last.line.saturating_sub(first.line) + 1;
            of_it.iter_mut().for_each(|p| p.span = span);
        }
    }

    /// The core step in which the answer to a request sent in core step `sent` is seen, if it waits
    /// `wait` core cycles on the way.
    fn arrival(&self, sent: u64, wait: u64, access: u64, write: bool, hit: bool) -> u64 {
        let (t, w, l) = (&self.time, usize::from(write), &self.latencies);
        let leave = t.core_to_noc.at_or_after(sent) + l.request[w];
        let reached = t.noc_to_core.after(leave + 1) + wait + l.l2;
        let push = if hit {
            t.core_to_noc.at_or_after(reached)
        } else {
            t.dram_to_noc
                .at_or_after(t.core_to_dram.at_or_after(reached) + access)
        };
        t.noc_to_core.after(push + l.reply[w] + 1)
    }

    /// See [`super::Memory::is_busy`].
    pub fn is_busy(&self) -> bool {
        self.in_flight > 0
    }

    /// See [`super::Memory::safe`].
    pub fn safe(&self) -> u64 {
        if self.is_busy() { self.safe } else { u64::MAX }
    }

    /// See [`super::Memory::peek`].
    #[inline]
    pub fn peek(&self, core: u32) -> Option<&Completion> {
        self.done[core as usize].front()
    }

    /// See [`super::Memory::pop`].
    pub fn pop(&mut self, core: u32) -> Option<Completion> {
        self.done[core as usize].pop_front()
    }

    /// See [`super::Memory::started`].
    pub fn started(&self) -> u64 {
        self.started
    }

    /// See [`super::Memory::max_rows`].
    pub fn max_rows(&self) -> u64 {
        self.max_rows
    }

    /// See [`super::Memory::stats`].
    pub fn stats(&self) -> &[ChannelStats] {
        &self.stats
    }

    /// See [`super::Memory::l2_stats`].
    pub fn l2_stats(&self) -> Vec<L2Stats> {
        self.l2.iter().map(|l2| l2.stats).collect()
    }

    /// See [`super::Memory::advance`].
    pub fn advance(&mut self, core_step: u64) {
        while let Some(&Reverse((at, is_end, _, index))) = self.events.peek() {
            if at > core_step {
                break;
            }
            self.events.pop();
            self.dram.advance(at);
            if is_end {
                self.end(index);
            } else {
                self.begin(index);
            }
        }
        // What ends later is answered later; what has not started ends later still.
        self.safe = core_step.saturating_add(1 + self.least);
    }

    /// Work per core cycle of a transfer: in DRAM, under its cap, at its core's ports.
    fn rates(&self, s: &Sending) -> [u64; 3] {
        let cycles = s.end - s.begin;
        [s.cost.work, s.cost.cap, self.port_work(s)].map(|work| work / cycles)
    }

    fn port_work(&self, s: &Sending) -> u64 {
        s.lines.saturating_mul(self.port_pace) / self.ports
    }

    fn slice_work(&self, s: &Sending) -> u64 {
        s.lines.saturating_mul(self.slice_line)
    }

    fn begin(&mut self, index: u32) {
        let s = *self.sending.get(index);
        let [work, cap, port] = self.rates(&s);
        self.dram.rate += work;
        self.cap.advance(s.begin);
        self.cap.rate += cap;
        self.slices.advance(s.begin);
        self.slices.rate += self.slice_work(&s) / (s.end - s.begin);
        let server = &mut self.cores[s.core as usize];
        server.advance(s.begin);
        server.rate += port;
    }

    fn end(&mut self, index: u32) {
        let s = self.sending.remove(index);
        let [work, cap, port] = self.rates(&s);
        let cycles = s.end - s.begin;
        self.dram.rate -= work;
        self.dram.backlog += i128::from(s.cost.work - work * cycles);
        self.cap.advance(s.end);
        self.cap.rate -= cap;
        self.cap.backlog += i128::from(s.cost.cap - cap * cycles);
        let slice_work = self.slice_work(&s);
        self.slices.advance(s.end);
        self.slices.rate -= slice_work / cycles;
        self.slices.backlog += i128::from(slice_work % cycles);
        let in_slices = self.slices.waiting() / ONE;
        let port_work = self.port_work(&s);
        let server = &mut self.cores[s.core as usize];
        server.advance(s.end);
        server.rate -= port;
        server.backlog += i128::from(port_work - port * cycles);
        // The last request's own service is part of its latency, and it was sent a cycle ago.
        let sending = cycles.saturating_mul(ONE);
        let tail = (s.cost.work + s.cost.tail)
            .saturating_sub(sending)
            .min(s.cost.tail);
        let queued = (self.dram.waiting() + tail).max(self.cap.waiting()) + ONE;
        let in_dram = if s.hit {
            0
        } else {
            queued.saturating_sub(s.cost.line) / ONE
        };
        let at_port = server.waiting() / ONE;
        // Replies that crowd at one port come from all channels at once; those of one channel come
        // one by one anyway.
        let wait = if self.by_inner {
            in_dram.max(at_port) + s.cost.port
        } else {
            in_dram.max(at_port + s.cost.port)
        };
        let wait = wait.max(in_slices);
        let way = self.arrival(s.end - 1, wait, s.access, s.write, s.hit);
        let step = if s.write { way } else { way.max(s.fetched) };
        let cause = if step > way {
            Cause::DramLatency
        } else if s.hit || in_slices == wait && wait > 0 {
            Cause::L2
        } else if wait > step - s.end - wait {
            if in_dram >= at_port {
                Cause::DramQueue
            } else {
                Cause::Noc
            }
        } else {
            Cause::DramLatency
        };
        let completion = Completion {
            step,
            token: s.token,
            origin: s.origin,
            cause,
            order: (step, s.core),
        };
        let queue = &mut self.done[s.core as usize];
        let at = queue.partition_point(|c| c.step <= step);
        queue.insert(at, completion);
        self.in_flight -= 1;
    }
}

/// A banked device's figures, measured on one idle channel.
fn banked(spec: &DramSpec) -> (Device, [[u64; 2]; 3]) {
    let mut spec = Box::new(spec.clone());
    spec.refresh = dram::Refresh::None;
    spec.compile();
    let map = spec.map();
    // One access long after another: to the same row, to another bank, to another row.
    let other_bank = u32::from(spec.banks() > 1);
    let access = |bank: u32, row: u32, write: bool| {
        let mut channel = dram::Channel::new(&spec);
        let mut out = Vec::new();
        channel.push(0, map.address(0, 0, 0), false, 0);
        let later = 4096;
        channel.push(later, map.address(bank, row, 0), write, 1);
        let mut horizon = later;
        while !channel.is_idle() {
            horizon += 64;
            channel.advance(&spec, horizon, &mut out);
        }
        // A request is offered in the tick after it was handed over.
        1 + out
            .iter()
            .filter(|d| d.tag == 1)
            .map(|d| d.tick - later)
            .sum::<u64>()
    };
    let latencies = [(0, 0), (other_bank, 0), (0, 1)]
        .map(|(bank, row)| [access(bank, row, false), access(bank, row, true)]);
    let open = vec![0; spec.banks() as usize];
    (Device::Banked { spec, open }, latencies)
}

/// A request to play to a channel.
#[derive(Clone, Copy, Debug)]
struct Play {
    line: u64,
    write: bool,
    /// How far the next transfer of its kind is.
    span: u64,
}

/// Appends the same transfers again, each right behind itself.
fn again(requests: &mut Vec<Play>) {
    for i in 0..requests.len() {
        let p = requests[i];
        requests.push(Play {
            line: p.line.wrapping_add(p.span),
            ..p
        });
    }
}

/// The ticks until the last request is answered when an idle channel gets one a tick.
fn play(spec: &DramSpec, requests: &[Play]) -> u64 {
    let mut channel = dram::Channel::new(spec);
    let tx = u64::from(spec.tx_bytes());
    for (at, p) in requests.iter().enumerate() {
        channel.push(at as u64, p.line.wrapping_mul(tx), p.write, 0);
    }
    let (mut out, mut horizon) = (Vec::new(), 0);
    while !channel.is_idle() {
        horizon += 64 + requests.len() as u64;
        channel.advance(spec, horizon, &mut out);
    }
    out.iter().map(|d| d.tick).max().unwrap_or(0)
}

struct IdleNoc {
    request: [u64; 2],
    reply: [u64; 2],
    /// Flits of a packet with data.
    flits: u64,
}

/// What one packet takes through an idle NoC.
fn idle_noc(machine: &Machine) -> IdleNoc {
    let spec = match &machine.noc {
        NocSpec::Simple { latency } => {
            let latency = u64::from(*latency);
            return IdleNoc {
                request: [latency; 2],
                reply: [latency; 2],
                flits: 1,
            };
        }
        NocSpec::Flit { network } => network,
    };
    let (control, data) = (spec.flits(8), spec.flits(machine.dram.request_bytes));
    let channel = machine.cores.count * machine.cores.injection_ports;
    let alone = |ends: (u32, u32), flits: u32, kind: PacketKind| {
        let mut net = FlitNetwork::new(spec);
        let mut out = Vec::new();
        net.push_kind(spec, 0, ends, flits, 0, kind);
        let mut until = 0;
        // Far beyond any network's diameter.
        while out.is_empty() && until < 1 << 20 {
            until += 64;
            net.advance(spec, until, &mut out);
        }
        out.first().map_or(0, |d| d.cycle)
    };
    IdleNoc {
        request: [
            alone((0, channel), control, PacketKind::ReadRequest),
            alone((0, channel), data, PacketKind::WriteRequest),
        ],
        reply: [
            alone((channel, 0), data, PacketKind::ReadReply),
            alone((channel, 0), control, PacketKind::WriteReply),
        ],
        flits: u64::from(data),
    }
}

const NONE: u32 = u32::MAX;
/// Sectors of a block: 2 KiB with sectors of 32 bytes.
const SECTORS: u64 = 64;

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    number: u64,
    there: u64,
    dirty: u64,
    /// Step in which the last line of it that was asked for comes from DRAM.
    due: u64,
    newer: u32,
    older: u32,
    chain: u32,
}

/// Recently touched blocks: a cache without sets, its capacity counted in sectors.
#[derive(Debug)]
struct Blocks {
    blocks: Vec<Block>,
    free: Vec<u32>,
    buckets: Vec<u32>,
    newest: u32,
    oldest: u32,
    used: u64,
    capacity: u64,
    lines_per_sector: u64,
    stats: L2Stats,
}

struct Touched {
    missing: u64,
    written_back: u64,
    /// First step in which every line that was on its way has come.
    fetched: u64,
}

impl Blocks {
    fn new(bytes: u64, sector_bytes: u32, request_bytes: u32) -> Blocks {
        let capacity = (bytes / u64::from(sector_bytes.max(1))).max(1);
        Blocks {
            blocks: Vec::new(),
            free: Vec::new(),
            buckets: vec![NONE; capacity.clamp(64, 1 << 20).next_power_of_two() as usize],
            newest: NONE,
            oldest: NONE,
            used: 0,
            capacity,
            lines_per_sector: u64::from(sector_bytes / request_bytes.max(1)).max(1),
            stats: L2Stats::default(),
        }
    }

    /// A transfer's runs; the walker is at its start.
    /// Lines that are missing come in step `due`.
    fn touch(&mut self, mut walker: LineWalker, write: bool, due: u64) -> Touched {
        let mut touched = Touched {
            missing: 0,
            written_back: 0,
            fetched: 0,
        };
        let per_block = SECTORS * self.lines_per_sector;
        while let Some(run) = walker.next_run() {
            let (mut line, end) = (run.first, run.first + run.count);
            while line < end {
                let number = line / per_block;
                let stop = end.min((number + 1) * per_block);
                let (from, to) = (line % per_block, (stop - 1) % per_block);
                let (low, high) = (from / self.lines_per_sector, to / self.lines_per_sector);
                let mask = u64::MAX >> (63 - (high - low)) << low;
                let missing = self.touch_block(number, mask, write);
                let block = &mut self.blocks[self.newest as usize];
                touched.fetched = touched.fetched.max(block.due);
                if missing != 0 && !write {
                    block.due = block.due.max(due);
                }
                // Sectors may be covered in part.
                let lines = stop - line;
                let share =
                    u64::from(missing.count_ones()) * lines / u64::from(mask.count_ones()).max(1);
                if write {
                    self.stats.writes += lines;
                    self.stats.write_hits += lines - share;
                } else {
                    self.stats.reads += lines;
                    self.stats.read_hits += lines - share;
                    touched.missing += share;
                }
                self.stats.misses += share;
                line = stop;
            }
        }
        touched.written_back = self.shrink();
        self.stats.dram_reads += touched.missing;
        touched
    }

    /// Makes the sectors present; those that were not.
    fn touch_block(&mut self, number: u64, mask: u64, write: bool) -> u64 {
        let bucket = self.bucket(number);
        let mut at = self.buckets[bucket];
        while at != NONE && self.blocks[at as usize].number != number {
            at = self.blocks[at as usize].chain;
        }
        if at == NONE {
            let block = Block {
                number,
                chain: self.buckets[bucket],
                ..Block::default()
            };
            at = match self.free.pop() {
                Some(at) => {
                    self.blocks[at as usize] = block;
                    at
                }
                None => {
                    self.blocks.push(block);
                    (self.blocks.len() - 1) as u32
                }
            };
            self.buckets[bucket] = at;
        } else {
            self.unlink(at);
        }
        self.link(at);
        let block = &mut self.blocks[at as usize];
        let missing = mask & !block.there;
        block.there |= mask;
        if write {
            block.dirty |= mask;
        }
        self.used += u64::from(missing.count_ones());
        missing
    }

    /// Replaces the oldest blocks until the rest fits; the lines written back.
    fn shrink(&mut self) -> u64 {
        let mut backs = 0;
        while self.used > self.capacity && self.oldest != NONE {
            let at = self.oldest;
            let block = self.blocks[at as usize];
            self.unlink(at);
            let bucket = self.bucket(block.number);
            let mut i = self.buckets[bucket];
            if i == at {
                self.buckets[bucket] = block.chain;
            } else {
                while self.blocks[i as usize].chain != at {
                    i = self.blocks[i as usize].chain;
                }
                self.blocks[i as usize].chain = block.chain;
            }
            self.free.push(at);
            self.used -= u64::from(block.there.count_ones());
            self.stats.evictions += 1;
            backs += u64::from(block.dirty.count_ones()) * self.lines_per_sector;
        }
        self.stats.write_backs += backs;
        self.stats.dram_writes += backs;
        backs
    }

    fn bucket(&self, number: u64) -> usize {
        let bits = self.buckets.len().trailing_zeros();
        (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits)) as usize
    }

    fn unlink(&mut self, at: u32) {
        let Block { newer, older, .. } = self.blocks[at as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.blocks[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.blocks[older as usize].newer = newer,
        }
    }

    fn link(&mut self, at: u32) {
        let newest = self.newest;
        self.blocks[at as usize].newer = NONE;
        self.blocks[at as usize].older = newest;
        match newest {
            NONE => self.oldest = at,
            newest => self.blocks[newest as usize].newer = at,
        }
        self.newest = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backlog_grows_with_work_and_shrinks_with_time() {
        let mut server = Server {
            rate: 3 * ONE,
            ..Server::default()
        };
        server.advance(10);
        assert_eq!(server.waiting(), 20 * ONE);
        server.rate = 0;
        server.advance(25);
        assert_eq!(server.waiting(), 5 * ONE);
        server.advance(100);
        assert_eq!(server.waiting(), 0);
        let mut server = Server {
            credit: true,
            ..Server::default()
        };
        server.advance(10);
        server.backlog += i128::from(12 * ONE);
        assert_eq!(server.waiting(), 2 * ONE, "the ten idle steps count");
    }

    #[test]
    fn refreshes_are_work() {
        let mut server = Server::new(100 * ONE, 30 * ONE);
        server.advance(100);
        assert_eq!(server.waiting(), 0, "it comes with step 100");
        server.advance(110);
        assert_eq!(server.waiting(), 20 * ONE);
        // Full load leaves 70 of 100 steps to requests.
        server.rate = ONE;
        server.advance(1110);
        assert_eq!(server.waiting(), (20 + 10 * 30) * ONE);
        // A long idle time leaves no more than the last one.
        server.rate = 0;
        server.advance(1_000_000_010);
        assert_eq!(server.waiting(), 20 * ONE);
    }

    #[test]
    fn blocks_are_replaced_oldest_first() {
        // 16 KiB: two blocks of 8 KiB; lines of 32 bytes, four a sector.
        let mut l2 = Blocks::new(16 << 10, 128, 32);
        let all = u64::MAX;
        assert_eq!(l2.touch_block(1, all, false), all);
        assert_eq!(l2.touch_block(2, 0b11, true), 0b11);
        assert_eq!(l2.shrink(), 0);
        assert_eq!(l2.touch_block(1, all, false), 0, "it is there");
        assert_eq!(l2.touch_block(3, all, false), all);
        assert_eq!(l2.shrink(), 8, "block 2 was the oldest, and written to");
        assert_eq!(l2.touch_block(1, all, false), 0);
        assert_eq!(l2.touch_block(2, 0b111, false), 0b111);
        assert_eq!(l2.shrink(), 0);
        assert_eq!(l2.touch_block(3, all, false), all);
    }
}
