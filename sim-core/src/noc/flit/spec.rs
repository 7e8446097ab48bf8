//! The description of a flit network: parameters as a file states them, and the validated form with
//! its wiring and routing tables.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use petgraph::algo::toposort;
use petgraph::graph::{DiGraph, NodeIndex};
use serde::{Deserialize, Serialize};

/// Most nodes a network may have: tables hold an entry for each pair.
const MAX_NODES: u64 = 1024;
/// Most routers a network may have.
const MAX_ROUTERS: u64 = 4096;
/// Most routers of a graph, whose shortest paths are searched.
const MAX_GRAPH_ROUTERS: u64 = 1024;
/// Most links of a graph.
const MAX_GRAPH_LINKS: usize = 16_384;
/// Most bytes of state.
const MAX_STATE_BYTES: u64 = 32 << 20;
/// Most virtual channels an input port may have: they share one machine word.
const MAX_VCS: u32 = 64;
/// Most virtual channels over all inputs (or outputs) of one router.
const MAX_ROUTER_VCS: u64 = 64 * 64;
/// Longest delay of anything, in cycles: events lie in a wheel of as many slots.
const MAX_DELAY: u32 = 1024;

/// A network that cannot be built, with the path of the field at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}")]
pub struct SpecError {
    /// The field, as in `router.vcs`.
    pub path: String,
    /// What is wrong with it and what would be right.
    pub message: String,
}

fn fail<T>(path: impl Into<String>, message: impl Into<String>) -> Result<T, SpecError> {
    Err(SpecError {
        path: path.into(),
        message: message.into(),
    })
}

/// The shape of a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Topology {
    /// One router; every node has one input and one output port.
    Crossbar {
        /// Nodes.
        ports: u32,
    },
    /// A k-ary n-fly: n stages of k-by-k routers, k^n nodes that send into the first stage and
    /// receive from the last. Routing by destination digit.
    Fly {
        /// Ports of a router on each side.
        k: u32,
        /// Stages.
        n: u32,
    },
    /// A k-ary n-mesh: k^n routers with one node each; node digit d is the coordinate in dimension
    /// d. Dimension-order routing, lowest dimension first.
    Mesh {
        /// Routers along each dimension.
        k: u32,
        /// Dimensions.
        n: u32,
    },
    /// Two crossbars joined by links. Nodes are the cores' ports first, then the memory channels;
    /// the first half of each lies on the first die. A packet for a node of the other die takes
    /// link number (destination modulo links).
    Chiplet {
        /// Injection ports of all cores; even.
        cores: u32,
        /// Memory channels; even.
        memories: u32,
        /// Links from one die to the other, in each direction.
        links: u32,
        /// Cycles a flit spends on such a link.
        link_latency: u32,
        /// Cycles such a link is busy with one flit: 1 is full width, 4 a quarter.
        link_cycles_per_flit: u32,
    },
    /// Any graph of routers. Shortest paths by link latency; among equals, the one whose
    /// predecessor was settled first, lower router numbers first (BookSim's `anynet` with `min`).
    Graph {
        /// The routers, in order of their number.
        routers: Vec<GraphRouter>,
    },
}

/// A router of [`Topology::Graph`]. Its ports are its nodes by number, then its links by target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphRouter {
    /// Nodes that send into and receive from this router.
    #[serde(default)]
    pub nodes: Vec<GraphNode>,
    /// Links from this router to others; each direction is stated on its own.
    #[serde(default)]
    pub links: Vec<GraphLink>,
}

/// A node of a [`GraphRouter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphNode {
    /// Node number; the numbers of all routers together are 0, 1, 2 ...
    pub node: u32,
    /// Cycles on the injection link, and on the ejection link.
    pub latency: u32,
}

/// A link of a [`GraphRouter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphLink {
    /// The router at the far end.
    pub to: u32,
    /// Cycles a flit spends on the link; credits take as many back.
    pub latency: u32,
    /// Cycles the link is busy with one flit.
    pub cycles_per_flit: u32,
}

/// How requests are matched to outputs; one iteration, round-robin arbiters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Allocator {
    /// Outputs grant, inputs accept; pointers move on acceptance.
    #[default]
    Islip,
    /// Inputs choose one output, outputs choose among the inputs left; pointers move on a match.
    SeparableInputFirst,
}

/// The virtual channels a kind of packet may use, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VcRange {
    /// First virtual channel.
    pub first: u32,
    /// Last virtual channel.
    pub last: u32,
}

impl VcRange {
    pub(super) fn mask(self) -> u64 {
        (u64::MAX >> (63 - (self.last - self.first))) << self.first
    }
}

/// What a packet is, which decides the virtual channels it may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PacketKind {
    /// No distinction: every virtual channel.
    #[default]
    Any,
    /// A request to read.
    ReadRequest,
    /// A request to write, with its data.
    WriteRequest,
    /// The data of a read.
    ReadReply,
    /// The acknowledgement of a write.
    WriteReply,
}

/// Parameters shared by all routers and links of a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RouterParams {
    /// Virtual channels per link.
    pub vcs: u32,
    /// Flits the buffer of one virtual channel holds.
    pub vc_buffer_flits: u32,
    /// Cycles a head flit spends on routing; 0: look-ahead routing.
    pub routing_delay: u32,
    /// Cycles through the crossbar, at least 1.
    pub crossbar_delay: u32,
    /// Cycles a router needs to act on a credit it received.
    pub credit_delay: u32,
    /// Cycles on a link, injection and ejection included; [`Topology::Graph`] and the links
    /// between chiplets state their own.
    pub link_latency: u32,
    /// Matching of packets to virtual channels.
    pub vc_allocator: Allocator,
    /// Matching of flits to output ports.
    pub switch_allocator: Allocator,
    /// Virtual channels of [`PacketKind::ReadRequest`]; `None`: all.
    pub read_request_vcs: Option<VcRange>,
    /// Virtual channels of [`PacketKind::WriteRequest`]; `None`: all.
    pub write_request_vcs: Option<VcRange>,
    /// Virtual channels of [`PacketKind::ReadReply`]; `None`: all.
    pub read_reply_vcs: Option<VcRange>,
    /// Virtual channels of [`PacketKind::WriteReply`]; `None`: all.
    pub write_reply_vcs: Option<VcRange>,
}

impl Default for RouterParams {
    fn default() -> Self {
        RouterParams {
            vcs: 4,
            vc_buffer_flits: 8,
            routing_delay: 0,
            crossbar_delay: 1,
            credit_delay: 1,
            link_latency: 1,
            vc_allocator: Allocator::Islip,
            switch_allocator: Allocator::Islip,
            read_request_vcs: None,
            write_request_vcs: None,
            read_reply_vcs: None,
            write_reply_vcs: None,
        }
    }
}

/// A network as a file states it; turn it into a [`FlitNetworkSpec`] to use it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkParams {
    /// The shape.
    pub topology: Topology,
    /// Routers and links.
    #[serde(default)]
    pub router: RouterParams,
    /// Bytes of payload in one flit.
    #[serde(default = "default_flit_bytes")]
    pub flit_bytes: u32,
    /// Flits a node may have waiting for injection before its owner must hold back; 0: no limit.
    /// The network itself never refuses a packet.
    #[serde(default)]
    pub injection_queue_flits: u32,
}

fn default_flit_bytes() -> u32 {
    32
}

impl NetworkParams {
    /// A network of this shape with default routers and flits of 32 bytes.
    pub fn new(topology: Topology) -> Self {
        NetworkParams {
            topology,
            router: RouterParams::default(),
            flit_bytes: default_flit_bytes(),
            injection_queue_flits: 0,
        }
    }
}

/// Where an output port leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sink {
    /// Nowhere: the edge of a mesh.
    Open,
    /// A node.
    Node(u32),
    /// An input port, by its number over all routers.
    Input(u32),
}

/// What feeds an input port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Nothing: the edge of a mesh.
    Open,
    /// A node.
    Node(u32),
    /// An output port, by its number over all routers.
    Output(u32),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct OutputWire {
    pub(super) router: u32,
    /// Port number within its router.
    pub(super) local: u32,
    pub(super) sink: Sink,
    pub(super) latency: u32,
    pub(super) cycles_per_flit: u32,
    /// No credit of this port can ever run out, so none need be kept: its sink is a node and a
    /// buffer covers the credit loop.
    pub(super) creditless: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct InputWire {
    pub(super) router: u32,
    pub(super) source: Source,
    /// Cycles from the switch traversal of a flit until the upstream side may use its slot again.
    pub(super) credit_cycles: u32,
}

/// Where a router's ports and bitmaps lie in the arrays over all routers.
#[derive(Clone, Copy, Debug)]
pub(super) struct RouterWire {
    pub(super) in_base: u32,
    pub(super) inputs: u32,
    pub(super) out_base: u32,
    pub(super) outputs: u32,
    /// Words of a bitmap over the inputs.
    pub(super) in_words: u32,
    /// Words of a bitmap over the outputs.
    pub(super) out_words: u32,
    /// Words of a bitmap over the input VCs, the summary word included.
    pub(super) vc_words: u32,
    pub(super) request_base: u32,
    pub(super) output_map_base: u32,
    pub(super) pending_base: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct NodeWire {
    /// Input port the node sends into.
    pub(super) input: u32,
    pub(super) latency: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Path {
    pub(super) hops: u16,
    /// Cycles between two flits of a packet at the narrowest link.
    pub(super) cycles_per_flit: u16,
    /// Latency of a packet of one flit.
    pub(super) cycles: u32,
    /// Cycles that body flits, which need no routing and VC allocation, catch up with their head
    /// in the routers behind the last such link.
    pub(super) catch_up: u32,
}

impl Path {
    /// Latency of a packet with nothing in its way.
    #[inline]
    pub(super) fn zero_load(self, flits: u32) -> u64 {
        let body = u64::from(flits.saturating_sub(1));
        let spread = (body * u64::from(self.cycles_per_flit)).saturating_sub(self.catch_up.into());
        u64::from(self.cycles) + spread.max(body)
    }
}

/// A validated network: parameters, wiring and routing tables. State is in
/// [`FlitNetwork`](super::FlitNetwork).
#[derive(Clone, Debug, Serialize)]
#[serde(into = "NetworkParams")]
pub struct FlitNetworkSpec {
    params: NetworkParams,
    pub(super) nodes: Vec<NodeWire>,
    pub(super) routers: Vec<RouterWire>,
    pub(super) inputs: Vec<InputWire>,
    pub(super) outputs: Vec<OutputWire>,
    /// Output port within the router, by router and destination.
    pub(super) route: Vec<u16>,
    paths: Vec<Path>,
    /// Virtual channels are numbered with this stride (a shift) across ports.
    pub(super) vc_shift: u32,
    /// Distinct sets of virtual channels, by class.
    pub(super) class_masks: Vec<u64>,
    /// First virtual channel of each class.
    pub(super) class_first: Vec<u32>,
    /// Class of each [`PacketKind`].
    pub(super) kind_class: [u8; 5],
    /// Longest delay of any event.
    pub(super) span: u64,
    pub(super) min_eject_cycles: u64,
    min_latency: u64,
}

impl PartialEq for FlitNetworkSpec {
    fn eq(&self, other: &Self) -> bool {
        // Everything else follows from the parameters.
        self.params == other.params
    }
}

impl Eq for FlitNetworkSpec {}

impl From<FlitNetworkSpec> for NetworkParams {
    fn from(spec: FlitNetworkSpec) -> Self {
        spec.params
    }
}

/// Routers and links before they are numbered.
struct Plan {
    routers: Vec<PlanRouter>,
    nodes: Vec<Option<PlanNode>>,
}

#[derive(Default)]
struct PlanRouter {
    inputs: u32,
    outputs: Vec<PlanOutput>,
}

#[derive(Clone, Copy)]
struct PlanOutput {
    to: Option<PlanSink>,
    latency: u32,
    cycles_per_flit: u32,
}

#[derive(Clone, Copy)]
enum PlanSink {
    Node(u32),
    Router { router: u32, input: u32 },
}

#[derive(Clone, Copy)]
struct PlanNode {
    router: u32,
    input: u32,
    latency: u32,
}

/// k^n, when it is at most `limit`.
fn bounded_power(k: u32, n: u32, limit: u64) -> Option<u64> {
    let mut product = 1u64;
    for _ in 0..n {
        product = product.checked_mul(u64::from(k)).filter(|p| *p <= limit)?;
    }
    Some(product)
}

fn check(path: &str, value: u32, low: u32, high: u32) -> Result<(), SpecError> {
    if (low..=high).contains(&value) {
        Ok(())
    } else {
        fail(path, format!("{value} is not within {low} to {high}"))
    }
}

impl Plan {
    fn new(routers: u64, nodes: u64) -> Self {
        Plan {
            routers: (0..routers).map(|_| PlanRouter::default()).collect(),
            nodes: vec![None; nodes as usize],
        }
    }

    /// A crossbar plan for one router with the given nodes, in port order.
    fn attach(&mut self, router: u32, node: u32, latency: u32) {
        let at = &mut self.routers[router as usize];
        self.nodes[node as usize] = Some(PlanNode {
            router,
            input: at.inputs,
            latency,
        });
        at.inputs += 1;
        at.outputs.push(PlanOutput {
            to: Some(PlanSink::Node(node)),
            latency,
            cycles_per_flit: 1,
        });
    }

    fn link(&mut self, from: u32, to: u32, latency: u32, cycles_per_flit: u32) {
        let input = self.routers[to as usize].inputs;
        self.routers[to as usize].inputs += 1;
        self.routers[from as usize].outputs.push(PlanOutput {
            to: Some(PlanSink::Router { router: to, input }),
            latency,
            cycles_per_flit,
        });
    }
}

/// A plan and its routing table (output port by router and destination).
type Planned = (Plan, Vec<u16>);

fn plan(topology: &Topology, link: u32) -> Result<Planned, SpecError> {
    match topology {
        Topology::Crossbar { ports } => {
            check("topology.crossbar.ports", *ports, 1, MAX_NODES as u32)?;
            Ok(plan_fly(*ports, 1, link))
        }
        Topology::Fly { k, n } => {
            check("topology.fly.k", *k, 1, MAX_NODES as u32)?;
            check("topology.fly.n", *n, 1, 16)?;
            let Some(nodes) = bounded_power(*k, *n, MAX_NODES) else {
                return fail("topology.fly", format!("more than {MAX_NODES} nodes"));
            };
            if nodes / u64::from(*k) * u64::from(*n) > MAX_ROUTERS {
                return fail("topology.fly", format!("more than {MAX_ROUTERS} routers"));
            }
            Ok(plan_fly(*k, *n, link))
        }
        Topology::Mesh { k, n } => {
            check("topology.mesh.k", *k, 1, MAX_NODES as u32)?;
            check("topology.mesh.n", *n, 1, 16)?;
            if bounded_power(*k, *n, MAX_NODES).is_none() {
                return fail("topology.mesh", format!("more than {MAX_NODES} nodes"));
            }
            Ok(plan_mesh(*k, *n, link))
        }
        Topology::Chiplet {
            cores,
            memories,
            links,
            link_latency,
            link_cycles_per_flit,
        } => {
            let at = "topology.chiplet";
            if cores % 2 == 1 || memories % 2 == 1 {
                return fail(at, "cores and memories must be even, half of each per die");
            }
            let nodes = u64::from(*cores) + u64::from(*memories);
            if nodes == 0 || nodes > MAX_NODES {
                return fail(at, format!("{nodes} nodes are not within 1 to {MAX_NODES}"));
            }
            check("topology.chiplet.links", *links, 1, MAX_NODES as u32)?;
            check("topology.chiplet.link_latency", *link_latency, 1, MAX_DELAY)?;
            check(
                "topology.chiplet.link_cycles_per_flit",
                *link_cycles_per_flit,
                1,
                MAX_DELAY,
            )?;
            Ok(plan_chiplet(
                *cores,
                *memories,
                *links,
                link,
                *link_latency,
                *link_cycles_per_flit,
            ))
        }
        Topology::Graph { routers } => plan_graph(routers),
    }
}

fn plan_fly(k: u32, n: u32, link: u32) -> Planned {
    let per_stage = k.pow(n - 1);
    let nodes = per_stage * k;
    let mut plan = Plan::new(u64::from(per_stage * n), u64::from(nodes));
    for router in &mut plan.routers {
        router.inputs = k;
    }
    for stage in 0..n {
        for addr in 0..per_stage {
            for port in 0..k {
                let to = if stage == n - 1 {
                    PlanSink::Node(addr * k + port)
                } else {
                    // The wires after this stage exchange the port with the digit of the address
                    // that the next stage's router lacks.
                    let shift = k.pow(n - stage - 2);
                    let digit = addr / shift % k;
                    PlanSink::Router {
                        router: (stage + 1) * per_stage + addr - digit * shift + port * shift,
                        input: digit,
                    }
                };
                plan.routers[(stage * per_stage + addr) as usize]
                    .outputs
                    .push(PlanOutput {
                        to: Some(to),
                        latency: link,
                        cycles_per_flit: 1,
                    });
            }
        }
    }
    for node in 0..nodes {
        plan.nodes[node as usize] = Some(PlanNode {
            router: node / k,
            input: node % k,
            latency: link,
        });
    }
    let mut route = Vec::with_capacity((per_stage * n * nodes) as usize);
    for router in 0..per_stage * n {
        let stage = router / per_stage;
        let shift = k.pow(n - 1 - stage);
        route.extend((0..nodes).map(|dst| (dst / shift % k) as u16));
    }
    (plan, route)
}

fn plan_mesh(k: u32, n: u32, link: u32) -> Planned {
    let nodes = k.pow(n);
    let mut plan = Plan::new(u64::from(nodes), u64::from(nodes));
    for at in 0..nodes {
        let router = &mut plan.routers[at as usize];
        // Port 2 d leads up and comes from above in dimension d, port 2 d + 1 down and from below;
        // the last port is the node's.
        router.inputs = 2 * n + 1;
        for dim in 0..n {
            let step = k.pow(dim);
            let place = at / step % k;
            for (exists, to, input) in [
                (place + 1 < k, at + step, 2 * dim + 1),
                (place > 0, at.wrapping_sub(step), 2 * dim),
            ] {
                router.outputs.push(PlanOutput {
                    to: exists.then_some(PlanSink::Router { router: to, input }),
                    latency: link,
                    cycles_per_flit: 1,
                });
            }
        }
        router.outputs.push(PlanOutput {
            to: Some(PlanSink::Node(at)),
            latency: link,
            cycles_per_flit: 1,
        });
        plan.nodes[at as usize] = Some(PlanNode {
            router: at,
            input: 2 * n,
            latency: link,
        });
    }
    let mut route = Vec::with_capacity((nodes * nodes) as usize);
    for at in 0..nodes {
        for dst in 0..nodes {
            let differs = (0..n).find(|d| at / k.pow(*d) % k != dst / k.pow(*d) % k);
            route.push(match differs {
                None => 2 * n,
                Some(d) => 2 * d + u32::from(dst / k.pow(d) % k < at / k.pow(d) % k),
            } as u16);
        }
    }
    (plan, route)
}

fn plan_chiplet(
    cores: u32,
    memories: u32,
    links: u32,
    link: u32,
    die_latency: u32,
    cycles_per_flit: u32,
) -> Planned {
    let nodes = cores + memories;
    let die = |node: u32| {
        if node < cores {
            u32::from(node >= cores / 2)
        } else {
            u32::from(node - cores >= memories / 2)
        }
    };
    let mut plan = Plan::new(2, u64::from(nodes));
    let mut port = vec![0u16; nodes as usize];
    for node in 0..nodes {
        port[node as usize] = plan.routers[die(node) as usize].outputs.len() as u16;
        plan.attach(die(node), node, link);
    }
    for _ in 0..links {
        plan.link(0, 1, die_latency, cycles_per_flit);
        plan.link(1, 0, die_latency, cycles_per_flit);
    }
    let mut route = Vec::with_capacity(2 * nodes as usize);
    for at in 0..2 {
        for dst in 0..nodes {
            route.push(if die(dst) == at {
                port[dst as usize]
            } else {
                (nodes / 2 + dst % links) as u16
            });
        }
    }
    (plan, route)
}

fn plan_graph(routers: &[GraphRouter]) -> Result<Planned, SpecError> {
    let count = routers.len() as u64;
    if count == 0 || count > MAX_GRAPH_ROUTERS {
        return fail(
            "topology.graph.routers",
            format!("{count} routers are not within 1 to {MAX_GRAPH_ROUTERS}"),
        );
    }
    let links: usize = routers.iter().map(|r| r.links.len()).sum();
    if links > MAX_GRAPH_LINKS {
        return fail(
            "topology.graph",
            format!("{links} links are more than {MAX_GRAPH_LINKS}"),
        );
    }
    let total: u64 = routers.iter().map(|r| r.nodes.len() as u64).sum();
    if total == 0 || total > MAX_NODES {
        return fail(
            "topology.graph",
            format!("{total} nodes are not within 1 to {MAX_NODES}"),
        );
    }
    let mut plan = Plan::new(count, total);
    let mut node_port = vec![0u16; total as usize];
    for (r, router) in routers.iter().enumerate() {
        let path = |what: &str| format!("topology.graph.routers[{r}].{what}");
        let mut sorted = router.nodes.clone();
        sorted.sort_by_key(|n| n.node);
        for node in sorted {
            check(&path("nodes.latency"), node.latency, 1, MAX_DELAY)?;
            if u64::from(node.node) >= total {
                return fail(
                    path("nodes"),
                    format!(
                        "node {} of {total}: number the nodes 0, 1, 2 ...",
                        node.node
                    ),
                );
            }
            if plan.nodes[node.node as usize].is_some() {
                return fail(
                    path("nodes"),
                    format!("node {} is attached twice", node.node),
                );
            }
            node_port[node.node as usize] = plan.routers[r].outputs.len() as u16;
            plan.attach(r as u32, node.node, node.latency);
        }
    }
    // Links in order of source, then target, so that ports are numbered by router on both sides.
    let mut neighbours: Vec<Vec<(u32, u32, u16)>> = Vec::with_capacity(routers.len());
    for (r, router) in routers.iter().enumerate() {
        let path = format!("topology.graph.routers[{r}].links");
        let mut sorted = router.links.clone();
        sorted.sort_by_key(|l| l.to);
        let mut list = Vec::with_capacity(sorted.len());
        for (k, link) in sorted.iter().enumerate() {
            check(&path, link.latency, 1, MAX_DELAY)?;
            check(&path, link.cycles_per_flit, 1, MAX_DELAY)?;
            if u64::from(link.to) >= count {
                return fail(path, format!("no router {}", link.to));
            }
            if link.to as usize == r || k > 0 && sorted[k - 1].to == link.to {
                return fail(path, format!("a second or own link to router {}", link.to));
            }
            list.push((link.to, link.latency, plan.routers[r].outputs.len() as u16));
            plan.link(r as u32, link.to, link.latency, link.cycles_per_flit);
        }
        neighbours.push(list);
    }
    let mut route = vec![0u16; routers.len() * total as usize];
    for start in 0..routers.len() {
        let first_port = shortest_first_ports(&neighbours, start);
        for (dst, home) in plan.nodes.iter().enumerate() {
            let Some(home) = home else {
                return fail("topology.graph", format!("node {dst} is attached nowhere"));
            };
            let port = if home.router as usize == start {
                Some(node_port[dst])
            } else {
                first_port[home.router as usize]
            };
            // A router without nodes that cannot reach everything is harmless; `paths` finds out
            // whether a packet can get stuck.
            route[start * total as usize + dst] = port.unwrap_or(u16::MAX);
        }
    }
    Ok((plan, route))
}

/// The port of `start` on the shortest path to each router.
fn shortest_first_ports(neighbours: &[Vec<(u32, u32, u16)>], start: usize) -> Vec<Option<u16>> {
    let mut distance = vec![u64::MAX; neighbours.len()];
    let mut port = vec![None; neighbours.len()];
    let mut queue = BinaryHeap::from([Reverse((0u64, start as u32))]);
    distance[start] = 0;
    while let Some(Reverse((length, at))) = queue.pop() {
        let at = at as usize;
        if length > distance[at] {
            continue;
        }
        for &(to, latency, out) in &neighbours[at] {
            let there = length + u64::from(latency);
            if there < distance[to as usize] {
                distance[to as usize] = there;
                port[to as usize] = if at == start { Some(out) } else { port[at] };
                queue.push(Reverse((there, to)));
            }
        }
    }
    port
}

impl TryFrom<NetworkParams> for FlitNetworkSpec {
    type Error = SpecError;

    fn try_from(params: NetworkParams) -> Result<Self, SpecError> {
        let router = &params.router;
        check("router.vcs", router.vcs, 1, MAX_VCS)?;
        check(
            "router.vc_buffer_flits",
            router.vc_buffer_flits,
            1,
            (1 << 16) - 1,
        )?;
        check("router.routing_delay", router.routing_delay, 0, MAX_DELAY)?;
        check("router.crossbar_delay", router.crossbar_delay, 1, MAX_DELAY)?;
        check("router.credit_delay", router.credit_delay, 0, MAX_DELAY)?;
        check("router.link_latency", router.link_latency, 1, MAX_DELAY)?;
        check("flit_bytes", params.flit_bytes, 1, 1 << 20)?;
        let mut class_masks = vec![];
        let mut class_first = vec![];
        let mut kind_class = [0u8; 5];
        let all = VcRange {
            first: 0,
            last: router.vcs - 1,
        };
        for (kind, (name, range)) in [
            ("", None),
            ("router.read_request_vcs", router.read_request_vcs),
            ("router.write_request_vcs", router.write_request_vcs),
            ("router.read_reply_vcs", router.read_reply_vcs),
            ("router.write_reply_vcs", router.write_reply_vcs),
        ]
        .into_iter()
        .enumerate()
        {
            let range = range.unwrap_or(all);
            if range.first > range.last || range.last >= router.vcs {
                return fail(
                    name,
                    format!(
                        "{} to {} is no range within {} vcs",
                        range.first, range.last, router.vcs
                    ),
                );
            }
            let known = class_masks.iter().position(|m| *m == range.mask());
            let class = known.unwrap_or_else(|| {
                class_masks.push(range.mask());
                class_first.push(range.first);
                class_masks.len() - 1
            });
            kind_class[kind] = class as u8;
        }
        let (plan, route) = plan(&params.topology, router.link_latency)?;
        let vc_shift = router.vcs.next_power_of_two().trailing_zeros();
        let mut spec = FlitNetworkSpec {
            vc_shift,
            class_masks,
            class_first,
            kind_class,
            nodes: Vec::with_capacity(plan.nodes.len()),
            routers: Vec::with_capacity(plan.routers.len()),
            inputs: vec![],
            outputs: vec![],
            route,
            paths: vec![],
            span: 0,
            min_eject_cycles: 0,
            min_latency: 0,
            params,
        };
        spec.wire(&plan)?;
        spec.trace_paths()?;
        spec.refuse_cycles()?;
        Ok(spec)
    }
}

impl FlitNetworkSpec {
    fn wire(&mut self, plan: &Plan) -> Result<(), SpecError> {
        let router = self.params.router.clone();
        let classes = self.class_masks.len() as u32;
        let mut bytes = 0u64;
        let (mut in_base, mut out_base) = (0u32, 0u32);
        let mut request_base = 0u32;
        let (mut output_map_base, mut pending_base) = (0u32, 0u32);
        for (r, planned) in plan.routers.iter().enumerate() {
            let (inputs, outputs) = (planned.inputs, planned.outputs.len() as u32);
            if u64::from(inputs.max(outputs)) << self.vc_shift > MAX_ROUTER_VCS {
                return fail(
                    "topology",
                    format!(
                        "router {r} has {} ports of {} vcs, more than {MAX_ROUTER_VCS} in all",
                        inputs.max(outputs),
                        1 << self.vc_shift
                    ),
                );
            }
            let wire = RouterWire {
                in_base,
                inputs,
                out_base,
                outputs,
                in_words: inputs.div_ceil(64).max(1),
                out_words: outputs.div_ceil(64).max(1),
                vc_words: (inputs << self.vc_shift).div_ceil(64).max(1) + 1,
                request_base,
                output_map_base,
                pending_base,
            };
            bytes += u64::from(inputs.max(outputs)) * 64
                + (u64::from(inputs + outputs) << self.vc_shift) * 16
                + u64::from(outputs) * u64::from(classes * wire.vc_words) * 8;
            if bytes > MAX_STATE_BYTES {
                return fail(
                    "topology",
                    format!("needs more than {} MiB of state", MAX_STATE_BYTES >> 20),
                );
            }
            in_base += inputs;
            out_base += outputs;
            request_base += outputs * wire.in_words;
            output_map_base += 2 * wire.out_words;
            pending_base += outputs * classes * wire.vc_words;
            self.routers.push(wire);
        }
        for (r, wire) in self.routers.iter().enumerate() {
            let open = InputWire {
                router: r as u32,
                source: Source::Open,
                credit_cycles: 1,
            };
            self.inputs.extend((0..wire.inputs).map(|_| open));
        }
        let mut span = 1 + router.routing_delay;
        for (r, planned) in plan.routers.iter().enumerate() {
            for (local, out) in planned.outputs.iter().enumerate() {
                let forth = router.crossbar_delay + 1 + out.latency;
                let back = 1 + out.latency + router.credit_delay;
                span = span.max(forth + back).max(out.cycles_per_flit);
                let this = self.outputs.len() as u32;
                let sink = match out.to {
                    None => Sink::Open,
                    Some(PlanSink::Node(node)) => Sink::Node(node),
                    Some(PlanSink::Router { router: to, input }) => {
                        let input = self.routers[to as usize].in_base + input;
                        self.inputs[input as usize].source = Source::Output(this);
                        self.inputs[input as usize].credit_cycles = back;
                        Sink::Input(input)
                    }
                };
                self.outputs.push(OutputWire {
                    router: r as u32,
                    local: local as u32,
                    sink,
                    latency: out.latency,
                    cycles_per_flit: out.cycles_per_flit,
                    creditless: matches!(sink, Sink::Node(_))
                        && router.vc_buffer_flits >= forth + back,
                });
            }
        }
        for (n, node) in plan.nodes.iter().enumerate() {
            let Some(node) = node else {
                return fail("topology", format!("node {n} is attached nowhere"));
            };
            let input = self.routers[node.router as usize].in_base + node.input;
            self.inputs[input as usize].source = Source::Node(n as u32);
            self.inputs[input as usize].credit_cycles = 1 + node.latency;
            span = span.max(1 + node.latency);
            self.nodes.push(NodeWire {
                input,
                latency: node.latency,
            });
        }
        self.span = u64::from(span);
        self.min_eject_cycles = self
            .outputs
            .iter()
            .filter(|o| matches!(o.sink, Sink::Node(_)))
            .map(|o| u64::from(router.crossbar_delay + 1 + o.latency))
            .min()
            .unwrap_or(1);
        Ok(())
    }

    /// Follows the route of every pair of nodes.
    fn trace_paths(&mut self) -> Result<(), SpecError> {
        let nodes = self.nodes.len();
        let mut paths = vec![Path::default(); nodes * nodes];
        let mut least = u64::MAX;
        let mut way = vec![];
        for dst in 0..nodes {
            // The rest of the way from each router, found once.
            let mut from_router: Vec<Option<Path>> = vec![None; self.routers.len()];
            for (src, from) in self.nodes.iter().enumerate() {
                let mut at = self.inputs[from.input as usize].router;
                let mut rest = Path {
                    cycles_per_flit: 1,
                    ..Path::default()
                };
                while let Some(out) = self.next_output(at, dst) {
                    if let Some(known) = from_router[at as usize] {
                        rest = known;
                        break;
                    }
                    way.push((at, *out));
                    match out.sink {
                        Sink::Input(input) if way.len() <= self.routers.len() => {
                            at = self.inputs[input as usize].router;
                        }
                        Sink::Node(node) if node as usize == dst => break,
                        _ => {
                            return fail(
                                "topology",
                                format!("the route from node {src} to node {dst} misses it"),
                            );
                        }
                    }
                }
                if self.next_output(at, dst).is_none() {
                    return fail("topology", format!("no way from node {src} to node {dst}"));
                }
                while let Some((router, out)) = way.pop() {
                    rest = self.prepend(out, rest);
                    from_router[router as usize] = Some(rest);
                }
                rest.cycles += 1 + from.latency;
                least = least.min(u64::from(rest.cycles));
                paths[src * nodes + dst] = rest;
            }
        }
        self.paths = paths;
        self.min_latency = least;
        Ok(())
    }

    /// The way through one more router, before `rest`.
    fn prepend(&self, out: OutputWire, mut rest: Path) -> Path {
        let router = &self.params.router;
        if out.cycles_per_flit as u16 > rest.cycles_per_flit {
            rest.cycles_per_flit = out.cycles_per_flit as u16;
            rest.catch_up = u32::from(rest.hops) * (router.routing_delay + 1);
        }
        rest.hops += 1;
        rest.cycles += router.routing_delay + 2 + router.crossbar_delay + out.latency;
        rest
    }

    fn next_output(&self, router: u32, dst: usize) -> Option<&OutputWire> {
        let wire = &self.routers[router as usize];
        let port = self.route[router as usize * self.nodes.len() + dst];
        (u32::from(port) < wire.outputs)
            .then(|| &self.outputs[(wire.out_base + u32::from(port)) as usize])
    }

    /// Refuses routes whose links can wait for each other in a circle.
    fn refuse_cycles(&self) -> Result<(), SpecError> {
        let links = self.outputs.len();
        let mut waits = DiGraph::<(), ()>::with_capacity(links, links);
        for _ in 0..links {
            waits.add_node(());
        }
        for (r, wire) in self.routers.iter().enumerate() {
            for dst in 0..self.nodes.len() {
                let Some(out) = self.next_output(r as u32, dst) else {
                    continue;
                };
                let Sink::Input(input) = out.sink else {
                    continue;
                };
                let next = self.inputs[input as usize].router;
                let Some(then) = self.next_output(next, dst) else {
                    continue;
                };
                if matches!(then.sink, Sink::Input(_)) {
                    let to = self.routers[next as usize].out_base + then.local;
                    let from = wire.out_base + out.local;
                    waits.update_edge(
                        NodeIndex::new(from as usize),
                        NodeIndex::new(to as usize),
                        (),
                    );
                }
            }
        }
        match toposort(&waits, None) {
            Ok(_) => Ok(()),
            Err(circle) => {
                let link = &self.outputs[circle.node_id().index()];
                fail(
                    "topology",
                    format!(
                        "its routes can deadlock: links wait for each other in a circle, router {} \
                         port {} among them; remove links or use a mesh, fly or crossbar",
                        link.router, link.local
                    ),
                )
            }
        }
    }

    /// The parameters this network was built from.
    pub fn params(&self) -> &NetworkParams {
        &self.params
    }

    /// Nodes, numbered from 0.
    pub fn nodes(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// Output ports over all routers: the length of `NocStats::link_busy`.
    pub fn links(&self) -> u32 {
        self.outputs.len() as u32
    }

    /// Flits of a packet with this many bytes, at least 1.
    pub fn flits(&self, bytes: u32) -> u32 {
        bytes.div_ceil(self.params.flit_bytes).max(1)
    }

    /// Routers on the way from one node to another.
    pub fn hops(&self, src: u32, dst: u32) -> u32 {
        u32::from(self.path(src, dst).hops)
    }

    /// Cycles from push to delivery when nothing else moves, the buffers cover the credit loop and
    /// no two links on the way are narrow by different measures (a lower bound otherwise).
    pub fn zero_load_latency(&self, src: u32, dst: u32, flits: u32) -> u64 {
        self.path(src, dst).zero_load(flits)
    }

    /// The smallest zero-load latency of any pair of nodes, in cycles.
    pub fn min_latency(&self) -> u64 {
        self.min_latency
    }

    #[inline]
    pub(super) fn path(&self, src: u32, dst: u32) -> Path {
        self.paths[src as usize * self.nodes.len() + dst as usize]
    }
}
