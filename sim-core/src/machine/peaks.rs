//! What a machine can do at most: derived figures, to hold against published ones.

use super::spec::{DramModel, Machine, NocSpec};
use std::fmt;

/// Derived peaks of a machine. Rates use the clocks as they run: where periods are cut to whole
/// picoseconds, a rate is slightly above what the file's frequency gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peaks {
    /// Of one systolic array, in FLOP/s: a multiplication and an addition per cell and core cycle.
    pub array_flops: f64,
    /// Of all systolic arrays, in FLOP/s.
    pub matmul_flops: f64,
    /// Of all vector units, in operations on 32 bits per second.
    pub vector_ops: f64,
    /// What all DMA engines can request, in bytes per second.
    pub dma_bytes_per_s: f64,
    /// What the NoC can deliver to all cores, in bytes per second; none where it depends on the
    /// packets' shape.
    pub noc_to_cores_bytes_per_s: Option<f64>,
    /// What the NoC can deliver to all channels, in bytes per second; likewise.
    pub noc_to_memory_bytes_per_s: Option<f64>,
    /// Of all DRAM channels, in bytes per second.
    pub dram_bytes_per_s: f64,
    /// Scratchpad of all cores, in bytes; none: unlimited.
    pub scratchpad_bytes: Option<u64>,
    /// DRAM of all channels, in bytes; none: the model does not say.
    pub dram_bytes: Option<u64>,
}

impl Machine {
    /// What this machine can do at most.
    pub fn peaks(&self) -> Peaks {
        let hz = |khz: u64| {
            let ps = 1e9 / khz.max(1) as f64;
            1e12 / if self.clocks.truncate_to_ps {
                ps.floor().max(1.0)
            } else {
                ps
            }
        };
        let (core_hz, noc_hz, dram_hz) = (
            hz(self.clocks.core_khz),
            hz(self.clocks.noc_khz),
            hz(self.clocks.dram_khz),
        );
        let cores = &self.cores;
        let count = f64::from(cores.count);
        let array = 2.0 * f64::from(cores.array_rows) * f64::from(cores.array_cols) * core_hz;
        let lanes = f64::from(cores.vector_lanes) * f64::from(cores.vector_bits) / 32.0;
        let request = f64::from(self.dram.request_bytes);
        let channels = f64::from(self.dram.channels);
        let ports = count * f64::from(cores.injection_ports);
        let (to_cores, to_memory) = match &self.noc {
            NocSpec::Simple { .. } => (
                Some(ports * request * noc_hz),
                Some(channels * request * noc_hz),
            ),
            NocSpec::Flit { .. } => (None, None),
        };
        let (per_cycle, capacity) = match &self.dram.model {
            DramModel::Simple {
                bytes_per_cycle, ..
            } => {
                // At most one request is admitted per channel and DRAM cycle.
                (
                    bytes_per_cycle.map_or(request, |bytes| bytes.min(request)),
                    None,
                )
            }
            DramModel::Banked { device } => {
                let spec = device.spec();
                let total = spec.capacity().checked_mul(u64::from(self.dram.channels));
                (spec.peak_bytes_per_tick().min(request), total)
            }
        };
        Peaks {
            array_flops: array,
            matmul_flops: array * f64::from(cores.systolic_arrays) * count,
            vector_ops: lanes * core_hz * count,
            dma_bytes_per_s: ports * request * core_hz,
            noc_to_cores_bytes_per_s: to_cores,
            noc_to_memory_bytes_per_s: to_memory,
            dram_bytes_per_s: channels * per_cycle * dram_hz,
            scratchpad_bytes: (cores.scratchpad_bytes != 0).then(|| {
                cores
                    .scratchpad_bytes
                    .saturating_mul(u64::from(cores.count))
            }),
            dram_bytes: capacity,
        }
    }
}

impl fmt::Display for Peaks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let giga = |rate: f64| format!("{:.2} GB/s", rate / 1e9);
        let size = |bytes: Option<u64>| match bytes {
            Some(bytes) => format!("{bytes} bytes"),
            None => "not stated".to_owned(),
        };
        let rate = |rate: Option<f64>| rate.map_or_else(|| "as its links allow".to_owned(), giga);
        writeln!(
            f,
            "systolic array     {:.3} TFLOP/s",
            self.array_flops / 1e12
        )?;
        writeln!(
            f,
            "all arrays         {:.3} TFLOP/s",
            self.matmul_flops / 1e12
        )?;
        writeln!(
            f,
            "vector units       {:.3} TOP/s on 32 bits",
            self.vector_ops / 1e12
        )?;
        writeln!(f, "dma                {}", giga(self.dma_bytes_per_s))?;
        writeln!(
            f,
            "noc to cores       {}",
            rate(self.noc_to_cores_bytes_per_s)
        )?;
        writeln!(
            f,
            "noc to memory      {}",
            rate(self.noc_to_memory_bytes_per_s)
        )?;
        writeln!(f, "dram               {}", giga(self.dram_bytes_per_s))?;
        match self.scratchpad_bytes {
            Some(bytes) => writeln!(f, "scratchpads        {bytes} bytes")?,
            None => writeln!(f, "scratchpads        unlimited")?,
        }
        write!(f, "dram size          {}", size(self.dram_bytes))
    }
}
