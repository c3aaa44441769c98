//! CPU time of one run, as `benches/seed_program.py` asks for it.
//!
//! Counted is the simulation: not reading and linking the program, not the process. The
//! kernel's account of this thread is read (`/proc/thread-self/schedstat`, nanoseconds on
//! a processor), so that neighbours don't count; where there is none, the wall clock.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use serde_json::json;
use serq_lang::Settings;
use serq_sim::{Options, simulate};

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
    #[arg(long, default_value_t = 1_000.0)]
    pub warmup: f64,
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

/// Runs once and answers a line of JSON.
///
/// # Errors
///
/// The program doesn't load or stops.
pub fn bench(arguments: &Arguments) -> Result<String, String> {
    let settings = Settings {
        sets: arguments.sets.clone(),
        seed: Some(arguments.seed),
        horizon: Some(arguments.horizon),
        warmup: Some(arguments.warmup),
        ..Settings::default()
    };
    let path = arguments.program.clone().unwrap_or_else(|| root().join(SEED_PROGRAM));
    let program = program::read(&path, &settings)?;
    let (wall, cpu) = (Instant::now(), thread_seconds());
    let outcome = simulate(&program, None, &Options::default(), &mut |_, _| true).map_err(|e| format!("{e:?}"))?;
    let wall = wall.elapsed().as_secs_f64();
    let cpu = cpu.zip(thread_seconds()).map_or(wall, |(before, after)| after - before);
    let report = outcome.report;
    let turns = report.turns;
    Ok(json!({ "cpu_s": cpu, "wall_s": wall, "events": report.events, "turns": turns }).to_string())
}
