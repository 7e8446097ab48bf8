//! Energy: the reference's table loads, parts follow from counts.

#![allow(clippy::expect_used, clippy::panic)]
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::PathBuf;

use tilesim_core::machine::import::ImportOptions;
use tilesim_core::machine::{Machine, MemoryModel, load};
use tilesim_core::{Launch, Report, simulate};
use tilesim_traces::{LaunchArgs, json, validate};

fn golden(path: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/golden")
        .join(path);
    std::fs::read_to_string(path).unwrap()
}

const FILE: &str = "systolic_ws_128x128_c1_simple_noc_tpuv3";

fn imported(table: Result<String, String>, as_configured: bool) -> Result<Machine, String> {
    let text = golden(&format!("pytorchsim/configs/{FILE}.yml"));
    let files = |path: &str| match path.contains("energy") {
        true => table.clone(),
        false => Ok(golden(&format!(
            "pytorchsim/configs/{}",
            path.trim_start_matches("../configs/")
        ))),
    };
    load(FILE, &text, &files, ImportOptions { as_configured })
        .map(|l| l.machine)
        .map_err(|e| format!("{}: {e}", e.path))
}

fn launch(machine: &Machine) -> Report {
    let text = golden("togsim/programs/gemm_256.json");
    let trace = validate(json::import(&text, &json::no_files).unwrap().trace).unwrap();
    let args = LaunchArgs {
        grid: vec![2, 2],
        ..LaunchArgs::default()
    };
    simulate(
        machine,
        &trace,
        &Launch {
            args,
            ..Launch::default()
        },
        &mut (),
    )
    .unwrap()
}

#[test]
fn the_table_of_the_reference() {
    let table = golden("pytorchsim/configs/energy_tables/hbm2.yml");
    let machine = imported(Ok(table.clone()), true).unwrap();
    let cost = machine.energy.unwrap();
    assert_eq!(
        (cost.activation, cost.read_bit, cost.write_bit),
        (909_000_000, 1_510_000, 1_510_000)
    );
    assert_eq!(
        (cost.io_bit, cost.phy_bit, cost.refresh),
        (1_170_000, 800_000, 0)
    );
    assert_eq!(
        Machine::from_yaml(&machine.to_yaml().unwrap()).unwrap(),
        machine
    );

    // The reference's rule: activations x cost + bits x the sum of the terms.
    let report = launch(&machine);
    let energy = report.energy.unwrap();
    let activates: u64 = report.dram.controllers.iter().map(|c| c.activates).sum();
    let bits = (report.dram.bytes_read + report.dram.bytes_written) * 8;
    assert!(activates > 0);
    assert_eq!(energy.dram_activation_fj, activates * 909_000);
    assert_eq!(
        energy.total_fj,
        activates * 909_000 + bits * (1510 + 1170 + 800)
    );
    assert_eq!(
        energy.parts().iter().map(|p| p.1).sum::<u64>(),
        energy.total_fj
    );
    let watts = energy.total_fj as f64 * 1e-15 / (report.ns.parse::<f64>().unwrap() * 1e-9);
    assert!((energy.average_uw as f64 / 1e6 / watts - 1.0).abs() < 1e-6);

    // It changes no cycle, and nothing is printed without costs.
    let plain = launch(&Machine {
        energy: None,
        ..machine.clone()
    });
    assert_eq!(plain.cycles, report.cycles);
    assert!(plain.energy.is_none() && !serde_json::to_string(&plain).unwrap().contains("energy"));

    let coarse = launch(&Machine {
        memory: MemoryModel::Transfer,
        ..machine
    });
    assert_eq!(coarse.energy.unwrap().dram_activation_fj, 0);
    assert!(
        coarse.notes.iter().any(|n| n.starts_with("energy:")),
        "{:?}",
        coarse.notes
    );

    for (from, to) in [
        ("909.0", "-1"),
        ("909.0", "many"),
        ("offchip_dram", "onchip_dram"),
        ("transfer_pj_per_bit", "transfer"),
        ("0.80", "1e99"),
    ] {
        let error = imported(Ok(table.replace(from, to)), false).unwrap_err();
        assert!(error.starts_with("energy_cost_table_path: "), "{error}");
    }
    assert!(imported(Err("not found".into()), true).is_err());
    assert_eq!(
        imported(Err("not found".into()), false).unwrap().energy,
        None
    );
}

#[test]
fn every_part_has_its_cost() {
    let base = "clocks: {core_mhz: 1000}\ncores: {injection_ports: 16}\n\
                dram: {channels: 16, model: banked, device: HBM2_TPUv3}\n\
                l2: {model: datacache, sets: 64, ways: 16, write: through}\nclocks: {core_mhz: 940}\n";
    let base = base.replacen("clocks: {core_mhz: 1000}\n", "", 1);
    let costs = "energy: {activation_pj: 909, read_pj_per_bit: 1, write_pj_per_bit: 2, \
                 io_pj_per_bit: 0.5, phy_pj_per_bit: 0.25, refresh_pj: 50000, background_mw: 20, \
                 noc_pj_per_byte: 0.8, l2_pj_per_byte: 1.1, scratchpad_pj_per_byte: 0.3, \
                 array_pj_per_cell_cycle: 0.07, vector_pj_per_lane_cycle: 0.4, \
                 cross_lane_pj_per_cycle: 9}";
    let machine = Machine::from_yaml(&format!("{base}{costs}")).unwrap();
    let report = launch(&machine);
    let e = report.energy.unwrap();
    for (name, part) in e.parts() {
        assert!(part > 0 || name == "cross-lane units", "{name}");
    }
    let sent: u64 = report.cores.iter().map(|c| c.requests).sum();
    assert_eq!(e.noc_fj, sent * 32 * 800);
    assert_eq!(e.scratchpad_fj, sent * 32 * 300);
    assert_eq!(e.dram_read_fj, report.dram.bytes_read * 8 * 1000);
    // 16 channels of 20 mW.
    let ns: f64 = report.ns.parse().unwrap();
    assert!((e.dram_background_fj as f64 / (16.0 * 20_000.0 * ns) - 1.0).abs() < 1e-6);
    let active = |unit: &str| -> u64 {
        let of = |u: &&tilesim_core::report::UnitReport| u.unit.starts_with(unit);
        report.cores[0]
            .units
            .iter()
            .filter(of)
            .map(|u| u.active)
            .sum()
    };
    assert_eq!(e.array_fj, active("systolic") * 128 * 128 * 70);
    assert_eq!(e.vector_fj, active("vector") * 128 * 400);
    // Equal runs give equal bytes.
    let bytes = |r: &Report| serde_json::to_vec(r).unwrap();
    assert_eq!(bytes(&report), bytes(&launch(&machine)));
}
