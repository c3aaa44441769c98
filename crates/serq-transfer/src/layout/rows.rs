//! The rows of a part of a plan, in the order in which they are moved.
//!
//! Segments whose bytes follow each other on both sides are one run. Axes whose strides close up on both
//! sides are one row: a row's numbers are contiguous in both memories, and it is what is moved at once.
//!
//! ```text
//!   nhd to nhd, blocks of 2 to 2        nhd to hnd
//!
//!   source  a0 b0 a1 b1                 source  a0 b0 a1 b1
//!           └────┬────┘                         └┬┘└┬┘└┬┘└┬┘
//!              a row                            4 rows, of a head's numbers each
//!           ┌────┴────┐                         ┌┴┐┌┴┐┌┴┐┌┴┐
//!   reader  a0 b0 a1 b1                 reader  a0 a1 b0 b1
//! ```
//!
//! # Invariants
//!
//! - Every number of a segment that needs no scale is in exactly one row.
//! - Of a block, and of a tensor that has a layer's blocks, the reader's memory is written front to back.

use std::cmp::Reverse;

use super::plan::{Part, Segment};

/// Tokens whose numbers stand at even distances on both sides, across blocks.
struct Run {
    /// Elements of the first token's first head in the first layer.
    source: usize,
    reader: usize,
    tokens: usize,
}

/// One axis on both sides.
#[derive(Clone, Copy)]
struct Dimension {
    count: usize,
    source: usize,
    reader: usize,
}

/// Rows of one length on both sides: every combination of steps along the dimensions, which go from the
/// widest at the reader to the narrowest. All in elements.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    source: usize,
    reader: usize,
    pub(super) length: usize,
    dimensions: [Dimension; 4],
}

/// A part's rows in the order in which they lie at the reader, so that it is written front to back.
///
/// A chunk of them is a run's, in all layers, or in one of them when others or other runs lie between.
pub(super) struct Walk<'a> {
    part: &'a Part,
    runs: Vec<Run>,
    /// What a chunk is one of, outermost first, and how many there are.
    splits: [(Split, usize); 3],
    /// Rows of a run of so many tokens, counted from its first element: most runs have as many.
    shape: Option<(usize, Rows)>,
}

#[derive(Clone, Copy)]
enum Split {
    Run,
    Layer,
    Half,
}

impl Part {
    /// The rows of the segments that need no scale to be known; when `fine`, in chunks of one layer.
    pub(super) fn walk(&self, fine: bool) -> Walk<'_> {
        let plain = !self.source.element.scaled() && !self.reader.element.scaled();
        let runs = self.runs(self.segments.iter().filter(|segment| plain || self.unchanged(segment)));
        let strides = &self.reader.strides;
        let by_layer = fine || strides.layer > strides.block;
        // With packed keys and values a token's are one row or close to it.
        let by_half = by_layer && strides.half > strides.token.max(strides.head);
        let mut splits = [
            (strides.block, Split::Run, runs.len()),
            (strides.layer, Split::Layer, if by_layer { self.source.layers } else { 1 }),
            (strides.half, Split::Half, if by_half { self.source.halves } else { 1 }),
        ];
        splits.sort_by_key(|&(stride, ..)| Reverse(stride));
        Walk { part: self, runs, splits: splits.map(|(_, split, count)| (split, count)), shape: None }
    }

    fn runs<'a>(&self, segments: impl Iterator<Item = &'a Segment>) -> Vec<Run> {
        let (source, reader) = (&self.source.strides, &self.reader.strides);
        let mut runs: Vec<Run> = Vec::new();
        for segment in segments {
            let from = segment.source_block * source.block
                + segment.source_slot * source.token
                + self.source_head * source.head;
            let to = segment.reader_block * reader.block
                + segment.reader_slot * reader.token
                + self.reader_head * reader.head;
            match runs.last_mut() {
                Some(run)
                    if run.source + run.tokens * source.token == from
                        && run.reader + run.tokens * reader.token == to =>
                {
                    run.tokens += segment.tokens;
                }
                _ => runs.push(Run { source: from, reader: to, tokens: segment.tokens }),
            }
        }
        runs
    }

    /// The rows of so many tokens in so many layers and halves, from the first element on.
    fn shape(&self, tokens: usize, layers: usize, halves: usize) -> Rows {
        let (from, to) = (&self.source.strides, &self.reader.strides);
        let dimension = |count, source, reader| Dimension { count, source, reader };
        let mut dimensions = [
            dimension(layers, from.layer, to.layer),
            dimension(halves, from.half, to.half),
            dimension(tokens, from.token, to.token),
            dimension(self.heads, from.head, to.head),
        ];
        let mut length = self.source.dim;
        // What is one step only is no dimension.
        let closes = |dimension: &Dimension, length: usize| {
            dimension.count > 1 && dimension.source == length && dimension.reader == length
        };
        while let Some(at) = dimensions.iter().position(|dimension| closes(dimension, length)) {
            length *= dimensions[at].count;
            dimensions[at].count = 1;
        }
        dimensions.sort_by_key(|dimension| Reverse((dimension.count > 1, dimension.reader)));
        // Those of one step outside: the loops over them are entered once.
        let wide = dimensions.iter().filter(|dimension| dimension.count > 1).count();
        dimensions.rotate_left(wide);
        Rows { source: 0, reader: 0, length, dimensions }
    }
}

impl Walk<'_> {
    /// How many chunks there are.
    pub(super) fn chunks(&self) -> usize {
        self.splits.iter().map(|(_, count)| count).product()
    }

    /// One of them.
    pub(super) fn chunk(&mut self, nth: usize) -> Option<Rows> {
        if nth >= self.chunks() {
            return None;
        }
        let (from, to) = (&self.part.source.strides, &self.part.reader.strides);
        let (mut layers, mut halves) = (self.part.source.layers, self.part.source.halves);
        let (mut run, mut source, mut reader, mut rest) = (0, 0, 0, nth);
        for &(split, count) in self.splits.iter().rev() {
            let at = rest % count;
            rest /= count;
            match split {
                Split::Run => run = at,
                Split::Layer => {
                    (source, reader) = (source + at * from.layer, reader + at * to.layer);
                    layers /= count;
                }
                Split::Half => {
                    (source, reader) = (source + at * from.half, reader + at * to.half);
                    halves /= count;
                }
            }
        }
        let run = &self.runs[run];
        let shape = match self.shape {
            Some((tokens, shape)) if tokens == run.tokens => shape,
            _ => self.part.shape(run.tokens, layers, halves),
        };
        self.shape = Some((run.tokens, shape));
        Some(Rows { source: run.source + source, reader: run.reader + reader, ..shape })
    }
}

impl Rows {
    /// The first elements of each row at source and reader.
    #[inline]
    pub(super) fn each(&self, mut tell: impl FnMut(usize, usize)) {
        let [a, b, c, d] = self.dimensions;
        for i in 0..a.count {
            for j in 0..b.count {
                for k in 0..c.count {
                    let mut source = self.source + i * a.source + j * b.source + k * c.source;
                    let mut reader = self.reader + i * a.reader + j * b.reader + k * c.reader;
                    for _ in 0..d.count {
                        tell(source, reader);
                        source += d.source;
                        reader += d.reader;
                    }
                }
            }
        }
    }
}
