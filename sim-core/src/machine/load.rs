//! The ways in and out: text to [`Machine`], overrides, digest, canonical text.

use super::error::{MachineError, code};
use super::import::pytorchsim;
use super::import::{ImportOptions, KeyReport, Resolver};
use super::raw::{self, RawMachine};
use super::schema::{self, KEYS};
use super::spec::Machine;
use super::text;
use serde_json::Value;
use std::fmt;

/// BLAKE3 over the canonical content of a machine (its name and comments left out).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MachineDigest(pub [u8; 32]);

impl fmt::Display for MachineDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for MachineDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MachineDigest({self})")
    }
}

impl Machine {
    /// Reads a machine in this project's schema from YAML or JSON.
    ///
    /// # Errors
    ///
    /// See [`code`](super::code): the text is too large or no YAML, a key is unknown or missing, a
    /// value is bad, or values contradict each other.
    pub fn from_yaml(text: &str) -> Result<Machine, MachineError> {
        Machine::try_from(RawMachine::from_tree(text::parse(text)?)?)
    }

    /// Reads a machine in this project's schema from a tree of values.
    ///
    /// # Errors
    ///
    /// As [`Machine::from_yaml`].
    pub fn from_value(tree: Value) -> Result<Machine, MachineError> {
        Machine::try_from(RawMachine::from_tree(tree)?)
    }

    /// The canonical form as a tree: every applicable key, in this project's schema.
    ///
    /// # Errors
    ///
    /// None for a machine that came from here; a hand-built one may hold numbers JSON cannot.
    pub fn to_value(&self) -> Result<Value, MachineError> {
        RawMachine::try_from(self)?.to_tree()
    }

    /// The canonical form as YAML. Reading it gives an equal machine.
    ///
    /// # Errors
    ///
    /// As [`Machine::to_value`].
    pub fn to_yaml(&self) -> Result<String, MachineError> {
        Ok(raw::print(&self.to_value()?))
    }

    /// The machine's identity: equal exactly when everything but the name is.
    ///
    /// # Errors
    ///
    /// As [`Machine::to_value`].
    pub fn digest(&self) -> Result<MachineDigest, MachineError> {
        Ok(MachineDigest(raw::digest(&self.to_value()?)))
    }

    /// Checks a machine that was built by hand.
    ///
    /// # Errors
    ///
    /// As [`Machine::from_yaml`].
    pub fn check(&self) -> Result<(), MachineError> {
        Machine::from_value(self.to_value()?).map(|_| ())
    }

    /// The machine with some values replaced, by path: `("dram.channels", "8")`. Values are YAML;
    /// `null` removes a value, so that its default applies. All are applied before anything is
    /// checked, so that two that need each other may come in any order; of two with one path the
    /// later counts. Keys of a model that an override switches away from are dropped.
    ///
    /// # Errors
    ///
    /// [`code::UNKNOWN_KEY`] with a suggestion for a path that does not exist, else as
    /// [`Machine::from_yaml`].
    pub fn with_overrides<P: AsRef<str>, V: AsRef<str>>(
        &self,
        overrides: &[(P, V)],
    ) -> Result<Machine, MachineError> {
        let mut tree = self.to_value()?;
        for (path, value) in overrides {
            let path = path.as_ref();
            let Some(key) = schema::key_around(path) else {
                return Err(schema::unknown(path));
            };
            // Another device has other requests and another clock.
            if key.path == "dram.model"
                || path == key.path && path == "dram.device"
                || path.starts_with("dram.device.dram")
            {
                for path in ["dram.request_bytes", "clocks.dram_mhz"] {
                    if !overrides.iter().any(|(other, _)| other.as_ref() == path) {
                        schema::remove(&mut tree, path);
                    }
                }
            }
            // An element of a list that is not spelt out yet.
            if key.path == "cores.partition"
                && path != key.path
                && schema::get(&tree, key.path).is_none()
            {
                let zeros = vec![0; self.cores.count as usize];
                schema::set(&mut tree, key.path, serde_json::json!(zeros));
            }
            let value = text::parse(value.as_ref()).map_err(|error| MachineError {
                path: path.to_owned(),
                ..error
            })?;
            if !schema::set(&mut tree, path, value) {
                return Err(
                    MachineError::new(code::UNKNOWN_KEY, path, "no such place").hint(format!(
                        "{} is not a map here, or has fewer elements",
                        key.path
                    )),
                );
            }
        }
        for key in KEYS {
            let Some((selector, words)) = key.only_if else {
                continue;
            };
            let chosen = match schema::get(&tree, selector) {
                Some(Value::String(word)) => word.clone(),
                // A removed selector falls back to its default.
                _ => default_word(selector),
            };
            let inside = |path: &str| schema::key_around(path).is_some_and(|k| k.path == key.path);
            let overridden = overrides.iter().any(|(path, _)| inside(path.as_ref()));
            if !words.contains(&chosen.as_str()) && !overridden {
                schema::remove(&mut tree, key.path);
            }
        }
        Machine::from_value(tree)
    }
}

fn default_word(path: &str) -> String {
    match schema::key(path).map(|key| key.absent) {
        Some(schema::Absent::Default(text)) => text.trim_matches('"').to_owned(),
        _ => String::new(),
    }
}

/// In which schema a machine file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// This project's.
    Tilesim,
    /// PyTorchSim's machine file.
    PyTorchSim,
}

/// A machine read from a file of either schema.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// The machine.
    pub machine: Machine,
    /// The schema it was written in.
    pub origin: Origin,
    /// For an import: what became of each key, in file order, then of absent ones that matter.
    pub report: Vec<KeyReport>,
}

/// Reads a machine file, recognising its schema by its keys. `name` becomes the machine's name if
/// the file gives none. `resolver` gives the text of files that an imported file names.
///
/// # Errors
///
/// As [`Machine::from_yaml`] and [`pytorchsim::import`]; [`code::UNRECOGNISED`] when the keys are of
/// neither schema.
pub fn load(
    name: &str,
    text: &str,
    resolver: &dyn Resolver,
    options: ImportOptions,
) -> Result<Loaded, MachineError> {
    let tree = text::parse(text)?;
    let Value::Object(map) = &tree else {
        return Err(
            MachineError::new(code::WRONG_TYPE, "", "expected a map of keys")
                .hint("a machine file starts with keys such as 'clocks:'"),
        );
    };
    let mut loaded = if map.keys().any(|key| pytorchsim::is_key(key)) {
        let imported = pytorchsim::import(text, resolver, options)?;
        Loaded {
            machine: imported.machine,
            origin: Origin::PyTorchSim,
            report: imported.report,
        }
    } else if map.is_empty() {
        return Err(
            MachineError::new(code::UNRECOGNISED, "", "the file has no keys")
                .hint("start from sim-core/machines/reference.yaml"),
        );
    } else {
        Loaded {
            machine: Machine::from_value(tree)?,
            origin: Origin::Tilesim,
            report: Vec::new(),
        }
    };
    if loaded.machine.name.is_empty() {
        loaded.machine.name = name.to_owned();
    }
    Ok(loaded)
}
