//! The algebra of loops: steps, bounds, trip counts, and closed forms of what iterations carry.

use crate::import::pytorchsim::cpp::ast::IntTy;
use crate::import::pytorchsim::sym::{Kind, Sx};
use crate::import::pytorchsim::value::Value;
use crate::model::{BinaryOp, UnaryOp};

fn is_var(x: &Sx, id: u32) -> bool {
    matches!(x.0.kind, Kind::Loop(i) if i == id)
}

fn free(x: &Sx, id: u32) -> bool {
    !x.mentions(&|k| matches!(k, Kind::Loop(i) if *i == id))
}

/// By how much one step changes loop variable `id`, if by a constant.
pub(super) fn step_of(x: &Sx, id: u32) -> Option<i64> {
    match &x.0.kind {
        Kind::Unary(
            UnaryOp::TruncI32
            | UnaryOp::TruncU32
            | UnaryOp::TruncI16
            | UnaryOp::TruncU16
            | UnaryOp::TruncI8
            | UnaryOp::TruncU8,
            a,
        ) => step_of(a, id),
        Kind::Binary(BinaryOp::Add | BinaryOp::WrapAdd, a, c) if is_var(a, id) => c.constant(),
        Kind::Binary(BinaryOp::Sub | BinaryOp::WrapSub, a, c) if is_var(a, id) => {
            c.constant()?.checked_neg()
        }
        _ if is_var(x, id) => Some(0),
        _ => None,
    }
}

/// The exclusive bound that a condition puts on loop variable `id`, which moves by `by`.
pub(super) fn bound_of(c: &Sx, id: u32, by: i64, lo: &Sx, t: IntTy, in_item: bool) -> Option<Sx> {
    // Two conditions: the nearer bound.
    let both = match &c.0.kind {
        Kind::Binary(BinaryOp::And, a, b) => Some((a, b)),
        Kind::Select(a, b, z) if z.constant() == Some(0) => Some((a, b)),
        _ => None,
    };
    if let Some((a, b)) = both {
        let side = |c: &Sx| {
            if free(c, id) {
                // A condition that does not change: no iteration at all without it.
                None
            } else {
                Some(bound_of(c, id, by, lo, t, in_item))
            }
        };
        let op = if by > 0 { BinaryOp::Min } else { BinaryOp::Max };
        return match (side(a), side(b)) {
            (Some(x), Some(y)) => Some(Sx::binary(op, &x?, &y?)),
            (None, Some(y)) => Some(Sx::select(a, &y?, lo)),
            (Some(x), None) => Some(Sx::select(b, &x?, lo)),
            (None, None) => None,
        };
    }
    let Kind::Binary(op, a, b) = &c.0.kind else {
        return None;
    };
    use BinaryOp::*;
    let (op, var, bound) = if !free(a, id) && free(b, id) {
        (*op, a, b.clone())
    } else if free(a, id) && !free(b, id) {
        let flipped = match op {
            Lt => Gt,
            Le => Ge,
            Gt => Lt,
            Ge => Le,
            Eq | Ne => *op,
            // b < i as unsigned: only a variable that never goes below 0 can be read as signed.
            ULt => Gt,
            ULe => Ge,
            _ => return None,
        };
        if matches!(op, ULt | ULe) && (a.sure().lo < 0 || b.sure().lo < 0) {
            return None;
        }
        (flipped, b, a.clone())
    } else {
        return None;
    };
    // i + c < b is i < b - c.
    let (var, bound) = match &var.0.kind {
        Kind::Binary(Add, v, k) if is_var(v, id) && k.constant().is_some() => {
            (v, Sx::binary(Sub, &bound, k))
        }
        Kind::Binary(Sub, v, k) if is_var(v, id) && k.constant().is_some() => {
            (v, Sx::binary(Add, &bound, k))
        }
        _ => (var, bound),
    };
    if !is_var(var, id) {
        return None;
    }
    let one = Sx::int(1);
    match (op, by > 0) {
        (Lt, true) => Some(bound),
        (Le, true) => Some(Sx::binary(Add, &bound, &one)),
        (Gt, false) => Some(bound),
        (Ge, false) => Some(Sx::binary(Sub, &bound, &one)),
        (ULt | ULe, true) if lo.sure().lo >= 0 && t == IntTy::U64 => {
            // A bound with the top bit set is beyond anything a loop reaches. Extents of the grid
            // are never negative.
            let top = Sx::int(i64::MAX);
            let plain = if in_item || !matches!(bound.0.kind, Kind::Shape(_)) {
                Sx::select(&Sx::binary(Lt, &bound, &Sx::int(0)), &top, &bound)
            } else {
                bound
            };
            Some(if op == ULe {
                Sx::binary(Add, &plain, &one)
            } else {
                plain
            })
        }
        (Ne, _) => match (lo.constant(), bound.constant()) {
            (Some(l), Some(b)) => {
                let d = b.checked_sub(l)?;
                if d.checked_rem(by) == Some(0) && (d == 0 || (d > 0) == (by > 0)) {
                    Some(bound)
                } else {
                    None
                }
            }
            _ if by == 1 || by == -1 => Some(bound),
            _ => None,
        },
        _ => None,
    }
}

/// How often a loop runs.
pub(super) fn trip_count(lo: &Sx, hi: &Sx, by: i64) -> Sx {
    let (from, to, step) = if by > 0 {
        (lo, hi, by)
    } else {
        (hi, lo, by.checked_neg().unwrap_or(i64::MAX))
    };
    if let (Some(a), Some(b)) = (from.constant(), to.constant()) {
        let n = (i128::from(b) - i128::from(a) + i128::from(step) - 1)
            .div_euclid(i128::from(step))
            .max(0);
        return Sx::int(n.min(i128::from(i64::MAX)) as i64);
    }
    let span = Sx::binary(BinaryOp::Sub, to, from);
    let up = Sx::binary(BinaryOp::Add, &span, &Sx::int(step - 1));
    Sx::binary(
        BinaryOp::Max,
        &Sx::binary(BinaryOp::Div, &up, &Sx::int(step)),
        &Sx::int(0),
    )
}

/// Symbols of the start of an iteration beside the values at its end. False if the shapes differ.
pub(super) fn pair(old: &Value, new: &Value, out: &mut Vec<(u32, Sx)>) -> bool {
    match (old, new) {
        (Value::Int(p, _), Value::Int(x, _)) => match p.0.kind {
            Kind::Phi(id) => {
                out.push((id, x.clone()));
                true
            }
            _ => p.same(x),
        },
        (Value::Arr(a), Value::Arr(b)) => {
            a.len() == b.len() && a.iter().zip(b.iter()).all(|(x, y)| pair(x, y, out))
        }
        (Value::Struct(a), Value::Struct(b)) => {
            a.len() == b.len()
                && a.iter()
                    .zip(b.iter())
                    .all(|((_, x), (_, y))| pair(x, y, out))
        }
        // Set in the loop without having been set before it: nothing may read it afterwards without
        // setting it, except where the loop ran; it stays unset.
        (Value::Undef(_), _) => true,
        (a, b) => super::same_value(a, b),
    }
}

/// Closed forms: the value of each symbol at the start of an iteration, and after the loop.
pub(super) struct Forms {
    pub start: Vec<(u32, Sx)>,
    pub end: Vec<(u32, Sx)>,
}

/// `x` with symbols replaced.
pub(super) fn substitute(x: &Sx, with: &[(u32, Sx)]) -> Sx {
    x.replace(&|n| match n.0.kind {
        Kind::Phi(id) => with.iter().find(|(i, _)| *i == id).map(|(_, v)| v.clone()),
        _ => None,
    })
}

fn has_phi(x: &Sx) -> bool {
    x.mentions(&|k| matches!(k, Kind::Phi(_)))
}

/// Without the truncations that a narrow integer type puts around each step; exact as long as the
/// variable does not overflow its type, which is checked against the range of the result.
fn affine(x: &Sx, phi: u32) -> Option<(Sx, Option<UnaryOp>)> {
    match &x.0.kind {
        Kind::Phi(p) if *p == phi => Some((Sx::int(0), None)),
        Kind::Binary(BinaryOp::Add | BinaryOp::WrapAdd, a, c) => {
            if has_phi(c) {
                if has_phi(a) {
                    return None;
                }
                let (d, t) = affine(c, phi)?;
                return Some((Sx::binary(BinaryOp::Add, &d, a), t));
            }
            let (d, t) = affine(a, phi)?;
            Some((Sx::binary(BinaryOp::Add, &d, c), t))
        }
        Kind::Binary(BinaryOp::Sub | BinaryOp::WrapSub, a, c) if !has_phi(c) => {
            let (d, t) = affine(a, phi)?;
            Some((Sx::binary(BinaryOp::Sub, &d, c), t))
        }
        // i + c cut to 32 bits: sums of cut numbers are cuts of sums.
        Kind::Unary(op @ (UnaryOp::TruncI32 | UnaryOp::TruncU32), a) => {
            let (d, t) = affine(a, phi)?;
            if t.is_some_and(|t| t != *op) {
                None
            } else {
                Some((d, Some(*op)))
            }
        }
        _ => None,
    }
}

/// Finds closed forms for symbols whose values after an iteration are `updates`.
pub(super) fn close(
    phis: &[(u32, Sx)],
    updates: &[(u32, Sx)],
    leaf: &Sx,
    id: u32,
    lo: &Sx,
    by: i64,
    trips: &Sx,
) -> Result<Forms, ()> {
    // How many iterations came before this one.
    let past = {
        let d = if by > 0 {
            Sx::binary(BinaryOp::Sub, leaf, lo)
        } else {
            Sx::binary(BinaryOp::Sub, lo, leaf)
        };
        Sx::binary(BinaryOp::Div, &d, &Sx::int(by.checked_abs().ok_or(())?))
    };
    let mut forms = Forms {
        start: Vec::new(),
        end: Vec::new(),
    };
    let mut left: Vec<(u32, Sx, Sx)> = Vec::new();
    for (p, init) in phis {
        let Some((_, new)) = updates.iter().find(|(q, _)| q == p) else {
            // A symbol whose variable vanished from the pairing keeps its value.
            forms.start.push((*p, init.clone()));
            forms.end.push((*p, init.clone()));
            continue;
        };
        if matches!(new.0.kind, Kind::Phi(q) if q == *p) {
            forms.start.push((*p, init.clone()));
            forms.end.push((*p, init.clone()));
            continue;
        }
        if let Some((c, cut)) = affine(new, *p)
            && free(&c, id)
            && !has_phi(&c)
        {
            let at = |n: &Sx| {
                let step = if let (Some(c), BinaryDiv(d, s)) = (c.constant(), split_div(n))
                    && s != 0
                    && c.checked_rem(s) == Some(0)
                {
                    // (i - lo) / s * c without the division, which was exact.
                    Sx::binary(BinaryOp::Mul, &d, &Sx::int(c / s))
                } else {
                    Sx::binary(BinaryOp::WrapMul, n, &c)
                };
                let v = Sx::binary(BinaryOp::WrapAdd, init, &step);
                match cut {
                    Some(op) => Sx::unary(op, &v),
                    None => v,
                }
            };
            forms.start.push((*p, at(&past)));
            forms.end.push((*p, at(trips)));
            continue;
        }
        left.push((*p, init.clone(), new.clone()));
    }
    if left.is_empty() {
        return Ok(forms);
    }
    // Values that the iteration sets afresh: the value of the iteration before.
    let first = Sx::binary(BinaryOp::Eq, leaf, lo);
    let ran = Sx::binary(BinaryOp::Gt, trips, &Sx::int(0));
    let mut rest = Vec::new();
    for (p, init, new) in left {
        let known = |x: &Sx| {
            !x.mentions(&|k| matches!(k, Kind::Phi(q) if !forms.start.iter().any(|(s, _)| s == q)))
        };
        if known(&new) {
            let before = Sx::binary(BinaryOp::Sub, leaf, &Sx::int(by));
            let shift = |x: &Sx, to: &Sx| {
                let filled = substitute(x, &forms.start);
                filled.replace(&|n| {
                    if is_var(n, id) {
                        Some(to.clone())
                    } else {
                        None
                    }
                })
            };
            let previous = shift(&new, &before);
            let final_var = Sx::binary(
                BinaryOp::Add,
                lo,
                &Sx::binary(
                    BinaryOp::Mul,
                    &Sx::binary(BinaryOp::Sub, trips, &Sx::int(1)),
                    &Sx::int(by),
                ),
            );
            let after = shift(&new, &final_var);
            forms.start.push((p, Sx::select(&first, &init, &previous)));
            forms.end.push((p, Sx::select(&ran, &after, &init)));
        } else {
            rest.push((p, init, new));
        }
    }
    // Each group of symbols that depend on one another walks its own orbit.
    while let Some(first) = rest.pop() {
        let mut group = vec![first];
        loop {
            let linked = |a: &(u32, Sx, Sx), b: &(u32, Sx, Sx)| {
                let names = |x: &Sx, p: u32| x.mentions(&|k| matches!(k, Kind::Phi(q) if *q == p));
                names(&a.2, b.0) || names(&b.2, a.0)
            };
            let Some(k) = rest.iter().position(|r| group.iter().any(|g| linked(g, r))) else {
                break;
            };
            group.push(rest.swap_remove(k));
        }
        forms = orbit(&group, &past, trips, &mut forms)?;
    }
    Ok(forms)
}

/// `n` as an exact quotient, if it is one.
struct BinaryDiv(Sx, i64);

fn split_div(n: &Sx) -> BinaryDiv {
    if let Kind::Binary(BinaryOp::Div, d, s) = &n.0.kind
        && let Some(s) = s.constant()
    {
        return BinaryDiv(d.clone(), s);
    }
    BinaryDiv(n.clone(), 0)
}

/// Symbols that walk through constants and come back: toggles, ring counters, flags.
fn orbit(group: &[(u32, Sx, Sx)], past: &Sx, trips: &Sx, forms: &mut Forms) -> Result<Forms, ()> {
    let mut state: Vec<i64> = Vec::new();
    for (_, init, new) in group {
        state.push(init.constant().ok_or(())?);
        let foreign = new.mentions(&|k| match k {
            Kind::Phi(q) => !group.iter().any(|(p, _, _)| p == q),
            Kind::Loop(_) | Kind::Shape(_) => true,
            _ => false,
        });
        if foreign {
            return Err(());
        }
    }
    let mut seen: Vec<Vec<i64>> = Vec::new();
    let back = loop {
        if let Some(k) = seen.iter().position(|s| *s == state) {
            break Some(k);
        }
        if trips.constant().is_some_and(|n| seen.len() as i64 > n) {
            break None;
        }
        if seen.len() >= 64 {
            return Err(());
        }
        seen.push(state.clone());
        let with: Vec<(u32, Sx)> = group
            .iter()
            .zip(&state)
            .map(|((p, _, _), v)| (*p, Sx::int(*v)))
            .collect();
        let mut next = Vec::new();
        for (_, _, new) in group {
            next.push(substitute(new, &with).constant().ok_or(())?);
        }
        state = next;
    };
    let n = seen.len();
    let mu = back.unwrap_or(n);
    let period = n - mu;
    let at = |when: &Sx, which: usize| -> Sx {
        let value =
            |k: usize| Sx::int(seen.get(k).and_then(|s| s.get(which)).copied().unwrap_or(0));
        let mut out = if period > 0 {
            let phase = if mu > 0 {
                Sx::binary(BinaryOp::Sub, when, &Sx::int(mu as i64))
            } else {
                when.clone()
            };
            let phase = Sx::binary(BinaryOp::Mod, &phase, &Sx::int(period as i64));
            let base = value(mu).constant().unwrap_or(0);
            // A ring counter is its phase.
            let ring = (mu..n).all(|k| value(k).constant() == base.checked_add((k - mu) as i64));
            let mut v = value(n - 1);
            for k in (mu..n - 1).rev() {
                let c = Sx::binary(BinaryOp::Eq, &phase, &Sx::int((k - mu) as i64));
                v = Sx::select(&c, &value(k), &v);
            }
            if ring {
                Sx::binary(BinaryOp::Add, &phase, &Sx::int(base))
            } else {
                v
            }
        } else {
            value(n - 1)
        };
        for k in (0..mu.min(n)).rev() {
            let c = Sx::binary(BinaryOp::Eq, when, &Sx::int(k as i64));
            out = Sx::select(&c, &value(k), &out);
        }
        out
    };
    let mut done = Forms {
        start: std::mem::take(&mut forms.start),
        end: std::mem::take(&mut forms.end),
    };
    for (i, (p, _, _)) in group.iter().enumerate() {
        done.start.push((*p, at(past, i)));
        done.end.push((*p, at(trips, i)));
    }
    Ok(done)
}
