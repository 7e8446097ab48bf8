//! `lower_bound` on the golden rows: its components, and how long it takes once the trace is bound.
//!
//!     cargo run --release -p tilesim-core --example lower_bound [PROGRAM]
#![allow(clippy::expect_used, clippy::panic, missing_docs)]
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::Instant;

use tilesim_core::machine::{import::ImportOptions, load};
use tilesim_core::{Launch, lower_bound_of};
use tilesim_traces::{Bound, LaunchArgs, json, validate};

fn main() {
    let only = std::env::args().nth(1);
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden");
    let configs = golden.join("pytorchsim/configs");
    let read = |p: &Path| std::fs::read_to_string(p).unwrap();
    let files = |p: &str| {
        std::fs::read_to_string(configs.join(p.trim_start_matches("../configs/")))
            .map_err(|e| e.to_string())
    };
    let mut slowest = 0f64;
    for line in read(&golden.join("togsim/golden.csv")).lines().skip(1) {
        let row: Vec<&str> = line.split(',').collect();
        if only.as_deref().is_some_and(|o| o != row[0]) {
            continue;
        }
        let text = read(&configs.join(format!("{}.yml", row[2])));
        let machine = load(row[2], &text, &files, ImportOptions::default())
            .unwrap()
            .machine;
        let program = read(&golden.join(format!("togsim/programs/{}.json", row[0])));
        let trace = validate(json::import(&program, &json::no_files).unwrap().trace).unwrap();
        let args = LaunchArgs {
            grid: row[1].split('x').map(|n| n.parse().unwrap()).collect(),
            ..LaunchArgs::default()
        };
        let launch = Launch {
            args,
            ..Launch::default()
        };
        let bound = Bound::new(&trace, &launch.args, &launch.options.limits).unwrap();
        let result = lower_bound_of(&machine, &bound, &launch.options).unwrap();
        // The least of several batches: the machine is shared.
        let mut best = f64::MAX;
        for _ in 0..20 {
            let start = Instant::now();
            for _ in 0..20 {
                std::hint::black_box(lower_bound_of(&machine, &bound, &launch.options).unwrap());
            }
            best = best.min(start.elapsed().as_secs_f64() / 20.0 * 1e6);
        }
        slowest = slowest.max(best);
        println!(
            "{best:6.1} us  {:<20} {:>7} {:<42} {:>8} of {:>8} by {}",
            row[0],
            row[1],
            row[2],
            result.cycles,
            row[3],
            result.binding.map_or("none", |r| r.name())
        );
        if only.is_some() {
            for c in &result.components {
                println!("           {:<14} {:>8}", c.resource.name(), c.cycles);
            }
        }
    }
    println!("slowest {slowest:.1} us");
}
