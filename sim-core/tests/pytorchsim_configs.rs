//! What becomes of every machine file of PyTorchSim.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]
use std::path::{Path, PathBuf};
use tilesim_core::machine::import::booksim::NetworkFile;
use tilesim_core::machine::import::ramulator::DeviceFile;
use tilesim_core::machine::import::{ImportOptions, Verdict};
use tilesim_core::machine::{
    BankedDevice, DramModel, Loaded, Machine, MachineError, NocSpec, Origin, load,
};

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

/// A line per file and way of importing: what became of it.
fn verdicts() -> String {
    let mut names: Vec<String> = std::fs::read_dir(configs())
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
        .filter(|name| name.ends_with(".yml"))
        .collect();
    names.sort();
    let mut out = String::new();
    for name in &names {
        for as_configured in [false, true] {
            let how = if as_configured {
                "as configured"
            } else {
                "as the reference"
            };
            let said = match load_file(name, as_configured) {
                Ok(loaded) => {
                    let machine = &loaded.machine;
                    assert_eq!(machine.clocks.truncate_to_ps, !as_configured);
                    assert_eq!(
                        Machine::from_yaml(&machine.to_yaml().unwrap()).unwrap(),
                        *machine
                    );
                    let dram = match &machine.dram.model {
                        DramModel::Simple {
                            latency,
                            bytes_per_cycle,
                        } => {
                            format!("simple {latency} {bytes_per_cycle:?}")
                        }
                        DramModel::Banked { device } => format!("banked {}", device.spec().name),
                    };
                    let noc = match &machine.noc {
                        NocSpec::Simple { latency } => format!("simple {latency}"),
                        NocSpec::Flit { network } => format!("flit {} nodes", network.nodes()),
                    };
                    format!(
                        "ok: {} cores in {:?} at {} kHz, {} arrays, {} slots, scratchpad {}, {} ports; noc {noc} at {} kHz; \
                         {} channels at {} kHz, {} B, {dram}",
                        machine.cores.count,
                        machine.cores.partition,
                        machine.clocks.core_khz,
                        machine.cores.systolic_arrays,
                        machine.cores.weight_slots,
                        machine.cores.scratchpad_bytes,
                        machine.cores.injection_ports,
                        machine.clocks.noc_khz,
                        machine.dram.channels,
                        machine.clocks.dram_khz,
                        machine.dram.request_bytes,
                    )
                }
                Err(error) => format!("refused: {} | {error}", error.code),
            };
            out.push_str(&format!("{name}, {how}\n    {said}\n"));
        }
    }
    out
}

#[test]
fn every_file_loads_or_is_refused_for_a_reason() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pytorchsim_verdicts.txt");
    let found = verdicts();
    if std::env::var_os("UPDATE_PUBLISHED").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == expected, "verdicts differ:\n{found}");
}

#[test]
fn every_key_is_reported_once() {
    for name in [
        "systolic_ws_256x256_c1_simple_noc_tpuv6e.yml",
        "tpuv3_simple_dram_clocks.yml",
    ] {
        let loaded = load_file(name, false).unwrap();
        let text = read(&configs().join(name)).unwrap();
        let keys: Vec<&str> = text
            .lines()
            .filter(|line| !line.starts_with([' ', '#', '-']))
            .filter_map(|line| line.split_once(':').map(|(key, _)| key))
            .collect();
        let reported: Vec<&str> = loaded.report.iter().map(|row| row.key.as_str()).collect();
        assert_eq!(reported[..keys.len()], keys[..], "{name}");
        let mut all = reported.clone();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), reported.len(), "{name}: {reported:?}");
    }
    let loaded = load_file("systolic_ws_256x256_c1_simple_noc_tpuv6e.yml", false).unwrap();
    let lines: Vec<String> = loaded.report.iter().map(ToString::to_string).collect();
    for expected in [
        "core_freq_mhz: 3502 used as clocks.core_mhz; its period is cut to 285 ps, as PyTorchSim does",
        "l2d_type: datacache not applicable because PyTorchSim never uses the L2 on traces",
        "sa_weight_buffer_depth: absent used as cores.weight_slots: 2, the default",
        "dram_freq_mhz: absent used as clocks.dram_mhz; its period is cut to 312 ps, as PyTorchSim does: 3205, from the device file",
    ] {
        assert!(lines.iter().any(|line| line == expected), "{lines:#?}");
    }
}

#[test]
fn the_preset_is_the_imported_file() {
    let loaded = load_file("tpuv3_simple_dram.yml", false).unwrap();
    let preset = Machine::preset("tpuv3_simple_dram").unwrap();
    assert_eq!(loaded.machine, preset);
    let exact = load_file("tpuv3_simple_dram.yml", true).unwrap().machine;
    assert_ne!(exact.digest().unwrap(), preset.digest().unwrap());
    assert_eq!(
        exact.dram.model,
        DramModel::Simple {
            latency: 60,
            bytes_per_cycle: Some(30.08 * 1000.0 / 940.0)
        }
    );
}

/// A line per device and network file: its facts, or why it is refused.
#[test]
fn every_named_file_is_read_or_refused_for_a_reason() {
    let folder = configs();
    let resolver = |path: &str| read(&folder.join(path));
    let mut out = String::new();
    for inner in ["ramulator2_configs", "booksim2_configs", "energy_tables"] {
        let mut names: Vec<String> = std::fs::read_dir(folder.join(inner))
            .unwrap()
            .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
            .collect();
        names.sort();
        for name in names {
            let path = format!("{inner}/{name}");
            let text = resolver(&path).unwrap();
            let said = match inner {
                "ramulator2_configs" => match DeviceFile::parse(&path, &text) {
                    Ok(device) => {
                        // The facts and the model's view of the device must agree.
                        let model = BankedDevice::from_tree(&device.tree).unwrap();
                        assert_eq!(u64::from(model.spec().tx_bytes()), device.request_bytes);
                        assert_eq!(model.spec().tck_ps(), device.tck_ps);
                        assert_eq!(model.clock_mhz(), device.clock_mhz);
                        assert_eq!(
                            u64::from(model.spec().pseudo_channels()),
                            device.pseudo_channels
                        );
                        format!(
                            "{}, {} ps, {} MHz, {} B a request, {} x {} bits, {} GB/s, {} banks, 2^{} B",
                            device.device,
                            device.tck_ps,
                            device.clock_mhz,
                            device.request_bytes,
                            device.pseudo_channels,
                            device.width_bits,
                            device.peak_gbps,
                            model.spec().banks(),
                            model.spec().capacity().ilog2(),
                        )
                    }
                    Err(error) => format!("refused: {} | {error}", error.code),
                },
                "booksim2_configs" if name.ends_with(".icnt") => {
                    match NetworkFile::parse(&path, &text, &resolver) {
                        Ok(network) => format!(
                            "{} of {} nodes, {} B a flit, links {:?}",
                            network.topology(),
                            network.nodes,
                            network.params.flit_bytes,
                            network.links_path
                        ),
                        Err(error) => format!("refused: {} | {error}", error.code),
                    }
                }
                _ => match load(&name, &text, &resolver, ImportOptions::default()) {
                    Ok(_) => "a machine?".to_owned(),
                    Err(error) => format!("no machine file: {} | {error}", error.code),
                },
            };
            out.push_str(&format!("{path}\n    {said}\n"));
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pytorchsim_named_files.txt");
    if std::env::var_os("UPDATE_PUBLISHED").is_some() {
        std::fs::write(&path, &out).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(out == expected, "differs:\n{out}");
}

#[test]
fn hostile_devices_are_refused() {
    let folder = configs();
    let text = read(&folder.join("ramulator2_configs/DDR4.yaml")).unwrap();
    for (from, to) in [
        (
            "[1, 1, 4, 4, 65536, 1024]",
            "[1, 16777216, 16777216, 16777216, 16777216, 16777216]",
        ),
        (
            "[1, 1, 4, 4, 65536, 1024]",
            "[1, 1, 4, 4, 16777216, 16777216]",
        ),
        ("[1, 1, 4, 4, 65536, 1024]", "[]"),
        ("[1, 1, 4, 4, 65536, 1024]", "[1, 1, 4, 4, -1, 1024]"),
        ("\"channel_width\": 64", "\"channel_width\": 0"),
        ("\"channel_width\": 64", "\"channel_width\": 65536"),
        ("625]", "0]"),
        ("625]", "1000000000]"),
        ("[3200, 4,", "[3200, 0,"),
        ("\"read_latency\": 26", "\"read_latency\": 99999999999"),
        ("[[0, [3, 5], [3, 5], 4]", "[[9, [3, 5], [3, 5], 4]"),
        ("[[0, [3, 5], [3, 5], 4]", "[[0, [3, 99], [3, 5], 4]"),
    ] {
        assert!(text.contains(from), "{from}");
        let text = text.replace(from, to);
        let resolver = |_: &str| Ok(text.clone());
        let machine = "num_cores: 1\ncore_freq_mhz: 800\ndram_type: ramulator2\ndram_channels: 1\n\
                       ramulator_config_path: x\nicnt_type: simple\nicnt_latency_cycles: 1\nicnt_freq_mhz: 800";
        let imported = load("m", machine, &resolver, ImportOptions::default());
        let error = imported.map(|_| ()).unwrap_err();
        assert!(
            ["machine.file", "machine.device", "machine.out_of_range"].contains(&error.code),
            "{to}: {} {error}",
            error.code
        );
        let tree: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(
            BankedDevice::from_tree(&tree).is_err()
                || to == "\"channel_width\": 65536"
                || to.contains("[3200, 0"),
            "{to}"
        );
    }
}
