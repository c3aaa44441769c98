//! The bytes of an instance's KV blocks.
//!
//! Which block is whose is the kernel's to say ([`crate::served`]); here they are written, read
//! and copied. They are in memory that other processes can map, and a descriptor says how they lie there, so
//! that block m of one store goes to block n of another, token by token, whatever the layouts of both.

use std::ops::Range;
use std::sync::Arc;

use serq_transfer::connector::Memory;
use serq_transfer::layout::{
    BlockTable, Content, Descriptor, Element as Stored, Group, Nesting, Order, TensorParallel, VERSION, join,
};
use serq_transfer::memory::Region;

use crate::kernels::{Element, KvLayout};

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
    memory: Arc<Region>,
    descriptor: Descriptor,
}

impl KvStore {
    /// So many blocks.
    ///
    /// # Errors
    ///
    /// A sentence: the system has no such memory.
    pub fn new(layout: KvLayout, blocks: usize) -> Result<Self, String> {
        let memory = Region::new(blocks * layout.block_bytes());
        let memory = memory.map_err(|error| format!("there is no memory for {blocks} KV blocks: {error}"))?;
        Ok(Self { layout, blocks, memory: Arc::new(memory), descriptor: descriptor(layout, blocks) })
    }

    /// The same in memory that a connector reads and writes too. `model` names weights and arithmetic.
    ///
    /// # Errors
    ///
    /// A sentence: the system has no such memory.
    pub fn shared(
        layout: KvLayout,
        blocks: usize,
        instance: &str,
        model: &str,
        staging_bytes: usize,
    ) -> Result<(Self, Memory), String> {
        let descriptor = Descriptor { instance: instance.into(), model: model.into(), ..descriptor(layout, blocks) };
        let memory = Memory::new(descriptor.clone(), staging_bytes)?;
        Ok((Self { layout, blocks, memory: Arc::clone(&memory.region), descriptor }, memory))
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
        // SAFETY: the bytes live as long as `self`; the caller is alone with what it touches.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_mut_ptr(), self.blocks * self.layout.block_bytes()) }
    }

    /// Looks at all bytes, the connector's own blocks among them, for whoever reads only those.
    #[allow(unsafe_code)]
    pub(crate) fn with_connectors<T>(&self, read: impl FnOnce(&[u8]) -> T) -> T {
        // SAFETY: the bytes live as long as `self`. Steps and copies write to blocks of requests, which whoever looks
        // at a canary does not read; and its block is read while the connector waits.
        read(unsafe { std::slice::from_raw_parts(self.memory.as_mut_ptr(), self.memory.bytes()) })
    }

    /// Copies tokens at these places of a text, from the text's blocks in this store to those in
    /// another one. Answers how many bytes.
    ///
    /// # Panics
    ///
    /// When the stores are of different models, or a table has no block for a token.
    pub(crate) fn copy(&self, from: &[u32], to: &Self, into: &[u32], tokens: Range<usize>) -> u64 {
        let table = |blocks| BlockTable { first_token: 0, blocks };
        self.copy_tables(table(from), to, table(into), tokens)
    }

    /// The same of tables that need not begin with the text's first token.
    pub(crate) fn copy_tables(
        &self,
        from: BlockTable<'_>,
        to: &Self,
        into: BlockTable<'_>,
        tokens: Range<usize>,
    ) -> u64 {
        let sides = (std::slice::from_ref(&self.descriptor), std::slice::from_ref(&to.descriptor));
        let conversion = join(sides.0, sides.1).unwrap_or_else(|refusal| panic!("stores of one model: {refusal}"));
        let plan = conversion.plan(0, tokens, &[from], &[into]);
        let plan = plan.unwrap_or_else(|error| panic!("a block for every token: {error}"));
        let pieces = plan.pieces(0, 0).expect("stores of one element");
        for piece in &pieces {
            let copied =
                to.memory.copy_from(piece.reader as u64, &self.memory, piece.source as u64, piece.bytes as u64);
            copied.expect("the blocks are of the stores");
        }
        pieces.iter().map(|piece| piece.bytes as u64).sum()
    }

    /// What a block's bytes are.
    pub(crate) fn read_block(&self, block: u32, into: &mut Vec<u8>) {
        let bytes = self.layout.block_bytes();
        into.resize(bytes, 0);
        self.memory.read(block as u64 * bytes as u64, into).expect("the block is of the store");
    }

    /// What they are from now on.
    pub(crate) fn write_block(&self, block: u32, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.layout.block_bytes(), "they are a block's");
        self.memory.write(block as u64 * bytes.len() as u64, bytes).expect("the block is of the store");
    }
}

/// A store as other instances have to know it.
fn descriptor(layout: KvLayout, blocks: usize) -> Descriptor {
    let KvLayout { block_tokens, layers, kv_heads, head_dim, element } = layout;
    Descriptor {
        version: VERSION,
        instance: "an instance of this process".into(),
        model: "the model of this process".into(),
        tensor_parallel: TensorParallel { degree: 1, rank: 0 },
        groups: vec![Group {
            content: Content::Heads { kv_heads, head_dim },
            layers: (0..layers as u32).collect(),
            window: None,
            block_tokens,
            blocks,
            first_byte: 0,
            nesting: Nesting::BlockMajor,
            order: Order::Nhd,
            element: match element {
                Element::F32 => Stored::F32,
                Element::Bf16 => Stored::Bf16,
            },
        }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(block_tokens: usize, blocks: usize) -> KvStore {
        let store =
            KvStore::new(KvLayout { block_tokens, layers: 2, kv_heads: 2, head_dim: 4, element: Element::F32 }, blocks);
        store.unwrap()
    }

    fn place(store: &KvStore, blocks: &[u32], token: usize, half: usize, nth: usize) -> u64 {
        let layout = store.layout;
        let block = blocks[token / layout.block_tokens] as usize;
        let slot = (block * layout.layers * 2 + half) * layout.block_tokens + token % layout.block_tokens;
        (slot * layout.slot_bytes() + nth) as u64
    }

    /// Every pair of block sizes, every range: what arrives is what was there, byte by byte, and
    /// nothing else is touched.
    #[test]
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
                    from.memory.write(place(&from, &tables[0], token, half, nth), &[mark(token, half, nth)]).unwrap();
                }
                let copied = from.copy(&tables[0], &to, &tables[1], range.clone());
                assert_eq!(copied as usize, range.len() * 4 * slot);
                for (token, half, nth) in all(tokens, slot) {
                    let mut found = [0];
                    to.memory.read(place(&to, &tables[1], token, half, nth), &mut found).unwrap();
                    let expected = if range.contains(&token) { mark(token, half, nth) } else { 0 };
                    assert_eq!(found, [expected], "{m} to {n}, {range:?}: token {token}, half {half}, byte {nth}");
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
