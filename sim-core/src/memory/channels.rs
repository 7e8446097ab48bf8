//! The DRAM channels: front queue, controller, and the way back to the NoC.
//!
//! A request that left its NoC port is taken by the channel in the next NoC step; the front queue
//! passes one request on per core step; then the channel's model serves it, and one reply per NoC
//! step is handed back. A core step precedes the DRAM step of the same instant, a DRAM step the NoC
//! step.

use super::ChannelStats;
use super::arbiter::Packet;
use super::cached::{Backend, Cached};
use super::l2::L2Stats;
use super::simple::{SimpleChannel, SimpleDram};
use super::slab::Slab;
use crate::clock::Timeline;
use crate::dram;
use crate::machine::{DramModel, L2Spec, Machine};
use crate::stack::Cause;

/// All channels of a machine.
#[derive(Debug)]
pub struct Channels {
    time: Timeline,
    model: Model,
    /// First core step a channel's front queue is free in.
    front_free: Vec<u64>,
    /// First NoC step in which a channel may hand over its next reply.
    reply_free: Vec<u64>,
    stats: Vec<ChannelStats>,
}

#[derive(Debug)]
enum Model {
    Simple {
        dram: SimpleDram,
        channels: Vec<SimpleChannel>,
    },
    Banked(Box<Banked>),
    Cached(Box<Cached>),
}

#[derive(Debug)]
struct Banked {
    spec: dram::DramSpec,
    channels: Vec<dram::Channel>,
    packets: Slab<Packet>,
    /// First DRAM step the controller may be offered the next request after.
    fed: Vec<u64>,
    /// First DRAM step a channel may return its next request in.
    returned: Vec<u64>,
    done: Vec<dram::Done>,
    tx_bytes: u64,
}

/// What the channels counted.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    channels: Vec<ChannelStats>,
    dram: Vec<dram::DramStats>,
}

/// A reply on its way back: channel, NoC step of the push, request, cause.
pub type Reply = (usize, u64, Packet, Cause);

impl Channels {
    /// The channels of a machine.
    pub fn new(machine: &Machine) -> Channels {
        let n = machine.dram.channels as usize;
        let request_bytes = machine.dram.request_bytes;
        let time = Timeline::new(&machine.clocks);
        let cached = |l2: &L2Spec, backend: Backend| {
            let channels = machine.dram.channels;
            Model::Cached(Box::new(Cached::new(
                l2,
                request_bytes,
                time,
                channels,
                backend,
            )))
        };
        let model = match (&machine.dram.model, &machine.l2) {
            (
                DramModel::Simple {
                    latency,
                    bytes_per_cycle,
                },
                l2,
            ) => {
                let dram = SimpleDram::new(*latency, *bytes_per_cycle, request_bytes);
                let channels = vec![SimpleChannel::default(); n];
                match l2 {
                    None => Model::Simple { dram, channels },
                    Some(l2) => cached(l2, Backend::Simple { dram, channels }),
                }
            }
            (DramModel::Banked { device }, Some(l2)) => {
                let spec = Box::new(device.spec().clone());
                let channels = (0..n).map(|_| dram::Channel::new(&spec)).collect();
                cached(l2, Backend::Banked { spec, channels })
            }
            (DramModel::Banked { device }, None) => {
                let spec = device.spec().clone();
                Model::Banked(Box::new(Banked {
                    channels: (0..n).map(|_| dram::Channel::new(&spec)).collect(),
                    packets: Slab::new(),
                    fed: vec![0; n],
                    returned: vec![0; n],
                    done: Vec::new(),
                    tx_bytes: u64::from(spec.tx_bytes()),
                    spec,
                }))
            }
        };
        Channels {
            time,
            model,
            front_free: vec![0; n],
            reply_free: vec![0; n],
            stats: vec![ChannelStats::default(); n],
        }
    }

    /// Whether [`Channels::canonical`] knows the model.
    pub fn has_canonical(&self) -> bool {
        match &self.model {
            Model::Simple { .. } => true,
            Model::Banked(b) => b.spec.scheduler == dram::Scheduler::Ramulator,
            Model::Cached(_) => false,
        }
    }

    /// Lines inside a channel by which addresses can move with no effect but on the rows; `None`
    /// where there are no rows.
    pub fn row_step_lines(&self) -> Option<u64> {
        match &self.model {
            Model::Banked(b) => Some((1 << b.spec.map().row_step_bits()) / b.tx_bytes),
            Model::Simple { .. } | Model::Cached(_) => None,
        }
    }

    /// How many such steps a channel has, where it has rows.
    pub fn row_steps(&self) -> Option<u64> {
        match &self.model {
            Model::Banked(b) => {
                let map = b.spec.map();
                Some(1 << (map.width() - map.row_step_bits()))
            }
            Model::Simple { .. } | Model::Cached(_) => None,
        }
    }

    /// Bytes of a line in the channel's own addresses, where that has any.
    pub fn line_bytes(&self) -> u64 {
        match &self.model {
            Model::Banked(b) => b.tx_bytes,
            Model::Simple { .. } | Model::Cached(_) => 0,
        }
    }

    /// What rows are counted from.
    pub fn frame(&self, areas: Vec<dram::Area>) -> Option<dram::Frame> {
        match &self.model {
            Model::Banked(b) => dram::Frame::new(&b.spec, areas),
            Model::Simple { .. } | Model::Cached(_) => None,
        }
    }

    /// All requests that left their port before NoC step `noc` are known and worked: bring idle
    /// channels there too.
    pub fn settle(&mut self, noc: u64) {
        let ticks = self.earliest_return(noc);
        if let Model::Banked(b) = &mut self.model {
            for channel in b.channels.iter_mut().filter(|c| c.is_idle()) {
                channel.advance(&b.spec, ticks, &mut b.done);
            }
        }
    }

    /// Append the state but bandwidth credit to `out`: `core`, `dram` and `noc` are the present
    /// steps of the clocks, to which all is settled; `name` appends what a packet is.
    pub fn canonical(
        &self,
        core: u64,
        dram: u64,
        noc: u64,
        frame: Option<&dram::Frame>,
        name: &impl Fn(&Packet, &mut Vec<u64>),
        out: &mut Vec<u64>,
    ) {
        out.extend(self.front_free.iter().map(|f| f.saturating_sub(core)));
        out.extend(self.reply_free.iter().map(|f| f.saturating_sub(noc)));
        match &self.model {
            Model::Simple { channels, .. } => {
                for channel in channels {
                    channel.canonical(dram, out);
                }
            }
            Model::Banked(b) => {
                let Some(frame) = frame else { return };
                out.extend(b.fed.iter().map(|t| t.saturating_sub(dram)));
                out.extend(b.returned.iter().map(|t| t.saturating_sub(dram)));
                let ticks = self.earliest_return(noc);
                let mut tag = |tag: u32, out: &mut Vec<u64>| {
                    let packet = b.packets.get(tag);
                    out.push(u64::from(packet.source) << 8 | u64::from(packet.cause));
                    out.push(dram.wrapping_sub(packet.pushed));
                    name(packet, out);
                };
                for channel in &b.channels {
                    channel.canonical(&b.spec, ticks, frame, &mut tag, out);
                }
            }
            Model::Cached(_) => {}
        }
    }

    /// Words that [`Channels::canonical`] looks at beside what it appends, about.
    pub fn scanned(&self) -> u64 {
        match &self.model {
            Model::Banked(b) => b.channels.len() as u64 * u64::from(b.spec.banks()) * 32,
            Model::Simple { .. } | Model::Cached(_) => 0,
        }
    }

    /// What was counted, channel by channel.
    pub fn counts(&self) -> Counts {
        Counts {
            channels: self.stats.clone(),
            dram: match &self.model {
                Model::Banked(b) => b.channels.iter().map(|c| c.stats().clone()).collect(),
                Model::Simple { .. } | Model::Cached(_) => Vec::new(),
            },
        }
    }

    /// Add `times` times what was counted since `before`.
    pub fn repeat(&mut self, times: u64, before: &Counts) {
        for (now, before) in self.stats.iter_mut().zip(&before.channels) {
            now.reads += times * (now.reads - before.reads);
            now.writes += times * (now.writes - before.writes);
        }
        if let Model::Banked(b) = &mut self.model {
            for (channel, before) in b.channels.iter_mut().zip(&before.dram) {
                channel.repeat(times, before);
            }
        }
    }

    /// Bandwidth credit per channel in DRAM step `dram`, and how often it has held up a request.
    pub fn credit(&self, dram: u64) -> Vec<(i128, u64)> {
        match &self.model {
            Model::Simple {
                dram: spec,
                channels,
            } => channels
                .iter()
                .map(|c| (c.slack(spec, dram), c.held()))
                .collect(),
            Model::Banked(_) | Model::Cached(_) => Vec::new(),
        }
    }

    /// Add bandwidth credit per channel.
    pub fn add_credit(&mut self, more: &[i128]) {
        if let Model::Simple {
            dram: spec,
            channels,
        } = &mut self.model
        {
            for (channel, &more) in channels.iter_mut().zip(more) {
                channel.add_slack(spec, more);
            }
        }
    }

    /// Counts per channel.
    pub fn stats(&self) -> &[ChannelStats] {
        &self.stats
    }

    /// The L2 slices' counts; empty without an L2.
    pub fn l2_stats(&self) -> Vec<L2Stats> {
        match &self.model {
            Model::Cached(cached) => cached.stats().copied().collect(),
            Model::Simple { .. } | Model::Banked(_) => Vec::new(),
        }
    }

    /// The banked controllers' own counts, after every tick up to core step `end`.
    pub fn dram_stats(&mut self, end: u64) -> Vec<dram::DramStats> {
        let ticks = self.time.core_to_dram.at_or_after(end);
        let b = match &mut self.model {
            Model::Simple { .. } => return Vec::new(),
            Model::Banked(b) => b,
            Model::Cached(c) => {
                // Only what is written back is still under way.
                c.advance(end, &mut self.stats, |_, _, _, _| {});
                return c.dram_stats(ticks);
            }
        };
        for channel in &mut b.channels {
            channel.advance(&b.spec, ticks, &mut b.done);
        }
        b.channels.iter().map(|c| c.stats().clone()).collect()
    }

    /// A request leaves its NoC port in step `step`; a reply that is known at once goes to `reply`.
    #[inline]
    pub fn accept(&mut self, channel: usize, step: u64, packet: Packet, reply: impl FnOnce(Reply)) {
        if let Model::Cached(cached) = &mut self.model {
            cached.accept(channel, step, packet);
            return;
        }
        let reached = self.time.noc_to_core.after(step + 1);
        let front = reached.max(self.front_free[channel]);
        self.front_free[channel] = front + 1;
        let at = self.time.core_to_dram.at_or_after(front);
        let stats = &mut self.stats[channel];
        if packet.write {
            stats.writes += 1;
        } else {
            stats.reads += 1;
        }
        match &mut self.model {
            Model::Simple { dram, channels } => {
                let (admitted, returned) = dram.admit(&mut channels[channel], at);
                let noc = step - packet.pushed;
                let queued = (front - reached) + (admitted - at);
                let service = returned - admitted;
                let cause = if queued >= service && queued >= noc {
                    Cause::DramQueue
                } else if service >= noc {
                    Cause::DramLatency
                } else {
                    Cause::Noc
                };
                let push = self.push_step(channel, returned);
                reply((channel, push, packet, cause));
            }
            Model::Banked(b) => {
                // The controller is offered it in the tick after it was handed over, one a tick.
                let fed = at.max(b.fed[channel]);
                b.fed[channel] = fed + 1;
                let addr = packet.line * b.tx_bytes;
                let write = packet.write;
                // From here on `pushed` is the DRAM step of arrival; the NoC's part is kept as a
                // verdict, since all that is asked later is whether it outweighs DRAM's.
                let noc = (step - packet.pushed).min(255) as u8;
                let packet = Packet {
                    cause: noc,
                    pushed: at,
                    ..packet
                };
                let tag = b.packets.insert(packet);
                b.channels[channel].push(fed + 1, addr, write, tag);
            }
            Model::Cached(_) => {}
        }
    }

    /// Work the controllers as far as all requests are known: those that left their port before
    /// NoC step `horizon`.
    pub fn advance(&mut self, horizon: u64, mut reply: impl FnMut(Reply)) {
        if let Model::Cached(cached) = &mut self.model {
            let front = self.time.noc_to_core.after(horizon.saturating_add(1));
            let (time, reply_free) = (self.time, &mut self.reply_free);
            cached.advance(front, &mut self.stats, |channel, leave, packet, cause| {
                let push = time.core_to_noc.at_or_after(leave).max(reply_free[channel]);
                reply_free[channel] = push + 1;
                reply((channel, push, packet, cause));
            });
            return;
        }
        if !matches!(self.model, Model::Banked(_)) {
            return;
        }
        let ticks = self.earliest_return(horizon);
        let Channels {
            time,
            model,
            reply_free,
            ..
        } = self;
        let Model::Banked(b) = model else { return };
        let Banked {
            spec,
            channels,
            packets,
            returned,
            done,
            ..
        } = &mut **b;
        for (channel, (dram, (returned, reply_free))) in channels
            .iter_mut()
            .zip(returned.iter_mut().zip(reply_free))
            .enumerate()
        {
            if dram.is_idle() {
                continue;
            }
            dram.advance(spec, ticks, done);
            for &dram::Done { tick, tag, cause } in done.iter() {
                let packet = packets.remove(tag);
                let at = tick.max(*returned);
                *returned = at + 1;
                let spent = tick.saturating_sub(packet.pushed);
                let cause = if u64::from(packet.cause) > spent {
                    Cause::Noc
                } else {
                    match cause {
                        dram::WaitCause::Latency => Cause::DramLatency,
                        dram::WaitCause::Queue => Cause::DramQueue,
                        dram::WaitCause::Bank => Cause::DramBankConflict,
                        dram::WaitCause::Bus => Cause::DramBus,
                        dram::WaitCause::Refresh => Cause::DramRefresh,
                    }
                };
                let push = time.dram_to_noc.at_or_after(at).max(*reply_free);
                *reply_free = push + 1;
                reply((channel, push, packet, cause));
            }
            done.clear();
        }
    }

    /// NoC step in which a request returned in DRAM step `returned` is handed over.
    #[inline]
    fn push_step(&mut self, channel: usize, returned: u64) -> u64 {
        let push = self
            .time
            .dram_to_noc
            .at_or_after(returned)
            .max(self.reply_free[channel]);
        self.reply_free[channel] = push + 1;
        push
    }

    /// No return that is not yet known happens before this DRAM step, when all requests that left
    /// their port before NoC step `horizon` are known.
    fn earliest_return(&self, horizon: u64) -> u64 {
        let front = self.time.noc_to_core.after(horizon.saturating_add(1));
        let at = self.time.core_to_dram.at_or_after(front);
        match &self.model {
            Model::Simple { dram, .. } => at.saturating_add(dram.min_latency()),
            Model::Banked(_) | Model::Cached(_) => at.saturating_add(1),
        }
    }

    /// The same as a NoC step: no reply that is not yet known is handed over before it.
    pub fn earliest_reply(&self, horizon: u64) -> u64 {
        if let Model::Cached(cached) = &self.model {
            let front = self.time.noc_to_core.after(horizon.saturating_add(1));
            return self
                .time
                .core_to_noc
                .at_or_after(cached.earliest_answer(front));
        }
        self.time
            .dram_to_noc
            .at_or_after(self.earliest_return(horizon))
    }
}
