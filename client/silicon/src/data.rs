//! The measurements: what ran, how long it took, and what one program costs.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Why measurements cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// No JSON of the form expected.
    #[error("{file}: {source}")]
    Form {
        /// Which of the two files.
        file: &'static str,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// The two files, or two parts of one, do not belong together.
    #[error("{file}: {what}")]
    Mismatch {
        /// Which of the two files.
        file: &'static str,
        /// What does not fit.
        what: String,
    },
}

/// The file of whole launches, as messages name it.
pub const LAUNCHES: &str = "the file of launches";
/// The file of one-program measurements, likewise.
pub const ONE: &str = "the file of one-program measurements";

/// A configuration of the matmul kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Config {
    /// Rows of a tile of C.
    #[serde(rename = "BM")]
    pub bm: u64,
    /// Its columns.
    #[serde(rename = "BN")]
    pub bn: u64,
    /// Length of a K step.
    #[serde(rename = "BK")]
    pub bk: u64,
    /// Rows of tiles in a group of the program order.
    #[serde(rename = "GM")]
    pub group: u64,
    /// Warps of a program.
    pub num_warps: u64,
    /// Stages of the software pipeline.
    pub num_stages: u32,
}

/// What a compiled program takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Resources {
    /// Registers of a thread.
    pub regs: u64,
    /// Registers spilled by a thread.
    pub spills: u64,
    /// Bytes of shared memory.
    pub shared: u64,
}

/// One program alone, for two K.
#[derive(Clone, Debug, Deserialize)]
struct TwoLengths {
    k: [f64; 2],
    us: [f64; 2],
}

#[derive(Deserialize)]
struct LaunchFile {
    mm: Matmul,
}

#[derive(Deserialize)]
struct Matmul {
    configs: Vec<Config>,
    time_us: BTreeMap<String, Vec<Option<f64>>>,
    one_item: BTreeMap<usize, TwoLengths>,
    resources: BTreeMap<usize, Resources>,
}

#[derive(Deserialize)]
struct OneFile {
    configs: Vec<Config>,
    one: BTreeMap<usize, BTreeMap<String, serde_json::Value>>,
}

/// Nanoseconds that one K step of one program takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slopes {
    /// Alone, its addresses standing still.
    pub held: f64,
    /// Alone, operands in the L2.
    pub l2: f64,
    /// Alone, operands in DRAM.
    pub cold: f64,
    /// `k` programs on every core, addresses standing still, for `k` = 1, 2, 4: of all k together.
    pub all: [Option<f64>; 3],
    /// Alone, as compiled for strides that are no multiples of 16; addresses standing still.
    pub unaligned: f64,
    /// Microseconds of an aligned program beside its K steps, the launch included.
    pub rest_us: f64,
}

/// A configuration with what is known about it.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// The configuration.
    pub config: Config,
    /// What it takes.
    pub resources: Resources,
    /// What it takes as compiled for unaligned strides.
    pub unaligned: Resources,
    /// What one program takes.
    pub slopes: Slopes,
}

/// A problem and the time of each configuration.
#[derive(Clone, Debug)]
pub struct Shape {
    /// `MxNxK`.
    pub name: String,
    /// M, N and K.
    pub size: [u64; 3],
    /// Microseconds by configuration; none: it did not run.
    pub time_us: Vec<Option<f64>>,
}

/// The measurements.
#[derive(Clone, Debug)]
pub struct Data {
    /// Configurations, in the order of the files.
    pub configs: Vec<Measured>,
    /// Problems.
    pub shapes: Vec<Shape>,
}

impl Data {
    /// Measurements on an H200 with Triton 3.6 (`silicon/data`), made for this project.
    ///
    /// # Errors
    ///
    /// None but for a damaged build.
    pub fn h200() -> Result<Data, DataError> {
        Data::parse(
            include_str!("../data/h200_triton_autotune.json"),
            include_str!("../data/h200_one_item.json"),
        )
    }

    /// The file of one-program measurements that comes with this crate.
    pub fn h200_one_program() -> &'static str {
        include_str!("../data/h200_one_item.json")
    }

    /// The file of whole launches that comes with this crate.
    pub fn h200_launches() -> &'static str {
        include_str!("../data/h200_triton_autotune.json")
    }

    /// Reads both files.
    ///
    /// # Errors
    ///
    /// Text of another form; configurations that differ between the files or lack a measurement.
    pub fn parse(launches: &str, one: &str) -> Result<Data, DataError> {
        let launches: LaunchFile = read(LAUNCHES, launches)?;
        let one: OneFile = read(ONE, one)?;
        let mm = launches.mm;
        if mm.configs != one.configs {
            return Err(mismatch(
                ONE,
                "its configurations are not those of the launches",
            ));
        }
        let configs = mm.configs.iter().enumerate().map(|(i, config)| {
            if [
                config.bm,
                config.bn,
                config.bk,
                config.group,
                config.num_warps,
            ]
            .contains(&0)
            {
                return Err(mismatch(LAUNCHES, format!("configuration {i} has a zero")));
            }
            let none = |what: &str| mismatch(LAUNCHES, format!("mm.{what}[{i}] is missing"));
            let alone = mm.one_item.get(&i).ok_or_else(|| none("one_item"))?;
            let resources = *mm.resources.get(&i).ok_or_else(|| none("resources"))?;
            let fine = one
                .one
                .get(&i)
                .ok_or_else(|| mismatch(ONE, format!("one[{i}] is missing")))?;
            measured(i, *config, alone, resources, fine)
        });
        let configs = configs.collect::<Result<Vec<_>, _>>()?;
        let shapes = mm.time_us.into_iter().map(|(name, time_us)| {
            let size = sizes(&name)
                .ok_or_else(|| mismatch(LAUNCHES, format!("mm.time_us: {name} is no MxNxK")))?;
            if time_us.len() != configs.len() {
                let what = format!(
                    "mm.time_us[{name}]: {} times for {} configurations",
                    time_us.len(),
                    configs.len()
                );
                return Err(mismatch(LAUNCHES, what));
            }
            if let Some(t) = time_us
                .iter()
                .flatten()
                .find(|t| !(t.is_finite() && **t > 0.0))
            {
                return Err(mismatch(
                    LAUNCHES,
                    format!("mm.time_us[{name}]: a time of {t}"),
                ));
            }
            Ok(Shape {
                name,
                size,
                time_us,
            })
        });
        let shapes = shapes.collect::<Result<Vec<_>, _>>()?;
        Ok(Data { configs, shapes })
    }
}

fn read<'t, T: Deserialize<'t>>(file: &'static str, text: &'t str) -> Result<T, DataError> {
    serde_json::from_str(text).map_err(|source| DataError::Form { file, source })
}

fn mismatch(file: &'static str, what: impl Into<String>) -> DataError {
    DataError::Mismatch {
        file,
        what: what.into(),
    }
}

fn sizes(name: &str) -> Option<[u64; 3]> {
    let sizes: Vec<u64> = name
        .split('x')
        .map(|n| n.parse().ok())
        .collect::<Option<_>>()?;
    let sizes: [u64; 3] = sizes.try_into().ok()?;
    sizes
        .iter()
        .all(|n| (1..=1 << 32).contains(n))
        .then_some(sizes)
}

fn measured(
    index: usize,
    config: Config,
    alone: &TwoLengths,
    resources: Resources,
    fine: &BTreeMap<String, serde_json::Value>,
) -> Result<Measured, DataError> {
    // Nanoseconds a K step, and microseconds of the rest.
    let line = |k: [f64; 2], us: [f64; 2]| {
        let steps = (k[1] - k[0]) / config.bk as f64;
        let slope = (us[1] - us[0]) / steps;
        (
            slope * 1e3,
            us[0] - slope * (k[0] / config.bk as f64).ceil(),
        )
    };
    let time = |what: &str, k: u32| {
        fine.get(&format!("{what}_{k}"))
            .and_then(serde_json::Value::as_f64)
    };
    let slope = |what: &str, k: [u32; 2]| {
        let us = [time(what, k[0])?, time(what, k[1])?];
        Some(line(k.map(f64::from), us).0).filter(|s| s.is_finite() && *s > 0.0)
    };
    let must = |what: &str, k: [u32; 2]| {
        slope(what, k).ok_or_else(|| mismatch(ONE, format!("one[{index}] has no rising {what}")))
    };
    let (held, rest_us) = line(alone.k, alone.us);
    if !(held.is_finite() && held > 0.0) {
        return Err(mismatch(
            LAUNCHES,
            format!("mm.one_item[{index}] does not rise with k"),
        ));
    }
    let unaligned = fine
        .get("unaligned_resources")
        .and_then(|r| Resources::deserialize(r).ok())
        .ok_or_else(|| mismatch(ONE, format!("one[{index}].unaligned_resources is missing")))?;
    Ok(Measured {
        config,
        resources,
        unaligned,
        slopes: Slopes {
            held,
            l2: must("stream_l2", [4096, 12288])?,
            cold: must("stream_cold", [4096, 12288])?,
            all: [1, 2, 4].map(|n| slope(&format!("all_sms_x{n}_hold"), [2048, 6144])),
            unaligned: must("unaligned_hold", [4088, 12264])?,
            rest_us,
        },
    })
}
