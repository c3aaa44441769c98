//! Where everything stands: boxes of their sizes, in columns, in as many rows as it takes.
//!
//! ```text
//!   channel 0    ─────╮ ways over a row's columns ╭────
//!   row 0        [ ]  [ ]  [  ]  [ ]
//!   channel 1    ─────╯ ways back, and to the next row
//!   row 1        [ ]  [ ]
//!   channel 2
//! ```
//!
//! # Invariants
//!
//! - Boxes overlap only if one is in the other.
//! - Arrows run in channels, in the gaps between columns, and in the margin left of the rows.

use std::ops::Range;

use super::arrow::{self, Path};
use super::enclosure::{Glyph, Part, What};
use super::ink;
use super::network::{Arrow, Network};

/// Wider rows are broken: at this width the text is still read where a page shows the picture
/// 900 px wide.
const ROW_MAX: f64 = 1180.0;
/// Between a box and what is in it.
pub(super) const PAD: f64 = 10.0;
/// Between boxes one above the other.
const GAP: f64 = 8.0;
/// Between columns, at least: an arrow with its head.
const GAP_COLUMNS: f64 = 44.0;
/// What a card of a stack shows of the one behind it.
pub(super) const STACK: f64 = 5.0;
/// Room of a server's sign.
const GLYPH: f64 = 36.0;
/// Room of a queue's sign before a pool's name.
pub(super) const QUEUE: f64 = 24.0;
/// From baseline to baseline.
pub(super) const LINE: f64 = 15.0;
/// Around everything.
pub(super) const MARGIN: f64 = 20.0;
/// For the picture's title.
const TITLE: f64 = 34.0;

/// A box with its place.
pub(super) struct Card<'n> {
    pub(super) part: &'n Part,
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
    /// Cards behind it, shifted right and up.
    pub(super) behind: u32,
    pub(super) cards: Vec<Card<'n>>,
}

impl Card<'_> {
    /// With the cards behind it.
    pub(super) fn right(&self) -> f64 {
        self.x + self.width + f64::from(self.behind) * STACK
    }

    pub(super) fn top(&self) -> f64 {
        self.y - f64::from(self.behind) * STACK
    }

    pub(super) fn bottom(&self) -> f64 {
        self.y + self.height
    }

    fn outer_width(&self) -> f64 {
        self.right() - self.x
    }

    fn outer_height(&self) -> f64 {
        self.bottom() - self.top()
    }

    fn shift(&mut self, x: f64, y: f64) {
        self.x += x;
        self.y += y;
        self.cards.iter_mut().for_each(|card| card.shift(x, y));
    }

    fn stretch(&mut self, outer_width: f64) {
        let more = outer_width - self.outer_width();
        self.width += more;
        for card in &mut self.cards {
            let inner = card.outer_width() + more;
            card.stretch(inner);
        }
    }
}

/// The whole picture.
pub(super) struct Page<'n> {
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) cards: Vec<Card<'n>>,
    pub(super) paths: Vec<Path>,
}

/// Lays out.
pub(super) fn of(network: &Network) -> Page<'_> {
    let mut cards: Vec<Card<'_>> = network.places.iter().map(|part| card(part, 1)).collect();
    let gaps = gaps(cards.len(), &network.arrows);
    let rows = rows(&cards, &gaps, &network.arrows);
    let gutter = arrow::gutter(&network.arrows, &rows);
    for row in &rows {
        let mut x = MARGIN + gutter;
        for at in row.clone() {
            let shift = x - cards[at].x;
            cards[at].shift(shift, 0.0);
            x = cards[at].right() + gaps[at];
        }
    }
    // What runs in the channels decides how high they are, and so where the rows stand.
    let ways = arrow::Ways::of(&network.arrows, &rows, &cards);
    let mut y = MARGIN + TITLE;
    let mut channels = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        channels.push(y);
        y += ways.channel_height(index);
        let high = row.clone().map(|at| cards[at].outer_height()).fold(0.0, f64::max);
        for at in row.clone() {
            let shift = y + high / 2.0 - (cards[at].top() + cards[at].bottom()) / 2.0;
            cards[at].shift(0.0, shift);
        }
        y += high;
    }
    channels.push(y);
    y += ways.channel_height(rows.len());
    let paths = ways.paths(&cards, &channels);
    let right = cards.iter().map(Card::right).fold(0.0, f64::max);
    Page { width: right + MARGIN, height: y, cards, paths }
}

/// At the origin, as small as it can be.
fn card(part: &Part, count_around: u32) -> Card<'_> {
    // A member's parts are one each: the stack is drawn around all of it.
    let behind = if part.count > 1 && part.count != count_around { (part.count - 1).min(2) } else { 0 };
    let stack = f64::from(behind) * STACK;
    let count = if behind > 0 { ink::width_of_name(&count_text(part.count)) + PAD } else { 0.0 };
    let texts = part.lines.iter().enumerate().map(|(line, text)| match line {
        0 => ink::width_of_name(&ink::shown(text, ink::NAME)) + count,
        _ => ink::width(&ink::shown(text, ink::DETAIL), ink::DETAIL),
    });
    let width = texts.fold(0.0, f64::max) + indent(part.what) + 2.0 * PAD;
    let text_height = 8.0 + LINE * part.lines.len() as f64 + if part.parts.is_empty() { 8.0 } else { 4.0 };
    let mut height = text_height.max(if matches!(part.what, What::Stage { .. }) { 46.0 } else { 0.0 });
    let mut cards: Vec<Card<'_>> = part.parts.iter().map(|inner| card(inner, part.count)).collect();
    let inner = cards.iter().map(Card::outer_width).fold(0.0, f64::max);
    let width = width.max(inner + 2.0 * PAD);
    for card in &mut cards {
        card.stretch(width - 2.0 * PAD);
        let down = height + stack - card.top();
        card.shift(PAD, down);
        height += card.outer_height() + GAP;
    }
    if !cards.is_empty() {
        height += PAD - GAP;
    }
    Card { part, x: 0.0, y: stack, width, height, behind, cards }
}

/// What stands left of the text.
pub(super) fn indent(what: What) -> f64 {
    match what {
        What::Stage { glyph: Glyph::Fifo, .. } => GLYPH + QUEUE - 6.0,
        What::Stage { .. } => GLYPH,
        What::Pool { queue: true, .. } => QUEUE,
        _ => 0.0,
    }
}

/// `× 8`.
pub(super) fn count_text(count: u32) -> String {
    format!("× {count}")
}

/// Right of every column: wide enough for what is said on the arrow there.
fn gaps(count: usize, arrows: &[Arrow]) -> Vec<f64> {
    let mut gaps = vec![GAP_COLUMNS; count];
    for arrow in arrows.iter().filter(|arrow| arrow.to == arrow.from + 1) {
        let said = ink::width(&ink::shown(&arrow.label, ink::DETAIL), ink::DETAIL);
        gaps[arrow.from] = gaps[arrow.from].max(said + 26.0);
    }
    gaps
}

/// Columns broken into as few rows as possible, where the fewest arrows are; then as narrow as can be.
fn rows(cards: &[Card<'_>], gaps: &[f64], arrows: &[Arrow]) -> Vec<Range<usize>> {
    let widest = cards.iter().map(Card::outer_width).fold(0.0, f64::max);
    let most = ROW_MAX.max(widest);
    let mut best = broken(cards, gaps, most);
    let between = |rows: &[Range<usize>]| {
        let row_of = arrow::row_of(rows);
        arrows.iter().filter(|arrow| row_of[arrow.from] != row_of[arrow.to]).count()
    };
    let mut fewest = between(&best);
    let mut narrower = most;
    while narrower - 10.0 >= widest {
        narrower -= 10.0;
        let rows = broken(cards, gaps, narrower);
        if rows.len() > best.len() {
            break;
        }
        let broken = between(&rows);
        if broken <= fewest {
            (best, fewest) = (rows, broken);
        }
    }
    best
}

/// As many columns in a row as fit.
fn broken(cards: &[Card<'_>], gaps: &[f64], most: f64) -> Vec<Range<usize>> {
    let mut rows: Vec<Range<usize>> = Vec::new();
    let mut used = 0.0;
    for (at, card) in cards.iter().enumerate() {
        match rows.last_mut() {
            Some(row) if used + card.outer_width() <= most => row.end = at + 1,
            _ => {
                rows.push(at..at + 1);
                used = 0.0;
            }
        }
        used += card.outer_width() + gaps[at];
    }
    rows
}
