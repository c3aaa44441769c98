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

    /// Something befell a leg of a session: the so manieth of its turn, from 1. The time to a first
    /// token is the session's.
    fn leg(&mut self, _now: f64, _session: u64, _leg: u32, _what: Move) {}

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

/// Two recorders, where there are two.
pub struct Both<'a>(pub Option<&'a mut dyn Recorder>, pub Option<&'a mut dyn Recorder>);

impl Both<'_> {
    /// Whether there is one.
    pub fn is_any(&self) -> bool {
        self.0.is_some() || self.1.is_some()
    }

    fn each(&mut self, mut tell: impl FnMut(&mut dyn Recorder)) {
        for recorder in [&mut self.0, &mut self.1].into_iter().flatten() {
            tell(*recorder);
        }
    }
}

impl Recorder for Both<'_> {
    fn session(&mut self, now: f64, session: u64, what: Move, part: Option<Part>) {
        self.each(|recorder| recorder.session(now, session, what, part));
    }

    fn leg(&mut self, now: f64, session: u64, leg: u32, what: Move) {
        self.each(|recorder| recorder.leg(now, session, leg, what));
    }

    fn first_token(&mut self, request: &Request) {
        self.each(|recorder| recorder.first_token(request));
    }

    fn wants_steps(&self) -> bool {
        [&self.0, &self.1].into_iter().flatten().any(|recorder| recorder.wants_steps())
    }

    fn steps_started(&mut self, now: f64, stage: u32, cost: f64, jobs: &mut dyn Iterator<Item = (u64, f64)>) {
        let jobs: Vec<(u64, f64)> = jobs.collect();
        self.each(|recorder| recorder.steps_started(now, stage, cost, &mut jobs.iter().copied()));
    }

    fn steps_ended(&mut self, now: f64, stage: u32, steps: u64) {
        self.each(|recorder| recorder.steps_ended(now, stage, steps));
    }

    fn pool(&mut self, now: f64, pool: u32, state: PoolState) {
        self.each(|recorder| recorder.pool(now, pool, state));
    }

    fn stage(&mut self, now: f64, stage: u32, state: StageState) {
        self.each(|recorder| recorder.stage(now, stage, state));
    }

    fn sample(&mut self, now: f64, observe: u32, session: u64, turn: f64, value: f64, counts: bool) {
        self.each(|recorder| recorder.sample(now, observe, session, turn, value, counts));
    }

    fn finished(&mut self, end: f64) {
        self.each(|recorder| recorder.finished(end));
    }
}
