//! `tilesim compare`: our figures beside another simulator's.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;
use tilesim_core::Report;
use tilesim_server::{error::ServiceError, runner::RunResult};
use tilesim_traces::import::togsim_log::{
    CoreFigures, ReferenceFigures, UnitFigures, parse_togsim_log,
};

use super::{
    Failure, Outcome,
    args::{LaunchFlags, MachineArgs, WhereArgs},
    files,
    output::{self, ResultJson, grouped},
};

/// Puts our figures beside another simulator's.
#[derive(Subcommand)]
pub enum Compare {
    /// Simulate a kernel and compare with the log of PyTorchSim's simulator.
    Pytorchsim(Pytorchsim),
}

impl Compare {
    pub async fn run(self) -> Outcome {
        match self {
            Compare::Pytorchsim(compare) => compare.run().await,
        }
    }
}

/// Simulates a kernel and compares with a log.
#[derive(Args)]
#[command(after_help = QUIRKS)]
pub struct Pytorchsim {
    /// Kernel folder, or a trace file in any encoding.
    kernel: PathBuf,
    #[command(flatten)]
    machine: MachineArgs,
    #[command(flatten)]
    launch: LaunchFlags,
    /// What the reference simulator printed (plain text).
    #[arg(long, value_name = "FILE")]
    log: PathBuf,
    #[command(flatten)]
    place: WhereArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const QUIRKS: &str = "What the reference counts in its own way: its vector unit has one active cycle \
more per tile than the tile takes, and its idle cycles are not counted in the last table; a core's \
bandwidth is cut to whole GB/s; per cent are rounded to two decimals. Such differences are named and \
not taken over: our figures stay ours.";

/// A figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
enum Amount {
    Whole(u64),
    Real(f64),
}

impl Amount {
    fn real(self) -> f64 {
        match self {
            Amount::Whole(n) => n as f64,
            Amount::Real(r) => r,
        }
    }

    fn text(self) -> String {
        match self {
            Amount::Whole(n) => grouped(n),
            Amount::Real(r) => format!("{r:.2}"),
        }
    }
}

/// One figure of both.
#[derive(Debug, Serialize)]
struct Figure {
    #[serde(skip_serializing_if = "Option::is_none")]
    core: Option<u32>,
    figure: String,
    ours: Amount,
    reference: Amount,
    /// Ours less the reference's.
    difference: f64,
    /// That in per cent of the reference's.
    #[serde(skip_serializing_if = "Option::is_none")]
    percent: Option<f64>,
    /// Why the two differ, where that is how the reference counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

#[derive(Serialize)]
struct CompareJson<'a> {
    figures: &'a [Figure],
    result: ResultJson<'a>,
}

impl Pytorchsim {
    async fn run(self) -> Outcome {
        let (figures, missing, result) = self
            .compare()
            .await
            .map_err(|e| Failure::Service(e, self.json))?;
        if self.json {
            output::json(&CompareJson {
                figures: &figures,
                result: ResultJson::from(&result),
            })?;
            return Ok(());
        }
        let mut table = output::table(&["core", "figure", "tilesim", "reference", "difference"]);
        for figure in &figures {
            table.add_row([
                figure.core.map_or_else(String::new, |c| c.to_string()),
                figure.figure.clone(),
                figure.ours.text(),
                figure.reference.text(),
                difference(figure),
            ]);
        }
        output::align(&mut table, 2);
        output::line(&table.to_string())?;
        for figure in &figures {
            if let Some(note) = &figure.note {
                let core = figure
                    .core
                    .map_or_else(String::new, |c| format!("core {c}, "));
                output::line(&format!("{core}{}: {note}", figure.figure))?;
            }
        }
        for note in missing.iter().chain(&result.report.notes) {
            output::line(&format!("note: {note}"))?;
        }
        let equal = figures.iter().filter(|f| f.difference == 0.0).count();
        let named = figures.iter().filter(|f| f.note.is_some()).count();
        output::line(&format!(
            "{equal} of {} figures are equal, {named} differ by how the reference counts, {} differ",
            figures.len(),
            figures.len() - equal - named,
        ))?;
        Ok(())
    }

    async fn compare(&self) -> Result<(Vec<Figure>, Vec<String>, RunResult), ServiceError> {
        let place = |mut error: ServiceError| {
            error.problem.path = self.log.display().to_string();
            error
        };
        let text = files::read_text(&self.log)?;
        let reference = parse_togsim_log(&text).map_err(|e| place(e.into()))?;
        let trace = files::trace(&self.kernel)?;
        let launch = self.launch.launch(&trace)?;
        let machine = self.machine.request()?;
        let backend = self.place.backend().await?;
        backend.put_trace(&trace.name, &trace.trace).await?;
        let result = backend
            .simulate(&machine, trace.digest, &launch, None)
            .await?;
        let (figures, missing) = figures(&result.report, &reference);
        Ok((figures, missing, result))
    }
}

fn difference(figure: &Figure) -> String {
    let size = match figure.ours {
        Amount::Whole(_) => format!("{:+}", figure.difference as i64),
        Amount::Real(_) => format!("{:+.2}", figure.difference),
    };
    match figure.percent {
        _ if figure.difference == 0.0 => "=".to_owned(),
        Some(percent) => format!("{size} ({percent:+.2} %)"),
        None => size,
    }
}

/// Collects figures that both have.
#[derive(Default)]
struct Collector {
    figures: Vec<Figure>,
}

impl Collector {
    fn add(
        &mut self,
        core: Option<u32>,
        figure: impl Into<String>,
        ours: Amount,
        reference: Option<Amount>,
        note: Option<String>,
    ) {
        let Some(reference) = reference else { return };
        let difference = match (ours, reference) {
            (Amount::Whole(a), Amount::Whole(b)) => (i128::from(a) - i128::from(b)) as f64,
            (a, b) => two_decimals(a.real() - b.real()),
        };
        let whole = reference.real();
        self.figures.push(Figure {
            core,
            figure: figure.into(),
            ours,
            reference,
            difference,
            percent: (whole != 0.0).then(|| two_decimals(100.0 * difference / whole)),
            note: note.filter(|_| difference != 0.0),
        });
    }

    fn whole(&mut self, core: Option<u32>, figure: &str, ours: u64, reference: Option<u64>) {
        let reference = reference.map(Amount::Whole);
        self.add(core, figure, Amount::Whole(ours), reference, None);
    }
}

fn two_decimals(value: f64) -> f64 {
    let rounded = (value * 100.0).round() / 100.0;
    // No minus zero.
    if rounded == 0.0 { 0.0 } else { rounded }
}

/// Our figures beside those of a log, and what only one side has.
fn figures(report: &Report, reference: &ReferenceFigures) -> (Vec<Figure>, Vec<String>) {
    let mut all = Collector::default();
    let mut missing = Vec::new();
    all.whole(
        None,
        "total cycles",
        report.cycles,
        Some(reference.total_cycles),
    );
    all.whole(
        None,
        "DRAM requests",
        report.dram_requests,
        (!reference.cores.is_empty()).then_some(reference.dram_requests),
    );
    let channels = &report.dram.channels;
    let (reads, writes) = (
        channels.iter().map(|c| c.reads).sum(),
        channels.iter().map(|c| c.writes).sum(),
    );
    match reference.dram_reads_writes {
        Some((r, w)) => {
            all.whole(None, "DRAM reads", reads, Some(r));
            all.whole(None, "DRAM writes", writes, Some(w));
        }
        None => missing.push(format!(
            "this log does not tell DRAM reads from writes; ours are {} and {}",
            grouped(reads),
            grouped(writes)
        )),
    }
    let ns: f64 = report.ns.parse().unwrap_or(0.0);
    let rate = |bytes: f64| if ns > 0.0 { bytes / ns } else { 0.0 };
    let bytes = (report.dram.bytes_read + report.dram.bytes_written) as f64;
    let whole_rate = |ours: f64, theirs: Option<f64>| {
        theirs
            .filter(|t| ours.floor() == *t)
            .map(|_| "the reference cuts it to whole GB/s".to_owned())
    };
    all.add(
        None,
        "DRAM GB/s",
        Amount::Real(two_decimals(rate(bytes))),
        reference.dram_gbps.map(Amount::Real),
        None,
    );
    let request_bytes = if report.dram_requests > 0 {
        bytes / report.dram_requests as f64
    } else {
        0.0
    };
    for core in &report.cores {
        let Some(theirs) = reference.cores.iter().find(|c| c.core == core.id) else {
            missing.push(format!("the log has no core {}", core.id));
            continue;
        };
        let id = Some(core.id);
        all.whole(id, "cycles", report.cycles, theirs.total_cycles);
        for unit in &core.units {
            let Some(figures) = unit_figures(theirs, &unit.unit) else {
                continue;
            };
            let name = &unit.unit;
            let vector = name == "vector";
            let note =
                (vector && figures.active.checked_sub(unit.active) == Some(unit.ops)).then(|| {
                    format!(
                        "the reference counts one active cycle more for each of the {} tiles",
                        unit.ops
                    )
                });
            all.add(
                id,
                format!("{name} active cycles"),
                Amount::Whole(unit.active),
                Some(Amount::Whole(figures.active)),
                note.clone(),
            );
            let idle_note = vector.then(|| {
                "the reference does not count the vector unit's idle cycles at the end".to_owned()
            });
            all.add(
                id,
                format!("{name} idle cycles"),
                Amount::Whole(unit.idle),
                Some(Amount::Whole(figures.idle)),
                idle_note.filter(|_| figures.idle == 0),
            );
            let share = match unit.active + unit.idle {
                0 => 0.0,
                all => 100.0 * unit.active as f64 / all as f64,
            };
            all.add(
                id,
                format!("{name} utilisation %"),
                Amount::Real(two_decimals(share)),
                figures.utilisation.map(Amount::Real),
                note.map(|_| "follows from the active cycles".to_owned()),
            );
        }
        all.whole(id, "DRAM responses", core.requests, theirs.dram_responses);
        let ours = rate(core.requests as f64 * request_bytes);
        all.add(
            id,
            "DRAM GB/s",
            Amount::Real(two_decimals(ours)),
            theirs.dram_gbps.map(Amount::Real),
            whole_rate(ours, theirs.dram_gbps),
        );
        all.whole(id, "loads", core.loads, theirs.loads);
        all.whole(id, "stores", core.stores, theirs.stores);
        all.whole(id, "compute tiles", core.computes, theirs.computes);
        all.whole(id, "waits", core.waits, theirs.waits);
    }
    for theirs in &reference.cores {
        if !report.cores.iter().any(|c| c.id == theirs.core) {
            missing.push(format!(
                "the machine has no core {} of the log",
                theirs.core
            ));
        }
    }
    (all.figures, missing)
}

/// The log's figures of one of our units.
fn unit_figures(core: &CoreFigures, unit: &str) -> Option<UnitFigures> {
    match unit {
        "vector" => core.vector,
        "cross_lane" => core.cross_lane,
        "dma" => core.dma,
        array => {
            let number = array.strip_prefix("systolic[")?.strip_suffix(']')?;
            core.systolic.get(number.parse::<usize>().ok()?).copied()
        }
    }
}
