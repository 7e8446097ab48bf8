//! Closed forms, tight gates, exact event lists, look-ahead and state recurrence.

use super::random::Random;
use tilesim_core::noc::{Delivery, FlitNetwork, FlitNetworkSpec, NetworkParams, Topology};

fn spec(topology: Topology, change: impl FnOnce(&mut NetworkParams)) -> FlitNetworkSpec {
    let mut params = NetworkParams::new(topology);
    change(&mut params);
    FlitNetworkSpec::try_from(params).unwrap()
}

/// Pushes (at, src, dst, flits), tags them by position and runs until all is delivered.
fn run(spec: &FlitNetworkSpec, pushes: &[(u64, u32, u32, u32)]) -> Vec<(u64, u32, u32)> {
    let mut network = FlitNetwork::new(spec);
    for (tag, (at, src, dst, flits)) in pushes.iter().enumerate() {
        network.push(*at, *src, *dst, *flits, tag as u32);
    }
    let mut out = vec![];
    network.advance(spec, 1_000_000, &mut out);
    assert_eq!(network.in_flight(), 0);
    assert_eq!(network.next_activity(), u64::MAX);
    out.iter().map(|d| (d.cycle, d.dst, d.tag)).collect()
}

const CHIPLET: Topology = Topology::Chiplet {
    cores: 8,
    memories: 8,
    links: 2,
    link_latency: 5,
    link_cycles_per_flit: 1,
};

/// 4 cycles a router, 2 more, and one for each flit after the first.
#[test]
fn zero_load_latency_is_exact_for_every_pair() {
    for topology in [
        Topology::Mesh { k: 8, n: 2 },
        Topology::Fly { k: 4, n: 3 },
        Topology::Crossbar { ports: 64 },
    ] {
        let spec = spec(topology, |_| ());
        assert_eq!(
            FlitNetwork::min_latency(&spec),
            6 + 4 * (u64::from(spec.hops(0, 0)) - 1)
        );
        for src in 0..64u32 {
            for dst in 0..64 {
                let hops = match spec.params().topology {
                    Topology::Mesh { .. } => {
                        (src % 8).abs_diff(dst % 8) + (src / 8).abs_diff(dst / 8) + 1
                    }
                    Topology::Fly { .. } => 3,
                    _ => 1,
                };
                assert_eq!(spec.hops(src, dst), hops);
                for flits in [1, 4] {
                    let latency = u64::from(4 * hops + 2 + flits - 1);
                    assert_eq!(spec.zero_load_latency(src, dst, flits), latency);
                    assert_eq!(run(&spec, &[(7, src, dst, flits)]), [(7 + latency, dst, 0)]);
                }
            }
        }
    }
}

#[test]
fn every_delay_counts() {
    // Across: 2 routers with 1 + 2 routing, VC, switch, crossbar 2, links 3 and 5.
    let spec = spec(CHIPLET, |p| {
        p.router.routing_delay = 3;
        p.router.crossbar_delay = 2;
        p.router.link_latency = 3;
    });
    let across = (1 + 3) + (3 + 2 + 2 + 5) + (3 + 2 + 2 + 3);
    assert_eq!(run(&spec, &[(0, 0, 15, 1)]), [(across, 15, 0)]);
    let within = (1 + 3) + (3 + 2 + 2 + 3);
    assert_eq!(run(&spec, &[(0, 0, 8, 2)]), [(within + 1, 8, 0)]);
    assert_eq!((spec.hops(0, 15), spec.hops(0, 8)), (2, 1));
}

/// PyTorchSim's crossbar routes without look-ahead: 5 + 2.
#[test]
fn one_flit_per_link_per_cycle() {
    for (delay, first) in [(0, 6), (1, 7)] {
        let spec = spec(Topology::Crossbar { ports: 2 }, |p| {
            p.router.routing_delay = delay
        });
        let stream: Vec<_> = (0..50).map(|_| (0, 0, 1, 1)).collect();
        let expect: Vec<_> = (0..50).map(|k| (first + k, 1, k as u32)).collect();
        assert_eq!(run(&spec, &stream), expect);
    }
    // Two sources, one sink: still one a cycle, and the sources alternate.
    let spec = spec(Topology::Crossbar { ports: 3 }, |_| ());
    let mut both = vec![];
    for _ in 0..30 {
        both.extend([(0, 0, 2, 1), (0, 1, 2, 1)]);
    }
    let cycles: Vec<u64> = run(&spec, &both).iter().map(|d| d.0).collect();
    assert!(cycles.windows(2).all(|w| w[1] > w[0]));
    assert_eq!(cycles[59], 6 + 59, "{cycles:?}");
}

/// The credit loop of the injection link is 4 cycles, that of the ejection link 6: buffers of as
/// many flits stream at full rate, one flit less does not.
#[test]
fn credits_gate_to_the_flit() {
    let latency = |buffer| {
        let spec = spec(Topology::Crossbar { ports: 2 }, |p| {
            p.router.vcs = 1;
            p.router.vc_buffer_flits = buffer;
        });
        run(&spec, &[(0, 0, 1, 60)])[0].0
    };
    assert_eq!(latency(6), 6 + 59);
    assert_eq!(latency(7), 6 + 59);
    // 5 flits every 6 cycles; 3 every 6; 1 every 6 (and VC allocation only for the head).
    assert_eq!(latency(5), 6 + 59 + 11);
    assert_eq!(latency(3), 6 + 59 + 3 * 19);
    assert_eq!(latency(1), 6 + 59 * 6);
}

#[test]
fn narrow_links_carry_a_flit_every_so_many_cycles() {
    let spec = spec(
        Topology::Chiplet {
            cores: 4,
            memories: 4,
            links: 1,
            link_latency: 2,
            link_cycles_per_flit: 4,
        },
        |_| (),
    );
    let stream: Vec<_> = (0..20).map(|_| (0, 0, 7, 1)).collect();
    let first = spec.zero_load_latency(0, 7, 1);
    assert_eq!(first, 2 + 5 + 4);
    let expect: Vec<_> = (0..20).map(|k| (first + 4 * k, 7, k as u32)).collect();
    assert_eq!(run(&spec, &stream), expect);
    // The other die's own traffic does not feel it.
    assert_eq!(run(&spec, &[(0, 0, 7, 9), (0, 2, 6, 1)])[0], (6, 6, 1));
}

/// Two packets for one node, worked out by hand.
#[test]
fn exact_event_lists() {
    let pushes = [(0, 0, 1, 2), (0, 1, 1, 1)];
    // One VC: the second packet gets it in the cycle after the first one's tail crossed the switch.
    let one = spec(Topology::Crossbar { ports: 2 }, |p| p.router.vcs = 1);
    assert_eq!(run(&one, &pushes), [(7, 1, 0), (9, 1, 1)]);
    // Two VCs: input 0 accepts one of its two grants, input 1 gets the other a cycle later, and
    // goes before the first one's tail because the output's pointer moved past input 0.
    let two = spec(Topology::Crossbar { ports: 2 }, |p| p.router.vcs = 2);
    assert_eq!(run(&two, &pushes), [(7, 1, 1), (8, 1, 0)]);
}

#[test]
fn one_channel_keeps_the_order_of_each_pair() {
    let spec = spec(Topology::Mesh { k: 4, n: 2 }, |p| {
        p.router.vcs = 1;
        p.router.vc_buffer_flits = 2;
    });
    let mut random = Random(3);
    let pushes: Vec<(u64, u32, u32, u32)> = (0..4000)
        .map(|k| {
            let flits = 1 + random.below(4) as u32;
            (
                k / 3,
                random.below(16) as u32,
                random.below(16) as u32,
                flits,
            )
        })
        .collect();
    let mut last = std::collections::HashMap::new();
    for (_, dst, tag) in run(&spec, &pushes) {
        let before = last.insert((pushes[tag as usize].1, dst), tag);
        assert!(before.is_none_or(|b| b < tag));
    }
}

/// A periodic load brings the canonical state back, and equal states have equal futures.
#[test]
fn equal_states_have_equal_futures() {
    let spec = spec(CHIPLET, |p| p.router.vc_buffer_flits = 4);
    let period = 24;
    let load = |network: &mut FlitNetwork, from: u64| {
        for k in 0..period {
            for src in 0..4 {
                if (k + src) % 3 == 0 {
                    let dst = 8 + ((k / 3 + src) % 8) as u32;
                    network.push(
                        from + k,
                        src as u32,
                        dst,
                        1 + (k % 2) as u32,
                        (k * 8 + src) as u32,
                    );
                }
            }
        }
    };
    let mut network = FlitNetwork::new(&spec);
    let mut seen: Vec<(Vec<u64>, FlitNetwork, u64)> = vec![];
    let mut out: Vec<Delivery> = vec![];
    let mut repeated = false;
    for round in 0..400 {
        let from = round * period;
        load(&mut network, from);
        network.advance(&spec, from + period, &mut out);
        let mut words = vec![];
        network.canonical(network.now(), &mut words);
        if let Some((_, other, then)) = seen.iter().find(|s| s.0 == words) {
            let (mut a, mut b) = (network.clone(), other.clone());
            let (mut from_a, mut from_b) = (vec![], vec![]);
            for round in 0..5 {
                load(&mut a, from + period + round * period);
                load(&mut b, then + round * period);
                a.advance(&spec, from + period + (round + 1) * period, &mut from_a);
                b.advance(&spec, then + (round + 1) * period, &mut from_b);
            }
            let shift = from + period - then;
            for d in &mut from_b {
                d.cycle += shift;
            }
            assert_eq!(from_a, from_b);
            assert!(!from_a.is_empty());
            repeated = true;
            break;
        }
        seen.push((words, network.clone(), from + period));
    }
    assert!(repeated, "a periodic load never repeated");
}

/// However the caller cuts time into portions, the outcome is the same; idle stretches are jumped.
#[test]
fn portions_do_not_matter() {
    let spec = spec(Topology::Fly { k: 3, n: 2 }, |_| ());
    let mut random = Random(11);
    let mut at = 0;
    let pushes: Vec<(u64, u32, u32, u32)> = (0..500)
        .map(|_| {
            at += random.below(3) * random.below(3);
            if random.below(50) == 0 {
                at += 1 << 40;
            }
            (
                at,
                random.below(9) as u32,
                random.below(9) as u32,
                1 + random.below(3) as u32,
            )
        })
        .collect();
    let mut whole = FlitNetwork::new(&spec);
    for (tag, p) in pushes.iter().enumerate() {
        whole.push(p.0, p.1, p.2, p.3, tag as u32);
    }
    let mut all = vec![];
    whole.advance(&spec, u64::MAX, &mut all);
    assert_eq!(all.len(), 500);

    let mut step = FlitNetwork::new(&spec);
    let mut out = vec![];
    for (tag, p) in pushes.iter().enumerate() {
        step.advance(&spec, p.0, &mut out);
        step.push(p.0, p.1, p.2, p.3, tag as u32);
    }
    step.advance(&spec, u64::MAX, &mut out);
    assert_eq!(out, all);
    assert_eq!(step.stats(), whole.stats());
    let stats = whole.stats();
    assert_eq!(stats.latency.buckets().map(|b| b.1).sum::<u64>(), 500);
    assert!(stats.stall_cycles >= stats.source_wait_cycles.min(1));
}
