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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packet {
    /// Address inside the channel, in lines (requests only).
    pub line: u64,
    /// Step in which it was pushed.
    pub pushed: u64,
    /// Which transfer it belongs to.
    pub transfer: u32,
    /// Source node inside the port's own numbering.
    pub source: u32,
    /// Core's port that the reply goes to, counted over all cores (requests only).
    pub reply_to: u32,
    /// A store's request.
    pub write: bool,
    /// What delayed it most so far (see [`crate::stack::Cause`]), as its index.
    pub cause: u8,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    packet: Packet,
    /// The next of its queue, or the next free place.
    next: u32,
    /// The head that becomes due after it.
    later: u32,
}

/// First in, first out, linked through the nodes.
#[derive(Clone, Copy, Debug)]
struct Queue {
    head: u32,
    tail: u32,
}

const EMPTY: Queue = Queue {
    head: NONE,
    tail: NONE,
};

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
    nodes: Vec<Node>,
    free: u32,
    waiting: u32,
    /// Pushed and not yet put into their source's queue, in order of step.
    pushed: Queue,
    /// Heads that become due later, in order of becoming due, and when the first does.
    coming: Queue,
    next_due: u64,
    /// Sources with a head that is due: one bit each.
    due: Vec<u64>,
    due_count: u32,
    /// Where the round robin starts.
    pointer: u32,
    /// First step the port is free in.
    free_at: u64,
    latency: u64,
}

impl Arbiter {
    /// A port that `sources` nodes send to, `latency` steps away.
    pub fn new(sources: u32, latency: u64) -> Arbiter {
        Arbiter {
            queues: vec![EMPTY; sources as usize],
            nodes: Vec::new(),
            free: NONE,
            waiting: 0,
            pushed: EMPTY,
            coming: EMPTY,
            next_due: u64::MAX,
            due: vec![0; (sources as usize).div_ceil(64).max(1)],
            due_count: 0,
            pointer: 0,
            free_at: 0,
            latency,
        }
    }

    /// Whether packets are waiting.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.waiting == 0
    }

    /// A packet is pushed in step `packet.pushed`; pushes come in non-decreasing steps, none before
    /// a horizon that was already served.
    #[inline]
    pub fn push(&mut self, packet: Packet) {
        let node = Node {
            packet,
            next: NONE,
            later: NONE,
        };
        let mut index = self.free;
        if index == NONE {
            index = self.nodes.len() as u32;
            self.nodes.push(node);
        } else {
            let place = &mut self.nodes[index as usize];
            self.free = place.next;
            *place = node;
        }
        if self.pushed.head == NONE {
            self.pushed.head = index;
        } else {
            self.nodes[self.pushed.tail as usize].next = index;
        }
        self.pushed.tail = index;
        self.waiting += 1;
    }

    /// Serve every step before `horizon`; `leave` is handed what leaves, and when.
    #[inline]
    pub fn serve(&mut self, horizon: u64, mut leave: impl FnMut(u64, Packet)) {
        loop {
            let index = self.pushed.head;
            let mut limit = horizon;
            if index != NONE {
                limit = limit.min(self.nodes[index as usize].packet.pushed);
            }
            self.depart(limit, &mut leave);
            if index == NONE || limit == horizon {
                return;
            }
            self.enqueue(index);
        }
    }

    /// The first pushed packet joins its source's queue.
    #[inline]
    fn enqueue(&mut self, index: u32) {
        let node = &mut self.nodes[index as usize];
        let Packet { pushed, source, .. } = node.packet;
        self.pushed.head = std::mem::replace(&mut node.next, NONE);
        let queue = &mut self.queues[source as usize];
        let tail = std::mem::replace(&mut queue.tail, index);
        if tail != NONE {
            self.nodes[tail as usize].next = index;
            return;
        }
        queue.head = index;
        let last = std::mem::replace(&mut self.coming.tail, index);
        if last == NONE {
            self.coming.head = index;
            self.next_due = pushed + self.latency;
        } else {
            self.nodes[last as usize].later = index;
        }
    }

    /// Serve every step before `limit`, all pushes before it being known.
    #[inline]
    fn depart(&mut self, limit: u64, leave: &mut impl FnMut(u64, Packet)) {
        loop {
            let step = match self.due_count {
                0 => self.free_at.max(self.next_due),
                _ => self.free_at,
            };
            if step >= limit {
                return;
            }
            while self.next_due <= step {
                self.fall_due();
            }
            let source = self.pick();
            let queue = &mut self.queues[source as usize];
            let index = queue.head;
            let place = &mut self.nodes[index as usize];
            let node = *place;
            place.next = self.free;
            self.free = index;
            queue.head = node.next;
            if node.next == NONE {
                queue.tail = NONE;
                self.due[source as usize / 64] &= !(1 << (source % 64));
                self.due_count -= 1;
            }
            self.waiting -= 1;
            self.free_at = step + 1;
            let after = source + 1;
            self.pointer = if after == self.queues.len() as u32 {
                0
            } else {
                after
            };
            leave(step, node.packet);
        }
    }

    /// The first of the heads that were to come is due.
    #[inline]
    fn fall_due(&mut self) {
        let node = &self.nodes[self.coming.head as usize];
        let source = node.packet.source;
        self.coming.head = node.later;
        self.next_due = if node.later == NONE {
            self.coming.tail = NONE;
            u64::MAX
        } else {
            self.nodes[node.later as usize].packet.pushed + self.latency
        };
        self.due[source as usize / 64] |= 1 << (source % 64);
        self.due_count += 1;
    }

    /// First due source at or after the pointer, wrapping. At least one is due.
    #[inline]
    fn pick(&self) -> u32 {
        let words = self.due.len();
        let start = self.pointer as usize / 64;
        let high = self.due[start] & (u64::MAX << (self.pointer % 64));
        if high != 0 {
            return (start * 64) as u32 + high.trailing_zeros();
        }
        for k in 1..=words {
            let w = (start + k) % words;
            if self.due[w] != 0 {
                return (w * 64) as u32 + self.due[w].trailing_zeros();
            }
        }
        0
    }

    /// Everything before step `served` is served: the first step in which a waiting packet leaves;
    /// `u64::MAX` if none waits.
    #[inline]
    pub fn next_leave(&self, served: u64) -> u64 {
        match (self.waiting, self.due_count) {
            (0, _) => u64::MAX,
            (_, 0) => self.free_at.max(self.next_due).max(served),
            _ => self.free_at.max(served),
        }
    }

    /// Append the state to `out`, steps relative to `now`; `transfer` names a transfer. All pushes
    /// must have been served.
    pub fn canonical(&self, now: u64, out: &mut Vec<u64>, transfer: &impl Fn(u32) -> u64) {
        out.push(u64::from(self.waiting));
        out.push(u64::from(self.pointer));
        out.push(self.free_at.saturating_sub(now));
        if self.waiting == 0 {
            return;
        }
        for (source, queue) in self.queues.iter().enumerate() {
            let mut at = queue.head;
            while at != NONE {
                let node = &self.nodes[at as usize];
                out.push(source as u64);
                out.push(transfer(node.packet.transfer));
                out.push(now.wrapping_sub(node.packet.pushed));
                out.push(u64::from(node.packet.write) << 8 | u64::from(node.packet.cause));
                at = node.next;
            }
        }
        let mut at = self.coming.head;
        while at != NONE {
            let node = &self.nodes[at as usize];
            out.push((node.packet.pushed + self.latency).wrapping_sub(now));
            out.push(u64::from(node.packet.source));
            at = node.later;
        }
        out.extend_from_slice(&self.due);
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
        ) {
            let mut step = 0;
            let pushes: Vec<(u64, u32)> =
                gaps.iter().map(|&(g, s)| { step += g; (step, s % sources) }).collect();
            let mut arbiter = Arbiter::new(sources, latency);
            let (mut got, mut bounds) = (Vec::new(), Vec::new());
            for (i, &(pushed, source)) in pushes.iter().enumerate() {
                let packet = Packet { pushed, source, transfer: i as u32, ..Packet::default() };
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
