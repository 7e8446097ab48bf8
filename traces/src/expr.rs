//! What an integer expression means.
//!
//! [`unary`] and [`binary`] are the one definition of every operator; [`eval`] walks a tree and is
//! the plain reference that the compiled form of `code.rs` is tested against.

use crate::error::ErrorCode;
use crate::model::{BinaryOp, Expr, UnaryOp};

/// Why an operator has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The result does not fit 64 bits.
    Overflow,
    /// Division or remainder by zero.
    DivisionByZero,
    /// A checked shift by less than 0 or more than 63.
    ShiftCount,
}

impl Fault {
    /// The error code that reports it.
    pub fn code(self) -> ErrorCode {
        match self {
            Fault::Overflow => ErrorCode::Overflow,
            Fault::DivisionByZero => ErrorCode::DivisionByZero,
            Fault::ShiftCount => ErrorCode::ShiftCount,
        }
    }

    /// What happened, for a message.
    pub fn what(self) -> &'static str {
        match self {
            Fault::Overflow => "arithmetic leaves the 64-bit range",
            Fault::DivisionByZero => "division by zero",
            Fault::ShiftCount => "shift count outside 0 to 63",
        }
    }
}

/// The result of an operator on one operand.
#[inline]
pub fn unary(op: UnaryOp, a: i64) -> Result<i64, Fault> {
    Ok(match op {
        UnaryOp::Neg => a.checked_neg().ok_or(Fault::Overflow)?,
        UnaryOp::Not => i64::from(a == 0),
        UnaryOp::BitNot => !a,
        UnaryOp::TruncI8 => i64::from(a as i8),
        UnaryOp::TruncU8 => i64::from(a as u8),
        UnaryOp::TruncI16 => i64::from(a as i16),
        UnaryOp::TruncU16 => i64::from(a as u16),
        UnaryOp::TruncI32 => i64::from(a as i32),
        UnaryOp::TruncU32 => i64::from(a as u32),
    })
}

/// The result of an operator on two operands. Shift counts of `WrapShl` and `UShr` count modulo 64.
#[inline]
pub fn binary(op: BinaryOp, a: i64, b: i64) -> Result<i64, Fault> {
    Ok(match op {
        BinaryOp::Add => a.checked_add(b).ok_or(Fault::Overflow)?,
        BinaryOp::Sub => a.checked_sub(b).ok_or(Fault::Overflow)?,
        BinaryOp::Mul => a.checked_mul(b).ok_or(Fault::Overflow)?,
        BinaryOp::Div => floor_div(a, b)?,
        BinaryOp::Mod => floor_mod(a, b)?,
        BinaryOp::Min => a.min(b),
        BinaryOp::Max => a.max(b),
        BinaryOp::Shl => {
            let n = shift_count(b)?;
            let r = a.wrapping_shl(n);
            if r.wrapping_shr(n) != a {
                return Err(Fault::Overflow);
            }
            r
        }
        BinaryOp::Shr => a.wrapping_shr(shift_count(b)?),
        BinaryOp::And => a & b,
        BinaryOp::Or => a | b,
        BinaryOp::Xor => a ^ b,
        BinaryOp::Lt => i64::from(a < b),
        BinaryOp::Le => i64::from(a <= b),
        BinaryOp::Gt => i64::from(a > b),
        BinaryOp::Ge => i64::from(a >= b),
        BinaryOp::Eq => i64::from(a == b),
        BinaryOp::Ne => i64::from(a != b),
        BinaryOp::WrapAdd => a.wrapping_add(b),
        BinaryOp::WrapSub => a.wrapping_sub(b),
        BinaryOp::WrapMul => a.wrapping_mul(b),
        BinaryOp::WrapShl => a.wrapping_shl((b & 63) as u32),
        BinaryOp::CDiv => {
            nonzero(b)?;
            a.wrapping_div(b)
        }
        BinaryOp::CRem => {
            nonzero(b)?;
            a.wrapping_rem(b)
        }
        BinaryOp::UDiv => (a as u64)
            .checked_div(b as u64)
            .ok_or(Fault::DivisionByZero)? as i64,
        BinaryOp::URem => (a as u64)
            .checked_rem(b as u64)
            .ok_or(Fault::DivisionByZero)? as i64,
        BinaryOp::UShr => (a as u64).wrapping_shr((b & 63) as u32) as i64,
        BinaryOp::ULt => i64::from((a as u64) < (b as u64)),
        BinaryOp::ULe => i64::from((a as u64) <= (b as u64)),
    })
}

#[inline]
fn nonzero(b: i64) -> Result<(), Fault> {
    if b == 0 {
        Err(Fault::DivisionByZero)
    } else {
        Ok(())
    }
}

#[inline]
fn shift_count(b: i64) -> Result<u32, Fault> {
    if (0..64).contains(&b) {
        Ok(b as u32)
    } else {
        Err(Fault::ShiftCount)
    }
}

#[inline]
fn floor_div(a: i64, b: i64) -> Result<i64, Fault> {
    nonzero(b)?;
    let q = a.checked_div(b).ok_or(Fault::Overflow)?;
    let r = a.wrapping_rem(b);
    // The quotient is at least MIN + 1 whenever there is a remainder, so this cannot wrap.
    Ok(if r != 0 && (r < 0) != (b < 0) {
        q.wrapping_sub(1)
    } else {
        q
    })
}

#[inline]
fn floor_mod(a: i64, b: i64) -> Result<i64, Fault> {
    nonzero(b)?;
    let r = a.wrapping_rem(b);
    Ok(if r != 0 && (r < 0) != (b < 0) {
        r.wrapping_add(b)
    } else {
        r
    })
}

/// The values that an expression's leaves stand for.
pub trait Env {
    /// Program id of an axis.
    fn pid(&self, axis: u8) -> i64;
    /// Grid extent of an axis.
    fn grid(&self, axis: u8) -> i64;
    /// A parameter, by row.
    fn param(&self, index: usize) -> i64;
    /// The variable of the loop at a depth.
    fn var(&self, depth: usize) -> i64;
}

/// The value of a tree. Recurses as deep as the tree: call it on validated expressions only.
pub fn eval(expr: &Expr, env: &impl Env) -> Result<i64, Fault> {
    match expr {
        Expr::Const(c) => Ok(*c),
        Expr::Pid(axis) => Ok(env.pid(*axis)),
        Expr::Grid(axis) => Ok(env.grid(*axis)),
        Expr::Param(id) => Ok(env.param(id.index())),
        Expr::Var(id) => Ok(env.var(id.index())),
        Expr::Unary(op, a) => unary(*op, eval(a, env)?),
        Expr::Binary(op, a, b) => {
            let a = eval(a, env)?;
            binary(*op, a, eval(b, env)?)
        }
        Expr::Select(c, a, b) => {
            if eval(c, env)? != 0 {
                eval(a, env)
            } else {
                eval(b, env)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use BinaryOp::*;

    #[test]
    fn division_rounds_down() {
        for (a, b, q, r) in [
            (7, 2, 3, 1),
            (-7, 2, -4, 1),
            (7, -2, -4, -1),
            (-7, -2, 3, -1),
            (6, -2, -3, 0),
        ] {
            assert_eq!(binary(Div, a, b), Ok(q));
            assert_eq!(binary(Mod, a, b), Ok(r));
        }
        assert_eq!(binary(Div, i64::MIN, -1), Err(Fault::Overflow));
        assert_eq!(binary(Mod, i64::MIN, -1), Ok(0));
        assert_eq!(binary(Div, 1, 0), Err(Fault::DivisionByZero));
        assert_eq!(binary(Mod, 1, 0), Err(Fault::DivisionByZero));
        assert_eq!(binary(Div, i64::MIN, 3), Ok(i64::MIN / 3 - 1));
    }

    #[test]
    fn c_operators() {
        assert_eq!(binary(CDiv, -7, 2), Ok(-3));
        assert_eq!(binary(CRem, -7, 2), Ok(-1));
        assert_eq!(binary(CDiv, i64::MIN, -1), Ok(i64::MIN));
        assert_eq!(binary(CDiv, 1, 0), Err(Fault::DivisionByZero));
        assert_eq!(binary(UDiv, -1, 2), Ok(i64::MAX));
        assert_eq!(binary(URem, -1, 0), Err(Fault::DivisionByZero));
        assert_eq!(binary(UShr, -1, 63), Ok(1));
        assert_eq!(binary(ULt, 1, -1), Ok(1));
        assert_eq!(binary(ULe, -1, 1), Ok(0));
        assert_eq!(binary(WrapAdd, i64::MAX, 1), Ok(i64::MIN));
        assert_eq!(binary(WrapShl, 1, 65), Ok(2));
    }

    #[test]
    fn shifts() {
        assert_eq!(binary(Shl, 1, 62), Ok(1 << 62));
        assert_eq!(binary(Shl, 1, 63), Err(Fault::Overflow));
        assert_eq!(binary(Shl, -1, 63), Ok(i64::MIN));
        assert_eq!(binary(Shl, 1, 64), Err(Fault::ShiftCount));
        assert_eq!(binary(Shr, -8, 1), Ok(-4));
        assert_eq!(binary(Shr, -8, -1), Err(Fault::ShiftCount));
    }

    #[test]
    fn truncation() {
        assert_eq!(unary(UnaryOp::TruncI8, 255), Ok(-1));
        assert_eq!(unary(UnaryOp::TruncU16, -1), Ok(65535));
        assert_eq!(unary(UnaryOp::TruncI32, 1 << 31), Ok(-(1 << 31)));
        assert_eq!(unary(UnaryOp::TruncU32, -1), Ok(u32::MAX as i64));
        assert_eq!(unary(UnaryOp::Neg, i64::MIN), Err(Fault::Overflow));
        assert_eq!(unary(UnaryOp::Not, 5), Ok(0));
    }
}
