//! From what a producer does to a trace: dispatch loops become axes, the rest the body.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::diag::{Diag, Pos, Res};
use super::sym::{Kind, Range, Sx};
use super::value::{DmaIr, Ir, SemKey};
use crate::error::ErrorCode;
use crate::limits;
use crate::model::{
    BinaryOp, BufferId, Compute, Dim, Direction, Dma, Expr, For, If, Indirect, ParamId, SemId,
    Stmt, TensorId, TileId, Unit, VarId, Wait,
};

/// Loop numbers from here on stand for program ids.
const AXIS: u32 = 1 << 30;
/// Loop numbers from here on stand for grid extents.
const EXTENT: u32 = AXIS + 8;
/// Loop numbers from here on stand for the position among several dispatches in one iteration.
const PLACE: u32 = 1 << 29;

/// How many work-items an axis has.
#[derive(Clone, Debug)]
pub(crate) enum Count {
    Shape(u32),
    Fixed(i64),
    Formula(Sx),
}

/// The body and what it needs.
#[derive(Debug)]
pub(crate) struct Lowered {
    pub body: Vec<Stmt>,
    /// One per axis.
    pub counts: Vec<Count>,
    /// Axes, slowest first; empty when that is 0, 1, 2.
    pub order: Vec<u8>,
    /// Shape arguments that became parameters.
    pub params: Vec<u32>,
    pub tiles: BTreeMap<u32, Pos>,
    pub args: BTreeMap<u32, ArgUse>,
    pub buffers: BTreeMap<u32, BufferUse>,
    pub notes: Vec<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct ArgUse {
    pub loaded: bool,
    pub stored: bool,
    pub bits: u32,
    pub pos: Pos,
}

#[derive(Clone, Debug)]
pub(crate) struct BufferUse {
    pub moved: bool,
    /// Bytes that its transfers fill at once, where they are constant.
    pub bytes: u64,
    pub pos: Pos,
}

struct Axis {
    id: u32,
    lo: Sx,
    step: i64,
    count: Count,
    pos: Pos,
}

pub(crate) fn lower(ir: &[Ir]) -> Res<Lowered> {
    let start = Pos {
        file: 0,
        line: 1,
        column: 1,
        length: 1,
    };
    let mut axes = Vec::new();
    let mut notes = Vec::new();
    let item = peel(ir, &mut axes, start, 0)?;
    if axes.is_empty() {
        axes.push(Axis {
            id: PLACE - 1,
            lo: Sx::int(0),
            step: 1,
            count: Count::Fixed(1),
            pos: start,
        });
    }

    // Loop variables in terms of program ids.
    let mut map: HashMap<u32, Sx> = HashMap::new();
    let mut counts: Vec<Count>;
    let mut order: Vec<u8> = Vec::new();
    let pid = |a: usize| Sx::loop_var(AXIS + a as u32, Range::NAT, Range::LIKELY, None);
    if let [one] = axes.as_slice()
        && let Count::Formula(f) = &one.count
        && let Some(shapes) = product(f)
        && (2..=3).contains(&shapes.len())
    {
        // One loop over all work-items of a grid.
        let mut x = pid(0);
        for (k, s) in shapes.iter().enumerate().skip(1) {
            x = Sx::binary(
                BinaryOp::Add,
                &Sx::binary(BinaryOp::Mul, &x, &Sx::shape(*s)),
                &pid(k),
            );
        }
        map.insert(one.id, stepped(&one.lo, one.step, &x));
        counts = shapes.into_iter().map(Count::Shape).collect();
    } else {
        // More than three axes: constant inner ones share an axis with the one outside them.
        let mut groups: Vec<Vec<Axis>> = axes.into_iter().map(|a| vec![a]).collect();
        while groups.len() > 3 {
            let fixed = |g: &Vec<Axis>| g.iter().all(|a| matches!(a.count, Count::Fixed(_)));
            let Some(k) = (1..groups.len())
                .rev()
                .find(|k| groups.get(*k).is_some_and(fixed))
            else {
                let pos = groups
                    .last()
                    .and_then(|g| g.first())
                    .map_or(start, |a| a.pos);
                return Err(Diag::unsupported(
                    pos,
                    "a dispatch over more than three loops with symbolic bounds",
                ));
            };
            let inner = groups.remove(k);
            if let Some(g) = groups.get_mut(k - 1) {
                g.extend(inner);
            }
        }
        let shapes: Vec<u32> = groups
            .iter()
            .filter_map(|g| match g.as_slice() {
                [
                    Axis {
                        count: Count::Shape(k),
                        ..
                    },
                ] => Some(*k),
                _ => None,
            })
            .collect();
        let distinct: BTreeSet<u32> = shapes.iter().copied().collect();
        // Loops over shape arguments 0..n in any order: the axis is the argument's number.
        let named = shapes.len() == groups.len()
            && distinct.len() == groups.len()
            && distinct.iter().enumerate().all(|(i, k)| *k == i as u32);
        counts = vec![Count::Fixed(1); groups.len()];
        for (g, group) in groups.iter().enumerate() {
            let axis = if named {
                shapes.get(g).copied().unwrap_or(0) as usize
            } else {
                g
            };
            order.push(axis as u8);
            let mut rest = pid(axis);
            let mut total: Option<Count> = None;
            // Innermost first: remainder, then quotient.
            for (i, a) in group.iter().enumerate().rev() {
                let here = match (&a.count, i) {
                    (Count::Fixed(n), 1..) => {
                        let here = Sx::binary(BinaryOp::Mod, &rest, &Sx::int((*n).max(1)));
                        rest = Sx::binary(BinaryOp::Div, &rest, &Sx::int((*n).max(1)));
                        here
                    }
                    _ => rest.clone(),
                };
                map.insert(a.id, stepped(&a.lo, a.step, &here));
                total = Some(match (total, &a.count) {
                    (None, c) => c.clone(),
                    (Some(Count::Fixed(n)), Count::Fixed(m)) => Count::Fixed(n.saturating_mul(*m)),
                    (Some(Count::Fixed(n)), Count::Shape(k)) => {
                        Count::Formula(Sx::binary(BinaryOp::Mul, &Sx::shape(*k), &Sx::int(n)))
                    }
                    (Some(Count::Fixed(n)), Count::Formula(f)) => {
                        Count::Formula(Sx::binary(BinaryOp::Mul, f, &Sx::int(n)))
                    }
                    (Some(other), _) => other,
                });
            }
            if let (Some(c), Some(t)) = (counts.get_mut(axis), total) {
                *c = t;
            }
        }
        if order.iter().enumerate().all(|(i, a)| usize::from(*a) == i) {
            order.clear();
        }
    }

    let mut l = Lower {
        map,
        grid: counts
            .iter()
            .enumerate()
            .filter_map(|(a, c)| match c {
                Count::Shape(k) => Some((*k, a as u8)),
                _ => None,
            })
            .collect(),
        params: Vec::new(),
        vars: HashMap::new(),
        names: Vec::new(),
        sems: semaphores(&item, &mut notes),
        statements: 0,
        nodes: 0,
        out: Lowered {
            body: Vec::new(),
            counts,
            order,
            params: Vec::new(),
            tiles: BTreeMap::new(),
            args: BTreeMap::new(),
            buffers: BTreeMap::new(),
            notes,
        },
    };
    let body = l.block(&item, 0, 0)?;
    let mut pending = BTreeMap::new();
    fill(&item, &mut pending, &mut l.out.buffers);
    let mut out = l.out;
    out.params = l.params;
    out.body = body;
    Ok(out)
}

fn stepped(lo: &Sx, step: i64, n: &Sx) -> Sx {
    Sx::binary(
        BinaryOp::Add,
        lo,
        &Sx::binary(BinaryOp::Mul, n, &Sx::int(step)),
    )
}

/// The distinct shape arguments that `f` is the product of.
fn product(f: &Sx) -> Option<Vec<u32>> {
    let mut out = Vec::new();
    let mut todo = vec![f];
    while let Some(x) = todo.pop() {
        match &x.0.kind {
            Kind::Shape(k) if !out.contains(k) => out.push(*k),
            Kind::Binary(BinaryOp::Mul | BinaryOp::WrapMul, a, b) => todo.extend([a, b]),
            _ => return None,
        }
        if out.len() > 3 {
            return None;
        }
    }
    out.sort_unstable();
    if out.iter().enumerate().all(|(i, k)| *k == i as u32) {
        Some(out)
    } else {
        None
    }
}

/// Peels dispatch loops off until the work-item is reached.
fn peel(ir: &[Ir], axes: &mut Vec<Axis>, near: Pos, depth: usize) -> Res<Vec<Ir>> {
    if depth > limits::MAX_STMT_DEPTH {
        return Err(Diag::deep(near, "dispatch nested too deep"));
    }
    // ABI 11: what follows the mark in its block is the work-item.
    let marks: Vec<usize> = ir
        .iter()
        .enumerate()
        .filter(|(_, s)| matches!(s, Ir::Mark { .. }))
        .map(|(i, _)| i)
        .collect();
    if let Some(&first) = marks.first() {
        if let Some(s) = marks.get(1).and_then(|k| ir.get(*k)) {
            return Err(Diag::unsupported(
                place(s),
                "a second work-item in one iteration",
            ));
        }
        if let Some(s) = ir.get(..first).and_then(<[Ir]>::first) {
            return Err(Diag::value(
                place(s),
                "a trace call before togsim_core_alloc",
            ));
        }
        let body = ir.get(first + 1..).unwrap_or_default().to_vec();
        if let Some(s) = body.iter().find(|s| dispatches(s)) {
            return Err(Diag::unsupported(place(s), "a work-item inside another"));
        }
        return Ok(body);
    }
    match ir {
        [] => Err(Diag::value(near, "no work-item is dispatched")),
        [Ir::Item { body, .. }] => Ok(body.clone()),
        [
            Ir::For {
                id,
                lo,
                hi,
                step,
                body,
                pos,
                ..
            },
        ] if ir.iter().all(dispatches) => {
            if lo.mentions(&|k| matches!(k, Kind::Loop(_)))
                || hi.mentions(&|k| matches!(k, Kind::Loop(_)))
            {
                return Err(Diag::unsupported(
                    *pos,
                    "a dispatch loop whose bounds depend on another loop",
                )
                .hint("a grid is a box: work-items outside it cannot be left out"));
            }
            let count = match (&hi.0.kind, lo.constant(), *step) {
                (Kind::Shape(k), Some(0), 1) => Count::Shape(*k),
                _ => {
                    let n = super::exec::trips(lo, hi, *step);
                    match n.constant() {
                        Some(n) => Count::Fixed(n),
                        // The grid itself says how many there are, so a clamp at 0 adds nothing.
                        None => match &n.0.kind {
                            Kind::Binary(BinaryOp::Max, x, z)
                                if z.constant() == Some(0) && product(x).is_some() =>
                            {
                                Count::Formula(x.clone())
                            }
                            _ => Count::Formula(n),
                        },
                    }
                }
            };
            axes.push(Axis {
                id: *id,
                lo: lo.clone(),
                step: *step,
                count,
                pos: *pos,
            });
            peel(body, axes, *pos, depth + 1)
        }
        [
            Ir::If {
                cond,
                then,
                otherwise,
                pos,
            },
        ] if ir.iter().all(dispatches) => {
            if then.is_empty() || otherwise.is_empty() {
                return Err(
                    Diag::unsupported(*pos, "a dispatch under a condition").hint(
                        "every point of the grid is one work-item; put the condition inside it",
                    ),
                );
            }
            let n = axes.len();
            let a = peel(then, axes, *pos, depth + 1)?;
            let b = peel(otherwise, axes, *pos, depth + 1)?;
            if axes.len() != n {
                return Err(Diag::unsupported(*pos, "a dispatch loop under a condition"));
            }
            Ok(vec![Ir::If {
                cond: cond.clone(),
                then: a,
                otherwise: b,
                pos: *pos,
            }])
        }
        several => {
            if let Some(s) = several.iter().find(|s| !dispatches(s)) {
                return Err(Diag::value(place(s), "a trace call outside any work-item"));
            }
            // Several dispatches in a row are an axis of their own.
            let pos = several.first().map_or(near, place);
            let n = several.len() as i64;
            if n > 4096 {
                return Err(Diag::limit(pos, "more than 4096 dispatches in a row"));
            }
            let before = axes.len();
            let id = PLACE + before as u32;
            let values: Vec<i64> = (0..n).collect();
            let which = Sx::loop_var(
                id,
                Range::new(0, n - 1),
                Range::new(0, n - 1),
                Some(values.into()),
            );
            axes.push(Axis {
                id,
                lo: Sx::int(0),
                step: 1,
                count: Count::Fixed(n),
                pos,
            });
            let count = axes.len();
            let mut bodies = Vec::new();
            for s in several {
                bodies.push(peel(std::slice::from_ref(s), axes, pos, depth + 1)?);
                if axes.len() != count {
                    return Err(Diag::unsupported(
                        place(s),
                        "several dispatch loops one after another",
                    )
                    .hint("import each as a kernel of its own"));
                }
            }
            // A balanced tree of conditions, so that many dispatches stay shallow.
            Ok(choose(&which, &mut bodies, 0, n, pos))
        }
    }
}

fn choose(which: &Sx, bodies: &mut [Vec<Ir>], from: i64, to: i64, pos: Pos) -> Vec<Ir> {
    if to - from <= 1 {
        return bodies.first_mut().map(std::mem::take).unwrap_or_default();
    }
    let mid = from + (to - from) / 2;
    let (a, b) = bodies.split_at_mut((mid - from) as usize);
    let cond = Sx::binary(BinaryOp::Lt, which, &Sx::int(mid));
    let (then, otherwise) = (
        choose(which, a, from, mid, pos),
        choose(which, b, mid, to, pos),
    );
    vec![Ir::If {
        cond,
        then,
        otherwise,
        pos,
    }]
}

fn dispatches(s: &Ir) -> bool {
    match s {
        Ir::Item { .. } | Ir::Mark { .. } => true,
        Ir::For { body, .. } => body.iter().any(dispatches),
        Ir::If {
            then, otherwise, ..
        } => then.iter().any(dispatches) || otherwise.iter().any(dispatches),
        _ => false,
    }
}

fn place(s: &Ir) -> Pos {
    match s {
        Ir::For { pos, .. }
        | Ir::If { pos, .. }
        | Ir::Compute { pos, .. }
        | Ir::Wait { pos, .. }
        | Ir::Item { pos, .. }
        | Ir::Mark { pos } => *pos,
        Ir::Dma(d) => d.pos,
    }
}

/// Numbers for semaphores. Tags with one slot each keep their number, others are numbered in order.
fn semaphores(ir: &[Ir], notes: &mut Vec<String>) -> BTreeMap<SemKey, u32> {
    fn walk(ir: &[Ir], out: &mut Vec<SemKey>, seen: &mut BTreeSet<SemKey>) {
        for s in ir {
            let key = match s {
                Ir::For { body, .. } => {
                    walk(body, out, seen);
                    None
                }
                Ir::If {
                    then, otherwise, ..
                } => {
                    walk(then, out, seen);
                    walk(otherwise, out, seen);
                    None
                }
                Ir::Dma(d) => d.key,
                Ir::Wait { key, .. } => Some(*key),
                _ => None,
            };
            if let Some(k) = key
                && seen.insert(k)
            {
                out.push(k);
            }
        }
    }
    let (mut keys, mut seen) = (Vec::new(), BTreeSet::new());
    walk(ir, &mut keys, &mut seen);
    let plain = |k: &SemKey| match *k {
        SemKey::Sem(s) | SemKey::Tag(s, _) => u32::try_from(s).ok(),
    };
    let distinct: BTreeSet<Option<u32>> = keys.iter().map(plain).collect();
    if distinct.len() == keys.len() && !distinct.contains(&None) {
        return keys.iter().filter_map(|k| Some((*k, plain(k)?))).collect();
    }
    let mut out = BTreeMap::new();
    for (i, k) in keys.iter().enumerate() {
        out.insert(*k, i as u32);
        if notes.len() < 64 {
            notes.push(match k {
                SemKey::Tag(t, s) => format!("semaphore {i} is tag {t} slot {s}"),
                SemKey::Sem(s) => format!("semaphore {i} is semaphore {s} of the producer"),
            });
        }
    }
    out
}

struct Lower {
    map: HashMap<u32, Sx>,
    /// Shape arguments that are grid extents.
    grid: HashMap<u32, u8>,
    params: Vec<u32>,
    vars: HashMap<u32, u32>,
    names: Vec<String>,
    sems: BTreeMap<SemKey, u32>,
    statements: usize,
    nodes: usize,
    out: Lowered,
}

impl Lower {
    fn block(&mut self, ir: &[Ir], loops: usize, depth: usize) -> Res<Vec<Stmt>> {
        let mut out = Vec::new();
        for s in ir {
            let pos = place(s);
            self.statements += 1;
            if self.statements > limits::MAX_STMTS {
                return Err(Diag::limit(
                    pos,
                    format!("more than {} statements", limits::MAX_STMTS),
                ));
            }
            if depth > limits::MAX_STMT_DEPTH - 2 || loops > limits::MAX_LOOP_DEPTH {
                return Err(Diag::deep(
                    pos,
                    "loops and conditions nested deeper than a trace allows",
                ));
            }
            match s {
                Ir::For {
                    id,
                    name,
                    lo,
                    hi,
                    step,
                    body,
                    ..
                } => {
                    let (lo, hi) = (self.expr(lo, pos)?, self.expr(hi, pos)?);
                    self.vars.insert(*id, loops as u32);
                    let name = self.name(name);
                    self.names.push(name.clone());
                    let body = self.block(body, loops + 1, depth + 1)?;
                    self.names.pop();
                    out.push(Stmt::For(For {
                        var: VarId(loops as u32),
                        name,
                        lo,
                        hi,
                        step: Expr::Const(*step),
                        body,
                    }));
                }
                Ir::If {
                    cond,
                    then,
                    otherwise,
                    ..
                } => {
                    let c = self.resolve(cond);
                    if let Some(v) = c.constant() {
                        out.extend(self.block(
                            if v != 0 { then } else { otherwise },
                            loops,
                            depth,
                        )?);
                        continue;
                    }
                    let (cond, then, otherwise) = if then.is_empty() {
                        (c.not(), otherwise, then)
                    } else {
                        (c, then, otherwise)
                    };
                    let cond = self.expr(&cond, pos)?;
                    let then = self.block(then, loops, depth + 1)?;
                    let otherwise = self.block(otherwise, loops, depth + 1)?;
                    out.push(Stmt::If(If {
                        cond,
                        then,
                        otherwise,
                    }));
                }
                Ir::Dma(d) => {
                    let d = self.dma(d)?;
                    out.push(Stmt::Dma(d));
                }
                Ir::Compute {
                    tile,
                    unit,
                    reads,
                    writes,
                    ..
                } => {
                    let tile = u32::try_from(*tile)
                        .ok()
                        .filter(|t| (*t as usize) < limits::MAX_TILES)
                        .ok_or_else(|| {
                            Diag::value(
                                pos,
                                format!(
                                    "compute tile {tile}; tiles are 0 to {}",
                                    limits::MAX_TILES - 1
                                ),
                            )
                        })?;
                    self.out.tiles.entry(tile).or_insert(pos);
                    let unit = match unit {
                        0 => Unit::Vector,
                        1 => Unit::Matmul,
                        2 => Unit::Preload,
                        _ => Unit::CrossLane,
                    };
                    let (reads, writes) = (
                        self.buffers(reads, false, pos)?,
                        self.buffers(writes, false, pos)?,
                    );
                    out.push(Stmt::Compute(Compute {
                        tile: TileId(tile),
                        unit,
                        reads,
                        writes,
                    }));
                }
                Ir::Wait { key, expected, .. } => {
                    let semaphore = SemId(self.sems.get(key).copied().unwrap_or(0));
                    let expected = self.expr(expected, pos)?;
                    out.push(Stmt::Wait(Wait {
                        semaphore,
                        expected,
                    }));
                }
                Ir::Item { .. } | Ir::Mark { .. } => {
                    return Err(Diag::unsupported(pos, "a work-item inside another"));
                }
            }
        }
        Ok(out)
    }

    fn name(&self, wanted: &str) -> String {
        let mut name: String = wanted.chars().take(60).collect();
        let reserved = |n: &str| {
            let mut c = n.chars();
            let numbered = matches!(c.next(), Some('p' | 'g' | 'b' | 't'))
                && c.clone().next().is_some()
                && c.all(|x| x.is_ascii_digit());
            numbered
                || n.starts_with("shape")
                || n.starts_with("arg")
                || matches!(
                    n,
                    "for"
                        | "if"
                        | "else"
                        | "in"
                        | "step"
                        | "dma"
                        | "compute"
                        | "wait"
                        | "load"
                        | "store"
                        | "select"
                        | "min"
                        | "max"
                        | "true"
                        | "false"
                        | "param"
                        | "tensor"
                        | "buffer"
                        | "tile"
                        | "grid"
                        | "pid"
                )
        };
        while reserved(&name) || self.names.contains(&name) {
            name.push('_');
        }
        name
    }

    fn buffers(&mut self, ids: &[i64], moved: bool, pos: Pos) -> Res<Vec<BufferId>> {
        if ids.len() > limits::MAX_OP_BUFFERS {
            return Err(Diag::limit(
                pos,
                format!("more than {} buffers of one op", limits::MAX_OP_BUFFERS),
            ));
        }
        let mut out = Vec::new();
        for b in ids {
            let id = u32::try_from(*b)
                .ok()
                .filter(|b| (*b as usize) < limits::MAX_BUFFERS);
            let id = id.ok_or_else(|| {
                Diag::value(
                    pos,
                    format!("buffer {b}; buffers are 0 to {}", limits::MAX_BUFFERS - 1),
                )
            })?;
            let u = self.out.buffers.entry(id).or_insert(BufferUse {
                moved: false,
                bytes: 0,
                pos,
            });
            if moved && !u.moved {
                u.moved = true;
                u.pos = pos;
            }
            out.push(BufferId(id));
        }
        Ok(out)
    }

    fn dma(&mut self, d: &DmaIr) -> Res<Dma> {
        let pos = d.pos;
        let arg = u32::try_from(d.arg)
            .ok()
            .filter(|a| (*a as usize) < limits::MAX_TENSORS);
        let arg = arg.ok_or_else(|| {
            Diag::value(
                pos,
                format!(
                    "tensor {}; tensors are 0 to {}",
                    d.arg,
                    limits::MAX_TENSORS - 1
                ),
            )
        })?;
        let bits = u32::try_from(d.bits)
            .ok()
            .filter(|b| (1..=limits::MAX_ELEMENT_BITS).contains(b));
        let bits = bits.ok_or_else(|| Diag::value(pos, format!("elements of {} bits", d.bits)))?;
        let u = self.out.args.entry(arg).or_insert(ArgUse {
            loaded: false,
            stored: false,
            bits,
            pos,
        });
        u.loaded |= !d.store;
        u.stored |= d.store;
        let mut dims = Vec::new();
        let mut total = Sx::int(1);
        for (extent, stride) in &d.dims {
            if extent.sure().hi < 0 {
                return Err(Diag::new(
                    ErrorCode::NegativeCount,
                    pos,
                    "a negative extent",
                ));
            }
            total = Sx::binary(BinaryOp::Mul, &total, extent);
            dims.push(Dim {
                extent: self.expr(extent, pos)?,
                stride: self.expr(stride, pos)?,
                valid: None,
            });
        }
        let indirect = if d.indirect {
            self.out.notes.push(format!(
                "line {}: an indirect transfer; its index dumps are not read, so each element counts as a line of its own",
                pos.line
            ));
            self.out.notes.dedup();
            Some(Indirect::Lines {
                count: self.expr(&total, pos)?,
                bytes: bits.div_ceil(8),
            })
        } else {
            None
        };
        let offset = self.expr(&d.offset, pos)?;
        // A transfer that reads one buffer and writes another is a gather or scatter with its index
        // buffer; which side is data follows from its direction.
        let reads = self.buffers(&d.reads, d.store, pos)?;
        let writes = self.buffers(&d.writes, !d.store, pos)?;
        Ok(Dma {
            direction: if d.store {
                Direction::Store
            } else {
                Direction::Load
            },
            tensor: TensorId(arg),
            offset,
            dims,
            element_bits: bits,
            semaphore: d
                .key
                .map(|k| SemId(self.sems.get(&k).copied().unwrap_or(0))),
            reads,
            writes,
            indirect,
        })
    }

    /// The value with dispatch loops replaced by program ids.
    fn resolve(&self, x: &Sx) -> Sx {
        x.replace(&|n| match n.0.kind {
            // Pids and extents are leaves of their own; a work-item exists, so no extent is 0.
            Kind::Loop(id) => self.map.get(&id).map(|x| self.extents(x)),
            Kind::Shape(k) => self.extent(k),
            _ => None,
        })
    }

    fn extent(&self, k: u32) -> Option<Sx> {
        let axis = *self.grid.get(&k)?;
        let sure = Range::new(1, i64::MAX);
        let likely = Range::new(1, Range::LIKELY.hi);
        Some(Sx::loop_var(EXTENT + u32::from(axis), sure, likely, None))
    }

    fn extents(&self, x: &Sx) -> Sx {
        x.replace(&|n| match n.0.kind {
            Kind::Shape(k) => self.extent(k),
            _ => None,
        })
    }

    fn expr(&mut self, x: &Sx, pos: Pos) -> Res<Expr> {
        let x = self.resolve(x);
        if x.depth() as usize > limits::MAX_EXPR_DEPTH {
            return Err(Diag::deep(
                pos,
                format!(
                    "a value built from more than {} operations in a row",
                    limits::MAX_EXPR_DEPTH
                ),
            ));
        }
        let mut nodes = 0;
        let e = self.tree(&x, &mut nodes, pos)?;
        self.nodes += nodes;
        if self.nodes > limits::MAX_TOTAL_EXPR_NODES {
            return Err(Diag::limit(
                pos,
                "the values of the trace are too large together",
            ));
        }
        Ok(e)
    }

    fn tree(&mut self, x: &Sx, nodes: &mut usize, pos: Pos) -> Res<Expr> {
        *nodes += 1;
        if *nodes > limits::MAX_EXPR_NODES {
            return Err(Diag::limit(
                pos,
                format!("a value of more than {} operations", limits::MAX_EXPR_NODES),
            ));
        }
        Ok(match &x.0.kind {
            Kind::Const(v) => Expr::Const(*v),
            Kind::Loop(id) if *id >= EXTENT => Expr::Grid((*id - EXTENT) as u8),
            Kind::Loop(id) if *id >= AXIS => Expr::Pid((*id - AXIS) as u8),
            Kind::Loop(id) => match self.vars.get(id) {
                Some(v) => Expr::Var(VarId(*v)),
                None => return Err(Diag::unsupported(pos, "a loop variable outside its loop")),
            },
            Kind::Shape(k) => match self.grid.get(k) {
                Some(a) => Expr::Grid(*a),
                None => {
                    let at = match self.params.iter().position(|p| p == k) {
                        Some(at) => at,
                        None => {
                            self.params.push(*k);
                            self.params.len() - 1
                        }
                    };
                    Expr::Param(ParamId(at as u32))
                }
            },
            Kind::Phi(_) => {
                return Err(Diag::unsupported(pos, "a value carried between iterations"));
            }
            Kind::Unary(op, a) => Expr::Unary(*op, Box::new(self.tree(a, nodes, pos)?)),
            Kind::Binary(op, a, b) => Expr::Binary(
                *op,
                Box::new(self.tree(a, nodes, pos)?),
                Box::new(self.tree(b, nodes, pos)?),
            ),
            Kind::Select(c, a, b) => Expr::Select(
                Box::new(self.tree(c, nodes, pos)?),
                Box::new(self.tree(a, nodes, pos)?),
                Box::new(self.tree(b, nodes, pos)?),
            ),
        })
    }
}

/// An expression over shape arguments (as parameters of the same number), for grid formulas.
pub(crate) fn formula(x: &Sx) -> Option<Expr> {
    fn go(x: &Sx, left: &mut usize) -> Option<Expr> {
        *left = left.checked_sub(1)?;
        Some(match &x.0.kind {
            Kind::Const(v) => Expr::Const(*v),
            Kind::Shape(k) => Expr::Param(ParamId(*k)),
            Kind::Unary(op, a) => Expr::Unary(*op, Box::new(go(a, left)?)),
            Kind::Binary(op, a, b) => {
                Expr::Binary(*op, Box::new(go(a, left)?), Box::new(go(b, left)?))
            }
            Kind::Select(c, a, b) => Expr::Select(
                Box::new(go(c, left)?),
                Box::new(go(a, left)?),
                Box::new(go(b, left)?),
            ),
            Kind::Loop(_) | Kind::Phi(_) => return None,
        })
    }
    if x.depth() as usize > limits::MAX_EXPR_DEPTH {
        return None;
    }
    go(x, &mut limits::MAX_EXPR_NODES.clone())
}

/// Bytes that transfers put into (or take from) each buffer at once: pieces between two reads add up.
fn fill(ir: &[Ir], pending: &mut BTreeMap<i64, u64>, out: &mut BTreeMap<u32, BufferUse>) {
    for s in ir {
        match s {
            Ir::Dma(d) => {
                let mut n = u128::from(d.bits.unsigned_abs());
                for (e, _) in &d.dims {
                    n = n.saturating_mul(u128::from(
                        e.constant().unwrap_or(0).max(0).unsigned_abs(),
                    ));
                }
                let bytes = u64::try_from(n.div_ceil(8)).unwrap_or(u64::MAX);
                if d.store {
                    for b in d.reads.iter().take(1) {
                        raise(out, *b, bytes);
                    }
                } else {
                    for b in &d.writes {
                        let total = pending.entry(*b).or_insert(0);
                        *total = total.saturating_add(bytes);
                        raise(out, *b, *total);
                    }
                }
                for b in &d.reads {
                    pending.remove(b);
                }
            }
            Ir::Compute { reads, .. } => {
                for b in reads {
                    pending.remove(b);
                }
            }
            Ir::For {
                lo, hi, step, body, ..
            } => {
                let before = pending.clone();
                fill(body, pending, out);
                let trips = super::exec::trips(lo, hi, *step)
                    .constant()
                    .unwrap_or(1)
                    .max(0)
                    .unsigned_abs();
                for (b, n) in pending.iter_mut() {
                    let was = before.get(b).copied().unwrap_or(0);
                    // Untouched by any read: every iteration adds its piece.
                    if *n > was {
                        *n = was.saturating_add((*n - was).saturating_mul(trips));
                        raise(out, *b, *n);
                    }
                }
                // A read inside closes what is open when the next iteration starts; the sum above is
                // an upper bound only if nothing reads, so buffers read in the body start over.
                let mut read = BTreeSet::new();
                reads_of(body, &mut read);
                pending.retain(|b, _| !read.contains(b));
            }
            Ir::If {
                then, otherwise, ..
            } => {
                let mut other = pending.clone();
                fill(then, pending, out);
                fill(otherwise, &mut other, out);
                for (b, n) in other {
                    let p = pending.entry(b).or_insert(0);
                    *p = (*p).max(n);
                }
            }
            _ => {}
        }
    }
}

fn raise(out: &mut BTreeMap<u32, BufferUse>, b: i64, n: u64) {
    if let Some(u) = u32::try_from(b).ok().and_then(|b| out.get_mut(&b)) {
        u.bytes = u.bytes.max(n);
    }
}

fn reads_of(ir: &[Ir], out: &mut BTreeSet<i64>) {
    for s in ir {
        match s {
            Ir::For { body, .. } => reads_of(body, out),
            Ir::If {
                then, otherwise, ..
            } => {
                reads_of(then, out);
                reads_of(otherwise, out);
            }
            Ir::Dma(d) => out.extend(&d.reads),
            Ir::Compute { reads, .. } => out.extend(reads),
            _ => {}
        }
    }
}
