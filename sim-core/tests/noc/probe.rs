use super::traffic::uniform;
use super::traffic::Random;
use tilesim_core::noc::*;
#[test]
fn spread() {
    let spec = FlitNetworkSpec::try_from(NetworkParams::new(Topology::Mesh { k: 8, n: 2 })).unwrap();
    for (w, win) in [(3000, 3000), (3000, 7000), (10000, 20000)] {
        for rate in [0.35, 0.395, 0.4, 0.405] {
            let v: Vec<f64> = (0..6).map(|s| uniform(&spec, 4, rate, w, win, 100 + s).latency).collect();
            println!("{w} {win} {rate} {v:.1?}");
        }
    }
}
#[test]
fn speed() {
    for (name, topo, vcs, buf, rd) in [("xbar32 v16", Topology::Crossbar { ports: 32 }, 16, 256, 1), ("xbar64 v4", Topology::Crossbar { ports: 64 }, 4, 8, 0), ("mesh8", Topology::Mesh { k: 8, n: 2 }, 4, 8, 0), ("fly4x3", Topology::Fly { k: 4, n: 3 }, 4, 8, 0)] {
        let mut p = NetworkParams::new(topo);
        p.router.vcs = vcs; p.router.vc_buffer_flits = buf; p.router.routing_delay = rd;
        let spec = FlitNetworkSpec::try_from(p).unwrap();
        for rate in [0.05, 0.3, 0.6, 0.9] {
            if name == "mesh8" && rate > 0.35 { continue }
            let mut net = FlitNetwork::new(&spec);
            let mut rnd = Random(7);
            let n = spec.nodes();
            let cycles = 40000u64;
            let mut pushes = vec![];
            for t in 0..cycles { for s in 0..n { if rnd.chance(rate) { pushes.push((t, s, rnd.below(u64::from(n)) as u32)); } } }
            let mut out = Vec::with_capacity(pushes.len());
            let start = std::time::Instant::now();
            let mut i = 0;
            let mut h = 0;
            while i < pushes.len() {
                h += 6;
                while i < pushes.len() && pushes[i].0 < h { let (t, s, d) = pushes[i]; net.push(t, s, d, 1, i as u32); i += 1; }
                net.advance(&spec, h, &mut out);
            }
            net.advance(&spec, h + 100000, &mut out);
            let el = start.elapsed();
            assert_eq!(out.len(), pushes.len());
            println!("{name} rate {rate}: {:.1} ns/packet-hop, {:.0} ns/cycle", el.as_nanos() as f64 / net.stats().hops as f64, el.as_nanos() as f64 / cycles as f64);
        }
    }
}
