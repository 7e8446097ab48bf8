//! What is wrong with a machine description, in a form that programs and people can read.

use std::fmt;

/// Why a machine description is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineError {
    /// Stable code, for example `machine.unknown_key`.
    pub code: &'static str,
    /// Where: a key path such as `dram.channels`, a place in the text such as `line 3, column 5`, or
    /// empty when the whole file is meant.
    pub path: String,
    /// What is wrong: lower-case, no full stop.
    pub message: String,
    /// What to do about it; empty when there is nothing to add.
    pub hint: String,
}

impl MachineError {
    /// An error without a hint.
    pub fn new(
        code: &'static str,
        path: impl Into<String>,
        message: impl Into<String>,
    ) -> MachineError {
        MachineError {
            code,
            path: path.into(),
            message: message.into(),
            hint: String::new(),
        }
    }

    /// The same error with a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> MachineError {
        self.hint = hint.into();
        self
    }
}

impl fmt::Display for MachineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        if !self.hint.is_empty() {
            write!(f, " ({})", self.hint)?;
        }
        Ok(())
    }
}

impl std::error::Error for MachineError {}

/// The codes a [`MachineError`] can carry. They are stable: programs may match on them.
pub mod code {
    /// The text is longer than the limit.
    pub const TOO_LARGE: &str = "machine.too_large";
    /// The text is not YAML or JSON, or not one document.
    pub const SYNTAX: &str = "machine.syntax";
    /// The text uses anchors, nests too deep or has too many nodes.
    pub const TOO_COMPLEX: &str = "machine.too_complex";
    /// The file is neither in this project's schema nor in one that can be imported.
    pub const UNRECOGNISED: &str = "machine.unrecognised";
    /// A key that does not exist.
    pub const UNKNOWN_KEY: &str = "machine.unknown_key";
    /// A key that means nothing with the model chosen.
    pub const KEY_NOT_APPLICABLE: &str = "machine.key_not_applicable";
    /// A key without which there is no machine.
    pub const MISSING_KEY: &str = "machine.missing_key";
    /// A value of the wrong type.
    pub const WRONG_TYPE: &str = "machine.wrong_type";
    /// A value outside its range.
    pub const OUT_OF_RANGE: &str = "machine.out_of_range";
    /// A value that is not among the choices.
    pub const NOT_ONE_OF: &str = "machine.not_one_of";
    /// Two values that contradict each other.
    pub const CONTRADICTION: &str = "machine.contradiction";
    /// The machine as a whole is larger than what is simulated.
    pub const LIMIT: &str = "machine.limit";
    /// The description asks for hardware that no model here covers.
    pub const NOT_MODELLED: &str = "machine.not_modelled";
    /// A file that the description names cannot be read.
    pub const FILE: &str = "machine.file";
    /// A DRAM device that is none.
    pub const DEVICE: &str = "machine.device";
    /// A network that cannot be built.
    pub const NETWORK: &str = "machine.network";
    /// No preset has this name.
    pub const UNKNOWN_PRESET: &str = "machine.unknown_preset";
}
