//! The DRAM channels: front queue, controller, and the way back to the NoC.
//!
//! A request that left its NoC port is taken by the channel in the next NoC step; the front queue
//! passes one request on per core step; then the channel's model serves it, and one reply per NoC
//! step is handed back. A core step precedes the DRAM step of the same instant, a DRAM step the NoC
//! step.

use super::ChannelStats;
use super::arbiter::{Leaving, Packet};
use super::cached::{Backend, Cached};
use super::l2::L2Stats;
use super::simple::{Credit, SimpleChannel, SimpleDram};
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
    /// Least DRAM steps from the offer of a read to its return.
    read_latency: u64,
}

/// What is known of the requests to come.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// All that leave their port before this NoC step are.
    pub leave: u64,
    /// No store leaves its port before this NoC step, and none waits in DRAM.
    pub store: u64,
    /// The run does not end before this core step: nothing is worked beyond it, for the counts.
    pub until: u64,
}

impl Known {
    /// Requests that leave their port before NoC step `leave`, and nothing more.
    pub fn all(leave: u64) -> Known {
        Known {
            leave,
            store: leave,
            until: u64::MAX,
        }
    }
}

/// What the channels counted.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    channels: Vec<ChannelStats>,
    dram: Vec<dram::DramStats>,
}

/// A reply on its way back: channel, NoC step of the push, request, cause.
pub type Reply = (usize, u64, Packet, Cause);

/// A channel's front queue.
struct Front {
    /// First core step it is free in.
    free: u64,
    stats: ChannelStats,
}

impl Front {
    /// A request leaves its port in NoC step `step`: the core steps in which it reaches the queue
    /// and passes it, and the DRAM step in which it reaches the controller.
    #[inline(always)]
    fn pass(&mut self, time: &Timeline, step: u64, write: bool) -> (u64, u64, u64) {
        let reached = time.noc_to_core.after(step + 1);
        let passed = reached.max(self.free);
        self.free = passed + 1;
        self.stats.writes += u64::from(write);
        self.stats.reads += u64::from(!write);
        (reached, passed, time.core_to_dram.at_or_after(passed))
    }
}

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
                    read_latency: u64::from(spec.read_latency).saturating_sub(1),
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

    /// Everything before core step `core` is done and worked: bring idle channels there too.
    pub fn settle(&mut self, core: u64) {
        let ticks = self.settled(core);
        if let Model::Banked(b) = &mut self.model {
            for channel in b.channels.iter_mut().filter(|c| c.is_idle()) {
                channel.advance(&b.spec, ticks, &mut b.done);
            }
        }
    }

    /// DRAM step up to which all channels are worked then.
    fn settled(&self, core: u64) -> u64 {
        self.time.core_to_dram.at_or_after(core + 1)
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
                let ticks = self.settled(core);
                let mut tag = |tag: u32, out: &mut Vec<u64>| {
                    let packet = b.packets.get(tag);
                    out.push(dram.wrapping_sub(packet.pushed));
                    out.push(packet.cause.into());
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

    /// Bandwidth credit per channel in DRAM step `dram`.
    pub fn credit(&self, dram: u64) -> Vec<Credit> {
        match &self.model {
            Model::Simple {
                dram: spec,
                channels,
            } => channels.iter().map(|c| c.credit(spec, dram)).collect(),
            Model::Banked(_) | Model::Cached(_) => Vec::new(),
        }
    }

    /// Start to look for the least bandwidth credit left over.
    pub fn reset_spare(&mut self) {
        if let Model::Simple { channels, .. } = &mut self.model {
            channels.iter_mut().for_each(SimpleChannel::reset_spare);
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

    /// Requests leave the port of `channel`; replies that are known at once go to `reply`.
    #[inline(never)]
    pub fn accept(&mut self, channel: usize, requests: impl Leaving, mut reply: impl FnMut(Reply)) {
        let Channels {
            time,
            model,
            front_free,
            reply_free,
            stats,
        } = self;
        if let Model::Cached(cached) = model {
            requests.each(|step, packet| cached.accept(channel, step, packet));
            return;
        }
        // Copies, so that they stay in registers.
        let mut front = Front {
            free: front_free[channel],
            stats: stats[channel].clone(),
        };
        match model {
            Model::Simple { dram, channels } => {
                let mut state = channels[channel];
                let mut push = reply_free[channel];
                requests.each(|step, packet| {
                    let (reached, passed, at) = front.pass(time, step, packet.write);
                    let (admitted, returned) = dram.admit(&mut state, at);
                    let noc = step - packet.pushed;
                    let queued = (passed - reached) + (admitted - at);
                    let service = returned - admitted;
                    let cause = if queued >= service && queued >= noc {
                        Cause::DramQueue
                    } else if service >= noc {
                        Cause::DramLatency
                    } else {
                        Cause::Noc
                    };
                    push = time.dram_to_noc.at_or_after(returned).max(push);
                    reply((channel, push, packet, cause));
                    push += 1;
                });
                channels[channel] = state;
                reply_free[channel] = push;
            }
            Model::Banked(b) => {
                let Banked {
                    channels,
                    packets,
                    fed,
                    tx_bytes,
                    ..
                } = &mut **b;
                let dram = &mut channels[channel];
                let mut feed = fed[channel];
                requests.each(|step, packet| {
                    let (_, _, at) = front.pass(time, step, packet.write);
                    // The controller is offered it in the tick after it was handed over, one a tick.
                    feed = at.max(feed) + 1;
                    // From here on `pushed` is the DRAM step of arrival; the NoC's part is kept as a
                    // verdict, since all that is asked later is whether it outweighs DRAM's.
                    let noc = (step - packet.pushed).min(255) as u8;
                    let tag = packets.insert(Packet {
                        cause: noc,
                        pushed: at,
                        ..packet
                    });
                    dram.push(feed, packet.line * *tx_bytes, packet.write, tag);
                });
                fed[channel] = feed;
            }
            Model::Cached(_) => {}
        }
        front_free[channel] = front.free;
        stats[channel] = front.stats;
    }

    /// Work the channels as far as is known.
    pub fn advance(&mut self, known: Known, mut reply: impl FnMut(Reply)) {
        let front = self.front(known.leave).min(known.until);
        if let Model::Cached(cached) = &mut self.model {
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
        let ticks = self
            .earliest_return(known.leave)
            .min(self.time.core_to_dram.at_or_after(known.until));
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
            let mut push = *reply_free;
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
                push = time.dram_to_noc.at_or_after(at).max(push);
                reply((channel, push, packet, cause));
                push += 1;
            }
            *reply_free = push;
            done.clear();
        }
    }

    /// DRAM step in which a request that leaves its port in NoC step `leave` may return.
    fn earliest_return(&self, leave: u64) -> u64 {
        let at = self.time.core_to_dram.at_or_after(self.front(leave));
        match &self.model {
            Model::Simple { dram, .. } => at.saturating_add(dram.min_latency()),
            Model::Banked(_) | Model::Cached(_) => at.saturating_add(1),
        }
    }

    /// A NoC step before which no reply that is not yet known is handed over.
    pub fn earliest_reply(&self, known: Known) -> u64 {
        match &self.model {
            Model::Simple { .. } => {}
            Model::Cached(cached) => {
                let front = self.front(known.leave).min(known.until);
                let answer = cached.earliest_answer(front);
                return self.time.core_to_noc.at_or_after(answer);
            }
            Model::Banked(b) => {
                let mut returned = self.earliest_return(known.leave);
                if b.spec.scheduler == dram::Scheduler::Ramulator {
                    // A read takes its time, unless a write that waits has its data.
                    returned = returned
                        .saturating_add(b.read_latency)
                        .min(self.earliest_return(known.store));
                }
                for dram in b.channels.iter().filter(|dram| !dram.is_idle()) {
                    returned = returned.min(dram.next_activity(&b.spec));
                }
                return self.time.dram_to_noc.at_or_after(returned);
            }
        }
        self.time
            .dram_to_noc
            .at_or_after(self.earliest_return(known.leave))
    }

    /// First core step in which a request that leaves its port in NoC step `leave` may pass the
    /// front queue.
    fn front(&self, leave: u64) -> u64 {
        self.time.noc_to_core.after(leave.saturating_add(1))
    }
}
