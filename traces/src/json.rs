//! The JSON form of a work-item program, read only.
//!
//! A file is one object. Required: `axes` (1 to 3), `tensors` (rows `[rows, cols, element bytes]`,
//! any number of extents before the last), `spad_buffer_bytes`, `cycle_table` (rows
//! `[cycles, overlap]`, or the name of a file of such rows) and `body`. Optional: `name`, `note`,
//! `grids`, `bounds` (`"off"` or `"strict"`), `registers` and `threads` (what a work-item takes of a
//! core), `must_refuse`, `compute_types` (documentation of the
//! `ct` numbers), `unit_table` (the name of a file of rows `tile unit work capacity admitted`).
//!
//! Ops of a body, each an object with a key `op`:
//!
//! - `loop`: `var`, `start`, `stop`, `step`, `body`
//! - `dma`: `dir` (`load`, `store`), `arg`, `offset_elems`, `dims`, `strides`, `elem_bits`,
//!   `is_async`, `sem`, `reads`, `writes`, `indirect` (0; or `{"indices": [...]}`; or
//!   `{"lines": count, "line_bytes": bytes}`)
//! - `wait`: `sem`, `expected`
//! - `compute`: `tile`, `ct` (0 vector, 1 matmul, 2 preload, 3 cross-lane), `reads`, `writes`
//!
//! Wherever a value may vary it is an integer or an expression as in the text form, over `p0 p1 p2`,
//! `g0 g1 g2` and loop variables; `/` and `%` round down. Work-items are dispatched first axis
//! outermost. Tensors are named `arg0`, `arg1`, ..., buffers `b0`, ..., tiles `t0`, ...

use serde_json::{Map, Value};

use crate::error::{ErrorCode, TraceError, closest};
use crate::limits::{MAX_JSON_BYTES, MAX_STMT_DEPTH, MAX_STMTS, MAX_TILES};
use crate::model::*;
use crate::syntax::{Names, parse_expr};

/// What a JSON file holds: a trace and remarks beside it.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonImport {
    /// The trace, not yet validated.
    pub trace: Trace,
    /// Grids that the file suggests.
    pub grids: Vec<Vec<u64>>,
    /// The file says that a simulator must refuse it.
    pub must_refuse: bool,
    /// The file's remark.
    pub note: Option<String>,
}

/// Gives the text of a file that a JSON trace names, or says why it cannot.
pub type Resolver<'a> = &'a dyn Fn(&str) -> Result<String, String>;

type Result<T, E = TraceError> = std::result::Result<T, E>;

/// A resolver for traces that name no files.
pub fn no_files(name: &str) -> Result<String, String> {
    Err(format!(
        "a file cannot be read from here; put the rows of {name:?} into the trace"
    ))
}

/// Reads the JSON form.
///
/// # Errors
///
/// Anything that is not exactly the documented form, with the path of the offending value.
pub fn import(text: &str, resolve: Resolver<'_>) -> Result<JsonImport> {
    if text.len() > MAX_JSON_BYTES {
        let message = format!("a JSON text of {} bytes", text.len());
        return Err(TraceError::new(ErrorCode::TooLarge, "", message)
            .with_hint(format!("use at most {MAX_JSON_BYTES}, or the text form")));
    }
    let value: Value = serde_json::from_str(text).map_err(|e| {
        let at = crate::error::TextSpan {
            line: e.line().try_into().unwrap_or(u32::MAX),
            column: e.column().max(1).try_into().unwrap_or(u32::MAX),
            length: 1,
        };
        TraceError::new(ErrorCode::Syntax, "", format!("not JSON: {e}")).at(at)
    })?;
    import_value(&value, resolve)
}

/// Reads the JSON form from a parsed value; see [`import`].
///
/// # Errors
///
/// As [`import`].
pub fn import_value(value: &Value, resolve: Resolver<'_>) -> Result<JsonImport> {
    let top = Object::new(value, "")?;
    top.only(&[
        "name",
        "note",
        "axes",
        "grids",
        "tensors",
        "spad_buffer_bytes",
        "cycle_table",
        "unit_table",
        "body",
        "compute_types",
        "must_refuse",
        "bounds",
        "registers",
        "threads",
    ])?;
    let mut reader = Reader {
        scope: Vec::new(),
        stmts: 0,
    };
    let axes = top.need("axes")?.int_in(1, 3)? as u8;
    let bounds = match top.get("bounds") {
        None => Bounds::Strict,
        Some(at) => match at.str()? {
            "strict" => Bounds::Strict,
            "off" => Bounds::Off,
            other => {
                return Err(at
                    .bad(format!("bounds {other:?}"))
                    .with_hint("use \"strict\" or \"off\""));
            }
        },
    };
    let note = top
        .get("note")
        .map(|at| at.str().map(str::to_owned))
        .transpose()?;
    let grids = match top.get("grids") {
        None => Vec::new(),
        Some(at) => at
            .list()?
            .iter()
            .map(|grid| grid.list()?.iter().map(At::count).collect())
            .collect::<Result<_>>()?,
    };
    let mut tensors = Vec::new();
    for (i, row) in top.need("tensors")?.list()?.iter().enumerate() {
        tensors.push(tensor(row, i)?);
    }
    let mut buffers = Vec::new();
    for (i, bytes) in top.need("spad_buffer_bytes")?.list()?.iter().enumerate() {
        buffers.push(Buffer {
            name: format!("b{i}"),
            bytes: bytes.count()?,
        });
    }
    let mut tiles = cycle_table(&top.need("cycle_table")?, resolve)?;
    if let Some(at) = top.get("unit_table") {
        let text = resolve(at.str()?).map_err(|e| at.bad(e))?;
        add_unit_table(&mut tiles, &text).map_err(|e| TraceError {
            path: at.path.clone(),
            ..e
        })?;
    }
    let body = reader.block(&top.need("body")?, 0)?;
    assign_roles(&mut tensors, &body);
    let header = Header {
        kernel: top
            .get("name")
            .map(|at| at.str().map(str::to_owned))
            .transpose()?
            .unwrap_or_default(),
        ..Header::default()
    };
    let must_refuse = top
        .get("must_refuse")
        .map(|at| at.bool())
        .transpose()?
        .unwrap_or(false);
    let taken = |key| top.get(key).map_or(Ok(0), |at| at.count());
    let resources = Resources {
        registers: taken("registers")?,
        threads: taken("threads")?,
    };
    let trace = Trace {
        header,
        axes,
        params: Vec::new(),
        tensors,
        bounds,
        buffers,
        tiles,
        body,
        dispatch: Dispatch::default(),
        resources,
    };
    Ok(JsonImport {
        trace,
        grids,
        must_refuse,
        note,
    })
}

fn tensor(row: &At<'_>, index: usize) -> Result<Tensor> {
    let list = row.list()?;
    let Some((bytes, extents)) = list.split_last() else {
        return Err(row
            .bad("an empty tensor")
            .with_hint("write [rows, cols, element bytes]"));
    };
    let bytes = bytes.int_in(1, 512)?;
    let extents = extents
        .iter()
        .map(|at| at.int_in(0, i64::MAX).map(Expr::Const))
        .collect::<Result<Vec<_>>>()?;
    Ok(Tensor {
        name: format!("arg{index}"),
        element_bits: bytes as u32 * 8,
        role: Role::In,
        extents,
        layout: Layout::RowMajor,
    })
}

/// A tensor's role from the transfers that touch it.
fn assign_roles(tensors: &mut [Tensor], body: &[Stmt]) {
    let mut seen = vec![(false, false); tensors.len()];
    fn walk(body: &[Stmt], seen: &mut [(bool, bool)]) {
        for stmt in body {
            match stmt {
                Stmt::For(f) => walk(&f.body, seen),
                Stmt::If(i) => {
                    walk(&i.then, seen);
                    walk(&i.otherwise, seen);
                }
                Stmt::Dma(dma) => {
                    if let Some((load, store)) = seen.get_mut(dma.tensor.index()) {
                        *load |= dma.direction == Direction::Load;
                        *store |= dma.direction == Direction::Store;
                    }
                }
                Stmt::Compute(_) | Stmt::Wait(_) => {}
            }
        }
    }
    walk(body, &mut seen);
    for (tensor, seen) in tensors.iter_mut().zip(seen) {
        tensor.role = match seen {
            (true, true) => Role::InOut,
            (false, true) => Role::Out,
            (_, false) => Role::In,
        };
    }
}

fn cycle_table(at: &At<'_>, resolve: Resolver<'_>) -> Result<Vec<Tile>> {
    if let Value::String(name) = at.value {
        let text = resolve(name).map_err(|e| at.bad(e))?;
        return read_cycle_table(&text).map_err(|e| TraceError {
            path: at.path.clone(),
            ..e
        });
    }
    let mut tiles = Vec::new();
    for row in at.list()? {
        let cells = row.list()?;
        let [cycles, overlap] = cells.as_slice() else {
            return Err(row
                .bad(format!("{} cells", cells.len()))
                .with_hint("write [cycles, overlap]"));
        };
        tiles.push(tile(tiles.len(), cycles.count()?, overlap.count()?));
    }
    Ok(tiles)
}

fn tile(index: usize, cycles: u64, overlap: u64) -> Tile {
    Tile {
        name: format!("t{index}"),
        unit: None,
        cycles: Some(cycles),
        overlap,
        source: CostSource::Measured,
        admissions: Vec::new(),
    }
}

/// Reads a cycle table: a line per tile, `cycles` and `overlap` separated by blanks. Empty lines and
/// lines that start with `#` count for nothing.
///
/// # Errors
///
/// A line that is anything else.
pub fn read_cycle_table(text: &str) -> Result<Vec<Tile>> {
    let mut tiles = Vec::new();
    for (number, cells) in table_lines(text) {
        let bad = |m: &str| TraceError::new(ErrorCode::BadValue, "", format!("line {number}: {m}"));
        let [cycles, overlap] = cells.as_slice() else {
            return Err(bad("not two numbers").with_hint("write `cycles overlap`, tab-separated"));
        };
        let parse = |cell: &str| {
            cell.parse::<u64>()
                .map_err(|_| bad(&format!("bad number {cell:?}")))
        };
        if tiles.len() >= MAX_TILES {
            return Err(TraceError::new(ErrorCode::TooLarge, "", "too many tiles"));
        }
        tiles.push(tile(tiles.len(), parse(cycles)?, parse(overlap)?));
    }
    Ok(tiles)
}

/// Reads a unit table (`tile unit unit_of_work capacity_per_cycle admitted` a line, separated by
/// tabs) into the admissions of `tiles`, replacing those they have.
///
/// # Errors
///
/// A malformed line, or one for a tile that does not exist.
pub fn add_unit_table(tiles: &mut [Tile], text: &str) -> Result<()> {
    for tile in tiles.iter_mut() {
        tile.admissions.clear();
    }
    for (number, cells) in table_lines(text) {
        let bad = |m: &str| {
            TraceError::new(ErrorCode::BadValue, "", format!("line {number}: {m}"))
                .with_hint("write `tile unit work capacity_per_cycle admitted`, tab-separated")
        };
        let [index, unit, work, capacity, admitted] = cells.as_slice() else {
            return Err(bad("not five cells"));
        };
        let index: usize = index.parse().map_err(|_| bad("bad tile number"))?;
        let have = tiles.len();
        let tile = tiles.get_mut(index).ok_or_else(|| {
            TraceError::new(
                ErrorCode::UnknownTile,
                "",
                format!("line {number}: tile {index} of {have}"),
            )
        })?;
        tile.admissions.push(Admission {
            unit: (*unit).to_owned(),
            work: (*work).to_owned(),
            capacity_per_cycle: capacity.parse().map_err(|_| bad("bad capacity"))?,
            admitted: admitted.parse().map_err(|_| bad("bad admitted work"))?,
        });
    }
    Ok(())
}

fn table_lines(text: &str) -> impl Iterator<Item = (usize, Vec<&str>)> {
    text.lines()
        .enumerate()
        .map(|(i, line)| (i + 1, line.trim()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(i, line)| (i, line.split_whitespace().take(8).collect()))
}

/// A value and where it stands.
struct At<'v> {
    value: &'v Value,
    path: String,
}

impl<'v> At<'v> {
    fn bad(&self, message: impl Into<String>) -> TraceError {
        TraceError::new(ErrorCode::BadValue, self.path.clone(), message)
    }

    fn wanted(&self, wanted: &str) -> TraceError {
        let found = match self.value {
            Value::Null => "null",
            Value::Bool(_) => "true or false",
            Value::Number(_) => "a number",
            Value::String(_) => "a string",
            Value::Array(_) => "a list",
            Value::Object(_) => "an object",
        };
        self.bad(format!("expected {wanted}, found {found}"))
    }

    fn str(&self) -> Result<&'v str> {
        self.value.as_str().ok_or_else(|| self.wanted("a string"))
    }

    fn bool(&self) -> Result<bool> {
        self.value
            .as_bool()
            .ok_or_else(|| self.wanted("true or false"))
    }

    fn list(&self) -> Result<Vec<At<'v>>> {
        let Value::Array(items) = self.value else {
            return Err(self.wanted("a list"));
        };
        Ok(items
            .iter()
            .enumerate()
            .map(|(i, value)| At {
                value,
                path: format!("{}[{i}]", self.path),
            })
            .collect())
    }

    fn int_in(&self, lo: i64, hi: i64) -> Result<i64> {
        let value = self
            .value
            .as_i64()
            .ok_or_else(|| self.wanted("an integer"))?;
        if (lo..=hi).contains(&value) {
            Ok(value)
        } else {
            Err(self.bad(format!("{value} is outside {lo} to {hi}")))
        }
    }

    fn count(&self) -> Result<u64> {
        self.value
            .as_u64()
            .ok_or_else(|| self.wanted("an integer of 0 or more"))
    }

    fn id(&self) -> Result<u32> {
        Ok(self.int_in(0, u32::MAX.into())? as u32)
    }
}

/// An object and where it stands.
struct Object<'v> {
    map: &'v Map<String, Value>,
    path: String,
}

impl<'v> Object<'v> {
    fn new(value: &'v Value, path: &str) -> Result<Self> {
        let at = At {
            value,
            path: path.to_owned(),
        };
        let map = value.as_object().ok_or_else(|| at.wanted("an object"))?;
        Ok(Self { map, path: at.path })
    }

    fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        }
    }

    fn only(&self, known: &[&str]) -> Result<()> {
        let Some(extra) = self.map.keys().find(|key| !known.contains(&key.as_str())) else {
            return Ok(());
        };
        let hint = match closest(extra, known.iter().copied()) {
            Some(near) => format!("did you mean {near:?}"),
            None => format!("known keys: {}", known.join(", ")),
        };
        let short: String = extra.chars().take(64).collect();
        let message = format!("unknown key {short:?}");
        Err(TraceError::new(ErrorCode::UnknownKey, self.path_of(&short), message).with_hint(hint))
    }

    fn get(&self, key: &str) -> Option<At<'v>> {
        self.map.get(key).map(|value| At {
            value,
            path: self.path_of(key),
        })
    }

    fn need(&self, key: &str) -> Result<At<'v>> {
        self.get(key).ok_or_else(|| {
            TraceError::new(
                ErrorCode::MissingKey,
                self.path.clone(),
                format!("no key {key:?}"),
            )
            .with_hint("add it; the form is described in tilesim-traces' json module")
        })
    }
}

struct Scope<'a>(&'a [String]);

impl Names for Scope<'_> {
    fn lookup(&self, name: &str) -> Option<Expr> {
        let depth = self.0.iter().rposition(|v| v == name)?;
        Some(Expr::Var(VarId(depth as u32)))
    }

    fn known(&self) -> Vec<&str> {
        self.0.iter().map(String::as_str).collect()
    }
}

struct Reader {
    scope: Vec<String>,
    stmts: usize,
}

impl Reader {
    fn expr(&self, at: &At<'_>) -> Result<Expr> {
        match at.value {
            Value::Number(_) => at.int_in(i64::MIN, i64::MAX).map(Expr::Const),
            Value::String(text) => parse_expr(text, &Scope(&self.scope)).map_err(|e| TraceError {
                message: match e.at {
                    Some(span) => format!("{} at column {} of {text:?}", e.message, span.column),
                    None => e.message,
                },
                path: at.path.clone(),
                at: None,
                ..e
            }),
            _ => Err(at.wanted("an integer or an expression")),
        }
    }

    fn buffers(&self, object: &Object<'_>, key: &str) -> Result<Vec<BufferId>> {
        match object.get(key) {
            None => Ok(Vec::new()),
            Some(at) => at.list()?.iter().map(|b| b.id().map(BufferId)).collect(),
        }
    }

    fn block(&mut self, at: &At<'_>, depth: usize) -> Result<Vec<Stmt>> {
        if depth > MAX_STMT_DEPTH {
            return Err(
                TraceError::new(ErrorCode::TooDeep, at.path.clone(), "nested too deeply")
                    .with_hint(format!("nest at most {MAX_STMT_DEPTH} statements")),
            );
        }
        let mut out = Vec::new();
        for item in at.list()? {
            self.stmts += 1;
            if self.stmts > MAX_STMTS {
                return Err(
                    TraceError::new(ErrorCode::TooLarge, item.path, "too many statements")
                        .with_hint("use loops for what repeats"),
                );
            }
            out.push(self.stmt(&item, depth)?);
        }
        Ok(out)
    }

    fn stmt(&mut self, at: &At<'_>, depth: usize) -> Result<Stmt> {
        let o = Object::new(at.value, &at.path)?;
        let op = o.need("op")?;
        match op.str()? {
            "loop" => {
                o.only(&["op", "var", "start", "stop", "step", "body"])?;
                let name = o.need("var")?.str()?.to_owned();
                let lo = self.expr(&o.need("start")?)?;
                let hi = self.expr(&o.need("stop")?)?;
                let step = match o.get("step") {
                    Some(at) => self.expr(&at)?,
                    None => Expr::Const(1),
                };
                let var = VarId(self.scope.len() as u32);
                self.scope.push(name.clone());
                let body = self.block(&o.need("body")?, depth + 1);
                self.scope.pop();
                Ok(Stmt::For(For {
                    var,
                    name,
                    lo,
                    hi,
                    step,
                    body: body?,
                }))
            }
            "dma" => self.dma(&o).map(Stmt::Dma),
            "wait" => {
                o.only(&["op", "sem", "expected"])?;
                let semaphore = SemId(o.need("sem")?.id()?);
                Ok(Stmt::Wait(Wait {
                    semaphore,
                    expected: self.expr(&o.need("expected")?)?,
                }))
            }
            "compute" => {
                o.only(&["op", "tile", "ct", "reads", "writes"])?;
                let unit = match o.need("ct")?.int_in(0, 3)? {
                    0 => Unit::Vector,
                    1 => Unit::Matmul,
                    2 => Unit::Preload,
                    _ => Unit::CrossLane,
                };
                Ok(Stmt::Compute(Compute {
                    tile: TileId(o.need("tile")?.id()?),
                    unit,
                    reads: self.buffers(&o, "reads")?,
                    writes: self.buffers(&o, "writes")?,
                }))
            }
            other => {
                let short: String = other.chars().take(64).collect();
                Err(op
                    .bad(format!("unknown op {short:?}"))
                    .with_hint("use loop, dma, wait or compute"))
            }
        }
    }

    fn dma(&self, o: &Object<'_>) -> Result<Dma> {
        o.only(&[
            "op",
            "dir",
            "arg",
            "offset_elems",
            "dims",
            "strides",
            "elem_bits",
            "is_async",
            "sem",
            "reads",
            "writes",
            "indirect",
        ])?;
        let dir = o.need("dir")?;
        let direction = match dir.str()? {
            "load" => Direction::Load,
            "store" => Direction::Store,
            other => {
                let short: String = other.chars().take(64).collect();
                return Err(dir
                    .bad(format!("direction {short:?}"))
                    .with_hint("use load or store"));
            }
        };
        let dims = o.need("dims")?.list()?;
        let strides_at = o.need("strides")?;
        let strides = strides_at.list()?;
        if dims.len() != strides.len() {
            return Err(strides_at
                .bad(format!("{} strides for {} dims", strides.len(), dims.len()))
                .with_hint("give one stride per dim"));
        }
        let dims = dims
            .iter()
            .zip(&strides)
            .map(|(extent, stride)| {
                Ok(Dim {
                    extent: self.expr(extent)?,
                    stride: self.expr(stride)?,
                    valid: None,
                })
            })
            .collect::<Result<_>>()?;
        let is_async = match o.get("is_async") {
            Some(at) => at.bool()?,
            None => false,
        };
        let semaphore = if is_async {
            Some(SemId(o.need("sem")?.id()?))
        } else {
            None
        };
        Ok(Dma {
            direction,
            tensor: TensorId(o.need("arg")?.id()?),
            offset: self.expr(&o.need("offset_elems")?)?,
            dims,
            element_bits: o.need("elem_bits")?.id()?,
            semaphore,
            reads: self.buffers(o, "reads")?,
            writes: self.buffers(o, "writes")?,
            indirect: match o.get("indirect") {
                Some(at) => self.indirect(&at)?,
                None => None,
            },
        })
    }

    fn indirect(&self, at: &At<'_>) -> Result<Option<Indirect>> {
        if at.value == &Value::from(0) || at.value == &Value::Bool(false) || at.value.is_null() {
            return Ok(None);
        }
        let hint = "use 0, {\"indices\": [...]} or {\"lines\": count, \"line_bytes\": bytes}";
        if !at.value.is_object() {
            return Err(at
                .bad("an indirect transfer without its lines")
                .with_hint(hint));
        }
        let o = Object::new(at.value, &at.path)?;
        o.only(&["indices", "lines", "line_bytes"])?;
        match (o.get("indices"), o.get("lines")) {
            (Some(indices), None) => {
                if let Some(at) = o.get("line_bytes") {
                    return Err(at.bad("line_bytes beside indices").with_hint(hint));
                }
                let list = indices.list()?;
                let list = list.iter().map(|i| self.expr(i)).collect::<Result<_>>()?;
                Ok(Some(Indirect::Indices(list)))
            }
            (None, Some(lines)) => Ok(Some(Indirect::Lines {
                count: self.expr(&lines)?,
                bytes: o.need("line_bytes")?.id()?,
            })),
            _ => Err(at.bad("one of indices and lines is needed").with_hint(hint)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(body: &str) -> String {
        format!(
            r#"{{"name": "x", "axes": 2, "tensors": [[8, 8, 4], [64, 1]], "spad_buffer_bytes": [64, 0],
                "cycle_table": [[5, 1], [7, 0]], "grids": [[1, 2]], "body": [{body}]}}"#
        )
    }

    #[test]
    fn whole_program() {
        let text = program(
            r#"{"op": "loop", "var": "k", "start": 0, "stop": "p0 + 4", "step": 2, "body": [
                 {"op": "dma", "dir": "load", "arg": 0, "offset_elems": "(k+1)*8 - p1", "dims": [2, 8],
                  "strides": [8, "k"], "elem_bits": 32, "is_async": true, "sem": 3, "reads": [],
                  "writes": [0], "indirect": 0},
                 {"op": "wait", "sem": 3, "expected": 16}]},
               {"op": "compute", "tile": 1, "ct": 2, "reads": [0], "writes": [1]},
               {"op": "dma", "dir": "store", "arg": 1, "offset_elems": 0, "dims": [], "strides": [],
                "elem_bits": 8, "is_async": false, "sem": 0, "reads": [0], "writes": [],
                "indirect": {"indices": [1, "p0"]}}"#,
        );
        let import = import(&text, &no_files).unwrap();
        assert_eq!(import.grids, [[1, 2]]);
        assert!(!import.must_refuse);
        let text = crate::text::print(&ValidTrace::try_from(import.trace).unwrap());
        let want = "tilesim trace 1\n\nkernel \"x\"\naxes 2\n\
            tensor arg0: 32 bit in [8, 8]\ntensor arg1: 8 bit out [64]\n\
            buffer b0 64\nbuffer b1 0\ntile t0 cycles 5 overlap 1 source measured\ntile t1 cycles 7 source measured\n\
            \nbody {\n  for k in 0..p0 + 4 step 2 {\n    \
            load arg0[(k + 1) * 8 - p1] dims [2: 8, 8: k] async 3 writes [b0]\n    wait 3 for 16\n  }\n  \
            compute t1 preload reads [b0] writes [b1]\n  store arg1[0] indices [1, p0] reads [b0]\n}\n";
        assert_eq!(text, want);
    }

    use crate::validate::ValidTrace;

    #[track_caller]
    fn refused(text: &str, code: ErrorCode, path: &str) -> TraceError {
        let e = import(text, &no_files).unwrap_err();
        assert_eq!((e.code, e.path.as_str()), (code, path), "{e}");
        e
    }

    #[test]
    fn errors_have_exact_paths() {
        let dma = |more: &str| {
            format!(
                r#"{{"op": "dma", "dir": "load", "arg": 0, "offset_elems": 0, "dims": [1],
                    "strides": [1], "elem_bits": 8{more}}}"#
            )
        };
        let nested = |op: &str| {
            program(&format!(
                r#"{{"op": "wait", "sem": 0, "expected": 1}},
                   {{"op": "loop", "var": "k", "start": 0, "stop": 2, "step": 1, "body": [{op}]}}"#
            ))
        };
        let e = refused(
            &nested(&dma(r#", "is_asinc": true"#)),
            ErrorCode::UnknownKey,
            "body[1].body[0].is_asinc",
        );
        assert_eq!(e.hint.as_deref(), Some("did you mean \"is_async\""));
        refused(
            &nested(&dma(r#", "is_async": true"#)),
            ErrorCode::MissingKey,
            "body[1].body[0]",
        );
        refused(
            &nested(&dma(r#", "reads": [-1]"#)),
            ErrorCode::BadValue,
            "body[1].body[0].reads[0]",
        );
        refused(
            &nested(&dma(r#", "indirect": 3"#)),
            ErrorCode::BadValue,
            "body[1].body[0].indirect",
        );
        let e = refused(
            &nested(r#"{"op": "wait", "sem": 0, "expected": "k + q"}"#),
            ErrorCode::UnknownName,
            "body[1].body[0].expected",
        );
        assert!(e.message.contains("column 5"), "{e}");
        refused(
            &nested(r#"{"op": "wait", "sem": 0, "expected": "k +"}"#),
            ErrorCode::Syntax,
            "body[1].body[0].expected",
        );
        refused(
            &nested(r#"{"op": "wait", "sem": 0, "expected": 1.5}"#),
            ErrorCode::BadValue,
            "body[1].body[0].expected",
        );
        refused(
            &nested(r#"{"op": "jump"}"#),
            ErrorCode::BadValue,
            "body[1].body[0].op",
        );
        refused(
            &nested(r#"{"op": "compute", "tile": 0, "ct": 4}"#),
            ErrorCode::BadValue,
            "body[1].body[0].ct",
        );
        refused(&nested("7"), ErrorCode::BadValue, "body[1].body[0]");
        refused("[]", ErrorCode::BadValue, "");
        refused("{\"axes\": 4}", ErrorCode::BadValue, "axes");
        refused("{\"axes\": 1}", ErrorCode::MissingKey, "");
        assert_eq!(import("{", &no_files).unwrap_err().code, ErrorCode::Syntax);
        let deep = "[".repeat(100_000);
        assert_eq!(
            import(&deep, &no_files).unwrap_err().code,
            ErrorCode::Syntax
        );
    }

    #[test]
    fn tables_from_files() {
        let text = program("").replace(
            "[[5, 1], [7, 0]]",
            "\"cycles.tsv\", \"unit_table\": \"units.tsv\"",
        );
        refused(&text, ErrorCode::BadValue, "cycle_table");
        let resolve = |name: &str| match name {
            "cycles.tsv" => Ok("183\t0\n16\t2\n".to_owned()),
            "units.tsv" => Ok("0\tIssue\tmicro-ops\t12\t122\n1\tSystolic\trows\t1\t0\n".to_owned()),
            _ => Err("no".to_owned()),
        };
        let tiles = import(&text, &resolve).unwrap().trace.tiles;
        assert_eq!((tiles[1].cycles, tiles[1].overlap), (Some(16), 2));
        assert_eq!(tiles[0].admissions[0].work, "micro-ops");
        assert_eq!(tiles[1].admissions[0].capacity_per_cycle, 1.0);
        let bad = |name: &str| {
            if name == "cycles.tsv" {
                Ok("1 2 3".into())
            } else {
                Err(String::new())
            }
        };
        let e = import(&text, &bad).unwrap_err();
        assert_eq!(
            (e.code, e.path.as_str()),
            (ErrorCode::BadValue, "cycle_table")
        );
    }
}
