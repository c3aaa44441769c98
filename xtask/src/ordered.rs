//! The seed's program without a draw, run here and by the reference release: the same figures.
//!
//! Every session comes at a fixed gap and replays the next one of a trace, so nothing is left
//! to chance and the two runs can be compared sample by sample. That is the check of the whole
//! P/D program at length, where [`crate::differential`] has small programs of every kind.
//!
//! ```text
//!   seed ─▶ trace ─┐
//!                  ├─▶ program ─┬─ link, simulate (this workspace) ─▶ answer ─┐
//!   setting ───────┘            └─ tools/reference.py, a process ───▶ answer ─┴─▶ compare
//! ```
//!
//! Compared is every sample with its time, session and turn, every change of a gauge, and every
//! figure of the report: of observations, gauges, stages and pools, of each instance by itself.
//!
//! The trace and the programs stay in `ordered/`, beside the running program.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use serq_lang::Settings;
use serq_sim::trace::{BadRows, TraceFile};
use serq_sim::{Options, simulate};

use crate::differential::answer::{Answer, compare_by, ran};
use crate::differential::generator::Rng;
use crate::differential::reference::{Installation, Reference};
use crate::program::{self, SEED_PROGRAM, root};

/// A setting of the program.
struct Setting {
    name: &'static str,
    sets: &'static [(&'static str, f64)],
    /// Every cost and rate is a binary fraction ([`BINARY`]).
    binary: bool,
}

/// As written; decoders that run out of blocks; overloaded: the queues grow until the end.
const SETTINGS: [Setting; 6] = [
    Setting { name: "as written", sets: &[], binary: false },
    Setting { name: "1.2/s, blocksD 1100", sets: &[("Lambda", 1.2), ("blocksD", 1_100.0)], binary: false },
    Setting { name: "3/s, blocksD 1100", sets: &[("Lambda", 3.0), ("blocksD", 1_100.0)], binary: false },
    Setting { name: "0.64/s, binary", sets: &[("Lambda", 0.64)], binary: true },
    Setting { name: "1.28/s, blocksD 1100, binary", sets: &[("Lambda", 1.28), ("blocksD", 1_100.0)], binary: true },
    Setting { name: "3.2/s, blocksD 1100, binary", sets: &[("Lambda", 3.2), ("blocksD", 1_100.0)], binary: true },
];

/// Costs and rates near those of the program of which sums are exact, as long as no more than
/// two reads share a NIC.
const BINARY: [(&str, f64); 6] = [
    ("a", 1.0 / 32_768.0),
    ("omega", 1.0 / 4_096.0),
    ("beta", 1.0 / 536_870_912.0),
    ("BwP", 262_144.0),
    ("BwD", 262_144.0),
    ("x0", 1.0 / 512.0),
];

/// The program's draws, and what stands there instead.
const DRAWS: [(&str, &str); 5] = [
    ("arrive poisson(Lambda);", "arrive renewal(1 / Lambda); trace \"TRACE\" ordered;"),
    ("set fresh = context == 0 ? ~uniform(1000, 3000) : ~exp(500);", "set fresh = new;"),
    ("set answer = ~exp(200) + 1;", "set answer = out;"),
    ("set more = ~bernoulli(p);", ""),
    ("tool (~exp(Z));", "tool (think);"),
];

/// Releases that can be asked; 0.1.2 for runs of any length. 0.1.3 stops at negative work: an answer that would end beyond the
/// model's context, which comes in runs longer than some hundred seconds.
const RELEASES: &[&str] = &["0.1.2", "0.1.3"];

/// What the reference may take for one run.
const PATIENCE: Duration = Duration::from_secs(600);

/// How far a sample or time may be from the reference's, of max(|x|, 1), and a figure of the
/// report, of |x|. The end of a step is a sum of steps there and a product here (docs/semantics.md
/// §10), so its last digits differ; a busy decoder makes millions of steps, and who waits for it
/// carries the difference on. The printed digits are the same.
const TOLERANCE: f64 = 1e-5;

/// ... where both are exact but for three reads and more at one NIC, and for the statistics.
const TOLERANCE_BINARY: f64 = 1e-11;

/// How many samples and changes that differ are told of a setting; figures are told all.
const TOLD: usize = 10;

/// What to compare.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// How long each run is, in seconds; a seventh of it is not counted.
    #[arg(long, default_value_t = 1_500.0)]
    horizon: f64,
    /// The trace's seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    reference: Installation,
}

/// Compares the settings, and answers with a row for each.
///
/// # Errors
///
/// Every figure that differs, or why a side did not run.
pub fn ordered(arguments: &Arguments) -> Result<String, String> {
    let mut reference = Reference::start(&arguments.reference, RELEASES)?;
    reference.patience = PATIENCE;
    let folder = std::env::current_exe().map_err(|e| e.to_string())?.with_file_name("ordered");
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let trace = folder.join(format!("trace-{}.csv", arguments.seed));
    // As many sessions as the fastest setting sees; the others replay the first of them.
    write(&trace, &sessions(arguments.seed, (3.2 * arguments.horizon) as u64 + 1))?;
    let mut told = format!(
        "{:30}{:>8}{:>9}{:>9}{:>9}{:>9}{:>9}   apart   figures\n",
        "setting", "turns", "evicted", "preempt.", "samples", "changes", "numbers"
    );
    let mut wrong = String::new();
    for setting in &SETTINGS {
        let text = setting.program(&trace, arguments.horizon)?;
        let path = folder.join(format!("{}.sq", setting.name.replace([' ', '/', ','], "_")));
        write(&path, &text)?;
        reference.ask_file(&path)?;
        let ours = ours(&path, &text, &trace)?;
        let theirs = reference.answer()?;
        let compared = Compared::of(&ours, &theirs, setting.tolerance());
        let _ = writeln!(told, "{:30}{}", setting.name, compared.row(&theirs));
        wrong += &compared.wrong(setting.name, &path);
    }
    if wrong.is_empty() { Ok(told) } else { Err(told + &wrong) }
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

/// A trace of the clients the program draws, in eighths of tokens and seconds: the first prompt
/// is uniform, later ones, answers and times between turns exponential, the turns geometric.
fn sessions(seed: u64, count: u64) -> String {
    let mut rng = Rng::new(seed);
    let mut exponential = |mean: f64| -mean * rng.unit().ln();
    let eighths = |x: f64| (x * 8.0).round() / 8.0;
    let mut text = "session,turn,new,out,think\n".to_owned();
    for session in 0..count {
        for turn in 1.. {
            let drawn = exponential(1.0);
            let new = if turn == 1 { 1_000.0 + 2_000.0 * (-drawn).exp() } else { 500.0 * drawn };
            let (out, think) = (1.0 + exponential(200.0), exponential(3.0));
            let _ = writeln!(text, "{session},{turn},{},{},{}", eighths(new), eighths(out), eighths(think));
            // One turn in ten is the last.
            if exponential(1.0) < -0.9_f64.ln() {
                break;
            }
        }
    }
    text
}

impl Setting {
    fn tolerance(&self) -> f64 {
        if self.binary { TOLERANCE_BINARY } else { TOLERANCE }
    }

    /// The program's text with the setting's numbers, a horizon, and a trace where it drew.
    fn program(&self, trace: &Path, horizon: f64) -> Result<String, String> {
        let path = root().join(SEED_PROGRAM);
        let mut text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let mut replace = |from: &str, to: &str| {
            let places = text.matches(from).count();
            text = text.replace(from, to);
            if places == 1 { Ok(()) } else { Err(format!("{SEED_PROGRAM} has `{from}` {places} times, not once")) }
        };
        replace("use \"../../lib", &format!("use \"{}", root().join("lib").display()))?;
        for (draw, instead) in DRAWS {
            replace(draw, &instead.replace("TRACE", &trace.display().to_string()))?;
        }
        replace("horizon 2000; warmup 200;", &format!("horizon {horizon}; warmup {};", (horizon / 7.0).floor()))?;
        if let Some(draw) = text.lines().find(|line| line.contains('~')) {
            return Err(format!("{SEED_PROGRAM} draws once more: {draw}"));
        }
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        for (name, value) in self.sets.iter().chain(if self.binary { &BINARY[..] } else { &[] }) {
            let begins = format!("let {name} = ");
            let line = lines.iter_mut().find(|line| line.starts_with(&begins));
            *line.ok_or_else(|| format!("{SEED_PROGRAM} has no `{begins}`"))? = format!("{begins}{value};");
        }
        Ok(lines.join("\n") + "\n")
    }
}

fn ours(path: &Path, text: &str, trace: &Path) -> Result<Answer, String> {
    let program = program::link(&path.to_string_lossy(), text, &Settings::default())?;
    let file = File::open(trace).map_err(|e| format!("{}: {e}", trace.display()))?;
    let sessions = TraceFile::read(BufReader::new(file), BadRows::Refuse);
    let sessions = sessions.map_err(|e| format!("{}: {e}", trace.display()))?;
    let options = Options { record: true, ..Options::default() };
    let outcome = simulate(&program, Some(&sessions), &options, &mut |_, _| true);
    Ok(ran(&program, &outcome.map_err(|e| format!("{}: {}", path.display(), e.message))?))
}

/// Two answers, number by number.
struct Compared {
    numbers: u64,
    /// The largest difference, of max(|x|, 1).
    farthest: f64,
    /// The largest difference of a figure of the report, of |x|.
    figures_farthest: f64,
    differences: Vec<String>,
}

impl Compared {
    fn of(ours: &Answer, theirs: &Answer, tolerance: f64) -> Self {
        let mut compared = Self { numbers: 0, farthest: 0.0, figures_farthest: 0.0, differences: Vec::new() };
        let mut near = |a: f64, b: f64| {
            let off = (a - b).abs() / b.abs().max(1.0);
            compared.numbers += 1;
            compared.farthest = compared.farthest.max(off);
            off <= tolerance
        };
        compare_by(&mut near, ours, theirs, &mut compared.differences);
        let mut near = |a: f64, b: f64| {
            let off = if a == b { 0.0 } else { (a - b).abs() / b.abs() };
            compared.figures_farthest = compared.figures_farthest.max(off);
            off <= tolerance
        };
        compare_by(&mut near, &report(ours), &report(theirs), &mut compared.differences);
        compared
    }

    fn row(&self, theirs: &Answer) -> String {
        let longest = |part: &str, column: &str| -> usize {
            let rows = theirs.at(part).and_then(Value::as_object);
            let long = |row: &Value| row.pointer(column).and_then(Value::as_array).map_or(0, Vec::len);
            rows.map_or(0, |rows| rows.values().map(long).sum())
        };
        let (samples, changes) = (longest("/samples", "/samples"), longest("/gauge_points", ""));
        let pools = theirs.at("/report/pools").and_then(Value::as_array);
        let all = |figure: &str| pools.into_iter().flatten().filter_map(|pool| pool[figure].as_u64()).sum::<u64>();
        let turns = theirs.at("/report/turns").and_then(Value::as_u64).unwrap_or(0);
        let (evicted, preempted) = (all("evicted_entries"), all("preemptions"));
        let Self { numbers, farthest, figures_farthest, .. } = self;
        format!(
            "{turns:>8}{evicted:>9}{preempted:>9}{samples:>9}{changes:>9}{numbers:>9}   {farthest:.0e}   {figures_farthest:.0e}"
        )
    }

    /// What differs, for a person; nothing if nothing does.
    fn wrong(&self, name: &str, path: &Path) -> String {
        if self.differences.is_empty() {
            return String::new();
        }
        let mut said = format!("{name}: {} differ ({})\n", self.differences.len(), path.display());
        let (recorded, figures): (Vec<&String>, Vec<&String>) =
            self.differences.iter().partition(|at| at.starts_with("samples/") || at.starts_with("gauge_points/"));
        for difference in figures.into_iter().chain(recorded.iter().take(TOLD).copied()) {
            let _ = writeln!(said, "  {difference}");
        }
        if recorded.len() > TOLD {
            let _ = writeln!(said, "  and {} more samples and changes", recorded.len() - TOLD);
        }
        said
    }
}

/// An answer without what was recorded.
fn report(answer: &Answer) -> Answer {
    match answer {
        Answer::Ran(ran) => Answer::Ran(json!({ "report": ran["report"] })),
        other => other.clone(),
    }
}
