//! Valid traces and launches made from arbitrary bytes, for property tests and fuzzing.
//!
//! The same bytes always give the same trace. When the bytes run out, zeros follow, which make the
//! generator choose the smallest thing everywhere; so shorter input is a simpler trace.

use crate::launch::LaunchArgs;
use crate::model::*;

/// A source of choices.
#[derive(Clone, Debug)]
pub struct Choices<'a> {
    bytes: &'a [u8],
}

impl<'a> Choices<'a> {
    /// Choices from bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    fn byte(&mut self) -> u8 {
        match self.bytes.split_first() {
            Some((first, rest)) => {
                self.bytes = rest;
                *first
            }
            None => 0,
        }
    }

    /// A number below `n`.
    fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n.max(1)
    }

    fn chance(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    fn wide(&mut self) -> u64 {
        (0..8).fold(0, |value, _| value << 8 | u64::from(self.byte()))
    }

    fn pick<T: Clone>(&mut self, items: &[T], otherwise: T) -> T {
        let index = self.below(items.len());
        items.get(index).cloned().unwrap_or(otherwise)
    }

    fn constant(&mut self) -> i64 {
        match self.below(8) {
            0..=4 => i64::from(self.byte()),
            5 => -i64::from(self.byte()),
            6 => 1i64 << self.below(63),
            _ => self.wide() as i64,
        }
    }
}

const NAMES: &[&str] = &[
    "k",
    "i",
    "A",
    "p0",
    "g1",
    "for",
    "a b",
    "quo\"te",
    "back\\slash",
    "new\nline",
    "\u{e9}t\u{e9}",
    "#",
    "var",
    "select",
    "x_1",
    "\u{7f}",
    "0",
    "-",
    "body",
    "step",
];

const UNARY: &[UnaryOp] = &[
    UnaryOp::Neg,
    UnaryOp::Not,
    UnaryOp::BitNot,
    UnaryOp::TruncI8,
    UnaryOp::TruncU8,
    UnaryOp::TruncI16,
    UnaryOp::TruncU16,
    UnaryOp::TruncI32,
    UnaryOp::TruncU32,
];

const BINARY: &[BinaryOp] = &[
    BinaryOp::Add,
    BinaryOp::Sub,
    BinaryOp::Mul,
    BinaryOp::Div,
    BinaryOp::Mod,
    BinaryOp::Min,
    BinaryOp::Max,
    BinaryOp::Shl,
    BinaryOp::Shr,
    BinaryOp::And,
    BinaryOp::Or,
    BinaryOp::Xor,
    BinaryOp::Lt,
    BinaryOp::Le,
    BinaryOp::Gt,
    BinaryOp::Ge,
    BinaryOp::Eq,
    BinaryOp::Ne,
    BinaryOp::WrapAdd,
    BinaryOp::WrapSub,
    BinaryOp::WrapMul,
    BinaryOp::WrapShl,
    BinaryOp::CDiv,
    BinaryOp::CRem,
    BinaryOp::UDiv,
    BinaryOp::URem,
    BinaryOp::UShr,
    BinaryOp::ULt,
    BinaryOp::ULe,
];

/// What an expression may use.
#[derive(Clone, Copy, Debug)]
pub struct ExprScope {
    /// Axes of the kernel.
    pub axes: u8,
    /// Program ids may be used.
    pub pids: bool,
    /// Parameters.
    pub params: usize,
    /// Enclosing loops.
    pub loops: usize,
}

/// An expression of at most `depth` levels.
pub fn expr(c: &mut Choices<'_>, scope: ExprScope, depth: usize) -> Expr {
    let kind = if depth <= 1 { c.below(5) } else { c.below(10) };
    match kind {
        1 if scope.pids => Expr::Pid(c.below(scope.axes.into()) as u8),
        2 if scope.loops > 0 => Expr::Var(VarId(c.below(scope.loops) as u32)),
        3 if scope.params > 0 => Expr::Param(ParamId(c.below(scope.params) as u32)),
        4 => Expr::Grid(c.below(scope.axes.into()) as u8),
        5 => {
            let op = c.pick(UNARY, UnaryOp::Neg);
            Expr::Unary(op, Box::new(expr(c, scope, depth - 1)))
        }
        6..=8 => {
            // The plain operators more often than the others.
            let op = if c.chance() {
                c.pick(BINARY.get(..5).unwrap_or(&[]), BinaryOp::Add)
            } else {
                c.pick(BINARY, BinaryOp::Add)
            };
            let a = expr(c, scope, depth - 1);
            Expr::Binary(op, Box::new(a), Box::new(expr(c, scope, depth - 1)))
        }
        9 => {
            let cond = expr(c, scope, depth - 1);
            let a = expr(c, scope, depth - 1);
            Expr::Select(
                Box::new(cond),
                Box::new(a),
                Box::new(expr(c, scope, depth - 1)),
            )
        }
        _ => Expr::Const(c.constant()),
    }
}

fn unique(c: &mut Choices<'_>, taken: &[String]) -> String {
    let name = c.pick(NAMES, "k").to_owned();
    if taken.contains(&name) {
        format!("{name}{}", taken.len())
    } else {
        name
    }
}

/// A valid trace.
pub fn trace(c: &mut Choices<'_>) -> Trace {
    let axes = 1 + c.below(3) as u8;
    let mut names = Vec::new();
    let mut params = Vec::new();
    for _ in 0..c.below(4) {
        let name = unique(c, &names);
        names.push(name.clone());
        let default = if c.chance() { Some(c.constant()) } else { None };
        params.push(Param { name, default });
    }
    let launch = ExprScope {
        axes,
        pids: false,
        params: params.len(),
        loops: 0,
    };
    names.clear();
    let mut tensors = Vec::new();
    for _ in 0..1 + c.below(3) {
        let name = unique(c, &names);
        names.push(name.clone());
        let rank = c.below(4);
        let extents: Vec<Expr> = (0..rank)
            .map(|_| {
                if c.chance() {
                    expr(c, launch, 3)
                } else {
                    Expr::Const(1 + i64::from(c.byte()))
                }
            })
            .collect();
        let layout = if c.below(4) == 3 {
            Layout::Tiled((0..rank).map(|_| 1 + u64::from(c.byte())).collect())
        } else {
            Layout::RowMajor
        };
        tensors.push(Tensor {
            name,
            element_bits: c.pick(&[32, 4, 8, 16, 64, 1, 6], 32),
            role: c.pick(&[Role::In, Role::Out, Role::InOut], Role::In),
            extents,
            layout,
        });
    }
    names.clear();
    let mut buffers = Vec::new();
    for _ in 0..c.below(5) {
        let name = unique(c, &names);
        names.push(name.clone());
        buffers.push(Buffer {
            name,
            bytes: if c.below(8) == 7 {
                c.wide()
            } else {
                c.byte().into()
            },
        });
    }
    names.clear();
    let mut tiles = Vec::new();
    for _ in 0..c.below(5) {
        let name = unique(c, &names);
        names.push(name.clone());
        tiles.push(tile(c, name));
    }
    let mut g = Body {
        axes,
        params: params.len(),
        tensors: tensors.len(),
        buffers: buffers.len(),
        tiles: &tiles,
        left: 40,
    };
    let body = g.block(c, 0, 0);
    let scope = ExprScope {
        axes,
        pids: true,
        params: params.len(),
        loops: 0,
    };
    let mut order: Vec<u8> = (0..axes).collect();
    if c.chance() {
        order.reverse();
    } else if c.chance() {
        order.clear();
    }
    let key = if c.below(4) == 3 {
        Some(expr(c, scope, 3))
    } else {
        None
    };
    Trace {
        header: header(c),
        axes,
        params,
        tensors,
        bounds: if c.chance() {
            Bounds::Off
        } else {
            Bounds::Strict
        },
        buffers,
        tiles,
        body,
        dispatch: Dispatch { order, key },
        resources: resources(c),
    }
}

fn resources(c: &mut Choices<'_>) -> Resources {
    match c.below(4) {
        1 => Resources {
            registers: c.wide(),
            threads: 0,
        },
        2 => Resources {
            registers: 0,
            threads: u64::from(c.byte()),
        },
        3 => Resources {
            registers: c.wide(),
            threads: c.wide(),
        },
        _ => Resources::default(),
    }
}

fn header(c: &mut Choices<'_>) -> Header {
    let text = |c: &mut Choices<'_>| {
        if c.chance() {
            c.pick(NAMES, "").to_owned()
        } else {
            String::new()
        }
    };
    let number = |c: &mut Choices<'_>| {
        if c.chance() {
            Some(u32::from(c.byte()))
        } else {
            None
        }
    };
    Header {
        kernel: text(c),
        producer: text(c),
        producer_version: text(c),
        measured_on: if c.chance() {
            Some(MeasuredOn {
                lanes: number(c),
                vector_bits: number(c),
                array_rows: number(c),
                array_cols: number(c),
                element: if c.chance() { Some(text(c)) } else { None },
            })
        } else {
            None
        },
        origins: (0..c.below(3)).map(|_| (text(c), text(c))).collect(),
    }
}

fn tile(c: &mut Choices<'_>, name: String) -> Tile {
    Tile {
        name,
        unit: None,
        cycles: if c.below(8) == 7 {
            None
        } else {
            Some((c.wide() % (1 << 53)) >> c.below(53))
        },
        overlap: c.byte().into(),
        source: match c.below(3) {
            0 => CostSource::Measured,
            1 => CostSource::Declared,
            _ => CostSource::Analytic(c.pick(NAMES, "").to_owned()),
        },
        admissions: (0..c.below(3))
            .map(|_| Admission {
                unit: c.pick(NAMES, "u").to_owned(),
                work: c.pick(NAMES, "w").to_owned(),
                capacity_per_cycle: match f64::from_bits(c.wide()) {
                    x if x.is_finite() && x > 0.0 && c.chance() => x,
                    _ => f64::from(c.byte()) + 0.25,
                },
                admitted: c.wide(),
            })
            .collect(),
    }
}

fn plus(e: &Expr, by: i64) -> Expr {
    Expr::Binary(
        BinaryOp::Add,
        Box::new(e.clone()),
        Box::new(Expr::Const(by)),
    )
}

struct Body<'t> {
    axes: u8,
    params: usize,
    tensors: usize,
    buffers: usize,
    tiles: &'t [Tile],
    left: usize,
}

impl Body<'_> {
    fn block(&mut self, c: &mut Choices<'_>, depth: usize, loops: usize) -> Vec<Stmt> {
        let mut out = Vec::new();
        for _ in 0..c.below(5) {
            if self.left == 0 {
                break;
            }
            self.left -= 1;
            out.push(self.stmt(c, depth, loops));
        }
        out
    }

    fn lists(&self, c: &mut Choices<'_>) -> Vec<BufferId> {
        let n = if self.buffers == 0 { 0 } else { c.below(3) };
        (0..n)
            .map(|_| BufferId(c.below(self.buffers) as u32))
            .collect()
    }

    fn stmt(&mut self, c: &mut Choices<'_>, depth: usize, loops: usize) -> Stmt {
        let scope = ExprScope {
            axes: self.axes,
            pids: true,
            params: self.params,
            loops,
        };
        let small = |c: &mut Choices<'_>| {
            if c.below(4) == 3 {
                expr(c, scope, 3)
            } else {
                Expr::Const(c.below(6) as i64)
            }
        };
        match c.below(if depth < 4 { 8 } else { 5 }) {
            0 | 1 => Stmt::Dma(self.dma(c, scope)),
            2 | 3 if !self.tiles.is_empty() => Stmt::Compute(Compute {
                tile: TileId(c.below(self.tiles.len()) as u32),
                unit: c.pick(
                    &[Unit::Vector, Unit::Matmul, Unit::Preload, Unit::CrossLane],
                    Unit::Vector,
                ),
                reads: self.lists(c),
                writes: self.lists(c),
            }),
            5 | 6 => {
                let step = match small(c) {
                    Expr::Const(0) => Expr::Const(1),
                    step => step,
                };
                let lo = small(c);
                // One in four gives a value a name; others start and end anywhere.
                let width = i64::from(c.byte() % 8);
                let (hi, step) = match width {
                    0 | 1 => (plus(&lo, 1), Expr::Const(1)),
                    2 => (plus(&lo, 3), step),
                    _ => (small(c), step),
                };
                Stmt::For(For {
                    var: VarId(loops as u32),
                    name: c.pick(NAMES, "k").to_owned(),
                    lo,
                    hi,
                    step,
                    body: self.block(c, depth + 1, loops + 1),
                })
            }
            7 => Stmt::If(If {
                cond: expr(c, scope, 4),
                then: self.block(c, depth + 1, loops),
                otherwise: self.block(c, depth + 1, loops),
            }),
            _ => Stmt::Wait(Wait {
                semaphore: SemId(c.byte().into()),
                expected: small(c),
            }),
        }
    }

    fn dma(&mut self, c: &mut Choices<'_>, scope: ExprScope) -> Dma {
        let value = |c: &mut Choices<'_>| {
            if c.below(4) == 3 {
                expr(c, scope, 4)
            } else {
                Expr::Const(c.below(9) as i64)
            }
        };
        let dims = (0..c.below(4))
            .map(|_| Dim {
                extent: value(c),
                stride: value(c),
                valid: if c.chance() { Some(value(c)) } else { None },
            })
            .collect();
        let indirect = match c.below(6) {
            4 => Some(Indirect::Indices(
                (0..c.below(4)).map(|_| value(c)).collect(),
            )),
            5 => Some(Indirect::Lines {
                count: value(c),
                bytes: 1 + u32::from(c.byte()),
            }),
            _ => None,
        };
        Dma {
            direction: if c.chance() {
                Direction::Store
            } else {
                Direction::Load
            },
            tensor: TensorId(c.below(self.tensors) as u32),
            offset: expr(c, scope, 4),
            dims,
            element_bits: c.pick(&[32, 4, 8, 16, 64], 32),
            semaphore: if c.chance() {
                Some(SemId(c.byte().into()))
            } else {
                None
            },
            reads: self.lists(c),
            writes: self.lists(c),
            indirect,
        }
    }
}

/// A launch that often fits the trace.
pub fn launch(c: &mut Choices<'_>, trace: &Trace) -> LaunchArgs {
    let mut args = LaunchArgs {
        allow_overlap: c.chance(),
        ..LaunchArgs::default()
    };
    for _ in 0..trace.axes {
        args.grid.push(c.pick(&[1, 2, 3, 4, 5, 7, 1, 0], 1));
    }
    for param in &trace.params {
        if param.default.is_none() || c.chance() {
            args.params.insert(param.name.clone(), c.constant());
        }
    }
    if c.below(4) == 3 {
        for tensor in &trace.tensors {
            args.placement
                .insert(tensor.name.clone(), c.wide() >> c.below(64));
        }
    }
    for tensor in &trace.tensors {
        if c.below(4) != 3 {
            let extents = tensor.extents.iter().map(|_| i64::from(c.byte())).collect();
            args.extents.insert(tensor.name.clone(), extents);
        }
    }
    args
}
