//! The memory lines a transfer touches: each once, in address order, as runs. Addresses are 64-bit
//! and wrap: what lies before address 0 (with `bounds: off`) comes last.
//!
//! A strided transfer is first simplified: dimensions of one element and of stride 0 vanish, negative
//! strides are turned around, and a dimension whose neighbours touch or leave a gap smaller than a
//! line joins the run below it. What remains is a nest of rows further apart than a line. If every
//! dimension steps over everything inside it, walking the nest yields ascending addresses and only
//! neighbouring rows can share a line. Otherwise (overlapping windows, gathers) rows are sorted once.

use tilesim_traces::launch::{ResolvedIndirect, Transfer, WorkItem};

/// Most dimensions of a transfer that remain after simplification.
const MAX_NEST: usize = 8;

/// Consecutive lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First line number (byte address / line bytes).
    pub first: u64,
    /// How many.
    pub count: u64,
}

/// Why a transfer's lines cannot be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinesError {
    /// More rows or dimensions than the limit.
    TooLarge,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Level {
    extent: u64,
    stride_bits: i128,
    at: u64,
}

/// What a transfer looks like wherever it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    lines: u64,
    row_bits: i128,
    levels: [(u64, i128); MAX_NEST],
    /// Of a gather.
    rows: u64,
}

/// Walks the lines of one transfer. Reused: the sort buffer keeps its capacity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineWalker {
    line_bits: i128,
    line_shift: u32,
    // Nest of rows, outermost first.
    levels: [Level; MAX_NEST],
    depth: usize,
    row_first: i128,
    row_bits: i128,
    // Next line that may still be emitted (everything below was), and where to stop.
    floor: i128,
    limit: i128,
    // Lines before address 0 are still to come: addresses wrap, so they follow the others.
    wraps: bool,
    // Explicit runs, when rows interleave.
    sorted: Vec<(i128, i128)>,
    sorted_at: usize,
    use_sorted: bool,
    done: bool,
    line_mask: u64,
    lines: u64,
}

impl LineWalker {
    /// Prepare for `transfer` of `item` with lines of `line_bytes` (a power of two); `max_rows`
    /// bounds the work. Afterwards [`LineWalker::lines`] is the number of lines.
    pub fn start(
        &mut self,
        item: &WorkItem,
        transfer: &Transfer,
        line_bytes: u32,
        max_rows: u64,
    ) -> Result<(), LinesError> {
        self.line_shift = line_bytes.trailing_zeros() + 3;
        self.line_bits = i128::from(line_bytes) * 8;
        self.line_mask = u64::MAX >> line_bytes.trailing_zeros();
        self.depth = 0;
        self.sorted.clear();
        self.sorted_at = 0;
        self.use_sorted = false;
        self.done = false;
        self.floor = i128::MIN;
        self.limit = i128::MAX;
        self.wraps = false;
        self.lines = 0;

        let bits = i128::from(transfer.element_bits);
        let mut first = transfer.first_bit;
        let mut levels = [Level::default(); MAX_NEST + 1];
        let mut depth = 0usize;
        let mut row = bits;
        match transfer.indirect {
            ResolvedIndirect::Lines { count, bytes } => {
                if count == 0 || bytes == 0 {
                    self.done = true;
                    return Ok(());
                }
                first = first.div_euclid(8) * 8;
                row = i128::from(count) * i128::from(bytes) * 8;
            }
            ResolvedIndirect::None | ResolvedIndirect::Indices(_) => {
                for dim in &item.dims[transfer.dims.range()] {
                    if dim.extent == 0 {
                        self.done = true;
                        return Ok(());
                    }
                    if dim.extent == 1 || dim.stride == 0 {
                        continue;
                    }
                    let mut stride = i128::from(dim.stride) * bits;
                    if stride < 0 {
                        first += stride * i128::from(dim.extent - 1);
                        stride = -stride;
                    }
                    if depth == MAX_NEST {
                        return Err(LinesError::TooLarge);
                    }
                    levels[depth] = Level {
                        extent: dim.extent,
                        stride_bits: stride,
                        at: 0,
                    };
                    depth += 1;
                }
            }
        }
        // Largest stride outermost; then fold the innermost ones into the row.
        levels[..depth].sort_by_key(|level| std::cmp::Reverse(level.stride_bits));
        while depth > 0 {
            let inner = levels[depth - 1];
            if inner.stride_bits - row >= self.line_bits {
                break;
            }
            row += inner.stride_bits * i128::from(inner.extent - 1);
            depth -= 1;
        }
        self.row_bits = row;
        self.row_first = first;
        self.levels[..depth].copy_from_slice(&levels[..depth]);
        self.depth = depth;

        let mut rows: u128 = 1;
        let mut span = self.row_bits;
        let mut nested = true;
        for level in levels[..depth].iter().rev() {
            rows = rows.saturating_mul(u128::from(level.extent));
            nested &= level.stride_bits >= span;
            span += level.stride_bits * i128::from(level.extent - 1);
        }
        let gather = match transfer.indirect {
            ResolvedIndirect::Indices(ids) => Some(&item.indices[ids.range()]),
            _ => None,
        };
        if let Some(ids) = gather {
            rows = rows.saturating_mul(ids.len() as u128);
        }
        if rows > u128::from(max_rows) {
            return Err(LinesError::TooLarge);
        }
        match gather {
            Some([]) => {
                self.done = true;
                return Ok(());
            }
            Some(ids) => {
                for &index in ids {
                    self.collect_rows(i128::from(index) * bits);
                }
                self.sort_rows();
            }
            None if !nested => {
                self.collect_rows(0);
                self.sort_rows();
            }
            None => {}
        }
        self.lines = self.count();
        let first = match self.sorted.first() {
            Some(&(start, _)) => start,
            None => self.interval(self.row_first).0,
        };
        if first < 0 {
            self.floor = 0;
            self.wraps = true;
        }
        Ok(())
    }

    /// Lines in all, also those already taken.
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// The first and the last line, in address order; call it before the first run is taken.
    pub fn ends(&self) -> (u64, u64) {
        if self.use_sorted {
            let first = self.sorted.first().map_or(0, |r| r.0);
            let last = self.sorted.iter().map(|r| r.1).max().unwrap_or(1) - 1;
            return (first as u64 & self.line_mask, last as u64 & self.line_mask);
        }
        let span: i128 = self.levels[..self.depth]
            .iter()
            .map(|l| l.stride_bits * i128::from(l.extent - 1))
            .sum();
        let first = self.row_first >> self.line_shift;
        let last = (self.row_first + span + self.row_bits - 1) >> self.line_shift;
        (first as u64 & self.line_mask, last as u64 & self.line_mask)
    }

    /// What the transfer looks like wherever it lies; call it before the first run is taken.
    ///
    /// Gathers look alike if they have equally many rows and lines.
    pub fn shape(&self) -> Shape {
        let mut levels = [(0, 0); MAX_NEST];
        for (to, from) in levels.iter_mut().zip(&self.levels[..self.depth]) {
            *to = (from.extent, from.stride_bits);
        }
        Shape {
            lines: self.lines,
            row_bits: self.row_bits,
            levels,
            rows: if self.use_sorted {
                self.sorted.len() as u64
            } else {
                0
            },
        }
    }

    /// The next run, or `None` at the end.
    pub fn next_run(&mut self) -> Option<Run> {
        loop {
            let Some((start, end)) = self.next_interval() else {
                if !self.wraps {
                    return None;
                }
                // The walk is back at its start.
                self.wraps = false;
                self.done = false;
                self.sorted_at = 0;
                self.floor = i128::MIN;
                self.limit = 0;
                continue;
            };
            let (from, end) = (start.max(self.floor), end.min(self.limit));
            if from < end {
                self.floor = end;
                return Some(Run {
                    first: (from as u64) & self.line_mask,
                    count: (end - from) as u64,
                });
            }
        }
    }

    /// The next row as a half-open interval of line numbers.
    fn next_interval(&mut self) -> Option<(i128, i128)> {
        if self.done {
            return None;
        }
        if self.use_sorted {
            let found = self.sorted.get(self.sorted_at).copied();
            self.sorted_at += 1;
            self.done = found.is_none();
            return found;
        }
        let interval = self.interval(self.row_first);
        // Step the odometer, innermost level first.
        let mut k = self.depth;
        loop {
            if k == 0 {
                self.done = true;
                break;
            }
            k -= 1;
            let level = &mut self.levels[k];
            level.at += 1;
            if level.at < level.extent {
                self.row_first += level.stride_bits;
                break;
            }
            self.row_first -= level.stride_bits * i128::from(level.extent - 1);
            level.at = 0;
        }
        Some(interval)
    }

    fn interval(&self, first: i128) -> (i128, i128) {
        let last = first + self.row_bits - 1;
        (first >> self.line_shift, (last >> self.line_shift) + 1)
    }

    fn collect_rows(&mut self, shift_bits: i128) {
        let base = self.row_first;
        self.row_first = base + shift_bits;
        self.use_sorted = false;
        self.done = false;
        while let Some(interval) = self.next_interval() {
            self.sorted.push(interval);
        }
        self.row_first = base;
        self.done = false;
    }

    fn sort_rows(&mut self) {
        self.sorted.sort_unstable();
        self.use_sorted = true;
        self.sorted_at = 0;
        self.done = false;
    }

    fn count(&self) -> u64 {
        if self.use_sorted {
            let mut floor = i128::MIN;
            let mut total = 0u64;
            for &(start, end) in &self.sorted {
                let from = start.max(floor);
                if from < end {
                    total = total.saturating_add((end - from) as u64);
                    floor = end;
                }
            }
            return total;
        }
        // Rows that all start at the same place in a line touch equally many lines; if every level
        // steps over all lines of the levels inside it, none is shared.
        let (start, end) = self.interval(self.row_first);
        let mut span = end - start;
        let mut total = span as u64;
        let mut disjoint = true;
        for level in self.levels[..self.depth].iter().rev() {
            let stride = level.stride_bits >> self.line_shift;
            disjoint &= level.stride_bits % self.line_bits == 0 && stride >= span;
            span += stride * i128::from(level.extent - 1);
            total = total.saturating_mul(level.extent);
        }
        if disjoint {
            return total;
        }
        let mut copy = LineWalker {
            sorted: Vec::new(),
            ..*self
        };
        let mut total = 0u64;
        while let Some(run) = copy.next_run() {
            total = total.saturating_add(run.count);
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use tilesim_traces::launch::{ResolvedDim, Span};
    use tilesim_traces::model::{Direction, TensorId};

    fn item(first: i128, bits: u32, dims: &[(u64, i64)], indices: Option<&[i64]>) -> WorkItem {
        let mut item = WorkItem {
            dims: dims
                .iter()
                .map(|&(extent, stride)| ResolvedDim { extent, stride })
                .collect(),
            indices: indices.map(<[i64]>::to_vec).unwrap_or_default(),
            ..WorkItem::default()
        };
        item.transfers.push(Transfer {
            direction: Direction::Load,
            tensor: TensorId(0),
            first_bit: first * i128::from(bits),
            element_bits: bits,
            dims: Span {
                start: 0,
                end: dims.len() as u32,
            },
            semaphore: None,
            full_elements: 0,
            valid_elements: 0,
            indirect: match indices {
                None => ResolvedIndirect::None,
                Some(ids) => ResolvedIndirect::Indices(Span {
                    start: 0,
                    end: ids.len() as u32,
                }),
            },
        });
        item
    }

    fn walk(item: &WorkItem, line: u32) -> Vec<u64> {
        let mut w = LineWalker::default();
        w.start(item, &item.transfers[0], line, 1 << 20).unwrap();
        let mut out = Vec::new();
        while let Some(run) = w.next_run() {
            out.extend(run.first..run.first + run.count);
        }
        assert_eq!(out.len() as u64, w.lines());
        out
    }

    fn naive(item: &WorkItem, line: u32) -> Vec<u64> {
        let t = &item.transfers[0];
        let mut set = BTreeSet::new();
        let dims = &item.dims;
        let total: u64 = dims.iter().map(|d| d.extent).product();
        let shifts = if item.indices.is_empty() {
            vec![0]
        } else {
            item.indices.clone()
        };
        for shift in shifts {
            for n in 0..total {
                let mut rest = n;
                let mut at = t.first_bit + i128::from(shift) * i128::from(t.element_bits);
                for d in dims.iter().rev() {
                    at += i128::from(rest % d.extent)
                        * i128::from(d.stride)
                        * i128::from(t.element_bits);
                    rest /= d.extent;
                }
                let last = at + i128::from(t.element_bits) - 1;
                for l in at.div_euclid(i128::from(line) * 8)..=last.div_euclid(i128::from(line) * 8)
                {
                    set.insert(l as u64 & (u64::MAX / u64::from(line)));
                }
            }
        }
        set.into_iter().collect()
    }

    #[test]
    fn a_tile_is_rows_of_lines() {
        let it = item(0, 32, &[(128, 1), (4, 512)], None);
        let lines = walk(&it, 32);
        assert_eq!(lines.len(), 4 * 16);
        assert_eq!(&lines[14..18], &[14, 15, 64, 65]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn every_line_once_in_order(
            first in prop_oneof![4000i128..5000, -30i128..60],
            bits in prop::sample::select(vec![4u32, 8, 16, 32, 64]),
            dims in prop::collection::vec((1u64..6, -40i64..40), 0..4),
            gather in prop::option::of(prop::collection::vec(-50i64..50, 1..4)),
            line in prop::sample::select(vec![8u32, 32, 64]),
        ) {
            let it = item(first, bits, &dims, gather.as_deref());
            let want = naive(&it, line);
            let got = walk(&it, line);
            // Folding small gaps may only add lines that lie inside the transfer's own lines.
            prop_assert_eq!(got, want);
        }
    }
}
