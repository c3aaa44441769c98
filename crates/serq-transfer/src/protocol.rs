//! Who owns a KV block while it is handed over: the protocol of a source and a reader.
//!
//! A prefill instance, the *source*, keeps a prompt's KV under a lease. A decode instance, the *reader*, has
//! reserved blocks for it. In a *pull* the reader reads, and the source is asked only whether that was in time:
//!
//! ```text
//!   source                                              reader
//!   prefill ends: leased ───────── offer ─────────────▶ reads, block by block
//!     │  ◀───────────────── heartbeats ──────────────── (while it waits, too)
//!     │                                                 every byte has landed
//!     │  ◀──────────────────── done ───────────────────
//!     ├─ lease stands: free ────── good ──────────────▶ decodes
//!     └─ lease over:  freed before ── ended ──────────▶ drops the copy: recompute, or a typed error
//! ```
//!
//! In a *push* the reader registers its blocks, before or after the prefill has ended, and the source writes:
//!
//! ```text
//!   source                                              reader
//!     │  ◀───────────── register, epoch 1 ─────────────
//!   prefill ends: writes part by part
//!     ├──────────────── part 0 of 2 written ──────────▶
//!     ├──────────────── part 1 of 2 written ──────────▶ decodes
//!   nothing in flight: free
//!
//!     │  ◀────────────── revoke, epoch 1 ────────────── request aborted: blocks stay the transfer's
//!   no part is posted any more; those in flight land
//!     ├──────────────── revoked ──────────────────────▶ free
//!                                                       no answer in time: the peer is fenced, then free
//! ```
//!
//! [`Source`](source::Source) and [`Reader`](reader::Reader) are machines without a clock, I/O, threads or
//! randomness: they are told facts and answer with actions. They know blocks by number and own no pool: they say
//! of blocks that were lent to them that they are the pool's again, once. [`crate::simulated`] drives them through
//! faults. The states are drawn in [`source`] and [`reader`], the messages in [`message`].
//!
//! # What a transport promises
//!
//! * What was posted ends with one `PartEnded`, or never (a stopped peer): then the connection is fenced.
//! * After `Fenced` nothing of that connection changes memory of this side. That needs no peer: an endpoint is
//!   closed, a key invalidated.
//! * `landed` of a write means: in the reader's memory.
//!
//! Messages may be lost, repeated, late and out of order.

pub mod config;
mod deadlines;
pub mod encoding;
pub mod failure;
pub mod identity;
pub mod mapping;
pub mod message;
pub mod parts;
pub mod reader;
pub mod source;
mod tombstones;

pub use config::{Config, Counters};
pub use failure::{Failure, Otherwise, Policy};
pub use identity::{Address, Epoch, Incarnation, Peer, Session, Time, TransferId};
pub use mapping::{BlockTable, Placed, Run};
pub use message::{End, Envelope, Message, Offer, Refusal};
