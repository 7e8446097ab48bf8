//! Text to trace.

use std::collections::BTreeMap;

use super::{TEXT_VERSION, UNITS};
use crate::error::{ErrorCode, TextSpan, TraceError, closest};
use crate::limits::*;
use crate::model::*;
use crate::syntax::{ExprParser, Lexer, Names, Result, Tok};
use crate::validate::{ValidTrace, check};

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
    let site = error
        .path
        .strip_prefix("body")
        .and_then(|rest| site_of(&trace.body, rest, 0));
    Err(match site.and_then(|site| spans.get(site)) {
        Some(span) => error.at(*span),
        None => error,
    })
}

/// The number, in a depth-first walk that starts at `first`, of the innermost statement that a path
/// like `[2].for.body[0].dma.offset` leads to.
fn site_of(body: &[Stmt], path: &str, first: usize) -> Option<usize> {
    let (index, rest) = path.strip_prefix('[')?.split_once(']')?;
    let index: usize = index.parse().ok()?;
    let site = first + count(body.get(..index)?);
    let inner = match body.get(index)? {
        Stmt::For(f) => rest
            .strip_prefix(".for.body")
            .map(|rest| (&f.body, rest, site + 1)),
        Stmt::If(i) => match rest.strip_prefix(".if.then") {
            Some(rest) => Some((&i.then, rest, site + 1)),
            None => rest
                .strip_prefix(".if.otherwise")
                .map(|rest| (&i.otherwise, rest, site + 1 + count(&i.then))),
        },
        _ => None,
    };
    let inner = inner.and_then(|(body, rest, first)| site_of(body, rest, first));
    Some(inner.unwrap_or(site))
}

/// Statements of a block, inner ones included.
fn count(body: &[Stmt]) -> usize {
    let inner = |stmt: &Stmt| match stmt {
        Stmt::For(f) => count(&f.body),
        Stmt::If(i) => count(&i.then) + count(&i.otherwise),
        _ => 0,
    };
    body.iter().map(|stmt| 1 + inner(stmt)).sum()
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
    "kernel",
    "producer",
    "measured",
    "origin",
    "axes",
    "param",
    "tensor",
    "bounds",
    "buffer",
    "tile",
    "dispatch",
    "resources",
    "body",
];

const STATEMENTS: &[&str] = &["for", "let", "if", "load", "store", "compute", "wait"];

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
        let mut resources = Resources::default();
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
                "kernel",
                "producer",
                "measured",
                "axes",
                "bounds",
                "dispatch",
                "resources",
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
                "resources" => resources = self.resources()?,
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
            resources,
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

    fn resources(&mut self) -> Result<Resources> {
        let mut resources = Resources::default();
        loop {
            if self.lexer.eat_word("registers")? {
                resources.registers = self.int(u64::MAX)?;
            } else if self.lexer.eat_word("threads")? {
                resources.threads = self.int(u64::MAX)?;
            } else {
                return Ok(resources);
            }
        }
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
        let source = if !self.lexer.eat_word("source")? || self.lexer.eat_word("declared")? {
            CostSource::Declared
        } else if self.lexer.eat_word("measured")? {
            CostSource::Measured
        } else if self.lexer.eat_word("analytic")? {
            CostSource::Analytic(self.string()?)
        } else {
            return Err(self
                .lexer
                .unexpected("`measured`, `analytic` or `declared`"));
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
        let out = self.stmts(depth, self.lexer.last)?;
        self.lexer.expect("}")?;
        Ok(out)
    }

    /// Statements up to the end of the block that was opened at `open`.
    fn stmts(&mut self, depth: usize, open: TextSpan) -> Result<Vec<Stmt>> {
        if depth > MAX_STMT_DEPTH {
            let message = "statements nested too deeply";
            return Err(TraceError::new(ErrorCode::TooDeep, "", message)
                .with_hint(format!(
                    "nest at most {MAX_LOOP_DEPTH} loops and {MAX_STMT_DEPTH} statements"
                ))
                .at(open));
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
            out.push(self.stmt(depth, open)?);
        }
        Ok(out)
    }

    /// `let v = x { ... }`, or `let v = x` for the rest of the block.
    fn binding(&mut self, depth: usize, open: TextSpan) -> Result<For> {
        let name = self.name()?;
        self.lexer.expect("=")?;
        let lo = self.expr()?;
        let one = || Expr::Const(1);
        let hi = Expr::Binary(BinaryOp::Add, Box::new(lo.clone()), Box::new(one()));
        let var = VarId(self.names.loops.len() as u32);
        self.names.loops.push(name.clone());
        let body = if self.lexer.is("{") {
            self.block(depth + 1)?
        } else {
            self.stmts(depth + 1, open)?
        };
        self.names.loops.pop();
        Ok(For {
            var,
            name,
            lo,
            hi,
            step: one(),
            body,
        })
    }

    fn stmt(&mut self, depth: usize, open: TextSpan) -> Result<Stmt> {
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
            "let" => Stmt::For(self.binding(depth, open)?),
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
