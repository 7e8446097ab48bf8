//! Any text is read or refused; what is read prints and reads back the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tilesim_traces::{container, text};

fuzz_target!(|data: &str| {
    let trace = match text::parse_valid(data) {
        Ok(trace) => trace,
        Err(error) => {
            assert!(!error.message.is_empty());
            let _ = error.render(data);
            return;
        }
    };
    let printed = text::print(&trace);
    let back = text::parse_valid(&printed).expect("what is printed reads back");
    assert_eq!(back, trace);
    let bytes = container::encode(&trace).expect("fits a container");
    assert_eq!(container::decode(&bytes).expect("decodes"), *trace);
});
