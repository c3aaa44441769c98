//! As many seeds as an interval takes.
//!
//! Seeds are taken in order from the first, and looked at after [`SEEDS_FIRST`] of
//! them, then after as many as the interval seems to need:
//!
//! ```text
//!   5 seeds ──▶ ±4 % ──▶ 10 ──▶ ±2.1 % ──▶ 20 ──▶ ±1.2 % ──▶ 29 ──▶ ±0.96 %, asked ±1 %
//! ```
//!
//! A half-width shrinks with the root of the number of seeds, so n seeds with a half-width
//! h become about n (h / asked)²; at least [`SEEDS_MORE`] more and at most twice as many, because
//! h itself is an estimate (the sequential procedure of Law, "Simulation Modeling and
//! Analysis", §9.4.1, with fewer looks).
//!
//! # Invariants
//!
//! - Where to look next depends on the figures of the seeds looked at and on nothing else.
//!   So a precision that is reached is reached with the same seeds whatever the number
//!   of threads and however fast they are.

use std::str::FromStr;

use serde::Serialize;
use serq_sim::RunError;
use serq_sim::replicate::{Figures, Replication, SeedError, Stopped, Summary, in_order};

use crate::number::{NOTHING, significant};
use crate::report::over_cells::unknown;
use crate::watch::Watch;

/// Fewer seeds have an interval too uncertain to stop at.
const SEEDS_FIRST: usize = 5;
/// Between two looks: each look is a chance to stop on a narrow interval by luck.
const SEEDS_MORE: usize = 5;
/// Most seeds one command takes: more is another question.
const SEEDS_MAX: usize = 100_000;

/// A figure and how well it shall be known.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Target {
    /// As a column of a sweep: `ttft`, `ttft.p99`.
    figure: String,
    asked: Asked,
}

/// The half-width asked for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Asked {
    /// Of the mean.
    Share(f64),
    /// In the figure's unit.
    HalfWidth(f64),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let hint = "write NAME=1% (of its mean) or NAME=0.002";
        let (figure, width) = text.rsplit_once('=').ok_or_else(|| format!("`{text}` has no `=`: {hint}"))?;
        let (figure, width) = (figure.trim(), width.trim());
        let number = width.strip_suffix('%').unwrap_or(width).trim_end();
        let value: f64 = number.parse().map_err(|_| format!("`{width}` is no width: {hint}"))?;
        if figure.is_empty() || !value.is_finite() || value <= 0.0 {
            return Err(format!("`{text}` needs a name and a width above 0: {hint}"));
        }
        let asked = if width.ends_with('%') { Asked::Share(value / 100.0) } else { Asked::HalfWidth(value) };
        Ok(Self { figure: figure.to_owned(), asked })
    }
}

/// A target, and what the seeds so far say of it.
pub(crate) struct Look {
    target: Target,
    summary: Summary,
}

impl Look {
    /// The half-width that will do.
    fn allowed(&self) -> f64 {
        match self.target.asked {
            Asked::Share(share) => share * self.summary.mean.abs(),
            Asked::HalfWidth(width) => width,
        }
    }

    fn is_reached(&self) -> bool {
        self.summary.count >= SEEDS_FIRST && self.summary.ci <= self.allowed()
    }

    /// Seeds it takes in all, if the spread over them stays what it is; infinite where no number will do.
    fn seeds_needed(&self) -> f64 {
        let more = (self.summary.ci / self.allowed()).powi(2);
        (self.summary.count as f64 * more).ceil().max(SEEDS_FIRST as f64)
    }

    /// Name, mean, half-width, what was asked, and whether it is reached.
    pub(crate) fn words(&self) -> [String; 5] {
        let percent = |share: f64| format!("±{} %", significant(100.0 * share, 2));
        let (known, asked) = match self.target.asked {
            Asked::Share(share) => (percent(self.summary.ci / self.summary.mean.abs()), percent(share)),
            Asked::HalfWidth(width) => {
                (format!("±{}", significant(self.summary.ci, 2)), format!("±{}", significant(width, 2)))
            }
        };
        let known = if self.summary.ci.is_nan() { NOTHING.into() } else { known };
        let reached = if self.is_reached() { "reached" } else { "not reached" };
        [self.target.figure.clone(), significant(self.summary.mean, 4), known, asked, reached.into()]
    }

    /// For a program.
    pub(crate) fn json(&self) -> JsonLook<'_> {
        let finite = |value: f64| value.is_finite().then_some(value);
        JsonLook {
            figure: &self.target.figure,
            asked: self.target.asked,
            seeds: self.summary.count,
            mean: finite(self.summary.mean),
            ci: finite(self.summary.ci),
            reached: self.is_reached(),
        }
    }
}

/// `{"figure": "ttft", "asked": {"share": 0.01}, …}`.
#[derive(Serialize)]
pub(crate) struct JsonLook<'a> {
    figure: &'a str,
    asked: Asked,
    seeds: usize,
    mean: Option<f64>,
    ci: Option<f64>,
    reached: bool,
}

/// The runs it took.
pub(crate) struct Precise {
    /// All seeds looked at, in order.
    pub(crate) replication: Replication,
    /// One a target.
    pub(crate) looks: Vec<Look>,
    /// Why it ended before every target was reached, with the seeds it would take.
    pub(crate) short: Option<String>,
}

/// Why there are no runs to report.
pub(crate) enum Refusal {
    /// One sentence.
    Target(String),
    /// A run failed.
    Run(SeedError<RunError>),
    /// Interrupted, or too little time for two seeds.
    Stopped {
        /// That are done.
        seeds: usize,
    },
}

/// Runs seeds from `first` on until every target is reached or the watch's time is over.
pub(crate) fn replicate_until(
    targets: &[Target],
    first: u64,
    jobs: usize,
    watch: &Watch,
    run: impl Fn(u64) -> Result<Figures, RunError> + Sync,
) -> Result<Precise, Refusal> {
    if first.checked_add(SEEDS_MAX as u64).is_none() {
        return Err(Refusal::Target(format!("the first seed {first} has too few after it: write a smaller --seed")));
    }
    let mut runs: Vec<Figures> = Vec::new();
    let mut wanted = SEEDS_FIRST;
    loop {
        watch.expect(wanted);
        let before = runs.len();
        let mut done: Vec<Option<Figures>> = vec![None; wanted - before];
        let mut misspelt = None;
        let mut told = |task: usize, figures: &Figures| {
            watch.run_done(before + done.iter().flatten().count() + 1, wanted);
            done[task] = Some(figures.clone());
            misspelt = targets.iter().find_map(|target| check(target, figures).err());
            // A run shorter than the time between two of its own looks at the watch never sees it.
            misspelt.is_none() && !watch.is_over()
        };
        let outcome = in_order(wanted - before, jobs, |task| run(first + (before + task) as u64), &mut told);
        if let Some(sentence) = misspelt {
            return Err(Refusal::Target(sentence));
        }
        let whole = match outcome {
            Ok(_) => true,
            Err(Stopped::Asked) => false,
            Err(Stopped::Failed { error, .. }) if error.interrupted => false,
            Err(Stopped::Failed { task, error }) => {
                return Err(Refusal::Run(SeedError { seed: first + (before + task) as u64, error }));
            }
        };
        runs.extend(done.into_iter().map_while(|run| run));
        // Two seeds have an interval, and so something to say of how many more it takes.
        if watch.is_interrupted() || runs.len() < 2 {
            return Err(Refusal::Stopped { seeds: runs.len() });
        }
        let looks = targets.iter().map(|target| look(target, &runs)).collect::<Result<Vec<_>, _>>();
        let looks = looks.map_err(Refusal::Target)?;
        let reached = whole && looks.iter().all(Look::is_reached);
        let full = whole && runs.len() >= SEEDS_MAX;
        if reached || full || !whole {
            let seeds = (first..).take(runs.len()).collect();
            let short = (!reached).then(|| shortfall(&looks, runs.len(), wanted, watch, full));
            return Ok(Precise { replication: Replication { seeds, runs }, looks, short });
        }
        wanted = next(&looks, runs.len());
    }
}

/// How many seeds the next look is after.
fn next(looks: &[Look], seeds: usize) -> usize {
    let needed = looks.iter().filter(|look| !look.is_reached()).map(Look::seeds_needed).fold(0.0, f64::max);
    // A cast of what is too large saturates.
    (needed as usize).clamp(seeds + SEEDS_MORE, 2 * seeds.max(SEEDS_MORE)).min(SEEDS_MAX)
}

fn check(target: &Target, figures: &Figures) -> Result<Vec<usize>, String> {
    let named = |what: String| unknown(&what, &target.figure, &figures.names);
    figures.places(&target.figure).map_err(|what| format!("--precision: {}", named(what)))
}

fn look(target: &Target, runs: &[Figures]) -> Result<Look, String> {
    let places = check(target, &runs[0])?;
    let summary = Summary::of(runs.iter().map(|run| run.mean(&places)));
    if !summary.mean.is_finite() {
        let Target { figure, .. } = target;
        return Err(format!("--precision: {figure} has no finite mean over the first {} seeds", runs.len()));
    }
    Ok(Look { target: target.clone(), summary })
}

/// The sentence for what is not reached.
fn shortfall(looks: &[Look], seeds: usize, wanted: usize, watch: &Watch, full: bool) -> String {
    let end = if full {
        String::from("that is the most one command takes")
    } else {
        let needed = looks.iter().filter(|look| !look.is_reached()).map(Look::seeds_needed).fold(0.0, f64::max);
        // A precision met between two looks is looked at when it is their turn.
        let more = if needed == 0.0 { (wanted - seeds) as f64 } else { (needed - seeds as f64).max(1.0) };
        if more.is_finite() {
            let rate = watch.seconds() / seeds as f64;
            format!(
                "about {} more, some {} s of real time: give --max-wall more",
                significant(rounded(more), 2),
                significant(rounded(more * rate), 2)
            )
        } else {
            String::from("no number of seeds is enough, because the mean is 0: give a width in its own unit")
        }
    };
    format!("the precision is not reached with {seeds} seeds; {end}")
}

/// To two digits, because an estimate is no better.
pub(crate) fn rounded(value: f64) -> f64 {
    format!("{value:.1e}").parse().expect("a printed number reads back")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(asked: Asked, values: &[f64]) -> Look {
        let target = Target { figure: "x".into(), asked };
        Look { target, summary: Summary::of(values.iter().copied()) }
    }

    #[test]
    fn targets() {
        let target = |text: &str| text.parse::<Target>().map(|target| (target.figure, target.asked));
        assert_eq!(target("ttft=1%"), Ok(("ttft".into(), Asked::Share(0.01))));
        assert_eq!(target("pool:kv.wait = 0.002"), Ok(("pool:kv.wait".into(), Asked::HalfWidth(0.002))));
        for wrong in ["ttft", "ttft=", "=1%", "ttft=0", "ttft=-1%", "ttft=nan", "ttft=inf%", "ttft=%", "ttft=1%%"] {
            assert!(target(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_interval_twice_too_wide_takes_four_times_the_seeds() {
        let values = [1.0, 2.0, 3.0, 4.0, 5.0];
        let ci = Summary::of(values).ci;
        assert_eq!(seen(Asked::HalfWidth(ci / 2.0), &values).seeds_needed(), 20.0);
        assert!(seen(Asked::HalfWidth(ci), &values).is_reached());
        assert!(seen(Asked::Share(ci / 3.0), &values).is_reached());
        assert!(!seen(Asked::Share(0.99 * ci / 3.0), &values).is_reached());
        // A narrow interval of four seeds is luck.
        assert!(!seen(Asked::HalfWidth(9.0), &[1.0; 4]).is_reached());
    }

    #[test]
    fn looks_are_five_seeds_apart_and_at_most_double() {
        let values = [1.0, 2.0, 3.0, 4.0, 5.0, 1.0, 2.0, 3.0, 4.0, 5.0];
        let ci = Summary::of(values).ci;
        let after = |times: f64| next(&[seen(Asked::HalfWidth(ci / times), &values)], values.len());
        assert_eq!([after(1.01), after(1.3), after(5.0), after(f64::INFINITY)], [15, 17, 20, 20]);
    }
}
