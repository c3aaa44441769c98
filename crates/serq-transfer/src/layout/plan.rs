//! The tokens of a request, from the source's blocks to the reader's: what goes where.
//!
//! A block table says which blocks hold a text's tokens and which token is the first of them. A token
//! is found on both sides by its place in the text, so a table that begins later (a prefix that lies there
//! already, a sliding window) or has blocks of another size cannot shift anything:
//!
//! ```text
//!   token      0   1   2   3   4   5   6   7   8   9        the range is 3..9
//!   source    │ block 7       │ block 2       │ block 5     4 slots, first token 0
//!   reader                │ block 1   │ block 0   │         3 slots, first token 3
//!   segments              │ 3 │ 4, 5  │ 6, 7  │ 8 │         in one block on both sides
//! ```
//!
//! How segments become bytes that are moved at once is `rows.rs`.
//!
//! # Invariants
//!
//! - The segments of a part are disjoint, in order, and together the range.
//! - Pieces don't overlap at the reader, and no two of them could be one.

use std::fmt;
use std::ops::Range;

use super::descriptor::Element;
use super::geometry::Geometry;
use super::number;
use super::pairing::{Conversion, Side};
use super::rows::Walk;

/// Which blocks of a rank hold a text's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockTable<'a> {
    /// The place in the text of the first block's first slot: a multiple of the block's slots.
    pub first_token: usize,
    /// The blocks, each as many tokens further on.
    pub blocks: &'a [u32],
}

/// What moves for one range of tokens of one group.
#[derive(Clone, Debug)]
pub struct Plan {
    parts: Vec<Part>,
}

/// Bytes that are moved as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where they stand in the memory of the source's rank.
    pub source: usize,
    /// Where they go in the memory of the reader's rank.
    pub reader: usize,
    /// How many.
    pub bytes: usize,
}

/// What one rank of the source gives to one rank of the reader.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) source_rank: usize,
    pub(super) reader_rank: usize,
    pub(super) source: Geometry,
    pub(super) reader: Geometry,
    /// The first of the heads, as numbered on the rank.
    pub(super) source_head: usize,
    pub(super) reader_head: usize,
    pub(super) heads: usize,
    pub(super) segments: Vec<Segment>,
}

/// Tokens that lie in one block on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) source_block: usize,
    pub(super) source_slot: usize,
    pub(super) reader_block: usize,
    pub(super) reader_slot: usize,
    pub(super) tokens: usize,
}

impl Conversion {
    /// What moves of a group for these tokens. Tables are one for each rank of a side.
    ///
    /// # Errors
    ///
    /// When a table does not hold the tokens. Nothing was moved; with the right table it can be.
    ///
    /// # Panics
    ///
    /// When there is no such group.
    pub fn plan(
        &self,
        group: usize,
        tokens: Range<usize>,
        source: &[BlockTable<'_>],
        reader: &[BlockTable<'_>],
    ) -> Result<Plan, PlanError> {
        if tokens.start > tokens.end {
            return Err(PlanError::Range { start: tokens.start, end: tokens.end });
        }
        for (side, tables) in [(Side::Source, source), (Side::Reader, reader)] {
            let geometries = self.geometries(group, side);
            if tables.len() != geometries.len() {
                return Err(PlanError::Tables { side, ranks: geometries.len(), tables: tables.len() });
            }
            for (rank, (table, geometry)) in tables.iter().zip(geometries).enumerate() {
                check_table(side, rank, table, geometry, &tokens)?;
            }
        }
        let parts = self.shares(group).into_iter().map(|share| {
            let source_geometry = &self.geometries(group, Side::Source)[share.source_rank];
            let reader_geometry = &self.geometries(group, Side::Reader)[share.reader_rank];
            let tables = (&source[share.source_rank], &reader[share.reader_rank]);
            Part {
                source_rank: share.source_rank,
                reader_rank: share.reader_rank,
                source_head: share.heads.start - source_geometry.heads.start,
                reader_head: share.heads.start - reader_geometry.heads.start,
                heads: share.heads.len(),
                segments: segments(tables, source_geometry.block_tokens, reader_geometry.block_tokens, &tokens),
                source: source_geometry.clone(),
                reader: reader_geometry.clone(),
            }
        });
        Ok(Plan { parts: parts.filter(|part| !part.segments.is_empty()).collect() })
    }
}

fn check_table(
    side: Side,
    rank: usize,
    table: &BlockTable<'_>,
    geometry: &Geometry,
    tokens: &Range<usize>,
) -> Result<(), PlanError> {
    let (first_token, slots) = (table.first_token, geometry.block_tokens);
    if !first_token.is_multiple_of(slots) {
        return Err(PlanError::Unaligned { side, rank, first_token, block_tokens: slots });
    }
    if tokens.is_empty() {
        return Ok(());
    }
    if tokens.start < first_token {
        return Err(PlanError::NoToken { side, rank, token: tokens.start });
    }
    let used = (tokens.start - first_token) / slots..(tokens.end - first_token).div_ceil(slots);
    let Some(blocks) = table.blocks.get(used) else {
        return Err(PlanError::NoToken {
            side,
            rank,
            token: first_token.saturating_add(table.blocks.len().saturating_mul(slots)),
        });
    };
    if let Some(&block) = blocks.iter().find(|&&block| block as usize >= geometry.blocks) {
        return Err(PlanError::NoBlock { side, rank, block, blocks: geometry.blocks });
    }
    if side == Side::Reader {
        let mut sorted = blocks.to_vec();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(PlanError::BlockTwice { rank, block: pair[0] });
        }
    }
    Ok(())
}

fn segments(
    (source, reader): (&BlockTable<'_>, &BlockTable<'_>),
    source_slots: usize,
    reader_slots: usize,
    tokens: &Range<usize>,
) -> Vec<Segment> {
    let mut segments = Vec::new();
    let mut token = tokens.start;
    while token < tokens.end {
        let (from, to) = (token - source.first_token, token - reader.first_token);
        let (source_slot, reader_slot) = (from % source_slots, to % reader_slots);
        let count = (source_slots - source_slot).min(reader_slots - reader_slot).min(tokens.end - token);
        segments.push(Segment {
            source_block: source.blocks[from / source_slots] as usize,
            source_slot,
            reader_block: reader.blocks[to / reader_slots] as usize,
            reader_slot,
            tokens: count,
        });
        token += count;
    }
    segments
}

impl Plan {
    /// Pairs of ranks (the source's, the reader's) that move something, by the reader's rank.
    pub fn pairs(&self) -> Vec<(usize, usize)> {
        let mut pairs: Vec<_> = self.parts.iter().map(|part| (part.source_rank, part.reader_rank)).collect();
        pairs.dedup();
        pairs
    }

    /// Bytes that are read of the sources' elements, scales aside.
    pub fn source_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.numbers() * part.source.element.bytes()).sum()
    }

    /// Bytes that are written of the readers' elements, scales aside.
    pub fn reader_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.numbers() * part.reader.element.bytes()).sum()
    }

    /// The fewest byte ranges that do it for a pair of ranks, in the order of the source's memory; none when
    /// numbers have to be converted, so that only [`Plan::copy`] does it.
    ///
    /// With fp8 on both sides bytes go as they are only when all the range is of blocks that are whole on
    /// both sides. Their scales are pieces too.
    pub fn pieces(&self, source_rank: usize, reader_rank: usize) -> Option<Vec<Piece>> {
        let mut pieces = Vec::new();
        for part in self.of(source_rank, reader_rank) {
            if !part.segments.iter().all(|segment| part.unchanged(segment)) {
                return None;
            }
            part.unchanged_pieces(&mut pieces);
        }
        Some(merge(pieces))
    }

    /// Moves what one rank of the source gives to one rank of the reader, converting what has to be.
    ///
    /// # Panics
    ///
    /// When a memory is shorter than its rank's descriptor says.
    pub fn copy(&self, source_rank: usize, reader_rank: usize, source: &[u8], reader: &mut [u8]) {
        for part in self.of(source_rank, reader_rank) {
            part.check(source, reader);
            let mut walk = part.walk(false);
            for nth in 0..walk.chunks() {
                let rows = walk.chunk(nth).expect("one of its chunks");
                part.copy_rows(&rows, source, reader);
            }
            part.copy_scaled(source, reader);
        }
    }

    /// Moves everything. Memories are listed by rank.
    ///
    /// # Panics
    ///
    /// As [`Plan::copy`], and when a rank has no memory.
    pub fn copy_all<S: AsRef<[u8]>, R: AsMut<[u8]>>(&self, source: &[S], reader: &mut [R]) {
        // Parts take turns: those of one rank read or write parts of the same lines.
        for part in &self.parts {
            part.check(source[part.source_rank].as_ref(), reader[part.reader_rank].as_mut());
        }
        let mut walks: Vec<Walk<'_>> = self.parts.iter().map(|part| part.walk(self.parts.len() > 1)).collect();
        for nth in 0..walks.iter().map(Walk::chunks).max().unwrap_or(0) {
            for (walk, part) in walks.iter_mut().zip(&self.parts) {
                if let Some(rows) = walk.chunk(nth) {
                    part.copy_rows(&rows, source[part.source_rank].as_ref(), reader[part.reader_rank].as_mut());
                }
            }
        }
        for part in &self.parts {
            part.copy_scaled(source[part.source_rank].as_ref(), reader[part.reader_rank].as_mut());
        }
    }

    fn of(&self, source_rank: usize, reader_rank: usize) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(move |part| (part.source_rank, part.reader_rank) == (source_rank, reader_rank))
    }
}

impl Part {
    fn numbers(&self) -> usize {
        let tokens: usize = self.segments.iter().map(|segment| segment.tokens).sum();
        tokens * self.source.layers * self.source.halves * self.heads * self.source.dim
    }

    /// Whether a segment's bytes are the same on both sides: elements without scales of one kind, or blocks
    /// under scales that are whole on both sides.
    pub(super) fn unchanged(&self, segment: &Segment) -> bool {
        let whole = |slots: usize| segment.tokens == slots;
        self.source.element == self.reader.element
            && (self.source.element != Element::Fp8E4m3
                || whole(self.source.block_tokens) && whole(self.reader.block_tokens))
    }

    fn unchanged_pieces(&self, pieces: &mut Vec<Piece>) {
        let size = self.source.element.bytes();
        let mut walk = self.walk(false);
        for rows in (0..walk.chunks()).filter_map(|nth| walk.chunk(nth)) {
            let bytes = rows.length * size;
            rows.each(|source, reader| {
                let (source, reader) = (self.source.byte(source), self.reader.byte(reader));
                pieces.push(Piece { source, reader, bytes });
            });
        }
        self.each_scale(|source, reader, bytes| pieces.push(Piece { source, reader, bytes }));
    }

    /// The scales of segments whose codes go as they are: first bytes at source and reader, and how many.
    pub(super) fn each_scale(&self, mut tell: impl FnMut(usize, usize, usize)) {
        if !(self.source.element.scaled() && self.reader.element.scaled()) {
            return;
        }
        for segment in self.segments.iter().filter(|segment| self.unchanged(segment)) {
            for (layer, half) in self.layers_and_halves() {
                let source = self.source.scale(segment.source_block, layer, half, self.source_head);
                let reader = self.reader.scale(segment.reader_block, layer, half, self.reader_head);
                tell(source, reader, self.heads * super::geometry::SCALE_BYTES);
            }
        }
    }

    pub(super) fn layers_and_halves(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (layers, halves) = (self.source.layers, self.source.halves);
        (0..layers).flat_map(move |layer| (0..halves).map(move |half| (layer, half)))
    }

    /// What makes the reader's numbers of the source's, when there are no scales; none: the bytes are
    /// the same.
    pub(super) fn convert(&self) -> Option<number::Convert> {
        number::conversion(self.source.element, self.reader.element)
    }
}

/// Pieces that follow each other on both sides become one.
fn merge(mut pieces: Vec<Piece>) -> Vec<Piece> {
    pieces.sort_unstable_by_key(|piece| (piece.source, piece.reader));
    let mut merged: Vec<Piece> = Vec::new();
    for piece in pieces {
        match merged.last_mut() {
            Some(last) if last.source + last.bytes == piece.source && last.reader + last.bytes == piece.reader => {
                last.bytes += piece.bytes;
            }
            _ => merged.push(piece),
        }
    }
    merged
}

/// Why tokens cannot be planned with these tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// The range ends before it starts.
    Range {
        /// Its first token.
        start: usize,
        /// The token behind its last.
        end: usize,
    },
    /// Not a table for each rank.
    Tables {
        /// Of which side.
        side: Side,
        /// Its ranks.
        ranks: usize,
        /// The tables given.
        tables: usize,
    },
    /// A table begins inside of a block.
    Unaligned {
        /// Of which side.
        side: Side,
        /// Of which rank.
        rank: usize,
        /// Where it says that it begins.
        first_token: usize,
        /// Slots of a block.
        block_tokens: usize,
    },
    /// A table has no block for a token.
    NoToken {
        /// Of which side.
        side: Side,
        /// Of which rank.
        rank: usize,
        /// The first such token.
        token: usize,
    },
    /// A table names a block that the rank does not have.
    NoBlock {
        /// Of which side.
        side: Side,
        /// Of which rank.
        rank: usize,
        /// The block.
        block: u32,
        /// How many it has.
        blocks: usize,
    },
    /// Two parts of the range would be written to one block.
    BlockTwice {
        /// Of which rank of the reader.
        rank: usize,
        /// The block.
        block: u32,
    },
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Source => "source",
            Self::Reader => "reader",
        })
    }
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range { start, end } => write!(f, "tokens {start}..{end} end before they start"),
            Self::Tables { side, ranks, tables } => {
                write!(f, "the {side} has {ranks} ranks, and {tables} block tables were given")
            }
            Self::Unaligned { side, rank, first_token, block_tokens } => write!(
                f,
                "the block table of the {side}'s rank {rank} begins at token {first_token}, inside of a block of {block_tokens}"
            ),
            Self::NoToken { side, rank, token } => {
                write!(f, "the block table of the {side}'s rank {rank} has no block for token {token}")
            }
            Self::NoBlock { side, rank, block, blocks } => {
                write!(f, "the block table of the {side}'s rank {rank} names block {block}, of blocks 0..{blocks}")
            }
            Self::BlockTwice { rank, block } => {
                write!(f, "the block table of the reader's rank {rank} names block {block} twice in the range")
            }
        }
    }
}

impl std::error::Error for PlanError {}
