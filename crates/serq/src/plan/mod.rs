//! Arithmetic on paper: what a hand-over moves, how long that takes, how many instances a load needs.
//!
//! ```text
//!   catalogue (models.csv, accelerators.csv) ─┐
//!   the caller's own fields ──────────────────┴─▶ shape ─▶ transfer ─┐
//!                                                rates ──▶ ratio ────┴─▶ text, lists, JSON
//! ```
//!
//! Nothing here runs a program: no queue, no contention, averages only. `run` and `sweep` have
//! those. Formulas and sources are in `docs/plan.md`.

pub(crate) mod catalogue;
pub(crate) mod lists;
pub(crate) mod quantity;
pub(crate) mod ratio;
pub(crate) mod shape;
pub(crate) mod text;
pub(crate) mod transfer;
