//! What a compute tile costs: formulas, and the cycle table that replaces them.
//!
//! A trace knows nothing of machines: the facts a formula needs stand in a [`CostModel`], which the
//! caller fills from the machine it means to run on.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{bad, overflow, require};
use crate::error::{ErrorCode, TraceError};
use crate::json::read_cycle_table;
use crate::limits::MAX_CYCLES;
use crate::model::{CostSource, MeasuredOn};

type Result<T> = std::result::Result<T, TraceError>;

/// How long a product takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MatmulFormula {
    /// SCALE-Sim 3, weight-stationary array of R rows and C columns:
    /// `ceil(K/R) * ceil(N/C) * (2R + C + M - 2) - 1`.
    #[default]
    ScaleSimWs,
    /// SCALE-Sim 3, output-stationary: `ceil(M/R) * ceil(N/C) * (R + C + K - 2) - 1`.
    ScaleSimOs,
    /// The output-stationary array in hardware description of STONNE's Table III:
    /// `ceil(M/R) * ceil(N/C) * (R + C + K + 2)`.
    StonneOs,
    /// ONNXim, weight-stationary: a tile of weights takes R cycles to load and
    /// `R + C - 2 + max(rows, 4)` to use, of which `R + C - 2` overlap the tile before.
    OnnximWs,
    /// PyTorchSim's analytic table, weight-stationary array of SA x SA (SA the larger side): preload `2 SA - 1`, use
    /// `2 SA - 2 + rows`, a new one every `min(SA, rows)`; more than SA rows go as several.
    PytorchsimWs,
    /// A unit that is never idle: `ceil(M * N * K / (R * C))`, R x C multiply-adds a cycle.
    Peak,
}

impl MatmulFormula {
    /// Every formula, with the word that selects it.
    pub const ALL: &'static [(&'static str, MatmulFormula)] = &[
        ("scale_sim_ws", MatmulFormula::ScaleSimWs),
        ("scale_sim_os", MatmulFormula::ScaleSimOs),
        ("stonne_os", MatmulFormula::StonneOs),
        ("onnxim_ws", MatmulFormula::OnnximWs),
        ("pytorchsim_ws", MatmulFormula::PytorchsimWs),
        ("peak", MatmulFormula::Peak),
    ];

    /// Whether weights are loaded first and then used, so that [`Work::Preload`] and
    /// [`Work::Stream`] have a cost.
    pub fn weight_stationary(self) -> bool {
        matches!(
            self,
            MatmulFormula::ScaleSimWs | MatmulFormula::OnnximWs | MatmulFormula::PytorchsimWs
        )
    }
}

/// The cost of one tile, as given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GivenCost {
    /// Core cycles, below 2^53.
    pub cycles: u64,
    /// Cycles of them that may overlap the tile before on the same unit.
    #[serde(default)]
    pub overlap: u64,
}

/// The machine facts that formulas need, and costs that replace formulas.
///
/// For one tile the first of these counts: `fixed` by the tile's name, `table` by its place in the
/// trace, the formula.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CostModel {
    /// Rows of a systolic array. Default 128.
    pub array_rows: u32,
    /// Its columns. Default 128.
    pub array_cols: u32,
    /// Systolic arrays that share one `dot`; a `systolic` product goes to arrays piece by piece and
    /// does not depend on it. Default 1.
    pub arrays: u32,
    /// Vector lanes. Default 128.
    pub lanes: u32,
    /// Bits that one lane works on in a cycle. Default 256.
    pub vector_bits: u32,
    /// Formula of products. Default `scale_sim_ws`.
    pub matmul: MatmulFormula,
    /// Whether the trace says which machine its costs are of, so that others refuse it. Default
    /// true.
    pub tied: bool,
    /// Measured costs, one per tile in the order of the trace; empty: none.
    pub table: Vec<GivenCost>,
    /// Costs by tile name.
    pub fixed: BTreeMap<String, GivenCost>,
}

impl Default for CostModel {
    fn default() -> Self {
        CostModel {
            array_rows: 128,
            array_cols: 128,
            arrays: 1,
            lanes: 128,
            vector_bits: 256,
            matmul: MatmulFormula::default(),
            tied: true,
            table: Vec::new(),
            fixed: BTreeMap::new(),
        }
    }
}

/// Cycles, overlap, and the formula's text.
type Formula = (u64, u64, String);

/// What a compute tile does, as far as its cost depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// An m x n x k product.
    Dot {
        /// Rows of the result.
        m: u64,
        /// Columns of the result.
        n: u64,
        /// Length of the sums.
        k: u64,
    },
    /// Load one array of weights.
    Preload,
    /// Send so many rows through an array whose weights are loaded.
    Stream {
        /// How many.
        rows: u64,
    },
    /// So many operations on each of so many elements.
    Vector {
        /// Elements.
        elements: u64,
        /// Bits of each.
        bits: u32,
        /// Operations on each.
        ops: u64,
    },
    /// Reduce so many elements across lanes.
    Reduce {
        /// Elements.
        elements: u64,
        /// Bits of each.
        bits: u32,
    },
}

/// The cost of one tile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Core cycles.
    pub cycles: u64,
    /// Cycles of them that may overlap the tile before on the same unit.
    pub overlap: u64,
    /// Where they come from.
    pub source: CostSource,
}

impl CostModel {
    /// Reads the measured costs: a line per tile in the order of the trace, `cycles` and `overlap`
    /// separated by a tab.
    ///
    /// # Errors
    ///
    /// A line that is anything else.
    pub fn read_table(text: &str) -> Result<Vec<GivenCost>> {
        let tiles = read_cycle_table(text).map_err(|mut e| {
            e.path = "cost.table".into();
            e
        })?;
        let given = |t: &crate::model::Tile| GivenCost {
            cycles: t.cycles.unwrap_or(0),
            overlap: t.overlap,
        };
        Ok(tiles.iter().map(given).collect())
    }

    /// Whether the facts make sense.
    ///
    /// # Errors
    ///
    /// A fact of 0 or beyond any machine, or a cost of 2^53 cycles or more.
    pub fn check(&self) -> Result<()> {
        for (name, value, most) in [
            ("array_rows", self.array_rows, 1 << 16),
            ("array_cols", self.array_cols, 1 << 16),
            ("arrays", self.arrays, 1 << 16),
            ("lanes", self.lanes, 1 << 20),
            ("vector_bits", self.vector_bits, 1 << 20),
        ] {
            require(&format!("cost.{name}"), u64::from(value), 1, most)?;
        }
        let given = self.table.iter().enumerate();
        let given = given.map(|(i, c)| (format!("cost.table[{i}]"), c));
        let fixed = self
            .fixed
            .iter()
            .map(|(n, c)| (format!("cost.fixed.{n}"), c));
        for (path, cost) in given.chain(fixed) {
            for (key, value) in [("cycles", cost.cycles), ("overlap", cost.overlap)] {
                require(&format!("{path}.{key}"), value, 0, MAX_CYCLES - 1)?;
            }
        }
        Ok(())
    }

    /// The machine the formulas' costs hold for.
    pub fn measured_on(&self) -> Option<MeasuredOn> {
        self.tied.then_some(MeasuredOn {
            lanes: Some(self.lanes),
            vector_bits: Some(self.vector_bits),
            array_rows: Some(self.array_rows),
            array_cols: Some(self.array_cols),
            element: None,
        })
    }

    /// The cost of tile number `index`, called `name`, that does `work`.
    pub(super) fn cost(&self, index: usize, name: &str, work: Work) -> Result<Cost> {
        if let Some(given) = self.fixed.get(name) {
            return Ok(Cost {
                cycles: given.cycles,
                overlap: given.overlap,
                source: CostSource::Declared,
            });
        }
        if let Some(given) = self.table.get(index) {
            return Ok(Cost {
                cycles: given.cycles,
                overlap: given.overlap,
                source: CostSource::Measured,
            });
        }
        self.analytic(work)
    }

    /// What the formula says.
    ///
    /// # Errors
    ///
    /// The formula has no answer to this work (an output-stationary array preloads nothing), or the
    /// answer is 2^53 cycles or more.
    pub fn analytic(&self, work: Work) -> Result<Cost> {
        self.check()?;
        let (cycles, overlap, formula) = self.formula(work).ok_or_else(|| overflow("cost"))??;
        if cycles >= MAX_CYCLES {
            return Err(overflow("cost"));
        }
        Ok(Cost {
            cycles,
            overlap,
            source: CostSource::Analytic(formula),
        })
    }

    /// Cycles, overlap and the formula's name; `None` when they leave 64 bits.
    fn formula(&self, work: Work) -> Option<Result<Formula>> {
        let formula = match work {
            Work::Dot { m, n, k } => self.dot(m, n, k)?,
            Work::Preload | Work::Stream { .. } if !self.matmul.weight_stationary() => {
                return Some(Err(no_preload()));
            }
            Work::Preload => self.preload()?,
            Work::Stream { rows } => self.stream(rows)?,
            Work::Vector {
                elements,
                bits,
                ops,
            } => {
                let vectors = self.vectors(elements, bits)?;
                let text = format!(
                    "PyTorchSim vector on {}: ceil(elements / throughput) * operations, {elements} of {bits} bits, {ops} operations",
                    self.lanes()
                );
                (vectors.checked_mul(ops)?, 0, text)
            }
            Work::Reduce { elements, bits } => {
                let vectors = self.vectors(elements, bits)?;
                let text = format!(
                    "PyTorchSim reduction on {}: 7 * (1 + n), n = ceil(elements / throughput), {elements} of {bits} bits",
                    self.lanes()
                );
                (vectors.checked_add(1)?.checked_mul(7)?, 0, text)
            }
        };
        Some(Ok(formula))
    }

    fn dot(&self, m: u64, n: u64, k: u64) -> Option<Formula> {
        let (r, c) = (u64::from(self.array_rows), u64::from(self.array_cols));
        let arrays = u64::from(self.arrays);
        // Pieces of weights, or of outputs, that one array takes one after another.
        let weights = k.div_ceil(r).checked_mul(n.div_ceil(c))?.div_ceil(arrays);
        let outputs = m.div_ceil(r).checked_mul(n.div_ceil(c))?.div_ceil(arrays);
        let fill = r + c - 2;
        // A preload, pieces a step apart, and the last one's way through the array.
        let train = |preload: u64, step: u64, rows: u64| {
            let between = weights.checked_sub(1)?.checked_mul(step)?;
            between.checked_add(preload + fill)?.checked_add(rows)
        };
        let (cycles, overlap, text) = match self.matmul {
            MatmulFormula::ScaleSimWs => (
                weights
                    .checked_mul((r + fill).checked_add(m)?)?
                    .checked_sub(1)?,
                0,
                "SCALE-Sim 3 weight-stationary: folds * (2R + C + M - 2) - 1, folds = ceil(K/R) * ceil(N/C)",
            ),
            MatmulFormula::ScaleSimOs => (
                outputs.checked_mul(fill.checked_add(k)?)?.checked_sub(1)?,
                0,
                "SCALE-Sim 3 output-stationary: folds * (R + C + K - 2) - 1, folds = ceil(M/R) * ceil(N/C)",
            ),
            MatmulFormula::StonneOs => (
                outputs.checked_mul((fill + 4).checked_add(k)?)?,
                0,
                "STONNE Table III output-stationary: folds * (R + C + K + 2), folds = ceil(M/R) * ceil(N/C)",
            ),
            MatmulFormula::OnnximWs => {
                let rows = m.max(4);
                (
                    train(r, rows.max(r), rows)?,
                    fill,
                    "ONNXim weight-stationary: R + (folds - 1) * max(R, rows) + R + C - 2 + rows, rows = max(M, 4), folds = ceil(K/R) * ceil(N/C)",
                )
            }
            MatmulFormula::PytorchsimWs => {
                let side = r.max(c);
                (
                    train(2 * side - 1, m.max(side), m)?.checked_add(2 * side - r - c)?,
                    2 * side - 2,
                    "PyTorchSim weight-stationary: 2 SA - 1 + (folds - 1) * max(SA, M) + 2 SA - 2 + M, folds = ceil(K/R) * ceil(N/C)",
                )
            }
            MatmulFormula::Peak => (
                m.checked_mul(n)?
                    .checked_mul(k)?
                    .div_ceil((r * c).checked_mul(arrays)?),
                0,
                "peak: ceil(M * N * K / (R * C))",
            ),
        };
        let mut text = format!("{text}; {m} x {n} x {k} on {r} x {c}");
        if arrays > 1 {
            text.push_str(&format!(", folds (or products) shared by {arrays} arrays"));
        }
        Some((cycles, overlap, text))
    }

    fn preload(&self) -> Option<Formula> {
        let (r, c) = (u64::from(self.array_rows), u64::from(self.array_cols));
        let (cycles, text) = match self.matmul {
            MatmulFormula::PytorchsimWs => (2 * r.max(c) - 1, "PyTorchSim preload: 2 SA - 1"),
            MatmulFormula::OnnximWs => (r, "ONNXim weight-stationary, a preload: R"),
            _ => (r, "SCALE-Sim 3 weight-stationary, loading weights: R"),
        };
        Some((cycles, 0, format!("{text}; {r} x {c}")))
    }

    fn stream(&self, rows: u64) -> Option<Formula> {
        let (r, c) = (u64::from(self.array_rows), u64::from(self.array_cols));
        let fill = r + c - 2;
        let (cycles, overlap, text) = match self.matmul {
            MatmulFormula::PytorchsimWs => {
                let fill = 2 * r.max(c) - 2;
                let text = "PyTorchSim matmul: 2 SA - 2 + rows, rows in trains of SA, a new one every min(SA, rows)";
                (fill.checked_add(rows)?, fill, text)
            }
            MatmulFormula::OnnximWs => {
                let text = "ONNXim weight-stationary: R + C - 2 + max(rows, 4)";
                (fill.checked_add(rows.max(4))?, fill, text)
            }
            _ => {
                let text = "SCALE-Sim 3 weight-stationary, without loading weights: R + C + M - 2";
                (fill.checked_add(rows)?, 0, text)
            }
        };
        Some((cycles, overlap, format!("{text}; {rows} rows on {r} x {c}")))
    }

    fn lanes(&self) -> String {
        format!("{} lanes of {} bits", self.lanes, self.vector_bits)
    }

    /// How many vectors hold so many elements.
    fn vectors(&self, elements: u64, bits: u32) -> Option<u64> {
        let width = u64::from(self.lanes) * u64::from(self.vector_bits);
        Some(elements.div_ceil((width / u64::from(bits.max(1))).max(1)))
    }
}

fn no_preload() -> TraceError {
    bad(
        "cost.matmul",
        "this formula knows no preloaded weights",
        "use a weight-stationary formula (scale_sim_ws, onnxim_ws, pytorchsim_ws) or form `dot`",
    )
}

impl CostModel {
    /// The table must have as many rows as the trace has tiles, and fixed costs must name tiles.
    pub(super) fn check_names(&self, names: &[String]) -> Result<()> {
        if !self.table.is_empty() && self.table.len() != names.len() {
            return Err(TraceError::new(
                ErrorCode::BadValue,
                "cost.table",
                format!("{} rows for {} tiles", self.table.len(), names.len()),
            )
            .with_hint(format!("a row each, in this order: {}", names.join(", "))));
        }
        for name in self.fixed.keys() {
            if !names.contains(name) {
                return Err(TraceError::new(
                    ErrorCode::UnknownTile,
                    format!("cost.fixed.{name}"),
                    "the kernel has no such tile",
                )
                .with_hint(format!("it has {}", names.join(", "))));
            }
        }
        Ok(())
    }
}
