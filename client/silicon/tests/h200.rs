#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::num::NonZeroUsize;

use tilesim_core::machine::Machine;
use tilesim_silicon::data::Data;
use tilesim_silicon::kernel::{Constants, launch, residents};
use tilesim_silicon::validate::{Model, Ranking};

fn model() -> Model {
    Model {
        machine: Machine::preset("h200").unwrap(),
        constants: Constants::default(),
    }
}

/// Ranks every `nth` configuration with tiles of at least so many rows and columns on one small shape.
fn ranked(nth: usize, least: u64) -> Ranking {
    let mut data = Data::h200().unwrap();
    data.shapes.retain(|s| s.name == "1024x1024x1024");
    for (i, time) in data.shapes[0].time_us.iter_mut().enumerate() {
        let config = data.configs[i].config;
        *time = time.filter(|_| i % nth == 0 && config.bm.min(config.bn) >= least);
    }
    let two = NonZeroUsize::new(2).unwrap();
    let times = model().times_us(&data.configs, &data.shapes, two, &|| ());
    Ranking::simulated(&data.shapes[0], &times[0])
}

/// Far from what the whole list shows, and enough to notice when the order is lost.
#[test]
fn a_part_of_a_small_shape_is_ranked() {
    let ranking = ranked(6, 0);
    assert_eq!(ranking.places.len(), 27);
    assert!(ranking.score.kendall_tau >= Some(0.87), "{ranking:?}");
}

/// All configurations among which the fastest are.
#[test]
fn the_fastest_of_a_small_shape_is_found() {
    let ranking = ranked(1, 64);
    assert!(ranking.places.len() > 80);
    let score = &ranking.score;
    assert!(score.regret.unwrap() <= 0.05, "{score:?}");
    assert!(score.regret_top5.unwrap() <= 0.01, "{score:?}");
    assert!(score.kendall_tau.unwrap() >= 0.80, "{score:?}");
}

#[test]
fn unaligned_shapes_run_with_what_their_kernel_takes() {
    let data = Data::h200().unwrap();
    let Model { machine, constants } = model();
    let config = data.configs[40].measured.as_ref().unwrap();
    assert!(residents(&machine, config, false) < residents(&machine, config, true));
    let cycles = |size| {
        let (trace, launch) = launch(config, size, &machine, &constants).unwrap();
        tilesim_core::simulate(&machine, &trace, &launch, &mut ())
            .unwrap()
            .cycles
    };
    assert!(cycles([500, 501, 503]) > 2 * cycles([512, 512, 512]));
}
