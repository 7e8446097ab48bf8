//! Simulated times of all configurations, and what their order is worth.

use std::{
    collections::BTreeMap,
    num::NonZeroUsize,
    sync::atomic::{AtomicUsize, Ordering},
};

use tilesim_core::{SimError, machine::Machine};

use crate::{
    data::{DataError, Entry, Shape},
    kernel::{self, Constants},
    naive,
    score::{self, Score},
};

/// Why a configuration has no simulated time.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Failure {
    /// Its costs are not known.
    #[error(transparent)]
    Unmeasured(#[from] DataError),
    /// It does not run on the machine.
    #[error(transparent)]
    Simulation(#[from] SimError),
    /// A bug.
    #[error("the simulation panicked")]
    Panicked,
}

/// Threads at once, at most: more than any machine has processors.
const MOST_THREADS: usize = 1024;

/// A simulated time in microseconds.
pub type Prediction = Result<f64, Failure>;

/// Model and machine that give simulated times.
#[derive(Clone, Debug)]
pub struct Model {
    /// The machine.
    pub machine: Machine,
    /// What costs are made with.
    pub constants: Constants,
}

impl Model {
    /// Microseconds of one launch.
    ///
    /// # Errors
    ///
    /// Unknown costs, or a launch that the machine cannot run.
    pub fn time_us(&self, entry: &Entry, size: [u64; 3]) -> Prediction {
        let measured = entry.measured.as_ref().map_err(Clone::clone)?;
        let (trace, launch) = kernel::launch(measured, size, &self.machine, &self.constants)
            .map_err(SimError::from)?;
        let report = tilesim_core::simulate(&self.machine, &trace, &launch, &mut ())?;
        let mhz = self.machine.clocks.core_khz as f64 / 1e3;
        Ok(report.cycles as f64 / mhz + self.constants.launch_us)
    }

    /// Simulates each configuration on each shape that it was measured on, `threads` at a time; by
    /// shape, then by configuration. `done` is called after each.
    pub fn times_us(
        &self,
        configs: &[Entry],
        shapes: &[Shape],
        threads: NonZeroUsize,
        done: &(dyn Fn() + Sync),
    ) -> Vec<BTreeMap<usize, Prediction>> {
        let mut jobs: Vec<(usize, usize)> = shapes
            .iter()
            .enumerate()
            .flat_map(|(s, shape)| measured(shape).map(move |(c, _)| (s, c)))
            .filter(|&(_, c)| c < configs.len())
            .collect();
        // The longest first, so that no thread is left alone with one at the end.
        jobs.sort_by_key(|&(s, c)| std::cmp::Reverse(steps(&configs[c], &shapes[s])));
        let next = AtomicUsize::new(0);
        let work = || {
            let mut out = Vec::new();
            while let Some(&(s, c)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                // One that panics fails alone.
                let simulate = || self.time_us(&configs[c], shapes[s].size);
                let time = std::panic::catch_unwind(std::panic::AssertUnwindSafe(simulate));
                out.push((s, c, time.unwrap_or(Err(Failure::Panicked))));
                done();
            }
            out
        };
        let mut all = vec![BTreeMap::new(); shapes.len()];
        std::thread::scope(|scope| {
            let threads = threads.get().min(jobs.len()).min(MOST_THREADS);
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            for (s, c, time) in threads
                .into_iter()
                .flat_map(|t| t.join().unwrap_or_default())
            {
                all[s].insert(c, time);
            }
        });
        all
    }
}

/// K steps of all programs: what a simulation costs, roughly.
fn steps(entry: &Entry, shape: &Shape) -> u64 {
    let ([m, n, k], config) = (shape.size, entry.config);
    let programs = m.div_ceil(config.bm) * n.div_ceil(config.bn);
    programs.saturating_mul(k.div_ceil(config.bk))
}

fn measured(shape: &Shape) -> impl Iterator<Item = (usize, f64)> {
    let times = shape.time_us.iter().enumerate();
    times.filter_map(|(c, time)| Some((c, (*time)?)))
}

/// A configuration in an order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    /// Its index.
    pub config: usize,
    /// Its measured time in microseconds.
    pub measured_us: f64,
    /// Its time by the model, infinite if that failed.
    pub predicted_us: f64,
}

/// What a model's order of a shape's configurations is worth.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranking {
    /// How well it agrees with the measured one.
    pub score: Score,
    /// By ascending time of the model. Configurations without a measured time have no place.
    pub places: Vec<Place>,
}

impl Ranking {
    /// From the times of the simulation.
    pub fn simulated(shape: &Shape, times: &BTreeMap<usize, Prediction>) -> Ranking {
        let time = |c: usize| times.get(&c)?.as_ref().ok().copied();
        Ranking::by(shape, |c| time(c).unwrap_or(f64::INFINITY))
    }

    /// From the naive model.
    pub fn naive(shape: &Shape, configs: &[Entry], machine: &Machine) -> Ranking {
        Ranking::by(shape, |c| match configs.get(c).map(|e| &e.measured) {
            Some(Ok(measured)) => naive::time_us(measured, shape, machine),
            _ => f64::INFINITY,
        })
    }

    fn by(shape: &Shape, predicted: impl Fn(usize) -> f64) -> Ranking {
        let all: Vec<Place> = measured(shape)
            .map(|(config, measured_us)| Place {
                config,
                measured_us,
                predicted_us: predicted(config),
            })
            .collect();
        let predicted: Vec<f64> = all.iter().map(|p| p.predicted_us).collect();
        let measured: Vec<f64> = all.iter().map(|p| p.measured_us).collect();
        Ranking {
            score: Score::of(&predicted, &measured),
            places: score::order(&predicted)
                .into_iter()
                .map(|i| all[i])
                .collect(),
        }
    }

    /// The configuration to take by this order, if any did not fail.
    pub fn pick(&self) -> Option<&Place> {
        self.places.first().filter(|p| p.predicted_us.is_finite())
    }

    /// The configuration measured fastest.
    pub fn best(&self) -> Option<&Place> {
        let key = |p: &&Place| (p.measured_us, p.config);
        let less = |a: &&Place, b: &&Place| {
            let (a, b) = (key(a), key(b));
            a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))
        };
        self.places.iter().min_by(less)
    }
}
