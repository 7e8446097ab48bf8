//! Times of the parts: DRAM alone, one NoC port, the queue of replies and alternatives to it,
//! expansion and graph building, tile ops without memory, one launch.
//!
//! `cargo bench -p tilesim-benches --bench parts -- [FILTER]`

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tilesim_benches::golden::Loaded;
use tilesim_core::dram::{Channel, DramSpec};
use tilesim_core::graph::{Graph, GraphBuilder, GraphContext, TileCost};
use tilesim_core::machine::DramModel;
use tilesim_core::memory::arbiter::{Arbiter, Packet};
use tilesim_core::memory::calendar::Calendar;
use tilesim_core::memory::channel_map::ChannelMapper;
use tilesim_core::{Launch, simulate};
use tilesim_traces::launch::WorkItem;
use tilesim_traces::{Bound, Limits, json, validate};

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

/// What the DRAM channels of a golden machine return for a sequential stream, 16 lines a step: per
/// window, the steps and channels in the order in which the engine learns of them, and the step up to
/// which it is complete.
fn replies() -> Vec<(Vec<(u64, u32)>, u64)> {
    const CHANNELS: u32 = 16;
    /// Steps that the engine works at once while transfers are under way, about.
    const WINDOW: u64 = 16;
    let loaded = Loaded::golden(
        "gemm512_core_serial",
        "1x1",
        "systolic_ws_128x128_c1_simple_noc_tpuv3",
    )
    .unwrap();
    let dram = &loaded.machine.dram;
    let DramModel::Banked { device } = &dram.model else {
        panic!("the machine has banked DRAM");
    };
    let spec = device.spec();
    let map = ChannelMapper::new(dram.channel_map, CHANNELS);
    let mut channels: Vec<Channel> = (0..CHANNELS).map(|_| Channel::new(spec)).collect();
    let (mut windows, mut out, mut sent) = (Vec::new(), Vec::new(), 0u64);
    for window in 1.. {
        let horizon = window * WINDOW;
        while sent < REQUESTS && sent / u64::from(CHANNELS) < horizon {
            let (channel, inner) = map.locate(sent);
            let at = sent / u64::from(CHANNELS);
            channels[channel as usize].push(at, inner * u64::from(spec.tx_bytes()), false, 0);
            sent += 1;
        }
        let mut window = Vec::new();
        for (lane, channel) in (0..).zip(&mut channels) {
            channel.advance(spec, horizon, &mut out);
            window.extend(out.drain(..).map(|done| (done.tick, lane)));
        }
        windows.push((window, horizon));
        if sent == REQUESTS && channels.iter().all(Channel::is_idle) {
            return windows;
        }
    }
    windows
}

/// The calendar that the engine keeps replies in, and what it could be.
fn event_queue(c: &mut Criterion) {
    let mut group = c.benchmark_group("event_queue");
    group
        .throughput(Throughput::Elements(REQUESTS))
        .sample_size(20);
    let windows = replies();
    group.bench_function("calendar", |b| {
        let mut calendar = Calendar::new(16);
        b.iter(|| {
            let mut sum = 0u64;
            for (window, horizon) in &windows {
                for &(step, lane) in window {
                    calendar.put(step, lane, step);
                }
                calendar.take(*horizon, |step, lane, _| {
                    sum = sum * 3 % 65_537 + step + u64::from(lane)
                });
            }
            black_box(sum)
        });
    });
    group.bench_function("binary_heap", |b| {
        let mut heap = BinaryHeap::new();
        b.iter(|| {
            let mut sum = 0u64;
            for (window, horizon) in &windows {
                for &(step, lane) in window {
                    heap.push(Reverse((step, lane, step)));
                }
                while let Some(&Reverse((step, lane, _))) = heap.peek()
                    && step < *horizon
                {
                    heap.pop();
                    sum = sum * 3 % 65_537 + step + u64::from(lane);
                }
            }
            black_box(sum)
        });
    });
    group.bench_function("wheel_of_lists", |b| {
        let mut wheel: Vec<Vec<(u32, u64)>> = vec![Vec::new(); 1024];
        b.iter(|| {
            let (mut sum, mut now) = (0u64, 0);
            for (window, horizon) in &windows {
                for &(step, lane) in window {
                    wheel[step as usize % 1024].push((lane, step));
                }
                for step in now..*horizon {
                    for (lane, _) in wheel[step as usize % 1024].drain(..) {
                        sum = sum * 3 % 65_537 + step + u64::from(lane);
                    }
                }
                now = *horizon;
            }
            black_box(sum)
        });
    });
    group.bench_function("sort_each_window", |b| {
        let mut waiting = Vec::new();
        b.iter(|| {
            let mut sum = 0u64;
            for (window, horizon) in &windows {
                waiting.extend(window.iter().map(|&(step, lane)| (step, lane, step)));
                waiting.sort_unstable();
                let due = waiting.partition_point(|&(step, ..)| step < *horizon);
                for (step, lane, _) in waiting.drain(..due) {
                    sum = sum * 3 % 65_537 + step + u64::from(lane);
                }
            }
            black_box(sum)
        });
    });
    group.finish();
}

/// Tile ops of 2 and of 2,000,000 cycles, and no memory.
fn tile_ops(c: &mut Criterion) {
    const ITEMS: u64 = 4096;
    const OPS: u64 = 4;
    let mut group = c.benchmark_group("tile_op");
    group
        .throughput(Throughput::Elements(ITEMS * OPS))
        .sample_size(10);
    let machine = Loaded::golden("large_grid", "1", "tpuv3_simple_dram")
        .unwrap()
        .machine;
    for cycles in [2u64, 2_000_000] {
        let compute = r#"{"op": "compute", "tile": 0, "ct": 0, "reads": [0], "writes": [0]}"#;
        let text = format!(
            r#"{{"name": "tiles", "axes": 1, "grids": [[1]], "tensors": [],
                "spad_buffer_bytes": [2048], "cycle_table": [[{cycles}, 0]],
                "body": [{}],
                "compute_types": {{"0": "vector", "1": "matmul", "2": "preload", "3": "cross-lane"}}}}"#,
            [compute; OPS as usize].join(",")
        );
        let trace = json::import(&text, &json::no_files).unwrap().trace;
        let trace = validate(trace).unwrap();
        let mut launch = Launch::default();
        launch.args.grid = vec![ITEMS];
        // Every item, though they repeat.
        launch.options.full = true;
        group.bench_function(BenchmarkId::from_parameter(cycles), |b| {
            b.iter(|| simulate(&machine, &trace, &launch, &mut ()).unwrap());
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

criterion_group!(benches, dram, port, event_queue, tile_ops, items, launch);
criterion_main!(benches);
