//! Random small programs on random small machines, as a proptest strategy.
//!
//! A [`Recipe`] is plain numbers; [`Recipe::case`] makes a trace, a launch and a machine of it and
//! repairs what would be illegal (waits before reads, a user for every preload), so that a recipe
//! with any step removed or any number made smaller is still a case: it shrinks well. About one case
//! in twenty carries a [`Flaw`] and must be refused; tight scratchpads make some deadlock.
//!
//! [`Recipe::odd`] allows what no reference figure covers (see `twin-notes`): preloads without
//! users, matmuls without a preload or with several, transfers of no element, loads that read and ops
//! that write several buffers.

#![allow(dead_code)]

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use tilesim_core::machine::{
    ArraySplit, ChannelMap, Clocks, ComputeIssue, CoreSpec, DispatchPolicy, DramConfig, DramModel,
    Machine, NocSpec, NumaSpec, ReplyPort, Residency,
};
use tilesim_traces::LaunchArgs;
use tilesim_traces::model::*;

/// What a simulator needs for one run.
#[derive(Clone, Debug)]
pub struct Case {
    pub trace: Trace,
    pub args: LaunchArgs,
    pub machine: Machine,
}

/// A deliberate mistake: the case must be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The first wait that a read needs is left out.
    ReadBeforeWait,
    /// The first wait expects one element too many.
    WrongCount,
    /// A wait on a semaphore that nothing uses.
    NobodySignals,
    /// Open batches at the end of the body stay open.
    NeverWaited,
}

/// A transfer's dims, offset and mask, as small numbers.
#[derive(Clone, Debug)]
pub struct Shape {
    pub offset: i16,
    pub step: u8,
    pub bits: u8,
    /// (extent, kind of stride), innermost first.
    pub dims: Vec<(u8, u8)>,
    /// Mask of the innermost dimension: valid elements fall by this much per program id.
    pub mask: Option<u8>,
    pub indices: Option<Vec<i16>>,
    pub lines: Option<(u8, u8)>,
}

/// One step of a program.
#[derive(Clone, Debug)]
pub enum Step {
    Load {
        tensor: u8,
        buffers: Vec<u8>,
        shape: Shape,
        semaphore: Option<u8>,
        reads: Option<u8>,
    },
    Store {
        tensor: u8,
        buffers: Vec<u8>,
        shape: Shape,
        semaphore: Option<u8>,
    },
    Compute {
        cross_lane: bool,
        tile: u8,
        reads: Vec<u8>,
        writes: Vec<u8>,
    },
    Preload {
        tile: u8,
        weights: u8,
        reads: Vec<u8>,
    },
    Matmul {
        tile: u8,
        weights: u8,
        out: u8,
        reads: Vec<u8>,
        reads_out: bool,
    },
    Wait {
        semaphore: u8,
    },
    Loop {
        count: u8,
        steps: Vec<Step>,
    },
    If {
        cond: u8,
        then: Vec<Step>,
        otherwise: Vec<Step>,
    },
}

/// The numbers of a machine.
#[derive(Clone, Debug)]
pub struct MachineRecipe {
    pub cores: u8,
    pub arrays: u8,
    pub weight_slots: u8,
    /// Scratchpad in eighths of the buffers' bytes; 0: unlimited.
    pub scratchpad: u8,
    pub clocks: [u8; 3],
    pub truncate: bool,
    pub channels: u8,
    pub ipoly: bool,
    pub ports: u8,
    pub request_bytes: u8,
    pub bandwidth: Option<u8>,
    pub dram_latency: u8,
    pub noc_latency: u8,
    pub residents: u8,
    pub per_unit: bool,
    pub dynamic: bool,
    /// Where the channels can be divided: log2 of a partition's bytes, and the cores' homes.
    pub numa: Option<(u8, [u8; 3])>,
}

/// The numbers of a case.
#[derive(Clone, Debug)]
pub struct Recipe {
    pub grid: Vec<u8>,
    pub order: u8,
    pub keyed: bool,
    /// Sizes of the data buffers.
    pub buffers: Vec<u8>,
    /// Virtual buffers for weights.
    pub weights: u8,
    pub tiles: Vec<(u8, u8)>,
    pub tensors: Vec<u8>,
    pub steps: Vec<Step>,
    pub flaw: Option<Flaw>,
    pub odd: bool,
    pub machine: MachineRecipe,
}

fn shape() -> impl Strategy<Value = Shape> {
    (
        -64i16..512,
        0u8..6,
        0u8..8,
        vec((0u8..49, 0u8..8), 0..4),
        option::weighted(0.2, 0u8..12),
        option::weighted(0.08, vec(-300i16..300, 1..5)),
        option::weighted(0.05, (0u8..20, 1u8..200)),
    )
        .prop_map(|(offset, step, bits, dims, mask, indices, lines)| Shape {
            offset,
            step,
            bits,
            dims,
            mask,
            indices,
            lines,
        })
}

fn leaf() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (any::<u8>(), vec(any::<u8>(), 1..3), shape(), option::weighted(0.6, 0u8..3),
              option::weighted(0.1, any::<u8>()))
            .prop_map(|(tensor, buffers, shape, semaphore, reads)| {
                Step::Load { tensor, buffers, shape, semaphore, reads }
            }),
        2 => (any::<u8>(), vec(any::<u8>(), 1..3), shape(), option::weighted(0.3, 0u8..3))
            .prop_map(|(tensor, buffers, shape, semaphore)| {
                Step::Store { tensor, buffers, shape, semaphore }
            }),
        4 => (any::<bool>(), any::<u8>(), vec(any::<u8>(), 0..4), vec(any::<u8>(), 0..3))
            .prop_map(|(cross_lane, tile, reads, writes)| {
                Step::Compute { cross_lane, tile, reads, writes }
            }),
        2 => (any::<u8>(), any::<u8>(), vec(any::<u8>(), 0..3))
            .prop_map(|(tile, weights, reads)| Step::Preload { tile, weights, reads }),
        4 => (any::<u8>(), any::<u8>(), any::<u8>(), vec(any::<u8>(), 0..3), any::<bool>())
            .prop_map(|(tile, weights, out, reads, reads_out)| {
                Step::Matmul { tile, weights, out, reads, reads_out }
            }),
        2 => (0u8..3).prop_map(|semaphore| Step::Wait { semaphore }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => leaf(),
        1 => (0u8..4, vec(leaf(), 1..6)).prop_map(|(count, steps)| Step::Loop { count, steps }),
        1 => (any::<u8>(), vec(leaf(), 0..4), vec(leaf(), 0..4))
            .prop_map(|(cond, then, otherwise)| Step::If { cond, then, otherwise }),
    ]
}

fn machine() -> impl Strategy<Value = MachineRecipe> {
    (
        (
            1u8..4,
            1u8..5,
            1u8..4,
            prop_oneof![1 => Just(0u8), 6 => 4u8..40],
            [0u8..6, 0u8..6, 0u8..6],
        ),
        (any::<bool>(), 1u8..33, any::<bool>(), 1u8..17, 0u8..4),
        (
            option::weighted(0.6, any::<u8>()),
            1u8..101,
            0u8..20,
            1u8..5,
            any::<bool>(),
        ),
        proptest::bool::weighted(0.2),
        option::weighted(0.2, (12u8..16, any::<[u8; 3]>())),
    )
        .prop_map(|(a, b, c, dynamic, numa)| MachineRecipe {
            cores: a.0,
            arrays: a.1,
            weight_slots: a.2,
            scratchpad: a.3,
            clocks: a.4,
            truncate: b.0,
            channels: b.1,
            ipoly: b.2,
            ports: b.3,
            request_bytes: b.4,
            bandwidth: c.0,
            dram_latency: c.1,
            noc_latency: c.2,
            residents: c.3,
            per_unit: c.4,
            dynamic,
            numa,
        })
}

/// Random recipes; `odd` ones only if `allow_odd`.
pub fn recipes(allow_odd: bool) -> impl Strategy<Value = Recipe> {
    let flaw = prop_oneof![
        Just(Flaw::ReadBeforeWait),
        Just(Flaw::WrongCount),
        Just(Flaw::NobodySignals),
        Just(Flaw::NeverWaited)
    ];
    (
        (vec(1u8..5, 1..4), 0u8..6, proptest::bool::weighted(0.1)),
        (
            vec(any::<u8>(), 2..7),
            1u8..4,
            vec(any::<(u8, u8)>(), 2..7),
            vec(any::<u8>(), 1..4),
        ),
        vec(step(), 1..16),
        option::weighted(0.05, flaw),
        proptest::bool::weighted(if allow_odd { 0.25 } else { 0.0 }),
        machine(),
    )
        .prop_map(|(a, b, steps, flaw, odd, machine)| Recipe {
            grid: a.0,
            order: a.1,
            keyed: a.2,
            buffers: b.0,
            weights: b.1,
            tiles: b.2,
            tensors: b.3,
            steps,
            flaw,
            odd,
            machine,
        })
}

/// Random cases. They shrink through their recipe.
pub fn cases(allow_odd: bool) -> impl Strategy<Value = Case> {
    recipes(allow_odd).prop_map(|recipe| recipe.case())
}

/// Case number `seed` of a fixed sequence: the same on every machine.
pub fn case(seed: u64, allow_odd: bool) -> Case {
    recipe(seed, allow_odd).case()
}

/// The recipe of [`case`].
pub fn recipe(seed: u64, allow_odd: bool) -> Recipe {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
    let mut bytes = [0u8; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    recipes(allow_odd)
        .new_tree(&mut runner)
        .map(|tree| tree.current())
        .unwrap()
}

impl Recipe {
    /// The case it describes.
    pub fn case(&self) -> Case {
        // At most 20 work-items.
        let mut grid: Vec<u64> = self.grid.iter().map(|n| u64::from(*n)).collect();
        while grid.iter().product::<u64>() > 20 {
            let largest = (0..grid.len()).max_by_key(|i| grid[*i]).unwrap();
            grid[largest] -= 1;
        }
        let trace = Builder::new(self, grid.len()).build();
        let machine = self.machine(&trace);
        let args = LaunchArgs {
            grid,
            ..LaunchArgs::default()
        };
        Case {
            trace,
            args,
            machine,
        }
    }

    fn machine(&self, trace: &Trace) -> Machine {
        const KHZ: [u64; 6] = [940_000, 700_000, 1_300_000, 1_000_000, 333_333, 2_001_500];
        let r = &self.machine;
        let total: u64 = trace.buffers.iter().map(|b| b.bytes).sum();
        let largest = trace.buffers.iter().map(|b| b.bytes).max().unwrap_or(0);
        let scratchpad = match r.scratchpad {
            0 => 0,
            n => (total * u64::from(n) / 8).max(largest).max(64),
        };
        Machine {
            name: "random".into(),
            clocks: Clocks {
                core_khz: KHZ[r.clocks[0] as usize],
                noc_khz: KHZ[r.clocks[1] as usize],
                dram_khz: KHZ[r.clocks[2] as usize],
                truncate_to_ps: r.truncate,
            },
            cores: CoreSpec {
                count: r.cores.into(),
                partition: vec![0; r.cores.into()],
                systolic_arrays: r.arrays.into(),
                array_rows: 8,
                array_cols: 8,
                weight_slots: r.weight_slots.into(),
                vector_lanes: 8,
                vector_bits: 256,
                scratchpad_bytes: scratchpad,
                compute_issue: match r.per_unit {
                    true => ComputeIssue::PerUnit,
                    false => ComputeIssue::Serial,
                },
                array_split: ArraySplit::None,
                residency: Residency::Shared {
                    max: r.residents.into(),
                },
                injection_ports: r.ports.into(),
            },
            noc: NocSpec::Simple {
                latency: r.noc_latency.into(),
            },
            l2: None,
            dram: DramConfig {
                channels: r.channels.into(),
                request_bytes: [32, 64, 32, 16][r.request_bytes as usize],
                reply_port: ReplyPort::Channel,
                numa: r.numa.and_then(|(log2, homes)| {
                    let partitions = (2..=4).find(|p| r.channels.is_multiple_of(*p))?;
                    Some(NumaSpec {
                        partitions: partitions.into(),
                        partition_bytes: 1 << log2,
                        home: (0..r.cores)
                            .map(|core| (homes[usize::from(core) % 3] % partitions).into())
                            .collect(),
                    })
                }),
                channel_map: if r.ipoly {
                    ChannelMap::Ipoly
                } else {
                    ChannelMap::Interleave
                },
                model: DramModel::Simple {
                    latency: r.dram_latency.into(),
                    bytes_per_cycle: r.bandwidth.map(|b| 3.0 + f64::from(b) * 0.37),
                },
            },
            memory: Default::default(),
            energy: None,
            dispatch: match r.dynamic {
                true => DispatchPolicy::Dynamic,
                false => DispatchPolicy::RoundRobin,
            },
        }
    }
}

/// Who wrote a buffer last, as far as legality goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    Settled,
    /// An async load on this semaphore that has not been waited for.
    Pending(u8),
    /// A preload; true once a matmul uses it.
    Preload(bool),
}

/// Builds the body and keeps it legal.
struct Builder<'a> {
    recipe: &'a Recipe,
    axes: usize,
    /// Data buffers come first, then the virtual ones.
    data: usize,
    flaw: Option<Flaw>,
    writers: Vec<Writer>,
    /// Elements of the open batch of each semaphore, and the buffers it fills.
    open: BTreeMap<u8, (u64, Vec<usize>)>,
    /// Elements of the last batch waited for.
    waited: BTreeMap<u8, u64>,
    body: Vec<Stmt>,
    loops: u32,
}

impl<'a> Builder<'a> {
    fn new(recipe: &'a Recipe, axes: usize) -> Builder<'a> {
        let data = recipe.buffers.len();
        Builder {
            recipe,
            axes,
            data,
            flaw: recipe.flaw,
            writers: vec![Writer::Settled; data + recipe.weights as usize],
            open: BTreeMap::new(),
            waited: BTreeMap::new(),
            body: Vec::new(),
            loops: 0,
        }
    }

    fn build(mut self) -> Trace {
        let steps = self.recipe.steps.clone();
        self.steps(&steps);
        if self.flaw == Some(Flaw::NobodySignals) {
            self.push_wait(9, 1);
        }
        if self.flaw == Some(Flaw::NeverWaited) {
            self.use_preloads();
        } else {
            self.settle();
        }
        let r = self.recipe;
        let sizes: [u64; 8] = [256, 64, 0, 1024, 512, 96, 2048, 100];
        let mut buffers: Vec<Buffer> = Vec::new();
        for (i, b) in r.buffers.iter().enumerate() {
            buffers.push(Buffer {
                name: format!("b{i}"),
                bytes: sizes[*b as usize % 8],
            });
        }
        for i in 0..r.weights {
            buffers.push(Buffer {
                name: format!("w{i}"),
                bytes: 0,
            });
        }
        let cycles: [u64; 10] = [17, 1, 0, 40, 5, 90, 0, 3, 250, 2];
        let overlaps: [u64; 6] = [0, 0, 4, 30, 1, 100];
        let tile = |(i, (c, o)): (usize, &(u8, u8))| Tile {
            name: format!("t{i}"),
            unit: None,
            cycles: Some(cycles[*c as usize % 10]),
            overlap: overlaps[*o as usize % 6],
            source: CostSource::Declared,
            admissions: Vec::new(),
        };
        let tensor = |(i, bits): (usize, &u8)| Tensor {
            name: format!("x{i}"),
            element_bits: [32, 16, 8, 64][*bits as usize % 4],
            role: Role::InOut,
            extents: vec![Expr::Const(300 + i64::from(*bits) * 11)],
            layout: Layout::RowMajor,
        };
        let mut order: Vec<u8> = (0..self.axes as u8).collect();
        order.rotate_left(r.order as usize % self.axes);
        if r.order >= 3 {
            order.reverse();
        }
        Trace {
            header: Header {
                kernel: "random".into(),
                ..Header::default()
            },
            axes: self.axes as u8,
            params: Vec::new(),
            tensors: r.tensors.iter().enumerate().map(tensor).collect(),
            bounds: Bounds::Off,
            buffers,
            tiles: r.tiles.iter().enumerate().map(tile).collect(),
            body: self.body,
            dispatch: Dispatch {
                order,
                key: r
                    .keyed
                    .then(|| binary(BinaryOp::Mod, Expr::Pid(0), Expr::Const(2))),
            },
            resources: Resources::default(),
        }
    }

    fn steps(&mut self, steps: &[Step]) {
        for step in steps {
            self.step(step);
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Load {
                tensor,
                buffers,
                shape,
                semaphore,
                reads,
            } => {
                let writes = self.data_buffers(buffers, if self.recipe.odd { 2 } else { 1 });
                let reads = match reads {
                    Some(b) if self.recipe.odd => self.data_buffers(&[*b], 1),
                    _ => Vec::new(),
                };
                reads.iter().for_each(|b| self.before_read(*b));
                writes.iter().for_each(|b| self.before_overwrite(*b));
                let (dma, elements) =
                    self.dma(Direction::Load, *tensor, shape, *semaphore, &reads, &writes);
                self.body.push(Stmt::Dma(dma));
                for b in &writes {
                    self.writers[*b] = semaphore.map_or(Writer::Settled, Writer::Pending);
                }
                if let Some(s) = semaphore {
                    self.waited.remove(s);
                    let batch = self.open.entry(*s).or_default();
                    batch.0 += elements;
                    batch.1.extend(writes);
                }
            }
            Step::Store {
                tensor,
                buffers,
                shape,
                semaphore,
            } => {
                let reads = self.data_buffers(buffers, 2);
                reads.iter().for_each(|b| self.before_read(*b));
                let (dma, _) = self.dma(Direction::Store, *tensor, shape, *semaphore, &reads, &[]);
                self.body.push(Stmt::Dma(dma));
            }
            Step::Compute {
                cross_lane,
                tile,
                reads,
                writes,
            } => {
                let reads = self.data_buffers(reads, 3);
                let writes = self.data_buffers(writes, if self.recipe.odd { 2 } else { 1 });
                reads.iter().for_each(|b| self.before_read(*b));
                writes.iter().for_each(|b| self.before_overwrite(*b));
                let unit = if *cross_lane {
                    Unit::CrossLane
                } else {
                    Unit::Vector
                };
                self.push_compute(*tile, unit, &reads, &writes);
                writes
                    .iter()
                    .for_each(|b| self.writers[*b] = Writer::Settled);
            }
            Step::Preload {
                tile,
                weights,
                reads,
            } => self.preload(*tile, *weights, reads),
            Step::Matmul {
                tile,
                weights,
                out,
                reads,
                reads_out,
            } => {
                self.matmul(*tile, *weights, *out, reads, *reads_out);
            }
            Step::Wait { semaphore } => {
                if let Some((elements, _)) = self.open.get(semaphore) {
                    let elements = *elements;
                    self.wait(*semaphore, elements);
                } else if let Some(elements) = self.waited.get(semaphore) {
                    let elements = *elements;
                    self.push_wait(*semaphore, elements);
                }
            }
            Step::Loop { count, steps } => {
                let body = self.block(steps, 1);
                self.body.push(Stmt::For(For {
                    var: VarId(self.loops),
                    name: "k".into(),
                    lo: Expr::Const(0),
                    hi: Expr::Const(i64::from(*count)),
                    step: Expr::Const(1),
                    body,
                }));
            }
            Step::If {
                cond,
                then,
                otherwise,
            } => {
                let cond = match cond % 3 {
                    0 => binary(BinaryOp::Mod, Expr::Pid(0), Expr::Const(2)),
                    1 => binary(
                        BinaryOp::Lt,
                        Expr::Pid(self.axes as u8 - 1),
                        Expr::Const(i64::from(cond % 4)),
                    ),
                    _ => Expr::Const(i64::from(cond % 2)),
                };
                let then = self.block(then, 0);
                let otherwise = self.block(otherwise, 0);
                self.body.push(Stmt::If(If {
                    cond,
                    then,
                    otherwise,
                }));
            }
        }
    }

    /// A nested block: nothing is open where it begins and where it ends.
    fn block(&mut self, steps: &[Step], loops: u32) -> Vec<Stmt> {
        self.settle();
        let outer = std::mem::take(&mut self.body);
        self.loops += loops;
        self.steps(steps);
        self.settle();
        self.loops -= loops;
        std::mem::replace(&mut self.body, outer)
    }

    /// Waits for every open batch, gives every preload a user and forgets what only holds here.
    fn settle(&mut self) {
        self.use_preloads();
        for (semaphore, (elements, _)) in self.open.clone() {
            self.wait(semaphore, elements);
        }
        self.waited.clear();
        self.writers.fill(Writer::Settled);
    }

    fn use_preloads(&mut self) {
        for b in 0..self.writers.len() {
            if self.writers[b] == Writer::Preload(false) && !self.recipe.odd {
                self.use_preload(b);
            }
        }
    }

    fn use_preload(&mut self, weights: usize) {
        self.before_accumulate(0);
        self.push_compute(0, Unit::Matmul, &[weights], &[0]);
        self.writers[weights] = Writer::Preload(true);
        if matches!(self.writers[0], Writer::Pending(_)) {
            self.writers[0] = Writer::Settled;
        }
    }

    fn wait(&mut self, semaphore: u8, elements: u64) {
        self.push_wait(semaphore, elements);
        if let Some((_, buffers)) = self.open.remove(&semaphore) {
            buffers
                .iter()
                .for_each(|b| self.writers[*b] = Writer::Settled);
        }
        self.waited.insert(semaphore, elements);
    }

    fn push_wait(&mut self, semaphore: u8, elements: u64) {
        let mut expected = elements as i64;
        if self.flaw == Some(Flaw::WrongCount) {
            self.flaw = None;
            expected += 1;
        }
        let semaphore = SemId(semaphore.into());
        self.body.push(Stmt::Wait(Wait {
            semaphore,
            expected: Expr::Const(expected),
        }));
    }

    fn before_read(&mut self, b: usize) {
        if let Writer::Pending(semaphore) = self.writers[b] {
            if self.flaw == Some(Flaw::ReadBeforeWait) {
                self.flaw = None;
                return;
            }
            if let Some((elements, _)) = self.open.get(&semaphore) {
                let elements = *elements;
                self.wait(semaphore, elements);
            }
        }
    }

    fn before_accumulate(&mut self, b: usize) {
        self.before_read(b);
        self.before_overwrite(b);
    }

    fn before_overwrite(&mut self, b: usize) {
        if self.writers[b] == Writer::Preload(false) && !self.recipe.odd && b != 0 {
            self.use_preload(b);
        }
    }

    fn preload(&mut self, tile: u8, weights: u8, reads: &[u8]) {
        let reads = self.data_buffers(reads, 2);
        reads.iter().for_each(|b| self.before_read(*b));
        let b = self.weights_buffer(weights);
        self.before_overwrite(b);
        self.push_compute(tile, Unit::Preload, &reads, &[b]);
        self.writers[b] = Writer::Preload(false);
    }

    fn matmul(&mut self, tile: u8, weights: u8, out: u8, reads: &[u8], reads_out: bool) {
        let mut reads = self.data_buffers(reads, 2);
        let out = self.data_buffers(&[out], 1)[0];
        let b = self.weights_buffer(weights);
        if !matches!(self.writers[b], Writer::Preload(_)) && !self.recipe.odd {
            self.preload(tile.wrapping_add(1), weights, &[]);
        }
        reads.iter().for_each(|b| self.before_read(*b));
        self.before_accumulate(out);
        reads.push(b);
        if reads_out && !reads.contains(&out) {
            reads.push(out);
        }
        self.push_compute(tile, Unit::Matmul, &reads, &[out]);
        if let Writer::Preload(used) = &mut self.writers[b] {
            *used = true;
        }
        if self.recipe.odd && weights >= 250 {
            // Two preloads for one matmul.
            self.preload(tile, weights, &[]);
            let other = self.weights_buffer(weights);
            self.push_compute(tile, Unit::Matmul, &[b, other], &[out]);
            self.writers[other] = Writer::Preload(true);
        }
    }

    fn weights_buffer(&self, weights: u8) -> usize {
        self.data + weights as usize % self.recipe.weights as usize
    }

    /// Up to `most` data buffers, each once.
    fn data_buffers(&self, numbers: &[u8], most: usize) -> Vec<usize> {
        let mut list = Vec::new();
        for n in numbers {
            let b = *n as usize % self.data;
            if !list.contains(&b) && list.len() < most {
                list.push(b);
            }
        }
        list
    }

    fn push_compute(&mut self, tile: u8, unit: Unit, reads: &[usize], writes: &[usize]) {
        self.body.push(Stmt::Compute(Compute {
            tile: TileId(u32::from(tile) % self.recipe.tiles.len() as u32),
            unit,
            reads: ids(reads),
            writes: ids(writes),
        }));
    }

    /// A transfer and the elements a wait must expect of it.
    fn dma(
        &self,
        direction: Direction,
        tensor: u8,
        shape: &Shape,
        semaphore: Option<u8>,
        reads: &[usize],
        writes: &[usize],
    ) -> (Dma, u64) {
        const MOST: [i64; 3] = [48, 8, 4];
        let mut dims = Vec::new();
        let mut elements = 1u64;
        let mut inner = 1i64;
        for (place, (extent, stride)) in shape.dims.iter().enumerate() {
            let least = if self.recipe.odd { 0 } else { 1 };
            let extent = (i64::from(*extent) % (MOST[place] + 1)).max(least);
            let stride = match (place, stride) {
                (0, 0..=3) => 1,
                (0, 4) => 3,
                (0, 5) => -1,
                (0, 6) => 0,
                (0, _) => 17,
                (_, 0..=2) => inner,
                (_, 3) => 64,
                (_, 4) => 1,
                (_, 5) => -40,
                (_, 6) => 0,
                (_, _) => 200,
            };
            inner = (inner * extent).max(1);
            let mut valid = None;
            if let (0, Some(fall)) = (place, shape.mask) {
                // min(extent, max(least, extent + 2 - fall * p0))
                let fall = binary(BinaryOp::Mul, Expr::Pid(0), Expr::Const(fall.into()));
                let left = binary(BinaryOp::Sub, Expr::Const(extent + 2), fall);
                let left = binary(BinaryOp::Max, Expr::Const(least), left);
                valid = Some(binary(BinaryOp::Min, Expr::Const(extent), left));
            }
            elements *= extent as u64;
            dims.push(Dim {
                extent: Expr::Const(extent),
                stride: Expr::Const(stride),
                valid,
            });
        }
        // The innermost dimension is the last.
        dims.reverse();
        let mut offset = Expr::Const(shape.offset.into());
        for axis in 0..self.axes {
            let by = [0, 1, 8, 48, 100, 256][shape.step as usize] * (1 + 3 * axis as i64);
            let part = binary(BinaryOp::Mul, Expr::Pid(axis as u8), Expr::Const(by));
            offset = binary(BinaryOp::Add, offset, part);
        }
        if self.loops > 0 {
            let part = binary(BinaryOp::Mul, Expr::Var(VarId(0)), Expr::Const(32));
            offset = binary(BinaryOp::Add, offset, part);
        }
        let mut indirect = None;
        if let Some(indices) = &shape.indices {
            elements *= indices.len() as u64;
            let indices = indices.iter().map(|i| Expr::Const(i64::from(*i))).collect();
            indirect = Some(Indirect::Indices(indices));
        } else if let (Some((count, bytes)), true) = (shape.lines, self.recipe.odd) {
            let count = Expr::Const(count.into());
            indirect = Some(Indirect::Lines {
                count,
                bytes: u32::from(bytes).max(1),
            });
        }
        let dma = Dma {
            direction,
            tensor: TensorId(u32::from(tensor) % self.recipe.tensors.len() as u32),
            offset,
            dims,
            element_bits: [32, 32, 32, 16, 8, 64, 4, 12][shape.bits as usize],
            semaphore: semaphore.map(|s| SemId(s.into())),
            reads: ids(reads),
            writes: ids(writes),
            indirect,
        };
        (dma, elements)
    }
}

fn ids(buffers: &[usize]) -> Vec<BufferId> {
    buffers.iter().map(|b| BufferId(*b as u32)).collect()
}

fn binary(op: BinaryOp, a: Expr, b: Expr) -> Expr {
    Expr::Binary(op, Box::new(a), Box::new(b))
}
