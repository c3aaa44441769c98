//! The converter once more, an element at a time: every place by a formula of its own, every number by
//! `half` or by search. Nothing of the crate but its descriptors is used.

use std::sync::LazyLock;

use half::{bf16, f16};
use serq_transfer::layout::{Content, Descriptor, Element, Group, Nesting, Order};

/// Instances to convert between: ranks with their descriptors, tables and memories.
#[derive(Clone)]
pub(crate) struct Instance {
    pub(crate) ranks: Vec<Descriptor>,
    /// For each group and rank: the first token and the blocks.
    pub(crate) tables: Vec<Vec<(usize, Vec<u32>)>>,
    pub(crate) memories: Vec<Vec<u8>>,
}

/// Which element.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub(crate) layer: usize,
    pub(crate) half: usize,
    pub(crate) head: usize,
    pub(crate) token: usize,
    pub(crate) dim: usize,
}

pub(crate) fn sizes(group: &Group) -> (usize, usize, usize) {
    match group.content {
        Content::Heads { kv_heads, head_dim } => (kv_heads, head_dim, 2),
        Content::Latent { dim } => (1, dim, 1),
    }
}

/// The model's heads of a rank.
pub(crate) fn heads(group: &Group, degree: usize, rank: usize) -> Vec<usize> {
    let all = sizes(group).0;
    (0..all)
        .filter(|head| if degree <= all { head * degree / all == rank } else { rank * all / degree == *head })
        .collect()
}

/// The number of an element in its group, from the group's first.
fn nth(group: &Group, local_heads: usize, block: usize, slot: usize, local: usize, at: At) -> usize {
    let (_, dims, halves) = sizes(group);
    let (layers, blocks, slots) = (group.layers.len(), group.blocks, group.block_tokens);
    let At { layer, half, dim, .. } = at;
    let nhd = (slot * local_heads + local) * dims + dim;
    let hnd = (local * slots + slot) * dims + dim;
    let packed_nhd = ((slot * local_heads + local) * halves + half) * dims + dim;
    let packed_hnd = ((local * slots + slot) * halves + half) * dims + dim;
    let plane = slots * local_heads * dims;
    match (group.nesting, group.order) {
        (Nesting::BlockMajor, Order::Nhd) => ((block * layers + layer) * halves + half) * plane + nhd,
        (Nesting::BlockMajor, Order::Hnd) => ((block * layers + layer) * halves + half) * plane + hnd,
        (Nesting::BlockMajor, Order::PackedNhd) => (block * layers + layer) * halves * plane + packed_nhd,
        (Nesting::BlockMajor, Order::PackedHnd) => (block * layers + layer) * halves * plane + packed_hnd,
        (Nesting::LayerMajor, Order::Nhd) => ((layer * halves + half) * blocks + block) * plane + nhd,
        (Nesting::LayerMajor, Order::Hnd) => ((layer * halves + half) * blocks + block) * plane + hnd,
        (Nesting::LayerBlockMajor, Order::Nhd) => ((layer * blocks + block) * halves + half) * plane + nhd,
        (Nesting::LayerBlockMajor, Order::Hnd) => ((layer * blocks + block) * halves + half) * plane + hnd,
        (_, Order::PackedNhd) => (layer * blocks + block) * halves * plane + packed_nhd,
        (_, Order::PackedHnd) => (layer * blocks + block) * halves * plane + packed_hnd,
    }
}

pub(crate) fn width(element: Element) -> usize {
    match element {
        Element::F32 => 4,
        Element::Bf16 | Element::F16 => 2,
        Element::Fp8E4m3 => 1,
    }
}

/// Where a scale stands.
fn scale_place(group: &Group, local_heads: usize, block: usize, local: usize, at: At) -> usize {
    let (_, dims, halves) = sizes(group);
    let elements = group.layers.len() * halves * group.blocks * group.block_tokens * local_heads * dims;
    let table = (group.first_byte + elements).div_ceil(4) * 4;
    table + 4 * (((block * group.layers.len() + at.layer) * halves + at.half) * local_heads + local)
}

/// What is stored: for fp8 a code, for all others their bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Stored {
    F32(u32),
    Bf16(u16),
    F16(u16),
    Fp8(u8),
}

impl Instance {
    pub(crate) fn group(&self, group: usize) -> &Group {
        &self.ranks[0].groups[group]
    }

    /// The block and slot of a token on a rank.
    pub(crate) fn slot(&self, group: usize, rank: usize, token: usize) -> (usize, usize) {
        let (first, blocks) = &self.tables[group][rank];
        let slots = self.ranks[rank].groups[group].block_tokens;
        (blocks[(token - first) / slots] as usize, (token - first) % slots)
    }

    fn local(&self, group: usize, rank: usize, head: usize) -> (usize, usize) {
        let here = heads(&self.ranks[rank].groups[group], self.ranks.len(), rank);
        (here.len(), here.iter().position(|&one| one == head).expect("the head is on the rank"))
    }

    fn place(&self, group: usize, rank: usize, block: usize, slot: usize, at: At) -> usize {
        let described = &self.ranks[rank].groups[group];
        let (count, local) = self.local(group, rank, at.head);
        described.first_byte + nth(described, count, block, slot, local, at) * width(described.element)
    }

    pub(crate) fn load(&self, group: usize, rank: usize, block: usize, slot: usize, at: At) -> Stored {
        let first = self.place(group, rank, block, slot, at);
        let memory = &self.memories[rank];
        match self.ranks[rank].groups[group].element {
            Element::F32 => Stored::F32(u32::from_le_bytes(memory[first..first + 4].try_into().unwrap())),
            Element::Bf16 => Stored::Bf16(u16::from_le_bytes(memory[first..first + 2].try_into().unwrap())),
            Element::F16 => Stored::F16(u16::from_le_bytes(memory[first..first + 2].try_into().unwrap())),
            Element::Fp8E4m3 => Stored::Fp8(memory[first]),
        }
    }

    pub(crate) fn save(&mut self, group: usize, rank: usize, block: usize, slot: usize, at: At, stored: Stored) {
        let first = self.place(group, rank, block, slot, at);
        let bytes = match stored {
            Stored::F32(bits) => bits.to_le_bytes().to_vec(),
            Stored::Bf16(bits) | Stored::F16(bits) => bits.to_le_bytes().to_vec(),
            Stored::Fp8(code) => vec![code],
        };
        self.memories[rank][first..first + bytes.len()].copy_from_slice(&bytes);
    }

    pub(crate) fn scale(&self, group: usize, rank: usize, block: usize, at: At) -> f32 {
        let (count, local) = self.local(group, rank, at.head);
        let first = scale_place(&self.ranks[rank].groups[group], count, block, local, at);
        f32::from_le_bytes(self.memories[rank][first..first + 4].try_into().unwrap())
    }

    pub(crate) fn set_scale(&mut self, group: usize, rank: usize, block: usize, at: At, scale: f32) {
        let (count, local) = self.local(group, rank, at.head);
        let first = scale_place(&self.ranks[rank].groups[group], count, block, local, at);
        self.memories[rank][first..first + 4].copy_from_slice(&scale.to_le_bytes());
    }

    /// The number that attention sees.
    pub(crate) fn number(&self, group: usize, rank: usize, at: At) -> f32 {
        let (block, slot) = self.slot(group, rank, at.token);
        match self.load(group, rank, block, slot, at) {
            Stored::Fp8(code) => (e4m3(code) * f64::from(self.scale(group, rank, block, at))) as f32,
            stored => plain(stored),
        }
    }

    /// Every (layer, half, head) of a rank, with token and dim 0.
    pub(crate) fn rows(&self, group: usize, rank: usize) -> Vec<At> {
        let described = &self.ranks[rank].groups[group];
        let mut rows = Vec::new();
        for layer in 0..described.layers.len() {
            for half in 0..sizes(described).2 {
                for head in heads(described, self.ranks.len(), rank) {
                    rows.push(At { layer, half, head, token: 0, dim: 0 });
                }
            }
        }
        rows
    }
}

fn plain(stored: Stored) -> f32 {
    match stored {
        Stored::F32(bits) => f32::from_bits(bits),
        Stored::Bf16(bits) => bf16::from_bits(bits).to_f32(),
        Stored::F16(bits) => f16::from_bits(bits).to_f32(),
        Stored::Fp8(_) => panic!("a code has a scale"),
    }
}

/// What a code says, by the format's definition.
pub(crate) fn e4m3(code: u8) -> f64 {
    let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f64::from(code & 7));
    match (exponent, mantissa as u8) {
        (15, 7) => f64::NAN.copysign(sign),
        (0, _) => sign * mantissa / 8.0 * 2f64.powi(-6),
        _ => sign * (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7),
    }
}

/// The nearest code by search, the even one of two.
pub(crate) fn to_e4m3(number: f64) -> u8 {
    static MAGNITUDES: LazyLock<Vec<f64>> = LazyLock::new(|| (0..=0x7e).map(e4m3).collect());
    let sign = if number.is_sign_negative() { 0x80 } else { 0 };
    if number.is_nan() {
        return 0x7f | sign;
    }
    let magnitude = number.abs().min(448.0);
    let above = MAGNITUDES.partition_point(|&one| one < magnitude).min(0x7e);
    let below = above.saturating_sub(1);
    let distance = |code: usize| (MAGNITUDES[code] - magnitude).abs();
    let above_is_nearer = distance(above) < distance(below) || distance(above) == distance(below) && above % 2 == 0;
    (if above_is_nearer { above } else { below }) as u8 | sign
}

pub(crate) fn to(element: Element, number: f32) -> Stored {
    match element {
        Element::F32 => Stored::F32(number.to_bits()),
        Element::Bf16 => Stored::Bf16(bf16::from_f32(number).to_bits()),
        Element::F16 => Stored::F16(f16::from_f32(number).to_bits()),
        Element::Fp8E4m3 => panic!("a code has a scale"),
    }
}

/// The least power of two under which a number fits.
pub(crate) fn fitting_scale(largest: f64) -> f32 {
    let mut scale = 2f64.powi(-126);
    while 448.0 * scale < largest {
        scale *= 2.0;
    }
    scale as f32
}

/// A move of one group's tokens, each element by itself.
pub(crate) fn convert(
    source: &Instance,
    reader: &mut Instance,
    groups: (usize, usize),
    tokens: std::ops::Range<usize>,
) {
    for rank in 0..reader.ranks.len() {
        for row in reader.rows(groups.1, rank) {
            // The last rank that has the head: the converter may take another one, which holds the same.
            let degree = source.ranks.len();
            let owner = (0..degree).rfind(|&owner| heads(source.group(groups.0), degree, owner).contains(&row.head));
            let owner = owner.expect("a head is on some rank");
            if reader.ranks[rank].groups[groups.1].element == Element::Fp8E4m3 {
                to_scaled(source, reader, groups, (owner, rank), row, tokens.clone());
                continue;
            }
            for token in tokens.clone() {
                for dim in 0..sizes(reader.group(groups.1)).1 {
                    let at = At { token, dim, ..row };
                    let (from_block, from_slot) = source.slot(groups.0, owner, token);
                    let (block, slot) = reader.slot(groups.1, rank, token);
                    let stored = source.load(groups.0, owner, from_block, from_slot, at);
                    let element = reader.ranks[rank].groups[groups.1].element;
                    let stored = if source.ranks[owner].groups[groups.0].element == element {
                        stored
                    } else {
                        to(element, source.number(groups.0, owner, at))
                    };
                    reader.save(groups.1, rank, block, slot, at, stored);
                }
            }
        }
    }
}

fn to_scaled(
    source: &Instance,
    reader: &mut Instance,
    groups: (usize, usize),
    (owner, rank): (usize, usize),
    row: At,
    tokens: std::ops::Range<usize>,
) {
    let slots = reader.ranks[rank].groups[groups.1].block_tokens;
    let dims = sizes(reader.group(groups.1)).1;
    let scaled = source.ranks[owner].groups[groups.0].element == Element::Fp8E4m3;
    let mut start = tokens.start;
    while start < tokens.end {
        let end = (start / slots * slots + slots).min(tokens.end);
        let block = reader.slot(groups.1, rank, start).0;
        let mut old = f64::from(reader.scale(groups.1, rank, block, row));
        if end - start == slots {
            old = 0.0;
        }
        let elements = |token| (0..dims).map(move |dim| At { token, dim, ..row });
        let mut needed = 0f64;
        let mut infinite = false;
        for at in (start..end).flat_map(elements) {
            if scaled {
                let from_block = source.slot(groups.0, owner, at.token).0;
                needed = needed.max(f64::from(source.scale(groups.0, owner, from_block, at)));
            } else {
                let number = source.number(groups.0, owner, at);
                infinite |= number.is_infinite();
                if number.is_finite() && number != 0.0 {
                    needed = needed.max(f64::from(fitting_scale(f64::from(number.abs()))));
                }
            }
        }
        if needed == 0.0 && infinite {
            needed = 1.0;
        }
        let scale = old.max(needed);
        if old > 0.0 && scale > old {
            let (first, last) = (reader.slot(groups.1, rank, start).1, reader.slot(groups.1, rank, end - 1).1);
            for slot in (0..slots).filter(|slot| !(first..=last).contains(slot)) {
                for at in elements(0) {
                    let Stored::Fp8(code) = reader.load(groups.1, rank, block, slot, at) else { panic!("a code") };
                    let code = to_e4m3(e4m3(code) * (old / scale));
                    reader.save(groups.1, rank, block, slot, at, Stored::Fp8(code));
                }
            }
        }
        for at in (start..end).flat_map(elements) {
            let (from_block, from_slot) = source.slot(groups.0, owner, at.token);
            let stored = source.load(groups.0, owner, from_block, from_slot, at);
            let code = match stored {
                Stored::Fp8(code) => {
                    let own = f64::from(source.scale(groups.0, owner, from_block, at));
                    if own == scale { code } else { to_e4m3(e4m3(code) * own / scale) }
                }
                stored => to_e4m3(f64::from(plain(stored)) / if scale > 0.0 { scale } else { 1.0 }),
            };
            let (block, slot) = reader.slot(groups.1, rank, at.token);
            reader.save(groups.1, rank, block, slot, at, Stored::Fp8(code));
        }
        reader.set_scale(groups.1, rank, block, row, scale as f32);
        start = end;
    }
}
