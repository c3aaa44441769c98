//! Who speaks, about which transfer, and when.
//!
//! A process is an address and an incarnation: a decoder that was killed and started again on the same
//! host and port is somebody else, and nothing that was agreed with the one before holds for it.
//! Incarnations are only compared for equality, so they need no order and no synchronised clock; the
//! time of the start in nanoseconds will do.
//!
//! Two numbers are minted by a reader and only ever grow within its incarnation: a [`Session`] a
//! connection, an [`Epoch`] a registration. A lease has an epoch too, minted by its source.

use std::fmt;

/// A point on this process's own monotonic clock, in microseconds. Never sent to anybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// `us` microseconds later; the end of time if that is beyond it.
    #[must_use]
    pub fn after(self, us: u64) -> Time {
        Time(self.0.saturating_add(us))
    }
}

/// Where a process is reached, the same number to everybody: an IPv4 address and port, or a name's hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u64);

/// Which of the processes that have been at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

impl Incarnation {
    /// The addressee of a first greeting: whoever is there.
    pub const WHOEVER: Incarnation = Incarnation(0);
}

/// A process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer {
    /// Where it is reached.
    pub address: Address,
    /// Which one it is.
    pub incarnation: Incarnation,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.address.0, self.incarnation.0)
    }
}

/// A connection of a reader to a source. What is registered or in flight belongs to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session(pub u64);

/// A hand-over: minted once, by whoever dispatches the two legs, and named by every message about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(pub u128);

impl fmt::Display for TransferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// Which registration of a reader, or which lease of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);
