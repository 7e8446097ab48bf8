//! PyTorchSim's machine files.
//!
//! Facts (keys, defaults, cross-checks) follow PyTorchSim's public sources as of November 2026; what
//! its simulator does with them on traces is what `tests/golden` figures show. By default an imported
//! machine behaves like that simulator does on traces today: the L2 and NUMA settings have no effect,
//! clock periods are cut to whole picoseconds, lines are spread over channels by the ipoly hash, a
//! core holds two work-items, and one compute tile is in flight per core. With
//! [`ImportOptions::as_configured`] the machine is what the file says, with exact clocks.
//!
//! Reading ([`read`]) and building ([`import`]) are two steps: reading gathers every fact of the file
//! and of the files it names and cross-checks them; building needs a model for each.

use super::booksim::NetworkFile;
use super::ramulator::DeviceFile;
use super::{ImportOptions, Imported, KeyReport, Resolver, Verdict, file_error};
use crate::machine::error::{MachineError, code};
use crate::machine::spec::Machine;
use crate::machine::text::{nearest, parse_map, show};
use serde_json::{Value, json};

/// Keys that PyTorchSim's simulator reads.
const SIMULATOR_KEYS: &[&str] = &[
    "num_cores",
    "core_type",
    "core_freq_mhz",
    "core_stats_print_period_cycles",
    "num_systolic_array_per_core",
    "core_spad_size_kb",
    "sa_weight_buffer_depth",
    "systolic_array_split",
    "systolic_array_unit",
    "num_stonne_per_core",
    "num_stonne_port",
    "stonne_config_path",
    "dram_type",
    "dram_channels",
    "dram_freq_mhz",
    "dram_latency",
    "dram_req_size_byte",
    "dram_bandwidth_gbps_per_channel",
    "dram_bandwidth_gbps_total",
    "dram_stats_print_period_cycles",
    "dram_num_partitions",
    "ramulator_config_path",
    "l2d_type",
    "l2d_config",
    "l2d_hit_latency",
    "icnt_type",
    "icnt_latency_cycles",
    "icnt_freq_mhz",
    "icnt_injection_ports_per_core",
    "icnt_stats_print_period_cycles",
    "booksim_config_path",
    "energy_cost_table_path",
    "scheduler",
    "num_partition",
    "partition",
];

/// Keys that its compiler reads. The first three describe hardware.
const COMPILER_KEYS: &[&str] = &[
    "vpu_num_lanes",
    "vpu_vector_length_bits",
    "vpu_spad_size_kb_per_lane",
    "pytorchsim_functional_mode",
    "pytorchsim_timing_mode",
    "codegen_mapping_strategy",
    "codegen_external_mapping_file",
    "codegen_autotune_max_retry",
    "codegen_autotune_template_topk",
    "codegen_compiler_optimization",
];

/// Keys of older files, and what they are called now.
const OLD_KEYS: &[(&str, &str)] = &[
    ("icnt_config_path", "booksim_config_path"),
    ("icnt_freq", "icnt_freq_mhz"),
    ("icnt_latency", "icnt_latency_cycles"),
    ("core_freq", "core_freq_mhz"),
    ("dram_freq", "dram_freq_mhz"),
    ("dram_config_path", "ramulator_config_path"),
    ("core_print_interval", "core_stats_print_period_cycles"),
    ("dram_print_interval", "dram_stats_print_period_cycles"),
];

/// Our key for each of theirs that goes over, to name theirs in errors.
const PATHS: &[(&str, &str)] = &[
    ("clocks.core_mhz", "core_freq_mhz"),
    ("clocks.noc_mhz", "icnt_freq_mhz"),
    ("clocks.dram_mhz", "dram_freq_mhz"),
    ("cores.count", "num_cores"),
    ("cores.partition", "partition"),
    ("cores.systolic_arrays", "num_systolic_array_per_core"),
    ("cores.array_rows", "vpu_num_lanes"),
    ("cores.array_cols", "vpu_num_lanes"),
    ("cores.weight_slots", "sa_weight_buffer_depth"),
    ("cores.array_unit", "systolic_array_unit"),
    ("cores.vector_lanes", "vpu_num_lanes"),
    ("cores.vector_bits", "vpu_vector_length_bits"),
    ("cores.scratchpad_bytes", "core_spad_size_kb"),
    ("cores.injection_ports", "icnt_injection_ports_per_core"),
    ("noc.latency_cycles", "icnt_latency_cycles"),
    ("l2.sets", "l2d_config"),
    ("l2.ways", "l2d_config"),
    ("l2.line_bytes", "l2d_config"),
    ("l2.sector_bytes", "l2d_config"),
    ("l2.mshr_entries", "l2d_config"),
    ("l2.mshr_merges", "l2d_config"),
    ("l2.miss_queue", "l2d_config"),
    ("l2.hit_latency_cycles", "l2d_hit_latency"),
    ("dram.channels", "dram_channels"),
    ("dram.partitions", "dram_num_partitions"),
    ("dram.request_bytes", "dram_req_size_byte"),
    ("dram.latency_cycles", "dram_latency"),
    ("dram.bytes_per_cycle", "dram_bandwidth_gbps_per_channel"),
];

/// Whether a key is one that PyTorchSim's simulator reads: how its files are told apart.
pub fn is_key(key: &str) -> bool {
    SIMULATOR_KEYS.contains(&key)
}

/// Everything a file and those it names say, cross-checked.
#[derive(Clone, Debug)]
pub struct Description {
    /// Kinds of the cores (`ws_mesh`, `stonne`), one a core; empty: all `ws_mesh`.
    pub core_types: Vec<String>,
    /// The part that goes over whatever the NoC and DRAM are: a tree in our schema.
    pub base: Value,
    /// The DRAM.
    pub dram: DramFacts,
    /// The L2, as configured.
    pub l2: Option<L2Facts>,
    /// The NoC.
    pub noc: NocFacts,
    /// What became of each key.
    pub report: Vec<KeyReport>,
}

/// What a file says of its DRAM.
#[derive(Clone, Debug)]
pub enum DramFacts {
    /// A fixed latency under a bandwidth cap.
    Simple {
        /// DRAM cycles.
        latency: u64,
        /// Bytes per DRAM cycle and channel.
        bytes_per_cycle: Option<f64>,
    },
    /// A Ramulator 2 device.
    Ramulator(DeviceFile),
}

/// What a file says of its L2: the configuration text, in GPGPU-Sim's notation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct L2Facts {
    /// Configuration text of one slice; there is a slice per channel.
    pub config: String,
    /// Core cycles of a hit.
    pub hit_latency: u64,
}

impl L2Facts {
    /// Our `l2` section for requests of `request_bytes`.
    ///
    /// The text reads `type:sets:line:ways,sector,replacement:write:allocate:write
    /// allocate:index,mshr type:entries:merges,miss queue:result queue,port width`.
    fn tree(&self, request_bytes: u64) -> Result<Value, MachineError> {
        let key = "l2d_config";
        let bad = |what: &str, found: &str| {
            MachineError::new(
                code::NOT_ONE_OF,
                key,
                format!("'{}': {what} cannot be '{}'", cut(&self.config), cut(found)),
            )
        };
        let groups: Vec<Vec<&str>> = self
            .config
            .split(',')
            .map(|group| group.split(':').map(str::trim).collect())
            .collect();
        let [shape, sector, policy, mshr, queues, ..] = groups.as_slice() else {
            return Err(bad("the whole", "of fewer than five groups")
                .hint("for example S:128:128:512,32,L:B:m:W:L,A:192:4,32:0,32"));
        };
        let number = |group: &[&str], at: usize, what: &str| -> Result<u64, MachineError> {
            let text = group.get(at).copied().unwrap_or_default();
            text.parse::<u32>()
                .map(u64::from)
                .map_err(|_| bad(what, text))
        };
        let letter = |group: &[&str], at: usize, what: &str, known: &[(&str, &'static str)]| {
            let text = group.get(at).copied().unwrap_or_default();
            let found = known.iter().find(|(theirs, _)| *theirs == text);
            found.map(|(_, ours)| *ours).ok_or_else(|| {
                let names: Vec<&str> = known.iter().map(|(theirs, _)| *theirs).collect();
                bad(what, text).hint(format!("modelled here: {}", names.join(", ")))
            })
        };
        let line = number(shape, 2, "the line's bytes")?;
        let sector = match letter(shape, 0, "the type", &[("S", "sectored"), ("N", "plain")])? {
            "plain" => line,
            // A request larger than a sector fills several at once.
            _ => number(sector, 0, "the sector's bytes")?.max(request_bytes),
        };
        letter(policy, 0, "the replacement", &[("L", "lru")])?;
        letter(mshr, 0, "the miss registers' type", &[("A", ""), ("S", "")])?;
        let write = letter(
            policy,
            1,
            "the write policy",
            &[("B", "back"), ("T", "through"), ("L", "through")],
        )?;
        let allocate = letter(
            policy,
            2,
            "the allocation",
            &[("m", "on_miss"), ("f", "on_fill"), ("s", "on_fill")],
        )?;
        let write_allocate = letter(
            policy,
            3,
            "the write allocation",
            &[
                ("N", "none"),
                ("W", "write_and_fetch"),
                ("F", "fetch"),
                ("L", "validate"),
            ],
        )?;
        let index = letter(
            policy,
            4,
            "the set index",
            &[("L", "linear"), ("X", "xor"), ("P", "ipoly")],
        )?;
        Ok(json!({
            "model": "datacache",
            "sets": number(shape, 1, "the number of sets")?,
            "ways": number(shape, 3, "the number of ways")?,
            "line_bytes": line,
            "sector_bytes": sector,
            "set_index": index,
            "write": write,
            "write_allocate": write_allocate,
            "allocate": allocate,
            "mshr_entries": number(mshr, 1, "the number of miss registers")?,
            "mshr_merges": number(mshr, 2, "the number of merges")?,
            "miss_queue": number(queues, 0, "the miss queue")?,
            "hit_latency_cycles": self.hit_latency,
        }))
    }
}

/// The start of a text, for messages.
fn cut(text: &str) -> String {
    text.chars().take(80).collect()
}

/// What a file says of its NoC.
#[derive(Clone, Debug)]
pub enum NocFacts {
    /// A latency.
    Simple {
        /// NoC cycles.
        latency: u64,
    },
    /// A BookSim network.
    BookSim(NetworkFile),
}

/// Imports a machine file.
///
/// # Errors
///
/// What PyTorchSim refuses is refused here (missing keys, weight depth 0, a DRAM clock that
/// contradicts its device file, ...), and so is hardware that no model here covers
/// ([`code::NOT_MODELLED`]). Paths in errors are keys of the imported file.
pub fn import(
    text: &str,
    resolver: &dyn Resolver,
    options: ImportOptions,
) -> Result<Imported, MachineError> {
    build(read(text, resolver, options)?, options)
}

/// Builds the machine that a description describes, if there is a model for each of its parts.
///
/// # Errors
///
/// As [`import`].
pub fn build(description: Description, options: ImportOptions) -> Result<Imported, MachineError> {
    let Description {
        core_types,
        mut base,
        dram,
        l2,
        noc,
        report,
    } = description;
    let missing =
        |path: &str, message: String| MachineError::new(code::NOT_MODELLED, path, message);
    if core_types.iter().any(|kind| kind == "stonne") {
        return Err(missing(
            "core_type",
            "sparse STONNE cores are not modelled".to_owned(),
        )
        .hint("only ws_mesh cores (weight-stationary systolic arrays) are"));
    }
    match dram {
        DramFacts::Simple {
            latency,
            bytes_per_cycle,
        } => {
            set(&mut base, "dram", "model", json!("simple"));
            set(&mut base, "dram", "latency_cycles", json!(latency));
            set(&mut base, "dram", "bytes_per_cycle", json!(bytes_per_cycle));
        }
        DramFacts::Ramulator(device) => {
            set(&mut base, "dram", "model", json!("banked"));
            set(&mut base, "dram", "device", device.tree);
        }
    }
    match noc {
        NocFacts::Simple { latency } => {
            set(&mut base, "noc", "model", json!("simple"));
            set(&mut base, "noc", "latency_cycles", json!(latency));
        }
        NocFacts::BookSim(network) => {
            let params = serde_json::to_value(&network.params).map_err(|error| {
                MachineError::new(code::NETWORK, "booksim_config_path", error.to_string())
            })?;
            set(&mut base, "noc", "model", json!("flit"));
            for name in ["topology", "router", "flit_bytes", "injection_queue_flits"] {
                set(
                    &mut base,
                    "noc",
                    name,
                    params.get(name).cloned().unwrap_or_default(),
                );
            }
        }
    }
    if options.as_configured
        && let Some(facts) = &l2
    {
        let request = base.pointer("/dram/request_bytes").and_then(Value::as_u64);
        let l2 = facts.tree(request.unwrap_or(32))?;
        let _ = crate::machine::schema::set(&mut base, "l2", l2);
    }
    let machine = Machine::from_value(base).map_err(theirs)?;
    Ok(Imported { machine, report })
}

/// Names their key, where we have one, in an error of ours.
fn theirs(mut error: MachineError) -> MachineError {
    if let Some((_, key)) = PATHS.iter().find(|(ours, _)| error.path == *ours) {
        error.path = (*key).to_owned();
    }
    error
}

fn set(tree: &mut Value, section: &str, name: &str, value: Value) {
    let _ = crate::machine::schema::set(tree, &format!("{section}.{name}"), value);
}

/// The entries of a file, with what became of each.
struct Reader {
    entries: Vec<(String, Value, Option<Verdict>)>,
    absent: Vec<KeyReport>,
}

impl Reader {
    fn new(text: &str) -> Result<Reader, MachineError> {
        let mut entries: Vec<_> = parse_map(text)?
            .into_iter()
            .map(|(key, value)| (key, value, None))
            .collect();
        for (key, _, verdict) in &mut entries {
            if !SIMULATOR_KEYS.contains(&key.as_str()) && !COMPILER_KEYS.contains(&key.as_str()) {
                *verdict = Some(Verdict::NotApplicable(unread(key)));
            }
        }
        Ok(Reader {
            entries,
            absent: Vec::new(),
        })
    }

    /// The value of a key that is there and not null.
    fn get(&self, key: &str) -> Option<&Value> {
        let (_, value, _) = self.entries.iter().find(|(name, _, _)| name == key)?;
        (!value.is_null()).then_some(value)
    }

    fn verdict(&mut self, key: &str, verdict: Verdict) {
        if let Some((_, _, slot)) = self.entries.iter_mut().find(|(name, _, _)| name == key) {
            *slot = Some(verdict);
        } else {
            self.absent.push(KeyReport {
                key: key.to_owned(),
                value: "absent".to_owned(),
                verdict,
            });
        }
    }

    fn used(&mut self, key: &str, text: impl Into<String>) {
        self.verdict(key, Verdict::UsedAs(text.into()));
    }

    fn mapped(&mut self, key: &str, text: impl Into<String>) {
        self.verdict(key, Verdict::MappedTo(text.into()));
    }

    /// Notes that a key has no effect, if it is there.
    fn ignored(&mut self, key: &str, text: impl Into<String>) {
        if self.entries.iter().any(|(name, _, _)| name == key) {
            self.verdict(key, Verdict::NotApplicable(text.into()));
        }
    }

    fn missing(&self, key: &str) -> MachineError {
        let error = MachineError::new(code::MISSING_KEY, key, "is required");
        let old = OLD_KEYS
            .iter()
            .find(|(old, new)| *new == key && self.get(old).is_some());
        let unread = || {
            self.entries
                .iter()
                .map(|(name, _, _)| name.as_str())
                .filter(|name| !is_key(name))
        };
        match old.map(|(old, _)| *old).or_else(|| nearest(key, unread())) {
            Some(other) => error.hint(format!(
                "'{other}' is not read any more: rename it to '{key}'"
            )),
            None => error,
        }
    }

    fn whole(&self, key: &str) -> Result<Option<u64>, MachineError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let number = match value {
            Value::Number(number) => number.as_u64(),
            // A quoted number is a number to their reader.
            Value::String(text) => text.parse().ok(),
            _ => None,
        };
        match number {
            Some(number) if number <= u64::from(u32::MAX) => Ok(Some(number)),
            _ => Err(MachineError::new(
                code::WRONG_TYPE,
                key,
                format!("expected a whole number below 2^32, found {}", show(value)),
            )),
        }
    }

    fn whole_required(&self, key: &str) -> Result<u64, MachineError> {
        self.whole(key)?.ok_or_else(|| self.missing(key))
    }

    fn number(&self, key: &str) -> Result<Option<f64>, MachineError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let number = match value {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => text.parse().ok().filter(|n: &f64| n.is_finite()),
            _ => None,
        };
        number.map(Some).ok_or_else(|| {
            MachineError::new(
                code::WRONG_TYPE,
                key,
                format!("expected a number, found {}", show(value)),
            )
        })
    }

    fn word(&self, key: &str) -> Result<Option<&str>, MachineError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        value.as_str().map(Some).ok_or_else(|| {
            MachineError::new(
                code::WRONG_TYPE,
                key,
                format!("expected a word, found {}", show(value)),
            )
        })
    }

    fn word_required(&self, key: &str) -> Result<&str, MachineError> {
        self.word(key)?.ok_or_else(|| self.missing(key))
    }

    fn not_one_of(&self, key: &str, words: &str) -> MachineError {
        let found = self.get(key).map(show).unwrap_or_default();
        MachineError::new(
            code::NOT_ONE_OF,
            key,
            format!("{found} is not one of {words}"),
        )
    }

    fn finish(self) -> Vec<KeyReport> {
        let entries = self
            .entries
            .into_iter()
            .map(|(key, value, verdict)| KeyReport {
                key,
                value: match &value {
                    Value::String(text) => text.clone(),
                    other => show(other),
                },
                verdict: verdict.unwrap_or_else(|| {
                    Verdict::NotApplicable("it does not describe timing".to_owned())
                }),
            });
        entries.chain(self.absent).collect()
    }
}

/// Why a key that nothing reads has no effect.
fn unread(key: &str) -> String {
    let all = || SIMULATOR_KEYS.iter().chain(COMPILER_KEYS).copied();
    let new = OLD_KEYS
        .iter()
        .find(|(old, _)| *old == key)
        .map(|(_, new)| *new);
    match new.or_else(|| nearest(key, all())) {
        Some(near) => format!("PyTorchSim does not read it; did you mean '{near}'?"),
        None => "PyTorchSim does not read it".to_owned(),
    }
}

/// Reads a machine file and the files it names.
///
/// # Errors
///
/// As [`import`], but for hardware without a model.
pub fn read(
    text: &str,
    resolver: &dyn Resolver,
    options: ImportOptions,
) -> Result<Description, MachineError> {
    let mut file = Reader::new(text)?;
    let mut base = json!({"clocks": {}, "cores": {}, "noc": {}, "dram": {}});
    let as_configured = options.as_configured;
    let periods = if as_configured {
        "exact"
    } else {
        "whole_picoseconds"
    };
    set(&mut base, "clocks", "periods", json!(periods));

    let core_types = read_cores(&mut file, &mut base, as_configured)?;
    let dram = read_dram(&mut file, &mut base, resolver, as_configured)?;
    read_partitions(&mut file, &mut base, as_configured)?;
    let l2 = read_l2(&mut file, as_configured)?;
    let noc = read_noc(&mut file, &mut base, resolver, as_configured)?;
    read_energy(&mut file, &mut base, resolver, as_configured)?;
    read_rest(&mut file);

    set(&mut base, "dram", "channel_map", json!("ipoly"));
    file.used(
        "(channel map)",
        "dram.channel_map: ipoly, the only one PyTorchSim has",
    );
    if !as_configured && matches!(dram, DramFacts::Ramulator(_)) {
        set(&mut base, "dram", "reply_port", json!("inner_line"));
        file.used(
            "(reply port)",
            "dram.reply_port: inner_line, since PyTorchSim looks for a reply's port by the address \
             that Ramulator was given",
        );
    }
    set(&mut base, "cores", "residency", json!("shared"));
    set(&mut base, "cores", "max_residents", json!(2));
    file.used(
        "(resident work-items)",
        "cores.max_residents: 2, as PyTorchSim has it",
    );
    set(&mut base, "cores", "compute_issue", json!("serial"));
    file.used(
        "(compute issue)",
        "cores.compute_issue: serial, as PyTorchSim has it",
    );
    Ok(Description {
        core_types,
        base,
        dram,
        l2,
        noc,
        report: file.finish(),
    })
}

/// Says what a clock's period is.
fn clock_text(path: &str, mhz: f64, as_configured: bool) -> String {
    let exact = 1e6 / mhz;
    if as_configured || exact == exact.floor() {
        path.to_owned()
    } else {
        format!(
            "{path}; its period is cut to {} ps, as PyTorchSim does",
            exact.floor()
        )
    }
}

fn read_cores(
    file: &mut Reader,
    base: &mut Value,
    as_configured: bool,
) -> Result<Vec<String>, MachineError> {
    let count = file.whole_required("num_cores")?;
    set(base, "cores", "count", json!(count));
    file.used("num_cores", "cores.count");

    let core_types = match file.get("core_type") {
        None => Vec::new(),
        Some(Value::Array(list)) => {
            let words: Option<Vec<_>> = list
                .iter()
                .map(|word| word.as_str().map(str::to_owned))
                .collect();
            words
                .filter(|words| {
                    words
                        .iter()
                        .all(|word| word == "ws_mesh" || word == "stonne")
                })
                .ok_or_else(|| file.not_one_of("core_type", "ws_mesh, stonne"))?
        }
        Some(value) => {
            return Err(MachineError::new(
                code::WRONG_TYPE,
                "core_type",
                format!("expected a list of words, found {}", show(value)),
            ));
        }
    };
    if file.get("core_type").is_some() {
        if core_types.len() as u64 != count {
            return Err(MachineError::new(
                code::CONTRADICTION,
                "core_type",
                format!("names {} cores, but num_cores is {count}", core_types.len()),
            ));
        }
        file.mapped("core_type", "cores: ws_mesh is the only kind there is");
    }
    let stonne = "there are no sparse STONNE cores here";
    for key in [
        "stonne_config_path",
        "num_stonne_per_core",
        "num_stonne_port",
    ] {
        file.ignored(key, stonne);
    }

    let mhz = file.whole_required("core_freq_mhz")?;
    set(base, "clocks", "core_mhz", json!(mhz));
    file.used(
        "core_freq_mhz",
        clock_text("clocks.core_mhz", mhz as f64, as_configured),
    );

    let arrays = file.whole("num_systolic_array_per_core")?;
    set(base, "cores", "systolic_arrays", json!(arrays.unwrap_or(1)));
    file.used(
        "num_systolic_array_per_core",
        if arrays.is_some() {
            "cores.systolic_arrays"
        } else {
            "cores.systolic_arrays: 1, the default"
        },
    );

    let depth = file.whole("sa_weight_buffer_depth")?;
    if depth == Some(0) {
        return Err(MachineError::new(
            code::OUT_OF_RANGE,
            "sa_weight_buffer_depth",
            "0 weight slots leave no place for a preload",
        )
        .hint("the default is 2"));
    }
    set(base, "cores", "weight_slots", json!(depth.unwrap_or(2)));
    file.used(
        "sa_weight_buffer_depth",
        if depth.is_some() {
            "cores.weight_slots"
        } else {
            "cores.weight_slots: 2, the default"
        },
    );

    // The arrays are as wide as the vector unit.
    let lanes = file.whole("vpu_num_lanes")?;
    for name in ["array_rows", "array_cols", "vector_lanes"] {
        set(base, "cores", name, json!(lanes.unwrap_or(128)));
    }
    file.used(
        "vpu_num_lanes",
        if lanes.is_some() {
            "cores.vector_lanes, and rows and columns of each systolic array"
        } else {
            "cores.vector_lanes: 128, and rows and columns of each systolic array"
        },
    );
    let bits = file.whole("vpu_vector_length_bits")?;
    set(base, "cores", "vector_bits", json!(bits.unwrap_or(256)));
    file.used(
        "vpu_vector_length_bits",
        if bits.is_some() {
            "cores.vector_bits"
        } else {
            "cores.vector_bits: 256"
        },
    );

    let scratchpad_kb = file.whole("core_spad_size_kb")?;
    let per_lane_kb = file.whole("vpu_spad_size_kb_per_lane")?;
    let bytes = match (scratchpad_kb, per_lane_kb) {
        (None, Some(per_lane)) if as_configured => {
            let bytes = per_lane
                .saturating_mul(lanes.unwrap_or(128))
                .saturating_mul(1024);
            file.mapped(
                "vpu_spad_size_kb_per_lane",
                format!("cores.scratchpad_bytes: {bytes}, for all lanes together"),
            );
            bytes
        }
        _ => {
            file.ignored(
                "vpu_spad_size_kb_per_lane",
                "only the compiler reads it; core_spad_size_kb is the simulated scratchpad",
            );
            match scratchpad_kb {
                Some(kb) => {
                    let what = if kb == 0 {
                        "0: unlimited".to_owned()
                    } else {
                        (kb * 1024).to_string()
                    };
                    file.mapped(
                        "core_spad_size_kb",
                        format!("cores.scratchpad_bytes: {what}"),
                    );
                }
                None => {
                    file.used(
                        "core_spad_size_kb",
                        "cores.scratchpad_bytes: 0 (unlimited), the default",
                    );
                }
            }
            scratchpad_kb.unwrap_or(0) * 1024
        }
    };
    set(base, "cores", "scratchpad_bytes", json!(bytes));

    let split = match file.word("systolic_array_split")? {
        None | Some("none") => false,
        Some("round_robin") => true,
        Some(_) => return Err(file.not_one_of("systolic_array_split", "none, round_robin")),
    };
    let unit = file.word("systolic_array_unit")?.map(str::to_owned);
    match (split, unit) {
        (false, Some(_)) => {
            return Err(MachineError::new(
                code::KEY_NOT_APPLICABLE,
                "systolic_array_unit",
                "it is ignored without systolic_array_split",
            )
            .hint("set systolic_array_split: round_robin, or remove it"));
        }
        (true, unit) => {
            set(base, "cores", "array_split", json!("round_robin"));
            if let Some(unit) = unit {
                set(base, "cores", "array_unit", json!(unit));
            }
            file.used("systolic_array_split", "cores.array_split");
            file.used("systolic_array_unit", "cores.array_unit");
        }
        (false, None) => {
            if file.get("systolic_array_split").is_some() {
                file.used("systolic_array_split", "cores.array_split");
            }
        }
    }

    let partitions = file.whole("num_partition")?;
    if let Some(value) = file.get("partition") {
        let Value::Object(map) = value else {
            return Err(MachineError::new(
                code::WRONG_TYPE,
                "partition",
                format!("expected a map such as 'core_0: 0', found {}", show(value)),
            ));
        };
        // A core that is not named is in partition 0.
        let mut list = vec![0; usize::try_from(count).unwrap_or(0).min(1 << 16)];
        for (index, slot) in list.iter_mut().enumerate() {
            if let Some(value) = map.get(&format!("core_{index}")) {
                *slot = value.as_u64().ok_or_else(|| {
                    MachineError::new(
                        code::WRONG_TYPE,
                        format!("partition.core_{index}"),
                        format!("expected a whole number, found {}", show(value)),
                    )
                })?;
            }
        }
        let most = list.iter().copied().max().unwrap_or_default();
        if most >= partitions.unwrap_or(1).max(1) {
            return Err(MachineError::new(
                code::CONTRADICTION,
                "partition",
                format!(
                    "a core is in partition {most}, but num_partition is {}",
                    partitions.unwrap_or(1)
                ),
            )
            .hint("partitions are numbered from 0"));
        }
        if list.iter().any(|&p| p != 0) {
            set(base, "cores", "partition", json!(list));
        }
        file.mapped("partition", "cores.partition");
    }
    file.ignored("num_partition", "partitions are as many as the cores name");
    Ok(core_types)
}

fn read_dram(
    file: &mut Reader,
    base: &mut Value,
    resolver: &dyn Resolver,
    as_configured: bool,
) -> Result<DramFacts, MachineError> {
    let kind = match file.word_required("dram_type")? {
        "simple" => "simple",
        "ramulator2" => "ramulator2",
        _ => return Err(file.not_one_of("dram_type", "simple, ramulator2")),
    };
    let channels = file.whole_required("dram_channels")?;
    set(base, "dram", "channels", json!(channels));
    file.used("dram_channels", "dram.channels");
    let stated = file.whole("dram_freq_mhz")?;

    if kind == "ramulator2" {
        let path = file.word_required("ramulator_config_path")?.to_owned();
        let text = resolver
            .read(&path)
            .map_err(|why| file_error("ramulator_config_path", &path, &why))?;
        let device = DeviceFile::parse(&path, &text)?;
        if let Some(mhz) = stated
            && mhz != device.clock_mhz
        {
            return Err(MachineError::new(
                code::CONTRADICTION,
                "dram_freq_mhz",
                format!(
                    "{mhz} MHz, but the device file's clock is {} MHz (tCK {} ps)",
                    device.clock_mhz, device.tck_ps
                ),
            )
            .hint(format!("remove dram_freq_mhz, or correct '{path}'")));
        }
        set(base, "dram", "request_bytes", json!(device.request_bytes));
        set(base, "clocks", "dram_mhz", json!(device.clock_mhz));
        file.mapped("dram_type", "dram.model: banked");
        file.mapped(
            "ramulator_config_path",
            format!(
                "the {} device: {} bytes a request, {} pseudo-channels, {} GB/s a channel",
                device.device, device.request_bytes, device.pseudo_channels, device.peak_gbps
            ),
        );
        let clock = clock_text("clocks.dram_mhz", device.clock_mhz as f64, as_configured);
        file.used(
            "dram_freq_mhz",
            match stated {
                Some(_) => clock,
                None => format!("{clock}: {}, from the device file", device.clock_mhz),
            },
        );
        for key in [
            "dram_latency",
            "dram_req_size_byte",
            "dram_bandwidth_gbps_per_channel",
            "dram_bandwidth_gbps_total",
        ] {
            file.ignored(key, "the device file says it");
        }
        return Ok(DramFacts::Ramulator(device));
    }

    let latency = file.whole_required("dram_latency")?;
    file.used("dram_type", "dram.model");
    file.used("dram_latency", "dram.latency_cycles");
    let request = file.whole("dram_req_size_byte")?;
    set(base, "dram", "request_bytes", json!(request.unwrap_or(32)));
    file.used(
        "dram_req_size_byte",
        if request.is_some() {
            "dram.request_bytes"
        } else {
            "dram.request_bytes: 32, the default"
        },
    );
    file.ignored("ramulator_config_path", "dram_type is simple");

    let per_channel = file.number("dram_bandwidth_gbps_per_channel")?;
    let total = file.number("dram_bandwidth_gbps_total")?;
    let key = match (per_channel, total) {
        (Some(_), Some(_)) => {
            return Err(MachineError::new(
                code::CONTRADICTION,
                "dram_bandwidth_gbps_total",
                "stands beside dram_bandwidth_gbps_per_channel",
            )
            .hint("give one of them"));
        }
        (None, Some(_)) => "dram_bandwidth_gbps_total",
        _ => "dram_bandwidth_gbps_per_channel",
    };
    let figure = per_channel.or(total);
    if figure.is_some() && stated.is_none() {
        return Err(file
            .missing("dram_freq_mhz")
            .hint("a bandwidth needs the DRAM clock beside it"));
    }
    let core_mhz = file.whole_required("core_freq_mhz")?;
    let mhz = stated.unwrap_or(core_mhz);
    set(base, "clocks", "dram_mhz", json!(mhz));
    let clock = clock_text("clocks.dram_mhz", mhz as f64, as_configured);
    file.used(
        "dram_freq_mhz",
        match stated {
            Some(_) => clock,
            None => format!("{clock}: that of the cores, the default"),
        },
    );
    let bytes_per_cycle = match figure {
        None => {
            file.used(
                "dram_bandwidth_gbps_per_channel",
                "no cap beyond one request per DRAM cycle and channel, the default",
            );
            None
        }
        Some(figure) => {
            let divisor = if total.is_some() { channels.max(1) } else { 1 };
            let gbps = if as_configured {
                figure / divisor as f64
            } else {
                // Their figure is a 32-bit float, and the division by the channels one too.
                f64::from(figure as f32 / divisor as f32)
            };
            if !(gbps > 0.0 && gbps.is_finite()) {
                return Err(MachineError::new(
                    code::OUT_OF_RANGE,
                    key,
                    format!("{figure} is not a bandwidth above 0"),
                ));
            }
            let bytes = gbps * 1000.0 / mhz.max(1) as f64;
            let precision = if as_configured {
                ""
            } else {
                ", from the figure as a 32-bit float"
            };
            file.mapped(key, format!("dram.bytes_per_cycle: {bytes}{precision}"));
            Some(bytes)
        }
    };
    Ok(DramFacts::Simple {
        latency,
        bytes_per_cycle,
    })
}

fn read_partitions(
    file: &mut Reader,
    base: &mut Value,
    as_configured: bool,
) -> Result<(), MachineError> {
    let partitions = file.whole("dram_num_partitions")?.unwrap_or(1);
    let channels = file.whole_required("dram_channels")?;
    if partitions == 0 || channels % partitions != 0 {
        return Err(MachineError::new(
            code::CONTRADICTION,
            "dram_num_partitions",
            format!("{channels} channels cannot be divided into {partitions} partitions"),
        ));
    }
    if partitions == 1 {
        file.ignored("dram_num_partitions", "one partition is what there is");
    } else if as_configured {
        set(base, "dram", "partitions", json!(partitions));
        file.mapped("dram_num_partitions", "dram.partitions");
    } else {
        set(base, "dram", "partitions", json!(partitions));
        // The largest there is: every tensor lies in the first range.
        set(base, "dram", "partition_bytes", json!(1u64 << 52));
        file.mapped(
            "dram_num_partitions",
            "dram.partitions; dram.partition_bytes is so large that the first partition serves \
             everything, since PyTorchSim never sets NUMA placement on traces",
        );
    }
    Ok(())
}

fn read_l2(file: &mut Reader, as_configured: bool) -> Result<Option<L2Facts>, MachineError> {
    let facts = match file.word("l2d_type")? {
        None | Some("nocache") => None,
        Some("datacache") => Some(L2Facts {
            config: file.word_required("l2d_config")?.to_owned(),
            hit_latency: file.whole("l2d_hit_latency")?.unwrap_or(1),
        }),
        Some(_) => return Err(file.not_one_of("l2d_type", "nocache, datacache")),
    };
    let keys = ["l2d_type", "l2d_config", "l2d_hit_latency"];
    match &facts {
        None => {
            file.ignored("l2d_type", "no L2 is what there is");
            for key in &keys[1..] {
                file.ignored(key, "l2d_type is not datacache");
            }
        }
        Some(_) if as_configured => {
            for key in keys {
                if file.get(key).is_some() {
                    file.mapped(key, "l2");
                }
            }
        }
        Some(_) => {
            for key in keys {
                file.ignored(key, "PyTorchSim never uses the L2 on traces");
            }
        }
    }
    Ok(facts)
}

fn read_noc(
    file: &mut Reader,
    base: &mut Value,
    resolver: &dyn Resolver,
    as_configured: bool,
) -> Result<NocFacts, MachineError> {
    let facts = match file.word_required("icnt_type")? {
        "simple" => {
            // Their simulator reads an undefined value where this is absent.
            let latency = file.whole_required("icnt_latency_cycles")?;
            file.used("icnt_type", "noc.model");
            file.used("icnt_latency_cycles", "noc.latency_cycles");
            file.ignored("booksim_config_path", "icnt_type is simple");
            NocFacts::Simple { latency }
        }
        "booksim2" => {
            let path = file.word_required("booksim_config_path")?.to_owned();
            let text = resolver
                .read(&path)
                .map_err(|why| file_error("booksim_config_path", &path, &why))?;
            let network = NetworkFile::parse(&path, &text, resolver)?;
            file.ignored("icnt_latency_cycles", "icnt_type is booksim2");
            NocFacts::BookSim(network)
        }
        _ => return Err(file.not_one_of("icnt_type", "simple, booksim2")),
    };
    let mhz = file
        .number("icnt_freq_mhz")?
        .ok_or_else(|| file.missing("icnt_freq_mhz"))?;
    // Their frequency is a whole number of MHz, cut from what the file has.
    let used = if as_configured { mhz } else { mhz.trunc() };
    set(base, "clocks", "noc_mhz", json!(used));
    let clock = clock_text("clocks.noc_mhz", used, as_configured);
    if used == mhz {
        file.used("icnt_freq_mhz", clock);
    } else {
        file.mapped(
            "icnt_freq_mhz",
            format!("{clock}: cut to {used}, as PyTorchSim does"),
        );
    }
    let ports = file.whole("icnt_injection_ports_per_core")?;
    set(base, "cores", "injection_ports", json!(ports.unwrap_or(1)));
    file.used(
        "icnt_injection_ports_per_core",
        if ports.is_some() {
            "cores.injection_ports"
        } else {
            "cores.injection_ports: 1, the default"
        },
    );
    if let NocFacts::BookSim(network) = &facts {
        let cores = file.whole_required("num_cores")?;
        let channels = file.whole_required("dram_channels")?;
        let needed = cores
            .saturating_mul(ports.unwrap_or(1))
            .saturating_add(channels);
        if network.nodes < needed {
            return Err(MachineError::new(
                code::CONTRADICTION,
                "booksim_config_path",
                format!(
                    "the network has {} nodes, but {cores} cores of {} ports and {channels} channels need {needed}",
                    network.nodes,
                    ports.unwrap_or(1)
                ),
            ));
        }
        file.mapped("icnt_type", "noc.model: flit");
        let links = match &network.links_path {
            Some(path) => format!(", its links from '{path}'"),
            None => String::new(),
        };
        let ignored = match network.ignored.as_slice() {
            [] => String::new(),
            keys => format!("; without effect there: {}", keys.join(", ")),
        };
        let text = format!(
            "noc.topology: a {} of {} nodes, {} bytes a flit{links}{ignored}",
            network.topology(),
            network.nodes,
            network.params.flit_bytes
        );
        file.mapped("booksim_config_path", text);
    }
    Ok(facts)
}

/// DRAM costs from an energy table: `offchip_dram` with `row_activation_pj` and
/// `transfer_pj_per_bit`, a map whose terms add up. `io` and `phy` go over under these names, the
/// others are the array's.
fn read_energy(
    file: &mut Reader,
    base: &mut Value,
    resolver: &dyn Resolver,
    as_configured: bool,
) -> Result<(), MachineError> {
    let key = "energy_cost_table_path";
    let Some(path) = file.word(key)?.map(str::to_owned) else {
        return Ok(());
    };
    let text = match resolver.read(&path) {
        Ok(text) => text,
        Err(why) if as_configured => return Err(file_error(key, &path, &why)),
        Err(why) => {
            // It changes no cycle.
            file.ignored(
                key,
                format!("cannot read '{path}': {why}; energy is not counted"),
            );
            return Ok(());
        }
    };
    let table = parse_map(&text).map_err(|e| file_error(key, &path, &e.to_string()))?;
    let table = Value::Object(table.into_iter().collect());
    let cost = |value: Option<&Value>, inner: &str| -> Result<f64, MachineError> {
        let number = value
            .and_then(Value::as_f64)
            .filter(|n| (0.0..=1e9).contains(n));
        number.ok_or_else(|| {
            let what = "is missing, or no number from 0 to 1e9";
            file_error(key, &path, &format!("offchip_dram.{inner} {what}"))
        })
    };
    let dram = table.get("offchip_dram");
    let activation = dram.and_then(|d| d.get("row_activation_pj"));
    let activation = cost(activation, "row_activation_pj")?;
    let terms = dram
        .and_then(|d| d.get("transfer_pj_per_bit"))
        .and_then(Value::as_object);
    let Some(terms) = terms.filter(|terms| !terms.is_empty()) else {
        let why = "offchip_dram.transfer_pj_per_bit is not a map of terms";
        return Err(file_error(key, &path, why));
    };
    let (mut array, mut io, mut phy) = (0.0, 0.0, 0.0);
    for (name, value) in terms {
        let inner = format!("transfer_pj_per_bit.{}", cut(name));
        let term = cost(Some(value), &inner)?;
        match name.as_str() {
            "io" => io += term,
            "phy" => phy += term,
            _ => array += term,
        }
    }
    for (name, value) in [
        ("activation_pj", activation),
        ("read_pj_per_bit", array),
        ("write_pj_per_bit", array),
        ("io_pj_per_bit", io),
        ("phy_pj_per_bit", phy),
    ] {
        set(base, "energy", name, json!(value));
    }
    file.mapped(key, "energy: costs of DRAM rows and bits");
    Ok(())
}

fn read_rest(file: &mut Reader) {
    for key in [
        "core_stats_print_period_cycles",
        "dram_stats_print_period_cycles",
        "icnt_stats_print_period_cycles",
    ] {
        file.ignored(key, "it says how often to print");
    }
    file.ignored("scheduler", "a launch says what runs when");
    for key in ["pytorchsim_functional_mode", "pytorchsim_timing_mode"] {
        file.ignored(key, "it says what PyTorchSim runs, not how long it takes");
    }
    for (key, _, verdict) in &mut file.entries {
        if key.starts_with("codegen_") && verdict.is_none() {
            *verdict = Some(Verdict::NotApplicable(
                "it steers PyTorchSim's compiler, whose output a trace already is".to_owned(),
            ));
        }
    }
}
