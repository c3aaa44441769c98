//! Stages and the jobs on them.
//!
//! A job is one session's run. On a `fifo` stage it waits for a server, on a `delay`
//! it is alone, on a `ps` stage all share the rate, on a shared stage it is a flow
//! ([`crate::flow`]), on a step stage a resident ([`crate::step`]). The kernel says
//! who is in service; how long that takes is the driver's for `fifo` and `delay`
//! (`StartWork`), and for `ps` and flows, whose rates are the program's, the kernel
//! tells a driver that models time when the next one is due ([`Action::NextFinish`]).

use serq_ir::{Mode, PoolFigure, StageFigure};
use smallvec::SmallVec;

use crate::code::StageCodeKind;
use crate::expression::{Frame, NO_VARIABLES, NOBODY, Variables};
use crate::kernel::Kernel;
use crate::pool::{ExactSum, TOLERANCE};
use crate::session::Status;
use crate::step::Engine;
use crate::world::{Action, Move, Purpose, Result, World};

/// Work left below this is none.
pub(crate) const DONE: f64 = 1e-9;

/// Not in any list.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// The first fields are what an engine's step reads and writes of each resident: one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Job {
    /// Work left. On a step stage whole tokens are taken off it, which is exact.
    pub(crate) remaining: f64,
    /// Units past the computed position in the share it grows (endless when it grows none):
    /// the share's, which has it back when the job ends.
    pub(crate) slack: f64,
    /// Tokens the iteration gives it.
    pub(crate) planned: f64,
    /// When its session's latest token came; NaN before the turn's first.
    pub(crate) last_token: f64,
    /// Quanta its session holds of its stage's memory, where the stage reads that, and the pool.
    pub(crate) memory: f64,
    pub(crate) memory_pool: u32,
    /// [`NOBODY`] for the job that writes a spilled piece.
    pub(crate) session: u32,
    /// The session's share that grows with its tokens.
    pub(crate) growing: Option<u32>,
    pub(crate) mode: Option<Mode>,
    pub(crate) alive: bool,
    /// A growth of it waits for room.
    pub(crate) stalled: bool,
    /// It got a token.
    pub(crate) moved: bool,
    /// Its stage; of a flow, all of them.
    pub(crate) stages: SmallVec<[u32; 4]>,
    pub(crate) joined: f64,
    /// When its service began; NaN while it waits.
    pub(crate) started: f64,
    /// Position in joining order over all stages.
    pub(crate) order: u64,
    /// Its session's admission number when it joined (it can't change meanwhile).
    pub(crate) admission: u64,
    /// Since when a flow has its rate ([`Kernel::flow_rates`]), and when it ends then.
    pub(crate) since: f64,
    pub(crate) due: f64,
    /// Its place in its first stage's `serving`.
    place: u32,
    /// What a prefill does when it is over.
    pub(crate) then: Option<Then>,
}

/// A prefill's decode, and the operations by which the prefill's end is noted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Then {
    pub(crate) tokens: f64,
    pub(crate) notes: u32,
}

impl Job {
    fn new(session: u32, mode: Option<Mode>, work: f64, growing: Option<u32>) -> Self {
        Self {
            remaining: work,
            slack: f64::INFINITY,
            planned: 0.0,
            last_token: f64::NAN,
            memory: 0.0,
            memory_pool: NOWHERE,
            session,
            growing,
            mode,
            alive: true,
            stalled: false,
            moved: false,
            stages: SmallVec::new(),
            joined: f64::NAN,
            started: f64::NAN,
            order: 0,
            admission: 0,
            since: 0.0,
            due: f64::INFINITY,
            place: NOWHERE,
            then: None,
        }
    }

    pub(crate) fn decodes(&self) -> bool {
        self.mode == Some(Mode::Decode)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Stage {
    /// Jobs waiting for a `fifo` server.
    waiting: std::collections::VecDeque<u32>,
    /// Jobs in service (on a step stage the engine has them), in no order.
    pub(crate) serving: Vec<u32>,
    pub(crate) engine: Engine,
    /// Rate of each job of a `ps` stage, and since when.
    rate: f64,
    since: f64,
    /// Σ of its flows' rates over its capacity.
    pub(crate) load: f64,
    pub(crate) touched: bool,
    estimates: Estimates,
}

impl Stage {
    pub(crate) fn number(&self) -> usize {
        self.waiting.len() + self.serving.len() + self.engine.residents.len()
    }
}

/// Running means of weight 0.01, each begun with its first value.
#[derive(Debug)]
struct Estimates {
    last_start: f64,
    gap: f64,
    wait: f64,
    service: f64,
}

impl Default for Estimates {
    fn default() -> Self {
        Self { last_start: f64::NAN, gap: f64::NAN, wait: f64::NAN, service: f64::NAN }
    }
}

fn average(mean: &mut f64, value: f64) {
    *mean = if mean.is_nan() { value } else { 0.99 * *mean + 0.01 * value };
}

impl Estimates {
    /// A job that joined, was started and ends at these times. All three means are taken at
    /// its end; the gap is to the start of the job that ended before it.
    fn ended(&mut self, joined: f64, started: f64, now: f64) {
        if !self.last_start.is_nan() {
            average(&mut self.gap, started - self.last_start);
        }
        self.last_start = started;
        average(&mut self.wait, started - joined);
        average(&mut self.service, now - started);
    }

    fn lambda(&self) -> f64 {
        if self.gap > 0.0 { 1.0 / self.gap } else { 0.0 }
    }

    fn rho(&self) -> f64 {
        if self.service.is_nan() { 0.0 } else { (self.lambda() * self.service).min(0.99) }
    }
}

impl Kernel<'_> {
    /// A session's run begins on its stage, or as a flow over several.
    #[allow(clippy::too_many_arguments, reason = "the clauses of one statement")]
    pub(crate) fn add_job<W: World>(
        &mut self,
        world: &mut W,
        session: u32,
        stages: &[u32],
        mode: Option<Mode>,
        work: f64,
        growing: Option<u32>,
        then: Option<Then>,
    ) {
        let job = self.new_job(session, stages, mode, work, growing);
        self.jobs[job as usize].then = then;
        if session != NOBODY {
            self.sessions[session as usize].status = Status::Serving(job);
            for (at, &stage) in stages.iter().enumerate() {
                self.tell_move(world, session, Move::Serving { stage, mode, work, also: at > 0 });
            }
        }
        let stage = stages[0];
        match &self.code.stages[stage as usize].kind {
            StageCodeKind::Fifo { .. } => {
                self.stages[stage as usize].waiting.push_back(job);
                self.start_waiting(world, stage);
            }
            StageCodeKind::Delay => {
                self.serve(stage, job);
                world.act(Action::StartWork { job, work });
            }
            // Rates are a model's.
            StageCodeKind::Ps { .. } if !W::MODELS_TIME => {
                self.serve(stage, job);
                world.act(Action::StartWork { job, work });
            }
            StageCodeKind::Ps { .. } => {
                self.advance(stage);
                self.serve(stage, job);
                self.rates_changed.insert(stage);
            }
            StageCodeKind::Shared { .. } => {
                self.start_flow(job);
                if W::MOVES_FLOWS {
                    world.act(Action::StartFlow { job });
                }
            }
            StageCodeKind::Step(_) => self.add_resident(stage, job),
        }
        for &stage in stages {
            self.touch_stage(stage);
        }
    }

    /// The job that writes an evicted piece to the pool it spills to.
    pub(crate) fn add_spill_job<W: World>(&mut self, world: &mut W, stage: u32, work: f64) -> Result<()> {
        if work.is_nan() || work < 0.0 {
            let message = format!("the work of a spill is {work}");
            return Err(self.fault(message, None, None));
        }
        if work == 0.0 {
            return Ok(());
        }
        self.add_job(world, NOBODY, &[stage], None, work, None, None);
        Ok(())
    }

    #[inline(always)]
    fn new_job(&mut self, session: u32, stages: &[u32], mode: Option<Mode>, work: f64, growing: Option<u32>) -> u32 {
        let id = self.free_jobs.pop().unwrap_or_else(|| {
            self.jobs.push(Job::new(NOBODY, None, 0.0, None));
            (self.jobs.len() - 1) as u32
        });
        self.job_next += 1;
        let admission = if session == NOBODY { 0 } else { self.sessions[session as usize].admission };
        self.jobs[id as usize] = Job {
            stages: SmallVec::from_slice(stages),
            joined: self.now,
            order: self.job_next,
            admission,
            ..Job::new(session, mode, work, growing)
        };
        id
    }

    /// Puts a job in service.
    pub(crate) fn serve(&mut self, stage: u32, job: u32) {
        let state = &mut self.stages[stage as usize];
        self.jobs[job as usize].place = state.serving.len() as u32;
        state.serving.push(job);
        self.jobs[job as usize].started = self.now;
    }

    fn start_waiting<W: World>(&mut self, world: &mut W, stage: u32) {
        let StageCodeKind::Fifo { servers } = self.code.stages[stage as usize].kind else { return };
        while self.stages[stage as usize].serving.len() < servers as usize {
            let Some(job) = self.stages[stage as usize].waiting.pop_front() else { break };
            self.serve(stage, job);
            world.act(Action::StartWork { job, work: self.jobs[job as usize].remaining });
        }
    }

    fn unserve(&mut self, stage: u32, job: u32) {
        let place = self.jobs[job as usize].place as usize;
        let serving = &mut self.stages[stage as usize].serving;
        serving.swap_remove(place);
        if let Some(&moved) = serving.get(place) {
            self.jobs[moved as usize].place = place as u32;
        }
    }

    /// The driver says a job's service is over.
    pub(crate) fn end_work<W: World>(&mut self, world: &mut W, job: u32) -> Result<()> {
        if !self.jobs[job as usize].alive {
            return Ok(());
        }
        let stage = self.jobs[job as usize].stages[0];
        self.take_off(world, stage, job);
        let stages = std::mem::take(&mut self.jobs[job as usize].stages);
        for &stage in &stages {
            self.job_ended(world, stage, job);
        }
        self.jobs[job as usize].stages = stages;
        let session = self.jobs[job as usize].session;
        self.free_job(job);
        if session != NOBODY {
            self.ready(session)?;
        }
        Ok(())
    }

    pub(crate) fn job_ended<W: World>(&mut self, world: &mut W, stage: u32, job: u32) {
        let Job { joined, started, .. } = self.jobs[job as usize];
        let (wait, service) = (started - joined, self.now - started);
        if self.code.estimates {
            self.stages[stage as usize].estimates.ended(joined, started, self.now);
        }
        self.touch_stage(stage);
        world.act(Action::JobEnded { stage, wait, service });
    }

    /// Takes a job out of its stage's lists.
    fn take_off<W: World>(&mut self, world: &mut W, stage: u32, job: u32) {
        match &self.code.stages[stage as usize].kind {
            StageCodeKind::Fifo { .. } => {
                if self.jobs[job as usize].started.is_nan() {
                    self.stages[stage as usize].waiting.retain(|&j| j != job);
                } else {
                    self.unserve(stage, job);
                    self.start_waiting(world, stage);
                }
            }
            StageCodeKind::Delay => self.unserve(stage, job),
            StageCodeKind::Ps { .. } => {
                self.advance(stage);
                self.unserve(stage, job);
                self.rates_changed.insert(stage);
            }
            StageCodeKind::Shared { .. } => self.stop_flow(job),
            StageCodeKind::Step(_) => self.remove_resident(stage, job),
        }
    }

    /// A preempted session's job goes.
    pub(crate) fn stop_job<W: World>(&mut self, world: &mut W, job: u32) {
        let stage = self.jobs[job as usize].stages[0];
        let in_service = !self.jobs[job as usize].started.is_nan();
        self.take_off(world, stage, job);
        for at in 0..self.jobs[job as usize].stages.len() {
            self.touch_stage(self.jobs[job as usize].stages[at]);
        }
        let timed = matches!(self.code.stages[stage as usize].kind, StageCodeKind::Fifo { .. } | StageCodeKind::Delay);
        if timed && in_service {
            world.act(Action::StopWork { job });
        }
        self.free_job(job);
    }

    pub(crate) fn free_job(&mut self, job: u32) {
        self.jobs[job as usize].alive = false;
        self.free_jobs.push(job);
    }

    /// Deducts what a `ps` stage served since its rate was last set.
    fn advance(&mut self, stage: u32) {
        let state = &mut self.stages[stage as usize];
        let elapsed = self.now - state.since;
        // Nothing is served in no time, at an endless rate either.
        let served = if elapsed > 0.0 { state.rate * elapsed } else { 0.0 };
        state.since = self.now;
        if served != 0.0 {
            for &job in &state.serving {
                self.jobs[job as usize].remaining -= served;
            }
        }
    }

    /// Sets the rate of a `ps` stage whose population changed, and says when its next job is due.
    pub(crate) fn set_rate<W: World>(&mut self, world: &mut W, stage: u32) -> Result<()> {
        let code = self.code;
        self.rates_changed.remove(stage);
        let StageCodeKind::Ps { rate } = &code.stages[stage as usize].kind else { return Ok(()) };
        self.advance(stage);
        let present = self.stages[stage as usize].serving.len() as f64;
        if present == 0.0 {
            self.stages[stage as usize].rate = 0.0;
            world.act(Action::NextFinish { stage: Some(stage), next: None });
            return Ok(());
        }
        let mut variables: Variables = *NO_VARIABLES;
        variables[serq_ir::Context::Present as usize] = present;
        let total = self.eval(world, rate, &Frame::machine(Purpose::Stage, stage, &variables));
        self.check_fault()?;
        // A rate below 0 or NaN serves nobody.
        let each = if total > 0.0 { total / present } else { 0.0 };
        self.stages[stage as usize].rate = each;
        let next = self.stages[stage as usize]
            .serving
            .iter()
            .map(|&job| (self.jobs[job as usize].remaining, self.jobs[job as usize].order, job))
            .min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)))
            .and_then(|(remaining, _, job)| Some((job, self.due(remaining, each)?)));
        world.act(Action::NextFinish { stage: Some(stage), next });
        Ok(())
    }

    /// When `remaining` is done at this rate.
    pub(crate) fn due(&self, remaining: f64, rate: f64) -> Option<f64> {
        if remaining < DONE {
            return Some(self.now);
        }
        let time = self.now + remaining / rate;
        time.is_finite().then_some(time)
    }

    pub(crate) fn pool_figure(&self, figure: PoolFigure, pool: u32, session: u32) -> f64 {
        let state = &self.pools[pool as usize];
        match figure {
            PoolFigure::Used => state.used_units(),
            PoolFigure::Free => state.free_units(),
            PoolFigure::Holders => f64::from(state.holders),
            PoolFigure::Queued => state.waiting() as f64,
            PoolFigure::Cachedin => self.cachedin(session, pool),
            PoolFigure::Outstanding => self.outstanding(pool),
        }
    }

    /// Units that the prefill runs growing a pool will still take.
    pub(crate) fn outstanding(&self, pool: u32) -> f64 {
        let state = &self.pools[pool as usize];
        let stages = &self.code.pools[pool as usize].memory_of;
        let residents = stages.iter().flat_map(|&stage| &self.stages[stage as usize].engine.residents);
        let quanta = residents.map(|&id| {
            let job = &self.jobs[id as usize];
            let grows = job
                .growing
                .is_some_and(|share| self.sessions[job.session as usize].shares[share as usize].pool == pool);
            let short = job.remaining - job.slack;
            if grows && !job.decodes() && short > TOLERANCE { state.quanta(short) } else { 0.0 }
        });
        state.units(quanta.sum())
    }

    /// Units of the session's own entry, or of what is there of its prompt.
    pub(crate) fn cachedin(&self, session: u32, pool: u32) -> f64 {
        if self.pools[pool as usize].addressed.is_some() {
            return self.units_found(session, pool);
        }
        let entry = self.own_entry(session, pool);
        entry.map_or(0.0, |entry| self.pools[pool as usize].units(self.entries.quanta(entry)))
    }

    pub(crate) fn stage_figure<W: World>(&self, world: &mut W, figure: StageFigure, stage: u32) -> f64 {
        let state = &self.stages[stage as usize];
        match figure {
            StageFigure::Queue => state.number() as f64,
            StageFigure::Busy => match &self.code.stages[stage as usize].kind {
                StageCodeKind::Step(_) => state.engine.scheduled() as f64,
                _ => state.serving.len() as f64,
            },
            StageFigure::Work => self.unfinished(world, stage),
            StageFigure::BudgetLeft => self.budget_left(world, stage),
            StageFigure::EstLambda => state.estimates.lambda(),
            StageFigure::EstRho => state.estimates.rho(),
            StageFigure::EstWait => {
                if state.estimates.wait.is_nan() {
                    0.0
                } else {
                    state.estimates.wait
                }
            }
        }
    }

    /// Work left, what was served up to now deducted. Always a fresh sum: one kept by
    /// adding and subtracting leaves 1e-13 where 0 belongs, and ties in `choose` flip.
    fn unfinished<W: World>(&self, world: &mut W, stage: u32) -> f64 {
        let state = &self.stages[stage as usize];
        let job = |id: &u32| &self.jobs[*id as usize];
        // Exact, so that the order of the jobs in service, which is none, does not show.
        let mut sum = ExactSum::default();
        match &self.code.stages[stage as usize].kind {
            StageCodeKind::Step(_) => {
                let pending = self.tokens_pending(world, stage);
                let left = |job: &Job| if job.planned > 0.0 { job.remaining - pending } else { job.remaining };
                state.engine.residents.iter().for_each(|id| sum.add(left(job(id))));
            }
            StageCodeKind::Fifo { .. } | StageCodeKind::Delay => {
                let left = |job: &Job| (job.remaining - (self.now - job.started)).max(0.0);
                state.serving.iter().for_each(|id| sum.add(left(job(id))));
            }
            StageCodeKind::Ps { .. } => {
                let elapsed = self.now - state.since;
                let done = if elapsed > 0.0 { state.rate * elapsed } else { 0.0 };
                state.serving.iter().for_each(|id| sum.add((job(id).remaining - done).max(0.0)));
            }
            StageCodeKind::Shared { .. } => {
                let left = |id: &u32| {
                    let (job, rate) = (job(id), self.flow_rates[*id as usize]);
                    let moved = if self.now > job.since { rate * (self.now - job.since) } else { 0.0 };
                    (job.remaining - moved).max(0.0)
                };
                state.serving.iter().for_each(|id| sum.add(left(id)));
            }
        }
        state.waiting.iter().for_each(|id| sum.add(job(id).remaining));
        sum.value()
    }
}
