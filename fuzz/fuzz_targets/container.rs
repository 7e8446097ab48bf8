//! Any bytes are read or refused, whole or as a payload under an intact frame.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tilesim_traces::{ValidTrace, container};

/// A frame whose checksum holds, so that fuzzing reaches what lies behind it.
fn frame(flags: u16, len: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = container::MAGIC.to_vec();
    out.extend_from_slice(&container::VERSION.to_le_bytes());
    out.extend_from_slice(&flags.to_le_bytes());
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    let mut hasher = blake3::Hasher::new();
    hasher.update(&out).update(payload);
    out.extend_from_slice(hasher.finalize().as_bytes());
    out.extend_from_slice(payload);
    out
}

fn check(bytes: &[u8]) {
    let Ok(trace) = container::decode(bytes) else { return };
    let Ok(trace) = ValidTrace::try_from(trace) else { return };
    let again = container::encode(&trace).expect("fits a container");
    assert_eq!(container::decode(&again).expect("decodes"), *trace);
}

fuzz_target!(|data: &[u8]| {
    check(data);
    check(&frame(0, data.len() as u64, data));
    // As a zstd frame of any claimed length.
    if let Some((head, rest)) = data.split_first_chunk::<2>() {
        check(&frame(1, u16::from_le_bytes(*head).into(), rest));
    }
    // A seed is a whole container: mutate its payload without breaking the checksum.
    if data.len() > 60 && container::is_container(data) {
        check(&frame(0, data.len() as u64 - 60, &data[60..]));
    }
});
