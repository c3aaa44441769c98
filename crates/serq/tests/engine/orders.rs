//! Every order of what can happen, up to a depth, in pools that hold little more than one request.

use std::collections::BTreeSet;

use serq_engine::decisions::{Decision, Fact, Told};
use serq_engine::served::Served;

use crate::{PAIR, served};

/// Requests that may come: prompt and answer.
const REQUESTS: [(f64, f64); 3] = [(5.0, 3.0), (4.0, 2.0), (6.0, 2.0)];

/// What can happen next.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    Arrive,
    /// A step ends; its first run's token may be the last.
    StepEnds {
        stage: u32,
        stops: Option<u64>,
    },
    /// A copy, or other work, is done.
    Done {
        job: u32,
    },
    /// A client goes away.
    Abort {
        session: u64,
    },
}

/// What is under way after some events.
struct State<'s> {
    told: Told<'s, false>,
    time: f64,
    came: usize,
    steps: Vec<(u32, Vec<u64>)>,
    jobs: Vec<u32>,
    live: BTreeSet<u64>,
    preemptions: usize,
}

impl<'s> State<'s> {
    fn after(served: &'s Served, events: &[Event]) -> Self {
        let mut state = Self {
            told: Told::new(served),
            time: 0.0,
            came: 0,
            steps: Vec::new(),
            jobs: Vec::new(),
            live: BTreeSet::new(),
            preemptions: 0,
        };
        events.iter().for_each(|&event| state.happen(event));
        state
    }

    fn tell(&mut self, fact: &Fact) {
        for decision in self.told.tell(fact).unwrap() {
            match decision {
                Decision::Step { stage, runs } => {
                    self.steps.push((stage, runs.iter().map(|run| run.session).collect()));
                }
                Decision::Flow { job, .. } | Decision::Work { job } => self.jobs.push(job),
                Decision::Ended { session } => drop(self.live.remove(&session)),
                Decision::Preempted { .. } => self.preemptions += 1,
                _ => {}
            }
        }
    }

    fn happen(&mut self, event: Event) {
        self.time += 1.0;
        let time = self.time;
        match event {
            Event::Arrive => {
                let (prompt_tokens, max_tokens) = REQUESTS[self.came];
                self.live.insert(self.came as u64);
                self.came += 1;
                // All begin with the same block.
                let names = vec![1, 100 + self.came as u64];
                self.tell(&Fact::Arrived { time, prompt_tokens, max_tokens, block: 2.0, names });
            }
            Event::StepEnds { stage, stops } => {
                self.steps.retain(|(running, _)| *running != stage);
                if let Some(session) = stops {
                    self.tell(&Fact::Stopped { session, answer: 1.0 });
                }
                self.tell(&Fact::StepEnded { time, stage });
            }
            Event::Done { job } => {
                self.jobs.retain(|&waiting| waiting != job);
                self.tell(&Fact::WorkEnded { time, job });
            }
            Event::Abort { session } => {
                self.live.remove(&session);
                self.tell(&Fact::Cancelled { time, session });
            }
        }
        self.tell(&Fact::Due);
    }

    fn possible(&self, aborts: bool) -> Vec<Event> {
        let mut events = Vec::new();
        if self.came < REQUESTS.len() {
            events.push(Event::Arrive);
        }
        for (stage, sessions) in &self.steps {
            events.push(Event::StepEnds { stage: *stage, stops: None });
            events.extend(sessions.first().map(|&first| Event::StepEnds { stage: *stage, stops: Some(first) }));
        }
        events.extend(self.jobs.iter().map(|&job| Event::Done { job }));
        if aborts {
            events.extend(self.live.iter().map(|&session| Event::Abort { session }));
        }
        events
    }
}

/// Whatever happened: what is allocated belongs to somebody, and once all came to its end nothing is
/// allocated, and nobody waits for ever.
#[test]
fn no_order_of_events_leaks_a_block() {
    const DEPTH: usize = 8;
    let served = served(
        PAIR,
        &[
            ("bsP", "2".into()),
            ("bsD", "2".into()),
            ("blocksP", "4".into()),
            ("blocksD", "4".into()),
            ("thr", "3".into()),
            ("B", "4".into()),
            ("seats", "2".into()),
        ],
    );
    let (mut orders, mut preemptions) = (0, 0);
    let mut stack: Vec<Vec<Event>> = vec![Vec::new()];
    while let Some(events) = stack.pop() {
        let mut state = State::after(&served, &events);
        assert!(state.told.units().iter().all(|&(_, left)| left == 0.0), "{events:?}");
        if events.len() < DEPTH {
            for event in state.possible(true) {
                let mut longer = events.clone();
                longer.push(event);
                stack.push(longer);
            }
            continue;
        }
        // To the end, nobody going away.
        for _ in 0..200 {
            let Some(&next) = state.possible(false).last() else { break };
            // A step's own end, not a stop.
            let next = match next {
                Event::StepEnds { stage, .. } => Event::StepEnds { stage, stops: None },
                other => other,
            };
            state.happen(next);
        }
        assert_eq!((state.told.live(), state.came), (0, REQUESTS.len()), "somebody waits for ever after {events:?}");
        assert!(state.told.units().iter().all(|&units| units == (0.0, 0.0)), "{events:?}: {:?}", state.told.units());
        orders += 1;
        preemptions += state.preemptions;
    }
    assert!(orders > 8_000 && preemptions > 400, "{orders} orders, {preemptions} preemptions");
}
