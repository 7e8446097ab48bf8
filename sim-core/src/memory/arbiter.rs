//! One destination port of the `simple` NoC.
//!
//! Packets wait in one queue per source. A packet may leave `latency` steps after it was pushed if
//! its queue was empty, else right after the packet before it; the port takes one packet per step,
//! round robin over the sources with a packet due, starting after the source it took last.
//!
//! [`Arbiter::push`] only notes a packet. [`Arbiter::serve`] then works pushes and departures in
//! order of step, in one loop: only after every step before a push is it known whether the source's
//! queue was empty.

const NONE: u32 = u32::MAX;

/// What travels with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Address inside the channel, in lines (requests only).
    pub line: u64,
    /// Step in which it was pushed.
    pub pushed: u64,
    /// Which transfer it belongs to.
    pub transfer: u32,
    /// The port's own link to the next packet of a queue; whatever it is, a push replaces it.
    pub next: u32,
    /// Source node inside the port's own numbering.
    pub source: u16,
    /// Core's port that the reply goes to, counted over all cores (requests only).
    pub reply_to: u16,
    /// A store's request.
    pub write: bool,
    /// What delayed it most so far (see [`crate::stack::Cause`]), as its index.
    pub cause: u8,
}

impl Default for Packet {
    fn default() -> Packet {
        Packet {
            line: 0,
            pushed: 0,
            transfer: 0,
            next: NONE,
            source: 0,
            reply_to: 0,
            write: false,
            cause: 0,
        }
    }
}

/// First in, first out, linked through the packets.
#[derive(Clone, Copy, Debug)]
struct Queue {
    head: u32,
    tail: u32,
}

const EMPTY: Queue = Queue {
    head: NONE,
    tail: NONE,
};

/// A set of sources: those below 64 in a word of its own, which is all that most ports need.
#[derive(Clone, Debug, Default)]
struct Sources {
    low: u64,
    /// The others, and how many they are.
    high: Vec<u64>,
    count: u32,
}

impl Sources {
    fn new(sources: u32) -> Sources {
        Sources {
            low: 0,
            high: vec![0; (sources as usize).saturating_sub(1) / 64],
            count: 0,
        }
    }

    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.low == 0 && (self.high.is_empty() || self.count == 0)
    }

    #[inline(always)]
    fn insert(&mut self, source: u32) {
        if source < 64 {
            self.low |= 1u64.wrapping_shl(source);
        } else {
            self.count += 1;
            self.high[source as usize / 64 - 1] |= 1 << (source % 64);
        }
    }

    #[inline(always)]
    fn remove(&mut self, source: u32) {
        if source < 64 {
            self.low &= !1u64.wrapping_shl(source);
        } else {
            self.count -= 1;
            self.high[source as usize / 64 - 1] &= !(1 << (source % 64));
        }
    }

    /// The first at or after `pointer`, wrapping. There is at least one.
    #[inline(always)]
    fn first_from(&self, pointer: u32) -> u32 {
        if !self.high.is_empty() {
            return self.first_of_many(pointer);
        }
        let after = self.low & u64::MAX.wrapping_shl(pointer);
        (if after != 0 { after } else { self.low }).trailing_zeros()
    }

    #[inline(never)]
    fn first_of_many(&self, pointer: u32) -> u32 {
        let words = self.high.len() + 1;
        let word = |w: usize| match w {
            0 => self.low,
            _ => self.high[w - 1],
        };
        let start = pointer as usize / 64;
        let after = word(start) & (u64::MAX << (pointer % 64));
        if after != 0 {
            return (start * 64) as u32 + after.trailing_zeros();
        }
        (1..=words)
            .map(|k| (start + k) % words)
            .find(|&w| word(w) != 0)
            .map_or(0, |w| (w * 64) as u32 + word(w).trailing_zeros())
    }

    fn words(&self) -> impl Iterator<Item = u64> {
        std::iter::once(self.low).chain(self.high.iter().copied())
    }
}

/// Packets that leave a port, in order.
pub trait Leaving {
    /// Hands out every packet with the step in which it leaves.
    fn each(self, leave: impl FnMut(u64, Packet));
}

/// One.
impl Leaving for (u64, Packet) {
    #[inline]
    fn each(self, mut leave: impl FnMut(u64, Packet)) {
        leave(self.0, self.1);
    }
}

/// What leaves a port before a horizon.
impl Leaving for (&mut Arbiter, u64) {
    #[inline]
    fn each(self, leave: impl FnMut(u64, Packet)) {
        self.0.serve(self.1, leave);
    }
}

/// The state of one destination port.
#[derive(Clone, Debug)]
pub struct Arbiter {
    queues: Vec<Queue>,
    packets: Vec<Packet>,
    free: u32,
    /// Pushed and not yet put into their source's queue, in order of step.
    pushed: Queue,
    /// Sources whose head becomes due later, in order of becoming due: a ring, each source at most
    /// once.
    coming: Vec<u16>,
    clock: Clock,
    /// Sources with a head that is due.
    due: Sources,
    latency: u64,
}

/// What changes with every packet.
#[derive(Clone, Copy, Debug)]
struct Clock {
    /// First and behind the last place of the ring of heads to come, and when the first is due.
    coming: u32,
    coming_end: u32,
    next_due: u64,
    /// Where the round robin starts.
    pointer: u32,
    /// First step the port is free in.
    free_at: u64,
}

impl Arbiter {
    /// A port that `sources` nodes (at most 65,536) send to, `latency` steps away.
    pub fn new(sources: u32, latency: u64) -> Arbiter {
        Arbiter {
            queues: vec![EMPTY; sources as usize],
            packets: Vec::new(),
            free: NONE,
            pushed: EMPTY,
            coming: vec![0; (sources as usize).next_power_of_two()],
            clock: Clock {
                coming: 0,
                coming_end: 0,
                next_due: u64::MAX,
                pointer: 0,
                free_at: 0,
            },
            due: Sources::new(sources),
            latency,
        }
    }

    /// Whether packets are waiting.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.pushed.head == NONE
            && self.clock.coming == self.clock.coming_end
            && self.due.is_empty()
    }

    /// A packet is pushed in step `packet.pushed`; pushes come in non-decreasing steps, none before
    /// a horizon that was already served.
    #[inline]
    pub fn push(&mut self, packet: Packet) {
        let packet = Packet {
            next: NONE,
            ..packet
        };
        let mut index = self.free;
        if index == NONE {
            index = self.packets.len() as u32;
            self.packets.push(packet);
        } else {
            let place = &mut self.packets[index as usize];
            self.free = place.next;
            *place = packet;
        }
        if self.pushed.head == NONE {
            self.pushed.head = index;
        } else {
            self.packets[self.pushed.tail as usize].next = index;
        }
        self.pushed.tail = index;
    }

    /// Serve every step before `horizon`; `leave` is handed what leaves, and when.
    #[inline]
    pub fn serve(&mut self, horizon: u64, mut leave: impl FnMut(u64, Packet)) {
        let Arbiter {
            queues,
            packets,
            coming,
            latency,
            ..
        } = self;
        let mut due = std::mem::take(&mut self.due);
        let (packets, coming) = (&mut packets[..], &mut coming[..]);
        let mask = coming.len() - 1;
        // Copies, so that they stay in registers.
        let (mut clock, mut pushed, mut free) = (self.clock, self.pushed.head, self.free);
        loop {
            // Departures up to the next push,
            let mut limit = horizon;
            if pushed != NONE {
                limit = limit.min(packets[pushed as usize].pushed);
            }
            loop {
                let mut step = clock.free_at;
                if due.is_empty() {
                    step = step.max(clock.next_due);
                }
                if step >= limit {
                    break;
                }
                while clock.next_due <= step {
                    due.insert(coming[clock.coming as usize & mask].into());
                    clock.coming = clock.coming.wrapping_add(1);
                    clock.next_due = u64::MAX;
                    if clock.coming != clock.coming_end {
                        let next = coming[clock.coming as usize & mask];
                        let head = queues[next as usize].head;
                        clock.next_due = packets[head as usize].pushed + *latency;
                    }
                }
                let source = due.first_from(clock.pointer);
                let queue = &mut queues[source as usize];
                let index = queue.head;
                let place = &mut packets[index as usize];
                let packet = *place;
                place.next = free;
                free = index;
                queue.head = packet.next;
                if packet.next == NONE {
                    due.remove(source);
                }
                clock.free_at = step + 1;
                clock.pointer = source.wrapping_add(1);
                if clock.pointer as usize == queues.len() {
                    clock.pointer = 0;
                }
                leave(step, packet);
            }
            // then that push: the packet joins its source's queue.
            if limit == horizon {
                break;
            }
            let index = pushed;
            let packet = &mut packets[index as usize];
            let (at, source) = (packet.pushed, packet.source);
            pushed = packet.next;
            packet.next = NONE;
            let queue = &mut queues[source as usize];
            if queue.head == NONE {
                queue.head = index;
                if clock.coming == clock.coming_end {
                    clock.next_due = at + *latency;
                }
                coming[clock.coming_end as usize & mask] = source;
                clock.coming_end = clock.coming_end.wrapping_add(1);
            } else {
                packets[queue.tail as usize].next = index;
            }
            queue.tail = index;
        }
        self.due = due;
        self.clock = clock;
        self.pushed.head = pushed;
        self.free = free;
    }

    /// Everything before step `served` is served: the first step in which a waiting packet leaves;
    /// `u64::MAX` if none waits.
    #[inline]
    pub fn next_leave(&self, served: u64) -> u64 {
        if self.is_idle() {
            return u64::MAX;
        }
        let free = self.clock.free_at.max(served);
        if self.due.is_empty() {
            free.max(self.clock.next_due)
        } else {
            free
        }
    }

    /// Append the state to `out`, steps relative to `now`; `name` appends what a packet is. All
    /// pushes must have been served.
    pub fn canonical(&self, now: u64, out: &mut Vec<u64>, name: &impl Fn(&Packet, &mut Vec<u64>)) {
        let count = out.len();
        out.push(0);
        out.push(u64::from(self.clock.pointer));
        out.push(self.clock.free_at.saturating_sub(now));
        if self.is_idle() {
            return;
        }
        for (source, queue) in self.queues.iter().enumerate() {
            let mut at = queue.head;
            while at != NONE {
                let packet = &self.packets[at as usize];
                out.push(source as u64);
                out.push(now.wrapping_sub(packet.pushed));
                out.push(u64::from(packet.write) << 8 | u64::from(packet.cause));
                name(packet, out);
                at = packet.next;
                out[count] += 1;
            }
        }
        let mut at = self.clock.coming;
        out.push(self.clock.coming_end.wrapping_sub(at).into());
        while at != self.clock.coming_end {
            let source = self.coming[at as usize & (self.coming.len() - 1)];
            let head = self.queues[usize::from(source)].head;
            let due = self.packets[head as usize].pushed + self.latency;
            out.push(due.wrapping_sub(now));
            out.push(u64::from(source));
            at = at.wrapping_add(1);
        }
        out.extend(self.due.words());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    use proptest::prelude::*;

    /// The rule as it is stated, one step at a time.
    fn naive(sources: u32, latency: u64, pushes: &[(u64, u32)]) -> Vec<(u64, u32)> {
        let mut queues: Vec<VecDeque<(u64, u32)>> = vec![VecDeque::new(); sources as usize];
        let mut out = Vec::new();
        let (mut at, mut pointer, mut step) = (0usize, 0u32, 0u64);
        while out.len() < pushes.len() {
            while at < pushes.len() && pushes[at].0 == step {
                let s = pushes[at].1;
                let due = queues[s as usize]
                    .back()
                    .map_or(step + latency, |&(d, _)| d + 1);
                queues[s as usize].push_back((due, at as u32));
                at += 1;
            }
            for i in 0..sources {
                let s = (pointer + i) % sources;
                if queues[s as usize].front().is_some_and(|&(d, _)| d <= step) {
                    out.push((step, queues[s as usize].pop_front().unwrap().1));
                    pointer = (s + 1) % sources;
                    break;
                }
            }
            step += 1;
        }
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn agrees_with_the_rule(
            sources in 1u32..9,
            latency in 0u64..8,
            gaps in prop::collection::vec((0u64..3, 0u32..8), 1..60),
            batch in 1usize..70,
            many in prop::bool::ANY,
        ) {
            let mut step = 0;
            let pushes: Vec<(u64, u32)> =
                gaps.iter().map(|&(g, s)| { step += g; (step, s % sources) }).collect();
            // The same with more sources than a word has bits, of which few are used.
            let spread = |source: u32| (if many { source * 67 } else { source }) as u16;
            let mut arbiter = Arbiter::new(if many { sources * 67 } else { sources }, latency);
            let (mut got, mut bounds) = (Vec::new(), Vec::new());
            for (i, &(pushed, source)) in pushes.iter().enumerate() {
                let packet = Packet {
                    pushed,
                    source: spread(source),
                    transfer: i as u32,
                    ..Packet::default()
                };
                arbiter.push(packet);
                // Served often, seldom, or only at the end.
                if i % batch == 0 {
                    arbiter.serve(pushed, |t, p| got.push((t, p.transfer)));
                    // What is not pushed yet leaves after the latency, or behind what waits.
                    let first = arbiter.next_leave(pushed).min(pushed + latency);
                    bounds.push((got.len(), first));
                }
            }
            arbiter.serve(u64::MAX, |t, p| got.push((t, p.transfer)));
            for (at, first) in bounds {
                prop_assert!(got[at].0 >= first);
            }
            prop_assert_eq!(got, naive(sources, latency, &pushes));
        }
    }
}
