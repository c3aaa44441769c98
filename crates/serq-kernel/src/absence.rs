//! Instances that are gone, and come back.
//!
//! ```text
//!   tell_gone ──▶ whoever has or awaits anything there ends; what was cached there is forgotten
//!             ──▶ `choose` passes it over
//!   tell_draining ──▶ `choose` passes it over where another one is there, and nothing else
//!   tell_back ──▶ it is there, with nothing in its memory
//! ```
//!
//! An instance is a step stage and the pool that is its memory. A program's time is modelled without
//! such facts: only who serves for real tells them.
//!
//! # Invariants
//!
//! - Once the fact that an instance is gone has been told, nobody has anything of its memory. Who comes there
//!   later, because a route does not choose, is among [`Kernel::sessions_at`].

use serq_ir as ir;

use crate::expression::{Families, Family};
use crate::kernel::Kernel;
use crate::session::Status;
use crate::world::{Move, Result, World};

impl Kernel<'_> {
    /// Fact: an instance is gone, and what its memory held. Whoever had or awaited anything there ends,
    /// shielded or not.
    ///
    /// # Errors
    ///
    /// A fault of the program.
    pub fn tell_gone<W: World>(&mut self, world: &mut W, now: f64, stage: u32) -> Result<()> {
        let Some(pool) = self.memory_of(stage) else { return Ok(()) };
        self.at(now);
        self.absent.retain(|(of, _)| *of != pool);
        self.absent.push((pool, true));
        for slot in self.slots_at(stage, pool) {
            if self.sessions[slot as usize].status == Status::Over {
                // A release that is on its way has outlived it.
                while let Some(lease) = self.sessions[slot as usize].leases.iter().position(|l| l.share.pool == pool) {
                    self.end_lease(world, slot, lease)?;
                }
                self.free_if_over(slot);
                continue;
            }
            if !std::mem::replace(&mut self.sessions[slot as usize].cancelled, true) {
                self.tell_move(world, slot, Move::Cancelled);
            }
            self.withdraw(world, slot);
            self.end_session(world, slot)?;
        }
        if self.stages[stage as usize].engine.running {
            self.end_step(world, stage)?;
        }
        self.forget_blocks(pool);
        self.retry_pools(world)?;
        self.end_fact(world)
    }

    /// Fact: an instance takes no new work. Those who are there go on.
    pub fn tell_draining(&mut self, now: f64, stage: u32) {
        self.at(now);
        let pool = self.memory_of(stage);
        let pool = pool.filter(|pool| self.absent.iter().all(|(of, _)| of != pool));
        self.absent.extend(pool.map(|pool| (pool, false)));
    }

    /// Fact: an instance that was gone is there again.
    pub fn tell_back(&mut self, now: f64, stage: u32) {
        self.at(now);
        let pool = self.memory_of(stage);
        self.absent.retain(|(of, _)| Some(*of) != pool);
    }

    /// Sessions that have or await anything at an instance.
    pub fn sessions_at(&self, stage: u32) -> Vec<u64> {
        let Some(pool) = self.memory_of(stage) else { return Vec::new() };
        let alive = |slot: &u32| self.sessions[*slot as usize].status != Status::Over;
        let slots = self.slots_at(stage, pool).into_iter().filter(alive);
        slots.map(|slot| self.sessions[slot as usize].serial).collect()
    }

    /// The pool that is an instance's memory.
    fn memory_of(&self, stage: u32) -> Option<u32> {
        self.step_code(stage).and_then(|step| step.memory)
    }

    /// The places of these, and of those whose leases there have outlived them. Those of legs are their session's.
    fn slots_at(&self, stage: u32, pool: u32) -> Vec<u32> {
        let is_there = |slot: &u32| {
            let session = &self.sessions[*slot as usize];
            session.leases.iter().any(|lease| lease.share.pool == pool)
                || session.status != Status::Over
                    && (session.shares.iter().any(|share| !share.released && share.pool == pool)
                        || match session.status {
                            Status::Queued(_) => session.members.contains(&pool),
                            Status::Serving(job) => self.jobs[job as usize].stages.contains(&stage),
                            _ => false,
                        })
        };
        let mut slots: Vec<u32> =
            (0..self.sessions.len() as u32).filter(is_there).map(|slot| self.whole(slot)).collect();
        slots.sort_unstable();
        slots.dedup();
        slots
    }

    /// How absent a candidate of a choice is: not, takes no new work, gone.
    pub(crate) fn absence(&self, indexed: &[Family], candidate: u32) -> u8 {
        let of = |family: &Family| {
            let pool = (candidate < family.size).then_some(family.first + candidate);
            let absent = self.absent.iter().find(|(of, _)| Some(*of) == pool);
            absent.map_or(0, |(_, gone)| 1 + u8::from(*gone))
        };
        indexed.iter().map(of).max().unwrap_or(0)
    }
}

/// Families of pools whose member a program takes by an attribute as it is.
pub(crate) fn indexed_by(program: &ir::Program, families: &Families, attribute: u32) -> Vec<Family> {
    let mut pools: Vec<u32> = Vec::new();
    let mut see = |pool: &ir::PoolRef| {
        if matches!(pool.member.as_deref(), Some(ir::Expr::Attribute(a)) if *a == attribute)
            && !pools.contains(&pool.pool)
        {
            pools.push(pool.pool);
        }
    };
    ir::each_stmt(&program.session, &mut |stmt| {
        stmt.each_expr(&mut |expr| {
            expr.each(&mut |expr| {
                if let ir::Expr::Pool(_, pool) = expr {
                    see(pool);
                }
            });
        });
        match &stmt.kind {
            ir::StmtKind::Hold(hold) => hold.grabs.iter().for_each(|grab| see(&grab.pool)),
            ir::StmtKind::Grow { pool, .. } | ir::StmtKind::Load { pool, .. } => see(pool),
            _ => {}
        }
    });
    pools.into_iter().map(|pool| families.pools[pool as usize]).collect()
}
