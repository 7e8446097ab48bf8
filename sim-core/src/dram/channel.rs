//! One channel under Ramulator 2.1's controller rules, computed from event to event.
//!
//! Time. A tick `t` of the interface is clock `t + 1` of the reference, whose first tick has clock 1. Internally all
//! times are clocks.
//!
//! Queues. Requests of one direction and bank that go to the open row form the bank's *hit* list, the others its *miss*
//! list, both by age. All requests of one list need the same command at the same time, so only heads compete: the next
//! command is the minimum of (ready time, age) over at most two heads per bank. That is the reference's rule (oldest
//! among those whose timing is met) evaluated at the first tick at which any is met.

use std::collections::VecDeque;

use super::spec::{Bus, DramSpec, Refresh, RowPolicy};
use super::standards::{CMDS, Cmd};
use super::stats::DramStats;
use super::timing::{Rule, Simple};

const NIL: u16 = u16::MAX;
const NEVER: u64 = u64::MAX;
/// Low bits of a selection key hold the age, the rest the ready time relative to now.
const AGE_BITS: u32 = 44;
const WORDS: usize = 4;
const FILTER: usize = 512;

const RD: usize = Cmd::Rd as usize;
const WR: usize = Cmd::Wr as usize;
const ACT: usize = Cmd::Act as usize;
const ACT2: usize = Cmd::Act2 as usize;
const PRE: usize = Cmd::Pre as usize;

/// Ready clocks by command, padded to a power of two.
type Ready = [u64; 16];

/// One command as it was issued, for logs and tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandRecord {
    /// Tick of issue.
    pub tick: u64,
    /// The command.
    pub cmd: Cmd,
    /// Flat bank, or the first bank of the scope of an all-bank command.
    pub bank: u32,
    /// Address of the request it serves; `None` for refresh and its precharges.
    pub addr: Option<u64>,
    /// The request is a write.
    pub write: bool,
}

pub(crate) trait Log {
    fn log(&mut self, clk: u64, cmd: Cmd, bank: usize, addr: Option<u64>, write: bool);
}

struct NoLog;

impl Log for NoLog {
    #[inline(always)]
    fn log(&mut self, _: u64, _: Cmd, _: usize, _: Option<u64>, _: bool) {}
}

impl Log for Vec<CommandRecord> {
    fn log(&mut self, clk: u64, cmd: Cmd, bank: usize, addr: Option<u64>, write: bool) {
        self.push(CommandRecord { tick: clk - 1, cmd, bank: bank as u32, addr, write });
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Front {
    at: u64,
    addr: u64,
    tag: u32,
    write: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    addr: u64,
    /// Age: order of acceptance.
    seq: u64,
    /// Clock before the tick of acceptance.
    arrive: u64,
    /// Refresh time accumulated before acceptance.
    refreshed: u64,
    /// Clock of the first precharge or activate issued for this request, 0 if none.
    opened: u64,
    row: u32,
    tag: u32,
    next: u16,
    bank: u16,
    write: bool,
    /// Its first command was counted as hit, miss or conflict.
    counted: bool,
}

/// Heads and tails of a bank's two lists in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lists {
    hit: u16,
    hit_tail: u16,
    miss: u16,
    miss_tail: u16,
}

const NO_LISTS: Lists = Lists { hit: NIL, hit_tail: NIL, miss: NIL, miss_tail: NIL };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BankState {
    Closed,
    Activating,
    Open,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Active {
    arrive: u64,
    entry: u16,
    bank: u16,
    write: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Act2 {
    entry: u16,
    bank: u16,
    deadline: u64,
}

/// A refresh that is due: banks `lo..hi`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Due {
    lo: u16,
    hi: u16,
    single: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pending {
    depart: u64,
    tag: u32,
}

/// HBM3: the row command of the last rising edge and the falling edge on which its pairing rule applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rising {
    edge: u64,
    pc: u32,
    /// Bank, or `u32::MAX` for an all-bank command.
    bank: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Active(u16),
    Queue,
    Due,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cand {
    time: u64,
    cmd: Cmd,
    bank: u16,
    source: Source,
    write: bool,
}

const NO_CAND: Cand = Cand { time: NEVER, cmd: Cmd::Rd, bank: 0, source: Source::Queue, write: false };

/// One channel: all state, apart from the spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    /// Next clock to process.
    clk: u64,
    front: VecDeque<Front>,
    entries: Vec<Entry>,
    free: u16,
    /// Per direction (reads, writes), per bank.
    lists: [Vec<Lists>; 2],
    /// Ages of the heads, per direction.
    hit_seq: [Vec<u64>; 2],
    miss_seq: [Vec<u64>; 2],
    len: [u32; 2],
    /// Banks with a hit list, with a miss list behind an open row, with a miss list and closed; per direction.
    col: [[u64; WORDS]; 2],
    pre: [[u64; WORDS]; 2],
    act: [[u64; WORDS]; 2],
    state: Vec<BankState>,
    row: Vec<u32>,
    /// Bit per bank: a request of the active list waits on it.
    held: [u64; WORDS],
    /// Ready clocks of every command per top node, group and bank.
    top_ready: Vec<Ready>,
    group_ready: Vec<Ready>,
    bank_ready: Vec<Ready>,
    rings: Vec<u64>,
    /// Clock of the last issue per (command, bank), for the rules that delay refreshes.
    last: Vec<u64>,
    active: Vec<Active>,
    due: VecDeque<Due>,
    next_refresh: u64,
    next_refresh_bank: u32,
    due_since: u64,
    refresh_time: u64,
    write_mode: bool,
    seq: u64,
    pending: VecDeque<Pending>,
    last_depart: u64,
    act2: Option<Act2>,
    cas: Option<Cand>,
    wck_expiry: u64,
    rising: Rising,
    /// Counts of queued writes by address hash.
    filter: Vec<u8>,
    queue_since: [u64; 2],
    /// No event before this clock.
    next_event: u64,
    stats: DramStats,
}

/// No bank.
const NONE: usize = usize::MAX;

/// Selection key that only commands before the clock `before` beat.
#[inline(always)]
fn bound(t: u64, before: u64) -> u64 {
    let ticks = before.wrapping_sub(t);
    if ticks >> (64 - AGE_BITS) != 0 { NEVER } else { ticks << AGE_BITS }
}

#[inline(always)]
fn any(mask: &[u64; WORDS]) -> bool {
    mask[0] | mask[1] | mask[2] | mask[3] != 0
}

#[inline]
fn hash(addr: u64) -> usize {
    (addr.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - FILTER.trailing_zeros())) as usize
}

#[inline]
fn set(mask: &mut [u64; WORDS], bit: usize, on: bool) {
    let (w, b) = (bit >> 6 & (WORDS - 1), bit & 63);
    mask[w] = mask[w] & !(1 << b) | u64::from(on) << b;
}

#[inline]
fn get(mask: &[u64; WORDS], bit: usize) -> bool {
    mask[bit >> 6 & (WORDS - 1)] >> (bit & 63) & 1 != 0
}

impl Channel {
    /// An idle channel with all banks closed at tick 0.
    pub fn new(spec: &DramSpec) -> Channel {
        let t = &spec.table;
        let slots = (spec.read_queue + spec.write_queue) as usize + t.banks + 1;
        let blank = Entry {
            addr: 0,
            seq: 0,
            arrive: 0,
            refreshed: 0,
            opened: 0,
            row: 0,
            tag: 0,
            next: NIL,
            bank: 0,
            write: false,
            counted: false,
        };
        let entries = (0..slots).map(|i| Entry { next: if i + 1 < slots { i as u16 + 1 } else { NIL }, ..blank });
        Channel {
            clk: 1,
            front: VecDeque::with_capacity(64),
            entries: entries.collect(),
            free: 0,
            lists: [vec![NO_LISTS; t.banks], vec![NO_LISTS; t.banks]],
            hit_seq: [vec![0; t.banks], vec![0; t.banks]],
            miss_seq: [vec![0; t.banks], vec![0; t.banks]],
            len: [0; 2],
            col: [[0; WORDS]; 2],
            pre: [[0; WORDS]; 2],
            act: [[0; WORDS]; 2],
            state: vec![BankState::Closed; t.banks],
            row: vec![0; t.banks],
            held: [0; WORDS],
            top_ready: vec![[0; 16]; t.tops],
            group_ready: vec![[0; 16]; t.groups],
            bank_ready: vec![[0; 16]; t.banks],
            rings: vec![0; t.ring_slots],
            last: vec![0; CMDS * t.banks],
            active: Vec::with_capacity(t.banks),
            due: VecDeque::with_capacity(16),
            next_refresh: match spec.refresh {
                Refresh::None => NEVER,
                Refresh::AllBank { interval, .. } | Refresh::PerBank { interval } => interval.into(),
            },
            next_refresh_bank: 0,
            due_since: 0,
            refresh_time: 0,
            write_mode: false,
            seq: 0,
            pending: VecDeque::with_capacity(spec.read_latency as usize + 64),
            last_depart: 0,
            act2: None,
            cas: None,
            wck_expiry: 0,
            rising: Rising { edge: 0, pc: 0, bank: 0 },
            filter: vec![0; FILTER],
            queue_since: [0; 2],
            next_event: 1,
            stats: DramStats::default(),
        }
    }

    /// Puts a request into the channel's unbounded front queue.
    ///
    /// It is offered to the controller from DRAM tick `at` on, in push order, at most `accepts_per_tick` per tick, the
    /// head blocking while its queue is full. `addr` is the byte address inside the channel. Calls come in
    /// non-decreasing `at`, none before a horizon that was already simulated.
    #[inline]
    pub fn push(&mut self, at: u64, addr: u64, write: bool, tag: u32) {
        self.front.push_back(Front { at, addr, tag, write });
    }

    /// Offers a request at the current tick, past the front queue; `false` if its queue is full.
    ///
    /// The current tick is the horizon of the last `advance`. A coalesced write completes at once.
    pub fn try_accept(&mut self, spec: &DramSpec, addr: u64, write: bool, tag: u32, out: &mut Vec<(u64, u32)>) -> bool {
        let f = Front { at: self.clk - 1, addr, tag, write };
        let done = self.enqueue(spec, f, self.clk, out);
        if done {
            self.next_event = self.clk;
        }
        done
    }

    /// Simulates all ticks before `horizon`.
    ///
    /// Every request with `at < horizon` must have been pushed. Completions (tick, tag) are appended in the order in
    /// which the controller makes them: reads when their data has returned, writes when their column command issues.
    pub fn advance(&mut self, spec: &DramSpec, horizon: u64, out: &mut Vec<(u64, u32)>) {
        self.advance_with(spec, horizon, out, &mut NoLog);
    }

    /// As [`Channel::advance`], and appends every command to `log`.
    pub fn advance_logged(
        &mut self,
        spec: &DramSpec,
        horizon: u64,
        out: &mut Vec<(u64, u32)>,
        log: &mut Vec<CommandRecord>,
    ) {
        self.advance_with(spec, horizon, out, log);
    }

    fn advance_with<L: Log>(&mut self, spec: &DramSpec, horizon: u64, out: &mut Vec<(u64, u32)>, log: &mut L) {
        if horizon < self.clk {
            return;
        }
        match spec.bus {
            Bus::Single => self.run_single::<false, L>(spec, horizon, out, log),
            Bus::Lpddr => self.run_single::<true, L>(spec, horizon, out, log),
            Bus::Dual => self.run_dual::<false, L>(spec, horizon, out, log),
            Bus::DualHalf => self.run_dual::<true, L>(spec, horizon, out, log),
        }
        self.flush(horizon, out);
    }

    /// A tick before which no completion can happen although nothing further is pushed; `u64::MAX` when idle.
    pub fn next_activity(&self, spec: &DramSpec) -> u64 {
        let mut t = self.pending.front().map_or(NEVER, |p| p.depart - 1);
        let waiting = self.len[1] > 0
            || self.active.iter().any(|a| a.write)
            || self.act2.is_some()
            || self.cas.is_some()
            || self.front.iter().any(|f| f.write);
        if waiting {
            t = t.min(self.next_event.max(self.clk) - 1);
        } else if self.len[0] > 0 || !self.active.is_empty() {
            t = t.min((self.next_event.max(self.clk) - 1).saturating_add(spec.read_latency.into()));
        }
        if let Some(f) = self.front.front() {
            t = t.min(f.at.max(self.clk - 1));
        }
        t
    }

    /// The next tick at which the controller may do anything; nothing changes before it unless something is pushed.
    pub fn next_event(&self) -> u64 {
        let mut t = self.next_event.max(self.clk);
        if let Some(f) = self.front.front() {
            t = t.min((f.at + 1).max(self.clk));
        }
        t - 1
    }

    /// Requests accepted or waiting and not completed.
    pub fn outstanding(&self) -> usize {
        self.front.len()
            + self.len[0] as usize
            + self.len[1] as usize
            + self.active.len()
            + usize::from(self.act2.is_some())
            + self.pending.len()
    }

    /// Whether nothing is waiting or under way.
    pub fn is_idle(&self) -> bool {
        self.outstanding() == 0
    }

    /// Free entries of the read and of the write queue.
    pub fn room(&self, spec: &DramSpec) -> (u32, u32) {
        (spec.read_queue - self.len[0], spec.write_queue - self.len[1])
    }

    /// Counters up to the last horizon.
    pub fn stats(&self) -> &DramStats {
        &self.stats
    }

    // ---- acceptance ------------------------------------------------------------------------------------------------

    fn queued_write(&self, bank: usize, addr: u64) -> bool {
        if self.filter[hash(addr)] == 0 {
            return false;
        }
        let l = self.lists[1][bank];
        for mut i in [l.hit, l.miss] {
            while i != NIL {
                let e = &self.entries[i as usize];
                if e.addr == addr {
                    return true;
                }
                i = e.next;
            }
        }
        false
    }

    #[inline]
    fn enqueue(&mut self, spec: &DramSpec, f: Front, t: u64, out: &mut Vec<(u64, u32)>) -> bool {
        let (bank, row) = spec.map.bank_row(f.addr);
        let b = bank as usize;
        let d = usize::from(f.write);
        if self.len[1] > 0 && self.queued_write(b, f.addr) {
            self.stats.wait_queue += t - 1 - f.at;
            if f.write {
                self.stats.writes += 1;
                self.stats.coalesced += 1;
                self.flush(t - 1, out);
                out.push((t - 1, f.tag));
            } else {
                self.stats.reads += 1;
                self.stats.forwarded += 1;
                self.depart(t, t - 1, f.tag);
            }
            return true;
        }
        let cap = if f.write { spec.write_queue } else { spec.read_queue };
        if self.len[d] >= cap {
            return false;
        }
        self.stats.wait_queue += t - 1 - f.at;
        self.count_queue(d, t);
        self.len[d] += 1;
        if f.write {
            self.filter[hash(f.addr)] += 1;
        }
        let i = self.free;
        let e = &mut self.entries[i as usize];
        self.free = e.next;
        let seq = self.seq;
        self.seq += 1;
        *e = Entry {
            addr: f.addr,
            seq,
            arrive: t - 1,
            refreshed: self.refresh_time,
            opened: 0,
            row,
            tag: f.tag,
            next: NIL,
            bank: bank as u16,
            write: f.write,
            counted: false,
        };
        let l = &mut self.lists[d][b];
        if self.state[b] == BankState::Open && self.row[b] == row {
            if l.hit == NIL {
                l.hit = i;
                self.hit_seq[d][b] = seq;
                set(&mut self.col[d], b, true);
            } else {
                self.entries[l.hit_tail as usize].next = i;
            }
            l.hit_tail = i;
        } else {
            if l.miss == NIL {
                l.miss = i;
                self.miss_seq[d][b] = seq;
                match self.state[b] {
                    BankState::Open => set(&mut self.pre[d], b, !get(&self.held, b)),
                    BankState::Closed => set(&mut self.act[d], b, true),
                    BankState::Activating => {}
                }
            } else {
                self.entries[l.miss_tail as usize].next = i;
            }
            l.miss_tail = i;
        }
        true
    }

    #[inline]
    fn count_queue(&mut self, d: usize, t: u64) {
        // The reference samples lengths at the start of a tick, after acceptance.
        let ticks = t.wrapping_sub(self.queue_since[d] + 1);
        let sum = u64::from(self.len[d]).wrapping_mul(ticks);
        if d == 0 {
            self.stats.read_queue_ticks += sum;
        } else {
            self.stats.write_queue_ticks += sum;
        }
        self.queue_since[d] = t - 1;
    }

    /// Accepts what tick `t` may accept; returns the clock at which the front queue needs attention again.
    #[inline]
    fn admit(&mut self, spec: &DramSpec, t: u64, out: &mut Vec<(u64, u32)>) -> u64 {
        let mut left = spec.accepts_per_tick;
        while let Some(&f) = self.front.front() {
            if f.at >= t {
                return f.at + 1;
            }
            if left == 0 {
                return t + 1;
            }
            if !self.enqueue(spec, f, t, out) {
                return NEVER;
            }
            self.front.pop_front();
            left -= 1;
        }
        NEVER
    }

    // ---- completion ------------------------------------------------------------------------------------------------

    #[inline]
    fn depart(&mut self, depart: u64, arrive: u64, tag: u32) {
        // Reads leave in order; a forwarded read waits for those before it.
        let depart = depart.max(self.last_depart);
        self.last_depart = depart;
        self.stats.latency(depart - arrive);
        self.pending.push_back(Pending { depart, tag });
    }

    #[inline]
    fn flush(&mut self, clk: u64, out: &mut Vec<(u64, u32)>) {
        while let Some(&p) = self.pending.front() {
            if p.depart > clk {
                break;
            }
            self.pending.pop_front();
            out.push((p.depart - 1, p.tag));
        }
    }

    // ---- timing ----------------------------------------------------------------------------------------------------

    #[inline(always)]
    fn ready(&self, spec: &DramSpec, cmd: usize, bank: usize) -> u64 {
        let (t, c) = (&spec.table, cmd & 15);
        self.top_ready[bank.wrapping_shr(t.top_shift)][c]
            .max(self.group_ready[bank.wrapping_shr(t.bank_shift)][c])
            .max(self.bank_ready[bank][c])
    }

    /// Ready clock of a refresh command, or of the precharge for it, over banks `lo..hi` below a node of `scope`.
    fn ready_all(&self, spec: &DramSpec, cmd: Cmd, lo: usize, hi: usize, scope: u8) -> u64 {
        let t = &spec.table;
        let mut ready = (lo..hi).map(|b| self.ready(spec, cmd as usize, b)).max().unwrap_or(0);
        for r in t.late.iter().filter(|r| r.target == cmd as u8) {
            let (mut from, mut to) = (lo, hi);
            if r.level <= scope {
                let shift = t.level_shift[r.level as usize];
                from = lo >> shift << shift;
                to = from + (1 << shift);
            }
            let base = r.before as usize * t.banks;
            let last = self.last[base + from..base + to].iter().copied().max().unwrap_or(0);
            if last > 0 {
                ready = ready.max(last + u64::from(r.cycles));
            }
        }
        ready
    }

    #[inline(always)]
    fn ring(rings: &mut [u64], first: usize, window: usize, node: usize, t: u64) -> Option<u64> {
        let ring = &mut rings[first + node * window..first + (node + 1) * window];
        for i in (1..window).rev() {
            ring[i] = ring[i - 1];
        }
        ring[0] = t;
        (ring[window - 1] > 0).then_some(ring[window - 1])
    }

    /// Raises the ready time of `target` for all banks `lo..hi`, which are whole nodes of some level.
    fn raise(&mut self, spec: &DramSpec, target: u8, lo: usize, hi: usize, when: u64) {
        let tb = &spec.table;
        let (list, shift) = if (lo | hi) & ((1 << tb.top_shift) - 1) == 0 {
            (&mut self.top_ready, tb.top_shift)
        } else if (lo | hi) & ((1 << tb.bank_shift) - 1) == 0 {
            (&mut self.group_ready, tb.bank_shift)
        } else {
            (&mut self.bank_ready, 0)
        };
        for x in &mut list[lo >> shift..hi >> shift] {
            let x = &mut x[target as usize & 15];
            *x = (*x).max(when);
        }
    }

    /// Applies the timing rules of a command to one bank.
    #[inline]
    fn touch(&mut self, spec: &DramSpec, cmd: Cmd, bank: usize, t: u64) {
        let tb = &spec.table;
        let e = &tb.effects[cmd as usize];
        if tb.stamped[cmd as usize] {
            self.last[cmd as usize * tb.banks + bank] = t;
        }
        #[inline(always)]
        fn lift(ready: &mut Ready, rules: &[Simple], t: u64) {
            for r in rules {
                let x = &mut ready[r.target as usize & 15];
                *x = (*x).max(t.wrapping_add(r.cycles.into()));
            }
        }
        lift(&mut self.bank_ready[bank], &e.bank, t);
        if !e.group.is_empty() {
            lift(&mut self.group_ready[bank.wrapping_shr(tb.bank_shift)], &e.group, t);
        }
        let top = bank.wrapping_shr(tb.top_shift);
        lift(&mut self.top_ready[top], &e.top, t);
        for r in &e.windows {
            let ring = Channel::ring(&mut self.rings, r.ring as usize, r.window.into(), top, t);
            if let Some(from) = ring {
                let x = &mut self.top_ready[top][r.target as usize & 15];
                *x = (*x).max(from.wrapping_add(r.cycles.into()));
            }
        }
        for r in &e.other {
            self.apply(spec, r, bank, t);
        }
    }

    /// Applies one rule at the node of `bank`, or at that node's siblings.
    fn apply(&mut self, spec: &DramSpec, r: &Rule, bank: usize, t: u64) {
        let tb = &spec.table;
        let shift = tb.level_shift[r.level as usize];
        let node = bank >> shift;
        let mut from = t;
        if r.window > 1 {
            match Channel::ring(&mut self.rings, r.ring as usize, r.window.into(), node, t) {
                Some(x) => from = x,
                None => return,
            }
        }
        let when = from + u64::from(r.cycles);
        let (lo, hi) = (node << shift, (node + 1) << shift);
        if r.sibling {
            let up = tb.level_shift[(r.level as usize).saturating_sub(1)];
            let (first, last) = (bank >> up << up, ((bank >> up) + 1) << up);
            self.raise(spec, r.target, first, lo, when);
            self.raise(spec, r.target, hi, last, when);
        } else {
            self.raise(spec, r.target, lo, hi, when);
        }
    }

    /// Applies the timing rules of an all-bank command to all nodes above, at and below its scope.
    fn touch_all(&mut self, spec: &DramSpec, cmd: Cmd, lo: usize, hi: usize, scope: u8, t: u64) {
        let tb = &spec.table;
        if tb.stamped[cmd as usize] {
            self.last[cmd as usize * tb.banks + lo..cmd as usize * tb.banks + hi].fill(t);
        }
        for r in &tb.effects[cmd as usize].all {
            let shift = tb.level_shift[r.level as usize];
            if r.sibling && r.level > scope {
                // Below the scope every node is a target, none a sibling.
                continue;
            }
            for node in lo >> shift..=(hi - 1) >> shift {
                self.apply(spec, r, (node << shift).max(lo), t);
            }
        }
    }

    // ---- selection -------------------------------------------------------------------------------------------------

    #[inline]
    fn set_write_mode(&mut self, spec: &DramSpec) {
        if self.write_mode {
            if self.len[1] < spec.drain_below && self.len[0] != 0 {
                self.write_mode = false;
            }
        } else if self.len[1] > spec.drain_above || self.len[0] == 0 {
            self.write_mode = true;
        }
    }

    /// The active request that can go first; ties by arrival, then by order of activation.
    #[inline]
    fn best_active<const HALF: bool>(&self, spec: &DramSpec, t: u64) -> Cand {
        let mut best = NO_CAND;
        let mut arrive = NEVER;
        for (i, a) in self.active.iter().enumerate() {
            let cmd = if a.write { Cmd::Wr } else { Cmd::Rd };
            let mut time = self.ready(spec, cmd as usize, a.bank.into()).max(t);
            if HALF {
                time |= 1;
            }
            if (time, a.arrive) < (best.time, arrive) {
                best = Cand { time, cmd, bank: a.bank, source: Source::Active(i as u16), write: a.write };
                arrive = a.arrive;
            }
        }
        best
    }

    /// Lowers `best` to the best (key, bank) among `mask`, whose banks all need `cmd`; `odd` rounds up to a rising edge.
    #[inline(always)]
    fn scan(
        &self,
        spec: &DramSpec,
        cmd: usize,
        mask: &[u64; WORDS],
        ages: &[u64],
        t: u64,
        odd: bool,
        paired: bool,
        best: &mut (u64, usize),
    ) {
        let (tb, cmd) = (&spec.table, cmd & 15);
        let ages = &ages[..self.bank_ready.len()];
        let mut found = *best;
        for (top, ready) in self.top_ready.iter().enumerate() {
            let base = ready[cmd].max(t);
            if base.wrapping_sub(t) << AGE_BITS > found.0 {
                continue;
            }
            let lo = top.wrapping_shl(tb.top_shift);
            let hi = lo.wrapping_add(1usize.wrapping_shl(tb.top_shift));
            let mut w = lo >> 6;
            loop {
                let mut m = mask[w & (WORDS - 1)];
                if tb.top_shift < 6 {
                    m &= 1u64.wrapping_shl(1 << tb.top_shift).wrapping_sub(1).wrapping_shl(lo as u32 & 63);
                }
                while m != 0 {
                    let b = w.wrapping_mul(64) | m.trailing_zeros() as usize;
                    m &= m.wrapping_sub(1);
                    let group = self.group_ready[b.wrapping_shr(tb.bank_shift)][cmd];
                    let mut time = group.max(self.bank_ready[b][cmd]).max(base);
                    if odd {
                        time |= 1;
                    }
                    if paired && time == self.rising.edge && self.pairing_blocks(spec, b) {
                        time = time.wrapping_add(1);
                    }
                    let key = time.wrapping_sub(t) << AGE_BITS | ages[b];
                    if key < found.0 {
                        found = (key, b);
                    }
                }
                w = w.wrapping_add(1);
                if w << 6 >= hi {
                    break;
                }
            }
        }
        *best = found;
    }

    /// Best (key, bank) over the hit lists of direction `d`.
    #[inline]
    fn scan_col<const HALF: bool>(&self, spec: &DramSpec, d: usize, t: u64, before: u64) -> (u64, usize) {
        let mut best = (bound(t, before), NONE);
        if any(&self.col[d]) {
            let cmd = if d == 0 { RD } else { WR };
            self.scan(spec, cmd, &self.col[d], &self.hit_seq[d], t, HALF, false, &mut best);
        }
        best
    }

    /// Best (key, bank) over precharges and activates of direction `d`.
    #[inline]
    fn scan_row<const HALF: bool>(
        &self,
        spec: &DramSpec,
        d: usize,
        t: u64,
        activate: bool,
        before: u64,
    ) -> (u64, usize) {
        let mut best = (bound(t, before), NONE);
        if any(&self.pre[d]) {
            self.scan(spec, PRE, &self.pre[d], &self.miss_seq[d], t, false, HALF, &mut best);
        }
        if activate && any(&self.act[d]) {
            self.scan(spec, ACT, &self.act[d], &self.miss_seq[d], t, HALF, false, &mut best);
        }
        best
    }

    /// HBM3: a precharge of `bank` may not pair with the row command of the rising edge before.
    #[inline]
    fn pairing_blocks(&self, spec: &DramSpec, bank: usize) -> bool {
        self.rising.pc == pc_of(spec, bank) && (self.rising.bank == u32::MAX || self.rising.bank == bank as u32)
    }

    /// The command of the oldest refresh that is due.
    fn best_due<const HALF: bool>(&self, spec: &DramSpec, t: u64) -> Cand {
        let Some(&d) = self.due.front() else { return NO_CAND };
        let (lo, hi) = (d.lo as usize, d.hi as usize);
        let open = (lo..hi).any(|b| self.state[b] != BankState::Closed);
        let cmd = match (d.single, open) {
            (false, true) => Cmd::PreAll,
            (false, false) => Cmd::RefAll,
            (true, true) => Cmd::Pre,
            (true, false) => Cmd::RefBank,
        };
        if open && (lo..hi).any(|b| get(&self.held, b)) {
            return NO_CAND;
        }
        if self.act2.is_some_and(|a| (d.lo..d.hi).contains(&a.bank)) {
            return NO_CAND;
        }
        let scope = match spec.refresh {
            Refresh::AllBank { level, .. } => level,
            _ => spec.table.bank_level,
        };
        let mut time = self.ready_all(spec, cmd, lo, hi, scope).max(t);
        if HALF {
            if open {
                let pc = if hi - lo == spec.table.banks && !d.single { u32::MAX } else { pc_of(spec, lo) };
                let blocked = self.rising.pc == pc
                    && (!d.single || self.rising.bank == u32::MAX || self.rising.bank == lo as u32);
                if time == self.rising.edge && blocked {
                    time += 1;
                }
            } else {
                time |= 1;
            }
        }
        Cand { time, cmd, bank: d.lo, source: Source::Due, write: false }
    }

    #[inline]
    fn row_cand(&self, d: usize, t: u64, (key, b): (u64, usize)) -> Cand {
        if b == NONE {
            return NO_CAND;
        }
        let cmd = if self.state[b] == BankState::Open { Cmd::Pre } else { Cmd::Act };
        Cand { time: t + (key >> AGE_BITS), cmd, bank: b as u16, source: Source::Queue, write: d == 1 }
    }

    #[inline]
    fn col_cand(&self, d: usize, t: u64, (key, b): (u64, usize)) -> Cand {
        if b == NONE {
            return NO_CAND;
        }
        let cmd = if d == 0 { Cmd::Rd } else { Cmd::Wr };
        Cand { time: t + (key >> AGE_BITS), cmd, bank: b as u16, source: Source::Queue, write: d == 1 }
    }

    // ---- bank state ------------------------------------------------------------------------------------------------

    fn open(&mut self, b: usize, row: u32) {
        self.state[b] = BankState::Open;
        self.row[b] = row;
        for d in 0..2 {
            set(&mut self.act[d], b, false);
            let mut l = self.lists[d][b];
            if l.miss == NIL {
                continue;
            }
            // Split the waiting requests into those of this row and the others; both keep their order.
            let (mut i, mut other) = (l.miss, NO_LISTS);
            while i != NIL {
                let e = self.entries[i as usize];
                let (head, tail) = if e.row == row {
                    (&mut other.hit, &mut other.hit_tail)
                } else {
                    (&mut other.miss, &mut other.miss_tail)
                };
                if *head == NIL {
                    *head = i;
                } else {
                    self.entries[*tail as usize].next = i;
                }
                *tail = i;
                i = e.next;
            }
            for tail in [other.hit_tail, other.miss_tail] {
                if tail != NIL {
                    self.entries[tail as usize].next = NIL;
                }
            }
            l = other;
            if l.hit != NIL {
                self.hit_seq[d][b] = self.entries[l.hit as usize].seq;
                set(&mut self.col[d], b, true);
            }
            if l.miss != NIL {
                self.miss_seq[d][b] = self.entries[l.miss as usize].seq;
            }
            self.lists[d][b] = l;
        }
        self.update_pre(b);
    }

    #[inline]
    fn update_pre(&mut self, b: usize) {
        let able = self.state[b] == BankState::Open && !get(&self.held, b);
        for d in 0..2 {
            let on = able && self.lists[d][b].miss != NIL;
            set(&mut self.pre[d], b, on);
        }
    }

    fn close(&mut self, b: usize) {
        self.state[b] = BankState::Closed;
        for d in 0..2 {
            set(&mut self.pre[d], b, false);
            let l = self.lists[d][b];
            if l.hit != NIL {
                set(&mut self.col[d], b, false);
                let merged = self.merge(l);
                self.lists[d][b] = merged;
                self.miss_seq[d][b] = self.entries[merged.miss as usize].seq;
            }
            let on = self.lists[d][b].miss != NIL;
            set(&mut self.act[d], b, on);
        }
    }

    /// Both lists as one, by age.
    fn merge(&mut self, l: Lists) -> Lists {
        let (mut x, mut y) = (l.hit, l.miss);
        let mut out = NO_LISTS;
        while x != NIL || y != NIL {
            let first = y == NIL || (x != NIL && self.entries[x as usize].seq < self.entries[y as usize].seq);
            let i = if first { x } else { y };
            let next = self.entries[i as usize].next;
            if first {
                x = next;
            } else {
                y = next;
            }
            if out.miss == NIL {
                out.miss = i;
            } else {
                self.entries[out.miss_tail as usize].next = i;
            }
            out.miss_tail = i;
        }
        if out.miss_tail != NIL {
            self.entries[out.miss_tail as usize].next = NIL;
        }
        out
    }

    #[inline]
    fn pop_hit(&mut self, d: usize, b: usize) -> u16 {
        let l = &mut self.lists[d][b];
        let i = l.hit;
        l.hit = self.entries[i as usize].next;
        if l.hit == NIL {
            set(&mut self.col[d], b, false);
        } else {
            self.hit_seq[d][b] = self.entries[l.hit as usize].seq;
        }
        i
    }

    #[inline]
    fn pop_miss(&mut self, d: usize, b: usize) -> u16 {
        let l = &mut self.lists[d][b];
        let i = l.miss;
        l.miss = self.entries[i as usize].next;
        if l.miss == NIL {
            l.miss_tail = NIL;
        } else {
            self.miss_seq[d][b] = self.entries[l.miss as usize].seq;
        }
        i
    }

    #[inline]
    fn leave_queue(&mut self, i: u16, t: u64) {
        let e = &self.entries[i as usize];
        let (d, addr) = (usize::from(e.write), e.addr);
        // The entry leaves in tick `t`; it still counts for that tick.
        self.count_queue(d, t + 1);
        self.len[d] -= 1;
        if d == 1 {
            self.filter[hash(addr)] -= 1;
        }
    }

    #[inline]
    fn hold(&mut self, b: usize, on: bool) {
        set(&mut self.held, b, on);
        self.update_pre(b);
    }

    // ---- issue -----------------------------------------------------------------------------------------------------

    #[inline]
    fn count_first(&mut self, spec: &DramSpec, i: u16, cmd: Cmd, t: u64) {
        let e = &mut self.entries[i as usize];
        if matches!(cmd, Cmd::Pre | Cmd::Act) && e.opened == 0 {
            e.opened = t;
        }
        if e.counted {
            return;
        }
        e.counted = true;
        match (cmd, spec.stats_after_command) {
            (Cmd::Pre, false) => self.stats.conflicts += 1,
            (Cmd::Pre, true) | (Cmd::Act, false) => self.stats.misses += 1,
            _ => self.stats.hits += 1,
        }
    }

    fn retire(&mut self, spec: &DramSpec, i: u16, t: u64, out: &mut Vec<(u64, u32)>) {
        let e = self.entries[i as usize];
        self.stats.bus_busy += u64::from(spec.burst);
        let wait = t - 1 - e.arrive;
        let mut refresh = self.refresh_time - e.refreshed;
        if !self.due.is_empty() {
            refresh += t.saturating_sub(self.due_since.max(e.arrive));
        }
        let refresh = refresh.min(wait);
        let bank = if e.opened == 0 { 0 } else { t - e.opened }.min(wait - refresh);
        self.stats.wait_refresh += refresh;
        self.stats.wait_bank += bank;
        self.stats.wait_bus += wait - refresh - bank;
        if e.write {
            self.stats.writes += 1;
            self.flush(t, out);
            out.push((t - 1, e.tag));
        } else {
            self.stats.reads += 1;
            self.depart(t + u64::from(spec.read_latency), e.arrive, e.tag);
        }
        self.entries[i as usize].next = self.free;
        self.free = i;
    }

    /// Issues a candidate at clock `t`.
    #[inline]
    fn issue<const LP: bool, L: Log>(
        &mut self,
        spec: &DramSpec,
        c: Cand,
        t: u64,
        out: &mut Vec<(u64, u32)>,
        log: &mut L,
    ) {
        let b = c.bank as usize;
        let d = usize::from(c.write);
        match (c.source, c.cmd) {
            (Source::Due, _) => self.issue_due(spec, c, t, log),
            (Source::Active(i), _) => {
                let a = self.active.remove(i as usize);
                self.hold(b, false);
                self.column(spec, a.entry, c, t, out, log);
            }
            (Source::Queue, Cmd::Pre) => {
                let i = self.lists[d][b].miss;
                self.count_first(spec, i, Cmd::Pre, t);
                log.log(t, Cmd::Pre, b, Some(self.entries[i as usize].addr), c.write);
                self.stats.precharges += 1;
                self.touch(spec, Cmd::Pre, b, t);
                self.close(b);
            }
            (Source::Queue, Cmd::Act) => {
                let i = self.pop_miss(d, b);
                self.count_first(spec, i, Cmd::Act, t);
                let e = self.entries[i as usize];
                log.log(t, Cmd::Act, b, Some(e.addr), c.write);
                self.stats.activates += 1;
                self.touch(spec, Cmd::Act, b, t);
                self.leave_queue(i, t);
                if LP {
                    self.state[b] = BankState::Activating;
                    for d in 0..2 {
                        set(&mut self.act[d], b, false);
                    }
                    self.act2 = Some(Act2 { entry: i, bank: b as u16, deadline: t + spec.table.act2_limit });
                } else {
                    self.promote(i, b);
                    self.open(b, e.row);
                }
            }
            (Source::Queue, _) => {
                let i = self.pop_hit(d, b);
                self.leave_queue(i, t);
                self.column(spec, i, c, t, out, log);
            }
        }
    }

    fn promote(&mut self, i: u16, b: usize) {
        let e = &self.entries[i as usize];
        self.active.push(Active { arrive: e.arrive, entry: i, bank: b as u16, write: e.write });
        set(&mut self.held, b, true);
    }

    #[inline]
    fn column<L: Log>(
        &mut self,
        spec: &DramSpec,
        i: u16,
        c: Cand,
        t: u64,
        out: &mut Vec<(u64, u32)>,
        log: &mut L,
    ) {
        let b = c.bank as usize;
        self.count_first(spec, i, c.cmd, t);
        let mut cmd = c.cmd;
        if spec.row_policy == RowPolicy::Closed {
            let closing = if c.write { Cmd::WrA } else { Cmd::RdA };
            let wanted = self.lists[0][b].hit != NIL || self.lists[1][b].hit != NIL || get(&self.held, b);
            if !wanted && self.ready(spec, closing as usize, b) <= t {
                cmd = closing;
            }
        }
        log.log(t, cmd, b, Some(self.entries[i as usize].addr), c.write);
        self.touch(spec, cmd, b, t);
        if cmd != c.cmd {
            self.stats.precharges += 1;
            self.close(b);
        }
        self.retire(spec, i, t, out);
    }

    fn issue_due<L: Log>(&mut self, spec: &DramSpec, c: Cand, t: u64, log: &mut L) {
        let Some(&d) = self.due.front() else { return };
        let (lo, hi) = (d.lo as usize, d.hi as usize);
        log.log(t, c.cmd, lo, None, false);
        if d.single {
            self.touch(spec, c.cmd, lo, t);
        } else {
            let scope = match spec.refresh {
                Refresh::AllBank { level, .. } => level,
                _ => 0,
            };
            self.touch_all(spec, c.cmd, lo, hi, scope, t);
        }
        if matches!(c.cmd, Cmd::Pre | Cmd::PreAll) {
            self.stats.precharges += 1;
            for b in lo..hi {
                if self.state[b] != BankState::Closed {
                    self.close(b);
                }
            }
        } else {
            self.stats.refreshes += 1;
            self.due.pop_front();
            if self.due.is_empty() {
                self.refresh_time += t - self.due_since + spec.table.refresh_ticks;
            }
        }
    }

    /// Puts the refreshes of clock `t` into the line of due ones.
    fn add_due(&mut self, spec: &DramSpec, t: u64) {
        if self.due.is_empty() {
            self.due_since = t;
        }
        let banks = spec.table.banks as u32;
        match spec.refresh {
            Refresh::None => {}
            Refresh::AllBank { interval, level } => {
                self.next_refresh += u64::from(interval);
                let nodes: u32 = spec.levels[..=level as usize].iter().product();
                let each = banks / nodes;
                for n in 0..nodes {
                    self.due.push_back(Due { lo: (n * each) as u16, hi: ((n + 1) * each) as u16, single: false });
                }
            }
            Refresh::PerBank { interval } => {
                self.next_refresh += u64::from(interval);
                let b = self.next_refresh_bank as u16;
                self.due.push_back(Due { lo: b, hi: b + 1, single: true });
                self.next_refresh_bank = (self.next_refresh_bank + 1) % banks;
            }
        }
    }

    // ---- the two kinds of command bus ------------------------------------------------------------------------------

    /// One command per tick: DDR4, DDR5, GDDR6 and, with `LP`, LPDDR5.
    fn run_single<const LP: bool, L: Log>(
        &mut self,
        spec: &DramSpec,
        end: u64,
        out: &mut Vec<(u64, u32)>,
        log: &mut L,
    ) {
        let mut t = self.clk;
        let mut event = NEVER;
        while t <= end {
            if t == self.next_refresh {
                self.add_due(spec, t);
            }
            let arrival = self.admit(spec, t, out);
            let wake = arrival.min(self.next_refresh);
            if LP && let Some(c) = self.cas {
                // The access that the synchronisation was for; nothing else may go first.
                let time = self.ready(spec, c.cmd as usize, c.bank.into()).max(t);
                if time > t {
                    event = time;
                    t = time.min(wake);
                    continue;
                }
                self.cas = None;
                self.extend_wck(spec, c.write, t);
                self.issue::<LP, L>(spec, c, t, out, log);
                event = 0;
                t += 1;
                continue;
            }
            let second = if LP { self.act2 } else { None };
            let second_ready = match second {
                Some(a) => self.ready(spec, ACT2, a.bank.into()).max(t),
                None => NEVER,
            };
            if LP && second.is_some_and(|a| a.deadline <= t) && second_ready == t {
                self.issue_act2(spec, t, log);
                event = 0;
                t += 1;
                continue;
            }
            let mut c = self.best_active::<false>(spec, t);
            if c.time > t {
                let other = if self.due.is_empty() {
                    self.set_write_mode(spec);
                    let d = usize::from(self.write_mode);
                    let row = self.scan_row::<false>(spec, d, t, second.is_none(), c.time);
                    let col = self.scan_col::<false>(spec, d, t, c.time);
                    if col.0 < row.0 { self.col_cand(d, t, col) } else { self.row_cand(d, t, row) }
                } else {
                    self.best_due::<false>(spec, t)
                };
                if other.time < c.time {
                    c = other;
                }
            }
            if LP && second_ready < c.time {
                // Nothing else can go before it.
                if second_ready > t && second_ready >= wake.min(end + 1) {
                    event = second_ready;
                    t = wake.min(end + 1);
                    continue;
                }
                t = second_ready;
                self.issue_act2(spec, t, log);
                event = 0;
                t += 1;
                continue;
            }
            event = c.time;
            if c.time > t {
                let stop = wake.min(end + 1);
                let limit = second.map_or(NEVER, |a| a.deadline.max(t + 1));
                if stop <= c.time || limit <= c.time {
                    t = stop.min(limit);
                    continue;
                }
                t = c.time;
            }
            if LP && matches!(c.cmd, Cmd::Rd | Cmd::Wr) {
                if !spec.wck_always_on && t >= self.wck_expiry {
                    if second.is_some_and(|a| a.deadline <= t + 1) {
                        self.issue_act2(spec, t, log);
                    } else {
                        let cas = if c.write { Cmd::CasWr } else { Cmd::CasRd };
                        if self.ready(spec, cas as usize, c.bank.into()) <= t {
                            let e = match c.source {
                                Source::Active(i) => self.active[i as usize].entry,
                                _ => self.lists[usize::from(c.write)][c.bank as usize].hit,
                            };
                            log.log(t, cas, c.bank.into(), Some(self.entries[e as usize].addr), c.write);
                            self.touch(spec, cas, c.bank.into(), t);
                            self.cas = Some(c);
                        }
                    }
                    event = 0;
                    t += 1;
                    continue;
                }
                if !spec.wck_always_on {
                    self.extend_wck(spec, c.write, t);
                }
            }
            self.issue::<LP, L>(spec, c, t, out, log);
            event = 0;
            t += 1;
        }
        self.next_event = event.min(self.next_refresh).max(t);
        self.clk = t;
    }

    fn extend_wck(&mut self, spec: &DramSpec, write: bool, t: u64) {
        let span = if write { spec.table.wck_write } else { spec.table.wck_read };
        self.wck_expiry = self.wck_expiry.max(t + span);
    }

    fn issue_act2<L: Log>(&mut self, spec: &DramSpec, t: u64, log: &mut L) {
        let Some(a) = self.act2.take() else { return };
        let (b, e) = (a.bank as usize, self.entries[a.entry as usize]);
        log.log(t, Cmd::Act2, b, Some(e.addr), e.write);
        self.touch(spec, Cmd::Act2, b, t);
        self.promote(a.entry, b);
        self.open(b, e.row);
    }

    #[inline]
    fn best_row<const HALF: bool>(&self, spec: &DramSpec, free: bool, t: u64) -> Cand {
        if free {
            let d = usize::from(self.write_mode);
            let r = self.scan_row::<HALF>(spec, d, t, true, NEVER);
            self.row_cand(d, t, r)
        } else {
            self.best_due::<HALF>(spec, t)
        }
    }

    /// A column and a row command per tick: HBM, HBM2 and, with `HALF`, HBM3 in half-clock ticks.
    fn run_dual<const HALF: bool, L: Log>(
        &mut self,
        spec: &DramSpec,
        end: u64,
        out: &mut Vec<(u64, u32)>,
        log: &mut L,
    ) {
        let mut t = self.clk;
        let mut event = NEVER;
        while t <= end {
            if t == self.next_refresh {
                self.add_due(spec, t);
            }
            let arrival = self.admit(spec, t, out);
            let mut col = self.best_active::<HALF>(spec, t);
            let free = self.due.is_empty();
            if free {
                self.set_write_mode(spec);
                if col.time > t {
                    let d = usize::from(self.write_mode);
                    let c = self.scan_col::<HALF>(spec, d, t, col.time);
                    let c = self.col_cand(d, t, c);
                    if c.time < col.time {
                        col = c;
                    }
                }
            }
            let mut row = NO_CAND;
            if col.time > t {
                row = self.best_row::<HALF>(spec, free, t);
                let first = col.time.min(row.time);
                if first > t {
                    let stop = arrival.min(self.next_refresh).min(end + 1);
                    if stop <= first {
                        event = first;
                        t = stop;
                        continue;
                    }
                    t = first;
                }
            }
            event = 0;
            if col.time == t {
                self.issue::<false, L>(spec, col, t, out, log);
                if free {
                    self.set_write_mode(spec);
                }
                row = self.best_row::<HALF>(spec, free, t);
            }
            if row.time == t {
                if HALF && t & 1 == 1 {
                    let all = matches!(row.cmd, Cmd::PreAll | Cmd::RefAll);
                    let whole = matches!(spec.refresh, Refresh::AllBank { level: 0, .. });
                    self.rising = Rising {
                        edge: t + if row.cmd == Cmd::Act { 3 } else { 1 },
                        pc: if all && whole { u32::MAX } else { pc_of(spec, row.bank.into()) },
                        bank: if all { u32::MAX } else { row.bank.into() },
                    };
                }
                self.issue::<false, L>(spec, row, t, out, log);
            }
            t += 1;
        }
        self.next_event = event.min(self.next_refresh).max(t);
        self.clk = t;
    }
}

#[inline]
fn pc_of(spec: &DramSpec, bank: usize) -> u32 {
    (bank >> spec.table.top_shift) as u32
}
