//! The validated description of one channel: organisation, clocks, timing table, controller options.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::mapping::{AddressMap, ChannelMapper, Field, Shape};
use super::standards::{Cmd, Standard};
use super::timing::Timing;

/// Why a device description was refused: where, and what is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}")]
pub struct DramSpecError {
    /// Key path inside the file, such as `memory_system.controllers[0].dram.timing`.
    pub path: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl DramSpecError {
    pub(crate) fn at(path: impl Into<String>, message: impl Into<String>) -> DramSpecError {
        DramSpecError {
            path: path.into(),
            message: message.into(),
        }
    }
}

/// One row of a timing table: after any of `before` at a node, any of `after` at the same node waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Constraint {
    /// Level of the node, 0 = channel.
    pub level: u8,
    /// Earlier commands.
    pub before: Vec<Cmd>,
    /// Later commands.
    pub after: Vec<Cmd>,
    /// Ticks between them.
    pub cycles: u32,
    /// The earlier command is the `window`-th most recent (4 for four-activate windows).
    pub window: u8,
    /// The later command is at a sibling of the node instead of at the node itself.
    pub sibling: bool,
}

/// How commands share the command bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Bus {
    /// One command per tick (DDR4, DDR5, GDDR6).
    Single,
    /// One command per tick; split activates and clock synchronisation (LPDDR5).
    Lpddr,
    /// A column and a row command per tick, shared by the pseudo-channels (HBM, HBM2).
    Dual,
    /// As `Dual` in half-clock ticks: only precharges on falling edges, with pairing rules (HBM3).
    DualHalf,
}

/// Which scheduler decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scheduler {
    /// Ramulator 2.1's: one read and one write queue per channel, first ready first come first served.
    Ramulator,
    /// A look-ahead queue per bank behind the channel's queues, as DRAMsim3 has; posted writes.
    PerBank {
        /// Entries of each bank's queue.
        depth: u32,
    },
}

/// When banks are refreshed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refresh {
    /// Never.
    None,
    /// Every node of `level` in one go, each `interval` ticks.
    AllBank {
        /// Ticks between refreshes (tREFI).
        interval: u32,
        /// Level whose nodes are refreshed, 0 = channel.
        level: u8,
    },
    /// One bank in turn, each `interval` ticks.
    PerBank {
        /// Ticks between refreshes (tREFI per bank).
        interval: u32,
    },
}

/// What happens to a row after its last queued access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RowPolicy {
    /// It stays open until another row needs the bank.
    Open,
    /// It closes by auto-precharge with the last access that is queued for it.
    Closed,
}

/// Validated, immutable description of one DRAM channel: device and controller options.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DramSpec {
    /// A name for messages.
    pub name: String,
    /// Device family.
    pub standard: Standard,
    /// Command bus rules.
    pub bus: Bus,
    /// Scheduling rules.
    pub scheduler: Scheduler,
    /// Refresh rules.
    pub refresh: Refresh,
    /// Row policy.
    pub row_policy: RowPolicy,
    /// Nodes per level from the channel (1) to the bank, as in `org.count`.
    pub levels: Vec<u32>,
    /// Rows per bank.
    pub rows: u32,
    /// Columns per row (not transactions).
    pub columns: u32,
    /// Width of the data bus in bits.
    pub channel_width: u32,
    /// Named timings in ticks (`tCK_ps` in ps, `rate` in MT/s).
    pub timing: BTreeMap<String, u32>,
    /// Ticks from a read command to its data.
    pub read_latency: u32,
    /// Ticks the data bus is busy per transaction.
    pub burst: u32,
    /// The timing table.
    pub constraints: Vec<Constraint>,
    /// Read queue entries.
    pub read_queue: u32,
    /// Write queue entries.
    pub write_queue: u32,
    /// Drain writes when more than this many are queued.
    pub drain_above: u32,
    /// Go back to reads when fewer than this many writes are queued.
    pub drain_below: u32,
    /// LPDDR5: the data clock never stops, no synchronisation commands.
    pub wck_always_on: bool,
    /// Requests accepted per tick; `u32::MAX` for as many as fit.
    pub accepts_per_tick: u32,
    /// Row statistics look at the bank after the command (Ramulator's older `HBM` controller).
    pub stats_after_command: bool,
    /// Address bits above the transaction offset, lowest first.
    pub mapping: Vec<(Field, u32)>,
    #[serde(skip)]
    pub(crate) map: AddressMap,
    #[serde(skip)]
    pub(crate) table: Timing,
}

/// A loaded memory system file.
#[derive(Clone, Debug, PartialEq)]
pub struct RamulatorFile {
    /// The channel, the same for all.
    pub spec: DramSpec,
    /// How many channels the file lists.
    pub channels: u32,
    /// How addresses are split over channels.
    pub mapper: ChannelMapper,
}

const MAX_CYCLES: i64 = 1 << 19;

struct At<'a> {
    v: &'a Value,
    path: String,
}

impl<'a> At<'a> {
    fn get(&self, key: &str) -> Result<At<'a>, DramSpecError> {
        self.opt(key)
            .ok_or_else(|| DramSpecError::at(format!("{}.{key}", self.path), "missing"))
    }
    fn opt(&self, key: &str) -> Option<At<'a>> {
        let path = if self.path.is_empty() {
            key.to_string()
        } else {
            format!("{}.{key}", self.path)
        };
        self.v
            .get(key)
            .filter(|v| !v.is_null())
            .map(|v| At { v, path })
    }
    fn int(&self, lo: i64, hi: i64) -> Result<i64, DramSpecError> {
        match self.v.as_i64() {
            Some(x) if (lo..=hi).contains(&x) => Ok(x),
            _ => Err(self.err(format!("expected an integer from {lo} to {hi}"))),
        }
    }
    fn num(&self) -> Result<f32, DramSpecError> {
        match self.v.as_f64() {
            Some(x) if (0.0..=1.0).contains(&x) => Ok(x as f32),
            _ => Err(self.err("expected a fraction from 0 to 1")),
        }
    }
    fn str(&self) -> Result<&'a str, DramSpecError> {
        self.v.as_str().ok_or_else(|| self.err("expected a string"))
    }
    fn list(&self) -> Result<Vec<At<'a>>, DramSpecError> {
        let list = self
            .v
            .as_array()
            .ok_or_else(|| self.err("expected a list"))?;
        Ok(list
            .iter()
            .enumerate()
            .map(|(i, v)| At {
                v,
                path: format!("{}[{i}]", self.path),
            })
            .collect())
    }
    fn err(&self, message: impl Into<String>) -> DramSpecError {
        DramSpecError::at(self.path.clone(), message)
    }
    fn keys(&self, known: &[&str]) -> Result<(), DramSpecError> {
        let map = self
            .v
            .as_object()
            .ok_or_else(|| self.err("expected a mapping"))?;
        match map.keys().find(|k| !known.contains(&k.as_str())) {
            Some(k) => Err(DramSpecError::at(
                format!("{}.{k}", self.path),
                format!("unknown key; known here: {}", known.join(", ")),
            )),
            None => Ok(()),
        }
    }
}

impl DramSpec {
    /// Parses the text of a Ramulator 2.1 configuration file, YAML or JSON, with its fully resolved values.
    ///
    /// Keys that are absent take Ramulator's defaults. Keys the model does not know are refused.
    pub fn from_ramulator(text: &str) -> Result<RamulatorFile, DramSpecError> {
        let value: Value = match serde_json::from_str(text) {
            Ok(v) => v,
            Err(_) => serde_saphyr::from_str(text)
                .map_err(|e| DramSpecError::at("", format!("neither JSON nor YAML: {e}")))?,
        };
        let root = At {
            v: &value,
            path: String::new(),
        };
        let ms = root.get("memory_system")?;
        ms.keys(&["impl", "clock_ratio", "channel_mapper", "controllers"])?;
        if let Some(kind) = ms.opt("impl")
            && kind.str()? != "GenericDRAM"
        {
            return Err(kind.err("only GenericDRAM is supported"));
        }
        let controllers = ms.get("controllers")?;
        let list = controllers.list()?;
        if list.len() > 4096 {
            return Err(controllers.err("at most 4096 channels"));
        }
        let first = list
            .first()
            .ok_or_else(|| controllers.err("at least one controller is needed"))?;
        for c in &list[1..] {
            if c.v != first.v {
                return Err(c.err("all channels must be described alike"));
            }
        }
        let channels = list.len() as u32;
        let mapper = match ms.opt("channel_mapper") {
            None => ChannelMapper::PassThrough,
            Some(m) => {
                let kind = m.get("impl")?;
                match kind.str()? {
                    "PassThroughChannelMapper" => ChannelMapper::PassThrough,
                    "CacheLineInterleave" => {
                        if !channels.is_power_of_two() {
                            return Err(kind.err("the number of channels must be a power of two"));
                        }
                        let bits = m.opt("interleave_bits").map_or(Ok(0), |b| b.int(0, 24))?;
                        ChannelMapper::Interleave {
                            interleave_bits: bits as u32,
                        }
                    }
                    _ => {
                        return Err(
                            kind.err("expected CacheLineInterleave or PassThroughChannelMapper")
                        );
                    }
                }
            }
        };
        Ok(RamulatorFile {
            spec: DramSpec::from_controller(first)?,
            channels,
            mapper,
        })
    }

    fn from_controller(c: &At<'_>) -> Result<DramSpec, DramSpecError> {
        c.keys(&[
            "impl",
            "wr_low_watermark",
            "wr_high_watermark",
            "read_buffer_size",
            "write_buffer_size",
            "priority_buffer_size",
            "wck_sync_mode",
            "scheduler",
            "refresh_manager",
            "row_policy",
            "addr_mapper",
            "dram",
            "plugins",
        ])?;
        for (child, keys) in [
            ("scheduler", &["impl"][..]),
            (
                "refresh_manager",
                &["impl", "scope", "scatter_interval", "debug"],
            ),
            ("row_policy", &["impl"]),
            ("addr_mapper", &["impl"]),
        ] {
            if let Some(node) = c.opt(child) {
                node.keys(keys)?;
            }
        }
        let kind = c.get("impl")?;
        let (bus, stats_after_command) = match kind.str()? {
            "GenericDDR" => (Bus::Single, false),
            "LPDDR5" => (Bus::Lpddr, false),
            "HBM12" => (Bus::Dual, false),
            "HBM34" => (Bus::DualHalf, false),
            "HBM" => (Bus::Dual, false),
            _ => return Err(kind.err("expected GenericDDR, LPDDR5, HBM12, HBM34 or HBM")),
        };
        if let Some(p) = c.opt("plugins")
            && !p.list()?.is_empty()
        {
            return Err(p.err("controller plugins are not supported"));
        }
        if let Some(s) = c.opt("scheduler") {
            let k = s.get("impl")?;
            if k.str()? != "FRFCFS" {
                return Err(k.err("only FRFCFS is supported"));
            }
        }
        let row_policy = match c.opt("row_policy") {
            None => RowPolicy::Open,
            Some(r) => {
                let k = r.get("impl")?;
                match k.str()? {
                    "Open" => RowPolicy::Open,
                    "Closed" => RowPolicy::Closed,
                    _ => return Err(k.err("expected Open or Closed")),
                }
            }
        };
        let dram = c.get("dram")?;
        dram.keys(&[
            "impl",
            "org",
            "timing",
            "command_cycles",
            "channel_width",
            "read_latency",
            "timing_constraints",
        ])?;
        let k = dram.get("impl")?;
        let standard = Standard::from_name(k.str()?)
            .ok_or_else(|| k.err("expected DDR4, DDR5, LPDDR5, HBM1, HBM2, HBM3 or GDDR6"))?;
        if (bus == Bus::Lpddr) != (standard == Standard::Lpddr5) {
            return Err(kind.err("this controller does not drive this device"));
        }
        let org = dram.get("org")?;
        org.get("dq")?.int(1, 1 << 16)?;
        let count = org.get("count")?;
        let counts = count
            .list()?
            .iter()
            .map(|n| n.int(1, 1 << 24))
            .collect::<Result<Vec<_>, _>>()?;
        let names = standard.levels(counts.len()).ok_or_else(|| {
            count.err(format!("{} has another number of levels", standard.name()))
        })?;
        if counts[0] != 1 {
            return Err(count.err("a controller drives one channel"));
        }
        if counts.iter().any(|n| !n.cast_unsigned().is_power_of_two()) {
            return Err(count.err("sizes must be powers of two"));
        }
        let depth = counts.len() - 2;
        let banks: i64 = counts[..depth].iter().product();
        if banks > 256 {
            return Err(count.err("at most 256 banks per channel"));
        }
        let timing_at = dram.get("timing")?;
        let values = timing_at
            .list()?
            .iter()
            .map(|n| n.int(-1, 1 << 30))
            .collect::<Result<Vec<_>, _>>()?;
        let timing_names = standard.timings(values.len()).ok_or_else(|| {
            timing_at.err(format!(
                "{} values are not a {} list",
                values.len(),
                standard.name()
            ))
        })?;
        let timing: BTreeMap<String, u32> = timing_names
            .iter()
            .zip(&values)
            .map(|(n, &v)| (n.to_string(), v.max(0) as u32))
            .collect();
        let commands = standard.commands();
        let mut constraints = Vec::new();
        for row in dram.get("timing_constraints")?.list()? {
            let f = row.list()?;
            if !(4..=6).contains(&f.len()) {
                return Err(row.err("expected [level, [before], [after], cycles, window, sibling]"));
            }
            let cmds = |at: &At<'_>| -> Result<Vec<Cmd>, DramSpecError> {
                at.list()?
                    .iter()
                    .map(|x| Ok(commands[x.int(0, commands.len() as i64 - 1)? as usize]))
                    .collect()
            };
            constraints.push(Constraint {
                level: f[0].int(0, depth as i64 - 1)? as u8,
                before: cmds(&f[1])?,
                after: cmds(&f[2])?,
                // Negative gaps occur between siblings; they never bind.
                cycles: f[3].int(-MAX_CYCLES, MAX_CYCLES)?.max(0) as u32,
                window: f.get(4).map_or(Ok(1), |w| w.int(1, 64))? as u8,
                sibling: match f.get(5) {
                    None => false,
                    Some(s) => {
                        s.v.as_bool()
                            .ok_or_else(|| s.err("expected true or false"))?
                    }
                },
            });
        }
        let need = |name: &str| {
            timing
                .get(name)
                .copied()
                .filter(|&v| v > 0)
                .ok_or_else(|| timing_at.err(format!("{name} must be known and positive")))
        };
        let refresh = match c.opt("refresh_manager") {
            None => Refresh::None,
            Some(r) => {
                let k = r.get("impl")?;
                match k.str()? {
                    "NoRefresh" => Refresh::None,
                    "AllBank" => {
                        if let Some(s) = r.opt("scatter_interval")
                            && s.int(0, i64::MAX)? != 0
                        {
                            return Err(s.err("scattered refresh is not supported; use 0"));
                        }
                        let (scope, at) = match r.opt("scope") {
                            Some(s) => (s.str()?, s),
                            None => (standard.refresh_scope(), k),
                        };
                        let level = names[..depth]
                            .iter()
                            .position(|n| *n == scope)
                            .filter(|&l| l + 1 < depth || depth == 1)
                            .ok_or_else(|| {
                                at.err(format!("{scope} is not a level above the bank"))
                            })?;
                        Refresh::AllBank {
                            interval: need("nREFI")?,
                            level: level as u8,
                        }
                    }
                    "PerBank" => Refresh::PerBank {
                        interval: need("nREFIpb")?,
                    },
                    _ => return Err(k.err("expected NoRefresh, AllBank or PerBank")),
                }
            }
        };
        let size = |key: &str| c.opt(key).map_or(Ok(32), |s| s.int(1, 4096));
        let (read_queue, write_queue) = (
            size("read_buffer_size")? as u32,
            size("write_buffer_size")? as u32,
        );
        let mark = |key: &str, default: f32| c.opt(key).map_or(Ok(default), |m| m.num());
        let high = mark("wr_high_watermark", 0.8)? * write_queue as f32;
        let low = mark("wr_low_watermark", 0.2)? * write_queue as f32;
        let channel_width = dram.get("channel_width")?.int(8, 1 << 16)? as u32;
        let tx_bytes = standard.prefetch() * channel_width / 8;
        if !tx_bytes.is_power_of_two() {
            return Err(dram.get("channel_width")?.err("must be a power of two"));
        }
        let columns = counts[depth + 1] as u32;
        if columns < standard.prefetch() {
            return Err(count.err("a row must hold a transaction"));
        }
        let mut spec = DramSpec {
            name: standard.name().to_string(),
            standard,
            bus,
            scheduler: Scheduler::Ramulator,
            refresh,
            row_policy,
            levels: counts[..depth].iter().map(|&n| n as u32).collect(),
            rows: counts[depth] as u32,
            columns,
            channel_width,
            read_latency: dram.get("read_latency")?.int(1, MAX_CYCLES)? as u32,
            burst: timing
                .get("nBL")
                .or(timing.get("nBL_min"))
                .copied()
                .unwrap_or(1),
            timing,
            constraints,
            read_queue,
            write_queue,
            drain_above: high.floor() as u32,
            drain_below: low.ceil() as u32,
            wck_always_on: match c.opt("wck_sync_mode") {
                None => false,
                Some(m) => match m.str()? {
                    "need_sync" => false,
                    "always_on" => true,
                    _ => return Err(m.err("expected need_sync or always_on")),
                },
            },
            accepts_per_tick: 1,
            stats_after_command,
            mapping: Vec::new(),
            map: AddressMap::empty(),
            table: Timing::default(),
        };
        let shape = spec.shape();
        if shape.levels.iter().sum::<u32>() + shape.row + shape.column + shape.tx > 48 {
            return Err(count.err("a channel holds at most 2^48 bytes"));
        }
        let busy = spec.timing("nRFC").unwrap_or(0);
        if let Refresh::AllBank { interval, .. } = refresh
            && interval <= busy.max(64)
        {
            return Err(timing_at.err("nREFI must exceed nRFC and 64 ticks"));
        }
        if let Refresh::PerBank { interval } = refresh
            && interval < 16
        {
            return Err(timing_at.err("nREFIpb must be at least 16 ticks"));
        }
        let map = match c.opt("addr_mapper") {
            None => "RoBaRaCoCh",
            Some(m) => m.get("impl")?.str()?,
        };
        spec.set_mapping_order(map)?;
        spec.compile();
        Ok(spec)
    }

    /// log2 of every field's size.
    fn shape(&self) -> Shape {
        Shape {
            levels: self.levels[1..]
                .iter()
                .map(|n| n.trailing_zeros())
                .collect(),
            row: self.rows.trailing_zeros(),
            column: (self.columns / self.standard.prefetch()).trailing_zeros(),
            tx: self.tx_bytes().trailing_zeros(),
        }
    }

    /// Sets the address mapping by name, read from the highest field to the lowest.
    ///
    /// `Ro`, `Ba`, `Ra`, `Co`, `Ch` are row, bank, everything above the bank group, column and channel, as Ramulator
    /// names its mappers. `RoBaRaCoCh`, `RoCoBaRaCh` and `ChRaBaRoCo` are known, and any order of `Ro`, `Ba`, `Ra`,
    /// `Co` (bank group and bank together are `Ba`).
    pub fn set_mapping_order(&mut self, order: &str) -> Result<(), DramSpecError> {
        let n = self.levels.len() as u8;
        let ba: Vec<Field> = (n.saturating_sub(2).max(1)..n).map(Field::Level).collect();
        let ra: Vec<Field> = (1..n.saturating_sub(2).max(1)).map(Field::Level).collect();
        let mut fields = Vec::new();
        let bytes = order.as_bytes();
        for part in bytes.chunks(2).rev() {
            match part {
                b"Ro" => fields.push(Field::Row),
                b"Co" => fields.push(Field::Column),
                b"Ba" => fields.extend(&ba),
                b"Ra" => fields.extend(&ra),
                b"Ch" => {}
                _ => {
                    return Err(DramSpecError::at(
                        "addr_mapper",
                        format!("unknown mapping {order}"),
                    ));
                }
            }
        }
        self.set_mapping(AddressMap::from_fields(&self.shape(), &fields)?);
        Ok(())
    }

    /// Sets the address mapping bit by bit, from the lowest address bit above the transaction offset.
    pub fn set_mapping_bits(&mut self, bits: Vec<(Field, u32)>) -> Result<(), DramSpecError> {
        self.set_mapping(AddressMap::from_bits(&self.shape(), bits)?);
        Ok(())
    }

    fn set_mapping(&mut self, map: AddressMap) {
        self.mapping = map.bits().to_vec();
        self.map = map;
    }

    /// Switches to the look-ahead controller with `depth` entries per bank (DRAMsim3 has 8).
    ///
    /// It knows devices with one command per tick and HBM's dual bus.
    pub fn set_look_ahead(&mut self, depth: u32) -> Result<(), DramSpecError> {
        if !matches!(self.bus, Bus::Single | Bus::Dual) || depth == 0 {
            return Err(DramSpecError::at(
                "scheduler",
                "the look-ahead controller drives DDR, GDDR and HBM2 devices, with at least one entry per bank",
            ));
        }
        self.scheduler = Scheduler::PerBank { depth };
        Ok(())
    }

    /// Recompiles the timing table; called after the public fields that it depends on were changed.
    pub fn compile(&mut self) {
        self.table = Timing::compile(self);
    }

    /// Bytes of one transaction.
    pub fn tx_bytes(&self) -> u32 {
        self.standard.prefetch() * self.channel_width / 8
    }

    /// Length of a tick in ps. HBM3 ticks are half clocks.
    pub fn tck_ps(&self) -> u64 {
        self.timing
            .get("tCK_ps")
            .copied()
            .unwrap_or(1)
            .max(1)
            .into()
    }

    /// Pseudo-channels, each with its own data bus.
    pub fn pseudo_channels(&self) -> u32 {
        match self.standard {
            Standard::Hbm2 | Standard::Hbm3 => self.levels.get(1).copied().unwrap_or(1),
            _ => 1,
        }
    }

    /// Bytes per tick on all data buses together, before refresh.
    pub fn peak_bytes_per_tick(&self) -> f64 {
        f64::from(self.tx_bytes()) * f64::from(self.pseudo_channels())
            / f64::from(self.burst.max(1))
    }

    /// Bytes per second on all data buses together, before refresh.
    pub fn peak_bytes_per_second(&self) -> f64 {
        self.peak_bytes_per_tick() * 1e12 / self.tck_ps() as f64
    }

    /// Bytes in one channel.
    pub fn capacity(&self) -> u64 {
        1 << self.map.width()
    }

    /// Banks in one channel, over all pseudo-channels, ranks and stack ids.
    pub fn banks(&self) -> u32 {
        self.levels.iter().product()
    }

    /// The compiled address mapping.
    pub fn map(&self) -> &AddressMap {
        &self.map
    }

    /// A named timing in ticks, if the standard has it.
    pub fn timing(&self, name: &str) -> Option<u32> {
        self.timing.get(name).copied()
    }
}
