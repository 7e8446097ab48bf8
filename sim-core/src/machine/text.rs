//! From text to a tree of values, in bounded time and memory.
//!
//! Anchors and aliases are refused: no machine file needs them, and they are how a small YAML text
//! becomes a large one.

use super::error::{MachineError, code};
use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::Value;
use std::fmt;

/// Largest machine file, or file that a machine file names, in bytes.
pub const MAX_TEXT_BYTES: usize = 1 << 20;
/// Deepest nesting of maps and lists in such a file.
pub const MAX_DEPTH: usize = 32;
/// Most nodes (keys, values, lists, maps) in such a file.
pub const MAX_NODES: usize = 100_000;

/// Parses one YAML or JSON document.
pub(super) fn parse(text: &str) -> Result<Value, MachineError> {
    parse_as::<Value>(text)
}

/// Parses one YAML or JSON document that must be a map, keeping the order of its keys.
pub(super) fn parse_map(text: &str) -> Result<Vec<(String, Value)>, MachineError> {
    parse_as::<Entries>(text).map(|entries| entries.0)
}

fn parse_as<'de, T: Deserialize<'de>>(text: &'de str) -> Result<T, MachineError> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(MachineError::new(
            code::TOO_LARGE,
            "",
            format!(
                "the text has {} bytes, more than {MAX_TEXT_BYTES}",
                text.len()
            ),
        )
        .hint("a machine file is a few kilobytes; check that this is one"));
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 4 * MAX_NODES,
            max_nodes: MAX_NODES,
            max_depth: MAX_DEPTH,
            flow_nesting_limit: MAX_DEPTH,
            max_documents: 1,
            max_aliases: 0,
            max_anchors: 0,
            max_recorded_anchor_events: 0,
            max_recorded_anchor_bytes: 0,
            max_merge_keys: 0,
            max_total_scalar_bytes: MAX_TEXT_BYTES,
            max_total_comment_bytes: MAX_TEXT_BYTES,
            max_inclusion_depth: 0,
        },
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options::<T>(text, options).map_err(|error| {
        let path = match error.location() {
            Some(at) if at.line() > 0 => format!("line {}, column {}", at.line(), at.column()),
            _ => String::new(),
        };
        let said = first_line(&error.to_string());
        // The place is the path; the parser says it once more.
        let said = match said.rfind(" at line ") {
            Some(end) => said[..end].to_owned(),
            None => said,
        };
        if matches!(error.without_snippet(), serde_saphyr::Error::Budget { .. }) {
            MachineError::new(code::TOO_COMPLEX, path, said).hint(format!(
                "one document, no anchors or aliases, at most {MAX_DEPTH} levels and {MAX_NODES} nodes"
            ))
        } else {
            MachineError::new(code::SYNTAX, path, said)
        }
    })
}

/// The parser's message in the manner of ours: one line, lower-case, no full stop.
fn first_line(message: &str) -> String {
    let line = message
        .lines()
        .next()
        .unwrap_or_default()
        .trim_end_matches('.')
        .trim();
    let line: String = line.chars().take(200).collect();
    let mut chars = line.chars();
    match chars.next() {
        Some(first) if chars.clone().next().is_some_and(|c| !c.is_uppercase()) => {
            first.to_lowercase().chain(chars).collect()
        }
        _ => line,
    }
}

/// A map's entries in file order.
struct Entries(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Entries;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of keys")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry::<String, Value>()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

/// The candidate nearest to `word`, if it is near enough to be a misspelling.
pub(super) fn nearest<'a>(
    word: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    // Words longer than any key are not misspellings of one; the cut also bounds the work.
    if word.len() > 64 {
        return None;
    }
    let limit = (word.chars().count() / 3).clamp(1, 4);
    candidates
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Edits (insert, delete, replace) from one word to the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        let mut next = Vec::with_capacity(row.len());
        next.push(left);
        for (cb, &above) in b.iter().zip(row.iter().skip(1)) {
            let replace = diagonal + usize::from(ca != *cb);
            left = replace.min(left + 1).min(above + 1);
            diagonal = above;
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

/// A value as a short text for messages.
pub(super) fn show(value: &Value) -> String {
    let text = match value {
        Value::String(text) => format!("'{}'", text.escape_debug()),
        other => other.to_string(),
    };
    if text.chars().count() > 60 {
        text.chars().take(57).chain("...".chars()).collect()
    } else {
        text
    }
}
