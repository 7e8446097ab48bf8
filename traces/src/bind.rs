//! A validated trace bound to a launch: tensors placed, expressions compiled, work-items countable.

use crate::code::{Code, Compiled, Pool, Range, SLOTS, Scope, Slots};
use crate::error::{ErrorCode, TraceError, closest};
use crate::expr::{self, Env};
use crate::launch::{LaunchArgs, Op, OpKind, ResolvedDim, ResolvedIndirect, Span, Transfer};
use crate::limits::{Limits, MAX_TENSOR_AXES, PLACEMENT_ALIGN};
use crate::model::*;
use crate::validate::ValidTrace;

/// A validated trace bound to a launch. Immutable; may be shared between threads.
#[derive(Clone, Debug)]
pub struct Bound {
    pub(crate) trace: ValidTrace,
    pub(crate) limits: Limits,
    grid: [u64; 3],
    items: u64,
    params: Vec<i64>,
    tensors: Vec<BoundTensor>,
    /// Axes, slowest first.
    order: [u8; 3],
    /// Item numbers in dispatch order, when an order key exists.
    keyed: Option<Vec<u32>>,
    uniform: bool,
    pub(crate) program: Program,
}

/// A tensor of a launch: where it lies and how large it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundTensor {
    /// First byte.
    pub base: u64,
    /// Bytes it occupies: all elements packed, padding of a tiled layout included, rounded up.
    pub bytes: u64,
    /// Elements it holds, padding of a tiled layout included.
    pub elements: u64,
    /// Extents in elements, unpadded.
    pub extents: Vec<u64>,
    /// Bits per element.
    pub element_bits: u32,
}

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

fn launch_error(
    code: ErrorCode,
    path: impl Into<String>,
    message: impl Into<String>,
) -> TraceError {
    TraceError::new(code, path, message)
}

impl Bound {
    /// Binds a trace to a launch.
    ///
    /// # Errors
    ///
    /// A grid, parameter, extent or placement that does not fit the trace or the limits.
    pub fn new(
        trace: &ValidTrace,
        args: &LaunchArgs,
        limits: &Limits,
    ) -> Result<Bound, TraceError> {
        let (grid, items) = bind_grid(trace, args, limits)?;
        let params = bind_params(trace, args)?;
        let env = LaunchEnv {
            grid: signed(grid),
            params: &params,
        };
        let tensors = bind_tensors(trace, args, &env)?;
        let order = axis_order(trace);
        let mut bound = Bound {
            trace: trace.clone(),
            limits: limits.clone(),
            grid,
            items,
            params,
            tensors,
            order,
            keyed: None,
            uniform: true,
            program: Program::default(),
        };
        bound.compile()?;
        bound.sort_by_key()?;
        Ok(bound)
    }

    /// How many work-items the launch has.
    pub fn items(&self) -> u64 {
        self.items
    }

    /// Grid extents; 1 along axes that the trace does not have.
    pub fn grid(&self) -> [u64; 3] {
        self.grid
    }

    /// The trace.
    pub fn trace(&self) -> &ValidTrace {
        &self.trace
    }

    /// Parameter values, in the trace's order.
    pub fn params(&self) -> &[i64] {
        &self.params
    }

    /// The tensors, in argument order.
    pub fn tensors(&self) -> &[BoundTensor] {
        &self.tensors
    }

    /// True when loop bounds, conditions, dims, index counts and wait counts do not depend on
    /// program ids: then every work-item has the same ops, transfers of the same shape and the same
    /// dependencies, and only addresses differ.
    pub fn control_is_uniform(&self) -> bool {
        self.uniform
    }

    /// The program ids of the work-item that is dispatched as number `index`, from 0. An index
    /// outside the grid wraps around it; an empty grid gives zeros.
    pub fn pid(&self, index: u64) -> [u64; 3] {
        if self.items == 0 {
            return [0; 3];
        }
        let index = index % self.items;
        match &self.keyed {
            Some(order) => {
                let number = order.get(index as usize).copied().unwrap_or(0);
                self.pid_of_number(number.into())
            }
            None => self.pid_of_number(index),
        }
    }

    /// Like [`Self::pid`], before sorting by key.
    fn pid_of_number(&self, number: u64) -> [u64; 3] {
        let mut pid = [0; 3];
        let mut rest = number;
        for axis in self.order.iter().rev() {
            let axis = usize::from(*axis);
            if let (Some(p), Some(extent)) = (pid.get_mut(axis), self.grid.get(axis)) {
                *p = rest % extent.max(&1);
                rest /= extent.max(&1);
            }
        }
        pid
    }

    fn sort_by_key(&mut self) -> Result<(), TraceError> {
        let trace = self.trace.clone();
        let Some(key) = &trace.dispatch.key else {
            return Ok(());
        };
        let max = self.limits.max_keyed_work_items.min(u32::MAX.into());
        if self.items > max {
            return Err(launch_error(
                ErrorCode::TooManyWorkItems,
                "dispatch.key",
                format!("{} work-items to sort by the order key", self.items),
            )
            .with_hint(format!("launch at most {max}, or drop the key")));
        }
        let mut pool = Pool::default();
        let compiled = pool.compile(key, &self.scope());
        // A keyed launch may cost as much as expanding its largest work-item would.
        let steps = self.items.saturating_mul(1 + compiled.code.cost());
        if steps > self.limits.max_steps_per_item.saturating_mul(16) {
            return Err(launch_error(
                ErrorCode::TooManyIterations,
                "dispatch.key",
                format!("the order key takes {steps} evaluation steps"),
            )
            .with_hint("use a simpler key or a smaller grid"));
        }
        let mut keys = Vec::with_capacity(self.items as usize);
        for number in 0..self.items {
            let pid = self.pid_of_number(number);
            let slots = slots_of(pid);
            let value = pool.eval(compiled.code, &slots).map_err(|fault| {
                launch_error(
                    fault.code(),
                    "dispatch.key",
                    format!(
                        "{} in the order key of work-item {}",
                        fault.what(),
                        self.name(pid)
                    ),
                )
            })?;
            keys.push((value, number as u32));
        }
        // Numbers are unique and ascending, so an unstable sort of the pairs is a stable sort by key.
        keys.sort_unstable();
        self.keyed = Some(keys.into_iter().map(|(_, number)| number).collect());
        Ok(())
    }

    /// A work-item's coordinates for a message: `(3, 1)`.
    pub fn name(&self, pid: [u64; 3]) -> String {
        let axes = usize::from(self.trace.axes);
        let ids: Vec<String> = pid.iter().take(axes).map(u64::to_string).collect();
        format!("({})", ids.join(", "))
    }

    fn scope(&self) -> Scope<'_> {
        let slots = self
            .grid
            .iter()
            .map(|extent| Range::new(0, i128::from(extent.saturating_sub(1))))
            .collect();
        Scope {
            grid: signed(self.grid),
            params: &self.params,
            slots,
        }
    }

    fn compile(&mut self) -> Result<(), TraceError> {
        let trace = self.trace.clone();
        let mut c = Compiler {
            trace: &trace,
            tensors: &self.tensors,
            limits: &self.limits,
            scope: self.scope(),
            program: Program::default(),
            uniform: true,
            site: 0,
            open_run: false,
        };
        c.block(&trace.body)?;
        let (uniform, program) = (c.uniform, c.program);
        self.uniform = uniform;
        self.program = program;
        Ok(())
    }
}

pub(crate) fn slots_of(pid: [u64; 3]) -> Slots {
    let mut slots = [0; SLOTS];
    for (slot, p) in slots.iter_mut().zip(pid) {
        *slot = p as i64;
    }
    slots
}

/// Extents were checked to fit.
fn signed(grid: [u64; 3]) -> [i64; 3] {
    grid.map(|extent| i64::try_from(extent).unwrap_or(i64::MAX))
}

fn bind_grid(
    trace: &Trace,
    args: &LaunchArgs,
    limits: &Limits,
) -> Result<([u64; 3], u64), TraceError> {
    if args.grid.len() != usize::from(trace.axes) {
        return Err(launch_error(
            ErrorCode::AxisCount,
            "launch.grid",
            format!(
                "a grid of {} axes for a kernel of {}",
                args.grid.len(),
                trace.axes
            ),
        )
        .with_hint("give one extent per axis"));
    }
    let mut grid = [1u64; 3];
    for (extent, given) in grid.iter_mut().zip(&args.grid) {
        *extent = *given;
    }
    let overflow = || {
        launch_error(
            ErrorCode::GridOverflow,
            "launch.grid",
            format!("grid {:?} has more work-items than fit 63 bits", args.grid),
        )
        .with_hint("launch a smaller grid")
    };
    if grid.iter().any(|extent| i64::try_from(*extent).is_err()) {
        return Err(overflow());
    }
    // An empty axis empties the grid, however large the others are.
    let items = if grid.contains(&0) {
        0
    } else {
        grid.iter()
            .try_fold(1u64, |product, extent| product.checked_mul(*extent))
            .filter(|items| i64::try_from(*items).is_ok())
            .ok_or_else(overflow)?
    };
    if items > limits.max_work_items {
        return Err(launch_error(
            ErrorCode::TooManyWorkItems,
            "launch.grid",
            format!("{items} work-items"),
        )
        .with_hint(format!("launch at most {}", limits.max_work_items)));
    }
    Ok((grid, items))
}

fn did_you_mean<'a>(name: &str, known: impl IntoIterator<Item = &'a str> + Clone) -> String {
    match closest(name, known.clone()) {
        Some(near) => format!("did you mean {near:?}"),
        None => {
            let names: Vec<&str> = known.into_iter().take(8).collect();
            if names.is_empty() {
                "the trace has none".into()
            } else {
                format!("the trace has {}", names.join(", "))
            }
        }
    }
}

fn bind_params(trace: &Trace, args: &LaunchArgs) -> Result<Vec<i64>, TraceError> {
    let known = || trace.params.iter().map(|p| p.name.as_str());
    for name in args.params.keys() {
        if !known().any(|k| k == name) {
            return Err(launch_error(
                ErrorCode::ExtraParam,
                "launch.params",
                format!("no parameter {name:?}"),
            )
            .with_hint(did_you_mean(name, known().collect::<Vec<_>>())));
        }
    }
    let mut values = Vec::with_capacity(trace.params.len());
    for param in &trace.params {
        let value = args
            .params
            .get(&param.name)
            .copied()
            .or(param.default)
            .ok_or_else(|| {
                launch_error(
                    ErrorCode::MissingParam,
                    "launch.params",
                    format!("no value for parameter {:?}", param.name),
                )
                .with_hint(format!("give {}=<integer>; it has no default", param.name))
            })?;
        values.push(value);
    }
    Ok(values)
}

struct LaunchEnv<'a> {
    grid: [i64; 3],
    params: &'a [i64],
}

impl Env for LaunchEnv<'_> {
    fn pid(&self, _: u8) -> i64 {
        0
    }
    fn grid(&self, axis: u8) -> i64 {
        self.grid.get(usize::from(axis)).copied().unwrap_or(1)
    }
    fn param(&self, index: usize) -> i64 {
        self.params.get(index).copied().unwrap_or(0)
    }
    fn var(&self, _: usize) -> i64 {
        0
    }
}

fn known_tensor(trace: &Trace, path: &str, name: &str) -> Result<(), TraceError> {
    if trace.tensors.iter().any(|t| t.name == name) {
        return Ok(());
    }
    let known: Vec<&str> = trace.tensors.iter().map(|t| t.name.as_str()).collect();
    Err(
        launch_error(ErrorCode::ExtraTensor, path, format!("no tensor {name:?}"))
            .with_hint(did_you_mean(name, known)),
    )
}

fn bind_tensors(
    trace: &Trace,
    args: &LaunchArgs,
    env: &LaunchEnv<'_>,
) -> Result<Vec<BoundTensor>, TraceError> {
    for name in args.extents.keys() {
        known_tensor(trace, "launch.extents", name)?;
    }
    for name in args.placement.keys() {
        known_tensor(trace, "launch.placement", name)?;
    }
    if !args.placement.is_empty()
        && let Some(missing) = trace
            .tensors
            .iter()
            .find(|t| !args.placement.contains_key(&t.name))
    {
        return Err(launch_error(
            ErrorCode::PartialPlacement,
            "launch.placement",
            format!("tensor {:?} is not placed", missing.name),
        )
        .with_hint("place all tensors or none"));
    }
    let mut bound = Vec::with_capacity(trace.tensors.len());
    let mut next = 0u64;
    for (index, tensor) in trace.tensors.iter().enumerate() {
        let extents = bind_extents(tensor, index, args, env)?;
        let too_large = || {
            launch_error(
                ErrorCode::AddressOverflow,
                format!("tensors[{index}]"),
                format!(
                    "tensor {:?} does not fit the 64-bit address space",
                    tensor.name
                ),
            )
            .with_hint("make it smaller or place it lower")
        };
        let mut elements = 1u64;
        for (axis, extent) in extents.iter().enumerate() {
            let tile = match &tensor.layout {
                Layout::RowMajor => 1,
                Layout::Tiled(tile) => tile.get(axis).copied().unwrap_or(1).max(1),
            };
            let padded = extent
                .div_ceil(tile)
                .checked_mul(tile)
                .ok_or_else(too_large)?;
            elements = elements.checked_mul(padded).ok_or_else(too_large)?;
        }
        let bits = u128::from(elements) * u128::from(tensor.element_bits);
        let bytes = u64::try_from(bits.div_ceil(8)).map_err(|_| too_large())?;
        let base = match args.placement.get(&tensor.name) {
            Some(base) => *base,
            None => next,
        };
        let end = base.checked_add(bytes).ok_or_else(too_large)?;
        next = match end.checked_next_multiple_of(PLACEMENT_ALIGN) {
            Some(next) => next,
            // Fine for the last tensor of a default placement, and unused in a given one.
            None if index + 1 == trace.tensors.len() || !args.placement.is_empty() => u64::MAX,
            None => return Err(too_large()),
        };
        let element_bits = tensor.element_bits;
        bound.push(BoundTensor {
            base,
            bytes,
            elements,
            extents,
            element_bits,
        });
    }
    if !args.allow_overlap {
        check_overlap(trace, &bound)?;
    }
    Ok(bound)
}

fn bind_extents(
    tensor: &Tensor,
    index: usize,
    args: &LaunchArgs,
    env: &LaunchEnv<'_>,
) -> Result<Vec<u64>, TraceError> {
    let mut extents = Vec::with_capacity(tensor.extents.len().min(MAX_TENSOR_AXES));
    let given = args.extents.get(&tensor.name);
    if let Some(given) = given
        && given.len() != tensor.extents.len()
    {
        return Err(launch_error(
            ErrorCode::BadExtents,
            "launch.extents",
            format!("{} extents for tensor {:?}", given.len(), tensor.name),
        )
        .with_hint(format!("give {}, one per axis", tensor.extents.len())));
    }
    for (axis, e) in tensor.extents.iter().enumerate() {
        let path = || format!("tensors[{index}].extents[{axis}]");
        let value = match given.and_then(|given| given.get(axis)) {
            Some(value) => *value,
            None => expr::eval(e, env).map_err(|fault| {
                launch_error(
                    fault.code(),
                    path(),
                    format!("{} in an extent of tensor {:?}", fault.what(), tensor.name),
                )
                .with_hint("check the launch's parameters, or give the extents")
            })?,
        };
        extents.push(u64::try_from(value).map_err(|_| {
            launch_error(
                ErrorCode::BadExtents,
                path(),
                format!("tensor {:?} has an extent of {value}", tensor.name),
            )
            .with_hint("extents are 0 or more; check the launch's parameters")
        })?);
    }
    Ok(extents)
}

fn check_overlap(trace: &Trace, tensors: &[BoundTensor]) -> Result<(), TraceError> {
    let mut placed: Vec<(u64, u64, usize)> = tensors
        .iter()
        .enumerate()
        .filter(|(_, t)| t.bytes > 0)
        .map(|(i, t)| (t.base, t.base + t.bytes, i))
        .collect();
    placed.sort_unstable();
    for pair in placed.windows(2) {
        if let [(_, end, a), (start, _, b)] = pair
            && start < end
        {
            let name = |i: &usize| trace.tensors.get(*i).map_or("", |t| t.name.as_str());
            return Err(launch_error(
                ErrorCode::Overlap,
                "launch.placement",
                format!(
                    "tensors {:?} and {:?} share bytes from {start:#x}",
                    name(a),
                    name(b)
                ),
            )
            .with_hint("move one of them, or allow overlap"));
        }
    }
    Ok(())
}

fn axis_order(trace: &Trace) -> [u8; 3] {
    let mut order = [0, 1, 2];
    for (slot, axis) in order.iter_mut().zip(&trace.dispatch.order) {
        *slot = *axis;
    }
    order
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

struct Compiler<'a> {
    trace: &'a Trace,
    tensors: &'a [BoundTensor],
    limits: &'a Limits,
    scope: Scope<'a>,
    program: Program,
    uniform: bool,
    site: u32,
    /// The last step is a run of ops that may grow.
    open_run: bool,
}

impl Compiler<'_> {
    fn control(&mut self, e: &Expr) -> Compiled {
        let compiled = self.program.pool.compile(e, &self.scope);
        if compiled.uses_pids() {
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
        let lo = self.control(&f.lo);
        let hi = self.control(&f.hi);
        let step = self.control(&f.step);
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
        self.step(loop_step(0));
        self.scope.slots.truncate(usize::from(slot));
        self.scope
            .slots
            .push(variable_range(lo.range, hi.range, step.range));
        let body = self.here();
        self.block(&f.body)?;
        self.scope.slots.truncate(usize::from(slot));
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
        self.block(&i.then)?;
        let jump = self.program.steps.len();
        self.step(Step::Jump(0));
        let otherwise = self.here();
        self.block(&i.otherwise)?;
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
