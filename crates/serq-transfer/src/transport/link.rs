//! One link: four threads, the posts under way, and the one place where bytes land.
//!
//! ```text
//!   send ─▶ queue ─▶ thread ─▶ messages ─▶ peer        peer ─▶ messages ─▶ thread ─▶ events
//!   post ─▶ queue ─▶ thread ─▶ bytes ────▶ peer        peer ─▶ bytes ────▶ thread ─▶ memory, events
//! ```
//!
//! # Invariants
//!
//! - Bytes land while the link's lock is held, and not once it is over. To end a link is to say that it is, to shut
//!   its connections, so that nobody waits for bytes with the lock, and then to take the lock.
//! - What is read straight to its place lands without that lock, as NIXL carries it out: it ends with the link's agent,
//!   which the end of the link takes away.
//! - What a peer asks for waits in a queue of bounded size. What this side posts is bounded by the same rule, so an
//!   honest peer never asks for more.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::node::Shared;
use super::reach::{Reach, Reading};
use super::wire::{self, Header, Kind};
use super::{Event, LinkId, Piece, PostId, WindowId};
use crate::memory::Mapping;
use crate::nixl::Broken;

/// Reads and writes of one side that are under way, and their pieces.
const POSTS_MOST: usize = 1024;
const PIECES_MOST: usize = 1 << 18;
/// What is copied at once: a window can be closed between two.
const CHUNK: usize = 256 << 10;

pub(super) struct Link {
    pub(super) id: LinkId,
    messages: TcpStream,
    bytes: TcpStream,
    reach: Reach,
    said: Sender<Said>,
    asked: Sender<Asked>,
    /// This side's, that are not over.
    posts: Mutex<HashMap<u64, Posted>>,
    pieces: AtomicUsize,
    /// The peer's, that are not answered: their number and their pieces.
    served: AtomicU64,
    over: AtomicBool,
    /// Held while bytes land.
    landing: Mutex<()>,
}

/// A read or a write of this side.
struct Posted {
    reads: bool,
    pieces: Vec<Piece>,
}

/// What the thread that sends messages is to do.
enum Said {
    Message(Vec<u8>),
    Stop,
}

/// What the thread that sends bytes is to do.
enum Asked {
    Read(PostId),
    Write(PostId, WindowId),
    Serve { post: u64, pieces: Vec<Piece> },
    Answer { post: u64, landed: bool },
    Stop,
}

impl Link {
    /// Begins with connections that are greeted.
    pub(super) fn start(
        shared: &Arc<Shared>,
        id: LinkId,
        reach: Reach,
        messages: TcpStream,
        bytes: TcpStream,
    ) -> io::Result<Arc<Self>> {
        let ends = [messages.try_clone()?, messages.try_clone()?, bytes.try_clone()?, bytes.try_clone()?];
        let ((said, to_say), (asked, to_do)) = (mpsc::channel(), mpsc::channel());
        let link = Arc::new(Self {
            id,
            messages,
            bytes,
            reach,
            said,
            asked,
            posts: Mutex::default(),
            pieces: AtomicUsize::new(0),
            served: AtomicU64::new(0),
            over: AtomicBool::new(false),
            landing: Mutex::new(()),
        });
        let [say, listen, send, receive] = ends;
        link.spawn(shared, "say", move |_, _| send_messages(&to_say, say))?;
        link.spawn(shared, "listen", move |link, shared| link.receive_messages(shared, listen))?;
        link.spawn(shared, "send", move |link, shared| link.send_bytes(shared, &to_do, send))?;
        link.spawn(shared, "receive", move |link, shared| link.receive_bytes(shared, receive))?;
        Ok(link)
    }

    /// A thread of the link; its end is the link's.
    fn spawn(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        name: &str,
        run: impl FnOnce(&Self, &Shared) -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let (link, shared) = (Arc::clone(self), Arc::clone(shared));
        thread::Builder::new().name(format!("kv-{name}-{}", self.id.0)).spawn(move || {
            let why = match run(&link, &shared) {
                Ok(()) => "this side went down".to_owned(),
                Err(error) => reason(&error),
            };
            link.end(&shared, &why);
        })?;
        Ok(())
    }

    /// Ends it. When this returns nothing of it changes this process's memory any more.
    pub(super) fn end(&self, shared: &Shared, why: &str) {
        let was_over = self.over.swap(true, Ordering::SeqCst);
        let _ = self.messages.shutdown(Shutdown::Both);
        let _ = self.bytes.shutdown(Shutdown::Both);
        // Whoever lands bytes right now copies a chunk, or is told that no more will come.
        drop(lock(&self.landing));
        self.reach.end();
        if was_over {
            return;
        }
        shared.forget(self.id);
        let _ = self.said.send(Said::Stop);
        let _ = self.asked.send(Asked::Stop);
        let mut posts: Vec<u64> = lock(&self.posts).drain().map(|(post, _)| post).collect();
        posts.sort_unstable();
        posts.into_iter().for_each(|post| shared.tell(Event::Ended { post: PostId(post), landed: false }));
        shared.tell(Event::Lost { link: self.id, why: why.to_owned() });
    }

    pub(super) fn say(&self, message: Vec<u8>) {
        // To a link that is over, nothing can be said.
        let _ = self.said.send(Said::Message(message));
    }

    /// Begins a read, or a write to a window. Answers whether it is under way; if not, it was too much.
    pub(super) fn post(&self, post: PostId, window: Option<WindowId>, pieces: Vec<Piece>) -> bool {
        let count = pieces.len();
        {
            let mut posts = lock(&self.posts);
            let all = self.pieces.load(Ordering::Relaxed) + count;
            if posts.len() >= POSTS_MOST
                || count > wire::PIECES_MOST
                || all > PIECES_MOST
                || posts.contains_key(&post.0)
            {
                return false;
            }
            self.pieces.store(all, Ordering::Relaxed);
            posts.insert(post.0, Posted { reads: window.is_none(), pieces });
        }
        // Who ends the link meanwhile ends the post, or it is taken back here.
        if self.over.load(Ordering::SeqCst) && lock(&self.posts).remove(&post.0).is_some() {
            return false;
        }
        let asked = window.map_or(Asked::Read(post), |window| Asked::Write(post, window));
        let _ = self.asked.send(asked);
        true
    }

    /// A post is over; whether it was under way.
    fn end_post(&self, shared: &Shared, post: u64, landed: bool) -> bool {
        let Some(posted) = lock(&self.posts).remove(&post) else { return false };
        self.pieces.fetch_sub(posted.pieces.len(), Ordering::Relaxed);
        shared.tell(Event::Ended { post: PostId(post), landed });
        true
    }

    /// The pieces of a read, or of a write, that is under way.
    fn pieces_of(&self, post: u64, reads: bool) -> Option<Vec<Piece>> {
        lock(&self.posts).get(&post).filter(|posted| posted.reads == reads).map(|posted| posted.pieces.clone())
    }

    fn is_under_way(&self, post: u64, reads: bool) -> bool {
        lock(&self.posts).get(&post).is_some_and(|posted| posted.reads == reads)
    }

    /// A peer's request waits to be answered.
    fn wants(&self, pieces: usize) -> io::Result<()> {
        let one = SERVED_ONE + pieces as u64;
        let all = self.served.fetch_add(one, Ordering::Relaxed) + one;
        match all / SERVED_ONE > POSTS_MOST as u64 || all % SERVED_ONE > PIECES_MOST as u64 {
            true => Err(wire::broken("it asked for more at once than it may")),
            false => Ok(()),
        }
    }

    fn receive_messages(&self, shared: &Shared, stream: TcpStream) -> io::Result<()> {
        let mut stream = io::BufReader::new(stream);
        loop {
            let bytes = wire::read_message(&mut stream)?;
            shared.tell_message(self.id, bytes, || !self.over.load(Ordering::SeqCst));
        }
    }

    fn send_bytes(&self, shared: &Shared, asked: &Receiver<Asked>, mut stream: TcpStream) -> io::Result<()> {
        let mut head = Vec::new();
        loop {
            let Ok(asked) = asked.recv() else { return Ok(()) };
            head.clear();
            let mut begin = |kind, post, window, pieces| Header { kind, post, window, pieces }.write(&mut head);
            match asked {
                Asked::Read(post) => {
                    // A post that is not there any more ended with the link.
                    let Some(pieces) = self.pieces_of(post.0, true) else { continue };
                    if self.reach.is_there() {
                        let landed = self.fetch(shared, None, &pieces)?;
                        self.end_post(shared, post.0, landed);
                        continue;
                    }
                    begin(Kind::Read, post.0, 0, pieces.len());
                    wire::write_pieces(&pieces, false, &mut head);
                    stream.write_all(&head)?;
                }
                Asked::Write(post, window) => {
                    let Some(pieces) = self.pieces_of(post.0, false) else { continue };
                    let fetched = self.reach.is_there();
                    if !has(shared, &pieces) {
                        self.end_post(shared, post.0, false);
                        continue;
                    }
                    begin(if fetched { Kind::Fetch } else { Kind::Write }, post.0, window.0, pieces.len());
                    wire::write_pieces(&pieces, fetched, &mut head);
                    stream.write_all(&head)?;
                    if !fetched {
                        send_pieces(shared, &pieces, &mut stream)?;
                    }
                }
                Asked::Serve { post, pieces } => {
                    let there = has(shared, &pieces);
                    begin(if there { Kind::Data } else { Kind::None }, post, 0, 0);
                    stream.write_all(&head)?;
                    if there {
                        send_pieces(shared, &pieces, &mut stream)?;
                    }
                    self.served.fetch_sub(SERVED_ONE + pieces.len() as u64, Ordering::Relaxed);
                }
                Asked::Stop => return Ok(()),
                Asked::Answer { post, landed } => {
                    begin(Kind::Wrote, post, landed.into(), 0);
                    stream.write_all(&head)?;
                    self.served.fetch_sub(SERVED_ONE, Ordering::Relaxed);
                }
            }
        }
    }

    fn receive_bytes(&self, shared: &Shared, stream: TcpStream) -> io::Result<()> {
        let mut stream = io::BufReader::with_capacity(16 << 10, stream);
        let mut chunk = vec![0; CHUNK];
        loop {
            let Header { kind, post, window, pieces } = Header::read(&mut stream)?;
            match kind {
                Kind::Read => {
                    let pieces = wire::read_pieces(&mut stream, pieces, false)?;
                    self.wants(pieces.len())?;
                    let _ = self.asked.send(Asked::Serve { post, pieces });
                }
                Kind::Data => {
                    let asked = self.pieces_of(post, true);
                    let pieces = asked.ok_or_else(|| wire::broken("it sent bytes nobody asked for"))?;
                    let mut landed = true;
                    for piece in pieces {
                        landed &= self.land(shared, &mut stream, piece, &mut chunk)?;
                    }
                    self.end_post(shared, post, landed);
                }
                Kind::None => {
                    if !(self.is_under_way(post, true) && self.end_post(shared, post, false)) {
                        return Err(wire::broken("it answered a read nobody asked for"));
                    }
                }
                Kind::Write => {
                    self.wants(0)?;
                    let pieces = wire::read_pieces(&mut stream, pieces, false)?;
                    let mut landed = true;
                    for piece in pieces {
                        landed &= self.land_in(shared, &mut stream, window, piece, &mut chunk)?;
                    }
                    let _ = self.asked.send(Asked::Answer { post, landed });
                }
                Kind::Fetch => {
                    self.wants(0)?;
                    let pieces = wire::read_pieces(&mut stream, pieces, true)?;
                    let landed = self.fetch(shared, Some(window), &pieces)?;
                    let _ = self.asked.send(Asked::Answer { post, landed });
                }
                Kind::Wrote => {
                    if !(self.is_under_way(post, false) && self.end_post(shared, post, window == 1)) {
                        return Err(wire::broken("it answered a write nobody asked for"));
                    }
                }
            }
        }
    }

    /// Bytes of a read come: straight to their place, if there is such a place.
    fn land(&self, shared: &Shared, stream: &mut impl Read, piece: Piece, chunk: &mut [u8]) -> io::Result<bool> {
        let mut at = 0;
        let mut landed = true;
        while at < piece.bytes {
            let count = (piece.bytes - at).min(chunk.len() as u64);
            let _landing = lock(&self.landing);
            if self.over.load(Ordering::SeqCst) {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            match shared.memory.fill(piece.here.saturating_add(at), count, stream) {
                Some(filled) => filled?,
                None => {
                    stream.read_exact(&mut chunk[..count as usize])?;
                    landed = false;
                }
            }
            at += count;
        }
        Ok(landed)
    }

    /// Bytes of a write come: they wait until they are there, and land if the window is still open.
    fn land_in(
        &self,
        shared: &Shared,
        stream: &mut impl Read,
        window: u64,
        piece: Piece,
        chunk: &mut [u8],
    ) -> io::Result<bool> {
        let mut at = 0;
        let mut landed = true;
        while at < piece.bytes {
            let count = (piece.bytes - at).min(chunk.len() as u64) as usize;
            stream.read_exact(&mut chunk[..count])?;
            let to = piece.here.saturating_add(at);
            landed = landed
                && self.lands(shared, Some(window), to, count as u64, || shared.memory.write(to, &chunk[..count]));
            at += count as u64;
        }
        Ok(landed)
    }

    /// Gets pieces out of the peer's memory: whether all of them are here.
    fn fetch(&self, shared: &Shared, window: Option<u64>, pieces: &[Piece]) -> io::Result<bool> {
        let got = match (&self.reach, window) {
            (Reach::Sent, _) => return Err(wire::broken("it wants bytes fetched that are not mapped")),
            (Reach::Mapped(mapping), _) => Ok(self.copy(shared, mapping, window, pieces)),
            (Reach::Read(reading), None) => reading.read(&shared.memory, pieces),
            (Reach::Read(reading), Some(window)) => self.read_in(shared, reading, window, pieces),
        };
        got.map_err(|Broken| io::Error::other("its memory cannot be read any more"))
    }

    /// Reads pieces for a window: they wait until they are there, and land if it is still open.
    fn read_in(&self, shared: &Shared, reading: &Reading, window: u64, pieces: &[Piece]) -> Result<bool, Broken> {
        reading.stage(&shared.memory, pieces, CHUNK as u64, |staged| {
            let Piece { here, there, bytes } = staged;
            let staging = reading.staging();
            self.lands(shared, Some(window), here, bytes, || shared.memory.copy_from(here, staging, there, bytes))
        })
    }

    /// Copies pieces that the peer's memory has: whether all of them are here.
    fn copy(&self, shared: &Shared, mapping: &Mapping, window: Option<u64>, pieces: &[Piece]) -> bool {
        pieces.iter().all(|piece| {
            let mut at = 0;
            while at < piece.bytes {
                let count = (piece.bytes - at).min(CHUNK as u64);
                let (Some(to), Some(from)) = (piece.here.checked_add(at), piece.there.checked_add(at)) else {
                    return false;
                };
                if !self.lands(shared, window, to, count, || shared.memory.write_from(to, mapping, from, count)) {
                    return false;
                }
                at += count;
            }
            true
        })
    }

    /// Lands a chunk, if the link stands and its window, where there is one, is open.
    fn lands(
        &self,
        shared: &Shared,
        window: Option<u64>,
        to: u64,
        count: u64,
        land: impl FnOnce() -> Option<()>,
    ) -> bool {
        let _landing = lock(&self.landing);
        match window {
            _ if self.over.load(Ordering::SeqCst) => false,
            None => land().is_some(),
            Some(window) => shared.in_window(WindowId(window), to, count, || land().is_some()),
        }
    }
}

/// In a link's count of what it serves: one request. Below it are their pieces.
const SERVED_ONE: u64 = 1 << 32;

fn send_messages(said: &Receiver<Said>, mut stream: TcpStream) -> io::Result<()> {
    while let Ok(Said::Message(message)) = said.recv() {
        wire::write_message(&mut stream, &message)?;
    }
    Ok(())
}

fn has(shared: &Shared, pieces: &[Piece]) -> bool {
    pieces.iter().all(|piece| shared.memory.has(piece.here, piece.bytes))
}

/// The bytes of pieces that are there.
fn send_pieces(shared: &Shared, pieces: &[Piece], stream: &mut TcpStream) -> io::Result<()> {
    shared.memory.drain(pieces.iter().map(|piece| (piece.here, piece.bytes)), stream)
}

/// A connection's end as a person says it.
pub(super) fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            "it went away".into()
        }
        io::ErrorKind::ConnectionAborted => "it was cut".into(),
        _ => {
            let text = error.to_string();
            text.split(" (os error").next().unwrap_or(&text).to_lowercase()
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
