//! The KV connector of an instance: its scheduler says what is computed and what is wanted, and hears what came of it.
//!
//! ```text
//!   scheduler ── Told: expect, finished, load, allocated, … ──▶ ┌───────────┐ ──▶ messages, reads, writes ──▶ peer
//!                                                               │ connector │
//!   scheduler ◀─ Heard: loaded, failed, free, offered, … ────── └───────────┘ ◀── messages, bytes ─────────── peer
//! ```
//!
//! The names are those of the field's connectors (vLLM's `KVConnectorBase_V1`), whose scheduler side and worker side one
//! process has here:
//!
//! | vLLM | here |
//! |---|---|
//! | `on_new_request` of a prefill leg | [`Told::Expect`] |
//! | `request_finished`: blocks are leased | [`Told::Finished`], answered by [`Heard::Offered`] |
//! | `get_num_new_matched_tokens`: tokens that can come from outside | [`Told::Load`] says from where; how many is the block table's to say |
//! | `update_state_after_alloc`, `build_connector_meta`, `start_load_kv` | [`Told::Allocated`]: the load starts as soon as it may |
//! | `get_finished` | [`Heard::Loaded`], [`Heard::Failed`], [`Heard::Free`] |
//! | `register_kv_caches` | [`Memory`] |
//!
//! [`remote::Remote`] runs it between processes, over [`crate::transport`], and [`local::Local`] within one. Another way
//! to a peer is a file beside these, with what [`Links`] asks for; another connector (Mooncake, LMCache) is one, too.
//!
//! # Invariants
//!
//! - Blocks given with [`Told::Finished`] and [`Told::Allocated`] are the connector's until it gives them back, once: with
//!   [`Heard::Free`], [`Heard::Loaded`] or [`Heard::Refused`].
//! - What is loaded has arrived whole, and its source has called it good after the last byte.

mod exchange;
pub mod local;
mod mailbox;
mod moving;
pub mod remote;

pub use exchange::{Connector, Counted, Links, Look, address_of};

use std::sync::Arc;
use std::time::Instant;

use crate::layout::Descriptor;
use crate::memory::Region;
use crate::protocol::reader::Load;
use crate::protocol::{BlockTable, Failure, Offer, Otherwise, TransferId};

/// An instance's side of the hand-overs it takes part in.
pub trait KvConnector: Send {
    /// The scheduler says something.
    fn tell(&self, told: Told);

    /// What the scheduler has to hear next, if there is something by then.
    fn next(&self, by: Instant) -> Option<Heard>;
}

/// The KV of an instance, as its connector reads and fills it.
#[derive(Clone)]
pub struct Memory {
    /// Its blocks, as the descriptor lays them out, and then room for bytes that are to be converted.
    pub region: Arc<Region>,
    /// One rank, one group of layers. Its last two blocks are the connector's: its canary's, and the one others' are
    /// read into.
    pub descriptor: Descriptor,
    /// Bytes behind the blocks: what does not fit there at once waits.
    pub staging_bytes: usize,
}

impl Memory {
    /// Memory for blocks laid out like that, of which two more are made, and for staging.
    ///
    /// # Errors
    ///
    /// A sentence: the descriptor is not of one rank and one group, or there is no such memory.
    pub fn new(mut descriptor: Descriptor, staging_bytes: usize) -> Result<Self, String> {
        if descriptor.tensor_parallel.degree != 1 || descriptor.groups.len() != 1 {
            return Err("a connector's memory is one rank's, and of one group of layers".into());
        }
        descriptor.groups[0].blocks += 2;
        descriptor.check().map_err(|flaw| flaw.to_string())?;
        let bytes = descriptor.memory_bytes().next_multiple_of(64).checked_add(staging_bytes);
        let region = bytes.ok_or_else(|| "there is no memory of that size".to_owned());
        let region = Region::new(region?).map_err(|error| format!("there is no memory for the blocks: {error}"))?;
        Ok(Self { region: Arc::new(region), descriptor, staging_bytes })
    }

    /// Blocks the scheduler may hand out: 0 to this.
    pub fn blocks(&self) -> usize {
        self.descriptor.groups[0].blocks - 2
    }

    /// Token slots of a block.
    pub fn block_tokens(&self) -> usize {
        self.descriptor.groups[0].block_tokens
    }

    fn canary_block(&self) -> u32 {
        self.blocks() as u32
    }

    fn read_block(&self) -> u32 {
        self.blocks() as u32 + 1
    }

    fn staging(&self) -> (u64, u64) {
        ((self.region.bytes() - self.staging_bytes) as u64, self.staging_bytes as u64)
    }
}

/// What a scheduler says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// It will run this prefill, whose KV somebody fetches.
    Expect {
        /// Minted by whoever dispatched the legs.
        id: TransferId,
    },
    /// The prefill is over; its blocks hold the KV and are the connector's now.
    Finished {
        /// Which.
        id: TransferId,
        /// Where the KV is.
        table: BlockTable,
    },
    /// The prefill failed or will not be run.
    PrefillFailed {
        /// Which.
        id: TransferId,
    },
    /// The prefill leg's client has gone. Nothing to a lease.
    Aborted {
        /// Which.
        id: TransferId,
    },
    /// Nobody will fetch it: the decode leg was refused, or the request is over.
    Abandoned {
        /// Which.
        id: TransferId,
    },
    /// A source that requests will come from: connect before they do.
    Discovered {
        /// Where it listens.
        source: std::net::SocketAddr,
    },
    /// A request whose KV is computed elsewhere waits for blocks. Its lease is kept from now on.
    Load(Load),
    /// Its blocks are reserved, and the connector's now: where the KV of which tokens goes.
    Allocated {
        /// Which.
        id: TransferId,
        /// The blocks, with at least one token to load.
        table: BlockTable,
    },
    /// The request was aborted, or preempted.
    Cancelled {
        /// Which.
        id: TransferId,
    },
}

/// What a scheduler hears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The blocks of a prefill are leased.
    Offered {
        /// Which.
        id: TransferId,
        /// For the reader: what to read, and from whom.
        offer: Offer,
    },
    /// Nobody will fetch what is being computed.
    Unwanted {
        /// Which.
        id: TransferId,
    },
    /// A transfer that is known already, spent, or one too many.
    Refused {
        /// Which.
        id: TransferId,
        /// Why, of a load.
        failure: Option<Failure>,
    },
    /// The KV is there and right; the blocks are the request's.
    Loaded {
        /// Which.
        id: TransferId,
        /// Up to which token.
        end_token: u32,
        /// The blocks.
        blocks: Vec<u32>,
    },
    /// The load failed for good.
    Failed {
        /// Which.
        id: TransferId,
        /// Why.
        failure: Failure,
        /// What the request's policy says is to be done.
        otherwise: Otherwise,
    },
    /// Blocks are the pool's again.
    Free {
        /// Whose they were.
        id: TransferId,
        /// The blocks.
        blocks: Vec<u32>,
    },
    /// For a log: a peer came or went, was refused or turned away.
    Note(String),
}
