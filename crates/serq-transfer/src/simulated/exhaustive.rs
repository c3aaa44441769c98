//! One prefill instance, one decode instance, two requests, three blocks a side, and every way to place a few faults.
//!
//! The world runs without a fault, and before each of its events every fault that could happen there is tried: the
//! message is lost, late or comes twice, the copy fails or stops, its completion is not told, a process dies, is
//! replaced or stops, a leg is aborted, a request is preempted. Each of these worlds is run to its end, and before each
//! of its events the next fault is tried. Worlds that are equal and have as many faults left are run once.

use std::collections::HashSet;

use super::plan::{Clock, Fault, HostPlan, Plan, Request};
use super::world::{NextIs, Outcome, Trouble, World};
use crate::protocol::reader::Mode;
use crate::protocol::{Config, Otherwise, Policy};

/// What was enumerated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Enumerated {
    /// Schedules that were run to their end.
    pub schedules: u64,
    /// Schedules that became equal to one that was run.
    pub pruned: u64,
    /// Requests that got the right text from KV that was handed over, in all schedules.
    pub loaded: u64,
    /// Events that happened.
    pub events: u64,
}

/// How the two legs of both requests are dispatched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Who moves the bytes.
    pub mode: Mode,
    /// Both legs at once.
    pub concurrent: bool,
    /// Tries of a load after the first.
    pub retries: u32,
    /// What is done when a load failed.
    pub otherwise: Otherwise,
}

impl Setting {
    /// All of them, by number.
    #[must_use]
    pub fn all() -> Vec<Setting> {
        let mut all = Vec::new();
        for mode in [Mode::Pull, Mode::Push] {
            for concurrent in [false, true] {
                for (retries, otherwise) in [(0, Otherwise::Error), (1, Otherwise::Recompute)] {
                    all.push(Setting { mode, concurrent, retries, otherwise });
                }
            }
        }
        all
    }

    fn plan(self) -> Plan {
        let config = Config {
            lease_us: 12_000,
            extension_us: 8_000,
            heartbeat_us: 2_000,
            resend_us: 2_000,
            connect_us: 8_000,
            wait_us: 20_000,
            transfer_us: 6_000,
            confirm_us: 6_000,
            quarantine_us: 12_000,
            tombstone_us: 30_000,
            part_runs: 1,
            window: 1,
            transfers_max: 4,
            tombstones_max: 4,
            peers_max: 2,
        };
        let clock = Clock { offset: 5_000, rate: 1024 };
        let host = HostPlan { blocks: 3, block_tokens: 2, clock, config };
        let request = |arrives| Request {
            arrives,
            prefill: 0,
            decode: 1,
            mode: self.mode,
            concurrent: self.concurrent.then_some((0, 0)),
            policy: Policy { retries: self.retries, otherwise: self.otherwise },
            // Four tokens are loaded into two blocks: two parts, and the fifth is computed.
            prompt: 5,
            output: 1,
            hit: 0,
            fails_at: None,
            rejected: false,
        };
        Plan {
            hosts: vec![host.clone(), HostPlan { clock: Clock { offset: 70_000, rate: 1024 }, ..host }],
            prefills: 1,
            requests: vec![request(0), request(150)],
            faults: Vec::new(),
            discovered: false,
            delay_us: 100,
            jitter_us: 0,
            dropped: 0,
            repeated: 0,
            late: 0,
            cell_us: 100,
            parts_failed: 0,
            parts_stuck: 0,
            completions_lost: 0,
            memory_goes_on: true,
            calm_from: 0,
            // Two loads after another, with one retry, a stop of 25 ms and a process that is down.
            answered_by: 2 * (8_000 + 2 * 26_000 + 6_000 + 12_000 + 12_000) + 2 * 25_000,
            end: 1_000_000,
        }
    }
}

/// Every placement of up to `faults` faults.
///
/// # Errors
///
/// What was violated, and the trace of events up to there.
pub fn enumerate(setting: Setting, faults: u32) -> Result<Enumerated, String> {
    let mut search = Search { seen: HashSet::new(), enumerated: Enumerated::default(), setting, placed: Vec::new() };
    search.explore(World::new(setting.plan(), 0, false), faults, 0)?;
    Ok(search.enumerated)
}

struct Search {
    seen: HashSet<(u64, u32)>,
    enumerated: Enumerated,
    setting: Setting,
    /// Before which event of the schedule which fault.
    placed: Vec<(u64, Trouble)>,
}

impl Search {
    fn explore(&mut self, mut world: World, faults: u32, mut event: u64) -> Result<(), String> {
        loop {
            if faults > 0 {
                for trouble in troubles(&world) {
                    let mut other = world.clone();
                    other.inject(trouble.clone());
                    self.placed.push((event, trouble));
                    if self.seen.insert((other.fingerprint(), faults - 1)) {
                        self.explore(other, faults - 1, event)?;
                    } else {
                        self.enumerated.pruned += 1;
                    }
                    self.placed.pop();
                }
            }
            if !world.step() {
                break;
            }
            event += 1;
            self.enumerated.events += 1;
        }
        self.enumerated.schedules += 1;
        self.enumerated.loaded += world.outcomes().filter(|outcome| *outcome == Outcome::Loaded).count() as u64;
        match world.violation {
            None => Ok(()),
            Some(what) => Err(format!("{what}\n{:?}, {:?}\n{}", self.setting, self.placed, self.replay())),
        }
    }

    /// The same schedule once more, traced.
    fn replay(&self) -> String {
        let mut world = World::new(self.setting.plan(), 0, true);
        let mut event = 0;
        let mut placed = self.placed.iter().peekable();
        loop {
            while let Some((_, trouble)) = placed.next_if(|(before, _)| *before == event) {
                world.inject(trouble.clone());
            }
            if !world.step() {
                return world.trace.unwrap_or_default().join("\n");
            }
            event += 1;
        }
    }
}

/// What could happen before the next event.
fn troubles(world: &World) -> Vec<Trouble> {
    let mut troubles = match world.next_is() {
        Some(NextIs::Message) => vec![
            Trouble::Lost,
            Trouble::Late(3_000),
            Trouble::Late(25_000),
            Trouble::Twice(1_500),
            Trouble::Twice(25_000),
        ],
        Some(NextIs::Copy) => vec![Trouble::Lost, Trouble::Fails, Trouble::Late(3_000), Trouble::Late(25_000)],
        Some(NextIs::Completion) => vec![Trouble::Lost, Trouble::Late(3_000), Trouble::Twice(1_500)],
        None => Vec::new(),
    };
    if world.is_open() {
        for host in 0..2 {
            for down_us in [Some(0), Some(2_500), None] {
                troubles.push(Trouble::Strikes(Fault::Crash { host, down_us }));
            }
            for us in [3_000, 25_000] {
                troubles.push(Trouble::Strikes(Fault::Stall { host, us }));
            }
        }
        troubles.push(Trouble::Strikes(Fault::Partition { prefill: 0, decode: 1, us: 3_000 }));
        troubles.push(Trouble::Strikes(Fault::Partition { prefill: 0, decode: 1, us: 25_000 }));
        for request in 0..2 {
            for (prefill, decode) in [(true, false), (false, true), (true, true)] {
                troubles.push(Trouble::Strikes(Fault::Abort { request, prefill, decode }));
            }
            troubles.push(Trouble::Strikes(Fault::Redispatch { request, decode: 1, tells: false }));
            troubles.push(Trouble::Strikes(Fault::Preempt { request }));
        }
    }
    troubles
}
