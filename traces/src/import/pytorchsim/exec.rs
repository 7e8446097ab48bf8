//! Reading a producer: its statements are followed symbolically, so that loops stay loops and
//! program ids and parameters stay symbols. Nothing is compiled or run.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use super::cpp::ast::*;
use super::diag::{Diag, Pos, Res};
use super::sym::{Kind, MAX_DEPTH, Range, Sx};
use super::value::*;
use crate::error::ErrorCode;
use crate::model::{BinaryOp, UnaryOp};

/// Steps of one reading, at most.
const FUEL: u64 = 6_000_000;
/// Statements a trace may have while it is read.
const MAX_EMITTED: usize = 1 << 17;
/// Calls and statements inside each other while reading, at most.
const MAX_NESTING: u32 = 160;
/// Calls inside each other, at most.
const MAX_CALLS: u32 = 24;
/// Elements of one array, at most.
const MAX_ARRAY: usize = 65_536;
/// Variables alive at once, at most.
const MAX_SLOTS: usize = 1 << 17;

/// What was found.
pub(crate) struct Outcome {
    pub ir: Vec<Ir>,
    pub abi: u32,
    pub abi_inferred: bool,
    pub buffers: Option<Vec<u64>>,
    pub buffers_pos: Option<Pos>,
    pub notes: Vec<String>,
    pub unrolled: u64,
}

/// Follows the producer of `unit`.
pub(crate) fn run(unit: &Unit, abi: Option<u32>, shape_count: Option<usize>) -> Res<Outcome> {
    let mut e = Exec::new(unit, abi);
    e.globals()?;
    let pos = Pos {
        file: 0,
        line: 1,
        column: 1,
        length: 1,
    };
    let Some(kernel) = e.functions.get("togsim_kernel").cloned() else {
        return Err(Diag::new(
            ErrorCode::MissingKey,
            pos,
            "the source defines no function togsim_kernel",
        )
        .hint("this is not a trace producer"));
    };
    if kernel.params.len() != 3 {
        return Err(Diag::value(
            kernel.pos,
            "togsim_kernel takes three parameters",
        ));
    }
    let n = match shape_count {
        Some(n) => Value::int(n as i64, IntTy::I32),
        None => Value::Poison(
            Some(IntTy::I32),
            "the number of shape arguments is known only at launch".into(),
        ),
    };
    e.call_function(
        &kernel,
        vec![Value::Ctx, Value::Shape(Sx::int(0)), n],
        kernel.pos,
    )?;
    let buffers_pos = unit
        .globals
        .iter()
        .find(|g| &*g.name == "togsim_spad_buffer_bytes")
        .map(|g| g.pos);
    let buffers = e.buffer_table()?;
    let declared = e.declared_abi();
    let sem =
        e.form == Some(Form::Sem) || (e.form.is_none() && abi.or(declared).is_none_or(|a| a >= 14));
    let inferred = if sem {
        match declared {
            Some(d) if d >= 14 => d,
            _ if buffers.is_some() => 15,
            _ => 14,
        }
    } else if e.core_alloc {
        11
    } else if e.tag_extra {
        13
    } else {
        12
    };
    if let Some(a) = abi
        && (a >= 14) != sem
    {
        return Err(Diag::value(
            kernel.pos,
            format!("ABI {a} was asked for, the calls have the shape of ABI {inferred}"),
        ));
    }
    Ok(Outcome {
        ir: std::mem::take(&mut e.out),
        abi: abi.unwrap_or(inferred),
        abi_inferred: abi.is_none(),
        buffers,
        buffers_pos,
        notes: std::mem::take(&mut e.notes),
        unrolled: e.unrolled,
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Sem,
    Tag,
}

/// How a list of statements was left.
#[derive(Clone, Debug)]
enum Flow {
    Next,
    Return(Value),
    Break,
    Continue,
}

/// Statements and what follows them.
struct Seq<'s> {
    stmts: &'s [Stmt],
    /// A block ends after the statements.
    pop: bool,
    next: Option<&'s Seq<'s>>,
}

/// The latest load on a tag (ABI 11 to 13).
#[derive(Clone, Debug)]
struct TagLoad {
    elements: Option<Sx>,
    writes: Vec<i64>,
}

struct Exec<'u> {
    unit: &'u Unit,
    functions: HashMap<Rc<str>, Rc<Function>>,
    structs: HashMap<Rc<str>, &'u Struct>,
    enums: HashMap<Rc<str>, i64>,
    globals: HashMap<Rc<str>, usize>,
    statics: HashMap<*const Decl, usize>,
    slots: Vec<Value>,
    scopes: Vec<Scope>,
    out: Vec<Ir>,
    tags: BTreeMap<(i64, i64), TagLoad>,
    fuel: u64,
    emitted: usize,
    nesting: u32,
    calls: u32,
    loops: u32,
    phis: u32,
    in_item: bool,
    abi: Option<u32>,
    form: Option<Form>,
    core_alloc: bool,
    tag_extra: bool,
    /// Iterations followed one by one that emitted something.
    unrolled: u64,
    /// All iterations followed one by one.
    iterations: u64,
    /// Above 0 while a loop body is followed only to see what it changes: what it emits is dropped.
    analysis: u32,
    notes: Vec<String>,
    abrupt: HashMap<*const Stmt, (bool, bool)>,
    /// What the function being followed returns.
    returns: Option<Ty>,
}

struct Saved {
    slots: Vec<Value>,
    scopes: Vec<Scope>,
    tags: BTreeMap<(i64, i64), TagLoad>,
    out: usize,
    emitted: usize,
    in_item: bool,
    nesting: u32,
    calls: u32,
    notes: usize,
    returns: Option<Ty>,
    unrolled: u64,
    analysis: u32,
}

impl<'u> Exec<'u> {
    fn new(unit: &'u Unit, abi: Option<u32>) -> Self {
        Exec {
            unit,
            functions: unit
                .functions
                .iter()
                .map(|f| (f.name.clone(), f.clone()))
                .collect(),
            structs: unit.structs.iter().map(|s| (s.name.clone(), s)).collect(),
            enums: HashMap::from([
                ("TOGSIM_DMA_LOAD".into(), 0),
                ("TOGSIM_DMA_STORE".into(), 1),
            ]),
            globals: HashMap::new(),
            statics: HashMap::new(),
            slots: Vec::new(),
            scopes: vec![Scope::default()],
            out: Vec::new(),
            tags: BTreeMap::new(),
            fuel: FUEL,
            emitted: 0,
            nesting: 0,
            calls: 0,
            loops: 0,
            phis: 0,
            in_item: false,
            abi,
            form: None,
            core_alloc: false,
            tag_extra: false,
            unrolled: 0,
            iterations: 0,
            analysis: 0,
            notes: Vec::new(),
            abrupt: HashMap::new(),
            returns: None,
        }
    }

    fn spend(&mut self, n: u64, pos: Pos) -> Res<()> {
        self.fuel = self.fuel.saturating_sub(n);
        if self.fuel == 0 {
            return Err(Diag::new(
                ErrorCode::TooManyIterations,
                pos,
                "reading the producer takes too many steps",
            )
            .hint("a loop with many iterations has to be followed one by one here"));
        }
        Ok(())
    }

    fn note(&mut self, text: String) {
        if self.notes.len() < 64 && !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    fn save(&self) -> Saved {
        Saved {
            slots: self.slots.clone(),
            scopes: self.scopes.clone(),
            tags: self.tags.clone(),
            out: self.out.len(),
            emitted: self.emitted,
            in_item: self.in_item,
            nesting: self.nesting,
            calls: self.calls,
            notes: self.notes.len(),
            returns: self.returns.clone(),
            unrolled: self.unrolled,
            analysis: self.analysis,
        }
    }

    fn restore(&mut self, s: &Saved) {
        self.slots.clone_from(&s.slots);
        self.scopes.clone_from(&s.scopes);
        self.tags.clone_from(&s.tags);
        self.out.truncate(s.out);
        self.emitted = s.emitted;
        self.in_item = s.in_item;
        self.nesting = s.nesting;
        self.calls = s.calls;
        self.notes.truncate(s.notes);
        self.returns.clone_from(&s.returns);
        self.unrolled = s.unrolled;
        self.analysis = s.analysis;
    }
}

/// Whether evaluating an expression changes nothing.
fn pure(e: &Expr) -> bool {
    match &e.kind {
        ExprKind::Int(..)
        | ExprKind::Bool(_)
        | ExprKind::Null
        | ExprKind::Name(_)
        | ExprKind::SizeofType(_) => true,
        ExprKind::Unary(op, a) => {
            !matches!(
                op,
                UnOp::PreInc | UnOp::PreDec | UnOp::PostInc | UnOp::PostDec
            ) && pure(a)
        }
        ExprKind::Binary(_, a, b) | ExprKind::Index(a, b) => pure(a) && pure(b),
        ExprKind::Cond(a, b, c) => pure(a) && pure(b) && pure(c),
        ExprKind::Cast(_, a) | ExprKind::Member(a, _) => pure(a),
        _ => false,
    }
}

/// An argument of a call.
enum Arg {
    Value(Value),
    /// A reference to a variable.
    Slot(usize),
    /// A reference to a part of something, which the function may not change.
    ReadOnly(Value),
}

struct LoopParts<'s> {
    cond: Option<&'s Expr>,
    step: Option<&'s Expr>,
    body: &'s Stmt,
    pos: Pos,
    /// The body without the step at its end, for a `while` loop.
    tail: Option<&'s [Stmt]>,
}

fn is_abi(n: &str) -> bool {
    matches!(
        n,
        "togsim_dma"
            | "togsim_compute"
            | "togsim_memory_barrier"
            | "togsim_dispatch"
            | "togsim_core_alloc"
            | "togsim_compute_barrier"
    )
}

fn before_len(scopes: &[Scope]) -> usize {
    scopes.last().map_or(0, |s| s.mark)
}

fn join_tag(mine: &mut TagLoad, other: &TagLoad) {
    let equal = match (&mine.elements, &other.elements) {
        (Some(a), Some(b)) => a.same(b),
        _ => false,
    };
    if !equal {
        mine.elements = None;
    }
}

/// Arrays become pointers to their first element when they are used.
fn decay(v: Value, place: Place) -> Value {
    match v {
        Value::Arr(_) => Value::Ptr(Ptr {
            slot: place.slot,
            path: place.path,
            off: Sx::int(0),
            single: false,
        }),
        v => v,
    }
}

fn zeroed(v: &Value) -> Value {
    match v {
        Value::Undef(Some(t)) => Value::int(0, *t),
        Value::Undef(None) => Value::Null,
        Value::Arr(x) => Value::Arr(Rc::new(x.iter().map(zeroed).collect())),
        Value::Struct(x) => Value::Struct(Rc::new(
            x.iter().map(|(n, v)| (n.clone(), zeroed(v))).collect(),
        )),
        other => other.clone(),
    }
}

fn sizeof(v: &Value) -> Option<i64> {
    match v {
        Value::Int(_, t) | Value::Undef(Some(t)) => Some(t.bytes() as i64),
        Value::Arr(x) => {
            let mut n = 0i64;
            for v in x.iter() {
                n = n.checked_add(sizeof(v)?)?;
            }
            Some(n)
        }
        Value::Ptr(_) | Value::Null | Value::Ctx | Value::Shape(_) => Some(8),
        _ => None,
    }
}

fn read_path(v: &Value, path: &[Step], pos: Pos) -> Res<Value> {
    let Some((first, rest)) = path.split_first() else {
        return Ok(v.clone());
    };
    match (first, v) {
        (Step::Index(i), Value::Arr(items)) => match i.constant() {
            Some(k) => match usize::try_from(k).ok().and_then(|k| items.get(k)) {
                Some(x) => read_path(x, rest, pos),
                None => Err(Diag::value(
                    pos,
                    format!("element {k} of an array of {}", items.len()),
                )),
            },
            None => {
                let inside: Vec<usize> = match i.values() {
                    Some(s) => s
                        .iter()
                        .filter_map(|&k| usize::try_from(k).ok())
                        .filter(|k| *k < items.len())
                        .collect(),
                    None if items.len() <= 64 => (0..items.len()).collect(),
                    None => {
                        let d = Diag::unsupported(
                            pos,
                            "an index into a table of more than 64 elements that is not constant",
                        );
                        return Err(d.unrollable());
                    }
                };
                let Some((&last, head)) = inside.split_last() else {
                    return Err(Diag::value(
                        pos,
                        format!("an index outside an array of {}", items.len()),
                    ));
                };
                let at = |k: usize| {
                    items
                        .get(k)
                        .ok_or_else(|| Diag::value(pos, "an index outside an array"))
                };
                let mut out = read_path(at(last)?, rest, pos)?;
                for &k in head.iter().rev() {
                    let x = read_path(at(k)?, rest, pos)?;
                    out = merge(&Sx::binary(BinaryOp::Eq, i, &Sx::int(k as i64)), &x, &out);
                }
                Ok(out)
            }
        },
        (Step::Field(n), Value::Struct(fields)) => match fields.iter().find(|(m, _)| m == n) {
            Some((_, x)) => read_path(x, rest, pos),
            None => Err(Diag::syntax(pos, format!("no field {n}"))),
        },
        (_, Value::Undef(_)) => Err(Diag::value(pos, "a variable is read that was never set")),
        (Step::Index(_), other) => Err(Diag::unsupported(
            pos,
            format_args!("an index into {}", other.what()),
        )),
        (Step::Field(n), other) => Err(Diag::syntax(pos, format!("field {n} of {}", other.what()))),
    }
}

fn write_path(old: &Value, path: &[Step], new: Value, pos: Pos) -> Res<Value> {
    let Some((first, rest)) = path.split_first() else {
        return Ok(new);
    };
    match (first, old) {
        (Step::Index(i), Value::Arr(items)) => {
            let mut items = items.to_vec();
            match i.constant() {
                Some(k) => {
                    let n = items.len();
                    match usize::try_from(k).ok().and_then(|k| items.get_mut(k)) {
                        Some(x) => *x = write_path(x, rest, new, pos)?,
                        None => {
                            return Err(Diag::value(
                                pos,
                                format!("element {k} of an array of {n}"),
                            ));
                        }
                    }
                }
                None if items.len() <= 64 => {
                    for (k, x) in items.iter_mut().enumerate() {
                        let c = Sx::binary(BinaryOp::Eq, i, &Sx::int(k as i64));
                        let changed = write_path(x, rest, new.clone(), pos)?;
                        *x = merge(&c, &changed, x);
                    }
                }
                None => {
                    let d = Diag::unsupported(
                        pos,
                        "a change of an element of a large array whose index is not constant",
                    );
                    return Err(d.unrollable());
                }
            }
            Ok(Value::Arr(Rc::new(items)))
        }
        (Step::Field(n), Value::Struct(fields)) => {
            let mut fields = fields.to_vec();
            match fields.iter_mut().find(|(m, _)| m == n) {
                Some((_, x)) => *x = write_path(x, rest, new, pos)?,
                None => return Err(Diag::syntax(pos, format!("no field {n}"))),
            }
            Ok(Value::Struct(Rc::new(fields)))
        }
        (_, other) => Err(Diag::unsupported(
            pos,
            format_args!("a change of a part of {}", other.what()),
        )),
    }
}

/// How often a loop runs.
pub(crate) fn trips(lo: &Sx, hi: &Sx, step: i64) -> Sx {
    trip_count(lo, hi, step)
}

mod calls;
mod expressions;
mod globals;
mod iterate;
mod loops;
mod records;
mod statements;
mod storage;
use loops::{bound_of, close, pair, step_of, substitute, trip_count};
