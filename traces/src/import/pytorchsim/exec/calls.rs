//! Calls of functions, lambdas and the few library functions.

use super::*;

impl Exec<'_> {
    pub(super) fn call(&mut self, f: &Expr, args: &[Expr], pos: Pos) -> Res<Value> {
        if let ExprKind::Name(n) = &f.kind
            && self.find(n).is_none()
        {
            let n = n.clone();
            if n.starts_with("togsim_")
                && !matches!(&*n, "togsim_kernel")
                && (is_abi(&n) || !self.functions.contains_key(&n))
            {
                return self.abi_call(&n, args, pos);
            }
            match &*n {
                "std::min" | "std::max" | "min" | "max" if !self.functions.contains_key(&n) => {
                    return self.min_max(n.ends_with("min"), args, pos);
                }
                "std::move" | "std::forward" | "std::as_const" if args.len() == 1 => {
                    return self.eval(&args[0]);
                }
                "std::size" | "std::ssize" if args.len() == 1 => {
                    let p = self.place(&args[0])?;
                    if let Value::Arr(v) = self.read(&p, pos)? {
                        return Ok(Value::int(
                            v.len() as i64,
                            if &*n == "std::size" {
                                IntTy::U64
                            } else {
                                IntTy::I64
                            },
                        ));
                    }
                    return Err(Diag::unsupported(pos, "the size of this value"));
                }
                "std::abs" | "abs" | "labs" | "llabs"
                    if args.len() == 1 && !self.functions.contains_key(&n) =>
                {
                    let (x, t) = self.int(&args[0])?;
                    let t = t.promoted();
                    let c = Sx::binary(BinaryOp::Lt, &x, &Sx::int(0));
                    return Ok(Value::Int(
                        Sx::select(&c, &Sx::unary(UnaryOp::Neg, &x), &x).cast(t),
                        t,
                    ));
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
                ("data" | "begin", Value::Arr(_)) => Ok(Value::Ptr(Ptr {
                    slot: p.slot,
                    path: p.path,
                    off: Sx::int(0),
                    single: false,
                })),
                ("size", Value::Arr(v)) => Ok(Value::int(v.len() as i64, IntTy::U64)),
                ("at", Value::Arr(_)) if args.len() == 1 => {
                    let (i, _) = self.int(&args[0])?;
                    let base = Value::Ptr(Ptr {
                        slot: p.slot,
                        path: p.path,
                        off: Sx::int(0),
                        single: false,
                    });
                    self.load(&base, &i, pos)
                }
                _ => Err(Diag::unsupported(
                    pos,
                    format_args!("a call of the member function {field}"),
                )),
            };
        }
        let target = self.eval(f)?;
        match target {
            Value::Function(func) => {
                let values = self.call_args(&func.params, args, &func.name, pos)?;
                self.enter_call(
                    pos,
                    &func.params,
                    values,
                    &func.body,
                    Some(&func.ret),
                    Vec::new(),
                )
            }
            Value::Lambda(c) => {
                let values = self.call_args(&c.lambda.params, args, "the lambda", pos)?;
                self.enter_call(
                    pos,
                    &c.lambda.params,
                    values,
                    &c.lambda.body,
                    None,
                    c.scopes.clone(),
                )
            }
            other => Err(Diag::syntax(pos, format!("{} is called", other.what()))),
        }
    }

    /// Arguments: values, or the slot of the variable for a reference.
    pub(super) fn call_args(
        &mut self,
        params: &[Param],
        args: &[Expr],
        name: &str,
        pos: Pos,
    ) -> Res<Vec<Arg>> {
        if params.len() != args.len() {
            return Err(Diag::syntax(
                pos,
                format!(
                    "{name} takes {} arguments, {} given",
                    params.len(),
                    args.len()
                ),
            ));
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
                if !p.ty.is_const && !matches!(p.ty.base, Base::Auto) && self.place_quiet(a).is_ok()
                {
                    // A part of an array or structure: changes through the reference would be lost.
                    out.push(Arg::ReadOnly(self.eval(a)?));
                    continue;
                }
            }
            if let (ExprKind::Braces(None, list), Base::Struct(s), 0) =
                (&a.kind, &p.ty.base, p.ty.pointers)
            {
                out.push(Arg::Value(self.struct_value(
                    &s.clone(),
                    Some(list),
                    a.pos,
                )?));
                continue;
            }
            let v = self.eval(a)?;
            let v = if p.array {
                v
            } else {
                self.convert(v, &p.ty, a.pos)?
            };
            out.push(Arg::Value(v));
        }
        Ok(out)
    }

    pub(super) fn call_function(
        &mut self,
        f: &Rc<Function>,
        values: Vec<Value>,
        pos: Pos,
    ) -> Res<Value> {
        let args = values.into_iter().map(Arg::Value).collect();
        self.enter_call(pos, &f.params, args, &f.body, Some(&f.ret), Vec::new())
    }

    pub(super) fn enter_call(
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
            return Err(Diag::deep(
                pos,
                format!("calls nested deeper than {MAX_CALLS}, or a recursion"),
            ));
        }
        self.nesting += 2;
        if self.nesting > MAX_NESTING {
            return Err(Diag::deep(
                pos,
                format!("calls and statements nested deeper than {MAX_NESTING}"),
            ));
        }
        let mark = self.slots.len();
        let scopes = std::mem::replace(&mut self.scopes, captured);
        self.scopes.push(Scope {
            names: HashMap::new(),
            mark,
        });
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
        let flow = self.run(
            &Seq {
                stmts: body,
                pop: false,
                next: None,
            },
            false,
        )?;
        self.returns = returns;
        for (s, v) in frozen {
            if self.slots.get(s).is_some_and(|now| !same_value(now, &v)) {
                return Err(Diag::unsupported(
                    pos,
                    "a reference to a part of an array or structure that is changed",
                ));
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
            Flow::Break | Flow::Continue => {
                return Err(Diag::syntax(pos, "break or continue outside a loop"));
            }
        };
        match (ret, v) {
            (Some(ty), v) if !matches!(ty.base, Base::Void) || ty.pointers > 0 => match v {
                Value::Void => Err(Diag::value(
                    pos,
                    "a function ends without the value it promises",
                )),
                v => self.convert(v, ty, pos),
            },
            (_, v) => Ok(v),
        }
    }

    pub(super) fn min_max(&mut self, min: bool, args: &[Expr], pos: Pos) -> Res<Value> {
        let list: Vec<&Expr> = match args {
            [
                Expr {
                    kind: ExprKind::Braces(None, l),
                    ..
                },
            ] => l.iter().collect(),
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
                        (
                            if min {
                                Sx::select(&c, &x, &y)
                            } else {
                                Sx::select(&c, &y, &x)
                            },
                            w,
                        )
                    } else {
                        (
                            Sx::binary(if min { BinaryOp::Min } else { BinaryOp::Max }, &y, &x),
                            w,
                        )
                    }
                }
            });
        }
        match best {
            Some((x, t)) => Ok(Value::Int(x, t)),
            None => Err(Diag::unsupported(pos, "this use of min or max")),
        }
    }
}
