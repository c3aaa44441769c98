//! The protocol's two machines among simulated processes, a network that errs and blocks whose cells can be seen.
//!
//! A schedule is a function of its seed: how many instances there are, what they are asked for, how the legs are
//! dispatched, and what goes wrong when. [`schedule`] runs one; [`exhaustive`] places faults everywhere in a small one.
//! What is checked in each is listed in the header of the world, `simulated/world.rs`.

mod dice;
pub mod exhaustive;
mod plan;
mod pool;
mod world;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use world::Outcome;
use world::World;

/// What came of one schedule, or of many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// How many schedules.
    pub schedules: u64,
    /// Requests by how they ended.
    pub outcomes: BTreeMap<Outcome, u64>,
    /// Times that a peer was fenced.
    pub fences: u64,
    /// Leases that ran out.
    pub leases_expired: u64,
    /// Messages that were sent.
    pub messages: u64,
    /// Tokens' KV that transfers wrote, each into a block that was its transfer's.
    pub cells_copied: u64,
    /// Tokens' KV that was read to compute the next token, each that of the undisaggregated run.
    pub cells_read: u64,
    /// Blocks that were not free at the end.
    pub blocks_left: u64,
}

impl Report {
    /// Adds another one's counts.
    pub fn add(&mut self, other: &Report) {
        self.schedules += other.schedules;
        for (outcome, count) in &other.outcomes {
            *self.outcomes.entry(*outcome).or_default() += count;
        }
        self.fences += other.fences;
        self.leases_expired += other.leases_expired;
        self.messages += other.messages;
        self.cells_copied += other.cells_copied;
        self.cells_read += other.cells_read;
        self.blocks_left += other.blocks_left;
    }
}

/// Runs the schedule of a seed to its end.
///
/// # Errors
///
/// What was violated.
pub fn schedule(seed: u64) -> Result<Report, String> {
    let run = || {
        let mut world = World::new(plan::Plan::drawn(seed), seed, false);
        while world.step() {}
        world
    };
    let world = catch_unwind(AssertUnwindSafe(run)).map_err(|panic| message_of(&*panic))?;
    if let Some(violation) = world.violation {
        return Err(violation);
    }
    let mut outcomes = BTreeMap::new();
    for outcome in world.outcomes() {
        *outcomes.entry(outcome).or_default() += 1;
    }
    Ok(Report {
        schedules: 1,
        outcomes,
        fences: world.fences,
        leases_expired: world.leases_expired,
        messages: world.messages,
        cells_copied: world.cells_copied,
        cells_read: world.cells_read,
        blocks_left: world.blocks_left,
    })
}

/// The events of a seed's schedule, up to what was violated, a line each.
#[must_use]
pub fn trace(seed: u64) -> Vec<String> {
    let mut world = World::new(plan::Plan::drawn(seed), seed, true);
    loop {
        match catch_unwind(AssertUnwindSafe(|| world.step())) {
            Ok(true) => {}
            Ok(false) => return world.trace.unwrap_or_default(),
            Err(panic) => {
                let mut lines = world.trace.take().unwrap_or_default();
                lines.push(format!("PANIC: {}", message_of(&*panic)));
                return lines;
            }
        }
    }
}

fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a message").to_string()
}
