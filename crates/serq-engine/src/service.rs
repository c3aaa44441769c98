//! One kernel, told what really happens, and instances that do what it answers.
//!
//! ```text
//!   requests ──▶ ┌──────────────────────┐ ── StartStep: whose tokens, which blocks ──▶ instances
//!   clients  ──▶ │ facts ─▶ kernel ─▶   │ ── StartFlow: which blocks to which ────────▶ bytes
//!   go away      │          actions     │ ◀── tokens, at the end of a step ────────────
//!                └──────────────────────┘ ── WakeAt ─▶ the wall clock
//! ```
//!
//! Everything that decides is the kernel's. Here stands what it cannot know: the tokens, how far
//! each share of a request has been computed, when the model says stop, and the wall clock.
//!
//! # Invariants
//!
//! - One thread tells the kernel; an action is done before the next fact is told.
//! - A step computes tokens that are known and not yet computed in its request's blocks. Where the
//!   program asks for more than there are, the last is computed again.
//! - A request whose step runs is cancelled when the step is over: nobody gets blocks that are
//!   being written.
//! - A request is finished exactly once, and its tokens' order is the order of its events.
//! - When nobody is left, all blocks are free or cached: `left` is 0.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use serq_kernel::{Action, Arrival, Draws, Fault, Held, Kernel, PoolCounts, Stream, TraceTurn, World};

use crate::contents::Contents;
use crate::decisions::{Decision, Decisions, Fact};
use crate::request::{Event, Figures, Finish, Request, Stop, Stops, Voice};
use crate::sampler::{Sampling, Token};
use crate::served::Served;

/// A piece of a request that an instance computes.
#[derive(Clone, Debug)]
pub struct Run {
    /// The tokens to compute, one after another.
    pub tokens: Vec<u32>,
    /// The place of the first of them in its text.
    pub start: usize,
    /// Where the text's keys and values are: token t in `blocks[t / block]`.
    pub blocks: Vec<u32>,
    /// The token after the last of them is wanted.
    pub next: Option<Next>,
}

/// How the token after a run is chosen.
#[derive(Clone, Debug)]
pub struct Next {
    /// As the request says.
    pub sampling: Arc<Sampling>,
    /// Its place in the answer, from 0.
    pub nth: usize,
    /// The prompt and the answer so far, where the choice depends on them.
    pub before: Option<(Vec<u32>, Vec<u32>)>,
}

/// Tokens in blocks of a pool.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// Member of a pool.
    pub pool: u32,
    /// The text's blocks.
    pub blocks: &'a [u32],
}

/// Who computes.
pub trait Instances: Send {
    /// Begins a step of an instance, which has none running. Its end is told to `ended`: of each
    /// run the next token, where it is wanted.
    fn start(&mut self, stage: u32, runs: Vec<Run>, ended: Ended);

    /// Copies keys and values of the tokens at these places, from one pool's blocks to another's.
    /// Answers how many bytes.
    fn copy(&mut self, from: Span<'_>, to: Span<'_>, tokens: std::ops::Range<usize>) -> u64;
}

/// To whom the end of a step is told.
pub struct Ended {
    told: Sender<Told>,
    stage: u32,
}

impl Ended {
    /// The step is over.
    pub fn tell(self, tokens: Vec<Option<Token>>) {
        // Who is not there any more need not know.
        let _ = self.told.send(Told::StepEnded { stage: self.stage, tokens });
    }
}

/// A request's number, as its submitter calls it.
type Ticket = u64;

/// Where a request's events go.
pub type Sink = Box<dyn FnMut(Event) + Send>;

enum Told {
    Submitted { ticket: Ticket, request: Request, sink: Sink },
    GoneAway { ticket: Ticket },
    StepEnded { stage: u32, tokens: Vec<Option<Token>> },
    Look { answer: Sender<Look> },
    Closed,
}

/// What an instance's memory and queue look like.
#[derive(Clone, Debug)]
pub struct PoolLook {
    /// As in the program: `P.kv[0]`.
    pub name: String,
    /// Units it has.
    pub cap: f64,
    /// Units allocated.
    pub used: f64,
    /// Units cached.
    pub cached: f64,
    /// Sessions waiting in its queue.
    pub waiting: u32,
    /// Holds and leases.
    pub holders: u32,
    /// Units owned by nobody alive.
    pub left: f64,
    /// Whole-run counters.
    pub counts: PoolCounts,
}

/// What a service looks like at an instant.
#[derive(Clone, Debug)]
pub struct Look {
    /// Requests that are not over, each choice by itself.
    pub live: u64,
    /// In declaration order.
    pub pools: Vec<PoolLook>,
    /// Of each instance: its name, the runs of the running step, and steps so far.
    pub instances: Vec<(String, usize, u64)>,
}

/// Instances that serve a program.
pub struct Service {
    told: Sender<Told>,
    thread: Option<thread::JoinHandle<()>>,
    tickets: std::sync::atomic::AtomicU64,
}

impl Service {
    /// Starts to serve. `decisions`, where given, gets every fact and action.
    pub fn start(served: Served, instances: Box<dyn Instances>, decisions: Option<Decisions>) -> Self {
        let (told, facts) = mpsc::channel();
        let back = told.clone();
        let thread = thread::Builder::new()
            .name("serq-kernel".into())
            .spawn(move || drive(&served, instances, decisions, &back, &facts))
            .expect("a thread can be started");
        Self { told, thread: Some(thread), tickets: Default::default() }
    }

    /// A request comes. Dropping the ticket takes it back.
    pub fn submit(&self, request: Request, sink: Sink) -> Submitted {
        let ticket = self.tickets.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let _ = self.told.send(Told::Submitted { ticket, request, sink });
        Submitted { ticket, told: self.told.clone() }
    }

    /// What it looks like now; `None` if it is gone.
    pub fn look(&self) -> Option<Look> {
        let (answer, asked) = mpsc::channel();
        self.told.send(Told::Look { answer }).ok()?;
        asked.recv().ok()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.told.send(Told::Closed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A request that was submitted. Dropped, it is cancelled, if it is not over.
pub struct Submitted {
    ticket: Ticket,
    told: Sender<Told>,
}

impl Drop for Submitted {
    fn drop(&mut self) {
        let _ = self.told.send(Told::GoneAway { ticket: self.ticket });
    }
}

/// What the kernel needs of its world. Time is measured, so nothing here says how long anything lasts.
pub(crate) struct Outside {
    draws: Draws,
    /// Who arrives now, by the number of its "trace session".
    arriving: HashMap<u32, Arriving>,
    arrived: u32,
    ending: Option<u32>,
    now: f64,
    pub(crate) actions: Vec<Action>,
}

/// What a request brings.
#[derive(Clone, Debug)]
struct Arriving {
    prompt_tokens: f64,
    max_tokens: f64,
    block: f64,
    names: Vec<u64>,
}

impl Outside {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            draws: Draws::new(seed),
            arriving: HashMap::new(),
            arrived: 0,
            ending: None,
            now: 0.0,
            actions: Vec::new(),
        }
    }
}

impl World for Outside {
    const MODELS_TIME: bool = false;

    fn uniform(&mut self, stream: Stream) -> f64 {
        self.draws.uniform(stream)
    }

    fn trace_turn(&mut self, trace_session: u32, _: u64) -> Option<TraceTurn> {
        let arriving = self.arriving.get(&trace_session)?;
        Some(TraceTurn { new: arriving.prompt_tokens, out: arriving.max_tokens, ..TraceTurn::default() })
    }

    fn trace_blocks(&mut self, trace_session: u32, _: u64, ids: &mut Vec<u64>) -> f64 {
        let Some(arriving) = self.arriving.remove(&trace_session) else { return 0.0 };
        ids.extend_from_slice(&arriving.names);
        arriving.block
    }

    fn replacement(&mut self) -> Option<Arrival> {
        None
    }

    fn steps_ended(&mut self, stage: u32) -> u64 {
        u64::from(self.ending == Some(stage))
    }

    fn step_end(&mut self, _: u32, _: u64) -> f64 {
        self.now
    }

    fn act(&mut self, action: Action) {
        self.actions.push(action);
    }
}

/// Tells a kernel a fact.
pub(crate) fn tell(kernel: &mut Kernel<'_>, world: &mut Outside, fact: &Fact) -> Result<(), Box<Fault>> {
    match fact {
        Fact::Arrived { time, prompt_tokens, max_tokens, block, names } => {
            let trace_session = world.arrived;
            world.arrived = world.arrived.wrapping_add(1);
            let arriving = Arriving {
                prompt_tokens: *prompt_tokens,
                max_tokens: *max_tokens,
                block: *block,
                names: names.clone(),
            };
            world.arriving.insert(trace_session, arriving);
            kernel.tell_arrived(world, *time, [Arrival { trace_session: Some(trace_session) }])?;
            world.arriving.remove(&trace_session);
            Ok(())
        }
        Fact::StepEnded { time, stage } => {
            (world.ending, world.now) = (Some(*stage), *time);
            let told = kernel.tell_step_ended(world, *time, *stage);
            world.ending = None;
            told
        }
        Fact::WorkEnded { time, job } => kernel.tell_work_ended(world, *time, *job),
        Fact::Woken { time, timer } => kernel.tell_woken(world, *time, *timer),
        Fact::Cancelled { time, session } => kernel.tell_cancelled(world, *time, *session),
        Fact::Stopped { session, answer } => {
            kernel.tell_stopped(*session, *answer);
            Ok(())
        }
        Fact::Content { session, block, names } => {
            kernel.tell_content(*session, *block, names);
            Ok(())
        }
        Fact::Due => kernel.start_due(world, true),
    }
}

/// A request that is not over.
struct Live {
    ticket: Ticket,
    choice: usize,
    prompt: usize,
    /// The prompt's and the answer's.
    tokens: Vec<u32>,
    max_tokens: usize,
    sampling: Arc<Sampling>,
    voice: Box<dyn Voice>,
    stops: Stops,
    /// The name of the last block that has one, and how many have.
    name: u64,
    named: usize,
    /// How far each of its shares is computed: (pool, admission, tokens).
    computed: Vec<(u32, u64, usize)>,
    /// A step computes tokens of it.
    running: Option<u32>,
    finish: Option<Finish>,
    gone_away: bool,
    started: bool,
    figures: Figures,
}

impl Live {
    fn answer(&self) -> usize {
        self.tokens.len() - self.prompt
    }

    /// Tokens of a share that are computed or were copied there, those that were found among them.
    fn computed(&mut self, held: &Held<'_>) -> &mut usize {
        let (pool, admission) = (held.pool, held.admission);
        let at = self.computed.iter().position(|&(of, when, _)| (of, when) == (pool, admission));
        let at = at.unwrap_or_else(|| {
            // An earlier hold of the same pool is over.
            self.computed.retain(|&(of, _, _)| of != pool);
            self.computed.push((pool, admission, (held.found as usize).min(self.tokens.len())));
            self.computed.len() - 1
        });
        &mut self.computed[at].2
    }
}

/// One that came with others, and waits for the first of them to have the prompt computed.
struct Follower {
    live: Live,
    names: Vec<u64>,
    first: u64,
}

/// What a step computes of one request.
struct Computing {
    session: u64,
    pool: u32,
    admission: u64,
    upto: usize,
}

struct Driver<'c> {
    served: &'c Served,
    kernel: Kernel<'c>,
    world: Outside,
    contents: Contents,
    instances: Box<dyn Instances>,
    told: &'c Sender<Told>,
    decisions: Option<Decisions>,
    began: Instant,
    live: BTreeMap<u64, Live>,
    followers: Vec<Follower>,
    /// Whose followers may come.
    led: Vec<u64>,
    /// Where each ticket's events go, and how many of its choices are not over.
    tickets: HashMap<Ticket, (Sink, usize)>,
    /// By stage: what the running step computes.
    steps: BTreeMap<u32, Vec<Computing>>,
    /// Work that takes no time here.
    done: VecDeque<u32>,
    timers: BTreeSet<(u64, u32)>,
    timer_times: HashMap<u32, u64>,
    arrivals: u64,
}

fn drive(
    served: &Served,
    instances: Box<dyn Instances>,
    decisions: Option<Decisions>,
    told: &Sender<Told>,
    facts: &Receiver<Told>,
) {
    let blocks: usize = served.memories.iter().flatten().map(|memory| memory.blocks * memory.block).sum();
    let block = served.named_block();
    let mut driver = Driver {
        served,
        kernel: Kernel::new(&served.code, false),
        world: Outside::new(served.program.run.seed),
        contents: Contents::new(block, 4 * (blocks / block + 1)),
        instances,
        told,
        decisions,
        began: Instant::now(),
        live: BTreeMap::new(),
        followers: Vec::new(),
        led: Vec::new(),
        tickets: HashMap::new(),
        steps: BTreeMap::new(),
        done: VecDeque::new(),
        timers: BTreeSet::new(),
        timer_times: HashMap::new(),
        arrivals: 0,
    };
    while driver.wait(facts) {}
    driver.close(facts);
}

impl Driver<'_> {
    fn now(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Waits for something to happen, and does all that follows. Answers whether to go on.
    fn wait(&mut self, facts: &Receiver<Told>) -> bool {
        let first = match self.timers.first() {
            None => facts.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(&(time, _)) => {
                let wait = Duration::try_from_secs_f64(f64::from_bits(time) - self.now()).unwrap_or_default();
                facts.recv_timeout(wait.min(Duration::from_secs(3600)))
            }
        };
        let mut next = match first {
            Ok(told) => Some(told),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return false,
        };
        while let Some(told) = next {
            if matches!(told, Told::Closed) {
                return false;
            }
            self.hear(told);
            next = facts.try_recv().ok();
        }
        self.wake();
        self.settle();
        true
    }

    fn hear(&mut self, told: Told) {
        match told {
            Told::Submitted { ticket, request, sink } => self.submit(ticket, request, sink),
            Told::GoneAway { ticket } => self.go_away(ticket),
            Told::StepEnded { stage, tokens } => self.end_step(stage, tokens),
            Told::Look { answer } => {
                let _ = answer.send(self.look());
            }
            Told::Closed => {}
        }
    }

    /// Tells the kernel, and does what it answers.
    fn tell(&mut self, fact: Fact) {
        let told = tell(&mut self.kernel, &mut self.world, &fact);
        if let Some(decisions) = &mut self.decisions
            && (fact != Fact::Due || !self.world.actions.is_empty())
        {
            decisions.fact(&fact);
            for action in &self.world.actions {
                Decision::of(&self.kernel, action).into_iter().for_each(|decision| decisions.decision(decision));
            }
        }
        self.act();
        if let Err(fault) = told {
            self.fail(&fault);
        }
    }

    /// Work that takes no time is over at once; then engines are planned, until nothing follows.
    fn settle(&mut self) {
        loop {
            self.bring_followers();
            while let Some(job) = self.done.pop_front() {
                let time = self.now();
                self.tell(Fact::WorkEnded { time, job });
            }
            self.tell(Fact::Due);
            self.kernel.drain_touched_pools(&mut self.world, |_, _, _| ());
            self.kernel.drain_touched_stages(&mut self.world, |_, _, _| ());
            if self.done.is_empty() && self.led.is_empty() {
                break;
            }
        }
        self.end_stuck();
    }

    /// Where nothing runs and nothing is awaited, nothing will ever happen to those who are there.
    fn end_stuck(&mut self) {
        if !self.steps.is_empty() || !self.timers.is_empty() || self.kernel.live() == 0 {
            return;
        }
        let stuck: Vec<u64> = self.live.keys().copied().collect();
        for session in stuck {
            let Some(live) = self.live.get_mut(&session) else { continue };
            let message = "no instance can serve it: it waits for room that nothing will free".to_owned();
            live.finish.get_or_insert(Finish::Refused(message));
            let time = self.now();
            self.tell(Fact::Cancelled { time, session });
        }
    }

    fn wake(&mut self) {
        let now = self.now();
        while let Some(&(time, timer)) = self.timers.first()
            && f64::from_bits(time) <= now
        {
            self.timers.pop_first();
            self.timer_times.remove(&timer);
            self.tell(Fact::Woken { time: now, timer });
        }
    }

    fn submit(&mut self, ticket: Ticket, request: Request, sink: Sink) {
        let Request { prompt, max_tokens, choices, salt, conversation } = request;
        let salt = if self.served.memories.iter().flatten().all(|memory| memory.shared) {
            self.contents.salt(&format!("s{salt}"))
        } else {
            match conversation {
                Some(conversation) => self.contents.salt(&format!("c{salt}\0{conversation}")),
                None => self.contents.fresh(),
            }
        };
        let mut names = Vec::new();
        self.contents.name(salt, &prompt, &mut names);
        self.tickets.insert(ticket, (sink, choices.len()));
        let mut first = None;
        for (choice, wanted) in choices.into_iter().enumerate() {
            let live = Live {
                ticket,
                choice,
                prompt: prompt.len(),
                tokens: prompt.clone(),
                max_tokens,
                sampling: Arc::new(wanted.sampling),
                voice: wanted.voice,
                stops: Stops::new(wanted.stops),
                name: names.last().copied().unwrap_or(salt),
                named: names.len(),
                computed: Vec::new(),
                running: None,
                finish: None,
                gone_away: false,
                started: false,
                figures: Figures::default(),
            };
            match first {
                None => first = Some(self.arrive(live, names.clone())),
                Some(first) => self.followers.push(Follower { live, names: names.clone(), first }),
            }
        }
    }

    /// Its session begins. Answers the session's number.
    fn arrive(&mut self, live: Live, names: Vec<u64>) -> u64 {
        let session = self.arrivals;
        self.arrivals += 1;
        let fact = Fact::Arrived {
            time: self.now(),
            prompt_tokens: live.prompt as f64,
            max_tokens: live.max_tokens as f64,
            block: self.contents.block() as f64,
            names,
        };
        self.live.insert(session, live);
        self.tell(fact);
        session
    }

    /// The prompt of the first of them is computed, or it is over: the others come, and find it.
    fn bring_followers(&mut self) {
        for first in std::mem::take(&mut self.led) {
            while let Some(at) = self.followers.iter().position(|follower| follower.first == first) {
                let Follower { live, names, .. } = self.followers.remove(at);
                self.arrive(live, names);
            }
        }
    }

    fn go_away(&mut self, ticket: Ticket) {
        if self.tickets.remove(&ticket).is_none() {
            return;
        }
        self.followers.retain(|follower| follower.live.ticket != ticket);
        let sessions: Vec<u64> = self.live.iter().filter(|(_, l)| l.ticket == ticket).map(|(&s, _)| s).collect();
        for session in sessions {
            let Some(live) = self.live.get_mut(&session) else { continue };
            live.gone_away = true;
            if live.running.is_none() {
                let time = self.now();
                self.tell(Fact::Cancelled { time, session });
            }
        }
    }

    fn act(&mut self) {
        let mut actions = std::mem::take(&mut self.world.actions);
        for action in actions.drain(..) {
            match action {
                Action::StartStep { stage, .. } => self.start_step(stage),
                Action::StartWork { job, .. } => self.done.push_back(job),
                Action::StopWork { job } => self.done.retain(|&waiting| waiting != job),
                Action::StartFlow { job } => {
                    self.start_flow(job);
                    self.done.push_back(job);
                }
                Action::WakeAt { timer, time } => {
                    self.timers.insert((time.to_bits(), timer));
                    self.timer_times.insert(timer, time.to_bits());
                }
                Action::StopWake { timer } => {
                    if let Some(time) = self.timer_times.remove(&timer) {
                        self.timers.remove(&(time, timer));
                    }
                }
                Action::Observed { observe, session, value, .. } => {
                    if let Some(live) = self.live.get_mut(&session) {
                        let name = self.served.program.observes[observe as usize].clone();
                        live.figures.observed.insert(name, value);
                    }
                }
                Action::Ended { session } => self.end(session),
                _ => {}
            }
        }
        debug_assert!(self.world.actions.is_empty(), "nothing is told while actions are done");
        self.world.actions = actions;
    }

    fn start_step(&mut self, stage: u32) {
        let mut computing = Vec::new();
        let mut runs = Vec::new();
        let mut over = Vec::new();
        for run in self.kernel.runs(stage) {
            let Some(live) = self.live.get_mut(&run.session) else { continue };
            let Held { pool, admission, position, blocks, .. } = run.at;
            let memory = self.served.memories[pool as usize].expect("an instance's memory has blocks");
            let computed = *live.computed(&run.at);
            let known = live.tokens.len();
            if position > computed as f64 && computed < known {
                let message = format!(
                    "the program has {position} tokens loaded, and {computed} were found, computed or brought by a read"
                );
                over.push((run.session, message));
                continue;
            }
            if !live.started {
                live.started = true;
                live.figures.tokens_cached = computed.min(live.prompt);
            }
            // Where nothing is left to compute, what comes after the last token is asked again.
            let start = computed.min(known - 1);
            let upto = (start + run.tokens.ceil() as usize).min(known);
            if blocks.len() * memory.block < upto {
                let held = blocks.len() * memory.block;
                over.push((run.session, format!(
                    "the program holds room for {held} tokens and computes the {upto}th; more units or `growing` is meant"
                )));
                continue;
            }
            let wants_next = upto == known && !run.leased && live.answer() < live.max_tokens;
            let next = wants_next.then(|| Next {
                sampling: Arc::clone(&live.sampling),
                nth: live.answer(),
                before: live
                    .sampling
                    .looks_back()
                    .then(|| (live.tokens[..live.prompt].to_vec(), live.tokens[live.prompt..].to_vec())),
            });
            live.running = Some(stage);
            computing.push(Computing { session: run.session, pool, admission, upto });
            runs.push(Run {
                tokens: live.tokens[start..upto].to_vec(),
                start,
                blocks: blocks[..upto.div_ceil(memory.block)].to_vec(),
                next,
            });
        }
        for (session, message) in over {
            if let Some(live) = self.live.get_mut(&session) {
                live.finish.get_or_insert(Finish::Failed(message));
                live.gone_away = true;
                live.running = Some(stage);
            }
            computing.push(Computing { session, pool: 0, admission: 0, upto: 0 });
        }
        self.steps.insert(stage, computing);
        let ended = Ended { told: self.told.clone(), stage };
        if runs.is_empty() {
            ended.tell(Vec::new());
        } else {
            self.instances.start(stage, runs, ended);
        }
    }

    fn end_step(&mut self, stage: u32, tokens: Vec<Option<Token>>) {
        let Some(computed) = self.steps.remove(&stage) else { return };
        let there: BTreeSet<u64> = self.kernel.runs(stage).map(|run| run.session).collect();
        let mut tokens = tokens.into_iter();
        for Computing { session, pool, admission, upto } in &computed {
            let token = if *upto > 0 { tokens.next().flatten() } else { None };
            let Some(live) = self.live.get_mut(session) else { continue };
            live.running = None;
            if !there.contains(session) || *upto == 0 {
                continue;
            }
            if let Some(at) = live.computed.iter().position(|(of, when, _)| (of, when) == (pool, admission)) {
                live.computed[at].2 = live.computed[at].2.max(*upto);
            }
            if let Some(token) = token
                && !live.gone_away
            {
                if live.answer() == 0 {
                    self.led.push(*session);
                }
                self.take_token(*session, token);
            }
        }
        let time = self.now();
        self.tell(Fact::StepEnded { time, stage });
        for Computing { session, .. } in computed {
            if self.live.get(&session).is_some_and(|live| live.gone_away && live.running.is_none()) {
                let time = self.now();
                self.tell(Fact::Cancelled { time, session });
            }
        }
    }

    /// The next token of an answer.
    fn take_token(&mut self, session: u64, token: Token) {
        let live = self.live.get_mut(&session).expect("it is live");
        live.tokens.push(token.id);
        let nth = live.answer();
        live.figures.tokens = nth;
        let ends = live.sampling.ends.contains(&token.id);
        let (text, stop) = if ends { (String::new(), None) } else { live.stops.next(&live.voice.say(token.id)) };
        if let Some(stop) = stop {
            live.finish = Some(Finish::Stop(Some(Stop::Text(stop))));
        } else if ends {
            live.finish = Some(Finish::Stop(Some(Stop::Token(token.id))));
        } else if nth >= live.max_tokens {
            live.finish = Some(Finish::Length);
        }
        let (finished, choice, ticket) = (live.finish.is_some(), live.choice, live.ticket);
        if let Some((sink, _)) = self.tickets.get_mut(&ticket) {
            sink(Event::Token { choice, token: token.id, text, logprobs: token.logprobs });
        }
        self.name_tokens(session);
        if finished {
            self.tell(Fact::Stopped { session, answer: nth as f64 });
        }
    }

    /// Blocks that became whole get their names.
    fn name_tokens(&mut self, session: u64) {
        let block = self.contents.block();
        let live = self.live.get_mut(&session).expect("it is live");
        if live.tokens.len() / block == live.named {
            return;
        }
        let mut names = Vec::new();
        self.contents.name(live.name, &live.tokens[live.named * block..], &mut names);
        live.named += names.len();
        live.name = *names.last().expect("one became whole");
        self.tell(Fact::Content { session, block: block as f64, names });
    }

    fn start_flow(&mut self, job: u32) {
        let Some(flow) = self.kernel.flow(job) else { return };
        let Some(live) = self.live.get_mut(&flow.session) else { return };
        let from_computed = *live.computed(&flow.from);
        let start = *live.computed(&flow.to);
        let block_of = |pool: u32| self.served.memories[pool as usize].expect("the blocks of an instance").block;
        let room = |held: &Held<'_>| held.blocks.len() * block_of(held.pool);
        let upto = (start + flow.tokens.ceil() as usize).min(from_computed).min(room(&flow.from)).min(room(&flow.to));
        if start < upto {
            let from = Span { pool: flow.from.pool, blocks: flow.from.blocks };
            let to = Span { pool: flow.to.pool, blocks: flow.to.blocks };
            live.figures.kv_bytes_moved += self.instances.copy(from, to, start..upto);
            live.figures.tokens_moved += upto - start;
            *live.computed(&flow.to) = upto;
        }
    }

    /// A session is over: so is its request.
    fn end(&mut self, session: u64) {
        let Some(live) = self.live.remove(&session) else { return };
        self.led.push(session);
        self.finish(live);
    }

    fn finish(&mut self, mut live: Live) {
        let answer = live.answer();
        let finish = live.finish.take().unwrap_or_else(|| match answer {
            0 => Finish::Refused(
                "the program ended the request without an answer: no instance can hold it, or its route says so".into(),
            ),
            _ => Finish::Length,
        });
        let mut text = live.stops.rest();
        if !matches!(finish, Finish::Stop(Some(Stop::Text(_)))) {
            text += &live.voice.rest();
        } else {
            text.clear();
        }
        let over = match self.tickets.get_mut(&live.ticket) {
            Some((sink, left)) => {
                sink(Event::Finished { choice: live.choice, finish, text, figures: live.figures });
                *left -= 1;
                *left == 0
            }
            None => false,
        };
        if over {
            self.tickets.remove(&live.ticket);
        }
    }

    /// The program stopped: everybody is told why, and the kernel begins anew.
    fn fail(&mut self, fault: &Fault) {
        let at = fault.at.map_or_else(String::new, |at| format!(" (line {})", at.line));
        let message = format!("the program stopped: {}{at}", fault.message);
        let live = std::mem::take(&mut self.live).into_values();
        for mut live in live.chain(self.followers.drain(..).map(|follower| follower.live)).collect::<Vec<_>>() {
            live.finish = Some(Finish::Failed(message.clone()));
            self.finish(live);
        }
        self.led.clear();
        self.kernel = Kernel::new(&self.served.code, false);
        self.world = Outside::new(self.served.program.run.seed);
        (self.arrivals, self.began) = (0, Instant::now());
        self.done.clear();
        self.timers.clear();
        self.timer_times.clear();
        // What still runs writes to blocks that are free now; its end is waited for before the next
        // step of the same instance, and nobody reads them before that.
        self.steps.clear();
    }

    fn look(&self) -> Look {
        let code = &self.served.code;
        let named = |name: &str, member: u32, family: u32, sizes: &dyn Fn(u32) -> Option<u32>| match sizes(family) {
            Some(_) => format!("{name}[{member}]"),
            None => name.to_owned(),
        };
        let left = self.kernel.left();
        let pools = code.pool_members().enumerate().map(|(pool, (name, family, member))| {
            let state = self.kernel.pool_state(pool as u32);
            let declared = &self.served.program.pools[family as usize];
            PoolLook {
                name: named(name, member, family, &|_| declared.size),
                cap: declared.cap.0,
                used: state.used,
                cached: state.cached,
                waiting: state.queue,
                holders: state.holders,
                left: left[pool],
                counts: self.kernel.pool_counts(pool as u32),
            }
        });
        let instances = self.served.instances().into_iter().map(|instance| {
            let running = self.steps.get(&instance.stage).map_or(0, Vec::len);
            (instance.name, running, self.kernel.iterations(instance.stage))
        });
        Look {
            live: self.live.len() as u64 + self.followers.len() as u64,
            pools: pools.collect(),
            instances: instances.collect(),
        }
    }

    /// Nobody is served any more; steps that run come to their end.
    fn close(&mut self, facts: &Receiver<Told>) {
        let live = std::mem::take(&mut self.live).into_values();
        for mut live in live.chain(self.followers.drain(..).map(|follower| follower.live)).collect::<Vec<_>>() {
            live.finish.get_or_insert(Finish::Failed("the server is going down".into()));
            self.finish(live);
        }
        if let Some(decisions) = &mut self.decisions {
            // Who started the service has the file, and looks whether it is whole.
            let _ = decisions.flush();
        }
        while !self.steps.is_empty() {
            match facts.recv() {
                Ok(Told::StepEnded { stage, .. }) => drop(self.steps.remove(&stage)),
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }
}
