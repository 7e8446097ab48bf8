//! Loading a trace from bytes of any known encoding.

use crate::container;
use crate::error::{ErrorCode, TraceError};
use crate::json;
use crate::limits::MAX_ENCODED_BYTES;
use crate::text;
use crate::validate::ValidTrace;

/// The encodings of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// The binary container.
    Container,
    /// The JSON work-item form (read only).
    Json,
    /// The readable form.
    Text,
}

/// Which encoding these bytes are in, by their content; `None` when they are none of them.
pub fn sniff(bytes: &[u8]) -> Option<Encoding> {
    if container::is_container(bytes) {
        return Some(Encoding::Container);
    }
    let text = std::str::from_utf8(strip_mark(bytes)).ok()?;
    if text.trim_start().starts_with('{') {
        Some(Encoding::Json)
    } else {
        Some(Encoding::Text)
    }
}

/// Windows editors put a byte-order mark before UTF-8 text.
fn strip_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

/// Reads and validates a trace in any encoding. `name` is what to call the bytes in errors, for
/// example a file name; it may be empty and decides nothing.
///
/// # Errors
///
/// The first mistake.
pub fn load_bytes(name: &str, bytes: &[u8]) -> Result<ValidTrace, TraceError> {
    load_bytes_with(name, bytes, &json::no_files)
}

/// Like [`load_bytes`], with files that a JSON trace names given by `resolve`.
///
/// # Errors
///
/// The first mistake.
pub fn load_bytes_with(
    name: &str,
    bytes: &[u8],
    resolve: json::Resolver<'_>,
) -> Result<ValidTrace, TraceError> {
    let named = |what: &str| {
        if name.is_empty() {
            what.to_owned()
        } else {
            format!("{name}: {what}")
        }
    };
    if bytes.len() > MAX_ENCODED_BYTES {
        let message = named(&format!("a trace of {} bytes", bytes.len()));
        return Err(TraceError::new(ErrorCode::TooLarge, "", message)
            .with_hint(format!("use at most {MAX_ENCODED_BYTES}")));
    }
    let loaded = match sniff(bytes) {
        Some(Encoding::Container) => container::decode(bytes).and_then(ValidTrace::try_from),
        Some(Encoding::Json) => std::str::from_utf8(strip_mark(bytes))
            .map_err(|_| not_text())
            .and_then(|text| json::import(text, resolve))
            .and_then(|import| ValidTrace::try_from(import.trace)),
        Some(Encoding::Text) => std::str::from_utf8(strip_mark(bytes))
            .map_err(|_| not_text())
            .and_then(text::parse_valid),
        None => Err(not_text()),
    };
    loaded.map_err(|e| {
        if name.is_empty() {
            e
        } else {
            TraceError {
                message: named(&e.message),
                ..e
            }
        }
    })
}

fn not_text() -> TraceError {
    TraceError::new(
        ErrorCode::UnknownFormat,
        "",
        "not a trace: neither a container nor UTF-8 text",
    )
    .with_hint("give a container, a text that starts with `tilesim trace`, or the JSON form")
}

/// The readable form of a trace.
pub fn to_text(trace: &ValidTrace) -> String {
    text::print(trace)
}

/// The binary container of a trace.
///
/// # Errors
///
/// A trace too large for a container.
pub fn to_container(trace: &ValidTrace) -> Result<Vec<u8>, TraceError> {
    container::encode(trace)
}
