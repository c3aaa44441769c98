//! Messages that are lost, late and repeated, and copies that move a cell at a time, fail, hang and come late.

use super::{Event, Flight, World, request_of};
use crate::protocol::message::{Envelope, Message};
use crate::protocol::{Incarnation, Peer, Session, encoding, reader, source};
use crate::simulated::pool::{GARBAGE, Owner};

impl World {
    pub(super) fn is_cut(&self, one: usize, other: usize) -> Option<u64> {
        let pair = (one.min(other), one.max(other));
        self.cuts.iter().find(|(a, b, until)| (*a, *b) == pair && *until > self.now).map(|(_, _, until)| *until)
    }

    pub(super) fn send(&mut self, host: usize, envelope: &Envelope) {
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

    pub(super) fn deliver(&mut self, host: usize, bytes: &[u8]) {
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

    pub(super) fn post(&mut self, mut flight: Flight) {
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
    pub(super) fn copy(&mut self, number: u64) {
        let Some(mut flight) = self.flights.get(&number).cloned() else { return };
        let (source, target) = (flight.prefill, flight.decode);
        let source_lives = self.is_running(source, flight.prefill_boot);
        let target_lives = self.is_running(target, flight.decode_boot);
        let initiator_lives = if flight.is_write { source_lives } else { target_lives };
        // A write that was posted before its process died may still be on the wire.
        let goes_on = initiator_lives || (flight.is_write && self.plan.memory_goes_on);
        if !goes_on {
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
                let what =
                    format!("block {} of {:?} is being written from", run.source_block, pool.owner(run.source_block));
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
        self.cells_copied += 1;
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

    pub(super) fn end_flight(&mut self, number: u64, landed: bool) {
        let flight = self.flights.remove(&number).expect("who ends flies");
        if self.strikes(self.plan.completions_lost) {
            return;
        }
        let (host, boot) = match flight.is_write {
            true => (flight.prefill, flight.prefill_boot),
            false => (flight.decode, flight.decode_boot),
        };
        let Flight { id, attempt, part, .. } = flight;
        let mut us = self.plan.delay_us / 2;
        if self.strikes(self.plan.late) {
            us += self.dice.one_of(&[2_000, 20_000, 150_000]);
        }
        self.after(us, Event::PartEnded { host, boot, id, attempt, part, landed });
    }

    /// From here on nothing of this connection moves on this side.
    pub(super) fn fence(&mut self, host: usize, peer: Peer, session: Session) {
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
}
