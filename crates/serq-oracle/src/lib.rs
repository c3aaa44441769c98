//! A scenario through vLLM's own schedulers and through the kernel, step by step.
//!
//! ```text
//!              ┌─ scenario.rs ─▶ JSON ─▶ tools/oracle/schedulers.py ─ answer.rs ─▶ Story ─┐
//!   program ───┤                                                                          ├─▶ compare.rs
//!              └─ kernel.rs: simulated, every step of every engine ──────────────▶ Story ─┘
//! ```
//!
//! A scenario is a program of which every engine step takes one unit of time, with its
//! requests in lists; docs/oracle.md says under which names. A [`Story`] is what either side
//! did with it: of every step of every engine who got how many tokens, who was preempted and
//! how many blocks were left, and of every request the steps in which something befell it.

mod answer;
mod compare;
mod kernel;
mod scenario;

use std::collections::BTreeMap;

pub use answer::{Answer, Recorded, Source};
pub use compare::{Verdict, compare};
pub use kernel::simulate;
pub use scenario::{Asked, Scenario, Side};

/// What one side did with a scenario.
#[derive(Debug, Default)]
pub struct Story {
    /// By step, by engine (`P0`, `D1`), with the free blocks it has at the step's end; steps and
    /// engines of which there is nothing to tell are left out.
    pub steps: BTreeMap<u64, BTreeMap<String, (Step, u64)>>,
    /// By request, in the scenario's order.
    pub requests: Vec<Request>,
}

/// One sentence: why there is no answer.
#[derive(Debug)]
pub struct Refused(pub String);

/// One step of one engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Tokens by request.
    pub scheduled: BTreeMap<String, u64>,
    /// In the order of their preemption.
    pub preempted: Vec<String>,
    /// Blocks nobody holds, once the step is scheduled.
    pub free: u64,
}

/// The steps in which something befell a request; `None`: never.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// `r0`, `r1` …
    pub name: String,
    /// By event, of those of [`EVENTS`] that it has.
    pub events: BTreeMap<&'static str, u64>,
    /// On the decoder.
    pub preempted: Vec<u64>,
}

/// Events, in the order in which a request meets them.
pub const EVENTS: [&str; 11] = [
    "prefill arrive",
    "prefill admit",
    "prefill finish",
    "prefill free",
    "decode arrive",
    "park",
    "read done",
    "promote",
    "admit",
    "first token",
    "finish",
];
