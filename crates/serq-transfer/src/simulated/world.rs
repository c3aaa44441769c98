//! Clients, a gateway, prefill and decode instances with their pools, a network and a transport, in virtual time.
//!
//! ```text
//!   clients ─▶ gateway ──calls──▶ prefill: scheduler, pool, Source ◀─messages─▶ decode: scheduler, pool, Reader
//!                 ▲                    │                                             │
//!                 └──────answers───────┴───────── cells, one by one ─────────────────┘
//! ```
//!
//! What goes wrong comes from the plan ([`super::plan`]) or is placed from outside ([`World::inject`]). What
//! must not happen is a violation, and ends the schedule: a block written or given back by who does not own it, a text
//! decoded from other KV than the undisaggregated one, blocks or transfers that are left, a request without an end, a
//! broken invariant of a machine.
//!
//! # Invariants
//!
//! - Events at one time happen in the order they were scheduled in; nothing else decides.
//! - A process that is stopped takes nothing in until it goes on; what was posted for it may move meanwhile.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use super::dice::Dice;
use super::plan::{Clock, Fault, Plan};
use super::pool::{GARBAGE, Owner, Pool, cell};
use crate::protocol::mapping::{BlockTable, Run};
use crate::protocol::message::{Message, Offer};
use crate::protocol::reader::{self, Canary, Load, Reader};
use crate::protocol::source::{self, Source};
use crate::protocol::{Address, Failure, Incarnation, Otherwise, Peer, Session, Time, TransferId, encoding};

const COMPATIBILITY: &[u8] = b"simulated, 1 byte a token";
const CANARY: &[u8] = b"canary";
/// A token's prefill, and a decode step, in microseconds.
const TOKEN_US: u64 = 100;

/// What the gateway asks a process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Call {
    Prefill,
    Decode(Option<Offer>),
    AbortPrefill,
    AbortDecode,
    Abandon,
}

/// What the gateway is told about a leg.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Answer {
    Prefilled(Offer),
    PrefillFailed,
    Decoded { loaded: bool },
    DecodeFailed(Failure),
    /// The process has gone, or was never there.
    Lost { prefill: bool },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Event {
    Arrive(usize),
    Call { host: usize, request: usize, call: Call },
    Answer { request: usize, answer: Answer },
    Deliver { host: usize, bytes: Vec<u8> },
    Wake { host: usize, boot: u64 },
    /// The next token of a prefill, there or at the reader.
    Compute { host: usize, boot: u64, request: usize, run: u64 },
    Copy { flight: u64 },
    PartEnded { host: usize, boot: u64, id: TransferId, attempt: u64, part: u8, landed: bool },
    Fenced { host: usize, boot: u64, peer: Peer, session: Session },
    CanaryRead { host: usize, boot: u64, source: Peer, session: Session },
    Boot { host: usize },
    Go { host: usize },
    Strike(Fault),
}

/// How a request ended for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// The right text, from KV that was handed over.
    Loaded,
    /// The right text, from KV that was computed again.
    Recomputed,
    /// The client went away.
    Aborted,
    /// The decode leg was refused at the door.
    Rejected,
    /// The prefill failed.
    PrefillFailed,
    /// A leg's process died.
    ProcessLost,
    /// A typed error of the hand-over.
    Failed(Failure),
}

/// A copy that is being made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Flight {
    is_write: bool,
    prefill: usize,
    prefill_boot: u64,
    decode: usize,
    decode_boot: u64,
    session: Session,
    id: TransferId,
    attempt: u64,
    part: u8,
    runs: Vec<Run>,
    run: usize,
    token: u32,
    fails_after: Option<u32>,
    stuck: bool,
}

#[derive(Clone, Debug, PartialEq, Hash)]
enum Role {
    Prefill { machine: Source, queue: VecDeque<usize>, running: BTreeMap<usize, Prefill> },
    Decode { machine: Reader, queue: VecDeque<usize>, requests: BTreeMap<usize, Decode> },
}

/// A prefill that runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Prefill {
    blocks: Vec<u32>,
    computed: u32,
    run: u64,
}

/// A request at its reader.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Decode {
    stage: Stage,
    /// All its blocks in the order of tokens, lent ones among them.
    blocks: Vec<u32>,
    lent: Vec<u32>,
    loaded: bool,
    /// When it was, by the process's clock.
    loaded_at: u64,
    run: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    WaitsToLoad,
    Loads,
    WaitsToCompute,
    /// Up to which token there is KV.
    Computes(u32),
}

#[derive(Clone, Debug, PartialEq, Hash)]
struct Host {
    peer: Peer,
    up: bool,
    stopped_until: u64,
    clock: Clock,
    pool: Pool,
    role: Role,
    /// Connections that are fenced here: nothing of them lands.
    fenced: BTreeSet<(Peer, Session)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    outcome: Option<Outcome>,
    prefill_asked: bool,
    prefill_answered: bool,
    decode_asked: bool,
    decode_answered: bool,
}

/// Everything.
#[derive(Clone, Debug)]
pub(crate) struct World {
    plan: Rc<Plan>,
    now: u64,
    events: BTreeMap<(u64, u64), Event>,
    sequence: u64,
    dice: Dice,
    hosts: Vec<Host>,
    boots: u64,
    runs: u64,
    flights: BTreeMap<u64, Flight>,
    flight: u64,
    clients: Vec<Client>,
    /// Pairs that are cut, until when.
    cuts: Vec<(usize, usize, u64)>,
    pub(crate) violation: Option<String>,
    pub(crate) trace: Option<Vec<String>>,
    pub(crate) fences: u64,
    pub(crate) leases_expired: u64,
    pub(crate) messages: u64,
}

fn id_of(request: usize) -> TransferId {
    TransferId(request as u128 + 1)
}

fn request_of(id: TransferId) -> usize {
    id.0 as usize - 1
}

impl World {
    pub(crate) fn new(plan: Plan, seed: u64, traced: bool) -> World {
        let mut world = World {
            now: 0,
            events: BTreeMap::new(),
            sequence: 0,
            dice: Dice::new(seed ^ 0xfa17),
            hosts: Vec::new(),
            boots: 0,
            runs: 0,
            flights: BTreeMap::new(),
            flight: 0,
            clients: vec![Client::default(); plan.requests.len()],
            cuts: Vec::new(),
            violation: None,
            trace: traced.then(Vec::new),
            fences: 0,
            leases_expired: 0,
            messages: 0,
            plan: Rc::new(plan),
        };
        let plan = Rc::clone(&world.plan);
        for host in 0..plan.hosts.len() {
            world.boots += 1;
            let fresh = world.fresh(host, world.boots);
            world.hosts.push(fresh);
        }
        for host in plan.prefills..plan.hosts.len() {
            world.discover(host);
        }
        for (at, request) in plan.requests.iter().enumerate() {
            world.at(request.arrives, Event::Arrive(at));
        }
        for (time, fault) in &plan.faults {
            world.at(*time, Event::Strike(fault.clone()));
        }
        world
    }

    /// A process that was just started.
    fn fresh(&self, host: usize, boot: u64) -> Host {
        let plan = &self.plan.hosts[host];
        let peer = Peer { address: Address(host as u64 + 100), incarnation: Incarnation(boot) };
        let config = plan.config.clone();
        let role = if host < self.plan.prefills {
            let machine = Source::new(peer, COMPATIBILITY.to_vec(), CANARY.to_vec(), config);
            Role::Prefill { machine, queue: VecDeque::new(), running: BTreeMap::new() }
        } else {
            let machine = Reader::new(peer, COMPATIBILITY.to_vec(), config);
            Role::Decode { machine, queue: VecDeque::new(), requests: BTreeMap::new() }
        };
        let pool = Pool::new(plan.blocks, plan.block_tokens);
        Host { peer, up: true, stopped_until: 0, clock: plan.clock, pool, role, fenced: BTreeSet::new() }
    }

    fn discover(&mut self, host: usize) {
        if self.plan.discovered {
            for source in 0..self.plan.prefills {
                self.tell_reader(host, reader::Fact::Discovered { source: self.hosts[source].peer.address });
            }
        }
    }

    // ── Events ────────────────────────────────────────────────────────────────────────────────────────────────────────

    fn at(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        self.events.insert((time.max(self.now), self.sequence), event);
    }

    fn after(&mut self, us: u64, event: Event) {
        self.at(self.now + us, event);
    }

    fn note(&mut self, what: impl FnOnce(&World) -> String) {
        if self.trace.is_some() {
            let line = format!("{:>9} us  {}", self.now, what(self));
            self.trace.as_mut().expect("it is there").push(line);
        }
    }

    fn name(&self, host: usize) -> String {
        let (role, at) = if host < self.plan.prefills {
            ("prefill", host)
        } else {
            ("decode", host - self.plan.prefills)
        };
        format!("{role}/{at}#{}", self.hosts[host].peer.incarnation.0)
    }

    fn violate(&mut self, what: String) {
        self.note(|_| format!("VIOLATION: {what}"));
        self.violation.get_or_insert(what);
    }

    fn must(&mut self, host: usize, result: Result<(), String>) {
        if let Err(what) = result {
            let what = format!("{}: {what}", self.name(host));
            self.violate(what);
        }
    }

    fn calm(&self) -> bool {
        self.now >= self.plan.calm_from
    }

    fn strikes(&mut self, per_mille: u64) -> bool {
        !self.calm() && self.dice.chance(per_mille)
    }

    /// Takes the next event; whether there was one.
    pub(crate) fn step(&mut self) -> bool {
        if self.violation.is_some() {
            return false;
        }
        let Some(((time, _), event)) = self.events.pop_first() else {
            self.settle();
            return false;
        };
        self.now = time;
        if time > self.plan.end {
            let over = self.clients.iter().filter(|client| client.outcome.is_some()).count();
            self.violate(format!("not over in time: {over} of {} requests have ended; next {event:?}", self.clients.len()));
            return false;
        }
        if let Some(host) = self.host_of(&event)
            && self.hosts[host].stopped_until > self.now
        {
            let until = self.hosts[host].stopped_until;
            self.at(until, event);
            return true;
        }
        self.happen(event);
        true
    }

    /// Whose processor an event needs.
    fn host_of(&self, event: &Event) -> Option<usize> {
        match event {
            Event::Call { host, .. }
            | Event::Deliver { host, .. }
            | Event::Wake { host, .. }
            | Event::Compute { host, .. }
            | Event::PartEnded { host, .. }
            | Event::Fenced { host, .. }
            | Event::CanaryRead { host, .. } => Some(*host),
            Event::Arrive(_) | Event::Answer { .. } | Event::Copy { .. } => None,
            Event::Boot { .. } | Event::Go { .. } | Event::Strike(_) => None,
        }
    }

    fn is_running(&self, host: usize, boot: u64) -> bool {
        self.hosts[host].up && self.hosts[host].peer.incarnation.0 == boot
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive(request) => self.arrive(request),
            Event::Call { host, request, call } => self.take_call(host, request, call),
            Event::Answer { request, answer } => self.take_answer(request, answer),
            Event::Deliver { host, bytes } => self.deliver(host, &bytes),
            Event::Wake { host, boot } if self.is_running(host, boot) => self.wake(host),
            Event::Compute { host, boot, request, run } if self.is_running(host, boot) => {
                if host < self.plan.prefills {
                    self.prefill_token(host, request, run);
                } else {
                    self.decode_token(host, request, run);
                }
            }
            Event::Copy { flight } => self.copy(flight),
            Event::PartEnded { host, boot, id, attempt, part, landed } if self.is_running(host, boot) => {
                if host < self.plan.prefills {
                    self.tell_source(host, source::Fact::PartEnded { id, attempt, part, landed });
                } else {
                    self.tell_reader(host, reader::Fact::PartEnded { id, attempt, part, landed });
                }
            }
            Event::Fenced { host, boot, peer, session } if self.is_running(host, boot) => {
                self.fence(host, peer, session);
            }
            Event::CanaryRead { host, boot, source, session } if self.is_running(host, boot) => {
                let at = (source.address.0 - 100) as usize;
                let there = self.is_running(at, source.incarnation.0);
                let canary = if there { Canary::Right } else { Canary::Unread };
                self.tell_reader(host, reader::Fact::CanaryRead { source: source.address, session, canary });
            }
            Event::Boot { host } => {
                self.boots += 1;
                self.hosts[host] = self.fresh(host, self.boots);
                self.note(|world| format!("host {host} starts as #{}", world.boots));
                if host >= self.plan.prefills {
                    self.discover(host);
                }
            }
            Event::Go { .. } => {}
            Event::Strike(fault) => self.strike(fault),
            Event::Wake { .. }
            | Event::Compute { .. }
            | Event::PartEnded { .. }
            | Event::Fenced { .. }
            | Event::CanaryRead { .. } => {}
        }
    }

    fn wake(&mut self, host: usize) {
        if host < self.plan.prefills {
            self.tell_source(host, source::Fact::Woken);
        } else {
            self.tell_reader(host, reader::Fact::Woken);
        }
    }

    // ── The gateway ───────────────────────────────────────────────────────────────────────────────────────────────────

    fn call(&mut self, host: usize, request: usize, call: Call, extra_us: u64) {
        let delay = self.plan.delay_us + extra_us;
        self.after(delay, Event::Call { host, request, call });
    }

    fn answer(&mut self, request: usize, answer: Answer) {
        self.after(self.plan.delay_us, Event::Answer { request, answer });
    }

    fn arrive(&mut self, request: usize) {
        let plan = Rc::clone(&self.plan);
        let plan = &plan.requests[request];
        self.note(|_| format!("request {request} arrives: {plan:?}"));
        self.clients[request].prefill_asked = true;
        let (prefill_us, decode_us) = plan.concurrent.unwrap_or((0, 0));
        self.call(plan.prefill, request, Call::Prefill, prefill_us);
        if plan.concurrent.is_some() {
            self.dispatch_decode(request, None, decode_us);
        }
    }

    fn dispatch_decode(&mut self, request: usize, offer: Option<Offer>, extra_us: u64) {
        let plan = Rc::clone(&self.plan);
        let plan = &plan.requests[request];
        if plan.rejected {
            self.conclude(request, Outcome::Rejected);
            self.abandon(request);
            return;
        }
        self.clients[request].decode_asked = true;
        self.call(plan.decode, request, Call::Decode(offer), extra_us);
    }

    /// Tells the prefill instance that nobody will come; or is itself cut off before that.
    fn abandon(&mut self, request: usize) {
        let host = self.plan.requests[request].prefill;
        if !self.strikes(100) {
            self.call(host, request, Call::Abandon, 0);
        }
    }

    fn conclude(&mut self, request: usize, outcome: Outcome) {
        if self.clients[request].outcome.is_none() {
            self.note(|_| format!("request {request} ends: {outcome:?}"));
            self.clients[request].outcome = Some(outcome);
        }
    }

    fn take_answer(&mut self, request: usize, answer: Answer) {
        self.note(|_| format!("gateway: request {request}: {answer:?}"));
        let concurrent = self.plan.requests[request].concurrent.is_some();
        match answer {
            Answer::Prefilled(offer) => {
                self.clients[request].prefill_answered = true;
                if !concurrent && !self.clients[request].decode_asked {
                    if self.clients[request].outcome.is_none() {
                        self.dispatch_decode(request, Some(offer), 0);
                    } else {
                        self.abandon(request);
                    }
                }
            }
            Answer::PrefillFailed | Answer::Lost { prefill: true } => {
                // Where both legs run the reader finds out, and does what its policy says.
                self.clients[request].prefill_answered = true;
                if !concurrent {
                    self.conclude(request, Outcome::PrefillFailed);
                }
            }
            Answer::Decoded { loaded } => {
                self.clients[request].decode_answered = true;
                self.conclude(request, if loaded { Outcome::Loaded } else { Outcome::Recomputed });
            }
            Answer::DecodeFailed(failure) => {
                self.clients[request].decode_answered = true;
                self.conclude(request, Outcome::Failed(failure));
                self.abandon(request);
            }
            Answer::Lost { prefill: false } => {
                self.clients[request].decode_answered = true;
                self.conclude(request, Outcome::ProcessLost);
                self.abandon(request);
            }
        }
    }

    fn take_call(&mut self, host: usize, request: usize, call: Call) {
        if !self.hosts[host].up {
            match call {
                Call::Prefill => self.answer(request, Answer::Lost { prefill: true }),
                Call::Decode(_) => self.answer(request, Answer::Lost { prefill: false }),
                Call::AbortPrefill | Call::AbortDecode | Call::Abandon => {}
            }
            return;
        }
        let id = id_of(request);
        match call {
            Call::Prefill => {
                let Role::Prefill { queue, .. } = &mut self.hosts[host].role else { unreachable!() };
                queue.push_back(request);
                self.tell_source(host, source::Fact::Expected { id });
                self.start_prefills(host);
            }
            Call::AbortPrefill => {
                self.stop_prefill(host, request);
                self.tell_source(host, source::Fact::Aborted { id });
            }
            Call::Abandon => self.tell_source(host, source::Fact::Abandoned { id }),
            Call::Decode(offer) => self.begin_decode(host, request, offer),
            Call::AbortDecode => self.stop_decode(host, request),
        }
    }

    // ── The prefill's scheduler ───────────────────────────────────────────────────────────────────────────────────────

    fn start_prefills(&mut self, host: usize) {
        let plan = Rc::clone(&self.plan);
        loop {
            let Host { pool, role: Role::Prefill { queue, running, .. }, .. } = &mut self.hosts[host] else {
                unreachable!()
            };
            let Some(&request) = queue.front() else { return };
            let count = plan.requests[request].prompt.div_ceil(pool.block_tokens) as usize;
            let Some(blocks) = pool.take(count, Owner::Request(request)) else { return };
            queue.pop_front();
            self.runs += 1;
            running.insert(request, Prefill { blocks, computed: 0, run: self.runs });
            let (boot, run) = (self.hosts[host].peer.incarnation.0, self.runs);
            self.after(TOKEN_US, Event::Compute { host, boot, request, run });
        }
    }

    fn prefill_token(&mut self, host: usize, request: usize, run: u64) {
        let plan = Rc::clone(&self.plan);
        let plan = &plan.requests[request];
        let Host { pool, role: Role::Prefill { running, .. }, peer, .. } = &mut self.hosts[host] else {
            unreachable!()
        };
        let Some(prefill) = running.get_mut(&request).filter(|prefill| prefill.run == run) else { return };
        let (token, size, boot) = (prefill.computed, pool.block_tokens, peer.incarnation.0);
        if plan.fails_at == Some(token) {
            self.stop_prefill(host, request);
            self.tell_source(host, source::Fact::PrefillFailed { id: id_of(request) });
            return;
        }
        let block = prefill.blocks[(token / size) as usize];
        prefill.computed += 1;
        let written = pool.write(block, token % size, cell(request, token), Owner::Request(request));
        self.must(host, written);
        if token + 1 < plan.prompt {
            self.after(TOKEN_US, Event::Compute { host, boot, request, run });
            return;
        }
        let Host { pool, role: Role::Prefill { running, .. }, .. } = &mut self.hosts[host] else { unreachable!() };
        let blocks = running.remove(&request).expect("it runs").blocks;
        let passed = blocks
            .iter()
            .try_for_each(|&block| pool.pass(block, Owner::Request(request), Owner::Transfer(request)));
        let table = BlockTable::in_order(size, 0, plan.prompt, &blocks);
        self.must(host, passed);
        self.tell_source(host, source::Fact::PrefillFinished { id: id_of(request), table });
    }

    /// Takes a prefill out of the queue or off the processor.
    fn stop_prefill(&mut self, host: usize, request: usize) {
        let Host { pool, role: Role::Prefill { queue, running, .. }, .. } = &mut self.hosts[host] else {
            unreachable!()
        };
        let before = queue.len();
        queue.retain(|other| *other != request);
        let mut stopped = queue.len() < before;
        let mut passed = Ok(());
        if let Some(prefill) = running.remove(&request) {
            stopped = true;
            let owner = Owner::Request(request);
            passed = prefill.blocks.iter().try_for_each(|&block| pool.pass(block, owner, Owner::Free));
        }
        self.must(host, passed);
        if stopped {
            self.answer(request, Answer::PrefillFailed);
            self.start_prefills(host);
        }
    }

    fn tell_source(&mut self, host: usize, fact: source::Fact) {
        self.note(|world| format!("{} ◀ {fact:?}", world.name(host)));
        let now = Time(self.hosts[host].clock.local(self.now));
        let Role::Prefill { machine, .. } = &mut self.hosts[host].role else { unreachable!() };
        let mut actions = Vec::new();
        let before = machine.counters();
        machine.handle(now, fact, &mut actions);
        machine.check(now);
        let after = machine.counters();
        self.fences += after.fences - before.fences;
        self.leases_expired += after.leases_expired - before.leases_expired;
        for action in actions {
            self.act_for_source(host, action);
        }
    }

    fn act_for_source(&mut self, host: usize, action: source::Action) {
        if !matches!(action, source::Action::WakeAt(_)) {
            self.note(|world| format!("{} ▶ {action:?}", world.name(host)));
        }
        let boot = self.hosts[host].peer.incarnation.0;
        match action {
            source::Action::Send(envelope) => self.send(host, &envelope),
            source::Action::Offered { id, offer } => self.answer(request_of(id), Answer::Prefilled(offer)),
            source::Action::Write { peer, session, id, attempt, part, runs } => {
                let decode = (peer.address.0 - 100) as usize;
                self.post(Flight {
                    is_write: true,
                    prefill: host,
                    prefill_boot: boot,
                    decode,
                    decode_boot: peer.incarnation.0,
                    session,
                    id,
                    attempt,
                    part,
                    runs,
                    run: 0,
                    token: 0,
                    fails_after: None,
                    stuck: false,
                });
            }
            source::Action::Fence { peer, session } => {
                self.after(TOKEN_US, Event::Fenced { host, boot, peer, session });
            }
            source::Action::Free { id, blocks } => {
                self.give_back(host, request_of(id), &blocks);
                self.start_prefills(host);
            }
            source::Action::Unwanted { id } | source::Action::Refused { id } => {
                self.stop_prefill(host, request_of(id));
            }
            source::Action::WakeAt(time) => {
                let time = self.hosts[host].clock.global(time.0);
                self.at(time, Event::Wake { host, boot });
            }
        }
    }

    fn give_back(&mut self, host: usize, request: usize, blocks: &[u32]) {
        let pool = &mut self.hosts[host].pool;
        let passed = blocks.iter().try_for_each(|&block| pool.pass(block, Owner::Transfer(request), Owner::Free));
        self.must(host, passed);
    }

    // ── The decoder's scheduler ───────────────────────────────────────────────────────────────────────────────────────

    fn decodes(&mut self, host: usize) -> (&mut Pool, &mut VecDeque<usize>, &mut BTreeMap<usize, Decode>) {
        let Host { pool, role: Role::Decode { queue, requests, .. }, .. } = &mut self.hosts[host] else {
            unreachable!()
        };
        (pool, queue, requests)
    }

    fn load_of(&self, request: usize, offer: Option<Offer>) -> Load {
        let plan = &self.plan.requests[request];
        Load {
            id: id_of(request),
            source: self.hosts[plan.prefill].peer.address,
            mode: plan.mode,
            concurrent: plan.concurrent.is_some(),
            offer,
            policy: plan.policy,
        }
    }

    fn begin_decode(&mut self, host: usize, request: usize, offer: Option<Offer>) {
        let plan = &self.plan.requests[request];
        // The last token is computed here in any case; there may be nothing before it to load.
        let loads = plan.hit + 1 < plan.prompt;
        let stage = if loads { Stage::WaitsToLoad } else { Stage::WaitsToCompute };
        let decode = Decode { stage, blocks: Vec::new(), lent: Vec::new(), loaded: false, loaded_at: 0, run: 0 };
        let (_, queue, requests) = self.decodes(host);
        requests.insert(request, decode);
        queue.push_back(request);
        if loads {
            let load = self.load_of(request, offer);
            self.tell_reader(host, reader::Fact::Queued(load));
        } else {
            self.abandon(request);
        }
        self.admit(host);
    }

    /// Gives blocks to who waits, first come first served.
    fn admit(&mut self, host: usize) {
        let plan = Rc::clone(&self.plan);
        loop {
            let (pool, queue, requests) = self.decodes(host);
            let Some(&request) = queue.front() else { return };
            let Some(decode) = requests.get_mut(&request) else {
                queue.pop_front();
                continue;
            };
            let wanted = &plan.requests[request];
            let size = pool.block_tokens;
            let count = (wanted.prompt + wanted.output).div_ceil(size) as usize;
            let Some(blocks) = pool.take(count, Owner::Request(request)) else { return };
            queue.pop_front();
            decode.blocks = blocks;
            let mut done = Ok(());
            for token in 0..wanted.hit {
                let block = decode.blocks[(token / size) as usize];
                done = done.and(pool.write(block, token % size, cell(request, token), Owner::Request(request)));
            }
            if decode.stage == Stage::WaitsToLoad {
                let (first, last) = (wanted.hit / size, (wanted.prompt - 2) / size);
                decode.lent = decode.blocks[first as usize..=last as usize].to_vec();
                decode.stage = Stage::Loads;
                for &block in &decode.lent {
                    done = done.and(pool.pass(block, Owner::Request(request), Owner::Transfer(request)));
                }
                let table = BlockTable::in_order(size, wanted.hit, wanted.prompt - 1, &decode.lent);
                self.must(host, done);
                self.tell_reader(host, reader::Fact::Reserved { id: id_of(request), table });
            } else {
                self.must(host, done);
                self.compute_from(host, request, wanted.hit);
            }
        }
    }

    fn compute_from(&mut self, host: usize, request: usize, token: u32) {
        self.runs += 1;
        let run = self.runs;
        let (_, _, requests) = self.decodes(host);
        let decode = requests.get_mut(&request).expect("it is here");
        decode.stage = Stage::Computes(token);
        decode.run = run;
        let boot = self.hosts[host].peer.incarnation.0;
        self.after(TOKEN_US, Event::Compute { host, boot, request, run });
    }

    /// Computes a token, of the prompt or of the answer, from all the KV before it.
    fn decode_token(&mut self, host: usize, request: usize, run: u64) {
        let plan = Rc::clone(&self.plan);
        let wanted = &plan.requests[request];
        let (pool, _, requests) = self.decodes(host);
        let Some(decode) = requests.get_mut(&request).filter(|decode| decode.run == run) else { return };
        let Stage::Computes(token) = decode.stage else { return };
        let size = pool.block_tokens;
        let read = |token: u32| pool.read(decode.blocks[(token / size) as usize], token % size);
        if let Some(wrong) = (0..token).find(|&before| read(before) != cell(request, before)) {
            let found = read(wrong);
            let how = if decode.loaded { "loaded" } else { "computed" };
            let what = format!("request {request}, {how}, decodes token {token}, and token {wrong} has KV {found:x}");
            self.must(host, Err(what));
            return;
        }
        if token == wanted.prompt + wanted.output {
            let loaded = decode.loaded;
            self.remove(host, request);
            self.answer(request, Answer::Decoded { loaded });
            self.admit(host);
            return;
        }
        let block = decode.blocks[(token / size) as usize];
        let written = pool.write(block, token % size, cell(request, token), Owner::Request(request));
        decode.stage = Stage::Computes(token + 1);
        self.must(host, written);
        let boot = self.hosts[host].peer.incarnation.0;
        self.after(TOKEN_US, Event::Compute { host, boot, request, run });
    }

    /// Gives back what of a request's blocks is not lent.
    fn give_up_blocks(&mut self, host: usize, request: usize) {
        let (pool, _, requests) = self.decodes(host);
        let Some(decode) = requests.get_mut(&request) else { return };
        let lent = std::mem::take(&mut decode.lent);
        let mut passed = Ok(());
        for block in decode.blocks.drain(..).filter(|block| !lent.contains(block)) {
            passed = passed.and(pool.pass(block, Owner::Request(request), Owner::Free));
        }
        self.must(host, passed);
    }

    fn remove(&mut self, host: usize, request: usize) {
        self.give_up_blocks(host, request);
        let (_, queue, requests) = self.decodes(host);
        requests.remove(&request);
        queue.retain(|other| *other != request);
    }

    fn stop_decode(&mut self, host: usize, request: usize) {
        let (_, _, requests) = self.decodes(host);
        let Some(decode) = requests.get(&request) else { return };
        let stage = decode.stage;
        self.remove(host, request);
        if matches!(stage, Stage::WaitsToLoad | Stage::Loads) {
            self.tell_reader(host, reader::Fact::Cancelled { id: id_of(request) });
        }
        self.admit(host);
    }

    /// The prompt is computed here after all, at the head of the queue.
    fn recompute(&mut self, host: usize, request: usize) {
        self.give_up_blocks(host, request);
        let (_, queue, requests) = self.decodes(host);
        let Some(decode) = requests.get_mut(&request) else { return };
        decode.stage = Stage::WaitsToCompute;
        decode.loaded = false;
        queue.retain(|other| *other != request);
        queue.push_front(request);
        self.admit(host);
    }

    fn preempt(&mut self, host: usize, request: usize) {
        let (_, _, requests) = self.decodes(host);
        let Some(decode) = requests.get(&request) else { return };
        match decode.stage {
            Stage::WaitsToLoad | Stage::WaitsToCompute => {}
            Stage::Loads => {
                self.recompute(host, request);
                self.tell_reader(host, reader::Fact::Cancelled { id: id_of(request) });
                self.admit(host);
            }
            Stage::Computes(_) => {
                let (loaded, loaded_at) = (decode.loaded, decode.loaded_at);
                self.recompute(host, request);
                if loaded {
                    self.load_again(host, request, loaded_at);
                }
            }
        }
    }

    /// A scheduler that does not remember asks for a load that was used.
    fn load_again(&mut self, host: usize, request: usize, loaded_at: u64) {
        let load = self.load_of(request, None);
        let before = self.loads(host);
        self.tell_reader(host, reader::Fact::Queued(load));
        if self.loads(host) > before {
            let config = &self.plan.hosts[host].config;
            let forgotten = self.hosts[host].clock.local(self.now) >= loaded_at + config.tombstone_us;
            if !forgotten && config.tombstones_max >= self.clients.len() {
                self.must(host, Err(format!("request {request} is to be loaded a second time")));
            }
            self.tell_reader(host, reader::Fact::Cancelled { id: id_of(request) });
        }
    }

    fn loads(&self, host: usize) -> usize {
        let Role::Decode { machine, .. } = &self.hosts[host].role else { unreachable!() };
        machine.transfers()
    }

    fn tell_reader(&mut self, host: usize, fact: reader::Fact) {
        self.note(|world| format!("{} ◀ {fact:?}", world.name(host)));
        let now = Time(self.hosts[host].clock.local(self.now));
        let Role::Decode { machine, .. } = &mut self.hosts[host].role else { unreachable!() };
        let mut actions = Vec::new();
        let before = machine.counters();
        machine.handle(now, fact, &mut actions);
        machine.check(now);
        self.fences += machine.counters().fences - before.fences;
        for action in actions {
            self.act_for_reader(host, action);
        }
    }

    fn act_for_reader(&mut self, host: usize, action: reader::Action) {
        if !matches!(action, reader::Action::WakeAt(_)) {
            self.note(|world| format!("{} ▶ {action:?}", world.name(host)));
        }
        let boot = self.hosts[host].peer.incarnation.0;
        match action {
            reader::Action::Send(envelope) => self.send(host, &envelope),
            reader::Action::ReadCanary { peer, session, .. } => {
                let us = 2 * self.plan.delay_us;
                if !self.strikes(self.plan.parts_stuck) {
                    self.after(us, Event::CanaryRead { host, boot, source: peer, session });
                }
            }
            reader::Action::Read { peer, session, id, attempt, part, runs } => {
                let prefill = (peer.address.0 - 100) as usize;
                self.post(Flight {
                    is_write: false,
                    prefill,
                    prefill_boot: peer.incarnation.0,
                    decode: host,
                    decode_boot: boot,
                    session,
                    id,
                    attempt,
                    part,
                    runs,
                    run: 0,
                    token: 0,
                    fails_after: None,
                    stuck: false,
                });
            }
            reader::Action::Fence { peer, session } => {
                self.after(TOKEN_US, Event::Fenced { host, boot, peer, session });
            }
            reader::Action::Loaded { id, blocks, .. } => self.loaded(host, request_of(id), &blocks),
            reader::Action::Failed { id, otherwise: Otherwise::Recompute, .. } => {
                self.recompute(host, request_of(id));
            }
            reader::Action::Failed { id, failure, otherwise: Otherwise::Error } => {
                let request = request_of(id);
                self.remove(host, request);
                self.answer(request, Answer::DecodeFailed(failure));
                self.admit(host);
            }
            reader::Action::Free { id, blocks } => {
                self.give_back(host, request_of(id), &blocks);
                self.admit(host);
            }
            reader::Action::Refused { id, .. } => {
                let request = request_of(id);
                let (_, _, requests) = self.decodes(host);
                if requests.get(&request).is_some_and(|decode| decode.stage == Stage::WaitsToLoad) {
                    self.recompute(host, request);
                }
            }
            reader::Action::WakeAt(time) => {
                let time = self.hosts[host].clock.global(time.0);
                self.at(time, Event::Wake { host, boot });
            }
        }
    }

    fn loaded(&mut self, host: usize, request: usize, blocks: &[u32]) {
        let prompt = self.plan.requests[request].prompt;
        let now = self.hosts[host].clock.local(self.now);
        let (pool, _, requests) = self.decodes(host);
        let passed = blocks
            .iter()
            .try_for_each(|&block| pool.pass(block, Owner::Transfer(request), Owner::Request(request)));
        let loads = requests.get_mut(&request).filter(|decode| decode.stage == Stage::Loads);
        let Some(decode) = loads.filter(|decode| decode.lent == blocks) else {
            self.must(host, passed.and(Err(format!("request {request} is loaded, and did not wait for that"))));
            return;
        };
        decode.lent.clear();
        decode.loaded = true;
        decode.loaded_at = now;
        self.must(host, passed);
        self.compute_from(host, request, prompt - 1);
    }

    // ── The network ───────────────────────────────────────────────────────────────────────────────────────────────────

    fn is_cut(&self, one: usize, other: usize) -> Option<u64> {
        let pair = (one.min(other), one.max(other));
        self.cuts.iter().find(|(a, b, until)| (*a, *b) == pair && *until > self.now).map(|(_, _, until)| *until)
    }

    fn send(&mut self, host: usize, envelope: &crate::protocol::Envelope) {
        let to = (envelope.to.address.0 - 100) as usize;
        self.messages += 1;
        // Who greets is answered by whoever is there, so only that may be to nobody in particular.
        let is_greeting = matches!(envelope.message, Message::Hello { .. });
        if envelope.to.incarnation == Incarnation::WHOEVER && !is_greeting {
            self.violate(format!("{envelope:?} is to nobody in particular"));
        }
        if self.is_cut(host, to).is_some() || self.strikes(self.plan.dropped) {
            self.note(|_| "        (lost)".into());
            return;
        }
        let bytes = encoding::encode(envelope);
        let copies = if self.strikes(self.plan.repeated) { 2 } else { 1 };
        for _ in 0..copies {
            let mut us = self.plan.delay_us;
            if self.plan.jitter_us > 0 {
                us += self.dice.between(0, self.plan.jitter_us);
            }
            if self.strikes(self.plan.late) {
                us += self.dice.one_of(&[2_000, 20_000, 150_000]);
            }
            self.after(us, Event::Deliver { host: to, bytes: bytes.clone() });
        }
    }

    fn deliver(&mut self, host: usize, bytes: &[u8]) {
        if !self.hosts[host].up {
            return;
        }
        match encoding::decode(bytes) {
            Ok(envelope) if host < self.plan.prefills => {
                self.tell_source(host, source::Fact::Message(envelope));
            }
            Ok(envelope) => self.tell_reader(host, reader::Fact::Message(envelope)),
            Err(problem) => self.violate(format!("a message that was sent cannot be read: {problem}")),
        }
    }

    // ── The transport ─────────────────────────────────────────────────────────────────────────────────────────────────

    fn post(&mut self, mut flight: Flight) {
        let tokens: u32 = flight.runs.iter().map(|run| run.tokens).sum();
        if self.strikes(self.plan.parts_failed) {
            flight.fails_after = Some(self.dice.between(0, u64::from(tokens)) as u32);
        }
        if self.strikes(self.plan.parts_stuck) {
            flight.stuck = true;
        }
        self.flight += 1;
        self.flights.insert(self.flight, flight);
        self.after(self.plan.delay_us, Event::Copy { flight: self.flight });
    }

    /// Moves one cell.
    fn copy(&mut self, number: u64) {
        let Some(mut flight) = self.flights.get(&number).cloned() else { return };
        let (source, target) = (flight.prefill, flight.decode);
        let source_lives = self.is_running(source, flight.prefill_boot);
        let target_lives = self.is_running(target, flight.decode_boot);
        let initiator_lives = if flight.is_write { source_lives } else { target_lives };
        // A write that was posted before its process died may still be on the wire.
        if !initiator_lives && !(flight.is_write && self.plan.memory_goes_on) {
            self.flights.remove(&number);
            return;
        }
        let reader_fenced = {
            let peer = Peer { incarnation: Incarnation(flight.prefill_boot), ..self.hosts[source].peer };
            target_lives && self.hosts[target].fenced.contains(&(peer, flight.session))
        };
        let peer_lives = if flight.is_write { target_lives } else { source_lives };
        if !peer_lives || reader_fenced || flight.fails_after == Some(0) {
            self.end_flight(number, false);
            return;
        }
        if let Some(until) = self.is_cut(source, target) {
            self.at(until, Event::Copy { flight: number });
            return;
        }
        let stopped = self.hosts[source].stopped_until;
        if stopped > self.now && !self.plan.memory_goes_on {
            self.at(stopped, Event::Copy { flight: number });
            return;
        }
        let run = flight.runs[flight.run];
        let owner = Owner::Transfer(request_of(flight.id));
        let cell = if source_lives {
            let pool = &self.hosts[source].pool;
            if flight.is_write && pool.owner(run.source_block) != owner {
                let what = format!("block {} of {:?} is being written from", run.source_block, pool.owner(run.source_block));
                self.must(source, Err(what));
            }
            self.hosts[source].pool.read(run.source_block, run.source_slot + flight.token)
        } else {
            GARBAGE
        };
        let pool = &mut self.hosts[target].pool;
        let written = pool.write(run.target_block, run.target_slot + flight.token, cell, owner);
        if let Err(what) = written {
            self.must(target, Err(format!("late bytes of {}: {what}", flight.id)));
        }
        flight.token += 1;
        flight.fails_after = flight.fails_after.map(|cells| cells - 1);
        if flight.token == run.tokens {
            flight.token = 0;
            flight.run += 1;
        }
        let done = flight.run == flight.runs.len();
        // A stuck transfer has one cell left for ever, or until it is fenced.
        let stuck = flight.stuck;
        self.flights.insert(number, flight);
        if done {
            self.end_flight(number, true);
        } else if stuck {
            // Its bytes may come much later, if nobody prevents it.
            let us = self.dice.one_of(&[150_000, 1_000_000, 5_000_000]);
            self.flights.get_mut(&number).expect("it was just put there").stuck = false;
            self.after(us, Event::Copy { flight: number });
        } else {
            self.after(self.plan.cell_us, Event::Copy { flight: number });
        }
    }

    fn end_flight(&mut self, number: u64, landed: bool) {
        let flight = self.flights.remove(&number).expect("who ends flies");
        if self.strikes(self.plan.completions_lost) {
            return;
        }
        let (host, boot) = match flight.is_write {
            true => (flight.prefill, flight.prefill_boot),
            false => (flight.decode, flight.decode_boot),
        };
        let Flight { id, attempt, part, .. } = flight;
        self.after(self.plan.delay_us / 2, Event::PartEnded { host, boot, id, attempt, part, landed });
    }

    /// From here on nothing of this connection moves on this side.
    fn fence(&mut self, host: usize, peer: Peer, session: Session) {
        self.hosts[host].fenced.insert((peer, session));
        let boot = self.hosts[host].peer.incarnation.0;
        let other = (peer.address.0 - 100) as usize;
        let is_prefill = host < self.plan.prefills;
        self.flights.retain(|_, flight| {
            let own = if is_prefill {
                flight.is_write && (flight.prefill, flight.prefill_boot, flight.decode) == (host, boot, other)
            } else {
                !flight.is_write && (flight.decode, flight.decode_boot, flight.prefill) == (host, boot, other)
            };
            !(own && flight.session == session)
        });
        if is_prefill {
            self.tell_source(host, source::Fact::Fenced { peer, session });
        } else {
            self.tell_reader(host, reader::Fact::Fenced { peer, session });
        }
    }

    // ── Trouble ───────────────────────────────────────────────────────────────────────────────────────────────────────

    pub(crate) fn strike(&mut self, fault: Fault) {
        self.note(|_| format!("FAULT {fault:?}"));
        match fault {
            Fault::Crash { host, down_us } => self.crash(host, down_us),
            Fault::Stall { host, us } => {
                let until = self.now + us;
                self.hosts[host].stopped_until = self.hosts[host].stopped_until.max(until);
                self.at(until, Event::Go { host });
            }
            Fault::Partition { prefill, decode, us } => self.cuts.push((prefill, decode, self.now + us)),
            Fault::Abort { request, prefill, decode } => {
                let plan = Rc::clone(&self.plan);
                let plan = &plan.requests[request];
                if prefill {
                    self.call(plan.prefill, request, Call::AbortPrefill, 0);
                }
                if decode && self.clients[request].outcome.is_none() {
                    self.conclude(request, Outcome::Aborted);
                    self.call(plan.decode, request, Call::AbortDecode, 0);
                    self.abandon(request);
                }
            }
            Fault::Preempt { request } => {
                let host = self.plan.requests[request].decode;
                if self.hosts[host].up {
                    self.preempt(host, request);
                }
            }
        }
    }

    fn crash(&mut self, host: usize, down_us: Option<u64>) {
        if !self.hosts[host].up {
            return;
        }
        self.hosts[host].up = false;
        let is_prefill = host < self.plan.prefills;
        let plan = Rc::clone(&self.plan);
        for (at, request) in plan.requests.iter().enumerate() {
            let client = self.clients[at].clone();
            if is_prefill && request.prefill == host && client.prefill_asked && !client.prefill_answered {
                self.answer(at, Answer::Lost { prefill: true });
            }
            if !is_prefill && request.decode == host && client.decode_asked && !client.decode_answered {
                self.answer(at, Answer::Lost { prefill: false });
            }
        }
        if let Some(us) = down_us {
            self.after(us, Event::Boot { host });
        }
    }

    /// Nothing will happen any more: what is left that must not be?
    fn settle(&mut self) {
        for host in 0..self.hosts.len() {
            if !self.hosts[host].up {
                continue;
            }
            let (alive, remembered) = match &self.hosts[host].role {
                Role::Prefill { machine, .. } => (machine.transfers(), machine.tombstones()),
                Role::Decode { machine, .. } => (machine.transfers(), machine.tombstones()),
            };
            let left = self.hosts[host].pool.left();
            if left + alive + remembered > 0 {
                let what = format!("{left} blocks, {alive} transfers and {remembered} tombstones are left");
                self.must(host, Err(what));
            }
        }
        for request in 0..self.clients.len() {
            if self.clients[request].outcome.is_none() {
                self.violate(format!("request {request} has no end"));
            }
        }
    }

    /// How each request ended.
    pub(crate) fn outcomes(&self) -> impl Iterator<Item = Outcome> + '_ {
        self.clients.iter().filter_map(|client| client.outcome)
    }

    // ── For schedules that are enumerated ─────────────────────────────────────────────────────────────────────────────

    /// A hash of everything that decides what comes.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let World { now, hosts, flights, clients, cuts, dice, .. } = self;
        (now, hosts, clients, cuts, dice).hash(&mut hasher);
        for flight in flights.values() {
            flight.hash(&mut hasher);
        }
        for ((time, _), event) in &self.events {
            // A flight's number says nothing; what flies was hashed.
            if !matches!(event, Event::Copy { .. }) {
                (time, event).hash(&mut hasher);
            } else {
                time.hash(&mut hasher);
            }
        }
        hasher.finish()
    }

    /// What can go wrong with the event that comes next.
    pub(crate) fn next_is(&self) -> Option<NextIs> {
        let (_, event) = self.events.first_key_value()?;
        match event {
            Event::Deliver { .. } => Some(NextIs::Message),
            Event::Copy { .. } => Some(NextIs::Copy),
            Event::PartEnded { .. } => Some(NextIs::Completion),
            _ => None,
        }
    }

    /// Does that to the event that comes next.
    pub(crate) fn inject(&mut self, trouble: Trouble) {
        let Some(entry) = self.events.first_entry() else { return };
        let (time, _) = *entry.key();
        match trouble {
            Trouble::Lost => {
                let event = entry.remove();
                if let Event::Copy { flight } = event {
                    self.flights.remove(&flight);
                }
            }
            Trouble::Late(us) => {
                let event = entry.remove();
                self.at(time + us, event);
            }
            Trouble::Twice(us) => {
                let event = entry.get().clone();
                self.at(time + us, event);
            }
            Trouble::Fails => {
                if let Event::Copy { flight } = *entry.get()
                    && let Some(flight) = self.flights.get_mut(&flight)
                {
                    flight.fails_after = Some(0);
                }
            }
            Trouble::Strikes(fault) => {
                self.now = time;
                self.strike(fault);
            }
        }
    }

    /// Whether a request has not arrived, or not ended.
    pub(crate) fn is_open(&self) -> bool {
        self.clients.iter().any(|client| client.outcome.is_none())
    }
}

/// What can be tampered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextIs {
    Message,
    Copy,
    Completion,
}

/// A fault that is placed, not drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The message or completion never comes; the copy stops and nobody is told.
    Lost,
    /// It comes later.
    Late(u64),
    /// It comes, and once more later.
    Twice(u64),
    /// The copy fails, and says so.
    Fails,
    Strikes(Fault),
}
