//! Programs with the answers of the reference release, `tests/cases/`.
//!
//! A `d…` case is deterministic: samples, their times, sessions and turns, gauge change
//! points and every figure of the report must agree within 1e-9. An `r…` case has the
//! mean and spread of each figure over twenty seeds; ours must be as close as two sets of
//! twenty seeds are.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use serq_ir::Program;
use serq_lang::{Settings, compile, load};
use serq_sim::{Options, Outcome, simulate};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases")
}

fn cases(kind: char) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder())
        .expect("tests/cases is there")
        .filter_map(|file| {
            let name = file.ok()?.file_name().into_string().ok()?;
            let stem = name.strip_suffix(".sq")?;
            stem.starts_with(kind).then(|| stem.to_owned())
        })
        .collect();
    names.sort();
    assert!(!names.is_empty(), "there are cases of kind {kind}");
    names
}

fn program(case: &str, seed: Option<u64>) -> Program {
    let text = fs::read_to_string(folder().join(format!("{case}.sq"))).expect("the case can be read");
    let (mut sources, mut diagnostics) = load(Some(case), &text, &mut |_| Err("no libraries here".into()));
    let settings = Settings { seed, ..Settings::default() };
    let (program, more) = compile(&mut sources, &settings);
    diagnostics.extend(more);
    program.unwrap_or_else(|| panic!("{case} does not load: {diagnostics:#?}"))
}

fn expected(case: &str) -> Value {
    let text = fs::read_to_string(folder().join(format!("{case}.json"))).expect("the answers can be read");
    serde_json::from_str(&text).expect("the answers are JSON")
}

fn run(case: &str, seed: Option<u64>) -> Outcome {
    let options = Options { record: true, ..Options::default() };
    simulate(&program(case, seed), None, &options, &mut |_, _| true)
        .unwrap_or_else(|error| panic!("{case} stops: {error:?}"))
}

/// Compares numbers, lists and objects of numbers; says where they part.
fn compare(at: &str, ours: &Value, theirs: &Value, differences: &mut Vec<String>) {
    match (ours, theirs) {
        (Value::Number(a), Value::Number(b)) => {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            if (a - b).abs() > 1e-9 * b.abs().max(1.0) {
                differences.push(format!("{at}: {a}, not {b}"));
            }
        }
        (Value::Array(a), Value::Array(b)) => {
            if a.len() != b.len() {
                differences.push(format!("{at}: {} of them, not {}: {ours} not {theirs}", a.len(), b.len()));
            }
            for (k, (a, b)) in a.iter().zip(b).enumerate() {
                compare(&format!("{at}[{k}]"), a, b, differences);
            }
        }
        (Value::Object(a), Value::Object(b)) => {
            for (key, theirs) in b {
                if ["serq_version", "events"].contains(&key.as_str()) {
                    continue;
                }
                match a.get(key) {
                    Some(ours) => compare(&format!("{at}.{key}"), ours, theirs, differences),
                    None => differences.push(format!("{at}.{key}: missing")),
                }
            }
        }
        _ if ours == theirs => {}
        _ => differences.push(format!("{at}: {ours}, not {theirs}")),
    }
}

fn columns(outcome: &Outcome, program: &Program) -> Value {
    let lists = program.observes.iter().zip(&outcome.samples).map(|(name, samples)| {
        let column = |f: fn(&serq_sim::Sample) -> f64| samples.iter().map(|s| number(f(s))).collect::<Vec<Value>>();
        let lists = serde_json::json!({
            "samples": column(|s| s.value),
            "times": column(|s| s.time),
            "sessions": column(|s| s.session as f64),
            "turns": column(|s| s.turn),
        });
        (name.clone(), lists)
    });
    lists.collect()
}

/// As the answers write numbers: infinity in words, NaN as null.
fn number(value: f64) -> Value {
    if value == f64::INFINITY { "inf".into() } else { value.into() }
}

#[test]
fn deterministic_cases_agree() {
    let mut wrong = Vec::new();
    for case in cases('d') {
        let expected = expected(&case);
        let program = program(&case, None);
        let outcome = run(&case, None);
        let mut differences = Vec::new();
        compare("samples", &columns(&outcome, &program), &expected["samples"], &mut differences);
        let points: Value = program
            .gauges
            .iter()
            .zip(&outcome.gauge_points)
            .map(|(gauge, points)| (gauge.name.clone(), serde_json::to_value(points).unwrap()))
            .collect();
        compare("gauge_points", &points, &expected["gauge_points"], &mut differences);
        let report = serde_json::to_value(&outcome.report).unwrap();
        compare("report", &report, &expected["report"], &mut differences);
        for row in outcome.report.pools {
            if row.left != 0.0 {
                differences.push(format!("{}: {} units left", row.name, row.left));
            }
        }
        if !differences.is_empty() {
            wrong.push(format!("{case}\n  {}", differences.join("\n  ")));
        }
    }
    assert!(wrong.is_empty(), "{} cases differ\n{}", wrong.len(), wrong.join("\n"));
}

/// Every figure of a random case: means over twenty seeds within 4 sd √(2/20) of the
/// reference's, but for at most 3 figures of all cases, and none beyond 5.5.
#[test]
fn random_cases_agree_in_the_mean() {
    let mut beyond = Vec::new();
    let mut figures = 0;
    for case in cases('r') {
        let expected = expected(&case);
        let reports: Vec<Value> =
            (1..=20).map(|seed| serde_json::to_value(run(&case, Some(seed)).report).unwrap()).collect();
        let mut theirs = BTreeMap::new();
        for part in ["observes", "gauges", "stages", "pools"] {
            collect(part, &expected[part], &mut theirs);
        }
        for (path, (mean, sd)) in theirs {
            let ours: Vec<f64> = reports.iter().filter_map(|r| figure(r, &path)).collect();
            let ours = ours.iter().sum::<f64>() / ours.len() as f64;
            figures += 1;
            let off = if sd == 0.0 {
                if (ours - mean).abs() <= 1e-9 * mean.abs().max(1.0) { 0.0 } else { f64::INFINITY }
            } else {
                (ours - mean).abs() / (sd * (2.0f64 / 20.0).sqrt())
            };
            if off.is_nan() || off > 4.0 {
                beyond.push((off, format!("{case} {path}: {ours}, not {mean} ± {sd} ({off:.1})")));
            }
        }
    }
    let worst = beyond.iter().map(|b| b.0).fold(0.0, f64::max);
    let list = beyond.iter().map(|b| b.1.as_str()).collect::<Vec<_>>().join("\n");
    assert!(beyond.len() <= 3 && worst <= 5.5, "{} of {figures} figures are beyond:\n{list}", beyond.len());
}

/// Paths of the reference's figures with their mean and spread.
fn collect(path: &str, value: &Value, found: &mut BTreeMap<String, (f64, f64)>) {
    const SKIPPED: [&str; 4] = ["ci", "events", "min", "max"];
    match value {
        Value::Object(map) if map.contains_key("sd_over_seeds") => {
            let number = |key: &str| map[key].as_f64();
            if let (Some(mean), Some(sd)) = (number("mean"), number("sd_over_seeds")) {
                found.insert(path.to_owned(), (mean, sd));
            }
        }
        Value::Object(map) => {
            for (key, value) in map {
                if !SKIPPED.contains(&key.as_str()) {
                    collect(&format!("{path}/{key}"), value, found);
                }
            }
        }
        Value::Array(rows) => {
            for (k, row) in rows.iter().enumerate() {
                collect(&format!("{path}/{k}"), row, found);
            }
        }
        _ => {}
    }
}

fn figure(report: &Value, path: &str) -> Option<f64> {
    report.pointer(&format!("/{path}"))?.as_f64()
}
