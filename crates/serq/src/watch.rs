//! Long work: Ctrl-C, a limit on real time, and a bar for whoever watches.
//!
//! The bar appears on standard error if that is a terminal and the work takes
//! longer than a moment.

use std::io::{self, IsTerminal};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use crate::failure::Failure;
use crate::number;

/// Work shorter than this shows no bar.
const MOMENT: Duration = Duration::from_millis(400);
/// Parts a run is counted in on the bar.
const PARTS: u64 = 1000;

/// Watches one command's runs.
pub(crate) struct Watch {
    interrupted: Arc<AtomicBool>,
    started: Instant,
    max_wall: Option<f64>,
    bar: Option<ProgressBar>,
    bar_shown: AtomicBool,
}

impl Watch {
    /// Begins; `runs` is how many there are to do.
    pub(crate) fn start(runs: usize, max_wall: Option<f64>) -> Result<Self, Failure> {
        let interrupted = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&interrupted);
        ctrlc::set_handler(move || {
            // The second time at once: the run may be between two looks at the flag.
            if flag.swap(true, Ordering::AcqRel) {
                process::exit(130);
            }
        })
        .map_err(|error| Failure::Failed(format!("cannot listen for Ctrl-C: {error}")))?;
        Ok(Self {
            interrupted,
            started: Instant::now(),
            max_wall,
            bar: io::stderr().is_terminal().then(|| bar(runs)),
            bar_shown: AtomicBool::new(false),
        })
    }

    /// The callback of one run: (time, events) to whether to go on.
    pub(crate) fn run(&self, horizon: f64) -> impl FnMut(f64, u64) -> bool + '_ {
        let mut parts_told = 0;
        let mut events_told = 0;
        move |time, events| {
            if let Some(bar) = &self.bar {
                let parts = ((time / horizon).clamp(0.0, 1.0) * PARTS as f64) as u64;
                bar.inc(parts.saturating_sub(parts_told));
                parts_told = parts_told.max(parts);
                if bar.length() == Some(PARTS) && events > events_told {
                    let rate = events as f64 / self.started.elapsed().as_secs_f64().max(1e-9);
                    bar.set_message(format!(
                        "{} of {}, {} events/s",
                        number::significant(time, 4),
                        number::significant(horizon, 4),
                        number::significant(rate, 2)
                    ));
                    events_told = events;
                }
                if self.started.elapsed() > MOMENT && !self.bar_shown.swap(true, Ordering::AcqRel) {
                    bar.set_draw_target(ProgressDrawTarget::stderr());
                }
            }
            !self.is_over()
        }
    }

    /// More runs have come to be needed: so many in all.
    pub(crate) fn expect(&self, runs: usize) {
        if let Some(bar) = &self.bar {
            bar.set_length(runs as u64 * PARTS);
        }
    }

    /// A run of several is done, whatever its callback had told.
    pub(crate) fn run_done(&self, done: usize, of: usize) {
        if let Some(bar) = &self.bar {
            bar.set_position(bar.position().max(done as u64 * PARTS));
            bar.set_message(format!("{done} of {of} runs"));
        }
    }

    /// Ctrl-C was pressed.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Acquire)
    }

    /// Ctrl-C, or the limit on real time.
    pub(crate) fn is_over(&self) -> bool {
        self.is_interrupted() || self.max_wall.is_some_and(|limit| self.seconds() > limit)
    }

    /// Since the start.
    pub(crate) fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// The failure of a run the watch stopped, with what was reached.
    pub(crate) fn stopped(&self, reached: &str) -> Failure {
        self.finish();
        match self.max_wall {
            Some(limit) if !self.is_interrupted() => {
                Failure::Failed(format!("stopped after {limit} s of real time (--max-wall), {reached}"))
            }
            _ => Failure::Interrupted(format!("interrupted, {reached}")),
        }
    }
}

fn bar(runs: usize) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(runs.max(1) as u64 * PARTS), ProgressDrawTarget::hidden());
    let left = |state: &ProgressState, f: &mut dyn std::fmt::Write| {
        // A failure to draw is no failure of the run.
        let _ = write!(f, "{} s left", state.eta().as_secs());
    };
    let style = ProgressStyle::with_template("  {wide_bar} {percent:>3} %  {msg}  {left}")
        .expect("the template is a constant")
        .with_key("left", left);
    bar.set_style(style);
    bar
}
