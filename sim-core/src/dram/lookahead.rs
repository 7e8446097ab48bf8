//! One channel under a controller with a look-ahead queue per bank, of DRAMsim3's shape.
//!
//! Per pseudo-channel (or channel) there is a read queue and a write buffer, and behind them a short queue per bank. Each
//! tick one command issues (one row and one column command on HBM): the bank queues are asked round robin, each for its
//! first entry whose next command is ready. Then one transaction moves from the read queue, or from the write buffer
//! while it drains, into its bank's queue. Only the head of a bank's queue may close a row, and only when no entry behind
//! it wants the open row or four accesses have used it. Writes are posted: they complete one tick after acceptance. A
//! buffer drains when it is full, or when more than eight writes wait and no bank has work. A refresh that is due stops
//! its banks, closes them one by one and goes.
//!
//! Differences to the Ramulator controller beside the queues: each pseudo-channel has its own command buses, so rules at
//! the channel level are left out; a refresh precharges banks one at a time.

use std::collections::VecDeque;

use super::channel::CommandRecord;
use super::frame::Frame;
use super::spec::{Bus, DramSpec, Refresh};
use super::standards::{CMDS, Cmd};
use super::stats::{Done, DramStats, WaitCause};

const NEVER: u64 = u64::MAX;
/// Accesses to a row after which the head of the queue may close it although others want it.
const ROW_CAP: u32 = 4;
/// More writes than this drain when the banks have nothing to do.
const IDLE_DRAIN: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    addr: u64,
    at: u64,
    bank: u32,
    row: u32,
    tag: u32,
    write: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
struct Bank {
    row: Option<u32>,
    uses: u32,
    queue: VecDeque<Request>,
}

/// A pseudo-channel, or the whole channel: queues, banks and command buses of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Lane {
    first_bank: u32,
    banks: Vec<Bank>,
    reads: VecDeque<Request>,
    writes: VecDeque<Request>,
    /// Reads that wait for a queued read of the same address.
    twins: Vec<Request>,
    draining: usize,
    /// Bank queue that was asked last.
    turn: usize,
    due: VecDeque<(u32, u32)>,
}

/// One channel with a look-ahead queue per bank; the interface of [`super::Channel`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LookAhead {
    clk: u64,
    front: VecDeque<Request>,
    lanes: Vec<Lane>,
    /// Ready ticks per bank, all levels together, and per level and node the last issues that windows look at.
    ready: Vec<[u64; CMDS]>,
    history: Vec<Vec<[VecDeque<u64>; 2]>>,
    pending: Vec<(u64, Request)>,
    next_refresh: u64,
    stats: DramStats,
}

impl LookAhead {
    pub fn new(spec: &DramSpec) -> LookAhead {
        let lanes = if spec.bus == Bus::Dual {
            spec.pseudo_channels()
        } else {
            1
        };
        let per = spec.banks() / lanes;
        let (mut n, mut history) = (1, Vec::new());
        for &size in &spec.levels {
            n *= size as usize;
            history.push(vec![[VecDeque::new(), VecDeque::new()]; n]);
        }
        let lane = |l: u32| Lane {
            first_bank: l * per,
            banks: vec![Bank::default(); per as usize],
            reads: VecDeque::new(),
            writes: VecDeque::new(),
            twins: Vec::new(),
            draining: 0,
            turn: 0,
            due: VecDeque::new(),
        };
        LookAhead {
            clk: 0,
            front: VecDeque::new(),
            lanes: (0..lanes).map(lane).collect(),
            ready: vec![[0; CMDS]; n],
            history,
            pending: Vec::new(),
            next_refresh: match spec.refresh {
                Refresh::None => NEVER,
                Refresh::AllBank { interval, .. } | Refresh::PerBank { interval } => {
                    interval.into()
                }
            },
            stats: DramStats::default(),
        }
    }

    pub fn push(&mut self, at: u64, addr: u64, write: bool, tag: u32) {
        self.front.push_back(Request {
            addr,
            at,
            bank: 0,
            row: 0,
            tag,
            write,
        });
    }

    pub fn try_accept(&mut self, spec: &DramSpec, addr: u64, write: bool, tag: u32) -> bool {
        self.enqueue(
            spec,
            Request {
                addr,
                at: self.clk,
                bank: 0,
                row: 0,
                tag,
                write,
            },
        )
    }

    fn enqueue(&mut self, spec: &DramSpec, mut r: Request) -> bool {
        (r.bank, r.row) = spec.map.bank_row(r.addr);
        let per = spec.banks() as usize / self.lanes.len();
        let lane = &mut self.lanes[r.bank as usize / per];
        let room = if r.write {
            spec.write_queue as usize > lane.writes.len()
        } else {
            spec.read_queue as usize > lane.reads.len()
        };
        if !room {
            return false;
        }
        self.stats.wait_queue += self.clk - r.at;
        r.at = self.clk;
        let bank = (r.bank - lane.first_bank) as usize;
        let queued = |w: bool, lane: &Lane| {
            let list = if w { &lane.writes } else { &lane.reads };
            list.iter()
                .chain(&lane.banks[bank].queue)
                .any(|q| q.write == w && q.addr == r.addr)
        };
        if queued(true, lane) {
            // Writes merge, reads are answered by the buffered write.
            if r.write {
                self.stats.coalesced += 1;
            } else {
                self.stats.forwarded += 1;
            }
            self.pending.push((self.clk + 1, r));
        } else if r.write {
            lane.writes.push_back(r);
            self.pending.push((self.clk + 1, r));
        } else if queued(false, lane) {
            lane.twins.push(r);
        } else {
            lane.reads.push_back(r);
        }
        true
    }

    pub fn advance(
        &mut self,
        spec: &DramSpec,
        horizon: u64,
        out: &mut Vec<Done>,
        mut log: Option<&mut Vec<CommandRecord>>,
    ) {
        while self.clk < horizon {
            let t = self.clk;
            let mut left = spec.accepts_per_tick;
            let mut busy = false;
            let mut arrival = NEVER;
            while let Some(&f) = self.front.front() {
                if f.at > t || left == 0 {
                    arrival = f.at.max(t + 1);
                    break;
                }
                if !self.enqueue(spec, f) {
                    break;
                }
                self.front.pop_front();
                busy = true;
                left -= 1;
            }
            self.complete(t, out);
            if t == self.next_refresh {
                self.add_due(spec);
            }
            for l in 0..self.lanes.len() {
                busy |= self.lane_tick(spec, l, t, log.as_deref_mut());
            }
            let next = if busy {
                t + 1
            } else {
                self.wake(spec, t).min(arrival)
            };
            for lane in &self.lanes {
                self.stats.read_queue_ticks += lane.reads.len() as u64 * (next.min(horizon) - t);
                self.stats.write_queue_ticks += lane.writes.len() as u64 * (next.min(horizon) - t);
            }
            self.clk = next.min(horizon);
        }
    }

    fn complete(&mut self, t: u64, out: &mut Vec<Done>) {
        let stats = &mut self.stats;
        self.pending.retain(|&(done, r)| {
            if done > t {
                return true;
            }
            if r.write {
                stats.writes += 1;
            } else {
                stats.reads += 1;
                stats.latency(t - r.at);
            }
            out.push(Done {
                tick: t,
                tag: r.tag,
                cause: WaitCause::Latency,
            });
            false
        });
    }

    fn add_due(&mut self, spec: &DramSpec) {
        let banks = spec.banks();
        let per = banks / self.lanes.len() as u32;
        let each = match spec.refresh {
            Refresh::None => return,
            Refresh::AllBank { interval, level } => {
                self.next_refresh += u64::from(interval);
                banks / spec.levels[..=level as usize].iter().product::<u32>()
            }
            Refresh::PerBank { interval } => {
                let bank = (self.next_refresh / u64::from(interval) - 1) as u32 % banks;
                self.next_refresh += u64::from(interval);
                self.lanes[(bank / per) as usize]
                    .due
                    .push_back((bank % per, bank % per + 1));
                return;
            }
        };
        let each = each.min(per);
        for lane in &mut self.lanes {
            lane.due
                .extend((0..per / each).map(|n| (n * each, (n + 1) * each)));
        }
    }

    /// Tick at which `cmd` may go to `bank` (channel-wide number).
    #[inline]
    fn ready(&self, cmd: Cmd, bank: u32) -> u64 {
        self.ready[bank as usize][cmd as usize]
    }

    fn touch(&mut self, spec: &DramSpec, cmd: Cmd, bank: u32, t: u64) {
        // Rules at the channel level are about a bus that lanes do not share; with one lane they are ordinary rules.
        let lanes = self.lanes.len() > 1;
        for c in spec
            .constraints
            .iter()
            .filter(|c| c.before.contains(&cmd) && !(lanes && c.level == 0))
        {
            let shift = spec.table.level_shift[c.level as usize];
            let node = bank as usize >> shift;
            let mut when = t + u64::from(c.cycles);
            if c.window > 1 {
                let past = &mut self.history[c.level as usize][node][usize::from(cmd != Cmd::Act)];
                past.push_front(t);
                past.truncate(c.window.into());
                match past.get(c.window as usize - 1) {
                    Some(p) => when = p + u64::from(c.cycles),
                    None => continue,
                }
            }
            let own = node << shift..(node + 1) << shift;
            let mut raise = |banks: std::ops::Range<usize>| {
                for ready in &mut self.ready[banks] {
                    for a in &c.after {
                        ready[*a as usize] = ready[*a as usize].max(when);
                    }
                }
            };
            if !c.sibling {
                raise(own);
            } else if c.level > 0 {
                let up = spec.table.level_shift[c.level as usize - 1];
                let first = bank as usize >> up << up;
                raise(first..own.start);
                raise(own.end..first + (1 << up));
            }
        }
    }

    /// The next command of an entry, given its bank.
    fn need(bank: &Bank, r: &Request) -> Cmd {
        match bank.row {
            None => Cmd::Act,
            Some(row) if row != r.row => Cmd::Pre,
            Some(_) if r.write => Cmd::Wr,
            Some(_) => Cmd::Rd,
        }
    }

    /// First entry of a bank's queue whose next command may go at `t`.
    fn first_ready(&self, l: usize, b: usize, t: u64) -> Option<(usize, Cmd)> {
        let lane = &self.lanes[l];
        let bank = &lane.banks[b];
        for (i, r) in bank.queue.iter().enumerate() {
            let cmd = LookAhead::need(bank, r);
            if self.ready(cmd, r.bank) > t {
                continue;
            }
            match cmd {
                Cmd::Pre => {
                    let wanted = bank.queue.iter().any(|q| Some(q.row) == bank.row);
                    if i > 0 || (wanted && bank.uses < ROW_CAP) {
                        continue;
                    }
                }
                Cmd::Wr
                    if bank
                        .queue
                        .iter()
                        .take(i)
                        .any(|q| !q.write && q.addr == r.addr) =>
                {
                    continue;
                }
                _ => {}
            }
            return Some((i, cmd));
        }
        None
    }

    /// One tick of a lane; whether anything moved.
    fn lane_tick(
        &mut self,
        spec: &DramSpec,
        l: usize,
        t: u64,
        mut log: Option<&mut Vec<CommandRecord>>,
    ) -> bool {
        let issued = match self.refresh_step(spec, l, t, log.as_deref_mut()) {
            Some(cmd) => Some(cmd),
            None => self.queue_step(spec, l, t, None, log.as_deref_mut()),
        };
        if let (Some(cmd), Bus::Dual) = (issued, spec.bus) {
            self.queue_step(spec, l, t, Some(cmd), log);
        }
        self.schedule(spec, l) || issued.is_some()
    }

    fn refresh_step(
        &mut self,
        spec: &DramSpec,
        l: usize,
        t: u64,
        log: Option<&mut Vec<CommandRecord>>,
    ) -> Option<Cmd> {
        let &(lo, hi) = self.lanes[l].due.front()?;
        let first = self.lanes[l].first_bank;
        let refresh = if hi - lo == 1 {
            Cmd::RefBank
        } else {
            Cmd::RefAll
        };
        // Banks are looked at in order; the first open one that may close does.
        let open = (lo..hi).filter(|&b| self.lanes[l].banks[b as usize].row.is_some());
        if let Some(b) = open.clone().find(|&b| self.ready(Cmd::Pre, first + b) <= t) {
            self.close(spec, l, b as usize, t, log);
            return Some(Cmd::Pre);
        }
        if open.count() > 0
            || (lo..hi)
                .any(|b| self.ready(Cmd::Act, first + b) > t || self.ready(refresh, first + b) > t)
        {
            return None;
        }
        self.lanes[l].due.pop_front();
        self.stats.refreshes += 1;
        for b in lo..hi {
            self.touch(spec, refresh, first + b, t);
        }
        if let Some(log) = log {
            log.push(CommandRecord {
                tick: t,
                cmd: refresh,
                bank: first + lo,
                addr: None,
                write: false,
            });
        }
        Some(refresh)
    }

    fn close(
        &mut self,
        spec: &DramSpec,
        l: usize,
        b: usize,
        t: u64,
        log: Option<&mut Vec<CommandRecord>>,
    ) {
        let bank = self.lanes[l].first_bank + b as u32;
        self.touch(spec, Cmd::Pre, bank, t);
        (self.lanes[l].banks[b].row, self.lanes[l].banks[b].uses) = (None, 0);
        self.stats.precharges += 1;
        if let Some(log) = log {
            log.push(CommandRecord {
                tick: t,
                cmd: Cmd::Pre,
                bank,
                addr: None,
                write: false,
            });
        }
    }

    /// Asks the bank queues round robin. With `first`, a second command of the tick on the other bus.
    fn queue_step(
        &mut self,
        spec: &DramSpec,
        l: usize,
        t: u64,
        first: Option<Cmd>,
        log: Option<&mut Vec<CommandRecord>>,
    ) -> Option<Cmd> {
        let column = |c: Cmd| matches!(c, Cmd::Rd | Cmd::Wr);
        let n = self.lanes[l].banks.len();
        let start = self.lanes[l].turn;
        for step in 1..=n {
            let b = (start + step) % n;
            self.lanes[l].turn = b;
            if self.lanes[l]
                .due
                .front()
                .is_some_and(|d| (d.0..d.1).contains(&(b as u32)))
            {
                continue;
            }
            let Some((i, cmd)) = self.first_ready(l, b, t) else {
                continue;
            };
            if first.is_some_and(|f| column(f) == column(cmd)) {
                // The one command that was found does not fit beside the first; no other is looked for.
                return None;
            }
            let r = self.lanes[l].banks[b].queue[i];
            if cmd == Cmd::Pre {
                self.stats.conflicts += 1;
                self.close(spec, l, b, t, log);
                return Some(cmd);
            }
            self.touch(spec, cmd, r.bank, t);
            if let Some(log) = log {
                log.push(CommandRecord {
                    tick: t,
                    cmd,
                    bank: r.bank,
                    addr: Some(r.addr),
                    write: r.write,
                });
            }
            let bank = &mut self.lanes[l].banks[b];
            if cmd == Cmd::Act {
                bank.row = Some(r.row);
                self.stats.activates += 1;
                return Some(cmd);
            }
            if bank.uses > 0 {
                self.stats.hits += 1;
            } else {
                self.stats.misses += 1;
            }
            bank.uses += 1;
            bank.queue.remove(i);
            self.stats.bus_busy += u64::from(spec.burst);
            if !r.write {
                let done = t + u64::from(spec.read_latency);
                self.pending.push((done, r));
                let pending = &mut self.pending;
                self.lanes[l].twins.retain(|q| {
                    let twin = q.addr == r.addr;
                    if twin {
                        pending.push((done, *q));
                    }
                    !twin
                });
            }
            return Some(cmd);
        }
        None
    }

    /// Moves one transaction into its bank's queue; whether one moved.
    fn schedule(&mut self, spec: &DramSpec, l: usize) -> bool {
        let super::Scheduler::PerBank { depth } = spec.scheduler else {
            return false;
        };
        let lane = &mut self.lanes[l];
        if lane.draining == 0 {
            let idle = || lane.banks.iter().all(|b| b.queue.is_empty());
            if lane.writes.len() >= spec.write_queue as usize
                || (lane.writes.len() > IDLE_DRAIN && idle())
            {
                lane.draining = lane.writes.len();
            }
        }
        let write = lane.draining > 0;
        let list = if write { &lane.writes } else { &lane.reads };
        let fits = |r: &&Request| {
            lane.banks[(r.bank - lane.first_bank) as usize].queue.len() < depth as usize
        };
        let Some((i, &r)) = list.iter().enumerate().find(|(_, r)| fits(r)) else {
            return false;
        };
        let b = (r.bank - lane.first_bank) as usize;
        if write {
            // A write waits for older reads of its address.
            if lane
                .reads
                .iter()
                .chain(&lane.banks[b].queue)
                .any(|q| !q.write && q.addr == r.addr)
            {
                lane.draining = 0;
                return true;
            }
            lane.draining -= 1;
            lane.writes.remove(i);
        } else {
            lane.reads.remove(i);
        }
        lane.banks[b].queue.push_back(r);
        true
    }

    /// The next tick after `t` at which something may happen, when nothing could in `t`.
    fn wake(&self, _spec: &DramSpec, t: u64) -> u64 {
        let mut next = self
            .next_refresh
            .min(self.pending.iter().map(|p| p.0).min().unwrap_or(NEVER));
        for lane in &self.lanes {
            for bank in &lane.banks {
                for r in &bank.queue {
                    let at = self.ready(LookAhead::need(bank, r), r.bank);
                    if at > t {
                        next = next.min(at);
                    }
                }
            }
            if let Some(&(lo, hi)) = lane.due.front() {
                for b in lo..hi {
                    for cmd in [Cmd::Pre, Cmd::Act, Cmd::RefAll, Cmd::RefBank] {
                        let at = self.ready(cmd, lane.first_bank + b);
                        if at > t {
                            next = next.min(at);
                        }
                    }
                }
            }
        }
        next.max(t + 1)
    }

    pub fn next_activity(&self) -> u64 {
        let busy = self
            .lanes
            .iter()
            .any(|l| !l.reads.is_empty() || l.banks.iter().any(|b| !b.queue.is_empty()));
        let done = self.pending.iter().map(|p| p.0).min().unwrap_or(NEVER);
        let front = self.front.front().map_or(NEVER, |f| f.at);
        let t = if busy { self.clk } else { done.min(front) };
        t.max(self.clk)
    }

    pub fn next_event(&self) -> u64 {
        self.clk
    }

    pub fn outstanding(&self) -> usize {
        let lane = |l: &Lane| {
            l.reads.len()
                + l.twins.len()
                + l.banks
                    .iter()
                    .flat_map(|b| &b.queue)
                    .filter(|r| !r.write)
                    .count()
        };
        self.front.len() + self.pending.len() + self.lanes.iter().map(lane).sum::<usize>()
    }

    /// Writes that were posted and have not reached the device.
    pub fn unwritten(&self) -> usize {
        let lane = |l: &Lane| {
            l.writes.len()
                + l.banks
                    .iter()
                    .flat_map(|b| &b.queue)
                    .filter(|r| r.write)
                    .count()
        };
        self.lanes.iter().map(lane).sum()
    }

    pub fn room(&self, spec: &DramSpec) -> (u32, u32) {
        let least = |f: &dyn Fn(&Lane) -> usize| self.lanes.iter().map(f).max().unwrap_or(0) as u32;
        (
            spec.read_queue.saturating_sub(least(&|l| l.reads.len())),
            spec.write_queue.saturating_sub(least(&|l| l.writes.len())),
        )
    }

    pub fn stats(&self) -> &DramStats {
        &self.stats
    }

    /// The same, to add to.
    pub fn stats_mut(&mut self) -> &mut DramStats {
        &mut self.stats
    }

    /// As [`super::Channel::canonical`].
    pub fn canonical(
        &self,
        spec: &DramSpec,
        now: u64,
        frame: &Frame,
        name: &mut impl FnMut(u32, &mut Vec<u64>),
        out: &mut Vec<u64>,
    ) {
        let later = |t: u64| t.saturating_sub(now);
        let mut request = |r: &Request, out: &mut Vec<u64>| {
            out.extend(frame.addr(r.addr));
            out.extend([u64::from(r.write), r.at.wrapping_sub(now)]);
            name(r.tag, out);
        };
        out.push(if self.next_refresh == NEVER {
            NEVER
        } else {
            later(self.next_refresh)
        });
        out.push(match spec.refresh {
            Refresh::PerBank { interval } => {
                self.next_refresh / u64::from(interval) % u64::from(spec.banks())
            }
            _ => 0,
        });
        out.extend(self.ready.iter().flatten().map(|&t| later(t)));
        // A rule looks back at most so far.
        let longest = spec.constraints.iter().map(|c| c.cycles).max().unwrap_or(0);
        for h in self.history.iter().flatten().flatten() {
            let binding = h.iter().take_while(|&&t| now - t <= u64::from(longest));
            out.extend(binding.map(|&t| now - t));
            out.push(NEVER);
        }
        for lane in &self.lanes {
            out.extend([lane.draining as u64, lane.turn as u64]);
            for d in &lane.due {
                out.extend([d.0, d.1].map(u64::from));
            }
            for list in [&lane.reads, &lane.writes] {
                out.push(NEVER);
                list.iter().for_each(|r| request(r, out));
            }
            out.push(NEVER);
            lane.twins.iter().for_each(|r| request(r, out));
            for b in &lane.banks {
                out.extend(b.row.map_or([NEVER; 2], |row| frame.row(row)));
                out.extend([u64::from(b.uses.min(ROW_CAP)), b.queue.len() as u64]);
                b.queue.iter().for_each(|r| request(r, out));
            }
        }
        for (done, r) in &self.pending {
            out.push(later(*done));
            request(r, out);
        }
        out.push(NEVER);
        self.front.iter().for_each(|r| request(r, out));
    }
}
