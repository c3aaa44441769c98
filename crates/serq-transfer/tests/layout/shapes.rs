//! Instances of every shape, filled with numbers that say where they belong.

use serq_transfer::layout::{
    self, BlockTable, Content, Conversion, Descriptor, Element, Group, Nesting, Order, Plan, PlanError, TensorParallel,
};

use crate::naive::{At, Instance, Stored, heads, sizes, to};

pub(crate) const NESTINGS: [Nesting; 3] = [Nesting::BlockMajor, Nesting::LayerMajor, Nesting::LayerBlockMajor];
pub(crate) const ORDERS: [Order; 4] = [Order::Nhd, Order::Hnd, Order::PackedNhd, Order::PackedHnd];
pub(crate) const ELEMENTS: [Element; 4] = [Element::F32, Element::Bf16, Element::F16, Element::Fp8E4m3];

/// Every nesting with every order.
pub(crate) fn layouts() -> Vec<(Nesting, Order)> {
    NESTINGS.into_iter().flat_map(|nesting| ORDERS.into_iter().map(move |order| (nesting, order))).collect()
}

/// Draws of a fixed seed [Steele OOPSLA'14].
pub(crate) struct Draws(pub(crate) u64);

impl Draws {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 33) as usize % bound
    }

    pub(crate) fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

/// A group to begin with: 2 layers, blocks of 4, as the engine has them.
pub(crate) fn group() -> Group {
    Group {
        content: Content::Heads { kv_heads: 2, head_dim: 3 },
        layers: vec![0, 1],
        window: None,
        block_tokens: 4,
        blocks: 0,
        first_byte: 0,
        nesting: Nesting::BlockMajor,
        order: Order::Nhd,
        element: Element::F32,
    }
}

pub(crate) fn describe(instance: &str, degree: usize, groups: &[Group]) -> Vec<Descriptor> {
    let rank = |rank| Descriptor {
        version: layout::VERSION,
        instance: instance.into(),
        model: "tiny".into(),
        tensor_parallel: TensorParallel { degree, rank },
        groups: groups.to_vec(),
    };
    (0..degree).map(rank).collect()
}

/// An instance whose groups hold tokens `first..end`, in blocks in any order, with two blocks over. Memory is garbage
/// but for scales, which are 0.
pub(crate) fn instance(
    name: &str,
    degree: usize,
    groups: &[Group],
    first: usize,
    end: usize,
    draws: &mut Draws,
) -> Instance {
    let mut ranks = describe(name, degree, groups);
    let mut tables = vec![Vec::new(); groups.len()];
    for descriptor in &mut ranks {
        let mut next_byte = 4 * draws.below(3);
        for (nth, group) in descriptor.groups.iter_mut().enumerate() {
            let first = first / group.block_tokens * group.block_tokens;
            let needed = (end - first).div_ceil(group.block_tokens);
            group.blocks = needed + 2;
            let mut blocks: Vec<u32> = (0..group.blocks as u32).collect();
            // Mostly mixed up; sometimes in a row, so that blocks can be moved together.
            if draws.below(4) > 0 {
                for at in (1..blocks.len()).rev() {
                    blocks.swap(at, draws.below(at + 1));
                }
            }
            blocks.truncate(needed);
            tables[nth].push((first, blocks));
            group.first_byte = next_byte;
            let local = heads(group, degree, descriptor.tensor_parallel.rank).len();
            let (_, dims, halves) = sizes(group);
            let rows = group.layers.len() * halves * local * group.blocks;
            let width = crate::naive::width(group.element);
            next_byte += (rows * group.block_tokens * dims * width).next_multiple_of(4) + 4 * rows + 4;
        }
    }
    let memories = ranks.iter().map(|rank| {
        let mut memory: Vec<u8> = (0..rank.memory_bytes() + 5).map(|_| draws.next() as u8).collect();
        for group in rank.groups.iter().filter(|group| group.element == Element::Fp8E4m3) {
            let local = heads(group, degree, rank.tensor_parallel.rank).len();
            let (_, dims, halves) = sizes(group);
            let rows = group.layers.len() * halves * local * group.blocks;
            let table = (group.first_byte + rows * group.block_tokens * dims).next_multiple_of(4);
            memory[table..table + 4 * rows].fill(0);
        }
        memory
    });
    Instance { memories: memories.collect(), ranks, tables }
}

/// Fills what the tables hold with numbers that depend on where they belong: mostly between 2⁻⁸ and 8, now and then one
/// that is special. Copies of a head hold the same.
pub(crate) fn fill(instance: &mut Instance, seed: u64) {
    for group in 0..instance.tables.len() {
        for rank in 0..instance.ranks.len() {
            let described = instance.ranks[rank].groups[group].clone();
            let (first, blocks) = instance.tables[group][rank].clone();
            for row in instance.rows(group, rank) {
                for (nth, &block) in blocks.iter().enumerate() {
                    if described.element == Element::Fp8E4m3 {
                        let hash = hash(seed, &[row.layer, row.half, row.head, nth, 77]);
                        let scale = (1 + hash % 3) as f32 * 2f32.powi((hash >> 8) as i32 % 7 - 5);
                        instance.set_scale(group, rank, block as usize, row, scale);
                    }
                    for slot in 0..described.block_tokens {
                        for dim in 0..sizes(&described).1 {
                            let token = first + nth * described.block_tokens + slot;
                            let at = At { token, dim, ..row };
                            let hash = hash(seed, &[at.layer, at.half, at.head, token, dim]);
                            let stored = match described.element {
                                Element::Fp8E4m3 => Stored::Fp8(hash as u8),
                                element => to(element, number(hash)),
                            };
                            instance.save(group, rank, block as usize, slot, at, stored);
                        }
                    }
                }
            }
        }
    }
}

fn hash(seed: u64, parts: &[usize]) -> u64 {
    parts.iter().fold(seed, |hash, &part| mix((hash ^ part as u64).wrapping_add(0x9e37_79b9_7f4a_7c15)))
}

fn number(hash: u64) -> f32 {
    let specials =
        [0.0, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-40, -1e-42, 65504.0, 70000.0, 1e-7, f32::MAX];
    match hash >> 40 & 63 {
        // Not in the middle of those that decide about scales, in most rows.
        0 => specials[(hash >> 50) as usize % specials.len()],
        _ => {
            let magnitude = (1.0 + (hash & 0x7f_ffff) as f32 / 8_388_608.0) * 2f32.powi((hash >> 24) as i32 % 11 - 8);
            if hash >> 63 == 0 { magnitude } else { -magnitude }
        }
    }
}

pub(crate) fn tables(tables: &[(usize, Vec<u32>)]) -> Vec<BlockTable<'_>> {
    tables.iter().map(|(first_token, blocks)| BlockTable { first_token: *first_token, blocks }).collect()
}

pub(crate) fn join(source: &Instance, reader: &Instance) -> Conversion {
    layout::join(&source.ranks, &reader.ranks).unwrap_or_else(|refusal| panic!("{refusal}"))
}

pub(crate) fn plan(
    conversion: &Conversion,
    source: &Instance,
    reader: &Instance,
    groups: (usize, usize),
    range: std::ops::Range<usize>,
) -> Result<Plan, PlanError> {
    conversion.plan(groups.1, range, &tables(&source.tables[groups.0]), &tables(&reader.tables[groups.1]))
}

/// That the converter moves a range as the naive one does, and touches nothing besides; and that pieces, where there are
/// some, say the same.
pub(crate) fn check_move(source: &Instance, reader: &Instance, groups: (usize, usize), range: std::ops::Range<usize>) {
    let reader = &if range.end.is_multiple_of(2) { reader.clone() } else { used(reader, groups.1) };
    let conversion = join(source, reader);
    let plan = plan(&conversion, source, reader, groups, range.clone()).unwrap_or_else(|error| panic!("{error}"));
    let (mut expected, mut found, mut pieced) = (reader.clone(), reader.clone(), reader.clone());
    crate::naive::convert(source, &mut expected, groups, range.clone());
    plan.copy_all(&source.memories, &mut found.memories);
    compare(&expected, &found, groups.1, || {
        format!("{:?} to {:?}, tokens {range:?}", source.ranks[0], reader.ranks[0])
    });
    let mut complete = true;
    for (from, to) in plan.pairs() {
        let Some(pieces) = plan.pieces(from, to) else {
            complete = false;
            continue;
        };
        for piece in pieces {
            let bytes = &source.memories[from][piece.source..piece.source + piece.bytes];
            pieced.memories[to][piece.reader..piece.reader + piece.bytes].copy_from_slice(bytes);
        }
    }
    if complete {
        assert!(pieced.memories == found.memories, "pieces say what a copy does");
    }
    let (one, other) = (source.group(groups.0), reader.group(groups.1));
    let whole = one.block_tokens == other.block_tokens
        && range.start.is_multiple_of(one.block_tokens)
        && range.end.is_multiple_of(one.block_tokens);
    let equal = one.element == other.element && (one.element != Element::Fp8E4m3 || whole);
    assert_eq!(complete, equal || plan.pairs().is_empty(), "bytes are moved where they are equal");
}

/// A reader whose blocks have scales already, each another one.
fn used(reader: &Instance, group: usize) -> Instance {
    let mut used = reader.clone();
    for rank in 0..reader.ranks.len() {
        let described = &reader.ranks[rank].groups[group];
        if described.element != Element::Fp8E4m3 {
            continue;
        }
        for row in reader.rows(group, rank) {
            for block in 0..described.blocks {
                let hash = hash(5, &[rank, block, row.layer, row.half, row.head]);
                let scale = (hash % 4) as f32 * 2f32.powi((hash >> 8) as i32 % 12 - 9);
                used.set_scale(group, rank, block, row, scale);
            }
        }
    }
    used
}

/// Byte by byte; but a NaN is as good as another.
fn compare(expected: &Instance, found: &Instance, group: usize, words: impl Fn() -> String) {
    for rank in 0..expected.ranks.len() {
        if expected.memories[rank] == found.memories[rank] {
            continue;
        }
        let (one, other) = (&expected.memories[rank], &found.memories[rank]);
        let width = crate::naive::width(expected.ranks[rank].groups[group].element);
        let first = expected.ranks[rank].groups[group].first_byte;
        for at in (0..one.len()).filter(|&at| one[at] != other[at]) {
            assert!(at >= first && width > 1, "{}: byte {at} of rank {rank} is {} not {}", words(), other[at], one[at]);
            let begin = at - (at - first) % width;
            let nan = |memory: &[u8]| match expected.ranks[rank].groups[group].element {
                Element::F32 => f32::from_le_bytes(memory[begin..begin + 4].try_into().unwrap()).is_nan(),
                Element::Bf16 => half::bf16::from_le_bytes(memory[begin..begin + 2].try_into().unwrap()).is_nan(),
                Element::F16 => half::f16::from_le_bytes(memory[begin..begin + 2].try_into().unwrap()).is_nan(),
                Element::Fp8E4m3 => false,
            };
            assert!(nan(one) && nan(other), "{}: byte {at} of rank {rank} is {} not {}", words(), other[at], one[at]);
        }
    }
}
