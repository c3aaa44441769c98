//! The prefill side: it has computed a prompt's KV and keeps it until somebody has it, or the lease is over.
//!
//! ```text
//!   Expected
//!      │
//!      ▼        failed, aborted, dropped, abandoned
//!   Prefilling ────────────────────────────────────────────────────▶ over (blocks were never ours)
//!      │ finished: the blocks are ours
//!      ▼        read done · lease over · dropped · abandoned · reader restarted
//!   Leased ────────────────────────────────────────────────────────▶ over, blocks free
//!      │   ▲
//!      │   └─ a part failed, or the reader was fenced
//!      │ a reader has registered
//!      ▼        every part landed · revoked, abandoned, … and nothing is in flight
//!   Writing ───────────────────────────────────────────────────────▶ over, blocks free
//! ```
//!
//! What is over is remembered for a while, as a tombstone, so that a reader that asks again hears the same.
//!
//! # Invariants
//!
//! - A transfer is known because the scheduler said so, never because of a message.
//! - Blocks are ours from [`Fact::PrefillFinished`] on, and given back exactly once, with [`Action::Free`].
//! - A lease is judged by this clock alone: a read is good if its end was told before the lease's.
//! - No block is free while a write from it is in flight: it lands, fails, or its peer is fenced.
//! - Before each part is posted, its registration is still the one that counts.
//! - A transfer belongs to the first reader that names it, until that reader is restarted or gone.

mod connections;
mod contract;
mod pull;
mod push;

use std::collections::{BTreeMap, BTreeSet};

use super::config::{Config, Counters};
use super::deadlines::Deadlines;
use super::identity::{Address, Epoch, Incarnation, Peer, Session, Time, TransferId};
use super::mapping::{BlockTable, Run};
use super::message::{End, Message, Offer};
use super::parts::Parts;
use super::tombstones::Tombstones;

pub use contract::{Action, Fact};

/// A reader that is connected.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Link {
    peer: Peer,
    session: Session,
    /// The highest registration that was revoked before its transfer was known. A registration that is not above it
    /// was overtaken by its own revocation, or by another's; in doubt it has to be made anew.
    barrier: Epoch,
}

/// Who a transfer belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Attached {
    peer: Peer,
    session: Session,
    /// Where to write, if it is a push.
    registration: Option<(Epoch, BlockTable)>,
    /// Registrations up to this are over: revoked or failed.
    epoch_over: Epoch,
    /// Asked for what it will read, and gets the offer once there is one.
    asked: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Record {
    phase: Phase,
    reader: Option<Attached>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Prefilling,
    Leased { table: BlockTable, epoch: Epoch },
    Writing { table: BlockTable, epoch: Epoch, write: Write },
}

/// A registration being served.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Write {
    peer: Peer,
    session: Session,
    /// The registration.
    epoch: Epoch,
    attempt: u64,
    runs: Vec<Vec<Run>>,
    parts: Parts,
    /// The transfer is over as soon as nothing is in flight.
    stop: Option<End>,
}

/// How a transfer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Ending {
    /// Only this read of this reader was good: a later one, or another's, read blocks that were given back.
    Good {
        reader: Peer,
        attempt: u64,
    },
    Written {
        reader: Peer,
        epoch: Epoch,
        parts: Parts,
    },
    Ended(End),
}

/// The transfers of one prefill instance.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct Source {
    me: Peer,
    compatibility: Vec<u8>,
    canary: Vec<u8>,
    config: Config,
    links: BTreeMap<Address, Link>,
    records: BTreeMap<TransferId, Record>,
    over: Tombstones<Ending>,
    deadlines: Deadlines<TransferId>,
    fencing: BTreeSet<(Peer, Session)>,
    leases: u64,
    attempts: u64,
    counters: Counters,
    wake: Option<Time>,
}

impl Source {
    /// A source that knows of nothing. `canary` says what a reader must be able to read from it, `compatibility` what it
    /// must agree with; both are opaque here.
    #[must_use]
    pub fn new(me: Peer, compatibility: Vec<u8>, canary: Vec<u8>, config: Config) -> Source {
        assert_ne!(me.incarnation, Incarnation::WHOEVER, "a process is somebody");
        Source {
            me,
            compatibility,
            canary,
            links: BTreeMap::new(),
            records: BTreeMap::new(),
            over: Tombstones::new(config.tombstones_max, config.tombstone_us),
            deadlines: Deadlines::new(),
            fencing: BTreeSet::new(),
            leases: 0,
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
            Fact::Expected { id } => self.expect(id, out),
            Fact::PrefillFinished { id, table } => self.lease(now, id, table, out),
            Fact::PrefillFailed { id } => self.end_prefill(now, id, End::PrefillFailed, out),
            Fact::Aborted { id } => self.end_prefill(now, id, End::Aborted, out),
            Fact::Abandoned { id } => self.end_when_quiet(now, id, End::Abandoned, out),
            Fact::Message(envelope) => self.receive(now, envelope, out),
            Fact::PartEnded { id, attempt, part, landed } => self.end_part(now, id, attempt, part, landed, out),
            Fact::Fenced { peer, session } => self.fenced(now, peer, session, out),
            Fact::Woken => {}
        }
        let earliest = [self.deadlines.earliest(), self.over.earliest()].into_iter().flatten().min();
        if let Some(time) = earliest
            && self.wake.is_none_or(|asked| asked <= now || time < asked)
        {
            self.wake = Some(time);
            out.push(Action::WakeAt(time));
        }
    }

    /// How many transfers are alive here.
    #[must_use]
    pub fn transfers(&self) -> usize {
        self.records.len()
    }

    /// How many transfers are remembered to have ended.
    #[must_use]
    pub fn tombstones(&self) -> usize {
        self.over.len()
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    fn expect(&mut self, id: TransferId, out: &mut Vec<Action>) {
        let known = self.records.contains_key(&id) || self.over.get(id).is_some();
        if known || self.records.len() >= self.config.transfers_max {
            out.push(Action::Refused { id });
            return;
        }
        self.records.insert(id, Record { phase: Phase::Prefilling, reader: None });
    }

    fn lease(&mut self, now: Time, id: TransferId, table: BlockTable, out: &mut Vec<Action>) {
        let Some(record) = self.records.get_mut(&id).filter(|record| record.phase == Phase::Prefilling) else {
            // It was dropped, abandoned or never expected while it was computed.
            self.counters.late += 1;
            out.push(Action::Free { id, blocks: table.numbers().collect() });
            return;
        };
        self.leases += 1;
        let epoch = Epoch(self.leases);
        record.phase = Phase::Leased { table: table.clone(), epoch };
        self.deadlines.set(id, now.after(self.config.lease_us));
        let offer = Offer { source: self.me, epoch, table };
        out.push(Action::Offered { id, offer: offer.clone() });
        if let Some(reader) = &record.reader
            && reader.asked
        {
            let (peer, session) = (reader.peer, reader.session);
            self.send(peer, session, Message::Offer { id, offer }, out);
        }
        self.write_if_registered(now, id, out);
    }

    fn end_prefill(&mut self, now: Time, id: TransferId, end: End, out: &mut Vec<Action>) {
        if self.records.get(&id).is_some_and(|record| record.phase == Phase::Prefilling) {
            self.end(now, id, Ending::Ended(end), out);
        } else {
            self.counters.late += 1;
        }
    }

    /// Ends a transfer that nobody wants, once no byte of it is in flight.
    fn end_when_quiet(&mut self, now: Time, id: TransferId, end: End, out: &mut Vec<Action>) {
        let Some(record) = self.records.get_mut(&id) else {
            self.counters.late += 1;
            return;
        };
        match &mut record.phase {
            Phase::Prefilling => {
                out.push(Action::Unwanted { id });
                self.end(now, id, Ending::Ended(end), out);
            }
            Phase::Leased { .. } => self.end(now, id, Ending::Ended(end), out),
            Phase::Writing { write, .. } => {
                write.stop.get_or_insert(end);
                self.settle_write(now, id, false, out);
            }
        }
    }

    /// The transfer is over: its blocks are given back, its reader is told, its ending is remembered.
    fn end(&mut self, now: Time, id: TransferId, ending: Ending, out: &mut Vec<Action>) {
        let record = self.records.remove(&id).expect("who ends is alive");
        self.deadlines.clear(id);
        if let Phase::Leased { table, .. } | Phase::Writing { table, .. } = record.phase {
            out.push(Action::Free { id, blocks: table.numbers().collect() });
        }
        if let (Some(reader), Ending::Ended(end)) = (record.reader, ending) {
            let message = match (end, reader.registration) {
                (End::Dropped, Some((epoch, _))) => Message::Revoked { id, epoch },
                (End::Dropped | End::ReaderRestarted, _) => {
                    self.over.bury(now, id, ending);
                    return;
                }
                _ => Message::Ended { id, end },
            };
            self.send(reader.peer, reader.session, message, out);
        }
        self.over.bury(now, id, ending);
    }

    /// Leases that ran out, and writes that take too long.
    fn expire(&mut self, now: Time, out: &mut Vec<Action>) {
        while let Some(id) = self.deadlines.take_due(now) {
            match &self.records[&id].phase {
                Phase::Prefilling => unreachable!("a prefill has no deadline here: the scheduler ends it"),
                Phase::Leased { .. } => {
                    self.counters.leases_expired += 1;
                    self.end(now, id, Ending::Ended(End::LeaseOver), out);
                }
                Phase::Writing { write, .. } => {
                    let (peer, session) = (write.peer, write.session);
                    self.fence(peer, session, out);
                }
            }
        }
        self.over.expire(now);
    }

    /// Asserts what holds after every fact that was told at `now`.
    pub fn check(&self, now: Time) {
        assert!(!self.deadlines.is_overdue(now), "whatever is due has been done");
        self.over.check();
        assert!(self.records.len() <= self.config.transfers_max, "transfers are bounded");
        assert!(self.links.len() <= self.config.peers_max, "peers are bounded");
        for (id, record) in &self.records {
            assert!(self.over.get(*id).is_none(), "{id} is alive or over, not both");
            let has_blocks = record.phase != Phase::Prefilling;
            let deadline = self.deadlines.is_set(*id);
            if let Phase::Writing { write, .. } = &record.phase {
                let fencing = self.fencing.contains(&(write.peer, write.session));
                assert!(deadline || fencing, "{id} writes, so it ends by a deadline or by the fence");
                assert!(write.parts.in_flight() > 0 || fencing, "{id} writes, so something is in flight");
            } else {
                assert_eq!(deadline, has_blocks, "{id} holds blocks, so it has a deadline");
            }
        }
        for id in self.deadlines.keys() {
            assert!(self.records.contains_key(&id), "{id} is over and has a deadline");
        }
    }
}
