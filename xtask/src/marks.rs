//! Parts of docs/validation.md that a chore writes, between two marks.

use std::fs;

use crate::program::root;

/// A page with another text between its marks.
///
/// # Errors
///
/// The page does not have both.
pub fn between(page: &str, (begin, end): (&str, &str), text: &str) -> Result<String, String> {
    let missing = || format!("docs/validation.md has not both of `{begin}` and `{end}`");
    let start = page.find(begin).ok_or_else(missing)? + begin.len();
    let stop = start + page[start..].find(end).ok_or_else(missing)?;
    Ok(format!("{}{text}{}", &page[..start], &page[stop..]))
}

/// Writes a text between its marks.
///
/// # Errors
///
/// The page does not have both, or cannot be read or written.
pub fn write(marks: (&str, &str), text: &str) -> Result<(), String> {
    let path = root().join("docs/validation.md");
    let page = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    fs::write(&path, between(&page, marks, text)?).map_err(|error| format!("{}: {error}", path.display()))
}
