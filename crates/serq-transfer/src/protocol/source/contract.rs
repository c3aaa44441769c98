//! What a source is told, and what it wants done.

use crate::protocol::identity::{Epoch, Peer, Session, Time, TransferId};
use crate::protocol::mapping::{BlockTable, Run};
use crate::protocol::message::{Envelope, Offer};

/// What a source is told.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Fact {
    /// The scheduler will run this prefill, whose KV somebody will fetch.
    Expected {
        /// Minted by whoever dispatched it, and never used before.
        id: TransferId,
    },
    /// The prefill is over and its blocks hold the KV. They are the transfer's now, whatever is known of it.
    PrefillFinished {
        /// Which.
        id: TransferId,
        /// Where the KV is.
        table: BlockTable,
    },
    /// The prefill failed, or will not be run. Its blocks stay the scheduler's.
    PrefillFailed {
        /// Which.
        id: TransferId,
    },
    /// The prefill leg was aborted: its client has gone, which is usual once it has its answer. So this ends what is
    /// still computed, and is nothing to a lease.
    Aborted {
        /// Which.
        id: TransferId,
    },
    /// Nobody will come: the decode leg was refused, or the whole request is over.
    Abandoned {
        /// Which.
        id: TransferId,
    },
    /// A message came.
    Message(Envelope),
    /// A part of a write is over.
    PartEnded {
        /// Which transfer.
        id: TransferId,
        /// [`Action::Write`]'s.
        attempt: u64,
        /// Which part.
        part: u8,
        /// Whether its bytes are in the reader's memory; else it could not be posted, or failed.
        landed: bool,
    },
    /// What [`Action::Fence`] asked for is so.
    Fenced {
        /// The reader.
        peer: Peer,
        /// The connection.
        session: Session,
    },
    /// Time has passed.
    Woken,
}

/// What a source wants done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send this.
    Send(Envelope),
    /// The blocks are leased. Who dispatches the legs one after the other carries this to the reader.
    Offered {
        /// Which.
        id: TransferId,
        /// What to read, and from whom.
        offer: Offer,
    },
    /// Write a part, and tell [`Fact::PartEnded`].
    Write {
        /// To whom.
        peer: Peer,
        /// On which connection.
        session: Session,
        /// Which transfer.
        id: TransferId,
        /// The registration it is for.
        epoch: Epoch,
        /// Which try.
        attempt: u64,
        /// Which part.
        part: u8,
        /// What goes where.
        runs: Vec<Run>,
    },
    /// See to it that nothing of this connection moves any more, and tell [`Fact::Fenced`]. It must become so without the
    /// peer's help.
    Fence {
        /// The reader.
        peer: Peer,
        /// The connection.
        session: Session,
    },
    /// These blocks are the pool's again.
    Free {
        /// Whose they were.
        id: TransferId,
        /// Their numbers.
        blocks: Vec<u32>,
    },
    /// Nobody will fetch what is being computed.
    Unwanted {
        /// Which.
        id: TransferId,
    },
    /// There is no room for this transfer, or it is known already. The prefill cannot be handed over.
    Refused {
        /// Which.
        id: TransferId,
    },
    /// Tell [`Fact::Woken`] at this time, or later.
    WakeAt(Time),
}
