//! Random programs, run here and by the reference release, compared number by number.
//!
//! ```text
//!   seed ─generator─▶ text ─┬─ link, simulate (this workspace) ─▶ answer ─┐
//!                           └─ tools/reference.py, a process ───▶ answer ─┴─▶ compare
//!                                                                               │
//!     equal · both stop · a documented difference (classes.rs) · a failure, shrunk ◀┘
//! ```
//!
//! The reference is a black box: `pip install --target FOLDER pyserq==0.1.3`, then
//! `cargo xtask differential --reference-path FOLDER`. Nothing is installed here.
//!
//! # Invariants
//!
//! - Samples, their times, sessions and turns, gauge change points and every figure of the
//!   report but `serq_version` and `events` agree within 1e-9 of max(1, |x|).
//! - Our `left` is 0 in every pool, equal or not.
//! - A difference no documented class explains is a failure.

pub(crate) mod answer;
mod classes;
mod coverage;
pub mod generator;
pub(crate) mod reference;
mod shrink;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use answer::{Answer, compare};
use coverage::Coverage;
use reference::Reference;

/// What to compare.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// How many programs.
    #[arg(long, default_value_t = 5_000)]
    count: u64,
    /// Seed of the first one; the others follow.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    reference: reference::Installation,
    /// Keeps every program that differs, whole and shrunk, in this folder.
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Prints how often each grammar alternative and semantic branch was hit.
    #[arg(long)]
    coverage: bool,
    /// Fails unless each of them was hit at least this often.
    #[arg(long, default_value_t = 0)]
    least: u64,
    /// Shrinks at most this many failures.
    #[arg(long, default_value_t = 10)]
    shrink: usize,
    /// Compares this program file instead and prints the differences.
    #[arg(long)]
    file: Option<PathBuf>,
}

/// How many of the programs went which way.
#[derive(Debug, Default)]
struct Tally {
    programs: u64,
    accepted: u64,
    equal: u64,
    both_refuse: u64,
    both_stop: u64,
    classes: BTreeMap<&'static str, Vec<u64>>,
    failures: Vec<(u64, String)>,
}

/// What two answers to one program are to each other.
#[derive(Debug)]
enum Verdict {
    Equal,
    BothRefuse,
    BothStop,
    Known(&'static str),
    Differ(Vec<String>),
}

fn judge(reference: &mut Reference, text: &str, ours: &Answer, theirs: &Answer) -> Result<Verdict, String> {
    match (ours, theirs) {
        (Answer::Refused(_), Answer::Refused(_)) => return Ok(Verdict::BothRefuse),
        (Answer::Stopped(Some(time), _), Answer::Stopped(..)) => {
            let Some(cut) = classes::before(text, *time) else { return Ok(Verdict::BothStop) };
            reference.ask(&cut)?;
            let (ours, theirs) = (answer::ours(&cut), reference.answer()?);
            // Up to where ours stops it is a program like others, unless its warm-up is longer.
            return Ok(match judge(reference, &cut, &ours, &theirs)? {
                Verdict::Equal | Verdict::BothRefuse => Verdict::BothStop,
                verdict => verdict,
            });
        }
        (Answer::Stopped(None, _), Answer::Stopped(..)) => return Ok(Verdict::BothStop),
        _ => {}
    }
    let mut differences = Vec::new();
    compare(ours, theirs, &mut differences);
    if differences.is_empty() {
        return Ok(Verdict::Equal);
    }
    let mut both = |text: &str, ours: &dyn Fn(&str) -> Answer| -> Result<Option<(Answer, Answer)>, String> {
        let ours = ours(text);
        // Before the reference is asked: it may run for ever where an instant does not end.
        let ends = match &ours {
            Answer::Ran(_) => true,
            Answer::Stopped(_, why) => !why.contains("does not settle"),
            _ => false,
        };
        if !ends {
            return Ok(None);
        }
        reference.ask(text)?;
        Ok(Some((ours, reference.answer()?)))
    };
    Ok(match classes::class(text, ours, theirs, &differences, &mut both)? {
        Some(class) => Verdict::Known(class),
        None => Verdict::Differ(differences),
    })
}

/// Compares, and answers with the tally.
///
/// # Errors
///
/// A difference nothing explains, units left, or coverage below `--least`.
pub fn differential(arguments: &Arguments) -> Result<String, String> {
    let mut reference = Reference::start(&arguments.reference, &["0.1.3"])?;
    if let Some(file) = &arguments.file {
        let text = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        return compare_one(&mut reference, &text);
    }
    let mut tally = Tally::default();
    let mut coverage = Coverage::default();
    for seed in arguments.seed..arguments.seed + arguments.count {
        let generated = generator::generate(seed);
        reference.ask(&generated.text)?;
        let ours = answer::ours(&generated.text);
        let theirs = reference.answer()?;
        tally.programs += 1;
        if !matches!(theirs, Answer::Refused(_)) {
            tally.accepted += 1;
        }
        coverage.count(&generated, &ours);
        match judge(&mut reference, &generated.text, &ours, &theirs)? {
            Verdict::Equal => tally.equal += 1,
            Verdict::BothRefuse => tally.both_refuse += 1,
            Verdict::BothStop => tally.both_stop += 1,
            Verdict::Known(class) => {
                tally.classes.entry(class).or_default().push(seed);
                keep(arguments, &format!("{class}-{seed}"), &generated.text)?;
            }
            Verdict::Differ(differences) => {
                let shown = if tally.failures.len() < arguments.shrink {
                    shrink::shrunk(&mut reference, &generated.text)?
                } else {
                    (generated.text.clone(), differences)
                };
                keep(arguments, &format!("differs-{seed}"), &generated.text)?;
                keep(arguments, &format!("shrunk-{seed}"), &shown.0)?;
                tally.failures.push((seed, failure(seed, &shown.0, &shown.1)));
            }
        }
    }
    let mut text = tally.text();
    let rare = coverage.below(arguments.least);
    if arguments.coverage {
        text += &coverage.text();
    }
    if !rare.is_empty() {
        let _ = writeln!(text, "hit fewer than {} times: {}", arguments.least, rare.join(", "));
    }
    if tally.failures.is_empty() && rare.is_empty() { Ok(text) } else { Err(text) }
}

fn compare_one(reference: &mut Reference, text: &str) -> Result<String, String> {
    reference.ask(text)?;
    let ours = answer::ours(text);
    let theirs = reference.answer()?;
    let mut differences = Vec::new();
    compare(&ours, &theirs, &mut differences);
    let mut said = format!("ours: {}\ntheirs: {}\n", ours.summary(), theirs.summary());
    for (whose, answer) in [("ours", &ours), ("theirs", &theirs)] {
        for part in ["samples", "gauge_points"] {
            let _ = writeln!(
                said,
                "{whose}: {part} {}",
                answer.at(&format!("/{part}")).unwrap_or(&serde_json::Value::Null)
            );
        }
    }
    match judge(reference, text, &ours, &theirs)? {
        Verdict::Known(class) => said += &format!("known: {class}\n"),
        Verdict::Differ(_) => said += "unexplained\n",
        Verdict::Equal | Verdict::BothRefuse | Verdict::BothStop => return Ok(said + "equal"),
    }
    Err(said + &differences.join("\n"))
}

fn keep(arguments: &Arguments, name: &str, text: &str) -> Result<(), String> {
    let Some(folder) = &arguments.keep else { return Ok(()) };
    let path = folder.join(format!("{}.sq", name.replace([' ', ','], "-")));
    fs::create_dir_all(folder).and_then(|()| fs::write(&path, text)).map_err(|e| format!("{}: {e}", path.display()))
}

fn failure(seed: u64, text: &str, differences: &[String]) -> String {
    let mut out = format!("--- seed {seed}: {} differences\n", differences.len());
    for difference in differences.iter().take(8) {
        let _ = writeln!(out, "  {difference}");
    }
    out + text
}

impl Tally {
    fn text(&self) -> String {
        let mut out = String::new();
        for (_, failure) in &self.failures {
            let _ = writeln!(out, "{failure}");
        }
        let compared = self.accepted - self.both_stop;
        let _ = writeln!(out, "programs      {:>7}", self.programs);
        let _ = writeln!(out, "accepted      {:>7}   by the reference", self.accepted);
        let _ = writeln!(out, "refused       {:>7}   by both", self.both_refuse);
        let _ = writeln!(out, "stopped       {:>7}   both runs end in an error", self.both_stop);
        let _ = writeln!(out, "compared      {compared:>7}");
        let _ = writeln!(out, "equal         {:>7}", self.equal);
        for (class, seeds) in &self.classes {
            let few: Vec<String> = seeds.iter().take(3).map(u64::to_string).collect();
            let _ = writeln!(out, "known         {:>7}   {class} (seeds {} …)", seeds.len(), few.join(", "));
        }
        let _ = writeln!(out, "unexplained   {:>7}", self.failures.len());
        if !self.failures.is_empty() {
            let seeds: Vec<String> = self.failures.iter().map(|(seed, _)| seed.to_string()).collect();
            let _ = writeln!(out, "their seeds: {}", seeds.join(" "));
        }
        out
    }
}
