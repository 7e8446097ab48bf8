//! Symbolic 64-bit values: a shared graph of the trace language's own operators, with what is known
//! about each value's range.
//!
//! Two ranges are kept. `sure` holds for every launch: a truncation or an unsigned comparison is
//! simplified only on its word. `likely` assumes fewer than 2^32 work-items an axis: a wrapping
//! operator is written as a plain (checked) one when `likely` says that it cannot overflow. If a
//! launch breaks the assumption, the checked operator is an error that names the op, never another
//! value.

use std::collections::HashMap;
use std::rc::Rc;

use crate::expr;
use crate::model::{BinaryOp, UnaryOp};

use super::cpp::ast::IntTy;

/// Values that a set may hold.
const MAX_SET: usize = 64;
/// Levels that a value may have while it is built (the trace itself allows fewer).
pub(crate) const MAX_DEPTH: u32 = 900;

/// A closed interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub lo: i64,
    pub hi: i64,
}

impl Range {
    pub(crate) const FULL: Range = Range {
        lo: i64::MIN,
        hi: i64::MAX,
    };
    pub(crate) const NAT: Range = Range {
        lo: 0,
        hi: i64::MAX,
    };
    /// Program ids and shape arguments under the assumption above.
    pub(crate) const LIKELY: Range = Range { lo: 0, hi: 1 << 32 };

    pub(crate) fn new(lo: i64, hi: i64) -> Range {
        Range { lo, hi }
    }

    pub(crate) fn of(t: IntTy) -> Range {
        match t {
            IntTy::Bool => Range::new(0, 1),
            IntTy::I8 => Range::new(-128, 127),
            IntTy::U8 => Range::new(0, 255),
            IntTy::I16 => Range::new(-32768, 32767),
            IntTy::U16 => Range::new(0, 65535),
            IntTy::I32 => Range::new(i64::from(i32::MIN), i64::from(i32::MAX)),
            IntTy::U32 => Range::new(0, i64::from(u32::MAX)),
            IntTy::I64 | IntTy::U64 => Range::FULL,
        }
    }

    pub(crate) fn within(self, o: Range) -> bool {
        self.lo >= o.lo && self.hi <= o.hi
    }

    fn join(self, o: Range) -> Range {
        Range::new(self.lo.min(o.lo), self.hi.max(o.hi))
    }
}

/// A leaf or operator.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Const(i64),
    /// A loop variable, by serial number.
    Loop(u32),
    /// A shape argument.
    Shape(u32),
    /// The value that a variable has when an iteration starts (only while loops are analysed).
    Phi(u32),
    Unary(UnaryOp, Sx),
    Binary(BinaryOp, Sx, Sx),
    Select(Sx, Sx, Sx),
}

#[derive(Debug)]
pub(crate) struct Node {
    pub kind: Kind,
    pub depth: u32,
    pub sure: Range,
    pub likely: Range,
    /// All values it may have, if few.
    pub set: Option<Rc<[i64]>>,
}

/// A shared symbolic value.
#[derive(Clone, Debug)]
pub(crate) struct Sx(pub Rc<Node>);

fn clamp(v: i128) -> i64 {
    v.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

/// The exact range of `a op b` as mathematics has it, for the operators that may overflow.
fn exact(op: BinaryOp, a: Range, b: Range) -> Option<(i128, i128)> {
    let w = i128::from;
    Some(match op {
        BinaryOp::Add | BinaryOp::WrapAdd => (w(a.lo) + w(b.lo), w(a.hi) + w(b.hi)),
        BinaryOp::Sub | BinaryOp::WrapSub => (w(a.lo) - w(b.hi), w(a.hi) - w(b.lo)),
        BinaryOp::Mul | BinaryOp::WrapMul => {
            let c = [
                w(a.lo) * w(b.lo),
                w(a.lo) * w(b.hi),
                w(a.hi) * w(b.lo),
                w(a.hi) * w(b.hi),
            ];
            (c.iter().copied().min()?, c.iter().copied().max()?)
        }
        BinaryOp::Shl | BinaryOp::WrapShl => {
            if b.lo < 0 || b.hi > 63 {
                return None;
            }
            let c = [
                w(a.lo) << b.lo,
                w(a.lo) << b.hi,
                w(a.hi) << b.lo,
                w(a.hi) << b.hi,
            ];
            (c.iter().copied().min()?, c.iter().copied().max()?)
        }
        _ => return None,
    })
}

fn fits(r: (i128, i128)) -> bool {
    r.0 >= i128::from(i64::MIN) && r.1 <= i128::from(i64::MAX)
}

/// The range of `a op b`; for wrapping operators only where nothing can wrap.
fn range(op: BinaryOp, a: Range, b: Range) -> Range {
    use BinaryOp::*;
    match op {
        Add | Sub | Mul | Shl => match exact(op, a, b) {
            // A checked operator has no result outside 64 bits.
            Some((lo, hi)) => Range::new(clamp(lo), clamp(hi)),
            None => Range::FULL,
        },
        WrapAdd | WrapSub | WrapMul | WrapShl => match exact(op, a, b) {
            Some(r) if fits(r) => Range::new(clamp(r.0), clamp(r.1)),
            _ => Range::FULL,
        },
        Div | CDiv if b.lo > 0 => {
            let c: Vec<i64> = [(a.lo, b.lo), (a.lo, b.hi), (a.hi, b.lo), (a.hi, b.hi)]
                .iter()
                .filter_map(|&(x, y)| expr::binary(op, x, y).ok())
                .collect();
            Range::new(
                c.iter().copied().min().unwrap_or(i64::MIN),
                c.iter().copied().max().unwrap_or(i64::MAX),
            )
        }
        Mod if b.lo > 0 => Range::new(
            0,
            if a.lo >= 0 {
                (b.hi - 1).min(a.hi)
            } else {
                b.hi - 1
            },
        ),
        CRem if b.lo > 0 => {
            let m = b.hi - 1;
            Range::new(
                if a.lo >= 0 { 0 } else { -m },
                if a.hi <= 0 { 0 } else { m.min(a.hi.max(0)) },
            )
        }
        UDiv if a.lo >= 0 && b.lo > 0 => Range::new(a.lo / b.hi.max(1), a.hi / b.lo),
        URem if b.lo > 0 => Range::new(
            0,
            if a.lo >= 0 {
                (b.hi - 1).min(a.hi)
            } else {
                b.hi - 1
            },
        ),
        Min => Range::new(a.lo.min(b.lo), a.hi.min(b.hi)),
        Max => Range::new(a.lo.max(b.lo), a.hi.max(b.hi)),
        Shr if b.lo >= 0 && b.hi <= 63 => {
            let c = [a.lo >> b.lo, a.lo >> b.hi, a.hi >> b.lo, a.hi >> b.hi];
            Range::new(
                c.iter().copied().min().unwrap_or(i64::MIN),
                c.iter().copied().max().unwrap_or(i64::MAX),
            )
        }
        UShr if a.lo >= 0 && b.lo >= 0 && b.hi <= 63 => Range::new(a.lo >> b.hi, a.hi >> b.lo),
        UShr if b.lo >= 1 && b.hi <= 63 => Range::new(0, i64::MAX >> (b.lo - 1)),
        And if a.lo >= 0 && b.lo >= 0 => Range::new(0, a.hi.min(b.hi)),
        And if a.lo >= 0 => Range::new(0, a.hi),
        And if b.lo >= 0 => Range::new(0, b.hi),
        Or | Xor if a.lo >= 0 && b.lo >= 0 => {
            let m = (a.hi as u64 | b.hi as u64).max(1);
            let top = u64::MAX >> m.leading_zeros();
            Range::new(0, top as i64)
        }
        Lt | Le | Gt | Ge | Eq | Ne | ULt | ULe => Range::new(0, 1),
        _ => Range::FULL,
    }
}

/// The answer of a comparison, if the ranges give it away.
fn decided(op: BinaryOp, a: Range, b: Range) -> Option<bool> {
    use BinaryOp::*;
    match op {
        Lt => decide(a.hi < b.lo, a.lo >= b.hi),
        Le => decide(a.hi <= b.lo, a.lo > b.hi),
        Gt => decide(a.lo > b.hi, a.hi <= b.lo),
        Ge => decide(a.lo >= b.hi, a.hi < b.lo),
        Eq => decide(a.lo == a.hi && a == b, a.hi < b.lo || b.hi < a.lo),
        Ne => decide(a.hi < b.lo || b.hi < a.lo, a.lo == a.hi && a == b),
        ULt if a.lo >= 0 && b.lo >= 0 => decided(Lt, a, b),
        ULe if a.lo >= 0 && b.lo >= 0 => decided(Le, a, b),
        _ => None,
    }
}

fn decide(yes: bool, no: bool) -> Option<bool> {
    if yes {
        Some(true)
    } else if no {
        Some(false)
    } else {
        None
    }
}

impl Sx {
    fn make(kind: Kind, depth: u32, sure: Range, likely: Range, set: Option<Rc<[i64]>>) -> Sx {
        let likely = if likely.lo > likely.hi { sure } else { likely };
        Sx(Rc::new(Node {
            kind,
            depth,
            sure,
            likely,
            set,
        }))
    }

    pub(crate) fn int(v: i64) -> Sx {
        let r = Range::new(v, v);
        Sx::make(Kind::Const(v), 1, r, r, Some(Rc::from([v])))
    }

    pub(crate) fn boolean(v: bool) -> Sx {
        Sx::int(i64::from(v))
    }

    /// The variable of a loop; `set` are its values if they are few and known.
    pub(crate) fn loop_var(id: u32, sure: Range, likely: Range, set: Option<Rc<[i64]>>) -> Sx {
        Sx::make(
            Kind::Loop(id),
            1,
            sure,
            likely,
            set.filter(|s| s.len() <= MAX_SET && !s.is_empty()),
        )
    }

    pub(crate) fn shape(index: u32) -> Sx {
        Sx::make(Kind::Shape(index), 1, Range::FULL, Range::LIKELY, None)
    }

    pub(crate) fn phi(id: u32, t: IntTy) -> Sx {
        let r = Range::of(t);
        Sx::make(Kind::Phi(id), 1, r, r, None)
    }

    pub(crate) fn constant(&self) -> Option<i64> {
        match self.0.kind {
            Kind::Const(v) => Some(v),
            _ => None,
        }
    }

    pub(crate) fn depth(&self) -> u32 {
        self.0.depth
    }

    pub(crate) fn sure(&self) -> Range {
        self.0.sure
    }

    pub(crate) fn likely(&self) -> Range {
        self.0.likely
    }

    pub(crate) fn same(&self, other: &Sx) -> bool {
        same(self, other, 64)
    }

    /// The values it may have, ascending, if they are few.
    pub(crate) fn values(&self) -> Option<Rc<[i64]>> {
        if let Some(s) = &self.0.set {
            return Some(s.clone());
        }
        let r = self.0.sure;
        let n = r.hi.checked_sub(r.lo)?;
        if (0..MAX_SET as i64).contains(&n) {
            Some((r.lo..=r.hi).collect())
        } else {
            None
        }
    }

    pub(crate) fn unary(op: UnaryOp, a: &Sx) -> Sx {
        if let Some(v) = a.constant()
            && let Ok(r) = expr::unary(op, v)
        {
            return Sx::int(r);
        }
        let (sure, likely) = (a.sure(), a.likely());
        let target = match op {
            UnaryOp::TruncI8 => Some(Range::of(IntTy::I8)),
            UnaryOp::TruncU8 => Some(Range::of(IntTy::U8)),
            UnaryOp::TruncI16 => Some(Range::of(IntTy::I16)),
            UnaryOp::TruncU16 => Some(Range::of(IntTy::U16)),
            UnaryOp::TruncI32 => Some(Range::of(IntTy::I32)),
            UnaryOp::TruncU32 => Some(Range::of(IntTy::U32)),
            _ => None,
        };
        let (s, l) = if let Some(t) = target {
            if sure.within(t) {
                return a.clone();
            }
            if let Some(simpler) = strip(a, bits(op)) {
                return Sx::unary(op, &simpler);
            }
            (t, if likely.within(t) { likely } else { t })
        } else {
            match op {
                UnaryOp::Neg => {
                    if let Kind::Unary(UnaryOp::Neg, inner) = &a.0.kind {
                        return inner.clone();
                    }
                    let f = |r: Range| Range::new(r.hi.saturating_neg(), r.lo.saturating_neg());
                    (f(sure), f(likely))
                }
                UnaryOp::Not => {
                    if sure.lo > 0 || sure.hi < 0 {
                        return Sx::int(0);
                    }
                    if let Kind::Binary(c, x, y) = &a.0.kind
                        && let Some((n, swap)) = negated(*c)
                    {
                        return if swap {
                            Sx::binary(n, y, x)
                        } else {
                            Sx::binary(n, x, y)
                        };
                    }
                    (Range::new(0, 1), Range::new(0, 1))
                }
                _ => {
                    let f = |r: Range| Range::new(!r.hi, !r.lo);
                    (f(sure), f(likely))
                }
            }
        };
        let set =
            a.0.set
                .as_ref()
                .and_then(|s| collect(s.iter().map(|&v| expr::unary(op, v).ok())));
        Sx::make(Kind::Unary(op, a.clone()), a.depth() + 1, s, l, set)
    }

    pub(crate) fn binary(op: BinaryOp, a: &Sx, b: &Sx) -> Sx {
        use BinaryOp::*;
        if let (Some(x), Some(y)) = (a.constant(), b.constant())
            && let Ok(v) = expr::binary(op, x, y)
        {
            return Sx::int(v);
        }
        // Wrapping operators that cannot wrap are plain ones.
        let plain = match op {
            WrapAdd => Some(Add),
            WrapSub => Some(Sub),
            WrapMul => Some(Mul),
            WrapShl => Some(Shl),
            _ => None,
        };
        if let Some(p) = plain
            && let Some(r) = exact(p, a.likely(), b.likely())
            && fits(r)
        {
            return Sx::binary(p, a, b);
        }
        if let Some(yes) = decided(op, a.sure(), b.sure()) {
            return Sx::boolean(yes);
        }
        match (op, a.constant(), b.constant()) {
            (Add | WrapAdd | Or | Xor, Some(0), _) => return b.clone(),
            (Add | WrapAdd | Sub | WrapSub | Or | Xor | Shl | WrapShl | Shr | UShr, _, Some(0)) => {
                return a.clone();
            }
            (Mul | WrapMul, Some(1), _) => return b.clone(),
            (Mul | WrapMul | Div | CDiv | UDiv, _, Some(1)) => return a.clone(),
            (Mul | WrapMul | And, Some(0), _) | (Mul | WrapMul | And, _, Some(0)) => {
                return Sx::int(0);
            }
            (Mod | CRem | URem, _, Some(1)) => return Sx::int(0),
            (And, _, Some(-1)) => return a.clone(),
            (And, Some(-1), _) => return b.clone(),
            // Constants stand on the right.
            (Add | WrapAdd | Mul | WrapMul | And | Or | Xor | Eq | Ne, Some(_), None) => {
                return Sx::binary(op, b, a);
            }
            // A shift by a constant is a product, which reads better.
            (Shl, _, Some(n)) if (0..=62).contains(&n) => {
                return Sx::binary(Mul, a, &Sx::int(1 << n));
            }
            (Sub, _, Some(c)) if c != i64::MIN && c < 0 => return Sx::binary(Add, a, &Sx::int(-c)),
            _ => {}
        }
        if matches!(op, Sub | WrapSub | Xor) && a.same(b) {
            return Sx::int(0);
        }
        match op {
            // Non-negative operands let the C operators be the plain ones.
            CDiv | UDiv if a.sure().lo >= 0 && b.sure().lo > 0 => return Sx::binary(Div, a, b),
            CRem | URem if a.sure().lo >= 0 && b.sure().lo > 0 => return Sx::binary(Mod, a, b),
            Mod if b
                .constant()
                .is_some_and(|m| a.sure().lo >= 0 && a.sure().hi < m) =>
            {
                return a.clone();
            }
            ULt if a.sure().lo >= 0 && b.sure().lo >= 0 => return Sx::binary(Lt, a, b),
            ULe if a.sure().lo >= 0 && b.sure().lo >= 0 => return Sx::binary(Le, a, b),
            UShr if a.sure().lo >= 0 && b.sure().within(Range::new(0, 63)) => {
                return Sx::binary(Shr, a, b);
            }
            _ => {}
        }
        // A comparison of a choice between constants is the condition of the choice.
        if let (Eq | Ne, Some(_)) = (op, b.constant())
            && let Kind::Select(c, x, y) = &a.0.kind
            && x.constant().is_some()
            && (y.constant().is_some() || matches!(y.0.kind, Kind::Select(..)))
        {
            return Sx::select(c, &Sx::binary(op, x, b), &Sx::binary(op, y, b));
        }
        // (x + c) + d and (x - c) + d, where no bit can be lost on the way.
        if let (Add | Sub, Some(d)) = (op, b.constant())
            && let Kind::Binary(inner @ (Add | Sub), x, y) = &a.0.kind
            && let Some(c) = y.constant()
        {
            let c = if *inner == Sub {
                c.checked_neg()
            } else {
                Some(c)
            };
            let d = if op == Sub { d.checked_neg() } else { Some(d) };
            if let (Some(c), Some(d)) = (c, d)
                && let Some(total) = c.checked_add(d)
            {
                return Sx::binary(Add, x, &Sx::int(total));
            }
        }
        if let (Add, Some(c)) = (op, b.constant())
            && c < 0
            && c != i64::MIN
        {
            return Sx::build(Sub, a, &Sx::int(-c));
        }
        // (x * c) * d.
        if let (Mul, Some(d)) = (op, b.constant())
            && let Kind::Binary(Mul, x, y) = &a.0.kind
            && let Some(total) = y.constant().and_then(|c| c.checked_mul(d))
        {
            return Sx::binary(Mul, x, &Sx::int(total));
        }
        // (x * c) / c and (x * c) % c for exact products.
        if let (Div | Mod, Some(d)) = (op, b.constant())
            && d > 0
            && let Kind::Binary(Mul, x, y) = &a.0.kind
            && let Some(c) = y.constant()
            && c.checked_rem(d) == Some(0)
        {
            return if op == Div {
                Sx::binary(Mul, x, &Sx::int(c / d))
            } else {
                Sx::int(0)
            };
        }
        Sx::build(op, a, b)
    }

    fn build(op: BinaryOp, a: &Sx, b: &Sx) -> Sx {
        let set = match (&a.0.set, &b.0.set) {
            (Some(x), Some(y)) => collect(
                x.iter()
                    .flat_map(|&p| y.iter().map(move |&q| expr::binary(op, p, q).ok())),
            ),
            _ => None,
        };
        let mut sure = range(op, a.sure(), b.sure());
        let mut likely = range(op, a.likely(), b.likely());
        if let Some(s) = &set
            && let (Some(&lo), Some(&hi)) = (s.first(), s.last())
        {
            sure = Range::new(lo, hi);
            likely = sure;
        }
        let depth = a.depth().max(b.depth()).saturating_add(1);
        Sx::make(
            Kind::Binary(op, a.clone(), b.clone()),
            depth,
            sure,
            likely,
            set,
        )
    }

    /// `c ? a : b`.
    pub(crate) fn select(c: &Sx, a: &Sx, b: &Sx) -> Sx {
        if let Some(v) = c.constant() {
            return if v != 0 { a.clone() } else { b.clone() };
        }
        if c.sure().lo > 0 || c.sure().hi < 0 || a.same(b) {
            return a.clone();
        }
        if let Kind::Unary(UnaryOp::Not, inner) = &c.0.kind {
            return Sx::select(inner, b, a);
        }
        if a.constant() == Some(1) && b.constant() == Some(0) && c.sure().within(Range::new(0, 1)) {
            return c.clone();
        }
        if a.constant() == Some(0) && b.constant() == Some(1) {
            return c.not();
        }
        let set = match (&a.0.set, &b.0.set) {
            (Some(x), Some(y)) => collect(x.iter().chain(y.iter()).map(|&v| Some(v))),
            _ => None,
        };
        let depth = c.depth().max(a.depth()).max(b.depth()).saturating_add(1);
        let kind = Kind::Select(c.clone(), a.clone(), b.clone());
        Sx::make(
            kind,
            depth,
            a.sure().join(b.sure()),
            a.likely().join(b.likely()),
            set,
        )
    }

    /// 1 if it is not 0, else 0.
    pub(crate) fn truth(&self) -> Sx {
        if self.sure().within(Range::new(0, 1)) {
            return self.clone();
        }
        Sx::binary(BinaryOp::Ne, self, &Sx::int(0))
    }

    pub(crate) fn not(&self) -> Sx {
        Sx::unary(UnaryOp::Not, self)
    }

    /// The value converted to a C type.
    pub(crate) fn cast(&self, t: IntTy) -> Sx {
        let op = match t {
            IntTy::Bool => return self.truth(),
            IntTy::I8 => UnaryOp::TruncI8,
            IntTy::U8 => UnaryOp::TruncU8,
            IntTy::I16 => UnaryOp::TruncI16,
            IntTy::U16 => UnaryOp::TruncU16,
            IntTy::I32 => UnaryOp::TruncI32,
            IntTy::U32 => UnaryOp::TruncU32,
            IntTy::I64 | IntTy::U64 => return self.clone(),
        };
        Sx::unary(op, self)
    }

    /// Whether a leaf that satisfies `wanted` occurs in it.
    pub(crate) fn mentions(&self, wanted: &dyn Fn(&Kind) -> bool) -> bool {
        let mut seen = std::collections::HashSet::new();
        let mut todo = vec![self];
        while let Some(x) = todo.pop() {
            if !seen.insert(Rc::as_ptr(&x.0)) {
                continue;
            }
            if wanted(&x.0.kind) {
                return true;
            }
            match &x.0.kind {
                Kind::Unary(_, a) => todo.push(a),
                Kind::Binary(_, a, b) => todo.extend([a, b]),
                Kind::Select(c, a, b) => todo.extend([c, a, b]),
                _ => {}
            }
        }
        false
    }

    /// The value with leaves replaced where `map` says so.
    pub(crate) fn replace(&self, map: &dyn Fn(&Sx) -> Option<Sx>) -> Sx {
        replace(self, map, &mut HashMap::new())
    }
}

fn bits(op: UnaryOp) -> u32 {
    match op {
        UnaryOp::TruncI8 | UnaryOp::TruncU8 => 8,
        UnaryOp::TruncI16 | UnaryOp::TruncU16 => 16,
        UnaryOp::TruncI32 | UnaryOp::TruncU32 => 32,
        _ => 64,
    }
}

/// `a` without inner truncations that a truncation to `keep` bits makes pointless.
fn strip(a: &Sx, keep: u32) -> Option<Sx> {
    match &a.0.kind {
        Kind::Unary(op, inner) if (1..64).contains(&bits(*op)) && bits(*op) >= keep => {
            Some(inner.clone())
        }
        Kind::Binary(op, x, y) => {
            let wrap = match op {
                BinaryOp::Add | BinaryOp::WrapAdd => BinaryOp::WrapAdd,
                BinaryOp::Sub | BinaryOp::WrapSub => BinaryOp::WrapSub,
                BinaryOp::Mul | BinaryOp::WrapMul => BinaryOp::WrapMul,
                _ => return None,
            };
            let (sx, sy) = (strip(x, keep), strip(y, keep));
            if sx.is_none() && sy.is_none() {
                return None;
            }
            Some(Sx::binary(
                wrap,
                sx.as_ref().unwrap_or(x),
                sy.as_ref().unwrap_or(y),
            ))
        }
        _ => None,
    }
}

/// The comparison that is true when `op` is false, and whether its operands change places.
fn negated(op: BinaryOp) -> Option<(BinaryOp, bool)> {
    Some(match op {
        BinaryOp::Lt => (BinaryOp::Ge, false),
        BinaryOp::Le => (BinaryOp::Gt, false),
        BinaryOp::Gt => (BinaryOp::Le, false),
        BinaryOp::Ge => (BinaryOp::Lt, false),
        BinaryOp::Eq => (BinaryOp::Ne, false),
        BinaryOp::Ne => (BinaryOp::Eq, false),
        BinaryOp::ULt => (BinaryOp::ULe, true),
        BinaryOp::ULe => (BinaryOp::ULt, true),
        _ => return None,
    })
}

fn collect(values: impl Iterator<Item = Option<i64>>) -> Option<Rc<[i64]>> {
    let mut set = std::collections::BTreeSet::new();
    // A value without a result (division by zero) is an error wherever it is reached.
    for v in values.flatten() {
        set.insert(v);
        if set.len() > MAX_SET {
            return None;
        }
    }
    if set.is_empty() {
        None
    } else {
        Some(set.into_iter().collect())
    }
}

fn same(a: &Sx, b: &Sx, fuel: u32) -> bool {
    if Rc::ptr_eq(&a.0, &b.0) {
        return true;
    }
    if a.depth() != b.depth() || fuel == 0 {
        return false;
    }
    match (&a.0.kind, &b.0.kind) {
        (Kind::Const(x), Kind::Const(y)) => x == y,
        (Kind::Loop(x), Kind::Loop(y))
        | (Kind::Shape(x), Kind::Shape(y))
        | (Kind::Phi(x), Kind::Phi(y)) => x == y,
        (Kind::Unary(o, x), Kind::Unary(p, y)) => o == p && same(x, y, fuel - 1),
        (Kind::Binary(o, x, y), Kind::Binary(p, u, v)) => {
            o == p && same(x, u, fuel / 2) && same(y, v, fuel / 2)
        }
        (Kind::Select(c, x, y), Kind::Select(d, u, v)) => {
            same(c, d, fuel / 3) && same(x, u, fuel / 3) && same(y, v, fuel / 3)
        }
        _ => false,
    }
}

fn replace(x: &Sx, map: &dyn Fn(&Sx) -> Option<Sx>, memo: &mut HashMap<*const Node, Sx>) -> Sx {
    let key = Rc::as_ptr(&x.0);
    if let Some(done) = memo.get(&key) {
        return done.clone();
    }
    let new = match map(x) {
        Some(new) => new,
        None => match &x.0.kind {
            Kind::Unary(op, a) => {
                let na = replace(a, map, memo);
                if Rc::ptr_eq(&na.0, &a.0) {
                    x.clone()
                } else {
                    Sx::unary(*op, &na)
                }
            }
            Kind::Binary(op, a, b) => {
                let (na, nb) = (replace(a, map, memo), replace(b, map, memo));
                if Rc::ptr_eq(&na.0, &a.0) && Rc::ptr_eq(&nb.0, &b.0) {
                    x.clone()
                } else {
                    Sx::binary(*op, &na, &nb)
                }
            }
            Kind::Select(c, a, b) => {
                let (nc, na, nb) = (
                    replace(c, map, memo),
                    replace(a, map, memo),
                    replace(b, map, memo),
                );
                if Rc::ptr_eq(&nc.0, &c.0) && Rc::ptr_eq(&na.0, &a.0) && Rc::ptr_eq(&nb.0, &b.0) {
                    x.clone()
                } else {
                    Sx::select(&nc, &na, &nb)
                }
            }
            _ => x.clone(),
        },
    };
    memo.insert(key, new.clone());
    new
}
