//! The numbered blocks of a pool that shares prefixes, and who refers to them.
//!
//! A share of the pool has a table: the numbers of its blocks, in the order of their
//! tokens. A block whose content is known is found by it, and two tables that name it share
//! it. This module knows numbers and stretches; what a stretch stands for, and how far a
//! prompt reaches, is `prefix.rs`'s.
//!
//! ```text
//!            allocate                 close, not told
//!   vacant ───────────▶ referenced ──────────────────────────▶ vacant
//!     ▲                   │    ▲
//!     │ evict, forget     │    │ refer: a hit
//!     └───── cached ◀─────┘    │
//!              └───────────────┘
//!           close, told
//! ```
//!
//! # Invariants
//!
//! - A block is vacant, cached or referenced, and exactly one of them.
//! - A referenced block stands in as many tables as it has references.
//! - A table's blocks up to `told` are known, and no other of it. A cached block is known.
//! - Of one content there may be several blocks, computed beside each other: the one that was
//!   told first is found.
//! - Cached blocks stand in the order of their last use, a table's tail before its head;
//!   the first of them is evicted.
//! - What is known of a block goes with it: nothing is kept of the evicted.
//! - A block that was lost while tables named it is found no more, and vacant when the last lets it go.
//!
//! [`BlockPool::check`] asserts them; debug and test builds call it after facts.
//!
//! Block tables and reference counts are those of [Kwon SOSP'23 §4]; the order of the free list
//! is that of vLLM's `block_pool.py` (0.32.0).

mod contents;
mod index;

use std::cell::Cell;
use std::ops::Range;

use contents::{Contents, Place};
use index::Key;

use crate::lru::{Link, Lru};

/// Most blocks a pool that shares prefixes has, referenced and cached.
pub(crate) const BLOCKS_MAX: u32 = 1 << 22;

/// Where a block's tokens come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A conversation's own.
    Own(u64),
    /// What a trace calls its block.
    Trace(u64),
    /// The prefix of a group.
    Group(u64),
}

impl Source {
    /// Nobody but the conversation can ever find it.
    pub(crate) fn is_own(self) -> bool {
        matches!(self, Self::Own(_))
    }
}

/// Places of a prompt's blocks, one after another, whose tokens come from one source. With the
/// source and the first place, which may be that of a longer one, equal places have equal tokens,
/// from the prompt's first up to the block's last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) source: Source,
    pub(crate) places: Range<u32>,
}

impl Stretch {
    fn key(&self) -> Key {
        Key { source: self.source, start: self.places.start }
    }

    /// What its blocks hold, from the one at the place `from` on.
    pub(crate) fn contents(&self, from: u32) -> impl Iterator<Item = Content> + use<> {
        let key = self.key();
        (from.max(key.start)..self.places.end).map(move |place| Content { key, at: place - key.start })
    }
}

/// What one block holds, in any pool whose blocks are of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    key: Key,
    /// From the stretch's first place on.
    at: u32,
}

impl Content {
    /// Others than its conversation may ask for it.
    pub(crate) fn is_shared(self) -> bool {
        !self.key.source.is_own()
    }
}

/// What is known of a block.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    /// Where what it holds stands.
    place: Option<Place>,
    /// The next one that was told the same.
    twin: Option<u32>,
}

/// The blocks one share has.
#[derive(Debug, Default)]
struct Table {
    blocks: Vec<u32>,
    /// So many from the first were told what they hold.
    told: usize,
    /// The place of the first. Of a table that is told anything later it is 0.
    first: u32,
}

#[derive(Debug, Default)]
pub(crate) struct BlockPool {
    blocks: Vec<Block>,
    /// In how many tables each block stands.
    references: Vec<u32>,
    /// Each block's neighbours among the cached.
    links: Vec<Link>,
    contents: Contents,
    vacant: Vec<u32>,
    /// The cached, in the order of their last use.
    lru: Lru,
    tables: Vec<Table>,
    tables_free: Vec<u32>,
    /// What it evicts goes to a pool of smaller blocks, so many for one of its own; else 0.
    parts: u32,
    /// What each known block holds, as that pool's blocks do, where that has a name.
    in_parts: Vec<Option<Content>>,
    /// What these held is not what it was thought to be. Tables name them still.
    lost: Vec<u32>,
    /// Changes, and how many of them there were when it was last checked.
    changes: u64,
    checked: Cell<Option<u64>>,
}

impl BlockPool {
    /// One whose blocks are spilled in so many parts.
    pub(crate) fn spilling(parts: u32) -> Self {
        Self { parts: if parts > 1 { parts } else { 0 }, ..Self::default() }
    }

    /// Blocks some table names.
    pub(crate) fn referenced(&self) -> u32 {
        (self.blocks.len() - self.vacant.len()) as u32 - self.cached()
    }

    /// Blocks no table names whose content can be found.
    pub(crate) fn cached(&self) -> u32 {
        self.lru.len()
    }

    /// The blocks of a stretch that are there, from its first up to where one is not.
    pub(crate) fn found(&self, stretch: &Stretch) -> &[u32] {
        self.contents.found(stretch)
    }

    /// Those of them from a place on, whatever is before it.
    pub(crate) fn found_from(&self, stretch: &Stretch, place: u32) -> &[u32] {
        self.contents.found_from(stretch, place)
    }

    pub(crate) fn is_referenced(&self, block: u32) -> bool {
        self.references[block as usize] > 0
    }

    /// An empty table.
    pub(crate) fn open(&mut self) -> u32 {
        self.changes += 1;
        self.tables_free.pop().unwrap_or_else(|| {
            self.tables.push(Table::default());
            (self.tables.len() - 1) as u32
        })
    }

    pub(crate) fn table(&self, table: u32) -> &[u32] {
        &self.tables[table as usize].blocks
    }

    /// So many of a table's blocks, from the first, were told what they hold.
    pub(crate) fn told(&self, table: u32) -> usize {
        self.tables[table as usize].told
    }

    /// The place of a table's first block.
    pub(crate) fn first(&self, table: u32) -> u32 {
        self.tables[table as usize].first
    }

    /// A table that has no blocks begins with this place.
    pub(crate) fn begin_at(&mut self, table: u32, place: u32) {
        self.tables[table as usize].first = place;
    }

    /// A hit: the table's next blocks are those of the stretch that are there, from where the table begins. Answers
    /// how many.
    pub(crate) fn refer(&mut self, table: u32, stretch: &Stretch) -> usize {
        self.changes += 1;
        let Self { contents, references, links, lru, tables, .. } = self;
        let found = contents.found_from(stretch, tables[table as usize].first);
        // Its tail came first when it was given back.
        let tail_first = found.iter().rev().copied();
        lru.unlink_all(links, tail_first.filter(|&block| add_reference(&mut references[block as usize])));
        let table = &mut tables[table as usize];
        table.blocks.extend_from_slice(found);
        table.told = table.blocks.len();
        found.len()
    }

    /// The table's next blocks are so many that nobody has. The caller made room.
    pub(crate) fn allocate(&mut self, table: u32, count: u32) {
        self.changes += 1;
        let table = &mut self.tables[table as usize].blocks;
        let (first, count) = (table.len(), count as usize);
        // What became vacant last comes first, then numbers that nothing had yet.
        let left = self.vacant.len().saturating_sub(count);
        table.extend(self.vacant.drain(left..).rev());
        for &block in &table[first..] {
            self.references[block as usize] = 1;
        }
        let next = self.blocks.len();
        let all = next + first + count - table.len();
        table.extend(next as u32..all as u32);
        self.blocks.resize(all, Block::default());
        self.references.resize(all, 1);
        self.links.resize(all, Link::LOOSE);
    }

    /// What the table's blocks hold, now that they are computed: from the first that was not told,
    /// which is of the stretch, up to the stretch's end.
    pub(crate) fn tell(&mut self, table: u32, stretch: &Stretch) {
        let Self { blocks, contents, tables, .. } = self;
        let state = &mut tables[table as usize];
        let (from, upto) = (state.told, stretch.places.end as usize);
        if from >= upto {
            return;
        }
        self.changes += 1;
        state.told = upto;
        let told = &state.blocks[from..upto];
        let (chain, first) = (contents.chain_of(stretch), from - stretch.places.start as usize);
        let place = |nth: usize| Place { chain, at: (first + nth) as u32 };
        for (nth, &block) in told.iter().enumerate() {
            blocks[block as usize].place = Some(place(nth));
        }
        // Behind the chain's last block nothing can be there already.
        let among = contents.len(chain).saturating_sub(first).min(told.len());
        if among < told.len() {
            contents.put_behind(place(among), &told[among..]);
        }
        for nth in 0..among {
            let block = self.tables[table as usize].blocks[from + nth];
            self.put(place(nth), block);
        }
    }

    /// What the table's blocks from one on hold, part by part. They are told.
    pub(crate) fn tell_parts(&mut self, table: u32, from: usize, mut contents: impl Iterator<Item = Content>) {
        let parts = self.parts as usize;
        let state = &self.tables[table as usize];
        for &block in &state.blocks[from..state.told] {
            let end = (block as usize + 1) * parts;
            self.in_parts.resize(self.in_parts.len().max(end), None);
            self.in_parts[end - parts..end].fill_with(|| contents.next());
        }
    }

    /// Into how many blocks of the pool it spills to one of its own goes.
    pub(crate) fn parts(&self) -> u32 {
        self.parts.max(1)
    }

    /// The block that is evicted next.
    pub(crate) fn oldest(&self) -> Option<u32> {
        self.lru.first()
    }

    /// What a part of a known block holds.
    pub(crate) fn content(&self, block: u32, part: u32) -> Option<Content> {
        if self.parts > 0 {
            return *self.in_parts.get(block as usize * self.parts as usize + part as usize)?;
        }
        let place = self.blocks[block as usize].place?;
        Some(Content { key: self.contents.key(place), at: place.at })
    }

    /// If the content is there it is used now. Answers whether it is.
    pub(crate) fn touch(&mut self, content: Content) -> bool {
        let Some(block) = self.contents.block_of(content.key, content.at) else { return false };
        if !self.is_referenced(block) {
            self.changes += 1;
            self.lru.unlink(&mut self.links, block);
            self.lru.append(&mut self.links, block);
        }
        true
    }

    /// A content that is not there comes, into a block that nobody has. The caller made room. Answers the block.
    pub(crate) fn take_in(&mut self, content: Content) -> u32 {
        self.changes += 1;
        let block = self.vacant.pop().unwrap_or_else(|| {
            self.blocks.push(Block::default());
            self.references.push(0);
            self.links.push(Link::LOOSE);
            (self.blocks.len() - 1) as u32
        });
        // Where it was before, it may have been known part by part; here it is not.
        let parts = block as usize * self.parts as usize..(block as usize + 1) * self.parts as usize;
        self.in_parts.get_mut(parts).into_iter().flatten().for_each(|part| *part = None);
        let place = Place { chain: self.contents.chain_with(content.key), at: content.at };
        self.blocks[block as usize].place = Some(place);
        if (place.at as usize) < self.contents.len(place.chain) {
            self.contents.put(place, block);
        } else {
            self.contents.put_behind(place, &[block]);
        }
        self.lru.append(&mut self.links, block);
        block
    }

    /// What a block holds is not what it was thought to be: nobody finds it any more.
    pub(crate) fn lose(&mut self, block: u32) {
        if self.blocks.get(block as usize).is_none_or(|block| block.place.is_none()) {
            return;
        }
        if self.is_referenced(block) {
            self.changes += 1;
            self.untell(block);
            self.lost.push(block);
        } else {
            self.forget(block);
        }
    }

    /// The block is found there, once those that were told the same before it are gone.
    fn put(&mut self, place: Place, block: u32) {
        match self.contents.block(place) {
            Some(first) => {
                let last = self.twins(first).last().unwrap_or(first);
                self.blocks[last as usize].twin = Some(block);
            }
            None => self.contents.put(place, block),
        }
    }

    /// A block, and those that were told the same after it.
    fn twins(&self, first: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(Some(first), |&block| self.blocks[block as usize].twin)
    }

    /// Ends a table, its tail first: known blocks stay cached, but for those from `kept` on that
    /// are the conversation's own.
    pub(crate) fn close(&mut self, table: u32, kept: usize) {
        self.changes += 1;
        let Table { mut blocks, told, .. } = std::mem::take(&mut self.tables[table as usize]);
        let kept = kept.min(told);
        for &block in blocks[kept..].iter().rev() {
            if !take_reference(&mut self.references[block as usize]) {
                continue;
            }
            match self.blocks[block as usize].place {
                Some(place) if !self.contents.key(place).source.is_own() => self.lru.append(&mut self.links, block),
                _ => self.vacate(block),
            }
        }
        let tail_first = blocks[..kept].iter().rev().copied();
        let unused = tail_first.filter(|&block| take_reference(&mut self.references[block as usize]));
        if self.lost.is_empty() {
            self.lru.append_all(&mut self.links, unused);
        } else {
            for block in unused.collect::<Vec<u32>>() {
                match self.blocks[block as usize].place {
                    Some(_) => self.lru.append(&mut self.links, block),
                    None => self.vacate(block),
                }
            }
        }
        blocks.clear();
        self.tables[table as usize].blocks = blocks;
        self.tables_free.push(table);
    }

    /// Evicts so many of the cached blocks, those used longest ago; answers how many of them
    /// prompts begin with.
    pub(crate) fn evict(&mut self, count: u32) -> u32 {
        self.changes += 1;
        let mut firsts = 0;
        let from = self.vacant.len();
        self.lru.take_first(&mut self.links, count, &mut self.vacant);
        for at in from..self.vacant.len() {
            let block = self.vacant[at];
            let place = self.blocks[block as usize].place.expect("what is cached is known");
            firsts += u32::from(place.at == 0 && self.contents.key(place).start == 0);
            self.untell(block);
        }
        firsts
    }

    /// Forgets what no table names of what is found of a stretch, its tail first.
    pub(crate) fn forget_cached(&mut self, stretch: &Stretch) {
        let found = self.contents.found(stretch).to_vec();
        for block in found.into_iter().rev() {
            if !self.is_referenced(block) {
                self.forget(block);
            }
        }
    }

    /// Forgets a cached block.
    fn forget(&mut self, block: u32) {
        self.changes += 1;
        self.lru.unlink(&mut self.links, block);
        self.vacate(block);
    }

    /// A block that stands in no table, and is not cached, is vacant.
    fn vacate(&mut self, block: u32) {
        self.untell(block);
        self.lost.retain(|&lost| lost != block);
        self.vacant.push(block);
    }

    /// What is known of a block goes.
    fn untell(&mut self, block: u32) {
        let Block { place: Some(place), twin } = std::mem::take(&mut self.blocks[block as usize]) else { return };
        if !self.contents.replace(place, block, twin) {
            let first = self.contents.block(place).expect("what is known is found");
            let before = self.twins(first).find(|&of| self.blocks[of as usize].twin == Some(block));
            self.blocks[before.expect("it is a twin of the first") as usize].twin = twin;
        }
    }

    /// Blocks that the given tables name, each once.
    pub(crate) fn named_by(&self, tables: impl Iterator<Item = u32>) -> usize {
        let mut named = vec![false; self.blocks.len()];
        for table in tables {
            self.table(table).iter().for_each(|&block| named[block as usize] = true);
        }
        named.into_iter().filter(|&named| named).count()
    }

    /// Asserts the invariants. Walks everything, where anything changed since the last time.
    pub(crate) fn check(&self) {
        if self.checked.replace(Some(self.changes)) == Some(self.changes) {
            return;
        }
        let mut references = vec![0; self.blocks.len()];
        for table in &self.tables {
            for (at, &block) in table.blocks.iter().enumerate() {
                references[block as usize] += 1;
                let was_told = self.blocks[block as usize].place.is_some() || self.lost.contains(&block);
                assert_eq!(was_told, at < table.told, "a table's first blocks are told, and no other");
            }
        }
        let mut is_vacant = vec![false; self.blocks.len()];
        for &block in &self.vacant {
            assert!(!std::mem::replace(&mut is_vacant[block as usize], true), "a block is vacant once");
        }
        assert_eq!(self.references, references, "a block stands in as many tables as it has references");
        for &lost in &self.lost {
            let block = self.blocks[lost as usize];
            assert!(references[lost as usize] > 0 && block.place.is_none(), "what is lost is named, and not known");
        }
        let mut cached = 0;
        for (number, block) in self.blocks.iter().enumerate() {
            if let Some(place) = block.place {
                let first = self.contents.block(place).expect("what is known is found");
                assert!(self.twins(first).any(|block| block == number as u32), "it is the first's twin");
            }
            match (is_vacant[number], references[number] > 0) {
                (true, in_tables) => assert!(!in_tables && block.place.is_none(), "what is vacant is nobody's"),
                (false, true) => {}
                (false, false) => {
                    cached += 1;
                    assert!(block.place.is_some(), "what is cached is known");
                }
            }
        }
        for place in self.contents.check() {
            let block = self.contents.block(place).expect("the place has one");
            assert_eq!(self.blocks[block as usize].place, Some(place), "what is found is there");
        }
        let mut listed = 0;
        for at in self.lru.walk(&self.links) {
            assert!(references[at as usize] == 0 && !is_vacant[at as usize], "what is listed is cached");
            listed += 1;
        }
        assert_eq!((listed, self.cached()), (cached, cached), "what is cached is listed");
    }
}

/// Answers whether it is the first.
fn add_reference(references: &mut u32) -> bool {
    *references += 1;
    *references == 1
}

/// Answers whether it was the last.
fn take_reference(references: &mut u32) -> bool {
    *references -= 1;
    *references == 0
}

#[cfg(test)]
mod tests;
