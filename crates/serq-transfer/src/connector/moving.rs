//! Bytes of a transfer's runs: which move as they are, and what is done with the others.
//!
//! ```text
//!   pull, alike        source's blocks ═══════════════════════════▶ reader's blocks
//!   pull, to convert   source's blocks ═══▶ reader's staging ─convert─▶ reader's blocks
//!   push, alike        source's blocks ═══════════════════════════▶ reader's blocks
//!   push, to convert   source's blocks ─convert─▶ source's staging ═══▶ reader's blocks
//! ```
//!
//! A double line is the transport's. What is converted stands in buffers of its own meanwhile: blocks are only copied
//! into and out of, so nothing else that is done with the memory is in the way.

use std::ops::Range;

use crate::layout::{self, Conversion, Descriptor, Element, Geometry, Piece, join, number};
use crate::memory::Region;
use crate::protocol::{BlockTable, Run};

/// The tokens of some runs, with the blocks that have them on both sides.
#[derive(Clone, Debug)]
pub(super) struct Tokens {
    range: Range<usize>,
    source: Blocks,
    reader: Blocks,
}

#[derive(Clone, Debug)]
struct Blocks {
    first_token: usize,
    numbers: Vec<u32>,
}

impl Blocks {
    fn table(&self) -> layout::BlockTable<'_> {
        layout::BlockTable { first_token: self.first_token, blocks: &self.numbers }
    }
}

impl Tokens {
    /// Runs that follow each other in the text, with the table of one side, which says where in the text they are.
    /// `None`: the table is not theirs.
    pub(super) fn of(runs: &[Run], table: &BlockTable, of_reader: bool) -> Option<Self> {
        let first = runs.first()?;
        let (block, slot) = match of_reader {
            true => (first.target_block, first.target_slot),
            false => (first.source_block, first.source_slot),
        };
        let placed = table.blocks.iter().find(|placed| placed.block == block)?;
        let start = (placed.first_token + slot) as usize;
        let tokens: usize = runs.iter().map(|run| run.tokens as usize).sum();
        let blocks = |slot: u32, block: &dyn Fn(&Run) -> u32| {
            let mut numbers: Vec<u32> = runs.iter().map(block).collect();
            numbers.dedup();
            Some(Blocks { first_token: start.checked_sub(slot as usize)?, numbers })
        };
        Some(Self {
            range: start..start + tokens,
            source: blocks(first.source_slot, &|run| run.source_block)?,
            reader: blocks(first.target_slot, &|run| run.target_block)?,
        })
    }

    /// The first tokens of one block on each side.
    pub(super) fn canary(source: u32, reader: u32, tokens: usize) -> Self {
        let blocks = |number| Blocks { first_token: 0, numbers: vec![number] };
        Self { range: 0..tokens, source: blocks(source), reader: blocks(reader) }
    }

    fn staged(&self) -> Blocks {
        Blocks { first_token: self.range.start, numbers: (0..self.range.len() as u32).collect() }
    }
}

/// How KV goes from one instance to another.
pub(super) struct Joined {
    source: Descriptor,
    reader: Descriptor,
    conversion: Conversion,
}

/// How some tokens move.
pub(super) enum Way {
    /// As they are.
    Alike(Vec<Piece>),
    /// Through staging: so many bytes, and what moves between them and the other side's memory.
    Staged { bytes: usize, pieces: Vec<Piece> },
}

impl Joined {
    /// Joins two instances of one rank.
    ///
    /// # Errors
    ///
    /// A sentence that names both and says what differs.
    pub(super) fn new(source: &Descriptor, reader: &Descriptor) -> Result<Self, String> {
        let conversion = join(std::slice::from_ref(source), std::slice::from_ref(reader));
        let conversion = conversion.map_err(|refusal| refusal.to_string())?;
        Ok(Self { source: source.clone(), reader: reader.clone(), conversion })
    }

    /// Slots of a block of the source.
    pub(super) fn source_block_tokens(&self) -> usize {
        self.source.groups[0].block_tokens
    }

    /// How a reader gets them.
    ///
    /// # Errors
    ///
    /// A table does not hold the tokens.
    pub(super) fn pull(&self, tokens: &Tokens) -> Result<Way, String> {
        // Whole blocks are staged, with the scales their numbers may have.
        self.way(tokens, || {
            let few = Compact::new(&self.source, &tokens.source)?;
            Ok((few.descriptor.memory_bytes(), Some(few.pieces)))
        })
    }

    /// How a source gives them.
    ///
    /// # Errors
    ///
    /// As [`Joined::pull`]; or the numbers' scales are the reader's to choose, so that only it can convert.
    pub(super) fn push(&self, tokens: &Tokens) -> Result<Way, String> {
        self.way(tokens, || {
            let staging = self.reader.staging(&[tokens.range.len()], &self.reader);
            let scatter = pair(&staging, &self.reader)?;
            let staged = tokens.staged();
            let plan = scatter.plan(0, tokens.range.clone(), &[staged.table()], &[tokens.reader.table()]);
            Ok((staging.memory_bytes(), plan.map_err(|error| error.to_string())?.pieces(0, 0)))
        })
    }

    fn way(
        &self,
        tokens: &Tokens,
        staged: impl FnOnce() -> Result<(usize, Option<Vec<Piece>>), String>,
    ) -> Result<Way, String> {
        let (source, reader) = ([tokens.source.table()], [tokens.reader.table()]);
        let plan =
            self.conversion.plan(0, tokens.range.clone(), &source, &reader).map_err(|error| error.to_string())?;
        if let Some(pieces) = plan.pieces(0, 0) {
            return Ok(Way::Alike(pieces));
        }
        let (bytes, pieces) = staged()?;
        let pieces = pieces.ok_or("fp8 is converted by its reader only: pull is meant")?;
        Ok(Way::Staged { bytes, pieces })
    }

    /// Converts what a pull has staged, and puts it where it goes.
    ///
    /// # Errors
    ///
    /// A table does not hold the tokens.
    pub(super) fn unstage(&self, tokens: &Tokens, staged: &[u8], memory: &Region) -> Result<(), String> {
        let from = Compact::new(&self.source, &tokens.source)?;
        let few = Compact::new(&self.reader, &tokens.reader)?;
        let mut target = few.copy_out(memory)?;
        let convert = pair(&from.descriptor, &few.descriptor)?;
        let (from, to) = (from.table(&tokens.source), few.table(&tokens.reader));
        let plan = convert.plan(0, tokens.range.clone(), &[from], &[to]);
        plan.map_err(|error| error.to_string())?.copy(0, 0, staged, &mut target);
        few.copy_in(&target, memory)
    }

    /// What a push stages: the tokens in the reader's numbers.
    ///
    /// # Errors
    ///
    /// A table does not hold the tokens.
    pub(super) fn stage(&self, tokens: &Tokens, memory: &Region) -> Result<Vec<u8>, String> {
        let staging = self.reader.staging(&[tokens.range.len()], &self.reader);
        let few = Compact::new(&self.source, &tokens.source)?;
        let source = few.copy_out(memory)?;
        let staged_at = tokens.staged();
        let convert = pair(&few.descriptor, &staging)?;
        let plan = convert.plan(0, tokens.range.clone(), &[few.table(&tokens.source)], &[staged_at.table()]);
        let mut staged = vec![0; staging.memory_bytes()];
        plan.map_err(|error| error.to_string())?.copy(0, 0, &source, &mut staged);
        Ok(staged)
    }
}

fn pair(source: &Descriptor, reader: &Descriptor) -> Result<Conversion, String> {
    join(std::slice::from_ref(source), std::slice::from_ref(reader)).map_err(|refusal| refusal.to_string())
}

/// Some blocks of a memory, by themselves and in another memory laid out alike.
struct Compact {
    descriptor: Descriptor,
    /// Between them: the memory is the source, the others the reader.
    pieces: Vec<Piece>,
    numbers: Vec<u32>,
}

impl Compact {
    fn new(whole: &Descriptor, blocks: &Blocks) -> Result<Self, String> {
        let mut descriptor = whole.clone();
        let group = &mut descriptor.groups[0];
        (group.blocks, group.first_byte) = (blocks.numbers.len(), 0);
        let slots = group.block_tokens;
        let numbers: Vec<u32> = (0..blocks.numbers.len() as u32).collect();
        let here = layout::BlockTable { first_token: 0, blocks: &numbers };
        let there = layout::BlockTable { first_token: 0, blocks: &blocks.numbers };
        let plan = pair(whole, &descriptor)?.plan(0, 0..numbers.len() * slots, &[there], &[here]);
        let pieces = plan.map_err(|error| error.to_string())?.pieces(0, 0).expect("whole blocks are alike");
        Ok(Self { descriptor, pieces, numbers })
    }

    fn table(&self, blocks: &Blocks) -> layout::BlockTable<'_> {
        layout::BlockTable { first_token: blocks.first_token, blocks: &self.numbers }
    }

    fn copy_out(&self, memory: &Region) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; self.descriptor.memory_bytes()];
        for piece in &self.pieces {
            let to = &mut bytes[piece.reader..][..piece.bytes];
            memory.read(piece.source as u64, to).ok_or("the memory is smaller than it is described")?;
        }
        Ok(bytes)
    }

    fn copy_in(&self, bytes: &[u8], memory: &Region) -> Result<(), String> {
        for piece in &self.pieces {
            let from = &bytes[piece.reader..][..piece.bytes];
            memory.write(piece.source as u64, from).ok_or("the memory is smaller than it is described")?;
        }
        Ok(())
    }
}

/// Where the bytes of blocks are, as (place, bytes): what is next to each other is one range.
///
/// # Errors
///
/// There is no such block, or one is named twice.
pub(super) fn ranges(descriptor: &Descriptor, blocks: &[u32]) -> Result<Vec<(u64, u64)>, String> {
    let few = Compact::new(descriptor, &Blocks { first_token: 0, numbers: blocks.to_vec() })?;
    let mut pieces: Vec<(u64, u64)> =
        few.pieces.iter().map(|piece| (piece.source as u64, piece.bytes as u64)).collect();
    pieces.sort_unstable();
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for (from, bytes) in pieces {
        match ranges.last_mut() {
            Some((first, all)) if *first + *all == from => *all += bytes,
            _ => ranges.push((from, bytes)),
        }
    }
    Ok(ranges)
}

/// Fills a block with the canary's pattern.
///
/// # Errors
///
/// There is no such block.
pub(super) fn fill_canary(descriptor: &Descriptor, block: u32, memory: &Region) -> Result<(), String> {
    let few = Compact::new(descriptor, &Blocks { first_token: 0, numbers: vec![block] })?;
    let mut bytes = few.copy_out(memory)?;
    let table = layout::BlockTable { first_token: 0, blocks: &few.numbers };
    layout::canary::fill(&few.descriptor, 0, &table, 0..descriptor.groups[0].block_tokens, &mut bytes);
    few.copy_in(&bytes, memory)
}

/// Takes everything out of a block.
///
/// # Errors
///
/// There is no such block.
pub(super) fn empty(descriptor: &Descriptor, block: u32, memory: &Region) -> Result<(), String> {
    let few = Compact::new(descriptor, &Blocks { first_token: 0, numbers: vec![block] })?;
    few.copy_in(&vec![0; few.descriptor.memory_bytes()], memory)
}

/// Whether a block has the canary's first tokens, read number by number as the descriptor says they lie.
///
/// # Errors
///
/// What is misplaced, or that there is no such block.
pub(super) fn look_at_canary(
    descriptor: &Descriptor,
    block: u32,
    tokens: usize,
    memory: &Region,
) -> Result<(), String> {
    let few = Compact::new(descriptor, &Blocks { first_token: 0, numbers: vec![block] })?;
    let bytes = few.copy_out(memory)?;
    let geometry = Geometry::of(&few.descriptor, 0).ok_or("the memory is smaller than it is described")?;
    let layers = &few.descriptor.groups[0].layers;
    let found = layout::canary::check(&few.descriptor, 0, 0..tokens, |row, dim| {
        let layer = layers.iter().position(|&layer| layer == row.layer).expect("a layer of the group");
        let half = row.half as usize;
        let (slot, head) = (row.token, row.head - geometry.heads.start);
        let at = geometry.row(0, layer, half, slot, head) + dim * geometry.element.bytes();
        let code = u16::from_le_bytes([bytes[at], bytes.get(at + 1).copied().unwrap_or(0)]);
        let single = |at: usize| f32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        match geometry.element {
            Element::F32 => single(at),
            Element::Bf16 => number::f32_from_bf16(code),
            Element::F16 => number::f32_from_f16(code),
            Element::Fp8E4m3 => number::f32_from_e4m3(bytes[at]) * single(geometry.scale(0, layer, half, head)),
        }
    });
    found.map_err(|misplaced| misplaced.to_string())
}
