//! NIXL, as far as it is used here: a process reads bytes of another one's memory, by UCX.
//!
//! ```text
//!   Agent::new     its memory can be read ── Offer ──▶ the other process
//!   Agent::join    what it may read      ◀── Offer ─── the other process
//!   Agent::begin   a read ─▶ Agent::look, until it has landed or is broken
//! ```
//!
//! The library is no part of the build: `libnixl_capi.so` is loaded when it is first wanted, from the folder that
//! `SERQ_NIXL` names in the environment, or from where the system looks for libraries.
//!
//! # Invariants
//!
//! - An agent knows one peer. It reads that peer's memory and changes no other memory than its own side's.
//! - A range outside of the memories is refused, never asked for.
//! - After an agent is dropped none of its reads changes memory. NIXL cannot take a transfer back, so what
//!   carries it out goes: the agent, with its connections. No two agents share one.
//!
//! What a peer does that does not keep the rules, NIXL does not prevent: see docs/transport.md.

#[cfg(not(feature = "nixl"))]
mod absent;
#[cfg(feature = "nixl")]
mod agent;
#[cfg(feature = "nixl")]
mod library;

use serde::{Deserialize, Serialize};

#[cfg(not(feature = "nixl"))]
pub use absent::{Agent, Read, available};
#[cfg(feature = "nixl")]
pub use agent::{Agent, Read, available};

/// Bytes that can wait at an agent for their place.
pub const STAGING_BYTES: u64 = 4 << 20;

/// What a peer has to know to read an agent's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    /// What NIXL wants known of the agent, in hexadecimal digits.
    metadata: String,
    /// Where the memory begins in its process, and how long it is.
    address: u64,
    bytes: u64,
}

/// Where read bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// To the memory: `here` is a place in it.
    Memory,
    /// To [`Agent::staging`]: `here` is a place in that.
    Staging,
}

/// What came of a read's beginning.
#[derive(Clone, Copy, Debug)]
pub enum Begun {
    /// There are no such bytes on one of the sides; nothing was asked for.
    Refused,
    /// All bytes are there already.
    Landed,
    /// They come.
    UnderWay(Read),
}

/// The peer cannot be read any more: it is gone, or the way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

impl Offer {
    /// Whether the memory has such bytes.
    pub fn has(&self, from: u64, bytes: u64) -> bool {
        from.checked_add(bytes).is_some_and(|end| end <= self.bytes) && self.address.checked_add(self.bytes).is_some()
    }
}

#[cfg(feature = "nixl")]
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(feature = "nixl")]
fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    let pairs = digits.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?)).collect()
}

#[cfg(all(test, feature = "nixl"))]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_read_back_and_nothing_else_is() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(from_hex(&hex(&bytes)), Some(bytes));
        assert_eq!(from_hex("f"), None);
        assert_eq!(from_hex("zz"), None);
        assert_eq!(from_hex("é"), None);
    }

    #[test]
    fn an_offer_has_the_bytes_between_its_ends() {
        let offer = Offer { metadata: String::new(), address: 1000, bytes: 10 };
        assert!(offer.has(0, 10) && offer.has(10, 0));
        assert!(!offer.has(1, 10) && !offer.has(u64::MAX, 2) && !offer.has(11, 0));
        assert!(!Offer { address: u64::MAX, ..offer }.has(0, 1), "an address past the end of numbers");
    }
}
