//! Real processes, killed and stopped while they serve: prefillers and decoders, in prefills, transfers and decodes.
//!
//! What is asserted: every answer is, to the byte, what the same request got before anything was killed, or the
//! error that says who was not there; and in the end no block is held, and everything answers as before.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::program::root;

/// What is killed, how often, and over which transport.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Kills (-9), and stops that are continued.
    #[arg(long, default_value_t = 200)]
    pub kills: u64,
    /// What is served.
    #[arg(long, default_value = "examples/local/2p2d_smollm2.sq")]
    pub program: String,
    /// As `serq instance --transport`.
    #[arg(long, default_value = "shm")]
    pub transport: String,
    /// Of what is killed when.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Requests that are given up in a storm, after the kills.
    #[arg(long, default_value_t = 500)]
    pub aborts: u64,
    /// The binary.
    #[arg(long, default_value = "target/release/serq")]
    pub serq: PathBuf,
}

/// Different requests; each is asked again and again.
const REQUESTS: usize = 24;
const CLIENTS: usize = 6;
/// An answer that takes longer is lost.
const ANSWER: Duration = Duration::from_secs(60);
/// What takes longer to be as it was never will be.
const SETTLED: Duration = Duration::from_secs(180);

/// SplitMix64 [Steele OOPSLA'14].
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// The server, with its instances' processes.
struct Deployment {
    process: Child,
    address: String,
    /// By instance: its process now.
    processes: Arc<Mutex<BTreeMap<String, u32>>>,
}

impl Drop for Deployment {
    fn drop(&mut self) {
        for process in self.processes.lock().unwrap_or_else(PoisonError::into_inner).values() {
            signal("CONT", *process);
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn signal(name: &str, process: u32) {
    let _ = Command::new("kill").args([format!("-{name}"), process.to_string()]).stderr(Stdio::null()).status();
}

/// `P[0]` and the number after `word` in a line about an instance.
fn named(line: &str, word: &str) -> Option<(String, u32)> {
    let name = line.trim().split([' ', ':']).next()?.to_owned();
    let number = line.split(word).nth(1)?.split_whitespace().next()?.trim_end_matches([';', ',']);
    Some((name, number.parse().ok()?))
}

impl Deployment {
    fn start(arguments: &Arguments) -> Result<Self, String> {
        let mut process = Command::new(&arguments.serq)
            .args(["up", &arguments.program, "--processes", "--port", "0", "--retries", "10", "--set", "thr=8"])
            .args(["--set", "blocksP=256", "--set", "blocksD=128", "--transport", &arguments.transport])
            .current_dir(root())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}; build it first", arguments.serq.display()))?;
        let processes = Arc::new(Mutex::new(BTreeMap::new()));
        let (errors, here) = (process.stderr.take().expect("it is piped"), Arc::clone(&processes));
        thread::spawn(move || {
            let mut log = std::fs::File::create(root().join("target/chaos.log")).ok();
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                if let Some((name, number)) = named(&line, "; process ") {
                    here.lock().unwrap_or_else(PoisonError::into_inner).insert(name, number);
                }
                if let Some(log) = &mut log {
                    let _ = writeln!(log, "{line}");
                }
            }
        });
        let mut address = None;
        for line in BufReader::new(process.stdout.take().expect("it is piped")).lines().map_while(Result::ok) {
            if let Some((name, number)) = named(&line, "   process ") {
                processes.lock().unwrap_or_else(PoisonError::into_inner).insert(name, number);
            }
            if let Some((_, at)) = line.split_once("serving http://") {
                address = Some(at.trim_end_matches("/v1").to_owned());
                break;
            }
        }
        let address = address.ok_or("the server did not start; target/chaos.log says why")?;
        let started = Self { process, address, processes };
        started.until("it is ready", |here| here.get("/health").is_ok_and(|(status, _)| status == 200))?;
        Ok(started)
    }

    fn until(&self, what: &str, is: impl Fn(&Self) -> bool) -> Result<Duration, String> {
        let began = Instant::now();
        while !is(self) {
            if began.elapsed() > SETTLED {
                return Err(format!("in vain for {SETTLED:?}: {what}\n{}", self.state()));
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(began.elapsed())
    }

    fn get(&self, path: &str) -> Result<(u16, String), String> {
        exchange(&self.address, &format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"))
    }

    /// What is held, and on its way.
    fn state(&self) -> String {
        let metrics = self.get("/metrics").map(|(_, text)| text).unwrap_or_default();
        let told = |line: &&str| line.starts_with("serq_") && !line.ends_with(" 0") && !line.contains("_cap{");
        metrics.lines().filter(told).collect::<Vec<_>>().join("\n")
    }

    /// Blocks that somebody holds, and blocks that nobody alive owns.
    fn held(&self) -> Option<(f64, f64)> {
        let (_, metrics) = self.get("/metrics").ok()?;
        let sum = |name: &str| -> f64 {
            let lines = metrics.lines().filter(|line| line.starts_with(name));
            lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
        };
        Some((sum("serq_pool_used{"), sum("serq_pool_left{")))
    }
}

fn exchange(address: &str, request: &str) -> Result<(u16, String), String> {
    let talk = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = talk().map_err(|error| format!("no answer: {error}"))?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("an answer without an end of its head")?;
    let status = head.get(9..12).and_then(|status| status.parse().ok()).ok_or("an answer without a status")?;
    Ok((status, body.to_owned()))
}

fn body(nth: usize) -> Value {
    let mut random = Random(nth as u64);
    let tokens = 10 + random.below(400);
    // Some begin alike.
    let prompt: Vec<u64> =
        (0..tokens).map(|at| if at < 48 { (nth as u64 % 3) * 7 + at } else { random.below(256) }).collect();
    json!({
        "model": "tiny", "prompt": prompt, "max_tokens": 8 + random.below(24), "ignore_eos": true,
        "temperature": if nth.is_multiple_of(2) { 0.0 } else { 0.7 }, "seed": nth,
    })
}

fn post(body: &Value) -> String {
    let body = body.to_string();
    format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The text of an answer, or the error it is.
fn ask(address: &str, nth: usize) -> Result<Result<String, String>, String> {
    let (status, text) = exchange(address, &post(&body(nth)))?;
    let answer: Value = serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
    match status {
        200 => Ok(Ok(answer["choices"][0]["text"].to_string())),
        503 | 500 if answer["error"]["message"].is_string() => {
            Ok(Err(format!("{status}: {}", answer["error"]["message"])))
        }
        _ => Err(format!("{status}: {text}")),
    }
}

/// Does it.
///
/// # Errors
///
/// What was lost, wrong or left.
pub fn chaos(arguments: &Arguments) -> Result<String, String> {
    let began = Instant::now();
    let deployment = Deployment::start(arguments)?;
    let texts: Vec<String> = (0..REQUESTS)
        .map(|nth| ask(&deployment.address, nth)?.map_err(|error| format!("before any kill: {error}")))
        .collect::<Result<_, String>>()?;
    let (stop, answered, failed) =
        (AtomicBool::new(false), AtomicU64::new(0), Mutex::new(BTreeMap::<String, u64>::new()));
    let problem: Mutex<Option<String>> = Mutex::new(None);
    let mut random = Random(arguments.seed);
    let mut did: BTreeMap<String, u64> = BTreeMap::new();
    let killed = thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (deployment, texts, stop, answered, failed, problem) =
                (&deployment, &texts, &stop, &answered, &failed, &problem);
            scope.spawn(move || {
                let mut random = Random(client as u64 + 1000);
                while !stop.load(Ordering::SeqCst) {
                    let nth = random.below(REQUESTS as u64) as usize;
                    let wrong = match ask(&deployment.address, nth) {
                        Ok(Ok(text)) if text == texts[nth] => {
                            answered.fetch_add(1, Ordering::SeqCst);
                            continue;
                        }
                        Ok(Ok(text)) => format!("request {nth} is answered {text} and was {}", texts[nth]),
                        Ok(Err(error)) => {
                            // By kind: without names and numbers.
                            let kind = error.split(" is ").last().unwrap_or(&error).to_owned();
                            *failed.lock().unwrap_or_else(PoisonError::into_inner).entry(kind).or_default() += 1;
                            continue;
                        }
                        Err(error) => format!("request {nth}: {error}"),
                    };
                    problem.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(wrong);
                    return;
                }
            });
        }
        let mut kills = || -> Result<(), String> {
            for _ in 0..arguments.kills {
                thread::sleep(Duration::from_millis(20 + random.below(400)));
                if let Some(problem) = problem.lock().unwrap_or_else(PoisonError::into_inner).clone() {
                    return Err(problem);
                }
                let processes = deployment.processes.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let nth = random.below(processes.len() as u64) as usize;
                let (name, process) = processes.into_iter().nth(nth).ok_or("no process is known")?;
                let side = &name[..1];
                if random.below(5) == 0 {
                    signal("STOP", process);
                    thread::sleep(Duration::from_millis(random.below(1500)));
                    signal("CONT", process);
                    *did.entry(format!("{side} stopped")).or_default() += 1;
                } else {
                    signal("KILL", process);
                    *did.entry(format!("{side} killed")).or_default() += 1;
                }
            }
            Ok(())
        };
        let killed = kills();
        stop.store(true, Ordering::SeqCst);
        killed
    });
    let problem = problem.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(problem) = killed.err().or(problem) {
        return Err(format!("{problem}\n{}", deployment.state()));
    }
    // All at once, and nobody waits for an answer.
    let mut given_up = Vec::new();
    for nth in 0..arguments.aborts {
        let mut body = body(nth as usize);
        body["stream"] = json!(true);
        if let Ok(mut stream) = TcpStream::connect(&deployment.address) {
            let _ = stream.write_all(post(&body).as_bytes());
            given_up.push(stream);
        }
        if random.below(3) == 0 {
            given_up.swap_remove(random.below(given_up.len() as u64) as usize);
        }
    }
    drop(given_up);
    let settled = deployment.until("all instances are there and nothing is held", |here| {
        here.get("/health").is_ok_and(|(status, _)| status == 200) && here.held() == Some((0.0, 0.0))
    })?;
    for (nth, before) in texts.iter().enumerate().take(20) {
        let text = ask(&deployment.address, nth)?.map_err(|error| format!("in the end: {error}"))?;
        if text != *before {
            return Err(format!("in the end request {nth} is answered {text} and was {before}"));
        }
    }
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    let list = |counts: &BTreeMap<String, u64>| {
        counts.iter().map(|(what, count)| format!("{count} {what}")).collect::<Vec<_>>().join(", ")
    };
    Ok(format!(
        "{}: {}; {} answers as before, {} failed{}; {} given up; then nothing held after {:.1} s, 20 answers as before   {:.0} s",
        arguments.transport,
        list(&did),
        answered.into_inner(),
        failed.values().sum::<u64>(),
        if failed.is_empty() { String::new() } else { format!(" ({})", list(&failed)) },
        arguments.aborts,
        settled.as_secs_f64(),
        began.elapsed().as_secs_f64(),
    ))
}
