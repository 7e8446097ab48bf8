//! The importer of PyTorchSim kernel folders against the producers themselves: each producer of this
//! project is compiled against our own recording shim and run, and the imported trace must expand to
//! the same ops on ten grids.

#![allow(missing_docs)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use tilesim_traces::import::pytorchsim::{Imported, Options, import_source};
use tilesim_traces::launch::{OpKind, ResolvedIndirect};
use tilesim_traces::model::{Direction, Unit};
use tilesim_traces::{Bound, Limits, ValidTrace, WorkItem};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn shim() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pytorchsim/shim")
}

fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut v: Vec<_> = std::fs::read_dir(dir)
        .unwrap_or_else(|e| panic!("{dir:?}: {e}"))
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "cpp"))
        .collect();
    v.sort();
    v
}

/// g++ with the shim; loud when it is missing.
fn compile(source: &Path, abi: u32, dir: &Path) -> PathBuf {
    let exe = dir.join(source.file_stem().unwrap());
    let out = Command::new("g++")
        .args(["-std=c++17", "-O0", "-w", "-fwrapv"])
        .arg(format!("-DTOGSIM_ABI_VERSION={abi}"))
        .arg("-I")
        .arg(shim())
        .arg(source)
        .arg(shim().join("recorder.cpp"))
        .arg("-o")
        .arg(&exe)
        .output()
        .expect("g++ is needed to compare producers with their import: install it");
    assert!(
        out.status.success(),
        "{source:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    exe
}

fn record(exe: &Path, shape: &[i64]) -> Vec<Vec<String>> {
    let out = Command::new(exe)
        .args(shape.iter().map(i64::to_string))
        .output()
        .unwrap();
    assert!(out.status.success(), "{exe:?} {shape:?}");
    let mut items: Vec<Vec<String>> = Vec::new();
    for line in String::from_utf8(out.stdout).unwrap().lines() {
        if line == "I" {
            items.push(Vec::new());
        } else {
            items
                .last_mut()
                .expect("an op outside a work-item")
                .push(line.to_owned());
        }
    }
    items
}

fn ids(v: &[tilesim_traces::model::BufferId]) -> String {
    v.iter().map(|b| format!(" {}", b.0)).collect()
}

/// The ops of a work-item in the recorder's form.
fn ops(bound: &Bound, item: &WorkItem) -> Vec<String> {
    item.ops
        .iter()
        .map(|op| {
            let reads = ids(&item.buffers[op.reads.range()]);
            let writes = ids(&item.buffers[op.writes.range()]);
            match op.kind {
                OpKind::Compute { tile, unit } => {
                    let unit = match unit {
                        Unit::Vector => 0,
                        Unit::Matmul => 1,
                        Unit::Preload => 2,
                        Unit::CrossLane => 3,
                    };
                    format!("C {} {unit} |{reads} |{writes}", tile.0)
                }
                OpKind::Wait { semaphore, expected } => format!("W {} {expected}", semaphore.0),
                OpKind::Dma(i) => {
                    let t = &item.transfers[i as usize];
                    let base = i128::from(bound.tensors()[t.tensor.index()].base) * 8;
                    let offset = ((t.first_bit - base) / i128::from(t.element_bits)) as i64;
                    let dims: String = item.dims[t.dims.range()].iter().map(|d| format!(" {}", d.extent)).collect();
                    let strides: String = item.dims[t.dims.range()].iter().map(|d| format!(" {}", d.stride)).collect();
                    let sem = t.semaphore.map_or("-".to_owned(), |s| s.0.to_string());
                    let dir = i32::from(t.direction == Direction::Store);
                    let indirect = i32::from(t.indirect != ResolvedIndirect::None);
                    format!(
                        "D {dir} {} {offset} {} {sem} {indirect} |{dims} |{strides} |{reads} |{writes}",
                        t.tensor.0, t.element_bits
                    )
                }
            }
        })
        .collect()
}

/// Semaphores renamed to numbers of first appearance, where the two sides number them differently.
fn renamed(items: &[Vec<String>]) -> Vec<Vec<String>> {
    items
        .iter()
        .map(|ops| {
            let mut names: BTreeMap<String, usize> = BTreeMap::new();
            ops.iter()
                .map(|l| {
                    let mut words: Vec<String> = l.split(' ').map(str::to_owned).collect();
                    let at = match words[0].as_str() {
                        "D" if words[5] != "-" => 5,
                        "W" => 1,
                        _ => return l.clone(),
                    };
                    let n = names.len();
                    words[at] = names.entry(words[at].clone()).or_insert(n).to_string();
                    words.join(" ")
                })
                .collect()
        })
        .collect()
}

fn expanded(imported: &Imported, shape: &[i64], name: &str) -> Vec<Vec<String>> {
    let args = imported.launch(shape).unwrap();
    let mut trace = imported.trace.clone();
    for tile in &mut trace.tiles {
        tile.cycles = tile.cycles.or(Some(1));
    }
    let trace = ValidTrace::try_from(trace).unwrap_or_else(|e| panic!("{name}: {e:?}"));
    let bound =
        Bound::new(&trace, &args, &Limits::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut item = WorkItem::default();
    (0..bound.items())
        .map(|i| {
            let pid = bound.pid(i);
            bound
                .expand(pid, &mut item)
                .unwrap_or_else(|e| panic!("{name} {pid:?}: {e}"));
            ops(&bound, &item)
        })
        .collect()
}

const SHAPES: [[i64; 3]; 10] = [
    [1, 1, 1],
    [2, 2, 2],
    [3, 1, 2],
    [1, 5, 1],
    [4, 3, 2],
    [7, 2, 1],
    [2, 9, 3],
    [16, 1, 1],
    [5, 5, 2],
    [0, 3, 2],
];

/// `// key: value` in the first lines of a producer.
fn note(text: &str, key: &str) -> Option<i64> {
    text.lines()
        .take(8)
        .find_map(|l| l.strip_prefix(&format!("// {key}: "))?.trim().parse().ok())
}

fn check(source: &Path, dir: &Path) -> Imported {
    let text = std::fs::read_to_string(source).unwrap();
    let name = source.file_name().unwrap().to_string_lossy().into_owned();
    let abi = note(&text, "abi").unwrap_or(if name.contains("abi12") { 12 } else { 15 }) as u32;
    let options = Options {
        abi: note(&text, "abi").map(|a| a as u32),
        ..Options::default()
    };
    let imported = import_source(text.as_bytes(), &options)
        .unwrap_or_else(|e| panic!("{name}: {}", e.render(&text)));
    assert_eq!(imported.report.abi, abi, "{name}");
    if let Some(n) = note(&text, "unrolled") {
        assert_eq!(
            imported.report.unrolled, n as u64,
            "{name}: iterations followed one by one"
        );
    } else if std::env::var("PRODUCERS").is_err() {
        assert_eq!(imported.report.unrolled, 0, "{name}: loops must stay loops");
    }
    let exe = compile(source, abi, dir);
    let scale = note(&text, "scale").unwrap_or(1);
    for shape in SHAPES {
        let shape: Vec<i64> = shape.iter().map(|s| s * scale).collect();
        let (want, got) = (
            renamed(&record(&exe, &shape)),
            renamed(&expanded(&imported, &shape, &name)),
        );
        assert_eq!(
            want.len(),
            got.len(),
            "{name} {shape:?}: number of work-items"
        );
        for (i, (w, g)) in want.iter().zip(&got).enumerate() {
            for (k, (w, g)) in w.iter().zip(g).enumerate() {
                assert_eq!(
                    w, g,
                    "{name} {shape:?}: work-item {i}, op {k} (left: the producer)"
                );
            }
            assert_eq!(w.len(), g.len(), "{name} {shape:?}: ops of work-item {i}");
        }
    }
    // The text form says the same.
    let valid = ValidTrace::try_from(imported.trace.clone()).unwrap();
    let printed = tilesim_traces::text::print(&valid);
    let again = tilesim_traces::text::parse_valid(&printed)
        .unwrap_or_else(|e| panic!("{name}: {e}\n{printed}"));
    assert_eq!(again.digest(), valid.digest(), "{name}");
    imported
}

fn check_all(dir: &Path, name: &str) {
    let temp = std::env::temp_dir().join(format!("tilesim-import-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&temp).unwrap();
    let list = sources(dir);
    assert!(!list.is_empty());
    let only = std::env::var("ONLY").ok();
    let mut failed = Vec::new();
    for s in &list {
        if only
            .as_ref()
            .is_some_and(|o| !s.to_string_lossy().contains(o.as_str()))
        {
            continue;
        }
        if let Err(e) = std::panic::catch_unwind(|| check(s, &temp)) {
            let m = e
                .downcast_ref::<String>()
                .cloned()
                .unwrap_or_else(|| "panic".into());
            failed.push(m);
        }
    }
    let _ = std::fs::remove_dir_all(&temp);
    assert!(
        failed.is_empty(),
        "{} of {} producers:\n{}",
        failed.len(),
        list.len(),
        failed.join("\n")
    );
}

#[test]
fn golden_producers_expand_to_what_they_emit() {
    check_all(&root().join("tests/golden/producers"), "golden");
}

#[test]
fn producers_in_other_styles_expand_to_what_they_emit() {
    check_all(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pytorchsim/producers"),
        "styles",
    );
}

/// Each golden producer against the JSON form of the same program.
#[test]
fn golden_producers_equal_their_json_form() {
    let mut seen = 0;
    for source in sources(&root().join("tests/golden/producers")) {
        let name = source.file_name().unwrap().to_string_lossy().into_owned();
        let stem = name.split('.').next().unwrap();
        let json = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("samples/{stem}.json"));
        let text = std::fs::read_to_string(&json).unwrap_or_else(|e| panic!("{json:?}: {e}"));
        let form = tilesim_traces::json::import(&text, &tilesim_traces::json::no_files).unwrap();
        let valid = ValidTrace::try_from(form.trace).unwrap();
        let imported =
            import_source(&std::fs::read(&source).unwrap(), &Options::default()).unwrap();
        for grid in form
            .grids
            .iter()
            .take(2)
            .cloned()
            .chain([vec![2; usize::from(valid.axes)]])
        {
            let shape: Vec<i64> = grid.iter().map(|g| (*g).min(8) as i64).collect();
            let got = expanded(&imported, &shape, &name);
            let mut args = imported.launch(&shape).unwrap();
            args.params.clear();
            let bound = match Bound::new(&valid, &args, &Limits::default()) {
                Ok(b) => b,
                Err(e) => panic!("{name}: {e}"),
            };
            let mut item = WorkItem::default();
            for (i, g) in got.iter().enumerate() {
                // Grids other than the program's own may leave its tensors.
                if bound.expand(bound.pid(i as u64), &mut item).is_err() {
                    continue;
                }
                assert_eq!(&ops(&bound, &item), g, "{name} {shape:?} item {i}");
                seen += 1;
            }
        }
    }
    assert!(seen > 100, "{seen}");
}

/// Producers of any folder, for local experiments: `PRODUCERS=dir cargo test ... -- --ignored`.
#[test]
#[ignore = "needs PRODUCERS"]
fn producers_of_a_folder() {
    let dir = std::env::var("PRODUCERS").expect("PRODUCERS");
    check_all(Path::new(&dir), "local");
}
