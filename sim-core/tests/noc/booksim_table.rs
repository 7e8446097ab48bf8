//! Latency over injection, against BookSim 2 (tests/golden/noc).

use super::traffic::uniform;
use tilesim_core::noc::{FlitNetworkSpec, NetworkParams, Topology};

struct Row {
    net: String,
    flits: u32,
    rate: f64,
    latency: Option<f64>,
    accepted: Option<f64>,
}

fn rows() -> Vec<Row> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/noc/results_booksim2.csv");
    let text = std::fs::read_to_string(path).unwrap();
    text.lines()
        .skip(1)
        .map(|line| {
            let f: Vec<&str> = line.split(',').collect();
            Row {
                net: f[0].into(),
                flits: f[1].parse().unwrap(),
                rate: f[2].parse().unwrap(),
                latency: f[3].parse().ok(),
                accepted: f[6].parse().ok(),
            }
        })
        .collect()
}

fn spec(net: &str) -> FlitNetworkSpec {
    let topology = match net {
        "mesh8x8" => Topology::Mesh { k: 8, n: 2 },
        "fly4ary3" => Topology::Fly { k: 4, n: 3 },
        _ => Topology::Crossbar { ports: 64 },
    };
    FlitNetworkSpec::try_from(NetworkParams::new(topology)).unwrap()
}

#[test]
fn print_table() {
    for row in rows() {
        let spec = spec(&row.net);
        let m = uniform(&spec, row.flits, row.rate, 3000, 10000, 1);
        println!(
            "{:9} {} {:5.3} ref {:8.3} ours {:8.3} {:+6.2} %  acc ref {:.4} ours {:.4} hops {:.3}",
            row.net,
            row.flits,
            row.rate,
            row.latency.unwrap_or(f64::NAN),
            m.latency,
            (m.latency / row.latency.unwrap_or(f64::NAN) - 1.0) * 100.0,
            row.accepted.unwrap_or(f64::NAN),
            m.accepted,
            m.hops
        );
    }
}
