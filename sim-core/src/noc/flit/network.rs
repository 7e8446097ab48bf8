//! State and behaviour of a flit network.

use std::collections::VecDeque;

use super::bits::{
    circular_first, circular_first_summed, circular_first_wide, clear_summed, set_summed,
};
use super::spec::{Allocator, FlitNetworkSpec, PacketKind, RouterWire, Sink, Source};
use super::stats::NocStats;
use super::wheel::Wheel;

/// No flit, no packet, no owner.
const NONE: u32 = u32::MAX;
/// Up to so many packets that ask for a VC of one port are compared one by one.
const FEW_ASKERS: usize = 8;
/// No virtual channel chosen yet.
const NO_VC: u32 = u32::MAX;

/// A packet that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Delivery {
    /// NoC cycle in which its last flit left the network.
    pub cycle: u64,
    /// Node it arrived at.
    pub dst: u32,
    /// What the pusher called it.
    pub tag: u32,
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    /// Cycle of the push.
    at: u64,
    tag: u32,
    flits: u32,
    /// Next packet in its injection queue, or next free entry of the pool.
    next: u32,
    src: u16,
    dst: u16,
    class: u8,
}

#[derive(Clone, Copy, Debug)]
struct Flit {
    /// Next flit in the buffer of its virtual channel, or next free entry of the pool.
    next: u32,
    packet: u32,
    dst: u16,
    class: u8,
    tail: bool,
}

/// An injecting node.
#[derive(Clone, Copy, Debug)]
struct Node {
    /// Injection queue; the packet being injected stays at its head.
    head: u32,
    tail: u32,
    /// Flits of the head packet that have not left.
    left: u32,
    /// Virtual channel of the packet being injected.
    vc: u32,
    /// Virtual channel of the packet before.
    last_vc: u32,
    /// Virtual channels whose buffer has room.
    room: u64,
    /// Flits in the queue.
    queued: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VcState {
    /// Empty, between packets.
    Idle,
    /// The head flit is being routed.
    Routing,
    /// The head flit asks for a virtual channel of the output port `target`.
    Pending,
    /// The packet holds the output virtual channel `target`.
    Active,
}

/// A virtual channel of an input port.
#[derive(Clone, Copy, Debug)]
struct InputVc {
    head: u32,
    tail: u32,
    target: u32,
    /// Where the accepting arbiter of VC allocation looks first: output VC within the router.
    accept: u16,
    state: VcState,
    class: u8,
}

#[derive(Clone, Copy, Debug)]
struct InputPort {
    /// Virtual channels with a flit that may cross the switch.
    ready: u64,
    /// Where the accepting arbiter of switch allocation looks first: output within the router.
    accept: u16,
    /// Virtual channel preferred among those that want the same output.
    vc_offset: u16,
    /// The router's row of the routing table, and its first output port: copies from the spec.
    route_base: u32,
    out_base: u32,
}

/// A virtual channel of an output port, that is of the buffer at the far end of its link.
#[derive(Clone, Copy, Debug)]
struct OutputVc {
    /// Input virtual channel whose packet holds it.
    owner: u32,
    /// Free slots at the far end.
    credits: u16,
    /// Where the granting arbiter of VC allocation looks first: input VC within the router.
    grant: u16,
}

#[derive(Clone, Copy, Debug)]
struct OutputPort {
    /// Virtual channels no packet holds.
    free: u64,
    /// Where the granting arbiter of switch allocation looks first: input within the router.
    grant: u16,
    /// Input virtual channels that ask for one of this port's.
    pending: u16,
    /// Classes among them.
    classes: u8,
    /// The link still carries the flit before (links of several cycles per flit).
    busy: bool,
    /// From here on copies of what the spec says, so that one line of memory has it all.
    router: u32,
    /// First input port of the router.
    in_base: u32,
    /// Where this port's bitmap of requesting inputs begins, and its words.
    request_base: u32,
    in_words: u32,
    /// Where this port's bitmaps of asking input VCs begin, and the words of each.
    pending_base: u32,
    vc_words: u32,
    /// The words of the router's output maps with this port's bit: switch, VC.
    maps: [u32; 2],
    /// Port number within the router.
    local: u32,
}

/// A flit that crosses the switch this cycle: output, input and VC within the router.
#[derive(Clone, Copy, Debug)]
struct Match {
    output: u32,
    input: u32,
    vc: u32,
}

/// A small event: what happens in the upper two bits, to what in the others.
type Signal = u32;
const CREDIT: Signal = 0;
const SOURCE_CREDIT: Signal = 1 << 30;
const ROUTED: Signal = 2 << 30;
const LINK_FREE: Signal = 3 << 30;
const SIGNAL_INDEX: Signal = (1 << 30) - 1;

/// The state of a flit network. Every method that takes a spec must be given the one it was made
/// for.
#[derive(Clone, Debug)]
pub struct FlitNetwork {
    /// The next cycle to work on.
    now: u64,
    packets: Vec<Packet>,
    free_packet: u32,
    flits: Vec<Flit>,
    free_flit: u32,
    /// Packets pushed for cycles to come.
    future: VecDeque<(u64, u32)>,
    in_flight: u64,
    nodes: Vec<Node>,
    node_credits: Vec<u32>,
    sending: Vec<u64>,
    input_vcs: Vec<InputVc>,
    inputs: Vec<InputPort>,
    output_vcs: Vec<OutputVc>,
    outputs: Vec<OutputPort>,
    /// Per output port, a bitmap of the inputs with a flit for it.
    requests: Vec<u64>,
    /// Per output port and class, a summed bitmap of the input VCs that ask for a VC of it.
    pending: Vec<u64>,
    /// Per router, two bitmaps of outputs: switch allocation can grant; VC allocation can.
    output_maps: Vec<u64>,
    /// Routers with a bit in their output maps.
    active: Vec<u64>,
    arrivals: Wheel<(u32, u32)>,
    signals: Wheel<Signal>,
    ejections: Wheel<u32>,
    /// The spec's figures, for `next_activity`.
    min_eject_cycles: u64,
    min_latency: u64,
    stats: NocStats,
    /// Scratch: the input each output granted, the output each input accepts.
    granted: Vec<u32>,
    accepted: Vec<u32>,
    matches: Vec<Match>,
}

#[inline]
fn for_each_bit(mut word: u64, mut f: impl FnMut(u32)) {
    while word != 0 {
        f(word.trailing_zeros());
        word &= word - 1;
    }
}

/// How far `index` lies from `start`, going up and round.
#[inline]
fn distance(index: u32, start: u32) -> u32 {
    index.wrapping_sub(start) & 0xffff
}

/// A pointer over all of a router's output VCs, seen from one output port.
#[inline]
fn pointer_within(pointer: u16, output: u32, vc_shift: u32) -> u32 {
    u32::from(pointer).saturating_sub(output << vc_shift)
}

impl FlitNetwork {
    /// An empty network at cycle 0.
    pub fn new(spec: &FlitNetworkSpec) -> Self {
        let router = &spec.params().router;
        let stride = 1usize << spec.vc_shift;
        let all_vcs = u64::MAX >> (64 - router.vcs);
        let last = spec.routers.last();
        let sum = |f: fn(&RouterWire) -> u32| last.map_or(0, f) as usize;
        let classes = spec.class_masks.len();
        let widest = spec
            .routers
            .iter()
            .map(|r| r.inputs.max(r.outputs))
            .max()
            .unwrap_or(0);
        FlitNetwork {
            now: 0,
            packets: vec![],
            free_packet: NONE,
            flits: vec![],
            free_flit: NONE,
            future: VecDeque::new(),
            in_flight: 0,
            nodes: vec![
                Node {
                    head: NONE,
                    tail: NONE,
                    left: 0,
                    vc: NO_VC,
                    last_vc: NO_VC,
                    room: all_vcs,
                    queued: 0,
                };
                spec.nodes.len()
            ],
            node_credits: vec![router.vc_buffer_flits; spec.nodes.len() * stride],
            sending: vec![0; spec.nodes.len().div_ceil(64)],
            input_vcs: vec![
                InputVc {
                    head: NONE,
                    tail: NONE,
                    target: 0,
                    accept: 0,
                    state: VcState::Idle,
                    class: 0,
                };
                spec.inputs.len() * stride
            ],
            inputs: spec
                .inputs
                .iter()
                .map(|wire| InputPort {
                    ready: 0,
                    accept: 0,
                    vc_offset: 0,
                    route_base: wire.router * spec.nodes.len() as u32,
                    out_base: spec.routers[wire.router as usize].out_base,
                })
                .collect(),
            output_vcs: vec![
                OutputVc {
                    owner: NONE,
                    credits: router.vc_buffer_flits as u16,
                    grant: 0
                };
                spec.outputs.len() * stride
            ],
            outputs: spec
                .outputs
                .iter()
                .map(|wire| {
                    let router = &spec.routers[wire.router as usize];
                    let map = router.output_map_base + wire.local / 64;
                    OutputPort {
                        free: all_vcs,
                        grant: 0,
                        pending: 0,
                        classes: 0,
                        busy: false,
                        router: wire.router,
                        in_base: router.in_base,
                        request_base: router.request_base + wire.local * router.in_words,
                        in_words: router.in_words,
                        pending_base: router.pending_base
                            + wire.local * classes as u32 * router.vc_words,
                        vc_words: router.vc_words,
                        maps: [map, map + router.out_words],
                        local: wire.local,
                    }
                })
                .collect(),
            requests: vec![0; sum(|r| r.request_base + r.outputs * r.in_words)],
            pending: vec![
                0;
                last.map_or(0, |r| {
                    r.pending_base as usize + r.outputs as usize * classes * r.vc_words as usize
                })
            ],
            output_maps: vec![0; sum(|r| r.output_map_base + 2 * r.out_words)],
            active: vec![0; spec.routers.len().div_ceil(64)],
            arrivals: Wheel::new(spec.span),
            signals: Wheel::new(spec.span),
            ejections: Wheel::new(spec.span),
            stats: NocStats {
                link_busy: vec![0; spec.outputs.len()],
                ..NocStats::default()
            },
            min_eject_cycles: spec.min_eject_cycles,
            min_latency: spec.min_latency(),
            granted: vec![0; widest as usize],
            accepted: vec![NONE; widest as usize],
            matches: vec![],
        }
    }

    /// The smallest number of cycles from a push to its delivery, over all pairs of nodes.
    pub fn min_latency(spec: &FlitNetworkSpec) -> u64 {
        spec.min_latency()
    }

    /// At NoC cycle `at` a packet of `flits` flits (at least 1) enters the unbounded injection
    /// queue of node `src`, bound for node `dst`. `at` never falls from one call to the next and is
    /// not before the last horizon; both nodes exist. The packet may use every virtual channel.
    #[inline]
    pub fn push(&mut self, at: u64, src: u32, dst: u32, flits: u32, tag: u32) {
        self.push_class(at, src, dst, flits, tag, 0);
    }

    /// [`FlitNetwork::push`] for a packet that keeps to the virtual channels of its kind.
    #[inline]
    pub fn push_kind(
        &mut self,
        spec: &FlitNetworkSpec,
        at: u64,
        (src, dst): (u32, u32),
        flits: u32,
        tag: u32,
        kind: PacketKind,
    ) {
        self.push_class(at, src, dst, flits, tag, spec.kind_class[kind as usize]);
    }

    #[inline]
    fn push_class(&mut self, at: u64, src: u32, dst: u32, flits: u32, tag: u32, class: u8) {
        debug_assert!((src.max(dst) as usize) < self.nodes.len(), "no such node");
        debug_assert!(at >= self.now, "a push at {at}, before cycle {}", self.now);
        debug_assert!(
            self.future.back().is_none_or(|p| p.0 <= at),
            "pushes out of order"
        );
        self.stats.packets_pushed += 1;
        self.in_flight += 1;
        let packet = Packet {
            at,
            tag,
            flits: flits.max(1),
            next: NONE,
            src: src as u16,
            dst: dst as u16,
            class,
        };
        let id = if self.free_packet == NONE {
            self.packets.push(packet);
            self.packets.len() as u32 - 1
        } else {
            let id = self.free_packet;
            self.free_packet = self.packets[id as usize].next;
            self.packets[id as usize] = packet;
            id
        };
        self.future.push_back((at, id));
    }

    /// The first cycle that was not simulated yet.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Packets pushed and not delivered.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Flits waiting in a node's injection queue at the present cycle, pushes to come left out.
    pub fn queued_flits(&self, node: u32) -> u32 {
        self.nodes[node as usize].queued
    }

    /// What happened so far.
    pub fn stats(&self) -> &NocStats {
        &self.stats
    }

    /// No delivery happens before this cycle unless something is pushed; `u64::MAX` when empty.
    pub fn next_activity(&self) -> u64 {
        let mut bound = self.ejections.next(self.now).unwrap_or(u64::MAX);
        let eject = self.min_eject_cycles;
        if self.active.iter().any(|w| *w != 0) {
            bound = bound.min(self.now + eject);
        }
        if let Some(at) = self.arrivals.next(self.now) {
            bound = bound.min(at + eject);
        }
        if let Some(at) = self.signals.next(self.now) {
            // A credit may let a flit go, and a routed head asks for a channel first.
            if self.in_flight > 0 {
                bound = bound.min(at + eject);
            }
        }
        if self.sending.iter().any(|w| *w != 0) {
            bound = bound.min(self.now + self.min_latency);
        }
        if let Some((at, _)) = self.future.front() {
            bound = bound.min((*at).max(self.now) + self.min_latency);
        }
        bound
    }

    /// Simulates every cycle before `horizon`; every push before it has been made. Deliveries are
    /// appended in order of cycle, then node (a node receives at most one packet in a cycle).
    pub fn advance(&mut self, spec: &FlitNetworkSpec, horizon: u64, out: &mut Vec<Delivery>) {
        while self.now < horizon {
            if !self.has_work_now() {
                let next = [self.arrivals.next(self.now), self.signals.next(self.now)]
                    .into_iter()
                    .chain([
                        self.ejections.next(self.now),
                        self.future.front().map(|p| p.0),
                    ])
                    .flatten()
                    .min()
                    .unwrap_or(u64::MAX);
                self.now = next.min(horizon);
                if self.now == horizon {
                    return;
                }
            }
            self.step(spec, out);
            self.now += 1;
        }
    }

    #[inline]
    fn has_work_now(&self) -> bool {
        self.active.iter().any(|w| *w != 0)
            || self.sending.iter().any(|w| *w != 0)
            || !self.arrivals.is_quiet(self.now)
            || !self.signals.is_quiet(self.now)
            || !self.ejections.is_quiet(self.now)
            || self.future.front().is_some_and(|p| p.0 <= self.now)
    }

    /// One cycle.
    fn step(&mut self, spec: &FlitNetworkSpec, out: &mut Vec<Delivery>) {
        let now = self.now;
        if !self.signals.is_quiet(now) {
            let signals = self.signals.take(now);
            for &signal in &signals {
                self.signal(spec, signal);
            }
            self.signals.restore(now, signals);
        }
        if !self.arrivals.is_quiet(now) {
            let arrivals = self.arrivals.take(now);
            for &(vc, flit) in &arrivals {
                self.arrive(spec, vc, flit);
            }
            self.arrivals.restore(now, arrivals);
        }
        while let Some((_, packet)) = self.future.front().copied().filter(|p| p.0 <= now) {
            self.future.pop_front();
            self.enqueue(packet);
        }
        for word in 0..self.sending.len() {
            for_each_bit(self.sending[word], |bit| {
                self.inject(spec, word as u32 * 64 + bit)
            });
        }
        for word in 0..self.active.len() {
            for_each_bit(self.active[word], |bit| {
                self.route_flits(spec, word as u32 * 64 + bit)
            });
        }
        if !self.ejections.is_quiet(now) {
            let mut ejections = self.ejections.take(now);
            if !ejections.is_sorted_by_key(|p| self.packets[*p as usize].dst) {
                ejections.sort_unstable_by_key(|p| self.packets[*p as usize].dst);
            }
            for &packet in &ejections {
                out.push(self.deliver(spec, packet));
            }
            self.ejections.restore(now, ejections);
        }
    }

    #[inline]
    fn signal(&mut self, spec: &FlitNetworkSpec, signal: Signal) {
        let index = signal & SIGNAL_INDEX;
        match signal & !SIGNAL_INDEX {
            CREDIT => {
                let vc = &mut self.output_vcs[index as usize];
                vc.credits += 1;
                if vc.credits == 1 && vc.owner != NONE {
                    let owner = vc.owner;
                    if self.input_vcs[owner as usize].head != NONE {
                        self.set_ready(spec, owner);
                    }
                }
            }
            SOURCE_CREDIT => {
                let node = index >> spec.vc_shift;
                self.node_credits[index as usize] += 1;
                let at = &mut self.nodes[node as usize];
                at.room |= 1 << (index & ((1 << spec.vc_shift) - 1));
                if at.head != NONE {
                    self.sending[node as usize / 64] |= 1 << (node % 64);
                }
            }
            ROUTED => self.ask_for_vc(spec, index),
            _ => {
                self.outputs[index as usize].busy = false;
                let port = self.outputs[index as usize];
                if self.request_words(&port).iter().any(|w| *w != 0) {
                    self.set_output_map(&port, 0);
                }
            }
        }
    }

    #[inline]
    fn enqueue(&mut self, id: u32) {
        let packet = &self.packets[id as usize];
        let (src, flits) = (packet.src as usize, packet.flits);
        let node = &mut self.nodes[src];
        node.queued += flits;
        if node.head == NONE {
            node.head = id;
            node.left = flits;
            self.sending[src / 64] |= 1 << (src % 64);
        } else {
            self.packets[node.tail as usize].next = id;
        }
        node.tail = id;
    }

    /// Sends one flit of a node, if the buffer it goes to has room.
    #[inline]
    fn inject(&mut self, spec: &FlitNetworkSpec, n: u32) {
        let node = &mut self.nodes[n as usize];
        let id = node.head;
        let packet = &self.packets[id as usize];
        if node.left == packet.flits {
            // A node sends one packet at a time, so every channel of its link is free; the next one
            // with room is taken. Coming from outside the packet's range, only its first counts.
            let mask = spec.class_masks[packet.class as usize];
            let room = node.room & mask;
            let chosen = if node.last_vc < 64 && mask >> node.last_vc & 1 == 1 {
                circular_first(room, node.last_vc + 1)
            } else {
                let first = spec.class_first[packet.class as usize];
                (room >> first & 1 == 1).then_some(first)
            };
            let Some(vc) = chosen else {
                self.sending[n as usize / 64] &= !(1 << (n % 64));
                return;
            };
            node.vc = vc;
            node.last_vc = vc;
            self.stats.source_wait_cycles += self.now - packet.at;
        } else if node.room >> node.vc & 1 == 0 {
            self.sending[n as usize / 64] &= !(1 << (n % 64));
            return;
        }
        let credits = &mut self.node_credits[((n << spec.vc_shift) | node.vc) as usize];
        *credits -= 1;
        if *credits == 0 {
            node.room &= !(1 << node.vc);
        }
        node.left -= 1;
        node.queued -= 1;
        let flit = Flit {
            next: NONE,
            packet: id,
            dst: packet.dst,
            class: packet.class,
            tail: node.left == 0,
        };
        if node.left == 0 {
            node.head = packet.next;
            if node.head == NONE {
                self.sending[n as usize / 64] &= !(1 << (n % 64));
            } else {
                node.left = self.packets[node.head as usize].flits;
            }
        }
        let wire = &spec.nodes[n as usize];
        let vc = (wire.input << spec.vc_shift) | node.vc;
        let id = if self.free_flit == NONE {
            self.flits.push(flit);
            self.flits.len() as u32 - 1
        } else {
            let id = self.free_flit;
            self.free_flit = self.flits[id as usize].next;
            self.flits[id as usize] = flit;
            id
        };
        self.arrivals
            .add(self.now + 1 + u64::from(wire.latency), (vc, id));
    }

    /// A flit enters the buffer of an input virtual channel.
    #[inline]
    fn arrive(&mut self, spec: &FlitNetworkSpec, vc: u32, flit: u32) {
        let at = &mut self.input_vcs[vc as usize];
        let was_empty = at.head == NONE;
        if was_empty {
            at.head = flit;
        } else {
            self.flits[at.tail as usize].next = flit;
        }
        at.tail = flit;
        match at.state {
            VcState::Idle => self.start_packet(spec, vc, self.now),
            VcState::Active if was_empty && self.output_vcs[at.target as usize].credits > 0 => {
                self.set_ready(spec, vc);
            }
            _ => {}
        }
    }

    /// The flit at the head of a virtual channel is the first of a packet, from cycle `from` on.
    #[inline]
    fn start_packet(&mut self, spec: &FlitNetworkSpec, vc: u32, from: u64) {
        let at = &mut self.input_vcs[vc as usize];
        let flit = &self.flits[at.head as usize];
        let input = &self.inputs[(vc >> spec.vc_shift) as usize];
        let output = spec.route[input.route_base as usize + flit.dst as usize];
        at.target = input.out_base + u32::from(output);
        at.class = flit.class;
        let delay = spec.params().router.routing_delay;
        if delay == 0 {
            self.ask_for_vc(spec, vc);
        } else {
            at.state = VcState::Routing;
            self.signals.add(from + u64::from(delay), ROUTED | vc);
        }
    }

    #[inline]
    fn ask_for_vc(&mut self, spec: &FlitNetworkSpec, vc: u32) {
        let at = &mut self.input_vcs[vc as usize];
        at.state = VcState::Pending;
        let (output, class) = (at.target, u32::from(at.class));
        let port = &mut self.outputs[output as usize];
        port.pending += 1;
        port.classes |= 1 << class;
        let port = *port;
        let asker = vc - (port.in_base << spec.vc_shift);
        set_summed(&mut self.pending[pending_map(&port, class)], asker);
        if port.free & spec.class_masks[class as usize] != 0 {
            self.set_output_map(&port, 1);
        }
    }

    /// Notes that allocation `which` (0: switch, 1: VC) has something to grant at an output.
    #[inline]
    fn set_output_map(&mut self, port: &OutputPort, which: usize) {
        self.output_maps[port.maps[which] as usize] |= 1 << (port.local % 64);
        self.active[port.router as usize / 64] |= 1 << (port.router % 64);
    }

    #[inline]
    fn clear_output_map(&mut self, port: &OutputPort, which: usize) {
        self.output_maps[port.maps[which] as usize] &= !(1 << (port.local % 64));
    }

    /// The flit at the head of an active virtual channel may cross the switch.
    #[inline]
    fn set_ready(&mut self, spec: &FlitNetworkSpec, vc: u32) {
        let target = self.input_vcs[vc as usize].target >> spec.vc_shift;
        let port = self.outputs[target as usize];
        let (input, lane) = (vc >> spec.vc_shift, vc & ((1 << spec.vc_shift) - 1));
        let i = input - port.in_base;
        self.inputs[input as usize].ready |= 1 << lane;
        self.requests[(port.request_base + i / 64) as usize] |= 1 << (i % 64);
        if !port.busy {
            self.set_output_map(&port, 0);
        }
    }

    /// The reverse, for a virtual channel that has just sent a flit.
    #[inline]
    fn clear_ready(&mut self, spec: &FlitNetworkSpec, port: &OutputPort, input: u32, vc: u32) {
        let at = &mut self.inputs[(port.in_base + input) as usize];
        at.ready &= !(1 << vc);
        if at.ready != 0 && self.wants(spec, port, input) != 0 {
            return;
        }
        let base = port.request_base as usize;
        let words = &mut self.requests[base..base + port.in_words as usize];
        words[input as usize / 64] &= !(1 << (input % 64));
        if words.iter().all(|w| *w == 0) {
            self.clear_output_map(port, 0);
        }
    }

    /// The ready virtual channels of an input that send to an output.
    #[inline]
    fn wants(&self, spec: &FlitNetworkSpec, port: &OutputPort, input: u32) -> u64 {
        let input = port.in_base + input;
        let at = &self.inputs[input as usize];
        let output = at.out_base + port.local;
        let mut fitting = 0u64;
        for_each_bit(at.ready, |vc| {
            let target = self.input_vcs[((input << spec.vc_shift) | vc) as usize].target;
            fitting |= u64::from(target >> spec.vc_shift == output) << vc;
        });
        fitting
    }

    /// One cycle of one router.
    #[inline]
    fn route_flits(&mut self, spec: &FlitNetworkSpec, r: u32) {
        let router = &spec.routers[r as usize];
        let base = router.output_map_base as usize;
        let words = router.out_words as usize;
        let mut matches = std::mem::take(&mut self.matches);
        match spec.params().router.switch_allocator {
            Allocator::Islip => self.allocate_switch_islip(spec, router, &mut matches),
            Allocator::SeparableInputFirst => {
                self.allocate_switch_separable(spec, router, &mut matches);
            }
        }
        for word in 0..words {
            let asked = self.output_maps[base + words + word];
            for_each_bit(asked, |bit| {
                let output = word as u32 * 64 + bit;
                match spec.params().router.vc_allocator {
                    Allocator::Islip => self.allocate_vcs_islip(spec, router, output),
                    Allocator::SeparableInputFirst => {
                        self.allocate_vcs_separable(spec, router, output);
                    }
                }
            });
        }
        for &m in &matches {
            self.traverse(spec, router, m);
        }
        matches.clear();
        self.matches = matches;
        if self.output_maps[base..base + 2 * words]
            .iter()
            .all(|w| *w == 0)
        {
            self.active[r as usize / 64] &= !(1 << (r % 64));
        }
    }

    #[inline]
    fn request_words(&self, port: &OutputPort) -> &[u64] {
        &self.requests[port.request_base as usize..][..port.in_words as usize]
    }

    /// Each output grants its next input, each input accepts its next grant.
    #[inline]
    fn allocate_switch_islip(
        &mut self,
        spec: &FlitNetworkSpec,
        router: &RouterWire,
        matches: &mut Vec<Match>,
    ) {
        let base = router.output_map_base as usize;
        for word in 0..router.out_words as usize {
            for_each_bit(self.output_maps[base + word], |bit| {
                let output = word as u32 * 64 + bit;
                let port = &self.outputs[(router.out_base + output) as usize];
                let requests = self.request_words(port);
                let Some(input) = circular_first_wide(requests, port.grant.into()) else {
                    return;
                };
                self.granted[output as usize] = input;
                let accept = u32::from(self.inputs[(router.in_base + input) as usize].accept);
                let best = &mut self.accepted[input as usize];
                if *best == NONE || distance(output, accept) < distance(*best, accept) {
                    *best = output;
                }
            });
        }
        for word in 0..router.out_words as usize {
            for_each_bit(self.output_maps[base + word], |bit| {
                let output = word as u32 * 64 + bit;
                let input = self.granted[output as usize];
                if self.accepted[input as usize] == output {
                    self.accepted[input as usize] = NONE;
                    if let Some(vc) = self.preferred_vc(spec, router, input, output) {
                        matches.push(Match { output, input, vc });
                    }
                }
            });
        }
    }

    /// The virtual channel of an input that sends to an output, by the input's round robin.
    #[inline]
    fn preferred_vc(
        &self,
        spec: &FlitNetworkSpec,
        router: &RouterWire,
        input: u32,
        output: u32,
    ) -> Option<u32> {
        let port = &self.inputs[(router.in_base + input) as usize];
        if port.ready.is_power_of_two() {
            return Some(port.ready.trailing_zeros());
        }
        let output = &self.outputs[(router.out_base + output) as usize];
        circular_first(self.wants(spec, output, input), port.vc_offset.into())
    }

    /// Each input asks for its next output, each output takes its next asker.
    fn allocate_switch_separable(
        &mut self,
        spec: &FlitNetworkSpec,
        router: &RouterWire,
        matches: &mut Vec<Match>,
    ) {
        self.granted[..router.outputs as usize].fill(NONE);
        for input in 0..router.inputs {
            let port = self.inputs[(router.in_base + input) as usize];
            let base = (router.in_base + input) << spec.vc_shift;
            let accept = u32::from(port.accept);
            let mut best = NONE;
            for_each_bit(port.ready, |vc| {
                let target = self.input_vcs[(base | vc) as usize].target >> spec.vc_shift;
                let output = target - router.out_base;
                if !self.outputs[target as usize].busy
                    && (best == NONE || distance(output, accept) < distance(best, accept))
                {
                    best = output;
                }
            });
            if best != NONE {
                let start = u32::from(self.outputs[(router.out_base + best) as usize].grant);
                let granted = &mut self.granted[best as usize];
                if *granted == NONE || distance(input, start) < distance(*granted, start) {
                    *granted = input;
                }
            }
        }
        for output in 0..router.outputs {
            let input = self.granted[output as usize];
            if input != NONE
                && let Some(vc) = self.preferred_vc(spec, router, input, output)
            {
                matches.push(Match { output, input, vc });
            }
        }
    }

    /// Gives free virtual channels of an output to packets that ask for one: each channel grants
    /// its next asker, each asker accepts its next grant.
    #[inline]
    fn allocate_vcs_islip(&mut self, spec: &FlitNetworkSpec, router: &RouterWire, output: u32) {
        let port = self.outputs[(router.out_base + output) as usize];
        if port.pending == 1 {
            let class = port.classes.trailing_zeros();
            let map = pending_map(&port, class);
            let Some(asker) = circular_first_summed(&self.pending[map], 0) else {
                return;
            };
            let vc = (router.in_base << spec.vc_shift) + asker;
            let accept = self.input_vcs[vc as usize].accept;
            let start = pointer_within(accept, output, spec.vc_shift);
            let free = port.free & spec.class_masks[class as usize];
            if let Some(lane) = circular_first(free, start) {
                self.assign_vc(spec, router, (output, asker, lane));
            }
            return;
        }
        let mut granted = [0u32; 64];
        let mut lanes = 0u64;
        let offset = (router.out_base + output) << spec.vc_shift;
        if usize::from(port.pending) <= FEW_ASKERS {
            // Few ask: compare them one by one.
            let mut askers = [(0u32, 0u64); FEW_ASKERS];
            let mut count = 0;
            for_each_bit(u64::from(port.classes), |class| {
                let mask = spec.class_masks[class as usize];
                let map = &self.pending[pending_map(&port, class)];
                for_each_bit(map[0], |word| {
                    for_each_bit(map[1 + word as usize], |bit| {
                        askers[count] = (word * 64 + bit, mask);
                        count += 1;
                    });
                });
            });
            for_each_bit(port.free, |lane| {
                let start = u32::from(self.output_vcs[(offset | lane) as usize].grant);
                let mut best = u32::MAX;
                for &(asker, mask) in &askers[..count] {
                    let reach = distance(asker, start);
                    if mask >> lane & 1 == 1 && reach < best {
                        best = reach;
                        granted[lane as usize] = asker;
                    }
                }
                lanes |= u64::from(best != u32::MAX) << lane;
            });
        } else {
            for_each_bit(port.free, |lane| {
                let start = u32::from(self.output_vcs[(offset | lane) as usize].grant);
                let mut best = NONE;
                for_each_bit(u64::from(port.classes), |class| {
                    if spec.class_masks[class as usize] >> lane & 1 == 1 {
                        let map = pending_map(&port, class);
                        if let Some(asker) = circular_first_summed(&self.pending[map], start)
                            && (best == NONE || distance(asker, start) < distance(best, start))
                        {
                            best = asker;
                        }
                    }
                });
                if best != NONE {
                    granted[lane as usize] = best;
                    lanes |= 1 << lane;
                }
            });
        }
        while lanes != 0 {
            let asker = granted[lanes.trailing_zeros() as usize];
            let mut offers = 0u64;
            for_each_bit(lanes, |lane| {
                offers |= u64::from(granted[lane as usize] == asker) << lane;
            });
            lanes &= !offers;
            let vc = (router.in_base << spec.vc_shift) + asker;
            let accept = self.input_vcs[vc as usize].accept;
            let start = pointer_within(accept, output, spec.vc_shift);
            if let Some(lane) = circular_first(offers, start) {
                self.assign_vc(spec, router, (output, asker, lane));
            }
        }
    }

    /// Gives free virtual channels of an output to packets that ask for one: each asker chooses
    /// its next channel, each channel takes its next asker.
    fn allocate_vcs_separable(&mut self, spec: &FlitNetworkSpec, router: &RouterWire, output: u32) {
        let port = self.outputs[(router.out_base + output) as usize];
        let mut granted = [NONE; 64];
        let mut lanes = 0u64;
        for_each_bit(u64::from(port.classes), |class| {
            let free = port.free & spec.class_masks[class as usize];
            let map = pending_map(&port, class);
            for (word, &askers) in self.pending[map].iter().skip(1).enumerate() {
                for_each_bit(askers, |bit| {
                    let asker = word as u32 * 64 + bit;
                    let vc = (router.in_base << spec.vc_shift) + asker;
                    let accept = self.input_vcs[vc as usize].accept;
                    let start = pointer_within(accept, output, spec.vc_shift);
                    let Some(lane) = circular_first(free, start) else {
                        return;
                    };
                    let at = ((router.out_base + output) << spec.vc_shift) | lane;
                    let start = u32::from(self.output_vcs[at as usize].grant);
                    let best = &mut granted[lane as usize];
                    if *best == NONE || distance(asker, start) < distance(*best, start) {
                        *best = asker;
                    }
                    lanes |= 1 << lane;
                });
            }
        });
        for_each_bit(lanes, |lane| {
            self.assign_vc(spec, router, (output, granted[lane as usize], lane));
        });
    }

    /// A packet gets a virtual channel of its output port.
    #[inline]
    fn assign_vc(
        &mut self,
        spec: &FlitNetworkSpec,
        router: &RouterWire,
        (output, asker, lane): (u32, u32, u32),
    ) {
        let vc = (router.in_base << spec.vc_shift) + asker;
        let o = router.out_base + output;
        let at = &mut self.input_vcs[vc as usize];
        at.state = VcState::Active;
        at.target = (o << spec.vc_shift) | lane;
        at.accept = (((output << spec.vc_shift) | lane) + 1) as u16;
        let class = u32::from(at.class);
        let to = &mut self.output_vcs[((o << spec.vc_shift) | lane) as usize];
        to.owner = vc;
        to.grant = (asker + 1) as u16;
        let has_credit = to.credits > 0;
        let port = &mut self.outputs[o as usize];
        port.free &= !(1 << lane);
        port.pending -= 1;
        if clear_summed(&mut self.pending[pending_map(port, class)], asker) {
            port.classes &= !(1 << class);
        }
        let port = *port;
        if port.pending == 0 || !can_assign(spec, &port) {
            self.clear_output_map(&port, 1);
        }
        if has_credit {
            self.set_ready(spec, vc);
        }
    }

    /// A flit crosses the switch and leaves on the link of its output.
    #[inline]
    fn traverse(&mut self, spec: &FlitNetworkSpec, router: &RouterWire, m: Match) {
        let o = router.out_base + m.output;
        let i = router.in_base + m.input;
        let vc = (i << spec.vc_shift) | m.vc;
        let input = &mut self.inputs[i as usize];
        input.accept = (m.output + 1) as u16;
        input.vc_offset = (m.vc + 1) as u16;
        self.outputs[o as usize].grant = (m.input + 1) as u16;
        self.stats.link_busy[o as usize] += 1;

        let at = &mut self.input_vcs[vc as usize];
        let id = at.head;
        let flit = self.flits[id as usize];
        at.head = flit.next;
        let is_empty = at.head == NONE;
        let target = at.target;
        let wire = &spec.outputs[o as usize];
        let mut out_of_credit = false;
        if !wire.creditless {
            let credits = &mut self.output_vcs[target as usize].credits;
            *credits -= 1;
            out_of_credit = *credits == 0;
        }

        let parameters = &spec.params().router;
        let there = self.now + u64::from(parameters.crossbar_delay + 1 + wire.latency);
        match wire.sink {
            Sink::Input(next) => {
                self.flits[id as usize].next = NONE;
                let lane = target & ((1 << spec.vc_shift) - 1);
                self.arrivals
                    .add(there, ((next << spec.vc_shift) | lane, id));
            }
            Sink::Node(_) | Sink::Open => {
                if flit.tail {
                    self.ejections.add(there, flit.packet);
                }
                self.flits[id as usize].next = self.free_flit;
                self.free_flit = id;
                if !wire.creditless {
                    let back = u64::from(1 + wire.latency + parameters.credit_delay);
                    self.signals.add(there + back, CREDIT | target);
                }
            }
        }
        let from = &spec.inputs[i as usize];
        let back = self.now + u64::from(from.credit_cycles);
        match from.source {
            Source::Node(node) => {
                self.signals
                    .add(back, SOURCE_CREDIT | (node << spec.vc_shift) | m.vc);
            }
            Source::Output(out) => {
                self.signals
                    .add(back, CREDIT | (out << spec.vc_shift) | m.vc);
            }
            Source::Open => {}
        }
        if wire.cycles_per_flit > 1 {
            self.outputs[o as usize].busy = true;
            let port = self.outputs[o as usize];
            self.clear_output_map(&port, 0);
            self.signals
                .add(self.now + u64::from(wire.cycles_per_flit), LINK_FREE | o);
        }
        if flit.tail {
            self.output_vcs[target as usize].owner = NONE;
            let port = &mut self.outputs[o as usize];
            port.free |= 1 << (target & ((1 << spec.vc_shift) - 1));
            let port = *port;
            self.clear_ready(spec, &port, m.input, m.vc);
            if port.pending > 0 && can_assign(spec, &port) {
                self.set_output_map(&port, 1);
            }
            self.input_vcs[vc as usize].state = VcState::Idle;
            if !is_empty {
                self.start_packet(spec, vc, self.now + 1);
            }
        } else if is_empty || out_of_credit {
            let port = self.outputs[o as usize];
            self.clear_ready(spec, &port, m.input, m.vc);
        }
    }

    #[inline]
    fn deliver(&mut self, spec: &FlitNetworkSpec, id: u32) -> Delivery {
        let packet = self.packets[id as usize];
        self.packets[id as usize].next = self.free_packet;
        self.free_packet = id;
        self.in_flight -= 1;
        let latency = self.now - packet.at;
        let path = spec.path(u32::from(packet.src), u32::from(packet.dst));
        let zero_load = path.zero_load(packet.flits);
        let stats = &mut self.stats;
        stats.packets += 1;
        stats.flits += u64::from(packet.flits);
        stats.hops += u64::from(path.hops);
        stats.latency_cycles += latency;
        stats.stall_cycles += latency.saturating_sub(zero_load);
        stats.latency.record(latency);
        Delivery {
            cycle: self.now,
            dst: u32::from(packet.dst),
            tag: packet.tag,
        }
    }

    /// Appends everything the future depends on, with times relative to `now` (the first cycle not
    /// simulated, or later): two networks of one spec with equal words behave alike from here on.
    /// Statistics are left out; tags are taken as they are.
    pub fn canonical(&self, now: u64, out: &mut Vec<u64>) {
        let pair = |a: u32, b: u32| u64::from(a) << 32 | u64::from(b);
        let packet = |id: u32, out: &mut Vec<u64>| {
            let p = &self.packets[id as usize];
            out.push(now.wrapping_sub(p.at));
            out.push(pair(p.tag, p.flits));
            out.push(u64::from(p.src) << 32 | u64::from(p.dst) << 8 | u64::from(p.class));
        };
        out.push(now.wrapping_sub(self.now));
        out.push(self.future.len() as u64);
        for (_, id) in &self.future {
            packet(*id, out);
        }
        for node in &self.nodes {
            out.push(pair(node.left, node.last_vc));
            out.push(node.room);
            let mut id = node.head;
            while id != NONE {
                packet(id, out);
                id = self.packets[id as usize].next;
            }
            out.push(u64::MAX);
        }
        out.extend(self.node_credits.iter().map(|c| u64::from(*c)));
        for vc in &self.input_vcs {
            let (target, class) = match vc.state {
                VcState::Idle => (0, 0),
                _ => (vc.target, vc.class),
            };
            out.push(pair(target, vc.accept.into()));
            out.push(pair(vc.state as u32, u32::from(class)));
            let mut id = vc.head;
            while id != NONE {
                let flit = &self.flits[id as usize];
                packet(flit.packet, out);
                out.push(u64::from(flit.tail));
                id = flit.next;
            }
            out.push(u64::MAX);
        }
        for input in &self.inputs {
            out.push(input.ready);
            out.push(pair(input.accept.into(), input.vc_offset.into()));
        }
        for vc in &self.output_vcs {
            out.push(pair(vc.owner, vc.credits.into()));
            out.push(u64::from(vc.grant));
        }
        for output in &self.outputs {
            out.push(output.free);
            out.push(pair(output.grant.into(), u32::from(output.busy)));
        }
        // Within a cycle the order of events has no effect, so they are listed sorted.
        let mut events: Vec<[u64; 5]> = vec![];
        for (ahead, (vc, flit)) in self.arrivals.iter(self.now) {
            let flit = &self.flits[*flit as usize];
            let p = &self.packets[flit.packet as usize];
            let what = u64::from(*vc) << 1 | u64::from(flit.tail);
            events.push([ahead, 0, what, now.wrapping_sub(p.at), pair(p.tag, p.flits)]);
        }
        for (ahead, signal) in self.signals.iter(self.now) {
            events.push([ahead, 1, u64::from(*signal), 0, 0]);
        }
        for (ahead, id) in self.ejections.iter(self.now) {
            let p = &self.packets[*id as usize];
            events.push([
                ahead,
                2,
                u64::from(p.dst),
                now.wrapping_sub(p.at),
                pair(p.tag, p.flits),
            ]);
        }
        events.sort_unstable();
        out.extend(events.iter().flatten());
    }
}

/// Where an output port's bitmap of asking input VCs of a class lies.
#[inline]
fn pending_map(port: &OutputPort, class: u32) -> std::ops::Range<usize> {
    let words = port.vc_words as usize;
    let base = port.pending_base as usize + class as usize * words;
    base..base + words
}

/// Some packet that asks for a virtual channel of this port may have one that is free.
#[inline]
fn can_assign(spec: &FlitNetworkSpec, port: &OutputPort) -> bool {
    let mut can = false;
    for_each_bit(u64::from(port.classes), |class| {
        can |= port.free & spec.class_masks[class as usize] != 0;
    });
    can
}
