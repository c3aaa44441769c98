//! What went wrong for others, one test a report. The numbers are those of the collection of reports
//! that this crate was built against; the links are in `docs/kv-layouts.md`.

use std::slice::from_ref;

use serq_transfer::layout::{self, BlockTable, Content, Element, Geometry, Group, Order, Side};

use crate::naive::Instance;
use crate::shapes::{self, Draws, ELEMENTS, check_move, describe, fill, group, instance, layouts};

/// Row 14 (vllm#48633): the reader has a part of the prompt already, and the writer lined both block lists up at
/// their fronts, so that a prefix's blocks came into a suffix's slots. Every hit, every pair of block sizes, and tables
/// that begin with the text or with the hit.
#[test]
fn a_partial_prefix_hit_is_met_by_offset_and_not_by_list_position() {
    let mut draws = Draws(14);
    let prompt = 11;
    for (m, n) in (1..=5).flat_map(|m| (1..=5).map(move |n| (m, n))) {
        for hit in 0..prompt {
            for (source_begin, begin) in [(0, 0), (0, hit), (hit, 0), (hit / 2, hit)] {
                let of = |block_tokens| Group { block_tokens, element: Element::Bf16, ..group() };
                let mut source = instance("prefill/0", 1, &[of(m)], source_begin, prompt, &mut draws);
                let reader = instance("decode/0", 1, &[of(n)], begin, prompt, &mut draws);
                fill(&mut source, draws.next());
                check_move(&source, &reader, (0, 0), hit..prompt);
            }
        }
    }
    // In numbers: 8 tokens in blocks 5 6 of 4; the reader had 4 of them, and its list has only the block of the rest.
    let mut groups = [group()];
    groups[0].blocks = 8;
    let ranks = describe("prefill/0", 1, &groups);
    let conversion = layout::join(&ranks, &ranks).unwrap();
    let source = BlockTable { first_token: 0, blocks: &[5, 6] };
    let reader = BlockTable { first_token: 4, blocks: &[1] };
    let pieces = conversion.plan(0, 4..8, &[source], &[reader]).unwrap().pieces(0, 0).unwrap();
    assert_eq!(pieces, [layout::Piece { source: 6 * 384, reader: 384, bytes: 384 }]);
}

/// Row 25 (LMCache#4614, vllm#52617): of a prompt of N tokens the reader takes N − 1 and computes the last one; the
/// adapter took N. Hits of nothing, of whole blocks, and around the end.
#[test]
fn all_but_the_last_token_of_a_prompt_is_read() {
    let mut draws = Draws(25);
    for prompt in 1..=9_usize {
        for (m, n) in (1..=5).flat_map(|m| (1..=5).map(move |n| (m, n))) {
            for hit in [0, n, prompt - 1, prompt, prompt + 1] {
                let of = |block_tokens| Group { block_tokens, ..group() };
                let range = of(n).tokens_to_read(hit, prompt);
                assert_eq!(range.len(), (prompt - 1).saturating_sub(hit), "{prompt} with {hit} hit");
                assert!(range.is_empty() || range == (hit..prompt - 1));
                let mut source = instance("prefill/0", 1, &[of(m)], 0, prompt, &mut draws);
                let reader = instance("decode/0", 1, &[of(n)], 0, prompt, &mut draws);
                fill(&mut source, draws.next());
                check_move(&source, &reader, (0, 0), range);
            }
        }
    }
    // Of a window of 4 the last token of 10 sees 6, 7, 8 and itself.
    let windowed = Group { window: Some(4), ..group() };
    assert_eq!(windowed.tokens_to_read(0, 10), 6..9);
    assert_eq!(windowed.tokens_to_read(7, 10), 7..9);
    assert_eq!(windowed.tokens_to_read(0, 3), 0..2);
    assert_eq!(Group { window: Some(1), ..group() }.tokens_to_read(0, 5), 4..4);
    assert_eq!(group().tokens_to_read(0, 0), 0..0);
}

/// Row 30 (TensorRT-LLM#6507): prefill of 2 ranks, decode of 1. The heads of both ranks, side by side and in order.
#[test]
fn two_ranks_read_by_one_keep_their_heads_apart() {
    let source = describe("prefill/0", 2, &[Group { blocks: 1, ..group() }]);
    let reader = describe("decode/0", 1, &[Group { blocks: 1, ..group() }]);
    let conversion = layout::join(&source, &reader).unwrap();
    let table = BlockTable { first_token: 0, blocks: &[0] };
    let plan = conversion.plan(0, 0..1, &[table, table], &[table]).unwrap();
    // A head is 3 singles. A token of a rank has one, of the reader both; 4 slots, 4 parts of layer and half.
    for rank in 0..2 {
        let piece = |part: usize| layout::Piece { source: part * 48, reader: part * 96 + rank * 12, bytes: 12 };
        assert_eq!(plan.pieces(rank, 0).unwrap(), (0..4).map(piece).collect::<Vec<_>>());
    }
}

/// Row 31 (vllm#43523): more ranks at prefill than at decode crashed every decode instance. Here each number of ranks is
/// either joined, and all heads arrive, or refused in a sentence.
#[test]
fn more_ranks_at_prefill_than_at_decode_are_joined_or_refused() {
    let (mut joined, mut refused) = (0, 0);
    for kv_heads in 1..=8 {
        for (p, d) in (1..=8).flat_map(|p| (1..=8).map(move |d| (p, d))) {
            let group = Group { content: Content::Heads { kv_heads, head_dim: 2 }, blocks: 1, ..group() };
            let (source, reader) =
                (describe("prefill/0", p, from_ref(&group)), describe("decode/0", d, from_ref(&group)));
            match layout::join(&source, &reader) {
                Ok(conversion) => {
                    joined += 1;
                    for (rank, geometry) in conversion.geometries(0, Side::Reader).iter().enumerate() {
                        let of_rank = conversion.shares(0).into_iter().filter(|share| share.reader_rank == rank);
                        let heads: Vec<usize> = of_rank.flat_map(|share| share.heads).collect();
                        assert_eq!(heads, geometry.heads.clone().collect::<Vec<_>>());
                    }
                }
                Err(refusal) => {
                    refused += 1;
                    let words = refusal.to_string();
                    assert!(words.contains("cannot be split evenly over"), "{words}");
                }
            }
        }
    }
    assert!(joined > 100 && refused > 100, "{joined} joined, {refused} refused");
}

/// Row 32 (vllm#42895): a hybrid model on 4 ranks and on 8, whose kernels chose other physical block sizes than were
/// configured, and other ones a group.
#[test]
fn block_sizes_that_differ_by_side_and_by_group_are_joined() {
    let mut draws = Draws(32);
    for _ in 0..40 {
        let groups = |full, windowed, draws: &mut Draws| {
            let content = Content::Heads { kv_heads: 4, head_dim: 2 };
            let mut any = |layers: Vec<u32>, window, block_tokens| {
                let ((nesting, order), element) = (draws.of(&layouts()), draws.of(&ELEMENTS));
                Group { content, layers, window, block_tokens, nesting, order, element, ..group() }
            };
            [any(vec![0, 2], None, full), any(vec![1, 3], Some(6), windowed)]
        };
        let mut source = instance("prefill/0", 4, &groups(4, 2, &mut draws), 0, 12, &mut draws);
        let reader = instance("decode/0", 8, &groups(3, 5, &mut draws), 0, 12, &mut draws);
        fill(&mut source, draws.next());
        for nth in 0..2 {
            let range = reader.group(nth).tokens_to_read(0, 12);
            assert_eq!(range.len(), [11, 5][nth]);
            check_move(&source, &reader, (nth, nth), range);
        }
    }
}

/// Row 33 (vllm#38935, #47871): a reader whose backend packs keys and values; fixed, and broken again by a change of
/// layouts. The canary goes through every pair of layouts, formats and a few numbers of ranks.
#[test]
fn the_canary_arrives_through_every_pair_of_backends() {
    let mut draws = Draws(33);
    for ((nesting, order), (other_nesting, other_order)) in
        layouts().into_iter().flat_map(|one| layouts().into_iter().map(move |other| (one, other)))
    {
        for (element, other_element) in ELEMENTS.into_iter().flat_map(|one| ELEMENTS.map(|other| (one, other))) {
            let content = Content::Heads { kv_heads: 2, head_dim: 8 };
            let one = Group { content, nesting, order, element, block_tokens: draws.below(5) + 1, ..group() };
            let other = Group {
                nesting: other_nesting,
                order: other_order,
                element: other_element,
                block_tokens: draws.below(5) + 1,
                ..one.clone()
            };
            let mut source = instance("prefill/0", draws.of(&[1, 2, 4]), &[one], 0, 7, &mut draws);
            let mut reader = instance("decode/0", draws.of(&[1, 2, 4]), &[other], 0, 7, &mut draws);
            for rank in 0..source.ranks.len() {
                let table = shapes::tables(&source.tables[0])[rank];
                layout::canary::fill(&source.ranks[rank], 0, &table, 0..7, &mut source.memories[rank]);
            }
            let plan = shapes::plan(&shapes::join(&source, &reader), &source, &reader, (0, 0), 0..7).unwrap();
            plan.copy_all(&source.memories, &mut reader.memories);
            for rank in 0..reader.ranks.len() {
                crate::canaries::check(&reader, rank, 0..7).unwrap_or_else(|wrong| panic!("{wrong}"));
            }
        }
    }
}

/// Row 34 (vllm#42024): an instance with a connector silently kept window layers in full, and had half the capacity. A
/// descriptor says what is kept: here gpt-oss-20b, 12 layers in full and 12 in a window of 128.
#[test]
fn a_descriptor_tells_windows_from_full_layers_so_a_lost_hybrid_cache_is_seen() {
    let content = Content::Heads { kv_heads: 8, head_dim: 64 };
    let of = |layers: Vec<u32>, window| Group { content, layers, window, element: Element::Bf16, ..group() };
    let (even, odd) = ((0..24).step_by(2).collect(), (1..24).step_by(2).collect());
    let hybrid = describe("prefill/0", 1, &[of(even, Some(128)), of(odd, None)]);
    let plain = describe("decode/0", 1, &[of((0..24).collect(), None)]);
    let token_bytes = |ranks: &[layout::Descriptor], group| Geometry::of(&ranks[0], group).unwrap().token_bytes();
    assert_eq!(token_bytes(&hybrid, 1), 24_576, "grows with the text");
    assert_eq!(token_bytes(&hybrid, 0) * 128, 3_145_728, "once a request");
    assert_eq!(token_bytes(&plain, 0), 2 * 24_576, "twice as much a token");
    assert_eq!(
        layout::join(&hybrid, &plain).unwrap_err().to_string(),
        "decode/0 cannot read the KV of prefill/0: there are 2 cache groups at prefill/0 and 1 at decode/0"
    );
}

/// Row 35 (vllm#50714): of groups with other block sizes and shapes only the first was registered. Here groups of
/// two kinds, listed in another order on the other side, all arrive.
#[test]
fn groups_of_other_shapes_are_all_moved() {
    let mut draws = Draws(35);
    for _ in 0..60 {
        let mut any = |content: Content, layers: &[u32]| {
            let order = match content {
                Content::Latent { .. } => draws.of(&[Order::Nhd, Order::Hnd]),
                Content::Heads { .. } => draws.of(&shapes::ORDERS),
            };
            let (nesting, element) = (draws.of(&shapes::NESTINGS), draws.of(&ELEMENTS));
            let (layers, block_tokens) = (layers.to_vec(), draws.below(5) + 1);
            Group { content, layers, block_tokens, nesting, order, element, ..group() }
        };
        let kinds: [(Content, &[u32]); 3] = [
            (Content::Heads { kv_heads: 2, head_dim: 3 }, &[0, 3]),
            (Content::Heads { kv_heads: 4, head_dim: 2 }, &[1]),
            (Content::Latent { dim: 6 }, &[2, 4, 5]),
        ];
        let here = kinds.map(|(content, layers)| any(content, layers));
        let mut there = kinds.map(|(content, layers)| any(content, layers));
        there.rotate_left(1);
        let mut source = instance("prefill/0", 2, &here, 0, 9, &mut draws);
        let reader = instance("decode/0", 4, &there, 0, 9, &mut draws);
        fill(&mut source, draws.next());
        let mut arrived: Instance = reader.clone();
        for nth in 0..3 {
            check_move(&source, &reader, ((nth + 1) % 3, nth), 1..9);
            let conversion = shapes::join(&source, &arrived);
            let plan = shapes::plan(&conversion, &source, &arrived, ((nth + 1) % 3, nth), 1..9).unwrap();
            plan.copy_all(&source.memories, &mut arrived.memories);
        }
        // And one after the other none disturbs another.
        let mut expected = reader.clone();
        (0..3).for_each(|nth| crate::naive::convert(&source, &mut expected, ((nth + 1) % 3, nth), 1..9));
        for rank in 0..4 {
            for nth in 0..3 {
                for at in reader.rows(nth, rank) {
                    let at = crate::naive::At { token: 8, ..at };
                    let (one, other) = (expected.number(nth, rank, at), arrived.number(nth, rank, at));
                    assert!(one == other || one.is_nan() && other.is_nan());
                }
            }
        }
    }
}
