//! Any valid trace under any launch binds or is refused, and each work-item expands or is refused in
//! bounded time, with what it says about itself true.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tilesim_traces::generate::{self, Choices};
use tilesim_traces::launch::OpKind;
use tilesim_traces::{Bound, Limits, ValidTrace, WorkItem, show};

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::new(data);
    let trace = generate::trace(&mut choices);
    let args = generate::launch(&mut choices, &trace);
    let trace = ValidTrace::try_from(trace).expect("the generator makes valid traces");
    let limits = Limits {
        max_ops_per_item: 2000,
        max_loop_iterations: 5000,
        max_steps_per_item: 100_000,
        ..Limits::default()
    };
    let Ok(bound) = Bound::new(&trace, &args, &limits) else { return };
    let mut item = WorkItem::default();
    let mut ops: Option<usize> = None;
    for index in 0..bound.items().min(20) {
        let pid = bound.pid(index);
        match bound.expand(pid, &mut item) {
            Err(error) => assert!(!error.path.is_empty(), "{error}"),
            Ok(()) => {
                let _ = show::show_item(&bound, &item);
                for op in &item.ops {
                    if let OpKind::Dma(t) = op.kind {
                        let t = item.transfers[t as usize];
                        assert!(t.valid_elements <= t.full_elements);
                        let _ = &item.dims[t.dims.range()];
                    }
                    let _ = (&item.buffers[op.reads.range()], &item.buffers[op.writes.range()]);
                }
                if bound.control_is_uniform() {
                    assert_eq!(*ops.get_or_insert(item.ops.len()), item.ops.len());
                }
            }
        }
    }
});
