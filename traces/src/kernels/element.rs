//! Element types of the kernels.

use serde::{Deserialize, Serialize};

/// An element type; a trace keeps only its bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum ElementType {
    F64,
    F32,
    F16,
    Bf16,
    F8,
    F4,
    I64,
    I32,
    I16,
    I8,
    I4,
}

impl ElementType {
    /// Every type, with its word.
    pub const ALL: &'static [(&'static str, ElementType)] = &[
        ("f64", ElementType::F64),
        ("f32", ElementType::F32),
        ("f16", ElementType::F16),
        ("bf16", ElementType::Bf16),
        ("f8", ElementType::F8),
        ("f4", ElementType::F4),
        ("i64", ElementType::I64),
        ("i32", ElementType::I32),
        ("i16", ElementType::I16),
        ("i8", ElementType::I8),
        ("i4", ElementType::I4),
    ];

    /// Bits of an element.
    pub fn bits(self) -> u32 {
        match self {
            ElementType::F64 | ElementType::I64 => 64,
            ElementType::F32 | ElementType::I32 => 32,
            ElementType::F16 | ElementType::Bf16 | ElementType::I16 => 16,
            ElementType::F8 | ElementType::I8 => 8,
            ElementType::F4 | ElementType::I4 => 4,
        }
    }

    /// Its word, for example `bf16`.
    pub fn word(self) -> &'static str {
        ElementType::ALL
            .iter()
            .find(|(_, t)| *t == self)
            .map_or("", |(word, _)| word)
    }
}
