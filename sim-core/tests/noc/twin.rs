//! The model against its naive twin, packet for packet, on random networks and traffic.

use super::naive::Naive;
use proptest::prelude::*;
use tilesim_core::noc::{
    Allocator, FlitNetwork, FlitNetworkSpec, GraphLink, GraphNode, GraphRouter, NetworkParams,
    PacketKind, RouterParams, Topology, VcRange,
};

fn topology() -> impl Strategy<Value = Topology> {
    prop_oneof![
        2 => tree(),
        1 => (1..9u32).prop_map(|ports| Topology::Crossbar { ports }),
        1 => (2..4u32, 2..4u32).prop_map(|(k, n)| Topology::Fly { k, n }),
        1 => (2..4u32, 1..3u32).prop_map(|(k, n)| Topology::Mesh { k, n }),
        1 => (1..4u32, 1..4u32, 1..4u32, 1..7u32, 1..4u32).prop_map(|(c, m, links, latency, width)| {
            Topology::Chiplet {
                cores: 2 * c,
                memories: 2 * m,
                links,
                link_latency: latency,
                link_cycles_per_flit: width,
            }
        }),
    ]
}

/// A random tree of routers, with a random number of nodes each and links of random latency.
fn tree() -> impl Strategy<Value = Topology> {
    let router = (0..4usize, any::<u32>(), 1..6u32, 1..6u32, 1..3u32, 1..4u32);
    prop::collection::vec(router, 1..6).prop_map(|list| {
        let mut routers = vec![GraphRouter::default(); list.len()];
        let mut node = 0;
        for (r, (nodes, parent, up, down, width, latency)) in list.into_iter().enumerate() {
            let nodes = if r == 0 { nodes.max(1) } else { nodes };
            for _ in 0..nodes {
                routers[r].nodes.push(GraphNode { node, latency });
                node += 1;
            }
            if r > 0 {
                let to = parent % r as u32;
                let link = |to, latency| GraphLink {
                    to,
                    latency,
                    cycles_per_flit: width,
                };
                routers[r].links.push(link(to, up));
                routers[to as usize].links.push(link(r as u32, down));
            }
        }
        Topology::Graph { routers }
    })
}

fn allocator() -> impl Strategy<Value = Allocator> {
    prop_oneof![Just(Allocator::Islip), Just(Allocator::SeparableInputFirst)]
}

fn router() -> impl Strategy<Value = RouterParams> {
    let delays = (0..4u32, 1..3u32, 0..3u32, 1..4u32);
    (
        1..7u32,
        1..9u32,
        delays,
        allocator(),
        allocator(),
        any::<[u8; 4]>(),
    )
        .prop_map(
            |(vcs, buffer, (routing, crossbar, credit, link), va, sa, cut)| {
                let range = |b: u8| {
                    let (x, y) = (u32::from(b) % vcs, u32::from(b) / 16 % vcs);
                    (!b.is_multiple_of(3)).then_some(VcRange {
                        first: x.min(y),
                        last: x.max(y),
                    })
                };
                RouterParams {
                    vcs,
                    vc_buffer_flits: buffer,
                    routing_delay: routing,
                    crossbar_delay: crossbar,
                    credit_delay: credit,
                    link_latency: link,
                    vc_allocator: va,
                    switch_allocator: sa,
                    read_request_vcs: range(cut[0]),
                    write_request_vcs: range(cut[1]),
                    read_reply_vcs: range(cut[2]),
                    write_reply_vcs: range(cut[3]),
                }
            },
        )
}

#[derive(Clone, Copy, Debug)]
struct Push {
    gap: u64,
    src: u32,
    dst: u32,
    flits: u32,
    kind: u8,
}

fn pushes() -> impl Strategy<Value = Vec<Push>> {
    // Small node numbers are frequent, so that there are hot spots.
    let gap = prop_oneof![6 => Just(0u64), 3 => 1..4u64, 1 => 10..60u64];
    let node = || prop_oneof![3 => 0..3u32, 2 => any::<u32>()];
    prop::collection::vec(
        (gap, node(), node(), 1..6u32, 0..5u8).prop_map(|(gap, src, dst, flits, kind)| Push {
            gap,
            src,
            dst,
            flits,
            kind,
        }),
        1..250,
    )
}

const KINDS: [PacketKind; 5] = [
    PacketKind::Any,
    PacketKind::ReadRequest,
    PacketKind::WriteRequest,
    PacketKind::ReadReply,
    PacketKind::WriteReply,
];

fn compare(topology: Topology, router: RouterParams, pushes: &[Push], chunk: u64) {
    let params = NetworkParams {
        router: router.clone(),
        ..NetworkParams::new(topology)
    };
    let spec = FlitNetworkSpec::try_from(params.clone()).unwrap();
    let mut network = FlitNetwork::new(&spec);
    let mut naive = Naive::new(&params);
    let ranges = [
        None,
        router.read_request_vcs,
        router.write_request_vcs,
        router.read_reply_vcs,
        router.write_reply_vcs,
    ];
    let mut at = 0;
    let mut sent = vec![];
    for (tag, push) in pushes.iter().enumerate() {
        at += push.gap;
        let (src, dst) = (push.src % spec.nodes(), push.dst % spec.nodes());
        let tag = tag as u32;
        naive.push(
            at,
            src,
            dst,
            push.flits,
            tag,
            ranges[usize::from(push.kind)],
        );
        sent.push((at, src, dst, push.flits, tag, KINDS[usize::from(push.kind)]));
    }
    let end = at + 20_000;
    let mut expected = vec![];
    naive.advance(end, &mut expected);
    // The model is given the pushes in portions and driven by its own look-ahead.
    let mut got = vec![];
    let mut rest = sent.as_slice();
    let mut horizon = 0;
    while horizon < end {
        horizon = (horizon + chunk).min(end);
        while let Some(((at, src, dst, flits, tag, kind), more)) =
            rest.split_first().filter(|(p, _)| p.0 < horizon)
        {
            network.push_kind(&spec, *at, (*src, *dst), *flits, *tag, *kind);
            rest = more;
        }
        let bound = network.next_activity();
        let before = got.len();
        network.advance(&spec, horizon, &mut got);
        if let Some(first) = got.get(before) {
            assert!(
                first.cycle >= bound,
                "a delivery at {first:?} before {bound}"
            );
        }
        if network.in_flight() == 0 && rest.is_empty() {
            break;
        }
    }
    assert_eq!(got, expected);
    assert_eq!(got.len(), sent.len());
    assert_eq!(network.in_flight(), 0);
    let stats = network.stats();
    assert_eq!(stats.packets, sent.len() as u64);
    assert_eq!(
        stats.flits,
        sent.iter().map(|s| u64::from(s.3)).sum::<u64>()
    );
    let crossings: u64 = sent
        .iter()
        .map(|s| u64::from(s.3) * u64::from(spec.hops(s.1, s.2)))
        .sum();
    assert_eq!(stats.link_busy.iter().sum::<u64>(), crossings);
    for d in &got {
        let (at, src, dst, flits, ..) = sent[d.tag as usize];
        assert_eq!(d.dst, dst);
        let least = at + spec.zero_load_latency(src, dst, flits);
        assert!(
            d.cycle >= least,
            "{d:?} sent at {at} by {src}, not before {least}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_the_naive_twin(
        topology in topology(),
        router in router(),
        pushes in pushes(),
        chunk in 1..40u64,
    ) {
        compare(topology, router, &pushes, chunk);
    }
}
