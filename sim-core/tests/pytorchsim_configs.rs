//! What becomes of every machine file of PyTorchSim.

use std::path::{Path, PathBuf};
use tilesim_core::machine::import::{ImportOptions, Verdict};
use tilesim_core::machine::{DramModel, Loaded, MachineError, NocSpec, Origin, load};

fn configs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/pytorchsim/configs")
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|_| "not found".to_owned())
}

fn load_file(name: &str, as_configured: bool) -> Result<Loaded, MachineError> {
    let folder = configs();
    let text = read(&folder.join(name)).unwrap();
    let resolver = |path: &str| read(&folder.join(path));
    load(
        name.trim_end_matches(".yml"),
        &text,
        &resolver,
        ImportOptions { as_configured },
    )
}

#[test]
fn simple_dram_is_what_the_file_says() {
    let loaded = load_file("tpuv3_simple_dram.yml", false).unwrap();
    assert_eq!(loaded.origin, Origin::PyTorchSim);
    let machine = loaded.machine;
    assert_eq!(machine.name, "tpuv3_simple_dram");
    assert_eq!(machine.clocks.core_khz, 940_000);
    assert!(machine.clocks.truncate_to_ps);
    assert_eq!(machine.cores.count, 1);
    assert_eq!(machine.cores.systolic_arrays, 2);
    assert_eq!(machine.cores.weight_slots, 2);
    assert_eq!(machine.cores.scratchpad_bytes, 16 << 20);
    assert_eq!(machine.cores.injection_ports, 16);
    assert_eq!(machine.noc, NocSpec::Simple { latency: 10 });
    assert_eq!(machine.dram.channels, 16);
    assert_eq!(machine.dram.request_bytes, 32);
    let expected = f64::from(30.08_f32) * 1000.0 / 940.0;
    assert_eq!(
        machine.dram.model,
        DramModel::Simple {
            latency: 60,
            bytes_per_cycle: Some(expected)
        }
    );
    let verdict = |key: &str| {
        loaded
            .report
            .iter()
            .find(|row| row.key == key)
            .map(|row| row.verdict.clone())
            .unwrap()
    };
    assert_eq!(verdict("num_cores"), Verdict::UsedAs("cores.count".into()));
    assert!(matches!(verdict("core_spad_size_kb"), Verdict::MappedTo(_)));
    assert!(matches!(
        verdict("codegen_mapping_strategy"),
        Verdict::NotApplicable(_)
    ));
}
