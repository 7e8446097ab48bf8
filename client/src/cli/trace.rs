//! `tilesim trace`: look at, convert and store traces.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde::Serialize;
use tilesim_server::error::{Problem, ServiceError};
use tilesim_traces::{
    Bound, LaunchArgs, Limits, TraceError, WorkItem,
    launch::{Op, OpKind, ResolvedIndirect, Transfer},
    model::{self, Trace as Model},
    validate,
};

use super::{
    Failure, Outcome, args::WhereArgs, exit, files,
    output::{self, grouped},
};

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
            let bytes = files::read(path).map_err(|e| Failure::Service(e, self.json))?;
            let outcome = files::parse_trace(path, &bytes)
                .map_err(|e| vec![e])
                .and_then(validate);
            match outcome {
                Ok(trace) => {
                    let digest = trace.digest().to_string();
                    if !self.json {
                        output::line(&format!("{file}: ok, {digest}"))?;
                    }
                    checked.push(CheckedJson { file, digest: Some(digest), errors: Vec::new() });
                }
                Err(errors) => {
                    if !self.json {
                        tell(&file, &bytes, &errors);
                    }
                    let errors =
                        errors.into_iter().map(|e| ServiceError::from(e).problem).collect();
                    checked.push(CheckedJson { file, digest: None, errors });
                }
            }
        }
        let bad = checked.iter().any(|c| !c.errors.is_empty());
        if self.json {
            output::json(&CheckJson { traces: checked })?;
        }
        if bad { Err(Failure::Told(exit::INVALID)) } else { Ok(()) }
    }
}

/// Tells errors with the lines they are about.
fn tell(file: &str, bytes: &[u8], errors: &[TraceError]) {
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    for error in errors {
        eprint!("{file}: {}", error.render(text));
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
        let args = LaunchArgs {
            grid: self.grid.clone(),
            params: self.params.iter().cloned().collect(),
            ..LaunchArgs::default()
        };
        let bound = Bound::new(&file.trace, &args, &Limits::default()).map_err(invalid)?;
        if pid.len() != usize::from(file.trace.axes) {
            let message =
                format!("{} program ids for a trace of {} axes", pid.len(), file.trace.axes);
            let error = ServiceError::invalid("launch.axis_count", "--work-item", message);
            return Err(Failure::Service(error, false));
        }
        let mut ids = [0; 3];
        for (slot, id) in ids.iter_mut().zip(pid) {
            *slot = *id;
        }
        let mut item = WorkItem::default();
        bound.expand(ids, &mut item).map_err(invalid)?;
        output::line(&ops(&bound, &item))?;
        Ok(())
    }
}

fn describe(file: &files::TraceFile) -> String {
    let trace: &Model = &file.trace;
    let header = &trace.header;
    let mut text = format!("kernel {}, {} axes\ndigest {}", header.kernel, trace.axes, file.digest);
    if !header.producer.is_empty() {
        text.push_str(&format!("\nproducer {} {}", header.producer, header.producer_version));
    }
    for (name, value) in &header.origins {
        text.push_str(&format!("\n{name}: {value}"));
    }
    text.push('\n');
    text.push_str(&tilesim_traces::print(trace));
    text.trim_end().to_owned()
}

/// The ops of a work-item, one a line.
fn ops(bound: &Bound, item: &WorkItem) -> String {
    let mut table = output::table(&["#", "op", "what", "reads", "writes", "from"]);
    for (number, op) in item.ops.iter().enumerate() {
        let (name, what) = op_text(bound, item, op);
        table.add_row([
            number.to_string(),
            name.to_owned(),
            what,
            buffers(bound, item, op.reads),
            buffers(bound, item, op.writes),
            bound.site_path(op.site),
        ]);
    }
    let out = match item.out_of_bounds {
        0 => String::new(),
        n => format!("\n{n} transfers leave their tensor"),
    };
    format!("work-item {}\n{table}{out}", bound.name(item.pid))
}

fn op_text(bound: &Bound, item: &WorkItem, op: &Op) -> (&'static str, String) {
    let trace: &Model = bound.trace();
    match op.kind {
        OpKind::Dma(index) => {
            let Some(transfer) = item.transfers.get(index as usize) else {
                return ("dma", String::new());
            };
            let name = match transfer.direction {
                model::Direction::Load => "load",
                model::Direction::Store => "store",
            };
            (name, transfer_text(trace, item, transfer))
        }
        OpKind::Compute { tile, unit } => {
            let unit = match unit {
                model::Unit::Vector => "vector",
                model::Unit::Matmul => "matmul",
                model::Unit::Preload => "preload",
                model::Unit::CrossLane => "cross-lane",
            };
            let tile = trace.tiles.get(tile.index());
            let cycles = tile.and_then(|t| t.cycles).map_or("no".to_owned(), grouped);
            let name = tile.map_or("", |t| t.name.as_str());
            ("compute", format!("{name} on {unit}, {cycles} cycles"))
        }
        OpKind::Wait { semaphore, expected } => {
            ("wait", format!("semaphore {}, {} elements", semaphore.0, grouped(expected)))
        }
    }
}

fn transfer_text(trace: &Model, item: &WorkItem, transfer: &Transfer) -> String {
    let tensor = trace.tensors.get(transfer.tensor.index()).map_or("", |t| t.name.as_str());
    let (byte, bit) = (transfer.first_bit.div_euclid(8), transfer.first_bit.rem_euclid(8));
    let mut text = format!("{tensor} at {}{byte:#x}", if byte < 0 { "-" } else { "" });
    if byte < 0 {
        text = format!("{tensor} at {byte}");
    }
    if bit != 0 {
        text.push_str(&format!(" bit {bit}"));
    }
    let dims: Vec<String> = item
        .dims
        .get(transfer.dims.range())
        .unwrap_or_default()
        .iter()
        .map(|d| format!("{}:{}", d.extent, d.stride))
        .collect();
    text.push_str(&format!(", [{}] of {} bits", dims.join(", "), transfer.element_bits));
    match transfer.indirect {
        ResolvedIndirect::None => {}
        ResolvedIndirect::Indices(span) => {
            text.push_str(&format!(", at {} indices", span.range().len()));
        }
        ResolvedIndirect::Lines { count, bytes } => {
            text.push_str(&format!(", {count} lines of {bytes} bytes"));
        }
    }
    if transfer.valid_elements != transfer.full_elements {
        text.push_str(&format!(
            ", {} of {} elements valid",
            transfer.valid_elements, transfer.full_elements
        ));
    }
    if let Some(semaphore) = transfer.semaphore {
        text.push_str(&format!(", async on {}", semaphore.0));
    }
    text
}

fn buffers(bound: &Bound, item: &WorkItem, span: tilesim_traces::launch::Span) -> String {
    let trace: &Model = bound.trace();
    let names: Vec<&str> = item
        .buffers
        .get(span.range())
        .unwrap_or_default()
        .iter()
        .map(|b| trace.buffers.get(b.index()).map_or("?", |b| b.name.as_str()))
        .collect();
    names.join(" ")
}

/// Writes a trace in another encoding.
#[derive(Args)]
pub struct Convert {
    /// Trace file, in any encoding.
    trace: PathBuf,
    /// File to write: `.tst` for text, `.tsb` for the binary container.
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
}

impl Convert {
    pub fn run(self) -> Outcome {
        let failure = |e| Failure::Service(e, false);
        let file = files::trace(&self.trace).map_err(failure)?;
        let bytes = encode(&file.trace, &self.output).map_err(failure)?;
        fs::write(&self.output, bytes)
            .with_context(|| format!("cannot write {}", self.output.display()))?;
        Ok(())
    }
}

fn encode(trace: &Model, path: &Path) -> Result<Vec<u8>, ServiceError> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("tst" | "txt") => Ok(tilesim_traces::print(trace).into_bytes()),
        Some("tsb" | "bin") => Ok(tilesim_traces::encode(trace)?),
        _ => Err(ServiceError::invalid(
            "client.bad_extension",
            path.display().to_string(),
            "the extension names no encoding that can be written",
        )
        .hint("use .tst for text or .tsb for the binary container")),
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
            for PutOneJson { file, digest, already_present } in stored {
                let how = if already_present { "was there already" } else { "stored" };
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
            let bytes = tilesim_traces::encode(&trace.trace)?;
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
