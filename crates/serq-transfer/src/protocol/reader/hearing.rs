//! What sources say, and what it means to a load in its phase.
//!
//! What is said on a connection that is over, by another incarnation or about a load that is over changes nothing.

use super::{Action, Connection, Due, Failure, Phase, Reader};
use crate::protocol::identity::{Peer, Time};
use crate::protocol::message::{End, Envelope, Message};
use crate::protocol::parts::{PARTS_MAX, Parts};

impl Reader {
    pub(super) fn receive(&mut self, now: Time, envelope: Envelope, out: &mut Vec<Action>) {
        let Envelope { from, to, session, message } = envelope;
        let source = from.address;
        if to.address != self.me.address {
            self.counters.misaddressed += 1;
            return;
        }
        if to.incarnation != self.me.incarnation {
            self.counters.misaddressed += 1;
            if !matches!(message, Message::SomebodyElse { .. }) {
                let message = Message::SomebodyElse { meant: to.incarnation };
                out.push(Action::Send(Envelope { from: self.me, to: from, session, message }));
            }
            return;
        }
        let Some(link) = self.links.get_mut(&source).filter(|link| link.session == session) else {
            self.counters.stale += 1;
            return;
        };
        match (link.connection, message) {
            (Connection::Greeting, Message::Welcome { canary }) => {
                link.connection = Connection::Testing { peer: from };
                self.deadlines.clear(Due::Greet(source));
                out.push(Action::ReadCanary { peer: from, session, canary });
            }
            (Connection::Greeting, Message::Refused { refusal }) => {
                link.connection = Connection::Down;
                self.deadlines.clear(Due::Greet(source));
                self.deadlines.clear(Due::Connect(source));
                self.fail_waiting(now, source, Failure::Refused(refusal), out);
            }
            (Connection::Up { peer }, Message::SomebodyElse { meant }) if meant == peer.incarnation && from != peer => {
                self.fence(source, true, out);
            }
            (Connection::Up { peer }, Message::Reset) if from == peer => self.fence(source, false, out),
            (Connection::Up { peer }, message) if from == peer => self.hear(now, peer, message, out),
            _ => self.counters.stale += 1,
        }
    }

    /// What the connected source says about a transfer.
    pub(super) fn hear(&mut self, now: Time, peer: Peer, message: Message, out: &mut Vec<Action>) {
        let (Message::Waiting { id }
        | Message::Offer { id, .. }
        | Message::Good { id, .. }
        | Message::Ended { id, .. }
        | Message::Unknown { id }
        | Message::PartWritten { id, .. }
        | Message::WriteFailed { id, .. }
        | Message::Revoked { id, .. }
        | Message::Stale { id, .. }) = message
        else {
            self.counters.stale += 1;
            return;
        };
        let Some(record) = self.records.get_mut(&id).filter(|record| record.load.source == peer.address) else {
            self.counters.unknown += 1;
            if matches!(message, Message::Offer { .. }) {
                // It keeps blocks for a load that is over.
                self.say(peer.address, Message::Drop { id }, out);
            }
            return;
        };
        match (message, &mut record.phase) {
            (Message::Waiting { .. }, Phase::Asking | Phase::Registered { .. }) => {
                record.bound = Some(peer.incarnation);
            }
            (Message::Offer { offer, .. }, Phase::Asking) if offer.source == peer => self.read(now, id, offer, out),
            (Message::Good { attempt, .. }, Phase::Confirming { attempt: current, .. }) if attempt == *current => {
                self.loaded(now, id, out);
            }
            (Message::Unknown { .. }, _) if record.load.concurrent && record.bound.is_none() => {}
            (Message::Unknown { .. }, _) => self.give_up(now, id, Some(Failure::Unknown), out),
            // The answer to a heartbeat, while the answer that counts is on its way or lost: it is asked for again.
            (Message::Ended { end: End::Consumed, .. }, Phase::Confirming { .. } | Phase::Registered { .. }) => {}
            (Message::Ended { end, .. }, _) => self.give_up(now, id, Some(Failure::Ended(end)), out),
            (Message::PartWritten { epoch, part, parts, .. }, Phase::Registered { epoch: current, parts: known })
                if epoch == *current && (1..=PARTS_MAX).contains(&parts) =>
            {
                record.bound = Some(peer.incarnation);
                let known = known.get_or_insert(Parts::new(parts));
                known.land(part);
                if known.are_all_landed() {
                    self.loaded(now, id, out);
                }
            }
            (Message::WriteFailed { epoch, .. }, Phase::Registered { epoch: current, .. }) if epoch == *current => {
                record.bound = Some(peer.incarnation);
                self.fail_safely(now, id, Failure::WriteFailed, out);
            }
            (Message::Stale { epoch, .. }, Phase::Registered { epoch: current, .. }) if epoch == *current => {
                self.register(now, id, out);
            }
            (
                Message::Revoked { epoch, .. } | Message::WriteFailed { epoch, .. },
                Phase::Revoking { epoch: current },
            ) if epoch == *current => self.bury(now, id, out),
            _ => self.counters.late += 1,
        }
    }
}
