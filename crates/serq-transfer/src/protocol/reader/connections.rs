//! A reader's sources: greeted, tested with a canary, and fenced before they are greeted again.

use super::{Action, Canary, Connection, Due, Failure, Link, Phase, Reader};
use crate::protocol::identity::{Address, Incarnation, Peer, Session, Time, TransferId};
use crate::protocol::message::{Envelope, Message, VERSION};

impl Reader {
    pub(super) fn has_room_for(&mut self, source: Address) -> bool {
        if self.links.contains_key(&source) || self.links.len() < self.config.peers_max {
            return true;
        }
        let busy = |address: &Address| self.records.values().any(|record| record.load.source == *address);
        let is_idle = |link: &Link| matches!(link.connection, Connection::Down | Connection::Up { .. });
        let idle = self.links.iter().find(|(address, link)| is_idle(link) && !busy(address));
        let idle = idle.map(|(address, _)| *address);
        idle.is_some_and(|address| self.links.remove(&address).is_some())
    }

    /// Begins to connect if nothing is under way; says how far it is.
    pub(super) fn connect(&mut self, now: Time, source: Address, out: &mut Vec<Action>) -> Connection {
        if !self.has_room_for(source) {
            return Connection::Down;
        }
        let link = self.links.entry(source).or_insert(Link { session: Session(0), connection: Connection::Down });
        if link.connection == Connection::Down {
            self.sessions += 1;
            *link = Link { session: Session(self.sessions), connection: Connection::Greeting };
            self.deadlines.set(Due::Connect(source), now.after(self.config.connect_us));
            self.greet(now, source, out);
        }
        self.links[&source].connection
    }

    pub(super) fn greet(&mut self, now: Time, source: Address, out: &mut Vec<Action>) {
        let link = &self.links[&source];
        if link.connection != Connection::Greeting {
            return;
        }
        let to = Peer { address: source, incarnation: Incarnation::WHOEVER };
        let message = Message::Hello { version: VERSION, compatibility: self.compatibility.clone() };
        out.push(Action::Send(Envelope { from: self.me, to, session: link.session, message }));
        self.deadlines.set(Due::Greet(source), now.after(self.config.resend_us));
    }

    pub(super) fn tested(
        &mut self,
        now: Time,
        source: Address,
        session: Session,
        canary: Canary,
        out: &mut Vec<Action>,
    ) {
        let Some(link) = self.links.get_mut(&source).filter(|link| link.session == session) else { return };
        let Connection::Testing { peer } = link.connection else { return };
        self.deadlines.clear(Due::Connect(source));
        let failure = match canary {
            Canary::Right => {
                link.connection = Connection::Up { peer };
                self.keep_alive(now, source);
                for id in self.loads_from(source) {
                    self.resume(now, id, peer, out);
                }
                return;
            }
            Canary::Wrong => Failure::CanaryWrong,
            Canary::Unread => Failure::Unreachable,
        };
        link.connection = Connection::Down;
        self.fail_waiting(now, source, failure, out);
    }

    /// A load that waited for a connection has one; with another incarnation than had it, it failed.
    pub(super) fn resume(&mut self, now: Time, id: TransferId, peer: Peer, out: &mut Vec<Action>) {
        let Some(record) = self.records.get(&id) else { return };
        if record.bound.is_some_and(|bound| bound != peer.incarnation) && !record.phase.is_in_flight() {
            self.give_up(now, id, Some(Failure::SourceRestarted), out);
        } else {
            self.go_on(now, id, out);
        }
    }

    pub(super) fn cannot_connect(&mut self, now: Time, source: Address, out: &mut Vec<Action>) {
        let link = self.links.get_mut(&source).expect("who connects has a link");
        match link.connection {
            Connection::Greeting => {
                link.connection = Connection::Down;
                self.deadlines.clear(Due::Greet(source));
            }
            Connection::Testing { peer } => {
                // The canary's read is in flight still, into a block of its own.
                link.connection = Connection::Fencing { peer, restarted: false };
                self.counters.fences += 1;
                out.push(Action::Fence { peer, session: link.session });
            }
            Connection::Down | Connection::Up { .. } | Connection::Fencing { .. } => return,
        }
        self.fail_waiting(now, source, Failure::Unreachable, out);
    }

    /// Fails what has waited for a connection.
    pub(super) fn fail_waiting(&mut self, now: Time, source: Address, failure: Failure, out: &mut Vec<Action>) {
        for id in self.loads_from(source) {
            if !self.records[&id].phase.is_in_flight() {
                self.give_up(now, id, Some(failure), out);
            }
        }
    }

    pub(super) fn loads_from(&self, source: Address) -> Vec<TransferId> {
        self.records.iter().filter(|(_, record)| record.load.source == source).map(|(id, _)| *id).collect()
    }

    /// Ends a connection. Nothing goes on at this source until the transport says that nothing moves.
    pub(super) fn fence(&mut self, source: Address, restarted: bool, out: &mut Vec<Action>) {
        let Some(link) = self.links.get_mut(&source) else { return };
        let Connection::Up { peer } = link.connection else { return };
        link.connection = Connection::Fencing { peer, restarted };
        self.counters.fences += 1;
        out.push(Action::Fence { peer, session: link.session });
    }

    pub(super) fn fenced(&mut self, now: Time, peer: Peer, session: Session, out: &mut Vec<Action>) {
        let source = peer.address;
        let Some(link) = self.links.get_mut(&source).filter(|link| link.session == session) else { return };
        let Connection::Fencing { restarted, .. } = link.connection else { return };
        link.connection = Connection::Down;
        for id in self.loads_from(source) {
            let Some(record) = self.records.get_mut(&id) else { continue };
            match record.phase {
                Phase::Draining { .. } | Phase::Revoking { .. } => self.bury(now, id, out),
                // Whoever has never answered may not have been the one who knows the transfer.
                Phase::Registered { .. } if restarted && record.bound.is_none() => {
                    record.phase = Phase::Connecting;
                    self.go_on(now, id, out);
                }
                Phase::Reading { .. } | Phase::Registered { .. } => {
                    let failure = if restarted { Failure::SourceRestarted } else { Failure::ConnectionLost };
                    self.fail_safely(now, id, failure, out);
                }
                Phase::Queued | Phase::Connecting | Phase::Asking | Phase::Confirming { .. } => {
                    self.connect(now, source, out);
                }
            }
        }
    }

    /// Says something to a source one is connected with. Else it is not said: who asks asks again.
    pub(super) fn say(&self, source: Address, message: Message, out: &mut Vec<Action>) {
        if let Some(&Link { session, connection: Connection::Up { peer } }) = self.links.get(&source) {
            out.push(Action::Send(Envelope { from: self.me, to: peer, session, message }));
        }
    }
}
