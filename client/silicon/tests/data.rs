//! Reading measurements: what is filled in, and what is refused where.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use serde_json::{Value, json};
use tilesim_silicon::data::{Data, DataError, File};

const LAUNCHES: &str = include_str!("../data/h200_triton_autotune.json");
const ONE_PROGRAM: &str = include_str!("../data/h200_one_item.json");

fn launches(value: &Value) -> Result<Data, DataError> {
    Data::read(Some(&value.to_string()), None)
}

fn original(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn all_of_our_own_is_known() {
    let data = Data::h200().unwrap();
    assert_eq!((data.configs.len(), data.shapes.len()), (157, 7));
    assert!(data.configs.iter().all(|c| c.measured.is_ok()));
    assert!(data.shapes.iter().all(|s| s.aligned()));
}

#[test]
fn times_alone_are_of_our_configurations() {
    let text = r#"{
        "softmax": "whatever",
        "mm": {"time_us": {"64x33x16": [1.5, null, 2], "16x16x16": []}, "else": [null]}
    }"#;
    let data = Data::read(Some(text), None).unwrap();
    let own = Data::h200().unwrap();
    assert_eq!(data.configs, own.configs);
    // The file's order, and what is missing at the end was not measured.
    let names: Vec<&str> = data.shapes.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["64x33x16", "16x16x16"]);
    assert_eq!(
        data.shapes[0].time_us[..4],
        [Some(1.5), None, Some(2.0), None]
    );
    assert_eq!(data.shapes[0].time_us.len(), 157);
    assert_eq!(
        data.shapes.iter().map(|s| s.aligned()).collect::<Vec<_>>(),
        [false, true]
    );
}

#[test]
fn other_lists_find_their_one_program_times_by_configuration() {
    let own = Data::h200().unwrap();
    let configs = original(LAUNCHES)["mm"]["configs"]
        .as_array()
        .unwrap()
        .clone();
    let mut new = configs[9].clone();
    new["BM"] = json!(48);
    let data = launches(&json!({"mm": {
        "configs": [configs[100], configs[3], new],
        "time_us": {"64x64x64": [1, 2, 3]},
    }}))
    .unwrap();
    assert_eq!(data.configs[0], own.configs[100]);
    assert_eq!(data.configs[1], own.configs[3]);
    let error = data.configs[2].measured.clone().unwrap_err();
    assert_eq!(error.path, "mm.one_item.2");
    assert!(error.message.contains("48x128x64"), "{error}");
}

#[test]
fn one_program_times_may_come_in_another_order_and_for_other_lengths() {
    let own = Data::h200().unwrap();
    let mut one = original(ONE_PROGRAM);
    let (a, b) = (one["configs"][0].clone(), one["configs"][1].clone());
    (one["configs"][0], one["configs"][1]) = (b, a);
    let (a, b) = (one["one"]["0"].clone(), one["one"]["1"].clone());
    (one["one"]["0"], one["one"]["1"]) = (b, a);
    // Between the shortest and the longest, another one changes nothing.
    one["one"]["5"]["stream_l2_8192"] = json!(1e3);
    let data = Data::read(None, Some(&one.to_string())).unwrap();
    assert_eq!(data, own);
}

#[test]
fn a_configuration_that_was_not_measured_alone_is_left_to_itself() {
    let mut one = original(ONE_PROGRAM);
    one["one"]["0"] = Value::Null;
    one["one"]["1"]["stream_l2_4096"] = Value::Null;
    one["one"]["2"]["unaligned_resources"] = json!("none");
    one["one"]["3"]["stream_cold_4096"] = json!(1e9);
    one["one"].as_object_mut().unwrap().remove("4");
    let data = Data::read(None, Some(&one.to_string())).unwrap();
    let path = |i: usize| {
        data.configs[i]
            .measured
            .as_ref()
            .map_err(|e| e.path.as_str())
    };
    assert_eq!(path(0), Err("one"));
    assert_eq!(path(1), Err("one.1.stream_l2"));
    assert_eq!(path(2), Err("one.2.unaligned_resources"));
    assert_eq!(path(3), Err("one.3.stream_cold"));
    assert_eq!(path(4), Err("one"));
    assert!(data.configs[5..].iter().all(|c| c.measured.is_ok()));

    let mut all = original(LAUNCHES);
    all["mm"]["one_item"]["0"] = Value::Null;
    all["mm"]["one_item"]["1"]["us"] = json!([1.0, null]);
    all["mm"]["one_item"]["2"]["k"] = json!([64, 64]);
    all["mm"]["resources"]["3"] = Value::Null;
    all["mm"]["resources"]["4"]["regs"] = json!(u64::MAX);
    let data = launches(&all).unwrap();
    let path = |i: usize| {
        data.configs[i]
            .measured
            .as_ref()
            .map_err(|e| e.path.as_str())
    };
    for (i, part) in ["one_item", "one_item", "one_item", "resources", "resources"]
        .into_iter()
        .enumerate()
    {
        assert_eq!(path(i), Err(format!("mm.{part}.{i}").as_str()));
    }
}

#[test]
fn mistakes_are_named_with_their_place() {
    let config = |key: &str, value: Value| {
        let mut config = original(LAUNCHES)["mm"]["configs"][0].clone();
        config[key] = value;
        json!({"mm": {"configs": [config], "time_us": {}}})
    };
    let times = |shapes: Value| json!({"mm": {"time_us": shapes}});
    let many = vec![1; 158];
    let cases = [
        (json!([]), "", "expected"),
        (json!({"m": 1}), ".", "missing field `mm`"),
        (json!({"mm": {}}), "mm", "missing field `time_us`"),
        (times(json!([])), "mm.time_us", "expected a map"),
        (
            times(json!({"1x2x3": [null, "x"]})),
            "mm.time_us.1x2x3[1]",
            "expected f64",
        ),
        (
            times(json!({"1x2x3": [null, -1]})),
            "mm.time_us.1x2x3[1]",
            "-1 is no time",
        ),
        (
            times(json!({"1x2x3": [0]})),
            "mm.time_us.1x2x3[0]",
            "0 is no time",
        ),
        (
            times(json!({"1x2x3": many})),
            "mm.time_us.1x2x3",
            "158 times for 157",
        ),
        (times(json!({"1x2": []})), "mm.time_us.1x2", "MxNxK"),
        (times(json!({"1x2x+3": []})), "mm.time_us.1x2x+3", "MxNxK"),
        (times(json!({"0x2x3": []})), "mm.time_us.0x2x3", "MxNxK"),
        (
            times(json!({"1x2x99999999999999999999": []})),
            "mm.time_us.1x2x99999999999999999999",
            "MxNxK",
        ),
        (config("BM", json!(0)), "mm.configs[0]", "BM is 0"),
        (
            config("BN", json!(1 << 20)),
            "mm.configs[0]",
            "BN is 1048576",
        ),
        (
            config("num_warps", json!(-1)),
            "mm.configs[0].num_warps",
            "invalid value",
        ),
        (
            config("num_stages", json!(1e3)),
            "mm.configs[0].num_stages",
            "expected u32",
        ),
    ];
    for (value, path, message) in cases {
        let error = launches(&value).unwrap_err();
        assert_eq!(error.file, File::Launches);
        assert!(error.path.starts_with(path), "{path}: {error}");
        assert!(error.message.contains(message), "{message}: {error}");
    }
    let twice = r#"{"mm": {"time_us": {"1x1x1": [], "1x1x1": []}}}"#;
    let error = Data::read(Some(twice), None).unwrap_err();
    assert!(
        error.to_string().contains("1x1x1 is there twice"),
        "{error}"
    );
    for text in ["", "{", "nonsense", "{\"mm\": {\"time_us\": {}}} more"] {
        Data::read(Some(text), None).unwrap_err();
        Data::read(None, Some(text)).unwrap_err();
    }
    let error = Data::read(None, Some("{\"one\": {\"x\": {}}}")).unwrap_err();
    assert_eq!(error.file, File::OneProgram);
    assert!(error.path.starts_with("one"), "{error}");
}
