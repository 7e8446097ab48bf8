//! The parent's side: starts the child, waits, reads what it wrote.

use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::RecordError;
use crate::stream::{self, Recording};

/// First argument of the child process.
pub const CHILD: &str = "__record-child";

/// What to run, and how far it may go.
#[derive(Clone, Debug)]
pub struct Request {
    /// The program that this crate is part of.
    pub program: PathBuf,
    /// The shared object.
    pub object: PathBuf,
    /// Its shape arguments.
    pub shape: Vec<i64>,
    /// The trace ABI; what the object says if absent.
    pub abi: Option<u32>,
    /// How long it may run.
    pub time: Duration,
    /// Bytes of address space it may use.
    pub memory: u64,
    /// Bytes it may write.
    pub output: u64,
}

/// Runs a producer in a child process and gives what it emitted.
///
/// # Errors
///
/// The object cannot be loaded, does not behave as the interface says, goes beyond a limit, crashes,
/// or emits what cannot be read.
pub fn record(request: &Request) -> Result<Recording, RecordError> {
    let io = |what: &str| {
        let what = what.to_owned();
        move |error| RecordError::Io { what, error }
    };
    let object = request
        .object
        .canonicalize()
        .map_err(io(&format!("cannot find {}", request.object.display())))?;
    let folder = tempfile::tempdir().map_err(io("cannot make a temporary folder"))?;
    let (out, log) = (folder.path().join("items"), folder.path().join("said"));
    let said = File::create(&log).map_err(io("cannot make a temporary file"))?;
    let mut child = Command::new(&request.program)
        .arg(CHILD)
        .arg(&object)
        .arg(&out)
        .arg(request.abi.unwrap_or(0).to_string())
        .arg(request.time.as_secs().max(1).to_string())
        .arg(request.memory.to_string())
        .arg(request.output.to_string())
        .args(request.shape.iter().map(i64::to_string))
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(said)
        .spawn()
        .map_err(io("cannot start the producer's process"))?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child
            .try_wait()
            .map_err(io("cannot wait for the producer's process"))?
        {
            break status;
        }
        if start.elapsed() >= request.time {
            // It may have ended just now.
            let _ = child.kill();
            let _ = child.wait();
            return Err(RecordError::Child {
                how: format!("did not end within {} s", request.time.as_secs()),
                stderr: end_of(&log),
            });
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    if !status.success() {
        return Err(RecordError::Child {
            how: how(status),
            stderr: end_of(&log),
        });
    }
    let mut text = String::new();
    File::open(&out)
        .and_then(|file| file.take(request.output).read_to_string(&mut text))
        .map_err(io("cannot read what was recorded"))?;
    stream::parse(&text)
}

fn how(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt as _;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with code {code}"),
        (None, Some(11 | 7)) => {
            "crashed (bad memory access; does it use another trace ABI?)".to_owned()
        }
        (None, Some(24)) => "ran out of its processor time".to_owned(),
        (None, Some(25)) => "wrote more than it may".to_owned(),
        (None, Some(6)) => "gave up (abort; perhaps its memory ran out)".to_owned(),
        (None, signal) => format!("was ended by signal {}", signal.unwrap_or(0)),
    }
}

/// The end of what the child said.
fn end_of(log: &std::path::Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(log) {
        let _ = file.take(1 << 16).read_to_end(&mut bytes);
    }
    let from = bytes.len().saturating_sub(2000);
    let end = bytes.get(from..).unwrap_or_default();
    String::from_utf8_lossy(end).trim().to_owned()
}
