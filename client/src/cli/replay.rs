//! `tilesim replay`: a list of launches, one result a line.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufWriter, Write},
    path::PathBuf,
};

use anyhow::Context as _;
use clap::Args;
use serde::Serialize;
use tilesim_server::{
    error::{Problem, ServiceError},
    runner::RunResult,
};
use tokio::sync::mpsc;

use super::{
    Failure, Outcome,
    args::WhereArgs,
    files, list_outcome,
    lists::{self, Files, LaunchLine},
    output::ResultJson,
    progress::Bar,
};
use crate::backend::ReplayItem;

/// Simulates a list of launches.
#[derive(Args)]
pub struct Replay {
    /// List of launches, one JSON object a line (docs/schemas/replay-list.schema.json).
    list: PathBuf,
    /// File for the results, one JSON object a line, in the order of the list.
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Machine of launches that name none: a preset's name or a file.
    #[arg(long, short, value_name = "MACHINE")]
    machine: Option<String>,
    #[command(flatten)]
    place: WhereArgs,
    /// Print errors as JSON.
    #[arg(long)]
    json: bool,
}

/// A line of the output.
#[derive(Serialize)]
struct OutcomeJson<'a> {
    index: usize,
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<ResultJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a Problem>,
}

type Decided = Result<RunResult, ServiceError>;

/// What a list asks for: the key of each line, and its launch or why it has none.
type Entries = Vec<(String, Result<ReplayItem, ServiceError>)>;

impl Replay {
    pub async fn run(self) -> Outcome {
        let service = |e| Failure::Service(e, self.json);
        let (entries, files) = self.entries().map_err(service)?;
        let file = File::create(&self.output)
            .map_err(|e| {
                let path = self.output.display().to_string();
                ServiceError::invalid("client.file", path, format!("cannot write the file: {e}"))
            })
            .map_err(service)?;
        let backend = self.place.backend().await.map_err(service)?;
        for trace in files.traces() {
            backend
                .put_trace(&trace.name, &trace.trace)
                .await
                .map_err(service)?;
        }
        let mut writer = InOrder::new(file, entries.iter().map(|(key, _)| key.clone()).collect());
        let mut items = Vec::new();
        // Lines that name no launch fail here; the others go to the backend.
        let mut positions = Vec::new();
        for (index, (_, entry)) in entries.into_iter().enumerate() {
            match entry {
                Ok(item) => {
                    positions.push(index);
                    items.push(item);
                }
                Err(error) => writer.put(index, Err(error))?,
            }
        }
        let bar = Bar::list("launches", items.len());
        let (sender, mut outcomes) = mpsc::channel(16);
        let work = async move { backend.replay(items, &sender).await };
        let collect = async {
            while let Some((number, outcome)) = outcomes.recv().await {
                if let Some(index) = positions.get(number) {
                    writer.put(*index, outcome)?;
                }
                bar.step();
            }
            anyhow::Ok(())
        };
        let (done, written) = tokio::join!(work, collect);
        written?;
        done.map_err(service)?;
        let (failed, total) = writer.finish()?;
        list_outcome(failed, total)
    }

    fn entries(&self) -> Result<(Entries, Files), ServiceError> {
        let text = files::read_text(&self.list)?;
        let mut files = Files::default();
        let mut entries = Vec::new();
        for (number, text) in text.lines().enumerate() {
            if text.trim().is_empty() {
                continue;
            }
            let syntax = |e| lists::syntax(&self.list, Some(number + 1), &e);
            let line = LaunchLine::parse(text).map_err(syntax)?;
            let key = line.key.unwrap_or_else(|| entries.len().to_string());
            let machine = line.machine.as_ref().or(self.machine.as_ref());
            let machine = machine.ok_or_else(|| {
                lists::no_machine(format!("{}: line {}", self.list.display(), number + 1))
            })?;
            let overrides = lists::overrides(&line.set);
            let item = || {
                let machine = files.machine(&self.list, machine, overrides)?;
                let trace = files.trace(&self.list, &line.launch.trace)?;
                let launch = line.launch.launch(&trace)?;
                Ok((key.clone(), machine, trace.digest, launch))
            };
            let item = item();
            entries.push((key, item));
        }
        Ok((entries, files))
    }
}

/// Writes outcomes in the order of the list, each as soon as those before it are there.
struct InOrder<W: Write> {
    out: BufWriter<W>,
    keys: Vec<String>,
    early: BTreeMap<usize, Decided>,
    next: usize,
    failed: usize,
}

impl<W: Write> InOrder<W> {
    fn new(out: W, keys: Vec<String>) -> Self {
        Self {
            out: BufWriter::new(out),
            keys,
            early: BTreeMap::new(),
            next: 0,
            failed: 0,
        }
    }

    fn put(&mut self, index: usize, outcome: Decided) -> anyhow::Result<()> {
        self.early.insert(index, outcome);
        while let Some(outcome) = self.early.remove(&self.next) {
            let line = OutcomeJson {
                index: self.next,
                key: self.keys.get(self.next).map_or("", String::as_str),
                result: outcome.as_ref().ok().map(ResultJson::from),
                error: outcome.as_ref().err().map(|e| &*e.problem),
            };
            self.failed += usize::from(outcome.is_err());
            serde_json::to_writer(&mut self.out, &line).context("cannot write a result")?;
            self.out.write_all(b"\n").context("cannot write a result")?;
            self.next += 1;
        }
        Ok(())
    }

    fn finish(mut self) -> anyhow::Result<(usize, usize)> {
        self.out.flush().context("cannot write the results")?;
        Ok((self.failed, self.next))
    }
}
