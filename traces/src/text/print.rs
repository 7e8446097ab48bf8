//! Trace to text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{TEXT_MAGIC, TEXT_VERSION, unit_word};
use crate::model::*;
use crate::program::is_binding;
use crate::syntax::{FUNCTIONS, Function, INFIX, axis_word, is_ident, quote};
use crate::validate::ValidTrace;

/// The text form of a valid trace.
pub fn print(trace: &ValidTrace) -> String {
    let mut printer = Printer {
        trace,
        out: String::new(),
        loops: Vec::new(),
        params: BTreeMap::new(),
    };
    for (i, param) in trace.params.iter().enumerate() {
        printer.params.insert(&param.name, i as u32);
    }
    printer.trace();
    printer.out
}

struct Printer<'a> {
    trace: &'a Trace,
    out: String,
    loops: Vec<&'a str>,
    params: BTreeMap<&'a str, u32>,
}

fn name(name: &str) -> String {
    if is_ident(name) {
        name.to_owned()
    } else {
        quote(name)
    }
}

/// Writing to a string cannot fail, so the result is dropped here, once.
macro_rules! put {
    ($out:expr, $($arg:tt)*) => {{ let _ = write!($out, $($arg)*); }};
}

impl<'a> Printer<'a> {
    fn trace(&mut self) {
        let t = self.trace;
        put!(self.out, "{TEXT_MAGIC} {TEXT_VERSION}\n\n");
        self.header(&t.header);
        put!(self.out, "axes {}\n", t.axes);
        for param in &t.params {
            put!(self.out, "param {}", name(&param.name));
            if let Some(default) = param.default {
                put!(self.out, " = {default}");
            }
            self.out.push('\n');
        }
        for tensor in &t.tensors {
            let role = match tensor.role {
                Role::In => "in",
                Role::Out => "out",
                Role::InOut => "inout",
            };
            put!(
                self.out,
                "tensor {}: {} bit {role} [",
                name(&tensor.name),
                tensor.element_bits
            );
            self.exprs(&tensor.extents);
            self.out.push(']');
            if let Layout::Tiled(tile) = &tensor.layout {
                let tile: Vec<String> = tile.iter().map(u64::to_string).collect();
                put!(self.out, " tiled [{}]", tile.join(", "));
            }
            self.out.push('\n');
        }
        if t.bounds == Bounds::Off {
            self.out.push_str("bounds off\n");
        }
        for buffer in &t.buffers {
            put!(self.out, "buffer {} {}\n", name(&buffer.name), buffer.bytes);
        }
        for tile in &t.tiles {
            self.tile(tile);
        }
        if t.dispatch != Dispatch::default() {
            self.out.push_str("dispatch");
            if !t.dispatch.order.is_empty() {
                self.out.push_str(" order");
                for axis in &t.dispatch.order {
                    put!(self.out, " p{axis}");
                }
            }
            if let Some(key) = &t.dispatch.key {
                self.out.push_str(" key ");
                self.expr(key, 0);
            }
            self.out.push('\n');
        }
        self.resources(t.resources);
        self.out.push_str("\nbody {\n");
        self.block(&t.body, 1);
        self.out.push_str("}\n");
    }

    fn resources(&mut self, resources: Resources) {
        if resources == Resources::default() {
            return;
        }
        self.out.push_str("resources");
        for (word, value) in [
            ("registers", resources.registers),
            ("threads", resources.threads),
        ] {
            if value != 0 {
                put!(self.out, " {word} {value}");
            }
        }
        self.out.push('\n');
    }

    fn header(&mut self, h: &Header) {
        if !h.kernel.is_empty() {
            put!(self.out, "kernel {}\n", quote(&h.kernel));
        }
        if !h.producer.is_empty() || !h.producer_version.is_empty() {
            put!(self.out, "producer {}", quote(&h.producer));
            if !h.producer_version.is_empty() {
                put!(self.out, " version {}", quote(&h.producer_version));
            }
            self.out.push('\n');
        }
        if let Some(on) = &h.measured_on {
            self.out.push_str("measured");
            for (word, value) in [
                ("lanes", on.lanes),
                ("vector_bits", on.vector_bits),
                ("array_rows", on.array_rows),
                ("array_cols", on.array_cols),
            ] {
                if let Some(value) = value {
                    put!(self.out, " {word} {value}");
                }
            }
            if let Some(element) = &on.element {
                put!(self.out, " element {}", name(element));
            }
            self.out.push('\n');
        }
        for (key, value) in &h.origins {
            put!(self.out, "origin {} {}\n", quote(key), quote(value));
        }
    }

    fn tile(&mut self, tile: &Tile) {
        put!(self.out, "tile {}", name(&tile.name));
        if let Some(unit) = tile.unit {
            put!(self.out, " unit {}", unit_word(unit));
        }
        match tile.cycles {
            Some(cycles) => put!(self.out, " cycles {cycles}"),
            None => self.out.push_str(" cycles unknown"),
        }
        if tile.overlap != 0 {
            put!(self.out, " overlap {}", tile.overlap);
        }
        match &tile.source {
            CostSource::Measured => self.out.push_str(" source measured"),
            CostSource::Declared => self.out.push_str(" source declared"),
            CostSource::Analytic(formula) => put!(self.out, " source analytic {}", quote(formula)),
        }
        for a in &tile.admissions {
            put!(
                self.out,
                "\n  admit {} {} {} per ",
                name(&a.unit),
                name(&a.work),
                a.admitted
            );
            let capacity = a.capacity_per_cycle;
            if capacity.fract() == 0.0 && capacity < 9e15 {
                put!(self.out, "{}", capacity as u64);
            } else {
                put!(self.out, "{capacity:?}");
            }
        }
        self.out.push('\n');
    }

    fn indent(&mut self, depth: usize) {
        for _ in 0..depth {
            self.out.push_str("  ");
        }
    }

    fn block(&mut self, body: &'a [Stmt], depth: usize) {
        for (i, stmt) in body.iter().enumerate() {
            self.indent(depth);
            match stmt {
                Stmt::For(f) if is_binding(f) => {
                    put!(self.out, "let {} = ", name(&f.name));
                    self.expr(&f.lo, 0);
                    // The last of a block takes the rest of it, which needs no braces.
                    let last = i + 1 == body.len();
                    self.out.push_str(if last { "\n" } else { " {\n" });
                    self.loops.push(&f.name);
                    self.block(&f.body, if last { depth } else { depth + 1 });
                    self.loops.pop();
                    if !last {
                        self.indent(depth);
                        self.out.push_str("}\n");
                    }
                }
                _ => {
                    self.stmt(stmt, depth);
                    self.out.push('\n');
                }
            }
        }
    }

    fn stmt(&mut self, stmt: &'a Stmt, depth: usize) {
        match stmt {
            Stmt::For(f) => {
                put!(self.out, "for {} in ", name(&f.name));
                self.expr(&f.lo, 0);
                self.out.push_str("..");
                self.expr(&f.hi, 0);
                if f.step != Expr::Const(1) {
                    self.out.push_str(" step ");
                    self.expr(&f.step, 0);
                }
                self.out.push_str(" {\n");
                self.loops.push(&f.name);
                self.block(&f.body, depth + 1);
                self.loops.pop();
                self.indent(depth);
                self.out.push('}');
            }
            Stmt::If(i) => {
                self.out.push_str("if ");
                self.expr(&i.cond, 0);
                self.out.push_str(" {\n");
                self.block(&i.then, depth + 1);
                self.indent(depth);
                self.out.push('}');
                if !i.otherwise.is_empty() {
                    self.out.push_str(" else {\n");
                    self.block(&i.otherwise, depth + 1);
                    self.indent(depth);
                    self.out.push('}');
                }
            }
            Stmt::Dma(dma) => self.dma(dma),
            Stmt::Compute(c) => {
                let tile = self
                    .trace
                    .tiles
                    .get(c.tile.index())
                    .map_or("", |t| t.name.as_str());
                put!(self.out, "compute {} {}", name(tile), unit_word(c.unit));
                self.buffers("reads", &c.reads);
                self.buffers("writes", &c.writes);
            }
            Stmt::Wait(w) => {
                put!(self.out, "wait {} for ", w.semaphore.0);
                self.expr(&w.expected, 0);
            }
        }
    }

    fn dma(&mut self, dma: &Dma) {
        let word = match dma.direction {
            Direction::Load => "load",
            Direction::Store => "store",
        };
        let tensor = self.trace.tensors.get(dma.tensor.index());
        put!(
            self.out,
            "{word} {}[",
            name(tensor.map_or("", |t| t.name.as_str()))
        );
        self.expr(&dma.offset, 0);
        self.out.push(']');
        if !dma.dims.is_empty() {
            self.out.push_str(" dims [");
            for (i, dim) in dma.dims.iter().enumerate() {
                if i > 0 {
                    self.out.push_str(", ");
                }
                self.expr(&dim.extent, 0);
                self.out.push_str(": ");
                self.expr(&dim.stride, 0);
                if let Some(valid) = &dim.valid {
                    self.out.push_str(" valid ");
                    self.expr(valid, 0);
                }
            }
            self.out.push(']');
        }
        match &dma.indirect {
            None => {}
            Some(Indirect::Indices(indices)) => {
                self.out.push_str(" indices [");
                self.exprs(indices);
                self.out.push(']');
            }
            Some(Indirect::Lines { count, bytes }) => {
                self.out.push_str(" lines ");
                self.expr(count, 0);
                put!(self.out, " of {bytes} bytes");
            }
        }
        if tensor.map(|t| t.element_bits) != Some(dma.element_bits) {
            put!(self.out, " bits {}", dma.element_bits);
        }
        if let Some(semaphore) = dma.semaphore {
            put!(self.out, " async {}", semaphore.0);
        }
        self.buffers("reads", &dma.reads);
        self.buffers("writes", &dma.writes);
    }

    fn buffers(&mut self, word: &str, ids: &[BufferId]) {
        if ids.is_empty() {
            return;
        }
        let names: Vec<String> = ids
            .iter()
            .map(|id| {
                name(
                    self.trace
                        .buffers
                        .get(id.index())
                        .map_or("", |b| b.name.as_str()),
                )
            })
            .collect();
        put!(self.out, " {word} [{}]", names.join(", "));
    }

    fn exprs(&mut self, exprs: &[Expr]) {
        for (i, e) in exprs.iter().enumerate() {
            if i > 0 {
                self.out.push_str(", ");
            }
            self.expr(e, 0);
        }
    }

    /// The shortest reference that means the same when it is read back.
    fn reference(&mut self, text: &str, is_it: bool, word: &str, id: u32) {
        if !is_it {
            put!(self.out, "{word}({id})");
        } else if is_ident(text) && axis_word(text).is_none() {
            self.out.push_str(text);
        } else {
            let quoted = quote(text);
            self.out.push_str(&quoted);
        }
    }

    /// Prints an operand that stands where operators of at least `least` need no parentheses.
    fn expr(&mut self, e: &Expr, least: u8) {
        match e {
            Expr::Const(c) => put!(self.out, "{c}"),
            Expr::Pid(axis) => put!(self.out, "p{axis}"),
            Expr::Grid(axis) => put!(self.out, "g{axis}"),
            Expr::Param(id) => {
                let trace = self.trace;
                let text = trace.params.get(id.index()).map_or("", |p| p.name.as_str());
                let is_it =
                    !self.loops.contains(&text) && self.params.get(text).copied() == Some(id.0);
                self.reference(text, is_it, "param", id.0);
            }
            Expr::Var(id) => {
                let text = self.loops.get(id.index()).copied().unwrap_or("");
                let is_it = self.loops.iter().rposition(|v| *v == text) == Some(id.index());
                self.reference(text, is_it, "var", id.0);
            }
            Expr::Unary(op, a) => {
                let sign = match op {
                    UnaryOp::Neg => "-",
                    UnaryOp::Not => "!",
                    UnaryOp::BitNot => "~",
                    _ => {
                        self.call(function_of_unary(*op), &[a]);
                        return;
                    }
                };
                self.out.push_str(sign);
                // `-5` is a literal, so the negation of a literal keeps its parentheses.
                let bare = matches!(
                    **a,
                    Expr::Pid(_) | Expr::Grid(_) | Expr::Param(_) | Expr::Var(_) | Expr::Select(..)
                );
                if bare {
                    self.expr(a, 0)
                } else {
                    self.parens(a)
                }
            }
            Expr::Binary(op, a, b) => {
                let Some((sign, _, precedence)) = INFIX.iter().find(|(_, o, _)| o == op) else {
                    self.call(function_of_binary(*op), &[a, b]);
                    return;
                };
                if *precedence < least {
                    self.out.push('(');
                }
                // Only + - * / % mix without parentheses; few people know the rest by heart.
                let (left, right) = if *precedence >= 9 {
                    (*precedence, precedence + 1)
                } else {
                    (u8::MAX, u8::MAX)
                };
                self.expr(a, left);
                put!(self.out, " {sign} ");
                self.expr(b, right);
                if *precedence < least {
                    self.out.push(')');
                }
            }
            Expr::Select(c, a, b) => self.call("select", &[c, a, b]),
        }
    }

    fn parens(&mut self, e: &Expr) {
        self.out.push('(');
        self.expr(e, 0);
        self.out.push(')');
    }

    fn call(&mut self, function: &str, args: &[&Expr]) {
        self.out.push_str(function);
        self.out.push('(');
        for (i, arg) in args.iter().enumerate() {
            if i > 0 {
                self.out.push_str(", ");
            }
            self.expr(arg, 0);
        }
        self.out.push(')');
    }
}

fn function_of_unary(op: UnaryOp) -> &'static str {
    let found = FUNCTIONS
        .iter()
        .find(|(_, f)| matches!(f, Function::Unary(o) if *o == op));
    found.map_or("?", |(name, _)| name)
}

fn function_of_binary(op: BinaryOp) -> &'static str {
    let found = FUNCTIONS
        .iter()
        .find(|(_, f)| matches!(f, Function::Binary(o) if *o == op));
    found.map_or("?", |(name, _)| name)
}
