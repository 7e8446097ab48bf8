#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use tilesim_core::machine::Machine;
use tilesim_silicon::data::Data;
use tilesim_silicon::kernel::{Constants, launch, residents};
use tilesim_silicon::score::Score;

/// Every sixth configuration of one small shape: far from what the whole list shows, and enough to
/// notice when the order is lost.
#[test]
fn a_part_of_a_small_shape_is_ranked() {
    let data = Data::h200().unwrap();
    let machine = Machine::preset("h200").unwrap();
    let shape = data
        .shapes
        .iter()
        .find(|s| s.name == "1024x1024x1024")
        .unwrap();
    let (mut predicted, mut measured) = (Vec::new(), Vec::new());
    for (config, time) in data.configs.iter().zip(&shape.time_us).step_by(6) {
        let (trace, launch) = launch(config, shape.size, &machine, &Constants::default()).unwrap();
        let report = tilesim_core::simulate(&machine, &trace, &launch, &mut ()).unwrap();
        predicted.push(report.cycles as f64);
        measured.push(time.unwrap());
    }
    let score = Score::of(&predicted, &measured).unwrap();
    assert!(score.tau >= 0.80, "{score:?}");
}

#[test]
fn unaligned_shapes_run_with_what_their_kernel_takes() {
    let data = Data::h200().unwrap();
    let machine = Machine::preset("h200").unwrap();
    let config = &data.configs[40];
    assert!(residents(&machine, config, false) < residents(&machine, config, true));
    let cycles = |size| {
        let (trace, launch) = launch(config, size, &machine, &Constants::default()).unwrap();
        tilesim_core::simulate(&machine, &trace, &launch, &mut ())
            .unwrap()
            .cycles
    };
    assert!(cycles([500, 501, 503]) > 2 * cycles([512, 512, 512]));
}
