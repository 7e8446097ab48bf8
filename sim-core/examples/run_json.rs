//! Development aid: run a JSON work-item on a machine file.
#![allow(clippy::expect_used, clippy::panic, missing_docs)]
#![allow(clippy::unwrap_used)]
use tilesim_core::machine::{import::ImportOptions, load};
use tilesim_core::{Launch, simulate};
use tilesim_traces::{LaunchArgs, json, validate};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let dir = std::path::Path::new(&a[3]).parent().unwrap().to_path_buf();
    let files = |p: &str| {
        std::fs::read_to_string(dir.join(p.trim_start_matches("../configs/")))
            .map_err(|e| e.to_string())
    };
    let machine = load(
        "m",
        &std::fs::read_to_string(&a[3]).unwrap(),
        &files,
        ImportOptions::default(),
    )
    .unwrap()
    .machine;
    let trace = validate(
        json::import(&std::fs::read_to_string(&a[1]).unwrap(), &json::no_files)
            .unwrap()
            .trace,
    )
    .unwrap();
    let args = LaunchArgs {
        grid: a[2].split('x').map(|n| n.parse().unwrap()).collect(),
        ..LaunchArgs::default()
    };
    let t = std::time::Instant::now();
    let r = simulate(
        &machine,
        &trace,
        &Launch {
            args,
            ..Launch::default()
        },
        &mut (),
    );
    match r {
        Ok(r) => println!(
            "{} cycles {} requests {:?} {}",
            r.cycles,
            r.dram_requests,
            t.elapsed(),
            if a.len() > 4 {
                serde_json::to_string_pretty(&r).unwrap()
            } else {
                String::new()
            }
        ),
        Err(e) => println!("{e:?}"),
    }
}
