//! Writes into registered blocks, part by part.
//!
//! # Invariants
//!
//! - A registration counts until it failed, was revoked, was replaced by a later one, or its connection ended.
//! - It is looked at before each part is posted.
//! - A revocation is acknowledged when nothing of its registration is in flight and nothing of it will be posted.

use super::{Action, Attached, Ending, Phase, Source, Write};
use crate::protocol::identity::{Epoch, Peer, Session, Time, TransferId};
use crate::protocol::mapping::{self, BlockTable, Run};
use crate::protocol::message::{End, Message};
use crate::protocol::parts::{PARTS_MAX, Parts};

impl Source {
    #[expect(clippy::too_many_arguments, reason = "a message's fields and where it came from")]
    pub(super) fn register(
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
        match self.over.get(id).copied() {
            Some(Ending::Written { reader, epoch: written, parts }) if (reader, written) == (from, epoch) => {
                for part in parts.landed() {
                    self.tell_part(from, session, id, epoch, part, parts, out);
                }
                return;
            }
            Some(Ending::Good { .. } | Ending::Written { .. }) => {
                self.send(from, session, Message::Ended { id, end: End::LeaseOver }, out);
                return;
            }
            Some(Ending::Ended(_)) | None => {}
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
    pub(super) fn tell_part(
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

    pub(super) fn revoke(
        &mut self,
        now: Time,
        from: Peer,
        session: Session,
        id: TransferId,
        epoch: Epoch,
        out: &mut Vec<Action>,
    ) {
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

    pub(super) fn write_if_registered(&mut self, now: Time, id: TransferId, out: &mut Vec<Action>) {
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
    pub(super) fn post(&mut self, id: TransferId, out: &mut Vec<Action>) {
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
            let Write { peer, session, epoch, attempt, .. } = *write;
            let runs = write.runs[usize::from(part)].clone();
            out.push(Action::Write { peer, session, id, epoch, attempt, part, runs });
        }
    }

    pub(super) fn end_part(
        &mut self,
        now: Time,
        id: TransferId,
        attempt: u64,
        part: u8,
        landed: bool,
        out: &mut Vec<Action>,
    ) {
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
    pub(super) fn settle_write(&mut self, now: Time, id: TransferId, fenced: bool, out: &mut Vec<Action>) {
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
            self.end(now, id, Ending::Written { reader: peer, epoch, parts }, out);
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
}
