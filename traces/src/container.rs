//! The binary container of a trace.
//!
//! ```text
//! offset  bytes
//!      0      8  magic: 89 54 53 54 52 0d 0a 1a  ("\x89TSTR\r\n\x1a": damage by text-mode copying shows)
//!      8      2  format version, little-endian: 1 or 2
//!     10      2  flags, little-endian: bit 0 the payload is one zstd frame; other bits are 0
//!     12      8  length of the payload before compression, little-endian, at most 32 MiB
//!     20      8  length of the payload as stored, little-endian
//!     28     32  BLAKE3 of bytes 0 to 27 followed by the stored payload
//!     60      -  the stored payload, to the end
//! ```
//!
//! The payload is the `Wire` of its version (`container/wire_v1.rs`, `container/wire_v2.rs`) in bincode 2
//! (variable-length integers, little-endian). Nothing in it nests: statements are listed depth first, each with its number of
//! children, and the nodes of all expressions stand in one list in prefix order, so that reading a
//! hostile container takes neither deep recursion nor more memory than its size accounts for.
//!
//! Newer builds read every older version; an unknown version is refused as such. A trace is written in the
//! oldest version that can say it, so that older builds read what they could always read.

use std::borrow::Cow;
use std::io::Read as _;

use crate::error::{ErrorCode, TraceError};
use crate::model::{Resources, Trace};
use crate::validate::ValidTrace;

mod codec;
mod wire_v1;
mod wire_v2;

/// The first bytes of every container.
pub const MAGIC: [u8; 8] = *b"\x89TSTR\r\n\x1a";

/// The newest format version.
pub const VERSION: u16 = 2;

/// Bytes of a payload before compression, at most.
pub const MAX_PAYLOAD_BYTES: usize = 32 << 20;

const FLAG_ZSTD: u16 = 1;
const HEADER_BYTES: usize = 60;
const CHECKED_BYTES: usize = 28;

fn corrupt(message: impl Into<String>) -> TraceError {
    TraceError::new(ErrorCode::Corrupt, "", message)
        .with_hint("fetch or produce the container again")
}

/// Whether these bytes start like a container.
pub fn is_container(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// Encodes a trace, compressed.
///
/// # Errors
///
/// A trace whose payload is larger than [`MAX_PAYLOAD_BYTES`].
pub fn encode(trace: &ValidTrace) -> Result<Vec<u8>, TraceError> {
    encode_with(trace, true)
}

/// Encodes a trace, compressed or not.
///
/// # Errors
///
/// As [`encode`].
pub fn encode_with(trace: &ValidTrace, compress: bool) -> Result<Vec<u8>, TraceError> {
    let (version, payload) = if trace.resources == Resources::default() {
        (1u16, codec::encode(&wire_v1::from_trace(trace)))
    } else {
        (2, codec::encode(&wire_v2::from_trace(trace)))
    };
    let payload = payload
        .map_err(|e| TraceError::new(ErrorCode::TooLarge, "", format!("cannot encode: {e}")))?;
    if payload.len() > MAX_PAYLOAD_BYTES {
        return Err(TraceError::new(
            ErrorCode::TooLarge,
            "",
            format!("a payload of {} bytes", payload.len()),
        )
        .with_hint(format!(
            "a container holds at most {MAX_PAYLOAD_BYTES}; use loops"
        )));
    }
    let stored = if compress {
        zstd::bulk::compress(&payload, 9).map_err(|e| {
            TraceError::new(ErrorCode::TooLarge, "", format!("cannot compress: {e}"))
        })?
    } else {
        payload.clone()
    };
    let mut out = Vec::with_capacity(HEADER_BYTES + stored.len());
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&version.to_le_bytes());
    out.extend_from_slice(&(if compress { FLAG_ZSTD } else { 0 }).to_le_bytes());
    out.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    out.extend_from_slice(&(stored.len() as u64).to_le_bytes());
    let checksum = checksum(&out, &stored);
    out.extend_from_slice(&checksum);
    out.extend_from_slice(&stored);
    Ok(out)
}

fn checksum(head: &[u8], stored: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(head);
    hasher.update(stored);
    *hasher.finalize().as_bytes()
}

/// Decodes a container of any version, without validating the trace.
///
/// # Errors
///
/// Damage, an unknown version, or a payload that is no trace.
pub fn decode(bytes: &[u8]) -> Result<Trace, TraceError> {
    if !is_container(bytes) {
        return Err(TraceError::new(
            ErrorCode::UnknownFormat,
            "",
            "not a trace container",
        ));
    }
    let short = || corrupt(format!("cut short: {} bytes", bytes.len()));
    let mut fields = Fields(bytes.get(MAGIC.len()..).unwrap_or(&[]));
    let version = fields
        .take::<2>()
        .map(u16::from_le_bytes)
        .ok_or_else(short)?;
    if version == 0 || version > VERSION {
        return Err(TraceError::new(
            ErrorCode::Version,
            "",
            format!("container format version {version}"),
        )
        .with_hint(format!(
            "this build reads versions 1 to {VERSION}; use a newer one"
        )));
    }
    let flags = fields
        .take::<2>()
        .map(u16::from_le_bytes)
        .ok_or_else(short)?;
    let payload_len = fields
        .take::<8>()
        .map(u64::from_le_bytes)
        .ok_or_else(short)?;
    let stored_len = fields
        .take::<8>()
        .map(u64::from_le_bytes)
        .ok_or_else(short)?;
    let expected = fields.take::<32>().ok_or_else(short)?;
    let stored = fields.0;
    if stored_len != stored.len() as u64 {
        return Err(corrupt(format!(
            "{} payload bytes where {stored_len} belong",
            stored.len()
        )));
    }
    if checksum(bytes.get(..CHECKED_BYTES).unwrap_or(&[]), stored) != expected {
        return Err(corrupt("the checksum does not match"));
    }
    // From here on the bytes are what some program wrote; they may still be hostile.
    if flags & !FLAG_ZSTD != 0 {
        return Err(
            TraceError::new(ErrorCode::Version, "", format!("unknown flags {flags:#x}"))
                .with_hint("use a newer build"),
        );
    }
    if payload_len > MAX_PAYLOAD_BYTES as u64 {
        return Err(TraceError::new(
            ErrorCode::TooLarge,
            "",
            format!("a payload of {payload_len} bytes"),
        )
        .with_hint(format!("a container holds at most {MAX_PAYLOAD_BYTES}")));
    }
    let payload_len = payload_len as usize;
    let payload = if flags & FLAG_ZSTD != 0 {
        Cow::Owned(decompress(stored, payload_len)?)
    } else if stored.len() == payload_len {
        Cow::Borrowed(stored)
    } else {
        return Err(corrupt("the payload has another length than it says"));
    };
    let no_trace = |e| corrupt(format!("not a trace: {e}"));
    match version {
        1 => wire_v1::into_trace(codec::decode(&payload).map_err(no_trace)?),
        _ => wire_v2::into_trace(codec::decode(&payload).map_err(no_trace)?),
    }
}

/// Decompresses exactly `len` bytes; never holds more than one more.
fn decompress(stored: &[u8], len: usize) -> Result<Vec<u8>, TraceError> {
    let bad = |e: std::io::Error| corrupt(format!("cannot decompress: {e}"));
    let mut decoder = zstd::stream::read::Decoder::with_buffer(stored).map_err(bad)?;
    // A window of at most the payload limit, whatever the frame asks for.
    decoder.window_log_max(25).map_err(bad)?;
    let mut payload = Vec::new();
    decoder
        .take(len as u64 + 1)
        .read_to_end(&mut payload)
        .map_err(bad)?;
    if payload.len() != len {
        return Err(corrupt("the payload has another length than it says"));
    }
    Ok(payload)
}

struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::generate::{self, Choices};
    use crate::text;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

        #[test]
        fn encoded_traces_read_back(bytes in proptest::collection::vec(any::<u8>(), 0..800), compress: bool) {
            let trace = ValidTrace::try_from(generate::trace(&mut Choices::new(&bytes))).unwrap();
            let container = encode_with(&trace, compress).unwrap();
            let back = decode(&container).unwrap();
            prop_assert_eq!(&back, &*trace);
            // Both encodings share the digest.
            let text = text::parse_valid(&text::print(&trace)).unwrap();
            prop_assert_eq!(ValidTrace::try_from(back).unwrap().digest(), text.digest());
        }

        #[test]
        fn damage_is_noticed(at in 0usize..10_000, bit in 0u8..8) {
            let mut container = encode(&sample()).unwrap();
            let at = at % container.len();
            container[at] ^= 1 << bit;
            prop_assert!(decode(&container).is_err());
        }

        #[test]
        fn any_payload_is_read_or_refused(payload in proptest::collection::vec(any::<u8>(), 0..300)) {
            for version in 1..=VERSION {
                if let Ok(trace) = decode(&frame(version, 0, payload.len() as u64, &payload)) {
                    let _ = crate::validate::check(&trace);
                }
            }
        }
    }

    fn sample() -> ValidTrace {
        text::parse_valid(
            "tilesim trace 1 kernel \"gold\" producer \"me\" version \"2\" measured lanes 8 element f32 \
             origin \"a\" \"b\" axes 2 param K = -3 tensor A: 8 bit inout [K + 70, g0] tiled [8, 8] \
             bounds off buffer acc 64 tile t unit matmul cycles 5 overlap 1 source analytic \"n\" admit Systolic rows 4 per 0.5 \
             dispatch order p1 p0 key p0 % 2 \
             body { for k in 0..K step 2 { if k > 1 { load A[trunc_i32(k)] dims [4: 1 valid min(4, k)] bits 4 async 7 writes [acc] } \
             else { store A[0] lines 3 of 32 bytes reads [acc] } compute t matmul reads [acc] writes [acc] } \
             load A[0] indices [1, 2] wait 7 for select(p0, 1, 2) }",
        )
        .unwrap()
    }

    fn frame(version: u16, flags: u16, payload_len: u64, stored: &[u8]) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&version.to_le_bytes());
        out.extend_from_slice(&flags.to_le_bytes());
        out.extend_from_slice(&payload_len.to_le_bytes());
        out.extend_from_slice(&(stored.len() as u64).to_le_bytes());
        let sum = checksum(&out, stored);
        out.extend_from_slice(&sum);
        out.extend_from_slice(stored);
        out
    }

    #[test]
    fn truncation_is_noticed() {
        let container = encode(&sample()).unwrap();
        for len in 0..container.len() {
            let code = decode(&container[..len]).unwrap_err().code;
            let want = if len < 8 {
                ErrorCode::UnknownFormat
            } else {
                ErrorCode::Corrupt
            };
            assert_eq!(code, want, "{len}");
        }
        let mut longer = container;
        longer.push(0);
        assert_eq!(decode(&longer).unwrap_err().code, ErrorCode::Corrupt);
    }

    #[test]
    fn versions_and_flags() {
        assert_eq!(
            decode(&frame(VERSION + 1, 0, 0, &[])).unwrap_err().code,
            ErrorCode::Version
        );
        assert_eq!(
            decode(&frame(0, 0, 0, &[])).unwrap_err().code,
            ErrorCode::Version
        );
        assert_eq!(
            decode(&frame(1, 2, 0, &[])).unwrap_err().code,
            ErrorCode::Version
        );
        assert_eq!(
            decode(&frame(1, 0, 0, &[])).unwrap_err().code,
            ErrorCode::Corrupt
        );
    }

    #[test]
    fn bombs_are_refused() {
        // A gigabyte of zeros in a few kilobytes, with an honest and a dishonest length.
        let zeros = vec![0u8; 1 << 20];
        let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
        for _ in 0..1024 {
            std::io::Write::write_all(&mut encoder, &zeros).unwrap();
        }
        let bomb = encoder.finish().unwrap();
        let e = decode(&frame(1, FLAG_ZSTD, 1 << 30, &bomb)).unwrap_err();
        assert_eq!(e.code, ErrorCode::TooLarge);
        let e = decode(&frame(1, FLAG_ZSTD, 1 << 20, &bomb)).unwrap_err();
        assert_eq!(e.code, ErrorCode::Corrupt);
        // A list that claims 2^60 entries.
        let mut payload = vec![0; 4];
        payload.extend_from_slice(&[253, 255, 255, 255, 255, 255, 255, 255, 15]);
        let e = decode(&frame(1, 0, payload.len() as u64, &payload)).unwrap_err();
        assert_eq!(e.code, ErrorCode::Corrupt);
    }

    #[test]
    fn deep_trees_cannot_overflow_the_stack() {
        use crate::limits::MAX_EXPR_DEPTH;
        use crate::model::*;
        // As deep as is valid, and then the wire form by hand, far deeper.
        let mut e = Expr::Const(1);
        for _ in 1..MAX_EXPR_DEPTH {
            e = Expr::Unary(UnaryOp::Neg, Box::new(e));
        }
        let mut trace = (*sample()).clone();
        trace.body = vec![Stmt::Wait(Wait {
            semaphore: SemId(0),
            expected: e,
        })];
        let trace = ValidTrace::try_from(trace).unwrap();
        assert_eq!(decode(&encode(&trace).unwrap()).unwrap(), *trace);
        let wire = wire_v1::deep_for_tests(&trace, 1_000_000);
        let payload = codec::encode(&wire).unwrap();
        let e = decode(&frame(1, 0, payload.len() as u64, &payload)).unwrap_err();
        assert_eq!(e.code, ErrorCode::TooDeep);
    }

    /// A version 1 container as it was first written. It must load for ever, and the same trace must
    /// encode to the same payload.
    const GOLDEN_V1: &str = include_str!("../testdata/container_v1.hex").trim_ascii();

    /// The same of version 2, in which the trace says what a work-item takes.
    const GOLDEN_V2: &str = include_str!("../testdata/container_v2.hex").trim_ascii();

    fn sample_v2() -> ValidTrace {
        let resources = Resources {
            registers: 65_536,
            threads: 256,
        };
        let trace = Trace {
            resources,
            ..(*sample()).clone()
        };
        ValidTrace::try_from(trace).unwrap()
    }

    #[test]
    fn golden_bytes() {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        for (golden, sample) in [(GOLDEN_V1, sample()), (GOLDEN_V2, sample_v2())] {
            assert_eq!(hex(&encode_with(&sample, false).unwrap()), golden);
            let bytes: Vec<u8> = (0..golden.len() / 2)
                .map(|i| u8::from_str_radix(&golden[2 * i..2 * i + 2], 16).unwrap())
                .collect();
            assert_eq!(decode(&bytes).unwrap(), *sample);
        }
    }
}
