//! A connector within one process: instances that share it copy from memory to memory.
//!
//! ```text
//!            ┌───────── Hub: who is at which address ─────────┐
//!   Port ────┤                                                ├──── Port
//!    │ messages into the other's mailbox                      │
//!    │ read:  its memory ═══▶ mine, by my thread              │
//!    │ write: mine ═══▶ its, by my thread, if its window is open and it has not cut the link
//! ```
//!
//! # Invariants
//!
//! - A peer's bytes land under the lock that [`Links::cut`] and [`Links::close_window`] take: after these, none do.
//! - Only one port's lock is held at a time, after the hub's or without it.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

use super::Memory;
use super::exchange::{Connector, Links, Look};
use super::mailbox::Mailbox;
use crate::memory::Region;
use crate::protocol::Config;
use crate::transport::{Event, LinkId, Piece, PostId, Way, WindowId, lie_in, lock};

/// A connector within one process.
pub type Local = Connector<Port>;

/// Where connectors of one process find each other.
#[derive(Clone, Default)]
pub struct Hub(Arc<Mutex<BTreeMap<SocketAddr, Arc<End>>>>);

/// One connector's side of its links. Dropped, all of them are over.
pub struct Port {
    hub: Hub,
    end: Arc<End>,
}

struct End {
    address: SocketAddr,
    incarnation: u64,
    memory: Arc<Region>,
    events: Mailbox<Event>,
    links_begun: AtomicU64,
    open: RwLock<Open>,
}

/// What lets bytes of peers land.
#[derive(Default)]
struct Open {
    /// With whom, and what it calls the link.
    links: BTreeMap<LinkId, (Arc<End>, LinkId)>,
    windows: HashMap<WindowId, Vec<(u64, u64)>>,
}

impl Local {
    /// Starts it. The address is its name in the hub: one of IPv4, at which nothing listens. `incarnation` tells it
    /// from those that had the address before, and `look` is as in [`super::remote::Remote`].
    ///
    /// # Errors
    ///
    /// The address is taken or not one of IPv4, or the system has no thread.
    pub fn start(
        hub: &Hub,
        address: SocketAddr,
        incarnation: u64,
        config: Config,
        memory: Memory,
        look: Option<Look>,
    ) -> io::Result<Self> {
        let port = Port::new(hub, address, incarnation, Arc::clone(&memory.region))?;
        Self::over(port, (address, incarnation), config, memory, look)
    }
}

impl Port {
    fn new(hub: &Hub, address: SocketAddr, incarnation: u64, memory: Arc<Region>) -> io::Result<Self> {
        let end = End {
            address,
            incarnation,
            memory,
            events: Mailbox::default(),
            links_begun: AtomicU64::new(0),
            open: RwLock::default(),
        };
        let end = Arc::new(end);
        let mut ends = lock(&hub.0);
        if ends.contains_key(&address) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        ends.insert(address, Arc::clone(&end));
        Ok(Self { hub: hub.clone(), end })
    }

    fn peer(&self, link: LinkId) -> Option<(Arc<End>, LinkId)> {
        self.end.open().links.get(&link).cloned()
    }
}

impl End {
    fn open(&self) -> RwLockReadGuard<'_, Open> {
        self.open.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self) -> RwLockWriteGuard<'_, Open> {
        self.open.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn link(&self, id: LinkId, with: &Arc<End>, theirs: LinkId) {
        // Who hears of it may use it at once.
        self.change().links.insert(id, (Arc::clone(with), theirs));
        let (peer, incarnation) = (with.address, with.incarnation);
        self.events.put(Event::Linked { link: id, peer, incarnation, way: Way::Local });
    }

    fn next_link(&self) -> LinkId {
        LinkId(self.links_begun.fetch_add(1, Ordering::SeqCst))
    }

    fn lose(&self, link: LinkId, why: &str) {
        if self.change().links.remove(&link).is_some() {
            self.events.put(Event::Lost { link, why: why.into() });
        }
    }

    /// Bytes of a peer, for a window of this side's.
    fn land(&self, link: LinkId, window: WindowId, from: &Region, pieces: &[Piece]) -> bool {
        let open = self.open();
        let Some(ranges) = open.windows.get(&window).filter(|_| open.links.contains_key(&link)) else { return false };
        let copied = |piece: &Piece| self.memory.copy_from(piece.there, from, piece.here, piece.bytes).is_some();
        pieces.iter().all(|piece| lie_in(ranges, piece.there, piece.bytes) && copied(piece))
    }
}

impl Links for Port {
    fn dial(&self, peer: SocketAddr) {
        // The hub stays locked, so that who is there does not go meanwhile.
        let ends = lock(&self.hub.0);
        match ends.get(&peer) {
            Some(other) => {
                let (mine, theirs) = (self.end.next_link(), other.next_link());
                // This side first: it is busy here, and says nothing before the other has the link, too.
                self.end.link(mine, other, theirs);
                other.link(theirs, &self.end, mine);
            }
            None => self.end.events.put(Event::NotLinked { peer, why: "nobody is there".into() }),
        }
    }

    fn send(&self, link: LinkId, bytes: Vec<u8>) {
        if let Some((peer, theirs)) = self.peer(link) {
            peer.events.put(Event::Message { link: theirs, bytes });
        }
    }

    fn read(&self, link: LinkId, post: PostId, pieces: Vec<Piece>) {
        let landed = self.peer(link).is_some_and(|(peer, _)| {
            let copied = |piece: &Piece| self.end.memory.copy_from(piece.here, &peer.memory, piece.there, piece.bytes);
            pieces.iter().all(|piece| copied(piece).is_some())
        });
        self.end.events.put(Event::Ended { post, landed });
    }

    fn write(&self, link: LinkId, post: PostId, window: WindowId, pieces: Vec<Piece>) {
        let landed = self.peer(link).is_some_and(|(peer, theirs)| peer.land(theirs, window, &self.end.memory, &pieces));
        self.end.events.put(Event::Ended { post, landed });
    }

    fn open_window(&self, window: WindowId, ranges: Vec<(u64, u64)>) {
        self.end.change().windows.insert(window, ranges);
    }

    fn close_window(&self, window: WindowId) {
        self.end.change().windows.remove(&window);
    }

    fn cut(&self, link: LinkId) {
        let cut = self.end.change().links.remove(&link);
        if let Some((peer, theirs)) = cut {
            peer.lose(theirs, "the other side cut it");
        }
    }

    fn wake(&self) {
        self.end.events.put(Event::Woken);
    }

    fn next(&self, by: Instant) -> Option<Event> {
        self.end.events.next(by)
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        lock(&self.hub.0).remove(&self.end.address);
        let links = std::mem::take(&mut self.end.change().links);
        links.into_values().for_each(|(peer, theirs)| peer.lose(theirs, "the other side is gone"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(hub: &Hub, number: u16) -> Port {
        let region = Arc::new(Region::new(64).unwrap());
        region.write(0, &[number as u8; 64]).unwrap();
        Port::new(hub, SocketAddr::from(([127, 0, 0, 1], number)), u64::from(number), region).unwrap()
    }

    fn event(port: &Port) -> Event {
        port.next(Instant::now()).expect("it was told something")
    }

    fn linked(port: &Port) -> LinkId {
        match event(port) {
            Event::Linked { link, way: Way::Local, .. } => link,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_write_lands_in_an_open_window_of_a_link_that_stands_and_nowhere_else() {
        let hub = Hub::default();
        let (a, b) = (port(&hub, 1), port(&hub, 2));
        a.dial(b.end.address);
        let (to_b, to_a) = (linked(&a), linked(&b));
        let writes = |window, there, bytes| {
            a.write(to_b, PostId(1), WindowId(window), vec![Piece { here: 0, there, bytes }]);
            let landed = event(&a) == Event::Ended { post: PostId(1), landed: true };
            let mut now = [0; 64];
            b.end.memory.read(0, &mut now).unwrap();
            b.end.memory.write(0, &[2; 64]).unwrap();
            assert_eq!(landed, now != [2; 64], "what is said of a write is so");
            landed
        };
        assert!(!writes(7, 8, 8));
        b.open_window(WindowId(7), vec![(8, 8), (32, 16)]);
        assert!(writes(7, 8, 8) && writes(7, 40, 8));
        assert!(!writes(7, 7, 2) && !writes(7, 8, 9) && !writes(7, u64::MAX, 2) && !writes(8, 8, 8));
        b.close_window(WindowId(7));
        assert!(!writes(7, 8, 8));
        b.open_window(WindowId(9), vec![(0, 64)]);
        assert!(writes(9, 0, 64));
        b.cut(to_a);
        assert!(matches!(event(&a), Event::Lost { link, .. } if link == to_b));
        assert!(!writes(9, 0, 64));
        a.read(to_b, PostId(2), vec![Piece { here: 0, there: 0, bytes: 1 }]);
        assert_eq!(event(&a), Event::Ended { post: PostId(2), landed: false });
    }

    #[test]
    fn who_is_gone_is_lost_and_its_address_is_free() {
        let hub = Hub::default();
        let (a, b) = (port(&hub, 1), port(&hub, 2));
        a.dial(b.end.address);
        let link = linked(&a);
        assert!(Port::new(&hub, b.end.address, 3, Arc::clone(&a.end.memory)).is_err());
        let address = b.end.address;
        drop(b);
        assert!(matches!(event(&a), Event::Lost { link: of, .. } if of == link));
        a.dial(address);
        assert!(matches!(event(&a), Event::NotLinked { .. }));
        port(&hub, 2);
    }
}
