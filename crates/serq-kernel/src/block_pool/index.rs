//! Where a content is: a hash table from identities to numbers of blocks.
//!
//! It keeps numbers only; a block's identity is asked of whoever has it. Open addressing,
//! linear probing, a removal closes the gap behind it. The hash is fixed, and nothing ever
//! goes through the table in its order, so that no run depends on it.

use super::{Identity, Source};

/// No block.
const EMPTY: u32 = u32::MAX;

#[derive(Debug, Default)]
pub(super) struct Index {
    /// A power of two of them, at most half of them taken; or none.
    slots: Vec<u32>,
    taken: usize,
}

fn hash(identity: Identity) -> u64 {
    let (kind, source) = match identity.source {
        Source::Own(conversation) => (0x9e37_79b9_7f4a_7c15, conversation),
        Source::Trace(id) => (0xc2b2_ae3d_27d4_eb4f, id),
        Source::Group(group) => (0x1656_67b1_9e37_79f9, group),
    };
    // The finisher of splitmix64 [Steele OOPSLA'14], on each half.
    let mix = |x: u64| {
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    mix(mix(source.wrapping_add(kind)).wrapping_add(u64::from(identity.at)))
}

impl Index {
    pub(super) fn len(&self) -> usize {
        self.taken
    }

    fn home(&self, identity: Identity) -> usize {
        hash(identity) as usize & (self.slots.len() - 1)
    }

    fn slot(&self, identity: Identity, of: impl Fn(u32) -> Option<Identity>) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let mut at = self.home(identity);
        while self.slots[at] != EMPTY {
            if of(self.slots[at]) == Some(identity) {
                return Some(at);
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
        None
    }

    /// The block with this identity. `of` says a block's identity.
    pub(super) fn find(&self, identity: Identity, of: impl Fn(u32) -> Option<Identity>) -> Option<u32> {
        self.slot(identity, of).map(|at| self.slots[at])
    }

    /// Takes in a block whose identity is in no other.
    pub(super) fn insert(&mut self, identity: Identity, block: u32, of: impl Fn(u32) -> Option<Identity>) {
        if 2 * (self.taken + 1) > self.slots.len() {
            let larger = vec![EMPTY; (2 * self.slots.len()).max(16)];
            for block in std::mem::replace(&mut self.slots, larger) {
                if let Some(identity) = (block != EMPTY).then(|| of(block)).flatten() {
                    self.put(identity, block);
                }
            }
        }
        self.put(identity, block);
        self.taken += 1;
    }

    fn put(&mut self, identity: Identity, block: u32) {
        let mut at = self.home(identity);
        while self.slots[at] != EMPTY {
            at = (at + 1) & (self.slots.len() - 1);
        }
        self.slots[at] = block;
    }

    /// Takes out the block with this identity.
    pub(super) fn remove(&mut self, identity: Identity, of: impl Fn(u32) -> Option<Identity>) {
        let Some(mut gap) = self.slot(identity, &of) else { return };
        let last = self.slots.len() - 1;
        let mut at = gap;
        loop {
            at = (at + 1) & last;
            let Some(identity) = (self.slots[at] != EMPTY).then(|| of(self.slots[at])).flatten() else { break };
            // It may move back to the gap unless its own place is behind the gap.
            if (at.wrapping_sub(self.home(identity)) & last) >= (at.wrapping_sub(gap) & last) {
                self.slots[gap] = self.slots[at];
                gap = at;
            }
        }
        self.slots[gap] = EMPTY;
        self.taken -= 1;
    }
}
