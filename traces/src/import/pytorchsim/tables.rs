//! The small files of a kernel folder: cycle and unit tables, shapes, JSON descriptions.

use serde_json::Value as Json;

use crate::error::{ErrorCode, TextSpan, TraceError};
use crate::limits;

/// Rows of one table, at most.
pub const MAX_ROWS: usize = limits::MAX_TILES;

fn error(code: ErrorCode, file: &str, line: usize, message: impl Into<String>) -> TraceError {
    let line = u32::try_from(line).unwrap_or(u32::MAX);
    TraceError::new(code, file, message).at(TextSpan {
        line,
        column: 1,
        length: 1,
    })
}

/// The text of a file; other than UTF-8 is refused with the offset of the first bad byte.
pub(crate) fn text<'a>(bytes: &'a [u8], file: &str) -> Result<&'a str, TraceError> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    std::str::from_utf8(bytes).map_err(|e| {
        let line = bytes
            .get(..e.valid_up_to())
            .unwrap_or_default()
            .iter()
            .filter(|b| **b == b'\n')
            .count()
            + 1;
        error(
            ErrorCode::Syntax,
            file,
            line,
            format!("not UTF-8 text: bad byte at offset {}", e.valid_up_to()),
        )
    })
}

/// Lines that say something, with their numbers.
fn rows(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(i, l)| (i + 1, l.split('#').next().unwrap_or_default().trim()))
        .filter(|(_, l)| !l.is_empty())
}

fn number(word: &str, file: &str, line: usize) -> Result<u64, TraceError> {
    word.parse::<u64>().map_err(|_| {
        let shown: String = word.chars().take(40).collect();
        error(
            ErrorCode::BadValue,
            file,
            line,
            format!("`{shown}` is no whole number from 0 to 2^64 - 1"),
        )
    })
}

/// A cycle table: `cycles<TAB>overlap` for each compute tile; `#` starts a comment.
///
/// # Errors
/// A line that is not one or two whole numbers, cycles of 2^53 or more, or too many rows.
pub fn parse_cycle_table(bytes: &[u8], file: &str) -> Result<Vec<(u64, u64)>, TraceError> {
    let mut out = Vec::new();
    for (n, line) in rows(text(bytes, file)?) {
        let mut words = line.split_whitespace();
        let cycles = number(words.next().unwrap_or_default(), file, n)?;
        let overlap = match words.next() {
            Some(w) => number(w, file, n)?,
            None => 0,
        };
        if words.next().is_some() {
            return Err(error(
                ErrorCode::Syntax,
                file,
                n,
                "more than two columns in a cycle table",
            ));
        }
        if cycles >= limits::MAX_CYCLES || overlap >= limits::MAX_CYCLES {
            return Err(error(
                ErrorCode::BadValue,
                file,
                n,
                "cycles must stay below 2^53",
            ));
        }
        if out.len() >= MAX_ROWS {
            return Err(error(
                ErrorCode::TooLarge,
                file,
                n,
                format!("more than {MAX_ROWS} compute tiles"),
            ));
        }
        out.push((cycles, overlap));
    }
    Ok(out)
}

/// A row of a unit table.
#[derive(Clone, Debug, PartialEq)]
pub struct UnitRow {
    /// Which compute tile.
    pub tile: u64,
    /// Unit name.
    pub unit: String,
    /// What is counted.
    pub work: String,
    /// How much the unit takes a cycle.
    pub capacity_per_cycle: f64,
    /// How much the tile gives it.
    pub admitted: u64,
}

/// A unit table: tile, unit, unit of work, capacity per cycle and admitted work, tab-separated.
///
/// # Errors
/// A line of another form, or too many rows.
pub fn parse_units(bytes: &[u8], file: &str) -> Result<Vec<UnitRow>, TraceError> {
    let mut out = Vec::new();
    for (n, line) in rows(text(bytes, file)?) {
        let words: Vec<&str> = if line.contains('\t') {
            line.split('\t').map(str::trim).collect()
        } else {
            line.split_whitespace().collect()
        };
        let [tile, unit, work, capacity, admitted] = words.as_slice() else {
            return Err(error(
                ErrorCode::Syntax,
                file,
                n,
                format!(
                    "{} columns; a unit table has tile, unit, unit of work, capacity and admitted",
                    words.len()
                ),
            ));
        };
        if n == 1 && *tile == "tile" {
            continue;
        }
        let capacity_per_cycle: f64 = capacity
            .parse()
            .ok()
            .filter(|c: &f64| c.is_finite() && *c > 0.0)
            .ok_or_else(|| {
                error(
                    ErrorCode::BadValue,
                    file,
                    n,
                    "the capacity must be a number above 0",
                )
            })?;
        if unit.is_empty()
            || unit.len() > limits::MAX_NAME_BYTES
            || work.len() > limits::MAX_NAME_BYTES
        {
            return Err(error(
                ErrorCode::BadName,
                file,
                n,
                "a unit needs a name of at most 256 bytes",
            ));
        }
        if out.len() >= MAX_ROWS * 8 {
            return Err(error(ErrorCode::TooLarge, file, n, "too many rows"));
        }
        out.push(UnitRow {
            tile: number(tile, file, n)?,
            unit: (*unit).to_owned(),
            work: (*work).to_owned(),
            capacity_per_cycle,
            admitted: number(admitted, file, n)?,
        });
    }
    Ok(out)
}

/// A file of whole numbers, `columns` a line (0: any number of them).
///
/// # Errors
/// A word that is no whole number, or a line with another number of columns.
pub fn parse_numbers(
    bytes: &[u8],
    file: &str,
    columns: usize,
) -> Result<Vec<Vec<u64>>, TraceError> {
    let mut out = Vec::new();
    for (n, line) in rows(text(bytes, file)?) {
        let mut row = Vec::new();
        for w in line
            .split(|c: char| c.is_whitespace() || c == ',')
            .filter(|w| !w.is_empty())
        {
            row.push(number(w, file, n)?);
            if row.len() > 64 {
                return Err(error(
                    ErrorCode::TooLarge,
                    file,
                    n,
                    "more than 64 numbers on a line",
                ));
            }
        }
        if columns > 0 && row.len() != columns {
            return Err(error(
                ErrorCode::Syntax,
                file,
                n,
                format!("{} numbers, expected {columns}", row.len()),
            ));
        }
        if out.len() >= limits::MAX_TENSORS {
            return Err(error(
                ErrorCode::TooLarge,
                file,
                n,
                format!("more than {} lines", limits::MAX_TENSORS),
            ));
        }
        out.push(row);
    }
    Ok(out)
}

/// Cycles of each compute tile from gem5's statistics: every dump section holds the CPU's cycles
/// since the marker before; the last section is what runs after the last marker and is no tile.
///
/// # Errors
/// No section, a section without the CPU's `numCycles`, two different CPUs in one section, or a
/// value that is no whole number.
pub fn parse_gem5_stats(bytes: &[u8], file: &str) -> Result<Vec<u64>, TraceError> {
    let text = text(bytes, file)?;
    let mut sections: Vec<u64> = Vec::new();
    let mut open: Option<(usize, Option<u64>)> = None;
    let mut marked = false;
    let mut close = |open: &mut Option<(usize, Option<u64>)>| -> Result<(), TraceError> {
        match open.take() {
            None => Ok(()),
            Some((line, None)) => Err(error(
                ErrorCode::MissingKey,
                file,
                line,
                "a statistics section without system.cpu.numCycles",
            )),
            Some((line, Some(v))) => {
                if sections.len() > MAX_ROWS {
                    return Err(error(
                        ErrorCode::TooLarge,
                        file,
                        line,
                        "too many statistics sections",
                    ));
                }
                sections.push(v);
                Ok(())
            }
        }
    };
    let mut last = 0;
    for (i, line) in text.lines().enumerate() {
        let n = i + 1;
        last = n;
        if line.starts_with("---------- Begin") {
            if matches!(open, Some((_, Some(_)))) || (marked && open.is_some()) {
                return Err(error(
                    ErrorCode::Syntax,
                    file,
                    n,
                    "a statistics section begins inside another",
                ));
            }
            marked = true;
            open = Some((n, None));
            continue;
        }
        if line.starts_with("---------- End") {
            if open.is_none() {
                return Err(error(
                    ErrorCode::Syntax,
                    file,
                    n,
                    "a statistics section ends that never began",
                ));
            }
            close(&mut open)?;
            continue;
        }
        let mut words = line.split_whitespace();
        let Some(name) = words.next() else { continue };
        let is_cpu = name
            .strip_prefix("system.cpu")
            .and_then(|r| r.strip_suffix(".numCycles"))
            .is_some_and(|id| id.chars().all(|c| c.is_ascii_digit()));
        if !is_cpu {
            continue;
        }
        let value = words.next().unwrap_or_default();
        let cycles = value
            .parse::<u64>()
            .ok()
            .filter(|c| *c < limits::MAX_CYCLES)
            .ok_or_else(|| {
                let shown: String = value.chars().take(40).collect();
                error(
                    ErrorCode::BadValue,
                    file,
                    n,
                    format!("numCycles is `{shown}`, not a whole number below 2^53"),
                )
            })?;
        match &mut open {
            Some((_, slot @ None)) => *slot = Some(cycles),
            Some((_, Some(_))) => {
                return Err(error(
                    ErrorCode::BadValue,
                    file,
                    n,
                    "two numCycles in one section: one CPU is expected",
                ));
            }
            // Files without section markers: one section a value.
            None if !marked => {
                open = Some((n, Some(cycles)));
                close(&mut open)?;
            }
            None => {
                return Err(error(
                    ErrorCode::Syntax,
                    file,
                    n,
                    "numCycles outside a section",
                ));
            }
        }
    }
    if marked && open.is_some() {
        return Err(error(
            ErrorCode::Syntax,
            file,
            last.max(1),
            "the statistics end inside a section: a truncated file",
        )
        .with_hint("let gem5 finish and copy the file again"));
    }
    if sections.pop().is_none() {
        return Err(error(
            ErrorCode::MissingKey,
            file,
            1,
            "no statistics section with system.cpu.numCycles",
        ));
    }
    Ok(sections)
}

/// What `tile_types.json` says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TileTypes {
    /// For each tile, after how many cycles its successor may start; `None`: nothing overlaps.
    pub overlap_offset: Vec<Option<u64>>,
    /// Number of grid axes, if stated.
    pub axes: Option<usize>,
}

fn json(bytes: &[u8], file: &str) -> Result<Json, TraceError> {
    // serde_json refuses nesting beyond 128 levels by itself.
    serde_json::from_str(text(bytes, file)?).map_err(|e| {
        let span = TextSpan {
            line: u32::try_from(e.line()).unwrap_or(u32::MAX).max(1),
            column: u32::try_from(e.column()).unwrap_or(u32::MAX).max(1),
            length: 1,
        };
        TraceError::new(ErrorCode::Syntax, file, format!("not JSON: {e}")).at(span)
    })
}

/// Reads `tile_types.json`.
///
/// # Errors
/// Not JSON, or the keys have other types.
pub fn parse_tile_types(bytes: &[u8], file: &str) -> Result<TileTypes, TraceError> {
    let j = json(bytes, file)?;
    let mut out = TileTypes::default();
    if let Some(list) = j.get("overlap_offset") {
        let list = list.as_array().ok_or_else(|| {
            TraceError::new(ErrorCode::BadValue, file, "overlap_offset is not a list")
        })?;
        if list.len() > MAX_ROWS {
            return Err(TraceError::new(ErrorCode::TooLarge, file, "too many tiles"));
        }
        for v in list {
            out.overlap_offset.push(match v {
                Json::Null => None,
                v => Some(v.as_u64().ok_or_else(|| {
                    TraceError::new(
                        ErrorCode::BadValue,
                        file,
                        "an overlap offset is neither null nor a whole number",
                    )
                })?),
            });
        }
    }
    out.axes = match j.get("parallel_axes") {
        Some(Json::Array(a)) => Some(a.len()),
        Some(v) => v.as_u64().and_then(|n| usize::try_from(n).ok()),
        None => None,
    };
    Ok(out)
}

/// An argument that `kernel.json` describes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KernelArg {
    /// Its name, if given.
    pub name: Option<String>,
    /// Extents.
    pub shape: Vec<u64>,
    /// Bits per element, if the type is known.
    pub bits: Option<u32>,
}

/// What `kernel.json` says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KernelInfo {
    /// Kernel name.
    pub name: Option<String>,
    /// C++ files it names.
    pub sources: Vec<String>,
    /// Tensor arguments.
    pub args: Vec<KernelArg>,
}

/// Reads `kernel.json`.
///
/// # Errors
/// Not JSON, or arguments of another form.
pub fn parse_kernel_json(bytes: &[u8], file: &str) -> Result<KernelInfo, TraceError> {
    let j = json(bytes, file)?;
    let mut out = KernelInfo::default();
    for key in ["kernel_name", "name", "kernel"] {
        if let Some(n) = j.get(key).and_then(Json::as_str) {
            out.name = Some(n.chars().take(200).collect());
            break;
        }
    }
    sources(&j, &mut out.sources);
    if let Some(args) = j.get("args").and_then(Json::as_array) {
        if args.len() > limits::MAX_TENSORS {
            return Err(TraceError::new(
                ErrorCode::TooLarge,
                file,
                "too many arguments",
            ));
        }
        for a in args {
            let Some(shape) = a.get("shape").and_then(Json::as_array) else {
                continue;
            };
            let mut arg = KernelArg {
                name: a.get("name").and_then(Json::as_str).map(str::to_owned),
                ..Default::default()
            };
            for s in shape {
                arg.shape.push(s.as_u64().ok_or_else(|| {
                    TraceError::new(
                        ErrorCode::BadValue,
                        file,
                        "an argument's shape holds something other than whole numbers",
                    )
                })?);
            }
            arg.bits = a.get("dtype").and_then(Json::as_str).and_then(bits_of);
            out.args.push(arg);
        }
    }
    Ok(out)
}

/// Every string of the document that names a C++ file.
fn sources(j: &Json, out: &mut Vec<String>) {
    match j {
        Json::String(s) if s.ends_with(".cpp") && s.len() < 512 && out.len() < 64 => {
            out.push(s.clone())
        }
        Json::Array(a) => a.iter().for_each(|v| sources(v, out)),
        Json::Object(o) => o.values().for_each(|v| sources(v, out)),
        _ => {}
    }
}

fn bits_of(dtype: &str) -> Option<u32> {
    let name = dtype.rsplit('.').next().unwrap_or(dtype);
    Some(match name {
        "float" => 32,
        "double" | "long" => 64,
        "half" => 16,
        "bool" => 8,
        "int" => 32,
        _ => {
            // float32, bfloat16, int8, float8_e4m3fn, i32, f32, ...
            let start = name.find(|c: char| c.is_ascii_digit())?;
            let digits: String = name
                .chars()
                .skip(start)
                .take_while(char::is_ascii_digit)
                .collect();
            digits
                .parse()
                .ok()
                .filter(|b| (1..=limits::MAX_ELEMENT_BITS).contains(b))?
        }
    })
}
