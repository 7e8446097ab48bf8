//! `tilesim trace`: look at, convert and store traces.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use tilesim_server::error::{Problem, ServiceError};
use tilesim_traces::{Bound, LaunchArgs, Limits, TraceError, ValidTrace};

use super::{Failure, Outcome, args::WhereArgs, exit, files, folder, output};

/// Looks at, converts and stores traces.
#[derive(Subcommand)]
pub enum Trace {
    /// Validate traces.
    Check(Check),
    /// Describe a trace, or print the ops of one work-item.
    Show(Show),
    /// Write a trace in another encoding, picked by the output's extension.
    Convert(Convert),
    /// Store traces on a server.
    Put(Put),
}

/// Validates traces.
#[derive(Args)]
pub struct Check {
    /// Trace files, in any encoding.
    #[arg(required = true)]
    traces: Vec<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct CheckJson {
    traces: Vec<CheckedJson>,
}

#[derive(Serialize)]
struct CheckedJson {
    file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    errors: Vec<Problem>,
}

impl Check {
    pub fn run(self) -> Outcome {
        let mut checked = Vec::new();
        for path in &self.traces {
            let file = path.display().to_string();
            if path.is_dir() {
                let (digest, errors) = match files::trace(path) {
                    Ok(trace) => (Some(trace.digest.to_string()), Vec::new()),
                    Err(error) => (None, vec![*error.problem]),
                };
                match (&digest, errors.first()) {
                    _ if self.json => {}
                    (Some(digest), _) => output::line(&format!("{file}: ok, {digest}"))?,
                    (None, Some(problem)) => output::error(problem, false),
                    (None, None) => {}
                }
                checked.push(CheckedJson {
                    file,
                    digest,
                    errors,
                });
                continue;
            }
            let bytes = files::read(path).map_err(|e| Failure::Service(e, self.json))?;
            match files::parse_trace(path, &bytes) {
                Ok(trace) => {
                    let digest = trace.digest().to_string();
                    if !self.json {
                        output::line(&format!("{file}: ok, {digest}"))?;
                    }
                    checked.push(CheckedJson {
                        file,
                        digest: Some(digest),
                        errors: Vec::new(),
                    });
                }
                Err(error) => {
                    if !self.json {
                        let text = std::str::from_utf8(&bytes).unwrap_or_default();
                        eprint!("{file}: {}", error.render(text));
                    }
                    let errors = vec![*ServiceError::from(error).problem];
                    checked.push(CheckedJson {
                        file,
                        digest: None,
                        errors,
                    });
                }
            }
        }
        let bad = checked.iter().any(|c| !c.errors.is_empty());
        if self.json {
            output::json(&CheckJson { traces: checked })?;
        }
        if bad {
            Err(Failure::Told(exit::INVALID))
        } else {
            Ok(())
        }
    }
}

/// Describes a trace, or prints the ops of one work-item.
#[derive(Args)]
pub struct Show {
    /// Trace file, in any encoding.
    trace: PathBuf,
    /// Print the expanded ops of the work-item with these program ids, for example `3,1`.
    #[arg(long, value_delimiter = ',', value_name = "P,...", requires = "grid")]
    work_item: Option<Vec<u64>>,
    /// Work-items along each axis, for example `4,4`.
    #[arg(long, value_delimiter = ',', value_name = "N,...")]
    grid: Vec<u64>,
    /// Value of a kernel parameter.
    #[arg(long = "param", value_name = "NAME=INTEGER", value_parser = super::args::param)]
    params: Vec<(String, i64)>,
}

impl Show {
    pub fn run(self) -> Outcome {
        let file = files::trace(&self.trace).map_err(|e| Failure::Service(e, false))?;
        let Some(pid) = &self.work_item else {
            output::line(&describe(&file))?;
            return Ok(());
        };
        let invalid = |e: TraceError| Failure::Service(e.into(), false);
        let mut args = LaunchArgs {
            grid: self.grid.clone(),
            params: self.params.iter().cloned().collect(),
            ..LaunchArgs::default()
        };
        folder::map_shape(&file, &mut args).map_err(|e| Failure::Service(e, false))?;
        let bound = Bound::new(&file.trace, &args, &Limits::default()).map_err(invalid)?;
        if pid.len() != usize::from(file.trace.axes) {
            let message = format!(
                "{} program ids for a trace of {} axes",
                pid.len(),
                file.trace.axes
            );
            let error = ServiceError::invalid("launch.axis_count", "--work-item", message);
            return Err(Failure::Service(error, false));
        }
        let mut ids = [0; 3];
        for (slot, id) in ids.iter_mut().zip(pid) {
            *slot = *id;
        }
        let ops = tilesim_traces::show::show(&bound, ids).map_err(invalid)?;
        output::line(ops.trim_end())?;
        Ok(())
    }
}

fn describe(file: &files::TraceFile) -> String {
    let trace = &file.trace;
    let header = &trace.header;
    let mut text = format!(
        "kernel {}, {} axes\ndigest {}",
        header.kernel, trace.axes, file.digest
    );
    if !header.producer.is_empty() {
        text.push_str(&format!(
            "\nproducer {} {}",
            header.producer, header.producer_version
        ));
    }
    for (name, value) in &header.origins {
        text.push_str(&format!("\n{name}: {value}"));
    }
    text.push('\n');
    text.push_str(&tilesim_traces::to_text(trace));
    text.trim_end().to_owned()
}

/// Writes a trace in another encoding.
#[derive(Args)]
pub struct Convert {
    /// Trace file, in any encoding.
    trace: PathBuf,
    /// File to write: `.tile` (or nothing) for the text form, `.tilec` for the binary container.
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Encoding, whatever the file's extension.
    #[arg(long, value_enum)]
    to: Option<Encoding>,
}

/// An encoding that can be written.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Encoding {
    /// The readable form.
    Text,
    /// The binary container.
    Binary,
}

impl Convert {
    pub fn run(self) -> Outcome {
        let failure = |e| Failure::Service(e, false);
        let file = files::trace(&self.trace).map_err(failure)?;
        let bytes = encode(&self.output, self.to, &file.trace).map_err(failure)?;
        fs::write(&self.output, bytes)
            .with_context(|| format!("cannot write {}", self.output.display()))?;
        Ok(())
    }
}

/// A trace in the encoding asked for, or the one that the extension of `path` names.
pub fn encode(
    path: &Path,
    to: Option<Encoding>,
    trace: &ValidTrace,
) -> Result<Vec<u8>, ServiceError> {
    let encoding = match to {
        Some(encoding) => encoding,
        None => check_extension(path)?,
    };
    match encoding {
        Encoding::Text => Ok(tilesim_traces::to_text(trace).into_bytes()),
        Encoding::Binary => Ok(tilesim_traces::to_container(trace)?),
    }
}

/// The encoding that an extension names; without one, text.
pub fn check_extension(path: &Path) -> Result<Encoding, ServiceError> {
    match path.extension().map(|e| e.to_str()) {
        None | Some(Some("tile" | "txt")) => Ok(Encoding::Text),
        Some(Some("tilec" | "bin")) => Ok(Encoding::Binary),
        Some(_) => Err(ServiceError::invalid(
            "client.bad_extension",
            path.display().to_string(),
            "the extension names no encoding that can be written",
        )
        .hint("use .tile for text, .tilec for the binary container")),
    }
}

/// Stores traces on a server.
#[derive(Args)]
pub struct Put {
    /// Trace files, in any encoding.
    #[arg(required = true)]
    traces: Vec<PathBuf>,
    #[command(flatten)]
    place: WhereArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct PutJson {
    traces: Vec<PutOneJson>,
}

#[derive(Serialize)]
struct PutOneJson {
    file: String,
    digest: String,
    already_present: bool,
}

impl Put {
    pub async fn run(self) -> Outcome {
        let json = self.json;
        let stored = self.put().await.map_err(|e| Failure::Service(e, json))?;
        if json {
            output::json(&PutJson { traces: stored })?;
        } else {
            for PutOneJson {
                file,
                digest,
                already_present,
            } in stored
            {
                let how = if already_present {
                    "was there already"
                } else {
                    "stored"
                };
                output::line(&format!("{file}: {how}, {digest}"))?;
            }
        }
        Ok(())
    }

    async fn put(&self) -> Result<Vec<PutOneJson>, ServiceError> {
        let client = self.place.client().await?;
        let mut stored = Vec::new();
        for path in &self.traces {
            let trace = files::trace(path)?;
            let bytes = tilesim_traces::to_container(&trace.trace)?;
            let answer = client.upload_trace(&trace.name, &bytes).await?;
            stored.push(PutOneJson {
                file: path.display().to_string(),
                digest: answer.trace.unwrap_or_default().digest,
                already_present: answer.already_present,
            });
        }
        Ok(stored)
    }
}
