//! What the rest of a machine needs to know of a Ramulator 2 device file.

use crate::machine::error::{MachineError, code};
use crate::machine::text;
use serde_json::Value;

/// Facts of a device file, and its tree for the DRAM model that reads the rest.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceFile {
    /// The path as it was named.
    pub path: String,
    /// Its tree of values, for the DRAM model that reads the rest.
    pub tree: Value,
    /// Device family, for example `HBM2`.
    pub device: String,
    /// Clock period in picoseconds.
    pub tck_ps: u64,
    /// Clock in MHz: 10^6 over the period, rounded.
    pub clock_mhz: u64,
    /// Bytes that one column command moves.
    pub request_bytes: u64,
    /// Pseudo-channels in a channel.
    pub pseudo_channels: u64,
    /// Data width of one (pseudo-)channel in bits.
    pub width_bits: u64,
    /// Peak bandwidth of one channel, all pseudo-channels together, in GB/s.
    pub peak_gbps: f64,
}

impl DeviceFile {
    /// Reads the facts of a device file.
    ///
    /// # Errors
    ///
    /// [`code::FILE`] when the file is no device file; the path is the key inside it.
    pub fn parse(path: &str, text: &str) -> Result<DeviceFile, MachineError> {
        let tree = text::parse(text).map_err(|error| MachineError {
            path: format!("{path}: {}", error.path),
            ..error
        })?;
        let bad = |key: &str, what: &str| {
            MachineError::new(code::FILE, format!("{path}: {key}"), what.to_owned())
                .hint("expected a Ramulator 2 device file")
        };
        let dram = tree
            .pointer("/memory_system/controllers/0/dram")
            .cloned()
            .ok_or_else(|| bad("memory_system.controllers[0].dram", "is missing"))?;
        let device = dram
            .get("impl")
            .and_then(Value::as_str)
            .ok_or_else(|| bad("dram.impl", "is missing"))?
            .to_owned();
        let timing: Vec<u64> = dram
            .get("timing")
            .and_then(Value::as_array)
            .and_then(|list| list.iter().map(Value::as_u64).collect())
            .ok_or_else(|| bad("dram.timing", "is not a list of whole numbers"))?;
        let width_bits = dram
            .get("channel_width")
            .and_then(Value::as_u64)
            .filter(|bits| (8..=4096).contains(bits) && bits % 8 == 0)
            .ok_or_else(|| bad("dram.channel_width", "is not a width in bits"))?;
        // The list starts with the data rate in MT/s and the burst's clocks, and ends with the period.
        let (rate, burst, tck_ps) = match (timing.as_slice(), timing.last()) {
            ([rate, burst, _, ..], Some(tck))
                if (1..1_000_000).contains(rate)
                    && (1..1000).contains(burst)
                    && (10..1_000_000).contains(tck) =>
            {
                (*rate, *burst, *tck)
            }
            _ => {
                return Err(bad(
                    "dram.timing",
                    "does not have a rate, a burst length and a period",
                ));
            }
        };
        let transfers_per_clock = (rate * tck_ps + 500_000) / 1_000_000;
        let request_bytes = transfers_per_clock * burst * (width_bits / 8);
        if !request_bytes.is_power_of_two() {
            return Err(bad(
                "dram.timing",
                &format!("a burst moves {request_bytes} bytes, not a power of two"),
            ));
        }
        let pseudo_channels = if device.starts_with("HBM2") || device.starts_with("HBM3") {
            dram.pointer("/org/count/1")
                .and_then(Value::as_u64)
                .unwrap_or(1)
                .clamp(1, 64)
        } else {
            1
        };
        let peak = rate as f64 * pseudo_channels as f64 * width_bits as f64 / 8.0 / 1000.0;
        Ok(DeviceFile {
            path: path.to_owned(),
            device,
            tck_ps,
            clock_mhz: (1_000_000 + tck_ps / 2) / tck_ps,
            request_bytes,
            pseudo_channels,
            width_bits,
            peak_gbps: peak,
            tree,
        })
    }
}
