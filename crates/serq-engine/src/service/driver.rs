//! Tells the kernel what happens, and does what it answers.

mod copies;
mod losses;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use copies::Read;
use losses::Going;
use serq_kernel::{Action, Fault, Held, Kernel, Move};

use super::clock::Clock;
use super::live::{Computing, Copying, Follower, Live};
use super::{Ended, InstanceLook, Instances, Look, Next, PoolLook, Presence, Put, Run, Sink, Ticket, Told};
use crate::contents::{BEGINNING, Contents};
use crate::decisions::{Decision, Decisions, Fact};
use crate::outside::{Outside, tell};
use crate::request::{Event, Figures, Finish, Request, Stop, Stops};
use crate::sampler::Token;
use crate::served::Served;

/// What is to be told at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Due {
    /// A lease's time is over.
    Lease(u32),
    /// A modelled step is.
    Step(u32),
    /// Modelled work is.
    Work(u32),
    /// The next job of a stage whose jobs share a rate, or the next read.
    Next(Option<u32>),
    /// An instance whose KV did not arrive is chosen again.
    Trusted(u32),
    /// Somebody has waited long enough for an instance.
    Patience,
}

struct Driver<'c, const MODELLED: bool> {
    served: &'c Served,
    kernel: Kernel<'c>,
    world: Outside<MODELLED>,
    contents: Contents,
    /// Who computes; nobody, where time is modelled.
    instances: Option<Box<dyn Instances>>,
    told: &'c Sender<Told>,
    facts: &'c Receiver<Told>,
    /// What was told while something else was waited for.
    heard: VecDeque<Told>,
    decisions: Option<Decisions>,
    began: Instant,
    /// Of the latest fact.
    time: f64,
    live: BTreeMap<u64, Live>,
    followers: Vec<Follower>,
    /// Whose followers may come.
    led: Vec<u64>,
    /// Where each ticket's events go, and how many of its choices are not over.
    tickets: HashMap<Ticket, (Sink, usize)>,
    /// What their clients are told once the next steps run: nobody waits for listeners.
    events: Vec<(Ticket, Event)>,
    /// By stage: what the running step computes.
    steps: BTreeMap<u32, Vec<Computing>>,
    /// By number: copies under way, and how many there have been.
    copying: BTreeMap<u64, Copying>,
    copies: u64,
    /// By session: its read that is under way, or waits for a copy that began before it.
    reads: BTreeMap<u64, Read>,
    /// Who was to read what is not there any more.
    late: Vec<u64>,
    /// Timers of leases that are read, whose time is over.
    overdue: Vec<u32>,
    /// By stage: instances that are gone, first those of which the kernel is to be told.
    going: BTreeMap<u32, Going>,
    gone: BTreeMap<u32, String>,
    /// Instances that take no new work: sessions from this one on are new.
    draining: BTreeMap<u32, u64>,
    /// Whose sessions are over and who come again: now, or when somebody is there, if that is by then.
    again: Vec<Live>,
    parked: Vec<(f64, Live)>,
    /// Work that takes no time here.
    done: VecDeque<u32>,
    clock: Clock<Due>,
    /// Whose job is next at a stage, or among the reads.
    next: HashMap<Option<u32>, u32>,
    arrivals: u64,
    /// Who lost blocks, of which pool, that nobody else has any of.
    preempted: Vec<(u64, u32)>,
    /// Who wants to know what it looks like, once all that was told is done.
    looking: Vec<Sender<Look>>,
}

/// More works that take no time than this, one after another, never end.
const WORKS_MOST: usize = 100_000;

pub(super) fn drive<const MODELLED: bool>(
    served: &Served,
    instances: Option<Box<dyn Instances>>,
    decisions: Option<Decisions>,
    told: &Sender<Told>,
    facts: &Receiver<Told>,
) {
    let blocks: usize = served.memories.iter().flatten().map(|memory| memory.blocks * memory.block).sum();
    let block = served.named_block();
    let mut driver: Driver<'_, MODELLED> = Driver {
        served,
        kernel: Kernel::new(&served.code, false),
        world: Outside::new(served.program.run.seed),
        contents: Contents::new(block, 4 * (blocks / block + 1)),
        instances,
        told,
        facts,
        heard: VecDeque::new(),
        decisions,
        began: Instant::now(),
        time: 0.0,
        live: BTreeMap::new(),
        followers: Vec::new(),
        led: Vec::new(),
        tickets: HashMap::new(),
        events: Vec::new(),
        steps: BTreeMap::new(),
        copying: BTreeMap::new(),
        copies: 0,
        reads: BTreeMap::new(),
        late: Vec::new(),
        overdue: Vec::new(),
        going: BTreeMap::new(),
        gone: BTreeMap::new(),
        draining: BTreeMap::new(),
        again: Vec::new(),
        parked: Vec::new(),
        done: VecDeque::new(),
        clock: Clock::default(),
        next: HashMap::new(),
        arrivals: 0,
        preempted: Vec::new(),
        looking: Vec::new(),
    };
    if let Some(instances) = &mut driver.instances {
        instances.watch(Presence { told: told.clone() });
    }
    while driver.wait() {}
    driver.close();
}

impl<const MODELLED: bool> Driver<'_, MODELLED> {
    /// The time of a fact that is told now. It never goes back.
    fn now(&mut self) -> f64 {
        self.time = self.time.max(self.began.elapsed().as_secs_f64());
        self.time
    }

    /// Waits for something to happen, and does all that follows. Answers whether to go on.
    fn wait(&mut self) -> bool {
        let facts = self.facts;
        let first = match self.clock.first() {
            _ if !self.heard.is_empty() => self.heard.pop_front().ok_or(RecvTimeoutError::Timeout),
            None => facts.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(time) => {
                let wait = Duration::try_from_secs_f64(time - self.began.elapsed().as_secs_f64()).unwrap_or_default();
                facts.recv_timeout(wait.min(Duration::from_secs(3600)))
            }
        };
        self.wake();
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
            next = self.heard.pop_front().or_else(|| facts.try_recv().ok());
        }
        self.settle();
        self.deliver();
        for answer in std::mem::take(&mut self.looking) {
            // Who is not there any more need not know.
            let _ = answer.send(self.look());
        }
        true
    }

    fn hear(&mut self, told: Told) {
        match told {
            Told::Submitted { ticket, request, sink } => self.submit(ticket, request, sink),
            Told::GoneAway { ticket } => self.go_away(ticket),
            Told::StepEnded { stage, tokens } => self.end_step(stage, tokens),
            Told::Copied { copy, moved } => self.end_copy(copy, moved),
            Told::Gone { stage, why } => self.go(stage, why),
            Told::Back { stage, times } => self.come_back(stage, times),
            // One that is gone and back took new work again.
            Told::Draining { stage } if self.going.contains_key(&stage) => {}
            Told::Draining { stage } => {
                let time = self.now();
                self.tell(Fact::Draining { time, stage });
                self.draining.insert(stage, self.arrivals);
            }
            Told::Look { answer } => self.looking.push(answer),
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
        let mut worked = 0;
        loop {
            self.bring_followers();
            while let Some(job) = self.done.pop_front() {
                let time = self.now();
                self.tell(Fact::WorkEnded { time, job });
                worked += 1;
                if worked == WORKS_MOST {
                    let message =
                        format!("{WORKS_MOST} works that take no time here followed one another: does a route loop?");
                    self.fail(&Fault { message, at: None, session: None, time });
                }
            }
            for session in std::mem::take(&mut self.late) {
                self.cancel(session);
            }
            self.refuse_stuck();
            self.drain_instances();
            self.lose_instances();
            for live in std::mem::take(&mut self.again) {
                self.arrive(live);
            }
            self.tell(Fact::Due);
            self.kernel.drain_touched_pools(&mut self.world, |_, _, _| ());
            self.kernel.drain_touched_stages(&mut self.world, |_, _, _| ());
            let again =
                !self.again.is_empty() || self.gone.keys().any(|&stage| !self.kernel.sessions_at(stage).is_empty());
            if self.done.is_empty() && self.led.is_empty() && self.late.is_empty() && !again && !self.end_stuck() {
                break;
            }
        }
    }

    /// Who was preempted where it had got to before, with nobody else there, will never get further.
    fn refuse_stuck(&mut self) {
        for (session, pool) in std::mem::take(&mut self.preempted) {
            if !self.kernel.is_stuck(session) {
                continue;
            }
            let (name, cap) = self.served.pool(pool);
            if let Some(live) = self.live.get_mut(&session) {
                let message =
                    format!("it was preempted twice at one place: {name}, of {cap} tokens, has no room for it");
                live.finish.get_or_insert(Finish::Refused(message));
                let time = self.now();
                self.tell(Fact::Cancelled { time, session });
            }
        }
    }

    /// Where nothing runs and nothing is awaited, nothing will ever happen to those who are there: the
    /// one who came first is refused, and makes room. Answers whether there was one.
    fn end_stuck(&mut self) -> bool {
        if !self.steps.is_empty() || !self.copying.is_empty() || self.clock.first().is_some() {
            return false;
        }
        let Some((&session, live)) = self.live.iter_mut().next() else { return false };
        let message = "no instance can serve it: it waits for room that nothing will free".to_owned();
        live.finish.get_or_insert(Finish::Refused(message));
        let time = self.now();
        self.tell(Fact::Cancelled { time, session });
        // One whose end is shielded stays.
        !self.live.contains_key(&session)
    }

    /// Tells what is due, each at its own time: modelled steps do not get later because a thread
    /// wakes late.
    fn wake(&mut self) {
        let now = self.began.elapsed().as_secs_f64();
        while let Some((time, what)) = self.clock.take(now) {
            self.time = self.time.max(time);
            let time = self.time;
            match what {
                Due::Lease(timer) if self.is_read(timer) => self.overdue.push(timer),
                Due::Lease(timer) => self.tell(Fact::Woken { time, timer }),
                Due::Work(job) => self.tell(Fact::WorkEnded { time, job }),
                Due::Next(stage) => {
                    let job = self.next[&stage];
                    // What it brings, if it is a read over one stage, is there now.
                    self.start_flow(job);
                    self.tell(Fact::WorkEnded { time, job });
                }
                Due::Trusted(stage) => self.trust(stage, time),
                Due::Patience => self.give_up_waiting(time),
                Due::Step(stage) => {
                    let said = self.steps.get_mut(&stage).into_iter().flatten();
                    let tokens = said.filter(|one| one.upto > 0).map(|one| one.said.take()).collect();
                    self.end_step_at(time, stage, tokens);
                }
            }
            // What follows at this time comes before what is due later.
            self.settle();
        }
    }

    fn submit(&mut self, ticket: Ticket, request: Request, sink: Sink) {
        let Request { prompt, max_tokens, choices } = request;
        let shares = self.served.memories.iter().flatten().all(|memory| memory.shared);
        let before = if shares { BEGINNING } else { self.contents.fresh() };
        self.tickets.insert(ticket, (sink, choices.len()));
        let mut first = None;
        for (choice, wanted) in choices.into_iter().enumerate() {
            let live = Live {
                ticket,
                choice,
                prompt: prompt.len(),
                tokens: prompt.clone(),
                known: 0,
                max_tokens,
                sampling: Arc::new(wanted.sampling),
                voice: wanted.voice,
                stops: Stops::new(wanted.stops),
                before,
                name: before,
                named: 0,
                shares: Vec::new(),
                running: Vec::new(),
                draws: None,
                finish: None,
                gone_away: false,
                again: false,
                waits: false,
                waits_until: None,
                why: String::new(),
                started: false,
                figures: Figures::default(),
            };
            match first {
                None => {
                    let session = self.arrive(live);
                    if !self.live.contains_key(&session) {
                        self.led.push(session);
                    }
                    first = Some(session);
                }
                Some(first) => self.followers.push(Follower { live, first }),
            }
        }
    }

    /// Its session begins. Answers the session's number.
    fn arrive(&mut self, mut live: Live) -> u64 {
        let mut names = Vec::new();
        self.contents.name(live.before, &live.tokens, &mut names);
        (live.name, live.named) = (names.last().copied().unwrap_or(live.before), names.len());
        live.known = live.answer();
        let session = self.arrivals;
        self.arrivals += 1;
        let fact = Fact::Arrived {
            time: self.now(),
            prompt_tokens: live.tokens.len() as f64,
            max_tokens: (live.max_tokens - live.known) as f64,
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
                let Follower { live, .. } = self.followers.remove(at);
                self.arrive(live);
            }
        }
    }

    fn go_away(&mut self, ticket: Ticket) {
        if self.tickets.remove(&ticket).is_none() {
            return;
        }
        self.followers.retain(|follower| follower.live.ticket != ticket);
        self.parked.retain(|(_, live)| live.ticket != ticket);
        self.again.retain(|live| live.ticket != ticket);
        let sessions: Vec<u64> = self.live.iter().filter(|(_, l)| l.ticket == ticket).map(|(&s, _)| s).collect();
        for session in sessions {
            if let Some(live) = self.live.get_mut(&session) {
                live.gone_away = true;
                self.cancel(session);
            }
        }
    }

    fn act(&mut self) {
        for (session, pool) in self.kernel.take_rejected() {
            let (name, cap) = self.served.pool(pool);
            if let Some(live) = self.live.get_mut(&session) {
                let message = format!(
                    "{name} has {cap} tokens in all, fewer than a prompt of {} and an answer of {} need there",
                    live.prompt, live.max_tokens
                );
                live.finish.get_or_insert(Finish::Refused(message));
            }
        }
        let mut actions = std::mem::take(&mut self.world.actions);
        for action in actions.drain(..) {
            match action {
                Action::StartStep { stage, cost, .. } => {
                    self.start_step(stage);
                    if MODELLED {
                        self.clock.set(Due::Step(stage), self.time + cost);
                    }
                }
                Action::StartWork { job, work } if MODELLED => {
                    self.start_flow(job);
                    self.clock.set(Due::Work(job), self.time + work);
                }
                // A read over one stage, or work that takes no time here.
                Action::StartWork { job, .. } => {
                    let done = self.start_flow(job);
                    self.done.extend(done.then_some(job));
                }
                Action::Spilled { pool, block, part, into, to } => {
                    if let Some(instances) = &mut self.instances {
                        instances.put(Put { pool, block, part, into, to });
                    }
                }
                Action::StopWork { job } => {
                    self.clock.stop(Due::Work(job));
                    self.reads.retain(|_, read| read.job != job);
                    self.done.retain(|&waiting| waiting != job);
                }
                Action::NextFinish { stage, next } if MODELLED => match next {
                    Some((job, time)) => {
                        self.next.insert(stage, job);
                        self.clock.set(Due::Next(stage), time);
                    }
                    None => self.clock.stop(Due::Next(stage)),
                },
                Action::StartFlow { job } => {
                    let done = self.start_flow(job);
                    if done && !MODELLED {
                        self.done.push_back(job);
                    }
                }
                Action::WakeAt { timer, time } => self.clock.set(Due::Lease(timer), time),
                Action::StopWake { timer } => {
                    self.clock.stop(Due::Lease(timer));
                    self.overdue.retain(|&overdue| overdue != timer);
                }
                Action::Observed { observe, session, value, .. } => {
                    if let Some(live) = self.live.get_mut(&session) {
                        let name = self.served.program.observes[observe as usize].clone();
                        live.figures.observed.insert(name, value);
                    }
                }
                Action::Session { session, what: Move::Preempted { pool }, .. } => self.preempt(session, pool),
                Action::Session { session, what: Move::Failed, .. } => {
                    if let Some(live) = self.live.get_mut(&session) {
                        let why = match std::mem::take(&mut live.why) {
                            why if why.is_empty() => "the program says that it failed".to_owned(),
                            why => why,
                        };
                        live.finish.get_or_insert(Finish::Unavailable(why));
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
            let computed = live.computed(&run.at);
            let known = live.tokens.len();
            let brought = live.brought(&run.at);
            if !MODELLED && position > brought + 0.5 && computed < known {
                let message = format!(
                    "the program has {position} tokens there, and {brought} were found, computed or brought by a read"
                );
                over.push((run.session, message));
                continue;
            }
            live.waits_until = None;
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
                    "the program holds room for {held} tokens and computes token {upto}; more units or `growing` is meant"
                )));
                continue;
            }
            // What two legs would draw at a time is one token.
            let wants_next = upto == known && !run.leased && live.finish.is_none() && live.draws.is_none();
            let next = wants_next.then(|| Next {
                sampling: Arc::clone(&live.sampling),
                nth: live.answer(),
                before: live
                    .sampling
                    .looks_back()
                    .then(|| (live.tokens[..live.prompt].to_vec(), live.tokens[live.prompt..].to_vec())),
            });
            live.running.push(stage);
            live.draws = live.draws.or(next.is_some().then_some(stage));
            let said = Token { id: live.tokens[live.answer() % live.prompt], logprobs: None };
            let said = next.is_some().then_some(said);
            let grows = if run.grows { run.tokens } else { 0.0 };
            computing.push(Computing { session: run.session, pool, admission, upto, grows, said });
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
                live.running.push(stage);
            }
            computing.push(Computing { session, pool: 0, admission: 0, upto: 0, grows: 0.0, said: None });
        }
        self.steps.insert(stage, computing);
        let ended = Ended { told: self.told.clone(), stage };
        match &mut self.instances {
            // The clock tells its end.
            None => {}
            Some(_) if runs.is_empty() => ended.tell(Vec::new()),
            // Its end is told with that of the instance.
            Some(_) if self.going.contains_key(&stage) => {}
            Some(instances) => instances.start(stage, runs, ended),
        }
    }

    fn end_step(&mut self, stage: u32, tokens: Vec<Option<Token>>) {
        let time = self.now();
        self.end_step_at(time, stage, tokens);
    }

    fn end_step_at(&mut self, time: f64, stage: u32, tokens: Vec<Option<Token>>) {
        let Some(computed) = self.steps.remove(&stage) else { return };
        let there: BTreeSet<u64> = self.kernel.runs(stage).map(|run| run.session).collect();
        let mut tokens = tokens.into_iter();
        for Computing { session, pool, admission, upto, grows, .. } in &computed {
            let token = if *upto > 0 { tokens.next().flatten() } else { None };
            let Some(live) = self.live.get_mut(session) else { continue };
            live.has_run(stage);
            if !there.contains(session) || *upto == 0 {
                continue;
            }
            live.has_computed(*pool, *admission, *upto, *grows);
            if let Some(token) = token
                && !live.gone_away
            {
                if live.answer() == 0 {
                    self.led.push(*session);
                }
                self.take_token(*session, token);
            }
        }
        self.tell(Fact::StepEnded { time, stage });
        if self.instances.as_ref().is_some_and(|instances| instances.takes_time()) {
            computed.iter().for_each(|one| self.copy_early(one.session, one.pool));
        }
        for Computing { session, .. } in computed {
            if self.live.get(&session).is_some_and(|live| live.gone_away || live.again) {
                self.cancel(session);
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
        let (text, stop) = match ends {
            true => (String::new(), None),
            false if nth <= live.sampling.min_tokens => (live.voice.say(token.id), None),
            false => live.stops.next(&live.voice.say(token.id)),
        };
        if let Some(stop) = stop {
            live.finish = Some(Finish::Stop(Some(Stop::Text(stop))));
        } else if ends {
            live.finish = Some(Finish::Stop(Some(Stop::Token(token.id))));
        } else if nth >= live.max_tokens {
            live.finish = Some(Finish::Length);
        }
        let (finished, choice, ticket, known) = (live.finish.is_some(), live.choice, live.ticket, live.known);
        self.events.push((ticket, Event::Token { choice, token: token.id, text, logprobs: token.logprobs }));
        self.name_tokens(session);
        if finished {
            self.tell(Fact::Stopped { session, answer: (nth - known) as f64 });
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

    /// Ends a session, once nothing writes to its blocks or reads them.
    fn cancel(&mut self, session: u64) {
        let reads = self.stop_copies(|copying| copying.session == session);
        if !reads && self.live.get(&session).is_some_and(|live| live.running.is_empty()) {
            let time = self.now();
            self.tell(Fact::Cancelled { time, session });
        }
    }

    /// A session is over: so is its request, if it is not routed again.
    fn end(&mut self, session: u64) {
        let Some(mut live) = self.live.remove(&session) else { return };
        self.led.push(session);
        self.reads.remove(&session);
        if std::mem::take(&mut live.again) && !live.gone_away {
            live.shares.clear();
            if std::mem::take(&mut live.waits) {
                self.park(live);
            } else {
                self.again.push(live);
            }
        } else {
            self.finish(live);
        }
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
        let event = Event::Finished { choice: live.choice, finish, text, figures: live.figures };
        self.events.push((live.ticket, event));
    }

    fn deliver(&mut self) {
        for (ticket, event) in self.events.drain(..) {
            // Who went away is told nothing.
            let Some((sink, left)) = self.tickets.get_mut(&ticket) else { continue };
            *left -= usize::from(matches!(event, Event::Finished { .. }));
            let over = *left == 0;
            sink(event);
            if over {
                self.tickets.remove(&ticket);
            }
        }
    }

    /// The program stopped: everybody is told why, and the kernel begins anew.
    fn fail(&mut self, fault: &Fault) {
        let at = fault.at.map_or_else(String::new, |at| format!(" (line {})", at.line));
        let message = format!("the program stopped: {}{at}", fault.message);
        for mut live in self.take_all() {
            live.finish = Some(Finish::Failed(message.clone()));
            self.finish(live);
        }
        self.led.clear();
        // What still runs writes to blocks that will be free.
        self.stop_copies(|_| true);
        if !MODELLED {
            self.wait_for_what_runs();
        }
        self.steps.clear();
        self.copying.clear();
        self.reads.clear();
        self.overdue.clear();
        self.late.clear();
        // Those that were gone still are.
        let gone = std::mem::take(&mut self.gone).into_iter();
        self.going.extend(gone.map(|(stage, why)| (stage, Going { why, known: false, back: None })));
        if let Some(decisions) = &mut self.decisions {
            decisions.fact(&Fact::Restarted);
        }
        self.kernel = Kernel::new(&self.served.code, false);
        self.world = Outside::new(self.served.program.run.seed);
        (self.arrivals, self.began, self.time) = (0, Instant::now(), 0.0);
        self.done.clear();
        (self.clock, self.next) = (Clock::default(), HashMap::new());
    }

    /// Until no step writes to blocks, and no copy reads or writes any.
    fn wait_for_what_runs(&mut self) {
        // A step of an instance that is gone does not, and nobody will tell its end.
        let going = &self.going;
        self.steps.retain(|stage, _| !going.contains_key(stage));
        let (mut before, mut kept) = (std::mem::take(&mut self.heard), VecDeque::new());
        while !self.steps.is_empty() || !self.copying.is_empty() {
            let told = match before.pop_front() {
                Some(told) => told,
                None => match self.facts.recv() {
                    Ok(told) => told,
                    Err(_) => break,
                },
            };
            match told {
                Told::StepEnded { stage, .. } => drop(self.steps.remove(&stage)),
                Told::Copied { copy, .. } => drop(self.copying.remove(&copy)),
                other => {
                    if let Told::Gone { stage, .. } = &other {
                        self.steps.remove(stage);
                    }
                    kept.push_back(other);
                }
            }
        }
        kept.append(&mut before);
        self.heard = kept;
    }

    fn look(&self) -> Look {
        let left = self.kernel.left();
        let stores: Vec<u32> = self.served.stores().into_iter().map(|store| store.pool).collect();
        let pools = (0..self.kernel.pools()).map(|pool| {
            let state = self.kernel.pool_state(pool);
            let (name, cap) = self.served.pool(pool);
            PoolLook {
                name,
                cap,
                used: state.used,
                cached: state.cached,
                waiting: state.queue,
                holders: state.holders,
                left: left[pool as usize],
                counts: self.kernel.pool_counts(pool),
                store: stores.contains(&pool).then(|| {
                    self.instances.as_ref().map_or_else(Default::default, |instances| instances.store_counts(pool))
                }),
            }
        });
        let instances = self.served.instances().into_iter().map(|instance| {
            let running = self.steps.get(&instance.stage).map_or(0, Vec::len);
            let steps = self.kernel.iterations(instance.stage);
            InstanceLook { name: instance.name, memory: instance.pool as usize, running, steps }
        });
        Look {
            live: (self.live.len() + self.followers.len() + self.parked.len()) as u64,
            pools: pools.collect(),
            instances: instances.collect(),
        }
    }

    /// Whoever is there, or about to come.
    fn take_all(&mut self) -> Vec<Live> {
        let live = std::mem::take(&mut self.live).into_values();
        let followers = self.followers.drain(..).map(|follower| follower.live);
        live.chain(followers).chain(self.again.drain(..)).chain(self.parked.drain(..).map(|(_, live)| live)).collect()
    }

    /// Nobody is served any more.
    fn close(&mut self) {
        for mut live in self.take_all() {
            live.finish.get_or_insert(Finish::Failed("the server is going down".into()));
            self.finish(live);
        }
        self.deliver();
        if let Some(decisions) = self.decisions.take() {
            decisions.close();
        }
    }
}
