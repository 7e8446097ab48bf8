//! The validated machine description the engine runs on.
//!
//! Every figure is in the unit its name or doc states. A [`Machine`] is immutable once built.

use super::device::BankedDevice;
use crate::noc::{FlitNetworkSpec, NetworkParams};
use serde::{Deserialize, Deserializer, Serialize};

/// A modelled machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Name, for people (not part of the digest).
    pub name: String,
    /// Clocks.
    pub clocks: Clocks,
    /// The cores; all alike.
    pub cores: CoreSpec,
    /// NoC.
    pub noc: NocSpec,
    /// L2, if any.
    pub l2: Option<L2Spec>,
    /// DRAM.
    pub dram: DramConfig,
    /// How work-items reach the cores.
    pub dispatch: DispatchPolicy,
    /// What memory simulates: requests or transfers.
    #[serde(default)]
    pub memory: MemoryModel,
    /// Energy costs, if any are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy: Option<EnergySpec>,
}

/// What the memory system simulates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryModel {
    /// Every request, cycle by cycle.
    #[default]
    Requests,
    /// Whole transfers against shares of latency and bandwidth: fast and approximate.
    Transfer,
}

/// Energy costs in attojoules (10^-6 pJ); 0: not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnergySpec {
    /// Opening (and closing) a DRAM row once.
    pub activation: u64,
    /// Reading a bit from an open row.
    pub read_bit: u64,
    /// Writing a bit to an open row.
    pub write_bit: u64,
    /// Moving a bit over the DRAM's pins.
    pub io_bit: u64,
    /// Moving a bit through the physical layer on the chip's side.
    pub phy_bit: u64,
    /// One refresh command.
    pub refresh: u64,
    /// What a DRAM channel draws all the time, in microwatts.
    pub background_uw: u64,
    /// Moving a byte through the NoC.
    pub noc_byte: u64,
    /// Accessing a byte in the L2.
    pub l2_byte: u64,
    /// Moving a byte into or out of a scratchpad by DMA.
    pub scratchpad_byte: u64,
    /// One cell of a systolic array, per active cycle.
    pub array_cell_cycle: u64,
    /// One lane of the vector unit, per active cycle.
    pub vector_lane_cycle: u64,
    /// The cross-lane unit, per active cycle.
    pub cross_lane_cycle: u64,
}

/// Frequencies and how they become periods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clocks {
    /// Core frequency in kHz.
    pub core_khz: u64,
    /// NoC frequency in kHz.
    pub noc_khz: u64,
    /// DRAM command clock in kHz.
    pub dram_khz: u64,
    /// Periods are whole picoseconds, rounded down (what PyTorchSim's simulator does), instead of exact.
    pub truncate_to_ps: bool,
}

/// One core and what it holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CoreSpec {
    /// How many cores.
    pub count: u32,
    /// Partition of each core (all 0 unless the machine is partitioned).
    pub partition: Vec<u32>,
    /// Systolic arrays per core.
    pub systolic_arrays: u32,
    /// Rows of each array.
    pub array_rows: u32,
    /// Columns of each array.
    pub array_cols: u32,
    /// Preloads one array can hold before its matmuls finish.
    pub weight_slots: u32,
    /// Vector lanes.
    pub vector_lanes: u32,
    /// Bits per lane and cycle.
    pub vector_bits: u32,
    /// Scratchpad bytes; 0: unlimited.
    pub scratchpad_bytes: u64,
    /// Which compute tiles may be in flight together.
    pub compute_issue: ComputeIssue,
    /// How a matmul may be spread over arrays.
    pub array_split: ArraySplit,
    /// How many work-items a core holds at once.
    pub residency: Residency,
    /// Requests a core's DMA may inject per core cycle; also its NoC ports.
    pub injection_ports: u32,
}

/// Which compute tiles of a core may be in flight together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComputeIssue {
    /// One, whatever its unit.
    Serial,
    /// One per unit (each array, the vector unit, the cross-lane unit), overlapping by `overlap`.
    PerUnit,
}

/// How one matmul is spread over a core's arrays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArraySplit {
    /// It is not.
    None,
    /// Round robin over arrays as the tile's admissions on the named unit allow.
    RoundRobin {
        /// Name of the array unit in the admission table.
        unit: String,
    },
}

/// How many work-items a core holds at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Residency {
    /// `max`, or one when the arriving footprint exceeds `1 / max` of the scratchpad. The reference
    /// has max = 2.
    Shared {
        /// Most residents.
        max: u32,
    },
    /// As `Shared`, but a further work-item is admitted only when all residents fit to the end.
    Safe {
        /// Most residents.
        max: u32,
    },
    /// As many as scratchpad bytes and the declared resources allow.
    Resources {
        /// Most residents.
        max: u32,
        /// Registers of a core, or 0 for no limit.
        registers: u64,
        /// Threads of a core, or 0 for no limit.
        threads: u64,
    },
}

/// NoC model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "model", rename_all = "snake_case")]
pub enum NocSpec {
    /// Latency, and one packet per destination port per NoC cycle.
    Simple {
        /// NoC cycles from port to port.
        latency: u32,
    },
    /// Routers and links, flit by flit. The cores' ports are its first nodes, the channels the next.
    Flit {
        /// The network.
        #[serde(deserialize_with = "flit_network")]
        network: Box<FlitNetworkSpec>,
    },
}

fn flit_network<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Box<FlitNetworkSpec>, D::Error> {
    let params = NetworkParams::deserialize(deserializer)?;
    FlitNetworkSpec::try_from(params)
        .map(Box::new)
        .map_err(serde::de::Error::custom)
}

/// L2: a sectored set-associative cache in slices, one per channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct L2Spec {
    /// Sets of a slice (a power of two).
    pub sets: u32,
    /// Ways of a set.
    pub ways: u32,
    /// Bytes of a line (a power of two, at most 64 requests).
    pub line_bytes: u32,
    /// Bytes of a sector, what a miss fetches (a power of two, from a request to a line).
    pub sector_bytes: u32,
    /// How a line picks its set.
    pub set_index: L2SetIndex,
    /// What a write that finds its data does.
    pub write: L2Write,
    /// What a write that does not find its data does.
    pub write_allocate: L2WriteAllocate,
    /// When a missing line gets its way.
    pub allocate: L2Allocate,
    /// Miss registers of a slice.
    pub mshr_entries: u32,
    /// Requests that one miss register can answer.
    pub mshr_merges: u32,
    /// Requests to DRAM that may wait in a slice; 0: no limit.
    pub miss_queue: u32,
    /// Core cycles from look-up to the answer of a hit.
    pub hit_latency: u32,
    /// Address ranges that stay: (first byte, bytes).
    pub pinned: Vec<(u64, u64)>,
}

/// How a line of the L2 picks its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum L2SetIndex {
    /// Line number mod sets.
    Linear,
    /// All of the line number's bits folded by XOR.
    Xor,
    /// The irreducible-polynomial XOR hash of GPGPU-Sim.
    Ipoly,
}

/// What a write that finds its data in the L2 does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum L2Write {
    /// It stays in the L2 until its line is replaced.
    Back,
    /// It goes to DRAM too, whose acknowledgement answers it.
    Through,
}

/// What a write that does not find its data in the L2 does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum L2WriteAllocate {
    /// It goes to DRAM and leaves no trace in the L2.
    None,
    /// It takes a line and makes its own bytes valid there; nothing is fetched.
    Validate,
    /// As `Validate`, and the rest of its sector is fetched.
    Fetch,
    /// It goes to DRAM, and its sector is fetched.
    WriteAndFetch,
}

/// When a line that is missing from the L2 gets its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum L2Allocate {
    /// With the miss; the way is held until the data has come.
    OnMiss,
    /// With the data.
    OnFill,
}

/// DRAM: channels, mapping and model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DramConfig {
    /// Channels.
    pub channels: u32,
    /// Bytes per request (a power of two).
    pub request_bytes: u32,
    /// How a line number picks its channel.
    pub channel_map: ChannelMap,
    /// Which port of its core a reply goes to.
    pub reply_port: ReplyPort,
    /// Partitions of the channels; `None`: one.
    pub numa: Option<NumaSpec>,
    /// How one channel serves requests.
    pub model: DramModel,
}

/// NUMA: the channels in equal groups, each with address ranges of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumaSpec {
    /// Groups of channels (at least 2, a divisor of the channels): group `p` is the `p`-th run of
    /// consecutive channels.
    pub partitions: u32,
    /// Bytes of consecutive addresses that lie in one partition (a power of two); the next ones lie
    /// in the next partition, round robin.
    pub partition_bytes: u64,
    /// The partition whose channels are local to each core.
    pub home: Vec<u32>,
}

/// How the number of a memory line (address / request bytes) picks its channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChannelMap {
    /// Line mod channels.
    Interleave,
    /// The irreducible-polynomial XOR hash of GPGPU-Sim.
    Ipoly,
}

/// Which port of its core a reply goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplyPort {
    /// Channel mod ports.
    Channel,
    /// As if the line's number inside its channel were a line number: its channel mod ports. What
    /// PyTorchSim's simulator does with Ramulator, where a request's address is replaced by the one
    /// inside the channel; replies of neighbouring lines then meet at one port.
    InnerLine,
}

/// How one DRAM channel serves requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "model", rename_all = "snake_case")]
pub enum DramModel {
    /// Fixed latency under a bandwidth cap.
    Simple {
        /// DRAM cycles from admission to return.
        latency: u32,
        /// Bytes per DRAM cycle and channel; `None`: no cap beyond one request a cycle.
        bytes_per_cycle: Option<f64>,
    },
    /// Command-level bank state machines behind a controller.
    Banked {
        /// The device and its controller, the same for every channel.
        device: Box<BankedDevice>,
    },
}

/// How work-items reach the cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DispatchPolicy {
    /// Round robin over the cores of a partition, fixed in advance.
    RoundRobin,
    /// To the next core with room.
    Dynamic,
}
