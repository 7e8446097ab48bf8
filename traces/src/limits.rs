//! Limits: those of the format, which every trace keeps, and those of a launch, which a host chooses.

use serde::{Deserialize, Serialize};

/// Nested loops in a body.
pub const MAX_LOOP_DEPTH: usize = 24;
/// Nested statements (loops and conditions together) in a body.
pub const MAX_STMT_DEPTH: usize = 48;
/// Statements in a body.
pub const MAX_STMTS: usize = 1 << 18;
/// Levels of an expression tree.
pub const MAX_EXPR_DEPTH: usize = 120;
/// Nodes of one expression tree.
pub const MAX_EXPR_NODES: usize = 4096;
/// Nodes of all expression trees of a trace together.
pub const MAX_TOTAL_EXPR_NODES: usize = 1 << 21;
/// Dimensions of a transfer.
pub const MAX_DIMS: usize = 8;
/// Axes of a tensor.
pub const MAX_TENSOR_AXES: usize = 8;
/// Indices of an indirect transfer.
pub const MAX_INDICES: usize = 1 << 16;
/// Tensors of a trace.
pub const MAX_TENSORS: usize = 1024;
/// Parameters of a trace.
pub const MAX_PARAMS: usize = 1024;
/// Buffers of a trace.
pub const MAX_BUFFERS: usize = 1 << 16;
/// Compute tiles of a trace.
pub const MAX_TILES: usize = 1 << 16;
/// Admissions of a tile.
pub const MAX_ADMISSIONS: usize = 64;
/// Origins in a header.
pub const MAX_ORIGINS: usize = 256;
/// Buffers read or written by one op.
pub const MAX_OP_BUFFERS: usize = 256;
/// Bytes of a name (tensors, buffers, tiles, parameters, loops, units).
pub const MAX_NAME_BYTES: usize = 256;
/// Bytes of a free-form text (kernel, producer, origins, formulas).
pub const MAX_TEXT_BYTES: usize = 4096;
/// Bits of an element, at most.
pub const MAX_ELEMENT_BITS: u32 = 4096;
/// Cycles of a tile stay below this.
pub const MAX_CYCLES: u64 = 1 << 53;
/// Bytes of an encoded trace (text, JSON, or a container before and after decompression).
pub const MAX_ENCODED_BYTES: usize = 64 << 20;

/// Bytes of a trace in the JSON form, which takes many times its size in memory while it is read.
pub const MAX_JSON_BYTES: usize = 16 << 20;

/// Alignment of tensors placed by default, in bytes.
pub const PLACEMENT_ALIGN: u64 = 16 << 10;

/// What a launch may ask for. A host that serves strangers lowers these; the defaults fit one user
/// on a workstation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Work-items of a launch. Default 2^32.
    pub max_work_items: u64,
    /// Work-items of a launch whose dispatch has an order key: their order is held in memory, 4
    /// bytes each. Default 2^22, never above 2^32 - 1.
    pub max_keyed_work_items: u64,
    /// Ops of one work-item. Default 2^20.
    pub max_ops_per_item: u64,
    /// Loop iterations of one work-item, empty ones included. Default 2^22.
    pub max_loop_iterations: u64,
    /// Evaluation steps of one work-item: statements reached plus nodes of the expressions in them.
    /// Default 2^24.
    pub max_steps_per_item: u64,
    /// Elements that one transfer moves, masked ones included. Default 2^32.
    pub max_transfer_elements: u64,
    /// Lines that one indirect transfer may declare. Default 2^28.
    pub max_lines: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_work_items: 1 << 32,
            max_keyed_work_items: 1 << 22,
            max_ops_per_item: 1 << 20,
            max_loop_iterations: 1 << 22,
            max_steps_per_item: 1 << 24,
            max_transfer_elements: 1 << 32,
            max_lines: 1 << 28,
        }
    }
}
