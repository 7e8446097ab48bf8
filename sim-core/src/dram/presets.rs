//! Shipped devices: Ramulator configuration files that are part of the library. Each names its source.

use super::spec::DramSpec;

/// Names of the shipped devices, for [`DramSpec::preset`].
pub const PRESETS: &[&str] = &[
    "DDR4_2400R",
    "DDR4_3200AA",
    "DDR5_4800C",
    "LPDDR5_6400",
    "LPDDR5X_8533",
    "HBM2_2000",
    "HBM2E_3200",
    "HBM3_5200",
    "HBM3_6400",
    "GDDR6_14000",
];

impl DramSpec {
    /// A shipped device under the Ramulator controller.
    pub fn preset(name: &str) -> Option<DramSpec> {
        let mut spec = DramSpec::from_ramulator(DramSpec::preset_text(name)?)
            .ok()?
            .spec;
        spec.name = name.to_string();
        Some(spec)
    }

    /// The file of a shipped device; its first lines name the source.
    pub fn preset_text(name: &str) -> Option<&'static str> {
        Some(match name {
            "DDR4_2400R" => include_str!("devices/DDR4_2400R.yaml"),
            "DDR4_3200AA" => include_str!("devices/DDR4_3200AA.yaml"),
            "DDR5_4800C" => include_str!("devices/DDR5_4800C.yaml"),
            "LPDDR5_6400" => include_str!("devices/LPDDR5_6400.yaml"),
            "LPDDR5X_8533" => include_str!("devices/LPDDR5X_8533.yaml"),
            "HBM2_2000" => include_str!("devices/HBM2_2000.yaml"),
            "HBM2E_3200" => include_str!("devices/HBM2E_3200.yaml"),
            "HBM3_5200" => include_str!("devices/HBM3_5200.yaml"),
            "HBM3_6400" => include_str!("devices/HBM3_6400.yaml"),
            "GDDR6_14000" => include_str!("devices/GDDR6_14000.yaml"),
            _ => return None,
        })
    }
}
