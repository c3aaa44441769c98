//! A decode instance: a queue, a pool, requests that load or compute and then decode, and what its reader wants.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use super::{Answer, Decode, Event, Flight, Host, Role, Stage, TOKEN_US, World, id_of, request_of};
use crate::protocol::mapping::BlockTable;
use crate::protocol::message::Offer;
use crate::protocol::reader::{self, Load};
use crate::protocol::{Otherwise, Time};
use crate::simulated::pool::{Owner, Pool, cell};

impl World {
    pub(super) fn decodes(&mut self, host: usize) -> (&mut Pool, &mut VecDeque<usize>, &mut BTreeMap<usize, Decode>) {
        let Host { pool, role: Role::Decode { queue, requests, .. }, .. } = &mut self.hosts[host] else {
            unreachable!()
        };
        (pool, queue, requests)
    }

    pub(super) fn load_of(&self, request: usize, offer: Option<Offer>) -> Load {
        let plan = &self.plan.requests[request];
        Load {
            id: id_of(request),
            source: self.hosts[plan.prefill].peer.address,
            mode: plan.mode,
            concurrent: plan.concurrent.is_some(),
            offer,
            policy: plan.policy,
        }
    }

    pub(super) fn begin_decode(&mut self, host: usize, request: usize, offer: Option<Offer>) {
        let plan = &self.plan.requests[request];
        // The last token is computed here in any case; there may be nothing before it to load.
        let loads = plan.hit + 1 < plan.prompt;
        let stage = if loads { Stage::WaitsToLoad } else { Stage::WaitsToCompute };
        let decode = Decode { stage, blocks: Vec::new(), lent: Vec::new(), loaded: false, loaded_at: 0, run: 0 };
        let (_, queue, requests) = self.decodes(host);
        if requests.contains_key(&request) {
            // Dispatched to where it is.
            return;
        }
        requests.insert(request, decode);
        queue.push_back(request);
        if loads {
            let load = self.load_of(request, offer);
            self.tell_reader(host, reader::Fact::Queued(load));
        } else {
            self.abandon(request);
        }
        self.admit(host);
    }

    /// Gives blocks to who waits, first come first served.
    pub(super) fn admit(&mut self, host: usize) {
        let plan = Rc::clone(&self.plan);
        loop {
            let (pool, queue, requests) = self.decodes(host);
            let Some(&request) = queue.front() else { return };
            let Some(decode) = requests.get_mut(&request) else {
                queue.pop_front();
                continue;
            };
            let wanted = &plan.requests[request];
            let size = pool.block_tokens;
            let count = (wanted.prompt + wanted.output).div_ceil(size) as usize;
            let Some(blocks) = pool.take(count, Owner::Request(request)) else { return };
            queue.pop_front();
            decode.blocks = blocks;
            let mut done = Ok(());
            for token in 0..wanted.hit {
                let block = decode.blocks[(token / size) as usize];
                done = done.and(pool.write(block, token % size, cell(request, token), Owner::Request(request)));
            }
            if decode.stage == Stage::WaitsToLoad {
                let (first, last) = (wanted.hit / size, (wanted.prompt - 2) / size);
                decode.lent = decode.blocks[first as usize..=last as usize].to_vec();
                decode.stage = Stage::Loads;
                for &block in &decode.lent {
                    done = done.and(pool.pass(block, Owner::Request(request), Owner::Transfer(request)));
                }
                let table = BlockTable::in_order(size, wanted.hit, wanted.prompt - 1, &decode.lent);
                self.must(host, done);
                self.tell_reader(host, reader::Fact::Reserved { id: id_of(request), table });
            } else {
                self.must(host, done);
                self.compute_from(host, request, wanted.hit);
            }
        }
    }

    pub(super) fn compute_from(&mut self, host: usize, request: usize, token: u32) {
        self.runs += 1;
        let run = self.runs;
        let (_, _, requests) = self.decodes(host);
        let decode = requests.get_mut(&request).expect("it is here");
        decode.stage = Stage::Computes(token);
        decode.run = run;
        let boot = self.hosts[host].peer.incarnation.0;
        self.after(TOKEN_US, Event::Compute { host, boot, request, run });
    }

    /// Computes a token, of the prompt or of the answer, from all the KV before it.
    pub(super) fn decode_token(&mut self, host: usize, request: usize, run: u64) {
        let plan = Rc::clone(&self.plan);
        let wanted = &plan.requests[request];
        let (pool, _, requests) = self.decodes(host);
        let Some(decode) = requests.get_mut(&request).filter(|decode| decode.run == run) else { return };
        let Stage::Computes(token) = decode.stage else { return };
        let size = pool.block_tokens;
        let read = |token: u32| pool.read(decode.blocks[(token / size) as usize], token % size);
        if let Some(wrong) = (0..token).find(|&before| read(before) != cell(request, before)) {
            let found = read(wrong);
            let how = if decode.loaded { "loaded" } else { "computed" };
            let what = format!("request {request}, {how}, decodes token {token}, and token {wrong} has KV {found:x}");
            self.must(host, Err(what));
            return;
        }
        if token == wanted.prompt + wanted.output {
            let loaded = decode.loaded;
            self.remove(host, request);
            self.answer(request, Answer::Decoded { loaded });
            self.admit(host);
            return;
        }
        let block = decode.blocks[(token / size) as usize];
        let written = pool.write(block, token % size, cell(request, token), Owner::Request(request));
        decode.stage = Stage::Computes(token + 1);
        self.must(host, written);
        self.cells_read += u64::from(token);
        let boot = self.hosts[host].peer.incarnation.0;
        self.after(TOKEN_US, Event::Compute { host, boot, request, run });
    }

    /// Gives back what of a request's blocks is not lent.
    pub(super) fn give_up_blocks(&mut self, host: usize, request: usize) {
        let (pool, _, requests) = self.decodes(host);
        let Some(decode) = requests.get_mut(&request) else { return };
        let lent = std::mem::take(&mut decode.lent);
        let mut passed = Ok(());
        for block in decode.blocks.drain(..).filter(|block| !lent.contains(block)) {
            passed = passed.and(pool.pass(block, Owner::Request(request), Owner::Free));
        }
        self.must(host, passed);
    }

    pub(super) fn remove(&mut self, host: usize, request: usize) {
        self.give_up_blocks(host, request);
        let (_, queue, requests) = self.decodes(host);
        requests.remove(&request);
        queue.retain(|other| *other != request);
    }

    pub(super) fn stop_decode(&mut self, host: usize, request: usize) {
        let (_, _, requests) = self.decodes(host);
        let Some(decode) = requests.get(&request) else { return };
        let stage = decode.stage;
        self.remove(host, request);
        if matches!(stage, Stage::WaitsToLoad | Stage::Loads) {
            self.tell_reader(host, reader::Fact::Cancelled { id: id_of(request) });
        }
        self.admit(host);
    }

    /// The prompt is computed here after all, at the head of the queue.
    pub(super) fn recompute(&mut self, host: usize, request: usize) {
        self.give_up_blocks(host, request);
        let (_, queue, requests) = self.decodes(host);
        let Some(decode) = requests.get_mut(&request) else { return };
        decode.stage = Stage::WaitsToCompute;
        decode.loaded = false;
        queue.retain(|other| *other != request);
        queue.push_front(request);
        self.admit(host);
    }

    pub(super) fn preempt(&mut self, host: usize, request: usize) {
        let (_, _, requests) = self.decodes(host);
        let Some(decode) = requests.get(&request) else { return };
        match decode.stage {
            Stage::WaitsToLoad | Stage::WaitsToCompute => {}
            Stage::Loads => {
                self.recompute(host, request);
                self.tell_reader(host, reader::Fact::Cancelled { id: id_of(request) });
                self.admit(host);
            }
            Stage::Computes(_) => {
                let (loaded, loaded_at) = (decode.loaded, decode.loaded_at);
                self.recompute(host, request);
                if loaded {
                    self.load_again(host, request, loaded_at);
                }
            }
        }
    }

    /// A scheduler that does not remember asks for a load that was used.
    pub(super) fn load_again(&mut self, host: usize, request: usize, loaded_at: u64) {
        let load = self.load_of(request, None);
        let before = self.loads(host);
        self.tell_reader(host, reader::Fact::Queued(load));
        if self.loads(host) > before {
            let config = &self.plan.hosts[host].config;
            let forgotten = self.hosts[host].clock.local(self.now) >= loaded_at + config.tombstone_us;
            if !forgotten && config.tombstones_max >= self.clients.len() {
                self.must(host, Err(format!("request {request} is to be loaded a second time")));
            }
            self.tell_reader(host, reader::Fact::Cancelled { id: id_of(request) });
        }
    }

    pub(super) fn loads(&self, host: usize) -> usize {
        let Role::Decode { machine, .. } = &self.hosts[host].role else { unreachable!() };
        machine.transfers()
    }

    pub(super) fn tell_reader(&mut self, host: usize, fact: reader::Fact) {
        self.note(|world| format!("{} ◀ {fact:?}", world.name(host)));
        let now = Time(self.hosts[host].clock.local(self.now));
        let Role::Decode { machine, .. } = &mut self.hosts[host].role else { unreachable!() };
        let mut actions = Vec::new();
        let before = machine.counters();
        machine.handle(now, fact, &mut actions);
        machine.check(now);
        self.fences += machine.counters().fences - before.fences;
        for action in actions {
            self.act_for_reader(host, action);
        }
    }

    pub(super) fn act_for_reader(&mut self, host: usize, action: reader::Action) {
        if !matches!(action, reader::Action::WakeAt(_)) {
            self.note(|world| format!("{} ▶ {action:?}", world.name(host)));
        }
        let boot = self.hosts[host].peer.incarnation.0;
        match action {
            reader::Action::Send(envelope) => self.send(host, &envelope),
            reader::Action::ReadCanary { peer, session, .. } => {
                let us = 2 * self.plan.delay_us;
                if !self.strikes(self.plan.parts_stuck) {
                    self.after(us, Event::CanaryRead { host, boot, source: peer, session });
                }
            }
            reader::Action::Read { peer, session, id, attempt, part, runs } => {
                let prefill = (peer.address.0 - 100) as usize;
                self.post(Flight {
                    is_write: false,
                    prefill,
                    prefill_boot: peer.incarnation.0,
                    decode: host,
                    decode_boot: boot,
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
            reader::Action::Fence { peer, session } => {
                self.after(TOKEN_US, Event::Fenced { host, boot, peer, session });
            }
            reader::Action::Loaded { id, blocks, .. } => self.loaded(host, request_of(id), &blocks),
            reader::Action::Failed { id, otherwise: Otherwise::Recompute, .. } => {
                self.recompute(host, request_of(id));
            }
            reader::Action::Failed { id, failure, otherwise: Otherwise::Error } => {
                let request = request_of(id);
                self.remove(host, request);
                self.answer(request, Answer::DecodeFailed(failure));
                self.admit(host);
            }
            reader::Action::Free { id, blocks } => {
                self.give_back(host, request_of(id), &blocks);
                self.admit(host);
            }
            reader::Action::Refused { id, .. } => {
                let request = request_of(id);
                let (_, _, requests) = self.decodes(host);
                // It may have been given blocks since it was told of; they have come back.
                let waits = |decode: &Decode| matches!(decode.stage, Stage::WaitsToLoad | Stage::Loads);
                if requests.get(&request).is_some_and(waits) {
                    self.recompute(host, request);
                }
            }
            reader::Action::WakeAt(time) => {
                let time = self.hosts[host].clock.global(time.0);
                self.at(time, Event::Wake { host, boot });
            }
        }
    }

    pub(super) fn loaded(&mut self, host: usize, request: usize, blocks: &[u32]) {
        let prompt = self.plan.requests[request].prompt;
        let now = self.hosts[host].clock.local(self.now);
        let (pool, _, requests) = self.decodes(host);
        let passed =
            blocks.iter().try_for_each(|&block| pool.pass(block, Owner::Transfer(request), Owner::Request(request)));
        let loads = requests.get_mut(&request).filter(|decode| decode.stage == Stage::Loads);
        let Some(decode) = loads.filter(|decode| decode.lent == blocks) else {
            self.must(host, passed.and(Err(format!("request {request} is loaded, and did not wait for that"))));
            return;
        };
        decode.lent.clear();
        decode.loaded = true;
        decode.loaded_at = now;
        self.must(host, passed);
        self.compute_from(host, request, prompt - 1);
    }
}
