//! Sessions and the statements they run.
//!
//! A session is a position in the program's operations, its attributes, the holds it
//! is inside of, innermost last, and the leases it was granted, oldest first.
//!
//! ```text
//!            ┌───────────── ready ◀──────────────┐
//!            │ runs until it blocks              │
//!            ▼                                   │
//!   queued (a hold) · growing (a `grow`) · serving (a run) · joining (`join`) · over
//! ```
//!
//! A leg ([`crate::leg`]) is a session of its own here, beside the one that forked it.
//!
//! # Invariants
//!
//! - A session is in exactly one of: the ready list, one pool's queue, one pool's
//!   growers, a job; or it waits for its legs, is running now, or over.
//! - A job, a queue place and a hold belong to one session, and go with it.

use std::cell::Cell;

use serq_ir::{BuiltIn, Mode};

use crate::choice::ChoiceCode;
use crate::code::{Op, RunCode, Simple, SimpleOp};
use crate::expression::{Draws, Expr, Frame, NOBODY, PoolRef};
use crate::hold::{Lease, OpenHold, Share};
use crate::kernel::Kernel;
use crate::pool::HOLDERS;
use crate::prefix::Prompt;
use crate::reading::Reading;
use crate::stage::Then;
use crate::world::{Action, Arrival, Fault, Move, Result, TraceTurn, World};

/// A session may become ready this often in one instant.
const READY_MAX: u32 = 1_000;
/// … and run this many statements.
const STATEMENTS_MAX: u32 = 1_000_000;
/// `choose` looks at no more candidates.
const CANDIDATES_MAX: f64 = 1e6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Over,
    Running,
    Ready,
    /// Waits in this pool's queue.
    Queued(u32),
    /// A `grow` waits for room in this pool.
    Growing(u32),
    /// Has this job at a stage.
    Serving(u32),
    /// Waits for its legs.
    Joining,
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) serial: u64,
    pub(crate) status: Status,
    /// The next operation; of a queued session, its hold.
    pub(crate) pc: u32,
    pub(crate) holds: Vec<OpenHold>,
    /// The open holds' shares, in the holds' order.
    pub(crate) shares: Vec<Share>,
    pub(crate) leases: Vec<Lease>,
    /// Own cache entries: (pool, entry).
    pub(crate) entries: Vec<(u32, u32)>,
    /// Number of the latest admission of any of its holds; the greatest before the first,
    /// so that who never waited for room stands last among residents.
    pub(crate) admission: u64,
    /// The pools of the hold it queues for, and since when.
    pub(crate) members: Vec<u32>,
    pub(crate) joined: f64,
    /// The hold it queues for was preempted at this position.
    pub(crate) resumes: Option<f64>,
    /// Where its preemptions found it: (pool, the last position there), until it gives that
    /// pool back itself.
    pub(crate) preempted_at: Vec<(u32, f64)>,
    /// The hold (by operation) that was preempted last, while it goes on.
    pub(crate) preempted_hold: Option<u32>,
    /// The farthest any of its preemptions found that hold.
    pub(crate) reached: f64,
    pub(crate) stuck: bool,
    pub(crate) turns: u64,
    pub(crate) draws: Cell<u64>,
    pub(crate) trace_session: Option<u32>,
    /// What pools that share prefixes are asked for.
    pub(crate) prompt: Prompt,
    /// How much its run brings, where a `load` and a `release` follow it and somebody moves that.
    pub(crate) moves: f64,
    /// When its latest token came, in this turn.
    pub(crate) last_token: f64,
    /// A decode run began in this turn.
    pub(crate) decodes: bool,
    /// The stage of that token.
    pub(crate) token_stage: u32,
    /// It was preempted since its last token: one of the same stage comes late, whatever
    /// makes it.
    pub(crate) token_again: bool,
    /// For the guard against instants that don't settle.
    instant: f64,
    readied: u32,
    statements: u32,
    /// `shielded` blocks it is in.
    pub(crate) shields: u32,
    /// Its client went away.
    pub(crate) cancelled: bool,
    /// The session whose leg it is, else [`NOBODY`], and which one of its turn, from 1.
    pub(crate) leg_of: u32,
    pub(crate) leg: u32,
    /// Its legs that are not over, and those its turn forked.
    pub(crate) legs: u32,
    pub(crate) legs_forked: u32,
    /// Pools its leases of which expired, until a release came that found none.
    pub(crate) expired: Vec<u32>,
    pub(crate) read: Reading,
}

impl Session {
    fn new() -> Self {
        Self {
            serial: 0,
            status: Status::Over,
            pc: 0,
            holds: Vec::new(),
            shares: Vec::new(),
            leases: Vec::new(),
            entries: Vec::new(),
            admission: u64::MAX,
            members: Vec::new(),
            joined: 0.0,
            resumes: None,
            preempted_at: Vec::new(),
            preempted_hold: None,
            reached: 0.0,
            moves: 0.0,
            stuck: false,
            turns: 0,
            draws: Cell::new(0),
            trace_session: None,
            prompt: Prompt::default(),
            last_token: f64::NAN,
            decodes: false,
            token_stage: u32::MAX,
            token_again: false,
            instant: f64::NAN,
            readied: 0,
            statements: 0,
            shields: 0,
            cancelled: false,
            leg_of: NOBODY,
            leg: 0,
            legs: 0,
            legs_forked: 0,
            expired: Vec::new(),
            read: Reading::default(),
        }
    }

    /// What is new of a session in the place of one that is over, whose buffers stay.
    pub(crate) fn renew(&mut self, serial: u64, pc: u32) {
        *self = Self {
            serial,
            pc,
            holds: std::mem::take(&mut self.holds),
            shares: std::mem::take(&mut self.shares),
            leases: std::mem::take(&mut self.leases),
            entries: std::mem::take(&mut self.entries),
            members: std::mem::take(&mut self.members),
            prompt: std::mem::take(&mut self.prompt),
            ..Self::new()
        };
    }

    /// What tells a leg from the others of its session, and from that itself.
    pub(crate) fn which_leg(&self) -> (u32, u64) {
        if self.leg == 0 { (0, 0) } else { (self.leg, self.turns) }
    }

    fn at_instant(&mut self, now: f64) {
        if self.instant != now {
            self.instant = now;
            self.readied = 0;
            self.statements = 0;
        }
    }
}

impl Kernel<'_> {
    /// Where a session's attributes begin among those of all.
    pub(crate) fn attributes_from(&self, session: u32) -> usize {
        session as usize * self.code.attributes
    }

    pub(crate) fn attribute(&self, session: u32, attribute: u32) -> f64 {
        self.attributes[self.attributes_from(session) + attribute as usize]
    }

    pub(crate) fn set_attribute(&mut self, session: u32, attribute: u32, value: f64) {
        let at = self.attributes_from(session) + attribute as usize;
        self.attributes[at] = value;
    }

    pub(crate) fn attributes_of(&self, session: u32) -> &[f64] {
        let n = self.code.attributes;
        &self.attributes[session as usize * n..][..n]
    }

    /// A session comes to be and is ready.
    pub(crate) fn arrive(&mut self, arrival: Arrival) -> Result<()> {
        self.instant_arrivals += 1;
        if self.instant_arrivals > 1_000_000 {
            let message = "a million sessions arrived without time passing".into();
            return Err(self.fault(message, None, None));
        }
        let slot = self.free_slot();
        let serial = self.serial_next;
        self.serial_next += 1;
        let n = self.code.attributes;
        self.attributes[slot as usize * n..][..n].fill(0.0);
        self.set_attribute(slot, BuiltIn::Serial as u32, serial as f64);
        let session = &mut self.sessions[slot as usize];
        session.renew(serial, self.code.start);
        session.trace_session = arrival.trace_session;
        self.begin_prompt(slot);
        self.live += 1;
        self.ready(slot)
    }

    /// A place for a session.
    pub(crate) fn free_slot(&mut self) -> u32 {
        self.free_slots.pop().unwrap_or_else(|| {
            self.sessions.push(Session::new());
            self.attributes.resize(self.attributes.len() + self.code.attributes, 0.0);
            (self.sessions.len() - 1) as u32
        })
    }

    pub(crate) fn ready(&mut self, slot: u32) -> Result<()> {
        let now = self.now;
        let session = &mut self.sessions[slot as usize];
        session.at_instant(now);
        session.readied += 1;
        session.status = Status::Ready;
        if session.readied > READY_MAX {
            let message = format!(
                "the instant does not settle: the session became ready {READY_MAX} times without time passing \
                 (a run of zero work, or a hold admitted and given back, in a loop)"
            );
            return Err(self.fault_at(message, slot));
        }
        self.ready_list.push_back(slot);
        Ok(())
    }

    /// Runs ready sessions in the order they became ready, until all have blocked.
    pub(crate) fn run_ready<W: World>(&mut self, world: &mut W) -> Result<()> {
        while let Some(slot) = self.ready_list.pop_front() {
            self.run_session(world, slot)?;
        }
        Ok(())
    }

    fn run_session<W: World>(&mut self, world: &mut W, slot: u32) -> Result<()> {
        let code = self.code;
        let now = self.now;
        let frame = self.frame(slot);
        let session = &mut self.sessions[slot as usize];
        session.status = Status::Running;
        session.at_instant(now);
        // Where the session is, and statements not counted yet.
        let (mut pc, mut ran) = (session.pc, 0);
        loop {
            let at = pc;
            ran += 1;
            match &code.ops[at as usize] {
                op @ (Op::Set(..) | Op::Observe(..) | Op::Branch { .. }) => {
                    pc = self.run_note(world, slot, op, pc, &frame)?;
                }
                Op::Jump(to) => {
                    self.count_statements(slot, pc, &mut ran)?;
                    pc = *to;
                }
                Op::Read(pool, over) => {
                    self.count_statements(slot, pc, &mut ran)?;
                    pc = if self.begin_read(world, slot, pool, &frame)? { pc + 1 } else { *over };
                }
                op => {
                    self.count_statements(slot, pc, &mut ran)?;
                    if !self.run_op(world, slot, op, &frame)? {
                        return self.check_fault();
                    }
                    self.check_fault()?;
                    pc += 1;
                    self.sessions[slot as usize].pc = pc;
                    continue;
                }
            }
            if self.has_fault() {
                self.sessions[slot as usize].pc = at;
                return self.check_fault();
            }
        }
    }

    /// An operation that sets, observes or branches. Answers which one comes next.
    #[inline(always)]
    fn run_note<W: World>(&mut self, world: &mut W, slot: u32, op: &Op, pc: u32, frame: &Frame<'_>) -> Result<u32> {
        match op {
            Op::Set(attribute, value) => {
                let value = self.eval(world, value, frame);
                self.set_attribute(slot, *attribute, value);
            }
            Op::Observe(observe, value) => {
                let value = self.eval(world, value, frame);
                self.observe(world, slot, *observe, value);
            }
            Op::Branch { test, chance, otherwise, .. } => {
                let test = self.eval(world, test, frame);
                let taken = if *chance {
                    self.chance(world, test, frame)
                } else if test == 1.0 || test == 0.0 {
                    test == 1.0
                } else {
                    self.sessions[slot as usize].pc = pc;
                    return Err(self.fault_guard(test, slot));
                };
                return Ok(if taken { pc + 1 } else { *otherwise });
            }
            _ => unreachable!("it sets, observes or branches"),
        }
        Ok(pc + 1)
    }

    /// A prefill is over: what is noted of that, whatever its session does meanwhile.
    pub(crate) fn run_notes<W: World>(&mut self, world: &mut W, slot: u32, notes: u32) -> Result<()> {
        let code = self.code;
        let frame = self.frame(slot);
        let mut at = notes;
        loop {
            at = match &code.ops[at as usize] {
                Op::Noted => return Ok(()),
                Op::Jump(to) => *to,
                op => self.run_note(world, slot, op, at, &frame)?,
            };
            self.check_fault()?;
        }
    }

    /// The session is at `pc` and has run so many statements more.
    #[inline(always)]
    fn count_statements(&mut self, slot: u32, pc: u32, ran: &mut u32) -> Result<()> {
        let session = &mut self.sessions[slot as usize];
        session.pc = pc;
        session.statements += std::mem::take(ran);
        if session.statements > STATEMENTS_MAX {
            let message = "the instant does not settle: a million statements ran without time passing".into();
            return Err(self.fault_at(message, slot));
        }
        Ok(())
    }

    #[cold]
    fn fault_guard(&self, test: f64, slot: u32) -> Box<Fault> {
        let mut message = format!("a branch's guard is {test}, neither 1 nor 0");
        if test > 0.0 && test < 1.0 {
            message += "; for a draw with that probability write `branch with`";
        }
        self.fault_at(message, slot)
    }

    /// An operation that does more than set, observe or branch. Answers whether the session
    /// goes on with the next one.
    #[inline(always)]
    fn run_op<W: World>(&mut self, world: &mut W, slot: u32, op: &Op, frame: &Frame<'_>) -> Result<bool> {
        let code = self.code;
        match op {
            Op::Init => self.run_simple(world, slot, &code.init)?,
            Op::Turn => self.turn(world, slot)?,
            Op::End => {
                if self.sessions[slot as usize].legs > 0 {
                    return Err(self.fault_legs(slot));
                }
                self.end_session(world, slot)?;
                return Ok(false);
            }
            Op::Fork(start) => self.fork(world, slot, *start)?,
            Op::LegOver => {
                self.end_leg(world, slot)?;
                return Ok(false);
            }
            Op::Join => return Ok(self.await_legs(world, slot)),
            Op::Abandon => {
                self.abandon(world, slot)?;
                return Ok(false);
            }
            Op::Shield => self.sessions[slot as usize].shields += 1,
            Op::Unshield => {
                let session = &mut self.sessions[slot as usize];
                session.shields -= 1;
                if session.cancelled && session.shields == 0 {
                    self.end_session(world, slot)?;
                    self.retry_pools(world)?;
                    return Ok(false);
                }
            }
            Op::Hold(_) => {
                self.join(world, slot)?;
                return Ok(false);
            }
            Op::Close => self.close(world, slot)?,
            Op::Grow(pool, units) => {
                let pool = self.pool_member(world, pool, frame);
                let units = self.eval(world, units, frame);
                return self.grow(world, slot, pool, units);
            }
            Op::Load(pool, load) => {
                let pool = self.pool_member(world, pool, frame);
                let units = self.eval(world, &load.units, frame);
                self.load(slot, pool, units)?;
                self.publish_all(world, slot)?;
            }
            Op::Drop(pool) => {
                let pool = self.pool_member(world, pool, frame);
                self.drop_own_entry(slot, pool);
            }
            Op::Release(pool, after) => {
                let pool = self.pool_member(world, pool, frame);
                match after {
                    Some(after) => {
                        let after = self.eval(world, after, frame);
                        self.release_after(world, slot, pool, after)?;
                    }
                    None => self.release(world, slot, pool)?,
                }
            }
            Op::HasRead(pool, fails) => self.end_read(world, slot, pool, fails.as_deref(), frame)?,
            Op::Fail => {
                self.fail_session(world, slot)?;
                return Ok(false);
            }
            Op::Run(run) => {
                self.start_run(world, slot, run)?;
                return Ok(false);
            }
            Op::Choose(choice) => {
                let count = self.eval(world, &choice.count, frame);
                self.choose(world, slot, choice, count)?;
            }
            Op::Set(..) | Op::Observe(..) | Op::Branch { .. } | Op::Jump(_) | Op::Read(..) | Op::Noted => {
                unreachable!("they are run where they are met")
            }
        }
        Ok(true)
    }

    fn run_simple<W: World>(&mut self, world: &mut W, slot: u32, block: &Simple) -> Result<()> {
        self.turn_draws.set(0);
        for (place, op) in block {
            self.simple_place = Some(*place);
            let frame = Frame { draws: Draws::Turn, ..self.frame(slot) };
            match op {
                SimpleOp::Set(attribute, value) => {
                    let value = self.eval(world, value, &frame);
                    self.set_attribute(slot, *attribute, value);
                }
                SimpleOp::Observe(observe, value) => {
                    let value = self.eval(world, value, &frame);
                    self.observe(world, slot, *observe, value);
                }
                SimpleOp::Prefix(group, tokens) => {
                    let (group, tokens) = (self.eval(world, group, &frame), self.eval(world, tokens, &frame));
                    self.check_fault()?;
                    self.set_group(slot, group, tokens)?;
                }
            }
            self.check_fault()?;
        }
        self.simple_place = None;
        Ok(())
    }

    fn observe<W: World>(&mut self, world: &mut W, slot: u32, observe: u32, value: f64) {
        let session = self.sessions[slot as usize].serial;
        let turn = self.attribute(slot, BuiltIn::TurnNo as u32);
        world.act(Action::Observed { observe, session, turn, value });
    }

    fn turn<W: World>(&mut self, world: &mut W, slot: u32) -> Result<()> {
        let turn_no = self.attribute(slot, BuiltIn::TurnNo as u32) + 1.0;
        self.set_attribute(slot, BuiltIn::TurnNo as u32, turn_no);
        let session = &mut self.sessions[slot as usize];
        session.turns += 1;
        session.legs_forked = 0;
        session.last_token = f64::NAN;
        session.decodes = false;
        session.token_again = false;
        session.read = Reading::default();
        let turn = session.turns;
        let traced = session.trace_session;
        if let Some(trace_session) = session.trace_session {
            // Past the last turn the last values stay and `more` is 0.
            if let Some(TraceTurn { new, out, think, more, forced }) = world.trace_turn(trace_session, turn) {
                self.set_attribute(slot, BuiltIn::New as u32, new);
                self.set_attribute(slot, BuiltIn::Out as u32, out);
                self.set_attribute(slot, BuiltIn::Think as u32, think);
                self.set_attribute(slot, BuiltIn::Forced as u32, forced);
                self.set_attribute(slot, BuiltIn::More as u32, if more { 1.0 } else { 0.0 });
            } else {
                self.set_attribute(slot, BuiltIn::More as u32, 0.0);
            }
        }
        world.act(Action::Turned);
        self.tell_move(world, slot, Move::Turned);
        let code = self.code;
        self.run_simple(world, slot, &code.turn)?;
        if let (true, false, Some(trace)) = (code.shares_prefixes, code.names_prefix, traced) {
            self.set_trace_blocks(world, slot, trace, turn);
        }
        Ok(())
    }

    /// Tells the world what befalls a session.
    #[inline]
    pub(crate) fn tell_move<W: World>(&self, world: &mut W, slot: u32, what: Move) {
        world.act(Action::Session { slot, session: self.sessions[slot as usize].serial, what });
    }

    fn choose<W: World>(&mut self, world: &mut W, slot: u32, choice: &ChoiceCode, count: f64) -> Result<()> {
        if !(0.0..=CANDIDATES_MAX).contains(&count) || count.fract() != 0.0 {
            let message =
                format!("choose among {count} candidates: a whole number from 0 to {CANDIDATES_MAX} is meant");
            return Err(self.fault_at(message, slot));
        }
        let count = count as u32;
        // A candidate is as good as a statement to the guard against endless instants.
        self.sessions[slot as usize].statements += count;
        let chosen = self.choose_tracked(world, slot, choice);
        let chosen = chosen.unwrap_or_else(|| self.scan(world, slot, choice, count));
        self.set_attribute(slot, choice.attribute, f64::from(chosen));
        Ok(())
    }

    fn start_run<W: World>(&mut self, world: &mut W, slot: u32, run: &RunCode) -> Result<()> {
        self.publish_all(world, slot)?;
        let frame = self.frame(slot);
        let mut stages = std::mem::take(&mut self.run_stages);
        stages.clear();
        for stage in &run.stages {
            let stage = self.stage_member(world, stage, &frame);
            stages.push(stage);
        }
        let mut work = self.work(world, slot, &run.work, &frame)?;
        let mut mode = run.mode;
        let mut then = None;
        if let Some(decode) = &run.then {
            let (tokens, notes) = (self.work(world, slot, decode, &frame)?, self.sessions[slot as usize].pc + 1);
            if work > 0.0 {
                then = Some(Then { tokens, notes });
            } else {
                self.run_notes(world, slot, notes)?;
                (mode, work) = (Some(Mode::Decode), tokens);
            }
        }
        let growing = match &run.growing {
            Some(pool) if work > 0.0 => Some(self.growing_share(world, slot, pool)?),
            _ => None,
        };
        // The session goes on behind this statement, whenever that is.
        self.sessions[slot as usize].pc = run.next;
        if W::MOVES_FLOWS {
            self.note_transfer(world, slot);
        }
        if work == 0.0 {
            self.ready(slot)?;
        } else {
            self.add_job(world, slot, &stages, mode, work, growing, then);
        }
        self.run_stages = stages;
        Ok(())
    }

    /// The work of a run, where negative work is none.
    fn work<W: World>(&mut self, world: &mut W, slot: u32, work: &Expr, frame: &Frame<'_>) -> Result<f64> {
        let work = self.eval(world, work, frame);
        self.check_fault()?;
        if work.is_nan() {
            return Err(self.fault_at("the work of a run is NaN".into(), slot));
        }
        if work < 0.0 {
            if self.strict {
                return Err(self.fault_at(format!("the work of a run is {work}"), slot));
            }
            self.clamped += 1;
            return Ok(0.0);
        }
        Ok(work)
    }

    fn growing_share<W: World>(&mut self, world: &mut W, slot: u32, pool: &PoolRef) -> Result<u32> {
        let pool = self.pool_member(world, pool, &self.frame(slot));
        self.check_fault()?;
        self.innermost_share(slot, pool).ok_or_else(|| self.fault_no_share(slot, pool))
    }

    pub(crate) fn end_session<W: World>(&mut self, world: &mut W, slot: u32) -> Result<()> {
        let cancelled = self.sessions[slot as usize].cancelled;
        if self.sessions[slot as usize].legs > 0 {
            self.end_legs(world, slot, cancelled)?;
        }
        while !self.sessions[slot as usize].holds.is_empty() {
            self.give_back_innermost(world, slot, None, cancelled)?;
        }
        let lingers = self.end_leases(world, slot, cancelled)?;
        self.orphan_entries(slot);
        let session = &mut self.sessions[slot as usize];
        session.status = Status::Over;
        let serial = session.serial;
        if !lingers {
            self.free_slots.push(slot);
        }
        self.live -= 1;
        self.tell_move(world, slot, Move::Ended);
        world.act(Action::Ended { session: serial });
        if let Some(arrival) = world.replacement() {
            self.arrive(arrival)?;
        }
        Ok(())
    }

    /// Fact: the client of a session went away. The session ends, once it leaves what it is shielded
    /// in. One that is over, or has not come yet, is no longer there to be cancelled.
    ///
    /// # Errors
    ///
    /// A fault of a `cache` clause, or of whoever gets the room.
    pub fn tell_cancelled<W: World>(&mut self, world: &mut W, now: f64, serial: u64) -> Result<()> {
        self.at(now);
        let alive = |session: &Session| {
            session.serial == serial && session.status != Status::Over && !session.cancelled && session.leg_of == NOBODY
        };
        if let Some(slot) = self.sessions.iter().position(alive) {
            self.sessions[slot].cancelled = true;
            self.tell_move(world, slot as u32, Move::Cancelled);
            if self.sessions[slot].shields == 0 {
                self.cancel(world, slot as u32)?;
            } else {
                self.count_out(slot as u32);
                for leg in self.legs_of(slot as u32) {
                    self.count_out(leg);
                }
            }
        }
        self.end_fact(world)
    }

    /// A shielded session that was cancelled is nobody's request any more: it holds, and is no holder.
    fn count_out(&mut self, slot: u32) {
        for at in 0..self.sessions[slot as usize].shares.len() {
            let share = &mut self.sessions[slot as usize].shares[at];
            if !share.released && std::mem::take(&mut share.counted) {
                let pool = share.pool;
                self.pools[pool as usize].holders -= 1;
                self.touch_pool(pool, HOLDERS);
            }
        }
    }

    /// The end of a session that was cancelled, wherever it is.
    pub(crate) fn cancel<W: World>(&mut self, world: &mut W, slot: u32) -> Result<()> {
        self.withdraw(world, slot);
        self.end_session(world, slot)?;
        self.retry_pools(world)
    }

    /// Takes a session that is to end out of wherever it is. What it computed until now counts.
    pub(crate) fn withdraw<W: World>(&mut self, world: &mut W, slot: u32) {
        let mut fence = None;
        if let Status::Serving(job) = self.sessions[slot as usize].status {
            // What it computed until now counts.
            let stage = self.jobs[job as usize].stages[0];
            self.catch_up(world, stage);
            self.uncount_ahead(job);
            if self.is_fenced(slot) {
                fence = self.step_code(stage).and_then(|step| Some((stage, step.memory?)));
            }
        }
        self.detach(world, slot);
        if let Some((stage, memory)) = fence {
            self.raise_fence(slot, stage, memory);
        }
    }
}

/// Whether one key tuple stands before another: decided at the first place where they
/// are not equal, and a NaN stands before nothing.
pub(crate) fn precedes(a: &[f64], b: &[f64]) -> bool {
    a.iter().zip(b).find(|(x, y)| x != y).is_some_and(|(x, y)| x < y)
}

/// Order of key tuples in queues, eviction, preemption and serving: NaN last.
pub(crate) fn compare(a: &[f64], b: &[f64]) -> std::cmp::Ordering {
    let one = |x: f64, y: f64| x.partial_cmp(&y).unwrap_or_else(|| x.is_nan().cmp(&y.is_nan()));
    a.iter().zip(b).map(|(x, y)| one(*x, *y)).find(|o| o.is_ne()).unwrap_or(std::cmp::Ordering::Equal)
}
