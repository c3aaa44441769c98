//! Differences that are known and explained (docs/validation.md).
//!
//! A class is a predicate on the program or the two answers, as narrow as it can be told
//! from outside. What none of them covers is a failure.

use super::answer::Answer;
use super::generator::Generated;

/// The class of a difference, if it has one.
pub(super) fn class(
    generated: &Generated,
    ours: &Answer,
    theirs: &Answer,
    differences: &[String],
) -> Option<&'static str> {
    if matches!(ours, Answer::Panicked(_)) || differences.iter().any(|d| d.starts_with("left")) {
        return None;
    }
    if matches!(theirs, Answer::Panicked(_)) {
        return Some("the reference panics");
    }
    if only_holders(generated, differences) {
        return Some("holders: a session with two shares of a pool");
    }
    None
}

/// Nothing but `mean_holders` differs, of pools a session may have twice: ending a hold,
/// 0.1.3 forgets all of the session's holders there.
fn only_holders(generated: &Generated, differences: &[String]) -> bool {
    let twice = held_twice(&generated.text);
    differences.iter().all(|difference| {
        let row = difference.strip_prefix("report/pools/").and_then(|d| d.split_once("/mean_holders: "));
        row.is_some_and(|(row, _)| {
            let name = row.split('[').next().unwrap_or(row);
            twice.iter().any(|t| *t == name.rsplit('.').next().unwrap_or(name))
        })
    })
}

/// Pools held inside a hold of themselves, or leased: by the name's last part.
fn held_twice(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut open: Vec<Vec<String>> = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some((_, leased)) = line.split_once(" lease ") {
            found.extend(name(leased));
        }
        if line.starts_with('}') {
            open.pop();
        }
        if line.ends_with('{') {
            let pools = line.strip_prefix("hold ").map(grabbed).unwrap_or_default();
            found.extend(pools.iter().filter(|pool| open.iter().flatten().any(|o| o == *pool)).cloned());
            open.push(pools);
        }
    }
    found
}

/// The pools of a hold's header, as it is generated.
fn grabbed(header: &str) -> Vec<String> {
    let mut depth = 0;
    let mut starts = vec![header];
    for (at, c) in header.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            ',' if depth == 0 => starts.push(&header[at + 1..]),
            _ => {}
        }
    }
    starts.into_iter().filter_map(name).collect()
}

fn name(text: &str) -> Option<String> {
    let text = text.trim_start();
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    (end > 0).then(|| text[..end].to_owned())
}
