//! `serq run --timeline`: the file is what viewers can read, its slices are in order, and what
//! they sum to is what the report says.

mod binary;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use expect_test::expect;
use serde_json::Value;

use binary::serq;

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/pd-disaggregation");

fn file(name: &str) -> String {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("timeline");
    fs::create_dir_all(&folder).unwrap();
    folder.join(name).to_str().unwrap().to_owned()
}

/// Runs an example with a timeline; answers the report's JSON and the file's bytes.
fn run(example: &str, name: &str, more: &[&str]) -> (Value, Vec<u8>) {
    let (path, example) = (file(name), format!("{EXAMPLES}/{example}"));
    let arguments = [&["run", &example, "--json", "--timeline", &path], more].concat();
    let (status, out, err) = serq(&arguments);
    assert_eq!((status, &err[..]), (0, ""), "{arguments:?}");
    (serde_json::from_str(&out).unwrap(), fs::read(path).unwrap())
}

/// A slice of a row.
struct Slice {
    name: String,
    cat: String,
    start: i64,
    end: i64,
    args: Value,
}

/// Whole nanoseconds of microseconds.
fn nanoseconds(value: &Value) -> i64 {
    (value.as_f64().unwrap() * 1000.0).round() as i64
}

/// The slices of a file by process and row.
fn slices(bytes: &[u8]) -> BTreeMap<(u64, u64), Vec<Slice>> {
    let file: Value = serde_json::from_slice(bytes).expect("the timeline is JSON");
    let mut rows: BTreeMap<(u64, u64), Vec<Slice>> = BTreeMap::new();
    for event in file["traceEvents"].as_array().unwrap() {
        if event["ph"] == "X" {
            let start = nanoseconds(&event["ts"]);
            rows.entry((event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap())).or_default().push(Slice {
                name: event["name"].as_str().unwrap().to_owned(),
                cat: event["cat"].as_str().unwrap_or_default().to_owned(),
                start,
                end: start + nanoseconds(&event["dur"]),
                args: event["args"].clone(),
            });
        }
    }
    rows
}

/// Seconds in slices of a category.
fn seconds(rows: &BTreeMap<(u64, u64), Vec<Slice>>, cat: &str) -> f64 {
    let all = rows.values().flatten().filter(|slice| slice.cat == cat);
    all.map(|slice| (slice.end - slice.start) as f64 / 1e9).sum()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

#[test]
fn slices_of_a_row_are_nested_or_apart() {
    for (example, more) in [
        ("llmd_nixl_pull.sq", &["--horizon", "60", "--warmup", "0"][..]),
        ("llmd_nixl_pull.sq", &["--horizon", "20", "--warmup", "0", "--set", "blocksD=1100", "--set", "Lambda=3"][..]),
        ("llmd_nixl_push.sq", &["--horizon", "60", "--warmup", "0"][..]),
        ("decoder_full.sq", &[][..]),
        ("store_and_forward.sq", &["--horizon", "40", "--warmup", "0", "--set", "decoder=8000"][..]),
    ] {
        let (_, bytes) = run(example, "nested.json", more);
        let mut rows = slices(&bytes);
        assert!(rows.len() > 4, "{example}");
        for (row, slices) in &mut rows {
            slices.sort_by_key(|slice| (slice.start, -slice.end));
            let mut open: Vec<i64> = Vec::new();
            for slice in slices {
                assert!(slice.start < slice.end, "{example}, {row:?}: {} lasts", slice.name);
                while open.last().is_some_and(|&end| end <= slice.start) {
                    open.pop();
                }
                if let Some(&end) = open.last() {
                    assert!(slice.end <= end, "{example}, {row:?}: {} at {} is in one slice", slice.name, slice.start);
                }
                open.push(slice.end);
            }
        }
    }
}

#[test]
fn sums_are_the_reports() {
    for more in [&[][..], &["--set", "blocksD=1100", "--set", "Lambda=3"][..], &["--no-leap"][..]] {
        // All sessions end, so nothing is cut at the horizon.
        let settings = [&["--arrivals", "40", "--warmup", "0", "--horizon", "10000"], more].concat();
        let (report, bytes) = run("llmd_nixl_pull.sq", "sums.json", &settings);
        let rows = slices(&bytes);
        let ttft = &report["ttft"];
        let count = number(&ttft["count"]);
        assert!(count > 200.0);
        for (part, figures) in ttft["parts"].as_object().unwrap() {
            let (drawn, told) = (seconds(&rows, part), number(&figures["mean"]) * count);
            assert!((drawn - told).abs() < 1e-6, "{part}: {drawn}, not {told}");
        }
        let lease = &report["observes"]["lease"];
        let (drawn, told) = (seconds(&rows, "lease"), number(&lease["mean"]) * number(&lease["count"]));
        assert!((drawn - told).abs() < 1e-6, "leases: {drawn}, not {told}");
        let steps: f64 = rows.values().flatten().filter(|s| s.cat == "step").map(|s| number(&s.args["steps"])).sum();
        let iterations: f64 = report["stages"].as_array().unwrap().iter().map(|s| number(&s["iterations"])).sum();
        assert_eq!(steps, iterations);
        // A turn that ends as it begins (a prompt too long) has no slice.
        let turns = rows.values().flatten().filter(|slice| slice.cat == "turn").count() as f64;
        assert_eq!(turns, number(&report["observes"]["response"]["count"]));
    }
}

#[test]
fn the_same_run_writes_the_same_bytes_and_the_same_report() {
    let example = format!("{EXAMPLES}/llmd_nixl_pull.sq");
    let settings = ["--horizon", "40", "--warmup", "0"];
    let (_, without, _) = serq(&[&["run", &example, "--json"], &settings[..]].concat());
    for name in ["same.json", "same.txt", "same.json.gz"] {
        let (report, first) = run("llmd_nixl_pull.sq", name, &settings);
        let (_, second) = run("llmd_nixl_pull.sq", name, &settings);
        assert!(!first.is_empty());
        assert_eq!(first, second, "{name}");
        assert_eq!(report, serde_json::from_str::<Value>(&without).unwrap(), "{name}");
    }
}

#[test]
fn a_part_of_the_run() {
    let settings = ["--horizon", "60", "--warmup", "0", "--timeline-from", "20", "--timeline-to", "21"];
    let (_, bytes) = run("llmd_nixl_pull.sq", "part.json", &settings);
    let rows = slices(&bytes);
    let all = || rows.values().flatten();
    assert!(all().count() > 20);
    assert!(all().all(|slice| slice.end >= 20_000_000_000 && slice.start <= 21_000_000_000));
}

#[test]
fn in_words() {
    let settings = ["--timeline-from", "7", "--timeline-to", "9"];
    let (_, bytes) = run("decoder_full.sq", "words.txt", &settings);
    let text: String = String::from_utf8(bytes).unwrap().lines().map(|line| format!("|{line}\n")).collect();
    expect![[r#"
        | 7.000000  D           took a step of 1 since 6.000000: decode of session 0
        | 7.000000  session 0   ends
        | 7.000000  session 1   is admitted at D.kv
        | 7.000000  session 1   moves 10 over P.nic, D.nic
        | 8.000000  session 1   has its lease of P.kv ended
        | 8.000000  session 1   prefills 1 at D
        | 8.000000  session 3   is admitted at P.kv
        | 8.000000  session 3   prefills 10 at P
        | 9.000000  P           took a step of 1 since 8.000000: prefill of session 3 (10)
        | 9.000000  session 3   leases 10 of P.kv
        | 9.000000  session 3   waits at D.kv
        | 9.000000  D           took a step of 1 since 8.000000: prefill of session 1 (1)
        | 9.000000  session 1   had its first token at 9.000000, 9 after asking: prefill queue 1, prefill 1, decode queue 5, transfer 1, first step 1
        | 9.000000  session 1   decodes 4 at D
    "#]].assert_eq(&text);
}

#[test]
fn what_is_wrong_is_told_before_the_run() {
    let example = format!("{EXAMPLES}/decoder_full.sq");
    let wrong = |more: &[&str]| {
        let (status, out, err) = serq(&[&["run", &example], more].concat());
        assert_eq!(out, "");
        (status, err.lines().next().unwrap().to_owned())
    };
    assert_eq!(
        wrong(&["--timeline", "out.svg"]),
        (
            2,
            "error: --timeline out.svg: write out.json (trace events for ui.perfetto.dev), out.json.gz or out.txt (words)"
                .into()
        )
    );
    assert_eq!(
        wrong(&["--timeline", "out.txt", "--timeline-from", "3", "--timeline-to", "2"]),
        (2, "error: --timeline-from 3 must not be above --timeline-to 2".into())
    );
    let (status, said) = wrong(&["--timeline", "no/such/folder/out.txt"]);
    assert_eq!((status, said), (1, "error: cannot write no/such/folder/out.txt: there is no such file".into()));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_ends_the_run() {
    let link = file("full.json");
    let _ = fs::remove_file(&link);
    std::os::unix::fs::symlink("/dev/full", &link).unwrap();
    let example = format!("{EXAMPLES}/llmd_nixl_pull.sq");
    let (status, out, err) = serq(&["run", &example, "--timeline", &link]);
    assert_eq!((status, &out[..]), (1, ""));
    assert_eq!(err, format!("error: cannot write {link}: the disk is full\n"));
}
