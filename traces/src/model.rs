//! The data model of a trace: what ONE work-item of a kernel does.
//!
//! Everything here is plain data. A `Trace` may come from a stranger, so nothing in this module is
//! trusted until [`crate::validate()`] has accepted it.

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub u32);
        impl $name {
            /// The id as an index into the table it names a row of.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

id!(/** A row of [`Trace::tensors`]. */ TensorId);
id!(/** A row of [`Trace::params`]. */ ParamId);
id!(/** A row of [`Trace::buffers`]. */ BufferId);
id!(/** A row of [`Trace::tiles`]. */ TileId);
id!(/** A semaphore; any number, local to the work-item. */ SemId);
id!(/** A loop variable: the nesting depth of its loop, outermost 0, so names play no part. */ VarId);

/// One kernel: the program of one work-item, with symbolic addresses and loop bounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// Where the trace comes from; only `kernel` and `measured_on` are part of the digest.
    pub header: Header,
    /// How many program ids the kernel has: 1 to 3.
    pub axes: u8,
    /// Integer parameters, given at launch.
    pub params: Vec<Param>,
    /// Tensors in argument order (the default placement packs them in this order).
    pub tensors: Vec<Tensor>,
    /// What a transfer outside its tensor means.
    pub bounds: Bounds,
    /// Scratchpad buffers.
    pub buffers: Vec<Buffer>,
    /// Compute tiles and what they cost.
    pub tiles: Vec<Tile>,
    /// The program.
    pub body: Vec<Stmt>,
    /// In which order the work-items of a grid are handed to the cores.
    pub dispatch: Dispatch,
    /// What a work-item takes of a core besides scratchpad.
    pub resources: Resources,
}

/// Where a trace comes from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Kernel name.
    pub kernel: String,
    /// The program that wrote the trace.
    pub producer: String,
    /// Its version.
    pub producer_version: String,
    /// The machine the tile costs were measured on, if they were.
    pub measured_on: Option<MeasuredOn>,
    /// Free-form origins: (name, value) pairs, in file order.
    pub origins: Vec<(String, String)>,
}

/// The machine that tile costs were measured on. A launch on a machine that differs is refused
/// unless the launch allows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredOn {
    /// Vector lanes.
    pub lanes: Option<u32>,
    /// Vector length in bits.
    pub vector_bits: Option<u32>,
    /// Systolic array rows.
    pub array_rows: Option<u32>,
    /// Systolic array columns.
    pub array_cols: Option<u32>,
    /// Element type, for example `f32`.
    pub element: Option<String>,
}

/// An integer parameter of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Param {
    /// Its name.
    pub name: String,
    /// The value of a launch that gives none.
    pub default: Option<i64>,
}

/// What the kernel does with a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Read.
    In,
    /// Written.
    Out,
    /// Read and written.
    InOut,
}

/// How a tensor's elements lie in memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Layout {
    /// Last axis contiguous.
    RowMajor,
    /// Tiles of these extents (one per axis), row-major inside and among themselves; extents are
    /// padded up to whole tiles. Offsets of transfers count elements in this storage order, padding
    /// included: a transfer that means rows and columns computes them.
    Tiled(Vec<u64>),
}

/// A tensor argument.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Bits per element (4, 8, 16, 32, 64, ...).
    pub element_bits: u32,
    /// Read, written, or both.
    pub role: Role,
    /// Extents in elements, over parameters and grid; a launch may override them.
    pub extents: Vec<Expr>,
    /// How elements lie in memory.
    pub layout: Layout,
}

/// What a transfer that leaves its tensor means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Bounds {
    /// It is an error.
    #[default]
    Strict,
    /// It is counted in the result (for imports whose extents are not known to be true).
    Off,
}

/// A scratchpad buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffer {
    /// Its name.
    pub name: String,
    /// Bytes of scratchpad; 0 for a virtual buffer, for example the weights inside a systolic array.
    pub bytes: u64,
}

/// The unit a compute op runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Unit {
    /// The vector unit.
    Vector,
    /// A systolic array, streaming against preloaded weights.
    Matmul,
    /// A systolic array, loading weights.
    Preload,
    /// The cross-lane unit.
    CrossLane,
}

/// Where a tile's cycles come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CostSource {
    /// Measured by a cycle-accurate simulator or hardware.
    Measured,
    /// A formula; the text names it.
    Analytic(String),
    /// Declared by whoever wrote the trace.
    Declared,
}

/// A compute tile and its cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tile {
    /// Its name.
    pub name: String,
    /// The unit it was measured on, when the trace ties the tile to one.
    pub unit: Option<Unit>,
    /// Core cycles; `None` for a tile without a cost, which no launch may run. Below 2^53.
    pub cycles: Option<u64>,
    /// Core cycles by which its successor on the same unit may overlap it.
    pub overlap: u64,
    /// Where `cycles` comes from.
    pub source: CostSource,
    /// What the tile asks of named units, for utilisation and splitting.
    pub admissions: Vec<Admission>,
}

/// What a tile asks of one unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Admission {
    /// Unit name, for example `Systolic`.
    pub unit: String,
    /// What is counted, for example `rows`.
    pub work: String,
    /// How much the unit takes per core cycle.
    pub capacity_per_cycle: f64,
    /// How much the tile gives it.
    pub admitted: u64,
}

/// In which order work-items are dispatched.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Dispatch {
    /// Axes, slowest first; empty means 0, 1, 2 (last axis fastest).
    pub order: Vec<u8>,
    /// Sort key over program ids, grid and parameters; ties keep the order above.
    pub key: Option<Expr>,
}

/// What one work-item takes of a core while it is resident, besides scratchpad. Machines whose
/// residency counts these admit no more work-items than fit; 0 counts nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Resources {
    /// Registers, of all its threads together.
    pub registers: u64,
    /// Threads.
    pub threads: u64,
}

/// One statement of the body.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Stmt {
    /// `for v in lo..hi step s`.
    For(For),
    /// `if`.
    If(If),
    /// A DMA transfer.
    Dma(Dma),
    /// A compute tile.
    Compute(Compute),
    /// A wait on a semaphore.
    Wait(Wait),
}

/// A counted loop. `step` may be negative; it must not be 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct For {
    /// The loop variable; equals the number of enclosing loops.
    pub var: VarId,
    /// Its name, for people (not part of the digest).
    pub name: String,
    /// First value.
    pub lo: Expr,
    /// The value the variable stays below (above, for a negative step).
    pub hi: Expr,
    /// Increment.
    pub step: Expr,
    /// Statements.
    pub body: Vec<Stmt>,
}

/// A condition: anything but 0 is true.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct If {
    /// The condition.
    pub cond: Expr,
    /// Statements when it holds.
    pub then: Vec<Stmt>,
    /// Statements when it does not.
    pub otherwise: Vec<Stmt>,
}

/// Which way a transfer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Direction {
    /// DRAM to scratchpad.
    Load,
    /// Scratchpad to DRAM.
    Store,
}

/// One dimension of a transfer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dim {
    /// Elements along it.
    pub extent: Expr,
    /// Elements between neighbours; may be negative or 0.
    pub stride: Expr,
    /// How many of `extent` are valid (masked edge tiles move only these); `None`: all.
    pub valid: Option<Expr>,
}

/// Where an indirect transfer's lines lie.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Indirect {
    /// Element offsets, added to the op's offset; each moves the op's dims once.
    Indices(Vec<Expr>),
    /// Only a count of memory lines is known; they are laid out one after another from the offset.
    Lines {
        /// How many lines.
        count: Expr,
        /// Bytes of each.
        bytes: u32,
    },
}

/// A DMA transfer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dma {
    /// Load or store.
    pub direction: Direction,
    /// The tensor it touches.
    pub tensor: TensorId,
    /// First element, relative to the tensor.
    pub offset: Expr,
    /// Dimensions, outermost first. No dimension means one element.
    pub dims: Vec<Dim>,
    /// Bits per element as moved.
    pub element_bits: u32,
    /// `Some(semaphore)` for an asynchronous transfer; `None` for a blocking one.
    pub semaphore: Option<SemId>,
    /// Buffers read: what a store stores; what must be complete before a load starts.
    pub reads: Vec<BufferId>,
    /// Buffers written (loads).
    pub writes: Vec<BufferId>,
    /// Gather or scatter.
    pub indirect: Option<Indirect>,
}

/// A compute op.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compute {
    /// Which tile of the cost table.
    pub tile: TileId,
    /// The unit it runs on.
    pub unit: Unit,
    /// Buffers read.
    pub reads: Vec<BufferId>,
    /// Buffers written.
    pub writes: Vec<BufferId>,
}

/// A wait until every asynchronous load issued on the semaphore since the last wait has arrived.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wait {
    /// The semaphore.
    pub semaphore: SemId,
    /// Elements those loads move (full dims; masks do not count).
    pub expected: Expr,
}

/// An integer expression with i64 values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Expr {
    /// A literal.
    Const(i64),
    /// Program id of an axis.
    Pid(u8),
    /// Grid extent of an axis.
    Grid(u8),
    /// A parameter.
    Param(ParamId),
    /// An enclosing loop's variable.
    Var(VarId),
    /// One operand.
    Unary(UnaryOp, Box<Expr>),
    /// Two operands.
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
    /// `select(c, a, b)`: a if c is not 0, else b; only the chosen one is evaluated.
    Select(Box<Expr>, Box<Expr>, Box<Expr>),
}

/// Operators on one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum UnaryOp {
    /// Checked negation.
    Neg,
    /// 1 if the operand is 0, else 0.
    Not,
    /// Bitwise complement.
    BitNot,
    /// Keep the low 8 bits, sign-extended.
    TruncI8,
    /// Keep the low 8 bits, zero-extended.
    TruncU8,
    /// Keep the low 16 bits, sign-extended.
    TruncI16,
    /// Keep the low 16 bits, zero-extended.
    TruncU16,
    /// Keep the low 32 bits, sign-extended.
    TruncI32,
    /// Keep the low 32 bits, zero-extended.
    TruncU32,
}

/// Operators on two operands. Those without a prefix are checked: overflow and division by zero are
/// errors. `Wrap*` keep the low 64 bits. `U*` read both operands as unsigned 64-bit numbers. `C*`
/// follow C: division truncates toward zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum BinaryOp {
    Add,
    Sub,
    Mul,
    /// Rounds toward minus infinity.
    Div,
    /// Has the sign of the divisor.
    Mod,
    Min,
    Max,
    /// Checked: no bit may be lost; the count is 0 to 63.
    Shl,
    /// Arithmetic; the count is 0 to 63.
    Shr,
    And,
    Or,
    Xor,
    Lt,
    Le,
    Gt,
    Ge,
    Eq,
    Ne,
    WrapAdd,
    WrapSub,
    WrapMul,
    WrapShl,
    /// Truncating signed division; `MIN / -1` wraps.
    CDiv,
    /// Its remainder, with the sign of the dividend.
    CRem,
    UDiv,
    URem,
    UShr,
    ULt,
    ULe,
}
