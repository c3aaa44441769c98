//! What source and reader say to each other.
//!
//! ```text
//!   reader                                           source
//!   ──────                                           ──────
//!   Hello        version, compatibility       ──▶    Welcome (a canary to read) | Refused | (reader checks it)
//!   Ask          pull, blocks not yet known   ──▶    Waiting (prefill runs) | Offer | Ended | Unknown
//!   Done         every byte has been read     ──▶    Good | Ended | Unknown
//!   Register     push, where to write         ──▶    Waiting | PartWritten… | WriteFailed | Stale | Ended | Unknown
//!   Heartbeat    these are wanted             ──▶    nothing, or Ended | Unknown for each that has no lease
//!   Drop         pull, not wanted any more    ──▶    nothing: if it is lost, the lease runs out
//!   Revoke       push, write no more          ──▶    Revoked, once nothing is in flight
//!   anything, to another incarnation or connection   SomebodyElse | Reset
//! ```
//!
//! Every question may be asked again and gets the same answer; who asks keeps asking until its own deadline.

use std::fmt;

use super::identity::{Epoch, Incarnation, Peer, Session, TransferId};
use super::mapping::BlockTable;

/// The version of these messages. Peers of different versions refuse each other.
pub const VERSION: u16 = 1;

/// A message with who sends it, whom it is meant for, and on which connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Envelope {
    /// The sender.
    pub from: Peer,
    /// The addressee. Only a [`Message::Hello`] may be to [`Incarnation::WHOEVER`].
    pub to: Peer,
    /// The connection it belongs to.
    pub session: Session,
    /// What is said.
    pub message: Message,
}

/// What a source offers to be read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Offer {
    /// Who offers. Read from nobody else.
    pub source: Peer,
    /// The lease the blocks stand under.
    pub epoch: Epoch,
    /// The blocks.
    pub table: BlockTable,
}

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the fields are named by their types; the module's drawing says what each is for")]
pub enum Message {
    /// A reader wants to connect.
    Hello { version: u16, compatibility: Vec<u8> },
    /// Where are the blocks? The source may still compute them.
    Ask { id: TransferId },
    /// Write here, once the prefill is done. Sent again, it asks how far the write is.
    Register { id: TransferId, epoch: Epoch, target: BlockTable },
    /// The reader's requests that wait or read.
    Heartbeat { ids: Vec<TransferId> },
    /// This read under this lease has ended; were the blocks still there?
    Done { id: TransferId, epoch: Epoch, attempt: u64 },
    /// Nobody will read it.
    Drop { id: TransferId },
    /// Write nothing more of this or an earlier registration.
    Revoke { id: TransferId, epoch: Epoch },

    /// Connected, once the canary has been read and is right.
    Welcome { canary: Vec<u8> },
    /// Not connected.
    Refused { refusal: Refusal },
    /// The transfer is known; its prefill is not over.
    Waiting { id: TransferId },
    /// The prefill is over and the blocks are leased.
    Offer { id: TransferId, offer: Offer },
    /// The lease stood until after this read had ended: its copy may be used.
    Good { id: TransferId, attempt: u64 },
    /// The transfer is over.
    Ended { id: TransferId, end: End },
    /// No such transfer.
    Unknown { id: TransferId },
    /// A part has landed in the registered blocks.
    PartWritten { id: TransferId, epoch: Epoch, part: u8, parts: u8 },
    /// A part could not be written. Nothing of this registration is in flight, and nothing more will be written.
    WriteFailed { id: TransferId, epoch: Epoch },
    /// Nothing of this registration is in flight, and nothing more will be written.
    Revoked { id: TransferId, epoch: Epoch },
    /// Something later was revoked already: register again.
    Stale { id: TransferId, epoch: Epoch },
    /// This connection is not known, or over.
    Reset,

    /// A message was for `meant`; the sender of this is another one.
    SomebodyElse { meant: Incarnation },
}

/// Why a source does not want a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// They speak different versions of these messages.
    Version {
        /// The source's.
        source: u16,
    },
    /// Their models, types or layouts cannot be joined.
    Compatibility,
    /// It has as many peers as it may.
    Full,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Version { source } => {
                write!(f, "the source speaks version {source} of the transfer protocol, this reader version {VERSION}")
            }
            Refusal::Compatibility => {
                f.write_str("the source's compatibility hash differs: model, KV type or layout cannot be joined")
            }
            Refusal::Full => f.write_str("the source is connected with as many readers as it may be"),
        }
    }
}

/// How a transfer ended at its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    /// Its bytes were handed over.
    Consumed,
    /// The lease ran out first.
    LeaseOver,
    /// The prefill failed, or was refused.
    PrefillFailed,
    /// The prefill leg was aborted.
    Aborted,
    /// Whoever dispatched it said that nobody will come.
    Abandoned,
    /// Its reader did not want it any more.
    Dropped,
    /// Its reader was replaced by another incarnation.
    ReaderRestarted,
    /// The reader's block table cannot be filled from the source's.
    Unmappable,
    /// It belongs to another reader. It goes on.
    Taken,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            End::Consumed => "its blocks were handed over before",
            End::LeaseOver => "the lease on its blocks ran out",
            End::PrefillFailed => "the prefill failed",
            End::Aborted => "the prefill leg was aborted",
            End::Abandoned => "the request was abandoned",
            End::Dropped => "its reader dropped it",
            End::ReaderRestarted => "its reader was restarted",
            End::Unmappable => "its blocks do not cover the tokens the reader wants",
            End::Taken => "it belongs to another reader",
        })
    }
}
