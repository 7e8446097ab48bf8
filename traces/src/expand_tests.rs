//! Expansion against a plain walk of the tree, on arbitrary traces.

use proptest::prelude::*;

use crate::bind::Bound;
use crate::code::{Pool, Range, Scope, slots_for_tests};
use crate::error::ErrorCode;
use crate::expr::{self, Env};
use crate::generate::{self, Choices, ExprScope};
use crate::launch::*;
use crate::limits::Limits;
use crate::model::*;
use crate::validate::{ValidTrace, check};

struct Walk<'a> {
    bound: &'a Bound,
    pid: [u64; 3],
    vars: Vec<i64>,
    item: WorkItem,
    site: u32,
    iterations: u64,
}

impl Env for Walk<'_> {
    fn pid(&self, axis: u8) -> i64 {
        self.pid[axis as usize] as i64
    }
    fn grid(&self, axis: u8) -> i64 {
        self.bound.grid()[axis as usize] as i64
    }
    fn param(&self, index: usize) -> i64 {
        self.bound.params()[index]
    }
    fn var(&self, depth: usize) -> i64 {
        self.vars[depth]
    }
}

type Naive<T> = Result<T, (ErrorCode, u32)>;

impl Walk<'_> {
    fn eval(&self, e: &Expr, site: u32) -> Naive<i64> {
        expr::eval(e, self).map_err(|f| (f.code(), site))
    }

    fn count(&self, e: &Expr, site: u32) -> Naive<u64> {
        u64::try_from(self.eval(e, site)?).map_err(|_| (ErrorCode::NegativeCount, site))
    }

    fn skip(&mut self, body: &[Stmt]) {
        for s in body {
            self.site += 1;
            match s {
                Stmt::For(f) => self.skip(&f.body),
                Stmt::If(i) => {
                    self.skip(&i.then);
                    self.skip(&i.otherwise);
                }
                _ => {}
            }
        }
    }

    fn buffers(&mut self, ids: &[BufferId]) -> Span {
        let start = self.item.buffers.len() as u32;
        self.item.buffers.extend_from_slice(ids);
        Span {
            start,
            end: self.item.buffers.len() as u32,
        }
    }

    fn block(&mut self, body: &[Stmt]) -> Naive<()> {
        for stmt in body {
            let site = self.site;
            self.site += 1;
            match stmt {
                Stmt::For(f) => {
                    let lo = self.eval(&f.lo, site)? as i128;
                    let hi = self.eval(&f.hi, site)? as i128;
                    let step = self.eval(&f.step, site)? as i128;
                    if step == 0 {
                        return Err((ErrorCode::ZeroStep, site));
                    }
                    // Before anything runs, as the trip count is charged up front.
                    let distance = if step > 0 { hi - lo } else { lo - hi }.max(0) as u128;
                    let trips = distance.div_ceil(step.unsigned_abs());
                    if trips > u128::from(LIMIT - self.iterations) {
                        return Err((ErrorCode::TooManyIterations, site));
                    }
                    self.iterations += trips as u64;
                    let start = self.site;
                    let mut v = lo;
                    for _ in 0..trips {
                        self.site = start;
                        self.vars.push(v as i64);
                        self.block(&f.body)?;
                        self.vars.pop();
                        v += step;
                    }
                    self.site = start;
                    self.skip(&f.body);
                }
                Stmt::If(i) => {
                    if self.eval(&i.cond, site)? != 0 {
                        self.block(&i.then)?;
                        self.skip(&i.otherwise);
                    } else {
                        self.skip(&i.then);
                        self.block(&i.otherwise)?;
                    }
                }
                Stmt::Compute(c) => {
                    let (reads, writes) = (self.buffers(&c.reads), self.buffers(&c.writes));
                    let kind = OpKind::Compute {
                        tile: c.tile,
                        unit: c.unit,
                    };
                    self.item.ops.push(Op {
                        kind,
                        reads,
                        writes,
                        site,
                    });
                }
                Stmt::Wait(w) => {
                    let expected = self.count(&w.expected, site)?;
                    let kind = OpKind::Wait {
                        semaphore: w.semaphore,
                        expected,
                    };
                    let none = Span::default();
                    self.item.ops.push(Op {
                        kind,
                        reads: none,
                        writes: none,
                        site,
                    });
                }
                Stmt::Dma(d) => self.dma(d, site)?,
            }
        }
        Ok(())
    }

    fn dma(&mut self, d: &Dma, site: u32) -> Naive<()> {
        let offset = self.eval(&d.offset, site)?;
        let first = self.item.dims.len() as u32;
        let (mut full, mut valid, mut lo, mut hi) = (1u128, 1u128, offset as i128, offset as i128);
        for dim in &d.dims {
            let extent = self.eval(&dim.extent, site)?;
            let stride = self.eval(&dim.stride, site)?;
            let v = dim
                .valid
                .as_ref()
                .map(|v| self.eval(v, site))
                .transpose()?
                .unwrap_or(extent);
            if extent < 0 || v < 0 {
                return Err((ErrorCode::NegativeCount, site));
            }
            if v > extent {
                return Err((ErrorCode::BadMask, site));
            }
            full = full.saturating_mul(extent as u128);
            valid = valid.saturating_mul(v as u128);
            let reach = ((v - 1).max(0) as i128).saturating_mul(stride as i128);
            lo = lo.saturating_add(reach.min(0));
            hi = hi.saturating_add(reach.max(0));
            self.item.dims.push(ResolvedDim {
                extent: v as u64,
                stride,
            });
        }
        let dims = Span {
            start: first,
            end: self.item.dims.len() as u32,
        };
        let mut lines = None;
        let indirect = match &d.indirect {
            None => ResolvedIndirect::None,
            Some(Indirect::Indices(list)) => {
                let start = self.item.indices.len();
                for e in list {
                    let v = self.eval(e, site)?;
                    self.item.indices.push(v);
                }
                let values = &self.item.indices[start..];
                full = full.saturating_mul(list.len() as u128);
                valid = valid.saturating_mul(list.len() as u128);
                lo = lo.saturating_add(values.iter().copied().min().unwrap_or(0) as i128);
                hi = hi.saturating_add(values.iter().copied().max().unwrap_or(0) as i128);
                let end = self.item.indices.len() as u32;
                ResolvedIndirect::Indices(Span {
                    start: start as u32,
                    end,
                })
            }
            Some(Indirect::Lines { count, bytes }) => {
                let count = self.count(count, site)?;
                if count > Limits::default().max_lines {
                    return Err((ErrorCode::TransferTooLarge, site));
                }
                lines = Some(count as i128 * *bytes as i128 * 8);
                ResolvedIndirect::Lines {
                    count,
                    bytes: *bytes,
                }
            }
        };
        if full > Limits::default().max_transfer_elements as u128 {
            return Err((ErrorCode::TransferTooLarge, site));
        }
        let bits = d.element_bits as i128;
        let tensor = &self.bound.tensors()[d.tensor.index()];
        let size = tensor.elements as i128 * tensor.element_bits as i128;
        let (a, b) = match lines {
            Some(0) => (0, 0),
            Some(n) => (offset as i128 * bits, offset as i128 * bits + n),
            None if valid == 0 => (0, 0),
            None => (
                lo.saturating_mul(bits),
                (hi.saturating_add(1)).saturating_mul(bits),
            ),
        };
        if a < 0 || b > size {
            if self.bound.trace().bounds == Bounds::Strict {
                return Err((ErrorCode::OutOfBounds, site));
            }
            self.item.out_of_bounds += 1;
        }
        let (reads, writes) = (self.buffers(&d.reads), self.buffers(&d.writes));
        let kind = OpKind::Dma(self.item.transfers.len() as u32);
        self.item.transfers.push(Transfer {
            direction: d.direction,
            tensor: d.tensor,
            first_bit: tensor.base as i128 * 8 + offset as i128 * bits,
            element_bits: d.element_bits,
            dims,
            semaphore: d.semaphore,
            full_elements: full as u64,
            valid_elements: valid as u64,
            indirect,
        });
        self.item.ops.push(Op {
            kind,
            reads,
            writes,
            site,
        });
        Ok(())
    }
}

/// An item with the pools laid out in op order, so that two can be compared.
#[derive(Debug, PartialEq)]
struct Plain {
    ops: Vec<(OpKind, Vec<BufferId>, Vec<BufferId>, u32)>,
    transfers: Vec<(Transfer, Vec<ResolvedDim>, Vec<i64>)>,
    out_of_bounds: u64,
}

fn plain(item: &WorkItem) -> Plain {
    let ops = item.ops.iter().map(|op| {
        let list = |span: Span| item.buffers[span.range()].to_vec();
        (op.kind, list(op.reads), list(op.writes), op.site)
    });
    let transfers = item.transfers.iter().map(|t| {
        let indices = match t.indirect {
            ResolvedIndirect::Indices(span) => item.indices[span.range()].to_vec(),
            _ => Vec::new(),
        };
        let mut t2 = *t;
        t2.dims = Span::default();
        if let ResolvedIndirect::Indices(span) = &mut t2.indirect {
            *span = Span::default();
        }
        (t2, item.dims[t.dims.range()].to_vec(), indices)
    });
    Plain {
        ops: ops.collect(),
        transfers: transfers.collect(),
        out_of_bounds: item.out_of_bounds,
    }
}

const LIMIT: u64 = 1 << 12;

fn limits() -> Limits {
    Limits {
        max_loop_iterations: LIMIT,
        ..Limits::default()
    }
}

/// What the shape of an item is when addresses are left out.
fn control(plain: &Plain) -> String {
    let mut out = format!("{:?}", plain.ops);
    for (t, dims, indices) in &plain.transfers {
        let mut t = *t;
        t.first_bit = 0;
        out.push_str(&format!("{t:?} {dims:?} {}", indices.len()));
    }
    out
}

fn compare(bytes: &[u8]) {
    let mut c = Choices::new(bytes);
    let mut trace = generate::trace(&mut c);
    for tile in &mut trace.tiles {
        tile.cycles = tile.cycles.or(Some(1));
    }
    assert_eq!(check(&trace), []);
    let args = generate::launch(&mut c, &trace);
    let trace = ValidTrace::try_from(trace).unwrap();
    let Ok(bound) = Bound::new(&trace, &args, &limits()) else {
        return;
    };
    let mut item = WorkItem::default();
    let mut shape: Option<String> = None;
    let mut seen = std::collections::BTreeSet::new();
    for index in 0..bound.items() {
        let pid = bound.pid(index);
        assert!(seen.insert(pid));
        let got = bound.expand(pid, &mut item);
        let mut walk = Walk {
            bound: &bound,
            pid,
            vars: vec![],
            item: WorkItem::default(),
            site: 0,
            iterations: 0,
        };
        let want = walk.block(&trace.body);
        match (got, want) {
            (Ok(()), Ok(())) => {
                let got = plain(&item);
                assert_eq!(got, plain(&walk.item), "work-item {pid:?}");
                if bound.control_is_uniform() {
                    let mine = control(&got);
                    assert_eq!(shape.get_or_insert_with(|| mine.clone()), &mine);
                }
            }
            (Err(e), Err((code, site))) => {
                assert_eq!((e.code, &e.path), (code, &bound.site_path(site)), "{e}");
                assert!(!e.path.is_empty());
            }
            (got, want) => panic!("work-item {pid:?}: {got:?}, the walk says {want:?}"),
        }
    }
}

struct Fixed {
    pid: [i64; 3],
    grid: [i64; 3],
    params: Vec<i64>,
    vars: Vec<i64>,
}

impl Env for Fixed {
    fn pid(&self, axis: u8) -> i64 {
        self.pid[axis as usize]
    }
    fn grid(&self, axis: u8) -> i64 {
        self.grid[axis as usize]
    }
    fn param(&self, index: usize) -> i64 {
        self.params[index]
    }
    fn var(&self, depth: usize) -> i64 {
        self.vars[depth]
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn expansion_equals_a_plain_walk(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        compare(&bytes);
    }

    #[test]
    fn compiled_expressions_equal_the_tree(
        bytes in proptest::collection::vec(any::<u8>(), 1..200),
        depth in 1usize..7,
        grid in proptest::array::uniform3(1i64..300),
        picks in proptest::array::uniform5(any::<u32>()),
        params in proptest::array::uniform2(prop_oneof![-300i64..300, any::<i64>()]),
        low in proptest::array::uniform2(prop_oneof![-300i64..300, any::<i64>()]),
    ) {
        let scope = ExprScope { axes: 3, pids: true, params: 2, loops: 2 };
        let tree = generate::expr(&mut Choices::new(&bytes), scope, depth);
        let mut slots: Vec<Range> = grid.iter().map(|g| Range::new(0, *g as i128 - 1)).collect();
        let vars: Vec<i64> = low.iter().zip(&picks[3..]).map(|(lo, p)| lo.saturating_add(i64::from(*p % 100))).collect();
        slots.extend(low.iter().map(|lo| Range::new(*lo as i128, (*lo as i128 + 99).min(i64::MAX as i128))));
        let mut pid = [0i64; 3];
        for ((p, g), pick) in pid.iter_mut().zip(grid).zip(picks) {
            *p = i64::from(pick) % g;
        }
        let compile = Scope { grid, params: &params, slots };
        let mut pool = Pool::default();
        let compiled = pool.compile(&tree, &compile);
        let env = Fixed { pid, grid, params: params.to_vec(), vars: vars.clone() };
        let want = expr::eval(&tree, &env);
        let got = pool.eval(compiled.code, &slots_for_tests(pid, &vars));
        prop_assert_eq!(got, want);
        if let Ok(v) = want {
            prop_assert!(compiled.range.lo <= v as i128 && v as i128 <= compiled.range.hi);
        }
    }
}

/// The generator reaches what the comparison is for.
#[test]
fn generator_reaches_all_outcomes() {
    use std::collections::BTreeMap;
    let mut tally: BTreeMap<&str, u32> = BTreeMap::new();
    let mut state = 1u64;
    for _ in 0..20_000 {
        let bytes: Vec<u8> = (0..600)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 32) as u8
            })
            .collect();
        compare(&bytes);
        let mut c = Choices::new(&bytes);
        let mut trace = generate::trace(&mut c);
        for tile in &mut trace.tiles {
            tile.cycles = tile.cycles.or(Some(1));
        }
        let args = generate::launch(&mut c, &trace);
        let trace = ValidTrace::try_from(trace).unwrap();
        let bound = match Bound::new(&trace, &args, &limits()) {
            Ok(bound) => bound,
            Err(e) => {
                *tally.entry(e.code.as_str()).or_default() += 1;
                continue;
            }
        };
        *tally
            .entry(if bound.control_is_uniform() {
                "uniform"
            } else {
                "varied"
            })
            .or_default() += 1;
        let mut item = WorkItem::default();
        let outcome = match bound.expand(bound.pid(0), &mut item) {
            Ok(()) if item.out_of_bounds > 0 => "fine, out of bounds",
            Ok(()) if item.ops.len() > 20 => "fine, large",
            Ok(()) if !item.ops.is_empty() => "fine",
            Ok(()) => "fine, empty",
            Err(e) => e.code.as_str(),
        };
        *tally.entry(outcome).or_default() += 1;
    }
    println!("{tally:#?}");
    for outcome in [
        "uniform",
        "varied",
        "fine",
        "fine, large",
        "fine, out of bounds",
    ] {
        assert!(
            tally.get(outcome).copied().unwrap_or(0) > 20,
            "{outcome}: {tally:?}"
        );
    }
}
