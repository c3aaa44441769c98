//! A source's readers: who is connected, on which connection, and what becomes of their transfers when that ends.

use std::collections::BTreeSet;

use super::{Action, Attached, Link, Phase, Record, Source};
use crate::protocol::identity::{Address, Epoch, Peer, Session, Time, TransferId};
use crate::protocol::message::{End, Envelope, Message, Refusal, VERSION};

impl Source {
    pub(super) fn receive(&mut self, now: Time, envelope: Envelope, out: &mut Vec<Action>) {
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
            Message::Done { id, epoch, attempt } => self.judge(now, from, session, id, epoch, attempt, out),
            Message::Drop { id } => {
                if self.attach(from, session, id, out).is_some() {
                    self.end_when_quiet(now, id, End::Dropped, out);
                }
            }
            Message::Revoke { id, epoch } => self.revoke(now, from, session, id, epoch, out),
            _ => self.counters.stale += 1,
        }
    }

    pub(super) fn send(&self, to: Peer, session: Session, message: Message, out: &mut Vec<Action>) {
        out.push(Action::Send(Envelope { from: self.me, to, session, message }));
    }

    pub(super) fn greet(
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
    pub(super) fn has_room_for_a_peer(&mut self) -> bool {
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
    pub(super) fn part_with(
        &mut self,
        now: Time,
        peer: Peer,
        session: Session,
        restarted: bool,
        out: &mut Vec<Action>,
    ) {
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
    pub(super) fn attach(
        &mut self,
        from: Peer,
        session: Session,
        id: TransferId,
        out: &mut Vec<Action>,
    ) -> Option<&mut Record> {
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

    pub(super) fn fence(&mut self, peer: Peer, session: Session, out: &mut Vec<Action>) {
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
    pub(super) fn forget_registrations(&mut self, peer: Peer, session: Session) {
        let readers = self.records.values_mut().filter_map(|record| record.reader.as_mut());
        for reader in readers.filter(|reader| reader.peer == peer && reader.session == session) {
            if let Some((epoch, _)) = reader.registration.take() {
                reader.epoch_over = reader.epoch_over.max(epoch);
            }
        }
    }

    pub(super) fn fenced(&mut self, now: Time, peer: Peer, session: Session, out: &mut Vec<Action>) {
        self.fencing.remove(&(peer, session));
        for id in self.writing(peer, session) {
            self.settle_write(now, id, true, out);
        }
    }

    pub(super) fn writing(&self, peer: Peer, session: Session) -> Vec<TransferId> {
        let is_it = |record: &Record| matches!(&record.phase, Phase::Writing { write, .. } if write.peer == peer && write.session == session);
        self.records.iter().filter(|(_, record)| is_it(record)).map(|(id, _)| *id).collect()
    }
}
