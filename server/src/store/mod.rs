//! The embedded store: traces, machines and results, each under the tenant that owns it.
//!
//! Traces and machines are content-addressed files, described by a redb index:
//!
//! ```text
//! <root>/index.redb                         the index, and the results
//! <root>/objects/<tenant>/<kind>/<digest>   one object per file (see `object`)
//! <root>/tmp/                               files being written; emptied at start
//! ```
//!
//! An object is written to a temporary file, synced, renamed into place, and only then entered in
//! the index, so that a crash leaves either all of it or none. An object carries its own checksum
//! and name: damage is found when it is read, and a lost index is rebuilt from the files.
//!
//! Results are a cache. They live in the index itself, are written in batches by one thread, and
//! the oldest go when there are too many. A damaged one counts as absent.

mod object;
mod results;

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use redb::{
    Database, DatabaseError, ReadableDatabase, ReadableTable, StorageError, TableDefinition,
};

use crate::ids::{Digest, Tenant};

pub use results::ResultKey;

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// A trace, in the binary container.
    Trace,
    /// A machine description.
    Machine,
}

impl ObjectKind {
    const ALL: [ObjectKind; 2] = [ObjectKind::Trace, ObjectKind::Machine];

    fn folder(self) -> &'static str {
        match self {
            ObjectKind::Trace => "traces",
            ObjectKind::Machine => "machines",
        }
    }

    fn noun(self) -> &'static str {
        match self {
            ObjectKind::Trace => "trace",
            ObjectKind::Machine => "machine",
        }
    }
}

/// An entry of the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Digest of the content.
    pub digest: Digest,
    /// Kernel or machine name.
    pub name: String,
    /// Bytes of the content.
    pub size: u64,
    /// When it was stored, in seconds since the epoch.
    pub stored_unix_s: u64,
}

/// Why the store could not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// An entry is there but its bytes are not what was written.
    #[error("stored {kind} {digest} is damaged: {detail}")]
    Damaged {
        /// `trace` or `machine`.
        kind: &'static str,
        /// Which one.
        digest: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The tenant's share is used up.
    #[error("storing {size} more bytes would exceed the tenant's {limit} bytes ({used} in use)")]
    Quota {
        /// Bytes of the new object.
        size: u64,
        /// Bytes in use.
        used: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// Another process has the store open.
    #[error("the store {path} is in use by another process")]
    InUse {
        /// Its folder.
        path: String,
    },
    /// The file system failed.
    #[error("{action} {path}: {source}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// To what.
        path: String,
        /// How it failed.
        source: io::Error,
    },
    /// The index failed.
    #[error("index: {0}")]
    Index(#[from] Box<redb::Error>),
}

fn index_error(error: impl Into<redb::Error>) -> StoreError {
    StoreError::Index(Box::new(error.into()))
}

fn io_error<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> StoreError + 'a {
    move |source| StoreError::Io {
        action,
        path: path.display().to_string(),
        source,
    }
}

/// Tenant, kind, digest.
type ObjectKey = (&'static str, &'static str, [u8; 32]);
/// Size, stored at, name.
type ObjectValue = (u64, u64, &'static str);

const OBJECTS: TableDefinition<ObjectKey, ObjectValue> = TableDefinition::new("objects");
/// Tenant -> bytes of objects.
const USAGE: TableDefinition<&str, u64> = TableDefinition::new("usage");

/// The store. All methods block on the file system: call them off the async runtime.
pub struct Store {
    root: PathBuf,
    database: Arc<Database>,
    results: results::Writer,
    tenant_bytes: u64,
    damage: AtomicU64,
}

impl Store {
    /// Opens the store in `root`, creating it if it is not there. `tenant_bytes` bounds the objects
    /// of one tenant, `result_entries` the results of all.
    pub fn open(root: &Path, tenant_bytes: u64, result_entries: u64) -> Result<Self, StoreError> {
        let temporary = root.join("tmp");
        match fs::remove_dir_all(&temporary) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(io_error("clear", &temporary)(e));
            }
            _ => {}
        }
        for folder in [&temporary, &root.join("objects")] {
            fs::create_dir_all(folder).map_err(io_error("create", folder))?;
        }
        let (database, rebuild) = open_index(root)?;
        let transaction = database.begin_write().map_err(index_error)?;
        transaction.open_table(OBJECTS).map_err(index_error)?;
        transaction.open_table(USAGE).map_err(index_error)?;
        results::create_tables(&transaction)?;
        transaction.commit().map_err(index_error)?;
        let database = Arc::new(database);
        let store = Self {
            root: root.to_owned(),
            results: results::Writer::start(Arc::clone(&database), result_entries)?,
            database,
            tenant_bytes,
            damage: AtomicU64::new(0),
        };
        if rebuild {
            store.rebuild_index()?;
        }
        Ok(store)
    }

    /// Stores an object. Returns `false` if it was there already, whole.
    pub fn put(
        &self,
        tenant: &Tenant,
        kind: ObjectKind,
        digest: Digest,
        name: &str,
        content: &[u8],
    ) -> Result<bool, StoreError> {
        // The write transaction is exclusive: it also keeps two writers of one file apart.
        let transaction = self.database.begin_write().map_err(index_error)?;
        let path = self.path(tenant, kind, digest);
        let known = {
            let table = transaction.open_table(OBJECTS).map_err(index_error)?;
            table
                .get((tenant.as_str(), kind.folder(), digest.0))
                .map_err(index_error)?
                .map(|v| v.value().0)
        };
        if known.is_some() && matches!(object::read(&path), Ok(Some(_))) {
            return Ok(false);
        }
        let size = content.len() as u64;
        let used = usage(&transaction, tenant)?.saturating_sub(known.unwrap_or(0));
        if used.saturating_add(size) > self.tenant_bytes {
            return Err(StoreError::Quota {
                size,
                used,
                limit: self.tenant_bytes,
            });
        }
        let stored_unix_s = unix_seconds();
        object::write(&self.root.join("tmp"), &path, name, stored_unix_s, content)?;
        {
            let mut table = transaction.open_table(OBJECTS).map_err(index_error)?;
            table
                .insert(
                    (tenant.as_str(), kind.folder(), digest.0),
                    (size, stored_unix_s, name),
                )
                .map_err(index_error)?;
            let mut table = transaction.open_table(USAGE).map_err(index_error)?;
            table
                .insert(tenant.as_str(), used + size)
                .map_err(index_error)?;
        }
        transaction.commit().map_err(index_error)?;
        Ok(true)
    }

    /// Reads an object; `None` if the tenant has none of that digest.
    pub fn get(
        &self,
        tenant: &Tenant,
        kind: ObjectKind,
        digest: Digest,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        if self.entry(tenant, kind, digest)?.is_none() {
            return Ok(None);
        }
        let path = self.path(tenant, kind, digest);
        let detail = match object::read(&path) {
            Ok(Some(object)) => return Ok(Some(object.content)),
            Ok(None) => "its file is missing".to_owned(),
            Err(object::ReadError::Damaged(detail)) => detail.to_owned(),
            Err(object::ReadError::Io(source)) => return Err(io_error("read", &path)(source)),
        };
        Err(self.damaged(kind, digest, detail))
    }

    /// Reports an object whose bytes are not what was stored.
    pub fn damaged(&self, kind: ObjectKind, digest: Digest, detail: String) -> StoreError {
        self.damage.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(%digest, kind = kind.noun(), %detail, "stored object is damaged");
        StoreError::Damaged {
            kind: kind.noun(),
            digest: digest.to_string(),
            detail,
        }
    }

    /// The index entry of an object whose file is there.
    pub fn entry(
        &self,
        tenant: &Tenant,
        kind: ObjectKind,
        digest: Digest,
    ) -> Result<Option<Entry>, StoreError> {
        let transaction = self.database.begin_read().map_err(index_error)?;
        let table = transaction.open_table(OBJECTS).map_err(index_error)?;
        let entry = table
            .get((tenant.as_str(), kind.folder(), digest.0))
            .map_err(index_error)?
            .map(|v| {
                let (size, stored_unix_s, name) = v.value();
                Entry {
                    digest,
                    name: name.to_owned(),
                    size,
                    stored_unix_s,
                }
            });
        Ok(entry)
    }

    /// Whether an object is there: in the index, and as a file.
    pub fn contains(
        &self,
        tenant: &Tenant,
        kind: ObjectKind,
        digest: Digest,
    ) -> Result<bool, StoreError> {
        Ok(
            self.entry(tenant, kind, digest)?.is_some()
                && self.path(tenant, kind, digest).is_file(),
        )
    }

    /// Up to `count` entries with digests above `after`, in order.
    pub fn list(
        &self,
        tenant: &Tenant,
        kind: ObjectKind,
        after: Option<Digest>,
        count: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        let transaction = self.database.begin_read().map_err(index_error)?;
        let table = transaction.open_table(OBJECTS).map_err(index_error)?;
        let first = (
            tenant.as_str(),
            kind.folder(),
            after.map_or([0; 32], |d| d.0),
        );
        let last = (tenant.as_str(), kind.folder(), [0xff; 32]);
        let mut entries = Vec::new();
        for item in table.range(first..=last).map_err(index_error)? {
            let (key, value) = item.map_err(index_error)?;
            let digest = Digest(key.value().2);
            if after == Some(digest) {
                continue;
            }
            if entries.len() == count {
                break;
            }
            let (size, stored_unix_s, name) = value.value();
            entries.push(Entry {
                digest,
                name: name.to_owned(),
                size,
                stored_unix_s,
            });
        }
        Ok(entries)
    }

    /// Deletes an object. Returns `false` if it was not there.
    pub fn delete(
        &self,
        tenant: &Tenant,
        kind: ObjectKind,
        digest: Digest,
    ) -> Result<bool, StoreError> {
        let transaction = self.database.begin_write().map_err(index_error)?;
        let removed = {
            let mut table = transaction.open_table(OBJECTS).map_err(index_error)?;
            table
                .remove((tenant.as_str(), kind.folder(), digest.0))
                .map_err(index_error)?
                .map(|v| v.value().0)
        };
        let Some(size) = removed else {
            return Ok(false);
        };
        let used = usage(&transaction, tenant)?.saturating_sub(size);
        {
            let mut table = transaction.open_table(USAGE).map_err(index_error)?;
            table.insert(tenant.as_str(), used).map_err(index_error)?;
        }
        // The file goes while the transaction keeps writers of the same digest away. Should the
        // commit fail, the entry reads as damaged, which an upload repairs.
        let path = self.path(tenant, kind, digest);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(io_error("remove", &path)(e));
            }
            _ => {}
        }
        transaction.commit().map_err(index_error)?;
        Ok(true)
    }

    /// Reads a result; `None` if there is none, or none that is whole.
    pub fn result(&self, tenant: &Tenant, key: &ResultKey) -> Result<Option<Vec<u8>>, StoreError> {
        match results::get(&self.database, tenant, key)? {
            results::Found::Absent => Ok(None),
            results::Found::Whole(bytes) => Ok(Some(bytes)),
            results::Found::Damaged => {
                self.damage.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(key = %Digest(key.0), "stored result is damaged; it will be computed again");
                Ok(None)
            }
        }
    }

    /// Hands a result to the writer thread. Drops it if the writer is too far behind: results are a
    /// cache.
    pub fn put_result(&self, tenant: &Tenant, key: ResultKey, bytes: Vec<u8>) {
        self.results.put(tenant.clone(), key, bytes);
    }

    /// Waits until every result handed over so far is on disk.
    pub fn flush(&self) {
        self.results.flush();
    }

    /// Entries found damaged since the start.
    pub fn damage(&self) -> u64 {
        self.damage.load(Ordering::Relaxed)
    }

    fn path(&self, tenant: &Tenant, kind: ObjectKind, digest: Digest) -> PathBuf {
        self.root
            .join("objects")
            .join(tenant.as_str())
            .join(kind.folder())
            .join(digest.to_string())
    }

    /// Enters every whole object file into a fresh index.
    fn rebuild_index(&self) -> Result<(), StoreError> {
        let transaction = self.database.begin_write().map_err(index_error)?;
        let mut count = 0_u64;
        {
            let mut objects = transaction.open_table(OBJECTS).map_err(index_error)?;
            let mut usage = transaction.open_table(USAGE).map_err(index_error)?;
            let root = self.root.join("objects");
            for tenant in file_names(&root)? {
                let Ok(tenant) = Tenant::parse(&tenant) else {
                    continue;
                };
                let mut used = 0_u64;
                for kind in ObjectKind::ALL {
                    for name in file_names(&root.join(tenant.as_str()).join(kind.folder()))? {
                        let Ok(digest) = name.parse::<Digest>() else {
                            continue;
                        };
                        let path = self.path(&tenant, kind, digest);
                        let Ok(Some(object)) = object::read(&path) else {
                            self.damage.fetch_add(1, Ordering::Relaxed);
                            tracing::warn!(path = %path.display(), "left a damaged object out of the rebuilt index");
                            continue;
                        };
                        let size = object.content.len() as u64;
                        let value = (size, object.stored_unix_s, object.name.as_str());
                        objects
                            .insert((tenant.as_str(), kind.folder(), digest.0), value)
                            .map_err(index_error)?;
                        used += size;
                        count += 1;
                    }
                }
                usage.insert(tenant.as_str(), used).map_err(index_error)?;
            }
        }
        transaction.commit().map_err(index_error)?;
        tracing::warn!(
            objects = count,
            "rebuilt the index of the store from its files"
        );
        Ok(())
    }
}

fn usage(transaction: &redb::WriteTransaction, tenant: &Tenant) -> Result<u64, StoreError> {
    let table = transaction.open_table(USAGE).map_err(index_error)?;
    let used = table
        .get(tenant.as_str())
        .map_err(index_error)?
        .map_or(0, |v| v.value());
    Ok(used)
}

fn file_names(folder: &Path) -> Result<Vec<String>, StoreError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(io_error("list", folder)(e)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(io_error("list", folder))?;
        names.extend(entry.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}

/// Opens the index. One that cannot be read is set aside, and `true` asks for a rebuild.
fn open_index(root: &Path) -> Result<(Database, bool), StoreError> {
    let path = root.join("index.redb");
    let fresh = fs::metadata(&path).is_ok_and(|m| m.len() == 0) || !path.exists();
    let objects = root.join("objects");
    let rebuild_if_fresh = fresh && !file_names(&objects)?.is_empty();
    match create_index(&path) {
        Ok(database) => Ok((database, rebuild_if_fresh)),
        Err(DatabaseError::DatabaseAlreadyOpen) => Err(StoreError::InUse {
            path: root.display().to_string(),
        }),
        Err(DatabaseError::Storage(StorageError::Io(e)))
            if e.kind() != io::ErrorKind::InvalidData
                && e.kind() != io::ErrorKind::UnexpectedEof =>
        {
            Err(io_error("open", &path)(e))
        }
        Err(error) => {
            let aside = root.join(format!("index.redb.damaged-{}", unix_seconds()));
            tracing::warn!(%error, aside = %aside.display(), "the store's index is damaged; setting it aside");
            fs::rename(&path, &aside).map_err(io_error("set aside", &path))?;
            Ok((create_index(&path).map_err(index_error)?, true))
        }
    }
}

/// Opening runs on bytes that may be damaged in any way: should the database library panic on
/// them, that counts as damage.
fn create_index(path: &Path) -> Result<Database, DatabaseError> {
    std::panic::catch_unwind(|| Database::create(path)).unwrap_or_else(|_| {
        Err(DatabaseError::Storage(StorageError::Corrupted(
            "the index cannot be opened".to_owned(),
        )))
    })
}

/// Seconds since the epoch.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs())
}

#[cfg(test)]
mod tests;
