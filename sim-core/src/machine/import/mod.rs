//! Importers for the machine files of other simulators.

pub mod booksim;
pub mod pytorchsim;
pub mod ramulator;

use super::error::MachineError;
use super::spec::Machine;

/// Gives the text of files that a machine file names. The core does no I/O: whoever loads a file
/// says what its neighbours are.
pub trait Resolver {
    /// The text of the file at `path`, as the machine file (or a file it names) writes it.
    ///
    /// # Errors
    ///
    /// Why there is none, lower-case and without a full stop, for example `not found`.
    fn read(&self, path: &str) -> Result<String, String>;
}

/// Every function of the right shape is a resolver.
impl<F: Fn(&str) -> Result<String, String>> Resolver for F {
    fn read(&self, path: &str) -> Result<String, String> {
        self(path)
    }
}

/// For machine files that stand alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFiles;

impl Resolver for NoFiles {
    fn read(&self, _: &str) -> Result<String, String> {
        Err("files beside the machine file are not at hand here".to_owned())
    }
}

/// How to import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImportOptions {
    /// Apply what the file says, with exact clocks, instead of what the other simulator makes of it
    /// on traces today.
    pub as_configured: bool,
}

/// An imported machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    /// The machine.
    pub machine: Machine,
    /// What became of each key: those of the file in its order, then absent ones whose default
    /// matters.
    pub report: Vec<KeyReport>,
}

/// What became of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyReport {
    /// The key, as the file has it; nested ones with a point.
    pub key: String,
    /// Its value, or `absent`.
    pub value: String,
    /// What became of it.
    pub verdict: Verdict,
}

/// What became of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The value is taken over unchanged, as this key of ours.
    UsedAs(String),
    /// The value is taken over in another form; the text says which.
    MappedTo(String),
    /// The value has no effect; the text says why.
    NotApplicable(String),
}

impl std::fmt::Display for KeyReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (verb, text) = match &self.verdict {
            Verdict::UsedAs(text) => ("used as", text),
            Verdict::MappedTo(text) => ("mapped to", text),
            Verdict::NotApplicable(text) => ("not applicable because", text),
        };
        write!(f, "{}: {} {verb} {text}", self.key, self.value)
    }
}

/// Where the text of a named file came from and what is wrong with it, in one error.
pub(super) fn file_error(key: &str, path: &str, why: &str) -> MachineError {
    MachineError::new(
        super::error::code::FILE,
        key,
        format!("cannot read '{path}': {why}"),
    )
}
