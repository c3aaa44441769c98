//! Two reports side by side.

mod binary;

use std::fs;
use std::path::PathBuf;

use binary::serq;
use serde_json::Value;

const PAIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/local/pd_smollm2.sq");
const FULL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/pd-disaggregation/decoder_full.sq");

fn folder() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("diff");
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn file(name: &str, text: &str) -> String {
    let path = folder().join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// What a run's `--json` is, in a file.
fn report(name: &str, arguments: &[&str]) -> String {
    let (status, out, told) = serq(&[&["run", "--json"], arguments].concat());
    assert_eq!(status, 0, "{told}");
    file(name, &out)
}

fn diff(arguments: &[&str]) -> (i32, String, String) {
    serq(&[&["diff"], arguments].concat())
}

fn row<'j>(json: &'j Value, part: &str, name: &str, figure: &str) -> &'j Value {
    let rows = json["rows"].as_array().unwrap();
    rows.iter().find(|row| row["part"] == part && row["name"] == name && row["figure"] == figure).unwrap()
}

#[test]
fn a_report_beside_itself_is_inside_everywhere() {
    let one = report("itself.json", &[PAIR, "--horizon", "300"]);
    let (status, out, told) = diff(&[&one, &one, "--json", "--within", "0%"]);
    assert_eq!((status, &told[..]), (0, ""));
    let json: Value = serde_json::from_str(&out).unwrap();
    let rows = json["rows"].as_array().unwrap();
    assert!(rows.len() > 40);
    assert!(rows.iter().all(|row| row["off"] == 0.0 && row["inside"] != false), "{out}");
    for part in ["observe", "ttft", "stage", "pool"] {
        assert!(rows.iter().any(|row| row["part"] == part), "{part}");
    }
    assert_eq!(json["beyond"], Value::Array(Vec::new()));
}

/// Constructed reports, whose figures can be judged by hand: half-widths of 3 and 4 make one of 5.
#[test]
fn a_figure_is_inside_within_the_interval_of_the_difference() {
    let of = |mean: f64, ci: f64, p90: f64, transfer: f64, prefill: f64| {
        format!(
            r#"{{"schema": 1, "program": "p", "end": 9, "seed": 1, "observes": {{"ttft": {{"count": 50, "mean": {mean}, "ci": {ci}, "p90": {p90}}},
                "n": {{"count": 5, "mean": 0, "ci": null}}}},
                "ttft": {{"count": 50, "total": {{"mean": {mean}, "ci": {ci}}}, "parts": {{"transfer": {{"mean": {transfer}}}, "prefill": {{"mean": {prefill}}}}}}}}}"#
        )
    };
    let a = file("a.json", &of(100.0, 3.0, 150.0, 40.0, 60.0));
    let inside = file("inside.json", &of(105.0, 4.0, 170.0, 44.0, 61.0));
    let outside = file("outside.json", &of(105.1, 4.0, 170.0, 47.1, 58.0));
    let json = |b: &str| -> Value { serde_json::from_str(&diff(&[&a, b, "--json"]).1).unwrap() };
    assert_eq!(row(&json(&inside), "observe", "ttft", "mean")["inside"], true);
    assert_eq!(row(&json(&inside), "observe", "ttft", "p90")["inside"], Value::Null);
    let other = json(&outside);
    assert_eq!(row(&other, "observe", "ttft", "mean")["inside"], false);
    assert_eq!(other["look_at"]["part"], "transfer");
    let (status, out, _) = diff(&[&a, &outside]);
    assert_eq!(status, 0);
    assert!(out.ends_with("\nttft is outside: look at transfer (+7.1)\n"), "{out}");
    // 5 % and 5.1 %.
    assert_eq!(diff(&[&a, &inside, "--within", "5%"]).0, 0);
    let (status, out, told) = diff(&[&a, &outside, "--within", "0.05"]);
    assert_eq!((status, &told[..]), (1, "error: ttft, ttft.total are off by more than 5 %\n"));
    assert!(!out.is_empty());
}

#[test]
fn many_seeds_are_a_prediction_of_one() {
    let settings = [PAIR, "--horizon", "200", "--warmup", "20"];
    let many = report("many.json", &[&settings[..], &["--seeds", "1..8"]].concat());
    let one = report("one.json", &[&settings[..], &["--seed", "9"]].concat());
    let (status, out, _) = diff(&[&many, &one, "--json"]);
    assert_eq!(status, 0);
    let json: Value = serde_json::from_str(&out).unwrap();
    // A quantile has an interval over seeds.
    for (part, name, figure) in [
        ("observe", "response", "p90"),
        ("ttft", "total", "p99"),
        ("ttft", "prefill", "mean"),
        ("pool", "D.kv", "mean_used"),
    ] {
        let row = row(&json, part, name, figure);
        assert!(row["predicted_ci"].is_number() && row["inside"].is_boolean(), "{row}");
    }
}

/// A mean over 3 seeds known to ±5: one seed more is within ±10 of it.
#[test]
fn a_figure_without_an_interval_is_judged_as_one_seed_more() {
    let of = |n: &str| format!(r#"{{"schema": 1, "program": "p", "observes": {{"n": {{"p90": {n}}}}}}}"#);
    let many = file("three.json", &of(r#"{"n": 3, "mean": 100, "ci": 5}"#));
    for (value, inside) in [("110", true), ("110.1", false), ("90", true), ("89.9", false)] {
        let one = file("fourth.json", &of(value));
        for pair in [[&many, &one], [&one, &many]] {
            let json: Value = serde_json::from_str(&diff(&[pair[0], pair[1], "--json"]).1).unwrap();
            assert_eq!(row(&json, "observe", "n", "p90")["inside"], inside, "{value}");
        }
    }
}

#[test]
fn what_cannot_be_compared_is_one_sentence() {
    let pair = report("pair.json", &[PAIR, "--horizon", "100"]);
    let other = report("other.json", &[PAIR, "--horizon", "100", "--set", "thr=64"]);
    let full = report("full.json", &[FULL]);
    let (_, table, _) = serq(&["sweep", PAIR, "--horizon", "100", "--sweep", "thr=1,64", "--json"]);
    let table = file("table.json", &table);
    let said = |a: &str, b: &str| {
        let (status, out, told) = diff(&[a, b]);
        assert_eq!((status, &out[..], told.lines().count()), (1, "", 1), "{told}");
        told.replace(folder().to_str().unwrap(), "").replace('/', "")
    };
    assert_eq!(
        said(&pair, &full),
        "error: pair.json is of pd_smollm2, and full.json of decoder_full: nothing to compare\n"
    );
    assert_eq!(
        said(&pair, &other),
        "error: the settings differ: thr is 32.0 in pair.json and 64.0 in other.json; give both commands the same --set\n"
    );
    let no_report = "give what --json of `serq run` or `serq load` printed";
    assert_eq!(said(&pair, &file("text.json", "ttft 5")), format!("error: text.json is no JSON: {no_report}\n"));
    for (name, text) in
        [("list.json", "[]"), ("object.json", "{}"), ("null.json", "{\"program\": \"x\", \"observes\": {}}")]
    {
        assert_eq!(said(&pair, &file(name, text)), format!("error: {name} is no report: {no_report}\n"));
    }
    assert!(said(&table, &pair).contains("table.json is a table of several settings"), "{}", said(&table, &pair));
    assert!(said(&pair, "nowhere.json").contains("cannot read nowhere.json"));
    assert_eq!(diff(&[&pair, &pair, "--within", "x"]).0, 2);
}
