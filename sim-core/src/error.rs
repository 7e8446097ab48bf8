//! Everything that can end a run early.

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tilesim_traces::error::TraceError;

/// A work-item breaks a rule of the trace language that shows only when it is expanded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{kind}")]
pub struct ItemError {
    /// Op number inside the work-item.
    pub op: u32,
    /// Statement it came from.
    pub site: u32,
    /// The work-item.
    pub pid: [u64; 3],
    /// What is wrong.
    pub kind: ItemErrorKind,
}

/// What a work-item can do wrong.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ItemErrorKind {
    /// A wait whose semaphore no load signals.
    #[error("nothing signals semaphore {0} before this wait")]
    Unsignalled(u32),
    /// A wait for another number of elements than its loads move.
    #[error(
        "the wait on semaphore {semaphore} expects {expected} elements, its loads move {moved}"
    )]
    WaitCount {
        /// The semaphore.
        semaphore: u32,
        /// What the wait says.
        expected: u64,
        /// What the loads move.
        moved: u64,
    },
    /// An asynchronous load without a wait.
    #[error("no wait collects this asynchronous load on semaphore {0}")]
    NeverWaited(u32),
    /// A buffer is used while an asynchronous load into it has not been waited for.
    #[error("buffer {0} is read before the wait for the asynchronous load that fills it")]
    ReadBeforeWait(String),
    /// A transfer of too many rows.
    #[error("the transfer has more than {0} rows")]
    TransferTooLarge(u64),
}

impl ItemErrorKind {
    fn code(&self) -> &'static str {
        match self {
            ItemErrorKind::Unsignalled(_) => "trace.wait_unsignalled",
            ItemErrorKind::WaitCount { .. } => "trace.wait_count",
            ItemErrorKind::NeverWaited(_) => "trace.never_waited",
            ItemErrorKind::ReadBeforeWait(_) => "trace.read_before_wait",
            ItemErrorKind::TransferTooLarge(_) => "launch.transfer_too_large",
        }
    }

    fn hint(&self) -> &'static str {
        match self {
            ItemErrorKind::Unsignalled(_) => {
                "issue an asynchronous load on this semaphore first, or drop the wait"
            }
            ItemErrorKind::WaitCount { .. } => {
                "a wait expects the full dims of every load issued since the last wait"
            }
            ItemErrorKind::NeverWaited(_) => "add a wait on its semaphore",
            ItemErrorKind::ReadBeforeWait(_) => "wait on the load's semaphore before this op",
            ItemErrorKind::TransferTooLarge(_) => "split the transfer, or raise the limit",
        }
    }
}

/// One op that cannot go on, in a deadlock report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockedOp {
    /// Core it is on.
    pub core: u32,
    /// Its work-item's program ids.
    pub work_item: [u64; 3],
    /// Op number inside the work-item, in program order.
    pub op: u32,
    /// What it is.
    pub what: String,
    /// What it waits for.
    pub waits_for: String,
}

/// The state in which nothing can ever happen again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadlock {
    /// Core cycle of the last event.
    pub cycle: u64,
    /// Blocked ops, oldest first, at most 32.
    pub blocked: Vec<BlockedOp>,
    /// Per core: scratchpad bytes in use and in all.
    pub scratchpad: Vec<(u64, u64)>,
    /// Per core: weight slots in use and in all.
    pub weight_slots: Vec<(u32, u32)>,
    /// Work-items not yet started.
    pub waiting_items: u64,
    /// What to try.
    pub hint: String,
}

/// Why a run gave no result.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SimError {
    /// The trace or the launch is wrong.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// One work-item is wrong.
    #[error("{error}")]
    Item {
        /// What.
        error: ItemError,
        /// Path of the statement.
        path: String,
    },
    /// A buffer larger than the scratchpad.
    #[error("buffer {name} takes {bytes} bytes, the scratchpad has {capacity}")]
    BufferTooLarge {
        /// Buffer.
        name: String,
        /// Its bytes.
        bytes: u64,
        /// Scratchpad bytes.
        capacity: u64,
    },
    /// The costs were measured on another machine.
    #[error("tile costs were measured on {measured}, this machine has {here}")]
    CostMismatch {
        /// As the trace says.
        measured: String,
        /// As the machine says.
        here: String,
    },
    /// A matmul cannot be spread over the arrays as the machine asks.
    #[error("{message}")]
    Split {
        /// What.
        message: String,
        /// Where.
        path: String,
    },
    /// A unit was given more than it can take.
    #[error("{message}")]
    OverCapacity {
        /// What.
        message: String,
        /// Where.
        path: String,
    },
    /// More requests than the launch allows.
    #[error("the launch needs more than {limit} memory requests")]
    TooManyRequests {
        /// The limit.
        limit: u64,
    },
    /// Work remains and nothing can ever happen.
    #[error("deadlock at cycle {}: {} ops are blocked for good", .0.cycle, .0.blocked.len())]
    Deadlock(Box<Deadlock>),
    /// The cycle budget ran out.
    #[error("the run passed its budget of {budget} cycles")]
    OverBudget {
        /// The budget.
        budget: u64,
    },
    /// The caller stopped the run.
    #[error("the run was cancelled at cycle {cycle}")]
    Cancelled {
        /// Core cycle reached.
        cycle: u64,
    },
    /// An invariant of the engine does not hold.
    #[error("internal: {0}")]
    Internal(&'static str),
}

impl SimError {
    /// Stable code.
    pub fn code(&self) -> &str {
        match self {
            SimError::Trace(e) => e.code.as_str(),
            SimError::Item { error, .. } => error.kind.code(),
            SimError::BufferTooLarge { .. } => "launch.buffer_too_large",
            SimError::CostMismatch { .. } => "launch.cost_mismatch",
            SimError::Split { .. } => "launch.array_split",
            SimError::OverCapacity { .. } => "launch.unit_over_capacity",
            SimError::TooManyRequests { .. } => "launch.too_many_requests",
            SimError::Deadlock(_) => "run.deadlock",
            SimError::OverBudget { .. } => "run.over_budget",
            SimError::Cancelled { .. } => "run.cancelled",
            SimError::Internal(_) => "internal",
        }
    }

    /// Where.
    pub fn path(&self) -> String {
        match self {
            SimError::Trace(e) => e.path.clone(),
            SimError::Item { error, path } => {
                let [a, b, c] = error.pid;
                format!("{path} (work-item {a},{b},{c}, op {})", error.op)
            }
            SimError::BufferTooLarge { name, .. } => format!("buffers.{name}"),
            SimError::CostMismatch { .. } => "header.measured_on".into(),
            SimError::Split { path, .. } | SimError::OverCapacity { path, .. } => path.clone(),
            SimError::TooManyRequests { .. } => "options.max_requests".into(),
            SimError::OverBudget { .. } => "options.cycle_budget".into(),
            SimError::Deadlock(_) | SimError::Cancelled { .. } | SimError::Internal(_) => {
                String::new()
            }
        }
    }

    /// What to do.
    pub fn hint(&self) -> Option<String> {
        match self {
            SimError::Trace(e) => e.hint.clone(),
            SimError::Item { error, .. } => Some(error.kind.hint().into()),
            SimError::BufferTooLarge { .. } => {
                Some("use a smaller tile or a machine with a larger scratchpad".into())
            }
            SimError::CostMismatch { .. } => {
                Some("measure the tiles on this machine, or allow the mismatch".into())
            }
            SimError::Split { .. } => Some("fix the unit table, or do not split".into()),
            SimError::OverCapacity { .. } => Some(
                "the tiles' cycles and what their table says of units contradict each other".into(),
            ),
            SimError::TooManyRequests { .. } => {
                Some("raise the limit, or use a smaller grid".into())
            }
            SimError::Deadlock(d) => Some(d.hint.clone()),
            SimError::OverBudget { .. } => Some("raise the budget".into()),
            SimError::Cancelled { .. } => None,
            SimError::Internal(_) => Some("this is a bug in tilesim; please report it".into()),
        }
    }
}
