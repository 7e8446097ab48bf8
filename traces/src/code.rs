//! Expressions, compiled for one launch.
//!
//! With grid and parameters known, most expressions are affine in program ids and loop variables.
//! Compilation keeps the range of every subexpression; wherever the ranges prove that no
//! intermediate value can overflow, an affine tree becomes one dot product, and the explicit
//! wrapping and truncating operators of imported code fall away. What is left runs on a small stack
//! machine. The result equals [`crate::expr::eval`] in every case, errors included.

use crate::expr::{self, Fault};
use crate::limits::{MAX_EXPR_DEPTH, MAX_LOOP_DEPTH};
use crate::model::{BinaryOp, Expr, UnaryOp};

/// Where program ids (first three) and loop variables (after them, by depth) live during expansion.
pub(crate) const SLOTS: usize = 32;
pub(crate) type Slots = [i64; SLOTS];

const _: () = assert!(3 + MAX_LOOP_DEPTH <= SLOTS);

/// Stack entries of the deep evaluator; a tree needs at most as many as it has levels, and one.
const DEEP: usize = MAX_EXPR_DEPTH + 8;
const SHALLOW: usize = 16;

/// All values an expression can take when it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub lo: i128,
    pub hi: i128,
}

const I64_MIN: i128 = i64::MIN as i128;
const I64_MAX: i128 = i64::MAX as i128;

impl Range {
    pub const FULL: Range = Range {
        lo: I64_MIN,
        hi: I64_MAX,
    };

    pub fn point(v: i64) -> Self {
        Self {
            lo: v.into(),
            hi: v.into(),
        }
    }

    pub fn new(lo: i128, hi: i128) -> Self {
        Self { lo, hi }
    }

    pub fn hull(self, other: Self) -> Self {
        Self {
            lo: self.lo.min(other.lo),
            hi: self.hi.max(other.hi),
        }
    }

    fn fits(self) -> bool {
        self.lo >= I64_MIN && self.hi <= I64_MAX
    }

    fn clamp(self) -> Self {
        Self {
            lo: self.lo.clamp(I64_MIN, I64_MAX),
            hi: self.hi.clamp(I64_MIN, I64_MAX),
        }
    }

    fn within(self, lo: i128, hi: i128) -> bool {
        self.lo >= lo && self.hi <= hi
    }

    fn as_point(self) -> Option<i64> {
        if self.lo == self.hi {
            i64::try_from(self.lo).ok()
        } else {
            None
        }
    }
}

/// What leaves stand for during compilation.
pub(crate) struct Scope<'a> {
    pub grid: [i64; 3],
    pub params: &'a [i64],
    /// Ranges of program ids and of the loop variables in scope.
    pub slots: Vec<Range>,
}

/// A compiled expression.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Code {
    Const(i64),
    /// `mul * slot + add`.
    Linear1 {
        slot: u8,
        mul: i64,
        add: i64,
    },
    /// `add` plus a span of [`Pool::terms`].
    Linear {
        add: i64,
        start: u32,
        end: u32,
    },
    /// A span of [`Pool::insts`].
    Program {
        start: u32,
        end: u32,
        deep: bool,
    },
}

impl Code {
    pub fn as_const(self) -> Option<i64> {
        if let Code::Const(c) = self {
            Some(c)
        } else {
            None
        }
    }

    /// What one evaluation costs, in evaluation steps.
    pub fn cost(self) -> u64 {
        match self {
            Code::Const(_) => 0,
            Code::Linear1 { .. } => 1,
            Code::Linear { start, end, .. } | Code::Program { start, end, .. } => {
                u64::from(end.saturating_sub(start))
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Inst {
    Const(i64),
    Linear {
        add: i64,
        start: u32,
        end: u32,
    },
    Unary(UnaryOp),
    Binary(BinaryOp),
    BinaryConst(BinaryOp, i64),
    /// Pop; if it was 0, skip so many instructions.
    SkipIfZero(u32),
    Skip(u32),
}

/// What compiled expressions of one bound trace share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pool {
    terms: Vec<(u8, i64)>,
    insts: Vec<Inst>,
}

/// What one step of each program id adds to a value; `None` when that is not always the same.
pub(crate) type PidSteps = Option<[i64; 3]>;

/// A compiled expression with what is known about it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compiled {
    pub code: Code,
    pub range: Range,
    /// The slots it depends on, as a bit set.
    pub uses: u32,
}

impl Compiled {
    /// Whether the value depends on any slot of a set.
    pub fn uses_any(&self, slots: u32) -> bool {
        self.uses & slots != 0
    }

    /// Whether it is a sum of multiples of slots, which always has a value.
    pub fn is_affine(&self) -> bool {
        !matches!(self.code, Code::Program { .. })
    }
}

struct Node {
    range: Range,
    form: Form,
}

enum Form {
    /// Never faults; every value is in `range`.
    Linear { add: i64, terms: Vec<(u8, i64)> },
    Insts {
        code: Vec<Inst>,
        /// Stack entries it takes.
        need: usize,
        uses: u32,
        /// The ranges prove that it always has a value.
        faultless: bool,
    },
}

impl Node {
    fn constant(v: i64) -> Self {
        Self {
            range: Range::point(v),
            form: Form::Linear {
                add: v,
                terms: Vec::new(),
            },
        }
    }

    fn as_const(&self) -> Option<i64> {
        match &self.form {
            Form::Linear { add, terms } if terms.is_empty() => Some(*add),
            _ => None,
        }
    }

    fn faultless(&self) -> bool {
        match self.form {
            Form::Linear { .. } => true,
            Form::Insts { faultless, .. } => faultless,
        }
    }
}

impl Pool {
    /// Compiles a validated expression.
    pub fn compile(&mut self, expr: &Expr, scope: &Scope<'_>) -> Compiled {
        let node = self.node(expr, scope);
        let range = node.range;
        match node.form {
            Form::Linear { add, terms } => {
                let uses = uses_of(&terms);
                let code = match terms.as_slice() {
                    [] => Code::Const(add),
                    [(slot, mul)] => Code::Linear1 {
                        slot: *slot,
                        mul: *mul,
                        add,
                    },
                    _ => {
                        let (start, end) = self.push_terms(&terms);
                        Code::Linear { add, start, end }
                    }
                };
                Compiled { code, range, uses }
            }
            Form::Insts {
                code, need, uses, ..
            } => {
                let start = self.insts.len() as u32;
                self.insts.extend(code);
                let end = self.insts.len() as u32;
                let deep = need + 1 > SHALLOW;
                Compiled {
                    code: Code::Program { start, end, deep },
                    range,
                    uses,
                }
            }
        }
    }

    /// What one step of each program id adds to an expression; `None` unless it is affine in them.
    /// `varied` are the slots that differ between work-items, `steps` what a step of each program id
    /// adds to them.
    pub fn pid_steps(&self, e: &Compiled, varied: u32, steps: &[PidSteps]) -> PidSteps {
        if !e.uses_any(varied) {
            return Some([0; 3]);
        }
        let one;
        let terms: &[(u8, i64)] = match e.code {
            Code::Const(_) => &[],
            Code::Linear1 { slot, mul, .. } => {
                one = [(slot, mul)];
                &one
            }
            Code::Linear { start, end, .. } => self.terms.get(start as usize..end as usize)?,
            Code::Program { .. } => return None,
        };
        let mut sum = [0i64; 3];
        for &(slot, mul) in terms {
            if varied >> slot & 1 == 0 {
                continue;
            }
            for (sum, step) in sum.iter_mut().zip((*steps.get(usize::from(slot))?)?) {
                *sum = sum.checked_add(step.checked_mul(mul)?)?;
            }
        }
        Some(sum)
    }

    fn push_terms(&mut self, terms: &[(u8, i64)]) -> (u32, u32) {
        let start = self.terms.len() as u32;
        self.terms.extend_from_slice(terms);
        (start, self.terms.len() as u32)
    }

    fn insts_of(&mut self, node: Node) -> (Vec<Inst>, usize, u32) {
        match node.form {
            Form::Linear { add, terms } if terms.is_empty() => (vec![Inst::Const(add)], 1, 0),
            Form::Linear { add, terms } => {
                let (start, end) = self.push_terms(&terms);
                (vec![Inst::Linear { add, start, end }], 1, uses_of(&terms))
            }
            Form::Insts {
                code, need, uses, ..
            } => (code, need, uses),
        }
    }

    fn node(&mut self, expr: &Expr, scope: &Scope<'_>) -> Node {
        match expr {
            Expr::Const(c) => Node::constant(*c),
            Expr::Pid(axis) => slot_node(usize::from(*axis), scope),
            Expr::Grid(axis) => {
                Node::constant(scope.grid.get(usize::from(*axis)).copied().unwrap_or(1))
            }
            Expr::Param(id) => Node::constant(scope.params.get(id.index()).copied().unwrap_or(0)),
            Expr::Var(id) => slot_node(3 + id.index(), scope),
            Expr::Unary(op, a) => {
                let a = self.node(a, scope);
                self.unary(*op, a, scope)
            }
            Expr::Binary(op, a, b) => {
                let a = self.node(a, scope);
                let b = self.node(b, scope);
                self.binary(*op, a, b, scope)
            }
            Expr::Select(c, a, b) => {
                let c = self.node(c, scope);
                if c.faultless() {
                    // A condition that cannot fault and is known picks its branch now.
                    if c.range.as_point() == Some(0) {
                        return self.node(b, scope);
                    }
                    if c.range.lo > 0 || c.range.hi < 0 {
                        return self.node(a, scope);
                    }
                }
                let a = self.node(a, scope);
                let b = self.node(b, scope);
                let range = a.range.hull(b.range);
                let faultless = c.faultless() && a.faultless() && b.faultless();
                let (mut code, need_c, uses_c) = self.insts_of(c);
                let (code_a, need_a, uses_a) = self.insts_of(a);
                let (code_b, need_b, uses_b) = self.insts_of(b);
                code.push(Inst::SkipIfZero(code_a.len() as u32 + 1));
                code.extend(code_a);
                code.push(Inst::Skip(code_b.len() as u32));
                code.extend(code_b);
                let need = need_c.max(need_a).max(need_b);
                Node {
                    range,
                    form: Form::Insts {
                        code,
                        need,
                        uses: uses_c | uses_a | uses_b,
                        faultless,
                    },
                }
            }
        }
    }

    fn unary(&mut self, op: UnaryOp, a: Node, scope: &Scope<'_>) -> Node {
        if let Some(c) = a.as_const()
            && let Ok(v) = expr::unary(op, c)
        {
            return Node::constant(v);
        }
        let (range, identity) = match op {
            UnaryOp::Neg => (Range::new(-a.range.hi, -a.range.lo), false),
            UnaryOp::BitNot => (Range::new(-1 - a.range.hi, -1 - a.range.lo), false),
            UnaryOp::Not => {
                let zero = a.range.within(0, 0);
                let nonzero = a.range.lo > 0 || a.range.hi < 0;
                (Range::new(i128::from(zero), i128::from(!nonzero)), false)
            }
            UnaryOp::TruncI8 => trunc_range(a.range, i8::MIN.into(), i8::MAX.into()),
            UnaryOp::TruncU8 => trunc_range(a.range, 0, u8::MAX.into()),
            UnaryOp::TruncI16 => trunc_range(a.range, i16::MIN.into(), i16::MAX.into()),
            UnaryOp::TruncU16 => trunc_range(a.range, 0, u16::MAX.into()),
            UnaryOp::TruncI32 => trunc_range(a.range, i32::MIN.into(), i32::MAX.into()),
            UnaryOp::TruncU32 => trunc_range(a.range, 0, u32::MAX.into()),
        };
        if identity {
            return a;
        }
        let faultless = a.faultless() && range.fits();
        if let Some(v) = range.as_point()
            && faultless
        {
            return Node::constant(v);
        }
        if range.fits()
            && let Form::Linear { add, terms } = &a.form
        {
            let negated = match op {
                UnaryOp::Neg => linear(scope, -i128::from(*add), scaled(terms, -1)),
                UnaryOp::BitNot => linear(scope, -1 - i128::from(*add), scaled(terms, -1)),
                _ => None,
            };
            if let Some(node) = negated {
                return node;
            }
        }
        let (mut code, need, uses) = self.insts_of(a);
        code.push(Inst::Unary(op));
        Node {
            range: range.clamp(),
            form: Form::Insts {
                code,
                need,
                uses,
                faultless,
            },
        }
    }

    fn binary(&mut self, op: BinaryOp, a: Node, b: Node, scope: &Scope<'_>) -> Node {
        if let (Some(x), Some(y)) = (a.as_const(), b.as_const())
            && let Ok(v) = expr::binary(op, x, y)
        {
            return Node::constant(v);
        }
        let (op, b) = simplify(op, &a, b);
        let range = binary_range(op, &a, &b);
        let faultless = a.faultless() && b.faultless() && always_defined(op, &a, &b, range);
        if faultless && let Some(v) = range.as_point() {
            return Node::constant(v);
        }
        // The operand that is dropped must not be one that could fail.
        match op {
            BinaryOp::Min if b.faultless() && a.range.hi <= b.range.lo => return a,
            BinaryOp::Min if a.faultless() && b.range.hi <= a.range.lo => return b,
            BinaryOp::Max if b.faultless() && a.range.lo >= b.range.hi => return a,
            BinaryOp::Max if a.faultless() && b.range.lo >= a.range.hi => return b,
            _ => {}
        }
        if range.fits()
            && let Some(node) = fold_linear(op, &a, &b, scope)
        {
            return node;
        }
        let range = range.clamp();
        let constant = b.as_const();
        let (mut code, mut need, mut uses) = self.insts_of(a);
        if let Some(c) = constant {
            code.push(Inst::BinaryConst(op, c));
        } else {
            let (code_b, need_b, uses_b) = self.insts_of(b);
            code.extend(code_b);
            code.push(Inst::Binary(op));
            need = need.max(need_b + 1);
            uses |= uses_b;
        }
        let form = Form::Insts {
            code,
            need,
            uses,
            faultless,
        };
        Node { range, form }
    }

    /// The value of a compiled expression.
    #[inline]
    pub fn eval(&self, code: Code, slots: &Slots) -> Result<i64, Fault> {
        match code {
            Code::Const(c) => Ok(c),
            // The ranges proved that the true sum fits, so sums modulo 2^64 are exact.
            Code::Linear1 { slot, mul, add } => Ok(slots[slot as usize & (SLOTS - 1)]
                .wrapping_mul(mul)
                .wrapping_add(add)),
            Code::Linear { add, start, end } => Ok(self.dot(add, start, end, slots)),
            Code::Program {
                start,
                end,
                deep: false,
            } => self.run::<SHALLOW>(start, end, slots),
            Code::Program {
                start,
                end,
                deep: true,
            } => self.run::<DEEP>(start, end, slots),
        }
    }

    #[inline]
    fn dot(&self, add: i64, start: u32, end: u32, slots: &Slots) -> i64 {
        let mut sum = add;
        for (slot, mul) in self.terms.get(start as usize..end as usize).unwrap_or(&[]) {
            sum = sum.wrapping_add(slots[*slot as usize & (SLOTS - 1)].wrapping_mul(*mul));
        }
        sum
    }

    fn run<const N: usize>(&self, start: u32, end: u32, slots: &Slots) -> Result<i64, Fault> {
        let insts = self.insts.get(start as usize..end as usize).unwrap_or(&[]);
        // The top of the stack is in `top`; what lies below it is in `stack[1..=depth]`.
        let mut stack = [0i64; N];
        let mut depth = 0usize;
        let mut top = 0i64;
        let mut at = 0usize;
        while let Some(inst) = insts.get(at) {
            at += 1;
            match *inst {
                Inst::Const(c) => push(&mut stack, &mut depth, &mut top, c),
                Inst::Linear { add, start, end } => {
                    let v = self.dot(add, start, end, slots);
                    push(&mut stack, &mut depth, &mut top, v);
                }
                Inst::Unary(op) => top = expr::unary(op, top)?,
                Inst::Binary(op) => {
                    let b = top;
                    pop(&stack, &mut depth, &mut top);
                    top = expr::binary(op, top, b)?;
                }
                Inst::BinaryConst(op, c) => top = expr::binary(op, top, c)?,
                Inst::SkipIfZero(n) => {
                    let condition = top;
                    pop(&stack, &mut depth, &mut top);
                    if condition == 0 {
                        at += n as usize;
                    }
                }
                Inst::Skip(n) => at += n as usize,
            }
        }
        Ok(top)
    }
}

#[inline]
fn push<const N: usize>(stack: &mut [i64; N], depth: &mut usize, top: &mut i64, v: i64) {
    if let Some(cell) = stack.get_mut(*depth) {
        *cell = *top;
    }
    *depth += 1;
    *top = v;
}

#[inline]
fn pop<const N: usize>(stack: &[i64; N], depth: &mut usize, top: &mut i64) {
    *depth = depth.saturating_sub(1);
    *top = stack.get(*depth).copied().unwrap_or(0);
}

fn uses_of(terms: &[(u8, i64)]) -> u32 {
    terms.iter().fold(0, |bits, (slot, _)| {
        bits | 1u32.wrapping_shl(u32::from(*slot))
    })
}

fn slot_node(slot: usize, scope: &Scope<'_>) -> Node {
    let range = scope.slots.get(slot).copied().unwrap_or(Range::FULL);
    match range.as_point() {
        Some(v) => Node::constant(v),
        None => Node {
            range,
            form: Form::Linear {
                add: 0,
                terms: vec![(slot as u8, 1)],
            },
        },
    }
}

fn trunc_range(range: Range, lo: i128, hi: i128) -> (Range, bool) {
    if range.within(lo, hi) {
        (range, true)
    } else {
        (Range::new(lo, hi), false)
    }
}

fn scaled(terms: &[(u8, i64)], by: i128) -> Vec<(u8, i128)> {
    // Two 64-bit numbers multiply without loss in 128 bits; `by` always comes from an i64.
    terms
        .iter()
        .map(|(slot, mul)| (*slot, i128::from(*mul) * by))
        .collect()
}

/// A linear node, with its range computed from its terms; `None` when a coefficient or the range
/// does not fit.
fn linear(scope: &Scope<'_>, add: i128, terms: Vec<(u8, i128)>) -> Option<Node> {
    let mut out = Vec::with_capacity(terms.len());
    let mut range = Range::new(add, add);
    for (slot, mul) in terms {
        if mul == 0 {
            continue;
        }
        let mul = i64::try_from(mul).ok()?;
        let values = scope
            .slots
            .get(usize::from(slot))
            .copied()
            .unwrap_or(Range::FULL);
        let (x, y) = (values.lo * i128::from(mul), values.hi * i128::from(mul));
        range = Range::new(
            range.lo.checked_add(x.min(y))?,
            range.hi.checked_add(x.max(y))?,
        );
        out.push((slot, mul));
    }
    let add = i64::try_from(add).ok()?;
    if !range.fits() {
        return None;
    }
    if let Some(v) = range.as_point() {
        return Some(Node::constant(v));
    }
    Some(Node {
        range,
        form: Form::Linear { add, terms: out },
    })
}

/// An operator with the same result on these operands and a simpler definition.
fn simplify(op: BinaryOp, a: &Node, b: Node) -> (BinaryOp, Node) {
    use BinaryOp::*;
    let positive = a.range.lo >= 0 && b.range.lo > 0;
    let unsigned = a.range.lo >= 0 && b.range.lo >= 0;
    let plain = match op {
        WrapAdd => Add,
        WrapSub => Sub,
        WrapMul => Mul,
        WrapShl if b.range.within(0, 63) => Shl,
        CDiv | UDiv if positive => Div,
        CRem | URem if positive => Mod,
        ULt if unsigned => Lt,
        ULe if unsigned => Le,
        UShr if a.range.lo >= 0 && b.range.within(0, 63) => Shr,
        _ => op,
    };
    let plain = if matches!(op, WrapAdd | WrapSub | WrapMul | WrapShl)
        && !binary_range(plain, a, &b).fits()
    {
        op
    } else {
        plain
    };
    match (plain, b.as_const()) {
        (Shl, Some(n @ 0..=62)) => (Mul, Node::constant(1i64 << n)),
        (Shr, Some(n @ 0..=62)) => (Div, Node::constant(1i64 << n)),
        (And, Some(mask)) if (0..i64::MAX).contains(&mask) && (mask & (mask + 1)) == 0 => {
            (Mod, Node::constant(mask + 1))
        }
        _ => (plain, b),
    }
}

/// All results of the operator, before the check that they fit 64 bits.
fn binary_range(op: BinaryOp, a: &Node, b: &Node) -> Range {
    use BinaryOp::*;
    let (x, y) = (a.range, b.range);
    let truth = |always: bool, never: bool| Range::new(i128::from(always), i128::from(!never));
    match op {
        Add => Range::new(x.lo + y.lo, x.hi + y.hi),
        Sub => Range::new(x.lo - y.hi, x.hi - y.lo),
        Mul => {
            let p = [x.lo * y.lo, x.lo * y.hi, x.hi * y.lo, x.hi * y.hi];
            let lo = p.iter().copied().min().unwrap_or(I64_MIN);
            let hi = p.iter().copied().max().unwrap_or(I64_MAX);
            Range::new(lo, hi)
        }
        Min => Range::new(x.lo.min(y.lo), x.hi.min(y.hi)),
        Max => Range::new(x.lo.max(y.lo), x.hi.max(y.hi)),
        Lt => truth(x.hi < y.lo, x.lo >= y.hi),
        Le => truth(x.hi <= y.lo, x.lo > y.hi),
        Gt => truth(x.lo > y.hi, x.hi <= y.lo),
        Ge => truth(x.lo >= y.hi, x.hi < y.lo),
        Eq | Ne => {
            let always = x.lo == x.hi && x == y;
            let never = x.hi < y.lo || y.hi < x.lo;
            if op == Eq {
                truth(always, never)
            } else {
                truth(never, always)
            }
        }
        ULt | ULe => Range::new(0, 1),
        Div if y.lo > 0 => {
            let q = [
                x.lo.div_euclid(y.lo),
                x.lo.div_euclid(y.hi),
                x.hi.div_euclid(y.lo),
                x.hi.div_euclid(y.hi),
            ];
            let lo = q.iter().copied().min().unwrap_or(I64_MIN);
            let hi = q.iter().copied().max().unwrap_or(I64_MAX);
            Range::new(lo, hi)
        }
        Div => Range::new(I64_MIN - 1, I64_MAX + 1),
        Mod if y.lo > 0 => {
            let q = x.lo.div_euclid(y.lo);
            if y.lo == y.hi && q == x.hi.div_euclid(y.lo) {
                Range::new(x.lo - q * y.lo, x.hi - q * y.lo)
            } else if x.lo >= 0 {
                Range::new(0, x.hi.min(y.hi - 1))
            } else {
                Range::new(0, y.hi - 1)
            }
        }
        Mod => Range::FULL,
        Shl => match b.as_const() {
            Some(n @ 0..=63) => {
                let p = 1i128 << n;
                Range::new(x.lo * p, x.hi * p)
            }
            _ => Range::new(I64_MIN - 1, I64_MAX + 1),
        },
        And if x.lo >= 0 && y.lo >= 0 => Range::new(0, x.hi.min(y.hi)),
        Or | Xor if x.lo >= 0 && y.lo >= 0 => {
            let top = u64::try_from(x.hi.max(y.hi)).unwrap_or(u64::MAX);
            let bits = 64 - top.leading_zeros();
            Range::new(0, (1i128 << bits) - 1)
        }
        Shr | And | Or | Xor | WrapAdd | WrapSub | WrapMul | WrapShl | CDiv | CRem | UDiv
        | URem | UShr => Range::FULL,
    }
}

/// Whether the ranges prove that the operator has a result. `range` is that of its results.
fn always_defined(op: BinaryOp, a: &Node, b: &Node, range: Range) -> bool {
    use BinaryOp::*;
    let nonzero = b.range.lo > 0 || b.range.hi < 0;
    match op {
        Add | Sub | Mul => range.fits(),
        Div => nonzero && (a.range.lo > I64_MIN || b.range.lo > 0),
        Mod | CDiv | CRem | UDiv | URem => nonzero,
        Shl => b.range.within(0, 63) && range.fits(),
        Shr => b.range.within(0, 63),
        Min | Max | And | Or | Xor | Lt | Le | Gt | Ge | Eq | Ne => true,
        WrapAdd | WrapSub | WrapMul | WrapShl | UShr | ULt | ULe => true,
    }
}

/// An affine result, when the operator has one on these operands. The caller has checked that the
/// result always fits 64 bits.
fn fold_linear(op: BinaryOp, a: &Node, b: &Node, scope: &Scope<'_>) -> Option<Node> {
    use BinaryOp::*;
    let (Form::Linear { add: xa, terms: xt }, Form::Linear { add: ya, terms: yt }) =
        (&a.form, &b.form)
    else {
        return None;
    };
    let (xa, ya) = (i128::from(*xa), i128::from(*ya));
    let positive_constant = b.as_const().filter(|c| *c > 0);
    match op {
        Add => linear(scope, xa + ya, merged(xt, yt, 1)),
        Sub => linear(scope, xa - ya, merged(xt, yt, -1)),
        Mul => match (a.as_const(), b.as_const()) {
            (_, Some(c)) => linear(scope, xa * i128::from(c), scaled(xt, c.into())),
            (Some(c), _) => linear(scope, ya * i128::from(c), scaled(yt, c.into())),
            _ => None,
        },
        Div | Mod => {
            let d = i128::from(positive_constant?);
            // Split into whole multiples of the divisor and a rest that stays in one period.
            let (whole, rest): (Vec<_>, Vec<_>) = xt
                .iter()
                .partition(|(_, mul)| i128::from(*mul).rem_euclid(d) == 0);
            let rest: Vec<(u8, i128)> = rest.iter().map(|(s, m)| (*s, i128::from(*m))).collect();
            let period = linear(scope, xa, rest.clone())?.range;
            let q = period.lo.div_euclid(d);
            if q != period.hi.div_euclid(d) {
                return None;
            }
            if op == Div {
                let whole = whole
                    .iter()
                    .map(|(s, m)| (*s, i128::from(*m).div_euclid(d)));
                linear(scope, q, whole.collect())
            } else {
                linear(scope, xa - q * d, rest)
            }
        }
        _ => None,
    }
}

/// `x + sign * y`, term by term.
fn merged(x: &[(u8, i64)], y: &[(u8, i64)], sign: i128) -> Vec<(u8, i128)> {
    let mut out = scaled(x, 1);
    for (slot, mul) in y {
        let mul = i128::from(*mul) * sign;
        match out.iter_mut().find(|(s, _)| s == slot) {
            Some((_, m)) => *m += mul,
            None => out.push((*slot, mul)),
        }
    }
    out
}

#[cfg(test)]
pub(crate) fn slots_for_tests(pid: [i64; 3], vars: &[i64]) -> Slots {
    let mut slots = [0; SLOTS];
    for (slot, value) in slots.iter_mut().zip(pid.iter().chain(vars)) {
        *slot = *value;
    }
    slots
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::{Env, eval};

    struct Ids;

    impl Env for Ids {
        fn pid(&self, axis: u8) -> i64 {
            5 + i64::from(axis)
        }
        fn grid(&self, _: u8) -> i64 {
            100
        }
        fn param(&self, _: usize) -> i64 {
            0
        }
        fn var(&self, _: usize) -> i64 {
            0
        }
    }

    fn scope() -> Scope<'static> {
        Scope {
            grid: [100; 3],
            params: &[],
            slots: vec![Range::new(0, 99); 3],
        }
    }

    #[test]
    fn deep_programs_run() {
        for depth in 1..MAX_EXPR_DEPTH {
            let mut e = Expr::Pid(0);
            for i in 0..depth {
                let op = if i % 2 == 0 {
                    BinaryOp::Xor
                } else {
                    BinaryOp::WrapMul
                };
                e = Expr::Binary(op, Box::new(Expr::Pid(1)), Box::new(e));
            }
            let mut pool = Pool::default();
            let code = pool.compile(&e, &scope()).code;
            let got = pool.eval(code, &slots_for_tests([5, 6, 7], &[]));
            assert_eq!(got, eval(&e, &Ids));
        }
    }

    #[track_caller]
    fn compiles_to(text: &str, want: Code) {
        struct None_;
        impl crate::syntax::Names for None_ {
            fn lookup(&self, _: &str) -> Option<Expr> {
                None
            }
            fn known(&self) -> Vec<&str> {
                Vec::new()
            }
        }
        let e = crate::syntax::parse_expr(text, &None_).unwrap();
        assert_eq!(Pool::default().compile(&e, &scope()).code, want, "{text}");
    }

    #[test]
    fn imported_code_becomes_affine() {
        let linear = |mul, add| Code::Linear1 { slot: 0, mul, add };
        for (text, code) in [
            ("p0 * g0 + 3", linear(100, 3)),
            ("trunc_i32(wrap_add(wrap_mul(p0, 128), 7))", linear(128, 7)),
            (
                "c_div(p0 * 6 + 3, 4)",
                Code::Program {
                    start: 0,
                    end: 2,
                    deep: false,
                },
            ),
            ("c_div(p0 * 8 + 3, 8)", linear(1, 0)),
            ("(p0 * 8 + 3) % 8", Code::Const(3)),
            ("(p0 * 64 & 15) + (p0 << 2)", linear(4, 0)),
            ("p0 * 256 >> 4", linear(16, 0)),
            ("u_lt(p0, 100) && p0 >= 0", Code::Const(1)),
            ("min(p0, 99) - max(0, p0)", Code::Const(0)),
            ("select(p0 < 1000, p0, 1 / 0)", linear(1, 0)),
            ("p0 * 0 + p0 - p0", Code::Const(0)),
            ("~p0 + 1", linear(-1, 0)),
        ] {
            compiles_to(text, code);
        }
    }
}
