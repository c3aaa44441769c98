//! Growth that does not fit, and who makes room for it.
//!
//! A growth fits when the allocated units and it are within the cap; cached entries
//! are evicted. Otherwise `preempt none` makes the grower wait, and `lifo` and `by`
//! preempt: of the pool's open holds (never a lease), those of residents of the
//! stages that have the pool as their memory, else any; `lifo` takes the one admitted
//! last. Again until it fits, there is nobody, or the grower itself was taken.
//!
//! The victim loses its job, the holds inside its hold on this pool, and that hold,
//! which goes to the head of its queue and runs again from its header. Its computed
//! position is remembered, the tokens of an iteration that runs already among it.
//!
//! # Invariants
//!
//! - Preempting retries no queue: who waits sees the room at the next settle or plan.
//! - A lease is no victim.

use crate::code::Preempt;
use crate::expression::{Frame, NO_VARIABLES};
use crate::kernel::Kernel;
use crate::session::{Status, compare};
use crate::stage::Job;
use crate::world::{Move, Result, World};

/// What became of a growth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// The room is there, or cached.
    There,
    /// Nobody can be preempted: the grower waits.
    Awaited,
    /// The grower was its own victim.
    GrowerGone,
    /// The victim is in a planned step that writes to its blocks: not now.
    Fenced,
}

impl Kernel<'_> {
    /// Makes room for a growth, preempting where the pool says so.
    pub(crate) fn make_room<W: World>(&mut self, world: &mut W, grower: u32, pool: u32, amount: f64) -> Result<Room> {
        let code = self.code;
        loop {
            if self.pools[pool as usize].fits(amount) {
                return Ok(Room::There);
            }
            if matches!(code.pools[pool as usize].preempt, Preempt::None) {
                return Ok(Room::Awaited);
            }
            let Some(victim) = self.victim(world, pool)? else { return Ok(Room::Awaited) };
            if self.is_fenced(victim) {
                return Ok(Room::Fenced);
            }
            self.preempt(world, victim, pool)?;
            if victim == grower {
                return Ok(Room::GrowerGone);
            }
        }
    }

    /// Who goes: a session with an open hold on the pool.
    fn victim<W: World>(&mut self, world: &mut W, pool: u32) -> Result<Option<u32>> {
        let code = self.code;
        let pool_code = &code.pools[pool as usize];
        let mut candidates = std::mem::take(&mut self.candidates);
        candidates.clear();
        if pool_code.memory_of.is_empty() {
            for slot in 0..self.sessions.len() as u32 {
                // A victim that waits to come back has lost enough.
                let returns = self.sessions[slot as usize].resumes.is_some();
                if let Some(share) = self.innermost_share(slot, pool)
                    && !returns
                {
                    let hold = self.hold_of_share(slot, share);
                    candidates.push((self.sessions[slot as usize].holds[hold].admission, slot));
                }
            }
        } else {
            for &stage in &pool_code.memory_of {
                for &job in &self.stages[stage as usize].engine.residents {
                    let slot = self.jobs[job as usize].session;
                    if self.innermost_share(slot, pool).is_some() {
                        candidates.push((self.sessions[slot as usize].admission, slot));
                    }
                }
            }
        }
        let victim = match &pool_code.preempt {
            Preempt::By(keys) => {
                self.catch_up_all(world, self.now);
                let mut best = std::mem::take(&mut self.keys_best);
                let mut tried = std::mem::take(&mut self.keys_tried);
                let mut victim = None;
                candidates.sort_unstable_by_key(|(admission, _)| std::cmp::Reverse(*admission));
                for &(admission, slot) in &candidates {
                    self.preemption_keys(world, pool, admission, slot, keys, &mut tried);
                    if victim.is_none() || compare(&tried, &best).is_lt() {
                        victim = Some(slot);
                        std::mem::swap(&mut best, &mut tried);
                    }
                }
                self.keys_best = best;
                self.keys_tried = tried;
                victim
            }
            _ => candidates.iter().max().map(|(_, slot)| *slot),
        };
        self.candidates = candidates;
        self.check_fault()?;
        Ok(victim)
    }

    fn preemption_keys<W: World>(
        &self,
        world: &mut W,
        pool: u32,
        admission: u64,
        slot: u32,
        keys: &[crate::expression::Expr],
        out: &mut Vec<f64>,
    ) {
        use serq_ir::Context;
        let share = self.innermost_share(slot, pool).expect("a candidate has a share of the pool");
        let mut hold = self.sessions[slot as usize].holds[self.hold_of_share(slot, share)];
        let mut held = self.sessions[slot as usize].shares[share as usize];
        let mut decoding = false;
        let mut in_flight = 0.0;
        if let Status::Serving(job) = self.sessions[slot as usize].status {
            let job = &self.jobs[job as usize];
            decoding = job.decodes();
            if job.growing == Some(share) {
                held.slack = job.slack;
                hold.moved |= job.moved;
                in_flight = self.in_flight(job);
            }
        }
        let mut variables = *NO_VARIABLES;
        variables[Context::Admission as usize] = admission as f64;
        variables[Context::Position as usize] = self.computed_position(hold, held, true) + in_flight;
        variables[Context::Decoding as usize] = if decoding { 1.0 } else { 0.0 };
        let frame = Frame { variables: &variables, ..self.frame(slot) };
        out.clear();
        self.eval_keys(world, keys, &frame, out);
    }

    /// A job's tokens in the iteration that runs now.
    fn in_flight(&self, job: &Job) -> f64 {
        if self.stages[job.stages[0] as usize].engine.running { job.planned } else { 0.0 }
    }

    /// Whether a planned step writes to what a session holds, and nobody else may before it is over.
    pub(crate) fn is_fenced(&self, slot: u32) -> bool {
        let Status::Serving(job) = self.sessions[slot as usize].status else { return false };
        let stage = self.jobs[job as usize].stages[0];
        let fenced = self.step_code(stage).and_then(|step| step.asynchronous).is_some_and(|a| a.fenced);
        fenced && self.is_ahead(stage, job)
    }

    /// Takes what a resident will decode in planned steps off its position, and answers how much that is:
    /// its blocks are as of the steps that are over.
    pub(crate) fn uncount_ahead(&mut self, job: u32) -> f64 {
        let tokens = self.decodes_ahead(self.jobs[job as usize].stages[0], job);
        self.jobs[job as usize].slack += tokens;
        tokens
    }

    /// Takes a session's innermost hold on the pool away.
    fn preempt<W: World>(&mut self, world: &mut W, slot: u32, pool: u32) -> Result<()> {
        let share = self.innermost_share(slot, pool).expect("a victim has a share of the pool");
        let at = self.hold_of_share(slot, share);
        // Somebody's `grow` may come while the victim's iteration runs: its tokens are
        // computed by then, unlike those of an iteration still being planned.
        let mut ahead = 0.0;
        if let Status::Serving(id) = self.sessions[slot as usize].status {
            self.catch_up(world, self.jobs[id as usize].stages[0]);
            let tokens = self.in_flight(&self.jobs[id as usize]);
            let job = &mut self.jobs[id as usize];
            job.slack -= tokens;
            job.moved |= tokens > 0.0;
            ahead = self.uncount_ahead(id);
        }
        self.detach(world, slot);
        self.tell_move(world, slot, Move::Preempted { pool });
        // Nobody is retried: the room is the grower's.
        while self.sessions[slot as usize].holds.len() > at + 1 {
            self.give_back_innermost(world, slot, None, true)?;
        }
        let hold = self.sessions[slot as usize].holds[at];
        let position = self.computed_position(hold, self.sessions[slot as usize].shares[share as usize], true) + ahead;
        let first = hold.shares as usize;
        let session = &mut self.sessions[slot as usize];
        session.members.clear();
        for share in &session.shares[first..] {
            session.members.push(share.pool);
        }
        session.pc = hold.pc;
        session.shields = hold.shields;
        self.give_back_innermost(world, slot, None, true)?;
        let session = &mut self.sessions[slot as usize];
        session.token_again = !session.last_token.is_nan();
        let counts = &mut self.pools[pool as usize].counts;
        self.preemptions_total += 1;
        counts.preemptions += 1;
        // Positions in two pools have nothing to do with each other.
        match session.preempted_at.iter_mut().find(|(preempted, _)| *preempted == pool) {
            Some((_, before)) => {
                if position <= *before && !session.stuck {
                    session.stuck = true;
                    counts.stuck += 1;
                }
                *before = position;
            }
            None => session.preempted_at.push((pool, position)),
        }
        let again = session.preempted_hold.replace(hold.pc) == Some(hold.pc);
        session.reached = if again { session.reached.max(position) } else { position };
        if session.cancelled && session.shields == 0 {
            // It was shielded until now.
            if session.legs > 0 {
                return self.abandon_later(slot);
            }
            return self.end_session(world, slot);
        }
        self.rejoin(world, slot, position)
    }

    /// Takes a session out of wherever it waits or is served.
    pub(crate) fn detach<W: World>(&mut self, world: &mut W, slot: u32) {
        match self.sessions[slot as usize].status {
            Status::Serving(job) => {
                let stalled = self.jobs[job as usize].stalled;
                self.stop_job(world, job);
                if stalled {
                    self.drop_growers(slot);
                }
            }
            Status::Queued(pool) => self.leave_queue(pool, slot),
            Status::Growing(_) => self.drop_growers(slot),
            Status::Ready => self.ready_list.retain(|&s| s != slot),
            Status::Running | Status::Joining | Status::Over => {}
        }
        // Until it is queued again it is nowhere, and a running grower sees that it is gone.
        self.sessions[slot as usize].status = Status::Over;
    }

    fn drop_growers(&mut self, slot: u32) {
        for pool in 0..self.pools.len() as u32 {
            let growers = &mut self.pools[pool as usize].growers;
            let before = growers.len();
            growers.retain(|g| g.session != slot);
            if growers.len() != before {
                self.queue_changed(pool);
            }
        }
    }
}
