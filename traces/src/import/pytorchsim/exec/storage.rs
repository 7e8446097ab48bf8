//! Variables: declarations, conversions, reading and writing.

use super::*;

impl Exec<'_> {
    pub(super) fn slot(&mut self, v: Value, pos: Pos) -> Res<usize> {
        if self.slots.len() >= MAX_SLOTS {
            return Err(Diag::limit(pos, "too many variables"));
        }
        self.slots.push(v);
        Ok(self.slots.len() - 1)
    }

    pub(super) fn bind(&mut self, name: &Rc<str>, slot: usize) {
        if let Some(s) = self.scopes.last_mut() {
            s.names.insert(name.clone(), slot);
        }
    }

    pub(super) fn push_scope(&mut self) {
        let mark = self.slots.len();
        self.scopes.push(Scope {
            names: HashMap::new(),
            mark,
        });
    }

    pub(super) fn pop_scope(&mut self) {
        if self.scopes.len() > 1
            && let Some(s) = self.scopes.pop()
        {
            // Variables that are static stay where they are for good.
            let keep = self.statics.values().copied().max().map_or(0, |m| m + 1);
            self.slots.truncate(s.mark.max(keep));
        }
    }

    pub(super) fn find(&self, name: &str) -> Option<usize> {
        for s in self.scopes.iter().rev() {
            if let Some(slot) = s.names.get(name) {
                return Some(*slot);
            }
        }
        self.globals.get(name).copied()
    }

    pub(super) fn count(&mut self, dims: &[Bound], pos: Pos) -> Res<Vec<Option<usize>>> {
        let mut out = Vec::new();
        let mut total = 1usize;
        for d in dims {
            out.push(match d {
                None => None,
                Some(e) => {
                    let (x, _) = self.int(e)?;
                    let n = x.constant().ok_or_else(|| {
                        Diag::unsupported(e.pos, "an array of variable size").unrollable()
                    })?;
                    let n = usize::try_from(n).unwrap_or(usize::MAX);
                    total = total.saturating_mul(n.max(1));
                    if total > MAX_ARRAY {
                        return Err(Diag::limit(
                            pos,
                            format!("an array of more than {MAX_ARRAY} elements"),
                        ));
                    }
                    Some(n)
                }
            });
        }
        Ok(out)
    }

    /// The value of a declaration.
    pub(super) fn declared(&mut self, d: &Decl) -> Res<Value> {
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

    pub(super) fn zero(&self, ty: &Ty) -> Value {
        match (&ty.base, ty.pointers) {
            (Base::Int(t), 0) => Value::int(0, *t),
            _ => Value::Null,
        }
    }

    pub(super) fn array_value(
        &mut self,
        ty: &Ty,
        dims: &[Option<usize>],
        init: Option<&Expr>,
        pos: Pos,
    ) -> Res<Value> {
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
            && let Some(
                [
                    Expr {
                        kind: ExprKind::Braces(None, inner),
                        ..
                    },
                ],
            ) = list
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
            return Err(Diag::limit(
                pos,
                format!("an array of more than {MAX_ARRAY} elements"),
            ));
        }
        let given = list.map_or(0, <[Expr]>::len);
        if given > n {
            return Err(Diag::syntax(
                pos,
                format!("{given} values for an array of {n}"),
            ));
        }
        self.spend(n as u64, pos)?;
        let mut items = Vec::with_capacity(n);
        for i in 0..n {
            let e = list.and_then(|l| l.get(i));
            let v = match e {
                _ if !rest.is_empty() => {
                    if e.is_some_and(|e| !matches!(e.kind, ExprKind::Braces(None, _))) {
                        return Err(Diag::unsupported(
                            pos,
                            "a nested array without inner braces",
                        ));
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
                    (ExprKind::Braces(None, l), Base::Struct(name), 0) => {
                        self.struct_value(&name.clone(), Some(l), pos)?
                    }
                    _ => {
                        let v = self.eval(e)?;
                        self.convert(v, ty, e.pos)?
                    }
                },
                None => match (&ty.base, ty.pointers) {
                    (Base::Struct(name), 0) => {
                        self.struct_value(&name.clone(), list.map(|_| [].as_slice()), pos)?
                    }
                    (Base::Int(t), 0) if list.is_none() => Value::Undef(Some(*t)),
                    _ => self.zero(ty),
                },
            };
            items.push(v);
        }
        Ok(Value::Arr(Rc::new(items)))
    }

    pub(super) fn struct_value(
        &mut self,
        name: &str,
        list: Option<&[Expr]>,
        pos: Pos,
    ) -> Res<Value> {
        let Some(s) = self.structs.get(name).copied() else {
            return Err(Diag::syntax(pos, format!("unknown structure {name}")));
        };
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(Diag::deep(pos, "structures nested too deep"));
        }
        let mut fields = Vec::new();
        let list = list.unwrap_or_default();
        let designated = list
            .iter()
            .any(|e| matches!(e.kind, ExprKind::Designated(..)));
        if list.len() > s.fields.len() {
            return Err(Diag::syntax(
                pos,
                format!(
                    "{} values for a structure of {}",
                    list.len(),
                    s.fields.len()
                ),
            ));
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
                        (ExprKind::Braces(None, l), Base::Struct(n)) => {
                            self.struct_value(&n.clone(), Some(l), pos)?
                        }
                        _ => {
                            let v = self.eval(e)?;
                            self.convert(v, &f.ty, e.pos)?
                        }
                    }
                }
                None => {
                    let v = self.declared(f)?;
                    if list.is_empty() && f.init.is_none() {
                        v
                    } else {
                        zeroed(&v)
                    }
                }
            };
            fields.push((f.name.clone(), v));
        }
        self.nesting -= 1;
        Ok(Value::Struct(Rc::new(fields)))
    }

    /// The value as the type holds it.
    pub(super) fn convert(&mut self, v: Value, ty: &Ty, pos: Pos) -> Res<Value> {
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
            (Base::Int(_), Value::Undef(_)) => {
                Err(Diag::value(pos, "a variable is read that was never set"))
            }
            (Base::Struct(_), v @ (Value::Struct(_) | Value::Poison(..))) => Ok(v),
            (_, v) => Err(Diag::syntax(
                pos,
                format!("{} where another type is needed", v.what()),
            )),
        }
    }

    pub(super) fn read(&self, place: &Place, pos: Pos) -> Res<Value> {
        let v = self
            .slots
            .get(place.slot)
            .ok_or_else(|| Diag::value(pos, "a pointer to a variable that is gone"))?;
        read_path(v, &place.path, pos)
    }

    pub(super) fn write(&mut self, place: &Place, v: Value, pos: Pos) -> Res<()> {
        let old = self
            .slots
            .get(place.slot)
            .ok_or_else(|| Diag::value(pos, "a pointer to a variable that is gone"))?;
        let new = write_path(old, &place.path, v, pos)?;
        if let Some(s) = self.slots.get_mut(place.slot) {
            *s = new;
        }
        Ok(())
    }

    /// Where an expression's value is kept.
    pub(super) fn place(&mut self, e: &Expr) -> Res<Place> {
        match &e.kind {
            ExprKind::Name(n) => match self.find(n) {
                Some(slot) => Ok(Place {
                    slot,
                    path: Vec::new(),
                }),
                None => Err(Diag::new(
                    ErrorCode::UnknownName,
                    e.pos,
                    format!("unknown name {n}"),
                )),
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

    pub(super) fn element(&self, base: &Value, i: &Sx, pos: Pos) -> Res<Place> {
        match base {
            Value::Ptr(p) => {
                let off = Sx::binary(BinaryOp::Add, &p.off, i);
                let mut path = p.path.clone();
                if p.single {
                    if off.constant() != Some(0) {
                        return Err(Diag::value(
                            pos,
                            "a pointer to one variable is used beyond it",
                        ));
                    }
                } else {
                    path.push(Step::Index(off));
                }
                Ok(Place { slot: p.slot, path })
            }
            Value::Null => Err(Diag::value(pos, "a null pointer is followed")),
            Value::Choice(..) => Err(Diag::unsupported(
                pos,
                "a change through a pointer that depends on a condition",
            )
            .unrollable()),
            other => Err(Diag::unsupported(
                pos,
                format_args!("an index into {}", other.what()),
            )),
        }
    }

    /// Element `i` behind a pointer.
    pub(super) fn load(&mut self, base: &Value, i: &Sx, pos: Pos) -> Res<Value> {
        match base {
            Value::Shape(off) => {
                let k = Sx::binary(BinaryOp::Add, off, i);
                match k.constant() {
                    Some(k) if (0..64).contains(&k) => {
                        Ok(Value::Int(Sx::shape(k as u32), IntTy::I64))
                    }
                    Some(k) => Err(Diag::value(
                        pos,
                        format!("shape argument {k} does not exist"),
                    )),
                    None => Err(Diag::unsupported(
                        pos,
                        "a shape argument whose number is not constant",
                    )
                    .unrollable()),
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
}
