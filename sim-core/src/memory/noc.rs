//! The NoC between the cores' ports and the channels.
//!
//! `simple`: one [`Arbiter`] per channel for requests; replies need one per core port only where
//! several channels share a port. `flit`: a [`FlitNetwork`] that carries both.

use std::collections::VecDeque;

use super::arbiter::{Arbiter, Packet};
use super::calendar::Calendar;
use super::channel_map::ChannelMapper;
use super::channels::{Channels, Known, Reply};
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
    pub(super) rule: PortRule,
    latency: u64,
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
    Direct { free: Vec<u64> },
    /// Ports that several channels send to; replies whose push lies ahead wait in the calendar, one
    /// lane per channel.
    Shared {
        ports: Vec<Arbiter>,
        coming: Calendar<Back>,
    },
}

/// A reply that is on its way back.
#[derive(Clone, Copy, Debug, Default)]
struct Back {
    /// Core's port, counted over all cores.
    port: u16,
    transfer: u32,
    cause: u8,
}

/// Which port of its core a reply goes to.
#[derive(Clone, Debug)]
pub struct PortRule {
    by_line: Option<ChannelMapper>,
    ports: u32,
    /// Per channel, where lines do not matter.
    by_channel: Vec<u32>,
}

impl PortRule {
    /// The port for all requests of that line number inside its channel; `None` where the channel
    /// decides.
    #[inline]
    pub fn of_line(&self, inner: u64) -> Option<u32> {
        let map = self.by_line.as_ref()?;
        Some(map.locate(inner).0 % self.ports)
    }

    /// The port for a channel's requests, where lines do not matter.
    #[inline]
    pub fn of_channel(&self, channel: u32) -> u32 {
        self.by_channel[channel as usize]
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
            by_channel: (0..channels).map(|c| c % ports).collect(),
            by_line: match machine.dram.reply_port {
                ReplyPort::Channel => None,
                ReplyPort::InnerLine => {
                    let partitions = machine.dram.numa.as_ref().map_or(1, |n| n.partitions);
                    let channels = channels / partitions.max(1);
                    Some(ChannelMapper::new(machine.dram.channel_map, channels))
                }
            },
        };
        let latency = match &machine.noc {
            NocSpec::Simple { latency } => u64::from(*latency),
            NocSpec::Flit { .. } => 0,
        };
        let network = match &machine.noc {
            NocSpec::Simple { .. } => {
                let replies = if channels <= ports && rule.by_line.is_none() {
                    Replies::Direct {
                        free: vec![0; (cores * ports) as usize],
                    }
                } else {
                    Replies::Shared {
                        ports: (0..cores * ports)
                            .map(|_| Arbiter::new(channels, latency))
                            .collect(),
                        coming: Calendar::new(channels),
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
            latency,
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
            out.push(packet.reply_to.into());
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
                    let coming = coming.waiting();
                    out.push(coming.len() as u64);
                    for (step, channel, reply) in coming {
                        out.push(step.wrapping_sub(noc));
                        out.push(u64::from(reply.port));
                        out.push(u64::from(channel) << 8 | u64::from(reply.cause));
                        out.push(self.flights.name(reply.transfer, base));
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
        match &mut self.network {
            Network::Simple { requests, .. } => requests[channel as usize].push(packet),
            Network::Flit(flit) => flit.requests.push_back((packet, channel)),
        }
    }

    /// Work everything that follows from pushes before NoC step `horizon`, at or after core step
    /// `core_step`, before which the run does not end. Returns the first NoC step in which a core's
    /// port may take a reply that is not yet known.
    pub fn advance(&mut self, horizon: u64, core_step: u64) -> u64 {
        let Noc {
            latency,
            network,
            dram,
            flights,
            ..
        } = self;
        match network {
            Network::Simple { requests, replies } => {
                for (channel, port) in requests.iter_mut().enumerate() {
                    if !port.is_idle() {
                        dram.accept(channel, (port, horizon), |reply| {
                            replies.push(reply, *latency, flights);
                        });
                    }
                }
                let until = core_step.saturating_add(1);
                let known = known(requests, flights, horizon, *latency, until);
                dram.advance(known, |reply| replies.push(reply, *latency, flights));
                let unknown = dram.earliest_reply(known);
                replies.serve(unknown, flights);
                replies.earliest_delivery(unknown, *latency)
            }
            Network::Flit(flit) => {
                flit.advance(horizon, dram, flights);
                flit.net.now().saturating_add(1)
            }
        }
    }

    /// Nothing is under way, and nothing is pushed before NoC step `from`: the first in which a
    /// core's port may take a reply.
    pub fn earliest_delivery(&self, from: u64) -> u64 {
        match &self.network {
            Network::Simple { requests, replies } => {
                let known = known(requests, &self.flights, from, self.latency, u64::MAX);
                replies.earliest_delivery(self.dram.earliest_reply(known), self.latency)
            }
            Network::Flit(_) => from.saturating_add(1),
        }
    }
}

/// What is known of requests when those pushed before NoC step `horizon` are, and have left their
/// ports before it.
fn known(ports: &[Arbiter], flights: &Flights, horizon: u64, latency: u64, until: u64) -> Known {
    let pushed = horizon.saturating_add(latency);
    let leave = next_leave(ports, horizon, pushed);
    Known {
        leave,
        store: if flights.any_store() {
            leave
        } else {
            // The next to be pushed may queue up behind a read that leaves.
            pushed.min(leave + 1)
        },
        until,
    }
}

/// The first step in which a packet leaves one of the ports, all of which are served up to `served`;
/// at most `pushed`, in which the first to be pushed yet could leave an idle port.
fn next_leave(ports: &[Arbiter], served: u64, pushed: u64) -> u64 {
    ports
        .iter()
        .fold(pushed, |first, port| first.min(port.next_leave(served)))
}

impl Replies {
    /// A channel hands over a reply.
    #[inline(always)]
    fn push(&mut self, reply: Reply, latency: u64, flights: &mut Flights) {
        let (channel, push, packet, cause) = reply;
        match self {
            Replies::Direct { free } => {
                let free = &mut free[packet.reply_to as usize];
                let leave = if push < *free { *free } else { push + latency };
                *free = leave + 1;
                flights.deliver(leave + 1, packet.reply_to.into(), packet.transfer, cause);
            }
            Replies::Shared { coming, .. } => {
                let reply = Back {
                    port: packet.reply_to,
                    transfer: packet.transfer,
                    cause: cause as u8,
                };
                coming.put(push, channel as u32, reply);
            }
        }
    }

    /// No reply that is not yet known is handed over before NoC step `unknown`, up to which all is
    /// served: the first step in which a core's port may take one.
    fn earliest_delivery(&self, unknown: u64, latency: u64) -> u64 {
        // A reply handed over to an idle port leaves after the latency, one behind another in the
        // step after it.
        let idle = unknown.saturating_add(latency);
        let leave = match self {
            Replies::Direct { free } => {
                if free.iter().all(|&f| f <= unknown) {
                    idle
                } else {
                    unknown.saturating_add(latency.min(1))
                }
            }
            Replies::Shared { ports, .. } => next_leave(ports, unknown, idle),
        };
        leave.saturating_add(1)
    }

    /// Serve shared ports before `horizon`, every reply pushed before it being known.
    #[inline(never)]
    fn serve(&mut self, horizon: u64, flights: &mut Flights) {
        let Replies::Shared { ports, coming } = self else {
            return;
        };
        coming.take(horizon, |step, channel, reply| {
            ports[reply.port as usize].push(Packet {
                pushed: step,
                source: channel as u16,
                transfer: reply.transfer,
                cause: reply.cause,
                ..Packet::default()
            });
        });
        for (index, port) in ports.iter_mut().enumerate() {
            if !port.is_idle() {
                port.serve(horizon, |step, p| {
                    let cause = Cause::ALL[p.cause as usize];
                    flights.deliver(step + 1, index as u32, p.transfer, cause);
                });
            }
        }
    }
}

impl Flit {
    fn advance(&mut self, horizon: u64, dram: &mut Channels, flights: &mut Flights) {
        let first_channel = self.first_channel;
        while self.net.now() < horizon {
            // Replies are known up to here; requests up to `horizon`.
            let until = horizon.min(dram.earliest_reply(Known::all(self.net.now())));
            self.push_before(until);
            let mut out = std::mem::take(&mut self.out);
            self.net.advance(&self.spec, until, &mut out);
            for d in &out {
                let (packet, cause) = self.packets.remove(d.tag);
                if d.dst >= first_channel {
                    let channel = (d.dst - first_channel) as usize;
                    dram.accept(
                        channel,
                        (d.cycle, packet),
                        |(channel, push, packet, cause)| {
                            let packet = Packet {
                                pushed: push,
                                ..packet
                            };
                            self.replies[channel].push_back((packet, cause));
                        },
                    );
                } else {
                    flights.deliver(d.cycle + 1, d.dst, packet.transfer, cause);
                }
            }
            out.clear();
            self.out = out;
            dram.advance(Known::all(until), |(channel, push, packet, cause)| {
                let packet = Packet {
                    pushed: push,
                    ..packet
                };
                self.replies[channel].push_back((packet, cause));
            });
        }
    }

    /// Hand the network every packet pushed before `until`: by step, cores' ports before channels.
    fn push_before(&mut self, until: u64) {
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
                let ends = (packet.source.into(), first_channel + channel);
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
                let ends = (first_channel + reply.1 as u32, packet.reply_to.into());
                self.net
                    .push_kind(&self.spec, packet.pushed, ends, flits, tag, kind);
            }
        }
    }
}
