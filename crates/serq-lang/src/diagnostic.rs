//! What is wrong with a program, for its author.
//!
//! A [`Diagnostic`] has a code with a page, one primary place, further labels,
//! and `help:` that says what to write. Phases collect them; nobody stops at the
//! first. [`render`] draws them.

use std::ops::Range;

use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};

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
    pub fn error(code: &'static str, span: impl Into<Option<Span>>, message: impl Into<String>) -> Self {
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
    pub fn warning(code: &'static str, span: impl Into<Option<Span>>, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(code, span, message) }
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

/// Draws diagnostics in the order of their places: rustc-like, or
/// `FILE:line:col: error[code]: message` each on a line.
pub fn render(sources: &SourceMap, diagnostics: &[Diagnostic], style: Style) -> String {
    let mut sorted: Vec<&Diagnostic> = diagnostics.iter().collect();
    sorted.sort_by_key(|diagnostic| diagnostic.span.map(|span| (span.file, span.start)));
    let pieces: Vec<String> = sorted
        .iter()
        .map(|diagnostic| match style {
            Style::Short => short(sources, diagnostic),
            Style::Plain => picture(sources, diagnostic, &Renderer::plain()),
            Style::Colour => picture(sources, diagnostic, &Renderer::styled()),
        })
        .collect();
    let between = if style == Style::Short { "\n" } else { "\n\n" };
    let mut text = pieces.join(between);
    if !text.is_empty() {
        text.push('\n');
    }
    text
}

fn short(sources: &SourceMap, diagnostic: &Diagnostic) -> String {
    let severity = match diagnostic.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    let file = diagnostic.span.map_or(0, |span| span.file);
    let path = sources.sources.get(file as usize).map_or("", |source| &source.path);
    let place = match diagnostic.span {
        Some(span) => {
            let (line, column) = sources.line_column(span);
            format!("{path}:{line}:{column}")
        }
        None => path.to_owned(),
    };
    format!("{place}: {severity}[{}]: {}", diagnostic.code, diagnostic.message)
}

fn picture(sources: &SourceMap, diagnostic: &Diagnostic, renderer: &Renderer) -> String {
    let level = match diagnostic.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let title = level.primary_title(diagnostic.message.as_str()).id(diagnostic.code);
    let mut group = Group::with_title(title);
    for view in views(sources, diagnostic) {
        group = view.draw(sources, group);
    }
    let mut report = vec![group];
    for help in &diagnostic.help {
        report.push(Group::with_title(Level::HELP.secondary_title(help.as_str())));
    }
    renderer.render(&report)
}

/// A piece of a text that is shown, whole lines unless they are too long, and what is
/// marked in it.
struct View<'a> {
    /// The first mark's place, printed above.
    place: Span,
    text: &'a str,
    /// Byte of the whole text at which `text` begins.
    start: usize,
    /// Line of the whole text at which `text` begins.
    line: usize,
    /// `text` begins inside of a line.
    cut: bool,
    marks: Vec<Mark<'a>>,
}

struct Mark<'a> {
    range: Range<usize>,
    label: &'a str,
    primary: bool,
}

/// Bytes between two places that are still shown in one piece. Drawing costs time by the
/// byte, and a text may have megabytes.
const PIECE_BYTES_MAX: usize = 16 << 10;

/// Bytes shown before and after a place in a line too long to be shown whole.
const AROUND_BYTES: usize = 200;

fn views<'a>(sources: &'a SourceMap, diagnostic: &'a Diagnostic) -> Vec<View<'a>> {
    let primary = diagnostic.span.map(|span| (span, diagnostic.label.as_str(), true));
    let notes = diagnostic.notes.iter().map(|(span, text)| (*span, text.as_str(), false));
    let mut views: Vec<(u32, Range<usize>, View)> = Vec::new();
    for (span, label, primary) in primary.into_iter().chain(notes) {
        let Some(source) = sources.sources.get(span.file as usize) else {
            continue;
        };
        let text = source.text.as_str();
        let mut range = clip(text, span);
        if range.len() > PIECE_BYTES_MAX {
            range.end = text[range.clone()].find('\n').map_or(range.end, |at| range.start + at);
        }
        let shown = lines_around(text, &range);
        let mark = Mark { range, label, primary };
        let near = views.iter_mut().find(|(file, other, _)| {
            let joined = other.start.min(shown.start)..other.end.max(shown.end);
            *file == span.file && joined.len() <= PIECE_BYTES_MAX
        });
        match near {
            Some((_, other, view)) => {
                *other = other.start.min(shown.start)..other.end.max(shown.end);
                view.marks.push(mark);
            }
            None => {
                let view = View { place: span, text: "", start: 0, line: 1, cut: false, marks: vec![mark] };
                views.push((span.file, shown, view));
            }
        }
    }
    for (file, shown, view) in &mut views {
        let text = sources.sources[*file as usize].text.as_str();
        view.text = &text[shown.clone()];
        view.start = shown.start;
        view.cut = shown.start > 0 && text.as_bytes()[shown.start - 1] != b'\n';
        view.line += text.as_bytes()[..shown.start].iter().filter(|&&byte| byte == b'\n').count();
    }
    views.into_iter().map(|(_, _, view)| view).collect()
}

/// The span's bytes, inside of the text and at character boundaries.
fn clip(text: &str, span: Span) -> Range<usize> {
    let start = floor_boundary(text, span.start as usize);
    let end = floor_boundary(text, span.end as usize);
    start..end.max(start)
}

fn floor_boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// The lines a range lies in, or of a very long line what is near the range.
fn lines_around(text: &str, range: &Range<usize>) -> Range<usize> {
    let bytes = text.as_bytes();
    let start = bytes[..range.start].iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    let end = bytes[range.end..].iter().position(|&byte| byte == b'\n').map_or(text.len(), |at| range.end + at);
    if end - start <= PIECE_BYTES_MAX {
        return start..end;
    }
    let from = floor_boundary(text, range.start.saturating_sub(AROUND_BYTES)).max(start);
    from..floor_boundary(text, range.end + AROUND_BYTES).min(end).max(range.end)
}

impl<'a> View<'a> {
    /// The view drawn into a group. The library counts columns in what it is given, so
    /// the place of a line cut short is given to it in words.
    fn draw(&self, sources: &'a SourceMap, group: Group<'a>) -> Group<'a> {
        let path = sources.sources[self.place.file as usize].path.as_str();
        let marks = self.marks.iter().map(|mark| {
            let range = mark.range.start - self.start..mark.range.end - self.start;
            let kind = if mark.primary { AnnotationKind::Primary } else { AnnotationKind::Context };
            kind.span(range).label((!mark.label.is_empty()).then_some(mark.label))
        });
        let snippet = Snippet::source(self.text).line_start(self.line).annotations(marks);
        if !self.cut {
            return group.element(snippet.path(path));
        }
        let (line, column) = sources.line_column(self.place);
        let origin = Origin::path(path).line(line as usize).char_column(column as usize);
        group.element(origin).element(snippet)
    }
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
