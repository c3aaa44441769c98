//! Program texts that are wrong, odd or unlucky, through the built binary.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use expect_test::expect;

const DESK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/desk.sq");

struct Said {
    status: i32,
    out: String,
    err: String,
}

/// Runs in a folder, so that messages name files without the way to them.
fn serq_in(folder: &Path, arguments: &[&str], input: &str) -> Said {
    let mut child = Command::new(env!("CARGO_BIN_EXE_serq"))
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let said = Said { status: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) };
    assert!(!said.err.contains("panicked"), "{arguments:?}: {}", said.err);
    said
}

/// A folder of the test's own with these files.
fn folder(name: &str, files: &[(&str, &str)]) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("programs").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    for (file, text) in files {
        let path = folder.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

fn desk() -> String {
    fs::read_to_string(DESK).unwrap()
}

#[test]
fn windows_line_ends_and_standard_input_change_nothing() {
    let crlf = desk().replace('\n', "\r\n");
    let here = folder("crlf", &[("desk.sq", &crlf)]);
    let wanted = serq_in(&here, &["run", DESK, "--facts"], "");
    assert_eq!(wanted.status, 0, "{}", wanted.err);
    assert_eq!(serq_in(&here, &["run", "desk.sq", "--facts"], "").out, wanted.out);
    assert_eq!(serq_in(&here, &["run", "-", "--facts"], &crlf).out, wanted.out);
}

#[test]
fn an_empty_file_is_refused_or_says_what_it_lacks() {
    let here = folder("empty", &[("empty.sq", ""), ("blank.sq", "\n// nothing\n")]);
    for file in ["empty.sq", "blank.sq"] {
        let said = serq_in(&here, &["run", file], "");
        assert_eq!((said.status, &said.out[..]), (1, ""));
        assert!(said.err.contains("horizon"), "{}", said.err);
    }
}

#[test]
fn all_mistakes_come_at_once_and_short_messages_have_a_line_each() {
    let text = "pool kv { cap 10; }\nsession { hold kw (1) { } run desk (1); end; }\nrun { horizon 1; }\n";
    let here = folder("mistakes", &[("chat.sq", text)]);
    let said = serq_in(&here, &["check", "chat.sq", "--message-format", "short"], "");
    assert_eq!((said.status, &said.out[..]), (1, ""));
    let lines: Vec<&str> = said.err.lines().collect();
    assert!(lines.len() >= 2, "{}", said.err);
    assert!(lines.iter().all(|line| line.starts_with("chat.sq:2:")), "{}", said.err);
    let picture = serq_in(&here, &["run", "chat.sq"], "").err;
    assert!(picture.contains(" --> chat.sq:2:") && picture.contains("^^"), "{picture}");
}

#[test]
fn a_setting_nobody_has_and_one_that_is_no_number_are_refused() {
    let here = folder("settings", &[]);
    for (setting, sentence) in [
        ("wrk=2", "`work`"),
        ("work=", "has no value"),
        ("work=1 +", "--set work"),
        ("work=0/0", "`work` is not a number"),
    ] {
        let said = serq_in(&here, &["run", DESK, "--set", setting], "");
        assert_ne!(said.status, 0, "{setting}");
        assert_eq!(said.out, "");
        assert!(said.err.to_lowercase().contains(&sentence.to_lowercase()), "{setting}: {}", said.err);
    }
    let said = serq_in(&here, &["sweep", DESK, "--sweep", "work=1,1 +"], "");
    assert_eq!((said.status, &said.out[..]), (1, ""));
    assert!(said.err.contains("in the cell work=1 +"), "{}", said.err);
}

#[test]
fn a_used_file_that_is_not_there_is_told_with_the_rest() {
    let text = "use \"no.sq\";\nsession { run desk (1); end; }\nrun { horizon 1; }\n";
    let here = folder("use", &[("chat.sq", text)]);
    let said = serq_in(&here, &["check", "chat.sq", "--message-format", "short"], "");
    assert_eq!((said.status, &said.out[..]), (1, ""));
    assert!(said.err.contains("there is no such file") && said.err.contains("chat.sq:2:"), "{}", said.err);
    let said = serq_in(&here, &["check", "-"], text);
    assert_eq!((said.status, &said.out[..]), (1, ""));
}

#[test]
fn a_used_file_lies_beside_the_file_that_names_it() {
    let files = [
        ("sub/chat.sq", "use \"../lib/a.sq\";\nlet x = twice(2);\nrun { horizon x; }\n"),
        ("lib/a.sq", "use \"b.sq\";\n"),
        ("lib/b.sq", "def twice(x) = 2 * x;\n"),
    ];
    let here = folder("beside", &files);
    let said = serq_in(&here, &["check", "sub/chat.sq", "--json"], "");
    assert_eq!((said.status, &said.err[..]), (0, ""));
    let json: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(json["constants"][0]["value"], 4.0);
}

const TRACED: &str = "stage tool : delay;
workload { arrive batch(2); trace \"turns.csv\" ordered; }
session { turn; tool (new); observe tokens = out; end; }
run { horizon 100; }
";

#[test]
fn a_traces_path_is_relative_to_the_program_and_the_flags_to_the_caller() {
    let files = [
        ("sub/chat.sq", TRACED),
        ("sub/turns.csv", "session,turn,new,out,think\r\n0,1,1,10,0\r\n1,1,1,20,0\r\n"),
        ("other.csv", "0,1,1,7,0\n"),
        ("wrong.csv", "0,1,1,7,0\n0,2,nan,7,0\n"),
    ];
    let here = folder("trace", &files);
    let mean = |said: Said| {
        assert_eq!((said.status, &said.err[..]), (0, ""));
        let json: serde_json::Value = serde_json::from_str(&said.out).unwrap();
        json["observes"]["tokens"]["mean"].as_f64().unwrap()
    };
    assert_eq!(mean(serq_in(&here, &["run", "sub/chat.sq", "--json"], "")), 15.0);
    assert_eq!(mean(serq_in(&here, &["run", "sub/chat.sq", "--json", "--trace", "other.csv"], "")), 7.0);
    for (trace, sentence) in [
        ("no.csv", "error: cannot read the trace no.csv: there is no such file\n"),
        ("sub", "error: cannot read the trace sub: it is a directory\n"),
        (
            "wrong.csv",
            "error: wrong.csv: line 2: `new` is nan, it must be finite and not negative\n  --skip-bad leaves such rows out\n",
        ),
    ] {
        let said = serq_in(&here, &["run", "sub/chat.sq", "--trace", trace], "");
        assert_eq!((said.status, &said.out[..], &said.err[..]), (1, "", sentence));
    }
    let said = serq_in(&here, &["run", DESK, "--trace", "other.csv"], "");
    assert_eq!((said.status, &said.out[..]), (1, ""));
    assert!(said.err.contains("trace"), "{}", said.err);
}

#[test]
fn a_run_time_error_shows_the_statement_the_session_and_the_time() {
    let text = "stage tool[2] : delay;
workload { arrive renewal(1); }
session { set k = serial; run tool[k] (1); end; }
run { horizon 10; }
";
    let here = folder("fault", &[("chat.sq", text)]);
    let said = serq_in(&here, &["run", "chat.sq"], "");
    assert_eq!((said.status, &said.out[..]), (1, ""));
    for part in ["error[run-error]", " --> chat.sq:3:", "session 2", "time 3"] {
        assert!(said.err.contains(part), "{part}: {}", said.err);
    }
    let said = serq_in(&here, &["run", "chat.sq", "--seeds", "4,5", "--message-format", "short"], "");
    assert_eq!((said.status, &said.out[..]), (1, ""));
    assert!(said.err.starts_with("chat.sq:3:") && said.err.contains("seed 4"), "{}", said.err);
}

#[test]
fn a_column_nobody_has_names_the_nearest() {
    let here = folder("columns", &[]);
    let said = serq_in(&here, &["sweep", DESK, "--sweep", "work=1", "--show", "sojurn"], "");
    assert_eq!((said.status, &said.out[..]), (1, ""));
    expect![[r#"
        error: --show: no figure is named `sojurn` in the cell work=1: is it `sojourn`?
    "#]]
    .assert_eq(&said.err);
    let columns = "sojourn.p99,present,kv.used,desk.utilization,mean_live";
    let said = serq_in(&here, &["sweep", DESK, "--sweep", "work=1", "--show", columns, "--csv"], "");
    assert_eq!(said.status, 0, "{}", said.err);
    assert_eq!(said.out.lines().count(), 6, "{}", said.out);
}

#[test]
fn a_hundred_members_are_three_rows() {
    let text = "pool kv[100] { cap 1; }
stage desk[100] : fifo;
workload { arrive renewal(1); }
session { set k = serial; hold kv[k] (1) { run desk[k] (k); } end; }
run { horizon 50; }
";
    let here = folder("members", &[("many.sq", text)]);
    let said = serq_in(&here, &["run", "many.sq"], "");
    assert_eq!(said.status, 0, "{}", said.err);
    assert!(said.out.contains("kv, mean of 100") && said.out.contains("greatest"), "{}", said.out);
    assert!(said.out.lines().count() < 25, "{}", said.out);
    assert!(said.out.lines().all(|line| line.chars().count() <= 80), "{}", said.out);
    let all = serq_in(&here, &["run", "many.sq", "--all-members"], "");
    assert!(all.out.contains("kv[99]"), "{}", all.out);
}

#[test]
fn huge_and_tiny_numbers_do_not_break_the_report() {
    let here = folder("huge", &[]);
    for work in ["1e-300", "1e300", "1e308 * 1"] {
        for form in [&["run"][..], &["run", "--json"], &["run", "--facts"], &["run", "--csv"]] {
            let mut arguments = form.to_vec();
            let setting = format!("work={work}");
            arguments.extend([DESK, "--set", &setting]);
            let said = serq_in(&here, &arguments, "");
            assert_eq!(said.status, 0, "{arguments:?}: {}", said.err);
        }
    }
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_with_a_sentence_and_keeps_finished_runs() {
    let text = "let slow = 0;
stage desk : fifo;
workload { arrive poisson(1); }
session { run desk (~exp(0.5)); end; }
run { horizon slow > 0 ? 1e12 : 10; }
";
    let here = folder("ctrl-c", &[("mm1.sq", text)]);
    for (arguments, sentence) in [
        (&["run", "mm1.sq", "--set", "slow=1"][..], "interrupted, at time "),
        (&["sweep", "mm1.sq", "--sweep", "slow=0,1", "--jobs", "1", "--resume", "state"], "1 of 2 runs"),
    ] {
        let child = Command::new(env!("CARGO_BIN_EXE_serq"))
            .args(arguments)
            .current_dir(&here)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(700));
        let interrupt = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        assert!(interrupt.success());
        let output = child.wait_with_output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(130), 0), "{err}");
        assert!(err.contains(sentence), "{err}");
    }
    let state = fs::read_to_string(here.join("state")).unwrap();
    assert_eq!(state.matches("\"run\":\"slow=0\"").count(), 1, "{state}");
}
