//! The keys of a machine file, as data: one table says each key's type, range, unit, default and
//! meaning. Checking, defaults, override paths, the JSON schema and the commented reference file all
//! come from it, so that they cannot disagree.

use super::error::{MachineError, code};
use super::spec::Machine;
use super::text::{nearest, show};
use serde_json::{Map, Value, json};

/// What values a key takes.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A whole number.
    Integer {
        /// Smallest.
        min: u64,
        /// Largest.
        max: u64,
    },
    /// A whole power of two.
    PowerOfTwo {
        /// Smallest.
        min: u64,
        /// Largest.
        max: u64,
    },
    /// A number above 0.
    Positive {
        /// Largest.
        max: f64,
    },
    /// A frequency in MHz, with at most three decimals.
    Mhz,
    /// A number of bytes: a whole number, or a text such as `16 MiB`.
    Bytes {
        /// Largest.
        max: u64,
    },
    /// One of these words.
    Choice(&'static [(&'static str, &'static str)]),
    /// A text of at most this many bytes.
    Text {
        /// Longest.
        max_bytes: usize,
    },
    /// A tree of its own, described elsewhere; `or_name`: or the name of one that comes with us.
    Tree {
        /// Whether a name will do.
        or_name: bool,
    },
    /// A number, 0 or more.
    Amount {
        /// Largest.
        max: f64,
    },
    /// A list of whole numbers.
    Integers {
        /// Longest.
        max_len: usize,
        /// Largest element.
        max: u64,
    },
}

/// What happens when a key is absent.
#[derive(Clone, Copy, Debug)]
pub enum Absent {
    /// The description is refused.
    Required,
    /// This value (JSON) is used.
    Default(&'static str),
    /// The value of another key is used.
    SameAs(&'static str),
    /// Nothing is set; the text says what that means.
    Unset(&'static str),
}

/// One key of the schema.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Path, sections separated by points.
    pub path: &'static str,
    /// Values.
    pub kind: Kind,
    /// Unit; empty when there is none.
    pub unit: &'static str,
    /// What its absence means.
    pub absent: Absent,
    /// The key applies only if the key named here has one of these values.
    pub only_if: Option<(&'static str, &'static [&'static str])>,
    /// Meaning.
    pub doc: &'static str,
}

/// Lowest and highest clock frequency, in MHz.
pub const MHZ_RANGE: (u64, u64) = (1, 100_000);
/// Most cores.
pub const MAX_CORES: u64 = 4096;
/// Most DRAM channels.
pub const MAX_CHANNELS: u64 = 1024;
/// Most injection ports of one core.
pub const MAX_PORTS_PER_CORE: u64 = 1024;
/// Most injection ports of all cores together.
pub const MAX_PORTS: u64 = 65_536;
/// Most pairs of injection port and channel: the NoC keeps state for each.
pub const MAX_PORT_CHANNEL_PAIRS: u64 = 1 << 22;
/// Most systolic arrays of one core.
pub const MAX_ARRAYS_PER_CORE: u64 = 256;
/// Most weight slots of all cores together.
pub const MAX_WEIGHT_SLOTS: u64 = 1 << 20;
/// Most DRAM banks of all channels together.
pub const MAX_BANKS: u64 = 1 << 16;
/// Most lines of all L2 slices together.
pub const MAX_L2_LINES: u64 = 1 << 24;
/// Most resident work-items of all cores together.
pub const MAX_RESIDENTS: u64 = 1 << 16;

const SIMPLE: &[&str] = &["simple"];
const FLIT: &[&str] = &["flit"];
const BANKED: &[&str] = &["banked"];
const DATACACHE: &[&str] = &["datacache"];

/// Every key, in the order of the canonical form.
pub const KEYS: &[Key] = &[
    Key {
        path: "version",
        kind: Kind::Integer { min: 1, max: 1 },
        unit: "",
        absent: Absent::Default("1"),
        only_if: None,
        doc: "Version of this schema.",
    },
    Key {
        path: "name",
        kind: Kind::Text { max_bytes: 128 },
        unit: "",
        absent: Absent::Default("\"\""),
        only_if: None,
        doc: "Name, for people. It is not part of the machine's digest.",
    },
    Key {
        path: "clocks.core_mhz",
        kind: Kind::Mhz,
        unit: "MHz",
        absent: Absent::Required,
        only_if: None,
        doc: "Clock of the cores.",
    },
    Key {
        path: "clocks.noc_mhz",
        kind: Kind::Mhz,
        unit: "MHz",
        absent: Absent::SameAs("clocks.core_mhz"),
        only_if: None,
        doc: "Clock of the NoC.",
    },
    Key {
        path: "clocks.dram_mhz",
        kind: Kind::Mhz,
        unit: "MHz",
        absent: Absent::SameAs("clocks.core_mhz"),
        only_if: None,
        doc: "Command clock of the DRAM.",
    },
    Key {
        path: "clocks.periods",
        kind: Kind::Choice(&[
            ("exact", "conversions between clocks are exact"),
            (
                "whole_picoseconds",
                "periods are rounded down to whole picoseconds, as PyTorchSim does",
            ),
        ]),
        unit: "",
        absent: Absent::Default("\"exact\""),
        only_if: None,
        doc: "How frequencies become periods.",
    },
    Key {
        path: "cores.count",
        kind: Kind::Integer {
            min: 1,
            max: MAX_CORES,
        },
        unit: "cores",
        absent: Absent::Default("1"),
        only_if: None,
        doc: "How many cores; all are alike.",
    },
    Key {
        path: "cores.partition",
        kind: Kind::Integers {
            max_len: MAX_CORES as usize,
            max: MAX_CORES - 1,
        },
        unit: "",
        absent: Absent::Unset("every core is in partition 0"),
        only_if: None,
        doc: "Partition of each core, one number a core. A launch runs on the cores of one partition.",
    },
    Key {
        path: "cores.dram_partition",
        kind: Kind::Integers {
            max_len: MAX_CORES as usize,
            max: MAX_CHANNELS - 1,
        },
        unit: "",
        absent: Absent::Unset("the cores in dram.partitions equal runs"),
        only_if: None,
        doc: "The DRAM partition that is local to each core, one number a core.",
    },
    Key {
        path: "cores.systolic_arrays",
        kind: Kind::Integer {
            min: 1,
            max: MAX_ARRAYS_PER_CORE,
        },
        unit: "arrays",
        absent: Absent::Default("1"),
        only_if: None,
        doc: "Systolic arrays of each core.",
    },
    Key {
        path: "cores.array_rows",
        kind: Kind::Integer {
            min: 1,
            max: 65_536,
        },
        unit: "rows",
        absent: Absent::Default("128"),
        only_if: None,
        doc: "Rows of each systolic array.",
    },
    Key {
        path: "cores.array_cols",
        kind: Kind::Integer {
            min: 1,
            max: 65_536,
        },
        unit: "columns",
        absent: Absent::SameAs("cores.array_rows"),
        only_if: None,
        doc: "Columns of each systolic array.",
    },
    Key {
        path: "cores.weight_slots",
        kind: Kind::Integer { min: 1, max: 1024 },
        unit: "preloads",
        absent: Absent::Default("2"),
        only_if: None,
        doc: "Preloads that one array holds before their matmuls have finished.",
    },
    Key {
        path: "cores.array_split",
        kind: Kind::Choice(&[
            ("none", "a matmul runs on one array"),
            (
                "round_robin",
                "a matmul is spread over arrays as its unit admissions allow",
            ),
        ]),
        unit: "",
        absent: Absent::Default("\"none\""),
        only_if: None,
        doc: "Whether one matmul may use several arrays.",
    },
    Key {
        path: "cores.array_unit",
        kind: Kind::Text { max_bytes: 64 },
        unit: "",
        absent: Absent::Default("\"Systolic\""),
        only_if: Some(("cores.array_split", &["round_robin"])),
        doc: "Name of the array unit in the traces' admission tables.",
    },
    Key {
        path: "cores.vector_lanes",
        kind: Kind::Integer {
            min: 1,
            max: 65_536,
        },
        unit: "lanes",
        absent: Absent::Default("128"),
        only_if: None,
        doc: "Lanes of the vector unit.",
    },
    Key {
        path: "cores.vector_bits",
        kind: Kind::Integer {
            min: 8,
            max: 1 << 20,
        },
        unit: "bits",
        absent: Absent::Default("256"),
        only_if: None,
        doc: "Bits that one lane works on per core cycle.",
    },
    Key {
        path: "cores.scratchpad_bytes",
        kind: Kind::Bytes { max: 1 << 40 },
        unit: "bytes",
        absent: Absent::Default("0"),
        only_if: None,
        doc: "Scratchpad of each core; 0: unlimited.",
    },
    Key {
        path: "cores.compute_issue",
        kind: Kind::Choice(&[
            (
                "serial",
                "one compute tile in flight per core, whatever its unit",
            ),
            (
                "per_unit",
                "one per unit (each array, the vector unit, the cross-lane unit), overlaps honoured",
            ),
        ]),
        unit: "",
        absent: Absent::Default("\"serial\""),
        only_if: None,
        doc: "Which compute tiles of a core may be in flight together.",
    },
    Key {
        path: "cores.residency",
        kind: Kind::Choice(&[
            (
                "shared",
                "max_residents, or one when the footprint exceeds 1 / max_residents of the scratchpad",
            ),
            (
                "safe",
                "as shared, but a further work-item enters only if all residents fit to the end",
            ),
            (
                "resources",
                "as many as scratchpad, registers and threads allow, at most max_residents",
            ),
        ]),
        unit: "",
        absent: Absent::Default("\"shared\""),
        only_if: None,
        doc: "How many work-items a core holds at once.",
    },
    Key {
        path: "cores.max_residents",
        kind: Kind::Integer { min: 1, max: 1024 },
        unit: "work-items",
        absent: Absent::Default("2"),
        only_if: None,
        doc: "Most work-items that one core holds at once.",
    },
    Key {
        path: "cores.registers",
        kind: Kind::Integer {
            min: 0,
            max: 1 << 40,
        },
        unit: "registers",
        absent: Absent::Default("0"),
        only_if: Some(("cores.residency", &["resources"])),
        doc: "Registers of one core; 0: no limit.",
    },
    Key {
        path: "cores.threads",
        kind: Kind::Integer {
            min: 0,
            max: 1 << 40,
        },
        unit: "threads",
        absent: Absent::Default("0"),
        only_if: Some(("cores.residency", &["resources"])),
        doc: "Threads of one core; 0: no limit.",
    },
    Key {
        path: "cores.injection_ports",
        kind: Kind::Integer {
            min: 1,
            max: MAX_PORTS_PER_CORE,
        },
        unit: "requests per core cycle",
        absent: Absent::Default("1"),
        only_if: None,
        doc: "NoC ports of one core: its DMA injects one request per port and core cycle.",
    },
    Key {
        path: "noc.model",
        kind: Kind::Choice(&[
            (
                "simple",
                "a latency, and one packet per destination port and NoC cycle",
            ),
            (
                "flit",
                "routers and links, flit by flit: crossbar, fly, mesh, chiplet or any graph",
            ),
        ]),
        unit: "",
        absent: Absent::Default("\"simple\""),
        only_if: None,
        doc: "Model of the NoC.",
    },
    Key {
        path: "noc.latency_cycles",
        kind: Kind::Integer {
            min: 0,
            max: 1_000_000,
        },
        unit: "NoC cycles",
        absent: Absent::Default("1"),
        only_if: Some(("noc.model", SIMPLE)),
        doc: "From port to port.",
    },
    Key {
        path: "noc.topology",
        kind: Kind::Tree { or_name: false },
        unit: "",
        absent: Absent::Required,
        only_if: Some(("noc.model", FLIT)),
        doc: "Shape of the network, one of: crossbar {ports}, fly {k, n}, mesh {k, n}, chiplet {cores, memories, links, link_latency, link_cycles_per_flit}, graph {routers}. Its first nodes are the cores' ports, core by core, the next ones the channels.",
    },
    Key {
        path: "noc.router",
        kind: Kind::Tree { or_name: false },
        unit: "",
        absent: Absent::Default("{}"),
        only_if: Some(("noc.model", FLIT)),
        doc: "Routers and links: vcs, vc_buffer_flits, routing_delay, crossbar_delay, credit_delay and link_latency (NoC cycles), vc_allocator and switch_allocator (islip or separable_input_first), read_request_vcs and the like ({first, last}).",
    },
    Key {
        path: "noc.flit_bytes",
        kind: Kind::Integer {
            min: 1,
            max: 65_536,
        },
        unit: "bytes",
        absent: Absent::Default("32"),
        only_if: Some(("noc.model", FLIT)),
        doc: "Payload of one flit.",
    },
    Key {
        path: "noc.injection_queue_flits",
        kind: Kind::Integer {
            min: 0,
            max: 1 << 20,
        },
        unit: "flits",
        absent: Absent::Default("0"),
        only_if: Some(("noc.model", FLIT)),
        doc: "Flits that a node may have waiting for injection; 0: no limit.",
    },
    Key {
        path: "l2.model",
        kind: Kind::Choice(&[
            ("none", "requests go straight to DRAM"),
            (
                "datacache",
                "a sectored set-associative cache in slices, one in front of each channel",
            ),
        ]),
        unit: "",
        absent: Absent::Default("\"none\""),
        only_if: None,
        doc: "Model of the L2 cache.",
    },
    Key {
        path: "l2.sets",
        kind: Kind::PowerOfTwo {
            min: 1,
            max: 65_536,
        },
        unit: "sets",
        absent: Absent::Required,
        only_if: Some(("l2.model", DATACACHE)),
        doc: "Sets of one slice; there is a slice per channel.",
    },
    Key {
        path: "l2.ways",
        kind: Kind::Integer { min: 1, max: 4096 },
        unit: "lines",
        absent: Absent::Required,
        only_if: Some(("l2.model", DATACACHE)),
        doc: "Lines of one set.",
    },
    Key {
        path: "l2.line_bytes",
        kind: Kind::PowerOfTwo {
            min: 4,
            max: 65_536,
        },
        unit: "bytes",
        absent: Absent::Default("128"),
        only_if: Some(("l2.model", DATACACHE)),
        doc: "Bytes of one line: from one to 64 requests, neighbours inside their channel.",
    },
    Key {
        path: "l2.sector_bytes",
        kind: Kind::PowerOfTwo {
            min: 4,
            max: 65_536,
        },
        unit: "bytes",
        absent: Absent::Unset("one request"),
        only_if: Some(("l2.model", DATACACHE)),
        doc: "Bytes of one sector, what a miss fetches: from one request to a line. The line's size makes a cache without sectors.",
    },
    Key {
        path: "l2.set_index",
        kind: Kind::Choice(&[
            ("linear", "line number mod sets"),
            ("xor", "all bits of the line number folded by XOR"),
            ("ipoly", "the irreducible-polynomial XOR hash of GPGPU-Sim"),
        ]),
        unit: "",
        absent: Absent::Default("\"linear\""),
        only_if: Some(("l2.model", DATACACHE)),
        doc: "How a line picks its set. Line numbers are those inside the channel.",
    },
    Key {
        path: "l2.write",
        kind: Kind::Choice(&[
            ("back", "it stays until its line is replaced"),
            (
                "through",
                "it goes to DRAM too, whose acknowledgement answers it",
            ),
        ]),
        unit: "",
        absent: Absent::Default("\"back\""),
        only_if: Some(("l2.model", DATACACHE)),
        doc: "What a write that finds its data does.",
    },
    Key {
        path: "l2.write_allocate",
        kind: Kind::Choice(&[
            ("none", "it goes to DRAM and leaves no trace"),
            (
                "validate",
                "it takes a line and makes its own bytes valid there",
            ),
            (
                "fetch",
                "as validate, and the rest of its sector is fetched",
            ),
            (
                "write_and_fetch",
                "it goes to DRAM, and its sector is fetched",
            ),
        ]),
        unit: "",
        absent: Absent::Default("\"validate\""),
        only_if: Some(("l2.model", DATACACHE)),
        doc: "What a write that does not find its data does.",
    },
    Key {
        path: "l2.allocate",
        kind: Kind::Choice(&[
            (
                "on_miss",
                "with the miss; the way is held until the data has come",
            ),
            ("on_fill", "with the data"),
        ]),
        unit: "",
        absent: Absent::Default("\"on_miss\""),
        only_if: Some(("l2.model", DATACACHE)),
        doc: "When a missing line gets its way.",
    },
    Key {
        path: "l2.mshr_entries",
        kind: Kind::Integer {
            min: 1,
            max: 65_536,
        },
        unit: "registers",
        absent: Absent::Default("192"),
        only_if: Some(("l2.model", DATACACHE)),
        doc: "Miss registers of one slice, each for one sector.",
    },
    Key {
        path: "l2.mshr_merges",
        kind: Kind::Integer {
            min: 1,
            max: 65_536,
        },
        unit: "requests",
        absent: Absent::Default("16"),
        only_if: Some(("l2.model", DATACACHE)),
        doc: "Requests that one miss register can answer.",
    },
    Key {
        path: "l2.miss_queue",
        kind: Kind::Integer {
            min: 0,
            max: 65_536,
        },
        unit: "requests",
        absent: Absent::Default("0"),
        only_if: Some(("l2.model", DATACACHE)),
        doc: "Requests to DRAM that may wait in one slice; 0: no limit. One leaves per core cycle.",
    },
    Key {
        path: "l2.hit_latency_cycles",
        kind: Kind::Integer {
            min: 0,
            max: 1_000_000,
        },
        unit: "core cycles",
        absent: Absent::Default("1"),
        only_if: Some(("l2.model", DATACACHE)),
        doc: "From look-up to the answer of a hit, and from the data's return to that of a miss.",
    },
    Key {
        path: "l2.pinned",
        kind: Kind::Integers {
            max_len: 64,
            max: 1 << 52,
        },
        unit: "bytes",
        absent: Absent::Unset("no line is pinned"),
        only_if: Some(("l2.model", DATACACHE)),
        doc: "Address ranges whose lines only each other replace: first byte and number of bytes, range by range. Widened to whole rows of lines across the channels.",
    },
    Key {
        path: "dram.channels",
        kind: Kind::Integer {
            min: 1,
            max: MAX_CHANNELS,
        },
        unit: "channels",
        absent: Absent::Required,
        only_if: None,
        doc: "DRAM channels; each has a NoC port.",
    },
    Key {
        path: "dram.request_bytes",
        kind: Kind::PowerOfTwo { min: 4, max: 4096 },
        unit: "bytes",
        absent: Absent::Default("32"),
        only_if: None,
        doc: "Bytes of one memory request, which is also the size of a memory line.",
    },
    Key {
        path: "dram.channel_map",
        kind: Kind::Choice(&[
            ("interleave", "line number mod channels"),
            ("ipoly", "the irreducible-polynomial XOR hash of GPGPU-Sim"),
        ]),
        unit: "",
        absent: Absent::Default("\"ipoly\""),
        only_if: None,
        doc: "How a memory line picks its channel.",
    },
    Key {
        path: "dram.reply_port",
        kind: Kind::Choice(&[
            ("channel", "channel mod ports"),
            (
                "inner_line",
                "the channel that the line's number inside its channel would map to, mod ports",
            ),
        ]),
        unit: "",
        absent: Absent::Default("\"channel\""),
        only_if: None,
        doc: "Which port of its core a reply goes to.",
    },
    Key {
        path: "dram.partitions",
        kind: Kind::Integer {
            min: 1,
            max: MAX_CHANNELS,
        },
        unit: "partitions",
        absent: Absent::Unset("1"),
        only_if: None,
        doc: "NUMA partitions: the channels in so many equal groups, each with address ranges of its own. Results then count each core's local and remote requests.",
    },
    Key {
        path: "dram.partition_bytes",
        kind: Kind::PowerOfTwo {
            min: 4096,
            max: 1 << 52,
        },
        unit: "bytes",
        absent: Absent::Unset("64 GiB"),
        only_if: None,
        doc: "Consecutive addresses that lie in one partition; the next so many lie in the next partition, round robin. A launch places a tensor by its base address.",
    },
    Key {
        path: "dram.model",
        kind: Kind::Choice(&[
            ("simple", "a fixed latency under a bandwidth cap"),
            (
                "banked",
                "command-level bank state machines behind a controller",
            ),
        ]),
        unit: "",
        absent: Absent::Default("\"simple\""),
        only_if: None,
        doc: "Model of one DRAM channel.",
    },
    Key {
        path: "dram.latency_cycles",
        kind: Kind::Integer {
            min: 0,
            max: 1_000_000,
        },
        unit: "DRAM cycles",
        absent: Absent::Required,
        only_if: Some(("dram.model", SIMPLE)),
        doc: "From admission to return.",
    },
    Key {
        path: "dram.bytes_per_cycle",
        kind: Kind::Positive { max: 65_536.0 },
        unit: "bytes per DRAM cycle and channel",
        absent: Absent::Unset("no cap beyond one request per DRAM cycle and channel"),
        only_if: Some(("dram.model", SIMPLE)),
        doc: "Bandwidth of one channel.",
    },
    Key {
        path: "dram.device",
        kind: Kind::Tree { or_name: true },
        unit: "",
        absent: Absent::Required,
        only_if: Some(("dram.model", BANKED)),
        doc: "The device and its controller, in Ramulator 2's form (keys impl, dram, ...), or the name of one of sim-core/machines/devices. dram.request_bytes and clocks.dram_mhz default to the device's, and must not contradict it.",
    },
    Key {
        path: "dispatch",
        kind: Kind::Choice(&[
            (
                "round_robin",
                "round robin over the cores of a partition, fixed in advance",
            ),
            ("dynamic", "to the next core with room"),
        ]),
        unit: "",
        absent: Absent::Default("\"round_robin\""),
        only_if: None,
        doc: "How work-items reach the cores.",
    },
    Key {
        path: "memory",
        kind: Kind::Choice(&[
            ("requests", "every request, cycle by cycle"),
            (
                "transfer",
                "whole transfers against shares of latency and bandwidth: fast, approximate, and said so in every result",
            ),
        ]),
        unit: "",
        absent: Absent::Unset("requests"),
        only_if: None,
        doc: "What the memory system simulates. transfer takes its figures from the noc, l2 and dram sections.",
    },
    Key {
        path: "energy.activation_pj",
        kind: Kind::Amount { max: 1e9 },
        unit: "pJ",
        absent: Absent::Unset("not counted"),
        only_if: None,
        doc: "Opening and closing a DRAM row once. Only banked DRAM counts rows.",
    },
    Key {
        path: "energy.read_pj_per_bit",
        kind: Kind::Amount { max: 1e9 },
        unit: "pJ per bit",
        absent: Absent::Unset("not counted"),
        only_if: None,
        doc: "Reading from an open DRAM row.",
    },
    Key {
        path: "energy.write_pj_per_bit",
        kind: Kind::Amount { max: 1e9 },
        unit: "pJ per bit",
        absent: Absent::Unset("not counted"),
        only_if: None,
        doc: "Writing to an open DRAM row.",
    },
    Key {
        path: "energy.io_pj_per_bit",
        kind: Kind::Amount { max: 1e9 },
        unit: "pJ per bit",
        absent: Absent::Unset("not counted"),
        only_if: None,
        doc: "Moving data over the DRAM's pins.",
    },
    Key {
        path: "energy.phy_pj_per_bit",
        kind: Kind::Amount { max: 1e9 },
        unit: "pJ per bit",
        absent: Absent::Unset("not counted"),
        only_if: None,
        doc: "Moving data through the physical layer on the chip's side.",
    },
    Key {
        path: "energy.refresh_pj",
        kind: Kind::Amount { max: 1e9 },
        unit: "pJ",
        absent: Absent::Unset("not counted"),
        only_if: None,
        doc: "One DRAM refresh command. Only banked DRAM counts them.",
    },
    Key {
        path: "energy.background_mw",
        kind: Kind::Amount { max: 1e9 },
        unit: "mW per channel",
        absent: Absent::Unset("not counted"),
        only_if: None,
        doc: "What a DRAM channel draws all the time.",
    },
    Key {
        path: "energy.noc_pj_per_byte",
        kind: Kind::Amount { max: 1e9 },
        unit: "pJ per byte",
        absent: Absent::Unset("not counted"),
        only_if: None,
        doc: "Moving data through the NoC, one way.",
    },
    Key {
        path: "energy.l2_pj_per_byte",
        kind: Kind::Amount { max: 1e9 },
        unit: "pJ per byte",
        absent: Absent::Unset("not counted"),
        only_if: None,
        doc: "Accessing data in the L2: look-ups, fills and write-backs.",
    },
    Key {
        path: "energy.scratchpad_pj_per_byte",
        kind: Kind::Amount { max: 1e9 },
        unit: "pJ per byte",
        absent: Absent::Unset("not counted"),
        only_if: None,
        doc: "Moving data into or out of a scratchpad by DMA.",
    },
    Key {
        path: "energy.array_pj_per_cell_cycle",
        kind: Kind::Amount { max: 1e9 },
        unit: "pJ",
        absent: Absent::Unset("not counted"),
        only_if: None,
        doc: "One cell of a systolic array in an active cycle of it.",
    },
    Key {
        path: "energy.vector_pj_per_lane_cycle",
        kind: Kind::Amount { max: 1e9 },
        unit: "pJ",
        absent: Absent::Unset("not counted"),
        only_if: None,
        doc: "One lane of the vector unit in an active cycle of it.",
    },
    Key {
        path: "energy.cross_lane_pj_per_cycle",
        kind: Kind::Amount { max: 1e9 },
        unit: "pJ",
        absent: Absent::Unset("not counted"),
        only_if: None,
        doc: "The cross-lane unit in an active cycle of it.",
    },
];

/// The key with this path.
pub fn key(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path)
}

/// The key that a path lies in: the key itself, or a place inside a tree or list.
pub fn key_around(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| {
        let inside = path
            .strip_prefix(key.path)
            .is_some_and(|rest| rest.starts_with('.'));
        key.path == path || inside && matches!(key.kind, Kind::Tree { .. } | Kind::Integers { .. })
    })
}

/// The names of sections, in the order of the canonical form.
fn sections() -> Vec<&'static str> {
    let mut sections = Vec::new();
    for key in KEYS {
        if let Some((section, _)) = key.path.split_once('.')
            && !sections.contains(&section)
        {
            sections.push(section);
        }
    }
    sections
}

/// The value at the path of a key.
pub(super) fn get<'v>(tree: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.')
        .try_fold(tree, |value, segment| value.get(segment))
}

/// Sets the value at a path, creating the maps on the way to it. A number goes into a list if there
/// is an element of that index.
pub(super) fn set(tree: &mut Value, path: &str, value: Value) -> bool {
    let Some((first, rest)) = path.split_once('.') else {
        return match slot(tree, path) {
            Some(slot) => {
                *slot = value;
                true
            }
            None => false,
        };
    };
    slot(tree, first).is_some_and(|inner| set(inner, rest, value))
}

/// The place of one path segment inside a map, a list or nothing yet.
fn slot<'v>(tree: &'v mut Value, name: &str) -> Option<&'v mut Value> {
    if tree.is_null() {
        *tree = Value::Object(Map::new());
    }
    match tree {
        Value::Object(map) => Some(map.entry(name).or_insert(Value::Null)),
        Value::Array(list) => list.get_mut(name.parse::<usize>().ok()?),
        _ => None,
    }
}

/// Removes the value at a path of at most two segments.
pub(super) fn remove(tree: &mut Value, path: &str) {
    let map = match path.split_once('.') {
        Some((section, _)) => tree.get_mut(section),
        None => Some(tree),
    };
    if let Some(Value::Object(map)) = map {
        map.remove(path.rsplit('.').next().unwrap_or(path));
    }
}

/// An error that names an unknown path and, where one is near, the key that was probably meant.
pub(super) fn unknown(path: &str) -> MachineError {
    let name = path.rsplit('.').next().unwrap_or(path);
    let near = nearest(path, KEYS.iter().map(|key| key.path))
        .map(str::to_owned)
        .or_else(|| {
            // A key of the right name in the wrong section.
            let same = |key: &&Key| key.path.rsplit('.').next() == Some(name);
            KEYS.iter().find(same).map(|key| key.path.to_owned())
        })
        .or_else(|| nearest(path, sections().into_iter()).map(str::to_owned))
        .or_else(|| {
            // A misspelt name in a section that is spelt right, or a misspelt name without one.
            let section = path.split_once('.').map(|(section, _)| section);
            let names = KEYS.iter().filter(|key| match section {
                Some(section) => key.path.split_once('.').is_some_and(|(s, _)| s == section),
                None => true,
            });
            let names: Vec<_> = names.collect();
            let name = nearest(
                name,
                names.iter().filter_map(|key| key.path.rsplit('.').next()),
            )?;
            let full = names
                .iter()
                .find(|key| key.path.rsplit('.').next() == Some(name))?;
            Some(full.path.to_owned())
        });
    let shown: String = path.chars().take(80).collect();
    let error = MachineError::new(code::UNKNOWN_KEY, shown, "no such key");
    if sections().contains(&path) {
        return error.hint("it is a section: name a key in it");
    }
    match near {
        Some(near) => error.hint(format!("did you mean '{near}'?")),
        None => error.hint("docs/machine-schema.json lists every key"),
    }
}

/// Checks a tree against the table and fills in what is absent. Afterwards every applicable key has
/// a value of its kind, except those that may stay unset.
pub(super) fn complete(mut tree: Value) -> Result<Value, MachineError> {
    let Value::Object(root) = &mut tree else {
        return Err(
            MachineError::new(code::WRONG_TYPE, "", "expected a map of keys")
                .hint("a machine file starts with keys such as 'clocks:'"),
        );
    };
    // An empty section is as good as an absent one.
    let names = sections();
    root.retain(|name, value| !(names.contains(&name.as_str()) && value.is_null()));
    for (name, value) in root.iter() {
        match value {
            Value::Object(map) if names.contains(&name.as_str()) => {
                for inner in map.keys() {
                    let path = format!("{name}.{inner}");
                    if key(&path).is_none() {
                        return Err(unknown(&path));
                    }
                }
            }
            _ if names.contains(&name.as_str()) => {
                return Err(MachineError::new(
                    code::WRONG_TYPE,
                    name,
                    format!("expected a section of keys, found {}", show(value)),
                ));
            }
            _ if key(name).is_none() => return Err(unknown(name)),
            _ => {}
        }
    }
    for key in KEYS {
        // A null is an absent value.
        if get(&tree, key.path).is_some_and(Value::is_null) {
            remove(&mut tree, key.path);
        }
        let given = get(&tree, key.path);
        if let Some((selector, words)) = key.only_if {
            let chosen = get(&tree, selector)
                .and_then(Value::as_str)
                .unwrap_or_default();
            if !words.contains(&chosen) {
                if given.is_some() {
                    return Err(MachineError::new(
                        code::KEY_NOT_APPLICABLE,
                        key.path,
                        format!("means nothing while {selector} is '{chosen}'"),
                    )
                    .hint(format!(
                        "remove it, or set {selector} to '{}'",
                        words.join("' or '")
                    )));
                }
                continue;
            }
        }
        let value =
            match (given, key.absent) {
                (Some(value), _) => Some(check(key, value)?),
                (None, Absent::Default(text)) => serde_json::from_str(text).ok(),
                (None, Absent::SameAs(other)) => get(&tree, other).cloned(),
                (None, Absent::Unset(_)) => None,
                (None, Absent::Required) => {
                    return Err(
                        MachineError::new(code::MISSING_KEY, key.path, "is required").hint(
                            format!("{}{}", key.doc.trim_end_matches('.'), in_unit(key.unit)),
                        ),
                    );
                }
            };
        if let Some(value) = value {
            set(&mut tree, key.path, value);
        }
    }
    Ok(tree)
}

fn in_unit(unit: &str) -> String {
    if unit.is_empty() {
        String::new()
    } else {
        format!(", in {unit}")
    }
}

/// Checks one value against its key and returns it in canonical form.
fn check(key: &Key, value: &Value) -> Result<Value, MachineError> {
    let wrong = |expected: &str| {
        MachineError::new(
            code::WRONG_TYPE,
            key.path,
            format!("expected {expected}, found {}", show(value)),
        )
    };
    let range = |text: String| {
        MachineError::new(
            code::OUT_OF_RANGE,
            key.path,
            format!("{} is not {text}", show(value)),
        )
    };
    match key.kind {
        Kind::Integer { min, max } | Kind::PowerOfTwo { min, max } => {
            let power = matches!(key.kind, Kind::PowerOfTwo { .. });
            let what = if power {
                "a power of two"
            } else {
                "a whole number"
            };
            let text = format!("{what} from {min} to {max}{}", in_unit(key.unit));
            match value {
                Value::Number(number) => match number.as_u64() {
                    Some(n) if n >= min && n <= max && (!power || n.is_power_of_two()) => {
                        Ok(json!(n))
                    }
                    _ => Err(range(text)),
                },
                _ => Err(wrong(&text)),
            }
        }
        Kind::Positive { max } => {
            let number = value.as_f64().ok_or_else(|| wrong("a number"))?;
            if number > 0.0 && number <= max {
                Ok(json!(number))
            } else {
                Err(range(format!(
                    "a number above 0, at most {max}{}",
                    in_unit(key.unit)
                )))
            }
        }
        Kind::Amount { max } => {
            let number = value.as_f64().ok_or_else(|| wrong("a number"))?;
            if (0.0..=max).contains(&number) {
                Ok(json!(number))
            } else {
                Err(range(format!(
                    "a number from 0 to {max}{}",
                    in_unit(key.unit)
                )))
            }
        }
        Kind::Mhz => {
            let (min, max) = MHZ_RANGE;
            let number = value.as_f64().ok_or_else(|| wrong("a frequency in MHz"))?;
            if !(number >= min as f64 && number <= max as f64) {
                return Err(range(format!("a frequency from {min} to {max} MHz")));
            }
            khz_of_mhz(number)
                .map(mhz_value)
                .ok_or_else(|| range("a frequency in MHz with at most three decimals".to_owned()))
        }
        Kind::Bytes { max } => {
            let bytes = match value {
                Value::Number(number) => number
                    .as_u64()
                    .ok_or_else(|| range("a whole number of bytes".to_owned()))?,
                Value::String(text) => {
                    bytes_of(text).ok_or_else(|| wrong("bytes, or a text such as '16 MiB'"))?
                }
                _ => return Err(wrong("bytes, or a text such as '16 MiB'")),
            };
            if bytes > max {
                return Err(range(format!("at most {max} bytes")));
            }
            Ok(json!(bytes))
        }
        Kind::Choice(words) => {
            let text = value.as_str().ok_or_else(|| wrong("a word"))?;
            if words.iter().any(|(word, _)| *word == text) {
                return Ok(value.clone());
            }
            let names = || words.iter().map(|(word, _)| *word);
            let error = MachineError::new(
                code::NOT_ONE_OF,
                key.path,
                format!(
                    "{} is not one of {}",
                    show(value),
                    names().collect::<Vec<_>>().join(", ")
                ),
            );
            Err(match nearest(text, names()) {
                Some(near) => error.hint(format!("did you mean '{near}'?")),
                None => error,
            })
        }
        Kind::Text { max_bytes } => {
            let text = value.as_str().ok_or_else(|| wrong("a text"))?;
            if text.len() > max_bytes {
                return Err(range(format!("at most {max_bytes} bytes long")));
            }
            if text.chars().any(char::is_control) {
                return Err(range("free of control characters".to_owned()));
            }
            Ok(value.clone())
        }
        Kind::Tree { or_name } => match value {
            Value::Object(_) => Ok(value.clone()),
            Value::String(_) if or_name => Ok(value.clone()),
            _ if or_name => Err(wrong("a name or a tree of keys")),
            _ => Err(wrong("a tree of keys")),
        },
        Kind::Integers { max_len, max } => {
            let list = value
                .as_array()
                .ok_or_else(|| wrong("a list of whole numbers"))?;
            if list.len() > max_len {
                return Err(range(format!("a list of at most {max_len} numbers")));
            }
            for (index, element) in list.iter().enumerate() {
                if element.as_u64().is_none_or(|n| n > max) {
                    return Err(MachineError::new(
                        code::OUT_OF_RANGE,
                        format!("{}[{index}]", key.path),
                        format!("{} is not a whole number from 0 to {max}", show(element)),
                    ));
                }
            }
            Ok(value.clone())
        }
    }
}

/// A frequency in kHz, if it is a whole number of them.
pub(super) fn khz_of_mhz(mhz: f64) -> Option<u64> {
    let khz = (mhz * 1000.0).round();
    // Decimal fractions such as 940.1 are not exact in binary; half a hertz is not a difference.
    ((mhz * 1000.0 - khz).abs() < 5e-4 && (0.0..1e15).contains(&khz)).then_some(khz as u64)
}

/// A frequency in kHz as a value in MHz.
pub(super) fn mhz_value(khz: u64) -> Value {
    if khz.is_multiple_of(1000) {
        json!(khz / 1000)
    } else {
        json!(khz as f64 / 1000.0)
    }
}

/// A text such as `16 MiB` as bytes.
fn bytes_of(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim_start() {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// The schema as a JSON schema (draft 2020-12). `docs/machine-schema.json` is this text.
pub fn json_schema() -> Value {
    let object = |doc: &str| {
        json!({
            "type": "object",
            "description": doc,
            "additionalProperties": false,
            "properties": {},
        })
    };
    let mut root = object("A tilesim machine description (YAML or JSON).");
    if let Value::Object(map) = &mut root {
        map.insert(
            "$schema".into(),
            json!("https://json-schema.org/draft/2020-12/schema"),
        );
        map.insert("title".into(), json!("tilesim machine"));
    }
    for key in KEYS {
        let property = property(key);
        let required = matches!(key.absent, Absent::Required) && key.only_if.is_none();
        let (holder, name) = match key.path.split_once('.') {
            Some((section, name)) => {
                if let Some(Value::Object(sections)) = root.get_mut("properties") {
                    sections
                        .entry(section)
                        .or_insert_with(|| object(section_doc(section)));
                }
                if required {
                    require(&mut root, section);
                }
                (root.pointer_mut(&format!("/properties/{section}")), name)
            }
            None => (Some(&mut root), key.path),
        };
        if let Some(holder) = holder {
            if required {
                require(holder, name);
            }
            if let Some(Value::Object(properties)) = holder.get_mut("properties") {
                properties.insert(name.to_owned(), property);
            }
        }
    }
    root
}

fn require(object: &mut Value, name: &str) {
    if let Value::Object(map) = object
        && let Value::Array(list) = map.entry("required").or_insert_with(|| json!([]))
        && !list.contains(&json!(name))
    {
        list.push(json!(name));
    }
}

fn section_doc(section: &str) -> &'static str {
    match section {
        "clocks" => "Frequencies, and how they become periods.",
        "cores" => "The cores and what each of them holds.",
        "noc" => "The network between cores and memory.",
        "l2" => "The L2 cache in front of each channel.",
        "dram" => "Memory channels.",
        "energy" => {
            "What things cost, to six decimals; a result has a breakdown once any is given."
        }
        _ => "",
    }
}

fn property(key: &Key) -> Value {
    let mut property = match key.kind {
        Kind::Integer { min, max } => json!({"type": "integer", "minimum": min, "maximum": max}),
        Kind::PowerOfTwo { min, max } => {
            let powers = (0..64)
                .map(|bit| 1u64 << bit)
                .filter(|n| (min..=max).contains(n));
            json!({"enum": powers.collect::<Vec<_>>()})
        }
        Kind::Positive { max } => {
            json!({"type": "number", "exclusiveMinimum": 0, "maximum": max})
        }
        Kind::Amount { max } => json!({"type": "number", "minimum": 0, "maximum": max}),
        Kind::Mhz => {
            json!({"type": "number", "minimum": MHZ_RANGE.0, "maximum": MHZ_RANGE.1})
        }
        Kind::Bytes { max } => json!({"oneOf": [
            {"type": "integer", "minimum": 0, "maximum": max},
            {"type": "string", "pattern": "^ *[0-9]+ *(B|KiB|MiB|GiB|TiB)? *$"},
        ]}),
        Kind::Choice(words) => {
            json!({"enum": words.iter().map(|(word, _)| *word).collect::<Vec<_>>()})
        }
        Kind::Text { max_bytes } => json!({"type": "string", "maxLength": max_bytes}),
        Kind::Tree { or_name: false } => json!({"type": "object"}),
        Kind::Tree { or_name: true } => json!({"type": ["object", "string"]}),
        Kind::Integers { max_len, max } => json!({
            "type": "array",
            "maxItems": max_len,
            "items": {"type": "integer", "minimum": 0, "maximum": max},
        }),
    };
    if let Value::Object(map) = &mut property {
        map.insert("description".into(), json!(describe(key).join(" ")));
        if let Absent::Default(text) = key.absent
            && let Ok(value) = serde_json::from_str::<Value>(text)
        {
            map.insert("default".into(), value);
        }
    }
    property
}

/// What there is to say about a key, a sentence a line.
fn describe(key: &Key) -> Vec<String> {
    let mut lines = vec![key.doc.to_owned()];
    if !key.unit.is_empty() {
        lines.push(format!("Unit: {}.", key.unit));
    }
    match key.kind {
        Kind::Choice(words) => {
            for (word, meaning) in words {
                lines.push(format!("{word}: {meaning}."));
            }
        }
        Kind::Integer { min, max } => lines.push(format!("From {min} to {max}.")),
        Kind::PowerOfTwo { min, max } => {
            lines.push(format!("A power of two from {min} to {max}."));
        }
        Kind::Positive { max } => lines.push(format!("Above 0, at most {max}.")),
        Kind::Amount { max } => lines.push(format!("From 0 to {max}.")),
        Kind::Mhz => lines.push(format!(
            "From {} to {}, at most three decimals.",
            MHZ_RANGE.0, MHZ_RANGE.1
        )),
        Kind::Bytes { max } => {
            lines.push(format!("At most {max}; a text such as '16 MiB' will do."));
        }
        Kind::Text { max_bytes } => lines.push(format!("At most {max_bytes} bytes.")),
        Kind::Integers { .. } | Kind::Tree { .. } => {}
    }
    lines.push(match key.absent {
        Absent::Required => "Required.".to_owned(),
        Absent::Default(text) => format!("Default: {text}."),
        Absent::SameAs(other) => format!("Default: the value of {other}."),
        Absent::Unset(meaning) => format!("Absent: {meaning}."),
    });
    if let Some((selector, words)) = key.only_if {
        lines.push(format!("Only with {selector}: {}.", words.join(" or ")));
    }
    lines
}

/// The commented reference file: every key with its documentation and its value in `example`.
/// `sim-core/machines/reference.yaml` is this text for the defaults.
///
/// # Errors
///
/// As [`Machine::to_value`].
pub fn reference_yaml(example: &Machine) -> Result<String, MachineError> {
    let example = &example.to_value()?;
    let mut out = String::from(
        "# Every key of a tilesim machine file. This text is generated from the schema's table\n\
         # (sim-core/src/machine/schema.rs); a test keeps it so. Keys that do not apply to the values\n\
         # chosen here are commented out.\n",
    );
    let mut open = "";
    for key in KEYS {
        let (indent, name) = match key.path.split_once('.') {
            Some((section, name)) => {
                // A section without a value is a comment as a whole.
                let hash = if get(example, section).is_some() {
                    ""
                } else {
                    "# "
                };
                if section != open {
                    out.push_str(&format!("\n# {}\n{hash}{section}:\n", section_doc(section)));
                    open = section;
                }
                (if hash.is_empty() { "  " } else { "" }, name)
            }
            None => {
                out.push('\n');
                ("", key.path)
            }
        };
        for line in describe(key) {
            out.push_str(&format!("{indent}# {line}\n"));
        }
        match get(example, key.path) {
            Some(value) => out.push_str(&format!("{indent}{name}: {value}\n")),
            None => out.push_str(&format!("{indent}# {name}:\n")),
        }
    }
    Ok(out)
}
