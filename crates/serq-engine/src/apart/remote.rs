//! The scheduler's side: instances that are elsewhere.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serq_transfer::memory::Region;
use serq_transfer::protocol::BlockTable;
use serq_transfer::transport::{Event, LinkId, Node, Options, Token, Way};

use super::link::{Pieces, say};
use super::words::{Answer, Counts, Order, Ready, Table, VERSION};
use super::{At, Identity, PULSE, SILENCE, lock};
use crate::served::Served;
use crate::service::{Copied, Ended, Instances, Presence, Put, Run, Span, Transfer};

/// From a dial that failed to the next one.
const REDIAL: Duration = Duration::from_millis(100);
/// The same after one that did not want this scheduler, or is not wanted.
const REDIAL_REFUSED: Duration = Duration::from_secs(5);
/// Times a load is tried again over the same blocks, where that may help.
const LOAD_RETRIES: u32 = 1;

/// Instances in other processes, as the service drives them.
pub struct RemoteInstances {
    shared: Arc<Shared>,
    retries: u32,
    thread: Option<JoinHandle<()>>,
}

/// Who is there, for whoever looks.
#[derive(Clone)]
pub struct Peers {
    shared: Arc<Shared>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerLook {
    /// As the program calls it.
    pub instance: String,
    /// Where its scheduler reaches it.
    pub address: SocketAddr,
    /// Why it is not there; `None`: it is.
    pub gone: Option<String>,
    /// It takes no new work.
    pub draining: bool,
    /// By name, what its connector has counted.
    pub counts: Vec<(&'static str, &'static str, u64)>,
}

struct Shared {
    node: Node,
    asked: Mutex<VecDeque<Asked>>,
    /// By instance.
    peers: Mutex<Vec<Peer>>,
    down: AtomicBool,
}

/// What the service asks for.
enum Asked {
    Watch(Presence),
    Copy { copied: Copied, source: usize, target: usize, from: BlockTable, to: BlockTable, pushed: bool },
    Stop { copy: u64 },
    Dismiss { stage: u32 },
}

struct Peer {
    at: At,
    stage: u32,
    pool: u32,
    block: u32,
    /// It serves on this link.
    link: Option<LinkId>,
    /// How often it came, and the kernel knows of the last time.
    times: u64,
    welcome: bool,
    gone: String,
    draining: bool,
    /// A step that runs there.
    step: Option<(u64, Ended)>,
    steps: u64,
    ready: Option<Ready>,
    counts: Counts,
}

/// A copy under way.
struct Moving {
    copied: Copied,
    source: usize,
    target: usize,
    to: BlockTable,
    pushed: bool,
    stopped: bool,
    /// What came of it at the reader, once its blocks are back.
    loaded: Option<Result<u64, String>>,
    /// The source's blocks are back.
    released: bool,
    /// The reader was told.
    loading: bool,
}

impl RemoteInstances {
    /// The instances of a program, at these addresses. A request is routed again so often when what it had is lost.
    ///
    /// # Errors
    ///
    /// A sentence: an instance has no address or two, or there is none of that name.
    pub fn start(
        served: &Served,
        identity: Identity,
        addresses: &[At],
        token: Token,
        incarnation: u64,
        retries: u32,
        note: impl Fn(&str) + Send + 'static,
    ) -> Result<Self, String> {
        if let Some(store) = served.stores().first() {
            return Err(format!(
                "{} keeps what instances spill, and instances in processes of their own spill nothing yet: leave \
                 `--processes` out, or `spill`",
                store.name
            ));
        }
        let named = served.instances();
        if let Some(at) = addresses.iter().find(|at| named.iter().all(|instance| instance.name != at.instance)) {
            let names: Vec<&str> = named.iter().map(|instance| instance.name.as_str()).collect();
            return Err(format!("the program has no instance {}; it has {}", at.instance, names.join(", ")));
        }
        for at in addresses {
            let (name, address) = (&at.instance, at.address);
            if address.port() == 0 || address.ip().is_unspecified() || !address.is_ipv4() {
                return Err(format!("{name} cannot be reached at {address}: an address of IPv4 and a port are meant"));
            }
            if let Some(other) = addresses.iter().find(|other| other.address == address && other.instance != *name) {
                return Err(format!("{name} and {} cannot both be at {address}", other.instance));
            }
        }
        let mut peers = Vec::new();
        for instance in named {
            let mut its = addresses.iter().filter(|at| at.instance == instance.name);
            let at = its.next().ok_or_else(|| format!("where is {}? It has no address", instance.name))?.clone();
            if its.next().is_some() {
                return Err(format!("{} has two addresses", instance.name));
            }
            peers.push(Peer {
                at,
                stage: instance.stage,
                pool: instance.pool,
                block: instance.memory.block as u32,
                link: None,
                times: 0,
                welcome: false,
                gone: format!("{} was not reached yet", instance.name),
                draining: false,
                step: None,
                steps: 0,
                ready: None,
                counts: Counts::default(),
            });
        }
        let nothing = Region::new(4096).map_err(|error| format!("there is no memory: {error}"))?;
        // It dials, and nobody dials it.
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let options = Options { listen, reached_at: None, token, incarnation, ways: vec![Way::Tcp] };
        let node = Node::start(options, Arc::new(nothing)).map_err(|error| format!("no port is free: {error}"))?;
        let shared =
            Arc::new(Shared { node, asked: Mutex::default(), peers: Mutex::new(peers), down: AtomicBool::new(false) });
        let here = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("serq-instances".into())
            .spawn(move || {
                let mut exchange = Exchange {
                    shared: &here,
                    identity,
                    note: Box::new(note),
                    presence: None,
                    greeted: HashMap::new(),
                    dial: Vec::new(),
                    pieces: Pieces::default(),
                    moving: BTreeMap::new(),
                    transfers: u128::from(incarnation) << 64,
                    pulse: Instant::now(),
                };
                while !here.down.load(Ordering::SeqCst) {
                    exchange.turn();
                }
            })
            .map_err(|error| format!("no thread: {error}"))?;
        Ok(Self { shared, retries, thread: Some(thread) })
    }

    /// Who is there.
    pub fn peers(&self) -> Peers {
        Peers { shared: Arc::clone(&self.shared) }
    }

    fn ask(&self, asked: Asked) {
        lock(&self.shared.asked).push_back(asked);
        self.shared.node.wake();
    }
}

impl Peers {
    /// What they look like now.
    pub fn look(&self) -> Vec<PeerLook> {
        let look = |peer: &Peer| {
            PeerLook {
                instance: peer.at.instance.clone(),
                address: peer.at.address,
                gone: peer.link.is_none().then(|| peer.gone.clone()),
                draining: peer.draining,
                // What a process counted is gone with it.
                counts: peer.link.map_or_else(Counts::default, |_| peer.counts).named(),
            }
        };
        lock(&self.shared.peers).iter().map(look).collect()
    }
}

impl Instances for RemoteInstances {
    fn start(&mut self, stage: u32, runs: Vec<Run>, ended: Ended) {
        let mut peers = lock(&self.shared.peers);
        let peer = peers.iter_mut().find(|peer| peer.stage == stage).expect("a step of an instance");
        peer.steps += 1;
        let number = peer.steps;
        // Without a link it is gone, and so is the step; that is told by who lost it.
        peer.step = Some((number, ended));
        if let Some(link) = peer.link.filter(|_| peer.welcome) {
            drop(peers);
            say(&self.shared.node, link, &Order::Step { number, runs: runs.into_iter().map(Into::into).collect() });
        }
    }

    fn copy(&mut self, transfer: Transfer<'_>, copied: Copied) -> Option<u64> {
        let Transfer { from, to, tokens, pushed } = transfer;
        let peers = lock(&self.shared.peers);
        let table = |span: &Span<'_>| {
            let at = peers.iter().position(|peer| peer.pool == span.pool).expect("the memory of an instance");
            let (block, range) = (peers[at].block, tokens.start as u32..tokens.end as u32);
            let blocks = &span.blocks[(range.start / block) as usize..range.end.div_ceil(block) as usize];
            (at, BlockTable::in_order(block, range.start, range.end, blocks))
        };
        let ((source, from), (target, to)) = (table(&from), table(&to));
        drop(peers);
        self.ask(Asked::Copy { copied, source, target, from, to, pushed });
        None
    }

    fn put(&mut self, _: Put) {
        unreachable!("a program with a store is refused");
    }

    fn takes_time(&self) -> bool {
        true
    }

    fn stop_copy(&mut self, copy: u64) {
        self.ask(Asked::Stop { copy });
    }

    fn dismiss(&mut self, stage: u32) {
        self.ask(Asked::Dismiss { stage });
    }

    fn welcome(&mut self, stage: u32, times: u64) {
        let mut peers = lock(&self.shared.peers);
        if let Some(peer) = peers.iter_mut().find(|peer| peer.stage == stage) {
            peer.welcome = peer.link.is_some() && peer.times == times;
        }
    }

    fn retries(&self) -> u32 {
        self.retries
    }

    fn watch(&mut self, presence: Presence) {
        self.ask(Asked::Watch(presence));
    }
}

impl Drop for RemoteInstances {
    fn drop(&mut self) {
        self.shared.down.store(true, Ordering::SeqCst);
        self.shared.node.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// `P` of `P[0]`: members of a queue hand nothing over to each other.
fn queue(at: &At) -> &str {
    at.instance.split('[').next().unwrap_or_default()
}

struct Exchange<'s> {
    shared: &'s Shared,
    identity: Identity,
    note: Box<dyn Fn(&str)>,
    presence: Option<Presence>,
    /// Which instance a link is with, and when that one was last heard.
    greeted: HashMap<LinkId, (usize, Instant)>,
    /// When which instance is dialled; `None`: it is being dialled, or there.
    dial: Vec<Option<Instant>>,
    pieces: Pieces,
    moving: BTreeMap<u128, Moving>,
    transfers: u128,
    pulse: Instant,
}

impl Exchange<'_> {
    fn turn(&mut self) {
        let due = self.dial.iter().flatten().min().copied();
        let event = self.shared.node.next(due.map_or(self.pulse, |due| due.min(self.pulse)));
        let asked = std::mem::take(&mut *lock(&self.shared.asked));
        asked.into_iter().for_each(|asked| self.ask(asked));
        match event {
            Some(Event::Linked { link, peer, .. }) => self.greet(link, peer),
            Some(Event::NotLinked { peer, why }) => self.not_reached(peer, &why),
            Some(Event::Message { link, bytes }) => match self.pieces.hear(link, &bytes) {
                Ok(None) => {}
                Ok(Some(answer)) => self.hear(link, answer),
                Err(why) => self.lose(link, &why),
            },
            Some(Event::Lost { link, why }) => self.lose(link, &why),
            Some(Event::TurnedAway { from, why }) => (self.note)(&format!("{} was turned away: {why}", from.ip())),
            Some(Event::Ended { .. } | Event::NotOffered { .. } | Event::Woken) | None => {}
        }
        let now = Instant::now();
        if now >= self.pulse {
            self.pulse = now + PULSE;
            let silent = self.greeted.iter().filter(|(_, (_, heard))| now - *heard > SILENCE).map(|(&link, _)| link);
            for link in silent.collect::<Vec<_>>() {
                self.lose(link, &format!("it said nothing for {} s", SILENCE.as_secs()));
            }
            self.greeted.keys().for_each(|&link| say(&self.shared.node, link, &Order::Pulse));
        }
        for nth in 0..self.dial.len() {
            if self.dial[nth].take_if(|due| *due <= now).is_some() {
                self.shared.node.dial(lock(&self.shared.peers)[nth].at.address);
            }
        }
    }

    fn ask(&mut self, asked: Asked) {
        match asked {
            Asked::Watch(presence) => {
                let peers = lock(&self.shared.peers);
                peers.iter().for_each(|peer| presence.gone(peer.stage, peer.gone.clone()));
                self.dial = vec![Some(Instant::now()); peers.len()];
                drop(peers);
                self.presence = Some(presence);
            }
            Asked::Copy { copied, source, target, from, to, pushed } => {
                self.transfers += 1;
                let id = self.transfers;
                let links = {
                    let peers = lock(&self.shared.peers);
                    [source, target]
                        .map(|at| peers[at].link.filter(|_| peers[at].welcome).ok_or_else(|| peers[at].gone.clone()))
                };
                match links {
                    [Ok(link), Ok(_)] => {
                        say(&self.shared.node, link, &Order::Lease { id, table: Table::from(&from) });
                        let moving = Moving {
                            copied,
                            source,
                            target,
                            to,
                            pushed,
                            stopped: false,
                            loaded: None,
                            released: false,
                            loading: false,
                        };
                        self.moving.insert(id, moving);
                    }
                    [Err(why), _] | [_, Err(why)] => copied.tell(Err(why)),
                }
            }
            Asked::Stop { copy } => {
                let id = self.moving.iter().find(|(_, moving)| moving.copied.copy() == copy).map(|(&id, _)| id);
                if let Some(id) = id {
                    self.stop(id);
                }
            }
            Asked::Dismiss { stage } => {
                let peers = lock(&self.shared.peers);
                if let Some(link) = peers.iter().find(|peer| peer.stage == stage).and_then(|peer| peer.link) {
                    say(&self.shared.node, link, &Order::Dismissed);
                }
            }
        }
    }

    fn link(&self, at: usize) -> Option<LinkId> {
        lock(&self.shared.peers)[at].link
    }

    /// Neither side is to go on with a transfer.
    fn stop(&mut self, id: u128) {
        let Some(moving) = self.moving.get_mut(&id) else { return };
        moving.stopped = true;
        if !moving.loading {
            moving.loaded.get_or_insert_with(|| Err("it was given up".into()));
        }
        let (source, target, loading) = (moving.source, moving.target, moving.loading && moving.loaded.is_none());
        if let Some(link) = self.link(source) {
            say(&self.shared.node, link, &Order::Abandon { id });
        }
        if let Some(link) = self.link(target).filter(|_| loading) {
            say(&self.shared.node, link, &Order::Cancel { id });
        }
        self.settle(id);
    }

    /// A transfer that both sides have given back is over.
    fn settle(&mut self, id: u128) {
        let over = self.moving.get(&id).is_some_and(|moving| moving.released && moving.loaded.is_some());
        if over && let Some(Moving { copied, loaded: Some(loaded), .. }) = self.moving.remove(&id) {
            copied.tell(loaded);
        }
    }

    fn greet(&mut self, link: LinkId, address: SocketAddr) {
        let found = lock(&self.shared.peers).iter().position(|peer| peer.at.address == address);
        let Some(nth) = found.filter(|&nth| self.greeted.values().all(|(of, _)| *of != nth)) else {
            return self.shared.node.cut(link);
        };
        self.greeted.insert(link, (nth, Instant::now()));
        let instance = lock(&self.shared.peers)[nth].at.instance.clone();
        let Identity { program, model } = self.identity.clone();
        say(&self.shared.node, link, &Order::Greeting { version: VERSION, program, model, instance });
    }

    fn not_reached(&mut self, address: SocketAddr, why: &str) {
        let mut peers = lock(&self.shared.peers);
        let Some(nth) = peers.iter().position(|peer| peer.at.address == address) else { return };
        let gone = format!("{} is not reached at {address}: {why}", peers[nth].at.instance);
        if peers[nth].gone != gone {
            (self.note)(&gone);
            peers[nth].gone = gone;
        }
        self.dial[nth] = Some(Instant::now() + REDIAL);
    }

    /// A link is over, and whatever was at its other end.
    fn lose(&mut self, link: LinkId, why: &str) {
        self.shared.node.cut(link);
        self.pieces.forget(link);
        let Some((nth, _)) = self.greeted.remove(&link) else { return };
        self.dial[nth] = Some(Instant::now() + REDIAL);
        let mut peers = lock(&self.shared.peers);
        let peer = &mut peers[nth];
        if peer.link != Some(link) {
            return;
        }
        peer.gone = format!("{} is gone: {why}", peer.at.instance);
        (self.note)(&peer.gone);
        (peer.link, peer.welcome, peer.step, peer.draining) = (None, false, None, false);
        let (stage, gone) = (peer.stage, peer.gone.clone());
        drop(peers);
        if let Some(presence) = &self.presence {
            presence.gone(stage, gone.clone());
        }
        let touched = self.moving.iter().filter(|(_, moving)| moving.source == nth || moving.target == nth);
        for id in touched.map(|(&id, _)| id).collect::<Vec<_>>() {
            let moving = self.moving.get_mut(&id).expect("it is there");
            if moving.source == nth {
                moving.released = true;
            }
            if moving.target == nth {
                moving.loaded = Some(Err(gone.clone()));
            }
            self.stop(id);
        }
    }

    fn hear(&mut self, link: LinkId, answer: Answer) {
        let Some((nth, heard)) = self.greeted.get_mut(&link) else { return };
        *heard = Instant::now();
        let nth = *nth;
        match answer {
            Answer::Ready(ready) => self.begin(link, nth, ready),
            Answer::Refused { why } => self.part(link, nth, &why),
            Answer::Pulse(counts) => lock(&self.shared.peers)[nth].counts = counts,
            Answer::StepEnded { number, tokens } => {
                let step = lock(&self.shared.peers)[nth].step.take_if(|(of, _)| *of == number);
                if let Some((_, ended)) = step {
                    ended.tell(tokens);
                }
            }
            Answer::Offered { id, offer } => {
                let Some(moving) = self.moving.get_mut(&id).filter(|moving| !moving.stopped) else { return };
                moving.loading = true;
                let (target, table, pushed) = (moving.target, Table::from(&moving.to), moving.pushed);
                if let Some(link) = self.link(target) {
                    say(&self.shared.node, link, &Order::Load { id, offer, table, pushed, retries: LOAD_RETRIES });
                }
            }
            Answer::Released { id, leased } => {
                if let Some(moving) = self.moving.get_mut(&id) {
                    moving.released = true;
                    if !leased && !moving.loading {
                        moving.loaded.get_or_insert_with(|| Err("its source has too many transfers".into()));
                    }
                    self.settle(id);
                }
            }
            Answer::Loaded { id, bytes } => self.loaded(id, Ok(bytes)),
            Answer::LoadFailed { id, why } => self.loaded(id, Err(why)),
            Answer::Draining => {
                let mut peers = lock(&self.shared.peers);
                peers[nth].draining = true;
                let stage = peers[nth].stage;
                (self.note)(&format!("{} takes no new work", peers[nth].at.instance));
                drop(peers);
                if let Some(presence) = &self.presence {
                    presence.draining(stage);
                }
            }
        }
    }

    fn loaded(&mut self, id: u128, loaded: Result<u64, String>) {
        let Some(moving) = self.moving.get_mut(&id) else { return };
        let failed = loaded.is_err();
        moving.loaded.get_or_insert(loaded);
        match failed {
            true => self.stop(id),
            false => self.settle(id),
        }
    }

    /// An instance and this do not belong together; that may change.
    fn part(&mut self, link: LinkId, nth: usize, why: &str) {
        let address = lock(&self.shared.peers)[nth].at.address;
        // It ends the link when it has heard all.
        self.greeted.remove(&link);
        self.pieces.forget(link);
        self.not_reached(address, why);
        self.dial[nth] = Some(Instant::now() + REDIAL_REFUSED);
    }

    /// An instance serves from now on, if it computes as the others do.
    fn begin(&mut self, link: LinkId, nth: usize, ready: Ready) {
        let mut peers = lock(&self.shared.peers);
        let differs = peers.iter().enumerate().find_map(|(other, peer)| {
            let its = peer.ready.as_ref().filter(|_| other != nth && peer.link.is_some())?;
            let alike = its.arithmetic == ready.arithmetic && its.compatibility == ready.compatibility;
            let (ours, theirs) = (&ready.arithmetic, &its.arithmetic);
            (!alike).then(|| format!("it computes in {ours}, and {} in {theirs}", peer.at.instance))
        });
        if let Some(why) = differs {
            drop(peers);
            say(&self.shared.node, link, &Order::NotTaken { why: why.clone() });
            return self.part(link, nth, &why);
        }
        let kv = ready.kv;
        (peers[nth].link, peers[nth].ready, peers[nth].draining) = (Some(link), Some(ready), false);
        peers[nth].times += 1;
        let (stage, times) = (peers[nth].stage, peers[nth].times);
        (self.note)(&format!("{} is there, at {}", peers[nth].at.instance, peers[nth].at.address));
        // Connected before a request needs it.
        for (other, peer) in peers.iter().enumerate() {
            let Some((its_link, its_kv)) = peer.link.zip(peer.ready.as_ref().map(|ready| ready.kv)) else { continue };
            if other != nth && queue(&peer.at) != queue(&peers[nth].at) {
                say(&self.shared.node, its_link, &Order::Discovered { source: kv });
                say(&self.shared.node, link, &Order::Discovered { source: its_kv });
            }
        }
        drop(peers);
        if let Some(presence) = &self.presence {
            presence.back(stage, times);
        }
    }
}
