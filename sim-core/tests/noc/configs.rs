//! BookSim configurations and refused networks.

use tilesim_core::noc::{
    Allocator, BookSimError, BookSimFile, FlitNetwork, FlitNetworkSpec, GraphLink, GraphNode,
    GraphRouter, NetworkParams, PacketKind, SpecError, Topology, VcRange,
};

fn read(name: &str) -> Option<String> {
    let base = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/noc/configs/");
    let name = name.rsplit('/').next()?;
    std::fs::read_to_string(format!("{base}{name}")).ok()
}

fn load(name: &str) -> Result<BookSimFile, BookSimError> {
    BookSimFile::parse(&read(name).unwrap(), read)
}

fn error(text: &str) -> String {
    BookSimFile::parse(text, |_| None)
        .and_then(BookSimFile::into_spec)
        .unwrap_err()
        .to_string()
}

#[test]
fn pytorchsims_crossbar() {
    let file = load("fly_c16_m16.icnt").unwrap();
    assert_eq!(
        file.ignored(),
        [
            "ejection_buffer_size",
            "boundary_buffer_size",
            "deadlock_warn_timeout"
        ]
    );
    let spec = file.into_spec().unwrap();
    let p = spec.params();
    assert_eq!(p.topology, Topology::Crossbar { ports: 32 });
    assert_eq!(
        (
            p.router.vcs,
            p.router.vc_buffer_flits,
            p.router.routing_delay
        ),
        (16, 256, 1)
    );
    assert_eq!((p.router.credit_delay, p.router.crossbar_delay), (0, 1));
    assert_eq!((p.flit_bytes, p.injection_queue_flits), (32, 256));
    assert_eq!(
        p.router.read_reply_vcs,
        Some(VcRange { first: 8, last: 13 })
    );
    assert_eq!((spec.flits(8), spec.flits(32), spec.flits(33)), (1, 1, 2));
    assert_eq!(spec.min_latency(), 7);
}

/// The chiplet network of PyTorchSim: its eight links are one, because shortest paths tie and the
/// lowest router number wins.
#[test]
fn pytorchsims_chiplet() {
    let spec = load("chiplet_32_32_2.icnt").unwrap().into_spec().unwrap();
    assert_eq!(spec.nodes(), 64);
    let Topology::Graph { routers } = &spec.params().topology else {
        panic!()
    };
    assert_eq!(routers.len(), 10);
    assert_eq!(
        routers[0].links[0],
        GraphLink {
            to: 2,
            latency: 1,
            cycles_per_flit: 1
        }
    );
    assert_eq!(
        routers[2].links[0],
        GraphLink {
            to: 0,
            latency: 5,
            cycles_per_flit: 1
        }
    );
    // Routing 4, VC 1, switch 1, crossbar 1, link 1 or 5 per router; 2 to enter.
    assert_eq!(
        (spec.hops(0, 32), spec.zero_load_latency(0, 32, 1)),
        (1, 2 + 8)
    );
    assert_eq!(
        (spec.hops(0, 63), spec.zero_load_latency(0, 63, 1)),
        (3, 2 + 8 + 12 + 8)
    );
    let mut network = FlitNetwork::new(&spec);
    for tag in 0..64 {
        network.push(0, tag % 16, 48 + tag % 16, 1, tag);
    }
    let mut out = vec![];
    network.advance(&spec, 10_000, &mut out);
    assert_eq!(out.len(), 64);
    // All pointers of VC allocation start at 0, so the first packets pile into two channels of the
    // link, and a channel takes a new packet only every 6 cycles when routing takes 4: 2 in 6
    // cycles instead of 1 in 1, as in BookSim.
    assert_eq!(out.last().unwrap().cycle, 30 + 188);
}

#[test]
fn pytorchsims_mesh() {
    let spec = load("mesh_sif-rr.icnt").unwrap().into_spec().unwrap();
    assert_eq!(spec.nodes(), 72);
    assert_eq!(
        spec.params().router.switch_allocator,
        Allocator::SeparableInputFirst
    );
    assert_eq!(spec.hops(0, 71), 7 + 8 + 1);
    // Deviation 2: priorities.
    let refused = load("mesh_sif-age.icnt").unwrap_err();
    assert_eq!(
        refused.to_string(),
        "`priority` = `age` is not modelled; only `none` is"
    );
}

#[test]
fn what_cannot_be_modelled_is_named() {
    let fly = "topology = fly; routing_function = dest_tag; k = 4; n = 1;\n";
    for (text, expect) in [
        (
            "topology = torus; routing_function = dor",
            "`topology` = `torus` is not modelled; only `fly`, `mesh` or `anynet` is",
        ),
        (
            "topology = mesh; routing_function = valiant",
            "`routing_function` = `valiant` is not modelled; only `dor` is",
        ),
        (
            "subnets = 2",
            "`subnets` = `2` is not modelled; only `1` is",
        ),
        (
            "input_speedup = 2",
            "`input_speedup` = `2` is not modelled; only `1` is",
        ),
        (
            "wait_for_tail_credit = 1",
            "`wait_for_tail_credit` = `1` is not modelled; only `0` is",
        ),
        (
            "vc_alloc_delay = 2",
            "`vc_alloc_delay` = `2` is not modelled; only `1` is",
        ),
        (
            "sw_allocator = wavefront",
            "`sw_allocator` = `wavefront` is not modelled; only `islip` or `separable_input_first` is",
        ),
        (
            "vc_buffer_size = 4",
            "line 2: unknown key `vc_buffer_size`, did you mean `vc_buf_size`",
        ),
        (
            "num_vcs = many",
            "`num_vcs`: `many` is not an integer that is not negative",
        ),
        ("num_vcs = 0", "router.vcs: 0 is not within 1 to 64"),
        (
            "num_vcs 4",
            "line 2: expected `key = value`, found `num_vcs 4`",
        ),
        (
            "read_request_begin_vc = 3; read_request_end_vc = 2",
            "`read_request_end_vc`: `2` is not a channel below num_vcs and not below the first",
        ),
        (
            "topology = anynet; routing_function = min; network_file = a/b",
            "`network_file`: no file `a/b`",
        ),
        (
            "k = 5000",
            "topology.crossbar.ports: 5000 is not within 1 to 1024",
        ),
        ("k = 1000; n = 9", "topology.fly: more than 1024 nodes"),
        (
            "k = 1024; num_vcs = 16",
            "topology: router 0 has 1024 ports of 16 vcs, more than 4096 in all",
        ),
        (
            "topology = mesh; routing_function = dor; k = 2; n = 10; num_vcs = 64",
            "topology: needs more than 32 MiB of state",
        ),
        (
            "routing_delay = 99999",
            "router.routing_delay: 99999 is not within 0 to 1024",
        ),
    ] {
        assert_eq!(error(&format!("{fly}{text}")), expect);
    }
}

#[test]
fn network_files_that_make_no_sense() {
    let any = "topology = anynet\nrouting_function = min\nnetwork_file = f\nnum_vcs = 2";
    for (net, expect) in [
        (
            "",
            "topology.graph.routers: 0 routers are not within 1 to 1024",
        ),
        (
            "router 0",
            "topology.graph: 0 nodes are not within 1 to 1024",
        ),
        (
            "link 0",
            "network file, line 1: expected `router` or `node`",
        ),
        (
            "router 0 node 0\nrouter 9999",
            "network file, line 2: expected a number below 4096",
        ),
        (
            "node 0 node 1",
            "network file, line 1: a node cannot be linked to a node",
        ),
        (
            "router 0 node 0\nrouter 1 node 0",
            "network file, line 2: a node is attached to two routers",
        ),
        (
            "node 0 router 0 3",
            "network file, line 1: state the latency of a node on its router's line",
        ),
        (
            "router 0 node 1",
            "topology.graph.routers[0].nodes: node 1 of 1: number the nodes 0, 1, 2 ...",
        ),
        (
            "router 0 node 0\nrouter 1 node 1",
            "topology: no way from node 1 to node 0",
        ),
        (
            "router 0 node 0 router 0",
            "topology.graph.routers[0].links: a second or own link to router 0",
        ),
        (
            "router 0 node 0 router 1 0",
            "topology.graph.routers[0].links: 0 is not within 1 to 1024",
        ),
    ] {
        let result = BookSimFile::parse(any, |_| Some(net.into())).and_then(BookSimFile::into_spec);
        assert_eq!(result.unwrap_err().to_string(), expect, "{net}");
    }
}

/// A one-way ring deadlocks when every buffer fills; it is refused.
#[test]
fn routes_that_can_deadlock_are_refused() {
    let ring = |n: u32| Topology::Graph {
        routers: (0..n)
            .map(|r| GraphRouter {
                nodes: vec![GraphNode {
                    node: r,
                    latency: 1,
                }],
                links: vec![GraphLink {
                    to: (r + 1) % n,
                    latency: 1,
                    cycles_per_flit: 1,
                }],
            })
            .collect(),
    };
    let result = FlitNetworkSpec::try_from(NetworkParams::new(ring(4)));
    let SpecError { path, message } = result.unwrap_err();
    assert_eq!(path, "topology");
    assert!(message.starts_with("its routes can deadlock"), "{message}");
    FlitNetworkSpec::try_from(NetworkParams::new(ring(2))).unwrap();
}

#[test]
fn specs_compare_and_serialise_by_their_parameters() {
    let spec = load("fly_c16_m16.icnt").unwrap().into_spec().unwrap();
    let text = serde_json::to_string(&spec).unwrap();
    let params: NetworkParams = serde_json::from_str(&text).unwrap();
    assert_eq!(FlitNetworkSpec::try_from(params.clone()).unwrap(), spec);
    let mut other = params;
    other.router.routing_delay = 0;
    assert_ne!(FlitNetworkSpec::try_from(other).unwrap(), spec);
    assert!(
        serde_json::from_str::<NetworkParams>(r#"{"topology":{"crossbar":{"ports":4}},"x":1}"#)
            .is_err()
    );
}

/// Kinds of packets keep to their virtual channels: with one each, a blocked read reply does not
/// hold up a write request.
#[test]
fn kinds_keep_apart() {
    let text = "topology = fly\nrouting_function = dest_tag\nk = 3\nn = 1\nnum_vcs = 2\nvc_buf_size = 1\n\
        read_reply_begin_vc = 0\nread_reply_end_vc = 0\nwrite_request_begin_vc = 1\nwrite_request_end_vc = 1";
    let spec = BookSimFile::parse(text, |_| None)
        .unwrap()
        .into_spec()
        .unwrap();
    let mut network = FlitNetwork::new(&spec);
    network.push_kind(&spec, 0, (0, 2), 40, 0, PacketKind::ReadReply);
    network.push_kind(&spec, 0, (1, 2), 40, 1, PacketKind::ReadReply);
    network.push_kind(&spec, 20, (1, 2), 1, 3, PacketKind::WriteRequest);
    network.push_kind(&spec, 20, (2, 2), 1, 2, PacketKind::WriteRequest);
    let mut out = vec![];
    network.advance(&spec, 10_000, &mut out);
    let order: Vec<u32> = out.iter().map(|d| d.tag).collect();
    assert_eq!(
        order,
        [2, 0, 1, 3],
        "tag 3 queues behind tag 1 at its source"
    );
}

proptest::proptest! {
    /// Whatever the text, the reader answers.
    #[test]
    fn reading_never_panics(
        lines in proptest::collection::vec((0..12usize, "[a-z0-9_ =;/-]{0,12}"), 0..12),
        net in "(router|node|[0-9]{1,5}| |\n){0,40}",
    ) {
        let keys = [
            "topology = fly", "topology = mesh", "topology = anynet", "routing_function = dest_tag",
            "routing_function = min", "routing_function = dor", "k =", "n =", "num_vcs =",
            "vc_buf_size =", "buf_size =", "",
        ];
        let text: String = lines.iter().map(|(k, rest)| format!("{}{rest}\n", keys[*k])).collect();
        let _ = BookSimFile::parse(&text, |_| Some(net.clone())).and_then(BookSimFile::into_spec);
        let any = "topology = anynet; routing_function = min; num_vcs = 2";
        let _ = BookSimFile::parse(any, |_| Some(net.clone())).and_then(BookSimFile::into_spec);
    }
}
