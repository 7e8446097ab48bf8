//! Kernels from options, and lists of configurations.

#![allow(missing_docs)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tilesim_traces::kernels::args::{Arg, ArgValue, COST_ARGS, KINDS, Kind, kind, parse_args};
use tilesim_traces::kernels::space::{
    StageBuffers, TileConfig, matmul, product, read_json, read_tiles,
};
use tilesim_traces::kernels::*;
use tilesim_traces::{ErrorCode, TraceError, ValidTrace};

fn options(text: &str) -> BTreeMap<String, String> {
    text.split_whitespace()
        .map(|o| o.split_once('=').unwrap())
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect()
}

fn parse(kind: &str, text: &str) -> Result<KernelSpec, TraceError> {
    parse_args(kind, &options(text), &CostModel::default())
}

fn sample(arg: &Arg) -> String {
    match arg.value {
        ArgValue::Whole => "8".into(),
        ArgValue::Sizes(n) => vec!["8"; n].join("x"),
        _ => panic!("{}", arg.name),
    }
}

fn required(kind: &Kind) -> BTreeMap<String, String> {
    kind.args
        .iter()
        .filter(|a| a.required)
        .map(|a| (a.name.to_owned(), sample(a)))
        .collect()
}

#[test]
fn descriptions_say_what_is_true() {
    let mut names = BTreeSet::new();
    for kind in KINDS {
        assert!(names.insert(kind.name));
        let least = required(kind);
        let spec = parse_args(kind.name, &least, &CostModel::default()).unwrap();
        ValidTrace::try_from(generate(&spec).unwrap()).unwrap();
        let mut seen = BTreeSet::new();
        for arg in kind.args.iter().chain(COST_ARGS) {
            assert!(
                seen.insert(arg.name),
                "{} has {} twice",
                kind.name,
                arg.name
            );
            assert!(!arg.help.is_empty() && (!arg.required || arg.default.is_empty()));
            // Giving the default changes nothing; the words are all accepted.
            if !arg.default.is_empty() {
                let mut given = least.clone();
                given.insert(arg.name.replace('_', "-"), arg.default.to_owned());
                assert_eq!(
                    parse_args(kind.name, &given, &CostModel::default()).unwrap(),
                    spec
                );
            }
            for word in arg.value.words().unwrap_or_default() {
                let mut given = least.clone();
                given.insert(arg.name.to_owned(), word.to_owned());
                parse_args(kind.name, &given, &CostModel::default()).unwrap();
            }
            if arg.required {
                let mut given = least.clone();
                given.remove(arg.name);
                let e = parse_args(kind.name, &given, &CostModel::default()).unwrap_err();
                assert_eq!(
                    (e.code, e.path),
                    (ErrorCode::MissingKey, format!("options.{}", arg.name))
                );
            }
        }
        // Every field of the kernel has its option.
        let json = serde_json::to_value(&spec.kernel).unwrap();
        let fields = json
            .as_object()
            .unwrap()
            .values()
            .next()
            .unwrap()
            .as_object()
            .unwrap();
        for field in fields.keys() {
            let hidden = kind.name == "matmul" && (field == "batch" || field == "shared_b");
            assert_eq!(
                seen.contains(field.as_str()),
                !hidden,
                "{} {field}",
                kind.name
            );
        }
    }
}

#[test]
fn exact_errors() {
    let good = "m=64 n=64 k=64 tile=32x32x32";
    let cases = [
        (
            "matmull",
            good,
            "kernel: no kernel is called \"matmull\" (did you mean \"matmul\"?) [trace.bad_value]",
        ),
        (
            "fft",
            good,
            "kernel: no kernel is called \"fft\" (there are matmul, batched_matmul, conv, softmax, layer_norm, attention, elementwise, reduction) [trace.bad_value]",
        ),
        (
            "matmul",
            "m=64 n=64 tile=32x32x32",
            "options.k: matmul needs it (length of the sums) [trace.missing_key]",
        ),
        (
            "matmul",
            "m=64 n=64 k=64 tile=32x32",
            "options.tile: \"32x32\" is not 3 sizes (write 3 numbers with x between them, such as 128x128x128) [trace.bad_value]",
        ),
        (
            "matmul",
            "m=64 n=64 k=64 tile=32x32xa",
            "options.tile: \"a\" is not a whole number (write digits only) [trace.bad_value]",
        ),
        (
            "matmul",
            "m=+64 n=64 k=64 tile=32x32x32",
            "options.m: \"+64\" is not a whole number (write digits only) [trace.bad_value]",
        ),
        (
            "matmul",
            "m=64 n=64 k=64 tile=32x32x32 stage=2",
            "options.stage: matmul has no such option (did you mean \"stages\"?) [trace.unknown_key]",
        ),
        (
            "matmul",
            "m=64 n=64 k=64 tile=32x32x32 dtype=f61",
            "options.dtype: \"f61\" is not a known word (did you mean \"f64\"?) [trace.bad_value]",
        ),
        (
            "matmul",
            "m=64 n=64 k=64 tile=32x32x32 trans-a=yes",
            "options.trans_a: \"yes\" is not a known word (use one of true, false) [trace.bad_value]",
        ),
        (
            "matmul",
            "m=64 n=64 k=64 tile=32x32x32 split-k=1 split_k=1",
            "options.split_k: given twice (give it once) [trace.bad_value]",
        ),
        (
            "matmul",
            "m=64 n=64 k=64 tile=32x0x32",
            "kernel.matmul.tile[1]: a value of 0 (use 1 to 1048576) [trace.bad_value]",
        ),
        (
            "matmul",
            "m=64 n=64 k=64 tile=32x32x32 costs=dot",
            "options.costs: \"dot\" gives no cost (write tile=cycles or tile=cycles:overlap) [trace.bad_value]",
        ),
        (
            "matmul",
            "m=64 n=64 k=64 tile=32x32x32 array=128",
            "options.array: \"128\" is not 2 sizes (write 2 numbers with x between them, such as 128x128) [trace.bad_value]",
        ),
        (
            "matmul",
            "m=64 n=64 k=64 tile=32x32x32 lanes=0",
            "cost.lanes: a value of 0 (use 1 to 1048576) [trace.bad_value]",
        ),
        (
            "matmul",
            "m=64 n=64 k=64 tile=32x32x32 lanes=4294967296",
            "options.lanes: a value of 4294967296 (use a smaller one) [trace.bad_value]",
        ),
        (
            "conv",
            "images=1 height=2 width=9 channels=1 filters=1 kernel=3x3 tile=4x4x4x4",
            "kernel.conv.height: a filter that reaches over 3 pixels has only 2 (pad the image or use a smaller filter) [trace.bad_value]",
        ),
    ];
    for (kind, text, want) in cases {
        assert_eq!(parse(kind, text).unwrap_err().to_string(), want);
    }
    assert_eq!(kind("batched-matmul").unwrap().name, "batched_matmul");
    let spec = parse(
        "matmul",
        "--m=64 --n=64 --k=64 --tile=32,32,32 array=16x8 lanes=4 vector-bits=64 matmul-cost=onnxim_ws costs=zero=0,dot=512:9",
    )
    .unwrap();
    assert_eq!((spec.cost.array_rows, spec.cost.array_cols), (16, 8));
    assert_eq!(spec.cost.matmul, MatmulFormula::OnnximWs);
    assert_eq!(
        spec.cost.fixed["dot"],
        GivenCost {
            cycles: 512,
            overlap: 9
        }
    );
    let error = {
        let spec = parse(
            "matmul",
            "m=1 n=1 k=1 tile=8x8x8 form=systolic matmul-cost=stonne_os",
        );
        generate(&spec.unwrap()).unwrap_err()
    };
    assert_eq!(error.path, "cost.matmul");
}

fn golden(name: &str) -> String {
    let path = format!(
        "{}/../tests/golden/autotune/{name}",
        env!("CARGO_MANIFEST_DIR")
    );
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

#[test]
fn lists_in_use_become_kernels() {
    let inductor = golden("inductor_2.10.json");
    let base = Matmul::new(1024, 1024, 1024, [1, 1, 1]);
    for (list, count) in [
        ("mm_configs", 20),
        ("exhaustive_configs", 1875),
        ("int8_mm_configs", 11),
    ] {
        let configs = read_json(&inductor, Some(list)).unwrap();
        assert_eq!(configs.len(), count);
        let candidates = matmul(&base, &CostModel::default(), &configs, StageBuffers::Same);
        let mut keys = BTreeSet::new();
        for c in &candidates {
            assert!(keys.insert(c.key.clone()), "{}", c.key);
            let trace = generate(c.spec.as_ref().unwrap()).unwrap();
            ValidTrace::try_from(trace).unwrap();
        }
    }
    let first = read_json(&inductor, Some("mm_configs")).unwrap()[0];
    assert_eq!(first.key(), "32x32x16_s1_w2_g8");
    let h200 = read_json(&golden("h200_configs.json"), Some("mm.configs")).unwrap();
    assert_eq!(h200.len(), 157);
    assert_eq!(h200[0].key(), "16x32x64_s2_w4_g8");
    let one_fewer = matmul(
        &base,
        &CostModel::default(),
        &h200[..1],
        StageBuffers::OneFewer,
    );
    let Kernel::Matmul(m) = &one_fewer[0].spec.as_ref().unwrap().kernel else {
        panic!()
    };
    assert_eq!((m.tile, m.stages, m.group, m.m), ([16, 32, 64], 1, 8, 1024));
    assert_eq!(read_tiles(&golden("gemm_16_16_64.txt")).unwrap().len(), 3);
    let tiles = read_tiles(&golden("gemm_512_768_3072.txt")).unwrap();
    assert_eq!(
        tiles[2],
        TileConfig {
            tile: [128, 128, 384],
            ..TileConfig::default()
        }
    );
    assert_eq!(tiles[0].key(), "128x128x128");
    let saved = r#"[{"kwargs": {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 16, "GROUP_SIZE_M": 8}, "num_warps": 4, "num_stages": 3, "maxnreg": null}]"#;
    assert_eq!(
        read_json(saved, None).unwrap()[0].key(),
        "64x32x16_s3_w4_g8"
    );
}

#[test]
fn buffers_take_the_shared_memory_triton_gives() {
    let configs = read_json(&golden("h200_configs.json"), Some("mm.configs")).unwrap();
    let base = Matmul {
        acc_in_registers: true,
        ..Matmul::new(4096, 4096, 4096, [1; 3])
    };
    let candidates = matmul(&base, &CostModel::default(), &configs, StageBuffers::Hopper);
    let shared = golden("h200_shared_bytes.txt");
    let shared: Vec<u64> = shared.lines().skip(1).map(|l| l.parse().unwrap()).collect();
    assert_eq!(shared.len(), candidates.len());
    for (candidate, shared) in candidates.iter().zip(shared) {
        let trace = generate(candidate.spec.as_ref().unwrap()).unwrap();
        let bytes: u64 = trace.buffers.iter().map(|b| b.bytes).sum();
        // Barriers and such take a little beside the operands.
        assert!(
            (bytes..bytes + 128).contains(&shared),
            "{}: {bytes}, {shared}",
            candidate.key
        );
    }
}

#[test]
fn lists_that_are_none() {
    let cases = [
        (
            "[",
            None,
            "no JSON: EOF while parsing a list at line 1 column 1 [trace.syntax]",
        ),
        (
            "{\"a\": []}",
            None,
            "not a list (give a list of configurations, or name the one to read) [trace.bad_value]",
        ),
        (
            "{\"a\": []}",
            Some("b"),
            "b: no list called \"b\" (there are a) [trace.missing_key]",
        ),
        (
            "[1]",
            None,
            "[0]: not an object (write {\"block_m\": ..., ...}) [trace.bad_value]",
        ),
        (
            "[{\"bm\": 1, \"bn\": 1}]",
            None,
            "[0].block_k: no tile size (a configuration has block_m, block_n and block_k) [trace.missing_key]",
        ),
        (
            "[{\"bm\": 1, \"BLOCK_M\": 1}]",
            None,
            "[0].bm: given twice under several spellings (give it once) [trace.bad_value]",
        ),
        (
            "[{\"bm\": -1}]",
            None,
            "[0].bm: not a whole number (write a number of 0 or more) [trace.bad_value]",
        ),
        (
            "[{\"blok_m\": 1}]",
            None,
            "[0].blok_m: no such option of a matmul (did you mean \"block_m\"?) [trace.unknown_key]",
        ),
        (
            "[{\"bm\":1,\"bn\":1,\"bk\":1,\"stages\":4294967296}]",
            None,
            "[0].num_stages: a value of 4294967296 (use a smaller one) [trace.bad_value]",
        ),
    ];
    for (text, list, want) in cases {
        assert_eq!(read_json(text, list).unwrap_err().to_string(), want);
    }
    assert_eq!(
        read_tiles("1 2 3\n\n# no\n1 2\n").unwrap_err().to_string(),
        "line 4: not three tile sizes (write M, N and K, such as 128 128 64) [trace.bad_value]"
    );
    assert!(read_tiles("1 2 +3").is_err());
    let long = "1 1 1\n".repeat(space::MAX_CONFIGS + 1);
    assert_eq!(read_tiles(&long).unwrap_err().code, ErrorCode::TooLarge);
    assert_eq!(
        read_json(&" ".repeat(space::MAX_BYTES + 1), None)
            .unwrap_err()
            .code,
        ErrorCode::TooLarge
    );
    let configs = read_json(
        r#"[{"bm": 0, "bn": 1, "bk": 1}, {"bm": 8, "bn": 8, "bk": 8}]"#,
        None,
    );
    let base = Matmul::new(8, 8, 8, [8; 3]);
    let candidates = matmul(
        &base,
        &CostModel::default(),
        &configs.unwrap(),
        StageBuffers::Same,
    );
    assert!(candidates[0].spec.is_err() && candidates[1].spec.is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Whatever is asked for: an answer or an error, never a panic; and an answer is a valid trace.
    #[test]
    fn any_options_give_an_answer(
        at in 0..KINDS.len(),
        picks in proptest::collection::vec((any::<usize>(), "[0-9]{1,20}|[0-9]{1,4}(x[0-9]{1,4}){0,3}|[a-z_]{1,6}|\\PC{0,6}"), 0..8),
    ) {
        let kind = &KINDS[at];
        let mut given = required(kind);
        for (pick, value) in picks {
            let all: Vec<&Arg> = kind.args.iter().chain(COST_ARGS).collect();
            given.insert(all[pick % all.len()].name.to_owned(), value);
        }
        if let Ok(spec) = parse_args(kind.name, &given, &CostModel::default()) {
            let _ = launch(&spec);
            if let Ok(trace) = generate(&spec) {
                prop_assert!(ValidTrace::try_from(trace).is_ok(), "{spec:?}");
            }
        }
    }

    /// Sizes at the edges of their ranges.
    #[test]
    fn any_sizes_give_an_answer(
        at in 0..KINDS.len(),
        values in proptest::collection::vec(
            prop_oneof![Just(0u64), Just(1), Just(1 << 16), Just(1 << 20), Just(1 << 32), Just(1 << 40), Just(u64::MAX), 0u64..5000],
            24,
        ),
    ) {
        let kind = &KINDS[at];
        let mut values = values.into_iter().cycle();
        let mut given = BTreeMap::new();
        for arg in kind.args {
            let text = match arg.value {
                ArgValue::Whole => values.next().unwrap().to_string(),
                ArgValue::Sizes(n) => {
                    let sizes: Vec<String> = (0..n).map(|_| values.next().unwrap().to_string()).collect();
                    sizes.join("x")
                }
                _ => continue,
            };
            given.insert(arg.name.to_owned(), text);
        }
        if let Ok(spec) = parse_args(kind.name, &given, &CostModel::default()) {
            let _ = launch(&spec);
            if let Ok(trace) = generate(&spec) {
                prop_assert!(ValidTrace::try_from(trace).is_ok(), "{spec:?}");
            }
        }
    }
}

#[test]
fn products_of_values() {
    let vary = |list: &[(&str, &[&str])]| -> Vec<(String, Vec<String>)> {
        let values = |v: &[&str]| v.iter().map(|v| (*v).to_owned()).collect();
        list.iter()
            .map(|(n, v)| ((*n).to_owned(), values(v)))
            .collect()
    };
    let base = options("rows=64 cols=100");
    let cost = CostModel::default();
    let two = vary(&[("tile", &["4x128", "0x128"]), ("stages", &["1", "2", "3"])]);
    let all = product("softmax", &base, &two, &cost).unwrap();
    let keys: Vec<&str> = all.iter().map(|a| a.0.as_str()).collect();
    assert_eq!(keys[1], "tile=4x128 stages=2");
    assert_eq!(keys[3], "tile=0x128 stages=1");
    assert_eq!(keys.len(), 6);
    for (key, spec) in &all {
        assert_eq!(spec.is_ok(), key.starts_with("tile=4x128"), "{key}");
    }
    let alone = parse("softmax", "rows=64 cols=100 tile=4x128 stages=2").unwrap();
    assert_eq!(all[1].1.as_ref().unwrap(), &alone);
    let refused =
        |list: &[(&str, &[&str])]| product("softmax", &base, &vary(list), &cost).unwrap_err();
    let unknown = refused(&[("tyle", &["1"])]);
    assert_eq!(
        (unknown.code, unknown.path.as_str()),
        (ErrorCode::UnknownKey, "options.tyle")
    );
    assert_eq!(refused(&[("rows", &["1"])]).path, "options.rows");
    let many = ["1"; 300];
    let too_many = refused(&[("tile", &many), ("stages", &many)]);
    assert_eq!(too_many.code, ErrorCode::TooLarge);
}
