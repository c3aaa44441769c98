//! CPU time of one run, as the scripts in `benches/` ask for it.
//!
//! Counted is the simulation: not reading the program and its trace, not linking, not the
//! process. The operating system's account of this thread is read
//! (`/proc/thread-self/schedstat`, nanoseconds on a processor), so that neighbours' time
//! doesn't count; where there is none, the wall clock. Turns are counted from the warm-up
//! on: without one, which is the default, they are those of the whole run.

use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::json;
use serq_lang::Settings;
use serq_sim::trace::{BadRows, TraceFile};
use serq_sim::{Options, Steps, simulate};

use crate::program::{self, SEED_PROGRAM, root};

/// What is run.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The program; by default ours of the seed.
    pub program: Option<PathBuf>,
    /// Replaces a `let`.
    #[arg(long = "set", value_parser = assignment)]
    pub sets: Vec<(String, String)>,
    /// The seed.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How long a run is.
    #[arg(long, default_value_t = 10_000.0)]
    pub horizon: f64,
    /// How much of it is not counted.
    #[arg(long, default_value_t = 0.0)]
    pub warmup: f64,
    /// Stops after this many arrivals.
    #[arg(long)]
    pub arrivals: Option<u64>,
    /// The workload's trace; the one the program names is not read.
    #[arg(long)]
    pub trace: Option<PathBuf>,
    /// Takes every engine step singly.
    #[arg(long)]
    pub no_leap: bool,
}

fn assignment(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Seconds this thread has been on a processor.
fn thread_seconds() -> Option<f64> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds: u64 = text.split_whitespace().next()?.parse().ok()?;
    Some(nanoseconds as f64 * 1e-9)
}

/// Most memory this process has had, in MB; where the system doesn't tell, nothing.
fn memory_peak_mb() -> Option<f64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes / 1024.0)
}

fn trace(path: &Path) -> Result<TraceFile, String> {
    let file = fs::File::open(path).map_err(|e| format!("{}: {e}", path.display()))?;
    TraceFile::read(BufReader::new(file), BadRows::Refuse).map_err(|e| format!("{}: {e}", path.display()))
}

/// Runs once and answers a line of JSON.
///
/// # Errors
///
/// The program or its trace doesn't load, or the run stops.
pub fn bench(arguments: &Arguments) -> Result<String, String> {
    let settings = Settings {
        sets: arguments.sets.clone(),
        seed: Some(arguments.seed),
        horizon: Some(arguments.horizon),
        warmup: Some(arguments.warmup),
        arrivals: arguments.arrivals,
        ..Settings::default()
    };
    let path = arguments.program.clone().unwrap_or_else(|| root().join(SEED_PROGRAM));
    let program = program::read(&path, &settings)?;
    let trace = arguments.trace.as_deref().map(trace).transpose()?;
    let steps = if arguments.no_leap { Steps::Singly } else { Steps::Leaps };
    let options = Options { steps, ..Options::default() };
    let (wall, cpu) = (Instant::now(), thread_seconds());
    let outcome = simulate(&program, trace.as_ref(), &options, &mut |_, _| true).map_err(|e| format!("{e:?}"))?;
    let wall = wall.elapsed().as_secs_f64();
    let cpu = cpu.zip(thread_seconds()).map_or(wall, |(before, after)| after - before);
    let report = outcome.report;
    Ok(json!({
        "cpu_s": cpu,
        "wall_s": wall,
        "memory_peak_mb": memory_peak_mb(),
        "events": report.events,
        "turns": report.turns,
        "arrivals": report.arrivals,
        "ended": report.ended,
    })
    .to_string())
}
