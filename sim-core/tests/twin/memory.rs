//! The way of a request: NoC switch, a channel's front queue, DRAM, and back.

use std::collections::VecDeque;

/// A request or its reply.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// The core that asked.
    pub core: usize,
    /// For which work-item.
    pub item: usize,
    /// For which op of it.
    pub op: usize,
    /// The channel it goes to or comes from.
    pub channel: usize,
}

/// The simple NoC: one queue per (source, destination), one packet per destination and cycle.
pub struct Noc {
    cycle: u64,
    latency: u64,
    /// `queues[destination][source]`: packets with the cycle they are due.
    queues: Vec<Vec<VecDeque<(u64, Packet)>>>,
    /// Packets queued per destination.
    queued: Vec<usize>,
    /// Where each destination starts looking.
    next_source: Vec<usize>,
    /// Packets that have arrived at a node.
    pub out: Vec<VecDeque<Packet>>,
}

impl Noc {
    pub fn new(nodes: usize, latency: u64) -> Noc {
        Noc {
            cycle: 0,
            latency,
            queues: vec![vec![VecDeque::new(); nodes]; nodes],
            queued: vec![0; nodes],
            next_source: vec![0; nodes],
            out: vec![VecDeque::new(); nodes],
        }
    }

    pub fn push(&mut self, source: usize, destination: usize, packet: Packet) {
        let queue = &mut self.queues[destination][source];
        let due = match queue.back() {
            None => self.cycle + self.latency,
            Some((last, _)) => last + 1,
        };
        queue.push_back((due, packet));
        self.queued[destination] += 1;
    }

    /// Moves one packet per destination.
    pub fn switch(&mut self) {
        let nodes = self.out.len();
        for destination in 0..nodes {
            if self.queued[destination] == 0 {
                continue;
            }
            for i in 0..nodes {
                let source = (self.next_source[destination] + i) % nodes;
                let queue = &mut self.queues[destination][source];
                if queue.front().is_some_and(|(due, _)| *due <= self.cycle) {
                    if let Some((_, packet)) = queue.pop_front() {
                        self.out[destination].push_back(packet);
                    }
                    self.queued[destination] -= 1;
                    self.next_source[destination] = (source + 1) % nodes;
                    break;
                }
            }
        }
        self.cycle += 1;
    }
}

/// The simple DRAM: a fixed latency under a bandwidth cap, per channel.
pub struct Dram {
    step: u64,
    latency: u64,
    bytes_per_step: Option<f64>,
    request_bytes: f64,
    credit: Vec<f64>,
    /// Requests that came out of the NoC.
    pub front: Vec<VecDeque<Packet>>,
    /// Requests passed on to DRAM, not admitted yet.
    waiting: Vec<VecDeque<Packet>>,
    /// Admitted requests with the step in which they return.
    inside: Vec<VecDeque<(u64, Packet)>>,
    /// Replies on their way to the NoC.
    pub outgoing: Vec<VecDeque<Packet>>,
}

impl Dram {
    pub fn new(
        channels: usize,
        latency: u64,
        bytes_per_step: Option<f64>,
        request_bytes: u32,
    ) -> Dram {
        let request_bytes = f64::from(request_bytes);
        Dram {
            step: 0,
            latency,
            bytes_per_step,
            request_bytes,
            credit: vec![2.0 * request_bytes; channels],
            front: vec![VecDeque::new(); channels],
            waiting: vec![VecDeque::new(); channels],
            inside: vec![VecDeque::new(); channels],
            outgoing: vec![VecDeque::new(); channels],
        }
    }

    /// Part of a core step: every channel's front queue passes one request on.
    pub fn pass_front_queues(&mut self) {
        for channel in 0..self.front.len() {
            if let Some(request) = self.front[channel].pop_front() {
                self.waiting[channel].push_back(request);
            }
        }
    }

    /// One DRAM clock edge: every channel admits at most one request and returns at most one.
    pub fn step(&mut self) {
        for channel in 0..self.front.len() {
            if let Some(bytes) = self.bytes_per_step {
                self.credit[channel] += bytes;
            }
            let free = self.bytes_per_step.is_none();
            if !self.waiting[channel].is_empty()
                && (free || self.credit[channel] >= self.request_bytes)
            {
                if !free {
                    self.credit[channel] -= self.request_bytes;
                }
                if let Some(request) = self.waiting[channel].pop_front() {
                    self.inside[channel].push_back((self.step + self.latency, request));
                }
            }
            if self.inside[channel]
                .front()
                .is_some_and(|(due, _)| *due <= self.step)
                && let Some((_, reply)) = self.inside[channel].pop_front()
            {
                self.outgoing[channel].push_back(reply);
            }
        }
        self.step += 1;
    }
}
