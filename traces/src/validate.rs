//! Which traces are well-formed.
//!
//! Validation needs no launch: it checks everything that holds or fails for every grid. What depends
//! on values (bounds, masks, overflow) is checked when a work-item is expanded.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::ops::Deref;
use std::sync::Arc;

use crate::error::{ErrorCode, TraceError};
use crate::limits::*;
use crate::model::*;

/// A trace that has been validated. Cheap to clone.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidTrace(Arc<Trace>);

impl Deref for ValidTrace {
    type Target = Trace;

    fn deref(&self) -> &Trace {
        &self.0
    }
}

impl TryFrom<Trace> for ValidTrace {
    type Error = TraceError;

    /// Validates; the error is the first one found.
    fn try_from(trace: Trace) -> Result<Self, TraceError> {
        match check_up_to(&trace, 1).into_iter().next() {
            Some(error) => Err(error),
            None => Ok(Self(Arc::new(trace))),
        }
    }
}

/// Errors that [`validate`] reports at most.
pub const MAX_ERRORS: usize = 32;

/// Validates a trace; reports up to [`MAX_ERRORS`] errors in the order of the trace.
pub fn validate(trace: Trace) -> Result<ValidTrace, Vec<TraceError>> {
    let errors = check(&trace);
    if errors.is_empty() {
        Ok(ValidTrace(Arc::new(trace)))
    } else {
        Err(errors)
    }
}

/// The errors of a trace, up to [`MAX_ERRORS`]; none means that it is valid.
pub fn check(trace: &Trace) -> Vec<TraceError> {
    check_up_to(trace, MAX_ERRORS)
}

fn check_up_to(trace: &Trace, max: usize) -> Vec<TraceError> {
    let mut c = Checker {
        trace,
        max,
        errors: Vec::new(),
        path: Vec::new(),
        stmts: 0,
        nodes: 0,
    };
    c.trace();
    c.errors
}

#[derive(Clone, Copy)]
enum Seg {
    Key(&'static str),
    Index(usize),
}

struct Checker<'a> {
    trace: &'a Trace,
    max: usize,
    errors: Vec<TraceError>,
    path: Vec<Seg>,
    stmts: usize,
    nodes: usize,
}

/// What an expression may use.
#[derive(Clone, Copy)]
struct Allowed {
    pids: bool,
    loops: usize,
}

impl Checker<'_> {
    fn full(&self) -> bool {
        self.errors.len() >= self.max
    }

    fn fail(&mut self, code: ErrorCode, message: impl Into<String>, hint: impl Into<String>) {
        if self.full() {
            return;
        }
        let mut path = String::new();
        for seg in &self.path {
            // Writing to a string cannot fail.
            let _ = match seg {
                Seg::Key(key) if path.is_empty() => write!(path, "{key}"),
                Seg::Key(key) => write!(path, ".{key}"),
                Seg::Index(index) => write!(path, "[{index}]"),
            };
        }
        let hint = hint.into();
        let error = TraceError::new(code, path, message);
        self.errors.push(if hint.is_empty() {
            error
        } else {
            error.with_hint(hint)
        });
    }

    fn within(&mut self, key: &'static str, f: impl FnOnce(&mut Self)) {
        self.path.push(Seg::Key(key));
        f(self);
        self.path.pop();
    }

    fn each<T>(&mut self, key: &'static str, items: &[T], mut f: impl FnMut(&mut Self, &T)) {
        self.path.push(Seg::Key(key));
        for (i, item) in items.iter().enumerate() {
            if self.full() {
                break;
            }
            self.path.push(Seg::Index(i));
            f(self, item);
            self.path.pop();
        }
        self.path.pop();
    }

    fn text(&mut self, key: &'static str, text: &str) {
        if text.len() > MAX_TEXT_BYTES {
            self.within(key, |c| {
                c.fail(
                    ErrorCode::TooLarge,
                    format!("text of {} bytes", text.len()),
                    format!("use at most {MAX_TEXT_BYTES}"),
                );
            });
        }
    }

    fn name_length(&mut self, what: &str, name: &str) {
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            self.within("name", |c| {
                c.fail(
                    ErrorCode::BadName,
                    format!("{what} name of {} bytes", name.len()),
                    format!("use 1 to {MAX_NAME_BYTES} bytes"),
                );
            });
        }
    }

    fn name<'n>(&mut self, what: &str, name: &'n str, seen: &mut BTreeSet<&'n str>) {
        self.name_length(what, name);
        if !seen.insert(name) {
            self.within("name", |c| {
                c.fail(
                    ErrorCode::BadName,
                    format!("{what} {name:?} is named twice"),
                    "give each its own name",
                );
            });
        }
    }

    fn count(&mut self, key: &'static str, len: usize, max: usize) -> bool {
        if len > max {
            self.within(key, |c| {
                c.fail(
                    ErrorCode::TooLarge,
                    format!("{len} entries"),
                    format!("use at most {max}"),
                );
            });
        }
        len <= max
    }

    fn element_bits(&mut self, bits: u32) {
        if bits == 0 || bits > MAX_ELEMENT_BITS {
            self.within("element_bits", |c| {
                c.fail(
                    ErrorCode::BadValue,
                    format!("elements of {bits} bits"),
                    format!("use 1 to {MAX_ELEMENT_BITS} bits"),
                );
            });
        }
    }

    fn trace(&mut self) {
        let t = self.trace;
        self.within("header", |c| c.header(&t.header));
        if !(1..=3).contains(&t.axes) {
            self.within("axes", |c| {
                c.fail(
                    ErrorCode::BadAxes,
                    format!("{} axes", t.axes),
                    "a grid has 1, 2 or 3 axes",
                );
            });
        }
        if self.count("params", t.params.len(), MAX_PARAMS) {
            let mut seen = BTreeSet::new();
            let names: Vec<&str> = t.params.iter().map(|p| p.name.as_str()).collect();
            self.each("params", &names, |c, name| {
                c.name("parameter", name, &mut seen)
            });
        }
        if self.count("tensors", t.tensors.len(), MAX_TENSORS) {
            let mut seen = BTreeSet::new();
            let rows: Vec<&Tensor> = t.tensors.iter().collect();
            self.each("tensors", &rows, |c, tensor| {
                c.name("tensor", &tensor.name, &mut seen);
                c.tensor(tensor);
            });
        }
        if self.count("buffers", t.buffers.len(), MAX_BUFFERS) {
            let mut seen = BTreeSet::new();
            let names: Vec<&str> = t.buffers.iter().map(|b| b.name.as_str()).collect();
            self.each("buffers", &names, |c, name| {
                c.name("buffer", name, &mut seen)
            });
        }
        if self.count("tiles", t.tiles.len(), MAX_TILES) {
            let mut seen = BTreeSet::new();
            let rows: Vec<&Tile> = t.tiles.iter().collect();
            self.each("tiles", &rows, |c, tile| {
                c.name("tile", &tile.name, &mut seen);
                c.tile(tile);
            });
        }
        self.each("body", &t.body, |c, stmt| c.stmt(stmt, 0, 0));
        self.within("dispatch", |c| c.dispatch(&t.dispatch));
    }

    fn header(&mut self, header: &Header) {
        self.text("kernel", &header.kernel);
        self.text("producer", &header.producer);
        self.text("producer_version", &header.producer_version);
        if let Some(element) = header.measured_on.as_ref().and_then(|m| m.element.as_ref()) {
            self.within("measured_on", |c| c.text("element", element));
        }
        if self.count("origins", header.origins.len(), MAX_ORIGINS) {
            self.each("origins", &header.origins, |c, (name, value)| {
                c.text("name", name);
                c.text("value", value);
            });
        }
    }

    fn tensor(&mut self, tensor: &Tensor) {
        self.element_bits(tensor.element_bits);
        if !self.count("extents", tensor.extents.len(), MAX_TENSOR_AXES) {
            return;
        }
        let allowed = Allowed {
            pids: false,
            loops: 0,
        };
        self.each("extents", &tensor.extents, |c, e| c.expr(e, allowed));
        if let Layout::Tiled(tile) = &tensor.layout {
            if tile.len() != tensor.extents.len() {
                self.within("layout", |c| {
                    c.fail(
                        ErrorCode::BadValue,
                        format!("{} tile extents", tile.len()),
                        format!(
                            "the tensor has {} axes; give one each",
                            tensor.extents.len()
                        ),
                    );
                });
            }
            self.each("layout", tile, |c, extent| {
                if *extent == 0 || *extent > 1 << 32 {
                    c.fail(
                        ErrorCode::BadValue,
                        format!("a tile extent of {extent}"),
                        "use 1 to 2^32",
                    );
                }
            });
        }
    }

    fn tile(&mut self, tile: &Tile) {
        for (key, value) in [
            ("cycles", tile.cycles.unwrap_or(0)),
            ("overlap", tile.overlap),
        ] {
            if value >= MAX_CYCLES {
                self.within(key, |c| {
                    c.fail(
                        ErrorCode::BadValue,
                        format!("{value} cycles"),
                        "stay below 2^53",
                    );
                });
            }
        }
        if let CostSource::Analytic(formula) = &tile.source {
            self.text("source", formula);
        }
        if !self.count("admissions", tile.admissions.len(), MAX_ADMISSIONS) {
            return;
        }
        self.each("admissions", &tile.admissions, |c, admission| {
            for (key, name) in [("unit", &admission.unit), ("work", &admission.work)] {
                c.within(key, |c| c.name_length(key, name));
            }
            let capacity = admission.capacity_per_cycle;
            if !(capacity.is_finite() && capacity > 0.0) {
                c.within("capacity_per_cycle", |c| {
                    c.fail(
                        ErrorCode::BadValue,
                        format!("a capacity of {capacity} per cycle"),
                        "use a finite number above 0",
                    );
                });
            }
        });
    }

    fn dispatch(&mut self, dispatch: &Dispatch) {
        let mut sorted = dispatch.order.clone();
        sorted.sort_unstable();
        if !sorted.is_empty() && !sorted.iter().copied().eq(0..self.trace.axes) {
            self.within("order", |c| {
                c.fail(
                    ErrorCode::BadDispatch,
                    format!("order {:?} of {} axes", dispatch.order, c.trace.axes),
                    "name every axis once, slowest first",
                );
            });
        }
        if let Some(key) = &dispatch.key {
            self.within("key", |c| {
                c.expr(
                    key,
                    Allowed {
                        pids: true,
                        loops: 0,
                    },
                )
            });
        }
    }

    fn stmt(&mut self, stmt: &Stmt, depth: usize, loops: usize) {
        if self.full() {
            return;
        }
        self.stmts += 1;
        if self.stmts > MAX_STMTS {
            if self.stmts == MAX_STMTS + 1 {
                self.fail(
                    ErrorCode::TooLarge,
                    format!("more than {MAX_STMTS} statements"),
                    "use loops for what repeats",
                );
            }
            return;
        }
        let allowed = Allowed { pids: true, loops };
        match stmt {
            Stmt::For(f) => self.within("for", |c| {
                if !c.depth(depth, loops) {
                    return;
                }
                if f.var.index() != loops {
                    c.within("var", |c| {
                        c.fail(
                            ErrorCode::BadVariable,
                            format!("loop variable {} under {loops} loops", f.var.0),
                            "a loop variable's id is the number of enclosing loops",
                        );
                    });
                }
                c.name_length("loop variable", &f.name);
                c.within("lo", |c| c.expr(&f.lo, allowed));
                c.within("hi", |c| c.expr(&f.hi, allowed));
                c.within("step", |c| {
                    c.expr(&f.step, allowed);
                    if f.step == Expr::Const(0) {
                        c.fail(
                            ErrorCode::ZeroStep,
                            "a step of 0",
                            "use a step other than 0",
                        );
                    }
                });
                c.each("body", &f.body, |c, s| c.stmt(s, depth + 1, loops + 1));
            }),
            Stmt::If(i) => self.within("if", |c| {
                if !c.depth(depth, 0) {
                    return;
                }
                c.within("cond", |c| c.expr(&i.cond, allowed));
                c.each("then", &i.then, |c, s| c.stmt(s, depth + 1, loops));
                c.each("otherwise", &i.otherwise, |c, s| {
                    c.stmt(s, depth + 1, loops)
                });
            }),
            Stmt::Dma(dma) => self.within("dma", |c| c.dma(dma, allowed)),
            Stmt::Compute(compute) => self.within("compute", |c| c.compute(compute)),
            Stmt::Wait(wait) => self.within("wait", |c| {
                c.within("expected", |c| c.expr(&wait.expected, allowed));
            }),
        }
    }

    fn depth(&mut self, depth: usize, loops: usize) -> bool {
        let ok = depth < MAX_STMT_DEPTH && loops < MAX_LOOP_DEPTH;
        if !ok {
            self.fail(
                ErrorCode::TooDeep,
                "statements nested too deeply",
                format!("nest at most {MAX_LOOP_DEPTH} loops and {MAX_STMT_DEPTH} statements"),
            );
        }
        ok
    }

    fn dma(&mut self, dma: &Dma, allowed: Allowed) {
        if dma.tensor.index() >= self.trace.tensors.len() {
            self.within("tensor", |c| {
                let have = c.trace.tensors.len();
                c.fail(
                    ErrorCode::UnknownTensor,
                    format!("tensor {} of {have}", dma.tensor.0),
                    "tensors are numbered from 0 in argument order",
                );
            });
        }
        self.within("offset", |c| c.expr(&dma.offset, allowed));
        if self.count("dims", dma.dims.len(), MAX_DIMS) {
            self.each("dims", &dma.dims, |c, dim| {
                c.within("extent", |c| c.expr(&dim.extent, allowed));
                c.within("stride", |c| c.expr(&dim.stride, allowed));
                if let Some(valid) = &dim.valid {
                    c.within("valid", |c| c.expr(valid, allowed));
                }
            });
        }
        self.element_bits(dma.element_bits);
        self.buffer_list("reads", &dma.reads);
        self.buffer_list("writes", &dma.writes);
        match &dma.indirect {
            None => {}
            Some(Indirect::Indices(indices)) => {
                let fits = self.count("indices", indices.len(), MAX_INDICES);
                self.each("indices", if fits { indices } else { &[] }, |c, e| {
                    c.expr(e, allowed)
                });
            }
            Some(Indirect::Lines { count, bytes }) => self.within("lines", |c| {
                c.within("count", |c| c.expr(count, allowed));
                if *bytes == 0 || *bytes > 1 << 20 {
                    c.within("bytes", |c| {
                        c.fail(
                            ErrorCode::BadValue,
                            format!("lines of {bytes} bytes"),
                            "use 1 to 2^20 bytes",
                        );
                    });
                }
            }),
        }
    }

    fn compute(&mut self, compute: &Compute) {
        match self.trace.tiles.get(compute.tile.index()) {
            None => self.within("tile", |c| {
                let have = c.trace.tiles.len();
                c.fail(
                    ErrorCode::UnknownTile,
                    format!("tile {} of {have}", compute.tile.0),
                    "add the tile to the cycle table",
                );
            }),
            Some(tile) if tile.unit.is_some_and(|unit| unit != compute.unit) => {
                let message = format!("tile {:?} runs on another unit", tile.name);
                self.within("unit", |c| {
                    c.fail(
                        ErrorCode::UnitMismatch,
                        message,
                        "use the tile's unit, or a tile that names none",
                    );
                });
            }
            Some(_) => {}
        }
        self.buffer_list("reads", &compute.reads);
        self.buffer_list("writes", &compute.writes);
    }

    fn buffer_list(&mut self, key: &'static str, buffers: &[BufferId]) {
        if self.count(key, buffers.len(), MAX_OP_BUFFERS) {
            self.each(key, buffers, |c, buffer| {
                let have = c.trace.buffers.len();
                if buffer.index() >= have {
                    c.fail(
                        ErrorCode::UnknownBuffer,
                        format!("buffer {} of {have}", buffer.0),
                        "buffers are numbered from 0 in declaration order",
                    );
                }
            });
        }
    }

    fn expr(&mut self, expr: &Expr, allowed: Allowed) {
        if self.full() {
            return;
        }
        let mut nodes = 0;
        let fault = self.expr_node(expr, allowed, 1, &mut nodes);
        self.nodes += nodes;
        if let Err((code, message, hint)) = fault {
            self.fail(code, message, hint);
        } else if self.nodes > MAX_TOTAL_EXPR_NODES {
            self.fail(
                ErrorCode::TooLarge,
                format!("more than {MAX_TOTAL_EXPR_NODES} expression nodes in one trace"),
                "use loops for what repeats",
            );
        }
    }

    fn expr_node(
        &self,
        expr: &Expr,
        allowed: Allowed,
        depth: usize,
        nodes: &mut usize,
    ) -> Result<(), (ErrorCode, String, String)> {
        *nodes += 1;
        if depth > MAX_EXPR_DEPTH || *nodes > MAX_EXPR_NODES {
            return Err((
                ErrorCode::TooDeep,
                "expression too large".into(),
                format!("use at most {MAX_EXPR_DEPTH} levels and {MAX_EXPR_NODES} nodes"),
            ));
        }
        match expr {
            Expr::Const(_) => Ok(()),
            Expr::Pid(_) if !allowed.pids => Err((
                ErrorCode::NotConstant,
                "a program id in a tensor extent".into(),
                "extents may use parameters and grid extents only".into(),
            )),
            Expr::Pid(axis) | Expr::Grid(axis) if *axis >= self.trace.axes => Err((
                ErrorCode::UnknownAxis,
                format!("axis {axis} of a kernel with {} axes", self.trace.axes),
                "axes are numbered from 0".into(),
            )),
            Expr::Pid(_) | Expr::Grid(_) => Ok(()),
            Expr::Param(id) if id.index() >= self.trace.params.len() => Err((
                ErrorCode::UnknownParam,
                format!("parameter {} of {}", id.0, self.trace.params.len()),
                "declare the parameter".into(),
            )),
            Expr::Param(_) => Ok(()),
            Expr::Var(id) if id.index() >= allowed.loops => Err((
                ErrorCode::BadVariable,
                format!("loop variable {} under {} loops", id.0, allowed.loops),
                "use the variable inside its loop; extents and order keys have none".into(),
            )),
            Expr::Var(_) => Ok(()),
            Expr::Unary(_, a) => self.expr_node(a, allowed, depth + 1, nodes),
            Expr::Binary(_, a, b) => {
                self.expr_node(a, allowed, depth + 1, nodes)?;
                self.expr_node(b, allowed, depth + 1, nodes)
            }
            Expr::Select(c, a, b) => {
                self.expr_node(c, allowed, depth + 1, nodes)?;
                self.expr_node(a, allowed, depth + 1, nodes)?;
                self.expr_node(b, allowed, depth + 1, nodes)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base() -> Trace {
        crate::text::parse(
            "tilesim trace 1 axes 2 param K tensor A: 8 bit in [K] buffer b 1 tile t cycles 5 \
             body { for k in 0..4 { load A[k] dims [4: 1, 2: 1] writes [b] compute t vector if k { wait 0 for 1 } } }",
        )
        .unwrap()
    }

    #[track_caller]
    fn refused(change: impl FnOnce(&mut Trace), code: ErrorCode, path: &str) {
        let mut trace = base();
        change(&mut trace);
        let errors = check(&trace);
        let found: Vec<_> = errors.iter().map(|e| (e.code, e.path.as_str())).collect();
        assert_eq!(found, [(code, path)]);
        assert!(errors[0].hint.is_some());
        assert_eq!(ValidTrace::try_from(trace.clone()).unwrap_err(), errors[0]);
        assert!(validate(trace).is_err());
    }

    fn inner(trace: &mut Trace) -> &mut Vec<Stmt> {
        match &mut trace.body[0] {
            Stmt::For(f) => &mut f.body,
            _ => panic!(),
        }
    }

    fn dma(trace: &mut Trace) -> &mut Dma {
        match &mut inner(trace)[0] {
            Stmt::Dma(dma) => dma,
            _ => panic!(),
        }
    }

    fn nest(mut e: Expr, levels: usize) -> Expr {
        for _ in 0..levels {
            e = Expr::Unary(UnaryOp::Neg, Box::new(e));
        }
        e
    }

    #[test]
    fn every_rule_has_its_place() {
        use ErrorCode::*;
        assert_eq!(check(&base()), []);
        refused(|t| t.axes = 0, BadAxes, "axes");
        refused(|t| t.axes = 4, BadAxes, "axes");
        refused(
            |t| t.params.push(t.params[0].clone()),
            BadName,
            "params[1].name",
        );
        refused(
            |t| t.tensors.push(t.tensors[0].clone()),
            BadName,
            "tensors[1].name",
        );
        refused(|t| t.buffers[0].name.clear(), BadName, "buffers[0].name");
        refused(
            |t| t.tiles[0].name = "x".repeat(257),
            BadName,
            "tiles[0].name",
        );
        refused(
            |t| t.header.kernel = "x".repeat(5000),
            TooLarge,
            "header.kernel",
        );
        refused(
            |t| t.tensors[0].element_bits = 0,
            BadValue,
            "tensors[0].element_bits",
        );
        refused(
            |t| t.tensors[0].extents[0] = Expr::Pid(0),
            NotConstant,
            "tensors[0].extents[0]",
        );
        refused(
            |t| t.tensors[0].extents[0] = Expr::Var(VarId(0)),
            BadVariable,
            "tensors[0].extents[0]",
        );
        refused(
            |t| t.tensors[0].extents[0] = Expr::Param(ParamId(1)),
            UnknownParam,
            "tensors[0].extents[0]",
        );
        refused(
            |t| t.tensors[0].layout = Layout::Tiled(vec![1, 1]),
            BadValue,
            "tensors[0].layout",
        );
        refused(
            |t| t.tensors[0].layout = Layout::Tiled(vec![0]),
            BadValue,
            "tensors[0].layout[0]",
        );
        refused(
            |t| t.tiles[0].cycles = Some(1 << 53),
            BadValue,
            "tiles[0].cycles",
        );
        refused(
            |t| t.tiles[0].overlap = 1 << 53,
            BadValue,
            "tiles[0].overlap",
        );
        refused(
            |t| {
                t.tiles[0].admissions.push(Admission {
                    unit: "u".into(),
                    work: "w".into(),
                    capacity_per_cycle: f64::NAN,
                    admitted: 0,
                })
            },
            BadValue,
            "tiles[0].admissions[0].capacity_per_cycle",
        );
        refused(
            |t| t.tiles[0].unit = Some(Unit::Matmul),
            UnitMismatch,
            "body[0].for.body[1].compute.unit",
        );
        refused(
            |t| dma(t).tensor = TensorId(1),
            UnknownTensor,
            "body[0].for.body[0].dma.tensor",
        );
        refused(
            |t| dma(t).element_bits = 5000,
            BadValue,
            "body[0].for.body[0].dma.element_bits",
        );
        refused(
            |t| dma(t).dims[1].stride = Expr::Grid(2),
            UnknownAxis,
            "body[0].for.body[0].dma.dims[1].stride",
        );
        refused(
            |t| dma(t).offset = Expr::Var(VarId(1)),
            BadVariable,
            "body[0].for.body[0].dma.offset",
        );
        refused(
            |t| dma(t).offset = nest(Expr::Const(1), MAX_EXPR_DEPTH),
            TooDeep,
            "body[0].for.body[0].dma.offset",
        );
        refused(
            |t| dma(t).writes.push(BufferId(9)),
            UnknownBuffer,
            "body[0].for.body[0].dma.writes[1]",
        );
        refused(
            |t| dma(t).dims = vec![dma(t).dims[0].clone(); 9],
            TooLarge,
            "body[0].for.body[0].dma.dims",
        );
        refused(
            |t| {
                dma(t).indirect = Some(Indirect::Lines {
                    count: Expr::Const(1),
                    bytes: 0,
                })
            },
            BadValue,
            "body[0].for.body[0].dma.lines.bytes",
        );
        refused(
            |t| dma(t).indirect = Some(Indirect::Indices(vec![Expr::Const(1), Expr::Pid(2)])),
            UnknownAxis,
            "body[0].for.body[0].dma.indices[1]",
        );
        refused(
            |t| {
                if let Stmt::If(i) = &mut inner(t)[2]
                    && let Stmt::Wait(w) = &mut i.then[0]
                {
                    w.expected = Expr::Pid(7);
                }
            },
            UnknownAxis,
            "body[0].for.body[2].if.then[0].wait.expected",
        );
        refused(
            |t| {
                if let Stmt::For(f) = &mut t.body[0] {
                    f.step = Expr::Const(0);
                }
            },
            ZeroStep,
            "body[0].for.step",
        );
        refused(
            |t| {
                if let Stmt::For(f) = &mut t.body[0] {
                    f.var = VarId(1);
                }
            },
            BadVariable,
            "body[0].for.var",
        );
        refused(
            |t| t.dispatch.order = vec![0, 0],
            BadDispatch,
            "dispatch.order",
        );
        refused(
            |t| t.dispatch.order = vec![0],
            BadDispatch,
            "dispatch.order",
        );
        refused(
            |t| t.dispatch.key = Some(Expr::Var(VarId(0))),
            BadVariable,
            "dispatch.key",
        );
    }

    #[test]
    fn depth_is_bounded() {
        let wrap = |stmt: Stmt| {
            Stmt::If(If {
                cond: Expr::Const(1),
                then: vec![stmt],
                otherwise: Vec::new(),
            })
        };
        let wait = Stmt::Wait(Wait {
            semaphore: SemId(0),
            expected: Expr::Const(1),
        });
        let mut trace = base();
        let mut stmt = wait;
        for _ in 0..MAX_STMT_DEPTH {
            stmt = wrap(stmt);
        }
        trace.body = vec![stmt.clone()];
        assert_eq!(check(&trace), []);
        trace.body = vec![wrap(stmt)];
        assert_eq!(check(&trace)[0].code, ErrorCode::TooDeep);
    }

    #[test]
    fn errors_are_limited() {
        let mut trace = base();
        trace.body = vec![
            Stmt::Wait(Wait {
                semaphore: SemId(0),
                expected: Expr::Pid(9)
            });
            1000
        ];
        assert_eq!(check(&trace).len(), MAX_ERRORS);
    }
}
