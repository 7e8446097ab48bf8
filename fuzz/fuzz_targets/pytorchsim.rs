//! Any bytes as a producer's C++ source are imported or refused; what is imported is a valid trace.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tilesim_traces::ValidTrace;
use tilesim_traces::import::pytorchsim::{Options, import_source};

fuzz_target!(|data: &[u8]| {
    for abi in [None, Some(12)] {
        let options = Options {
            abi,
            ..Options::default()
        };
        if let Ok(imported) = import_source(data, &options) {
            ValidTrace::try_from(imported.trace).expect("an imported trace is valid");
        }
    }
});
