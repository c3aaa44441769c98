//! What a scheduler and an instance say to each other.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use serq_transfer::protocol::{self, Address, Epoch, Incarnation, Peer, Placed};

use crate::sampler::{Sampling, Token};
use crate::service::{Next, Run};

/// Of these words.
pub(super) const VERSION: u16 = 1;

/// A scheduler's.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Its first word. The instance answers [`Answer::Ready`], once nothing of an earlier scheduler goes on, or
    /// [`Answer::Refused`].
    Greeting { version: u16, program: [u8; 32], model: [u8; 32], instance: String },
    /// It is there.
    Pulse,
    /// Compute; answered with [`Answer::StepEnded`].
    Step { number: u64, runs: Vec<StepRun> },
    /// These blocks hold what another instance will read; answered with [`Answer::Offered`] and in the end
    /// [`Answer::Released`].
    Lease { id: u128, table: Table },
    /// Nobody will read it.
    Abandon { id: u128 },
    /// Read it, or have it written, `retries` times again if that may help. Answered with [`Answer::Loaded`] or
    /// [`Answer::LoadFailed`], once the blocks are the scheduler's again.
    Load { id: u128, offer: Offer, table: Table, pushed: bool, retries: u32 },
    /// It is not wanted any more.
    Cancel { id: u128 },
    /// KV will come from there: connect.
    Discovered { source: SocketAddr },
    /// It is not taken, and why.
    NotTaken { why: String },
    /// Nobody needs it any more: it may go.
    Dismissed,
}

/// An instance's.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// It serves.
    Ready(Ready),
    /// It does not, and why.
    Refused {
        why: String,
    },
    /// It is there.
    Pulse(Counts),
    /// The step's tokens.
    StepEnded {
        number: u64,
        tokens: Vec<Option<Token>>,
    },
    Offered {
        id: u128,
        offer: Offer,
    },
    /// The blocks are the scheduler's again; `false`: they were never leased.
    Released {
        id: u128,
        leased: bool,
    },
    /// The KV is there and right, so many bytes.
    Loaded {
        id: u128,
        bytes: u64,
    },
    LoadFailed {
        id: u128,
        why: String,
    },
    /// It goes down: no new work, please.
    Draining,
}

/// What a scheduler has to know of an instance.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Ready {
    /// Where others reach it for KV.
    pub(super) kv: SocketAddr,
    /// How it computes.
    pub(super) arithmetic: String,
    /// Whose KV it can use.
    pub(super) compatibility: String,
}

/// What an instance has counted, and what is there now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Counts {
    /// Transfers alive, as a source and as a reader.
    pub(super) leased: u64,
    pub(super) loading: u64,
    pub(super) bytes_moved: u64,
    pub(super) posts_failed: u64,
    pub(super) leases_expired: u64,
    pub(super) fences: u64,
    pub(super) loads: u64,
    pub(super) loads_failed: u64,
    /// Microseconds of all loads that arrived, from the order to the end.
    pub(super) load_us: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StepRun {
    tokens: Vec<u32>,
    start: u64,
    blocks: Vec<u32>,
    next: Option<StepNext>,
}

#[derive(Debug, Serialize, Deserialize)]
struct StepNext {
    sampling: Sampling,
    nth: u64,
    before: Option<(Vec<u32>, Vec<u32>)>,
}

impl From<Run> for StepRun {
    fn from(run: Run) -> Self {
        let next = run.next.map(|next| StepNext {
            sampling: Sampling::clone(&next.sampling),
            nth: next.nth as u64,
            before: next.before,
        });
        Self { tokens: run.tokens, start: run.start as u64, blocks: run.blocks, next }
    }
}

impl From<StepRun> for Run {
    fn from(run: StepRun) -> Self {
        let next =
            run.next.map(|next| Next { sampling: next.sampling.into(), nth: next.nth as usize, before: next.before });
        Self { tokens: run.tokens, start: run.start as usize, blocks: run.blocks, next }
    }
}

/// A block table: each block, and the token its first slot is for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Table {
    block_tokens: u32,
    first_token: u32,
    end_token: u32,
    blocks: Vec<(u32, u32)>,
}

impl From<&protocol::BlockTable> for Table {
    fn from(table: &protocol::BlockTable) -> Self {
        let protocol::BlockTable { block_tokens, first_token, end_token, .. } = *table;
        let blocks = table.blocks.iter().map(|placed| (placed.block, placed.first_token)).collect();
        Self { block_tokens, first_token, end_token, blocks }
    }
}

impl From<Table> for protocol::BlockTable {
    fn from(table: Table) -> Self {
        let Table { block_tokens, first_token, end_token, blocks } = table;
        let blocks = blocks.into_iter().map(|(block, first_token)| Placed { block, first_token }).collect();
        Self { block_tokens, first_token, end_token, blocks }
    }
}

/// What a source offers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Offer {
    address: u64,
    incarnation: u64,
    epoch: u64,
    table: Table,
}

impl From<protocol::Offer> for Offer {
    fn from(offer: protocol::Offer) -> Self {
        Self {
            address: offer.source.address.0,
            incarnation: offer.source.incarnation.0,
            epoch: offer.epoch.0,
            table: Table::from(&offer.table),
        }
    }
}

impl From<Offer> for protocol::Offer {
    fn from(offer: Offer) -> Self {
        let source = Peer { address: Address(offer.address), incarnation: Incarnation(offer.incarnation) };
        Self { source, epoch: Epoch(offer.epoch), table: offer.table.into() }
    }
}

impl Counts {
    /// By name, with what they are, as a metric's help has it.
    pub(super) fn named(&self) -> Vec<(&'static str, &'static str, u64)> {
        vec![
            ("serq_kv_transfers_leased", "Transfers whose blocks are leased here.", self.leased),
            ("serq_kv_transfers_loading", "Transfers that are loaded here.", self.loading),
            ("serq_kv_bytes_moved_total", "Bytes of KV read and written by transfers that landed.", self.bytes_moved),
            ("serq_kv_posts_failed_total", "Reads and writes that did not land.", self.posts_failed),
            ("serq_kv_leases_expired_total", "Leases that ran out.", self.leases_expired),
            ("serq_kv_fences_total", "Peers that were fenced.", self.fences),
            ("serq_kv_loads_total", "Loads that arrived.", self.loads),
            ("serq_kv_loads_failed_total", "Loads that failed or were given up.", self.loads_failed),
            ("serq_kv_load_microseconds_total", "Time of the loads that arrived.", self.load_us),
        ]
    }
}
