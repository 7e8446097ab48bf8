//! Closed forms, tight gates, mappings and refusals of the banked DRAM model.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod dram_common;

use dram_common::{golden_text, run_one, stream};
use proptest::prelude::*;
use tilesim_core::dram::{
    Area, Bus, Channel, Cmd, CommandRecord, Constraint, DramSpec, Field, Frame, PRESETS, Refresh,
    RowPolicy,
};

fn preset(name: &str) -> DramSpec {
    DramSpec::preset(name).unwrap_or_else(|| panic!("{name}"))
}

fn quiet(name: &str) -> DramSpec {
    let mut spec = preset(name);
    spec.refresh = Refresh::None;
    spec.compile();
    spec
}

#[test]
fn every_shipped_device_loads_and_names_its_source() {
    for name in PRESETS {
        let text = DramSpec::preset_text(name).unwrap();
        assert!(
            text.lines().take(3).any(|l| l.starts_with("# Source:")),
            "{name}"
        );
        let spec = preset(name);
        assert_eq!(&spec.name, name);
        assert!(spec.capacity() >= 1 << 27, "{name}");
    }
    assert!(DramSpec::preset("DDR9").is_none());
}

/// Peak bandwidth per channel in MB/s, from width and rate.
#[test]
fn peaks_are_those_of_the_data_sheets() {
    let peak = |n: &str| (preset(n).peak_bytes_per_second() / 1e6).round() as u64;
    for (name, want) in [
        ("DDR4_2400R", 19_208),
        ("DDR4_3200AA", 25_600),
        ("DDR5_4800C", 19_231),
        ("LPDDR5_6400", 12_800),
        ("LPDDR5X_8533", 17_058),
        ("HBM2_2000", 32_000),
        ("HBM2E_3200", 51_200),
        ("HBM3_6400", 51_282),
        ("HBM3_5200", 41_667),
        ("GDDR6_14000", 28_070),
    ] {
        assert_eq!(peak(name), want, "{name}");
    }
}

/// An idle read: miss, then hit, then conflict; each is the sum of the rules it has to wait for.
#[test]
fn unloaded_latency_is_the_sum_of_its_parts() {
    for name in PRESETS {
        let spec = quiet(name);
        let rule = |before: Cmd, after: Cmd| {
            spec.constraints
                .iter()
                .filter(|c| {
                    c.before.contains(&before)
                        && c.after.contains(&after)
                        && !c.sibling
                        && c.window == 1
                })
                .map(|c| u64::from(c.cycles))
                .max()
                .unwrap_or(0)
        };
        let half = spec.bus == Bus::DualHalf;
        let edge = |t: u64| if half { t.next_multiple_of(2) } else { t };
        let lp = spec.bus == Bus::Lpddr;
        // LPDDR5: the second half of the activate takes a tick, and a synchronisation goes ahead of the access.
        let open = if lp {
            rule(Cmd::Act, Cmd::Rd) + 1
        } else {
            edge(rule(Cmd::Act, Cmd::Rd))
        };
        let latency = u64::from(spec.read_latency) + 1;
        let at = |row: u32, column: u32| spec.map().address(0, row, column);
        let read = |ch: &mut Channel, t: u64, addr: u64| {
            let mut out = Vec::new();
            ch.push(t, addr, false, 0);
            ch.advance(&spec, t + 10_000, &mut out);
            out[0].tick - t + 1
        };
        let mut ch = Channel::new(&spec);
        assert_eq!(read(&mut ch, 0, at(3, 0)), open + latency, "{name}: miss");
        assert_eq!(
            read(&mut ch, 20_000, at(3, 1)),
            latency + u64::from(lp),
            "{name}: hit"
        );
        let close = edge(rule(Cmd::Pre, Cmd::Act));
        assert_eq!(
            read(&mut ch, 40_000, at(4, 0)),
            close + open + latency,
            "{name}: conflict"
        );
    }
}

/// With queues deep enough to reach over bank groups, a stream gets 95 % of what refresh leaves.
#[test]
fn streams_reach_the_refresh_limited_peak() {
    for name in PRESETS {
        let mut spec = preset(name);
        (spec.read_queue, spec.write_queue) = (1024, 1024);
        let n = 60_000;
        let run = run_one(&spec, &stream("seq", spec.tx_bytes().into(), n), false);
        let Refresh::AllBank { interval, .. } = spec.refresh else {
            panic!()
        };
        let busy = f64::from(spec.timing("nRFCab").or(spec.timing("nRFC")).unwrap());
        let best = spec.peak_bytes_per_tick() * (1.0 - busy / f64::from(interval));
        let got = n as f64 * f64::from(spec.tx_bytes()) / run.ticks as f64;
        assert!(
            got >= 0.95 * best,
            "{name}: {got:.3} of {best:.3} bytes a tick"
        );
        assert!(got <= spec.peak_bytes_per_tick(), "{name}");
    }
}

/// One refresh per scope and interval, loaded or idle.
#[test]
fn refreshes_are_counted_by_the_interval() {
    for name in PRESETS {
        let spec = preset(name);
        let Refresh::AllBank { interval, level } = spec.refresh else {
            panic!()
        };
        let scopes: u64 = spec.levels[..=level as usize]
            .iter()
            .map(|&n| u64::from(n))
            .product();
        let ticks = 40 * u64::from(interval) + 5000;
        for load in [0, 5000] {
            let mut ch = Channel::new(&spec);
            for (i, (addr, write)) in stream("mixrand", spec.tx_bytes().into(), load)
                .into_iter()
                .enumerate()
            {
                ch.push(i as u64 * 20, addr, write, 0);
            }
            ch.advance(&spec, ticks, &mut Vec::new());
            assert_eq!(
                ch.stats().refreshes,
                ticks / u64::from(interval) * scopes,
                "{name} with {load}"
            );
        }
    }
    for name in ["HBM2_2000", "HBM3_6400", "GDDR6_14000"] {
        let mut spec = preset(name);
        spec.refresh = Refresh::PerBank { interval: 600 };
        spec.compile();
        let mut ch = Channel::new(&spec);
        for (i, (addr, write)) in stream("mixrand", spec.tx_bytes().into(), 2000)
            .into_iter()
            .enumerate()
        {
            ch.push(i as u64 * 20, addr, write, 0);
        }
        ch.advance(&spec, 60_500, &mut Vec::new());
        assert_eq!(ch.stats().refreshes, 60_500 / 600, "{name}");
    }
}

/// The earliest tick each rule allows, from a plain reading of the table.
fn earliest(
    spec: &DramSpec,
    log: &[CommandRecord],
    c: &CommandRecord,
    row: &Constraint,
) -> Option<u64> {
    let node =
        |bank: u32, level: u8| bank / spec.levels[level as usize + 1..].iter().product::<u32>();
    let mut seen = 0;
    for e in log.iter().rev() {
        if e.addr.is_none() || !row.before.contains(&e.cmd) {
            continue;
        }
        let (a, b) = (node(e.bank, row.level), node(c.bank, row.level));
        let applies = if row.sibling {
            a != b && row.level > 0 && node(e.bank, row.level - 1) == node(c.bank, row.level - 1)
        } else {
            a == b
        };
        if !applies {
            continue;
        }
        // A windowed rule counts one command at a time, as the reference keeps one history per command.
        seen += 1;
        if seen == u32::from(row.window) {
            return Some(e.tick + u64::from(row.cycles));
        }
    }
    None
}

/// No command comes before any row of the table allows it, and for rows that can bind some command comes exactly then.
#[test]
fn gates_are_tight_for_every_row() {
    for name in PRESETS {
        let mut spec = quiet(name);
        let mut bound = vec![false; spec.constraints.len()];
        let mut seen = vec![false; spec.constraints.len()];
        for closed in [false, true] {
            spec.row_policy = if closed {
                RowPolicy::Closed
            } else {
                RowPolicy::Open
            };
            spec.compile();
            for load in [
                "rand", "mixrand", "seq", "mixseq", "mix3arr", "pingpong", "burst",
            ] {
                let reqs: Vec<(u64, bool)> = match load {
                    // Two rows of one bank, and single requests to all banks in turn.
                    "pingpong" => (0..300)
                        .map(|i| (spec.map().address(i / 64, i % 2, i % 7), i % 5 == 4))
                        .collect(),
                    "burst" => (0..600)
                        .map(|i| {
                            (
                                spec.map().address(i % spec.banks(), i / spec.banks(), 0),
                                i % 64 > 50,
                            )
                        })
                        .collect(),
                    _ => stream(load, spec.tx_bytes().into(), 1500),
                };
                let run = run_one(&spec, &reqs, true);
                for (i, c) in run.log.iter().enumerate() {
                    let past = &run.log[i.saturating_sub(400)..i];
                    let times: Vec<(usize, u64)> = (0..spec.constraints.len())
                        .filter(|&r| spec.constraints[r].after.contains(&c.cmd))
                        .filter_map(|r| Some((r, earliest(&spec, past, c, &spec.constraints[r])?)))
                        .collect();
                    for (r, t) in times {
                        seen[r] = true;
                        assert!(
                            c.tick >= t,
                            "{name}: {c:?} before tick {t} of {:?}",
                            spec.constraints[r]
                        );
                        bound[r] |= c.tick == t;
                    }
                }
            }
        }
        let rows = seen.iter().filter(|s| **s).count();
        let tight = bound.iter().filter(|s| **s).count();
        // Rows that another row implies, or that the order of commands never meets exactly, cannot bind.
        assert!(tight * 2 >= rows, "{name}: {tight} of {rows} rows bind");
    }
}

/// One generated case per row: two commands alone, the second exactly as late as the row says, never a tick earlier.
#[test]
fn a_row_alone_delays_by_exactly_its_cycles() {
    for name in ["DDR4_2400R", "HBM2_2000", "GDDR6_14000"] {
        let base = quiet(name);
        for (i, row) in base
            .constraints
            .iter()
            .enumerate()
            .filter(|(_, r)| r.window == 1 && !r.sibling)
        {
            for (&before, &after) in row
                .before
                .iter()
                .flat_map(|b| row.after.iter().map(move |a| (b, a)))
            {
                let pair = (before, after);
                let same_bank = !matches!(pair, (Cmd::Act, Cmd::Act));
                if !matches!(
                    pair,
                    (Cmd::Act, Cmd::Rd | Cmd::Wr | Cmd::Act)
                        | (Cmd::Rd, Cmd::Rd | Cmd::Pre)
                        | (Cmd::Wr, Cmd::Wr | Cmd::Pre)
                ) || (same_bank
                    && before == Cmd::Act
                    && row.level + 1 != base.levels.len() as u8)
                {
                    continue;
                }
                let mut spec = base.clone();
                spec.constraints = vec![Constraint {
                    cycles: 37,
                    ..row.clone()
                }];
                spec.compile();
                let write = before == Cmd::Wr || after == Cmd::Wr;
                let second = match pair {
                    (Cmd::Act, Cmd::Act) if row.level + 1 == spec.levels.len() as u8 => continue,
                    (Cmd::Act, Cmd::Act) => spec.map().address(1, 0, 0),
                    (_, Cmd::Pre) => spec.map().address(0, 1, 0),
                    _ => spec.map().address(0, 0, 1),
                };
                let run = run_one(
                    &spec,
                    &[(spec.map().address(0, 0, 0), write), (second, write)],
                    true,
                );
                let first = run.log.iter().find(|c| c.cmd == before).unwrap().tick;
                let later = run
                    .log
                    .iter()
                    .filter(|c| c.cmd == after && c.tick > first)
                    .map(|c| c.tick)
                    .min()
                    .unwrap();
                assert_eq!(later - first, 37, "{name}: row {i} {pair:?} {:?}", run.log);
            }
        }
    }
}

#[test]
fn mappings_are_bijective() {
    for name in PRESETS {
        let mut spec = preset(name);
        for order in ["RoBaRaCoCh", "RoCoBaRaCh", "ChRaBaRoCo", "BaRoRaCo"] {
            spec.set_mapping_order(order).unwrap();
            assert_eq!(1u64 << spec.map().width(), spec.capacity());
            let tx = u64::from(spec.tx_bytes());
            let mut seen = std::collections::HashSet::new();
            for i in 0..spec.map().bits().len() {
                // One address per bit and all of them together: distinct places, and the way back.
                let addr = tx << i;
                let (bank, row) = spec.map().bank_row(addr);
                let column = spec.map().column(addr);
                assert!(seen.insert((bank, row, column)));
                assert_eq!(spec.map().address(bank, row, column), addr);
            }
        }
        let bits: Vec<(Field, u32)> = spec.map().bits().iter().rev().copied().collect();
        spec.set_mapping_bits(bits.clone()).unwrap();
        assert!(spec.set_mapping_bits(bits[1..].to_vec()).is_err());
        assert!(
            spec.set_mapping_bits([&bits[..], &bits[..1]].concat())
                .is_err()
        );
        assert!(spec.set_mapping_order("RoXx").is_err());
    }
}

proptest! {
    #[test]
    fn mapping_and_inverse_agree(device in 0..PRESETS.len(), addr: u64, shuffle: u64) {
        let mut spec = preset(PRESETS[device]);
        let mut bits = spec.map().bits().to_vec();
        let mut x = shuffle | 1;
        for i in (1..bits.len()).rev() {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            bits.swap(i, (x >> 33) as usize % (i + 1));
        }
        spec.set_mapping_bits(bits).unwrap();
        let addr = addr % spec.capacity() / u64::from(spec.tx_bytes()) * u64::from(spec.tx_bytes());
        let (bank, row) = spec.map().bank_row(addr);
        prop_assert!(bank < spec.banks() && row < spec.rows);
        prop_assert_eq!(spec.map().address(bank, row, spec.map().column(addr)), addr);
    }
}

/// Damaged files are refused with the path of the key; none panics.
#[test]
fn damaged_files_are_refused_with_a_path() {
    let good = golden_text("devices/HBM2_2000.1ch.ref.yaml");
    for (from, to, path) in [
        (
            "impl: HBM12",
            "impl: HBM99",
            "memory_system.controllers[0].impl",
        ),
        (
            "impl: HBM2\n",
            "impl: HBM9\n",
            "memory_system.controllers[0].dram.impl",
        ),
        (
            "count: [1, 2",
            "count: [2, 2",
            "memory_system.controllers[0].dram.org.count",
        ),
        (
            "count: [1, 2, 4",
            "count: [1, 2, 3",
            "memory_system.controllers[0].dram.org.count",
        ),
        (
            "timing: [2000,",
            "timing: [",
            "memory_system.controllers[0].dram.timing",
        ),
        (
            "channel_width: 64",
            "channel_width: x",
            "memory_system.controllers[0].dram.channel_width",
        ),
        (
            "read_buffer_size: 32",
            "read_buffer_size: 0",
            "memory_system.controllers[0].read_buffer_size",
        ),
        (
            "[0, [0], [0, 1, 2, 7, 8], 2]",
            "[0, [0], [99], 2]",
            "memory_system.controllers[0].dram.timing_constraints[0][2][0]",
        ),
        (
            "wr_low_watermark",
            "wr_lowwatermark",
            "memory_system.controllers[0].wr_lowwatermark",
        ),
    ] {
        assert!(good.contains(from), "{from}");
        let error = DramSpec::from_ramulator(&good.replacen(from, to, 1)).unwrap_err();
        assert_eq!(error.path, path, "{error}");
    }
    for (from, to) in [
        ("3900, 122", "150, 122"),
        ("16384, 128", "16777216, 16777216"),
        ("interleave_bits: 0", "interleave_bits: 63"),
        ("impl: Open", "impl: Open\n        cap: 3"),
    ] {
        assert!(good.contains(from), "{from}");
        assert!(
            DramSpec::from_ramulator(&good.replacen(from, to, 1)).is_err(),
            "{to}"
        );
    }
    for cut in (0..good.len()).step_by(37) {
        let _ = DramSpec::from_ramulator(&good[..cut]);
    }
}

/// Equal situations at another time and row have equal canonical states.
#[test]
fn canonical_states_recur() {
    for name in PRESETS {
        let spec = quiet(name);
        let state = |start: u64, row: u32, base: u32| {
            let mut ch = Channel::new(&spec);
            for i in 0..40u32 {
                let at = spec.map().address(i % 5, row + i % 3, i % 16);
                ch.push(start + u64::from(i), at, i % 4 == 3, 0);
            }
            let now = start + 60;
            ch.advance(&spec, now, &mut Vec::new());
            let mut out = Vec::new();
            let all = Area {
                first: 0,
                end: u64::MAX,
                moved: base.into(),
            };
            let frame = Frame::new(&spec, vec![all]).unwrap();
            ch.canonical(&spec, now, &frame, &mut |_, _| {}, &mut out);
            out
        };
        assert!(state(1000, 7, 7) == state(77_000, 1007, 1007), "{name}");
        assert!(state(1000, 7, 7) != state(1000, 8, 7), "{name}");
    }
}

/// Reads plus writes pushed are reads plus writes completed, and the waits are those of the requests.
#[test]
fn counters_are_conserved() {
    for name in PRESETS {
        let spec = preset(name);
        let reqs = stream("mixrand", spec.tx_bytes().into(), 3000);
        let run = run_one(&spec, &reqs, true);
        let s = &run.stats[0];
        assert_eq!(s.reads + s.writes, 3000);
        assert_eq!(
            s.hits + s.misses + s.conflicts + s.forwarded + s.coalesced,
            3000
        );
        assert_eq!(s.read_latency.iter().sum::<u64>(), s.reads);
        assert_eq!(
            s.activates,
            run.log.iter().filter(|c| c.cmd == Cmd::Act).count() as u64
        );
        assert_eq!(
            s.bus_busy,
            (3000 - s.forwarded - s.coalesced) * u64::from(spec.burst)
        );
        assert!(s.bus_busy <= run.ticks * u64::from(spec.pseudo_channels()));
        assert!(s.read_queue_ticks <= run.ticks * u64::from(spec.read_queue));
    }
}
