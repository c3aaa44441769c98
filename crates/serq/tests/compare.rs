//! `serq compare`: two programs over the same seeds.

mod binary;

use serde_json::Value;

use binary::serq;

const DESK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/desk.sq");
const DESK_IR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/desk.json");
const MM1: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/queueing/mm1.sq");
const SHARING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/queueing/processor_sharing.sq");
const OTHER_DRAWS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/mm1_other_draws.sq");
/// Of `mm1.sq`, short enough for a test.
const SHORT: [&str; 4] = ["--horizon", "2000", "--warmup", "200"];

fn good(arguments: &[&str]) -> String {
    let (status, out, err) = serq(arguments);
    assert_eq!((status, &err[..]), (0, ""), "{arguments:?}");
    out
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&good(arguments)).unwrap()
}

fn refusal(arguments: &[&str], status: i32) -> String {
    let (ended, out, err) = serq(arguments);
    assert_eq!((ended, &out[..]), (status, ""), "{arguments:?}: {err}");
    err
}

/// The figures of one seed, by another way.
fn alone(arguments: &[&str], seed: u64) -> f64 {
    let seed = seed.to_string();
    let report = json(&[&["run", MM1, "--json", "--seed", &seed], &SHORT[..], arguments].concat());
    report["observes"]["sojourn"]["mean"].as_f64().unwrap()
}

#[test]
fn differences_are_those_of_the_single_runs_of_each_seed() {
    let compared =
        json(&[&["compare", MM1, MM1, "--set-b", "mu=1.02", "--seeds", "3,1,8", "--json"], &SHORT[..]].concat());
    let figure = &compared["figures"]["sojourn"];
    let mut differences = Vec::new();
    for (at, seed) in [3, 1, 8].into_iter().enumerate() {
        let (a, b) = (alone(&[], seed), alone(&["--set", "mu=1.02"], seed));
        assert_eq!(figure["a"]["per_seed"][at].as_f64(), Some(a));
        assert_eq!(figure["b"]["per_seed"][at].as_f64(), Some(b));
        differences.push(b - a);
    }
    let mean = differences.iter().sum::<f64>() / 3.0;
    let variance = differences.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / 2.0;
    // Student's t for two degrees of freedom at 97.5 %, from a table.
    let half = 4.302_652_73 * (variance / 3.0).sqrt();
    let told = |name: &str| figure["difference"][name].as_f64().unwrap();
    assert!((told("mean") - mean).abs() < 1e-12, "{mean}");
    assert!((told("ci") - half).abs() < 1e-7, "{half}");
    assert_eq!((told("n"), told("lower"), told("higher")), (3.0, 3.0, 0.0));
    assert_eq!(compared["b"]["set"]["mu"], "1.02");
}

/// The spread over seeds is many times the difference; pairing shows it all the same.
#[test]
fn a_small_difference_shows_in_every_seed() {
    let arguments = [&["compare", MM1, MM1, "--set-b", "mu=1.02"], &SHORT[..]].concat();
    let text = good(&arguments);
    assert!(text.contains("lower in 20 of 20"), "{text}");
    assert!(text.starts_with(&format!("A  {MM1}  time 2000, warm-up 200\n")), "{text}");
    let figures = json(&[&arguments[..], &["--json"]].concat());
    let a = &figures["figures"]["sojourn"]["a"];
    let difference = &figures["figures"]["sojourn"]["difference"];
    assert!(a["max"].as_f64().unwrap() - a["min"].as_f64().unwrap() > 4.0 * difference["mean"].as_f64().unwrap().abs());
}

#[test]
fn equal_programs_are_equal_and_one_seed_shows_nothing() {
    let text = good(&["compare", DESK, DESK_IR, "--seeds", "1..3"]);
    assert_eq!(text.matches("equal").count(), 3, "{text}");
    let text = good(&[&["compare", MM1, MM1, "--set-b", "mu=2", "--seeds", "1"], &SHORT[..]].concat());
    assert!(text.contains("too few seeds") && !text.contains("lower in"), "{text}");
}

#[test]
fn an_interval_with_0_in_it_shows_no_difference() {
    let arguments = [&["compare", MM1, OTHER_DRAWS, "--seeds", "1..5"], &SHORT[..]].concat();
    let text = good(&arguments);
    assert_eq!(text.matches("no difference shown").count(), 2, "{text}");
    assert!(text.ends_with("only A has: at_desk\n"), "{text}");
    let figures = json(&[&arguments[..], &["--json"]].concat());
    let difference = &figures["figures"]["sojourn"]["difference"];
    let (mean, half) = (difference["mean"].as_f64().unwrap(), difference["ci"].as_f64().unwrap());
    assert!(mean != 0.0 && mean.abs() < half);
    assert_eq!(difference["verdict"], "no difference shown");
}

#[test]
fn figures_of_one_program_are_listed() {
    let text = good(&["compare", MM1, SHARING, "--seeds", "1..2", "--horizon", "3000"]);
    for line in ["only A has: sojourn, at_desk", "only B has: "] {
        assert!(text.contains(line), "{text}");
    }
    assert!(text.contains("mean_live"), "something is compared: {text}");
    let compared = json(&["compare", MM1, SHARING, "--seeds", "1..2", "--horizon", "3000", "--json"]);
    assert_eq!(compared["only_a"][0], "sojourn");
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let arguments = [&["compare", MM1, MM1, "--set-b", "mu=1.1", "--seeds", "1..7", "--json"], &SHORT[..]].concat();
    let one = good(&[&arguments[..], &["--jobs", "1"]].concat());
    assert_eq!(one, good(&[&arguments[..], &["--jobs", "4"]].concat()));
}

#[test]
fn what_cannot_be_compared_is_refused() {
    let said = refusal(&["compare", MM1, MM1, "--seeds", "1..2", "--show", "sojorn"], 1);
    assert!(said.contains("no figure is named `sojorn`: is it `sojourn`?"), "{said}");
    let said = refusal(&["compare", "-", "-"], 2);
    assert!(said.contains("standard input is one program"), "{said}");
    let said = refusal(&["compare", DESK, DESK_IR, "--set-b", "work=1"], 1);
    assert!(said.contains("is IR"), "{said}");
    refusal(&["compare", MM1], 2);
}
