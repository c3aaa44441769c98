//! The transfer protocol under random faults, and what its checks are worth: bugs planted on purpose.
//!
//! A schedule is a function of its seed, so the answer is the same with any number of threads, and the seed of a
//! failure is all that is needed to see it again, event by event.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serq_transfer::simulated::{self, Outcome, Report, exhaustive};

use crate::parallel;
use crate::program::root;

/// How many, which, and what else.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// How many schedules.
    #[arg(long, default_value_t = 100_000)]
    pub schedules: u64,
    /// Seed of the first one; the others follow.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Runs the schedule of this seed and prints its events.
    #[arg(long, conflicts_with_all = ["schedules", "exhaustive", "planted"])]
    pub only: Option<u64>,
    /// Places up to this many faults before every event of a small schedule, in every setting.
    #[arg(long, value_name = "FAULTS", conflicts_with_all = ["schedules", "planted"])]
    pub exhaustive: Option<u32>,
    /// Plants the bugs of crates/serq-transfer/tests/planted/, one at a time, and counts schedules until each is seen.
    #[arg(long)]
    pub planted: bool,
}

/// Schedules that are one thread's at a time.
const CHUNK: u64 = 500;

/// Does what is asked for.
///
/// # Errors
///
/// What was violated, with the command that shows it; or a bug that was planted and not seen.
pub fn faults(arguments: &Arguments) -> Result<String, String> {
    if let Some(seed) = arguments.only {
        return only(seed);
    }
    if let Some(faults) = arguments.exhaustive {
        return enumerate(faults);
    }
    if arguments.planted {
        return planted(arguments.schedules.min(10_000), arguments.seed);
    }
    let started = Instant::now();
    let report = run(arguments.seed, arguments.schedules)?;
    Ok(format!("{}{:.1} s", text(&report), started.elapsed().as_secs_f64()))
}

/// Runs schedules on all cores.
///
/// # Errors
///
/// The first seed whose schedule violates something, whichever was found first.
pub fn run(seed: u64, schedules: u64) -> Result<Report, String> {
    let end = seed + schedules;
    let chunks: Vec<(u64, u64)> =
        (0..schedules.div_ceil(CHUNK)).map(|at| (seed + at * CHUNK, end.min(seed + (at + 1) * CHUNK))).collect();
    let reports = parallel::map(&chunks, |&(from, to)| {
        let mut report = Report::default();
        for seed in from..to {
            report.add(&simulated::schedule(seed).map_err(|violation| (seed, violation))?);
        }
        Ok(report)
    });
    let mut all = Report::default();
    for report in reports {
        match report {
            Ok(report) => all.add(&report),
            Err((seed, violation)) => {
                let again = format!("cargo xtask faults --only {seed}");
                return Err(format!("seed {seed}: {violation}\nonce more, event by event: {again}"));
            }
        }
    }
    Ok(all)
}

fn only(seed: u64) -> Result<String, String> {
    let lines = simulated::trace(seed).join("\n");
    match simulated::schedule(seed) {
        Ok(report) => Ok(format!("{lines}\n{}", text(&report))),
        Err(violation) => Err(format!("{lines}\nseed {seed}: {violation}")),
    }
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{} schedules, {} messages", report.schedules, report.messages);
    let requests: u64 = report.outcomes.values().sum();
    let _ = writeln!(text, "{requests} requests, each with an end:");
    for (outcome, count) in &report.outcomes {
        let how = match outcome {
            Outcome::Loaded => "the right text, from KV handed over".into(),
            Outcome::Recomputed => "the right text, from KV computed again".into(),
            Outcome::Aborted => "aborted by the client".into(),
            Outcome::Rejected => "refused at the decoder's door".into(),
            Outcome::PrefillFailed => "prefill failed, or its process died".into(),
            Outcome::ProcessLost => "decoder died".into(),
            Outcome::Failed(failure) => format!("error: {failure}"),
        };
        let _ = writeln!(text, "{count:>10}  {how}");
    }
    let _ = writeln!(text, "{} fences, {} leases ran out", report.fences, report.leases_expired);
    let _ = writeln!(text, "{:>10}  tokens' KV copied, each into a block of its transfer", report.cells_copied);
    let _ =
        writeln!(text, "{:>10}  tokens' KV read by decode steps, each the undisaggregated run's", report.cells_read);
    let _ = writeln!(text, "{:>10}  blocks left", report.blocks_left);
    text
}

fn enumerate(faults: u32) -> Result<String, String> {
    let started = Instant::now();
    let settings = exhaustive::Setting::all();
    let answers = parallel::map(&settings, |setting| exhaustive::enumerate(*setting, faults));
    let mut text = String::new();
    for (setting, answer) in settings.iter().zip(answers) {
        let exhaustive::Enumerated { schedules, pruned, events, .. } = answer?;
        let _ = writeln!(
            text,
            "{schedules:>9} schedules, {pruned:>9} equal to one of them, {events:>10} events  {setting:?}"
        );
    }
    Ok(format!("{text}{:.1} s", started.elapsed().as_secs_f64()))
}

/// A bug as one line of the source and what it becomes.
struct Plant {
    name: String,
    patch: PathBuf,
}

/// The bugs there are, by name.
fn plants(crate_folder: &Path) -> Result<Vec<Plant>, String> {
    let mut plants = Vec::new();
    for entry in fs::read_dir(crate_folder.join("tests/planted")).map_err(|e| format!("tests/planted: {e}"))? {
        let patch = entry.map_err(|e| format!("tests/planted: {e}"))?.path();
        if patch.extension().is_some_and(|extension| extension == "patch") {
            let name = patch.file_stem().expect("a file has a name").to_string_lossy().into_owned();
            plants.push(Plant { name, patch });
        }
    }
    plants.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(plants)
}

/// Plants each bug in a copy of the crate, and runs schedules until it is seen.
fn planted(schedules: u64, seed: u64) -> Result<String, String> {
    let crate_folder = root().join("crates/serq-transfer");
    let folder = root().join("target/planted");
    let plants = plants(&crate_folder)?;
    let mut text = String::new();
    let sound = seen_after(&crate_folder, &folder, None, schedules, seed)?;
    if let Some((seed, violation)) = sound {
        return Err(format!("nothing is planted, and seed {seed} fails: {violation}"));
    }
    let mut missed = Vec::new();
    let mut counts = BTreeMap::new();
    for plant in &plants {
        match seen_after(&crate_folder, &folder, Some(plant), schedules, seed)? {
            Some((at, violation)) => {
                let count = at - seed + 1;
                counts.insert(plant.name.clone(), count);
                let _ = writeln!(text, "{:<36} seen after {count:>5} schedules: {violation}", plant.name);
            }
            None => missed.push(plant.name.clone()),
        }
    }
    if missed.is_empty() {
        Ok(format!("{text}{} bugs planted, all seen", counts.len()))
    } else {
        Err(format!("{text}not seen in {schedules} schedules: {}", missed.join(", ")))
    }
}

/// The first seed that fails with this bug, and how.
fn seen_after(
    crate_folder: &Path,
    folder: &Path,
    plant: Option<&Plant>,
    schedules: u64,
    seed: u64,
) -> Result<Option<(u64, String)>, String> {
    let copy = folder.join("source");
    if copy.exists() {
        fs::remove_dir_all(&copy).map_err(|e| format!("{}: {e}", copy.display()))?;
    }
    copy_folder(&crate_folder.join("src"), &copy)?;
    if let Some(plant) = plant {
        let patch = fs::read_to_string(&plant.patch).map_err(|e| format!("{}: {e}", plant.patch.display()))?;
        apply(&patch, &copy).map_err(|why| format!("{}: {why}", plant.name))?;
    }
    // The two modules the bugs are in and around need nothing from outside the crate, so they are compiled alone.
    let main = format!("{PROTOCOL_ONLY}{MAIN}");
    fs::write(copy.join("planted.rs"), main).map_err(|e| e.to_string())?;
    let program = folder.join("planted");
    let compiled = Command::new("rustc")
        .args(["--edition", "2024", "-C", "opt-level=1", "-C", "debug-assertions=on", "-A", "warnings"])
        // From one bug to the next a line changes.
        .arg("-C")
        .arg(format!("incremental={}", folder.join("incremental").display()))
        .arg("-o")
        .arg(&program)
        .arg(copy.join("planted.rs"))
        .output()
        .map_err(|e| format!("rustc: {e}"))?;
    if !compiled.status.success() {
        let name = plant.map_or("nothing planted", |plant| &plant.name);
        return Err(format!("{name}: {}", String::from_utf8_lossy(&compiled.stderr)));
    }
    let ran = Command::new(&program)
        .args([seed.to_string(), schedules.to_string()])
        .output()
        .map_err(|e| format!("{}: {e}", program.display()))?;
    let answer = String::from_utf8_lossy(&ran.stdout);
    match answer.trim().split_once(' ') {
        Some(("seen", rest)) => {
            let (at, violation) = rest.split_once(' ').ok_or("an answer without a violation")?;
            Ok(Some((
                at.parse().map_err(|_| "an answer without a seed")?,
                violation.lines().next().unwrap_or("").into(),
            )))
        }
        Some(("sound", _)) => Ok(None),
        _ => Err(format!("{}: {answer}{}", program.display(), String::from_utf8_lossy(&ran.stderr))),
    }
}

const PROTOCOL_ONLY: &str = "pub mod protocol;\npub mod simulated;\n";

const MAIN: &str = r#"
fn main() {
    std::panic::set_hook(Box::new(|_| {}));
    let numbers: Vec<u64> = std::env::args().skip(1).map(|text| text.parse().unwrap()).collect();
    for seed in numbers[0]..numbers[0] + numbers[1] {
        if let Err(violation) = simulated::schedule(seed) {
            println!("seen {seed} {violation}");
            return;
        }
    }
    println!("sound {}", numbers[1]);
}
"#;

fn copy_folder(from: &Path, to: &Path) -> Result<(), String> {
    fs::create_dir_all(to).map_err(|e| format!("{}: {e}", to.display()))?;
    for entry in fs::read_dir(from).map_err(|e| format!("{}: {e}", from.display()))? {
        let entry = entry.map_err(|e| e.to_string())?;
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target).map_err(|e| format!("{}: {e}", target.display()))?;
        }
    }
    Ok(())
}

/// Applies a patch to the sources in a folder.
fn apply(patch: &str, source: &Path) -> Result<(), String> {
    let (path, text) = patched(patch, source)?;
    fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))
}

/// A file and its text after a patch of one hunk: the lines it takes and keeps are found wherever they are, once.
fn patched(patch: &str, source: &Path) -> Result<(PathBuf, String), String> {
    let file = patch.lines().find_map(|line| line.strip_prefix("+++ b/src/")).ok_or("no line `+++ b/src/…`")?;
    let (mut before, mut after) = (String::new(), String::new());
    for line in patch.lines().skip_while(|line| !line.starts_with("@@")).skip(1) {
        let (sign, rest) = line.split_at_checked(1).unwrap_or((" ", ""));
        if sign != "+" {
            before += rest;
            before.push('\n');
        }
        if sign != "-" {
            after += rest;
            after.push('\n');
        }
    }
    let path = source.join(file);
    let text = fs::read_to_string(&path).map_err(|e| format!("{file}: {e}"))?;
    match text.matches(&before).count() {
        1 => Ok((path, text.replace(&before, &after))),
        count => Err(format!("{file} has the lines of the patch {count} times:\n{before}")),
    }
}

#[cfg(test)]
mod tests {
    use super::{fs, patched, plants, root};

    #[test]
    fn every_planted_bug_still_has_its_place() {
        let folder = root().join("crates/serq-transfer");
        let plants = plants(&folder).unwrap();
        assert!(plants.len() >= 6, "{}", plants.len());
        for plant in plants {
            let patch = fs::read_to_string(&plant.patch).unwrap();
            let (path, text) =
                patched(&patch, &folder.join("src")).unwrap_or_else(|why| panic!("{}: {why}", plant.name));
            assert_ne!(fs::read_to_string(path).unwrap(), text, "{}", plant.name);
        }
    }

    #[test]
    fn a_patch_whose_lines_are_gone_is_refused() {
        let patch = "why\n\n--- a/src/lib.rs\n+++ b/src/lib.rs\n@@ -1,1 +1,1 @@\n-nothing like it\n+or this\n";
        let why = patched(patch, &root().join("crates/serq-transfer/src")).unwrap_err();
        assert!(why.contains("0 times"), "{why}");
    }
}
