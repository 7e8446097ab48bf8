//! Times of the parts: DRAM alone, one NoC port, expansion and graph building, one launch.
//!
//! `cargo bench -p tilesim-benches --bench parts -- [FILTER]`

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tilesim_benches::golden::Loaded;
use tilesim_core::dram::{Channel, DramSpec};
use tilesim_core::graph::{Graph, GraphBuilder, GraphContext, TileCost};
use tilesim_core::memory::arbiter::{Arbiter, Packet};
use tilesim_traces::launch::WorkItem;
use tilesim_traces::{Bound, Limits};

const REQUESTS: u64 = 65_536;

/// Byte addresses of one channel.
fn addresses(pattern: &str, tx: u64) -> Vec<u64> {
    let mut x = 0x9E37_79B9_7F4A_7C15u64;
    (0..REQUESTS)
        .map(|i| match pattern {
            "stream" => i * tx,
            "tile" => {
                // 128 rows of 512 bytes each, 8 KiB apart.
                let per = 512 / tx;
                let (k, row, tile) = (i % per, i / per % 128, i / per / 128);
                tile / 16 * 128 * 8192 + row * 8192 + tile % 16 * 512 + k * tx
            }
            _ => {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                (x >> 11) % ((256 << 20) / tx) * tx
            }
        })
        .collect()
}

fn dram(c: &mut Criterion) {
    let mut group = c.benchmark_group("dram");
    group
        .throughput(Throughput::Elements(REQUESTS))
        .sample_size(10);
    let devices =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/dram/devices");
    for device in ["HBM2_2000", "HBM3_6400", "DDR4_3200AA"] {
        let text = std::fs::read_to_string(devices.join(format!("{device}.1ch.ref.yaml"))).unwrap();
        let mut spec = DramSpec::from_ramulator(&text).unwrap().spec;
        spec.accepts_per_tick = u32::MAX;
        for pattern in ["stream", "tile", "random"] {
            let addresses = addresses(pattern, spec.tx_bytes().into());
            let mut out = Vec::with_capacity(addresses.len());
            group.bench_function(BenchmarkId::new(device, pattern), |b| {
                b.iter(|| {
                    let mut channel = Channel::new(&spec);
                    for (tag, &address) in addresses.iter().enumerate() {
                        channel.push(0, address, false, tag as u32);
                    }
                    out.clear();
                    let mut horizon = 0;
                    while !channel.is_idle() {
                        horizon += 1_000_000;
                        channel.advance(&spec, horizon, &mut out);
                    }
                    assert_eq!(out.len(), addresses.len());
                });
            });
        }
    }
    group.finish();
}

fn port(c: &mut Criterion) {
    let mut group = c.benchmark_group("noc_port");
    group
        .throughput(Throughput::Elements(REQUESTS))
        .sample_size(20);
    for (name, every) in [("one_source_a_step", 1), ("eight_at_once", 8)] {
        group.bench_function(name, |b| {
            b.iter(|| {
                let mut port = Arbiter::new(16, 10);
                let mut left = 0u64;
                for i in 0..REQUESTS {
                    let packet = Packet {
                        line: i,
                        source: (i * 5 % 16) as u16,
                        pushed: i / every * every,
                        ..Packet::default()
                    };
                    port.push(packet);
                    // As a window does.
                    if i % 256 == 255 {
                        port.serve(packet.pushed, |step, _| left += step);
                    }
                }
                port.serve(u64::MAX, |step, _| left += step);
                black_box(left)
            });
        });
    }
    group.finish();
}

fn items(c: &mut Criterion) {
    let mut group = c.benchmark_group("work_item");
    for (program, grid) in [
        ("vecadd_sync", "64"),
        ("gemm_1024_k", "4x4"),
        ("many_small_loads", "16"),
    ] {
        let loaded = Loaded::golden(program, grid, "tpuv3_simple_dram").unwrap();
        let trace = &loaded.trace;
        let bound = Bound::new(trace, &loaded.launch.args, &Limits::default()).unwrap();
        let context = GraphContext {
            tiles: trace
                .tiles
                .iter()
                .enumerate()
                .map(|(tile, t)| TileCost {
                    tile: tile as u32,
                    cycles: t.cycles.unwrap_or(0),
                    overlap: t.overlap,
                })
                .collect(),
            buffer_bytes: trace.buffers.iter().map(|b| b.bytes).collect(),
            moved: vec![true; trace.buffers.len()],
            buffer_names: trace.buffers.iter().map(|b| b.name.clone()).collect(),
        };
        let mut item = WorkItem::default();
        bound.expand(bound.pid(1), &mut item).unwrap();
        group.throughput(Throughput::Elements(item.ops.len() as u64));
        group.bench_function(BenchmarkId::new("expand", program), |b| {
            b.iter(|| bound.expand(black_box(bound.pid(1)), &mut item).unwrap());
        });
        let mut builder = GraphBuilder::default();
        let mut graph = Graph::default();
        group.bench_function(BenchmarkId::new("graph", program), |b| {
            b.iter(|| {
                builder
                    .build(&context, black_box(&item), None, None, &mut graph)
                    .unwrap();
            });
        });
    }
    group.finish();
}

fn launch(c: &mut Criterion) {
    let mut group = c.benchmark_group("launch");
    group.sample_size(10);
    for machine in [
        "tpuv3_simple_dram",
        "systolic_ws_128x128_c1_simple_noc_tpuv3",
    ] {
        let loaded = Loaded::golden("gemm_256", "2x2", machine).unwrap();
        group.throughput(Throughput::Elements(40_960));
        group.bench_function(BenchmarkId::new("gemm_256_2x2", machine), |b| {
            b.iter(|| loaded.run().unwrap());
        });
    }
    group.finish();
}

criterion_group!(benches, dram, port, items, launch);
criterion_main!(benches);
