//! One run: the kernel driven in virtual time.

use serq_ir::{Place, Program};

use crate::report::Report;
use crate::trace::TraceFile;

/// What a run is asked beyond the program.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Keep every sample and gauge change point (`--dump`).
    pub record: bool,
    /// Statistics exact whatever the number of samples.
    pub exact: bool,
    /// Negative work stops the run.
    pub strict: bool,
    /// Stop with an error after this many events.
    pub max_events: Option<u64>,
    /// Limits on observations by name.
    pub slo: Vec<(String, f64)>,
}

/// A finished run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The figures.
    pub report: Report,
    /// With [`Options::record`]: per observation, in program order.
    pub samples: Vec<Vec<Sample>>,
    /// With [`Options::record`]: per gauge, (time, value) at change points.
    pub gauge_points: Vec<Vec<(f64, f64)>>,
}

/// One sample of an observation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// When.
    pub time: f64,
    /// Serial number of the session.
    pub session: u64,
    /// Its turn_no.
    pub turn: f64,
    /// The sample.
    pub value: f64,
}

/// Why a run stopped without a report.
#[derive(Clone, Debug, PartialEq)]
pub struct RunError {
    /// One sentence: what went wrong, with the values read.
    pub message: String,
    /// The statement or declaration.
    pub at: Option<Place>,
    /// The session, where one is concerned.
    pub session: Option<u64>,
    /// When.
    pub time: f64,
    /// The watcher asked for the stop.
    pub interrupted: bool,
}

/// Simulates a program.
///
/// `watch` is called now and then with (time, events) and answers whether to go on.
///
/// # Errors
///
/// [`RunError`]: a run-time error of the program (docs/language.md, "Run-time errors"),
/// `max_events` reached, or the watcher's stop.
pub fn simulate(
    _program: &Program,
    _trace: Option<&TraceFile>,
    _options: &Options,
    _watch: &mut dyn FnMut(f64, u64) -> bool,
) -> Result<Outcome, RunError> {
    Err(RunError { message: "not there yet".into(), at: None, session: None, time: 0.0, interrupted: false })
}
