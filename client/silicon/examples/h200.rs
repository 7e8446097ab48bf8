//! Ranks the measured configurations on the shapes named (default: all) and scores the order; two
//! threads.
//!
//!     cargo run --release -p tilesim-silicon --example h200 [MxNxK]...
#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tilesim_core::machine::Machine;
use tilesim_silicon::data::{Data, Shape};
use tilesim_silicon::kernel::{Constants, launch};
use tilesim_silicon::score::Score;

fn main() {
    let data = Data::h200().unwrap();
    let machine = Machine::preset("h200").unwrap();
    let only: Vec<String> = std::env::args().skip(1).collect();
    let mut scores = Vec::new();
    for shape in &data.shapes {
        if !only.is_empty() && !only.contains(&shape.name) {
            continue;
        }
        let start = Instant::now();
        let all = predict(&data, shape, &machine);
        let (predicted, measured): (Vec<f64>, Vec<f64>) = all
            .into_iter()
            .zip(&shape.time_us)
            .filter_map(|(p, m)| Some((p, (*m)?)))
            .unzip();
        let score = Score::of(&predicted, &measured).unwrap();
        println!(
            "{:18} {score:.3?} {:.1} s",
            shape.name,
            start.elapsed().as_secs_f64()
        );
        scores.push(score);
    }
    println!("mean {:.3?}", Score::mean(&scores));
}

/// Microseconds of each configuration.
fn predict(data: &Data, shape: &Shape, machine: &Machine) -> Vec<f64> {
    let constants = Constants::default();
    let mhz = machine.clocks.core_khz as f64 / 1e3;
    let next = AtomicUsize::new(0);
    let work = || {
        let mut out = Vec::new();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(config) = data.configs.get(i) else {
                return out;
            };
            let (trace, launch) = launch(config, shape.size, machine, &constants).unwrap();
            let report = tilesim_core::simulate(machine, &trace, &launch, &mut ()).unwrap();
            out.push((i, report.cycles as f64 / mhz + constants.launch_us));
        }
    };
    let mut all: Vec<(usize, f64)> = std::thread::scope(|scope| {
        let threads = [scope.spawn(work), scope.spawn(work)];
        threads
            .into_iter()
            .flat_map(|t| t.join().unwrap())
            .collect()
    });
    all.sort_by_key(|r| r.0);
    all.into_iter().map(|r| r.1).collect()
}
