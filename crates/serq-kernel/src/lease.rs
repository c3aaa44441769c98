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
//!
//! `lease P (t) renewed r every e` is renewed while its reader is there, as a decoder's heartbeats do:
//! e, 2e, 3e … after it began, if its session or one of its legs then waits for units of another pool
//! or holds some, its end is no earlier than r from then. A renewal at the very end comes first.
//!
//! ```text
//!   leased at 0, (30) renewed 20 every 5       on its way │ queued, reading at the decoder
//!   ├────┼────┼────┼────┼────┼────┼────┼────┼──────▶     0 … 12 │ 12 …
//!   0    5    10   15   20   25   30   35   40           15: ends ≥ 35 · 20: ≥ 40 · …
//! ```
//!
//! A release that comes after the lease expired finds nothing, and is counted: a transfer that has
//! it read what was somebody else's by then.

use crate::expression::Expr;
use crate::hold::{Lease, OpenHold, Renewal, Share};
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
        let until = self.now + time;
        let renewal = match &lease.renewed {
            Some(renewed) => Some(self.renewal(world, slot, renewed)?),
            None => None,
        };
        let wakes = renewal.map_or(until, |renewal| until.min(renewal.next()));
        let timer = (until < f64::INFINITY).then(|| self.start_timer(world, slot, wakes));
        self.sessions[slot as usize].leases.push(Lease {
            hold,
            share,
            timer,
            until,
            renewal,
            released: false,
            abandoned,
            fence: None,
        });
        let units = self.pools[share.pool as usize].units(share.quanta);
        self.tell_move(world, slot, Move::Leased { pool: share.pool, units });
        self.count_leased(world, share, share.quanta);
        Ok(())
    }

    fn count_leased<W: World>(&mut self, world: &mut W, share: Share, quanta: f64) {
        let state = &mut self.pools[share.pool as usize];
        state.leased.add(quanta);
        world.act(Action::Leased { pool: share.pool, units: state.units(state.leased.value()) });
    }

    fn renewal<W: World>(&self, world: &mut W, slot: u32, renewed: &(Expr, Expr)) -> Result<Renewal> {
        let frame = self.frame(slot);
        let (time, every) = (self.eval(world, &renewed.0, &frame), self.eval(world, &renewed.1, &frame));
        self.check_fault()?;
        if time.is_nan() || time < 0.0 {
            return Err(self.fault_at(format!("a lease renewed for {time}: a time of at least 0 is meant"), slot));
        }
        // One that is lost in the clock's rounding would be due again and again.
        if every.is_nan() || self.now + every <= self.now {
            return Err(self.fault_at(format!("a lease renewed every {every}: a time above 0 is meant"), slot));
        }
        Ok(Renewal { time, every, since: self.now, past: 0 })
    }

    fn start_timer<W: World>(&mut self, world: &mut W, slot: u32, time: f64) -> u32 {
        let timer = self.timers_free.pop().unwrap_or_else(|| {
            self.timers.push(None);
            (self.timers.len() - 1) as u32
        });
        self.timers[timer as usize] = Some(slot);
        world.act(Action::WakeAt { timer, time });
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
        // Nobody reads it any more.
        state.renewal = None;
        if until < state.until {
            state.until = until;
            let timer = state.timer.take();
            self.stop_timer(world, timer);
            let timer = self.start_timer(world, slot, until);
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
        self.count_leased(world, share, -share.quanta);
        self.give_back(world, slot, hold, share, false)
    }

    /// A lease's time is over, or it is to be renewed.
    pub(crate) fn wake<W: World>(&mut self, world: &mut W, timer: u32) -> Result<()> {
        let Some(slot) = self.timers[timer as usize] else { return Ok(()) };
        let leases = &self.sessions[slot as usize].leases;
        let lease = leases.iter().position(|l| l.timer == Some(timer)).expect("a timer belongs to a lease");
        if leases[lease].renewal.is_some() {
            let Lease { until, renewal: Some(renewal), .. } = self.renew(slot, lease) else {
                unreachable!("a renewal stays until the lease is released")
            };
            if until > self.now {
                if until < f64::INFINITY {
                    world.act(Action::WakeAt { timer, time: until.min(renewal.next()) });
                }
                return Ok(());
            }
        }
        let Lease { share, released, .. } = self.sessions[slot as usize].leases[lease];
        if !released {
            self.pools[share.pool as usize].counts.leases_expired += 1;
            self.sessions[slot as usize].expired.push(share.pool);
        }
        self.end_lease(world, slot, lease)?;
        self.free_if_over(slot);
        Ok(())
    }

    /// Renews a lease, if it is time to and its reader is there.
    fn renew(&mut self, slot: u32, lease: usize) -> Lease {
        let reads = self.is_read(slot, self.sessions[slot as usize].leases[lease].share.pool);
        let now = self.now;
        let lease = &mut self.sessions[slot as usize].leases[lease];
        if let Some(renewal) = &mut lease.renewal
            && renewal.next() <= now
        {
            renewal.past += 1;
            if reads {
                lease.until = lease.until.max(now + renewal.time);
            }
        }
        *lease
    }

    /// Whether a session, or a leg of it, waits for units of a pool other than this one or holds some.
    fn is_read(&self, slot: u32, leased: u32) -> bool {
        let of = self.whole(slot);
        let elsewhere = |slot: u32| {
            let session = &self.sessions[slot as usize];
            let waits = matches!(session.status, Status::Queued(_));
            waits && session.members.iter().any(|&pool| pool != leased)
                || session.shares.iter().any(|share| !share.released && share.pool != leased)
        };
        elsewhere(of) || self.legs_of(of).into_iter().any(elsewhere)
    }

    /// A release found neither a hold nor a lease of the pool. Where the session's lease expired before
    /// it, that is counted.
    pub(crate) fn release_late(&mut self, slot: u32, pool: u32) {
        let expired = &mut self.sessions[slot as usize].expired;
        if let Some(at) = expired.iter().position(|&expired| expired == pool) {
            expired.remove(at);
            self.pools[pool as usize].counts.late_releases += 1;
        }
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
