//! Elementwise kernels and reductions.

use serde::{Deserialize, Serialize};

use super::cost::{CostModel, Work};
use super::element::ElementType;
use super::write::{Pipeline, Stream, Writer};
use super::{Grid, MAX_INPUTS, check_sizes, check_stages, check_tile, product, require};
use crate::error::TraceError;
use crate::model::{Trace, Unit};

type Result<T> = std::result::Result<T, TraceError>;

/// One output of n inputs of the same size, a block of elements a work-item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Elementwise {
    /// Elements.
    pub n: u64,
    /// Elements of a work-item.
    pub block: u64,
    /// Inputs. Default 2.
    #[serde(default = "two")]
    pub inputs: u32,
    /// Operations on each element. Default 1.
    #[serde(default = "one")]
    pub ops: u64,
    /// Element type. Default f32.
    #[serde(default = "f32")]
    pub dtype: ElementType,
}

fn one() -> u64 {
    1
}

fn two() -> u32 {
    2
}

fn f32() -> ElementType {
    ElementType::F32
}

impl Elementwise {
    pub(super) fn check(&self) -> Result<()> {
        let at = "kernel.elementwise";
        check_sizes(at, &[("n", self.n)])?;
        require(&format!("{at}.block"), self.block, 1, 1 << 32)?;
        require(
            &format!("{at}.inputs"),
            u64::from(self.inputs),
            0,
            u64::from(MAX_INPUTS),
        )?;
        require(&format!("{at}.ops"), self.ops, 0, 1 << 20)
    }

    pub(super) fn launch(&self) -> Result<Grid> {
        Ok(Grid {
            grid: vec![self.n.div_ceil(self.block)],
            params: vec![("N", self.n)],
        })
    }

    pub(super) fn generate(&self, cost: &CostModel) -> Result<Trace> {
        let mut w = Writer::new(1, cost);
        w.param("N");
        let inputs: Vec<String> = (0..self.inputs).map(|i| format!("x{i}")).collect();
        for name in &inputs {
            w.tensor(name, self.dtype, "in", "N");
        }
        w.tensor("y", self.dtype, "out", "N");
        let block = self.block;
        for name in inputs.iter().map(String::as_str).chain(["y"]) {
            w.buffer(name, block, self.dtype)?;
        }
        let work = Work::Vector {
            elements: block,
            bits: self.dtype.bits(),
            ops: self.ops,
        };
        w.tile("apply", Unit::Vector, work)?;
        w.set("first", &format!("p0 * {block}"));
        let dims = format!("dims [{block}: 1 valid min({block}, N - first)]");
        for name in &inputs {
            w.line(&format!(
                "load {name}[first] {dims} async 0 writes [{name}]"
            ));
        }
        if self.inputs > 0 {
            w.line(&format!(
                "wait 0 for {}",
                product(&[block, u64::from(self.inputs)])?
            ));
        }
        let reads: Vec<&str> = inputs.iter().map(String::as_str).collect();
        w.compute("apply", &reads, &["y"]);
        w.line(&format!("store y[first] {dims} reads [y]"));
        w.finish("elementwise")
    }
}

/// A sum of a matrix along one of its axes.
///
/// With `axis: 1` each row is summed and a work-item takes `tile[0]` rows; with `axis: 0` each
/// column, and a work-item takes `tile[1]` columns. The axis that is summed is streamed in pieces of
/// the tile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reduction {
    /// Rows.
    pub rows: u64,
    /// Columns.
    pub cols: u64,
    /// The axis that is summed: 0 or 1. Default 1.
    #[serde(default = "one_u32")]
    pub axis: u32,
    /// Tile sizes along rows and columns.
    pub tile: [u64; 2],
    /// Buffers of pieces; 0: as many as the scratchpad has room for. Default 2.
    #[serde(default = "two")]
    pub stages: u32,
    /// Element type of the input. Default f32.
    #[serde(default = "f32")]
    pub dtype: ElementType,
    /// Element type of the result; default that of the input.
    #[serde(default)]
    pub out: Option<ElementType>,
}

fn one_u32() -> u32 {
    1
}

impl Reduction {
    pub(super) fn check(&self) -> Result<()> {
        let at = "kernel.reduction";
        check_sizes(at, &[("rows", self.rows), ("cols", self.cols)])?;
        check_tile(at, "tile", &self.tile)?;
        check_stages(at, self.stages)?;
        require(&format!("{at}.axis"), u64::from(self.axis), 0, 1)
    }

    pub(super) fn launch(&self) -> Result<Grid> {
        let [br, bc] = self.tile;
        let items = if self.axis == 1 {
            self.rows.div_ceil(br)
        } else {
            self.cols.div_ceil(bc)
        };
        Ok(Grid {
            grid: vec![items],
            params: vec![("ROWS", self.rows), ("COLS", self.cols)],
        })
    }

    pub(super) fn generate(&self, cost: &CostModel) -> Result<Trace> {
        let [br, bc] = self.tile;
        let elements = product(&[br, bc])?;
        let out = self.out.unwrap_or(self.dtype);
        let across = self.axis == 1;
        // Kept axis: its name, tile and number of valid elements; streamed axis: its steps.
        let (kept, keep, steps) = if across {
            ("ROWS", br, format!("ceil_div(COLS, {bc})"))
        } else {
            ("COLS", bc, format!("ceil_div(ROWS, {br})"))
        };
        let mut w = Writer::new(1, cost);
        w.param("ROWS");
        w.param("COLS");
        w.tensor("X", self.dtype, "in", "ROWS, COLS");
        w.tensor("Y", out, "out", kept);
        w.buffer("sum", keep, out)?;
        let load = if across {
            format!(
                "X[kept * COLS + t * {bc}] dims [{br}: COLS valid min({br}, ROWS - kept), {bc}: 1 valid min({bc}, COLS - t * {bc})]"
            )
        } else {
            format!(
                "X[t * {br} * COLS + kept] dims [{br}: COLS valid min({br}, ROWS - t * {br}), {bc}: 1 valid min({bc}, COLS - kept)]"
            )
        };
        let streams = [Stream {
            name: "x",
            elements,
            element: self.dtype,
            load: &load,
            group: 0,
        }];
        let pipeline = Pipeline {
            steps,
            stages: self.stages,
            streams: &streams,
            lets: &[],
        };
        pipeline.declare(&mut w)?;
        let bits = self.dtype.bits();
        w.tile(
            "init",
            Unit::Vector,
            Work::Vector {
                elements: keep,
                bits: out.bits(),
                ops: 1,
            },
        )?;
        if across {
            w.tile("add", Unit::CrossLane, Work::Reduce { elements, bits })?;
        } else {
            w.tile(
                "add",
                Unit::Vector,
                Work::Vector {
                    elements,
                    bits,
                    ops: 1,
                },
            )?;
        }
        w.set("kept", &format!("p0 * {keep}"));
        w.compute("init", &[], &["sum"]);
        pipeline.write(&mut w, |w, step| {
            let x = step.buffer("x");
            step.wait(w, 0)?;
            let free = step.free("x");
            let mut writes = vec!["sum"];
            writes.extend(free.as_deref());
            w.compute("add", &[&x, "sum"], &writes);
            Ok(())
        })?;
        w.line(&format!(
            "store Y[kept] dims [{keep}: 1 valid min({keep}, {kept} - kept)] reads [sum]"
        ));
        w.finish("reduction")
    }
}
