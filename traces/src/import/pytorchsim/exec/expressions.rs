//! Expressions.

use super::*;

impl Exec<'_> {
    pub(super) fn int(&mut self, e: &Expr) -> Res<(Sx, IntTy)> {
        let v = self.eval(e)?;
        self.as_int(v, e.pos)
    }

    pub(super) fn as_int(&self, v: Value, pos: Pos) -> Res<(Sx, IntTy)> {
        match v {
            Value::Int(x, t) => {
                if x.depth() > MAX_DEPTH {
                    return Err(
                        Diag::deep(pos, "a value built from too many operations").unrollable()
                    );
                }
                Ok((x, t))
            }
            Value::Undef(_) => Err(Diag::value(pos, "a variable is read that was never set")),
            Value::Poison(_, why) => Err(Diag::unsupported(
                pos,
                format_args!("a value that is not known here ({why})"),
            )
            .unrollable()),
            other => Err(Diag::syntax(
                pos,
                format!("{} where an integer is needed", other.what()),
            )),
        }
    }

    /// The condition, as 0 or 1.
    pub(super) fn condition(&mut self, e: &Expr) -> Res<Sx> {
        let v = self.eval(e)?;
        match v {
            Value::Null => Ok(Sx::int(0)),
            Value::Ptr(_) | Value::Ctx | Value::Shape(_) | Value::Function(_) => Ok(Sx::int(1)),
            v => Ok(self.as_int(v, e.pos)?.0.truth()),
        }
    }

    pub(super) fn eval(&mut self, e: &Expr) -> Res<Value> {
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
            return Err(Diag::deep(
                e.pos,
                format!("calls and statements nested deeper than {MAX_NESTING}"),
            ));
        }
        let v = self.eval_inner(e);
        self.nesting = self.nesting.saturating_sub(1);
        v
    }

    pub(super) fn eval_inner(&mut self, e: &Expr) -> Res<Value> {
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
                if let (Base::Int(t), 0, v @ (Value::Ptr(_) | Value::Null)) =
                    (&ty.base, ty.pointers, &v)
                    && *t != IntTy::Bool
                {
                    return Err(Diag::unsupported(
                        e.pos,
                        format_args!("{} used as an integer", v.what()),
                    ));
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
                Ok(Value::Ptr(Ptr {
                    slot,
                    path: Vec::new(),
                    off: Sx::int(0),
                    single: false,
                }))
            }
            ExprKind::Braces(None, list) => match list.as_slice() {
                [one] => self.eval(one),
                _ => Err(Diag::unsupported(e.pos, "braces here")),
            },
            ExprKind::Designated(..) => Err(Diag::syntax(
                e.pos,
                "a designated value outside a structure",
            )),
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
                Ok(Value::Lambda(Rc::new(Closure {
                    lambda: l.clone(),
                    scopes,
                })))
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
    pub(super) fn quiet(&mut self, e: &Expr) -> Res<Value> {
        let nesting = self.nesting;
        let v = self.eval(e);
        self.nesting = nesting;
        v
    }

    /// A place that is found without doing anything on the way.
    pub(super) fn place_quiet(&mut self, e: &Expr) -> Res<Place> {
        fn quiet(e: &Expr) -> bool {
            match &e.kind {
                ExprKind::Name(_) | ExprKind::Int(..) => true,
                ExprKind::Index(a, b) => quiet(a) && quiet(b),
                ExprKind::Member(a, _) | ExprKind::Unary(UnOp::Deref, a) => quiet(a),
                ExprKind::Binary(_, a, b) => e.depth < 32 && quiet(a) && quiet(b),
                _ => false,
            }
        }
        if e.depth < 64 && quiet(e) {
            self.place(e)
        } else {
            Err(Diag::unsupported(e.pos, "this value"))
        }
    }

    pub(super) fn name(&mut self, n: &Rc<str>, pos: Pos) -> Res<Value> {
        if let Some(slot) = self.find(n) {
            let v = self.slots.get(slot).cloned().unwrap_or(Value::Undef(None));
            return Ok(decay(
                v,
                Place {
                    slot,
                    path: Vec::new(),
                },
            ));
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
        Err(Diag::new(
            ErrorCode::UnknownName,
            pos,
            format!("unknown name {n}"),
        ))
    }

    pub(super) fn unary(&mut self, op: UnOp, a: &Expr, pos: Pos) -> Res<Value> {
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
                    Some(Step::Index(off)) => Ptr {
                        slot: p.slot,
                        path: p.path,
                        off,
                        single: false,
                    },
                    Some(f) => {
                        p.path.push(f);
                        Ptr {
                            slot: p.slot,
                            path: p.path,
                            off: Sx::int(0),
                            single: true,
                        }
                    }
                    None => Ptr {
                        slot: p.slot,
                        path: p.path,
                        off: Sx::int(0),
                        single: true,
                    },
                }))
            }
            UnOp::PreInc | UnOp::PreDec | UnOp::PostInc | UnOp::PostDec => {
                let place = self.place(a)?;
                let old = self.read(&place, pos)?;
                let how = if matches!(op, UnOp::PreInc | UnOp::PostInc) {
                    BinOp::Add
                } else {
                    BinOp::Sub
                };
                let new = self.arith(how, old.clone(), Value::int(1, IntTy::I32), pos)?;
                let new = self.fit(new, &old, pos)?;
                self.write(&place, new.clone(), pos)?;
                Ok(if matches!(op, UnOp::PreInc | UnOp::PreDec) {
                    new
                } else {
                    old
                })
            }
        }
    }

    /// `v` as the variable that held `old` keeps it.
    pub(super) fn fit(&self, v: Value, old: &Value, pos: Pos) -> Res<Value> {
        let t = match old {
            Value::Int(_, t) => Some(*t),
            Value::Undef(t) | Value::Poison(t, _) => *t,
            _ => None,
        };
        match (v, t) {
            (Value::Int(x, _), Some(t)) => Ok(Value::Int(x.cast(t), t)),
            (Value::Int(x, _), None)
                if x.constant() == Some(0) && !matches!(old, Value::Arr(_) | Value::Struct(_)) =>
            {
                Ok(Value::Null)
            }
            (Value::Poison(_, why), t) => Ok(Value::Poison(t, why)),
            (v @ (Value::Int(..) | Value::Arr(_) | Value::Void), None) => Err(Diag::unsupported(
                pos,
                format_args!("an assignment of {}", v.what()),
            )),
            (v, Some(_)) => Err(Diag::syntax(
                pos,
                format!("{} where an integer is needed", v.what()),
            )),
            (v, None) => Ok(v),
        }
    }

    pub(super) fn assign(&mut self, op: Option<BinOp>, l: &Expr, r: &Expr, pos: Pos) -> Res<Value> {
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

    pub(super) fn logical(&mut self, and: bool, a: &Expr, b: &Expr, pos: Pos) -> Res<Value> {
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
            matches!(k, Kind::Binary(Div | Mod | CDiv | CRem | UDiv | URem, _, d) if d.sure().lo <= 0)
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
    pub(super) fn branch<T>(
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
            self.slots
                .truncate(then_slots.len().max(before_len(&self.scopes)));
        }
        for (s, t) in self.slots.iter_mut().zip(&then_slots) {
            if !same_value(s, t) {
                *s = merge(c, t, s);
            }
        }
        if then_slots.len() > self.slots.len() {
            self.slots
                .extend_from_slice(then_slots.get(self.slots.len()..).unwrap_or_default());
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
            self.emit(
                Ir::If {
                    cond: c.clone(),
                    then: then_out,
                    otherwise: else_out,
                    pos,
                },
                pos,
            )?;
        }
        Ok((a, b))
    }

    pub(super) fn emit(&mut self, ir: Ir, pos: Pos) -> Res<()> {
        self.emitted += 1;
        if self.emitted > MAX_EMITTED {
            return Err(Diag::limit(
                pos,
                format!("the producer becomes more than {MAX_EMITTED} statements"),
            ));
        }
        self.out.push(ir);
        Ok(())
    }

    pub(super) fn arith(&mut self, op: BinOp, a: Value, b: Value, pos: Pos) -> Res<Value> {
        // Pointers.
        match (op, &a, &b) {
            (BinOp::Add | BinOp::Sub, Value::Ptr(_) | Value::Shape(_), Value::Int(i, _)) => {
                let how = if op == BinOp::Add {
                    BinaryOp::Add
                } else {
                    BinaryOp::Sub
                };
                return Ok(match a {
                    Value::Ptr(mut p) => {
                        p.off = Sx::binary(how, &p.off, i);
                        Value::Ptr(p)
                    }
                    Value::Shape(off) => Value::Shape(Sx::binary(how, &off, i)),
                    other => other,
                });
            }
            (BinOp::Add, Value::Int(..), Value::Ptr(_) | Value::Shape(_)) => {
                return self.arith(op, b, a, pos);
            }
            (BinOp::Eq | BinOp::Ne, x, y) if x.pointer_like() || y.pointer_like() => {
                let equal = match (x, y) {
                    (Value::Null, Value::Null) => true,
                    (Value::Null, Value::Ptr(_) | Value::Shape(_))
                    | (Value::Ptr(_) | Value::Shape(_), Value::Null) => false,
                    _ => return Err(Diag::unsupported(pos, "a comparison of pointers")),
                };
                return Ok(Value::int(
                    i64::from(equal == (op == BinOp::Eq)),
                    IntTy::Bool,
                ));
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
            let (x, y) = if swap && w == IntTy::U64 {
                (&y, &x)
            } else {
                (&x, &y)
            };
            Value::Int(
                Sx::binary(if w == IntTy::U64 { unsigned } else { plain }, x, y),
                IntTy::Bool,
            )
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
                    return Err(Diag::new(
                        ErrorCode::DivisionByZero,
                        pos,
                        "division by zero",
                    ));
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

    pub(super) fn shift(&mut self, op: BinOp, x: Sx, t: IntTy, n: Sx, pos: Pos) -> Res<Value> {
        let bits = i64::from(t.bits());
        if n.sure().hi < 0 || n.sure().lo >= bits {
            return Err(Diag::value(
                pos,
                format!(
                    "a shift of {} by a count outside 0 to {}",
                    t.name(),
                    bits - 1
                ),
            ));
        }
        let v = if op == BinOp::Shl {
            Sx::binary(BinaryOp::WrapShl, &x, &n)
        } else if t == IntTy::U64 {
            Sx::binary(BinaryOp::UShr, &x, &n)
        } else if n.sure().within(Range::new(0, 63)) {
            Sx::binary(BinaryOp::Shr, &x, &n)
        } else {
            // The count of a checked shift must be in range; C leaves other counts undefined.
            Sx::binary(
                BinaryOp::Shr,
                &x,
                &Sx::binary(BinaryOp::And, &n, &Sx::int(63)),
            )
        };
        Ok(Value::Int(v.cast(t), t))
    }
}
