//! Speed, for people: `cargo test --release -p tilesim-core --test noc speed -- --ignored --nocapture`.
//! `NOC_CYCLES` shortens it, as for counting instructions under callgrind.

use super::random::Random;
use tilesim_core::noc::{FlitNetwork, FlitNetworkSpec, NetworkParams, Topology};

#[test]
#[ignore = "prints figures, asserts nothing about time"]
fn speed() {
    let xbar = |ports| Topology::Crossbar { ports };
    let cycles: u64 = std::env::var("NOC_CYCLES")
        .ok()
        .and_then(|c| c.parse().ok())
        .unwrap_or(40_000);
    for (name, topology, vcs, buffer, routing) in [
        ("PyTorchSim crossbar, 32 ports", xbar(32), 16, 256, 1),
        ("crossbar, 64 ports", xbar(64), 4, 8, 0),
        ("mesh 8x8", Topology::Mesh { k: 8, n: 2 }, 4, 8, 0),
        ("fly 4-ary 3", Topology::Fly { k: 4, n: 3 }, 4, 8, 0),
    ] {
        let mut params = NetworkParams::new(topology);
        params.router.vcs = vcs;
        params.router.vc_buffer_flits = buffer;
        params.router.routing_delay = routing;
        let spec = FlitNetworkSpec::try_from(params).unwrap();
        for rate in rates() {
            if matches!(spec.params().topology, Topology::Mesh { .. }) && rate > 0.4 {
                continue;
            }
            let mut random = Random(7);
            let mut pushes = vec![];
            for at in 0..cycles {
                for src in 0..spec.nodes() {
                    if random.chance(rate) {
                        pushes.push((at, src, random.below(spec.nodes().into()) as u32));
                    }
                }
            }
            let (mut best, mut hops) = (f64::MAX, 0);
            for _ in 0..if cycles < 10_000 { 1 } else { 3 } {
                let mut network = FlitNetwork::new(&spec);
                let mut out = Vec::with_capacity(pushes.len());
                let start = std::time::Instant::now();
                let mut rest = pushes.as_slice();
                let mut horizon = 0;
                while !rest.is_empty() {
                    horizon += spec.min_latency();
                    while let Some((p, more)) = rest.split_first().filter(|(p, _)| p.0 < horizon) {
                        network.push(p.0, p.1, p.2, 1, 0);
                        rest = more;
                    }
                    network.advance(&spec, horizon, &mut out);
                }
                network.advance(&spec, u64::MAX, &mut out);
                let time = start.elapsed().as_nanos() as f64;
                best = best.min(time / network.stats().hops as f64);
                assert_eq!(out.len(), pushes.len());
                hops = network.stats().hops;
            }
            println!(
                "{name}, {rate} per node and cycle: {best:.1} ns a packet-hop ({hops} of them)"
            );
        }
    }
}

fn rates() -> Vec<f64> {
    match std::env::var("NOC_RATE").ok().and_then(|r| r.parse().ok()) {
        Some(rate) => vec![rate],
        None => vec![0.05, 0.3, 0.6, 0.9],
    }
}
