//! `tilesim validate`: rankings against measured ones.

use std::process::Command;

use serde_json::{Value, json};

use crate::{daemon::program, schemas::check};

/// Runs it on a file of launches; the exit code, and the JSON checked against its schema.
fn validate(launches: &Value, more: &[&str]) -> (Option<i32>, Value) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("launches.json");
    std::fs::write(&file, launches.to_string()).unwrap();
    let output = Command::new(program("tilesim"))
        .args(["validate", "h200", "--json", "--data"])
        .arg(&file)
        .args(more)
        .output()
        .unwrap();
    let value: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| {
        panic!("{e}: {}", String::from_utf8_lossy(&output.stderr));
    });
    let schema = match value.get("error") {
        Some(_) => "error-output",
        None => "validate-h200-output",
    };
    check(schema, &value);
    (output.status.code(), value)
}

fn small() -> Value {
    json!({"mm": {"time_us": {
        "128x256x64": [5.0, 4.0, 3.0, null, 6.0, 7.0],
        "200x100x50": [5.0, 4.0, 3.0],
    }}})
}

#[test]
fn small_shapes_are_ranked_and_scored() {
    let (code, value) = validate(&small(), &[]);
    assert_eq!(code, Some(0));
    let shapes = value["shapes"].as_array().unwrap();
    let names: Vec<&str> = shapes
        .iter()
        .map(|s| s["shape"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["128x256x64", "200x100x50"]);
    assert_eq!(
        (&shapes[0]["count"], &shapes[1]["count"]),
        (&json!(5), &json!(3))
    );
    assert_eq!(
        (&shapes[0]["aligned"], &shapes[1]["aligned"]),
        (&json!(true), &json!(false))
    );
    for shape in shapes {
        // Five or fewer: the best of the top five is the best.
        assert_eq!(shape["regret_top5"], 0.0);
        assert_eq!(shape["best"]["index"], 2);
        assert_eq!(shape["best"]["measured_us"], 3.0);
        let pick = shape["pick"]["measured_us"].as_f64().unwrap();
        assert_eq!(shape["regret"].as_f64().unwrap(), pick / 3.0 - 1.0);
        assert_eq!(shape["pick"], shape["top5"][0]);
        assert!(shape["naive"]["kendall_tau"].is_number());
    }
    for (sort, shape) in [("aligned", 0), ("unaligned", 1)] {
        assert_eq!(value["means"][sort]["shapes"], 1);
        assert_eq!(
            value["means"][sort]["kendall_tau"],
            shapes[shape]["kendall_tau"]
        );
    }
    // Neither threads nor what else there is decide anything.
    let (_, alone) = validate(&small(), &["--threads", "1", "--shape", "200x100x50"]);
    assert_eq!(alone["shapes"].as_array().unwrap(), &shapes[1..]);
    assert_eq!(alone["means"]["aligned"]["kendall_tau"], Value::Null);
    // Another machine is another order of things.
    let (_, slow) = validate(&small(), &["--set", "cores.count=1"]);
    assert!(
        slow["shapes"][0]["pick"]["predicted_us"].as_f64()
            > shapes[0]["pick"]["predicted_us"].as_f64()
    );
    let stated = |value: &Value| {
        let constants = value["constants"].as_array().unwrap();
        let stated = constants.iter().filter(|c| c["origin"] == "stated");
        stated.map(|c| c["name"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(stated(&value), Vec::<Value>::new());
    assert_eq!(stated(&slow), ["cores.count"]);
}

#[test]
fn what_fails_is_named_and_ranked_last() {
    // One that nobody has measured alone; measured fastest.
    let mut launches = small();
    launches["mm"]["configs"] = json!([
        {"BM": 48, "BN": 48, "BK": 48, "GM": 8, "num_warps": 4, "num_stages": 2},
        {"BM": 16, "BN": 32, "BK": 64, "GM": 8, "num_warps": 4, "num_stages": 2},
        {"BM": 16, "BN": 32, "BK": 64, "GM": 8, "num_warps": 4, "num_stages": 3},
    ]);
    launches["mm"]["time_us"] = json!({"128x256x64": [1.0, 2.0, 4.0]});
    let (code, value) = validate(&launches, &[]);
    assert_eq!(code, Some(4));
    let shape = &value["shapes"][0];
    assert_eq!(shape["failed"][0]["index"], 0);
    assert_eq!(shape["failed"][0]["error"]["code"], "validate.bad_data");
    assert_eq!(shape["top5"][2]["index"], 0);
    assert_eq!(shape["top5"][2]["predicted_us"], Value::Null);
    assert!(shape["regret_top5"].as_f64().unwrap() >= 1.0);
    // A machine that none of them fits on.
    let (code, value) = validate(&small(), &["--set", "cores.scratchpad_bytes=1024"]);
    assert_eq!(code, Some(5));
    assert_eq!(value["shapes"][0]["pick"], Value::Null);
    assert_eq!(value["shapes"][0]["failed"].as_array().unwrap().len(), 5);
}

#[test]
fn mistakes_are_named() {
    let error = |launches: &Value, more: &[&str]| {
        let (code, value) = validate(launches, more);
        assert_eq!(code, Some(3));
        let text = |key: &str| value["error"][key].as_str().unwrap().to_owned();
        (text("code"), text("path"))
    };
    let (code, path) = error(&json!({"mm": {"time_us": {"8x8x8": [true]}}}), &[]);
    assert_eq!(code, "validate.bad_data");
    assert!(
        path.ends_with("launches.json: mm.time_us.8x8x8[0]"),
        "{path}"
    );
    assert_eq!(
        error(&small(), &["--shape", "1x1x1"]).0,
        "validate.no_shape"
    );
    assert_eq!(
        error(&json!({"mm": {"time_us": {}}}), &[]).0,
        "validate.no_shapes"
    );
    assert_eq!(
        error(&small(), &["--machine", "h2000"]).0,
        "machine.unknown_preset"
    );
    assert_eq!(
        error(&small(), &["--one", "/nowhere.json"]).0,
        "client.file"
    );
}

#[test]
fn it_reads_as_tables() {
    let output = Command::new(program("tilesim"))
        .args(["validate", "h200", "--shape", "1x1x1"])
        .output()
        .unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("it has 1024x1024x1024"), "{errors}");

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("launches.json");
    std::fs::write(&file, small().to_string()).unwrap();
    let output = Command::new(program("tilesim"))
        .args(["validate", "h200", "--data"])
        .arg(&file)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "128x256x64",
        "mean of 1",
        "naive pick",
        "dram.latency_cycles",
        "20 % less",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}
