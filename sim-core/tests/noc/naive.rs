//! A deliberately naive twin: every router, port, virtual channel and link is looked at in every
//! cycle, requests are plain lists, and the whole pipeline is written out as stages. It shares only
//! the parameters with the model and works out ports and routes itself.

use std::collections::{BTreeMap, VecDeque};
use tilesim_core::noc::{Allocator, Delivery, NetworkParams, RouterParams, Topology, VcRange};

#[derive(Clone, Copy, PartialEq, Debug)]
enum End {
    Node(usize),
    Port(usize, usize),
}

#[derive(Clone, Copy, Debug)]
struct Link {
    from: End,
    to: End,
    latency: u64,
    cycles_per_flit: u64,
}

#[derive(Clone, Copy, Debug)]
struct Flit {
    packet: usize,
    head: bool,
    tail: bool,
    vc: usize,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Stage {
    Idle,
    /// Routed from this cycle on.
    Routing(u64),
    /// Asks for a VC from this cycle on.
    Asking(u64),
    /// Holds output port, VC; may ask for the switch from this cycle on.
    Holding(usize, usize, u64),
}

#[derive(Clone, Debug)]
struct Vc {
    queue: VecDeque<Flit>,
    stage: Stage,
}

struct Router {
    inputs: Vec<Vec<Vc>>,
    /// Per output: link index.
    out_links: Vec<Option<usize>>,
    in_links: Vec<Option<usize>>,
    /// Per output and VC: held, credits.
    held: Vec<Vec<bool>>,
    credits: Vec<Vec<u32>>,
    busy_until: Vec<u64>,
    va_out: Vec<usize>,
    va_in: Vec<usize>,
    sa_out: Vec<usize>,
    sa_in: Vec<usize>,
    lane: Vec<usize>,
}

/// Output port by router and destination.
type Route = Box<dyn Fn(usize, usize) -> usize>;

struct Packet {
    dst: usize,
    flits: u32,
    tag: u32,
    range: VcRange,
}

pub struct Naive {
    p: RouterParams,
    links: Vec<Link>,
    routers: Vec<Router>,
    /// route[router][dst] = output port
    route: Vec<Vec<usize>>,
    packets: Vec<Packet>,
    /// Per node: flits waiting.
    queues: Vec<VecDeque<Flit>>,
    node_link: Vec<usize>,
    node_credits: Vec<Vec<u32>>,
    last_vc: Vec<Option<usize>>,
    current_vc: Vec<usize>,
    /// (cycle, link, flit)
    flying: Vec<(u64, usize, Flit)>,
    /// (cycle, link, vc): credit back to the sender of the link
    returning: Vec<(u64, usize, usize)>,
    future: VecDeque<(u64, usize, usize)>,
    now: u64,
}

fn round_robin(candidates: &[usize], start: usize) -> Option<usize> {
    candidates
        .iter()
        .copied()
        .filter(|c| *c >= start)
        .min()
        .or_else(|| candidates.iter().copied().min())
}

/// One iteration: outputs grant, inputs accept (or the other way round when `input_first`).
fn allocate(
    requests: &[(usize, usize)],
    out_ptr: &mut [usize],
    in_ptr: &mut [usize],
    kind: Allocator,
) -> Vec<(usize, usize)> {
    let mut first: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    let mut second: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    let mut result = vec![];
    let swap = kind == Allocator::SeparableInputFirst;
    for &(i, o) in requests {
        if swap {
            first.entry(i).or_default().push(o)
        } else {
            first.entry(o).or_default().push(i)
        }
    }
    for (side, candidates) in first {
        let ptr = if swap { in_ptr[side] } else { out_ptr[side] };
        if let Some(chosen) = round_robin(&candidates, ptr) {
            second.entry(chosen).or_default().push(side);
        }
    }
    for (side, candidates) in second {
        let ptr = if swap { out_ptr[side] } else { in_ptr[side] };
        if let Some(chosen) = round_robin(&candidates, ptr) {
            let (i, o) = if swap { (chosen, side) } else { (side, chosen) };
            in_ptr[i] = (o + 1) % out_ptr.len();
            out_ptr[o] = (i + 1) % in_ptr.len();
            result.push((i, o));
        }
    }
    result
}

impl Naive {
    pub fn new(params: &NetworkParams) -> Self {
        let p = params.router.clone();
        let lat = u64::from(p.link_latency);
        let mut links: Vec<Link> = vec![];
        let mut add = |from, to, latency: u64, cycles_per_flit: u64| {
            links.push(Link {
                from,
                to,
                latency,
                cycles_per_flit,
            });
        };
        // Ports per router, and the route as a closure over coordinates.
        let (ports, nodes, route): (Vec<usize>, usize, Route) = match &params.topology {
            Topology::Crossbar { ports } => {
                let ports = *ports as usize;
                for n in 0..ports {
                    add(End::Node(n), End::Port(0, n), lat, 1);
                    add(End::Port(0, n), End::Node(n), lat, 1);
                }
                (vec![ports], ports, Box::new(|_, dst| dst))
            }
            Topology::Fly { k, n } => {
                // Written with digit vectors: at stage s the wire's address has its digit s
                // (from the top) replaced by the destination's.
                let (k, n) = (*k as usize, *n as usize);
                let nodes = k.pow(n as u32);
                let per = nodes / k;
                let digits = move |mut x: usize| {
                    let mut d = vec![0; n];
                    for i in (0..n).rev() {
                        d[i] = x % k;
                        x /= k;
                    }
                    d
                };
                let value = move |d: &[usize]| d.iter().fold(0, |v, x| v * k + x);
                for node in 0..nodes {
                    add(End::Node(node), End::Port(node / k, node % k), lat, 1);
                    add(
                        End::Port((n - 1) * per + node / k, node % k),
                        End::Node(node),
                        lat,
                        1,
                    );
                }
                for stage in 0..n.saturating_sub(1) {
                    for wire in 0..nodes {
                        // wire = router address (n-1 digits) and port; the permutation swaps
                        // digit `stage` of the wire with its last.
                        let mut d = digits(wire);
                        d.swap(stage, n - 1);
                        let to = value(&d);
                        add(
                            End::Port(stage * per + wire / k, wire % k),
                            End::Port((stage + 1) * per + to / k, to % k),
                            lat,
                            1,
                        );
                    }
                }
                (
                    vec![k; n * per],
                    nodes,
                    Box::new(move |r, dst| digits(dst)[r / per]),
                )
            }
            Topology::Mesh { k, n } => {
                let (k, n) = (*k as usize, *n as usize);
                let nodes = k.pow(n as u32);
                for at in 0..nodes {
                    let mut step = 1;
                    for d in 0..n {
                        if at / step % k + 1 < k {
                            add(
                                End::Port(at, 2 * d),
                                End::Port(at + step, 2 * d + 1),
                                lat,
                                1,
                            );
                            add(
                                End::Port(at + step, 2 * d + 1),
                                End::Port(at, 2 * d),
                                lat,
                                1,
                            );
                        }
                        step *= k;
                    }
                    add(End::Node(at), End::Port(at, 2 * n), lat, 1);
                    add(End::Port(at, 2 * n), End::Node(at), lat, 1);
                }
                (
                    vec![2 * n + 1; nodes],
                    nodes,
                    Box::new(move |mut at, mut dst| {
                        for d in 0..n {
                            if at % k < dst % k {
                                return 2 * d;
                            }
                            if at % k > dst % k {
                                return 2 * d + 1;
                            }
                            at /= k;
                            dst /= k;
                        }
                        2 * n
                    }),
                )
            }
            Topology::Chiplet {
                cores,
                memories,
                links: count,
                link_latency,
                link_cycles_per_flit,
            } => {
                let (c, m, l) = (*cores as usize, *memories as usize, *count as usize);
                let mut members = [vec![], vec![]];
                for n in 0..c {
                    members[2 * n / c].push(n);
                }
                for n in 0..m {
                    members[2 * n / m].push(c + n);
                }
                for (die, list) in members.iter().enumerate() {
                    for (port, n) in list.iter().enumerate() {
                        add(End::Node(*n), End::Port(die, port), lat, 1);
                        add(End::Port(die, port), End::Node(*n), lat, 1);
                    }
                    for i in 0..l {
                        let port = list.len() + i;
                        add(
                            End::Port(die, port),
                            End::Port(1 - die, port),
                            u64::from(*link_latency),
                            u64::from(*link_cycles_per_flit),
                        );
                    }
                }
                let ports = vec![members[0].len() + l; 2];
                (
                    ports,
                    c + m,
                    Box::new(move |die, dst| {
                        members[die]
                            .iter()
                            .position(|n| *n == dst)
                            .unwrap_or(members[die].len() + dst % l)
                    }),
                )
            }
            Topology::Graph { routers } => {
                // Ports: nodes by number, then links by target; link inputs by source.
                let mut ports: Vec<usize> = vec![];
                let mut home = BTreeMap::new();
                let mut out_port = BTreeMap::new();
                for (r, router) in routers.iter().enumerate() {
                    let mut list: Vec<_> = router.nodes.iter().collect();
                    list.sort_by_key(|n| n.node);
                    for (port, n) in list.iter().enumerate() {
                        let (node, lat) = (n.node as usize, u64::from(n.latency));
                        add(End::Node(node), End::Port(r, port), lat, 1);
                        add(End::Port(r, port), End::Node(node), lat, 1);
                        home.insert(node, (r, port));
                    }
                    ports.push(list.len() + router.links.len());
                }
                let mut inputs: Vec<usize> = routers.iter().map(|r| r.nodes.len()).collect();
                for (r, router) in routers.iter().enumerate() {
                    let mut list: Vec<_> = router.links.iter().collect();
                    list.sort_by_key(|l| l.to);
                    for (k, l) in list.iter().enumerate() {
                        let (to, port) = (l.to as usize, router.nodes.len() + k);
                        out_port.insert((r, to), port);
                        let far = End::Port(to, inputs[to]);
                        let width = u64::from(l.cycles_per_flit);
                        add(End::Port(r, port), far, u64::from(l.latency), width);
                        inputs[to] += 1;
                    }
                }
                // Trees only: the next router is the neighbour on whose side the target is.
                let count = routers.len();
                let near = move |from: usize, to: usize| {
                    let mut side = vec![None; count];
                    let mut todo = vec![from];
                    while let Some(at) = todo.pop() {
                        for &(a, b) in out_port.keys() {
                            if a == at && b != from && side[b].is_none() {
                                side[b] = if at == from { Some(b) } else { side[at] };
                                todo.push(b);
                            }
                        }
                    }
                    out_port[&(from, side[to].unwrap())]
                };
                let nodes = home.len();
                let route = move |r: usize, dst: usize| {
                    let (at, port) = home[&dst];
                    if at == r { port } else { near(r, at) }
                };
                (ports, nodes, Box::new(route))
            }
        };
        let vcs = p.vcs as usize;
        let mut routers: Vec<Router> = ports
            .iter()
            .map(|&n| Router {
                inputs: vec![
                    vec![
                        Vc {
                            queue: VecDeque::new(),
                            stage: Stage::Idle
                        };
                        vcs
                    ];
                    n
                ],
                out_links: vec![None; n],
                in_links: vec![None; n],
                held: vec![vec![false; vcs]; n],
                credits: vec![vec![p.vc_buffer_flits; vcs]; n],
                busy_until: vec![0; n],
                va_out: vec![0; n * vcs],
                va_in: vec![0; n * vcs],
                sa_out: vec![0; n],
                sa_in: vec![0; n],
                lane: vec![0; n],
            })
            .collect();
        let mut node_link = vec![0; nodes];
        for (l, link) in links.iter().enumerate() {
            match link.from {
                End::Node(n) => node_link[n] = l,
                End::Port(r, o) => routers[r].out_links[o] = Some(l),
            }
            if let End::Port(r, i) = link.to {
                routers[r].in_links[i] = Some(l);
            }
        }
        let route = (0..routers.len())
            .map(|r| (0..nodes).map(|d| route(r, d)).collect())
            .collect();
        Naive {
            links,
            routers,
            route,
            packets: vec![],
            queues: vec![VecDeque::new(); nodes],
            node_link,
            node_credits: vec![vec![p.vc_buffer_flits; vcs]; nodes],
            last_vc: vec![None; nodes],
            current_vc: vec![0; nodes],
            flying: vec![],
            returning: vec![],
            future: VecDeque::new(),
            now: 0,
            p,
        }
    }

    pub fn push(
        &mut self,
        at: u64,
        src: u32,
        dst: u32,
        flits: u32,
        tag: u32,
        range: Option<VcRange>,
    ) {
        let range = range.unwrap_or(VcRange {
            first: 0,
            last: self.p.vcs - 1,
        });
        self.packets.push(Packet {
            dst: dst as usize,
            flits,
            tag,
            range,
        });
        self.future
            .push_back((at, src as usize, self.packets.len() - 1));
    }

    pub fn advance(&mut self, horizon: u64, out: &mut Vec<Delivery>) {
        while self.now < horizon {
            self.cycle(out);
            self.now += 1;
        }
    }

    fn cycle(&mut self, out: &mut Vec<Delivery>) {
        let now = self.now;
        let p = self.p.clone();
        let vcs = p.vcs as usize;
        // Credits.
        for (_, link, vc) in take(&mut self.returning, now) {
            match self.links[link].from {
                End::Node(n) => self.node_credits[n][vc] += 1,
                End::Port(r, o) => self.routers[r].credits[o][vc] += 1,
            }
        }
        // Arrivals.
        let mut arrived = vec![];
        for (_, link, flit) in take(&mut self.flying, now) {
            match self.links[link].to {
                End::Node(n) => {
                    let back = 1 + self.links[link].latency + u64::from(p.credit_delay);
                    self.returning.push((now + back, link, flit.vc));
                    if flit.tail {
                        let packet = &self.packets[flit.packet];
                        assert_eq!(packet.dst, n);
                        arrived.push(Delivery {
                            cycle: now,
                            dst: n as u32,
                            tag: packet.tag,
                        });
                    }
                }
                End::Port(r, i) => {
                    let vc = &mut self.routers[r].inputs[i][flit.vc];
                    vc.queue.push_back(flit);
                    assert!(
                        vc.queue.len() <= p.vc_buffer_flits as usize,
                        "buffer overrun"
                    );
                    if vc.stage == Stage::Idle {
                        assert!(flit.head);
                        vc.stage = Stage::Routing(now);
                    }
                }
            }
        }
        arrived.sort();
        out.extend(arrived);
        // Injection.
        while self.future.front().is_some_and(|f| f.0 <= now) {
            let (_, src, packet) = self.future.pop_front().unwrap();
            let n = self.packets[packet].flits;
            for k in 0..n {
                self.queues[src].push_back(Flit {
                    packet,
                    head: k == 0,
                    tail: k + 1 == n,
                    vc: 0,
                });
            }
        }
        for n in 0..self.queues.len() {
            let Some(mut flit) = self.queues[n].front().copied() else {
                continue;
            };
            let range = self.packets[flit.packet].range;
            let (lo, count) = (
                range.first as usize,
                (range.last - range.first + 1) as usize,
            );
            if flit.head {
                let tries: Vec<usize> = match self.last_vc[n] {
                    Some(l) if l >= lo && l < lo + count => {
                        (1..=count).map(|i| lo + (l - lo + i) % count).collect()
                    }
                    _ => vec![lo],
                };
                match tries.into_iter().find(|v| self.node_credits[n][*v] > 0) {
                    None => continue,
                    Some(v) => {
                        self.last_vc[n] = Some(v);
                        self.current_vc[n] = v;
                    }
                }
            }
            let v = self.current_vc[n];
            if self.node_credits[n][v] == 0 {
                continue;
            }
            self.node_credits[n][v] -= 1;
            flit.vc = v;
            self.queues[n].pop_front();
            let link = self.node_link[n];
            self.flying
                .push((now + 1 + self.links[link].latency, link, flit));
        }
        // Routers.
        for r in 0..self.routers.len() {
            let n_ports = self.routers[r].inputs.len();
            // Routing.
            for i in 0..n_ports {
                for v in 0..vcs {
                    if let Stage::Routing(since) = self.routers[r].inputs[i][v].stage
                        && now >= since + u64::from(p.routing_delay)
                    {
                        self.routers[r].inputs[i][v].stage = Stage::Asking(now);
                    }
                }
            }
            let rt = &mut self.routers[r];
            // Requests for VCs.
            let mut va = vec![];
            for i in 0..n_ports {
                for v in 0..vcs {
                    if let Stage::Asking(since) = rt.inputs[i][v].stage
                        && since <= now
                    {
                        let packet = &self.packets[rt.inputs[i][v].queue[0].packet];
                        let o = self.route[r][packet.dst];
                        for w in packet.range.first..=packet.range.last {
                            if !rt.held[o][w as usize] {
                                va.push((i * vcs + v, o * vcs + w as usize));
                            }
                        }
                    }
                }
            }
            // Requests for the switch: per input and output the preferred VC.
            let mut wants: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
            for i in 0..n_ports {
                for v in 0..vcs {
                    if let Stage::Holding(o, w, since) = rt.inputs[i][v].stage
                        && since <= now
                        && !rt.inputs[i][v].queue.is_empty()
                        && rt.credits[o][w] > 0
                        && rt.busy_until[o] <= now
                    {
                        wants.entry((i, o)).or_default().push(v);
                    }
                }
            }
            let sa: Vec<(usize, usize)> = wants.keys().copied().collect();
            let granted = allocate(&va, &mut rt.va_out, &mut rt.va_in, p.vc_allocator);
            let crossing = allocate(&sa, &mut rt.sa_out, &mut rt.sa_in, p.switch_allocator);
            for (ivc, ovc) in granted {
                let (o, w) = (ovc / vcs, ovc % vcs);
                assert!(!rt.held[o][w]);
                rt.held[o][w] = true;
                rt.inputs[ivc / vcs][ivc % vcs].stage = Stage::Holding(o, w, now + 1);
            }
            for (i, o) in crossing {
                let v = round_robin(&wants[&(i, o)], rt.lane[i]).unwrap();
                rt.lane[i] = (v + 1) % vcs;
                let Stage::Holding(_, w, _) = rt.inputs[i][v].stage else {
                    panic!()
                };
                let mut flit = rt.inputs[i][v].queue.pop_front().unwrap();
                flit.vc = w;
                rt.credits[o][w] -= 1;
                let link = rt.out_links[o].unwrap();
                rt.busy_until[o] = now + self.links[link].cycles_per_flit;
                let there = now + u64::from(p.crossbar_delay) + 1 + self.links[link].latency;
                self.flying.push((there, link, flit));
                let link = rt.in_links[i].unwrap();
                let delay = match self.links[link].from {
                    End::Node(_) => 0,
                    End::Port(..) => u64::from(p.credit_delay),
                };
                self.returning
                    .push((now + 1 + self.links[link].latency + delay, link, v));
                if flit.tail {
                    rt.held[o][w] = false;
                    rt.inputs[i][v].stage = if rt.inputs[i][v].queue.is_empty() {
                        Stage::Idle
                    } else {
                        Stage::Routing(now + 1)
                    };
                }
            }
        }
    }
}

fn take<T: Copy>(events: &mut Vec<(u64, usize, T)>, now: u64) -> Vec<(u64, usize, T)> {
    let due = events.iter().copied().filter(|e| e.0 == now).collect();
    events.retain(|e| e.0 != now);
    due
}
