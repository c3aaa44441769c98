//! A prefill or decode instance: a pool of blocks, a connector, and KV whose every number is known.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::panic;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, LazyLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serq_transfer::connector::local::{Hub, Local};
use serq_transfer::connector::remote::Remote;
use serq_transfer::connector::{Connector, Counted, Heard, KvConnector, Links, Memory, Told, address_of};
use serq_transfer::layout::{
    self, Content, Descriptor, Element, Geometry, Group, Nesting, Order, TensorParallel, canary, number,
};
use serq_transfer::nixl;
use serq_transfer::protocol::reader::{Load, Mode};
use serq_transfer::protocol::{BlockTable, Config, Otherwise, Policy, TransferId};
use serq_transfer::transport::{Options, Token, Way};

/// Long for what takes milliseconds, so that a busy machine is no failure.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const ROLE: &str = "SERQ_CONNECTOR_INSTANCE";
/// Texts are that many tokens apart in the pattern: a multiple of every size of block.
const APART: usize = 120_000;
pub(crate) const BLOCKS: usize = 48;

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

/// A layout, by the words a command line can carry: `block nesting order element`.
pub(crate) fn descriptor(words: &str) -> Descriptor {
    let words: Vec<&str> = words.split('-').collect();
    Descriptor {
        version: layout::VERSION,
        instance: words.join("-"),
        model: "a model of three layers".into(),
        tensor_parallel: TensorParallel { degree: 1, rank: 0 },
        groups: vec![Group {
            content: Content::Heads { kv_heads: if words.get(4) == Some(&"wide") { 3 } else { 2 }, head_dim: 8 },
            layers: vec![0, 1, 2],
            window: None,
            block_tokens: words[0].parse().unwrap(),
            blocks: BLOCKS,
            first_byte: 0,
            nesting: match words[1] {
                "block" => Nesting::BlockMajor,
                "layer" => Nesting::LayerMajor,
                _ => Nesting::LayerBlockMajor,
            },
            order: match words[2] {
                "nhd" => Order::Nhd,
                "hnd" => Order::Hnd,
                "pnhd" => Order::PackedNhd,
                _ => Order::PackedHnd,
            },
            element: match words[3] {
                "f32" => Element::F32,
                "bf16" => Element::Bf16,
                "f16" => Element::F16,
                _ => Element::Fp8E4m3,
            },
        }],
    }
}

/// How long an instance waits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    /// As in service.
    Long,
    /// So that what never comes is soon known.
    Short,
}

fn config(waits: Waits) -> Config {
    if waits == Waits::Long {
        return Config::default();
    }
    let ms = |ms: u64| ms * 1000;
    Config {
        lease_us: ms(3_000),
        extension_us: ms(2_000),
        heartbeat_us: ms(500),
        resend_us: ms(50),
        connect_us: ms(3_000),
        wait_us: ms(3_000),
        transfer_us: ms(1_500),
        confirm_us: ms(3_000),
        quarantine_us: ms(3_500),
        tombstone_us: ms(10_000),
        ..Config::default()
    }
}

/// What became of a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Loaded,
    Failed(String),
}

/// Where the instances of this process are, and the names they have there.
static HUB: LazyLock<Hub> = LazyLock::new(Hub::default);
static NAMES: AtomicU16 = AtomicU16::new(1);

trait Counting: KvConnector {
    fn counted(&self) -> Counted;
}

impl<L: Links> Counting for Connector<L> {
    fn counted(&self) -> Counted {
        Connector::counted(self)
    }
}

pub(crate) struct Instance {
    connector: Box<dyn Counting>,
    address: SocketAddr,
    /// Of one that can be killed in this process.
    killed: Option<Arc<AtomicBool>>,
    memory: Memory,
    free: Vec<u32>,
    /// Of each request: its tokens, and the first that is loaded.
    asked: BTreeMap<u128, (usize, usize)>,
    tables: BTreeMap<u128, BlockTable>,
    /// Loads that are over, and what they ended with.
    pub(crate) outcomes: BTreeMap<u128, Outcome>,
    pub(crate) notes: Vec<String>,
}

impl Instance {
    pub(crate) fn start(layout: &str, way: Way, waits: Waits) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), layout, way, 1, waits)
    }

    fn start_at(listen: SocketAddr, layout: &str, way: Way, incarnation: u64, waits: Waits) -> Self {
        let memory = Memory::new(descriptor(layout), 1 << 16).unwrap();
        let (connector, address): (Box<dyn Counting>, _) = if way == Way::Local {
            let port = if listen.port() == 0 { NAMES.fetch_add(1, Ordering::SeqCst) } else { listen.port() };
            let address = SocketAddr::new(listen.ip(), port);
            let local = Local::start(&HUB, address, incarnation, config(waits), memory.clone(), None);
            (Box::new(local.unwrap()), address)
        } else {
            let token = Token::new("a token that both of them know").unwrap();
            let options = Options { listen, reached_at: None, token, incarnation, ways: vec![way] };
            let remote = Remote::start(options, config(waits), memory.clone(), None).unwrap();
            let address = remote.address();
            (Box::new(remote), address)
        };
        Self {
            connector,
            address,
            killed: None,
            free: (0..memory.blocks() as u32).rev().collect(),
            memory,
            asked: BTreeMap::new(),
            tables: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            notes: Vec::new(),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn left(&self) -> usize {
        BLOCKS - self.free.len()
    }

    /// Whether all its links went by this way.
    pub(crate) fn went_by(&self, way: Way) -> bool {
        let mut linked = self.notes.iter().filter(|note| note.starts_with("linked")).peekable();
        linked.peek().is_some() && linked.all(|note| note.ends_with(&format!("by {way}")))
    }

    /// What there is to say when something is wrong.
    pub(crate) fn told(&self) -> String {
        format!("{:?} {:?}", self.notes, self.connector.counted())
    }

    /// Transfers alive, on both sides.
    pub(crate) fn transfers(&self) -> usize {
        let (source, reader) = self.connector.counted().transfers;
        source + reader
    }

    fn take(&mut self, first: usize, end: usize) -> Option<BlockTable> {
        let slots = self.memory.block_tokens();
        let count = end.div_ceil(slots) - first / slots;
        let at = self.free.len().checked_sub(count)?;
        let blocks = self.free.split_off(at);
        Some(BlockTable::in_order(slots as u32, first as u32, end as u32, &blocks))
    }

    pub(crate) fn expect(&mut self, id: u128) {
        self.connector.tell(Told::Expect { id: TransferId(id) });
    }

    /// Computes a prompt, as slowly as a copy of all memory; whether there was room.
    pub(crate) fn prefill(&mut self, id: u128, tokens: usize) -> bool {
        let Some(table) = self.take(0, tokens) else {
            self.connector.tell(Told::PrefillFailed { id: TransferId(id) });
            return false;
        };
        let numbers: Vec<u32> = table.numbers().collect();
        let mut bytes = vec![0; self.memory.descriptor.memory_bytes()];
        self.memory.region.read(0, &mut bytes).unwrap();
        let start = id as usize * APART;
        let blocks = layout::BlockTable { first_token: start, blocks: &numbers };
        canary::fill(&self.memory.descriptor, 0, &blocks, start..start + tokens, &mut bytes);
        self.memory.region.write(0, &bytes).unwrap();
        self.connector.tell(Told::Finished { id: TransferId(id), table });
        true
    }

    pub(crate) fn discovered(&mut self, source: SocketAddr) {
        self.connector.tell(Told::Discovered { source });
    }

    /// Wants the tokens after a prefix that is here, all but the last.
    pub(crate) fn load(
        &mut self,
        id: u128,
        source: SocketAddr,
        tokens: usize,
        hit: usize,
        mode: Mode,
        concurrent: bool,
    ) {
        let policy = Policy { retries: 1, otherwise: Otherwise::Error };
        let source = address_of(source).unwrap();
        let load = Load { id: TransferId(id), source, mode, concurrent, offer: None, policy };
        self.connector.tell(Told::Load(load));
        let table = self.take(hit, tokens - 1).expect("room for the load");
        self.asked.insert(id, (tokens, hit));
        self.tables.insert(id, table.clone());
        self.connector.tell(Told::Allocated { id: TransferId(id), table });
    }

    pub(crate) fn cancel(&mut self, id: u128) {
        self.connector.tell(Told::Cancelled { id: TransferId(id) });
    }

    pub(crate) fn abandon(&mut self, id: u128) {
        self.connector.tell(Told::Abandoned { id: TransferId(id) });
    }

    /// Takes what the connector says, until then or until it is silent.
    pub(crate) fn hear(&mut self, by: Instant) -> bool {
        let heard = match &self.killed {
            None => self.connector.next(by),
            Some(killed) => loop {
                let now = Instant::now();
                let heard = self.connector.next(by.min(now + Duration::from_millis(5)));
                if killed.load(Ordering::SeqCst) {
                    // As if its process were gone: what it was about to do is not done.
                    panic::resume_unwind(Box::new("killed"));
                }
                if heard.is_some() || by <= now {
                    break heard;
                }
            },
        };
        let Some(heard) = heard else { return false };
        match heard {
            Heard::Loaded { id: TransferId(id), blocks, .. } => {
                let right = self.look(id);
                self.outcomes.insert(id, right.map_or_else(|why| panic!("request {id}: {why}"), |()| Outcome::Loaded));
                self.give_back(&blocks);
            }
            Heard::Failed { id: TransferId(id), failure, .. } => {
                self.outcomes.insert(id, Outcome::Failed(failure.to_string()));
            }
            Heard::Free { blocks, .. } => self.give_back(&blocks),
            Heard::Refused { id: TransferId(id), failure } => {
                let why = failure.map_or_else(|| "refused".to_owned(), |failure| failure.to_string());
                self.outcomes.insert(id, Outcome::Failed(why));
            }
            Heard::Note(note) => self.notes.push(note),
            Heard::Offered { .. } | Heard::Unwanted { .. } => {}
        }
        true
    }

    /// A block that comes back is written over at once, as its next owner would.
    fn give_back(&mut self, blocks: &[u32]) {
        for block in blocks {
            assert!(!self.free.contains(block), "block {block} comes back twice");
            self.free.insert(0, *block);
        }
    }

    /// Waits until all these loads are over.
    pub(crate) fn outcomes(&mut self, ids: impl Iterator<Item = u128>) -> Vec<Outcome> {
        let by = Instant::now() + PATIENCE;
        ids.map(|id| {
            while !self.outcomes.contains_key(&id) {
                assert!(self.hear(by), "request {id} does not end; {}", self.told());
            }
            self.outcomes[&id].clone()
        })
        .collect()
    }

    /// Waits until no block and no transfer is left.
    pub(crate) fn settles(&mut self) {
        let by = Instant::now() + PATIENCE;
        while self.left() > 0 || self.transfers() > 0 {
            assert!(
                Instant::now() < by,
                "{} blocks, {} transfers are left; {:?}",
                self.left(),
                self.transfers(),
                self.notes
            );
            self.hear(Instant::now() + Duration::from_millis(5));
        }
    }

    /// Does what a line says, and answers.
    fn obey(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<usize>().unwrap();
        while self.hear(Instant::now()) {}
        match words[0] {
            "expect" => self.expect(number(1) as u128),
            "prefill" => return self.prefill(number(1) as u128, number(2)).to_string(),
            "abandon" => self.abandon(number(1) as u128),
            // source, ids from, ids to, tokens, mode
            "load" => {
                let ids = number(2) as u128..number(3) as u128;
                for id in ids.clone() {
                    self.load(id, words[1].parse().unwrap(), number(4), 0, mode(words[5]), false);
                }
                let outcomes = self.outcomes(ids);
                let loaded = outcomes.iter().filter(|outcome| **outcome == Outcome::Loaded).count();
                return format!("{loaded} of {}", outcomes.len());
            }
            "settle" => self.settles(),
            other => panic!("{other}?"),
        }
        String::new()
    }

    /// Whether a load's blocks have the KV of its tokens.
    fn look(&self, id: u128) -> Result<(), String> {
        let (descriptor, table) = (&self.memory.descriptor, &self.tables[&id]);
        let (tokens, hit) = self.asked[&id];
        let mut bytes = vec![0; descriptor.memory_bytes()];
        self.memory.region.read(0, &mut bytes).unwrap();
        let geometry = Geometry::of(descriptor, 0).unwrap();
        let start = id as usize * APART;
        let seen = canary::check(descriptor, 0, start + hit..start + tokens - 1, |row, dim| {
            let token = (row.token - start) as u32;
            let slot = token % table.block_tokens;
            let placed = table.blocks.iter().find(|placed| placed.first_token == token - slot).unwrap();
            let (block, layer, half) = (placed.block as usize, row.layer as usize, row.half as usize);
            let at = geometry.row(block, layer, half, slot as usize, row.head) + dim * geometry.element.bytes();
            let two = || u16::from_le_bytes([bytes[at], bytes[at + 1]]);
            let single = |at: usize| f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            match geometry.element {
                Element::F32 => single(at),
                Element::Bf16 => number::f32_from_bf16(two()),
                Element::F16 => number::f32_from_f16(two()),
                Element::Fp8E4m3 => {
                    number::f32_from_e4m3(bytes[at]) * single(geometry.scale(block, layer, half, row.head))
                }
            }
        });
        seen.map_err(|misplaced| misplaced.to_string())
    }
}

/// An instance in another process, or where connectors are of one process in another thread; ended with the test.
pub(crate) struct Other {
    runs: Runs,
    pub(crate) address: SocketAddr,
}

enum Runs {
    Process {
        process: Child,
        to: ChildStdin,
        from: BufReader<ChildStdout>,
    },
    Thread {
        thread: Option<JoinHandle<()>>,
        to: Option<Sender<String>>,
        from: Receiver<String>,
        killed: Arc<AtomicBool>,
    },
}

impl Other {
    pub(crate) fn start(layout: &str, way: Way, waits: Waits) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), layout, way, 100, waits)
    }

    pub(crate) fn start_at(listen: SocketAddr, layout: &str, way: Way, incarnation: u64, waits: Waits) -> Self {
        let runs = match way {
            Way::Local => Runs::thread(listen, layout, incarnation, waits),
            _ => Runs::process(listen, layout, way, incarnation, waits),
        };
        let mut other = Self { runs, address: listen };
        other.address = other.answer().parse().unwrap();
        other
    }

    /// Tells it something, and waits for its answer.
    pub(crate) fn ask(&mut self, what: &str) -> String {
        self.say(what);
        self.answer()
    }

    /// Tells it something; its answer is to be waited for later.
    pub(crate) fn say(&mut self, what: &str) {
        match &mut self.runs {
            Runs::Process { to, .. } => writeln!(to, "{what}").unwrap(),
            Runs::Thread { to, .. } => to.as_ref().unwrap().send(what.to_owned()).unwrap(),
        }
    }

    pub(crate) fn answer(&mut self) -> String {
        let from = match &mut self.runs {
            Runs::Process { from, .. } => from,
            Runs::Thread { from, .. } => return from.recv().expect("the other thread is there"),
        };
        loop {
            let mut line = String::new();
            assert_ne!(from.read_line(&mut line).unwrap(), 0, "the other process is gone");
            if let Some((_, answer)) = line.split_once('@') {
                return answer.trim().to_owned();
            }
        }
    }

    /// A thread cannot be stopped, and is killed.
    pub(crate) fn signal(&mut self, signal: &str) {
        match &self.runs {
            Runs::Process { process, .. } => {
                let id = process.id().to_string();
                assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
            }
            Runs::Thread { .. } => self.runs.end(),
        }
    }

    pub(crate) fn kill(mut self) {
        self.runs.end();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.runs.end();
    }
}

impl Runs {
    fn process(listen: SocketAddr, layout: &str, way: Way, incarnation: u64, waits: Waits) -> Self {
        let waits = if waits == Waits::Short { "short" } else { "long" };
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "instance::is_the_other_process", "--nocapture"])
            .env(ROLE, format!("{listen} {way} {layout} {incarnation} {waits}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, from) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
        Self::Process { process, to, from }
    }

    fn thread(listen: SocketAddr, layout: &str, incarnation: u64, waits: Waits) -> Self {
        let killed = Arc::new(AtomicBool::new(false));
        let ((to, lines), (answers, from)) = (mpsc::channel::<String>(), mpsc::channel());
        let (layout, kill) = (layout.to_owned(), Arc::clone(&killed));
        let thread = thread::spawn(move || {
            let mut instance = Instance::start_at(listen, &layout, Way::Local, incarnation, waits);
            instance.killed = Some(kill);
            let _ = answers.send(instance.address().to_string());
            lines.iter().for_each(|line| drop(answers.send(instance.obey(&line))));
        });
        Self::Thread { thread: Some(thread), to: Some(to), from, killed }
    }

    fn end(&mut self) {
        match self {
            Self::Process { process, .. } => {
                let _ = process.kill();
                let _ = process.wait();
            }
            Self::Thread { thread, to, killed, .. } => {
                killed.store(true, Ordering::SeqCst);
                *to = None;
                let _ = thread.take().map(JoinHandle::join);
            }
        }
    }
}

fn mode(word: &str) -> Mode {
    if word == "push" { Mode::Push } else { Mode::Pull }
}

/// The other process; as a test by itself it does nothing.
#[test]
fn is_the_other_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let role: Vec<&str> = role.split(' ').collect();
    let way = [Way::Tcp, Way::Shm, Way::Nixl].into_iter().find(|way| way.to_string() == role[1]).expect("a way");
    let waits = if role[4] == "short" { Waits::Short } else { Waits::Long };
    let mut instance = Instance::start_at(role[0].parse().unwrap(), role[2], way, role[3].parse().unwrap(), waits);
    println!("@{}", instance.address());
    for line in std::io::stdin().lines() {
        println!("@{}", instance.obey(&line.unwrap()));
    }
}
