//! Recorded work-items as one program over program ids.
//!
//! Work-items with the same ops, numbers aside, form a group. If every number of a group is affine in
//! the program ids, exactly and over all its work-items, the group is one body; else it is split by
//! everything but the offsets (edge tiles), and where that is not enough, by every number. Several
//! groups become `if`s over program ids.

use std::collections::{BTreeMap, HashMap};

use tilesim_traces::import::pytorchsim::UnitRow;
use tilesim_traces::launch::{OpKind as Expanded, ResolvedIndirect, WorkItem};
use tilesim_traces::model::{
    Admission, BinaryOp, Bounds, Buffer, BufferId, Compute, CostSource, Dim, Direction, Dispatch,
    Dma, Expr, For, Header, If, Indirect, Layout, Resources, Role, SemId, Stmt, Tensor, TensorId,
    Tile, TileId, Trace, Unit, VarId, Wait,
};
use tilesim_traces::{Bound, LaunchArgs, Limits, ValidTrace, limits};

use crate::RecordError;
use crate::fold::{Affine, Node, fold};
use crate::stream::{Item, Op, OpKind, Recording};

/// Ranges of work-items in one condition, at most.
const RANGES: usize = 96;

/// What a recording does not say.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    /// The kernel's name.
    pub kernel: String,
    /// Cycles and overlap of each compute tile.
    pub cycles: Option<Vec<(u64, u64)>>,
    /// What tiles ask of named units.
    pub units: Vec<UnitRow>,
    /// Rows, columns and element bytes of each tensor.
    pub tensors: Option<Vec<[u64; 3]>>,
}

/// A trace of a recording.
#[derive(Clone, Debug)]
pub struct Fitted {
    /// The trace.
    pub trace: ValidTrace,
    /// The grid it was recorded for, the only one it can be launched with.
    pub grid: Vec<u64>,
    /// Different bodies.
    pub groups: usize,
    /// Whether no number had to be stored work-item by work-item.
    pub exact: bool,
    /// What a reader should know.
    pub notes: Vec<String>,
}

/// Makes a trace of a recording, and checks it against every recorded work-item.
///
/// # Errors
///
/// The recording is empty, too irregular, or no valid trace.
pub fn fit(recording: &Recording, tables: &Tables) -> Result<Fitted, RecordError> {
    if recording.items.is_empty() {
        return Err(RecordError::TooLarge(
            "the producer dispatched no work-item for these shape arguments".to_owned(),
        ));
    }
    let mut notes = Vec::new();
    let axes = Axes::of(&recording.items, &mut notes);
    let mut shapes = Shapes::default();
    let flat: Vec<Flat> = recording.items.iter().map(|i| shapes.flatten(i)).collect();
    let mut bodies = Vec::new();
    let mut exact = true;
    for members in grouped(0..flat.len(), |i| &flat[i].shapes) {
        exact &= split(&shapes, &flat, &axes, members, &mut bodies);
    }
    let groups = bodies.len();
    let mut body = Vec::new();
    let mut statements = 0usize;
    for (members, nodes) in bodies {
        let nodes = fold(nodes);
        for cond in conditions(&axes, &members) {
            let lowered = shapes.lower(&nodes, &mut BTreeMap::new());
            statements = statements.saturating_add(lowered.len());
            if statements > limits::MAX_STMTS {
                return Err(RecordError::TooLarge(
                    "the work-items are too irregular for one trace: record a smaller grid"
                        .to_owned(),
                ));
            }
            match cond {
                None => body.extend(lowered),
                Some(cond) => body.push(Stmt::If(If {
                    cond,
                    then: lowered,
                    otherwise: Vec::new(),
                })),
            }
        }
    }
    if !exact {
        notes.push(
            "some numbers are not affine in the program ids: those work-items are stored one by one"
                .to_owned(),
        );
    }
    let header = Header {
        kernel: tables.kernel.clone(),
        producer: "tilesim record".to_owned(),
        producer_version: format!("trace ABI {}", recording.abi),
        measured_on: None,
        origins: vec![(
            "recorded for grid".to_owned(),
            axes.grid
                .iter()
                .map(u64::to_string)
                .collect::<Vec<_>>()
                .join(","),
        )],
    };
    let trace = Trace {
        header,
        axes: axes.grid.len() as u8,
        params: Vec::new(),
        tensors: tensors(recording, tables, &axes.grid, &mut notes)?,
        bounds: Bounds::Off,
        buffers: buffers(recording, &mut notes)?,
        tiles: tiles(recording, tables, &mut notes)?,
        body,
        dispatch: Dispatch {
            order: axes.order.clone(),
            key: None,
        },
        resources: Resources::default(),
    };
    let trace = ValidTrace::try_from(trace)?;
    verify(&trace, recording, &axes)?;
    notes.push(format!(
        "recorded for one grid, {:?}: a launch with another is refused (its tensors have no extents \
         then)",
        axes.grid
    ));
    Ok(Fitted {
        trace,
        grid: axes.grid,
        groups,
        exact,
        notes,
    })
}

/// Which program ids each work-item has.
struct Axes {
    grid: Vec<u64>,
    /// Axes, slowest first, where that is not the usual order.
    order: Vec<u8>,
    /// Of each work-item, in dispatch order.
    ids: Vec<[i64; 3]>,
}

impl Axes {
    /// From the loop indices, if those are a full grid in some order of its axes; else one axis.
    fn of(items: &[Item], notes: &mut Vec<String>) -> Axes {
        if let Some(axes) = Axes::from_ids(items) {
            return axes;
        }
        notes.push(
            "the loop indices are no grid: work-items are numbered in dispatch order on one axis"
                .to_owned(),
        );
        Axes {
            grid: vec![items.len() as u64],
            order: Vec::new(),
            ids: (0..items.len() as i64).map(|i| [i, 0, 0]).collect(),
        }
    }

    fn from_ids(items: &[Item]) -> Option<Axes> {
        let n = items.first()?.ids.len();
        if !(1..=3).contains(&n) || items.iter().any(|i| i.ids.len() != n) {
            return None;
        }
        let mut ids = vec![[0i64; 3]; items.len()];
        let mut grid = Vec::new();
        for axis in 0..n {
            let mut values: Vec<i64> = items
                .iter()
                .filter_map(|i| i.ids.get(axis).copied())
                .collect();
            values.sort_unstable();
            values.dedup();
            let position: HashMap<i64, i64> = values.iter().copied().zip(0..).collect();
            for (id, item) in ids.iter_mut().zip(items) {
                *id.get_mut(axis)? = *position.get(item.ids.get(axis)?)?;
            }
            grid.push(values.len() as u64);
        }
        let all = grid.iter().try_fold(1u64, |n, g| n.checked_mul(*g))?;
        if all != items.len() as u64 {
            return None;
        }
        let orders: &[&[u8]] = match n {
            1 => &[&[0]],
            2 => &[&[0, 1], &[1, 0]],
            _ => &[
                &[0, 1, 2],
                &[0, 2, 1],
                &[1, 0, 2],
                &[1, 2, 0],
                &[2, 0, 1],
                &[2, 1, 0],
            ],
        };
        let sorted = |order: &[u8]| {
            let key = |id: &[i64; 3]| -> Vec<i64> {
                order
                    .iter()
                    .map(|a| id.get(usize::from(*a)).copied().unwrap_or(0))
                    .collect()
            };
            ids.is_sorted_by(|a, b| key(a) < key(b))
        };
        let order = orders.iter().position(|o| sorted(o))?;
        Some(Axes {
            order: match order {
                0 => Vec::new(),
                k => orders.get(k)?.to_vec(),
            },
            grid,
            ids,
        })
    }
}

/// A work-item as numbers of op shapes and all their numbers.
struct Flat {
    shapes: Vec<u32>,
    numbers: Vec<i64>,
    /// The numbers that are no offsets.
    rest: Vec<i64>,
}

/// What is fixed of an op.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Fixed {
    Dma {
        store: bool,
        tensor: u32,
        bits: u32,
        semaphore: Option<u32>,
        indirect: bool,
        rank: usize,
    },
    Compute {
        tile: u32,
        unit: u32,
    },
    Wait {
        semaphore: u32,
    },
}

type Shape = (Fixed, Vec<i64>, Vec<i64>);

/// The different op shapes, numbered.
#[derive(Default)]
struct Shapes {
    numbers: HashMap<Shape, u32>,
    all: Vec<Shape>,
}

impl Shapes {
    fn flatten(&mut self, item: &Item) -> Flat {
        let mut flat = Flat {
            shapes: Vec::with_capacity(item.ops.len()),
            numbers: Vec::new(),
            rest: Vec::new(),
        };
        for op in &item.ops {
            let fixed = match &op.kind {
                OpKind::Dma {
                    store,
                    tensor,
                    offset,
                    bits,
                    semaphore,
                    indirect,
                    dims,
                    strides,
                } => {
                    flat.numbers.push(*offset);
                    for list in [dims, strides] {
                        flat.numbers.extend(list);
                        flat.rest.extend(list);
                    }
                    Fixed::Dma {
                        store: *store,
                        tensor: *tensor,
                        bits: *bits,
                        semaphore: *semaphore,
                        indirect: *indirect,
                        rank: dims.len(),
                    }
                }
                OpKind::Compute { tile, unit } => Fixed::Compute {
                    tile: *tile,
                    unit: *unit,
                },
                OpKind::Wait {
                    semaphore,
                    expected,
                } => {
                    flat.numbers.push(*expected);
                    flat.rest.push(*expected);
                    Fixed::Wait {
                        semaphore: *semaphore,
                    }
                }
            };
            let shape = (fixed, op.reads.clone(), op.writes.clone());
            let next = self.all.len() as u32;
            let number = *self.numbers.entry(shape).or_insert_with_key(|shape| {
                self.all.push(shape.clone());
                next
            });
            flat.shapes.push(number);
        }
        flat
    }

    /// Ops of these shapes with these numbers, which lie one after another.
    fn nodes(&self, shapes: &[u32], numbers: Vec<Affine>) -> Vec<Node> {
        let mut numbers = numbers.into_iter();
        shapes
            .iter()
            .map(|shape| Node::Op {
                shape: *shape,
                numbers: numbers.by_ref().take(self.count(*shape)).collect(),
            })
            .collect()
    }

    /// How many numbers an op of this shape has.
    fn count(&self, shape: u32) -> usize {
        match self.all.get(shape as usize) {
            Some((Fixed::Dma { rank, .. }, ..)) => 1 + 2 * rank,
            Some((Fixed::Wait { .. }, ..)) => 1,
            _ => 0,
        }
    }

    fn lower(&self, nodes: &[Node], depths: &mut BTreeMap<u32, u32>) -> Vec<Stmt> {
        let mut out = Vec::new();
        for node in nodes {
            match node {
                Node::Loop { id, count, body } => {
                    let depth = depths.len() as u32;
                    depths.insert(*id, depth);
                    out.push(Stmt::For(For {
                        var: VarId(depth),
                        name: format!("i{depth}"),
                        lo: Expr::Const(0),
                        hi: Expr::Const(*count as i64),
                        step: Expr::Const(1),
                        body: self.lower(body, depths),
                    }));
                    depths.remove(id);
                }
                Node::Op { shape, numbers } => out.extend(self.op(*shape, numbers, depths)),
            }
        }
        out
    }

    fn op(&self, shape: u32, numbers: &[Affine], depths: &BTreeMap<u32, u32>) -> Option<Stmt> {
        let (fixed, reads, writes) = self.all.get(shape as usize)?;
        let ids = |list: &[i64]| -> Vec<BufferId> {
            list.iter()
                .map(|b| BufferId(u32::try_from(*b).unwrap_or(u32::MAX)))
                .collect()
        };
        let mut exprs = numbers.iter().map(|n| expr(n, depths));
        Some(match fixed {
            Fixed::Dma {
                store,
                tensor,
                bits,
                semaphore,
                indirect,
                rank,
            } => {
                let offset = exprs.next()?;
                let extents: Vec<Expr> = exprs.by_ref().take(*rank).collect();
                let dims: Vec<Dim> = extents
                    .into_iter()
                    .zip(exprs)
                    .map(|(extent, stride)| Dim {
                        extent,
                        stride,
                        valid: None,
                    })
                    .collect();
                // Where the lines lie is not recorded: each element counts as a line of its own.
                let indirect = indirect.then(|| Indirect::Lines {
                    count: dims
                        .iter()
                        .map(|d| d.extent.clone())
                        .reduce(|a, b| binary(BinaryOp::Mul, a, b))
                        .unwrap_or(Expr::Const(1)),
                    bytes: bits.div_ceil(8),
                });
                Stmt::Dma(Dma {
                    direction: if *store {
                        Direction::Store
                    } else {
                        Direction::Load
                    },
                    tensor: TensorId(*tensor),
                    offset,
                    dims,
                    element_bits: *bits,
                    semaphore: semaphore.map(SemId),
                    reads: ids(reads),
                    writes: ids(writes),
                    indirect,
                })
            }
            Fixed::Compute { tile, unit } => Stmt::Compute(Compute {
                tile: TileId(*tile),
                unit: match unit {
                    0 => Unit::Vector,
                    1 => Unit::Matmul,
                    2 => Unit::Preload,
                    _ => Unit::CrossLane,
                },
                reads: ids(reads),
                writes: ids(writes),
            }),
            Fixed::Wait { semaphore } => Stmt::Wait(Wait {
                semaphore: SemId(*semaphore),
                expected: exprs.next()?,
            }),
        })
    }
}

fn binary(op: BinaryOp, a: Expr, b: Expr) -> Expr {
    Expr::Binary(op, Box::new(a), Box::new(b))
}

fn expr(number: &Affine, depths: &BTreeMap<u32, u32>) -> Expr {
    let ids = (0..).zip(number.ids).map(|(axis, f)| (f, Expr::Pid(axis)));
    let loops = number
        .loops
        .iter()
        .filter_map(|(id, f)| Some((*f, Expr::Var(VarId(*depths.get(id)?)))));
    let terms = ids
        .chain(loops)
        .filter(|(factor, _)| *factor != 0)
        .map(|(factor, value)| match factor {
            1 => value,
            factor => binary(BinaryOp::Mul, value, Expr::Const(factor)),
        });
    let sum = terms.reduce(|a, b| binary(BinaryOp::Add, a, b));
    match (sum, number.constant) {
        (None, constant) => Expr::Const(constant),
        (Some(sum), 0) => sum,
        (Some(sum), constant) => binary(BinaryOp::Add, sum, Expr::Const(constant)),
    }
}

/// Work-items with an equal key, in order of first appearance.
fn grouped<'a, K: Eq + std::hash::Hash + ?Sized + 'a>(
    items: impl IntoIterator<Item = usize>,
    key: impl Fn(usize) -> &'a K,
) -> Vec<Vec<usize>> {
    let mut places: HashMap<&K, usize> = HashMap::new();
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for item in items {
        let place = *places.entry(key(item)).or_insert(groups.len());
        match groups.get_mut(place) {
            Some(group) => group.push(item),
            None => groups.push(vec![item]),
        }
    }
    groups
}

type Body = (Vec<usize>, Vec<Node>);

/// Bodies for work-items with the same op shapes. Whether none had to be stored by itself.
fn split(
    shapes: &Shapes,
    flat: &[Flat],
    axes: &Axes,
    members: Vec<usize>,
    out: &mut Vec<Body>,
) -> bool {
    if let Some(nodes) = affine(shapes, flat, axes, &members) {
        out.push((members, nodes));
        return true;
    }
    let mut exact = true;
    for members in grouped(members, |i| flat[i].rest.as_slice()) {
        if let Some(nodes) = affine(shapes, flat, axes, &members) {
            out.push((members, nodes));
            continue;
        }
        for members in grouped(members, |i| flat[i].numbers.as_slice()) {
            exact = false;
            let constant = |n: &i64| Affine {
                constant: *n,
                ..Affine::default()
            };
            if let Some(first) = members.first().and_then(|i| flat.get(*i)) {
                let numbers: Vec<Affine> = first.numbers.iter().map(constant).collect();
                out.push((members, shapes.nodes(&first.shapes, numbers)));
            }
        }
    }
    exact
}

/// The body of work-items whose numbers are all affine in their program ids, exactly.
fn affine(shapes: &Shapes, flat: &[Flat], axes: &Axes, members: &[usize]) -> Option<Vec<Node>> {
    let first = *members.first()?;
    let base = axes.ids.get(first)?;
    // Along each axis, a pair that differs in nothing else gives the factor.
    let place: HashMap<[i64; 3], usize> = members
        .iter()
        .filter_map(|m| Some((*axes.ids.get(*m)?, *m)))
        .collect();
    let mut pairs = [None; 3];
    for (axis, pair) in pairs.iter_mut().enumerate() {
        let varies = members.iter().any(|m| {
            axes.ids
                .get(*m)
                .is_some_and(|id| id.get(axis) != base.get(axis))
        });
        if !varies {
            continue;
        }
        *pair = Some(members.iter().find_map(|m| {
            let mut next = *axes.ids.get(*m)?;
            *next.get_mut(axis)? += 1;
            Some((*m, *place.get(&next)?))
        })?);
    }
    let numbers = (0..flat.get(first)?.numbers.len())
        .map(|k| {
            let value = |item: usize| flat.get(item)?.numbers.get(k).copied();
            let mut out = Affine::default();
            for (factor, pair) in out.ids.iter_mut().zip(pairs) {
                if let Some((a, b)) = pair {
                    *factor = value(b)?.checked_sub(value(a)?)?;
                }
            }
            let at = |constant: i64, item: usize| {
                let ids = axes.ids.get(item)?;
                out.ids.iter().zip(ids).try_fold(constant, |sum, (f, id)| {
                    sum.checked_add(f.checked_mul(*id)?)
                })
            };
            let constant = value(first)?.checked_sub(at(0, first)?)?;
            for m in members {
                if at(constant, *m)? != value(*m)? {
                    return None;
                }
            }
            out.constant = constant;
            Some(out)
        })
        .collect::<Option<Vec<Affine>>>()?;
    Some(shapes.nodes(&flat.get(first)?.shapes, numbers))
}

/// When a body applies: always, in a box of program ids, or for ranges of work-items counted with the
/// last axis fastest. The last may take several conditions, of which at most one holds.
fn conditions(axes: &Axes, members: &[usize]) -> Vec<Option<Expr>> {
    if members.len() == axes.ids.len() {
        return vec![None];
    }
    let ids: Vec<&[i64; 3]> = members.iter().filter_map(|m| axes.ids.get(*m)).collect();
    let mut bounds = Vec::new();
    let mut size = 1u64;
    for (axis, extent) in axes.grid.iter().enumerate() {
        let values = || ids.iter().filter_map(|id| id.get(axis).copied());
        let (low, high) = (values().min().unwrap_or(0), values().max().unwrap_or(0));
        size = size.saturating_mul(high.abs_diff(low) + 1);
        bounds.push((Expr::Pid(axis as u8), low, high, *extent as i64));
    }
    let within = |(value, low, high, extent): (Expr, i64, i64, i64)| {
        if low == high {
            return Some(binary(BinaryOp::Eq, value, Expr::Const(low)));
        }
        let above = (low > 0).then(|| binary(BinaryOp::Ge, value.clone(), Expr::Const(low)));
        let below = (high + 1 < extent).then(|| binary(BinaryOp::Le, value, Expr::Const(high)));
        above
            .into_iter()
            .chain(below)
            .reduce(|a, b| binary(BinaryOp::And, a, b))
    };
    if size == members.len() as u64 {
        let all = bounds
            .into_iter()
            .filter(|(_, low, high, extent)| high - low + 1 < *extent)
            .filter_map(within)
            .reduce(|a, b| binary(BinaryOp::And, a, b));
        return vec![all];
    }
    let number = |id: &[i64; 3]| {
        id.iter()
            .zip(&axes.grid)
            .fold(0i64, |n, (id, extent)| n * *extent as i64 + id)
    };
    let mut numbers: Vec<i64> = ids.iter().map(|id| number(id)).collect();
    numbers.sort_unstable();
    let mut ranges: Vec<(i64, i64)> = Vec::new();
    for n in numbers {
        match ranges.last_mut() {
            Some((_, high)) if *high + 1 == n => *high = n,
            _ => ranges.push((n, n)),
        }
    }
    let value = (1..axes.grid.len()).fold(Expr::Pid(0), |sum, axis| {
        let axis = axis as u8;
        let scaled = binary(BinaryOp::Mul, sum, Expr::Grid(axis));
        binary(BinaryOp::Add, scaled, Expr::Pid(axis))
    });
    ranges
        .chunks(RANGES)
        .map(|chunk| {
            let tests = chunk
                .iter()
                .filter_map(|(low, high)| within((value.clone(), *low, *high, i64::MAX)))
                .collect();
            any(tests)
        })
        .collect()
}

/// Whether one of several holds, as a balanced tree.
fn any(mut tests: Vec<Expr>) -> Option<Expr> {
    if tests.len() <= 1 {
        return tests.pop();
    }
    let rest = tests.split_off(tests.len() / 2);
    match (any(tests), any(rest)) {
        (Some(a), Some(b)) => Some(binary(BinaryOp::Or, a, b)),
        (a, b) => a.or(b),
    }
}

fn tensors(
    recording: &Recording,
    tables: &Tables,
    grid: &[u64],
    notes: &mut Vec<String>,
) -> Result<Vec<Tensor>, RecordError> {
    let mut used: BTreeMap<u32, (bool, bool, u32, u64)> = BTreeMap::new();
    for op in ops(recording) {
        let OpKind::Dma {
            store,
            tensor,
            offset,
            bits,
            dims,
            strides,
            ..
        } = &op.kind
        else {
            continue;
        };
        let last = dims
            .iter()
            .zip(strides)
            .filter(|(_, stride)| **stride > 0)
            .try_fold(i128::from(*offset), |at, (dim, stride)| {
                at.checked_add(i128::from((*dim - 1).max(0)) * i128::from(*stride))
            })
            .and_then(|at| u64::try_from(at + 1).ok())
            .unwrap_or(0);
        let entry = used.entry(*tensor).or_insert((false, false, *bits, 0));
        entry.0 |= !store;
        entry.1 |= store;
        entry.3 = entry.3.max(last);
    }
    let count = used.last_key_value().map_or(0, |(t, _)| *t as usize + 1);
    if count > limits::MAX_TENSORS {
        return Err(RecordError::TooLarge(format!(
            "tensor {} of at most {}",
            count - 1,
            limits::MAX_TENSORS
        )));
    }
    let count = match &tables.tensors {
        Some(rows) if rows.len() < count => {
            return Err(RecordError::TooLarge(format!(
                "the producer moves tensor {}, but {} are described",
                count - 1,
                rows.len()
            )));
        }
        Some(rows) => rows.len(),
        None => {
            notes.push(
                "no tensor shapes are given: each tensor ends with the last element that is moved, \
                 which decides where the next one lies"
                    .to_owned(),
            );
            count
        }
    };
    // 1 for the recorded grid; for any other an extent has no value, and the launch is refused.
    let recorded = (0..)
        .zip(grid)
        .map(|(axis, n)| binary(BinaryOp::Eq, Expr::Grid(axis), Expr::Const(*n as i64)))
        .reduce(|a, b| binary(BinaryOp::And, a, b))
        .unwrap_or(Expr::Const(1));
    let here = |n: u64| {
        let n = Expr::Const(i64::try_from(n).unwrap_or(i64::MAX));
        binary(BinaryOp::Div, n, recorded.clone())
    };
    Ok((0..count)
        .map(|t| {
            let u = used.get(&(t as u32)).copied();
            let (extents, bits) = match tables.tensors.as_ref().and_then(|rows| rows.get(t)) {
                Some([rows, columns, bytes]) => (
                    vec![here(*rows), here(*columns)],
                    u32::try_from(bytes.saturating_mul(8)).unwrap_or(u32::MAX),
                ),
                None => {
                    let (_, _, bits, last) = u.unwrap_or((false, false, 32, 1));
                    (vec![here(last.max(1))], bits)
                }
            };
            Tensor {
                name: format!("arg{t}"),
                element_bits: bits,
                role: match u {
                    Some((true, true, ..)) => Role::InOut,
                    Some((false, true, ..)) => Role::Out,
                    _ => Role::In,
                },
                extents,
                layout: Layout::RowMajor,
            }
        })
        .collect())
}

fn ops(recording: &Recording) -> impl Iterator<Item = &Op> {
    recording.items.iter().flat_map(|i| &i.ops)
}

fn buffers(recording: &Recording, notes: &mut Vec<String>) -> Result<Vec<Buffer>, RecordError> {
    let mut moved: BTreeMap<i64, u64> = BTreeMap::new();
    let mut last = -1;
    for op in ops(recording) {
        for buffer in op.reads.iter().chain(&op.writes) {
            if !(0..limits::MAX_BUFFERS as i64).contains(buffer) {
                return Err(RecordError::TooLarge(format!(
                    "scratchpad buffer {buffer}; 0 to {} are possible",
                    limits::MAX_BUFFERS - 1
                )));
            }
            last = last.max(*buffer);
        }
        if let OpKind::Dma {
            store, bits, dims, ..
        } = &op.kind
        {
            let elements = dims.iter().fold(1u64, |n, d| {
                n.saturating_mul(u64::try_from(*d).unwrap_or(0))
            });
            let bytes = elements.saturating_mul(u64::from(*bits)).div_ceil(8);
            for buffer in if *store { &op.reads } else { &op.writes } {
                let known = moved.entry(*buffer).or_default();
                *known = (*known).max(bytes);
            }
        }
    }
    let stated = recording.sizes.as_deref();
    if stated.is_none() && !moved.is_empty() {
        notes.push("scratchpad buffers are sized by the transfers that fill or drain them".into());
    }
    if let (Some(sizes), Some((buffer, _))) = (stated, moved.last_key_value())
        && *buffer >= sizes.len() as i64
    {
        return Err(RecordError::TooLarge(format!(
            "buffer {buffer} is moved, but togsim_spad_buffer_bytes has {} entries",
            sizes.len()
        )));
    }
    let count = stated.map_or(0, <[i64]>::len).max((last + 1) as usize);
    Ok((0..count)
        .map(|b| {
            let bytes = match stated {
                Some(sizes) => sizes.get(b).and_then(|n| u64::try_from(*n).ok()),
                None => moved.get(&(b as i64)).copied(),
            };
            Buffer {
                name: format!("b{b}"),
                bytes: bytes.unwrap_or(0),
            }
        })
        .collect())
}

fn tiles(
    recording: &Recording,
    tables: &Tables,
    notes: &mut Vec<String>,
) -> Result<Vec<Tile>, RecordError> {
    let used = ops(recording)
        .filter_map(|op| match op.kind {
            OpKind::Compute { tile, .. } => Some(tile as usize + 1),
            _ => None,
        })
        .max()
        .unwrap_or(0);
    let rows = tables.cycles.as_ref().map_or(used, Vec::len);
    if rows < used || rows > limits::MAX_TILES {
        return Err(RecordError::TooLarge(format!(
            "compute tile {}, but there are {} rows of cycles (at most {})",
            used.saturating_sub(1),
            rows,
            limits::MAX_TILES
        )));
    }
    if tables.cycles.is_none() && used > 0 {
        notes.push("no cycle table is given: the compute tiles have no cost yet".to_owned());
    }
    let mut tiles: Vec<Tile> = (0..rows)
        .map(|i| {
            let row = tables.cycles.as_ref().and_then(|c| c.get(i)).copied();
            Tile {
                name: format!("tile{i}"),
                unit: None,
                cycles: row.map(|r| r.0),
                overlap: row.map_or(0, |r| r.1),
                source: if row.is_some() {
                    CostSource::Measured
                } else {
                    CostSource::Declared
                },
                admissions: Vec::new(),
            }
        })
        .collect();
    for unit in &tables.units {
        let tile = usize::try_from(unit.tile)
            .ok()
            .and_then(|t| tiles.get_mut(t));
        let Some(tile) = tile else {
            return Err(RecordError::TooLarge(format!(
                "the unit table has compute tile {}, but there are {rows}",
                unit.tile
            )));
        };
        tile.admissions.push(Admission {
            unit: unit.unit.clone(),
            work: unit.work.clone(),
            capacity_per_cycle: unit.capacity_per_cycle,
            admitted: unit.admitted,
        });
    }
    Ok(tiles)
}

/// Expands every work-item and compares it with what was recorded.
fn verify(trace: &ValidTrace, recording: &Recording, axes: &Axes) -> Result<(), RecordError> {
    // Tiles without a cost cannot be launched; what they cost plays no part here.
    let mut priced = (**trace).clone();
    for tile in &mut priced.tiles {
        tile.cycles = tile.cycles.or(Some(1));
    }
    let trace = ValidTrace::try_from(priced)?;
    let args = LaunchArgs {
        grid: axes.grid.clone(),
        ..LaunchArgs::default()
    };
    let bound = Bound::new(&trace, &args, &Limits::default())?;
    let mut item = WorkItem::default();
    for (at, recorded) in recording.items.iter().enumerate() {
        bound.expand(bound.pid(at as u64), &mut item)?;
        for k in 0..recorded.ops.len().max(item.ops.len()) {
            let same = match (recorded.ops.get(k), item.ops.get(k)) {
                (Some(op), Some(_)) => expanded(&bound, &item, k).as_ref() == Some(op),
                _ => false,
            };
            if !same {
                return Err(RecordError::Differs { item: at, op: k });
            }
        }
    }
    Ok(())
}

/// An expanded op as a recorded one.
fn expanded(bound: &Bound, item: &WorkItem, k: usize) -> Option<Op> {
    let op = item.ops.get(k)?;
    let ids = |span: std::ops::Range<usize>| -> Option<Vec<i64>> {
        Some(
            item.buffers
                .get(span)?
                .iter()
                .map(|b| i64::from(b.0))
                .collect(),
        )
    };
    let kind = match op.kind {
        Expanded::Compute { tile, unit } => OpKind::Compute {
            tile: tile.0,
            unit: match unit {
                Unit::Vector => 0,
                Unit::Matmul => 1,
                Unit::Preload => 2,
                Unit::CrossLane => 3,
            },
        },
        Expanded::Wait {
            semaphore,
            expected,
        } => OpKind::Wait {
            semaphore: semaphore.0,
            expected: i64::try_from(expected).ok()?,
        },
        Expanded::Dma(at) => {
            let t = item.transfers.get(at as usize)?;
            let base = i128::from(bound.tensors().get(t.tensor.index())?.base) * 8;
            let dims = item.dims.get(t.dims.range())?;
            OpKind::Dma {
                store: t.direction == Direction::Store,
                tensor: t.tensor.0,
                offset: i64::try_from((t.first_bit - base) / i128::from(t.element_bits)).ok()?,
                bits: t.element_bits,
                semaphore: t.semaphore.map(|s| s.0),
                indirect: t.indirect != ResolvedIndirect::None,
                dims: dims.iter().map(|d| d.extent as i64).collect(),
                strides: dims.iter().map(|d| d.stride).collect(),
            }
        }
    };
    Some(Op {
        kind,
        reads: ids(op.reads.range())?,
        writes: ids(op.writes.range())?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(offset: i64, columns: i64) -> Op {
        Op {
            kind: OpKind::Dma {
                store: false,
                tensor: 0,
                offset,
                bits: 32,
                semaphore: None,
                indirect: false,
                dims: vec![4, columns],
                strides: vec![100, 1],
            },
            reads: vec![],
            writes: vec![0],
        }
    }

    fn recording(items: Vec<Item>) -> Recording {
        Recording {
            abi: 15,
            sizes: Some(vec![4096]),
            items,
        }
    }

    fn grid(rows: i64, columns: i64, op: impl Fn(i64, i64) -> Vec<Op>) -> Recording {
        let ids = (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j)));
        recording(
            ids.map(|(i, j)| Item {
                ids: vec![i * 16, j],
                ops: op(i, j),
            })
            .collect(),
        )
    }

    #[test]
    fn affine_offsets_are_one_body() {
        let r = grid(4, 5, |i, j| {
            (0..6).map(|k| load(400 * i + 8 * j + 3 * k, 8)).collect()
        });
        let f = fit(&r, &Tables::default()).unwrap();
        assert_eq!((f.groups, f.exact, f.grid), (1, true, vec![4, 5]));
        assert!(matches!(f.trace.body.as_slice(), [Stmt::For(_)]));
        let other = LaunchArgs {
            grid: vec![4, 6],
            ..LaunchArgs::default()
        };
        assert!(Bound::new(&f.trace, &other, &Limits::default()).is_err());
    }

    #[test]
    fn edges_are_groups_of_their_own() {
        let r = grid(3, 3, |i, j| {
            vec![load(400 * i + 8 * j, if j == 2 { 5 } else { 8 })]
        });
        let f = fit(&r, &Tables::default()).unwrap();
        assert_eq!((f.groups, f.exact), (2, true));
    }

    #[test]
    fn irregular_work_items_are_stored() {
        let r = grid(5, 7, |i, j| vec![load((i * 7 + j) * (i * 7 + j) % 11, 8)]);
        let f = fit(&r, &Tables::default()).unwrap();
        assert!(!f.exact && f.groups > 1 && f.groups <= 11, "{}", f.groups);
    }

    #[test]
    fn other_orders_and_no_grid() {
        let mut r = grid(3, 4, |i, j| vec![load(400 * i + 8 * j, 8)]);
        r.items.sort_by_key(|i| (i.ids[1], i.ids[0]));
        let f = fit(&r, &Tables::default()).unwrap();
        assert_eq!(f.trace.dispatch.order, [1, 0]);
        r.items.swap(0, 5);
        let f = fit(&r, &Tables::default()).unwrap();
        assert_eq!(f.grid, [12]);
        r.items.clear();
        assert!(fit(&r, &Tables::default()).is_err());
    }
}
