//! The texts a program is made of, and places in them.
//!
//! This crate opens no files. Whoever has a file system fills a [`SourceMap`]:
//! the program first, then every library a `use` names, each under the path the
//! `use` statement writes. A [`Span`] is a byte range of one of them.

/// A byte range of one source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// Index into [`SourceMap::sources`].
    pub file: u32,
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

impl Span {
    /// From the start of `self` to the end of `other` (of the same file).
    pub fn to(self, other: Span) -> Span {
        debug_assert_eq!(self.file, other.file);
        Span { file: self.file, start: self.start, end: other.end.max(self.start) }
    }
}

/// One text and where it came from.
#[derive(Clone, Debug)]
pub struct Source {
    /// Shown in diagnostics; a `use` inside resolves relative to it.
    pub path: String,
    /// The whole text.
    pub text: String,
}

/// All texts of one program. The program itself is number 0.
#[derive(Clone, Debug, Default)]
pub struct SourceMap {
    /// In loading order.
    pub sources: Vec<Source>,
    /// Paths a `use` names that could not be read; reported by whoever tried.
    pub unread: Vec<String>,
}

impl SourceMap {
    /// A map with the program only.
    pub fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        let mut map = Self::default();
        map.add(path, text);
        map
    }

    /// Adds a text and answers its number.
    pub fn add(&mut self, path: impl Into<String>, text: impl Into<String>) -> u32 {
        self.sources.push(Source { path: path.into(), text: text.into() });
        (self.sources.len() - 1) as u32
    }

    /// Line and column of the span's first byte, both from 1, the column in characters.
    pub fn line_column(&self, span: Span) -> (u32, u32) {
        let text = &self.sources[span.file as usize].text;
        let mut start = (span.start as usize).min(text.len());
        while !text.is_char_boundary(start) {
            start -= 1;
        }
        let before = &text.as_bytes()[..start];
        let line = before.iter().filter(|&&b| b == b'\n').count();
        let line_start = before.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
        let column = text[line_start..start].chars().count();
        (line as u32 + 1, column as u32 + 1)
    }
}
