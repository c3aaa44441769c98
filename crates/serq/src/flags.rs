//! Flags several commands share, and what their values must be.
//!
//! Everything that can be refused without opening a file is refused here, while
//! the command line is read.

use std::num::NonZeroUsize;
use std::thread;

use clap::{Args, ValueEnum};
use serq_lang::Settings;
use serq_sim::{Options, Steps};

use crate::failure::Failure;

/// The program and what the caller changes in it.
#[derive(Args)]
pub(crate) struct ProgramFlags {
    /// Program text, or IR as `serq ir` prints it; `-` reads standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: String,

    #[command(flatten)]
    pub(crate) settings: SettingFlags,

    #[command(flatten)]
    pub(crate) messages: MessageFlags,
}

/// How diagnostics are drawn.
#[derive(Args, Clone)]
pub(crate) struct MessageFlags {
    /// Diagnostics as a picture, or `FILE:line:col: error[code]: message`, one a line
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = MessageFormat::Full, hide_default_value = true)]
    pub(crate) message_format: MessageFormat,
}

/// The values of `--message-format`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum MessageFormat {
    /// The source line, a caret, and what to write.
    Full,
    /// One line each.
    Short,
}

/// What the caller changes.
#[derive(Args, Clone)]
pub(crate) struct SettingFlags {
    /// Replace the value of a `let`; may be repeated, the last wins
    #[arg(long, value_name = "NAME=EXPR", value_parser = binding)]
    pub(crate) set: Vec<(String, String)>,

    /// Replace the body of an expression `def`; may be repeated, the last wins
    #[arg(long, value_name = "NAME=EXPR", value_parser = binding)]
    pub(crate) def: Vec<(String, String)>,

    /// Simulate until this time
    #[arg(long, value_name = "TIME", value_parser = positive, allow_negative_numbers = true)]
    pub(crate) horizon: Option<f64>,

    /// Count samples from this time
    #[arg(long, value_name = "TIME", value_parser = not_negative, allow_negative_numbers = true)]
    pub(crate) warmup: Option<f64>,

    /// Stop after this many arrivals (where sessions come one after another)
    #[arg(long, value_name = "COUNT", value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) arrivals: Option<u64>,

    /// The workload's trace, instead of the program's
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<String>,

    /// How fast an `arrive trace` goes through its arrivals: 2 is in half the time
    #[arg(long, value_name = "FACTOR", value_parser = positive, allow_negative_numbers = true)]
    pub(crate) speed: Option<f64>,

    /// Leave out the trace's wrong rows, and count them in the report's notes
    #[arg(long)]
    pub(crate) skip_bad: bool,
}

impl SettingFlags {
    /// As a command line has them.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let pairs = |flag: &'static str, pairs: &[(String, String)]| -> Vec<String> {
            pairs.iter().map(|(name, value)| format!("--{flag}={name}={value}")).collect()
        };
        let mut arguments = pairs("set", &self.set);
        arguments.extend(pairs("def", &self.def));
        arguments.extend(self.horizon.map(|time| format!("--horizon={time}")));
        arguments.extend(self.warmup.map(|time| format!("--warmup={time}")));
        arguments.extend(self.arrivals.map(|count| format!("--arrivals={count}")));
        arguments.extend(self.trace.iter().map(|file| format!("--trace={file}")));
        arguments.extend(self.speed.map(|factor| format!("--speed={factor}")));
        arguments.extend(self.skip_bad.then(|| "--skip-bad".to_owned()));
        arguments
    }

    /// Checks what concerns several flags.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match (self.warmup, self.horizon) {
            (Some(warmup), Some(horizon)) if warmup >= horizon => {
                Err(Failure::Usage(format!("--warmup {warmup} must be below --horizon {horizon}")))
            }
            _ => Ok(()),
        }
    }

    /// As the linker takes them, without the trace: it is the binary that reads it, and only
    /// where the program has one to replace ([`crate::program_file::ProgramFile::trace`]).
    pub(crate) fn settings(&self, more_sets: &[(String, String)], seed: Option<u64>) -> Settings {
        Settings {
            sets: self.set.iter().chain(more_sets).cloned().collect(),
            defs: self.def.clone(),
            horizon: self.horizon,
            warmup: self.warmup,
            seed,
            arrivals: self.arrivals,
            trace: None,
            served: false,
            played: false,
        }
    }
}

/// What stops a run.
#[derive(Args)]
pub(crate) struct LimitFlags {
    /// Negative work stops the run (otherwise it counts as 0, with a note)
    #[arg(long)]
    pub(crate) strict: bool,

    /// Keep every sample for the quantiles (otherwise a sketch above 65,536)
    #[arg(long)]
    pub(crate) exact: bool,

    /// Fail after this many events
    #[arg(long, value_name = "COUNT", value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) max_events: Option<u64>,

    /// Take every engine step singly: the same figures, slower
    #[arg(long)]
    pub(crate) no_leap: bool,

    /// Fail after this many seconds of real time
    #[arg(long, value_name = "SECONDS", value_parser = positive, allow_negative_numbers = true)]
    pub(crate) max_wall: Option<f64>,
}

impl LimitFlags {
    /// As a simulation takes them, without the limit on real time: that one is the watch's.
    pub(crate) fn options(&self) -> Options {
        Options {
            exact: self.exact,
            strict: self.strict,
            max_events: self.max_events,
            steps: if self.no_leap { Steps::Singly } else { Steps::Leaps },
            ..Options::default()
        }
    }
}

/// How many runs at once.
#[derive(Args)]
pub(crate) struct JobFlags {
    /// Runs at once (default: one a processor); the results do not depend on it
    #[arg(long, short = 'j', value_name = "COUNT", allow_negative_numbers = true)]
    jobs: Option<NonZeroUsize>,
}

impl JobFlags {
    /// The number of threads.
    pub(crate) fn count(&self) -> usize {
        self.jobs.or_else(|| thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get)
    }
}

/// `name=expression`.
pub(crate) fn binding(text: &str) -> Result<(String, String), String> {
    let (name, expression) =
        text.split_once('=').ok_or_else(|| format!("`{text}` has no `=`: write NAME=EXPR, as in thr=512"))?;
    let (name, expression) = (name.trim(), expression.trim());
    let mut letters = name.chars();
    let starts = letters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    if !starts || !letters.all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Err(format!("`{name}` is no name: write NAME=EXPR, as in thr=512"));
    }
    if expression.is_empty() {
        return Err(format!("`{name}` has no value: write {name}=EXPR"));
    }
    Ok((name.to_owned(), expression.to_owned()))
}

/// `name=limit` of `--slo`.
pub(crate) fn limit(text: &str) -> Result<(String, f64), String> {
    let (name, value) =
        text.rsplit_once('=').ok_or_else(|| format!("`{text}` has no `=`: write NAME=LIMIT, as in ttft=0.2"))?;
    let value = number(value)?;
    if !value.is_finite() {
        return Err(format!("the limit {value} is not finite"));
    }
    Ok((name.trim().to_owned(), value))
}

fn number(text: &str) -> Result<f64, String> {
    text.trim().parse().map_err(|_| format!("`{text}` is not a number"))
}

fn positive(text: &str) -> Result<f64, String> {
    let value = number(text)?;
    if value.is_finite() && value > 0.0 { Ok(value) } else { Err("it must be finite and above 0".into()) }
}

pub(crate) fn not_negative(text: &str) -> Result<f64, String> {
    let value = number(text)?;
    // -0 would print as such.
    if value.is_finite() && value >= 0.0 { Ok(value + 0.0) } else { Err("it must be finite and at least 0".into()) }
}

fn at_least_one(text: &str) -> Result<u64, String> {
    let wrong = || "it must be a whole number of at least 1".to_owned();
    text.trim().parse().ok().filter(|&count| count >= 1).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bindings() {
        assert_eq!(binding("thr = 2 * 3"), Ok(("thr".into(), "2 * 3".into())));
        assert_eq!(binding("a=b=c"), Ok(("a".into(), "b=c".into())));
        for wrong in ["thr", "=1", "1a=2", "a b=2", "a=", "", "ä=1"] {
            assert!(binding(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_of_flags() {
        for wrong in ["nan", "inf", "-1", "0", "1e999", "x", ""] {
            assert!(positive(wrong).is_err(), "{wrong}");
        }
        assert_eq!(positive("1e3"), Ok(1000.0));
        assert_eq!(not_negative("-0").map(f64::to_bits), Ok(0));
        for wrong in ["0", "-3", "1.5", "99999999999999999999"] {
            assert!(at_least_one(wrong).is_err(), "{wrong}");
        }
    }
}
