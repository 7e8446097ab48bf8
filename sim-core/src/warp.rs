//! Exact fast-forward over work that repeats.
//!
//! In a long run of alike work-items the state of the whole machine recurs, moved on by a period of
//! items. Once the *complete* state (times relative to now, items relative to the next one, rows
//! relative to where the streams are, every queue, everything the future depends on) equals an
//! earlier one word for word, what follows is what followed then: the run counts as many periods as
//! fit, leaves out their items, and simulates the rest. Every cycle and statistic comes out as in
//! the full run.
//!
//! This is sound where the future depends on an item only through its graph (the same for all items
//! when control is uniform) and through the places of its lines, and where moving on by a period
//! changes nothing about those places but, in banked DRAM, the numbers of rows:
//!
//! - The map of lines to channels must be periodic ([`Memory::period`]), and so far that a period of
//!   items must move every transfer by a multiple of it. In a grid of several axes all items move
//!   alike only by whole rows of the grid, unless a step along the slower axis is as far as the
//!   whole faster one ([`Course`]).
//! - Rows are compared for equality only, and a transfer moves all of its rows by as many. Transfers
//!   that move by different distances must never share a row ([`areas`]).
//!
//! Then items stand for those that lie whole periods behind, wherever they are in the grid; the rest
//! of the run uses the places that come next in memory as if the grid were shorter.
//!
//! Bandwidth credit is not compared where it has held nothing up during the period: what a period
//! adds or takes is added for every jumped period. Where it shrinks, only so many periods are jumped
//! over that the least that was left over lasts; then the run goes on until it recurs again.
//!
//! Not covered yet: flit networks, an L2, hashed or partitioned channel maps, the look-ahead DRAM
//! controller; such runs are simulated in full.
//!
//! Looking costs time, so states are compared only while that stays a small part of the work done,
//! counted in words looked at against steps and requests simulated. The saved state is replaced at
//! growing distances (R. Brent, BIT 20, 1980), so any period is found within a few of its lengths.

use tilesim_traces::{Bound, Motion};

use crate::cores::{Core, CoreStats};
use crate::dispatch::Dispatcher;
use crate::dram::{Area, Frame};
use crate::memory::{Counts, Credit, Memory, RowSpace};

/// Work-items between two looks, at least.
const FIRST_GAP: u64 = 4;

/// Work-items before the first look, at most: a run has mostly settled by then.
const FIRST_LOOK: u64 = 64;

/// Work-items left at the end, at least: the last one has a graph of its own, and those before it
/// look ahead.
const TAIL: u64 = 16;

/// Work-items of one period that are still looked for.
const MAX_UNIT: u64 = 1 << 20;

/// Words that may be looked at before any work is done.
const ALLOWANCE: u64 = 1 << 15;

/// A state that has been seen, and the counts at that time.
#[derive(Debug, Default)]
struct Seen {
    words: Vec<u64>,
    step: u64,
    base: u64,
    credit: Vec<Credit>,
    cores: Vec<CoreStats>,
    counts: Counts,
    items_done: u64,
    started: u64,
}

/// What was jumped over, in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Jump {
    /// Work-items of one period; 0 if nothing was jumped over.
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

impl Jump {
    /// One more jump. The first one's period stands for all.
    pub fn add(&mut self, other: &Jump) {
        if self.period == 0 {
            self.period = other.period;
        }
        self.items += other.items;
        self.cycles += other.cycles;
        self.requests += other.requests;
        self.items_done += other.items_done;
    }
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

/// How a launch moves on through memory: every `items` work-items all transfers are a step of one
/// axis further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Course {
    axis: usize,
    items: u64,
}

impl Course {
    /// The finest course of a grid. A step that leaves the end of an axis goes on at its start, one
    /// further along the next slower one, which `continues` if that is the same for memory.
    fn new(bound: &Bound, continues: impl Fn(i128) -> bool, motions: &[Motion]) -> Option<Course> {
        let grid = bound.grid();
        let mut axes = bound.axes().into_iter().rev().filter(|&a| grid[a] > 1);
        let mut course = Course {
            axis: axes.next()?,
            items: 1,
        };
        let (mut last, mut items) = (course.axis, 1u64);
        for axis in axes {
            let extent = grid[last];
            items = items.checked_mul(extent)?;
            let joined = motions
                .iter()
                .all(|m| continues(m.steps[axis] - m.steps[last] * i128::from(extent)));
            if !joined {
                course = Course { axis, items };
            }
            last = axis;
        }
        Some(course)
    }

    /// Work-items after which all transfers have moved by a multiple of `period` bits.
    fn unit(&self, motions: &[Motion], period: i128) -> Option<u64> {
        let mut steps = 1i128;
        for motion in motions {
            let needed = period / gcd(period, motion.steps[self.axis]);
            steps = steps / gcd(steps, needed) * needed;
            if steps > i128::from(MAX_UNIT) {
                return None;
            }
        }
        self.items
            .checked_mul(steps as u64)
            .filter(|&unit| unit <= MAX_UNIT)
    }
}

/// What the rows of the launch's transfers are counted from.
#[derive(Debug)]
struct Rows {
    frame: Frame,
    space: RowSpace,
    /// Bits by which each area moves in a step of the course.
    steps: Vec<i128>,
}

impl Rows {
    fn new(memory: &Memory, space: RowSpace, motions: &[Motion], axis: usize) -> Option<Rows> {
        let (areas, steps) = areas(motions, axis, &space)?.into_iter().unzip();
        Some(Rows {
            frame: memory.frame(areas)?,
            space,
            steps,
        })
    }

    /// The course has done so many steps.
    fn move_to(&mut self, steps: u64) -> &Frame {
        let bits = i128::from(self.space.step) * 8;
        for (area, step) in self.frame.areas_mut().iter_mut().zip(&self.steps) {
            area.moved = (step * i128::from(steps)).div_euclid(bits) as u64;
        }
        &self.frame
    }
}

/// The parts of memory that move along `axis` by different distances, and these in bits. `None` if
/// they have rows in common.
fn areas(motions: &[Motion], axis: usize, space: &RowSpace) -> Option<Vec<(Area, i128)>> {
    let mut used = motions.iter().filter(|m| m.end_bit > m.first_bit);
    let Some(first) = used.next() else {
        return Some(Vec::new());
    };
    let step = first.steps[axis];
    if used.all(|m| m.steps[axis] == step) {
        let all = Area {
            first: 0,
            end: u64::MAX,
            moved: 0,
        };
        return Some(vec![(all, step)]);
    }
    let bits = i128::from(space.step) * 8;
    let mut parts: Vec<(u64, u64, i128)> = Vec::new();
    for m in motions.iter().filter(|m| m.end_bit > m.first_bit) {
        let first = m.first_bit.div_euclid(bits);
        let length = (m.end_bit - 1).div_euclid(bits) - first + 1;
        let first = first.rem_euclid(i128::from(space.steps)) as u64;
        let end = first.checked_add(u64::try_from(length).ok()?)?;
        if end > space.steps {
            return None;
        }
        parts.push((first, end, m.steps[axis]));
    }
    parts.sort_unstable();
    let mut areas: Vec<(Area, i128)> = Vec::new();
    for (first, end, step) in parts {
        match areas.last_mut() {
            Some((last, its)) if first < last.end => {
                if *its != step {
                    return None;
                }
                last.end = last.end.max(end);
            }
            _ => {
                let area = Area {
                    first,
                    end,
                    moved: 0,
                };
                areas.push((area, step));
            }
        }
    }
    Some(areas)
}

/// Looks for a recurring state.
#[derive(Debug)]
pub struct Warp {
    course: Course,
    /// Only states a multiple of so many items apart may be alike.
    unit: u64,
    rows: Option<Rows>,
    out_of_bounds: u64,
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
    /// For a launch in which jumping is sound and may pay; `None` otherwise.
    pub fn new(bound: &Bound, memory: &Memory) -> Option<Warp> {
        if !memory.has_canonical() {
            return None;
        }
        let period = i128::from(memory.period()?) * 8;
        let motions = bound.motions()?;
        // Addresses wrap around at either end.
        if motions
            .iter()
            .any(|m| m.first_bit < 0 || m.end_bit > 1 << 64)
        {
            return None;
        }
        let space = memory.row_space();
        let course = match space {
            None => Course::new(bound, |gap| gap % period == 0, &motions)?,
            Some(_) => Course::new(bound, |gap| gap == 0, &motions)?,
        };
        let unit = course.unit(&motions, period)?;
        let gap = FIRST_GAP.div_ceil(unit) * unit;
        let first = gap.min(FIRST_LOOK);
        if bound.items() < first + 2 * gap + TAIL {
            return None;
        }
        let rows = match space {
            None => None,
            Some(space) => Some(Rows::new(memory, space, &motions, course.axis)?),
        };
        Some(Warp {
            course,
            unit,
            rows,
            out_of_bounds: bound.out_of_bounds().ok()??,
            next_look: first,
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

    /// Transfers of the whole launch that leave their tensor.
    pub fn out_of_bounds(&self) -> u64 {
        self.out_of_bounds
    }

    /// Look. `Some` when the state recurs and periods fit before the end: they have been counted
    /// and left out.
    pub fn look(&mut self, s: Situation<'_, '_>) -> Option<Jump> {
        if s.dispatcher.waiting_to_expand() < self.unit + TAIL {
            self.next_look = u64::MAX;
            return None;
        }
        let past = s.dispatcher.delivered() - self.next_look;
        self.next_look += (past / self.gap + 1) * self.gap;
        // A word costs a few instructions, a step or a request more than a hundred.
        if self.compared > ALLOWANCE + self.steps + s.memory.started() {
            return None;
        }
        let base = s.dispatcher.base();
        self.words.clear();
        s.memory.settle(s.now);
        s.dispatcher.canonical(s.now, base, &mut self.words);
        for core in s.cores.iter() {
            core.canonical(s.now, base, &mut self.words);
        }
        let course = base / self.course.items;
        let frame = self.rows.as_mut().map(|rows| rows.move_to(course));
        s.memory.canonical(s.now, base, frame, &mut self.words);
        self.compared += self.words.len() as u64 + s.memory.scanned();
        self.looks += 1;
        if let Some(seen) = &self.seen {
            let period = base - seen.base;
            if period > 0
                && period.is_multiple_of(self.unit)
                && seen.words == self.words
                && let Some((credit, most)) = credit_of_period(seen, s.now, s.memory)
            {
                let jump = jump(seen, period, &credit, most, s)?;
                self.seen = None;
                self.renew_at = self.looks + 1;
                return Some(jump);
            }
        }
        if self.looks >= self.renew_at {
            self.renew_at = self.looks * 2;
            let seen = self.seen.get_or_insert_default();
            std::mem::swap(&mut seen.words, &mut self.words);
            seen.step = s.now;
            seen.base = base;
            seen.credit = s.memory.credit(s.now);
            s.memory.reset_spare();
            seen.cores.clear();
            seen.cores.extend(s.cores.iter().map(|c| c.stats().clone()));
            seen.counts = s.memory.counts();
            seen.items_done = s.items_done;
            seen.started = s.memory.started();
        }
        None
    }
}

/// Credit that one period adds per channel, and how many more periods go the same way at most.
fn credit_of_period(seen: &Seen, now: u64, memory: &Memory) -> Option<(Vec<i128>, u64)> {
    let mut most = u64::MAX;
    let credit = memory
        .credit(now)
        .iter()
        .zip(&seen.credit)
        .map(|(credit, before)| {
            let more = credit.slack - before.slack;
            if more != 0 && credit.held != before.held {
                return None;
            }
            if more < 0 {
                most = most.min(u64::try_from(credit.spare / -more).unwrap_or(u64::MAX));
            }
            Some(more)
        })
        .collect::<Option<_>>()?;
    Some((credit, most))
}

fn jump(
    seen: &Seen,
    period: u64,
    credit: &[i128],
    most: u64,
    s: Situation<'_, '_>,
) -> Option<Jump> {
    let times = (s.dispatcher.waiting_to_expand().checked_sub(TAIL)? / period).min(most);
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
    s.memory.jump(times, &seen.counts, &more);
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
