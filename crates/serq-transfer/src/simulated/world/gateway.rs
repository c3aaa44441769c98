//! The gateway: dispatches the legs, hears how they went, and tells the other one, if it is not cut off.

use std::rc::Rc;

use super::{Answer, Call, Event, Outcome, Role, World, id_of};
use crate::protocol::message::Offer;
use crate::protocol::source;

impl World {
    pub(super) fn call(&mut self, host: usize, request: usize, call: Call, extra_us: u64) {
        let delay = self.plan.delay_us + extra_us;
        self.after(delay, Event::Call { host, request, call });
    }

    pub(super) fn answer(&mut self, request: usize, answer: Answer) {
        self.after(self.plan.delay_us, Event::Answer { request, answer });
    }

    pub(super) fn arrive(&mut self, request: usize) {
        let plan = Rc::clone(&self.plan);
        let plan = &plan.requests[request];
        self.note(|_| format!("request {request} arrives: {plan:?}"));
        self.clients[request].prefill_asked = true;
        let (prefill_us, decode_us) = plan.concurrent.unwrap_or((0, 0));
        self.call(plan.prefill, request, Call::Prefill, prefill_us);
        if plan.concurrent.is_some() {
            self.dispatch_decode(request, None, decode_us);
        }
    }

    pub(super) fn dispatch_decode(&mut self, request: usize, offer: Option<Offer>, extra_us: u64) {
        let plan = Rc::clone(&self.plan);
        let plan = &plan.requests[request];
        if plan.rejected {
            self.conclude(request, Outcome::Rejected);
            self.abandon(request);
            return;
        }
        self.clients[request].decode_asked = true;
        self.call(plan.decode, request, Call::Decode(offer), extra_us);
    }

    /// Tells the prefill instance that nobody will come; or is itself cut off before that.
    pub(super) fn abandon(&mut self, request: usize) {
        let host = self.plan.requests[request].prefill;
        if !self.strikes(100) {
            self.call(host, request, Call::Abandon, 0);
        }
    }

    pub(super) fn conclude(&mut self, request: usize, outcome: Outcome) {
        if self.clients[request].outcome.is_none() {
            self.note(|_| format!("request {request} ends: {outcome:?}"));
            self.clients[request].outcome = Some(outcome);
            if self.now > self.plan.answered_by {
                self.violate(format!("request {request} ends late, at {} us: {outcome:?}", self.now));
            }
        }
    }

    pub(super) fn take_answer(&mut self, request: usize, answer: Answer) {
        self.note(|_| format!("gateway: request {request}: {answer:?}"));
        let concurrent = self.plan.requests[request].concurrent.is_some();
        match answer {
            Answer::Prefilled(offer) => {
                self.clients[request].prefill_answered = true;
                self.clients[request].offer = Some(offer.clone());
                if !concurrent && !self.clients[request].decode_asked {
                    if self.clients[request].outcome.is_none() {
                        self.dispatch_decode(request, Some(offer), 0);
                    } else {
                        self.abandon(request);
                    }
                }
            }
            Answer::PrefillFailed | Answer::Lost { prefill: true } => {
                // Where both legs run the reader finds out, and does what its policy says.
                self.clients[request].prefill_answered = true;
                if !concurrent {
                    self.conclude(request, Outcome::PrefillFailed);
                }
            }
            Answer::Decoded { loaded } => {
                self.clients[request].decode_answered = true;
                self.conclude(request, if loaded { Outcome::Loaded } else { Outcome::Recomputed });
            }
            Answer::DecodeFailed(failure) => {
                self.clients[request].decode_answered = true;
                self.conclude(request, Outcome::Failed(failure));
                self.abandon(request);
            }
            Answer::Lost { prefill: false } => {
                self.clients[request].decode_answered = true;
                self.conclude(request, Outcome::ProcessLost);
                self.abandon(request);
            }
        }
    }

    pub(super) fn take_call(&mut self, host: usize, request: usize, call: Call) {
        if !self.hosts[host].up {
            match call {
                Call::Prefill => self.answer(request, Answer::Lost { prefill: true }),
                Call::Decode(_) => self.answer(request, Answer::Lost { prefill: false }),
                Call::AbortPrefill | Call::AbortDecode | Call::Abandon => {}
            }
            return;
        }
        let id = id_of(request);
        match call {
            Call::Prefill => {
                let Role::Prefill { queue, .. } = &mut self.hosts[host].role else { unreachable!() };
                queue.push_back(request);
                self.tell_source(host, source::Fact::Expected { id });
                self.start_prefills(host);
            }
            Call::AbortPrefill => {
                self.stop_prefill(host, request, false);
                self.tell_source(host, source::Fact::Aborted { id });
            }
            Call::Abandon => self.tell_source(host, source::Fact::Abandoned { id }),
            Call::Decode(offer) => self.begin_decode(host, request, offer),
            Call::AbortDecode => self.stop_decode(host, request),
        }
    }
}
