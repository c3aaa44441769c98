//! Differences that are known and explained (docs/validation.md).
//!
//! A class is a predicate on the program or the two answers, as narrow as it can be told
//! from outside. What none of them covers is a failure.

use serde_json::Value;

use super::answer::Answer;
use super::generator::Generated;

/// The class of a difference, if it has one.
pub(super) fn class(
    generated: &Generated,
    ours: &Answer,
    theirs: &Answer,
    differences: &[String],
) -> Option<&'static str> {
    if let Answer::Panicked(_) = theirs {
        return Some("the reference panics");
    }
    let _ = (generated, ours, differences);
    let _ = Value::Null;
    None
}
