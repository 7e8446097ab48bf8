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
//! A work-item that waits at the dispatcher while others overtake it stays where it is. Nothing depends
//! on its place while it waits; when periods are left out, it is moved back by what they would have
//! moved on, so that it is as far behind as it would be.
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

use tilesim_traces::launch::{OpKind, ResolvedIndirect, Transfer, WorkItem};
use tilesim_traces::{Bound, Motion};

use crate::cores::{Core, CoreStats, Prepared};
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
    /// Work-items bound and not delivered, by slot.
    bound: Vec<Option<u64>>,
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
    /// The same by `dma` statement.
    sites: Vec<(u32, i128)>,
    /// No transfer lies behind this bit.
    end_bit: i128,
    /// Bits after which channels, banks and rows are the same.
    round: i128,
}

impl Rows {
    /// `period` bits are a period of the memory.
    fn new(
        memory: &Memory,
        space: RowSpace,
        motions: &[Motion],
        axis: usize,
        period: i128,
    ) -> Option<Rows> {
        let (areas, steps) = areas(motions, axis, &space)?.into_iter().unzip();
        let device = i128::from(space.step).checked_mul(i128::from(space.steps))? * 8;
        Some(Rows {
            frame: memory.frame(areas)?,
            space,
            steps,
            sites: motions.iter().map(|m| (m.site, m.steps[axis])).collect(),
            end_bit: motions.iter().map(|m| m.end_bit).max().unwrap_or(0),
            round: (device / gcd(device, period)).checked_mul(period)?,
        })
    }

    /// Places of an item's transfers that are `steps` further behind those of all items to come. In
    /// front of the first address they are put where nothing else is, in the rows they would have.
    /// `None` if they would meet rows of others.
    fn behind(&self, work: &Prepared, steps: u64) -> Option<Vec<i128>> {
        let item = &work.item;
        let mut places = vec![0; item.transfers.len()];
        for op in &item.ops {
            let OpKind::Dma(number) = op.kind else {
                continue;
            };
            let transfer = item.transfers.get(number as usize)?;
            let (_, step) = self.sites.iter().find(|(site, _)| *site == op.site)?;
            let mut first = transfer.first_bit - step.checked_mul(i128::from(steps))?;
            let (low, high) = reach(item, transfer);
            if first + low < 0 {
                let short = self.end_bit - (first + low);
                first += short
                    .div_euclid(self.round)
                    .checked_add(1)?
                    .checked_mul(self.round)?;
            }
            if first + high > 1 << 66 || self.meets(first + low, first + high, *step) {
                return None;
            }
            *places.get_mut(number as usize)? = first;
        }
        Some(places)
    }

    /// Whether bits `first..end`, which move by `step`, may share rows with what moves otherwise.
    fn meets(&self, first: i128, end: i128, step: i128) -> bool {
        let [_, _, ..] = self.steps.as_slice() else {
            return false;
        };
        let bits = i128::from(self.space.step) * 8;
        let from = first.div_euclid(bits);
        let length = (end - 1).div_euclid(bits) - from + 1;
        let from = from.rem_euclid(i128::from(self.space.steps));
        let to = from + length;
        to > i128::from(self.space.steps)
            || self
                .frame
                .areas()
                .iter()
                .zip(&self.steps)
                .any(|(area, its)| {
                    *its != step && from < i128::from(area.end) && i128::from(area.first) < to
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

/// First bit and end of what a transfer touches, from its first element.
fn reach(item: &WorkItem, transfer: &Transfer) -> (i128, i128) {
    let (mut low, mut high) = (0i128, 1i128);
    for dim in item.dims.get(transfer.dims.range()).unwrap_or(&[]) {
        let last = i128::from(dim.extent.saturating_sub(1)) * i128::from(dim.stride);
        low += last.min(0);
        high += last.max(0);
    }
    if let ResolvedIndirect::Indices(span) = transfer.indirect {
        let indices = item.indices.get(span.range()).unwrap_or(&[]);
        low += i128::from(indices.iter().copied().min().unwrap_or(0));
        high += i128::from(indices.iter().copied().max().unwrap_or(0));
    }
    let bits = i128::from(transfer.element_bits);
    (low * bits, high * bits)
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
            Some(space) => Some(Rows::new(memory, space, &motions, course.axis, period)?),
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
                && let Some(overtaken) = self.overtaken(seen, period, s.dispatcher)
            {
                let times = s.dispatcher.waiting_to_expand().saturating_sub(TAIL) / period;
                let times = times.min(most);
                let steps = times * (period / self.course.items);
                let cycles = (s.now - seen.step)
                    .checked_mul(times)
                    .filter(|&cycles| times > 0 && cycles < 1 << 61)?;
                let mut places = Vec::new();
                for slot in overtaken {
                    let rows = self.rows.as_ref()?;
                    let work = s.dispatcher.bound_items().nth(slot)??;
                    places.push((slot, rows.behind(work, steps)?));
                    if rows.steps.len() > 1 {
                        // It is outside of all areas now, and states cannot be compared any more.
                        self.next_look = u64::MAX;
                    }
                }
                for (slot, first_bits) in places {
                    s.dispatcher.replace(slot, &first_bits);
                }
                let jump = jump(seen, period, &credit, times, cycles, s);
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
            seen.bound.clear();
            let bound = s.dispatcher.bound_items();
            seen.bound.extend(bound.map(|work| work.map(|w| w.index)));
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

impl Warp {
    /// The slots whose work-items have been overtaken since `seen`: they stay where they are, and are
    /// further behind now. `None` if a slot's items are at places that are not alike.
    fn overtaken(
        &self,
        seen: &Seen,
        period: u64,
        dispatcher: &Dispatcher<'_>,
    ) -> Option<Vec<usize>> {
        let mut overtaken = Vec::new();
        for (slot, (work, before)) in dispatcher.bound_items().zip(&seen.bound).enumerate() {
            let (Some(work), &Some(before)) = (work, before) else {
                continue;
            };
            if work.index.wrapping_sub(before) == period {
                continue;
            }
            match self.rows {
                // Nothing but the channels matters.
                None if work.index % self.unit == before % self.unit => {}
                Some(_) if work.index == before => overtaken.push(slot),
                _ => return None,
            }
        }
        Some(overtaken)
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
    times: u64,
    cycles: u64,
    s: Situation<'_, '_>,
) -> Jump {
    for (core, before) in s.cores.iter_mut().zip(&seen.cores) {
        core.jump(times, before);
    }
    let more: Vec<i128> = credit.iter().map(|c| c * i128::from(times)).collect();
    s.memory.jump(times, &seen.counts, &more);
    s.dispatcher.skip(times * period);
    Jump {
        period,
        items: times * period,
        cycles,
        requests: (s.memory.started() - seen.started) * times,
        items_done: (s.items_done - seen.items_done) * times,
    }
}

fn gcd(a: i128, b: i128) -> i128 {
    let (mut a, mut b) = (a.abs(), b.abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}
