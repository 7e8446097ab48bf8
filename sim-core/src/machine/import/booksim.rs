//! What the rest of a machine needs to know of a BookSim network file.

use super::{Resolver, file_error};
use crate::machine::error::{MachineError, code};
use crate::machine::text::MAX_TEXT_BYTES;
use std::collections::BTreeSet;

/// Facts of a network file, and its text for the NoC model that reads the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkFile {
    /// The path as it was named.
    pub path: String,
    /// The text.
    pub text: String,
    /// Its `key = value` lines, in order.
    pub settings: Vec<(String, String)>,
    /// Topology, for example `fly`.
    pub topology: String,
    /// Nodes.
    pub nodes: u64,
    /// Bytes a flit.
    pub flit_bytes: u64,
    /// Text of the file that lists routers and links, for topology `anynet`.
    pub links: Option<String>,
    /// Where that text came from.
    pub links_path: Option<String>,
}

impl NetworkFile {
    /// The value of a setting; the last one counts.
    pub fn setting(&self, name: &str) -> Option<&str> {
        let found = self.settings.iter().rev().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Reads a network file and, for `anynet`, the file it names. An absolute path that does not
    /// exist is looked for beside the network file: such files were written on other machines.
    ///
    /// # Errors
    ///
    /// [`code::FILE`] when a file is missing or is no network file.
    pub fn parse(
        path: &str,
        text: &str,
        resolver: &dyn Resolver,
    ) -> Result<NetworkFile, MachineError> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(file_error(path, path, "it is too large for a network file"));
        }
        let mut settings = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line
                .split("//")
                .next()
                .unwrap_or_default()
                .trim()
                .trim_end_matches(';');
            if line.is_empty() || line.starts_with('#') || line.starts_with('[') {
                continue;
            }
            let (key, value) = line.split_once('=').ok_or_else(|| {
                MachineError::new(
                    code::FILE,
                    format!("{path}: line {}", number + 1),
                    "expected 'key = value'",
                )
                .hint("expected a BookSim network file")
            })?;
            settings.push((key.trim().to_owned(), value.trim().to_owned()));
        }
        let mut file = NetworkFile {
            path: path.to_owned(),
            text: text.to_owned(),
            settings,
            topology: String::new(),
            nodes: 0,
            flit_bytes: 0,
            links: None,
            links_path: None,
        };
        let bad =
            |key: &str, what: String| MachineError::new(code::FILE, format!("{path}: {key}"), what);
        file.topology = file
            .setting("topology")
            .ok_or_else(|| bad("topology", "is missing".to_owned()))?
            .to_owned();
        file.flit_bytes = file.whole("flit_size")?.unwrap_or(32);
        file.nodes = match file.topology.as_str() {
            "fly" | "mesh" | "torus" | "cmesh" | "fattree" | "flatfly" => {
                let k = file
                    .whole("k")?
                    .ok_or_else(|| bad("k", "is missing".to_owned()))?;
                let n = file
                    .whole("n")?
                    .ok_or_else(|| bad("n", "is missing".to_owned()))?;
                let c = if file.topology == "cmesh" {
                    file.whole("c")?.unwrap_or(1)
                } else {
                    1
                };
                u32::try_from(n)
                    .ok()
                    .and_then(|n| k.checked_pow(n))
                    .and_then(|nodes| nodes.checked_mul(c))
                    .ok_or_else(|| bad("k", format!("{k}^{n} nodes are too many")))?
            }
            "anynet" => {
                let named = file
                    .setting("network_file")
                    .ok_or_else(|| bad("network_file", "is missing".to_owned()))?
                    .to_owned();
                let (links_path, links) = find(path, &named, resolver)?;
                let nodes = anynet_nodes(&links_path, &links)?;
                file.links = Some(links);
                file.links_path = Some(links_path);
                nodes
            }
            other => return Err(bad("topology", format!("'{other}' is not modelled"))),
        };
        Ok(file)
    }

    fn whole(&self, key: &str) -> Result<Option<u64>, MachineError> {
        let Some(value) = self.setting(key) else {
            return Ok(None);
        };
        value.parse().map(Some).map_err(|_| {
            MachineError::new(
                code::FILE,
                format!("{}: {key}", self.path),
                format!("'{value}' is not a whole number"),
            )
        })
    }
}

/// The file as it is named, else one of the same name beside the file that names it.
fn find(
    from: &str,
    named: &str,
    resolver: &dyn Resolver,
) -> Result<(String, String), MachineError> {
    let folder = from.rfind('/').map_or("", |slash| &from[..=slash]);
    let name = named.rsplit('/').next().unwrap_or(named);
    let beside = format!("{folder}{name}");
    let why = match resolver.read(named) {
        Ok(text) => return Ok((named.to_owned(), text)),
        Err(why) => why,
    };
    match resolver.read(&beside) {
        Ok(text) => Ok((beside, text)),
        Err(_) => Err(file_error("network_file", named, &why)),
    }
}

/// How many nodes a list of routers and links has.
fn anynet_nodes(path: &str, text: &str) -> Result<u64, MachineError> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(file_error(
            "network_file",
            path,
            "it is too large for a list of links",
        ));
    }
    let mut nodes = BTreeSet::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        while let Some(word) = words.next() {
            if word == "node"
                && let Some(node) = words.next().and_then(|n| n.parse::<u32>().ok())
            {
                nodes.insert(node);
            }
        }
    }
    if nodes.is_empty() {
        return Err(file_error("network_file", path, "it names no nodes"));
    }
    Ok(nodes.len() as u64)
}
