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
use super::timing::{self, Rule, Simple};

const NIL: u16 = u16::MAX;
const NEVER: u64 = u64::MAX;
/// Low bits of a selection key hold the age, the rest the ready time relative to now.
const AGE_BITS: u32 = 44;
const WORDS: usize = 4;
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
    /// Age of the first request accepted in the same tick.
    group: u64,
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

/// The best candidate of a class, found earlier and still the best while its time has not passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Best {
    time: u64,
    age: u64,
    bank: usize,
}

const NO_BEST: Best = Best {
    time: NEVER,
    age: 0,
    bank: NONE,
};

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

/// One channel under the Ramulator controller: all state, apart from the spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exact {
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
    /// Banks that were opened for a request that still waits for its column command; all, and per direction.
    held: [u64; WORDS],
    held_by: [[u64; WORDS]; 2],
    /// Per bank that request and its rank: by tick of acceptance, then by order of activation.
    holder: Vec<u16>,
    holder_age: Vec<u64>,
    /// Best candidate per class for the current direction, and the classes for which it is unknown.
    best: [Best; 4],
    stale: u8,
    /// First age of the tick in which the last request was accepted.
    tick_seq: u64,
    tick_of_seq: u64,
    /// Ready clocks of every command per top node, group and bank.
    top_ready: Vec<Ready>,
    group_ready: Vec<Ready>,
    bank_ready: Vec<Ready>,
    rings: Vec<u64>,
    /// Clock of the last issue per (command, bank), for the rules that delay refreshes.
    last: Vec<u64>,
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
    filter: Vec<u16>,
    queue_since: [u64; 2],
    /// The head of the front queue found its queue full and nothing has left that queue since; per direction.
    blocked: [bool; 2],
    /// No event before this clock.
    next_event: u64,
    stats: DramStats,
}

/// No bank.
const NONE: usize = usize::MAX;

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
    mask[w] = mask[w] & !1u64.wrapping_shl(b as u32) | u64::from(on).wrapping_shl(b as u32);
}

#[inline]
fn get(mask: &[u64; WORDS], bit: usize) -> bool {
    mask[bit >> 6 & (WORDS - 1)].wrapping_shr(bit as u32 & 63) & 1 != 0
}

impl Exact {
    /// An idle channel with all banks closed at tick 0.
    pub fn new(spec: &DramSpec) -> Exact {
        let t = &spec.table;
        let slots = (spec.read_queue + spec.write_queue) as usize + t.banks + 1;
        let blank = Entry {
            addr: 0,
            seq: 0,
            group: 0,
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
        let entries = (0..slots).map(|i| Entry {
            next: if i + 1 < slots { i as u16 + 1 } else { NIL },
            ..blank
        });
        Exact {
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
            held_by: [[0; WORDS]; 2],
            holder: vec![NIL; t.banks],
            holder_age: vec![0; t.banks],
            best: [NO_BEST; 4],
            stale: u8::MAX,
            tick_seq: 0,
            tick_of_seq: 0,
            top_ready: vec![[0; 16]; t.tops],
            group_ready: vec![[0; 16]; t.groups],
            bank_ready: vec![[0; 16]; t.banks],
            rings: vec![0; t.ring_slots],
            last: vec![0; CMDS * t.banks],
            due: VecDeque::with_capacity(16),
            next_refresh: match spec.refresh {
                Refresh::None => NEVER,
                Refresh::AllBank { interval, .. } | Refresh::PerBank { interval } => {
                    interval.into()
                }
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
            rising: Rising {
                edge: 0,
                pc: 0,
                bank: 0,
            },
            filter: vec![0; FILTER],
            queue_since: [0; 2],
            blocked: [false; 2],
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
        out: &mut Vec<(u64, u32)>,
    ) -> bool {
        let f = Front {
            at: self.clk - 1,
            addr,
            tag,
            write,
        };
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

    /// As [`Exact::advance`], and appends every command to `log`.
    pub fn advance_logged(
        &mut self,
        spec: &DramSpec,
        horizon: u64,
        out: &mut Vec<(u64, u32)>,
        log: &mut Vec<CommandRecord>,
    ) {
        self.advance_with(spec, horizon, out, log);
    }

    fn advance_with<L: Log>(
        &mut self,
        spec: &DramSpec,
        horizon: u64,
        out: &mut Vec<(u64, u32)>,
        log: &mut L,
    ) {
        if horizon < self.clk {
            return;
        }
        let horizon = horizon.min(NEVER - 1);
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
            let wait = if self.blocked[usize::from(f.write)] {
                event
            } else {
                f.at
            };
            t = t.min(wait.max(self.clk - 1));
        }
        t
    }

    /// The next tick at which the controller may do anything; nothing changes before it unless something is pushed.
    pub fn next_event(&self) -> u64 {
        let mut t = self.next_event.max(self.clk);
        if let Some(f) = self.front.front()
            && !self.blocked[usize::from(f.write)]
        {
            t = t.min((f.at + 1).max(self.clk));
        }
        t - 1
    }

    /// Appends the state as numbers that do not depend on when and where: times relative to tick `now`, rows relative to
    /// `row_base`, ages as ranks.
    ///
    /// `now` is the horizon of the last `advance`. Two channels of one spec whose numbers are equal behave alike from
    /// here on, shifted in time and row, counters included. Tags are left out: the caller knows the order of its own
    /// requests.
    pub fn canonical(&self, spec: &DramSpec, now: u64, row_base: u32, out: &mut Vec<u64>) {
        let clk = now + 1;
        let rows = spec.rows.max(1);
        let row = |r: u32| u64::from(r.wrapping_sub(row_base) & (rows - 1));
        let later = |t: u64| t.saturating_sub(clk);
        // Beyond the longest rule a past time no longer matters.
        let ago = |t: u64| {
            if t == 0 || clk - t > 1 << 19 {
                NEVER
            } else {
                clk - t
            }
        };
        out.extend([u64::from(self.write_mode), later(self.wck_expiry)]);
        out.push(if self.next_refresh == NEVER {
            NEVER
        } else {
            later(self.next_refresh)
        });
        out.push(if spec.table.half { clk & 1 } else { 0 });
        out.extend([self.next_refresh_bank, self.len[0], self.len[1]].map(u64::from));
        out.extend([
            later(self.last_depart),
            u64::from(self.blocked[0]),
            u64::from(self.blocked[1]),
        ]);
        let edge = self.rising.edge >= clk;
        out.extend(if edge {
            [
                later(self.rising.edge) + 1,
                u64::from(self.rising.pc),
                u64::from(self.rising.bank),
            ]
        } else {
            [0; 3]
        });
        for t in [&self.top_ready, &self.group_ready, &self.bank_ready] {
            out.extend(t.iter().flatten().map(|&t| later(t)));
        }
        out.extend(self.rings.iter().chain(&self.last).map(|&t| ago(t)));
        let mut ages: Vec<u64> = Vec::with_capacity(self.outstanding());
        let each = |mut i: u16, f: &mut dyn FnMut(&Entry)| {
            while i != NIL {
                f(&self.entries[i as usize]);
                i = self.entries[i as usize].next;
            }
        };
        for l in self.lists.iter().flatten() {
            each(l.hit, &mut |e| ages.push(e.seq));
            each(l.miss, &mut |e| ages.push(e.seq));
        }
        ages.sort_unstable();
        let entry = |e: &Entry, out: &mut Vec<u64>| {
            let rank = ages.binary_search(&e.seq).map_or(NEVER, |r| r as u64);
            let opened = if e.opened == 0 { NEVER } else { clk - e.opened };
            out.extend([
                rank,
                clk - e.arrive,
                row(e.row),
                u64::from(spec.map.column(e.addr)),
                opened,
            ]);
            out.extend([
                self.refresh_time - e.refreshed,
                u64::from(e.write) << 1 | u64::from(e.counted),
            ]);
        };
        for b in 0..self.state.len() {
            out.push(match self.state[b] {
                BankState::Closed => NEVER,
                BankState::Activating => NEVER - 1,
                BankState::Open => row(self.row[b]),
            });
            for lists in &self.lists {
                for head in [lists[b].hit, lists[b].miss] {
                    each(head, &mut |e| entry(e, out));
                    out.push(NEVER);
                }
            }
            if get(&self.held, b) {
                let older = (0..self.state.len())
                    .filter(|&o| get(&self.held, o) && self.holder_age[o] < self.holder_age[b])
                    .count();
                out.push(older as u64);
                entry(&self.entries[self.holder[b] as usize], out);
            }
        }
        for d in &self.due {
            out.extend([u64::from(d.lo), u64::from(d.hi), u64::from(d.single)]);
        }
        out.push(if self.due.is_empty() {
            NEVER
        } else {
            clk - self.due_since
        });
        if let Some(a) = self.act2 {
            out.extend([u64::from(a.bank), later(a.deadline)]);
            entry(&self.entries[a.entry as usize], out);
        }
        if let Some(c) = self.cas {
            out.extend([
                u64::from(c.bank),
                u64::from(c.write) << 1 | u64::from(c.source == Source::Active),
            ]);
        }
        out.push(NEVER);
        out.extend(self.pending.iter().map(|p| later(p.depart)));
        out.push(NEVER);
        for f in &self.front {
            let (bank, r) = spec.map.bank_row(f.addr);
            out.extend([later(f.at + 1), row(r)]);
            out.extend([bank, spec.map.column(f.addr), u32::from(f.write)].map(u64::from));
        }
    }

    /// Requests accepted or waiting and not completed.
    pub fn outstanding(&self) -> usize {
        self.front.len()
            + self.len[0] as usize
            + self.len[1] as usize
            + self
                .held
                .iter()
                .map(|w| w.count_ones() as usize)
                .sum::<usize>()
            + usize::from(self.act2.is_some())
            + self.pending.len()
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

    #[inline(always)]
    fn enqueue(&mut self, spec: &DramSpec, f: Front, t: u64, out: &mut Vec<(u64, u32)>) -> bool {
        let d = usize::from(f.write);
        let (bank, row) = spec.map.bank_row(f.addr);
        let b = bank as usize;
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
        let cap = if f.write {
            spec.write_queue
        } else {
            spec.read_queue
        };
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
        if self.tick_of_seq != t {
            self.tick_of_seq = t;
            self.tick_seq = seq;
        }
        *e = Entry {
            addr: f.addr,
            seq,
            group: self.tick_seq,
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
                l.hit_tail = i;
                self.compete_as(spec, timing::COL, d, b, t);
                return true;
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
                l.miss_tail = i;
                let class = if self.state[b] == BankState::Open {
                    timing::PRE
                } else {
                    timing::ACT
                };
                self.compete_as(spec, class, d, b, t);
                return true;
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
            // While the head waits no write enters, so it cannot become one to forward or coalesce.
            if self.blocked[usize::from(f.write)] || !self.enqueue(spec, f, t, out) {
                self.blocked[usize::from(f.write)] = true;
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
            let base = r.before as usize * t.banks;
            let last = self.last[base + from..base + to]
                .iter()
                .copied()
                .max()
                .unwrap_or(0);
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
    #[inline(always)]
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
            lift(
                &mut self.group_ready[bank.wrapping_shr(tb.bank_shift)],
                &e.group,
                t,
            );
        }
        let top = bank.wrapping_shr(tb.top_shift);
        lift(&mut self.top_ready[top], &e.top, t);
        for r in &e.tops {
            let when = t.wrapping_add(r.cycles.into());
            for top in &mut self.top_ready {
                let x = &mut top[r.target as usize & 15];
                *x = (*x).max(when);
            }
        }
        for r in &e.mid_siblings {
            let when = t.wrapping_add(r.cycles.into());
            let level = r.level as usize;
            let shift = tb.level_shift[level].wrapping_sub(tb.bank_shift);
            let up = tb.level_shift[level - 1].wrapping_sub(tb.bank_shift);
            let g = bank.wrapping_shr(tb.bank_shift);
            let first = g.wrapping_shr(up).wrapping_shl(up);
            let last = first.wrapping_add(1usize.wrapping_shl(up));
            let own = g.wrapping_shr(shift).wrapping_shl(shift);
            let next = own.wrapping_add(1usize.wrapping_shl(shift));
            for range in [first..own, next..last] {
                for x in &mut self.group_ready[range] {
                    let x = &mut x[r.target as usize & 15];
                    *x = (*x).max(when);
                }
            }
        }
        for r in &e.windows {
            let ring = Exact::ring(&mut self.rings, r.ring as usize, r.window.into(), top, t);
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
            match Exact::ring(&mut self.rings, r.ring as usize, r.window.into(), node, t) {
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
        let old = self.write_mode;
        if old {
            if self.len[1] < spec.drain_below && self.len[0] != 0 {
                self.write_mode = false;
            }
        } else if self.len[1] > spec.drain_above || self.len[0] == 0 {
            self.write_mode = true;
        }
        if self.write_mode != old {
            self.stale |= timing::COL | timing::PRE | timing::ACT;
        }
    }

    /// A bank may have become a candidate of `class` in direction `d`: keeps the known best right.
    #[inline(always)]
    fn compete_as(&mut self, spec: &DramSpec, class: u8, d: usize, b: usize, t: u64) {
        if d != usize::from(self.write_mode) || self.stale & class != 0 {
            return;
        }
        let (cmd, mask, age) = match class {
            timing::COL => (
                if d == 0 { RD } else { WR },
                &self.col[d],
                self.hit_seq[d][b],
            ),
            timing::PRE => (PRE, &self.pre[d], self.miss_seq[d][b]),
            _ => (ACT, &self.act[d], self.miss_seq[d][b]),
        };
        if !get(mask, b) {
            return;
        }
        let mut time = self.ready(spec, cmd, b).max(t);
        if spec.table.half {
            if class != timing::PRE {
                time |= 1;
            } else if time == self.rising.edge && self.pairing_blocks(spec, b) {
                time += 1;
            }
        }
        let best = &mut self.best[class.trailing_zeros() as usize & 3];
        if (time, age) < (best.time, best.age) {
            *best = Best { time, age, bank: b };
        }
    }

    /// What a command to bank `b` at clock `t` makes unknown: bests that lie at the bank itself, and those that a rule
    /// above the bank may delay. A best later than that is still the best, as no candidate was earlier.
    #[inline]
    fn spoil(&mut self, spec: &DramSpec, cmd: Cmd, b: usize, t: u64, also: u8) {
        let delays = &spec.table.effects[cmd as usize].delays;
        let hit = |best: &Best, delay: u64, class: u8| {
            if best.bank == b || best.time < t.wrapping_add(delay) {
                class
            } else {
                0
            }
        };
        self.stale |= also
            | hit(&self.best[0], delays[0], timing::COL)
            | hit(&self.best[1], delays[1], timing::PRE)
            | hit(&self.best[2], delays[2], timing::ACT)
            | hit(&self.best[3], delays[3], timing::ACTIVE);
    }

    /// The best candidate of `class` from clock `t` on.
    #[inline(always)]
    fn find<const HALF: bool>(&mut self, spec: &DramSpec, class: u8, t: u64) -> Best {
        let i = class.trailing_zeros() as usize & 3;
        let known = self.best[i];
        if self.stale & class == 0 && known.time >= t {
            return known;
        }
        let d = usize::from(self.write_mode);
        let mut best = (NEVER, NONE);
        match class {
            timing::COL => {
                let cmd = if d == 0 { RD } else { WR };
                if any(&self.col[d]) {
                    self.scan::<HALF, false>(
                        spec,
                        cmd,
                        &self.col[d],
                        &self.hit_seq[d],
                        t,
                        &mut best,
                    );
                }
            }
            timing::PRE => {
                if any(&self.pre[d]) {
                    self.scan::<false, HALF>(
                        spec,
                        PRE,
                        &self.pre[d],
                        &self.miss_seq[d],
                        t,
                        &mut best,
                    );
                }
            }
            timing::ACT => {
                if any(&self.act[d]) {
                    self.scan::<HALF, false>(
                        spec,
                        ACT,
                        &self.act[d],
                        &self.miss_seq[d],
                        t,
                        &mut best,
                    );
                }
            }
            _ => {
                for (cmd, held) in [RD, WR].into_iter().zip(&self.held_by) {
                    if any(held) {
                        self.scan::<HALF, false>(spec, cmd, held, &self.holder_age, t, &mut best);
                    }
                }
            }
        }
        let (key, bank) = best;
        let found = if bank == NONE {
            NO_BEST
        } else {
            Best {
                time: t.wrapping_add(key >> AGE_BITS),
                age: key & ((1 << AGE_BITS) - 1),
                bank,
            }
        };
        self.best[i] = found;
        self.stale &= !class;
        found
    }

    #[inline(always)]
    fn best_active<const HALF: bool>(&mut self, spec: &DramSpec, t: u64) -> Cand {
        let b = self.find::<HALF>(spec, timing::ACTIVE, t);
        if b.bank == NONE {
            return NO_CAND;
        }
        let write = get(&self.held_by[1], b.bank);
        let cmd = if write { Cmd::Wr } else { Cmd::Rd };
        Cand {
            time: b.time,
            cmd,
            bank: b.bank as u16,
            source: Source::Active,
            write,
        }
    }

    /// Lowers `best` to the best (key, bank) among `mask`, whose banks all need `cmd`; `ODD` rounds up to a rising edge, `PAIRED` heeds HBM3's pairing rule.
    #[inline(always)]
    fn scan<const ODD: bool, const PAIRED: bool>(
        &self,
        spec: &DramSpec,
        cmd: usize,
        mask: &[u64; WORDS],
        ages: &[u64],
        t: u64,
        best: &mut (u64, usize),
    ) {
        let (tb, cmd) = (&spec.table, cmd & 15);
        let mut found = *best;
        for &(top, word, bits) in &tb.slices {
            let mut m = mask[word as usize & (WORDS - 1)] & bits;
            let base = self.top_ready[top as usize][cmd].max(t);
            if m == 0 || base.wrapping_sub(t) << AGE_BITS > found.0 {
                continue;
            }
            let first = word.wrapping_mul(64) as usize;
            while m != 0 {
                let b = first | m.trailing_zeros() as usize;
                m &= m.wrapping_sub(1);
                let group = self.group_ready[b.wrapping_shr(tb.bank_shift)][cmd];
                let mut time = group.max(self.bank_ready[b][cmd]).max(base);
                if ODD {
                    time |= 1;
                }
                if PAIRED && time == self.rising.edge && self.pairing_blocks(spec, b) {
                    time = time.wrapping_add(1);
                }
                let key = time.wrapping_sub(t) << AGE_BITS | ages[b];
                if key < found.0 {
                    found = (key, b);
                }
            }
        }
        *best = found;
    }

    #[inline(always)]
    fn best_col<const HALF: bool>(&mut self, spec: &DramSpec, t: u64) -> Best {
        self.find::<HALF>(spec, timing::COL, t)
    }

    /// HBM3: a precharge of `bank` may not pair with the row command of the rising edge before.
    #[inline]
    fn pairing_blocks(&self, spec: &DramSpec, bank: usize) -> bool {
        self.rising.pc == pc_of(spec, bank)
            && (self.rising.bank == u32::MAX || self.rising.bank == bank as u32)
    }

    /// The command of the oldest refresh that is due.
    fn best_due<const HALF: bool>(&self, spec: &DramSpec, t: u64) -> Cand {
        let Some(&d) = self.due.front() else {
            return NO_CAND;
        };
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
    fn queue_cand(&self, cmd: Cmd, b: Best) -> Cand {
        Cand {
            time: b.time,
            cmd,
            bank: b.bank as u16,
            source: Source::Queue,
            write: self.write_mode,
        }
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
            let first = y == NIL
                || (x != NIL && self.entries[x as usize].seq < self.entries[y as usize].seq);
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

    #[inline(always)]
    fn leave_queue(&mut self, i: u16, t: u64) {
        let e = &self.entries[i as usize];
        let (d, addr) = (usize::from(e.write), e.addr);
        // The entry leaves in tick `t`; it still counts for that tick.
        self.count_queue(d, t + 1);
        self.len[d] -= 1;
        self.blocked[d] = false;
        if d == 1 {
            self.filter[hash(addr)] -= 1;
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
            (Source::Active, _) => {
                let i = self.holder[b];
                set(&mut self.held, b, false);
                set(&mut self.held_by[d], b, false);
                self.update_pre(b);
                self.column(spec, i, c, t, out, log);
                self.spoil(spec, c.cmd, b, t, timing::ACTIVE);
                self.compete_as(spec, timing::PRE, usize::from(self.write_mode), b, t);
            }
            (Source::Queue, Cmd::Pre) => {
                let i = self.lists[d][b].miss;
                self.count_first(spec, i, Cmd::Pre, t);
                log.log(t, Cmd::Pre, b, Some(self.entries[i as usize].addr), c.write);
                self.stats.precharges += 1;
                self.touch(spec, Cmd::Pre, b, t);
                self.close(b);
                self.spoil(spec, Cmd::Pre, b, t, timing::PRE);
                self.compete_as(spec, timing::ACT, d, b, t);
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
                    self.act2 = Some(Act2 {
                        entry: i,
                        bank: b as u16,
                        deadline: t + spec.table.act2_limit,
                    });
                }
                self.spoil(spec, Cmd::Act, b, t, timing::ACT);
                if !LP {
                    self.promote(spec, i, b, t);
                    self.open(b, e.row);
                    self.compete_as(spec, timing::COL, d, b, t);
                }
            }
            (Source::Queue, _) => {
                let i = self.pop_hit(d, b);
                self.leave_queue(i, t);
                self.column(spec, i, c, t, out, log);
                self.spoil(spec, c.cmd, b, t, timing::COL);
            }
        }
    }

    /// The bank is open for entry `i`, which now waits for its column command alone.
    #[inline]
    fn promote(&mut self, spec: &DramSpec, i: u16, b: usize, t: u64) {
        let (group, write) = (
            self.entries[i as usize].group,
            self.entries[i as usize].write,
        );
        // The reference compares ticks of acceptance and, within one, the order of activation.
        let mut age = group;
        for w in 0..WORDS {
            let mut m = self.held[w];
            while m != 0 {
                let o = w << 6 | m.trailing_zeros() as usize;
                m &= m.wrapping_sub(1);
                if self.entries[self.holder[o] as usize].group == group {
                    age = age.max(self.holder_age[o].wrapping_add(1));
                }
            }
        }
        self.holder[b] = i;
        self.holder_age[b] = age;
        set(&mut self.held, b, true);
        set(&mut self.held_by[usize::from(write)], b, true);
        if self.stale & timing::ACTIVE == 0 {
            let time = self.ready(spec, if write { WR } else { RD }, b).max(t)
                | u64::from(spec.table.half);
            let best = &mut self.best[3];
            if (time, age) < (best.time, best.age) {
                *best = Best { time, age, bank: b };
            }
        }
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
            let wanted =
                self.lists[0][b].hit != NIL || self.lists[1][b].hit != NIL || get(&self.held, b);
            if !wanted && self.ready(spec, closing as usize, b) <= t {
                cmd = closing;
            }
        }
        log.log(t, cmd, b, Some(self.entries[i as usize].addr), c.write);
        self.touch(spec, cmd, b, t);
        if cmd != c.cmd {
            self.stats.precharges += 1;
            self.close(b);
            self.stale = u8::MAX;
        }
        self.retire(spec, i, t, out);
    }

    fn issue_due<L: Log>(&mut self, spec: &DramSpec, c: Cand, t: u64, log: &mut L) {
        let Some(&d) = self.due.front() else { return };
        let (lo, hi) = (d.lo as usize, d.hi as usize);
        log.log(t, c.cmd, lo, None, false);
        self.stale = u8::MAX;
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
                    let mut best = self.best_col::<false>(spec, t);
                    let mut cmd = if self.write_mode { Cmd::Wr } else { Cmd::Rd };
                    let pre = self.find::<false>(spec, timing::PRE, t);
                    if (pre.time, pre.age) < (best.time, best.age) {
                        (best, cmd) = (pre, Cmd::Pre);
                    }
                    if !LP || second.is_none() {
                        let act = self.find::<false>(spec, timing::ACT, t);
                        if (act.time, act.age) < (best.time, best.age) {
                            (best, cmd) = (act, Cmd::Act);
                        }
                    }
                    self.queue_cand(cmd, best)
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
                                Source::Active => self.holder[c.bank as usize],
                                _ => self.lists[usize::from(c.write)][c.bank as usize].hit,
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
        self.spoil(spec, Cmd::Act2, b, t, 0);
        self.promote(spec, a.entry, b, t);
        self.open(b, e.row);
        self.compete_as(spec, timing::COL, usize::from(self.write_mode), b, t);
    }

    #[inline(always)]
    fn best_row<const HALF: bool>(&mut self, spec: &DramSpec, free: bool, t: u64) -> Cand {
        if free {
            let pre = self.find::<HALF>(spec, timing::PRE, t);
            let act = self.find::<HALF>(spec, timing::ACT, t);
            if (act.time, act.age) < (pre.time, pre.age) {
                self.queue_cand(Cmd::Act, act)
            } else {
                self.queue_cand(Cmd::Pre, pre)
            }
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
                    let c = self.best_col::<HALF>(spec, t);
                    if c.time < col.time {
                        col = self.queue_cand(if self.write_mode { Cmd::Wr } else { Cmd::Rd }, c);
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
                    let known = self.best[1].time;
                    if old >= t || known == self.rising.edge || known == old {
                        self.stale |= timing::PRE;
                    }
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
