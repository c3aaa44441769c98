//! Leases: an allocation that outlives its hold's scope.
//!
//! ```text
//!   scope end ──▶ leased ──┬─ `release P`, or the transfer that reads it ─▶ given back
//!                          ├─ its time is over ──────────────────────────▶ given back
//!                          └─ the session's end ─────────────────────────▶ given back
//! ```
//!
//! # Invariants
//!
//! - A leased share is allocated and counts as a holder; it is no victim and never evicted.
//! - It is given back once, by the first of the three. Its `cache` clause is read then.
//! - A session's leases of one pool are taken oldest first.

use crate::expression::Frame;
use crate::hold::{Lease, OpenHold, Share};
use crate::kernel::Kernel;
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
        let (_, time) = self.hold_code(hold.pc).lease.as_ref().expect("the hold has a lease clause");
        let time = self.eval(world, time, &Frame::session(slot));
        self.check_fault()?;
        if time.is_nan() || time < 0.0 {
            return Err(self.fault_at(format!("a lease of {time}: a time of at least 0 is meant"), slot));
        }
        let timer = (time < f64::INFINITY).then(|| {
            let timer = self.timers_free.pop().unwrap_or_else(|| {
                self.timers.push(None);
                (self.timers.len() - 1) as u32
            });
            self.timers[timer as usize] = Some(slot);
            world.act(Action::WakeAt { timer, time: self.now + time });
            timer
        });
        self.sessions[slot as usize].leases.push(Lease { hold, share, timer });
        let units = self.pools[share.pool as usize].units(share.quanta);
        self.tell_move(world, slot, Move::Leased { pool: share.pool, units });
        Ok(())
    }

    /// Ends one of the session's leases.
    pub(crate) fn end_lease<W: World>(&mut self, world: &mut W, slot: u32, lease: usize) -> Result<()> {
        let Lease { hold, share, timer } = self.sessions[slot as usize].leases.remove(lease);
        if let Some(timer) = timer {
            self.timers[timer as usize] = None;
            self.timers_free.push(timer);
            world.act(Action::StopWake { timer });
        }
        self.tell_move(world, slot, Move::LeaseOver { pool: share.pool });
        self.give_back(world, slot, hold, share, false)
    }

    /// A lease's time is over.
    pub(crate) fn wake<W: World>(&mut self, world: &mut W, timer: u32) -> Result<()> {
        let Some(slot) = self.timers[timer as usize] else { return Ok(()) };
        let leases = &self.sessions[slot as usize].leases;
        let lease = leases.iter().position(|l| l.timer == Some(timer)).expect("a timer belongs to a lease");
        self.end_lease(world, slot, lease)
    }
}
