//! Numbers that stand for operators and other choices in digests and containers. They are part of
//! both formats: add new ones at the end, never change or reuse one.

use crate::model::{BinaryOp, Direction, Role, UnaryOp, Unit};

macro_rules! code_table {
    ($encode:ident, $decode:ident, $type:ident, $($name:ident = $code:literal),+ $(,)?) => {
        pub(crate) fn $encode(value: $type) -> u8 {
            match value { $($type::$name => $code,)+ }
        }

        pub(crate) fn $decode(code: u8) -> Option<$type> {
            match code { $($code => Some($type::$name),)+ _ => None }
        }
    };
}

code_table!(
    unary_code,
    unary_of,
    UnaryOp,
    Neg = 0,
    Not = 1,
    BitNot = 2,
    TruncI8 = 3,
    TruncU8 = 4,
    TruncI16 = 5,
    TruncU16 = 6,
    TruncI32 = 7,
    TruncU32 = 8
);

code_table!(
    binary_code,
    binary_of,
    BinaryOp,
    Add = 0,
    Sub = 1,
    Mul = 2,
    Div = 3,
    Mod = 4,
    Min = 5,
    Max = 6,
    Shl = 7,
    Shr = 8,
    And = 9,
    Or = 10,
    Xor = 11,
    Lt = 12,
    Le = 13,
    Gt = 14,
    Ge = 15,
    Eq = 16,
    Ne = 17,
    WrapAdd = 18,
    WrapSub = 19,
    WrapMul = 20,
    WrapShl = 21,
    CDiv = 22,
    CRem = 23,
    UDiv = 24,
    URem = 25,
    UShr = 26,
    ULt = 27,
    ULe = 28
);

code_table!(
    unit_code,
    unit_of,
    Unit,
    Vector = 0,
    Matmul = 1,
    Preload = 2,
    CrossLane = 3
);

code_table!(role_code, role_of, Role, In = 0, Out = 1, InOut = 2);

code_table!(direction_code, direction_of, Direction, Load = 0, Store = 1);
