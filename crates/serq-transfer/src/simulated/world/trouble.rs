//! What goes wrong at a time, or is placed before an event.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use super::{Answer, Call, Event, NextIs, Outcome, Trouble, World};
use crate::simulated::plan::Fault;

impl World {
    pub(crate) fn strike(&mut self, fault: Fault) {
        self.note(|_| format!("FAULT {fault:?}"));
        match fault {
            Fault::Crash { host, down_us } => self.crash(host, down_us),
            Fault::Stall { host, us } => {
                let until = self.now + us;
                self.hosts[host].stopped_until = self.hosts[host].stopped_until.max(until);
            }
            Fault::Partition { prefill, decode, us } => self.cuts.push((prefill, decode, self.now + us)),
            Fault::Abort { request, prefill, decode } => {
                let plan = Rc::clone(&self.plan);
                let plan = &plan.requests[request];
                if prefill {
                    self.call(plan.prefill, request, Call::AbortPrefill, 0);
                }
                if decode && self.clients[request].outcome.is_none() {
                    self.conclude(request, Outcome::Aborted);
                    let decode = self.clients[request].decode;
                    self.call(decode, request, Call::AbortDecode, 0);
                    self.abandon(request);
                }
            }
            Fault::Redispatch { request, decode, tells } => {
                let client = self.clients[request].clone();
                if client.decode_asked && client.outcome.is_none() {
                    if tells {
                        self.call(client.decode, request, Call::AbortDecode, 0);
                    }
                    self.clients[request].decode = decode;
                    self.clients[request].decode_answered = false;
                    self.call(decode, request, Call::Decode(client.offer), 0);
                }
            }
            Fault::Preempt { request } => {
                let host = self.clients[request].decode;
                if self.clients[request].decode_asked && self.hosts[host].up {
                    self.preempt(host, request);
                }
            }
        }
    }

    pub(super) fn crash(&mut self, host: usize, down_us: Option<u64>) {
        if !self.hosts[host].up {
            return;
        }
        self.hosts[host].up = false;
        let is_prefill = host < self.plan.prefills;
        let plan = Rc::clone(&self.plan);
        for (at, request) in plan.requests.iter().enumerate() {
            let client = self.clients[at].clone();
            if is_prefill && request.prefill == host && client.prefill_asked && !client.prefill_answered {
                self.answer(at, Answer::Lost { prefill: true });
            }
            if !is_prefill && client.decode == host && client.decode_asked && !client.decode_answered {
                self.answer(at, Answer::Lost { prefill: false });
            }
        }
        if let Some(us) = down_us {
            self.after(us, Event::Boot { host });
        }
    }

    /// A hash of everything that decides what comes.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let World { now, hosts, flights, clients, cuts, dice, .. } = self;
        (now, hosts, clients, cuts, dice).hash(&mut hasher);
        for flight in flights.values() {
            flight.hash(&mut hasher);
        }
        for ((time, _), event) in &self.events {
            // A flight's number says nothing; what flies was hashed.
            if !matches!(event, Event::Copy { .. }) {
                (time, event).hash(&mut hasher);
            } else {
                time.hash(&mut hasher);
            }
        }
        hasher.finish()
    }

    /// What can go wrong with the event that comes next.
    pub(crate) fn next_is(&self) -> Option<NextIs> {
        let (_, event) = self.events.first_key_value()?;
        match event {
            Event::Deliver { .. } => Some(NextIs::Message),
            Event::Copy { .. } => Some(NextIs::Copy),
            Event::PartEnded { .. } => Some(NextIs::Completion),
            _ => None,
        }
    }

    /// Does that to the event that comes next.
    pub(crate) fn inject(&mut self, trouble: Trouble) {
        let Some(entry) = self.events.first_entry() else { return };
        let (time, _) = *entry.key();
        match trouble {
            Trouble::Lost => {
                let event = entry.remove();
                if let Event::Copy { flight } = event {
                    self.flights.remove(&flight);
                }
            }
            Trouble::Late(us) => {
                let event = entry.remove();
                self.at(time + us, event);
            }
            Trouble::Twice(us) => {
                let event = entry.get().clone();
                self.at(time + us, event);
            }
            Trouble::Fails => {
                if let Event::Copy { flight } = *entry.get()
                    && let Some(flight) = self.flights.get_mut(&flight)
                {
                    flight.fails_after = Some(0);
                }
            }
            Trouble::Strikes(fault) => {
                self.now = time;
                self.strike(fault);
            }
        }
    }
}
