//! Reads of leased blocks: what is offered, how the lease is kept alive, and whether a read was good.

use super::{Action, Ending, Phase, Source};
use crate::protocol::identity::{Epoch, Peer, Session, Time, TransferId};
use crate::protocol::message::{End, Message, Offer};

impl Source {
    pub(super) fn ask(&mut self, from: Peer, session: Session, id: TransferId, out: &mut Vec<Action>) {
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

    pub(super) fn prolong(
        &mut self,
        now: Time,
        from: Peer,
        session: Session,
        ids: &[TransferId],
        out: &mut Vec<Action>,
    ) {
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
    #[expect(clippy::too_many_arguments, reason = "a message's fields and where it came from")]
    pub(super) fn judge(
        &mut self,
        now: Time,
        from: Peer,
        session: Session,
        id: TransferId,
        epoch: Epoch,
        attempt: u64,
        out: &mut Vec<Action>,
    ) {
        let good = Message::Good { id, attempt };
        match self.over.get(id).copied() {
            Some(Ending::Good { reader, attempt: first }) if (reader, first) == (from, attempt) => {
                self.send(from, session, good, out);
                return;
            }
            Some(Ending::Good { .. } | Ending::Written { .. }) => {
                self.send(from, session, Message::Ended { id, end: End::LeaseOver }, out);
                return;
            }
            Some(Ending::Ended(_)) | None => {}
        }
        let Some(record) = self.attach(from, session, id, out) else { return };
        match record.phase {
            Phase::Leased { epoch: lease, .. } if lease == epoch => {
                self.end(now, id, Ending::Good { reader: from, attempt }, out);
                self.send(from, session, good, out);
            }
            _ => self.send(from, session, Message::Ended { id, end: End::LeaseOver }, out),
        }
    }

    /// How a transfer that is not alive ended, if that is known.
    pub(super) fn tell_ending(&mut self, to: Peer, session: Session, id: TransferId, out: &mut Vec<Action>) {
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
}
