//! Results: a bounded table in the index, written in batches by one thread.

use std::{
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use crossbeam::channel::{Receiver, Sender, bounded};
use redb::{
    Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition,
    WriteTransaction,
};

use super::{StoreError, index_error, io_error};
use crate::ids::Tenant;

/// Digest over everything that decides a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ResultKey(pub [u8; 32]);

/// (tenant, key) -> BLAKE3 of the value, then the value.
const RESULTS: TableDefinition<(&str, [u8; 32]), &[u8]> = TableDefinition::new("results");
/// Age -> (tenant, key): which result is the oldest.
const AGES: TableDefinition<u64, (&str, [u8; 32])> = TableDefinition::new("result_ages");

/// Results waiting for the writer, at most.
const BACKLOG: usize = 4096;

pub(super) fn create_tables(transaction: &WriteTransaction) -> Result<(), StoreError> {
    transaction.open_table(RESULTS).map_err(index_error)?;
    transaction.open_table(AGES).map_err(index_error)?;
    Ok(())
}

pub(super) enum Found {
    Absent,
    Whole(Vec<u8>),
    Damaged,
}

pub(super) fn get(
    database: &Database,
    tenant: &Tenant,
    key: &ResultKey,
) -> Result<Found, StoreError> {
    let transaction = database.begin_read().map_err(index_error)?;
    let table = transaction.open_table(RESULTS).map_err(index_error)?;
    let Some(value) = table.get((tenant.as_str(), key.0)).map_err(index_error)? else {
        return Ok(Found::Absent);
    };
    Ok(match value.value().split_first_chunk::<32>() {
        Some((checksum, bytes)) if blake3::hash(bytes).as_bytes() == checksum => {
            Found::Whole(bytes.to_vec())
        }
        _ => Found::Damaged,
    })
}

enum Message {
    Put {
        tenant: Tenant,
        key: ResultKey,
        bytes: Vec<u8>,
    },
    Flush(Sender<()>),
}

/// Hands results to the thread that writes them.
pub(super) struct Writer {
    sender: Mutex<Option<Sender<Message>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Writer {
    pub(super) fn start(database: Arc<Database>, limit: u64) -> Result<Self, StoreError> {
        let (sender, receiver) = bounded(BACKLOG);
        let thread = std::thread::Builder::new()
            .name("tilesim-results".to_owned())
            .spawn(move || write_all(&database, limit, &receiver))
            .map_err(io_error("start", "the result writer".as_ref()))?;
        Ok(Self {
            sender: Mutex::new(Some(sender)),
            thread: Mutex::new(Some(thread)),
        })
    }

    pub(super) fn put(&self, tenant: Tenant, key: ResultKey, bytes: Vec<u8>) {
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = sender.as_ref()
            && sender
                .try_send(Message::Put { tenant, key, bytes })
                .is_err()
        {
            tracing::debug!("the result writer is behind; a result is not kept");
        }
    }

    pub(super) fn flush(&self) {
        let (done, wait) = bounded(1);
        let sender = self
            .sender
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if let Some(sender) = sender
            && sender.send(Message::Flush(done)).is_ok()
        {
            // The writer answers unless it died; then there is nothing to wait for.
            let _ = wait.recv_timeout(Duration::from_secs(10));
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.sender
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
        {
            // A writer that panicked has nothing left to say.
            let _ = thread.join();
        }
    }
}

fn write_all(database: &Database, limit: u64, receiver: &Receiver<Message>) {
    while let Ok(first) = receiver.recv() {
        // Everything that has gathered meanwhile goes into one transaction.
        let batch: Vec<Message> = std::iter::once(first)
            .chain(receiver.try_iter().take(BACKLOG))
            .collect();
        if let Err(error) = write_batch(database, limit, &batch) {
            tracing::warn!(%error, "results were not kept");
        }
        for message in batch {
            if let Message::Flush(done) = message {
                let _ = done.send(());
            }
        }
    }
}

fn write_batch(database: &Database, limit: u64, batch: &[Message]) -> Result<(), StoreError> {
    let transaction = database.begin_write().map_err(index_error)?;
    {
        let mut results = transaction.open_table(RESULTS).map_err(index_error)?;
        let mut ages = transaction.open_table(AGES).map_err(index_error)?;
        let mut age = ages
            .last()
            .map_err(index_error)?
            .map_or(0, |(k, _)| k.value() + 1);
        let mut value = Vec::new();
        for message in batch {
            let Message::Put { tenant, key, bytes } = message else {
                continue;
            };
            value.clear();
            value.extend_from_slice(blake3::hash(bytes).as_bytes());
            value.extend_from_slice(bytes);
            let name = (tenant.as_str(), key.0);
            if results
                .insert(name, value.as_slice())
                .map_err(index_error)?
                .is_none()
            {
                ages.insert(age, name).map_err(index_error)?;
                age += 1;
            }
        }
        while results.len().map_err(index_error)? > limit {
            let Some((_, oldest)) = ages.pop_first().map_err(index_error)? else {
                break;
            };
            results.remove(oldest.value()).map_err(index_error)?;
        }
    }
    transaction.commit().map_err(index_error)
}
