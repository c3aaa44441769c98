//! A prefill instance: a queue, a pool, prefills that write a token at a time, and what its source wants.

use std::rc::Rc;

use super::{Answer, Event, Flight, Host, Prefill, Role, TOKEN_US, World, id_of, request_of};
use crate::protocol::mapping::BlockTable;
use crate::protocol::{Time, source};
use crate::simulated::pool::{Owner, cell};

impl World {
    pub(super) fn start_prefills(&mut self, host: usize) {
        let plan = Rc::clone(&self.plan);
        loop {
            let Host { pool, role: Role::Prefill { queue, running, .. }, .. } = &mut self.hosts[host] else {
                unreachable!()
            };
            let Some(&request) = queue.front() else { return };
            let count = plan.requests[request].prompt.div_ceil(pool.block_tokens) as usize;
            let Some(blocks) = pool.take(count, Owner::Request(request)) else { return };
            queue.pop_front();
            self.runs += 1;
            running.insert(request, Prefill { blocks, computed: 0, unwanted: false, run: self.runs });
            let (boot, run) = (self.hosts[host].peer.incarnation.0, self.runs);
            self.after(TOKEN_US, Event::Compute { host, boot, request, run });
        }
    }

    pub(super) fn prefill_token(&mut self, host: usize, request: usize, run: u64) {
        let plan = Rc::clone(&self.plan);
        let plan = &plan.requests[request];
        let Host { pool, role: Role::Prefill { running, .. }, peer, .. } = &mut self.hosts[host] else {
            unreachable!()
        };
        let Some(prefill) = running.get_mut(&request).filter(|prefill| prefill.run == run) else { return };
        let (token, size, boot) = (prefill.computed, pool.block_tokens, peer.incarnation.0);
        if plan.fails_at == Some(token) {
            self.stop_prefill(host, request, true);
            self.tell_source(host, source::Fact::PrefillFailed { id: id_of(request) });
            return;
        }
        let block = prefill.blocks[(token / size) as usize];
        prefill.computed += 1;
        let written = pool.write(block, token % size, cell(request, token), Owner::Request(request));
        self.must(host, written);
        if token + 1 < plan.prompt {
            self.after(TOKEN_US, Event::Compute { host, boot, request, run });
            return;
        }
        let Host { pool, role: Role::Prefill { running, .. }, .. } = &mut self.hosts[host] else { unreachable!() };
        let blocks = running.remove(&request).expect("it runs").blocks;
        let passed =
            blocks.iter().try_for_each(|&block| pool.pass(block, Owner::Request(request), Owner::Transfer(request)));
        let table = BlockTable::in_order(size, 0, plan.prompt, &blocks);
        self.must(host, passed);
        self.tell_source(host, source::Fact::PrefillFinished { id: id_of(request), table });
    }

    /// Takes a prefill out of the queue or off the processor.
    pub(super) fn stop_prefill(&mut self, host: usize, request: usize, fails: bool) {
        let Host { pool, role: Role::Prefill { queue, running, .. }, .. } = &mut self.hosts[host] else {
            unreachable!()
        };
        let before = queue.len();
        queue.retain(|other| *other != request);
        let mut stopped = queue.len() < before;
        let mut passed = Ok(());
        // A step that runs cannot be stopped: of every second request the prefill ends, and nobody wants it.
        let goes_on = !fails && request % 2 == 1;
        if let Some(prefill) = running.get_mut(&request)
            && goes_on
        {
            stopped = !prefill.unwanted;
            prefill.unwanted = true;
        } else if let Some(prefill) = running.remove(&request) {
            stopped = !prefill.unwanted;
            let owner = Owner::Request(request);
            passed = prefill.blocks.iter().try_for_each(|&block| pool.pass(block, owner, Owner::Free));
        }
        self.must(host, passed);
        if stopped {
            self.answer(request, Answer::PrefillFailed);
        }
        self.start_prefills(host);
    }

    pub(super) fn tell_source(&mut self, host: usize, fact: source::Fact) {
        self.note(|world| format!("{} ◀ {fact:?}", world.name(host)));
        let now = Time(self.hosts[host].clock.local(self.now));
        let Role::Prefill { machine, .. } = &mut self.hosts[host].role else { unreachable!() };
        let mut actions = Vec::new();
        let before = machine.counters();
        machine.handle(now, fact, &mut actions);
        machine.check(now);
        let after = machine.counters();
        self.fences += after.fences - before.fences;
        self.leases_expired += after.leases_expired - before.leases_expired;
        for action in actions {
            self.act_for_source(host, action);
        }
    }

    pub(super) fn act_for_source(&mut self, host: usize, action: source::Action) {
        if !matches!(action, source::Action::WakeAt(_)) {
            self.note(|world| format!("{} ▶ {action:?}", world.name(host)));
        }
        let boot = self.hosts[host].peer.incarnation.0;
        match action {
            source::Action::Send(envelope) => self.send(host, &envelope),
            source::Action::Offered { id, offer } => self.answer(request_of(id), Answer::Prefilled(offer)),
            source::Action::Write { peer, session, id, attempt, part, runs, .. } => {
                let decode = (peer.address.0 - 100) as usize;
                self.post(Flight {
                    is_write: true,
                    prefill: host,
                    prefill_boot: boot,
                    decode,
                    decode_boot: peer.incarnation.0,
                    session,
                    id,
                    attempt,
                    part,
                    runs,
                    run: 0,
                    token: 0,
                    fails_after: None,
                    stuck: false,
                });
            }
            source::Action::Fence { peer, session } => {
                self.after(TOKEN_US, Event::Fenced { host, boot, peer, session });
            }
            source::Action::Free { id, blocks } => {
                self.give_back(host, request_of(id), &blocks);
                self.start_prefills(host);
            }
            source::Action::Unwanted { id } | source::Action::Refused { id } => {
                self.stop_prefill(host, request_of(id), false);
            }
            source::Action::WakeAt(time) => {
                let time = self.hosts[host].clock.global(time.0);
                self.at(time, Event::Wake { host, boot });
            }
        }
    }
}
