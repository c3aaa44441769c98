//! How sure figures are: many seeds, as many as `--precision` takes, and what is too short, their
//! warm-up or a single run.

mod binary;

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

use binary::serq;

const DESK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/desk.sq");
/// `mm1.sq`, short enough for a test.
const RUN: [&str; 6] = [
    "run",
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/queueing/mm1.sq"),
    "--horizon",
    "2000",
    "--warmup",
    "200",
];

fn json(arguments: &[&str]) -> Value {
    let (status, out, err) = serq(arguments);
    assert_eq!((status, &err[..]), (0, ""), "{arguments:?}");
    serde_json::from_str(&out).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

/// The seeds chosen, given as `--seeds`, have the interval; five fewer do not.
#[test]
fn the_seeds_taken_are_enough_and_needed() {
    let precise = json(&[&RUN[..], &["--precision", "sojourn=3%", "--json"]].concat());
    let seeds: Vec<u64> = precise["seeds"].as_array().unwrap().iter().map(|seed| seed.as_u64().unwrap()).collect();
    assert_eq!(seeds, (1..=seeds.len() as u64).collect::<Vec<_>>());
    let share = |count: usize| {
        let report = json(&[&RUN[..], &["--seeds", &format!("1..{count}"), "--json"]].concat());
        let mean = &report["observes"]["sojourn"]["mean"];
        number(&mean["ci"]) / number(&mean["mean"])
    };
    assert!(share(seeds.len()) <= 0.03, "{}", share(seeds.len()));
    assert!(share(5) > 0.03 && share(seeds.len() / 2) > 0.03);
    let look = &precise["precision"][0];
    assert_eq!((look["figure"].as_str(), look["reached"].as_bool()), (Some("sojourn"), Some(true)));
    assert_eq!(look["ci"], precise["observes"]["sojourn"]["mean"]["ci"]);
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let arguments =
        [&RUN[..], &["--precision", "sojourn=4%", "--precision", "sojourn.p99=1.5", "--seed", "7"]].concat();
    let reports: Vec<_> = ["1", "2", "8"].iter().map(|jobs| serq(&[&arguments[..], &["-j", jobs]].concat())).collect();
    assert_eq!(reports[0].0, 0, "{}", reports[0].2);
    assert!(reports[0].1.contains("seeds 7.."), "{}", reports[0].1);
    assert_eq!(reports[0], reports[1]);
    assert_eq!(reports[0], reports[2]);
}

#[test]
fn the_harder_of_two_targets_counts() {
    let seeds = |precision: &[&str]| {
        let report = json(&[&RUN[..], precision, &["--json"]].concat());
        report["seeds"].as_array().unwrap().len()
    };
    let (easy, hard) = (["--precision", "sojourn=10%"], ["--precision", "at_desk=0.05"]);
    assert!(seeds(&easy) < seeds(&hard));
    assert_eq!(seeds(&[easy, hard].concat()), seeds(&hard));
}

#[test]
fn what_is_always_the_same_takes_five_seeds() {
    assert_eq!(json(&["run", DESK, "--precision", "sojourn=1%", "--json"])["seeds"].as_array().unwrap().len(), 5);
}

/// A precision nobody has the time for: what is done is reported, and what it would take is said.
#[test]
fn too_little_time_is_said_with_the_seeds_it_would_take() {
    let arguments = ["--precision", "sojourn=0.01%", "--max-wall", "0.5", "--json"];
    let (status, out, err) = serq(&[&RUN[..], &arguments].concat());
    assert_eq!(status, 1);
    assert!(err.contains("the precision is not reached with") && err.contains("more, some"), "{err}");
    let report: Value = serde_json::from_str(&out).unwrap();
    let seeds = report["seeds"].as_array().unwrap().len();
    assert!(err.contains(&format!("with {seeds} seeds")), "{seeds}: {err}");
    let look = &report["precision"][0];
    assert_eq!(look["reached"], false);
    let needed = seeds as f64 * (number(&look["ci"]) / (0.0001 * number(&look["mean"]))).powi(2);
    assert!(needed > 100_000.0, "no machine does {needed} in half a second");
}

#[test]
fn a_figure_without_a_name_or_a_mean_is_refused() {
    for (figure, sentence) in [
        ("sojorn=1%", "no figure is named `sojorn`: is it `sojourn`?"),
        ("sojourn.cv=1%", "no figure is named"),
        ("kv.cached.x=1", "no figure is named"),
    ] {
        let (status, out, err) = serq(&["run", DESK, "--precision", figure]);
        assert_eq!((status, &out[..]), (1, ""), "{figure}");
        assert!(err.contains(sentence), "{err}");
    }
    // Nobody leaves before 0.5: there are no samples.
    let (status, _, err) = serq(&["run", DESK, "--horizon", "0.5", "--precision", "sojourn=1%"]);
    assert!(status == 1 && err.contains("sojourn has no finite mean over the first 5 seeds"), "{err}");
}

/// A desk that is nearly always busy takes long to fill: from empty, the first customers wait less
/// than all later ones. After a warm-up they do not.
#[test]
fn a_start_up_is_noted_and_gone_with_a_warm_up() {
    let run = |times: [&str; 4]| {
        let many = ["--set", "lambda=0.9", "--seeds", "1..200"];
        let (status, out, err) = serq(&[&RUN[..2], &times, &many].concat());
        assert_eq!((status, &err[..]), (0, ""));
        out
    };
    let cold = run(["--horizon", "100", "--warmup", "0"]);
    assert!(cold.contains("note: observe sojourn: mean ") && cold.contains("--warmup 50 --horizon 150"), "{cold}");
    let warm = run(["--horizon", "1100", "--warmup", "1000"]);
    assert!(!warm.contains("note: observe"), "{warm}");
}

/// The note that a run is too short, if there is one; with a program on standard input.
fn noted(arguments: &[&str], program: &str) -> Option<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_serq"));
    let mut child = command.args(arguments).arg("--json").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // A run that reads a file does not wait for its input.
    let _ = child.stdin.take().unwrap().write_all(program.as_bytes());
    let report: Value = serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap();
    let notes = report["notes"].as_array().unwrap();
    let short = notes.iter().find(|note| note["kind"] == "short")?;
    Some(short["text"].as_str().unwrap().to_owned())
}

/// One customer a time unit and a desk twice as fast. 100 samples have a p99, 99 have not.
#[test]
fn a_run_of_fewer_than_a_hundred_samples_is_noted() {
    let run = |arrivals: &str| {
        let load = ["--set", "lambda=1", "--set", "mu=2", "--warmup", "0", "--horizon", "1e4"];
        noted(&[&RUN[..2], &load, &["--arrivals", arrivals]].concat(), "")
    };
    // 99 × 100 / 99 and a tenth more.
    let few = "too short a run: fewer than 100 samples of sojourn (99); try --arrivals 110, or --seeds 1..20";
    assert_eq!(run("99").as_deref(), Some(few));
    assert_eq!(run("100"), None);
    // 40 samples are the first that have an interval: the count is what is told of them.
    assert!(run("40").unwrap().contains("sojourn (40); try --arrivals 110,"));
}

#[test]
fn a_run_whose_interval_is_wide_is_noted_and_the_longer_one_tried_is_not() {
    let arguments = |horizon| [&RUN[..2], &["--set", "lambda=0.9", "--warmup", "100", "--horizon", horizon]].concat();
    let wide = noted(&arguments("1000"), "").unwrap();
    let report = json(&[&arguments("1000")[..], &["--json"]].concat());
    let sojourn = &report["observes"]["sojourn"];
    let share = number(&sojourn["ci"]) / number(&sojourn["mean"]);
    assert!(share > 0.25 && number(&sojourn["count"]) >= 100.0, "{sojourn}");
    let told = format!("an interval above 25 % of the mean: sojourn (±{:.0} %); try --horizon ", 100.0 * share);
    assert!(wide.contains(&told), "{wide}");
    // A half-width falls with the root of the counted time.
    let horizon = wide.split("--horizon ").nth(1).unwrap().split(',').next().unwrap();
    let expected = 1.1 * (100.0 + 900.0 * (share / 0.25).powi(2));
    assert!((horizon.parse::<f64>().unwrap() / expected - 1.0).abs() < 0.05, "{horizon}, not {expected}");
    assert_eq!(noted(&arguments(horizon), ""), None);
}

/// What a program notes in which sessions come by some law and observe some value.
fn noted_of(law: &str, value: &str) -> Option<String> {
    let program = format!(
        "stage pause : delay;\nworkload {{ arrive {law}; }}\nsession {{ run pause (1); observe x = {value}; end; }}\nrun {{ horizon 20; }}\n"
    );
    noted(&["run", "-"], &program)
}

#[test]
fn a_scene_is_as_long_as_it_is_meant_to_be() {
    for (law, value) in [("batch(6)", "~exp(1)"), ("renewal(2)", "now"), ("closed(3)", "now")] {
        assert_eq!(noted_of(law, value), None, "{law}");
    }
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/trace/replay.sq");
    assert_eq!(noted(&["run", trace], ""), None);
    for (law, value) in [
        ("poisson(1)", "now"),
        ("poisson(0) for 1, (1)", "now"),
        ("bursts(2) for 3, (1) for 3", "now"),
        ("renewal(~exp(2))", "now"),
        ("renewal(2)", "~exp(1)"),
        ("closed(3)", "~exp(1)"),
    ] {
        let note = noted_of(law, value).unwrap();
        assert!(note.contains("fewer than 100 samples of x (") && note.contains("try --horizon "), "{law}: {note}");
    }
}

#[test]
fn equal_samples_need_no_others_and_nobody_waits_for_those_who_do_not_come() {
    assert_eq!(noted_of("poisson(1)", "0.1"), None);
    let note = noted_of("poisson(1) for 20", "~exp(1)").unwrap();
    assert!(note.ends_with("); try --seeds 1..20"), "{note}");
}
