//! `tilesim kernel`: traces from the kernel library, and whole lists of candidates.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches, Subcommand, ValueEnum};
use serde::Serialize;
use tilesim_server::error::{Problem, ServiceError};
use tilesim_traces::{
    LaunchArgs, ValidTrace,
    kernels::{
        self, CostModel, Kernel as Library, KernelSpec,
        args::{self, ArgValue, COST_ARGS, KINDS, Kind, RESOURCE_ARGS},
        space::{self, StageBuffers},
    },
};

use super::{
    Failure, Outcome, args as cli_args, files, machine, output,
    trace::{Encoding, encode},
};

/// One kind of kernel, as the command line names it.
///
/// The library describes its kinds and their options; so the subcommands are made from its tables.
pub struct Kernel {
    kind: &'static Kind,
    /// Options of the kind that were given, as text.
    options: BTreeMap<String, String>,
    common: Common,
}

/// What the verb takes for every kind.
#[derive(Args)]
struct Common {
    /// Take array, lanes and vector length from this machine: a preset's name or a file.
    #[arg(long, value_name = "MACHINE")]
    machine: Option<String>,
    /// Change a value of the machine, for example `cores.vector_lanes=256`.
    #[arg(long = "set", value_name = "PATH=VALUE", value_parser = cli_args::pair, requires = "machine")]
    set: Vec<(String, String)>,
    /// Trace to write: `.tile` (or nothing) for the text form, `.tilec` for the binary container. With --vary or
    /// --configs, the folder to write the traces and `candidates.json` into.
    #[arg(long, short, value_name = "PATH")]
    output: PathBuf,
    /// Encoding, whatever the file's extension.
    #[arg(long, value_enum)]
    to: Option<Encoding>,
    /// Also write the launch: what `tilesim simulate --launch FILE` runs.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["vary", "configs"])]
    launch: Option<PathBuf>,
    /// Write a list of candidates for `tilesim rank`, with these values of an option; several times for
    /// every combination.
    #[arg(long, value_name = "OPTION=V,...", value_parser = vary, conflicts_with = "configs")]
    vary: Vec<(String, Vec<String>)>,
    /// Write a list of candidates for `tilesim rank`, from a list of matmul configurations: Triton's or
    /// Inductor's (JSON), or PyTorchSim's (a line of three sizes each).
    #[arg(long, value_name = "FILE")]
    configs: Option<PathBuf>,
    /// Which list of the JSON file, for example `exhaustive_configs` or `mm.configs`.
    #[arg(long, value_name = "NAME", requires = "configs")]
    list: Option<String>,
    /// How many buffers per operand `num_stages` of a list means.
    #[arg(long, value_enum, default_value = "same", requires = "configs")]
    stage_buffers: Buffers,
    /// Threads of a warp: with it a work-item takes `num_warps` times as many threads.
    #[arg(long, value_name = "N", requires = "configs")]
    warp_threads: Option<u64>,
    /// The best so many are wanted; written into the list.
    #[arg(long, value_name = "K")]
    top_k: Option<u32>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// [`StageBuffers`] on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Buffers {
    /// As many.
    Same,
    /// One fewer.
    OneFewer,
    /// What Triton 3.6 does on Hopper.
    Hopper,
}

fn vary(text: &str) -> Result<(String, Vec<String>), String> {
    let (name, values) = cli_args::pair(text).map_err(|_| "expected OPTION=V,...".to_owned())?;
    let values = values.split(',').map(|v| v.trim().to_owned()).collect();
    Ok((name, values))
}

/// Every option that a kind takes.
fn options(kind: &'static Kind) -> impl Iterator<Item = &'static args::Arg> {
    kind.args.iter().chain(COST_ARGS).chain(RESOURCE_ARGS)
}

fn command(kind: &'static Kind) -> Command {
    let arg = |arg: &'static args::Arg| {
        let help = match (arg.required, arg.default) {
            (true, _) => format!("{} (required)", arg.help),
            (false, "") => arg.help.to_owned(),
            (false, default) => format!("{} [default: {default}]", arg.help),
        };
        let option = Arg::new(arg.name)
            .long(arg.name.replace('_', "-"))
            .help(match arg.value.words() {
                Some(words) if arg.value != ArgValue::Flag => {
                    format!("{help} [one of: {}]", words.join(", "))
                }
                _ => help,
            })
            .help_heading("Kernel");
        let name = match arg.value {
            ArgValue::Whole => "N".to_owned(),
            ArgValue::Sizes(count) => vec!["N"; count].join("x"),
            ArgValue::Flag => "BOOL".to_owned(),
            ArgValue::Costs => "TILE=CYCLES,...".to_owned(),
            _ => "WORD".to_owned(),
        };
        match arg.value {
            ArgValue::Flag => option
                .value_name(name)
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true"),
            _ => option.value_name(name),
        }
    };
    Common::augment_args(
        Command::new(kind.name.replace('_', "-"))
            .aliases(kind.name.contains('_').then_some(kind.name)),
    )
    // After the shared arguments, whose own description would stand here.
    .about(kind.about)
    .long_about(None)
    .args(options(kind).map(arg))
}

impl FromArgMatches for Kernel {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let missing = || Error::raw(clap::error::ErrorKind::MissingSubcommand, "no kernel named");
        let (name, matches) = matches.subcommand().ok_or_else(missing)?;
        let kind = args::kind(name).map_err(|_| missing())?;
        let given = |arg: &args::Arg| {
            let value = matches.get_one::<String>(arg.name)?;
            Some((arg.name.to_owned(), value.clone()))
        };
        Ok(Kernel {
            kind,
            options: options(kind).filter_map(given).collect(),
            common: Common::from_arg_matches(matches)?,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Subcommand for Kernel {
    fn augment_subcommands(all: Command) -> Command {
        all.subcommand_required(true)
            .arg_required_else_help(true)
            .subcommands(KINDS.iter().map(command))
    }

    fn augment_subcommands_for_update(all: Command) -> Command {
        Self::augment_subcommands(all)
    }

    fn has_subcommand(name: &str) -> bool {
        args::kind(name).is_ok()
    }
}

/// A launch as files give it ([`super::lists::LaunchEntry`]).
#[derive(Serialize)]
struct LaunchJson {
    trace: String,
    grid: Vec<u64>,
    params: BTreeMap<String, i64>,
}

impl LaunchJson {
    fn new(trace: String, args: LaunchArgs) -> Self {
        LaunchJson {
            trace,
            grid: args.grid,
            params: args.params.into_iter().collect(),
        }
    }
}

#[derive(Serialize)]
struct CandidateJson {
    key: String,
    #[serde(flatten)]
    launch: Option<LaunchJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Problem>,
}

/// The machine as files name it.
#[derive(Serialize)]
struct MachineJson {
    #[serde(skip_serializing_if = "Option::is_none")]
    machine: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    set: BTreeMap<String, String>,
}

/// A launch with its machine ([`super::lists::LaunchLine`]).
#[derive(Serialize)]
struct LaunchLineJson {
    #[serde(flatten)]
    machine: MachineJson,
    #[serde(flatten)]
    launch: LaunchJson,
}

#[derive(Serialize)]
struct CandidatesJson {
    #[serde(flatten)]
    machine: MachineJson,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_k: Option<u32>,
    candidates: Vec<CandidateJson>,
}

/// What was written.
#[derive(Serialize)]
struct WrittenJson {
    kernel: &'static str,
    /// The trace, or the list of candidates.
    file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<TraceJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    candidates: Option<ListJson>,
}

#[derive(Serialize)]
struct TraceJson {
    digest: String,
    grid: Vec<u64>,
    params: BTreeMap<String, i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    launch: Option<String>,
}

#[derive(Serialize)]
struct ListJson {
    count: usize,
    /// Different traces among them.
    traces: usize,
    /// Those that are no kernel; the list holds why.
    failed: usize,
}

impl Kernel {
    pub fn run(self) -> Outcome {
        let json = self.common.json;
        let failure = |e| Failure::Service(e, json);
        let cost = self.cost().map_err(failure)?;
        let specs = self.specs(&cost).map_err(failure)?;
        let written = match specs {
            None => self.one(&cost)?,
            Some(specs) => self.list(specs)?,
        };
        if json {
            return Ok(output::json(&written)?);
        }
        if let Some(trace) = &written.trace {
            let grid: Vec<String> = trace.grid.iter().map(u64::to_string).collect();
            output::line(&format!(
                "{}: {}, {}",
                written.file, self.kind.name, trace.digest
            ))?;
            let mut launch = format!("launch: --grid {}", grid.join(","));
            for (name, value) in &trace.params {
                launch.push_str(&format!(" --param {name}={value}"));
            }
            output::line(&launch)?;
        }
        if let Some(list) = &written.candidates {
            output::line(&format!(
                "{}: {} candidates of {} traces, {} of them failed",
                written.file, list.count, list.traces, list.failed
            ))?;
        }
        Ok(())
    }

    /// Costs as the machine gives them.
    fn cost(&self) -> Result<CostModel, ServiceError> {
        let Some(name) = &self.common.machine else {
            return Ok(CostModel::default());
        };
        let cores = machine::named(&cli_args::MachineArgs {
            machine: name.clone(),
            set: self.common.set.clone(),
        })?
        .cores;
        Ok(CostModel {
            array_rows: cores.array_rows,
            array_cols: cores.array_cols,
            lanes: cores.vector_lanes,
            vector_bits: cores.vector_bits,
            ..CostModel::default()
        })
    }

    /// The machine, as a file in any folder names it.
    fn machine(&self) -> MachineJson {
        // A machine's file is found from here.
        let machine = self.common.machine.clone().map(|name| {
            let path = Path::new(&name);
            match path.is_file().then(|| path.canonicalize()) {
                Some(Ok(path)) => path.display().to_string(),
                _ => name,
            }
        });
        MachineJson {
            machine,
            set: self.common.set.iter().cloned().collect(),
        }
    }

    /// The kernels of a list; none if it is to be one kernel.
    #[allow(clippy::type_complexity)]
    fn specs(
        &self,
        cost: &CostModel,
    ) -> Result<Option<Vec<(String, Result<KernelSpec, ServiceError>)>>, ServiceError> {
        let common = &self.common;
        if !common.vary.is_empty() {
            let all = space::product(self.kind.name, &self.options, &common.vary, cost)?;
            let all = all.into_iter();
            return Ok(Some(all.map(|(k, s)| (k, s.map_err(Into::into))).collect()));
        }
        let Some(path) = &common.configs else {
            return Ok(None);
        };
        let text = files::read_text(path)?;
        let json = common.list.is_some() || path.extension().is_some_and(|e| e == "json");
        let configs = if json {
            space::read_json(&text, common.list.as_deref())
        } else {
            space::read_tiles(&text)
        };
        let configs = configs.map_err(|e| {
            let path = path.display();
            let mut error = ServiceError::from(e);
            error.problem.path = format!("{path}: {}", error.problem.path);
            error
        })?;
        // The tile comes from the list.
        let mut options = self.options.clone();
        options
            .entry("tile".to_owned())
            .or_insert_with(|| "1x1x1".to_owned());
        let base = args::parse_args(self.kind.name, &options, cost)?;
        let Library::Matmul(matmul) = &base.kernel else {
            return Err(ServiceError::invalid(
                "client.no_configs",
                "--configs",
                format!("{} has no lists of configurations", self.kind.name),
            )
            .hint("use --vary"));
        };
        let buffers = match common.stage_buffers {
            Buffers::Same => StageBuffers::Same,
            Buffers::OneFewer => StageBuffers::OneFewer,
            Buffers::Hopper => StageBuffers::Hopper,
        };
        let all = space::matmul(matmul, &base.cost, &configs, buffers).into_iter();
        let with_resources = |candidate: space::Candidate| {
            let mut resources = base.resources;
            if let (Some(each), Some(warps)) = (common.warp_threads, candidate.config.warps) {
                resources.threads = each.saturating_mul(u64::from(warps));
            }
            let spec = candidate.spec.map(|spec| KernelSpec { resources, ..spec });
            (candidate.key, spec.map_err(Into::into))
        };
        Ok(Some(all.map(with_resources).collect()))
    }

    fn one(&self, cost: &CostModel) -> Result<WrittenJson, Failure> {
        let common = &self.common;
        let failure = |e| Failure::Service(e, common.json);
        let made = args::parse_args(self.kind.name, &self.options, cost);
        let made = made.map_err(Into::into).and_then(|spec| make(&spec));
        let (trace, args) = made.map_err(failure)?;
        let bytes = encode(&common.output, common.to, &trace).map_err(failure)?;
        write(&common.output, &bytes)?;
        let launch = LaunchJson::new(String::new(), args);
        if let Some(path) = &common.launch {
            let line = LaunchLineJson {
                machine: self.machine(),
                launch: LaunchJson {
                    trace: beside(path, &common.output),
                    grid: launch.grid.clone(),
                    params: launch.params.clone(),
                },
            };
            write_json(path, &line)?;
        }
        Ok(WrittenJson {
            kernel: self.kind.name,
            file: common.output.display().to_string(),
            trace: Some(TraceJson {
                digest: trace.digest().to_string(),
                grid: launch.grid,
                params: launch.params,
                launch: common.launch.as_ref().map(|p| p.display().to_string()),
            }),
            candidates: None,
        })
    }

    fn list(
        &self,
        specs: Vec<(String, Result<KernelSpec, ServiceError>)>,
    ) -> Result<WrittenJson, Failure> {
        let common = &self.common;
        let folder = &common.output;
        let extension = match common.to {
            None | Some(Encoding::Text) => "tile",
            Some(Encoding::Binary) => "tilec",
        };
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let mut traces = BTreeSet::new();
        let mut candidates = Vec::with_capacity(specs.len());
        for (key, spec) in specs {
            let made = spec.and_then(|spec| make(&spec));
            let (launch, error) = match made {
                Ok((trace, args)) => {
                    let digest = trace.digest().to_string();
                    // Half a digest names a file well enough.
                    let name = format!("{}.{extension}", digest.get(..32).unwrap_or(&digest));
                    if traces.insert(digest) {
                        let path = folder.join(&name);
                        let bytes = encode(&path, common.to, &trace)
                            .map_err(|e| Failure::Service(e, common.json))?;
                        write(&path, &bytes)?;
                    }
                    (Some(LaunchJson::new(name, args)), None)
                }
                Err(error) => (None, Some(*error.problem)),
            };
            candidates.push(CandidateJson { key, launch, error });
        }
        let file = folder.join("candidates.json");
        let list = ListJson {
            count: candidates.len(),
            traces: traces.len(),
            failed: candidates.iter().filter(|c| c.error.is_some()).count(),
        };
        let all = CandidatesJson {
            machine: self.machine(),
            top_k: common.top_k,
            candidates,
        };
        write_json(&file, &all)?;
        Ok(WrittenJson {
            kernel: self.kind.name,
            file: file.display().to_string(),
            trace: None,
            candidates: Some(list),
        })
    }
}

fn make(spec: &KernelSpec) -> Result<(ValidTrace, LaunchArgs), ServiceError> {
    let trace = ValidTrace::try_from(kernels::generate(spec)?)?;
    Ok((trace, kernels::launch(spec)?))
}

/// How a file in the folder of `from` names `file`.
fn beside(from: &Path, file: &Path) -> String {
    let folder = |p: &Path| p.parent().map(Path::to_owned).unwrap_or_default();
    let name = file.file_name().unwrap_or(file.as_os_str());
    if folder(from) == folder(file) {
        return name.to_string_lossy().into_owned();
    }
    match file.canonicalize() {
        Ok(path) => path.display().to_string(),
        Err(_) => file.display().to_string(),
    }
}

fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

fn write_json(path: &Path, value: &impl Serialize) -> anyhow::Result<()> {
    let mut text = serde_json::to_string_pretty(value).context("cannot write JSON")?;
    text.push('\n');
    write(path, text.as_bytes())
}
