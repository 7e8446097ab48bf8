//! Exact fast-forward over work that repeats.
//!
//! In a long run of alike work-items the state of the whole machine recurs, shifted by a period of
//! items. Once the *complete* state (times relative to now, items relative to the next one, every
//! queue, everything the future depends on) equals an earlier one word for word, what follows is
//! what followed then: the run counts as many periods as fit, leaves out their items, and simulates
//! the rest. Every cycle and statistic comes out as in the full run.
//!
//! This is sound where the future depends on an item only through its graph (the same for all items
//! when control is uniform) and through the channels of its lines: the channel map must shift
//! ([`Memory::map_period`]), and items a period apart must lie a multiple of the map's period apart
//! in every tensor. Bandwidth credit that only piles up is not compared: it has held nothing up
//! during the period, so more of it will not either; what a period adds is added for every jumped
//! period.
//!
//! Not covered yet: banked DRAM, flit networks, hashed channel maps; such runs are simulated in full.
//!
//! Looking costs time, so states are compared only while that stays a small part of the work done,
//! counted in words compared against steps and requests simulated. The saved state is replaced at
//! growing distances (R. Brent, BIT 20, 1980), so any period is found within a few of its lengths.

use tilesim_traces::Bound;

use crate::cores::{Core, CoreStats};
use crate::dispatch::Dispatcher;
use crate::memory::{ChannelStats, Memory};

/// Work-items between two looks, at first.
const FIRST_GAP: u64 = 16;

/// Words that may be compared before any work is done.
const ALLOWANCE: u64 = 1 << 16;

/// A state that has been seen, and the counts at that time.
#[derive(Debug, Default)]
struct Seen {
    words: Vec<u64>,
    step: u64,
    base: u64,
    credit: Vec<(i128, u64)>,
    cores: Vec<CoreStats>,
    channels: Vec<ChannelStats>,
    items_done: u64,
    started: u64,
}

/// What was jumped over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Jump {
    /// Work-items of one period.
    pub period: u64,
    /// Work-items left out.
    pub items: u64,
    /// Core cycles left out.
    pub cycles: u64,
    /// Memory requests left out.
    pub requests: u64,
    /// Work-items finished in what was left out.
    pub items_done: u64,
}

/// What a look works on.
pub struct Situation<'r, 'a> {
    /// Everything before this core step is done.
    pub now: u64,
    /// Work-items finished.
    pub items_done: u64,
    /// The cores.
    pub cores: &'r mut [Core],
    /// The dispatcher.
    pub dispatcher: &'r mut Dispatcher<'a>,
    /// The memory system.
    pub memory: &'r mut Memory,
}

/// Looks for a recurring state.
#[derive(Debug)]
pub struct Warp {
    /// Items that are a multiple of this apart use the same channels.
    unit: u64,
    next_look: u64,
    gap: u64,
    seen: Option<Seen>,
    looks: u64,
    renew_at: u64,
    words: Vec<u64>,
    compared: u64,
    steps: u64,
}

impl Warp {
    /// For a launch in which jumping is sound; `None` otherwise.
    pub fn new(bound: &Bound, memory: &Memory) -> Option<Warp> {
        if !memory.has_canonical() {
            return None;
        }
        let period = i128::from(memory.map_period()?) * 8;
        let steps = bound.transfer_steps()?;
        let grid = bound.grid();
        let axes: Vec<usize> = (0..3).filter(|&a| grid[a] > 1).collect();
        let alike = |s: &[i128; 3]| axes.iter().all(|&a| s[a] % period == 0);
        let unit = match axes.as_slice() {
            _ if steps.iter().all(alike) => 1,
            [axis] => {
                let mut unit = 1i128;
                for step in &steps {
                    let needed = period / gcd(period, step[*axis]);
                    unit = unit / gcd(unit, needed) * needed;
                    if unit > 1 << 20 {
                        return None;
                    }
                }
                unit as u64
            }
            _ => return None,
        };
        let gap = FIRST_GAP.div_ceil(unit) * unit;
        if bound.items() < 8 * gap {
            return None;
        }
        Some(Warp {
            unit,
            next_look: gap,
            gap,
            seen: None,
            looks: 0,
            renew_at: 1,
            words: Vec::new(),
            compared: 0,
            steps: 0,
        })
    }

    /// A core step has been simulated. Whether it is time to look.
    #[inline]
    pub fn stepped(&mut self, delivered: u64) -> bool {
        self.steps += 1;
        delivered >= self.next_look
    }

    /// Look. `Some` when the state recurs and periods fit before the end: they have been counted
    /// and left out.
    pub fn look(&mut self, s: Situation<'_, '_>) -> Option<Jump> {
        // A compared word costs a few instructions, a step or a request about a hundred.
        if self.compared > ALLOWANCE + self.steps + s.memory.started() {
            self.gap *= 2;
            self.next_look = (s.dispatcher.delivered() / self.gap + 1) * self.gap;
            return None;
        }
        self.next_look = (s.dispatcher.delivered() / self.gap + 1) * self.gap;
        let base = s.dispatcher.base();
        self.words.clear();
        s.dispatcher.canonical(s.now, base, &mut self.words);
        for core in s.cores.iter() {
            core.canonical(s.now, base, &mut self.words);
        }
        s.memory.canonical(s.now, base, &mut self.words);
        self.compared += self.words.len() as u64;
        self.looks += 1;
        if let Some(seen) = &self.seen {
            let period = base - seen.base;
            if period > 0
                && period.is_multiple_of(self.unit)
                && seen.words == self.words
                && let Some(credit) = credit_of_period(seen, s.now, s.memory)
            {
                return jump(seen, period, &credit, s);
            }
        }
        if self.looks >= self.renew_at {
            self.renew_at = self.looks * 2;
            let seen = self.seen.get_or_insert_default();
            std::mem::swap(&mut seen.words, &mut self.words);
            seen.step = s.now;
            seen.base = base;
            seen.credit = s.memory.credit(s.now);
            seen.cores.clear();
            seen.cores.extend(s.cores.iter().map(|c| c.stats().clone()));
            seen.channels.clear();
            seen.channels.extend_from_slice(s.memory.stats());
            seen.items_done = s.items_done;
            seen.started = s.memory.started();
        }
        None
    }
}

/// Credit that one period adds per channel, when the period will go the same way next time.
fn credit_of_period(seen: &Seen, now: u64, memory: &Memory) -> Option<Vec<i128>> {
    memory
        .credit(now)
        .iter()
        .zip(&seen.credit)
        .map(|(&(slack, held), &(slack_before, held_before))| {
            let more = slack - slack_before;
            (more == 0 || (more > 0 && held == held_before)).then_some(more)
        })
        .collect()
}

fn jump(seen: &Seen, period: u64, credit: &[i128], s: Situation<'_, '_>) -> Option<Jump> {
    // The last item has a graph of its own: it and what looks ahead to it are simulated.
    let ahead = s.dispatcher.waiting_to_expand().checked_sub(period + 64)?;
    let times = ahead / period;
    if times == 0 {
        return None;
    }
    let cycles = (s.now - seen.step)
        .checked_mul(times)
        .filter(|&cycles| cycles < 1 << 61)?;
    for (core, before) in s.cores.iter_mut().zip(&seen.cores) {
        core.jump(times, before);
    }
    let more: Vec<i128> = credit.iter().map(|c| c * i128::from(times)).collect();
    s.memory.jump(times, &seen.channels, &more);
    s.dispatcher.skip(times * period);
    Some(Jump {
        period,
        items: times * period,
        cycles,
        requests: (s.memory.started() - seen.started) * times,
        items_done: (s.items_done - seen.items_done) * times,
    })
}

fn gcd(a: i128, b: i128) -> i128 {
    let (mut a, mut b) = (a.abs(), b.abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}
