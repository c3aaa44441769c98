//! The protocol's two machines on links with peers, whatever these are: between processes ([`super::remote`]) or within
//! one ([`super::local`]).
//!
//! One thread has both machines and does what they answer. Peers greet with their descriptors, so each side knows how
//! the other's KV lies before a request comes; every message's sender is who its link has proven to be.
//!
//! ```text
//!   over a link   0, descriptor as JSON     first, from both sides
//!                 1, protocol message       in any order
//! ```
//!
//! # Invariants
//!
//! - A read or a write is posted once for each action that asks for it, and its end told once.
//! - Peers write only to blocks that are registered, while they are: a window is opened before the registration is
//!   sent, and closed before a revocation is, or before the blocks are given back.
//! - Bytes to be converted wait in staging of bounded size, in the order in which they came.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::mailbox::Mailbox;
use super::moving::{self, Joined, Tokens, Way};
use super::{Heard, KvConnector, Memory, Told};
use crate::layout::{Descriptor, Piece};
use crate::protocol::reader::{self, Canary, Reader};
use crate::protocol::source::{self, Source};
use crate::protocol::{
    Address, BlockTable, Config, Counters, Envelope, Incarnation, Message, Peer, Refusal, Run, Session, Time,
    TransferId, encoding,
};
use crate::transport::{self, Event, LinkId, PostId, WindowId, lock};

/// Messages that wait for a link to be dialled.
const WAITING_MOST: usize = 1024;
/// From a dial that failed to the next one.
const REDIAL: Duration = Duration::from_millis(200);

/// Looks at tokens of a block through the instance's own way of reading KV: block, tokens.
pub type Look = Box<dyn FnMut(u32, usize) -> Result<(), String> + Send>;

/// How a connector's bytes and messages get to its peers, with the promises of [`crate::transport`].
pub trait Links: Send + Sync + 'static {
    /// Begins to join a peer: [`Event::Linked`] or [`Event::NotLinked`].
    fn dial(&self, peer: SocketAddr);

    /// Sends a message. To a link that is over it goes nowhere.
    fn send(&self, link: LinkId, message: Vec<u8>);

    /// Reads bytes of a peer's memory to their places here. Ends with [`Event::Ended`].
    fn read(&self, link: LinkId, post: PostId, pieces: Vec<transport::Piece>);

    /// Writes bytes to a peer's memory, within a window it has open. Ends with [`Event::Ended`].
    fn write(&self, link: LinkId, post: PostId, window: WindowId, pieces: Vec<transport::Piece>);

    /// Lets peers write to these ranges of (place, bytes), until it is closed.
    fn open_window(&self, window: WindowId, ranges: Vec<(u64, u64)>);

    /// Nothing is written to a window any more, from when this returns.
    fn close_window(&self, window: WindowId);

    /// Ends a link. When this returns nothing of it changes this side's memory any more.
    fn cut(&self, link: LinkId);

    /// Has [`Links::next`] tell [`Event::Woken`].
    fn wake(&self);

    /// The next event, if there is one by then.
    fn next(&self, by: Instant) -> Option<Event>;
}

/// A connector that runs. Dropped, its links are over, and blocks that are not given back yet are never given back.
pub struct Connector<L: Links> {
    shared: Arc<Shared<L>>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

struct Shared<L> {
    links: L,
    told: Mutex<VecDeque<Told>>,
    heard: Mailbox<Heard>,
    counted: Mutex<Counted>,
    down: AtomicBool,
}

/// What a connector has counted, and what is there now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    /// Of the prefill side.
    pub source: Counters,
    /// Of the decode side.
    pub reader: Counters,
    /// Transfers alive on the prefill side, and on the decode side.
    pub transfers: (usize, usize),
    /// Bytes read and written by posts that landed.
    pub bytes_moved: u64,
    /// Posts that did not land.
    pub posts_failed: u64,
}

impl<L: Links> Connector<L> {
    /// Starts it on links that peers reach at this address, as this process of the address.
    pub(super) fn over(
        links: L,
        (address, incarnation): (SocketAddr, u64),
        config: Config,
        memory: Memory,
        look: Option<Look>,
    ) -> io::Result<Self> {
        let number = address_of(address).ok_or_else(|| io::Error::other("an address of IPv4 is meant"))?;
        let me = Peer { address: number, incarnation: Incarnation(incarnation) };
        moving::fill_canary(&memory.descriptor, memory.canary_block(), &memory.region).map_err(io::Error::other)?;
        let shared = Arc::new(Shared {
            links,
            told: Mutex::default(),
            heard: Mailbox::default(),
            counted: Mutex::default(),
            down: AtomicBool::new(false),
        });
        let here = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("kv-connector".into())
            .spawn(move || Exchange::new(&here, me, config, memory, look).run())?;
        Ok(Self { shared, address, thread: Some(thread) })
    }

    /// Where peers reach it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it has counted.
    pub fn counted(&self) -> Counted {
        *lock(&self.shared.counted)
    }
}

impl<L: Links> KvConnector for Connector<L> {
    fn tell(&self, told: Told) {
        lock(&self.shared.told).push_back(told);
        self.shared.links.wake();
    }

    fn next(&self, by: Instant) -> Option<Heard> {
        self.shared.heard.next(by)
    }
}

impl<L: Links> Drop for Connector<L> {
    fn drop(&mut self) {
        self.shared.down.store(true, Ordering::SeqCst);
        self.shared.links.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// An address as the protocol has it.
pub fn address_of(address: SocketAddr) -> Option<Address> {
    match address.ip() {
        IpAddr::V4(ip) => Some(Address(u64::from(u32::from(ip)) << 16 | u64::from(address.port()))),
        IpAddr::V6(_) => None,
    }
}

fn socket_of(address: Address) -> SocketAddr {
    let Address(number) = address;
    SocketAddr::new(Ipv4Addr::from((number >> 16) as u32).into(), number as u16)
}

/// What is known of a peer.
#[derive(Default)]
struct Known {
    /// The newest of its links.
    link: Option<LinkId>,
    incarnation: u64,
    /// Its KV to ours, and ours to its; or why not.
    pull: Option<Result<Joined, String>>,
    push: Option<Result<Joined, String>>,
    dialling: bool,
    /// Until then it is left alone: it could not be dialled.
    alone: Option<Instant>,
    waiting: Vec<Vec<u8>>,
}

/// What a post is for.
enum Post {
    Read { id: TransferId, attempt: u64, part: u8 },
    Write { id: TransferId, attempt: u64, part: u8 },
    Canary { source: Address, session: Session },
}

/// A post under way, and where its bytes are staged.
struct Under {
    post: Post,
    address: Address,
    tokens: Tokens,
    bytes: u64,
    staged: Option<(u64, u64)>,
}

/// A post that waits for staging.
struct Staging {
    under: Under,
    link: LinkId,
    bytes: u64,
    pieces: Vec<Piece>,
    window: Option<WindowId>,
}

struct Exchange<'s, L> {
    shared: &'s Shared<L>,
    memory: Memory,
    look: Option<Look>,
    source: Source,
    reader: Reader,
    began: Instant,
    /// When each machine, the source first, asked to be woken last.
    wakes: [Option<Time>; 2],
    peers: BTreeMap<Address, Known>,
    links: BTreeMap<LinkId, (Address, u64)>,
    posts: HashMap<u64, Under>,
    posted: u64,
    /// Where transfers are in the text: of prefills that are leased, and of loads that have blocks.
    leased: BTreeMap<TransferId, BlockTable>,
    loading: BTreeMap<TransferId, BlockTable>,
    windows: BTreeMap<TransferId, WindowId>,
    /// Staging that is taken, by place.
    staged: BTreeMap<u64, u64>,
    to_stage: VecDeque<Staging>,
    /// Canaries are read one after another: there is one block for them.
    canaries: VecDeque<(Peer, Session, Vec<u8>)>,
    reading_canary: bool,
    noted: BTreeSet<String>,
    bytes_moved: u64,
    posts_failed: u64,
}

/// To one of the two machines.
enum Fact {
    Source(source::Fact),
    Reader(reader::Fact),
}

impl<'s, L: Links> Exchange<'s, L> {
    fn new(shared: &'s Shared<L>, me: Peer, config: Config, memory: Memory, look: Option<Look>) -> Self {
        let compatibility = memory.descriptor.compatibility_hash().into_bytes();
        let canary = memory.canary_block().to_le_bytes().to_vec();
        Self {
            shared,
            look,
            source: Source::new(me, compatibility.clone(), canary, config.clone()),
            reader: Reader::new(me, compatibility, config),
            memory,
            began: Instant::now(),
            wakes: [None; 2],
            peers: BTreeMap::new(),
            links: BTreeMap::new(),
            posts: HashMap::new(),
            posted: 0,
            leased: BTreeMap::new(),
            loading: BTreeMap::new(),
            windows: BTreeMap::new(),
            staged: BTreeMap::new(),
            to_stage: VecDeque::new(),
            canaries: VecDeque::new(),
            reading_canary: false,
            noted: BTreeSet::new(),
            bytes_moved: 0,
            posts_failed: 0,
        }
    }

    fn run(mut self) {
        while !self.shared.down.load(Ordering::SeqCst) {
            let by = match self.wakes.into_iter().flatten().min() {
                Some(Time(us)) => self.began + Duration::from_micros(us),
                None => Instant::now() + Duration::from_secs(3600),
            };
            let event = self.shared.links.next(by);
            let told: Vec<Told> = lock(&self.shared.told).drain(..).collect();
            told.into_iter().for_each(|told| self.tell(told));
            if let Some(event) = event {
                self.happen(event);
            }
            let now = self.now();
            if self.wakes[0].take_if(|time| *time <= now).is_some() {
                self.fact(Fact::Source(source::Fact::Woken));
            }
            if self.wakes[1].take_if(|time| *time <= now).is_some() {
                self.fact(Fact::Reader(reader::Fact::Woken));
            }
            *lock(&self.shared.counted) = Counted {
                source: self.source.counters(),
                reader: self.reader.counters(),
                transfers: (self.source.transfers(), self.reader.transfers()),
                bytes_moved: self.bytes_moved,
                posts_failed: self.posts_failed,
            };
        }
    }

    fn now(&self) -> Time {
        Time(self.began.elapsed().as_micros() as u64)
    }

    fn hear(&self, heard: Heard) {
        self.shared.heard.put(heard);
    }

    /// Notes it, if it was not before.
    fn note(&mut self, note: String) {
        if self.noted.len() < WAITING_MOST && self.noted.insert(note.clone()) {
            self.hear(Heard::Note(note));
        }
    }

    fn tell(&mut self, told: Told) {
        let fact = match told {
            Told::Expect { id } => Fact::Source(source::Fact::Expected { id }),
            Told::Finished { id, table } => {
                self.leased.insert(id, table.clone());
                Fact::Source(source::Fact::PrefillFinished { id, table })
            }
            Told::PrefillFailed { id } => Fact::Source(source::Fact::PrefillFailed { id }),
            Told::Aborted { id } => Fact::Source(source::Fact::Aborted { id }),
            Told::Abandoned { id } => Fact::Source(source::Fact::Abandoned { id }),
            Told::Discovered { source } => match address_of(source) {
                Some(source) => Fact::Reader(reader::Fact::Discovered { source }),
                None => return self.note(format!("{source} is not an address of IPv4")),
            },
            Told::Load(load) => Fact::Reader(reader::Fact::Queued(load)),
            Told::Allocated { id, table } => {
                self.loading.insert(id, table.clone());
                Fact::Reader(reader::Fact::Reserved { id, table })
            }
            Told::Cancelled { id } => Fact::Reader(reader::Fact::Cancelled { id }),
        };
        self.fact(fact);
    }

    /// A machine is told, and what follows is done, until nothing follows.
    fn fact(&mut self, fact: Fact) {
        let mut facts = VecDeque::from([fact]);
        while let Some(fact) = facts.pop_front() {
            let now = self.now();
            match fact {
                Fact::Source(fact) => {
                    let mut actions = Vec::new();
                    self.source.handle(now, fact, &mut actions);
                    if cfg!(debug_assertions) {
                        self.source.check(now);
                    }
                    actions.into_iter().for_each(|action| self.act_as_source(action, &mut facts));
                }
                Fact::Reader(fact) => {
                    let mut actions = Vec::new();
                    self.reader.handle(now, fact, &mut actions);
                    if cfg!(debug_assertions) {
                        self.reader.check(now);
                    }
                    actions.into_iter().for_each(|action| self.act_as_reader(action, &mut facts));
                }
            }
        }
    }

    fn act_as_source(&mut self, action: source::Action, facts: &mut VecDeque<Fact>) {
        match action {
            source::Action::Send(envelope) => self.send(&envelope),
            source::Action::Offered { id, offer } => self.hear(Heard::Offered { id, offer }),
            source::Action::Write { peer, id, epoch, attempt, part, runs, .. } => {
                let post = Post::Write { id, attempt, part };
                let tokens = self.leased.get(&id).and_then(|table| Tokens::of(&runs, table, false));
                if !self.post(peer, post, tokens, Some(WindowId(epoch.0))) {
                    facts.push_back(Fact::Source(source::Fact::PartEnded { id, attempt, part, landed: false }));
                }
            }
            source::Action::Fence { peer, session } => {
                self.cut(peer);
                facts.push_back(Fact::Source(source::Fact::Fenced { peer, session }));
            }
            source::Action::Free { id, blocks } => {
                self.leased.remove(&id);
                self.hear(Heard::Free { id, blocks });
            }
            source::Action::Unwanted { id } => self.hear(Heard::Unwanted { id }),
            source::Action::Refused { id } => self.hear(Heard::Refused { id, failure: None }),
            source::Action::WakeAt(time) => self.wakes[0] = Some(time),
        }
    }

    fn act_as_reader(&mut self, action: reader::Action, facts: &mut VecDeque<Fact>) {
        match action {
            reader::Action::Send(envelope) => {
                match &envelope.message {
                    Message::Register { id, epoch, target } => self.open_window(*id, WindowId(epoch.0), target),
                    Message::Revoke { id, .. } => self.close_window(*id),
                    _ => {}
                }
                self.send(&envelope);
            }
            reader::Action::ReadCanary { peer, session, canary } => {
                self.canaries.push_back((peer, session, canary));
                facts.extend(self.read_canary());
            }
            reader::Action::Read { peer, id, attempt, part, runs, .. } => {
                let post = Post::Read { id, attempt, part };
                let tokens = self.tokens_of_load(id, &runs);
                if !self.post(peer, post, tokens, None) {
                    facts.push_back(Fact::Reader(reader::Fact::PartEnded { id, attempt, part, landed: false }));
                }
            }
            reader::Action::Fence { peer, session } => {
                self.cut(peer);
                facts.push_back(Fact::Reader(reader::Fact::Fenced { peer, session }));
            }
            reader::Action::Loaded { id, end_token, blocks } => {
                self.close_window(id);
                self.loading.remove(&id);
                self.hear(Heard::Loaded { id, end_token, blocks });
            }
            reader::Action::Failed { id, failure, otherwise } => self.hear(Heard::Failed { id, failure, otherwise }),
            reader::Action::Free { id, blocks } => {
                self.close_window(id);
                self.loading.remove(&id);
                self.hear(Heard::Free { id, blocks });
            }
            reader::Action::Refused { id, failure } => self.hear(Heard::Refused { id, failure: Some(failure) }),
            reader::Action::WakeAt(time) => self.wakes[1] = Some(time),
        }
    }

    fn tokens_of_load(&self, id: TransferId, runs: &[Run]) -> Option<Tokens> {
        self.loading.get(&id).and_then(|table| Tokens::of(runs, table, true))
    }

    fn open_window(&mut self, id: TransferId, window: WindowId, target: &BlockTable) {
        let blocks: Vec<u32> = target.numbers().collect();
        // What is none of this memory is written by nobody.
        let ranges = moving::ranges(&self.memory.descriptor, &blocks).unwrap_or_default();
        if self.windows.get(&id) != Some(&window) {
            self.close_window(id);
            self.shared.links.open_window(window, ranges);
            self.windows.insert(id, window);
        }
    }

    fn close_window(&mut self, id: TransferId) {
        if let Some(window) = self.windows.remove(&id) {
            self.shared.links.close_window(window);
        }
    }

    fn send(&mut self, envelope: &Envelope) {
        let mut message = vec![1];
        message.extend_from_slice(&encoding::encode(envelope));
        let known = self.peers.entry(envelope.to.address).or_default();
        match known.link {
            Some(link) => self.shared.links.send(link, message),
            None => {
                if known.waiting.len() < WAITING_MOST {
                    known.waiting.push(message);
                }
                // Who has something to say says it again.
                if !known.dialling && known.alone.is_none_or(|until| until <= Instant::now()) {
                    known.dialling = true;
                    self.shared.links.dial(socket_of(envelope.to.address));
                }
            }
        }
    }

    /// Nothing of the process's links moves any more.
    fn cut(&mut self, peer: Peer) {
        let its = |&(_, of): &(&LinkId, &(Address, u64))| *of == (peer.address, peer.incarnation.0);
        let links: Vec<LinkId> = self.links.iter().filter(its).map(|(link, _)| *link).collect();
        for link in links {
            self.shared.links.cut(link);
            self.lose(link);
        }
    }

    fn lose(&mut self, link: LinkId) {
        let Some((address, _)) = self.links.remove(&link) else { return };
        let Some(known) = self.peers.get_mut(&address).filter(|known| known.link == Some(link)) else { return };
        known.link = None;
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Woken => {}
            Event::Linked { link, peer, incarnation, way } => {
                let Some(address) = address_of(peer) else { return self.shared.links.cut(link) };
                self.hear(Heard::Note(format!("linked with {peer}, number {incarnation}, by {way}")));
                let others: Vec<LinkId> = self
                    .links
                    .iter()
                    .filter(|(_, (of, number))| *of == address && *number != incarnation)
                    .map(|(link, _)| *link)
                    .collect();
                // Somebody else is there now.
                others.into_iter().for_each(|other| self.shared.links.cut(other));
                self.links.insert(link, (address, incarnation));
                let known = self.peers.entry(address).or_default();
                // Both sides may have dialled: a second link is with whom the first is, whose KV lies as it does.
                if known.incarnation != incarnation {
                    (known.pull, known.push) = (None, None);
                }
                (known.link, known.incarnation, known.dialling) = (Some(link), incarnation, false);
                let mut greeting = vec![0];
                greeting.extend_from_slice(self.memory.descriptor.to_json().as_bytes());
                self.shared.links.send(link, greeting);
                std::mem::take(&mut known.waiting)
                    .into_iter()
                    .for_each(|message| self.shared.links.send(link, message));
            }
            Event::NotLinked { peer, why } => {
                if let Some(known) = address_of(peer).and_then(|address| self.peers.get_mut(&address)) {
                    known.waiting.clear();
                    (known.dialling, known.alone) = (false, Some(Instant::now() + REDIAL));
                }
                self.note(format!("{peer} is not linked: {why}"));
            }
            Event::NotOffered { way, why } => self.note(format!("nothing goes by {way}: {why}")),
            Event::TurnedAway { from, why } => self.note(format!("{} was turned away: {why}", from.ip())),
            Event::Message { link, bytes } => self.receive(link, &bytes),
            Event::Ended { post, landed } => self.end(post, landed),
            Event::Lost { link, why } => {
                if let Some((address, _)) = self.links.get(&link) {
                    self.hear(Heard::Note(format!("the link with {} is over: {why}", socket_of(*address))));
                }
                self.lose(link);
            }
        }
    }

    fn receive(&mut self, link: LinkId, bytes: &[u8]) {
        let Some(&(address, incarnation)) = self.links.get(&link) else { return };
        let peer = socket_of(address);
        match bytes.split_first() {
            Some((0, text)) => {
                let theirs = std::str::from_utf8(text).map_err(|error| error.to_string());
                let theirs = theirs.and_then(|text| Descriptor::from_json(text).map_err(|error| error.to_string()));
                let ours = &self.memory.descriptor;
                let join = |source: Result<&Descriptor, &String>, reader: Result<&Descriptor, &String>| {
                    let (source, reader) = (source.map_err(Clone::clone)?, reader.map_err(Clone::clone)?);
                    Joined::new(source, reader)
                };
                let (pull, push) = (join(theirs.as_ref(), Ok(ours)), join(Ok(ours), theirs.as_ref()));
                if let Err(why) = &pull {
                    let note = format!("KV of {peer} cannot be used here: {why}");
                    self.note(note);
                }
                let known = self.peers.entry(address).or_default();
                (known.pull, known.push) = (Some(pull), Some(push));
            }
            Some((1, bytes)) => match encoding::decode(bytes) {
                Ok(envelope) => {
                    let proven = Peer { address, incarnation: Incarnation(incarnation) };
                    match envelope.from == proven {
                        true => self.route(envelope),
                        false => self.note(format!("{peer} speaks for somebody else")),
                    }
                }
                Err(error) => self.note(format!("{peer} sent a message that cannot be read: {error}")),
            },
            _ => self.note(format!("{peer} sent a message that cannot be read")),
        }
    }

    /// A message, to the machine that is meant.
    fn route(&mut self, mut envelope: Envelope) {
        match &envelope.message {
            Message::Hello { .. }
            | Message::Ask { .. }
            | Message::Register { .. }
            | Message::Heartbeat { .. }
            | Message::Done { .. }
            | Message::Drop { .. }
            | Message::Revoke { .. } => self.fact(Fact::Source(source::Fact::Message(envelope))),
            Message::SomebodyElse { .. } => {
                self.fact(Fact::Source(source::Fact::Message(envelope.clone())));
                self.fact(Fact::Reader(reader::Fact::Message(envelope)));
            }
            Message::Welcome { .. } => {
                // The layouts decide it, not the hash alone.
                let joined = self.peers.get(&envelope.from.address).and_then(|known| known.pull.as_ref());
                if !matches!(joined, Some(Ok(_))) {
                    envelope.message = Message::Refused { refusal: Refusal::Compatibility };
                }
                self.fact(Fact::Reader(reader::Fact::Message(envelope)));
            }
            _ => self.fact(Fact::Reader(reader::Fact::Message(envelope))),
        }
    }

    /// Reads the next canary, if none is being read. Answers what is known of it at once.
    fn read_canary(&mut self) -> Option<Fact> {
        if self.reading_canary {
            return None;
        }
        let (peer, session, canary) = self.canaries.pop_front()?;
        let unread = Fact::Reader(reader::Fact::CanaryRead { source: peer.address, session, canary: Canary::Unread });
        let Ok(block) = <[u8; 4]>::try_from(&canary[..]).map(u32::from_le_bytes) else { return Some(unread) };
        let target = self.memory.read_block();
        // A canary that was read before must not stand for one that is not there.
        if moving::empty(&self.memory.descriptor, target, &self.memory.region).is_err() {
            return Some(unread);
        }
        let known = self.peers.get(&peer.address);
        let theirs = match known.and_then(|known| known.pull.as_ref()) {
            Some(Ok(joined)) => joined.source_block_tokens(),
            _ => return Some(unread),
        };
        let tokens = Tokens::canary(block, target, theirs.min(self.memory.block_tokens()));
        self.reading_canary = self.post(peer, Post::Canary { source: peer.address, session }, Some(tokens), None);
        (!self.reading_canary).then_some(unread)
    }

    /// Begins to move tokens; whether it is under way.
    fn post(&mut self, peer: Peer, post: Post, tokens: Option<Tokens>, window: Option<WindowId>) -> bool {
        let Some(tokens) = tokens else { return false };
        let Some(known) = self.peers.get(&peer.address) else { return false };
        let Some(link) = known.link.filter(|_| known.incarnation == peer.incarnation.0) else { return false };
        let writes = window.is_some();
        let Some(Ok(joined)) = (if writes { &known.push } else { &known.pull }) else { return false };
        let way = if writes { joined.push(&tokens) } else { joined.pull(&tokens) };
        let (staging, pieces) = match way {
            Ok(Way::Alike(pieces)) => (None, pieces),
            Ok(Way::Staged { bytes, pieces }) => (Some(bytes as u64), pieces),
            Err(why) => {
                self.note(why);
                return false;
            }
        };
        let bytes = pieces.iter().map(|piece| piece.bytes as u64).sum();
        let under = Under { post, address: peer.address, tokens, bytes, staged: None };
        let Some(staging) = staging else {
            self.begin(under, link, window, pieces, 0);
            return true;
        };
        if staging > self.memory.staging().1 {
            self.note(format!(
                "{staging} bytes are to be converted at once, and there is room for {}",
                self.memory.staging().1
            ));
            return false;
        }
        self.to_stage.push_back(Staging { under, link, bytes: staging, pieces, window });
        self.stage();
        true
    }

    /// Posts pieces; where something is staged here, their place is counted from its first byte.
    fn begin(&mut self, under: Under, link: LinkId, window: Option<WindowId>, pieces: Vec<Piece>, staged: u64) {
        self.posted += 1;
        let post = PostId(self.posted);
        self.posts.insert(self.posted, under);
        let piece = |piece: Piece| {
            let (source, reader, bytes) = (piece.source as u64, piece.reader as u64, piece.bytes as u64);
            let (here, there) = if window.is_some() { (source, reader) } else { (reader, source) };
            crate::transport::Piece { here: here + staged, there, bytes }
        };
        let pieces = pieces.into_iter().map(piece).collect();
        match window {
            Some(window) => self.shared.links.write(link, post, window, pieces),
            None => self.shared.links.read(link, post, pieces),
        }
    }

    /// Those that wait for staging begin, as long as there is room for the first of them.
    fn stage(&mut self) {
        while let Some(first) = self.to_stage.front() {
            let Some(place) = self.room(first.bytes) else { return };
            let Staging { mut under, link, bytes, pieces, window } = self.to_stage.pop_front().expect("the first");
            if window.is_some() {
                let joined = self.peers.get(&under.address).and_then(|known| known.push.as_ref()?.as_ref().ok());
                let staged = joined.ok_or_else(String::new).and_then(|to| to.stage(&under.tokens, &self.memory.region));
                let written = staged.ok().and_then(|staged| self.memory.region.write(place, &staged));
                if written.is_none() {
                    self.over(under, false);
                    continue;
                }
            }
            self.staged.insert(place, bytes);
            under.staged = Some((place, bytes));
            self.begin(under, link, window, pieces, place);
        }
    }

    /// The first place in staging with so much room.
    fn room(&self, bytes: u64) -> Option<u64> {
        let (first, all) = self.memory.staging();
        let mut place = first;
        for (&taken, &of) in &self.staged {
            if taken - place >= bytes {
                return Some(place);
            }
            place = (taken + of).next_multiple_of(64);
        }
        (place + bytes <= first + all).then_some(place)
    }

    fn end(&mut self, post: PostId, landed: bool) {
        let Some(under) = self.posts.remove(&post.0) else { return };
        let mut landed = landed;
        if let Some((place, bytes)) = under.staged {
            if landed && !matches!(under.post, Post::Write { .. }) {
                landed = self.unstage(&under, place, bytes);
            }
            self.staged.remove(&place);
        }
        self.over(under, landed);
        self.stage();
    }

    fn unstage(&self, under: &Under, place: u64, bytes: u64) -> bool {
        // A load whose blocks were given back meanwhile has nothing to put anywhere.
        if let Post::Read { id, .. } = under.post
            && !self.loading.contains_key(&id)
        {
            return false;
        }
        let joined = self.peers.get(&under.address).and_then(|known| known.pull.as_ref()?.as_ref().ok());
        let mut staged = vec![0; bytes as usize];
        self.memory.region.read(place, &mut staged).is_some()
            && joined.is_some_and(|joined| joined.unstage(&under.tokens, &staged, &self.memory.region).is_ok())
    }

    /// A post is over: its machine is told.
    fn over(&mut self, under: Under, landed: bool) {
        match landed {
            true => self.bytes_moved += under.bytes,
            false => self.posts_failed += 1,
        }
        match under.post {
            Post::Read { id, attempt, part } => {
                self.fact(Fact::Reader(reader::Fact::PartEnded { id, attempt, part, landed }));
            }
            Post::Write { id, attempt, part } => {
                self.fact(Fact::Source(source::Fact::PartEnded { id, attempt, part, landed }));
            }
            Post::Canary { source, session } => {
                self.reading_canary = false;
                let canary = if landed { self.look_at_canary(source) } else { Canary::Unread };
                self.fact(Fact::Reader(reader::Fact::CanaryRead { source, session, canary }));
                if let Some(fact) = self.read_canary() {
                    self.fact(fact);
                }
            }
        }
    }

    fn look_at_canary(&mut self, source: Address) -> Canary {
        let joined = self.peers.get(&source).and_then(|known| known.pull.as_ref()?.as_ref().ok());
        let Some(theirs) = joined.map(Joined::source_block_tokens) else { return Canary::Unread };
        let (block, tokens) = (self.memory.read_block(), theirs.min(self.memory.block_tokens()));
        let looked = match &mut self.look {
            Some(look) => look(block, tokens),
            None => moving::look_at_canary(&self.memory.descriptor, block, tokens, &self.memory.region),
        };
        match looked {
            Ok(()) => Canary::Right,
            Err(why) => {
                self.note(format!("the canary of {}: {why}", socket_of(source)));
                Canary::Wrong
            }
        }
    }
}
