//! Where the numbers of a group stand in a rank's memory.
//!
//! Every layout is a nest of six axes of which `dim` is the innermost, so a number's place is a
//! sum of products: a stride an axis. Nestings and orders differ in the axes' order only.
//!
//! ```text
//!   block_major, nhd          block  layer  half   token  head   dim
//!   layer_major, hnd          layer  half   block  head   token  dim
//!   layer_block_major, packed layer  block  token  head   half   dim
//! ```
//!
//! # Invariants
//!
//! - No two numbers share a byte, and the group's elements leave no gap.
//! - Strides are whole elements, so two sides' strides can be compared whatever their numbers are.

use std::ops::Range;

use super::descriptor::{Descriptor, Element, Group, Nesting, Order, TensorParallel};

/// Bytes of a scale.
pub(super) const SCALE_BYTES: usize = 4;

/// Keys or values. A latent is filed under the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Half {
    /// Keys, or a latent.
    Keys = 0,
    /// Values.
    Values = 1,
}

/// How far one step along each axis goes, in elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strides {
    /// To the next block.
    pub block: usize,
    /// To the next layer of the group.
    pub layer: usize,
    /// From keys to values.
    pub half: usize,
    /// To the next slot of the block.
    pub token: usize,
    /// To the rank's next head.
    pub head: usize,
}

/// One group of one rank, with all that follows from its descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The model's heads that are on this rank.
    pub heads: Range<usize>,
    /// Numbers of a head.
    pub dim: usize,
    /// 2 for keys and values, 1 for a latent.
    pub halves: usize,
    /// Layers of the group.
    pub layers: usize,
    /// Blocks of the group.
    pub blocks: usize,
    /// Slots of a block.
    pub block_tokens: usize,
    /// How numbers are stored.
    pub element: Element,
    /// The steps of the axes.
    pub strides: Strides,
    first_byte: usize,
    elements: usize,
}

#[derive(Clone, Copy)]
enum Axis {
    Block,
    Layer,
    Half,
    Token,
    Head,
}

impl Geometry {
    /// Of a descriptor's group; none when its bytes do not fit an address space.
    ///
    /// # Panics
    ///
    /// When there is no such group, or its heads cannot be split over the ranks.
    pub fn of(descriptor: &Descriptor, group: usize) -> Option<Self> {
        let described = &descriptor.groups[group];
        let heads = heads_of(described, descriptor.tensor_parallel);
        let mut elements = described.content.dim();
        let mut strides = Strides::default();
        for axis in axes(described.nesting, described.order).into_iter().rev() {
            let (stride, count) = match axis {
                Axis::Block => (&mut strides.block, described.blocks),
                Axis::Layer => (&mut strides.layer, described.layers.len()),
                Axis::Half => (&mut strides.half, described.content.halves()),
                Axis::Token => (&mut strides.token, described.block_tokens),
                Axis::Head => (&mut strides.head, heads.len()),
            };
            *stride = elements;
            elements = elements.checked_mul(count)?;
        }
        let geometry = Self {
            heads,
            dim: described.content.dim(),
            halves: described.content.halves(),
            layers: described.layers.len(),
            blocks: described.blocks,
            block_tokens: described.block_tokens,
            element: described.element,
            strides,
            first_byte: described.first_byte,
            elements,
        };
        geometry.checked_end().filter(|&end| end <= isize::MAX as usize).map(|_| geometry)
    }

    /// The first byte of a head's numbers at a slot. `layer` counts in the group, `head` on the rank.
    pub fn row(&self, block: usize, layer: usize, half: usize, slot: usize, head: usize) -> usize {
        let strides = &self.strides;
        let element = block * strides.block
            + layer * strides.layer
            + half * strides.half
            + slot * strides.token
            + head * strides.head;
        self.byte(element)
    }

    /// The first byte of an element, counted from the group's first.
    pub fn byte(&self, element: usize) -> usize {
        self.first_byte + element * self.element.bytes()
    }

    /// The first byte of a scale, of elements that have some.
    pub fn scale(&self, block: usize, layer: usize, half: usize, head: usize) -> usize {
        let nth = ((block * self.layers + layer) * self.halves + half) * self.heads.len() + head;
        self.scales_first_byte() + nth * SCALE_BYTES
    }

    /// The byte behind the group's last, scales included.
    pub fn end(&self) -> usize {
        self.checked_end().expect("checked when it was made")
    }

    /// Bytes of a token in all layers of the group on this rank, scales aside.
    pub fn token_bytes(&self) -> usize {
        self.layers * self.halves * self.heads.len() * self.dim * self.element.bytes()
    }

    /// Scales of a block.
    pub(super) fn block_scales(&self) -> usize {
        self.layers * self.halves * self.heads.len()
    }

    fn scales_first_byte(&self) -> usize {
        self.byte(self.elements).next_multiple_of(SCALE_BYTES)
    }

    fn checked_end(&self) -> Option<usize> {
        let elements = self.elements.checked_mul(self.element.bytes())?.checked_add(self.first_byte)?;
        if !self.element.scaled() {
            return Some(elements);
        }
        let scales = self.layers.checked_mul(self.halves)?.checked_mul(self.heads.len())?.checked_mul(self.blocks)?;
        elements.checked_next_multiple_of(SCALE_BYTES)?.checked_add(scales.checked_mul(SCALE_BYTES)?)
    }
}

/// The axes without `dim`, outermost first.
fn axes(nesting: Nesting, order: Order) -> Vec<Axis> {
    use Axis::{Block, Half, Head, Layer, Token};
    let mut axes = match nesting {
        Nesting::BlockMajor => vec![Block, Layer, Half],
        Nesting::LayerMajor => vec![Layer, Half, Block],
        Nesting::LayerBlockMajor => vec![Layer, Block, Half],
    };
    if order.packed() {
        axes.retain(|axis| !matches!(axis, Half));
    }
    axes.extend(match order {
        Order::Nhd | Order::PackedNhd => [Token, Head],
        Order::Hnd | Order::PackedHnd => [Head, Token],
    });
    if order.packed() {
        axes.push(Half);
    }
    axes
}

/// The model's heads that a rank has: as many on each rank, or as many ranks for each.
fn heads_of(group: &Group, TensorParallel { degree, rank }: TensorParallel) -> Range<usize> {
    let heads = group.content.heads();
    if degree > heads {
        let head = rank / replicas(heads, degree);
        return head..head + 1;
    }
    let each = heads / degree;
    assert_eq!(each * degree, heads, "heads are split evenly");
    rank * each..(rank + 1) * each
}

/// How many ranks have one head.
pub(super) fn replicas(heads: usize, degree: usize) -> usize {
    (degree / heads).max(1)
}
