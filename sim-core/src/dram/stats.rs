//! What a channel counted.

use serde::{Deserialize, Serialize};

/// What delayed a request most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum WaitCause {
    /// Nothing more than the access itself.
    Latency,
    /// Room in the controller's queue.
    Queue,
    /// Its own precharge and activate.
    Bank,
    /// Buses, turnarounds, older requests.
    Bus,
    /// A refresh that was due or under way.
    Refresh,
}

impl WaitCause {
    /// As [`WaitCause::of`], for a request that waited for neither bank nor refresh.
    #[inline]
    pub(crate) fn of_bus(latency: u64, queue: u64, bus: u64) -> WaitCause {
        if bus > latency.max(queue) {
            WaitCause::Bus
        } else if queue > latency {
            WaitCause::Queue
        } else {
            WaitCause::Latency
        }
    }

    /// The longest of these, the first of equals.
    #[inline]
    pub(crate) fn of(latency: u64, queue: u64, bank: u64, bus: u64, refresh: u64) -> WaitCause {
        // The lower bits break ties in favour of the first; times are far below 2^61.
        let keys = [
            latency << 3 | 4,
            queue << 3 | 3,
            bank << 3 | 2,
            bus << 3 | 1,
            refresh << 3,
        ];
        match keys.into_iter().fold(0, u64::max) & 7 {
            4 => WaitCause::Latency,
            3 => WaitCause::Queue,
            2 => WaitCause::Bank,
            1 => WaitCause::Bus,
            _ => WaitCause::Refresh,
        }
    }
}

/// A completed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Tick of completion.
    pub tick: u64,
    /// What [`super::Channel::push`] was given.
    pub tag: u32,
    /// What delayed it most.
    pub cause: WaitCause,
}

/// Buckets of the latency histogram; bucket `i` holds latencies of `[2^i, 2^(i+1))` ticks, bucket 0 also 0.
pub const LATENCY_BUCKETS: usize = 32;

/// Counters of one channel. All times are in ticks of the device (`DramSpec::tck_ps`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DramStats {
    /// Reads completed, forwarded ones included.
    pub reads: u64,
    /// Writes completed, coalesced ones included.
    pub writes: u64,
    /// Reads answered from a queued write.
    pub forwarded: u64,
    /// Writes absorbed by a queued write to the same address.
    pub coalesced: u64,
    /// Requests whose first command found their row open. Forwarded and coalesced requests count nowhere.
    pub hits: u64,
    /// Requests whose first command found the bank closed.
    pub misses: u64,
    /// Requests whose first command found another row open.
    pub conflicts: u64,
    /// Activates issued.
    pub activates: u64,
    /// Precharges issued, all-bank ones counted once, auto-precharges included.
    pub precharges: u64,
    /// Refresh commands issued.
    pub refreshes: u64,
    /// Ticks in which data moved, summed over the pseudo-channels' buses.
    pub bus_busy: u64,
    /// Sum over ticks of the read queue's length.
    pub read_queue_ticks: u64,
    /// Sum over ticks of the write queue's length.
    pub write_queue_ticks: u64,
    /// Sum of read latencies, from acceptance to data; forwarded reads included.
    pub read_latency_sum: u64,
    /// Histogram of read latencies, from acceptance to data.
    pub read_latency: [u64; LATENCY_BUCKETS],
    /// Ticks requests waited in front of the full controller queues.
    pub wait_queue: u64,
    /// Ticks queued requests waited while a refresh was due or under way.
    pub wait_refresh: u64,
    /// Ticks from a request's own precharge or activate to its column command.
    pub wait_bank: u64,
    /// Other ticks from acceptance to the column command: buses, turnarounds, older requests.
    pub wait_bus: u64,
}

impl DramStats {
    /// Adds `times` times what was counted since `before`.
    pub(crate) fn repeat(&mut self, times: u64, before: &DramStats) {
        // By name and in full: a counter that is added must be thought of here.
        let DramStats {
            reads,
            writes,
            forwarded,
            coalesced,
            hits,
            misses,
            conflicts,
            activates,
            precharges,
            refreshes,
            bus_busy,
            read_queue_ticks,
            write_queue_ticks,
            read_latency_sum,
            wait_queue,
            wait_refresh,
            wait_bank,
            wait_bus,
            read_latency,
        } = self;
        for (now, before) in [
            (reads, before.reads),
            (writes, before.writes),
            (forwarded, before.forwarded),
            (coalesced, before.coalesced),
            (hits, before.hits),
            (misses, before.misses),
            (conflicts, before.conflicts),
            (activates, before.activates),
            (precharges, before.precharges),
            (refreshes, before.refreshes),
            (bus_busy, before.bus_busy),
            (read_queue_ticks, before.read_queue_ticks),
            (write_queue_ticks, before.write_queue_ticks),
            (read_latency_sum, before.read_latency_sum),
            (wait_queue, before.wait_queue),
            (wait_refresh, before.wait_refresh),
            (wait_bank, before.wait_bank),
            (wait_bus, before.wait_bus),
        ]
        .into_iter()
        .chain(read_latency.iter_mut().zip(before.read_latency))
        {
            let more = now.wrapping_sub(before).wrapping_mul(times);
            *now = now.wrapping_add(more);
        }
    }

    #[inline]
    pub(crate) fn latency(&mut self, ticks: u64) {
        self.read_latency_sum = self.read_latency_sum.wrapping_add(ticks);
        let bucket = 63 ^ (ticks | 1).leading_zeros() as usize;
        let count = &mut self.read_latency[bucket.min(LATENCY_BUCKETS - 1)];
        *count = count.wrapping_add(1);
    }
}
