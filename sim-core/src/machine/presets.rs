//! Machines that come with this crate.

use super::error::{MachineError, code};
use super::spec::Machine;
use super::text::nearest;

/// A machine that comes with this crate. Its text says where its figures come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// Name.
    pub name: &'static str,
    /// The machine file.
    pub text: &'static str,
}

impl Preset {
    /// The first line of the file: what the machine is.
    pub fn about(&self) -> &'static str {
        self.text
            .lines()
            .next()
            .unwrap_or_default()
            .trim_start_matches(['#', ' '])
    }
}

/// The presets, by name.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "embedded_8x8",
        text: include_str!("../../machines/embedded_8x8.yaml"),
    },
    Preset {
        name: "h200",
        text: include_str!("../../machines/h200.yaml"),
    },
    Preset {
        name: "tpuv2",
        text: include_str!("../../machines/tpuv2.yaml"),
    },
    Preset {
        name: "tpuv3",
        text: include_str!("../../machines/tpuv3.yaml"),
    },
    Preset {
        name: "tpuv3_simple_dram",
        text: include_str!("../../machines/tpuv3_simple_dram.yaml"),
    },
    Preset {
        name: "tpuv4",
        text: include_str!("../../machines/tpuv4.yaml"),
    },
    Preset {
        name: "tpuv6e",
        text: include_str!("../../machines/tpuv6e.yaml"),
    },
];

impl Machine {
    /// A machine that comes with this crate.
    ///
    /// # Errors
    ///
    /// [`code::UNKNOWN_PRESET`] with a suggestion.
    pub fn preset(name: &str) -> Result<Machine, MachineError> {
        match PRESETS.iter().find(|preset| preset.name == name) {
            Some(preset) => Machine::from_yaml(preset.text),
            None => {
                let names = || PRESETS.iter().map(|preset| preset.name);
                let shown: String = name.chars().take(80).collect();
                let error = MachineError::new(
                    code::UNKNOWN_PRESET,
                    "",
                    format!("there is no preset '{shown}'"),
                );
                Err(match nearest(name, names()) {
                    Some(near) => error.hint(format!("did you mean '{near}'?")),
                    None => error.hint(format!(
                        "presets: {}",
                        names().collect::<Vec<_>>().join(", ")
                    )),
                })
            }
        }
    }
}
