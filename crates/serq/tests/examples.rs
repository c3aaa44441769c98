//! The programs of `examples/`: they load without a word, are laid out canonically, run
//! without leaving anything behind, and keep the facts their headers state.
//!
//! A header states facts like this; `docs/examples.md` tells it to readers.
//!
//! ```text
//! // facts:                                          the run as the program has it
//! //   gauge prefiller_memory max 20                 exactly (within 1e-9)
//! // facts (thr = 1, seeds 1..3, horizon 400):       with settings; the mean over the seeds
//! //   observe ttft mean 0.0295 ±0.002
//! //   pool P.kv[0] rejected 0
//! //   run ended 6
//! ```
//!
//! A fact is what (`observe`, `gauge`, `ttft`, `stage`, `pool`, `run`), whose (not for `run`;
//! of `ttft`, a part or `total`), which figure, named as in the JSON report, and its value.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::Value;
use serq_ir::Program;
use serq_lang::{Settings, compile, load};
use serq_sim::trace::{BadRows, TraceFile};
use serq_sim::{Options, simulate};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every `.sq` below a folder of the repository.
fn programs(folder: &str) -> Vec<PathBuf> {
    fn below(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("the folder is there") {
            let path = entry.expect("it can be listed").path();
            if path.is_dir() {
                below(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "sq") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    below(&root().join(folder), &mut found);
    found.sort();
    assert!(!found.is_empty(), "there are programs in {folder}");
    found
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn name(path: &Path) -> String {
    path.strip_prefix(root()).expect("it is ours").display().to_string()
}

/// The linked program; any diagnostic, a warning too, is a failure.
fn link(path: &Path, settings: &Settings) -> Result<Program, String> {
    let mut read = |path: &str| fs::read_to_string(path).map_err(|error| error.to_string());
    let (mut sources, mut found) = load(path.to_str(), &text(path), &mut read);
    let (program, more) = compile(&mut sources, settings);
    found.extend(more);
    match program {
        Some(program) if found.is_empty() => Ok(program),
        _ => Err(serq_lang::diagnostic::render(&sources, &found, serq_lang::diagnostic::Style::Plain)),
    }
}

#[test]
fn every_example_loads_without_a_word() {
    for path in programs("examples") {
        if let Err(found) = link(&path, &Settings::default()) {
            panic!("{}:\n{found}", name(&path));
        }
    }
}

#[test]
fn every_example_and_library_is_laid_out_canonically() {
    for path in programs("examples").into_iter().chain(programs("lib")) {
        let text = text(&path);
        let laid_out = serq_lang::format(&text).unwrap_or_else(|found| panic!("{}: {found:?}", name(&path)));
        assert!(text == laid_out, "`serq fmt {}` changes it", name(&path));
    }
}

/// `use` shares no queues, so the text is there twice. It must not drift.
#[test]
fn four_and_eight_is_two_and_two_with_two_numbers_changed() {
    let folder = root().join("examples/pd-disaggregation");
    let body = |file: &str| {
        let text = text(&folder.join(file));
        let start = text.find("use \"").expect("the header ends at the `use`");
        text[start..].to_owned()
    };
    let two = body("llmd_nixl_pull.sq");
    let four = two.replace("let NP = 2;", "let NP = 4;").replace("let ND = 2;", "let ND = 8;");
    assert_ne!(two, four);
    assert_eq!(body("llmd_4p8d.sq"), four);
}

/// They are compared cell by cell, so only the engines may differ.
#[test]
fn the_two_vllm_programs_have_one_deployment_one_router_and_one_workload() {
    let program = |file: &str| text(&root().join("examples/pd-disaggregation").join(file));
    let (first, second) = (program("llmd_nixl_pull.sq"), program("vllm_0_32_pull.sq"));
    let between = |text: &str, from: &str, to: &str| {
        let start = text.find(from).unwrap_or_else(|| panic!("`{from}` is there"));
        let length = text[start..].find(to).unwrap_or_else(|| panic!("`{to}` follows `{from}`"));
        text[start..start + length].to_owned()
    };
    let lines_but = |text: &str, words: &[&str]| {
        let kept = text.lines().filter(|line| !words.iter().any(|word| line.contains(word)));
        kept.map(|line| format!("{line}\n")).collect::<String>()
    };
    let engines = ["let notice", "let pipelined", "work(P[i])", "observe lease", "observe local_tokens"];
    for (from, to) in [("// Deployment.", "queue P[NP]"), ("workload {", "run {")] {
        let [first, second] = [&first, &second].map(|text| lines_but(&between(text, from, to), &engines));
        assert!(!first.is_empty());
        assert_eq!(first, second);
    }
    let last = |text: &str| text.lines().last().expect("it says how long it runs").to_owned();
    assert_eq!(last(&first), last(&second));
    for setting in ["budget B;", "cost step_time(tokens, kv_decode + kv_prefill);", "share maxmin"] {
        assert_eq!(first.matches(setting).count(), second.matches(setting).count(), "{setting}");
    }
}

/// One fact of a header.
struct Fact {
    words: Vec<String>,
    value: f64,
    tolerance: f64,
    line: String,
}

/// Facts that hold in one set of runs.
struct Claim {
    path: PathBuf,
    settings: Settings,
    seeds: Vec<Option<u64>>,
    facts: Vec<Fact>,
}

/// Reads the facts of a header. A misspelt one is an error, not a comment.
fn claims(path: &Path) -> Vec<Claim> {
    let mut claims: Vec<Claim> = Vec::new();
    let mut open = false;
    for line in text(path).lines().take_while(|line| line.starts_with("//")) {
        let line = line.trim_start_matches('/');
        if let Some(rest) = line.trim().strip_prefix("facts") {
            let rest = rest.trim().strip_suffix(':').unwrap_or_else(|| panic!("{}: `{line}` has no colon", name(path)));
            claims.push(claim(path, rest.trim()));
            open = true;
        } else if open && line.starts_with("   ") {
            claims.last_mut().expect("a claim is open").facts.push(fact(path, line.trim()));
        } else {
            open = false;
        }
    }
    for claim in &claims {
        assert!(!claim.facts.is_empty(), "{}: facts are announced and none follows", name(path));
    }
    claims
}

fn claim(path: &Path, settings: &str) -> Claim {
    let mut claim =
        Claim { path: path.to_owned(), settings: Settings::default(), seeds: vec![None], facts: Vec::new() };
    let inside = settings.trim_start_matches('(').trim_end_matches(')');
    for part in inside.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let bad = || -> ! { panic!("{}: `{part}` is no setting", name(path)) };
        let number = |word: &str| word.parse::<f64>().unwrap_or_else(|_| bad());
        if let Some((constant, value)) = part.split_once('=') {
            claim.settings.sets.push((constant.trim().into(), value.trim().into()));
        } else if let Some(seeds) = part.strip_prefix("seeds ") {
            let (first, last) = seeds.split_once("..").unwrap_or_else(|| bad());
            claim.seeds = (number(first) as u64..=number(last) as u64).map(Some).collect();
        } else if let Some(horizon) = part.strip_prefix("horizon ") {
            claim.settings.horizon = Some(number(horizon));
        } else if let Some(warmup) = part.strip_prefix("warmup ") {
            claim.settings.warmup = Some(number(warmup));
        } else {
            bad();
        }
    }
    claim
}

fn fact(path: &Path, line: &str) -> Fact {
    let bad = || -> ! { panic!("{}: `{line}` is no fact", name(path)) };
    let mut words: Vec<String> = line.split_whitespace().map(Into::into).collect();
    let mut tolerance = 1e-9;
    if words.last().is_some_and(|word| word.starts_with('±')) {
        let word = words.pop().expect("it has a last word");
        tolerance = word.trim_start_matches('±').parse().unwrap_or_else(|_| bad());
    }
    let value = words.pop().and_then(|word| word.parse().ok()).unwrap_or_else(|| bad());
    if words.len() != if words.first().is_some_and(|word| word == "run") { 2 } else { 3 } {
        bad();
    }
    Fact { words, value, tolerance, line: line.into() }
}

/// A figure of a report; none if the report has no such row or figure, or it is no number.
fn figure(report: &Value, words: &[String]) -> Option<f64> {
    let row = match &words[0][..] {
        "run" => report,
        "observe" => report.get("observes")?.get(&words[1])?,
        "gauge" => report.get("gauges")?.get(&words[1])?,
        "ttft" if words[1] == "total" => report.get("ttft")?.get("total")?,
        "ttft" => report.get("ttft")?.get("parts")?.get(&words[1])?,
        kind @ ("stage" | "pool") => {
            let (owner, index) = match words[1].split_once('[') {
                Some((owner, index)) => (owner, Some(index.strip_suffix(']')?.parse::<u64>().ok()?)),
                None => (&words[1][..], None),
            };
            let rows = report.get(format!("{kind}s"))?.as_array()?;
            rows.iter().find(|row| row["name"] == owner && row["index"].as_u64() == index)?
        }
        _ => return None,
    };
    row.get(words.last()?)?.as_f64()
}

/// What is wrong with a claim.
fn check(claim: &Claim) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut sums = vec![0.0; claim.facts.len()];
    for seed in &claim.seeds {
        let settings = Settings { seed: *seed, ..claim.settings.clone() };
        let program = match link(&claim.path, &settings) {
            Ok(program) => program,
            Err(found) => return vec![found],
        };
        let trace = program.workload.trace.as_ref().map(|named| {
            let path = claim.path.with_file_name(&named.path);
            let file = BufReader::new(File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", name(&path))));
            TraceFile::read(file, BadRows::Refuse).unwrap_or_else(|error| panic!("{}: {error}", name(&path)))
        });
        let outcome = match simulate(&program, trace.as_ref(), &Options::default(), &mut |_, _| true) {
            Ok(outcome) => outcome,
            Err(error) => return vec![format!("the run stops: {error:?}")],
        };
        for pool in &outcome.report.pools {
            if pool.left != 0.0 {
                wrong.push(format!("{} units of {} are nobody's at the end", pool.left, pool.name));
            }
        }
        let report = serde_json::to_value(&outcome.report).expect("a report is JSON");
        for (sum, fact) in sums.iter_mut().zip(&claim.facts) {
            match figure(&report, &fact.words) {
                Some(value) => *sum += value,
                None => return vec![format!("no such figure: {}", fact.line)],
            }
        }
    }
    for (sum, fact) in sums.iter().zip(&claim.facts) {
        let mean = sum / claim.seeds.len() as f64;
        if (mean - fact.value).abs() > fact.tolerance {
            wrong.push(format!("{}: it is {mean}", fact.line));
        }
    }
    wrong
}

#[test]
fn every_example_keeps_the_facts_of_its_header() {
    let mut all = Vec::new();
    for path in programs("examples") {
        let claims = claims(&path);
        assert!(!claims.is_empty(), "{} states no facts", name(&path));
        all.extend(claims);
    }
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    let workers = thread::available_parallelism().map_or(1, |count| count.get());
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(claim) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    for one in check(claim) {
                        wrong.lock().expect("nobody panics with it").push(format!("{}: {one}", name(&claim.path)));
                    }
                }
            });
        }
    });
    let mut wrong = wrong.into_inner().expect("nobody panics with it");
    wrong.sort();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
