//! Channels behind L2 slices.
//!
//! A slice takes one access per core step from its own unlimited front queue, in order, fills of the
//! same step first. An answer leaves the slice the hit latency after the step of the access (a hit,
//! or a write that allocates) or of the fill or acknowledgement (everything else). What the slice
//! asks of DRAM passes the miss queue, one request a core step from the step of the access on.
//!
//! Slice and channel feed each other: a fill frees miss registers and ways, which lets a waiting
//! access go, whose requests reach DRAM. So both are worked side by side, from one event to the next,
//! the DRAM never beyond the next access or fill that could ask something of it.

use std::collections::VecDeque;

use super::ChannelStats;
use super::arbiter::Packet;
use super::l2::{L2Stats, Outcome, Send, Slice, SliceSpec};
use super::simple::{SimpleChannel, SimpleDram};
use super::slab::Slab;
use crate::clock::Timeline;
use crate::dram;
use crate::machine::{L2Allocate, L2Spec};
use crate::stack::Cause;

/// The DRAM behind the slices.
#[derive(Debug)]
pub enum Backend {
    /// See [`SimpleDram`].
    Simple {
        /// What the channels share.
        dram: SimpleDram,
        /// Their states.
        channels: Vec<SimpleChannel>,
    },
    /// See [`dram::Channel`].
    Banked {
        /// What the channels share.
        spec: Box<dram::DramSpec>,
        /// Their states.
        channels: Vec<dram::Channel>,
    },
}

/// A request on its way to the slice or waiting in it.
#[derive(Clone, Copy, Debug)]
struct Access {
    packet: Packet,
    /// Core step it reached the slice in.
    reached: u64,
    /// Core step it was looked up in.
    looked: u64,
}

/// A request to DRAM.
#[derive(Clone, Copy, Debug)]
enum Outstanding {
    Fetch { granule: u64, entry: u32 },
    WriteBack,
    Write(Access),
}

#[derive(Debug)]
struct Port {
    slice: Slice<Access>,
    queue: VecDeque<Access>,
    /// First core step the next access may be looked up in.
    free: u64,
    /// The head waits for a fill.
    blocked: bool,
    /// The head has been looked up and could not proceed.
    stalled: bool,
    /// First core step in which the miss queue passes its next request on.
    out_free: u64,
    /// First DRAM step the controller may be offered the next request after.
    fed: u64,
    /// First DRAM step in which the channel may return its next request.
    returned: u64,
    /// DRAM steps before this one are worked (banked only).
    clock: u64,
    /// Returned requests: core step they are seen in, tag.
    done: VecDeque<(u64, u32)>,
}

/// All channels of a machine with an L2.
#[derive(Debug)]
pub struct Cached {
    spec: SliceSpec,
    time: Timeline,
    hit_latency: u64,
    miss_queue: u64,
    fill_may_send: bool,
    ports: Vec<Port>,
    backend: Backend,
    requests: Slab<Outstanding>,
    returns: Vec<dram::Done>,
    request_bytes: u64,
    /// DRAM answers that take more core steps than this waited for something.
    unloaded: u64,
}

impl Cached {
    /// `channels` slices in front of `backend`.
    pub fn new(
        l2: &L2Spec,
        request_bytes: u32,
        time: Timeline,
        channels: u32,
        backend: Backend,
    ) -> Cached {
        let spec = SliceSpec::new(l2, request_bytes, channels);
        let unloaded = match &backend {
            Backend::Simple { dram, .. } => dram.min_latency(),
            Backend::Banked { spec, .. } => u64::from(spec.read_latency) + 2,
        };
        Cached {
            ports: (0..channels)
                .map(|_| Port {
                    slice: Slice::new(&spec),
                    queue: VecDeque::new(),
                    free: 0,
                    blocked: false,
                    stalled: false,
                    out_free: 0,
                    fed: 0,
                    returned: 0,
                    clock: 0,
                    done: VecDeque::new(),
                })
                .collect(),
            time,
            hit_latency: u64::from(l2.hit_latency),
            miss_queue: match l2.miss_queue {
                0 => u64::MAX,
                entries => u64::from(entries),
            },
            fill_may_send: l2.allocate == L2Allocate::OnFill,
            requests: Slab::new(),
            returns: Vec::new(),
            request_bytes: u64::from(request_bytes),
            unloaded: time.dram_to_core.at_or_after(unloaded) + 1,
            spec,
            backend,
        }
    }

    /// The slices' counts.
    pub fn stats(&self) -> impl Iterator<Item = &L2Stats> {
        self.ports.iter().map(|p| &p.slice.stats)
    }

    /// The banked controllers' own counts, after every tick up to DRAM step `ticks`.
    pub fn dram_stats(&mut self, ticks: u64) -> Vec<dram::DramStats> {
        let Backend::Banked { spec, channels } = &mut self.backend else {
            return Vec::new();
        };
        for channel in channels.iter_mut() {
            channel.advance(spec, ticks, &mut self.returns);
        }
        self.returns.clear();
        channels.iter().map(|c| c.stats().clone()).collect()
    }

    /// A request leaves its NoC port in step `step`.
    #[inline]
    pub fn accept(&mut self, channel: usize, step: u64, packet: Packet) {
        let reached = self.time.noc_to_core.after(step + 1);
        // From here on `cause` is the NoC's part of the delay.
        let noc = (step - packet.pushed).min(255) as u8;
        let packet = Packet {
            cause: noc,
            ..packet
        };
        self.ports[channel].queue.push_back(Access {
            packet,
            reached,
            looked: 0,
        });
    }

    /// No answer that is not yet known leaves a slice before this core step, when all requests that
    /// reach it before core step `front` are known.
    pub fn earliest_answer(&self, front: u64) -> u64 {
        front.saturating_add(self.hit_latency)
    }

    /// Work everything before core step `front`; `push` hands an answer that leaves a slice in a
    /// core step to the NoC.
    pub fn advance(
        &mut self,
        front: u64,
        stats: &mut [ChannelStats],
        mut push: impl FnMut(usize, u64, Packet, Cause),
    ) {
        for channel in 0..self.ports.len() {
            let port = &self.ports[channel];
            let dram = match &self.backend {
                Backend::Simple { .. } => false,
                Backend::Banked { channels, .. } => !channels[channel].is_idle(),
            };
            if dram || !port.queue.is_empty() || !port.done.is_empty() {
                self.work(channel, front, &mut stats[channel], &mut push);
            }
        }
    }

    fn work(
        &mut self,
        channel: usize,
        front: u64,
        stats: &mut ChannelStats,
        push: &mut impl FnMut(usize, u64, Packet, Cause),
    ) {
        loop {
            let port = &self.ports[channel];
            let access = match port.queue.front() {
                Some(head) if !port.blocked => head.reached.max(port.free),
                _ => u64::MAX,
            };
            let fill = port.done.front().map_or(u64::MAX, |d| d.0);
            let next = access.min(fill);
            if self.work_dram(channel, next.min(front)) {
                continue;
            }
            if next >= front {
                return;
            }
            if fill <= access {
                self.fill(channel, stats, push);
            } else {
                self.look_up(channel, access, stats, push);
            }
        }
    }

    /// Work the controller towards the instant of core step `step`; true if it should be looked at
    /// again.
    fn work_dram(&mut self, channel: usize, step: u64) -> bool {
        let Backend::Banked { spec, channels } = &mut self.backend else {
            return false;
        };
        let (port, dram) = (&mut self.ports[channel], &mut channels[channel]);
        let horizon = self.time.core_to_dram.at_or_after(step);
        if port.clock >= horizon || dram.is_idle() {
            return false;
        }
        let stop = if self.fill_may_send || port.stalled {
            horizon.min(dram.next_activity(spec).max(port.clock).saturating_add(1))
        } else {
            horizon
        };
        dram.advance(spec, stop, &mut self.returns);
        port.clock = stop;
        for &dram::Done { tick, tag, .. } in &self.returns {
            let tick = tick.max(port.returned);
            port.returned = tick + 1;
            port.done
                .push_back((self.time.dram_to_core.after(tick), tag));
        }
        self.returns.clear();
        true
    }

    /// The first returned request is seen by the slice.
    fn fill(
        &mut self,
        channel: usize,
        stats: &mut ChannelStats,
        push: &mut impl FnMut(usize, u64, Packet, Cause),
    ) {
        let Some((step, tag)) = self.ports[channel].done.pop_front() else {
            return;
        };
        let leave = step + self.hit_latency;
        let (hit_latency, unloaded) = (self.hit_latency, self.unloaded);
        match self.requests.remove(tag) {
            Outstanding::WriteBack => {}
            Outstanding::Write(access) => {
                push(
                    channel,
                    leave,
                    access.packet,
                    access.cause(step, hit_latency, unloaded),
                );
            }
            Outstanding::Fetch { granule, entry } => {
                let port = &mut self.ports[channel];
                port.slice.fill(&self.spec, granule, entry, |access| {
                    let cause = access.cause(step, hit_latency, unloaded);
                    push(channel, leave, access.packet, cause);
                });
                if port.stalled {
                    // It may find a register, a way, or one that needs no writing back.
                    port.blocked = false;
                    port.free = step;
                }
                self.send(channel, step, None, stats);
            }
        }
    }

    /// The head of the queue is looked up in core step `step`.
    fn look_up(
        &mut self,
        channel: usize,
        step: u64,
        stats: &mut ChannelStats,
        push: &mut impl FnMut(usize, u64, Packet, Cause),
    ) {
        let port = &mut self.ports[channel];
        let Some(head) = port.queue.front() else {
            return;
        };
        let access = Access {
            looked: step,
            ..*head
        };
        let waiting = port.out_free.saturating_sub(step);
        let room = match waiting {
            0 => u32::MAX,
            _ if self.miss_queue == u64::MAX => u32::MAX,
            n => self.miss_queue.saturating_sub(n) as u32,
        };
        let Packet { line, write, .. } = access.packet;
        let outcome = port.slice.access(&self.spec, line, write, room, access);
        match outcome {
            Outcome::Blocked => port.blocked = true,
            Outcome::Queue(needed) => {
                // Room comes one request a step.
                let size = self.miss_queue.saturating_sub(u64::from(needed));
                port.free = step.max(port.out_free.saturating_sub(size)).max(step + 1);
            }
            Outcome::Done | Outcome::Waits => {
                port.queue.pop_front();
                port.free = step + 1;
                port.stalled = false;
                if outcome == Outcome::Done {
                    let cause = access.cause(step, self.hit_latency, u64::MAX);
                    push(channel, step + self.hit_latency, access.packet, cause);
                }
                self.send(channel, step, Some(access), stats);
                return;
            }
        }
        if !port.stalled {
            port.stalled = true;
            port.slice.stats.stalls += 1;
        }
    }

    /// Pass on what the slice asked in core step `step`.
    fn send(
        &mut self,
        channel: usize,
        step: u64,
        access: Option<Access>,
        stats: &mut ChannelStats,
    ) {
        let Cached {
            ports,
            requests,
            backend,
            time,
            ..
        } = self;
        let port = &mut ports[channel];
        for &send in &port.slice.sends {
            let (granule, write, request) = match (send, access) {
                (Send::Fetch { granule, entry }, _) => {
                    (granule, false, Outstanding::Fetch { granule, entry })
                }
                (Send::WriteBack { granule }, _) => (granule, true, Outstanding::WriteBack),
                (Send::Write { granule }, Some(access)) => {
                    (granule, true, Outstanding::Write(access))
                }
                // A fill has no access of its own.
                (Send::Write { granule }, None) => (granule, true, Outstanding::WriteBack),
            };
            if write {
                stats.writes += 1;
            } else {
                stats.reads += 1;
            }
            let leaves = step.max(port.out_free);
            port.out_free = leaves + 1;
            let at = time.core_to_dram.at_or_after(leaves);
            let tag = requests.insert(request);
            match backend {
                Backend::Simple { dram, channels } => {
                    let (_, returned) = dram.admit(&mut channels[channel], at);
                    port.done
                        .push_back((time.dram_to_core.after(returned), tag));
                }
                Backend::Banked { channels, .. } => {
                    let fed = at.max(port.fed);
                    port.fed = fed + 1;
                    channels[channel].push(fed + 1, granule * self.request_bytes, write, tag);
                }
            }
        }
        port.slice.sends.clear();
    }
}

impl Access {
    /// What delayed it most; `step` is the core step in which its data was there.
    fn cause(&self, step: u64, hit_latency: u64, unloaded: u64) -> Cause {
        let dram = step - self.looked;
        let l2 = self.looked - self.reached + hit_latency;
        let noc = u64::from(self.packet.cause);
        if noc > dram.max(l2) {
            Cause::Noc
        } else if l2 >= dram {
            Cause::L2
        } else if dram > unloaded {
            Cause::DramQueue
        } else {
            Cause::DramLatency
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Clocks, L2SetIndex, L2Write, L2WriteAllocate};
    use proptest::prelude::*;

    fn l2() -> L2Spec {
        L2Spec {
            sets: 4,
            ways: 2,
            line_bytes: 128,
            sector_bytes: 32,
            set_index: L2SetIndex::Linear,
            write: L2Write::Back,
            write_allocate: L2WriteAllocate::Validate,
            allocate: L2Allocate::OnMiss,
            mshr_entries: 64,
            mshr_merges: 64,
            miss_queue: 0,
            hit_latency: 5,
            pinned: Vec::new(),
        }
    }

    fn clocks(core: u64, dram: u64) -> Clocks {
        Clocks {
            core_khz: core,
            noc_khz: core,
            dram_khz: dram,
            truncate_to_ps: false,
        }
    }

    fn simple(latency: u32) -> Backend {
        Backend::Simple {
            dram: SimpleDram::new(latency, None, 32),
            channels: vec![SimpleChannel::default()],
        }
    }

    fn banked(name: &str) -> Backend {
        let (_, text) = crate::machine::DEVICES
            .iter()
            .find(|(n, _)| *n == name)
            .unwrap();
        let tree: serde_json::Value = serde_saphyr::from_str(text).unwrap();
        let device = crate::machine::BankedDevice::from_tree(&tree).unwrap();
        let spec = Box::new(device.spec().clone());
        Backend::Banked {
            channels: vec![dram::Channel::new(&spec)],
            spec,
        }
    }

    type Answers = Vec<(u64, u32)>;

    /// (NoC step, granule, write) each, in order, advancing in windows as told; the answers (core
    /// step, index), the slice's counts.
    fn run(
        l2: &L2Spec,
        clocks: &Clocks,
        backend: Backend,
        accesses: &[(u64, u64, bool)],
        windows: &[u64],
    ) -> (Answers, L2Stats) {
        let mut cached = Cached::new(l2, 32, Timeline::new(clocks), 1, backend);
        let mut stats = [ChannelStats::default()];
        let mut out = Answers::new();
        let (mut next, mut front, mut w) = (0, 0, 0);
        while out.len() < accesses.len() {
            front += windows[w % windows.len()];
            w += 1;
            while next < accesses.len()
                && cached.time.noc_to_core.after(accesses[next].0 + 1) < front
            {
                let (step, line, write) = accesses[next];
                let packet = Packet {
                    line,
                    write,
                    transfer: next as u32,
                    pushed: step,
                    ..Packet::default()
                };
                cached.accept(0, step, packet);
                next += 1;
            }
            let known = out.len();
            cached.advance(front, &mut stats, |_, step, packet, _| {
                out.push((step, packet.transfer));
            });
            for &(step, _) in &out[known..] {
                assert!(step < cached.earliest_answer(front));
            }
            assert!(front < 1 << 40, "stuck");
        }
        assert!(out.windows(2).all(|w| w[0].0 <= w[1].0), "answers in order");
        let slice = *cached.stats().next().unwrap();
        assert_eq!(slice.dram_reads, stats[0].reads);
        assert_eq!(slice.dram_writes, stats[0].writes);
        (out, slice)
    }

    fn reads(granules: impl IntoIterator<Item = u64>) -> Vec<(u64, u64, bool)> {
        granules
            .into_iter()
            .enumerate()
            .map(|(i, g)| (1000 * i as u64, g, false))
            .collect()
    }

    #[test]
    fn unloaded_latencies() {
        let accesses = [
            (0, 7, false),
            (500, 7, false),
            (1000, 7, true),
            (1500, 100, true),
        ];
        let (out, stats) = run(&l2(), &clocks(1, 1), simple(60), &accesses, &[64]);
        // It reaches the slice two steps after it left its port; a miss is back in the step after
        // the DRAM's.
        assert_eq!(
            out,
            [(2 + 61 + 5, 0), (502 + 5, 1), (1002 + 5, 2), (1502 + 5, 3)]
        );
        assert_eq!((stats.misses, stats.read_hits, stats.write_hits), (2, 1, 1));
    }

    #[test]
    fn a_footprint_below_capacity_stays_and_one_above_goes() {
        // 4 sets x 2 ways x 4 granules = 32 granules.
        for (granules, hits) in [(32u64, 32), (36, 36 - 3 * 4), (48, 0)] {
            let (_, stats) = run(
                &l2(),
                &clocks(1, 1),
                simple(10),
                &reads((0..2 * granules).map(|g| g % granules)),
                &[512],
            );
            // Lines of a set that holds three in turn never stay; the other sets keep theirs.
            assert_eq!(stats.read_hits, hits, "{granules}");
            assert_eq!(stats.misses + stats.sector_misses + hits, 2 * granules);
        }
    }

    #[test]
    fn a_stride_of_all_sets_has_the_ways_of_one() {
        let stride = 4 * 4;
        let around = |lines: u64| reads((0..4 * lines).map(move |i| i % lines * stride));
        let hits = |spec: &L2Spec, lines| {
            run(spec, &clocks(1, 1), simple(10), &around(lines), &[512])
                .1
                .read_hits
        };
        assert_eq!(hits(&l2(), 2), 6);
        assert_eq!(hits(&l2(), 4), 0);
        for set_index in [L2SetIndex::Xor, L2SetIndex::Ipoly] {
            let spec = L2Spec { set_index, ..l2() };
            assert_eq!(hits(&spec, 4), 12, "a hash spreads them over the sets");
        }
    }

    #[test]
    fn a_stream_is_fetched_once() {
        let spec = L2Spec {
            sector_bytes: 128,
            sets: 64,
            ..l2()
        };
        let stream: Vec<_> = (0..400u64).map(|g| (g, g, false)).collect();
        let (out, stats) = run(&spec, &clocks(1, 1), simple(60), &stream, &[64]);
        assert_eq!((stats.misses, stats.merges + stats.read_hits), (100, 300));
        assert_eq!((stats.dram_reads, stats.dram_writes), (400, 0));
        // One access, and one request to DRAM, a step.
        assert_eq!(out.last(), Some(&(2 + 399 + 61 + 5, 399)));
        let spec = L2Spec {
            sector_bytes: 32,
            ..spec
        };
        let (out, stats) = run(&spec, &clocks(1, 1), simple(60), &stream, &[64]);
        assert_eq!((stats.misses, stats.sector_misses), (100, 300));
        assert_eq!(out.last(), Some(&(2 + 399 + 61 + 5, 399)));
        // Eight lines are on their way at most: all the ways there are.
        let spec = L2Spec { sets: 4, ..spec };
        let (out, stats) = run(&spec, &clocks(1, 1), simple(60), &stream, &[64]);
        assert_eq!((stats.misses, stats.sector_misses), (100, 300));
        assert!(out.last().unwrap().0 > 12 * 61, "{:?}", out.last());
    }

    #[test]
    fn few_miss_registers_bound_the_bandwidth() {
        let spec = L2Spec {
            mshr_entries: 4,
            ..l2()
        };
        let stream: Vec<_> = (0..40u64).map(|g| (g, 4 * g, false)).collect();
        let (out, stats) = run(&spec, &clocks(1, 1), simple(60), &stream, &[64]);
        // Four every 61 steps.
        assert_eq!(out.last().unwrap().0, 2 + 9 * 61 + 3 + 61 + 5);
        assert_eq!(stats.stalls, 9, "only the first of each four waits");
    }

    #[test]
    fn dirty_lines_are_written_back() {
        let spec = l2();
        let writes: Vec<_> = (0..64u64).map(|g| (10 * g, g, true)).collect();
        let (_, stats) = run(&spec, &clocks(1, 1), simple(60), &writes, &[64]);
        assert_eq!(
            (stats.evictions, stats.write_backs, stats.dram_reads),
            (8, 32, 0)
        );
        let spec = L2Spec {
            write: L2Write::Through,
            ..l2()
        };
        let (out, stats) = run(&spec, &clocks(1, 1), simple(60), &writes, &[64]);
        assert_eq!((stats.write_backs, stats.dram_writes), (0, 64));
        assert_eq!(out[0], (2 + 61 + 5, 0), "the answer is DRAM's");
        let spec = L2Spec {
            write_allocate: L2WriteAllocate::None,
            ..l2()
        };
        let (_, stats) = run(&spec, &clocks(1, 1), simple(60), &writes, &[64]);
        assert_eq!(
            (stats.bypasses, stats.evictions, stats.dram_writes),
            (64, 0, 64)
        );
    }

    #[test]
    fn pinned_lines_stay() {
        // All of sets 0 and 1 is pinned: lines 0, 4 and 1, 5.
        let spec = L2Spec {
            pinned: vec![(0, 256), (512, 256)],
            ..l2()
        };
        let pinned = [0u64, 4, 16, 20];
        let stream = 32..96u64;
        let accesses = reads(pinned.into_iter().chain(stream).chain(pinned));
        let (_, stats) = run(&spec, &clocks(1, 1), simple(60), &accesses, &[512]);
        assert_eq!(stats.read_hits, 4);
        assert_eq!(stats.bypasses, 32, "lines of those sets go past");
        let (_, stats) = run(&l2(), &clocks(1, 1), simple(60), &accesses, &[512]);
        assert_eq!((stats.read_hits, stats.bypasses), (0, 0));
    }

    // A deliberately naive slice in front of a simple channel, one step at a time.

    #[derive(Clone, Copy, Debug, Default)]
    struct Way {
        number: u64,
        valid: u64,
        dirty: u64,
        pending: u64,
        used: u64,
        pinned: bool,
    }

    #[derive(Debug)]
    struct Register {
        sector: u64,
        missing: u64,
        waiters: Vec<(usize, u64)>,
        merged: u32,
        past: bool,
    }

    #[derive(Clone, Copy, Debug)]
    enum Ask {
        Read(u64),
        Back,
        Write(usize),
    }

    struct Naive<'a> {
        l2: &'a L2Spec,
        sets: Vec<Vec<Way>>,
        registers: Vec<Register>,
        queue: VecDeque<(Ask, u64)>,
        clock: u64,
        stats: L2Stats,
    }

    impl Naive<'_> {
        fn line(&self) -> u64 {
            u64::from(self.l2.line_bytes / 32)
        }
        fn sector(&self) -> u64 {
            u64::from(self.l2.sector_bytes / 32)
        }
        fn is_pinned(&self, g: u64) -> bool {
            self.l2
                .pinned
                .iter()
                .any(|&(a, n)| (a / 32..(a + n).div_ceil(32)).contains(&g))
        }
        fn set(&self, number: u64) -> usize {
            let sets = u64::from(self.l2.sets);
            match self.l2.set_index {
                L2SetIndex::Linear => (number % sets) as usize,
                _ => {
                    let (mut x, mut s) = (number, 0);
                    while x > 0 && sets > 1 {
                        s ^= x % sets;
                        x /= sets;
                    }
                    s as usize
                }
            }
        }
        fn way(&mut self, number: u64) -> Option<&mut Way> {
            let set = self.set(number);
            self.sets[set].iter_mut().find(|w| w.number == number)
        }
        /// `Ok(None)`: goes past; `Err`: must wait.
        fn choose(&self, g: u64) -> Result<Option<Option<usize>>, ()> {
            let set = &self.sets[self.set(g / self.line())];
            if set.len() < self.l2.ways as usize {
                return Ok(Some(None));
            }
            let oldest = |pinned: bool| {
                (0..set.len())
                    .filter(|&i| set[i].pending == 0 && set[i].pinned == pinned)
                    .min_by_key(|&i| set[i].used)
            };
            if let Some(i) = oldest(false) {
                return Ok(Some(Some(i)));
            }
            if self.is_pinned(g) {
                return oldest(true).map(|i| Some(Some(i))).ok_or(());
            }
            if set.iter().all(|w| w.pinned) {
                Ok(None)
            } else {
                Err(())
            }
        }
        fn backs(&self, g: u64, choice: Option<usize>) -> usize {
            let set = &self.sets[self.set(g / self.line())];
            choice.map_or(0, |i| set[i].dirty.count_ones() as usize)
        }
        fn place(&mut self, g: u64, choice: Option<usize>) {
            let (set, number, line) = (self.set(g / self.line()), g / self.line(), self.line());
            if let Some(i) = choice {
                let old = self.sets[set].remove(i);
                self.stats.evictions += 1;
                for b in 0..line {
                    if old.dirty >> b & 1 == 1 {
                        self.queue.push_back((Ask::Back, old.number * line + b));
                        self.stats.write_backs += 1;
                    }
                }
            }
            self.clock += 1;
            let pinned = self.is_pinned(g);
            self.sets[set].push(Way {
                number,
                used: self.clock,
                pinned,
                ..Way::default()
            });
        }
        fn touch(&mut self, number: u64) {
            self.clock += 1;
            let clock = self.clock;
            if let Some(w) = self.way(number) {
                w.used = clock;
            }
        }
        fn room(&self, n: usize) -> bool {
            n == 0
                || self.queue.is_empty()
                || self.l2.miss_queue == 0
                || self.queue.len() + n <= self.l2.miss_queue as usize
        }
        fn count(&mut self, found: bool) {
            if found {
                self.stats.sector_misses += 1;
            } else {
                self.stats.misses += 1;
            }
        }
        /// `None`: must wait. Else whether it is answered at once.
        fn access(&mut self, i: usize, g: u64, write: bool) -> Option<bool> {
            let (number, bit, sector) = (
                g / self.line(),
                1u64 << (g % self.line()),
                g / self.sector(),
            );
            let through = self.l2.write == L2Write::Through;
            let on_miss = self.l2.allocate == L2Allocate::OnMiss;
            let found = self.way(number).copied();
            if found.is_some_and(|w| w.valid & bit != 0) {
                if write && through {
                    if !self.room(1) {
                        return None;
                    }
                    self.queue.push_back((Ask::Write(i), g));
                }
                self.touch(number);
                if write {
                    self.stats.write_hits += 1;
                    if !through && let Some(w) = self.way(number) {
                        w.dirty |= bit;
                    }
                } else {
                    self.stats.read_hits += 1;
                }
                return Some(!(write && through));
            }
            let first = sector * self.sector();
            let absent: Vec<u64> = (first..first + self.sector())
                .filter(|h| {
                    let b = 1u64 << (h % self.line());
                    found.is_none_or(|w| (w.valid | w.pending) & b == 0)
                })
                .collect();
            let register = self.registers.iter().position(|r| r.sector == sector);
            let full = self.registers.len() >= self.l2.mshr_entries as usize;
            if !write && let Some(r) = register {
                if self.registers[r].merged >= self.l2.mshr_merges {
                    return None;
                }
                if self.registers[r].missing & bit == 0 {
                    if !self.room(1) {
                        return None;
                    }
                    self.registers[r].missing |= bit;
                    self.queue.push_back((Ask::Read(g), g));
                }
                self.registers[r].merged += 1;
                self.registers[r].waiters.push((i, g));
                if found.is_some() {
                    self.touch(number);
                }
                self.stats.merges += 1;
                return Some(false);
            }
            let policy = self.l2.write_allocate;
            if write && policy == L2WriteAllocate::None
                || write && policy == L2WriteAllocate::WriteAndFetch && register.is_some()
            {
                if !self.room(1) {
                    return None;
                }
                self.count(found.is_some());
                self.stats.bypasses += u64::from(policy == L2WriteAllocate::None);
                self.queue.push_back((Ask::Write(i), g));
                return Some(false);
            }
            let keeps =
                write && matches!(policy, L2WriteAllocate::Validate | L2WriteAllocate::Fetch);
            let mut fetch = match keeps {
                false => absent,
                true if policy == L2WriteAllocate::Fetch && register.is_none() => {
                    absent.into_iter().filter(|&h| h != g).collect()
                }
                true => Vec::new(),
            };
            // Its own granule comes first.
            fetch.sort_by_key(|&h| (h != g, h));
            if !fetch.is_empty() && full {
                return None;
            }
            let wants = found.is_none() && (keeps || on_miss);
            let choice = match wants {
                true => self.choose(g).ok()?,
                false => Some(None),
            };
            let own = usize::from(write && (!keeps || through));
            let Some(choice) = choice else {
                // Past the cache.
                let n = if keeps { 1 } else { fetch.len() + own };
                if !self.room(n) {
                    return None;
                }
                self.count(false);
                self.stats.bypasses += 1;
                if !keeps {
                    self.register(i, g, &fetch, write, true);
                }
                if write {
                    self.queue.push_back((Ask::Write(i), g));
                }
                return Some(false);
            };
            let backs = if wants { self.backs(g, choice) } else { 0 };
            if !self.room(fetch.len() + own + backs) {
                return None;
            }
            self.count(found.is_some());
            if keeps {
                // The line first, then what is fetched.
                match wants {
                    true => self.place(g, choice),
                    false => self.touch(number),
                }
                if !fetch.is_empty() {
                    self.register(i, g, &fetch, true, false);
                }
            } else {
                self.register(i, g, &fetch, write, false);
                match wants {
                    true => self.place(g, choice),
                    false if found.is_some() => self.touch(number),
                    false => {}
                }
            }
            let line = self.line();
            if let Some(w) = self.way(number) {
                if on_miss {
                    for h in &fetch {
                        w.pending |= 1 << (h % line);
                    }
                }
                if keeps {
                    w.valid |= bit;
                    if !through {
                        w.dirty |= bit;
                    }
                }
            }
            if own == 1 {
                self.queue.push_back((Ask::Write(i), g));
            }
            Some(keeps && !through)
        }
        fn register(&mut self, i: usize, g: u64, fetch: &[u64], write: bool, past: bool) {
            let line = self.line();
            let waiters = if write { Vec::new() } else { vec![(i, g)] };
            let missing = fetch.iter().map(|h| 1u64 << (h % line)).sum();
            let sector = g / self.sector();
            self.registers.push(Register {
                sector,
                missing,
                waiters,
                merged: 1,
                past,
            });
            self.queue.extend(fetch.iter().map(|&h| (Ask::Read(h), h)));
        }
        fn fill(&mut self, g: u64, mut answer: impl FnMut(usize)) {
            let (number, bit, sector) = (
                g / self.line(),
                1u64 << (g % self.line()),
                g / self.sector(),
            );
            let r = self
                .registers
                .iter()
                .position(|r| r.sector == sector)
                .unwrap();
            self.registers[r].missing &= !bit;
            if !self.registers[r].past {
                if self.way(number).is_none() {
                    match self.choose(g) {
                        Ok(Some(choice)) => self.place(g, choice),
                        _ => self.stats.bypasses += 1,
                    }
                }
                if let Some(w) = self.way(number) {
                    w.valid |= bit;
                    w.pending &= !bit;
                }
            }
            for &(i, h) in &self.registers[r].waiters {
                if h == g {
                    answer(i);
                }
            }
            self.registers[r].waiters.retain(|&(_, h)| h != g);
            if self.registers[r].missing == 0 {
                self.registers.remove(r);
            }
        }
    }

    fn naive(l2: &L2Spec, latency: u64, accesses: &[(u64, u64, bool)]) -> (Answers, L2Stats) {
        let mut slice = Naive {
            l2,
            sets: vec![Vec::new(); l2.sets as usize],
            registers: Vec::new(),
            queue: VecDeque::new(),
            clock: 0,
            stats: L2Stats::default(),
        };
        let mut out = Answers::new();
        let mut dram: VecDeque<(u64, Ask)> = VecDeque::new();
        let (mut next, mut step, mut stalled) = (0, 0u64, false);
        while out.len() < accesses.len() {
            let leave = step + u64::from(l2.hit_latency);
            while let Some(&(at, ask)) = dram.front()
                && at == step
            {
                dram.pop_front();
                match ask {
                    Ask::Read(g) => slice.fill(g, |i| out.push((leave, i as u32))),
                    Ask::Back => {}
                    Ask::Write(i) => out.push((leave, i as u32)),
                }
            }
            if next < accesses.len() && accesses[next].0 + 2 <= step {
                let (_, g, write) = accesses[next];
                match slice.access(next, g, write) {
                    None => {
                        slice.stats.stalls += u64::from(!stalled);
                        stalled = true;
                    }
                    Some(now) => {
                        stalled = false;
                        if now {
                            out.push((leave, next as u32));
                        }
                        if write {
                            slice.stats.writes += 1;
                        } else {
                            slice.stats.reads += 1;
                        }
                        next += 1;
                    }
                }
            }
            if let Some((ask, _)) = slice.queue.pop_front() {
                match ask {
                    Ask::Read(_) => slice.stats.dram_reads += 1,
                    _ => slice.stats.dram_writes += 1,
                }
                dram.push_back((step + latency + 1, ask));
            }
            step += 1;
        }
        // What is still queued has been asked.
        for (ask, _) in &slice.queue {
            match ask {
                Ask::Read(_) => slice.stats.dram_reads += 1,
                _ => slice.stats.dram_writes += 1,
            }
        }
        (out, slice.stats)
    }

    fn any_l2() -> impl Strategy<Value = L2Spec> {
        let shape = (0u32..3, 1u32..4, 0u32..3, 0u32..3);
        let policies = (
            prop::sample::select(vec![L2SetIndex::Linear, L2SetIndex::Xor]),
            prop::sample::select(vec![L2Write::Back, L2Write::Through]),
            prop::sample::select(vec![
                L2WriteAllocate::None,
                L2WriteAllocate::Validate,
                L2WriteAllocate::Fetch,
                L2WriteAllocate::WriteAndFetch,
            ]),
            prop::sample::select(vec![L2Allocate::OnMiss, L2Allocate::OnFill]),
        );
        let limits = (1u32..6, 1u32..4, 0u32..7, 0u32..9);
        let pinned = prop::collection::vec((0u64..2048, 1u64..600), 0..3);
        (shape, policies, limits, pinned).prop_map(|(shape, policies, limits, pinned)| L2Spec {
            sets: 1 << shape.0,
            ways: shape.1,
            line_bytes: 32 << shape.2,
            sector_bytes: 32 << shape.3.min(shape.2),
            set_index: policies.0,
            write: policies.1,
            write_allocate: policies.2,
            allocate: policies.3,
            mshr_entries: limits.0,
            mshr_merges: limits.1,
            miss_queue: limits.2,
            hit_latency: limits.3,
            pinned,
        })
    }

    fn any_accesses() -> impl Strategy<Value = Vec<(u64, u64, bool)>> {
        prop::collection::vec((0u64..12, 0u64..64, prop::bool::ANY), 1..120).prop_map(|list| {
            let mut at = 0;
            list.into_iter()
                .map(|(gap, granule, write)| {
                    // A port lets one go a step.
                    at += 1 + gap.saturating_sub(8);
                    (at, granule, write)
                })
                .collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]
        #[test]
        fn agrees_with_the_naive_slice(
            l2 in any_l2(),
            accesses in any_accesses(),
            latency in 1u64..40,
            windows in prop::collection::vec(1u64..40, 1..5),
        ) {
            let want = naive(&l2, latency, &accesses);
            let got = run(&l2, &clocks(1, 1), simple(latency as u32), &accesses, &windows);
            prop_assert_eq!(got.0, want.0);
            // The last requests to DRAM may still be under way.
            let mut stats = got.1;
            for (ours, theirs) in [
                (&mut stats.evictions, want.1.evictions),
                (&mut stats.write_backs, want.1.write_backs),
                (&mut stats.bypasses, want.1.bypasses),
                (&mut stats.dram_reads, want.1.dram_reads),
                (&mut stats.dram_writes, want.1.dram_writes),
            ] {
                prop_assert!(*ours >= theirs);
                *ours = theirs;
            }
            prop_assert_eq!(stats, want.1);
        }

        #[test]
        fn windows_do_not_matter(
            l2 in any_l2(),
            accesses in any_accesses(),
            core in prop::sample::select(vec![700u64, 940, 1050, 3502]),
            device in prop::sample::select(vec!["HBM2_TPUv3", "DDR4"]),
            windows in prop::collection::vec(1u64..60, 1..5),
        ) {
            let clocks = clocks(core * 1000, 940_000);
            let whole = run(&l2, &clocks, banked(device), &accesses, &[100_000]);
            let parts = run(&l2, &clocks, banked(device), &accesses, &windows);
            prop_assert_eq!(whole.0, parts.0);
        }
    }
}
