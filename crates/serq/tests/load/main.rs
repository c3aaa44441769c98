//! Programs played as real clients of a running server.

#[path = "../binary/mod.rs"]
mod binary;
mod misbehaving;
mod server;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use binary::serq;
use serde_json::Value;
use server::Server;

/// The pair of the examples, quick, with other lines in its route and workload.
fn program(name: &str, changes: &[(&str, &str)]) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut text = fs::read_to_string(root.join("examples/local/pd_smollm2.sq")).unwrap();
    let library = root.join("lib/vllm_0_32.sq");
    let always = [
        ("../../lib/vllm_0_32.sq", library.to_str().unwrap()),
        ("let weights = 0.007;", "let weights = 0.001;"),
        ("let token = 0.0006;", "let token = 0.00001;"),
        ("poisson(0.5)", "poisson(40)"),
        ("~exp(2)", "~exp(0.05)"),
        ("horizon 600; warmup 60;", "horizon 60;"),
        (
            "    observe remote = remote;",
            "    observe remote = remote;\n    observe prompt = prompt;\n    observe answer = answer;",
        ),
    ];
    for (old, new) in always.iter().chain(changes) {
        assert!(text.contains(old), "{old}");
        text = text.replace(old, new);
    }
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("load");
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join(format!("{name}.sq"));
    fs::write(&path, text).unwrap();
    path
}

fn load(path: &Path, url: &str, more: &[&str]) -> Value {
    let (status, out, told) = serq(&[&["load", path.to_str().unwrap(), "--url", url, "--json"], more].concat());
    assert_eq!(status, 0, "{told}");
    serde_json::from_str(&out).unwrap()
}

/// Count, mean and quantiles.
fn figures(observe: &Value) -> Vec<f64> {
    ["count", "mean", "p50", "p90", "p99"].iter().map(|figure| observe[figure].as_f64().unwrap_or(f64::NAN)).collect()
}

/// Sums of the same numbers in another order.
fn same(a: &Value, b: &Value) -> bool {
    figures(a).iter().zip(figures(b)).all(|(a, b)| (a - b).abs() <= 1e-9 * a.abs())
}

#[test]
fn the_same_clients_come_as_in_the_simulation_and_lengths_are_exact() {
    let path = program("same", &[]);
    let server = Server::start(&path, &[]);
    let all = ["--arrivals", "30", "--seed", "3"];
    let played = load(&path, &server.url, &all);
    let (_, out, _) = serq(&[&["run", path.to_str().unwrap(), "--json"], &all[..]].concat());
    let simulated: Value = serde_json::from_str(&out).unwrap();
    for figure in ["arrivals", "ended", "turns", "constants", "program", "seed"] {
        assert_eq!(played[figure], simulated[figure], "{figure}");
    }
    let clients = &played["clients"];
    assert_eq!(clients["requests"], clients["answered"]);
    assert_eq!(
        (&clients["prompts_off"], &clients["answers_off"], &clients["cut_off"]),
        (&0.into(), &0.into(), &0.into())
    );
    assert!(clients["failed"].as_object().unwrap().is_empty());
    for (observe, measured) in [("prompt", "prompt_tokens"), ("answer", "output_tokens")] {
        assert!(same(&played["observes"][observe], &simulated["observes"][observe]), "{observe}");
        assert!(same(&played["observes"][observe], &clients["measured"][measured]), "{measured}");
    }
    // The program's own definition, measured by the client, is what a client measures.
    for name in ["ttft", "response"] {
        let (own, client) = (figures(&played["observes"][name]), figures(&clients["measured"][name]));
        assert_eq!(own[0], client[0], "{name}");
        assert!(own[1..].iter().zip(&client[1..]).all(|(a, b)| (a - b).abs() < 0.25), "{name}: {own:?} {client:?}");
        // It sees what the server saw of the same requests, and the way there and back.
        let server = figures(&clients["server"][name]);
        assert_eq!(server[0], client[0]);
        assert!(client[1] >= server[1] && client[1] - server[1] < 0.5, "{name}: {client:?}, server {server:?}");
    }
    // What only the server knows comes from it.
    assert!(same(&played["observes"]["remote"], &clients["server"]["remote"]));
    assert!(played["observes"]["remote"]["mean"].as_f64().unwrap() > 0.5);
}

/// Each turn goes on from what was said, so a server finds all whole blocks of it.
#[test]
fn conversations_really_grow() {
    let changes = [
        ("set prompt = floor(~uniform(20, 800));", "set prompt = context + floor(~uniform(20, 300));"),
        ("set more = ~bernoulli(0.5);", "set more = turn_no < 4;"),
        ("  turn {", "  init { set context = 0; }\n  turn {"),
        (
            "request router;",
            "observe had = context > 0 ? reusable(context, bsD) : 0;\n      request router;\n      set context = prompt + answer;",
        ),
        (
            "    set asked = now;",
            "    set asked = now;\n    observe found = min(cachedin(D.kv), reusable(prompt, bsD));",
        ),
        ("blocksD = 512", "blocksD = 4096"),
        ("blocksP = 1024", "blocksP = 4096"),
    ];
    let path = program("grow", &changes);
    let server = Server::start(&path, &[]);
    for by in ["ids", "text"] {
        let played = load(
            &path,
            &server.url,
            &["--arrivals", "8", "--seed", if by == "ids" { "1" } else { "2" }, "--tokens-by", by],
        );
        let (had, found) = (&played["observes"]["had"], &played["observes"]["found"]);
        assert_eq!(played["clients"]["answered"], 32);
        assert_eq!(had["count"], 32);
        if by == "ids" {
            assert!(same(had, found), "{had} and {found}");
            assert!(had["mean"].as_f64().unwrap() > 200.0);
        }
    }
}

#[test]
fn sessions_of_a_group_begin_with_the_same_tokens() {
    let changes = [
        ("hidden answer;", "hidden answer;\n  prefix (~bernoulli(0.5), 96);"),
        ("set prompt = floor(~uniform(20, 800));", "set prompt = 128 + floor(~uniform(20, 300));"),
        ("set more = ~bernoulli(0.5);", "set more = 0;"),
        (
            "    set asked = now;",
            "    set asked = now;\n    observe found = min(cachedin(D.kv), reusable(prompt, bsD));",
        ),
        ("poisson(40)", "poisson(4)"),
    ];
    let path = program("group", &changes);
    let server = Server::start(&path, &[]);
    let played = load(&path, &server.url, &["--arrivals", "12"]);
    let found = &played["observes"]["found"];
    // Two begin: the first of each group.
    assert_eq!((found["p50"].as_f64(), found["p99"].as_f64()), (Some(96.0), Some(96.0)), "{found}");
    assert_eq!(found["mean"].as_f64(), Some(96.0 * 10.0 / 12.0));
}

/// Ten times as fast: the trace, and the instances.
#[test]
fn a_trace_s_prompts_have_in_common_what_it_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/trace/mooncake_pd.sq");
    let quick = ["--set", "a=1e-5", "--set", "omega=8e-4", "--set", "beta=7.2e-9", "--set", "Bw=2e6"];
    let server = Server::start(&path, &quick);
    let settings = [&quick[..], &["--speed", "10", "--arrivals", "20"]].concat();
    let played = load(&path, &server.url, &settings);
    let (_, out, _) = serq(&[&["run", path.to_str().unwrap(), "--json"], &settings[..]].concat());
    let simulated: Value = serde_json::from_str(&out).unwrap();
    let (observes, clients) = (&played["observes"], &played["clients"]);
    assert_eq!(clients["answered"], 20);
    assert!(same(&observes["asked_for"], &simulated["observes"]["asked_for"]));
    // Who finds what depends on when they come; here nearly all do as in the simulation.
    let found = |report: &Value| report["found"]["mean"].as_f64().unwrap();
    let (here, there) = (found(observes), found(&simulated["observes"]));
    assert!(there > 1000.0 && here > 0.7 * there && here < 1.3 * there, "{here}, simulated {there}");
    assert!(same(&observes["found"], &clients["measured"]["cached_tokens"]));
}

#[test]
fn a_server_that_is_not_there_is_one_sentence() {
    let path = program("nobody", &[]);
    let (status, out, told) = serq(&["load", path.to_str().unwrap(), "--url", "http://127.0.0.1:1"]);
    assert_eq!((status, &out[..]), (1, ""));
    assert!(told.starts_with("error: nobody answers at http://127.0.0.1:1: "), "{told}");
}

#[test]
fn an_interrupted_run_reports_what_was_done() {
    let path = program("interrupted", &[]);
    let server = Server::start(&path, &[]);
    let child = Command::new(env!("CARGO_BIN_EXE_serq"))
        .args(["load", path.to_str().unwrap(), "--url", &server.url])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_secs(2));
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(text.starts_with("interrupted   time ") && text.contains("\n  clients "), "{text}");
}

#[test]
fn a_program_without_requests_is_refused() {
    for (path, said) in
        [("examples/queueing/mm1.sq", "error[not-played]"), ("examples/engine/vllm_multi_turn.sq", "error[not-played]")]
    {
        let path = format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"));
        let (status, _, told) = serq(&["load", &path, "--url", "http://127.0.0.1:1"]);
        assert!(status == 1 && told.contains(said), "{told}");
    }
    let (status, _, told) = serq(&["load", "x.sq", "--url", "https://a"]);
    assert!(status == 2 && told.contains("no TLS"), "{told}");
}
