//! Speaks HTTP: an OpenAI-compatible server over whatever generates tokens.
//!
//! [`serve`] answers on a listener with what a [`Backend`] generates. The endpoints,
//! parameters, limits, errors and metrics are in `docs/gateway.md`.
//!
//! ```text
//!   server ─ connection ─ service ─ body, parameters ─▶ backend
//!                            │                             │
//!                            └── answer, stream ◀── generation
//! ```
//!
//! # Invariants
//!
//! - A request's events are held by its response alone, the future or the body: a client that
//!   goes away, a connection that breaks and a drain that ends drop them, which cancels.
//! - Nothing a client sends makes a status of 5xx or a panic.
//! - Nothing a client leaves unread grows past hyper's buffer and what the backend generates in
//!   [`Options::write_time`].
//! - Streamed or not, an answer has the same text, tokens, log-probabilities and usage.

mod answer;
pub mod backend;
mod body;
mod connection;
mod error;
mod generation;
mod metrics;
mod parameters;
mod path;
mod response;
mod server;
mod service;
mod stream;

pub use backend::Backend;
pub use server::{Options, serve};
