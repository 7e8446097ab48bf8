//! One object as one file.
//!
//! ```text
//! offset  bytes
//!      0      8  magic "TSOBJ\0\0\1"
//!      8     32  BLAKE3 of everything after it
//!     40      8  stored at, seconds since the epoch, little-endian
//!     48      4  length n of the name, little-endian
//!     52      n  name, UTF-8
//!   52+n         content
//! ```

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
};

use super::{StoreError, io_error};

const MAGIC: &[u8; 8] = b"TSOBJ\0\0\x01";

/// A whole object.
pub struct Object {
    /// Kernel or machine name.
    pub name: String,
    /// When it was stored.
    pub stored_unix_s: u64,
    /// What was stored.
    pub content: Vec<u8>,
}

/// Why an object could not be read.
#[derive(Debug)]
pub enum ReadError {
    /// Its bytes are not what was written.
    Damaged(&'static str),
    /// The file system failed.
    Io(io::Error),
}

/// Writes an object so that a crash leaves all of it or nothing.
pub fn write(
    temporary: &Path,
    path: &Path,
    name: &str,
    stored_unix_s: u64,
    content: &[u8],
) -> Result<(), StoreError> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).map_err(io_error("create", folder))?;
    let mut head = Vec::with_capacity(12 + name.len());
    head.extend_from_slice(&stored_unix_s.to_le_bytes());
    head.extend_from_slice(&(name.len() as u32).to_le_bytes());
    head.extend_from_slice(name.as_bytes());
    let checksum = blake3::Hasher::new()
        .update(&head)
        .update(content)
        .finalize();
    let mut file = tempfile::Builder::new()
        .tempfile_in(temporary)
        .map_err(io_error("create a file in", temporary))?;
    for part in [MAGIC.as_slice(), checksum.as_bytes(), &head, content] {
        file.write_all(part).map_err(io_error("write", path))?;
    }
    file.as_file().sync_all().map_err(io_error("sync", path))?;
    file.persist(path)
        .map_err(|e| io_error("rename to", path)(e.error))?;
    // The rename itself is durable once the folder is.
    File::open(folder)
        .and_then(|f| f.sync_all())
        .map_err(io_error("sync", folder))
}

/// Reads an object; `None` if there is no such file.
pub fn read(path: &Path) -> Result<Option<Object>, ReadError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(ReadError::Io(e)),
    };
    parse(bytes).map(Some)
}

fn parse(mut bytes: Vec<u8>) -> Result<Object, ReadError> {
    const SHORT: ReadError = ReadError::Damaged("its file is cut short");
    let rest = bytes
        .strip_prefix(MAGIC)
        .ok_or(ReadError::Damaged("its file has no valid head"))?;
    let (checksum, body) = rest.split_first_chunk::<32>().ok_or(SHORT)?;
    if blake3::hash(body).as_bytes() != checksum {
        return Err(ReadError::Damaged("its checksum does not match"));
    }
    let (stored, body) = body.split_first_chunk::<8>().ok_or(SHORT)?;
    let stored_unix_s = u64::from_le_bytes(*stored);
    let (length, body) = body.split_first_chunk::<4>().ok_or(SHORT)?;
    let (name, content) = body
        .split_at_checked(u32::from_le_bytes(*length) as usize)
        .ok_or(SHORT)?;
    let name = String::from_utf8_lossy(name).into_owned();
    let start = bytes.len() - content.len();
    bytes.drain(..start);
    Ok(Object {
        name,
        stored_unix_s,
        content: bytes,
    })
}
