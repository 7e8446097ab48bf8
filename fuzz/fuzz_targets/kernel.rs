//! Any text as the options of a kernel, as a kernel's JSON form or as a list of configurations is read
//! or refused; a kernel that is read survives its JSON form, and its trace the text form.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use tilesim_traces::kernels::{self, CostModel, KernelSpec, args, space};
use tilesim_traces::{ValidTrace, text};

fuzz_target!(|data: &str| {
    let _ = space::read_tiles(data);
    let _ = space::read_json(data, None);
    // A kind, and an option a line.
    let mut lines = data.lines();
    let kind = lines.next().unwrap_or_default();
    let options: BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let specs = [
        args::parse_args(kind, &options, &CostModel::default()),
        KernelSpec::from_json(data),
    ];
    for spec in specs.into_iter().flatten() {
        let json = serde_json::to_string(&spec).expect("a kernel can be written");
        let again = KernelSpec::from_json(&json).expect("what is written can be read");
        assert_eq!(again, spec);
        let _ = kernels::launch(&spec);
        let Ok(trace) = kernels::generate(&spec) else {
            continue;
        };
        if let Ok(trace) = ValidTrace::try_from(trace) {
            let back = text::parse_valid(&text::print(&trace)).expect("what is printed reads back");
            assert_eq!(back, trace);
        }
    }
});
