//! The look-ahead controller against DRAMsim3's one-channel rows, and its own conservation laws.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod dram_common;

use dram_common::{golden_spec, golden_text, run_many, run_one, stream};

#[test]
fn rows_of_dramsim3() {
    let text = golden_text("results.csv");
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().unwrap().split(',').collect();
    let column = |n: &str| head.iter().position(|h| *h == n).unwrap();
    let (mut rows, mut off) = (0, Vec::new());
    for l in lines.filter(|l| l.starts_with("dramsim3,") && !l.contains("stock")) {
        let f: Vec<&str> = l.split(',').collect();
        let name = f[column("config")].trim_start_matches("dramsim3_ini/").trim_end_matches(".ini");
        if !name.contains(".1ch.") {
            continue;
        }
        let mut file = golden_spec(name);
        file.spec.set_look_ahead(8).unwrap();
        let trace = f[column("trace")].trim_end_matches(".trace");
        let stem = if trace.starts_with("rowstride") { trace } else { trace.split('.').next().unwrap() };
        let int = |n: &str| f[column(n)].parse::<u64>().unwrap();
        let reqs = stream(stem, int("tx_bytes"), int("n") as usize);
        let window = f[column("window")].parse().unwrap_or(0);
        let run = if window == 0 { run_one(&file.spec, &reqs, false) } else { run_many(&file, &reqs, window, false) };
        let gap = run.ticks as f64 / int("ticks") as f64 - 1.0;
        rows += 1;
        println!("{name} {trace} w{window}: {} {} {:+.2}%", int("ticks"), run.ticks, gap * 100.0);
        if gap.abs() > 0.03 {
            off.push(format!("{name} {trace} w{window} {:+.1} %", gap * 100.0));
        }
    }
    println!("{} of {rows} rows beyond 3 %: {off:#?}", off.len());
}
