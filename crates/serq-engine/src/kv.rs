//! The bytes of an instance's KV blocks.
//!
//! Which block is whose is the kernel's to say ([`crate::served`]); here they are written, read
//! and copied. A copy goes token by token: block m of one store to block n of another, whatever
//! the sizes of their blocks.

use std::cell::UnsafeCell;
use std::ops::Range;

use crate::kernels::KvLayout;

/// The blocks of one instance.
///
/// # Invariants
///
/// - One step at a time writes to it: its instance's.
/// - What a copy reads is leased and what it writes is reserved for it, and a running step
///   touches neither: so says the kernel.
pub struct KvStore {
    layout: KvLayout,
    blocks: usize,
    bytes: Box<[UnsafeCell<u8>]>,
}

// SAFETY: whoever writes a block is alone with it, as the kernel hands them out (above).
#[allow(unsafe_code)]
unsafe impl Sync for KvStore {}

impl KvStore {
    /// So many blocks.
    pub fn new(layout: KvLayout, blocks: usize) -> Self {
        let bytes = vec![0u8; blocks * layout.block_bytes()].into_boxed_slice();
        // SAFETY: a cell of a byte is laid out as the byte.
        #[allow(unsafe_code)]
        let bytes = unsafe { Box::from_raw(Box::into_raw(bytes) as *mut [UnsafeCell<u8>]) };
        Self { layout, blocks, bytes }
    }

    /// How a block is laid out.
    pub fn layout(&self) -> KvLayout {
        self.layout
    }

    /// How many blocks.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// All bytes, for the one step that runs.
    ///
    /// # Safety
    ///
    /// No other step of this store runs, and of what copies touch meanwhile this one touches nothing.
    #[allow(unsafe_code, clippy::mut_from_ref)]
    pub(crate) unsafe fn of_step(&self) -> &mut [u8] {
        let first = self.bytes.as_ptr() as *mut u8;
        // SAFETY: the bytes live as long as `self`; the caller is alone with what it touches.
        unsafe { std::slice::from_raw_parts_mut(first, self.bytes.len()) }
    }

    /// Copies tokens at these places of a text, from the text's blocks in this store to those in
    /// another one. Answers how many bytes.
    ///
    /// # Panics
    ///
    /// When the stores are of different models, or a table has no block for a token.
    pub(crate) fn copy(&self, from: &[u32], to: &Self, into: &[u32], tokens: Range<usize>) -> u64 {
        let (source, target) = (self.layout, to.layout);
        let shape = |layout: KvLayout| KvLayout { block_tokens: 1, ..layout };
        assert_eq!(shape(source), shape(target), "stores of one model");
        let within = |store: &Self, blocks: &[u32]| blocks.iter().all(|&block| (block as usize) < store.blocks);
        assert!(within(self, from) && within(to, into), "the blocks are of the stores");
        assert!(tokens.end.div_ceil(source.block_tokens) <= from.len(), "a block for every token");
        assert!(tokens.end.div_ceil(target.block_tokens) <= into.len(), "a block for every token");
        let slot = source.slot_bytes();
        let mut bytes = 0;
        let mut at = tokens.start;
        while at < tokens.end {
            // Tokens that lie in one block on both sides.
            let left = |block: usize| block - at % block;
            let count = left(source.block_tokens).min(left(target.block_tokens)).min(tokens.end - at);
            for half in 0..source.layers * 2 {
                let first = |layout: &KvLayout, blocks: &[u32]| {
                    let block = blocks[at / layout.block_tokens] as usize;
                    ((block * layout.layers * 2 + half) * layout.block_tokens + at % layout.block_tokens) * slot
                };
                let (read, write) = (first(&source, from), first(&target, into));
                let (read, write) = (&self.bytes[read..read + count * slot], &to.bytes[write..write + count * slot]);
                // SAFETY: both are as long as that; nobody writes the first, and nobody else touches
                // the second while this goes on.
                #[allow(unsafe_code)]
                unsafe {
                    std::ptr::copy_nonoverlapping(read.as_ptr().cast::<u8>(), write.as_ptr() as *mut u8, count * slot);
                }
                bytes += (count * slot) as u64;
            }
            at += count;
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Element;

    fn store(block_tokens: usize, blocks: usize) -> KvStore {
        KvStore::new(KvLayout { block_tokens, layers: 2, kv_heads: 2, head_dim: 4, element: Element::F32 }, blocks)
    }

    fn byte(store: &KvStore, blocks: &[u32], token: usize, half: usize, nth: usize) -> *mut u8 {
        let layout = store.layout;
        let block = blocks[token / layout.block_tokens] as usize;
        let slot = (block * layout.layers * 2 + half) * layout.block_tokens + token % layout.block_tokens;
        store.bytes[slot * layout.slot_bytes() + nth].get()
    }

    /// Every pair of block sizes, every range: what arrives is what was there, byte by byte, and
    /// nothing else is touched.
    #[test]
    #[allow(unsafe_code)]
    fn a_copy_between_blocks_of_any_sizes_is_that_of_each_element() {
        for (m, n) in (1..=6).flat_map(|m| (1..=6).map(move |n| (m, n))) {
            let tokens: usize = 13;
            let tables: Vec<Vec<u32>> = [m, n]
                .iter()
                .map(|&size: &usize| (0..tokens as u32).rev().take(tokens.div_ceil(size)).collect())
                .collect();
            for range in [0..tokens, 0..1, 3..7, 5..13, 12..13, 4..4] {
                let (from, to) = (store(m, tokens), store(n, tokens));
                let slot = from.layout.slot_bytes();
                for (token, half, nth) in all(tokens, slot) {
                    // SAFETY: the test alone has the store.
                    unsafe { *byte(&from, &tables[0], token, half, nth) = mark(token, half, nth) };
                }
                let copied = from.copy(&tables[0], &to, &tables[1], range.clone());
                assert_eq!(copied as usize, range.len() * 4 * slot);
                for (token, half, nth) in all(tokens, slot) {
                    // SAFETY: as above.
                    let found = unsafe { *byte(&to, &tables[1], token, half, nth) };
                    let expected = if range.contains(&token) { mark(token, half, nth) } else { 0 };
                    assert_eq!(found, expected, "{m} to {n}, {range:?}: token {token}, half {half}, byte {nth}");
                }
            }
        }
    }

    fn all(tokens: usize, slot: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        (0..tokens).flat_map(move |token| (0..4).flat_map(move |half| (0..slot).map(move |nth| (token, half, nth))))
    }

    fn mark(token: usize, half: usize, nth: usize) -> u8 {
        (token * 37 + half * 11 + nth) as u8 | 1
    }
}
