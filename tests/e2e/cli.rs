//! The command line: outputs, errors and exit codes.

use std::{
    path::Path,
    process::{Command, Output},
};

use serde_json::{Value, json};

use crate::{
    daemon::{Daemon, SLOW, program, sample},
    schemas::check,
};

fn tilesim(arguments: &[&str]) -> Output {
    Command::new(program("tilesim"))
        .args(arguments)
        .output()
        .unwrap()
}

/// Runs with an expected exit code; returns standard output.
fn run(code: i32, arguments: &[&str]) -> String {
    let output = tilesim(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs with an expected exit code; returns the JSON, checked against its published schema.
fn run_json(code: i32, schema: &str, arguments: &[&str]) -> Value {
    let value = serde_json::from_str(&run(code, arguments)).unwrap();
    check(schema, &value);
    value
}

fn path(name: &str) -> String {
    sample(name).display().to_string()
}

const MACHINE: &[&str] = &["--machine", "tpuv3_simple_dram"];

fn with<'a>(first: &[&'a str], rest: &[&'a str]) -> Vec<&'a str> {
    [first, MACHINE, rest].concat()
}

#[test]
fn demo_is_the_main_job() {
    let text = run(0, &["demo"]);
    for part in [
        "9,806 cycles",
        "112,784 cycles",
        "utilisation",
        "compute.systolic",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let demo = run_json(0, "demo-output", &["demo", "--json"]);
    let cycles: Vec<&Value> = demo["launches"]
        .as_array()
        .unwrap()
        .iter()
        .map(|l| &l["cycles"])
        .collect();
    assert_eq!(cycles, [9806, 112_784]);
}

#[test]
fn simulate_here() {
    let trace = path("gemm_256.json");
    let arguments = with(&["simulate", &trace], &["--grid", "2,2", "--json"]);
    let first = run_json(0, "simulate-output", &arguments);
    assert_eq!(first["work_items"], 4);
    for field in [
        "cycles",
        "ns",
        "dram_requests",
        "cores",
        "cycle_stack",
        "identity",
    ] {
        assert!(!first[field].is_null(), "{field}");
    }
    let set = with(
        &["simulate", &trace],
        &["--grid", "2,2", "--json", "--set", "dram.channels=8"],
    );
    let changed = run_json(0, "simulate-output", &set);
    assert_ne!(first["identity"]["machine"], changed["identity"]["machine"]);
    assert!(changed["cycles"].as_u64() > first["cycles"].as_u64());
    let table = run(0, &with(&["simulate", &trace], &["--grid", "2,2"]));
    assert!(table.contains("where the cycles went"), "{table}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn here_and_on_a_server_it_is_the_same() {
    let daemon = Daemon::start(&[]).await;
    let trace = path("gemm_256.json");
    let here = with(&["simulate", &trace], &["--grid", "2,2", "--json"]);
    let there = [here.as_slice(), &["--server", &daemon.address]].concat();
    let body = |mut value: Value| {
        value.as_object_mut().unwrap().remove("envelope");
        value
    };
    let local = body(run_json(0, "simulate-output", &here));
    assert_eq!(body(run_json(0, "simulate-output", &there)), local);
    assert_eq!(body(run_json(0, "simulate-output", &there)), local);

    let put = [
        "trace",
        "put",
        &trace,
        "--json",
        "--server",
        &daemon.address,
    ];
    assert_eq!(
        run_json(0, "trace-put-output", &put)["traces"][0]["already_present"],
        true
    );
    let list = ["machine", "list", "--json", "--server", &daemon.address];
    run_json(0, "machine-list-output", &list);
}

#[test]
fn sweep() {
    let trace = path("gemm_256.json");
    let base = with(&["sweep", &trace], &["--grid", "2,2", "--json"]);
    let set = [base.as_slice(), &["--set", "dram.channels=4,8,16"]].concat();
    let points = run_json(0, "sweep-output", &set);
    let cycles: Vec<u64> = points["points"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p["result"]["cycles"].as_u64().unwrap())
        .collect();
    assert!(
        cycles.len() == 3 && cycles.is_sorted_by(|a, b| a >= b),
        "{cycles:?}"
    );
    let some_bad = [base.as_slice(), &["--set", "dram.channels=4,x"]].concat();
    run_json(4, "sweep-output", &some_bad);
    let all_bad = [base.as_slice(), &["--set", "dram.chanels=4,8"]].concat();
    run_json(5, "sweep-output", &all_bad);
}

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn rank() {
    let folder = tempfile::tempdir().unwrap();
    let gemm = path("gemm_256.json");
    let list = json!({
        "machine": "tpuv3_simple_dram",
        "set": {"dram.channels": 16},
        "candidates": [
            {"key": "large", "trace": gemm, "grid": [2, 2]},
            {"key": "small", "trace": gemm, "grid": [1, 1]},
            {"key": "both", "launches": [
                {"trace": gemm, "grid": [1, 1], "weight": 3},
                {"trace": gemm, "grid": [2, 2]},
            ]},
            {"key": "again", "trace": gemm, "grid": [1, 1]},
        ],
    });
    check("candidates", &list);
    let file = write(folder.path(), "candidates.json", &list.to_string());
    let ranking = run_json(0, "rank-output", &["rank", &file, "--json"]);
    let keys: Vec<&Value> = ranking["ranked"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| &r["key"])
        .collect();
    assert_eq!(keys, ["small", "again", "large", "both"]);
    assert_eq!(ranking["outcomes"][3]["status"], "DUPLICATE_OF");
    assert!(run(0, &["rank", &file]).contains("over best"));

    let mut bad = list.clone();
    bad["candidates"][0]["grid"] = json!([1]);
    let file = write(folder.path(), "some.json", &bad.to_string());
    run_json(4, "rank-output", &["rank", &file, "--json"]);
    let bad = json!({"machine": "tpuv3_simple_dram", "candidates": [
        {"trace": "nowhere.json", "grid": [1]},
        {"error": {"message": "did not compile"}},
    ]});
    check("candidates", &bad);
    let file = write(folder.path(), "all.json", &bad.to_string());
    let ranking = run_json(5, "rank-output", &["rank", &file, "--json"]);
    assert_eq!(ranking["note"], "no candidate has a score");
    let file = write(
        folder.path(),
        "none.json",
        r#"{"machine": "tpuv3", "candidates": []}"#,
    );
    let error = run_json(3, "error-output", &["rank", &file, "--json"]);
    assert_eq!(error["error"]["code"], "rank.no_candidates");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replay() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&[]).await;
    let add = path("vecadd_sync.json");
    let lines: Vec<Value> = (1..=6)
        .map(|i| json!({"key": format!("k{i}"), "trace": add, "grid": [i]}))
        .collect();
    lines.iter().for_each(|line| check("replay-list", line));
    let text: String = lines.iter().map(|l| format!("{l}\n")).collect();
    let list = write(folder.path(), "list.jsonl", &text);
    let outputs =
        ["here.jsonl", "there.jsonl"].map(|n| folder.path().join(n).display().to_string());
    run(0, &with(&["replay", &list, "-o", &outputs[0]], &[]));
    run(
        0,
        &with(
            &["replay", &list, "-o", &outputs[1]],
            &["--server", &daemon.address],
        ),
    );
    let results = outputs.map(|path| {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines()
            .map(|line| {
                let line: Value = serde_json::from_str(line).unwrap();
                check("replay-output", &line);
                (
                    line["key"].clone(),
                    line["result"]["cycles"].as_u64().unwrap(),
                )
            })
            .collect::<Vec<_>>()
    });
    assert_eq!(results[0].len(), 6);
    assert_eq!(results[0], results[1]);
    let bad = text.replace("[3]", "[3,1]");
    let list = write(folder.path(), "bad.jsonl", &bad);
    let output = folder.path().join("bad.out").display().to_string();
    run(4, &with(&["replay", &list, "-o", &output], &[]));
}

#[test]
fn traces() {
    let folder = tempfile::tempdir().unwrap();
    let gemm = path("gemm_256.json");
    let good = run_json(
        0,
        "trace-check-output",
        &["trace", "check", &gemm, "--json"],
    );
    let digest = &good["traces"][0]["digest"];
    let mut from = gemm.clone();
    for name in ["x.tile", "x.tilec", "y.tile"] {
        let to = folder.path().join(name).display().to_string();
        run(0, &["trace", "convert", &from, "-o", &to]);
        let checked = run_json(0, "trace-check-output", &["trace", "check", &to, "--json"]);
        assert_eq!(&checked["traces"][0]["digest"], digest, "{name}");
        from = to;
    }
    assert!(run(0, &["trace", "show", &gemm]).contains("tilesim trace 1"));
    let item = run(
        0,
        &[
            "trace",
            "show",
            &gemm,
            "--work-item",
            "1,0",
            "--grid",
            "2,2",
        ],
    );
    assert!(item.contains("load") && item.contains("0x"), "{item}");
    run(
        3,
        &[
            "trace",
            "show",
            &gemm,
            "--work-item",
            "2,1",
            "--grid",
            "2,2",
        ],
    );
    run(2, &["trace", "show", &gemm, "--work-item", "3,1"]);
    let bad = write(
        folder.path(),
        "bad.tile",
        "tilesim trace 1\nkernel \"k\"\naxes 7\n",
    );
    let checked = run_json(
        3,
        "trace-check-output",
        &["trace", "check", &gemm, &bad, "--json"],
    );
    assert_eq!(checked["traces"][1]["errors"].as_array().unwrap().len(), 1);
    let output = tilesim(&["trace", "check", &bad]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        told.contains("bad.tile") && told.contains("error["),
        "{told}"
    );
}

#[test]
fn machines() {
    let folder = tempfile::tempdir().unwrap();
    let list = run_json(0, "machine-list-output", &["machine", "list", "--json"]);
    assert!(list["presets"].as_array().unwrap().len() >= 5);
    let shown = run(
        0,
        &[
            "machine",
            "show",
            "tpuv3_simple_dram",
            "--set",
            "dram.channels=8",
        ],
    );
    let file = write(folder.path(), "mine.yaml", &shown);
    let checked = run_json(
        0,
        "machine-check-output",
        &["machine", "check", &file, "--json"],
    );
    let digest = checked["machines"][0]["digest"].as_str().unwrap();
    assert!(
        shown.contains(digest),
        "what is shown is a machine file, of the digest it states"
    );
    let bad = write(
        folder.path(),
        "bad.yaml",
        &shown.replace("channels", "chanels"),
    );
    let checked = run_json(
        3,
        "machine-check-output",
        &["machine", "check", &bad, "--json"],
    );
    assert_eq!(
        checked["machines"][0]["errors"][0]["code"],
        "machine.unknown_key"
    );
}

#[test]
fn exit_codes() {
    let gemm = path("gemm_256.json");
    run(2, &["simulate"]);
    run(2, &["nonsense"]);
    let here = with(&["simulate", &gemm], &["--json"]);
    let error = |code, arguments: &[&str]| {
        let error = run_json(code, "error-output", &[here.as_slice(), arguments].concat());
        error["error"]["code"].as_str().unwrap().to_owned()
    };
    assert_eq!(error(3, &["--grid", "1"]), "launch.axis_count");
    assert_eq!(
        error(3, &["--grid", "1,1", "--set", "x=1"]),
        "machine.unknown_key"
    );
    assert_eq!(
        error(6, &["--grid", "2,2", "--cycle-budget", "10"]),
        "run.over_budget"
    );
    let nobody = [
        "--grid",
        "1,1",
        "--server",
        "127.0.0.1:9",
        "--connect-attempts",
        "2",
    ];
    assert_eq!(error(7, &nobody), "client.unreachable");
    let missing = run_json(
        3,
        "error-output",
        &with(&["simulate", "nowhere.json"], &["--grid", "1", "--json"]),
    );
    assert_eq!(missing["error"]["code"], "client.file");
    let folder = tempfile::tempdir().unwrap();
    let slow = write(folder.path(), "slow.tile", SLOW);
    let arguments = with(
        &["simulate", &slow],
        &["--grid", "1000000000", "--timeout", "0.2", "--json"],
    );
    let late = run_json(6, "error-output", &arguments);
    assert_eq!(late["error"]["code"], "run.deadline");
    let output = tilesim(&with(&["simulate", &gemm], &["--grid", "1"]));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        told.starts_with("error[launch.axis_count]: ") && told.contains("hint: "),
        "{told}"
    );
}

#[test]
fn a_kernel_is_written_and_simulated() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (text, container, launch) = (file("mm.tile"), file("mm.tilec"), file("mm.json"));
    let sizes = [
        "--m",
        "200",
        "--n",
        "150",
        "--k",
        "130",
        "--tile",
        "64x64x32",
        "--threads",
        "256",
    ];
    let with_machine = ["--machine", "tpuv3_simple_dram", "--json"];
    let write = |rest: &[&str]| {
        let arguments = [&["kernel", "matmul"], &sizes[..], &with_machine[..], rest].concat();
        run_json(0, "kernel-output", &arguments)
    };
    let written = write(&["-o", &text, "--launch", &launch]);
    assert_eq!(written["trace"]["grid"], json!([12]));
    assert_eq!(
        written["trace"]["params"],
        json!({"K": 130, "M": 200, "N": 150})
    );
    for other in [&container, &file("mm")] {
        let again = write(&["-o", other]);
        assert_eq!(written["trace"]["digest"], again["trace"]["digest"]);
    }
    let bytes = |path: &str| std::fs::read(path).unwrap();
    assert_eq!(bytes(&file("mm")), bytes(&text));
    // The launch in one more command, and the same said with flags.
    let machine = ["-m", "tpuv3_simple_dram", "--json"];
    let from_file = run_json(
        0,
        "simulate-output",
        &["simulate", "--launch", &launch, "--json"],
    );
    let flags = [
        &["simulate", container.as_str(), "--grid", "12"],
        &["--param", "M=200", "--param", "N=150", "--param", "K=130"][..],
        &machine[..],
    ];
    let flags = run_json(0, "simulate-output", &flags.concat());
    assert_eq!(from_file["cycles"], flags["cycles"]);
    assert_eq!(from_file["identity"], flags["identity"]);
    // The machine that the file names gives way to one that is named here.
    let other = ["simulate", "--launch", &launch, "-m", "tpuv3", "--json"];
    let other = run_json(0, "simulate-output", &other);
    assert_ne!(
        from_file["identity"]["machine"],
        other["identity"]["machine"]
    );
    // It is a line of a replay, too.
    let line: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&launch).unwrap()).unwrap();
    crate::schemas::check("replay-list", &line);
    assert_eq!(line["machine"], "tpuv3_simple_dram");
}

#[test]
fn every_kind_of_kernel_is_described_and_refuses_what_it_does_not_know() {
    use tilesim_traces::kernels::args::KINDS;
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("k.tile").display().to_string();
    for kind in KINDS {
        let help = run(0, &["kernel", kind.name, "--help"]);
        for arg in kind.args {
            let flag = format!("--{} ", arg.name.replace('_', "-"));
            let flag_of_flag = format!("--{}[=", arg.name.replace('_', "-"));
            assert!(
                help.contains(&flag) || help.contains(&flag_of_flag),
                "{flag} in {help}"
            );
        }
        run(
            2,
            &["kernel", kind.name, "--no-such-option", "1", "-o", &out],
        );
        let error = run_json(
            3,
            "error-output",
            &["kernel", kind.name, "-o", &out, "--json"],
        );
        let needed = kind.args.iter().find(|a| a.required).unwrap().name;
        assert_eq!(error["error"]["path"], format!("options.{needed}"));
    }
    let base = [
        "kernel",
        "elementwise",
        "--n",
        "10",
        "-o",
        &out,
        "--json",
        "--block",
    ];
    let error = run_json(3, "error-output", &[&base[..], &["zero"]].concat());
    assert_eq!(error["error"]["path"], "options.block");
}

#[test]
fn a_space_of_configurations_is_ranked() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("space").display().to_string();
    let list = folder.path().join("configs.json");
    let configs = json!({"mm": {"configs": [
        {"BM": 64, "BN": 64, "BK": 32, "GM": 8, "num_warps": 4, "num_stages": 2},
        {"BM": 64, "BN": 32, "BK": 32, "GM": 8, "num_warps": 8, "num_stages": 1},
        {"BM": 1 << 30, "BN": 64, "BK": 32, "GM": 8, "num_warps": 4, "num_stages": 2},
    ]}});
    std::fs::write(&list, configs.to_string()).unwrap();
    let list = list.display().to_string();
    let sizes = ["--m", "200", "--n", "150", "--k", "130"];
    let more = [
        "--configs",
        &list,
        "--list",
        "mm.configs",
        "--warp-threads",
        "32",
        "--top-k",
        "1",
        "--machine",
        "tpuv3_simple_dram",
        "-o",
        &out,
        "--json",
    ];
    let written = run_json(
        0,
        "kernel-output",
        &[&["kernel", "matmul"], &sizes[..], &more[..]].concat(),
    );
    assert_eq!(
        written["candidates"],
        json!({"count": 3, "traces": 2, "failed": 1})
    );
    let file = written["file"].as_str().unwrap();
    let candidates: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    check("candidates", &candidates);
    let trace = |i: usize| {
        let name = candidates["candidates"][i]["trace"].as_str().unwrap();
        std::fs::read_to_string(folder.path().join("space").join(name)).unwrap()
    };
    assert!(trace(0).contains("resources threads 128\n"));
    assert!(trace(1).contains("resources threads 256\n"));
    // Some failed: exit code 4. The one that is not the best is pruned.
    let ranked = run_json(4, "rank-output", &["rank", file, "--json"]);
    assert_eq!(ranked["ranked"].as_array().unwrap().len(), 1);
    let all = run_json(4, "rank-output", &["rank", file, "--top-k", "0", "--json"]);
    assert_eq!(all["ranked"].as_array().unwrap().len(), 2);
    assert_eq!(all["ranked"][0], ranked["ranked"][0]);
    // Any kind, by values of its options.
    let vary = [
        "kernel",
        "softmax",
        "--rows",
        "64",
        "--cols",
        "100",
        "--vary",
        "tile=4x128,8x128",
        "--vary",
        "stages=1,2,3",
        "-o",
        &out,
        "--json",
    ];
    let written = run_json(0, "kernel-output", &vary);
    assert_eq!(written["candidates"]["count"], 6);
    let file = written["file"].as_str().unwrap();
    let ranked = run_json(
        0,
        "rank-output",
        &["rank", file, "-m", "tpuv3_simple_dram", "--json"],
    );
    let keys: std::collections::BTreeSet<&str> = ranked["outcomes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|o| o["key"].as_str().unwrap())
        .collect();
    assert_eq!(keys.len(), 6);
    assert!(keys.contains("tile=8x128 stages=3"));
}
