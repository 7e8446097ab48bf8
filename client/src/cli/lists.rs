//! Files that list launches: candidates of a ranking, and launches of a replay.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
};

use serde::Deserialize;
use tilesim_core::Launch;
use tilesim_server::{
    catalog::{MachineRequest, MachineSource},
    error::{Problem, ServiceError},
};
use tilesim_traces::LaunchArgs;

use super::{
    args::OptionFlags,
    files::{self, TraceFile},
    folder,
};

/// A launch as a list gives it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchEntry {
    /// Trace file, relative to the list.
    pub trace: PathBuf,
    /// Work-items along each axis.
    pub grid: Vec<u64>,
    /// Parameter values.
    #[serde(default)]
    pub params: BTreeMap<String, i64>,
    /// Tensor extents.
    #[serde(default)]
    pub extents: BTreeMap<String, Vec<i64>>,
    /// Tensor addresses.
    #[serde(default)]
    pub placement: BTreeMap<String, u64>,
    /// Tensors may overlap.
    #[serde(default)]
    pub allow_overlap: bool,
    /// Options of the run.
    #[serde(default)]
    pub options: OptionFlags,
    /// How often it counts (rankings only).
    #[serde(default)]
    pub weight: Option<u32>,
}

impl LaunchEntry {
    /// The launch of a trace.
    pub fn launch(&self, trace: &TraceFile) -> Result<Launch, ServiceError> {
        let mut args = LaunchArgs {
            grid: self.grid.clone(),
            params: self.params.clone(),
            extents: self.extents.clone(),
            placement: self.placement.clone(),
            allow_overlap: self.allow_overlap,
        };
        folder::map_shape(trace, &mut args)?;
        Ok(Launch {
            args,
            options: self.options.options(),
        })
    }
}

/// A launch with its machine: a line of a replay, or the file that `simulate --launch` takes.
pub struct LaunchLine {
    /// A name for it.
    pub key: Option<String>,
    /// Machine: a preset's name or a file.
    pub machine: Option<String>,
    /// Machine settings by path.
    pub set: BTreeMap<String, serde_json::Value>,
    /// What to launch.
    pub launch: LaunchEntry,
}

impl LaunchLine {
    /// Reads one.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        /// What is not of the launch is taken off first: the launch refuses keys that it does not know.
        #[derive(Deserialize)]
        struct Line {
            key: Option<String>,
            machine: Option<String>,
            #[serde(default)]
            set: BTreeMap<String, serde_json::Value>,
            #[serde(flatten)]
            launch: serde_json::Map<String, serde_json::Value>,
        }
        let line: Line = serde_json::from_str(text)?;
        Ok(LaunchLine {
            key: line.key,
            machine: line.machine,
            set: line.set,
            launch: serde_json::from_value(serde_json::Value::Object(line.launch))?,
        })
    }
}

/// Traces and machines that a list names, each read once. A failure is remembered as well.
#[derive(Default)]
pub struct Files {
    traces: HashMap<PathBuf, Result<TraceFile, ServiceError>>,
    machines: HashMap<String, Result<MachineSource, ServiceError>>,
}

impl Files {
    /// A trace, relative to the list.
    pub fn trace(&mut self, list: &Path, name: &Path) -> Result<TraceFile, ServiceError> {
        let path = list.parent().unwrap_or(Path::new("")).join(name);
        self.traces
            .entry(path.clone())
            .or_insert_with(|| files::trace(&path))
            .clone()
    }

    /// A machine: a preset, or a file relative to the list (or, failing that, to where we are).
    pub fn machine(
        &mut self,
        list: &Path,
        name: &str,
        overrides: Vec<(String, String)>,
    ) -> Result<MachineRequest, ServiceError> {
        let beside = list.parent().unwrap_or(Path::new("")).join(name);
        let name = if beside.is_file() {
            beside.display().to_string()
        } else {
            name.to_owned()
        };
        let source = self
            .machines
            .entry(name.clone())
            .or_insert_with(|| files::machine_source(&name))
            .clone()?;
        Ok(MachineRequest { source, overrides })
    }

    /// The traces read so far.
    pub fn traces(&self) -> impl Iterator<Item = &TraceFile> {
        self.traces.values().filter_map(|t| t.as_ref().ok())
    }
}

/// Machine settings as a list gives them: any JSON value by path.
pub fn overrides(set: &BTreeMap<String, serde_json::Value>) -> Vec<(String, String)> {
    set.iter()
        .map(|(path, value)| {
            let value = match value {
                serde_json::Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            (path.clone(), value)
        })
        .collect()
}

/// Neither the command line nor the list, at `place`, names a machine.
pub fn no_machine(place: String) -> ServiceError {
    ServiceError::invalid("client.no_machine", place, "no machine is named")
        .hint("name one with --machine, or in the file")
}

/// A list that cannot be read.
pub fn syntax(path: &Path, line: Option<usize>, error: &serde_json::Error) -> ServiceError {
    let place = match line {
        Some(line) => format!("{}: line {line}", path.display()),
        None => path.display().to_string(),
    };
    ServiceError::invalid("client.bad_list", place, error.to_string())
        .hint("docs/schemas describes the format")
}

/// A problem as a list gives it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProblemEntry {
    /// Stable identifier.
    #[serde(default)]
    pub code: String,
    /// Where.
    #[serde(default)]
    pub path: String,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    #[serde(default)]
    pub hint: String,
}

impl From<ProblemEntry> for Problem {
    fn from(entry: ProblemEntry) -> Self {
        let ProblemEntry {
            code,
            path,
            message,
            hint,
        } = entry;
        let code = if code.is_empty() {
            "rank.pre_failure".to_owned()
        } else {
            code
        };
        Problem {
            code: code.into(),
            path,
            message,
            hint,
        }
    }
}
