//! The body of a trace, compiled for one launch: a flat list of steps and the pools they share.

use crate::bind::BoundTensor;
use crate::code::{Code, Compiled, PidSteps, Pool, Range, Scope};
use crate::error::{ErrorCode, TraceError};
use crate::launch::{Op, OpKind, ResolvedDim, ResolvedIndirect, Span, Transfer};
use crate::limits::Limits;
use crate::model::*;

/// The body as a flat list of steps, and the pools that its ops share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Program {
    pub steps: Vec<Step>,
    pub pool: Pool,
    /// Buffers of all ops; copied into a work-item once, so that ops carry constant spans.
    pub buffers: Vec<BufferId>,
    /// Resolved constant dimensions, likewise.
    pub dims: Vec<ResolvedDim>,
    /// Constant index lists, likewise.
    pub indices: Vec<i64>,
    pub ops: Vec<Op>,
    pub dmas: Vec<DmaPlan>,
    pub dyn_dims: Vec<DynDim>,
    pub dyn_indices: Vec<Code>,
    /// A loop starts or ends at a value that depends on program ids and is not affine in them.
    pub curved: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Loop {
        slot: u8,
        level: u8,
        lo: Code,
        hi: Code,
        step: Code,
        exit: u32,
        site: u32,
        cost: u64,
    },
    /// A loop that runs once: its variable is a name for a value.
    Bind {
        slot: u8,
        value: Code,
        site: u32,
        cost: u64,
    },
    Next {
        slot: u8,
        level: u8,
        body: u32,
    },
    Branch {
        cond: Code,
        otherwise: u32,
        site: u32,
        cost: u64,
    },
    Jump(u32),
    /// A run of ops that are the same in every work-item: a span of [`Program::ops`].
    Ops {
        start: u32,
        end: u32,
    },
    Wait {
        semaphore: SemId,
        expected: Code,
        site: u32,
        cost: u64,
    },
    Dma {
        plan: u32,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct DynDim {
    pub extent: Code,
    pub stride: Code,
    pub valid: Option<Code>,
}

/// Shape of a transfer, known once for all work-items.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Least and greatest element offset of a valid element, relative to the first.
    pub lo: i128,
    pub hi: i128,
    pub full: u64,
    pub valid: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct DmaPlan {
    /// Everything that does not vary.
    pub template: Transfer,
    pub site: u32,
    pub reads: Span,
    pub writes: Span,
    pub offset: Code,
    /// What a step of each program id adds to the offset, and all values it has.
    pub steps: PidSteps,
    pub offsets: Range,
    /// `Some` when dims and indices are the same in every work-item.
    pub shape: Option<Shape>,
    /// Dims to evaluate when `shape` is `None`: a span of [`Program::dyn_dims`].
    pub dims: Span,
    /// Indices to evaluate when `shape` is `None`: a span of [`Program::dyn_indices`].
    pub indices: Span,
    /// Count of lines to evaluate.
    pub lines: Option<Code>,
    /// Bit address of the tensor.
    pub base_bits: i128,
    /// Bits of the tensor.
    pub size_bits: i128,
    /// The ranges prove that no work-item leaves the tensor.
    pub in_bounds: bool,
    pub cost: u64,
}

/// Adds up the shape of a transfer from its resolved dims.
pub(crate) struct ShapeBuilder {
    lo: i128,
    hi: i128,
    full: u128,
    valid: u128,
}

impl ShapeBuilder {
    pub fn new() -> Self {
        Self {
            lo: 0,
            hi: 0,
            full: 1,
            valid: 1,
        }
    }

    // Products saturate rather than fail, so that an extent of 0 anywhere makes them 0.
    #[inline]
    pub fn dim(&mut self, full: u64, valid: u64, stride: i64) {
        self.full = self.full.saturating_mul(full.into());
        self.valid = self.valid.saturating_mul(valid.into());
        let reach = i128::from(valid.saturating_sub(1)).saturating_mul(stride.into());
        if reach < 0 {
            self.lo = self.lo.saturating_add(reach);
        } else {
            self.hi = self.hi.saturating_add(reach);
        }
    }

    /// Repeats the shape at each index.
    pub fn indices(&mut self, indices: &[i64]) {
        let n = indices.len() as u128;
        self.full = self.full.saturating_mul(n);
        self.valid = self.valid.saturating_mul(n);
        let least = indices.iter().copied().min().unwrap_or(0);
        let greatest = indices.iter().copied().max().unwrap_or(0);
        self.lo = self.lo.saturating_add(least.into());
        self.hi = self.hi.saturating_add(greatest.into());
    }

    /// The shape, unless its elements do not fit 64 bits.
    #[inline]
    pub fn finish(self) -> Option<Shape> {
        let full = u64::try_from(self.full).ok()?;
        let valid = u64::try_from(self.valid).ok()?;
        Some(Shape {
            lo: self.lo,
            hi: self.hi,
            full,
            valid,
        })
    }
}

/// Why a dimension or a shape is refused.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DimFault {
    Negative(&'static str, i64),
    Mask { valid: i64, extent: i64 },
}

/// The checked counts of one dimension: (full, valid).
#[inline]
pub(crate) fn dim_counts(extent: i64, valid: Option<i64>) -> Result<(u64, u64), DimFault> {
    let full = u64::try_from(extent).map_err(|_| DimFault::Negative("extent", extent))?;
    match valid {
        None => Ok((full, full)),
        Some(v) => {
            let count = u64::try_from(v).map_err(|_| DimFault::Negative("valid extent", v))?;
            if count > full {
                return Err(DimFault::Mask { valid: v, extent });
            }
            Ok((full, count))
        }
    }
}

/// Compiles a body; also says whether control is the same in every work-item.
pub(crate) fn compile(
    trace: &Trace,
    tensors: &[BoundTensor],
    limits: &Limits,
    scope: Scope<'_>,
) -> Result<(Program, bool), TraceError> {
    let mut c = Compiler {
        trace,
        tensors,
        limits,
        scope,
        program: Program::default(),
        uniform: true,
        varied: 0b111,
        pid_steps: vec![Some([1, 0, 0]), Some([0, 1, 0]), Some([0, 0, 1])],
        site: 0,
        open_run: false,
    };
    c.block(&trace.body)?;
    Ok((c.program, c.uniform))
}

struct Compiler<'a> {
    trace: &'a Trace,
    tensors: &'a [BoundTensor],
    limits: &'a Limits,
    scope: Scope<'a>,
    program: Program,
    uniform: bool,
    /// Slots whose value differs between work-items: program ids, and variables of loops that start
    /// at different values.
    varied: u32,
    /// What a step of each program id adds to each slot.
    pid_steps: Vec<PidSteps>,
    site: u32,
    /// The last step is a run of ops that may grow.
    open_run: bool,
}

impl Compiler<'_> {
    fn control(&mut self, e: &Expr) -> Compiled {
        let compiled = self.program.pool.compile(e, &self.scope);
        if compiled.uses_any(self.varied) {
            self.uniform = false;
        }
        compiled
    }

    fn here(&self) -> u32 {
        self.program.steps.len() as u32
    }

    fn step(&mut self, step: Step) {
        self.open_run = false;
        self.program.steps.push(step);
    }

    fn block(&mut self, body: &[Stmt]) -> Result<(), TraceError> {
        for stmt in body {
            let site = self.site;
            self.site += 1;
            match stmt {
                Stmt::For(f) => self.for_loop(f, site)?,
                Stmt::If(i) => self.branch(i, site)?,
                Stmt::Dma(dma) => self.dma(dma, site)?,
                Stmt::Compute(compute) => self.compute(compute, site)?,
                Stmt::Wait(wait) => {
                    let expected = self.control(&wait.expected).code;
                    match expected.as_const().map(u64::try_from) {
                        Some(Ok(expected)) => {
                            let kind = OpKind::Wait {
                                semaphore: wait.semaphore,
                                expected,
                            };
                            let empty = Span::default();
                            self.op(Op {
                                kind,
                                reads: empty,
                                writes: empty,
                                site,
                            });
                        }
                        _ => self.step(Step::Wait {
                            semaphore: wait.semaphore,
                            expected,
                            site,
                            cost: 1 + expected.cost(),
                        }),
                    }
                }
            }
        }
        Ok(())
    }

    fn for_loop(&mut self, f: &For, site: u32) -> Result<(), TraceError> {
        // Only the number of iterations is control; where they start is not.
        let lo = self.program.pool.compile(&f.lo, &self.scope);
        let hi = self.program.pool.compile(&f.hi, &self.scope);
        let step = self.control(&f.step);
        let binding = is_binding(f);
        if !binding && (lo.uses_any(self.varied) || hi.uses_any(self.varied)) {
            let (hi, lo) = (Box::new(f.hi.clone()), Box::new(f.lo.clone()));
            let distance = Expr::Binary(BinaryOp::Sub, hi, lo);
            let distance = Pool::default().compile(&distance, &self.scope);
            if distance.uses_any(self.varied) {
                self.uniform = false;
            }
        }
        let level = f.var.index() as u8;
        let slot = 3 + level;
        let at = self.program.steps.len();
        let cost = 1 + lo.code.cost() + hi.code.cost() + step.code.cost();
        let (lo_code, hi_code, step_code) = (lo.code, hi.code, step.code);
        let loop_step = |exit| Step::Loop {
            slot,
            level,
            lo: lo_code,
            hi: hi_code,
            step: step_code,
            exit,
            site,
            cost,
        };
        if binding {
            let cost = 1 + lo.code.cost();
            let value = lo.code;
            self.step(Step::Bind {
                slot,
                value,
                site,
                cost,
            });
        } else {
            self.step(loop_step(0));
        }
        self.scope.slots.truncate(usize::from(slot));
        self.scope
            .slots
            .push(variable_range(lo.range, hi.range, step.range));
        let bit = 1u32.wrapping_shl(slot.into());
        let steps = self
            .program
            .pool
            .pid_steps(&lo, self.varied, &self.pid_steps);
        self.program.curved |= steps.is_none() || hi.uses_any(self.varied) && !hi.is_affine();
        self.pid_steps.truncate(usize::from(slot));
        self.pid_steps.push(steps);
        if lo.uses_any(self.varied) {
            self.varied |= bit;
        }
        let body = self.here();
        self.block(&f.body)?;
        self.varied &= !bit;
        self.scope.slots.truncate(usize::from(slot));
        if binding {
            return Ok(());
        }
        self.step(Step::Next { slot, level, body });
        let exit = self.here();
        if let Some(step) = self.program.steps.get_mut(at) {
            *step = loop_step(exit);
        }
        Ok(())
    }

    fn branch(&mut self, i: &If, site: u32) -> Result<(), TraceError> {
        let cond = self.control(&i.cond).code;
        let cost = 1 + cond.cost();
        let at = self.program.steps.len();
        self.step(Step::Branch {
            cond,
            otherwise: 0,
            site,
            cost,
        });
        // What a condition rules out for all work-items cannot make them differ.
        let known = cond.as_const();
        let uniform = self.uniform;
        self.block(&i.then)?;
        if known == Some(0) {
            self.uniform = uniform;
        }
        let jump = self.program.steps.len();
        self.step(Step::Jump(0));
        let otherwise = self.here();
        let uniform = self.uniform;
        self.block(&i.otherwise)?;
        if known.is_some_and(|c| c != 0) {
            self.uniform = uniform;
        }
        let end = self.here();
        // What follows is a jump target: no run of ops may grow across it.
        self.open_run = false;
        if let Some(step) = self.program.steps.get_mut(at) {
            *step = Step::Branch {
                cond,
                otherwise,
                site,
                cost,
            };
        }
        if let Some(step) = self.program.steps.get_mut(jump) {
            *step = Step::Jump(end);
        }
        Ok(())
    }

    fn op(&mut self, op: Op) {
        let number = self.program.ops.len() as u32;
        self.program.ops.push(op);
        if self.open_run
            && let Some(Step::Ops { end, .. }) = self.program.steps.last_mut()
        {
            *end = number + 1;
            return;
        }
        self.step(Step::Ops {
            start: number,
            end: number + 1,
        });
        self.open_run = true;
    }

    fn buffers(&mut self, buffers: &[BufferId]) -> Span {
        let start = self.program.buffers.len() as u32;
        self.program.buffers.extend_from_slice(buffers);
        Span {
            start,
            end: self.program.buffers.len() as u32,
        }
    }

    fn compute(&mut self, compute: &Compute, site: u32) -> Result<(), TraceError> {
        if let Some(tile) = self.trace.tiles.get(compute.tile.index())
            && tile.cycles.is_none()
        {
            return Err(TraceError::new(
                ErrorCode::TileWithoutCycles,
                crate::expand::site_path(&self.trace.body, site),
                format!("tile {:?} has no cycles", tile.name),
            )
            .with_hint("measure or declare its cycles before launching the trace"));
        }
        let kind = OpKind::Compute {
            tile: compute.tile,
            unit: compute.unit,
        };
        let reads = self.buffers(&compute.reads);
        let writes = self.buffers(&compute.writes);
        self.op(Op {
            kind,
            reads,
            writes,
            site,
        });
        Ok(())
    }

    fn dma(&mut self, dma: &Dma, site: u32) -> Result<(), TraceError> {
        let reads = self.buffers(&dma.reads);
        let writes = self.buffers(&dma.writes);
        let offset = self.program.pool.compile(&dma.offset, &self.scope);
        let mut cost = 1 + offset.code.cost();

        let mut dims = Vec::with_capacity(dma.dims.len());
        for dim in &dma.dims {
            let extent = self.control(&dim.extent).code;
            let stride = self.control(&dim.stride).code;
            let valid = dim.valid.as_ref().map(|v| self.control(v).code);
            cost += 1 + extent.cost() + stride.cost() + valid.map_or(0, Code::cost);
            dims.push(DynDim {
                extent,
                stride,
                valid,
            });
        }
        let mut indices = Vec::new();
        let mut lines = None;
        match &dma.indirect {
            None => {}
            Some(Indirect::Indices(list)) => {
                for index in list {
                    // Indices move addresses only; they leave control uniform.
                    let code = self.program.pool.compile(index, &self.scope).code;
                    cost += 1 + code.cost();
                    indices.push(code);
                }
            }
            Some(Indirect::Lines { count, .. }) => {
                let count = self.control(count).code;
                cost += count.cost();
                lines = Some(count);
            }
        }

        let tensor = self.tensors.get(dma.tensor.index());
        let (base, size) = tensor.map_or((0, 0), |t| {
            (
                i128::from(t.base) * 8,
                i128::from(t.elements) * i128::from(t.element_bits),
            )
        });
        let mut plan = DmaPlan {
            template: Transfer {
                direction: dma.direction,
                tensor: dma.tensor,
                first_bit: 0,
                element_bits: dma.element_bits,
                dims: Span::default(),
                semaphore: dma.semaphore,
                full_elements: 0,
                valid_elements: 0,
                indirect: ResolvedIndirect::None,
            },
            site,
            reads,
            writes,
            offset: offset.code,
            steps: self
                .program
                .pool
                .pid_steps(&offset, self.varied, &self.pid_steps),
            offsets: offset.range,
            shape: None,
            dims: Span::default(),
            indices: Span::default(),
            lines,
            base_bits: base,
            size_bits: size,
            in_bounds: false,
            cost,
        };
        let gather = matches!(dma.indirect, Some(Indirect::Indices(_)));
        if !self.constant_shape(&mut plan, &dims, &indices, gather, offset.range) {
            let start = self.program.dyn_dims.len() as u32;
            self.program.dyn_dims.extend_from_slice(&dims);
            plan.dims = Span {
                start,
                end: self.program.dyn_dims.len() as u32,
            };
            let start = self.program.dyn_indices.len() as u32;
            self.program.dyn_indices.extend_from_slice(&indices);
            plan.indices = Span {
                start,
                end: self.program.dyn_indices.len() as u32,
            };
        }
        // Dynamic transfers say by their template which kind of indirection they want.
        if plan.shape.is_none() {
            if gather {
                plan.template.indirect = ResolvedIndirect::Indices(Span::default());
            }
            if let Some(Indirect::Lines { bytes, .. }) = &dma.indirect {
                plan.template.indirect = ResolvedIndirect::Lines {
                    count: 0,
                    bytes: *bytes,
                };
            }
        }
        let number = self.program.dmas.len() as u32;
        self.program.dmas.push(plan);
        self.step(Step::Dma { plan: number });
        Ok(())
    }

    /// Resolves a transfer whose shape is the same in every work-item and without fault; leaves
    /// everything else, faulty shapes included, to expansion.
    fn constant_shape(
        &mut self,
        plan: &mut DmaPlan,
        dims: &[DynDim],
        indices: &[Code],
        gather: bool,
        offset: Range,
    ) -> bool {
        if plan.lines.is_some() {
            return false;
        }
        let mut shape = ShapeBuilder::new();
        let mut resolved = Vec::with_capacity(dims.len());
        for dim in dims {
            let (Some(extent), Some(stride)) = (dim.extent.as_const(), dim.stride.as_const())
            else {
                return false;
            };
            let valid = match dim.valid.map(Code::as_const) {
                None => None,
                Some(Some(v)) => Some(v),
                Some(None) => return false,
            };
            let Ok((full, valid)) = dim_counts(extent, valid) else {
                return false;
            };
            shape.dim(full, valid, stride);
            resolved.push(ResolvedDim {
                extent: valid,
                stride,
            });
        }
        let Some(values) = indices
            .iter()
            .map(|c| c.as_const())
            .collect::<Option<Vec<i64>>>()
        else {
            return false;
        };
        if gather {
            shape.indices(&values);
        }
        let Some(shape) = shape.finish() else {
            return false;
        };
        if shape.full > self.limits.max_transfer_elements {
            return false;
        }
        let start = self.program.dims.len() as u32;
        self.program.dims.extend_from_slice(&resolved);
        plan.template.dims = Span {
            start,
            end: self.program.dims.len() as u32,
        };
        plan.template.full_elements = shape.full;
        plan.template.valid_elements = shape.valid;
        if gather {
            let start = self.program.indices.len() as u32;
            self.program.indices.extend_from_slice(&values);
            let end = self.program.indices.len() as u32;
            plan.template.indirect = ResolvedIndirect::Indices(Span { start, end });
        }
        let bits = i128::from(plan.template.element_bits);
        plan.in_bounds = shape.valid == 0
            || (offset.lo.saturating_add(shape.lo) >= 0
                && offset
                    .hi
                    .saturating_add(shape.hi)
                    .saturating_add(1)
                    .saturating_mul(bits)
                    <= plan.size_bits);
        plan.shape = Some(shape);
        true
    }
}

/// Whether a loop runs once and thereby gives a value a name: `for v in x..x + 1`.
pub(crate) fn is_binding(f: &For) -> bool {
    let one = Expr::Const(1);
    f.step == one && matches!(&f.hi, Expr::Binary(BinaryOp::Add, x, d) if **d == one && **x == f.lo)
}

/// The values a loop variable takes.
fn variable_range(lo: Range, hi: Range, step: Range) -> Range {
    let up = Range::new(lo.lo, (hi.hi - 1).max(lo.lo));
    let down = Range::new((hi.lo + 1).min(lo.hi), lo.hi);
    if step.lo > 0 {
        up
    } else if step.hi < 0 {
        down
    } else {
        up.hull(down)
    }
}
