//! One destination port of the `simple` NoC.
//!
//! Packets wait in one queue per source. A packet may leave `latency` steps after it was pushed if
//! its queue was empty, else right after the packet before it; the port takes one packet per step,
//! round robin over the sources with a packet due, starting after the source it took last.
//!
//! The port is simulated by need: [`Arbiter::push`] first serves every step before the push (only
//! then is it known whether the source's queue was empty), and the owner serves up to its horizon.

const NONE: u32 = u32::MAX;

/// What travels with a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packet {
    /// Address inside the channel, in lines (requests only).
    pub line: u64,
    /// Which transfer it belongs to.
    pub transfer: u32,
    /// Source node inside the port's own numbering.
    pub source: u32,
    /// A store's request.
    pub write: bool,
    /// What delayed it most so far (see [`crate::stack::Cause`]), as its index.
    pub cause: u8,
    /// Step in which it was pushed.
    pub pushed: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Node {
    packet: Packet,
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    head: u32,
    tail: u32,
}

/// The state of one destination port.
#[derive(Clone, Debug)]
pub struct Arbiter {
    queues: Vec<Queue>,
    nodes: Vec<Node>,
    free: u32,
    waiting: u32,
    // Heads that become due later, in order of becoming due: (step, source).
    coming: std::collections::VecDeque<(u64, u32)>,
    // Sources with a head that is due: one bit each.
    due: Vec<u64>,
    due_count: u32,
    // Where the round robin starts.
    pointer: u32,
    // First step the port is free in.
    free_at: u64,
    latency: u64,
}

impl Arbiter {
    /// A port that `sources` nodes send to, `latency` steps away.
    pub fn new(sources: u32, latency: u64) -> Arbiter {
        Arbiter {
            queues: vec![
                Queue {
                    head: NONE,
                    tail: NONE
                };
                sources as usize
            ],
            nodes: Vec::new(),
            free: NONE,
            waiting: 0,
            coming: std::collections::VecDeque::new(),
            due: vec![0; (sources as usize).div_ceil(64).max(1)],
            due_count: 0,
            pointer: 0,
            free_at: 0,
            latency,
        }
    }

    /// Whether packets are waiting.
    pub fn is_idle(&self) -> bool {
        self.waiting == 0
    }

    /// A packet is pushed in step `packet.pushed`; pushes come in non-decreasing steps. Whatever
    /// leaves before that step is handed to `leave(step, packet)`.
    #[inline]
    pub fn push(&mut self, packet: Packet, leave: impl FnMut(u64, Packet)) {
        if self.waiting != 0 {
            self.serve(packet.pushed, leave);
        }
        let source = packet.source;
        let node = self.alloc(packet);
        let queue = &mut self.queues[source as usize];
        if queue.head == NONE {
            queue.head = node;
            self.coming
                .push_back((packet.pushed + self.latency, source));
        } else {
            self.nodes[queue.tail as usize].next = node;
        }
        queue.tail = node;
        self.waiting += 1;
    }

    /// Serve every step before `horizon`.
    #[inline]
    pub fn serve(&mut self, horizon: u64, mut leave: impl FnMut(u64, Packet)) {
        while self.waiting != 0 {
            let mut step = self.free_at;
            if self.due_count == 0 {
                match self.coming.front() {
                    Some(&(due, _)) => step = step.max(due),
                    None => return,
                }
            }
            if step >= horizon {
                return;
            }
            while let Some(&(due, source)) = self.coming.front() {
                if due > step {
                    break;
                }
                self.coming.pop_front();
                self.mark(source);
            }
            let source = self.pick();
            let queue = &mut self.queues[source as usize];
            let index = queue.head;
            let node = self.nodes[index as usize];
            queue.head = node.next;
            if node.next == NONE {
                queue.tail = NONE;
                self.due[source as usize / 64] &= !(1 << (source % 64));
                self.due_count -= 1;
            } else if self.nodes[node.next as usize].packet.pushed > step {
                // Cannot happen: pushes after this step have not been made yet.
                debug_assert!(false);
            }
            self.nodes[index as usize].next = self.free;
            self.free = index;
            self.waiting -= 1;
            self.free_at = step + 1;
            self.pointer = if source + 1 == self.queues.len() as u32 {
                0
            } else {
                source + 1
            };
            leave(step, node.packet);
        }
    }

    #[inline]
    fn alloc(&mut self, packet: Packet) -> u32 {
        if self.free == NONE {
            self.nodes.push(Node { packet, next: NONE });
            return (self.nodes.len() - 1) as u32;
        }
        let index = self.free;
        let node = &mut self.nodes[index as usize];
        self.free = node.next;
        *node = Node { packet, next: NONE };
        index
    }

    #[inline]
    fn mark(&mut self, source: u32) {
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

    /// Append the state to `out`, steps relative to `now`; `name` appends what a packet is.
    pub fn canonical(&self, now: u64, out: &mut Vec<u64>, name: &impl Fn(&Packet, &mut Vec<u64>)) {
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
                out.push(now.wrapping_sub(node.packet.pushed));
                out.push(u64::from(node.packet.write) << 8 | u64::from(node.packet.cause));
                name(&node.packet, out);
                at = node.next;
            }
        }
        for &(due, source) in &self.coming {
            out.push(due.wrapping_sub(now));
            out.push(u64::from(source));
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
        ) {
            let mut step = 0;
            let pushes: Vec<(u64, u32)> =
                gaps.iter().map(|&(g, s)| { step += g; (step, s % sources) }).collect();
            let mut arbiter = Arbiter::new(sources, latency);
            let mut got = Vec::new();
            for (i, &(pushed, source)) in pushes.iter().enumerate() {
                let packet = Packet { pushed, source, transfer: i as u32, ..Packet::default() };
                arbiter.push(packet, |t, p| got.push((t, p.transfer)));
            }
            arbiter.serve(u64::MAX, |t, p| got.push((t, p.transfer)));
            prop_assert_eq!(got, naive(sources, latency, &pushes));
        }
    }
}
