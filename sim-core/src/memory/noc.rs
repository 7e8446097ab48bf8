//! The NoC between the cores' ports and the channels.
//!
//! `simple`: one [`Arbiter`] per channel for requests; replies need one per core port only where
//! several channels share a port. `flit`: a [`FlitNetwork`] that carries both.

use std::collections::VecDeque;

use super::arbiter::{Arbiter, Packet};
use super::channels::{Channels, Reply};
use super::flights::Flights;
use super::slab::Slab;
use crate::machine::{Machine, NocSpec};
use crate::noc::{Delivery, FlitNetwork, FlitNetworkSpec, PacketKind};
use crate::stack::Cause;

/// Bytes of a packet without data: a read request, a write's acknowledgement.
const CONTROL_BYTES: u32 = 8;

/// Everything from the cores' ports on.
#[derive(Debug)]
pub struct Noc {
    ports: u32,
    channels: u32,
    network: Network,
    pub(super) dram: Channels,
    pub(super) flights: Flights,
}

#[derive(Debug)]
enum Network {
    Simple { requests: Vec<Arbiter>, replies: Replies },
    Flit(Box<Flit>),
}

/// Reply ports of the `simple` NoC.
#[derive(Debug)]
enum Replies {
    /// Every port hears from one channel only: a queue needs no arbitration. First free step per
    /// (core, port).
    Direct { latency: u64, free: Vec<u64> },
    /// Ports with several channels behind them.
    Shared {
        ports: Vec<Arbiter>,
        /// Replies whose push step lies ahead, per (core, channel).
        coming: Vec<VecDeque<Packet>>,
    },
}

#[derive(Debug)]
struct Flit {
    spec: FlitNetworkSpec,
    net: FlitNetwork,
    packets: Slab<(Packet, Cause)>,
    /// Requests not yet pushed: (packet, channel), by step.
    requests: VecDeque<(Packet, u32)>,
    /// Replies not yet pushed, per channel, by step.
    replies: Vec<VecDeque<(Packet, Cause)>>,
    control_flits: u32,
    data_flits: u32,
    out: Vec<Delivery>,
}

impl Noc {
    /// The NoC and channels of a machine.
    pub fn new(machine: &Machine, flights: Flights) -> Noc {
        let cores = machine.cores.count;
        let ports = machine.cores.injection_ports;
        let channels = machine.dram.channels;
        let network = match &machine.noc {
            NocSpec::Simple { latency } => {
                let latency = u64::from(*latency);
                let replies = if channels <= ports {
                    Replies::Direct { latency, free: vec![0; (cores * ports) as usize] }
                } else {
                    Replies::Shared {
                        ports: (0..cores * ports)
                            .map(|p| {
                                let sources = (channels + ports - 1 - p % ports) / ports;
                                Arbiter::new(sources, latency)
                            })
                            .collect(),
                        coming: vec![VecDeque::new(); (cores * channels) as usize],
                    }
                };
                Network::Simple {
                    requests: (0..channels)
                        .map(|_| Arbiter::new(cores * ports, latency))
                        .collect(),
                    replies,
                }
            }
            NocSpec::Flit { network } => {
                let spec = (**network).clone();
                Network::Flit(Box::new(Flit {
                    net: FlitNetwork::new(&spec),
                    packets: Slab::new(),
                    requests: VecDeque::new(),
                    replies: vec![VecDeque::new(); channels as usize],
                    control_flits: spec.flits(CONTROL_BYTES),
                    data_flits: spec.flits(machine.dram.request_bytes),
                    out: Vec::new(),
                    spec,
                }))
            }
        };
        Noc { ports, channels, network, dram: Channels::new(machine), flights }
    }

    /// A core's port pushes a request for `channel`.
    #[inline]
    pub fn push(&mut self, channel: u32, packet: Packet) {
        let Noc { network, dram, flights, ports, channels } = self;
        match network {
            Network::Simple { requests, replies } => {
                requests[channel as usize].push(packet, |step, packet| {
                    dram.accept(channel as usize, step, packet, |reply| {
                        replies.push(reply, *ports, *channels, flights);
                    });
                });
            }
            Network::Flit(flit) => flit.requests.push_back((packet, channel)),
        }
    }

    /// Work everything that follows from pushes before NoC step `horizon`. Returns the first NoC
    /// step in which a core's port may take a reply that is not yet known.
    pub fn advance(&mut self, horizon: u64) -> u64 {
        let Noc { network, dram, flights, ports, channels } = self;
        let (ports, channels) = (*ports, *channels);
        match network {
            Network::Simple { requests, replies } => {
                for (channel, port) in requests.iter_mut().enumerate() {
                    if !port.is_idle() {
                        port.serve(horizon, |step, packet| {
                            dram.accept(channel, step, packet, |reply| {
                                replies.push(reply, ports, channels, flights);
                            });
                        });
                    }
                }
                dram.advance(horizon, |reply| replies.push(reply, ports, channels, flights));
                let unknown = dram.earliest_reply(horizon);
                replies.serve(unknown, ports, channels, flights);
                // A reply pushed to an idle port leaves after the latency, one behind another in
                // the step after it; shared ports are served up to `unknown`.
                match replies {
                    Replies::Direct { latency, .. } => unknown.saturating_add((*latency).min(1)),
                    Replies::Shared { .. } => unknown,
                }
                .saturating_add(1)
            }
            Network::Flit(flit) => {
                flit.advance(horizon, ports, channels, dram, flights);
                flit.net.now().saturating_add(1)
            }
        }
    }
}

impl Replies {
    /// A channel hands over a reply.
    #[inline]
    fn push(&mut self, reply: Reply, ports: u32, channels: u32, flights: &mut Flights) {
        let (channel, push, packet, cause) = reply;
        let core = packet.source / ports;
        match self {
            Replies::Direct { latency, free } => {
                let port = channel as u32 % ports;
                let free = &mut free[(core * ports + port) as usize];
                let leave = if push < *free { *free } else { push + *latency };
                *free = leave + 1;
                flights.deliver(leave + 1, port, packet.transfer, cause);
            }
            Replies::Shared { coming, .. } => {
                let packet = Packet {
                    source: channel as u32 / ports,
                    cause: cause as u8,
                    pushed: push,
                    ..packet
                };
                coming[(core * channels) as usize + channel].push_back(packet);
            }
        }
    }

    /// Serve shared ports before `horizon`, every reply pushed before it being known.
    fn serve(&mut self, horizon: u64, ports: u32, channels: u32, flights: &mut Flights) {
        let Replies::Shared { ports: arbiters, coming } = self else { return };
        for (index, arbiter) in arbiters.iter_mut().enumerate() {
            let (core, port) = (index as u32 / ports, index as u32 % ports);
            let row = (core * channels) as usize;
            let queues = &mut coming[row..row + channels as usize];
            loop {
                let mut best: Option<(u64, usize)> = None;
                for channel in (port as usize..queues.len()).step_by(ports as usize) {
                    if let Some(packet) = queues[channel].front() {
                        if packet.pushed < horizon && best.is_none_or(|(b, _)| packet.pushed < b) {
                            best = Some((packet.pushed, channel));
                        }
                    }
                }
                let Some(packet) = best.and_then(|(_, channel)| queues[channel].pop_front()) else {
                    break;
                };
                arbiter.push(packet, |step, p| {
                    flights.deliver(step + 1, port, p.transfer, Cause::ALL[p.cause as usize]);
                });
            }
            arbiter.serve(horizon, |step, p| {
                flights.deliver(step + 1, port, p.transfer, Cause::ALL[p.cause as usize]);
            });
        }
    }
}

impl Flit {
    fn advance(
        &mut self,
        horizon: u64,
        ports: u32,
        channels: u32,
        dram: &mut Channels,
        flights: &mut Flights,
    ) {
        let first_channel = self.spec.nodes() - channels;
        while self.net.now() < horizon {
            // Replies are known up to here; requests up to `horizon`.
            let until = horizon.min(dram.earliest_reply(self.net.now()));
            self.push_before(until, ports, first_channel);
            let mut out = std::mem::take(&mut self.out);
            self.net.advance(&self.spec, until, &mut out);
            for d in &out {
                let (packet, cause) = self.packets.remove(d.tag);
                if d.dst >= first_channel {
                    let channel = (d.dst - first_channel) as usize;
                    dram.accept(channel, d.cycle, packet, |(channel, push, packet, cause)| {
                        let packet = Packet { pushed: push, ..packet };
                        self.replies[channel].push_back((packet, cause));
                    });
                } else {
                    flights.deliver(d.cycle + 1, d.dst % ports, packet.transfer, cause);
                }
            }
            out.clear();
            self.out = out;
            dram.advance(until, |(channel, push, packet, cause)| {
                let packet = Packet { pushed: push, ..packet };
                self.replies[channel].push_back((packet, cause));
            });
        }
    }

    /// Hand the network every packet pushed before `until`: by step, cores' ports before channels.
    fn push_before(&mut self, until: u64, ports: u32, first_channel: u32) {
        loop {
            let request = self.requests.front().map_or(u64::MAX, |(p, _)| p.pushed);
            let mut reply = (u64::MAX, 0);
            for (channel, queue) in self.replies.iter().enumerate() {
                if let Some((p, _)) = queue.front() {
                    if p.pushed < reply.0 {
                        reply = (p.pushed, channel);
                    }
                }
            }
            if request.min(reply.0) >= until {
                return;
            }
            if request <= reply.0 {
                let Some((packet, channel)) = self.requests.pop_front() else { return };
                let (kind, flits) = match packet.write {
                    true => (PacketKind::WriteRequest, self.data_flits),
                    false => (PacketKind::ReadRequest, self.control_flits),
                };
                let tag = self.packets.insert((packet, Cause::Noc));
                let ends = (packet.source, first_channel + channel);
                self.net.push_kind(&self.spec, packet.pushed, ends, flits, tag, kind);
            } else {
                let Some((packet, cause)) = self.replies[reply.1].pop_front() else { return };
                let (kind, flits) = match packet.write {
                    true => (PacketKind::WriteReply, self.control_flits),
                    false => (PacketKind::ReadReply, self.data_flits),
                };
                let tag = self.packets.insert((packet, cause));
                let node = packet.source / ports * ports + reply.1 as u32 % ports;
                let ends = (first_channel + reply.1 as u32, node);
                self.net.push_kind(&self.spec, packet.pushed, ends, flits, tag, kind);
            }
        }
    }
}
