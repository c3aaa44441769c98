//! A set of small numbers, walked in order.
//!
//! Pools that have somebody to retry, idle engines that have work, gauges to be read
//! again: they are asked for at every event, so membership is a bit and the next member
//! at or above a number is a scan over words.

/// A set of numbers below a fixed bound.
#[derive(Clone, Debug, Default)]
pub(crate) struct IndexSet {
    words: Vec<u64>,
    count: usize,
}

impl IndexSet {
    pub(crate) fn new(bound: usize) -> Self {
        Self { words: vec![0; bound.div_ceil(64)], count: 0 }
    }

    pub(crate) fn insert(&mut self, index: u32) {
        let word = &mut self.words[index as usize / 64];
        let bit = 1 << (index % 64);
        self.count += usize::from(*word & bit == 0);
        *word |= bit;
    }

    pub(crate) fn remove(&mut self, index: u32) {
        let word = &mut self.words[index as usize / 64];
        let bit = 1 << (index % 64);
        self.count -= usize::from(*word & bit != 0);
        *word &= !bit;
    }

    /// Makes it a member, or none.
    #[inline]
    pub(crate) fn set(&mut self, index: u32, member: bool) {
        if member {
            self.insert(index);
        } else {
            self.remove(index);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The least member that is at least `from`.
    #[inline]
    pub(crate) fn next_from(&self, from: u32) -> Option<u32> {
        if self.count == 0 { None } else { self.scan_from(from) }
    }

    /// Words of sixty-four numbers each.
    pub(crate) fn words(&self) -> usize {
        self.words.len()
    }

    /// The least member in one word, which is a member no more.
    #[inline]
    pub(crate) fn take_from_word(&mut self, word: usize) -> Option<u32> {
        let bits = self.words[word];
        if bits == 0 {
            return None;
        }
        self.words[word] = bits & (bits - 1);
        self.count -= 1;
        Some(64 * word as u32 + bits.trailing_zeros())
    }

    fn scan_from(&self, from: u32) -> Option<u32> {
        let mut at = from as usize / 64;
        let mut word = *self.words.get(at)? & (!0 << (from % 64));
        while word == 0 {
            at += 1;
            word = *self.words.get(at)?;
        }
        Some(at as u32 * 64 + word.trailing_zeros())
    }
}
