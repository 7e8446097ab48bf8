//! The readable form of a trace; `GRAMMAR.md` beside this crate describes it.
//!
//! For every valid trace, parsing what [`print`] writes gives the trace back, exactly. Comments are
//! for people: they do not survive.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::error::{ErrorCode, TextSpan, TraceError, closest};
use crate::limits::*;
use crate::model::*;
use crate::syntax::{
    ExprParser, FUNCTIONS, Function, INFIX, Lexer, Names, Result, Tok, axis_word, is_ident, quote,
};
use crate::validate::{ValidTrace, check};

/// The format version that is written and read.
pub const TEXT_VERSION: u64 = 1;

/// The first words of every text.
pub const TEXT_MAGIC: &str = "tilesim trace";

/// Reads the text form without validating it.
///
/// # Errors
///
/// The first mistake, with its line and column.
pub fn parse(text: &str) -> Result<Trace> {
    parse_with_spans(text).map(|(trace, _)| trace)
}

/// Reads and validates the text form. Errors of validation point at the statement they are about.
///
/// # Errors
///
/// The first mistake, with its line and column where there is one.
pub fn parse_valid(text: &str) -> Result<ValidTrace> {
    let (trace, spans) = parse_with_spans(text)?;
    let Some(error) = check(&trace).into_iter().next() else {
        return ValidTrace::try_from(trace);
    };
    let mut paths = Vec::new();
    all_paths(&trace.body, "body", &mut paths);
    // The innermost statement whose path leads to the error: depth first, the last that fits.
    let leads = |path: &str| {
        error
            .path
            .strip_prefix(path)
            .is_some_and(|r| r.is_empty() || r.starts_with(['.', '[']))
    };
    let at = paths
        .iter()
        .zip(&spans)
        .filter(|(path, _)| leads(path))
        .map(|(_, span)| *span)
        .last();
    Err(match at {
        Some(span) => error.at(span),
        None => error,
    })
}

fn all_paths(body: &[Stmt], prefix: &str, out: &mut Vec<String>) {
    for (i, stmt) in body.iter().enumerate() {
        out.push(format!("{prefix}[{i}]"));
        match stmt {
            Stmt::For(f) => all_paths(&f.body, &format!("{prefix}[{i}].for.body"), out),
            Stmt::If(c) => {
                all_paths(&c.then, &format!("{prefix}[{i}].if.then"), out);
                all_paths(&c.otherwise, &format!("{prefix}[{i}].if.otherwise"), out);
            }
            _ => {}
        }
    }
}

fn parse_with_spans(text: &str) -> Result<(Trace, Vec<TextSpan>)> {
    if text.len() > MAX_ENCODED_BYTES {
        return Err(TraceError::new(
            ErrorCode::TooLarge,
            "",
            format!("a text of {} bytes", text.len()),
        )
        .with_hint(format!(
            "use at most {MAX_ENCODED_BYTES}, or the binary container"
        )));
    }
    let mut lexer = Lexer::new(text)?;
    lexer.expect_word("tilesim")?;
    lexer.expect_word("trace")?;
    let at = lexer.span();
    match lexer.next()? {
        Tok::Int(TEXT_VERSION) => {}
        Tok::Int(version) => {
            return Err(TraceError::new(
                ErrorCode::Version,
                "",
                format!("text format version {version}"),
            )
            .with_hint(format!("this build reads version {TEXT_VERSION}"))
            .at(at));
        }
        _ => {
            return Err(
                TraceError::new(ErrorCode::Syntax, "", "expected the format version")
                    .with_hint("a trace starts with `tilesim trace 1`")
                    .at(at),
            );
        }
    }
    let mut parser = Parser {
        lexer,
        names: Scope::default(),
        tensors: Vec::new(),
        tensor_ids: BTreeMap::new(),
        buffer_ids: BTreeMap::new(),
        tile_ids: BTreeMap::new(),
        spans: Vec::new(),
        nodes: 0,
    };
    let trace = parser.trace()?;
    Ok((trace, parser.spans))
}

/// Names that expressions may use.
#[derive(Default)]
struct Scope {
    loops: Vec<String>,
    params: BTreeMap<String, u32>,
}

impl Names for Scope {
    fn lookup(&self, name: &str) -> Option<Expr> {
        match self.loops.iter().rposition(|v| v == name) {
            Some(depth) => Some(Expr::Var(VarId(depth as u32))),
            None => self.params.get(name).map(|id| Expr::Param(ParamId(*id))),
        }
    }

    fn known(&self) -> Vec<&str> {
        self.loops
            .iter()
            .chain(self.params.keys())
            .map(String::as_str)
            .collect()
    }
}

struct Parser<'a> {
    lexer: Lexer<'a>,
    names: Scope,
    tensors: Vec<Tensor>,
    tensor_ids: BTreeMap<String, u32>,
    buffer_ids: BTreeMap<String, u32>,
    tile_ids: BTreeMap<String, u32>,
    /// Where each statement starts, depth first.
    spans: Vec<TextSpan>,
    nodes: usize,
}

const DECLARATIONS: &[&str] = &[
    "kernel", "producer", "measured", "origin", "axes", "param", "tensor", "bounds", "buffer",
    "tile", "dispatch", "body",
];

const STATEMENTS: &[&str] = &["for", "if", "load", "store", "compute", "wait"];

fn words(list: &[&str]) -> String {
    list.iter()
        .map(|w| format!("`{w}`"))
        .collect::<Vec<_>>()
        .join(", ")
}

impl Parser<'_> {
    fn trace(&mut self) -> Result<Trace> {
        let mut header = Header::default();
        let mut axes = None;
        let mut params = Vec::new();
        let mut bounds = None;
        let mut buffers = Vec::new();
        let mut tiles = Vec::new();
        let mut dispatch = None;
        let mut seen: Vec<&str> = Vec::new();
        let body = loop {
            let at = self.lexer.span();
            let word = match self.lexer.peek() {
                Tok::Ident(word) if DECLARATIONS.contains(word) => *word,
                Tok::Ident(word) => {
                    let hint = match closest(word, DECLARATIONS.iter().copied()) {
                        Some(near) => format!("did you mean `{near}`"),
                        None => format!("declarations are {}", words(DECLARATIONS)),
                    };
                    return Err(self.lexer.unexpected("a declaration").with_hint(hint));
                }
                Tok::End => {
                    return Err(self
                        .lexer
                        .unexpected("`body`")
                        .with_hint("a trace ends with its body"));
                }
                _ => return Err(self.lexer.unexpected("a declaration")),
            };
            self.lexer.next()?;
            let once = [
                "kernel", "producer", "measured", "axes", "bounds", "dispatch",
            ];
            if once.contains(&word) {
                if seen.contains(&word) {
                    return Err(TraceError::new(
                        ErrorCode::Syntax,
                        "",
                        format!("`{word}` given twice"),
                    )
                    .with_hint("keep one of them")
                    .at(at));
                }
                seen.push(word);
            }
            match word {
                "kernel" => header.kernel = self.string()?,
                "producer" => {
                    header.producer = self.string()?;
                    if self.lexer.eat_word("version")? {
                        header.producer_version = self.string()?;
                    }
                }
                "measured" => header.measured_on = Some(self.measured()?),
                "origin" => {
                    self.room("origins", header.origins.len(), MAX_ORIGINS)?;
                    header.origins.push((self.string()?, self.string()?));
                }
                "axes" => axes = Some(self.int(3)? as u8),
                "param" => {
                    self.room("parameters", params.len(), MAX_PARAMS)?;
                    params.push(self.param(params.len())?);
                }
                "tensor" => {
                    self.room("tensors", self.tensors.len(), MAX_TENSORS)?;
                    let tensor = self.tensor()?;
                    self.tensors.push(tensor);
                }
                "bounds" => {
                    bounds = Some(if self.lexer.eat_word("off")? {
                        Bounds::Off
                    } else if self.lexer.eat_word("strict")? {
                        Bounds::Strict
                    } else {
                        return Err(self.lexer.unexpected("`strict` or `off`"));
                    });
                }
                "buffer" => {
                    self.room("buffers", buffers.len(), MAX_BUFFERS)?;
                    let name = self.new_name("buffer", buffers.len())?;
                    buffers.push(Buffer {
                        name,
                        bytes: self.int(u64::MAX)?,
                    });
                }
                "tile" => {
                    self.room("tiles", tiles.len(), MAX_TILES)?;
                    tiles.push(self.tile(tiles.len())?);
                }
                "dispatch" => dispatch = Some(self.dispatch()?),
                _ => break self.block(0)?,
            }
        };
        if *self.lexer.peek() != Tok::End {
            return Err(self
                .lexer
                .unexpected("the end of the text")
                .with_hint("the body comes last"));
        }
        let Some(axes) = axes else {
            return Err(
                TraceError::new(ErrorCode::MissingKey, "axes", "no number of axes")
                    .with_hint("declare `axes 1`, `axes 2` or `axes 3`"),
            );
        };
        Ok(Trace {
            header,
            axes,
            params,
            tensors: std::mem::take(&mut self.tensors),
            bounds: bounds.unwrap_or_default(),
            buffers,
            tiles,
            body,
            dispatch: dispatch.unwrap_or_default(),
        })
    }

    fn room(&self, what: &str, have: usize, max: usize) -> Result<()> {
        if have < max {
            return Ok(());
        }
        Err(
            TraceError::new(ErrorCode::TooLarge, "", format!("more than {max} {what}"))
                .with_hint(format!("use at most {max}"))
                .at(self.lexer.last),
        )
    }

    fn string(&mut self) -> Result<String> {
        if !matches!(self.lexer.peek(), Tok::Quoted(_)) {
            return Err(self.lexer.unexpected("a quoted string"));
        }
        match self.lexer.next()? {
            Tok::Quoted(text) => Ok(text),
            _ => Ok(String::new()),
        }
    }

    fn name(&mut self) -> Result<String> {
        if !matches!(self.lexer.peek(), Tok::Ident(_) | Tok::Quoted(_)) {
            return Err(self.lexer.unexpected("a name"));
        }
        match self.lexer.next()? {
            Tok::Ident(name) => Ok(name.to_owned()),
            Tok::Quoted(name) => Ok(name),
            _ => Ok(String::new()),
        }
    }

    fn new_name(&mut self, what: &str, id: usize) -> Result<String> {
        let name = self.name()?;
        let ids = match what {
            "parameter" => &mut self.names.params,
            "tensor" => &mut self.tensor_ids,
            "buffer" => &mut self.buffer_ids,
            _ => &mut self.tile_ids,
        };
        if ids.insert(name.clone(), id as u32).is_some() {
            let message = format!("{what} {name:?} is declared twice");
            return Err(TraceError::new(ErrorCode::BadName, "", message)
                .with_hint("give each its own name")
                .at(self.lexer.last));
        }
        Ok(name)
    }

    fn int(&mut self, max: u64) -> Result<u64> {
        let Tok::Int(n) = *self.lexer.peek() else {
            return Err(self.lexer.unexpected("a whole number"));
        };
        if n > max {
            return Err(
                TraceError::new(ErrorCode::BadValue, "", format!("{n} is too large"))
                    .with_hint(format!("use at most {max}"))
                    .at(self.lexer.span()),
            );
        }
        self.lexer.next()?;
        Ok(n)
    }

    fn id(&mut self) -> Result<u32> {
        Ok(self.int(u32::MAX.into())? as u32)
    }

    fn signed(&mut self) -> Result<i64> {
        let at = self.lexer.span();
        let negative = self.lexer.eat("-")?;
        let n = self.int(1 << 63)?;
        let value = if negative {
            0i64.checked_sub_unsigned(n)
        } else {
            i64::try_from(n).ok()
        };
        value.ok_or_else(|| {
            TraceError::new(ErrorCode::BadValue, "", "a number outside its range")
                .with_hint("values are signed 64-bit integers")
                .at(at)
        })
    }

    fn float(&mut self) -> Result<f64> {
        let value = match *self.lexer.peek() {
            Tok::Int(n) => n as f64,
            Tok::Float(x) => x,
            _ => return Err(self.lexer.unexpected("a number")),
        };
        self.lexer.next()?;
        Ok(value)
    }

    fn expr(&mut self) -> Result<Expr> {
        let mut parser = ExprParser::new(&mut self.lexer, &self.names);
        let expr = parser.parse()?;
        self.nodes += parser.nodes();
        if self.nodes > MAX_TOTAL_EXPR_NODES {
            let message = format!("more than {MAX_TOTAL_EXPR_NODES} expression nodes in one trace");
            return Err(TraceError::new(ErrorCode::TooLarge, "", message)
                .with_hint("use loops for what repeats")
                .at(self.lexer.last));
        }
        Ok(expr)
    }

    /// `[item, item]`, at most `max`; a comma may follow the last.
    fn list<T>(
        &mut self,
        what: &str,
        max: usize,
        mut item: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.lexer.expect("[")?;
        let mut out = Vec::new();
        while !self.lexer.is("]") {
            self.room(what, out.len(), max)?;
            out.push(item(self)?);
            if !self.lexer.eat(",")? && !self.lexer.is("]") {
                return Err(self.lexer.unexpected("`,` or `]`"));
            }
        }
        self.lexer.expect("]")?;
        Ok(out)
    }

    fn measured(&mut self) -> Result<MeasuredOn> {
        let mut on = MeasuredOn::default();
        loop {
            if self.lexer.eat_word("lanes")? {
                on.lanes = Some(self.id()?);
            } else if self.lexer.eat_word("vector_bits")? {
                on.vector_bits = Some(self.id()?);
            } else if self.lexer.eat_word("array_rows")? {
                on.array_rows = Some(self.id()?);
            } else if self.lexer.eat_word("array_cols")? {
                on.array_cols = Some(self.id()?);
            } else if self.lexer.eat_word("element")? {
                on.element = Some(self.name()?);
            } else {
                return Ok(on);
            }
        }
    }

    fn param(&mut self, id: usize) -> Result<Param> {
        let name = self.new_name("parameter", id)?;
        let default = if self.lexer.eat("=")? {
            Some(self.signed()?)
        } else {
            None
        };
        Ok(Param { name, default })
    }

    fn tensor(&mut self) -> Result<Tensor> {
        let name = self.new_name("tensor", self.tensors.len())?;
        self.lexer.expect(":")?;
        let element_bits = self.id()?;
        self.lexer.expect_word("bit")?;
        let role = if self.lexer.eat_word("in")? {
            Role::In
        } else if self.lexer.eat_word("out")? {
            Role::Out
        } else if self.lexer.eat_word("inout")? {
            Role::InOut
        } else {
            return Err(self.lexer.unexpected("`in`, `out` or `inout`"));
        };
        let extents = self.list("tensor axes", MAX_TENSOR_AXES, Self::expr)?;
        let layout = if self.lexer.eat_word("tiled")? {
            Layout::Tiled(self.list("tensor axes", MAX_TENSOR_AXES, |p| p.int(u64::MAX))?)
        } else {
            Layout::RowMajor
        };
        Ok(Tensor {
            name,
            element_bits,
            role,
            extents,
            layout,
        })
    }

    fn unit(&mut self) -> Result<Unit> {
        for (unit, word) in UNITS {
            if self.lexer.eat_word(word)? {
                return Ok(*unit);
            }
        }
        Err(self
            .lexer
            .unexpected("`vector`, `matmul`, `preload` or `cross_lane`"))
    }

    fn tile(&mut self, id: usize) -> Result<Tile> {
        let name = self.new_name("tile", id)?;
        let unit = if self.lexer.eat_word("unit")? {
            Some(self.unit()?)
        } else {
            None
        };
        self.lexer.expect_word("cycles")?;
        let cycles = if self.lexer.eat_word("unknown")? {
            None
        } else {
            Some(self.int(u64::MAX)?)
        };
        let overlap = if self.lexer.eat_word("overlap")? {
            self.int(u64::MAX)?
        } else {
            0
        };
        let source = if self.lexer.eat_word("measured")? {
            CostSource::Measured
        } else if self.lexer.eat_word("analytic")? {
            CostSource::Analytic(self.string()?)
        } else {
            self.lexer.eat_word("declared")?;
            CostSource::Declared
        };
        let mut admissions = Vec::new();
        while self.lexer.eat_word("admit")? {
            self.room("admissions", admissions.len(), MAX_ADMISSIONS)?;
            let unit = self.name()?;
            let work = self.name()?;
            let admitted = self.int(u64::MAX)?;
            self.lexer.expect_word("per")?;
            let capacity_per_cycle = self.float()?;
            admissions.push(Admission {
                unit,
                work,
                capacity_per_cycle,
                admitted,
            });
        }
        Ok(Tile {
            name,
            unit,
            cycles,
            overlap,
            source,
            admissions,
        })
    }

    fn dispatch(&mut self) -> Result<Dispatch> {
        let mut dispatch = Dispatch::default();
        if self.lexer.eat_word("order")? {
            for _ in 0..3 {
                let axis = match self.lexer.peek() {
                    Tok::Ident("p0") => 0,
                    Tok::Ident("p1") => 1,
                    Tok::Ident("p2") => 2,
                    _ => break,
                };
                self.lexer.next()?;
                dispatch.order.push(axis);
            }
            if dispatch.order.is_empty() {
                return Err(self.lexer.unexpected("`p0`, `p1` or `p2`"));
            }
        }
        if self.lexer.eat_word("key")? {
            dispatch.key = Some(self.expr()?);
        }
        Ok(dispatch)
    }

    fn block(&mut self, depth: usize) -> Result<Vec<Stmt>> {
        self.lexer.expect("{")?;
        let open = self.lexer.last;
        if depth > MAX_STMT_DEPTH {
            return Err(
                TraceError::new(ErrorCode::TooDeep, "", "statements nested too deeply")
                    .with_hint(format!(
                        "nest at most {MAX_LOOP_DEPTH} loops and {MAX_STMT_DEPTH} statements"
                    ))
                    .at(open),
            );
        }
        let mut out = Vec::new();
        while !self.lexer.is("}") {
            if *self.lexer.peek() == Tok::End {
                return Err(
                    TraceError::new(ErrorCode::Syntax, "", "a block without an end")
                        .with_hint("close it with }")
                        .at(open),
                );
            }
            self.room("statements", self.spans.len(), MAX_STMTS)?;
            self.spans.push(self.lexer.span());
            out.push(self.stmt(depth)?);
        }
        self.lexer.expect("}")?;
        Ok(out)
    }

    fn stmt(&mut self, depth: usize) -> Result<Stmt> {
        let word = match self.lexer.peek() {
            Tok::Ident(word) if STATEMENTS.contains(word) => *word,
            Tok::Ident(word) => {
                let hint = match closest(word, STATEMENTS.iter().copied()) {
                    Some(near) => format!("did you mean `{near}`"),
                    None => format!("statements are {}", words(STATEMENTS)),
                };
                return Err(self.lexer.unexpected("a statement").with_hint(hint));
            }
            _ => return Err(self.lexer.unexpected("a statement or `}`")),
        };
        self.lexer.next()?;
        Ok(match word {
            "for" => {
                let name = self.name()?;
                self.lexer.expect_word("in")?;
                let lo = self.expr()?;
                self.lexer.expect("..")?;
                let hi = self.expr()?;
                let step = if self.lexer.eat_word("step")? {
                    self.expr()?
                } else {
                    Expr::Const(1)
                };
                let var = VarId(self.names.loops.len() as u32);
                self.names.loops.push(name.clone());
                let body = self.block(depth + 1)?;
                self.names.loops.pop();
                Stmt::For(For {
                    var,
                    name,
                    lo,
                    hi,
                    step,
                    body,
                })
            }
            "if" => {
                let cond = self.expr()?;
                let then = self.block(depth + 1)?;
                let otherwise = if self.lexer.eat_word("else")? {
                    self.block(depth + 1)?
                } else {
                    Vec::new()
                };
                Stmt::If(If {
                    cond,
                    then,
                    otherwise,
                })
            }
            "load" => Stmt::Dma(self.dma(Direction::Load)?),
            "store" => Stmt::Dma(self.dma(Direction::Store)?),
            "compute" => {
                let tile = TileId(self.known("tile")?);
                let unit = self.unit()?;
                let (reads, writes) = self.reads_writes()?;
                Stmt::Compute(Compute {
                    tile,
                    unit,
                    reads,
                    writes,
                })
            }
            _ => {
                let semaphore = SemId(self.id()?);
                self.lexer.expect_word("for")?;
                Stmt::Wait(Wait {
                    semaphore,
                    expected: self.expr()?,
                })
            }
        })
    }

    /// The id of a declared name.
    fn known(&mut self, what: &str) -> Result<u32> {
        let name = self.name()?;
        let (ids, code) = match what {
            "tensor" => (&self.tensor_ids, ErrorCode::UnknownTensor),
            "buffer" => (&self.buffer_ids, ErrorCode::UnknownBuffer),
            _ => (&self.tile_ids, ErrorCode::UnknownTile),
        };
        ids.get(&name).copied().ok_or_else(|| {
            let hint = match closest(&name, ids.keys().map(String::as_str)) {
                Some(near) => format!("did you mean {near:?}"),
                None => format!("declare it before the body: `{what} ...`"),
            };
            let short: String = name.chars().take(64).collect();
            TraceError::new(code, "", format!("no {what} {short:?}"))
                .with_hint(hint)
                .at(self.lexer.last)
        })
    }

    fn reads_writes(&mut self) -> Result<(Vec<BufferId>, Vec<BufferId>)> {
        let buffer = |p: &mut Self| p.known("buffer").map(BufferId);
        let mut lists = (Vec::new(), Vec::new());
        if self.lexer.eat_word("reads")? {
            lists.0 = self.list("buffers of an op", MAX_OP_BUFFERS, buffer)?;
        }
        if self.lexer.eat_word("writes")? {
            lists.1 = self.list("buffers of an op", MAX_OP_BUFFERS, buffer)?;
        }
        Ok(lists)
    }

    fn dma(&mut self, direction: Direction) -> Result<Dma> {
        let tensor = TensorId(self.known("tensor")?);
        self.lexer.expect("[")?;
        let offset = self.expr()?;
        self.lexer.expect("]")?;
        let dims = if self.lexer.eat_word("dims")? {
            self.list("dims", MAX_DIMS, |p| {
                let extent = p.expr()?;
                p.lexer.expect(":")?;
                let stride = p.expr()?;
                let valid = if p.lexer.eat_word("valid")? {
                    Some(p.expr()?)
                } else {
                    None
                };
                Ok(Dim {
                    extent,
                    stride,
                    valid,
                })
            })?
        } else {
            Vec::new()
        };
        let indirect = if self.lexer.eat_word("indices")? {
            Some(Indirect::Indices(self.list(
                "indices",
                MAX_INDICES,
                Self::expr,
            )?))
        } else if self.lexer.eat_word("lines")? {
            let count = self.expr()?;
            self.lexer.expect_word("of")?;
            let bytes = self.id()?;
            self.lexer.expect_word("bytes")?;
            Some(Indirect::Lines { count, bytes })
        } else {
            None
        };
        let element_bits = if self.lexer.eat_word("bits")? {
            self.id()?
        } else {
            self.tensors
                .get(tensor.index())
                .map_or(0, |t| t.element_bits)
        };
        let semaphore = if self.lexer.eat_word("async")? {
            Some(SemId(self.id()?))
        } else {
            None
        };
        let (reads, writes) = self.reads_writes()?;
        Ok(Dma {
            direction,
            tensor,
            offset,
            dims,
            element_bits,
            semaphore,
            reads,
            writes,
            indirect,
        })
    }
}

const UNITS: &[(Unit, &str)] = &[
    (Unit::Vector, "vector"),
    (Unit::Matmul, "matmul"),
    (Unit::Preload, "preload"),
    (Unit::CrossLane, "cross_lane"),
];

/// The word of a unit in the text form.
pub fn unit_word(unit: Unit) -> &'static str {
    match unit {
        Unit::Vector => "vector",
        Unit::Matmul => "matmul",
        Unit::Preload => "preload",
        Unit::CrossLane => "cross_lane",
    }
}

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
        self.out.push_str("\nbody {\n");
        self.block(&t.body, 1);
        self.out.push_str("}\n");
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
            CostSource::Measured => self.out.push_str(" measured"),
            CostSource::Declared => self.out.push_str(" declared"),
            CostSource::Analytic(formula) => put!(self.out, " analytic {}", quote(formula)),
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
        for stmt in body {
            self.indent(depth);
            self.stmt(stmt, depth);
            self.out.push('\n');
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::generate::{self, Choices};

    fn round_trip(trace: Trace) {
        let trace = ValidTrace::try_from(trace).unwrap();
        let text = print(&trace);
        let back = parse(&text).unwrap_or_else(|e| panic!("{}\n{text}", e.render(&text)));
        assert_eq!(back, *trace, "{text}");
        let back = ValidTrace::try_from(back).unwrap();
        assert_eq!(print(&back), text);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

        #[test]
        fn printed_traces_read_back(bytes in proptest::collection::vec(any::<u8>(), 0..800)) {
            round_trip(generate::trace(&mut Choices::new(&bytes)));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,200}") {
            let _ = parse(&text);
            let _ = parse(&format!("tilesim trace 1 axes 1 body {{ {text} }}"));
        }
    }

    fn wait(expected: Expr) -> Trace {
        let mut trace = parse("tilesim trace 1 axes 1 param K body { wait 0 for 1 }").unwrap();
        trace.body = vec![Stmt::Wait(Wait {
            semaphore: SemId(0),
            expected,
        })];
        trace
    }

    #[test]
    fn deep_expressions_read_back() {
        let k = || Expr::Param(ParamId(0));
        let ops = [BinaryOp::Sub, BinaryOp::Shl, BinaryOp::CDiv, BinaryOp::Or];
        for op in ops {
            for left in [true, false] {
                let mut e = k();
                for _ in 1..MAX_EXPR_DEPTH {
                    e = if left {
                        Expr::Binary(op, Box::new(e), Box::new(k()))
                    } else {
                        Expr::Binary(op, Box::new(k()), Box::new(e))
                    };
                }
                round_trip(wait(e));
            }
        }
        let mut e = k();
        for i in 1..MAX_EXPR_DEPTH {
            e = match i % 3 {
                0 => Expr::Unary(UnaryOp::Neg, Box::new(e)),
                1 => Expr::Unary(UnaryOp::TruncI32, Box::new(e)),
                _ => Expr::Select(Box::new(k()), Box::new(k()), Box::new(e)),
            };
        }
        round_trip(wait(e));
    }

    #[test]
    fn hostile_nesting_is_refused() {
        for (open, close) in [
            ("(", ")"),
            ("-", ""),
            ("!", ""),
            ("min(1,", ")"),
            ("1+(", ")"),
            ("1?", ":1"),
            ("~(", ")"),
        ] {
            let text = format!(
                "tilesim trace 1 axes 1 body {{ wait 0 for {}1{} }}",
                open.repeat(100_000),
                close.repeat(100_000)
            );
            assert_eq!(parse(&text).unwrap_err().code, ErrorCode::TooDeep, "{open}");
        }
        let text = format!(
            "tilesim trace 1 axes 1 body {{ wait 0 for 1{} }}",
            "+1".repeat(100_000)
        );
        assert_eq!(parse(&text).unwrap_err().code, ErrorCode::TooDeep);
        for head in ["if 1 {", "for k in 0..1 {"] {
            let text = format!("tilesim trace 1 axes 1 body {{ {}", head.repeat(100_000));
            assert_eq!(parse(&text).unwrap_err().code, ErrorCode::TooDeep);
        }
    }

    fn expect_error(text: &str, code: ErrorCode, line: u32, column: u32) -> TraceError {
        let e = parse_valid(text).unwrap_err();
        let at = e.at.unwrap_or_else(|| panic!("no place: {e}"));
        assert_eq!(
            (e.code, at.line, at.column),
            (code, line, column),
            "{}",
            e.render(text)
        );
        e
    }

    #[test]
    fn errors_point_at_the_mistake() {
        let head = "tilesim trace 1\naxes 1\ntensor A: 32 bit in [64]\nbuffer acc 64\nbody {\n";
        let e = expect_error(
            &format!("{head}  load B[0]\n}}"),
            ErrorCode::UnknownTensor,
            6,
            8,
        );
        assert!(e.render(head).contains("no tensor \"B\""));
        let e = expect_error(
            &format!("{head}  load A[0] writes [ac]\n}}"),
            ErrorCode::UnknownBuffer,
            6,
            21,
        );
        assert_eq!(e.hint.as_deref(), Some("did you mean \"acc\""));
        expect_error(
            &format!("{head}  load A[p0 + q]\n}}"),
            ErrorCode::UnknownName,
            6,
            15,
        );
        expect_error(
            &format!("{head}  load A[p1]\n}}"),
            ErrorCode::UnknownAxis,
            6,
            3,
        );
        expect_error(
            &format!("{head}  for k in 0..4 step 0 {{\n wait 0 for 1 }}\n}}"),
            ErrorCode::ZeroStep,
            6,
            3,
        );
        expect_error(
            &format!("{head}  for k in 0..4 {{\n wait 0 for p2 }}\n}}"),
            ErrorCode::UnknownAxis,
            7,
            2,
        );
        expect_error(&format!("{head}  lode A[0]\n}}"), ErrorCode::Syntax, 6, 3);
        expect_error(&format!("{head}  load A[0"), ErrorCode::Syntax, 6, 11);
        expect_error(&format!("{head}  load A[0] // x"), ErrorCode::Syntax, 6, 13);
        expect_error(head, ErrorCode::Syntax, 5, 6);
        expect_error("tilesim trace 2", ErrorCode::Version, 1, 15);
        expect_error("tilesim trace 1\naxes 1\naxes 1", ErrorCode::Syntax, 3, 1);
        expect_error(
            "tilesim trace 1\nbuffer a 1\nbuffer a 2\n",
            ErrorCode::BadName,
            3,
            8,
        );
        expect_error("tilesim trace 1\nkernel \"x\n", ErrorCode::Syntax, 2, 8);
    }

    #[test]
    fn sugar() {
        let one = |text: &str| {
            let trace = parse(&format!(
                "tilesim trace 1 axes 2 param K # a comment\nbody {{ for i in 0..2 {{ wait 0 for {text} }} }}"
            ));
            let Stmt::For(f) = &trace.unwrap().body[0] else {
                panic!()
            };
            let Stmt::Wait(w) = &f.body[0] else { panic!() };
            w.expected.clone()
        };
        struct Zero;
        impl crate::expr::Env for Zero {
            fn pid(&self, axis: u8) -> i64 {
                7 + i64::from(axis)
            }
            fn grid(&self, _: u8) -> i64 {
                3
            }
            fn param(&self, _: usize) -> i64 {
                100
            }
            fn var(&self, _: usize) -> i64 {
                -5
            }
        }
        let eval = |text: &str| crate::expr::eval(&one(text), &Zero);
        for (text, value) in [
            ("1 + 2 * 3 - 4", 3),
            ("(1 + 2) * 3", 9),
            ("10 - 3 - 2", 5),
            ("1 << 2 + 1", 8),
            ("7 & 3 == 3", 1),
            ("p0 * g0 + K", 121),
            ("p1", 8),
            ("-i", 5),
            ("i / 2", -3),
            ("c_div(i, 2)", -2),
            ("ceil_div(K, 64)", 2),
            ("K > 5 && i < 0", 1),
            ("K > 500 || i > 0", 0),
            ("K > 5 ? 1 : 2", 1),
            ("K < 5 ? 1 : i ? 3 : 4", 3),
            ("0xff_00 + 1_000", 0xff00 + 1000),
            ("-9223372036854775808", i64::MIN),
            ("trunc_u8(-1)", 255),
            ("!K + ~0", -1),
            ("var(0)", -5),
            ("param(0)", 100),
            ("\"K\"", 100),
            ("min(3, max(1, 2))", 2),
        ] {
            assert_eq!(eval(text), Ok(value), "{text}");
        }
    }
}
