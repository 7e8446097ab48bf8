//! Arguments that several verbs share.

use std::{collections::BTreeMap, time::Duration};

use clap::Args;
use serde::Deserialize;
use tilesim_core::{Launch, RunOptions};
use tilesim_server::{catalog::MachineRequest, error::ServiceError};
use tilesim_traces::LaunchArgs;

use super::{
    files::{self, TraceFile},
    folder,
};
use crate::{
    backend::{Backend, Local},
    remote::{Client, ClientOptions},
};

/// Where to run.
#[derive(Args, Clone, Debug)]
pub struct WhereArgs {
    /// Run on this server instead of in this process.
    #[arg(long, value_name = "HOST:PORT", env = "TILESIM_SERVER")]
    pub server: Option<String>,
    /// Whose traces and results to use on the server.
    #[arg(long, value_name = "NAME", env = "TILESIM_TENANT")]
    pub tenant: Option<String>,
    /// Give up after so many seconds of wall time.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub timeout: Option<Duration>,
    /// How often to try to reach the server; the waits between grow from 0.1 s, doubling.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=20))]
    pub connect_attempts: u32,
}

impl WhereArgs {
    /// Connects, or starts worker threads here.
    pub async fn backend(&self) -> Result<Backend, ServiceError> {
        match &self.server {
            None => Ok(Backend::Local(Local::start(self.timeout)?)),
            Some(_) => Ok(Backend::Remote(self.client().await?)),
        }
    }

    /// Connects to the server.
    pub async fn client(&self) -> Result<Client, ServiceError> {
        let address = self.server.as_deref().ok_or_else(|| {
            ServiceError::invalid("client.no_server", "--server", "this verb needs a server")
                .hint("name one with --server, or start one with `tilesim serve`")
        })?;
        let options = ClientOptions {
            tenant: self.tenant.clone(),
            attempts: self.connect_attempts,
            timeout: self.timeout,
            ..ClientOptions::default()
        };
        Client::connect(address, options).await
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if !(0.0..=1e9).contains(&seconds) {
        return Err("not in 0 to 10^9".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// On what to run.
#[derive(Args, Clone, Debug)]
pub struct MachineArgs {
    /// Machine: a preset's name (see `tilesim machine list`) or a file.
    #[arg(long, short, value_name = "MACHINE")]
    pub machine: String,
    /// Change a value of the machine, for example `dram.channels=8`.
    #[arg(long = "set", value_name = "PATH=VALUE", value_parser = pair)]
    pub set: Vec<(String, String)>,
}

impl MachineArgs {
    /// The machine these arguments name.
    pub fn request(&self) -> Result<MachineRequest, ServiceError> {
        let source = files::machine_source(&self.machine)?;
        Ok(MachineRequest {
            source,
            overrides: self.set.clone(),
        })
    }
}

/// `path=value`.
pub fn pair(text: &str) -> Result<(String, String), String> {
    let (path, value) = text.split_once('=').ok_or("expected PATH=VALUE")?;
    if path.trim().is_empty() {
        return Err("expected PATH=VALUE".to_owned());
    }
    Ok((path.trim().to_owned(), value.to_owned()))
}

/// A launch.
#[derive(Args, Clone, Debug)]
pub struct LaunchFlags {
    /// Work-items along each axis, for example `4,4`. For a kernel folder these are the producer's
    /// shape arguments [default for a folder: those of its trace_shape.txt].
    #[arg(long, value_delimiter = ',', value_name = "N,...")]
    pub grid: Vec<u64>,
    /// Value of a kernel parameter.
    #[arg(long = "param", value_name = "NAME=INTEGER", value_parser = param)]
    pub params: Vec<(String, i64)>,
    /// Extents of a tensor in elements, instead of the trace's.
    #[arg(long = "extent", value_name = "TENSOR=N,...", value_parser = extent)]
    pub extents: Vec<(String, Vec<i64>)>,
    /// Byte address of a tensor (all or none), decimal or 0x....
    #[arg(long = "place", value_name = "TENSOR=ADDRESS", value_parser = place)]
    pub placement: Vec<(String, u64)>,
    /// Let tensors overlap.
    #[arg(long)]
    pub allow_overlap: bool,
    #[command(flatten)]
    pub options: OptionFlags,
}

/// Options of a run, as flags and as a list gives them.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OptionFlags {
    /// Stop once so many core cycles have been simulated.
    #[arg(long, value_name = "CYCLES")]
    pub cycle_budget: Option<u64>,
    /// Refuse a launch with more work-items.
    #[arg(long, value_name = "N")]
    pub max_work_items: Option<u64>,
    /// Refuse a launch with more memory requests.
    #[arg(long, value_name = "N")]
    pub max_requests: Option<u64>,
    /// Run even if the trace's costs were measured on a different machine.
    #[arg(long)]
    pub allow_cost_mismatch: bool,
    /// Registers a work-item takes, for machines whose residency counts them [default: the trace's].
    #[arg(long, value_name = "N")]
    pub registers_per_item: Option<u64>,
    /// Threads a work-item takes, likewise [default: the trace's].
    #[arg(long, value_name = "N")]
    pub threads_per_item: Option<u64>,
}

impl LaunchFlags {
    /// The launch of a trace that these flags describe.
    pub fn launch(&self, trace: &TraceFile) -> Result<Launch, ServiceError> {
        if self.grid.is_empty() && trace.imported.is_none() {
            return Err(ServiceError::invalid(
                "launch.axis_count",
                "--grid",
                "the number of work-items along each axis is missing",
            )
            .hint("for example --grid 4,4"));
        }
        let mut args = LaunchArgs {
            grid: self.grid.clone(),
            params: self.params.iter().cloned().collect::<BTreeMap<_, _>>(),
            extents: self.extents.iter().cloned().collect(),
            placement: self.placement.iter().cloned().collect(),
            allow_overlap: self.allow_overlap,
        };
        folder::map_shape(trace, &mut args)?;
        Ok(Launch {
            args,
            options: self.options.options(),
        })
    }
}

impl OptionFlags {
    /// The options these flags describe.
    pub fn options(&self) -> RunOptions {
        let mut options = RunOptions {
            cycle_budget: self.cycle_budget,
            allow_cost_mismatch: self.allow_cost_mismatch,
            registers_per_item: self.registers_per_item,
            threads_per_item: self.threads_per_item,
            ..RunOptions::default()
        };
        if let Some(limit) = self.max_work_items {
            options.limits.max_work_items = limit;
        }
        if let Some(limit) = self.max_requests {
            options.max_requests = limit;
        }
        options
    }
}

pub fn param(text: &str) -> Result<(String, i64), String> {
    let (name, value) = pair(text)?;
    let value = value
        .trim()
        .parse()
        .map_err(|_| format!("`{value}` is not an integer"))?;
    Ok((name, value))
}

fn extent(text: &str) -> Result<(String, Vec<i64>), String> {
    let (name, value) = pair(text)?;
    let extents = value
        .split(',')
        .map(|e| {
            e.trim()
                .parse()
                .map_err(|_| format!("`{e}` is not an integer"))
        })
        .collect::<Result<_, _>>()?;
    Ok((name, extents))
}

fn place(text: &str) -> Result<(String, u64), String> {
    let (name, value) = pair(text)?;
    let value = value.trim();
    let address = match value.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => value.parse(),
    };
    Ok((
        name,
        address.map_err(|_| format!("`{value}` is not an address"))?,
    ))
}
