#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod dram_common;
use dram_common::*;
use tilesim_core::dram::*;

#[test]
fn logs() {
    let dir = "/work/shared/reference/dram";
    let mut bad = 0;
    let mut files: Vec<_> = std::fs::read_dir("/tmp/dram_gold").unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
    files.sort();
    for f in files {
        let p: Vec<&str> = f.split('.').collect();
        if f.contains("unb") || f.contains("w1") {
            continue;
        }
        let (dev, refr) = (p[0], p[3]);
        let name = if p[1] == "rowstride" { format!("rowstride.{}", p[2]) } else { p[1].to_string() };
        let tx = if dev.starts_with("DDR4") { 64 } else { 32 };
        let n = if refr == "ref" { 5000 } else { 2000 };
        let file = DramSpec::from_ramulator(&std::fs::read_to_string(format!("{dir}/devices/{dev}.1ch.{refr}.yaml")).unwrap()).unwrap();
        let run = run_one(&file.spec, &stream(&name, tx, n), true);
        let text = std::fs::read_to_string(format!("/tmp/dram_gold/{f}")).unwrap();
        let spec = &file.spec;
        let mine: Vec<String> = run.log.iter().map(|c| {
            let mut s = format!("{},{},0", c.tick + 1, c.cmd.name(spec.standard));
            let depth = spec.levels.len();
            let mut idx = vec![0; depth];
            let mut b = c.bank;
            for l in (1..depth).rev() { idx[l] = b % spec.levels[l]; b /= spec.levels[l]; }
            match c.addr {
                Some(a) => {
                    for l in 1..depth { s += &format!(",{}", idx[l]); }
                    s += &format!(",{},{},{},0", spec.map().bank_row(a).1, spec.map().column(a), c.write as u8);
                }
                None => {
                    s += &format!(",{}", idx[1]);
                    for _ in 2..depth + 2 { s += ",-1"; }
                    s += ",-1,-1";
                }
            }
            s
        }).collect();
        let want: Vec<&str> = text.lines().skip(1).collect();
        let same = mine.iter().zip(&want).take_while(|(a, b)| a == b).count();
        let ok = same == want.len() && mine.len() == want.len();
        println!("{f}: {} of {} ({}) {}", same, want.len(), mine.len(), if ok { "ok" } else { "DIFF" });
        if !ok && same < want.len() {
            bad += 1;
            for i in same.saturating_sub(2)..(same + 3).min(want.len()) { println!("   {} | {}", want[i], mine.get(i).map_or("", |s| s)); }
        }
    }
    println!("bad {bad}");
}

#[test]
fn rows() {
    let dir = "/work/shared/reference/dram";
    let text = std::fs::read_to_string(format!("{dir}/results.csv")).unwrap();
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().unwrap().split(',').collect();
    let col = |n: &str| head.iter().position(|h| *h == n).unwrap();
    let (mut ok, mut all) = (0, 0);
    for l in lines {
        let f: Vec<&str> = l.split(',').collect();
        if f[0] != "ramulator2.1" { continue; }
        let yaml = f[col("config")].replace("yaml/", "devices/");
        let file = DramSpec::from_ramulator(&std::fs::read_to_string(format!("{dir}/{yaml}")).unwrap()).unwrap();
        let trace = f[col("trace")].trim_end_matches(".trace");
        let p: Vec<&str> = trace.split('.').collect();
        let name = if p[0] == "rowstride" { trace.to_string() } else { p[0].to_string() };
        let n: usize = f[col("n")].parse().unwrap();
        let tx: u64 = f[col("tx_bytes")].parse().unwrap();
        let reqs = stream(&name, tx, n);
        let w = f[col("window")];
        let run = if w == "unbounded" && file.channels == 1 { run_one(&file.spec, &reqs, false) } else { run_many(&file, &reqs, w.parse().unwrap_or(0), false) };
        let get = |n: &str| f[col(n)].parse::<f64>().unwrap_or(-1.0);
        let want = (get("ticks") as u64, get("row_hits") as u64, get("row_misses") as u64, get("row_conflicts") as u64, get("num_read_reqs_forwarded") as u64, get("num_write_reqs_coalesced") as u64, get("num_maintenance_reqs_served") as u64);
        let got = (run.ticks, run.sum(|s| s.hits), run.sum(|s| s.misses), run.sum(|s| s.conflicts), run.sum(|s| s.forwarded), run.sum(|s| s.coalesced), run.sum(|s| s.refreshes));
        let lat = run.sum(|s| s.read_latency_sum) as f64 / (run.sum(|s| s.reads) - run.sum(|s| s.forwarded)) as f64;
        all += 1;
        if want == got && (lat - get("avg_read_latency_ck")).abs() < 0.01 { ok += 1 } else { println!("{} {} {} w{}: want {:?} {} got {:?} {}", f[2], f[4], trace, w, want, get("avg_read_latency_ck"), got, lat); }
    }
    println!("{ok} of {all} rows exact");
}
