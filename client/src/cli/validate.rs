//! `tilesim validate`: simulated rankings against measured ones.

use std::{
    collections::BTreeMap,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use comfy_table::{ColumnConstraint, Width};
use serde::Serialize;
use tilesim_core::MODEL_VERSION;
use tilesim_server::error::{Problem, ServiceError};
use tilesim_silicon::{
    constants::{self, Constant, Origin, Point, Sensitivity},
    data::{Config, Data, DataError, Entry, File, Shape},
    kernel::Constants,
    score::Score,
    validate::{Failure as Failed, Model, Place, Prediction, Ranking},
};

use super::{
    Failure, Outcome,
    args::{MachineArgs, pair},
    files, list_outcome, machine,
    output::{self, grouped},
    progress::Bar,
};

/// Ranks what was measured on hardware, and scores the order.
#[derive(Subcommand)]
pub enum Validate {
    /// Triton's matmul on an NVIDIA H200: simulate every configuration on every shape, and compare the
    /// order with the measured one and with a naive model's.
    H200(H200),
}

impl Validate {
    pub async fn run(self) -> Outcome {
        match self {
            Validate::H200(validate) => validate.run(),
        }
    }
}

/// Ranks the configurations of Triton's matmul on an H200.
#[derive(Args)]
#[command(after_help = SCORES)]
pub struct H200 {
    /// Measured times of whole launches, of the form of client/silicon/data/h200_triton_autotune.json.
    /// Where it has no configurations, resources or one-program times, those of that file count
    /// [default: that file].
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// One-program measurements, of the form of client/silicon/data/h200_one_item.json [default: that
    /// file].
    #[arg(long, value_name = "FILE")]
    one: Option<PathBuf>,
    /// Only this shape of the data; may be given again.
    #[arg(long = "shape", value_name = "MxNxK")]
    shapes: Vec<String>,
    /// Machine: a preset's name or a file.
    #[arg(long, short, value_name = "MACHINE", default_value = "h200")]
    machine: String,
    /// Change a value of the machine, for example `dram.latency_cycles=900`.
    #[arg(long = "set", value_name = "PATH=VALUE", value_parser = pair)]
    set: Vec<(String, String)>,
    /// Simulate so many configurations at once [default: one per processor].
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Compute again what the rankings lose when a fitted constant is 20 % less or more: simulates
    /// everything twice for each.
    #[arg(long)]
    sensitivity: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const SCORES: &str = "tau: Kendall's tau-b between simulated and measured times, of all configurations \
with a measured time, and of the 50 fastest of them. Regret: the measured time of the configuration \
simulated fastest (of the best of the five simulated fastest) over the shortest measured time, less 1. \
A configuration that fails is ranked last and named. The naive model is waves of programs times the \
cost of one: ceil(programs / cores) x K steps x a step of one program alone.";

#[derive(Serialize)]
struct ValidateJson<'a> {
    machine: &'a str,
    model_version: String,
    configs: usize,
    shapes: &'a [ShapeJson],
    means: MeansJson,
    constants: &'a [Constant],
    sensitivity: &'a Sensitivity,
}

#[derive(Serialize)]
struct ShapeJson {
    shape: String,
    aligned: bool,
    count: usize,
    #[serde(flatten)]
    score: Score,
    pick: Option<PlaceJson>,
    top5: Vec<PlaceJson>,
    best: Option<PlaceJson>,
    naive: NaiveJson,
    failed: Vec<FailedJson>,
}

#[derive(Serialize)]
struct NaiveJson {
    #[serde(flatten)]
    score: Score,
    pick: Option<PlaceJson>,
}

#[derive(Clone, Copy, Serialize)]
struct PlaceJson {
    index: usize,
    config: Config,
    measured_us: f64,
    /// None: it failed.
    predicted_us: Option<f64>,
}

#[derive(Serialize)]
struct FailedJson {
    index: usize,
    config: Config,
    error: Problem,
}

#[derive(Serialize)]
struct MeansJson {
    aligned: MeanJson,
    unaligned: MeanJson,
}

#[derive(Serialize)]
struct MeanJson {
    shapes: usize,
    #[serde(flatten)]
    score: Score,
    least_kendall_tau: Option<f64>,
    naive: Score,
}

impl H200 {
    fn run(self) -> Outcome {
        let failure = |e| Failure::Service(e, self.json);
        let data = self.read().map_err(failure)?;
        let model = self.model().map_err(failure)?;
        let machine_error = |e| failure(ServiceError::from(e));
        let constants = constants::constants(&model).map_err(machine_error)?;

        let launches = |shape: &Shape| shape.time_us.iter().flatten().count();
        let mut total: usize = data.shapes.iter().map(launches).sum();
        if self.sensitivity {
            total += Sensitivity::launches(&model, &data.shapes).map_err(machine_error)?;
        }
        let threads = self.threads.map_or_else(
            || std::thread::available_parallelism().context("cannot count the processors"),
            Ok,
        )?;
        let bar = Bar::list("simulations", total);
        let done = || bar.step();
        let (times, computed) = tokio::task::block_in_place(|| {
            let times = model.times_us(&data.configs, &data.shapes, threads, &done);
            let computed = self.sensitivity.then(|| {
                let date = today();
                Sensitivity::compute(&model, &data.configs, &data.shapes, threads, date, &done)
            });
            (times, computed)
        });
        drop(bar);
        let sensitivity = match computed {
            Some(computed) => computed.map_err(machine_error)?,
            None => Sensitivity::committed().context("the committed sensitivities are damaged")?,
        };

        let shapes: Vec<ShapeJson> = data
            .shapes
            .iter()
            .zip(&times)
            .map(|(shape, times)| shape_json(&model, &data.configs, shape, times))
            .collect();
        let mean_of = |aligned: bool| mean(shapes.iter().filter(|s| s.aligned == aligned));
        let document = ValidateJson {
            machine: &self.machine,
            model_version: MODEL_VERSION.to_string(),
            configs: data.configs.len(),
            shapes: &shapes,
            means: MeansJson {
                aligned: mean_of(true),
                unaligned: mean_of(false),
            },
            constants: &constants,
            sensitivity: &sensitivity,
        };
        if self.json {
            output::json(&document)?;
        } else {
            print(&document)?;
        }
        let failed = shapes.iter().map(|s| s.failed.len()).sum();
        list_outcome(failed, shapes.iter().map(|s| s.count).sum())
    }

    fn read(&self) -> Result<Data, ServiceError> {
        let text = |path: &Option<PathBuf>| path.as_deref().map(files::read_text).transpose();
        let (launches, one) = (text(&self.data)?, text(&self.one)?);
        let data = Data::read(launches.as_deref(), one.as_deref());
        let mut data = data.map_err(|error| {
            let file = match error.file {
                File::Launches => self.data.as_deref(),
                File::OneProgram => self.one.as_deref(),
            };
            in_file(&error, file)
        })?;
        if let Some(unknown) = self
            .shapes
            .iter()
            .find(|name| data.shapes.iter().all(|s| s.name != **name))
        {
            let names: Vec<&str> = data.shapes.iter().map(|s| s.name.as_str()).collect();
            let message = format!("the data has no shape {unknown}");
            let error = ServiceError::invalid("validate.no_shape", "--shape", message);
            return Err(error.hint(format!("it has {}", names.join(", "))));
        }
        if !self.shapes.is_empty() {
            data.shapes.retain(|s| self.shapes.contains(&s.name));
        }
        if data.shapes.is_empty() {
            let message = "there are no measured times";
            let error = ServiceError::invalid("validate.no_shapes", "mm.time_us", message);
            return Err(error.hint("give the times of at least one shape"));
        }
        Ok(data)
    }

    fn model(&self) -> Result<Model, ServiceError> {
        let machine = machine::named(&MachineArgs {
            machine: self.machine.clone(),
            set: self.set.clone(),
        })?;
        Ok(Model {
            machine,
            constants: Constants::default(),
        })
    }
}

/// What is wrong with measurements, in a file if they come from one.
fn in_file(error: &DataError, file: Option<&Path>) -> ServiceError {
    let file = file.map_or_else(|| error.file.to_string(), |f| f.display().to_string());
    let example = match error.file {
        File::Launches => "client/silicon/data/h200_triton_autotune.json",
        File::OneProgram => "client/silicon/data/h200_one_item.json",
    };
    let path = format!("{file}: {}", error.path);
    let problem = ServiceError::invalid("validate.bad_data", path, error.message.clone());
    problem.hint(format!("{example} shows the form"))
}

fn shape_json(
    model: &Model,
    configs: &[Entry],
    shape: &Shape,
    times: &BTreeMap<usize, Prediction>,
) -> ShapeJson {
    let place = |place: &Place| {
        let config = configs.get(place.config)?.config;
        Some(PlaceJson {
            index: place.config,
            config,
            measured_us: place.measured_us,
            predicted_us: Some(place.predicted_us).filter(|t| t.is_finite()),
        })
    };
    let simulated = Ranking::simulated(shape, times);
    let naive = Ranking::naive(shape, configs, &model.machine);
    let failed = times.iter().filter_map(|(index, time)| {
        Some(FailedJson {
            index: *index,
            config: configs.get(*index)?.config,
            error: problem(time.as_ref().err()?),
        })
    });
    ShapeJson {
        shape: shape.name.clone(),
        aligned: shape.aligned(),
        count: simulated.places.len(),
        score: simulated.score,
        pick: simulated.pick().and_then(place),
        top5: simulated.places.iter().take(5).filter_map(place).collect(),
        best: simulated.best().and_then(place),
        naive: NaiveJson {
            score: naive.score,
            pick: naive.pick().and_then(place),
        },
        failed: failed.collect(),
    }
}

fn problem(failure: &Failed) -> Problem {
    let error = match failure {
        Failed::Unmeasured(error) => in_file(error, None),
        Failed::Simulation(error) => ServiceError::from(error.clone()),
        Failed::Panicked => ServiceError::internal(failure.to_string()),
    };
    *error.problem
}

fn mean<'s>(shapes: impl Iterator<Item = &'s ShapeJson> + Clone) -> MeanJson {
    MeanJson {
        shapes: shapes.clone().count(),
        score: Score::mean(shapes.clone().map(|s| &s.score)),
        least_kendall_tau: shapes
            .clone()
            .filter_map(|s| s.score.kendall_tau)
            .min_by(f64::total_cmp),
        naive: Score::mean(shapes.map(|s| &s.naive.score)),
    }
}

/// The date in UTC.
fn today() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    date(since.map_or(0, |s| s.as_secs() / 86_400))
}

/// The date so many days after 1970-01-01.
fn date(mut days: u64) -> String {
    let leap = |y: u64| y.is_multiple_of(4) && !y.is_multiple_of(100) || y.is_multiple_of(400);
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", days + 1)
}

fn print(document: &ValidateJson<'_>) -> anyhow::Result<()> {
    scores(document)?;
    picks(document.shapes)?;
    for shape in document.shapes {
        for failed in &shape.failed {
            let (shape, config) = (&shape.shape, failed.config);
            output::line(&format!("{shape}: {config}: failed: {}", failed.error))?;
        }
    }
    constants_in_use(document)
}

fn tau(tau: Option<f64>) -> String {
    tau.map_or_else(|| "-".to_owned(), |t| format!("{t:.3}"))
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |s| format!("{:.1} %", s * 100.0))
}

fn scores(document: &ValidateJson<'_>) -> anyhow::Result<()> {
    let cells = |score: &Score| {
        [
            tau(score.kendall_tau),
            tau(score.tau_top50),
            percent(score.regret),
            percent(score.regret_top5),
        ]
    };
    output::line(&format!(
        "{} configurations on {}; the naive model's figures at the right",
        document.configs, document.machine
    ))?;
    let mut table = output::table(&[
        "shape",
        "strides",
        "measured",
        "tau",
        "tau top 50",
        "regret",
        "of best of 5",
        "tau",
        "tau top 50",
        "regret",
        "of best of 5",
    ]);
    let strides = |aligned: bool| if aligned { "aligned" } else { "unaligned" }.to_owned();
    for shape in document.shapes {
        let first = [
            shape.shape.clone(),
            strides(shape.aligned),
            grouped(shape.count as u64),
        ];
        let scores = [cells(&shape.score), cells(&shape.naive.score)];
        table.add_row(first.into_iter().chain(scores.into_iter().flatten()));
    }
    for (aligned, mean) in [
        (true, &document.means.aligned),
        (false, &document.means.unaligned),
    ] {
        if mean.shapes > 0 {
            let first = [
                format!("mean of {}", mean.shapes),
                strides(aligned),
                String::new(),
            ];
            let scores = [cells(&mean.score), cells(&mean.naive)];
            table.add_row(first.into_iter().chain(scores.into_iter().flatten()));
        }
    }
    output::align(&mut table, 2);
    output::line(&table.to_string())
}

fn picks(shapes: &[ShapeJson]) -> anyhow::Result<()> {
    let mut table = output::table(&["shape", "", "configuration", "measured us", "simulated us"]);
    for shape in shapes {
        for (what, place) in [
            ("pick", shape.pick),
            ("best", shape.best),
            ("naive pick", shape.naive.pick),
        ] {
            let Some(place) = place else { continue };
            // The naive model's own time is no simulated one.
            let simulated = place.predicted_us.filter(|_| what != "naive pick");
            table.add_row([
                shape.shape.clone(),
                what.to_owned(),
                place.config.to_string(),
                format!("{:.1}", place.measured_us),
                simulated.map_or_else(|| "-".to_owned(), |t| format!("{t:.1}")),
            ]);
        }
    }
    output::align(&mut table, 3);
    output::line(&table.to_string())
}

fn constants_in_use(document: &ValidateJson<'_>) -> anyhow::Result<()> {
    let mut table = output::table(&["constant", "value", "unit", "origin", "source"]);
    for constant in document.constants {
        let origin = match constant.origin {
            Origin::Public => "public",
            Origin::OneProgram => "one program",
            Origin::Fitted => "fitted",
            Origin::Model => "model",
            Origin::Stated => "stated",
        };
        table.add_row([
            constant.name.clone(),
            plain(&constant.value),
            constant.unit.to_owned(),
            origin.to_owned(),
            constant.source.to_owned(),
        ]);
    }
    if let Some(source) = table.column_mut(4) {
        source.set_constraint(ColumnConstraint::UpperBoundary(Width::Fixed(60)));
    }
    output::line(&table.to_string())?;

    let sensitivity = document.sensitivity;
    let now = |name: &str| document.constants.iter().find(|c| c.name == name);
    let old: Vec<&str> = sensitivity
        .constants
        .iter()
        .filter(|(name, moved)| now(name).is_none_or(|c| c.value != moved.value))
        .map(|(name, _)| name.as_str())
        .collect();
    if !old.is_empty() {
        output::line(&format!(
            "note: computed with another {}; --sensitivity computes it again",
            old.join(", ")
        ))?;
    }
    output::line(&format!(
        "Fitted constants 20 % less and 20 % more: means over {}, {}; unmoved: tau {}, regret {}",
        sensitivity.shapes.join(", "),
        sensitivity.date,
        tau(sensitivity.mean.kendall_tau),
        percent(sensitivity.mean.regret),
    ))?;
    let mut table = output::table(&[
        "constant",
        "value",
        "20 % less",
        "tau",
        "regret",
        "20 % more",
        "tau",
        "regret",
    ]);
    for (name, moved) in &sensitivity.constants {
        let point = |point: &Point| {
            [
                plain(&point.value),
                tau(point.mean.kendall_tau),
                percent(point.mean.regret),
            ]
        };
        let first = [name.clone(), plain(&moved.value)];
        let points = [point(&moved.less), point(&moved.more)];
        table.add_row(first.into_iter().chain(points.into_iter().flatten()));
    }
    output::align(&mut table, 1);
    output::line(&table.to_string())
}

/// A value without the quotes of JSON.
fn plain(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::String(word) => word.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_dates() {
        let cases = [
            (0, "1970-01-01"),
            (58, "1970-02-28"),
            (59, "1970-03-01"),
            (789, "1972-02-29"),
            (11_016, "2000-02-29"),
            (20_788, "2026-12-01"),
            (47_540, "2100-02-28"),
            (47_541, "2100-03-01"),
        ];
        for (days, text) in cases {
            assert_eq!(date(days), text, "{days}");
        }
    }
}
