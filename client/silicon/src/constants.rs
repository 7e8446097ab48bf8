//! Every figure that simulated times rest on besides the measurements of single configurations: its
//! value, where it comes from, and what the rankings lose when it is another.

use std::{collections::BTreeMap, num::NonZeroUsize};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tilesim_core::machine::{
    Machine, MachineError,
    schema::{self, Absent},
};

use crate::{
    data::{Entry, Shape},
    score::Score,
    validate::{Model, Ranking},
};

/// Where a figure comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The maker publishes it, or the driver reports it.
    Public,
    /// Measurements of one program, never of whole launches.
    OneProgram,
    /// Chosen because rankings of whole launches came out well with it; the same for all shapes.
    Fitted,
    /// Which part of the simulator models the hardware, and how finely; no property of the hardware.
    Model,
    /// Not one of the values that this list knows about: a machine file or `--set` states it.
    Stated,
}

/// A figure in use.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Constant {
    /// A path in the machine file, or `kernel.` and a field of [`Constants`](crate::kernel::Constants).
    pub name: String,
    /// Its value.
    pub value: Value,
    /// Its unit; empty if it has none.
    pub unit: &'static str,
    /// Where it comes from.
    pub origin: Origin,
    /// The source, or how it was fitted.
    pub source: &'static str,
}

/// What is known of a figure, whatever its value.
struct Known {
    name: &'static str,
    /// The machine file's key has its own.
    unit: &'static str,
    origin: Origin,
    source: &'static str,
}

const fn known(
    name: &'static str,
    unit: &'static str,
    origin: Origin,
    source: &'static str,
) -> Known {
    Known {
        name,
        unit,
        origin,
        source,
    }
}

/// What names of [`Constants`](crate::kernel::Constants) start with here.
const KERNEL: &str = "kernel.";

const DATA_SHEET: &str = "NVIDIA H200 data sheet";
const WHITE_PAPER: &str = "NVIDIA H100 white paper (the same GH100 chip)";
const PROGRAMMING_GUIDE: &str = "CUDA programming guide, compute capability 9.0";
const SEVEN_SHAPES: &str = "chosen near a closed form's best over the seven shapes of \
    client/silicon/data together, where the scores are flat";

use Origin::{Fitted, Model as Modelled, OneProgram, Public};

const KNOWN: &[Known] = &[
    known("kernel.wide_rate", "FLOP/ns and core", Fitted, SEVEN_SHAPES),
    known(
        "kernel.narrow_rate",
        "FLOP/ns and core",
        Fitted,
        SEVEN_SHAPES,
    ),
    known(
        "kernel.shared_rate",
        "bytes/ns and core",
        Fitted,
        "near 128 bytes a cycle (CUDA programming guide); lowered with a closed form's best over the \
         seven shapes of client/silicon/data together",
    ),
    known(
        "kernel.l2_rate",
        "bytes/ns and core",
        Fitted,
        "chosen on the seven shapes of client/silicon/data, above the 100 that their busiest launches \
         reach: near a tie the limits add up",
    ),
    known("kernel.softness", "", Fitted, SEVEN_SHAPES),
    known(
        "kernel.held_rate",
        "bytes/ns and core",
        OneProgram,
        "all_sms_*_hold of tiles that load much and multiply little",
    ),
    known(
        "kernel.hit_ns",
        "ns",
        Modelled,
        "what a hit takes by the machine file, so that costs do not count it twice",
    ),
    known(
        "kernel.miss_ns",
        "ns",
        Modelled,
        "what a miss takes beyond a hit by the machine file, likewise",
    ),
    known(
        "kernel.launch_us",
        "us",
        OneProgram,
        "one_item, time beside the K steps; the same for all, so that it moves no order",
    ),
    known("kernel.program_us", "us", Fitted, SEVEN_SHAPES),
    known(
        "kernel.instruction_rate",
        "warp instructions/ns and core",
        Fitted,
        "a guess; no measurement supports it",
    ),
    known("clocks.core_mhz", "", Public, DATA_SHEET),
    known(
        "clocks.noc_mhz",
        "",
        Fitted,
        "the slices together answer 13.6 TB/s, above the 13.2 that launches of client/silicon/data reach; \
         `kernel.l2_rate` is what limits",
    ),
    known(
        "clocks.dram_mhz",
        "",
        Modelled,
        "the core clock, so that the DRAM's figures are in core cycles",
    ),
    known("cores.count", "", Public, WHITE_PAPER),
    known(
        "cores.systolic_arrays",
        "",
        Modelled,
        "the four tensor cores work on one product",
    ),
    known(
        "cores.array_rows",
        "",
        Public,
        "2,048 dense float16 multiply-adds a cycle, as 64 x 32; NVIDIA H100 white paper",
    ),
    known("cores.array_cols", "", Public, "likewise"),
    known("cores.vector_lanes", "", Public, PROGRAMMING_GUIDE),
    known("cores.vector_bits", "", Public, PROGRAMMING_GUIDE),
    known("cores.scratchpad_bytes", "", Public, PROGRAMMING_GUIDE),
    known(
        "cores.compute_issue",
        "",
        Modelled,
        "units work side by side",
    ),
    known(
        "cores.residency",
        "",
        Modelled,
        "programs share a core as shared memory, registers and threads allow",
    ),
    known("cores.max_residents", "", Public, PROGRAMMING_GUIDE),
    known("cores.registers", "", Public, PROGRAMMING_GUIDE),
    known("cores.threads", "", Public, PROGRAMMING_GUIDE),
    known(
        "cores.injection_ports",
        "",
        Modelled,
        "requests of 64 bytes a core sends in a cycle",
    ),
    known(
        "noc.latency_cycles",
        "",
        OneProgram,
        "stream_l2: both ways and the L2 make about 0.14 us",
    ),
    known("l2.model", "", Modelled, "a slice in front of each channel"),
    known("l2.sets", "", Public, "60 MB in all, as the driver reports"),
    known("l2.ways", "", Public, "likewise"),
    known("l2.line_bytes", "", Public, PROGRAMMING_GUIDE),
    known("l2.sector_bytes", "", Modelled, "one request"),
    known(
        "l2.set_index",
        "",
        Modelled,
        "a hash, since the hardware's is not published",
    ),
    known("l2.hit_latency_cycles", "", OneProgram, "stream_l2"),
    known("dram.channels", "", Modelled, "as many as slices"),
    known("dram.request_bytes", "", Modelled, "two sectors"),
    known(
        "dram.channel_map",
        "",
        Modelled,
        "a hash, since the hardware's is not published",
    ),
    known(
        "dram.latency_cycles",
        "",
        OneProgram,
        "stream_cold less stream_l2: about 0.44 us",
    ),
    known("dram.bytes_per_cycle", "", Public, DATA_SHEET),
    known(
        "dispatch",
        "",
        Modelled,
        "a core that has room takes the next program",
    ),
    known("memory", "", Modelled, "whole transfers"),
];

/// Every figure in use: those of kernel costs, then those of the machine that are not the schema's
/// defaults.
///
/// # Errors
///
/// None for a machine that was read from a file.
pub fn constants(model: &Model) -> Result<Vec<Constant>, MachineError> {
    let mut all = Vec::new();
    for (field, value) in fields(model) {
        let name = format!("{KERNEL}{field}");
        let known = KNOWN.iter().find(|k| k.name == name);
        all.push(Constant {
            value,
            unit: known.map_or("", |k| k.unit),
            origin: known.map_or(Origin::Stated, |k| k.origin),
            source: known.map_or("", |k| k.source),
            name,
        });
    }
    let tree = model.machine.to_value()?;
    let usual = Machine::preset("h200")?.to_value()?;
    for key in schema::KEYS {
        let Some(value) = at(&tree, key.path) else {
            continue;
        };
        // Words stand there with their quotes, as JSON has them.
        let text = value.to_string();
        let default = matches!(key.absent, Absent::Default(default) if default == text);
        let known = KNOWN.iter().find(|k| k.name == key.path);
        if known.is_none() && default || ["name", "version"].contains(&key.path) {
            continue;
        }
        let known = known.filter(|_| at(&usual, key.path) == Some(value));
        all.push(Constant {
            name: key.path.to_owned(),
            value: value.clone(),
            unit: key.unit,
            origin: known.map_or(Origin::Stated, |k| k.origin),
            source: known.map_or("", |k| k.source),
        });
    }
    Ok(all)
}

/// Fields of the constants of kernel costs, by name.
fn fields(model: &Model) -> serde_json::Map<String, Value> {
    match serde_json::to_value(model.constants) {
        Ok(Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    }
}

fn at<'v>(tree: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.').try_fold(tree, |value, key| value.get(key))
}

/// What the rankings of aligned shapes lose when a fitted figure is another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sensitivity {
    /// When this was computed.
    pub date: String,
    /// Over which shapes.
    pub shapes: Vec<String>,
    /// Their mean with every figure as it is.
    pub mean: Score,
    /// By name.
    pub constants: BTreeMap<String, Moved>,
}

/// A figure, and means with it moved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moved {
    /// As it was.
    pub value: Value,
    /// 20 % less.
    pub less: Point,
    /// 20 % more.
    pub more: Point,
}

/// A moved figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// What it was moved to; a whole number stays one.
    pub value: Value,
    /// Mean over the shapes.
    pub mean: Score,
}

impl Sensitivity {
    /// As it was when last computed for this repository.
    ///
    /// # Errors
    ///
    /// None but for a damaged build.
    pub fn committed() -> Result<Sensitivity, serde_json::Error> {
        serde_json::from_str(include_str!("../data/h200_sensitivity.json"))
    }

    /// Moves each fitted figure. The aligned ones of `shapes` are simulated twice for each; `done` is
    /// called after each launch.
    ///
    /// # Errors
    ///
    /// A machine that is none with a figure moved.
    pub fn compute(
        model: &Model,
        configs: &[Entry],
        shapes: &[Shape],
        threads: NonZeroUsize,
        date: String,
        done: &(dyn Fn() + Sync),
    ) -> Result<Sensitivity, MachineError> {
        let shapes: Vec<Shape> = shapes.iter().filter(|s| s.aligned()).cloned().collect();
        let mean = |model: &Model| {
            let times = model.times_us(configs, &shapes, threads, done);
            let scores: Vec<Score> = shapes
                .iter()
                .zip(&times)
                .map(|(shape, times)| Ranking::simulated(shape, times).score)
                .collect();
            Score::mean(scores.iter())
        };
        let mut moved = BTreeMap::new();
        for constant in fitted(model)? {
            let point = |percent: u64| {
                let value = scaled(&constant.value, percent);
                let model = with(model, &constant.name, &value)?;
                Ok::<_, MachineError>(Point {
                    value,
                    mean: mean(&model),
                })
            };
            let row = Moved {
                less: point(80)?,
                more: point(120)?,
                value: constant.value.clone(),
            };
            moved.insert(constant.name, row);
        }
        Ok(Sensitivity {
            date,
            shapes: shapes.iter().map(|s| s.name.clone()).collect(),
            mean: mean(model),
            constants: moved,
        })
    }

    /// How many launches [`compute`](Self::compute) simulates.
    ///
    /// # Errors
    ///
    /// As [`constants`].
    pub fn launches(model: &Model, shapes: &[Shape]) -> Result<usize, MachineError> {
        let aligned = shapes.iter().filter(|s| s.aligned());
        let once: usize = aligned.map(|s| s.time_us.iter().flatten().count()).sum();
        Ok(once * (1 + 2 * fitted(model)?.len()))
    }
}

/// The fitted figures.
fn fitted(model: &Model) -> Result<Vec<Constant>, MachineError> {
    let mut all = constants(model)?;
    all.retain(|c| c.origin == Origin::Fitted && c.value.is_number());
    Ok(all)
}

/// So many per cent of a number. A whole number changes by one at least.
fn scaled(value: &Value, percent: u64) -> Value {
    match (value.as_u64(), value.as_f64()) {
        (Some(whole), _) => {
            let near = (whole as f64 * percent as f64 / 100.0).round() as u64;
            Value::from(match near {
                same if same == whole && percent < 100 => whole.saturating_sub(1),
                same if same == whole => whole.saturating_add(1),
                other => other,
            })
        }
        (None, Some(real)) => Value::from(real * percent as f64 / 100.0),
        (None, None) => value.clone(),
    }
}

/// The model with one figure replaced.
fn with(model: &Model, name: &str, value: &Value) -> Result<Model, MachineError> {
    let mut model = model.clone();
    match name.strip_prefix(KERNEL) {
        Some(field) => {
            let mut fields = fields(&model);
            fields.insert(field.to_owned(), value.clone());
            if let Ok(constants) = serde_json::from_value(Value::Object(fields)) {
                model.constants = constants;
            }
        }
        None => model.machine = model.machine.with_overrides(&[(name, value.to_string())])?,
    }
    Ok(model)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::kernel::Constants;

    fn model() -> Model {
        Model {
            machine: Machine::preset("h200").unwrap(),
            constants: Constants::default(),
        }
    }

    #[test]
    fn every_figure_has_an_origin() {
        let all = constants(&model()).unwrap();
        let stated: Vec<&Constant> = all.iter().filter(|c| c.origin == Origin::Stated).collect();
        assert!(stated.is_empty(), "{stated:#?}");
        for known in KNOWN {
            let uses = all.iter().filter(|c| c.name == known.name).count();
            assert_eq!(uses, 1, "{} is no figure in use", known.name);
        }
    }

    /// Whoever changes a figure computes the table again: `tilesim validate h200 --sensitivity --json`.
    #[test]
    fn every_fitted_figure_has_its_sensitivity() {
        let committed = Sensitivity::committed().unwrap();
        let now = fitted(&model()).unwrap();
        let now: BTreeMap<&str, &Value> = now.iter().map(|c| (c.name.as_str(), &c.value)).collect();
        let then = committed.constants.iter();
        let then: BTreeMap<&str, &Value> = then.map(|(n, m)| (n.as_str(), &m.value)).collect();
        assert_eq!(then, now);
    }

    #[test]
    fn a_moved_figure_is_the_only_change() {
        let model = model();
        for constant in fitted(&model).unwrap() {
            for percent in [80, 120] {
                let value = scaled(&constant.value, percent);
                assert_ne!(value, constant.value);
                let moved = constants(&with(&model, &constant.name, &value).unwrap()).unwrap();
                let before = constants(&model).unwrap();
                let changed: Vec<_> = moved
                    .iter()
                    .zip(&before)
                    .filter(|(a, b)| a.value != b.value)
                    .map(|(a, _)| (a.name.as_str(), a.value.as_f64()))
                    .collect();
                assert_eq!(changed, [(constant.name.as_str(), value.as_f64())]);
            }
        }
    }
}
