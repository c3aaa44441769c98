//! The decode side: it has reserved blocks, gets the bytes into them, and uses them only if they are right.
//!
//! ```text
//!   Queued ──reserved──▶ Connecting ──connected──┬─ pull ─▶ Asking ──offer──▶ Reading ──landed──▶ Confirming ──good──▶ loaded
//!                             ▲                  │             ▲                 │
//!                             │ once more        │             └── read failed ──┘
//!                             │                  └─ push ─▶ Registered ──every part written──────────────────────────▶ loaded
//!                             └── write failed ──────────────────┘
//!
//!   failed or cancelled while …
//!     Queued, Connecting, Asking, Confirming   nothing is in flight               ─▶ over, blocks free
//!     Reading     ─▶ Draining   until every part has ended, or the peer is fenced ─▶ over, blocks free
//!     Registered  ─▶ Revoking   until the source has acknowledged, or is fenced   ─▶ over, blocks free
//!
//!   a connection   Down ──▶ Greeting ──welcome──▶ Testing ──canary good──▶ Up ──▶ Fencing ──fenced──▶ Down
//! ```
//!
//! # Invariants
//!
//! - Blocks are ours from [`Fact::Reserved`] on, and given back exactly once: with [`Action::Loaded`],
//!   [`Action::Free`] or [`Action::Refused`].
//! - No block is given back while something may land in it.
//! - A pulled copy is used only after its source called it good, and it asks that only after the read has ended.
//! - A pushed copy is used when every part of its registration is known to have landed, by number.
//! - A load is spent once: whatever became of it, the same transfer is refused from then on.
//! - Every wait has a deadline; a connection is fenced before another one is opened.

mod connections;
mod contract;
mod hearing;

use std::collections::BTreeMap;

use super::config::{Config, Counters};
use super::deadlines::Deadlines;
use super::failure::Failure;
use super::identity::{Address, Epoch, Incarnation, Peer, Session, Time, TransferId};
use super::mapping::{self, BlockTable};
use super::message::{End, Message, Offer};
use super::parts::{PARTS_MAX, Parts};
use super::tombstones::Tombstones;

pub use contract::{Action, Canary, Fact, Load, Mode};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Due {
    /// A load's phase takes too long.
    Load(TransferId),
    /// A load's question was not answered.
    Resend(TransferId),
    /// A source does not greet, or its canary cannot be read.
    Connect(Address),
    /// A greeting was not answered.
    Greet(Address),
    Heartbeat(Address),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Connection {
    Down,
    Greeting,
    Testing { peer: Peer },
    Up { peer: Peer },
    Fencing { peer: Peer, restarted: bool },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Link {
    session: Session,
    connection: Connection,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Record {
    load: Load,
    /// Which incarnation of the source has the transfer, once that is known.
    bound: Option<Incarnation>,
    retries: u32,
    /// The blocks, from `Reserved` on.
    table: Option<BlockTable>,
    phase: Phase,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Queued,
    Connecting,
    Asking,
    Reading { lease: Epoch, attempt: u64, parts: Parts },
    Confirming { lease: Epoch, attempt: u64 },
    Registered { epoch: Epoch, parts: Option<Parts> },
    Draining { attempt: u64, parts: Parts },
    Revoking { epoch: Epoch },
}

impl Phase {
    /// Something may land in the blocks.
    fn is_in_flight(&self) -> bool {
        match self {
            Phase::Queued | Phase::Connecting | Phase::Asking | Phase::Confirming { .. } => false,
            Phase::Reading { .. } | Phase::Registered { .. } | Phase::Draining { .. } | Phase::Revoking { .. } => true,
        }
    }

    /// The request has been told, or does not want to know; only its blocks are missing.
    fn is_quarantine(&self) -> bool {
        matches!(self, Phase::Draining { .. } | Phase::Revoking { .. })
    }
}

/// The loads of one decode instance.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct Reader {
    me: Peer,
    compatibility: Vec<u8>,
    config: Config,
    links: BTreeMap<Address, Link>,
    records: BTreeMap<TransferId, Record>,
    spent: Tombstones<()>,
    deadlines: Deadlines<Due>,
    sessions: u64,
    epochs: u64,
    attempts: u64,
    counters: Counters,
    wake: Option<Time>,
}

impl Reader {
    /// A reader that knows of nothing. `compatibility` is what it must agree on with its sources.
    #[must_use]
    pub fn new(me: Peer, compatibility: Vec<u8>, config: Config) -> Reader {
        assert_ne!(me.incarnation, Incarnation::WHOEVER, "a process is somebody");
        Reader {
            me,
            compatibility,
            links: BTreeMap::new(),
            records: BTreeMap::new(),
            spent: Tombstones::new(config.tombstones_max, config.tombstone_us),
            deadlines: Deadlines::new(),
            sessions: 0,
            epochs: 0,
            attempts: 0,
            counters: Counters::default(),
            wake: None,
            config,
        }
    }

    /// Takes a fact; what is due is done before it.
    pub fn handle(&mut self, now: Time, fact: Fact, out: &mut Vec<Action>) {
        self.expire(now, out);
        match fact {
            Fact::Discovered { source } => {
                self.connect(now, source, out);
            }
            Fact::Queued(load) => self.queue(now, load, out),
            Fact::Reserved { id, table } => self.reserve(now, id, table, out),
            Fact::Cancelled { id } => self.cancel(now, id, out),
            Fact::Message(envelope) => self.receive(now, envelope, out),
            Fact::PartEnded { id, attempt, part, landed } => self.end_part(now, id, attempt, part, landed, out),
            Fact::CanaryRead { source, session, canary } => self.tested(now, source, session, canary, out),
            Fact::Fenced { peer, session } => self.fenced(now, peer, session, out),
            Fact::Woken => {}
        }
        let earliest = [self.deadlines.earliest(), self.spent.earliest()].into_iter().flatten().min();
        if let Some(time) = earliest
            && self.wake.is_none_or(|asked| asked <= now || time < asked)
        {
            self.wake = Some(time);
            out.push(Action::WakeAt(time));
        }
    }

    /// How many loads are alive here, those whose blocks are in quarantine among them.
    #[must_use]
    pub fn transfers(&self) -> usize {
        self.records.len()
    }

    /// How many transfers are remembered to be spent.
    #[must_use]
    pub fn tombstones(&self) -> usize {
        self.spent.len()
    }

    /// Whether a request may be loaded from there without a greeting first.
    #[must_use]
    pub fn is_connected(&self, source: Address) -> bool {
        self.links.get(&source).is_some_and(|link| matches!(link.connection, Connection::Up { .. }))
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    fn queue(&mut self, now: Time, load: Load, out: &mut Vec<Action>) {
        let (id, source) = (load.id, load.source);
        let failure = if self.records.contains_key(&id) || self.spent.get(id).is_some() {
            Some(Failure::Spent)
        } else if self.records.len() >= self.config.transfers_max || !self.has_room_for(source) {
            Some(Failure::TooMany)
        } else {
            None
        };
        if let Some(failure) = failure {
            out.push(Action::Refused { id, failure });
            return;
        }
        let bound = load.offer.as_ref().map(|offer| offer.source.incarnation);
        let record = Record { retries: load.policy.retries, load, bound, table: None, phase: Phase::Queued };
        self.records.insert(id, record);
        self.connect(now, source, out);
        self.keep_alive(now, source);
    }

    fn reserve(&mut self, now: Time, id: TransferId, table: BlockTable, out: &mut Vec<Action>) {
        let Some(record) = self.records.get_mut(&id).filter(|record| record.phase == Phase::Queued) else {
            // It failed, or was cancelled, while the scheduler made room.
            self.counters.late += 1;
            out.push(Action::Free { id, blocks: table.numbers().collect() });
            return;
        };
        record.table = Some(table);
        record.phase = Phase::Connecting;
        self.deadlines.set(Due::Load(id), now.after(self.config.wait_us));
        self.go_on(now, id, out);
    }

    /// What a load does once it has blocks and a connection.
    fn go_on(&mut self, now: Time, id: TransferId, out: &mut Vec<Action>) {
        let record = self.records.get_mut(&id).expect("who goes on is alive");
        let source = record.load.source;
        let Connection::Up { peer } = self.connect(now, source, out) else { return };
        let record = self.records.get_mut(&id).expect("who goes on is alive");
        if let Phase::Queued | Phase::Draining { .. } | Phase::Revoking { .. } = record.phase {
            return;
        }
        let is_here = record.bound.is_none_or(|bound| bound == peer.incarnation);
        match (&record.phase, record.load.mode) {
            (Phase::Connecting, Mode::Pull) => match record.load.offer.take() {
                // An offer of another incarnation than one is connected with: one of the two is dead, and the answer
                // to the question says which.
                Some(offer) if offer.source == peer => self.read(now, id, offer, out),
                _ => {
                    record.phase = Phase::Asking;
                    self.ask(now, id, out);
                }
            },
            (Phase::Connecting, Mode::Push) if is_here => self.register(now, id, out),
            (Phase::Connecting, Mode::Push) => {
                // Nothing is registered with whom may be somebody else; a heartbeat finds out.
                self.say(source, Message::Heartbeat { ids: vec![id] }, out);
                self.deadlines.set(Due::Resend(id), now.after(self.config.resend_us));
            }
            (Phase::Asking | Phase::Confirming { .. } | Phase::Registered { .. }, _) => self.ask(now, id, out),
            _ => {}
        }
    }

    /// Asks the question of the phase, now and until it is answered.
    fn ask(&mut self, now: Time, id: TransferId, out: &mut Vec<Action>) {
        let record = &self.records[&id];
        let message = match &record.phase {
            Phase::Asking => Message::Ask { id },
            Phase::Confirming { lease, attempt } => Message::Done { id, epoch: *lease, attempt: *attempt },
            Phase::Registered { epoch, .. } => {
                let target = record.table.clone().expect("who registered has blocks");
                Message::Register { id, epoch: *epoch, target }
            }
            Phase::Revoking { epoch } => Message::Revoke { id, epoch: *epoch },
            Phase::Queued | Phase::Connecting | Phase::Reading { .. } | Phase::Draining { .. } => return,
        };
        self.say(record.load.source, message, out);
        self.deadlines.set(Due::Resend(id), now.after(self.config.resend_us));
    }

    fn register(&mut self, now: Time, id: TransferId, out: &mut Vec<Action>) {
        self.epochs += 1;
        let record = self.records.get_mut(&id).expect("who registers is alive");
        record.phase = Phase::Registered { epoch: Epoch(self.epochs), parts: None };
        self.ask(now, id, out);
    }

    fn read(&mut self, now: Time, id: TransferId, offer: Offer, out: &mut Vec<Action>) {
        let record = self.records.get_mut(&id).expect("who reads is alive");
        let source = record.load.source;
        let Some(&Link { session, connection: Connection::Up { peer } }) = self.links.get(&source) else { return };
        record.bound = Some(peer.incarnation);
        let table = record.table.as_ref().expect("who reads has blocks");
        let runs = match mapping::runs(&offer.table, table) {
            Ok(runs) if !runs.is_empty() => runs,
            _ => {
                self.give_up(now, id, Some(Failure::Ended(End::Unmappable)), out);
                return;
            }
        };
        let each = self.config.part_runs.max(runs.len().div_ceil(usize::from(PARTS_MAX)));
        let mut parts = Parts::new(runs.len().div_ceil(each) as u8);
        self.attempts += 1;
        let attempt = self.attempts;
        for (part, runs) in runs.chunks(each).enumerate() {
            let part = part as u8;
            parts.post(part);
            out.push(Action::Read { peer, session, id, attempt, part, runs: runs.to_vec() });
        }
        record.phase = Phase::Reading { lease: offer.epoch, attempt, parts };
        self.deadlines.clear(Due::Resend(id));
        self.deadlines.set(Due::Load(id), now.after(self.config.transfer_us));
    }

    fn end_part(&mut self, now: Time, id: TransferId, attempt: u64, part: u8, landed: bool, out: &mut Vec<Action>) {
        let phase = self.records.get_mut(&id).map(|record| &mut record.phase);
        let (parts, lease) = match phase {
            Some(Phase::Reading { attempt: current, parts, lease }) if *current == attempt => (parts, Some(*lease)),
            Some(Phase::Draining { attempt: current, parts }) if *current == attempt => (parts, None),
            _ => {
                self.counters.late += 1;
                return;
            }
        };
        if landed {
            parts.land(part);
        } else {
            parts.fail(part);
        }
        let parts = *parts;
        if parts.in_flight() > 0 {
            return;
        }
        match lease {
            None => self.bury(now, id, out),
            Some(_) if parts.has_failed() => self.fail_safely(now, id, Failure::ReadFailed, out),
            Some(lease) => {
                let record = self.records.get_mut(&id).expect("it was just there");
                record.phase = Phase::Confirming { lease, attempt };
                self.deadlines.set(Due::Load(id), now.after(self.config.confirm_us));
                self.ask(now, id, out);
            }
        }
    }

    /// A load failed whose blocks nothing can land in: once more, or for good.
    fn fail_safely(&mut self, now: Time, id: TransferId, failure: Failure, out: &mut Vec<Action>) {
        let record = self.records.get_mut(&id).expect("who fails is alive");
        record.phase = Phase::Connecting;
        record.load.offer = None;
        if record.retries > 0 && failure.may_pass() {
            record.retries -= 1;
            self.deadlines.set(Due::Load(id), now.after(self.config.wait_us));
            self.go_on(now, id, out);
        } else {
            self.give_up(now, id, Some(failure), out);
        }
    }

    /// A load is over. The request is told if there is a failure to tell; the blocks are given back when nothing
    /// can land in them any more.
    fn give_up(&mut self, now: Time, id: TransferId, failure: Option<Failure>, out: &mut Vec<Action>) {
        let record = self.records.get_mut(&id).expect("who gives up is alive");
        let source = record.load.source;
        if record.phase.is_quarantine() {
            return;
        }
        if let Some(failure) = failure {
            out.push(Action::Failed { id, failure, otherwise: record.load.policy.otherwise });
        }
        let quarantine = now.after(self.config.quarantine_us);
        match record.phase {
            Phase::Reading { attempt, parts, .. } => {
                record.phase = Phase::Draining { attempt, parts };
                self.deadlines.set(Due::Load(id), quarantine);
                self.say(source, Message::Drop { id }, out);
            }
            Phase::Registered { epoch, .. } => {
                record.phase = Phase::Revoking { epoch };
                self.deadlines.set(Due::Load(id), quarantine);
                self.ask(now, id, out);
            }
            _ => {
                self.say(source, Message::Drop { id }, out);
                self.bury(now, id, out);
            }
        }
    }

    fn cancel(&mut self, now: Time, id: TransferId, out: &mut Vec<Action>) {
        match self.records.contains_key(&id) {
            true => self.give_up(now, id, None, out),
            false => self.counters.late += 1,
        }
    }

    /// Nothing can land any more and nobody waits: the record goes.
    fn bury(&mut self, now: Time, id: TransferId, out: &mut Vec<Action>) {
        let record = self.forget(now, id);
        if let Some(table) = record.table {
            out.push(Action::Free { id, blocks: table.numbers().collect() });
        }
    }

    fn forget(&mut self, now: Time, id: TransferId) -> Record {
        self.deadlines.clear(Due::Load(id));
        self.deadlines.clear(Due::Resend(id));
        self.spent.bury(now, id, ());
        self.records.remove(&id).expect("who is forgotten was alive")
    }

    fn loaded(&mut self, now: Time, id: TransferId, out: &mut Vec<Action>) {
        let record = self.forget(now, id);
        let table = record.table.expect("who is loaded has blocks");
        out.push(Action::Loaded { id, end_token: table.end_token, blocks: table.numbers().collect() });
    }

    fn expire(&mut self, now: Time, out: &mut Vec<Action>) {
        while let Some(due) = self.deadlines.take_due(now) {
            match due {
                Due::Load(id) => self.overdue(now, id, out),
                Due::Resend(id) => self.go_on_or_ask(now, id, out),
                Due::Connect(source) => self.cannot_connect(now, source, out),
                Due::Greet(source) => self.greet(now, source, out),
                Due::Heartbeat(source) => self.beat(now, source, out),
            }
        }
        self.spent.expire(now);
    }

    fn go_on_or_ask(&mut self, now: Time, id: TransferId, out: &mut Vec<Action>) {
        match self.records[&id].phase {
            Phase::Connecting => self.go_on(now, id, out),
            _ => self.ask(now, id, out),
        }
    }

    fn overdue(&mut self, now: Time, id: TransferId, out: &mut Vec<Action>) {
        let source = self.records[&id].load.source;
        match self.records[&id].phase {
            Phase::Queued => unreachable!("a queued load has no deadline: its scheduler ends it"),
            Phase::Connecting | Phase::Asking => self.give_up(now, id, Some(Failure::Unanswered), out),
            Phase::Registered { .. } => self.give_up(now, id, Some(Failure::NotWritten), out),
            Phase::Confirming { .. } => self.give_up(now, id, Some(Failure::Unconfirmed), out),
            Phase::Reading { .. } => {
                // A peer that is alive but stopped answers no read and fails none.
                self.give_up(now, id, Some(Failure::ReadStuck), out);
                self.fence(source, false, out);
            }
            Phase::Draining { .. } | Phase::Revoking { .. } => {
                self.fence(source, false, out);
            }
        }
    }

    fn keep_alive(&mut self, now: Time, source: Address) {
        if !self.deadlines.is_set(Due::Heartbeat(source)) {
            self.deadlines.set(Due::Heartbeat(source), now.after(self.config.heartbeat_us));
        }
    }

    fn beat(&mut self, now: Time, source: Address, out: &mut Vec<Action>) {
        let wants = |record: &Record| record.load.source == source && !record.phase.is_quarantine();
        let ids: Vec<TransferId> = self.records.iter().filter(|(_, record)| wants(record)).map(|(id, _)| *id).collect();
        if ids.is_empty() {
            return;
        }
        for ids in ids.chunks(HEARTBEAT_IDS_MAX) {
            self.say(source, Message::Heartbeat { ids: ids.to_vec() }, out);
        }
        self.keep_alive(now, source);
    }

    /// Asserts what holds after every fact that was told at `now`.
    pub fn check(&self, now: Time) {
        assert!(!self.deadlines.is_overdue(now), "whatever is due has been done");
        self.spent.check();
        assert!(self.records.len() <= self.config.transfers_max, "transfers are bounded");
        assert!(self.links.len() <= self.config.peers_max, "peers are bounded");
        for (id, record) in &self.records {
            assert!(self.spent.get(*id).is_none(), "{id} is alive or spent, not both");
            assert_eq!(record.table.is_none(), record.phase == Phase::Queued, "{id} has blocks once they are reserved");
            let link = self.links.get(&record.load.source);
            let fencing = link.is_some_and(|link| matches!(link.connection, Connection::Fencing { .. }));
            let waits = self.deadlines.is_set(Due::Load(*id)) || record.phase == Phase::Queued;
            assert!(waits || fencing, "{id} waits, so it ends by a deadline or by the fence");
            if record.phase.is_in_flight() {
                let up = link.is_some_and(|link| matches!(link.connection, Connection::Up { .. }));
                assert!(up || fencing, "{id} is in flight, so its connection stands or is being fenced");
            }
        }
        for due in self.deadlines.keys() {
            if let Due::Load(id) | Due::Resend(id) = due {
                assert!(self.records.contains_key(&id), "{id} is over and has a deadline");
            }
        }
    }
}

/// Most transfers one heartbeat names; more are several messages.
const HEARTBEAT_IDS_MAX: usize = 1_024;
