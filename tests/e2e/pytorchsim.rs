//! What PyTorchSim's users have: kernel folders, machine files, logs, unit tables, shared objects.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    daemon::{program, repository, sample},
    schemas::check,
};

fn tilesim(arguments: &[&str]) -> Output {
    Command::new(program("tilesim"))
        .args(arguments)
        .output()
        .unwrap()
}

fn run(code: i32, arguments: &[&str]) -> String {
    let output = tilesim(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    let out = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        output.status.code(),
        Some(code),
        "{arguments:?}: {errors}\n{out}"
    );
    if code == 0 { out } else { errors.into_owned() }
}

/// The output of a verb, held against its schema.
fn json(arguments: &[&str]) -> Value {
    let value = serde_json::from_str(&run(0, arguments)).unwrap();
    let verb = match arguments {
        ["machine", "import", ..] => "machine-import",
        [verb, ..] => verb,
        [] => "",
    };
    check(&format!("{verb}-output"), &value);
    value
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn golden(path: &str) -> PathBuf {
    repository("tests/golden").join(path)
}

/// A kernel folder with a golden producer.
fn kernel(producer: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(
        golden("producers").join(producer),
        folder.path().join("trace.cpp"),
    )
    .unwrap();
    fs::write(
        folder.path().join("trace_cycles.tsv"),
        "# cycles\toverlap\n64\t0\n128\t0\n128\t0\n",
    )
    .unwrap();
    fs::write(
        folder.path().join("trace_tensor_shapes.txt"),
        "256 256 4\n256 256 4\n256 256 4\n",
    )
    .unwrap();
    folder
}

#[test]
fn a_folder_is_imported_and_runs_as_it_is() {
    let folder = kernel("gemm_256.hand.cpp");
    let out = folder.path().join("k.tile");
    let report = run(
        0,
        &[
            "import",
            "pytorchsim",
            text(folder.path()),
            "-o",
            text(&out),
        ],
    );
    for part in [
        "trace ABI 15 (inferred)",
        "cycles from the table",
        "p1 has shape argument 1",
    ] {
        assert!(report.contains(part), "{part} in {report}");
    }
    let machine = ["--machine", "tpuv3_simple_dram", "--json", "--grid", "2,2"];
    let simulate = |trace: &Path| json(&[&["simulate", text(trace)], machine.as_slice()].concat());
    let (folder_run, file_run) = (simulate(folder.path()), simulate(&out));
    assert_eq!(folder_run["cycles"], file_run["cycles"]);
    assert_eq!(folder_run["identity"], file_run["identity"]);
    assert_eq!(folder_run["work_items"], 4);
    assert_eq!(folder_run["out_of_bounds_transfers"], 0);
    // The binary container says the same; strict bounds are another trace.
    let binary = folder.path().join("k.tilec");
    run(
        0,
        &[
            "import",
            "pytorchsim",
            text(folder.path()),
            "-o",
            text(&binary),
        ],
    );
    assert_eq!(simulate(&binary)["identity"], file_run["identity"]);
    let strict = json(&[
        "import",
        "pytorchsim",
        text(folder.path()),
        "--bounds",
        "strict",
        "--json",
    ]);
    assert_ne!(strict["digest"], file_run["identity"]["trace"]);
    // The shape of the folder is the default; without one it has to be given.
    let wanted = [
        "simulate",
        text(folder.path()),
        "--machine",
        "tpuv3_simple_dram",
    ];
    assert!(run(3, &wanted).contains("--grid"));
    fs::write(folder.path().join("trace_shape.txt"), "2 2\n").unwrap();
    assert!(run(0, &wanted).contains("4 work-items"));
    run(0, &["trace", "check", text(folder.path())]);
    run(
        0,
        &[
            "trace",
            "show",
            text(folder.path()),
            "--grid",
            "2,2",
            "--work-item",
            "1,0",
        ],
    );
}

#[test]
fn machine_files_say_what_became_of_each_key() {
    let configs = golden("pytorchsim/configs");
    let file = configs.join("systolic_ws_256x256_c1_simple_noc_tpuv6e.yml");
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("v6e.yaml");
    let lines = run(0, &["machine", "import", text(&file), "-o", text(&out)]);
    for part in [
        "used as cores.count",
        "not applicable because",
        "first NUMA partition",
    ] {
        assert!(lines.contains(part), "{part} in {lines}");
    }
    let shown = run(0, &["machine", "show", text(&out)]);
    let direct = run(0, &["machine", "show", text(&file)]);
    assert_eq!(shown.lines().next(), direct.lines().next());
    // `../configs/x` resolves against the file, wherever its folder was copied to.
    let copy = folder.path().join("elsewhere");
    fs::create_dir_all(copy.join("ramulator2_configs")).unwrap();
    let name = "ramulator2_configs/HBM3_TPUv6e.yaml";
    fs::copy(configs.join(name), copy.join(name)).unwrap();
    fs::copy(&file, copy.join("m.yml")).unwrap();
    run(0, &["machine", "import", text(&copy.join("m.yml"))]);
    // Every file is taken or refused for a reason.
    for entry in fs::read_dir(&configs).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "yml") {
            for flag in [None, Some("--as-configured")] {
                let mut arguments = vec!["machine", "import", text(&path)];
                arguments.extend(flag);
                let output = tilesim(&arguments);
                let errors = String::from_utf8_lossy(&output.stderr);
                match output.status.code() {
                    Some(0) => {}
                    Some(3) => assert!(errors.contains("error["), "{errors}"),
                    code => panic!("{path:?}: {code:?} {errors}"),
                }
            }
        }
    }
    // A file that names one outside is refused.
    let evil = copy.join("evil.yml");
    let yml = fs::read_to_string(&file).unwrap();
    for outside in [
        "/etc/hostname",
        "../../../../../etc/hostname",
        "../elsewhere/../../x",
    ] {
        let line = format!("ramulator_config_path: {outside}");
        let changed: Vec<&str> = yml
            .lines()
            .map(|l| {
                if l.starts_with("ramulator_config_path") {
                    line.as_str()
                } else {
                    l
                }
            })
            .collect();
        fs::write(&evil, changed.join("\n")).unwrap();
        run(3, &["machine", "import", text(&evil)]);
    }
}

/// The figures of a comparison, by core and name.
fn compare(machine: &str, log: &str) -> Vec<(String, Value)> {
    let compared = json(&[
        "compare",
        "pytorchsim",
        text(&sample("gemm512_core_serial.json")),
        "--machine",
        text(&golden("pytorchsim/configs").join(machine)),
        "--grid",
        "1,1",
        "--log",
        text(&golden("togsim").join(log)),
        "--json",
    ]);
    compared["figures"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| (f["figure"].as_str().unwrap().to_owned(), f.clone()))
        .collect()
}

#[test]
fn our_figures_beside_those_of_a_log() {
    for (machine, log, total, banked) in [
        ("tpuv3_simple_dram.yml", "sample.log", 9806, false),
        (
            "systolic_ws_128x128_c1_simple_noc_tpuv3.yml",
            "sample_banked.log",
            10111,
            true,
        ),
    ] {
        let figures = compare(machine, log);
        let named = |name: &str| &figures.iter().find(|f| f.0 == name).unwrap().1;
        for (name, value) in [
            ("total cycles", total),
            ("dma active cycles", 6144),
            ("systolic[0] active cycles", 3280),
            ("systolic[1] active cycles", 3280),
            ("DRAM requests", 98_304),
        ] {
            assert_eq!(named(name)["ours"], value, "{name}");
            assert_eq!(named(name)["difference"], 0.0, "{name}");
        }
        let vector = named("vector active cycles");
        assert_eq!(
            (&vector["ours"], &vector["reference"]),
            (&327.into(), &340.into())
        );
        assert!(vector["note"].as_str().unwrap().contains("13 tiles"));
        // Whatever differs is how the reference counts.
        for (name, figure) in &figures {
            assert!(
                figure["difference"] == 0.0 || figure["note"].is_string(),
                "{name}: {figure}"
            );
        }
        if banked {
            assert_eq!(named("DRAM reads")["reference"], 65_536);
            assert_eq!(named("DRAM reads")["difference"], 0.0);
            assert_eq!(named("DRAM writes")["difference"], 0.0);
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("x.log");
    fs::write(&log, "nothing\n").unwrap();
    let sample = sample("gemm512_core_serial.json");
    let no_log = [
        "compare",
        "pytorchsim",
        text(&sample),
        "--machine",
        "tpuv3_simple_dram",
        "--grid",
        "1,1",
        "--log",
        text(&log),
    ];
    assert!(run(3, &no_log).contains("Total execution cycles"));
}

/// The work-item of the reference's own tests with these tables, and the v6e machine with `keys`.
fn core_serial(folder: &Path, cycles: &str, units: &str, keys: &str) -> Output {
    let tables = golden("pytorchsim/core_serial");
    for file in [cycles, units] {
        fs::copy(tables.join(file), folder.join(file)).unwrap();
    }
    let mut program: Value =
        serde_json::from_str(&fs::read_to_string(sample("gemm512_core_serial.json")).unwrap())
            .unwrap();
    program["cycle_table"] = cycles.into();
    program["unit_table"] = units.into();
    let trace = folder.join("work_item.json");
    fs::write(&trace, program.to_string()).unwrap();
    let configs = golden("pytorchsim/configs");
    let name = "systolic_ws_256x256_c1_simple_noc_tpuv6e.yml";
    let yml = fs::read_to_string(configs.join(name)).unwrap();
    let mut lines: Vec<&str> = yml.lines().collect();
    for key in keys.lines() {
        let start = key.split(':').next().unwrap();
        lines.retain(|l| !l.starts_with(start));
        lines.push(key);
    }
    fs::create_dir_all(folder.join("ramulator2_configs")).unwrap();
    let device = "ramulator2_configs/HBM3_TPUv6e.yaml";
    fs::copy(configs.join(device), folder.join(device)).unwrap();
    let machine = folder.join("machine.yml");
    fs::write(&machine, lines.join("\n")).unwrap();
    tilesim(&[
        "simulate",
        text(&trace),
        "--machine",
        text(&machine),
        "--grid",
        "1,1",
        "--json",
    ])
}

const SPLIT: &str = "systolic_array_split: round_robin";

#[test]
fn one_matmul_on_several_arrays() {
    for (cycles, units, duration) in [
        ("cycles.tsv", "units.tsv", 1077),
        ("cycles.tsv", "units_one_subtile.tsv", 1589),
        ("cycles.tsv", "units_vpu700.tsv", 1265),
        ("cycles_cc1100.tsv", "units.tsv", 588),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let output = core_serial(folder.path(), cycles, units, SPLIT);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let matmul = &report["tiles"][5];
        assert_eq!(matmul["cycles"], duration, "{cycles} {units}");
        assert_eq!(matmul["runs"], 4);
        let admitted = report["cores"][0]["admitted"].as_array().unwrap();
        let array = admitted.iter().find(|u| u["unit"] == "Systolic").unwrap();
        assert_eq!(array["instances"], 2);
        let number = |v: &Value| v.as_u64().unwrap();
        let total = number(&report["cycles"]);
        for unit in admitted {
            let all = number(&unit["instances"]) * total;
            assert_eq!(
                number(&unit["active"]) + number(&unit["idle"]),
                all,
                "{unit}"
            );
        }
    }
    // Without split the tile keeps its cycles.
    let folder = tempfile::tempdir().unwrap();
    let output = core_serial(folder.path(), "cycles.tsv", "units.tsv", "");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["tiles"][5]["cycles"], 1589);
}

#[test]
fn what_cannot_be_split_is_refused() {
    for (cycles, units, keys, part) in [
        (
            "cycles.tsv",
            "units_no_array.tsv",
            SPLIT.to_owned(),
            "array unit",
        ),
        (
            "cycles.tsv",
            "units.tsv",
            "systolic_array_unit: Systolic".to_owned(),
            "systolic_array_unit",
        ),
        (
            "cycles_cc230.tsv",
            "units_one_subtile.tsv",
            format!("{SPLIT}\nnum_systolic_array_per_core: 4"),
            "Systolic",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let output = core_serial(folder.path(), cycles, units, &keys);
        let told = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(3), "{units}: {told}");
        assert!(told.contains(part), "{part} in {told}");
    }
}

#[test]
fn a_unit_over_its_capacity_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("t.tile");
    let program = serde_json::json!({
        "name": "x", "axes": 1, "grids": [[1]], "tensors": [], "spad_buffer_bytes": [0],
        "cycle_table": [[10, 0]], "unit_table": "u.tsv",
        "body": [{"op": "compute", "tile": 0, "ct": 0, "reads": [], "writes": [0]}]
    });
    let trace = trace.with_extension("json");
    fs::write(&trace, program.to_string()).unwrap();
    let simulate = [
        "simulate",
        text(&trace),
        "--machine",
        "tpuv3_simple_dram",
        "--grid",
        "1",
    ];
    fs::write(folder.path().join("u.tsv"), "0\tVpu\telements\t8\t80\n").unwrap();
    assert!(run(0, &simulate).contains("Vpu"));
    fs::write(folder.path().join("u.tsv"), "0\tVpu\telements\t8\t8000\n").unwrap();
    let told = run(3, &simulate);
    assert!(
        told.contains("launch.unit_over_capacity") && told.contains("Vpu"),
        "{told}"
    );
}

/// A producer of ours as a shared object.
fn shared_object(producer: &str, abi: u32, folder: &Path) -> PathBuf {
    let object = folder.join("trace.so");
    let built = Command::new("g++")
        .args(["-std=c++17", "-O1", "-w", "-fwrapv", "-shared", "-fPIC"])
        .arg(format!("-DTOGSIM_ABI_VERSION={abi}"))
        .arg("-I")
        .arg(repository("traces/tests/pytorchsim/shim"))
        .arg(golden("producers").join(producer))
        .arg("-o")
        .arg(&object)
        .output()
        .expect("g++ is needed to build producers: install it");
    let errors = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{producer}: {errors}");
    object
}

/// The ops of every work-item of a trace, in dispatch order, without their numbers in the program.
fn items(trace: &tilesim_traces::ValidTrace, grid: &[u64]) -> Vec<Vec<String>> {
    let mut priced = (**trace).clone();
    for tile in &mut priced.tiles {
        tile.cycles = Some(1);
    }
    for tensor in &mut priced.tensors {
        // Equal places on both sides.
        tensor.extents = vec![tilesim_traces::model::Expr::Const(1 << 24)];
    }
    let priced = tilesim_traces::ValidTrace::try_from(priced).unwrap();
    let args = tilesim_traces::LaunchArgs {
        grid: grid.to_vec(),
        ..Default::default()
    };
    let bound =
        tilesim_traces::Bound::new(&priced, &args, &tilesim_traces::Limits::default()).unwrap();
    let mut item = tilesim_traces::WorkItem::default();
    (0..bound.items())
        .map(|i| {
            bound.expand(bound.pid(i), &mut item).unwrap();
            item.ops
                .iter()
                .map(|op| {
                    use tilesim_traces::launch::OpKind;
                    let what = match op.kind {
                        OpKind::Dma(at) => {
                            let t = &item.transfers[at as usize];
                            let dims = &item.dims[t.dims.range()];
                            // Where the dims lie in their pool is no part of what the op does.
                            let t = tilesim_traces::launch::Transfer {
                                dims: Default::default(),
                                ..*t
                            };
                            format!("{t:?} {dims:?}")
                        }
                        other => format!("{other:?}"),
                    };
                    let reads = &item.buffers[op.reads.range()];
                    let writes = &item.buffers[op.writes.range()];
                    format!("{what} {reads:?} {writes:?}")
                })
                .collect()
        })
        .collect()
}

#[test]
fn a_recorded_shared_object_says_what_its_source_says() {
    for (producer, abi, grid) in [
        ("gemm_256.hand.cpp", 15, "2,2"),
        ("gemm_256.abi12.cpp", 12, "2,2"),
        ("softmax_rows.hand.cpp", 15, "9"),
        ("softmax_rows.compiler.cpp", 15, "5"),
        ("chain_reduce.hand.cpp", 15, "7"),
        ("gemm_1024_k.compiler.cpp", 15, "4,3"),
    ] {
        let folder = kernel(producer);
        let object = shared_object(producer, abi, folder.path());
        let imported = folder.path().join("imported.tilec");
        run(
            0,
            &[
                "import",
                "pytorchsim",
                text(folder.path()),
                "-o",
                text(&imported),
            ],
        );
        fs::remove_file(folder.path().join("trace_cycles.tsv")).unwrap();
        fs::remove_file(folder.path().join("trace_tensor_shapes.txt")).unwrap();
        let recorded = folder.path().join("recorded.tile");
        let arguments = [
            "record",
            text(&object),
            "--grid",
            grid,
            "-o",
            text(&recorded),
            "--yes",
            "--json",
        ];
        let report = json(&arguments);
        assert_eq!(report["exact"], true, "{producer}: {report}");
        assert_eq!(report["bodies"], 1, "{producer}: {report}");
        let read = |path: &Path| {
            tilesim_traces::load_bytes_with("", &fs::read(path).unwrap(), &|_| Err(String::new()))
                .unwrap()
        };
        let numbers: Vec<u64> = grid.split(',').map(|n| n.parse().unwrap()).collect();
        let (want, got) = (
            items(&read(&imported), &numbers),
            items(&read(&recorded), &numbers),
        );
        assert_eq!(want.len(), got.len(), "{producer}");
        for (k, (want, got)) in want.iter().zip(&got).enumerate() {
            assert_eq!(want, got, "{producer}: work-item {k}");
        }
        // Loops are back: the program is about as long as its source.
        assert!(
            fs::read_to_string(&recorded).unwrap().lines().count() < 60,
            "{producer}"
        );
    }
}

#[test]
fn a_recorded_trace_runs_like_the_folder() {
    let folder = kernel("gemm_256.hand.cpp");
    let object = shared_object("gemm_256.hand.cpp", 15, folder.path());
    let recorded = folder.path().join("recorded.tile");
    run(
        0,
        &[
            "record",
            text(&object),
            "--grid",
            "2,2",
            "-o",
            text(&recorded),
            "--yes",
        ],
    );
    let cycles = |trace: &Path| {
        json(&[
            "simulate",
            text(trace),
            "--machine",
            "tpuv3_simple_dram",
            "--grid",
            "2,2",
            "--json",
        ])["cycles"]
            .clone()
    };
    assert_eq!(cycles(&recorded), cycles(folder.path()));
    // For another grid nothing is known.
    run(
        3,
        &[
            "simulate",
            text(&recorded),
            "--machine",
            "tpuv3_simple_dram",
            "--grid",
            "3,2",
        ],
    );
}

#[test]
fn recording_asks_first_and_survives_bad_producers() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("t.tile");
    let build = |name: &str, body: &str| {
        let source = folder.path().join(format!("{name}.cpp"));
        let object = folder.path().join(format!("{name}.so"));
        let head = "#include <cstdint>\n#include <cstdlib>\n#include \"togsim_runtime.h\"\n";
        let kernel = "extern \"C\" void togsim_kernel(EmitCtx* c, int64_t* s, int32_t n)";
        fs::write(&source, format!("{head}{kernel} {{ {body} }}\n")).unwrap();
        let status = Command::new("g++")
            .args(["-std=c++17", "-w", "-shared", "-fPIC", "-I"])
            .arg(repository("traces/tests/pytorchsim/shim"))
            .args([&source, Path::new("-o"), &object])
            .status()
            .unwrap();
        assert!(status.success());
        object
    };
    let record = |object: &Path, more: &[&str]| {
        let base = ["record", text(object), "--grid", "2", "-o", text(&out)];
        run(3, &[&base, more].concat())
    };
    let touch = folder.path().join("ran");
    let quiet = build("quiet", &format!("system(\"touch {}\");", text(&touch)));
    let told = record(&quiet, &[]);
    assert!(
        told.contains("about to run native code") && told.contains("--yes"),
        "{told}"
    );
    assert!(!touch.exists(), "it ran before it was confirmed");
    let yes = ["--yes"];
    assert!(record(&quiet, &yes).contains("no work-item"));
    for (name, body, part) in [
        ("crash", "*(volatile int*)0 = 1;", "crashed"),
        ("leave", "exit(7);", "code 7"),
        (
            "stray",
            "togsim_memory_barrier(c, 0, 1);",
            "outside every work-item",
        ),
        (
            "pointers",
            "togsim_dispatch(c, [](EmitCtx* c, int64_t*, int32_t) { togsim_compute(c, 0, 0, 0, nullptr, \
             (int64_t*)8, 100000, nullptr, 0); }, s, 1, 0);",
            "buffers",
        ),
        ("stops", "abort();", "abort"),
    ] {
        let told = record(&build(name, body), &yes);
        assert!(told.contains(part), "{name}: {told}");
    }
    let start = Instant::now();
    let endless = build("endless", "for (;;) { volatile int x = 0; }");
    record(&endless, &["--yes", "--time", "1"]);
    let hungry = build("hungry", "for (;;) if (!malloc(64 << 20)) abort();");
    record(&hungry, &["--yes", "--memory", "512"]);
    assert!(start.elapsed() < Duration::from_secs(60));
    let no_object = folder.path().join("none.so");
    record(&no_object, &yes);
    fs::write(&no_object, "not an object").unwrap();
    assert!(record(&no_object, &yes).contains("record.child"));
    assert!(!out.exists());
}

#[test]
fn the_daemon_cannot_record() {
    let daemon = fs::read(program("tilesimd")).unwrap();
    let has = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).any(|w| w == what);
    let name = b"__record-child";
    assert!(!has(&daemon, name));
    assert!(has(&fs::read(program("tilesim")).unwrap(), name));
}

#[test]
fn hostile_folders_are_refused_in_bounded_time() {
    let gemm = fs::read_to_string(golden("producers/gemm_256.hand.cpp")).unwrap();
    let head = "#include <cstdint>\n#include \"togsim_runtime.h\"\n\
                static void item(EmitCtx* ctx, int64_t* iv, int32_t n) {\n";
    let tail = "}\nextern \"C\" void togsim_kernel(EmitCtx* ctx, int64_t* s, int32_t n) {\n\
                for (int64_t i = 0; i < s[0]; ++i) { int64_t iv[1] = {i}; \
                togsim_dispatch(ctx, item, iv, 1, i); } }\n";
    let inside = |body: &str| format!("{head}{body}\n{tail}").into_bytes();
    let nested =
        |open: &str, close: &str| format!("{}1{}", open.repeat(100_000), close.repeat(100_000));
    let compute = "togsim_compute(ctx, 0, 0, 0, nullptr, nullptr, 0, nullptr, 0);";
    let cases: Vec<(&str, &str, Vec<u8>)> = vec![
        ("empty", "trace.cpp", vec![]),
        (
            "truncated",
            "trace.cpp",
            gemm.as_bytes()[..gemm.len() / 2].to_vec(),
        ),
        ("not UTF-8", "trace.cpp", vec![0xff, 0xfe, 0, 1]),
        (
            "parentheses",
            "trace.cpp",
            inside(&format!("int64_t x = {};", nested("(", ")"))),
        ),
        (
            "blocks",
            "trace.cpp",
            inside(&format!("{}{}", "{".repeat(100_000), "}".repeat(100_000))),
        ),
        ("recursion", "trace.cpp", inside("item(ctx, iv, n);")),
        (
            "endless loop",
            "trace.cpp",
            inside(&format!("for (;;) {{ {compute} }}")),
        ),
        (
            "long loop",
            "trace.cpp",
            inside(
                "int64_t x = 1; for (int64_t i = 0; i < 1000000000; ++i) { x = x * x + i; \
                 togsim_compute(ctx, (uint64_t)x, 0, 0, nullptr, nullptr, 0, nullptr, 0); }",
            ),
        ),
        (
            "huge array",
            "trace.cpp",
            inside("int64_t a[9223372036854775807]; a[0] = 1;"),
        ),
        (
            "integer extremes",
            "trace.cpp",
            inside("int64_t x = (-9223372036854775807 - 1) / -1; int y = 1 / 0;"),
        ),
        (
            "includes itself",
            "trace.cpp",
            b"#include \"trace.cpp\"\n".to_vec(),
        ),
        (
            "macros",
            "trace.cpp",
            (0..64)
                .fold("#define M0 1+1\n".to_owned(), |mut s, i| {
                    s.push_str(&format!("#define M{} M{i} + M{i} + M{i}\n", i + 1));
                    s
                })
                .into_bytes()
                .into_iter()
                .chain(inside("int64_t x = M64;"))
                .collect(),
        ),
        ("cycles", "trace_cycles.tsv", b"1\t2\t3\nx\n".to_vec()),
        (
            "cycles too large",
            "trace_cycles.tsv",
            b"99999999999999999999\t0\n".to_vec(),
        ),
        (
            "stats",
            "m5out/stats.txt",
            b"system.cpu.numCycles -1\n".to_vec(),
        ),
        ("units", "units.tsv", b"0\tA\trows\t0\t1\n".to_vec()),
        (
            "units of no tile",
            "units.tsv",
            b"77\tA\trows\t1\t1\n".to_vec(),
        ),
        ("shape", "trace_shape.txt", b"-1 x\n".to_vec()),
        ("shapes", "trace_tensor_shapes.txt", b"1 2\n".to_vec()),
        ("json", "kernel.json", b"{\"sources\": [".to_vec()),
        ("deep json", "kernel.json", "[".repeat(1 << 20).into_bytes()),
        ("table not UTF-8", "trace_cycles.tsv", vec![0xff; 64]),
    ];
    for (name, file, bytes) in cases {
        let folder = kernel("gemm_256.hand.cpp");
        if file == "m5out/stats.txt" {
            fs::create_dir(folder.path().join("m5out")).unwrap();
            fs::remove_file(folder.path().join("trace_cycles.tsv")).unwrap();
        }
        fs::write(folder.path().join(file), bytes).unwrap();
        refused(name, folder.path());
    }
}

/// Every verb that takes the folder ends soon with code 3 and one clear error.
fn refused(name: &str, folder: &Path) {
    let start = Instant::now();
    for arguments in [
        vec!["import", "pytorchsim", text(folder)],
        vec![
            "simulate",
            text(folder),
            "--machine",
            "tpuv3_simple_dram",
            "--grid",
            "2,2",
        ],
    ] {
        let told = run(3, &arguments);
        assert!(told.starts_with("error["), "{name}: {told}");
        assert!(told.len() < 2000, "{name}: {} bytes", told.len());
        assert!(!told.contains("panicked"), "{name}: {told}");
    }
    let took = start.elapsed();
    assert!(took < Duration::from_secs(20), "{name}: {took:?}");
}

#[test]
fn folders_that_are_no_folders() {
    use std::os::unix::fs::symlink;
    // A link out of the folder, a 1 GiB file, a pipe, a file that links to itself.
    let folder = kernel("gemm_256.hand.cpp");
    let path = folder.path();
    fs::remove_file(path.join("trace_cycles.tsv")).unwrap();
    symlink("/etc/passwd", path.join("trace_cycles.tsv")).unwrap();
    refused("link", path);
    fs::remove_file(path.join("trace_cycles.tsv")).unwrap();
    let big = fs::File::create(path.join("trace_cycles.tsv")).unwrap();
    big.set_len(1 << 30).unwrap();
    refused("1 GiB", path);
    fs::remove_file(path.join("trace_cycles.tsv")).unwrap();
    let pipe = Command::new("mkfifo")
        .arg(path.join("trace_cycles.tsv"))
        .status();
    if pipe.is_ok_and(|s| s.success()) {
        refused("pipe", path);
        fs::remove_file(path.join("trace_cycles.tsv")).unwrap();
    }
    symlink("trace_cycles.tsv", path.join("trace_cycles.tsv")).unwrap();
    refused("loop", path);
    let empty = tempfile::tempdir().unwrap();
    refused("nothing in it", empty.path());
    refused("not there", &empty.path().join("x"));
}
