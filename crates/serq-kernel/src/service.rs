//! What real instances tell and ask, beside what the simulator does.
//!
//! ```text
//!   StartStep ──▶ runs(stage)    whose tokens, where in which blocks     ─▶ the model computes
//!   StartFlow ──▶ flow(job)      from which blocks to which, which tokens ─▶ bytes are copied
//!   Spilled                      which block goes to which, now            ─▶ bytes are copied
//!
//!   tell_stopped(…)   the token of this step is the last   ─▶ then tell_step_ended
//!   tell_content(…)   what further tokens are               ─▶ their blocks can be found
//! ```
//!
//! A real instance finds out how long an answer is when the model stops. Its run has an upper
//! bound until then; attributes that are that bound are from then on the answer's length.
//!
//! # Invariants
//!
//! - The blocks of a run hold its tokens in the order of its table: token t is in block
//!   t / block, at t mod block.
//! - A flow's blocks are a lease's, or another hold's that only reads, and an open hold's: nobody writes the
//!   first, and nobody but the flow the second.

use serq_ir::{BuiltIn, Expr, Mode, StmtKind};

use crate::code::{LoadCode, Op};
use crate::expression::{NOBODY, PoolRef};
use crate::hold::Share;
use crate::kernel::Kernel;
use crate::prefix::NO_TABLE;
use crate::session::Status;
use crate::world::World;

/// What an instance computes of one request in one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run<'k> {
    /// The session's serial number.
    pub session: u64,
    /// Prefill or decode.
    pub mode: Option<Mode>,
    /// How many.
    pub tokens: f64,
    /// Where they are.
    pub at: Held<'k>,
    /// It moves the position there itself (`growing`).
    pub grows: bool,
    /// The hold is leased once it is over: what comes of the run is its blocks, not a token.
    pub leased: bool,
}

/// A session's share of an instance's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Held<'k> {
    /// Member of a pool.
    pub pool: u32,
    /// Tells this hold of the session from its others, and from the same hold once it was
    /// preempted and admitted again.
    pub admission: u64,
    /// The token its first block begins with: 0, but for what is read of a store behind what is computed already.
    pub first: f64,
    /// Tokens, from the text's first, up to which it had them when it was admitted.
    pub found: f64,
    /// Tokens it has, from the first, as far as the kernel knows: found there, loaded, or computed
    /// by runs that grow it.
    pub position: f64,
    /// The blocks, in the order of their tokens.
    pub blocks: &'k [u32],
}

/// A read: what a lease or a hold has goes to another hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flow<'k> {
    /// The session's serial number.
    pub session: u64,
    /// Of the lease, or of the hold that is read.
    pub from: Held<'k>,
    /// Of the hold; the first token that is to come is the one at its position.
    pub to: Held<'k>,
    /// How many tokens go.
    pub tokens: f64,
}

/// What a session's prompts begin with that others may begin with too.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Begins<'k> {
    /// The name of its group, where it is of one.
    pub group: u64,
    /// How many tokens.
    pub tokens: f64,
    /// The trace's names of their blocks, where a trace names them instead of a group.
    pub block_ids: &'k [u64],
    /// Tokens of each of these.
    pub block: f64,
}

impl<'p> Kernel<'p> {
    /// An attribute of a session that is there.
    pub fn attribute_of(&self, serial: u64, attribute: u32) -> Option<f64> {
        Some(self.attribute(self.session_of(serial)?, attribute))
    }

    /// What the prompts of a session that is there begin with.
    pub fn begins(&self, serial: u64) -> Option<Begins<'_>> {
        Some(self.sessions[self.session_of(serial)? as usize].prompt.begins())
    }

    fn session_of(&self, serial: u64) -> Option<u32> {
        let is_it = |session: &crate::session::Session| {
            session.serial == serial && session.status != Status::Over && session.leg_of == NOBODY
        };
        self.sessions.iter().position(is_it).map(|slot| slot as u32)
    }

    /// What the iteration that runs, or was just planned, computes, in serve order. A run that
    /// holds nothing of its stage's memory is not among them.
    pub fn runs(&self, stage: u32) -> impl Iterator<Item = Run<'_>> {
        let memory = self.step_code(stage).and_then(|step| step.memory);
        self.stages[stage as usize].engine.plan.iter().filter_map(move |&id| {
            let job = &self.jobs[id as usize];
            let share = job.growing.or_else(|| self.innermost_share(job.session, memory?))?;
            let mut held = self.sessions[job.session as usize].shares[share as usize];
            if job.growing.is_some() {
                held.slack = job.slack;
            }
            let hold = self.sessions[job.session as usize].holds[self.hold_of_share(job.session, share)];
            Some(Run {
                session: self.sessions[job.session as usize].serial,
                mode: job.mode,
                tokens: job.planned,
                at: self.held(held, hold.admission)?,
                grows: job.growing.is_some(),
                leased: self.hold_code(hold.pc).lease.is_some(),
            })
        })
    }

    fn held(&self, share: Share, admission: u64) -> Option<Held<'_>> {
        let state = &self.pools[share.pool as usize];
        let pool = state.addressed.as_ref().filter(|_| share.table != NO_TABLE)?;
        let (first, blocks) = (state.units(f64::from(pool.first(share.table))), pool.table(share.table));
        let position = first + state.units(share.quanta) - share.slack;
        Some(Held { pool: share.pool, admission, first, found: first + state.units(share.taken), position, blocks })
    }

    /// What a job moves, if it is a flow, or if a `load` and a `release` follow it as in a `transfer`. It goes to the
    /// session's innermost share of the pool that is loaded, from its share of the one that is released or else from
    /// its oldest lease there. A flow that no such two follow goes from the oldest lease to the innermost share.
    /// `None` where there are not both.
    pub fn flow(&self, job: u32) -> Option<Flow<'_>> {
        let job = &self.jobs[job as usize];
        let session = self.sessions.get(job.session as usize)?;
        let is_flow = job.stages.iter().any(|&stage| self.code.stages[stage as usize].is_shared());
        let (into, out_of) = match self.transfer_behind(job.session) {
            Some((into, _, out_of)) => (Some(into), Some(out_of)),
            None if is_flow => (None, None),
            None => return None,
        };
        let is_of = |share: &Share, pool: Option<&PoolRef>| {
            share.table != NO_TABLE && pool.is_none_or(|pool| pool.0.may_be(share.pool))
        };
        let of = |at: usize| session.holds[self.hold_of_share(job.session, at as u32)].admission;
        let shares = || session.shares.iter().enumerate().rev().filter(|(_, share)| !share.released);
        let (at, to) = shares().find(|(_, share)| is_of(share, into))?;
        let pin = out_of.and_then(|_| shares().find(|(other, share)| *other != at && is_of(share, out_of)));
        let leased = |pool: Option<&PoolRef>| {
            let lease = session.leases.iter().find(|lease| !lease.released && is_of(&lease.share, pool))?;
            Some((lease.share, lease.hold.admission))
        };
        let from = pin.map(|(at, share)| (*share, of(at))).or_else(|| leased(out_of));
        let (from, admission) = from.or_else(|| if is_flow { leased(None) } else { None })?;
        Some(Flow {
            session: session.serial,
            from: self.held(from, admission)?,
            to: self.held(*to, of(at))?,
            tokens: if is_flow { job.remaining } else { session.moves },
        })
    }

    /// Whose job is a transfer of something, from where the session has nothing any more: its lease is over.
    pub fn comes_late(&self, job: u32) -> Option<u64> {
        let of = &self.jobs[job as usize];
        let session = self.sessions.get(of.session as usize)?;
        let (into, ..) = self.transfer_behind(of.session)?;
        let waits =
            session.shares.iter().any(|share| !share.released && into.0.may_be(share.pool) && share.table != NO_TABLE);
        (waits && session.moves > 0.0 && self.flow(job).is_none()).then_some(session.serial)
    }

    /// The pool and the units of the `load`, and the pool of the `release`, that follow what a session is at, where
    /// that does not fail.
    fn transfer_behind(&self, slot: u32) -> Option<(&'p PoolRef, &'p LoadCode, &'p PoolRef)> {
        let mut next = self.sessions[slot as usize].pc as usize;
        if let Some(Op::HasRead(..)) = self.code.ops.get(next) {
            next += 1;
            while let Some(Op::Branch { on_failure: true, otherwise, .. }) = self.code.ops.get(next) {
                next = *otherwise as usize;
            }
        }
        match self.code.ops.get(next..next + 2)? {
            [Op::Load(into, load), Op::Release(out_of, None)] => Some((into, load, out_of)),
            _ => None,
        }
    }

    /// How much a run that begins will have brought is read now: who moves it has to know.
    pub(crate) fn note_transfer<W: World>(&mut self, world: &mut W, slot: u32) {
        let Some((_, load, _)) = self.transfer_behind(slot) else { return };
        // A draw is taken by the `load` itself.
        let units = if load.draws { 0.0 } else { self.eval(world, &load.units, &self.frame(slot)) };
        self.sessions[slot as usize].moves = units.max(0.0);
    }

    /// What a session that waits for its legs holds meanwhile, of numbered blocks: its innermost share.
    pub fn awaiting(&self, serial: u64) -> Option<Held<'_>> {
        let slot = self.session_of(serial)?;
        let session = &self.sessions[slot as usize];
        let at = session.shares.iter().rposition(|share| !share.released && share.table != NO_TABLE)?;
        let hold = session.holds[self.hold_of_share(slot, at as u32)];
        (session.status == Status::Joining).then(|| self.held(session.shares[at], hold.admission))?
    }

    /// What a leg of a session that is not over holds of a pool.
    pub fn held_by_leg(&self, serial: u64, pool: u32) -> Option<Held<'_>> {
        let slot = self.session_of(serial)?;
        self.legs_of(slot).into_iter().find_map(|leg| {
            let share = self.innermost_share(leg, pool)?;
            let hold = self.sessions[leg as usize].holds[self.hold_of_share(leg, share)];
            self.held(self.sessions[leg as usize].shares[share as usize], hold.admission)
        })
    }

    /// Sessions that ended because a pool can't ever hold what they ask for, since the last call, and
    /// the pool.
    pub fn take_rejected(&mut self) -> Vec<(u64, u32)> {
        std::mem::take(&mut self.rejected)
    }

    /// Whose lease a running timer is for.
    pub fn session_of_timer(&self, timer: u32) -> Option<u64> {
        let slot = (*self.timers.get(timer as usize)?)?;
        Some(self.sessions[self.whole(slot) as usize].serial)
    }

    /// The session was preempted where it had got to before: there is no more room than that.
    pub fn is_stuck(&self, serial: u64) -> bool {
        self.session_of(serial).is_some_and(|slot| self.sessions[slot as usize].stuck)
    }

    /// Fact: the token that the running step of its stage makes is the session's last, the
    /// `answer`-th. Its run ends with the step, and so does the decode a prefill would go on as.
    /// What is bound by `max_tokens` is `answer` from now on.
    pub fn tell_stopped(&mut self, serial: u64, answer: f64) {
        let Some(slot) = self.session_of(serial) else { return };
        if let Status::Serving(id) = self.sessions[slot as usize].status {
            let job = &mut self.jobs[id as usize];
            if job.planned > 0.0 {
                job.remaining = job.planned;
            }
            if let Some(then) = &mut job.then {
                then.tokens = 0.0;
            }
        }
        self.set_attribute(slot, BuiltIn::Out as u32, answer);
        let code = self.code;
        for &attribute in &code.bounded {
            self.set_attribute(slot, attribute, answer);
        }
    }

    /// Fact: the session's tokens go on; their blocks, of as many tokens as the first ones have,
    /// are named so. What is not named yet is not found by anybody else.
    pub fn tell_content(&mut self, serial: u64, block: f64, names: &[u64]) {
        if let Some(slot) = self.session_of(serial) {
            self.sessions[slot as usize].prompt.go_on(block, names);
        }
    }
}

/// The attributes that a request's turn sets to `max_tokens` as it is.
pub(crate) fn bounded(turn: &serq_ir::Block) -> Vec<u32> {
    let bound = |stmt: &serq_ir::Stmt| match &stmt.kind {
        StmtKind::Set { attribute, value: Expr::Attribute(from) } if *from == BuiltIn::Out as u32 => Some(*attribute),
        _ => None,
    };
    turn.iter().filter_map(bound).collect()
}
