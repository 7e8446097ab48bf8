//! What can go wrong while a request is served, and how it reaches the client.
//!
//! This is the one place that knows which domain error becomes which gRPC status.

use std::{borrow::Cow, fmt, time::Duration};

use serde::{Deserialize, Serialize};
use tilesim_core::{SimError, error::Deadlock, machine::MachineError};
use tilesim_proto::ERROR_DOMAIN;
use tilesim_traces::TraceError;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::store::StoreError;

/// Code, place, message and remedy of something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Stable identifier, for example `launch.axis_count`.
    pub code: Cow<'static, str>,
    /// Where: a path into the request, trace or machine; empty when it concerns the whole.
    pub path: String,
    /// What is wrong.
    pub message: String,
    /// What to do about it; may be empty.
    pub hint: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        write!(f, "{} [{}]", self.message, self.code)
    }
}

/// The sort of a failure: what a client can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The request is wrong in itself.
    Invalid,
    /// The request does not fit the state it meets (version, machine, deadlock).
    Precondition,
    /// What it names is not there.
    NotFound,
    /// Trying later may help.
    Exhausted,
    /// The run's own budget of simulated cycles ended it.
    OverBudget {
        /// Core cycles simulated when it did.
        cycles: u64,
    },
    /// The wall-clock deadline passed.
    Deadline,
    /// The client went away.
    Cancelled,
    /// The server is going away.
    Unavailable,
    /// The verb is part of the contract but not of this server.
    Unimplemented,
    /// Stored data is damaged.
    DataLoss,
    /// A bug, or the host failed.
    Internal,
}

/// A failed request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct ServiceError {
    /// What a client can do about it.
    pub kind: Kind,
    /// What is wrong.
    pub problem: Box<Problem>,
    /// When to try again ([`Kind::Exhausted`]).
    pub retry_after: Option<Duration>,
}

impl ServiceError {
    /// A failure of some kind.
    pub fn new(
        kind: Kind,
        code: impl Into<Cow<'static, str>>,
        path: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        let problem = Problem {
            code: code.into(),
            path: path.into(),
            message: message.into(),
            hint: String::new(),
        };
        Self {
            kind,
            problem: Box::new(problem),
            retry_after: None,
        }
    }

    /// A request that is wrong in itself.
    pub fn invalid(
        code: impl Into<Cow<'static, str>>,
        path: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self::new(Kind::Invalid, code, path, message)
    }

    /// Something that is not there.
    pub fn not_found(
        code: impl Into<Cow<'static, str>>,
        path: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self::new(Kind::NotFound, code, path, message)
    }

    /// A bug or a failing host.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Kind::Internal, "server.internal", "", message)
            .hint("this is a fault of the server: its log says more")
    }

    /// The deadline passed.
    pub fn deadline() -> Self {
        Self::new(
            Kind::Deadline,
            "run.deadline",
            "",
            "the deadline passed before the result was there",
        )
        .hint("allow more time, or set a cycle budget to bound the run by its own measure")
    }

    /// Nobody waits for the result any more.
    pub fn cancelled() -> Self {
        Self::new(
            Kind::Cancelled,
            "run.cancelled",
            "",
            "the request was cancelled",
        )
    }

    /// The server is shutting down.
    pub fn shutting_down() -> Self {
        Self::new(
            Kind::Unavailable,
            "server.shutting_down",
            "",
            "the server is shutting down",
        )
        .hint("send the request again to another server, or later")
    }

    /// The same failure with a remedy.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.problem.hint = hint.into();
        self
    }

    /// The same failure, worth trying again after a while.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }

    /// The same failure with its path placed inside something larger.
    #[must_use]
    pub fn under(mut self, prefix: &str) -> Self {
        self.problem.path = match self.problem.path.as_str() {
            "" => prefix.to_owned(),
            path => format!("{prefix}.{path}"),
        };
        self
    }
}

impl From<TraceError> for ServiceError {
    fn from(error: TraceError) -> Self {
        let kind = match error.code.as_str() {
            "trace.version" => Kind::Precondition,
            _ => Kind::Invalid,
        };
        let message = match error.at {
            Some(at) => format!("line {}, column {}: {}", at.line, at.column, error.message),
            None => error.message,
        };
        Self::new(kind, error.code.as_str(), error.path, message)
            .hint(error.hint.unwrap_or_default())
    }
}

impl From<MachineError> for ServiceError {
    fn from(error: MachineError) -> Self {
        Self::invalid(error.code, error.path, error.message).hint(error.hint)
    }
}

impl From<SimError> for ServiceError {
    fn from(error: SimError) -> Self {
        match error {
            SimError::Trace(error) => error.into(),
            SimError::Cancelled { .. } => Self::cancelled(),
            SimError::Internal(what) => {
                tracing::error!(what, "the engine broke one of its invariants");
                Self::internal(error.to_string())
            }
            other => {
                let kind = match &other {
                    SimError::OverBudget { budget } => Kind::OverBudget { cycles: *budget },
                    SimError::Deadlock(_)
                    | SimError::BufferTooLarge { .. }
                    | SimError::CostMismatch { .. } => Kind::Precondition,
                    _ => Kind::Invalid,
                };
                let message = match &other {
                    SimError::Deadlock(deadlock) => deadlock_message(deadlock),
                    _ => other.to_string(),
                };
                Self::new(kind, other.code().to_owned(), other.path(), message)
                    .hint(other.hint().unwrap_or_default())
            }
        }
    }
}

/// Blocked ops that a message tells of, at most.
const BLOCKED_TOLD: usize = 8;

/// A deadlock with its detail: who waits for what, and what is taken.
fn deadlock_message(deadlock: &Deadlock) -> String {
    let count = deadlock.blocked.len();
    let mut text = format!(
        "deadlock at cycle {}: {count} ops can never go on",
        deadlock.cycle
    );
    for op in deadlock.blocked.iter().take(BLOCKED_TOLD) {
        let [a, b, c] = op.work_item;
        text.push_str(&format!(
            "; core {}, work-item ({a}, {b}, {c}), op {} ({}) waits for {}",
            op.core, op.op, op.what, op.waits_for
        ));
    }
    if count > BLOCKED_TOLD {
        text.push_str(&format!("; and {} more", count - BLOCKED_TOLD));
    }
    let cores = deadlock
        .scratchpad
        .iter()
        .zip(&deadlock.weight_slots)
        .enumerate();
    for (core, ((used, all), (slots, all_slots))) in cores.take(BLOCKED_TOLD) {
        text.push_str(&format!(
            "; core {core}: {used} of {all} scratchpad bytes and {slots} of {all_slots} weight slots taken"
        ));
    }
    text.push_str(&format!(
        "; {} work-items not started",
        deadlock.waiting_items
    ));
    text
}

impl From<StoreError> for ServiceError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Damaged { .. } => {
                Self::new(Kind::DataLoss, "store.damaged", "", error.to_string())
                    .hint("upload it again: an upload replaces a damaged entry")
            }
            StoreError::Quota { .. } => {
                Self::new(Kind::Exhausted, "store.quota", "", error.to_string())
                    .hint("delete traces that are no longer needed")
            }
            StoreError::InUse { .. } | StoreError::Io { .. } | StoreError::Index(_) => {
                tracing::error!(%error, "store failed");
                Self::internal("the store failed")
            }
        }
    }
}

impl From<ServiceError> for Status {
    fn from(error: ServiceError) -> Self {
        let ServiceError {
            kind,
            problem,
            retry_after,
        } = error;
        let code = match kind {
            Kind::Invalid => Code::InvalidArgument,
            Kind::Precondition | Kind::OverBudget { .. } => Code::FailedPrecondition,
            Kind::NotFound => Code::NotFound,
            Kind::Exhausted => Code::ResourceExhausted,
            Kind::Deadline => Code::DeadlineExceeded,
            Kind::Cancelled => Code::Cancelled,
            Kind::Unavailable => Code::Unavailable,
            Kind::Unimplemented => Code::Unimplemented,
            Kind::DataLoss => Code::DataLoss,
            Kind::Internal => Code::Internal,
        };
        let mut details = ErrorDetails::new();
        let mut metadata = vec![
            ("path".to_owned(), clip(&problem.path)),
            ("hint".to_owned(), clip(&problem.hint)),
        ];
        if let Kind::OverBudget { cycles } = kind {
            metadata.push(("cycles".to_owned(), cycles.to_string()));
        }
        details.set_error_info(
            problem.code.to_string(),
            ERROR_DOMAIN,
            metadata
                .into_iter()
                .collect::<std::collections::HashMap<_, _>>(),
        );
        match kind {
            Kind::Invalid => {
                details.add_bad_request_violation(clip(&problem.path), clip(&problem.message));
            }
            Kind::Precondition | Kind::OverBudget { .. } => {
                details.add_precondition_failure_violation(
                    problem.code.to_string(),
                    clip(&problem.path),
                    clip(&problem.message),
                );
            }
            _ => {}
        }
        if let Some(delay) = retry_after {
            details.set_retry_info(Some(delay));
        }
        Status::with_error_details(code, clip(&problem.message), details)
    }
}

/// Statuses travel in HTTP headers, which are bounded: nothing in one is longer than this.
const CLIP: usize = 1500;

fn clip(text: &str) -> String {
    if text.len() <= CLIP {
        return text.to_owned();
    }
    let mut end = CLIP;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}...", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_carries_all_four_parts() {
        let status: Status = ServiceError::invalid("a.b", "launch.grid", "too few")
            .hint("give two")
            .into();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(status.message(), "too few");
        let details = status.get_error_details();
        let info = details.error_info().unwrap();
        assert_eq!(info.reason, "a.b");
        assert_eq!(info.metadata["path"], "launch.grid");
        assert_eq!(info.metadata["hint"], "give two");
        let violation = &details.bad_request().unwrap().field_violations[0];
        assert_eq!(
            (violation.field.as_str(), violation.description.as_str()),
            ("launch.grid", "too few")
        );
    }

    #[test]
    fn long_texts_fit_into_headers() {
        let status: Status = ServiceError::invalid("a", "é".repeat(9000), "m".repeat(9000)).into();
        assert!(status.details().len() + status.message().len() < 12_000);
    }
}
