//! A launch's side of a trace: grid, parameters and placement, and the work-items they give.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::{BufferId, Direction, SemId, TensorId, TileId, Unit};

/// What a launch adds to a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchArgs {
    /// Work-items along each axis; one number per axis of the trace.
    pub grid: Vec<u64>,
    /// Parameter values by name.
    #[serde(default)]
    pub params: BTreeMap<String, i64>,
    /// Tensor extents by name, in elements, replacing the trace's.
    #[serde(default)]
    pub extents: BTreeMap<String, Vec<i64>>,
    /// Byte addresses of tensors by name; all or none. Default: packed from 0 in argument order,
    /// each start aligned to 16 KiB.
    #[serde(default)]
    pub placement: BTreeMap<String, u64>,
    /// Tensors may overlap.
    #[serde(default)]
    pub allow_overlap: bool,
}

/// One work-item with everything resolved. Reused from item to item: no allocation once warm.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkItem {
    /// Program ids.
    pub pid: [u64; 3],
    /// Ops in program order.
    pub ops: Vec<Op>,
    /// Transfers, in op order.
    pub transfers: Vec<Transfer>,
    /// Pool of transfer dimensions (see [`Transfer::dims`]).
    pub dims: Vec<ResolvedDim>,
    /// Pool of element offsets of indirect transfers, relative to the transfer's own first element.
    pub indices: Vec<i64>,
    /// Pool of buffer ids (see [`Op::reads`], [`Op::writes`]).
    pub buffers: Vec<BufferId>,
    /// Transfers that left their tensor (only with `bounds: off`).
    pub out_of_bounds: u64,
}

/// A half-open range of a pool of [`WorkItem`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// First index.
    pub start: u32,
    /// One past the last.
    pub end: u32,
}

impl Span {
    /// The range as `usize`.
    pub fn range(self) -> std::ops::Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// One expanded op.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Op {
    /// What it does.
    pub kind: OpKind,
    /// Buffers read: a span of [`WorkItem::buffers`].
    pub reads: Span,
    /// Buffers written.
    pub writes: Span,
    /// Which statement it came from: its number in a depth-first walk of the body, for messages.
    pub site: u32,
}

/// What an expanded op does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OpKind {
    /// A DMA transfer: an index into [`WorkItem::transfers`].
    Dma(u32),
    /// A compute tile.
    Compute {
        /// The tile.
        tile: TileId,
        /// The unit.
        unit: Unit,
    },
    /// A wait.
    Wait {
        /// The semaphore.
        semaphore: SemId,
        /// Elements that must have been signalled.
        expected: u64,
    },
}

/// A resolved transfer. All addresses are BIT addresses so that sub-byte elements need no special
/// case; a row of contiguous elements covers whole bytes (rounded outwards).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transfer {
    /// Load or store.
    pub direction: Direction,
    /// The tensor.
    pub tensor: TensorId,
    /// Bit address of the first element (tensor base x 8 + offset x element bits). i128 so that
    /// `bounds: off` transfers before address 0 stay representable; line generation wraps to 64 bits.
    pub first_bit: i128,
    /// Bits per element.
    pub element_bits: u32,
    /// Dimensions, outermost first, with extent = the VALID count: a span of [`WorkItem::dims`].
    pub dims: Span,
    /// `Some` for an asynchronous transfer.
    pub semaphore: Option<SemId>,
    /// Elements of the full dims (masks do not count; once per index for a gather): what a wait must
    /// expect.
    pub full_elements: u64,
    /// Elements moved (valid ones; times the number of indices for a gather).
    pub valid_elements: u64,
    /// Gather or scatter.
    pub indirect: ResolvedIndirect,
}

/// One resolved dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResolvedDim {
    /// Valid elements along it.
    pub extent: u64,
    /// Elements between neighbours.
    pub stride: i64,
}

/// A resolved gather or scatter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResolvedIndirect {
    /// An ordinary strided transfer.
    None,
    /// The dims once per index: a span of [`WorkItem::indices`].
    Indices(Span),
    /// So many lines of so many bytes, one after another from `first_bit`.
    Lines {
        /// How many.
        count: u64,
        /// Bytes of each.
        bytes: u32,
    },
}
