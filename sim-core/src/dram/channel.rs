//! One channel under Ramulator 2.1's controller rules, computed from event to event.
//!
//! Time. A tick `t` of the interface is clock `t + 1` of the reference, whose first tick has clock 1. Internally all
//! times are clocks.
//!
//! Queues. Requests of one direction and bank that go to the open row form the bank's *hit* list, the others its *miss*
//! list, both by age. All requests of one list need the same command at the same time, so only heads compete: the next
//! command is the oldest of at most two heads per bank whose timing is met, at the first clock at which any is met. That
//! is the reference's rule.
//!
//! Three kinds of commands compete: column commands of banks that were opened for a request, column commands of the
//! queue, row commands of the queue. Of each kind the best is kept (`Pick`). What happens later can delay it, which is
//! checked when its time has come, and what joins is compared with it when it joins; so the kept one is never behind
//! the true one, and it is looked for anew only when it was issued or turns out not to be ready.
//!
//! Row commands may have many candidates. A mask holds the banks that a rule at their bank or bank group may still
//! delay; it is cleared bank by bank as rules expire, and the others need only their ages compared.

mod canonical;

use std::collections::VecDeque;

use super::ring::Ring;
use super::spec::{Bus, DramSpec, Refresh, RowPolicy};
use super::standards::Cmd;
use super::stats::{Done, DramStats, WaitCause};
use super::timing::Rule;

const NIL: u16 = u16::MAX;
const NEVER: u64 = u64::MAX;
/// Low bits of a selection key hold the age, the rest the ready time relative to now.
const AGE_BITS: u32 = 44;
const AGES: u64 = (1 << AGE_BITS) - 1;
const FILTER: usize = 512;
/// Refreshes that may be due at once, as Ramulator's priority buffer holds.
const MAX_DUE: usize = 1568;

/// The column command of each direction.
const COLUMN: [Cmd; 2] = [Cmd::Rd, Cmd::Wr];

const RD: usize = Cmd::Rd as usize;
const WR: usize = Cmd::Wr as usize;
const ACT: usize = Cmd::Act as usize;
const ACT2: usize = Cmd::Act2 as usize;
const PRE: usize = Cmd::Pre as usize;

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
    lists: [Lists; 2],
    row: u32,
    /// The request it was opened for, while that waits for its column command.
    holder: u16,
    state: BankState,
}

const BANK: Bank = Bank {
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
    /// A precharge of `bank` below top node `pc` at clock `t` would pair with it.
    #[inline]
    fn pairs(&self, pc: u32, bank: usize, t: u64) -> bool {
        t == self.edge && self.banks(pc as usize, bank / 64) >> (bank % 64) & 1 != 0
    }

    /// The banks in word `w` below top node `pc` whose precharges may not pair with it.
    #[inline]
    fn banks(&self, pc: usize, w: usize) -> u64 {
        if self.pc != pc as u32 {
            0
        } else if self.bank == u32::MAX {
            u64::MAX
        } else if self.bank as usize / 64 == w {
            1 << (self.bank % 64)
        } else {
            0
        }
    }
}

/// Banks by the clock to look at them again.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wheel<const W: usize> {
    /// By clock, modulo their number.
    slots: [[u64; W]; 64],
    /// The slots that hold banks.
    used: u64,
    /// No bank waits for an earlier clock.
    from: u64,
}

impl<const W: usize> Wheel<W> {
    const fn new() -> Wheel<W> {
        Wheel {
            slots: [[0; W]; 64],
            used: 0,
            from: 0,
        }
    }

    /// Holds bank `b` until clock `when`, or shorter if that is far ahead.
    #[inline(always)]
    fn insert(&mut self, b: usize, when: u64) {
        let slot = when.clamp(self.from, self.from.wrapping_add(63)) as usize & 63;
        put(&mut self.slots[slot], b);
        self.used |= 1 << slot;
    }

    /// The first clock for which a bank is held.
    #[inline(always)]
    fn next(&self) -> u64 {
        if self.used == 0 {
            return NEVER;
        }
        let ahead = self.used.rotate_right(self.from as u32 & 63);
        self.from.wrapping_add(ahead.trailing_zeros().into())
    }

    /// Takes the banks of the first clock, up to `t`, for which there are any.
    #[inline(always)]
    fn take(&mut self, t: u64) -> Option<[u64; W]> {
        let next = self.next();
        if next > t {
            self.from = t;
            return None;
        }
        let slot = next as usize & 63;
        self.from = next;
        self.used &= !(1 << slot);
        Some(std::mem::replace(&mut self.slots[slot], [0; W]))
    }
}

/// The best command of a kind as it was when last looked for: none of the kind is ready before `time`, nor with a
/// smaller `age` then. A `time` in the past says nothing, `bank` may be unknown (`NIL`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pick {
    time: u64,
    age: u64,
    bank: u16,
    cmd: Cmd,
}

impl Pick {
    /// Nothing is known but that nothing is ready before `time`.
    const fn from(time: u64) -> Pick {
        Pick {
            time,
            age: 0,
            bank: NIL,
            cmd: Cmd::Rd,
        }
    }
}

const NO_PICK: Pick = Pick::from(NEVER);

/// Kinds of commands: columns of held banks; columns, and precharges and activates, of the queue.
const HELD: usize = 0;
const QUEUED: usize = 1;
const ROW: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Active,
    Queue,
}

/// A column command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Column {
    bank: u16,
    write: bool,
    source: Source,
}

impl Column {
    fn cmd(self) -> Cmd {
        if self.write { Cmd::Wr } else { Cmd::Rd }
    }
}

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
    /// The best command per kind.
    picks: [Pick; 3],
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
    seq: u64,
    rings: Vec<u64>,
    due: VecDeque<Due>,
    next_refresh_bank: u32,
    due_since: u64,
    refresh_time: u64,
    act2: Option<Act2>,
    cas: Option<Column>,
    wck_expiry: u64,
    rising: Rising,
    stats: DramStats,
    /// Counts of queued writes by address hash.
    filter: [u16; FILTER],
    banks: PerBank<Bank, W>,
    /// Ages of the heads per direction.
    hit_age: [PerBank<u64, W>; 2],
    miss_age: [PerBank<u64, W>; 2],
    /// Ages of what banks are held for: clocks of acceptance and of activation.
    holder_age: PerBank<(u64, u64), W>,
    /// Ready clocks per command: of all banks, per top node, per group, per bank.
    channel_ready: [u64; 16],
    top_ready: [PerBank<u64, W>; 16],
    group_ready: [PerBank<u64, W>; 16],
    bank_ready: [PerBank<u64, W>; 16],
    /// Of the banks in `pre` and `act` those whose row command no rule at the bank delays any more; the others are in
    /// `unripe`.
    ripe: [u64; W],
    unripe: Wheel<W>,
    /// Per command the groups whose ready clock may lie ahead. Kept for row commands.
    hot: [[u64; W]; 16],
    /// Clock of the last issue per (command, bank), for the rules that delay refreshes.
    last: [PerBank<u64, W>; 16],
}

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
            picks: [Pick::from(0); 3],
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
            hit_age: [[[0; 64]; W]; 2],
            miss_age: [[[0; 64]; W]; 2],
            holder_age: [[(0, 0); 64]; W],
            channel_ready: [0; 16],
            top_ready: [[[0; 64]; W]; 16],
            group_ready: [[[0; 64]; W]; 16],
            bank_ready: [[[0; 64]; W]; 16],
            ripe: [0; W],
            unripe: Wheel::new(),
            hot: [[0; W]; 16],
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
        let done = self.enqueue(spec, &f, self.clk, out);
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
            Bus::Single => self.run_single(spec, horizon, out, log),
            Bus::Lpddr => self.run_lpddr(spec, horizon, out, log),
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
    fn enqueue(&mut self, spec: &DramSpec, f: &Front, t: u64, out: &mut Vec<Done>) -> bool {
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
            self.meet_write(spec, *f, t, out);
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
            waited: waited.min(u32::MAX.into()) as u32,
            next: NIL,
            write: f.write,
            counted: false,
        };
        let bank = at_mut(&mut self.banks, b);
        let l = &mut bank.lists[d];
        if bank.state == BankState::Open && bank.row == row {
            let tail = std::mem::replace(&mut l.hit_tail, i);
            if l.hit != NIL {
                self.entries[tail as usize].next = i;
                return true;
            }
            l.hit = i;
            *at_mut(&mut self.hit_age[d], b) = seq;
            put(&mut self.col[d], b);
            if d == usize::from(self.write_mode) {
                self.offer(spec, QUEUED, COLUMN[d], seq, b, t);
            }
        } else {
            let tail = std::mem::replace(&mut l.miss_tail, i);
            if l.miss != NIL {
                self.entries[tail as usize].next = i;
                return true;
            }
            l.miss = i;
            *at_mut(&mut self.miss_age[d], b) = seq;
            match bank.state {
                BankState::Open if !get(&self.held, b) => {
                    put(&mut self.pre[d], b);
                    self.await_row(PRE, b, t);
                    self.offer_row(spec, Cmd::Pre, d, b, t);
                }
                BankState::Closed => {
                    put(&mut self.act[d], b);
                    self.await_row(ACT, b, t);
                    self.offer_row(spec, Cmd::Act, d, b, t);
                }
                BankState::Open | BankState::Activating => {}
            }
        }
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
    #[inline(always)]
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
        let done = self.enqueue(spec, &f, t, out);
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
        let top = bank.wrapping_shr(spec.table.top_shift);
        let at_top = *at(&self.top_ready[cmd & 15], top);
        let at_channel = self.channel_ready[cmd & 15];
        let group = bank.wrapping_shr(spec.table.bank_shift);
        let at_group = *at(&self.group_ready[cmd & 15], group);
        at_channel
            .max(at_top)
            .max(at_group)
            .max(*at(&self.bank_ready[cmd & 15], bank))
    }

    #[inline(always)]
    fn raise_top(&mut self, cmd: usize, top: usize, when: u64) {
        raise(at_mut(&mut self.top_ready[cmd & 15], top), when);
    }

    #[inline(always)]
    fn raise_group(&mut self, cmd: usize, group: usize, when: u64) {
        raise(at_mut(&mut self.group_ready[cmd & 15], group), when);
        put(&mut self.hot[cmd & 15], group);
    }

    #[inline(always)]
    fn raise_bank(&mut self, cmd: usize, bank: usize, when: u64) {
        raise(at_mut(&mut self.bank_ready[cmd & 15], bank), when);
    }

    /// As `raise_bank` for a bank that may wait for a row command.
    #[inline(always)]
    fn delay_bank(&mut self, cmd: usize, bank: usize, when: u64) {
        self.raise_bank(cmd, bank, when);
        let masks = match cmd {
            ACT => &self.act,
            PRE => &self.pre,
            _ => return,
        };
        if get(&masks[0], bank) | get(&masks[1], bank) {
            self.await_row(cmd, bank, 0);
        }
    }

    /// Bank `b` has become a candidate for row command `cmd`, or rules for it have changed, at clock `t`.
    #[inline(always)]
    fn await_row(&mut self, cmd: usize, b: usize, t: u64) {
        let when = *at(&self.bank_ready[cmd & 15], b);
        set(&mut self.ripe, b, when <= t);
        if when > t {
            self.unripe.insert(b, when);
        }
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
        // The rule is about the oldest that stays.
        let last = if let [a, b, c, d] = ring {
            (*a, *b, *c, *d) = (t, *a, *b, *c);
            *d
        } else {
            ring.rotate_right(1);
            *ring.first_mut()? = t;
            *ring.last()?
        };
        (last > 0).then_some(last)
    }

    /// Raises the ready time of `target` for all banks `lo..hi`, which are whole nodes of some level.
    fn raise(&mut self, spec: &DramSpec, target: u8, lo: usize, hi: usize, when: u64) {
        let tb = &spec.table;
        let c = target as usize;
        if (lo | hi) & ((1 << tb.top_shift) - 1) == 0 {
            for i in lo >> tb.top_shift..hi >> tb.top_shift {
                self.raise_top(c, i, when);
            }
        } else if (lo | hi) & ((1 << tb.bank_shift) - 1) == 0 {
            for i in lo >> tb.bank_shift..hi >> tb.bank_shift {
                self.raise_group(c, i, when);
            }
        } else {
            for b in lo..hi {
                self.delay_bank(c, b, when);
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
        let group = bank.wrapping_shr(tb.bank_shift);
        // Where a usual rule is absent its cycles are 0.
        let n = &e.near;
        let when = |i: usize| t.wrapping_add(n[i]);
        match cmd {
            Cmd::Rd | Cmd::Wr => {
                self.raise_top(RD, top, when(0));
                self.raise_top(WR, top, when(1));
                if n[2] != 0 {
                    self.raise_group(RD, group, when(2));
                }
                if n[3] != 0 {
                    self.raise_group(WR, group, when(3));
                }
                self.delay_bank(PRE, bank, when(4));
            }
            Cmd::Act => {
                self.raise_top(ACT, top, when(0));
                if n[1] != 0 {
                    self.raise_group(ACT, group, when(1));
                }
                self.raise_bank(ACT, bank, when(2));
                self.raise_bank(PRE, bank, when(3));
                self.raise_bank(RD, bank, when(4));
                self.raise_bank(WR, bank, when(5));
                for r in &e.windows {
                    let ring =
                        Self::ring(&mut self.rings, r.ring as usize, r.window.into(), top, t);
                    if let Some(from) = ring {
                        let when = from.wrapping_add(r.cycles.into());
                        self.raise_top(r.target.into(), top, when);
                    }
                }
            }
            Cmd::Pre => {
                self.raise_top(PRE, top, when(0));
                self.raise_bank(ACT, bank, when(1));
            }
            _ => {}
        }
        for r in &e.channel {
            let x = &mut self.channel_ready[r.target as usize & 15];
            raise(x, t.wrapping_add(r.cycles.into()));
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
            self.delay_bank(r.target.into(), bank, t.wrapping_add(r.cycles.into()));
        }
        let group = bank.wrapping_shr(tb.bank_shift);
        for r in &e.group {
            let when = t.wrapping_add(r.cycles.into());
            self.raise_group(r.target.into(), group, when);
        }
        for r in &e.top {
            self.raise_top(r.target.into(), top, t.wrapping_add(r.cycles.into()));
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
                    self.raise_group(r.target.into(), i, when);
                }
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
            self.flip();
        }
    }

    #[inline(never)]
    fn flip(&mut self) {
        self.write_mode = !self.write_mode;
        for pick in &mut self.picks[QUEUED..] {
            pick.time = 0;
        }
    }

    /// Nothing is known of what is best.
    fn forget(&mut self) {
        for pick in &mut self.picks {
            pick.time = 0;
        }
    }

    /// HBM3: of half clocks only the odd ones take other commands than precharges.
    #[inline(always)]
    fn on_edge(spec: &DramSpec, cmd: Cmd, time: u64) -> u64 {
        time | u64::from(spec.table.half && cmd != Cmd::Pre)
    }

    /// Bank `b` has become a candidate for `cmd` at clock `t`.
    #[inline(always)]
    fn offer(&mut self, spec: &DramSpec, kind: usize, cmd: Cmd, age: u64, b: usize, t: u64) {
        let pick = &self.picks[kind];
        if pick.time < t {
            return;
        }
        let time = Self::on_edge(spec, cmd, self.ready(spec, cmd as usize, b).max(t));
        if (time, age) < (pick.time, pick.age) {
            self.picks[kind] = Pick {
                time,
                age,
                bank: b as u16,
                cmd,
            };
        }
    }

    /// Bank `b` has become a candidate for a precharge or an activate in direction `d`.
    #[inline(always)]
    fn offer_row(&mut self, spec: &DramSpec, cmd: Cmd, d: usize, b: usize, t: u64) {
        if d == usize::from(self.write_mode) && !(cmd == Cmd::Act && self.act2.is_some()) {
            let age = *at(&self.miss_age[d], b);
            self.offer(spec, ROW, cmd, age, b, t);
        }
    }

    /// Brings the best command of a kind up to clock `t`; returns its time, at which it is ready if that is `t`.
    #[inline(always)]
    fn settle<const HALF: bool>(&mut self, spec: &DramSpec, kind: usize, t: u64) -> u64 {
        let pick = &self.picks[kind];
        if pick.time > t {
            return pick.time;
        }
        if pick.time == t && pick.bank != NIL {
            let b = usize::from(pick.bank);
            let paired = HALF && pick.cmd == Cmd::Pre && self.rising.pairs(pc_of(spec, b), b, t);
            if !paired && self.ready(spec, pick.cmd as usize, b) <= t {
                return t;
            }
        }
        match kind {
            HELD => self.find_held::<HALF>(spec, t),
            QUEUED => self.find_queued::<HALF>(spec, t),
            _ => self.find_row::<HALF>(spec, t),
        }
    }

    /// Keeps `pick` as the best of a kind; returns its time.
    #[inline(always)]
    fn keep(&mut self, kind: usize, pick: Pick) -> u64 {
        self.picks[kind] = pick;
        pick.time
    }

    #[inline(never)]
    fn find_held<const HALF: bool>(&mut self, spec: &DramSpec, t: u64) -> u64 {
        let now = t | u64::from(HALF);
        let mut best = NO_PICK;
        let mut best_age = (NEVER, NEVER);
        for (d, held) in self.held_by.iter().enumerate() {
            let cmd = COLUMN[d & 1];
            for (w, &word) in held.iter().enumerate() {
                let mut m = word;
                while m != 0 {
                    let b = w.wrapping_mul(64) | m.trailing_zeros() as usize;
                    m &= m.wrapping_sub(1);
                    let time = self.ready(spec, cmd as usize, b).max(now) | u64::from(HALF);
                    let age = *at(&self.holder_age, b);
                    if time < best.time || (time == best.time && age < best_age) {
                        best_age = age;
                        best = Pick {
                            time,
                            age: age.0,
                            bank: b as u16,
                            cmd,
                        };
                    }
                }
            }
        }
        self.keep(HELD, best)
    }

    #[inline(never)]
    fn find_queued<const HALF: bool>(&mut self, spec: &DramSpec, t: u64) -> u64 {
        let now = t | u64::from(HALF);
        let d = usize::from(self.write_mode) & 1;
        let cmd = COLUMN[d];
        let mut key = NEVER;
        let mut bank = 0;
        for (w, &word) in self.col[d].iter().enumerate() {
            let mut m = word;
            while m != 0 {
                let b = w.wrapping_mul(64) | m.trailing_zeros() as usize;
                m &= m.wrapping_sub(1);
                let time = self.ready(spec, cmd as usize, b).max(now) | u64::from(HALF);
                let own = time.wrapping_sub(now) << AGE_BITS | *at(&self.hit_age[d], b);
                if own < key {
                    (key, bank) = (own, b);
                }
            }
        }
        if key == NEVER {
            return self.keep(QUEUED, NO_PICK);
        }
        let pick = Pick {
            time: now.wrapping_add(key >> AGE_BITS),
            age: key & AGES,
            bank: bank as u16,
            cmd,
        };
        self.keep(QUEUED, pick)
    }

    /// The best of the queue's row commands from clock `t` on.
    #[inline(never)]
    fn find_row<const HALF: bool>(&mut self, spec: &DramSpec, t: u64) -> u64 {
        let d = usize::from(self.write_mode) & 1;
        let (mut close, mut open) = (self.pre[d], self.act[d]);
        if !any(&close) && !any(&open) {
            return self.keep(ROW, NO_PICK);
        }
        let mut next = self.ripen(t);
        for (w, ripe) in self.ripe.iter().enumerate() {
            close[w] &= ripe;
            open[w] &= ripe;
        }
        if self.act2.is_some() {
            open = [0; W];
        }
        if HALF && t & 1 == 0 && any(&open) {
            open = [0; W];
            next = t.wrapping_add(1);
        }
        self.drop_delayed(spec, PRE, &mut close, t, &mut next);
        self.drop_delayed(spec, ACT, &mut open, t, &mut next);
        let mut oldest = (NEVER, 0);
        for (p, slice) in spec.table.slices.iter().enumerate() {
            for w in 0..W {
                let (mut pre, mut act) = (close[w] & slice[w], open[w] & slice[w]);
                if pre | act == 0 {
                    continue;
                }
                if pre != 0 {
                    let top = *at(&self.top_ready[PRE], p);
                    if top > t {
                        pre = 0;
                        next = next.min(top);
                    } else if HALF && t == self.rising.edge {
                        let paired = pre & self.rising.banks(p, w);
                        if paired != 0 {
                            pre ^= paired;
                            next = next.min(t.wrapping_add(1));
                        }
                    }
                }
                if act != 0 {
                    let top = *at(&self.top_ready[ACT], p);
                    if top > t {
                        act = 0;
                        next = next.min(top);
                    }
                }
                let mut m = pre | act;
                while m != 0 {
                    let b = w.wrapping_mul(64) | m.trailing_zeros() as usize;
                    m &= m.wrapping_sub(1);
                    let age = *at(&self.miss_age[d], b);
                    if age < oldest.0 {
                        oldest = (age, b);
                    }
                }
            }
        }
        let (age, bank) = oldest;
        if age == NEVER {
            return self.keep(ROW, Pick::from(next));
        }
        let cmd = if get(&open, bank) { Cmd::Act } else { Cmd::Pre };
        let pick = Pick {
            time: t,
            age,
            bank: bank as u16,
            cmd,
        };
        self.keep(ROW, pick)
    }

    /// Marks the banks as ripe that are at clock `t`; returns a clock before which no other is.
    #[inline(always)]
    fn ripen(&mut self, t: u64) -> u64 {
        while let Some(banks) = self.unripe.take(t) {
            for (w, &word) in banks.iter().enumerate() {
                let mut m = word;
                while m != 0 {
                    let b = w.wrapping_mul(64) | m.trailing_zeros() as usize;
                    m &= m.wrapping_sub(1);
                    if get(&self.act[0], b) | get(&self.act[1], b) {
                        self.await_row(ACT, b, t);
                    } else if get(&self.pre[0], b) | get(&self.pre[1], b) {
                        self.await_row(PRE, b, t);
                    }
                }
            }
        }
        self.unripe.next()
    }

    /// Leaves out the banks that rules at their group or the channel delay beyond clock `t`.
    #[inline(always)]
    fn drop_delayed(
        &mut self,
        spec: &DramSpec,
        c: usize,
        banks: &mut [u64; W],
        t: u64,
        next: &mut u64,
    ) {
        if !any(banks) {
            return;
        }
        if self.channel_ready[c] > t {
            *next = (*next).min(self.channel_ready[c]);
            *banks = [0; W];
            return;
        }
        for w in 0..W {
            let mut m = self.hot[c][w];
            while m != 0 {
                let bit = m & m.wrapping_neg();
                let g = w.wrapping_mul(64) | m.trailing_zeros() as usize;
                m ^= bit;
                let time = *at(&self.group_ready[c], g);
                if time <= t {
                    self.hot[c][w] ^= bit;
                } else if let Some(own) = spec.table.group_banks.get(g) {
                    let mut hit = 0;
                    for (word, own) in banks.iter_mut().zip(own) {
                        hit |= *word & own;
                        *word &= !own;
                    }
                    if hit != 0 {
                        *next = (*next).min(time);
                    }
                }
            }
        }
    }

    /// The command of the oldest refresh that is due.
    fn best_due<const HALF: bool>(&self, spec: &DramSpec, t: u64) -> Pick {
        let Some(&d) = self.due.front() else {
            return NO_PICK;
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
            return NO_PICK;
        }
        if self.act2.is_some_and(|a| (d.lo..d.hi).contains(&a.bank)) {
            return NO_PICK;
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
        Pick {
            time,
            age: 0,
            bank: d.lo,
            cmd,
        }
    }

    // ---- bank state ------------------------------------------------------------------------------------------------

    #[inline]
    fn open(&mut self, spec: &DramSpec, b: usize, row: u32, t: u64) {
        let bank = at_mut(&mut self.banks, b);
        bank.state = BankState::Open;
        bank.row = row;
        for d in 0..2 {
            if bank.lists[d].miss != NIL {
                // Split the waiting requests into those of this row and the others; both keep their order.
                let l = split(&mut self.entries, bank.lists[d].miss, row);
                bank.lists[d] = l;
                if let Some(e) = self.entries.get(l.hit as usize) {
                    *at_mut(&mut self.hit_age[d], b) = e.seq;
                    put(&mut self.col[d], b);
                }
                if let Some(e) = self.entries.get(l.miss as usize) {
                    *at_mut(&mut self.miss_age[d], b) = e.seq;
                }
            }
        }
        let mode = usize::from(self.write_mode);
        if get(&self.col[mode], b) {
            let age = *at(&self.hit_age[mode], b);
            self.offer(spec, QUEUED, COLUMN[mode], age, b, t);
        }
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
    fn close(&mut self, b: usize, t: u64) {
        let bank = at_mut(&mut self.banks, b);
        bank.state = BankState::Closed;
        for d in 0..2 {
            clear(&mut self.pre[d], b);
            let l = bank.lists[d];
            if l.hit != NIL {
                clear(&mut self.col[d], b);
                self.picks[QUEUED].time = 0;
                let merged = merge(&mut self.entries, l);
                bank.lists[d] = merged;
                *at_mut(&mut self.miss_age[d], b) = self.entries[merged.miss as usize].seq;
            }
            set(&mut self.act[d], b, bank.lists[d].miss != NIL);
        }
        self.await_row(ACT, b, t);
    }

    #[inline(always)]
    fn pop_miss(&mut self, d: usize, b: usize) -> u16 {
        let bank = at_mut(&mut self.banks, b);
        let l = &mut bank.lists[d];
        let i = l.miss;
        l.miss = self.entries[i as usize].next;
        if let Some(e) = self.entries.get(l.miss as usize) {
            *at_mut(&mut self.miss_age[d], b) = e.seq;
        }
        i
    }

    #[inline(always)]
    fn leave_queue(&mut self, e: &Entry, t: u64) {
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
            let count = &mut self.filter[hash(e.addr)];
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
    fn retire(&mut self, spec: &DramSpec, e: &Entry, t: u64, out: &mut Vec<Done>) {
        let s = &mut self.stats;
        s.bus_busy = s.bus_busy.wrapping_add(spec.burst.into());
        let wait = t.wrapping_sub(1).wrapping_sub(e.arrive);
        let mut refresh = 0;
        if self.refresh_time != e.refreshed || !self.due.is_empty() {
            refresh = self.refresh_time.wrapping_sub(e.refreshed);
            if !self.due.is_empty() {
                refresh = refresh.wrapping_add(t.saturating_sub(self.due_since.max(e.arrive)));
            }
            refresh = refresh.min(wait);
            s.wait_refresh = s.wait_refresh.wrapping_add(refresh);
        }
        let rest = wait.wrapping_sub(refresh);
        let mut bank = 0;
        if e.opened != 0 {
            bank = t.wrapping_sub(e.opened).min(rest);
            s.wait_bank = s.wait_bank.wrapping_add(bank);
        }
        let bus = rest.wrapping_sub(bank);
        s.wait_bus = s.wait_bus.wrapping_add(bus);
        let (tag, arrive, latency) = (e.tag, e.arrive, u64::from(spec.read_latency));
        let waited = u64::from(e.waited);
        let cause = if refresh | bank == 0 {
            WaitCause::of_bus(latency, waited, bus)
        } else {
            WaitCause::of(latency, waited, bank, bus, refresh)
        };
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

    /// Issues a row command of the queue at clock `t`.
    #[inline(always)]
    fn issue_row<const LP: bool, L: Log>(
        &mut self,
        spec: &DramSpec,
        pick: Pick,
        t: u64,
        log: &mut L,
    ) {
        let b = usize::from(pick.bank);
        if pick.cmd == Cmd::Pre {
            self.issue_pre(spec, b, t, log);
        } else {
            self.issue_act::<LP, L>(spec, b, t, log);
        }
    }

    /// The best column command of a kind.
    #[inline(always)]
    fn column_of(&self, kind: usize) -> Column {
        let pick = &self.picks[kind];
        Column {
            bank: pick.bank,
            write: pick.cmd == Cmd::Wr,
            source: if kind == HELD {
                Source::Active
            } else {
                Source::Queue
            },
        }
    }

    /// Issues the best column command of a kind at clock `t`.
    #[inline(always)]
    fn issue_col<L: Log>(
        &mut self,
        spec: &DramSpec,
        kind: usize,
        t: u64,
        out: &mut Vec<Done>,
        log: &mut L,
    ) {
        self.issue_column(spec, self.column_of(kind), t, out, log);
    }

    #[inline(never)]
    fn issue_column<L: Log>(
        &mut self,
        spec: &DramSpec,
        c: Column,
        t: u64,
        out: &mut Vec<Done>,
        log: &mut L,
    ) {
        let b = usize::from(c.bank);
        let d = usize::from(c.write);
        let bank = at_mut(&mut self.banks, b);
        let i = match c.source {
            Source::Active => bank.holder,
            Source::Queue => bank.lists[d].hit,
        };
        let Some(e) = self.entries.get_mut(usize::from(i)) else {
            return;
        };
        let next = std::mem::replace(&mut e.next, self.free);
        self.free = i;
        let e = *e;
        match c.source {
            Source::Active => {
                self.picks[HELD].time = 0;
                clear(&mut self.held, b);
                clear(&mut self.held_by[d], b);
                self.update_pre(b);
            }
            Source::Queue => {
                self.picks[QUEUED].time = 0;
                bank.lists[d].hit = next;
                match self.entries.get(usize::from(next)) {
                    Some(e) => *at_mut(&mut self.hit_age[d], b) = e.seq,
                    None => clear(&mut self.col[d], b),
                }
                self.leave_queue(&e, t);
            }
        }
        if !e.counted {
            self.stats.hits = self.stats.hits.wrapping_add(1);
        }
        let mut cmd = c.cmd();
        if spec.row_policy == RowPolicy::Closed {
            let closing = if c.write { Cmd::WrA } else { Cmd::RdA };
            let [reads, writes] = &at(&self.banks, b).lists;
            let wanted = reads.hit != NIL || writes.hit != NIL || get(&self.held, b);
            if !wanted && self.ready(spec, closing as usize, b) <= t {
                cmd = closing;
            }
        }
        log.log(t, cmd, b, Some(e.addr), c.write);
        self.touch(spec, cmd, b, t);
        if cmd != c.cmd() {
            self.stats.precharges = self.stats.precharges.wrapping_add(1);
            self.close(b, t);
            self.picks[ROW].time = 0;
        } else if c.source == Source::Active {
            let mode = usize::from(self.write_mode);
            if get(&self.pre[mode], b) {
                self.offer_row(spec, Cmd::Pre, mode, b, t);
            }
        }
        self.retire(spec, &e, t, out);
    }

    #[inline]
    fn issue_pre<L: Log>(&mut self, spec: &DramSpec, b: usize, t: u64, log: &mut L) {
        let d = usize::from(self.write_mode);
        let i = at(&self.banks, b).lists[d].miss;
        self.picks[ROW].time = 0;
        self.count_first(spec, i, Cmd::Pre, t);
        let addr = self.entries[i as usize].addr;
        log.log(t, Cmd::Pre, b, Some(addr), self.write_mode);
        self.stats.precharges = self.stats.precharges.wrapping_add(1);
        self.touch(spec, Cmd::Pre, b, t);
        self.close(b, t);
    }

    #[inline]
    fn issue_act<const LP: bool, L: Log>(
        &mut self,
        spec: &DramSpec,
        b: usize,
        t: u64,
        log: &mut L,
    ) {
        let d = usize::from(self.write_mode);
        self.picks[ROW].time = 0;
        clear(&mut self.act[0], b);
        clear(&mut self.act[1], b);
        let i = self.pop_miss(d, b);
        self.count_first(spec, i, Cmd::Act, t);
        let e = self.entries[i as usize];
        log.log(t, Cmd::Act, b, Some(e.addr), self.write_mode);
        self.stats.activates = self.stats.activates.wrapping_add(1);
        self.touch(spec, Cmd::Act, b, t);
        self.leave_queue(&e, t);
        if LP {
            at_mut(&mut self.banks, b).state = BankState::Activating;
            self.act2 = Some(Act2 {
                entry: i,
                bank: b as u16,
                deadline: t + spec.table.act2_limit,
            });
        } else {
            self.promote(spec, i, b, t);
            self.open(spec, b, e.row, t);
        }
    }

    /// The bank is open for entry `i`, which now waits for its column command alone.
    #[inline]
    fn promote(&mut self, spec: &DramSpec, i: u16, b: usize, t: u64) {
        let e = &self.entries[i as usize];
        let (write, arrive) = (e.write, e.arrive);
        at_mut(&mut self.banks, b).holder = i;
        // The reference compares ticks of acceptance and, within one, the order of activation.
        *at_mut(&mut self.holder_age, b) = (arrive, t);
        put(&mut self.held, b);
        put(&mut self.held_by[usize::from(write)], b);
        self.offer(spec, HELD, COLUMN[usize::from(write)], arrive, b, t);
    }

    fn issue_due<L: Log>(&mut self, spec: &DramSpec, c: Pick, t: u64, log: &mut L) {
        let Some(&d) = self.due.front() else { return };
        let (lo, hi) = (d.lo as usize, d.hi as usize);
        log.log(t, c.cmd, lo, None, false);
        self.forget();
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
                    self.close(b, t);
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

    /// What arrives at clock `t`: refreshes and requests.
    #[inline(always)]
    fn receive(&mut self, spec: &DramSpec, t: u64, out: &mut Vec<Done>) {
        if t == self.next_refresh {
            self.add_due(spec, t);
        }
        if t >= self.arrival {
            self.admit(spec, t, out);
        }
    }

    /// The next clock to look at if nothing is ready before `wake`, `end + 1` at most.
    #[inline(always)]
    fn next_stop(&self, wake: u64, end: u64) -> u64 {
        wake.min(self.arrival)
            .min(self.next_refresh)
            .min(end.wrapping_add(1))
    }

    /// Ends a run at clock `t`; nothing is ready before `wake`.
    fn leave(&mut self, t: u64, wake: u64) {
        self.clk = t;
        self.next_event = wake.min(self.next_refresh).max(t);
    }

    /// One command per tick: DDR4, DDR5, GDDR6.
    fn run_single<L: Log>(&mut self, spec: &DramSpec, end: u64, out: &mut Vec<Done>, log: &mut L) {
        let mut t = self.clk;
        let mut wake = self.next_event;
        while t <= end {
            self.receive(spec, t, out);
            wake = self.settle::<false>(spec, HELD, t);
            if wake <= t {
                self.issue_col(spec, HELD, t, out, log);
            } else if self.due.is_empty() {
                self.set_write_mode(spec);
                wake = wake.min(self.settle::<false>(spec, QUEUED, t));
                wake = wake.min(self.settle::<false>(spec, ROW, t));
                if wake <= t {
                    let [_, queued, row] = self.picks;
                    if (row.time, row.age) < (queued.time, queued.age) {
                        self.issue_row::<false, L>(spec, row, t, log);
                    } else {
                        self.issue_col(spec, QUEUED, t, out, log);
                    }
                }
            } else {
                let due = self.best_due::<false>(spec, t);
                wake = wake.min(due.time);
                if due.time <= t {
                    self.issue_due(spec, due, t, log);
                }
            }
            t = if wake <= t {
                t.wrapping_add(1)
            } else {
                self.next_stop(wake, end)
            };
        }
        self.leave(t, wake);
    }

    /// One command per tick, split activates and clock synchronisation: LPDDR5.
    fn run_lpddr<L: Log>(&mut self, spec: &DramSpec, end: u64, out: &mut Vec<Done>, log: &mut L) {
        let mut t = self.clk;
        let mut wake = self.next_event;
        while t <= end {
            self.receive(spec, t, out);
            wake = match self.cas {
                Some(c) => self.synchronised(spec, c, t, out, log),
                None => self.lpddr_tick(spec, t, out, log),
            };
            t = if wake <= t {
                t.wrapping_add(1)
            } else {
                self.next_stop(wake, end)
            };
        }
        self.leave(t, wake);
    }

    /// Column command `c`, for which the data clock was started, if it is ready; nothing else may go first. Returns a
    /// clock before which nothing is ready.
    fn synchronised<L: Log>(
        &mut self,
        spec: &DramSpec,
        c: Column,
        t: u64,
        out: &mut Vec<Done>,
        log: &mut L,
    ) -> u64 {
        let ready = self.ready(spec, c.cmd() as usize, c.bank.into());
        if ready <= t {
            self.cas = None;
            self.extend_wck(spec, c.write, t);
            self.issue_column(spec, c, t, out, log);
        }
        ready
    }

    /// LPDDR5's choice at clock `t`. Returns a clock before which nothing is ready.
    #[inline(always)]
    fn lpddr_tick<L: Log>(
        &mut self,
        spec: &DramSpec,
        t: u64,
        out: &mut Vec<Done>,
        log: &mut L,
    ) -> u64 {
        let (mut second, mut deadline) = (NEVER, NEVER);
        if let Some(a) = self.act2 {
            (second, deadline) = (self.ready(spec, ACT2, a.bank.into()), a.deadline);
        }
        if second <= t && deadline <= t {
            self.issue_act2(spec, t, log);
            return t;
        }
        let mut wake = self.settle::<false>(spec, HELD, t);
        if wake <= t {
            self.issue_clocked(spec, HELD, deadline, t, out, log);
            return t;
        }
        if self.due.is_empty() {
            self.set_write_mode(spec);
            wake = wake.min(self.settle::<false>(spec, QUEUED, t));
            wake = wake.min(self.settle::<false>(spec, ROW, t));
            if wake <= t {
                let [_, queued, row] = self.picks;
                if (row.time, row.age) < (queued.time, queued.age) {
                    self.issue_row::<true, L>(spec, row, t, log);
                } else {
                    self.issue_clocked(spec, QUEUED, deadline, t, out, log);
                }
                return t;
            }
        } else {
            let due = self.best_due::<false>(spec, t);
            wake = wake.min(due.time);
            if due.time <= t {
                self.issue_due(spec, due, t, log);
                return t;
            }
        }
        if second <= t {
            self.issue_act2(spec, t, log);
        }
        wake.min(second)
    }

    /// LPDDR5: the best column command of a kind, or what has to come before it: the second half of an activate whose `deadline` is
    /// near, or the start of the data clock.
    #[inline(always)]
    fn issue_clocked<L: Log>(
        &mut self,
        spec: &DramSpec,
        kind: usize,
        deadline: u64,
        t: u64,
        out: &mut Vec<Done>,
        log: &mut L,
    ) {
        if spec.wck_always_on {
            self.issue_col(spec, kind, t, out, log);
            return;
        }
        let c = self.column_of(kind);
        if t < self.wck_expiry {
            self.extend_wck(spec, c.write, t);
            self.issue_column(spec, c, t, out, log);
            return;
        }
        if deadline <= t + 1 {
            self.issue_act2(spec, t, log);
            return;
        }
        let b = usize::from(c.bank);
        let cas = if c.write { Cmd::CasWr } else { Cmd::CasRd };
        if self.ready(spec, cas as usize, b) > t {
            return;
        }
        let bank = at(&self.banks, b);
        let e = match c.source {
            Source::Active => bank.holder,
            Source::Queue => bank.lists[usize::from(c.write)].hit,
        };
        log.log(t, cas, b, Some(self.entries[e as usize].addr), c.write);
        self.touch(spec, cas, b, t);
        self.cas = Some(c);
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
        // One split activate at a time: others may start now.
        self.picks[ROW].time = 0;
        let (b, e) = (a.bank as usize, self.entries[a.entry as usize]);
        log.log(t, Cmd::Act2, b, Some(e.addr), e.write);
        self.touch(spec, Cmd::Act2, b, t);
        self.promote(spec, a.entry, b, t);
        self.open(spec, b, e.row, t);
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
        let mut wake = self.next_event;
        while t <= end {
            self.receive(spec, t, out);
            let free = self.due.is_empty();
            if free {
                self.set_write_mode(spec);
            }
            wake = self.settle::<HALF>(spec, HELD, t);
            if wake <= t {
                self.issue_col(spec, HELD, t, out, log);
            } else if free {
                wake = wake.min(self.settle::<HALF>(spec, QUEUED, t));
                if wake <= t {
                    self.issue_col(spec, QUEUED, t, out, log);
                }
            }
            if free {
                if wake <= t {
                    self.set_write_mode(spec);
                }
                let row = self.settle::<HALF>(spec, ROW, t);
                wake = wake.min(row);
                if row <= t {
                    let pick = self.picks[ROW];
                    self.note_rising::<HALF>(spec, pick, t);
                    self.issue_row::<false, L>(spec, pick, t, log);
                }
            } else {
                let due = self.best_due::<HALF>(spec, t);
                wake = wake.min(due.time);
                if due.time <= t {
                    self.note_rising::<HALF>(spec, due, t);
                    self.issue_due(spec, due, t, log);
                }
            }
            t = if wake <= t {
                t.wrapping_add(1)
            } else {
                self.next_stop(wake, end)
            };
        }
        self.leave(t, wake);
    }

    /// HBM3: row command `c` issues at `t`, which may be a rising edge.
    #[inline(always)]
    fn note_rising<const HALF: bool>(&mut self, spec: &DramSpec, c: Pick, t: u64) {
        if !HALF || t & 1 == 0 {
            return;
        }
        let all = matches!(c.cmd, Cmd::PreAll | Cmd::RefAll);
        let whole = matches!(spec.refresh, Refresh::AllBank { level: 0, .. });
        self.rising = Rising {
            edge: t + if c.cmd == Cmd::Act { 3 } else { 1 },
            pc: if all && whole {
                u32::MAX
            } else {
                pc_of(spec, c.bank.into())
            },
            bank: if all { u32::MAX } else { c.bank.into() },
        };
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::dram::{Constraint, PRESETS, timing};

    /// Clocks of the earlier commands of a row, `window` of them at most.
    const TIMES: [u64; 8] = [1000, 1003, 1007, 1012, 1018, 1025, 1033, 1042];

    /// The banks below the node of `level` that holds `bank`.
    fn node(spec: &DramSpec, level: u8, bank: usize) -> std::ops::Range<usize> {
        let below: u32 = spec.levels[usize::from(level) + 1..].iter().product();
        let first = bank / below as usize * below as usize;
        first..first + below as usize
    }

    /// Whether a row that started at `bank` delays `other`, by a plain reading of it.
    fn reaches(spec: &DramSpec, row: &Constraint, bank: usize, other: usize) -> bool {
        let same = node(spec, row.level, bank).contains(&other);
        if row.sibling {
            row.level > 0 && !same && node(spec, row.level - 1, bank).contains(&other)
        } else {
            same
        }
    }

    /// The level of a refresh of all banks.
    fn scope(spec: &DramSpec) -> u8 {
        match spec.refresh {
            Refresh::AllBank { level, .. } => level,
            _ => spec.levels.len() as u8 - 1,
        }
    }

    fn all_banks(cmd: Cmd) -> bool {
        matches!(cmd, Cmd::PreAll | Cmd::RefAll)
    }

    /// Ready clock of `cmd` for `banks`: one bank or, for a command to all banks, a node of its scope.
    fn ready(channel: &Exact<4>, spec: &DramSpec, cmd: Cmd, banks: std::ops::Range<usize>) -> u64 {
        match cmd {
            Cmd::PreAll | Cmd::RefAll | Cmd::RefBank => {
                channel.ready_all(spec, cmd, banks.start, banks.end, scope(spec))
            }
            _ => channel.ready(spec, cmd as usize, banks.start),
        }
    }

    /// One row alone: after its earlier commands the later one is ready at exactly the clock the row says, at every
    /// bank in its scope, and at once at every other.
    fn check(spec: &DramSpec, row: &Constraint, before: Cmd, after: Cmd) {
        let banks = spec.banks() as usize;
        let sizes = |cmd: Cmd| {
            if all_banks(cmd) {
                node(spec, scope(spec), 0).len()
            } else {
                1
            }
        };
        // A command to all banks meets rows below its scope at all nodes, so that none of them is a sibling.
        let (size, later) = (sizes(before), sizes(after));
        if row.sibling && all_banks(before) && row.level > scope(spec) {
            return;
        }
        for bank in [0, banks / 2 + banks / 8, banks - 1] {
            let mut channel = Exact::<4>::new(spec);
            let lo = bank / size * size;
            let window = usize::from(row.window);
            for (k, &t) in TIMES[..window].iter().enumerate() {
                if all_banks(before) {
                    channel.touch_all(spec, before, lo, lo + size, scope(spec), t);
                } else {
                    channel.touch(spec, before, lo, t);
                }
                for other in (0..banks).step_by(later) {
                    let hit = (lo..lo + size)
                        .any(|b| (other..other + later).any(|o| reaches(spec, row, b, o)));
                    let want = if hit && k + 1 == window {
                        TIMES[0] + u64::from(row.cycles)
                    } else {
                        0
                    };
                    let got = ready(&channel, spec, after, other..other + later);
                    let what =
                        format!("{}: {row:?} {before:?} {after:?} {bank} {other}", spec.name);
                    let gap = timing::gap(spec.bus, before, after);
                    if want != 0 && window == 1 && row.cycles <= gap {
                        // The command bus alone delays as much.
                        assert!(got <= t + u64::from(gap), "{what}: {got}");
                    } else {
                        // What is ready by the time of the earlier command is ready.
                        let floor = if want == 0 { t } else { 0 };
                        assert_eq!(got.max(floor), want.max(floor), "{what}");
                    }
                }
            }
        }
    }

    /// Every row of every shipped device, alone: the later command comes exactly as late as the row says and no tick
    /// earlier, at every bank of its scope and at no other.
    #[test]
    fn every_row_delays_its_scope_by_its_cycles() {
        let whole = |c: Cmd| matches!(c, Cmd::PreAll | Cmd::RefAll);
        // Refresh management is not modelled, and a device refreshes by bank or all banks, not both.
        let apart = |a: Cmd, b: Cmd| {
            matches!(a, Cmd::RfmAll | Cmd::RfmBank) || a == Cmd::RefBank && whole(b)
        };
        for name in PRESETS {
            let base = DramSpec::preset(name).unwrap();
            let level = match base.refresh {
                Refresh::AllBank { level, .. } => level,
                _ => 0,
            };
            for row in &base.constraints {
                assert!(usize::from(row.window) <= TIMES.len(), "{name}: {row:?}");
                let mut spec = base.clone();
                spec.constraints = vec![row.clone()];
                spec.row_policy = RowPolicy::Closed;
                let pairs = row
                    .before
                    .iter()
                    .flat_map(|&b| row.after.iter().map(move |&a| (b, a)));
                for (before, after) in pairs {
                    if apart(before, after) || apart(after, before) {
                        continue;
                    }
                    let interval = 1 << 30;
                    spec.refresh = if before == Cmd::RefBank || after == Cmd::RefBank {
                        Refresh::PerBank { interval }
                    } else {
                        Refresh::AllBank { interval, level }
                    };
                    spec.compile();
                    check(&spec, row, before, after);
                }
            }
        }
    }
}
