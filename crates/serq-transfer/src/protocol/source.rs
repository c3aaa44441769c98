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
//! What is over is remembered for a while ([`Tombstones`]), so that a reader that asks again hears the same.
//!
//! # Invariants
//!
//! - A transfer is known because the scheduler said so, never because of a message.
//! - Blocks are ours from [`Fact::PrefillFinished`] on, and given back exactly once, with [`Action::Free`].
//! - A lease is judged by this clock alone: a read is good if its end was told before the lease's.
//! - No block is free while a write from it is in flight: it lands, fails, or its peer is fenced.
//! - Before each part is posted, its registration is still the one that counts.
//! - A transfer belongs to the first reader that names it, until that reader is restarted or gone.

use std::collections::{BTreeMap, BTreeSet};

use super::config::{Config, Counters};
use super::deadlines::Deadlines;
use super::identity::{Address, Epoch, Incarnation, Peer, Session, Time, TransferId};
use super::mapping::{self, BlockTable, Run};
use super::message::{End, Envelope, Message, Offer, Refusal, VERSION};
use super::parts::{PARTS_MAX, Parts};
use super::tombstones::Tombstones;

/// What a source is told.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Fact {
    /// The scheduler will run this prefill, whose KV somebody will fetch.
    Expected {
        /// Minted by whoever dispatched it, and never used before.
        id: TransferId,
    },
    /// The prefill is over and its blocks hold the KV. They are the transfer's now, whatever is known of it.
    PrefillFinished {
        /// Which.
        id: TransferId,
        /// Where the KV is.
        table: BlockTable,
    },
    /// The prefill failed, or will not be run. Its blocks stay the scheduler's.
    PrefillFailed {
        /// Which.
        id: TransferId,
    },
    /// The prefill leg was aborted: its client has gone, which is usual once it has its answer. So this ends what is
    /// still computed, and is nothing to a lease.
    Aborted {
        /// Which.
        id: TransferId,
    },
    /// Nobody will come: the decode leg was refused, or the whole request is over.
    Abandoned {
        /// Which.
        id: TransferId,
    },
    /// A message came.
    Message(Envelope),
    /// A part of a write is over.
    PartEnded {
        /// Which transfer.
        id: TransferId,
        /// [`Action::Write`]'s.
        attempt: u64,
        /// Which part.
        part: u8,
        /// Whether its bytes are in the reader's memory; else it could not be posted, or failed.
        landed: bool,
    },
    /// What [`Action::Fence`] asked for is so.
    Fenced {
        /// The reader.
        peer: Peer,
        /// The connection.
        session: Session,
    },
    /// Time has passed.
    Woken,
}

/// What a source wants done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send this.
    Send(Envelope),
    /// The blocks are leased. Who dispatches the legs one after the other carries this to the reader.
    Offered {
        /// Which.
        id: TransferId,
        /// What to read, and from whom.
        offer: Offer,
    },
    /// Write a part, and tell [`Fact::PartEnded`].
    Write {
        /// To whom.
        peer: Peer,
        /// On which connection.
        session: Session,
        /// Which transfer.
        id: TransferId,
        /// Which try.
        attempt: u64,
        /// Which part.
        part: u8,
        /// What goes where.
        runs: Vec<Run>,
    },
    /// See to it that nothing of this connection moves any more, and tell [`Fact::Fenced`]. It must become so without the
    /// peer's help.
    Fence {
        /// The reader.
        peer: Peer,
        /// The connection.
        session: Session,
    },
    /// These blocks are the pool's again.
    Free {
        /// Whose they were.
        id: TransferId,
        /// Their numbers.
        blocks: Vec<u32>,
    },
    /// Nobody will fetch what is being computed.
    Unwanted {
        /// Which.
        id: TransferId,
    },
    /// There is no room for this transfer, or it is known already. The prefill cannot be handed over.
    Refused {
        /// Which.
        id: TransferId,
    },
    /// Tell [`Fact::Woken`] at this time, or later.
    WakeAt(Time),
}

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
    Good { epoch: Epoch },
    Written { epoch: Epoch, parts: Parts },
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

    fn fence(&mut self, peer: Peer, session: Session, out: &mut Vec<Action>) {
        if self.links.get(&peer.address).is_some_and(|link| link.peer == peer && link.session == session) {
            self.links.remove(&peer.address);
        }
        self.forget_registrations(peer, session);
        if self.fencing.insert((peer, session)) {
            self.counters.fences += 1;
            out.push(Action::Fence { peer, session });
        }
    }

    /// What was registered on a connection ends with it.
    fn forget_registrations(&mut self, peer: Peer, session: Session) {
        let readers = self.records.values_mut().filter_map(|record| record.reader.as_mut());
        for reader in readers.filter(|reader| reader.peer == peer && reader.session == session) {
            if let Some((epoch, _)) = reader.registration.take() {
                reader.epoch_over = reader.epoch_over.max(epoch);
            }
        }
    }

    fn fenced(&mut self, now: Time, peer: Peer, session: Session, out: &mut Vec<Action>) {
        self.fencing.remove(&(peer, session));
        for id in self.writing(peer, session) {
            self.settle_write(now, id, true, out);
        }
    }

    fn writing(&self, peer: Peer, session: Session) -> Vec<TransferId> {
        let is_it = |record: &Record| {
            matches!(&record.phase, Phase::Writing { write, .. } if write.peer == peer && write.session == session)
        };
        self.records.iter().filter(|(_, record)| is_it(record)).map(|(id, _)| *id).collect()
    }

    // ── Messages ──────────────────────────────────────────────────────────────────────────────────────────────────────

    fn send(&self, to: Peer, session: Session, message: Message, out: &mut Vec<Action>) {
        out.push(Action::Send(Envelope { from: self.me, to, session, message }));
    }

    fn receive(&mut self, now: Time, envelope: Envelope, out: &mut Vec<Action>) {
        let Envelope { from, to, session, message } = envelope;
        if to.address != self.me.address {
            self.counters.misaddressed += 1;
            return;
        }
        if let Message::Hello { version, compatibility } = message {
            self.greet(now, from, session, version, &compatibility, out);
            return;
        }
        if let Message::SomebodyElse { meant } = message {
            // Only the living say so, and only of the dead.
            if let Some(link) = self.links.get(&from.address)
                && link.peer.incarnation == meant
                && link.session == session
                && from.incarnation != meant
            {
                let gone = link.peer;
                self.links.remove(&from.address);
                self.part_with(now, gone, session, true, out);
            }
            return;
        }
        if to.incarnation != self.me.incarnation {
            self.counters.misaddressed += 1;
            self.send(from, session, Message::SomebodyElse { meant: to.incarnation }, out);
            return;
        }
        if !self.links.get(&from.address).is_some_and(|link| link.peer == from && link.session == session) {
            self.counters.stale += 1;
            self.send(from, session, Message::Reset, out);
            return;
        }
        match message {
            Message::Ask { id } => self.ask(from, session, id, out),
            Message::Register { id, epoch, target } => self.register(now, from, session, id, epoch, target, out),
            Message::Heartbeat { ids } => self.prolong(now, from, session, &ids, out),
            Message::Done { id, epoch } => self.judge(now, from, session, id, epoch, out),
            Message::Drop { id } => {
                if self.attach(from, session, id, out).is_some() {
                    self.end_when_quiet(now, id, End::Dropped, out);
                }
            }
            Message::Revoke { id, epoch } => self.revoke(now, from, session, id, epoch, out),
            _ => self.counters.stale += 1,
        }
    }

    fn greet(
        &mut self,
        now: Time,
        from: Peer,
        session: Session,
        version: u16,
        compatibility: &[u8],
        out: &mut Vec<Action>,
    ) {
        let refusal = if version != VERSION {
            Some(Refusal::Version { source: VERSION })
        } else if compatibility != self.compatibility {
            Some(Refusal::Compatibility)
        } else if !self.links.contains_key(&from.address) && !self.has_room_for_a_peer() {
            Some(Refusal::Full)
        } else {
            None
        };
        if let Some(refusal) = refusal {
            self.send(from, session, Message::Refused { refusal }, out);
            return;
        }
        if self.fencing.contains(&(from, session)) {
            self.send(from, session, Message::Reset, out);
            return;
        }
        match self.links.get(&from.address).cloned() {
            Some(link) if link.peer == from && session < link.session => {
                self.counters.stale += 1;
                return;
            }
            Some(link) if link.peer == from && session == link.session => {}
            before => {
                self.links.insert(from.address, Link { peer: from, session, barrier: Epoch(0) });
                if let Some(before) = before {
                    self.part_with(now, before.peer, before.session, before.peer != from, out);
                }
            }
        }
        self.send(from, session, Message::Welcome { canary: self.canary.clone() }, out);
    }

    /// Whether one more peer may connect; one that has no transfer makes room.
    fn has_room_for_a_peer(&mut self) -> bool {
        if self.links.len() < self.config.peers_max {
            return true;
        }
        let busy: BTreeSet<Address> =
            self.records.values().filter_map(|record| Some(record.reader.as_ref()?.peer.address)).collect();
        let idle = self.links.keys().find(|address| !busy.contains(address)).copied();
        idle.is_some_and(|address| self.links.remove(&address).is_some())
    }

    /// A connection is over. What is in flight on it is fenced; where its reader was replaced, nobody will come for its
    /// transfers, else the reader may come back for them.
    fn part_with(&mut self, now: Time, peer: Peer, session: Session, restarted: bool, out: &mut Vec<Action>) {
        let is_its = |record: &Record| record.reader.as_ref().is_some_and(|reader| reader.peer == peer);
        let ids: Vec<TransferId> =
            self.records.iter().filter(|(_, record)| is_its(record)).map(|(id, _)| *id).collect();
        if restarted {
            for id in ids {
                self.end_when_quiet(now, id, End::ReaderRestarted, out);
            }
        }
        self.forget_registrations(peer, session);
        if !self.writing(peer, session).is_empty() {
            self.fence(peer, session, out);
        }
    }

    /// The transfer, if it is alive and this reader's; else the reader is told.
    fn attach(&mut self, from: Peer, session: Session, id: TransferId, out: &mut Vec<Action>) -> Option<&mut Record> {
        if !self.records.contains_key(&id) {
            self.tell_ending(from, session, id, out);
            return None;
        }
        let record = self.records.get_mut(&id).expect("it was just there");
        match &mut record.reader {
            Some(reader) if reader.peer.address != from.address => {
                self.send(from, session, Message::Ended { id, end: End::Taken }, out);
                return None;
            }
            Some(reader) if reader.peer == from => {
                if reader.session != session {
                    // What was registered on another connection is over with it.
                    let before = reader.registration.take();
                    reader.epoch_over = before.map_or(reader.epoch_over, |(epoch, _)| epoch.max(reader.epoch_over));
                    reader.session = session;
                }
            }
            reader => {
                let epoch_over = Epoch(0);
                *reader = Some(Attached { peer: from, session, registration: None, epoch_over, asked: false });
            }
        }
        self.records.get_mut(&id)
    }

    /// How a transfer that is not alive ended, if that is known.
    fn tell_ending(&mut self, to: Peer, session: Session, id: TransferId, out: &mut Vec<Action>) {
        let message = match self.over.get(id) {
            None => {
                self.counters.unknown += 1;
                Message::Unknown { id }
            }
            Some(Ending::Ended(end)) => Message::Ended { id, end: *end },
            Some(Ending::Good { .. } | Ending::Written { .. }) => Message::Ended { id, end: End::Consumed },
        };
        self.send(to, session, message, out);
    }

    fn ask(&mut self, from: Peer, session: Session, id: TransferId, out: &mut Vec<Action>) {
        let source = self.me;
        let Some(record) = self.attach(from, session, id, out) else { return };
        record.reader.as_mut().expect("it was attached").asked = true;
        let message = match &record.phase {
            Phase::Leased { table, epoch } => {
                Message::Offer { id, offer: Offer { source, epoch: *epoch, table: table.clone() } }
            }
            Phase::Prefilling | Phase::Writing { .. } => Message::Waiting { id },
        };
        self.send(from, session, message, out);
    }

    fn prolong(&mut self, now: Time, from: Peer, session: Session, ids: &[TransferId], out: &mut Vec<Action>) {
        for &id in ids {
            let extended = now.after(self.config.extension_us);
            if let Some(record) = self.attach(from, session, id, out) {
                if matches!(record.phase, Phase::Leased { .. }) {
                    self.deadlines.prolong(id, extended);
                }
            } else {
                self.counters.unmatched += 1;
            }
        }
    }

    /// The one place that says whether a read was good.
    fn judge(&mut self, now: Time, from: Peer, session: Session, id: TransferId, epoch: Epoch, out: &mut Vec<Action>) {
        let remembered = self.over.get(id).copied();
        if let Some(Ending::Good { epoch: good }) = remembered
            && good == epoch
        {
            self.send(from, session, Message::Good { id, epoch }, out);
            return;
        }
        let Some(record) = self.attach(from, session, id, out) else { return };
        match record.phase {
            Phase::Leased { epoch: lease, .. } if lease == epoch => {
                self.end(now, id, Ending::Good { epoch }, out);
                self.send(from, session, Message::Good { id, epoch }, out);
            }
            _ => self.send(from, session, Message::Ended { id, end: End::LeaseOver }, out),
        }
    }

    // ── Pushes ────────────────────────────────────────────────────────────────────────────────────────────────────────

    #[expect(clippy::too_many_arguments, reason = "a message's fields and where it came from")]
    fn register(
        &mut self,
        now: Time,
        from: Peer,
        session: Session,
        id: TransferId,
        epoch: Epoch,
        target: BlockTable,
        out: &mut Vec<Action>,
    ) {
        let barrier = self.links[&from.address].barrier;
        if let Some(Ending::Written { epoch: written, parts }) = self.over.get(id).copied()
            && written == epoch
        {
            for part in parts.landed() {
                self.tell_part(from, session, id, epoch, part, parts, out);
            }
            return;
        }
        let Some(record) = self.attach(from, session, id, out) else { return };
        let reader = record.reader.as_mut().expect("it was attached");
        let current = reader.registration.as_ref().map(|(current, _)| *current);
        if epoch <= reader.epoch_over || current.is_some_and(|current| epoch < current) {
            let in_flight = matches!(&record.phase, Phase::Writing { write, .. } if write.epoch == epoch);
            self.counters.stale += 1;
            if !in_flight {
                self.send(from, session, Message::WriteFailed { id, epoch }, out);
            }
            return;
        }
        if current != Some(epoch) {
            if epoch <= barrier {
                self.counters.stale += 1;
                self.send(from, session, Message::Stale { id, epoch }, out);
                return;
            }
            reader.registration = Some((epoch, target));
        }
        match &record.phase {
            Phase::Writing { write, .. } if write.epoch == epoch && write.session == session => {
                let parts = write.parts;
                for part in parts.landed() {
                    self.tell_part(from, session, id, epoch, part, parts, out);
                }
            }
            Phase::Leased { .. } => self.write_if_registered(now, id, out),
            Phase::Prefilling | Phase::Writing { .. } => self.send(from, session, Message::Waiting { id }, out),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "a message's fields and where it goes")]
    fn tell_part(
        &self,
        to: Peer,
        session: Session,
        id: TransferId,
        epoch: Epoch,
        part: u8,
        parts: Parts,
        out: &mut Vec<Action>,
    ) {
        self.send(to, session, Message::PartWritten { id, epoch, part, parts: parts.total() }, out);
    }

    fn revoke(&mut self, now: Time, from: Peer, session: Session, id: TransferId, epoch: Epoch, out: &mut Vec<Action>) {
        let Some(record) = self.records.get_mut(&id) else {
            if self.over.get(id).is_none() {
                // The registration may be on its way still, and the scheduler may yet learn of the transfer.
                self.counters.unknown += 1;
                let link = self.links.get_mut(&from.address).expect("messages come on a link");
                link.barrier = link.barrier.max(epoch);
            }
            self.send(from, session, Message::Revoked { id, epoch }, out);
            return;
        };
        let is_anothers = record.reader.as_ref().is_some_and(|reader| reader.peer.address != from.address);
        if is_anothers {
            // It was never this reader's, and its registration is refused for as long as it is another's.
            let link = self.links.get_mut(&from.address).expect("messages come on a link");
            link.barrier = link.barrier.max(epoch);
            self.send(from, session, Message::Revoked { id, epoch }, out);
            return;
        }
        let Some(record) = self.attach(from, session, id, out) else { return };
        let reader = record.reader.as_mut().expect("it was attached");
        reader.epoch_over = reader.epoch_over.max(epoch);
        let is_writing = matches!(record.phase, Phase::Writing { .. });
        if reader.registration.is_none() && !is_writing {
            self.send(from, session, Message::Revoked { id, epoch }, out);
        }
        self.end_when_quiet(now, id, End::Dropped, out);
    }

    fn write_if_registered(&mut self, now: Time, id: TransferId, out: &mut Vec<Action>) {
        let record = self.records.get_mut(&id).expect("who writes is alive");
        let Phase::Leased { table, epoch: lease } = &record.phase else { return };
        let Some(Attached { peer, session, registration: Some((epoch, target)), .. }) = &record.reader else { return };
        let runs = match mapping::runs(table, target) {
            Ok(runs) if !runs.is_empty() => runs,
            _ => {
                self.end(now, id, Ending::Ended(End::Unmappable), out);
                return;
            }
        };
        let each = self.config.part_runs.max(runs.len().div_ceil(usize::from(PARTS_MAX)));
        let runs: Vec<Vec<Run>> = runs.chunks(each).map(<[Run]>::to_vec).collect();
        self.attempts += 1;
        let write = Write {
            peer: *peer,
            session: *session,
            epoch: *epoch,
            attempt: self.attempts,
            parts: Parts::new(runs.len() as u8),
            runs,
            stop: None,
        };
        record.phase = Phase::Writing { table: table.clone(), epoch: *lease, write };
        self.deadlines.set(id, now.after(self.config.transfer_us));
        self.post(id, out);
    }

    /// Posts parts up to the window, as long as the registration counts.
    fn post(&mut self, id: TransferId, out: &mut Vec<Action>) {
        let record = self.records.get_mut(&id).expect("who writes is alive");
        let Phase::Writing { write, .. } = &mut record.phase else { return };
        while let Some(part) = write.parts.next()
            && write.parts.in_flight() < self.config.window
            && !write.parts.has_failed()
            && write.stop.is_none()
            && record.reader.as_ref().is_some_and(|reader| {
                (reader.peer, reader.session) == (write.peer, write.session) && write.epoch > reader.epoch_over
            })
        {
            write.parts.post(part);
            let Write { peer, session, attempt, .. } = *write;
            let runs = write.runs[usize::from(part)].clone();
            out.push(Action::Write { peer, session, id, attempt, part, runs });
        }
    }

    fn end_part(&mut self, now: Time, id: TransferId, attempt: u64, part: u8, landed: bool, out: &mut Vec<Action>) {
        let write = match self.records.get_mut(&id).map(|record| &mut record.phase) {
            Some(Phase::Writing { write, .. }) if write.attempt == attempt => write,
            _ => {
                self.counters.late += 1;
                return;
            }
        };
        let news = if landed { write.parts.land(part) } else { write.parts.fail(part) };
        if !news {
            self.counters.late += 1;
            return;
        }
        if landed {
            let Write { peer, session, epoch, parts, .. } = *write;
            self.tell_part(peer, session, id, epoch, part, parts, out);
        }
        self.post(id, out);
        self.settle_write(now, id, false, out);
    }

    /// Ends a write of which nothing is in flight, or whose peer is fenced.
    fn settle_write(&mut self, now: Time, id: TransferId, fenced: bool, out: &mut Vec<Action>) {
        let record = self.records.get_mut(&id).expect("who writes is alive");
        let Phase::Writing { table, epoch: lease, write } = &mut record.phase else { return };
        let Write { peer, session, epoch, parts, stop, .. } = *write;
        if !fenced && parts.in_flight() > 0 {
            return;
        }
        if let Some(end) = stop {
            self.end(now, id, Ending::Ended(end), out);
            return;
        }
        if parts.are_all_landed() {
            self.end(now, id, Ending::Written { epoch, parts }, out);
            return;
        }
        // A part failed, or the connection is over: back to the lease. The reader may register again.
        record.phase = Phase::Leased { table: table.clone(), epoch: *lease };
        self.deadlines.set(id, now.after(self.config.extension_us));
        if let Some(reader) = &mut record.reader
            && reader.peer == peer
        {
            reader.epoch_over = reader.epoch_over.max(epoch);
            if reader.registration.as_ref().is_some_and(|(registered, _)| *registered <= epoch) {
                reader.registration = None;
            }
        }
        if !fenced {
            self.send(peer, session, Message::WriteFailed { id, epoch }, out);
        }
        self.write_if_registered(now, id, out);
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
