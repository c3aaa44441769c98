//! The kernel: told facts, it answers with actions.
//!
//! ```text
//!              facts (each with its time)                        actions
//!   driver ───────────────────────────────▶  kernel  ───────────────────────────▶  driver
//!     arrived · step ended · work ended · woken       StartStep StartWork WakeAt Observed …
//! ```
//!
//! A fact is applied and *settled*: ready sessions run, in the order they became
//! ready, until all have blocked; then every pool somebody waits for retries its
//! growers and its queue, in declaration order; again until nobody is ready. Engines
//! are planned when the driver knows that the instant has no further fact
//! ([`Kernel::start_due`]).
//!
//! The kernel has no clock, no I/O and no randomness: time comes with every fact,
//! draws from the [`World`]. The same facts and draws give the same actions.

use std::cell::{Cell, OnceCell};
use std::collections::{BTreeSet, VecDeque};

use serq_ir::Place;

use crate::cache::Entries;
use crate::choice::{self, Choice};
use crate::code::{Code, StageCodeKind};
use crate::expression::{Frame, NO_VARIABLES, NOBODY, PLACES};
use crate::flow::Region;
use crate::gauge::Gauges;
use crate::hold::Share;
use crate::index_set::IndexSet;
use crate::pool::{ExactSum, Pool, PoolCounts, QUEUE, TOLERANCE};
use crate::session::{Session, Status};
use crate::stage::{Job, Stage};
use crate::step::Planning;
use crate::world::{Arrival, Fault, Purpose, Result, World};

/// A program being served.
#[derive(Debug)]
pub struct Kernel<'p> {
    pub(crate) code: &'p Code,
    pub(crate) now: f64,
    pub(crate) strict: bool,

    pub(crate) sessions: Vec<Session>,
    pub(crate) free_slots: Vec<u32>,
    /// Of all sessions, by slot.
    pub(crate) attributes: Vec<f64>,
    pub(crate) ready_list: VecDeque<u32>,
    pub(crate) serial_next: u64,
    pub(crate) admission_next: u64,
    pub(crate) conversation_next: u64,
    pub(crate) live: u64,
    pub(crate) instant_arrivals: u32,
    pub(crate) instant_pieces: u32,
    instant: f64,
    pub(crate) clamped: u64,
    /// Sessions that ended at a `fail`.
    pub(crate) failed: u64,
    pub(crate) preemptions_total: u64,
    facts: u64,

    pub(crate) pools: Vec<Pool>,
    pub(crate) entries: Entries,
    /// Pools with growers, or with waiters no stage serves.
    pub(crate) retried: IndexSet,

    pub(crate) stages: Vec<Stage>,
    pub(crate) jobs: Vec<Job>,
    pub(crate) free_jobs: Vec<u32>,
    pub(crate) job_next: u64,
    /// `ps` stages whose population changed.
    pub(crate) rates_changed: IndexSet,
    /// Idle step stages with residents or waiters.
    pub(crate) idle_engines: IndexSet,
    /// An idle engine got work while others were being planned.
    pub(crate) engine_roused: bool,
    pub(crate) planning: Option<Planning>,
    /// Step stages that leap.
    pub(crate) leaping: IndexSet,
    /// Leaps to be cut before the fact is over.
    pub(crate) cuts: Vec<u32>,
    /// A pool changed since waiters were last tried.
    pub(crate) stirred: bool,

    /// By job: what rate a flow has.
    pub(crate) flow_rates: Vec<f64>,
    /// Flows that will end, by when, then in start order.
    pub(crate) flows_due: BTreeSet<(u64, u64, u32)>,
    pub(crate) flows_changed: bool,
    /// Stages at which they did.
    pub(crate) flows_changed_at: Vec<u32>,

    /// The session each running lease timer belongs to.
    pub(crate) timers: Vec<Option<u32>>,
    pub(crate) timers_free: Vec<u32>,

    /// Numbers put by while a straight expression is evaluated.
    pub(crate) put_by: [Cell<f64>; PLACES],
    pub(crate) turn_draws: Cell<u64>,
    pool_draws: Vec<Cell<u64>>,
    stage_draws: Vec<Cell<u64>>,
    gap_draws: Cell<u64>,
    pub(crate) simple_place: Option<Place>,
    /// What an expression met that stops the run, and whose it was.
    fault: OnceCell<(String, u32)>,

    pub(crate) gauges: Gauges,
    pub(crate) choices: Vec<Choice>,
    touched_pools: Vec<u32>,
    touched_stages: Vec<u32>,

    // Buffers kept between calls, so that a fact allocates nothing once warm.
    pub(crate) keys_best: Vec<f64>,
    pub(crate) keys_tried: Vec<f64>,
    pub(crate) header_units: Vec<f64>,
    pub(crate) candidates: Vec<(u64, u32)>,
    pub(crate) serve_order: Vec<u32>,
    pub(crate) run_stages: Vec<u32>,
    pub(crate) region: Region,
    pub(crate) trace_ids: Vec<u64>,
    /// Who was rejected, and by which pool, for a world that answers them.
    pub(crate) rejected: Vec<(u64, u32)>,

    /// Pools that are memories of instances that are gone, or (`false`) only take no new work.
    pub(crate) absent: Vec<(u32, bool)>,
}

/// What a member of a pool holds now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolState {
    /// Allocated units.
    pub used: f64,
    /// Cached units.
    pub cached: f64,
    /// Sessions waiting in its queue.
    pub queue: u32,
    /// Holds and leases.
    pub holders: u32,
}

/// A waiter that asks a pool for more than its cap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OverCap {
    /// The pool that can't serve it.
    pub pool: u32,
    /// The pool in whose queue it waits.
    pub queue: u32,
    /// Units it asks for, before they are rounded to blocks.
    pub need: f64,
}

/// What a member of a stage does now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageState {
    /// Jobs waiting or served.
    pub number: u32,
    /// Of a shared stage, Σ rates over capacity.
    pub load: f64,
    /// The running iteration has prefill tokens.
    pub prefills: bool,
    /// Its decode jobs (0 when idle).
    pub decoders: u32,
}

impl<'p> Kernel<'p> {
    /// A kernel at time 0 with nobody in it. `strict` makes negative work a fault.
    pub fn new(code: &'p Code, strict: bool) -> Self {
        let pools = code.pools.len();
        let stages = code.stages.len();
        Self {
            code,
            now: 0.0,
            strict,
            sessions: Vec::new(),
            free_slots: Vec::new(),
            attributes: Vec::new(),
            ready_list: VecDeque::new(),
            serial_next: 0,
            admission_next: 0,
            conversation_next: 0,
            live: 0,
            instant_arrivals: 0,
            instant_pieces: 0,
            instant: f64::NAN,
            clamped: 0,
            failed: 0,
            preemptions_total: 0,
            facts: 0,
            pools: code.pools.iter().map(Pool::new).collect(),
            entries: Entries::default(),
            retried: IndexSet::new(pools),
            stages: code.stages.iter().map(|_| Stage::default()).collect(),
            jobs: Vec::new(),
            free_jobs: Vec::new(),
            job_next: 0,
            rates_changed: IndexSet::new(stages),
            idle_engines: IndexSet::new(stages),
            engine_roused: false,
            planning: None,
            leaping: IndexSet::new(stages),
            cuts: Vec::new(),
            stirred: false,
            flow_rates: Vec::new(),
            flows_due: BTreeSet::new(),
            flows_changed: false,
            flows_changed_at: Vec::new(),
            timers: Vec::new(),
            timers_free: Vec::new(),
            put_by: Default::default(),
            turn_draws: Cell::new(0),
            pool_draws: vec![Cell::new(0); pools],
            stage_draws: vec![Cell::new(0); stages],
            gap_draws: Cell::new(0),
            simple_place: None,
            fault: OnceCell::new(),
            gauges: Gauges::new(&code.gauges),
            choices: choice::trees(&code.choices),
            touched_pools: Vec::new(),
            touched_stages: Vec::new(),
            keys_best: Vec::new(),
            keys_tried: Vec::new(),
            header_units: Vec::new(),
            candidates: Vec::new(),
            serve_order: Vec::new(),
            run_stages: Vec::new(),
            region: Region::new(stages),
            trace_ids: Vec::new(),
            rejected: Vec::new(),
            absent: Vec::new(),
        }
    }

    pub(crate) fn at(&mut self, now: f64) {
        debug_assert!(now >= self.now, "time does not go back");
        if self.instant != now {
            self.instant = now;
            self.instant_arrivals = 0;
            self.instant_pieces = 0;
        }
        self.now = now;
    }

    /// Fact: sessions arrive, in this order.
    ///
    /// # Errors
    ///
    /// Like all facts: a fault of the program. The kernel is of no further use then.
    pub fn tell_arrived<W: World>(
        &mut self,
        world: &mut W,
        now: f64,
        arrivals: impl IntoIterator<Item = Arrival>,
    ) -> Result<()> {
        self.at(now);
        for arrival in arrivals {
            self.arrive(arrival)?;
        }
        self.end_fact(world)
    }

    /// Fact: the running iteration of a step stage ended.
    ///
    /// # Errors
    ///
    /// A fault of the program.
    pub fn tell_step_ended<W: World>(&mut self, world: &mut W, now: f64, stage: u32) -> Result<()> {
        self.at(now);
        self.end_step(world, stage)?;
        self.end_fact(world)
    }

    /// Fact: a job's work (`fifo`, `delay`, `ps`, a flow) is done.
    ///
    /// # Errors
    ///
    /// A fault of the program.
    pub fn tell_work_ended<W: World>(&mut self, world: &mut W, now: f64, job: u32) -> Result<()> {
        self.at(now);
        self.end_work(world, job)?;
        self.end_fact(world)
    }

    /// Fact: time came this far, and nothing with it. Whoever joined a queue while engines were
    /// planned, and would be tried at the next fact, is tried now.
    ///
    /// # Errors
    ///
    /// A fault of the program.
    pub fn tell_nothing_came<W: World>(&mut self, world: &mut W, now: f64) -> Result<()> {
        self.at(now);
        self.end_fact(world)
    }

    /// Fact: a lease's time is over.
    ///
    /// # Errors
    ///
    /// A fault of the program.
    pub fn tell_woken<W: World>(&mut self, world: &mut W, now: f64, timer: u32) -> Result<()> {
        self.at(now);
        self.wake(world, timer)?;
        self.end_fact(world)
    }

    pub(crate) fn end_fact<W: World>(&mut self, world: &mut W) -> Result<()> {
        self.settle(world)?;
        self.make_cuts(world);
        self.after_fact();
        Ok(())
    }

    #[inline]
    pub(crate) fn settle<W: World>(&mut self, world: &mut W) -> Result<()> {
        loop {
            self.run_ready(world)?;
            self.stirred = false;
            if !self.retried.is_empty() {
                self.retry_pools(world)?;
            }
            if self.ready_list.is_empty() {
                return Ok(());
            }
        }
    }

    /// Asserts the invariants in debug and test builds: after each of the first facts,
    /// then after every 64th.
    pub(crate) fn after_fact(&mut self) {
        if cfg!(debug_assertions) {
            self.facts += 1;
            if self.facts < 20_000 || self.facts.is_multiple_of(64) {
                self.check();
            }
        }
    }

    /// The gap to the next arrival of a `renewal` law.
    ///
    /// # Errors
    ///
    /// A gap that is not positive and finite.
    pub fn gap<W: World>(&self, world: &mut W) -> Result<f64> {
        let gap = self.code.gap.as_ref().expect("the arrival law is renewal");
        let gap = self.eval(world, gap, &Frame::machine(Purpose::Arrivals, 0, NO_VARIABLES));
        if gap > 0.0 && gap.is_finite() {
            Ok(gap)
        } else {
            Err(self.fault(format!("a gap between arrivals is {gap}; positive and finite is meant"), None, None))
        }
    }

    pub(crate) fn machine_draws(&self, purpose: Purpose, id: u32) -> &Cell<u64> {
        match purpose {
            Purpose::Pool => &self.pool_draws[id as usize],
            Purpose::Stage => &self.stage_draws[id as usize],
            _ => &self.gap_draws,
        }
    }

    // ---- what drivers read

    /// Sessions that arrived so far.
    pub fn arrivals(&self) -> u64 {
        self.serial_next
    }

    /// Members of pools.
    pub fn pools(&self) -> u32 {
        self.pools.len() as u32
    }

    /// Members of stages.
    pub fn stages(&self) -> u32 {
        self.stages.len() as u32
    }

    /// Sessions alive.
    pub fn live(&self) -> u64 {
        self.live
    }

    /// Runs whose negative work was taken as 0.
    pub fn clamped(&self) -> u64 {
        self.clamped
    }

    /// Calls `visit` for the pools whose state may have changed since the last call.
    #[inline]
    pub fn drain_touched_pools<W: World>(&mut self, world: &mut W, mut visit: impl FnMut(&mut W, u32, PoolState)) {
        for at in 0..self.touched_pools.len() {
            let pool = self.touched_pools[at];
            let state = &mut self.pools[pool as usize];
            let changes = std::mem::take(&mut state.touched);
            visit(world, pool, state.state());
            self.pool_gauges_read(world, pool, changes);
        }
        self.touched_pools.clear();
    }

    /// Calls `visit` for the stages whose state may have changed since the last call.
    #[inline]
    pub fn drain_touched_stages<W: World>(&mut self, world: &mut W, mut visit: impl FnMut(&mut W, u32, StageState)) {
        for at in 0..self.touched_stages.len() {
            let stage = self.touched_stages[at];
            self.stages[stage as usize].touched = false;
            self.stage_gauges_read(world, stage);
            visit(world, stage, self.stage_state(stage));
        }
        self.touched_stages.clear();
    }

    /// A pool's state now.
    pub fn pool_state(&self, pool: u32) -> PoolState {
        self.pools[pool as usize].state()
    }

    /// A pool's whole-run counters.
    pub fn pool_counts(&self, pool: u32) -> PoolCounts {
        self.pools[pool as usize].counts
    }

    /// A stage's state now.
    pub fn stage_state(&self, stage: u32) -> StageState {
        let state = &self.stages[stage as usize];
        let shown = state.engine.shown;
        StageState {
            number: state.number() as u32,
            load: state.load,
            prefills: shown.prefills,
            decoders: shown.decoders,
        }
    }

    /// Iterations a step stage has started.
    pub fn iterations(&self, stage: u32) -> u64 {
        self.stages[stage as usize].engine.iterations
    }

    /// The step stage is idle with waiting work and its last attempt scheduled nothing.
    pub fn idle_with_work(&self, stage: u32) -> bool {
        let StageCodeKind::Step(step) = &self.code.stages[stage as usize].kind else { return false };
        self.stages[stage as usize].engine.idle_with_work && self.has_work(stage, step)
    }

    /// The running iteration of a step stage: (session's serial, tokens) in serve order.
    pub fn planned(&self, stage: u32) -> impl Iterator<Item = (u64, f64)> {
        let engine = &self.stages[stage as usize].engine;
        let ahead = engine.flights.front().into_iter().flat_map(|flight| &flight.entries);
        let plan = engine.plan.iter().map(|&job| {
            let job = &self.jobs[job as usize];
            (self.sessions[job.session as usize].serial, job.planned)
        });
        ahead.map(|entry| (entry.serial, entry.tokens)).chain(plan)
    }

    /// The kind of a stage member: `fifo`, `ps`, `shared`, `delay`, `step`.
    pub fn stage_kind(&self, stage: u32) -> &'static str {
        match self.code.stages[stage as usize].kind {
            StageCodeKind::Fifo { .. } => "fifo",
            StageCodeKind::Ps { .. } => "ps",
            StageCodeKind::Shared { .. } => "shared",
            StageCodeKind::Delay => "delay",
            StageCodeKind::Step(_) => "step",
        }
    }

    /// Units allocated to nobody alive, by pool: its account less all holds and leases. 0.
    ///
    /// Fractions of units added up in another order differ by a rounding; that is nobody's
    /// loss and not counted.
    pub fn left(&self) -> Vec<f64> {
        let mut held = vec![ExactSum::default(); self.pools.len()];
        let mut tables = vec![Vec::new(); self.pools.len()];
        for session in &self.sessions {
            let shares = session.shares.iter().filter(|share| !share.released);
            for share in shares.chain(session.leases.iter().map(|lease| &lease.share)) {
                match self.pools[share.pool as usize].addressed {
                    Some(_) => tables[share.pool as usize].push(share.table),
                    None => held[share.pool as usize].add(share.quanta),
                }
            }
        }
        let left = |((pool, held), tables): ((&Pool, ExactSum), Vec<u32>)| {
            let named = pool.addressed.as_ref().map(|blocks| blocks.named_by(tables.into_iter()) as f64);
            let held = named.unwrap_or(held.value());
            let left = pool.units(pool.used.value() - held);
            let rounding = TOLERANCE.max(pool.units(held) * f64::EPSILON);
            if left.abs() <= rounding { 0.0 } else { left }
        };
        self.pools.iter().zip(held).zip(tables).map(left).collect()
    }

    fn shares_of(&self, pool: u32, mut visit: impl FnMut(&Share)) {
        for session in &self.sessions {
            for share in session.shares.iter().filter(|s| s.pool == pool && !s.released) {
                visit(share);
            }
            for lease in session.leases.iter().filter(|l| l.share.pool == pool) {
                visit(&lease.share);
            }
        }
    }

    /// Waiters no capacity can serve: of each pool the first head of a queue, in
    /// declaration order, that asks for more than the pool's cap.
    pub fn over_caps<W: World>(&mut self, world: &mut W) -> Vec<OverCap> {
        let code = self.code;
        let mut found: Vec<OverCap> = Vec::new();
        for queue in 0..self.pools.len() as u32 {
            let Some(slot) = self.head(world, queue) else { continue };
            let pc = self.sessions[slot as usize].pc;
            let crate::code::Op::Hold(hold) = &code.ops[pc as usize] else { continue };
            let frame = self.frame(slot);
            for (at, grab) in hold.grabs.iter().enumerate() {
                let pool = self.sessions[slot as usize].members[at];
                let units = self.eval(world, &grab.units, &frame);
                let reserve = grab.reserve.as_ref().map_or(0.0, |r| self.eval(world, r, &frame));
                let state = &self.pools[pool as usize];
                let need = units.max(reserve);
                if state.units(state.quanta(need)) > state.cap && !found.iter().any(|f| f.pool == pool) {
                    found.push(OverCap { pool, queue, need });
                }
            }
        }
        found
    }

    // ---- bookkeeping

    /// The stages, the jobs, and what these take their blocks from.
    #[inline(always)]
    pub(crate) fn apart(&mut self) -> (&mut Vec<Stage>, &mut Vec<Job>, Supply<'_>) {
        let Self { code, stages, jobs, sessions, pools, entries, instant_pieces, .. } = self;
        let Self { touched_pools, stirred, choices, .. } = self;
        (stages, jobs, Supply { code, sessions, pools, entries, instant_pieces, touched_pools, stirred, choices })
    }

    #[inline(always)]
    pub(crate) fn touch_pool(&mut self, pool: u32, changes: u8) {
        self.apart().2.touch_pool(pool, changes);
        if changes != QUEUE && !self.pools[pool as usize].watchers.is_empty() {
            self.tell_watchers(pool);
        }
    }

    pub(crate) fn touch_stage(&mut self, stage: u32) {
        self.mark_stage(stage);
        let state = &mut self.stages[stage as usize];
        if !state.touched {
            state.touched = true;
            self.touched_stages.push(stage);
        }
    }

    pub(crate) fn pool_name(&self, pool: u32) -> String {
        let code = &self.code.pools[pool as usize];
        member_name(&code.name, code.member, self.code.families.pools[code.family as usize].size)
    }

    pub(crate) fn stage_name(&self, stage: u32) -> String {
        let code = &self.code.stages[stage as usize];
        member_name(&code.name, code.member, self.code.families.stages[code.family as usize].size)
    }

    pub(crate) fn fault(&self, message: String, at: Option<Place>, session: Option<u64>) -> Box<Fault> {
        Box::new(Fault { message, at, session, time: self.now })
    }

    /// A fault of the statement a session is at.
    pub(crate) fn fault_at(&self, message: String, slot: u32) -> Box<Fault> {
        let session = &self.sessions[slot as usize];
        let place =
            self.simple_place.unwrap_or_else(|| self.code.places.get(session.pc as usize).copied().unwrap_or_default());
        self.fault(message, (place.line > 0).then_some(place), Some(session.serial))
    }

    pub(crate) fn fault_no_share(&self, slot: u32, pool: u32) -> Box<Fault> {
        let message = format!("nothing of {} is held here any more", self.pool_name(pool));
        self.fault_at(message, slot)
    }

    /// Notes what an expression met that stops the run; the first is told.
    pub(crate) fn record_fault(&self, message: String, session: u32) {
        self.fault.get_or_init(|| (message, session));
    }

    /// A bad index met in an expression stops the run here.
    #[inline]
    pub(crate) fn check_fault(&self) -> Result<()> {
        if self.has_fault() { Err(self.recorded_fault()) } else { Ok(()) }
    }

    #[inline]
    pub(crate) fn has_fault(&self) -> bool {
        self.fault.get().is_some()
    }

    #[cold]
    fn recorded_fault(&self) -> Box<Fault> {
        let (message, session) = self.fault.get().cloned().expect("there is a fault");
        if session == NOBODY { self.fault(message, None, None) } else { self.fault_at(message, session) }
    }

    /// Asserts what always holds between facts. Walks everything: for debug and test builds.
    ///
    /// # Panics
    ///
    /// When an invariant of a pool, a session or a stage does not hold: a bug of the kernel.
    pub fn check(&self) {
        for ((id, pool), left) in self.pools.iter().enumerate().zip(self.left()) {
            let name = self.pool_name(id as u32);
            let (used, cached) = (pool.used_units(), pool.cached_units());
            assert!(used + cached <= pool.cap + 1e-6, "{name}: {used} allocated and {cached} cached exceed the cap");
            let mut holders = 0;
            self.shares_of(id as u32, |share| holders += u32::from(share.counted));
            assert_eq!(pool.holders, holders, "{name}: holders = holds + leases whose client is there");
            assert!(left.abs() <= 1e-9 * used.max(1.0), "{name}: {left} units are owned by nobody");
            if let Some(blocks) = &pool.addressed {
                blocks.check();
                let counted = (f64::from(blocks.referenced()), f64::from(blocks.cached()));
                assert_eq!(counted, (pool.used.value(), pool.cached.value()), "{name}: its blocks are its account");
                self.shares_of(id as u32, |share| {
                    assert_eq!(blocks.table(share.table).len() as f64, share.quanta, "{name}: a share's blocks");
                });
                continue;
            }
            let entries = self.entries.total(&pool.lru);
            let off = (entries - pool.cached.value()).abs();
            assert!(off <= 1e-9 * entries.max(1.0), "{name}: its cache entries sum to what is cached");
        }
        for (slot, session) in self.sessions.iter().enumerate() {
            let slot = slot as u32;
            let there = match session.status {
                Status::Over => session.holds.is_empty() && session.leases.iter().all(|lease| lease.released),
                Status::Running => false,
                Status::Ready => self.ready_list.contains(&slot),
                Status::Queued(pool) => {
                    let pool = &self.pools[pool as usize];
                    pool.queue.contains(&slot) || pool.returning.contains(&slot)
                }
                Status::Growing(pool) => self.pools[pool as usize].growers.iter().any(|g| g.session == slot),
                Status::Serving(job) => self.jobs[job as usize].alive && self.jobs[job as usize].session == slot,
                Status::Joining => session.legs > 0,
            };

            assert!(there, "session {} is where its status says: {:?}", session.serial, session.status);
        }
        self.check_legs();
        self.check_flows();
        for stage in &self.stages {
            let order = |id: &u32| (self.jobs[*id as usize].admission, self.jobs[*id as usize].order);
            assert!(stage.engine.residents.is_sorted_by_key(order), "residents stand in admission order");
        }
    }
}

/// Pools, who has what of them, and whom their changes concern. (Of slices the compiler would
/// fetch all places and lengths at once, of vectors those that are asked for.)
pub(crate) struct Supply<'a> {
    code: &'a Code,
    pub(crate) sessions: &'a mut Vec<Session>,
    pub(crate) pools: &'a mut Vec<Pool>,
    pub(crate) entries: &'a mut Entries,
    pub(crate) instant_pieces: &'a mut u32,
    touched_pools: &'a mut Vec<u32>,
    stirred: &'a mut bool,
    choices: &'a mut Vec<Choice>,
}

impl Supply<'_> {
    /// A pool changed. Its watchers are told by the kernel.
    #[inline(always)]
    pub(crate) fn touch_pool(&mut self, pool: u32, changes: u8) {
        let state = &mut self.pools[pool as usize];
        if state.touched == 0 {
            self.touched_pools.push(pool);
        }
        state.touched |= changes;
        *self.stirred = true;
        if !self.choices.is_empty() {
            choice::mark(self.choices, &self.code.choices.pool_marks[pool as usize]);
        }
    }
}

fn member_name(name: &str, member: u32, size: u32) -> String {
    if size > 1 { format!("{name}[{member}]") } else { name.to_owned() }
}
