//! Any text as a machine file of either schema, or as a file that one names, is read or refused; what
//! is read survives being written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tilesim_core::machine::{Machine, import::ImportOptions, load};

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    // Everything after a line of dashes is the file that the machine file names.
    let (text, named) = text.split_once("\n----\n").unwrap_or((text, ""));
    let resolver = |_: &str| match named {
        "" => Err("not found".to_owned()),
        named => Ok(named.to_owned()),
    };
    for as_configured in [false, true] {
        let options = ImportOptions { as_configured };
        if let Ok(loaded) = load("fuzz", text, &resolver, options) {
            let yaml = loaded.machine.to_yaml().expect("a machine can be written");
            let again = Machine::from_yaml(&yaml).expect("what is written can be read");
            assert_eq!(again.digest(), loaded.machine.digest());
            for row in &loaded.report {
                let _ = row.to_string();
            }
        }
    }
});
