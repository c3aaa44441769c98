//! Every pair of layouts, element by element against the naive converter.

use serq_transfer::layout::{Content, Element, Group, Nesting, Order, Piece, Side};

use crate::naive::Instance;
use crate::shapes::{self, Draws, ELEMENTS, check_move, fill, group, instance, layouts};

/// A source and a reader of one group each that hold 11 tokens; the source's are filled. The reader's table
/// begins where `hit` lies there already, the source's with any token before.
fn sides(source: (usize, Group), reader: (usize, Group), hit: usize, seed: u64) -> (Instance, Instance) {
    let mut draws = Draws(seed);
    let first = draws.below(hit + 1);
    let mut from = instance("prefill/0", source.0, &[source.1], first, 11, &mut draws);
    fill(&mut from, seed);
    (from, instance("decode/0", reader.0, &[reader.1], hit, 11, &mut draws))
}

#[test]
fn every_pair_of_layouts_elements_and_block_sizes_moves_as_element_by_element() {
    let mut draws = Draws(1);
    for (nesting, order) in layouts() {
        for (reader_nesting, reader_order) in layouts() {
            for (element, reader_element) in ELEMENTS.into_iter().flat_map(|one| ELEMENTS.map(|other| (one, other))) {
                for (m, n) in (1..=5).flat_map(|m| (1..=5).map(move |n| (m, n))) {
                    let content = Content::Heads { kv_heads: draws.below(3) + 1, head_dim: draws.below(4) + 1 };
                    let source = Group { content, nesting, order, element, block_tokens: m, ..group() };
                    let reader = Group {
                        nesting: reader_nesting,
                        order: reader_order,
                        element: reader_element,
                        block_tokens: n,
                        ..source.clone()
                    };
                    let start = draws.below(9);
                    let (source, reader) = sides((1, source), (1, reader), start, draws.next());
                    let partial = start + draws.below(12 - start);
                    let end = draws.of(&[11, partial]);
                    check_move(&source, &reader, (0, 0), start..end);
                }
            }
        }
    }
}

/// Row 30 of the field's reports: prefill of 2 ranks, decode of 1, wrong text. Here with every number of ranks, heads that
/// are split and heads that are copied, and block sizes.
#[test]
fn every_pair_of_tensor_parallel_degrees_keeps_heads_apart() {
    let mut draws = Draws(2);
    let mut pairs = 0;
    for kv_heads in 1..=4_usize {
        let fits = |degree: &usize| kv_heads.is_multiple_of(*degree) || degree.is_multiple_of(kv_heads);
        let degrees: Vec<usize> = [1, 2, 3, 4, 6, 8].into_iter().filter(fits).collect();
        for (&p, &d) in degrees.iter().flat_map(|p| degrees.iter().map(move |d| (p, d))) {
            for (m, n) in (1..=5).flat_map(|m| (1..=5).map(move |n| (m, n))) {
                let any = |draws: &mut Draws| {
                    let (nesting, order) = draws.of(&layouts());
                    let content = Content::Heads { kv_heads, head_dim: 2 };
                    Group { content, nesting, order, element: draws.of(&ELEMENTS), ..group() }
                };
                for (start, end) in [(0, 11), (0, 1), (3, 7), (5, 11), (10, 11), (4, 4)] {
                    let source = Group { block_tokens: m, ..any(&mut draws) };
                    let reader = Group { block_tokens: n, ..any(&mut draws) };
                    let (source, reader) = sides((p, source), (d, reader), start, draws.next());
                    check_move(&source, &reader, (0, 0), start..end);
                    pairs += 1;
                }
            }
        }
    }
    assert!(pairs > 10_000, "{pairs}");
}

#[test]
fn latents_are_taken_from_one_rank_each() {
    let mut draws = Draws(3);
    for (p, d) in [1, 2, 4].into_iter().flat_map(|p| [1, 2, 4, 8].map(move |d| (p, d))) {
        for (element, reader_element) in ELEMENTS.into_iter().flat_map(|one| ELEMENTS.map(|other| (one, other))) {
            let (nesting, order) = (draws.of(&shapes::NESTINGS), draws.of(&[Order::Nhd, Order::Hnd]));
            let source = Group { content: Content::Latent { dim: 5 }, nesting, order, element, ..group() };
            let reader = Group {
                nesting: draws.of(&shapes::NESTINGS),
                element: reader_element,
                block_tokens: draws.below(5) + 1,
                ..source.clone()
            };
            let (source, reader) = sides((p, source), (d, reader), 2, draws.next());
            check_move(&source, &reader, (0, 0), 2..10);
            let shares = shapes::join(&source, &reader).shares(0);
            assert_eq!(shares.len(), d, "one share a reader's rank");
            for rank in 0..p.min(d) {
                let readers = shares.iter().filter(|share| share.source_rank == rank * (p / p.min(d))).count();
                assert_eq!(readers, d / d.min(p), "{p} to {d}: readers are spread evenly");
            }
        }
    }
}

/// Shapes as models have them, at random.
#[test]
fn larger_shapes_move_as_element_by_element() {
    let mut draws = Draws(4);
    for _ in 0..60 {
        let content = Content::Heads { kv_heads: draws.of(&[2, 4, 8]), head_dim: draws.of(&[16, 64]) };
        let layers: Vec<u32> = (0..draws.below(3) as u32 + 1).map(|layer| layer * 3 + 1).collect();
        let any = |draws: &mut Draws| {
            let (nesting, order) = draws.of(&layouts());
            let (element, block_tokens) = (draws.of(&ELEMENTS), draws.of(&[8, 16, 24, 32, 128]));
            Group { content, layers: layers.clone(), nesting, order, element, block_tokens, ..group() }
        };
        let (one, other) = (any(&mut draws), any(&mut draws));
        let (p, d) = (draws.of(&[1, 2, 4, 8]), draws.of(&[1, 2, 4, 8]));
        let (hit, end) = (draws.below(40), 40 + draws.below(60));
        let mut source = instance("prefill/0", p, &[one], 0, end, &mut draws);
        fill(&mut source, draws.next());
        let reader = instance("decode/0", d, &[other], hit, end, &mut draws);
        check_move(&source, &reader, (0, 0), hit..end);
    }
}

/// There and back is where it was: bit by bit where the way goes through a format that holds the numbers.
#[test]
fn there_and_back_through_a_wider_format_gives_the_same_bytes() {
    let mut draws = Draws(5);
    let narrow = [(Element::Bf16, Element::F32), (Element::F16, Element::F32), (Element::Bf16, Element::Bf16)];
    for (element, wide) in narrow {
        for ((nesting, order), (other_nesting, other_order)) in
            layouts().into_iter().flat_map(|one| layouts().into_iter().map(move |other| (one, other)))
        {
            let here = Group { nesting, order, element, block_tokens: 3, ..group() };
            let there = Group { nesting: other_nesting, order: other_order, element: wide, block_tokens: 5, ..group() };
            let (mut source, mut reader) = sides((1, here), (2, there), 0, draws.next());
            // Any bits, all NaNs among them.
            for byte in &mut source.memories[0] {
                *byte = draws.next() as u8;
            }
            let tokens = 0..11;
            let out = shapes::plan(&shapes::join(&source, &reader), &source, &reader, (0, 0), tokens.clone()).unwrap();
            out.copy_all(&source.memories, &mut reader.memories);
            let mut back = source.clone();
            for &block in &source.tables[0][0].1 {
                for row in source.rows(0, 0) {
                    for at in (0..3).map(|dim| crate::naive::At { dim, ..row }) {
                        let zero = crate::naive::to(element, 0.0);
                        (0..3).for_each(|slot| back.save(0, 0, block as usize, slot, at, zero));
                    }
                }
            }
            // The slots behind the last token are in no range.
            let mut expected = back.clone();
            crate::naive::convert(&source, &mut expected, (0, 0), tokens.clone());
            let home = shapes::plan(&shapes::join(&reader, &back), &reader, &back, (0, 0), tokens).unwrap();
            home.copy_all(&reader.memories, &mut back.memories);
            assert!(back.memories == expected.memories, "{element:?} by {wide:?}, {nesting:?} {order:?}");
        }
    }
}

/// What a stream carries: gathered into a contiguous buffer and scattered from it, the same as straight.
#[test]
fn a_staging_buffer_between_changes_nothing() {
    let mut draws = Draws(6);
    for round in 0..400 {
        let any = |draws: &mut Draws, layers: &[u32]| {
            let (nesting, order) = draws.of(&layouts());
            let (element, block_tokens) = (draws.of(&ELEMENTS), draws.below(5) + 1);
            Group { nesting, order, element, block_tokens, layers: layers.to_vec(), ..group() }
        };
        let groups = |draws: &mut Draws| [any(draws, &[0, 1]), any(draws, &[2])];
        let (p, d) = (draws.of(&[1, 2, 4]), draws.of(&[1, 2, 4]));
        let mut source = instance("prefill/0", p, &groups(&mut draws), 0, 11, &mut draws);
        let reader = instance("decode/0", d, &groups(&mut draws), 0, 11, &mut draws);
        fill(&mut source, round);
        let range = draws.below(5)..draws.below(6) + 5;
        // Of the source's heads, or of the reader's: the one is gathered at the source, the other at the reader.
        let ranks = draws.of(&[&source.ranks, &reader.ranks]).clone();
        let like = &source.ranks[0];
        let staged: Vec<_> = ranks.iter().map(|rank| rank.staging(&[range.len(); 2], like)).collect();
        let identity: Vec<u32> = (0..range.len() as u32).collect();
        let buffer = Instance {
            memories: staged.iter().map(|rank| vec![0; rank.memory_bytes()]).collect(),
            tables: vec![vec![(range.start, identity); staged.len()]; 2],
            ranks: staged,
        };
        for rank in &buffer.ranks {
            rank.check().unwrap();
        }
        let (mut buffered, mut straight, mut scattered) = (buffer.clone(), reader.clone(), reader.clone());
        for nth in 0..2 {
            let move_to = |from: &Instance, to: &mut Instance| {
                let plan = shapes::plan(&shapes::join(from, to), from, to, (nth, nth), range.clone()).unwrap();
                plan.copy_all(&from.memories, &mut to.memories);
            };
            move_to(&source, &mut straight);
            move_to(&source, &mut buffered);
            move_to(&buffered, &mut scattered);
        }
        assert!(straight.memories == scattered.memories, "round {round}");
    }
}

/// Byte ranges are as long as memory allows.
#[test]
fn pieces_are_merged_as_far_as_bytes_follow_each_other() {
    let cases = [
        // One layout and blocks in a row on both sides: everything is one piece.
        (Nesting::BlockMajor, Order::Nhd, 4, 4, 1),
        (Nesting::BlockMajor, Order::Hnd, 4, 4, 1),
        // Each tensor by itself: blocks in a row, then the two blocks that are over.
        (Nesting::LayerMajor, Order::Nhd, 4, 4, 4),
        (Nesting::LayerBlockMajor, Order::PackedNhd, 4, 4, 2),
        // In tensors a token follows a token whatever the blocks are.
        (Nesting::LayerMajor, Order::Nhd, 4, 2, 4),
        (Nesting::LayerBlockMajor, Order::PackedNhd, 4, 2, 2),
        // Half blocks: 4 of them, each in 2 layers and 2 halves; where the source's first block ends, bytes go
        // on at the reader too.
        (Nesting::BlockMajor, Order::Nhd, 4, 2, 15),
        // And each in 2 heads.
        (Nesting::BlockMajor, Order::Hnd, 4, 2, 31),
    ];
    for (nesting, order, m, n, count) in cases {
        let of = |block_tokens: usize| Group { nesting, order, block_tokens, ..group() };
        let mut draws = Draws(7);
        let mut source = instance("prefill/0", 1, &[of(m)], 0, 8, &mut draws);
        let mut reader = instance("decode/0", 1, &[of(n)], 0, 8, &mut draws);
        source.tables[0][0].1 = (0..8 / m as u32).collect();
        reader.tables[0][0].1 = (1..=8 / n as u32).collect();
        let plan = shapes::plan(&shapes::join(&source, &reader), &source, &reader, (0, 0), 0..8).unwrap();
        let pieces = plan.pieces(0, 0).unwrap();
        assert_eq!(pieces.len(), count, "{nesting:?} {order:?} {m} to {n}: {pieces:?}");
        assert_eq!(pieces.iter().map(|piece| piece.bytes).sum::<usize>(), plan.source_bytes());
    }
}

/// A piece is what it says, in numbers: 2 layers, 2 heads of 3 singles, so 24 bytes a token, 96 a block's part.
#[test]
fn a_partial_block_is_a_piece_a_layer_and_half() {
    let mut draws = Draws(8);
    let mut source = instance("prefill/0", 1, &[group()], 0, 8, &mut draws);
    let mut reader = source.clone();
    (source.tables[0][0].1, reader.tables[0][0].1) = (vec![0, 1], vec![2, 0]);
    for side in [&mut source, &mut reader] {
        side.ranks[0].groups[0].first_byte = 0;
    }
    let plan = shapes::plan(&shapes::join(&source, &reader), &source, &reader, (0, 0), 1..3).unwrap();
    let piece = |part: usize| Piece { source: part * 96 + 24, reader: 2 * 384 + part * 96 + 24, bytes: 48 };
    assert_eq!(plan.pieces(0, 0).unwrap(), (0..4).map(piece).collect::<Vec<_>>());
}

/// Copies of a head: each reader's rank asks one rank of the source, and bytes are moved once.
#[test]
fn a_copied_head_is_moved_once_to_each_reader() {
    for (kv_heads, p, d) in [(2, 4, 2), (2, 8, 4), (1, 8, 2), (2, 4, 8), (4, 8, 1), (2, 2, 8), (3, 6, 3)] {
        let content = Content::Heads { kv_heads, head_dim: 2 };
        let of = || Group { content, ..group() };
        let (source, reader) = sides((p, of()), (d, of()), 0, 9);
        let conversion = shapes::join(&source, &reader);
        let plan = shapes::plan(&conversion, &source, &reader, (0, 0), 0..11).unwrap();
        let kept: usize = conversion.geometries(0, Side::Reader).iter().map(|rank| rank.token_bytes() * 11).sum();
        assert_eq!(plan.source_bytes(), kept, "{kv_heads} heads, {p} to {d}");
        // No rank of the source serves a copy more than one other of the same head does.
        let shares = conversion.shares(0);
        for head in 0..kv_heads {
            let asked = |rank: usize| {
                let asks =
                    |share: &&serq_transfer::layout::Share| share.source_rank == rank && share.heads.contains(&head);
                shares.iter().filter(asks).count()
            };
            let owners = (0..p).filter(|&rank| crate::naive::heads(source.group(0), p, rank).contains(&head));
            let counts: Vec<usize> = owners.map(asked).collect();
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(most - least <= 1, "{kv_heads} heads, {p} to {d}: head {head} is asked {counts:?}");
        }
    }
}

/// Nothing is moved half.
#[test]
fn a_memory_shorter_than_described_is_refused_before_a_byte_is_moved() {
    let (source, mut reader) = sides((1, group()), (2, group()), 0, 11);
    let plan = shapes::plan(&shapes::join(&source, &reader), &source, &reader, (0, 0), 0..11).unwrap();
    let short = reader.ranks[1].memory_bytes() - 1;
    reader.memories[1].truncate(short);
    let before = reader.memories.clone();
    let moved = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        plan.copy_all(&source.memories, &mut reader.memories);
    }));
    assert!(moved.is_err() && reader.memories == before);
}
