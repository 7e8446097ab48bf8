//! Reading a producer: its statements are followed symbolically, so that loops stay loops and
//! program ids and parameters stay symbols. Nothing is compiled or run.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use super::cpp::ast::*;
use super::diag::{Diag, Pos, Res};
use super::sym::{MAX_DEPTH, Range, Sx};
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
    let pos = Pos { file: 0, line: 1, column: 1, length: 1 };
    let Some(kernel) = e.functions.get("togsim_kernel").cloned() else {
        return Err(Diag::new(ErrorCode::MissingKey, pos, "the source defines no function togsim_kernel")
            .hint("this is not a trace producer"));
    };
    if kernel.params.len() != 3 {
        return Err(Diag::value(kernel.pos, "togsim_kernel takes three parameters"));
    }
    let n = match shape_count {
        Some(n) => Value::int(n as i64, IntTy::I32),
        None => Value::Poison(Some(IntTy::I32), "the number of shape arguments is known only at launch".into()),
    };
    e.call_function(&kernel, vec![Value::Ctx, Value::Shape(Sx::int(0)), n], kernel.pos)?;
    let buffers_pos = unit.globals.iter().find(|g| &*g.name == "togsim_spad_buffer_bytes").map(|g| g.pos);
    let buffers = e.buffer_table()?;
    let declared = e.declared_abi();
    let sem = e.form == Some(Form::Sem) || (e.form.is_none() && abi.or(declared).is_none_or(|a| a >= 14));
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
        return Err(Diag::value(kernel.pos, format!("ABI {a} was asked for, the calls have the shape of ABI {inferred}")));
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
            functions: unit.functions.iter().map(|f| (f.name.clone(), f.clone())).collect(),
            structs: unit.structs.iter().map(|s| (s.name.clone(), s)).collect(),
            enums: HashMap::from([("TOGSIM_DMA_LOAD".into(), 0), ("TOGSIM_DMA_STORE".into(), 1)]),
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
            return Err(Diag::new(ErrorCode::TooManyIterations, pos, "reading the producer takes too many steps")
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

    // ---- globals ----

    fn globals(&mut self) -> Res<()> {
        let unit = self.unit;
        for item in &unit.order {
            match *item {
                Item::Global(i) => {
                    let Some(d) = unit.globals.get(i) else { continue };
                    let v = self.declared(d)?;
                    let slot = self.slot(v, d.pos)?;
                    self.globals.insert(d.name.clone(), slot);
                }
                Item::Enum(from, to) => {
                    let mut next = 0i64;
                    for (name, value, pos) in unit.enumerators.get(from..to).unwrap_or_default() {
                        if let Some(e) = value {
                            let (x, _) = self.int(e)?;
                            next = x.constant().ok_or_else(|| Diag::unsupported(*pos, "this enumerator"))?;
                        }
                        self.enums.insert(name.clone(), next);
                        next = next.wrapping_add(1);
                    }
                }
            }
        }
        Ok(())
    }

    fn global_int(&self, name: &str) -> Option<i64> {
        match self.globals.get(name).and_then(|s| self.slots.get(*s)) {
            Some(Value::Int(x, _)) => x.constant(),
            _ => None,
        }
    }

    fn declared_abi(&self) -> Option<u32> {
        self.global_int("togsim_producer_abi_version").and_then(|v| u32::try_from(v).ok())
    }

    fn buffer_table(&self) -> Res<Option<Vec<u64>>> {
        let Some(d) = self.unit.globals.iter().find(|g| &*g.name == "togsim_spad_buffer_bytes") else {
            return Ok(None);
        };
        let value = self.globals.get(&d.name).and_then(|s| self.slots.get(*s));
        let Some(Value::Arr(items)) = value else {
            return Err(Diag::value(d.pos, "togsim_spad_buffer_bytes is not an array"));
        };
        let mut out = Vec::new();
        for v in items.iter() {
            match v {
                Value::Int(x, _) if x.constant().is_some_and(|c| c >= 0) => {
                    out.push(x.constant().unwrap_or(0) as u64);
                }
                _ => return Err(Diag::value(d.pos, "a scratchpad buffer needs a constant size of at least 0")),
            }
        }
        if let Some(n) = self.global_int("togsim_spad_buffer_count") {
            let n = usize::try_from(n).unwrap_or(usize::MAX);
            if n > out.len() {
                return Err(Diag::value(d.pos, format!("togsim_spad_buffer_count is {n}, the table has {}", out.len())));
            }
            out.truncate(n);
        }
        Ok(Some(out))
    }

    // ---- storage ----

    fn slot(&mut self, v: Value, pos: Pos) -> Res<usize> {
        if self.slots.len() >= MAX_SLOTS {
            return Err(Diag::limit(pos, "too many variables"));
        }
        self.slots.push(v);
        Ok(self.slots.len() - 1)
    }

    fn bind(&mut self, name: &Rc<str>, slot: usize) {
        if let Some(s) = self.scopes.last_mut() {
            s.names.insert(name.clone(), slot);
        }
    }

    fn push_scope(&mut self) {
        let mark = self.slots.len();
        self.scopes.push(Scope { names: HashMap::new(), mark });
    }

    fn pop_scope(&mut self) {
        if self.scopes.len() > 1
            && let Some(s) = self.scopes.pop()
        {
            // Variables that are static stay where they are for good.
            let keep = self.statics.values().copied().max().map_or(0, |m| m + 1);
            self.slots.truncate(s.mark.max(keep));
        }
    }

    fn find(&self, name: &str) -> Option<usize> {
        for s in self.scopes.iter().rev() {
            if let Some(slot) = s.names.get(name) {
                return Some(*slot);
            }
        }
        self.globals.get(name).copied()
    }

    fn count(&mut self, dims: &[Bound], pos: Pos) -> Res<Vec<Option<usize>>> {
        let mut out = Vec::new();
        let mut total = 1usize;
        for d in dims {
            out.push(match d {
                None => None,
                Some(e) => {
                    let (x, _) = self.int(e)?;
                    let n = x.constant().ok_or_else(|| Diag::unsupported(e.pos, "an array of variable size").unrollable())?;
                    let n = usize::try_from(n).unwrap_or(usize::MAX);
                    total = total.saturating_mul(n.max(1));
                    if total > MAX_ARRAY {
                        return Err(Diag::limit(pos, format!("an array of more than {MAX_ARRAY} elements")));
                    }
                    Some(n)
                }
            });
        }
        Ok(out)
    }

    /// The value of a declaration.
    fn declared(&mut self, d: &Decl) -> Res<Value> {
        let dims = self.count(&d.dims, d.pos)?;
        if !dims.is_empty() {
            return self.array_value(&d.ty, &dims, d.init.as_ref(), d.pos);
        }
        match &d.init {
            Some(e) => {
                if let ExprKind::Braces(None, list) = &e.kind
                    && d.ty.pointers == 0
                {
                    if let Base::Struct(name) = &d.ty.base {
                        return self.struct_value(&name.clone(), Some(list), d.pos);
                    }
                    return match list.as_slice() {
                        [] => Ok(self.zero(&d.ty)),
                        [one] => {
                            let v = self.eval(one)?;
                            self.convert(v, &d.ty, d.pos)
                        }
                        _ => Err(Diag::syntax(e.pos, "several values for one variable")),
                    };
                }
                let v = self.eval(e)?;
                self.convert(v, &d.ty, d.pos)
            }
            None => match (&d.ty.base, d.ty.pointers) {
                (Base::Struct(name), 0) => self.struct_value(&name.clone(), None, d.pos),
                (Base::Int(t), 0) => Ok(Value::Undef(Some(*t))),
                _ => Ok(Value::Undef(None)),
            },
        }
    }

    fn zero(&self, ty: &Ty) -> Value {
        match (&ty.base, ty.pointers) {
            (Base::Int(t), 0) => Value::int(0, *t),
            _ => Value::Null,
        }
    }

    fn array_value(&mut self, ty: &Ty, dims: &[Option<usize>], init: Option<&Expr>, pos: Pos) -> Res<Value> {
        let list: Option<&[Expr]> = match init.map(|e| &e.kind) {
            None => None,
            Some(ExprKind::Braces(_, list)) => Some(list),
            Some(_) => return Err(Diag::unsupported(pos, "this initialiser of an array")),
        };
        let Some((first, rest)) = dims.split_first() else {
            return Err(Diag::unsupported(pos, "this array"));
        };
        // std::array<T, N> a = {{...}} and flat initialisers of nested arrays.
        let mut list = list;
        if rest.is_empty()
            && let Some([Expr { kind: ExprKind::Braces(None, inner), .. }]) = list
            && matches!(ty.base, Base::Int(_))
        {
            list = Some(inner);
        }
        let n = match (first, list) {
            (Some(n), _) => *n,
            (None, Some(l)) => l.len(),
            (None, None) => return Err(Diag::syntax(pos, "an array without a size")),
        };
        if n > MAX_ARRAY {
            return Err(Diag::limit(pos, format!("an array of more than {MAX_ARRAY} elements")));
        }
        let given = list.map_or(0, <[Expr]>::len);
        if given > n {
            return Err(Diag::syntax(pos, format!("{given} values for an array of {n}")));
        }
        self.spend(n as u64, pos)?;
        let mut items = Vec::with_capacity(n);
        for i in 0..n {
            let e = list.and_then(|l| l.get(i));
            let v = match e {
                _ if !rest.is_empty() => {
                    if e.is_some_and(|e| !matches!(e.kind, ExprKind::Braces(None, _))) {
                        return Err(Diag::unsupported(pos, "a nested array without inner braces"));
                    }
                    match (e, list) {
                        // Elements without a value are 0 once the array has any.
                        (None, Some(_)) => {
                            let filled = self.array_value(ty, rest, None, pos)?;
                            zeroed(&filled)
                        }
                        _ => self.array_value(ty, rest, e, pos)?,
                    }
                }
                Some(e) => match (&e.kind, &ty.base, ty.pointers) {
                    (ExprKind::Braces(None, l), Base::Struct(name), 0) => self.struct_value(&name.clone(), Some(l), pos)?,
                    _ => {
                        let v = self.eval(e)?;
                        self.convert(v, ty, e.pos)?
                    }
                },
                None => match (&ty.base, ty.pointers) {
                    (Base::Struct(name), 0) => self.struct_value(&name.clone(), list.map(|_| [].as_slice()), pos)?,
                    (Base::Int(t), 0) if list.is_none() => Value::Undef(Some(*t)),
                    _ => self.zero(ty),
                },
            };
            items.push(v);
        }
        Ok(Value::Arr(Rc::new(items)))
    }

    fn struct_value(&mut self, name: &str, list: Option<&[Expr]>, pos: Pos) -> Res<Value> {
        let Some(s) = self.structs.get(name).copied() else {
            return Err(Diag::syntax(pos, format!("unknown structure {name}")));
        };
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(Diag::deep(pos, "structures nested too deep"));
        }
        let mut fields = Vec::new();
        let list = list.unwrap_or_default();
        let designated = list.iter().any(|e| matches!(e.kind, ExprKind::Designated(..)));
        if list.len() > s.fields.len() {
            return Err(Diag::syntax(pos, format!("{} values for a structure of {}", list.len(), s.fields.len())));
        }
        for (i, f) in s.fields.iter().enumerate() {
            let given = if designated {
                list.iter().find_map(|e| match &e.kind {
                    ExprKind::Designated(n, v) if *n == f.name => Some(&**v),
                    _ => None,
                })
            } else {
                list.get(i)
            };
            let v = match given {
                Some(e) => {
                    let dims = self.count(&f.dims, f.pos)?;
                    match (&e.kind, &f.ty.base) {
                        _ if !dims.is_empty() => self.array_value(&f.ty, &dims, Some(e), f.pos)?,
                        (ExprKind::Braces(None, l), Base::Struct(n)) => self.struct_value(&n.clone(), Some(l), pos)?,
                        _ => {
                            let v = self.eval(e)?;
                            self.convert(v, &f.ty, e.pos)?
                        }
                    }
                }
                None => {
                    let v = self.declared(f)?;
                    if list.is_empty() && f.init.is_none() { v } else { zeroed(&v) }
                }
            };
            fields.push((f.name.clone(), v));
        }
        self.nesting -= 1;
        Ok(Value::Struct(Rc::new(fields)))
    }

    /// The value as the type holds it.
    fn convert(&mut self, v: Value, ty: &Ty, pos: Pos) -> Res<Value> {
        if ty.pointers > 0 || matches!(ty.base, Base::Auto | Base::Fn | Base::Ctx) {
            return Ok(match v {
                Value::Int(x, _) if ty.pointers > 0 && x.constant() == Some(0) => Value::Null,
                Value::Int(..) if ty.pointers > 0 => {
                    return Err(Diag::unsupported(pos, "an integer used as a pointer"));
                }
                v => v,
            });
        }
        match (&ty.base, v) {
            (Base::Void, _) => Ok(Value::Void),
            (Base::Int(t), Value::Int(x, _)) => Ok(Value::Int(x.cast(*t), *t)),
            (Base::Int(IntTy::Bool), Value::Null) => Ok(Value::int(0, IntTy::Bool)),
            (Base::Int(IntTy::Bool), Value::Ptr(_)) => Ok(Value::int(1, IntTy::Bool)),
            (Base::Int(t), Value::Poison(_, why)) => Ok(Value::Poison(Some(*t), why)),
            (Base::Int(_), Value::Undef(_)) => Err(Diag::value(pos, "a variable is read that was never set")),
            (Base::Struct(_), v @ (Value::Struct(_) | Value::Poison(..))) => Ok(v),
            (_, v) => Err(Diag::syntax(pos, format!("{} where another type is needed", v.what()))),
        }
    }

    fn read(&self, place: &Place, pos: Pos) -> Res<Value> {
        let v = self.slots.get(place.slot).ok_or_else(|| Diag::value(pos, "a pointer to a variable that is gone"))?;
        read_path(v, &place.path, pos)
    }

    fn write(&mut self, place: &Place, v: Value, pos: Pos) -> Res<()> {
        let old = self.slots.get(place.slot).ok_or_else(|| Diag::value(pos, "a pointer to a variable that is gone"))?;
        let new = write_path(old, &place.path, v, pos)?;
        if let Some(s) = self.slots.get_mut(place.slot) {
            *s = new;
        }
        Ok(())
    }

    /// Where an expression's value is kept.
    fn place(&mut self, e: &Expr) -> Res<Place> {
        match &e.kind {
            ExprKind::Name(n) => match self.find(n) {
                Some(slot) => Ok(Place { slot, path: Vec::new() }),
                None => Err(Diag::new(ErrorCode::UnknownName, e.pos, format!("unknown name {n}"))),
            },
            ExprKind::Index(a, i) => {
                let (i, _) = self.int(i)?;
                let base = self.eval(a)?;
                self.element(&base, &i, e.pos)
            }
            ExprKind::Unary(UnOp::Deref, a) => {
                let base = self.eval(a)?;
                self.element(&base, &Sx::int(0), e.pos)
            }
            ExprKind::Member(a, field) => {
                let mut p = self.place(a)?;
                p.path.push(Step::Field(field.clone()));
                Ok(p)
            }
            ExprKind::Unary(UnOp::PreInc | UnOp::PreDec, a) => {
                self.eval(e)?;
                self.place(a)
            }
            ExprKind::Cast(_, a) => self.place(a),
            _ => Err(Diag::unsupported(e.pos, "a change of this kind of value")),
        }
    }

    fn element(&self, base: &Value, i: &Sx, pos: Pos) -> Res<Place> {
        match base {
            Value::Ptr(p) => {
                let off = Sx::binary(BinaryOp::Add, &p.off, i);
                let mut path = p.path.clone();
                if p.single {
                    if off.constant() != Some(0) {
                        return Err(Diag::value(pos, "a pointer to one variable is used beyond it"));
                    }
                } else {
                    path.push(Step::Index(off));
                }
                Ok(Place { slot: p.slot, path })
            }
            Value::Null => Err(Diag::value(pos, "a null pointer is followed")),
            Value::Choice(..) => Err(Diag::unsupported(pos, "a change through a pointer that depends on a condition").unrollable()),
            other => Err(Diag::unsupported(pos, format_args!("an index into {}", other.what()))),
        }
    }

    /// Element `i` behind a pointer.
    fn load(&mut self, base: &Value, i: &Sx, pos: Pos) -> Res<Value> {
        match base {
            Value::Shape(off) => {
                let k = Sx::binary(BinaryOp::Add, off, i);
                match k.constant() {
                    Some(k) if (0..64).contains(&k) => Ok(Value::Int(Sx::shape(k as u32), IntTy::I64)),
                    Some(k) => Err(Diag::value(pos, format!("shape argument {k} does not exist"))),
                    None => Err(Diag::unsupported(pos, "a shape argument whose number is not constant").unrollable()),
                }
            }
            Value::Choice(c, a, b) => {
                let (x, y) = (self.load(a, i, pos)?, self.load(b, i, pos)?);
                Ok(merge(c, &x, &y))
            }
            _ => {
                let p = self.element(base, i, pos)?;
                let v = self.read(&p, pos)?;
                Ok(decay(v, p))
            }
        }
    }

    // ---- expressions ----

    fn int(&mut self, e: &Expr) -> Res<(Sx, IntTy)> {
        let v = self.eval(e)?;
        self.as_int(v, e.pos)
    }

    fn as_int(&self, v: Value, pos: Pos) -> Res<(Sx, IntTy)> {
        match v {
            Value::Int(x, t) => {
                if x.depth() > MAX_DEPTH {
                    return Err(Diag::deep(pos, "a value built from too many operations").unrollable());
                }
                Ok((x, t))
            }
            Value::Undef(_) => Err(Diag::value(pos, "a variable is read that was never set")),
            Value::Poison(_, why) => {
                Err(Diag::unsupported(pos, format_args!("a value that is not known here ({why})")).unrollable())
            }
            other => Err(Diag::syntax(pos, format!("{} where an integer is needed", other.what()))),
        }
    }

    /// The condition, as 0 or 1.
    fn condition(&mut self, e: &Expr) -> Res<Sx> {
        let v = self.eval(e)?;
        match v {
            Value::Null => Ok(Sx::int(0)),
            Value::Ptr(_) | Value::Ctx | Value::Shape(_) | Value::Function(_) => Ok(Sx::int(1)),
            v => Ok(self.as_int(v, e.pos)?.0.truth()),
        }
    }

    fn eval(&mut self, e: &Expr) -> Res<Value> {
        self.spend(1, e.pos)?;
        // Long rows of operators are walked without recursion.
        if let ExprKind::Binary(op, a, _) = &e.kind
            && !matches!(op, BinOp::LogAnd | BinOp::LogOr)
            && matches!(a.kind, ExprKind::Binary(..))
        {
            let mut spine = Vec::new();
            let mut at = e;
            while let ExprKind::Binary(op, a, b) = &at.kind {
                if matches!(op, BinOp::LogAnd | BinOp::LogOr) {
                    break;
                }
                spine.push((*op, &**b, at.pos));
                at = a;
            }
            let mut v = self.eval(at)?;
            for (op, b, pos) in spine.into_iter().rev() {
                let w = self.eval(b)?;
                v = self.arith(op, v, w, pos)?;
            }
            return Ok(v);
        }
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(Diag::deep(e.pos, format!("calls and statements nested deeper than {MAX_NESTING}")));
        }
        let v = self.eval_inner(e);
        self.nesting = self.nesting.saturating_sub(1);
        v
    }

    fn eval_inner(&mut self, e: &Expr) -> Res<Value> {
        match &e.kind {
            ExprKind::Int(v, t) => Ok(Value::int(*v as i64, *t)),
            ExprKind::Bool(b) => Ok(Value::int(i64::from(*b), IntTy::Bool)),
            ExprKind::Null => Ok(Value::Null),
            ExprKind::Name(n) => self.name(n, e.pos),
            ExprKind::Unary(op, a) => self.unary(*op, a, e.pos),
            ExprKind::Binary(BinOp::LogAnd, a, b) => self.logical(true, a, b, e.pos),
            ExprKind::Binary(BinOp::LogOr, a, b) => self.logical(false, a, b, e.pos),
            ExprKind::Binary(op, a, b) => {
                let x = self.eval(a)?;
                let y = self.eval(b)?;
                self.arith(*op, x, y, e.pos)
            }
            ExprKind::Assign(op, l, r) => self.assign(*op, l, r, e.pos),
            ExprKind::Cond(c, a, b) => {
                let c = self.condition(c)?;
                if let Some(v) = c.constant() {
                    let (taken, other) = if v != 0 { (a, b) } else { (b, a) };
                    let value = self.eval(taken)?;
                    // The type is that of both arms together, whichever is taken.
                    if let Value::Int(x, t) = &value
                        && pure(other)
                        && let Ok(Value::Int(_, u)) = self.quiet(other)
                    {
                        let w = if *t == u { u } else { IntTy::common(*t, u) };
                        return Ok(Value::Int(x.cast(w), w));
                    }
                    return Ok(value);
                }
                let (x, y) = self.branch(&c, e.pos, |s| s.eval(a), |s| s.eval(b))?;
                match (x, y) {
                    (Value::Int(x, t), Value::Int(y, u)) => {
                        let w = if t == u { t } else { IntTy::common(t, u) };
                        Ok(Value::Int(Sx::select(&c, &x.cast(w), &y.cast(w)), w))
                    }
                    (Value::Void, Value::Void) => Ok(Value::Void),
                    (x, y) => Ok(merge(&c, &x, &y)),
                }
            }
            ExprKind::Comma(a, b) => {
                self.eval(a)?;
                self.eval(b)
            }
            ExprKind::Cast(ty, a) => {
                let v = self.eval(a)?;
                if let (Base::Int(t), 0, v @ (Value::Ptr(_) | Value::Null)) = (&ty.base, ty.pointers, &v)
                    && *t != IntTy::Bool
                {
                    return Err(Diag::unsupported(e.pos, format_args!("{} used as an integer", v.what())));
                }
                self.convert(v, ty, e.pos)
            }
            ExprKind::Call(f, args) => self.call(f, args, e.pos),
            ExprKind::Index(a, i) => {
                let (i, _) = self.int(i)?;
                let base = self.eval(a)?;
                self.load(&base, &i, e.pos)
            }
            ExprKind::Member(a, field) => {
                if let Ok(p) = self.place_quiet(e) {
                    let v = self.read(&p, e.pos)?;
                    return Ok(decay(v, p));
                }
                match self.eval(a)? {
                    Value::Struct(f) => match f.iter().find(|(n, _)| n == field) {
                        Some((_, v)) => Ok(v.clone()),
                        None => Err(Diag::syntax(e.pos, format!("no field {field}"))),
                    },
                    other => Err(Diag::syntax(e.pos, format!("a field of {}", other.what()))),
                }
            }
            ExprKind::Braces(Some((ty, dims)), list) => {
                if dims.is_empty() {
                    if let (Base::Struct(name), 0) = (&ty.base, ty.pointers) {
                        return self.struct_value(&name.clone(), Some(list), e.pos);
                    }
                    return match list.as_slice() {
                        [] => Ok(self.zero(ty)),
                        [one] => {
                            let v = self.eval(one)?;
                            self.convert(v, ty, e.pos)
                        }
                        _ => Err(Diag::unsupported(e.pos, "this braced value")),
                    };
                }
                let dims = self.count(dims, e.pos)?;
                let v = self.array_value(ty, &dims, Some(e), e.pos)?;
                let slot = self.slot(v, e.pos)?;
                Ok(Value::Ptr(Ptr { slot, path: Vec::new(), off: Sx::int(0), single: false }))
            }
            ExprKind::Braces(None, list) => match list.as_slice() {
                [one] => self.eval(one),
                _ => Err(Diag::unsupported(e.pos, "braces here")),
            },
            ExprKind::Designated(..) => Err(Diag::syntax(e.pos, "a designated value outside a structure")),
            ExprKind::Lambda(l) => {
                let mut scopes = self.scopes.clone();
                if l.by_value {
                    for s in &mut scopes {
                        for slot in s.names.values_mut() {
                            let v = self.slots.get(*slot).cloned().unwrap_or(Value::Undef(None));
                            // Arrays are copied too; a copy that nobody uses costs only its slot.
                            *slot = self.slot(v, e.pos)?;
                        }
                    }
                }
                self.spend(scopes.iter().map(|s| s.names.len() as u64).sum(), e.pos)?;
                Ok(Value::Lambda(Rc::new(Closure { lambda: l.clone(), scopes })))
            }
            ExprKind::SizeofType(ty) => {
                let n = match (&ty.base, ty.pointers) {
                    (_, 1..) => 8,
                    (Base::Int(t), 0) => t.bytes(),
                    _ => return Err(Diag::unsupported(e.pos, "sizeof of this type")),
                };
                Ok(Value::int(n as i64, IntTy::U64))
            }
            ExprKind::SizeofExpr(a) => {
                let n = match self.place_quiet(a) {
                    Ok(p) => sizeof(&self.read(&p, e.pos)?),
                    Err(_) => {
                        let v = self.eval(a)?;
                        sizeof(&v)
                    }
                };
                match n {
                    Some(n) => Ok(Value::int(n, IntTy::U64)),
                    None => Err(Diag::unsupported(e.pos, "sizeof of this value")),
                }
            }
        }
    }

    /// The value of a pure expression; a failure leaves no trace.
    fn quiet(&mut self, e: &Expr) -> Res<Value> {
        let nesting = self.nesting;
        let v = self.eval(e);
        self.nesting = nesting;
        v
    }

    /// A place that is found without doing anything on the way.
    fn place_quiet(&mut self, e: &Expr) -> Res<Place> {
        fn quiet(e: &Expr) -> bool {
            match &e.kind {
                ExprKind::Name(_) | ExprKind::Int(..) => true,
                ExprKind::Index(a, b) => quiet(a) && quiet(b),
                ExprKind::Member(a, _) | ExprKind::Unary(UnOp::Deref, a) => quiet(a),
                ExprKind::Binary(_, a, b) => e.depth < 32 && quiet(a) && quiet(b),
                _ => false,
            }
        }
        if e.depth < 64 && quiet(e) { self.place(e) } else { Err(Diag::unsupported(e.pos, "this value")) }
    }

    fn name(&mut self, n: &Rc<str>, pos: Pos) -> Res<Value> {
        if let Some(slot) = self.find(n) {
            let v = self.slots.get(slot).cloned().unwrap_or(Value::Undef(None));
            return Ok(decay(v, Place { slot, path: Vec::new() }));
        }
        if let Some(v) = self.enums.get(n) {
            return Ok(Value::int(*v, IntTy::I32));
        }
        if let Some(f) = self.functions.get(n) {
            return Ok(Value::Function(f.clone()));
        }
        // Names inside namespaces are kept without them.
        if let Some((_, last)) = n.rsplit_once("::")
            && !n.starts_with("std::")
        {
            return self.name(&last.into(), pos);
        }
        Err(Diag::new(ErrorCode::UnknownName, pos, format!("unknown name {n}")))
    }

    fn unary(&mut self, op: UnOp, a: &Expr, pos: Pos) -> Res<Value> {
        match op {
            UnOp::Plus => {
                let (x, t) = self.int(a)?;
                Ok(Value::Int(x, t.promoted()))
            }
            UnOp::Neg => {
                let (x, t) = self.int(a)?;
                let t = t.promoted();
                let zero = Value::int(0, t);
                if t == IntTy::I64 && x.likely().lo > i64::MIN {
                    return Ok(Value::Int(Sx::unary(UnaryOp::Neg, &x), t));
                }
                self.arith(BinOp::Sub, zero, Value::Int(x, t), pos)
            }
            UnOp::BitNot => {
                let (x, t) = self.int(a)?;
                let t = t.promoted();
                Ok(Value::Int(Sx::unary(UnaryOp::BitNot, &x).cast(t), t))
            }
            UnOp::Not => {
                let c = self.condition(a)?;
                Ok(Value::Int(c.not(), IntTy::Bool))
            }
            UnOp::Deref => {
                let base = self.eval(a)?;
                if matches!(base, Value::Function(_) | Value::Lambda(_)) {
                    return Ok(base);
                }
                self.load(&base, &Sx::int(0), pos)
            }
            UnOp::AddrOf => {
                if let ExprKind::Name(n) = &a.kind
                    && self.find(n).is_none()
                {
                    return self.name(&n.clone(), pos);
                }
                let mut p = self.place(a)?;
                Ok(Value::Ptr(match p.path.pop() {
                    Some(Step::Index(off)) => Ptr { slot: p.slot, path: p.path, off, single: false },
                    Some(f) => {
                        p.path.push(f);
                        Ptr { slot: p.slot, path: p.path, off: Sx::int(0), single: true }
                    }
                    None => Ptr { slot: p.slot, path: p.path, off: Sx::int(0), single: true },
                }))
            }
            UnOp::PreInc | UnOp::PreDec | UnOp::PostInc | UnOp::PostDec => {
                let place = self.place(a)?;
                let old = self.read(&place, pos)?;
                let how = if matches!(op, UnOp::PreInc | UnOp::PostInc) { BinOp::Add } else { BinOp::Sub };
                let new = self.arith(how, old.clone(), Value::int(1, IntTy::I32), pos)?;
                let new = self.fit(new, &old, pos)?;
                self.write(&place, new.clone(), pos)?;
                Ok(if matches!(op, UnOp::PreInc | UnOp::PreDec) { new } else { old })
            }
        }
    }

    /// `v` as the variable that held `old` keeps it.
    fn fit(&self, v: Value, old: &Value, pos: Pos) -> Res<Value> {
        let t = match old {
            Value::Int(_, t) => Some(*t),
            Value::Undef(t) | Value::Poison(t, _) => *t,
            _ => None,
        };
        match (v, t) {
            (Value::Int(x, _), Some(t)) => Ok(Value::Int(x.cast(t), t)),
            (Value::Int(x, _), None) if x.constant() == Some(0) && !matches!(old, Value::Arr(_) | Value::Struct(_)) => {
                Ok(Value::Null)
            }
            (Value::Poison(_, why), t) => Ok(Value::Poison(t, why)),
            (v @ (Value::Int(..) | Value::Arr(_) | Value::Void), None) => {
                Err(Diag::unsupported(pos, format_args!("an assignment of {}", v.what())))
            }
            (v, Some(_)) => Err(Diag::syntax(pos, format!("{} where an integer is needed", v.what()))),
            (v, None) => Ok(v),
        }
    }

    fn assign(&mut self, op: Option<BinOp>, l: &Expr, r: &Expr, pos: Pos) -> Res<Value> {
        let right = match (&r.kind, op) {
            (ExprKind::Braces(None, list), None) if list.is_empty() => Value::int(0, IntTy::I32),
            (ExprKind::Braces(None, list), None) => {
                let place = self.place(l)?;
                match (self.read(&place, pos)?, list.as_slice()) {
                    (Value::Int(..) | Value::Undef(Some(_)), [one]) => self.eval(one)?,
                    _ => return Err(Diag::unsupported(pos, "an assignment of braces")),
                }
            }
            _ => self.eval(r)?,
        };
        let place = self.place(l)?;
        let old = self.read(&place, pos)?;
        let v = match op {
            None => right,
            Some(op) => self.arith(op, old.clone(), right, pos)?,
        };
        let v = self.fit(v, &old, pos)?;
        self.write(&place, v.clone(), pos)?;
        Ok(v)
    }

    fn logical(&mut self, and: bool, a: &Expr, b: &Expr, pos: Pos) -> Res<Value> {
        let x = self.condition(a)?;
        if let Some(v) = x.constant() {
            if (v != 0) != and {
                return Ok(Value::int(i64::from(!and), IntTy::Bool));
            }
            return Ok(Value::Int(self.condition(b)?, IntTy::Bool));
        }
        let c = if and { x.clone() } else { x.not() };
        let (y, _) = self.branch(&c, pos, |s| s.condition(b), |_| Ok(Sx::int(0)))?;
        // The second operand is evaluated only if the first asks for it, which matters to divisions.
        let divides = y.mentions(&|k| {
            use BinaryOp::*;
            matches!(k, super::sym::Kind::Binary(Div | Mod | CDiv | CRem | UDiv | URem, _, d) if d.sure().lo <= 0)
        });
        let v = match (divides, and) {
            (true, true) => Sx::select(&x, &y, &Sx::int(0)),
            (true, false) => Sx::select(&x, &Sx::int(1), &y),
            (false, true) => Sx::binary(BinaryOp::And, &x, &y),
            (false, false) => Sx::binary(BinaryOp::Or, &x, &y),
        };
        Ok(Value::Int(v, IntTy::Bool))
    }

    /// Both ways of a condition that is not known; what they emit becomes an `if`.
    fn branch<T>(
        &mut self,
        c: &Sx,
        pos: Pos,
        then: impl FnOnce(&mut Self) -> Res<T>,
        otherwise: impl FnOnce(&mut Self) -> Res<T>,
    ) -> Res<(T, T)> {
        self.spend(self.slots.len() as u64 / 8 + 1, pos)?;
        let before = self.save();
        let outer = std::mem::take(&mut self.out);
        let a = then(self)?;
        let then_out = std::mem::take(&mut self.out);
        let then_slots = std::mem::replace(&mut self.slots, before.slots);
        let then_tags = std::mem::replace(&mut self.tags, before.tags);
        self.scopes = before.scopes;
        self.nesting = before.nesting;
        self.calls = before.calls;
        let b = otherwise(self)?;
        let else_out = std::mem::replace(&mut self.out, outer);
        if self.slots.len() > then_slots.len() {
            self.slots.truncate(then_slots.len().max(before_len(&self.scopes)));
        }
        for (s, t) in self.slots.iter_mut().zip(&then_slots) {
            if !same_value(s, t) {
                *s = merge(c, t, s);
            }
        }
        if then_slots.len() > self.slots.len() {
            self.slots.extend_from_slice(then_slots.get(self.slots.len()..).unwrap_or_default());
        }
        for (k, t) in then_tags {
            match self.tags.get_mut(&k) {
                None => {
                    self.tags.insert(k, t);
                }
                Some(mine) => join_tag(mine, &t),
            }
        }
        if !then_out.is_empty() || !else_out.is_empty() {
            self.emit(Ir::If { cond: c.clone(), then: then_out, otherwise: else_out, pos }, pos)?;
        }
        Ok((a, b))
    }

    fn emit(&mut self, ir: Ir, pos: Pos) -> Res<()> {
        self.emitted += 1;
        if self.emitted > MAX_EMITTED {
            return Err(Diag::limit(pos, format!("the producer becomes more than {MAX_EMITTED} statements")));
        }
        self.out.push(ir);
        Ok(())
    }

    fn arith(&mut self, op: BinOp, a: Value, b: Value, pos: Pos) -> Res<Value> {
        // Pointers.
        match (op, &a, &b) {
            (BinOp::Add | BinOp::Sub, Value::Ptr(_) | Value::Shape(_), Value::Int(i, _)) => {
                let how = if op == BinOp::Add { BinaryOp::Add } else { BinaryOp::Sub };
                return Ok(match a {
                    Value::Ptr(mut p) => {
                        p.off = Sx::binary(how, &p.off, i);
                        Value::Ptr(p)
                    }
                    Value::Shape(off) => Value::Shape(Sx::binary(how, &off, i)),
                    other => other,
                });
            }
            (BinOp::Add, Value::Int(..), Value::Ptr(_) | Value::Shape(_)) => return self.arith(op, b, a, pos),
            (BinOp::Eq | BinOp::Ne, x, y) if x.pointer_like() || y.pointer_like() => {
                let equal = match (x, y) {
                    (Value::Null, Value::Null) => true,
                    (Value::Null, Value::Ptr(_) | Value::Shape(_)) | (Value::Ptr(_) | Value::Shape(_), Value::Null) => false,
                    _ => return Err(Diag::unsupported(pos, "a comparison of pointers")),
                };
                return Ok(Value::int(i64::from(equal == (op == BinOp::Eq)), IntTy::Bool));
            }
            _ => {}
        }
        let (x, t) = self.as_int(a, pos)?;
        let (y, u) = self.as_int(b, pos)?;
        if matches!(op, BinOp::Shl | BinOp::Shr) {
            return self.shift(op, x, t.promoted(), y, pos);
        }
        let w = IntTy::common(t, u);
        let (x, y) = (x.cast(w), y.cast(w));
        let compare = |plain: BinaryOp, unsigned: BinaryOp, swap: bool| {
            let (x, y) = if swap && w == IntTy::U64 { (&y, &x) } else { (&x, &y) };
            Value::Int(Sx::binary(if w == IntTy::U64 { unsigned } else { plain }, x, y), IntTy::Bool)
        };
        // Signed overflow is undefined in C; it wraps here, as compilers make it wrap. Narrow types
        // are computed in 64 bits, where they cannot overflow except in a product of two u32, and cut.
        let wrap = |checked: BinaryOp, wrapping: BinaryOp| {
            let op = if w == IntTy::I32 { checked } else { wrapping };
            Value::Int(Sx::binary(op, &x, &y).cast(w), w)
        };
        Ok(match op {
            BinOp::Add => wrap(BinaryOp::Add, BinaryOp::WrapAdd),
            BinOp::Sub => wrap(BinaryOp::Sub, BinaryOp::WrapSub),
            BinOp::Mul => wrap(BinaryOp::Mul, BinaryOp::WrapMul),
            BinOp::Div | BinOp::Rem => {
                if y.constant() == Some(0) {
                    return Err(Diag::new(ErrorCode::DivisionByZero, pos, "division by zero"));
                }
                let op = match (op, w == IntTy::U64) {
                    (BinOp::Div, false) => BinaryOp::CDiv,
                    (BinOp::Div, true) => BinaryOp::UDiv,
                    (_, false) => BinaryOp::CRem,
                    (_, true) => BinaryOp::URem,
                };
                Value::Int(Sx::binary(op, &x, &y).cast(w), w)
            }
            BinOp::And => Value::Int(Sx::binary(BinaryOp::And, &x, &y), w),
            BinOp::Or => Value::Int(Sx::binary(BinaryOp::Or, &x, &y), w),
            BinOp::Xor => Value::Int(Sx::binary(BinaryOp::Xor, &x, &y), w),
            BinOp::Lt => compare(BinaryOp::Lt, BinaryOp::ULt, false),
            BinOp::Le => compare(BinaryOp::Le, BinaryOp::ULe, false),
            BinOp::Gt => compare(BinaryOp::Gt, BinaryOp::ULt, true),
            BinOp::Ge => compare(BinaryOp::Ge, BinaryOp::ULe, true),
            BinOp::Eq => Value::Int(Sx::binary(BinaryOp::Eq, &x, &y), IntTy::Bool),
            BinOp::Ne => Value::Int(Sx::binary(BinaryOp::Ne, &x, &y), IntTy::Bool),
            BinOp::Shl | BinOp::Shr | BinOp::LogAnd | BinOp::LogOr => {
                return Err(Diag::unsupported(pos, "this operator"));
            }
        })
    }

    fn shift(&mut self, op: BinOp, x: Sx, t: IntTy, n: Sx, pos: Pos) -> Res<Value> {
        let bits = i64::from(t.bits());
        if n.sure().hi < 0 || n.sure().lo >= bits {
            return Err(Diag::value(pos, format!("a shift of {} by a count outside 0 to {}", t.name(), bits - 1)));
        }
        let v = if op == BinOp::Shl {
            Sx::binary(BinaryOp::WrapShl, &x, &n)
        } else if t == IntTy::U64 {
            Sx::binary(BinaryOp::UShr, &x, &n)
        } else if n.sure().within(Range::new(0, 63)) {
            Sx::binary(BinaryOp::Shr, &x, &n)
        } else {
            // The count of a checked shift must be in range; C leaves other counts undefined.
            Sx::binary(BinaryOp::Shr, &x, &Sx::binary(BinaryOp::And, &n, &Sx::int(63)))
        };
        Ok(Value::Int(v.cast(t), t))
    }

    // ---- calls ----

    fn call(&mut self, f: &Expr, args: &[Expr], pos: Pos) -> Res<Value> {
        if let ExprKind::Name(n) = &f.kind
            && self.find(n).is_none()
        {
            let n = n.clone();
            if n.starts_with("togsim_") && !matches!(&*n, "togsim_kernel") && (is_abi(&n) || !self.functions.contains_key(&n)) {
                return self.abi_call(&n, args, pos);
            }
            match &*n {
                "std::min" | "std::max" | "min" | "max" if !self.functions.contains_key(&n) => {
                    return self.min_max(n.ends_with("min"), args, pos);
                }
                "std::move" | "std::forward" | "std::as_const" if args.len() == 1 => return self.eval(&args[0]),
                "std::size" | "std::ssize" if args.len() == 1 => {
                    let p = self.place(&args[0])?;
                    if let Value::Arr(v) = self.read(&p, pos)? {
                        return Ok(Value::int(v.len() as i64, if &*n == "std::size" { IntTy::U64 } else { IntTy::I64 }));
                    }
                    return Err(Diag::unsupported(pos, "the size of this value"));
                }
                "std::abs" | "abs" | "labs" | "llabs" if args.len() == 1 && !self.functions.contains_key(&n) => {
                    let (x, t) = self.int(&args[0])?;
                    let t = t.promoted();
                    let c = Sx::binary(BinaryOp::Lt, &x, &Sx::int(0));
                    return Ok(Value::Int(Sx::select(&c, &Sx::unary(UnaryOp::Neg, &x), &x).cast(t), t));
                }
                "assert" if !self.functions.contains_key(&n) => return Ok(Value::Void),
                _ => {}
            }
            if n.starts_with("std::") {
                return Err(Diag::unsupported(pos, format_args!("a call of {n}")));
            }
        }
        if let ExprKind::Member(a, field) = &f.kind {
            let p = self.place(a)?;
            let v = self.read(&p, pos)?;
            return match (&**field, v) {
                ("data" | "begin", Value::Arr(_)) => {
                    Ok(Value::Ptr(Ptr { slot: p.slot, path: p.path, off: Sx::int(0), single: false }))
                }
                ("size", Value::Arr(v)) => Ok(Value::int(v.len() as i64, IntTy::U64)),
                ("at", Value::Arr(_)) if args.len() == 1 => {
                    let (i, _) = self.int(&args[0])?;
                    let base = Value::Ptr(Ptr { slot: p.slot, path: p.path, off: Sx::int(0), single: false });
                    self.load(&base, &i, pos)
                }
                _ => Err(Diag::unsupported(pos, format_args!("a call of the member function {field}"))),
            };
        }
        let target = self.eval(f)?;
        match target {
            Value::Function(func) => {
                let values = self.call_args(&func.params, args, &func.name, pos)?;
                self.enter_call(pos, &func.params, values, &func.body, Some(&func.ret), Vec::new())
            }
            Value::Lambda(c) => {
                let values = self.call_args(&c.lambda.params, args, "the lambda", pos)?;
                self.enter_call(pos, &c.lambda.params, values, &c.lambda.body, None, c.scopes.clone())
            }
            other => Err(Diag::syntax(pos, format!("{} is called", other.what()))),
        }
    }

    /// Arguments: values, or the slot of the variable for a reference.
    fn call_args(&mut self, params: &[Param], args: &[Expr], name: &str, pos: Pos) -> Res<Vec<Arg>> {
        if params.len() != args.len() {
            return Err(Diag::syntax(pos, format!("{name} takes {} arguments, {} given", params.len(), args.len())));
        }
        let mut out = Vec::new();
        for (p, a) in params.iter().zip(args) {
            if p.ty.reference && !p.array {
                if let Ok(place) = self.place_quiet(a)
                    && place.path.is_empty()
                {
                    let matches = match (&p.ty.base, self.slots.get(place.slot)) {
                        (Base::Int(t), Some(Value::Int(_, u))) => t == u,
                        _ => true,
                    };
                    if matches {
                        out.push(Arg::Slot(place.slot));
                        continue;
                    }
                }
                if !p.ty.is_const && !matches!(p.ty.base, Base::Auto) && self.place_quiet(a).is_ok() {
                    // A part of an array or structure: changes through the reference would be lost.
                    out.push(Arg::ReadOnly(self.eval(a)?));
                    continue;
                }
            }
            if let (ExprKind::Braces(None, list), Base::Struct(s), 0) = (&a.kind, &p.ty.base, p.ty.pointers) {
                out.push(Arg::Value(self.struct_value(&s.clone(), Some(list), a.pos)?));
                continue;
            }
            let v = self.eval(a)?;
            let v = if p.array { v } else { self.convert(v, &p.ty, a.pos)? };
            out.push(Arg::Value(v));
        }
        Ok(out)
    }

    fn call_function(&mut self, f: &Rc<Function>, values: Vec<Value>, pos: Pos) -> Res<Value> {
        let args = values.into_iter().map(Arg::Value).collect();
        self.enter_call(pos, &f.params, args, &f.body, Some(&f.ret), Vec::new())
    }

    fn enter_call(
        &mut self,
        pos: Pos,
        params: &[Param],
        args: Vec<Arg>,
        body: &[Stmt],
        ret: Option<&Ty>,
        captured: Vec<Scope>,
    ) -> Res<Value> {
        self.calls += 1;
        if self.calls > MAX_CALLS {
            return Err(Diag::deep(pos, format!("calls nested deeper than {MAX_CALLS}, or a recursion")));
        }
        self.nesting += 2;
        if self.nesting > MAX_NESTING {
            return Err(Diag::deep(pos, format!("calls and statements nested deeper than {MAX_NESTING}")));
        }
        let mark = self.slots.len();
        let scopes = std::mem::replace(&mut self.scopes, captured);
        self.scopes.push(Scope { names: HashMap::new(), mark });
        let mut frozen = Vec::new();
        for (p, a) in params.iter().zip(args) {
            let slot = match a {
                Arg::Slot(s) => s,
                Arg::Value(v) => self.slot(v, pos)?,
                Arg::ReadOnly(v) => {
                    let s = self.slot(v.clone(), pos)?;
                    frozen.push((s, v));
                    s
                }
            };
            if let Some(n) = &p.name {
                self.bind(n, slot);
            }
        }
        let returns = std::mem::replace(&mut self.returns, ret.cloned());
        let flow = self.run(&Seq { stmts: body, pop: false, next: None }, false)?;
        self.returns = returns;
        for (s, v) in frozen {
            if self.slots.get(s).is_some_and(|now| !same_value(now, &v)) {
                return Err(Diag::unsupported(pos, "a reference to a part of an array or structure that is changed"));
            }
        }
        self.scopes = scopes;
        let keep = self.statics.values().copied().max().map_or(0, |m| m + 1);
        self.slots.truncate(mark.max(keep));
        self.calls -= 1;
        self.nesting = self.nesting.saturating_sub(2);
        let v = match flow {
            Flow::Return(v) => v,
            Flow::Next => Value::Void,
            Flow::Break | Flow::Continue => return Err(Diag::syntax(pos, "break or continue outside a loop")),
        };
        match (ret, v) {
            (Some(ty), v) if !matches!(ty.base, Base::Void) || ty.pointers > 0 => match v {
                Value::Void => Err(Diag::value(pos, "a function ends without the value it promises")),
                v => self.convert(v, ty, pos),
            },
            (_, v) => Ok(v),
        }
    }

    fn min_max(&mut self, min: bool, args: &[Expr], pos: Pos) -> Res<Value> {
        let list: Vec<&Expr> = match args {
            [Expr { kind: ExprKind::Braces(None, l), .. }] => l.iter().collect(),
            [a, b] => vec![a, b],
            _ => return Err(Diag::unsupported(pos, "this use of min or max")),
        };
        let mut best: Option<(Sx, IntTy)> = None;
        for e in list {
            let (x, t) = self.int(e)?;
            best = Some(match best {
                None => (x, t),
                Some((y, u)) => {
                    let w = if t == u { t } else { IntTy::common(t, u) };
                    let (x, y) = (x.cast(w), y.cast(w));
                    if w == IntTy::U64 && !(x.sure().lo >= 0 && y.sure().lo >= 0) {
                        let c = Sx::binary(BinaryOp::ULt, &x, &y);
                        (if min { Sx::select(&c, &x, &y) } else { Sx::select(&c, &y, &x) }, w)
                    } else {
                        (Sx::binary(if min { BinaryOp::Min } else { BinaryOp::Max }, &y, &x), w)
                    }
                }
            });
        }
        match best {
            Some((x, t)) => Ok(Value::Int(x, t)),
            None => Err(Diag::unsupported(pos, "this use of min or max")),
        }
    }

    // ---- statements ----

    /// Runs statements and everything that follows them.
    fn run(&mut self, seq: &Seq<'_>, in_loop: bool) -> Res<Flow> {
        self.nesting += 1;
        let at = seq.stmts.first().map_or_else(Pos::default, |s| s.pos);
        if self.nesting > MAX_NESTING {
            return Err(Diag::deep(at, format!("calls and statements nested deeper than {MAX_NESTING}")));
        }
        let flow = self.run_inner(seq, in_loop);
        self.nesting = self.nesting.saturating_sub(1);
        flow
    }

    fn run_inner(&mut self, seq: &Seq<'_>, in_loop: bool) -> Res<Flow> {
        let mut seq = seq;
        loop {
            for (i, s) in seq.stmts.iter().enumerate() {
                self.spend(1, s.pos)?;
                let rest = Seq { stmts: seq.stmts.get(i + 1..).unwrap_or_default(), pop: seq.pop, next: seq.next };
                match &s.kind {
                    StmtKind::Block(body) if self.leaves(s).0 || self.leaves(s).1 => {
                        self.push_scope();
                        return self.run(&Seq { stmts: body, pop: true, next: Some(&rest) }, in_loop);
                    }
                    StmtKind::If(c, then, otherwise) => {
                        let c = self.condition(c)?;
                        let leaves = self.leaves(s);
                        if let Some(v) = c.constant() {
                            let taken = if v != 0 { Some(then) } else { otherwise.as_ref() };
                            if let Some(t) = taken {
                                match self.one(t, in_loop)? {
                                    Flow::Next => {}
                                    other => return Ok(other),
                                }
                            }
                            continue;
                        }
                        if leaves.0 || leaves.1 {
                            return self.split(&c, then, otherwise.as_deref(), &rest, in_loop, s.pos);
                        }
                        self.branch(
                            &c,
                            s.pos,
                            |x| x.one(then, in_loop),
                            |x| match otherwise {
                                Some(o) => x.one(o, in_loop),
                                None => Ok(Flow::Next),
                            },
                        )?;
                    }
                    _ => match self.statement(s, in_loop)? {
                        Flow::Next => {}
                        other => return Ok(other),
                    },
                }
            }
            if seq.pop {
                self.pop_scope();
            }
            match seq.next {
                Some(n) => seq = n,
                None => return Ok(Flow::Next),
            }
        }
    }

    /// One statement in a scope of its own.
    fn one(&mut self, s: &Stmt, in_loop: bool) -> Res<Flow> {
        let depth = self.scopes.len();
        self.push_scope();
        let stmts: &[Stmt] = match &s.kind {
            StmtKind::Block(b) => b,
            _ => std::slice::from_ref(s),
        };
        let flow = self.run(&Seq { stmts, pop: false, next: None }, in_loop)?;
        while self.scopes.len() > depth {
            self.pop_scope();
        }
        Ok(flow)
    }

    /// An `if` that may leave the list: each way runs the rest for itself.
    fn split(
        &mut self,
        c: &Sx,
        then: &Stmt,
        otherwise: Option<&Stmt>,
        rest: &Seq<'_>,
        in_loop: bool,
        pos: Pos,
    ) -> Res<Flow> {
        let way = |x: &mut Self, s: Option<&Stmt>| -> Res<Flow> {
            match s {
                None => x.run(rest, in_loop),
                Some(s) => {
                    x.push_scope();
                    let stmts: &[Stmt] = match &s.kind {
                        StmtKind::Block(b) => b,
                        _ => std::slice::from_ref(s),
                    };
                    x.run(&Seq { stmts, pop: true, next: Some(rest) }, in_loop)
                }
            }
        };
        let (a, b) = self.branch(c, pos, |x| way(x, Some(then)), |x| way(x, otherwise))?;
        match (a, b) {
            (Flow::Next, Flow::Next) => Ok(Flow::Next),
            (Flow::Continue, Flow::Continue) => Ok(Flow::Continue),
            (Flow::Break, Flow::Break) => Ok(Flow::Break),
            (Flow::Next, Flow::Continue) | (Flow::Continue, Flow::Next) if in_loop => Ok(Flow::Next),
            (Flow::Return(x), Flow::Return(y)) => Ok(Flow::Return(match (x, y) {
                (Value::Int(x, t), Value::Int(y, u)) => {
                    let w = if t == u { t } else { IntTy::common(t, u) };
                    Value::Int(Sx::select(c, &x.cast(w), &y.cast(w)), w)
                }
                (x, y) => merge(c, &x, &y),
            })),
            (Flow::Return(Value::Void), Flow::Next) | (Flow::Next, Flow::Return(Value::Void)) if !in_loop => {
                Ok(Flow::Return(Value::Void))
            }
            _ => Err(Diag::unsupported(pos, "leaving a loop under a condition that is not constant").unrollable()),
        }
    }

    /// Whether a statement contains `return` or an outward `break`/`continue`.
    fn leaves(&mut self, s: &Stmt) -> (bool, bool) {
        if let Some(v) = self.abrupt.get(&(s as *const Stmt)) {
            return *v;
        }
        let mut r = (false, false);
        let mut add = |(a, b): (bool, bool), outer: bool| {
            r.0 |= a;
            r.1 |= b && outer;
        };
        match &s.kind {
            StmtKind::Return(_) => add((true, false), true),
            StmtKind::Break | StmtKind::Continue => add((false, true), true),
            StmtKind::Block(b) => {
                for x in b {
                    add(self.leaves(x), true);
                }
            }
            StmtKind::If(_, a, b) => {
                add(self.leaves(a), true);
                if let Some(b) = b {
                    add(self.leaves(b), true);
                }
            }
            StmtKind::For(_, _, _, b) | StmtKind::While(_, b) | StmtKind::DoWhile(b, _) | StmtKind::ForEach(_, _, b) => {
                add(self.leaves(b), false);
            }
            StmtKind::Switch(_, cases) => {
                for (_, b) in cases {
                    for x in b {
                        // `continue` inside a switch leaves it; `break` at its top level does not.
                        let l = self.leaves(x);
                        add((l.0, l.1 && !matches!(x.kind, StmtKind::Break)), true);
                    }
                }
            }
            _ => {}
        }
        self.abrupt.insert(s, r);
        r
    }

    fn statement(&mut self, s: &Stmt, in_loop: bool) -> Res<Flow> {
        match &s.kind {
            StmtKind::Empty => {}
            StmtKind::Decl(list) => {
                for d in list {
                    if d.is_static && !d.ty.is_const {
                        return Err(Diag::unsupported(d.pos, "a static variable that may change"));
                    }
                    if self.find(&d.name).is_some() && self.scopes.last().is_some_and(|s| s.names.contains_key(&d.name)) {
                        return Err(Diag::syntax(d.pos, format!("{} is declared twice", d.name)));
                    }
                    if d.ty.reference
                        && let Some(e) = &d.init
                        && let Ok(p) = self.place_quiet(e)
                    {
                        if p.path.is_empty() {
                            self.bind(&d.name, p.slot);
                            continue;
                        }
                        if !d.ty.is_const {
                            return Err(Diag::unsupported(d.pos, "a reference to a part of an array or structure"));
                        }
                    }
                    let v = self.declared(d)?;
                    let slot = self.slot(v, d.pos)?;
                    self.bind(&d.name, slot);
                }
            }
            StmtKind::Expr(e) => {
                self.eval(e)?;
            }
            StmtKind::Block(_) => return self.one(s, in_loop),
            StmtKind::If(..) => return self.run(&Seq { stmts: std::slice::from_ref(s), pop: false, next: None }, in_loop),
            StmtKind::Return(e) => {
                let v = match e {
                    Some(Expr { kind: ExprKind::Braces(None, list), pos, .. }) => match self.returns.clone() {
                        Some(Ty { base: Base::Struct(name), pointers: 0, .. }) => {
                            self.struct_value(&name, Some(list), *pos)?
                        }
                        Some(ty) if list.is_empty() => self.zero(&ty),
                        _ => match list.as_slice() {
                            [one] => self.eval(one)?,
                            _ => return Err(Diag::unsupported(*pos, "a braced value returned here")),
                        },
                    },
                    Some(e) => self.eval(e)?,
                    None => Value::Void,
                };
                return Ok(Flow::Return(v));
            }
            StmtKind::Break => return Ok(Flow::Break),
            StmtKind::Continue => return Ok(Flow::Continue),
            StmtKind::For(init, cond, step, body) => {
                let depth = self.scopes.len();
                self.push_scope();
                if let Some(i) = init {
                    self.statement(i, in_loop)?;
                }
                let l = LoopParts { cond: cond.as_ref(), step: step.as_ref(), body, pos: s.pos, tail: None };
                let flow = self.looped(&l)?;
                while self.scopes.len() > depth {
                    self.pop_scope();
                }
                return Ok(flow);
            }
            StmtKind::While(c, body) => {
                // `while (i < n) { ...; i += s; }` is a `for` if nothing continues past the step.
                let mut tail = None;
                if let StmtKind::Block(b) = &body.kind
                    && let Some((Stmt { kind: StmtKind::Expr(e), .. }, head)) = b.split_last()
                    && !head.iter().any(|x| self.leaves(x).1)
                {
                    tail = Some((head, e));
                }
                let step = tail.map(|(_, e)| e);
                let l = LoopParts { cond: Some(c), step, body, pos: s.pos, tail: tail.map(|(h, _)| h) };
                return self.looped(&l);
            }
            StmtKind::DoWhile(body, c) => {
                for round in 0..4096u64 {
                    let from = self.emitted;
                    let flow = self.one(body, true)?;
                    self.unrolled += u64::from(round > 0 && self.emitted > from);
                    match flow {
                        Flow::Next | Flow::Continue => {}
                        Flow::Break => return Ok(Flow::Next),
                        r => return Ok(r),
                    }
                    match self.condition(c)?.constant() {
                        Some(0) => return Ok(Flow::Next),
                        Some(_) => {}
                        None => {
                            return Err(Diag::unsupported(c.pos, "a do loop whose end is not constant").unrollable());
                        }
                    }
                }
                return Err(Diag::limit(s.pos, "a do loop of more than 4096 iterations"));
            }
            StmtKind::ForEach(d, list, body) => return self.for_each(d, list, body, s.pos),
            StmtKind::Switch(on, cases) => return self.switch(on, cases, in_loop, s.pos),
        }
        Ok(Flow::Next)
    }

    fn for_each(&mut self, d: &Decl, list: &Expr, body: &Stmt, pos: Pos) -> Res<Flow> {
        let depth = self.scopes.len();
        self.push_scope();
        let items: Vec<Value> = match &list.kind {
            ExprKind::Braces(None, l) => {
                let mut v = Vec::new();
                for e in l {
                    v.push(self.eval(e)?);
                }
                v
            }
            _ => {
                let p = self.place(list)?;
                match self.read(&p, pos)? {
                    Value::Arr(v) => v.to_vec(),
                    other => return Err(Diag::unsupported(pos, format_args!("a loop over {}", other.what()))),
                }
            }
        };
        if d.ty.reference && !d.ty.is_const {
            return Err(Diag::unsupported(pos, "a loop over references").hint("take the elements by value or const"));
        }
        for v in items {
            let from = self.emitted;
            self.push_scope();
            let v = self.convert(v, &d.ty, d.pos)?;
            let slot = self.slot(v, d.pos)?;
            self.bind(&d.name, slot);
            let flow = self.one(body, true)?;
            self.unrolled += u64::from(self.emitted > from);
            match flow {
                Flow::Next | Flow::Continue => self.pop_scope(),
                Flow::Break => break,
                r => return Ok(r),
            }
        }
        while self.scopes.len() > depth {
            self.pop_scope();
        }
        Ok(Flow::Next)
    }

    fn switch(&mut self, on: &Expr, cases: &[(Vec<Option<Expr>>, Vec<Stmt>)], in_loop: bool, pos: Pos) -> Res<Flow> {
        let (x, t) = self.int(on)?;
        let mut arms: Vec<(Vec<i64>, bool)> = Vec::new();
        for (values, _) in cases {
            let mut list = Vec::new();
            let mut default = false;
            for v in values {
                match v {
                    None => default = true,
                    Some(e) => {
                        let (c, _) = self.int(e)?;
                        let c = c.cast(t.promoted()).constant();
                        list.push(c.ok_or_else(|| Diag::syntax(e.pos, "a case that is not constant"))?);
                    }
                }
            }
            arms.push((list, default));
        }
        self.arm(&x, cases, &arms, 0, in_loop, pos)
    }

    /// Tries case `k` and the following ones.
    fn arm(
        &mut self,
        x: &Sx,
        cases: &[(Vec<Option<Expr>>, Vec<Stmt>)],
        arms: &[(Vec<i64>, bool)],
        k: usize,
        in_loop: bool,
        pos: Pos,
    ) -> Res<Flow> {
        let fall = |s: &mut Self, from: usize| -> Res<Flow> {
            for (_, body) in cases.iter().skip(from) {
                for st in body {
                    let flow = s.one_in_switch(st, in_loop)?;
                    match flow {
                        Flow::Next => {}
                        Flow::Break => return Ok(Flow::Next),
                        other => return Ok(other),
                    }
                }
            }
            Ok(Flow::Next)
        };
        let Some((values, _)) = arms.get(k) else {
            return match arms.iter().position(|a| a.1) {
                Some(d) => fall(self, d),
                None => Ok(Flow::Next),
            };
        };
        let mut c = Sx::int(0);
        for v in values {
            c = Sx::binary(BinaryOp::Or, &c, &Sx::binary(BinaryOp::Eq, x, &Sx::int(*v)));
        }
        match c.constant() {
            Some(0) => self.arm(x, cases, arms, k + 1, in_loop, pos),
            Some(_) => fall(self, k),
            None => {
                self.nesting += 1;
                if self.nesting > MAX_NESTING {
                    return Err(Diag::deep(pos, "too many cases that are not constant"));
                }
                let (a, b) =
                    self.branch(&c, pos, |s| fall(s, k), |s| s.arm(x, cases, arms, k + 1, in_loop, pos))?;
                self.nesting = self.nesting.saturating_sub(1);
                match (a, b) {
                    (Flow::Next, Flow::Next) => Ok(Flow::Next),
                    (Flow::Return(x), Flow::Return(y)) => Ok(Flow::Return(merge(&c, &x, &y))),
                    _ => Err(Diag::unsupported(pos, "a switch that leaves its function on some paths only").unrollable()),
                }
            }
        }
    }

    fn one_in_switch(&mut self, s: &Stmt, in_loop: bool) -> Res<Flow> {
        match &s.kind {
            StmtKind::Decl(_) => self.statement(s, in_loop),
            _ => self.one(s, in_loop),
        }
    }

    // ---- loops ----

    fn looped(&mut self, l: &LoopParts<'_>) -> Res<Flow> {
        self.spend(self.slots.len() as u64 / 8 + 1, l.pos)?;
        let before = self.save();
        match self.symbolic(l) {
            Ok(true) => return Ok(Flow::Next),
            Ok(false) => {
                self.restore(&before);
                self.one_by_one(l, None, 0)
            }
            Err(d) if d.unroll => {
                self.restore(&before);
                self.one_by_one(l, Some(d), 0)
            }
            Err(d) => Err(d),
        }
    }

    /// Follows the iterations one by one, which needs conditions that are constant, or known after a
    /// few iterations that become `if`s inside each other (`level` counts those).
    fn one_by_one(&mut self, l: &LoopParts<'_>, why: Option<Diag>, level: u32) -> Res<Flow> {
        let give_up = |d: Diag| match &why {
            Some(w) => w.clone(),
            None => d,
        };
        let mut count = 0u64;
        let from = self.emitted;
        loop {
            if let Some(c) = l.cond {
                let known = self.condition(c)?;
                match known.constant() {
                    Some(0) => return Ok(Flow::Next),
                    Some(_) => {}
                    None if level < 8 => {
                        let (a, _) = self.branch(
                            &known,
                            c.pos,
                            |s| {
                                let from = s.emitted;
                                let flow = s.one(l.body, true)?;
                                s.unrolled += u64::from(s.emitted > from);
                                if matches!(flow, Flow::Next | Flow::Continue) {
                                    if let (None, Some(step)) = (l.tail, l.step) {
                                        s.eval(step)?;
                                    }
                                    return s.one_by_one(l, why.clone(), level + 1);
                                }
                                Ok(flow)
                            },
                            |_| Ok(Flow::Next),
                        )?;
                        return match a {
                            Flow::Next | Flow::Break => Ok(Flow::Next),
                            _ => Err(Diag::unsupported(l.pos, "leaving a function inside such a loop").unrollable()),
                        };
                    }
                    None => {
                        let d = Diag::unsupported(c.pos, "a loop that does not step evenly to a bound");
                        return Err(give_up(d.hint("loops of the form `for (i = a; i < b; i += c)` are read")).unrollable());
                    }
                }
            }
            count += 1;
            self.iterations += 1;
            if count > 4096 && (why.is_some() || self.emitted > from) || count > 100_000 || self.iterations > 400_000 {
                let d = Diag::new(
                    ErrorCode::TooManyIterations,
                    l.pos,
                    "a loop that would have to be followed one by one has too many iterations",
                );
                return Err(give_up(d));
            }
            let now = self.emitted;
            let flow = self.one(l.body, true)?;
            self.unrolled += u64::from(self.emitted > now);
            match flow {
                Flow::Next | Flow::Continue => {}
                Flow::Break => return Ok(Flow::Next),
                r => return Ok(r),
            }
            if l.tail.is_none()
                && let Some(s) = l.step
            {
                self.eval(s)?;
            }
        }
    }

    /// Keeps the loop as a loop. False if it has not the form for that.
    fn symbolic(&mut self, l: &LoopParts<'_>) -> Res<bool> {
        let (Some(cond), Some(step)) = (l.cond, l.step) else { return Ok(false) };
        let var = match &step.kind {
            ExprKind::Unary(UnOp::PreInc | UnOp::PreDec | UnOp::PostInc | UnOp::PostDec, v) => &**v,
            ExprKind::Assign(_, v, _) => &**v,
            _ => return Ok(false),
        };
        let ExprKind::Name(name) = &var.kind else { return Ok(false) };
        let Some(slot) = self.find(name) else { return Ok(false) };
        let Some(Value::Int(lo, t)) = self.slots.get(slot).cloned() else { return Ok(false) };
        let id = self.loops;
        self.loops += 1;

        // The step, on a variable about which nothing is known.
        let probe = Sx::loop_var(id, Range::of(t), Range::LIKELY, None);
        let before = self.slots.clone();
        self.set(slot, Value::Int(probe.clone(), t));
        self.eval(step)?;
        let stepped = match self.slots.get(slot) {
            Some(Value::Int(x, _)) => x.clone(),
            _ => return Ok(false),
        };
        let Some(by) = step_of(&stepped, id) else { return Ok(false) };
        if by == 0 {
            return Err(Diag::new(ErrorCode::ZeroStep, step.pos, "a loop that never advances"));
        }
        for (i, (a, b)) in self.slots.iter().zip(&before).enumerate() {
            if i != slot && !same_value(a, b) {
                return Ok(false);
            }
        }

        // The condition, on a variable that is on one side of where it starts.
        let r = Range::of(t);
        let side = if by > 0 { Range::new(lo.sure().lo, r.hi) } else { Range::new(r.lo, lo.sure().hi) };
        let probe = Sx::loop_var(id, side, side, None);
        self.set(slot, Value::Int(probe.clone(), t));
        let c = self.condition(cond)?;
        let Some(hi) = bound_of(&c, id, by, &lo, t, self.in_item) else { return Ok(false) };
        self.slots = before;
        // An unsigned variable must not wrap before it meets its bound.
        if matches!(t, IntTy::U8 | IntTy::U16 | IntTy::U32 | IntTy::Bool)
            && by > 0
            && i128::from(hi.sure().hi) - 1 + i128::from(by) > i128::from(r.hi)
        {
            return Ok(false);
        }
        if !t.signed() && by < 0 && hi.sure().lo < 0 {
            return Ok(false);
        }
        let trips = trip_count(&lo, &hi, by);
        if trips.constant() == Some(0) {
            return Ok(true);
        }

        // What the variable can be inside.
        let constants = lo.constant().zip(hi.constant());
        let set: Option<Rc<[i64]>> = match (constants, trips.constant()) {
            (Some((a, _)), Some(n)) if n <= 64 => {
                let mut v: Vec<i64> = (0..n).filter_map(|k| k.checked_mul(by).and_then(|d| a.checked_add(d))).collect();
                v.sort_unstable();
                Some(v.into())
            }
            _ => None,
        };
        let inside = |a: Range, b: Range| {
            if by > 0 {
                Range::new(a.lo, b.hi.saturating_sub(1).max(a.lo))
            } else {
                Range::new(b.lo.saturating_add(1).min(a.hi), a.hi)
            }
        };
        let sure = inside(lo.sure(), hi.sure());
        let likely = inside(lo.likely(), hi.likely());
        let leaf = Sx::loop_var(id, sure, likely, set);

        // First round: which variables change?
        let mut start = self.save();
        let mut carried: Vec<usize> = Vec::new();
        let mut closed: Vec<(usize, Value)> = Vec::new();
        let mut last: Vec<(usize, Value)> = Vec::new();
        self.analysis += 1;
        let mut body = self.body(l, slot, &leaf, t, &[])?;
        let mut loads = self.loads_of_iterations(&start);
        let changed = self.changes(&start, slot);
        if changed.is_empty() && loads.is_some() {
            // Loads of one iteration may be waited for in the next.
            start.tags = loads.take().unwrap_or_default();
            self.restore(&start);
            body = self.body(l, slot, &leaf, t, &[])?;
        } else if changed.is_empty() && (self.analysis > 1 || self.form != Some(Form::Tag)) {
            // Nothing is carried: what was emitted stands.
            self.analysis = start.analysis;
        } else if changed.is_empty() {
            self.restore(&start);
            body = self.body(l, slot, &leaf, t, &[])?;
        }
        if !changed.is_empty() {
            carried.extend(changed);
            // Second round: how do they change? Repeated while more of them turn up.
            let mut settled = false;
            for _ in 0..4 {
                let mut symbols: Vec<(usize, Value)> = Vec::new();
                let mut phis: Vec<(u32, Sx)> = Vec::new();
                for &s in &carried {
                    let init = start.slots.get(s).cloned().unwrap_or(Value::Void);
                    symbols.push((s, self.symbol(&init, &mut phis)));
                }
                self.restore(&start);
                self.analysis += 1;
                self.body(l, slot, &leaf, t, &symbols)?;
                loads = self.loads_of_iterations(&start).or(loads);
                let more: Vec<usize> = self.changes(&start, slot).into_iter().filter(|s| !carried.contains(s)).collect();
                if !more.is_empty() {
                    carried.extend(more);
                    continue;
                }
                let news: Vec<Value> =
                    carried.iter().map(|s| self.slots.get(*s).cloned().unwrap_or(Value::Void)).collect();
                let mut updates: Vec<(u32, Sx)> = Vec::new();
                let olds: Vec<&Value> = symbols.iter().map(|(_, v)| v).collect();
                for (old, new) in olds.iter().zip(&news) {
                    if !pair(old, new, &mut updates) {
                        return Err(Diag::unsupported(l.pos, "a variable that changes its kind in a loop").unrollable());
                    }
                }
                let forms = close(&phis, &updates, &leaf, id, &lo, by, &trips).map_err(|_| {
                    Diag::unsupported(l.pos, "a variable carried from iteration to iteration in a way that has no closed form")
                        .hint("only loops with a small constant number of iterations may do this")
                        .unrollable()
                })?;
                let fill = |v: &Value| map_value(v, &|x| substitute(x, &forms.start));
                closed = symbols.iter().map(|(s, v)| (*s, fill(v))).collect();
                let fill = |v: &Value| map_value(v, &|x| substitute(x, &forms.end));
                last = symbols.iter().map(|(s, v)| (*s, fill(v))).collect();
                settled = true;
                break;
            }
            if !settled {
                return Err(Diag::unsupported(l.pos, "variables of a loop that depend on each other like these").unrollable());
            }
            // Third round: with the closed forms.
            self.restore(&start);
            if self.form == Some(Form::Tag) {
                self.analysis += 1;
                self.body(l, slot, &leaf, t, &closed)?;
                loads = self.loads_of_iterations(&start).or(loads);
                if let Some(l) = loads {
                    start.tags = l;
                }
                self.restore(&start);
            }
            body = self.body(l, slot, &leaf, t, &closed)?;
        }
        let after_tags = std::mem::take(&mut self.tags);
        self.slots = start.slots.clone();
        self.scopes = start.scopes.clone();
        for (s, v) in last {
            self.set(s, v);
        }
        // A load at the end of one iteration may be what a barrier at the start of the next waits for.
        self.tags = after_tags;
        for (k, t) in &start.tags {
            match self.tags.get_mut(k) {
                None => {
                    self.tags.insert(*k, t.clone());
                }
                Some(mine) => {
                    if trips.sure().lo <= 0 {
                        join_tag(mine, t);
                    }
                }
            }
        }
        let end = Sx::binary(BinaryOp::Add, &lo, &Sx::binary(BinaryOp::Mul, &trips, &Sx::int(by)));
        self.set(slot, Value::Int(end.cast(t), t));
        if !body.is_empty() {
            self.emit(Ir::For { id, name: name.clone(), lo, hi, step: by, body, pos: l.pos }, l.pos)?;
        }
        Ok(true)
    }

    /// Loads that may be current when an iteration starts, if those of the body add any.
    fn loads_of_iterations(&self, start: &Saved) -> Option<BTreeMap<(i64, i64), TagLoad>> {
        let mut all = start.tags.clone();
        let mut more = false;
        for (k, t) in &self.tags {
            match all.get_mut(k) {
                None => {
                    all.insert(*k, t.clone());
                    more = true;
                }
                Some(mine) => {
                    let known = mine.elements.is_some();
                    join_tag(mine, t);
                    more |= known && mine.elements.is_none();
                }
            }
        }
        more.then_some(all)
    }

    fn set(&mut self, slot: usize, v: Value) {
        if let Some(s) = self.slots.get_mut(slot) {
            *s = v;
        }
    }

    /// Follows the body once; what it emits is returned.
    fn body(&mut self, l: &LoopParts<'_>, slot: usize, leaf: &Sx, t: IntTy, symbols: &[(usize, Value)]) -> Res<Vec<Ir>> {
        self.set(slot, Value::Int(leaf.clone(), t));
        for (s, v) in symbols {
            self.set(*s, v.clone());
        }
        let outer = std::mem::take(&mut self.out);
        let depth = self.scopes.len();
        let flow = match l.tail {
            None => self.one(l.body, true),
            Some(head) => {
                self.push_scope();
                self.run(&Seq { stmts: head, pop: false, next: None }, true)
            }
        };
        let body = std::mem::replace(&mut self.out, outer);
        let flow = flow?;
        while self.scopes.len() > depth {
            self.pop_scope();
        }
        match flow {
            Flow::Next | Flow::Continue => {}
            _ => return Err(Diag::unsupported(l.pos, "leaving a loop in its first iteration").unrollable()),
        }
        match self.slots.get(slot) {
            Some(Value::Int(x, _)) if x.same(leaf) => Ok(body),
            _ => Err(Diag::unsupported(l.pos, "a loop variable that is changed inside its loop").unrollable()),
        }
    }

    fn changes(&self, start: &Saved, slot: usize) -> Vec<usize> {
        self.slots
            .iter()
            .zip(&start.slots)
            .enumerate()
            .filter(|(i, (a, b))| *i != slot && !same_value(a, b))
            .map(|(i, _)| i)
            .collect()
    }

    /// `init` with its integers replaced by symbols for the value at the start of an iteration.
    fn symbol(&mut self, init: &Value, phis: &mut Vec<(u32, Sx)>) -> Value {
        match init {
            Value::Int(x, t) => {
                let id = self.phis;
                self.phis += 1;
                phis.push((id, x.clone()));
                Value::Int(Sx::phi(id, *t), *t)
            }
            Value::Arr(v) => Value::Arr(Rc::new(v.iter().map(|x| self.symbol(x, phis)).collect())),
            Value::Struct(v) => Value::Struct(Rc::new(v.iter().map(|(n, x)| (n.clone(), self.symbol(x, phis))).collect())),
            Value::Undef(t) => Value::Undef(*t),
            other => other.clone(),
        }
    }

    // ---- the trace calls ----

    fn abi_call(&mut self, n: &str, args: &[Expr], pos: Pos) -> Res<Value> {
        let mut v = Vec::new();
        for a in args {
            v.push(self.eval(a)?);
        }
        match n {
            "togsim_abi_version" => return Ok(Value::int(i64::from(self.abi.unwrap_or(15)), IntTy::I32)),
            "togsim_core_alloc" => {
                if self.in_item {
                    return Err(Diag::value(pos, "togsim_core_alloc inside a dispatched work-item"));
                }
                self.core_alloc = true;
                self.tags.clear();
                self.emit(Ir::Mark { pos }, pos)?;
                return Ok(Value::int(0, IntTy::I32));
            }
            "togsim_compute_barrier" => {
                self.note("togsim_compute_barrier is left to the buffers: a store waits for what wrote its buffer".into());
                return Ok(Value::Void);
            }
            _ => {}
        }
        if !matches!(v.first(), Some(Value::Ctx)) {
            return Err(Diag::value(pos, format!("the first argument of {n} is not the EmitCtx")));
        }
        match n {
            "togsim_dispatch" => self.dispatch(&v, pos)?,
            "togsim_dma" => self.dma(&v, pos)?,
            "togsim_compute" => self.compute(&v, pos)?,
            "togsim_memory_barrier" => self.barrier(&v, pos)?,
            "togsim_wait" | "togsim_wait_all" | "togsim_signal" | "togsim_event_alloc" | "togsim_event_free" => {
                return Err(Diag::unsupported(pos, format_args!("{n} (trace ABI 10 or older)")));
            }
            _ => return Err(Diag::unsupported(pos, format_args!("the call {n}"))),
        }
        Ok(Value::Void)
    }

    fn arg(&self, v: &[Value], i: usize, t: IntTy, pos: Pos) -> Res<Sx> {
        let x = v.get(i).cloned().unwrap_or(Value::Void);
        Ok(self.as_int(x, pos)?.0.cast(t))
    }

    fn dispatch(&mut self, v: &[Value], pos: Pos) -> Res<()> {
        if self.in_item {
            return Err(Diag::value(pos, "a work-item that dispatches another"));
        }
        let (Some(f), Some(iv)) = (v.get(1), v.get(2)) else {
            return Err(Diag::syntax(pos, "togsim_dispatch takes 4 or 5 arguments"));
        };
        if v.len() != 4 && v.len() != 5 {
            return Err(Diag::syntax(pos, format!("togsim_dispatch takes 4 or 5 arguments, {} given", v.len())));
        }
        if v.len() == 5 && self.form == Some(Form::Tag) {
            self.tag_extra = true;
        }
        let n = self.arg(v, 3, IntTy::I32, pos)?;
        let before = self.save();
        let outer = std::mem::take(&mut self.out);
        self.in_item = true;
        self.tags.clear();
        let n = Value::Int(n, IntTy::I32);
        match f {
            Value::Function(f) => {
                if f.params.len() != 3 {
                    return Err(Diag::value(pos, format!("{} takes three parameters as a tile function", f.name)));
                }
                self.call_function(&f.clone(), vec![Value::Ctx, iv.clone(), n], pos)?;
            }
            Value::Lambda(c) => {
                let c = c.clone();
                let args = [Value::Ctx, iv.clone(), n].into_iter().map(Arg::Value).collect();
                if c.lambda.params.len() != 3 {
                    return Err(Diag::value(pos, "a tile function takes three parameters"));
                }
                self.enter_call(pos, &c.lambda.params, args, &c.lambda.body, None, c.scopes.clone())?;
            }
            other => return Err(Diag::value(pos, format!("{} is dispatched, not a function", other.what()))),
        }
        for (a, b) in self.slots.iter().zip(&before.slots) {
            if !same_value(a, b) {
                return Err(Diag::unsupported(pos, "a work-item that changes variables of another"));
            }
        }
        let body = std::mem::replace(&mut self.out, outer);
        self.in_item = false;
        self.tags = before.tags;
        self.emit(Ir::Item { body, pos }, pos)
    }

    /// The elements of an array argument.
    fn list(&mut self, base: &Value, n: i64, what: &str, pos: Pos) -> Res<Vec<Sx>> {
        if !(0..=4096).contains(&n) {
            return Err(Diag::value(pos, format!("{n} {what}")));
        }
        let mut out = Vec::new();
        for i in 0..n {
            if matches!(base, Value::Null) {
                return Err(Diag::value(pos, format!("{n} {what} behind a null pointer")));
            }
            let v = self.load(base, &Sx::int(i), pos)?;
            let (x, t) = self.as_int(v, pos)?;
            if t.bits() != 64 {
                return Err(Diag::value(pos, format!("{what} are int64_t, this array is {}", t.name())));
            }
            out.push(x);
        }
        Ok(out)
    }

    /// Calls `f` with constants for `x`; values that depend on a few cases become an `if` over them.
    fn cases(
        &mut self,
        x: &[(&'static str, Sx)],
        pos: Pos,
        f: &mut dyn FnMut(&mut Self, &[i64]) -> Res<()>,
    ) -> Res<()> {
        self.spend(x.len() as u64 + 1, pos)?;
        let Some((what, e)) = x.iter().find(|(_, e)| e.constant().is_none()) else {
            let v: Vec<i64> = x.iter().filter_map(|(_, e)| e.constant()).collect();
            return f(self, &v);
        };
        let Some(values) = e.values() else {
            if self.analysis > 0 && e.mentions(&|k| matches!(k, super::sym::Kind::Phi(_))) {
                // Its cases are known once the loop around it is understood.
                return Ok(());
            }
            return Err(Diag::unsupported(pos, format_args!("{what} that is not known before launch")).unrollable());
        };
        let e = e.clone();
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(Diag::deep(pos, "too many cases"));
        }
        let r = self.case(x, &e, &values, 0, pos, f);
        self.nesting = self.nesting.saturating_sub(1);
        r
    }

    fn case(
        &mut self,
        x: &[(&'static str, Sx)],
        e: &Sx,
        values: &[i64],
        k: usize,
        pos: Pos,
        f: &mut dyn FnMut(&mut Self, &[i64]) -> Res<()>,
    ) -> Res<()> {
        let Some(&v) = values.get(k) else { return Ok(()) };
        let here: Vec<(&'static str, Sx)> = x
            .iter()
            .map(|(w, y)| (*w, y.replace(&|z| if Rc::ptr_eq(&z.0, &e.0) || z.same(e) { Some(Sx::int(v)) } else { None })))
            .collect();
        if k + 1 >= values.len() {
            return self.cases(&here, pos, f);
        }
        let c = Sx::binary(BinaryOp::Eq, e, &Sx::int(v));
        // Both ways need `f`, one after the other.
        let f = std::cell::RefCell::new(f);
        self.branch(
            &c,
            pos,
            |s| s.cases(&here, pos, &mut **f.borrow_mut()),
            |s| s.case(x, e, values, k + 1, pos, &mut **f.borrow_mut()),
        )?;
        Ok(())
    }

    fn settle_form(&mut self, f: Form, pos: Pos) -> Res<()> {
        if let Some(a) = self.abi
            && (a >= 14) != (f == Form::Sem)
        {
            return Err(Diag::value(pos, format!("this call has not the shape of trace ABI {a}")));
        }
        match self.form {
            Some(g) if g != f => Err(Diag::value(pos, "calls of two trace ABIs in one producer")),
            _ => {
                self.form = Some(f);
                Ok(())
            }
        }
    }

    fn dma(&mut self, v: &[Value], pos: Pos) -> Res<()> {
        let zero = |i: usize| matches!(v.get(i), Some(Value::Int(x, _)) if x.constant() == Some(0));
        let ptr = |i: usize| v.get(i).is_some_and(Value::pointer_like);
        let maybe = |i: usize| ptr(i) || zero(i);
        let form = match v.len() {
            15 if maybe(10) && maybe(12) && !(ptr(11) || ptr(13)) => Form::Sem,
            15 if maybe(11) && maybe(13) && !(ptr(10) || ptr(12)) => Form::Tag,
            16 if maybe(11) && maybe(13) => {
                self.tag_extra = true;
                Form::Tag
            }
            14 if maybe(10) && maybe(12) => Form::Sem,
            n => {
                return Err(Diag::value(pos, format!("togsim_dma with {n} arguments of this kind is no known trace ABI"))
                    .hint("ABI 11 to 15 are known"));
            }
        };
        self.settle_form(form, pos)?;
        let tag = form == Form::Tag;
        let at = usize::from(tag);
        let ndim = self.arg(v, 4, IntTy::I32, pos)?;
        let Some(ndim) = ndim.constant() else {
            return Err(Diag::unsupported(pos, "a number of dimensions that is not constant").unrollable());
        };
        if !(0..=8).contains(&ndim) {
            return Err(Diag::value(pos, format!("{ndim} dimensions")));
        }
        let offset = self.arg(v, 3, IntTy::U64, pos)?;
        let (dims_at, strides_at) = (v.get(5).cloned().unwrap_or(Value::Null), v.get(6).cloned().unwrap_or(Value::Null));
        let dims = self.list(&dims_at, ndim, "dims", pos)?;
        let null = matches!(strides_at, Value::Null) || matches!(&strides_at, Value::Int(x, _) if x.constant() == Some(0));
        let strides = if null {
            // No strides: contiguous, last dimension fastest.
            let mut s = vec![Sx::int(1)];
            for d in dims.iter().skip(1).rev() {
                let next = Sx::binary(BinaryOp::Mul, s.last().unwrap_or(&Sx::int(1)), d);
                s.push(next);
            }
            s.reverse();
            s.truncate(dims.len());
            s
        } else {
            self.list(&strides_at, ndim, "strides", pos)?
        };
        let mut x = vec![
            ("a direction", self.arg(v, 1, IntTy::I32, pos)?),
            ("a tensor", self.arg(v, 2, IntTy::I32, pos)?),
            ("an element width", self.arg(v, 7, IntTy::I32, pos)?),
            ("a choice of asynchronous", self.arg(v, 8, IntTy::I32, pos)?.truth()),
        ];
        // Tag and slot, or the semaphore, matter to asynchronous transfers only.
        let asynchronous = x.get(3).and_then(|(_, e)| e.constant()) != Some(0);
        let store = x.first().and_then(|(_, e)| e.constant()) == Some(1);
        let ids = if !asynchronous || (store && tag) {
            [Sx::int(0), Sx::int(0)]
        } else if tag {
            [self.arg(v, 9, IntTy::I32, pos)?, self.arg(v, 10, IntTy::U64, pos)?]
        } else {
            [self.arg(v, 9, IntTy::U64, pos)?, Sx::int(0)]
        };
        x.push(("a tag or semaphore", ids[0].clone()));
        x.push(("a tag slot", ids[1].clone()));
        let indirect_at = 14 + at;
        let indirect = if v.len() > indirect_at { self.arg(v, indirect_at, IntTy::I32, pos)?.truth() } else { Sx::int(0) };
        x.push(("a choice of indirect", indirect));
        let fixed = x.len();
        let nr = self.buffers(v, 10 + at, &mut x, pos)?;
        self.buffers(v, 12 + at, &mut x, pos)?;
        self.need_item(pos)?;
        self.cases(&x, pos, &mut |s, c| {
            let get = |i: usize| c.get(i).copied().unwrap_or(0);
            let store = match get(0) {
                0 => false,
                1 => true,
                d => return Err(Diag::value(pos, format!("direction {d} is neither 0 (load) nor 1 (store)"))),
            };
            let is_async = get(3) != 0;
            let key = if !is_async {
                None
            } else if tag {
                // A store finishes when it is issued and nothing waits for it by tag.
                if store { None } else { Some(SemKey::Tag(get(4), get(5))) }
            } else {
                Some(SemKey::Sem(get(4)))
            };
            let reads = c.get(fixed..fixed + nr).unwrap_or_default().to_vec();
            let writes = c.get(fixed + nr..).unwrap_or_default().to_vec();
            if let (Some(SemKey::Tag(a, b)), false) = (key, store) {
                let mut n = Sx::int(1);
                for d in &dims {
                    n = Sx::binary(BinaryOp::Mul, &n, d);
                }
                s.tags.insert((a, b), TagLoad { elements: Some(n), writes: writes.clone() });
            }
            let d = DmaIr {
                store,
                arg: get(1),
                offset: offset.clone(),
                dims: dims.iter().cloned().zip(strides.iter().cloned()).collect(),
                bits: get(2),
                key,
                reads,
                writes,
                indirect: get(6) != 0,
                pos,
            };
            s.emit(Ir::Dma(Box::new(d)), pos)
        })
    }

    fn need_item(&self, pos: Pos) -> Res<()> {
        if self.in_item || self.core_alloc {
            return Ok(());
        }
        Err(Diag::value(pos, "a trace call outside any work-item").hint("calls belong into the function that togsim_dispatch runs"))
    }

    /// A buffer list argument (pointer, count); its elements are added to `x`.
    fn buffers(&mut self, v: &[Value], at: usize, x: &mut Vec<(&'static str, Sx)>, pos: Pos) -> Res<usize> {
        let n = self.arg(v, at + 1, IntTy::I32, pos)?;
        let Some(n) = n.constant() else {
            return Err(Diag::unsupported(pos, "a number of buffers that is not constant").unrollable());
        };
        if n == 0 {
            return Ok(0);
        }
        let base = match v.get(at) {
            Some(Value::Int(..)) | None => Value::Null,
            Some(p) => p.clone(),
        };
        let list = self.list(&base, n.min(4097), "buffers", pos)?;
        let len = list.len();
        x.extend(list.into_iter().map(|b| ("a buffer", b)));
        Ok(len)
    }

    fn compute(&mut self, v: &[Value], pos: Pos) -> Res<()> {
        if v.len() != 9 {
            return Err(Diag::syntax(pos, format!("togsim_compute takes 9 arguments, {} given", v.len())));
        }
        let mut x =
            vec![("a compute tile", self.arg(v, 1, IntTy::U64, pos)?), ("a compute unit", self.arg(v, 2, IntTy::I32, pos)?)];
        let nr = self.buffers(v, 5, &mut x, pos)?;
        self.buffers(v, 7, &mut x, pos)?;
        self.need_item(pos)?;
        self.cases(&x, pos, &mut |s, c| {
            let get = |i: usize| c.get(i).copied().unwrap_or(0);
            if !(0..=3).contains(&get(1)) {
                return Err(Diag::value(pos, format!("compute type {} is none of 0 to 3", get(1))));
            }
            let reads = c.get(2..2 + nr).unwrap_or_default().to_vec();
            let writes = c.get(2 + nr..).unwrap_or_default().to_vec();
            s.emit(Ir::Compute { tile: get(0), unit: get(1), reads, writes, pos }, pos)
        })
    }

    fn barrier(&mut self, v: &[Value], pos: Pos) -> Res<()> {
        self.need_item(pos)?;
        match v.len() {
            3 => {
                self.settle_form(Form::Sem, pos)?;
                let sem = self.arg(v, 1, IntTy::U64, pos)?;
                let expected = self.arg(v, 2, IntTy::I64, pos)?;
                self.cases(&[("a semaphore", sem)], pos, &mut |s, c| {
                    let key = SemKey::Sem(c.first().copied().unwrap_or(0));
                    s.emit(Ir::Wait { key, expected: expected.clone(), pos }, pos)
                })
            }
            5 => {
                self.settle_form(Form::Tag, pos)?;
                let mut x =
                    vec![("a tag", self.arg(v, 1, IntTy::I32, pos)?), ("a tag slot", self.arg(v, 2, IntTy::U64, pos)?)];
                self.buffers(v, 3, &mut x, pos)?;
                self.cases(&x, pos, &mut |s, c| {
                    let key = (c.first().copied().unwrap_or(0), c.get(1).copied().unwrap_or(0));
                    let Some(load) = s.tags.get(&key).cloned() else {
                        if s.analysis > 0 {
                            return Ok(());
                        }
                        return Err(Diag::value(
                            pos,
                            format!("a barrier on tag {} slot {} before any asynchronous load on it", key.0, key.1),
                        )
                        .unrollable());
                    };
                    let Some(elements) = load.elements else {
                        return Err(Diag::unsupported(
                            pos,
                            format_args!("a barrier on tag {} slot {} whose loads differ in size", key.0, key.1),
                        )
                        .unrollable());
                    };
                    let mut named = c.get(2..).unwrap_or_default().to_vec();
                    let mut loaded = load.writes.clone();
                    named.sort_unstable();
                    loaded.sort_unstable();
                    if named != loaded {
                        s.note(format!(
                            "line {}: the barrier names buffers {named:?}, its load fills {loaded:?}; the wait fills the latter",
                            pos.line
                        ));
                    }
                    s.emit(Ir::Wait { key: SemKey::Tag(key.0, key.1), expected: elements, pos }, pos)
                })
            }
            n => Err(Diag::value(pos, format!("togsim_memory_barrier with {n} arguments is no known trace ABI"))),
        }
    }
}

/// Whether evaluating an expression changes nothing.
fn pure(e: &Expr) -> bool {
    match &e.kind {
        ExprKind::Int(..) | ExprKind::Bool(_) | ExprKind::Null | ExprKind::Name(_) | ExprKind::SizeofType(_) => true,
        ExprKind::Unary(op, a) => {
            !matches!(op, UnOp::PreInc | UnOp::PreDec | UnOp::PostInc | UnOp::PostDec) && pure(a)
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
        "togsim_dma" | "togsim_compute" | "togsim_memory_barrier" | "togsim_dispatch" | "togsim_core_alloc"
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
        Value::Arr(_) => Value::Ptr(Ptr { slot: place.slot, path: place.path, off: Sx::int(0), single: false }),
        v => v,
    }
}

fn zeroed(v: &Value) -> Value {
    match v {
        Value::Undef(Some(t)) => Value::int(0, *t),
        Value::Undef(None) => Value::Null,
        Value::Arr(x) => Value::Arr(Rc::new(x.iter().map(zeroed).collect())),
        Value::Struct(x) => Value::Struct(Rc::new(x.iter().map(|(n, v)| (n.clone(), zeroed(v))).collect())),
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
    let Some((first, rest)) = path.split_first() else { return Ok(v.clone()) };
    match (first, v) {
        (Step::Index(i), Value::Arr(items)) => match i.constant() {
            Some(k) => match usize::try_from(k).ok().and_then(|k| items.get(k)) {
                Some(x) => read_path(x, rest, pos),
                None => Err(Diag::value(pos, format!("element {k} of an array of {}", items.len()))),
            },
            None => {
                let inside: Vec<usize> = match i.values() {
                    Some(s) => s.iter().filter_map(|&k| usize::try_from(k).ok()).filter(|k| *k < items.len()).collect(),
                    None if items.len() <= 64 => (0..items.len()).collect(),
                    None => {
                        let d = Diag::unsupported(pos, "an index into a table of more than 64 elements that is not constant");
                        return Err(d.unrollable());
                    }
                };
                let Some((&last, head)) = inside.split_last() else {
                    return Err(Diag::value(pos, format!("an index outside an array of {}", items.len())));
                };
                let at = |k: usize| items.get(k).ok_or_else(|| Diag::value(pos, "an index outside an array"));
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
        (Step::Index(_), other) => Err(Diag::unsupported(pos, format_args!("an index into {}", other.what()))),
        (Step::Field(n), other) => Err(Diag::syntax(pos, format!("field {n} of {}", other.what()))),
    }
}

fn write_path(old: &Value, path: &[Step], new: Value, pos: Pos) -> Res<Value> {
    let Some((first, rest)) = path.split_first() else { return Ok(new) };
    match (first, old) {
        (Step::Index(i), Value::Arr(items)) => {
            let mut items = items.to_vec();
            match i.constant() {
                Some(k) => {
                    let n = items.len();
                    match usize::try_from(k).ok().and_then(|k| items.get_mut(k)) {
                        Some(x) => *x = write_path(x, rest, new, pos)?,
                        None => return Err(Diag::value(pos, format!("element {k} of an array of {n}"))),
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
                    let d = Diag::unsupported(pos, "a change of an element of a large array whose index is not constant");
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
        (_, other) => Err(Diag::unsupported(pos, format_args!("a change of a part of {}", other.what()))),
    }
}

/// How often a loop runs.
pub(crate) fn trips(lo: &Sx, hi: &Sx, step: i64) -> Sx {
    trip_count(lo, hi, step)
}

mod loops;
use loops::{bound_of, close, pair, step_of, substitute, trip_count};
