//! Where keys and values stand in a store of blocks.

use half::bf16;

use super::vector::Vector;

/// How a key's or value's numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// IEEE single.
    F32,
    /// The upper half of a single. Queries and weights of positions are rounded to it too.
    Bf16,
}

impl Element {
    /// Bytes of a number.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// The layout of a store of KV blocks:
/// `[block][layer][keys | values][slot in block][kv head][head dim]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Slots of a block, a token's key and value each.
    pub block_tokens: usize,
    /// Layers of the model.
    pub layers: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Numbers of a head. Even.
    pub head_dim: usize,
    /// How they are stored.
    pub element: Element,
}

/// Which half of a layer's part of a block.
#[derive(Clone, Copy)]
pub(super) enum Half {
    Keys = 0,
    Values = 1,
}

impl KvLayout {
    /// Bytes of a head's numbers.
    pub fn head_bytes(&self) -> usize {
        self.head_dim * self.element.bytes()
    }

    /// Bytes of a slot's keys, or of its values, in one layer.
    pub fn slot_bytes(&self) -> usize {
        self.kv_heads * self.head_bytes()
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.layers * 2 * self.block_tokens * self.slot_bytes()
    }

    /// The first byte of a position's keys or values in one layer.
    ///
    /// # Panics
    ///
    /// When the table has no block for the position.
    pub(super) fn slot(&self, blocks: &[u32], layer: usize, half: Half, position: usize) -> usize {
        let block = blocks[position / self.block_tokens] as usize;
        let slot = ((block * self.layers + layer) * 2 + half as usize) * self.block_tokens;
        (slot + position % self.block_tokens) * self.slot_bytes()
    }
}

/// Tokens of one sequence, at consecutive positions, whose rows a step computes: a part of a
/// prompt, or the one token of a decode step. A step's rows are its chunks' tokens, chunk
/// after chunk.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// The sequence's block table, as far as its last token here.
    pub blocks: &'a [u32],
    /// Position of the first token.
    pub start: usize,
    /// How many tokens.
    pub tokens: usize,
}

/// Asserts what lets the kernels follow a table without looking.
pub(super) fn check(layout: &KvLayout, layer: usize, chunks: &[Chunk<'_>], bytes: usize) {
    assert!(layer < layout.layers && layout.head_dim.is_multiple_of(2), "a layer of the store, of halves");
    for chunk in chunks {
        let needed = (chunk.start + chunk.tokens).div_ceil(layout.block_tokens);
        assert!(needed <= chunk.blocks.len(), "a block for every position");
        for &block in &chunk.blocks[..needed] {
            assert!((block as usize + 1) * layout.block_bytes() <= bytes, "block {block} is in the store");
        }
    }
}

/// Stores a head's numbers.
///
/// # Safety
///
/// There is room for them.
#[inline(always)]
pub(super) unsafe fn store<V: Vector>(v: V, element: Element, numbers: &[f32], to: *mut u8) {
    let whole = numbers.len() / V::LANES * V::LANES;
    // SAFETY: the caller says that there is room; whole vectors are within the numbers.
    unsafe {
        match element {
            Element::F32 => to.copy_from_nonoverlapping(numbers.as_ptr().cast(), size_of_val(numbers)),
            Element::Bf16 => {
                let to = to.cast::<u16>();
                for at in (0..whole).step_by(V::LANES) {
                    v.store_bf16(to.add(at), v.load(numbers.as_ptr().add(at)));
                }
                for (at, number) in numbers.iter().enumerate().skip(whole) {
                    to.add(at).write_unaligned(bf16::from_f32(*number).to_bits());
                }
            }
        }
    }
}
