//! The kernel's side: the scenario simulated, one step after the other.

use std::collections::BTreeMap;

use serq_ir::{Mode, Program};
use serq_sim::record::{Move, PoolState, Recorder};
use serq_sim::ttft::Part;
use serq_sim::{Options, RunError, Steps, simulate_recorded};

use crate::scenario::Scenario;
use crate::{Request, Step, Story};

/// Writes down what a run does.
struct Clerk {
    /// By member of a pool: its engine, and whether it is the one of blocks; tokens in a block.
    pools: Vec<Option<(String, bool)>>,
    block: BTreeMap<String, f64>,
    cap: BTreeMap<String, f64>,
    /// By member of a stage.
    stages: Vec<Option<String>>,
    story: Story,
    /// By request: it prefills on a decoder, and its first token comes when that is over.
    prefills: Vec<bool>,
    cancelled: Vec<bool>,
    ended: Vec<Option<f64>>,
}

/// `P.kv` of member 1 is engine P1.
fn engine(name: &str, size: Option<u32>, member: u32) -> String {
    let letter = name.split('.').next().unwrap_or(name);
    format!("{letter}{}", if size.is_some() { member } else { 0 })
}

impl Clerk {
    fn new(program: &Program, scenario: &Scenario) -> Self {
        let is_engine = |name: &str| name == "P" || name == "D";
        let mut pools = Vec::new();
        let (mut block, mut cap) = (BTreeMap::new(), BTreeMap::new());
        for pool in &program.pools {
            let (queue, own) = pool.name.split_once('.').unwrap_or(("", &pool.name));
            for member in 0..pool.size.unwrap_or(1) {
                let engine = is_engine(queue).then(|| engine(&pool.name, pool.size, member));
                if let (Some(engine), "kv") = (&engine, own) {
                    block.insert(engine.clone(), pool.block.map_or(1.0, |block| block.0));
                    cap.insert(engine.clone(), pool.cap.0);
                }
                pools.push(engine.map(|engine| (engine, own == "kv")));
            }
        }
        let mut stages = Vec::new();
        for stage in &program.stages {
            for member in 0..stage.size.unwrap_or(1) {
                stages.push(is_engine(&stage.name).then(|| engine(&stage.name, stage.size, member)));
            }
        }
        let requests: Vec<Request> = scenario
            .requests
            .iter()
            .map(|request| Request { name: request.name.clone(), ..Request::default() })
            .collect();
        let (none, ended) = (vec![false; requests.len()], vec![None; requests.len()]);
        let story = Story { requests, ..Story::default() };
        Self { pools, block, cap, stages, story, prefills: none.clone(), cancelled: none, ended }
    }

    fn step(&mut self, now: f64, engine: &str) -> &mut Step {
        let before = self.free_before(now, engine);
        let step = self.story.steps.entry(now as u64).or_default().entry(engine.to_owned());
        &mut step.or_insert_with(|| (Step { free: before, ..Step::default() }, before)).0
    }

    /// Free blocks as they were last seen.
    fn free_before(&self, now: f64, engine: &str) -> u64 {
        let seen = self.story.steps.range(..now as u64).rev().find_map(|(_, engines)| engines.get(engine));
        seen.map_or_else(|| (self.cap[engine] / self.block[engine]) as u64, |(_, left)| *left)
    }

    /// The first time something befell a request; `over`: what ended with the step before.
    fn note(&mut self, session: u64, event: &'static str, now: f64, over: bool) {
        let step = (now as u64).saturating_sub(u64::from(over));
        self.story.requests[session as usize].events.entry(event).or_insert(step);
    }
}

impl Recorder for Clerk {
    fn session(&mut self, now: f64, session: u64, what: Move, _part: Option<Part>) {
        let leaves = matches!(what, Move::Queued { .. } | Move::Serving { .. } | Move::Ended | Move::Turned);
        if leaves && std::mem::take(&mut self.prefills[session as usize]) {
            self.note(session, "first token", now, true);
        }
        let at = |pool: u32| self.pools[pool as usize].clone();
        match what {
            Move::Queued { pool, holds } => match at(pool) {
                Some((engine, _)) if engine.starts_with('P') => self.note(session, "prefill arrive", now, false),
                Some(_) if holds == 0 => self.note(session, "decode arrive", now, false),
                Some(_) => self.note(session, "read done", now, true),
                None => {}
            },
            Move::Admitted { pool } => match at(pool) {
                Some((engine, _)) if engine.starts_with('P') => {}
                Some((_, true)) => self.note(session, "park", now, false),
                Some(_) => self.note(session, "promote", now, false),
                None => {}
            },
            Move::Leased { .. } => self.note(session, "prefill finish", now, true),
            Move::LeaseOver { .. } => self.note(session, "prefill free", now, true),
            Move::Preempted { pool } => {
                self.prefills[session as usize] = false;
                if let Some((engine, _)) = at(pool) {
                    let name = self.story.requests[session as usize].name.clone();
                    self.step(now, &engine).preempted.push(name);
                    if engine.starts_with('D') {
                        self.story.requests[session as usize].preempted.push(now as u64);
                    }
                }
            }
            Move::Serving { stage, mode, .. } => {
                let decoder = self.stages[stage as usize].as_ref().is_some_and(|engine| engine.starts_with('D'));
                if decoder && mode == Some(Mode::Prefill) {
                    self.prefills[session as usize] = true;
                }
            }
            Move::Prefilled { stage }
                if self.stages[stage as usize].as_ref().is_some_and(|engine| engine.starts_with('D')) =>
            {
                self.note(session, "first token", now, true);
            }
            Move::Cancelled => {
                self.cancelled[session as usize] = true;
                self.prefills[session as usize] = false;
            }
            Move::Ended => self.ended[session as usize] = Some(now),
            _ => {}
        }
    }

    fn wants_steps(&self) -> bool {
        true
    }

    fn steps_started(&mut self, now: f64, stage: u32, _cost: f64, jobs: &mut dyn Iterator<Item = (u64, f64)>) {
        let Some(engine) = self.stages[stage as usize].clone() else { return };
        for (session, tokens) in jobs {
            let name = self.story.requests[session as usize].name.clone();
            self.step(now, &engine).scheduled.insert(name, tokens as u64);
        }
    }

    fn pool(&mut self, now: f64, pool: u32, state: PoolState) {
        if let Some((engine, true)) = self.pools[pool as usize].clone() {
            let free = ((self.cap[&engine] - state.used) / self.block[&engine]).round() as u64;
            self.step(now, &engine).free = free;
            if let Some((_, left)) =
                self.story.steps.get_mut(&(now as u64)).and_then(|engines| engines.get_mut(&engine))
            {
                *left = free;
            }
        }
    }
}

/// What the kernel does with a program that is this scenario.
///
/// # Errors
///
/// What stops the run.
pub fn simulate(program: &Program, scenario: &Scenario) -> Result<Story, RunError> {
    let mut clerk = Clerk::new(program, scenario);
    let options = Options { steps: Steps::Singly, cancellations: scenario.cancellations(), ..Options::default() };
    simulate_recorded(program, None, &options, Some(&mut clerk), &mut |_, _| true)?;
    let Clerk { mut story, ended, cancelled, .. } = clerk;
    if story.steps.keys().next_back().is_some_and(|&last| last + 1 >= scenario.steps_max) {
        // What a step that ends there brings is the one's and not the other's.
        let message = format!("the scenario is not over at its horizon, {}", scenario.steps_max);
        let time = scenario.steps_max as f64;
        return Err(RunError { message, at: None, session: None, time, interrupted: false });
    }
    for (at, (request, asked)) in story.requests.iter_mut().zip(&scenario.requests).enumerate() {
        let steps_on = |engine: String| -> Vec<u64> {
            let served = |(_, engines): &(&u64, &BTreeMap<String, (Step, u64)>)| {
                engines.get(&engine).is_some_and(|(step, _)| step.scheduled.contains_key(&request.name))
            };
            story.steps.iter().filter(served).map(|(step, _)| *step).collect()
        };
        let decoded = steps_on(format!("D{}", asked.decoder));
        let prefilled = asked.prefiller.map(|member| steps_on(format!("P{member}"))).unwrap_or_default();
        request.events.extend(prefilled.first().map(|&first| ("prefill admit", first)));
        request.events.extend(decoded.first().map(|&first| ("admit", first)));
        if asked.prefiller.is_none() {
            // Admitted with its first tokens.
            request.events.remove("park");
        }
        if let (Some(_), false, Some(&last)) = (ended[at], cancelled[at], decoded.last()) {
            // Whoever ends is done: none is rejected, as each fits into an engine's blocks.
            request.events.insert("finish", last);
        }
        if let (Some(ended), true, true) = (ended[at], cancelled[at], request.events.contains_key("park")) {
            // It waited for its read, although its client was gone.
            request.events.entry("read done").or_insert((ended as u64).saturating_sub(1));
        }
    }
    Ok(story)
}
