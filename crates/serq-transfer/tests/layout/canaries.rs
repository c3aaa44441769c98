//! The canary: what it says when something is misplaced.

use serq_transfer::layout::canary::{self, Misplaced, Row};
use serq_transfer::layout::{Content, Element, Group, Half, Order};

use crate::naive::{At, Instance};
use crate::shapes::{self, Draws, ELEMENTS, group, instance};

/// Looks at a canary through the naive reader.
pub(crate) fn check(reader: &Instance, rank: usize, tokens: std::ops::Range<usize>) -> Result<(), Misplaced> {
    canary::check(&reader.ranks[rank], 0, tokens, |row, dim| read(reader, rank, row, dim))
}

fn read(reader: &Instance, rank: usize, row: Row, dim: usize) -> f32 {
    let layer = reader.group(0).layers.iter().position(|&layer| layer == row.layer).unwrap();
    reader.number(0, rank, At { layer, half: row.half as usize, head: row.head, token: row.token, dim })
}

fn filled() -> Instance {
    let content = Content::Heads { kv_heads: 4, head_dim: 8 };
    let group = Group { content, layers: vec![3, 4, 7], ..group() };
    let mut source = instance("prefill/0", 1, &[group], 0, 9, &mut Draws(40));
    let table = shapes::tables(&source.tables[0])[0];
    canary::fill(&source.ranks[0].clone(), 0, &table, 0..9, &mut source.memories[0]);
    source
}

/// What is said of a reader that looks at other places than it should.
fn sentence(misplace: impl Fn(Row, usize) -> (Row, usize)) -> String {
    let source = filled();
    let wrong = canary::check(&source.ranks[0], 0, 0..8, |row, dim| {
        let (row, dim) = misplace(row, dim);
        read(&source, 0, row, dim)
    });
    wrong.expect_err("misplaced").to_string()
}

#[test]
fn a_canary_says_what_was_exchanged() {
    let swap = |one: usize, other: usize, at: usize| {
        if at == one {
            other
        } else if at == other {
            one
        } else {
            at
        }
    };
    assert_eq!(sentence(|row, dim| (Row { head: swap(1, 2, row.head), ..row }, dim)), "heads 1 and 2 are exchanged");
    assert_eq!(
        sentence(|row, dim| (Row { layer: swap(4, 7, row.layer as usize) as u32, ..row }, dim)),
        "layers 4 and 7 are exchanged"
    );
    let other = |half| if half == Half::Keys { Half::Values } else { Half::Keys };
    assert_eq!(sentence(|row, dim| (Row { half: other(row.half), ..row }, dim)), "keys and values are exchanged");
    assert_eq!(sentence(|row, dim| (Row { token: swap(2, 5, row.token), ..row }, dim)), "tokens 2 and 5 are exchanged");
    assert_eq!(
        sentence(|row, dim| (Row { head: (row.head + 1) % 4, ..row }, dim)),
        "heads are mixed up: 0 holds 1, 1 holds 2, 2 holds 3, 3 holds 0"
    );
    assert_eq!(
        sentence(|row, dim| (Row { head: row.head / 2, ..row }, dim)),
        "heads are mixed up: 1 holds 0, 2 holds 1, 3 holds 1"
    );
    // The front of the list instead of the offset; the last token's place has one that was not asked about.
    assert_eq!(
        sentence(|row, dim| (Row { token: row.token + 1, ..row }, dim)),
        "tokens are 1 too early; 24 of 192 rows hold nothing of the canary: \
         number 0 of layer 3, keys, head 0, token 7 is 15 instead of 10"
            .replace("15 instead of 10", &{
                let number = |token| canary::number(Row { layer: 3, half: Half::Keys, head: 0, token }, 0);
                format!("{} instead of {}", number(8), number(7))
            })
    );
    assert_eq!(
        sentence(|row, dim| (row, 7 - dim)),
        "192 of 192 rows hold nothing of the canary: the numbers of layer 3, keys, head 0, token 0 are there in another order"
    );
    // Two axes at once.
    assert_eq!(
        sentence(|row, dim| (Row { head: swap(0, 1, row.head), half: other(row.half), ..row }, dim))
            .split(": ")
            .next()
            .unwrap(),
        "192 of 192 rows hold another one's numbers"
    );
}

#[test]
fn one_wrong_number_is_told_with_its_place() {
    let source = filled();
    let place = Row { layer: 7, half: Half::Values, head: 3, token: 6 };
    let wrong = canary::check(&source.ranks[0], 0, 0..9, |row, dim| {
        if (row, dim) == (place, 5) { 0.25 } else { read(&source, 0, row, dim) }
    });
    let words = format!(
        "1 of 216 rows hold nothing of the canary: number 5 of layer 7, values, head 3, token 6 is 0.25 instead of {}",
        canary::number(place, 5)
    );
    assert_eq!(wrong.unwrap_err().to_string(), words);
    assert!(check(&source, 0, 0..9).is_ok());
}

/// The pattern's numbers are in every format, the largest with a scale too.
#[test]
fn every_format_holds_the_canary_exactly() {
    for element in ELEMENTS {
        let group = Group { element, order: Order::PackedHnd, ..group() };
        let mut source = instance("prefill/0", 2, &[group], 0, 9, &mut Draws(41));
        for rank in 0..2 {
            let table = shapes::tables(&source.tables[0])[rank];
            canary::fill(&source.ranks[rank].clone(), 0, &table, 0..9, &mut source.memories[rank]);
            assert!(check(&source, rank, 0..9).is_ok(), "{element:?}");
        }
    }
    let numbers = (0..1000).map(|token| canary::number(Row { layer: 0, half: Half::Keys, head: 0, token }, 0));
    let distinct: std::collections::BTreeSet<i32> = numbers.map(|number| number as i32).collect();
    assert_eq!(distinct.into_iter().collect::<Vec<_>>(), (-15..=15).filter(|&number| number != 0).collect::<Vec<_>>());
}

/// A latent has rows too, as keys of one head.
#[test]
fn a_latents_canary_is_whole_on_every_rank() {
    let group = Group { content: Content::Latent { dim: 6 }, element: Element::F16, ..group() };
    let mut source = instance("prefill/0", 2, &[group], 0, 9, &mut Draws(42));
    for rank in 0..2 {
        let table = shapes::tables(&source.tables[0])[rank];
        canary::fill(&source.ranks[rank].clone(), 0, &table, 0..9, &mut source.memories[rank]);
        assert!(check(&source, rank, 0..9).is_ok());
    }
    assert_eq!(canary::check(&source.ranks[1], 0, 0..9, |_, _| 0.0).unwrap_err().rows, 18);
}
