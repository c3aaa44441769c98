//! The numbered blocks of a pool that shares prefixes, and who refers to them.
//!
//! A share of the pool has a table: the numbers of its blocks, in the order of their
//! tokens. A block whose content is known has an [`Identity`], and is found by it; two
//! tables that name it share it. This module knows numbers and identities; what an
//! identity stands for, and how far a prompt reaches, is `prefix.rs`'s.
//!
//! ```text
//!            allocate                 close, without identity
//!   vacant ───────────▶ referenced ──────────────────────────▶ vacant
//!     ▲                   │    ▲
//!     │ evict, forget     │    │ refer: a hit
//!     └───── cached ◀─────┘    │
//!              └───────────────┘
//!           close, with identity
//! ```
//!
//! # Invariants
//!
//! - A block is vacant, cached or referenced, and exactly one of them.
//! - A referenced block stands in as many tables as it has references.
//! - Every cached block has an identity. Of one there may be several blocks, computed beside each
//!   other: the one that was told first is found.
//! - Cached blocks stand in the order of their last use, a table's tail before its head;
//!   the first of them is evicted.
//! - What is known of a block goes with it: nothing is kept of the evicted.
//!
//! [`BlockPool::check`] asserts them; debug and test builds call it after facts.
//!
//! Block tables and reference counts are those of [Kwon SOSP'23 §4]; the order of the free list
//! is that of vLLM's `block_pool.py` (0.32.0).

mod index;

use std::cell::Cell;

use index::Index;

use crate::lru::{Link, Linked, Lru};

/// Most blocks a pool that shares prefixes has, referenced and cached.
pub(crate) const BLOCKS_MAX: u32 = 1 << 22;

/// What a block holds: equal identities are equal tokens, from the prompt's first up to the
/// block's last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) source: Source,
    /// The block's place in its prompt.
    pub(crate) at: u32,
}

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

impl Identity {
    /// Nobody but the conversation can ever find it.
    pub(crate) fn is_own(self) -> bool {
        matches!(self.source, Source::Own(_))
    }
}

#[derive(Clone, Copy, Debug)]
struct Block {
    identity: Option<Identity>,
    references: u32,
    /// The next one that was told the same.
    twin: Option<u32>,
    /// Neighbours among the cached.
    link: Link,
}

const VACANT: Block = Block { identity: None, references: 0, twin: None, link: Link::LOOSE };

impl Linked for Block {
    fn link(&self) -> Link {
        self.link
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}

/// The blocks one share has.
#[derive(Debug, Default)]
struct Table {
    blocks: Vec<u32>,
    /// So many from the first were told what they hold.
    told: usize,
}

#[derive(Debug, Default)]
pub(crate) struct BlockPool {
    blocks: Vec<Block>,
    index: Index,
    vacant: Vec<u32>,
    /// The cached, in the order of their last use.
    lru: Lru,
    referenced: u32,
    cached: u32,
    tables: Vec<Table>,
    tables_free: Vec<u32>,
    /// Changes, and how many of them there were when it was last checked.
    changes: u64,
    checked: Cell<Option<u64>>,
}

impl BlockPool {
    /// Blocks some table names.
    pub(crate) fn referenced(&self) -> u32 {
        self.referenced
    }

    /// Blocks no table names whose content can be found.
    pub(crate) fn cached(&self) -> u32 {
        self.cached
    }

    /// The block with this content.
    pub(crate) fn find(&self, identity: Identity) -> Option<u32> {
        self.index.find(identity, |block| self.blocks[block as usize].identity)
    }

    pub(crate) fn is_referenced(&self, block: u32) -> bool {
        self.blocks[block as usize].references > 0
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

    /// A hit: the table's next block is one that is there.
    pub(crate) fn refer(&mut self, table: u32, block: u32) {
        self.changes += 1;
        if self.blocks[block as usize].references == 0 {
            self.unlink(block);
            self.referenced += 1;
        }
        self.blocks[block as usize].references += 1;
        let table = &mut self.tables[table as usize];
        table.blocks.push(block);
        table.told = table.blocks.len();
    }

    /// The table's next block is one nobody has. The caller made room.
    pub(crate) fn allocate(&mut self, table: u32) {
        self.changes += 1;
        let block = self.vacant.pop().unwrap_or_else(|| {
            self.blocks.push(VACANT);
            (self.blocks.len() - 1) as u32
        });
        self.blocks[block as usize].references = 1;
        self.referenced += 1;
        self.tables[table as usize].blocks.push(block);
    }

    /// The table's block at this place has an identity.
    pub(crate) fn is_known(&self, table: u32, at: usize) -> bool {
        self.blocks[self.tables[table as usize].blocks[at] as usize].identity.is_some()
    }

    /// What the table's block at a place holds, now that it is computed. Others of the same
    /// content are found before it.
    pub(crate) fn tell(&mut self, table: u32, identity: Identity) {
        self.changes += 1;
        let at = identity.at as usize;
        let state = &mut self.tables[table as usize];
        state.told = state.told.max(at + 1);
        let block = state.blocks[at];
        if self.blocks[block as usize].identity.is_some() {
            return;
        }
        self.blocks[block as usize].identity = Some(identity);
        match self.find(identity) {
            Some(first) => {
                let last = self.twins(first).last().unwrap_or(first);
                self.blocks[last as usize].twin = Some(block);
            }
            None => self.index.insert(identity, block),
        }
    }

    /// A block, and those that were told the same after it.
    fn twins(&self, first: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(Some(first), |&block| self.blocks[block as usize].twin)
    }

    /// The block's content is known no more.
    fn untell(&mut self, block: u32) {
        let Some(identity) = self.blocks[block as usize].identity.take() else { return };
        let twin = self.blocks[block as usize].twin.take();
        let first = self
            .index
            .find(identity, |of| if of == block { Some(identity) } else { self.blocks[of as usize].identity });
        let first = first.expect("what has an identity is found by it");
        if first == block {
            self.index.remove(identity, block);
            if let Some(twin) = twin {
                self.index.insert(identity, twin);
            }
        } else {
            let before = self.twins(first).find(|&of| self.blocks[of as usize].twin == Some(block));
            self.blocks[before.expect("it is a twin of the first") as usize].twin = twin;
        }
    }

    /// Ends a table, its tail first: blocks with an identity stay cached, but for those from
    /// `kept` on that are the conversation's own.
    pub(crate) fn close(&mut self, table: u32, kept: usize) {
        self.changes += 1;
        let mut blocks = std::mem::take(&mut self.tables[table as usize].blocks);
        for (at, &block) in blocks.iter().enumerate().rev() {
            let state = &mut self.blocks[block as usize];
            state.references -= 1;
            if state.references > 0 {
                continue;
            }
            self.referenced -= 1;
            match state.identity {
                Some(identity) if at < kept || !identity.is_own() => self.append(block),
                Some(_) => {
                    self.append(block);
                    self.vacate(block);
                }
                None => self.vacant.push(block),
            }
        }
        blocks.clear();
        self.tables[table as usize] = Table { blocks, told: 0 };
        self.tables_free.push(table);
    }

    /// Evicts the cached block used longest ago; answers what it held.
    pub(crate) fn evict(&mut self) -> Option<Identity> {
        let block = self.lru.first()?;
        let identity = self.blocks[block as usize].identity;
        self.vacate(block);
        identity
    }

    /// Forgets a cached block.
    pub(crate) fn vacate(&mut self, block: u32) {
        self.changes += 1;
        self.unlink(block);
        self.untell(block);
        self.blocks[block as usize] = VACANT;
        self.vacant.push(block);
    }

    fn append(&mut self, block: u32) {
        self.lru.append(&mut self.blocks, block);
        self.cached += 1;
    }

    fn unlink(&mut self, block: u32) {
        self.lru.unlink(&mut self.blocks, block);
        self.cached -= 1;
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
            table.blocks.iter().for_each(|&block| references[block as usize] += 1);
            assert!(table.told <= table.blocks.len(), "a table's told blocks are its blocks");
        }
        let mut is_vacant = vec![false; self.blocks.len()];
        for &block in &self.vacant {
            assert!(!std::mem::replace(&mut is_vacant[block as usize], true), "a block is vacant once");
        }
        let (mut referenced, mut cached, mut known) = (0, 0, 0);
        for (number, block) in self.blocks.iter().enumerate() {
            assert_eq!(block.references, references[number], "a block stands in as many tables as it has references");
            if let Some(identity) = block.identity {
                let first = self.find(identity).expect("what has an identity is found by it");
                known += usize::from(first == number as u32);
                assert!(self.twins(first).any(|block| block == number as u32), "it is the first's twin");
            }
            match (is_vacant[number], block.references > 0) {
                (true, in_tables) => assert!(!in_tables && block.identity.is_none(), "what is vacant is nobody's"),
                (false, true) => referenced += 1,
                (false, false) => {
                    cached += 1;
                    assert!(block.identity.is_some(), "what is cached can be found");
                }
            }
        }
        assert_eq!((referenced, cached), (self.referenced, self.cached), "blocks are counted");
        assert_eq!(self.index.len(), known, "what can be found is there");
        let mut listed = 0;
        for at in self.lru.walk(&self.blocks) {
            assert!(self.blocks[at as usize].references == 0 && !is_vacant[at as usize], "what is listed is cached");
            listed += 1;
        }
        assert_eq!(listed, self.cached, "what is cached is listed");
    }
}

#[cfg(test)]
mod tests;
