//! Holds: joining a pool's queue, admission, the body's allocations, the scope's end.
//!
//! ```text
//!   join ──▶ queued ──admitted──▶ open ──┬─ scope end ──▶ given back, a part may stay cached
//!             ▲  (header read)    │      ├─ release P ──▶ that pool's share given back
//!             └──── preempted ────┘      └─ lease P ────▶ a lease (lease.rs)
//! ```
//!
//! A hold asks for units of several pools and gets all or none. Its header is read
//! at every attempt. A session in a hold has a [`Share`] of each of its pools:
//! allocation, consumed prefix, and *slack*, the allocated units past its computed
//! position. Slack and a run's remaining work count down: subtracting whole tokens
//! from a fraction is exact where adding them up is not, so n steps at once and n
//! single steps give the same bits.
//!
//! # Invariants
//!
//! - Joining never admits on the spot, but to a store's queue. A scope's end and a `release` do, whatever they gave
//!   back: every pool is retried before the next statement. A session's end does not.
//! - Only a queue's head is tried.

use serq_ir::BuiltIn;
use smallvec::SmallVec;

use crate::code::{HoldCode, Op};
use crate::expression::{Expr, Frame, NO_VARIABLES, NOBODY};
use crate::kernel::Kernel;
use crate::pool::{Grower, HOLDERS, QUEUE, TOLERANCE, USED};
use crate::preemption::Room;
use crate::prefix::NO_TABLE;
use crate::session::{Status, compare};
use crate::world::{Action, Fault, Move, Result, World};

/// Most units one hold or growth takes: a hundred million of them are still a number.
const AMOUNT_MAX: f64 = 1e300;

/// A hold a session is inside of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenHold {
    /// Its [`Op::Hold`].
    pub(crate) pc: u32,
    /// First of its shares.
    pub(crate) shares: u32,
    pub(crate) admission: u64,
    /// A growing run of more than 0 tokens, or a load, moved a position.
    pub(crate) moved: bool,
    /// `shielded` blocks it is in.
    pub(crate) shields: u32,
}

/// What an open hold has of one pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    pub(crate) pool: u32,
    /// Allocated quanta.
    pub(crate) quanta: f64,
    /// Consumed prefix, in quanta.
    pub(crate) taken: f64,
    /// Allocated units minus the computed position; negative when more was consumed
    /// than allocated.
    pub(crate) slack: f64,
    /// Given back before the scope's end.
    pub(crate) released: bool,
    /// Among its pool's holders: its client is there.
    pub(crate) counted: bool,
    /// Its blocks, where the pool shares prefixes; else [`NO_TABLE`].
    pub(crate) table: u32,
}

/// A share that outlived its scope.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    pub(crate) hold: OpenHold,
    pub(crate) share: Share,
    pub(crate) timer: Option<u32>,
    /// When its time is over.
    pub(crate) until: f64,
    /// How it is renewed.
    pub(crate) renewal: Option<Renewal>,
    /// Its release was asked for, and comes with the timer.
    pub(crate) released: bool,
    /// How much later it ends once its session was cancelled.
    pub(crate) abandoned: Option<f64>,
    /// It is no lease but what a planned step writes to: given back once that many are over.
    pub(crate) fence: Option<u64>,
}

impl Lease {
    pub(crate) fn fenced(hold: OpenHold, share: Share, step: u64) -> Self {
        Self {
            hold,
            share,
            timer: None,
            until: f64::INFINITY,
            renewal: None,
            released: true,
            abandoned: None,
            fence: Some(step),
        }
    }
}

/// `renewed r every e` of a lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Renewal {
    /// How long it lasts from a renewal on, at least.
    pub(crate) time: f64,
    pub(crate) every: f64,
    /// When the lease began, and how many of the times to renew it are past.
    pub(crate) since: f64,
    pub(crate) past: u64,
}

impl Renewal {
    /// When it is renewed next, if its reader is there.
    pub(crate) fn next(&self) -> f64 {
        self.since + (self.past + 1) as f64 * self.every
    }
}

impl<'p> Kernel<'p> {
    pub(crate) fn hold_code(&self, pc: u32) -> &'p HoldCode {
        match &self.code.ops[pc as usize] {
            Op::Hold(hold) => hold,
            _ => unreachable!("a hold's operation is a hold"),
        }
    }

    /// The session reaches a hold: it joins the queue of the hold's first pool.
    pub(crate) fn join<W: World>(&mut self, world: &mut W, slot: u32) -> Result<()> {
        let pc = self.sessions[slot as usize].pc;
        let hold = self.hold_code(pc);
        let frame = self.frame(slot);
        let mut members = std::mem::take(&mut self.sessions[slot as usize].members);
        members.clear();
        for grab in &hold.grabs {
            let pool = self.pool_member(world, &grab.pool, &frame);
            if members.contains(&pool) {
                let name = self.pool_name(pool);
                self.sessions[slot as usize].members = members;
                self.check_fault()?;
                return Err(self.fault_at(format!("two indices of one hold name the same member, {name}"), slot));
            }
            members.push(pool);
        }
        let first = members[0];
        self.sessions[slot as usize].members = members;
        self.check_fault()?;
        if let Some(pool) = self.judge(world, slot, hold)? {
            return self.reject(world, slot, pool);
        }
        let now = self.now;
        let session = &mut self.sessions[slot as usize];
        session.status = Status::Queued(first);
        session.joined = now;
        session.resumes = None;
        self.pools[first as usize].queue.push_back(slot);
        self.queue_changed(first);
        let holds = self.sessions[slot as usize].holds.len() as u32;
        self.tell_move(world, slot, Move::Queued { pool: first, holds });
        if self.code.pools[first as usize].store {
            // What is there needs no room, and may be gone later.
            self.retry_pool(world, first)?;
        }
        Ok(())
    }

    /// A preempted hold goes to the head of its first pool's queue.
    pub(crate) fn rejoin<W: World>(&mut self, world: &mut W, slot: u32, position: f64) -> Result<()> {
        let pc = self.sessions[slot as usize].pc;
        let hold = self.hold_code(pc);
        // The header will read `computed`; so must the judgement.
        self.set_attribute(slot, BuiltIn::Computed as u32, position);
        if let Some(pool) = self.judge(world, slot, hold)? {
            return self.reject(world, slot, pool);
        }
        let now = self.now;
        let session = &mut self.sessions[slot as usize];
        let first = session.members[0];
        session.status = Status::Queued(first);
        session.joined = now;
        session.resumes = Some(position);
        self.pools[first as usize].returning.push_front(slot);
        self.queue_changed(first);
        let holds = self.sessions[slot as usize].holds.len() as u32;
        self.tell_move(world, slot, Move::Queued { pool: first, holds });
        Ok(())
    }

    /// The first pool that can't ever serve the hold, as far as its units and its reserve,
    /// each by itself, can be known now.
    fn judge<W: World>(&self, world: &mut W, slot: u32, hold: &HoldCode) -> Result<Option<u32>> {
        let frame = self.frame(slot);
        for (at, grab) in hold.grabs.iter().enumerate() {
            let pool = self.sessions[slot as usize].members[at];
            let units = if grab.units_judged { self.amount(world, slot, &grab.units, &frame, "units")? } else { 0.0 };
            let reserve = match &grab.reserve {
                Some(reserve) if grab.reserve_judged => self.amount(world, slot, reserve, &frame, "reserve")?,
                _ => 0.0,
            };
            let state = &self.pools[pool as usize];
            if state.units(state.quanta(units.max(reserve))) > state.cap {
                return Ok(Some(pool));
            }
        }
        Ok(None)
    }

    fn reject<W: World>(&mut self, world: &mut W, slot: u32, pool: u32) -> Result<()> {
        self.pools[pool as usize].counts.rejected += 1;
        if W::MOVES_FLOWS {
            self.rejected.push((self.sessions[slot as usize].serial, pool));
        }
        if self.sessions[slot as usize].legs > 0 || self.sessions[slot as usize].leg_of != NOBODY {
            return self.abandon_later(slot);
        }
        self.end_session(world, slot)
    }

    /// An amount of a hold, `grow` or `load`: finite and at least 0.
    fn amount<W: World>(&self, world: &mut W, slot: u32, expr: &Expr, frame: &Frame<'_>, what: &str) -> Result<f64> {
        let amount = self.eval(world, expr, frame);
        self.check_amount(slot, amount, what)?;
        Ok(amount)
    }

    #[inline]
    fn check_amount(&self, slot: u32, amount: f64, what: &str) -> Result<()> {
        self.check_fault()?;
        if (0.0..=AMOUNT_MAX).contains(&amount) { Ok(()) } else { Err(self.fault_amount(slot, amount, what)) }
    }

    #[cold]
    fn fault_amount(&self, slot: u32, amount: f64, what: &str) -> Box<Fault> {
        if amount.is_finite() && amount > 0.0 {
            return self.fault_at(format!("{what}: {amount:e}, at most {AMOUNT_MAX:e} is meant"), slot);
        }
        self.fault_at(format!("{what}: {amount}, a finite amount of at least 0 is meant"), slot)
    }

    /// A block so small that an amount's blocks can't be counted stops the run.
    #[inline]
    fn check_quanta(&self, slot: u32, quanta: f64, units: f64) -> Result<()> {
        if quanta.is_finite() {
            return Ok(());
        }
        Err(self.fault_at(format!("{units} units are more blocks than can be counted"), slot))
    }

    /// The waiter to be tried next.
    pub(crate) fn head<W: World>(&mut self, world: &mut W, pool: u32) -> Option<u32> {
        let code = self.code;
        let state = &self.pools[pool as usize];
        if let Some(head) = state.returning.front() {
            return Some(*head);
        }
        let Some(keys) = &code.pools[pool as usize].order else { return state.queue.front().copied() };
        if state.queue.len() <= 1 {
            return state.queue.front().copied();
        }
        let mut best = std::mem::take(&mut self.keys_best);
        let mut tried = std::mem::take(&mut self.keys_tried);
        let mut head = None;
        for at in 0..self.pools[pool as usize].queue.len() {
            let waiter = self.pools[pool as usize].queue[at];
            let mut variables = *NO_VARIABLES;
            variables[serq_ir::Context::Waited as usize] = self.now - self.sessions[waiter as usize].joined;
            variables[serq_ir::Context::Admission as usize] = self.sessions[waiter as usize].admission as f64;
            let frame = Frame { variables: &variables, ..self.frame(waiter) };
            tried.clear();
            self.eval_keys(world, keys, &frame, &mut tried);
            if head.is_none() || compare(&tried, &best).is_lt() {
                head = Some(waiter);
                std::mem::swap(&mut best, &mut tried);
            }
        }
        self.keys_best = best;
        self.keys_tried = tried;
        head
    }

    /// Tries the queue's head. Answers whether it was admitted.
    pub(crate) fn try_head<W: World>(&mut self, world: &mut W, pool: u32) -> Result<bool> {
        let Some(slot) = self.head(world, pool) else { return Ok(false) };
        self.check_fault()?;
        let pc = self.sessions[slot as usize].pc;
        let hold = self.hold_code(pc);
        // A header reads `computed` as it will be inside.
        if let Some(position) = self.sessions[slot as usize].resumes {
            self.set_attribute(slot, BuiltIn::Computed as u32, position);
        }
        let frame = self.frame(slot);
        let mut units = std::mem::take(&mut self.header_units);
        units.clear();
        let mut fits = true;
        let read_reuse = |kernel: &Self, world: &mut W| {
            let reuse = hold.reuse.as_ref()?;
            Some(kernel.eval(world, reuse, &frame))
        };
        // Where prefixes are shared the fit depends on it, else only the admission does.
        let reuse = if self.code.shares_prefixes { read_reuse(self, world) } else { None };
        for (at, grab) in hold.grabs.iter().enumerate() {
            let pool = self.sessions[slot as usize].members[at];
            let wanted = self.amount(world, slot, &grab.units, &frame, "units")?;
            let reserve = match &grab.reserve {
                Some(reserve) => self.amount(world, slot, reserve, &frame, "reserve")?,
                None => 0.0,
            };
            let state = &self.pools[pool as usize];
            self.check_quanta(slot, state.quanta(wanted.max(reserve)), wanted.max(reserve))?;
            let (quanta, room) = (state.quanta(wanted), state.quanta(wanted.max(reserve)));
            units.push(quanta);
            let state = &self.pools[pool as usize];
            // What others hold of the same content takes no room of its own.
            fits &= state.fits(room)
                || hold.cache.is_some() && state.fits(room - self.quanta_allocated(slot, pool, quanta, reuse));
        }
        if fits {
            let reuse = reuse.or_else(|| read_reuse(self, world));
            self.check_fault()?;
            self.admit(world, slot, pool, hold, &units, reuse)?;
        }
        self.header_units = units;
        Ok(fits)
    }

    fn admit<W: World>(
        &mut self,
        world: &mut W,
        slot: u32,
        queue: u32,
        hold: &HoldCode,
        units: &[f64],
        reuse: Option<f64>,
    ) -> Result<()> {
        self.leave_queue(queue, slot);
        let admission = self.admission_next;
        self.admission_next += 1;
        let first_share = self.sessions[slot as usize].shares.len() as u32;
        let mut cached: f64 = 0.0;
        // They are the session's when all are there: what a store is to have besides was counted without them.
        let mut shares = SmallVec::<[Share; 4]>::new();
        for (at, &quanta) in units.iter().enumerate() {
            let pool = self.sessions[slot as usize].members[at];
            let (table, taken) = if self.pools[pool as usize].addressed.is_some() {
                self.open_table(world, slot, pool, quanta, hold.cache.is_some(), reuse)?
            } else {
                let taken = if hold.cache.is_some() { self.consume(slot, pool, reuse) } else { 0.0 };
                self.pools[pool as usize].used.add(quanta);
                (NO_TABLE, taken)
            };
            cached = cached.max(self.units_taken(slot, pool, table, taken));
            let state = &mut self.pools[pool as usize];
            let slack = state.units(quanta - taken);
            state.holders += 1;
            state.counts.admissions += 1;
            self.touch_pool(pool, USED | HOLDERS);
            let share = Share { pool, quanta, taken, slack, released: false, counted: true, table };
            shares.push(share);
            self.evict(world, pool, 0.0)?;
        }
        self.sessions[slot as usize].shares.extend(shares);
        self.set_attribute(slot, BuiltIn::Cached as u32, cached);
        let now = self.now;
        let session = &mut self.sessions[slot as usize];
        let wait = now - session.joined;
        session.holds.push(OpenHold {
            pc: session.pc,
            shares: first_share,
            admission,
            moved: false,
            shields: session.shields,
        });
        session.admission = admission;
        session.pc += 1;
        session.resumes = None;
        world.act(Action::Admitted { pool: queue, wait });
        self.tell_move(world, slot, Move::Admitted { pool: queue });
        self.ready(slot)
    }

    pub(crate) fn leave_queue(&mut self, pool: u32, slot: u32) {
        let state = &mut self.pools[pool as usize];
        if state.returning.front() == Some(&slot) {
            state.returning.pop_front();
        } else if state.queue.front() == Some(&slot) {
            state.queue.pop_front();
        } else if let Some(at) = state.queue.iter().position(|&s| s == slot) {
            state.queue.remove(at);
        } else {
            state.returning.retain(|&s| s != slot);
        }
        self.queue_changed(pool);
    }

    /// Keeps the sets of who is to be retried in step with a pool's queue and growers.
    pub(crate) fn queue_changed(&mut self, pool: u32) {
        let state = &self.pools[pool as usize];
        let waits = state.waiting() > 0;
        match self.code.pools[pool as usize].via {
            None => {
                if waits || !state.growers.is_empty() {
                    self.retried.insert(pool);
                } else {
                    self.retried.remove(pool);
                }
            }
            Some(stage) => {
                if state.growers.is_empty() {
                    self.retried.remove(pool);
                } else {
                    self.retried.insert(pool);
                }
                self.served_queue_changed(stage, pool, waits);
            }
        }
        self.touch_pool(pool, QUEUE);
    }

    /// The innermost share of a pool the session still has.
    pub(crate) fn innermost_share(&self, slot: u32, pool: u32) -> Option<u32> {
        let shares = &self.sessions[slot as usize].shares;
        shares.iter().rposition(|s| s.pool == pool && !s.released).map(|at| at as u32)
    }

    pub(crate) fn hold_of_share(&self, slot: u32, share: u32) -> usize {
        let holds = &self.sessions[slot as usize].holds;
        holds.iter().rposition(|h| h.shares <= share).expect("a share belongs to an open hold")
    }

    /// `grow P (d)`. Answers whether the session goes on.
    pub(crate) fn grow<W: World>(&mut self, world: &mut W, slot: u32, pool: u32, units: f64) -> Result<bool> {
        self.check_amount(slot, units, "a growth")?;
        let Some(share) = self.innermost_share(slot, pool) else { return Err(self.fault_no_share(slot, pool)) };
        let amount = self.pools[pool as usize].quanta(units);
        self.check_quanta(slot, amount, units)?;
        match self.make_room(world, slot, pool, amount)? {
            Room::There => {
                self.extend(world, slot, share, amount, None)?;
                Ok(true)
            }
            Room::GrowerGone => Ok(false),
            Room::Awaited | Room::Fenced => {
                let session = &mut self.sessions[slot as usize];
                session.status = Status::Growing(pool);
                session.pc += 1;
                self.pools[pool as usize].growers.push(Grower { session: slot, amount, job: None, share });
                self.queue_changed(pool);
                self.tell_move(world, slot, Move::Growing { pool });
                Ok(false)
            }
        }
    }

    /// Adds quanta to a share, which `job` grows; the room is there or cached.
    pub(crate) fn extend<W: World>(
        &mut self,
        world: &mut W,
        slot: u32,
        share: u32,
        amount: f64,
        job: Option<u32>,
    ) -> Result<()> {
        let table = self.sessions[slot as usize].shares[share as usize].table;
        if table != NO_TABLE {
            self.publish_growing(world, slot, share, job)?;
        }
        let share = &mut self.sessions[slot as usize].shares[share as usize];
        let pool = share.pool;
        let state = &mut self.pools[pool as usize];
        let before = share.quanta;
        share.quanta += amount;
        let after = share.quanta;
        let slack = job.map_or(&mut share.slack, |job| &mut self.jobs[job as usize].slack);
        *slack += state.units(amount);
        if table == NO_TABLE {
            // What the share grew by in doubles, so that giving it back leaves 0.
            state.used.subtract(before);
            state.used.add(after);
        } else {
            self.allocate_blocks(world, slot, pool, table, amount)?;
        }
        self.touch_pool(pool, USED);
        if let Some(job) = job {
            self.count_memory(job);
        }
        self.evict(world, pool, 0.0)
    }

    /// `load P (n)`.
    pub(crate) fn load(&mut self, slot: u32, pool: u32, units: f64) -> Result<()> {
        self.check_amount(slot, units, "a load")?;
        let Some(share) = self.innermost_share(slot, pool) else { return Err(self.fault_no_share(slot, pool)) };
        let hold = self.hold_of_share(slot, share);
        let session = &mut self.sessions[slot as usize];
        session.holds[hold].moved = true;
        let share = &mut session.shares[share as usize];
        share.slack -= units;
        if share.slack < -TOLERANCE {
            let over = -share.slack;
            let name = self.pool_name(pool);
            let message = format!("load of {units} into {name} passes the hold's allocation by {over}");
            return Err(self.fault_at(message, slot));
        }
        Ok(())
    }

    /// `release P`.
    pub(crate) fn release<W: World>(&mut self, world: &mut W, slot: u32, pool: u32) -> Result<()> {
        if let Some(share) = self.innermost_share(slot, pool) {
            let hold = self.hold_of_share(slot, share);
            self.forget_preemption(slot, pool);
            self.give_back_share(world, slot, hold, share, false)?;
        } else if let Some(lease) =
            self.sessions[slot as usize].leases.iter().position(|l| l.share.pool == pool && !l.released)
        {
            self.end_lease(world, slot, lease)?;
        } else if !self.sessions[slot as usize].expired.is_empty() {
            self.release_late(slot, pool);
        }
        self.retry_pools(world)
    }

    /// The scope's end.
    pub(crate) fn close<W: World>(&mut self, world: &mut W, slot: u32) -> Result<()> {
        let session = &self.sessions[slot as usize];
        let OpenHold { pc, shares, .. } = *session.holds.last().expect("a scope's end has its hold");
        let lease = self.hold_code(pc).lease.as_ref().map(|lease| lease.grab);
        if !session.preempted_at.is_empty() {
            for share in shares..session.shares.len() as u32 {
                self.forget_preemption(slot, self.sessions[slot as usize].shares[share as usize].pool);
            }
        }
        self.give_back_innermost(world, slot, lease, false)?;
        self.set_attribute(slot, BuiltIn::Computed as u32, 0.0);
        let session = &mut self.sessions[slot as usize];
        if session.preempted_hold == Some(pc) {
            (session.preempted_hold, session.reached) = (None, 0.0);
        }
        self.retry_pools(world)
    }

    /// The same of a hold that was preempted when all of it was computed.
    pub(crate) fn end_preempted_hold(&mut self, slot: u32, pc: u32) {
        self.set_attribute(slot, BuiltIn::Computed as u32, 0.0);
        let over = self.hold_code(pc).over;
        let session = &mut self.sessions[slot as usize];
        session.preempted_at.retain(|(pool, _)| !session.members.contains(pool));
        session.resumes = None;
        (session.preempted_hold, session.reached) = (None, 0.0);
        session.pc = over + 1;
    }

    /// The session came to the end of what it wanted of the pool: a later preemption there is
    /// compared with none before.
    fn forget_preemption(&mut self, slot: u32, pool: u32) {
        self.sessions[slot as usize].preempted_at.retain(|(preempted, _)| *preempted != pool);
    }

    /// Ends the innermost hold: its pools are given back but for the leased one.
    pub(crate) fn give_back_innermost<W: World>(
        &mut self,
        world: &mut W,
        slot: u32,
        lease: Option<usize>,
        preempted: bool,
    ) -> Result<()> {
        let at = self.sessions[slot as usize].holds.len() - 1;
        let hold = self.sessions[slot as usize].holds[at];
        let shares = hold.shares..self.sessions[slot as usize].shares.len() as u32;
        let leased = lease.map(|grab| hold.shares + grab as u32);
        for share in shares {
            if Some(share) != leased && !self.sessions[slot as usize].shares[share as usize].released {
                self.give_back_share(world, slot, at, share, preempted)?;
            }
        }
        if let Some(leased) = leased {
            let share = self.sessions[slot as usize].shares[leased as usize];
            if !share.released {
                self.grant_lease(world, slot, hold, share)?;
            }
        }
        let session = &mut self.sessions[slot as usize];
        session.shares.truncate(hold.shares as usize);
        session.holds.pop();
        Ok(())
    }

    /// Gives one share back, keeping what the hold's `cache` clause says.
    pub(crate) fn give_back_share<W: World>(
        &mut self,
        world: &mut W,
        slot: u32,
        hold: usize,
        share: u32,
        preempted: bool,
    ) -> Result<()> {
        let open = self.sessions[slot as usize].holds[hold];
        let held = self.sessions[slot as usize].shares[share as usize];
        self.sessions[slot as usize].shares[share as usize].released = true;
        self.give_back(world, slot, open, held, preempted)
    }

    /// Units up to which a share's content was computed.
    pub(crate) fn computed_position(&self, hold: OpenHold, share: Share, preempted: bool) -> f64 {
        let state = &self.pools[share.pool as usize];
        if hold.moved {
            state.units(share.quanta) - share.slack
        } else if preempted {
            state.units(share.taken)
        } else {
            state.units(share.quanta)
        }
    }

    pub(crate) fn give_back<W: World>(
        &mut self,
        world: &mut W,
        slot: u32,
        hold: OpenHold,
        share: Share,
        preempted: bool,
    ) -> Result<()> {
        let pool = share.pool;
        let kept = match &self.hold_code(hold.pc).cache {
            Some(cache) => {
                let bound = self.eval(world, cache, &self.frame(slot));
                self.check_fault()?;
                let position = self.computed_position(hold, share, preempted);
                if bound > 0.0 { self.pools[pool as usize].quanta_within(bound.min(position)) } else { 0.0 }
            }
            None => 0.0,
        };
        if share.table != NO_TABLE {
            self.close_table(slot, share, kept);
            return Ok(());
        }
        let state = &mut self.pools[pool as usize];
        state.used.subtract(share.quanta);
        state.holders -= u32::from(share.counted);
        self.touch_pool(pool, USED | HOLDERS);
        if kept > 0.0 {
            self.keep(slot, pool, kept);
            self.evict(world, pool, 0.0)?;
        }
        Ok(())
    }

    /// Retries every pool somebody waits for, in declaration order.
    pub(crate) fn retry_pools<W: World>(&mut self, world: &mut W) -> Result<()> {
        let mut from = 0;
        while let Some(pool) = self.retried.next_from(from) {
            from = pool + 1;
            self.retry_pool(world, pool)?;
        }
        Ok(())
    }

    /// Growers in stall order, then the queue unless a stage serves it.
    pub(crate) fn retry_pool<W: World>(&mut self, world: &mut W, pool: u32) -> Result<()> {
        let mut at = 0;
        while at < self.pools[pool as usize].growers.len() {
            let grower = self.pools[pool as usize].growers[at];
            if !self.pools[pool as usize].fits(grower.amount) {
                at += 1;
                continue;
            }
            self.pools[pool as usize].growers.remove(at);
            self.extend(world, grower.session, grower.share, grower.amount, grower.job)?;
            match grower.job {
                Some(job) => self.jobs[job as usize].stalled = false,
                None => self.ready(grower.session)?,
            }
            self.queue_changed(pool);
        }
        if self.code.pools[pool as usize].via.is_none() {
            while self.pools[pool as usize].waiting() > 0 && self.try_head(world, pool)? {}
        }
        Ok(())
    }
}
