//! The payload of container version 1. Frozen: a change of these types is a new version beside it.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::codes::*;
use crate::error::{ErrorCode, TraceError};
use crate::limits::*;
use crate::model::*;

/// A list that refuses to grow beyond `MAX` while it is read.
#[derive(Debug)]
pub(super) struct List<T, const MAX: usize>(Vec<T>);

impl<T: Serialize, const MAX: usize> Serialize for List<T, MAX> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for List<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bounded<T, const MAX: usize>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Bounded<T, MAX> {
            type Value = List<T, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MAX}")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut out = Vec::new();
                while let Some(item) = seq.next_element()? {
                    if out.len() >= MAX {
                        return Err(serde::de::Error::custom(format!(
                            "a list of more than {MAX}"
                        )));
                    }
                    out.push(item);
                }
                Ok(List(out))
            }
        }

        deserializer.deserialize_seq(Bounded(PhantomData))
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Wire {
    kernel: String,
    producer: String,
    producer_version: String,
    measured_on: Option<WireMeasured>,
    origins: List<(String, String), MAX_ORIGINS>,
    axes: u8,
    params: List<(String, Option<i64>), MAX_PARAMS>,
    tensors: List<WireTensor, MAX_TENSORS>,
    bounds_off: bool,
    buffers: List<(String, u64), MAX_BUFFERS>,
    tiles: List<WireTile, MAX_TILES>,
    order: List<u8, 3>,
    has_key: bool,
    /// Statements at the top of the body.
    top: u32,
    /// All statements, depth first.
    stmts: List<WireStmt, MAX_STMTS>,
    /// The nodes of all expressions in prefix order: extents of all tensors, the key, then those of
    /// the statements in their order.
    nodes: List<Node, MAX_TOTAL_EXPR_NODES>,
}

#[derive(Debug, Serialize, Deserialize)]
struct WireMeasured {
    lanes: Option<u32>,
    vector_bits: Option<u32>,
    array_rows: Option<u32>,
    array_cols: Option<u32>,
    element: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct WireTensor {
    name: String,
    element_bits: u32,
    role: u8,
    extents: u8,
    tiled: Option<List<u64, MAX_TENSOR_AXES>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct WireTile {
    name: String,
    unit: Option<u8>,
    cycles: Option<u64>,
    overlap: u64,
    source: WireSource,
    admissions: List<(String, String, f64, u64), MAX_ADMISSIONS>,
}

#[derive(Debug, Serialize, Deserialize)]
enum WireSource {
    Measured,
    Analytic(String),
    Declared,
}

type Buffers = List<u32, MAX_OP_BUFFERS>;

#[derive(Debug, Serialize, Deserialize)]
enum WireStmt {
    /// Expressions: lo, hi, step. `body` statements follow.
    For { name: String, body: u32 },
    /// Expression: the condition. `then` and `otherwise` statements follow.
    If { then: u32, otherwise: u32 },
    /// Expressions: offset; extent, stride and (where `dims` says so) valid of each dim; indices or
    /// the count of lines.
    Dma {
        direction: u8,
        tensor: u32,
        element_bits: u32,
        semaphore: Option<u32>,
        dims: List<bool, MAX_DIMS>,
        indirect: WireIndirect,
        reads: Buffers,
        writes: Buffers,
    },
    Compute {
        tile: u32,
        unit: u8,
        reads: Buffers,
        writes: Buffers,
    },
    /// Expression: the expected elements.
    Wait { semaphore: u32 },
}

#[derive(Debug, Serialize, Deserialize)]
enum WireIndirect {
    None,
    Indices(u32),
    Lines { bytes: u32 },
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Node {
    Const(i64),
    Pid(u8),
    Grid(u8),
    Param(u32),
    Var(u32),
    Unary(u8),
    Binary(u8),
    Select,
}

pub(super) fn from_trace(t: &Trace) -> Wire {
    let mut w = Flatten::default();
    let tensors = t
        .tensors
        .iter()
        .map(|tensor| {
            tensor.extents.iter().for_each(|e| w.expr(e));
            WireTensor {
                name: tensor.name.clone(),
                element_bits: tensor.element_bits,
                role: role_code(tensor.role),
                extents: tensor.extents.len() as u8,
                tiled: match &tensor.layout {
                    Layout::RowMajor => None,
                    Layout::Tiled(tile) => Some(List(tile.clone())),
                },
            }
        })
        .collect();
    if let Some(key) = &t.dispatch.key {
        w.expr(key);
    }
    w.block(&t.body);
    let h = &t.header;
    Wire {
        kernel: h.kernel.clone(),
        producer: h.producer.clone(),
        producer_version: h.producer_version.clone(),
        measured_on: h.measured_on.as_ref().map(|on| WireMeasured {
            lanes: on.lanes,
            vector_bits: on.vector_bits,
            array_rows: on.array_rows,
            array_cols: on.array_cols,
            element: on.element.clone(),
        }),
        origins: List(h.origins.clone()),
        axes: t.axes,
        params: List(
            t.params
                .iter()
                .map(|p| (p.name.clone(), p.default))
                .collect(),
        ),
        tensors: List(tensors),
        bounds_off: t.bounds == Bounds::Off,
        buffers: List(
            t.buffers
                .iter()
                .map(|b| (b.name.clone(), b.bytes))
                .collect(),
        ),
        tiles: List(t.tiles.iter().map(wire_tile).collect()),
        order: List(t.dispatch.order.clone()),
        has_key: t.dispatch.key.is_some(),
        top: t.body.len() as u32,
        stmts: List(w.stmts),
        nodes: List(w.nodes),
    }
}

fn wire_tile(tile: &Tile) -> WireTile {
    WireTile {
        name: tile.name.clone(),
        unit: tile.unit.map(unit_code),
        cycles: tile.cycles,
        overlap: tile.overlap,
        source: match &tile.source {
            CostSource::Measured => WireSource::Measured,
            CostSource::Analytic(formula) => WireSource::Analytic(formula.clone()),
            CostSource::Declared => WireSource::Declared,
        },
        admissions: List(
            tile.admissions
                .iter()
                .map(|a| {
                    (
                        a.unit.clone(),
                        a.work.clone(),
                        a.capacity_per_cycle,
                        a.admitted,
                    )
                })
                .collect(),
        ),
    }
}

#[derive(Default)]
struct Flatten {
    stmts: Vec<WireStmt>,
    nodes: Vec<Node>,
}

fn ids(buffers: &[BufferId]) -> Buffers {
    List(buffers.iter().map(|b| b.0).collect())
}

impl Flatten {
    fn block(&mut self, body: &[Stmt]) {
        for stmt in body {
            match stmt {
                Stmt::For(f) => {
                    self.expr(&f.lo);
                    self.expr(&f.hi);
                    self.expr(&f.step);
                    let body = f.body.len() as u32;
                    self.stmts.push(WireStmt::For {
                        name: f.name.clone(),
                        body,
                    });
                    self.block(&f.body);
                }
                Stmt::If(i) => {
                    self.expr(&i.cond);
                    let (then, otherwise) = (i.then.len() as u32, i.otherwise.len() as u32);
                    self.stmts.push(WireStmt::If { then, otherwise });
                    self.block(&i.then);
                    self.block(&i.otherwise);
                }
                Stmt::Dma(dma) => self.dma(dma),
                Stmt::Compute(c) => self.stmts.push(WireStmt::Compute {
                    tile: c.tile.0,
                    unit: unit_code(c.unit),
                    reads: ids(&c.reads),
                    writes: ids(&c.writes),
                }),
                Stmt::Wait(wait) => {
                    self.expr(&wait.expected);
                    self.stmts.push(WireStmt::Wait {
                        semaphore: wait.semaphore.0,
                    });
                }
            }
        }
    }

    fn dma(&mut self, dma: &Dma) {
        self.expr(&dma.offset);
        for dim in &dma.dims {
            self.expr(&dim.extent);
            self.expr(&dim.stride);
            if let Some(valid) = &dim.valid {
                self.expr(valid);
            }
        }
        let indirect = match &dma.indirect {
            None => WireIndirect::None,
            Some(Indirect::Indices(indices)) => {
                indices.iter().for_each(|e| self.expr(e));
                WireIndirect::Indices(indices.len() as u32)
            }
            Some(Indirect::Lines { count, bytes }) => {
                self.expr(count);
                WireIndirect::Lines { bytes: *bytes }
            }
        };
        self.stmts.push(WireStmt::Dma {
            direction: direction_code(dma.direction),
            tensor: dma.tensor.0,
            element_bits: dma.element_bits,
            semaphore: dma.semaphore.map(|s| s.0),
            dims: List(dma.dims.iter().map(|d| d.valid.is_some()).collect()),
            indirect,
            reads: ids(&dma.reads),
            writes: ids(&dma.writes),
        });
    }

    fn expr(&mut self, e: &Expr) {
        match e {
            Expr::Const(c) => self.nodes.push(Node::Const(*c)),
            Expr::Pid(axis) => self.nodes.push(Node::Pid(*axis)),
            Expr::Grid(axis) => self.nodes.push(Node::Grid(*axis)),
            Expr::Param(id) => self.nodes.push(Node::Param(id.0)),
            Expr::Var(id) => self.nodes.push(Node::Var(id.0)),
            Expr::Unary(op, a) => {
                self.nodes.push(Node::Unary(unary_code(*op)));
                self.expr(a);
            }
            Expr::Binary(op, a, b) => {
                self.nodes.push(Node::Binary(binary_code(*op)));
                self.expr(a);
                self.expr(b);
            }
            Expr::Select(c, a, b) => {
                self.nodes.push(Node::Select);
                self.expr(c);
                self.expr(a);
                self.expr(b);
            }
        }
    }
}

type Result<T, E = TraceError> = std::result::Result<T, E>;

fn bad(what: &str) -> TraceError {
    TraceError::new(ErrorCode::Corrupt, "", format!("not a trace: {what}"))
        .with_hint("produce the container again")
}

fn known<T>(value: Option<T>, what: &str) -> Result<T> {
    value.ok_or_else(|| bad(what))
}

pub(super) fn into_trace(wire: Wire) -> Result<Trace> {
    let mut u = Unflatten {
        stmts: wire.stmts.0.into_iter(),
        nodes: wire.nodes.0.into_iter(),
        loops: 0,
    };
    let mut tensors = Vec::with_capacity(wire.tensors.0.len());
    for tensor in wire.tensors.0 {
        tensors.push(Tensor {
            name: tensor.name,
            element_bits: tensor.element_bits,
            role: known(role_of(tensor.role), "unknown role")?,
            extents: u.exprs(tensor.extents.into())?,
            layout: match tensor.tiled {
                None => Layout::RowMajor,
                Some(tile) => Layout::Tiled(tile.0),
            },
        });
    }
    let key = if wire.has_key { Some(u.expr(1)?) } else { None };
    let body = u.block(wire.top, 0)?;
    if u.stmts.next().is_some() || u.nodes.next().is_some() {
        return Err(bad("statements or expressions left over"));
    }
    let mut tiles = Vec::with_capacity(wire.tiles.0.len());
    for tile in wire.tiles.0 {
        tiles.push(Tile {
            name: tile.name,
            unit: tile
                .unit
                .map(|c| known(unit_of(c), "unknown unit"))
                .transpose()?,
            cycles: tile.cycles,
            overlap: tile.overlap,
            source: match tile.source {
                WireSource::Measured => CostSource::Measured,
                WireSource::Analytic(formula) => CostSource::Analytic(formula),
                WireSource::Declared => CostSource::Declared,
            },
            admissions: tile
                .admissions
                .0
                .into_iter()
                .map(|(unit, work, capacity_per_cycle, admitted)| Admission {
                    unit,
                    work,
                    capacity_per_cycle,
                    admitted,
                })
                .collect(),
        });
    }
    let param = |(name, default)| Param { name, default };
    let buffer = |(name, bytes)| Buffer { name, bytes };
    Ok(Trace {
        header: Header {
            kernel: wire.kernel,
            producer: wire.producer,
            producer_version: wire.producer_version,
            measured_on: wire.measured_on.map(|on| MeasuredOn {
                lanes: on.lanes,
                vector_bits: on.vector_bits,
                array_rows: on.array_rows,
                array_cols: on.array_cols,
                element: on.element,
            }),
            origins: wire.origins.0,
        },
        axes: wire.axes,
        params: wire.params.0.into_iter().map(param).collect(),
        tensors,
        bounds: if wire.bounds_off {
            Bounds::Off
        } else {
            Bounds::Strict
        },
        buffers: wire.buffers.0.into_iter().map(buffer).collect(),
        tiles,
        body,
        dispatch: Dispatch {
            order: wire.order.0,
            key,
        },
        resources: Resources::default(),
    })
}

struct Unflatten {
    stmts: std::vec::IntoIter<WireStmt>,
    nodes: std::vec::IntoIter<Node>,
    loops: u32,
}

impl Unflatten {
    fn exprs(&mut self, count: u32) -> Result<Vec<Expr>> {
        // No capacity from the count: only the nodes that are there make it true.
        let mut out = Vec::new();
        for _ in 0..count {
            out.push(self.expr(1)?);
        }
        Ok(out)
    }

    fn expr(&mut self, depth: usize) -> Result<Expr> {
        if depth > MAX_EXPR_DEPTH {
            return Err(
                TraceError::new(ErrorCode::TooDeep, "", "expression too large")
                    .with_hint(format!("use at most {MAX_EXPR_DEPTH} levels")),
            );
        }
        let node = known(self.nodes.next(), "an expression is missing")?;
        Ok(match node {
            Node::Const(c) => Expr::Const(c),
            Node::Pid(axis) => Expr::Pid(axis),
            Node::Grid(axis) => Expr::Grid(axis),
            Node::Param(id) => Expr::Param(ParamId(id)),
            Node::Var(id) => Expr::Var(VarId(id)),
            Node::Unary(code) => {
                let op = known(unary_of(code), "unknown operator")?;
                Expr::Unary(op, Box::new(self.expr(depth + 1)?))
            }
            Node::Binary(code) => {
                let op = known(binary_of(code), "unknown operator")?;
                let a = Box::new(self.expr(depth + 1)?);
                Expr::Binary(op, a, Box::new(self.expr(depth + 1)?))
            }
            Node::Select => {
                let c = Box::new(self.expr(depth + 1)?);
                let a = Box::new(self.expr(depth + 1)?);
                Expr::Select(c, a, Box::new(self.expr(depth + 1)?))
            }
        })
    }

    fn block(&mut self, count: u32, depth: usize) -> Result<Vec<Stmt>> {
        if depth > MAX_STMT_DEPTH {
            return Err(
                TraceError::new(ErrorCode::TooDeep, "", "statements nested too deeply")
                    .with_hint(format!("nest at most {MAX_STMT_DEPTH} statements")),
            );
        }
        let mut out = Vec::new();
        for _ in 0..count {
            out.push(self.stmt(depth)?);
        }
        Ok(out)
    }

    fn stmt(&mut self, depth: usize) -> Result<Stmt> {
        let buffers = |list: Buffers| list.0.into_iter().map(BufferId).collect::<Vec<_>>();
        Ok(match known(self.stmts.next(), "a statement is missing")? {
            WireStmt::For { name, body } => {
                let (lo, hi, step) = (self.expr(1)?, self.expr(1)?, self.expr(1)?);
                let var = VarId(self.loops);
                self.loops += 1;
                let body = self.block(body, depth + 1)?;
                self.loops -= 1;
                Stmt::For(For {
                    var,
                    name,
                    lo,
                    hi,
                    step,
                    body,
                })
            }
            WireStmt::If { then, otherwise } => {
                let cond = self.expr(1)?;
                let then = self.block(then, depth + 1)?;
                let otherwise = self.block(otherwise, depth + 1)?;
                Stmt::If(If {
                    cond,
                    then,
                    otherwise,
                })
            }
            WireStmt::Dma {
                direction,
                tensor,
                element_bits,
                semaphore,
                dims: valid,
                indirect,
                reads,
                writes,
            } => {
                let offset = self.expr(1)?;
                let mut dims = Vec::with_capacity(valid.0.len());
                for masked in valid.0 {
                    let (extent, stride) = (self.expr(1)?, self.expr(1)?);
                    let valid = if masked { Some(self.expr(1)?) } else { None };
                    dims.push(Dim {
                        extent,
                        stride,
                        valid,
                    });
                }
                let indirect = match indirect {
                    WireIndirect::None => None,
                    WireIndirect::Indices(count) => Some(Indirect::Indices(self.exprs(count)?)),
                    WireIndirect::Lines { bytes } => Some(Indirect::Lines {
                        count: self.expr(1)?,
                        bytes,
                    }),
                };
                Stmt::Dma(Dma {
                    direction: known(direction_of(direction), "unknown direction")?,
                    tensor: TensorId(tensor),
                    offset,
                    dims,
                    element_bits,
                    semaphore: semaphore.map(SemId),
                    reads: buffers(reads),
                    writes: buffers(writes),
                    indirect,
                })
            }
            WireStmt::Compute {
                tile,
                unit,
                reads,
                writes,
            } => Stmt::Compute(Compute {
                tile: TileId(tile),
                unit: known(unit_of(unit), "unknown unit")?,
                reads: buffers(reads),
                writes: buffers(writes),
            }),
            WireStmt::Wait { semaphore } => Stmt::Wait(Wait {
                semaphore: SemId(semaphore),
                expected: self.expr(1)?,
            }),
        })
    }
}

/// The trace with its first statement's expression under so many negations.
#[cfg(test)]
pub(super) fn deep_for_tests(trace: &Trace, levels: usize) -> Wire {
    let mut wire = from_trace(trace);
    let at = wire.nodes.0.len() - 1;
    let deep = std::iter::repeat_n(Node::Unary(0), levels);
    wire.nodes.0.splice(at..at, deep);
    wire
}
