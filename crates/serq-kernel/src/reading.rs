//! Runs that read what a pool holds for their session, and may fail: `run link (w) from P`.
//!
//! ```text
//!   begins ──▶ nothing of P is held or leased ─────────────────────────▶ failed, in no time
//!         └──▶ under way ──▶ over ──┬─ P's share is gone meanwhile ────▶ failed
//!                                   ├─ the driver told that it broke ──▶ failed
//!                                   ├─ drawn, where time is modelled ──▶ failed
//!                                   └──────────────────────────────────▶ read
//! ```
//!
//! What is done then is the program's: it reads `failed`.
//!
//! # Invariants
//!
//! - `failed` is of the session's latest such run.
//! - A failure that was told costs no late release: who releases what expired knows that it has.

use crate::code::Op;
use crate::expression::{Expr, Frame, PoolRef};
use crate::kernel::Kernel;
use crate::session::Status;
use crate::world::{Move, Result, World};

/// A session's latest run that reads a pool.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reading {
    pub(crate) failed: bool,
    /// Its driver told that it did.
    broke: bool,
}

impl Kernel<'_> {
    /// Such a run is about to begin. Answers whether there is something to read.
    pub(crate) fn begin_read<W: World>(
        &mut self,
        world: &mut W,
        slot: u32,
        pool: &PoolRef,
        frame: &Frame<'_>,
    ) -> Result<bool> {
        let pool = self.pool_member(world, pool, frame);
        self.check_fault()?;
        let there = self.has_something(slot, pool);
        let before = std::mem::take(&mut self.sessions[slot as usize].read);
        if !there && before.failed {
            // Tried again: it is the same failure.
            self.sessions[slot as usize].read.failed = true;
        } else if !there {
            self.fail_read(slot, pool);
        }
        Ok(there)
    }

    /// … and is over.
    pub(crate) fn end_read<W: World>(
        &mut self,
        world: &mut W,
        slot: u32,
        pool: &PoolRef,
        fails: Option<&Expr>,
        frame: &Frame<'_>,
    ) -> Result<()> {
        let pool = self.pool_member(world, pool, frame);
        let mut failed = self.sessions[slot as usize].read.broke || !self.has_something(slot, pool);
        if W::MODELS_TIME
            && let Some(fails) = fails
        {
            let chance = self.eval(world, fails, frame);
            self.check_fault()?;
            failed |= self.chance(world, chance, frame);
        }
        if failed {
            self.fail_read(slot, pool);
        }
        Ok(())
    }

    fn fail_read(&mut self, slot: u32, pool: u32) {
        let session = &mut self.sessions[slot as usize];
        session.read.failed = true;
        if let Some(at) = session.expired.iter().position(|&expired| expired == pool) {
            session.expired.remove(at);
        }
        self.pools[pool as usize].counts.reads_failed += 1;
    }

    /// Whether a release of the pool would find something.
    fn has_something(&self, slot: u32, pool: u32) -> bool {
        let mut leases = self.sessions[slot as usize].leases.iter();
        self.innermost_share(slot, pool).is_some() || leases.any(|lease| lease.share.pool == pool && !lease.released)
    }

    /// Whether a job is a run that reads a pool, so that [`Kernel::tell_read_failed`] may be told of it.
    pub fn may_fail(&self, job: u32) -> bool {
        let Some(job) = self.jobs.get(job as usize).filter(|job| job.alive) else { return false };
        let session = self.sessions.get(job.session as usize);
        let behind = session.filter(|session| matches!(session.status, Status::Serving(_)));
        behind.is_some_and(|session| matches!(self.code.ops[session.pc as usize], Op::HasRead(..)))
    }

    /// Fact: a job that may fail did.
    ///
    /// # Errors
    ///
    /// A fault of the program.
    pub fn tell_read_failed<W: World>(&mut self, world: &mut W, now: f64, job: u32) -> Result<()> {
        self.at(now);
        if self.may_fail(job) {
            let session = self.jobs[job as usize].session;
            self.sessions[session as usize].read.broke = true;
        }
        self.end_work(world, job)?;
        self.end_fact(world)
    }

    /// `fail;`
    pub(crate) fn fail_session<W: World>(&mut self, world: &mut W, slot: u32) -> Result<()> {
        self.failed += 1;
        self.tell_move(world, slot, Move::Failed);
        self.end_session(world, slot)?;
        self.retry_pools(world)
    }

    /// Sessions that ended at a `fail`.
    pub fn failed(&self) -> u64 {
        self.failed
    }
}
