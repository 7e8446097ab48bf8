//! One slice of the L2 cache: tags, sectors, miss registers, replacement.
//!
//! # What is modelled
//!
//! Each DRAM channel has a slice. A line has `line_bytes` in sectors of `sector_bytes`; validity and
//! dirtiness are kept per memory request (the *granule*), so a write never needs the rest of its
//! sector. Addresses are the channel's own: line `n` of the cache holds granules `n * g` to
//! `n * g + g - 1` of the channel. Sets are chosen linearly or by a hash; replacement is LRU over the
//! ways of a set, ways with data on its way being held.
//!
//! A read of an absent granule takes a miss register (MSHR, one a sector), which fetches the absent
//! granules of that sector; later reads of the sector join it, up to `mshr_merges` in all. A read
//! that finds no register, no way or no room in the miss queue waits, and everything behind it.
//!
//! Pinned ranges: a pinned line yields only to another pinned one. A line outside them that finds all
//! ways of its set pinned goes past the cache.
//!
//! This module knows the order of accesses and fills only; `cached` gives them their times.
//!
//! # What is not modelled
//!
//! Data, coherence, atomics, ports and banks inside a slice (one access per core cycle), and a
//! fill's use of the data array.

use serde::{Deserialize, Serialize};

use super::channel_map::ChannelMapper;
use crate::machine::{ChannelMap, L2Allocate, L2SetIndex, L2Spec, L2Write, L2WriteAllocate};

const NONE: u32 = u32::MAX;

/// Counts of one slice. Reads, writes, hits and misses are of requests that reached the slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct L2Stats {
    /// Reads served or missed.
    pub reads: u64,
    /// Writes served or missed.
    pub writes: u64,
    /// Reads that found their data.
    pub read_hits: u64,
    /// Writes that found their data.
    pub write_hits: u64,
    /// Reads and writes whose line was absent (and not on its way).
    pub misses: u64,
    /// Reads and writes whose line was there without the sector.
    pub sector_misses: u64,
    /// Reads that joined a fetch under way.
    pub merges: u64,
    /// Lines replaced.
    pub evictions: u64,
    /// Requests written back from replaced lines.
    pub write_backs: u64,
    /// Requests that went past the cache: writes that do not allocate, lines kept out by pinned ones.
    pub bypasses: u64,
    /// Requests to DRAM to read.
    pub dram_reads: u64,
    /// Requests to DRAM to write.
    pub dram_writes: u64,
    /// Accesses that had to wait for a miss register, a way or room in the miss queue.
    pub stalls: u64,
}

impl L2Stats {
    /// Requests that reached the slice.
    pub fn accesses(&self) -> u64 {
        self.reads + self.writes
    }

    /// Add another slice's counts.
    pub fn add(&mut self, o: &L2Stats) {
        self.reads += o.reads;
        self.writes += o.writes;
        self.read_hits += o.read_hits;
        self.write_hits += o.write_hits;
        self.misses += o.misses;
        self.sector_misses += o.sector_misses;
        self.merges += o.merges;
        self.evictions += o.evictions;
        self.write_backs += o.write_backs;
        self.bypasses += o.bypasses;
        self.dram_reads += o.dram_reads;
        self.dram_writes += o.dram_writes;
        self.stalls += o.stalls;
    }
}

/// What all slices share.
#[derive(Clone, Debug)]
pub struct SliceSpec {
    sets: u64,
    ways: u32,
    line_shift: u32,
    sector_shift: u32,
    index: Index,
    write: L2Write,
    write_allocate: L2WriteAllocate,
    allocate: L2Allocate,
    mshr_entries: u32,
    mshr_merges: u32,
    /// Pinned granules, as half-open ranges.
    pinned: Vec<(u64, u64)>,
}

#[derive(Clone, Debug)]
enum Index {
    Linear,
    Xor,
    Ipoly(ChannelMapper),
}

impl SliceSpec {
    /// From a machine's L2, its request size and its number of channels.
    pub fn new(spec: &L2Spec, request_bytes: u32, channels: u32) -> SliceSpec {
        let granules = |bytes: u32| (bytes / request_bytes.max(1)).max(1);
        // A range covers whole rows of lines across the channels.
        let row = u64::from(channels.max(1)) * u64::from(request_bytes.max(1));
        SliceSpec {
            sets: u64::from(spec.sets),
            ways: spec.ways,
            line_shift: granules(spec.line_bytes).trailing_zeros(),
            sector_shift: granules(spec.sector_bytes).trailing_zeros(),
            index: match spec.set_index {
                L2SetIndex::Linear => Index::Linear,
                L2SetIndex::Xor => Index::Xor,
                L2SetIndex::Ipoly => Index::Ipoly(ChannelMapper::new(ChannelMap::Ipoly, spec.sets)),
            },
            write: spec.write,
            write_allocate: spec.write_allocate,
            allocate: spec.allocate,
            mshr_entries: spec.mshr_entries,
            mshr_merges: spec.mshr_merges,
            pinned: spec
                .pinned
                .iter()
                .map(|&(start, bytes)| (start / row, start.saturating_add(bytes).div_ceil(row)))
                .collect(),
        }
    }

    fn set(&self, line: u64) -> u64 {
        let mask = self.sets - 1;
        match &self.index {
            Index::Linear => line & mask,
            Index::Xor => {
                let bits = self.sets.trailing_zeros().max(1);
                let (mut rest, mut set) = (line, 0);
                while rest != 0 {
                    set ^= rest & mask;
                    rest >>= bits;
                }
                set
            }
            Index::Ipoly(map) => u64::from(map.locate(line).0),
        }
    }

    fn pinned(&self, granule: u64) -> bool {
        self.pinned
            .iter()
            .any(|&(from, to)| from <= granule && granule < to)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Line {
    number: u64,
    valid: u64,
    dirty: u64,
    /// Granules on their way (allocation on miss only).
    pending: u64,
    /// Neighbours in the set, towards the most and the least recently used.
    newer: u32,
    older: u32,
    /// Next in the bucket.
    chain: u32,
    pinned: bool,
}

/// The ways of a set in use: ends of the recency list.
#[derive(Clone, Copy, Debug)]
struct Set {
    newest: u32,
    oldest: u32,
    used: u32,
}

/// A miss register.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    sector: u64,
    /// Granules on their way, as bits of the line.
    missing: u64,
    first: u32,
    last: u32,
    merged: u32,
    chain: u32,
    /// The data is not kept.
    past: bool,
}

#[derive(Clone, Copy, Debug)]
struct Waiter<W> {
    value: W,
    bit: u64,
    next: u32,
}

/// What the cache asks of DRAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Send {
    /// Read a granule for a miss register.
    Fetch {
        /// Granule.
        granule: u64,
        /// Register.
        entry: u32,
    },
    /// Write a granule of a replaced line.
    WriteBack {
        /// Granule.
        granule: u64,
    },
    /// Write the granule of the access itself; its acknowledgement answers the access.
    Write {
        /// Granule.
        granule: u64,
    },
}

/// What became of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is answered after the hit latency.
    Done,
    /// It is answered when its fetch, or its own write, returns.
    Waits,
    /// It cannot proceed before the next fill.
    Blocked,
    /// It cannot proceed before the miss queue holds so many requests more, or is empty.
    Queue(u32),
}

/// One slice. `W` is what waits in a miss register.
#[derive(Clone, Debug)]
pub struct Slice<W> {
    lines: Vec<Line>,
    sets: Vec<Set>,
    buckets: Vec<u32>,
    entries: Vec<Entry>,
    free_entries: Vec<u32>,
    entry_buckets: Vec<u32>,
    used_entries: u32,
    waiters: Vec<Waiter<W>>,
    free_waiters: Vec<u32>,
    /// What the last access or fill asks of DRAM, in order.
    pub sends: Vec<Send>,
    /// Counts.
    pub stats: L2Stats,
}

/// Fibonacci hashing: the high bits of the product.
#[inline]
fn bucket(key: u64, buckets: usize) -> usize {
    let bits = buckets.trailing_zeros();
    if bits == 0 {
        0
    } else {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits)) as usize
    }
}

impl<W: Copy> Slice<W> {
    /// An empty slice.
    pub fn new(spec: &SliceSpec) -> Slice<W> {
        let lines = spec.sets * u64::from(spec.ways);
        let entries = (spec.mshr_entries as usize)
            .min(1 << 16)
            .next_power_of_two();
        Slice {
            lines: Vec::new(),
            sets: vec![
                Set {
                    newest: NONE,
                    oldest: NONE,
                    used: 0
                };
                spec.sets as usize
            ],
            buckets: vec![NONE; lines.next_power_of_two() as usize],
            entries: Vec::new(),
            free_entries: Vec::new(),
            entry_buckets: vec![NONE; entries],
            used_entries: 0,
            waiters: Vec::new(),
            free_waiters: Vec::new(),
            sends: Vec::new(),
            stats: L2Stats::default(),
        }
    }

    /// An access. `room` is what the miss queue can take (`u32::MAX`: anything). On
    /// [`Outcome::Done`] and [`Outcome::Waits`] it has happened and `sends` says what goes to DRAM;
    /// otherwise nothing has changed.
    pub fn access(
        &mut self,
        spec: &SliceSpec,
        granule: u64,
        write: bool,
        room: u32,
        waiter: W,
    ) -> Outcome {
        self.sends.clear();
        let number = granule >> spec.line_shift;
        let bit = 1u64 << (granule & ((1 << spec.line_shift) - 1));
        let line = self.find(number);
        let outcome = match line {
            Some(at) if self.lines[at as usize].valid & bit != 0 => {
                self.hit(spec, at, granule, bit, write, room)
            }
            _ if write => self.write_miss(spec, line, granule, bit, room),
            _ => self.read_miss(spec, line, granule, bit, room, waiter),
        };
        match outcome {
            Outcome::Done | Outcome::Waits if write => self.stats.writes += 1,
            Outcome::Done | Outcome::Waits => self.stats.reads += 1,
            Outcome::Blocked | Outcome::Queue(_) => {}
        }
        outcome
    }

    fn hit(
        &mut self,
        spec: &SliceSpec,
        at: u32,
        granule: u64,
        bit: u64,
        write: bool,
        room: u32,
    ) -> Outcome {
        if !write {
            self.touch(spec, at);
            self.stats.read_hits += 1;
            return Outcome::Done;
        }
        if spec.write == L2Write::Through {
            if room < 1 {
                return Outcome::Queue(1);
            }
            self.touch(spec, at);
            self.stats.write_hits += 1;
            self.send(Send::Write { granule });
            return Outcome::Waits;
        }
        self.touch(spec, at);
        self.stats.write_hits += 1;
        self.lines[at as usize].dirty |= bit;
        Outcome::Done
    }

    fn read_miss(
        &mut self,
        spec: &SliceSpec,
        line: Option<u32>,
        granule: u64,
        bit: u64,
        room: u32,
        waiter: W,
    ) -> Outcome {
        let sector = granule >> spec.sector_shift;
        if let Some(at) = self.find_entry(sector) {
            let entry = self.entries[at as usize];
            if entry.merged >= spec.mshr_merges {
                return Outcome::Blocked;
            }
            let again = entry.missing & bit == 0;
            if again && room < 1 {
                return Outcome::Queue(1);
            }
            if again {
                self.entries[at as usize].missing |= bit;
                self.send(Send::Fetch { granule, entry: at });
            }
            self.entries[at as usize].merged += 1;
            self.wait(at, bit, waiter);
            if let Some(line) = line {
                self.touch(spec, line);
            }
            self.stats.merges += 1;
            return Outcome::Waits;
        }
        let fetch = self.absent(spec, line, sector);
        match self.miss(spec, line, granule, fetch, room, 0) {
            Ok(entry) => {
                self.wait(entry, bit, waiter);
                self.count_miss(line);
                Outcome::Waits
            }
            Err(outcome) => outcome,
        }
    }

    fn write_miss(
        &mut self,
        spec: &SliceSpec,
        line: Option<u32>,
        granule: u64,
        bit: u64,
        room: u32,
    ) -> Outcome {
        let through = spec.write == L2Write::Through;
        let sector = granule >> spec.sector_shift;
        match spec.write_allocate {
            L2WriteAllocate::None => {
                if room < 1 {
                    return Outcome::Queue(1);
                }
                self.count_miss(line);
                self.stats.bypasses += 1;
                self.send(Send::Write { granule });
                Outcome::Waits
            }
            L2WriteAllocate::WriteAndFetch => {
                if self.find_entry(sector).is_some() {
                    // The sector is on its way already.
                    if room < 1 {
                        return Outcome::Queue(1);
                    }
                    self.count_miss(line);
                    self.send(Send::Write { granule });
                    return Outcome::Waits;
                }
                let fetch = self.absent(spec, line, sector);
                match self.miss(spec, line, granule, fetch, room, 1) {
                    Ok(_) => {
                        self.count_miss(line);
                        self.send(Send::Write { granule });
                        Outcome::Waits
                    }
                    Err(outcome) => outcome,
                }
            }
            L2WriteAllocate::Validate | L2WriteAllocate::Fetch => {
                let rest = match spec.write_allocate {
                    L2WriteAllocate::Fetch if self.find_entry(sector).is_none() => {
                        self.absent(spec, line, sector) & !bit
                    }
                    _ => 0,
                };
                if rest != 0 && self.used_entries >= spec.mshr_entries {
                    return Outcome::Blocked;
                }
                let own = u32::from(through);
                let at = match line {
                    Some(at) => {
                        let needed = own + rest.count_ones();
                        if room < needed {
                            return Outcome::Queue(needed);
                        }
                        self.touch(spec, at);
                        at
                    }
                    None => match self.victim(spec, granule) {
                        Victim::Held => return Outcome::Blocked,
                        Victim::Pinned => {
                            if room < 1 {
                                return Outcome::Queue(1);
                            }
                            self.count_miss(line);
                            self.stats.bypasses += 1;
                            self.send(Send::Write { granule });
                            return Outcome::Waits;
                        }
                        Victim::Unused => {
                            let needed = own + rest.count_ones();
                            if room < needed {
                                return Outcome::Queue(needed);
                            }
                            self.place(spec, None, granule)
                        }
                        Victim::Line(old) => {
                            let dirty = self.lines[old as usize].dirty.count_ones();
                            let needed = own + rest.count_ones() + dirty;
                            if room < needed {
                                return Outcome::Queue(needed);
                            }
                            self.place(spec, Some(old), granule)
                        }
                    },
                };
                self.count_miss(line);
                if rest != 0 {
                    let entry = self.register(spec, granule, rest, false);
                    if spec.allocate == L2Allocate::OnMiss {
                        self.lines[at as usize].pending |= rest;
                    }
                    self.fetch(spec, granule, rest, entry);
                }
                let line = &mut self.lines[at as usize];
                line.valid |= bit;
                if through {
                    self.send(Send::Write { granule });
                    Outcome::Waits
                } else {
                    line.dirty |= bit;
                    Outcome::Done
                }
            }
        }
    }

    /// Takes a miss register and, when lines are allocated on a miss, a way; `more` requests will go
    /// to DRAM besides. The register, or why there is none.
    fn miss(
        &mut self,
        spec: &SliceSpec,
        line: Option<u32>,
        granule: u64,
        fetch: u64,
        room: u32,
        more: u32,
    ) -> Result<u32, Outcome> {
        if self.used_entries >= spec.mshr_entries {
            return Err(Outcome::Blocked);
        }
        let mut needed = fetch.count_ones() + more;
        let mut past = false;
        let mut at = line;
        let mut old = None;
        if line.is_none() && spec.allocate == L2Allocate::OnMiss {
            match self.victim(spec, granule) {
                Victim::Held => return Err(Outcome::Blocked),
                Victim::Pinned => past = true,
                Victim::Unused => {}
                Victim::Line(found) => {
                    needed += self.lines[found as usize].dirty.count_ones();
                    old = Some(found);
                }
            }
        }
        if room < needed {
            return Err(Outcome::Queue(needed));
        }
        let entry = self.register(spec, granule, fetch, past);
        self.fetch(spec, granule, fetch, entry);
        if past {
            self.stats.bypasses += 1;
            return Ok(entry);
        }
        if line.is_none() && spec.allocate == L2Allocate::OnMiss {
            at = Some(self.place(spec, old, granule));
        } else if let Some(at) = line {
            self.touch(spec, at);
        }
        if spec.allocate == L2Allocate::OnMiss
            && let Some(at) = at
        {
            self.lines[at as usize].pending |= fetch;
        }
        Ok(entry)
    }

    /// A granule arrives for a miss register; who waited for it goes to `answer`, in order of
    /// arrival. `sends` says what goes to DRAM.
    pub fn fill(&mut self, spec: &SliceSpec, granule: u64, at: u32, mut answer: impl FnMut(W)) {
        self.sends.clear();
        let number = granule >> spec.line_shift;
        let bit = 1u64 << (granule & ((1 << spec.line_shift) - 1));
        let entry = &mut self.entries[at as usize];
        entry.missing &= !bit;
        let (done, past) = (entry.missing == 0, entry.past);
        if !past {
            let line = match self.find(number) {
                Some(line) => Some(line),
                // Lines are allocated when the data arrives: nothing is ever held then.
                None => match self.victim(spec, granule) {
                    Victim::Held | Victim::Pinned => {
                        self.stats.bypasses += 1;
                        None
                    }
                    Victim::Unused => Some(self.place(spec, None, granule)),
                    Victim::Line(old) => Some(self.place(spec, Some(old), granule)),
                },
            };
            if let Some(line) = line {
                let line = &mut self.lines[line as usize];
                line.valid |= bit;
                line.pending &= !bit;
            }
        }
        let (mut before, mut w) = (NONE, self.entries[at as usize].first);
        while w != NONE {
            let waiter = self.waiters[w as usize];
            if waiter.bit == bit {
                match before {
                    NONE => self.entries[at as usize].first = waiter.next,
                    before => self.waiters[before as usize].next = waiter.next,
                }
                if waiter.next == NONE {
                    self.entries[at as usize].last = before;
                }
                self.free_waiters.push(w);
                answer(waiter.value);
            } else {
                before = w;
            }
            w = waiter.next;
        }
        if done {
            self.release(at);
        }
    }

    fn count_miss(&mut self, line: Option<u32>) {
        match line {
            Some(_) => self.stats.sector_misses += 1,
            None => self.stats.misses += 1,
        }
    }

    fn send(&mut self, send: Send) {
        match send {
            Send::Fetch { .. } => self.stats.dram_reads += 1,
            Send::Write { .. } => self.stats.dram_writes += 1,
            Send::WriteBack { .. } => {
                self.stats.dram_writes += 1;
                self.stats.write_backs += 1;
            }
        }
        self.sends.push(send);
    }

    /// Granules of a sector that are neither there nor on their way, as bits of the line.
    fn absent(&self, spec: &SliceSpec, line: Option<u32>, sector: u64) -> u64 {
        let size = 1u32 << spec.sector_shift;
        let within = (sector << spec.sector_shift) & ((1 << spec.line_shift) - 1);
        let ones = if size >= 64 {
            u64::MAX
        } else {
            (1 << size) - 1
        };
        let there = line.map_or(0, |at| {
            let line = &self.lines[at as usize];
            line.valid | line.pending
        });
        (ones << within) & !there
    }

    fn fetch(&mut self, spec: &SliceSpec, granule: u64, fetch: u64, entry: u32) {
        let base = granule >> spec.line_shift << spec.line_shift;
        let own = 1u64 << (granule & ((1 << spec.line_shift) - 1));
        if fetch & own != 0 {
            self.send(Send::Fetch { granule, entry });
        }
        let mut rest = fetch & !own;
        while rest != 0 {
            let granule = base + u64::from(rest.trailing_zeros());
            self.send(Send::Fetch { granule, entry });
            rest &= rest - 1;
        }
    }

    #[inline]
    fn find(&self, number: u64) -> Option<u32> {
        let mut at = self.buckets[bucket(number, self.buckets.len())];
        while at != NONE {
            let line = &self.lines[at as usize];
            if line.number == number {
                return Some(at);
            }
            at = line.chain;
        }
        None
    }

    #[inline]
    fn find_entry(&self, sector: u64) -> Option<u32> {
        let mut at = self.entry_buckets[bucket(sector, self.entry_buckets.len())];
        while at != NONE {
            let entry = &self.entries[at as usize];
            if entry.sector == sector {
                return Some(at);
            }
            at = entry.chain;
        }
        None
    }

    fn register(&mut self, spec: &SliceSpec, granule: u64, missing: u64, past: bool) -> u32 {
        let sector = granule >> spec.sector_shift;
        let bucket = bucket(sector, self.entry_buckets.len());
        let entry = Entry {
            sector,
            missing,
            first: NONE,
            last: NONE,
            merged: 1,
            chain: self.entry_buckets[bucket],
            past,
        };
        let at = match self.free_entries.pop() {
            Some(at) => {
                self.entries[at as usize] = entry;
                at
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        };
        self.entry_buckets[bucket] = at;
        self.used_entries += 1;
        at
    }

    fn release(&mut self, at: u32) {
        let entry = self.entries[at as usize];
        let bucket = bucket(entry.sector, self.entry_buckets.len());
        let mut i = self.entry_buckets[bucket];
        if i == at {
            self.entry_buckets[bucket] = entry.chain;
        } else {
            while i != NONE {
                let next = self.entries[i as usize].chain;
                if next == at {
                    self.entries[i as usize].chain = entry.chain;
                    break;
                }
                i = next;
            }
        }
        self.free_entries.push(at);
        self.used_entries -= 1;
    }

    fn wait(&mut self, at: u32, bit: u64, value: W) {
        let waiter = Waiter {
            value,
            bit,
            next: NONE,
        };
        let w = match self.free_waiters.pop() {
            Some(w) => {
                self.waiters[w as usize] = waiter;
                w
            }
            None => {
                self.waiters.push(waiter);
                (self.waiters.len() - 1) as u32
            }
        };
        let last = self.entries[at as usize].last;
        match last {
            NONE => self.entries[at as usize].first = w,
            last => self.waiters[last as usize].next = w,
        }
        self.entries[at as usize].last = w;
    }

    /// Make a line the most recently used of its set.
    fn touch(&mut self, spec: &SliceSpec, at: u32) {
        let line = self.lines[at as usize];
        if line.newer == NONE {
            return;
        }
        let set = spec.set(line.number) as usize;
        self.unlink(set, at);
        self.link(set, at);
    }

    fn unlink(&mut self, set: usize, at: u32) {
        let Line { newer, older, .. } = self.lines[at as usize];
        match newer {
            NONE => self.sets[set].newest = older,
            newer => self.lines[newer as usize].older = older,
        }
        match older {
            NONE => self.sets[set].oldest = newer,
            older => self.lines[older as usize].newer = newer,
        }
    }

    fn link(&mut self, set: usize, at: u32) {
        let newest = self.sets[set].newest;
        self.lines[at as usize].newer = NONE;
        self.lines[at as usize].older = newest;
        match newest {
            NONE => self.sets[set].oldest = at,
            newest => self.lines[newest as usize].newer = at,
        }
        self.sets[set].newest = at;
    }

    /// Which way a new line may take.
    fn victim(&self, spec: &SliceSpec, granule: u64) -> Victim {
        let set = &self.sets[spec.set(granule >> spec.line_shift) as usize];
        if set.used < spec.ways {
            return Victim::Unused;
        }
        let (mut held, mut least_pinned) = (false, NONE);
        let mut at = set.oldest;
        while at != NONE {
            let line = &self.lines[at as usize];
            if line.pending != 0 {
                held |= !line.pinned;
            } else if !line.pinned {
                return Victim::Line(at);
            } else if least_pinned == NONE {
                least_pinned = at;
            }
            at = line.newer;
        }
        if spec.pinned(granule) {
            match least_pinned {
                NONE => Victim::Held,
                at => Victim::Line(at),
            }
        } else if held {
            Victim::Held
        } else {
            Victim::Pinned
        }
    }

    /// Puts the line of `granule` into the way of `old`, or into an unused one.
    fn place(&mut self, spec: &SliceSpec, old: Option<u32>, granule: u64) -> u32 {
        let number = granule >> spec.line_shift;
        let set = spec.set(number) as usize;
        let at = match old {
            Some(at) => {
                let line = self.lines[at as usize];
                let mut dirty = line.dirty;
                while dirty != 0 {
                    let granule =
                        (line.number << spec.line_shift) + u64::from(dirty.trailing_zeros());
                    self.send(Send::WriteBack { granule });
                    dirty &= dirty - 1;
                }
                self.stats.evictions += 1;
                self.forget(at);
                self.unlink(set, at);
                at
            }
            None => {
                self.sets[set].used += 1;
                self.lines.push(Line::default());
                (self.lines.len() - 1) as u32
            }
        };
        let bucket = bucket(number, self.buckets.len());
        self.lines[at as usize] = Line {
            number,
            chain: self.buckets[bucket],
            pinned: spec.pinned(granule),
            ..Line::default()
        };
        self.buckets[bucket] = at;
        self.link(set, at);
        at
    }

    fn forget(&mut self, at: u32) {
        let line = self.lines[at as usize];
        let bucket = bucket(line.number, self.buckets.len());
        let mut i = self.buckets[bucket];
        if i == at {
            self.buckets[bucket] = line.chain;
            return;
        }
        while i != NONE {
            let next = self.lines[i as usize].chain;
            if next == at {
                self.lines[i as usize].chain = line.chain;
                return;
            }
            i = next;
        }
    }
}

enum Victim {
    Unused,
    Line(u32),
    /// Every way that could be taken waits for data.
    Held,
    /// Every way is pinned.
    Pinned,
}
