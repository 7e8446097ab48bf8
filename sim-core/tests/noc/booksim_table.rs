//! Latency over injection, against BookSim 2 (tests/golden/noc): given the same traffic, every figure
//! of the table comes out, to the last digit that it prints.

use super::booksim_run::uniform;
use tilesim_core::noc::{FlitNetworkSpec, NetworkParams, Topology};

struct Row {
    net: String,
    flits: u32,
    rate: f64,
    /// `None`: unstable.
    figures: Option<Figures>,
}

struct Figures {
    latency: f64,
    accepted: f64,
    hops: f64,
    cycles: u64,
}

fn rows(net: &str) -> Vec<Row> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/golden/noc/results_booksim2.csv"
    );
    let text = std::fs::read_to_string(path).unwrap();
    let rows = text.lines().skip(1).map(|line| {
        let f: Vec<&str> = line.split(',').collect();
        Row {
            net: f[0].into(),
            flits: f[1].parse().unwrap(),
            rate: f[2].parse().unwrap(),
            figures: (f[12] == "ok").then(|| Figures {
                latency: f[3].parse().unwrap(),
                accepted: f[6].parse().unwrap(),
                hops: f[7].parse().unwrap(),
                cycles: f[8].parse().unwrap(),
            }),
        }
    });
    rows.filter(|row| row.net == net).collect()
}

/// With the six digits that the table gives of a number.
fn printed(number: f64) -> f64 {
    let decimals = (5 - number.log10().floor() as i32).max(0) as usize;
    format!("{number:.decimals$}").parse().unwrap()
}

fn check(net: &str, topology: Topology) {
    // The default routers are those of the table.
    let spec = FlitNetworkSpec::try_from(NetworkParams::new(topology)).unwrap();
    let rows = rows(net);
    assert_eq!(rows.len(), 20, "{net}");
    for row in rows {
        let m = uniform(&spec, row.flits, row.rate, 1);
        let what = format!("{net}, {} flits, rate {}: {m:?}", row.flits, row.rate);
        assert_eq!(m.stable, row.figures.is_some(), "{what}");
        let Some(figures) = row.figures else {
            // Saturated: between the last stable rate and this one.
            assert!((0.40..0.45).contains(&m.accepted), "{what}");
            continue;
        };
        assert_eq!(printed(m.latency), figures.latency, "{what}");
        assert_eq!(printed(m.hops), figures.hops, "{what}");
        assert_eq!(m.cycles, figures.cycles, "{what}");
        // BookSim counts the flits of packets that have arrived in part, each node one packet at
        // most at either end of the samples.
        let parts = f64::from(row.flits - 1) / 3000.0;
        let off = (printed(m.accepted) - figures.accepted).abs();
        assert!(off <= parts, "{what}, {}", figures.accepted);
    }
}

#[test]
fn the_mesh_is_booksims() {
    check("mesh8x8", Topology::Mesh { k: 8, n: 2 });
}

#[test]
fn the_fly_is_booksims() {
    check("fly4ary3", Topology::Fly { k: 4, n: 3 });
}

#[test]
fn the_crossbar_is_booksims() {
    check("xbar64", Topology::Crossbar { ports: 64 });
}
