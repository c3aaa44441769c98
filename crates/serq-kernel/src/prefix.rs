//! Prefixes shared between sessions: which content a prompt names, what of it a pool has,
//! and how a share comes by its blocks and gives them back.
//!
//! A prompt names a content for every block it fills, the shared ones first:
//!
//! ```text
//!   block     0      1      2      3      4      5  …
//!           ├── the group's, or the trace's ──┤├── the conversation's own ──
//! ```
//!
//! It is looked up in [`Stretch`]es, each from one source: the group's part is one, the blocks
//! that have one name in the trace are one, and so is all that is the conversation's own,
//! however long it gets.
//!
//! A hold with a `cache` clause refers to the longest chain of these that the pool has,
//! whoever computed them, and allocates the rest. Shared blocks can be found from when
//! they are computed and their session goes on; own ones, which nobody else asks for, from
//! when they are given back.
//!
//! # Invariants
//!
//! - Equal sources and places are equal contents: where the group or the trace's blocks of a session
//!   change, or how far they reach, another conversation of its own begins.
//! - A pool's allocated and cached blocks are those its [`BlockPool`] counts.
//! - Making a block findable that others may ask for wakes who waits for the pool's change.

use std::iter::from_fn;

use serq_ir::BuiltIn;

use crate::block_pool::{BLOCKS_MAX, BlockPool, Source, Stretch};
use crate::cache::PIECES_MAX;
use crate::code::SpillCode;
use crate::expression::{Frame, NO_VARIABLES, NOBODY};
use crate::hold::{OpenHold, Share};
use crate::kernel::Kernel;
use crate::pool::{CACHED, ExactSum, HOLDERS, TOLERANCE, USED};
use crate::service::Begins;
use crate::world::{Action, Purpose, Result, World};

/// A share of a pool that counts units only.
pub(crate) const NO_TABLE: u32 = u32::MAX;

/// What a session's prompts are made of.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prompt {
    /// Its own content's name: no other session has it.
    conversation: u64,
    /// The group, by the bits of its number, and the tokens its sessions begin with.
    group: (u64, f64),
    /// The trace's names of the prompt's blocks, …
    ids: Vec<u64>,
    /// … the tokens of each, …
    block: f64,
    /// … and of the prompt.
    tokens: f64,
}

impl Prompt {
    /// Tokens from the first that others may have too.
    fn shared(&self) -> f64 {
        if self.ids.is_empty() { self.group.1 } else { self.tokens.min(self.ids.len() as f64 * self.block) }
    }

    /// That, told to whoever writes the prompt.
    pub(crate) fn begins(&self) -> Begins<'_> {
        Begins { group: self.group.0, tokens: self.shared(), block_ids: &self.ids, block: self.block }
    }

    /// The stretches of the prompt's blocks, of `size` tokens each: from the one in which the
    /// place `from` is, up to the place `upto`.
    fn stretches(&self, size: f64, from: u32, upto: u32) -> impl Iterator<Item = Stretch> {
        let sources = Sources { prompt: self, size, shared: self.blocks_shared(size) };
        let mut nth = sources.before(from);
        let mut start = sources.blocks_named(nth);
        from_fn(move || {
            while start < upto {
                let (source, end) = sources.nth(nth);
                let places = start..end.min(upto);
                (nth, start) = (nth + 1, end);
                // A small block of the trace may have the last token of none.
                if from.max(places.start) < places.end {
                    return Some(Stretch { source, places });
                }
            }
            None
        })
    }

    /// Its tokens go on, and have names too.
    pub(crate) fn go_on(&mut self, block: f64, names: &[u64]) {
        self.block = block;
        self.ids.extend_from_slice(names);
        self.tokens = self.tokens.max(self.ids.len() as f64 * block);
    }

    fn blocks_shared(&self, size: f64) -> u32 {
        count(self.shared() / size, |blocks| blocks * size <= self.shared())
    }
}

/// Where a prompt's blocks of `size` tokens come from, one source after the other: the trace's
/// blocks or the group, then the conversation.
struct Sources<'p> {
    prompt: &'p Prompt,
    size: f64,
    /// The first blocks, that others may have too.
    shared: u32,
}

impl Sources<'_> {
    /// A source, and the place where its stretch ends.
    fn nth(&self, nth: usize) -> (Source, u32) {
        let Prompt { conversation, group, ids, .. } = self.prompt;
        match ids.get(nth) {
            Some(&id) => (Source::Trace(id), self.blocks_named(nth + 1)),
            None if ids.is_empty() && nth == 0 => (Source::Group(group.0), self.shared),
            None => (Source::Own(*conversation), BLOCKS_MAX),
        }
    }

    /// Which source the place is in, or the one before it.
    fn before(&self, at: u32) -> usize {
        let ids = f64::from(at) * self.size / self.prompt.block;
        (ids as usize).min(self.prompt.ids.len()).saturating_sub(1)
    }

    /// Blocks that the trace's first so many name: the one that has a block's last token names
    /// all before it as well.
    fn blocks_named(&self, ids: usize) -> u32 {
        let (all, block) = (self.prompt.ids.len(), self.prompt.block);
        if ids == 0 {
            0
        } else if ids == all {
            self.shared
        } else {
            let ids = ids as f64;
            count(ids * block / self.size, |blocks| blocks * self.size / block <= ids).min(self.shared)
        }
    }
}

/// How many blocks, at most [`BLOCKS_MAX`], are within what `about` so many are within, but for
/// a rounding.
fn count(about: f64, are_within: impl Fn(f64) -> bool) -> u32 {
    let mut count = (about as u32).min(BLOCKS_MAX);
    while count > 0 && !are_within(f64::from(count)) {
        count -= 1;
    }
    while count < BLOCKS_MAX && are_within(f64::from(count) + 1.0) {
        count += 1;
    }
    count
}

impl Kernel<'_> {
    /// A session that comes to be begins a conversation.
    pub(crate) fn begin_prompt(&mut self, slot: u32) {
        let conversation = self.begin_conversation();
        let prompt = &mut self.sessions[slot as usize].prompt;
        prompt.ids.clear();
        *prompt = Prompt { conversation, ids: std::mem::take(&mut prompt.ids), ..Prompt::default() };
    }

    fn begin_conversation(&mut self) -> u64 {
        self.conversation_next += 1;
        self.conversation_next
    }

    /// `prefix (group, tokens)`.
    pub(crate) fn set_group(&mut self, slot: u32, group: f64, tokens: f64) -> Result<()> {
        if group.is_nan() || tokens.is_nan() || tokens < 0.0 {
            let message =
                format!("a prefix of group {group} and {tokens} tokens: numbers are meant, tokens at least 0");
            return Err(self.fault_at(message, slot));
        }
        // -0 is the group 0, and no tokens are no group's.
        let group = if tokens == 0.0 { (0, 0.0) } else { ((group + 0.0).to_bits(), tokens) };
        if self.sessions[slot as usize].prompt.group != group {
            let conversation = self.begin_conversation();
            let prompt = &mut self.sessions[slot as usize].prompt;
            (prompt.group, prompt.conversation) = (group, conversation);
        }
        Ok(())
    }

    /// A turn of a trace began: its prompt is `new` tokens in the trace's blocks.
    pub(crate) fn set_trace_blocks<W: World>(&mut self, world: &mut W, slot: u32, trace_session: u32, turn: u64) {
        let mut ids = std::mem::take(&mut self.trace_ids);
        ids.clear();
        let block = world.trace_blocks(trace_session, turn, &mut ids);
        let tokens = self.attribute(slot, BuiltIn::New as u32);
        let known = block > 0.0 && !ids.is_empty();
        let prompt = &self.sessions[slot as usize].prompt;
        if known && (prompt.ids != ids || prompt.tokens != tokens) {
            let conversation = self.begin_conversation();
            let prompt = &mut self.sessions[slot as usize].prompt;
            std::mem::swap(&mut prompt.ids, &mut ids);
            (prompt.block, prompt.tokens, prompt.conversation) = (block, tokens, conversation);
        }
        self.trace_ids = ids;
    }

    fn blocks(&self, pool: u32) -> Option<&BlockPool> {
        self.pools[pool as usize].addressed.as_ref()
    }

    fn blocks_mut(&mut self, pool: u32) -> &mut BlockPool {
        self.pools[pool as usize].addressed.as_mut().expect("the pool shares prefixes")
    }

    /// The longest chain of the session's prompt that the pool has from a place on, at most so many blocks: what
    /// is found of each stretch, up to the first that is not whole.
    fn chain(&self, slot: u32, pool: u32, from: u32, most: u32) -> impl Iterator<Item = &[u32]> {
        let (prompt, size) = (&self.sessions[slot as usize].prompt, self.pools[pool as usize].quantum);
        let blocks = self.blocks(pool).expect("the pool shares prefixes");
        let mut whole = true;
        prompt.stretches(size, from, from.saturating_add(most).min(BLOCKS_MAX)).map_while(move |stretch| {
            let found = whole.then(|| blocks.found_from(&stretch, from))?;
            whole = found.len() == stretch.places.len() - from.saturating_sub(stretch.places.start) as usize;
            Some(found)
        })
    }

    /// Tokens of its prompt that a session needs nothing of a store for: what its innermost hold of blocks has computed.
    /// Of other pools, none.
    fn computed_elsewhere(&self, slot: u32, pool: u32) -> f64 {
        if !self.code.pools[pool as usize].store {
            return 0.0;
        }
        let session = &self.sessions[slot as usize];
        let is_it =
            |share: &Share| share.table != NO_TABLE && !share.released && !self.code.pools[share.pool as usize].store;
        let Some(at) = session.shares.iter().rposition(is_it) else { return 0.0 };
        let hold = session.holds[self.hold_of_share(slot, at as u32)];
        self.computed_position(hold, session.shares[at], true)
    }

    /// The place of the first block of a pool that a session may need.
    fn first_needed(&self, slot: u32, pool: u32) -> u32 {
        let blocks = self.pools[pool as usize].quanta_within(self.computed_elsewhere(slot, pool));
        blocks.clamp(0.0, f64::from(BLOCKS_MAX)) as u32
    }

    /// `cachedin` of a pool that shares prefixes; of a store, of what the session has not computed.
    pub(crate) fn units_found(&self, slot: u32, pool: u32) -> f64 {
        if slot == NOBODY {
            return 0.0;
        }
        let first = self.first_needed(slot, pool);
        let found = self.chain(slot, pool, first, BLOCKS_MAX).map(<[u32]>::len).sum::<usize>() as f64;
        self.units_beyond(slot, pool, first, found)
    }

    /// Units of so many blocks from a place on, less what of the first the session has computed.
    pub(crate) fn units_beyond(&self, slot: u32, pool: u32, first: u32, blocks: f64) -> f64 {
        let state = &self.pools[pool as usize];
        let computed = self.computed_elsewhere(slot, pool) - state.units(f64::from(first));
        (state.units(blocks) - computed.max(0.0)).max(0.0)
    }

    /// What an admission says it found.
    pub(crate) fn units_taken(&self, slot: u32, pool: u32, table: u32, taken: f64) -> f64 {
        match self.blocks(pool) {
            Some(blocks) if table != NO_TABLE => self.units_beyond(slot, pool, blocks.first(table), taken),
            _ => self.pools[pool as usize].units(taken),
        }
    }

    /// Most blocks a hold of `quanta` takes that are there.
    fn most_taken(&self, pool: u32, quanta: f64, reuse: Option<f64>) -> u32 {
        let most = reuse.map_or(quanta, |reuse| quanta.min(self.pools[pool as usize].quanta_within(reuse.max(0.0))));
        most.min(f64::from(BLOCKS_MAX)) as u32
    }

    /// Blocks of a hold of `quanta` that others have allocated already.
    pub(crate) fn quanta_allocated(&self, slot: u32, pool: u32, quanta: f64, reuse: Option<f64>) -> f64 {
        let Some(blocks) = self.blocks(pool) else { return 0.0 };
        let most = self.most_taken(pool, quanta, reuse);
        self.chain(slot, pool, self.first_needed(slot, pool), most)
            .flatten()
            .filter(|&&block| blocks.is_referenced(block))
            .count() as f64
    }

    /// A hold's share of a pool that shares prefixes: what is there, `caches` saying whether
    /// it asks for that, and the rest allocated. Answers its table and the blocks that were there.
    pub(crate) fn open_table<W: World>(
        &mut self,
        world: &mut W,
        slot: u32,
        pool: u32,
        quanta: f64,
        caches: bool,
        reuse: Option<f64>,
    ) -> Result<(u32, f64)> {
        let most = if caches { self.most_taken(pool, quanta, reuse) } else { 0 };
        let first = self.first_needed(slot, pool);
        let prompt = &self.sessions[slot as usize].prompt;
        let state = &mut self.pools[pool as usize];
        let blocks = state.addressed.as_mut().expect("the pool shares prefixes");
        let table = blocks.open();
        blocks.begin_at(table, first);
        for stretch in prompt.stretches(state.quantum, first, first.saturating_add(most).min(BLOCKS_MAX)) {
            let all = stretch.places.len() - first.saturating_sub(stretch.places.start) as usize;
            if blocks.refer(table, &stretch) < all {
                break;
            }
        }
        let taken = blocks.table(table).len() as f64;
        self.count_blocks(pool);
        self.allocate_blocks(world, slot, pool, table, quanta - taken)?;
        Ok((table, taken))
    }

    /// Further blocks for a table, evicting as many as needed. They fit.
    pub(crate) fn allocate_blocks<W: World>(
        &mut self,
        world: &mut W,
        slot: u32,
        pool: u32,
        table: u32,
        quanta: f64,
    ) -> Result<()> {
        self.evict_blocks(world, pool, quanta)?;
        if !self.can_number(pool, quanta) {
            return Err(self.fault_at(self.too_many_blocks(pool), slot));
        }
        self.blocks_mut(pool).allocate(table, quanta as u32);
        self.count_blocks(pool);
        Ok(())
    }

    /// Whether there are numbers for so many blocks more.
    fn can_number(&self, pool: u32, quanta: f64) -> bool {
        let blocks = self.blocks(pool).expect("the pool shares prefixes");
        f64::from(blocks.referenced() + blocks.cached()) + quanta <= f64::from(BLOCKS_MAX)
    }

    fn too_many_blocks(&self, pool: u32) -> String {
        let name = self.pool_name(pool);
        format!("{name} has more than {BLOCKS_MAX} blocks; a larger `block` or a smaller `cap` is meant")
    }

    /// Evicts until what is allocated and cached, and `extra` blocks more, is within the cap.
    pub(crate) fn evict_blocks<W: World>(&mut self, world: &mut W, pool: u32, extra: f64) -> Result<()> {
        let state = &mut self.pools[pool as usize];
        let (size, over) = (state.quantum, state.over_cap(extra) - TOLERANCE);
        let blocks = state.addressed.as_mut().expect("the pool shares prefixes");
        // A cap without a limit is over by -inf.
        let most = (over / size).ceil().clamp(0.0, f64::from(blocks.cached())) as u32;
        if most == 0 {
            return Ok(());
        }
        if let Some(spill) = &self.code.pools[pool as usize].spill {
            self.pools[pool as usize].evicting = true;
            let done = (0..most).try_for_each(|_| {
                self.spill_oldest(world, pool, spill)?;
                self.evict_oldest(pool, 1);
                Ok(())
            });
            self.pools[pool as usize].evicting = false;
            return done;
        }
        self.evict_oldest(pool, most);
        Ok(())
    }

    /// Evicts so many of a pool's cached blocks.
    fn evict_oldest(&mut self, pool: u32, count: u32) {
        let state = &mut self.pools[pool as usize];
        let blocks = state.addressed.as_mut().expect("the pool shares prefixes");
        // The tail goes first, so with the first block nothing of a prefix is left.
        state.counts.evicted_entries += u64::from(blocks.evict(count));
        (0..count).for_each(|_| state.counts.evicted_units += state.quantum);
        self.count_blocks(pool);
    }

    /// The block that is evicted next goes to where the pool spills to, if it is to.
    fn spill_oldest<W: World>(&mut self, world: &mut W, pool: u32, spill: &SpillCode) -> Result<()> {
        self.instant_pieces += 1;
        if self.instant_pieces > PIECES_MAX {
            let message = format!("{PIECES_MAX} blocks were evicted in one instant; larger blocks are meant");
            return Err(self.fault(message, None, None));
        }
        let mut variables = *NO_VARIABLES;
        variables[serq_ir::Context::Size as usize] = self.pools[pool as usize].quantum;
        let frame = Frame::machine(Purpose::Pool, pool, &variables);
        if self.eval(world, &spill.when, &frame) == 0.0 {
            return self.check_fault();
        }
        let work = self.eval(world, &spill.work, &frame);
        self.check_fault()?;
        if self.put_oldest(world, pool, spill.pool)? {
            self.pools[pool as usize].counts.spills += 1;
            self.add_spill_job(world, spill.stage, work)?;
        }
        Ok(())
    }

    /// What the block that is evicted next holds is put into another pool. What is there is used now, what
    /// has no room beside what is held is lost, and so is what comes round to a pool that makes room itself.
    /// Answers whether anything was put.
    fn put_oldest<W: World>(&mut self, world: &mut W, pool: u32, into: u32) -> Result<bool> {
        if self.pools[into as usize].evicting {
            return Ok(false);
        }
        let blocks = self.blocks_mut(pool);
        let (block, parts) = (blocks.oldest().expect("there is a cached block"), blocks.parts());
        let mut any = false;
        for part in 0..parts {
            let Some(content) = self.blocks_mut(pool).content(block, part) else { continue };
            if self.blocks_mut(into).touch(content) {
                continue;
            }
            self.evict_blocks(world, into, 1.0)?;
            if self.pools[into as usize].over_cap(1.0) > TOLERANCE {
                continue;
            }
            if !self.can_number(into, 1.0) {
                return Err(self.fault(self.too_many_blocks(into), None, None));
            }
            let to = self.blocks_mut(into).take_in(content);
            self.count_blocks(into);
            world.act(Action::Spilled { pool, block, part, into, to });
            any = true;
            if content.is_shared() {
                self.tell_watchers(into);
            }
        }
        Ok(any)
    }

    /// Fact: a block of a pool does not hold what it was thought to hold. Nobody finds it any more; who has
    /// it knows.
    pub fn tell_spoiled(&mut self, now: f64, pool: u32, block: u32) {
        self.at(now);
        if self.blocks(pool).is_some() {
            self.blocks_mut(pool).lose(block);
            self.count_blocks(pool);
        }
    }

    /// Nothing is cached in a pool any more. It counts as no eviction.
    pub(crate) fn forget_blocks(&mut self, pool: u32) {
        if let Some(blocks) = &mut self.pools[pool as usize].addressed {
            let cached = blocks.cached();
            blocks.evict(cached);
            self.count_blocks(pool);
        }
    }

    /// The pool's account follows its blocks.
    fn count_blocks(&mut self, pool: u32) {
        let blocks = self.blocks_mut(pool);
        let (used, cached) = (f64::from(blocks.referenced()), f64::from(blocks.cached()));
        let state = &mut self.pools[pool as usize];
        let changes =
            if state.used.value() == used { 0 } else { USED } | if state.cached.value() == cached { 0 } else { CACHED };
        (state.used, state.cached) = (ExactSum::of(used), ExactSum::of(cached));
        if changes != 0 {
            self.touch_pool(pool, changes);
        }
    }

    /// Gives a table back, the first `kept` blocks of it computed and to be kept.
    pub(crate) fn close_table(&mut self, slot: u32, share: Share, kept: f64) {
        let mut kept = kept as usize;
        if self.code.pools[share.pool as usize].store {
            // Nobody computes there: what it has was put.
            kept = kept.min(self.blocks_mut(share.pool).told(share.table));
        }
        self.tell(slot, share, kept);
        self.blocks_mut(share.pool).close(share.table, kept);
        self.pools[share.pool as usize].holders -= u32::from(share.counted);
        self.count_blocks(share.pool);
        self.touch_pool(share.pool, USED | HOLDERS);
    }

    /// Makes a share's first blocks findable.
    fn tell(&mut self, slot: u32, share: Share, upto: usize) {
        let prompt = &self.sessions[slot as usize].prompt;
        let spill = self.code.pools[share.pool as usize].spill.as_ref();
        let size_there = spill.map(|spill| self.pools[spill.pool as usize].quantum);
        let state = &mut self.pools[share.pool as usize];
        let (size, blocks) = (state.quantum, state.addressed.as_mut().expect("the pool shares prefixes"));
        let upto = upto.min(blocks.table(share.table).len());
        let from = blocks.told(share.table);
        let mut shared = false;
        for stretch in prompt.stretches(size, from as u32, upto as u32) {
            blocks.tell(share.table, &stretch);
            shared |= !stretch.source.is_own();
        }
        let parts = blocks.parts();
        if let Some(size) = size_there.filter(|_| parts > 1 && from < upto) {
            let (first, end) = (from as u32 * parts, upto as u32 * parts);
            let stretches = prompt.stretches(size, first, end);
            blocks.tell_parts(share.table, from, stretches.flat_map(|stretch| stretch.contents(first)));
        }
        self.count_blocks(share.pool);
        if shared {
            self.stirred = true;
            self.tell_watchers(share.pool);
        }
    }

    /// What a share has computed of the shared prefix can be found from now on; `ended`: its
    /// scope is over.
    pub(crate) fn publish<W: World>(
        &mut self,
        world: &mut W,
        slot: u32,
        hold: OpenHold,
        share: Share,
        ended: bool,
    ) -> Result<()> {
        let (Some(blocks), Some(cache)) = (self.blocks(share.pool), &self.hold_code(hold.pc).cache) else {
            return Ok(());
        };
        if self.code.pools[share.pool as usize].store {
            return Ok(());
        }
        let state = &self.pools[share.pool as usize];
        let shared = self.sessions[slot as usize].prompt.shared();
        let reach = state.quanta_within(shared.min(self.computed_position(hold, share, !ended)));
        if reach as usize <= blocks.told(share.table) {
            return Ok(());
        }
        let bound = self.eval(world, cache, &self.frame(slot));
        self.check_fault()?;
        let upto = reach.min(self.pools[share.pool as usize].quanta_within(bound)) as usize;
        self.tell(slot, share, upto);
        Ok(())
    }

    /// The same of a share that is about to grow, by a job or a statement.
    pub(crate) fn publish_growing<W: World>(
        &mut self,
        world: &mut W,
        slot: u32,
        share: u32,
        job: Option<u32>,
    ) -> Result<()> {
        let mut hold = self.sessions[slot as usize].holds[self.hold_of_share(slot, share)];
        let mut held = self.sessions[slot as usize].shares[share as usize];
        if let Some(job) = job {
            let job = &self.jobs[job as usize];
            held.slack = job.slack;
            hold.moved |= job.moved;
        }
        self.publish(world, slot, hold, held, false)
    }

    /// The same of what a job is scheduled to compute, where the pool has it found from then on.
    pub(crate) fn publish_scheduled<W: World>(&mut self, world: &mut W, job: u32) -> Result<()> {
        let state = &self.jobs[job as usize];
        let (slot, planned, slack) = (state.session, state.planned, state.slack);
        let Some(share) = state.growing else { return Ok(()) };
        let mut held = self.sessions[slot as usize].shares[share as usize];
        if !self.code.pools[held.pool as usize].found_scheduled {
            return Ok(());
        }
        let mut hold = self.sessions[slot as usize].holds[self.hold_of_share(slot, share)];
        held.slack = slack - planned;
        hold.moved = true;
        self.publish(world, slot, hold, held, false)
    }

    /// The same of all the session's open holds, when it goes on to another statement.
    pub(crate) fn publish_all<W: World>(&mut self, world: &mut W, slot: u32) -> Result<()> {
        if !self.code.shares_prefixes {
            return Ok(());
        }
        for at in 0..self.sessions[slot as usize].shares.len() as u32 {
            let share = self.sessions[slot as usize].shares[at as usize];
            if share.table != NO_TABLE && !share.released {
                let hold = self.sessions[slot as usize].holds[self.hold_of_share(slot, at)];
                self.publish(world, slot, hold, share, false)?;
            }
        }
        Ok(())
    }

    /// `drop P`: the session's own blocks that nobody holds are forgotten.
    pub(crate) fn drop_blocks(&mut self, slot: u32, pool: u32) {
        let prompt = &self.sessions[slot as usize].prompt;
        let state = &mut self.pools[pool as usize];
        let blocks = state.addressed.as_mut().expect("the pool shares prefixes");
        for stretch in prompt.stretches(state.quantum, 0, BLOCKS_MAX) {
            if stretch.source.is_own() {
                blocks.forget_cached(&stretch);
            } else if blocks.found(&stretch).len() < stretch.places.len() {
                break;
            }
        }
        self.count_blocks(pool);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the block at a place holds, place by place.
    fn source(prompt: &Prompt, at: u32, size: f64) -> Source {
        let end = (f64::from(at) + 1.0) * size;
        if end > prompt.shared() {
            Source::Own(prompt.conversation)
        } else if prompt.ids.is_empty() {
            Source::Group(prompt.group.0)
        } else {
            let id = ((end / prompt.block).ceil() as usize).clamp(1, prompt.ids.len()) - 1;
            Source::Trace(prompt.ids[id])
        }
    }

    #[test]
    fn stretches_are_what_the_places_are_one_by_one() {
        let ids = |count: u64| Prompt { conversation: 9, ids: (0..count).collect(), ..Prompt::default() };
        let mut prompts = vec![ids(0)];
        for tokens in [3.0, 4.0, 0.7, 1e9, f64::INFINITY] {
            prompts.push(Prompt { group: (5, tokens), ..ids(0) });
        }
        for (count, block, tokens) in [(1, 512.0, 100.0), (5, 4.0, 19.0), (5, 4.0, 99.0), (7, 0.1, 0.65), (3, 0.3, 0.9)]
        {
            prompts.push(Prompt { block, tokens, ..ids(count) });
        }
        for (prompt, size) in
            prompts.iter().flat_map(|prompt| [1.0, 4.0, 3.0, 0.1, 0.7, 12.0].map(|size| (prompt, size)))
        {
            let all: Vec<Source> = (0..60).map(|at| source(prompt, at, size)).collect();
            for (from, upto) in (0..=60).flat_map(|from| [0, 1, from, from + 1, 60].map(|upto| (from, upto))) {
                let stretches: Vec<Stretch> = prompt.stretches(size, from, upto.min(60)).collect();
                let mut at = from;
                for Stretch { source, places } in &stretches {
                    assert_eq!(places.start, all.iter().position(|s| s == source).unwrap() as u32, "begins with it");
                    assert!(places.contains(&at), "{prompt:?} in {size}, from {from}: {stretches:?}");
                    assert!(
                        places.clone().all(|at| all[at as usize] == *source),
                        "{prompt:?} in {size}: {stretches:?}"
                    );
                    at = places.end;
                }
                assert_eq!(at, upto.min(60).max(from), "{prompt:?} in {size}, from {from}: {stretches:?}");
            }
        }
    }
}
