//! The kernel library: every expansion is checked element by element against what the problem says.

#![allow(missing_docs)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;

use proptest::prelude::*;
use tilesim_traces::kernels::*;
use tilesim_traces::launch::OpKind;
use tilesim_traces::model::{Bounds, CostSource, Direction, Resources};
use tilesim_traces::{
    Bound, ErrorCode, Limits, ValidTrace, WorkItem, load_bytes, to_container, to_text,
};

fn spec(kernel: Kernel) -> KernelSpec {
    KernelSpec::new(kernel, small())
}

/// An array of 8 x 8, so that small tiles have several pieces.
fn small() -> CostModel {
    CostModel {
        array_rows: 8,
        array_cols: 8,
        ..CostModel::default()
    }
}

/// How often each element of each tensor moved.
type Moved = BTreeMap<String, Vec<u32>>;

/// Expands every work-item of the kernel, checks each, and counts elements.
fn expand(spec: &KernelSpec) -> Moved {
    let trace = generate(spec).unwrap_or_else(|e| panic!("{e}\n{spec:?}"));
    assert_eq!(trace.bounds, Bounds::Strict);
    let trace = ValidTrace::try_from(trace).unwrap_or_else(|e| panic!("{e}\n{spec:?}"));
    let args = launch(spec).unwrap();
    let bound = Bound::new(&trace, &args, &Limits::default()).unwrap_or_else(|e| panic!("{e}"));
    let mut moved = Moved::new();
    for (tensor, info) in trace.tensors.iter().zip(bound.tensors()) {
        moved.insert(tensor.name.clone(), vec![0; info.elements as usize]);
    }
    let mut item = WorkItem::default();
    for index in 0..bound.items() {
        bound
            .expand(bound.pid(index), &mut item)
            .unwrap_or_else(|e| panic!("{e}\n{spec:?}\n{}", to_text(&trace)));
        check_item(&trace, &item);
        for t in &item.transfers {
            let tensor = &trace.tensors[t.tensor.index()];
            let base = i128::from(bound.tensors()[t.tensor.index()].base) * 8;
            let first = (t.first_bit - base) / i128::from(t.element_bits);
            let counts = moved.get_mut(&tensor.name).unwrap();
            let mut offsets = vec![first];
            for dim in &item.dims[t.dims.range()] {
                offsets = offsets
                    .iter()
                    .flat_map(|o| {
                        (0..dim.extent).map(move |i| o + i128::from(i) * i128::from(dim.stride))
                    })
                    .collect();
            }
            assert_eq!(offsets.len() as u64, t.valid_elements);
            for offset in offsets {
                counts[usize::try_from(offset).unwrap()] += 1;
            }
        }
    }
    moved
}

/// Semaphores and waits match, no buffer is read before its data is waited for, and every transfer
/// fits its buffer.
fn check_item(trace: &ValidTrace, item: &WorkItem) {
    let mut signalled: BTreeMap<u32, (u64, Vec<u32>)> = BTreeMap::new();
    let mut pending = vec![false; trace.buffers.len()];
    for op in &item.ops {
        let reads = &item.buffers[op.reads.range()];
        let writes = &item.buffers[op.writes.range()];
        for b in reads {
            assert!(
                !pending[b.index()],
                "{} is read before its wait",
                trace.buffers[b.index()].name
            );
        }
        match op.kind {
            OpKind::Dma(number) => {
                let t = &item.transfers[number as usize];
                let bytes = (t.full_elements * u64::from(t.element_bits)).div_ceil(8);
                let touched = if t.direction == Direction::Load {
                    writes
                } else {
                    reads
                };
                for b in touched {
                    let buffer = &trace.buffers[b.index()];
                    assert!(
                        bytes <= buffer.bytes || buffer.bytes == 0,
                        "{}",
                        buffer.name
                    );
                }
                if let Some(semaphore) = t.semaphore {
                    let entry = signalled.entry(semaphore.0).or_default();
                    entry.0 += t.full_elements;
                    for b in writes {
                        assert!(!pending[b.index()]);
                        pending[b.index()] = true;
                        entry.1.push(b.0);
                    }
                }
            }
            OpKind::Wait {
                semaphore,
                expected,
            } => {
                let (elements, buffers) = signalled.remove(&semaphore.0).expect("a signal");
                assert_eq!(elements, expected);
                for b in buffers {
                    pending[b as usize] = false;
                }
            }
            OpKind::Compute { .. } => {
                for b in writes {
                    assert!(!pending[b.index()]);
                }
            }
        }
    }
    assert!(signalled.is_empty(), "loads nobody waits for");
}

fn all(counts: &[u32], value: u64) {
    let wrong = counts.iter().position(|c| u64::from(*c) != value);
    assert_eq!(
        wrong,
        None,
        "an element moved {} times, not {value}",
        counts[wrong.unwrap()]
    );
}

const SIZES: &[u64] = &[1, 2, 3, 7, 8, 13, 16, 17, 31, 32, 37, 41];

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![proptest::sample::select(SIZES), 1u64..48]
}

fn tile() -> impl Strategy<Value = u64> {
    proptest::sample::select(&[1u64, 3, 4, 8, 11, 16, 32, 64][..])
}

prop_compose! {
    fn matmul()(
        mnk in [size(), size(), size()],
        tile in [tile(), tile(), tile()],
        (batch, shared_b) in prop_oneof![
            Just((None, false)), (1u64..4, any::<bool>()).prop_map(|(b, s)| (Some(b), s))
        ],
        (stages, group, split_k, persistent) in (0u32..5, 1u64..5, 1u64..5, 0u64..8),
        (trans_a, trans_b, systolic, acc_in_registers) in any::<(bool, bool, bool, bool)>(),
        dtype in proptest::sample::select(&[ElementType::F16, ElementType::I8, ElementType::F32, ElementType::I4][..]),
    ) -> Matmul {
        Matmul {
            batch, shared_b, stages, group, split_k, persistent, dtype, trans_a, trans_b, acc_in_registers,
            form: if systolic { Form::Systolic } else { Form::Dot },
            ..Matmul::new(mnk[0], mnk[1], mnk[2], tile)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn matmul_moves_what_it_must(m in matmul()) {
        let moved = expand(&spec(Kernel::Matmul(m.clone())));
        let down = m.m.div_ceil(m.tile[0]);
        let across = m.n.div_ceil(m.tile[1]);
        // Every element of A once per column of tiles, of B once per row of tiles, of C once.
        all(&moved["A"], across);
        all(&moved["B"], down * if m.shared_b { m.batch.unwrap() } else { 1 });
        all(&moved["C"], 1);
        let batch = m.batch.unwrap_or(1);
        prop_assert_eq!(moved["C"].len() as u64, m.split_k * batch * m.m * m.n);
        prop_assert_eq!(moved["A"].len() as u64, batch * m.m * m.k);
    }

    #[test]
    fn conv_moves_what_it_must(
        (images, channels, filters) in (1u64..3, 1u64..7, 1u64..7),
        (height, width) in (1u64..14, 1u64..14),
        kernel in [1u64..4, 1u64..4],
        stride in [1u64..4, 1u64..4],
        padding in [0u64..3, 0u64..3],
        dilation in [1u64..3, 1u64..3],
        tile in [1u64..6, 1u64..6, 1u64..9, 1u64..9],
        stages in 0u32..4,
        (nchw, systolic) in any::<(bool, bool)>(),
    ) {
        let conv = Conv {
            images, height, width, channels, filters, kernel, stride, padding, dilation, tile, stages,
            layout: if nchw { ConvLayout::Nchw } else { ConvLayout::Nhwc },
            dtype: ElementType::F16, acc: ElementType::F32,
            form: if systolic { Form::Systolic } else { Form::Dot },
            acc_in_registers: false,
        };
        let Ok([rows, cols]) = conv.result() else {
            prop_assert!(generate(&spec(Kernel::Conv(conv))).is_err());
            return Ok(());
        };
        let moved = expand(&spec(Kernel::Conv(conv)));
        all(&moved["Y"], 1);
        prop_assert_eq!(moved["Y"].len() as u64, images * rows * cols * filters);
        let blocks = filters.div_ceil(tile[2]);
        all(&moved["FILTER"], images * rows.div_ceil(tile[0]) * cols.div_ceil(tile[1]));
        // A pixel moves once for every result and position of the filter that meet it.
        let meets = |size: u64, out: u64, axis: usize| -> Vec<u64> {
            let mut counts = vec![0; size as usize];
            for i in 0..out {
                for f in 0..kernel[axis] {
                    let at = (i * stride[axis] + f * dilation[axis]).wrapping_sub(padding[axis]);
                    if at < size {
                        counts[at as usize] += 1;
                    }
                }
            }
            counts
        };
        let (down, across) = (meets(height, rows, 0), meets(width, cols, 1));
        let mut want = Vec::new();
        for _ in 0..images {
            for outer in 0..if nchw { channels } else { 1 } {
                let _ = outer;
                for y in &down {
                    for x in &across {
                        for _ in 0..if nchw { 1 } else { channels } {
                            want.push((y * x * blocks) as u32);
                        }
                    }
                }
            }
        }
        prop_assert_eq!(&moved["X"], &want);
    }

    #[test]
    fn rows_move_once_or_twice(
        (rows, cols) in (size(), size()),
        tile in [tile(), tile()],
        (online, softmax) in any::<(bool, bool)>(),
        stages in 0u32..4,
    ) {
        let online = online || cols > tile[1];
        let dtype = ElementType::F32;
        let (kernel, norm) = if softmax {
            (Kernel::Softmax(Softmax { rows, cols, tile, online, stages, dtype }), false)
        } else {
            (Kernel::LayerNorm(LayerNorm { rows, cols, tile, online, stages, dtype }), true)
        };
        let moved = expand(&spec(kernel));
        all(&moved["X"], 1 + u64::from(online));
        all(&moved["Y"], 1);
        if norm {
            all(&moved["W"], rows.div_ceil(tile[0]));
            all(&moved["B"], rows.div_ceil(tile[0]));
        }
    }

    #[test]
    fn attention_moves_what_it_must(
        (kv_heads, share) in (1u64..3, 1u64..4),
        (queries, keys, head_dim) in (size(), size(), 1u64..20),
        tile in [tile(), tile()],
        (causal, systolic, acc_in_registers) in any::<(bool, bool, bool)>(),
        stages in 0u32..4,
    ) {
        let a = Attention {
            share, causal, stages, acc_in_registers,
            form: if systolic { Form::Systolic } else { Form::Dot },
            ..Attention::new(kv_heads * share, queries, keys, head_dim, tile)
        };
        let moved = expand(&spec(Kernel::Attention(a)));
        all(&moved["Q"], 1);
        all(&moved["O"], 1);
        // A key moves with its block, for each tile of queries of which some query sees the block.
        let mut want = Vec::new();
        for key in 0..keys {
            let first = key / tile[1] * tile[1];
            let tiles = (0..queries.div_ceil(tile[0])).filter(|t| {
                let last = (t * tile[0] + tile[0]).min(queries) - 1;
                !causal || (last + keys).checked_sub(queries).is_some_and(|seen| first <= seen)
            });
            want.push(tiles.count() as u64 * share);
        }
        for tensor in ["K", "V"] {
            let counts = &moved[tensor];
            prop_assert_eq!(counts.len() as u64, kv_heads * keys * head_dim);
            for (i, count) in counts.iter().enumerate() {
                let key = i as u64 / head_dim % keys;
                prop_assert_eq!(u64::from(*count), want[key as usize]);
            }
        }
    }

    #[test]
    fn pointwise_kernels_move_once(
        (rows, cols) in (size(), size()),
        tile in [tile(), tile()],
        (inputs, axis, stages) in (0u32..5, 0u32..2, 0u32..4),
    ) {
        let dtype = ElementType::F16;
        let e = Elementwise { n: rows * cols, block: tile[0] * tile[1], inputs, ops: 2, dtype };
        let moved = expand(&spec(Kernel::Elementwise(e)));
        prop_assert_eq!(moved.len(), inputs as usize + 1);
        moved.values().for_each(|counts| all(counts, 1));
        let r = Reduction { rows, cols, axis, tile, stages, dtype, out: None };
        let moved = expand(&spec(Kernel::Reduction(r)));
        moved.values().for_each(|counts| all(counts, 1));
        prop_assert_eq!(moved["Y"].len() as u64, if axis == 1 { rows } else { cols });
    }
}

fn example(kind: &str) -> KernelSpec {
    let text = match kind {
        "matmul" => "m=100 n=70 k=50 tile=32x32x16 stages=3 group=2",
        "batched_matmul" => {
            "batch=3 m=20 n=24 k=33 tile=16x16x16 form=systolic array=16x8 stages=0 split-k=2"
        }
        "conv" => {
            "images=2 height=9 width=7 channels=5 filters=6 kernel=3x3 padding=1x1 stride=2x1 tile=4x4x8x4"
        }
        "softmax" => "rows=10 cols=100 tile=4x32 online=true",
        "layer_norm" => "rows=10 cols=100 tile=4x128",
        "attention" => "heads=4 share=2 queries=50 keys=60 head_dim=16 tile=16x16 causal=true",
        "elementwise" => "n=1000 block=256",
        "reduction" => "rows=10 cols=100 tile=4x32",
        other => panic!("{other}"),
    };
    parsed(kind, text)
}

fn parsed(kind: &str, text: &str) -> KernelSpec {
    let options = text
        .split(' ')
        .map(|o| o.split_once('=').unwrap())
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect();
    args::parse_args(kind, &options, &CostModel::default())
        .unwrap_or_else(|e| panic!("{kind}: {e}"))
}

#[test]
fn golden_texts() {
    let update = std::env::var_os("TILESIM_UPDATE").is_some();
    for kind in args::KINDS {
        let spec = example(kind.name);
        expand(&spec);
        let mut trace = generate(&spec).unwrap();
        trace.header.producer_version.clear();
        let trace = ValidTrace::try_from(trace).unwrap();
        let text = to_text(&trace);
        let path = format!(
            "{}/testdata/kernels/{}.tile",
            env!("CARGO_MANIFEST_DIR"),
            kind.name
        );
        if update {
            std::fs::write(&path, &text).unwrap();
        }
        let golden = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        assert_eq!(text, golden, "{path}; TILESIM_UPDATE=1 writes it anew");
        let back = load_bytes(kind.name, text.as_bytes()).unwrap();
        assert_eq!(back, trace);
        let container = load_bytes(kind.name, &to_container(&trace).unwrap()).unwrap();
        assert_eq!(container.digest(), trace.digest());
        let json = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<KernelSpec>(&json).unwrap(), spec);
    }
}

#[test]
fn a_kernel_says_what_a_work_item_takes() {
    let text = "m=64 n=64 k=64 tile=16x16x16";
    let plain = ValidTrace::try_from(generate(&parsed("matmul", text)).unwrap()).unwrap();
    let spec = parsed("matmul", &format!("{text} registers=65536 threads=256"));
    let trace = ValidTrace::try_from(generate(&spec).unwrap()).unwrap();
    assert_eq!(
        trace.resources,
        Resources {
            registers: 65_536,
            threads: 256
        }
    );
    assert_ne!(trace.digest(), plain.digest());
    let text = to_text(&trace);
    assert!(
        text.contains("\nresources registers 65536 threads 256\n"),
        "{text}"
    );
    for bytes in [text.into_bytes(), to_container(&trace).unwrap()] {
        assert_eq!(load_bytes("k", &bytes).unwrap(), trace);
    }
    let json = r#"{"axes": 1, "tensors": [[8, 8, 4]], "spad_buffer_bytes": [], "cycle_table": [],
        "body": [], "threads": 128}"#;
    let trace = load_bytes("k.json", json.as_bytes()).unwrap();
    assert_eq!(trace.resources.threads, 128);
}

#[test]
fn one_trace_serves_several_shapes() {
    let digest = |m, n, k| {
        let s = spec(Kernel::Matmul(Matmul::new(m, n, k, [64, 64, 32])));
        ValidTrace::try_from(generate(&s).unwrap())
            .unwrap()
            .digest()
    };
    assert_eq!(digest(4096, 4096, 4096), digest(1, 7919, 104_729));
}

#[test]
fn groups_share_columns_as_in_triton() {
    // The order of Triton's tutorial, for 5 x 3 tiles in groups of 2.
    let (tiles_m, tiles_n, group) = (5u64, 3u64, 2u64);
    let m = Matmul {
        group,
        ..Matmul::new(tiles_m * 4, tiles_n * 4, 4, [4, 4, 4])
    };
    let s = spec(Kernel::Matmul(m));
    let trace = ValidTrace::try_from(generate(&s).unwrap()).unwrap();
    let bound = Bound::new(&trace, &launch(&s).unwrap(), &Limits::default()).unwrap();
    let mut item = WorkItem::default();
    for pid in 0..tiles_m * tiles_n {
        bound.expand([pid, 0, 0], &mut item).unwrap();
        let in_group = group * tiles_n;
        let first = pid / in_group * group;
        let size = (tiles_m - first).min(group);
        let (row, col) = (first + pid % in_group % size, pid % in_group / size);
        let store = item.transfers.last().unwrap();
        let base = i128::from(bound.tensors()[store.tensor.index()].base) * 8;
        let offset = (store.first_bit - base) / i128::from(store.element_bits);
        assert_eq!(offset, i128::from(row * 4 * tiles_n * 4 + col * 4));
    }
}

#[test]
fn descriptions_are_complete() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/KERNELS.md")).unwrap();
    let words = MatmulFormula::ALL.iter().map(|(word, _)| *word);
    for word in args::KINDS.iter().map(|k| k.name).chain(words) {
        assert!(
            text.contains(&format!("`{word}`")),
            "KERNELS.md lacks {word}"
        );
    }
}

#[test]
fn specs_from_json() {
    let text =
        r#"{"kernel": {"softmax": {"rows": 4, "cols": 9, "tile": [2, 16]}}, "cost": {"lanes": 8}}"#;
    let spec = KernelSpec::from_json(text).unwrap();
    assert_eq!(spec.cost.lanes, 8);
    let e = KernelSpec::from_json(&text.replace("lanes", "lane")).unwrap_err();
    assert_eq!(e.code, ErrorCode::BadValue);
    assert!(e.message.contains("unknown field `lane`"), "{e}");
    assert_eq!(e.at.unwrap().line, 1);
    let e = KernelSpec::from_json(&text.replace("16]", "8]")).unwrap_err();
    assert_eq!(e.path, "kernel.softmax.tile[1]");
    assert_eq!(
        KernelSpec::from_json("{").unwrap_err().code,
        ErrorCode::Syntax
    );
    let long = " ".repeat(MAX_SPEC_BYTES + 1);
    assert_eq!(
        KernelSpec::from_json(&long).unwrap_err().code,
        ErrorCode::TooLarge
    );
}

#[test]
fn systolic_edges_skip_pieces() {
    // 8 x 8 array; B tiles of 16 x 16; K = 17 and N = 9: pieces 2 x 2 and then 1 x 2.
    let m = Matmul {
        form: Form::Systolic,
        ..Matmul::new(5, 9, 17, [8, 16, 16])
    };
    let s = spec(Kernel::Matmul(m));
    let trace = ValidTrace::try_from(generate(&s).unwrap()).unwrap();
    let bound = Bound::new(&trace, &launch(&s).unwrap(), &Limits::default()).unwrap();
    let mut item = WorkItem::default();
    bound.expand([0, 0, 0], &mut item).unwrap();
    let name = |t: tilesim_traces::model::TileId| trace.tiles[t.index()].name.as_str();
    let runs = |wanted: &str| {
        let is = |k: &OpKind| matches!(k, OpKind::Compute { tile, .. } if name(*tile) == wanted);
        item.ops.iter().filter(|op| is(&op.kind)).count()
    };
    assert_eq!((runs("push"), runs("stream")), (6, 6));
}

#[test]
fn costs_given_replace_formulas() {
    let mut s = spec(Kernel::Matmul(Matmul::new(64, 64, 64, [32, 32, 32])));
    let formula = generate(&s).unwrap();
    let names: Vec<&str> = formula.tiles.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["zero", "dot", "cast", "release"]);
    assert!(
        formula
            .tiles
            .iter()
            .take(3)
            .all(|t| matches!(t.source, CostSource::Analytic(_)))
    );
    assert_eq!(formula.header.measured_on.unwrap().array_rows, Some(8));
    s.cost.table = CostModel::read_table("1\t0\n20\t4\n3\t0\n").unwrap();
    s.cost.fixed.insert(
        "cast".into(),
        GivenCost {
            cycles: 9,
            overlap: 0,
        },
    );
    let given = generate(&s).unwrap();
    let costs: Vec<_> = given.tiles.iter().map(|t| (t.cycles, t.overlap)).collect();
    assert_eq!(
        costs,
        [(Some(1), 0), (Some(20), 4), (Some(9), 0), (Some(0), 0)]
    );
    assert_eq!(given.tiles[1].source, CostSource::Measured);
    assert_eq!(given.tiles[2].source, CostSource::Declared);
    s.cost.table.pop();
    let e = generate(&s).unwrap_err();
    assert_eq!(
        (e.path.as_str(), e.message.as_str()),
        ("cost.table", "2 rows for 3 tiles")
    );
    assert_eq!(
        e.hint.unwrap(),
        "a row each, in this order: zero, dot, cast"
    );
    s.cost.table.clear();
    s.cost.fixed.insert("dott".into(), GivenCost::default());
    assert_eq!(generate(&s).unwrap_err().code, ErrorCode::UnknownTile);
}

#[test]
fn values_out_of_range() {
    let base = Matmul::new(64, 64, 64, [32, 32, 32]);
    let cases = [
        (
            Matmul {
                m: 0,
                ..base.clone()
            },
            "kernel.matmul.m",
        ),
        (
            Matmul {
                k: MAX_SIZE + 1,
                ..base.clone()
            },
            "kernel.matmul.k",
        ),
        (
            Matmul {
                tile: [32, 0, 32],
                ..base.clone()
            },
            "kernel.matmul.tile[1]",
        ),
        (
            Matmul {
                tile: [32, 32, u64::MAX],
                ..base.clone()
            },
            "kernel.matmul.tile[2]",
        ),
        (
            Matmul {
                stages: 65,
                ..base.clone()
            },
            "kernel.matmul.stages",
        ),
        (
            Matmul {
                group: 0,
                ..base.clone()
            },
            "kernel.matmul.group",
        ),
        (
            Matmul {
                split_k: 0,
                ..base.clone()
            },
            "kernel.matmul.split_k",
        ),
        (
            Matmul {
                shared_b: true,
                ..base.clone()
            },
            "kernel.matmul.shared_b",
        ),
        (
            Matmul {
                batch: Some(0),
                ..base.clone()
            },
            "kernel.matmul.batch",
        ),
    ];
    for (kernel, path) in cases {
        let e = generate(&spec(Kernel::Matmul(kernel))).unwrap_err();
        assert_eq!(e.path, path);
        assert!(e.hint.is_some());
    }
    // The largest of everything neither overflows nor panics.
    let most = Matmul {
        batch: Some(MAX_SIZE),
        split_k: 1 << 16,
        stages: MAX_STAGES,
        group: 1 << 32,
        ..Matmul::new(MAX_SIZE, MAX_SIZE, MAX_SIZE, [1; 3])
    };
    let most = spec(Kernel::Matmul(most));
    assert_eq!(launch(&most).unwrap_err().code, ErrorCode::GridOverflow);
    ValidTrace::try_from(generate(&most).unwrap()).unwrap();
    let large = Matmul::new(1, 1, 1, [MAX_TILE; 3]);
    generate(&spec(Kernel::Matmul(large))).unwrap_err();
    let narrow = Softmax {
        online: false,
        ..Softmax::new(4, 100, [4, 64])
    };
    assert_eq!(
        generate(&spec(Kernel::Softmax(narrow))).unwrap_err().path,
        "kernel.softmax.tile[1]"
    );
    let uneven = Attention {
        share: 2,
        ..Attention::new(3, 4, 4, 4, [4, 4])
    };
    assert_eq!(
        generate(&spec(Kernel::Attention(uneven))).unwrap_err().path,
        "kernel.attention.share"
    );
    let unknown = r#"{"kernel": {"matmul": {"m": 1, "n": 1, "k": 1, "tile": [1, 1, 1], "x": 1}}}"#;
    assert!(serde_json::from_str::<KernelSpec>(unknown).is_err());
}

#[test]
fn most_stages_fit_the_format() {
    for stages in [1, 2, MAX_STAGES] {
        let s = spec(Kernel::Matmul(Matmul {
            stages,
            ..Matmul::new(9, 9, 300, [8, 8, 2])
        }));
        let moved = expand(&s);
        all(&moved["C"], 1);
        all(&moved["A"], 2);
    }
}

/// Where tiles divide the sizes, every work-item has the same shape, and the binder can tell: such
/// launches share one dependency graph.
#[test]
fn even_tiles_are_uniform() {
    for (kind, text) in [
        (
            "matmul",
            "m=4096 n=4096 k=4096 tile=128x128x64 stages=4 group=8",
        ),
        ("matmul", "m=4096 n=4096 k=4096 tile=128x128x64 stages=4"),
        (
            "matmul",
            "m=512 n=384 k=1024 tile=128x128x64 stages=0 form=systolic split_k=2",
        ),
        (
            "matmul",
            "m=512 n=384 k=1024 tile=128x128x64 trans_a=true trans_b=true",
        ),
        (
            "batched_matmul",
            "batch=3 m=512 n=384 k=1024 tile=128x128x64 group=2 split_k=4",
        ),
        (
            "conv",
            "images=2 height=16 width=16 channels=32 filters=64 kernel=1x1 tile=4x16x32x16",
        ),
        (
            "conv",
            "images=2 height=18 width=18 channels=32 filters=64 kernel=3x3 tile=4x8x32x16",
        ),
        ("softmax", "rows=64 cols=1024 tile=8x256 online=true"),
        ("softmax", "rows=64 cols=1024 tile=8x1024"),
        ("layer_norm", "rows=64 cols=1024 tile=8x256 online=true"),
        ("layer_norm", "rows=64 cols=1000 tile=8x1024"),
        (
            "attention",
            "heads=4 queries=512 keys=512 head_dim=64 tile=128x64",
        ),
        ("elementwise", "n=65536 block=1024"),
        ("reduction", "rows=64 cols=1024 tile=8x256"),
        ("reduction", "rows=1024 cols=64 axis=0 tile=256x8"),
    ] {
        let s = parsed(kind, text);
        let trace = ValidTrace::try_from(generate(&s).unwrap()).unwrap();
        let bound = Bound::new(&trace, &launch(&s).unwrap(), &Limits::default()).unwrap();
        assert!(
            bound.control_is_uniform(),
            "{kind} {text}\n{}",
            to_text(&trace)
        );
    }
}
