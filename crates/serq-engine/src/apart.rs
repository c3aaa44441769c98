//! Instances in processes of their own, on this host or others.
//!
//! ```text
//!   the scheduler's process                     an instance's process, one of many
//!   ───────────────────────                     ──────────────────────────────────
//!   kernel ─▶ RemoteInstances ──── steps ─────▶ Worker ─▶ model, blocks
//!                            ▲  │                 │ ▲
//!                            │  └── copies ─────▶ KV connector ◀═══ bytes ═══▶ other instances'
//!                            └─── tokens, ends ───┘
//! ```
//!
//! One kernel decides for all of them, as it does for instances of one process, so a program means the same and
//! its decisions can be logged and decided again. An instance knows the program, for the size of its blocks, and
//! otherwise does what it is told. Bytes go from instance to instance.
//!
//! # Invariants
//!
//! - A step runs where the scheduler sent it, or its instance is gone.
//! - A copy is over for the scheduler once both connectors have given their blocks back; a connector whose process is
//!   gone has none.
//! - An instance that a scheduler is told is there has nothing in its memory, and nothing of an earlier scheduler
//!   runs there, reads or is written.
//! - Who computes otherwise (another model, program, arithmetic) is turned away with a sentence.

mod link;
mod look;
mod remote;
mod words;
mod worker;

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::served::Served;
use crate::weights::Checkpoint;

pub use serq_transfer::protocol::Config as TransferConfig;
pub use serq_transfer::transport::{Token, Way};

pub use remote::{PeerLook, Peers, RemoteInstances};
pub use worker::{Worker, WorkerOptions};

/// A side that says nothing for so long is gone.
const SILENCE: Duration = Duration::from_secs(10);
/// From one sign of life to the next.
const PULSE: Duration = Duration::from_secs(1);

/// What a thread that ended by a panic held is still to be had.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where an instance is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At {
    /// As the program calls it: `P[0]`.
    pub instance: String,
    /// Where it listens for its scheduler.
    pub address: SocketAddr,
}

/// What all processes of a deployment have to agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    program: [u8; 32],
    model: [u8; 32],
}

impl Identity {
    /// Of a program and a model.
    pub fn of(served: &Served, checkpoint: &Checkpoint) -> Self {
        let program = serde_json::to_vec(&served.program).expect("a program is plain data");
        Self { program: Sha256::digest(program).into(), model: checkpoint.fingerprint() }
    }
}
