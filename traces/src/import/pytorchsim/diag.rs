//! What can be wrong with a kernel folder, before it becomes a [`TraceError`].

use crate::error::{ErrorCode, TextSpan, TraceError};

/// A place in one of the source files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pos {
    /// Index into the list of source files.
    pub file: u16,
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
    /// Characters, at least 1.
    pub length: u32,
}

/// An error with a place. `unroll` marks those that a loop with a small constant trip count can
/// cure by running its iterations one by one.
#[derive(Clone, Debug)]
pub(crate) struct Diag {
    pub code: ErrorCode,
    pub pos: Option<Pos>,
    pub message: String,
    pub hint: Option<String>,
    pub unroll: bool,
}

pub(crate) type Res<T> = Result<T, Diag>;

impl Diag {
    pub(crate) fn new(code: ErrorCode, pos: Pos, message: impl Into<String>) -> Self {
        Self {
            code,
            pos: Some(pos),
            message: message.into(),
            hint: None,
            unroll: false,
        }
    }

    /// Something that cannot be read at all.
    pub(crate) fn syntax(pos: Pos, message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Syntax, pos, message)
    }

    /// A construct outside the subset.
    pub(crate) fn unsupported(pos: Pos, construct: impl std::fmt::Display) -> Self {
        Self::new(
            ErrorCode::Unsupported,
            pos,
            format!("{construct} is outside the subset that is read as data"),
        )
    }

    /// A value that cannot be right.
    pub(crate) fn value(pos: Pos, message: impl Into<String>) -> Self {
        Self::new(ErrorCode::BadValue, pos, message)
    }

    /// Larger or longer than a limit.
    pub(crate) fn limit(pos: Pos, message: impl Into<String>) -> Self {
        Self::new(ErrorCode::TooLarge, pos, message)
    }

    /// Nested deeper than a limit.
    pub(crate) fn deep(pos: Pos, message: impl Into<String>) -> Self {
        Self::new(ErrorCode::TooDeep, pos, message)
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same error, curable by unrolling a loop around it.
    pub(crate) fn unrollable(mut self) -> Self {
        self.unroll = true;
        self
    }

    /// The public error; `files` are the names of the source files.
    pub(crate) fn into_error(self, files: &[String]) -> TraceError {
        let path = self
            .pos
            .and_then(|p| files.get(usize::from(p.file)))
            .cloned()
            .unwrap_or_default();
        let mut error = TraceError::new(self.code, path, self.message);
        error.hint = self.hint;
        if let Some(p) = self.pos {
            error = error.at(TextSpan {
                line: p.line,
                column: p.column,
                length: p.length.max(1),
            });
        }
        error
    }
}
