//! What a pool's blocks hold, by whom it can be asked for.
//!
//! A prompt is looked up stretch by stretch: a [`Chain`] has the blocks of one, so that one
//! search finds them all, and how far they reach is known without looking at any.
//!
//! ```text
//!   prompt   ├─ group 7 ─┤├─ conversation 12 ─┤
//!   places     0   1   2    3   4   5   6   7
//!   chains   [ 4   9   2 ][ 8   3   –   6 ]
//!              reach 3      reach 2
//! ```
//!
//! # Invariants
//!
//! - There is one chain of a source and a first place, and the index finds it.
//! - A chain's last place has a block: what is gone from the end leaves no trace, and a chain
//!   without blocks is no more.
//! - `reach` places from the first on have a block, and the next one has none.

use smallvec::SmallVec;

use super::Stretch;
use super::index::{Index, Key};

/// No block.
const NONE: u32 = u32::MAX;

/// Where a content stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) chain: u32,
    /// From the chain's first on.
    pub(super) at: u32,
}

#[derive(Debug)]
struct Chain {
    key: Key,
    /// The block that is found at each place, or [`NONE`]. Where a trace names blocks, they are few.
    blocks: SmallVec<[u32; 4]>,
    reach: u32,
}

impl Chain {
    /// More blocks are there.
    fn reach_on(&mut self) {
        let beyond = &self.blocks[self.reach as usize..];
        self.reach += beyond.iter().take_while(|&&block| block != NONE).count() as u32;
    }
}

#[derive(Debug, Default)]
pub(super) struct Contents {
    chains: Vec<Chain>,
    /// Those that are no more.
    free: Vec<u32>,
    index: Index,
}

impl Contents {
    fn chain(&self, key: Key) -> Option<u32> {
        self.index.find(key, |chain| self.chains[chain as usize].key)
    }

    /// The blocks of a stretch that are there, from its first up to where one is not.
    pub(super) fn found(&self, stretch: &Stretch) -> &[u32] {
        let Some(chain) = self.chain(stretch.key()) else { return &[] };
        let chain = &self.chains[chain as usize];
        &chain.blocks[..stretch.places.len().min(chain.reach as usize)]
    }

    /// Those of them from a place on, whatever is before it, up to where one is not.
    pub(super) fn found_from(&self, stretch: &Stretch, place: u32) -> &[u32] {
        let from = place.saturating_sub(stretch.places.start) as usize;
        if from == 0 {
            return self.found(stretch);
        }
        let Some(chain) = self.chain(stretch.key()) else { return &[] };
        let blocks = &self.chains[chain as usize].blocks;
        let behind = &blocks[from.min(blocks.len())..stretch.places.len().clamp(from.min(blocks.len()), blocks.len())];
        &behind[..behind.iter().position(|&block| block == NONE).unwrap_or(behind.len())]
    }

    /// The stretch's chain, for blocks to be put into.
    pub(super) fn chain_of(&mut self, stretch: &Stretch) -> u32 {
        self.chain_with(stretch.key())
    }

    /// The same of what begins so.
    pub(super) fn chain_with(&mut self, key: Key) -> u32 {
        self.chain(key).unwrap_or_else(|| self.begin(key))
    }

    /// Places of a chain up to its last block.
    pub(super) fn len(&self, chain: u32) -> usize {
        self.chains[chain as usize].blocks.len()
    }

    fn begin(&mut self, key: Key) -> u32 {
        let empty = Chain { key, blocks: SmallVec::new(), reach: 0 };
        let chain = match self.free.pop() {
            Some(chain) => {
                self.chains[chain as usize] = empty;
                chain
            }
            None => {
                self.chains.push(empty);
                (self.chains.len() - 1) as u32
            }
        };
        self.index.insert(key, chain);
        chain
    }

    /// What the place's stretch begins with.
    pub(super) fn key(&self, place: Place) -> Key {
        self.chains[place.chain as usize].key
    }

    /// The block that holds what stands so far behind a stretch's first place.
    pub(super) fn block_of(&self, key: Key, at: u32) -> Option<u32> {
        self.block(Place { chain: self.chain(key)?, at })
    }

    /// The block that is found there.
    pub(super) fn block(&self, place: Place) -> Option<u32> {
        let block = self.chains[place.chain as usize].blocks.get(place.at as usize);
        block.copied().filter(|&block| block != NONE)
    }

    /// The block is found from now on, at a place where another was or will be behind it.
    pub(super) fn put(&mut self, place: Place, block: u32) {
        let chain = &mut self.chains[place.chain as usize];
        chain.blocks[place.at as usize] = block;
        chain.reach_on();
    }

    /// The blocks are found from now on, from a place on that is behind the chain's last block.
    pub(super) fn put_behind(&mut self, place: Place, blocks: &[u32]) {
        let chain = &mut self.chains[place.chain as usize];
        chain.blocks.resize(place.at as usize, NONE);
        chain.blocks.extend(blocks.iter().copied());
        chain.reach_on();
    }

    /// Where the block is the one that is found, another is found in its place, or none. Answers
    /// whether it was.
    pub(super) fn replace(&mut self, place: Place, block: u32, by: Option<u32>) -> bool {
        let chain = &mut self.chains[place.chain as usize];
        let (blocks, at) = (&mut chain.blocks[..], place.at as usize);
        if blocks[at] != block {
            return false;
        }
        blocks[at] = by.unwrap_or(NONE);
        if by.is_none() {
            chain.reach = chain.reach.min(place.at);
            if at + 1 == blocks.len() {
                let left = blocks.iter().rposition(|&block| block != NONE).map_or(0, |last| last + 1);
                chain.blocks.truncate(left);
                self.end_if_empty(place.chain);
            }
        }
        true
    }

    fn end_if_empty(&mut self, number: u32) {
        let chain = &mut self.chains[number as usize];
        if chain.blocks.is_empty() {
            // What it had on the heap goes too.
            chain.blocks = SmallVec::new();
            self.index.remove(chain.key, number);
            self.free.push(number);
        }
    }

    /// Every place that has a block, after the invariants were asserted.
    pub(super) fn check(&self) -> impl Iterator<Item = Place> {
        assert_eq!(self.index.len() + self.free.len(), self.chains.len(), "a chain is found or is no more");
        let numbered = self.chains.iter().zip(0..);
        numbered.flat_map(|(chain, number)| {
            let reach = chain.blocks.iter().take_while(|&&block| block != NONE).count();
            assert_eq!(chain.reach as usize, reach, "a chain's reach is known");
            assert_ne!(chain.blocks.last(), Some(&NONE), "a chain ends with a block");
            if !chain.blocks.is_empty() {
                assert_eq!(self.chain(chain.key), Some(number), "a chain is found by its key");
            }
            let there = chain.blocks.iter().zip(0..).filter(|(block, _)| **block != NONE);
            there.map(move |(_, at)| Place { chain: number, at })
        })
    }
}
