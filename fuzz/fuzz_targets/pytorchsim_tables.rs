//! Any bytes as one of the small files of a kernel folder are read or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tilesim_traces::import::pytorchsim::{
    parse_cycle_table, parse_gem5_stats, parse_kernel_json, parse_numbers, parse_tile_types,
    parse_units,
};

fuzz_target!(|data: &[u8]| {
    let _ = parse_cycle_table(data, "trace_cycles.tsv");
    let _ = parse_units(data, "units.tsv");
    let _ = parse_gem5_stats(data, "m5out/stats.txt");
    let _ = parse_tile_types(data, "tile_types.json");
    let _ = parse_kernel_json(data, "kernel.json");
    for columns in [0, 1, 3] {
        let _ = parse_numbers(data, "trace_tensor_shapes.txt", columns);
    }
});
