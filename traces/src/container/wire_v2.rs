//! The payload of container version 2: that of version 1, and what a work-item takes of a core. Frozen:
//! a change of these types is a new version beside it.

use serde::{Deserialize, Serialize};

use super::wire_v1;
use crate::error::TraceError;
use crate::model::{Resources, Trace};

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Wire {
    v1: wire_v1::Wire,
    registers: u64,
    threads: u64,
}

pub(super) fn from_trace(trace: &Trace) -> Wire {
    Wire {
        v1: wire_v1::from_trace(trace),
        registers: trace.resources.registers,
        threads: trace.resources.threads,
    }
}

pub(super) fn into_trace(wire: Wire) -> Result<Trace, TraceError> {
    Ok(Trace {
        resources: Resources {
            registers: wire.registers,
            threads: wire.threads,
        },
        ..wire_v1::into_trace(wire.v1)?
    })
}
