//! The one place that knows bincode.
//!
//! bincode is pinned to 2.0.1: version 3 does not compile by intent, and the crate is marked
//! unmaintained (RUSTSEC-2025-0141). Its format is frozen and ours sits under a versioned frame with
//! golden-bytes tests, so it can be replaced without touching a stored trace.

use bincode::config::{Configuration, Limit, LittleEndian, Varint};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::MAX_PAYLOAD_BYTES;

fn config() -> Configuration<LittleEndian, Varint, Limit<MAX_PAYLOAD_BYTES>> {
    bincode::config::standard().with_limit::<MAX_PAYLOAD_BYTES>()
}

pub(super) fn encode(value: &impl Serialize) -> Result<Vec<u8>, String> {
    bincode::serde::encode_to_vec(value, config()).map_err(|e| e.to_string())
}

pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let (value, used) =
        bincode::serde::decode_from_slice(bytes, config()).map_err(|e| e.to_string())?;
    if used == bytes.len() {
        Ok(value)
    } else {
        Err(format!("{} bytes left over", bytes.len() - used))
    }
}
