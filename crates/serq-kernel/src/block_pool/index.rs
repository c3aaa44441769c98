//! Where a stretch's chain is: a hash table from keys to numbers of chains.
//!
//! A slot has a chain's number and the hash of its key; the key itself is asked of whoever
//! has it, where the hash fits. Open addressing, linear probing, a removal closes the
//! gap behind it. The hash is fixed, and nothing ever goes through the table in its order, so
//! that no run depends on it.

use super::Source;

/// What all stretches of one content begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) source: Source,
    /// The first place.
    pub(super) start: u32,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    hash: u32,
    chain: u32,
}

const EMPTY: Slot = Slot { hash: 0, chain: u32::MAX };

impl Slot {
    fn is_empty(self) -> bool {
        self.chain == EMPTY.chain
    }
}

#[derive(Debug, Default)]
pub(super) struct Index {
    /// A power of two of them, at most half of them taken; or none.
    slots: Vec<Slot>,
    taken: usize,
}

fn hash(key: Key) -> u32 {
    let (kind, source) = match key.source {
        Source::Own(conversation) => (0x9e37_79b9_7f4a_7c15, conversation),
        Source::Trace(id) => (0xc2b2_ae3d_27d4_eb4f, id),
        Source::Group(group) => (0x1656_67b1_9e37_79f9, group),
    };
    // The finisher of splitmix64 [Steele OOPSLA'14], for either half.
    let mix = |x: u64| {
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    mix(mix(source.wrapping_add(kind)).wrapping_add(u64::from(key.start))) as u32
}

impl Index {
    pub(super) fn len(&self) -> usize {
        self.taken
    }

    /// The last slot; of a table that has some.
    fn last(&self) -> usize {
        self.slots.len() - 1
    }

    /// The chain with this key. `of` says a chain's key.
    pub(super) fn find(&self, key: Key, of: impl Fn(u32) -> Key) -> Option<u32> {
        if self.slots.is_empty() {
            return None;
        }
        let hash = hash(key);
        let mut at = hash as usize & self.last();
        loop {
            let slot = self.slots[at];
            if slot.is_empty() {
                return None;
            }
            if slot.hash == hash && of(slot.chain) == key {
                return Some(slot.chain);
            }
            at = (at + 1) & self.last();
        }
    }

    /// Takes in a chain whose key no other has.
    pub(super) fn insert(&mut self, key: Key, chain: u32) {
        if 2 * (self.taken + 1) > self.slots.len() {
            let larger = vec![EMPTY; (2 * self.slots.len()).max(16)];
            for slot in std::mem::replace(&mut self.slots, larger) {
                if !slot.is_empty() {
                    self.put(slot);
                }
            }
        }
        self.put(Slot { hash: hash(key), chain });
        self.taken += 1;
    }

    fn put(&mut self, slot: Slot) {
        let mut at = slot.hash as usize & self.last();
        while !self.slots[at].is_empty() {
            at = (at + 1) & self.last();
        }
        self.slots[at] = slot;
    }

    /// Takes out a chain, which has this key.
    pub(super) fn remove(&mut self, key: Key, chain: u32) {
        let last = self.last();
        let mut gap = hash(key) as usize & last;
        while self.slots[gap].chain != chain {
            gap = (gap + 1) & last;
        }
        let mut at = gap;
        loop {
            at = (at + 1) & last;
            let slot = self.slots[at];
            if slot.is_empty() {
                break;
            }
            // It may move back to the gap unless its own place is behind the gap.
            let home = slot.hash as usize;
            if (at.wrapping_sub(home) & last) >= (at.wrapping_sub(gap) & last) {
                self.slots[gap] = slot;
                gap = at;
            }
        }
        self.slots[gap] = EMPTY;
        self.taken -= 1;
    }
}
