//! `tilesim demo`: the main job from end to end, against a real server process.

use std::{
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use tilesim_core::{Launch, RunOptions};
use tilesim_server::{
    catalog::{MachineRequest, MachineSource},
    error::ServiceError,
    ids::Digest,
    runner::RunResult,
};
use tilesim_traces::LaunchArgs;
use tokio::process::{Child, Command};

use super::{
    Failure, Outcome,
    output::{self, ResultJson},
};
use crate::remote::{Client, ClientOptions};

/// One work-item of a 512 x 512 x 512 GEMM: a compiler generated it, gem5 measured its tiles.
const SAMPLE: &[u8] = include_bytes!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../traces/samples/gemm512_core_serial.json"
));
const SAMPLE_NAME: &str = "gemm512_core_serial.json";
const GRIDS: [[u64; 2]; 2] = [[1, 1], [4, 4]];
/// How long the server may take to start.
const START: Duration = Duration::from_secs(20);
/// How long the server may take to stop.
const STOP: Duration = Duration::from_secs(10);

/// Starts a server, simulates a matrix product on it with two grids, and stops it.
#[derive(Args)]
pub struct Demo {
    /// Machine: a preset's name (see `tilesim machine list`).
    #[arg(long, short, default_value = "tpuv3_simple_dram")]
    machine: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct DemoJson<'a> {
    launches: Vec<LaunchJson<'a>>,
}

#[derive(Serialize)]
struct LaunchJson<'a> {
    grid: &'a [u64],
    #[serde(flatten)]
    result: ResultJson<'a>,
}

impl Demo {
    pub async fn run(self) -> Outcome {
        let folder = tempfile::Builder::new()
            .prefix("tilesim-demo-")
            .tempdir()
            .context("cannot make a temporary folder")?;
        let mut server = Server::start(folder.path())?;
        let outcome = tokio::select! {
            outcome = self.simulate(&mut server, folder.path()) => outcome,
            signal = interrupted() => Err(Failure::Internal(anyhow::anyhow!("{}", signal?))),
        };
        // Whatever happened, the server goes and the folder with it.
        let stopped = server.stop().await;
        folder
            .close()
            .context("cannot remove the temporary folder")?;
        outcome?;
        stopped?;
        Ok(())
    }

    async fn simulate(&self, server: &mut Server, folder: &Path) -> Outcome {
        let address = server.address(folder).await?;
        if !self.json {
            output::line(&format!("server {} listens on {address}", server.id()))?;
        }
        let (digest, results) = self
            .launch(&address)
            .await
            .map_err(|e| Failure::Service(e, self.json))?;
        if self.json {
            let launches = GRIDS
                .iter()
                .zip(&results)
                .map(|(grid, result)| LaunchJson {
                    grid,
                    result: result.into(),
                })
                .collect();
            output::json(&DemoJson { launches })?;
            return Ok(());
        }
        output::line(&format!("uploaded {SAMPLE_NAME}: trace {digest}"))?;
        for (grid, result) in GRIDS.iter().zip(&results) {
            output::line("")?;
            output::result(
                &format!("grid {}x{} on {}", grid[0], grid[1], self.machine),
                result,
            )?;
        }
        Ok(())
    }

    async fn launch(&self, address: &str) -> Result<(Digest, Vec<RunResult>), ServiceError> {
        let client = Client::connect(address, ClientOptions::default()).await?;
        let uploaded = client.upload_trace(SAMPLE_NAME, SAMPLE).await?;
        let digest = Digest::parse(&uploaded.trace.unwrap_or_default().digest, "trace.digest")?;
        let machine = MachineRequest {
            source: MachineSource::Preset(self.machine.clone()),
            overrides: Vec::new(),
        };
        let mut results = Vec::new();
        for grid in GRIDS {
            let args = LaunchArgs {
                grid: grid.to_vec(),
                ..LaunchArgs::default()
            };
            let launch = Launch {
                args,
                options: RunOptions::default(),
            };
            results.push(client.simulate(&machine, digest, &launch).await?);
        }
        Ok((digest, results))
    }
}

/// The server process. It is killed when this is dropped, and stops by itself when we die.
struct Server {
    child: Child,
}

impl Server {
    fn start(folder: &Path) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find our own program file")?;
        let child = Command::new(program)
            .arg("serve")
            .args([
                "--listen",
                "127.0.0.1:0",
                "--log",
                "warn",
                "--stop-with-stdin",
            ])
            .arg("--port-file")
            .arg(folder.join("port"))
            .arg("--store")
            .arg(folder.join("store"))
            .stdin(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start the server")?;
        Ok(Self { child })
    }

    fn id(&self) -> u32 {
        self.child.id().unwrap_or(0)
    }

    /// Waits until the server listens.
    async fn address(&mut self, folder: &Path) -> anyhow::Result<String> {
        let file = folder.join("port");
        let begin = Instant::now();
        loop {
            if let Ok(port) = std::fs::read_to_string(&file) {
                return Ok(format!("127.0.0.1:{}", port.trim()));
            }
            if let Some(status) = self.child.try_wait().context("cannot watch the server")? {
                anyhow::bail!("the server ended before it listened: {status}");
            }
            if begin.elapsed() > START {
                anyhow::bail!("the server does not listen after {} s", START.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Asks the server to stop, and sees to it.
    async fn stop(mut self) -> anyhow::Result<()> {
        let id = self
            .child
            .id()
            .and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        if let Some(id) = id {
            kill_process(id, Signal::TERM).context("cannot stop the server")?;
        }
        match tokio::time::timeout(STOP, self.child.wait()).await {
            Ok(status) => {
                let status = status.context("cannot watch the server")?;
                anyhow::ensure!(status.success(), "the server ended badly: {status}");
            }
            Err(_) => {
                self.child.kill().await.context("cannot kill the server")?;
                anyhow::bail!("the server did not stop within {} s", STOP.as_secs());
            }
        }
        Ok(())
    }
}

/// Resolves when somebody asks us to stop.
async fn interrupted() -> anyhow::Result<&'static str> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => Ok("terminated"),
        _ = interrupt.recv() => Ok("interrupted"),
    }
}
