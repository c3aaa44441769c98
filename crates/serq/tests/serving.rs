//! `serq up`, `demo` and `replay` from outside.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn serq(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_serq")).args(arguments).current_dir(root()).output().unwrap()
}

/// A server, ended with the test.
struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_serq"))
            .args(["up", "--port", "0"])
            .args(arguments)
            .current_dir(root())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let address = lines.find_map(|line| {
            let line = line.unwrap();
            let at = line.find("serving http://")?;
            Some(line[at + "serving http://".len()..].trim_end_matches("/v1").to_owned())
        });
        Self { process, address: address.expect("it says where it serves") }
    }

    fn request(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let body = body.map_or(String::new(), Value::to_string);
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\nx-serq-observe: 1\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer[9..12].parse().unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let body = if head.to_lowercase().contains("transfer-encoding: chunked") { unchunk(body) } else { body.into() };
        (status, body)
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let (status, text) = self.request("POST", path, Some(body));
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }
}

fn unchunk(mut body: &str) -> String {
    let mut text = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        text += &rest[..length];
        body = rest[length..].trim_start_matches("\r\n");
        if length == 0 {
            break;
        }
    }
    text
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const PAIR: &str = "examples/local/pd_smollm2.sq";

#[test]
fn an_answer_is_the_same_streamed_or_not_here_or_there_and_again() {
    let pair = Server::start(&[PAIR, "--set", "thr=1"]);
    let alone = Server::start(&["examples/local/colocated_smollm2.sq", "--compute", "f32"]);
    let body = json!({"model": "tiny", "prompt": "A prefill here, a decode there.", "max_tokens": 40, "temperature": 0.8, "seed": 5, "return_token_ids": true});
    let whole = pair.post("/v1/completions", &body);
    let text = whole["choices"][0]["text"].as_str().unwrap().to_owned();
    assert_eq!(whole["usage"]["completion_tokens"], whole["choices"][0]["token_ids"].as_array().unwrap().len());
    assert_eq!(whole["serq"]["remote"], 1.0);
    let prompt_tokens = whole["usage"]["prompt_tokens"].as_f64().unwrap();
    // Two layers of keys and values, two heads of 16 singles.
    assert_eq!(whole["serq"]["kv_bytes_moved"], prompt_tokens * 2.0 * 2.0 * 2.0 * 16.0 * 4.0);
    assert_eq!(pair.post("/v1/completions", &body)["choices"][0]["text"], text, "again, from what is cached");
    assert_eq!(alone.post("/v1/completions", &body)["choices"][0]["text"], text, "on one instance");
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let (status, events) = pair.request("POST", "/v1/completions", Some(&streamed));
    assert_eq!(status, 200);
    let pieces: String = events
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .filter(|data| *data != "[DONE]")
        .filter_map(|data| {
            Some(serde_json::from_str::<Value>(data).unwrap()["choices"][0]["text"].as_str()?.to_owned())
        })
        .collect();
    assert_eq!(pieces, text);
}

#[test]
fn several_answers_share_the_prompt_s_blocks_and_differ() {
    let server = Server::start(&["examples/local/colocated_smollm2.sq"]);
    let prompt: Vec<u32> = (0..200).map(|at| at % 250).collect();
    let body = json!({"model": "tiny", "prompt": prompt, "max_tokens": 16, "n": 3, "seed": 3, "ignore_eos": true});
    let answer = server.post("/v1/completions", &body);
    let texts: Vec<&Value> = answer["choices"].as_array().unwrap().iter().map(|choice| &choice["text"]).collect();
    assert!(texts[0] != texts[1] && texts[1] != texts[2], "{texts:?}");
    let (_, metrics) = server.request("GET", "/metrics", None);
    let used = |name: &str| {
        let line = metrics.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {metrics}"));
        line.split(' ').next_back().unwrap().parse::<f64>().unwrap()
    };
    assert_eq!(used("serq_pool_left{pool=\"E.kv\"}"), 0.0);
    assert_eq!(used("serq_pool_used{pool=\"E.kv\"}"), 0.0);
    // The prompt's 12 whole blocks are there once, and one more of each answer.
    assert_eq!(used("serq_pool_cached{pool=\"E.kv\"}"), 16.0 * (12.0 + 3.0));
}

#[test]
fn clients_that_go_away_leave_nothing_and_the_log_is_decided_again() {
    let log = std::env::temp_dir().join(format!("serq-decisions-{}.jsonl", std::process::id()));
    let mut server = Server::start(&[PAIR, "--decisions", log.to_str().unwrap(), "--set", "thr=16"]);
    let prompt: Vec<u32> = (0..150).collect();
    let body = json!({"model": "tiny", "prompt": prompt, "max_tokens": 300, "ignore_eos": true, "stream": true});
    for nth in 0..500 {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        let mut body = body.clone();
        body["prompt"][nth % 150] = json!(7);
        let body = body.to_string();
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        if nth % 3 == 0 {
            let mut some = [0; 64];
            let _ = stream.read(&mut some).unwrap();
        }
    }
    // One that is answered to its end comes after them; then they are gone, or will be at the next look.
    let whole = json!({"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 3, "ignore_eos": true});
    loop {
        server.post("/v1/completions", &whole);
        let (_, metrics) = server.request("GET", "/metrics", None);
        let sum = |name: &str| -> f64 {
            metrics
                .lines()
                .filter(|line| line.starts_with(name))
                .map(|line| line.split(' ').next_back().unwrap().parse::<f64>().unwrap())
                .sum()
        };
        assert_eq!(sum("serq_pool_left{"), 0.0);
        if sum("serq_pool_used{") == 0.0 && sum("serq_pool_holders{") == 0.0 {
            break;
        }
    }
    let terminated = Command::new("kill").arg(server.process.id().to_string()).status().unwrap();
    assert!(terminated.success());
    assert!(server.process.wait().unwrap().success());
    let replayed = serq(&["replay", log.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&replayed.stdout).into_owned();
    assert!(replayed.status.success(), "{}", String::from_utf8_lossy(&replayed.stderr));
    assert!(said.contains("requests"), "{said}");
    assert!(replayed.stderr.is_empty(), "{}", String::from_utf8_lossy(&replayed.stderr));
    // A log that was cut at a line's end says so, one that lacks lines is refused.
    let text = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let (end, rest) = lines.split_last().unwrap();
    std::fs::write(&log, rest.concat()).unwrap();
    let cut = serq(&["replay", log.to_str().unwrap()]);
    assert!(cut.status.success());
    assert!(String::from_utf8_lossy(&cut.stderr).contains("the log has no end"));
    // … and so does one that was cut within a line, and within what a fact led to.
    for bytes in [text.len() - end.len() - 5, text.len() / 2, text.len() / 3] {
        std::fs::write(&log, &text.as_bytes()[..bytes]).unwrap();
        let cut = serq(&["replay", log.to_str().unwrap()]);
        assert!(cut.status.success(), "{}", String::from_utf8_lossy(&cut.stderr));
        assert!(String::from_utf8_lossy(&cut.stderr).contains("the log has no end"));
    }
    std::fs::write(&log, [lines[0], end].concat()).unwrap();
    let lacking = serq(&["replay", log.to_str().unwrap()]);
    assert!(!lacking.status.success());
    assert!(String::from_utf8_lossy(&lacking.stderr).contains("lines were written before this one"));
    // Another decision in the log is noticed.
    let wrong = text.replacen("\"tokens\":1.0,", "\"tokens\":2.0,", 1);
    assert_ne!(text, wrong);
    std::fs::write(&log, wrong).unwrap();
    let replayed = serq(&["replay", log.to_str().unwrap()]);
    assert!(!replayed.status.success());
    let said = String::from_utf8_lossy(&replayed.stderr).into_owned();
    assert!(said.contains("decides"), "{said}");
    std::fs::remove_file(log).unwrap();
}

#[test]
fn the_demo_shows_equal_texts_and_notices_a_broken_copy() {
    let shown = serq(&["demo", "--json"]);
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["same_text"]["equal"], true);
    assert_eq!(shown["same_text"]["kv_bytes_moved"], shown["same_text"]["kv_bytes_expected"]);
    assert_eq!(shown["interference"].as_array().unwrap().len(), 3);
    let broken = serq(&["demo", "--sabotage", "copy"]);
    assert!(!broken.status.success());
    assert_eq!(String::from_utf8_lossy(&broken.stderr), "error: the texts differ\n");
}

#[test]
fn a_request_that_fits_nowhere_is_refused_and_others_are_served() {
    // Four blocks of 32 to decode in, eight of 16 to prefill in.
    let server = Server::start(&[PAIR, "--set", "blocksD=4", "--set", "blocksP=8", "--set", "thr=1"]);
    let ask = |prompt: usize, answer: usize| {
        let prompt: Vec<usize> = (0..prompt).collect();
        let body = json!({"model": "tiny", "prompt": prompt, "max_tokens": answer, "ignore_eos": true});
        let (status, text) = server.request("POST", "/v1/completions", Some(&body));
        let answer: Value = serde_json::from_str(&text).unwrap();
        (status, answer["error"]["type"].clone(), answer["error"]["message"].clone())
    };
    let (_, models) = server.request("GET", "/v1/models", None);
    let models: Value = serde_json::from_str(&models).unwrap();
    assert_eq!(models["data"][0]["max_model_len"], 128);
    // Together more than any memory has; then a prompt alone that is.
    for (prompt, answer) in [(100, 40), (200, 1)] {
        let (status, kind, message) = ask(prompt, answer);
        assert_eq!((status, kind), (400, json!("invalid_request_error")), "{message}");
    }
    assert_eq!(ask(100, 20).0, 200);
}

/// Four processes, two of which are killed while they serve: every text is that of one process.
#[test]
fn processes_that_are_killed_cost_no_text() {
    const PAIRS: &str = "examples/local/2p2d_smollm2.sq";
    let alone = Server::start(&[PAIRS, "--set", "thr=8", "--compute", "f32"]);
    let apart = Server::start(&[PAIRS, "--set", "thr=8", "--processes", "--retries", "10", "--threads", "4"]);
    let body = |nth: u64| {
        let prompt: Vec<u64> = (0..60 + 11 * nth).map(|at| (at * 7 + nth / 2) % 250).collect();
        json!({"model": "tiny", "prompt": prompt, "max_tokens": 24, "ignore_eos": true, "temperature": 0.7, "seed": nth})
    };
    let texts: Vec<Value> =
        (0..12).map(|nth| alone.post("/v1/completions", &body(nth))["choices"][0]["text"].clone()).collect();
    let listed = Command::new("pgrep").args(["-P", &apart.process.id().to_string()]).output().unwrap();
    let processes: Vec<String> = String::from_utf8(listed.stdout).unwrap().lines().map(str::to_owned).collect();
    assert_eq!(processes.len(), 4, "a process an instance");
    std::thread::scope(|scope| {
        for client in 0..3 {
            let (apart, texts, body) = (&apart, &texts, &body);
            scope.spawn(move || {
                for nth in (0..36).map(|at| (at * 5 + client * 4) % 12) {
                    let answer = apart.post("/v1/completions", &body(nth as u64));
                    assert_eq!(answer["choices"][0]["text"], texts[nth], "request {nth}");
                }
            });
        }
        for process in &processes[1..3] {
            assert!(Command::new("kill").args(["-9", process]).status().unwrap().success());
        }
    });
    let (status, _) = apart.request("GET", "/health", None);
    assert!(status == 200 || status == 503);
    let (_, metrics) = apart.request("GET", "/metrics", None);
    assert!(metrics.lines().any(|line| line.starts_with("serq_instance_up{instance=\"P[0]\"} ")), "{metrics}");
    assert!(!metrics.lines().any(|line| line.starts_with("serq_pool_left{") && !line.ends_with(" 0")), "{metrics}");
}

/// Ports that these processes listen at, as the system lists them.
#[cfg(target_os = "linux")]
fn listening(processes: &[String]) -> Vec<u16> {
    let mut sockets = Vec::new();
    for process in processes {
        for file in std::fs::read_dir(format!("/proc/{process}/fd")).unwrap() {
            let Ok(target) = std::fs::read_link(file.unwrap().path()) else { continue };
            let name = target.to_string_lossy().into_owned();
            sockets.extend(name.strip_prefix("socket:[").map(|rest| rest.trim_end_matches(']').to_owned()));
        }
    }
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let rows = table.lines().skip(1).map(|row| row.split_whitespace().collect::<Vec<_>>());
    // A listener's state is 0A.
    let listeners = rows.filter(|row| row[3] == "0A" && sockets.iter().any(|socket| socket == row[9]));
    listeners.map(|row| u16::from_str_radix(row[1].split(':').nth(1).unwrap(), 16).unwrap()).collect()
}

#[cfg(target_os = "linux")]
fn resident_bytes(process: &str) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

/// On every port, as the system lists them: garbage, endless lengths, half greetings, and what others were heard to
/// say. Nobody gets in, nothing grows, everybody is served.
#[cfg(target_os = "linux")]
#[test]
fn who_does_not_know_the_token_gets_nowhere_on_any_port() {
    let server = Server::start(&[PAIR, "--set", "thr=8", "--processes", "--transport", "tcp"]);
    let parent = server.process.id().to_string();
    let listed = Command::new("pgrep").args(["-P", &parent]).output().unwrap();
    let mut processes: Vec<String> = String::from_utf8(listed.stdout).unwrap().lines().map(str::to_owned).collect();
    processes.push(parent);
    let body = json!({"model": "tiny", "prompt": [5, 6, 7, 8, 9, 10, 11, 12, 13, 14], "max_tokens": 8, "ignore_eos": true, "temperature": 0});
    let text = server.post("/v1/completions", &body)["choices"][0]["text"].clone();
    let ports = listening(&processes);
    // The server's, its own end of the links, and two of each instance.
    assert_eq!(ports.len(), 6, "{ports:?}");
    let before: Vec<usize> = processes.iter().map(|process| resident_bytes(process)).collect();
    let mut garbage: Vec<Vec<u8>> =
        vec![vec![0; 4096], vec![0xff; 4096], b"SERQ-KV1".to_vec(), b"GET / HTTP/1.1\r\n\r\n".to_vec()];
    garbage.push([&b"SERQ-KV1"[..], &[7; 400]].concat());
    for round in 0..40 {
        for port in &ports {
            for bytes in &garbage {
                let Ok(mut stream) = TcpStream::connect(("127.0.0.1", *port)) else { continue };
                stream.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
                let _ = stream.write_all(bytes);
                if round == 0 {
                    // What it says first is said by nobody else, and again it proves nothing.
                    let mut heard = [0; 64];
                    let count = stream.read(&mut heard).unwrap_or(0);
                    let _ = stream.write_all(&heard[..count]);
                    let _ = stream.shutdown(std::net::Shutdown::Write);
                    let mut rest = Vec::new();
                    let _ = stream.read_to_end(&mut rest);
                    assert!(rest.len() < 4096, "port {port} says much to a stranger");
                }
            }
        }
    }
    assert_eq!(server.post("/v1/completions", &body)["choices"][0]["text"], text);
    for (process, before) in processes.iter().zip(before) {
        let after = resident_bytes(process);
        assert!(after < before + (32 << 20), "process {process} grew from {before} to {after} bytes");
    }
}

#[test]
fn what_cannot_be_served_is_said_in_a_sentence() {
    let cases: [(&[&str], &str); 21] = [
        (
            &["gateway", PAIR, "--peers", "P=127.0.0.1:7,D=127.0.0.1:7", "--token-file", "README.md"],
            "cannot both be at 127.0.0.1:7",
        ),
        (
            &["instance", PAIR, "--queue", "P", "--drain=-1", "--token-file", "README.md"],
            "a number of seconds from 0 is meant",
        ),
        (
            &["instance", PAIR, "--queue", "P", "--listen", "0.0.0.0:0", "--token-file", "README.md"],
            "--kv-reached-at says which one others take",
        ),
        (&["up", PAIR, "--transport", "tcp"], "--transport is for --processes"),
        (&["gateway", PAIR, "--peers", "P=127.0.0.1:1,D=127.0.0.1:2"], "who does not know it is turned away"),
        (&["gateway", PAIR, "--peers", "P:127.0.0.1"], "`P[0]=127.0.0.1:7000` is meant"),
        (&["instance", PAIR, "--queue", "Q[0]", "--token-file", "README.md"], "has no instance Q[0]; it has P, D"),
        (
            &["instance", PAIR, "--queue", "P", "--transport", "pigeon", "--token-file", "README.md"],
            "`shm`, `nixl` or `tcp` is meant",
        ),
        (&["up", PAIR, "--processes", "--modelled"], "cannot be used with"),
        (&["up", PAIR, "--model", "nobody"], "no model, file or folder is called `nobody`"),
        (&["up", PAIR, "--set", "blocksP=100000000"], "at most"),
        (&["up", PAIR, "--set", "blocksD=4000000"], "GiB are to be had: a smaller `cap` is meant"),
        (&["up", PAIR, "--set", "bsP=16.5"], "a whole number from 1 to 65536 is meant"),
        (&["up", "examples/queueing/mm1.sq"], "no session requests a route"),
        (&["up", PAIR, "--kernels", "sse2"], "no kernels are named `sse2`"),
        (&["up", PAIR, "--host", "203.0.113.1"], "cannot listen"),
        (&["up", PAIR, "--set", "B=0"], "has a budget of 0 tokens a step; a whole number from 1 is meant"),
        (&["up", PAIR, "--set", "B=100.5"], "has a budget of 100.5 tokens a step"),
        (
            &["up", "examples/pd-disaggregation/guide_8p2d.sq"],
            "nothing in it depends on how long a request's prompt is",
        ),
        (&["replay", "README.md"], "line 1"),
        (&["replay", "docs"], "cannot read docs: it is a directory"),
    ];
    for (arguments, expected) in cases {
        let said = serq(arguments);
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(!said.status.success() && text.contains(expected), "{arguments:?}: {text}");
        assert!(!text.contains("panicked"), "{text}");
    }
}
