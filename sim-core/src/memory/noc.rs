//! The NoC between the cores' ports and the channels.
//!
//! `simple`: one [`Arbiter`] per channel for requests; replies need one per core port only where
//! several channels share a port. `flit`: a [`FlitNetwork`] that carries both.

use std::collections::VecDeque;

use super::arbiter::{Arbiter, Packet};
use super::calendar::Calendar;
use super::channel_map::ChannelMapper;
use super::channels::{Channels, Reply};
use super::flights::Flights;
use super::slab::Slab;
use crate::clock::gcd;
use crate::dram::Frame;
use crate::machine::{Machine, NocSpec, ReplyPort};
use crate::noc::{Delivery, FlitNetwork, FlitNetworkSpec, PacketKind};
use crate::stack::Cause;

/// Bytes of a packet without data: a read request, a write's acknowledgement.
pub(crate) const CONTROL_BYTES: u32 = 8;

/// Everything from the cores' ports on.
#[derive(Debug)]
pub struct Noc {
    rule: PortRule,
    network: Network,
    pub(super) dram: Channels,
    pub(super) flights: Flights,
}

#[derive(Debug)]
enum Network {
    Simple {
        requests: Vec<Arbiter>,
        replies: Replies,
    },
    Flit(Box<Flit>),
}

/// Reply ports of the `simple` NoC.
#[derive(Debug)]
enum Replies {
    /// Every port hears from one channel only: a queue needs no arbitration. First free step per
    /// (core, port).
    Direct { latency: u64, free: Vec<u64> },
    /// Ports that several channels send to; replies whose push lies ahead wait in the calendar.
    Shared {
        ports: Vec<Arbiter>,
        coming: Calendar<(u32, Packet)>,
    },
}

/// Which port of its core a reply goes to.
#[derive(Clone, Debug)]
struct PortRule {
    ports: u32,
    by_line: Option<ChannelMapper>,
}

impl PortRule {
    #[inline]
    fn port(&self, channel: u32, packet: &Packet) -> u32 {
        match &self.by_line {
            None => channel % self.ports,
            Some(map) => map.locate(packet.line).0 % self.ports,
        }
    }
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
    first_channel: u32,
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
        let rule = PortRule {
            ports,
            by_line: match machine.dram.reply_port {
                ReplyPort::Channel => None,
                ReplyPort::InnerLine => {
                    let partitions = machine.dram.numa.as_ref().map_or(1, |n| n.partitions);
                    let channels = channels / partitions.max(1);
                    Some(ChannelMapper::new(machine.dram.channel_map, channels))
                }
            },
        };
        let network = match &machine.noc {
            NocSpec::Simple { latency } => {
                let latency = u64::from(*latency);
                let replies = if channels <= ports && rule.by_line.is_none() {
                    Replies::Direct {
                        latency,
                        free: vec![0; (cores * ports) as usize],
                    }
                } else {
                    Replies::Shared {
                        ports: (0..cores * ports)
                            .map(|_| Arbiter::new(channels, latency))
                            .collect(),
                        coming: Calendar::new(),
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
                    first_channel: cores * ports,
                    control_flits: spec.flits(CONTROL_BYTES),
                    data_flits: spec.flits(machine.dram.request_bytes),
                    out: Vec::new(),
                    spec,
                }))
            }
        };
        Noc {
            rule,
            network,
            dram: Channels::new(machine),
            flights,
        }
    }

    /// Whether [`Noc::canonical`] knows the models.
    pub fn has_canonical(&self) -> bool {
        self.dram.has_canonical() && matches!(self.network, Network::Simple { .. })
    }

    /// Bytes by which all addresses can move with no effect but on the rows; `None` where there is
    /// no such distance. `map_period` is that of the map of lines to channels.
    pub fn period(&self, map_period: u64) -> Option<u64> {
        let step = self.dram.row_step_lines().unwrap_or(1);
        let step = match &self.rule.by_line {
            None => step,
            // A reply's port must stay the same too.
            Some(map) => step.checked_mul(map.period()? / gcd(step, map.period()?))?,
        };
        map_period.checked_mul(step)
    }

    /// Work everything before NoC step `noc`, to which all has been advanced, also where nothing is
    /// to be done.
    pub fn settle(&mut self, noc: u64) {
        self.dram.settle(noc);
    }

    /// Append the state but bandwidth credit to `out`: `core`, `dram` and `noc` are the present
    /// steps of the clocks, `base` the work-item that items are counted from, `frame` what rows are.
    pub fn canonical(
        &self,
        core: u64,
        dram: u64,
        noc: u64,
        base: u64,
        frame: Option<&Frame>,
        out: &mut Vec<u64>,
    ) {
        let name = |packet: &Packet, out: &mut Vec<u64>| {
            out.push(self.flights.name(packet.transfer, base));
        };
        if let Network::Simple { requests, replies } = &self.network {
            let tx = self.dram.line_bytes();
            for port in requests {
                port.canonical(noc, out, &|packet: &Packet, out: &mut Vec<u64>| {
                    name(packet, out);
                    if let Some(frame) = frame {
                        out.extend(frame.addr(packet.line.wrapping_mul(tx)));
                    }
                });
            }
            match replies {
                Replies::Direct { free, .. } => {
                    out.extend(free.iter().map(|f| f.saturating_sub(noc)));
                }
                Replies::Shared { ports, coming } => {
                    for port in ports {
                        port.canonical(noc, out, &name);
                    }
                    for (step, (port, packet)) in coming.iter() {
                        out.push(step.wrapping_sub(noc));
                        out.push(u64::from(*port));
                        out.push(u64::from(packet.source) << 8 | u64::from(packet.cause));
                        name(packet, out);
                    }
                }
            }
        }
        self.dram.canonical(core, dram, noc, frame, &name, out);
        self.flights.canonical(noc, core, base, out);
    }

    /// A core's port pushes a request for `channel`.
    #[inline]
    pub fn push(&mut self, channel: u32, packet: Packet) {
        let Noc {
            network,
            dram,
            flights,
            rule,
        } = self;
        match network {
            Network::Simple { requests, replies } => {
                requests[channel as usize].push(packet, |step, packet| {
                    dram.accept(channel as usize, step, packet, |reply| {
                        replies.push(reply, rule, flights);
                    });
                });
            }
            Network::Flit(flit) => flit.requests.push_back((packet, channel)),
        }
    }

    /// Work everything that follows from pushes before NoC step `horizon`. Returns the first NoC
    /// step in which a core's port may take a reply that is not yet known.
    pub fn advance(&mut self, horizon: u64) -> u64 {
        let Noc {
            network,
            dram,
            flights,
            rule,
        } = self;
        match network {
            Network::Simple { requests, replies } => {
                for (channel, port) in requests.iter_mut().enumerate() {
                    if !port.is_idle() {
                        port.serve(horizon, |step, packet| {
                            dram.accept(channel, step, packet, |reply| {
                                replies.push(reply, rule, flights);
                            });
                        });
                    }
                }
                dram.advance(horizon, |reply| replies.push(reply, rule, flights));
                let unknown = dram.earliest_reply(horizon);
                replies.serve(unknown, rule.ports, flights);
                // A reply pushed to an idle port leaves after the latency, one behind another in
                // the step after it; shared ports are served up to `unknown`.
                match replies {
                    Replies::Direct { latency, .. } => unknown.saturating_add((*latency).min(1)),
                    Replies::Shared { .. } => unknown,
                }
                .saturating_add(1)
            }
            Network::Flit(flit) => {
                flit.advance(horizon, rule, dram, flights);
                flit.net.now().saturating_add(1)
            }
        }
    }
}

impl Replies {
    /// A channel hands over a reply.
    #[inline]
    fn push(&mut self, reply: Reply, rule: &PortRule, flights: &mut Flights) {
        let (channel, push, packet, cause) = reply;
        let core = packet.source / rule.ports;
        let port = rule.port(channel as u32, &packet);
        match self {
            Replies::Direct { latency, free } => {
                let free = &mut free[(core * rule.ports + port) as usize];
                let leave = if push < *free { *free } else { push + *latency };
                *free = leave + 1;
                flights.deliver(leave + 1, port, packet.transfer, cause);
            }
            Replies::Shared { coming, .. } => {
                let reply = Packet {
                    source: channel as u32,
                    cause: cause as u8,
                    pushed: push,
                    ..packet
                };
                coming.push(push, (core * rule.ports + port, reply));
            }
        }
    }

    /// Serve shared ports before `horizon`, every reply pushed before it being known.
    fn serve(&mut self, horizon: u64, ports: u32, flights: &mut Flights) {
        let Replies::Shared {
            ports: arbiters,
            coming,
        } = self
        else {
            return;
        };
        coming.take(horizon, |_, (index, packet)| {
            arbiters[index as usize].push(packet, |step, p| {
                let cause = Cause::ALL[p.cause as usize];
                flights.deliver(step + 1, index % ports, p.transfer, cause);
            });
        });
        for (index, arbiter) in arbiters.iter_mut().enumerate() {
            if !arbiter.is_idle() {
                arbiter.serve(horizon, |step, p| {
                    let cause = Cause::ALL[p.cause as usize];
                    flights.deliver(step + 1, index as u32 % ports, p.transfer, cause);
                });
            }
        }
    }
}

impl Flit {
    fn advance(
        &mut self,
        horizon: u64,
        rule: &PortRule,
        dram: &mut Channels,
        flights: &mut Flights,
    ) {
        let first_channel = self.first_channel;
        while self.net.now() < horizon {
            // Replies are known up to here; requests up to `horizon`.
            let until = horizon.min(dram.earliest_reply(self.net.now()));
            self.push_before(until, rule);
            let mut out = std::mem::take(&mut self.out);
            self.net.advance(&self.spec, until, &mut out);
            for d in &out {
                let (packet, cause) = self.packets.remove(d.tag);
                if d.dst >= first_channel {
                    let channel = (d.dst - first_channel) as usize;
                    dram.accept(
                        channel,
                        d.cycle,
                        packet,
                        |(channel, push, packet, cause)| {
                            let packet = Packet {
                                pushed: push,
                                ..packet
                            };
                            self.replies[channel].push_back((packet, cause));
                        },
                    );
                } else {
                    flights.deliver(d.cycle + 1, d.dst % rule.ports, packet.transfer, cause);
                }
            }
            out.clear();
            self.out = out;
            dram.advance(until, |(channel, push, packet, cause)| {
                let packet = Packet {
                    pushed: push,
                    ..packet
                };
                self.replies[channel].push_back((packet, cause));
            });
        }
    }

    /// Hand the network every packet pushed before `until`: by step, cores' ports before channels.
    fn push_before(&mut self, until: u64, rule: &PortRule) {
        let first_channel = self.first_channel;
        loop {
            let request = self.requests.front().map_or(u64::MAX, |(p, _)| p.pushed);
            let mut reply = (u64::MAX, 0);
            for (channel, queue) in self.replies.iter().enumerate() {
                if let Some((p, _)) = queue.front()
                    && p.pushed < reply.0
                {
                    reply = (p.pushed, channel);
                }
            }
            if request.min(reply.0) >= until {
                return;
            }
            if request <= reply.0 {
                let Some((packet, channel)) = self.requests.pop_front() else {
                    return;
                };
                let (kind, flits) = match packet.write {
                    true => (PacketKind::WriteRequest, self.data_flits),
                    false => (PacketKind::ReadRequest, self.control_flits),
                };
                let tag = self.packets.insert((packet, Cause::Noc));
                let ends = (packet.source, first_channel + channel);
                self.net
                    .push_kind(&self.spec, packet.pushed, ends, flits, tag, kind);
            } else {
                let Some((packet, cause)) = self.replies[reply.1].pop_front() else {
                    return;
                };
                let (kind, flits) = match packet.write {
                    true => (PacketKind::WriteReply, self.control_flits),
                    false => (PacketKind::ReadReply, self.data_flits),
                };
                let tag = self.packets.insert((packet, cause));
                let port = rule.port(reply.1 as u32, &packet);
                let node = packet.source / rule.ports * rule.ports + port;
                let ends = (first_channel + reply.1 as u32, node);
                self.net
                    .push_kind(&self.spec, packet.pushed, ends, flits, tag, kind);
            }
        }
    }
}
