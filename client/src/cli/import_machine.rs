//! `tilesim machine import`: other simulators' machine files.

use std::{fs, path::PathBuf};

use anyhow::Context as _;
use clap::Args;
use serde::Serialize;
use tilesim_core::machine::{
    Loaded, Origin,
    import::{ImportOptions, KeyReport, Verdict},
};
use tilesim_server::error::ServiceError;

use super::{Failure, Outcome, files, output};

/// Imports a machine file and says what became of each of its keys.
#[derive(Args)]
pub struct Import {
    /// PyTorchSim's machine file. Files that it names are looked for relative to it.
    file: PathBuf,
    /// Apply what the file says, with exact clocks, instead of what its simulator makes of it on
    /// traces today (no L2, every tensor in the first NUMA partition, clock periods cut to picoseconds).
    #[arg(long)]
    as_configured: bool,
    /// Write the machine in our own schema to this file.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct ImportJson<'a> {
    digest: String,
    keys: Vec<KeyJson<'a>>,
}

#[derive(Serialize)]
struct KeyJson<'a> {
    key: &'a str,
    value: &'a str,
    verdict: &'static str,
    what: &'a str,
}

impl<'a> From<&'a KeyReport> for KeyJson<'a> {
    fn from(report: &'a KeyReport) -> Self {
        let (verdict, what) = match &report.verdict {
            Verdict::UsedAs(what) => ("used_as", what),
            Verdict::MappedTo(what) => ("mapped_to", what),
            Verdict::NotApplicable(what) => ("not_applicable", what),
        };
        Self {
            key: &report.key,
            value: &report.value,
            verdict,
            what,
        }
    }
}

impl Import {
    pub fn run(self) -> Outcome {
        let fail = |e: ServiceError| Failure::Service(e, self.json);
        let (loaded, digest, yaml) = self.import().map_err(fail)?;
        if let Some(path) = &self.output {
            fs::write(path, yaml).with_context(|| format!("cannot write {}", path.display()))?;
        }
        if self.json {
            output::json(&ImportJson {
                digest,
                keys: loaded.report.iter().map(KeyJson::from).collect(),
            })?;
            return Ok(());
        }
        for key in &loaded.report {
            output::line(&key.to_string())?;
        }
        let how = match (loaded.origin, self.as_configured) {
            (Origin::Tilesim, _) => "the file is in tilesim's own schema",
            (Origin::PyTorchSim, true) => "as configured, with exact clocks",
            (Origin::PyTorchSim, false) => {
                "as the reference simulator behaves on traces today: L2 settings have no effect, \
                 every tensor lies in the first NUMA partition, clock periods are cut to whole \
                 picoseconds (--as-configured applies what the file says)"
            }
        };
        output::line(&format!("machine {}: {how}", loaded.machine.name))?;
        output::line(&format!("digest {digest}"))?;
        if let Some(path) = &self.output {
            output::line(&format!("written to {}", path.display()))?;
        }
        Ok(())
    }

    fn import(&self) -> Result<(Loaded, String, String), ServiceError> {
        let options = ImportOptions {
            as_configured: self.as_configured,
        };
        let loaded = files::machine_with(&self.file, options)?;
        let digest = loaded.machine.digest()?.to_string();
        let yaml = loaded.machine.to_yaml()?;
        Ok((loaded, digest, yaml))
    }
}
