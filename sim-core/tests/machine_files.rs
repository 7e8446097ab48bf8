//! Published texts, presets, and machine files in this project's own schema: good, bad and hostile.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]
use proptest::prelude::*;
use std::path::Path;
use std::time::{Duration, Instant};
use tilesim_core::machine::import::{ImportOptions, NoFiles};
use tilesim_core::machine::{
    ChannelMap, DispatchPolicy, Machine, MachineError, PRESETS, code, load, schema,
};

const SMALL: &str = "clocks: {core_mhz: 940}\ndram: {channels: 16, latency_cycles: 60}\n";

/// Compares a published text with what the schema says; `UPDATE_PUBLISHED=1` writes it.
fn published(path: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("UPDATE_PUBLISHED").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == text,
        "{} is stale: run with UPDATE_PUBLISHED=1",
        path.display()
    );
}

#[test]
fn published_schema() {
    let text = format!("{:#}\n", schema::json_schema());
    published("../docs/machine-schema.json", &text);
}

#[test]
fn published_reference() {
    let example = Machine::from_yaml(SMALL).unwrap();
    let text = schema::reference_yaml(&example).unwrap();
    published("machines/reference.yaml", &text);
    assert_eq!(Machine::from_yaml(&text).unwrap(), example);
}

#[test]
fn presets_load_and_reach_their_published_peaks() {
    let published = [
        ("embedded_8x8", 0.1024e12, 25.6e9),
        // At its boost clock; the published 989 TFLOP/s are at 1.83 GHz.
        ("h200", 1070e12, 4800e9),
        ("tpuv2", 46e12, 700e9),
        ("tpuv3", 123e12, 900e9),
        ("tpuv3_simple_dram", 61.5e12, 481e9),
        ("tpuv4", 275e12, 1200e9),
        ("tpuv6e", 918e12, 1638e9),
    ];
    assert_eq!(PRESETS.len(), published.len());
    for (preset, (name, flops, bandwidth)) in PRESETS.iter().zip(published) {
        let machine = Machine::preset(name).unwrap();
        assert_eq!((preset.name, machine.name.as_str()), (name, name));
        assert!(!preset.about().is_empty());
        let peaks = machine.peaks();
        assert!(
            (peaks.matmul_flops / flops - 1.0).abs() < 0.01,
            "{name}: {peaks}"
        );
        assert!(
            (peaks.dram_bytes_per_s / bandwidth - 1.0).abs() < 0.08,
            "{name}: {peaks}"
        );
        assert_eq!(
            Machine::from_yaml(&machine.to_yaml().unwrap()).unwrap(),
            machine
        );
    }
    let error = Machine::preset("tpu_v3").unwrap_err();
    assert_eq!(
        (error.code, error.hint.as_str()),
        (code::UNKNOWN_PRESET, "did you mean 'tpuv3'?")
    );
}

#[test]
fn peaks_are_printed() {
    let peaks = Machine::preset("tpuv3_simple_dram")
        .unwrap()
        .peaks()
        .to_string();
    assert_eq!(
        peaks,
        "systolic array     30.826 TFLOP/s\n\
         all arrays         61.652 TFLOP/s\n\
         vector units       0.963 TOP/s on 32 bits\n\
         dma                481.66 GB/s\n\
         noc to cores       481.66 GB/s\n\
         noc to memory      481.66 GB/s\n\
         dram               481.66 GB/s\n\
         scratchpads        16777216 bytes\n\
         dram size          not stated"
    );
}

#[test]
fn defaults() {
    let machine = Machine::from_yaml(SMALL).unwrap();
    assert_eq!(machine.clocks.noc_khz, 940_000);
    assert_eq!(machine.cores.partition, [0]);
    assert_eq!(machine.dram.channel_map, ChannelMap::Ipoly);
    assert_eq!(machine.dispatch, DispatchPolicy::RoundRobin);
    let json = r#"{"clocks": {"core_mhz": 940.0}, "dram": {"channels": 16, "latency_cycles": 60}}"#;
    assert_eq!(Machine::from_yaml(json).unwrap(), machine);
}

#[test]
fn digest_is_over_content() {
    let plain = Machine::from_yaml(SMALL).unwrap();
    let spelt = "# a comment\ndram: {latency_cycles: 60, channels: 16, request_bytes: 32}\n\
                 name: other\nclocks: {core_mhz: 940, noc_mhz: 940.000}\n\
                 cores: {count: 1, partition: [0], scratchpad_bytes: 0 KiB}";
    let spelt = Machine::from_yaml(spelt).unwrap();
    assert_eq!(plain.digest().unwrap(), spelt.digest().unwrap());
    let text = plain.digest().unwrap().to_string();
    assert_eq!(text.len(), 64);
    // Guards the canonical form: results in caches are keyed by this.
    assert_eq!(
        text,
        "9c17f5cb8b51a50906aaeb568f4a4f549e5df942c9d96f692487be72e228aed9"
    );
}

#[test]
fn overrides() {
    let machine = Machine::from_yaml(SMALL).unwrap();
    let more = machine
        .with_overrides(&[
            ("cores.partition", "[0, 1]"),
            ("cores.count", "2"),
            ("dram.bytes_per_cycle", "12.5"),
            ("cores.scratchpad_bytes", "16 MiB"),
            ("dispatch", "dynamic"),
            ("cores.array_split", "round_robin"),
        ])
        .unwrap();
    assert_eq!(more.cores.partition, [0, 1]);
    assert_eq!(more.cores.scratchpad_bytes, 16 << 20);
    assert_eq!(more.dispatch, DispatchPolicy::Dynamic);
    let less = more
        .with_overrides(&[
            ("dram.bytes_per_cycle", "null"),
            ("cores.partition.1", "0"),
            ("cores.array_split", "none"),
            ("dispatch", "round_robin"),
            ("cores.count", "1"),
            ("cores.partition", "null"),
            ("cores.scratchpad_bytes", "0"),
        ])
        .unwrap();
    assert_eq!(less, machine);

    let banked = machine
        .with_overrides(&[("dram.model", "banked"), ("dram.device", "DDR4")])
        .unwrap();
    assert_eq!(banked.dram.request_bytes, 64);
    assert_eq!(banked.clocks.dram_khz, 1_600_000);
    let deeper = banked
        .with_overrides(&[("dram.device.read_buffer_size", "64")])
        .unwrap();
    assert_ne!(deeper.digest().unwrap(), banked.digest().unwrap());
    assert_eq!(deeper.clocks, banked.clocks);
    let hbm = banked
        .with_overrides(&[("dram.device", "HBM2_TPUv3")])
        .unwrap();
    assert_eq!((hbm.dram.request_bytes, hbm.clocks.dram_khz), (32, 939_850));
    let back = hbm.with_overrides(&[
        ("dram.model", "simple"),
        ("dram.latency_cycles", "60"),
        ("clocks.dram_mhz", "940"),
    ]);
    assert_eq!(back.unwrap(), machine);

    let flit = machine
        .with_overrides(&[
            ("noc.model", "flit"),
            ("noc.topology", "{crossbar: {ports: 17}}"),
        ])
        .unwrap();
    let wide = flit.with_overrides(&[("noc.router.vcs", "8")]).unwrap();
    assert_ne!(flit.digest().unwrap(), wide.digest().unwrap());
    for machine in [&wide, &hbm] {
        let text = serde_json::to_string(machine).unwrap();
        assert_eq!(&serde_json::from_str::<Machine>(&text).unwrap(), machine);
    }
    assert_eq!(Machine::from_yaml(&wide.to_yaml().unwrap()).unwrap(), wide);
}

#[test]
fn bad_overrides() {
    let machine = Machine::from_yaml(SMALL).unwrap();
    for (path, value, code, at, hint) in [
        (
            "dram.chanels",
            "8",
            code::UNKNOWN_KEY,
            "dram.chanels",
            "did you mean 'dram.channels'?",
        ),
        (
            "channels",
            "8",
            code::UNKNOWN_KEY,
            "channels",
            "did you mean 'dram.channels'?",
        ),
        (
            "cores.channels",
            "8",
            code::UNKNOWN_KEY,
            "cores.channels",
            "did you mean 'dram.channels'?",
        ),
        (
            "",
            "8",
            code::UNKNOWN_KEY,
            "",
            "docs/machine-schema.json lists every key",
        ),
        (
            "dram",
            "{}",
            code::UNKNOWN_KEY,
            "dram",
            "it is a section: name a key in it",
        ),
        (
            "cores.partition.7",
            "0",
            code::UNKNOWN_KEY,
            "cores.partition.7",
            "cores.partition is not a map here, or has fewer elements",
        ),
        ("dram.channels", "[", code::SYNTAX, "dram.channels", ""),
        (
            "dram.channels",
            "&a 8",
            code::TOO_COMPLEX,
            "dram.channels",
            "one document, no anchors or aliases, at most 32 levels and 100000 nodes",
        ),
        (
            "dram.channels",
            "null",
            code::MISSING_KEY,
            "dram.channels",
            "DRAM channels; each has a NoC port, in channels",
        ),
        (
            "dram.device",
            "DDR4",
            code::KEY_NOT_APPLICABLE,
            "dram.device",
            "remove it, or set dram.model to 'banked'",
        ),
    ] {
        let error = machine.with_overrides(&[(path, value)]).unwrap_err();
        assert_eq!(
            (error.code, error.path.as_str(), error.hint.as_str()),
            (code, at, hint),
            "{path}={value}: {error}"
        );
    }
}

/// Every bad machine with its exact error: the table is `tests/bad_machines.txt`.
#[test]
fn bad_machines() {
    let mut out = String::new();
    for (index, text) in BAD.iter().enumerate() {
        let said = match load("bad", text, &NoFiles, ImportOptions::default()) {
            Ok(_) => "accepted".to_owned(),
            Err(MachineError {
                code,
                path,
                message,
                hint,
            }) => {
                assert!(
                    !message.ends_with('.') && !hint.ends_with('.'),
                    "{message} {hint}"
                );
                assert!(
                    !message.starts_with(char::is_uppercase) || message.starts_with("MHz"),
                    "{message}"
                );
                format!("{code} | {path} | {message} | {hint}")
            }
        };
        out.push_str(&format!(
            "--- {}\n{}\n=> {said}\n",
            index + 1,
            text.trim_end()
        ));
    }
    assert!(!out.contains("=> accepted"), "{out}");
    published("tests/bad_machines.txt", &out);
}

const BAD: &[&str] = &[
    "",
    "[1, 2]",
    "just a text",
    "clocks: {core_mhz: 940\n",
    "clocks: {core_mhz: 940}\nclocks: {core_mhz: 941}\ndram: {channels: 1, latency_cycles: 1}",
    "clocks: {core_mhz: 940}\n---\ndram: {channels: 1}",
    "{}",
    "colour: red",
    "clokcs: {core_mhz: 940}\ndram: {channels: 16, latency_cycles: 60}",
    "clocks: {core_mhz: 940}\ndram: {chanels: 16, latency_cycles: 60}",
    "clocks: {core_mhz: 940, injection_ports: 4}\ndram: {channels: 16, latency_cycles: 60}",
    "clocks: {core_mhz: 940}\ndram: 16",
    "dram: {channels: 16, latency_cycles: 60}",
    "clocks: {core_mhz: 940}\ndram: {latency_cycles: 60}",
    "clocks: {core_mhz: 940}\ndram: {channels: 16}",
    "clocks: {core_mhz: 0}\ndram: {channels: 16, latency_cycles: 60}",
    "clocks: {core_mhz: 1e9}\ndram: {channels: 16, latency_cycles: 60}",
    "clocks: {core_mhz: .nan}\ndram: {channels: 16, latency_cycles: 60}",
    "clocks: {core_mhz: 940.0001}\ndram: {channels: 16, latency_cycles: 60}",
    "clocks: {core_mhz: fast}\ndram: {channels: 16, latency_cycles: 60}",
    "clocks: {core_mhz: 940, periods: whole}\ndram: {channels: 16, latency_cycles: 60}",
    "clocks: {core_mhz: 940, periods: exakt}\ndram: {channels: 16, latency_cycles: 60}",
    "clocks: {core_mhz: 940}\ndram: {channels: 0, latency_cycles: 60}",
    "clocks: {core_mhz: 940}\ndram: {channels: 1025, latency_cycles: 60}",
    "clocks: {core_mhz: 940}\ndram: {channels: -1, latency_cycles: 60}",
    "clocks: {core_mhz: 940}\ndram: {channels: 1.5, latency_cycles: 60}",
    "clocks: {core_mhz: 940}\ndram: {channels: '16', latency_cycles: 60}",
    "clocks: {core_mhz: 940}\ndram: {channels: 99999999999999999999, latency_cycles: 60}",
    "clocks: {core_mhz: 940}\ndram: {channels: 16, latency_cycles: 60, request_bytes: 48}",
    "clocks: {core_mhz: 940}\ndram: {channels: 16, latency_cycles: 60, request_bytes: 0}",
    "clocks: {core_mhz: 940}\ndram: {channels: 16, latency_cycles: 60, bytes_per_cycle: 0}",
    "clocks: {core_mhz: 940}\ndram: {channels: 16, latency_cycles: 60, device: DDR4}",
    "clocks: {core_mhz: 940}\ndram: {channels: 16, model: simpel, latency_cycles: 60}",
    "clocks: {core_mhz: 940}\ndram: {channels: 16, model: banked}",
    "clocks: {core_mhz: 940}\ndram: {channels: 16, model: banked, device: DDR3}",
    "clocks: {core_mhz: 940}\ndram: {channels: 16, model: banked, device: {impl: GenericDDR}}",
    "clocks: {core_mhz: 940}\ndram: {channels: 16, model: banked, device: DDR4, request_bytes: 32}",
    "clocks: {core_mhz: 940, dram_mhz: 800}\ndram: {channels: 16, model: banked, device: DDR4}",
    "clocks: {core_mhz: 940}\nnoc: {model: flit}\ndram: {channels: 16, latency_cycles: 60}",
    "clocks: {core_mhz: 940}\nnoc: {model: flit, topology: {crossbar: {ports: 16}}}\ndram: {channels: 16, latency_cycles: 60}",
    "clocks: {core_mhz: 940}\nnoc: {model: flit, topology: {crosbar: {ports: 17}}}\ndram: {channels: 16, latency_cycles: 60}",
    "clocks: {core_mhz: 940}\nnoc: {model: flit, topology: {crossbar: {ports: 17}}, router: {vc: 4}}\ndram: {channels: 16, latency_cycles: 60}",
    "clocks: {core_mhz: 940}\nnoc: {model: flit, topology: {mesh: {k: 1000000, n: 1000}}}\ndram: {channels: 16, latency_cycles: 60}",
    "clocks: {core_mhz: 940}\nl2: {model: datacache}\ndram: {channels: 16, latency_cycles: 60}",
    "clocks: {core_mhz: 940}\ncores: {count: 0}\ndram: {channels: 16, latency_cycles: 60}",
    "clocks: {core_mhz: 940}\ncores: {count: 2, partition: [0]}\ndram: {channels: 16, latency_cycles: 60}",
    "clocks: {core_mhz: 940}\ncores: {count: 2, partition: [0, 2]}\ndram: {channels: 16, latency_cycles: 60}",
    "clocks: {core_mhz: 940}\ncores: {count: 2, partition: [0, x]}\ndram: {channels: 16, latency_cycles: 60}",
    "clocks: {core_mhz: 940}\ncores: {weight_slots: 0}\ndram: {channels: 16, latency_cycles: 60}",
    "clocks: {core_mhz: 940}\ncores: {scratchpad_bytes: 16}\ndram: {channels: 16, latency_cycles: 60}",
    "clocks: {core_mhz: 940}\ncores: {scratchpad_bytes: 16 MB}\ndram: {channels: 16, latency_cycles: 60}",
    "clocks: {core_mhz: 940}\ncores: {scratchpad_bytes: 2 TiB}\ndram: {channels: 16, latency_cycles: 60}",
    "clocks: {core_mhz: 940}\ncores: {array_unit: Msa}\ndram: {channels: 16, latency_cycles: 60}",
    "clocks: {core_mhz: 940}\ncores: {array_split: round_robin, array_unit: ''}\ndram: {channels: 16, latency_cycles: 60}",
    "clocks: {core_mhz: 940}\ncores: {registers: 5}\ndram: {channels: 16, latency_cycles: 60}",
    "clocks: {core_mhz: 940}\ncores: {count: 4096, injection_ports: 17}\ndram: {channels: 16, latency_cycles: 60}",
    "clocks: {core_mhz: 940}\ncores: {count: 4096, injection_ports: 16}\ndram: {channels: 128, latency_cycles: 60}",
    "clocks: {core_mhz: 940}\ncores: {count: 4096, systolic_arrays: 256, weight_slots: 2}\ndram: {channels: 16, latency_cycles: 60}",
    "clocks: {core_mhz: 940}\ncores: {count: 4096, max_residents: 17}\ndram: {channels: 16, latency_cycles: 60}",
    "clocks: {core_mhz: 940}\nname: \"a\\nb\"\ndram: {channels: 16, latency_cycles: 60}",
    "version: 2\nclocks: {core_mhz: 940}\ndram: {channels: 16, latency_cycles: 60}",
    "num_cores: 1\ncore_freq_mhz: 940\nsa_weight_buffer_depth: 0",
    "num_cores: 1",
    "num_cores: one\ncore_freq_mhz: 940",
    "num_cores: 1\ncore_freq_mhz: 940\nsystolic_array_unit: Msa",
    "num_cores: 1\ncore_freq_mhz: 940\nsystolic_array_split: both",
    "num_cores: 2\ncore_freq_mhz: 940\ncore_type: [ws_mesh]",
    "num_cores: 2\ncore_freq_mhz: 940\nnum_partition: 1\npartition: {core_0: 0, core_1: 1}",
    "num_cores: 1\ncore_freq_mhz: 940\ndram_type: simple\ndram_channels: 1\ndram_latency: 1\ndram_bandwidth_gbps_total: 1",
    "num_cores: 1\ncore_freq_mhz: 940\ndram_type: simple\ndram_channels: 1\ndram_latency: 1\ndram_bandwidth_gbps_total: 1\ndram_bandwidth_gbps_per_channel: 1\ndram_freq_mhz: 1",
    "num_cores: 1\ncore_freq_mhz: 940\ndram_type: ramulator2\ndram_channels: 1\nramulator_config_path: x.yaml",
    "num_cores: 1\ncore_freq_mhz: 940\ndram_type: simple\ndram_channels: 6\ndram_latency: 1\ndram_num_partitions: 4",
    "num_cores: 0\ncore_freq_mhz: 940\ndram_type: simple\ndram_channels: 6\ndram_latency: 1\nicnt_type: simple\nicnt_latency_cycles: 1\nicnt_freq_mhz: 1",
];

#[test]
fn hostile_texts_end_soon() {
    let deep_flow = "[".repeat(200_000);
    let deep_block: String = (0..1000)
        .map(|n| format!("{}a:\n", " ".repeat(n)))
        .collect();
    let bomb = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n\
                d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: [*d,*d,*d,*d,*d,*d,*d,*d,*d]\n";
    let merge =
        "base: &b {core_mhz: 940}\nclocks: {<<: *b}\ndram: {channels: 1, latency_cycles: 1}\n";
    let many = format!("cores: {{partition: [{}]}}", "0,".repeat(300_000));
    let wide: String = (0..60_000).map(|n| format!("k{n}: 1\n")).collect();
    let long_key = format!("{}: 1", "k".repeat(900_000));
    let long_value = format!("name: {}", "x".repeat(900_000));
    let huge = " ".repeat((1 << 20) + 1);
    let quotes = "\"".repeat(500_000);
    let digits = format!("version: {}", "9".repeat(900_000));
    let exponent = "clocks: {core_mhz: 1e999999999}";
    let tags = "!!python/object:os.system {a: b}";
    let dashes = "- ".repeat(300_000);
    for text in [
        deep_flow.as_str(),
        &deep_block,
        bomb,
        merge,
        &many,
        &wide,
        &long_key,
        &long_value,
        &huge,
        &quotes,
        &digits,
        exponent,
        tags,
        &dashes,
        "\0",
        "\u{feff}",
        "%YAML 9.9\n---\na: 1",
    ] {
        let start = Instant::now();
        let shown: String = text.chars().take(40).collect();
        let error = load("hostile", text, &NoFiles, ImportOptions::default())
            .map(|_| ())
            .unwrap_err();
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "{shown}: {:?}",
            start.elapsed()
        );
        assert!(error.to_string().len() < 1000, "{shown}");
        println!("{shown:?} -> {error} in {:?}", start.elapsed());
    }
}

prop_compose! {
    fn machine_text()(
        core in 1_000u64..100_000_000, noc in 1_000u64..100_000_000, dram in 1_000u64..100_000_000,
        count in 1u32..64, arrays in 1u32..256, slots in 1u32..64, rows in 1u32..65_536,
        spad in prop_oneof![Just(0u64), 4096u64..1 << 40], split in any::<bool>(),
        residency in 0usize..3, residents in 1u32..1024, ports in 1u32..64,
        channels in 1u32..1024, request in 2u32..13, cap in proptest::option::of(1e-6f64..65_536.0),
        words in (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()),
        latency in 0u32..1_000_000, partitions in any::<bool>(),
    ) -> String {
        let mhz = |khz: u64| format!("{}.{:03}", khz / 1000, khz % 1000);
        let pick = |flag: bool, a: &'static str, b: &'static str| if flag { a } else { b };
        let mut text = format!(
            "name: 'm {latency}'\nclocks: {{core_mhz: {}, noc_mhz: {}, dram_mhz: {}, periods: {}}}\n",
            mhz(core), mhz(noc), mhz(dram), pick(words.0, "exact", "whole_picoseconds"));
        text += &format!(
            "cores: {{count: {count}, systolic_arrays: {arrays}, weight_slots: {slots}, \
             array_rows: {rows}, array_cols: {}, scratchpad_bytes: {spad}, injection_ports: {ports}, \
             max_residents: {residents}, residency: {}, compute_issue: {}",
            65_537 - rows, ["shared", "safe", "resources"][residency],
            pick(words.1, "serial", "per_unit"));
        if residency == 2 { text += &format!(", registers: {spad}, threads: {rows}"); }
        if split { text += ", array_split: round_robin, array_unit: Msa"; }
        if partitions {
            let list: Vec<_> = (0..count).map(|core| (core % 3).to_string()).collect();
            text += &format!(", partition: [{}]", list.join(", "));
        }
        text += &format!(
            "}}\nnoc: {{latency_cycles: {latency}}}\ndispatch: {}\n\
             dram: {{channels: {channels}, request_bytes: {}, latency_cycles: {latency}, channel_map: {}",
            pick(words.2, "dynamic", "round_robin"), 1u32 << request,
            pick(words.3, "interleave", "ipoly"));
        if let Some(cap) = cap { text += &format!(", bytes_per_cycle: {cap:?}"); }
        text + "}\n"
    }
}

proptest! {
    #[test]
    fn round_trip(text in machine_text()) {
        let machine = Machine::from_yaml(&text);
        prop_assume!(!matches!(&machine, Err(error) if error.code == code::LIMIT));
        let machine = machine.unwrap();
        let yaml = machine.to_yaml().unwrap();
        let again = Machine::from_yaml(&yaml).unwrap();
        prop_assert_eq!(&again, &machine);
        prop_assert_eq!(again.to_yaml().unwrap(), yaml);
        prop_assert_eq!(again.digest().unwrap(), machine.digest().unwrap());
        machine.check().unwrap();
        let json = machine.to_value().unwrap().to_string();
        prop_assert_eq!(&Machine::from_yaml(&json).unwrap(), &machine);
        let serde: Machine = serde_json::from_str(&serde_json::to_string(&machine).unwrap()).unwrap();
        prop_assert_eq!(&serde, &machine);
    }

    #[test]
    fn overrides_say_what_they_change(text in machine_text(), channels in 1u32..64, name in "[a-z]{0,8}") {
        let machine = Machine::from_yaml(&text);
        prop_assume!(machine.is_ok());
        let machine = machine.unwrap();
        let none: &[(&str, &str)] = &[];
        prop_assert_eq!(&machine.with_overrides(none).unwrap(), &machine);
        let count = channels.to_string();
        let other = machine.with_overrides(&[("dram.channels", &count)]).unwrap();
        prop_assert_eq!(other.dram.channels, channels);
        prop_assert_eq!(
            other.digest().unwrap() == machine.digest().unwrap(),
            channels == machine.dram.channels
        );
        let back = machine.dram.channels.to_string();
        prop_assert_eq!(&other.with_overrides(&[("dram.channels", &back)]).unwrap(), &machine);
        // The name is no part of the identity.
        let renamed = machine.with_overrides(&[("name", format!("'{name}'"))]).unwrap();
        prop_assert_eq!(renamed.digest().unwrap(), machine.digest().unwrap());
    }

    #[test]
    fn any_text_is_answered(text in "(?s).{0,200}") {
        let _ = load("any", &text, &NoFiles, ImportOptions::default());
        let _ = Machine::preset("tpuv3").unwrap().with_overrides(&[(&text, &text)]);
        let _ = Machine::from_yaml(&format!("clocks: {{core_mhz: {text}}}"));
    }
}
