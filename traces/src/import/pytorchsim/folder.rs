//! A kernel folder in memory, and the one place that reads it from disk.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use crate::error::{ErrorCode, TraceError};

/// Bytes of one C++ source or table, at most.
pub const MAX_FILE: u64 = 8 << 20;
/// Bytes of gem5's statistics, at most.
pub const MAX_STATS: u64 = 64 << 20;
/// Bytes of a folder together, at most.
pub const MAX_TOTAL: u64 = 96 << 20;
/// Entries that are looked at in a folder, at most.
const MAX_ENTRIES: usize = 4096;

/// The files of a kernel folder: name (with `/` for sub-folders) and bytes.
#[derive(Clone, Debug, Default)]
pub struct KernelFolder {
    files: BTreeMap<String, Vec<u8>>,
    total: u64,
}

/// The most bytes that a file of this name may have.
fn limit(name: &str) -> u64 {
    if name == STATS { MAX_STATS } else { MAX_FILE }
}

/// gem5's statistics.
pub const STATS: &str = "m5out/stats.txt";

const WANTED: &[&str] = &[
    "kernel.json",
    "tile_types.json",
    "meta.json",
    "trace_cycles.tsv",
    "cycles.tsv",
    "trace_shape.txt",
    "trace_tensors.txt",
    "trace_tensor_shapes.txt",
    "trace_axes.txt",
    "units.tsv",
    "trace_units.tsv",
];

impl KernelFolder {
    /// An empty folder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file.
    ///
    /// # Errors
    /// The file or the folder would be larger than its limit.
    pub fn add(
        &mut self,
        name: impl Into<String>,
        bytes: impl Into<Vec<u8>>,
    ) -> Result<(), TraceError> {
        let (name, bytes) = (name.into(), bytes.into());
        let size = bytes.len() as u64;
        if size > limit(&name) {
            return Err(too_large(&name, size, limit(&name)));
        }
        self.total = self.total.saturating_add(size);
        if self.total > MAX_TOTAL {
            return Err(TraceError::new(
                ErrorCode::TooLarge,
                name,
                format!("the folder has more than {MAX_TOTAL} bytes"),
            ));
        }
        self.files.insert(name, bytes);
        Ok(())
    }

    /// The bytes of a file.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.files.get(name).map(Vec::as_slice)
    }

    /// Names of all files, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// Reads what the importer can use from a folder on disk: the C++ sources and headers at its top,
    /// the tables and descriptions beside them, and gem5's statistics. Other files are not opened.
    ///
    /// # Errors
    /// The folder or a file cannot be read, a file is too large or no ordinary file, or a symbolic
    /// link leads out of the folder.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let shown = path.display().to_string();
        let io = |name: &str, e: &std::io::Error| {
            TraceError::new(ErrorCode::BadValue, name, format!("cannot read it: {e}"))
        };
        let root = path.canonicalize().map_err(|e| io(&shown, &e))?;
        if !root.is_dir() {
            return Err(TraceError::new(ErrorCode::BadValue, shown, "not a folder"));
        }
        let mut names: Vec<String> = Vec::new();
        for (i, entry) in std::fs::read_dir(&root)
            .map_err(|e| io(&shown, &e))?
            .enumerate()
        {
            if i >= MAX_ENTRIES {
                let m = format!("more than {MAX_ENTRIES} entries: this is no kernel folder");
                return Err(TraceError::new(ErrorCode::TooLarge, shown, m));
            }
            let entry = entry.map_err(|e| io(&shown, &e))?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let source = [".cpp", ".cc", ".h", ".hpp", ".inc"]
                .iter()
                .any(|e| name.ends_with(e));
            if source || WANTED.contains(&name.as_str()) {
                names.push(name);
            }
        }
        names.sort();
        if root.join(STATS).symlink_metadata().is_ok() {
            names.push(STATS.to_owned());
        }
        let mut folder = Self::new();
        for name in names {
            let at = root.join(&name);
            let real = at.canonicalize().map_err(|e| io(&name, &e))?;
            if !real.starts_with(&root) {
                return Err(TraceError::new(
                    ErrorCode::BadValue,
                    name,
                    "a symbolic link that leads out of the folder",
                )
                .with_hint("copy the file it points to"));
            }
            let meta = std::fs::metadata(&real).map_err(|e| io(&name, &e))?;
            if meta.is_dir() {
                continue;
            }
            if !meta.is_file() {
                return Err(TraceError::new(
                    ErrorCode::BadValue,
                    name,
                    "neither a file nor a folder",
                ));
            }
            let max = limit(&name);
            if meta.len() > max {
                return Err(too_large(&name, meta.len(), max));
            }
            let mut bytes = Vec::new();
            let file = std::fs::File::open(&real).map_err(|e| io(&name, &e))?;
            // The file may grow while it is read.
            file.take(max + 1)
                .read_to_end(&mut bytes)
                .map_err(|e| io(&name, &e))?;
            folder.add(name, bytes)?;
        }
        Ok(folder)
    }
}

fn too_large(name: &str, size: u64, max: u64) -> TraceError {
    TraceError::new(
        ErrorCode::TooLarge,
        name,
        format!("{size} bytes; at most {max} are read"),
    )
}
