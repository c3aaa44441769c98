//! One small program in every form a report has. `programs/desk.sq` has the sum done by hand;
//! `programs/desk.json` is its IR.

mod binary;

use std::fs;
use std::path::PathBuf;

use expect_test::{Expect, expect};

use binary::serq;

const DESK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/desk.json");
const DESK_TEXT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/desk.sq");

/// What a command prints, with a margin so that a snapshot keeps the indent.
fn check(arguments: &[&str], expected: Expect) {
    let (status, out, err) = serq(arguments);
    assert_eq!((status, &err[..]), (0, ""), "{arguments:?}");
    let out: String = out.lines().map(|line| format!("|{line}\n")).collect();
    expected.assert_eq(&out);
}

fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("reports").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn text() {
    check(
        &["run", DESK],
        expect![[r#"
        |desk   time 10, seed 1
        |10 arrivals, 6 ended, 2.250 live on average
        |
        |  observe   mean   p50  p90  p95  p99  samples    cv2
        |  sojourn  2.750  2.50    4    4    4        6  0.116
        |
        |  gauge    mean  ±95 %  min  max
        |  present  1.65  ±0.31    0    2
        |
        |  stage  busy   jobs  done  per time  wait  service
        |  desk   90 %  1.650     6    0.6000     1    1.500
        |
        |  pool   used  cap  in use at end  left  holders  waiting    wait  admitted
        |  kv    1.650    2              2     0    1.650   0.6000  0.6250         8
        |
        |note: sessions waiting at kv grow: 0.00 in the second quarter, 1.60 in the last
    "#]],
    );
}

#[test]
fn facts() {
    check(
        &["run", DESK, "--facts", "--slo", "sojourn=3"],
        expect![[r#"
        |run         end 10.000000  arrivals 10  ended 6  turns 0  mean_live 2.250000
        |observe     sojourn  mean 2.750000   count 6
        |quantiles   sojourn  cv2 0.115702  p50 2.500000  p90 4.000000  p95 4.000000  p99 4.000000
        |gauge       present  mean 1.650000  min 0.000000  max 2.000000
        |stage       desk  number 1.650000  utilization 0.900000  completed 6  wait 1.000000  service 1.500000
        |pool        kv  left 0  in_use_at_end 2
        |averages    kv  used 1.650000  cached 0.000000  queue 0.600000  holders 1.650000  wait 0.625000  admissions 8  evicted_units 0.000000  preemptions 0  spills 0  rejected 0  stuck 0
        |slo         sojourn  limit 3.000000  share 0.666667  count 6
        |slo         joint    share 0.666667  count 6
        |note        sessions waiting at kv grow: 0.00 in the second quarter, 1.60 in the last
    "#]],
    );
}

#[test]
fn csv() {
    check(
        &["run", DESK, "--csv"],
        expect![[r#"
            |part,name,index,figure,value
            |run,,,end,10
            |run,,,events,16
            |run,,,arrivals,10
            |run,,,ended,6
            |run,,,turns,0
            |run,,,mean_live,2.25
            |observe,sojourn,,count,6
            |observe,sojourn,,mean,2.75
            |observe,sojourn,,ci,
            |observe,sojourn,,cv2,0.11570247933884298
            |observe,sojourn,,p50,2.5
            |observe,sojourn,,p90,4
            |observe,sojourn,,p95,4
            |observe,sojourn,,p99,4
            |gauge,present,,mean,1.65
            |gauge,present,,ci,0.3139500000000001
            |gauge,present,,min,0
            |gauge,present,,max,2
            |stage,desk,,mean_number,1.65
            |stage,desk,,utilization,0.9
            |stage,desk,,completed,6
            |stage,desk,,throughput,0.6
            |stage,desk,,mean_wait,1
            |stage,desk,,mean_service,1.5
            |pool,kv,,mean_used,1.65
            |pool,kv,,mean_cached,0
            |pool,kv,,mean_queue,0.6
            |pool,kv,,mean_holders,1.65
            |pool,kv,,mean_leased,0
            |pool,kv,,mean_wait,0.625
            |pool,kv,,admissions,8
            |pool,kv,,evicted_entries,0
            |pool,kv,,evicted_units,0
            |pool,kv,,preemptions,0
            |pool,kv,,spills,0
            |pool,kv,,rejected,0
            |pool,kv,,stuck,0
            |pool,kv,,leases_expired,0
            |pool,kv,,late_releases,0
            |pool,kv,,reads_failed,0
            |pool,kv,,over_cap,0
            |pool,kv,,left,0
            |pool,kv,,in_use_at_end,2
        "#]],
    );
}

#[test]
fn many_seeds() {
    check(
        &["run", DESK, "--seeds", "1..3", "--horizon", "4"],
        expect![[r#"
            |desk   time 4, seeds 1..3
            |
            |  observe        median  range   mean  ±95 %
            |  sojourn  mean   1.750  1.750  1.750  ±0
            |           p50    1.500  1.500  1.500  ±0
            |           p90        2      2      2  ±0
            |           p99        2      2      2  ±0
            |
            |  gauge          median  range   mean  ±95 %
            |  present  mean   1.125  1.125  1.125  ±0
            |
            |  stage               median   range    mean  ±95 %
            |  desk   utilization  0.7500  0.7500  0.7500  ±0
            |         wait         0.2500  0.2500  0.2500  ±0
            |
            |  pool        median  range   mean  ±95 %
            |  kv    used   1.125  1.125  1.125  ±0
        "#]],
    );
}

#[test]
fn json_has_the_reports_names_in_the_reports_order() {
    let (status, out, _) = serq(&["run", DESK, "--json"]);
    assert_eq!(status, 0);
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["observes"]["sojourn"]["mean"], 2.75);
    assert_eq!(report["pools"][0]["left"], 0.0);
    let place = |name: &str| out.find(&format!("\n  \"{name}\"")).unwrap();
    let names = ["schema", "horizon", "seed", "mean_live", "observes", "gauges", "stages", "pools", "notes"];
    assert!(names.map(place).is_sorted(), "{out}");
}

#[test]
fn json_of_many_seeds_has_a_summary_in_every_figures_place() {
    let (status, out, _) = serq(&["run", DESK, "--seeds", "5,3", "--json"]);
    assert_eq!(status, 0);
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["seeds"], serde_json::json!([5, 3]));
    assert_eq!(report["observes"]["sojourn"]["mean"]["median"], 2.75);
    assert_eq!(report["observes"]["sojourn"]["ci"]["n"], 0);
    assert_eq!(report["pools"][0]["name"], "kv");
}

#[test]
fn the_number_of_jobs_changes_nothing() {
    let one = serq(&["run", DESK, "--seeds", "1..9", "--jobs", "1", "--csv"]);
    assert_eq!(one.0, 0);
    assert_eq!(one, serq(&["run", DESK, "--seeds", "1..9", "--jobs", "4", "--csv"]));
}

#[test]
fn a_dump_has_every_sample_and_change() {
    let folder = folder("dump");
    let (status, ..) = serq(&["run", DESK, "--horizon", "3", "--dump", folder.to_str().unwrap()]);
    assert_eq!(status, 0);
    expect![[r#"
        time,session,turn,value
        2.5,0,0,1.5
    "#]]
    .assert_eq(&fs::read_to_string(folder.join("sojourn.csv")).unwrap());
    expect![[r#"
        time,value
        0,0
        1,1
        2,2
        2.5,1
        3,2
    "#]]
    .assert_eq(&fs::read_to_string(folder.join("gauge/present.csv")).unwrap());
}

#[test]
fn a_dump_that_cannot_be_written_is_told_before_the_run() {
    let (status, out, err) = serq(&["run", DESK, "--dump", DESK]);
    assert_eq!((status, &out[..]), (1, ""));
    assert!(err.starts_with("error: cannot make the directory"), "{err}");
}

#[test]
fn a_limit_on_nothing_names_what_there_is() {
    let (status, out, err) = serq(&["run", DESK, "--slo", "sojurn=1"]);
    assert_eq!((status, &out[..]), (1, ""));
    assert!(err.contains("the program observes sojourn"), "{err}");
}

#[test]
fn a_run_too_long_prints_no_report() {
    for (arguments, sentence) in
        [(["run", DESK, "--max-events", "3"], "--max-events"), (["run", DESK, "--horizon", "1e12"], "--max-wall")]
    {
        let mut arguments = arguments.to_vec();
        if sentence == "--max-wall" {
            arguments.extend(["--max-wall", "0.05"]);
        }
        let (status, out, err) = serq(&arguments);
        assert_eq!((status, &out[..]), (1, ""), "{err}");
        assert!(err.contains(sentence), "{err}");
        arguments.extend(["--seeds", "7,8"]);
        let (status, out, err) = serq(&arguments);
        assert_eq!((status, &out[..]), (1, ""));
        assert!(err.contains("seed 7"), "{err}");
    }
}

#[test]
fn the_printed_ir_runs_to_the_same_report() {
    let (status, ir, _) = serq(&["ir", DESK, "--seed", "9"]);
    assert_eq!(status, 0);
    let printed = folder("ir").join("desk.json");
    fs::write(&printed, ir).unwrap();
    assert_eq!(serq(&["run", printed.to_str().unwrap()]), serq(&["run", DESK, "--seed", "9"]));
}

#[test]
fn a_sweep_wants_text() {
    let (status, out, err) = serq(&["sweep", DESK, "--sweep", "work=1,2"]);
    assert_eq!((status, &out[..]), (1, ""));
    assert!(err.contains("sweep the program's text"), "{err}");
}

#[test]
fn the_text_and_its_ir_give_the_same_report() {
    assert_eq!(serq(&["run", DESK_TEXT]), serq(&["run", DESK]));
}

#[test]
fn check_counts() {
    let (status, out, _) = serq(&["check", DESK_TEXT]);
    assert_eq!(status, 0);
    assert!(out.ends_with("desk.sq: 1 constant, 1 pool, 1 stage, 1 attribute, 1 observation, 1 gauge\n"), "{out}");
}

#[test]
fn a_sweep_shows_differences() {
    check(
        &["sweep", DESK_TEXT, "--sweep", "work=1,1.5,2", "--seeds", "1..4", "--baseline", "work=1"],
        expect![[r#"
        |desk   time 10, seeds 1..4
        |median and range over the seeds
        |
        |  work  sojourn  range
        |  1           1  1
        |  1.5     2.750  2.750
        |  2       3.500  3.500
        |
        |sojourn against work=1
        |  work  difference  95 % interval    seed by seed      range
        |  1              –
        |  1.5        +1.75  (+1.75 … +1.75)  higher in 4 of 4  +1.75 … +1.75
        |  2          +2.50  (+2.50 … +2.50)  higher in 4 of 4  +2.50 … +2.50
        |
        |note: work=1.5: sessions waiting at kv grow: 0.00 in the second quarter, 1.60 in
        |      the last (seed 1, and notes in 3 more)
        |note: work=2: sessions waiting at kv grow: 0.40 in the second quarter, 2.80 in
        |      the last (seed 1, and notes in 3 more)
    "#]],
    );
}

#[test]
fn a_sweep_goes_on_from_its_state_file() {
    let folder = folder("resume");
    let state = folder.join("state");
    let state = state.to_str().unwrap();
    let whole = ["sweep", DESK_TEXT, "--sweep", "work=1,1.5,2", "--seeds", "1..4", "--csv"];
    let part = ["sweep", DESK_TEXT, "--sweep", "work=1,2", "--seeds", "2..3", "--csv", "--resume", state];
    assert_eq!(serq(&part).0, 0);
    let before = fs::read_to_string(state).unwrap();
    let mut resumed = whole.to_vec();
    resumed.extend(["--resume", state]);
    assert_eq!(serq(&resumed), serq(&whole));
    assert!(fs::read_to_string(state).unwrap().starts_with(&before));
    let mut other = resumed.clone();
    other.extend(["--horizon", "5"]);
    let (status, out, err) = serq(&other);
    assert_eq!((status, &out[..]), (1, ""));
    assert!(err.contains("belongs to another program"), "{err}");
}
