//! fp8: blocks share scales, so what comes second may change what is there.

use serq_transfer::layout::{Element, Group, Nesting, Order};

use crate::naive::{At, Instance};
use crate::shapes::{self, Draws, fill, group, instance, layouts};

/// From here the nearest code's number is no single any more: (2 − 2⁻⁴) · 2¹²⁷.
const ROUNDED_TO_INFINITY: f32 = f32::from_bits(0x7f78_0000);

fn sides(element: Element, m: usize, n: usize, seed: u64) -> (Instance, Instance) {
    let mut draws = Draws(seed);
    let (nesting, order) = draws.of(&layouts());
    let from = Group { element, block_tokens: m, ..group() };
    let to = Group { element: Element::Fp8E4m3, block_tokens: n, nesting, order, ..group() };
    let mut source = instance("prefill/0", 1, &[from], 0, 16, &mut draws);
    fill(&mut source, seed);
    (source, instance("decode/0", 1, &[to], 0, 16, &mut draws))
}

fn read(source: &Instance, reader: &mut Instance, range: std::ops::Range<usize>) {
    let plan = shapes::plan(&shapes::join(source, reader), source, reader, (0, 0), range).unwrap();
    plan.copy_all(&source.memories, &mut reader.memories);
}

fn elements(reader: &Instance) -> Vec<At> {
    let rows = reader.rows(0, 0).into_iter();
    rows.flat_map(|row| (0..16).flat_map(move |token| (0..3).map(move |dim| At { token, dim, ..row }))).collect()
}

/// Ranges in any order that fill blocks piece by piece: one scale in the end, and every number within the bound of fp8
/// under it. Below the smallest normal code twice the bound, as each growth of the scale rounds again.
#[test]
fn a_block_filled_by_many_ranges_has_the_scale_of_all_and_stays_within_the_bound() {
    for seed in 0..200 {
        let mut draws = Draws(seed);
        let element = draws.of(&[Element::F32, Element::Bf16, Element::F16]);
        let (source, empty) = sides(element, 4, draws.of(&[4, 5, 8, 16]), seed);
        let mut at_once = empty.clone();
        let n = empty.group(0).block_tokens;
        // Whole blocks: what is behind the last one is not moved.
        let end = 16 / n * n;
        read(&source, &mut at_once, 0..end);
        let mut cuts: Vec<usize> = vec![0, end];
        cuts.extend((0..draws.below(8)).map(|_| draws.below(end)));
        cuts.sort_unstable();
        let mut ranges: Vec<_> = cuts.windows(2).map(|pair| pair[0]..pair[1]).collect();
        for at in (1..ranges.len()).rev() {
            ranges.swap(at, draws.below(at + 1));
        }
        let mut in_parts = empty.clone();
        for range in ranges {
            read(&source, &mut in_parts, range);
        }
        for at in elements(&empty).into_iter().filter(|at| at.token < end) {
            let block = empty.slot(0, 0, at.token).0;
            let scale = f64::from(in_parts.scale(0, 0, block, at));
            assert_eq!(scale, f64::from(at_once.scale(0, 0, block, at)), "seed {seed}: the scale of {at:?}");
            let exact = f64::from(source.number(0, 0, at));
            for (found, roundings) in [(&at_once, 1.0), (&in_parts, 2.0)] {
                let found = f64::from(found.number(0, 0, at));
                if exact.abs() >= f64::from(ROUNDED_TO_INFINITY) && exact.is_finite() {
                    assert!(found.is_infinite());
                } else if exact.is_finite() {
                    let bound = (exact.abs() / 16.0).max(roundings * scale * 2f64.powi(-10));
                    assert!((found - exact).abs() <= bound, "seed {seed}: {at:?} {exact:e} is {found:e}");
                    assert_eq!(found.is_sign_negative(), exact.is_sign_negative(), "seed {seed}: {at:?}");
                } else if exact.is_nan() {
                    assert!(found.is_nan(), "seed {seed}: {at:?}");
                } else {
                    // The largest number of its range's scale, and an ordinary one from then on.
                    assert_eq!(found.is_sign_negative(), exact.is_sign_negative());
                    let largest = f64::from((448.0 * scale) as f32);
                    assert!(found.abs() <= largest && (roundings > 1.0 || found.abs() == largest), "{seed}: {at:?}");
                }
            }
        }
    }
}

/// What lies there already, a prefix that was hit, is kept when larger numbers come beside it.
#[test]
fn a_prefix_in_the_same_block_is_brought_under_the_new_scale() {
    let (mut source, mut reader) = sides(Element::F32, 16, 16, 1);
    let set = |source: &mut Instance, token: usize, number: f32| {
        let (block, slot) = source.slot(0, 0, token);
        for row in source.rows(0, 0) {
            for dim in 0..3 {
                let stored = crate::naive::to(Element::F32, number);
                source.save(0, 0, block, slot, At { token, dim, ..row }, stored);
            }
        }
    };
    (0..4).for_each(|token| set(&mut source, token, 3.5));
    (4..16).for_each(|token| set(&mut source, token, 448.0 * 8.0));
    read(&source, &mut reader, 0..4);
    let at = reader.rows(0, 0)[0];
    assert_eq!((reader.scale(0, 0, reader.slot(0, 0, 0).0, at), reader.number(0, 0, at)), (2f32.powi(-7), 3.5));
    read(&source, &mut reader, 4..7);
    assert_eq!((reader.scale(0, 0, reader.slot(0, 0, 0).0, at), reader.number(0, 0, at)), (8.0, 3.5));
    assert_eq!(reader.number(0, 0, At { token: 5, ..at }), 3584.0);
}

/// A block that another text had: without emptying its scale stays, and small numbers vanish under it.
#[test]
fn a_block_handed_to_another_text_is_emptied_first() {
    let (mut source, mut reader) = sides(Element::F32, 16, 16, 2);
    let rows = source.rows(0, 0);
    let write = |source: &mut Instance, number: f32| {
        for at in
            rows.iter().flat_map(|&row| (0..16).flat_map(move |token| (0..3).map(move |dim| At { token, dim, ..row })))
        {
            let (block, slot) = source.slot(0, 0, at.token);
            source.save(0, 0, block, slot, at, crate::naive::to(Element::F32, number));
        }
    };
    write(&mut source, 1e6);
    read(&source, &mut reader, 0..16);
    write(&mut source, 1e-3);
    let mut stale = reader.clone();
    read(&source, &mut stale, 0..3);
    assert_eq!(stale.number(0, 0, rows[0]), 0.0);
    let blocks = reader.tables[0][0].1.clone();
    shapes::join(&source, &reader).empty(0, 0, &blocks, &mut reader.memories[0]);
    for (&row, &block) in rows.iter().flat_map(|row| blocks.iter().map(move |block| (row, block))) {
        assert_eq!(reader.scale(0, 0, block as usize, row), 0.0);
    }
    read(&source, &mut reader, 0..3);
    assert!((reader.number(0, 0, rows[0]) - 1e-3).abs() < 1e-3 / 16.0);
    // A range that fills the block needs no emptying.
    write(&mut source, 1e6);
    read(&source, &mut reader, 0..16);
    write(&mut source, 1e-3);
    read(&source, &mut reader, 0..16);
    assert!((reader.number(0, 0, rows[0]) - 1e-3).abs() < 1e-3 / 16.0);
}

/// fp8 to fp8: codes under the scale that the reader ends with are the source's, also where a scale is no power of two.
#[test]
fn codes_of_one_scale_are_copied_whatever_the_blocks() {
    for (m, n) in (1..=5).flat_map(|m| (1..=5).map(move |n| (m, n))) {
        let (mut source, mut reader) = sides(Element::Fp8E4m3, m, n, (m * 10 + n) as u64);
        for row in source.rows(0, 0) {
            for block in 0..source.group(0).blocks {
                source.set_scale(0, 0, block, row, 0.3);
            }
        }
        read(&source, &mut reader, 2..13);
        for at in elements(&reader).into_iter().filter(|at| (2..13).contains(&at.token)) {
            let ((from, from_slot), (to, to_slot)) = (source.slot(0, 0, at.token), reader.slot(0, 0, at.token));
            let code = |side: &Instance, block, slot| side.load(0, 0, block, slot, at);
            assert_eq!(code(&source, from, from_slot), code(&reader, to, to_slot), "{m} to {n}, {at:?}");
            assert_eq!(reader.scale(0, 0, to, at), 0.3);
        }
    }
}

/// Through singles, halves or bf16 and back: every code but NaN's sign under a scale that is a power of two.
#[test]
fn fp8_to_a_wider_format_and_back_gives_the_same_numbers() {
    for (seed, wide) in [Element::F32, Element::Bf16, Element::F16].into_iter().enumerate() {
        let (mut source, _) = sides(Element::Fp8E4m3, 4, 4, seed as u64);
        for row in source.rows(0, 0) {
            for block in 0..source.group(0).blocks {
                source.set_scale(0, 0, block, row, 0.125);
            }
        }
        let mut draws = Draws(seed as u64);
        let between =
            Group { element: wide, block_tokens: 5, nesting: Nesting::LayerMajor, order: Order::Hnd, ..group() };
        let mut wider = instance("store/0", 2, &[between], 0, 16, &mut draws);
        let mut back = instance("decode/0", 1, &source.ranks[0].groups, 0, 16, &mut draws);
        read(&source, &mut wider, 0..16);
        read(&wider, &mut back, 0..16);
        for at in elements(&source) {
            let (one, other) = (source.number(0, 0, at), back.number(0, 0, at));
            assert!(one.to_bits() == other.to_bits() || one.is_nan() && other.is_nan(), "{wide:?}: {one} is {other}");
        }
    }
}
