//! A deliberately naive twin of the Ramulator rules: it ticks every clock, walks the tree of nodes and scans every
//! queue. The channel must agree with it command for command and completion for completion.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod dram_common;

use std::collections::VecDeque;

use dram_common::{golden_spec, golden_text};
use proptest::prelude::*;
use tilesim_core::dram::{Bus, Channel, Cmd, CommandRecord, DramSpec, PRESETS, Refresh, RowPolicy};

const CMDS: usize = 14;

#[derive(Clone)]
struct Node {
    ready: [u64; CMDS],
    history: Vec<Vec<u64>>,
}

#[derive(Clone)]
struct Req {
    addr: u64,
    bank: usize,
    row: u32,
    write: bool,
    tag: u32,
    arrive: u64,
    counted: bool,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    Closed,
    Activating,
    Open(u32),
}

#[derive(Clone, Copy)]
struct Due {
    lo: usize,
    hi: usize,
    level: usize,
    single: bool,
}

struct Twin<'a> {
    spec: &'a DramSpec,
    clk: u64,
    /// Nodes per level, flat.
    nodes: Vec<Vec<Node>>,
    banks: Vec<State>,
    queues: [Vec<Req>; 2],
    active: Vec<Req>,
    act2: Option<(Req, u64)>,
    /// Access that waits behind its synchronisation: from the active list or the queue, by tag.
    cas: Option<(bool, u32)>,
    wck: u64,
    due: VecDeque<Due>,
    next_refresh: u64,
    refresh_bank: usize,
    write_mode: bool,
    pending: VecDeque<(u64, u32)>,
    rising: (u64, i64, i64),
    log: Vec<CommandRecord>,
    out: Vec<(u64, u32)>,
    rows: [u64; 3],
}

impl<'a> Twin<'a> {
    fn new(spec: &'a DramSpec) -> Self {
        let mut n = 1;
        let mut nodes = Vec::new();
        for &size in &spec.levels {
            n *= size as usize;
            nodes.push(vec![
                Node {
                    ready: [0; CMDS],
                    history: vec![vec![0; 64]; CMDS]
                };
                n
            ]);
        }
        Twin {
            spec,
            clk: 0,
            nodes,
            banks: vec![State::Closed; n],
            queues: [Vec::new(), Vec::new()],
            active: Vec::new(),
            act2: None,
            cas: None,
            wck: 0,
            due: VecDeque::new(),
            next_refresh: match spec.refresh {
                Refresh::None => u64::MAX,
                Refresh::AllBank { interval, .. } | Refresh::PerBank { interval } => {
                    interval.into()
                }
            },
            refresh_bank: 0,
            write_mode: false,
            pending: VecDeque::new(),
            rising: (0, -9, -9),
            log: Vec::new(),
            out: Vec::new(),
            rows: [0; 3],
        }
    }

    fn per(&self, level: usize) -> usize {
        self.banks.len() / self.nodes[level].len()
    }

    /// Offers a request before the tick; the clock of the coming tick is `clk + 1`.
    fn send(&mut self, addr: u64, write: bool, tag: u32) -> bool {
        let (bank, row) = self.spec.map().bank_row(addr);
        let known = self.queues[1].iter().any(|r| r.addr == addr);
        if known && write {
            self.out.push((self.clk, tag));
            return true;
        }
        if known {
            self.pending.push_back((self.clk + 1, tag));
            return true;
        }
        let cap = if write {
            self.spec.write_queue
        } else {
            self.spec.read_queue
        } as usize;
        let q = &mut self.queues[usize::from(write)];
        if q.len() >= cap {
            return false;
        }
        q.push(Req {
            addr,
            bank: bank as usize,
            row,
            write,
            tag,
            arrive: self.clk,
            counted: false,
        });
        true
    }

    fn ready(&self, cmd: Cmd, bank: usize) -> bool {
        (0..self.nodes.len())
            .all(|l| self.nodes[l][bank / self.per(l)].ready[cmd as usize] <= self.clk)
    }

    fn ready_scope(&self, cmd: Cmd, d: Due) -> bool {
        (0..self.nodes.len()).all(|l| {
            let (a, b) = (d.lo / self.per(l), (d.hi - 1) / self.per(l));
            (a..=b).all(|n| self.nodes[l][n].ready[cmd as usize] <= self.clk)
        })
    }

    /// A command to banks `lo..hi`, one node of `level`.
    fn issue(
        &mut self,
        cmd: Cmd,
        lo: usize,
        hi: usize,
        level: usize,
        addr: Option<u64>,
        write: bool,
    ) {
        self.log.push(CommandRecord {
            tick: self.clk - 1,
            cmd,
            bank: lo as u32,
            addr,
            write,
        });
        let t = self.clk;
        for l in 0..self.nodes.len() {
            let per = self.per(l);
            for n in lo / per..=(hi - 1) / per {
                let h = &mut self.nodes[l][n].history[cmd as usize];
                h.rotate_right(1);
                h[0] = t;
            }
        }
        for c in self
            .spec
            .constraints
            .iter()
            .filter(|c| c.before.contains(&cmd))
        {
            let l = c.level as usize;
            let per = self.per(l);
            let hit = lo / per..=(hi - 1) / per;
            for after in &c.after {
                if c.sibling {
                    if l == 0 || l > level {
                        continue;
                    }
                    let fan = self.spec.levels[l] as usize;
                    let parent = lo / per / fan;
                    for n in parent * fan..(parent + 1) * fan {
                        if !hit.contains(&n) {
                            let r = &mut self.nodes[l][n].ready[*after as usize];
                            *r = (*r).max(t + u64::from(c.cycles));
                        }
                    }
                } else {
                    for n in hit.clone() {
                        let past = self.nodes[l][n].history[cmd as usize][c.window as usize - 1];
                        if past > 0 {
                            let r = &mut self.nodes[l][n].ready[*after as usize];
                            *r = (*r).max(past + u64::from(c.cycles));
                        }
                    }
                }
            }
        }
    }

    fn next_cmd(&self, r: &Req) -> Cmd {
        match self.banks[r.bank] {
            State::Closed => Cmd::Act,
            State::Activating => Cmd::Act2,
            State::Open(row) if row != r.row => Cmd::Pre,
            State::Open(_) if r.write => Cmd::Wr,
            State::Open(_) => Cmd::Rd,
        }
    }

    fn held(&self, bank: usize) -> bool {
        self.active.iter().any(|r| r.bank == bank)
    }

    fn column(cmd: Cmd) -> bool {
        matches!(cmd, Cmd::Rd | Cmd::Wr)
    }

    /// HBM: whether a command may use the slot at this clock.
    fn slot(&self, cmd: Cmd, bank: usize, whole: bool, column: bool) -> bool {
        if Self::column(cmd) != column {
            return false;
        }
        if self.spec.bus == Bus::Dual || self.clk % 2 == 1 {
            return true;
        }
        if !matches!(cmd, Cmd::Pre | Cmd::PreAll) {
            return false;
        }
        let pc = if whole {
            -1
        } else {
            (bank / self.per(1)) as i64
        };
        if self.clk != self.rising.0 || self.rising.1 != pc {
            return true;
        }
        self.rising.2 != -1 && cmd == Cmd::Pre && self.rising.2 != bank as i64
    }

    fn oldest(&self, list: &[Req], ok: impl Fn(&Req, Cmd) -> bool) -> Option<usize> {
        let mut best: Option<usize> = None;
        for (i, r) in list.iter().enumerate() {
            let cmd = self.next_cmd(r);
            if !ok(r, cmd) || !self.ready(cmd, r.bank) {
                continue;
            }
            if best.is_none_or(|b| r.arrive < list[b].arrive) {
                best = Some(i);
            }
        }
        best
    }

    fn refresh_tick(&mut self) {
        if self.clk != self.next_refresh {
            return;
        }
        match self.spec.refresh {
            Refresh::None => {}
            Refresh::AllBank { interval, level } => {
                self.next_refresh += u64::from(interval);
                let per = self.per(level.into());
                for n in 0..self.nodes[level as usize].len() {
                    self.due.push_back(Due {
                        lo: n * per,
                        hi: (n + 1) * per,
                        level: level.into(),
                        single: false,
                    });
                }
            }
            Refresh::PerBank { interval } => {
                self.next_refresh += u64::from(interval);
                let b = self.refresh_bank;
                self.due.push_back(Due {
                    lo: b,
                    hi: b + 1,
                    level: self.nodes.len() - 1,
                    single: true,
                });
                self.refresh_bank = (b + 1) % self.banks.len();
            }
        }
    }

    fn due_cmd(&self) -> Option<(Due, Cmd)> {
        let d = *self.due.front()?;
        let open = self.banks[d.lo..d.hi].iter().any(|b| *b != State::Closed);
        let cmd = match (d.single, open) {
            (false, true) => Cmd::PreAll,
            (false, false) => Cmd::RefAll,
            (true, true) => Cmd::Pre,
            (true, false) => Cmd::RefBank,
        };
        if !self.ready_scope(cmd, d) || (open && (d.lo..d.hi).any(|b| self.held(b))) {
            return None;
        }
        if self
            .act2
            .as_ref()
            .is_some_and(|(r, _)| (d.lo..d.hi).contains(&r.bank))
        {
            return None;
        }
        Some((d, cmd))
    }

    fn issue_due(&mut self, d: Due, cmd: Cmd) {
        self.issue(cmd, d.lo, d.hi, d.level, None, false);
        if matches!(cmd, Cmd::Pre | Cmd::PreAll) {
            self.banks[d.lo..d.hi].fill(State::Closed);
        } else {
            self.due.pop_front();
        }
    }

    fn set_mode(&mut self) {
        let (r, w) = (self.queues[0].len(), self.queues[1].len() as u32);
        if !self.write_mode {
            self.write_mode = w > self.spec.drain_above || r == 0;
        } else {
            self.write_mode = !(w < self.spec.drain_below && r != 0);
        }
    }

    fn count(&mut self, r: &mut Req, cmd: Cmd) {
        if !r.counted {
            r.counted = true;
            self.rows[match (cmd, self.spec.stats_after_command) {
                (Cmd::Pre, false) => 2,
                (Cmd::Pre, true) | (Cmd::Act, false) => 1,
                _ => 0,
            }] += 1;
        }
    }

    /// Issues the next command of a request in the active list (`None`) or a queue.
    fn serve(&mut self, queue: Option<usize>, i: usize) {
        let mut r = match queue {
            None => self.active[i].clone(),
            Some(q) => self.queues[q][i].clone(),
        };
        let mut cmd = self.next_cmd(&r);
        self.count(&mut r, cmd);
        let last = self.nodes.len() - 1;
        if Self::column(cmd) {
            match queue {
                None => drop(self.active.remove(i)),
                Some(q) => drop(self.queues[q].remove(i)),
            }
            if self.spec.row_policy == RowPolicy::Closed {
                let closing = if r.write { Cmd::WrA } else { Cmd::RdA };
                let wanted = self
                    .queues
                    .iter()
                    .flatten()
                    .any(|o| o.bank == r.bank && o.row == r.row);
                if !wanted && !self.held(r.bank) && self.ready(closing, r.bank) {
                    cmd = closing;
                    self.banks[r.bank] = State::Closed;
                }
            }
            self.issue(cmd, r.bank, r.bank + 1, last, Some(r.addr), r.write);
            if r.write {
                self.out.push((self.clk - 1, r.tag));
            } else {
                self.pending
                    .push_back((self.clk + u64::from(self.spec.read_latency), r.tag));
            }
            return;
        }
        self.issue(cmd, r.bank, r.bank + 1, last, Some(r.addr), r.write);
        let q = queue.unwrap();
        if cmd == Cmd::Pre {
            self.banks[r.bank] = State::Closed;
            self.queues[q][i] = r;
        } else {
            self.queues[q].remove(i);
            if self.spec.bus == Bus::Lpddr {
                self.banks[r.bank] = State::Activating;
                let limit = self.clk + u64::from(self.spec.timing("nAAD").unwrap());
                self.act2 = Some((r, limit));
            } else {
                self.banks[r.bank] = State::Open(r.row);
                self.active.push(r);
            }
        }
    }

    fn second_half(&mut self) {
        let (r, _) = self.act2.take().unwrap();
        let last = self.nodes.len() - 1;
        self.issue(Cmd::Act2, r.bank, r.bank + 1, last, Some(r.addr), r.write);
        self.banks[r.bank] = State::Open(r.row);
        self.active.push(r);
    }

    fn tick(&mut self) {
        self.clk += 1;
        while self.pending.front().is_some_and(|p| p.0 <= self.clk) {
            let (_, tag) = self.pending.pop_front().unwrap();
            self.out.push((self.clk - 1, tag));
        }
        self.refresh_tick();
        match self.spec.bus {
            Bus::Single => self.tick_single(),
            Bus::Lpddr => self.tick_lpddr(),
            Bus::Dual | Bus::DualHalf => self.tick_dual(),
        }
    }

    fn tick_single(&mut self) {
        if let Some(i) = self.oldest(&self.active, |_, _| true) {
            self.serve(None, i);
        } else if let Some((d, cmd)) = self.due_cmd() {
            self.issue_due(d, cmd);
        } else if self.due.is_empty() {
            self.set_mode();
            let q = usize::from(self.write_mode);
            if let Some(i) =
                self.oldest(&self.queues[q], |r, c| c != Cmd::Pre || !self.held(r.bank))
            {
                self.serve(Some(q), i);
            }
        }
    }

    fn tick_dual(&mut self) {
        for column in [true, false] {
            if column && self.spec.bus == Bus::DualHalf && self.clk.is_multiple_of(2) {
                continue;
            }
            let before = self.log.len();
            let active = if column {
                self.oldest(&self.active, |r, c| self.slot(c, r.bank, false, true))
            } else {
                None
            };
            let whole = matches!(self.spec.refresh, Refresh::AllBank { level: 0, .. });
            if let Some(i) = active {
                self.serve(None, i);
            } else if let Some((d, cmd)) = self
                .due_cmd()
                .filter(|(d, c)| self.slot(*c, d.lo, whole, column))
            {
                self.issue_due(d, cmd);
            } else if self.due.is_empty() {
                self.set_mode();
                let q = usize::from(self.write_mode);
                let found = self.oldest(&self.queues[q], |r, c| {
                    (c != Cmd::Pre || !self.held(r.bank)) && self.slot(c, r.bank, false, column)
                });
                if let Some(i) = found {
                    self.serve(Some(q), i);
                }
            }
            if !column
                && self.clk % 2 == 1
                && self.spec.bus == Bus::DualHalf
                && self.log.len() > before
            {
                let c = *self.log.last().unwrap();
                let all = matches!(c.cmd, Cmd::PreAll | Cmd::RefAll);
                let pc = if all && whole {
                    -1
                } else {
                    (c.bank as usize / self.per(1)) as i64
                };
                let edge = self.clk + if c.cmd == Cmd::Act { 3 } else { 1 };
                self.rising = (edge, pc, if all { -1 } else { i64::from(c.bank) });
            }
        }
    }

    fn extend(&mut self, write: bool) {
        let get = |n: &str| u64::from(self.spec.timing(n).unwrap());
        let end =
            self.clk + get(if write { "nCWL" } else { "nCL" }) + get("nBL_min") + get("nWCKPST");
        self.wck = self.wck.max(end);
    }

    fn tick_lpddr(&mut self) {
        let second = self
            .act2
            .as_ref()
            .map(|(r, limit)| (self.ready(Cmd::Act2, r.bank), *limit));
        if let Some((active, tag)) = self.cas {
            let list = |t: &Self| {
                if active {
                    t.active.clone()
                } else {
                    t.queues.iter().flatten().cloned().collect()
                }
            };
            let r = list(self).into_iter().find(|r| r.tag == tag).unwrap();
            if self.ready(self.next_cmd(&r), r.bank) {
                self.cas = None;
                self.extend(r.write);
                let queue = if active {
                    None
                } else {
                    Some(usize::from(r.write))
                };
                let from = queue.map_or(&self.active, |q| &self.queues[q]);
                let i = from.iter().position(|r| r.tag == tag).unwrap();
                self.serve(queue, i);
            }
            return;
        }
        if second.is_some_and(|(ready, limit)| ready && limit <= self.clk) {
            return self.second_half();
        }
        let mut pick = self.oldest(&self.active, |_, _| true).map(|i| (None, i));
        if pick.is_none()
            && let Some((d, cmd)) = self.due_cmd()
        {
            return self.issue_due(d, cmd);
        }
        if pick.is_none() && self.due.is_empty() {
            self.set_mode();
            let q = usize::from(self.write_mode);
            let found = self.oldest(&self.queues[q], |r, c| {
                c != Cmd::Act2
                    && (c != Cmd::Act || second.is_none())
                    && (c != Cmd::Pre || !self.held(r.bank))
            });
            pick = found.map(|i| (Some(q), i));
        }
        let Some((queue, i)) = pick else {
            if second.is_some_and(|(ready, _)| ready) {
                self.second_half();
            }
            return;
        };
        let r = queue.map_or(&self.active, |q| &self.queues[q])[i].clone();
        if Self::column(self.next_cmd(&r)) && !self.spec.wck_always_on {
            if self.clk >= self.wck {
                if second.is_some_and(|(_, limit)| limit <= self.clk + 1) {
                    return self.second_half();
                }
                let cas = if r.write { Cmd::CasWr } else { Cmd::CasRd };
                if self.ready(cas, r.bank) {
                    let last = self.nodes.len() - 1;
                    self.issue(cas, r.bank, r.bank + 1, last, Some(r.addr), r.write);
                    self.cas = Some((queue.is_none(), r.tag));
                }
                return;
            }
            self.extend(r.write);
        }
        self.serve(queue, i);
    }
}

/// Requests as (gap since the previous one, address, write).
fn compare(spec: &DramSpec, reqs: &[(u64, u64, bool)], step: u64) {
    let mut twin = Twin::new(spec);
    let mut ch = Channel::new(spec);
    let (mut out, mut log) = (Vec::new(), Vec::new());
    let mut at = 0;
    let (mut front, mut late) = (VecDeque::new(), VecDeque::new());
    for (i, &(gap, addr, write)) in reqs.iter().enumerate() {
        at += gap;
        front.push_back((at, addr, write, i as u32));
        late.push_back((at, addr, write, i as u32));
    }
    let mut t = 0;
    while twin.out.len() < reqs.len() {
        let mut n = 0;
        while n < spec.accepts_per_tick
            && front
                .front()
                .is_some_and(|f| f.0 <= t && twin.send(f.1, f.2, f.3))
        {
            front.pop_front();
            n += 1;
        }
        twin.tick();
        t += 1;
        assert!(t < 3_000_000, "the twin does not finish");
    }
    let mut horizon = 0;
    while horizon < t {
        let bound = ch.next_activity(spec);
        let (before, issued, event) = (out.len(), log.len(), ch.next_event());
        let first_push = late.front().map_or(u64::MAX, |f| f.0);
        horizon = (horizon + step).min(t);
        // Requests are pushed only when the horizon comes to them.
        while late.front().is_some_and(|f| f.0 < horizon) {
            let (at, addr, write, tag) = late.pop_front().unwrap();
            ch.push(at, addr, write, tag);
        }
        ch.advance_logged(spec, horizon, &mut out, &mut log);
        if let Some(first) = log.get(issued) {
            assert!(
                first.tick >= event.min(first_push),
                "{first:?} before the bound {event}"
            );
        }
        if let Some(first) = out.get(before) {
            assert!(
                first.tick >= bound.min(first_push),
                "completion at {} before the bound {bound}",
                first.tick
            );
        }
    }
    let same = twin
        .log
        .iter()
        .zip(&log)
        .take_while(|(a, b)| a == b)
        .count();
    assert_eq!(
        twin.log.get(same),
        log.get(same),
        "command {same} of {}",
        twin.log.len()
    );
    let out: Vec<(u64, u32)> = out.iter().map(|d| (d.tick, d.tag)).collect();
    assert_eq!(twin.out, out);
    assert!(ch.is_idle() || !out.is_empty());
    let s = ch.stats();
    assert_eq!(twin.rows, [s.hits, s.misses, s.conflicts]);
}

/// Devices under test: every shipped one and every golden one, and PyTorchSim's.
fn devices() -> &'static [DramSpec] {
    static LIST: std::sync::LazyLock<Vec<DramSpec>> = std::sync::LazyLock::new(load);
    &LIST
}

fn load() -> Vec<DramSpec> {
    let mut list: Vec<DramSpec> = PRESETS
        .iter()
        .map(|p| DramSpec::preset(p).unwrap())
        .collect();
    for d in ["DDR4_2400R", "HBM2_2000", "HBM3_6400", "LPDDR5_6400"] {
        list.push(golden_spec(&format!("{d}.1ch.ref")).spec);
    }
    for d in ["HBM2_TPUv3", "HBM3_TPUv6e", "LPDDR5X"] {
        list.push(
            DramSpec::from_ramulator(&golden_text(&format!("pytorchsim/{d}.yaml")))
                .unwrap()
                .spec,
        );
    }
    list
}

fn vary(
    mut spec: DramSpec,
    refresh: u8,
    closed: bool,
    small: bool,
    many: bool,
    ranks: bool,
) -> DramSpec {
    let fits = |spec: &DramSpec| spec.levels[1] == 1 && spec.levels.len() == 4;
    if ranks && fits(&spec) {
        spec.levels[1] = 2;
        spec.set_mapping_order("RoBaRaCoCh").unwrap();
    }
    let level = match spec.refresh {
        Refresh::AllBank { level, .. } => level,
        _ => 0,
    };
    spec.refresh = match refresh {
        0 => Refresh::None,
        1 => Refresh::AllBank {
            interval: 1500,
            level,
        },
        2 if !spec
            .constraints
            .iter()
            .any(|c| c.before.contains(&Cmd::RefBank)) =>
        {
            Refresh::None
        }
        2 => Refresh::PerBank { interval: 300 },
        _ => spec.refresh,
    };
    spec.row_policy = if closed {
        RowPolicy::Closed
    } else {
        RowPolicy::Open
    };
    if small {
        (spec.read_queue, spec.write_queue) = (5, 4);
        (spec.drain_above, spec.drain_below) = (3, 1);
    }
    spec.accepts_per_tick = if many { u32::MAX } else { 1 };
    spec.compile();
    spec
}

fn requests() -> impl Strategy<Value = Vec<(u64, u64, bool)>> {
    // Bank, row and column from small sets, so that hits, conflicts, forwards and coalesced writes all occur; phases
    // of bursts and of gaps.
    let one = (
        prop_oneof![6 => Just(0u64), 3 => 1u64..8, 1 => 8u64..400],
        any::<u32>(),
        0u32..3,
        0u32..4,
        0u32..100,
    );
    (prop::collection::vec(one, 1..160), 0u32..100, 1u32..64).prop_map(|(list, writes, banks)| {
        list.into_iter()
            .map(|(gap, bank, row, column, w)| {
                // Packed now, spread over the device by the mapping's inverse in the test.
                (
                    gap,
                    u64::from(bank % banks) << 16 | u64::from(row) << 8 | u64::from(column),
                    w < writes,
                )
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn channel_equals_twin(
        device in 0usize..64,
        refresh in 0u8..4,
        flags in any::<[bool; 4]>(),
        step in prop_oneof![Just(u64::MAX / 4), 1u64..500],
        reqs in requests(),
    ) {
        let list = devices();
        let spec = vary(list[device % list.len()].clone(), refresh, flags[0] && flags[1], flags[1], flags[2], flags[3]);
        let banks = spec.banks();
        let reqs: Vec<_> = reqs
            .into_iter()
            .map(|(gap, x, w)| {
                let a = spec.map().address((x >> 16) as u32 % banks, (x >> 8 & 255) as u32, (x & 255) as u32);
                (gap, a, w)
            })
            .collect();
        compare(&spec, &reqs, step);
    }
}

/// Long saturated streams, where queues are full and drains come and go.
#[test]
fn channel_equals_twin_when_saturated() {
    for (i, spec) in devices().iter().enumerate() {
        for name in ["mixrand", "mixseq", "tile"] {
            let spec = vary(spec.clone(), 3, i % 2 == 1, false, true, false);
            let reqs = dram_common::stream(name, spec.tx_bytes().into(), 1500);
            let reqs: Vec<_> = reqs.into_iter().map(|(a, w)| (0, a, w)).collect();
            compare(&spec, &reqs, u64::MAX / 4);
        }
    }
}
