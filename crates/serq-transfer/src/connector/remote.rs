//! A connector between processes, over [`crate::transport`].

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use super::Memory;
use super::exchange::{Connector, Links, Look};
use crate::protocol::Config;
use crate::transport::{Event, LinkId, Node, Options, Piece, PostId, WindowId};

/// A connector between processes.
pub type Remote = Connector<Node>;

impl Remote {
    /// Starts it: `options` are the node's. A reader looks at canaries with `look`, or number by number, as its
    /// descriptor says, where there is none.
    ///
    /// # Errors
    ///
    /// The system's: the address is taken, or is not one of IPv4.
    pub fn start(options: Options, config: Config, memory: Memory, look: Option<Look>) -> io::Result<Self> {
        let incarnation = options.incarnation;
        let node = Node::start(options, Arc::clone(&memory.region))?;
        let address = node.address();
        Self::over(node, (address, incarnation), config, memory, look)
    }
}

impl Links for Node {
    fn dial(&self, peer: SocketAddr) {
        Node::dial(self, peer);
    }

    fn send(&self, link: LinkId, message: Vec<u8>) {
        Node::send(self, link, message);
    }

    fn read(&self, link: LinkId, post: PostId, pieces: Vec<Piece>) {
        Node::read(self, link, post, pieces);
    }

    fn write(&self, link: LinkId, post: PostId, window: WindowId, pieces: Vec<Piece>) {
        Node::write(self, link, post, window, pieces);
    }

    fn open_window(&self, window: WindowId, ranges: Vec<(u64, u64)>) {
        Node::open_window(self, window, ranges);
    }

    fn close_window(&self, window: WindowId) {
        Node::close_window(self, window);
    }

    fn cut(&self, link: LinkId) {
        Node::cut(self, link);
    }

    fn wake(&self) {
        Node::wake(self);
    }

    fn next(&self, by: Instant) -> Option<Event> {
        Node::next(self, by)
    }
}
