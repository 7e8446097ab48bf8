//! Runs simulations: worker threads, the queue before them, single flight, and the result cache.
//!
//! Requests with one [`ResultKey`] that overlap in time share one *flight*. Everybody who waits for
//! a flight holds a [`Waiter`]; dropping it (the client went away, its deadline passed) leaves the
//! flight, and the last one to leave stops it. So one client's cancel never hurts another's.

use std::{
    collections::HashMap,
    ops::ControlFlow,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crossbeam::channel::{Receiver, Sender, bounded};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use tilesim_core::{Launch, MODEL_VERSION, Progress, Report, SimError, Watch, simulate};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, watch};

use crate::{
    catalog::{LoadedMachine, LoadedTrace},
    error::{Kind, ServiceError},
    ids::Tenant,
    lru::Lru,
    store::{ResultKey, Store, unix_seconds},
};

/// One simulation to run.
#[derive(Clone)]
pub struct RunRequest {
    /// On whose behalf.
    pub tenant: Tenant,
    /// What to run on.
    pub machine: Arc<LoadedMachine>,
    /// What to run.
    pub trace: Arc<LoadedTrace>,
    /// Grid, parameters, placement, options.
    pub launch: Launch,
    /// When nobody wants the result any more.
    pub deadline: Option<Instant>,
    /// Where to note how far the run is.
    pub progress: Option<Arc<RunProgress>>,
}

impl RunRequest {
    /// Digest over everything that decides the result. The cycle budget only decides whether there is
    /// one.
    pub fn key(&self) -> Result<ResultKey, ServiceError> {
        let mut launch = self.launch.clone();
        launch.options.cycle_budget = None;
        let launch = serde_json::to_vec(&launch)
            .map_err(|e| ServiceError::internal(format!("launch cannot be written down: {e}")))?;
        let mut hasher = blake3::Hasher::new();
        hasher
            .update(&self.trace.digest.0)
            .update(&self.machine.digest.0);
        hasher
            .update(&(launch.len() as u64).to_le_bytes())
            .update(&launch);
        hasher.update(MODEL_VERSION.as_bytes());
        Ok(ResultKey(*hasher.finalize().as_bytes()))
    }
}

/// How far a run is; written by the worker, read by whoever shows it.
#[derive(Debug, Default)]
pub struct RunProgress {
    /// Core cycles simulated.
    pub cycle: AtomicU64,
    /// Work-items done.
    pub items_done: AtomicU64,
    /// Work-items in all.
    pub items: AtomicU64,
}

/// What to do when the queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Refuse, with a retry delay.
    OrRefuse,
    /// Wait for room: for requests that bring many runs and bound themselves how many at once.
    OrWait,
}

/// Where a result came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Simulated for this request.
    Simulated,
    /// Simulated for an equal request that was in flight.
    Joined,
    /// Read from the result cache.
    Cached,
}

/// How a result was obtained; differs from call to call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Envelope {
    /// Where it came from.
    pub origin: Origin,
    /// Milliseconds it waited for a worker.
    pub queue_ms: f64,
    /// Milliseconds it ran.
    pub run_ms: f64,
    /// Name of the host that ran it.
    pub host: String,
    /// When it was computed, in seconds since the epoch.
    pub computed_unix_s: u64,
}

/// A result: the deterministic body, and how it was obtained.
#[derive(Clone, Debug)]
pub struct RunResult {
    /// The body.
    pub report: Arc<Report>,
    /// How it was obtained.
    pub envelope: Envelope,
}

/// What the result cache keeps.
#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum Stored {
    /// A result.
    Result(StoredResult),
    /// A run that was stopped: the total is more than so many core cycles.
    Exceeds { exceeds: u64 },
}

#[derive(Clone, Serialize, Deserialize)]
struct StoredResult {
    report: Arc<Report>,
    run_ms: f64,
    host: String,
    computed_unix_s: u64,
}

/// How much runs at once, and what is remembered.
#[derive(Clone, Debug)]
pub struct RunnerConfig {
    /// Worker threads.
    pub workers: usize,
    /// Runs that may wait for a worker.
    pub queue: usize,
    /// Bytes of results held in memory.
    pub memory_bytes: u64,
}

/// Counters since the start.
#[derive(Debug, Default)]
pub struct RunCounters {
    /// Simulations started.
    pub simulations: AtomicU64,
    /// Requests answered from the result cache.
    pub cache_hits: AtomicU64,
    /// Requests that joined an equal one in flight.
    pub joined: AtomicU64,
    /// Simulations stopped because nobody waited for them any more.
    pub cancelled: AtomicU64,
}

/// How long something took, since the start, in microseconds. Relative error at most 1 %.
#[derive(Debug)]
pub struct Durations(Mutex<Histogram<u64>>);

/// Quantiles of [`Durations`], in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quantiles {
    /// How many there were.
    pub count: u64,
    /// Half took at most this long.
    pub p50: u64,
    /// Nine of ten took at most this long.
    pub p90: u64,
    /// 99 of 100 took at most this long.
    pub p99: u64,
    /// The longest.
    pub max: u64,
}

impl Durations {
    /// Longer ones are counted as this long: a day.
    const LONGEST_US: u64 = 24 * 60 * 60 * 1_000_000;

    fn new() -> std::io::Result<Durations> {
        Histogram::new_with_bounds(1, Self::LONGEST_US, 2)
            .map(|histogram| Durations(Mutex::new(histogram)))
            .map_err(std::io::Error::other)
    }

    fn note(&self, time: Duration) {
        lock(&self.0).saturating_record(time.as_micros() as u64);
    }

    /// What has been seen so far.
    pub fn quantiles(&self) -> Quantiles {
        let histogram = lock(&self.0);
        let at = |quantile| histogram.value_at_quantile(quantile);
        Quantiles {
            count: histogram.len(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            max: histogram.max(),
        }
    }
}

type Outcome = Result<RunResult, ServiceError>;
/// Whose result.
type CacheKey = (Tenant, ResultKey);
/// Runs under different budgets are different flights.
type FlightKey = (CacheKey, Option<u64>);

struct Flight {
    /// Changed only under the lock of `Shared::flights`.
    waiters: AtomicUsize,
    cancel: AtomicBool,
    /// The latest deadline of those who wait, in microseconds since `Shared::epoch`.
    deadline_us: AtomicU64,
    outcome: watch::Sender<Option<Outcome>>,
    /// Its share of the queue; given back when it ends, or is cancelled before it began.
    room: Mutex<Option<OwnedSemaphorePermit>>,
    started: AtomicBool,
}

struct Job {
    key: FlightKey,
    flight: Arc<Flight>,
    request: RunRequest,
    queued: Instant,
}

struct Shared {
    epoch: Instant,
    host: String,
    workers: usize,
    capacity: usize,
    room: Arc<Semaphore>,
    flights: Mutex<HashMap<FlightKey, Arc<Flight>>>,
    memory: Mutex<Lru<CacheKey, Stored>>,
    store: Option<Arc<Store>>,
    counters: RunCounters,
    waits: Durations,
    runs: Durations,
    running: AtomicUsize,
    /// Running mean of the time of a run, in microseconds.
    mean_run_us: AtomicU64,
    stopping: AtomicBool,
}

/// Worker threads and what feeds them. Cheap to clone.
#[derive(Clone)]
pub struct Runner {
    shared: Arc<Shared>,
    pool: Arc<Pool>,
}

struct Pool {
    shared: Arc<Shared>,
    jobs: Option<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every critical section leaves its data whole, so that a poisoned lock is still good.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Runner {
    /// Starts the worker threads. Without a store, results are remembered in memory only.
    pub fn start(config: &RunnerConfig, store: Option<Arc<Store>>) -> std::io::Result<Self> {
        let capacity = config.workers + config.queue;
        let shared = Arc::new(Shared {
            epoch: Instant::now(),
            host: host_name(),
            workers: config.workers,
            capacity,
            room: Arc::new(Semaphore::new(capacity)),
            flights: Mutex::default(),
            memory: Mutex::new(Lru::new(config.memory_bytes)),
            store,
            counters: RunCounters::default(),
            waits: Durations::new()?,
            runs: Durations::new()?,
            running: AtomicUsize::new(0),
            mean_run_us: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
        });
        // Runs that were cancelled while they waited have given their room back but still stand in
        // the channel until a worker throws them away: hence the slack.
        let (jobs, receiver) = bounded(4 * capacity);
        let mut pool = Pool {
            shared: Arc::clone(&shared),
            jobs: Some(jobs),
            threads: Vec::new(),
        };
        for index in 0..config.workers {
            let (shared, receiver) = (Arc::clone(&shared), receiver.clone());
            pool.threads.push(
                std::thread::Builder::new()
                    .name(format!("tilesim-worker-{index}"))
                    .spawn(move || shared.work(&receiver))?,
            );
        }
        Ok(Self {
            shared,
            pool: Arc::new(pool),
        })
    }

    /// Worker threads.
    pub fn workers(&self) -> usize {
        self.shared.workers
    }

    /// Counters since the start.
    pub fn counters(&self) -> &RunCounters {
        &self.shared.counters
    }

    /// How long simulations waited for a worker, since the start.
    pub fn waits(&self) -> Quantiles {
        self.shared.waits.quantiles()
    }

    /// How long simulations that came to their end ran, since the start.
    pub fn runs(&self) -> Quantiles {
        self.shared.runs.quantiles()
    }

    /// Simulations that run now.
    pub fn running(&self) -> usize {
        self.shared.running.load(Ordering::Relaxed)
    }

    /// Simulations that wait for a worker now.
    pub fn queued(&self) -> usize {
        let admitted = self
            .shared
            .capacity
            .saturating_sub(self.shared.room.available_permits());
        admitted.saturating_sub(self.running())
    }

    /// Stops every run, now and from now on.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
    }

    /// Runs one simulation, or finds its result. Dropping the future leaves the run.
    pub async fn run(&self, request: RunRequest, admission: Admission) -> Outcome {
        match request.deadline {
            None => self.run_without_deadline(request, admission).await,
            Some(deadline) => {
                let run = self.run_without_deadline(request, admission);
                tokio::time::timeout_at(deadline.into(), run)
                    .await
                    .unwrap_or_else(|_| Err(ServiceError::deadline()))
            }
        }
    }

    async fn run_without_deadline(&self, request: RunRequest, admission: Admission) -> Outcome {
        let cache_key = (request.tenant.clone(), request.key()?);
        let budget = request.launch.options.cycle_budget;
        if let Some(outcome) = self.shared.remembered(&cache_key, budget) {
            return outcome;
        }
        let key = (cache_key, budget);
        if let Some(waiter) = self.shared.join(&key, request.deadline) {
            return waiter.outcome().await;
        }
        if let Some(outcome) = self.shared.stored(&key.0, budget).await? {
            return outcome;
        }
        let room = Arc::clone(&self.shared.room);
        let permit = match admission {
            Admission::OrWait => room
                .acquire_owned()
                .await
                .map_err(|_| TryAcquireError::Closed),
            Admission::OrRefuse => room.try_acquire_owned(),
        };
        let permit = permit.map_err(|_| self.shared.queue_full())?;
        let waiter = self
            .shared
            .join_or_start(key, request, permit, &self.pool)?;
        waiter.outcome().await
    }
}

impl Runner {
    /// The result of an equal earlier request, if it is remembered; a budget plays no part.
    pub async fn recall(&self, request: &RunRequest) -> Result<Option<RunResult>, ServiceError> {
        let key = (request.tenant.clone(), request.key()?);
        let found = match self.shared.remembered(&key, None) {
            Some(found) => Some(found),
            None => self.shared.stored(&key, None).await?,
        };
        found.transpose()
    }

    /// Remembers that the run of this request was stopped, its total being more than `cycles`.
    pub fn note_exceeded(&self, request: &RunRequest, cycles: u64) -> Result<(), ServiceError> {
        let key = (request.tenant.clone(), request.key()?);
        self.shared.note_exceeded(&key, cycles);
        Ok(())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.jobs.take();
        for thread in self.threads.drain(..) {
            // A worker catches panics of a run; one that ended otherwise has nothing left to do.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// What is remembered, as the outcome of a request with this budget.
    fn remembered(&self, key: &CacheKey, budget: Option<u64>) -> Option<Outcome> {
        let hit = lock(&self.memory).get(key)?;
        let over = |cycles| Err(ServiceError::from(SimError::OverBudget { budget: cycles }));
        let outcome = match (hit, budget) {
            (Stored::Result(hit), budget) => match budget {
                Some(budget) if hit.report.cycles > budget => over(budget),
                _ => Ok(RunResult {
                    report: hit.report,
                    envelope: Envelope {
                        origin: Origin::Cached,
                        queue_ms: 0.0,
                        run_ms: hit.run_ms,
                        host: hit.host,
                        computed_unix_s: hit.computed_unix_s,
                    },
                }),
            },
            (Stored::Exceeds { exceeds }, Some(budget)) if budget <= exceeds => over(budget),
            (Stored::Exceeds { .. }, _) => return None,
        };
        self.counters.cache_hits.fetch_add(1, Ordering::Relaxed);
        Some(outcome)
    }

    /// As [`Shared::remembered`], from the store.
    async fn stored(
        &self,
        key: &CacheKey,
        budget: Option<u64>,
    ) -> Result<Option<Outcome>, ServiceError> {
        let Some(store) = self.store.clone() else {
            return Ok(None);
        };
        let (tenant, result_key) = key.clone();
        let read = move || -> Result<_, ServiceError> {
            let Some(bytes) = store.result(&tenant, &result_key)? else {
                return Ok(None);
            };
            // A result of another build that this one cannot read is as good as none.
            Ok(serde_json::from_slice::<Stored>(&bytes)
                .ok()
                .map(|r| (r, bytes.len())))
        };
        let found = tokio::task::spawn_blocking(read)
            .await
            .map_err(|e| ServiceError::internal(format!("reading a result failed: {e}")))??;
        let Some((stored, weight)) = found else {
            return Ok(None);
        };
        self.remember(key, stored, weight);
        Ok(self.remembered(key, budget))
    }

    /// Keeps what is known in memory, unless more is known already; whether it was kept.
    fn remember(&self, key: &CacheKey, stored: Stored, bytes: usize) -> bool {
        let mut memory = lock(&self.memory);
        if let Stored::Exceeds { exceeds: new } = stored {
            match memory.get(key) {
                Some(Stored::Result(_)) => return false,
                Some(Stored::Exceeds { exceeds }) if exceeds >= new => return false,
                _ => {}
            }
        }
        memory.insert(key.clone(), stored, bytes as u64 + 256);
        true
    }

    fn note_exceeded(&self, key: &CacheKey, cycles: u64) {
        let stored = Stored::Exceeds { exceeds: cycles };
        let bytes = serde_json::to_vec(&stored).unwrap_or_default();
        if self.remember(key, stored, bytes.len())
            && let Some(store) = &self.store
        {
            store.put_result(&key.0, key.1, bytes);
        }
    }

    fn join(self: &Arc<Self>, key: &FlightKey, deadline: Option<Instant>) -> Option<Waiter> {
        let flights = lock(&self.flights);
        let flight = Arc::clone(flights.get(key)?);
        flight.waiters.fetch_add(1, Ordering::Relaxed);
        flight
            .deadline_us
            .fetch_max(self.micros(deadline), Ordering::Relaxed);
        self.counters.joined.fetch_add(1, Ordering::Relaxed);
        let outcome = flight.outcome.subscribe();
        Some(Waiter {
            shared: Arc::clone(self),
            key: key.clone(),
            flight,
            outcome,
            joined: true,
        })
    }

    fn join_or_start(
        self: &Arc<Self>,
        key: FlightKey,
        request: RunRequest,
        permit: OwnedSemaphorePermit,
        pool: &Pool,
    ) -> Result<Waiter, ServiceError> {
        if let Some(waiter) = self.join(&key, request.deadline) {
            return Ok(waiter);
        }
        let (sender, outcome) = watch::channel(None);
        let flight = Arc::new(Flight {
            waiters: AtomicUsize::new(1),
            cancel: AtomicBool::new(false),
            deadline_us: AtomicU64::new(self.micros(request.deadline)),
            outcome: sender,
            room: Mutex::new(Some(permit)),
            started: AtomicBool::new(false),
        });
        let waiter = {
            let mut flights = lock(&self.flights);
            if flights.contains_key(&key) {
                // Somebody was faster between the two locks.
                drop(flights);
                return self.join_or_start_again(key, request, &flight, pool);
            }
            flights.insert(key.clone(), Arc::clone(&flight));
            Waiter {
                shared: Arc::clone(self),
                key: key.clone(),
                flight: Arc::clone(&flight),
                outcome,
                joined: false,
            }
        };
        let job = Job {
            key,
            flight,
            request,
            queued: Instant::now(),
        };
        match &pool.jobs {
            Some(jobs) if jobs.try_send(job).is_ok() => Ok(waiter),
            // Dropping the waiter takes the flight out again.
            _ => Err(self.queue_full()),
        }
    }

    fn join_or_start_again(
        self: &Arc<Self>,
        key: FlightKey,
        request: RunRequest,
        unused: &Flight,
        pool: &Pool,
    ) -> Result<Waiter, ServiceError> {
        match lock(&unused.room).take() {
            Some(permit) => self.join_or_start(key, request, permit, pool),
            None => Err(self.queue_full()),
        }
    }

    fn queue_full(&self) -> ServiceError {
        let waiting = self.capacity as u64 / self.workers.max(1) as u64;
        let mean = self.mean_run_us.load(Ordering::Relaxed).max(1_000);
        let delay = Duration::from_micros(mean.saturating_mul(waiting.max(1)))
            .clamp(Duration::from_millis(100), Duration::from_secs(30));
        ServiceError::new(
            Kind::Exhausted,
            "server.queue_full",
            "",
            format!(
                "all {} workers are busy and the queue is full",
                self.workers
            ),
        )
        .hint(format!("try again in {:.1} s", delay.as_secs_f64()))
        .retry_after(delay)
    }

    fn micros(&self, deadline: Option<Instant>) -> u64 {
        deadline.map_or(u64::MAX, |d| {
            d.saturating_duration_since(self.epoch).as_micros() as u64
        })
    }

    fn work(&self, jobs: &Receiver<Job>) {
        for job in jobs {
            let outcome = self.execute(&job);
            self.finish(&job, outcome);
        }
    }

    fn execute(&self, job: &Job) -> Outcome {
        let Job {
            flight, request, ..
        } = job;
        flight.started.store(true, Ordering::Relaxed);
        if self.stopping.load(Ordering::Relaxed) {
            return Err(ServiceError::shutting_down());
        }
        if flight.cancel.load(Ordering::Relaxed) {
            return Err(ServiceError::cancelled());
        }
        let waited = job.queued.elapsed();
        self.waits.note(waited);
        self.counters.simulations.fetch_add(1, Ordering::Relaxed);
        self.running.fetch_add(1, Ordering::Relaxed);
        let begin = Instant::now();
        let mut watch = FlightWatch {
            shared: self,
            flight,
            progress: request.progress.as_deref(),
            why: None,
        };
        let run = catch_unwind(AssertUnwindSafe(|| {
            simulate(
                &request.machine.machine,
                &request.trace.trace,
                &request.launch,
                &mut watch,
            )
        }));
        let why = watch.why;
        let elapsed = begin.elapsed();
        self.running.fetch_sub(1, Ordering::Relaxed);
        match run {
            Ok(Ok(report)) => {
                self.note_run_time(elapsed);
                Ok(self.keep(job, report, millis(waited), millis(elapsed)))
            }
            Ok(Err(SimError::Cancelled { .. })) => {
                self.counters.cancelled.fetch_add(1, Ordering::Relaxed);
                Err(why.unwrap_or_else(ServiceError::cancelled))
            }
            Ok(Err(error)) => {
                if let SimError::OverBudget { budget } = error {
                    self.note_exceeded(&job.key.0, budget);
                }
                Err(error.into())
            }
            Err(_) => {
                tracing::error!(trace = %request.trace.digest, machine = %request.machine.digest,
                    launch = ?request.launch.args, "a simulation panicked");
                Err(ServiceError::internal("the simulation failed unexpectedly"))
            }
        }
    }

    fn keep(&self, job: &Job, report: Report, queue_ms: f64, run_ms: f64) -> RunResult {
        let computed_unix_s = unix_seconds();
        let host = self.host.clone();
        let report = Arc::new(report);
        let stored = Stored::Result(StoredResult {
            report: Arc::clone(&report),
            run_ms,
            host: host.clone(),
            computed_unix_s,
        });
        let bytes = serde_json::to_vec(&stored).unwrap_or_default();
        let key = &job.key.0;
        self.remember(key, stored, bytes.len());
        if let Some(store) = &self.store {
            store.put_result(&key.0, key.1, bytes);
        }
        let origin = Origin::Simulated;
        RunResult {
            report,
            envelope: Envelope {
                origin,
                queue_ms,
                run_ms,
                host,
                computed_unix_s,
            },
        }
    }

    fn finish(&self, job: &Job, outcome: Outcome) {
        {
            let mut flights = lock(&self.flights);
            if flights
                .get(&job.key)
                .is_some_and(|f| Arc::ptr_eq(f, &job.flight))
            {
                flights.remove(&job.key);
            }
        }
        lock(&job.flight.room).take();
        job.flight.outcome.send_replace(Some(outcome));
    }

    fn note_run_time(&self, elapsed: Duration) {
        self.runs.note(elapsed);
        let new = elapsed.as_micros() as u64;
        let old = self.mean_run_us.load(Ordering::Relaxed);
        // Racing updates lose one sample, which a mean can bear.
        let mean = if old == 0 {
            new
        } else {
            old - old / 8 + new / 8
        };
        self.mean_run_us.store(mean, Ordering::Relaxed);
    }
}

/// Somebody who waits for a flight.
struct Waiter {
    shared: Arc<Shared>,
    key: FlightKey,
    flight: Arc<Flight>,
    outcome: watch::Receiver<Option<Outcome>>,
    joined: bool,
}

impl Waiter {
    async fn outcome(mut self) -> Outcome {
        let outcome = match self.outcome.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone(),
            Err(_) => None,
        };
        let mut outcome =
            outcome.unwrap_or_else(|| Err(ServiceError::internal("a worker ended unexpectedly")));
        if let (true, Ok(result)) = (self.joined, &mut outcome) {
            result.envelope.origin = Origin::Joined;
        }
        outcome
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut flights = lock(&self.shared.flights);
        if self.flight.waiters.fetch_sub(1, Ordering::Relaxed) > 1 {
            return;
        }
        if flights
            .get(&self.key)
            .is_some_and(|f| Arc::ptr_eq(f, &self.flight))
        {
            // Nobody can join it any more: an equal request starts afresh.
            flights.remove(&self.key);
        }
        drop(flights);
        self.flight.cancel.store(true, Ordering::Relaxed);
        if !self.flight.started.load(Ordering::Relaxed) {
            lock(&self.flight.room).take();
        }
    }
}

/// What the engine asks, every bounded number of events, whether to go on.
struct FlightWatch<'a> {
    shared: &'a Shared,
    flight: &'a Flight,
    progress: Option<&'a RunProgress>,
    why: Option<ServiceError>,
}

impl Watch for FlightWatch<'_> {
    fn poll(&mut self, progress: &Progress) -> ControlFlow<()> {
        if let Some(shown) = self.progress {
            shown.cycle.store(progress.cycle, Ordering::Relaxed);
            shown
                .items_done
                .store(progress.items_done, Ordering::Relaxed);
            shown.items.store(progress.items, Ordering::Relaxed);
        }
        let why = if self.flight.cancel.load(Ordering::Relaxed) {
            ServiceError::cancelled()
        } else if self.shared.stopping.load(Ordering::Relaxed) {
            ServiceError::shutting_down()
        } else {
            let deadline = self.flight.deadline_us.load(Ordering::Relaxed);
            if (self.shared.epoch.elapsed().as_micros() as u64) < deadline {
                return ControlFlow::Continue(());
            }
            ServiceError::deadline()
        };
        self.why = Some(why);
        ControlFlow::Break(())
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "unknown".to_owned(),
        name => name.to_owned(),
    }
}
