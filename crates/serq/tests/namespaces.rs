//! Instances on hosts of their own, for real: a network namespace each, joined by links that are late, lose packets
//! and are cut.
//!
//! ```text
//!    gateway        P[0]         P[1]         D[0]         D[1]       a namespace each: eth0, 10.211.0.1 to .5
//!       │            │            │            │            │
//!   ────┴────────────┴────────────┴────────────┴────────────┴────    a bridge in a sixth, with a port each
//! ```
//!
//! The test makes the namespaces and runs itself again in the gateway's ([`served`]): there the gateway's HTTP is at
//! loopback. A link is cut at the bridge, as a cable is pulled out: nobody is told, and both ends notice that they hear
//! nothing.
//!
//! It takes root, Linux and iproute2; without them it says so and passes.
//!
//! # Invariants
//!
//! - Nothing is made or changed outside of namespaces that this process made, so no address and no link is another's.
//! - They and the processes in them are gone in the end, also where the test fails.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const PROGRAM: &str = "examples/local/2p2d_smollm2.sq";
const INSTANCES: [&str; 4] = ["P[0]", "P[1]", "D[0]", "D[1]"];
const GATEWAY: &str = "gateway";
const BRIDGE: &str = "bridge";
/// How every link is. Picked by judgement: within a data centre, on a bad day.
const LATE: &str = "delay 1ms loss 0.1%";
/// Set where the test runs in the gateway's namespace: what the names of all begin with.
const WITHIN: &str = "SERQ_TEST_NAMESPACES";
const REQUESTS: u64 = 12;
const CLIENTS: u64 = 4;
/// What takes longer never will be. An instance that was cut off serves again when its reads are over (60 s), and what
/// may still land has landed (40 s).
const DEADLINE: Duration = Duration::from_secs(180);

/// Says it past the test runner, which keeps what passing tests print to itself.
fn tell(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// Runs words with spaces between them, to the end: what was said.
///
/// # Errors
///
/// A line: why it was not run, or what it complained of.
fn run(command: &str) -> Result<String, String> {
    let mut words = command.split(' ');
    let program = words.next().unwrap();
    let output =
        Command::new(program).args(words).output().map_err(|error| format!("`{program}` cannot be run: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("`{command}`: {}", said.trim().lines().collect::<Vec<_>>().join("; ")))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn address(name: &str) -> String {
    let nth = INSTANCES.iter().position(|instance| *instance == name);
    format!("10.211.0.{}", nth.map_or(1, |nth| nth + 2))
}

/// The namespaces. Those it made are removed with it, after the processes in them.
struct Hosts {
    prefix: String,
    made: Vec<String>,
}

impl Hosts {
    /// # Errors
    ///
    /// What could not be made, and why.
    fn make(prefix: &str) -> Result<Self, String> {
        let mut hosts = Self { prefix: prefix.to_owned(), made: Vec::new() };
        for name in [BRIDGE, GATEWAY].iter().chain(&INSTANCES) {
            let space = hosts.space(name);
            run(&format!("ip netns add {space}"))?;
            hosts.made.push(space);
        }
        let bridge = hosts.space(BRIDGE);
        run(&format!("ip -n {bridge} link add {BRIDGE} type bridge"))?;
        run(&format!("ip -n {bridge} link set {BRIDGE} up"))?;
        let mut late = Ok(String::new());
        for name in [GATEWAY].iter().chain(&INSTANCES) {
            let (space, address) = (hosts.space(name), address(name));
            run(&format!("ip -n {bridge} link add {name} type veth peer name eth0 netns {space}"))?;
            run(&format!("ip -n {bridge} link set {name} master {BRIDGE} up"))?;
            run(&format!("ip -n {space} address add {address}/24 dev eth0"))?;
            run(&format!("ip -n {space} link set eth0 up"))?;
            run(&format!("ip -n {space} link set lo up"))?;
            run(&format!("ip netns exec {space} true"))?;
            // What a port of the bridge sends is what its host hears.
            late = late.and(run(&format!("tc -n {bridge} qdisc add dev {name} root netem {LATE}")));
        }
        if let Err(why) = late {
            tell(&format!("namespaces: links are neither late nor lose packets: {why}"));
        }
        Ok(hosts)
    }

    fn space(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// A program to be run on a host.
    fn command(&self, name: &str, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.space(name)]).arg(program.as_ref());
        command.current_dir(root()).env("SERQ_TOKEN", "a token of tests, long enough");
        command
    }

    /// A host's port of the bridge goes `up` or `down`.
    fn turn(&self, name: &str, state: &str) {
        run(&format!("ip -n {} link set {name} {state}", self.space(BRIDGE))).unwrap();
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for space in &self.made {
            let began = Instant::now();
            while began.elapsed() < DEADLINE {
                let processes = run(&format!("ip netns pids {space}")).unwrap_or_default();
                if processes.is_empty() {
                    break;
                }
                for process in processes.split_whitespace() {
                    // It may have ended already.
                    let _ = run(&format!("kill -9 {process}"));
                }
                thread::sleep(Duration::from_millis(20));
            }
            if let Err(why) = run(&format!("ip netns del {space}")) {
                tell(&format!("namespaces: one is left: {why}"));
            }
        }
    }
}

/// A folder for files, removed with them.
struct Folder(PathBuf);

impl Folder {
    fn make(name: &str) -> Self {
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process, ended with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One that serves HTTP at loopback.
struct Server {
    process: Process,
    address: String,
}

impl Server {
    fn start(command: &mut Command) -> Self {
        let mut process = Process(command.args(["--port", "0"]).stdout(Stdio::piped()).spawn().unwrap());
        let mut lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
        let address = lines.find_map(|line| {
            let line = line.unwrap();
            let (_, at) = line.split_once("serving http://")?;
            Some(at.trim_end_matches("/v1").to_owned())
        });
        Self { process, address: address.expect("it says where it serves") }
    }

    fn exchange(&self, method: &str, path: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\nx-serq-observe: 1\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all((head + body).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, text) = answer.split_once("\r\n\r\n").unwrap();
        assert_eq!(&head[9..12], "200", "{path}: {text}");
        text.to_owned()
    }

    fn complete(&self, body: &Value) -> Value {
        serde_json::from_str(&self.exchange("POST", "/v1/completions", &body.to_string())).unwrap()
    }
}

/// The program on its hosts, and beside it the same in one process.
struct Deployment {
    alone: Server,
    gateway: Server,
    _instances: Vec<Process>,
}

impl Deployment {
    fn start(hosts: &Hosts, log: &Path) -> Self {
        let serq = env!("CARGO_BIN_EXE_serq");
        let same = [PROGRAM, "--compute", "f32", "--threads", "1", "--set", "thr=8"];
        let alone = Server::start(Command::new(serq).arg("up").args(same).current_dir(root()));
        let instance = |name: &&str| {
            let address = address(name);
            let mut command = hosts.command(name, serq);
            command.arg("instance").args(same).args(["--queue", name, "--listen", &format!("{address}:7000")]);
            // In truth they are on one host, and would find each other's memory.
            command.args(["--kv-listen", &format!("{address}:7100"), "--transport", "tcp"]);
            Process(command.stdout(Stdio::null()).spawn().unwrap())
        };
        let instances = INSTANCES.iter().map(instance).collect();
        let peers = INSTANCES.map(|name| format!("{name}={}:7000", address(name))).join(",");
        // Where it runs already this is no change of hosts.
        let mut gateway = hosts.command(GATEWAY, serq);
        gateway.arg("gateway").args(same).args(["--peers", &peers, "--retries", "10", "--decisions"]).arg(log);
        let started = Self { alone, gateway: Server::start(&mut gateway), _instances: instances };
        started.until("all are there", |here| INSTANCES.iter().all(|instance| here.is_up(instance)));
        started
    }

    /// Asks here and there: the answers are the same. How often the request was routed again.
    fn ask(&self, nth: u64) -> u64 {
        let prompt: Vec<u64> = (0..60 + 11 * (nth % REQUESTS)).map(|at| (at * 7 + nth / 2) % 250).collect();
        // Greedy, and drawn.
        let temperature = 0.7 * (nth % 2) as f64;
        let body = json!({
            "model": "tiny", "prompt": prompt, "max_tokens": 24, "ignore_eos": true,
            "temperature": temperature, "seed": nth, "return_token_ids": true,
        });
        let (here, there) = (self.alone.complete(&body), self.gateway.complete(&body));
        assert!(here["choices"][0]["text"].is_string(), "{here}");
        assert_eq!(there["choices"], here["choices"], "request {nth}");
        there["serq"]["retries"].as_f64().unwrap() as u64
    }

    /// The gateway's figures of a name, by label.
    fn figures(&self, name: &str) -> Vec<(String, f64)> {
        let metrics = self.gateway.exchange("GET", "/metrics", "");
        let lines = metrics.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{')?.split_once("} "));
        let figures: Vec<_> = lines.map(|(label, figure)| (label.to_owned(), figure.parse().unwrap())).collect();
        assert!(!figures.is_empty(), "{name}: {metrics}");
        figures
    }

    fn sum(&self, name: &str) -> f64 {
        self.figures(name).iter().map(|(_, figure)| figure).sum()
    }

    fn figure(&self, name: &str, instance: &str) -> f64 {
        let label = format!("instance=\"{instance}\"");
        self.figures(name).into_iter().find(|(of, _)| *of == label).expect("every instance has it").1
    }

    fn is_up(&self, instance: &str) -> bool {
        self.figure("serq_instance_up", instance) == 1.0
    }

    fn until(&self, what: &str, is: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !is(self) {
            let look = || (self.figures("serq_instance_up"), self.figures("serq_pool_used"));
            assert!(began.elapsed() < DEADLINE, "in vain: {what}: {:?}", look());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Nothing is held, KV went over the links, and what was decided is decided again.
    fn end(self, log: &Path) {
        for held in ["serq_pool_used", "serq_pool_holders", "serq_kv_transfers_leased", "serq_kv_transfers_loading"] {
            self.until(held, |here| here.sum(held) == 0.0);
        }
        assert_eq!(self.sum("serq_pool_left"), 0.0);
        let [loads, failed, moved] =
            ["loads", "loads_failed", "bytes_moved"].map(|name| self.sum(&format!("serq_kv_{name}_total")));
        assert!(moved > 0.0 && loads > 0.0, "{moved} bytes in {loads} loads");
        println!("namespaces: {loads} hand-overs, {:.1} MB; {failed} failed; nothing is held", moved / 1e6);
        let mut gateway = self.gateway.process;
        run(&format!("kill {}", gateway.0.id())).unwrap();
        assert!(gateway.0.wait().unwrap().success());
        let replayed = Command::new(env!("CARGO_BIN_EXE_serq")).arg("replay").arg(log).output().unwrap();
        assert!(replayed.status.success(), "{}", String::from_utf8_lossy(&replayed.stderr));
    }
}

/// The test itself, in the gateway's namespace.
fn served(prefix: &str) {
    let hosts = Hosts { prefix: prefix.to_owned(), made: Vec::new() };
    let log = std::env::temp_dir().join(prefix).join("decisions");
    let deployment = Deployment::start(&hosts, &log);
    let asked = AtomicU64::new(0);
    let ask_a_dozen = || {
        let until = asked.load(Ordering::SeqCst) + REQUESTS;
        thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    let take = |nth| (nth < until).then_some(nth + 1);
                    while let Ok(nth) = asked.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take) {
                        deployment.ask(nth);
                    }
                });
            }
        });
    };
    ask_a_dozen();
    for instance in ["D[1]", "P[0]"] {
        let before = asked.load(Ordering::SeqCst);
        let (over, retries, began) = (AtomicBool::new(false), AtomicU64::new(0), Instant::now());
        thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    // If an assertion fails elsewhere it ends, too.
                    while !over.load(Ordering::SeqCst) && began.elapsed() < DEADLINE {
                        let again = deployment.ask(asked.fetch_add(1, Ordering::SeqCst));
                        retries.fetch_add(again, Ordering::SeqCst);
                    }
                });
            }
            deployment.until("requests are under way", |_| asked.load(Ordering::SeqCst) >= before + 3 * CLIENTS);
            hosts.turn(instance, "down");
            // Until it is noticed others are asked on; whoever is at the one that is cut off waits.
            deployment.until("it is gone", |here| !here.is_up(instance));
            over.store(true, Ordering::SeqCst);
        });
        let (answers, retries) = (asked.load(Ordering::SeqCst) - before, retries.into_inner());
        assert!(retries > 0, "somebody was at {instance} when it was cut off, or was sent there");
        let cut = began.elapsed().as_secs_f64();
        hosts.turn(instance, "up");
        deployment.until("it is there again", |here| here.is_up(instance));
        let back = began.elapsed().as_secs_f64() - cut;
        println!(
            "namespaces: {instance} is cut off: {answers} answers in {cut:.1} s, {retries} requests were routed again; \
             there again after {back:.1} s"
        );
        let steps = |here: &Deployment| here.figure("serq_instance_steps_total", instance);
        let before = steps(&deployment);
        deployment.until("it computes again", |here| {
            ask_a_dozen();
            steps(here) > before
        });
    }
    deployment.end(&log);
}

#[test]
fn hosts_whose_links_are_cut_cost_no_text() {
    if let Ok(prefix) = std::env::var(WITHIN) {
        return served(&prefix);
    }
    let prefix = format!("serq-{}-", std::process::id());
    let hosts = match Hosts::make(&prefix) {
        Ok(hosts) => hosts,
        Err(why) => return tell(&format!("namespaces are skipped: {why}")),
    };
    let folder = Folder::make(&prefix);
    // A file and no pipe: if that process is killed, those it started may keep a pipe open.
    let log = folder.0.join("log");
    let out = File::options().create(true).append(true).open(&log).unwrap();
    let err = out.try_clone().unwrap();
    let status = hosts
        .command(GATEWAY, std::env::current_exe().unwrap())
        .args(["hosts_whose_links_are_cut_cost_no_text", "--exact", "--nocapture"])
        .env(WITHIN, &prefix)
        .stdout(out)
        .stderr(err)
        .status()
        .unwrap();
    drop(hosts);
    let said = fs::read_to_string(&log).unwrap();
    assert!(status.success(), "{said}");
    said.lines().filter(|line| line.starts_with("namespaces: ")).for_each(tell);
    let left = run("ip netns list").unwrap();
    assert!(!left.contains(&prefix), "namespaces are left: {left}");
}
