//! Traces from outside: formats, gzip, wrong rows, arrivals, speed.
//!
//! The public traces are not ours to ship. `SERQ_TRACES=folder cargo test -p serq --test
//! traces -- --ignored --nocapture` reads them from a folder (docs/traces.md).

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;
use serq_sim::trace::{BadRows, TraceFile};

/// Requests of a trace, one after another: what came when.
const REPLAY: &str = "let speed = 1;
stage engine : delay;
workload { arrive trace(speed); trace \"requests\"; }
session { turn; observe came = now; observe prompt = new; run engine (out); end; }
run { horizon 1e6; }
";

struct Said {
    status: i32,
    out: String,
    err: String,
}

fn serq(folder: &Path, arguments: &[&str]) -> Said {
    let output = Command::new(env!("CARGO_BIN_EXE_serq")).args(arguments).current_dir(folder).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let said = Said { status: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) };
    assert!(!said.err.contains("panicked"), "{arguments:?}: {}", said.err);
    said
}

/// What it prints when all is well.
fn output(folder: &Path, arguments: &[&str]) -> String {
    let said = serq(folder, arguments);
    assert_eq!((said.status, &said.err[..]), (0, ""), "{arguments:?}");
    said.out
}

/// A folder of the test's own with these files.
fn folder(name: &str, files: &[(&str, &[u8])]) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("traces").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    for (file, bytes) in files {
        fs::write(folder.join(file), bytes).unwrap();
    }
    folder
}

fn packed(text: &str) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(text.as_bytes()).unwrap();
    packed.finish().unwrap()
}

/// A run's samples of an observation as written with every digit: (time, session, value).
fn dumped(folder: &Path, observe: &str) -> Vec<[f64; 3]> {
    let text = fs::read_to_string(folder.join(format!("{observe}.csv"))).unwrap();
    let row = |line: &str| {
        let fields: Vec<f64> = line.split(',').map(|field| field.parse().unwrap()).collect();
        [fields[0], fields[1], fields[3]]
    };
    text.lines().skip(1).map(row).collect()
}

/// Irregular whole milliseconds, several at once now and then.
fn milliseconds() -> Vec<u64> {
    (0..300u64).scan(777, |time, k| Some(std::mem::replace(time, *time + (k * k * 37) % 1_013 * (k % 5)))).collect()
}

fn mooncake() -> String {
    let row = |(k, ms)| {
        format!("{{\"timestamp\": {ms}, \"input_length\": {}, \"output_length\": 3, \"hash_ids\": []}}\n", k + 1)
    };
    milliseconds().into_iter().enumerate().map(row).collect()
}

fn azure() -> String {
    let row = |(k, ms): (usize, u64)| {
        let (minutes, seconds, ms) = (ms / 60_000, ms / 1_000 % 60, ms % 1_000);
        format!("2023-11-16 {:02}:{:02}:{seconds:02}.{ms:03}0000,{},3\r\n", 22 + minutes / 60, minutes % 60, k + 1)
    };
    let rows: String = milliseconds().into_iter().enumerate().map(row).collect();
    format!("TIMESTAMP,ContextTokens,GeneratedTokens\r\n{rows}")
}

fn turns() -> String {
    let first = milliseconds()[0];
    let row = |(k, ms)| format!("{k},1,{},3,0,0,{}\n", k + 1, (ms - first) as f64 / 1e3);
    milliseconds().into_iter().enumerate().map(row).collect()
}

#[test]
fn sessions_come_exactly_when_those_of_the_trace_did_whatever_the_format() {
    let (mooncake, azure, turns) = (mooncake(), azure(), turns());
    let (packed_mooncake, packed_azure) = (packed(&mooncake), packed(&azure));
    let files: [(&str, &[u8]); 6] = [
        ("replay.sq", REPLAY.as_bytes()),
        ("mooncake", mooncake.as_bytes()),
        ("azure", azure.as_bytes()),
        ("turns", turns.as_bytes()),
        ("misnamed.csv", &packed_mooncake),
        ("azure.gz", &packed_azure),
    ];
    let here = folder("arrivals", &files);
    let times = milliseconds();
    for trace in ["mooncake", "azure", "turns", "misnamed.csv", "azure.gz"] {
        for (speed, factor) in [("1", 1.0), ("2", 2.0), ("0.25", 0.25), ("3", 3.0)] {
            let dump = format!("{trace}-{speed}");
            output(&here, &["run", "replay.sq", "--trace", trace, "--speed", speed, "--dump", &dump]);
            let came = dumped(&here.join(&dump), "came");
            assert_eq!(came.len(), times.len());
            for (k, ([_, session, came], ms)) in came.iter().zip(&times).enumerate() {
                assert_eq!(*session, k as f64);
                assert_eq!(*came, (ms - times[0]) as f64 / 1e3 / factor, "{trace}, speed {speed}, session {k}");
            }
            let prompts = dumped(&here.join(&dump), "prompt");
            assert!(prompts.iter().enumerate().all(|(k, [_, _, prompt])| *prompt == (k + 1) as f64), "{trace}");
        }
    }
    // The flag, the constant and the printed IR say the same.
    let report = |arguments: &[&str]| {
        let text = output(&here, &[arguments, &["--trace", "mooncake", "--json"]].concat());
        let mut report: serde_json::Value = serde_json::from_str(&text).unwrap();
        // A constant that only said the speed is as it was, or folded.
        report.as_object_mut().unwrap().remove("constants");
        report
    };
    let doubled = report(&["run", "replay.sq", "--speed", "2"]);
    assert_eq!(report(&["run", "replay.sq", "--set", "speed=2"]), doubled);
    fs::write(here.join("replay.json"), output(&here, &["ir", "replay.sq", "--speed", "2"])).unwrap();
    assert_eq!(report(&["run", "replay.json"]), doubled);
    fs::write(here.join("plain.sq"), output(&here, &["explain", "replay.sq", "--speed", "2"])).unwrap();
    let mut plain = report(&["run", "plain.sq"]);
    plain["program"] = "replay".into();
    assert_eq!(plain, doubled);
    let sweep = output(&here, &["sweep", "replay.sq", "--trace", "mooncake", "--sweep", "speed=1,2", "--csv"]);
    assert!(sweep.contains("came"), "{sweep}");
}

/// Two sessions of two turns: the second turn comes after the answer and the think time.
#[test]
fn an_open_loop_of_sessions_is_closed_within_them() {
    let program = "stage engine : delay;
workload { arrive trace; trace \"chats.csv\"; }
session {
  turn;
  loop {
    observe began = now;
    run engine (out);
    branch (more) { run engine (think); turn; } else { end; }
  }
}
run { horizon 100; }
";
    let chats = "# s,turn,new,out,think,forced,at\n5,1,1,2,3,0,1\n6,1,1,4,0.5,0,1\n5,2,1,1,0,0,\n6,2,1,1,0,0,\n";
    let here = folder("chats", &[("chat.sq", program.as_bytes()), ("chats.csv", chats.as_bytes())]);
    output(&here, &["run", "chat.sq", "--dump", "samples"]);
    let began: Vec<(f64, f64)> = dumped(&here.join("samples"), "began").iter().map(|row| (row[0], row[1])).collect();
    assert_eq!(began, [(1.0, 0.0), (1.0, 1.0), (5.5, 1.0), (6.0, 0.0)]);
}

#[test]
fn arrivals_end_with_the_trace_and_may_end_the_run() {
    let here = folder("ends", &[("replay.sq", REPLAY.as_bytes()), ("requests", turns().as_bytes())]);
    let report = |arguments: &[&str]| -> Value {
        serde_json::from_str(&output(&here, &[&["run", "replay.sq", "--json"], arguments].concat())).unwrap()
    };
    let last = (milliseconds()[299] - milliseconds()[0]) as f64 / 1e3;
    let whole = report(&[]);
    assert_eq!((whole["arrivals"].as_u64(), whole["end"].as_f64()), (Some(300), Some(1e6)));
    let drained = report(&["--arrivals", "300"]);
    assert_eq!((drained["ended"].as_u64(), drained["end"].as_f64()), (Some(300), Some(last + 3.0)));
    assert_eq!(report(&["--arrivals", "10"])["arrivals"].as_u64(), Some(10));
    let said = serq(&here, &["run", "replay.sq", "--arrivals", "301"]);
    assert_eq!(said.status, 1);
    assert!(said.err.contains("only 300 of 301 arrivals came by the horizon"), "{}", said.err);
    let said = output(&here, &["check", "replay.sq"]);
    assert!(said.ends_with(&format!(", 300 trace sessions until {last}\n")), "{said}");
}

#[test]
fn what_arrivals_of_a_trace_need_is_told() {
    let other = REPLAY.replace("trace(speed)", "poisson(speed)");
    let files: [(&str, &[u8]); 3] =
        [("replay.sq", REPLAY.as_bytes()), ("other.sq", other.as_bytes()), ("requests", b"0,1,1,1,0\n")];
    let here = folder("needs", &files);
    let untimed = "error: requests does not say when its sessions came, and replay.sq has `arrive trace`: \
                   add a seventh column `at`, or write another law such as `arrive poisson(1)`\n";
    for command in ["run", "check"] {
        let said = serq(&here, &[command, "replay.sq"]);
        assert_eq!((said.status, &said.out[..], &said.err[..]), (1, "", untimed));
    }
    let said = serq(&here, &["run", "other.sq", "--speed", "2"]);
    let wanted = "error: other.sq: --speed is an `arrive trace`'s, and the program has another law\n";
    assert_eq!((said.status, &said.err[..]), (1, wanted));
    for speed in ["0", "-1", "inf", "nan", "fast"] {
        assert_eq!(serq(&here, &["run", "replay.sq", "--speed", speed]).status, 2, "{speed}");
    }
}

#[test]
fn wrong_rows_are_told_or_skipped_and_counted() {
    // Every third row of 36 is wrong: 12 in all.
    let rows: String = turns()
        .lines()
        .take(36)
        .enumerate()
        .map(|(k, row)| if k % 3 == 2 { format!("{row},surplus\n") } else { format!("{row}\n") })
        .collect();
    let truncated = packed(&turns());
    let files: [(&str, &[u8]); 4] = [
        ("replay.sq", REPLAY.as_bytes()),
        ("requests", rows.as_bytes()),
        ("cut.gz", &truncated[..truncated.len() / 2]),
        ("bytes", b"\x00\xff\xfe\n"),
    ];
    let here = folder("wrong", &files);
    let said = serq(&here, &["run", "replay.sq"]);
    let lines: Vec<&str> = said.err.lines().collect();
    assert_eq!((said.status, &said.out[..]), (1, ""));
    assert_eq!(lines[0], "error: requests: 12 rows are wrong");
    for (k, line) in lines[1..11].iter().enumerate() {
        let wanted = format!("  line {}: 8 columns, a row is `session,turn,new,out,think[,forced[,at]]`", 3 * k + 3);
        assert_eq!(*line, wanted);
    }
    assert_eq!(lines[11..], ["  and 2 more", "  --skip-bad leaves such rows out"]);
    let report: Value = serde_json::from_str(&output(&here, &["run", "replay.sq", "--skip-bad", "--json"])).unwrap();
    assert_eq!(report["arrivals"].as_u64(), Some(24));
    assert_eq!(report["notes"][0]["kind"], "skipped");
    assert_eq!(report["notes"][0]["text"], "12 wrong row(s) of the trace were left out (--skip-bad)");
    let said = output(&here, &["check", "replay.sq", "--skip-bad"]);
    assert!(said.contains("24 trace sessions") && said.ends_with("(12 wrong rows left out)\n"), "{said}");
    for (trace, reason) in [
        ("cut.gz", "cannot read the trace cut.gz: "),
        ("bytes", "cannot read the trace bytes: it is not UTF-8 text"),
        (".", "cannot read the trace .: it is a directory"),
    ] {
        let said = serq(&here, &["run", "replay.sq", "--skip-bad", "--trace", trace]);
        assert_eq!((said.status, &said.out[..]), (1, ""));
        assert!(said.err.contains(reason), "{}", said.err);
    }
}

/// Bytes changed, cut and put in at random: read or refused, and what is read is whole.
#[test]
fn a_mutated_trace_is_read_or_refused() {
    let whole = [mooncake(), azure(), turns()].map(|text| text.lines().take(8).collect::<Vec<_>>().join("\n"));
    let mut state = 1u64;
    let mut random = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    let mut read = 0;
    for _ in 0..30_000 {
        let mut bytes = whole[random(3)].clone().into_bytes();
        for _ in 0..1 + random(4) {
            let at = random(bytes.len());
            match random(4) {
                0 => bytes[at] = b"0123456789-+.:,eE TZ{}[]\"\n#\xff"[random(28)],
                1 if bytes.len() > 1 => drop(bytes.remove(at)),
                2 => bytes.insert(at, b"9-.,\n"[random(5)]),
                _ => bytes.truncate(at + 1),
            }
        }
        for bad_rows in [BadRows::Refuse, BadRows::Skip] {
            let Ok(trace) = TraceFile::read(&bytes[..], bad_rows) else { continue };
            read += 1;
            let turns: u64 = (0..trace.sessions()).map(|session| u64::from(trace.turns(session))).sum();
            assert_eq!(turns, trace.rows() as u64);
            for session in 0..trace.sessions() {
                let turns = u64::from(trace.turns(session));
                assert!(turns >= 1 && trace.turn(session, turns).is_none());
                for turn in 0..turns {
                    let row = trace.turn(session, turn).unwrap();
                    assert!([row.new, row.out, row.think, row.forced].iter().all(|x| x.is_finite() && *x >= 0.0));
                    assert!(trace.blocks(session, turn).len() as f64 <= (row.new / 512.0).ceil());
                }
            }
            if let Some(times) = trace.arrivals() {
                assert_eq!(times.len(), trace.sessions() as usize);
                assert!(times.is_sorted() && times.iter().all(|time| time.is_finite() && *time >= 0.0));
            }
        }
    }
    assert!(read > 10_000, "only {read} were read");
}

/// The share of a trace's blocks that a prefix cache without a limit has seen.
fn ideal_hit_rate(trace: &TraceFile) -> f64 {
    let mut seen: HashSet<u64> = HashSet::new();
    let (mut hits, mut all) = (0, 0);
    for session in 0..trace.sessions() {
        let blocks = trace.blocks(session, 0);
        hits += blocks.iter().take_while(|block| seen.contains(block)).count();
        all += blocks.len();
        seen.extend(blocks);
    }
    hits as f64 / all as f64
}

#[test]
fn the_examples_trace_shares_prefixes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/trace/requests.jsonl");
    let trace = TraceFile::read(BufReader::new(File::open(path).unwrap()), BadRows::Refuse).unwrap();
    assert_eq!((trace.sessions(), trace.block()), (24, Some(512.0)));
    // 112 of 169, counted apart.
    assert_eq!(ideal_hit_rate(&trace), 112.0 / 169.0);
}

#[test]
#[ignore = "the public traces are not shipped: SERQ_TRACES names their folder"]
fn the_public_traces_are_what_is_known_of_them() {
    let here = PathBuf::from(std::env::var_os("SERQ_TRACES").expect("SERQ_TRACES names a folder"));
    for (file, rows, last) in [
        ("mooncake_conversation_trace.jsonl", 12_031, 3_536.999),
        ("AzureLLMInferenceTrace_code.csv", 8_819, 3_435.948_056),
        ("AzureLLMInferenceTrace_conv.csv", 19_366, 3_501.721_937),
    ] {
        let start = Instant::now();
        let input = BufReader::new(File::open(here.join(file)).unwrap());
        let trace = TraceFile::read(input, BadRows::Refuse).unwrap();
        println!("{file}: {} rows in {:?}", trace.rows(), start.elapsed());
        assert_eq!((trace.rows(), trace.sessions()), (rows, rows as u32));
        assert_eq!(trace.arrivals().unwrap().last(), Some(&last));
        if trace.block().is_some() {
            let rate = ideal_hit_rate(&trace);
            println!("  ideal hit rate {rate:.6}");
            assert!((rate - 0.3664).abs() < 1e-4, "{rate}");
        }
    }
}
