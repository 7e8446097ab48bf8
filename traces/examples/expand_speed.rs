//! Nanoseconds per op of expansion, for the sample programs. `cargo run --release --example
//! expand_speed`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]
use std::time::Instant;

use tilesim_traces::json::{import, no_files};
use tilesim_traces::{Bound, LaunchArgs, Limits, ValidTrace, WorkItem, load_bytes};

type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

fn measure(name: &str, trace: &ValidTrace, args: &LaunchArgs) -> Fallible<()> {
    let started = Instant::now();
    let bound = Bound::new(trace, args, &Limits::default())?;
    let bind = started.elapsed();
    let mut item = WorkItem::default();
    let mut best = f64::INFINITY;
    let mut ops_per_item = 0;
    for _ in 0..20 {
        let started = Instant::now();
        let (mut ops, mut items) = (0u64, 0u64);
        while ops < 100_000 {
            bound.expand(bound.pid(items), &mut item)?;
            ops += item.ops.len() as u64;
            items += 1;
        }
        best = best.min(started.elapsed().as_nanos() as f64 / ops as f64);
        ops_per_item = ops / items;
    }
    let kind = if bound.control_is_uniform() {
        "uniform"
    } else {
        "varied"
    };
    println!("{name:24} {best:6.1} ns/op  {ops_per_item:5} ops/item  bind {bind:?}  {kind}");
    Ok(())
}

fn main() -> Fallible<()> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/samples");
    let mut paths: Vec<_> = std::fs::read_dir(folder)?
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "json"))
        .collect();
    paths.sort();
    for path in paths {
        let import = import(&std::fs::read_to_string(&path)?, &no_files)?;
        let name = import.trace.header.kernel.clone();
        let trace = ValidTrace::try_from(import.trace)?;
        let Some(grid) = import.grids.last().cloned() else {
            continue;
        };
        measure(
            &name,
            &trace,
            &LaunchArgs {
                grid,
                ..LaunchArgs::default()
            },
        )?;
    }
    for (name, grid, params) in [
        (
            "matmul_grouped.tile",
            vec![64],
            vec![("M", 1000), ("N", 1000), ("K", 1000), ("GROUP", 3)],
        ),
        (
            "matmul_grouped.tile",
            vec![64],
            vec![("M", 1024), ("N", 1024), ("K", 1024)],
        ),
        ("softmax_online.tile", vec![1024], vec![]),
        ("gather_rows.tile", vec![8, 8], vec![]),
    ] {
        let trace = load_bytes(name, &std::fs::read(format!("{folder}/{name}"))?)?;
        let params = params.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        measure(
            name,
            &trace,
            &LaunchArgs {
                grid,
                params,
                ..LaunchArgs::default()
            },
        )?;
    }
    Ok(())
}
