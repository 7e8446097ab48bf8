//! Records what a compiled trace producer emits, and makes a trace of it.
//!
//! Where a kernel comes as a shared object alone there is no source to read as data: it has to be
//! run. That happens only here, only on the machine of whoever asks for it, and only in a child
//! process: [`record`] starts the program that it is part of again with the arguments of [`CHILD`],
//! and that process calls [`child_main`], limits its own time and memory, loads the shared object and
//! calls its `togsim_kernel`. The producer calls back (`togsim_dispatch`, `togsim_dma`, ...), finds
//! those calls in the program itself (which must export them: see `client/build.rs`), and what it says
//! is written to a file. The parent trusts nothing in that file.
//!
//! The limits stop accidents (endless loops, no memory left), not malice: the producer runs with the
//! rights of its user. The daemon does not depend on this crate.
//!
//! [`fit`] turns the recorded work-items into a program over program ids: numbers that are affine in
//! the ids over every recorded work-item become expressions, repetitions become loops, and what
//! remains irregular is stored item by item. The trace is then expanded and compared with every
//! recorded work-item.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod child;
mod fit;
mod fold;
mod parent;
#[allow(unsafe_code)]
mod shim;
mod stream;

pub use child::child_main;
pub use fit::{Fitted, Tables, fit};
pub use parent::{CHILD, Request, record};
pub use stream::{Item, Op, OpKind, Recording};

/// Why nothing was recorded, or no trace made of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The shared object cannot be loaded or called.
    #[error("{0}")]
    Load(String),
    /// A file or process of ours failed.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        error: std::io::Error,
    },
    /// The child ended badly.
    #[error("the producer's process {how}{}", said(.stderr))]
    Child {
        /// How it ended.
        how: String,
        /// The end of what it said.
        stderr: String,
    },
    /// What was recorded is malformed.
    #[error("the recording cannot be read: line {line}: {message}")]
    Malformed {
        /// Line of the recording.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// Too much, or too irregular.
    #[error("{0}")]
    TooLarge(String),
    /// What was recorded makes no valid trace.
    #[error("the recorded work-items make no valid trace: {0}")]
    Trace(#[from] tilesim_traces::TraceError),
    /// The trace does not say what was recorded: a bug here.
    #[error("the trace differs from what was recorded in work-item {item}, op {op}")]
    Differs {
        /// Work-item, in dispatch order.
        item: usize,
        /// Op of it.
        op: usize,
    },
}

impl RecordError {
    /// A stable identifier.
    pub fn code(&self) -> &'static str {
        match self {
            RecordError::Load(_) => "record.load",
            RecordError::Io { .. } => "record.io",
            RecordError::Child { .. } => "record.child",
            RecordError::Malformed { .. } => "record.malformed",
            RecordError::TooLarge(_) => "record.too_large",
            RecordError::Trace(_) => "record.trace",
            RecordError::Differs { .. } => "record.differs",
        }
    }
}

fn said(stderr: &str) -> String {
    match stderr.trim() {
        "" => String::new(),
        text => format!(", saying: {text}"),
    }
}
