//! The measurements: what ran, how long it took, and what one program costs.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::RangeInclusive,
};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error as _, MapAccess, Visitor},
};

/// Why measurements cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {path}: {message}")]
pub struct DataError {
    /// Which of the two files.
    pub file: File,
    /// Place in it, for example `mm.time_us.512x512x512[3]`.
    pub path: String,
    /// What is wrong there.
    pub message: String,
}

/// One of the two files that measurements come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// Times of whole launches.
    Launches,
    /// Times of one program.
    OneProgram,
}

impl fmt::Display for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            File::Launches => "the file of launches",
            File::OneProgram => "the file of one-program measurements",
        })
    }
}

/// A configuration of the matmul kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Config { bm, bn, bk, .. } = self;
        let Config {
            group,
            num_warps,
            num_stages,
            ..
        } = self;
        write!(
            f,
            "{bm}x{bn}x{bk} group {group} warps {num_warps} stages {num_stages}"
        )
    }
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
#[derive(Clone, Copy, Debug, PartialEq)]
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

/// A configuration of the list.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The configuration.
    pub config: Config,
    /// Its one-program measurements, or what is wrong with them: a configuration that the hardware
    /// refuses has none.
    pub measured: Result<Measured, DataError>,
}

/// A problem and the time of each configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// `MxNxK`.
    pub name: String,
    /// M, N and K.
    pub size: [u64; 3],
    /// Microseconds by configuration; none: it was not measured.
    pub time_us: Vec<Option<f64>>,
}

impl Shape {
    /// Whether all strides are multiples of 16 elements. Where they are not, Triton compiles another
    /// kernel.
    pub fn aligned(&self) -> bool {
        self.size[1].is_multiple_of(16) && self.size[2].is_multiple_of(16)
    }
}

/// The measurements.
#[derive(Clone, Debug, PartialEq)]
pub struct Data {
    /// Configurations, in the order of the file of launches.
    pub configs: Vec<Entry>,
    /// Problems, in that file's order.
    pub shapes: Vec<Shape>,
}

const H200_LAUNCHES: &str = include_str!("../data/h200_triton_autotune.json");
const H200_ONE_PROGRAM: &str = include_str!("../data/h200_one_item.json");

#[derive(Deserialize)]
struct LaunchFile {
    mm: MatmulSection,
}

#[derive(Deserialize)]
struct MatmulSection {
    configs: Option<Vec<Config>>,
    time_us: InOrder<Vec<Option<f64>>>,
    one_item: Option<BTreeMap<usize, Option<TwoLengths>>>,
    resources: Option<BTreeMap<usize, Option<Resources>>>,
}

/// One program alone, for two K.
#[derive(Clone, Copy, Deserialize)]
struct TwoLengths {
    k: [f64; 2],
    us: [Option<f64>; 2],
}

#[derive(Deserialize)]
struct OneProgramFile {
    configs: Option<Vec<Config>>,
    one: BTreeMap<usize, Option<BTreeMap<String, Figure>>>,
}

/// What one key of a configuration's one-program measurements holds.
#[derive(Deserialize)]
#[serde(untagged)]
enum Figure {
    Us(f64),
    Resources(Resources),
    Other(serde::de::IgnoredAny),
}

/// A map whose order counts.
struct InOrder<T>(Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for InOrder<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
            type Value = InOrder<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<InOrder<T>, A::Error> {
                let (mut seen, mut entries) = (BTreeSet::new(), Vec::new());
                while let Some((key, value)) = map.next_entry::<String, T>()? {
                    if !seen.insert(key.clone()) {
                        return Err(A::Error::custom(format!("{key} is there twice")));
                    }
                    entries.push((key, value));
                }
                Ok(InOrder(entries))
            }
        }
        deserializer.deserialize_map(Entries(std::marker::PhantomData))
    }
}

impl Data {
    /// Measurements on an H200 with Triton 3.6 (`client/silicon/data`).
    ///
    /// # Errors
    ///
    /// None but for a damaged build.
    pub fn h200() -> Result<Data, DataError> {
        Data::read(None, None)
    }

    /// Reads a file of launches and one of one-program measurements. What is absent, files or parts of
    /// the first one, is taken from the measurements that come with this crate; parts of one file belong
    /// to a configuration by its position in that file, parts of different files by the configuration
    /// itself. Keys that are not known are passed over.
    ///
    /// # Errors
    ///
    /// Text of another form, a shape that is no `MxNxK`, a list of times longer than that of
    /// configurations, figures out of range.
    pub fn read(launches: Option<&str>, one_program: Option<&str>) -> Result<Data, DataError> {
        let own: LaunchFile = parse(File::Launches, H200_LAUNCHES)?;
        let given: LaunchFile = match launches {
            Some(text) => parse(File::Launches, text)?,
            None => parse(File::Launches, H200_LAUNCHES)?,
        };
        let fine: OneProgramFile =
            parse(File::OneProgram, one_program.unwrap_or(H200_ONE_PROGRAM))?;
        let own_configs = own.mm.configs.unwrap_or_default();
        let own_index = positions(&own_configs);
        let fine_index = fine.configs.as_deref().map(positions);
        let given = given.mm;
        let configs = given.configs.unwrap_or(own_configs);

        let entry = |(i, config): (usize, &Config)| {
            check(config).map_err(|message| DataError {
                file: File::Launches,
                path: format!("mm.configs[{i}]"),
                message,
            })?;
            let own_i = own_index.get(config).copied();
            let alone = match &given.one_item {
                Some(table) => table.get(&i).copied().flatten(),
                None => own_part(&own.mm.one_item, own_i),
            };
            let resources = match &given.resources {
                Some(table) => table.get(&i).copied().flatten(),
                None => own_part(&own.mm.resources, own_i),
            };
            let fine_i = match &fine_index {
                Some(index) => index.get(config).copied(),
                None => Some(i),
            };
            let fine = fine_i.and_then(|j| Some((j, fine.one.get(&j)?.as_ref()?)));
            Ok(Entry {
                config: *config,
                measured: measured(i, *config, alone, resources, fine),
            })
        };
        let configs: Vec<Entry> = configs
            .iter()
            .enumerate()
            .map(entry)
            .collect::<Result<_, _>>()?;
        let shapes = given.time_us.0.into_iter();
        let shapes = shapes
            .map(|(name, times)| shape(name, times, configs.len()))
            .collect::<Result<_, _>>()?;
        Ok(Data { configs, shapes })
    }
}

fn parse<'t, T: Deserialize<'t>>(file: File, text: &'t str) -> Result<T, DataError> {
    let mut json = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| DataError {
        file,
        path: error.path().to_string(),
        message: error.into_inner().to_string(),
    })?;
    json.end().map_err(|error| DataError {
        file,
        path: ".".to_owned(),
        message: error.to_string(),
    })?;
    Ok(value)
}

/// Where each configuration stands first.
fn positions(configs: &[Config]) -> BTreeMap<Config, usize> {
    let backwards = configs.iter().enumerate().rev();
    backwards.map(|(i, config)| (*config, i)).collect()
}

fn own_part<T: Copy>(
    table: &Option<BTreeMap<usize, Option<T>>>,
    index: Option<usize>,
) -> Option<T> {
    table.as_ref()?.get(&index?).copied().flatten()
}

/// Larger than any kernel has, small enough that no product of them overflows.
fn check(config: &Config) -> Result<(), String> {
    let within = |name: &str, value: u64, range: RangeInclusive<u64>| {
        if range.contains(&value) {
            return Ok(());
        }
        let (least, most) = range.into_inner();
        Err(format!("{name} is {value}, not within {least} to {most}"))
    };
    within("BM", config.bm, 1..=1 << 16)?;
    within("BN", config.bn, 1..=1 << 16)?;
    within("BK", config.bk, 1..=1 << 16)?;
    within("GM", config.group, 1..=1 << 16)?;
    within("num_warps", config.num_warps, 1..=64)?;
    within("num_stages", config.num_stages.into(), 0..=64)
}

fn shape(name: String, mut time_us: Vec<Option<f64>>, configs: usize) -> Result<Shape, DataError> {
    let bad = |at: String, message: String| DataError {
        file: File::Launches,
        path: format!("mm.time_us.{at}"),
        message,
    };
    let size = sizes(&name).ok_or_else(|| {
        let message = "a shape is MxNxK, each of 1 to 2^24";
        bad(name.clone(), message.to_owned())
    })?;
    if time_us.len() > configs {
        let message = format!("{} times for {configs} configurations", time_us.len());
        return Err(bad(name, message));
    }
    for (i, time) in time_us.iter().enumerate() {
        if let Some(time) = time
            && !(*time > 0.0 && *time < 1e12)
        {
            let message = format!("{time} is no time in microseconds");
            return Err(bad(format!("{name}[{i}]"), message));
        }
    }
    time_us.resize(configs, None);
    Ok(Shape {
        name,
        size,
        time_us,
    })
}

fn sizes(name: &str) -> Option<[u64; 3]> {
    let number = |text: &str| {
        let digits = text.bytes().all(|b| b.is_ascii_digit());
        let number = text.parse().ok().filter(|_| digits)?;
        (1..=1 << 24).contains(&number).then_some(number)
    };
    let sizes: Vec<u64> = name.split('x').map(number).collect::<Option<_>>()?;
    sizes.try_into().ok()
}

fn measured(
    index: usize,
    config: Config,
    alone: Option<TwoLengths>,
    resources: Option<Resources>,
    fine: Option<(usize, &BTreeMap<String, Figure>)>,
) -> Result<Measured, DataError> {
    let launches = |part: &str, message: &str| DataError {
        file: File::Launches,
        path: format!("mm.{part}.{index}"),
        message: format!("{message} of configuration {config}"),
    };
    let one_item = |message| launches("one_item", message);
    let alone = alone.ok_or_else(|| one_item("no one-program measurement"))?;
    let [Some(short), Some(long)] = alone.us else {
        return Err(one_item("no time of one program"));
    };
    // Nanoseconds a K step, and microseconds of the rest.
    let line = |k: [f64; 2], us: [f64; 2]| {
        let slope = (us[1] - us[0]) / (k[1] - k[0]) * config.bk as f64;
        let rest = us[0] - slope * (k[0] / config.bk as f64).ceil();
        let plausible = slope > 0.0 && slope < 1e6 && rest.abs() < 1e12;
        plausible.then_some((slope * 1e3, rest))
    };
    let (held, rest_us) = line(alone.k, [short, long])
        .ok_or_else(|| one_item("the time of one program does not rise with k"))?;

    let resources = resources.ok_or_else(|| launches("resources", "no resources"))?;
    let resources =
        limited(resources).ok_or_else(|| launches("resources", "impossible resources"))?;

    let Some((fine_index, fine)) = fine else {
        return Err(DataError {
            file: File::OneProgram,
            path: "one".to_owned(),
            message: format!("no measurements of configuration {config}"),
        });
    };
    let one = |part: &str, message: &str| DataError {
        file: File::OneProgram,
        path: format!("one.{fine_index}.{part}"),
        message: format!("{message} of configuration {config}"),
    };
    // From the shortest and the longest K that were measured.
    let slope = |what: &str| {
        let time = |(key, figure): (&String, &Figure)| {
            let k: u32 = key.strip_prefix(what)?.strip_prefix('_')?.parse().ok()?;
            match figure {
                Figure::Us(us) => Some((k, *us)),
                _ => None,
            }
        };
        let times: BTreeMap<u32, f64> = fine.iter().filter_map(time).collect();
        let (short, long) = (times.first_key_value()?, times.last_key_value()?);
        let k = [f64::from(*short.0), f64::from(*long.0)];
        line(k, [*short.1, *long.1]).map(|(slope, _)| slope)
    };
    let must = |what: &str| {
        slope(what).ok_or_else(|| one(what, "no time of one program that rises with k"))
    };
    let unaligned = match fine.get("unaligned_resources") {
        Some(Figure::Resources(r)) => limited(*r),
        _ => None,
    };
    let unaligned =
        unaligned.ok_or_else(|| one("unaligned_resources", "none, or impossible ones,"))?;
    Ok(Measured {
        config,
        resources,
        unaligned,
        slopes: Slopes {
            held,
            l2: must("stream_l2")?,
            cold: must("stream_cold")?,
            all: [1, 2, 4].map(|n| slope(&format!("all_sms_x{n}_hold"))),
            unaligned: must("unaligned_hold")?,
            rest_us,
        },
    })
}

/// Far above what hardware has, small enough that no product of them overflows.
fn limited(resources: Resources) -> Option<Resources> {
    let Resources { regs, shared, .. } = resources;
    (regs <= 1 << 16 && shared <= 1 << 32).then_some(resources)
}
