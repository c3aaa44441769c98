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

mod decode;
mod gateway;
mod prefill;
mod transport;
mod trouble;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;
use std::hash::Hash;
use std::rc::Rc;

use super::dice::Dice;
use super::plan::{Clock, Fault, Plan, Request};
use super::pool::{Owner, Pool};
use crate::protocol::mapping::Run;
use crate::protocol::message::Offer;
use crate::protocol::reader::{self, Canary, Reader};
use crate::protocol::source::{self, Source};
use crate::protocol::{Address, Failure, Incarnation, Peer, Session, TransferId};

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
    Decoded {
        loaded: bool,
    },
    DecodeFailed(Failure),
    /// The process has gone, or was never there.
    Lost {
        prefill: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Event {
    Arrive(usize),
    Call {
        host: usize,
        request: usize,
        call: Call,
    },
    Answer {
        request: usize,
        answer: Answer,
    },
    Deliver {
        host: usize,
        bytes: Vec<u8>,
    },
    Wake {
        host: usize,
        boot: u64,
    },
    /// The next token of a prefill, there or at the reader.
    Compute {
        host: usize,
        boot: u64,
        request: usize,
        run: u64,
    },
    Copy {
        flight: u64,
    },
    PartEnded {
        host: usize,
        boot: u64,
        id: TransferId,
        attempt: u64,
        part: u8,
        landed: bool,
    },
    Fenced {
        host: usize,
        boot: u64,
        peer: Peer,
        session: Session,
    },
    CanaryRead {
        host: usize,
        boot: u64,
        source: Peer,
        session: Session,
    },
    Boot {
        host: usize,
    },
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
    /// Its end has been answered; it goes on all the same.
    unwanted: bool,
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

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Client {
    outcome: Option<Outcome>,
    prefill_asked: bool,
    prefill_answered: bool,
    /// The decode instance that was asked last.
    decode: usize,
    /// What the prefill answered.
    offer: Option<Offer>,
    decode_asked: bool,
    decode_answered: bool,
}

impl Client {
    fn of(request: &Request) -> Client {
        Client {
            outcome: None,
            prefill_asked: false,
            prefill_answered: false,
            decode: request.decode,
            offer: None,
            decode_asked: false,
            decode_answered: false,
        }
    }
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
    /// KV of a token that a transfer wrote into the reader's pool.
    pub(crate) cells_copied: u64,
    /// KV of a token that a decode step read and that was compared.
    pub(crate) cells_read: u64,
    /// Blocks that were not free when nothing would happen any more.
    pub(crate) blocks_left: u64,
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
            clients: plan.requests.iter().map(Client::of).collect(),
            cuts: Vec::new(),
            violation: None,
            trace: traced.then(Vec::new),
            fences: 0,
            leases_expired: 0,
            messages: 0,
            cells_copied: 0,
            cells_read: 0,
            blocks_left: 0,
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

    fn at(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        self.events.insert((time.max(self.now), self.sequence), event);
    }

    fn after(&mut self, us: u64, event: Event) {
        self.at(self.now + us, event);
    }

    fn note(&mut self, what: impl FnOnce(&World) -> String) {
        if let Some(mut trace) = self.trace.take() {
            trace.push(format!("{:>9} us  {}", self.now, what(self)));
            self.trace = Some(trace);
        }
    }

    fn name(&self, host: usize) -> String {
        let (role, at) =
            if host < self.plan.prefills { ("prefill", host) } else { ("decode", host - self.plan.prefills) };
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
            self.violate(format!(
                "not over in time: {over} of {} requests have ended; next {event:?}",
                self.clients.len()
            ));
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
            Event::Boot { .. } | Event::Strike(_) => None,
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

    fn give_back(&mut self, host: usize, request: usize, blocks: &[u32]) {
        let pool = &mut self.hosts[host].pool;
        let passed = blocks.iter().try_for_each(|&block| pool.pass(block, Owner::Transfer(request), Owner::Free));
        self.must(host, passed);
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
            self.blocks_left += left as u64;
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
