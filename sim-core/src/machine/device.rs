//! The DRAM device of a machine: a tree in Ramulator 2's form, and the model's view of it.

use super::error::{MachineError, code};
use super::text::{self, nearest};
use crate::dram::DramSpec;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};

/// Devices that come with this crate, by name.
pub const DEVICES: &[(&str, &str)] = &[
    ("DDR4", include_str!("../../machines/devices/DDR4.yaml")),
    ("HBM2", include_str!("../../machines/devices/HBM2.yaml")),
    (
        "HBM2_TPUv2",
        include_str!("../../machines/devices/HBM2_TPUv2.yaml"),
    ),
    (
        "HBM2_TPUv3",
        include_str!("../../machines/devices/HBM2_TPUv3.yaml"),
    ),
    (
        "HBM2_TPUv4",
        include_str!("../../machines/devices/HBM2_TPUv4.yaml"),
    ),
    (
        "HBM3_TPUv6e",
        include_str!("../../machines/devices/HBM3_TPUv6e.yaml"),
    ),
    ("LPDDR5", include_str!("../../machines/devices/LPDDR5.yaml")),
    (
        "LPDDR5X",
        include_str!("../../machines/devices/LPDDR5X.yaml"),
    ),
];

/// Most bytes in one channel, as a power of two.
const MAX_CHANNEL_BITS: u32 = 44;

/// A DRAM device with its controller. Its canonical form is the tree, so that the machine's digest
/// is over what was written; equal trees mean equal devices.
#[derive(Clone, Debug)]
pub struct BankedDevice {
    tree: Value,
    spec: DramSpec,
}

impl PartialEq for BankedDevice {
    fn eq(&self, other: &BankedDevice) -> bool {
        self.tree == other.tree
    }
}

impl Serialize for BankedDevice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.tree.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for BankedDevice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<BankedDevice, D::Error> {
        let tree = Value::deserialize(deserializer)?;
        BankedDevice::from_tree(&tree).map_err(serde::de::Error::custom)
    }
}

impl BankedDevice {
    /// The device that a tree describes: a controller in Ramulator 2's form (keys `impl`, `dram`,
    /// ...), a whole file of that form, or the name of one of [`DEVICES`].
    ///
    /// # Errors
    ///
    /// [`code::DEVICE`] when the device is none; [`code::NOT_ONE_OF`] for an unknown name.
    pub fn from_tree(tree: &Value) -> Result<BankedDevice, MachineError> {
        let path = "dram.device";
        let tree = match tree {
            Value::String(name) => {
                let names = || DEVICES.iter().map(|(name, _)| *name);
                let Some((_, text)) = DEVICES.iter().find(|(known, _)| known == name) else {
                    let list = names().collect::<Vec<_>>().join(", ");
                    let error = MachineError::new(
                        code::NOT_ONE_OF,
                        path,
                        format!("{} is not one of {list}", text::show(tree)),
                    );
                    return Err(match nearest(name, names()) {
                        Some(near) => error.hint(format!("did you mean '{near}'?")),
                        None => error.hint("a device can also be spelt out, in Ramulator 2's form"),
                    });
                };
                text::parse(text)?
            }
            other => other.clone(),
        };
        let controller = match tree.pointer("/memory_system/controllers") {
            Some(Value::Array(list)) => list.first().cloned().unwrap_or(Value::Null),
            _ => tree,
        };
        let bad = |at: &str, message: String| {
            MachineError::new(code::DEVICE, format!("{path}{at}"), message)
        };
        // The sizes are multiplied further down: bound them first.
        if let Some(Value::Array(counts)) = controller.pointer("/dram/org/count") {
            let bits: u32 = counts
                .iter()
                .filter_map(Value::as_u64)
                .map(|count| 64 - count.leading_zeros())
                .fold(0, u32::saturating_add);
            if bits > MAX_CHANNEL_BITS + 8 {
                return Err(bad(
                    ".dram.org.count",
                    "the channel is too large".to_owned(),
                ));
            }
        }
        let file = json!({"memory_system": {"controllers": [&controller]}});
        let file = DramSpec::from_ramulator(&file.to_string()).map_err(|error| {
            let inner = error
                .path
                .trim_start_matches("memory_system.controllers[0]");
            let dot = if inner.is_empty() || inner.starts_with('.') {
                ""
            } else {
                "."
            };
            bad(&format!("{dot}{inner}"), error.message)
        })?;
        let spec = file.spec;
        if spec.map().width() > MAX_CHANNEL_BITS {
            return Err(bad(
                ".dram.org.count",
                format!("the channel has more than 2^{MAX_CHANNEL_BITS} bytes"),
            ));
        }
        if !(10..=1_000_000).contains(&spec.tck_ps()) {
            return Err(bad(
                ".dram.timing",
                format!(
                    "a clock period of {} ps is not from 10 to 1000000",
                    spec.tck_ps()
                ),
            ));
        }
        Ok(BankedDevice {
            tree: controller,
            spec,
        })
    }

    /// The canonical tree: a controller in Ramulator 2's form.
    pub fn tree(&self) -> &Value {
        &self.tree
    }

    /// What the DRAM model runs on.
    pub fn spec(&self) -> &DramSpec {
        &self.spec
    }

    /// Clock in MHz: 10^6 over the period in picoseconds, rounded, as PyTorchSim has it.
    pub fn clock_mhz(&self) -> u64 {
        let tck = self.spec.tck_ps();
        (1_000_000 + tck / 2) / tck
    }

    /// Clock in kHz, rounded.
    pub fn clock_khz(&self) -> u64 {
        let tck = self.spec.tck_ps();
        (1_000_000_000 + tck / 2) / tck
    }
}
