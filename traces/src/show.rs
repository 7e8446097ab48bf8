//! One work-item of a launch, for people.

use std::fmt::Write as _;

use crate::bind::Bound;
use crate::error::TraceError;
use crate::launch::{Op, OpKind, ResolvedIndirect, Span, Transfer, WorkItem};
use crate::model::Direction;
use crate::text::unit_word;

/// Ops that [`show`] prints at most before it says how many follow.
pub const MAX_SHOWN_OPS: usize = 10_000;

/// Writing to a string cannot fail, so the result is dropped here, once.
macro_rules! put {
    ($out:expr, $($arg:tt)*) => {{ let _ = write!($out, $($arg)*); }};
}

/// Expands a work-item and prints its ops, one a line, with resolved addresses.
///
/// # Errors
///
/// As [`Bound::expand`].
pub fn show(bound: &Bound, pid: [u64; 3]) -> Result<String, TraceError> {
    let mut item = WorkItem::default();
    bound.expand(pid, &mut item)?;
    Ok(show_item(bound, &item))
}

/// Prints an expanded work-item of `bound`.
pub fn show_item(bound: &Bound, item: &WorkItem) -> String {
    let trace = bound.trace();
    let mut out = String::new();
    let axes = usize::from(trace.axes);
    let grid: Vec<String> = bound.grid().iter().take(axes).map(u64::to_string).collect();
    put!(
        out,
        "work-item {} of grid {}: ",
        bound.name(item.pid),
        grid.join(" x ")
    );
    put!(
        out,
        "{} ops, {} transfers\n",
        item.ops.len(),
        item.transfers.len()
    );
    for (tensor, bound) in trace.tensors.iter().zip(bound.tensors()) {
        let extents: Vec<String> = bound.extents.iter().map(u64::to_string).collect();
        let (bits, base, bytes) = (bound.element_bits, bound.base, bound.bytes);
        put!(
            out,
            "tensor {} {bits} bit [{}] at {base:#x}, {bytes} bytes\n",
            tensor.name,
            extents.join(", ")
        );
    }
    if item.out_of_bounds > 0 {
        put!(
            out,
            "{} transfers leave their tensors\n",
            item.out_of_bounds
        );
    }
    let width = item.ops.len().to_string().len();
    for (number, op) in item.ops.iter().take(MAX_SHOWN_OPS).enumerate() {
        put!(out, "{number:width$}  ");
        show_op(&mut out, bound, item, op);
        out.push('\n');
    }
    if item.ops.len() > MAX_SHOWN_OPS {
        put!(out, "... and {} more\n", item.ops.len() - MAX_SHOWN_OPS);
    }
    out
}

fn show_op(out: &mut String, bound: &Bound, item: &WorkItem, op: &Op) {
    let trace = bound.trace();
    match op.kind {
        OpKind::Compute { tile, unit } => {
            let tile = trace.tiles.get(tile.index());
            let name = tile.map_or("", |t| t.name.as_str());
            let cycles = tile.and_then(|t| t.cycles).unwrap_or(0);
            put!(out, "compute {name} {} {cycles} cycles", unit_word(unit));
        }
        OpKind::Wait {
            semaphore,
            expected,
        } => {
            put!(out, "wait    {} for {expected} elements", semaphore.0);
        }
        OpKind::Dma(index) => {
            if let Some(transfer) = item.transfers.get(index as usize) {
                show_transfer(out, bound, item, transfer);
            }
        }
    }
    for (word, span) in [(" reads", op.reads), (" writes", op.writes)] {
        show_buffers(out, bound, item, word, span);
    }
}

fn show_buffers(out: &mut String, bound: &Bound, item: &WorkItem, word: &str, span: Span) {
    let ids = item.buffers.get(span.range()).unwrap_or(&[]);
    if ids.is_empty() {
        return;
    }
    let buffers = &bound.trace().buffers;
    let names: Vec<&str> = ids
        .iter()
        .map(|id| buffers.get(id.index()).map_or("?", |b| b.name.as_str()))
        .collect();
    put!(out, "{word} [{}]", names.join(", "));
}

fn show_transfer(out: &mut String, bound: &Bound, item: &WorkItem, t: &Transfer) {
    let word = match t.direction {
        Direction::Load => "load   ",
        Direction::Store => "store  ",
    };
    let name = bound
        .trace()
        .tensors
        .get(t.tensor.index())
        .map_or("?", |t| t.name.as_str());
    put!(out, "{word} {name} at ");
    show_address(out, t.first_bit);
    let dims = item.dims.get(t.dims.range()).unwrap_or(&[]);
    if !dims.is_empty() {
        let dims: Vec<String> = dims
            .iter()
            .map(|d| format!("{}:{}", d.extent, d.stride))
            .collect();
        put!(out, " dims [{}]", dims.join(", "));
    }
    match t.indirect {
        ResolvedIndirect::None => {}
        ResolvedIndirect::Indices(span) => {
            let indices = item.indices.get(span.range()).unwrap_or(&[]);
            let shown: Vec<String> = indices.iter().take(16).map(i64::to_string).collect();
            let more = if indices.len() > 16 { ", ..." } else { "" };
            put!(out, " indices [{}{more}]", shown.join(", "));
        }
        ResolvedIndirect::Lines { count, bytes } => put!(out, " lines {count} of {bytes} bytes"),
    }
    let bits = u128::from(t.valid_elements) * u128::from(t.element_bits);
    put!(
        out,
        " {} x {} bit = {} bytes",
        t.valid_elements,
        t.element_bits,
        bits.div_ceil(8)
    );
    if t.valid_elements != t.full_elements {
        put!(
            out,
            " ({} masked)",
            t.full_elements.saturating_sub(t.valid_elements)
        );
    }
    if let Some(semaphore) = t.semaphore {
        put!(out, " async {}", semaphore.0);
    }
}

/// A byte address, with the bit where it is not 0.
fn show_address(out: &mut String, bit: i128) {
    let byte = bit.div_euclid(8);
    let sign = if byte < 0 { "-" } else { "" };
    put!(out, "{sign}{:#x}", byte.unsigned_abs());
    if bit.rem_euclid(8) != 0 {
        put!(out, ".{}", bit.rem_euclid(8));
    }
}
