//! A `tilesimd` process for a test, and the things tests send it.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tilesim_proto::v1::{
    self, machines_client::MachinesClient, server_client::ServerClient,
    simulation_client::SimulationClient, traces_client::TracesClient,
};
use tonic::{Request, Status, transport::Channel};

/// The path of one of our programs. They lie beside this test's own folder; cargo is asked once
/// to see to it that they are there and up to date (`TILESIM_BIN_DIR` names others instead).
pub fn program(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        if let Some(folder) = std::env::var_os("TILESIM_BIN_DIR") {
            return folder.into();
        }
        let test = std::env::current_exe().unwrap();
        let folder = test.ancestors().nth(2).unwrap().to_owned();
        let mut build = Command::new(env!("CARGO"));
        build
            .args([
                "build",
                "--quiet",
                "-p",
                "tilesim-server",
                "-p",
                "tilesim-client",
                "--bins",
            ])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env("CARGO_TARGET_DIR", folder.parent().unwrap());
        if folder.ends_with("release") {
            build.arg("--release");
        }
        assert!(
            build.status().unwrap().success(),
            "the programs under test do not build"
        );
        folder
    });
    folder.join(name)
}

/// A file of the repository.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .join(path)
}

/// A sample trace.
pub fn sample(name: &str) -> PathBuf {
    repository("traces/samples").join(name)
}

/// A running `tilesimd`; killed when dropped.
pub struct Daemon {
    child: Child,
    pub address: String,
    pub store: PathBuf,
    channel: Channel,
    _folder: Option<TempDir>,
}

impl Daemon {
    /// Starts one with a store of its own.
    pub async fn start(flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut daemon = Self::start_in(folder.path(), flags).await;
        daemon._folder = Some(folder);
        daemon
    }

    /// Starts one in a folder that outlives it.
    pub async fn start_in(folder: &Path, flags: &[&str]) -> Self {
        let port_file = folder.join("port");
        let store = folder.join("store");
        let _ = std::fs::remove_file(&port_file);
        let child = Command::new(program("tilesimd"))
            .args(["--listen", "127.0.0.1:0", "--log", "warn"])
            .arg("--port-file")
            .arg(&port_file)
            .arg("--store")
            .arg(&store)
            .args(flags)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let begin = Instant::now();
        let port = loop {
            match std::fs::read_to_string(&port_file) {
                Ok(port) => break port,
                Err(_) => assert!(begin.elapsed() < Duration::from_secs(60), "no port file"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        let address = format!("127.0.0.1:{}", port.trim());
        let channel = Channel::from_shared(format!("http://{address}"))
            .unwrap()
            .tcp_nodelay(true)
            .connect()
            .await
            .unwrap();
        Self {
            child,
            address,
            store,
            channel,
            _folder: None,
        }
    }

    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    pub fn traces(&self) -> TracesClient<Channel> {
        TracesClient::new(self.channel())
    }

    pub fn machines(&self) -> MachinesClient<Channel> {
        MachinesClient::new(self.channel())
    }

    pub fn simulation(&self) -> SimulationClient<Channel> {
        SimulationClient::new(self.channel()).max_decoding_message_size(64 << 20)
    }

    pub async fn info(&self) -> v1::ServerInfoResponse {
        let mut client = ServerClient::new(self.channel());
        client
            .info(v1::ServerInfoRequest {})
            .await
            .unwrap()
            .into_inner()
    }

    /// Uploads a trace file and returns its digest.
    pub async fn put(&self, name: &str, bytes: &[u8]) -> Result<String, Status> {
        let request = Request::new(tokio_stream::iter(upload(name, bytes)));
        let answer = self.traces().upload(request).await?.into_inner();
        Ok(answer.trace.unwrap().digest)
    }

    /// Uploads a sample trace and returns its digest.
    pub async fn put_sample(&self, name: &str) -> String {
        self.put(name, &std::fs::read(sample(name)).unwrap())
            .await
            .unwrap()
    }

    pub async fn simulate(&self, request: v1::SimulateRequest) -> Result<v1::Result, Status> {
        Ok(self
            .simulation()
            .simulate(request)
            .await?
            .into_inner()
            .result
            .unwrap())
    }

    /// Waits until the server says so of itself.
    pub async fn wait_for(&self, what: &str, condition: impl Fn(&v1::ServerInfoResponse) -> bool) {
        let begin = Instant::now();
        while !condition(&self.info().await) {
            assert!(
                begin.elapsed() < Duration::from_secs(30),
                "not within 30 s: {what}"
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id() as i32).unwrap(), signal).unwrap();
    }

    /// Waits for the process to end.
    pub async fn ended(&mut self) -> ExitStatus {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(
                begin.elapsed() < Duration::from_secs(60),
                "the server does not end"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Asks it to stop and waits until it has.
    pub async fn stop(mut self) {
        self.signal(Signal::TERM);
        assert!(self.ended().await.success());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The parts of an upload.
pub fn upload(name: &str, bytes: &[u8]) -> Vec<v1::UploadTraceRequest> {
    use v1::upload_trace_request::Part;
    let header = v1::UploadTraceHeader {
        name: name.to_owned(),
        size_bytes: bytes.len() as u64,
    };
    let mut parts = vec![v1::UploadTraceRequest {
        part: Some(Part::Header(header)),
    }];
    parts.extend(bytes.chunks(1000).map(|c| v1::UploadTraceRequest {
        part: Some(Part::Data(c.to_vec())),
    }));
    parts
}

/// The machine of most tests.
pub fn machine() -> v1::MachineRef {
    preset("tpuv3_simple_dram", &[])
}

/// A preset with changes.
pub fn preset(name: &str, overrides: &[(&str, &str)]) -> v1::MachineRef {
    let overrides = overrides
        .iter()
        .map(|(path, value)| v1::Override {
            path: (*path).into(),
            value: (*value).into(),
        })
        .collect();
    v1::MachineRef {
        source: Some(v1::machine_ref::Source::Preset(name.to_owned())),
        overrides,
    }
}

/// A launch of a trace.
pub fn launch(trace: &str, grid: &[u64]) -> v1::Launch {
    v1::Launch {
        trace_digest: trace.to_owned(),
        grid: grid.to_vec(),
        ..v1::Launch::default()
    }
}

/// A simulation of a trace on the machine of most tests.
pub fn request(trace: &str, grid: &[u64]) -> v1::SimulateRequest {
    v1::SimulateRequest {
        machine: Some(machine()),
        launch: Some(launch(trace, grid)),
    }
}

/// A trace whose work-items compute for long: a launch of many takes as long as a test needs.
pub const SLOW: &str = r#"tilesim trace 1
kernel "slow"
axes 1
param SALT = 0
tensor A: 32 bit in [4096]
buffer a 16384
tile t cycles 10
body {
  for k in 0..64 {
    load A[k * 64] dims [64: 1] writes [a]
    compute t vector reads [a] writes [a]
  }
}
"#;

/// A launch of [`SLOW`] that takes minutes; one per `salt`.
pub fn slow_request(trace: &str, salt: i64) -> v1::SimulateRequest {
    let mut request = request(trace, &[1 << 30]);
    request
        .launch
        .as_mut()
        .unwrap()
        .params
        .insert("SALT".to_owned(), salt);
    request
}
