//! Any JSON is read or refused; what is read survives the text form.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tilesim_traces::json::{import, no_files};
use tilesim_traces::{Bound, LaunchArgs, Limits, ValidTrace, WorkItem, text};

fuzz_target!(|data: &str| {
    let Ok(import) = import(data, &no_files) else { return };
    let Ok(trace) = ValidTrace::try_from(import.trace) else { return };
    let back = text::parse_valid(&text::print(&trace)).expect("what is printed reads back");
    assert_eq!(back, trace);
    let limits = Limits { max_ops_per_item: 1000, max_loop_iterations: 1000, ..Limits::default() };
    let mut item = WorkItem::default();
    for grid in import.grids.into_iter().take(2) {
        let args = LaunchArgs { grid, ..LaunchArgs::default() };
        if let Ok(bound) = Bound::new(&trace, &args, &limits)
            && bound.items() > 0
        {
            let _ = bound.expand(bound.pid(0), &mut item);
        }
    }
});
