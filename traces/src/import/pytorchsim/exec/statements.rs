//! Statements, and conditions that are not known.

use super::*;

impl Exec<'_> {
    /// Runs statements and everything that follows them.
    pub(super) fn run(&mut self, seq: &Seq<'_>, in_loop: bool) -> Res<Flow> {
        self.nesting += 1;
        let at = seq.stmts.first().map_or_else(Pos::default, |s| s.pos);
        if self.nesting > MAX_NESTING {
            return Err(Diag::deep(
                at,
                format!("calls and statements nested deeper than {MAX_NESTING}"),
            ));
        }
        let flow = self.run_inner(seq, in_loop);
        self.nesting = self.nesting.saturating_sub(1);
        flow
    }

    pub(super) fn run_inner(&mut self, seq: &Seq<'_>, in_loop: bool) -> Res<Flow> {
        let mut seq = seq;
        loop {
            for (i, s) in seq.stmts.iter().enumerate() {
                self.spend(1, s.pos)?;
                let rest = Seq {
                    stmts: seq.stmts.get(i + 1..).unwrap_or_default(),
                    pop: seq.pop,
                    next: seq.next,
                };
                match &s.kind {
                    StmtKind::Block(body) if self.leaves(s).0 || self.leaves(s).1 => {
                        self.push_scope();
                        return self.run(
                            &Seq {
                                stmts: body,
                                pop: true,
                                next: Some(&rest),
                            },
                            in_loop,
                        );
                    }
                    StmtKind::If(c, then, otherwise) => {
                        let c = self.condition(c)?;
                        let leaves = self.leaves(s);
                        if let Some(v) = c.constant() {
                            let taken = if v != 0 {
                                Some(then)
                            } else {
                                otherwise.as_ref()
                            };
                            if let Some(t) = taken {
                                match self.one(t, in_loop)? {
                                    Flow::Next => {}
                                    other => return Ok(other),
                                }
                            }
                            continue;
                        }
                        if leaves.0 || leaves.1 {
                            return self.split(
                                &c,
                                then,
                                otherwise.as_deref(),
                                &rest,
                                in_loop,
                                s.pos,
                            );
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
    pub(super) fn one(&mut self, s: &Stmt, in_loop: bool) -> Res<Flow> {
        let depth = self.scopes.len();
        self.push_scope();
        let stmts: &[Stmt] = match &s.kind {
            StmtKind::Block(b) => b,
            _ => std::slice::from_ref(s),
        };
        let flow = self.run(
            &Seq {
                stmts,
                pop: false,
                next: None,
            },
            in_loop,
        )?;
        while self.scopes.len() > depth {
            self.pop_scope();
        }
        Ok(flow)
    }

    /// An `if` that may leave the list: each way runs the rest for itself.
    pub(super) fn split(
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
                    x.run(
                        &Seq {
                            stmts,
                            pop: true,
                            next: Some(rest),
                        },
                        in_loop,
                    )
                }
            }
        };
        let (a, b) = self.branch(c, pos, |x| way(x, Some(then)), |x| way(x, otherwise))?;
        match (a, b) {
            (Flow::Next, Flow::Next) => Ok(Flow::Next),
            (Flow::Continue, Flow::Continue) => Ok(Flow::Continue),
            (Flow::Break, Flow::Break) => Ok(Flow::Break),
            (Flow::Next, Flow::Continue) | (Flow::Continue, Flow::Next) if in_loop => {
                Ok(Flow::Next)
            }
            (Flow::Return(x), Flow::Return(y)) => Ok(Flow::Return(match (x, y) {
                (Value::Int(x, t), Value::Int(y, u)) => {
                    let w = if t == u { t } else { IntTy::common(t, u) };
                    Value::Int(Sx::select(c, &x.cast(w), &y.cast(w)), w)
                }
                (x, y) => merge(c, &x, &y),
            })),
            (Flow::Return(Value::Void), Flow::Next) | (Flow::Next, Flow::Return(Value::Void))
                if !in_loop =>
            {
                Ok(Flow::Return(Value::Void))
            }
            _ => Err(Diag::unsupported(
                pos,
                "leaving a loop under a condition that is not constant",
            )
            .unrollable()),
        }
    }

    /// Whether a statement contains `return` or an outward `break`/`continue`.
    pub(super) fn leaves(&mut self, s: &Stmt) -> (bool, bool) {
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
            StmtKind::For(_, _, _, b)
            | StmtKind::While(_, b)
            | StmtKind::DoWhile(b, _)
            | StmtKind::ForEach(_, _, b) => {
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

    pub(super) fn statement(&mut self, s: &Stmt, in_loop: bool) -> Res<Flow> {
        match &s.kind {
            StmtKind::Empty => {}
            StmtKind::Decl(list) => {
                for d in list {
                    if d.is_static && !d.ty.is_const {
                        return Err(Diag::unsupported(
                            d.pos,
                            "a static variable that may change",
                        ));
                    }
                    if self.find(&d.name).is_some()
                        && self
                            .scopes
                            .last()
                            .is_some_and(|s| s.names.contains_key(&d.name))
                    {
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
                            return Err(Diag::unsupported(
                                d.pos,
                                "a reference to a part of an array or structure",
                            ));
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
            StmtKind::If(..) => {
                return self.run(
                    &Seq {
                        stmts: std::slice::from_ref(s),
                        pop: false,
                        next: None,
                    },
                    in_loop,
                );
            }
            StmtKind::Return(e) => {
                let v = match e {
                    Some(Expr {
                        kind: ExprKind::Braces(None, list),
                        pos,
                        ..
                    }) => match self.returns.clone() {
                        Some(Ty {
                            base: Base::Struct(name),
                            pointers: 0,
                            ..
                        }) => self.struct_value(&name, Some(list), *pos)?,
                        Some(ty) if list.is_empty() => self.zero(&ty),
                        _ => match list.as_slice() {
                            [one] => self.eval(one)?,
                            _ => {
                                return Err(Diag::unsupported(
                                    *pos,
                                    "a braced value returned here",
                                ));
                            }
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
                let l = LoopParts {
                    cond: cond.as_ref(),
                    step: step.as_ref(),
                    body,
                    pos: s.pos,
                    tail: None,
                };
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
                    && let Some((
                        Stmt {
                            kind: StmtKind::Expr(e),
                            ..
                        },
                        head,
                    )) = b.split_last()
                    && !head.iter().any(|x| self.leaves(x).1)
                {
                    tail = Some((head, e));
                }
                let step = tail.map(|(_, e)| e);
                let l = LoopParts {
                    cond: Some(c),
                    step,
                    body,
                    pos: s.pos,
                    tail: tail.map(|(h, _)| h),
                };
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
                            return Err(Diag::unsupported(
                                c.pos,
                                "a do loop whose end is not constant",
                            )
                            .unrollable());
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

    pub(super) fn for_each(&mut self, d: &Decl, list: &Expr, body: &Stmt, pos: Pos) -> Res<Flow> {
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
                    other => {
                        return Err(Diag::unsupported(
                            pos,
                            format_args!("a loop over {}", other.what()),
                        ));
                    }
                }
            }
        };
        if d.ty.reference && !d.ty.is_const {
            return Err(Diag::unsupported(pos, "a loop over references")
                .hint("take the elements by value or const"));
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

    pub(super) fn switch(
        &mut self,
        on: &Expr,
        cases: &[(Vec<Option<Expr>>, Vec<Stmt>)],
        in_loop: bool,
        pos: Pos,
    ) -> Res<Flow> {
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
                        list.push(
                            c.ok_or_else(|| Diag::syntax(e.pos, "a case that is not constant"))?,
                        );
                    }
                }
            }
            arms.push((list, default));
        }
        self.arm(&x, cases, &arms, 0, in_loop, pos)
    }

    /// Tries case `k` and the following ones.
    pub(super) fn arm(
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
                let (a, b) = self.branch(
                    &c,
                    pos,
                    |s| fall(s, k),
                    |s| s.arm(x, cases, arms, k + 1, in_loop, pos),
                )?;
                self.nesting = self.nesting.saturating_sub(1);
                match (a, b) {
                    (Flow::Next, Flow::Next) => Ok(Flow::Next),
                    (Flow::Return(x), Flow::Return(y)) => Ok(Flow::Return(merge(&c, &x, &y))),
                    _ => Err(Diag::unsupported(
                        pos,
                        "a switch that leaves its function on some paths only",
                    )
                    .unrollable()),
                }
            }
        }
    }

    pub(super) fn one_in_switch(&mut self, s: &Stmt, in_loop: bool) -> Res<Flow> {
        match &s.kind {
            StmtKind::Decl(_) => self.statement(s, in_loop),
            _ => self.one(s, in_loop),
        }
    }
}
