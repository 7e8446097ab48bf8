//! Reads `tests/golden/togsim` and the machine files beside it, by the shortest way: a loader of
//! its own, so that the golden figures also check the importers.

#![allow(dead_code)]

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;
use tilesim_core::machine::{
    ArraySplit, ChannelMap, Clocks, ComputeIssue, CoreSpec, DispatchPolicy, DramConfig, DramModel,
    Machine, NocSpec, ReplyPort, Residency,
};
use tilesim_traces::launch::{Op, OpKind, ResolvedDim, ResolvedIndirect, Span, Transfer, WorkItem};
use tilesim_traces::model::{BufferId, Direction, SemId, TensorId, TileId, Unit};

use crate::twin::{BufferInfo, TileCost};

/// The folder of golden data.
pub fn golden() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden")
}

/// The text of a golden file.
pub fn read(path: &str) -> String {
    let path = golden().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A program in the JSON work-item form.
pub struct Program {
    json: Value,
    /// Compute tiles.
    pub tiles: Vec<TileCost>,
    /// Scratchpad buffers.
    pub buffers: Vec<BufferInfo>,
    /// Byte address of each tensor.
    bases: Vec<u64>,
}

impl Program {
    /// Parses one program.
    pub fn new(text: &str) -> Program {
        let json: Value = serde_json::from_str(text).unwrap();
        let tiles = json["cycle_table"]
            .as_array()
            .unwrap()
            .iter()
            .map(|t| TileCost {
                cycles: t[0].as_u64().unwrap(),
                overlap: t[1].as_u64().unwrap(),
            })
            .collect();
        let mut moved = vec![false; json["spad_buffer_bytes"].as_array().unwrap().len()];
        mark_moved(&json["body"], &mut moved);
        let buffers = json["spad_buffer_bytes"]
            .as_array()
            .unwrap()
            .iter()
            .zip(moved)
            .map(|(b, moved)| BufferInfo {
                bytes: b.as_u64().unwrap(),
                moved,
            })
            .collect();
        let mut bases = Vec::new();
        let mut next = 0u64;
        for t in json["tensors"].as_array().unwrap() {
            bases.push(next);
            let bytes: u64 = t
                .as_array()
                .unwrap()
                .iter()
                .map(|x| x.as_u64().unwrap())
                .product();
            next = (next + bytes).div_ceil(16384) * 16384;
        }
        Program {
            json,
            tiles,
            buffers,
            bases,
        }
    }

    /// Work-item number `n` of `grid` in dispatch order (last axis fastest).
    pub fn item(&self, grid: &[u64], n: u64) -> Option<WorkItem> {
        if n >= grid.iter().product() {
            return None;
        }
        let mut pid = [0; 3];
        let mut rest = n;
        for axis in (0..grid.len()).rev() {
            pid[axis] = rest % grid[axis];
            rest /= grid[axis];
        }
        let mut vars = BTreeMap::new();
        for (axis, p) in pid.iter().enumerate() {
            vars.insert(format!("p{axis}"), *p as i64);
        }
        let mut item = WorkItem {
            pid,
            ..WorkItem::default()
        };
        self.expand(&self.json["body"], &mut vars, &mut item);
        Some(item)
    }

    fn expand(&self, body: &Value, vars: &mut BTreeMap<String, i64>, item: &mut WorkItem) {
        for op in body.as_array().unwrap() {
            if op["op"] == "loop" {
                let name = op["var"].as_str().unwrap().to_string();
                let (mut at, stop, step) = (
                    eval(&op["start"], vars),
                    eval(&op["stop"], vars),
                    eval(&op["step"], vars),
                );
                while at < stop {
                    vars.insert(name.clone(), at);
                    self.expand(&op["body"], vars, item);
                    at += step;
                }
                vars.remove(&name);
                continue;
            }
            let reads = buffers(&op["reads"], item);
            let writes = buffers(&op["writes"], item);
            let kind = match op["op"].as_str().unwrap() {
                "dma" => {
                    item.transfers.push(self.transfer(op, vars, &mut item.dims));
                    OpKind::Dma(item.transfers.len() as u32 - 1)
                }
                "wait" => OpKind::Wait {
                    semaphore: SemId(op["sem"].as_u64().unwrap() as u32),
                    expected: eval(&op["expected"], vars) as u64,
                },
                "compute" => OpKind::Compute {
                    tile: TileId(op["tile"].as_u64().unwrap() as u32),
                    unit: [Unit::Vector, Unit::Matmul, Unit::Preload, Unit::CrossLane]
                        [op["ct"].as_u64().unwrap() as usize],
                },
                other => panic!("unknown op {other}"),
            };
            item.ops.push(Op {
                kind,
                reads,
                writes,
                site: 0,
            });
        }
    }

    fn transfer(
        &self,
        op: &Value,
        vars: &BTreeMap<String, i64>,
        dims: &mut Vec<ResolvedDim>,
    ) -> Transfer {
        let start = dims.len() as u32;
        let mut elements = 1;
        for (d, s) in op["dims"]
            .as_array()
            .unwrap()
            .iter()
            .zip(op["strides"].as_array().unwrap())
        {
            let extent = eval(d, vars) as u64;
            elements *= extent;
            dims.push(ResolvedDim {
                extent,
                stride: eval(s, vars),
            });
        }
        let tensor = op["arg"].as_u64().unwrap() as usize;
        let bits = op["elem_bits"].as_u64().unwrap() as u32;
        let offset = i128::from(eval(&op["offset_elems"], vars));
        Transfer {
            direction: if op["dir"] == "load" {
                Direction::Load
            } else {
                Direction::Store
            },
            tensor: TensorId(tensor as u32),
            first_bit: i128::from(self.bases[tensor]) * 8 + offset * i128::from(bits),
            element_bits: bits,
            dims: Span {
                start,
                end: dims.len() as u32,
            },
            semaphore: op["is_async"]
                .as_bool()
                .unwrap()
                .then(|| SemId(op["sem"].as_u64().unwrap() as u32)),
            full_elements: elements,
            valid_elements: elements,
            indirect: ResolvedIndirect::None,
        }
    }
}

fn buffers(list: &Value, item: &mut WorkItem) -> Span {
    let start = item.buffers.len() as u32;
    for b in list.as_array().map(Vec::as_slice).unwrap_or_default() {
        item.buffers.push(BufferId(b.as_u64().unwrap() as u32));
    }
    Span {
        start,
        end: item.buffers.len() as u32,
    }
}

fn mark_moved(body: &Value, moved: &mut [bool]) {
    for op in body.as_array().unwrap() {
        match op["op"].as_str().unwrap() {
            "loop" => mark_moved(&op["body"], moved),
            "dma" => {
                for list in [&op["reads"], &op["writes"]] {
                    for b in list.as_array().map(Vec::as_slice).unwrap_or_default() {
                        moved[b.as_u64().unwrap() as usize] = true;
                    }
                }
            }
            _ => {}
        }
    }
}

/// An integer, or an expression of integers and variables under `+ - *` and parentheses.
fn eval(value: &Value, vars: &BTreeMap<String, i64>) -> i64 {
    if let Some(n) = value.as_i64() {
        return n;
    }
    let text: Vec<char> = value
        .as_str()
        .unwrap()
        .chars()
        .filter(|c| *c != ' ')
        .collect();
    let mut at = 0;
    let n = sum(&text, &mut at, vars);
    assert_eq!(at, text.len(), "cannot read {value}");
    n
}

fn sum(text: &[char], at: &mut usize, vars: &BTreeMap<String, i64>) -> i64 {
    let mut n = product(text, at, vars);
    while *at < text.len() && (text[*at] == '+' || text[*at] == '-') {
        let plus = text[*at] == '+';
        *at += 1;
        let m = product(text, at, vars);
        n = if plus { n + m } else { n - m };
    }
    n
}

fn product(text: &[char], at: &mut usize, vars: &BTreeMap<String, i64>) -> i64 {
    let mut n = atom(text, at, vars);
    while *at < text.len() && text[*at] == '*' {
        *at += 1;
        n *= atom(text, at, vars);
    }
    n
}

fn atom(text: &[char], at: &mut usize, vars: &BTreeMap<String, i64>) -> i64 {
    if text[*at] == '(' {
        *at += 1;
        let n = sum(text, at, vars);
        *at += 1;
        return n;
    }
    let start = *at;
    while *at < text.len() && (text[*at].is_alphanumeric() || text[*at] == '_') {
        *at += 1;
    }
    let word: String = text[start..*at].iter().collect();
    word.parse()
        .unwrap_or_else(|_| *vars.get(&word).unwrap_or_else(|| panic!("unknown {word}")))
}

/// Reads one of the flat `tpuv3_simple_dram*.yml` files.
pub fn machine(name: &str) -> Machine {
    let text = read(&format!("pytorchsim/configs/{name}.yml"));
    let values: BTreeMap<&str, &str> = text
        .lines()
        .filter_map(|l| l.split_once(':'))
        .map(|(k, v)| (k, v.trim()))
        .collect();
    let number = |key: &str| {
        values[key]
            .parse::<u64>()
            .unwrap_or_else(|e| panic!("{key}: {e}"))
    };
    let mhz = number("dram_freq_mhz");
    let bandwidth: f32 = values["dram_bandwidth_gbps_per_channel"].parse().unwrap();
    assert_eq!(
        (values["dram_type"], values["icnt_type"]),
        ("simple", "simple")
    );
    let cores = number("num_cores") as u32;
    Machine {
        name: name.into(),
        clocks: Clocks {
            core_khz: number("core_freq_mhz") * 1000,
            noc_khz: number("icnt_freq_mhz") * 1000,
            dram_khz: mhz * 1000,
            truncate_to_ps: true,
        },
        cores: CoreSpec {
            count: cores,
            partition: vec![0; cores as usize],
            systolic_arrays: number("num_systolic_array_per_core") as u32,
            array_rows: 128,
            array_cols: 128,
            weight_slots: values
                .get("sa_weight_buffer_depth")
                .map_or(2, |v| v.parse().unwrap()),
            vector_lanes: number("vpu_num_lanes") as u32,
            vector_bits: number("vpu_vector_length_bits") as u32,
            scratchpad_bytes: number("core_spad_size_kb") * 1024,
            compute_issue: ComputeIssue::Serial,
            array_split: ArraySplit::None,
            residency: Residency::Shared { max: 2 },
            injection_ports: number("icnt_injection_ports_per_core") as u32,
        },
        noc: NocSpec::Simple {
            latency: number("icnt_latency_cycles") as u32,
        },
        l2: None,
        dram: DramConfig {
            channels: number("dram_channels") as u32,
            request_bytes: number("dram_req_size_byte") as u32,
            channel_map: ChannelMap::Ipoly,
            numa: None,
            reply_port: ReplyPort::Channel,
            model: DramModel::Simple {
                latency: number("dram_latency") as u32,
                bytes_per_cycle: Some(f64::from(bandwidth) * 1000.0 / mhz as f64),
            },
        },
        dispatch: DispatchPolicy::RoundRobin,
        memory: Default::default(),
        energy: None,
    }
}
