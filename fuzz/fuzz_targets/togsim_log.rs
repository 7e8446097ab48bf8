//! Any text as a log of the reference simulator, or as a unit table, is read or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tilesim_traces::import::togsim_log::parse_togsim_log;

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = parse_togsim_log(text);
        let _ = tilesim_core::units::parse_table(text);
    }
});
