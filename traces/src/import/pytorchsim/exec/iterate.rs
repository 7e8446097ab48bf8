//! Loops: kept as loops where possible, followed one by one where not.

use super::*;

impl Exec<'_> {
    pub(super) fn looped(&mut self, l: &LoopParts<'_>) -> Res<Flow> {
        self.spend(self.slots.len() as u64 / 8 + 1, l.pos)?;
        let before = self.save();
        match self.symbolic(l) {
            Ok(true) => Ok(Flow::Next),
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
    pub(super) fn one_by_one(
        &mut self,
        l: &LoopParts<'_>,
        why: Option<Diag>,
        level: u32,
    ) -> Res<Flow> {
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
                            _ => Err(Diag::unsupported(
                                l.pos,
                                "leaving a function inside such a loop",
                            )
                            .unrollable()),
                        };
                    }
                    None => {
                        let d =
                            Diag::unsupported(c.pos, "a loop that does not step evenly to a bound");
                        return Err(give_up(
                            d.hint("loops of the form `for (i = a; i < b; i += c)` are read"),
                        )
                        .unrollable());
                    }
                }
            }
            count += 1;
            self.iterations += 1;
            if count > 4096 && (why.is_some() || self.emitted > from)
                || count > 100_000
                || self.iterations > 400_000
            {
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
    pub(super) fn symbolic(&mut self, l: &LoopParts<'_>) -> Res<bool> {
        let (Some(cond), Some(step)) = (l.cond, l.step) else {
            return Ok(false);
        };
        let var = match &step.kind {
            ExprKind::Unary(UnOp::PreInc | UnOp::PreDec | UnOp::PostInc | UnOp::PostDec, v) => &**v,
            ExprKind::Assign(_, v, _) => &**v,
            _ => return Ok(false),
        };
        let ExprKind::Name(name) = &var.kind else {
            return Ok(false);
        };
        let Some(slot) = self.find(name) else {
            return Ok(false);
        };
        let Some(Value::Int(lo, t)) = self.slots.get(slot).cloned() else {
            return Ok(false);
        };
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
        let Some(by) = step_of(&stepped, id) else {
            return Ok(false);
        };
        if by == 0 {
            return Err(Diag::new(
                ErrorCode::ZeroStep,
                step.pos,
                "a loop that never advances",
            ));
        }
        for (i, (a, b)) in self.slots.iter().zip(&before).enumerate() {
            if i != slot && !same_value(a, b) {
                return Ok(false);
            }
        }

        // The condition, on a variable that is on one side of where it starts.
        let r = Range::of(t);
        let side = if by > 0 {
            Range::new(lo.sure().lo, r.hi)
        } else {
            Range::new(r.lo, lo.sure().hi)
        };
        let probe = Sx::loop_var(id, side, side, None);
        self.set(slot, Value::Int(probe.clone(), t));
        let c = self.condition(cond)?;
        let Some(hi) = bound_of(&c, id, by, &lo, t, self.in_item) else {
            return Ok(false);
        };
        self.slots = before;
        // An unsigned variable must not wrap before it meets its bound.
        // (With 2^26 iterations in between it never comes to that: no launch allows so many.)
        if matches!(t, IntTy::U8 | IntTy::U16 | IntTy::U32 | IntTy::Bool)
            && by > 0
            && i128::from(hi.sure().hi) - 1 + i128::from(by) > i128::from(r.hi)
            && (i128::from(r.hi) - i128::from(lo.sure().hi)) / i128::from(by) < 1 << 26
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
                let mut v: Vec<i64> = (0..n)
                    .filter_map(|k| k.checked_mul(by).and_then(|d| a.checked_add(d)))
                    .collect();
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
                let more: Vec<usize> = self
                    .changes(&start, slot)
                    .into_iter()
                    .filter(|s| !carried.contains(s))
                    .collect();
                if !more.is_empty() {
                    carried.extend(more);
                    continue;
                }
                let news: Vec<Value> = carried
                    .iter()
                    .map(|s| self.slots.get(*s).cloned().unwrap_or(Value::Void))
                    .collect();
                let mut updates: Vec<(u32, Sx)> = Vec::new();
                let olds: Vec<&Value> = symbols.iter().map(|(_, v)| v).collect();
                for (old, new) in olds.iter().zip(&news) {
                    if !pair(old, new, &mut updates) {
                        return Err(Diag::unsupported(
                            l.pos,
                            "a variable that changes its kind in a loop",
                        )
                        .unrollable());
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
                return Err(Diag::unsupported(
                    l.pos,
                    "variables of a loop that depend on each other like these",
                )
                .unrollable());
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
        let end = Sx::binary(
            BinaryOp::Add,
            &lo,
            &Sx::binary(BinaryOp::Mul, &trips, &Sx::int(by)),
        );
        self.set(slot, Value::Int(end.cast(t), t));
        if !body.is_empty() {
            self.emit(
                Ir::For {
                    id,
                    name: name.clone(),
                    lo,
                    hi,
                    step: by,
                    body,
                    pos: l.pos,
                },
                l.pos,
            )?;
        }
        Ok(true)
    }

    /// Loads that may be current when an iteration starts, if those of the body add any.
    pub(super) fn loads_of_iterations(
        &self,
        start: &Saved,
    ) -> Option<BTreeMap<(i64, i64), TagLoad>> {
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

    pub(super) fn set(&mut self, slot: usize, v: Value) {
        if let Some(s) = self.slots.get_mut(slot) {
            *s = v;
        }
    }

    /// Follows the body once; what it emits is returned.
    pub(super) fn body(
        &mut self,
        l: &LoopParts<'_>,
        slot: usize,
        leaf: &Sx,
        t: IntTy,
        symbols: &[(usize, Value)],
    ) -> Res<Vec<Ir>> {
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
                self.run(
                    &Seq {
                        stmts: head,
                        pop: false,
                        next: None,
                    },
                    true,
                )
            }
        };
        let body = std::mem::replace(&mut self.out, outer);
        let flow = flow?;
        while self.scopes.len() > depth {
            self.pop_scope();
        }
        match flow {
            Flow::Next | Flow::Continue => {}
            _ => {
                return Err(
                    Diag::unsupported(l.pos, "leaving a loop in its first iteration").unrollable(),
                );
            }
        }
        match self.slots.get(slot) {
            Some(Value::Int(x, _)) if x.same(leaf) => Ok(body),
            _ => Err(
                Diag::unsupported(l.pos, "a loop variable that is changed inside its loop")
                    .unrollable(),
            ),
        }
    }

    pub(super) fn changes(&self, start: &Saved, slot: usize) -> Vec<usize> {
        self.slots
            .iter()
            .zip(&start.slots)
            .enumerate()
            .filter(|(i, (a, b))| *i != slot && !same_value(a, b))
            .map(|(i, _)| i)
            .collect()
    }

    /// `init` with its integers replaced by symbols for the value at the start of an iteration.
    pub(super) fn symbol(&mut self, init: &Value, phis: &mut Vec<(u32, Sx)>) -> Value {
        match init {
            Value::Int(x, t) => {
                let id = self.phis;
                self.phis += 1;
                phis.push((id, x.clone()));
                Value::Int(Sx::phi(id, *t), *t)
            }
            Value::Arr(v) => Value::Arr(Rc::new(v.iter().map(|x| self.symbol(x, phis)).collect())),
            Value::Struct(v) => Value::Struct(Rc::new(
                v.iter()
                    .map(|(n, x)| (n.clone(), self.symbol(x, phis)))
                    .collect(),
            )),
            Value::Undef(t) => Value::Undef(*t),
            other => other.clone(),
        }
    }
}
