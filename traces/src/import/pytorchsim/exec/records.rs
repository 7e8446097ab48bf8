//! The `togsim_*` calls.

use super::*;

impl Exec<'_> {
    pub(super) fn abi_call(&mut self, n: &str, args: &[Expr], pos: Pos) -> Res<Value> {
        let mut v = Vec::new();
        for a in args {
            v.push(self.eval(a)?);
        }
        match n {
            "togsim_abi_version" => {
                return Ok(Value::int(i64::from(self.abi.unwrap_or(15)), IntTy::I32));
            }
            "togsim_core_alloc" => {
                if self.in_item {
                    return Err(Diag::value(
                        pos,
                        "togsim_core_alloc inside a dispatched work-item",
                    ));
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
            return Err(Diag::value(
                pos,
                format!("the first argument of {n} is not the EmitCtx"),
            ));
        }
        match n {
            "togsim_dispatch" => self.dispatch(&v, pos)?,
            "togsim_dma" => self.dma(&v, pos)?,
            "togsim_compute" => self.compute(&v, pos)?,
            "togsim_memory_barrier" => self.barrier(&v, pos)?,
            "togsim_wait" | "togsim_wait_all" | "togsim_signal" | "togsim_event_alloc"
            | "togsim_event_free" => {
                return Err(Diag::unsupported(
                    pos,
                    format_args!("{n} (trace ABI 10 or older)"),
                ));
            }
            _ => return Err(Diag::unsupported(pos, format_args!("the call {n}"))),
        }
        Ok(Value::Void)
    }

    pub(super) fn arg(&self, v: &[Value], i: usize, t: IntTy, pos: Pos) -> Res<Sx> {
        let x = v.get(i).cloned().unwrap_or(Value::Void);
        Ok(self.as_int(x, pos)?.0.cast(t))
    }

    pub(super) fn dispatch(&mut self, v: &[Value], pos: Pos) -> Res<()> {
        if self.in_item {
            return Err(Diag::value(pos, "a work-item that dispatches another"));
        }
        let (Some(f), Some(iv)) = (v.get(1), v.get(2)) else {
            return Err(Diag::syntax(pos, "togsim_dispatch takes 4 or 5 arguments"));
        };
        if v.len() != 4 && v.len() != 5 {
            return Err(Diag::syntax(
                pos,
                format!("togsim_dispatch takes 4 or 5 arguments, {} given", v.len()),
            ));
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
                    return Err(Diag::value(
                        pos,
                        format!("{} takes three parameters as a tile function", f.name),
                    ));
                }
                self.call_function(&f.clone(), vec![Value::Ctx, iv.clone(), n], pos)?;
            }
            Value::Lambda(c) => {
                let c = c.clone();
                let args = [Value::Ctx, iv.clone(), n]
                    .into_iter()
                    .map(Arg::Value)
                    .collect();
                if c.lambda.params.len() != 3 {
                    return Err(Diag::value(pos, "a tile function takes three parameters"));
                }
                self.enter_call(
                    pos,
                    &c.lambda.params,
                    args,
                    &c.lambda.body,
                    None,
                    c.scopes.clone(),
                )?;
            }
            other => {
                return Err(Diag::value(
                    pos,
                    format!("{} is dispatched, not a function", other.what()),
                ));
            }
        }
        for (a, b) in self.slots.iter().zip(&before.slots) {
            if !same_value(a, b) {
                return Err(Diag::unsupported(
                    pos,
                    "a work-item that changes variables of another",
                ));
            }
        }
        let body = std::mem::replace(&mut self.out, outer);
        self.in_item = false;
        self.tags = before.tags;
        self.emit(Ir::Item { body, pos }, pos)
    }

    /// The elements of an array argument.
    pub(super) fn list(&mut self, base: &Value, n: i64, what: &str, pos: Pos) -> Res<Vec<Sx>> {
        if !(0..=4096).contains(&n) {
            return Err(Diag::value(pos, format!("{n} {what}")));
        }
        let mut out = Vec::new();
        for i in 0..n {
            if matches!(base, Value::Null) {
                return Err(Diag::value(
                    pos,
                    format!("{n} {what} behind a null pointer"),
                ));
            }
            let v = self.load(base, &Sx::int(i), pos)?;
            let (x, t) = self.as_int(v, pos)?;
            if t.bits() != 64 {
                return Err(Diag::value(
                    pos,
                    format!("{what} are int64_t, this array is {}", t.name()),
                ));
            }
            out.push(x);
        }
        Ok(out)
    }

    /// Calls `f` with constants for `x`; values that depend on a few cases become an `if` over them.
    pub(super) fn cases(
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
            if self.analysis > 0 && e.mentions(&|k| matches!(k, Kind::Phi(_))) {
                // Its cases are known once the loop around it is understood.
                return Ok(());
            }
            return Err(Diag::unsupported(
                pos,
                format_args!("{what} that is not known before launch"),
            )
            .unrollable());
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

    pub(super) fn case(
        &mut self,
        x: &[(&'static str, Sx)],
        e: &Sx,
        values: &[i64],
        k: usize,
        pos: Pos,
        f: &mut dyn FnMut(&mut Self, &[i64]) -> Res<()>,
    ) -> Res<()> {
        let Some(&v) = values.get(k) else {
            return Ok(());
        };
        let here: Vec<(&'static str, Sx)> = x
            .iter()
            .map(|(w, y)| {
                (
                    *w,
                    y.replace(&|z| {
                        if Rc::ptr_eq(&z.0, &e.0) || z.same(e) {
                            Some(Sx::int(v))
                        } else {
                            None
                        }
                    }),
                )
            })
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

    pub(super) fn settle_form(&mut self, f: Form, pos: Pos) -> Res<()> {
        if let Some(a) = self.abi
            && (a >= 14) != (f == Form::Sem)
        {
            return Err(Diag::value(
                pos,
                format!("this call has not the shape of trace ABI {a}"),
            ));
        }
        match self.form {
            Some(g) if g != f => Err(Diag::value(pos, "calls of two trace ABIs in one producer")),
            _ => {
                self.form = Some(f);
                Ok(())
            }
        }
    }

    pub(super) fn dma(&mut self, v: &[Value], pos: Pos) -> Res<()> {
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
                return Err(Diag::value(
                    pos,
                    format!("togsim_dma with {n} arguments of this kind is no known trace ABI"),
                )
                .hint("ABI 11 to 15 are known"));
            }
        };
        self.settle_form(form, pos)?;
        let tag = form == Form::Tag;
        let at = usize::from(tag);
        let ndim = self.arg(v, 4, IntTy::I32, pos)?;
        let Some(ndim) = ndim.constant() else {
            return Err(
                Diag::unsupported(pos, "a number of dimensions that is not constant").unrollable(),
            );
        };
        if !(0..=8).contains(&ndim) {
            return Err(Diag::value(pos, format!("{ndim} dimensions")));
        }
        let offset = self.arg(v, 3, IntTy::U64, pos)?;
        let (dims_at, strides_at) = (
            v.get(5).cloned().unwrap_or(Value::Null),
            v.get(6).cloned().unwrap_or(Value::Null),
        );
        let dims = self.list(&dims_at, ndim, "dims", pos)?;
        let null = matches!(strides_at, Value::Null)
            || matches!(&strides_at, Value::Int(x, _) if x.constant() == Some(0));
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
            (
                "a choice of asynchronous",
                self.arg(v, 8, IntTy::I32, pos)?.truth(),
            ),
        ];
        // Tag and slot, or the semaphore, matter to asynchronous transfers only.
        let asynchronous = x.get(3).and_then(|(_, e)| e.constant()) != Some(0);
        let store = x.first().and_then(|(_, e)| e.constant()) == Some(1);
        let ids = if !asynchronous || (store && tag) {
            [Sx::int(0), Sx::int(0)]
        } else if tag {
            [
                self.arg(v, 9, IntTy::I32, pos)?,
                self.arg(v, 10, IntTy::U64, pos)?,
            ]
        } else {
            [self.arg(v, 9, IntTy::U64, pos)?, Sx::int(0)]
        };
        x.push(("a tag or semaphore", ids[0].clone()));
        x.push(("a tag slot", ids[1].clone()));
        let indirect_at = 14 + at;
        let indirect = if v.len() > indirect_at {
            self.arg(v, indirect_at, IntTy::I32, pos)?.truth()
        } else {
            Sx::int(0)
        };
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
                d => {
                    return Err(Diag::value(
                        pos,
                        format!("direction {d} is neither 0 (load) nor 1 (store)"),
                    ));
                }
            };
            let is_async = get(3) != 0;
            let key = if !is_async {
                None
            } else if tag {
                // A store finishes when it is issued and nothing waits for it by tag.
                if store {
                    None
                } else {
                    Some(SemKey::Tag(get(4), get(5)))
                }
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
                s.tags.insert(
                    (a, b),
                    TagLoad {
                        elements: Some(n),
                        writes: writes.clone(),
                    },
                );
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

    pub(super) fn need_item(&self, pos: Pos) -> Res<()> {
        if self.in_item || self.core_alloc {
            return Ok(());
        }
        Err(Diag::value(pos, "a trace call outside any work-item")
            .hint("calls belong into the function that togsim_dispatch runs"))
    }

    /// A buffer list argument (pointer, count); its elements are added to `x`.
    pub(super) fn buffers(
        &mut self,
        v: &[Value],
        at: usize,
        x: &mut Vec<(&'static str, Sx)>,
        pos: Pos,
    ) -> Res<usize> {
        let n = self.arg(v, at + 1, IntTy::I32, pos)?;
        let Some(n) = n.constant() else {
            return Err(
                Diag::unsupported(pos, "a number of buffers that is not constant").unrollable(),
            );
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

    pub(super) fn compute(&mut self, v: &[Value], pos: Pos) -> Res<()> {
        if v.len() != 9 {
            return Err(Diag::syntax(
                pos,
                format!("togsim_compute takes 9 arguments, {} given", v.len()),
            ));
        }
        let mut x = vec![
            ("a compute tile", self.arg(v, 1, IntTy::U64, pos)?),
            ("a compute unit", self.arg(v, 2, IntTy::I32, pos)?),
        ];
        let nr = self.buffers(v, 5, &mut x, pos)?;
        self.buffers(v, 7, &mut x, pos)?;
        self.need_item(pos)?;
        self.cases(&x, pos, &mut |s, c| {
            let get = |i: usize| c.get(i).copied().unwrap_or(0);
            if !(0..=3).contains(&get(1)) {
                return Err(Diag::value(
                    pos,
                    format!("compute type {} is none of 0 to 3", get(1)),
                ));
            }
            let reads = c.get(2..2 + nr).unwrap_or_default().to_vec();
            let writes = c.get(2 + nr..).unwrap_or_default().to_vec();
            s.emit(
                Ir::Compute {
                    tile: get(0),
                    unit: get(1),
                    reads,
                    writes,
                    pos,
                },
                pos,
            )
        })
    }

    pub(super) fn barrier(&mut self, v: &[Value], pos: Pos) -> Res<()> {
        self.need_item(pos)?;
        match v.len() {
            3 => {
                self.settle_form(Form::Sem, pos)?;
                let sem = self.arg(v, 1, IntTy::U64, pos)?;
                let expected = self.arg(v, 2, IntTy::I64, pos)?;
                self.cases(&[("a semaphore", sem)], pos, &mut |s, c| {
                    let key = SemKey::Sem(c.first().copied().unwrap_or(0));
                    s.emit(
                        Ir::Wait {
                            key,
                            expected: expected.clone(),
                            pos,
                        },
                        pos,
                    )
                })
            }
            5 => {
                self.settle_form(Form::Tag, pos)?;
                let mut x = vec![
                    ("a tag", self.arg(v, 1, IntTy::I32, pos)?),
                    ("a tag slot", self.arg(v, 2, IntTy::U64, pos)?),
                ];
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
            n => Err(Diag::value(
                pos,
                format!("togsim_memory_barrier with {n} arguments is no known trace ABI"),
            )),
        }
    }
}
