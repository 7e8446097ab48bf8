//! The kernel library: traces written from a problem and a tile configuration.
//!
//! A [`KernelSpec`] is a kernel with its sizes and tiles, and a [`CostModel`]. [`generate`] writes
//! the trace, [`launch`] the grid and parameters of the problem. Sizes are parameters of the trace
//! wherever they can be, so that kernels which differ in sizes only share one trace (and one
//! digest). Sizes need not be multiples of tiles: edge tiles are masked, move only valid elements,
//! and stay inside their tensors (`bounds: strict`).
//!
//! ```
//! use tilesim_traces::kernels::{self, CostModel, Kernel, KernelSpec, Matmul};
//!
//! let kernel = Kernel::Matmul(Matmul::new(1000, 777, 4096, [128, 128, 64]));
//! let spec = KernelSpec::new(kernel, CostModel::default());
//! let trace = tilesim_traces::ValidTrace::try_from(kernels::generate(&spec)?)?;
//! let args = kernels::launch(&spec)?;
//! assert_eq!(args.grid, [8 * 7]);
//! println!("{}", tilesim_traces::to_text(&trace));
//! # Ok::<(), tilesim_traces::TraceError>(())
//! ```
//!
//! Costs of compute tiles come from a cycle table or are given by name, and otherwise from formulas
//! whose names stand in the trace (`source analytic "..."`). A tile at an edge costs what a whole
//! one costs; a `systolic` product skips the pieces of weights that an edge does not have.
//!
//! Where to look: [`cost`] formulas; [`args`] kernels from `name=value` options, with the description
//! a command line is built from; [`space`] lists of configurations; one file per kind of kernel.

pub mod args;
mod attention;
mod conv;
pub mod cost;
mod element;
mod matmul;
mod pointwise;
mod rows;
pub mod space;
mod write;

pub use attention::Attention;
pub use conv::{Conv, ConvLayout};
pub use cost::{CostModel, GivenCost, MatmulFormula, Work};
pub use element::ElementType;
pub use matmul::{Form, Matmul};
pub use pointwise::{Elementwise, Reduction};
pub use rows::{LayerNorm, Softmax};

use serde::{Deserialize, Serialize};

use crate::error::{ErrorCode, TextSpan, TraceError};
use crate::launch::LaunchArgs;
use crate::model::{Resources, Trace};

type Result<T> = std::result::Result<T, TraceError>;

/// Largest size of a problem along one axis.
pub const MAX_SIZE: u64 = 1 << 40;
/// Largest size of a tile along one axis.
pub const MAX_TILE: u64 = 1 << 20;
/// Most buffers per operand.
pub const MAX_STAGES: u32 = 64;
/// Most inputs of an elementwise kernel.
pub const MAX_INPUTS: u32 = 64;

/// Largest JSON form of a spec, in bytes.
pub const MAX_SPEC_BYTES: usize = 4 << 20;

/// A kernel and what its tiles cost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelSpec {
    /// The kernel.
    pub kernel: Kernel,
    /// What its compute tiles cost.
    #[serde(default)]
    pub cost: CostModel,
    /// What a work-item takes of a core besides scratchpad.
    #[serde(default)]
    pub resources: Resources,
}

/// A kernel with its problem and tile configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kernel {
    /// A matrix product, or a batch of them.
    Matmul(Matmul),
    /// A two-dimensional convolution as an implicit product.
    Conv(Conv),
    /// Softmax of rows.
    Softmax(Softmax),
    /// Layer normalisation of rows.
    LayerNorm(LayerNorm),
    /// Attention with online softmax.
    Attention(Attention),
    /// An elementwise operation.
    Elementwise(Elementwise),
    /// A sum along one axis.
    Reduction(Reduction),
}

impl KernelSpec {
    /// A kernel that takes nothing of a core but scratchpad.
    pub fn new(kernel: Kernel, cost: CostModel) -> Self {
        KernelSpec {
            kernel,
            cost,
            resources: Resources::default(),
        }
    }

    /// Reads a spec from JSON and checks it.
    ///
    /// # Errors
    ///
    /// Text that is no JSON or too long, a key or value that no kernel has (with the place in the
    /// text), a value out of range (with its path).
    pub fn from_json(text: &str) -> Result<Self> {
        if text.len() > MAX_SPEC_BYTES {
            let message = format!("a kernel of {} bytes", text.len());
            return Err(TraceError::new(ErrorCode::TooLarge, "kernel", message)
                .with_hint(format!("use at most {MAX_SPEC_BYTES}")));
        }
        let spec: Self = serde_json::from_str(text).map_err(|e| {
            let code = if e.is_data() {
                ErrorCode::BadValue
            } else {
                ErrorCode::Syntax
            };
            let place = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).max(1);
            TraceError::new(code, "kernel", e.to_string()).at(TextSpan {
                line: place(e.line()),
                column: place(e.column()),
                length: 1,
            })
        })?;
        spec.check()?;
        Ok(spec)
    }

    /// Whether every value is in range.
    ///
    /// # Errors
    ///
    /// The first that is not.
    pub fn check(&self) -> Result<()> {
        self.cost.check()?;
        match &self.kernel {
            Kernel::Matmul(k) => k.check(),
            Kernel::Conv(k) => k.check(),
            Kernel::Softmax(k) => k.check(),
            Kernel::LayerNorm(k) => k.check(),
            Kernel::Attention(k) => k.check(),
            Kernel::Elementwise(k) => k.check(),
            Kernel::Reduction(k) => k.check(),
        }
    }
}

/// Writes the trace of a kernel.
///
/// # Errors
///
/// A value out of range, a cost table of another length, a formula without an answer.
pub fn generate(spec: &KernelSpec) -> Result<Trace> {
    spec.check()?;
    let cost = &spec.cost;
    let trace = match &spec.kernel {
        Kernel::Matmul(k) => k.generate(cost),
        Kernel::Conv(k) => k.generate(cost),
        Kernel::Softmax(k) => k.generate(cost),
        Kernel::LayerNorm(k) => k.generate(cost),
        Kernel::Attention(k) => k.generate(cost),
        Kernel::Elementwise(k) => k.generate(cost),
        Kernel::Reduction(k) => k.generate(cost),
    }?;
    Ok(Trace {
        resources: spec.resources,
        ..trace
    })
}

/// Grid and parameters of the kernel's problem, for the trace that [`generate`] writes.
///
/// # Errors
///
/// A value out of range, or a grid that leaves 64 bits.
pub fn launch(spec: &KernelSpec) -> Result<LaunchArgs> {
    spec.check()?;
    let Grid { grid, params } = match &spec.kernel {
        Kernel::Matmul(k) => k.launch(),
        Kernel::Conv(k) => k.launch(),
        Kernel::Softmax(k) => k.launch(),
        Kernel::LayerNorm(k) => k.launch(),
        Kernel::Attention(k) => k.launch(),
        Kernel::Elementwise(k) => k.launch(),
        Kernel::Reduction(k) => k.launch(),
    }?;
    let mut args = LaunchArgs {
        grid,
        ..LaunchArgs::default()
    };
    for (name, value) in params {
        let value = i64::try_from(value).map_err(|_| overflow("kernel"))?;
        args.params.insert(name.to_owned(), value);
    }
    Ok(args)
}

/// What a kernel's problem asks of a launch.
struct Grid {
    grid: Vec<u64>,
    params: Vec<(&'static str, u64)>,
}

fn bad(path: &str, message: impl Into<String>, hint: &str) -> TraceError {
    TraceError::new(ErrorCode::BadValue, path, message).with_hint(hint)
}

fn overflow(path: &str) -> TraceError {
    TraceError::new(ErrorCode::TooLarge, path, "sizes too large to reckon with")
        .with_hint("use smaller sizes or tiles")
}

fn require(path: &str, value: u64, least: u64, most: u64) -> Result<()> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(bad(
        path,
        format!("a value of {value}"),
        &format!("use {least} to {most}"),
    ))
}

fn check_sizes(at: &str, sizes: &[(&str, u64)]) -> Result<()> {
    sizes
        .iter()
        .try_for_each(|(name, value)| require(&format!("{at}.{name}"), *value, 1, MAX_SIZE))
}

fn check_tile(at: &str, name: &str, tile: &[u64]) -> Result<()> {
    tile.iter()
        .enumerate()
        .try_for_each(|(i, value)| require(&format!("{at}.{name}[{i}]"), *value, 1, MAX_TILE))
}

fn check_stages(at: &str, stages: u32) -> Result<()> {
    require(
        &format!("{at}.stages"),
        u64::from(stages),
        0,
        u64::from(MAX_STAGES),
    )
}

/// A product of sizes of the trace.
fn product(sizes: &[u64]) -> Result<u64> {
    sizes
        .iter()
        .try_fold(1u64, |all, size| all.checked_mul(*size))
        .ok_or_else(|| overflow("kernel"))
}

/// A product of sizes of the grid.
fn grid_product(sizes: &[u64]) -> Result<u64> {
    sizes
        .iter()
        .try_fold(1u64, |all, size| all.checked_mul(*size))
        .ok_or_else(|| {
            TraceError::new(
                ErrorCode::GridOverflow,
                "launch.grid",
                "more work-items than 64 bits count",
            )
            .with_hint("use larger tiles")
        })
}
