//! Leaps: many equal steps of one engine as one, caught up when somebody looks.
//!
//! A batch is *settled* when its next steps are its present one again: every resident
//! decodes one whole token, no block boundary and no end is reached, and nobody is
//! admitted. The kernel offers the world that many steps ([`Action::StartStep`]); a
//! world may take them one by one, or tell only the last one's end. Until then what
//! the steps did is pending.
//!
//! ```text
//!   plan ──offers n steps──▶ leaping ──┬─ last step's end told ─────────▶ plan
//!                              │   ▲   └─ cut: ends with the step that runs
//!                              └───┘
//!                       looked at: the steps ended so far are caught up
//! ```
//!
//! What looks: a preemption, its keys, `work`, the end of the warm-up and of the run. What
//! cuts: who joins the batch, who leaves it, a queue or a pool whose refused head might
//! now fit, and anything that the next fact, whichever it is, must try again
//! ([`Kernel::watchful`]). Growth at a block boundary ends a leap and begins the next.
//!
//! # Invariants
//!
//! - The state after n steps at once is, bit for bit, the state after n single ones: work and
//!   slack count down in whole tokens, which is exact; gaps are the step's duration.
//! - In the instant of any fact, a step's end that falls into it is a fact too (the world sees
//!   to that), so that order within an instant never depends on leaps.
//! - A refused head stays refused while the pools of its hold are not touched: its header reads
//!   nothing else ([`crate::code::HoldCode::steady`]), or the batch does not leap.

use serq_ir::Context;

use crate::code::{Op, StageCodeKind, StepCode};
use crate::kernel::Kernel;
use crate::stage::Job;
use crate::step::{Engine, Planning};
use crate::world::{Action, Result, World};

/// No more steps than this at once: their count stays exact in a double.
const STEPS_MAX: f64 = 1e12;

/// What became of a step's end ([`Kernel::tell_step_goes_on`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoesOn {
    /// It is still to be told: it may bring more than the same batch.
    Untold,
    /// It was told; something is to be started or planned.
    Told,
    /// It was told, the next step has started, and nothing else is to be done.
    Started,
}

/// What follows the last of the steps that are caught up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Last {
    /// The next one of the leap has begun.
    GoesOn,
    /// Its end is the present fact, and says what does.
    Told,
}

/// The leap of an engine's present plan.
#[derive(Debug, Default)]
pub(crate) struct Leap {
    /// The batch is settled: its next plan is this one, but for blocks and for who is done.
    pub(crate) settled: bool,
    /// … nobody waits in a queue it serves, and its budget stays what it is.
    goes_on: bool,
    /// Least work any job had left when its present steps began, and blocks for how many tokens.
    work: f64,
    slack: f64,
    /// More than one step was offered and they are not over.
    pub(crate) running: bool,
    /// Steps caught up.
    pub(crate) caught_up: u64,
    /// A cut is asked for.
    cut: bool,
    /// The queue whose head was refused, and that head.
    refused: Option<(u32, u32)>,
    /// Pools whose changes the stage is told, for a head that was refused.
    pools: Vec<u32>,
}

impl Leap {
    /// The steps in which everybody of a settled batch gets whole tokens and has blocks for them.
    #[inline(always)]
    fn offer(&mut self, work: f64, slack: f64) -> u64 {
        // Sooner as a signed number; it is a small one.
        let steps = (least(least(work, slack), STEPS_MAX) as i64).max(1) as u64;
        self.work = work;
        self.slack = slack;
        self.caught_up = 0;
        self.running = steps > 1;
        steps
    }

    /// Whether the present steps are a settled batch's: everybody in the plan gets a whole token in each.
    pub(crate) fn whole(&self) -> bool {
        self.work > 0.0
    }
}

/// Steps of a settled batch that have ended.
struct Ended {
    steps: u64,
    /// As many have begun since they were last counted.
    begun: u64,
    /// Each of them lasted so long.
    cost: f64,
    /// When the first of them began, and the last ended.
    began: f64,
    end: f64,
    /// What everybody got.
    tokens: f64,
}

impl Ended {
    /// Those up to the present steps' `ended`-th that were not caught up. They are counted.
    #[inline(always)]
    fn of(engine: &mut Engine, ended: u64, end: f64, last: Last) -> Self {
        let steps = ended - engine.leap.caught_up;
        engine.leap.caught_up = ended;
        let began = std::mem::replace(&mut engine.began, end);
        // As many have begun since, but for the one after the last.
        let begun = if last == Last::Told { steps - 1 } else { steps };
        engine.iterations += begun;
        Self { steps, begun, cost: engine.cost, began, end, tokens: tokens(steps) }
    }

    /// A job of the batch got its tokens. Answers whether its session had one in the step before;
    /// where not, the first one's gap is told.
    #[inline(always)]
    fn count<W: World>(&self, world: &mut W, stage: u32, job: &mut Job) -> bool {
        job.remaining -= self.tokens;
        job.slack -= self.tokens;
        job.moved = true;
        let before = std::mem::replace(&mut job.last_token, self.end);
        let steady = before == self.began;
        if !steady && !before.is_nan() {
            tell_gap(world, stage, (self.began - before) + self.cost);
        }
        steady
    }

    /// Tells of the steps, in which so many jobs got tokens, of which so many had one in the step before.
    #[inline(always)]
    fn tell<W: World>(&self, world: &mut W, stage: u32, jobs: usize, steady: u64) {
        let tokens = (self.steps - 1) * jobs as u64 + steady;
        if tokens > 0 || self.begun > 0 {
            let Self { cost, begun, .. } = *self;
            world.act(Action::StepsLeapt { stage, cost, decoders: jobs as u32, steps: begun, tokens });
        }
    }
}

/// What a settled batch's next steps depend on.
pub(crate) struct Batch {
    /// The least work any job has left, and blocks for how many tokens.
    pub(crate) work: f64,
    pub(crate) slack: f64,
    /// Quanta of the stage's memory that they hold.
    pub(crate) memory: f64,
}

impl Batch {
    pub(crate) const NOBODY: Self = Self { work: f64::INFINITY, slack: f64::INFINITY, memory: 0.0 };

    #[inline(always)]
    pub(crate) fn count(&mut self, job: &Job) {
        self.work = least(self.work, job.remaining);
        self.slack = least(self.slack, job.slack);
        self.memory += job.memory;
    }
}

impl Kernel<'_> {
    /// How many times the step just planned, one whole token for every resident, may run
    /// before a plan could differ.
    pub(crate) fn steps_settled(&mut self, stage: u32, step: &StepCode, planning: Planning, batch: &Batch) -> u64 {
        if !step.leaps {
            return 1;
        }
        // A plan without budget left tries nobody.
        let mut refused = None;
        let alone = !self.somebody_waits(step);
        if planning.left > 0.0 {
            if let Some(pool) = planning.refused {
                if !self.head_steady(pool, true) {
                    return 1;
                }
                refused = self.front(pool).map(|head| (pool, head));
            } else if !alone {
                return 1;
            }
        }
        let leap = &mut self.stages[stage as usize].engine.leap;
        leap.settled = true;
        leap.goes_on = alone && step.goes_on;
        leap.refused = refused;
        let steps = leap.offer(batch.work, batch.slack);
        self.leaping.set(stage, steps > 1);
        if steps > 1 {
            self.watch_pools_of(stage, refused.map(|(_, head)| head));
        }
        steps
    }

    /// Fact: a stage's step ended, and nothing else is due now. Where all it can bring is the
    /// same batch again, with further blocks, that step is started at once.
    ///
    /// # Errors
    ///
    /// A fault of the cost.
    // Inlined, so that a driver that goes from growth to growth does so in one loop.
    #[inline(always)]
    pub fn tell_step_goes_on<W: World>(&mut self, world: &mut W, now: f64, stage: u32) -> Result<GoesOn> {
        let code = self.code;
        let leap = &self.stages[stage as usize].engine.leap;
        if !(leap.settled && leap.goes_on) {
            return Ok(GoesOn::Untold);
        }
        let ended = world.steps_ended(stage);
        let (work, slack) = (leap.work - tokens(ended), leap.slack - tokens(ended));
        if work < 1.0 || self.something_else_to_do() {
            return Ok(GoesOn::Untold);
        }
        let StageCodeKind::Step(step) = &code.stages[stage as usize].kind else { unreachable!("it has a batch") };
        debug_assert!(!self.somebody_waits(step), "who joins a queue unsettles the batch");
        self.at(now);
        if slack >= 1.0 && step.cost_steady {
            // The same batch at the same cost.
            self.catch_up_to(world, stage, ended, Last::Told);
            let cost = self.stages[stage as usize].engine.cost;
            self.start_settled(world, stage, cost, work, slack);
            self.after_fact();
            return Ok(GoesOn::Started);
        }
        let Some(batch) = self.go_on_at_hand(world, stage, ended) else {
            return self.go_on_otherwise(world, stage, step);
        };
        self.start_grown(world, stage, step, &batch)?;
        self.after_fact();
        Ok(GoesOn::Started)
    }

    /// Everybody of a settled batch gets its tokens of the present steps, of which the last is the
    /// `ended`-th, and takes the block its next one needs, where all of these are at hand. Where
    /// not, some may have taken theirs.
    #[inline(always)]
    fn go_on_at_hand<W: World>(&mut self, world: &mut W, stage: u32, ended: u64) -> Option<Batch> {
        let now = self.now;
        let (stages, jobs, mut supply) = self.apart();
        let engine = &mut stages[stage as usize].engine;
        let ended = Ended::of(engine, ended, now, Last::Told);
        let (mut batch, mut at_hand, mut steady) = (Batch::NOBODY, true, 0);
        for &id in &engine.plan {
            let job = &mut jobs[id as usize];
            steady += u64::from(ended.count(world, stage, job));
            at_hand = at_hand && (job.slack >= 1.0 || supply.take_block(job, 1.0));
            batch.count(job);
        }
        ended.tell(world, stage, engine.plan.len(), steady);
        at_hand.then_some(batch)
    }

    /// … where they are not at hand: they may be free or evicted all the same.
    #[inline(never)]
    fn go_on_otherwise<W: World>(&mut self, world: &mut W, stage: u32, step: &StepCode) -> Result<GoesOn> {
        let batch = self.grow_otherwise(world, stage)?;
        if let Some(batch) = &batch {
            self.start_grown(world, stage, step, batch)?;
        } else {
            // The step is over, and the plan has to find room.
            self.stop_step(stage);
            self.settle(world)?;
        }
        self.make_cuts(world);
        self.after_fact();
        Ok(if batch.is_some() && !self.something_else_to_do() { GoesOn::Started } else { GoesOn::Told })
    }

    /// Everybody of a settled batch takes the block its next token needs, where that is free or can
    /// be evicted.
    fn grow_otherwise<W: World>(&mut self, world: &mut W, stage: u32) -> Result<Option<Batch>> {
        let mut batch = Batch::NOBODY;
        for at in 0..self.stages[stage as usize].engine.plan.len() {
            let id = self.stages[stage as usize].engine.plan[at];
            if self.jobs[id as usize].slack < 1.0 && !self.grow_without_preempting(world, id)? {
                return Ok(None);
            }
            batch.count(&self.jobs[id as usize]);
        }
        Ok(Some(batch))
    }

    /// The next step of a batch that has grown starts, or a leap. Settled it is still, and nothing
    /// but its blocks has changed of what its cost reads.
    #[inline(always)]
    fn start_grown<W: World>(&mut self, world: &mut W, stage: u32, step: &StepCode, batch: &Batch) -> Result<()> {
        let inputs = &mut self.stages[stage as usize].engine.inputs;
        inputs.set(Context::KvDecode, batch.memory * step.memory_quantum);
        let cost = self.cost_anew(world, stage, step)?;
        self.start_settled(world, stage, cost, batch.work, batch.slack);
        Ok(())
    }

    /// The next step of a settled batch starts, or a leap.
    #[inline(always)]
    fn start_settled<W: World>(&mut self, world: &mut W, stage: u32, cost: f64, work: f64, slack: f64) {
        let engine = &mut self.stages[stage as usize].engine;
        let leapt = engine.leap.running;
        let steps = engine.leap.offer(work, slack);
        let decoders = engine.plan.len() as u32;
        engine.begin(self.now);
        if leapt != (steps > 1) {
            self.leaping.set(stage, steps > 1);
        }
        self.mark_stage(stage);
        world.act(Action::StartStep { stage, cost, decoders, steps });
    }

    fn something_else_to_do(&self) -> bool {
        !(self.ready_list.is_empty()
            && self.idle_engines.is_empty()
            && self.retried.is_empty()
            && self.rates_changed.is_empty()
            && !self.flows_changed)
    }

    fn front(&self, pool: u32) -> Option<u32> {
        let pool = &self.pools[pool as usize];
        pool.returning.front().or_else(|| pool.queue.front()).copied()
    }

    /// Whether a queue's head stays refused until one of its hold's pools is touched.
    /// `budget`: its header may read what the stage has left, which does not change either.
    fn head_steady(&self, pool: u32, budget: bool) -> bool {
        let Some(head) = self.front(pool) else { return true };
        let fifo = self.code.pools[pool as usize].order.is_none();
        match &self.code.ops[self.sessions[head as usize].pc as usize] {
            Op::Hold(hold) => fifo && hold.steady && (budget || !hold.reads_budget),
            _ => false,
        }
    }

    /// Whether the next fact, whichever it is, may change something beyond what it says:
    /// somebody is ready, an idle engine has work, a pool changed since its waiters were tried,
    /// or waiters are to be tried anew at every fact.
    fn watchful(&self) -> bool {
        if !self.ready_list.is_empty() || !self.idle_engines.is_empty() {
            return true;
        }
        let mut from = 0;
        while let Some(pool) = self.retried.next_from(from) {
            from = pool + 1;
            let tries_queue = self.code.pools[pool as usize].via.is_none();
            if self.stirred || (tries_queue && !self.head_steady(pool, false)) {
                return true;
            }
        }
        false
    }

    /// At the end of an instant: leaps that must not go on are cut.
    pub(crate) fn cut_if_watchful<W: World>(&mut self, world: &mut W) {
        if !self.leaping.is_empty() && self.watchful() {
            let mut from = 0;
            while let Some(stage) = self.leaping.next_from(from) {
                from = stage + 1;
                self.ask_cut(stage);
            }
        }
        self.make_cuts(world);
    }

    /// The leap is to end with the step that runs.
    pub(crate) fn ask_cut(&mut self, stage: u32) {
        let leap = &mut self.stages[stage as usize].engine.leap;
        leap.settled = false;
        if leap.running && !leap.cut {
            leap.cut = true;
            self.cuts.push(stage);
        }
    }

    #[inline]
    pub(crate) fn make_cuts<W: World>(&mut self, world: &mut W) {
        if !self.cuts.is_empty() {
            self.cut(world);
        }
    }

    #[inline(never)]
    fn cut<W: World>(&mut self, world: &mut W) {
        while let Some(stage) = self.cuts.pop() {
            // Its last step may have been told meanwhile.
            if self.stages[stage as usize].engine.leap.cut {
                self.catch_up(world, stage);
                self.stages[stage as usize].engine.leap.cut = false;
                world.act(Action::CutLeap { stage });
            }
        }
    }

    /// A queue the stage serves changed while it runs.
    pub(crate) fn queue_changed_in_leap(&mut self, stage: u32, step: &StepCode, pool: u32) {
        if let Some((queue, head)) = self.stages[stage as usize].engine.leap.refused {
            let place = |of: u32| step.via.iter().position(|&p| p == of);
            // The first head that does not fit ends a step's admissions.
            let behind = if pool == queue { self.front(pool) == Some(head) } else { place(pool) > place(queue) };
            if behind {
                return;
            }
        }
        self.ask_cut(stage);
    }

    /// An idle engine's plan came to nothing. Where it has no residents and a head was refused
    /// that stays refused, it need not be tried again until a pool of that head's hold changes.
    pub(crate) fn rest_refused(&mut self, stage: u32, step: &StepCode, refused: Option<u32>) {
        let Some(pool) = refused.filter(|_| step.leaps) else { return };
        if self.stages[stage as usize].engine.residents.is_empty() && self.head_steady(pool, true) {
            self.idle_engines.remove(stage);
            self.watch_pools_of(stage, self.front(pool));
        }
    }

    /// A change of the pools of this head's hold is to be told to the stage.
    fn watch_pools_of(&mut self, stage: u32, head: Option<u32>) {
        self.unwatch_pools(stage);
        let Some(head) = head else { return };
        let mut pools = std::mem::take(&mut self.stages[stage as usize].engine.leap.pools);
        pools.extend_from_slice(&self.sessions[head as usize].members);
        for &pool in &pools {
            self.pools[pool as usize].watchers.push(stage);
        }
        self.stages[stage as usize].engine.leap.pools = pools;
    }

    #[inline]
    pub(crate) fn unwatch_pools(&mut self, stage: u32) {
        if !self.stages[stage as usize].engine.leap.pools.is_empty() {
            self.unwatch(stage);
        }
    }

    #[inline(never)]
    fn unwatch(&mut self, stage: u32) {
        let mut pools = std::mem::take(&mut self.stages[stage as usize].engine.leap.pools);
        for pool in pools.drain(..) {
            self.pools[pool as usize].watchers.retain(|&s| s != stage);
        }
        self.stages[stage as usize].engine.leap.pools = pools;
    }

    /// A pool changed for which heads were refused.
    #[inline(never)]
    pub(crate) fn tell_watchers(&mut self, pool: u32) {
        let watchers = std::mem::take(&mut self.pools[pool as usize].watchers);
        for &stage in &watchers {
            if self.stages[stage as usize].engine.running {
                self.ask_cut(stage);
            } else {
                self.engine_has_work(stage);
            }
        }
        self.pools[pool as usize].watchers = watchers;
    }

    /// Applies the steps of a leap that have ended by now.
    pub(crate) fn catch_up<W: World>(&mut self, world: &mut W, stage: u32) {
        let leap = &self.stages[stage as usize].engine.leap;
        if leap.running {
            let ended = world.steps_ended(stage);
            self.catch_up_to(world, stage, ended, Last::GoesOn);
        }
    }

    /// Applies all that leaps have pending: the end of the warm-up, or of the run.
    pub fn catch_up_all<W: World>(&mut self, world: &mut W, now: f64) {
        self.at(now);
        let mut from = 0;
        while let Some(stage) = self.leaping.next_from(from) {
            from = stage + 1;
            self.catch_up(world, stage);
        }
    }

    /// … that many of its steps.
    #[inline(always)]
    pub(crate) fn catch_up_to<W: World>(&mut self, world: &mut W, stage: u32, ended: u64, last: Last) {
        let Self { stages, jobs, .. } = self;
        let engine = &mut stages[stage as usize].engine;
        if ended == engine.leap.caught_up {
            return;
        }
        let end = if last == Last::Told { self.now } else { world.step_end(stage, ended) };
        let ended = Ended::of(engine, ended, end, last);
        let mut steady = 0;
        for &id in &engine.plan {
            steady += u64::from(ended.count(world, stage, &mut jobs[id as usize]));
        }
        ended.tell(world, stage, engine.plan.len(), steady);
        self.mark_stage(stage);
    }

    /// The last step's end was told.
    pub(crate) fn end_leap(&mut self, stage: u32) {
        let leap = &mut self.stages[stage as usize].engine.leap;
        let running = leap.running;
        *leap = Leap { pools: std::mem::take(&mut leap.pools), ..Leap::default() };
        if running {
            self.unwatch_pools(stage);
            self.leaping.remove(stage);
        }
    }

    /// Whole tokens each planned job has got since it was caught up.
    pub(crate) fn tokens_pending<W: World>(&self, world: &mut W, stage: u32) -> f64 {
        let leap = &self.stages[stage as usize].engine.leap;
        if leap.running { tokens(world.steps_ended(stage) - leap.caught_up) } else { 0.0 }
    }
}

/// Of two numbers.
#[inline(always)]
fn least(a: f64, b: f64) -> f64 {
    if a < b { a } else { b }
}

/// The tokens of so many steps, fewer than 2⁶³: a double is made sooner of a signed number.
#[inline(always)]
fn tokens(steps: u64) -> f64 {
    steps as i64 as f64
}

/// One token, after such a gap.
#[inline(never)]
pub(crate) fn tell_gap<W: World>(world: &mut W, stage: u32, gap: f64) {
    world.act(Action::Tokens { stage, gap, count: 1 });
}
