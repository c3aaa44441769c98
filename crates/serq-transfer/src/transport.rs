//! How bytes get from the memory of one process to that of another.
//!
//! A [`Node`] is one process's side: it listens, dials peers, and has one [`Region`] that peers read and write. Two
//! nodes are joined by a *link*: two connections, one for the protocol's messages and one for bytes, so that a
//! heartbeat does not wait behind a prompt's KV. Both nodes may read and write over a link, whoever dialled it.
//!
//! ```text
//!   a node                                                  another
//!   ──────                                                  ───────
//!   dial ──────────── prove to know the token ────────────▶ accept
//!        ◀─────────── so does the other ──────────────────
//!   send ──────────── message ────────────────────────────▶ Event::Message
//!   read ──────────── which bytes? ───────────────────────▶ sends them, if there are such
//!        ◀─────────── bytes, straight to their place ──────  or says that there are none
//!   write ─────────── bytes, for an open window ──────────▶ to their place, if the window is open
//!        ◀─────────── landed, or not ─────────────────────
//! ```
//!
//! There are three ways for bytes. [`Way::Tcp`] sends them. [`Way::Shm`], on one host, maps the other's memory, and
//! [`Way::Nixl`] reads it: who owns the memory they go to copies them, so a write is a request to fetch.
//!
//! # What it promises
//!
//! - Every [`Node::read`] and [`Node::write`] ends with one [`Event::Ended`], or never, if the peer is stuck: then
//!   [`Node::cut`] ends it. `landed` means: all bytes are in the memory they go to.
//! - After [`Node::cut`] nothing of that link changes this process's memory. That needs no answer of the peer.
//! - Nobody else writes to this process's memory. After [`Node::close_window`] nothing of that window does. NIXL does not
//!   keep a peer from it that breaks the rules: it is for networks where all are trusted.
//! - Messages of a link come in the order they were sent, once, or the link is lost.
//! - Who does not know the token gets to say nothing. What a peer asks is checked against this side's memory, windows
//!   and limits; a peer that breaks the rules loses its link.

mod greeting;
mod link;
mod node;
mod reach;
mod side;
mod wire;

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

pub use greeting::Token;
pub(crate) use link::lock;
pub use node::{Node, Options};

/// Whether bytes from a place on are within one of a window's ranges of (place, bytes).
pub(crate) fn lie_in(ranges: &[(u64, u64)], place: u64, bytes: u64) -> bool {
    ranges.iter().any(|&(first, count)| {
        place >= first && place.checked_add(bytes).is_some_and(|end| end <= first.saturating_add(count))
    })
}

/// One link of a node, never used again for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// A read or a write, numbered by who posts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PostId(pub u64);

/// Blocks that a peer may write to, numbered by who opens them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WindowId(pub u64);

/// Bytes that go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Their place in this process's memory.
    pub here: u64,
    /// Their place in the peer's.
    pub there: u64,
    /// How many.
    pub bytes: u64,
}

/// How bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Through a connection.
    Tcp,
    /// By mapping the other process's memory.
    Shm,
    /// By NIXL, which reads the other process's memory ([`crate::nixl`]).
    Nixl,
    /// Within one process ([`crate::connector::local`]). No node offers it.
    Local,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Tcp => "tcp",
            Way::Shm => "shm",
            Way::Nixl => "nixl",
            Way::Local => "local",
        })
    }
}

/// What a node tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer is joined, dialled by either side.
    Linked {
        /// From now on.
        link: LinkId,
        /// Where the peer listens.
        peer: SocketAddr,
        /// Which process at that address it is.
        incarnation: u64,
        /// How its bytes go.
        way: Way,
    },
    /// A peer that was dialled is not joined.
    NotLinked {
        /// As it was dialled.
        peer: SocketAddr,
        /// In a sentence.
        why: String,
    },
    /// A way that this node was to offer, and cannot. Told once for each reason; links go by the next way.
    NotOffered {
        /// Which.
        way: Way,
        /// In a sentence.
        why: String,
    },
    /// Somebody was turned away before they could say anything. Told once for each host and reason.
    TurnedAway {
        /// From where.
        from: SocketAddr,
        /// In a sentence.
        why: String,
    },
    /// A peer's message.
    Message {
        /// Whose.
        link: LinkId,
        /// As it was sent.
        bytes: Vec<u8>,
    },
    /// A read or a write is over.
    Ended {
        /// Which.
        post: PostId,
        /// Every byte is where it goes; if not, some may be.
        landed: bool,
    },
    /// [`Node::wake`] was called.
    Woken,
    /// A link is over. All its posts have ended.
    Lost {
        /// Which.
        link: LinkId,
        /// In a sentence.
        why: String,
    },
}
