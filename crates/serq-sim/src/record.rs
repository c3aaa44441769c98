//! What a run can tell while it goes on, to whoever writes it down.
//!
//! [`crate::simulate_recorded`] calls a [`Recorder`] as things happen, so that a timeline
//! or a curve is made without keeping the run. Every method does nothing by default.
//!
//! # Invariants
//!
//! - Times of [`Recorder::session`] and of steps never go back.
//! - A stage's steps do not overlap: `steps_ended` stands between two `steps_started`.
//! - Pools and stages are told at the end of an instant, and only those that changed.

pub use serq_kernel::{Move, PoolState, StageState};

use crate::ttft::{Part, Request};

/// Writes a run down.
pub trait Recorder {
    /// Something befell a session. `part`: the part of the time to its first token that it is in
    /// from now on, while it has none and the program has prefill and decode engines.
    fn session(&mut self, _now: f64, _session: u64, _what: Move, _part: Option<Part>) {}

    /// A request has had its first token, perhaps a while ago, in a program that has both
    /// prefill and decode engines.
    fn first_token(&mut self, _request: &Request) {}

    /// Whether [`Recorder::steps_started`] and [`Recorder::steps_ended`] are wanted.
    fn wants_steps(&self) -> bool {
        false
    }

    /// An engine begins a step of this cost, or several equal ones: its jobs as (session,
    /// tokens in each step).
    fn steps_started(&mut self, _now: f64, _stage: u32, _cost: f64, _jobs: &mut dyn Iterator<Item = (u64, f64)>) {}

    /// They are over: so many were taken.
    fn steps_ended(&mut self, _now: f64, _stage: u32, _steps: u64) {}

    /// A pool changed.
    fn pool(&mut self, _now: f64, _pool: u32, _state: PoolState) {}

    /// A stage changed.
    fn stage(&mut self, _now: f64, _stage: u32, _state: StageState) {}

    /// A sample was taken; `counts`: after the warm-up.
    fn sample(&mut self, _now: f64, _observe: u32, _session: u64, _turn: f64, _value: f64, _counts: bool) {}

    /// The run is over.
    fn finished(&mut self, _end: f64) {}
}
