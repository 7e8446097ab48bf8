//! Candidate spaces: lists of tile configurations, as kernels.
//!
//! Readers for the lists in use ([`read_json`]: Triton's and Inductor's configurations;
//! [`read_tiles`]: PyTorchSim's candidate files), and [`matmul`], which makes a kernel of each entry.
//! [`product`] makes kernels of any kind from values of some of their options.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::{CostModel, Kernel, KernelSpec, Matmul, args, bad};
use crate::error::{ErrorCode, TraceError, closest};

type Result<T> = std::result::Result<T, TraceError>;

/// Largest list, in bytes.
pub const MAX_BYTES: usize = 16 << 20;
/// Most configurations of a list.
pub const MAX_CONFIGS: usize = 1 << 16;

/// One configuration of a matmul.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TileConfig {
    /// Tile sizes along M, N and K.
    pub tile: [u64; 3],
    /// Triton's `num_stages`, if the list gives it.
    pub stages: Option<u32>,
    /// Triton's `num_warps`.
    pub warps: Option<u32>,
    /// Rows of tiles in a group of the program order.
    pub group: Option<u64>,
}

impl TileConfig {
    /// A name for people: `128x128x64`, then stages, warps and group as far as they are known
    /// (`128x128x64_s3_w4_g8`).
    pub fn key(&self) -> String {
        let [m, n, k] = self.tile;
        let mut key = format!("{m}x{n}x{k}");
        for (letter, value) in [
            ('s', self.stages.map(u64::from)),
            ('w', self.warps.map(u64::from)),
            ('g', self.group),
        ] {
            if let Some(value) = value {
                key.push('_');
                key.push(letter);
                key.push_str(&value.to_string());
            }
        }
        key
    }
}

/// How many buffers per operand Triton's `num_stages` means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StageBuffers {
    /// As many (operands stay in shared memory while they are used, as on Hopper).
    #[default]
    Same,
    /// One fewer, at least one (operands pass through registers).
    OneFewer,
    /// What Triton 3.6 does on Hopper: as many where the product runs as `wgmma`, from 64 rows and 4
    /// warps on (and where the list gives no warps), else one fewer.
    Hopper,
}

impl StageBuffers {
    fn of(self, config: &TileConfig, stages: u32) -> u32 {
        let [rows, ..] = config.tile;
        let same = match self {
            StageBuffers::Same => true,
            StageBuffers::OneFewer => false,
            StageBuffers::Hopper => rows >= 64 && config.warps.is_none_or(|w| w >= 4),
        };
        stages.saturating_sub(u32::from(!same)).max(1)
    }
}

/// A configuration and its kernel, or why it has none.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// [`TileConfig::key`].
    pub key: String,
    /// The configuration.
    pub config: TileConfig,
    /// Its kernel; a configuration that cannot be does not spoil the others.
    pub spec: Result<KernelSpec>,
}

/// The kernel `base` in every configuration, in the order of the list.
pub fn matmul(
    base: &Matmul,
    cost: &CostModel,
    configs: &[TileConfig],
    buffers: StageBuffers,
) -> Vec<Candidate> {
    let one = |config: &TileConfig| {
        let kernel = Kernel::Matmul(Matmul {
            tile: config.tile,
            stages: config.stages.map_or(base.stages, |s| buffers.of(config, s)),
            group: config.group.unwrap_or(base.group),
            ..base.clone()
        });
        let spec = KernelSpec::new(kernel, cost.clone());
        Candidate {
            key: config.key(),
            config: *config,
            spec: spec.check().map(|()| spec),
        }
    };
    configs.iter().map(one).collect()
}

/// A name of a candidate and its kernel, or why it has none.
pub type Named = (String, Result<KernelSpec>);

/// Kernels of any kind with every combination of some options' values, the last option varying
/// fastest; `options` are those that all share, as [`args::parse_args`] takes them. A combination that
/// is no kernel does not spoil the others. Names are `option=value` with blanks between.
///
/// # Errors
///
/// An unknown kind, an option the kind does not have or that is given twice, or more than
/// [`MAX_CONFIGS`] combinations.
pub fn product(
    kind: &str,
    options: &BTreeMap<String, String>,
    vary: &[(String, Vec<String>)],
    cost: &CostModel,
) -> Result<Vec<Named>> {
    let kind = args::kind(kind)?;
    let mut count = 1usize;
    let mut seen: BTreeSet<String> = options.keys().map(|o| o.replace('-', "_")).collect();
    for (name, values) in vary {
        let plain = name.replace('-', "_");
        let path = format!("options.{plain}");
        kind.option(&plain)?;
        if !seen.insert(plain) {
            return Err(bad(&path, "given twice", "give it once"));
        }
        count = count.saturating_mul(values.len());
        check_count(&path, count)?;
    }
    let one = |number: usize| {
        let mut options = options.clone();
        let mut words = Vec::with_capacity(vary.len());
        let mut left = number;
        for (name, values) in vary.iter().rev() {
            let value = values.get(left % values.len().max(1));
            left /= values.len().max(1);
            let value = value.cloned().unwrap_or_default();
            words.push(format!("{name}={value}"));
            options.insert(name.clone(), value);
        }
        words.reverse();
        let spec = args::parse_args(kind.name, &options, cost);
        (words.join(" "), spec)
    };
    Ok((0..count).map(one).collect())
}

/// Reads configurations from JSON: a list of objects, or with `list` the list of that name (a path
/// with dots, for example `mm.configs`) in an object. Keys may be spelled `block_m`, `BLOCK_M`,
/// `BLOCK_SIZE_M`, `BM` or `TILE_M` (and so on), and may stand in a `kwargs` object as in a saved
/// `triton.Config`. Keys whose value is null do not count.
///
/// # Errors
///
/// Text that is no such list, a list that is too long, an entry with an unknown key, without a tile
/// size or with a value that is no whole number. The path is the entry's, `mm_configs[3].block_m`.
pub fn read_json(text: &str, list: Option<&str>) -> Result<Vec<TileConfig>> {
    check_bytes(text)?;
    let document: Value = serde_json::from_str(text)
        .map_err(|e| TraceError::new(ErrorCode::Syntax, "", format!("no JSON: {e}")))?;
    let mut at = &document;
    for key in list.iter().flat_map(|l| l.split('.')) {
        at = at.get(key).ok_or_else(|| {
            let error = TraceError::new(
                ErrorCode::MissingKey,
                list.unwrap_or_default(),
                format!("no list called {key:?}"),
            );
            match at.as_object() {
                Some(o) => {
                    let names: Vec<&str> = o.keys().take(64).map(String::as_str).collect();
                    error.with_hint(format!("there are {}", names.join(", ")))
                }
                None => error,
            }
        })?;
    }
    let path = list.unwrap_or_default();
    let Some(entries) = at.as_array() else {
        return Err(bad(
            path,
            "not a list",
            "give a list of configurations, or name the one to read",
        ));
    };
    check_count(path, entries.len())?;
    let read = |(i, entry): (usize, &Value)| {
        let path = format!("{path}[{i}]");
        let Some(object) = entry.as_object() else {
            return Err(bad(&path, "not an object", "write {\"block_m\": ..., ...}"));
        };
        config(&path, object)
    };
    entries.iter().enumerate().map(read).collect()
}

const KEYS: &[(&str, &[&str])] = &[
    ("block_m", &["block_m", "block_size_m", "bm", "tile_m"]),
    ("block_n", &["block_n", "block_size_n", "bn", "tile_n"]),
    ("block_k", &["block_k", "block_size_k", "bk", "tile_k"]),
    ("num_stages", &["num_stages", "stages"]),
    ("num_warps", &["num_warps", "warps"]),
    ("group_m", &["group_m", "group_size_m", "gm"]),
];

fn config(path: &str, object: &Map<String, Value>) -> Result<TileConfig> {
    let mut values: [Option<u64>; 6] = [None; 6];
    let nested = object.get("kwargs").and_then(Value::as_object);
    let nested = nested
        .into_iter()
        .flatten()
        .map(|(k, v)| (format!("{path}.kwargs.{k}"), k, v));
    let own = object.iter().map(|(k, v)| (format!("{path}.{k}"), k, v));
    for (path, key, value) in own.chain(nested) {
        if value.is_null() || (key == "kwargs" && value.is_object()) {
            continue;
        }
        let plain = key.to_ascii_lowercase();
        let known = KEYS
            .iter()
            .position(|(_, names)| names.contains(&plain.as_str()));
        let Some(slot) = known.and_then(|at| values.get_mut(at)) else {
            let error = TraceError::new(ErrorCode::UnknownKey, path, "no such option of a matmul");
            let names = KEYS.iter().flat_map(|(_, names)| names.iter().copied());
            return Err(match closest(&plain, names) {
                Some(near) => error.with_hint(format!("did you mean {near:?}?")),
                None => error.with_hint("remove it, or give it the value null"),
            });
        };
        let Some(number) = value.as_u64() else {
            return Err(bad(
                &path,
                "not a whole number",
                "write a number of 0 or more",
            ));
        };
        if slot.replace(number).is_some() {
            return Err(bad(
                &path,
                "given twice under several spellings",
                "give it once",
            ));
        }
    }
    let [m, n, k, stages, warps, group] = values;
    let need = |value: Option<u64>, name: &str| {
        value.ok_or_else(|| {
            TraceError::new(
                ErrorCode::MissingKey,
                format!("{path}.{name}"),
                "no tile size",
            )
            .with_hint("a configuration has block_m, block_n and block_k")
        })
    };
    let narrow = |value: Option<u64>, name: &str| {
        value
            .map(|v| {
                u32::try_from(v).map_err(|_| {
                    bad(
                        &format!("{path}.{name}"),
                        format!("a value of {v}"),
                        "use a smaller one",
                    )
                })
            })
            .transpose()
    };
    Ok(TileConfig {
        tile: [
            need(m, "block_m")?,
            need(n, "block_n")?,
            need(k, "block_k")?,
        ],
        stages: narrow(stages, "num_stages")?,
        warps: narrow(warps, "num_warps")?,
        group,
    })
}

/// Reads PyTorchSim's candidate files: a line per configuration, tile sizes along M, N and K with
/// blanks between them. Empty lines and lines that start with `#` do not count.
///
/// # Errors
///
/// A line that is anything else, or too many of them.
pub fn read_tiles(text: &str) -> Result<Vec<TileConfig>> {
    check_bytes(text)?;
    let mut configs = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let path = format!("line {}", index + 1);
        let sizes: Option<Vec<u64>> = line
            .split_ascii_whitespace()
            .map(|cell| {
                let digits = cell.bytes().all(|b| b.is_ascii_digit());
                cell.parse().ok().filter(|_| digits)
            })
            .collect();
        let Some([m, n, k]) = sizes.as_deref() else {
            return Err(bad(
                &path,
                "not three tile sizes",
                "write M, N and K, such as 128 128 64",
            ));
        };
        configs.push(TileConfig {
            tile: [*m, *n, *k],
            ..TileConfig::default()
        });
        check_count(&path, configs.len())?;
    }
    Ok(configs)
}

fn check_bytes(text: &str) -> Result<()> {
    if text.len() <= MAX_BYTES {
        return Ok(());
    }
    Err(TraceError::new(
        ErrorCode::TooLarge,
        "",
        format!("a list of {} bytes", text.len()),
    )
    .with_hint(format!("use at most {MAX_BYTES}")))
}

fn check_count(path: &str, count: usize) -> Result<()> {
    if count <= MAX_CONFIGS {
        return Ok(());
    }
    Err(
        TraceError::new(ErrorCode::TooLarge, path, format!("{count} configurations"))
            .with_hint(format!("use at most {MAX_CONFIGS}")),
    )
}
