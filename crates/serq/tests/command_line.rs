//! The built binary at its edges: exit statuses, sentences, pipes, files that are not what they should be.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// What a command said.
struct Said {
    status: i32,
    out: String,
    err: String,
}

fn serq(arguments: &[&str]) -> Said {
    serq_with_input(arguments, b"")
}

fn serq_with_input(arguments: &[&str], input: &[u8]) -> Said {
    let mut child = Command::new(env!("CARGO_BIN_EXE_serq"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that reads no input may be gone already.
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Said { status: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

/// A file of this test's own.
fn file(name: &str, content: impl AsRef<[u8]>) -> String {
    let path = folder().join(name);
    fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

fn folder() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("command_line");
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Status, nothing on standard output, and a sentence on standard error.
fn check_refused(arguments: &[&str], status: i32, sentence: &str) {
    let said = serq(arguments);
    assert_eq!(said.status, status, "{arguments:?}: {}", said.err);
    assert_eq!(said.out, "", "{arguments:?}");
    assert!(said.err.contains(sentence), "{arguments:?} says:\n{}\nand not: {sentence}", said.err);
    assert!(!said.err.contains("panicked"), "{}", said.err);
    assert!(!said.err.contains('\u{1b}'), "colour in a pipe: {:?}", said.err);
}

#[test]
fn a_wrong_command_line_is_told_before_the_file_is_opened() {
    for (arguments, sentence) in [
        (&["run"][..], "FILE"),
        (&["fly"], "unrecognized subcommand"),
        (&["run", "no.sq", "--fast"], "unexpected argument"),
        (&["run", "no.sq", "--seed", "-1"], "-1"),
        (&["run", "no.sq", "--seed", "1.5"], "1.5"),
        (&["run", "no.sq", "--seed", "18446744073709551616"], "18446744073709551616"),
        (&["run", "no.sq", "--seeds", "3..1"], "3..1 has no seeds"),
        (&["run", "no.sq", "--seeds", "1,1"], "seed 1 is there twice"),
        (&["run", "no.sq", "--seeds", "0..99999999999"], "more than 100000 seeds"),
        (&["run", "no.sq", "--seeds", ""], "no seed"),
        (&["run", "no.sq", "--seed", "1", "--seeds", "1..2"], "cannot be used with"),
        (&["run", "no.sq", "--jobs", "0"], "0"),
        (&["run", "no.sq", "--horizon", "nan"], "it must be finite and above 0"),
        (&["run", "no.sq", "--horizon", "inf"], "it must be finite and above 0"),
        (&["run", "no.sq", "--horizon", "0"], "it must be finite and above 0"),
        (&["run", "no.sq", "--horizon", "-5"], "it must be finite and above 0"),
        (&["run", "no.sq", "--horizon", "1e999"], "it must be finite and above 0"),
        (&["run", "no.sq", "--horizon", "ten"], "`ten` is not a number"),
        (&["run", "no.sq", "--warmup", "-1"], "it must be finite and at least 0"),
        (&["run", "no.sq", "--warmup", "NaN"], "it must be finite and at least 0"),
        (&["run", "no.sq", "--warmup", "10", "--horizon", "10"], "must be below"),
        (&["run", "no.sq", "--arrivals", "0"], "a whole number of at least 1"),
        (&["run", "no.sq", "--arrivals", "1e3"], "a whole number of at least 1"),
        (&["run", "no.sq", "--max-events", "0"], "a whole number of at least 1"),
        (&["run", "no.sq", "--max-wall", "0"], "it must be finite and above 0"),
        (&["run", "no.sq", "--set", "thr"], "has no `=`"),
        (&["run", "no.sq", "--set", "thr="], "has no value"),
        (&["run", "no.sq", "--set", "2=3"], "is no name"),
        (&["run", "no.sq", "--slo", "ttft"], "has no `=`"),
        (&["run", "no.sq", "--slo", "ttft=inf"], "not finite"),
        (&["run", "no.sq", "--json", "--csv"], "cannot be used with"),
        (&["run", "no.sq", "--seeds", "1..2", "--facts"], "cannot be used with"),
        (&["run", "no.sq", "--seeds", "1..2", "--dump", "d"], "cannot be used with"),
        (&["run", "no.sq", "--message-format", "long"], "invalid value"),
        (&["run", "no.sq", "--precision", "ttft"], "has no `=`"),
        (&["run", "no.sq", "--precision", "ttft=0%"], "a width above 0"),
        (&["run", "no.sq", "--precision", "ttft=1%", "--seeds", "1..2"], "cannot be used with"),
        (&["run", "no.sq", "--precision", "ttft=1%", "--facts"], "cannot be used with"),
        (&["sweep", "no.sq"], "--sweep"),
        (&["sweep", "no.sq", "--sweep", "a=1,,2"], "empty value"),
        (&["sweep", "no.sq", "--sweep", "a=1,1"], "a takes 1 twice"),
        (&["sweep", "no.sq", "--sweep", "a=1", "--sweep", "a=2"], "is there twice"),
        (&["sweep", "no.sq", "--sweep", "a=1", "--set", "a=2"], "both set and swept"),
        (&["sweep", "no.sq", "--sweep", "a=1,2", "--baseline", "a=3"], "a is 1, 2"),
        (&["sweep", "no.sq", "--sweep", "a=1,2", "--baseline", "b=1"], "which is not swept"),
        (&["sweep", "no.sq", "--sweep", "a=1,2,3,4,5,6,7,8,9,10,11", "--seeds", "1..100000"], "1100000 runs"),
        (&["fmt"], "FILE"),
        (&["ir"], "FILE"),
        (&["ir", "no.sq", "--schema"], "cannot be used with"),
    ] {
        check_refused(arguments, 2, sentence);
    }
}

#[test]
fn a_file_that_is_none_is_told_in_a_sentence() {
    let no = folder().join("there-is-no-such.sq");
    let no = no.to_str().unwrap();
    let latin = file("latin.sq", b"// caf\xe9\n");
    let here = folder();
    let here = here.to_str().unwrap();
    for command in ["run", "check", "fmt", "ir", "explain"] {
        check_refused(&[command, no], 1, &format!("error: cannot read {no}: there is no such file\n"));
        check_refused(&[command, here], 1, &format!("error: cannot read {here}: it is a directory\n"));
        check_refused(&[command, &latin], 1, &format!("error: cannot read {latin}: it is not UTF-8 text\n"));
        check_refused(&[command, &format!("{latin}/x.sq")], 1, "not a directory");
    }
    check_refused(&["sweep", no, "--sweep", "a=1"], 1, "there is no such file");
    let said = serq_with_input(&["check", "-"], b"\xff");
    assert_eq!((said.status, &said.err[..]), (1, "error: cannot read standard input: it is not UTF-8 text\n"));
}

#[test]
fn an_ir_that_is_none_is_told_in_a_sentence() {
    let other = file("other.json", "{\"ir_version\": 99}");
    check_refused(&["run", &other], 1, "IR version 99, this serq reads version");
    let cut = file("cut.json", "{\"ir_version\": 2, \"name\": \"x\"");
    check_refused(&["run", &cut], 1, "not a serq IR");
    check_refused(&["run", &cut, "--set", "a=1"], 1, "is IR, where constants and definitions are folded");
    check_refused(&["run", &cut, "--def", "a=1"], 1, "is IR, where constants and definitions are folded");
}

#[test]
fn fmt_writes_in_place_and_check_only_lists() {
    let untidy = file("untidy.sq", "stage   desk :fifo;\r\n");
    let said = serq(&["fmt", "--check", &untidy]);
    assert_eq!((said.status, said.out, said.err), (1, format!("{untidy}\n"), String::new()));
    assert_eq!(fs::read_to_string(&untidy).unwrap(), "stage   desk :fifo;\r\n");

    let said = serq(&["fmt", &untidy]);
    assert_eq!((said.status, said.out, said.err), (0, String::new(), String::new()));
    let tidy = fs::read_to_string(&untidy).unwrap();
    assert_ne!(tidy, "stage   desk :fifo;\r\n");

    let said = serq(&["fmt", "--check", &untidy]);
    assert_eq!((said.status, said.out), (0, String::new()));
    let said = serq_with_input(&["fmt", "-"], b"stage   desk :fifo;\r\n");
    assert_eq!((said.status, said.out), (0, tidy.clone()));
    let said = serq_with_input(&["fmt", "-", "--check"], b"stage   desk :fifo;\r\n");
    assert_eq!((said.status, &said.out[..]), (1, "<stdin>\n"));
}

#[test]
fn fmt_leaves_a_wrong_file_alone_and_goes_on() {
    let wrong = file("wrong.sq", "stage desk : fifo;\npool { cap 3 }\n");
    let untidy = file("untidy2.sq", "stage   desk :fifo;\n");
    let said = serq(&["fmt", &wrong, &untidy, "--message-format", "short"]);
    assert_eq!((said.status, &said.out[..]), (1, ""));
    assert!(said.err.starts_with(&format!("{wrong}:2:")), "{}", said.err);
    assert_eq!(fs::read_to_string(&wrong).unwrap(), "stage desk : fifo;\npool { cap 3 }\n");
    assert_ne!(fs::read_to_string(&untidy).unwrap(), "stage   desk :fifo;\n");
}

#[test]
fn the_schema_is_json() {
    let said = serq(&["ir", "--schema"]);
    assert_eq!(said.status, 0);
    let schema: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert!(schema["properties"]["pools"].is_object());
}

#[test]
fn a_page_for_every_code_and_the_nearest_for_others() {
    let all = serq(&["explain-error"]);
    assert_eq!(all.status, 0);
    assert!(all.out.lines().count() > 10);
    for code in all.out.lines() {
        let page = serq(&["explain-error", code]);
        assert_eq!(page.status, 0, "{code}");
        assert!(page.out.starts_with(&format!("# {code}\n")), "{code}");
    }
    assert_eq!(serq(&["explain-error", "error[bad-number]"]).out, serq(&["explain-error", "bad-number"]).out);
    check_refused(&["explain-error", "bad-numbr"], 1, "no diagnostic has the code `bad-numbr`: is it `bad-number`?");
    check_refused(&["explain-error", "zzzzzzzzzz"], 1, "`serq explain-error` lists them all");
}

#[test]
fn a_reader_that_went_away_is_no_trouble() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = Command::new(env!("CARGO_BIN_EXE_serq")).args(["ir", "--schema"]).stdout(writer).output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap()), (Some(0), String::new()));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_told() {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_serq")).args(["ir", "--schema"]).stdout(full).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), &err[..]), (Some(1), "error: cannot write the output: the disk is full\n"));
}

#[test]
fn help_and_version() {
    let said = serq(&["--version"]);
    assert_eq!((said.status, said.out), (0, format!("serq {}\n", env!("CARGO_PKG_VERSION"))));
    for command in ["run", "sweep", "check", "fmt", "ir", "explain", "explain-error"] {
        let said = serq(&[command, "--help"]);
        assert_eq!(said.status, 0);
        assert!(said.out.contains("Usage: serq"), "{}", said.out);
        let first = said.out.lines().next().unwrap();
        assert!(serq(&["--help"]).out.contains(first), "{command} is listed with its own sentence: {first}");
    }
}
