//! The reference simulator's log: the figures it prints at the end of a run.

use crate::error::{ErrorCode, TextSpan, TraceError};

/// Bytes of a log, at most.
pub const MAX_LOG: usize = 256 << 20;

/// Figures of one unit of a core.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UnitFigures {
    /// Cycles in which it worked.
    pub active: u64,
    /// Cycles in which it did not. The vector unit's are printed as they are, which the reference
    /// itself does not count.
    pub idle: u64,
    /// Per cent of the run, as printed.
    pub utilisation: Option<f64>,
}

/// Figures of one core.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CoreFigures {
    /// Core number.
    pub core: u32,
    /// Cycles it counted.
    pub total_cycles: Option<u64>,
    /// Systolic arrays, by number.
    pub systolic: Vec<UnitFigures>,
    /// The vector unit.
    pub vector: Option<UnitFigures>,
    /// The cross-lane unit.
    pub cross_lane: Option<UnitFigures>,
    /// The DMA engine.
    pub dma: Option<UnitFigures>,
    /// DRAM bandwidth that the core saw, GB/s.
    pub dram_gbps: Option<f64>,
    /// DRAM responses that the core received.
    pub dram_responses: Option<u64>,
    /// Loads, stores, compute tiles and waits.
    pub loads: Option<u64>,
    /// Stores.
    pub stores: Option<u64>,
    /// Compute tiles.
    pub computes: Option<u64>,
    /// Waits.
    pub waits: Option<u64>,
}

/// What a log says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReferenceFigures {
    /// Core cycles of the run.
    pub total_cycles: u64,
    /// One entry per core, ascending.
    pub cores: Vec<CoreFigures>,
    /// DRAM responses of all cores together.
    pub dram_requests: u64,
    /// DRAM reads and writes of all channels, where the DRAM model counts them.
    pub dram_reads_writes: Option<(u64, u64)>,
    /// DRAM bandwidth of all channels, GB/s, likewise.
    pub dram_gbps: Option<f64>,
    /// Per cent of the peak that is, likewise.
    pub dram_utilisation: Option<f64>,
}

/// Reads the figures of a run from its log.
///
/// # Errors
/// Too long, no total, a number that cannot be read, or two totals that differ.
pub fn parse_togsim_log(text: &str) -> Result<ReferenceFigures, TraceError> {
    if text.len() > MAX_LOG {
        return Err(TraceError::new(
            ErrorCode::TooLarge,
            "log",
            format!("more than {MAX_LOG} bytes"),
        ));
    }
    let mut out = ReferenceFigures::default();
    let mut total: Option<u64> = None;
    for (i, line) in text.lines().enumerate() {
        let n = u32::try_from(i + 1).unwrap_or(u32::MAX);
        let bad = |what: &str| {
            TraceError::new(ErrorCode::BadValue, "log", format!("{what} cannot be read")).at(
                TextSpan {
                    line: n,
                    column: 1,
                    length: 1,
                },
            )
        };
        // "[time] [level] message"
        let message = line.rsplit_once("[info] ").map_or(line, |(_, m)| m);
        if let Some(v) = message.strip_prefix("Total execution cycles:") {
            let v = v.trim().parse().map_err(|_| bad("the total"))?;
            if total.is_some_and(|t| t != v) {
                return Err(bad("a log of two runs"));
            }
            total = Some(v);
            continue;
        }
        if message.starts_with("[DRAM] channels ") && message.contains(" combined ") {
            // "... combined | G GB/s aggregate, U% of utilization (...) | R reads, W writes"
            let mut parts = message.split('|').skip(1);
            let rate = parts.next().unwrap_or_default();
            let counts = parts.next().unwrap_or_default();
            let mut words = counts.split_whitespace();
            let reads = words.next().and_then(|w| w.parse().ok());
            let writes = words.nth(1).and_then(|w| w.parse().ok());
            out.dram_reads_writes = Some(reads.zip(writes).ok_or_else(|| bad("reads and writes"))?);
            out.dram_gbps = rate.split_whitespace().next().and_then(|w| w.parse().ok());
            out.dram_utilisation = after(rate, "aggregate,")
                .and_then(|w| w.strip_suffix('%'))
                .and_then(|w| w.parse().ok());
            continue;
        }
        let Some(rest) = message.strip_prefix("Core [") else {
            continue;
        };
        let Some((core, rest)) = rest.split_once(']') else {
            continue;
        };
        let core: u32 = core.trim().parse().map_err(|_| bad("a core number"))?;
        let Some(what) = rest.trim_start().strip_prefix(':').map(str::trim) else {
            continue;
        };
        let at = match out.cores.iter().position(|c| c.core == core) {
            Some(at) => at,
            None if out.cores.len() >= 65_536 => return Err(bad("so many cores")),
            None => {
                out.cores.push(CoreFigures {
                    core,
                    ..CoreFigures::default()
                });
                out.cores.len() - 1
            }
        };
        let Some(c) = out.cores.get_mut(at) else {
            continue;
        };
        let int = |key: &str| after(what, key).and_then(|w| w.parse::<u64>().ok());
        // The lines printed every few thousand cycles spell some of these in another way; those of
        // the end of the run come last and count.
        let unit = |active: &str, idle: &str| -> Result<UnitFigures, TraceError> {
            let either = |last: &str, periodic: &str| int(last).or_else(|| int(periodic));
            Ok(UnitFigures {
                active: either(active, "active_cycles:").ok_or_else(|| bad("active cycles"))?,
                idle: either(idle, "idle_cycles:").ok_or_else(|| bad("idle cycles"))?,
                utilisation: after(what, "tilization(%):").and_then(|w| w.parse().ok()),
            })
        };
        if let Some(rest) = what.strip_prefix("Systolic array [") {
            let number = rest
                .split(']')
                .next()
                .and_then(|w| w.trim().parse::<usize>().ok());
            let number = number
                .filter(|k| *k < 4096)
                .ok_or_else(|| bad("an array number"))?;
            let figures = unit("active_cycles:", "idle_cycles:")?;
            if c.systolic.len() <= number {
                c.systolic.resize(number + 1, UnitFigures::default());
            }
            if let Some(s) = c.systolic.get_mut(number) {
                *s = figures;
            }
        } else if what.starts_with("Vector unit") {
            c.vector = Some(unit("active cycle:", "idle_cycle:")?);
        } else if what.starts_with("Cross-lane unit") {
            c.cross_lane = Some(unit("active cycle:", "idle_cycle:")?);
        } else if what.starts_with("DMA active_cycles") {
            c.dma = Some(unit("DMA active_cycles:", "DMA idle_cycles:")?);
            c.dram_gbps = after(what, "DRAM BW:").and_then(|w| w.parse().ok());
            c.dram_responses = what
                .rsplit_once('(')
                .and_then(|(_, r)| r.split_whitespace().next())
                .and_then(|w| w.parse().ok());
        } else if what.starts_with("Total_cycles:") {
            c.total_cycles = int("Total_cycles:");
        } else if what.starts_with("MOVIN") {
            c.loads = int("inst_count:");
        } else if what.starts_with("MOVOUT") {
            c.stores = int("inst_count:");
        } else if what.starts_with("COMP ") {
            c.computes = int("inst_count:");
        } else if what.starts_with("MEMORY_BAR") {
            c.waits = int("inst_count:");
        }
    }
    out.total_cycles = total.ok_or_else(|| {
        TraceError::new(
            ErrorCode::MissingKey,
            "log",
            "no line `Total execution cycles`",
        )
        .with_hint("the run did not end, or this is no log of the reference simulator")
    })?;
    out.cores.sort_by_key(|c| c.core);
    out.dram_requests = out
        .cores
        .iter()
        .filter_map(|c| c.dram_responses)
        .fold(0, u64::saturating_add);
    Ok(out)
}

/// The word after a key, without a comma at its end.
fn after<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let rest = text.get(text.find(key)? + key.len()..)?;
    rest.split_whitespace()
        .next()
        .map(|w| w.trim_end_matches([',', ')']))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
[2026-11-30 19:18:02.281] [info] [DRAM] channels 0..15 combined | 292.45 GB/s aggregate, 60.77% of utilization (avg. per channel) | 65536 reads, 32768 writes
[2026-11-30 19:18:13.181] [info] [TOGSim-trace] Total cycles: 9806
[2026-11-30 19:18:13.182] [info] Core [0] : MOVIN    inst_count: 8
[2026-11-30 19:18:13.182] [info] Core [0] : MOVOUT   inst_count: 1
[2026-11-30 19:18:13.182] [info] Core [0] : COMP     inst_count: 21 (GEMM: 8, Vector: 13, XLU: 0)
[2026-11-30 19:18:13.182] [info] Core [0] : MEMORY_BAR inst_count: 8
[2026-11-30 19:18:13.182] [info] Core [0] : Systolic array [0] utilization(%): 33.45, active_cycles: 3280, idle_cycles: 6526
[2026-11-30 19:18:13.182] [info] Core [0] : Systolic array [1] utilization(%): 33.45, active_cycles: 3280, idle_cycles: 6526
[2026-11-30 19:18:13.182] [info] Core [0] : DMA active_cycles: 6144, DMA idle_cycles: 3662, DRAM BW: 301.000 GB/s (98304 responses)
[2026-11-30 19:18:13.182] [info] Core [0] : Vector unit utilization(%): 3.47, active cycle: 340, idle_cycle: 0
[2026-11-30 19:18:13.182] [info] Core [0] : Cross-lane unit utilization(%): 0.00, active cycle: 0, idle_cycle: 9806
[2026-11-30 19:18:13.182] [info] Core [0] : NUMA local memory: 98304 requests, remote memory: 0 requests
[2026-11-30 19:18:13.182] [info] Core [0] : Total_cycles: 9806
[2026-11-30 19:18:13.182] [info] Total execution cycles: 9806
";

    #[test]
    fn a_log() {
        let f = parse_togsim_log(LOG).unwrap();
        assert_eq!(f.total_cycles, 9806);
        assert_eq!(f.dram_requests, 98304);
        assert_eq!(f.dram_reads_writes, Some((65536, 32768)));
        assert_eq!(
            (f.dram_gbps, f.dram_utilisation),
            (Some(292.45), Some(60.77))
        );
        let c = &f.cores[0];
        assert_eq!(c.systolic.len(), 2);
        assert_eq!(
            c.systolic[1],
            UnitFigures {
                active: 3280,
                idle: 6526,
                utilisation: Some(33.45)
            }
        );
        assert_eq!(c.vector.unwrap().active, 340);
        assert_eq!(c.dma.unwrap().idle, 3662);
        assert_eq!(c.dram_gbps, Some(301.0));
        assert_eq!(
            (c.loads, c.stores, c.computes, c.waits),
            (Some(8), Some(1), Some(21), Some(8))
        );
    }

    #[test]
    fn figures_of_the_end_replace_those_of_intervals() {
        let interval = "[info] Core [0] : Vector unit Utilization(%): 3.40, active_cycles: 340, idle_cycles: 9673\n";
        let f = parse_togsim_log(&format!("{interval}{LOG}")).unwrap();
        assert_eq!(f.cores[0].vector.unwrap().idle, 0);
        assert_eq!(f.cores[0].vector.unwrap().utilisation, Some(3.47));
    }

    #[test]
    fn what_is_no_log() {
        for bad in [
            "",
            "Total execution cycles: x",
            "Core [x] : a\nTotal execution cycles: 1",
            "[info] Core [0] : Systolic array [0] active_cycles: q",
        ] {
            assert!(parse_togsim_log(bad).is_err(), "{bad}");
        }
        let twice = format!("{LOG}{}", LOG.replace("9806", "9807"));
        assert!(parse_togsim_log(&twice).is_err());
    }
}
