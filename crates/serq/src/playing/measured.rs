//! What clients measure.

use std::collections::BTreeMap;

use serde::Serialize;
use serq_ir::Program;
use serq_sim::report::Observe;
use serq_sim::samples::Samples;

use super::client::{Answer, Trouble};

/// What every client measures, in the order in which it is told.
const OWN: [&str; 7] = ["ttft", "tpot", "itl", "response", "prompt_tokens", "output_tokens", "cached_tokens"];

/// Everything measured so far.
pub(super) struct Measured {
    warmup: f64,
    observes: Vec<Samples>,
    own: [Samples; OWN.len()],
    /// What the server says of requests, by name.
    server: BTreeMap<String, Samples>,
    late: Samples,
    pub(super) answered: u64,
    pub(super) failures: BTreeMap<String, Failures>,
    /// Answers and prompts of other lengths than asked for.
    pub(super) lengths_off: (u64, u64),
    /// Answers whose tokens were not told by their ids.
    pub(super) ids_untold: u64,
    pub(super) turns: u64,
    pub(super) ended: u64,
    /// Sessions over time: since when so many, and the area before.
    live: (f64, u64, f64),
}

/// Requests that failed in one way.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Failures {
    pub(crate) count: u64,
    /// What was told of the first.
    pub(crate) first: String,
}

/// A request that was answered.
pub(super) struct Request<'a> {
    pub(super) asked: f64,
    pub(super) first: f64,
    /// When its last token came.
    pub(super) at: f64,
    pub(super) came: &'a [(f64, u64)],
    pub(super) answer: &'a Answer,
    /// Tokens of the prompt, and of the answer.
    pub(super) wanted: (usize, usize),
}

impl Measured {
    pub(super) fn new(program: &Program) -> Self {
        Self {
            warmup: program.run.warmup.0,
            observes: program.observes.iter().map(|_| Samples::new(false)).collect(),
            own: std::array::from_fn(|_| Samples::new(false)),
            server: BTreeMap::new(),
            late: Samples::new(false),
            answered: 0,
            failures: BTreeMap::new(),
            lengths_off: (0, 0),
            ids_untold: 0,
            turns: 0,
            ended: 0,
            live: (0.0, 0, 0.0),
        }
    }

    fn counts(&self, time: f64) -> bool {
        time >= self.warmup
    }

    pub(super) fn observe(&mut self, time: f64, observe: u32, value: f64) {
        if self.counts(time) && !value.is_nan() {
            self.observes[observe as usize].push(value);
        }
    }

    pub(super) fn turned(&mut self, time: f64) {
        self.turns += u64::from(self.counts(time));
    }

    pub(super) fn session_ended(&mut self, time: f64) {
        self.ended += u64::from(self.counts(time));
    }

    /// A client came so much later than its law says.
    pub(super) fn late(&mut self, by: f64) {
        self.late.push(by.max(0.0));
    }

    pub(super) fn failed(&mut self, trouble: Trouble) {
        let first = || Failures { count: 0, first: trouble.message.clone() };
        self.failures.entry(trouble.kind.clone()).or_insert_with(first).count += 1;
    }

    pub(super) fn live(&mut self, now: f64, live: u64) {
        let (since, before, area) = self.live;
        if live != before {
            let from = since.max(self.warmup);
            self.live = (now, live, area + before as f64 * (now - from).max(0.0));
        }
    }

    pub(super) fn mean_live(&self, end: f64) -> f64 {
        let (since, live, area) = self.live;
        let from = since.max(self.warmup);
        (area + live as f64 * (end - from).max(0.0)) / (end - self.warmup)
    }

    /// Measures a request. Answers how many tokens its prompt and its answer had.
    pub(super) fn answered(&mut self, request: Request<'_>) -> (usize, usize) {
        let Request { asked, first, at, came, answer, wanted } = request;
        self.answered += 1;
        let counted = came.last().map_or(0, |(_, count)| *count) as usize;
        let usage = answer.usage;
        let output = usage.map_or(counted, |usage| usage.completion_tokens as usize);
        let prompt = usage.map_or(wanted.0, |usage| usage.prompt_tokens as usize);
        self.lengths_off.0 += u64::from(prompt != wanted.0);
        self.lengths_off.1 += u64::from(output != wanted.1);
        self.ids_untold += u64::from(answer.ids.len() != output);
        if self.counts(first) {
            self.own[0].push(first - asked);
        }
        for pair in came.windows(2) {
            // Those read together share the time.
            let count = pair[1].1 - pair[0].1;
            let gap = (pair[1].0 - pair[0].0) / count as f64;
            if self.counts(pair[1].0) {
                (0..count).for_each(|_| self.own[2].push(gap));
            }
        }
        if self.counts(at) {
            if output > 1 {
                self.own[1].push((at - first) / (output - 1) as f64);
            }
            self.own[3].push(at - asked);
            self.own[4].push(prompt as f64);
            self.own[5].push(output as f64);
            if let Some(cached) = usage.and_then(|usage| usage.prompt_tokens_details?.cached_tokens) {
                self.own[6].push(cached as f64);
            }
            for (name, &value) in &answer.observed {
                self.server.entry(name.clone()).or_insert_with(|| Samples::new(false)).push(value);
            }
        }
        (prompt, output)
    }

    pub(super) fn observes(&self, program: &Program) -> Vec<Observe> {
        program.observes.iter().zip(&self.observes).map(|(name, samples)| Observe::of(name, samples)).collect()
    }

    /// What every client measures.
    pub(super) fn own(&self) -> Vec<Observe> {
        OWN.iter().zip(&self.own).map(|(name, samples)| Observe::of(name, samples)).collect()
    }

    pub(super) fn server(&self) -> Vec<Observe> {
        self.server.iter().map(|(name, samples)| Observe::of(name, samples)).collect()
    }

    pub(super) fn lateness(&self) -> Observe {
        Observe::of("late", &self.late)
    }
}
