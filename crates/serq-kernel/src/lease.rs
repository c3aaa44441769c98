//! Leases: an allocation that outlives its hold's scope.
//!
//! ```text
//!   scope end ──▶ leased ──┬─ `release P`, or the transfer that reads it ─▶ given back
//!                          ├─ its time is over, or that of a `release P after (t)` ─▶ given back
//!                          └─ the session's end, unless such a release is on its way ─▶ given back
//! ```
//!
//! # Invariants
//!
//! - A leased share is allocated and counts as a holder; it is no victim and never evicted.
//! - It is given back once, by the first of the three. Its `cache` clause is read then.
//! - A session's leases of one pool are taken oldest first.

use crate::hold::{Lease, OpenHold, Share};
use crate::kernel::Kernel;
use crate::session::Status;
use crate::world::{Action, Move, Result, World};

impl Kernel<'_> {
    pub(crate) fn grant_lease<W: World>(
        &mut self,
        world: &mut W,
        slot: u32,
        hold: OpenHold,
        share: Share,
    ) -> Result<()> {
        self.publish(world, slot, hold, share, true)?;
        let lease = self.hold_code(hold.pc).lease.as_ref().expect("the hold has a lease clause");
        let time = self.eval(world, &lease.time, &self.frame(slot));
        let abandoned = lease.abandoned.as_ref().map(|e| self.eval(world, e, &self.frame(slot)));
        self.check_fault()?;
        for time in [Some(time), abandoned].into_iter().flatten() {
            if time.is_nan() || time < 0.0 {
                return Err(self.fault_at(format!("a lease of {time}: a time of at least 0 is meant"), slot));
            }
        }
        let timer = (time < f64::INFINITY).then(|| self.start_timer(world, slot, time));
        let until = self.now + time;
        self.sessions[slot as usize].leases.push(Lease {
            hold,
            share,
            timer,
            until,
            released: false,
            abandoned,
            fence: None,
        });
        let units = self.pools[share.pool as usize].units(share.quanta);
        self.tell_move(world, slot, Move::Leased { pool: share.pool, units });
        Ok(())
    }

    fn start_timer<W: World>(&mut self, world: &mut W, slot: u32, time: f64) -> u32 {
        let timer = self.timers_free.pop().unwrap_or_else(|| {
            self.timers.push(None);
            (self.timers.len() - 1) as u32
        });
        self.timers[timer as usize] = Some(slot);
        world.act(Action::WakeAt { timer, time: self.now + time });
        timer
    }

    fn stop_timer<W: World>(&mut self, world: &mut W, timer: Option<u32>) {
        if let Some(timer) = timer {
            self.timers[timer as usize] = None;
            self.timers_free.push(timer);
            world.act(Action::StopWake { timer });
        }
    }

    /// `release P after (t)`: the oldest lease of the pool whose release was not asked for yet
    /// ends so much later, or when its own time is over before.
    pub(crate) fn release_after<W: World>(&mut self, world: &mut W, slot: u32, pool: u32, after: f64) -> Result<()> {
        self.check_fault()?;
        if after.is_nan() || after < 0.0 {
            return Err(self.fault_at(format!("a release after {after}: a time of at least 0 is meant"), slot));
        }
        let leases = &self.sessions[slot as usize].leases;
        if let Some(lease) = leases.iter().position(|l| l.share.pool == pool && !l.released) {
            self.end_lease_after(world, slot, lease, after);
        }
        Ok(())
    }

    fn end_lease_after<W: World>(&mut self, world: &mut W, slot: u32, lease: usize, after: f64) {
        let until = self.now + after;
        let state = &mut self.sessions[slot as usize].leases[lease];
        state.released = true;
        if until < state.until {
            state.until = until;
            let timer = state.timer.take();
            self.stop_timer(world, timer);
            let timer = self.start_timer(world, slot, after);
            self.sessions[slot as usize].leases[lease].timer = Some(timer);
        }
    }

    /// The session is over: its leases end, but for those whose release is on its way. Answers whether
    /// one is.
    pub(crate) fn end_leases<W: World>(&mut self, world: &mut W, slot: u32, cancelled: bool) -> Result<bool> {
        let mut at = 0;
        while let Some(lease) = self.sessions[slot as usize].leases.get(at) {
            match lease.abandoned {
                _ if lease.released => at += 1,
                Some(after) if cancelled => {
                    self.end_lease_after(world, slot, at, after);
                    at += 1;
                }
                _ => self.end_lease(world, slot, at)?,
            }
        }
        Ok(at > 0)
    }

    /// Ends one of the session's leases.
    pub(crate) fn end_lease<W: World>(&mut self, world: &mut W, slot: u32, lease: usize) -> Result<()> {
        let Lease { hold, share, timer, .. } = self.sessions[slot as usize].leases.remove(lease);
        self.stop_timer(world, timer);
        self.tell_move(world, slot, Move::LeaseOver { pool: share.pool });
        self.give_back(world, slot, hold, share, false)
    }

    /// A lease's time is over.
    pub(crate) fn wake<W: World>(&mut self, world: &mut W, timer: u32) -> Result<()> {
        let Some(slot) = self.timers[timer as usize] else { return Ok(()) };
        let leases = &self.sessions[slot as usize].leases;
        let lease = leases.iter().position(|l| l.timer == Some(timer)).expect("a timer belongs to a lease");
        self.end_lease(world, slot, lease)?;
        self.free_if_over(slot);
        Ok(())
    }

    /// A session's place is free once its last lease has outlived it.
    pub(crate) fn free_if_over(&mut self, slot: u32) {
        let session = &self.sessions[slot as usize];
        if session.status == Status::Over && session.leases.is_empty() {
            self.orphan_entries(slot);
            self.free_slots.push(slot);
        }
    }
}
