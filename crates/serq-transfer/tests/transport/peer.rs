//! A node in another process.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serq_transfer::memory::Region;
use serq_transfer::nixl;
use serq_transfer::transport::{Event, LinkId, Node, Options, Piece, PostId, Token, Way, WindowId};

/// Long for what takes milliseconds, so that a busy machine is no failure.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const ROLE: &str = "SERQ_TRANSPORT_PEER";
const TOKEN: &str = "a token that both of them know";

/// Whether there is a NIXL to test; if not, why is said.
pub(crate) fn nixl_is_there() -> bool {
    let there =
        std::env::var("SERQ_NIXL").map_err(|_| "SERQ_NIXL names no folder; tools/nixl/install.sh makes one".into());
    let there = there.and_then(|_| nixl::available());
    if let Err(why) = &there {
        println!("skipped, as NIXL is not there: {why}");
    }
    there.is_ok()
}

/// A way, by its name.
pub(crate) fn way(name: &str) -> Way {
    [Way::Tcp, Way::Shm, Way::Nixl].into_iter().find(|way| way.to_string() == name).expect("a way's name")
}

pub(crate) fn token() -> Token {
    Token::new(TOKEN).unwrap()
}

/// A node of this process.
pub(crate) fn node(way: Way, bytes: usize) -> Node {
    node_at("127.0.0.1:0".parse().unwrap(), way, bytes, 1)
}

pub(crate) fn node_at(listen: SocketAddr, way: Way, bytes: usize, incarnation: u64) -> Node {
    let memory = Arc::new(Region::new(bytes).unwrap());
    Node::start(Options { listen, reached_at: None, token: token(), incarnation, ways: vec![way] }, memory).unwrap()
}

/// Bytes that look like nothing else: a function of a seed and their place.
pub(crate) fn pattern(seed: u64, from: u64, bytes: u64) -> Vec<u8> {
    (from..from + bytes)
        .map(|at| {
            let mixed = (at ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (mixed >> 56) as u8
        })
        .collect()
}

/// Fills a memory with a pattern.
pub(crate) fn fill(memory: &Region, seed: u64) {
    for from in (0..memory.bytes() as u64).step_by(1 << 16) {
        let bytes = (memory.bytes() as u64 - from).min(1 << 16);
        memory.write(from, &pattern(seed, from, bytes)).unwrap();
    }
}

/// A sum of ranges of (place, bytes), as their owner reads them: FNV-1a.
pub(crate) fn sum(memory: &Region, ranges: &[(u64, u64)]) -> u64 {
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    for &(from, bytes) in ranges {
        let mut read = vec![0; bytes as usize];
        memory.read(from, &mut read).unwrap();
        for byte in read {
            sum = (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    sum
}

/// Waits for an event; others are dropped.
pub(crate) fn until<T>(node: &Node, what: &str, mut found: impl FnMut(&Event) -> Option<T>) -> T {
    let by = Instant::now() + PATIENCE;
    let mut heard = Vec::new();
    while let Some(event) = node.next(by) {
        if let Some(found) = found(&event) {
            return found;
        }
        heard.push(event);
    }
    panic!("{what} did not come; this did: {heard:?}");
}

/// Dials, and waits for the link.
pub(crate) fn link(node: &Node, peer: SocketAddr) -> (LinkId, u64, Way) {
    node.dial(peer);
    until(node, "the link", |event| match event {
        Event::Linked { link, incarnation, way, .. } => Some((*link, *incarnation, *way)),
        Event::NotLinked { why, .. } => panic!("not linked: {why}"),
        _ => None,
    })
}

/// Whether a post landed.
pub(crate) fn ended(node: &Node, post: PostId) -> bool {
    until(node, "the post's end", |event| match event {
        Event::Ended { post: of, landed } if *of == post => Some(*landed),
        _ => None,
    })
}

/// A process with a node, ended with the test.
pub(crate) struct Peer {
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    pub(crate) address: SocketAddr,
    pub(crate) way: Way,
}

impl Peer {
    pub(crate) fn start(way: Way, bytes: usize) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), way, bytes, 7)
    }

    pub(crate) fn start_at(listen: SocketAddr, way: Way, bytes: usize, incarnation: u64) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "peer::is_the_other_process", "--nocapture"])
            .env(ROLE, format!("{listen} {way} {bytes} {incarnation}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, from) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
        let mut peer = Self { process, to, from, address: listen, way };
        peer.address = peer.answer().parse().unwrap();
        peer
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Tells it something, and waits for its answer.
    pub(crate) fn ask(&mut self, what: &str) -> String {
        writeln!(self.to, "{what}").unwrap();
        self.answer()
    }

    pub(crate) fn sum(&mut self, ranges: &[(u64, u64)]) -> u64 {
        let ranges: Vec<String> = ranges.iter().map(|(from, bytes)| format!("{from} {bytes}")).collect();
        self.ask(&format!("sum {}", ranges.join(" "))).parse().unwrap()
    }

    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.from.read_line(&mut line).unwrap(), 0, "the other process is gone");
            // Before the first answer stands what the test's program says, on the same line maybe.
            if let Some((_, answer)) = line.split_once('@') {
                return answer.trim().to_owned();
            }
        }
    }

    pub(crate) fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.id().to_string()]).status().unwrap().success());
    }

    /// Ends it without a word.
    pub(crate) fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The other process; as a test by itself it does nothing.
#[test]
fn is_the_other_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let role: Vec<&str> = role.split(' ').collect();
    let node = node_at(role[0].parse().unwrap(), way(role[1]), role[2].parse().unwrap(), role[3].parse().unwrap());
    println!("@{}", node.address());
    let mut linked = false;
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let numbers: Vec<u64> = words[1..].iter().filter_map(|word| word.parse().ok()).collect();
        let pairs = || numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect::<Vec<_>>();
        let answer = match words[0] {
            "fill" => {
                fill(node.memory(), numbers[0]);
                String::new()
            }
            "sum" => sum(node.memory(), &pairs()).to_string(),
            "open" => {
                node.open_window(WindowId(numbers[0]), numbers[1..].chunks_exact(2).map(|p| (p[0], p[1])).collect());
                String::new()
            }
            "close" => {
                node.close_window(WindowId(numbers[0]));
                String::new()
            }
            // Over its only link: the one that its dialler has.
            "echo" => until(&node, "a message", |event| match event {
                Event::Message { link, bytes } => {
                    node.send(*link, bytes.clone());
                    Some(bytes.len().to_string())
                }
                _ => None,
            }),
            "read" => {
                if !std::mem::replace(&mut linked, true) {
                    until(&node, "the link", |event| matches!(event, Event::Linked { .. }).then_some(()));
                }
                node.read(LinkId(0), PostId(1), vec![Piece { here: numbers[0], there: numbers[1], bytes: numbers[2] }]);
                ended(&node, PostId(1)).to_string()
            }
            other => panic!("{other}?"),
        };
        println!("@{answer}");
    }
}
