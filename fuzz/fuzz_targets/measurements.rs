//! Any bytes as measurements on hardware are read or refused; what is read makes launches and orders.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tilesim_core::machine::Machine;
use tilesim_silicon::{
    data::Data,
    kernel::{self, Constants},
    validate::Ranking,
};

static H200: LazyLock<Machine> =
    LazyLock::new(|| Machine::preset("h200").expect("the preset is valid"));

fuzz_target!(|data: &[u8]| {
    let mut parts = data.splitn(2, |byte| *byte == 0);
    let mut part = || parts.next().and_then(|part| std::str::from_utf8(part).ok());
    let (launches, one_program) = (part(), part());
    let Ok(data) = Data::read(launches, one_program) else {
        return;
    };
    for shape in data.shapes.iter().take(4) {
        let ranking = Ranking::naive(shape, &data.configs, &H200);
        assert!(ranking.score.regret.is_none_or(|regret| regret >= 0.0));
    }
    let measured = data.configs.iter().filter_map(|c| c.measured.as_ref().ok());
    for measured in measured.take(2) {
        for size in [[64, 64, 64], [63, 65, 100]] {
            let _ = kernel::launch(measured, size, &H200, &Constants::default());
        }
    }
});
