//! One process's side: whom it is linked with, its windows, and what it tells.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use socket2::{SockRef, TcpKeepalive};

use super::greeting::{self, Greeted, Purpose, Token, Who};
use super::link::{Link, lock, reason};
use super::reach::Reach;
use super::side::{Agents, Side};
use super::{Event, LinkId, Piece, PostId, Way, WindowId, lie_in, wire};
use crate::memory::{Place, Region};
use crate::nixl::Agent;

/// All of a greeting, from the first byte to the last.
const GREETING: Duration = Duration::from_secs(5);
/// From one word to the next of who has been greeted: an agent of NIXL's is made between two.
const AGREEING: Duration = Duration::from_secs(20);
/// What a peer's host does not take for so long never comes: the link is over.
const UNHEARD: Duration = Duration::from_secs(15);
/// Connections that are being greeted.
const GREETINGS_MOST: usize = 64;
/// Peers it is linked with.
const LINKS_MOST: usize = 256;
/// Bytes of messages that wait for [`Node::next`]; a peer with more to say waits.
const MESSAGE_BYTES_MOST: usize = 16 << 20;
/// Hosts and reasons that were told.
const TURNED_AWAY_MOST: usize = 256;

/// How a node begins.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it listens; at port 0 at one that is free.
    pub listen: SocketAddr,
    /// Where peers reach it, where that is somewhere else: it listens at every address of the host, say.
    pub reached_at: Option<SocketAddr>,
    /// What its peers know too.
    pub token: Token,
    /// Which process of its address it is: another number than those before it.
    pub incarnation: u64,
    /// The ways it offers, the best first.
    pub ways: Vec<Way>,
}

/// One process's side. Dropped, all its links are over.
pub struct Node {
    shared: Arc<Shared>,
    listener: TcpListener,
    accepting: Option<JoinHandle<()>>,
}

pub(super) struct Shared {
    pub(super) memory: Arc<Region>,
    me: Who,
    token: Token,
    pub(super) ways: Vec<Way>,
    not_offered: Mutex<BTreeSet<String>>,
    links: Mutex<BTreeMap<u64, Arc<Link>>>,
    links_begun: AtomicU64,
    windows: RwLock<HashMap<u64, Vec<(u64, u64)>>>,
    told: Mutex<Told>,
    /// Something was told, or taken.
    changed: Condvar,
    /// One connection of a pair, whose other one is to come.
    halves: Mutex<HashMap<u64, Half>>,
    greetings: AtomicUsize,
    turned_away: Mutex<BTreeSet<(IpAddr, String)>>,
    down: AtomicBool,
}

#[derive(Default)]
struct Told {
    events: VecDeque<Event>,
    message_bytes: usize,
}

struct Half {
    stream: TcpStream,
    who: Who,
    purpose: Purpose,
    until: Instant,
}

/// What both sides of a link say first.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Offer {
    /// The best first.
    pub(super) ways: Vec<Way>,
    pub(super) place: Place,
    /// With [`Way::Nixl`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) agents: Option<Agents>,
}

impl Node {
    /// Listens, and joins who comes.
    ///
    /// # Errors
    ///
    /// The system's: the address is taken, or is none of this host.
    pub fn start(options: Options, memory: Arc<Region>) -> io::Result<Self> {
        let Options { listen, reached_at, token, incarnation, mut ways } = options;
        // The first agent of a process takes half a second, and says whether there can be others.
        let missing = ways.contains(&Way::Nixl).then(|| Agent::new(&memory, false)).and_then(Result::err);
        ways.retain(|way| *way != Way::Nixl || missing.is_none());
        let listener = TcpListener::bind(listen)?;
        let me = Who { listens: reached_at.map_or_else(|| listener.local_addr(), Ok)?, incarnation };
        let shared = Arc::new(Shared {
            memory,
            me,
            token,
            ways,
            not_offered: Mutex::default(),
            links: Mutex::default(),
            links_begun: AtomicU64::new(0),
            windows: RwLock::default(),
            told: Mutex::default(),
            changed: Condvar::new(),
            halves: Mutex::default(),
            greetings: AtomicUsize::new(0),
            turned_away: Mutex::default(),
            down: AtomicBool::new(false),
        });
        if let Some(why) = missing {
            shared.not_offered(Way::Nixl, why);
        }
        let (waiting, here) = (listener.try_clone()?, Arc::clone(&shared));
        let accepting = thread::Builder::new().name("kv-accept".into()).spawn(move || accept_all(&here, &waiting))?;
        Ok(Self { shared, listener, accepting: Some(accepting) })
    }

    /// Where peers reach it.
    pub fn address(&self) -> SocketAddr {
        self.shared.me.listens
    }

    /// The memory its peers read and write.
    pub fn memory(&self) -> &Arc<Region> {
        &self.shared.memory
    }

    /// Begins to join a peer. Tells [`Event::Linked`] or [`Event::NotLinked`].
    pub fn dial(&self, peer: SocketAddr) {
        let shared = Arc::clone(&self.shared);
        let dialled = thread::Builder::new().name("kv-dial".into()).spawn(move || {
            if let Err(error) = dial(&shared, peer) {
                shared.tell(Event::NotLinked { peer, why: reason(&error) });
            }
        });
        if let Err(error) = dialled {
            self.shared.tell(Event::NotLinked { peer, why: reason(&error) });
        }
    }

    /// Sends a message, of at most 1 MiB. To a link that is over it goes nowhere.
    ///
    /// # Panics
    ///
    /// When the message is longer.
    pub fn send(&self, link: LinkId, message: Vec<u8>) {
        assert!(message.len() <= wire::MESSAGE_BYTES_MOST, "a message is short");
        if let Some(link) = self.shared.link(link) {
            link.say(message);
        }
    }

    /// Reads bytes of a peer's memory to their places here. Ends with [`Event::Ended`].
    pub fn read(&self, link: LinkId, post: PostId, pieces: Vec<Piece>) {
        self.post(link, post, None, pieces);
    }

    /// Writes bytes from their places here to a peer's memory, within a window it has open. Ends with
    /// [`Event::Ended`].
    pub fn write(&self, link: LinkId, post: PostId, window: WindowId, pieces: Vec<Piece>) {
        self.post(link, post, Some(window), pieces);
    }

    fn post(&self, link: LinkId, post: PostId, window: Option<WindowId>, pieces: Vec<Piece>) {
        let posted = self.shared.link(link).is_some_and(|link| link.post(post, window, pieces));
        if !posted {
            self.shared.tell(Event::Ended { post, landed: false });
        }
    }

    /// Lets peers write to these ranges of (place, bytes), until it is closed.
    pub fn open_window(&self, window: WindowId, ranges: Vec<(u64, u64)>) {
        self.shared.windows.write().unwrap_or_else(PoisonError::into_inner).insert(window.0, ranges);
    }

    /// Nothing is written to a window any more, from when this returns.
    pub fn close_window(&self, window: WindowId) {
        self.shared.windows.write().unwrap_or_else(PoisonError::into_inner).remove(&window.0);
    }

    /// Ends a link. When this returns nothing of it changes this process's memory any more.
    pub fn cut(&self, link: LinkId) {
        if let Some(link) = self.shared.link(link) {
            link.end(&self.shared, "this side cut it");
        }
    }

    /// Has [`Node::next`] tell [`Event::Woken`], for whoever waits there.
    pub fn wake(&self) {
        self.shared.tell(Event::Woken);
    }

    /// The next event, if there is one by then.
    pub fn next(&self, by: Instant) -> Option<Event> {
        let mut told = lock(&self.shared.told);
        loop {
            if let Some(event) = told.events.pop_front() {
                if let Event::Message { bytes, .. } = &event {
                    told.message_bytes -= bytes.len();
                    self.shared.changed.notify_all();
                }
                return Some(event);
            }
            let left = by.checked_duration_since(Instant::now())?;
            told = self.shared.changed.wait_timeout(told, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shared.down.store(true, Ordering::SeqCst);
        // It wakes who accepts.
        let _ = SockRef::from(&self.listener).shutdown(std::net::Shutdown::Both);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        let links: Vec<Arc<Link>> = lock(&self.shared.links).values().cloned().collect();
        links.iter().for_each(|link| link.end(&self.shared, "this side went down"));
    }
}

impl Shared {
    fn link(&self, id: LinkId) -> Option<Arc<Link>> {
        lock(&self.links).get(&id.0).cloned()
    }

    pub(super) fn forget(&self, id: LinkId) {
        lock(&self.links).remove(&id.0);
    }

    pub(super) fn tell(&self, event: Event) {
        lock(&self.told).events.push_back(event);
        self.changed.notify_all();
    }

    /// The same for a message, which waits while too much does and its link stands.
    pub(super) fn tell_message(&self, link: LinkId, bytes: Vec<u8>, stands: impl Fn() -> bool) {
        let mut told = lock(&self.told);
        while told.message_bytes >= MESSAGE_BYTES_MOST && stands() {
            let wait = Duration::from_millis(100);
            told = self.changed.wait_timeout(told, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
        told.message_bytes += bytes.len();
        told.events.push_back(Event::Message { link, bytes });
        self.changed.notify_all();
    }

    /// Does it if these bytes are within a window that is open, and stays so meanwhile.
    pub(super) fn in_window(&self, window: WindowId, to: u64, bytes: u64, land: impl FnOnce() -> bool) -> bool {
        let windows = self.windows.read().unwrap_or_else(PoisonError::into_inner);
        windows.get(&window.0).is_some_and(|ranges| lie_in(ranges, to, bytes)) && land()
    }

    /// A way that is no way for a link, or for any.
    pub(super) fn not_offered(&self, way: Way, why: String) {
        let mut told = lock(&self.not_offered);
        if told.len() < TURNED_AWAY_MOST && told.insert(why.clone()) {
            drop(told);
            self.tell(Event::NotOffered { way, why });
        }
    }

    fn turn_away(&self, from: SocketAddr, error: &io::Error) {
        let why = reason(error);
        let mut told = lock(&self.turned_away);
        if told.len() < TURNED_AWAY_MOST && told.insert((from.ip(), why.clone())) {
            drop(told);
            self.tell(Event::TurnedAway { from, why });
        }
    }
}

fn accept_all(shared: &Arc<Shared>, listener: &TcpListener) {
    loop {
        let accepted = listener.accept();
        if shared.down.load(Ordering::SeqCst) {
            return;
        }
        let Ok((stream, from)) = accepted else {
            // Too many files are open, say. It may pass.
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        if shared.greetings.fetch_add(1, Ordering::SeqCst) >= GREETINGS_MOST {
            shared.greetings.fetch_sub(1, Ordering::SeqCst);
            shared.turn_away(from, &io::Error::other("too many others are being greeted"));
            continue;
        }
        let here = Arc::clone(shared);
        let greeted = thread::Builder::new().name("kv-greet".into()).spawn(move || {
            let deadline = Instant::now() + GREETING;
            let joined = greeting::accept(&stream, &here.token, here.me, deadline)
                .and_then(|greeted| pair(&here, stream, greeted, deadline));
            if let Err(error) = joined {
                here.turn_away(from, &error);
            }
            here.greetings.fetch_sub(1, Ordering::SeqCst);
        });
        if greeted.is_err() {
            shared.greetings.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// A connection that is greeted waits for its other one; whoever comes second joins the two.
fn pair(shared: &Arc<Shared>, stream: TcpStream, greeted: Greeted, deadline: Instant) -> io::Result<()> {
    let Greeted { who, purpose, pair } = greeted;
    let other = {
        let mut halves = lock(&shared.halves);
        halves.retain(|_, half| half.until > Instant::now());
        match halves.remove(&pair) {
            Some(other) => other,
            None => {
                if halves.len() >= GREETINGS_MOST {
                    return Err(io::Error::other("too many others are being greeted"));
                }
                halves.insert(pair, Half { stream, who, purpose, until: deadline });
                return Ok(());
            }
        }
    };
    if other.who != who || other.purpose == purpose {
        return Err(wire::broken("its two connections do not belong together"));
    }
    let (messages, bytes) = match purpose {
        Purpose::Messages => (stream, other.stream),
        Purpose::Bytes => (other.stream, stream),
    };
    // The dialler says what it offers, this side what of that is a way for both, and the dialler which it is.
    let mut timed = Timed::new(&messages)?;
    let theirs: Offer = said(&timed.hear()?)?;
    let mut side = Side::new(shared, theirs.ways.iter().filter(|way| shared.ways.contains(way)).copied());
    let mut reaches = side.reaches(shared, &theirs);
    side.ways = reaches.iter().map(Reach::way).collect();
    let mine = side.offer(shared);
    timed.say(&mine)?;
    if let (Some(_), Some(theirs)) = (&mine.agents, &theirs.agents) {
        side.read_each_other(shared, theirs, &mut reaches, false, &mut timed)?;
    }
    let agreed: Way = said(&timed.hear()?)?;
    let reach = reaches.into_iter().find(|reach| reach.way() == agreed).unwrap_or(Reach::Sent);
    link(shared, who, reach, messages, bytes)
}

fn dial(shared: &Arc<Shared>, peer: SocketAddr) -> io::Result<()> {
    let deadline = Instant::now() + GREETING;
    let mut pair = [0; 8];
    getrandom::fill(&mut pair).map_err(io::Error::other)?;
    let pair = u64::from_le_bytes(pair);
    let greet = |purpose| {
        let stream = TcpStream::connect_timeout(&peer, GREETING)?;
        if stream.local_addr()? == stream.peer_addr()? {
            // A port that is free may be drawn for the dialler's own end.
            return Err(io::Error::other("nobody listens there"));
        }
        let who = greeting::dial(&stream, &shared.token, shared.me, purpose, pair, deadline)?;
        Ok::<_, io::Error>((stream, who))
    };
    let (messages, who) = greet(Purpose::Messages)?;
    if who.listens != peer {
        return Err(wire::broken(&format!("it says that it is reached at {}", who.listens)));
    }
    let (bytes, other) = greet(Purpose::Bytes)?;
    if other != who {
        return Err(wire::broken("another process is there now"));
    }
    let mut timed = Timed::new(&messages)?;
    let mut side = Side::new(shared, shared.ways.iter().copied());
    let mine = side.offer(shared);
    timed.say(&mine)?;
    let theirs: Offer = said(&timed.hear()?)?;
    let mut reaches = side.reaches(shared, &theirs);
    if let (Some(_), Some(theirs)) = (&mine.agents, &theirs.agents) {
        side.read_each_other(shared, theirs, &mut reaches, true, &mut timed)?;
    }
    let reach = reaches.into_iter().next().unwrap_or(Reach::Sent);
    timed.say(&reach.way())?;
    link(shared, who, reach, messages, bytes)
}

fn link(shared: &Arc<Shared>, who: Who, reach: Reach, messages: TcpStream, bytes: TcpStream) -> io::Result<()> {
    for stream in [&messages, &bytes] {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(None)?;
        // A host that is gone is noticed on a link that is silent, too.
        let alive = TcpKeepalive::new().with_time(Duration::from_secs(15)).with_interval(Duration::from_secs(5));
        SockRef::from(stream).set_tcp_keepalive(&alive)?;
        SockRef::from(stream).set_tcp_user_timeout(Some(UNHEARD))?;
    }
    let id = LinkId(shared.links_begun.fetch_add(1, Ordering::SeqCst));
    let way = reach.way();
    let mut links = lock(&shared.links);
    if links.len() >= LINKS_MOST || shared.down.load(Ordering::SeqCst) {
        return Err(io::Error::other("it has as many links as it may"));
    }
    // Told before anything the link tells.
    shared.tell(Event::Linked { link: id, peer: who.listens, incarnation: who.incarnation, way });
    match Link::start(shared, id, reach, messages, bytes) {
        Ok(link) => {
            links.insert(id.0, link);
            Ok(())
        }
        Err(error) => {
            shared.tell(Event::Lost { link: id, why: reason(&error) });
            Err(error)
        }
    }
}

/// What is said before a link begins.
pub(super) struct Timed<'s> {
    stream: &'s TcpStream,
}

impl<'s> Timed<'s> {
    fn new(stream: &'s TcpStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(AGREEING))?;
        stream.set_write_timeout(Some(AGREEING))?;
        Ok(Self { stream })
    }

    pub(super) fn say(&mut self, what: &impl Serialize) -> io::Result<()> {
        wire::write_message(&mut self.stream, &serde_json::to_vec(what)?)
    }

    pub(super) fn hear(&mut self) -> io::Result<Vec<u8>> {
        wire::read_message(&mut self.stream)
    }

    /// Does something again and again until the next word comes.
    pub(super) fn hear_while(&mut self, mut meanwhile: impl FnMut()) -> io::Result<Vec<u8>> {
        let until = Instant::now() + AGREEING;
        self.stream.set_read_timeout(Some(Duration::from_millis(1)))?;
        let waits = |error: &io::Error| matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
        while Instant::now() < until && self.stream.peek(&mut [0]).as_ref().is_err_and(waits) {
            meanwhile();
        }
        self.stream.set_read_timeout(Some(AGREEING))?;
        self.hear()
    }
}

pub(super) fn said<'b, T: Deserialize<'b>>(bytes: &'b [u8]) -> io::Result<T> {
    serde_json::from_slice(bytes).map_err(|_| wire::broken("it says what this version does not know"))
}
