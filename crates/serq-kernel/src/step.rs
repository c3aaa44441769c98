//! One iteration of a step stage: who gets how many tokens, growth, admission.
//!
//! ```text
//!   budget, chunk ─▶ serve residents ─▶ admit (unless something was preempted) ─▶ cost
//!                     in serve order      heads of the queues it serves; an admitted
//!                                         body runs at once, what joins is served
//! ```
//!
//! A resident is a session's prefill or decode run. In an iteration it gets up to one
//! token decoding, up to `chunk` prefilling, within what the budget has left. A run
//! with `growing` takes the blocks its tokens need first. Tokens count when the
//! iteration ends.
//!
//! Iteration-level scheduling follows Yu et al., "Orca", OSDI '22, §3.1; chunked
//! prefill in one batch with decodes Agrawal et al., "Sarathi-Serve", OSDI '24, §4.
//!
//! # Invariants
//!
//! - Residents stand in the order of their sessions' admission numbers, then of joining.
//! - Σ planned tokens ≤ budget.
//! - The first head that does not fit ends an iteration's admissions.
//! - A token's gap is what passed from its session's previous token to the beginning of
//!   its step, and the step's duration: of a session that gets one in every step, exactly the
//!   duration, so that equal steps have equal gaps.
//! - A resident's remaining work, slack and latest token are in its job while it is there
//!   (one cache line), and go back to its session when it leaves.

use std::collections::VecDeque;

use serq_ir::{Context, Mode};

use crate::asynchronous::{Entry, Flight};
use crate::code::{StageCodeKind, StepCode};
use crate::expression::{Frame, NO_VARIABLES, Variables};
use crate::kernel::Kernel;
use crate::leap::{Batch, Last, Leap, tell_gap};
use crate::pool::{Grower, TOLERANCE};
use crate::preemption::Room;
use crate::roofline::{Figures, NOTHING};
use crate::session::compare;
use crate::stage::{DONE, Then};
use crate::world::{Action, Fault, Move, Purpose, Result, World};

/// What a step stage is doing.
#[derive(Debug)]
pub(crate) struct Engine {
    /// Jobs present, in serve order.
    pub(crate) residents: Vec<u32>,
    /// An iteration is running.
    pub(crate) running: bool,
    /// When it began.
    pub(crate) began: f64,
    /// Its jobs, in the order they were served (tokens: [`crate::stage::Job::planned`]).
    pub(crate) plan: Vec<u32>,
    /// What its cost was read with, and that cost: kept for the next one.
    pub(crate) inputs: CostInputs,
    pub(crate) cost: f64,
    /// What of it the world was last told to look at.
    pub(crate) shown: Shown,
    /// Jobs that joined while the iteration is being planned.
    joined: Vec<u32>,
    pub(crate) iterations: u64,
    /// It is idle with work waiting and the last attempt scheduled nothing.
    pub(crate) idle_with_work: bool,
    pub(crate) leap: Leap,
    /// Of an asynchronous one: the steps that are planned and not over, how many were planned
    /// and are over, and which sessions wait for the end of which to give blocks back.
    pub(crate) flights: VecDeque<Flight>,
    pub(crate) flights_planned: u64,
    pub(crate) flights_over: u64,
    pub(crate) fences: VecDeque<(u64, u32)>,
    /// A buffer for those of the next of them.
    pub(crate) entries: Vec<Entry>,
}

/// Figures of an iteration, as its cost reads them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CostInputs(Figures);

impl CostInputs {
    const NONE: Self = Self([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, NOTHING]);

    pub(crate) fn set(&mut self, figure: Context, value: f64) {
        self.0[figure as usize] = value;
    }

    fn tokens(&self) -> f64 {
        self.0[Context::Tokens as usize]
    }
}

/// Figures of an iteration that statistics show.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Shown {
    pub(crate) prefills: bool,
    pub(crate) decoders: u32,
    /// All its jobs.
    pub(crate) scheduled: u32,
}

impl Default for Engine {
    fn default() -> Self {
        Self {
            residents: Vec::new(),
            running: false,
            began: 0.0,
            plan: Vec::new(),
            inputs: CostInputs::NONE,
            cost: 0.0,
            shown: Shown::default(),
            joined: Vec::new(),
            iterations: 0,
            idle_with_work: false,
            leap: Leap::default(),
            flights: VecDeque::new(),
            flights_planned: 0,
            flights_over: 0,
            fences: VecDeque::new(),
            entries: Vec::new(),
        }
    }
}

impl Engine {
    pub(crate) fn scheduled(&self) -> usize {
        match self.flights.front() {
            Some(flight) => flight.entries.len(),
            None if self.running => self.plan.len(),
            None => 0,
        }
    }

    /// Its plan starts.
    #[inline(always)]
    pub(crate) fn begin(&mut self, now: f64) {
        self.running = true;
        self.began = now;
        // Counted where it starts: the one running at the horizon is one.
        self.iterations += 1;
    }
}

/// The iteration being planned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planning {
    pub(crate) stage: u32,
    /// Tokens in all.
    budget: f64,
    /// Tokens left.
    pub(crate) left: f64,
    preempted: bool,
    /// The last grower was its own victim.
    stop: bool,
    /// The queue whose head did not fit.
    pub(crate) refused: Option<u32>,
}

impl Planning {
    /// A plan nobody is to be admitted to any more.
    pub(crate) fn over(stage: u32) -> Self {
        Self { stage, budget: 0.0, left: 0.0, preempted: false, stop: false, refused: None }
    }
}

impl Kernel<'_> {
    pub(crate) fn step_code(&self, stage: u32) -> Option<&StepCode> {
        match &self.code.stages[stage as usize].kind {
            StageCodeKind::Step(step) => Some(step),
            _ => None,
        }
    }

    /// Whether an engine has somebody to serve or to admit.
    pub(crate) fn has_work(&self, stage: u32, step: &StepCode) -> bool {
        !self.stages[stage as usize].engine.residents.is_empty() || self.somebody_waits(step)
    }

    /// … in a queue it serves.
    #[inline]
    pub(crate) fn somebody_waits(&self, step: &StepCode) -> bool {
        step.via.iter().any(|&pool| self.pools[pool as usize].waiting() > 0)
    }

    /// An engine got somebody to serve or to admit.
    pub(crate) fn engine_has_work(&mut self, stage: u32) {
        if !self.stages[stage as usize].engine.running {
            self.idle_engines.insert(stage);
            self.engine_roused = true;
        }
    }

    /// A queue that the stage serves changed; somebody `waits` in it or not.
    pub(crate) fn served_queue_changed(&mut self, stage: u32, pool: u32, waits: bool) {
        let code = self.code;
        if waits {
            self.engine_has_work(stage);
        }
        if self.stages[stage as usize].engine.leap.settled
            && let StageCodeKind::Step(step) = &code.stages[stage as usize].kind
        {
            self.queue_changed_in_leap(stage, step, pool);
        }
    }

    pub(crate) fn add_resident(&mut self, stage: u32, id: u32) {
        let job = &mut self.jobs[id as usize];
        job.started = self.now;
        let key = (job.admission, job.order);
        let session = &mut self.sessions[job.session as usize];
        session.decodes |= job.decodes();
        job.last_token = session.last_token;
        if let Some(share) = job.growing {
            job.slack = session.shares[share as usize].slack;
        }
        self.count_memory(id);
        let key_of = |id: u32| (self.jobs[id as usize].admission, self.jobs[id as usize].order);
        let engine = &self.stages[stage as usize].engine;
        let at = engine.residents.iter().rposition(|&r| key_of(r) <= key).map_or(0, |at| at + 1);
        let engine = &mut self.stages[stage as usize].engine;
        engine.residents.insert(at, id);
        if self.planning.is_some_and(|p| p.stage == stage) {
            engine.joined.push(id);
        }
        self.ask_cut(stage);
        self.engine_has_work(stage);
    }

    pub(crate) fn remove_resident(&mut self, stage: u32, id: u32) {
        self.write_back(stage, id);
        self.ask_cut(stage);
        let planned = self.jobs[id as usize].planned;
        let engine = &mut self.stages[stage as usize].engine;
        engine.residents.retain(|&r| r != id);
        engine.joined.retain(|&r| r != id);
        if planned > 0.0 {
            engine.plan.retain(|&r| r != id);
            // The plan is not what was shown any more; the next one is to be looked at.
            engine.shown.scheduled = u32::MAX;
            if let Some(planning) = &mut self.planning
                && planning.stage == stage
            {
                planning.left += planned;
            }
        }
    }

    /// What a resident's tokens changed goes back to its session: the position in the share
    /// it grew, and when its latest token came.
    fn write_back(&mut self, stage: u32, id: u32) {
        let job = &self.jobs[id as usize];
        let session = &mut self.sessions[job.session as usize];
        if let Some(share) = job.growing {
            session.shares[share as usize].slack = job.slack;
            let hold = session.holds.iter().rposition(|h| h.shares <= share);
            session.holds[hold.expect("a growing run is inside its hold")].moved |= job.moved;
        }
        if job.moved && job.decodes() {
            session.last_token = job.last_token;
            session.token_stage = stage;
            session.token_again = false;
        }
    }

    /// Counts what a resident's session holds of its stage's memory.
    pub(crate) fn count_memory(&mut self, id: u32) {
        let job = &mut self.jobs[id as usize];
        let StageCodeKind::Step(step) = &self.code.stages[job.stages[0] as usize].kind else { return };
        if let (true, Some(memory)) = (step.reads_kv, step.memory) {
            let shares = &self.sessions[job.session as usize].shares;
            job.memory = shares.iter().filter(|s| s.pool == memory && !s.released).map(|s| s.quanta).sum();
            job.memory_pool = memory;
        }
    }

    /// Figures of the residents, for `budget` and `serve`.
    fn count_residents(&self, jobs: &[u32], memory: Option<u32>, variables: &mut Variables) {
        let (mut decoders, mut kv_decode, mut kv_prefill) = (0.0, 0.0, 0.0);
        for &job in jobs {
            let job = &self.jobs[job as usize];
            if job.decodes() {
                decoders += 1.0;
                kv_decode += job.memory;
            } else {
                kv_prefill += job.memory;
            }
        }
        let unit = memory.map_or(0.0, |memory| self.pools[memory as usize].quantum);
        variables[Context::Decoders as usize] = decoders;
        variables[Context::KvDecode as usize] = kv_decode * unit;
        variables[Context::KvPrefill as usize] = kv_prefill * unit;
    }

    fn budget_variables(&self, stage: u32, reads: bool) -> Variables {
        let mut variables = *NO_VARIABLES;
        let residents = &self.stages[stage as usize].engine.residents;
        variables[Context::Residents as usize] = residents.len() as f64;
        variables[Context::Member as usize] = f64::from(self.code.stages[stage as usize].member);
        if reads {
            let memory = self.step_code(stage).and_then(|step| step.memory);
            self.count_residents(residents, memory, &mut variables);
        }
        variables
    }

    /// `budget` and `chunk` as an iteration planned now would read them.
    #[inline]
    fn budget_and_chunk<W: World>(&self, world: &mut W, stage: u32, step: &StepCode) -> (f64, f64) {
        if let Some(numbers) = self.code.families.budgets[stage as usize] {
            return numbers;
        }
        let variables = self.budget_variables(stage, step.budget_reads);
        let frame = Frame::machine(Purpose::Stage, stage, &variables);
        (self.eval(world, &step.budget, &frame), self.eval(world, &step.chunk, &frame))
    }

    /// What the iteration being planned has left, else what a fresh plan would leave.
    pub(crate) fn budget_left<W: World>(&self, world: &mut W, stage: u32) -> f64 {
        if let Some(planning) = &self.planning
            && planning.stage == stage
        {
            return planning.left;
        }
        let code = self.code;
        let StageCodeKind::Step(step) = &code.stages[stage as usize].kind else { return 0.0 };
        let (budget, chunk) = self.budget_and_chunk(world, stage, step);
        self.left_of(stage, budget, chunk)
    }

    /// The same of a stage whose budget and chunk are numbers.
    pub(crate) fn budget_left_of_numbers(&self, stage: u32) -> f64 {
        match (&self.planning, self.code.families.budgets[stage as usize]) {
            (Some(planning), _) if planning.stage == stage => planning.left,
            (_, Some((budget, chunk))) => self.left_of(stage, budget, chunk),
            (_, None) => unreachable!("they are numbers"),
        }
    }

    fn left_of(&self, stage: u32, budget: f64, chunk: f64) -> f64 {
        let wanted: f64 = self.stages[stage as usize]
            .engine
            .residents
            .iter()
            .map(|&job| {
                let job = &self.jobs[job as usize];
                match job.mode {
                    Some(Mode::Decode) => job.remaining.min(1.0),
                    _ if chunk > 0.0 => job.remaining.min(chunk),
                    _ => job.remaining,
                }
            })
            .sum();
        (budget - wanted).max(0.0)
    }

    /// Says when work is due next, and plans iterations: one pass over the stages in
    /// declaration order, a `ps` stage whose population changed says its next finish, an
    /// idle step stage that has work is planned; then the flows say theirs. `plan` is
    /// whether engines may be planned: no other fact of this instant is pending.
    ///
    /// The pass is repeated until it starts nothing: what an admitted body began on a
    /// stage declared above does not wait for the next fact.
    ///
    /// # Errors
    ///
    /// A fault of a header, `budget`, `cost`, a rate or an admitted body.
    pub fn start_due<W: World>(&mut self, world: &mut W, plan: bool) -> Result<()> {
        let whole_instant = plan;
        let mut plan = plan;
        let mut any_started = false;
        loop {
            let mut started = false;
            let mut from = 0;
            self.engine_roused = false;
            loop {
                let changed = self.rates_changed.next_from(from);
                let idle = if plan { self.idle_engines.next_from(from) } else { None };
                let Some(stage) = changed.into_iter().chain(idle).min() else { break };
                from = stage + 1;
                if changed == Some(stage) {
                    self.set_rate(world, stage)?;
                } else {
                    started |= self.plan_step(world, stage)?;
                }
            }
            // Who was made ready while planning (the replacement of a victim that can't come
            // back) runs at the next settle; an iteration that started brings one.
            any_started |= started;
            if !any_started && !self.ready_list.is_empty() {
                self.settle(world)?;
            }
            if self.flows_changed {
                self.flows_changed = false;
                self.share_out(world);
            }
            // An engine passed over, or found idle, may have got somebody to serve since.
            plan &= started || self.engine_roused;
            if (!plan || self.idle_engines.is_empty()) && self.rates_changed.is_empty() {
                if whole_instant {
                    self.cut_if_watchful(world);
                }
                self.after_fact();
                return Ok(());
            }
        }
    }

    fn plan_step<W: World>(&mut self, world: &mut W, stage: u32) -> Result<bool> {
        let code = self.code;
        let StageCodeKind::Step(step) = &code.stages[stage as usize].kind else { return Ok(false) };
        let begun = step.asynchronous.is_some() && self.begin_ahead(world, stage);
        Ok(self.plan_anew(world, stage, step)? || begun)
    }

    fn plan_anew<W: World>(&mut self, world: &mut W, stage: u32, step: &StepCode) -> Result<bool> {
        self.unwatch_pools(stage);
        if !self.has_work(stage, step) {
            if !self.stages[stage as usize].engine.flights.is_empty() {
                return Ok(self.nothing_ahead(stage, false));
            }
            self.idle_engines.remove(stage);
            self.stages[stage as usize].engine.idle_with_work = false;
            self.show(stage, Shown::default());
            return Ok(false);
        }
        let (budget, chunk) = self.budget_and_chunk(world, stage, step);
        self.check_fault()?;
        if budget.is_nan() || chunk.is_nan() {
            let what = if budget.is_nan() { "budget" } else { "chunk" };
            let message = format!("the {what} of {} is NaN", self.stage_name(stage));
            return Err(self.fault(message, None, None));
        }
        let engine = &mut self.stages[stage as usize].engine;
        engine.plan.clear();
        engine.joined.clear();
        self.planning = Some(Planning { budget, left: budget, ..Planning::over(stage) });
        let exclusive = self.serve_residents(world, stage, step, chunk)?;
        let preempted = self.planning.is_some_and(|p| p.preempted);
        if !preempted && exclusive != Exclusive::Prefilling {
            self.admit_into_step(world, stage, step, budget, chunk, exclusive)?;
        }
        let planning = self.planning.take().expect("the plan is still being made");
        self.finish_plan(world, stage, step, planning)
    }

    fn serve_residents<W: World>(
        &mut self,
        world: &mut W,
        stage: u32,
        step: &StepCode,
        chunk: f64,
    ) -> Result<Exclusive> {
        let mut order = std::mem::take(&mut self.serve_order);
        order.clear();
        order.extend_from_slice(&self.stages[stage as usize].engine.residents);
        if step.asynchronous.is_some() {
            // Of some all is planned; they wait for its output.
            order.retain(|&job| self.jobs[job as usize].remaining >= DONE);
        }
        let mut exclusive = Exclusive::No;
        if step.exclusive_prefill {
            let prefill = order.iter().find(|&&j| self.jobs[j as usize].mode == Some(Mode::Prefill)).copied();
            if let Some(prefill) = prefill {
                order.clear();
                order.push(prefill);
                exclusive = Exclusive::Prefilling;
            } else {
                exclusive = Exclusive::Tentative;
            }
        }
        if !step.by.is_empty() {
            self.sort_by_keys(world, stage, step, &mut order);
        }
        let mut at = 0;
        while let Some(planning) = self.planning
            && !planning.stop
            && planning.left > 0.0
        {
            if !planning.preempted && step.only.is_none() {
                at += self.serve_whole_decodes(stage, &order[at..]);
            }
            let Some(&id) = order.get(at) else { break };
            at += 1;
            let job = &self.jobs[id as usize];
            // A growth served before may have taken this one.
            if !planning.preempted || (job.alive && job.stages[0] == stage) {
                self.serve_one(world, stage, step, id, chunk)?;
            }
        }
        self.serve_order = order;
        Ok(exclusive)
    }

    /// Most residents of most steps: a decode gets one token, and its block is there or at hand.
    /// Serves those that come first, up to one who needs more than that. Answers how many.
    fn serve_whole_decodes(&mut self, stage: u32, order: &[u32]) -> usize {
        let mut left = self.planning.map_or(0.0, |planning| planning.left);
        let mut served = 0;
        let (_, jobs, mut supply) = self.apart();
        for &id in order {
            let job = &mut jobs[id as usize];
            let whole = job.remaining >= 1.0 && left >= 1.0 && job.decodes() && !job.stalled;
            if !whole || (job.slack < 1.0 && !supply.take_block(job, 1.0)) {
                break;
            }
            job.planned = 1.0;
            left -= 1.0;
            served += 1;
        }
        self.set_left(left);
        self.stages[stage as usize].engine.plan.extend_from_slice(&order[..served]);
        served
    }

    fn serve_variables(&self, stage: u32, step: &StepCode, job: u32) -> Variables {
        let mut variables = self.budget_variables(stage, step.serve_reads);
        let job = &self.jobs[job as usize];
        variables[Context::Decoding as usize] = if job.decodes() { 1.0 } else { 0.0 };
        variables[Context::Admission as usize] = job.admission as f64;
        variables[Context::Remaining as usize] = job.remaining;
        variables
    }

    fn serve_frame<'a>(&self, stage: u32, job: u32, variables: &'a Variables) -> Frame<'a> {
        self.frame_for(self.jobs[job as usize].session, Frame::machine(Purpose::Stage, stage, variables))
    }

    fn sort_by_keys<W: World>(&mut self, world: &mut W, stage: u32, step: &StepCode, order: &mut [u32]) {
        let mut keyed: Vec<(Vec<f64>, u32)> = order
            .iter()
            .map(|&job| {
                let variables = self.serve_variables(stage, step, job);
                let mut keys = Vec::with_capacity(step.by.len());
                self.eval_keys(world, &step.by, &self.serve_frame(stage, job, &variables), &mut keys);
                (keys, job)
            })
            .collect();
        keyed.sort_by(|a, b| compare(&a.0, &b.0));
        for (at, (_, job)) in keyed.into_iter().enumerate() {
            order[at] = job;
        }
    }

    /// Gives one resident its tokens of this iteration.
    fn serve_one<W: World>(&mut self, world: &mut W, stage: u32, step: &StepCode, job: u32, chunk: f64) -> Result<()> {
        let Some(planning) = self.planning else { return Ok(()) };
        let state = &self.jobs[job as usize];
        if planning.left <= 0.0 || state.stalled || state.remaining < DONE {
            return Ok(());
        }
        if let Some(only) = &step.only {
            let variables = self.serve_variables(stage, step, job);
            let served = self.eval(world, only, &self.serve_frame(stage, job, &variables));
            self.check_fault()?;
            if served == 0.0 {
                return Ok(());
            }
        }
        let state = &self.jobs[job as usize];
        let mut want = state.remaining.min(planning.left);
        match state.mode {
            Some(Mode::Decode) => want = want.min(1.0),
            _ if chunk > 0.0 => want = want.min(chunk),
            _ => {}
        }
        if want.is_infinite() {
            return Err(self.fault_at("a run of infinite work meets no budget".into(), state.session));
        }
        if !self.grow_for(world, job, want)? {
            return Ok(());
        }
        self.jobs[job as usize].planned = want;
        self.stages[stage as usize].engine.plan.push(job);
        if let Some(planning) = &mut self.planning {
            planning.left -= want;
        }
        if self.code.shares_prefixes && !self.jobs[job as usize].decodes() {
            self.publish_scheduled(world, job)?;
        }
        Ok(())
    }

    /// What a resident's share has to grow by for its next tokens: the session, its share, the
    /// share's pool and the quanta. `None` where its blocks are there.
    fn growth_needed(&self, id: u32, tokens: f64) -> Option<(u32, u32, u32, f64)> {
        let job = &self.jobs[id as usize];
        let short = tokens - job.slack;
        let share = job.growing.filter(|_| short > TOLERANCE)?;
        let pool = self.sessions[job.session as usize].shares[share as usize].pool;
        Some((job.session, share, pool, self.pools[pool as usize].quanta(short)))
    }

    /// Takes the blocks a decode's next token needs, where they are there or cached.
    pub(crate) fn grow_without_preempting<W: World>(&mut self, world: &mut W, id: u32) -> Result<bool> {
        let Some((slot, share, pool, amount)) = self.growth_needed(id, 1.0) else { return Ok(true) };
        let fits = self.pools[pool as usize].fits(amount);
        if fits {
            self.extend(world, slot, share, amount, Some(id))?;
        }
        Ok(fits)
    }

    /// Takes the blocks a resident's next tokens need. Answers whether it has them.
    fn grow_for<W: World>(&mut self, world: &mut W, job: u32, tokens: f64) -> Result<bool> {
        let (_, jobs, mut supply) = self.apart();
        if supply.take_block(&mut jobs[job as usize], tokens) {
            return Ok(true);
        }
        let Some((slot, share, pool, amount)) = self.growth_needed(job, tokens) else { return Ok(true) };
        let preemptions = self.preemptions_total;
        let room = self.make_room(world, slot, pool, amount)?;
        if let Some(planning) = &mut self.planning {
            planning.preempted |= self.preemptions_total != preemptions;
            planning.stop |= matches!(room, Room::GrowerGone | Room::Fenced);
        }
        match room {
            Room::There => self.extend(world, slot, share, amount, Some(job))?,
            Room::GrowerGone | Room::Fenced => {}
            Room::Awaited => {
                self.jobs[job as usize].stalled = true;
                let grower = Grower { session: slot, amount, job: Some(job), share };
                self.pools[pool as usize].growers.push(grower);
                self.queue_changed(pool);
            }
        }
        Ok(room == Room::There)
    }

    /// Admits from the queues this stage serves while there is budget.
    fn admit_into_step<W: World>(
        &mut self,
        world: &mut W,
        stage: u32,
        step: &StepCode,
        budget: f64,
        chunk: f64,
        exclusive: Exclusive,
    ) -> Result<()> {
        'again: loop {
            for &pool in &step.via {
                if self.planning.is_none_or(|p| p.left <= 0.0 || p.preempted) {
                    return Ok(());
                }
                if self.pools[pool as usize].waiting() == 0 {
                    continue;
                }
                let left = self.planning.map_or(0.0, |p| p.left);
                if exclusive == Exclusive::Tentative {
                    // A header reads what a prefill would have, alone.
                    self.set_left(budget);
                }
                let admitted = self.try_head(world, pool)?;
                self.set_left(left);
                if !admitted {
                    if let Some(planning) = &mut self.planning {
                        planning.refused = Some(pool);
                    }
                    return Ok(());
                }
                self.run_ready(world)?;
                if self.serve_joined(world, stage, step, budget, chunk, exclusive)? {
                    return Ok(());
                }
                continue 'again;
            }
            return Ok(());
        }
    }

    fn set_left(&mut self, left: f64) {
        if let Some(planning) = &mut self.planning {
            planning.left = left;
        }
    }

    /// Serves what has joined since. Answers whether admissions are over.
    fn serve_joined<W: World>(
        &mut self,
        world: &mut W,
        stage: u32,
        step: &StepCode,
        budget: f64,
        chunk: f64,
        exclusive: Exclusive,
    ) -> Result<bool> {
        let mut over = false;
        while !self.stages[stage as usize].engine.joined.is_empty() {
            let job = self.stages[stage as usize].engine.joined.remove(0);
            let prefill = self.jobs[job as usize].mode == Some(Mode::Prefill);
            if exclusive == Exclusive::Tentative && prefill {
                // One prefill alone; the next one's turn comes.
                over = over || self.replace_decodes(world, stage, step, job, budget, chunk)?;
            } else if !over {
                self.serve_one(world, stage, step, job, chunk)?;
            }
        }
        Ok(over)
    }

    /// A prefill takes the place of the planned decodes, which keep the blocks they grew by.
    /// Where it gets no token itself, they keep theirs. Answers whether it got any.
    fn replace_decodes<W: World>(
        &mut self,
        world: &mut W,
        stage: u32,
        step: &StepCode,
        job: u32,
        budget: f64,
        chunk: f64,
    ) -> Result<bool> {
        let mut decodes = std::mem::take(&mut self.stages[stage as usize].engine.plan);
        self.set_left(budget);
        self.serve_one(world, stage, step, job, chunk)?;
        let served = !self.stages[stage as usize].engine.plan.is_empty();
        if served {
            decodes.iter().for_each(|&decode| self.jobs[decode as usize].planned = 0.0);
        } else {
            // Its growth may have taken some of them.
            decodes.retain(|decode| self.stages[stage as usize].engine.residents.contains(decode));
            let planned: f64 = decodes.iter().map(|&decode| self.jobs[decode as usize].planned).sum();
            self.set_left(budget - planned);
            self.stages[stage as usize].engine.plan = decodes;
        }
        Ok(served)
    }

    /// Reads the cost and starts the iteration, if there is one.
    fn finish_plan<W: World>(
        &mut self,
        world: &mut W,
        stage: u32,
        step: &StepCode,
        planning: Planning,
    ) -> Result<bool> {
        let engine = &self.stages[stage as usize].engine;
        let (mut tokens, mut prefilled, mut attention) = (0.0, 0.0, 0.0);
        let mut kv_prefill = 0.0;
        let mut decoders = 0;
        let mut batch = Batch::NOBODY;
        for &job in &engine.plan {
            let job = &self.jobs[job as usize];
            tokens += job.planned;
            if job.decodes() {
                decoders += 1;
                batch.count(job);
                continue;
            }
            kv_prefill += job.memory;
            if job.mode == Some(Mode::Prefill) {
                prefilled += job.planned;
                // A run that grows nothing has no position: its chunks are all first ones.
                let position = job.growing.map_or(0.0, |share| {
                    let share = self.sessions[job.session as usize].shares[share as usize];
                    self.pools[share.pool as usize].units(share.quanta) - job.slack
                });
                attention += job.planned * (position + job.planned / 2.0);
            }
        }
        let mut inputs = CostInputs::NONE;
        inputs.set(Context::Residents, engine.residents.len() as f64);
        inputs.set(Context::Decoders, f64::from(decoders));
        inputs.set(Context::Tokens, tokens);
        inputs.set(Context::Prefilled, prefilled);
        inputs.set(Context::Attention, attention);
        inputs.set(Context::KvDecode, batch.memory * step.memory_quantum);
        inputs.set(Context::KvPrefill, kv_prefill * step.memory_quantum);
        let jobs = engine.plan.len() as u32;
        let engine_residents = engine.residents.len();
        let scheduled = jobs > 0;
        let starts = scheduled || planning.preempted;
        let shown = Shown { prefills: prefilled > 0.0, decoders, scheduled: jobs };
        if step.asynchronous.is_some() {
            if scheduled {
                self.stages[stage as usize].engine.idle_with_work = false;
                let cost = self.cost(world, stage, step, &inputs)?;
                self.plan_ahead(world, stage, cost, shown);
                return Ok(true);
            }
            if planning.preempted || !self.stages[stage as usize].engine.flights.is_empty() {
                return Ok(self.nothing_ahead(stage, planning.preempted));
            }
        }
        self.stages[stage as usize].engine.idle_with_work = !starts;
        self.show(stage, if starts { shown } else { Shown::default() });
        if !starts {
            self.rest_refused(stage, step, planning.refused);
            return Ok(false);
        }
        // Every resident decodes a whole token.
        let whole =
            scheduled && jobs as usize == engine_residents && tokens == f64::from(decoders) && batch.work >= 1.0;
        let mut settles = W::MODELS_TIME && whole && decoders == jobs && !planning.preempted;
        if settles && step.budget_reads {
            // It was read of those who were there before the admissions, and of their blocks then.
            settles = self.budget_and_chunk(world, stage, step).0 == planning.budget;
        }
        let cost = self.cost(world, stage, step, &inputs)?;
        let steps = if settles { self.steps_settled(stage, step, planning, &batch) } else { 1 };
        self.start_step(world, stage, cost, decoders, steps);
        self.idle_engines.remove(stage);
        Ok(true)
    }

    /// Starts the planned iteration, which may be a leap of this many steps.
    #[inline(always)]
    pub(crate) fn start_step<W: World>(&mut self, world: &mut W, stage: u32, cost: f64, decoders: u32, steps: u64) {
        self.mark_stage(stage);
        let now = self.now;
        self.stages[stage as usize].engine.begin(now);
        world.act(Action::StartStep { stage, cost, decoders, steps });
    }

    /// The running iteration is over; what its jobs had planned is done.
    pub(crate) fn stop_step(&mut self, stage: u32) {
        self.mark_stage(stage);
        self.end_leap(stage);
        let engine = &mut self.stages[stage as usize].engine;
        engine.running = false;
        for job in engine.plan.drain(..) {
            self.jobs[job as usize].planned = 0.0;
        }
        self.idle_engines.insert(stage);
    }

    /// Tells the world to look at the stage, where there is something new to see.
    pub(crate) fn show(&mut self, stage: u32, shown: Shown) {
        let engine = &mut self.stages[stage as usize].engine;
        if engine.shown != shown {
            engine.shown = shown;
            self.touch_stage(stage);
        }
    }

    /// How long the planned iteration lasts; 0 where the world does not model time.
    #[inline]
    pub(crate) fn cost<W: World>(
        &mut self,
        world: &mut W,
        stage: u32,
        step: &StepCode,
        inputs: &CostInputs,
    ) -> Result<f64> {
        if !W::MODELS_TIME {
            return Ok(0.0);
        }
        let engine = &self.stages[stage as usize].engine;
        if step.cost_steady && engine.inputs == *inputs && engine.cost > 0.0 {
            return Ok(engine.cost);
        }
        self.stages[stage as usize].engine.inputs = *inputs;
        self.cost_anew(world, stage, step)
    }

    /// … by its inputs, which are not those of the one before.
    #[inline(always)]
    pub(crate) fn cost_anew<W: World>(&mut self, world: &mut W, stage: u32, step: &StepCode) -> Result<f64> {
        let cost = match &step.roofline {
            Some(roofline) => {
                let cost = roofline.at(&self.stages[stage as usize].engine.inputs.0);
                debug_assert!(
                    cost == self.cost_in_full(world, stage, step) || cost.is_nan(),
                    "a cost in its usual form is the cost evaluated in full"
                );
                cost
            }
            None => {
                let cost = self.cost_in_full(world, stage, step);
                self.check_fault()?;
                cost
            }
        };
        let engine = &mut self.stages[stage as usize].engine;
        let tokens = engine.inputs.tokens();
        let lasts = if tokens > 0.0 { cost > 0.0 } else { cost >= 0.0 };
        if !lasts {
            return Err(self.fault_cost(stage, tokens, cost));
        }
        engine.cost = cost;
        Ok(cost)
    }

    fn cost_in_full<W: World>(&self, world: &mut W, stage: u32, step: &StepCode) -> f64 {
        let inputs = &self.stages[stage as usize].engine.inputs;
        self.eval(world, &step.cost, &Frame::machine(Purpose::Stage, stage, &inputs.0))
    }

    #[cold]
    fn fault_cost(&self, stage: u32, tokens: f64, cost: f64) -> Box<Fault> {
        let name = self.stage_name(stage);
        self.fault(format!("an iteration of {name} with {tokens} tokens costs {cost}; above 0 is meant"), None, None)
    }

    /// The iteration's end: its tokens count, and jobs with nothing left are done.
    pub(crate) fn end_step<W: World>(&mut self, world: &mut W, stage: u32) -> Result<()> {
        let code = self.code;
        if let StageCodeKind::Step(step) = &code.stages[stage as usize].kind
            && step.asynchronous.is_some()
        {
            return self.end_ahead(world, stage, step);
        }
        let engine = &mut self.stages[stage as usize].engine;
        if !engine.running {
            return Ok(());
        }
        let whole = engine.leap.whole();
        if whole {
            let ended = world.steps_ended(stage);
            self.catch_up_to(world, stage, ended, Last::Told);
        }
        self.end_leap(stage);
        self.stages[stage as usize].engine.running = false;
        if !whole {
            self.count_planned_tokens(world, stage)?;
        }
        let mut plan = std::mem::take(&mut self.stages[stage as usize].engine.plan);
        for &id in &plan {
            let job = &mut self.jobs[id as usize];
            job.planned = 0.0;
            if job.remaining < DONE {
                self.end_resident(world, stage, id)?;
            }
        }
        plan.clear();
        let engine = &mut self.stages[stage as usize].engine;
        engine.plan = plan;
        self.mark_stage(stage);
        if self.step_code(stage).is_some_and(|step| step.watched) {
            self.touch_stage(stage);
        }
        self.idle_engines.insert(stage);
        Ok(())
    }

    /// The tokens of a step in which not everybody decodes a whole one.
    fn count_planned_tokens<W: World>(&mut self, world: &mut W, stage: u32) -> Result<()> {
        let now = self.now;
        let engine = &mut self.stages[stage as usize].engine;
        let began = engine.began;
        let lasted = if W::MODELS_TIME { engine.cost } else { now - began };
        let plan = std::mem::take(&mut engine.plan);
        // Decodes that had their latest token when this step began.
        let mut steady = 0;
        for &id in &plan {
            let job = &mut self.jobs[id as usize];
            job.remaining -= job.planned;
            job.slack -= job.planned;
            job.moved = true;
            if job.decodes() {
                if job.last_token == began {
                    steady += 1;
                } else if !job.last_token.is_nan() {
                    tell_gap(world, stage, (began - job.last_token) + lasted);
                }
                job.last_token = now;
            } else if job.remaining < DONE {
                let (slot, then) = (job.session, job.then.take());
                self.prefill_token(world, stage, slot, began, lasted);
                if let Some(then) = then {
                    self.go_on_as_decode(id, then.tokens);
                    self.note_prefill(world, stage, slot, Some(id), then)?;
                }
            }
        }
        if steady > 0 {
            world.act(Action::Tokens { stage, gap: lasted, count: steady });
        }
        self.stages[stage as usize].engine.plan = plan;
        Ok(())
    }

    /// A resident's last token has come: its session goes on.
    pub(crate) fn end_resident<W: World>(&mut self, world: &mut W, stage: u32, job: u32) -> Result<()> {
        self.remove_resident(stage, job);
        self.job_ended(world, stage, job);
        let slot = self.jobs[job as usize].session;
        self.free_job(job);
        self.ready(slot)
    }

    /// A prefill has all its tokens: its decode follows, if it has one.
    pub(crate) fn go_on_as_decode(&mut self, id: u32, tokens: f64) {
        if tokens > 0.0 {
            let job = &mut self.jobs[id as usize];
            job.mode = Some(Mode::Decode);
            job.remaining = tokens;
        }
    }

    /// A prefill that goes on as a decode is over: what its session has of that. The job is there
    /// unless it was preempted.
    pub(crate) fn note_prefill<W: World>(
        &mut self,
        world: &mut W,
        stage: u32,
        slot: u32,
        job: Option<u32>,
        then: Then,
    ) -> Result<()> {
        self.tell_move(world, slot, Move::Prefilled { stage });
        if let (Some(id), true) = (job, self.code.shares_prefixes) {
            self.publish_all(world, slot)?;
            if let Some(share) = self.jobs[id as usize].growing {
                self.publish_growing(world, slot, share, Some(id))?;
            }
        }
        self.run_notes(world, slot, then.notes)?;
        if let Some(id) = job.filter(|_| then.tokens > 0.0) {
            self.job_ended(world, stage, id);
            self.sessions[slot as usize].decodes = true;
            let job = &mut self.jobs[id as usize];
            (job.joined, job.started) = (self.now, self.now);
            job.last_token = self.sessions[slot as usize].last_token;
            let mode = Some(Mode::Decode);
            self.tell_move(world, slot, Move::Serving { stage, mode, work: then.tokens, also: false });
        }
        Ok(())
    }

    /// The token that ends a prefill run. Before the turn's first decode run it only begins
    /// the count, unless a preemption made it late.
    pub(crate) fn prefill_token<W: World>(&mut self, world: &mut W, stage: u32, slot: u32, began: f64, lasted: f64) {
        let session = &mut self.sessions[slot as usize];
        let again = std::mem::take(&mut session.token_again) && session.token_stage == stage;
        if !session.last_token.is_nan() && (session.decodes || again) {
            world.act(Action::Tokens { stage, gap: (began - session.last_token) + lasted, count: 1 });
        }
        session.last_token = self.now;
        session.token_stage = stage;
    }
}

/// How `serve exclusive prefill` stands in this iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exclusive {
    /// Another rule.
    No,
    /// A resident prefills, alone.
    Prefilling,
    /// Decodes, unless a waiting prefill fits.
    Tentative,
}
