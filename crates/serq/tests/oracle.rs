//! `serq oracle` on the scenarios of `tests/oracle`, against the recorded answers of vLLM's schedulers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs `serq oracle` in the workspace's folder: its status, and what it said on standard output and
/// standard error.
fn oracle(arguments: &[&str]) -> (i32, String, String) {
    oracle_recorded(arguments, "tests/oracle/recorded.jsonl.gz")
}

fn oracle_recorded(arguments: &[&str], recorded: &str) -> (i32, String, String) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new(env!("CARGO_BIN_EXE_serq"))
        .arg("oracle")
        .args(arguments)
        .args(["--recorded", recorded])
        .current_dir(root)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// The scenarios, as paths from the workspace's folder.
fn scenarios() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Vec::new();
    for kind in ["colocated", "pull", "push", "asynchronous"] {
        let folder = format!("tests/oracle/{kind}");
        for file in fs::read_dir(root.join(&folder)).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            found.push(format!("{folder}/{name}"));
        }
    }
    found.sort();
    found
}

/// Scenarios of one name in two folders are two: there are a `pull/alone.sq` and a `push/alone.sq`.
#[test]
fn every_scenario_goes_as_with_vllms_schedulers() {
    go_as_recorded(&[], "tests/oracle/recorded.jsonl.gz");
}

#[test]
fn and_with_asynchronous_ones() {
    go_as_recorded(&["--set", "pipelined=1"], "tests/oracle/recorded_asynchronous.jsonl.gz");
}

fn go_as_recorded(settings: &[&str], recorded: &str) {
    let scenarios = scenarios();
    let arguments: Vec<&str> = scenarios.iter().map(String::as_str).chain(settings.iter().copied()).collect();
    let (status, out, err) = oracle_recorded(&arguments, recorded);
    assert_eq!((status, &err[..]), (0, ""), "{out}");
    let mut lines = out.lines();
    for scenario in &scenarios {
        assert_eq!(lines.next(), Some(&format!("{scenario}: the same")[..]));
    }
    let last = lines.next().expect("there is a summary");
    assert!(last.starts_with(&format!("{} scenarios, ", scenarios.len())), "{last}");
    assert!(last.ends_with(" steps of engines compared: 0 differ"), "{last}");
}

/// A read that takes a step longer is another scenario, and an answer to the old one is none to it.
#[test]
fn a_changed_scenario_is_to_be_recorded_anew() {
    let (status, out, err) = oracle(&["tests/oracle/pull/alone.sq", "--set", "k=7"]);
    assert_eq!((status, &out[..]), (1, ""));
    assert_eq!(
        err,
        "error: alone was another scenario when tests/oracle/recorded.jsonl.gz was recorded: record it anew (--record)\n"
    );
}

/// `tests/oracle/colocated.sq` as a file of this test's own, with a change.
fn colocated(name: &str, change: impl Fn(String) -> String) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = fs::read_to_string(root.join("tests/oracle/colocated.sq")).unwrap();
    let text = text.replace("../..", root.to_str().unwrap());
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, change(text)).unwrap();
    path
}

#[test]
fn a_scenario_that_was_never_recorded_has_no_answer() {
    let path = colocated("never_recorded.sq", |text| text);
    let (status, out, err) = oracle(&[path.to_str().unwrap()]);
    assert_eq!((status, &out[..]), (1, ""));
    assert_eq!(err, "error: tests/oracle/recorded.jsonl.gz has no answer to never_recorded\n");
}

#[test]
fn the_constants_that_a_program_lacks_to_be_a_scenario_are_named() {
    let path = colocated("lacks.sq", |text| {
        let text = text.replace("let max_seqsD = 16;", "").replace("cap max_seqsD", "cap 16");
        text.replace("let max_model_len = 4096;", "")
    });
    let (status, out, err) = oracle(&[path.to_str().unwrap()]);
    assert_eq!((status, &out[..]), (1, ""));
    let missing = "`let max_seqsD` is missing; `let max_model_len` is missing";
    assert_eq!(err, format!("error: lacks is no scenario: {missing}\n"));
}

/// Of one scenario what befell every request is printed, and nothing that befell nobody.
#[test]
fn of_one_scenario_every_request_is_told() {
    let (status, out, err) = oracle(&["tests/oracle/colocated/self_preempted.sq"]);
    assert_eq!((status, &err[..]), (0, ""));
    let rows: Vec<Vec<&str>> = out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["request", "decode", "arrive", "admit", "first", "token", "finish", "preempted"]);
    assert!(rows[1][0] == "r0" && rows[2][0] == "r1", "{out}");
    let (_, two, _) = oracle(&["tests/oracle/colocated/self_preempted.sq", "tests/oracle/colocated/alone.sq"]);
    assert_eq!(two.lines().count(), 3, "{two}");
}

/// What would be compared as two different scenarios, or would stop one side, is refused.
#[test]
fn what_only_looks_like_a_scenario_is_refused_in_a_sentence() {
    let two = [("[0];", "[0, 0];"), ("[64]", "[64, 64]"), ("[8]", "[8, 8]"), ("[inf]", "[3]")];
    for (name, changes, wrong) in [
        ("a_list_of_one", &two[..1], "its lists of requests are not equally long"),
        ("aborts_of_one", &two, "its lists of requests are not equally long"),
        ("shares_too_much", &[("let shared = [0];", "let shared = [65];")], "r0 shares more than its prompt"),
        ("too_large", &[("blocksD = 1000", "blocksD = 4")], "r0 does not fit into the blocks of a D"),
        (
            "sessions",
            &[("batch(len(arrives))", "batch(2)")],
            "not every request has a session: `arrive batch(len(arrives))`",
        ),
        ("no_pool", &[("kv", "kw")], "there is no pool `D.kv` of each"),
    ] {
        let change = |text: String| changes.iter().fold(text, |text, (from, to)| text.replace(from, to));
        let path = colocated(&format!("{name}.sq"), change);
        let (status, out, err) = oracle(&[path.to_str().unwrap()]);
        assert_eq!((status, &out[..]), (1, ""), "{name}");
        assert_eq!(err, format!("error: {name} is no scenario: {wrong}\n"));
    }
}

/// At the horizon one side has what a step brings and the other has not.
#[test]
fn a_scenario_is_over_before_its_horizon() {
    let path = colocated("short.sq", |text| text.replace("horizon 100000", "horizon 3"));
    let (status, out, err) = oracle(&[path.to_str().unwrap()]);
    assert_eq!((status, &out[..]), (1, ""));
    let path = path.display();
    assert_eq!(err, format!("error: {path}: the scenario is not over at its horizon, 3: time 3\n"));
}

/// 0 and -0 are one group, as they are one number.
#[test]
fn a_group_of_minus_zero_is_that_of_zero() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let name = "token_on_the_way_uncached.sq";
    let text = fs::read_to_string(root.join("tests/oracle/asynchronous").join(name)).unwrap();
    assert!(text.contains("[0, 1, 2, 0]"), "{text}");
    let text = text.replace("[0, 1, 2, 0]", "[0, 1, 2, -0]").replace("..", root.join("tests/oracle").to_str().unwrap());
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("minus_zero");
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    let (status, out, err) = oracle(&[path.to_str().unwrap()]);
    assert_eq!((status, &err[..]), (0, ""), "{out}");
}
