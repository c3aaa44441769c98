//! The clients of a program at work: the kernel decides what they do, the wall clock when.
//!
//! ```text
//!   arrival law ──▶ ┌──────────────────────┐ ── a request's run ─▶ client ─▶ HTTP ─▶ server
//!   clock ────────▶ │ facts ─▶ kernel ─▶   │ ◀── first token: its first run ends ─────┤
//!                   │          actions     │ ◀── answer: its second run ends ─────────┘
//!                   └──────────────────────┘ ── think, tool: work on the clock
//! ```
//!
//! # Invariants
//!
//! - Nobody waits for anybody but its own answers: arrivals come when their law says.
//! - A fact has the time at which it was due, or its bytes were read, and time never goes back.
//! - A request is counted once: answered, failed, or cut off by the end of the run.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use serq_engine::service::clock::Clock;
use serq_ir::Arrive;
use serq_kernel::{Action, Arrival, Fault, Kernel, Move, Stream, TraceTurn, World};
use serq_sim::clients::Clients;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::Played;
use super::client::{Answer, Client, Trouble};
use super::measured::Measured;
use super::prompt::{Conversation, Prompt, Writer};

/// How often whoever watches is asked whether to go on.
const LOOK: f64 = 0.1;
/// Where a failed client is replaced at once, its place stays empty for that long, so that a dead
/// server isn't asked as fast as it can refuse.
const PAUSE: f64 = 1.0;

/// What is due at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Due {
    Arrival,
    /// A lease of the client's own.
    Lease(u32),
    Work(u32),
    Next(Option<u32>),
    /// A failed client leaves.
    Leaves(u64),
}

/// What a request's task tells.
enum Told {
    FirstToken { request: u64, at: Instant },
    Over { request: u64, at: Instant, came: Result<Answer, Trouble> },
}

/// The kernel's world.
struct Outside<'a> {
    clients: Clients<'a>,
    now: f64,
    actions: Vec<Action>,
}

impl World for Outside<'_> {
    const MODELS_TIME: bool = true;

    fn uniform(&mut self, stream: Stream) -> f64 {
        self.clients.uniform(stream)
    }

    fn trace_turn(&mut self, trace_session: u32, turn: u64) -> Option<TraceTurn> {
        self.clients.trace_turn(trace_session, turn)
    }

    fn trace_blocks(&mut self, trace_session: u32, turn: u64, ids: &mut Vec<u64>) -> f64 {
        self.clients.trace_blocks(trace_session, turn, ids)
    }

    fn replacement(&mut self) -> Option<Arrival> {
        self.clients.replacement()
    }

    // No engine is here: `Played` has seen to that.
    fn steps_ended(&mut self, _: u32) -> u64 {
        0
    }

    fn step_end(&mut self, _: u32, _: u64) -> f64 {
        self.now
    }

    fn act(&mut self, action: Action) {
        self.actions.push(action);
    }
}

/// A request under way.
struct Asking {
    session: u64,
    /// Its run until the first token, while that is awaited, then the one until the end.
    job: u32,
    answering: bool,
    prompt: Prompt,
    prompt_tokens: usize,
    answer_tokens: usize,
    asked: f64,
    first: Option<f64>,
    /// What was heard before the kernel came to it.
    over: Option<(f64, Answer)>,
    task: AbortHandle,
}

pub(super) struct Player<'a> {
    played: &'a Played,
    kernel: Kernel<'a>,
    world: Outside<'a>,
    client: Arc<Client>,
    runtime: Handle,
    writer: Writer,
    model: String,
    clock: Clock<Due>,
    next: HashMap<Option<u32>, u32>,
    began: Instant,
    time: f64,
    tell: Sender<Told>,
    told: Receiver<Told>,
    requests: u64,
    asking: BTreeMap<u64, Asking>,
    /// By session: the request it waits for.
    of: HashMap<u64, u64>,
    said: HashMap<u64, (Conversation, u64)>,
    /// Who leaves because a request failed.
    failed: Vec<u64>,
    /// The stage a session has just come to.
    coming: Option<(u64, u32)>,
    arrived: u64,
    pub(super) measured: Measured,
}

impl<'a> Player<'a> {
    pub(super) fn new(
        played: &'a Played,
        clients: Clients<'a>,
        client: Arc<Client>,
        runtime: Handle,
        writer: Writer,
        model: String,
    ) -> Self {
        let (tell, told) = mpsc::channel();
        Self {
            played,
            kernel: Kernel::new(&played.code, false),
            world: Outside { clients, now: 0.0, actions: Vec::new() },
            client,
            runtime,
            writer,
            model,
            clock: Clock::default(),
            next: HashMap::new(),
            began: Instant::now(),
            time: 0.0,
            tell,
            told,
            requests: 0,
            asking: BTreeMap::new(),
            of: HashMap::new(),
            said: HashMap::new(),
            failed: Vec::new(),
            coming: None,
            arrived: 0,
            measured: Measured::new(&played.program),
        }
    }

    /// Plays until the horizon, until nobody is left, or until `watch` says so. Answers when.
    ///
    /// # Errors
    ///
    /// A fault of the program.
    pub(super) fn play(&mut self, watch: &mut dyn FnMut(f64, u64) -> bool) -> Result<f64, Box<Fault>> {
        let horizon = self.played.program.run.horizon.0;
        self.began = Instant::now();
        match &self.played.program.workload.arrive {
            Arrive::None => {}
            Arrive::Closed(count) | Arrive::Batch(count) => {
                let all: Vec<Arrival> = (0..*count).map(|_| self.world.clients.arrival()).collect();
                self.tell(0.0, |kernel, world, now| kernel.tell_arrived(world, now, all))?;
            }
            _ => self.schedule_arrival(0.0)?,
        }
        self.settle()?;
        loop {
            let due = self.clock.first();
            if self.asking.is_empty() && due.is_none() {
                return Ok(self.time);
            }
            let now = self.elapsed();
            if now >= horizon {
                return Ok(horizon);
            }
            let until = due.unwrap_or(f64::INFINITY).min(now + LOOK).min(horizon);
            let wait = Duration::try_from_secs_f64(until - now).unwrap_or_default();
            match self.told.recv_timeout(wait) {
                Ok(told) => {
                    self.hear(told)?;
                    while let Ok(told) = self.told.try_recv() {
                        self.hear(told)?;
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            self.wake(horizon)?;
            self.settle()?;
            if !watch(self.elapsed(), self.requests) {
                return Ok(self.elapsed().min(horizon));
            }
        }
    }

    /// Nobody is asked any more. Answers how many requests were under way.
    pub(super) fn stop(&mut self) -> u64 {
        self.asking.values().for_each(|asking| asking.task.abort());
        std::mem::take(&mut self.asking).len() as u64
    }

    /// Sessions that came.
    pub(super) fn arrivals(&self) -> u64 {
        self.kernel.arrivals()
    }

    /// Requests that went out.
    pub(super) fn requests(&self) -> u64 {
        self.requests
    }

    fn elapsed(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    fn since_began(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.began).as_secs_f64()
    }

    fn tell(
        &mut self,
        time: f64,
        fact: impl FnOnce(&mut Kernel<'a>, &mut Outside<'a>, f64) -> Result<(), Box<Fault>>,
    ) -> Result<(), Box<Fault>> {
        self.time = self.time.max(time);
        self.world.now = self.time;
        let told = fact(&mut self.kernel, &mut self.world, self.time);
        self.act();
        self.measured.live(self.time, self.kernel.live());
        told
    }

    fn settle(&mut self) -> Result<(), Box<Fault>> {
        self.tell(self.time, |kernel, world, _| kernel.start_due(world, true))?;
        self.kernel.drain_touched_pools(&mut self.world, |_, _, _| ());
        self.kernel.drain_touched_stages(&mut self.world, |_, _, _| ());
        Ok(())
    }

    /// Tells what is due, each at its own time.
    fn wake(&mut self, horizon: f64) -> Result<(), Box<Fault>> {
        let now = self.elapsed().min(horizon);
        while let Some((time, what)) = self.clock.take(now) {
            match what {
                Due::Arrival => {
                    self.measured.late(self.elapsed() - time);
                    self.arrived += 1;
                    if self.played.program.run.arrivals.is_none_or(|most| self.arrived < most) {
                        self.schedule_arrival(time)?;
                    }
                    let arrival = self.world.clients.arrival();
                    self.tell(time, |kernel, world, now| kernel.tell_arrived(world, now, [arrival]))?;
                }
                Due::Lease(timer) => self.tell(time, |kernel, world, now| kernel.tell_woken(world, now, timer))?,
                Due::Work(job) => self.tell(time, |kernel, world, now| kernel.tell_work_ended(world, now, job))?,
                Due::Next(stage) => {
                    let job = self.next[&stage];
                    self.tell(time, |kernel, world, now| kernel.tell_work_ended(world, now, job))?;
                }
                Due::Leaves(session) => {
                    self.tell(time, |kernel, world, now| kernel.tell_cancelled(world, now, session))?;
                }
            }
            // What shares a rate is due anew.
            self.settle()?;
        }
        Ok(())
    }

    fn schedule_arrival(&mut self, last: f64) -> Result<(), Box<Fault>> {
        let time = match self.world.clients.next(self.arrived, last) {
            Some(time) => time.map_err(|message| Box::new(Fault { message, at: None, session: None, time: last }))?,
            None => last + self.kernel.gap(&mut self.world)?,
        };
        self.clock.set(Due::Arrival, time);
        Ok(())
    }

    fn act(&mut self) {
        let mut actions = std::mem::take(&mut self.world.actions);
        for action in actions.drain(..) {
            match action {
                Action::Session { session, what: Move::Serving { stage, .. }, .. } => {
                    self.coming = Some((session, stage));
                }
                Action::StartWork { job, work } => match self.coming.take() {
                    Some((session, stage)) if stage == self.played.first_token => self.ask(session, job, work),
                    Some((session, stage)) if stage == self.played.answer => self.await_answer(session, job),
                    _ => self.clock.set(Due::Work(job), self.time + work),
                },
                Action::StopWork { job } => self.clock.stop(Due::Work(job)),
                Action::NextFinish { stage, next } => match next {
                    Some((job, time)) => {
                        self.next.insert(stage, job);
                        self.clock.set(Due::Next(stage), time);
                    }
                    None => self.clock.stop(Due::Next(stage)),
                },
                Action::WakeAt { timer, time } => self.clock.set(Due::Lease(timer), time),
                Action::StopWake { timer } => self.clock.stop(Due::Lease(timer)),
                Action::Observed { observe, value, .. } if self.played.known[observe as usize] => {
                    self.measured.observe(self.time, observe, value);
                }
                Action::Turned => self.measured.turned(self.time),
                Action::Ended { session } => self.end(session),
                _ => {}
            }
        }
        self.world.actions = actions;
    }

    /// A request goes out.
    fn ask(&mut self, session: u64, job: u32, tokens: f64) {
        let request = self.requests;
        self.requests += 1;
        let drawn = self.kernel.attribute_of(session, self.played.length).unwrap_or(1.0);
        let (prompt_tokens, answer_tokens) = (whole(tokens), whole(drawn));
        let begins = self.kernel.begins(session).unwrap_or_default();
        let (conversation, nth) = self.said.entry(session).or_default();
        let prompt = self.writer.prompt(prompt_tokens, &begins, conversation, session, *nth);
        *nth += 1;
        let body = body(&self.model, &prompt, answer_tokens);
        let (client, tell) = (Arc::clone(&self.client), self.tell.clone());
        let task = self.runtime.spawn(async move {
            // Who plays no more need not know.
            let first = |at| drop(tell.send(Told::FirstToken { request, at }));
            let came = client.ask(body, first).await;
            drop(tell.send(Told::Over { request, at: Instant::now(), came }));
        });
        self.of.insert(session, request);
        let asking = Asking {
            session,
            job,
            answering: false,
            prompt,
            prompt_tokens,
            answer_tokens,
            asked: self.time,
            first: None,
            over: None,
            task: task.abort_handle(),
        };
        self.asking.insert(request, asking);
    }

    /// The first token was there, and the session has come to the rest.
    fn await_answer(&mut self, session: u64, job: u32) {
        if let Some(asking) = self.of.get(&session).and_then(|request| self.asking.get_mut(request)) {
            (asking.job, asking.answering) = (job, true);
        }
    }

    fn hear(&mut self, told: Told) -> Result<(), Box<Fault>> {
        match told {
            Told::FirstToken { request, at } => {
                let at = self.since_began(at);
                let Some(asking) = self.asking.get_mut(&request) else { return Ok(()) };
                asking.first = Some(at);
                let job = asking.job;
                self.tell(at, |kernel, world, now| kernel.tell_work_ended(world, now, job))
            }
            Told::Over { request, came: Ok(answer), at } => {
                // It ended when its last token came.
                let at = self.since_began(answer.came.last().map_or(at, |(at, _)| *at));
                let Some(asking) = self.asking.get_mut(&request) else { return Ok(()) };
                asking.over = Some((at, answer));
                match asking.answering {
                    true => self.answered(request),
                    false => Ok(()),
                }
            }
            Told::Over { request, at, came: Err(trouble) } => {
                let at = self.since_began(at);
                let Some(asking) = self.asking.remove(&request) else { return Ok(()) };
                self.of.remove(&asking.session);
                self.failed.push(asking.session);
                self.measured.failed(trouble);
                let pause = if matches!(self.played.program.workload.arrive, Arrive::Closed(_)) { PAUSE } else { 0.0 };
                self.clock.set(Due::Leaves(asking.session), self.time.max(at) + pause);
                Ok(())
            }
        }
    }

    /// A request is over, and its session goes on.
    fn answered(&mut self, request: u64) -> Result<(), Box<Fault>> {
        let asking = self.asking.remove(&request).expect("it was under way");
        self.of.remove(&asking.session);
        let (at, answer) = asking.over.expect("it is over");
        let first = asking.first.unwrap_or(at);
        let came: Vec<(f64, u64)> = answer.came.iter().map(|&(at, count)| (self.since_began(at), count)).collect();
        let tokens = self.measured.answered(super::measured::Request {
            asked: asking.asked,
            first,
            at,
            came: &came,
            answer: &answer,
            wanted: (asking.prompt_tokens, asking.answer_tokens),
        });
        for (name, &value) in &answer.observed {
            let observe = self.played.program.observes.iter().position(|observe| observe == name);
            if let Some(observe) = observe.filter(|&observe| !self.played.known[observe]) {
                self.measured.observe(at, observe as u32, value);
            }
        }
        if let Some((said, nth)) = self.said.get_mut(&asking.session) {
            let whose = (asking.session, *nth);
            *said = self.writer.answered(asking.prompt, answer.ids, &answer.text, tokens, whose);
        }
        self.tell(at, |kernel, world, now| kernel.tell_work_ended(world, now, asking.job))
    }

    /// A session is over.
    fn end(&mut self, session: u64) {
        self.said.remove(&session);
        if let Some(asking) = self.of.remove(&session).and_then(|request| self.asking.remove(&request)) {
            asking.task.abort();
        }
        match self.failed.iter().position(|&failed| failed == session) {
            Some(at) => drop(self.failed.swap_remove(at)),
            None => self.measured.session_ended(self.time),
        }
    }
}

/// A length that is drawn, in tokens as an engine computes it: those that are begun. (No server takes ten
/// million; it is to say so.)
fn whole(tokens: f64) -> usize {
    tokens.ceil().clamp(1.0, 1e7) as usize
}

fn body(model: &str, prompt: &Prompt, tokens: usize) -> Vec<u8> {
    let prompt = match prompt {
        Prompt::Ids(ids) => serde_json::json!(ids),
        Prompt::Text(text) => serde_json::json!(text),
    };
    let body = serde_json::json!({
        "model": model,
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": true,
        "stream": true,
        "stream_options": { "include_usage": true },
        "return_token_ids": true,
    });
    body.to_string().into_bytes()
}
