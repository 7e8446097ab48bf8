//! Every sample reads, validates, expands and survives both encodings.

#![allow(missing_docs)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::PathBuf;

use tilesim_traces::json::{JsonImport, import, no_files};
use tilesim_traces::launch::{OpKind, ResolvedDim, Transfer};
use tilesim_traces::show::show;
use tilesim_traces::{
    Bound, ErrorCode, LaunchArgs, Limits, ValidTrace, WorkItem, load_bytes, to_container, to_text,
};

const SAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/samples");

fn samples(extension: &str) -> Vec<PathBuf> {
    let mut paths: Vec<_> = std::fs::read_dir(SAMPLES)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == extension))
        .collect();
    paths.sort();
    paths
}

fn json_programs() -> Vec<JsonImport> {
    let mut texts: Vec<String> = samples("json")
        .iter()
        .map(|p| std::fs::read_to_string(p).unwrap())
        .collect();
    assert_eq!(texts.len(), 20);
    let random = std::fs::read_to_string(format!("{SAMPLES}/random/programs.jsonl")).unwrap();
    texts.extend(random.lines().map(str::to_owned));
    assert_eq!(texts.len(), 81);
    texts
        .iter()
        .map(|t| import(t, &no_files).unwrap())
        .collect()
}

fn load(name: &str) -> ValidTrace {
    let bytes = std::fs::read(format!("{SAMPLES}/{name}")).unwrap();
    load_bytes(name, &bytes).unwrap_or_else(|e| panic!("{e}"))
}

fn bind(trace: &ValidTrace, grid: &[u64], params: &[(&str, i64)]) -> Bound {
    let args = LaunchArgs {
        grid: grid.to_vec(),
        params: params.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect(),
        ..LaunchArgs::default()
    };
    Bound::new(trace, &args, &Limits::default()).unwrap_or_else(|e| panic!("{e}"))
}

fn both_encodings(trace: &ValidTrace) {
    let text = load_bytes("text", to_text(trace).as_bytes()).unwrap();
    let container = load_bytes("container", &to_container(trace).unwrap()).unwrap();
    assert_eq!(&text, trace);
    assert_eq!(&container, trace);
    assert_eq!(text.digest(), container.digest());
}

#[test]
fn json_programs_expand_on_their_grids() {
    for import in json_programs() {
        let trace = ValidTrace::try_from(import.trace).unwrap();
        both_encodings(&trace);
        let mut item = WorkItem::default();
        assert!(!import.grids.is_empty());
        for grid in import.grids {
            let bound = bind(&trace, &grid, &[]);
            assert!(bound.control_is_uniform());
            assert_eq!(bound.items(), grid.iter().product::<u64>());
            for index in 0..bound.items().min(1000) {
                bound.expand(bound.pid(index), &mut item).unwrap();
                assert!(!item.ops.is_empty());
            }
        }
    }
}

/// A transfer with its dims, as plain values.
fn transfers(item: &WorkItem) -> Vec<(Transfer, Vec<ResolvedDim>)> {
    item.transfers
        .iter()
        .map(|t| {
            let dims = item.dims[t.dims.range()].to_vec();
            (
                Transfer {
                    dims: Default::default(),
                    ..*t
                },
                dims,
            )
        })
        .collect()
}

#[test]
fn text_and_json_samples_of_one_kernel_agree() {
    let json = load("gemm512_core_serial.json");
    let text = load("gemm512_core_serial.tile");
    let (mut a, mut b) = (WorkItem::default(), WorkItem::default());
    for pid in [[0, 0, 0], [3, 1, 0]] {
        bind(&json, &[4, 4], &[]).expand(pid, &mut a).unwrap();
        bind(&text, &[4, 4], &[]).expand(pid, &mut b).unwrap();
        assert_eq!(a.ops, b.ops);
        assert_eq!(a.buffers, b.buffers);
        assert_eq!(transfers(&a), transfers(&b));
        assert_eq!(a.out_of_bounds, b.out_of_bounds);
    }
    let costs = |t: &ValidTrace| {
        t.tiles
            .iter()
            .map(|t| (t.cycles, t.overlap))
            .collect::<Vec<_>>()
    };
    assert_eq!(costs(&json), costs(&text));
}

#[test]
fn text_samples_expand() {
    for path in samples("tile") {
        both_encodings(&load(path.file_name().unwrap().to_str().unwrap()));
    }
    let mut item = WorkItem::default();

    // 1000 x 1000 outputs: 8 x 8 tiles, the last row and column masked to 104.
    let trace = load("matmul_grouped.tile");
    let bound = bind(
        &trace,
        &[64],
        &[("M", 1000), ("N", 1000), ("K", 1000), ("GROUP", 3)],
    );
    assert!(!bound.control_is_uniform());
    let (mut stored, mut seen) = (0, std::collections::BTreeSet::new());
    for index in 0..bound.items() {
        bound.expand(bound.pid(index), &mut item).unwrap();
        let store = item.transfers.last().unwrap();
        stored += store.valid_elements;
        assert!(seen.insert(store.first_bit));
    }
    assert_eq!(stored, 1_000_000);
    let whole = bind(&trace, &[64], &[("M", 1024), ("N", 1024), ("K", 1024)]);
    assert!(
        whole.control_is_uniform(),
        "without edges every work-item does the same"
    );

    let bound = bind(&load("softmax_online.tile"), &[3], &[("COLS", 10_000)]);
    assert!(bound.control_is_uniform());
    bound.expand([2, 0, 0], &mut item).unwrap();
    let computes = item
        .ops
        .iter()
        .filter(|op| matches!(op.kind, OpKind::Compute { .. }))
        .count();
    assert_eq!(computes, 6);

    let bound = bind(&load("gather_rows.tile"), &[4, 4], &[]);
    bound.expand([3, 1, 0], &mut item).unwrap();
    assert_eq!(item.transfers[0].valid_elements, 1024);
}

#[test]
fn show_reads_well() {
    let bound = bind(&load("gemm512_core_serial.tile"), &[4, 4], &[]);
    let text = show(&bound, [3, 1, 0]).unwrap();
    for line in [
        "work-item (3, 1) of grid 4 x 4: 38 ops, 9 transfers\n",
        "tensor B 32 bit [512, 512] at 0x100000, 1048576 bytes\n",
        "6 transfers leave their tensors\n",
        " 0  compute init vector 183 cycles writes [acc]\n",
        " 2  load    A at 0x300000 dims [128:1, 512:512] 65536 x 32 bit = 262144 bytes async 0 writes [a]\n",
        " 5  wait    0 for 65536 elements\n",
    ] {
        assert!(text.contains(line), "{line}not in\n{text}");
    }
}

#[test]
fn bytes_that_are_no_trace() {
    let code = |bytes: &[u8]| load_bytes("x", bytes).unwrap_err().code;
    assert_eq!(code(b"\xff\xfe\x00"), ErrorCode::UnknownFormat);
    assert_eq!(code(b""), ErrorCode::Syntax);
    assert_eq!(code(b"{}"), ErrorCode::MissingKey);
    assert_eq!(code(b"hello"), ErrorCode::Syntax);
    assert_eq!(code(b"\x89TSTR\r\n\x1a"), ErrorCode::Corrupt);
    let mut marked = b"\xef\xbb\xbf".to_vec();
    marked.extend_from_slice(b"tilesim trace 1 axes 1 body { }");
    load_bytes("", &marked).unwrap();
    assert!(
        load_bytes("my.tile", b"hello")
            .unwrap_err()
            .message
            .starts_with("my.tile: ")
    );
}

/// Results are stored under digests: these lines change only when a sample does, or with a new digest
/// domain. `UPDATE_GOLDEN=1` writes them anew.
#[test]
fn digests_of_samples_stay() {
    let mut lines = String::new();
    for path in samples("json").into_iter().chain(samples("tile")) {
        let name = path.file_name().unwrap().to_str().unwrap();
        lines.push_str(&format!("{} {name}\n", load(name).digest()));
    }
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/digests.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(golden, &lines).unwrap();
    }
    assert_eq!(lines, std::fs::read_to_string(golden).unwrap());
}
