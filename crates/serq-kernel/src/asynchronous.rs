//! Steps planned ahead: the next one while one runs.
//!
//! ```text
//!   time     ├──── step n ────┼──── step n+1 ──┼──── step n+2 ──
//!   planned        n+1        │      n+2       │      n+3
//!   output                    n               n+1
//! ```
//!
//! When a step ends, its output comes: tokens, first tokens, the ends of runs. The step planned
//! meanwhile begins, and the one after it is planned, with what is known now. So a plan counts
//! what the running step computes as computed, and knows nothing of what comes of it: who is
//! done keeps its seat and its blocks one plan longer. An idle engine begins what it plans and
//! plans the next at once. A plan that gives nobody anything is no step; the engine plans again
//! when the running one has ended.
//!
//! vLLM's asynchronous scheduling (v1/engine/core.py 698-812 at 0.32.0, v1/core/sched/async_scheduler.py).
//!
//! # Invariants
//!
//! - At most two steps are planned and not over; the first of them runs.
//! - A resident's remaining work, slack and mode are as of the last planned step.
//! - What was taken from whoever is in a planned step is not forgotten: a token that was
//!   computed comes, whoever was preempted or cancelled meanwhile.

use crate::code::StepCode;
use crate::hold::Lease;
use crate::kernel::Kernel;
use crate::leap::tell_gap;
use crate::pool::HOLDERS;
use crate::session::Status;
use crate::stage::{DONE, Then};
use crate::step::Shown;
use crate::world::{Action, Result, World};

/// Planned steps that are not over.
const AHEAD: usize = 2;

/// A planned step.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) entries: Vec<Entry>,
    cost: f64,
    shown: Shown,
    /// When it began; NaN before.
    began: f64,
}

/// What a planned step has of one resident, which may be gone when it is over.
#[derive(Debug)]
pub(crate) struct Entry {
    job: u32,
    /// Tells whether that is still the same job …
    order: u64,
    session: u32,
    /// … and the same session, …
    pub(crate) serial: u64,
    /// … or leg: its number and its turn.
    leg: (u32, u64),
    pub(crate) tokens: f64,
    decodes: bool,
    /// Its prefill's last token is among them, …
    first_token: bool,
    /// … which is to be noted.
    then: Option<Then>,
    /// Its run's last token is among them.
    last: bool,
    /// Its innermost hold.
    hold: Option<u32>,
}

impl Kernel<'_> {
    /// The step that was planned ahead begins, if the one before it is over.
    pub(crate) fn begin_ahead<W: World>(&mut self, world: &mut W, stage: u32) -> bool {
        let now = self.now;
        let engine = &mut self.stages[stage as usize].engine;
        let Some(flight) = engine.flights.front_mut().filter(|flight| flight.began.is_nan()) else { return false };
        flight.began = now;
        engine.iterations += 1;
        let (cost, shown) = (flight.cost, flight.shown);
        self.show(stage, shown);
        self.mark_stage(stage);
        world.act(Action::StartStep { stage, cost, decoders: shown.decoders, steps: 1 });
        true
    }

    /// The step just planned is one of those ahead.
    pub(crate) fn plan_ahead<W: World>(&mut self, world: &mut W, stage: u32, cost: f64, shown: Shown) {
        let engine = &mut self.stages[stage as usize].engine;
        let (mut plan, mut entries) = (std::mem::take(&mut engine.plan), std::mem::take(&mut engine.entries));
        entries.extend(plan.drain(..).map(|id| self.commit(id)));
        let engine = &mut self.stages[stage as usize].engine;
        engine.plan = plan;
        engine.flights_planned += 1;
        engine.flights.push_back(Flight { entries, cost, shown, began: f64::NAN });
        engine.running = engine.flights.len() == AHEAD;
        if engine.running {
            self.idle_engines.remove(stage);
        }
        self.begin_ahead(world, stage);
    }

    /// Counts a resident's planned tokens as computed.
    fn commit(&mut self, id: u32) -> Entry {
        let job = &mut self.jobs[id as usize];
        let decodes = job.decodes();
        let tokens = std::mem::take(&mut job.planned);
        job.remaining -= tokens;
        job.slack -= tokens;
        job.moved = true;
        let first_token = !decodes && job.remaining < DONE;
        let then = if first_token { job.then.take() } else { None };
        if let Some(Then { tokens, .. }) = then {
            self.go_on_as_decode(id, tokens);
        }
        let job = &self.jobs[id as usize];
        let session = &self.sessions[job.session as usize];
        Entry {
            job: id,
            order: job.order,
            session: job.session,
            serial: session.serial,
            leg: session.which_leg(),
            tokens,
            decodes,
            first_token,
            then,
            last: job.remaining < DONE,
            hold: session.holds.last().map(|hold| hold.pc),
        }
    }

    /// A plan ahead gave nobody anything. Answers whether another is to be made at once.
    pub(crate) fn nothing_ahead(&mut self, stage: u32, preempted: bool) -> bool {
        let engine = &mut self.stages[stage as usize].engine;
        if engine.flights.is_empty() {
            return preempted;
        }
        engine.running = true;
        self.idle_engines.remove(stage);
        false
    }

    /// The running step is over: what it computed comes.
    pub(crate) fn end_ahead<W: World>(&mut self, world: &mut W, stage: u32, step: &StepCode) -> Result<()> {
        let engine = &mut self.stages[stage as usize].engine;
        if engine.flights.front().is_none_or(|flight| flight.began.is_nan()) {
            return Ok(());
        }
        let Flight { mut entries, began, cost, .. } = engine.flights.pop_front().expect("a step is running");
        engine.flights_over += 1;
        engine.running = false;
        self.idle_engines.insert(stage);
        let lasted = if W::MODELS_TIME { cost } else { self.now - began };
        self.lower_fences(world, stage)?;
        for entry in entries.drain(..) {
            self.come(world, stage, &entry, began, lasted)?;
        }
        self.stages[stage as usize].engine.entries = entries;
        self.mark_stage(stage);
        if step.watched {
            self.touch_stage(stage);
        }
        Ok(())
    }

    /// What a step computed for one resident.
    fn come<W: World>(&mut self, world: &mut W, stage: u32, entry: &Entry, began: f64, lasted: f64) -> Result<()> {
        let slot = entry.session;
        let session = &self.sessions[slot as usize];
        let same = session.serial == entry.serial && session.which_leg() == entry.leg;
        if !same || session.status == Status::Over {
            return Ok(());
        }
        let there = self.jobs[entry.job as usize].alive && self.jobs[entry.job as usize].order == entry.order;
        if !there && session.preempted_hold.is_some_and(|pc| self.hold_code(pc).lease.is_some()) {
            // What it is to lease is gone: it computes that again.
            return Ok(());
        }
        if entry.decodes {
            let before = if there { self.jobs[entry.job as usize].last_token } else { session.last_token };
            if !before.is_nan() {
                tell_gap(world, stage, (began - before) + lasted);
            }
            match there {
                true => self.jobs[entry.job as usize].last_token = self.now,
                false => self.sessions[slot as usize].last_token = self.now,
            }
        } else if entry.first_token {
            self.prefill_token(world, stage, slot, began, lasted);
            if let Some(then) = entry.then {
                self.note_prefill(world, stage, slot, there.then_some(entry.job), then)?;
            }
        }
        if !entry.last {
            return Ok(());
        }
        if there {
            self.end_resident(world, stage, entry.job)?;
        } else if let Status::Queued(pool) = self.sessions[slot as usize].status
            && let hold @ Some(pc) = self.sessions[slot as usize].preempted_hold
            && (hold == entry.hold || self.is_inside(pc, entry.hold))
        {
            // It was preempted with its last token on the way: nothing is left to compute.
            self.leave_queue(pool, slot);
            self.end_preempted_hold(slot, pc);
            self.ready(slot)?;
        }
        Ok(())
    }

    /// Whether a hold's operation is inside another's scope.
    fn is_inside(&self, outer: u32, inner: Option<u32>) -> bool {
        inner.is_some_and(|inner| inner > outer && inner < self.hold_code(outer).over)
    }

    /// Whether a planned step has tokens for this resident.
    pub(crate) fn is_ahead(&self, stage: u32, id: u32) -> bool {
        self.entries_ahead(stage, id).next().is_some()
    }

    /// Decode tokens of a resident in planned steps: its blocks don't know them yet.
    pub(crate) fn decodes_ahead(&self, stage: u32, id: u32) -> f64 {
        self.entries_ahead(stage, id).filter(|entry| entry.decodes).map(|entry| entry.tokens).sum()
    }

    fn entries_ahead(&self, stage: u32, id: u32) -> impl Iterator<Item = &Entry> {
        let order = self.jobs[id as usize].order;
        let flights = self.stages[stage as usize].engine.flights.iter();
        flights.flat_map(|flight| &flight.entries).filter(move |entry| (entry.job, entry.order) == (id, order))
    }

    /// A session that goes away leaves what planned steps write to: its blocks are given back
    /// once the last of them is over.
    pub(crate) fn raise_fence(&mut self, slot: u32, stage: u32, pool: u32) {
        let step = self.stages[stage as usize].engine.flights_planned;
        for at in 0..self.sessions[slot as usize].shares.len() {
            let mut share = self.sessions[slot as usize].shares[at];
            if share.pool != pool || share.released {
                continue;
            }
            let hold = self.sessions[slot as usize].holds[self.hold_of_share(slot, at as u32)];
            self.pools[pool as usize].holders -= u32::from(std::mem::take(&mut share.counted));
            let session = &mut self.sessions[slot as usize];
            session.shares[at].released = true;
            session.leases.push(Lease::fenced(hold, share, step));
            self.stages[stage as usize].engine.fences.push_back((step, slot));
            self.touch_pool(pool, HOLDERS);
        }
    }

    /// Gives back what waited for the step that is over.
    fn lower_fences<W: World>(&mut self, world: &mut W, stage: u32) -> Result<()> {
        loop {
            let engine = &mut self.stages[stage as usize].engine;
            let over = engine.flights_over;
            let Some(&(step, slot)) = engine.fences.front().filter(|(step, _)| *step <= over) else { return Ok(()) };
            engine.fences.pop_front();
            let leases = &self.sessions[slot as usize].leases;
            let lease = leases.iter().position(|lease| lease.fence == Some(step)).expect("a fence has its lease");
            let Lease { hold, share, .. } = self.sessions[slot as usize].leases.remove(lease);
            self.give_back(world, slot, hold, share, true)?;
            self.free_if_over(slot);
        }
    }
}
