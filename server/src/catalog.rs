//! Traces and machines by name: read from the store, validated, and kept ready in memory.

use std::sync::{Arc, Mutex, PoisonError};

use tilesim_core::machine::{
    Machine,
    import::{ImportOptions, NoFiles},
};
use tilesim_traces::ValidTrace;
use tokio::sync::Semaphore;

use crate::{
    error::{Kind, ServiceError},
    ids::{Digest, Tenant},
    lru::Lru,
    store::{Entry, ObjectKind, Store},
};

/// A validated trace.
pub struct LoadedTrace {
    /// Digest of its canonical content.
    pub digest: Digest,
    /// The trace.
    pub trace: ValidTrace,
}

/// A validated machine.
pub struct LoadedMachine {
    /// Digest of its canonical form.
    pub digest: Digest,
    /// The machine.
    pub machine: Machine,
    /// What an import has to say about the file.
    pub notes: Vec<String>,
}

/// Where a machine comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MachineSource {
    /// An embedded preset.
    Preset(String),
    /// A stored machine.
    Stored(Digest),
    /// A description.
    Document(String),
}

/// A machine and changes to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MachineRequest {
    /// Where it comes from.
    pub source: MachineSource,
    /// Changes: path and value.
    pub overrides: Vec<(String, String)>,
}

/// Memory for traces kept ready, in bytes of their encoded form.
const TRACE_MEMORY: u64 = 256 << 20;
/// Machines kept ready.
const MACHINE_COUNT: u64 = 256;
/// Traces and machines that are read and validated at once; others wait.
const AT_ONCE: usize = 4;

/// Traces and machines by name.
pub struct Catalog {
    store: Option<Arc<Store>>,
    traces: Mutex<Lru<(Tenant, Digest), Arc<LoadedTrace>>>,
    machines: Mutex<Lru<(Tenant, MachineRequest), Arc<LoadedMachine>>>,
    gate: Semaphore,
}

impl Catalog {
    /// A catalog over a store; without one, everything put into it stays in memory.
    pub fn new(store: Option<Arc<Store>>) -> Self {
        let trace_memory = if store.is_some() {
            TRACE_MEMORY
        } else {
            u64::MAX
        };
        Self {
            store,
            traces: Mutex::new(Lru::new(trace_memory)),
            machines: Mutex::new(Lru::new(MACHINE_COUNT)),
            gate: Semaphore::new(AT_ONCE),
        }
    }

    /// Validates a trace file and keeps it. Returns `false` if it was there already.
    pub async fn put_trace(
        &self,
        tenant: &Tenant,
        name: String,
        bytes: Vec<u8>,
    ) -> Result<(Arc<LoadedTrace>, bool), ServiceError> {
        let (store, owner) = (self.store.clone(), tenant.clone());
        let (loaded, weight, new) = self
            .off_runtime(move || {
                let loaded = loaded(tilesim_traces::load_bytes(&name, &bytes)?);
                drop(bytes);
                let encoded = tilesim_traces::to_container(&loaded.trace)?;
                let weight = encoded.len() as u64;
                let new = match store {
                    Some(store) => {
                        let kernel = &loaded.trace.header.kernel;
                        store.put(&owner, ObjectKind::Trace, loaded.digest, kernel, &encoded)?
                    }
                    None => true,
                };
                Ok((Arc::new(loaded), weight, new))
            })
            .await?;
        self.remember_trace(tenant, &loaded, weight);
        Ok((loaded, new))
    }

    /// Keeps a validated trace in memory only.
    pub fn keep_trace(&self, tenant: &Tenant, trace: ValidTrace) -> Digest {
        let loaded = Arc::new(loaded(trace));
        self.remember_trace(tenant, &loaded, 0);
        loaded.digest
    }

    /// A stored trace; `path` is where its digest stood in the request.
    pub async fn trace(
        &self,
        tenant: &Tenant,
        digest: Digest,
        path: &str,
    ) -> Result<Arc<LoadedTrace>, ServiceError> {
        let key = (tenant.clone(), digest);
        let hit = self
            .traces
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&key);
        if let Some(trace) = hit {
            return Ok(trace);
        }
        let missing = || {
            ServiceError::not_found(
                "trace.not_found",
                path,
                format!("there is no trace {digest}"),
            )
            .hint("upload it first")
        };
        let Some(store) = self.store.clone() else {
            return Err(missing());
        };
        let owner = tenant.clone();
        let found = self
            .off_runtime(move || {
                let Some(bytes) = store.get(&owner, ObjectKind::Trace, digest)? else {
                    return Ok(None);
                };
                let damaged = |e: ServiceError| {
                    ServiceError::from(store.damaged(ObjectKind::Trace, digest, e.to_string()))
                };
                let trace =
                    tilesim_traces::load_bytes("", &bytes).map_err(|e| damaged(e.into()))?;
                let loaded = loaded(trace);
                if loaded.digest != digest {
                    let detail = format!("it holds {}", loaded.digest);
                    return Err(store.damaged(ObjectKind::Trace, digest, detail).into());
                }
                Ok(Some((Arc::new(loaded), bytes.len() as u64)))
            })
            .await
            .map_err(|e| {
                if e.problem.path.is_empty() {
                    e.under(path)
                } else {
                    e
                }
            })?;
        let (loaded, weight) = found.ok_or_else(missing)?;
        self.remember_trace(tenant, &loaded, weight);
        Ok(loaded)
    }

    /// Which of `digests` are not there.
    pub async fn missing_traces(
        &self,
        tenant: &Tenant,
        digests: Vec<Digest>,
    ) -> Result<Vec<Digest>, ServiceError> {
        let Some(store) = self.store.clone() else {
            return Ok(digests);
        };
        let owner = tenant.clone();
        self.off_runtime(move || {
            let mut missing = Vec::new();
            for digest in digests {
                if !store.contains(&owner, ObjectKind::Trace, digest)? {
                    missing.push(digest);
                }
            }
            Ok(missing)
        })
        .await
    }

    /// A page of the stored objects.
    pub async fn list(
        &self,
        tenant: &Tenant,
        kind: ObjectKind,
        after: Option<Digest>,
        count: usize,
    ) -> Result<Vec<Entry>, ServiceError> {
        let Some(store) = self.store.clone() else {
            return Ok(Vec::new());
        };
        let owner = tenant.clone();
        self.off_runtime(move || Ok(store.list(&owner, kind, after, count)?))
            .await
    }

    /// Deletes a stored trace.
    pub async fn delete_trace(
        &self,
        tenant: &Tenant,
        digest: Digest,
        path: &str,
    ) -> Result<(), ServiceError> {
        let key = (tenant.clone(), digest);
        self.traces
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&key);
        let (store, owner) = (self.store.clone(), tenant.clone());
        let found = self
            .off_runtime(move || match store {
                Some(store) => Ok(store.delete(&owner, ObjectKind::Trace, digest)?),
                None => Ok(false),
            })
            .await?;
        if found {
            return Ok(());
        }
        Err(ServiceError::not_found(
            "trace.not_found",
            path,
            format!("there is no trace {digest}"),
        )
        .hint("Traces.List names those that are there"))
    }

    /// A machine, ready to run on.
    pub async fn machine(
        &self,
        tenant: &Tenant,
        request: MachineRequest,
        path: &str,
    ) -> Result<Arc<LoadedMachine>, ServiceError> {
        let key = (tenant.clone(), request);
        let hit = self
            .machines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&key);
        if let Some(machine) = hit {
            return Ok(machine);
        }
        let (store, (owner, request), place) = (self.store.clone(), key.clone(), path.to_owned());
        let loaded = self
            .off_runtime(move || read_machine(store.as_deref(), &owner, &request, &place))
            .await?;
        let loaded = Arc::new(loaded);
        let mut machines = self.machines.lock().unwrap_or_else(PoisonError::into_inner);
        machines.insert(key, Arc::clone(&loaded), 1);
        Ok(loaded)
    }

    /// Validates and stores a machine. Returns `false` if it was there already.
    pub async fn put_machine(
        &self,
        tenant: &Tenant,
        name: String,
        document: String,
    ) -> Result<(Arc<LoadedMachine>, bool), ServiceError> {
        let (store, owner) = (self.store.clone(), tenant.clone());
        self.off_runtime(move || {
            let mut loaded = parse_machine(&name, &document)?;
            if !name.is_empty() {
                loaded.machine.name = name;
            }
            let text = loaded.machine.to_yaml()?;
            let new = match store {
                Some(store) => {
                    let name = &loaded.machine.name;
                    let kind = ObjectKind::Machine;
                    store.put(&owner, kind, loaded.digest, name, text.as_bytes())?
                }
                None => true,
            };
            Ok((Arc::new(loaded), new))
        })
        .await
    }

    /// A trace in an encoding for others: text, or the binary container.
    pub async fn encode_trace(
        &self,
        trace: Arc<LoadedTrace>,
        text: bool,
    ) -> Result<Vec<u8>, ServiceError> {
        self.off_runtime(move || {
            if text {
                return Ok(tilesim_traces::to_text(&trace.trace).into_bytes());
            }
            Ok(tilesim_traces::to_container(&trace.trace)?)
        })
        .await
    }

    fn remember_trace(&self, tenant: &Tenant, trace: &Arc<LoadedTrace>, weight: u64) {
        let mut traces = self.traces.lock().unwrap_or_else(PoisonError::into_inner);
        traces.insert(
            (tenant.clone(), trace.digest),
            Arc::clone(trace),
            weight + 1024,
        );
    }

    /// Runs what may take long on a thread of its own, a bounded number at once.
    async fn off_runtime<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ServiceError> + Send + 'static,
    ) -> Result<T, ServiceError> {
        let _pass = self
            .gate
            .acquire()
            .await
            .map_err(|_| ServiceError::shutting_down())?;
        tokio::task::spawn_blocking(work)
            .await
            .unwrap_or_else(|error| {
                tracing::error!(%error, "background work failed");
                Err(ServiceError::internal("the work failed unexpectedly"))
            })
    }
}

fn loaded(trace: ValidTrace) -> LoadedTrace {
    LoadedTrace {
        digest: Digest(trace.digest().0),
        trace,
    }
}

fn parse_machine(name: &str, document: &str) -> Result<LoadedMachine, ServiceError> {
    let loaded = tilesim_core::machine::load(name, document, &NoFiles, ImportOptions::default())?;
    let digest = Digest(loaded.machine.digest()?.0);
    let notes = loaded.report.iter().map(ToString::to_string).collect();
    Ok(LoadedMachine {
        digest,
        machine: loaded.machine,
        notes,
    })
}

fn read_machine(
    store: Option<&Store>,
    tenant: &Tenant,
    request: &MachineRequest,
    path: &str,
) -> Result<LoadedMachine, ServiceError> {
    let mut loaded = match &request.source {
        MachineSource::Preset(name) => {
            let machine = Machine::preset(name)
                .map_err(|e| ServiceError::from(e).under(&format!("{path}.preset")))?;
            LoadedMachine {
                digest: Digest(machine.digest()?.0),
                machine,
                notes: Vec::new(),
            }
        }
        MachineSource::Document(document) => parse_machine("", document)?,
        MachineSource::Stored(digest) => {
            let bytes = match store {
                Some(store) => store.get(tenant, ObjectKind::Machine, *digest)?,
                None => None,
            };
            let bytes = bytes.ok_or_else(|| {
                let message = format!("there is no machine {digest}");
                ServiceError::not_found("machine.not_found", format!("{path}.digest"), message)
                    .hint("store it first, or send its description")
            })?;
            let text = String::from_utf8_lossy(&bytes);
            let loaded = parse_machine("", &text)?;
            if loaded.digest != *digest {
                return Err(ServiceError::new(
                    Kind::DataLoss,
                    "store.damaged",
                    format!("{path}.digest"),
                    format!("stored machine {digest} holds {}", loaded.digest),
                ));
            }
            loaded
        }
    };
    if !request.overrides.is_empty() {
        loaded.machine = loaded.machine.with_overrides(&request.overrides)?;
        loaded.digest = Digest(loaded.machine.digest()?.0);
    }
    Ok(loaded)
}
