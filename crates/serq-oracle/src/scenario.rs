//! What a program says as a scenario: engines by its constants, requests by its lists.

use serde::{Deserialize, Serialize};
use serq_ir::{Arrive, Program, Stage, StageKind};

use crate::Refused;

/// As `tools/oracle/schedulers.py` reads it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scenario {
    /// The program's.
    pub name: String,
    /// `sync`, or `async`: a step is scheduled while the one before it runs.
    pub mode: String,
    /// `pull` or `push`.
    pub transfer: String,
    /// None: the decoders do everything.
    pub prefillers: Option<Side>,
    /// At least one.
    pub decoders: Side,
    /// Tokens a request may have, with its answer.
    pub max_model_len: u64,
    /// Steps a transfer takes, less one.
    pub read_steps: u64,
    /// Steps its notice takes, less one.
    pub notice_steps: u64,
    /// In the order of their numbers.
    pub requests: Vec<Asked>,
    /// The run ends there at the latest.
    pub steps_max: u64,
    /// The steps are wanted, not only the events.
    pub trace: bool,
}

/// Engines that are all alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// How many.
    pub count: u64,
    /// KV blocks of each.
    pub blocks: u64,
    /// Tokens in a block.
    pub block: u64,
    /// `max_num_seqs`.
    pub seats: u64,
    /// `max_num_batched_tokens`.
    pub budget: u64,
    /// `long_prefill_token_threshold`; 0: none.
    pub chunk: u64,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// `r0`, `r1` …
    pub name: String,
    /// Step.
    pub arrives: u64,
    /// Segments: what they hold, and tokens.
    pub prompt: Vec<(String, u64)>,
    /// Tokens.
    pub answer: u64,
    /// None: the decoder does all.
    pub prefiller: Option<u64>,
    /// Which.
    pub decoder: u64,
    /// Step in which its client goes away.
    pub aborted: Option<u64>,
    /// Steps that its transfer takes more than others'.
    #[serde(default, skip_serializing_if = "is_none")]
    pub slower: u64,
}

fn is_none(steps: &u64) -> bool {
    *steps == 0
}

/// Reads a program's constants, and remembers what it lacks.
struct Reader<'p> {
    program: &'p Program,
    wrong: Vec<String>,
}

impl Reader<'_> {
    fn find(&self, name: &str) -> Option<f64> {
        self.program.constants.iter().find(|constant| constant.name == name).map(|constant| constant.value.0)
    }

    fn number(&mut self, name: &str) -> f64 {
        self.find(name).unwrap_or_else(|| {
            self.wrong.push(format!("`let {name}` is missing"));
            0.0
        })
    }

    fn whole(&mut self, name: &str) -> u64 {
        let value = self.number(name);
        self.as_whole(name, value)
    }

    fn as_whole(&mut self, name: &str, value: f64) -> u64 {
        if value >= 0.0 && value.fract() == 0.0 && value < 1e9 {
            return value as u64;
        }
        self.wrong.push(format!("`{name}` is {value}, not a whole number"));
        0
    }

    fn list(&mut self, name: &str) -> Vec<f64> {
        match self.program.lists.iter().find(|list| list.name == name) {
            Some(list) => list.values.iter().map(|value| value.0).collect(),
            None => {
                self.wrong.push(format!("the list `{name}` is missing"));
                Vec::new()
            }
        }
    }

    /// A list that may be missing. One that says nothing, once, is that of the program that is varied.
    fn list_or(&self, name: &str, none: f64, count: usize) -> Vec<f64> {
        match self.program.lists.iter().find(|list| list.name == name) {
            Some(list) if list.values.len() != 1 || list.values[0].0 != none => {
                list.values.iter().map(|value| value.0).collect()
            }
            _ => vec![none; count],
        }
    }

    /// A queue's engines and pools are there, one for each of `count`.
    fn check_queue(&mut self, letter: char, count: u64) {
        let members = |size: Option<u32>| u64::from(size.unwrap_or(1)) == count;
        let of_stage = |stage: &Stage| stage.name == letter.to_string() && matches!(stage.kind, StageKind::Step(_));
        if !self.program.stages.iter().any(|stage| of_stage(stage) && members(stage.size)) {
            self.wrong.push(format!("there are no `{letter}[N{letter}]` that `serve step`"));
        }
        for pool in ["reqs", "kv"].map(|pool| format!("{letter}.{pool}")) {
            if !self.program.pools.iter().any(|of| of.name == pool && members(of.size)) {
                self.wrong.push(format!("there is no pool `{pool}` of each"));
            }
        }
    }

    /// Who asks for it fits into an engine's blocks.
    fn check_fits(&mut self, request: usize, tokens: u64, side: &Side, letter: char) {
        if tokens.div_ceil(side.block.max(1)) > side.blocks {
            self.wrong.push(format!("r{request} does not fit into the blocks of a {letter}"));
        }
    }

    fn side(&mut self, letter: char) -> Side {
        let [blocks, block, seats, budget] =
            ["blocks", "bs", "max_seqs", "B"].map(|name| self.whole(&format!("{name}{letter}")));
        let chunk = self.number(&format!("chunk{letter}"));
        let chunk = if chunk == f64::INFINITY { 0 } else { self.as_whole(&format!("chunk{letter}"), chunk) };
        Side { count: self.whole(&format!("N{letter}")), blocks, block, seats, budget, chunk }
    }

    /// A number of a list that may be left out by `none`.
    fn optional(&mut self, name: &str, value: f64, none: f64) -> Option<u64> {
        (value != none).then(|| self.as_whole(name, value))
    }
}

impl Scenario {
    /// Whose clients go away when, as a run takes it.
    pub fn cancellations(&self) -> Vec<(f64, u64)> {
        let aborts = self.requests.iter().enumerate();
        aborts.filter_map(|(at, asked)| Some((asked.aborted? as f64, at as u64))).collect()
    }

    /// The program's.
    ///
    /// # Errors
    ///
    /// All that it lacks, in one sentence.
    pub fn of(program: &Program) -> Result<Self, Refused> {
        let mut read = Reader { program, wrong: Vec::new() };
        let split = read.find("NP").is_some();
        let prefillers = split.then(|| read.side('P'));
        let decoders = read.side('D');
        let lists = ["arrives", "prompts", "answers", "groups", "shared", "to_D"].map(|name| read.list(name));
        let to_p = if split { read.list("to_P") } else { vec![-1.0; lists[0].len()] };
        let count = lists[0].len();
        let [aborts, slower] =
            [("aborts", f64::INFINITY), ("slower", 0.0)].map(|(name, none)| read.list_or(name, none, count));
        if lists.iter().chain([&to_p, &aborts, &slower]).any(|list| list.len() != count) {
            read.wrong.push("its lists of requests are not equally long".into());
        }
        let mut requests = Vec::new();
        if read.wrong.is_empty() {
            let [arrives, prompts, answers, groups, shared, to_d] = &lists;
            for at in 0..count {
                let tokens = read.as_whole("prompts", prompts[at]);
                let shared = read.as_whole("shared", shared[at]);
                if shared > tokens {
                    read.wrong.push(format!("r{at} shares more than its prompt"));
                }
                // 0 and -0 are one group.
                let group = format!("g{}", groups[at] + 0.0);
                let segments = [(group, shared), (format!("r{at}"), tokens.saturating_sub(shared))];
                requests.push(Asked {
                    name: format!("r{at}"),
                    arrives: read.as_whole("arrives", arrives[at]),
                    prompt: segments.into_iter().filter(|(_, tokens)| *tokens > 0).collect(),
                    answer: read.as_whole("answers", answers[at]),
                    prefiller: read.optional("to_P", to_p[at], -1.0),
                    decoder: read.as_whole("to_D", to_d[at]),
                    aborted: read.optional("aborts", aborts[at], f64::INFINITY),
                    slower: read.as_whole("slower", slower[at]),
                });
                let request = &requests[at];
                let computed = (tokens + request.answer).saturating_sub(1);
                if let (Some(side), Some(_)) = (&prefillers, request.prefiller) {
                    read.check_fits(at, tokens, side, 'P');
                }
                read.check_fits(at, computed, &decoders, 'D');
            }
        }
        read.check_queue('D', decoders.count);
        if let Some(side) = &prefillers {
            read.check_queue('P', side.count);
        }
        if !matches!(program.workload.arrive, Arrive::Batch(sessions) if sessions as usize == count) {
            read.wrong.push("not every request has a session: `arrive batch(len(arrives))`".into());
        }
        let flag = |read: &Reader<'_>, name: &str| read.find(name).is_some_and(|value| value != 0.0);
        let scenario = Self {
            name: program.name.clone(),
            mode: if flag(&read, "pipelined") { "async" } else { "sync" }.into(),
            transfer: if flag(&read, "pushed") { "push" } else { "pull" }.into(),
            prefillers,
            decoders,
            max_model_len: read.whole("max_model_len"),
            read_steps: if split { read.whole("k") } else { 0 },
            notice_steps: if split { read.whole("m") } else { 0 },
            requests,
            steps_max: read.as_whole("horizon", program.run.horizon.0),
            trace: true,
        };
        if read.wrong.is_empty() {
            Ok(scenario)
        } else {
            Err(Refused(format!("{} is no scenario: {}", program.name, read.wrong.join("; "))))
        }
    }
}
