//! Makes a program that differs smaller while it differs.
//!
//! A generated program has a statement, declaration or clause a line. A step leaves out
//! a line, a block with its lines, or a block's two ends; it is kept when both sides
//! still run the program and their difference is still unexplained.

use std::time::Duration;

use super::answer::{self, Answer, compare};
use super::reference::Reference;
use super::{Verdict, judge};

/// Trials at most: each runs both sides.
const TRIALS: usize = 3_000;

/// Leaving out what lets time pass makes the reference run for ever.
const PATIENCE: Duration = Duration::from_secs(1);

/// The smallest program found, and its differences.
pub(super) fn shrunk(reference: &mut Reference, text: &str) -> Result<(String, Vec<String>), String> {
    let patience = std::mem::replace(&mut reference.patience, PATIENCE);
    let found = search(reference, text);
    reference.patience = patience;
    found
}

fn search(reference: &mut Reference, text: &str) -> Result<(String, Vec<String>), String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let mut differences = differs(reference, text, &lines)?.unwrap_or_default();
    let mut trials = 0;
    loop {
        let before = lines.len();
        let mut at = 0;
        while at < lines.len() && trials < TRIALS {
            let mut smaller = false;
            for candidate in without(&lines, at) {
                trials += 1;
                if let Some(found) = differs(reference, text, &candidate)? {
                    lines = candidate;
                    differences = found;
                    smaller = true;
                    break;
                }
            }
            if !smaller {
                at += 1;
            }
        }
        if lines.len() == before || trials >= TRIALS {
            return Ok((lines.join("\n") + "\n", differences));
        }
    }
}

/// The programs without what begins at a line, the smallest first.
fn without(lines: &[String], at: usize) -> Vec<Vec<String>> {
    let cut = |skip: &dyn Fn(usize) -> bool| {
        lines.iter().enumerate().filter(|(k, _)| !skip(*k)).map(|(_, line)| line.clone()).collect::<Vec<_>>()
    };
    let line = lines[at].trim();
    if line.starts_with('}') {
        // The clauses behind a block.
        let indent = &lines[at][..lines[at].len() - lines[at].trim_start().len()];
        if line.len() > 2 {
            let mut bare = lines.to_vec();
            bare[at] = format!("{indent}}}");
            return vec![bare];
        }
        return Vec::new();
    }
    if !line.ends_with('{') {
        return vec![cut(&|k| k == at)];
    }
    let mut depth = 0;
    let mut end = at;
    for (k, line) in lines.iter().enumerate().skip(at) {
        if line.trim().starts_with('}') {
            depth -= 1;
        }
        if line.trim().ends_with('{') {
            depth += 1;
        }
        if depth == 0 {
            end = k;
            break;
        }
    }
    vec![cut(&|k| (at..=end).contains(&k)), cut(&|k| k == at || k == end)]
}

fn differs(reference: &mut Reference, whole: &str, lines: &[String]) -> Result<Option<Vec<String>>, String> {
    let candidate = lines.join("\n") + "\n";
    let ours = answer::ours(&candidate);
    let stops = |answer: &Answer| matches!(answer, Answer::Stopped(..));
    let whole_stops = stops(&answer::ours(whole));
    if stops(&ours) != whole_stops {
        return Ok(None); // Before the reference is asked: it may run for ever where ours stops.
    }
    let theirs = reference_of(reference, &candidate)?;
    let both_ran = matches!((&ours, &theirs), (Answer::Ran(_), Answer::Ran(_)));
    match judge(reference, &candidate, &ours, &theirs)? {
        Verdict::Differ(found) if both_ran => Ok(Some(found)),
        // A difference in acceptance or in stopping is one as long as it stays of that kind.
        Verdict::Differ(found) if kind(&found) == Some(kind_of_whole(reference, whole)?) => Ok(Some(found)),
        _ => Ok(None),
    }
}

fn reference_of(reference: &mut Reference, text: &str) -> Result<Answer, String> {
    reference.ask(text)?;
    reference.answer()
}

fn kind(differences: &[String]) -> Option<String> {
    let first = differences.first()?;
    first.starts_with("ours ").then(|| first.chars().filter(|c| !c.is_ascii_digit()).take(60).collect())
}

fn kind_of_whole(reference: &mut Reference, whole: &str) -> Result<String, String> {
    let mut differences = Vec::new();
    compare(&answer::ours(whole), &reference_of(reference, whole)?, &mut differences);
    Ok(kind(&differences).unwrap_or_default())
}
