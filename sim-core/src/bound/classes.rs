//! Cutting a grid into boxes inside which control is the same.
//!
//! A box is a range of program ids per axis. Control is the same in a box if every loop runs equally
//! often, every condition goes the same way and every extent, stride and line count has one value for
//! all program ids of the box; then its items have the same ops, and their transfers the same shape.
//! That is decided by walking the body once with values that are affine in the program ids where
//! that is exact, and ranges otherwise. Where it cannot be shown the box is cut: first the last
//! program id of an axis is split off (ragged edges), then halves. The work is bounded; what is left
//! over is reported as unknown.

use tilesim_traces::Bound;
use tilesim_traces::expr;
use tilesim_traces::model::{BinaryOp, Direction, Dma, Expr, For, Indirect, Stmt, UnaryOp, Unit};

use super::MemoryPath;
use super::item::{Costs, PerUnit, declared_lines, strided_lines};
use crate::graph::GraphContext;
use crate::machine::{ComputeIssue, Machine, Residency};

/// Most boxes looked at.
const MAX_BOXES: usize = 512;
/// Most expression nodes evaluated.
const MAX_NODES: u64 = 1 << 20;
/// What an expression can be in a box. Every value it has for a program id of the box lies in
/// `lo..=hi`, and equals the affine form if there is one.
#[derive(Clone, Copy, Debug)]
struct Value {
    lo: i128,
    hi: i128,
    /// Factors of the program ids, then a constant.
    affine: Option<[i128; 4]>,
}

/// Ranges of the program ids, both ends included.
type Box3 = [(u64, u64); 3];

/// Why a box is not settled: the axes (as bits) that matter.
#[derive(Clone, Copy, Debug)]
enum Stop {
    Varies(u8),
    Budget,
}

/// Largest factor or constant of an affine form: its products with program ids fit 128 bits.
const LARGEST: i128 = 1 << 60;

impl Value {
    fn point(v: i128) -> Value {
        Value {
            lo: v,
            hi: v,
            affine: Some([0, 0, 0, v]),
        }
    }

    fn range(lo: i128, hi: i128) -> Value {
        if lo == hi {
            Value::point(lo)
        } else {
            Value {
                lo,
                hi,
                affine: None,
            }
        }
    }

    const ANY: Value = Value {
        lo: i64::MIN as i128,
        hi: i64::MAX as i128,
        affine: None,
    };

    /// A form whose numbers are small enough for exact arithmetic; `None` otherwise.
    fn of_affine(form: [Option<i128>; 4], within: &Box3) -> Option<Value> {
        let [Some(a), Some(b), Some(c), Some(d)] = form else {
            return None;
        };
        let form = [a, b, c, d];
        if form.iter().any(|f| f.abs() > LARGEST) {
            return None;
        }
        let (mut lo, mut hi) = (d, d);
        for (factor, (from, to)) in form.iter().zip(within) {
            let ends = [factor * i128::from(*from), factor * i128::from(*to)];
            lo += ends[0].min(ends[1]);
            hi += ends[0].max(ends[1]);
        }
        Some(if lo == hi {
            Value::point(lo)
        } else {
            Value {
                lo,
                hi,
                affine: Some(form),
            }
        })
    }

    /// Wherever checked arithmetic gives a value it fits 64 bits.
    fn checked(self) -> Value {
        let (lo, hi) = (self.lo.max(Value::ANY.lo), self.hi.min(Value::ANY.hi));
        if lo > hi {
            // It never has a value: the launch fails there.
            return Value::ANY;
        }
        if lo == hi {
            Value::point(lo)
        } else {
            Value { lo, hi, ..self }
        }
    }

    fn known(&self) -> Option<i64> {
        if self.lo == self.hi {
            i64::try_from(self.lo).ok()
        } else {
            None
        }
    }

    fn fits(&self) -> bool {
        self.lo >= Value::ANY.lo && self.hi <= Value::ANY.hi
    }
}

/// What a loop's variable can be in any turn; `distance` is from its first value to its end.
fn any_turn(lo: Value, hi: Value, step: Value, distance: Value) -> Value {
    let up = (lo.lo, (hi.hi - 1).max(lo.lo));
    let down = ((hi.lo + 1).min(lo.hi), lo.hi);
    // One turn at most: the variable is a name for the first value.
    if (step.lo > 0 && distance.hi <= step.lo) || (step.hi < 0 && distance.lo >= step.hi) {
        return lo;
    }
    let (from, to) = if step.lo > 0 {
        up
    } else if step.hi < 0 {
        down
    } else {
        (up.0.min(down.0), up.1.max(down.1))
    };
    Value::range(from, to).checked()
}

struct Walk<'a> {
    bound: &'a Bound,
    within: Box3,
    vars: Vec<Value>,
    nodes: u64,
}

/// Cut the grid of `bound` into boxes of equal control; `class` gets the program ids of one item of
/// each and the number of its items, `most` times at most. Returns how many items are in no box.
pub(super) fn classes<E>(
    bound: &Bound,
    most: usize,
    mut class: impl FnMut([u64; 3], u64) -> Result<(), E>,
) -> Result<u64, E> {
    let grid = bound.grid();
    let whole = grid.map(|extent| (0, extent.saturating_sub(1)));
    // Boxes to look at, with the axes that were peeled already.
    let mut open: Vec<(Box3, u8)> = vec![(whole, 0)];
    let mut walk = Walk {
        bound,
        within: whole,
        vars: Vec::new(),
        nodes: 0,
    };
    let (mut looked, mut found, mut unknown) = (0, 0, 0u64);
    let mut cursor = 0;
    while let Some(&(at, peeled)) = open.get(cursor) {
        cursor += 1;
        let count = at
            .iter()
            .fold(1u64, |n, (lo, hi)| n.saturating_mul(hi - lo + 1));
        looked += 1;
        if looked > MAX_BOXES || found >= most || walk.nodes > MAX_NODES {
            unknown = unknown.saturating_add(count);
            continue;
        }
        walk.within = at;
        walk.vars.clear();
        let settled = if count == 1 {
            Ok(())
        } else {
            walk.block(&bound.trace().body)
        };
        match settled {
            Ok(()) => {
                found += 1;
                class(at.map(|(lo, _)| lo), count)?;
            }
            Err(Stop::Budget) => unknown = unknown.saturating_add(count),
            Err(Stop::Varies(axes)) => {
                let matter = |axis: usize| axes >> axis & 1 == 1 && at[axis].0 < at[axis].1;
                let widest = |filter: &dyn Fn(usize) -> bool| {
                    (0..3)
                        .filter(|&a| filter(a))
                        .max_by_key(|&a| at[a].1 - at[a].0)
                };
                let Some(axis) = widest(&matter).or_else(|| widest(&|a: usize| at[a].0 < at[a].1))
                else {
                    unknown = unknown.saturating_add(count);
                    continue;
                };
                let (lo, hi) = at[axis];
                let first = peeled >> axis & 1 == 0;
                let cut = if first { hi } else { lo + (hi - lo) / 2 + 1 };
                let peeled = peeled | 1 << axis;
                let mut low = at;
                low[axis] = (lo, cut - 1);
                let mut high = at;
                high[axis] = (cut, hi);
                open.push((low, peeled));
                open.push((high, peeled));
            }
        }
    }
    Ok(unknown)
}

/// First and last memory line that a transfer may touch, over all work-items; `None`: any.
type Lines = Option<(i128, i128)>;

/// Per statement (numbered as [`tilesim_traces::launch::Op::site`] does), whether it is a load of lines
/// that no store of the launch touches, as far as the ranges of the addresses show. `line` in bytes.
pub(super) fn fresh_sites(bound: &Bound, line: u64) -> Vec<bool> {
    let whole = bound.grid().map(|extent| (0, extent.saturating_sub(1)));
    let mut walk = Walk {
        bound,
        within: whole,
        vars: Vec::new(),
        nodes: 0,
    };
    let mut found = Reach {
        line: i128::from(line.max(1)) * 8,
        site: 0,
        loads: Vec::new(),
        stores: vec![None; bound.tensors().len()],
        anywhere: false,
    };
    if walk.reach(&bound.trace().body, &mut found).is_err() {
        return Vec::new();
    }
    let mut fresh = vec![false; found.site as usize];
    for (site, lines) in &found.loads {
        let (Some((first, last)), Some(entry)) = (lines, fresh.get_mut(*site as usize)) else {
            continue;
        };
        let stored = found
            .stores
            .iter()
            .flatten()
            .any(|(from, to)| from <= last && first <= to);
        *entry = !stored && !found.anywhere;
    }
    fresh
}

/// What any item of the grid costs at least, as the costs of a class of `items`.
pub(super) fn any_item(
    machine: &Machine,
    bound: &Bound,
    path: &MemoryPath,
    context: &GraphContext,
    items: u64,
) -> Costs {
    let whole = bound.grid().map(|extent| (0, extent.saturating_sub(1)));
    let mut walk = Walk {
        bound,
        within: whole,
        vars: Vec::new(),
        nodes: 0,
    };
    let sums = walk
        .least(&bound.trace().body, path, context)
        .unwrap_or_default();
    let spec = &machine.cores;
    let max = match spec.residency {
        Residency::Shared { max } | Residency::Safe { max } => max,
        Residency::Resources { max, .. } => max,
    };
    // Alone, an item is delivered, issues, and uses one thing after another.
    let mut stay = sums.slots;
    if spec.compute_issue == ComputeIssue::Serial && sums.compute > 0 {
        stay = stay.max(sums.compute.saturating_add(1));
    }
    if sums.dma_steps > 0 {
        stay = stay.max(sums.dma_steps.saturating_add(1));
    }
    let at_once = PerUnit {
        vector: 0,
        systolic: 0,
        cross_lane: 0,
        dma: 0,
    };
    Costs {
        items,
        compute: sums.compute,
        vector: sums.vector,
        systolic: sums.systolic,
        cross_lane: sums.cross_lane,
        slots: sums.slots,
        dma_steps: sums.dma_steps,
        load_lines: sums.load_lines,
        store_lines: sums.store_lines,
        fresh_lines: 0,
        head: at_once,
        tail: at_once,
        end: stay,
        stay_first: stay,
        stay,
        residents: u64::from(max.max(1)),
    }
}

/// Sums of one item, each the least it can be.
#[derive(Clone, Copy, Debug, Default)]
struct Least {
    compute: u64,
    vector: u64,
    systolic: u64,
    cross_lane: u64,
    slots: u64,
    dma_steps: u64,
    load_lines: u64,
    store_lines: u64,
}

impl Least {
    fn each(self, other: Least, f: impl Fn(u64, u64) -> u64) -> Least {
        Least {
            compute: f(self.compute, other.compute),
            vector: f(self.vector, other.vector),
            systolic: f(self.systolic, other.systolic),
            cross_lane: f(self.cross_lane, other.cross_lane),
            slots: f(self.slots, other.slots),
            dma_steps: f(self.dma_steps, other.dma_steps),
            load_lines: f(self.load_lines, other.load_lines),
            store_lines: f(self.store_lines, other.store_lines),
        }
    }

    fn plus(self, other: Least) -> Least {
        self.each(other, u64::saturating_add)
    }
}

struct Reach {
    /// Bits.
    line: i128,
    site: u32,
    loads: Vec<(u32, Lines)>,
    /// Per tensor, what its stores touch together.
    stores: Vec<Lines>,
    /// Some store may touch any line.
    anywhere: bool,
}

impl Walk<'_> {
    /// Ranges of all transfers' lines; each loop's body is looked at once.
    fn reach(&mut self, body: &[Stmt], found: &mut Reach) -> Result<(), Stop> {
        for stmt in body {
            let site = found.site;
            found.site += 1;
            match stmt {
                Stmt::For(f) => {
                    let (lo, hi, step) =
                        (self.eval(&f.lo)?, self.eval(&f.hi)?, self.eval(&f.step)?);
                    let distance = self.sum(hi, lo, -1);
                    self.enter(f, any_turn(lo, hi, step, distance))?;
                    let done = self.reach(&f.body, found);
                    self.vars.pop();
                    done?;
                }
                Stmt::If(i) => {
                    self.reach(&i.then, found)?;
                    self.reach(&i.otherwise, found)?;
                }
                Stmt::Dma(dma) => {
                    let lines = self.lines(dma, found.line)?;
                    if dma.direction == Direction::Load {
                        found.loads.push((site, lines));
                        continue;
                    }
                    match (lines, found.stores.get_mut(dma.tensor.index())) {
                        (Some((first, last)), Some(all)) => {
                            let (a, b) = all.unwrap_or((first, last));
                            *all = Some((a.min(first), b.max(last)));
                        }
                        _ => found.anywhere = true,
                    }
                }
                Stmt::Compute(_) | Stmt::Wait(_) => {}
            }
        }
        Ok(())
    }

    fn enter(&mut self, f: &For, at: Value) -> Result<(), Stop> {
        // Validated traces number their variables by depth.
        if f.var.index() != self.vars.len() {
            return Err(Stop::Budget);
        }
        self.vars.push(at);
        Ok(())
    }

    /// The least sums of any item of the box.
    fn least(
        &mut self,
        body: &[Stmt],
        path: &MemoryPath,
        context: &GraphContext,
    ) -> Result<Least, Stop> {
        let mut sums = Least::default();
        for stmt in body {
            let more = match stmt {
                Stmt::For(f) => {
                    let (lo, hi, step) =
                        (self.eval(&f.lo)?, self.eval(&f.hi)?, self.eval(&f.step)?);
                    let distance = self.sum(hi, lo, -1);
                    let away = match step.known() {
                        Some(s) if s > 0 => distance.lo,
                        Some(s) if s < 0 => -distance.hi,
                        _ => 0,
                    };
                    let by = i128::from(step.known().unwrap_or(1)).abs().max(1);
                    let trips = u64::try_from((away.max(0) + by - 1) / by).unwrap_or(u64::MAX);
                    self.enter(f, any_turn(lo, hi, step, distance))?;
                    let one = self.least(&f.body, path, context);
                    self.vars.pop();
                    let one = one?;
                    one.each(one, |x, _| x.saturating_mul(trips))
                }
                Stmt::If(i) => {
                    let cond = self.eval(&i.cond)?;
                    if cond.lo > 0 || cond.hi < 0 {
                        self.least(&i.then, path, context)?
                    } else if cond.known() == Some(0) {
                        self.least(&i.otherwise, path, context)?
                    } else {
                        let then = self.least(&i.then, path, context)?;
                        then.each(self.least(&i.otherwise, path, context)?, u64::min)
                    }
                }
                Stmt::Dma(dma) => {
                    let lines = self.least_of(dma, path.line_bits)?;
                    let (load, store) = match dma.direction {
                        Direction::Load => (lines, 0),
                        Direction::Store => (0, lines),
                    };
                    Least {
                        slots: 1,
                        dma_steps: path.send_steps(lines),
                        load_lines: load,
                        store_lines: store,
                        ..Least::default()
                    }
                }
                Stmt::Compute(c) => {
                    self.spend()?;
                    let cost = context
                        .tiles
                        .get(c.tile.index())
                        .copied()
                        .unwrap_or_default();
                    let moves = cost.cycles.saturating_sub(cost.overlap);
                    let on = |unit: bool| if unit { moves } else { 0 };
                    Least {
                        compute: cost.cycles,
                        vector: on(c.unit == Unit::Vector),
                        systolic: on(matches!(c.unit, Unit::Matmul | Unit::Preload)),
                        cross_lane: on(c.unit == Unit::CrossLane),
                        slots: u64::from(cost.cycles > 0),
                        ..Least::default()
                    }
                }
                // A repeated wait is free.
                Stmt::Wait(_) => Least::default(),
            };
            sums = sums.plus(more);
        }
        Ok(sums)
    }

    /// Lines of a transfer at least. Fewer elements touch no more lines.
    fn least_of(&mut self, dma: &Dma, line_bits: u64) -> Result<u64, Stop> {
        let mut dims = Vec::with_capacity(dma.dims.len());
        for dim in &dma.dims {
            let count = self.eval(dim.valid.as_ref().unwrap_or(&dim.extent))?;
            let count = u64::try_from(count.lo.max(0)).unwrap_or(u64::MAX);
            match self.eval(&dim.stride)?.known() {
                Some(stride) => dims.push((count, stride)),
                None => dims.push((count.min(1), 0)),
            }
        }
        match &dma.indirect {
            Some(Indirect::Indices(list)) if list.is_empty() => Ok(0),
            Some(Indirect::Lines { count, bytes }) => {
                let count = self.eval(count)?;
                let count = u64::try_from(count.lo.max(0)).unwrap_or(u64::MAX);
                Ok(declared_lines(count, *bytes, line_bits))
            }
            _ => Ok(strided_lines(dims.into_iter(), dma.element_bits, line_bits)),
        }
    }

    fn lines(&mut self, dma: &Dma, line: i128) -> Result<Lines, Stop> {
        let Some(tensor) = self.bound.tensors().get(dma.tensor.index()) else {
            return Ok(None);
        };
        let offset = self.eval(&dma.offset)?;
        let (mut lo, mut hi) = (offset.lo, offset.hi);
        for dim in &dma.dims {
            let (extent, stride) = (self.eval(&dim.extent)?, self.eval(&dim.stride)?);
            let most = (extent.hi - 1).max(0);
            lo = lo.saturating_add(most.saturating_mul(stride.lo.min(0)));
            hi = hi.saturating_add(most.saturating_mul(stride.hi.max(0)));
        }
        let bits = i128::from(dma.element_bits);
        let mut length = bits;
        match &dma.indirect {
            None => {}
            Some(Indirect::Indices(list)) => {
                let (mut least, mut most) = (0, 0);
                for index in list {
                    let index = self.eval(index)?;
                    least = least.min(index.lo);
                    most = most.max(index.hi);
                }
                lo = lo.saturating_add(least);
                hi = hi.saturating_add(most);
            }
            Some(Indirect::Lines { count, bytes }) => {
                let count = self.eval(count)?;
                length = count
                    .hi
                    .max(0)
                    .saturating_mul(i128::from(*bytes) * 8)
                    .max(bits);
            }
        }
        let base = i128::from(tensor.base) * 8;
        let first = base.saturating_add(lo.saturating_mul(bits));
        let end = base
            .saturating_add(hi.saturating_mul(bits))
            .saturating_add(length);
        // Beyond the address space addresses wrap.
        if first < 0 || end > 1 << 67 {
            return Ok(None);
        }
        Ok(Some((first.div_euclid(line), (end - 1).div_euclid(line))))
    }

    fn block(&mut self, body: &[Stmt]) -> Result<(), Stop> {
        for stmt in body {
            match stmt {
                Stmt::For(f) => self.repeat(f)?,
                Stmt::If(i) => {
                    let cond = self.eval(&i.cond)?;
                    if cond.lo > 0 || cond.hi < 0 {
                        self.block(&i.then)?;
                    } else if cond.known() == Some(0) {
                        self.block(&i.otherwise)?;
                    } else {
                        return Err(self.varies(&[&i.cond]));
                    }
                }
                Stmt::Dma(dma) => self.dma(dma)?,
                Stmt::Compute(_) | Stmt::Wait(_) => self.spend()?,
            }
        }
        Ok(())
    }

    fn repeat(&mut self, f: &For) -> Result<(), Stop> {
        let (lo, hi, step) = (self.eval(&f.lo)?, self.eval(&f.hi)?, self.eval(&f.step)?);
        let Some(step) = step.known() else {
            return Err(self.varies(&[&f.step]));
        };
        let distance = self.sum(hi, lo, -1);
        // Never with a step of 0: the launch fails.
        let (Some(distance), true) = (distance.known(), step != 0) else {
            // Loops that surely do not run need no exact distance.
            let empty = if step > 0 {
                distance.hi <= 0
            } else {
                distance.lo >= 0
            };
            if empty || step == 0 {
                return Ok(());
            }
            return Err(self.varies(&[&f.lo, &f.hi]));
        };
        let trips = if (step > 0) != (distance > 0) || distance == 0 {
            0
        } else {
            (distance.unsigned_abs() - 1) / step.unsigned_abs() + 1
        };
        let depth = self.vars.len();
        if f.var.index() != depth {
            return Err(Stop::Budget);
        }
        for k in 0..trips {
            // The variable stays inside the loop's bounds.
            let at = self
                .sum(lo, Value::point(i128::from(k) * i128::from(step)), 1)
                .checked();
            self.vars.push(at);
            let done = self.block(&f.body);
            self.vars.truncate(depth);
            done?;
            self.spend()?;
        }
        Ok(())
    }

    fn dma(&mut self, dma: &Dma) -> Result<(), Stop> {
        self.spend()?;
        for dim in &dma.dims {
            for e in [Some(&dim.extent), Some(&dim.stride), dim.valid.as_ref()]
                .into_iter()
                .flatten()
            {
                self.constant(e)?;
            }
        }
        match &dma.indirect {
            Some(Indirect::Lines { count, .. }) => self.constant(count),
            Some(Indirect::Indices(_)) | None => Ok(()),
        }
    }

    fn constant(&mut self, e: &Expr) -> Result<(), Stop> {
        match self.eval(e)?.known() {
            Some(_) => Ok(()),
            None => Err(self.varies(&[e])),
        }
    }

    fn spend(&mut self) -> Result<(), Stop> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            Err(Stop::Budget)
        } else {
            Ok(())
        }
    }

    /// Which axes the expressions depend on, as far as is plain; all if through a variable.
    fn varies(&self, list: &[&Expr]) -> Stop {
        let mut axes = 0;
        let mut todo: Vec<&Expr> = list.to_vec();
        while let Some(e) = todo.pop() {
            match e {
                Expr::Pid(axis) => axes |= 1u8.wrapping_shl(u32::from(*axis)),
                Expr::Var(var) => match self.vars.get(var.index()).and_then(|v| v.affine) {
                    Some(form) => {
                        for (axis, factor) in form.iter().take(3).enumerate() {
                            axes |= u8::from(*factor != 0) << axis;
                        }
                    }
                    None => axes |= 7,
                },
                Expr::Const(_) | Expr::Grid(_) | Expr::Param(_) => {}
                Expr::Unary(_, a) => todo.push(a),
                Expr::Binary(_, a, b) => todo.extend([&**a, &**b]),
                Expr::Select(a, b, c) => todo.extend([&**a, &**b, &**c]),
            }
        }
        Stop::Varies(axes)
    }

    /// a + sign * b, unchecked.
    fn sum(&self, a: Value, b: Value, sign: i128) -> Value {
        if let (Some(x), Some(y)) = (a.affine, b.affine) {
            let form = [0, 1, 2, 3].map(|i| x[i].checked_add(sign * y[i]));
            if let Some(v) = Value::of_affine(form, &self.within) {
                return v;
            }
        }
        let (lo, hi) = if sign > 0 {
            (b.lo, b.hi)
        } else {
            (-b.hi, -b.lo)
        };
        Value::range(a.lo.saturating_add(lo), a.hi.saturating_add(hi))
    }

    fn scale(&self, a: Value, by: i128) -> Value {
        if let Some(form) = a.affine {
            let form = form.map(|f| f.checked_mul(by));
            if let Some(v) = Value::of_affine(form, &self.within) {
                return v;
            }
        }
        let ends = [a.lo.saturating_mul(by), a.hi.saturating_mul(by)];
        Value::range(ends[0].min(ends[1]), ends[0].max(ends[1]))
    }

    fn eval(&mut self, e: &Expr) -> Result<Value, Stop> {
        self.spend()?;
        Ok(match e {
            Expr::Const(c) => Value::point((*c).into()),
            Expr::Pid(axis) => {
                let mut form = [0; 4];
                match form.get_mut(usize::from(*axis)) {
                    Some(f) if *axis < 3 => *f = 1,
                    _ => return Ok(Value::ANY),
                }
                Value::of_affine(form.map(Some), &self.within).unwrap_or(Value::ANY)
            }
            Expr::Grid(axis) => {
                let extent = self
                    .bound
                    .grid()
                    .get(usize::from(*axis))
                    .copied()
                    .unwrap_or(1);
                Value::point(extent.into())
            }
            Expr::Param(p) => match self.bound.params().get(p.index()) {
                Some(v) => Value::point((*v).into()),
                None => Value::ANY,
            },
            Expr::Var(v) => self.vars.get(v.index()).copied().unwrap_or(Value::ANY),
            Expr::Unary(op, a) => {
                let a = self.eval(a)?;
                self.unary(*op, a)
            }
            Expr::Binary(op, a, b) => {
                let (a, b) = (self.eval(a)?, self.eval(b)?);
                self.binary(*op, a, b)
            }
            Expr::Select(c, a, b) => {
                let c = self.eval(c)?;
                if c.lo > 0 || c.hi < 0 {
                    self.eval(a)?
                } else if c.known() == Some(0) {
                    self.eval(b)?
                } else {
                    let (a, b) = (self.eval(a)?, self.eval(b)?);
                    Value::range(a.lo.min(b.lo), a.hi.max(b.hi))
                }
            }
        })
    }

    fn unary(&self, op: UnaryOp, a: Value) -> Value {
        if let Some(v) = a.known() {
            return expr::unary(op, v).map_or(Value::ANY, |r| Value::point(r.into()));
        }
        let keep = |lo: i128, hi: i128| {
            if a.lo >= lo && a.hi <= hi {
                a
            } else {
                Value::range(lo, hi)
            }
        };
        match op {
            UnaryOp::Neg => self.scale(a, -1).checked(),
            UnaryOp::Not if a.lo > 0 || a.hi < 0 => Value::point(0),
            UnaryOp::Not => Value::range(0, 1),
            UnaryOp::BitNot => self.sum(self.scale(a, -1), Value::point(-1), 1),
            UnaryOp::TruncI8 => keep(i8::MIN.into(), i8::MAX.into()),
            UnaryOp::TruncU8 => keep(0, u8::MAX.into()),
            UnaryOp::TruncI16 => keep(i16::MIN.into(), i16::MAX.into()),
            UnaryOp::TruncU16 => keep(0, u16::MAX.into()),
            UnaryOp::TruncI32 => keep(i32::MIN.into(), i32::MAX.into()),
            UnaryOp::TruncU32 => keep(0, u32::MAX.into()),
        }
    }

    fn binary(&self, op: BinaryOp, a: Value, b: Value) -> Value {
        if let (Some(x), Some(y)) = (a.known(), b.known()) {
            return expr::binary(op, x, y).map_or(Value::ANY, |r| Value::point(r.into()));
        }
        let wrapping = |v: Value| if v.fits() { v } else { Value::ANY };
        let truth = |yes: bool, no: bool| match (yes, no) {
            (true, _) => Value::point(1),
            (_, true) => Value::point(0),
            _ => Value::range(0, 1),
        };
        let both_positive = a.lo >= 0 && b.lo >= 0;
        match op {
            BinaryOp::Add => self.sum(a, b, 1).checked(),
            BinaryOp::Sub => self.sum(a, b, -1).checked(),
            BinaryOp::Mul => self.product(a, b).checked(),
            BinaryOp::WrapAdd => wrapping(self.sum(a, b, 1)),
            BinaryOp::WrapSub => wrapping(self.sum(a, b, -1)),
            BinaryOp::WrapMul => wrapping(self.product(a, b)),
            BinaryOp::Div => self.quotient(a, b),
            BinaryOp::Mod => self.remainder(a, b),
            BinaryOp::CDiv | BinaryOp::UDiv if both_positive => self.quotient(a, b),
            BinaryOp::CRem | BinaryOp::URem if both_positive => self.remainder(a, b),
            BinaryOp::Shl | BinaryOp::WrapShl => match b.known() {
                Some(n @ 0..=62) => {
                    let v = self.scale(a, 1 << n);
                    if op == BinaryOp::Shl {
                        v.checked()
                    } else {
                        wrapping(v)
                    }
                }
                _ => Value::ANY,
            },
            BinaryOp::Shr => match b.known() {
                Some(n @ 0..=62) => self.quotient(a, Value::point(1 << n)),
                _ => Value::ANY,
            },
            BinaryOp::UShr if a.lo >= 0 => match b.known() {
                Some(n @ 0..=62) => self.quotient(a, Value::point(1 << n)),
                _ => Value::ANY,
            },
            BinaryOp::Min | BinaryOp::Max => {
                let gap = self.sum(a, b, -1);
                let least = op == BinaryOp::Min;
                if gap.lo >= 0 {
                    if least { b } else { a }
                } else if gap.hi <= 0 {
                    if least { a } else { b }
                } else if least {
                    Value::range(a.lo.min(b.lo), a.hi.min(b.hi))
                } else {
                    Value::range(a.lo.max(b.lo), a.hi.max(b.hi))
                }
            }
            BinaryOp::Lt
            | BinaryOp::Le
            | BinaryOp::Gt
            | BinaryOp::Ge
            | BinaryOp::Eq
            | BinaryOp::Ne => {
                let gap = self.sum(a, b, -1);
                match op {
                    BinaryOp::Lt => truth(gap.hi < 0, gap.lo >= 0),
                    BinaryOp::Le => truth(gap.hi <= 0, gap.lo > 0),
                    BinaryOp::Gt => truth(gap.lo > 0, gap.hi <= 0),
                    BinaryOp::Ge => truth(gap.lo >= 0, gap.hi < 0),
                    BinaryOp::Eq => truth(gap.known() == Some(0), gap.lo > 0 || gap.hi < 0),
                    _ => truth(gap.lo > 0 || gap.hi < 0, gap.known() == Some(0)),
                }
            }
            BinaryOp::ULt if both_positive => self.binary(BinaryOp::Lt, a, b),
            BinaryOp::ULe if both_positive => self.binary(BinaryOp::Le, a, b),
            BinaryOp::And if a.lo >= 0 && b.lo >= 0 => Value::range(0, a.hi.min(b.hi)),
            BinaryOp::And if b.lo >= 0 => Value::range(0, b.hi),
            BinaryOp::And if a.lo >= 0 => Value::range(0, a.hi),
            BinaryOp::ULt | BinaryOp::ULe => Value::range(0, 1),
            _ => Value::ANY,
        }
    }

    fn product(&self, a: Value, b: Value) -> Value {
        if let Some(by) = b.known() {
            return self.scale(a, by.into());
        }
        if let Some(by) = a.known() {
            return self.scale(b, by.into());
        }
        let mut ends = [a.lo, a.hi]
            .into_iter()
            .flat_map(|x| [x.saturating_mul(b.lo), x.saturating_mul(b.hi)]);
        let first = ends.next().unwrap_or(0);
        let (lo, hi) = ends.fold((first, first), |(lo, hi), x| (lo.min(x), hi.max(x)));
        Value::range(lo, hi)
    }

    /// Rounds toward minus infinity.
    fn quotient(&self, a: Value, b: Value) -> Value {
        match b.known() {
            Some(d) if d > 0 => {
                let d = i128::from(d);
                if let Some(form) = a.affine {
                    // A multiple of the divisor, and a constant that adds less than one more.
                    if form.iter().take(3).all(|f| f.rem_euclid(d) == 0) {
                        let form = form.map(|f| Some(f.div_euclid(d)));
                        if let Some(v) = Value::of_affine(form, &self.within) {
                            return v;
                        }
                    }
                }
                Value::range(a.lo.div_euclid(d), a.hi.div_euclid(d))
            }
            _ if b.lo > 0 => {
                let ends = [a.lo, a.hi]
                    .map(|x| [x.div_euclid(b.lo), x.div_euclid(b.hi)])
                    .concat();
                let lo = ends.iter().copied().min().unwrap_or(Value::ANY.lo);
                let hi = ends.iter().copied().max().unwrap_or(Value::ANY.hi);
                Value::range(lo, hi)
            }
            _ => Value::ANY,
        }
    }

    /// Has the sign of the divisor.
    fn remainder(&self, a: Value, b: Value) -> Value {
        match b.known() {
            Some(d) if d > 0 => {
                let d = i128::from(d);
                let of_multiples = a
                    .affine
                    .filter(|form| form.iter().take(3).all(|f| f.rem_euclid(d) == 0));
                if let Some(form) = of_multiples {
                    return Value::point(form[3].rem_euclid(d));
                }
                let whole = a.lo.div_euclid(d);
                if whole == a.hi.div_euclid(d) {
                    return self.sum(a, Value::point(whole * d), -1);
                }
                Value::range(0, d - 1)
            }
            _ if b.lo > 0 => Value::range(0, b.hi - 1),
            _ => Value::ANY,
        }
    }
}
