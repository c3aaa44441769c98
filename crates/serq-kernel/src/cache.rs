//! Cached prefixes: what a hold leaves behind, and what goes when room is needed.
//!
//! This is the pool that counts; one that shares prefixes keeps blocks instead of entries
//! ([`crate::prefix`]).
//!
//! A pool's entries are on one list in order of release, so the least recently
//! released is its head and eviction by `lru` takes from there in constant time. A
//! session has at most one live entry a pool. An entry without an owner (the rest of
//! a consumed one, or its session is over) can't be used but still occupies room.
//!
//! With `block`, eviction takes an entry's tail block by block, only as many as
//! needed; without, whole entries.

use crate::expression::{Frame, NO_VARIABLES, NOBODY};
use crate::kernel::{Kernel, Supply};
use crate::lru::{Link, Linked, Lru};
use crate::pool::{CACHED, TOLERANCE, USED};
use crate::session::{Status, compare};
use crate::stage::Job;
use crate::world::{Purpose, Result, World};

/// Pieces evicted in one instant, at most.
pub(crate) const PIECES_MAX: u32 = 1_000_000;

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) owner: u32,
    pub(crate) quanta: f64,
    /// When its hold gave it back.
    released: f64,
    /// Neighbours in its pool.
    link: Link,
    /// The owner's attributes at that release, where the pool's keys read any.
    snapshot: Option<Box<[f64]>>,
}

impl Linked for Entry {
    fn link(&self) -> Link {
        self.link
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}

/// All pools' entries.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    slab: Vec<Entry>,
    free: Vec<u32>,
}

impl Entries {
    pub(crate) fn quanta(&self, entry: u32) -> f64 {
        self.slab[entry as usize].quanta
    }

    /// A new entry, the last of its pool's to be evicted.
    fn append(&mut self, lru: &mut Lru, entry: Entry) -> u32 {
        let at = if let Some(at) = self.free.pop() {
            self.slab[at as usize] = entry;
            at
        } else {
            self.slab.push(entry);
            (self.slab.len() - 1) as u32
        };
        lru.append(&mut self.slab, at);
        at
    }

    /// Σ of a pool's entries, walked; for the invariant's check.
    pub(crate) fn total(&self, lru: &Lru) -> f64 {
        let mut sum = crate::pool::ExactSum::default();
        lru.walk(&self.slab).for_each(|at| sum.add(self.slab[at as usize].quanta));
        sum.value()
    }
}

impl Supply<'_> {
    /// Takes the block a resident's next tokens need, where that is all there is to do: it is
    /// free, or the last of the entry that was released first, and nobody watches. What a growth
    /// is most times. Answers whether it did.
    #[inline(always)]
    pub(crate) fn take_block(&mut self, job: &mut Job, tokens: f64) -> bool {
        let Some(share) = job.growing else { return false };
        let share = &mut self.sessions[job.session as usize].shares[share as usize];
        let pool = share.pool;
        let state = &mut self.pools[pool as usize];
        let short = tokens - job.slack;
        let one = state.plain_blocks && short > TOLERANCE && short <= state.quantum;
        if !one || !state.fits(1.0) || !state.watchers.is_empty() {
            return false;
        }
        let over = state.over_cap(1.0);
        let mut changes = USED;
        if over > TOLERANCE {
            let Some(entry) = state.lru.first() else { return false };
            let entry = &mut self.entries.slab[entry as usize];
            if over - state.quantum > TOLERANCE || entry.quanta <= 1.0 || *self.instant_pieces >= PIECES_MAX {
                return false;
            }
            entry.quanta -= 1.0;
            state.cached.add_whole(-1.0);
            state.counts.evicted_units += state.quantum;
            *self.instant_pieces += 1;
            changes |= CACHED;
        }
        state.used.add_whole(1.0);
        share.quanta += 1.0;
        job.slack += state.quantum;
        if job.memory_pool == pool {
            job.memory += 1.0;
        }
        self.touch_pool(pool, changes);
        true
    }
}

impl Kernel<'_> {
    /// The session's own entry in a pool.
    pub(crate) fn own_entry(&self, session: u32, pool: u32) -> Option<u32> {
        if session == NOBODY {
            return None;
        }
        let entries = &self.sessions[self.whole(session) as usize].entries;
        entries.iter().find(|(p, _)| *p == pool).map(|(_, entry)| *entry)
    }

    /// Consumes the session's own entry for a hold that caches: all of it, or at most the
    /// whole blocks of `reuse` units. What is left of it loses its owner. Answers the quanta taken.
    pub(crate) fn consume(&mut self, session: u32, pool: u32, reuse: Option<f64>) -> f64 {
        let Some(entry) = self.own_entry(session, pool) else { return 0.0 };
        let state = &self.pools[pool as usize];
        let whole = self.entries.quanta(entry);
        // The entry need not be whole blocks: what is spilled is not rounded.
        let take = reuse.map_or(whole, |reuse| whole.min(state.quanta_within(reuse.max(0.0))));
        self.forget_entry(session, pool);
        if take >= whole {
            self.remove_entry(pool, entry);
        } else if take > 0.0 {
            self.entries.slab[entry as usize].quanta -= take;
            self.pools[pool as usize].cached.subtract(take);
            self.touch_pool(pool, CACHED);
        }
        take
    }

    /// `drop P`.
    pub(crate) fn drop_own_entry(&mut self, session: u32, pool: u32) {
        if self.pools[pool as usize].addressed.is_some() {
            return self.drop_blocks(session, pool);
        }
        if let Some(entry) = self.own_entry(session, pool) {
            self.forget_entry(session, pool);
            self.remove_entry(pool, entry);
        }
    }

    /// Makes this many quanta the session's entry, in the place of an older one.
    pub(crate) fn keep(&mut self, session: u32, pool: u32, quanta: f64) {
        self.drop_own_entry(session, pool);
        let snapshot =
            self.code.pools[pool as usize].snapshots.then(|| self.attributes_of(session).to_vec().into_boxed_slice());
        let session = self.whole(session);
        let entry = Entry { owner: session, quanta, released: self.now, link: Link::LOOSE, snapshot };
        let state = &mut self.pools[pool as usize];
        let at = self.entries.append(&mut state.lru, entry);
        state.cached.add(quanta);
        self.sessions[session as usize].entries.push((pool, at));
        self.touch_pool(pool, CACHED);
    }

    /// The session is over: nobody can use its entries any more.
    pub(crate) fn orphan_entries(&mut self, session: u32) {
        let mut entries = std::mem::take(&mut self.sessions[session as usize].entries);
        for (_, entry) in entries.drain(..) {
            self.entries.slab[entry as usize].owner = NOBODY;
        }
        self.sessions[session as usize].entries = entries;
    }

    fn forget_entry(&mut self, session: u32, pool: u32) {
        let session = self.whole(session);
        let entries = &mut self.sessions[session as usize].entries;
        if let Some(at) = entries.iter().position(|(p, _)| *p == pool) {
            let (_, entry) = entries.swap_remove(at);
            self.entries.slab[entry as usize].owner = NOBODY;
        }
    }

    fn remove_entry(&mut self, pool: u32, entry: u32) {
        let state = &mut self.pools[pool as usize];
        state.cached.subtract(self.entries.quanta(entry));
        state.lru.unlink(&mut self.entries.slab, entry);
        self.entries.slab[entry as usize].snapshot = None;
        self.entries.free.push(entry);
        self.touch_pool(pool, CACHED);
    }

    /// Evicts until what is allocated and cached, and `extra` quanta more, is within the cap.
    #[inline]
    pub(crate) fn evict<W: World>(&mut self, world: &mut W, pool: u32, extra: f64) -> Result<()> {
        let over = self.pools[pool as usize].over_cap(extra);
        if over <= TOLERANCE {
            return Ok(());
        }
        if self.pools[pool as usize].addressed.is_some() {
            return self.evict_blocks(world, pool, extra);
        }
        self.pools[pool as usize].evicting = true;
        let done = self.evict_entries(world, pool, extra, over);
        self.pools[pool as usize].evicting = false;
        done
    }

    /// … as long as there are entries; so many units are over the cap.
    fn evict_entries<W: World>(&mut self, world: &mut W, pool: u32, extra: f64, mut over: f64) -> Result<()> {
        let code = &self.code.pools[pool as usize];
        while over > TOLERANCE {
            let entry = match &code.evict {
                None => self.pools[pool as usize].lru.first(),
                Some(keys) => self.least_entry(world, pool, keys)?,
            };
            let Some(entry) = entry else { break };
            let whole = self.entries.quanta(entry);
            let state = &self.pools[pool as usize];
            let piece = if !state.blocks {
                whole
            } else if code.spill.is_some() || code.evict.is_some() {
                // Keys and spills look at every block by itself.
                1.0
            } else {
                state.quanta(over - TOLERANCE).max(1.0)
            }
            .min(whole);
            self.evict_piece(world, pool, entry, piece)?;
            over = self.pools[pool as usize].over_cap(extra);
        }
        Ok(())
    }

    fn evict_piece<W: World>(&mut self, world: &mut W, pool: u32, entry: u32, piece: f64) -> Result<()> {
        self.instant_pieces += 1;
        if self.instant_pieces > PIECES_MAX {
            let message =
                format!("{PIECES_MAX} pieces were evicted in one instant, block by block; larger blocks are meant");
            return Err(self.fault(message, None, None));
        }
        let owner = self.entries.slab[entry as usize].owner;
        let mut spilled = None;
        if let Some(spill) = &self.code.pools[pool as usize].spill {
            let size = self.pools[pool as usize].units(piece);
            let when = self.eval_of_entry(world, pool, entry, size, &spill.when);
            if when != 0.0 {
                let work = self.eval_of_entry(world, pool, entry, size, &spill.work);
                spilled = Some((spill, size, work));
            }
            self.check_fault()?;
        }
        let state = &mut self.pools[pool as usize];
        state.counts.evicted_units += state.units(piece);
        if piece >= self.entries.quanta(entry) {
            state.counts.evicted_entries += 1;
            if owner != NOBODY {
                self.forget_entry(owner, pool);
            }
            self.remove_entry(pool, entry);
        } else {
            state.cached.subtract(piece);
            self.entries.slab[entry as usize].quanta -= piece;
            self.touch_pool(pool, CACHED);
        }
        if let Some((spill, size, work)) = spilled {
            self.pools[pool as usize].counts.spills += 1;
            self.spill_into(world, owner, spill.pool, size)?;
            self.add_spill_job(world, spill.stage, work)?;
        }
        Ok(())
    }

    /// An evicted piece arrives in the pool it spills to: room first, and a piece that
    /// can't fit is lost. So is one that comes round, in a circle of spills, to a pool that
    /// is making room itself.
    fn spill_into<W: World>(&mut self, world: &mut W, owner: u32, pool: u32, units: f64) -> Result<()> {
        let quanta = units / self.pools[pool as usize].quantum;
        if self.pools[pool as usize].evicting {
            return Ok(());
        }
        self.evict(world, pool, quanta)?;
        let state = &self.pools[pool as usize];
        if state.units(state.used.value() + state.cached.value() + quanta) > state.cap + TOLERANCE {
            return Ok(());
        }
        if owner != NOBODY {
            let own = self.own_entry(owner, pool).map_or(0.0, |entry| self.entries.quanta(entry));
            self.keep(owner, pool, own + quanta);
        } else {
            let entry = Entry { owner, quanta, released: self.now, link: Link::LOOSE, snapshot: None };
            let state = &mut self.pools[pool as usize];
            self.entries.append(&mut state.lru, entry);
            state.cached.add(quanta);
            self.touch_pool(pool, CACHED);
        }
        Ok(())
    }

    fn least_entry<W: World>(
        &mut self,
        world: &mut W,
        pool: u32,
        keys: &[crate::expression::Expr],
    ) -> Result<Option<u32>> {
        let mut best = std::mem::take(&mut self.keys_best);
        let mut tried = std::mem::take(&mut self.keys_tried);
        let mut least = None;
        // In order of release, so that a tie goes to the one released first.
        let mut next = self.pools[pool as usize].lru.first();
        while let Some(at) = next {
            tried.clear();
            let size = self.pools[pool as usize].units(self.entries.quanta(at));
            for key in keys {
                let value = self.eval_of_entry(world, pool, at, size, key);
                tried.push(value);
            }
            if least.is_none() || compare(&tried, &best).is_lt() {
                least = Some(at);
                std::mem::swap(&mut best, &mut tried);
            }
            next = self.entries.slab[at as usize].link.next();
        }
        self.keys_best = best;
        self.keys_tried = tried;
        self.check_fault()?;
        Ok(least)
    }

    fn eval_of_entry<W: World>(
        &self,
        world: &mut W,
        pool: u32,
        entry: u32,
        size: f64,
        expr: &crate::expression::Expr,
    ) -> f64 {
        use serq_ir::Context;
        let entry = &self.entries.slab[entry as usize];
        let mut variables = *NO_VARIABLES;
        variables[Context::Size as usize] = size;
        variables[Context::Age as usize] = self.now - entry.released;
        variables[Context::Last as usize] = entry.released;
        let waits = entry.owner != NOBODY && matches!(self.sessions[entry.owner as usize].status, Status::Queued(_));
        variables[Context::Waiting as usize] = if waits { 1.0 } else { 0.0 };
        let mut frame = self.frame_for(entry.owner, Frame::machine(Purpose::Pool, pool, &variables));
        if entry.owner == NOBODY {
            frame.snapshot = entry.snapshot.as_deref();
        }
        self.eval(world, expr, &frame)
    }
}
