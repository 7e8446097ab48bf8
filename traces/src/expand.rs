//! Expansion: one work-item of a bound trace with everything resolved.

use crate::bind::{Bound, slots_of};
use crate::code::{Code, SLOTS, Slots};
use crate::error::{ErrorCode, TraceError};
use crate::expr::Fault;
use crate::launch::{Op, OpKind, ResolvedDim, ResolvedIndirect, Span, WorkItem};
use crate::limits::MAX_LOOP_DEPTH;
use crate::model::{Bounds, Stmt};
use crate::program::{DimFault, DmaPlan, Shape, ShapeBuilder, Step, dim_counts};

/// Spans of a work-item are 32-bit; these hold whatever limits a host sets.
const HARD_MAX_OPS: u64 = 1 << 26;
const HARD_MAX_STEPS: u64 = 1 << 31;

#[derive(Clone, Copy, Default)]
struct LoopState {
    remaining: u64,
    step: i64,
}

/// Why expansion stops; turned into a [`TraceError`] once, off the hot path.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    Fault(Fault),
    Dim(DimFault),
    NegativeWait(i64),
    NegativeLines(i64),
    ZeroStep,
    TooManyOps,
    TooManyIterations,
    TooManySteps,
    TooManyElements,
    TooManyLines(i64),
    OutOfBounds { first: i128, last: i128 },
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Refusal::Fault(fault)
    }
}

impl From<DimFault> for Refusal {
    fn from(fault: DimFault) -> Self {
        Refusal::Dim(fault)
    }
}

impl Bound {
    /// Expands one work-item into `item`, replacing what it held and reusing its memory.
    ///
    /// # Errors
    ///
    /// A program id outside the grid, arithmetic without a result, a transfer outside its tensor
    /// under strict bounds, or a limit. `item` then holds nothing of use.
    pub fn expand(&self, pid: [u64; 3], item: &mut WorkItem) -> Result<(), TraceError> {
        item.pid = pid;
        item.ops.clear();
        item.transfers.clear();
        item.dims.clear();
        item.indices.clear();
        item.buffers.clear();
        item.out_of_bounds = 0;
        if pid.iter().zip(self.grid()).any(|(p, extent)| *p >= extent) {
            return Err(TraceError::new(
                ErrorCode::OutsideGrid,
                "launch.grid",
                format!(
                    "work-item {} is outside the grid {:?}",
                    self.name(pid),
                    self.grid()
                ),
            )
            .with_hint("program ids start at 0 and stay below the grid's extents"));
        }
        item.buffers.extend_from_slice(&self.program.buffers);
        item.dims.extend_from_slice(&self.program.dims);
        item.indices.extend_from_slice(&self.program.indices);
        self.run(pid, item)
            .map_err(|(site, refusal)| self.refuse(pid, site, refusal))
    }

    fn run(&self, pid: [u64; 3], item: &mut WorkItem) -> Result<(), (u32, Refusal)> {
        let program = &self.program;
        let pool = &program.pool;
        let max_ops = self.limits.max_ops_per_item.min(HARD_MAX_OPS) as usize;
        let mut steps_left = self.limits.max_steps_per_item.min(HARD_MAX_STEPS);
        let mut iterations_left = self.limits.max_loop_iterations;
        let mut slots = slots_of(pid);
        let mut loops = [LoopState::default(); MAX_LOOP_DEPTH];
        let mut at = 0usize;
        while let Some(step) = program.steps.get(at) {
            at += 1;
            match *step {
                Step::Ops { start, end } => {
                    let ops = program.ops.get(start as usize..end as usize).unwrap_or(&[]);
                    let site = ops.first().map_or(0, |op| op.site);
                    steps_left = steps_left
                        .checked_sub(ops.len() as u64)
                        .ok_or((site, Refusal::TooManySteps))?;
                    if item.ops.len() + ops.len() > max_ops {
                        return Err((site, Refusal::TooManyOps));
                    }
                    item.ops.extend_from_slice(ops);
                }
                Step::Dma { plan } => {
                    let Some(plan) = program.dmas.get(plan as usize) else {
                        continue;
                    };
                    steps_left = steps_left
                        .checked_sub(plan.cost)
                        .ok_or((plan.site, Refusal::TooManySteps))?;
                    if item.ops.len() >= max_ops {
                        return Err((plan.site, Refusal::TooManyOps));
                    }
                    self.transfer(plan, &slots, item)
                        .map_err(|refusal| (plan.site, refusal))?;
                }
                Step::Wait {
                    semaphore,
                    expected,
                    site,
                    cost,
                } => {
                    steps_left = steps_left
                        .checked_sub(cost)
                        .ok_or((site, Refusal::TooManySteps))?;
                    if item.ops.len() >= max_ops {
                        return Err((site, Refusal::TooManyOps));
                    }
                    let value = pool.eval(expected, &slots).map_err(|f| (site, f.into()))?;
                    let expected =
                        u64::try_from(value).map_err(|_| (site, Refusal::NegativeWait(value)))?;
                    let kind = OpKind::Wait {
                        semaphore,
                        expected,
                    };
                    let none = Span::default();
                    item.ops.push(Op {
                        kind,
                        reads: none,
                        writes: none,
                        site,
                    });
                }
                Step::Loop {
                    slot,
                    level,
                    lo,
                    hi,
                    step,
                    exit,
                    site,
                    cost,
                } => {
                    steps_left = steps_left
                        .checked_sub(cost)
                        .ok_or((site, Refusal::TooManySteps))?;
                    let value = |code: Code| pool.eval(code, &slots).map_err(|f| (site, f.into()));
                    let (lo, hi, step) = (value(lo)?, value(hi)?, value(step)?);
                    let trips = trip_count(lo, hi, step).ok_or((site, Refusal::ZeroStep))?;
                    iterations_left = iterations_left
                        .checked_sub(trips)
                        .ok_or((site, Refusal::TooManyIterations))?;
                    if trips == 0 {
                        at = exit as usize;
                        continue;
                    }
                    slots[slot as usize & (SLOTS - 1)] = lo;
                    if let Some(state) = loops.get_mut(usize::from(level)) {
                        *state = LoopState {
                            remaining: trips - 1,
                            step,
                        };
                    }
                }
                Step::Bind {
                    slot,
                    value,
                    site,
                    cost,
                } => {
                    steps_left = steps_left
                        .checked_sub(cost)
                        .ok_or((site, Refusal::TooManySteps))?;
                    let value = pool.eval(value, &slots).map_err(|f| (site, f.into()))?;
                    // It stands for a loop up to the value plus 1, which must exist.
                    if value == i64::MAX {
                        return Err((site, Fault::Overflow.into()));
                    }
                    iterations_left = iterations_left
                        .checked_sub(1)
                        .ok_or((site, Refusal::TooManyIterations))?;
                    slots[slot as usize & (SLOTS - 1)] = value;
                }
                Step::Next { slot, level, body } => {
                    if let Some(state) = loops.get_mut(usize::from(level))
                        && state.remaining > 0
                    {
                        state.remaining -= 1;
                        let variable = &mut slots[slot as usize & (SLOTS - 1)];
                        // Another iteration exists, so the sum is inside the loop's bounds.
                        *variable = variable.wrapping_add(state.step);
                        at = body as usize;
                    }
                }
                Step::Branch {
                    cond,
                    otherwise,
                    site,
                    cost,
                } => {
                    steps_left = steps_left
                        .checked_sub(cost)
                        .ok_or((site, Refusal::TooManySteps))?;
                    if pool.eval(cond, &slots).map_err(|f| (site, f.into()))? == 0 {
                        at = otherwise as usize;
                    }
                }
                Step::Jump(to) => at = to as usize,
            }
        }
        Ok(())
    }

    #[inline]
    fn transfer(&self, plan: &DmaPlan, slots: &Slots, item: &mut WorkItem) -> Result<(), Refusal> {
        let offset = self.program.pool.eval(plan.offset, slots)?;
        let mut transfer = plan.template;
        let mut line_bits = None;
        let shape = match &plan.shape {
            Some(shape) => *shape,
            None => {
                let shape = self.dynamic_shape(
                    plan,
                    slots,
                    item,
                    &mut transfer.dims,
                    &mut transfer.indirect,
                )?;
                transfer.full_elements = shape.full;
                transfer.valid_elements = shape.valid;
                if let ResolvedIndirect::Lines { count, bytes } = transfer.indirect {
                    line_bits = Some(i128::from(count) * i128::from(bytes) * 8);
                }
                shape
            }
        };
        let bits = i128::from(transfer.element_bits);
        let first_bit = i128::from(offset) * bits;
        if !plan.in_bounds {
            let (lo, end) = match line_bits {
                Some(0) => (0, 0),
                Some(line_bits) => (first_bit, first_bit.saturating_add(line_bits)),
                None if shape.valid == 0 => (0, 0),
                None => (
                    first_bit.saturating_add(shape.lo.saturating_mul(bits)),
                    first_bit.saturating_add(shape.hi.saturating_add(1).saturating_mul(bits)),
                ),
            };
            if lo < 0 || end > plan.size_bits {
                if self.trace.bounds == Bounds::Strict {
                    let first = lo.div_euclid(bits.max(1));
                    let last = (end - 1).div_euclid(bits.max(1));
                    return Err(Refusal::OutOfBounds { first, last });
                }
                item.out_of_bounds += 1;
            }
        }
        transfer.first_bit = plan.base_bits + first_bit;
        let number = item.transfers.len() as u32;
        item.transfers.push(transfer);
        item.ops.push(Op {
            kind: OpKind::Dma(number),
            reads: plan.reads,
            writes: plan.writes,
            site: plan.site,
        });
        Ok(())
    }

    fn dynamic_shape(
        &self,
        plan: &DmaPlan,
        slots: &Slots,
        item: &mut WorkItem,
        dims_span: &mut Span,
        indirect: &mut ResolvedIndirect,
    ) -> Result<Shape, Refusal> {
        let program = &self.program;
        let pool = &program.pool;
        let mut builder = ShapeBuilder::new();
        let start = item.dims.len() as u32;
        for dim in program.dyn_dims.get(plan.dims.range()).unwrap_or(&[]) {
            let extent = pool.eval(dim.extent, slots)?;
            let stride = pool.eval(dim.stride, slots)?;
            let valid = match dim.valid {
                Some(valid) => Some(pool.eval(valid, slots)?),
                None => None,
            };
            let (full, valid) = dim_counts(extent, valid)?;
            builder.dim(full, valid, stride);
            item.dims.push(ResolvedDim {
                extent: valid,
                stride,
            });
        }
        *dims_span = Span {
            start,
            end: item.dims.len() as u32,
        };
        match indirect {
            ResolvedIndirect::None => {}
            ResolvedIndirect::Indices(span) => {
                let start = item.indices.len();
                for index in program.dyn_indices.get(plan.indices.range()).unwrap_or(&[]) {
                    item.indices.push(pool.eval(*index, slots)?);
                }
                builder.indices(item.indices.get(start..).unwrap_or(&[]));
                *span = Span {
                    start: start as u32,
                    end: item.indices.len() as u32,
                };
            }
            ResolvedIndirect::Lines { count, .. } => {
                let value = match plan.lines {
                    Some(code) => pool.eval(code, slots)?,
                    None => 0,
                };
                *count = u64::try_from(value).map_err(|_| Refusal::NegativeLines(value))?;
                if *count > self.limits.max_lines {
                    return Err(Refusal::TooManyLines(value));
                }
            }
        }
        let shape = builder.finish().ok_or(Refusal::TooManyElements)?;
        if shape.full > self.limits.max_transfer_elements {
            return Err(Refusal::TooManyElements);
        }
        Ok(shape)
    }

    /// Where a statement stands in the trace, for messages: `body[2].for.body[0].dma`.
    pub fn site_path(&self, site: u32) -> String {
        site_path(&self.trace.body, site)
    }

    #[cold]
    fn refuse(&self, pid: [u64; 3], site: u32, refusal: Refusal) -> TraceError {
        let (code, what, hint) = match refusal {
            Refusal::Fault(fault) => (
                fault.code(),
                fault.what().to_owned(),
                "check the expression for these program ids, or use the wrapping operators".into(),
            ),
            Refusal::Dim(DimFault::Negative(what, value)) => (
                ErrorCode::NegativeCount,
                format!("an {what} of {value}").replace("an valid", "a valid"),
                "clamp it with max(0, ...)".into(),
            ),
            Refusal::Dim(DimFault::Mask { valid, extent }) => (
                ErrorCode::BadMask,
                format!("a valid extent of {valid} in a dimension of {extent}"),
                "clamp it with min(extent, ...)".into(),
            ),
            Refusal::NegativeWait(value) => (
                ErrorCode::NegativeCount,
                format!("a wait for {value} elements"),
                "a wait expects 0 elements or more".into(),
            ),
            Refusal::NegativeLines(value) => (
                ErrorCode::NegativeCount,
                format!("a transfer of {value} lines"),
                "clamp the count with max(0, ...)".into(),
            ),
            Refusal::ZeroStep => (
                ErrorCode::ZeroStep,
                "a loop with step 0".into(),
                "use another step".to_owned(),
            ),
            Refusal::TooManyOps => (
                ErrorCode::TooManyOps,
                "too many ops".into(),
                format!(
                    "a work-item may have {} ops; make it smaller",
                    self.limits.max_ops_per_item
                ),
            ),
            Refusal::TooManyIterations => (
                ErrorCode::TooManyIterations,
                "too many loop iterations".into(),
                format!(
                    "a work-item may run {} iterations, empty ones included",
                    self.limits.max_loop_iterations
                ),
            ),
            Refusal::TooManySteps => (
                ErrorCode::TooManyIterations,
                "too many evaluation steps".into(),
                format!(
                    "a work-item may take {} steps; make it smaller",
                    self.limits.max_steps_per_item
                ),
            ),
            Refusal::TooManyElements => (
                ErrorCode::TransferTooLarge,
                "too many elements in one transfer".into(),
                format!("a transfer may move {}", self.limits.max_transfer_elements),
            ),
            Refusal::TooManyLines(value) => (
                ErrorCode::TransferTooLarge,
                format!("a transfer of {value} lines"),
                format!("a transfer may declare {}", self.limits.max_lines),
            ),
            Refusal::OutOfBounds { first, last } => {
                let (name, elements) = self.tensor_of(site);
                (
                    ErrorCode::OutOfBounds,
                    format!(
                        "the transfer covers elements {first} to {last} of tensor {name:?}, which \
                         has {elements}"
                    ),
                    "mask the edge with a valid extent, fix the tensor's extents, or declare \
                     `bounds off`"
                        .into(),
                )
            }
        };
        let message = format!("{what} in work-item {}", self.name(pid));
        TraceError::new(code, self.site_path(site), message).with_hint(hint)
    }

    fn tensor_of(&self, site: u32) -> (String, u64) {
        let tensor = self
            .program
            .dmas
            .iter()
            .find(|p| p.site == site)
            .map(|p| p.template.tensor);
        let index = tensor.map_or(usize::MAX, |t| t.index());
        let name = self
            .trace
            .tensors
            .get(index)
            .map_or(String::new(), |t| t.name.clone());
        // In the unit of the message: elements as the transfer counts them.
        let bits = self
            .program
            .dmas
            .iter()
            .find(|p| p.site == site)
            .map_or(1, |p| u128::from(p.template.element_bits.max(1)));
        let size = self.tensors().get(index).map_or(0, |t| {
            u128::from(t.elements) * u128::from(t.element_bits) / bits
        });
        (name, u64::try_from(size).unwrap_or(u64::MAX))
    }
}

/// How often a loop runs; `None` for a step of 0.
#[inline]
fn trip_count(lo: i64, hi: i64, step: i64) -> Option<u64> {
    if step == 0 {
        return None;
    }
    if (step > 0) != (lo < hi) || lo == hi {
        return Some(0);
    }
    let distance = hi.abs_diff(lo);
    // At least 1 apart, and `distance - 1` over a step of at least 1: no overflow.
    Some((distance - 1) / step.unsigned_abs() + 1)
}

/// Where statement number `site` of a depth-first walk stands.
pub fn site_path(body: &[Stmt], site: u32) -> String {
    let mut next = 0;
    find_site(body, "body", site, &mut next).unwrap_or_default()
}

fn find_site(body: &[Stmt], prefix: &str, site: u32, next: &mut u32) -> Option<String> {
    for (i, stmt) in body.iter().enumerate() {
        let here = *next == site;
        *next += 1;
        let (kind, blocks): (&str, [(&str, &[Stmt]); 2]) = match stmt {
            Stmt::For(f) => ("for", [("body", &f.body), ("", &[])]),
            Stmt::If(c) => ("if", [("then", &c.then), ("otherwise", &c.otherwise)]),
            Stmt::Dma(_) => ("dma", Default::default()),
            Stmt::Compute(_) => ("compute", Default::default()),
            Stmt::Wait(_) => ("wait", Default::default()),
        };
        if here {
            return Some(format!("{prefix}[{i}].{kind}"));
        }
        for (name, block) in blocks {
            if block.is_empty() {
                continue;
            }
            let inner = format!("{prefix}[{i}].{kind}.{name}");
            if let Some(found) = find_site(block, &inner, site, next) {
                return Some(found);
            }
        }
    }
    None
}
