//! Reads BookSim 2 configurations, with the keys that PyTorchSim's build of it adds.

use std::collections::BTreeMap;

use super::spec::{
    Allocator, FlitNetworkSpec, GraphLink, GraphNode, GraphRouter, NetworkParams, RouterParams,
    SpecError, Topology, VcRange,
};

/// Why a BookSim configuration cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BookSimError {
    /// A line that is no assignment.
    #[error("line {line}: expected `key = value`, found `{found}`")]
    Syntax {
        /// Line number, from 1.
        line: usize,
        /// The text in question.
        found: String,
    },
    /// A key BookSim does not have.
    #[error("line {line}: unknown key `{key}`, did you mean `{suggestion}`")]
    UnknownKey {
        /// Line number, from 1.
        line: usize,
        /// The key.
        key: String,
        /// The known key nearest to it.
        suggestion: &'static str,
    },
    /// A value of the wrong form.
    #[error("`{key}`: `{value}` is not {expected}")]
    Value {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// What it should be.
        expected: &'static str,
    },
    /// A key or value BookSim has and this model does not.
    #[error("`{key}` = `{value}` is not modelled; only {modelled} is")]
    NotModelled {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// The values that are.
        modelled: String,
    },
    /// A file the configuration names and the caller does not have.
    #[error("`{key}`: no file `{path}`")]
    MissingFile {
        /// The key.
        key: &'static str,
        /// The path it names.
        path: String,
    },
    /// A network file that cannot be read.
    #[error("network file, line {line}: {message}")]
    NetworkFile {
        /// Line number, from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// The parameters do not make a network.
    #[error(transparent)]
    Spec(#[from] SpecError),
}

/// Keys with an effect on the network, beside those of [`FIXED`].
const USED: &[&str] = &[
    "topology",
    "k",
    "n",
    "routing_function",
    "network_file",
    "num_vcs",
    "vc_buf_size",
    "buf_size",
    "routing_delay",
    "st_prepare_delay",
    "st_final_delay",
    "credit_delay",
    "vc_allocator",
    "sw_allocator",
    "flit_size",
    "input_buffer_size",
    "read_request_begin_vc",
    "read_request_end_vc",
    "write_request_begin_vc",
    "write_request_end_vc",
    "read_reply_begin_vc",
    "read_reply_end_vc",
    "write_reply_begin_vc",
    "write_reply_end_vc",
];

/// Keys of which one value is modelled.
const FIXED: &[(&str, &[&str])] = &[
    ("subnets", &["1"]),
    ("c", &["1"]),
    ("router", &["iq"]),
    ("output_delay", &["0"]),
    ("internal_speedup", &["1", "1.0"]),
    ("input_speedup", &["1"]),
    ("output_speedup", &["1"]),
    ("output_buffer_size", &["-1"]),
    ("noq", &["0"]),
    ("speculative", &["0"]),
    ("buffer_policy", &["private"]),
    ("wait_for_tail_credit", &["0"]),
    ("vc_busy_when_full", &["0"]),
    ("vc_prioritize_empty", &["0"]),
    ("vc_priority_donation", &["0"]),
    ("vc_shuffle_requests", &["0"]),
    ("hold_switch_for_packet", &["0"]),
    ("vc_alloc_delay", &["1"]),
    ("sw_alloc_delay", &["1"]),
    ("arb_type", &["round_robin"]),
    ("alloc_iters", &["1"]),
    ("classes", &["1"]),
    ("priority", &["none"]),
    ("use_map", &["0"]),
    ("perfect_icnt", &["0"]),
    ("fixed_lat_per_hop", &["0"]),
    ("channel_file", &[""]),
    ("link_failures", &["0"]),
];

/// Keys without an effect here: about traffic, reports, power, or options that are off. The
/// `ejection` and `boundary` buffers lie beyond the network, whose nodes sink whatever arrives.
const IGNORED: &[&str] = &[
    "ejection_buffer_size",
    "boundary_buffer_size",
    "deadlock_warn_timeout",
    "use_noc_latency",
    "x",
    "y",
    "xr",
    "yr",
    "fail_seed",
    "in_ports",
    "out_ports",
    "spec_check_elig",
    "spec_check_cred",
    "spec_mask_by_reqs",
    "spec_sw_allocator",
    "private_bufs",
    "private_buf_size",
    "private_buf_start_vc",
    "private_buf_end_vc",
    "max_held_slots",
    "feedback_aging_scale",
    "feedback_offset",
    "vct",
    "traffic",
    "class_priority",
    "perm_seed",
    "injection_rate",
    "injection_rate_uses_flits",
    "packet_size",
    "packet_size_rate",
    "injection_process",
    "burst_alpha",
    "burst_beta",
    "burst_r1",
    "batch_size",
    "batch_count",
    "max_outstanding_requests",
    "use_read_write",
    "write_fraction",
    "read_request_subnet",
    "read_reply_subnet",
    "write_request_subnet",
    "write_reply_subnet",
    "read_request_size",
    "write_request_size",
    "read_reply_size",
    "write_reply_size",
    "sim_type",
    "warmup_periods",
    "sample_period",
    "max_samples",
    "measure_stats",
    "pair_stats",
    "latency_thres",
    "warmup_thres",
    "acc_warmup_thres",
    "stopping_thres",
    "acc_stopping_thres",
    "sim_count",
    "include_queuing",
    "seed",
    "print_activity",
    "print_csv_results",
    "viewer_trace",
    "watch_file",
    "watch_flits",
    "watch_packets",
    "watch_transactions",
    "watch_out",
    "stats_out",
    "sim_power",
    "power_output_file",
    "tech_file",
    "channel_width",
    "channel_sweep",
    "header_size",
    "memory_node_map",
    "output_extra_latency",
    "network_count",
    "enable_link_stats",
    "MATLAB_OUTPUT",
    "DISPLAY_LAT_DIST",
    "DISPLAY_HOP_DIST",
    "DISPLAY_PAIR_LATENCY",
];

/// A BookSim configuration read into the parameters of this model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BookSimFile {
    params: NetworkParams,
    ignored: Vec<String>,
}

impl BookSimFile {
    /// Reads a configuration: `key = value`, one a line or ended by `;`, `//` comments, an optional
    /// `[config]` line. Missing keys take BookSim's defaults. `files` gives the text of a file the
    /// configuration names (`network_file`), by that name.
    pub fn parse(text: &str, files: impl Fn(&str) -> Option<String>) -> Result<Self, BookSimError> {
        let mut values: BTreeMap<&str, &str> = BTreeMap::new();
        let mut ignored = vec![];
        for (index, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or("");
            for statement in code.split(';').map(str::trim).filter(|s| !s.is_empty()) {
                if statement == "[config]" {
                    continue;
                }
                let Some((key, value)) = statement.split_once('=') else {
                    return Err(BookSimError::Syntax {
                        line: index + 1,
                        found: statement.chars().take(80).collect(),
                    });
                };
                let (key, value) = (key.trim(), value.trim());
                if IGNORED.contains(&key) {
                    ignored.push(key.to_owned());
                } else if !USED.contains(&key) && !FIXED.iter().any(|(k, _)| *k == key) {
                    return Err(BookSimError::UnknownKey {
                        line: index + 1,
                        key: key.chars().take(80).collect(),
                        suggestion: nearest_key(key),
                    });
                }
                values.insert(key, value);
            }
        }
        for (key, modelled) in FIXED {
            if let Some(value) = values.get(key)
                && !modelled.contains(value)
            {
                return Err(not_modelled(key, value, &format!("`{}`", modelled[0])));
            }
        }
        let values = Values(values);
        let vcs = values.number("num_vcs", 16)?;
        let vc_buffer_flits = match values.integer("buf_size", -1)? {
            shared if shared > 0 && vcs > 0 => {
                u32::try_from(shared / i64::from(vcs)).unwrap_or(u32::MAX)
            }
            _ => values.number("vc_buf_size", 8)?,
        };
        let router = RouterParams {
            vcs,
            vc_buffer_flits,
            routing_delay: values.number("routing_delay", 1)?,
            crossbar_delay: values
                .number("st_prepare_delay", 0)?
                .saturating_add(values.number("st_final_delay", 1)?),
            credit_delay: values.number("credit_delay", 0)?,
            link_latency: 1,
            vc_allocator: values.allocator("vc_allocator")?,
            switch_allocator: values.allocator("sw_allocator")?,
            read_request_vcs: values.range("read_request", (0, 5), vcs, false)?,
            write_request_vcs: values.range("write_request", (2, 7), vcs, false)?,
            read_reply_vcs: values.range("read_reply", (8, 13), vcs, true)?,
            write_reply_vcs: values.range("write_reply", (10, 15), vcs, true)?,
        };
        let params = NetworkParams {
            topology: values.topology(files)?,
            router,
            flit_bytes: values.number("flit_size", 32)?,
            injection_queue_flits: values.number("input_buffer_size", 0)?,
        };
        Ok(BookSimFile { params, ignored })
    }

    /// The parameters read.
    pub fn params(&self) -> &NetworkParams {
        &self.params
    }

    /// The keys that have no effect here, in order of appearance.
    pub fn ignored(&self) -> &[String] {
        &self.ignored
    }

    /// The network.
    pub fn into_spec(self) -> Result<FlitNetworkSpec, BookSimError> {
        Ok(FlitNetworkSpec::try_from(self.params)?)
    }
}

fn not_modelled(key: &str, value: &str, modelled: &str) -> BookSimError {
    BookSimError::NotModelled {
        key: key.into(),
        value: value.into(),
        modelled: modelled.into(),
    }
}

struct Values<'a>(BTreeMap<&'a str, &'a str>);

impl Values<'_> {
    fn integer(&self, key: &str, default: i64) -> Result<i64, BookSimError> {
        match self.0.get(key) {
            None => Ok(default),
            Some(value) => value.parse().map_err(|_| BookSimError::Value {
                key: key.into(),
                value: (*value).into(),
                expected: "an integer",
            }),
        }
    }

    fn number(&self, key: &str, default: u32) -> Result<u32, BookSimError> {
        match self.0.get(key) {
            None => Ok(default),
            Some(value) => value.parse().map_err(|_| BookSimError::Value {
                key: key.into(),
                value: (*value).into(),
                expected: "an integer that is not negative",
            }),
        }
    }

    fn allocator(&self, key: &str) -> Result<Allocator, BookSimError> {
        match self.0.get(key).copied().unwrap_or("islip") {
            "islip" => Ok(Allocator::Islip),
            "separable_input_first" => Ok(Allocator::SeparableInputFirst),
            other => Err(not_modelled(
                key,
                other,
                "`islip` or `separable_input_first`",
            )),
        }
    }

    /// The virtual channels of a kind of packet. BookSim's own defaults assume 16 channels; where
    /// there are fewer and the file is silent, the kind may use all.
    fn range(
        &self,
        kind: &str,
        default: (i64, i64),
        vcs: u32,
        reply: bool,
    ) -> Result<Option<VcRange>, BookSimError> {
        let keys = [format!("{kind}_begin_vc"), format!("{kind}_end_vc")];
        let stated = keys.iter().any(|k| self.0.contains_key(k.as_str()));
        let (half, vcs) = (i64::from(vcs / 2), i64::from(vcs));
        let (low, high) = if reply {
            (half, vcs - 1)
        } else {
            (0, half - 1)
        };
        let first = match self.integer(&keys[0], default.0)? {
            negative if negative < 0 => low,
            first => first,
        };
        let last = match self.integer(&keys[1], default.1)? {
            negative if negative < 0 => high,
            last => last,
        };
        if !stated && last >= vcs {
            return Ok(None);
        }
        match (u32::try_from(first), u32::try_from(last)) {
            (Ok(first), Ok(last)) if first <= last && i64::from(last) < vcs => {
                Ok(Some(VcRange { first, last }))
            }
            _ => Err(BookSimError::Value {
                key: keys[1].clone(),
                value: last.to_string(),
                expected: "a channel below num_vcs and not below the first",
            }),
        }
    }

    fn topology(&self, files: impl Fn(&str) -> Option<String>) -> Result<Topology, BookSimError> {
        let name = self.0.get("topology").copied().unwrap_or("torus");
        let routing = self.0.get("routing_function").copied().unwrap_or("none");
        let expect: &[&str] = match name {
            "fly" => &["dest_tag"],
            "mesh" => &["dor", "dim_order"],
            "anynet" => &["min"],
            _ => return Err(not_modelled("topology", name, "`fly`, `mesh` or `anynet`")),
        };
        if !expect.contains(&routing) {
            return Err(not_modelled(
                "routing_function",
                routing,
                &format!("`{}`", expect[0]),
            ));
        }
        if name == "anynet" {
            let path = self.0.get("network_file").copied().unwrap_or("");
            let Some(text) = files(path) else {
                return Err(BookSimError::MissingFile {
                    key: "network_file",
                    path: path.into(),
                });
            };
            return parse_network(&text);
        }
        let (k, n) = (self.number("k", 8)?, self.number("n", 2)?);
        Ok(match (name, n) {
            ("fly", 1) => Topology::Crossbar { ports: k },
            ("fly", _) => Topology::Fly { k, n },
            _ => Topology::Mesh { k, n },
        })
    }
}

/// Reads an `anynet` file: lines of `router 0 node 0 5 router 1 3 ...`. A latency holds for both
/// directions of a node's links and for one direction of a router's; a link that is only mentioned
/// from the other side takes 1 cycle.
fn parse_network(text: &str) -> Result<Topology, BookSimError> {
    let bad = |line: usize, message: &str| BookSimError::NetworkFile {
        line,
        message: message.to_owned(),
    };
    let mut nodes: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
    let mut links: BTreeMap<(u32, u32), u32> = BTreeMap::new();
    let mut routers = 0u32;
    for (index, line) in text.lines().enumerate() {
        let line_no = index + 1;
        let mut words = line.split_whitespace().peekable();
        let Some(head) = words.next() else { continue };
        let number = |word: Option<&str>, limit: u32| -> Result<u32, BookSimError> {
            word.and_then(|w| w.parse().ok())
                .filter(|n| *n < limit)
                .ok_or_else(|| bad(line_no, &format!("expected a number below {limit}")))
        };
        let head_is_router = match head {
            "router" => true,
            "node" => false,
            _ => return Err(bad(line_no, "expected `router` or `node`")),
        };
        let head = number(words.next(), if head_is_router { 4096 } else { 1024 })?;
        if head_is_router {
            routers = routers.max(head + 1);
        }
        while let Some(word) = words.next() {
            let is_router = match word {
                "router" => true,
                "node" => false,
                _ => return Err(bad(line_no, "expected `router` or `node`")),
            };
            let other = number(words.next(), if is_router { 4096 } else { 1024 })?;
            let latency = match words.peek() {
                Some(w) if *w != "router" && *w != "node" => Some(number(words.next(), 1 << 20)?),
                _ => None,
            };
            match (head_is_router, is_router) {
                (false, false) => return Err(bad(line_no, "a node cannot be linked to a node")),
                (true, true) => {
                    routers = routers.max(other + 1);
                    links.insert((head, other), latency.unwrap_or(1));
                    links.entry((other, head)).or_insert(1);
                }
                (false, true) if latency.is_some() => {
                    return Err(bad(
                        line_no,
                        "state the latency of a node on its router's line",
                    ));
                }
                _ => {
                    let (router, node) = if is_router {
                        (other, head)
                    } else {
                        (head, other)
                    };
                    routers = routers.max(router + 1);
                    let before = nodes.insert(node, (router, latency.unwrap_or(1)));
                    if before.is_some_and(|(r, _)| r != router) {
                        return Err(bad(line_no, "a node is attached to two routers"));
                    }
                }
            }
        }
    }
    let mut list = vec![GraphRouter::default(); routers as usize];
    for (node, (router, latency)) in nodes {
        list[router as usize]
            .nodes
            .push(GraphNode { node, latency });
    }
    for ((from, to), latency) in links {
        list[from as usize].links.push(GraphLink {
            to,
            latency,
            cycles_per_flit: 1,
        });
    }
    Ok(Topology::Graph { routers: list })
}

/// The known key with the smallest edit distance.
fn nearest_key(key: &str) -> &'static str {
    let all = USED
        .iter()
        .chain(FIXED.iter().map(|(k, _)| k))
        .chain(IGNORED);
    all.min_by_key(|known| edit_distance(key, known))
        .copied()
        .unwrap_or("topology")
}

fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().take(80).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let change = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
