//! One channel under Ramulator 2.1's controller rules, computed from event to event.
//!
//! Time. A tick `t` of the interface is clock `t + 1` of the reference, whose first tick has clock 1. Internally all
//! times are clocks.
//!
//! Queues. Requests of one direction and bank that go to the open row form the bank's *hit* list, the others its *miss*
//! list, both by age. All requests of one list need the same command at the same time, so only heads compete: the next
//! command is the minimum of (ready time, age) over at most two heads per bank. That is the reference's rule (oldest
//! among those whose timing is met) evaluated at the first tick at which any is met.

mod canonical;

use std::collections::VecDeque;

use super::ring::Ring;
use super::spec::{Bus, DramSpec, Refresh, RowPolicy};
use super::standards::Cmd;
use super::stats::{Done, DramStats, WaitCause};
use super::timing::{self, CLASSES, Rule};

const NIL: u16 = u16::MAX;
const NEVER: u64 = u64::MAX;
/// Low bits of a selection key hold the age, the rest the ready time relative to now.
const AGE_BITS: u32 = 44;
const AGES: u64 = (1 << AGE_BITS) - 1;
const FILTER: usize = 512;
/// Refreshes that may be due at once, as Ramulator's priority buffer holds.
const MAX_DUE: usize = 1568;

const RD: usize = Cmd::Rd as usize;
const WR: usize = Cmd::Wr as usize;
const ACT: usize = Cmd::Act as usize;
const ACT2: usize = Cmd::Act2 as usize;
const PRE: usize = Cmd::Pre as usize;

/// Ready clocks by command, padded to a power of two.
type Ready = [u64; 16];

/// A value per bank (or node above it), in words of 64.
type PerBank<T, const W: usize> = [[T; 64]; W];

#[inline(always)]
fn at<T, const W: usize>(values: &PerBank<T, W>, i: usize) -> &T {
    &values[i.wrapping_shr(6) & (W - 1)][i & 63]
}

#[inline(always)]
fn at_mut<T, const W: usize>(values: &mut PerBank<T, W>, i: usize) -> &mut T {
    &mut values[i.wrapping_shr(6) & (W - 1)][i & 63]
}

#[inline(always)]
fn raise(x: &mut u64, when: u64) {
    *x = (*x).max(when);
}

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
        self.push(CommandRecord {
            tick: clk - 1,
            cmd,
            bank: bank as u32,
            addr,
            write,
        });
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
    /// How many requests were accepted before it in the same tick.
    nth: u32,
    /// Ticks in the front queue.
    waited: u32,
    next: u16,
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

const NO_LISTS: Lists = Lists {
    hit: NIL,
    hit_tail: NIL,
    miss: NIL,
    miss_tail: NIL,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BankState {
    Closed,
    Activating,
    Open,
}

/// One bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bank {
    ready: Ready,
    /// Ages of the heads, per direction.
    hit_seq: [u64; 2],
    miss_seq: [u64; 2],
    /// Rank of the request it was opened for: by tick of acceptance, then by order of activation.
    holder_age: u64,
    lists: [Lists; 2],
    row: u32,
    /// The request it was opened for, while that waits for its column command.
    holder: u16,
    state: BankState,
}

const BANK: Bank = Bank {
    ready: [0; 16],
    hit_seq: [0; 2],
    miss_seq: [0; 2],
    holder_age: 0,
    lists: [NO_LISTS; 2],
    row: 0,
    holder: NIL,
    state: BankState::Closed,
};

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
    cause: WaitCause,
}

/// HBM3: the row command of the last rising edge and the falling edge on which its pairing rule applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rising {
    edge: u64,
    pc: u32,
    /// Bank, or `u32::MAX` for an all-bank command.
    bank: u32,
}

impl Rising {
    /// A precharge of `bank`, below top node `pc`, may not pair with it.
    #[inline]
    fn blocks(&self, pc: usize, bank: usize) -> bool {
        self.pc == pc as u32 && (self.bank == u32::MAX || self.bank == bank as u32)
    }
}

/// The pick that a class of commands is part of.
#[inline(always)]
fn class_kind(class: u8) -> usize {
    match class {
        timing::COL => QUEUED,
        timing::PRE | timing::ACT => ROW,
        _ => HELD,
    }
}

#[inline(always)]
fn class_dirt(class: u8) -> u8 {
    1 << class_kind(class)
}

#[inline(always)]
fn class_index(class: u8) -> usize {
    (class.trailing_zeros() as usize).min(CLASSES - 1)
}

/// The best candidate of a class below one top node, found earlier. `time` leaves out what delays the whole node, and it
/// is the best up to clock `until`, from which on an older one may be ready too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Best {
    time: u64,
    age: u64,
    until: u64,
    bank: usize,
}

/// A top node: ready clocks of every command, the best candidate per class, the classes for which it is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Top {
    ready: Ready,
    best: [Best; CLASSES],
    stale: u8,
}

const TOP: Top = Top {
    ready: [0; 16],
    best: [NO_BEST; CLASSES],
    stale: u8::MAX,
};

const NO_BEST: Best = Best {
    time: NEVER,
    age: 0,
    until: NEVER,
    bank: NONE,
};

/// A best command of the whole channel, good while it lies ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pick {
    time: u64,
    age: u64,
    bank: u32,
    cmd: Cmd,
}

const NO_PICK: Pick = Pick {
    time: NEVER,
    age: 0,
    bank: u32::MAX,
    cmd: Cmd::Rd,
};

const HELD: usize = 0;
const QUEUED: usize = 1;
const ROW: usize = 2;
const ALL_DIRTY: u8 = 7;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Active,
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

const NO_CAND: Cand = Cand {
    time: NEVER,
    cmd: Cmd::Rd,
    bank: 0,
    source: Source::Queue,
    write: false,
};

/// One channel under the Ramulator controller: all state, apart from the spec. `W` words hold a bit per bank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exact<const W: usize> {
    /// Next clock to process.
    clk: u64,
    /// No event before this clock.
    next_event: u64,
    /// Clock in which the front queue needs attention; `NEVER` while it is empty or blocked.
    arrival: u64,
    next_refresh: u64,
    write_mode: bool,
    /// The best of the requests whose bank was opened for them, of the queue's column and of its row commands; and which
    /// of these are unknown.
    picks: [Pick; 3],
    dirty: u8,
    /// The head of the front queue found its queue full and nothing has left that queue since.
    blocked: bool,
    len: [u32; 2],
    /// Requests accepted or waiting and not completed.
    left: usize,
    free: u16,
    /// Banks with a hit list, with a miss list behind an open row, with a miss list and closed; per direction.
    col: [[u64; W]; 2],
    pre: [[u64; W]; 2],
    act: [[u64; W]; 2],
    /// Banks that were opened for a request that still waits for its column command; all, and per direction.
    held: [u64; W],
    held_by: [[u64; W]; 2],
    front: Ring<Front>,
    entries: Vec<Entry>,
    pending: Ring<Pending>,
    last_depart: u64,
    /// First age of the tick in which the last request was accepted.
    tick_seq: u64,
    tick_of_seq: u64,
    seq: u64,
    rings: Vec<u64>,
    due: VecDeque<Due>,
    next_refresh_bank: u32,
    due_since: u64,
    refresh_time: u64,
    act2: Option<Act2>,
    cas: Option<Cand>,
    wck_expiry: u64,
    rising: Rising,
    stats: DramStats,
    /// Counts of queued writes by address hash.
    filter: [u16; FILTER],
    banks: PerBank<Bank, W>,
    tops: PerBank<Top, W>,
    /// Ready clocks of every command per group.
    group_ready: PerBank<Ready, W>,
    /// Clock of the last issue per (command, bank), for the rules that delay refreshes.
    last: [PerBank<u64, W>; 16],
}

/// No bank.
const NONE: usize = usize::MAX;

#[inline(always)]
fn any<const W: usize>(mask: &[u64; W]) -> bool {
    mask.iter().fold(0, |a, w| a | w) != 0
}

#[inline]
fn hash(addr: u64) -> usize {
    (addr.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - FILTER.trailing_zeros())) as usize
}

#[inline(always)]
fn put<const W: usize>(mask: &mut [u64; W], bit: usize) {
    mask[bit.wrapping_shr(6) & (W - 1)] |= 1u64.wrapping_shl(bit as u32);
}

#[inline(always)]
fn clear<const W: usize>(mask: &mut [u64; W], bit: usize) {
    mask[bit.wrapping_shr(6) & (W - 1)] &= !1u64.wrapping_shl(bit as u32);
}

#[inline(always)]
fn set<const W: usize>(mask: &mut [u64; W], bit: usize, on: bool) {
    let word = &mut mask[bit.wrapping_shr(6) & (W - 1)];
    *word = *word & !1u64.wrapping_shl(bit as u32) | u64::from(on).wrapping_shl(bit as u32);
}

#[inline(always)]
fn get<const W: usize>(mask: &[u64; W], bit: usize) -> bool {
    mask[bit.wrapping_shr(6) & (W - 1)].wrapping_shr(bit as u32) & 1 != 0
}

impl<const W: usize> Exact<W> {
    /// An idle channel with all banks closed at tick 0.
    pub fn new(spec: &DramSpec) -> Exact<W> {
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
            nth: 0,
            waited: 0,
            next: NIL,
            write: false,
            counted: false,
        };
        let entries = (0..slots).map(|i| Entry {
            next: if i + 1 < slots { i as u16 + 1 } else { NIL },
            ..blank
        });
        let idle = Pending {
            depart: 0,
            tag: 0,
            cause: WaitCause::Latency,
        };
        let none = Front {
            at: 0,
            addr: 0,
            tag: 0,
            write: false,
        };
        Exact {
            clk: 1,
            next_event: 1,
            arrival: NEVER,
            next_refresh: match spec.refresh {
                Refresh::None => NEVER,
                Refresh::AllBank { interval, .. } | Refresh::PerBank { interval } => {
                    interval.into()
                }
            },
            write_mode: false,
            picks: [NO_PICK; 3],
            dirty: ALL_DIRTY,
            blocked: false,
            len: [0; 2],
            left: 0,
            free: 0,
            col: [[0; W]; 2],
            pre: [[0; W]; 2],
            act: [[0; W]; 2],
            held: [0; W],
            held_by: [[0; W]; 2],
            front: Ring::new(64, none),
            entries: entries.collect(),
            pending: Ring::new(spec.read_latency.min(1 << 10) as usize + 64, idle),
            last_depart: 0,
            tick_seq: 0,
            tick_of_seq: 0,
            seq: 0,
            rings: vec![0; t.ring_slots],
            due: VecDeque::with_capacity(16),
            next_refresh_bank: 0,
            due_since: 0,
            refresh_time: 0,
            act2: None,
            cas: None,
            wck_expiry: 0,
            rising: Rising {
                edge: 0,
                pc: 0,
                bank: 0,
            },
            stats: DramStats::default(),
            filter: [0; FILTER],
            banks: [[BANK; 64]; W],
            tops: [[TOP; 64]; W],
            group_ready: [[[0; 16]; 64]; W],
            last: [[[0; 64]; W]; 16],
        }
    }

    /// Puts a request into the channel's unbounded front queue.
    ///
    /// It is offered to the controller from DRAM tick `at` on, in push order, at most `accepts_per_tick` per tick, the
    /// head blocking while its queue is full. `addr` is the byte address inside the channel. Calls come in
    /// non-decreasing `at`, none before a horizon that was already simulated.
    #[inline]
    pub fn push(&mut self, at: u64, addr: u64, write: bool, tag: u32) {
        if self.front.is_empty() {
            self.arrival = at.saturating_add(1);
        }
        self.left = self.left.wrapping_add(1);
        self.front.push_back(Front {
            at,
            addr,
            tag,
            write,
        });
    }

    /// Offers a request at the current tick, past the front queue; `false` if its queue is full.
    ///
    /// The current tick is the horizon of the last `advance`. A coalesced write completes at once.
    pub fn try_accept(
        &mut self,
        spec: &DramSpec,
        addr: u64,
        write: bool,
        tag: u32,
        out: &mut Vec<Done>,
    ) -> bool {
        let f = Front {
            at: self.clk - 1,
            addr,
            tag,
            write,
        };
        let done = self.enqueue(spec, f, self.clk, out);
        if done {
            self.left = self.left.wrapping_add(1);
            self.next_event = self.clk;
        }
        done
    }

    /// Simulates all ticks before `horizon`.
    ///
    /// Every request with `at < horizon` must have been pushed. Completions (tick, tag) are appended in the order in
    /// which the controller makes them: reads when their data has returned, writes when their column command issues.
    pub fn advance(&mut self, spec: &DramSpec, horizon: u64, out: &mut Vec<Done>) {
        self.advance_with(spec, horizon, out, &mut NoLog);
    }

    /// As [`Exact::advance`], and appends every command to `log`.
    pub fn advance_logged(
        &mut self,
        spec: &DramSpec,
        horizon: u64,
        out: &mut Vec<Done>,
        log: &mut Vec<CommandRecord>,
    ) {
        self.advance_with(spec, horizon, out, log);
    }

    fn advance_with<L: Log>(
        &mut self,
        spec: &DramSpec,
        horizon: u64,
        out: &mut Vec<Done>,
        log: &mut L,
    ) {
        if horizon < self.clk {
            return;
        }
        let horizon = horizon.min(NEVER - 2);
        let mut first = self.next_event.min(self.arrival);
        if let Some(p) = self.pending.front() {
            first = first.min(p.depart);
        }
        if first > horizon {
            self.clk = horizon.wrapping_add(1);
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
        let event = self.next_event.max(self.clk) - 1;
        if self.len[1] > 0 || any(&self.held_by[1]) || self.act2.is_some() || self.cas.is_some() {
            t = t.min(event);
        } else if self.len[0] > 0 || any(&self.held) {
            t = t.min(event.saturating_add(spec.read_latency.into()));
        }
        if let Some(f) = self.front.front() {
            let wait = if self.blocked { event } else { f.at };
            t = t.min(wait.max(self.clk - 1));
        }
        t
    }

    /// The next tick at which the controller may do anything; nothing changes before it unless something is pushed.
    pub fn next_event(&self) -> u64 {
        let mut t = self.next_event.max(self.clk);
        if let Some(f) = self.front.front()
            && !self.blocked
        {
            t = t.min((f.at + 1).max(self.clk));
        }
        t - 1
    }

    /// Requests accepted or waiting and not completed.
    #[inline]
    pub fn outstanding(&self) -> usize {
        self.left
    }

    /// Free entries of the read and of the write queue.
    pub fn room(&self, spec: &DramSpec) -> (u32, u32) {
        (
            spec.read_queue - self.len[0],
            spec.write_queue - self.len[1],
        )
    }

    /// Counters up to the last horizon.
    pub fn stats(&self) -> &DramStats {
        &self.stats
    }

    /// The same, to add to.
    pub fn stats_mut(&mut self) -> &mut DramStats {
        &mut self.stats
    }

    // ---- acceptance ------------------------------------------------------------------------------------------------

    #[inline(never)]
    fn queued_write(&self, bank: usize, addr: u64) -> bool {
        let l = at(&self.banks, bank).lists[1];
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

    #[inline(always)]
    fn enqueue(&mut self, spec: &DramSpec, f: Front, t: u64, out: &mut Vec<Done>) -> bool {
        let d = usize::from(f.write);
        let cap = if f.write {
            spec.write_queue
        } else {
            spec.read_queue
        };
        let full = self.len[d] >= cap;
        if full && self.len[1] == 0 {
            return false;
        }
        let (bank, row) = spec.map.bank_row(f.addr);
        let b = bank as usize;
        let waited = t.wrapping_sub(1).wrapping_sub(f.at);
        if self.len[1] > 0 && self.filter[hash(f.addr)] != 0 && self.queued_write(b, f.addr) {
            self.meet_write(spec, f, t, out);
            return true;
        }
        if full {
            return false;
        }
        self.stats.wait_queue = self.stats.wait_queue.wrapping_add(waited);
        self.len[d] = self.len[d].wrapping_add(1);
        if f.write {
            let count = &mut self.filter[hash(f.addr)];
            *count = count.wrapping_add(1);
        }
        let seq = self.seq;
        self.seq = seq.wrapping_add(1);
        if self.tick_of_seq != t {
            self.tick_of_seq = t;
            self.tick_seq = seq;
        }
        let i = self.free;
        let Some(e) = self.entries.get_mut(i as usize) else {
            return false;
        };
        self.free = e.next;
        *e = Entry {
            addr: f.addr,
            seq,
            arrive: t.wrapping_sub(1),
            refreshed: self.refresh_time,
            opened: 0,
            row,
            tag: f.tag,
            nth: seq.wrapping_sub(self.tick_seq) as u32,
            waited: waited.min(u32::MAX.into()) as u32,
            next: NIL,
            write: f.write,
            counted: false,
        };
        let bank = at_mut(&mut self.banks, b);
        let l = &mut bank.lists[d];
        let class = if bank.state == BankState::Open && bank.row == row {
            let tail = std::mem::replace(&mut l.hit_tail, i);
            if l.hit != NIL {
                self.entries[tail as usize].next = i;
                return true;
            }
            l.hit = i;
            bank.hit_seq[d] = seq;
            put(&mut self.col[d], b);
            timing::COL
        } else {
            let tail = std::mem::replace(&mut l.miss_tail, i);
            if l.miss != NIL {
                self.entries[tail as usize].next = i;
                return true;
            }
            l.miss = i;
            bank.miss_seq[d] = seq;
            match bank.state {
                BankState::Open => {
                    if get(&self.held, b) {
                        return true;
                    }
                    put(&mut self.pre[d], b);
                    timing::PRE
                }
                BankState::Closed => {
                    put(&mut self.act[d], b);
                    timing::ACT
                }
                BankState::Activating => return true,
            }
        };
        self.compete_as(spec, class, d, b, t);
        true
    }

    /// A request meets a queued write to its address: a write is absorbed, a read answered.
    #[cold]
    #[inline(never)]
    fn meet_write(&mut self, spec: &DramSpec, f: Front, t: u64, out: &mut Vec<Done>) {
        let waited = t - 1 - f.at;
        self.stats.wait_queue += waited;
        let cause = if waited > u64::from(spec.read_latency) {
            WaitCause::Queue
        } else {
            WaitCause::Latency
        };
        if f.write {
            self.stats.writes += 1;
            self.stats.coalesced += 1;
            self.flush(t - 1, out);
            self.left -= 1;
            out.push(Done {
                tick: t - 1,
                tag: f.tag,
                cause,
            });
        } else {
            self.stats.reads += 1;
            self.stats.forwarded += 1;
            self.depart(t, t - 1, f.tag, cause);
        }
    }

    /// Accepts what tick `t` may accept, and sets the clock at which the front queue needs attention again.
    #[inline]
    fn admit(&mut self, spec: &DramSpec, t: u64, out: &mut Vec<Done>) {
        let mut left = spec.accepts_per_tick;
        self.arrival = NEVER;
        while let Some(f) = self.front.front() {
            if f.at >= t {
                self.arrival = f.at.saturating_add(1);
                return;
            }
            if left == 0 {
                self.arrival = t.wrapping_add(1);
                return;
            }
            // While the head waits no write enters, so it cannot become one to forward or coalesce.
            let full = !f.write && self.len[0] >= spec.read_queue && self.len[1] == 0;
            if self.blocked || full || !self.accept_front(spec, t, out) {
                self.blocked = true;
                return;
            }
            left = left.wrapping_sub(1);
        }
    }

    /// Accepts the head of the front queue if there is room for it.
    #[inline(never)]
    fn accept_front(&mut self, spec: &DramSpec, t: u64, out: &mut Vec<Done>) -> bool {
        let Some(&f) = self.front.front() else {
            return false;
        };
        let done = self.enqueue(spec, f, t, out);
        if done {
            self.front.drop_front();
        }
        done
    }

    // ---- completion ------------------------------------------------------------------------------------------------

    #[inline(always)]
    fn depart(&mut self, depart: u64, arrive: u64, tag: u32, cause: WaitCause) {
        // Reads leave in order; a forwarded read waits for those before it.
        let depart = depart.max(self.last_depart);
        self.last_depart = depart;
        self.stats.latency(depart.wrapping_sub(arrive));
        self.pending.push_back(Pending { depart, tag, cause });
    }

    #[inline]
    fn flush(&mut self, clk: u64, out: &mut Vec<Done>) {
        while let Some(&p) = self.pending.front() {
            if p.depart > clk {
                break;
            }
            self.pending.drop_front();
            self.left = self.left.wrapping_sub(1);
            out.push(Done {
                tick: p.depart.wrapping_sub(1),
                tag: p.tag,
                cause: p.cause,
            });
        }
    }

    // ---- timing ----------------------------------------------------------------------------------------------------

    #[inline(always)]
    fn ready(&self, spec: &DramSpec, cmd: usize, bank: usize) -> u64 {
        let (t, c) = (&spec.table, cmd & 15);
        at(&self.tops, bank.wrapping_shr(t.top_shift)).ready[c]
            .max(at(&self.group_ready, bank.wrapping_shr(t.bank_shift))[c])
            .max(at(&self.banks, bank).ready[c])
    }

    /// Ready clock of a refresh command, or of the precharge for it, over banks `lo..hi` below a node of `scope`.
    fn ready_all(&self, spec: &DramSpec, cmd: Cmd, lo: usize, hi: usize, scope: u8) -> u64 {
        let t = &spec.table;
        let mut ready = (lo..hi)
            .map(|b| self.ready(spec, cmd as usize, b))
            .max()
            .unwrap_or(0);
        for r in t.late.iter().filter(|r| r.target == cmd as u8) {
            let (mut from, mut to) = (lo, hi);
            if r.level <= scope {
                let shift = t.level_shift[r.level as usize];
                from = lo >> shift << shift;
                to = from + (1 << shift);
            }
            let before = &self.last[r.before as usize & 15];
            let last = (from..to).map(|b| *at(before, b)).max().unwrap_or(0);
            if last > 0 {
                ready = ready.max(last + u64::from(r.cycles));
            }
        }
        ready
    }

    #[inline(always)]
    fn ring(rings: &mut [u64], first: usize, window: usize, node: usize, t: u64) -> Option<u64> {
        let start = node.wrapping_mul(window).wrapping_add(first);
        let ring = rings.get_mut(start..start.wrapping_add(window))?;
        let mut new = t;
        for x in ring {
            new = std::mem::replace(x, new);
        }
        // What fell out is `window` issues back; the rule is about the last one that stayed.
        let _ = new;
        let last = rings
            .get(start.wrapping_add(window).wrapping_sub(1))
            .copied()?;
        (last > 0).then_some(last)
    }

    /// Raises the ready time of `target` for all banks `lo..hi`, which are whole nodes of some level.
    fn raise(&mut self, spec: &DramSpec, target: u8, lo: usize, hi: usize, when: u64) {
        let tb = &spec.table;
        let c = target as usize & 15;
        if (lo | hi) & ((1 << tb.top_shift) - 1) == 0 {
            for i in lo >> tb.top_shift..hi >> tb.top_shift {
                raise(&mut at_mut(&mut self.tops, i).ready[c], when);
            }
        } else if (lo | hi) & ((1 << tb.bank_shift) - 1) == 0 {
            for i in lo >> tb.bank_shift..hi >> tb.bank_shift {
                raise(&mut at_mut(&mut self.group_ready, i)[c], when);
            }
        } else {
            for b in lo..hi {
                raise(&mut at_mut(&mut self.banks, b).ready[c], when);
            }
        }
    }

    /// Applies the timing rules of a command to one bank.
    #[inline(always)]
    fn touch(&mut self, spec: &DramSpec, cmd: Cmd, bank: usize, t: u64) {
        let tb = &spec.table;
        let e = &tb.effects[cmd as usize & 15];
        if e.stamped {
            *at_mut(&mut self.last[cmd as usize & 15], bank) = t;
        }
        let top = bank.wrapping_shr(tb.top_shift);
        let tops = &mut at_mut(&mut self.tops, top).ready;
        let groups = at_mut(&mut self.group_ready, bank.wrapping_shr(tb.bank_shift));
        let own = &mut at_mut(&mut self.banks, bank).ready;
        // Where a usual rule is absent its cycles are 0, and a ready time of now binds nobody.
        let n = &e.near;
        match cmd {
            Cmd::Rd | Cmd::Wr => {
                raise(&mut tops[RD], t.wrapping_add(n[0]));
                raise(&mut tops[WR], t.wrapping_add(n[1]));
                raise(&mut groups[RD], t.wrapping_add(n[2]));
                raise(&mut groups[WR], t.wrapping_add(n[3]));
                raise(&mut own[PRE], t.wrapping_add(n[4]));
            }
            Cmd::Act => {
                raise(&mut tops[ACT], t.wrapping_add(n[0]));
                raise(&mut groups[ACT], t.wrapping_add(n[1]));
                raise(&mut own[ACT], t.wrapping_add(n[2]));
                raise(&mut own[PRE], t.wrapping_add(n[3]));
                raise(&mut own[RD], t.wrapping_add(n[4]));
                raise(&mut own[WR], t.wrapping_add(n[5]));
            }
            Cmd::Pre => {
                raise(&mut tops[PRE], t.wrapping_add(n[0]));
                raise(&mut own[ACT], t.wrapping_add(n[1]));
            }
            _ => {}
        }
        if !e.plain {
            self.touch_more(spec, cmd, bank, t);
        }
    }

    /// The rules of a command that `touch` does not know by place.
    #[inline(never)]
    fn touch_more(&mut self, spec: &DramSpec, cmd: Cmd, bank: usize, t: u64) {
        let tb = &spec.table;
        let e = &tb.effects[cmd as usize & 15];
        let top = bank.wrapping_shr(tb.top_shift);
        for r in &e.bank {
            let x = &mut at_mut(&mut self.banks, bank).ready[r.target as usize & 15];
            raise(x, t.wrapping_add(r.cycles.into()));
        }
        let group = bank.wrapping_shr(tb.bank_shift);
        for r in &e.group {
            let x = &mut at_mut(&mut self.group_ready, group)[r.target as usize & 15];
            raise(x, t.wrapping_add(r.cycles.into()));
        }
        for r in &e.top {
            let x = &mut at_mut(&mut self.tops, top).ready[r.target as usize & 15];
            raise(x, t.wrapping_add(r.cycles.into()));
        }
        for r in &e.tops {
            let when = t.wrapping_add(r.cycles.into());
            for top in 0..tb.tops {
                raise(
                    &mut at_mut(&mut self.tops, top).ready[r.target as usize & 15],
                    when,
                );
            }
        }
        for r in &e.mid_siblings {
            let when = t.wrapping_add(r.cycles.into());
            let level = r.level as usize;
            let shift = tb.level_shift[level].wrapping_sub(tb.bank_shift);
            let up = tb.level_shift[level - 1].wrapping_sub(tb.bank_shift);
            let first = group.wrapping_shr(up).wrapping_shl(up);
            let last = first.wrapping_add(1usize.wrapping_shl(up));
            let own = group.wrapping_shr(shift).wrapping_shl(shift);
            let next = own.wrapping_add(1usize.wrapping_shl(shift));
            for range in [first..own, next..last] {
                for i in range {
                    raise(
                        &mut at_mut(&mut self.group_ready, i)[r.target as usize & 15],
                        when,
                    );
                }
            }
        }
        for r in &e.windows {
            let ring = Self::ring(&mut self.rings, r.ring as usize, r.window.into(), top, t);
            if let Some(from) = ring {
                let x = &mut at_mut(&mut self.tops, top).ready[r.target as usize & 15];
                raise(x, from.wrapping_add(r.cycles.into()));
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
            match Self::ring(&mut self.rings, r.ring as usize, r.window.into(), node, t) {
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
        let e = &tb.effects[cmd as usize & 15];
        if e.stamped {
            for b in lo..hi {
                *at_mut(&mut self.last[cmd as usize & 15], b) = t;
            }
        }
        for r in &e.all {
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

    #[inline(always)]
    fn set_write_mode(&mut self, spec: &DramSpec) {
        let flip = if self.write_mode {
            self.len[1] < spec.drain_below && self.len[0] != 0
        } else {
            self.len[1] > spec.drain_above || self.len[0] == 0
        };
        if flip {
            self.flip(spec);
        }
    }

    #[inline(never)]
    fn flip(&mut self, spec: &DramSpec) {
        self.write_mode = !self.write_mode;
        self.dirty |= 1 << QUEUED | 1 << ROW;
        for p in 0..spec.table.tops {
            at_mut(&mut self.tops, p).stale |= timing::COL | timing::PRE | timing::ACT;
        }
    }

    /// A bank has become a candidate of `class` in direction `d`: keeps the known best right.
    #[inline(always)]
    fn compete_as(&mut self, spec: &DramSpec, class: u8, d: usize, b: usize, t: u64) {
        let p = b.wrapping_shr(spec.table.top_shift);
        if d != usize::from(self.write_mode) {
            return;
        }
        let bank = at(&self.banks, b);
        let (cmd, mask, age) = match class {
            timing::COL => (if d == 0 { RD } else { WR }, &self.col[d], bank.hit_seq[d]),
            timing::PRE => (PRE, &self.pre[d], bank.miss_seq[d]),
            _ => (ACT, &self.act[d], bank.miss_seq[d]),
        };
        if !get(mask, b) {
            return;
        }
        if at(&self.tops, p).stale & class != 0 {
            self.dirty |= class_dirt(class);
        } else {
            self.compete(spec, class, cmd, age, b, t);
        }
    }

    /// Takes a new candidate of `class`, bank `b`, into account from clock `t` on.
    #[inline(always)]
    fn compete(&mut self, spec: &DramSpec, class: u8, cmd: usize, age: u64, b: usize, t: u64) {
        let tb = &spec.table;
        let p = b.wrapping_shr(tb.top_shift);
        let half = u64::from(tb.half && class != timing::PRE);
        let group = at(&self.group_ready, b.wrapping_shr(tb.bank_shift))[cmd & 15];
        let own = at(&self.banks, b).ready[cmd & 15];
        let rising = self.rising;
        let top = at_mut(&mut self.tops, p);
        let now = t.max(top.ready[cmd & 15]) | half;
        let mut time = group.max(own).max(now) | half;
        let best = &mut top.best[class_index(class)];
        if tb.half && class == timing::PRE {
            if time == rising.edge && rising.blocks(p, b) {
                time = time.wrapping_add(1);
            }
            if best.time < now {
                top.stale |= class;
                self.dirty |= class_dirt(class);
                return;
            }
        } else if best.time < now && now >= best.until {
            top.stale |= class;
            self.dirty |= class_dirt(class);
            return;
        }
        let pick = &self.picks[class_kind(class)];
        if (time, age) < (pick.time, pick.age) {
            self.dirty |= class_dirt(class);
        }
        let known = best.time.max(now);
        if (time, age) < (known, best.age) {
            if time < known {
                best.until = best.until.min(known);
            }
            (best.time, best.age, best.bank) = (time, age, b);
        } else if age < best.age {
            best.until = best.until.min(time);
        }
    }

    /// What a command to bank `b` at clock `t` makes unknown: bests that lie at the bank itself, and those that a rule
    /// between top node and bank may delay. Other candidates may be delayed too, but then the best is still the best.
    #[inline(always)]
    fn spoil(&mut self, spec: &DramSpec, cmd: Cmd, b: usize, t: u64) {
        let tb = &spec.table;
        let e = &tb.effects[cmd as usize & 15];
        let top = at_mut(&mut self.tops, b.wrapping_shr(tb.top_shift));
        let mut stale = 0;
        for (i, best) in top.best.iter().enumerate() {
            let other = (best.bank ^ b).wrapping_shr(tb.bank_shift) != 0;
            let until = if other { e.wide[i] } else { e.delays[i] };
            let hit = best.bank == b || until != 0 && best.time < t.wrapping_add(until);
            stale |= u8::from(hit) << i;
        }
        top.stale |= stale;
        let mut dirty = 0;
        for (i, pick) in self.picks.iter().enumerate() {
            let hit = pick.bank == b as u32 || pick.time < t.wrapping_add(e.reach[i]);
            dirty |= u8::from(hit) << i;
        }
        self.dirty |= dirty;
    }

    fn forget(&mut self, spec: &DramSpec) {
        self.dirty = ALL_DIRTY;
        for p in 0..spec.table.tops {
            at_mut(&mut self.tops, p).stale = u8::MAX;
        }
    }

    /// The best candidate of `class` from clock `t` on.
    #[inline(always)]
    fn find<const HALF: bool>(&mut self, spec: &DramSpec, class: u8, t: u64) -> Best {
        let d = usize::from(self.write_mode);
        let (cmd, mask) = match class {
            timing::COL => (if d == 0 { RD } else { WR }, self.col[d]),
            timing::PRE => (PRE, self.pre[d]),
            timing::ACT => (ACT, self.act[d]),
            timing::HELD_RD => (RD, self.held_by[0]),
            _ => (WR, self.held_by[1]),
        };
        let mut found = NO_BEST;
        if !any(&mask) {
            return found;
        }
        for (p, slice) in spec.table.slices.iter().enumerate() {
            let mut own = mask;
            for (m, s) in own.iter_mut().zip(slice) {
                *m &= s;
            }
            if !any(&own) {
                continue;
            }
            let top = at(&self.tops, p);
            let now = t.max(top.ready[cmd]) | u64::from(HALF && class != timing::PRE);
            let mut best = top.best[class_index(class)];
            let holds = best.time >= now || now < best.until && !(HALF && class == timing::PRE);
            if top.stale & class == 0 && holds {
                best.time = best.time.max(now);
            } else {
                best = self.search::<HALF>(spec, class, cmd, d, p, &own, now);
            }
            if (best.time, best.age) < (found.time, found.age) {
                found = best;
            }
        }
        found
    }

    /// The best of the banks in `mask`, all below top node `p`, from clock `now` on.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)] // inlined: a struct would only be taken apart again
    fn search<const HALF: bool>(
        &mut self,
        spec: &DramSpec,
        class: u8,
        cmd: usize,
        d: usize,
        p: usize,
        mask: &[u64; W],
        now: u64,
    ) -> Best {
        let (mut least, mut until, mut at_bank) = (NEVER, NEVER, NONE);
        for (w, &word) in mask.iter().enumerate() {
            let mut m = word;
            while m != 0 {
                let b = w.wrapping_mul(64) | m.trailing_zeros() as usize;
                m &= m.wrapping_sub(1);
                let bank = at(&self.banks, b);
                let group = at(&self.group_ready, b.wrapping_shr(spec.table.bank_shift))[cmd & 15];
                let mut time = group.max(bank.ready[cmd & 15]).max(now);
                if HALF && class == timing::PRE {
                    if time == self.rising.edge && self.rising.blocks(p, b) {
                        time = time.wrapping_add(1);
                    }
                } else if HALF {
                    time |= 1;
                }
                let age = match class {
                    timing::COL => bank.hit_seq[d],
                    timing::PRE | timing::ACT => bank.miss_seq[d],
                    _ => bank.holder_age,
                };
                let key = time.wrapping_sub(now) << AGE_BITS | age;
                let (less, more) = (key.min(least), key.max(least));
                // The one that loses matters later if it is older.
                if more & AGES < less & AGES {
                    until = more.min(until);
                }
                if key < least {
                    at_bank = b;
                }
                least = less;
            }
        }
        let found = Best {
            time: now.wrapping_add(least >> AGE_BITS),
            age: least & AGES,
            until: now.saturating_add(until >> AGE_BITS),
            bank: at_bank,
        };
        let top = at_mut(&mut self.tops, p);
        top.best[class_index(class)] = found;
        top.stale &= !class;
        found
    }

    /// The best of a kind from clock `t` on.
    #[inline(always)]
    fn pick<const HALF: bool>(&mut self, spec: &DramSpec, kind: usize, t: u64) -> Pick {
        if self.dirty >> kind & 1 != 0 || self.picks[kind].time < t {
            match kind {
                HELD => self.pick_held::<HALF>(spec, t),
                QUEUED => self.pick_queued::<HALF>(spec, t),
                _ => self.pick_row::<HALF>(spec, t),
            }
        }
        self.picks[kind]
    }

    #[inline(always)]
    fn keep(&mut self, kind: usize, best: Best, cmd: Cmd) {
        self.picks[kind] = Pick {
            time: best.time,
            age: best.age,
            bank: best.bank as u32,
            cmd,
        };
        self.dirty &= !(1 << kind);
    }

    #[inline(always)]
    fn pick_held<const HALF: bool>(&mut self, spec: &DramSpec, t: u64) {
        if any(&self.held) {
            self.pick_held_of::<HALF>(spec, t);
        } else {
            self.picks[HELD].time = NEVER;
            self.dirty &= !(1 << HELD);
        }
    }

    #[inline(never)]
    fn pick_held_of<const HALF: bool>(&mut self, spec: &DramSpec, t: u64) {
        let read = self.find::<HALF>(spec, timing::HELD_RD, t);
        let write = self.find::<HALF>(spec, timing::HELD_WR, t);
        if (write.time, write.age) < (read.time, read.age) {
            self.keep(HELD, write, Cmd::Wr);
        } else {
            self.keep(HELD, read, Cmd::Rd);
        }
    }

    #[inline(always)]
    fn pick_queued<const HALF: bool>(&mut self, spec: &DramSpec, t: u64) {
        let best = self.find::<HALF>(spec, timing::COL, t);
        self.keep(
            QUEUED,
            best,
            if self.write_mode { Cmd::Wr } else { Cmd::Rd },
        );
    }

    #[inline(never)]
    fn pick_row<const HALF: bool>(&mut self, spec: &DramSpec, t: u64) {
        let pre = self.find::<HALF>(spec, timing::PRE, t);
        let act = self.find::<HALF>(spec, timing::ACT, t);
        if (act.time, act.age) < (pre.time, pre.age) {
            self.keep(ROW, act, Cmd::Act);
        } else {
            self.keep(ROW, pre, Cmd::Pre);
        }
    }

    #[inline(always)]
    fn best_active<const HALF: bool>(&mut self, spec: &DramSpec, t: u64) -> Cand {
        let p = self.pick::<HALF>(spec, HELD, t);
        Cand {
            time: p.time,
            cmd: p.cmd,
            bank: p.bank as u16,
            source: Source::Active,
            write: p.cmd == Cmd::Wr,
        }
    }

    /// The command of the oldest refresh that is due.
    fn best_due<const HALF: bool>(&self, spec: &DramSpec, t: u64) -> Cand {
        let Some(&d) = self.due.front() else {
            return NO_CAND;
        };
        let (lo, hi) = (d.lo as usize, d.hi as usize);
        let open = (lo..hi).any(|b| at(&self.banks, b).state != BankState::Closed);
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
                let pc = if hi - lo == spec.table.banks && !d.single {
                    u32::MAX
                } else {
                    pc_of(spec, lo)
                };
                let blocked = self.rising.pc == pc
                    && (!d.single || self.rising.bank == u32::MAX || self.rising.bank == lo as u32);
                if time == self.rising.edge && blocked {
                    time += 1;
                }
            } else {
                time |= 1;
            }
        }
        Cand {
            time,
            cmd,
            bank: d.lo,
            source: Source::Due,
            write: false,
        }
    }

    #[inline(always)]
    fn queue_cand(&self, p: Pick) -> Cand {
        Cand {
            time: p.time,
            cmd: p.cmd,
            bank: p.bank as u16,
            source: Source::Queue,
            write: self.write_mode,
        }
    }

    // ---- bank state ------------------------------------------------------------------------------------------------

    #[inline]
    fn open(&mut self, b: usize, row: u32) {
        let bank = at_mut(&mut self.banks, b);
        bank.state = BankState::Open;
        bank.row = row;
        for d in 0..2 {
            clear(&mut self.act[d], b);
            if bank.lists[d].miss != NIL {
                // Split the waiting requests into those of this row and the others; both keep their order.
                let l = split(&mut self.entries, bank.lists[d].miss, row);
                bank.lists[d] = l;
                if let Some(e) = self.entries.get(l.hit as usize) {
                    bank.hit_seq[d] = e.seq;
                    put(&mut self.col[d], b);
                }
                if let Some(e) = self.entries.get(l.miss as usize) {
                    bank.miss_seq[d] = e.seq;
                }
            }
        }
        self.update_pre(b);
    }

    #[inline(always)]
    fn update_pre(&mut self, b: usize) {
        let bank = at(&self.banks, b);
        let able = bank.state == BankState::Open && !get(&self.held, b);
        for d in 0..2 {
            let on = able && bank.lists[d].miss != NIL;
            set(&mut self.pre[d], b, on);
        }
    }

    #[inline]
    fn close(&mut self, b: usize) {
        let bank = at_mut(&mut self.banks, b);
        bank.state = BankState::Closed;
        for d in 0..2 {
            clear(&mut self.pre[d], b);
            let l = bank.lists[d];
            if l.hit != NIL {
                clear(&mut self.col[d], b);
                let merged = merge(&mut self.entries, l);
                bank.lists[d] = merged;
                bank.miss_seq[d] = self.entries[merged.miss as usize].seq;
            }
            set(&mut self.act[d], b, bank.lists[d].miss != NIL);
        }
    }

    #[inline(always)]
    fn pop_hit(&mut self, d: usize, b: usize) -> u16 {
        let bank = at_mut(&mut self.banks, b);
        let l = &mut bank.lists[d];
        let i = l.hit;
        l.hit = self.entries[i as usize].next;
        match self.entries.get(l.hit as usize) {
            Some(e) => bank.hit_seq[d] = e.seq,
            None => clear(&mut self.col[d], b),
        }
        i
    }

    #[inline(always)]
    fn pop_miss(&mut self, d: usize, b: usize) -> u16 {
        let bank = at_mut(&mut self.banks, b);
        let l = &mut bank.lists[d];
        let i = l.miss;
        l.miss = self.entries[i as usize].next;
        if let Some(e) = self.entries.get(l.miss as usize) {
            bank.miss_seq[d] = e.seq;
        }
        i
    }

    #[inline(always)]
    fn leave_queue(&mut self, i: u16, t: u64) {
        let e = &self.entries[i as usize];
        let d = usize::from(e.write);
        // It counted in the queue from the tick of acceptance to this one.
        let ticks = t.wrapping_sub(e.arrive);
        self.len[d] = self.len[d].wrapping_sub(1);
        if self.blocked {
            self.unblock(e.write);
        }
        if d == 0 {
            self.stats.read_queue_ticks = self.stats.read_queue_ticks.wrapping_add(ticks);
        } else {
            self.stats.write_queue_ticks = self.stats.write_queue_ticks.wrapping_add(ticks);
            let count = &mut self.filter[hash(self.entries[i as usize].addr)];
            *count = count.wrapping_sub(1);
        }
    }

    /// A request has left the queue of this direction.
    #[inline]
    fn unblock(&mut self, write: bool) {
        if self.front.front().is_some_and(|f| f.write == write) {
            self.blocked = false;
            self.arrival = 0;
        }
    }

    // ---- issue -----------------------------------------------------------------------------------------------------

    #[inline(always)]
    fn count_first(&mut self, spec: &DramSpec, i: u16, cmd: Cmd, t: u64) {
        let e = &mut self.entries[i as usize];
        if matches!(cmd, Cmd::Pre | Cmd::Act) && e.opened == 0 {
            e.opened = t;
        }
        if e.counted {
            return;
        }
        e.counted = true;
        let count = match (cmd, spec.stats_after_command) {
            (Cmd::Pre, false) => &mut self.stats.conflicts,
            (Cmd::Pre, true) | (Cmd::Act, false) => &mut self.stats.misses,
            _ => &mut self.stats.hits,
        };
        *count = count.wrapping_add(1);
    }

    #[inline(always)]
    fn retire(&mut self, spec: &DramSpec, i: u16, t: u64, out: &mut Vec<Done>) {
        let Some(e) = self.entries.get_mut(i as usize) else {
            return;
        };
        e.next = std::mem::replace(&mut self.free, i);
        let s = &mut self.stats;
        s.bus_busy = s.bus_busy.wrapping_add(spec.burst.into());
        let wait = t.wrapping_sub(1).wrapping_sub(e.arrive);
        let mut refresh = self.refresh_time.wrapping_sub(e.refreshed);
        if !self.due.is_empty() {
            refresh = refresh.wrapping_add(t.saturating_sub(self.due_since.max(e.arrive)));
        }
        let refresh = refresh.min(wait);
        let rest = wait.wrapping_sub(refresh);
        let bank = if e.opened == 0 {
            0
        } else {
            t.wrapping_sub(e.opened)
        }
        .min(rest);
        let bus = rest.wrapping_sub(bank);
        s.wait_refresh = s.wait_refresh.wrapping_add(refresh);
        s.wait_bank = s.wait_bank.wrapping_add(bank);
        s.wait_bus = s.wait_bus.wrapping_add(bus);
        let (tag, arrive, latency) = (e.tag, e.arrive, u64::from(spec.read_latency));
        let waited = u64::from(e.waited);
        let mut cause = WaitCause::Latency;
        if waited.max(wait) > latency {
            cause = WaitCause::of(latency, waited, bank, bus, refresh);
        }
        if e.write {
            s.writes = s.writes.wrapping_add(1);
            self.flush(t, out);
            self.left = self.left.wrapping_sub(1);
            out.push(Done {
                tick: t.wrapping_sub(1),
                tag,
                cause,
            });
        } else {
            s.reads = s.reads.wrapping_add(1);
            self.depart(t.wrapping_add(latency), arrive, tag, cause);
        }
    }

    /// Issues a candidate at clock `t`.
    #[inline]
    fn issue<const LP: bool, L: Log>(
        &mut self,
        spec: &DramSpec,
        c: Cand,
        t: u64,
        out: &mut Vec<Done>,
        log: &mut L,
    ) {
        match (c.source, c.cmd) {
            (Source::Due, _) => self.issue_due(spec, c, t, log),
            (Source::Active, _) | (_, Cmd::Rd | Cmd::Wr) => self.issue_col(spec, c, t, out, log),
            (_, Cmd::Pre) => self.issue_pre(spec, c, t, log),
            _ => self.issue_act::<LP, L>(spec, c, t, log),
        }
    }

    /// A column command.
    #[inline]
    fn issue_col<L: Log>(
        &mut self,
        spec: &DramSpec,
        c: Cand,
        t: u64,
        out: &mut Vec<Done>,
        log: &mut L,
    ) {
        let b = c.bank as usize;
        let d = usize::from(c.write);
        if c.source == Source::Active {
            let i = at(&self.banks, b).holder;
            clear(&mut self.held, b);
            clear(&mut self.held_by[d], b);
            self.update_pre(b);
            self.column(spec, i, c, t, out, log);
            self.spoil(spec, c.cmd, b, t);
            self.compete_as(spec, timing::PRE, usize::from(self.write_mode), b, t);
        } else {
            let i = self.pop_hit(d, b);
            self.leave_queue(i, t);
            self.column(spec, i, c, t, out, log);
            self.spoil(spec, c.cmd, b, t);
        }
    }

    #[inline]
    fn issue_pre<L: Log>(&mut self, spec: &DramSpec, c: Cand, t: u64, log: &mut L) {
        let b = c.bank as usize;
        let d = usize::from(c.write);
        let i = at(&self.banks, b).lists[d].miss;
        self.count_first(spec, i, Cmd::Pre, t);
        log.log(t, Cmd::Pre, b, Some(self.entries[i as usize].addr), c.write);
        self.stats.precharges = self.stats.precharges.wrapping_add(1);
        self.touch(spec, Cmd::Pre, b, t);
        self.close(b);
        self.spoil(spec, Cmd::Pre, b, t);
        self.compete_as(spec, timing::ACT, d, b, t);
    }

    #[inline]
    fn issue_act<const LP: bool, L: Log>(&mut self, spec: &DramSpec, c: Cand, t: u64, log: &mut L) {
        let b = c.bank as usize;
        let d = usize::from(c.write);
        let i = self.pop_miss(d, b);
        self.count_first(spec, i, Cmd::Act, t);
        let row = self.entries[i as usize].row;
        log.log(t, Cmd::Act, b, Some(self.entries[i as usize].addr), c.write);
        self.stats.activates = self.stats.activates.wrapping_add(1);
        self.touch(spec, Cmd::Act, b, t);
        self.leave_queue(i, t);
        if LP {
            at_mut(&mut self.banks, b).state = BankState::Activating;
            clear(&mut self.act[0], b);
            clear(&mut self.act[1], b);
            self.act2 = Some(Act2 {
                entry: i,
                bank: b as u16,
                deadline: t + spec.table.act2_limit,
            });
        }
        self.spoil(spec, Cmd::Act, b, t);
        if !LP {
            self.promote(spec, i, b, t);
            self.open(b, row);
            self.compete_as(spec, timing::COL, d, b, t);
        }
    }

    /// The bank is open for entry `i`, which now waits for its column command alone.
    #[inline]
    fn promote(&mut self, spec: &DramSpec, i: u16, b: usize, t: u64) {
        let e = &self.entries[i as usize];
        let write = e.write;
        // The reference compares ticks of acceptance and, within one, the order of activation. The ages of a tick's
        // requests are its own.
        let group = e.seq.wrapping_sub(e.nth.into());
        let mut age = group;
        for w in 0..W {
            let mut m = self.held[w];
            while m != 0 {
                let o = at(&self.banks, w << 6 | m.trailing_zeros() as usize);
                m &= m.wrapping_sub(1);
                if o.holder_age >= age {
                    let e = &self.entries[o.holder as usize];
                    if e.seq.wrapping_sub(e.nth.into()) == group {
                        age = o.holder_age.wrapping_add(1);
                    }
                }
            }
        }
        let bank = at_mut(&mut self.banks, b);
        bank.holder = i;
        bank.holder_age = age;
        put(&mut self.held, b);
        put(&mut self.held_by[usize::from(write)], b);
        let (class, cmd) = if write {
            (timing::HELD_WR, WR)
        } else {
            (timing::HELD_RD, RD)
        };
        if at(&self.tops, b.wrapping_shr(spec.table.top_shift)).stale & class == 0 {
            self.compete(spec, class, cmd, age, b, t);
        } else {
            self.dirty |= 1 << HELD;
        }
    }

    #[inline]
    fn column<L: Log>(
        &mut self,
        spec: &DramSpec,
        i: u16,
        c: Cand,
        t: u64,
        out: &mut Vec<Done>,
        log: &mut L,
    ) {
        let b = c.bank as usize;
        self.count_first(spec, i, c.cmd, t);
        let mut cmd = c.cmd;
        if spec.row_policy == RowPolicy::Closed {
            let closing = if c.write { Cmd::WrA } else { Cmd::RdA };
            let [reads, writes] = &at(&self.banks, b).lists;
            let wanted = reads.hit != NIL || writes.hit != NIL || get(&self.held, b);
            if !wanted && self.ready(spec, closing as usize, b) <= t {
                cmd = closing;
            }
        }
        log.log(t, cmd, b, Some(self.entries[i as usize].addr), c.write);
        self.touch(spec, cmd, b, t);
        if cmd != c.cmd {
            self.stats.precharges = self.stats.precharges.wrapping_add(1);
            self.close(b);
            self.forget(spec);
        }
        self.retire(spec, i, t, out);
    }

    fn issue_due<L: Log>(&mut self, spec: &DramSpec, c: Cand, t: u64, log: &mut L) {
        let Some(&d) = self.due.front() else { return };
        let (lo, hi) = (d.lo as usize, d.hi as usize);
        log.log(t, c.cmd, lo, None, false);
        self.forget(spec);
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
            self.stats.precharges = self.stats.precharges.wrapping_add(1);
            for b in lo..hi {
                if at(&self.banks, b).state != BankState::Closed {
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
        if self.due.len() > MAX_DUE {
            // The device cannot keep up with its own interval; the load check makes this a matter of extreme tables.
            if let Refresh::AllBank { interval, .. } | Refresh::PerBank { interval } = spec.refresh
            {
                self.next_refresh += u64::from(interval);
            }
            return;
        }
        match spec.refresh {
            Refresh::None => {}
            Refresh::AllBank { interval, level } => {
                self.next_refresh += u64::from(interval);
                let nodes: u32 = spec.levels[..=level as usize].iter().product();
                let each = banks / nodes;
                for n in 0..nodes {
                    self.due.push_back(Due {
                        lo: (n * each) as u16,
                        hi: ((n + 1) * each) as u16,
                        single: false,
                    });
                }
            }
            Refresh::PerBank { interval } => {
                self.next_refresh += u64::from(interval);
                let b = self.next_refresh_bank as u16;
                self.due.push_back(Due {
                    lo: b,
                    hi: b + 1,
                    single: true,
                });
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
        out: &mut Vec<Done>,
        log: &mut L,
    ) {
        let mut t = self.clk;
        let mut event = self.next_event;
        while t <= end {
            if t == self.next_refresh {
                self.add_due(spec, t);
                self.dirty = ALL_DIRTY;
            }
            if t >= self.arrival {
                self.admit(spec, t, out);
            }
            let wake = self.arrival.min(self.next_refresh);
            if !LP {
                if event > t && self.due.is_empty() {
                    self.set_write_mode(spec);
                }
                if self.dirty == 0 && event > t {
                    t = wake.min(event).min(end.wrapping_add(1));
                    continue;
                }
            }
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
                t = t.wrapping_add(1);
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
                t = t.wrapping_add(1);
                continue;
            }
            let mut c = self.best_active::<false>(spec, t);
            if c.time > t {
                let other = if self.due.is_empty() {
                    self.set_write_mode(spec);
                    let mut best = self.pick::<false>(spec, QUEUED, t);
                    let row = if LP && second.is_some() {
                        let pre = self.find::<false>(spec, timing::PRE, t);
                        Pick {
                            time: pre.time,
                            age: pre.age,
                            bank: pre.bank as u32,
                            cmd: Cmd::Pre,
                        }
                    } else {
                        self.pick::<false>(spec, ROW, t)
                    };
                    if (row.time, row.age) < (best.time, best.age) {
                        best = row;
                    }
                    self.queue_cand(best)
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
                t = t.wrapping_add(1);
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
                                Source::Active => at(&self.banks, c.bank.into()).holder,
                                _ => at(&self.banks, c.bank.into()).lists[usize::from(c.write)].hit,
                            };
                            log.log(
                                t,
                                cas,
                                c.bank.into(),
                                Some(self.entries[e as usize].addr),
                                c.write,
                            );
                            self.touch(spec, cas, c.bank.into(), t);
                            self.cas = Some(c);
                        }
                    }
                    event = 0;
                    t = t.wrapping_add(1);
                    continue;
                }
                if !spec.wck_always_on {
                    self.extend_wck(spec, c.write, t);
                }
            }
            self.issue::<LP, L>(spec, c, t, out, log);
            event = 0;
            t = t.wrapping_add(1);
        }
        self.next_event = event.min(self.next_refresh).max(t);
        self.clk = t;
    }

    fn extend_wck(&mut self, spec: &DramSpec, write: bool, t: u64) {
        let span = if write {
            spec.table.wck_write
        } else {
            spec.table.wck_read
        };
        self.wck_expiry = self.wck_expiry.max(t + span);
    }

    fn issue_act2<L: Log>(&mut self, spec: &DramSpec, t: u64, log: &mut L) {
        let Some(a) = self.act2.take() else { return };
        let (b, e) = (a.bank as usize, self.entries[a.entry as usize]);
        log.log(t, Cmd::Act2, b, Some(e.addr), e.write);
        self.touch(spec, Cmd::Act2, b, t);
        self.spoil(spec, Cmd::Act2, b, t);
        self.promote(spec, a.entry, b, t);
        self.open(b, e.row);
        self.compete_as(spec, timing::COL, usize::from(self.write_mode), b, t);
    }

    #[inline(always)]
    fn best_row<const HALF: bool>(&mut self, spec: &DramSpec, free: bool, t: u64) -> Cand {
        if free {
            let row = self.pick::<HALF>(spec, ROW, t);
            self.queue_cand(row)
        } else {
            self.best_due::<HALF>(spec, t)
        }
    }

    /// A column and a row command per tick: HBM, HBM2 and, with `HALF`, HBM3 in half-clock ticks.
    fn run_dual<const HALF: bool, L: Log>(
        &mut self,
        spec: &DramSpec,
        end: u64,
        out: &mut Vec<Done>,
        log: &mut L,
    ) {
        let mut t = self.clk;
        let mut event = self.next_event;
        while t <= end {
            if t == self.next_refresh {
                self.add_due(spec, t);
                self.dirty = ALL_DIRTY;
            }
            if t >= self.arrival {
                self.admit(spec, t, out);
            }
            let free = self.due.is_empty();
            if free {
                self.set_write_mode(spec);
            }
            if self.dirty == 0 && event > t {
                t = self
                    .arrival
                    .min(self.next_refresh)
                    .min(event)
                    .min(end.wrapping_add(1));
                continue;
            }
            let mut col = self.best_active::<HALF>(spec, t);
            if free && col.time > t {
                let c = self.pick::<HALF>(spec, QUEUED, t);
                if c.time < col.time {
                    col = self.queue_cand(c);
                }
            }
            let mut row = NO_CAND;
            if col.time > t {
                row = self.best_row::<HALF>(spec, free, t);
                let first = col.time.min(row.time);
                if first > t {
                    let stop = self.arrival.min(self.next_refresh).min(end.wrapping_add(1));
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
                self.issue_col(spec, col, t, out, log);
                if free {
                    self.set_write_mode(spec);
                }
                row = self.best_row::<HALF>(spec, free, t);
            }
            if row.time == t {
                if HALF && t & 1 == 1 {
                    let old = self.rising.edge;
                    let all = matches!(row.cmd, Cmd::PreAll | Cmd::RefAll);
                    let whole = matches!(spec.refresh, Refresh::AllBank { level: 0, .. });
                    self.rising = Rising {
                        edge: t + if row.cmd == Cmd::Act { 3 } else { 1 },
                        pc: if all && whole {
                            u32::MAX
                        } else {
                            pc_of(spec, row.bank.into())
                        },
                        bank: if all { u32::MAX } else { row.bank.into() },
                    };
                    // The pairing rule is about one tick: a best before or after it stays the best.
                    for p in 0..spec.table.tops {
                        let top = at_mut(&mut self.tops, p);
                        let known = top.best[class_index(timing::PRE)].time;
                        if old >= t || known == self.rising.edge || known == old {
                            top.stale |= timing::PRE;
                        }
                    }
                }
                self.issue::<false, L>(spec, row, t, out, log);
            }
            t = t.wrapping_add(1);
        }
        self.next_event = event.min(self.next_refresh).max(t);
        self.clk = t;
    }
}

/// The requests of list `i` that go to `row` as hits, the others as misses.
fn split(entries: &mut [Entry], mut i: u16, row: u32) -> Lists {
    let mut out = NO_LISTS;
    while let Some(e) = entries.get_mut(i as usize) {
        let next = std::mem::replace(&mut e.next, NIL);
        let (head, tail) = if e.row == row {
            (&mut out.hit, &mut out.hit_tail)
        } else {
            (&mut out.miss, &mut out.miss_tail)
        };
        let last = std::mem::replace(tail, i);
        if *head == NIL {
            *head = i;
        } else {
            entries[last as usize].next = i;
        }
        i = next;
    }
    out
}

/// Both lists as one, by age.
fn merge(entries: &mut [Entry], l: Lists) -> Lists {
    let (mut x, mut y) = (l.hit, l.miss);
    let mut out = NO_LISTS;
    while x != NIL || y != NIL {
        let first = y == NIL || (x != NIL && entries[x as usize].seq < entries[y as usize].seq);
        let i = if first { x } else { y };
        let next = entries[i as usize].next;
        if first {
            x = next;
        } else {
            y = next;
        }
        if out.miss == NIL {
            out.miss = i;
        } else {
            entries[out.miss_tail as usize].next = i;
        }
        out.miss_tail = i;
    }
    if out.miss_tail != NIL {
        entries[out.miss_tail as usize].next = NIL;
    }
    out
}

#[inline]
fn pc_of(spec: &DramSpec, bank: usize) -> u32 {
    (bank >> spec.table.top_shift) as u32
}
