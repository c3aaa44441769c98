//! Standard output and files: written whole or not at all, with the reason.

use std::io::{self, IsTerminal, Write};
use std::path::Path;

use crate::failure::Failure;

/// Columns of a report where standard output is no terminal, and the least elsewhere.
const COLUMNS: usize = 80;
/// Lines longer than this are hard to follow, however wide the screen.
const COLUMNS_MAX: usize = 160;

/// Writes a finished text to standard output.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::ReaderGone),
        Err(error) => Err(Failure::Failed(format!("cannot write the output: {}", reason(&error)))),
    }
}

/// Says a line on standard error, without colours where they are not wanted. Nobody listening is no failure.
pub(crate) fn tell(line: &str) {
    // In one piece: other processes say theirs beside it.
    let _ = anstream::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Whether a person is looking at standard output.
pub(crate) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Columns a report may use.
pub(crate) fn width() -> usize {
    if !is_terminal() {
        return COLUMNS;
    }
    let wide = terminal_size::terminal_size().map_or(COLUMNS, |(terminal_size::Width(wide), _)| usize::from(wide));
    wide.clamp(COLUMNS, COLUMNS_MAX)
}

/// A file's error as a person says it, without the number.
pub(crate) fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such file".into(),
        io::ErrorKind::PermissionDenied => "permission denied".into(),
        io::ErrorKind::IsADirectory => "it is a directory".into(),
        io::ErrorKind::NotADirectory => "a part of the path is not a directory".into(),
        io::ErrorKind::AlreadyExists => "a file of that name is in the way".into(),
        io::ErrorKind::InvalidData => "it is not UTF-8 text".into(),
        io::ErrorKind::StorageFull => "the disk is full".into(),
        _ => {
            let text = error.to_string();
            text.split(" (os error").next().unwrap_or(&text).to_lowercase()
        }
    }
}

/// A failure to do `what` with a file.
pub(crate) fn cannot(what: &str, path: impl AsRef<Path>, error: &io::Error) -> Failure {
    Failure::Failed(format!("cannot {what} {}: {}", path.as_ref().display(), reason(error)))
}
