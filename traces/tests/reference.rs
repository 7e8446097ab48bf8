//! Every sample program reads, validates and expands.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use tilesim_traces::json::{import, no_files};
use tilesim_traces::launch::OpKind;
use tilesim_traces::{Bound, LaunchArgs, Limits, ValidTrace, WorkItem};

#[test]
fn samples_expand_on_their_grids() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/samples");
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "json"))
        .collect();
    names.sort();
    assert!(names.len() >= 20);
    for path in names {
        let text = std::fs::read_to_string(&path).unwrap();
        let import = import(&text, &no_files).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        let trace = ValidTrace::try_from(import.trace).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        let mut item = WorkItem::default();
        for grid in import.grids {
            let args = LaunchArgs {
                grid: grid.clone(),
                ..LaunchArgs::default()
            };
            let bound = Bound::new(&trace, &args, &Limits::default()).unwrap();
            assert!(bound.control_is_uniform());
            assert_eq!(bound.items(), grid.iter().product::<u64>());
            for index in 0..bound.items() {
                bound
                    .expand(bound.pid(index), &mut item)
                    .unwrap_or_else(|e| panic!("{path:?}: {e}"));
                assert!(item.ops.iter().any(|op| matches!(op.kind, OpKind::Dma(_))));
            }
        }
    }
}
