//! A pattern that says of every number where it belongs.
//!
//! At the handshake the source fills a few tokens' KV with it, the reader gets them as it would any
//! request's, and looks at them *through its attention's own way of reading*. A converter or a kernel that
//! misplaces numbers moves whole rows (a head's numbers of a token), so a row that is not where it belongs is
//! found elsewhere in the pattern, and the report names what was exchanged.
//!
//! A number of the pattern is ±1 to ±15, which has four significant bits: exact in every format, fp8 included.
//! Which one it is, is a hash of (layer, half, head, token, dim). One number says little, a
//! row of them says all: of rows of 64 numbers no two are alike but with a chance of 30⁻⁶⁴. Rows of fewer than
//! four numbers may be alike; they are still checked, and then told without a guess where they came from.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::ops::Range;

use super::descriptor::{Descriptor, Element};
use super::geometry::{Geometry, Half};
use super::number;
use super::plan::BlockTable;

/// A row of the pattern: a head's numbers of one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Row {
    /// The layer, numbered over the whole model.
    pub layer: u32,
    /// Keys or values; keys for a latent.
    pub half: Half,
    /// The head, numbered over the whole model.
    pub head: usize,
    /// The token's place in the text.
    pub token: usize,
}

/// The pattern's number there.
pub fn number(row: Row, dim: usize) -> f32 {
    let parts = [u64::from(row.layer), row.half as u64, row.head as u64, row.token as u64, dim as u64];
    // SplitMix64's finisher [Steele OOPSLA'14], once a coordinate.
    let hash = parts.into_iter().fold(0x5e_59_u64, |hash, part| {
        let mut mixed = (hash ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    });
    let magnitude = (hash % 15 + 1) as f32;
    if hash >> 32 & 1 == 0 { magnitude } else { -magnitude }
}

/// Fills these tokens' KV of a group on one rank with the pattern. Under fp8 every scale of their blocks
/// becomes that of the largest number, 15, so blocks should be the canary's own.
///
/// # Panics
///
/// When the table does not hold the tokens, or the memory is shorter than the descriptor says.
pub fn fill(descriptor: &Descriptor, group: usize, table: &BlockTable<'_>, tokens: Range<usize>, memory: &mut [u8]) {
    let geometry = Geometry::of(descriptor, group).expect("a checked descriptor");
    let scale = if geometry.element.scaled() { number::scale_for(15.0) } else { 1.0 };
    each_row(descriptor, group, &geometry, tokens, |row, layer, head| {
        let place = row.token - table.first_token;
        let block = table.blocks[place / geometry.block_tokens] as usize;
        let half = row.half as usize;
        let first = geometry.row(block, layer, half, place % geometry.block_tokens, head);
        let bytes = geometry.element.bytes();
        for (dim, to) in memory[first..][..geometry.dim * bytes].chunks_exact_mut(bytes).enumerate() {
            let number = number(row, dim);
            match geometry.element {
                Element::F32 => to.copy_from_slice(&number.to_le_bytes()),
                Element::Bf16 => to.copy_from_slice(&number::bf16_from_f32(number).to_le_bytes()),
                Element::F16 => to.copy_from_slice(&number::f16_from_f32(number).to_le_bytes()),
                Element::Fp8E4m3 => to[0] = number::e4m3_from_f32(number / scale),
            }
        }
        if geometry.element.scaled() {
            let first = geometry.scale(block, layer, half, head);
            memory[first..][..4].copy_from_slice(&scale.to_le_bytes());
        }
    });
}

/// Looks at these tokens on one rank of the reader through `read`, which answers a number as attention would
/// see it.
///
/// # Errors
///
/// What stands elsewhere than it belongs.
///
/// # Panics
///
/// When the descriptor has no such group, or [`Descriptor::check`] refuses it.
pub fn check(
    descriptor: &Descriptor,
    group: usize,
    tokens: Range<usize>,
    mut read: impl FnMut(Row, usize) -> f32,
) -> Result<(), Misplaced> {
    let geometry = Geometry::of(descriptor, group).expect("a checked descriptor");
    let mut rows = Vec::new();
    let mut known: HashMap<Vec<u32>, Option<Row>> = HashMap::new();
    each_row(descriptor, group, &geometry, tokens, |row, _, _| {
        rows.push(row);
        let expected = (0..geometry.dim).map(|dim| number(row, dim).to_bits()).collect();
        // Rows that are alike say of none where it came from.
        known.entry(expected).and_modify(|known| *known = None).or_insert(Some(row));
    });
    let mut found = Misplaced { rows: rows.len(), moves: Vec::new(), strange: Vec::new(), permuted: None };
    for &row in &rows {
        let numbers: Vec<f32> = (0..geometry.dim).map(|dim| read(row, dim)).collect();
        let expected: Vec<f32> = (0..geometry.dim).map(|dim| number(row, dim)).collect();
        let Some(dim) = (0..geometry.dim).find(|&dim| numbers[dim].to_bits() != expected[dim].to_bits()) else {
            continue;
        };
        let bits: Vec<u32> = numbers.iter().map(|number| number.to_bits()).collect();
        if let Some(&Some(origin)) = known.get(&bits) {
            found.moves.push(Move { at: row, from: origin });
            continue;
        }
        let sorted = |numbers: &[f32]| {
            let mut sorted = numbers.to_vec();
            sorted.sort_by(f32::total_cmp);
            sorted
        };
        if sorted(&numbers) == sorted(&expected) {
            found.permuted.get_or_insert(row);
        }
        found.strange.push(Strange { at: row, dim, found: numbers[dim], expected: expected[dim] });
    }
    if found.moves.is_empty() && found.strange.is_empty() { Ok(()) } else { Err(found) }
}

/// Every row of a group on a rank: which it is, the layer in the group, the head on the rank.
fn each_row(
    descriptor: &Descriptor,
    group: usize,
    geometry: &Geometry,
    tokens: Range<usize>,
    mut tell: impl FnMut(Row, usize, usize),
) {
    let halves = [Half::Keys, Half::Values];
    for (nth_layer, &layer) in descriptor.groups[group].layers.iter().enumerate() {
        for &half in &halves[..geometry.halves] {
            for (nth_head, head) in geometry.heads.clone().enumerate() {
                for token in tokens.clone() {
                    tell(Row { layer, half, head, token }, nth_layer, nth_head);
                }
            }
        }
    }
}

/// A canary that was not as it should be. Its sentence names what was exchanged.
#[derive(Clone, Debug, PartialEq)]
pub struct Misplaced {
    /// How many rows were looked at.
    pub rows: usize,
    /// Rows that hold another one's numbers.
    pub moves: Vec<Move>,
    /// Rows that hold no row of the pattern.
    pub strange: Vec<Strange>,
    /// One of those that hold their own numbers in another order.
    permuted: Option<Row>,
}

/// A row that holds another one's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Where it was found.
    pub at: Row,
    /// Where it belongs.
    pub from: Row,
}

/// A row that holds no row of the pattern.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Strange {
    /// Which row.
    pub at: Row,
    /// The first number that is wrong.
    pub dim: usize,
    /// What stands there.
    pub found: f32,
    /// What belongs there.
    pub expected: f32,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let half = match self.half {
            Half::Keys => "keys",
            Half::Values => "values",
        };
        write!(f, "layer {}, {half}, head {}, token {}", self.layer, self.head, self.token)
    }
}

impl fmt::Display for Misplaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The smaller part is told behind the larger: a shift pushes a row out at one end.
        if self.moves.is_empty() || self.moves.len() < self.strange.len() {
            return self.tell_strange(f);
        }
        match self.exchanged() {
            Some(words) => f.write_str(&words)?,
            None => {
                let Move { at, from } = self.moves[0];
                write!(
                    f,
                    "{} of {} rows hold another one's numbers: {at} those of {from}",
                    self.moves.len(),
                    self.rows
                )?;
            }
        }
        if self.strange.is_empty() {
            return Ok(());
        }
        f.write_str("; ")?;
        self.tell_strange(f)
    }
}

impl std::error::Error for Misplaced {}

impl Misplaced {
    fn tell_strange(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} rows hold nothing of the canary", self.strange.len(), self.rows)?;
        if let Some(row) = self.permuted {
            return write!(f, ": the numbers of {row} are there in another order");
        }
        let Strange { at, dim, found, expected } = self.strange[0];
        write!(f, ": number {dim} of {at} is {found} instead of {expected}")
    }

    /// What is exchanged along one axis, when that is all.
    fn exchanged(&self) -> Option<String> {
        const NAMES: [&str; 4] = ["layers", "halves", "heads", "tokens"];
        let coordinates = |row: Row| [row.layer as usize, row.half as usize, row.head, row.token];
        let moves = self.moves.iter().map(|one| (coordinates(one.at), coordinates(one.from)));
        let moves: Vec<_> = moves.collect();
        let alone = |axis: usize| moves.iter().all(|(at, from)| (0..4).all(|one| one == axis || at[one] == from[one]));
        let axis = (0..4).find(|&axis| alone(axis))?;
        let name = NAMES[axis];
        if name == "halves" {
            return Some("keys and values are exchanged".into());
        }
        let places: BTreeSet<(usize, usize)> = moves.iter().map(|(at, from)| (at[axis], from[axis])).collect();
        let places: Vec<_> = places.into_iter().collect();
        if let [(a, b), (c, d)] = places[..]
            && (a, b) == (d, c)
        {
            return Some(format!("{name} {a} and {b} are exchanged"));
        }
        let (at, from) = places[0];
        let shifted = |&(one, other): &(usize, usize)| one.wrapping_sub(other) == at.wrapping_sub(from);
        if places.len() > 1 && places.iter().all(shifted) {
            let (by, way) = if at > from { (at - from, "late") } else { (from - at, "early") };
            return Some(format!("{name} are {by} too {way}"));
        }
        let pairs: Vec<String> = places.iter().take(8).map(|(at, from)| format!("{at} holds {from}")).collect();
        let more = if places.len() > 8 { ", …" } else { "" };
        Some(format!("{name} are mixed up: {}{more}", pairs.join(", ")))
    }
}
