//! A validated trace bound to a launch: tensors placed, expressions compiled, work-items countable.

use crate::code::{Pool, Range, SLOTS, Scope, Slots};
use crate::error::{ErrorCode, TraceError, closest};
use crate::expr::{self, Env};
use crate::launch::LaunchArgs;
use crate::limits::{Limits, MAX_TENSOR_AXES, PLACEMENT_ALIGN};
use crate::model::*;
use crate::program::{self, Program};
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
    pub(crate) keyed: Option<Vec<u32>>,
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

    /// The axes in the order of dispatch, the slowest first.
    pub fn axes(&self) -> [usize; 3] {
        self.order.map(usize::from)
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
        let (program, uniform) =
            program::compile(&trace, &self.tensors, &self.limits, self.scope())?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::ResolvedDim;
    use crate::launch::WorkItem;
    use crate::text::parse_valid;

    const HEAD: &str = "tilesim trace 1 axes 2 param K param N = 4 \
        tensor A: 8 bit in [K, g0] tensor B: 4 bit out [3, N + 1] tensor C: 16 bit inout [5, 9] tiled [4, 8] ";

    fn args() -> LaunchArgs {
        LaunchArgs {
            grid: vec![2, 3],
            params: [("K".into(), 10_000)].into(),
            ..Default::default()
        }
    }

    fn bind(text: &str, args: &LaunchArgs) -> Result<Bound, TraceError> {
        Bound::new(&parse_valid(text).unwrap(), args, &Limits::default())
    }

    #[track_caller]
    fn refused(change: impl FnOnce(&mut LaunchArgs), code: ErrorCode) -> TraceError {
        let mut args = args();
        change(&mut args);
        let e = bind(&format!("{HEAD} body {{ }}"), &args).unwrap_err();
        assert_eq!(e.code, code, "{e}");
        assert!(e.hint.is_some() && !e.path.is_empty(), "{e}");
        e
    }

    #[test]
    fn tensors_are_packed() {
        let bound = bind(&format!("{HEAD} body {{ }}"), &args()).unwrap();
        assert_eq!(bound.params(), [10_000, 4]);
        let t = bound.tensors();
        assert_eq!((t[0].base, t[0].bytes, t[0].elements), (0, 20_000, 20_000));
        // 15 elements of 4 bits round up to 8 bytes; C is padded to 8 x 16.
        assert_eq!((t[1].base, t[1].bytes, t[1].elements), (32_768, 8, 15));
        assert_eq!((t[2].base, t[2].bytes, t[2].elements), (49_152, 256, 128));
        assert_eq!(t[2].extents, [5, 9]);
    }

    #[test]
    fn launches_are_checked() {
        refused(|a| a.grid = vec![1], ErrorCode::AxisCount);
        refused(|a| a.grid = vec![1, 1, 1], ErrorCode::AxisCount);
        refused(|a| a.grid = vec![1 << 40, 1 << 40], ErrorCode::GridOverflow);
        refused(|a| a.grid = vec![1, u64::MAX], ErrorCode::GridOverflow);
        refused(
            |a| a.grid = vec![1 << 20, 1 << 20],
            ErrorCode::TooManyWorkItems,
        );
        refused(|a| a.params.clear(), ErrorCode::MissingParam);
        let e = refused(
            |a| _ = a.params.insert("k".into(), 1),
            ErrorCode::ExtraParam,
        );
        assert_eq!(e.hint.as_deref(), Some("did you mean \"K\""));
        refused(
            |a| _ = a.params.insert("K".into(), -1),
            ErrorCode::BadExtents,
        );
        refused(
            |a| _ = a.params.insert("N".into(), i64::MAX),
            ErrorCode::Overflow,
        );
        refused(
            |a| _ = a.params.insert("K".into(), i64::MAX),
            ErrorCode::AddressOverflow,
        );
        refused(
            |a| _ = a.extents.insert("A".into(), vec![1]),
            ErrorCode::BadExtents,
        );
        refused(
            |a| _ = a.extents.insert("A".into(), vec![1, -1]),
            ErrorCode::BadExtents,
        );
        refused(
            |a| _ = a.extents.insert("X".into(), vec![1]),
            ErrorCode::ExtraTensor,
        );
        refused(
            |a| _ = a.placement.insert("A".into(), 0),
            ErrorCode::PartialPlacement,
        );
        let place = |b: u64, c: u64| [("A".into(), 0), ("B".into(), b), ("C".into(), c)].into();
        refused(|a| a.placement = place(19_999, 30_000), ErrorCode::Overlap);
        refused(
            |a| a.placement = place(40_000, u64::MAX),
            ErrorCode::AddressOverflow,
        );
        let mut args = args();
        args.placement = place(20_000, 20_008);
        assert_eq!(
            bind(&format!("{HEAD} body {{ }}"), &args)
                .unwrap()
                .tensors()[2]
                .base,
            20_008
        );
        args.placement = place(0, 0);
        args.allow_overlap = true;
        bind(&format!("{HEAD} body {{ }}"), &args).unwrap();
    }

    #[test]
    fn tiles_need_cycles_to_run() {
        let text = "tilesim trace 1 axes 1 tile t cycles unknown body { for i in 0..2 { compute t vector } }";
        let args = LaunchArgs {
            grid: vec![1],
            ..Default::default()
        };
        let e = bind(text, &args).unwrap_err();
        assert_eq!(
            (e.code, e.path.as_str()),
            (ErrorCode::TileWithoutCycles, "body[0].for.body[0].compute")
        );
        // Unused, it does no harm.
        bind(
            "tilesim trace 1 axes 1 tile t cycles unknown body { }",
            &args,
        )
        .unwrap();
    }

    fn pids(text: &str, grid: &[u64]) -> Vec<[u64; 3]> {
        let args = LaunchArgs {
            grid: grid.to_vec(),
            ..Default::default()
        };
        let bound = bind(text, &args).unwrap();
        (0..bound.items()).map(|i| bound.pid(i)).collect()
    }

    #[test]
    fn dispatch_order() {
        let last_fastest = pids("tilesim trace 1 axes 2 body { }", &[2, 2]);
        assert_eq!(last_fastest, [[0, 0, 0], [0, 1, 0], [1, 0, 0], [1, 1, 0]]);
        let first_fastest = pids(
            "tilesim trace 1 axes 2 dispatch order p1 p0 body { }",
            &[2, 2],
        );
        assert_eq!(first_fastest, [[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]]);
        let keyed = pids(
            "tilesim trace 1 axes 1 dispatch key p0 % 2 * -1 body { }",
            &[5],
        );
        assert_eq!(
            keyed,
            [[1, 0, 0], [3, 0, 0], [0, 0, 0], [2, 0, 0], [4, 0, 0]]
        );
        assert_eq!(
            pids("tilesim trace 1 axes 2 body { }", &[0, u64::MAX >> 1]),
            [[0u64; 3]; 0]
        );
    }

    #[test]
    fn order_keys_are_bounded() {
        let bind = |key: &str, grid: u64, limits: &Limits| {
            let text = format!("tilesim trace 1 axes 1 dispatch key {key} body {{ }}");
            let args = LaunchArgs {
                grid: vec![grid],
                ..Default::default()
            };
            Bound::new(&parse_valid(&text).unwrap(), &args, limits).map(|_| ())
        };
        let limits = Limits {
            max_keyed_work_items: 100,
            max_steps_per_item: 50,
            ..Limits::default()
        };
        assert_eq!(bind("-p0", 100, &limits), Ok(()));
        let code = |result: Result<(), TraceError>| result.unwrap_err().code;
        assert_eq!(code(bind("-p0", 101, &limits)), ErrorCode::TooManyWorkItems);
        let heavy = "p0 * p0 % 7 * p0 % 11 * p0 % 5";
        assert_eq!(
            code(bind(heavy, 100, &limits)),
            ErrorCode::TooManyIterations
        );
        let e = bind("1 / (p0 - 2)", 4, &limits).unwrap_err();
        assert_eq!(
            (e.code, e.path.as_str()),
            (ErrorCode::DivisionByZero, "dispatch.key")
        );
        assert!(e.message.contains("work-item (2)"), "{e}");
    }

    #[test]
    fn uniform_control() {
        let uniform = |body: &str, grid: u64| {
            let text =
                format!("tilesim trace 1 axes 1 tensor A: 8 bit in [4096] body {{ {body} }}");
            bind(
                &text,
                &LaunchArgs {
                    grid: vec![grid],
                    ..Default::default()
                },
            )
            .unwrap()
            .control_is_uniform()
        };
        assert!(uniform("load A[p0 / 3 % 2] dims [4: 1]", 8));
        assert!(uniform("load A[0] indices [p0, p0 * 2]", 8));
        assert!(!uniform("load A[0] dims [p0: 1]", 8));
        assert!(!uniform("if p0 == 3 { }", 8));
        assert!(!uniform("for k in 0..p0 { }", 8));
        assert!(!uniform("wait 0 for p0", 8));
        // What the grid rules out does not count.
        assert!(uniform("if p0 < 8 { }", 8));
        assert!(uniform(
            "load A[p0 * 128] dims [128: 1 valid min(128, 1024 - p0 * 128)]",
            8
        ));
        assert!(!uniform(
            "load A[p0 * 128] dims [128: 1 valid min(128, 1000 - p0 * 128)]",
            8
        ));
        assert!(uniform("wait 0 for p0", 1));
    }

    #[track_caller]
    fn expand(body: &str, pid: u64) -> Result<WorkItem, TraceError> {
        let text = format!("tilesim trace 1 axes 1 tensor A: 8 bit inout [64] body {{ {body} }}");
        let bound = bind(
            &text,
            &LaunchArgs {
                grid: vec![4],
                ..Default::default()
            },
        )
        .unwrap();
        let mut item = WorkItem::default();
        bound.expand([pid, 0, 0], &mut item).map(|()| item)
    }

    #[test]
    fn bounds_are_tight() {
        for (body, fine, refused) in [
            ("load A[p0 * 16] dims [16: 1]", Some(3), None),
            ("load A[p0 * 16 + 1] dims [16: 1]", Some(2), Some(3)),
            ("load A[p0 * 16 - 1]", Some(1), Some(0)),
            ("load A[p0 * 16] dims [16: 1, 1: 99]", Some(3), None),
            ("load A[p0 * 16 + 15] dims [16: -1]", Some(3), None),
            ("load A[p0 * 16 + 14] dims [16: -1]", Some(1), Some(0)),
            ("load A[63] dims [2: 1 valid 4 - p0]", None, Some(0)),
            ("load A[63] dims [4: 1 valid 4 - p0]", Some(3), Some(2)),
            ("load A[1000] dims [p0: 1]", Some(0), Some(1)),
            ("load A[1000] dims [9: 1 valid 0]", Some(3), None),
            ("load A[60] indices [0, p0]", Some(3), None),
            ("load A[61] indices [0, p0]", Some(2), Some(3)),
            ("load A[0] lines p0 of 32 bytes", Some(2), Some(3)),
            ("load A[0] dims [8: 1] bits 64", Some(3), None),
            ("load A[1] dims [8: 1] bits 64", None, Some(3)),
        ] {
            if let Some(pid) = fine {
                expand(body, pid).unwrap_or_else(|e| panic!("{body}: {e}"));
            }
            if let Some(pid) = refused {
                let e = expand(body, pid).expect_err(body);
                assert!(
                    matches!(e.code, ErrorCode::OutOfBounds | ErrorCode::BadMask),
                    "{body}: {e}"
                );
                assert_eq!(e.path, "body[0].dma");
                assert!(e.message.contains(&format!("work-item ({pid})")), "{e}");
            }
        }
    }

    #[test]
    fn hostile_bodies_end() {
        for (body, code) in [
            ("for i in 0..1000000000 { }", ErrorCode::TooManyIterations),
            (
                "for i in 0..-9223372036854775808 step -1 { }",
                ErrorCode::TooManyIterations,
            ),
            (
                "for i in 0..1000 { for j in 0..1000000 { } }",
                ErrorCode::TooManyIterations,
            ),
            (
                "for i in 0..4000000 { wait 0 for i }",
                ErrorCode::TooManyOps,
            ),
            (
                "for i in 0..4000000 { wait 0 for 1 }",
                ErrorCode::TooManyOps,
            ),
            ("for i in 0..4 step p0 { }", ErrorCode::ZeroStep),
            ("wait 0 for 1 / p0", ErrorCode::DivisionByZero),
            ("wait 0 for p0 - 1", ErrorCode::NegativeCount),
            (
                "load A[0] dims [9223372036854775807: 0]",
                ErrorCode::TransferTooLarge,
            ),
            (
                "load A[0] lines 9223372036854775807 of 32 bytes",
                ErrorCode::TransferTooLarge,
            ),
            (
                "load A[(p0 - 1) * 9223372036854775807 - 9]",
                ErrorCode::Overflow,
            ),
        ] {
            let started = std::time::Instant::now();
            let e = expand(body, 0).expect_err(body);
            assert_eq!(e.code, code, "{body}: {e}");
            assert!(started.elapsed().as_secs() < 5, "{body}");
        }
        let heavy = format!("for i in 0..4000000 {{ {} }}", "if i { }".repeat(1000));
        assert_eq!(
            expand(&heavy, 0).unwrap_err().code,
            ErrorCode::TooManyIterations
        );
    }

    #[test]
    fn full_and_valid_elements() {
        let item = expand(
            "load A[2] dims [4: 8 valid 3, 2: 1 valid 1] indices [0, 5, 9] async 1",
            0,
        )
        .unwrap();
        let t = item.transfers[0];
        assert_eq!(
            (t.full_elements, t.valid_elements, t.first_bit),
            (24, 9, 16)
        );
        assert_eq!(
            item.dims[t.dims.range()],
            [
                ResolvedDim {
                    extent: 3,
                    stride: 8
                },
                ResolvedDim {
                    extent: 1,
                    stride: 1
                }
            ]
        );
    }

    #[test]
    fn nothing_is_allocated_once_warm() {
        let text = "tilesim trace 1 axes 1 bounds off tensor A: 8 bit in [64] buffer b 1 body { \
            for i in 0..p0 { load A[i * p0] dims [i: 1, 4: p0 valid i % 4] indices [i, 2] writes [b] wait 0 for i } }";
        let bound = bind(
            text,
            &LaunchArgs {
                grid: vec![8],
                ..Default::default()
            },
        )
        .unwrap();
        let mut item = WorkItem::default();
        bound.expand([7, 0, 0], &mut item).unwrap();
        let room = |i: &WorkItem| {
            (
                i.ops.capacity(),
                i.transfers.capacity(),
                i.dims.capacity(),
                i.indices.capacity(),
                i.buffers.capacity(),
            )
        };
        let before = room(&item);
        for pid in 0..8 {
            bound.expand([pid, 0, 0], &mut item).unwrap();
            assert_eq!(room(&item), before);
        }
        assert!(bound.expand([8, 0, 0], &mut item).is_err());
    }
}
