//! Reports as a person or a program reads them.

pub(crate) mod lines;
pub(crate) mod over_cells;
pub(crate) mod over_pair;
pub(crate) mod over_seeds;
pub(crate) mod played;
pub(crate) mod side_by_side;
pub(crate) mod text;

use crate::number::significant;

/// `time 10 000, warm-up 1000`.
pub(crate) fn span(end: f64, warmup: f64) -> String {
    let time = |value: f64| significant(value, 6);
    let warmup = if warmup > 0.0 { format!(", warm-up {}", time(warmup)) } else { String::new() };
    format!("time {}{warmup}", time(end))
}
