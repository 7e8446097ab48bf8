//! Files that people name: traces and machines.

use std::{
    fs,
    io::Read as _,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use tilesim_core::machine::{self, import::ImportOptions};
use tilesim_server::{catalog::MachineSource, error::ServiceError, ids::Digest};
use tilesim_traces::{
    TraceError, ValidTrace,
    import::pytorchsim::{Imported, Options},
};

use super::folder;

/// Bytes of a trace or machine file, at most.
const FILE_BYTES: u64 = 64 << 20;

/// A trace from a file, ready to run.
#[derive(Clone)]
pub struct TraceFile {
    /// The file's name.
    pub name: String,
    /// Digest of the content.
    pub digest: Digest,
    /// The trace.
    pub trace: ValidTrace,
    /// How it was imported, if it was.
    pub imported: Option<Arc<Imported>>,
}

/// Reads a file that a user named, unless it is too large.
pub fn read(path: &Path) -> Result<Vec<u8>, ServiceError> {
    let fail = |e: std::io::Error| {
        ServiceError::invalid(
            "client.file",
            path.display().to_string(),
            format!("cannot read the file: {e}"),
        )
    };
    let too_large = |size: u64| {
        ServiceError::invalid(
            "client.file_too_large",
            path.display().to_string(),
            format!("{size} bytes are more than the limit of {FILE_BYTES}"),
        )
    };
    let size = fs::metadata(path).map_err(fail)?.len();
    if size > FILE_BYTES {
        return Err(too_large(size));
    }
    // Devices and pipes have no size, and files may grow while they are read.
    let mut bytes = Vec::new();
    fs::File::open(path)
        .and_then(|file| file.take(FILE_BYTES + 1).read_to_end(&mut bytes))
        .map_err(fail)?;
    match bytes.len() as u64 {
        size if size > FILE_BYTES => Err(too_large(size)),
        _ => Ok(bytes),
    }
}

/// Reads a text file that a user named.
pub fn read_text(path: &Path) -> Result<String, ServiceError> {
    String::from_utf8(read(path)?).map_err(|_| {
        ServiceError::invalid(
            "client.file",
            path.display().to_string(),
            "the file is not UTF-8 text",
        )
    })
}

/// Files beside `path` that it names. Nothing outside its folder is read.
fn neighbour(path: &Path, name: &str) -> Result<String, String> {
    let inside = |c: Component<'_>| matches!(c, Component::Normal(_) | Component::CurDir);
    if !Path::new(name).components().all(inside) {
        return Err("it is not in the folder of the file that names it".to_owned());
    }
    let folder = path.parent().unwrap_or(Path::new(""));
    read_text(&folder.join(name)).map_err(|e| e.problem.message)
}

/// Files that a machine file names, relative to it: in its folder or the one above, where the other
/// simulator keeps its machine files too (`../configs/...`).
fn machine_neighbour(path: &Path, name: &str) -> Result<String, String> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let outside =
        || "it is neither in the folder of the file that names it nor beside it".to_owned();
    let above = folder
        .canonicalize()
        .ok()
        .and_then(|f| f.parent().map(Path::to_owned))
        .ok_or_else(outside)?;
    let mut parts = Path::new(name).components();
    let up = matches!(
        Path::new(name).components().next(),
        Some(Component::ParentDir)
    );
    if up {
        parts.next();
    }
    let rest: PathBuf = parts.collect();
    let inside = |c: Component<'_>| matches!(c, Component::Normal(_) | Component::CurDir);
    if !rest.components().all(inside) {
        return Err(outside());
    }
    // `../configs/x` also means `x` when the files were taken out of a folder of that name.
    let mut tries = vec![folder.join(name)];
    if up && let Ok(inner) = rest.strip_prefix("configs") {
        tries.push(folder.join(inner));
    }
    let found = tries
        .iter()
        .find_map(|p| p.canonicalize().ok())
        .ok_or("not found")?;
    if !found.starts_with(&above) {
        return Err(outside());
    }
    read_text(&found).map_err(|e| e.problem.message)
}

/// Reads and validates a trace in any encoding.
pub fn parse_trace(path: &Path, bytes: &[u8]) -> Result<ValidTrace, TraceError> {
    tilesim_traces::load_bytes_with("", bytes, &|file| neighbour(path, file))
}

/// Reads and validates a trace, or imports a kernel folder.
pub fn trace(path: &Path) -> Result<TraceFile, ServiceError> {
    if path.is_dir() {
        return folder::import(path, &Options::default()).map(|(file, _)| file);
    }
    let place = |e: TraceError| {
        let mut error = ServiceError::from(e);
        error.problem.path = match error.problem.path.as_str() {
            "" => path.display().to_string(),
            inside => format!("{}: {inside}", path.display()),
        };
        error
    };
    let trace = parse_trace(path, &read(path)?).map_err(place)?;
    let digest = Digest(trace.digest().0);
    let name = path
        .file_name()
        .map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    Ok(TraceFile {
        name,
        digest,
        trace,
        imported: None,
    })
}

/// A machine: the name of a preset, or a file. A file wins if it looks like one.
pub fn machine_source(name: &str) -> Result<MachineSource, ServiceError> {
    let path = Path::new(name);
    let looks_like_a_file = path.extension().is_some() || path.components().count() > 1;
    if !looks_like_a_file && !path.is_file() {
        return match name.parse() {
            Ok(digest) => Ok(MachineSource::Stored(digest)),
            Err(()) => Ok(MachineSource::Preset(name.to_owned())),
        };
    }
    let machine = machine(path)?;
    Ok(MachineSource::Document(machine.machine.to_yaml()?))
}

/// Reads a machine file in our schema, or one that can be imported.
pub fn machine(path: &Path) -> Result<machine::Loaded, ServiceError> {
    machine_with(path, ImportOptions::default())
}

/// Reads a machine file in our schema, or one that can be imported, as `options` say.
pub fn machine_with(path: &Path, options: ImportOptions) -> Result<machine::Loaded, ServiceError> {
    let text = read_text(path)?;
    let name = path
        .file_stem()
        .map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    machine::load(
        &name,
        &text,
        &|file: &str| machine_neighbour(path, file),
        options,
    )
    .map_err(|e| {
        let mut error = ServiceError::from(e);
        error.problem.path = match error.problem.path.as_str() {
            "" => path.display().to_string(),
            inside => format!("{}: {inside}", path.display()),
        };
        error
    })
}
