//! Why a load failed, and what its request wants done about it.

use std::fmt;

use super::message::{End, Refusal};

/// What is done when a load fails. Said explicitly for each request; nothing falls back on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// How often a failure that may pass is tried again, over the same blocks.
    pub retries: u32,
    /// What is done when it is not tried again.
    pub otherwise: Otherwise,
}

/// What becomes of a request whose load failed for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Otherwise {
    /// Its prompt is computed where it is.
    Recompute,
    /// It fails.
    Error,
}

/// Why a load failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Failure {
    /// The source does not greet.
    Unreachable,
    /// The source does not want this reader.
    Refused(Refusal),
    /// The canary that was read is not what it should be: the bytes that arrive are wrong.
    CanaryWrong,
    /// The source was replaced by another incarnation, and what it had computed went with it.
    SourceRestarted,
    /// The connection was ended while bytes were in flight.
    ConnectionLost,
    /// The source says that the transfer is over.
    Ended(End),
    /// The source does not know the transfer.
    Unknown,
    /// The source did not say in time where to read.
    Unanswered,
    /// The source did not write in time.
    NotWritten,
    /// The transport says that the read failed.
    ReadFailed,
    /// The source says that its write failed.
    WriteFailed,
    /// The read did not end in time.
    ReadStuck,
    /// The read ended, and its source did not say in time whether it was good.
    Unconfirmed,
    /// The transfer was used, or failed, before.
    Spent,
    /// There are as many transfers, or sources, as there may be.
    TooMany,
}

impl Failure {
    /// Whether the same transfer may succeed when it is tried again.
    #[must_use]
    pub fn may_pass(self) -> bool {
        matches!(self, Failure::ReadFailed | Failure::WriteFailed | Failure::ConnectionLost)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Failure::Refused(refusal) => return refusal.fmt(f),
            Failure::Ended(end) => return write!(f, "the source says: {end}"),
            Failure::Unreachable => "the source cannot be reached",
            Failure::CanaryWrong => "the canary block arrived changed: KV from this source would be wrong",
            Failure::SourceRestarted => "the source was restarted",
            Failure::ConnectionLost => "the connection was lost during the transfer",
            Failure::Unknown => "the source does not know the transfer",
            Failure::Unanswered => "the source did not say in time where to read",
            Failure::NotWritten => "the source did not write in time",
            Failure::ReadFailed => "the read failed",
            Failure::WriteFailed => "the source's write failed",
            Failure::ReadStuck => "the read did not end in time; its source was fenced",
            Failure::Unconfirmed => "the source did not say in time that the read was good",
            Failure::Spent => "the transfer was used before",
            Failure::TooMany => "there are as many transfers as there may be",
        };
        f.write_str(text)
    }
}

impl std::error::Error for Failure {}
