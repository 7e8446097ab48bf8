//! BookSim 2's experiment: its traffic, drawn from its generators in its order, and its samples.

use super::knuth::Knuth;
use tilesim_core::noc::{Delivery, FlitNetwork, FlitNetworkSpec};

/// Cycles of a sample.
const SAMPLE: u64 = 1000;
const WARM_UP_SAMPLES: u32 = 3;
const MAX_SAMPLES: u32 = 10;
/// Samples in a row that must agree for the run to end.
const SETTLED_SAMPLES: u32 = 3;
/// Relative change from sample to sample below which latency and throughput agree.
const SETTLED: f64 = 0.05;
/// Mean latency in cycles beyond which a run is given up.
const UNSTABLE: f64 = 500.0;

/// What a run measured.
#[derive(Debug)]
pub struct Measured {
    /// Mean cycles from creation to arrival of the packets drawn in the measured samples.
    pub latency: f64,
    /// Mean routers passed by those packets.
    pub hops: f64,
    /// Flits per node and cycle that arrived in the measured samples.
    pub accepted: f64,
    /// Length of the run in cycles, to the last credit of the last packet.
    pub cycles: u64,
    /// The mean latency stayed within [`UNSTABLE`].
    pub stable: bool,
}

#[derive(Clone, Copy)]
struct Packet {
    /// Cycle of creation; that of the push is later when the source was blocked.
    created: u64,
    hops: u32,
    recorded: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    WarmUp,
    Running,
    Draining,
}

/// Sums since the last reset.
#[derive(Default)]
struct Sums {
    since: u64,
    packets: u64,
    latency: u64,
    hops: u64,
    accepted: u64,
}

struct Experiment<'a> {
    spec: &'a FlitNetworkSpec,
    network: FlitNetwork,
    integers: Knuth<u32>,
    fractions: Knuth<f64>,
    flits: u32,
    /// Chance of a packet per node and cycle.
    chance: f64,
    /// Per node, the first cycle for which no packet was drawn.
    drawn: Vec<u64>,
    packets: Vec<Packet>,
    /// Recorded packets under way.
    open: u64,
    /// Packets under way and the sum of their creation times.
    flying: (u64, u64),
    phase: Phase,
    /// First cycle after the measured samples.
    end: u64,
    now: u64,
    last_arrival: u64,
    sums: Sums,
    out: Vec<Delivery>,
}

impl Experiment<'_> {
    /// One cycle with its traffic.
    fn step(&mut self) {
        for src in 0..self.spec.nodes() {
            // A source draws only when its queue is empty, then for every cycle it missed.
            while self.network.queued_flits(src) == 0 && self.drawn[src as usize] <= self.now {
                self.drawn[src as usize] += 1;
                if self.fractions.draw() < self.chance {
                    self.create(src, self.drawn[src as usize] - 1);
                    break;
                }
            }
        }
        self.cycle();
    }

    /// One cycle of the network.
    fn cycle(&mut self) {
        self.out.clear();
        self.network.advance(self.spec, self.now + 1, &mut self.out);
        for d in &self.out {
            self.last_arrival = d.cycle;
            let p = self.packets[d.tag as usize];
            self.open -= u64::from(p.recorded);
            self.flying.0 -= 1;
            self.flying.1 -= p.created;
            if self.phase != Phase::Draining {
                self.sums.accepted += 1;
            }
            if p.recorded || self.phase == Phase::WarmUp {
                self.sums.packets += 1;
                self.sums.latency += d.cycle - p.created;
                self.sums.hops += u64::from(p.hops);
            }
        }
        self.now += 1;
    }

    fn create(&mut self, src: u32, created: u64) {
        let dst = self.integers.draw() % self.spec.nodes();
        // The choice of a subnet, of which there is one.
        self.integers.draw();
        let recorded = match self.phase {
            Phase::WarmUp => false,
            Phase::Running => true,
            Phase::Draining => created < self.end,
        };
        let tag = self.packets.len() as u32;
        self.network.push(self.now, src, dst, self.flits, tag);
        self.packets.push(Packet {
            created,
            hops: self.spec.hops(src, dst),
            recorded,
        });
        self.open += u64::from(recorded);
        self.flying.0 += 1;
        self.flying.1 += created;
    }

    fn reset(&mut self) {
        self.sums = Sums {
            since: self.now,
            ..Sums::default()
        };
    }

    fn mean_latency(&self) -> f64 {
        self.sums.latency as f64 / self.sums.packets as f64
    }

    fn accepted(&self) -> f64 {
        let flits = (self.sums.accepted * u64::from(self.flits)) as f64;
        flits / (self.end.min(self.now) - self.sums.since) as f64 / f64::from(self.spec.nodes())
    }

    /// Those under way, as they stand, count flit by flit.
    fn is_stable(&self) -> bool {
        let flits = self.flying.0 * u64::from(self.flits);
        let age = (self.flying.0 * self.now - self.flying.1) * u64::from(self.flits);
        let sum = (self.sums.latency + age) as f64;
        sum / (self.sums.packets + flits) as f64 <= UNSTABLE
    }

    fn run(&mut self) -> bool {
        let mut before = (0.0, 0.0);
        let mut settled = 0;
        let mut reset = false;
        let mut samples = 0;
        while samples < MAX_SAMPLES && settled < SETTLED_SAMPLES {
            if reset || self.phase == Phase::WarmUp && samples % 2 == 0 {
                reset = false;
                self.reset();
            }
            for _ in 0..SAMPLE {
                self.step();
            }
            if !self.is_stable() {
                return false;
            }
            let (latency, accepted) = (self.mean_latency(), self.accepted());
            let change = |new: f64, old: f64| ((new - old) / new).abs();
            let agrees =
                change(latency, before.0) <= SETTLED && change(accepted, before.1) <= SETTLED;
            before = (latency, accepted);
            samples += 1;
            if self.phase == Phase::Running {
                settled = if agrees { settled + 1 } else { 0 };
            } else if samples == WARM_UP_SAMPLES {
                self.phase = Phase::Running;
                reset = true;
            }
        }
        self.phase = Phase::Draining;
        self.end = self.now;
        while self.open > 0 || self.drawn.iter().any(|d| *d <= self.end) {
            self.step();
            if (self.now - self.end).is_multiple_of(SAMPLE) && !self.is_stable() {
                return false;
            }
        }
        while self.network.in_flight() > 0 {
            self.cycle();
        }
        // The last packet's credit: written, on its way, read, and worked on after the router's
        // delay.
        let credit = 3 + u64::from(self.spec.params().router.credit_delay);
        self.now = self.now.max(self.last_arrival + credit);
        true
    }
}

/// Uniform traffic of packets of `flits` flits, `rate` flits per node and cycle.
pub fn uniform(spec: &FlitNetworkSpec, flits: u32, rate: f64, seed: u64) -> Measured {
    let mut experiment = Experiment {
        spec,
        network: FlitNetwork::new(spec),
        integers: Knuth::new(seed),
        fractions: Knuth::new(seed),
        flits,
        chance: rate / f64::from(flits),
        drawn: vec![0; spec.nodes() as usize],
        packets: vec![],
        open: 0,
        flying: (0, 0),
        phase: Phase::WarmUp,
        end: u64::MAX,
        now: 0,
        last_arrival: 0,
        sums: Sums::default(),
        out: vec![],
    };
    let stable = experiment.run();
    Measured {
        latency: experiment.mean_latency(),
        hops: experiment.sums.hops as f64 / experiment.sums.packets as f64,
        accepted: experiment.accepted(),
        cycles: experiment.now,
        stable,
    }
}
