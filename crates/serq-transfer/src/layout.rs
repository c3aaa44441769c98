//! How KV lies in the memory of an instance, and the one converter between two such layouts.
//!
//! Two instances of one model may keep its keys and values differently: other block sizes, another
//! order of heads and tokens, more or fewer ranks, narrower numbers. At the handshake both sides
//! send a [`Descriptor`] a rank; [`join`] answers a [`Conversion`] or a [`Refusal`] in words. For
//! tokens of a request and both sides' block tables a conversion makes a [`Plan`]: byte ranges
//! where bytes can be moved as they are ([`Plan::pieces`]), a copy that converts otherwise
//! ([`Plan::copy`]).
//!
//! ```text
//!   descriptors of all ranks        block tables, token range        memory of a pair of ranks
//!            │                                 │                               │
//!            ▼                                 ▼                               ▼
//!          join ────────▶ Conversion ────────▶ plan ────────▶ Plan ────────▶ pieces, copy
//!            │                                 │
//!            ▼                                 ▼
//!         Refusal                          PlanError
//! ```
//!
//! This module moves bytes between slices. Who may read or write them when is the protocol's.
//!
//! # Invariants
//!
//! - Tokens meet by their place in the text. The place of a block in a list says nothing.
//! - Every element of the range that a reader's rank keeps is written once, from one rank of the
//!   source; nothing outside the range is written (but see [`Element::Fp8E4m3`] for what shares a
//!   scale with it).
//! - Equal numbers are moved bit by bit; a wider format takes a narrower one's exactly.
//! - What a peer says about itself is checked before it is used: wrong descriptors and tables are
//!   errors, never panics.
//!
//! The layouts are drawn in `docs/kv-layouts.md`.

pub mod canary;
mod copy;
mod descriptor;
mod geometry;
pub mod number;
mod pairing;
mod plan;
mod rows;

pub use descriptor::{Content, Descriptor, Element, Flaw, Group, Nesting, Order, TensorParallel, Unreadable, VERSION};
pub use geometry::{Geometry, Half, Strides};
pub use pairing::{Conversion, Difference, Refusal, Share, Side, join};
pub use plan::{BlockTable, Piece, Plan, PlanError};
