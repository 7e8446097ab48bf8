//! NUMA partitions of the channels: where tensors lie decides who serves them, and results count it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use tilesim_core::machine::Machine;
use tilesim_core::memory::NumaCounts;
use tilesim_core::{Launch, Report, simulate};
use tilesim_traces::LaunchArgs;

/// Each work-item reads 4 KiB of A and writes as much of B.
const COPY: &str = "tilesim trace 1
kernel \"copy\"
axes 1
tensor A: 32 bit in [g0, 1024]
tensor B: 32 bit out [g0, 1024]
buffer b 4096
body {
  load A[p0 * 1024] dims [1024: 1] writes [b]
  store B[p0 * 1024] dims [1024: 1] reads [b]
}
";

fn machine(changes: &[(&str, &str)]) -> Machine {
    Machine::from_yaml(
        "clocks: {core_mhz: 1000}
cores: {count: 2, injection_ports: 16}
dram: {channels: 16, latency_cycles: 60, bytes_per_cycle: 8}",
    )
    .unwrap()
    .with_overrides(changes)
    .unwrap()
}

fn run(machine: &Machine, bases: [u64; 2]) -> Report {
    let trace = tilesim_traces::load_bytes("copy.tile", COPY.as_bytes()).unwrap();
    let mut args = LaunchArgs {
        grid: vec![32],
        ..LaunchArgs::default()
    };
    for (name, base) in ["A", "B"].into_iter().zip(bases) {
        args.placement.insert(name.into(), base);
    }
    let launch = Launch {
        args,
        ..Launch::default()
    };
    simulate(machine, &trace, &launch, &mut ()).unwrap()
}

fn counts(report: &Report) -> Vec<(u64, u64)> {
    let count = |n: &NumaCounts| (n.local, n.remote);
    report.dram.numa.iter().map(count).collect()
}

const RANGE: u64 = 1 << 30;

#[test]
fn a_tensors_base_address_decides_its_partition() {
    let split = machine(&[
        ("dram.partitions", "2"),
        ("dram.partition_bytes", "1073741824"),
    ]);
    // Each core runs 16 of 32 work-items: 2,048 lines of 32 bytes from A and as many to B.
    let near = run(&split, [0, 1 << 20]);
    assert_eq!(counts(&near), [(4096, 0), (0, 4096)]);
    let apart = run(&split, [0, RANGE]);
    assert_eq!(counts(&apart), [(2048, 2048), (2048, 2048)]);
    let far = run(&split, [RANGE, RANGE + (1 << 20)]);
    assert_eq!(counts(&far), [(0, 4096), (4096, 0)]);
    // Only the channels of the tensor's partition serve it, evenly.
    let busy = |report: &Report| -> Vec<u64> {
        let channels = report.dram.channels.iter();
        channels.map(|c| c.reads + c.writes).collect()
    };
    assert_eq!(busy(&near), [[1024; 8], [0; 8]].concat());
    assert_eq!(busy(&far), [[0; 8], [1024; 8]].concat());
    assert_eq!(busy(&apart), [512; 16]);
    assert_eq!(near.cycles, far.cycles, "the simple NoC has no distances");
    // Half the channels, half the bandwidth.
    let bytes: u64 = 32 * 2 * 4096;
    assert!(near.cycles >= bytes / (8 * 8), "{}", near.cycles);
    let whole = run(&machine(&[]), [0, 1 << 20]);
    assert!(near.cycles > whole.cycles);
    assert!(whole.dram.numa.is_empty(), "one partition: nothing to say");
}

#[test]
fn small_ranges_interleave_and_homes_can_be_said() {
    let paged = machine(&[
        ("dram.partitions", "2"),
        ("dram.partition_bytes", "4096"),
        ("cores.dram_partition", "[1, 1]"),
    ]);
    let report = run(&paged, [0, 1 << 20]);
    // A work-item's page lies in partition p0 mod 2, and round robin gives core c the items that
    // are c mod 2.
    assert_eq!(counts(&report), [(0, 4096), (4096, 0)]);
    assert_eq!(
        report.dram.channels.iter().map(|c| c.reads).sum::<u64>(),
        4096
    );
}

#[test]
fn partitions_that_cannot_be_are_refused() {
    let machine = machine(&[]);
    for (changes, path) in [
        (&[("dram.partitions", "3")][..], "dram.partitions"),
        (&[("dram.partitions", "0")], "dram.partitions"),
        (&[("dram.partition_bytes", "4096")], "dram.partition_bytes"),
        (
            &[("cores.dram_partition", "[0, 0]")],
            "cores.dram_partition",
        ),
        (
            &[("dram.partitions", "2"), ("cores.dram_partition", "[0]")],
            "cores.dram_partition",
        ),
        (
            &[("dram.partitions", "2"), ("cores.dram_partition", "[0, 2]")],
            "cores.dram_partition",
        ),
        (
            &[("dram.partitions", "2"), ("dram.partition_bytes", "5000")],
            "dram.partition_bytes",
        ),
        (
            &[("dram.partitions", "2"), ("memory", "transfer")],
            "memory",
        ),
    ] {
        let error = machine.with_overrides(changes).unwrap_err();
        assert_eq!(error.path, path, "{changes:?}: {error}");
    }
    let split = machine.with_overrides(&[("dram.partitions", "2")]).unwrap();
    assert_eq!(split.dram.numa.as_ref().unwrap().home, [0, 1]);
    let text = split.to_yaml().unwrap();
    assert_eq!(Machine::from_yaml(&text).unwrap(), split);
    assert_ne!(split.digest().unwrap(), machine.digest().unwrap());
}
