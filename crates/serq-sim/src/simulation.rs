//! One run: the kernel driven in virtual time.
//!
//! ```text
//!   take the earliest event ─▶ tell the kernel, which settles ─▶ schedule what changed
//!        ▲                                                            │
//!        │    nothing else due now: plan engines, read the state ◀────┘
//!        └──────────────────────────────────────────────────────────────
//! ```
//!
//! # Invariants
//!
//! - Equal times go in the order of scheduling. An arrival schedules the next one
//!   before its own session runs; after a settle the finishes of `ps` stages and the ends
//!   of iterations are scheduled in declaration order of the stages, then the flows.
//! - The next of several finishes of one `ps` stage, or flows, due together is scheduled
//!   when the one before was told, so it keeps no engine from starting.
//! - The end of the steps that follow a stage's own, with nothing due before or with it, is told
//!   without the list: what happens is what would if it were scheduled.
//! - With leaps ([`crate::leap`]) or without, the figures are the same, bit for bit.

use serq_ir as ir;
use serq_ir::{Arrive, Place, Program};
use serq_kernel::{Action, Arrival, Code, Fault, GoesOn, Kernel, Move, Stream, TraceTurn, World};

use crate::clients::Clients;
use crate::event::{EventList, What};
use crate::leap::{Leaps, NO_STAGE, StepRun};
use crate::observe::Measurements;
use crate::record::Recorder;
use crate::report::{self, Note, NoteKind, Report};
use crate::trace::TraceFile;
use crate::ttft::{self, Breakdown};

/// What a run is asked beyond the program.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Keep every sample and gauge change point (`--dump`).
    pub record: bool,
    /// Keep all samples for the quantiles, however many there are.
    pub exact: bool,
    /// Negative work stops the run.
    pub strict: bool,
    /// Stop with an error after this many events.
    pub max_events: Option<u64>,
    /// How engines' steps are taken.
    pub steps: Steps,
    /// Limits on observations by name.
    pub slo: Vec<(String, f64)>,
    /// When the clients of which sessions go away: what else is due then comes first.
    pub cancellations: Vec<(f64, u64)>,
    /// Events that became void, and the end of the warm-up, are facts too: pools are retried at
    /// them, and engines wait for them. So it is in serQ 0.1.x, with which such runs are
    /// compared; [`Steps::Planned`] is meant. Never otherwise: what is measured would depend on
    /// how, and on what does not happen.
    pub void_events: bool,
}

/// How an engine's steps are taken. The figures are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Steps {
    /// Many equal ones at once.
    #[default]
    Leaps,
    /// Singly (`--no-leap`); where a step can only be the one before again, it is not planned.
    Singly,
    /// Singly, and each is planned: what the other ways are compared with.
    Planned,
}

/// A finished run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The figures.
    pub report: Report,
    /// With [`Options::record`]: per observation, in program order.
    pub samples: Vec<Vec<Sample>>,
    /// With [`Options::record`]: per gauge, (time, value) at change points.
    pub gauge_points: Vec<Vec<(f64, f64)>>,
}

/// One sample of an observation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// When.
    pub time: f64,
    /// Serial number of the session.
    pub session: u64,
    /// Its turn_no.
    pub turn: f64,
    /// The sample.
    pub value: f64,
}

/// Why a run stopped without a report.
#[derive(Clone, Debug, PartialEq)]
pub struct RunError {
    /// One sentence: what went wrong, with the values read.
    pub message: String,
    /// The statement or declaration.
    pub at: Option<Place>,
    /// The session, where one is concerned.
    pub session: Option<u64>,
    /// When.
    pub time: f64,
    /// The watcher asked for the stop.
    pub interrupted: bool,
}

impl From<Box<Fault>> for RunError {
    fn from(fault: Box<Fault>) -> Self {
        let Fault { message, at, session, time } = *fault;
        Self { message, at, session, time, interrupted: false }
    }
}

impl RunError {
    fn at_time(time: f64, message: String) -> Self {
        Self { message, at: None, session: None, time, interrupted: false }
    }
}

/// How often the watcher is asked, in events.
const WATCH_EVERY: u64 = 4_096;

/// Simulates a program.
///
/// `watch` is called now and then with (time, events) and answers whether to go on.
///
/// # Errors
///
/// [`RunError`]: a run-time error of the program (docs/language.md, "Run-time errors"),
/// `max_events` reached, or the watcher's stop.
pub fn simulate(
    program: &Program,
    trace: Option<&TraceFile>,
    options: &Options,
    watch: &mut dyn FnMut(f64, u64) -> bool,
) -> Result<Outcome, RunError> {
    simulate_recorded(program, trace, options, None, watch)
}

/// Simulates a program, and tells a recorder what happens. The figures are the same.
///
/// # Errors
///
/// As [`simulate`].
pub fn simulate_recorded(
    program: &Program,
    trace: Option<&TraceFile>,
    options: &Options,
    recorder: Option<&mut dyn Recorder>,
    watch: &mut dyn FnMut(f64, u64) -> bool,
) -> Result<Outcome, RunError> {
    let code = Code::new(program);
    let clients = Clients::new(program, trace).map_err(|message| RunError::at_time(0.0, message))?;
    // The recorder is lent for as long as the code lives, not longer.
    let recorder = recorder.map(|recorder| recorder as &mut dyn Recorder);
    Simulation::new(program, &code, clients, options, recorder).run(watch)
}

struct Simulation<'a> {
    program: &'a Program,
    code: &'a Code,
    options: &'a Options,
    kernel: Kernel<'a>,
    driver: Driver<'a>,
    events: u64,
    arrived: u64,
}

/// The kernel's world in virtual time.
struct Driver<'a> {
    now: f64,
    clients: Clients<'a>,
    list: EventList,
    /// Sequence number of the event each owner waits for; an event with another one is stale.
    /// (A step's is in its run.)
    stage_event: Vec<u64>,
    /// The job a `ps` stage's event is about.
    stage_job: Vec<u32>,
    flows_event: u64,
    flow_job: u32,
    work_event: Vec<u64>,
    timer_event: Vec<u64>,
    /// Each step stage's run of steps of equal cost.
    runs: Vec<StepRun>,
    leaps: Leaps,
    steps: Steps,
    /// [`Options::void_events`].
    void_events: bool,
    /// The stage whose step's end is being told.
    told: Option<u32>,
    /// The stage whose steps started when it was told, and whose end is not scheduled yet.
    held: Option<u32>,
    measured: Measurements,
    /// Where each request's time to the first token goes, where there are such requests.
    breakdown: Option<Breakdown>,
    recorder: Option<&'a mut (dyn Recorder + 'a)>,
    records_steps: bool,
    /// By place: the leg of a session that is there, else 0.
    legs: Vec<u64>,
    /// Steps begun and not yet recorded: stage and cost.
    begun: Vec<(u32, f64)>,
}

impl World for Driver<'_> {
    const MODELS_TIME: bool = true;

    fn uniform(&mut self, stream: Stream) -> f64 {
        self.clients.uniform(stream)
    }

    fn trace_turn(&mut self, trace_session: u32, turn: u64) -> Option<TraceTurn> {
        self.clients.trace_turn(trace_session, turn)
    }

    fn trace_blocks(&mut self, trace_session: u32, turn: u64, ids: &mut Vec<u64>) -> f64 {
        self.clients.trace_blocks(trace_session, turn, ids)
    }

    fn replacement(&mut self) -> Option<Arrival> {
        self.clients.replacement()
    }

    fn steps_ended(&mut self, stage: u32) -> u64 {
        let run = &self.runs[stage as usize];
        if self.told == Some(stage) { run.steps } else { run.ended_before(self.now) }
    }

    fn step_end(&mut self, stage: u32, steps: u64) -> f64 {
        self.runs[stage as usize].end(steps)
    }

    // Inlined, an action that is known where it is taken costs its arm alone.
    #[inline(always)]
    fn act(&mut self, action: Action) {
        let now = self.now;
        match action {
            Action::StartStep { stage, cost, decoders, steps } => {
                self.measured.step_started(stage, cost, decoders);
                self.start_steps(stage, cost, steps);
                if self.records_steps || self.breakdown.as_ref().is_some_and(|b| b.awaits(stage)) {
                    self.begun.push((stage, cost));
                }
            }
            Action::CutLeap { stage } => {
                let ended = self.runs[stage as usize].ended_before(now);
                self.break_leap(stage, ended + 1);
            }
            Action::StepsLeapt { stage, cost, decoders, steps, tokens } => {
                self.leaps.leapt += steps;
                self.measured.steps_leapt(stage, cost, decoders, steps, tokens);
            }
            Action::NextFinish { stage, next } => self.next_finish(stage, next),
            Action::StartWork { job, work } => {
                let event = self.push(now + work, What::Work(job));
                *entry(&mut self.work_event, job) = event;
            }
            Action::StartFlow { .. } => unreachable!("this world moves nothing"),
            // The job that writes it is told of by itself.
            Action::Spilled { .. } => {}
            Action::StopWork { job } => *entry(&mut self.work_event, job) = 0,
            Action::WakeAt { timer, time } => {
                let event = self.push(time, What::Timer(timer));
                *entry(&mut self.timer_event, timer) = event;
            }
            Action::StopWake { timer } => *entry(&mut self.timer_event, timer) = 0,
            Action::Leased { pool, units } => self.measured.leased(now, pool, units),
            Action::JobEnded { stage, wait, service } => self.measured.job_ended(stage, wait, service),
            Action::Tokens { stage, gap, count } => self.measured.tokens(stage, gap, count),
            Action::Admitted { pool, wait } => self.measured.admitted(pool, wait),
            Action::Observed { observe, session, turn, value } => {
                self.measured.sample(now, observe, session, turn, value);
                if let Some(recorder) = &mut self.recorder {
                    recorder.sample(now, observe, session, turn, value, self.measured.counting);
                }
            }
            Action::Turned => self.measured.turned(),
            Action::Session { slot, session, what } => {
                if self.recorder.is_some() || (self.breakdown.is_some() && ttft::matters(what)) {
                    self.record_move(slot, session, what);
                }
            }
            Action::Ended { .. } => self.measured.session_ended(),
        }
    }
}

/// The place of an owner's event (or of a session's leg), made when first asked for.
fn entry(events: &mut Vec<u64>, owner: u32) -> &mut u64 {
    let at = owner as usize;
    if at >= events.len() {
        events.resize(at + 1, 0);
    }
    &mut events[at]
}

impl Driver<'_> {
    #[inline(never)]
    fn record_move(&mut self, slot: u32, session: u64, what: Move) {
        let now = self.now;
        if let Move::Forked { leg, .. } = what {
            *entry(&mut self.legs, slot) = leg.into();
        }
        if let Some(leg @ 1..) = self.legs.get(slot as usize).copied() {
            if let Some(breakdown) = &mut self.breakdown {
                breakdown.leg(now, slot, what);
            }
            if let Some(recorder) = &mut self.recorder {
                recorder.leg(now, session, leg as u32, what);
            }
            if what == Move::LegOver {
                self.legs[slot as usize] = 0;
            }
            return;
        }
        if let Some(breakdown) = &mut self.breakdown {
            breakdown.session(now, slot, session, what, |request| {
                if let Some(recorder) = &mut self.recorder {
                    recorder.first_token(request);
                }
            });
        }
        if let Some(recorder) = &mut self.recorder {
            let part = self.breakdown.as_ref().and_then(|b| b.part(slot));
            recorder.session(now, session, what, part);
        }
    }

    /// Records the steps just begun.
    #[inline(never)]
    fn record_steps(&mut self, kernel: &Kernel<'_>) {
        let now = self.now;
        for (stage, cost) in self.begun.drain(..) {
            if let Some(breakdown) = &mut self.breakdown
                && breakdown.awaits(stage)
            {
                let end = self.runs[stage as usize].end(1);
                breakdown.step_started(stage, end, kernel.planned(stage));
            }
            if let Some(recorder) = &mut self.recorder
                && self.records_steps
            {
                recorder.steps_started(now, stage, cost, &mut kernel.planned(stage));
            }
        }
    }

    /// Schedules; what would never come is not.
    fn push(&mut self, time: f64, what: What) -> u64 {
        if time < f64::INFINITY { self.list.push(self.now, time, what) } else { 0 }
    }

    fn next_finish(&mut self, stage: Option<u32>, next: Option<(u32, f64)>) {
        let event = next.map_or(0, |(_, time)| self.push(time, stage.map_or(What::Flows, What::Stage)));
        let job = next.map_or(0, |(job, _)| job);
        match stage {
            Some(stage) => {
                self.stage_event[stage as usize] = event;
                self.stage_job[stage as usize] = job;
            }
            None => {
                self.flows_event = event;
                self.flow_job = job;
            }
        }
    }

    /// Whether the owner still waits for the event of this number.
    #[inline(always)]
    fn is_current(&self, what: What, sequence: u64) -> bool {
        match what {
            // Most are.
            What::Step(stage) => self.runs[stage as usize].event == sequence,
            _ => self.is_other_current(what, sequence),
        }
    }

    fn is_other_current(&self, what: What, sequence: u64) -> bool {
        match what {
            What::Step(_) => unreachable!("it is asked before"),
            What::Warmup | What::Arrival | What::Cancel(_) => true,
            What::Stage(stage) => self.stage_event[stage as usize] == sequence,
            What::Flows => self.flows_event == sequence,
            What::Work(job) => self.work_event[job as usize] == sequence,
            What::Timer(timer) => self.timer_event[timer as usize] == sequence,
            What::Void => false,
        }
    }

    /// The next event that is not stale, or counts all the same: when, and what.
    #[inline(always)]
    fn first(&mut self) -> Option<(f64, What)> {
        loop {
            let event = self.list.first()?;
            let (time, what) = (event.time(), event.what);
            if self.is_current(what, event.sequence) {
                return Some((time, what));
            }
            if self.void_events {
                return Some((time, What::Void));
            }
            self.list.remove_first();
        }
    }

    /// A step starts, or a leap. Where that is what the end of the stage's last one brings, its
    /// own end is held back: it may be what comes next.
    #[inline(always)]
    fn start_steps(&mut self, stage: u32, cost: f64, steps: u64) {
        let run = &mut self.runs[stage as usize];
        let steps = if self.steps != Steps::Leaps || self.leaps.full(run) { 1 } else { steps };
        // Taken singly, the first is scheduled here and now: its place is kept for it.
        run.go_on(self.now, cost, steps, self.list.reserve());
        self.leaps.begun += u64::from(run.steps > 1);
        if self.told.take() == Some(stage) {
            self.held = Some(stage);
        } else {
            self.schedule_steps(stage);
        }
    }

    /// Schedules the end of a stage's step, or of its leap's last.
    #[inline(never)]
    fn schedule_steps(&mut self, stage: u32) {
        let run = &mut self.runs[stage as usize];
        run.event = self.list.push_step(stage, run);
        if run.steps > 1 {
            self.leaps.put(stage, run);
        } else {
            self.leaps.end(&mut self.runs, stage);
        }
    }

    /// The end that was held back comes next, at the time answered, or is scheduled.
    #[inline]
    fn end_in_place(&mut self, stage: u32, horizon: f64) -> Option<f64> {
        let last = self.runs[stage as usize].last;
        let next = last > self.now && last <= horizon && self.list.first().is_none_or(|event| last < event.time());
        // Whichever way steps began is recorded before they go on.
        let recorded = self.begun.is_empty();
        self.held = None;
        if next && recorded && !self.breaks_leap(last, stage) {
            return Some(last);
        }
        self.schedule_steps(stage);
        None
    }

    /// A leap ends with this step.
    fn break_leap(&mut self, stage: u32, step: u64) {
        if step < self.runs[stage as usize].steps {
            let run = &mut self.runs[stage as usize];
            run.stop_after(step);
            if self.held != Some(stage) {
                run.event = self.list.push_step(stage, run);
            }
        }
        self.leaps.end(&mut self.runs, stage);
    }

    /// Whether a leap of another stage has a step's end at exactly this time.
    #[inline]
    fn breaks_leap(&self, time: f64, stage: u32) -> bool {
        !self.leaps.only(&self.runs, stage) && self.leaps.broken_at(&self.runs, time, stage).is_some()
    }

    /// Breaks every leap with a step's end at exactly this time, but for the leap that what is due
    /// then is the end of. Answers whether there was one.
    #[inline]
    fn break_leaps_at(&mut self, time: f64, what: What) -> bool {
        let itself = if let What::Step(stage) = what { stage } else { NO_STAGE };
        let mut broken = false;
        if self.leaps.only(&self.runs, itself) {
            return false;
        }
        while let Some((stage, step)) = self.leaps.broken_at(&self.runs, time, itself) {
            self.break_leap(stage, step);
            broken = true;
        }
        broken
    }
}

impl<'a> Simulation<'a> {
    fn new(
        program: &'a Program,
        code: &'a Code,
        clients: Clients<'a>,
        options: &'a Options,
        recorder: Option<&'a mut (dyn Recorder + 'a)>,
    ) -> Self {
        let kernel = Kernel::new(code, options.strict);
        let breakdown = Breakdown::new(program, code, &kernel, options.exact);
        let measured = Measurements::new(program, &kernel, options);
        let stages = kernel.stages() as usize;
        Self {
            program,
            code,
            options,
            driver: Driver {
                now: 0.0,
                clients,
                list: EventList::default(),
                stage_event: vec![0; stages],
                stage_job: vec![0; stages],
                flows_event: 0,
                flow_job: 0,
                work_event: Vec::new(),
                timer_event: Vec::new(),
                runs: vec![StepRun::NONE; stages],
                leaps: Leaps::default(),
                steps: options.steps,
                void_events: options.void_events,
                told: None,
                held: None,
                measured,
                breakdown,
                records_steps: recorder.as_ref().is_some_and(|r| r.wants_steps()),
                recorder,
                legs: Vec::new(),
                begun: Vec::new(),
            },
            kernel,
            events: 0,
            arrived: 0,
        }
    }

    fn run(mut self, watch: &mut dyn FnMut(f64, u64) -> bool) -> Result<Outcome, RunError> {
        let (horizon, warmup) = (self.program.run.horizon.0, self.program.run.warmup.0);
        let mut end = horizon;
        if warmup > 0.0 {
            self.driver.push(warmup, What::Warmup);
        }
        for (at, &(time, _)) in self.options.cancellations.iter().enumerate() {
            // As of its own time: what else is due then comes first.
            self.driver.list.push(time, time, What::Cancel(at as u32));
        }
        match &self.program.workload.arrive {
            Arrive::None => {}
            Arrive::Poisson(_)
            | Arrive::Steps { .. }
            | Arrive::Bursts { .. }
            | Arrive::Renewal(_)
            | Arrive::Trace(_) => self.schedule_arrival(0.0)?,
            Arrive::Closed(n) | Arrive::Batch(n) => {
                let arrivals: Vec<Arrival> = (0..*n).map(|_| self.driver.clients.arrival()).collect();
                self.kernel.tell_arrived(&mut self.driver, 0.0, arrivals)?;
            }
        }
        self.finish_instant_or_wait()?;
        loop {
            // Whichever way steps began, they have not gone on since.
            if !self.driver.begun.is_empty() {
                self.driver.record_steps(&self.kernel);
            }
            let Some((time, what)) = self.driver.first() else {
                if self.kernel.live() == 0 || !self.try_once_more()? {
                    break;
                }
                continue;
            };
            if time > horizon {
                break;
            }
            if time != self.driver.now && self.driver.break_leaps_at(time, what) {
                // What is due first may be another one now.
                continue;
            }
            self.driver.list.remove_first();
            self.come_to(time, watch)?;
            if let What::Step(stage) = what {
                if self.tell_steps(time, stage, horizon, watch)? {
                    continue;
                }
            } else {
                self.tell(time, what)?;
            }
            self.finish_instant_or_wait()?;
            if self.drained() {
                end = self.driver.now;
                break;
            }
        }
        self.report(end)
    }

    /// Time comes to an event.
    #[inline(always)]
    fn come_to(&mut self, time: f64, watch: &mut dyn FnMut(f64, u64) -> bool) -> Result<(), RunError> {
        self.driver.now = time;
        self.events += 1;
        if self.events.is_multiple_of(WATCH_EVERY) && !watch(time, self.events) {
            return Err(RunError { interrupted: true, ..RunError::at_time(time, "the run was stopped".into()) });
        }
        if self.options.max_events.is_some_and(|max| self.events > max) {
            let message = format!("the run has more than {} events (--max-events)", self.events - 1);
            return Err(RunError::at_time(time, message));
        }
        Ok(())
    }

    /// Nothing is due: whoever waits is tried once more. Answers whether something is due then.
    fn try_once_more(&mut self) -> Result<bool, RunError> {
        let now = self.driver.now;
        self.kernel.tell_nothing_came(&mut self.driver, now)?;
        self.finish_instant_or_wait()?;
        Ok(self.driver.first().is_some())
    }

    /// A step's end, and those of the steps it brings, as long as nothing else comes before. Answers
    /// whether the last one's instant is over with that.
    #[inline(never)]
    fn tell_steps(
        &mut self,
        mut time: f64,
        stage: u32,
        horizon: f64,
        watch: &mut dyn FnMut(f64, u64) -> bool,
    ) -> Result<bool, RunError> {
        while self.tell_step(time, stage)? {
            let Some(next) = self.driver.end_in_place(stage, horizon) else { return Ok(true) };
            time = next;
            self.come_to(time, watch)?;
        }
        Ok(false)
    }

    /// A step's end, or that of a leap's last. Answers whether the instant is over with that: the
    /// next steps have started, their end is held back, and the state is read.
    #[inline(always)]
    fn tell_step(&mut self, now: f64, stage: u32) -> Result<bool, RunError> {
        let driver = &mut self.driver;
        driver.runs[stage as usize].event = 0;
        if driver.records_steps
            && let Some(recorder) = &mut driver.recorder
        {
            recorder.steps_ended(now, stage, driver.runs[stage as usize].steps);
        }
        driver.told = Some(stage);
        let alone = driver.steps != Steps::Planned && !driver.list.due(now);
        let told = if alone { self.kernel.tell_step_goes_on(driver, now, stage)? } else { GoesOn::Untold };
        if told == GoesOn::Untold {
            self.kernel.tell_step_ended(driver, now, stage)?;
        }
        driver.told = None;
        if told == GoesOn::Started && !driver.list.due(now) {
            self.read_state();
            return Ok(true);
        }
        if driver.held.take().is_some() {
            driver.schedule_steps(stage);
        } else {
            driver.leaps.end(&mut driver.runs, stage);
        }
        Ok(false)
    }

    /// Any other event.
    #[inline(never)]
    fn tell(&mut self, now: f64, what: What) -> Result<(), RunError> {
        let driver = &mut self.driver;
        match what {
            What::Warmup => {
                self.kernel.catch_up_all(driver, now);
                driver.measured.restart(now);
                if driver.void_events {
                    self.kernel.tell_nothing_came(driver, now)?;
                }
            }
            What::Void => self.kernel.tell_nothing_came(driver, now)?,
            What::Arrival => self.tell_arrival(now)?,
            What::Step(_) => unreachable!("it is told by tell_step"),
            What::Stage(stage) => {
                driver.stage_event[stage as usize] = 0;
                let job = driver.stage_job[stage as usize];
                self.kernel.tell_work_ended(driver, now, job)?;
            }
            What::Flows => {
                driver.flows_event = 0;
                let job = driver.flow_job;
                self.kernel.tell_work_ended(driver, now, job)?;
            }
            What::Work(job) => {
                driver.work_event[job as usize] = 0;
                self.kernel.tell_work_ended(driver, now, job)?;
            }
            What::Cancel(at) => {
                let (_, session) = self.options.cancellations[at as usize];
                self.kernel.tell_cancelled(driver, now, session)?;
            }
            What::Timer(timer) => {
                driver.timer_event[timer as usize] = 0;
                self.kernel.tell_woken(driver, now, timer)?;
            }
        }
        Ok(())
    }

    fn tell_arrival(&mut self, now: f64) -> Result<(), RunError> {
        self.arrived += 1;
        if self.program.run.arrivals.is_none_or(|max| self.arrived < max) {
            self.schedule_arrival(now)?;
        }
        let arrival = self.driver.clients.arrival();
        Ok(self.kernel.tell_arrived(&mut self.driver, now, [arrival])?)
    }

    /// The arrival after that at `last`; the first, before any came.
    fn schedule_arrival(&mut self, last: f64) -> Result<(), RunError> {
        let time = match self.driver.clients.next(self.arrived, last) {
            Some(time) => time.map_err(|message| RunError::at_time(last, message))?,
            None => last + self.kernel.gap(&mut self.driver)?,
        };
        self.driver.push(time, What::Arrival);
        Ok(())
    }

    /// Schedules what changed; if nothing further is due now, plans engines and reads the state.
    fn finish_instant_or_wait(&mut self) -> Result<(), RunError> {
        let now = self.driver.now;
        let due_now =
            |driver: &mut Driver<'_>| driver.list.due(now) && driver.first().is_some_and(|(time, _)| time == now);
        // Asked before the pass: see the invariants.
        let plan = !due_now(&mut self.driver);
        self.kernel.start_due(&mut self.driver, plan)?;
        if !plan && !due_now(&mut self.driver) {
            // What was due now is void: its job was preempted.
            self.kernel.start_due(&mut self.driver, true)?;
        }
        if !due_now(&mut self.driver) {
            self.read_state();
        }
        Ok(())
    }

    /// The end of an instant: what changed is read.
    fn read_state(&mut self) {
        let Self { kernel, driver, .. } = self;
        let now = driver.now;
        kernel.drain_touched_pools(driver, |driver, pool, state| {
            driver.measured.pool(now, pool, state);
            if let Some(recorder) = &mut driver.recorder {
                recorder.pool(now, pool, state);
            }
        });
        kernel.drain_touched_stages(driver, |driver, stage, state| {
            driver.measured.stage(now, stage, state);
            if let Some(recorder) = &mut driver.recorder {
                recorder.stage(now, stage, state);
            }
        });
        driver.measured.live(now, kernel.live());
        kernel.drain_gauges(driver, |driver, gauge, value| driver.measured.gauge(now, gauge, value));
    }

    /// With `arrivals`: all came and the last has ended.
    fn drained(&self) -> bool {
        self.program.run.arrivals.is_some_and(|max| self.arrived >= max) && self.kernel.live() == 0
    }

    fn report(mut self, end: f64) -> Result<Outcome, RunError> {
        let run = &self.program.run;
        // Steps that end at the horizon have ended, for what waiters ask for too.
        self.driver.now = end.next_up();
        self.kernel.catch_up_all(&mut self.driver, end);
        let pools = self.pool_rows();
        self.driver.now = end;
        if let Some(max) = run.arrivals {
            let problem = if self.arrived < max {
                Some(format!("only {} of {max} arrivals came by the horizon", self.arrived))
            } else if self.kernel.live() > 0 {
                Some(format!("{} of {max} sessions have not ended by the horizon", self.kernel.live()))
            } else if end <= run.warmup.0 {
                Some(format!("all {max} sessions ended by {end}, within the warm-up"))
            } else {
                None
            };
            if let Some(message) = problem {
                return Err(RunError::at_time(end, message));
            }
        }
        let mut notes = Vec::new();
        let failed = self.kernel.failed();
        if failed > 0 {
            let text = format!("{failed} session(s) ended at a `fail`, or at a transfer's `else error`");
            notes.push(Note { kind: NoteKind::Failed, text });
        }
        let clamped = self.kernel.clamped();
        if clamped > 0 {
            let text = format!("{clamped} run(s) of negative work took no time (--strict stops at them)");
            notes.push(Note { kind: NoteKind::Clamped, text });
        }
        let skipped = self.driver.clients.rows_skipped();
        if skipped > 0 {
            let text = format!("{skipped} wrong row(s) of the trace were left out (--skip-bad)");
            notes.push(Note { kind: NoteKind::Skipped, text });
        }
        if self.driver.first().is_none() && self.kernel.live() > 0 {
            let text = format!(
                "deadlock: {} session(s) wait and nothing is pending since {}",
                self.kernel.live(),
                self.driver.now
            );
            notes.push(Note { kind: NoteKind::Deadlocked, text });
        }
        let frame = Report {
            schema: report::REPORT_SCHEMA,
            serq_version: env!("CARGO_PKG_VERSION"),
            program: self.program.name.clone(),
            constants: report::Constants::of(self.program),
            horizon: run.horizon.0,
            end,
            warmup: run.warmup.0,
            seed: run.seed,
            events: self.events,
            leaps: self.driver.leaps.begun,
            steps_leapt: self.driver.leaps.leapt,
            arrivals: self.kernel.arrivals(),
            ended: 0,
            failed: 0,
            turns: 0,
            mean_live: 0.0,
            observes: Vec::new(),
            gauges: Vec::new(),
            stages: self.stage_rows(),
            pools,
            ttft: self.record_end(end),
            slo: None,
            notes,
        };
        let mut outcome = self.driver.measured.finish(self.program, &self.kernel, self.options, end, frame);
        note_constants(self.program, &mut outcome.report);
        Ok(outcome)
    }

    /// What the breakdown and the recorder still have to say.
    fn record_end(&mut self, end: f64) -> Option<report::Ttft> {
        let Driver { breakdown, recorder, .. } = &mut self.driver;
        let ttft = breakdown.as_mut().map(|breakdown| {
            breakdown.finish(end, &mut |request| {
                if let Some(recorder) = recorder {
                    recorder.first_token(request);
                }
            });
            breakdown.report()
        });
        if let Some(recorder) = recorder {
            recorder.finished(end);
        }
        ttft
    }

    fn stage_rows(&self) -> Vec<report::Stage> {
        let row = |(id, (name, family, member)): (usize, (&str, u32, u32))| report::Stage {
            name: name.to_owned(),
            index: self.program.stages[family as usize].size.map(|_| member),
            kind: self.kernel.stage_kind(id as u32),
            ..report::Stage::default()
        };
        self.code.stage_members().enumerate().map(row).collect()
    }

    fn pool_rows(&mut self) -> Vec<report::Pool> {
        let over_caps = self.kernel.over_caps(&mut self.driver);
        let mut rows: Vec<report::Pool> = self
            .code
            .pool_members()
            .map(|(name, family, member)| {
                let pool = &self.program.pools[family as usize];
                report::Pool {
                    name: name.to_owned(),
                    index: pool.size.map(|_| member),
                    cap: pool.cap.0,
                    ..report::Pool::default()
                }
            })
            .collect();
        for over in over_caps.iter().rev() {
            let queue = &rows[over.queue as usize];
            let queue = report::member_name(&queue.name, queue.index);
            rows[over.pool as usize].over_cap = Some(report::OverCap { queue, need: over.need });
        }
        rows
    }
}

/// Notes test-valued observations that were never true.
fn note_constants(program: &Program, report: &mut Report) {
    // For each observation: whether it is taken anywhere, and always of a test.
    let mut tests = vec![(false, true); program.observes.len()];
    ir::each_stmt(&program.session, &mut |stmt| {
        if let ir::StmtKind::Observe { observe, value } = &stmt.kind {
            let (seen, always) = &mut tests[*observe as usize];
            *seen = true;
            *always &= is_test(value);
        }
    });
    for (observe, (seen, test)) in report.observes.iter().zip(&tests) {
        if *seen && *test && observe.count >= 40 && observe.mean == 0.0 && observe.p99 == 0.0 {
            let text = format!("observe {} is constant 0 over {} samples", observe.name, observe.count);
            report.notes.push(Note { kind: NoteKind::Constant, text });
        }
    }
}

/// Whether an expression is 1 or 0 by its form.
fn is_test(value: &ir::Expr) -> bool {
    use ir::Binary::{And, Equal, Greater, GreaterEqual, Less, LessEqual, NotEqual, Or};
    match value {
        ir::Expr::Binary(op, ..) => {
            matches!(op, And | Or | Less | LessEqual | Greater | GreaterEqual | Equal | NotEqual)
        }
        ir::Expr::Unary(ir::Unary::Not, _) => true,
        _ => false,
    }
}
