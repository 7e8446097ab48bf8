//! Kernels that normalise rows: softmax and layer normalisation.
//!
//! A work-item takes `tile[0]` rows. Where a whole row fits the tile (`online: false`) it is loaded
//! once. Otherwise (`online: true`) it is streamed twice in pieces of `tile[1]` columns: once for the
//! row's statistics, once to write the result.

use serde::{Deserialize, Serialize};

use super::cost::{CostModel, Work};
use super::element::ElementType;
use super::write::{Pipeline, Stream, Writer};
use super::{Grid, bad, check_sizes, check_stages, check_tile, product};
use crate::error::TraceError;
use crate::model::{Trace, Unit};

type Result<T> = std::result::Result<T, TraceError>;

macro_rules! row_kernel {
    ($(#[$doc:meta])* $name:ident, $at:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            /// Rows.
            pub rows: u64,
            /// Columns.
            pub cols: u64,
            /// Tile sizes along rows and columns.
            pub tile: [u64; 2],
            /// Stream rows in pieces, for rows longer than the tile.
            #[serde(default)]
            pub online: bool,
            /// Buffers of streamed pieces; 0: as many as the scratchpad has room for. Default 2.
            #[serde(default = "two")]
            pub stages: u32,
            /// Element type in memory. Default f32.
            #[serde(default = "f32")]
            pub dtype: ElementType,
        }

        impl $name {
            /// The kernel with every option at its default.
            pub fn new(rows: u64, cols: u64, tile: [u64; 2]) -> Self {
                $name { rows, cols, tile, online: cols > tile[1], stages: two(), dtype: f32() }
            }

            pub(super) fn check(&self) -> Result<()> {
                check_sizes($at, &[("rows", self.rows), ("cols", self.cols)])?;
                check_tile($at, "tile", &self.tile)?;
                check_stages($at, self.stages)?;
                if !self.online && self.cols > self.tile[1] {
                    return Err(bad(
                        concat!($at, ".tile[1]"),
                        format!("rows of {} do not fit {}", self.cols, self.tile[1]),
                        "use a wider tile, or online",
                    ));
                }
                Ok(())
            }

            pub(super) fn launch(&self) -> Result<Grid> {
                Ok(Grid {
                    grid: vec![self.rows.div_ceil(self.tile[0])],
                    params: vec![("ROWS", self.rows), ("COLS", self.cols)],
                })
            }
        }
    };
}

row_kernel! {
    /// Softmax of each row of a matrix.
    Softmax, "kernel.softmax"
}

row_kernel! {
    /// Layer normalisation of each row of a matrix, with a weight and a bias per column.
    LayerNorm, "kernel.layer_norm"
}

fn two() -> u32 {
    2
}

fn f32() -> ElementType {
    ElementType::F32
}

/// Bits that rows are computed in.
const COMPUTE: ElementType = ElementType::F32;

impl Softmax {
    pub(super) fn generate(&self, cost: &CostModel) -> Result<Trace> {
        let mut w = Writer::new(1, cost);
        w.param("ROWS");
        w.param("COLS");
        w.tensor("X", self.dtype, "in", "ROWS, COLS");
        w.tensor("Y", self.dtype, "out", "ROWS, COLS");
        let [br, bc] = self.tile;
        let elements = product(&[br, bc])?;
        let vector = |ops| Work::Vector {
            elements,
            bits: COMPUTE.bits(),
            ops,
        };
        let reduce = Work::Reduce {
            elements,
            bits: COMPUTE.bits(),
        };
        if !self.online {
            return self.resident(w, elements, vector, reduce);
        }
        w.buffer("stats", product(&[br, 2])?, COMPUTE)?;
        w.buffer("y", elements, self.dtype)?;
        let piece = piece(br, bc, "t");
        let load = format!("X{piece}");
        let first = [stream("x", elements, self.dtype, &load)];
        let again = [stream("z", elements, self.dtype, &load)];
        let steps = format!("ceil_div(COLS, {bc})");
        let first = Pipeline {
            steps: steps.clone(),
            stages: self.stages,
            streams: &first,
            lets: &[],
        };
        let again = Pipeline {
            steps,
            stages: self.stages,
            streams: &again,
            lets: &[],
        };
        first.declare(&mut w)?;
        again.declare(&mut w)?;
        let per_row = |ops| Work::Vector {
            elements: br * 2,
            bits: COMPUTE.bits(),
            ops,
        };
        w.tile("init", Unit::Vector, per_row(1))?;
        w.tile("max", Unit::CrossLane, reduce)?;
        w.tile("exp", Unit::Vector, vector(2))?;
        w.tile("sum", Unit::CrossLane, reduce)?;
        w.tile("scale", Unit::Vector, vector(3))?;
        w.set("r", &format!("p0 * {br}"));
        w.compute("init", &[], &["stats"]);
        let (body, free) = ("stats", "x");
        w.block("let pass = 0", |w| {
            first.write(w, |w, step| {
                let x = step.buffer(free);
                step.wait(w, 0)?;
                w.compute("max", &[&x, body], &[body]);
                w.compute("exp", &[&x, body], &[&x]);
                let free = step.free(free);
                let mut writes = vec![body];
                writes.extend(free.as_deref());
                w.compute("sum", &[&x, body], &writes);
                Ok(())
            })
        })?;
        w.block("let pass = 1", |w| {
            again.write(w, |w, step| {
                let z = step.buffer("z");
                step.wait(w, 0)?;
                let free = step.free("z");
                let mut writes = vec!["y"];
                writes.extend(free.as_deref());
                w.compute("scale", &[&z, "stats"], &writes);
                w.line(&format!("store Y{} reads [y]", self::piece(br, bc, "k")));
                Ok(())
            })
        })?;
        w.finish("softmax")
    }

    fn resident(
        &self,
        mut w: Writer<'_>,
        elements: u64,
        vector: impl Fn(u64) -> Work,
        reduce: Work,
    ) -> Result<Trace> {
        let [br, bc] = self.tile;
        w.buffer("x", elements, self.dtype)?;
        w.buffer("stats", product(&[br, 2])?, COMPUTE)?;
        w.tile("max", Unit::CrossLane, reduce)?;
        w.tile("exp", Unit::Vector, vector(2))?;
        w.tile("sum", Unit::CrossLane, reduce)?;
        w.tile("scale", Unit::Vector, vector(1))?;
        w.set("r", &format!("p0 * {br}"));
        let whole = whole(br, bc);
        w.line(&format!("load X{whole} async 0 writes [x]"));
        w.line(&format!("wait 0 for {elements}"));
        w.compute("max", &["x"], &["stats"]);
        w.compute("exp", &["x", "stats"], &["x"]);
        w.compute("sum", &["x", "stats"], &["stats"]);
        w.compute("scale", &["x", "stats"], &["x"]);
        w.line(&format!("store Y{whole} reads [x]"));
        w.finish("softmax")
    }
}

impl LayerNorm {
    pub(super) fn generate(&self, cost: &CostModel) -> Result<Trace> {
        let mut w = Writer::new(1, cost);
        w.param("ROWS");
        w.param("COLS");
        w.tensor("X", self.dtype, "in", "ROWS, COLS");
        w.tensor("W", self.dtype, "in", "COLS");
        w.tensor("B", self.dtype, "in", "COLS");
        w.tensor("Y", self.dtype, "out", "ROWS, COLS");
        let [br, bc] = self.tile;
        let elements = product(&[br, bc])?;
        let vector = |ops| Work::Vector {
            elements,
            bits: COMPUTE.bits(),
            ops,
        };
        let reduce = Work::Reduce {
            elements,
            bits: COMPUTE.bits(),
        };
        w.buffer("stats", product(&[br, 2])?, COMPUTE)?;
        if !self.online {
            w.buffer("x", elements, self.dtype)?;
            w.buffer("w", bc, self.dtype)?;
            w.buffer("b", bc, self.dtype)?;
            w.tile("mean", Unit::CrossLane, reduce)?;
            w.tile("square", Unit::Vector, vector(2))?;
            w.tile("variance", Unit::CrossLane, reduce)?;
            w.tile("normalise", Unit::Vector, vector(4))?;
            w.set("r", &format!("p0 * {br}"));
            let whole = whole(br, bc);
            w.line(&format!("load X{whole} async 0 writes [x]"));
            w.line(&format!(
                "load W[0] dims [{bc}: 1 valid COLS] async 1 writes [w]"
            ));
            w.line(&format!(
                "load B[0] dims [{bc}: 1 valid COLS] async 1 writes [b]"
            ));
            w.line(&format!("wait 0 for {elements}"));
            w.compute("mean", &["x"], &["stats"]);
            w.compute("square", &["x", "stats"], &["stats"]);
            w.compute("variance", &["stats"], &["stats"]);
            w.line(&format!("wait 1 for {}", product(&[2, bc])?));
            w.compute("normalise", &["x", "stats", "w", "b"], &["x"]);
            w.line(&format!("store Y{whole} reads [x]"));
            return w.finish("layer_norm");
        }
        w.buffer("y", elements, self.dtype)?;
        let load = format!("X{}", piece(br, bc, "t"));
        let column = |tensor: &str| {
            format!("{tensor}[t * {bc}] dims [{bc}: 1 valid min({bc}, COLS - t * {bc})]")
        };
        let (load_w, load_b) = (column("W"), column("B"));
        let first = [stream("x", elements, self.dtype, &load)];
        let again = [
            stream("z", elements, self.dtype, &load),
            stream("w", bc, self.dtype, &load_w),
            stream("b", bc, self.dtype, &load_b),
        ];
        let steps = format!("ceil_div(COLS, {bc})");
        let first = Pipeline {
            steps: steps.clone(),
            stages: self.stages,
            streams: &first,
            lets: &[],
        };
        let again = Pipeline {
            steps,
            stages: self.stages,
            streams: &again,
            lets: &[],
        };
        first.declare(&mut w)?;
        again.declare(&mut w)?;
        let per_row = Work::Vector {
            elements: br * 2,
            bits: COMPUTE.bits(),
            ops: 1,
        };
        w.tile("init", Unit::Vector, per_row)?;
        w.tile("square", Unit::Vector, vector(2))?;
        w.tile("sum", Unit::CrossLane, reduce)?;
        w.tile("normalise", Unit::Vector, vector(4))?;
        w.set("r", &format!("p0 * {br}"));
        w.compute("init", &[], &["stats"]);
        w.block("let pass = 0", |w| {
            first.write(w, |w, step| {
                let x = step.buffer("x");
                step.wait(w, 0)?;
                let free = step.free("x");
                let mut writes = vec!["stats"];
                writes.extend(free.as_deref());
                w.compute("square", &[&x, "stats"], &["stats"]);
                w.compute("sum", &[&x, "stats"], &writes);
                Ok(())
            })
        })?;
        w.block("let pass = 1", |w| {
            again.write(w, |w, step| {
                let names = ["z", "w", "b"];
                let buffers = names.map(|n| step.buffer(n));
                step.wait(w, 0)?;
                let free: Vec<String> = names.iter().filter_map(|n| step.free(n)).collect();
                let mut reads = vec!["stats"];
                reads.extend(buffers.iter().map(String::as_str));
                let mut writes = vec!["y"];
                writes.extend(free.iter().map(String::as_str));
                w.compute("normalise", &reads, &writes);
                w.line(&format!("store Y{} reads [y]", piece(br, bc, "k")));
                Ok(())
            })
        })?;
        w.finish("layer_norm")
    }
}

fn stream<'s>(name: &'s str, elements: u64, element: ElementType, load: &'s str) -> Stream<'s> {
    Stream {
        name,
        elements,
        element,
        load,
        group: 0,
    }
}

/// Offset and dims of piece number `t` of rows from `r` on.
fn piece(br: u64, bc: u64, t: &str) -> String {
    format!(
        "[r * COLS + {t} * {bc}] dims [{br}: COLS valid min({br}, ROWS - r), {bc}: 1 valid min({bc}, COLS - {t} * {bc})]"
    )
}

/// Offset and dims of whole rows from `r` on.
fn whole(br: u64, bc: u64) -> String {
    format!("[r * COLS] dims [{br}: COLS valid min({br}, ROWS - r), {bc}: 1 valid COLS]")
}
