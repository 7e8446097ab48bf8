//! Values, storage and the intermediate form of a producer being read.

use std::collections::HashMap;
use std::rc::Rc;

use super::cpp::ast::{Function, IntTy, Lambda};
use super::diag::Pos;
use super::sym::Sx;

/// What a C++ expression stands for.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Void,
    /// Declared and not yet set.
    Undef(Option<IntTy>),
    /// Set on some path in a way that cannot be written down; reading it is an error.
    Poison(Option<IntTy>, Rc<str>),
    /// An integer. Unsigned 64-bit numbers keep their bit pattern.
    Int(Sx, IntTy),
    Null,
    /// The `EmitCtx*`.
    Ctx,
    /// A pointer into the shape arguments.
    Shape(Sx),
    Function(Rc<Function>),
    Lambda(Rc<Closure>),
    Ptr(Ptr),
    Arr(Rc<Vec<Value>>),
    Struct(Rc<Vec<(Rc<str>, Value)>>),
    /// One of two pointers.
    Choice(Sx, Rc<Value>, Rc<Value>),
}

#[derive(Debug)]
pub(crate) struct Closure {
    pub lambda: Rc<Lambda>,
    pub scopes: Vec<Scope>,
}

/// A pointer to element `off` of the array at a place.
#[derive(Clone, Debug)]
pub(crate) struct Ptr {
    pub slot: usize,
    pub path: Vec<Step>,
    pub off: Sx,
    /// It points at a single object, not into an array.
    pub single: bool,
}

/// One step from an object to a part of it.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Index(Sx),
    Field(Rc<str>),
}

/// Where a value is kept.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub slot: usize,
    pub path: Vec<Step>,
}

/// The names of a block and the number of slots when it began.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    pub names: HashMap<Rc<str>, usize>,
    pub mark: usize,
}

impl Value {
    pub(crate) fn int(v: i64, t: IntTy) -> Value {
        Value::Int(Sx::int(v), t)
    }

    /// A pointer, or something that converts to one.
    pub(crate) fn pointer_like(&self) -> bool {
        matches!(
            self,
            Value::Null | Value::Ptr(_) | Value::Choice(..) | Value::Arr(_) | Value::Shape(_)
        )
    }

    pub(crate) fn what(&self) -> &'static str {
        match self {
            Value::Void => "nothing",
            Value::Undef(_) => "a variable that was never set",
            Value::Poison(..) => "a variable whose value is not known here",
            Value::Int(..) => "an integer",
            Value::Null => "a null pointer",
            Value::Ctx => "the EmitCtx",
            Value::Shape(_) => "the shape arguments",
            Value::Function(_) | Value::Lambda(_) => "a function",
            Value::Ptr(_) | Value::Choice(..) => "a pointer",
            Value::Arr(_) => "an array",
            Value::Struct(_) => "a structure",
        }
    }
}

/// Whether two values are certainly equal.
pub(crate) fn same_value(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Int(x, t), Value::Int(y, u)) => t == u && x.same(y),
        (Value::Void, Value::Void) | (Value::Null, Value::Null) | (Value::Ctx, Value::Ctx) => true,
        (Value::Undef(_), Value::Undef(_)) | (Value::Poison(..), Value::Poison(..)) => true,
        (Value::Shape(x), Value::Shape(y)) => x.same(y),
        (Value::Function(f), Value::Function(g)) => Rc::ptr_eq(f, g),
        (Value::Lambda(f), Value::Lambda(g)) => Rc::ptr_eq(f, g),
        (Value::Ptr(p), Value::Ptr(q)) => {
            p.slot == q.slot && same_path(&p.path, &q.path) && p.off.same(&q.off)
        }
        (Value::Arr(x), Value::Arr(y)) => {
            Rc::ptr_eq(x, y)
                || (x.len() == y.len() && x.iter().zip(y.iter()).all(|(a, b)| same_value(a, b)))
        }
        (Value::Struct(x), Value::Struct(y)) => {
            Rc::ptr_eq(x, y)
                || (x.len() == y.len()
                    && x.iter().zip(y.iter()).all(|(a, b)| same_value(&a.1, &b.1)))
        }
        (Value::Choice(c, a, b), Value::Choice(d, x, y)) => {
            c.same(d) && same_value(a, x) && same_value(b, y)
        }
        _ => false,
    }
}

pub(crate) fn same_path(a: &[Step], b: &[Step]) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|(x, y)| match (x, y) {
            (Step::Index(i), Step::Index(j)) => i.same(j),
            (Step::Field(f), Step::Field(g)) => f == g,
            _ => false,
        })
}

/// The value after a branch on `c`.
pub(crate) fn merge(c: &Sx, a: &Value, b: &Value) -> Value {
    if same_value(a, b) {
        return a.clone();
    }
    match (a, b) {
        (Value::Int(x, t), Value::Int(y, u)) if t == u => Value::Int(Sx::select(c, x, y), *t),
        // Reading a variable that was never set is undefined, so the other path decides.
        (Value::Undef(_), v) | (v, Value::Undef(_)) => v.clone(),
        (Value::Arr(x), Value::Arr(y)) if x.len() == y.len() => Value::Arr(Rc::new(
            x.iter()
                .zip(y.iter())
                .map(|(p, q)| merge(c, p, q))
                .collect(),
        )),
        (Value::Struct(x), Value::Struct(y)) if x.len() == y.len() => {
            let f = x
                .iter()
                .zip(y.iter())
                .map(|((n, p), (_, q))| (n.clone(), merge(c, p, q)));
            Value::Struct(Rc::new(f.collect()))
        }
        (
            Value::Ptr(_) | Value::Null | Value::Choice(..),
            Value::Ptr(_) | Value::Null | Value::Choice(..),
        ) => Value::Choice(c.clone(), Rc::new(a.clone()), Rc::new(b.clone())),
        (Value::Int(_, t), _) | (_, Value::Int(_, t)) => {
            Value::Poison(Some(*t), "it is set differently on two paths".into())
        }
        _ => Value::Poison(None, "it is set differently on two paths".into()),
    }
}

/// The value with its integers replaced.
pub(crate) fn map_value(v: &Value, f: &dyn Fn(&Sx) -> Sx) -> Value {
    match v {
        Value::Int(x, t) => Value::Int(f(x), *t),
        Value::Shape(x) => Value::Shape(f(x)),
        Value::Ptr(p) => Value::Ptr(Ptr {
            off: f(&p.off),
            path: p.path.iter().map(|s| map_step(s, f)).collect(),
            ..*p
        }),
        Value::Arr(x) => Value::Arr(Rc::new(x.iter().map(|v| map_value(v, f)).collect())),
        Value::Struct(x) => Value::Struct(Rc::new(
            x.iter()
                .map(|(n, v)| (n.clone(), map_value(v, f)))
                .collect(),
        )),
        Value::Choice(c, a, b) => {
            Value::Choice(f(c), Rc::new(map_value(a, f)), Rc::new(map_value(b, f)))
        }
        other => other.clone(),
    }
}

fn map_step(s: &Step, f: &dyn Fn(&Sx) -> Sx) -> Step {
    match s {
        Step::Index(i) => Step::Index(f(i)),
        Step::Field(n) => Step::Field(n.clone()),
    }
}

/// How an asynchronous load and its wait are paired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SemKey {
    /// A semaphore (ABI 14 and later).
    Sem(i64),
    /// A tag and its slot (ABI 11 to 13).
    Tag(i64, i64),
}

/// What a producer does, with its loops.
#[derive(Clone, Debug)]
pub(crate) enum Ir {
    For {
        id: u32,
        name: Rc<str>,
        lo: Sx,
        hi: Sx,
        step: i64,
        body: Vec<Ir>,
        pos: Pos,
    },
    If {
        cond: Sx,
        then: Vec<Ir>,
        otherwise: Vec<Ir>,
        pos: Pos,
    },
    Dma(Box<DmaIr>),
    Compute {
        tile: i64,
        unit: i64,
        reads: Vec<i64>,
        writes: Vec<i64>,
        pos: Pos,
    },
    Wait {
        key: SemKey,
        expected: Sx,
        pos: Pos,
    },
    /// One work-item.
    Item {
        body: Vec<Ir>,
        pos: Pos,
    },
    /// ABI 11: a work-item starts here.
    Mark {
        pos: Pos,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct DmaIr {
    pub store: bool,
    pub arg: i64,
    pub offset: Sx,
    pub dims: Vec<(Sx, Sx)>,
    pub bits: i64,
    pub key: Option<SemKey>,
    pub reads: Vec<i64>,
    pub writes: Vec<i64>,
    pub indirect: bool,
    pub pos: Pos,
}
