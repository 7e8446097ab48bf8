//! Counters of a flit network.

use serde::Serialize;

/// Buckets of a [`LatencyHistogram`].
const BUCKETS: usize = 64 + 8 * 58;

/// Packet latencies in cycles: exact below 64, then eight buckets per power of two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatencyHistogram {
    counts: Box<[u64; BUCKETS]>,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        LatencyHistogram {
            counts: Box::new([0; BUCKETS]),
        }
    }
}

impl LatencyHistogram {
    #[inline]
    fn bucket(cycles: u64) -> usize {
        if cycles < 64 {
            cycles as usize
        } else {
            let top = 63 - cycles.leading_zeros();
            64 + 8 * (top as usize - 6) + (cycles >> (top - 3) & 7) as usize
        }
    }

    /// The smallest latency, in cycles, that falls into a bucket.
    fn floor(bucket: usize) -> u64 {
        if bucket < 64 {
            bucket as u64
        } else {
            let above = bucket - 64;
            (8 + (above % 8) as u64) << (above / 8 + 3)
        }
    }

    #[inline]
    pub(super) fn record(&mut self, cycles: u64) {
        self.counts[Self::bucket(cycles)] += 1;
    }

    /// The buckets that hold something: (smallest latency of the bucket in cycles, packets).
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.counts
            .iter()
            .enumerate()
            .filter(|(_, n)| **n > 0)
            .map(|(b, n)| (Self::floor(b), *n))
    }

    /// The latency in cycles that `fraction` (0 to 1) of the packets do not exceed, rounded down to
    /// its bucket; 0 when nothing was recorded.
    pub fn quantile(&self, fraction: f64) -> u64 {
        let total: u64 = self.counts.iter().sum();
        let mut rank = ((total as f64 * fraction.clamp(0.0, 1.0)).ceil() as u64).max(1);
        for (floor, count) in self.buckets() {
            if count >= rank {
                return floor;
            }
            rank -= count;
        }
        0
    }
}

impl Serialize for LatencyHistogram {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.buckets())
    }
}

/// What a flit network did so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NocStats {
    /// Packets pushed.
    pub packets_pushed: u64,
    /// Packets delivered.
    pub packets: u64,
    /// Flits of the packets delivered.
    pub flits: u64,
    /// Routers passed, summed over the packets delivered.
    pub hops: u64,
    /// Cycles from push to delivery, summed over the packets delivered.
    pub latency_cycles: u64,
    /// Cycles in the injection queue before the head flit left, summed over the packets that left.
    pub source_wait_cycles: u64,
    /// Cycles of `latency_cycles` beyond the zero-load latency: contention for links, buffers and
    /// the injection queue together.
    pub stall_cycles: u64,
    /// Cycles from push to delivery, per packet delivered.
    pub latency: LatencyHistogram,
    /// Per output port (routers in order, their ports in order): cycles in which a flit was sent.
    pub link_busy: Vec<u64>,
}

impl NocStats {
    /// Mean cycles from push to delivery; `None` before the first delivery.
    pub fn mean_latency(&self) -> Option<f64> {
        (self.packets > 0).then(|| self.latency_cycles as f64 / self.packets as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_ordered_and_contain_their_floor() {
        let mut last = 0;
        for bucket in 1..BUCKETS {
            let floor = LatencyHistogram::floor(bucket);
            assert!(floor > last);
            assert_eq!(LatencyHistogram::bucket(floor), bucket);
            assert_eq!(LatencyHistogram::bucket(floor - 1), bucket - 1);
            last = floor;
        }
        assert_eq!(LatencyHistogram::bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles() {
        let mut h = LatencyHistogram::default();
        assert_eq!(h.quantile(0.5), 0);
        for c in 1..=100 {
            h.record(c);
        }
        assert_eq!(h.quantile(0.0), 1);
        assert_eq!(h.quantile(0.5), 50);
        assert_eq!(h.quantile(1.0), 96);
    }
}
