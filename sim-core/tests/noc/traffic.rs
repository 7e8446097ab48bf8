//! Deterministic synthetic traffic.

use tilesim_core::noc::{Delivery, FlitNetwork, FlitNetworkSpec};

/// A splitmix64 generator.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    pub fn chance(&mut self, p: f64) -> bool {
        ((self.next() >> 11) as f64) < p * (1u64 << 53) as f64
    }
}

/// What an experiment with Bernoulli injection and uniform destinations measured.
pub struct Measured {
    /// Mean cycles from creation to delivery of the packets created in the measured window.
    pub latency: f64,
    /// Flits per node and cycle delivered in the measured window.
    pub accepted: f64,
}

/// Every node creates a packet with probability `rate / flits` in each cycle, for any node (itself
/// included) with equal probability. Measures the packets created in `window` cycles after
/// `warm_up`, and lets the traffic go on until all of them have arrived or `patience` windows
/// have passed.
pub fn uniform(
    spec: &FlitNetworkSpec,
    flits: u32,
    rate: f64,
    warm_up: u64,
    window: u64,
    seed: u64,
) -> Measured {
    let nodes = spec.nodes();
    let mut network = FlitNetwork::new(spec);
    let mut random = Random(seed);
    let mut out: Vec<Delivery> = vec![];
    let mut created: Vec<(u64, u32)> = vec![];
    let (mut sum, mut count, mut accepted) = (0u64, 0u64, 0u64);
    let mut wanted = 0u64;
    let end = warm_up + window;
    let mut now = 0;
    while now < end || count < wanted && now < end + 10 * window {
        for src in 0..nodes {
            if random.chance(rate / f64::from(flits)) {
                let dst = random.below(u64::from(nodes)) as u32;
                network.push(now, src, dst, flits, created.len() as u32);
                created.push((now, dst));
                wanted += u64::from((warm_up..end).contains(&now));
            }
        }
        now += 1;
        out.clear();
        network.advance(spec, now, &mut out);
        for d in &out {
            let (at, dst) = created[d.tag as usize];
            assert_eq!(d.dst, dst);
            accepted += u64::from((warm_up..end).contains(&d.cycle));
            if (warm_up..end).contains(&at) {
                sum += d.cycle - at;
                count += 1;
            }
        }
    }
    Measured {
        latency: sum as f64 / count as f64,
        accepted: (accepted * u64::from(flits)) as f64 / (window * u64::from(nodes)) as f64,
    }
}
