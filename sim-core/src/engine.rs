//! One launch on one machine: the event loop.
//!
//! Cores and memory advance each other. Memory is always told how far the cores cannot start
//! anything new, and answers up to which core step every completion is known; the cores act in
//! steps before that. Within one core step: delivery of work-items, then the cores by index.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};
use tilesim_traces::model::{Dma, Resources, Stmt, Trace};
use tilesim_traces::{Bound, LaunchArgs, Limits, ValidTrace};

use crate::cores::{Core, CoreStats};
use crate::dispatch::Dispatcher;
use crate::error::{Deadlock, SimError};
use crate::graph::{GraphContext, TileCost};
use crate::machine::{ArraySplit, Machine, MemoryModel};
use crate::memory::Memory;
use crate::report::{self, CoreReport, Exactness, Identity, MODEL_VERSION, Report};
use crate::warp::{Jump, Situation, Warp};

/// Rows one transfer may have (after contiguous rows are joined).
const MAX_ROWS: u64 = 1 << 24;

/// No run is longer, in core cycles: what is added to a cycle number in one step stays far below
/// the rest of its range.
const MAX_TOTAL: u64 = 1 << 62;

/// How often the caller is asked whether to go on, in events.
const POLL_EVERY: u32 = 256;

/// What a launch adds to a trace and a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Launch {
    /// Grid, parameters, placement.
    pub args: LaunchArgs,
    /// Options.
    #[serde(default)]
    pub options: RunOptions,
}

/// Options of a run. All of them are part of the launch's digest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunOptions {
    /// End with [`SimError::OverBudget`] once the total is known to exceed this many core cycles.
    pub cycle_budget: Option<u64>,
    /// Limits on what the launch may ask for.
    pub limits: Limits,
    /// Most memory requests. Default 2^40.
    pub max_requests: u64,
    /// Run although tile costs were measured on another machine.
    pub allow_cost_mismatch: bool,
    /// Registers one work-item takes, for machines whose residency counts them; none: as the trace
    /// says.
    pub registers_per_item: Option<u64>,
    /// Threads one work-item takes, likewise.
    pub threads_per_item: Option<u64>,
    /// Simulate every work-item even where the run provably repeats itself.
    pub full: bool,
}

impl Default for RunOptions {
    fn default() -> Self {
        RunOptions {
            cycle_budget: None,
            limits: Limits::default(),
            max_requests: 1 << 40,
            allow_cost_mismatch: false,
            registers_per_item: None,
            threads_per_item: None,
            full: false,
        }
    }
}

impl RunOptions {
    /// What one work-item of the trace takes of a core in this run.
    pub fn resources(&self, trace: &Trace) -> Resources {
        let declared = trace.resources;
        Resources {
            registers: self.registers_per_item.unwrap_or(declared.registers),
            threads: self.threads_per_item.unwrap_or(declared.threads),
        }
    }
}

/// How far a run is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Core cycle.
    pub cycle: u64,
    /// Work-items finished.
    pub items_done: u64,
    /// Work-items in all.
    pub items: u64,
    /// Memory requests started.
    pub requests: u64,
}

/// Asked every bounded number of events whether to go on.
pub trait Watch {
    /// `Break` ends the run with [`SimError::Cancelled`].
    fn poll(&mut self, progress: &Progress) -> ControlFlow<()>;
}

/// Never stops a run.
impl Watch for () {
    fn poll(&mut self, _: &Progress) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// Simulate a launch.
///
/// # Errors
///
/// Whatever is wrong with the launch, a deadlock, an exceeded budget, or the caller's own stop.
pub fn simulate(
    machine: &Machine,
    trace: &ValidTrace,
    launch: &Launch,
    watch: &mut impl Watch,
) -> Result<Report, SimError> {
    let bound = Bound::new(trace, &launch.args, &launch.options.limits)?;
    let identity = identity(machine, &bound, &launch.options)?;
    let context = context(machine, trace, &launch.options)?;
    // Whoever states what tiles ask of units is told what became of it.
    let costs: Vec<u64> = if trace.tiles.iter().all(|t| t.admissions.is_empty()) {
        Vec::new()
    } else {
        context.tiles.iter().map(|t| t.cycles).collect()
    };
    let start = |full| {
        let mut run = Run::new(machine, &bound, context.clone(), &launch.options, full);
        for core in &mut run.cores {
            core.count_tiles(costs.len());
        }
        run
    };
    let mut run = start(launch.options.full);
    let total = if bound.items() == 0 {
        0
    } else {
        match run.run_out(&launch.options, watch) {
            // Who waits for what is told as the full run finds it.
            Err(SimError::Deadlock(_)) if run.jump.period > 0 => {
                run = start(true);
                run.run_out(&launch.options, watch)?
            }
            outcome => outcome?,
        }
    };
    let mut notes = Vec::new();
    if bound.items() == 0 {
        notes.push("the grid is empty: nothing ran".to_string());
    }
    let jump = run.jump;
    let out_of_bounds = match jump.period {
        0 => run.dispatcher.out_of_bounds(),
        _ => run.warp.as_ref().map_or(0, Warp::out_of_bounds),
    };
    if out_of_bounds > 0 {
        notes.push(format!(
            "{out_of_bounds} transfers left their tensor (bounds: off)"
        ));
    }
    let transfers = machine.memory == MemoryModel::Transfer;
    if transfers {
        notes.push(crate::memory::transfer_note());
    }
    let controllers = run.memory.dram_stats(total - jump.cycles);
    let channels = run.memory.stats().to_vec();
    let l2 = run.memory.l2_stats();
    let numa = run.memory.numa_stats();
    let cores: Vec<CoreStats> = run
        .cores
        .into_iter()
        .map(|core| core.finish(total - jump.cycles))
        .collect();
    let admitted = cores
        .iter()
        .map(|stats| report::admitted(machine, trace, &stats.tile_runs, total))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| SimError::OverCapacity {
            message: e.message,
            path: format!("units.{}", e.path),
        })?;
    let dram = report::dram(machine, &channels, controllers, l2, numa);
    notes.extend(crate::energy::uncounted(machine, &dram));
    Ok(Report {
        cycles: total,
        ns: report::nanoseconds(total, machine.clocks.core_khz),
        work_items: bound.items(),
        dram_requests: channels.iter().map(|c| c.reads + c.writes).sum(),
        exactness: match jump.period {
            _ if transfers => Exactness::TransferLevel,
            0 => Exactness::ExactFull,
            period => Exactness::ExactWarped {
                period,
                jumped: jump.items,
            },
        },
        cores: cores
            .iter()
            .zip(admitted)
            .enumerate()
            .map(|(id, (stats, admitted))| CoreReport {
                admitted,
                ..CoreReport::new(id as u32, stats, total)
            })
            .collect(),
        tiles: report::tiles(trace, &costs, &cores),
        cycle_stack: report::cycle_stack(&cores),
        energy: crate::energy::energy(machine, total, &cores, &dram),
        dram,
        out_of_bounds_transfers: out_of_bounds,
        notes,
        identity,
    })
}

/// The identity of a launch's result: what decides it, as resolved. Limits and budgets do not: they
/// only decide whether there is a result.
///
/// # Errors
///
/// The machine has no canonical form (machines that passed validation do).
pub fn identity(
    machine: &Machine,
    bound: &Bound,
    options: &RunOptions,
) -> Result<Identity, SimError> {
    let mut launch = blake3::Hasher::new();
    launch.update(bound.digest().to_string().as_bytes());
    let resources = options.resources(bound.trace());
    launch.update(&resources.registers.to_le_bytes());
    launch.update(&resources.threads.to_le_bytes());
    launch.update(&[u8::from(options.full)]);
    Ok(Identity {
        trace: bound.trace().digest().to_string(),
        machine: machine
            .digest()
            .map_err(|_| SimError::Internal("a machine without a canonical form"))?
            .to_string(),
        launch: launch.finalize().to_hex().to_string(),
        model_version: MODEL_VERSION.to_string(),
    })
}

/// What the graph builder needs, and the checks of a trace against a machine.
pub(crate) fn context(
    machine: &Machine,
    trace: &ValidTrace,
    options: &RunOptions,
) -> Result<GraphContext, SimError> {
    if !options.allow_cost_mismatch {
        check_costs(machine, trace)?;
    }
    let cycles: Vec<u64> = match &machine.cores.array_split {
        ArraySplit::None => trace.tiles.iter().map(|t| t.cycles.unwrap_or(0)).collect(),
        ArraySplit::RoundRobin { unit } => crate::units::split_tiles(
            trace
                .tiles
                .iter()
                .map(|t| (t.cycles.unwrap_or(0), t.admissions.as_slice())),
            machine.cores.systolic_arrays,
            machine.cores.vector_lanes,
            unit,
        )
        .map_err(|e| SimError::Split {
            message: e.message,
            path: format!("units.{}", e.path),
        })?,
    };
    let mut moved = vec![false; trace.buffers.len()];
    moved_buffers(&trace.body, &mut moved);
    let capacity = machine.cores.scratchpad_bytes;
    let mut buffer_bytes = Vec::with_capacity(trace.buffers.len());
    for (buffer, moved) in trace.buffers.iter().zip(&moved) {
        let bytes = buffer.bytes;
        if *moved && capacity > 0 && bytes > capacity {
            return Err(SimError::BufferTooLarge {
                name: buffer.name.clone(),
                bytes,
                capacity,
            });
        }
        buffer_bytes.push(bytes);
    }
    Ok(GraphContext {
        tiles: trace
            .tiles
            .iter()
            .zip(cycles)
            .zip(0..)
            .map(|((t, cycles), tile)| TileCost {
                cycles,
                overlap: t.overlap,
                tile,
            })
            .collect(),
        buffer_bytes,
        moved,
        buffer_names: trace.buffers.iter().map(|b| b.name.clone()).collect(),
    })
}

fn moved_buffers(body: &[Stmt], moved: &mut [bool]) {
    for stmt in body {
        match stmt {
            Stmt::For(f) => moved_buffers(&f.body, moved),
            Stmt::If(i) => {
                moved_buffers(&i.then, moved);
                moved_buffers(&i.otherwise, moved);
            }
            Stmt::Dma(Dma { reads, writes, .. }) => {
                for b in reads.iter().chain(writes) {
                    moved[b.index()] = true;
                }
            }
            Stmt::Compute(_) | Stmt::Wait(_) => {}
        }
    }
}

fn check_costs(machine: &Machine, trace: &ValidTrace) -> Result<(), SimError> {
    let Some(on) = &trace.header.measured_on else {
        return Ok(());
    };
    let c = &machine.cores;
    for (what, measured, here) in [
        ("vector lanes", on.lanes, c.vector_lanes),
        ("bits per lane", on.vector_bits, c.vector_bits),
        ("array rows", on.array_rows, c.array_rows),
        ("array columns", on.array_cols, c.array_cols),
    ] {
        if let Some(measured) = measured
            && measured != here
        {
            return Err(SimError::CostMismatch {
                measured: format!("{measured} {what}"),
                here: here.to_string(),
            });
        }
    }
    Ok(())
}

struct Run<'a> {
    machine: &'a Machine,
    cores: Vec<Core>,
    memory: Memory,
    dispatcher: Dispatcher<'a>,
    items: u64,
    items_done: u64,
    warp: Option<Warp>,
    jump: Jump,
}

impl<'a> Run<'a> {
    fn new(
        machine: &'a Machine,
        bound: &'a Bound,
        context: GraphContext,
        options: &RunOptions,
        full: bool,
    ) -> Run<'a> {
        let memory = Memory::new(machine, MAX_ROWS);
        Run {
            machine,
            cores: (0..machine.cores.count)
                .map(|id| Core::new(id, &machine.cores))
                .collect(),
            warp: if full {
                None
            } else {
                Warp::new(bound, &memory)
            },
            memory,
            dispatcher: Dispatcher::new(machine, bound, context, options),
            items: bound.items(),
            items_done: 0,
            jump: Jump::default(),
        }
    }

    /// Run until nothing is outstanding; the total in core cycles.
    fn run_out(&mut self, options: &RunOptions, watch: &mut impl Watch) -> Result<u64, SimError> {
        // Tiles of up to 2^53 cycles could add up past what a cycle number holds.
        let budget = options.cycle_budget.unwrap_or(u64::MAX).min(MAX_TOTAL);
        // Steps before this one are done.
        let mut frontier = 0u64;
        let mut events = 0u32;
        loop {
            events += 1;
            if events >= POLL_EVERY {
                events = 0;
                let progress = Progress {
                    cycle: frontier + self.jump.cycles,
                    items_done: self.items_done,
                    items: self.items,
                    requests: self.requests(),
                };
                if watch.poll(&progress).is_break() {
                    return Err(SimError::Cancelled {
                        cycle: progress.cycle,
                    });
                }
                if self.requests() > options.max_requests {
                    return Err(SimError::TooManyRequests {
                        limit: options.max_requests,
                    });
                }
            }
            let mut step = self.dispatcher.next_look();
            for core in &self.cores {
                step = step.min(core.next());
            }
            for core in 0..self.cores.len() {
                if let Some(completion) = self.memory.peek(core as u32) {
                    step = step.min(completion.step);
                }
            }
            let step = step.max(frontier);
            // What is left then (a weight slot to be freed) changes nothing any more.
            if self.items_done == self.items
                && !self.memory.is_busy()
                && self.cores.iter().all(Core::is_quiet)
                && (0..self.cores.len()).all(|core| self.memory.peek(core as u32).is_none())
            {
                break;
            }
            let safe = self.memory.safe();
            if step < safe {
                if step.saturating_add(self.jump.cycles) >= budget {
                    return Err(SimError::OverBudget { budget });
                }
                self.step(step)?;
                frontier = step + 1;
                self.look_for_recurrence(frontier);
            } else if self.memory.is_busy() {
                self.memory.advance(step.min(safe.max(frontier)));
            } else if self.items_done == self.items {
                break;
            } else {
                return Err(SimError::Deadlock(Box::new(self.deadlock(frontier))));
            }
        }
        if self.requests() > options.max_requests {
            return Err(SimError::TooManyRequests {
                limit: options.max_requests,
            });
        }
        let last = self.cores.iter().map(Core::last_active).max().unwrap_or(0);
        Ok(last + 1 + self.jump.cycles)
    }

    /// Memory requests so far, jumped ones included.
    fn requests(&self) -> u64 {
        self.memory.started() + self.jump.requests
    }

    /// Everything before core step `now` is done: jump if the state recurs.
    fn look_for_recurrence(&mut self, now: u64) {
        let Some(warp) = &mut self.warp else { return };
        if !warp.stepped(self.dispatcher.delivered()) {
            return;
        }
        let situation = Situation {
            now,
            items_done: self.items_done,
            cores: &mut self.cores,
            dispatcher: &mut self.dispatcher,
            memory: &mut self.memory,
        };
        if let Some(jump) = warp.look(situation) {
            self.items_done += jump.items_done;
            self.jump.add(&jump);
        }
    }

    fn step(&mut self, step: u64) -> Result<(), SimError> {
        if self.dispatcher.next_look() <= step {
            self.dispatcher.run(step, &mut self.cores)?;
        }
        for (id, core) in self.cores.iter_mut().enumerate() {
            let arrived = self.memory.peek(id as u32).is_some_and(|c| c.step <= step);
            if core.next() > step && !arrived {
                continue;
            }
            let outcome = core
                .step(step, &self.machine.cores, &mut self.memory)
                .map_err(|e| self.dispatcher.item_error(e))?;
            if outcome.retired {
                self.items_done += 1;
                if let Some(work) = core.reclaim() {
                    self.dispatcher.recycle(work);
                }
                self.dispatcher.wake(step);
            }
        }
        Ok(())
    }

    fn deadlock(&self, frontier: u64) -> Deadlock {
        let spec = &self.machine.cores;
        let mut blocked = Vec::new();
        for core in &self.cores {
            core.blocked(spec, 32, &mut blocked);
        }
        let residents = self.cores.iter().map(Core::residents).max().unwrap_or(0);
        let hint = if residents > 1 {
            "residents lock each other out of the scratchpad: set cores.residency to one resident \
             or to safe, or use a larger scratchpad"
        } else {
            "the work-item's buffers do not fit into the scratchpad together, or its weight slots \
             are too few: use a machine with more of either"
        };
        Deadlock {
            cycle: frontier,
            blocked,
            scratchpad: self
                .cores
                .iter()
                .map(|c| (c.spad_used(), spec.scratchpad_bytes))
                .collect(),
            weight_slots: self
                .cores
                .iter()
                .map(|c| {
                    (
                        c.weight_slots_used(),
                        spec.weight_slots * spec.systolic_arrays,
                    )
                })
                .collect(),
            waiting_items: self.dispatcher.waiting(),
            hint: hint.to_string(),
        }
    }
}
