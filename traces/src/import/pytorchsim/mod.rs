//! PyTorchSim kernel folders: a producer's C++ source with its tables, read as data.
//!
//! A folder holds the producer that PyTorchSim's compiler (or a person) wrote, the cycles of its
//! compute tiles, and descriptions of its tensors. [`import`] turns it into a [`Trace`]: loops stay
//! loops, program ids and shape arguments stay symbols, and C's integer types are kept exactly, with
//! the trace language's wrapping and truncating operators wherever wrap-around is possible. Nothing
//! in the folder is compiled, loaded or run.
//!
//! | file | meaning |
//! |---|---|
//! | `trace.cpp`, the file that `kernel.json` names, or the only `.cpp` | the producer |
//! | `trace_cycles.tsv` (or `cycles.tsv`) | cycles and overlap of each compute tile |
//! | `m5out/stats.txt` | gem5's statistics, in place of the cycle table |
//! | `tile_types.json` | overlap offsets of the tiles (with gem5's statistics), number of axes |
//! | `units.tsv` | what tiles ask of named units |
//! | `trace_tensor_shapes.txt`, `trace_tensors.txt` | rows, columns and element bytes; bytes |
//! | `trace_shape.txt`, `trace_axes.txt` | shape arguments of the launch; how many there are |
//! | `kernel.json` | kernel name, source, arguments |
//!
//! Anything in the C++ that is outside the
//! subset is refused with file, line, column and the construct. The subset is: integer constants and
//! arithmetic on all C integer types, casts, ternaries, arrays (nested too), compound literals,
//! structures of integers and arrays, enumerations, macros and conditionals of the preprocessor,
//! functions, lambdas and references, `if`, `switch`, `for`, `while`, `do`, `return`, `break`,
//! `continue`, `std::min`, `std::max`, `std::array`, and the `togsim_*` calls.
//!
//! A loop that steps by a constant to a bound stays a loop, also when variables are carried from
//! iteration to iteration in a way that has a closed form (counters, toggles, ring buffers, the value
//! of the iteration before). A loop is followed iteration by iteration only where a value could not
//! be expressed otherwise, and then only if its trip count is a small constant. A buffer, tag or tile
//! number that depends on a few cases becomes an `if` over them.
//!
//! ABI 11 to 13 pair a barrier with the latest asynchronous load on a tag and slot. Each pair becomes
//! a semaphore, and the barrier a wait for the elements of that load; a second barrier on the same
//! load waits for the same count, which is free. Their timing follows today's rules.

use crate::error::{ErrorCode, TraceError};
use crate::expr;
use crate::launch::LaunchArgs;
use crate::limits;
use crate::model::{
    Admission, Bounds, Buffer, CostSource, Dispatch, Expr, Header, Layout, Param, Resources, Role,
    Tensor, Tile, Trace,
};

mod cpp;
mod diag;
mod exec;
mod folder;
mod lower;
mod sym;
mod tables;
mod value;

use diag::{Diag, Pos, Res};
pub use folder::{KernelFolder, MAX_FILE, MAX_STATS, MAX_TOTAL, STATS};
use lower::Count;
pub use tables::{
    KernelArg, KernelInfo, TileTypes, UnitRow, parse_cycle_table, parse_gem5_stats,
    parse_kernel_json, parse_numbers, parse_tile_types, parse_units,
};

/// Choices of an import.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The trace ABI (11 to 15); inferred from the calls if absent.
    pub abi: Option<u32>,
    /// The producer's file name, if it is not the one that would be chosen.
    pub source: Option<String>,
    /// The kernel's name, if it is not the one that the folder gives.
    pub kernel: Option<String>,
    /// What a transfer outside its tensor means; default [`Bounds::Off`], because the shapes in a
    /// folder are those of one launch with leading axes folded together.
    pub bounds: Option<Bounds>,
}

/// How many work-items an axis has, given the shape arguments that the producer reads.
#[derive(Clone, Debug, PartialEq)]
pub enum AxisExtent {
    /// As many as this shape argument says.
    Shape(u32),
    /// Always so many: the producer does not ask the launch.
    Fixed(u64),
    /// A formula over shape arguments; parameter `k` of the expression is shape argument `k`.
    Formula(Expr),
}

/// Where tile cycles came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CycleSource {
    /// A cycle table.
    Table,
    /// gem5's statistics.
    Gem5,
    /// Nowhere: no launch can run the trace before it is given costs.
    None,
}

/// What an import found and assumed.
#[derive(Clone, Debug)]
pub struct Report {
    /// Name of the producer's file.
    pub source: String,
    /// The trace ABI of its calls.
    pub abi: u32,
    /// Whether that was inferred.
    pub abi_inferred: bool,
    /// Extent of each axis.
    pub grid: Vec<AxisExtent>,
    /// Shape arguments of the launch that the folder was written for.
    pub shape: Option<Vec<u64>>,
    /// Shape arguments that became parameters: parameter `i` of the trace is shape argument
    /// `params[i]`.
    pub params: Vec<u32>,
    /// Where tile cycles came from.
    pub cycles: CycleSource,
    /// Loop iterations that had to be followed one by one.
    pub unrolled: u64,
    /// Files of the folder that were read, in order.
    pub used: Vec<String>,
    /// What a reader should know.
    pub notes: Vec<String>,
}

/// A trace and how it came about.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The trace.
    pub trace: Trace,
    /// How it came about.
    pub report: Report,
}

impl Imported {
    /// The launch that gives the producer these shape arguments: grid and parameters.
    ///
    /// # Errors
    /// A shape argument is missing, or a formula has no value for them.
    pub fn launch(&self, shape: &[i64]) -> Result<LaunchArgs, TraceError> {
        let get = |k: u32| {
            shape.get(k as usize).copied().ok_or_else(|| {
                let m = format!("shape argument {k} is missing: the producer reads it");
                TraceError::new(ErrorCode::MissingParam, "launch.grid", m)
            })
        };
        let mut args = LaunchArgs::default();
        for (axis, e) in self.report.grid.iter().enumerate() {
            let n = match e {
                AxisExtent::Shape(k) => get(*k)?,
                AxisExtent::Fixed(n) => i64::try_from(*n).unwrap_or(i64::MAX),
                AxisExtent::Formula(f) => {
                    let fault = std::cell::Cell::new(None);
                    let env = ShapeEnv {
                        shape,
                        missing: &fault,
                    };
                    let v = expr::eval(f, &env).map_err(|e| {
                        TraceError::new(e.code(), format!("launch.grid[{axis}]"), e.what())
                    })?;
                    if let Some(k) = fault.get() {
                        get(k)?;
                    }
                    v
                }
            };
            args.grid.push(u64::try_from(n).unwrap_or(0));
        }
        for (p, k) in self.trace.params.iter().zip(&self.report.params) {
            args.params.insert(p.name.clone(), get(*k)?);
        }
        Ok(args)
    }
}

struct ShapeEnv<'a> {
    shape: &'a [i64],
    missing: &'a std::cell::Cell<Option<u32>>,
}

impl expr::Env for ShapeEnv<'_> {
    fn pid(&self, _: u8) -> i64 {
        0
    }
    fn grid(&self, _: u8) -> i64 {
        0
    }
    fn param(&self, index: usize) -> i64 {
        self.shape.get(index).copied().unwrap_or_else(|| {
            self.missing.set(u32::try_from(index).ok());
            1
        })
    }
    fn var(&self, _: usize) -> i64 {
        0
    }
}

/// Turns a kernel folder into a trace.
///
/// # Errors
/// Something in the folder is missing, malformed, too large, outside the C++ subset, or contradicts
/// another file. The path of the error is the file; its place is line and column there.
pub fn import(folder: &KernelFolder, options: &Options) -> Result<Imported, TraceError> {
    let mut used = Vec::new();
    let mut open = |name: &str| -> Option<&[u8]> {
        let bytes = folder.get(name)?;
        used.push(name.to_owned());
        Some(bytes)
    };
    if let Some(a) = options.abi
        && !(11..=15).contains(&a)
    {
        return Err(TraceError::new(
            ErrorCode::Version,
            "abi",
            format!("trace ABI {a}; 11 to 15 are known"),
        ));
    }
    let info = match open("kernel.json") {
        Some(b) => parse_kernel_json(b, "kernel.json")?,
        None => KernelInfo::default(),
    };
    let types = open("tile_types.json")
        .map(|b| parse_tile_types(b, "tile_types.json"))
        .transpose()?;
    let source = choose_source(folder, &info, options)?;
    let axes_file = match open("trace_axes.txt") {
        Some(b) => match parse_numbers(b, "trace_axes.txt", 1)?.as_slice() {
            [row] => row.first().copied(),
            _ => {
                return Err(TraceError::new(
                    ErrorCode::Syntax,
                    "trace_axes.txt",
                    "expected one number",
                ));
            }
        },
        None => types.as_ref().and_then(|t| t.axes).map(|n| n as u64),
    };
    let shape: Option<Vec<u64>> = match open("trace_shape.txt") {
        Some(b) => Some(
            parse_numbers(b, "trace_shape.txt", 0)?
                .into_iter()
                .flatten()
                .collect(),
        ),
        None => None,
    };
    if let (Some(n), Some(s)) = (axes_file, &shape)
        && n != s.len() as u64
    {
        let m = format!(
            "{} shape arguments, but the trace was made for {n}",
            s.len()
        );
        return Err(TraceError::new(ErrorCode::AxisCount, "trace_shape.txt", m));
    }
    let shape_count = axes_file
        .and_then(|n| usize::try_from(n).ok())
        .or(shape.as_ref().map(Vec::len));

    let bytes = open(&source)
        .ok_or_else(|| TraceError::new(ErrorCode::MissingKey, source.clone(), "no such file"))?;
    let text = tables::text(bytes, &source)?;
    let mut headers = Headers {
        folder,
        files: vec![source.clone()],
    };
    let run = |headers: &mut Headers<'_>| -> Res<(exec::Outcome, lower::Lowered)> {
        let assumed = options.abi.unwrap_or(15);
        let tokens = cpp::pp::preprocess(text, 0, assumed, headers)?;
        let unit = cpp::parse::parse(tokens)?;
        let outcome = exec::run(&unit, options.abi, shape_count)?;
        let lowered = lower::lower(&outcome.ir)?;
        Ok((outcome, lowered))
    };
    let (outcome, lowered) = run(&mut headers).map_err(|d| d.into_error(&headers.files))?;
    let files = headers.files;
    let fail = |code, pos: Pos, message: String| Diag::new(code, pos, message).into_error(&files);
    let mut notes = outcome.notes;
    notes.extend(lowered.notes.iter().cloned());

    // Costs.
    let mut cycles = CycleSource::None;
    let table: Option<Vec<(u64, u64)>> = if let Some((name, b)) = ["trace_cycles.tsv", "cycles.tsv"]
        .iter()
        .find_map(|n| Some((*n, folder.get(n)?)))
    {
        used.push(name.to_owned());
        cycles = CycleSource::Table;
        Some(parse_cycle_table(b, name)?)
    } else if let Some(b) = folder.get(STATS) {
        used.push(STATS.to_owned());
        cycles = CycleSource::Gem5;
        let measured = parse_gem5_stats(b, STATS)?;
        let offsets = types
            .as_ref()
            .map(|t| &t.overlap_offset)
            .filter(|o| !o.is_empty());
        if let Some(o) = offsets
            && o.len() != measured.len()
        {
            let m = format!(
                "{} measured sections for {} compute tiles",
                measured.len(),
                o.len()
            );
            return Err(TraceError::new(ErrorCode::BadValue, STATS, m)
                .with_hint("a marker fired another number of times than there are tiles"));
        }
        let at = |i: usize| offsets.and_then(|o| o.get(i)).copied().flatten();
        Some(
            measured
                .iter()
                .enumerate()
                .map(|(i, c)| (*c, at(i).map_or(0, |o| c.saturating_sub(o))))
                .collect(),
        )
    } else {
        notes.push(
            "no cycle table and no gem5 statistics: the compute tiles have no cost yet".into(),
        );
        None
    };
    let last_tile = lowered.tiles.last_key_value().map(|(t, p)| (*t, *p));
    let rows = match (&table, last_tile) {
        (Some(t), Some((tile, pos))) if tile as usize >= t.len() => {
            return Err(fail(
                ErrorCode::UnknownTile,
                pos,
                format!(
                    "compute tile {tile}, but the cycle table has {} rows",
                    t.len()
                ),
            ));
        }
        (Some(t), _) => {
            if cycles == CycleSource::Gem5 && types.is_none() && t.len() != lowered.tiles.len() {
                let m = format!(
                    "{} measured sections for {} compute tiles",
                    t.len(),
                    lowered.tiles.len()
                );
                return Err(TraceError::new(ErrorCode::BadValue, STATS, m)
                    .with_hint("a marker fired another number of times than there are tiles"));
            }
            t.len()
        }
        (None, last) => last.map_or(0, |(t, _)| t as usize + 1),
    };
    let mut tiles: Vec<Tile> = (0..rows)
        .map(|i| {
            let row = table.as_ref().and_then(|t| t.get(i)).copied();
            Tile {
                name: format!("tile{i}"),
                unit: None,
                cycles: row.map(|r| r.0),
                overlap: row.map_or(0, |r| r.1),
                source: if cycles == CycleSource::None {
                    CostSource::Declared
                } else {
                    CostSource::Measured
                },
                admissions: Vec::new(),
            }
        })
        .collect();
    for name in ["units.tsv", "trace_units.tsv"] {
        let Some(b) = folder.get(name) else { continue };
        used.push(name.to_owned());
        for row in parse_units(b, name)? {
            let tile = usize::try_from(row.tile)
                .ok()
                .and_then(|t| tiles.get_mut(t))
                .ok_or_else(|| {
                    let m = format!("compute tile {}, but there are {rows}", row.tile);
                    TraceError::new(ErrorCode::UnknownTile, name, m)
                })?;
            if tile.admissions.iter().any(|a| a.unit == row.unit) {
                let m = format!("tile {} states unit {} twice", row.tile, row.unit);
                return Err(TraceError::new(ErrorCode::BadValue, name, m));
            }
            if tile.admissions.len() >= limits::MAX_ADMISSIONS {
                return Err(TraceError::new(
                    ErrorCode::TooLarge,
                    name,
                    format!("too many units of tile {}", row.tile),
                ));
            }
            tile.admissions.push(Admission {
                unit: row.unit,
                work: row.work,
                capacity_per_cycle: row.capacity_per_cycle,
                admitted: row.admitted,
            });
        }
        break;
    }

    let buffers = buffers(
        &outcome.buffers,
        outcome.buffers_pos,
        &lowered,
        outcome.abi,
        &mut notes,
        &fail,
    )?;
    let tensors = tensors(folder, &info, &lowered, &mut used, &mut notes, &fail)?;

    // The grid.
    let mut grid = Vec::new();
    for c in &lowered.counts {
        grid.push(match c {
            Count::Shape(k) => AxisExtent::Shape(*k),
            Count::Fixed(n) => AxisExtent::Fixed(u64::try_from(*n).unwrap_or(0)),
            Count::Formula(f) => AxisExtent::Formula(lower::formula(f).ok_or_else(|| {
                TraceError::new(
                    ErrorCode::Unsupported,
                    source.clone(),
                    "the number of work-items is too complicated",
                )
            })?),
        });
    }
    for (a, e) in grid.iter().enumerate() {
        match e {
            AxisExtent::Fixed(n) => notes.push(format!(
                "axis {a} always has {n} work-items: the producer says so itself"
            )),
            AxisExtent::Formula(_) => notes.push(format!(
                "axis {a} has a number of work-items computed from shape arguments"
            )),
            AxisExtent::Shape(_) => {}
        }
    }
    let params = lowered
        .params
        .iter()
        .map(|k| Param {
            name: format!("shape{k}"),
            default: shape
                .as_ref()
                .and_then(|s| s.get(*k as usize))
                .and_then(|v| i64::try_from(*v).ok()),
        })
        .collect();
    if outcome.unrolled > 0 {
        notes.push(format!(
            "{} loop iterations were followed one by one",
            outcome.unrolled
        ));
    }

    let kernel = options.kernel.clone().or(info.name).unwrap_or_else(|| {
        let stem = source.rsplit('/').next().unwrap_or(&source);
        stem.strip_suffix(".cpp").unwrap_or(stem).to_owned()
    });
    let header = Header {
        kernel,
        producer: "pytorchsim".into(),
        producer_version: format!("trace ABI {}", outcome.abi),
        measured_on: None,
        origins: vec![("source".into(), source.clone())],
    };
    let trace = Trace {
        header,
        axes: lowered.counts.len() as u8,
        params,
        tensors,
        bounds: options.bounds.unwrap_or(Bounds::Off),
        buffers,
        tiles,
        body: lowered.body,
        dispatch: Dispatch {
            order: lowered.order,
            key: None,
        },
        resources: Resources::default(),
    };
    let report = Report {
        source,
        abi: outcome.abi,
        abi_inferred: outcome.abi_inferred,
        grid,
        shape,
        params: lowered.params,
        cycles,
        unrolled: outcome.unrolled,
        used,
        notes,
    };
    Ok(Imported { trace, report })
}

/// Imports a producer's source alone: its calls and loops, without tables.
///
/// # Errors
/// As [`import`].
pub fn import_source(source: &[u8], options: &Options) -> Result<Imported, TraceError> {
    let mut folder = KernelFolder::new();
    folder.add("trace.cpp", source)?;
    import(
        &folder,
        &Options {
            source: None,
            ..options.clone()
        },
    )
}

fn choose_source(
    folder: &KernelFolder,
    info: &KernelInfo,
    options: &Options,
) -> Result<String, TraceError> {
    if let Some(s) = &options.source {
        return Ok(s.clone());
    }
    for s in &info.sources {
        let base = s.rsplit('/').next().unwrap_or(s);
        for name in [s.as_str(), base] {
            if folder.get(name).is_some() {
                return Ok(name.to_owned());
            }
        }
    }
    if folder.get("trace.cpp").is_some() {
        return Ok("trace.cpp".into());
    }
    let all: Vec<&str> = folder
        .names()
        .filter(|n| n.ends_with(".cpp") || n.ends_with(".cc"))
        .collect();
    match all.as_slice() {
        [one] => Ok((*one).to_owned()),
        [] => Err(TraceError::new(ErrorCode::MissingKey, "", "the folder holds no C++ producer")
            .with_hint("a kernel folder has trace.cpp beside its cycle table; a shared object alone needs `tilesim record`")),
        several => Err(TraceError::new(ErrorCode::BadValue, "", format!("{} C++ files and no trace.cpp", several.len()))
            .with_hint("name the producer")),
    }
}

struct Headers<'a> {
    folder: &'a KernelFolder,
    files: Vec<String>,
}

impl cpp::pp::Headers for Headers<'_> {
    fn header(&mut self, name: &str, pos: Pos) -> Res<Option<(u16, String)>> {
        let name = name.strip_prefix("./").unwrap_or(name);
        let Some(bytes) = self.folder.get(name) else {
            return Ok(None);
        };
        let text = tables::text(bytes, name).map_err(|e| Diag::syntax(pos, e.to_string()))?;
        self.files.push(name.to_owned());
        let file = u16::try_from(self.files.len() - 1)
            .map_err(|_| Diag::limit(pos, "too many includes"))?;
        Ok(Some((file, text.to_owned())))
    }
}

type Fail<'a> = &'a dyn Fn(ErrorCode, Pos, String) -> TraceError;

fn buffers(
    table: &Option<Vec<u64>>,
    table_pos: Option<Pos>,
    lowered: &lower::Lowered,
    abi: u32,
    notes: &mut Vec<String>,
    fail: Fail<'_>,
) -> Result<Vec<Buffer>, TraceError> {
    let used = lowered
        .buffers
        .last_key_value()
        .map_or(0, |(b, _)| *b as usize + 1);
    let mut bytes: Vec<u64> = match table {
        Some(t) if t.len() > limits::MAX_BUFFERS => {
            return Err(fail(
                ErrorCode::TooLarge,
                table_pos.unwrap_or_default(),
                format!(
                    "{} scratchpad buffers; at most {}",
                    t.len(),
                    limits::MAX_BUFFERS
                ),
            ));
        }
        Some(t) => t.clone(),
        None => Vec::new(),
    };
    if table.is_some() {
        // A moved buffer without a size cannot be modelled; one that only compute tiles name is virtual.
        if let Some((b, u)) = lowered
            .buffers
            .iter()
            .find(|(b, u)| u.moved && **b as usize >= bytes.len())
        {
            return Err(fail(
                ErrorCode::UnknownBuffer,
                u.pos,
                format!(
                    "buffer {b} is moved, but togsim_spad_buffer_bytes has {} entries",
                    bytes.len()
                ),
            ));
        }
        if used > bytes.len() {
            bytes.resize(used, 0);
        }
    } else {
        if abi >= 15 && lowered.buffers.values().any(|u| u.moved) {
            let u = lowered.buffers.values().find(|u| u.moved);
            return Err(fail(
                ErrorCode::UnknownBuffer,
                u.map(|u| u.pos).unwrap_or_default(),
                "the producer states no sizes of scratchpad buffers (togsim_spad_buffer_bytes)"
                    .into(),
            ));
        }
        bytes.resize(used, 0);
        for (b, u) in &lowered.buffers {
            if let Some(slot) = bytes.get_mut(*b as usize)
                && u.moved
            {
                *slot = u.bytes;
            }
        }
        if used > 0 {
            notes.push(
                "scratchpad buffers are sized by the transfers that fill or drain them".into(),
            );
        }
    }
    Ok(bytes
        .into_iter()
        .enumerate()
        .map(|(i, bytes)| Buffer {
            name: format!("b{i}"),
            bytes,
        })
        .collect())
}

fn tensors(
    folder: &KernelFolder,
    info: &KernelInfo,
    lowered: &lower::Lowered,
    used: &mut Vec<String>,
    notes: &mut Vec<String>,
    fail: Fail<'_>,
) -> Result<Vec<Tensor>, TraceError> {
    let shapes = match folder.get("trace_tensor_shapes.txt") {
        Some(b) => {
            used.push("trace_tensor_shapes.txt".into());
            Some(parse_numbers(b, "trace_tensor_shapes.txt", 3)?)
        }
        None => None,
    };
    let sizes = match folder.get("trace_tensors.txt") {
        Some(b) => {
            used.push("trace_tensors.txt".into());
            Some(parse_numbers(b, "trace_tensors.txt", 1)?)
        }
        None => None,
    };
    // (extents, bits) of each argument.
    let mut rows: Option<Vec<(Vec<u64>, u32)>> = None;
    if let Some(list) = &shapes {
        let mut out = Vec::new();
        for (i, r) in list.iter().enumerate() {
            let [rows, cols, bytes] = r.as_slice() else {
                continue;
            };
            let bits = bytes.checked_mul(8).and_then(|b| u32::try_from(b).ok());
            let bits = bits
                .filter(|b| (1..=limits::MAX_ELEMENT_BITS).contains(b))
                .ok_or_else(|| {
                    TraceError::new(
                        ErrorCode::BadValue,
                        "trace_tensor_shapes.txt",
                        format!("tensor {i} has elements of {bytes} bytes"),
                    )
                })?;
            let total = rows
                .checked_mul(*cols)
                .and_then(|n| n.checked_mul(*bytes))
                .ok_or_else(|| {
                    TraceError::new(
                        ErrorCode::Overflow,
                        "trace_tensor_shapes.txt",
                        format!("tensor {i} has more than 2^64 bytes"),
                    )
                })?;
            if let Some(said) = sizes
                .as_ref()
                .and_then(|s| s.get(i))
                .and_then(|r| r.first())
                && *said != total
            {
                let m = format!(
                    "tensor {i} has {said} bytes here and {total} in trace_tensor_shapes.txt"
                );
                return Err(TraceError::new(ErrorCode::BadValue, "trace_tensors.txt", m));
            }
            out.push((vec![*rows, *cols], bits));
        }
        if let Some(s) = &sizes
            && s.len() != out.len()
        {
            let m = format!(
                "{} tensors here and {} in trace_tensor_shapes.txt",
                s.len(),
                out.len()
            );
            return Err(TraceError::new(ErrorCode::BadValue, "trace_tensors.txt", m));
        }
        rows = Some(out);
    } else if let Some(s) = &sizes {
        let mut out = Vec::new();
        for (i, r) in s.iter().enumerate() {
            let bytes = r.first().copied().unwrap_or(0);
            let bits = lowered.args.get(&(i as u32)).map_or(8, |a| a.bits);
            let n = u128::from(bytes)
                .saturating_mul(8)
                .div_ceil(u128::from(bits.max(1)));
            out.push((vec![u64::try_from(n).unwrap_or(u64::MAX)], bits));
        }
        rows = Some(out);
    } else if !info.args.is_empty() {
        rows = Some(
            info.args
                .iter()
                .enumerate()
                .map(|(i, a)| {
                    let bits = a
                        .bits
                        .or(lowered.args.get(&(i as u32)).map(|u| u.bits))
                        .unwrap_or(32);
                    (
                        if a.shape.is_empty() {
                            vec![1]
                        } else {
                            a.shape.clone()
                        },
                        bits,
                    )
                })
                .collect(),
        );
    }
    let last = lowered
        .args
        .last_key_value()
        .map(|(a, u)| (*a as usize, u.pos));
    let count = match (&rows, last) {
        (Some(r), Some((a, pos))) if a >= r.len() => {
            return Err(fail(
                ErrorCode::UnknownTensor,
                pos,
                format!("tensor {a}, but the folder describes {}", r.len()),
            ));
        }
        (Some(r), _) => r.len(),
        (None, last) => {
            if last.is_some() {
                notes.push(
                    "the folder says nothing about its tensors: give their extents at launch"
                        .into(),
                );
            }
            last.map_or(0, |(a, _)| a + 1)
        }
    };
    let mut out: Vec<Tensor> = Vec::new();
    for i in 0..count {
        let u = lowered.args.get(&(i as u32));
        let (extents, bits) = match rows.as_ref().and_then(|r| r.get(i)) {
            Some((e, b)) => (e.clone(), *b),
            None => (vec![1], u.map_or(32, |u| u.bits)),
        };
        if extents.len() > limits::MAX_TENSOR_AXES {
            return Err(TraceError::new(
                ErrorCode::TooLarge,
                "kernel.json",
                format!("tensor {i} has too many axes"),
            ));
        }
        let mut list = Vec::new();
        for e in &extents {
            list.push(Expr::Const(i64::try_from(*e).map_err(|_| {
                TraceError::new(
                    ErrorCode::Overflow,
                    format!("tensor {i}"),
                    "an extent beyond 2^63",
                )
            })?));
        }
        let named = info.args.get(i).and_then(|a| a.name.clone()).filter(|n| {
            !n.is_empty()
                && n.len() <= 64
                && n.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
                && n.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && !out.iter().any(|t| t.name == *n)
        });
        out.push(Tensor {
            name: named.unwrap_or_else(|| format!("arg{i}")),
            element_bits: bits,
            role: match u.map(|u| (u.loaded, u.stored)) {
                Some((true, true)) => Role::InOut,
                Some((false, true)) => Role::Out,
                _ => Role::In,
            },
            extents: list,
            layout: Layout::RowMajor,
        });
    }
    Ok(out)
}
