//! `tilesim machine`: look at and check machines.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;
use tilesim_core::machine::{Machine, PRESETS};
use tilesim_server::{
    catalog::MachineSource,
    error::{Problem, ServiceError},
};

use super::{
    Failure, Outcome,
    args::{MachineArgs, WhereArgs},
    exit, files, import_machine, output,
};

/// Looks at and checks machines.
#[derive(Subcommand)]
pub enum MachineCommand {
    /// Validate machine files.
    Check(Check),
    /// List the presets, and with --server the stored machines.
    List(List),
    /// Import another simulator's machine file, with a line per key.
    Import(import_machine::Import),
    /// Print a machine: derived peaks, and every value.
    Show(Show),
}

impl MachineCommand {
    pub async fn run(self) -> Outcome {
        match self {
            MachineCommand::Check(check) => check.run(),
            MachineCommand::List(list) => list.run().await,
            MachineCommand::Import(import) => import.run(),
            MachineCommand::Show(show) => show.run(),
        }
    }
}

/// Validates machine files.
#[derive(Args)]
pub struct Check {
    /// Machine files.
    #[arg(required = true)]
    machines: Vec<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct CheckJson {
    machines: Vec<CheckedJson>,
}

#[derive(Serialize)]
struct CheckedJson {
    file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    keys: Vec<String>,
    errors: Vec<Problem>,
}

impl Check {
    pub fn run(self) -> Outcome {
        let mut checked = Vec::new();
        for path in &self.machines {
            let file = path.display().to_string();
            let outcome =
                files::machine(path).and_then(|m| Ok((m.machine.digest()?.to_string(), m.report)));
            match outcome {
                Ok((digest, report)) => {
                    let keys: Vec<String> = report.iter().map(ToString::to_string).collect();
                    if !self.json {
                        output::line(&format!("{file}: ok, {digest}"))?;
                        for key in &keys {
                            output::line(&format!("  {key}"))?;
                        }
                    }
                    checked.push(CheckedJson {
                        file,
                        digest: Some(digest),
                        keys,
                        errors: vec![],
                    });
                }
                Err(error) => {
                    if !self.json {
                        output::error(&error.problem, false);
                    }
                    let errors = vec![*error.problem];
                    checked.push(CheckedJson {
                        file,
                        digest: None,
                        keys: vec![],
                        errors,
                    });
                }
            }
        }
        let bad = checked.iter().any(|c| !c.errors.is_empty());
        if self.json {
            output::json(&CheckJson { machines: checked })?;
        }
        if bad {
            Err(Failure::Told(exit::INVALID))
        } else {
            Ok(())
        }
    }
}

/// Lists machines.
#[derive(Args)]
pub struct List {
    #[command(flatten)]
    place: WhereArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct ListJson {
    presets: Vec<PresetJson>,
    stored: Vec<StoredJson>,
}

#[derive(Serialize)]
struct PresetJson {
    name: String,
    summary: String,
    digest: String,
}

#[derive(Serialize)]
struct StoredJson {
    digest: String,
    name: String,
}

impl List {
    pub async fn run(self) -> Outcome {
        let list = self
            .list()
            .await
            .map_err(|e| Failure::Service(e, self.json))?;
        if self.json {
            output::json(&list)?;
            return Ok(());
        }
        let mut table = output::table(&["machine", "what it is", "digest"]);
        for preset in list.presets {
            table.add_row([preset.name, preset.summary, short(&preset.digest)]);
        }
        for stored in list.stored {
            table.add_row([stored.digest.clone(), stored.name, short(&stored.digest)]);
        }
        output::line(&table.to_string())?;
        Ok(())
    }

    async fn list(&self) -> Result<ListJson, ServiceError> {
        if self.place.server.is_some() {
            let (presets, stored) = self.place.client().await?.list_machines().await?;
            let preset = |p: tilesim_proto::v1::PresetInfo| PresetJson {
                name: p.name,
                summary: p.summary,
                digest: p.digest,
            };
            let object = |s: tilesim_proto::v1::StoredObject| StoredJson {
                digest: s.digest,
                name: s.name,
            };
            return Ok(ListJson {
                presets: presets.into_iter().map(preset).collect(),
                stored: stored.into_iter().map(object).collect(),
            });
        }
        let presets = PRESETS
            .iter()
            .map(|preset| {
                Ok(PresetJson {
                    name: preset.name.to_owned(),
                    summary: preset.about().to_owned(),
                    digest: Machine::preset(preset.name)?.digest()?.to_string(),
                })
            })
            .collect::<Result<_, ServiceError>>()?;
        Ok(ListJson {
            presets,
            stored: Vec::new(),
        })
    }
}

fn short(digest: &str) -> String {
    digest.chars().take(12).collect()
}

/// Prints a machine.
#[derive(Args)]
pub struct Show {
    /// Machine: a preset's name or a file.
    machine: String,
    /// Change a value of the machine, for example `dram.channels=8`.
    #[arg(long = "set", value_name = "PATH=VALUE", value_parser = super::args::pair)]
    set: Vec<(String, String)>,
}

impl Show {
    pub fn run(self) -> Outcome {
        let text = self.text().map_err(|e| Failure::Service(e, false))?;
        output::line(text.trim_end())?;
        Ok(())
    }

    /// The peaks as comments, then the description: a machine file as it stands.
    fn text(&self) -> Result<String, ServiceError> {
        let arguments = MachineArgs {
            machine: self.machine.clone(),
            set: self.set.clone(),
        };
        let machine = named(&arguments)?;
        let mut text = format!("# digest {}\n", machine.digest()?);
        for peak in machine.peaks().to_string().lines() {
            text.push_str(&format!("# {peak}\n"));
        }
        text.push_str(&machine.to_yaml()?);
        Ok(text)
    }
}

/// The machine that arguments name, for verbs that need no server.
pub fn named(arguments: &MachineArgs) -> Result<Machine, ServiceError> {
    let request = arguments.request()?;
    let mut machine = match &request.source {
        MachineSource::Preset(name) => Machine::preset(name)?,
        MachineSource::Document(document) => Machine::from_yaml(document)?,
        MachineSource::Stored(digest) => {
            return Err(ServiceError::not_found(
                "machine.not_found",
                "machine",
                format!("there is no machine {digest} here"),
            ));
        }
    };
    if !request.overrides.is_empty() {
        machine = machine.with_overrides(&request.overrides)?;
    }
    Ok(machine)
}
