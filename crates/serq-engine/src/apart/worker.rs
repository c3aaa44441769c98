//! An instance by itself: it computes what its scheduler sends, and its connector moves KV.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serq_transfer::connector::remote::Remote;
use serq_transfer::connector::{Heard, KvConnector, Told};
use serq_transfer::memory::Region;
use serq_transfer::protocol::reader::{Load, Mode};
use serq_transfer::protocol::{BlockTable, Config, Offer, Otherwise, Policy, TransferId};
use serq_transfer::transport::{Event, LinkId, Node, Options, Token, Way};

use super::link::{Pieces, say};
use super::look::look;
use super::words::{Answer, Counts, Order, Ready, VERSION};
use super::{Identity, PULSE, SILENCE, lock};
use crate::instances::compute;
use crate::kv::KvStore;
use crate::model::{Model, Runner};
use crate::served::Memory;
use crate::service::Run;
use crate::workers::Workers;

/// Bytes of blocks that are converted on their way.
const STAGING: usize = 16 << 20;

/// Different things that are noted once.
const NOTES_MOST: usize = 256;

/// How an instance begins.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// As the program calls it.
    pub instance: String,
    /// Where it listens for its scheduler, and where for other instances; at port 0 at one that is free.
    pub listen: SocketAddr,
    /// See `listen`.
    pub kv_listen: SocketAddr,
    /// Where its scheduler reaches it, and where other instances do for KV, where that is somewhere else.
    pub reached_at: Option<SocketAddr>,
    /// See `reached_at`.
    pub kv_reached_at: Option<SocketAddr>,
    /// What all processes of the deployment know.
    pub token: Token,
    /// Which process at its address it is: another number than those before it.
    pub incarnation: u64,
    /// How bytes may go, the best first.
    pub ways: Vec<Way>,
    /// To compute on.
    pub cores: usize,
    /// How long what takes of a transfer.
    pub transfer: Config,
}

/// An instance that serves. Dropped, it is gone.
pub struct Worker {
    shared: Arc<Shared>,
    kv_address: SocketAddr,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    node: Node,
    connector: Remote,
    heard: Mutex<VecDeque<Heard>>,
    /// Steps that were not computed to their end.
    computing: AtomicUsize,
    draining: AtomicBool,
    /// Nobody needs it any more.
    dismissed: AtomicBool,
    down: AtomicBool,
}

impl Worker {
    /// Starts it. What happens is told to `note`, in sentences.
    ///
    /// # Errors
    ///
    /// A sentence: there is no such memory, or no listening there.
    pub fn start(
        options: WorkerOptions,
        blocks: Memory,
        identity: &Identity,
        model: &Arc<Model>,
        note: impl Fn(&str) + Send + 'static,
    ) -> Result<Self, String> {
        let WorkerOptions {
            instance,
            listen,
            kv_listen,
            reached_at,
            kv_reached_at,
            token,
            incarnation,
            ways,
            cores,
            transfer,
        } = options;
        let layout = model.kv_layout(blocks.block);
        let name = format!("{} in {:?}, {}", hex(&identity.model), model.compute(), model.path()).to_lowercase();
        let (store, memory) = KvStore::shared(layout, blocks.blocks, &instance, &name, STAGING)?;
        let store = Arc::new(store);
        let compatibility = memory.descriptor.compatibility_hash();
        let kv = Options { listen: kv_listen, reached_at: kv_reached_at, token: token.clone(), incarnation, ways };
        let looked = Box::new(look(model, &store));
        let connector = Remote::start(kv, transfer, memory, Some(looked))
            .map_err(|error| format!("cannot listen at {kv_listen} for other instances: {error}"))?;
        let kv_address = connector.address();
        // Its scheduler reads and writes no memory of it.
        let nothing = Region::new(4096).map_err(|error| format!("there is no memory: {error}"))?;
        let control = Options { listen, reached_at, token, incarnation, ways: vec![Way::Tcp] };
        let node = Node::start(control, Arc::new(nothing))
            .map_err(|error| format!("cannot listen at {listen} for a scheduler: {error}"))?;
        let shared = Arc::new(Shared {
            node,
            connector,
            heard: Mutex::default(),
            computing: AtomicUsize::new(0),
            draining: AtomicBool::new(false),
            dismissed: AtomicBool::new(false),
            down: AtomicBool::new(false),
        });
        let ready = Ready {
            kv: kv_address,
            arithmetic: format!("{:?}, {} kernels", model.compute(), model.path()).to_lowercase(),
            compatibility,
        };
        let (steps, asked) = mpsc::channel::<Step>();
        let (here, model, of_store) = (Arc::clone(&shared), Arc::clone(model), Arc::clone(&store));
        let computing = move || {
            // Who cannot compute any more is gone: another process may.
            let _gone = Dismissal(&here.dismissed);
            let workers = Workers::new(cores);
            let mut runner = Runner::new(&model, layout);
            while let Ok(Step { link, number, runs }) = asked.recv() {
                let tokens = compute(&mut runner, &model, &workers, &of_store, &runs);
                say(&here.node, link, &Answer::StepEnded { number, tokens });
                here.computing.fetch_sub(1, Ordering::SeqCst);
                here.node.wake();
            }
        };
        let here = Arc::clone(&shared);
        let hearing = move || {
            while !here.down.load(Ordering::SeqCst) {
                if let Some(heard) = here.connector.next(Instant::now() + Duration::from_millis(200)) {
                    lock(&here.heard).push_back(heard);
                    here.node.wake();
                }
            }
        };
        let (here, identity) = (Arc::clone(&shared), identity.clone());
        let bytes_per_token = layout.block_bytes() / layout.block_tokens;
        let serving = move || {
            let mut serving = Serving {
                shared: &here,
                identity,
                instance,
                ready,
                bytes_per_token,
                steps,
                note: Box::new(note),
                scheduler: None,
                waiting: None,
                pieces: Pieces::default(),
                transfers: BTreeMap::new(),
                counts: Counts::default(),
                pulse: Instant::now(),
                told_draining: false,
                parting: Vec::new(),
                noted: BTreeSet::new(),
            };
            while !here.down.load(Ordering::SeqCst) {
                serving.turn();
            }
        };
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            thread::Builder::new().name(name.into()).spawn(run).map_err(|error| format!("no thread: {error}"))
        };
        let threads = vec![
            spawn("serq-compute", Box::new(computing))?,
            spawn("serq-connector", Box::new(hearing))?,
            spawn("serq-worker", Box::new(serving))?,
        ];
        Ok(Self { shared, kv_address, threads })
    }

    /// Where it listens for its scheduler.
    pub fn address(&self) -> SocketAddr {
        self.shared.node.address()
    }

    /// Where it listens for other instances.
    pub fn kv_address(&self) -> SocketAddr {
        self.kv_address
    }

    /// Takes no new work from now on.
    pub fn drain(&self) {
        self.shared.draining.store(true, Ordering::SeqCst);
        self.shared.node.wake();
    }

    /// Whether its scheduler said that nobody needs it any more, or it drains and has none.
    pub fn is_dismissed(&self) -> bool {
        self.shared.dismissed.load(Ordering::SeqCst)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.down.store(true, Ordering::SeqCst);
        self.shared.node.wake();
        for thread in self.threads.drain(..).rev() {
            let _ = thread.join();
        }
    }
}

/// Dismisses an instance whose thread ends by a panic.
struct Dismissal<'a>(&'a AtomicBool);

impl Drop for Dismissal<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.store(true, Ordering::SeqCst);
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

struct Step {
    link: LinkId,
    number: u64,
    runs: Vec<Run>,
}

/// A hand-over that this side has to do with.
enum Transfer {
    Lease,
    Load { began: Instant, tokens: u32, why: Option<String> },
}

struct Serving<'s> {
    shared: &'s Shared,
    identity: Identity,
    instance: String,
    ready: Ready,
    bytes_per_token: usize,
    steps: Sender<Step>,
    note: Box<dyn Fn(&str)>,
    /// Who it serves, and when that one was last heard.
    scheduler: Option<(LinkId, Instant)>,
    /// Who may begin once nothing of the one before goes on.
    waiting: Option<LinkId>,
    pieces: Pieces,
    transfers: BTreeMap<TransferId, Transfer>,
    counts: Counts,
    /// When it says next that it is there.
    pulse: Instant,
    told_draining: bool,
    /// Links that end a moment after the last word was said.
    parting: Vec<(LinkId, Instant)>,
    noted: BTreeSet<String>,
}

impl Serving<'_> {
    /// Does what happened, or is due.
    fn turn(&mut self) {
        let event = self.shared.node.next(self.pulse);
        let heard = std::mem::take(&mut *lock(&self.shared.heard));
        heard.into_iter().for_each(|heard| self.hear(heard));
        match event {
            Some(Event::Message { link, bytes }) => match self.pieces.hear(link, &bytes) {
                Ok(None) => {}
                Ok(Some(order)) => self.obey(link, order),
                Err(why) => {
                    (self.note)(&format!("a scheduler is cut off: {why}"));
                    self.lose(link);
                }
            },
            Some(Event::Lost { link, why }) => {
                if self.scheduler.is_some_and(|(of, _)| of == link) {
                    (self.note)(&format!("the scheduler is gone: {why}"));
                }
                self.lose(link);
            }
            Some(Event::TurnedAway { from, why }) => (self.note)(&format!("{} was turned away: {why}", from.ip())),
            // It dials nobody, and has one way.
            Some(
                Event::Linked { .. }
                | Event::NotLinked { .. }
                | Event::NotOffered { .. }
                | Event::Ended { .. }
                | Event::Woken,
            )
            | None => {}
        }
        self.pulse();
        self.drain();
        self.begin();
    }

    fn pulse(&mut self) {
        let now = Instant::now();
        if now < self.pulse {
            return;
        }
        self.pulse = now + PULSE;
        for (link, _) in self.parting.extract_if(.., |(_, until)| *until <= now).collect::<Vec<_>>() {
            self.lose(link);
        }
        let Some((link, heard)) = self.scheduler else { return };
        if now - heard > SILENCE {
            (self.note)(&format!("the scheduler is cut off: it said nothing for {} s", SILENCE.as_secs()));
            return self.lose(link);
        }
        let counted = self.shared.connector.counted();
        let counts = Counts {
            leased: counted.transfers.0 as u64,
            loading: counted.transfers.1 as u64,
            bytes_moved: counted.bytes_moved,
            posts_failed: counted.posts_failed,
            leases_expired: counted.source.leases_expired,
            fences: counted.source.fences + counted.reader.fences,
            ..self.counts
        };
        say(&self.shared.node, link, &Answer::Pulse(counts));
    }

    fn note_once(&mut self, note: String) {
        if self.noted.len() < NOTES_MOST && self.noted.insert(note.clone()) {
            (self.note)(&note);
        }
    }

    fn drain(&mut self) {
        if !self.shared.draining.load(Ordering::SeqCst) {
            return;
        }
        match self.scheduler {
            Some((link, _)) if !self.told_draining => {
                self.told_draining = true;
                say(&self.shared.node, link, &Answer::Draining);
            }
            Some(_) => {}
            None if self.is_clean() => self.shared.dismissed.store(true, Ordering::SeqCst),
            None => {}
        }
    }

    /// Nothing that a scheduler sent goes on.
    fn is_clean(&self) -> bool {
        self.transfers.is_empty() && self.shared.computing.load(Ordering::SeqCst) == 0
    }

    /// A scheduler that waits may begin.
    fn begin(&mut self) {
        if self.scheduler.is_some() || !self.is_clean() {
            return;
        }
        if let Some(link) = self.waiting.take() {
            self.scheduler = Some((link, Instant::now()));
            self.told_draining = false;
            say(&self.shared.node, link, &Answer::Ready(self.ready.clone()));
            self.note_once("a scheduler has come".into());
        }
    }

    /// A link is over; if it was its scheduler's, so is what that one wanted.
    fn lose(&mut self, link: LinkId) {
        self.shared.node.cut(link);
        self.pieces.forget(link);
        self.waiting.take_if(|waiting| *waiting == link);
        if self.scheduler.take_if(|(of, _)| *of == link).is_some() {
            for (&id, transfer) in &self.transfers {
                self.shared.connector.tell(match transfer {
                    Transfer::Lease => Told::Abandoned { id },
                    Transfer::Load { .. } => Told::Cancelled { id },
                });
            }
        }
    }

    fn obey(&mut self, link: LinkId, order: Order) {
        if let Order::Greeting { version, program, model, instance } = order {
            return self.greet(link, version, program, model, &instance);
        }
        match &mut self.scheduler {
            Some((of, heard)) if *of == link => *heard = Instant::now(),
            // It waits for its turn, or is over.
            _ => return,
        }
        let connector = &self.shared.connector;
        match order {
            Order::Greeting { .. } | Order::Pulse => {}
            Order::Step { number, runs } => {
                self.shared.computing.fetch_add(1, Ordering::SeqCst);
                let runs = runs.into_iter().map(Run::from).collect();
                self.steps.send(Step { link, number, runs }).expect("the computing thread lives");
            }
            Order::Lease { id, table } => {
                let id = TransferId(id);
                self.transfers.insert(id, Transfer::Lease);
                connector.tell(Told::Expect { id });
                connector.tell(Told::Finished { id, table: table.into() });
            }
            Order::Abandon { id } => connector.tell(Told::Abandoned { id: TransferId(id) }),
            Order::Load { id, offer, table, pushed, retries } => {
                let (id, offer, table) = (TransferId(id), Offer::from(offer), BlockTable::from(table));
                let tokens = table.end_token.saturating_sub(table.first_token);
                self.transfers.insert(id, Transfer::Load { began: Instant::now(), tokens, why: None });
                let policy = Policy { retries, otherwise: Otherwise::Error };
                let source = offer.source.address;
                let mode = if pushed { Mode::Push } else { Mode::Pull };
                let load = Load { id, source, mode, concurrent: false, offer: Some(offer), policy };
                connector.tell(Told::Load(load));
                connector.tell(Told::Allocated { id, table });
            }
            Order::Cancel { id } => connector.tell(Told::Cancelled { id: TransferId(id) }),
            Order::Discovered { source } => connector.tell(Told::Discovered { source }),
            Order::NotTaken { why } => {
                self.note_once(format!("its scheduler does not take it: {why}"));
                self.lose(link);
            }
            Order::Dismissed => self.shared.dismissed.store(true, Ordering::SeqCst),
        }
    }

    fn greet(&mut self, link: LinkId, version: u16, program: [u8; 32], model: [u8; 32], instance: &str) {
        let why = if version != VERSION {
            Some(format!("it speaks version {VERSION} of these words, its scheduler version {version}"))
        } else if program != self.identity.program {
            Some("it was started with another program, or other settings of it".into())
        } else if model != self.identity.model {
            Some("it has another model".into())
        } else if instance != self.instance {
            Some(format!("it is {}", self.instance))
        } else if self.scheduler.is_some_and(|(of, _)| of != link) || self.waiting.is_some_and(|of| of != link) {
            Some("it serves another scheduler".into())
        } else {
            None
        };
        match why {
            Some(why) => {
                self.note_once(format!("a scheduler was turned away: {why}"));
                say(&self.shared.node, link, &Answer::Refused { why });
                self.parting.push((link, Instant::now() + PULSE));
            }
            None => self.waiting = Some(link),
        }
    }

    fn hear(&mut self, heard: Heard) {
        let answer = match heard {
            Heard::Offered { id: TransferId(id), offer } => Answer::Offered { id, offer: offer.into() },
            Heard::Loaded { id, .. } => match self.transfers.remove(&id) {
                Some(Transfer::Load { began, tokens, .. }) => {
                    self.counts.loads += 1;
                    self.counts.load_us += began.elapsed().as_micros() as u64;
                    Answer::Loaded { id: id.0, bytes: u64::from(tokens) * self.bytes_per_token as u64 }
                }
                _ => return,
            },
            Heard::Failed { id, failure, .. } => {
                if let Some(Transfer::Load { why, .. }) = self.transfers.get_mut(&id) {
                    *why = Some(failure.to_string());
                }
                return;
            }
            Heard::Free { id, .. } => match self.give_back(id, true, None) {
                Some(answer) => answer,
                None => return,
            },
            Heard::Refused { id, failure } => match self.give_back(id, false, failure.map(|f| f.to_string())) {
                Some(answer) => answer,
                None => return,
            },
            Heard::Unwanted { .. } => return,
            Heard::Note(note) => return (self.note)(&note),
        };
        if let Some((link, _)) = self.scheduler {
            say(&self.shared.node, link, &answer);
        }
    }

    /// A transfer's blocks are nobody's but the scheduler's again.
    fn give_back(&mut self, TransferId(id): TransferId, leased: bool, refused: Option<String>) -> Option<Answer> {
        Some(match self.transfers.remove(&TransferId(id))? {
            Transfer::Lease => Answer::Released { id, leased },
            Transfer::Load { why, .. } => {
                self.counts.loads_failed += 1;
                if let Some(why) = why.as_ref().or(refused.as_ref()) {
                    self.note_once(format!("a load failed: {why}"));
                }
                let why = why.or(refused).unwrap_or_else(|| "it was given up".into());
                Answer::LoadFailed { id, why }
            }
        })
    }
}
