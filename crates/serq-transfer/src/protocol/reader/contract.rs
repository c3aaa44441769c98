//! What a reader is told, and what it wants done.

use crate::protocol::failure::{Failure, Otherwise, Policy};
use crate::protocol::identity::{Address, Peer, Session, Time, TransferId};
use crate::protocol::mapping::{BlockTable, Run};
use crate::protocol::message::{Envelope, Offer};

/// Who moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The reader reads them; the source's processor is not asked.
    Pull,
    /// The source writes them into blocks the reader has registered.
    Push,
}

/// What came of reading a canary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Canary {
    /// The bytes the source said.
    Right,
    /// Other bytes.
    Wrong,
    /// The read failed.
    Unread,
}

/// A hand-over as the reader's scheduler learns of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Load {
    /// Minted by whoever dispatched it.
    pub id: TransferId,
    /// Where the prefill runs, or ran.
    pub source: Address,
    /// Who moves the bytes.
    pub mode: Mode,
    /// Both legs were dispatched at once: a source that does not know the transfer may yet learn of it.
    pub concurrent: bool,
    /// What the prefill's answer carried, where one was waited for.
    pub offer: Option<Offer>,
    /// What to do if it fails.
    pub policy: Policy,
}

/// What a reader is told.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Fact {
    /// A source was discovered: connect before the first request needs it.
    Discovered {
        /// Where.
        source: Address,
    },
    /// A request that will load waits for blocks. Its lease is kept alive from here on.
    Queued(Load),
    /// Its blocks are reserved: where the KV of which tokens is to go. They are the transfer's now.
    Reserved {
        /// Which.
        id: TransferId,
        /// The blocks, with at least one token to load.
        table: BlockTable,
    },
    /// The request was aborted or preempted. Nothing more is told of the load but its blocks' return.
    Cancelled {
        /// Which.
        id: TransferId,
    },
    /// A message came.
    Message(Envelope),
    /// A part of a read is over.
    PartEnded {
        /// Which transfer.
        id: TransferId,
        /// [`Action::Read`]'s.
        attempt: u64,
        /// Which part.
        part: u8,
        /// Whether its bytes are here; else it could not be posted, or failed.
        landed: bool,
    },
    /// The canary of [`Action::ReadCanary`] was read, or could not be.
    CanaryRead {
        /// Of which source.
        source: Address,
        /// On which connection.
        session: Session,
        /// What was read.
        canary: Canary,
    },
    /// What [`Action::Fence`] asked for is so.
    Fenced {
        /// The source.
        peer: Peer,
        /// The connection.
        session: Session,
    },
    /// Time has passed.
    Woken,
}

/// What a reader wants done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send this.
    Send(Envelope),
    /// Read the canary block the way KV is read, and tell [`Fact::CanaryRead`].
    ReadCanary {
        /// From whom.
        peer: Peer,
        /// On which connection.
        session: Session,
        /// What the source says of it.
        canary: Vec<u8>,
    },
    /// Read a part, and tell [`Fact::PartEnded`].
    Read {
        /// From whom.
        peer: Peer,
        /// On which connection.
        session: Session,
        /// Which transfer.
        id: TransferId,
        /// Which try.
        attempt: u64,
        /// Which part.
        part: u8,
        /// What goes where.
        runs: Vec<Run>,
    },
    /// See to it that nothing of this connection moves any more, no late write and no read of ours, and tell
    /// [`Fact::Fenced`]. It must become so without the peer's help.
    Fence {
        /// The source.
        peer: Peer,
        /// The connection.
        session: Session,
    },
    /// The KV is there and right. The blocks are the request's.
    Loaded {
        /// Which.
        id: TransferId,
        /// Up to which token.
        end_token: u32,
        /// The blocks' numbers.
        blocks: Vec<u32>,
    },
    /// The load failed for good. Its blocks come back with [`Action::Free`], now or when nothing can land in them.
    Failed {
        /// Which.
        id: TransferId,
        /// Why.
        failure: Failure,
        /// What the policy says is to be done.
        otherwise: Otherwise,
    },
    /// These blocks are the pool's again.
    Free {
        /// Whose they were.
        id: TransferId,
        /// Their numbers.
        blocks: Vec<u32>,
    },
    /// A load that is spent, known already, or one too many. To be computed here. A load of this number that is alive
    /// goes on.
    Refused {
        /// Which.
        id: TransferId,
        /// Why.
        failure: Failure,
    },
    /// Tell [`Fact::Woken`] at this time, or later.
    WakeAt(Time),
}
