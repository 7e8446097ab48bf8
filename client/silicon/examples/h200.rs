//! Ranks the measured configurations on the shapes named (default: all) and scores the order.
//!
//!     cargo run --release -p tilesim-silicon --example h200 [MxNxK]...
#![allow(missing_docs, clippy::unwrap_used)]

use std::time::Instant;

use tilesim_core::machine::Machine;
use tilesim_silicon::data::Data;
use tilesim_silicon::kernel::Constants;
use tilesim_silicon::validate::{Model, Ranking};

fn main() {
    let data = Data::h200().unwrap();
    let model = Model {
        machine: Machine::preset("h200").unwrap(),
        constants: Constants::default(),
    };
    let threads = std::thread::available_parallelism().unwrap();
    let only: Vec<String> = std::env::args().skip(1).collect();
    for shape in &data.shapes {
        if !only.is_empty() && !only.contains(&shape.name) {
            continue;
        }
        let start = Instant::now();
        let times = model.times_us(&data.configs, std::slice::from_ref(shape), threads, &|| ());
        let score = Ranking::simulated(shape, &times[0]).score;
        let seconds = start.elapsed().as_secs_f64();
        println!("{:18} {score:.3?} {seconds:.1} s", shape.name);
    }
}
