//! Transfers in flight: how many replies each still misses, and when it is complete.

use std::collections::VecDeque;

use super::Completion;
use super::slab::Slab;
use crate::clock::Conversion;
use crate::stack::Cause;

#[derive(Clone, Copy, Debug)]
struct Flight {
    core: u32,
    token: u64,
    origin: Origin,
    /// Replies not yet accounted for.
    remaining: u64,
    /// Hand-over of its latest reply: NoC step, port (counted over all cores).
    last: (u64, u32),
    cause: Cause,
    /// Position in `Flights::active`.
    at: u32,
    write: bool,
}

/// Where a transfer comes from: the place of its work-item in dispatch order, and its op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Work-item.
    pub item: u64,
    /// Op.
    pub op: u32,
}

/// All transfers in flight and the completions that are known.
#[derive(Debug)]
pub struct Flights {
    flights: Slab<Flight>,
    active: Vec<u32>,
    /// Stores among them.
    stores: u32,
    done: Vec<VecDeque<Completion>>,
    noc_to_core: Conversion,
}

impl Flights {
    /// None, for so many cores.
    pub fn new(cores: u32, noc_to_core: Conversion) -> Flights {
        Flights {
            flights: Slab::new(),
            active: Vec::new(),
            stores: 0,
            done: vec![VecDeque::new(); cores as usize],
            noc_to_core,
        }
    }

    /// A transfer of `requests` requests sets out.
    pub fn start(
        &mut self,
        core: u32,
        token: u64,
        origin: Origin,
        requests: u64,
        write: bool,
    ) -> u32 {
        let at = self.active.len() as u32;
        let flight = Flight {
            core,
            token,
            origin,
            remaining: requests,
            last: (0, 0),
            cause: Cause::DramLatency,
            at,
            write,
        };
        self.stores += u32::from(write);
        let index = self.flights.insert(flight);
        self.active.push(index);
        index
    }

    /// Whether any is missing replies.
    pub fn any(&self) -> bool {
        !self.active.is_empty()
    }

    /// Whether any of those is a store.
    pub fn any_store(&self) -> bool {
        self.stores > 0
    }

    /// Fewest replies that a transfer is missing, not looking further once it is at most `enough`;
    /// `u64::MAX` if none is in flight.
    pub fn fewest_missing(&self, enough: u64) -> u64 {
        let mut fewest = u64::MAX;
        for &index in &self.active {
            fewest = fewest.min(self.flights.get(index).remaining);
            if fewest <= enough {
                break;
            }
        }
        fewest
    }

    /// A core's port takes one of its replies in NoC step `step`.
    #[inline]
    pub fn deliver(&mut self, step: u64, port: u32, index: u32, cause: Cause) {
        let flight = self.flights.get_mut(index);
        flight.remaining -= 1;
        if (step, port) >= flight.last {
            flight.last = (step, port);
            flight.cause = cause;
        }
        if flight.remaining == 0 {
            self.complete(index);
        }
    }

    fn complete(&mut self, index: u32) {
        let flight = self.flights.remove(index);
        self.stores -= u32::from(flight.write);
        self.active.swap_remove(flight.at as usize);
        if let Some(&moved) = self.active.get(flight.at as usize) {
            self.flights.get_mut(moved).at = flight.at;
        }
        let completion = Completion {
            step: self.noc_to_core.after(flight.last.0),
            token: flight.token,
            origin: flight.origin,
            cause: flight.cause,
            order: flight.last,
        };
        let queue = &mut self.done[flight.core as usize];
        let mut at = queue.len();
        while at > 0 && queue[at - 1].order > completion.order {
            at -= 1;
        }
        queue.insert(at, completion);
    }

    /// A name of a transfer that is the same in equal situations: its core, work-item relative to
    /// `base`, and op. The three never collide while items in flight lie within 2^19 of `base`.
    pub fn name(&self, index: u32, base: u64) -> u64 {
        let flight = self.flights.get(index);
        name(flight.core, flight.origin, base)
    }

    /// Append the state to `out`, NoC steps relative to `now`.
    pub fn canonical(&self, now: u64, core_now: u64, base: u64, out: &mut Vec<u64>) {
        out.push(self.active.len() as u64);
        let start = out.len();
        for &index in &self.active {
            let f = self.flights.get(index);
            out.push(self.name(index, base));
            out.push(f.remaining);
            // A reply of the past will not be the last one.
            let ahead = f.last.0 >= now;
            out.push(if ahead { f.last.0 - now + 1 } else { 0 });
            out.push(if ahead {
                u64::from(f.last.1) << 8 | f.cause as u64
            } else {
                0
            });
        }
        // In one order, whatever order they were started in.
        sort_rows(&mut out[start..], 4);
        for (core, queue) in self.done.iter().enumerate() {
            out.push(queue.len() as u64);
            for c in queue {
                out.push(c.step.wrapping_sub(core_now));
                out.push(name(core as u32, c.origin, base));
                out.push(c.cause as u64);
                out.push(c.order.0.wrapping_sub(now));
                out.push(u64::from(c.order.1));
            }
        }
    }

    /// The next known completion of a core.
    #[inline]
    pub fn peek(&self, core: u32) -> Option<&Completion> {
        self.done[core as usize].front()
    }

    /// Take it.
    pub fn pop(&mut self, core: u32) -> Option<Completion> {
        self.done[core as usize].pop_front()
    }
}

fn name(core: u32, origin: Origin, base: u64) -> u64 {
    u64::from(core) << 52 | (origin.item.wrapping_sub(base) & 0xf_ffff) << 32 | u64::from(origin.op)
}

/// Sort rows of `width` words.
fn sort_rows(words: &mut [u64], width: usize) {
    let rows = words.len() / width;
    for i in 1..rows {
        let mut at = i;
        while at > 0 && words[(at - 1) * width] > words[at * width] {
            for k in 0..width {
                words.swap((at - 1) * width + k, at * width + k);
            }
            at -= 1;
        }
    }
}
