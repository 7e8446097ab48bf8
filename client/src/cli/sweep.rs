//! `tilesim sweep`: one launch under every combination of machine settings.

use std::{collections::BTreeMap, path::PathBuf};

use clap::Args;
use serde::Serialize;
use tilesim_server::{
    catalog::MachineRequest,
    error::{Problem, ServiceError},
    runner::RunResult,
};
use tokio::sync::mpsc;

use super::{
    Failure, Outcome,
    args::{LaunchFlags, WhereArgs, pair},
    files, list_outcome,
    output::{self, ResultJson, grouped},
    progress::Bar,
};

/// Simulates one launch under several machine settings.
#[derive(Args)]
pub struct Sweep {
    /// Trace file in any encoding, or a PyTorchSim kernel folder.
    trace: PathBuf,
    /// Machine: a preset's name (see `tilesim machine list`) or a file.
    #[arg(long, short, value_name = "MACHINE")]
    machine: String,
    /// A value of the machine and what to set it to; every combination is simulated.
    #[arg(long = "set", value_name = "PATH=VALUE,...", value_parser = pair, required = true)]
    set: Vec<(String, String)>,
    #[command(flatten)]
    launch: LaunchFlags,
    #[command(flatten)]
    place: WhereArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Points of a sweep, at most.
const POINTS: usize = 100_000;

#[derive(Serialize)]
struct SweepJson<'a> {
    points: Vec<PointJson<'a>>,
}

#[derive(Serialize)]
struct PointJson<'a> {
    set: BTreeMap<&'a str, &'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<ResultJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a Problem>,
}

type Point = Vec<(String, String)>;

impl Sweep {
    pub async fn run(self) -> Outcome {
        let (points, outcomes) = self
            .simulate()
            .await
            .map_err(|e| Failure::Service(e, self.json))?;
        let failed = outcomes.iter().filter(|o| o.is_err()).count();
        if self.json {
            let points = points
                .iter()
                .zip(&outcomes)
                .map(|(set, outcome)| PointJson {
                    set: set.iter().map(|(p, v)| (p.as_str(), v.as_str())).collect(),
                    result: outcome.as_ref().ok().map(ResultJson::from),
                    error: outcome.as_ref().err().map(|e| &*e.problem),
                })
                .collect();
            output::json(&SweepJson { points })?;
        } else {
            print(&points, &outcomes)?;
        }
        list_outcome(failed, outcomes.len())
    }

    async fn simulate(
        &self,
    ) -> Result<(Vec<Point>, Vec<Result<RunResult, ServiceError>>), ServiceError> {
        let points = combinations(&self.set)?;
        let trace = files::trace(&self.trace)?;
        let launch = self.launch.launch(&trace)?;
        let source = files::machine_source(&self.machine)?;
        let backend = self.place.backend().await?;
        backend.put_trace(&trace.name, &trace.trace).await?;
        let items = points
            .iter()
            .map(|overrides| {
                let machine = MachineRequest {
                    source: source.clone(),
                    overrides: overrides.clone(),
                };
                (String::new(), machine, trace.digest, launch.clone())
            })
            .collect();
        let bar = Bar::list("points", points.len());
        let (sender, mut outcomes) = mpsc::channel(16);
        let work = async move { backend.replay(items, &sender).await };
        let mut collected: Vec<Option<Result<RunResult, ServiceError>>> = vec![None; points.len()];
        let collect = async {
            while let Some((index, outcome)) = outcomes.recv().await {
                if let Some(slot) = collected.get_mut(index) {
                    *slot = Some(outcome);
                }
                bar.step();
            }
        };
        let (done, ()) = tokio::join!(work, collect);
        done?;
        let missing = || Err(ServiceError::internal("a point has no result"));
        Ok((
            points,
            collected
                .into_iter()
                .map(|o| o.unwrap_or_else(missing))
                .collect(),
        ))
    }
}

/// Every combination of the values, the last path varying fastest.
fn combinations(set: &[(String, String)]) -> Result<Vec<Point>, ServiceError> {
    let mut points: Vec<Point> = vec![Vec::new()];
    for (path, values) in set {
        let values: Vec<&str> = values.split(',').map(str::trim).collect();
        if points.len().saturating_mul(values.len()) > POINTS {
            let message = format!("there are more than {POINTS} combinations");
            return Err(ServiceError::invalid("sweep.too_many", "--set", message));
        }
        points = points
            .into_iter()
            .flat_map(|point| {
                values.iter().map(move |value| {
                    let mut point = point.clone();
                    point.push((path.clone(), (*value).to_owned()));
                    point
                })
            })
            .collect();
    }
    Ok(points)
}

fn print(points: &[Point], outcomes: &[Result<RunResult, ServiceError>]) -> anyhow::Result<()> {
    let paths: Vec<&str> = points.first().map_or_else(Vec::new, |p| {
        p.iter().map(|(path, _)| path.as_str()).collect()
    });
    let header: Vec<&str> = paths
        .iter()
        .copied()
        .chain(["cycles", "ns", "against first"])
        .collect();
    let mut table = output::table(&header);
    let first = outcomes
        .iter()
        .find_map(|o| o.as_ref().ok())
        .map(|r| r.report.cycles);
    for (point, outcome) in points.iter().zip(outcomes) {
        let mut row: Vec<String> = point.iter().map(|(_, value)| value.clone()).collect();
        match outcome {
            Ok(result) => {
                let cycles = result.report.cycles;
                row.push(grouped(cycles));
                row.push(result.report.ns.clone());
                row.push(match first {
                    Some(first) if first > 0 => format!("{:.3}", cycles as f64 / first as f64),
                    _ => "-".to_owned(),
                });
            }
            Err(error) => row.push(format!("{}: {}", error.problem.code, error.problem.message)),
        }
        table.add_row(row);
    }
    output::align(&mut table, paths.len());
    output::line(&table.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combines_all_values() {
        let set = [
            ("a".to_owned(), "1,2".to_owned()),
            ("b".to_owned(), "x, y".to_owned()),
        ];
        let points: Vec<String> = combinations(&set)
            .unwrap()
            .iter()
            .map(|p| p.iter().map(|(k, v)| format!("{k}{v}")).collect())
            .collect();
        assert_eq!(points, ["a1bx", "a1by", "a2bx", "a2by"]);
    }
}
