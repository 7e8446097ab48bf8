//! The banked DRAM model against Ramulator 2.1: command for command, request for request, row for row.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod dram_common;

use dram_common::{gold, golden_spec, golden_text, run_many, run_one, stream};
use tilesim_core::dram::{CommandRecord, Done, DramSpec, RamulatorFile};

/// Stream name, device and the rest of a golden file's name `<device>.<stream>[.<x>].<...>`.
fn parts(file: &str) -> (String, String, u64, Vec<String>) {
    let p: Vec<&str> = file.split('.').collect();
    let device = p[0].to_string();
    let tx = if device.starts_with("DDR4") { 64 } else { 32 };
    let name = if p[1] == "rowstride" {
        format!("rowstride.{}", p[2])
    } else {
        p[1].to_string()
    };
    (
        device,
        name,
        tx,
        p[3..].iter().map(|s| s.to_string()).collect(),
    )
}

fn files(dir: &str) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(gold(dir))
        .unwrap()
        .map(|f| f.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn line(spec: &DramSpec, c: &CommandRecord) -> String {
    let depth = spec.levels.len();
    let mut at = vec![String::from("0"); depth + 2];
    let mut bank = c.bank;
    for l in (1..depth).rev() {
        at[l] = (bank % spec.levels[l]).to_string();
        bank /= spec.levels[l];
    }
    let (kind, source) = match c.addr {
        Some(a) => {
            at[depth] = spec.map().bank_row(a).1.to_string();
            at[depth + 1] = spec.map().column(a).to_string();
            (i32::from(c.write), 0)
        }
        None => {
            at[2..].fill("-1".into());
            (-1, -1)
        }
    };
    format!(
        "{},{},{},{kind},{source}",
        c.tick + 1,
        c.cmd.name(spec.standard),
        at.join(",")
    )
}

/// Every command log, with and without refresh, is reproduced command for command and clock for clock.
#[test]
fn command_logs_are_equal() {
    let names = files("cmdtrace");
    assert_eq!(names.len(), 37);
    for f in names {
        let (device, name, tx, rest) = parts(&f);
        let (refresh, n) = (&rest[0], rest[1][1..].parse().unwrap());
        let file = golden_spec(&format!("{device}.1ch.{refresh}"));
        let text = golden_text(&format!("cmdtrace/{f}"));
        let want: Vec<&str> = text.lines().skip(1).collect();
        let run = run_one(&file.spec, &stream(&name, tx, n), true);
        let got: Vec<String> = run.log.iter().map(|c| line(&file.spec, c)).collect();
        let same = want.iter().zip(&got).take_while(|(w, g)| *w == *g).count();
        assert_eq!(
            same,
            want.len(),
            "{f}: {:?} became {:?}",
            want.get(same),
            got.get(same)
        );
        // The harness of the reference stops in the tick of the last completion.
        let last = run.ticks;
        assert!(
            got.len() == want.len() || run.log[want.len()..].iter().all(|c| c.tick + 1 >= last),
            "{f}: longer"
        );
    }
}

/// Acceptance and completion of every request, queues bound only and fully dependent.
#[test]
fn requests_are_accepted_and_complete_when_they_should() {
    let names = files("perreq");
    assert_eq!(names.len(), 56);
    for f in names {
        let (device, name, tx, rest) = parts(&f);
        let window = if rest[1] == "w1" { 1 } else { 0 };
        let file = golden_spec(&format!("{device}.1ch.{}", rest[0]));
        let text = golden_text(&format!("perreq/{f}"));
        let reqs = stream(&name, tx, text.lines().count() - 1);
        let run = run_many(&file, &reqs, window, false);
        let mut done = vec![0; reqs.len()];
        for &Done { tick: t, tag, .. } in &run.completions {
            done[tag as usize] = t + 1;
        }
        for (i, l) in text.lines().skip(1).enumerate() {
            let want: Vec<u64> = l.split(',').skip(3).map(|x| x.parse().unwrap()).collect();
            assert_eq!([run.accepted[i], done[i]], want[..], "{f}: request {i}");
        }
    }
}

/// Ticks, hits, misses, conflicts, forwards, coalesced writes, refreshes and mean latency of every Ramulator row.
#[test]
fn totals_of_every_row_are_equal() {
    let text = golden_text("results.csv");
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().unwrap().split(',').collect();
    let column = |n: &str| head.iter().position(|h| *h == n).unwrap();
    let mut rows = 0;
    for l in lines.filter(|l| l.starts_with("ramulator")) {
        let f: Vec<&str> = l.split(',').collect();
        let file = golden_spec(
            f[column("config")]
                .trim_start_matches("yaml/")
                .trim_end_matches(".yaml"),
        );
        let trace = f[column("trace")].trim_end_matches(".trace");
        let name = if trace.starts_with("rowstride") {
            trace
        } else {
            trace.split('.').next().unwrap()
        };
        let int = |n: &str| f[column(n)].parse::<u64>().unwrap();
        let reqs = stream(name, int("tx_bytes"), int("n") as usize);
        let window = f[column("window")].parse().unwrap_or(0);
        let run = if window == 0 && file.channels == 1 {
            run_one(&file.spec, &reqs, false)
        } else {
            run_many(&file, &reqs, window, false)
        };
        let got = [
            run.ticks,
            run.sum(|s| s.hits),
            run.sum(|s| s.misses),
            run.sum(|s| s.conflicts),
            run.sum(|s| s.forwarded),
            run.sum(|s| s.coalesced),
            run.sum(|s| s.refreshes),
        ];
        let want = [
            "ticks",
            "row_hits",
            "row_misses",
            "row_conflicts",
            "num_read_reqs_forwarded",
            "num_write_reqs_coalesced",
            "num_maintenance_reqs_served",
        ];
        assert_eq!(got, want.map(int), "{l}");
        // The reference prints HBM3 latencies in clocks of two ticks and leaves forwarded reads out of the divisor.
        let clock = if file.spec.standard.name() == "HBM3" {
            2.0
        } else {
            1.0
        };
        let latency = run.sum(|s| s.read_latency_sum) as f64
            / (run.sum(|s| s.reads) - run.sum(|s| s.forwarded)) as f64;
        let want: f64 = f[column("avg_read_latency_ck")].parse().unwrap();
        assert!(
            (latency / clock - want).abs() < 0.01,
            "{l}: latency {latency}"
        );
        rows += 1;
    }
    assert_eq!(rows, 110);
}

/// Queue depths of 32, 64 and 128 entries.
#[test]
fn deeper_queues_are_equal() {
    let text = golden_text("sensitivity_queue.csv");
    for l in text.lines().skip(1) {
        let f: Vec<&str> = l.split(',').collect();
        let yaml = golden_text(&format!("devices/{}.1ch.noref.yaml", f[0]))
            .replace("_buffer_size: 32", &format!("_buffer_size: {}", f[2]));
        let RamulatorFile { spec, .. } = DramSpec::from_ramulator(&yaml).unwrap();
        let (name, tx) = f[3].split_once(".tx").unwrap();
        let run = run_one(&spec, &stream(name, tx.parse().unwrap(), 100_000), false);
        assert_eq!(run.ticks, f[4].parse::<u64>().unwrap(), "{l}");
    }
}

/// PyTorchSim's device files load and move every request.
#[test]
fn pytorchsim_files_load() {
    for name in [
        "DDR4",
        "HBM2",
        "HBM2_TPUv2",
        "HBM2_TPUv3",
        "HBM2_TPUv4",
        "HBM3_TPUv6e",
        "LPDDR5",
        "LPDDR5X",
    ] {
        let file =
            DramSpec::from_ramulator(&golden_text(&format!("pytorchsim/{name}.yaml"))).expect(name);
        let tx = u64::from(file.spec.tx_bytes());
        let run = run_one(&file.spec, &stream("mixrand", tx, 5000), false);
        assert_eq!(run.completions.len(), 5000, "{name}");
    }
}
