//! Settings: from flags and environment, checked once.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::Args;

/// Flags of a server. Each can also be set in the environment.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// Address to listen on; port 0 picks a free one.
    #[arg(long, env = "TILESIM_LISTEN", default_value = "127.0.0.1:7625")]
    pub listen: SocketAddr,
    /// File to write the port to once the server listens.
    #[arg(long, env = "TILESIM_PORT_FILE", value_name = "FILE")]
    pub port_file: Option<PathBuf>,
    /// Folder of the store [default: tilesim in the user's data folder].
    #[arg(long, env = "TILESIM_STORE", value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// Threads that run simulations [default: one per processor].
    #[arg(long, env = "TILESIM_WORKERS", value_name = "N")]
    pub workers: Option<usize>,
    /// Simulations that may wait for a thread.
    #[arg(long, env = "TILESIM_QUEUE", value_name = "N", default_value_t = 256)]
    pub queue: usize,
    /// Bytes of one message.
    #[arg(long, env = "TILESIM_MAX_MESSAGE_BYTES", value_name = "N", default_value_t = 16 << 20)]
    pub max_message_bytes: usize,
    /// Bytes of one trace file.
    #[arg(long, env = "TILESIM_MAX_TRACE_BYTES", value_name = "N", default_value_t = 64 << 20)]
    pub max_trace_bytes: u64,
    /// Work-items of one launch.
    #[arg(long, env = "TILESIM_MAX_WORK_ITEMS", value_name = "N", default_value_t = 1 << 32)]
    pub max_work_items: u64,
    /// Memory requests of one launch.
    #[arg(long, env = "TILESIM_MAX_REQUESTS", value_name = "N", default_value_t = 1 << 40)]
    pub max_requests: u64,
    /// Candidates of one ranking.
    #[arg(
        long,
        env = "TILESIM_MAX_CANDIDATES",
        value_name = "N",
        default_value_t = 10_000
    )]
    pub max_candidates: u32,
    /// Bytes of stored traces and machines per tenant.
    #[arg(long, env = "TILESIM_TENANT_BYTES", value_name = "N", default_value_t = 16 << 30)]
    pub tenant_bytes: u64,
    /// Results kept on disk.
    #[arg(
        long,
        env = "TILESIM_RESULTS",
        value_name = "N",
        default_value_t = 100_000
    )]
    pub results: u64,
    /// Seconds that running work has to end after SIGTERM.
    #[arg(
        long,
        env = "TILESIM_DRAIN_SECONDS",
        value_name = "S",
        default_value_t = 30.0
    )]
    pub drain_seconds: f64,
    /// What to log, for example `info` or `tilesim_server=debug`.
    #[arg(
        long,
        env = "TILESIM_LOG",
        value_name = "FILTER",
        default_value = "info"
    )]
    pub log: String,
    /// Log JSON lines instead of text.
    #[arg(long, env = "TILESIM_LOG_JSON")]
    pub log_json: bool,
    /// Stop when standard input ends: for a parent that must not leave a server behind.
    #[arg(long, hide = true)]
    pub stop_with_stdin: bool,
}

/// Limits on what one client may send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one message.
    pub message_bytes: usize,
    /// Bytes of one trace file.
    pub trace_bytes: u64,
    /// Work-items of one launch.
    pub work_items: u64,
    /// Memory requests of one launch.
    pub requests: u64,
    /// Candidates of one ranking.
    pub candidates: u32,
    /// Launches of one candidate.
    pub launches_per_candidate: u32,
    /// Digests of one FindMissing.
    pub digests: u32,
    /// Bytes of stored traces and machines per tenant.
    pub tenant_bytes: u64,
}

/// Checked settings.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// File to write the port to.
    pub port_file: Option<PathBuf>,
    /// Folder of the store.
    pub store: PathBuf,
    /// Threads that run simulations.
    pub workers: usize,
    /// Simulations that may wait for a thread.
    pub queue: usize,
    /// Limits on what one client may send.
    pub limits: Limits,
    /// Results kept on disk.
    pub results: u64,
    /// How long running work has to end after SIGTERM.
    pub drain: Duration,
}

/// A setting that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--{flag}: {message}")]
pub struct ConfigError {
    /// The flag.
    pub flag: &'static str,
    /// What is wrong with its value.
    pub message: String,
}

impl TryFrom<ServeArgs> for Config {
    type Error = ConfigError;

    fn try_from(args: ServeArgs) -> Result<Self, ConfigError> {
        let within = |flag, value: u64, low: u64, high: u64| {
            if (low..=high).contains(&value) {
                Ok(value)
            } else {
                Err(ConfigError {
                    flag,
                    message: format!("{value} is not in {low} to {high}"),
                })
            }
        };
        let workers = match args.workers {
            Some(workers) => within("workers", workers as u64, 1, 1024)? as usize,
            None => std::thread::available_parallelism().map_or(1, usize::from),
        };
        if !(0.0..=86_400.0).contains(&args.drain_seconds) {
            let message = format!("{} is not in 0 to 86400", args.drain_seconds);
            return Err(ConfigError {
                flag: "drain-seconds",
                message,
            });
        }
        let message = args.max_message_bytes as u64;
        Ok(Self {
            listen: args.listen,
            port_file: args.port_file,
            store: match args.store {
                Some(store) => store,
                None => default_store()?,
            },
            workers,
            queue: within("queue", args.queue as u64, 1, 1 << 20)? as usize,
            limits: Limits {
                message_bytes: within("max-message-bytes", message, 1 << 10, 1 << 30)? as usize,
                trace_bytes: within("max-trace-bytes", args.max_trace_bytes, 1 << 10, 1 << 30)?,
                work_items: args.max_work_items,
                requests: args.max_requests,
                candidates: within("max-candidates", args.max_candidates.into(), 1, 1 << 20)?
                    as u32,
                launches_per_candidate: 256,
                digests: 100_000,
                tenant_bytes: args.tenant_bytes,
            },
            results: args.results,
            drain: Duration::from_secs_f64(args.drain_seconds),
        })
    }
}

fn default_store() -> Result<PathBuf, ConfigError> {
    let set = |name| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    set("XDG_DATA_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".local/share")))
        .map(|data| data.join("tilesim"))
        .ok_or_else(|| ConfigError {
            flag: "store",
            message: "no home folder: name one".to_owned(),
        })
}
