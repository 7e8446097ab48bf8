//! What can be wrong with a trace or with a launch of one.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// What kind of mistake an error names. The string form is stable: clients may match on it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum ErrorCode {
            $($(#[$doc])* #[serde(rename = $text)] $name,)*
        }

        impl ErrorCode {
            /// Every code there is.
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$name,)*];

            /// The stable string form, for example `trace.unknown_tile`.
            pub fn as_str(self) -> &'static str {
                match self { $(ErrorCode::$name => $text,)* }
            }
        }
    };
}

codes! {
    /// The bytes are none of the known encodings of a trace.
    UnknownFormat = "trace.unknown_format",
    /// Written in a format version this build does not know.
    Version = "trace.version",
    /// A binary container whose bytes are damaged, cut short or contradict each other.
    Corrupt = "trace.corrupt",
    /// Larger than a limit of the format.
    TooLarge = "trace.too_large",
    /// Nested deeper than the format allows.
    TooDeep = "trace.too_deep",
    /// A construct of a foreign source that importers do not read.
    Unsupported = "trace.unsupported",
    /// The text or JSON cannot be read.
    Syntax = "trace.syntax",
    /// A key that the JSON form does not know.
    UnknownKey = "trace.unknown_key",
    /// A key that the JSON form needs is absent.
    MissingKey = "trace.missing_key",
    /// A value of the wrong type or outside its range.
    BadValue = "trace.bad_value",
    /// A name that is empty, too long or given twice.
    BadName = "trace.bad_name",
    /// The number of axes is not 1 to 3.
    BadAxes = "trace.bad_axes",
    /// The dispatch order is not a permutation of the axes.
    BadDispatch = "trace.bad_dispatch",
    /// A name in an expression that is no parameter and no enclosing loop's variable.
    UnknownName = "trace.unknown_name",
    /// A parameter that the trace does not have.
    UnknownParam = "trace.unknown_param",
    /// A tensor that the trace does not have.
    UnknownTensor = "trace.unknown_tensor",
    /// A buffer that the trace does not have.
    UnknownBuffer = "trace.unknown_buffer",
    /// A compute tile that the trace does not have.
    UnknownTile = "trace.unknown_tile",
    /// A program id or grid extent of an axis that the trace does not have.
    UnknownAxis = "trace.unknown_axis",
    /// A loop variable used outside its loop, or a loop whose variable is not its depth.
    BadVariable = "trace.bad_variable",
    /// An expression that may not use what it uses (for example a program id in a tensor extent).
    NotConstant = "trace.not_constant",
    /// A compute op on a unit other than the one its tile was measured on.
    UnitMismatch = "trace.unit_mismatch",
    /// A launch would run a compute tile that has no cost.
    TileWithoutCycles = "trace.tile_without_cycles",
    /// Arithmetic left the 64-bit range.
    Overflow = "trace.overflow",
    /// Division or remainder by zero.
    DivisionByZero = "trace.division_by_zero",
    /// A checked shift by less than 0 or more than 63.
    ShiftCount = "trace.shift_count",
    /// A loop whose step is 0.
    ZeroStep = "trace.zero_step",
    /// A negative extent, count or number of elements.
    NegativeCount = "trace.negative_count",
    /// A mask that keeps more elements than there are.
    BadMask = "trace.bad_mask",
    /// A transfer outside its tensor.
    OutOfBounds = "trace.out_of_bounds",
    /// One work-item has more ops than the limit.
    TooManyOps = "trace.too_many_ops",
    /// One work-item runs through more loop iterations or evaluation steps than the limit.
    TooManyIterations = "trace.too_many_iterations",
    /// One transfer moves more elements, lines or indices than the limit.
    TransferTooLarge = "trace.transfer_too_large",
    /// The grid has another number of axes than the trace.
    AxisCount = "launch.axis_count",
    /// A parameter without a default was not given.
    MissingParam = "launch.missing_param",
    /// A parameter that the trace does not have was given.
    ExtraParam = "launch.unknown_param",
    /// The launch names a tensor that the trace does not have.
    ExtraTensor = "launch.unknown_tensor",
    /// The extents given for a tensor do not fit it.
    BadExtents = "launch.bad_extents",
    /// Some but not all tensors were placed.
    PartialPlacement = "launch.partial_placement",
    /// A tensor ends beyond the 64-bit address space.
    AddressOverflow = "launch.address_overflow",
    /// Two tensors share bytes.
    Overlap = "launch.overlap",
    /// The number of work-items does not fit 64 bits.
    GridOverflow = "launch.grid_overflow",
    /// More work-items than the limit.
    TooManyWorkItems = "launch.too_many_work_items",
    /// A program id outside the grid was asked for.
    OutsideGrid = "launch.outside_grid",
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A place in a text: what an editor would underline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextSpan {
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// Characters, at least 1.
    pub length: u32,
}

/// One mistake in a trace or in a launch of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{}{message}{} [{code}]", PathPrefix(.path, .at), HintSuffix(.hint))]
pub struct TraceError {
    /// What kind of mistake.
    pub code: ErrorCode,
    /// Where: a path into the trace (`body[2].for.body[0].dma.dims[1].stride`) or the launch
    /// (`launch.grid`); empty when it is about the whole.
    pub path: String,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// Where in a text, when the trace was read from one.
    pub at: Option<TextSpan>,
}

struct PathPrefix<'a>(&'a str, &'a Option<TextSpan>);

impl fmt::Display for PathPrefix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(at) = self.1 {
            write!(f, "{}:{}: ", at.line, at.column)?;
        }
        if self.0.is_empty() {
            Ok(())
        } else {
            write!(f, "{}: ", self.0)
        }
    }
}

struct HintSuffix<'a>(&'a Option<String>);

impl fmt::Display for HintSuffix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}

impl TraceError {
    /// An error without a hint.
    pub fn new(code: ErrorCode, path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            code,
            path: path.into(),
            message: message.into(),
            hint: None,
            at: None,
        }
    }

    /// The same error with a remedy.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same error with a place in a text.
    #[must_use]
    pub fn at(mut self, span: TextSpan) -> Self {
        self.at = Some(span);
        self
    }

    /// The error as a few lines: the message, the offending line of `source` with carets under the
    /// span, and the hint.
    pub fn render(&self, source: &str) -> String {
        let mut out = format!("error[{}]: {}\n", self.code, self.message);
        if let Some(at) = self.at {
            let line = source
                .lines()
                .nth((at.line as usize).saturating_sub(1))
                .unwrap_or("");
            let number = at.line.to_string();
            let gutter = " ".repeat(number.len());
            // Tabs before the span stay tabs, so that the carets line up in any editor.
            let pad: String = line
                .chars()
                .take((at.column as usize).saturating_sub(1))
                .map(|c| if c == '\t' { '\t' } else { ' ' })
                .collect();
            let room = line
                .chars()
                .count()
                .saturating_sub(pad.chars().count())
                .max(1);
            let carets = "^".repeat((at.length as usize).clamp(1, room));
            out.push_str(&format!(
                "{gutter} |\n{number} | {line}\n{gutter} | {pad}{carets}\n"
            ));
        }
        if !self.path.is_empty() {
            out.push_str(&format!("  at {}\n", self.path));
        }
        if let Some(hint) = &self.hint {
            out.push_str(&format!("  hint: {hint}\n"));
        }
        out
    }
}

/// The candidate closest to `name`, for "did you mean" hints; `None` when nothing is close.
pub fn closest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (name.chars().count() / 3).max(1);
    let mut best: Option<(usize, &str)> = None;
    for candidate in candidates.into_iter().take(4096) {
        let distance = edit_distance(name, candidate, limit);
        if distance <= limit && best.is_none_or(|(d, _)| distance < d) {
            best = Some((distance, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

fn edit_distance(a: &str, b: &str, limit: usize) -> usize {
    let a: Vec<char> = a.chars().take(64).collect();
    let b: Vec<char> = b.chars().take(64).collect();
    if a.len().abs_diff(b.len()) > limit {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.iter().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cb, cell) in b.iter().zip(row.iter_mut().skip(1)) {
            let above = *cell;
            let cost = usize::from(!ca.eq_ignore_ascii_case(cb));
            left = (diagonal + cost).min(above + 1).min(left + 1);
            diagonal = above;
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_and_dotted() {
        let mut seen = std::collections::BTreeSet::new();
        for code in ErrorCode::ALL {
            assert!(seen.insert(code.as_str()), "{code} twice");
            assert!(code.as_str().starts_with("trace.") || code.as_str().starts_with("launch."));
            let json = serde_json::to_string(code).unwrap();
            assert_eq!(json, format!("\"{code}\""));
        }
    }

    #[test]
    fn display_and_render() {
        let e = TraceError::new(ErrorCode::Syntax, "body[0]", "what is this")
            .with_hint("remove it")
            .at(TextSpan {
                line: 2,
                column: 3,
                length: 2,
            });
        assert_eq!(
            e.to_string(),
            "2:3: body[0]: what is this (remove it) [trace.syntax]"
        );
        let text = e.render("one\nab??cd\n");
        assert!(text.contains("2 | ab??cd\n  |   ^^\n"), "{text}");
    }

    #[test]
    fn closest_names() {
        assert_eq!(closest("axxes", ["axes", "body"]), Some("axes"));
        assert_eq!(closest("strides", ["stride", "steps"]), Some("stride"));
        assert_eq!(closest("zzz", ["axes", "body"]), None);
    }
}
