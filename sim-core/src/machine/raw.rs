//! The description as the file has it, and the way from there to the validated [`Machine`] and back.
//!
//! The canonical form of a machine is the completed tree of its raw form: every applicable key
//! spelt out, in the order of the schema's table. It does not depend on what the file left to
//! defaults, on comments or on the order of its keys.

use super::device::BankedDevice;
use super::error::{MachineError, code};
use super::schema::{self, KEYS, get, mhz_value, set};
use super::spec::*;
use crate::noc::{FlitNetworkSpec, NetworkParams, RouterParams, Topology};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// A description whose keys and single values are known to be good.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMachine {
    version: u32,
    name: String,
    clocks: RawClocks,
    cores: RawCores,
    noc: RawNoc,
    l2: RawL2,
    dram: RawDram,
    dispatch: DispatchPolicy,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    memory: Option<MemoryModel>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    energy: Option<RawEnergy>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawClocks {
    core_mhz: f64,
    noc_mhz: f64,
    dram_mhz: f64,
    periods: RawPeriods,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawPeriods {
    Exact,
    WholePicoseconds,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCores {
    count: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    partition: Option<Vec<u32>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dram_partition: Option<Vec<u32>>,
    systolic_arrays: u32,
    array_rows: u32,
    array_cols: u32,
    weight_slots: u32,
    array_split: RawSplit,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    array_unit: Option<String>,
    vector_lanes: u32,
    vector_bits: u32,
    scratchpad_bytes: u64,
    compute_issue: ComputeIssue,
    residency: RawResidency,
    max_residents: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    registers: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    threads: Option<u64>,
    injection_ports: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawSplit {
    None,
    RoundRobin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawResidency {
    Shared,
    Safe,
    Resources,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "model", rename_all = "snake_case", deny_unknown_fields)]
enum RawNoc {
    Simple {
        latency_cycles: u32,
    },
    Flit {
        topology: Value,
        router: Value,
        flit_bytes: u32,
        injection_queue_flits: u32,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "model", rename_all = "snake_case", deny_unknown_fields)]
enum RawL2 {
    None {},
    Datacache {
        sets: u32,
        ways: u32,
        line_bytes: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sector_bytes: Option<u32>,
        set_index: L2SetIndex,
        write: L2Write,
        write_allocate: L2WriteAllocate,
        allocate: L2Allocate,
        mshr_entries: u32,
        mshr_merges: u32,
        miss_queue: u32,
        hit_latency_cycles: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pinned: Option<Vec<u64>>,
    },
}

/// Costs in the units of their names; absent: not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEnergy {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    activation_pj: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    read_pj_per_bit: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    write_pj_per_bit: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    io_pj_per_bit: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    phy_pj_per_bit: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refresh_pj: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    background_mw: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    noc_pj_per_byte: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    l2_pj_per_byte: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scratchpad_pj_per_byte: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    array_pj_per_cell_cycle: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    vector_pj_per_lane_cycle: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cross_lane_pj_per_cycle: Option<f64>,
}

impl RawEnergy {
    /// Whole attojoules and microwatts.
    fn spec(&self) -> Option<EnergySpec> {
        // At most 10^9 pJ, as the table says: far below 2^63 attojoules.
        let aj = |pj: Option<f64>| (pj.unwrap_or_default() * 1e6).round() as u64;
        let spec = EnergySpec {
            activation: aj(self.activation_pj),
            read_bit: aj(self.read_pj_per_bit),
            write_bit: aj(self.write_pj_per_bit),
            io_bit: aj(self.io_pj_per_bit),
            phy_bit: aj(self.phy_pj_per_bit),
            refresh: aj(self.refresh_pj),
            background_uw: (self.background_mw.unwrap_or_default() * 1e3).round() as u64,
            noc_byte: aj(self.noc_pj_per_byte),
            l2_byte: aj(self.l2_pj_per_byte),
            scratchpad_byte: aj(self.scratchpad_pj_per_byte),
            array_cell_cycle: aj(self.array_pj_per_cell_cycle),
            vector_lane_cycle: aj(self.vector_pj_per_lane_cycle),
            cross_lane_cycle: aj(self.cross_lane_pj_per_cycle),
        };
        (spec != EnergySpec::default()).then_some(spec)
    }

    fn of(spec: &EnergySpec) -> RawEnergy {
        let pj = |aj: u64| (aj != 0).then_some(aj as f64 / 1e6);
        RawEnergy {
            activation_pj: pj(spec.activation),
            read_pj_per_bit: pj(spec.read_bit),
            write_pj_per_bit: pj(spec.write_bit),
            io_pj_per_bit: pj(spec.io_bit),
            phy_pj_per_bit: pj(spec.phy_bit),
            refresh_pj: pj(spec.refresh),
            background_mw: (spec.background_uw != 0).then_some(spec.background_uw as f64 / 1e3),
            noc_pj_per_byte: pj(spec.noc_byte),
            l2_pj_per_byte: pj(spec.l2_byte),
            scratchpad_pj_per_byte: pj(spec.scratchpad_byte),
            array_pj_per_cell_cycle: pj(spec.array_cell_cycle),
            vector_pj_per_lane_cycle: pj(spec.vector_lane_cycle),
            cross_lane_pj_per_cycle: pj(spec.cross_lane_cycle),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct RawDram {
    channels: u32,
    request_bytes: u32,
    channel_map: ChannelMap,
    reply_port: ReplyPort,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    partitions: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    partition_bytes: Option<u64>,
    #[serde(flatten)]
    model: RawDramModel,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "model", rename_all = "snake_case")]
enum RawDramModel {
    Simple {
        latency_cycles: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytes_per_cycle: Option<f64>,
    },
    Banked {
        device: Value,
    },
}

impl RawMachine {
    /// Reads a tree in this project's schema.
    pub(super) fn from_tree(mut tree: Value) -> Result<RawMachine, MachineError> {
        device_defaults(&mut tree)?;
        let tree = schema::complete(tree)?;
        // The table has checked every key and value; what serde still refuses is a hole in it.
        serde_json::from_value(tree)
            .map_err(|error| MachineError::new(code::WRONG_TYPE, "", error.to_string()))
    }

    /// The completed tree.
    pub(super) fn to_tree(&self) -> Result<Value, MachineError> {
        let mut tree = serde_json::to_value(self)
            .map_err(|error| MachineError::new(code::WRONG_TYPE, "", error.to_string()))?;
        for path in ["clocks.core_mhz", "clocks.noc_mhz", "clocks.dram_mhz"] {
            if let Some(khz) = get(&tree, path)
                .and_then(Value::as_f64)
                .and_then(schema::khz_of_mhz)
            {
                set(&mut tree, path, mhz_value(khz));
            }
        }
        Ok(tree)
    }
}

/// Fills in what a banked device says of its requests and its clock, where the file does not.
fn device_defaults(tree: &mut Value) -> Result<(), MachineError> {
    let given = |path: &str| get(tree, path).filter(|value| !value.is_null());
    let Some(device) = given("dram.device") else {
        return Ok(());
    };
    if given_word(tree, "dram.model") != Some("banked")
        || !(device.is_object() || device.is_string())
    {
        return Ok(());
    }
    let device = BankedDevice::from_tree(device)?;
    let request = given("dram.request_bytes").is_none();
    let clock = given("clocks.dram_mhz").is_none() && given("clocks").is_some_and(Value::is_object);
    if request {
        set(tree, "dram.request_bytes", json!(device.spec().tx_bytes()));
    }
    if clock {
        // Whole picoseconds mean PyTorchSim's clocks, which are whole MHz too.
        let rounded = given_word(tree, "clocks.periods") == Some("whole_picoseconds");
        let khz = if rounded {
            device.clock_mhz() * 1000
        } else {
            device.clock_khz()
        };
        set(tree, "clocks.dram_mhz", mhz_value(khz));
    }
    set(tree, "dram.device", device.tree().clone());
    Ok(())
}

fn given_word<'t>(tree: &'t Value, path: &str) -> Option<&'t str> {
    get(tree, path).and_then(Value::as_str)
}

/// A network, from its part of the tree.
fn network(
    topology: Value,
    router: Value,
    flit_bytes: u32,
    injection_queue_flits: u32,
) -> Result<FlitNetworkSpec, MachineError> {
    let topology = part::<Topology>("noc.topology", topology)?;
    let router = part::<RouterParams>("noc.router", router)?;
    let params = NetworkParams {
        topology,
        router,
        flit_bytes,
        injection_queue_flits,
    };
    FlitNetworkSpec::try_from(params).map_err(|error| {
        MachineError::new(code::NETWORK, format!("noc.{}", error.path), error.message)
    })
}

/// Reads a part whose keys serde knows, with a suggestion for a misspelt one.
fn part<T: serde::de::DeserializeOwned>(path: &str, value: Value) -> Result<T, MachineError> {
    serde_json::from_value(value).map_err(|error| {
        let said = error.to_string();
        // serde says: unknown field `a`, expected one of `b`, `c`
        let mut words = said.split('`').skip(1).step_by(2);
        let unknown = said.starts_with("unknown field") || said.starts_with("unknown variant");
        match words.next() {
            Some(word) if unknown => {
                let error = MachineError::new(
                    code::UNKNOWN_KEY,
                    format!("{path}.{}", word.chars().take(80).collect::<String>()),
                    "no such key",
                );
                let others: Vec<&str> = words.collect();
                match super::text::nearest(word, others.iter().copied()) {
                    Some(near) => error.hint(format!("did you mean '{near}'?")),
                    None => error.hint(format!("known here: {}", others.join(", "))),
                }
            }
            _ => MachineError::new(code::WRONG_TYPE, path, said),
        }
    })
}

impl TryFrom<RawMachine> for Machine {
    type Error = MachineError;

    fn try_from(raw: RawMachine) -> Result<Machine, MachineError> {
        let khz = |path: &str, mhz: f64| {
            schema::khz_of_mhz(mhz).ok_or_else(|| {
                MachineError::new(
                    code::OUT_OF_RANGE,
                    path,
                    format!("{mhz} MHz is not whole kHz"),
                )
            })
        };
        let cores = raw.cores;
        let machine = Machine {
            name: raw.name,
            clocks: Clocks {
                core_khz: khz("clocks.core_mhz", raw.clocks.core_mhz)?,
                noc_khz: khz("clocks.noc_mhz", raw.clocks.noc_mhz)?,
                dram_khz: khz("clocks.dram_mhz", raw.clocks.dram_mhz)?,
                truncate_to_ps: raw.clocks.periods == RawPeriods::WholePicoseconds,
            },
            cores: CoreSpec {
                count: cores.count,
                partition: cores
                    .partition
                    .unwrap_or_else(|| vec![0; cores.count as usize]),
                systolic_arrays: cores.systolic_arrays,
                array_rows: cores.array_rows,
                array_cols: cores.array_cols,
                weight_slots: cores.weight_slots,
                vector_lanes: cores.vector_lanes,
                vector_bits: cores.vector_bits,
                scratchpad_bytes: cores.scratchpad_bytes,
                compute_issue: cores.compute_issue,
                array_split: match cores.array_split {
                    RawSplit::None => ArraySplit::None,
                    RawSplit::RoundRobin => ArraySplit::RoundRobin {
                        unit: cores.array_unit.unwrap_or_default(),
                    },
                },
                residency: match cores.residency {
                    RawResidency::Shared => Residency::Shared {
                        max: cores.max_residents,
                    },
                    RawResidency::Safe => Residency::Safe {
                        max: cores.max_residents,
                    },
                    RawResidency::Resources => Residency::Resources {
                        max: cores.max_residents,
                        registers: cores.registers.unwrap_or_default(),
                        threads: cores.threads.unwrap_or_default(),
                    },
                },
                injection_ports: cores.injection_ports,
            },
            noc: match raw.noc {
                RawNoc::Simple { latency_cycles } => NocSpec::Simple {
                    latency: latency_cycles,
                },
                RawNoc::Flit {
                    topology,
                    router,
                    flit_bytes,
                    injection_queue_flits,
                } => {
                    let network = network(topology, router, flit_bytes, injection_queue_flits)?;
                    NocSpec::Flit {
                        network: Box::new(network),
                    }
                }
            },
            l2: match raw.l2 {
                RawL2::None {} => None,
                RawL2::Datacache {
                    sets,
                    ways,
                    line_bytes,
                    sector_bytes,
                    set_index,
                    write,
                    write_allocate,
                    allocate,
                    mshr_entries,
                    mshr_merges,
                    miss_queue,
                    hit_latency_cycles,
                    pinned,
                } => Some(L2Spec {
                    sets,
                    ways,
                    line_bytes,
                    sector_bytes: sector_bytes.unwrap_or(raw.dram.request_bytes),
                    set_index,
                    write,
                    write_allocate,
                    allocate,
                    mshr_entries,
                    mshr_merges,
                    miss_queue,
                    hit_latency: hit_latency_cycles,
                    pinned: ranges(&pinned.unwrap_or_default())?,
                }),
            },
            dram: DramConfig {
                channels: raw.dram.channels,
                request_bytes: raw.dram.request_bytes,
                channel_map: raw.dram.channel_map,
                reply_port: raw.dram.reply_port,
                numa: numa(&raw.dram, cores.count, cores.dram_partition.as_deref())?,
                model: match raw.dram.model {
                    RawDramModel::Simple {
                        latency_cycles,
                        bytes_per_cycle,
                    } => DramModel::Simple {
                        latency: latency_cycles,
                        bytes_per_cycle,
                    },
                    RawDramModel::Banked { device } => DramModel::Banked {
                        device: Box::new(BankedDevice::from_tree(&device)?),
                    },
                },
            },
            dispatch: raw.dispatch,
            memory: raw.memory.unwrap_or_default(),
            energy: raw.energy.and_then(|e| e.spec()),
        };
        consistent(&machine)?;
        Ok(machine)
    }
}

impl TryFrom<&Machine> for RawMachine {
    type Error = MachineError;

    fn try_from(machine: &Machine) -> Result<RawMachine, MachineError> {
        let cores = &machine.cores;
        let (residency, max_residents, resources) = match cores.residency {
            Residency::Shared { max } => (RawResidency::Shared, max, None),
            Residency::Safe { max } => (RawResidency::Safe, max, None),
            Residency::Resources {
                max,
                registers,
                threads,
            } => (RawResidency::Resources, max, Some((registers, threads))),
        };
        let mhz = |khz: u64| khz as f64 / 1000.0;
        Ok(RawMachine {
            version: 1,
            name: machine.name.clone(),
            clocks: RawClocks {
                core_mhz: mhz(machine.clocks.core_khz),
                noc_mhz: mhz(machine.clocks.noc_khz),
                dram_mhz: mhz(machine.clocks.dram_khz),
                periods: if machine.clocks.truncate_to_ps {
                    RawPeriods::WholePicoseconds
                } else {
                    RawPeriods::Exact
                },
            },
            cores: RawCores {
                count: cores.count,
                // All zeros is what an absent list means, and it keeps the canonical form free of a
                // list whose length would contradict another core count.
                partition: cores
                    .partition
                    .iter()
                    .any(|&p| p != 0)
                    .then(|| cores.partition.clone()),
                // Likewise.
                dram_partition: machine.dram.numa.as_ref().and_then(|numa| {
                    (numa.home != even_homes(cores.count, numa.partitions))
                        .then(|| numa.home.clone())
                }),
                systolic_arrays: cores.systolic_arrays,
                array_rows: cores.array_rows,
                array_cols: cores.array_cols,
                weight_slots: cores.weight_slots,
                array_split: match cores.array_split {
                    ArraySplit::None => RawSplit::None,
                    ArraySplit::RoundRobin { .. } => RawSplit::RoundRobin,
                },
                array_unit: match &cores.array_split {
                    ArraySplit::None => None,
                    ArraySplit::RoundRobin { unit } => Some(unit.clone()),
                },
                vector_lanes: cores.vector_lanes,
                vector_bits: cores.vector_bits,
                scratchpad_bytes: cores.scratchpad_bytes,
                compute_issue: cores.compute_issue,
                residency,
                max_residents,
                registers: resources.map(|(registers, _)| registers),
                threads: resources.map(|(_, threads)| threads),
                injection_ports: cores.injection_ports,
            },
            noc: match &machine.noc {
                NocSpec::Simple { latency } => RawNoc::Simple {
                    latency_cycles: *latency,
                },
                NocSpec::Flit { network } => {
                    let params = network.params();
                    RawNoc::Flit {
                        topology: tree_of("noc.topology", &params.topology)?,
                        router: tree_of("noc.router", &params.router)?,
                        flit_bytes: params.flit_bytes,
                        injection_queue_flits: params.injection_queue_flits,
                    }
                }
            },
            l2: match &machine.l2 {
                None => RawL2::None {},
                Some(l2) => RawL2::Datacache {
                    sets: l2.sets,
                    ways: l2.ways,
                    line_bytes: l2.line_bytes,
                    sector_bytes: Some(l2.sector_bytes),
                    set_index: l2.set_index,
                    write: l2.write,
                    write_allocate: l2.write_allocate,
                    allocate: l2.allocate,
                    mshr_entries: l2.mshr_entries,
                    mshr_merges: l2.mshr_merges,
                    miss_queue: l2.miss_queue,
                    hit_latency_cycles: l2.hit_latency,
                    pinned: (!l2.pinned.is_empty())
                        .then(|| l2.pinned.iter().flat_map(|&(a, b)| [a, b]).collect()),
                },
            },
            dram: RawDram {
                channels: machine.dram.channels,
                request_bytes: machine.dram.request_bytes,
                channel_map: machine.dram.channel_map,
                reply_port: machine.dram.reply_port,
                partitions: machine.dram.numa.as_ref().map(|numa| numa.partitions),
                partition_bytes: machine.dram.numa.as_ref().map(|numa| numa.partition_bytes),
                model: match &machine.dram.model {
                    DramModel::Simple {
                        latency,
                        bytes_per_cycle,
                    } => RawDramModel::Simple {
                        latency_cycles: *latency,
                        bytes_per_cycle: *bytes_per_cycle,
                    },
                    DramModel::Banked { device } => RawDramModel::Banked {
                        device: device.tree().clone(),
                    },
                },
            },
            dispatch: machine.dispatch,
            memory: (machine.memory != MemoryModel::Requests).then_some(machine.memory),
            energy: machine.energy.as_ref().map(RawEnergy::of),
        })
    }
}

/// Bytes of a partition's address ranges where the file does not say.
const PARTITION_BYTES: u64 = 64 << 30;

/// The partition of each of `cores` cores, in as many equal runs as there are partitions.
fn even_homes(cores: u32, partitions: u32) -> Vec<u32> {
    (0..cores)
        .map(|core| (u64::from(core) * u64::from(partitions) / u64::from(cores.max(1))) as u32)
        .collect()
}

/// The partitions of the channels.
fn numa(
    dram: &RawDram,
    cores: u32,
    home: Option<&[u32]>,
) -> Result<Option<NumaSpec>, MachineError> {
    let partitions = dram.partitions.unwrap_or(1);
    if partitions == 1 {
        let path = match (home, dram.partition_bytes) {
            (Some(_), _) => "cores.dram_partition",
            (None, Some(_)) => "dram.partition_bytes",
            (None, None) => return Ok(None),
        };
        return Err(
            MachineError::new(code::CONTRADICTION, path, "the DRAM has one partition")
                .hint("set dram.partitions, or remove the key"),
        );
    }
    if !dram.channels.is_multiple_of(partitions) {
        return Err(MachineError::new(
            code::CONTRADICTION,
            "dram.partitions",
            format!(
                "{} channels cannot be divided into {partitions} equal partitions",
                dram.channels
            ),
        ));
    }
    let home = match home {
        Some(home) => home.to_vec(),
        None => even_homes(cores, partitions),
    };
    if home.len() != cores as usize {
        return Err(MachineError::new(
            code::CONTRADICTION,
            "cores.dram_partition",
            format!(
                "names the partition of {} cores, but there are {cores}",
                home.len()
            ),
        )
        .hint("give one number a core, or remove the list"));
    }
    if let Some(unknown) = home.iter().find(|&&p| p >= partitions) {
        return Err(MachineError::new(
            code::CONTRADICTION,
            "cores.dram_partition",
            format!("there is no partition {unknown}: dram.partitions is {partitions}"),
        )
        .hint("partitions are numbered from 0"));
    }
    Ok(Some(NumaSpec {
        partitions,
        partition_bytes: dram.partition_bytes.unwrap_or(PARTITION_BYTES),
        home,
    }))
}

/// Pairs of a start and a length.
fn ranges(numbers: &[u64]) -> Result<Vec<(u64, u64)>, MachineError> {
    if !numbers.len().is_multiple_of(2) {
        return Err(MachineError::new(
            code::CONTRADICTION,
            "l2.pinned",
            format!("{} numbers are not pairs", numbers.len()),
        )
        .hint("give a first byte and a number of bytes for each range"));
    }
    Ok(numbers
        .chunks_exact(2)
        .map(|pair| (pair[0], pair[1]))
        .collect())
}

/// A part as a tree; it fails only for numbers that JSON cannot hold.
fn tree_of<T: Serialize>(path: &str, value: &T) -> Result<Value, MachineError> {
    serde_json::to_value(value)
        .map_err(|error| MachineError::new(code::WRONG_TYPE, path, error.to_string()))
}

/// Refuses values that are each good but contradict each other, and machines beyond the limits.
fn consistent(machine: &Machine) -> Result<(), MachineError> {
    let contradiction =
        |path: &str, message: String| Err(MachineError::new(code::CONTRADICTION, path, message));
    let cores = &machine.cores;
    if cores.partition.len() != cores.count as usize {
        return contradiction(
            "cores.partition",
            format!(
                "names the partition of {} cores, but there are {}",
                cores.partition.len(),
                cores.count
            ),
        )
        .map_err(|error| error.hint("give one number a core, or remove the list"));
    }
    // Work-items of partition p wait for a core of it: numbers start at 0 and leave no gap.
    let most = cores.partition.iter().copied().max().unwrap_or_default();
    if let Some(missing) = (0..=most).find(|p| !cores.partition.contains(p)) {
        return contradiction(
            "cores.partition",
            format!("partition {missing} has no core"),
        )
        .map_err(|error| error.hint("number the partitions from 0 without a gap"));
    }
    let line = u64::from(machine.dram.request_bytes);
    if cores.scratchpad_bytes != 0 && cores.scratchpad_bytes < line {
        return contradiction(
            "cores.scratchpad_bytes",
            format!(
                "{} bytes do not hold one request of {line} bytes",
                cores.scratchpad_bytes
            ),
        )
        .map_err(|error| error.hint("0 means unlimited"));
    }
    if let ArraySplit::RoundRobin { unit } = &cores.array_split
        && (unit.is_empty() || unit.contains(char::is_whitespace))
    {
        return contradiction(
            "cores.array_unit",
            format!("'{unit}' cannot be the name of a unit"),
        )
        .map_err(|error| error.hint("unit names are not empty and have no spaces"));
    }
    let limit = |path: &str, what: &str, value: u64, most: u64| {
        if value <= most {
            Ok(())
        } else {
            Err(MachineError::new(
                code::LIMIT,
                path,
                format!("{what} is {value}, more than {most}"),
            ))
        }
    };
    let count = u64::from(cores.count);
    let ports = count * u64::from(cores.injection_ports);
    limit(
        "cores.injection_ports",
        "cores x ports",
        ports,
        schema::MAX_PORTS,
    )?;
    limit(
        "dram.channels",
        "ports of all cores x channels",
        ports * u64::from(machine.dram.channels),
        schema::MAX_PORT_CHANNEL_PAIRS,
    )?;
    limit(
        "cores.weight_slots",
        "cores x arrays x slots",
        count * u64::from(cores.systolic_arrays) * u64::from(cores.weight_slots),
        schema::MAX_WEIGHT_SLOTS,
    )?;
    if let NocSpec::Flit { network } = &machine.noc {
        let needed = ports + u64::from(machine.dram.channels);
        if u64::from(network.nodes()) < needed {
            return contradiction(
                "noc.topology",
                format!(
                    "{} nodes do not hold {ports} core ports and {} channels",
                    network.nodes(),
                    machine.dram.channels
                ),
            );
        }
    }
    if machine.dram.numa.is_some() && machine.memory == MemoryModel::Transfer {
        return contradiction(
            "memory",
            "transfer has no partitions of the channels: it shares all of them evenly".to_owned(),
        )
        .map_err(|error| error.hint("use memory: requests, or remove dram.partitions"));
    }
    if let DramModel::Banked { device } = &machine.dram.model {
        let spec = device.spec();
        if machine.dram.request_bytes != spec.tx_bytes() {
            return contradiction(
                "dram.request_bytes",
                format!(
                    "{line} bytes, but the device moves {} a burst",
                    spec.tx_bytes()
                ),
            )
            .map_err(|error| error.hint("remove it: the device says it"));
        }
        // Both the rounded MHz that PyTorchSim uses and the kHz of the period are the device's clock.
        let khz = machine.clocks.dram_khz;
        if khz != device.clock_khz() && khz != device.clock_mhz() * 1000 {
            return contradiction(
                "clocks.dram_mhz",
                format!(
                    "{} MHz, but the device's clock is {} MHz (tCK {} ps)",
                    mhz_value(khz),
                    device.clock_mhz(),
                    spec.tck_ps()
                ),
            )
            .map_err(|error| error.hint("remove it: the device says it"));
        }
        limit(
            "dram.channels",
            "channels x banks",
            u64::from(machine.dram.channels) * u64::from(spec.banks()),
            schema::MAX_BANKS,
        )?;
    }
    if let Some(l2) = &machine.l2 {
        for (path, bytes, least, most) in [
            (
                "l2.line_bytes",
                l2.line_bytes,
                machine.dram.request_bytes,
                machine.dram.request_bytes.saturating_mul(64),
            ),
            (
                "l2.sector_bytes",
                l2.sector_bytes,
                machine.dram.request_bytes,
                l2.line_bytes,
            ),
        ] {
            if !(least..=most).contains(&bytes) {
                return contradiction(
                    path,
                    format!("{bytes} bytes are not from {least} to {most}"),
                )
                .map_err(|error| {
                    error.hint("a sector holds at least a request, a line at most 64")
                });
            }
        }
        limit(
            "l2.ways",
            "channels x sets x ways",
            u64::from(machine.dram.channels) * u64::from(l2.sets) * u64::from(l2.ways),
            schema::MAX_L2_LINES,
        )?;
    }
    let residents = match cores.residency {
        Residency::Shared { max } | Residency::Safe { max } | Residency::Resources { max, .. } => {
            max
        }
    };
    limit(
        "cores.max_residents",
        "cores x residents",
        count * u64::from(residents),
        schema::MAX_RESIDENTS,
    )
}

/// Prints a completed tree as YAML, in the order of the schema.
pub(super) fn print(tree: &Value) -> String {
    let mut out = String::new();
    let mut open = "";
    for key in KEYS {
        let Some(value) = get(tree, key.path) else {
            continue;
        };
        match key.path.split_once('.') {
            Some((section, name)) => {
                if section != open {
                    let _ = writeln!(out, "{section}:");
                    open = section;
                }
                let _ = writeln!(out, "  {name}: {}", canonical(value));
            }
            None => {
                let _ = writeln!(out, "{}: {}", key.path, canonical(value));
            }
        }
    }
    out
}

/// The content that a digest is over: a line per key, the name left out.
pub(super) fn digest(tree: &Value) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"tilesim machine\n");
    for key in KEYS.iter().filter(|key| key.path != "name") {
        if let Some(value) = get(tree, key.path) {
            hasher.update(format!("{}={}\n", key.path, canonical(value)).as_bytes());
        }
    }
    *hasher.finalize().as_bytes()
}

/// JSON with sorted keys, whatever order the tree keeps.
fn canonical(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<_> = map.iter().collect();
            keys.sort_by_key(|(key, _)| key.as_str());
            let parts: Vec<_> = keys
                .into_iter()
                .map(|(key, v)| format!("{}: {}", json!(key), canonical(v)))
                .collect();
            format!("{{{}}}", parts.join(", "))
        }
        Value::Array(list) => {
            format!(
                "[{}]",
                list.iter().map(canonical).collect::<Vec<_>>().join(", ")
            )
        }
        other => other.to_string(),
    }
}
