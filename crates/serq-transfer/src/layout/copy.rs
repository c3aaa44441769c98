//! The bytes of a part of a plan, moved.
//!
//! Without scales every row is copied or converted by itself. Under scales it goes by block and head: the scale
//! has to be known before the first code is written, and what stands in the reader's block already comes under
//! the same scale.
//!
//! ```text
//!   the range's numbers ──▶ scale they need ──┐
//!                                             ├─ larger ─▶ scale of the block's head
//!   scale that is there (block not filled) ───┘                 │
//!                                                               ├──▶ codes of the range
//!                                                               └──▶ codes beside the range, if it grew
//! ```
//!
//! # Invariants
//!
//! - The scale a reader's block ends with does not depend on the order in which ranges filled it. (Infinities are
//!   no part of a scale; but a range of nothing else has the scale 1.)
//! - A number's error is that of one rounding under the block's last scale, or, where it is below that
//!   scale's smallest normal code, less than two (each growth at least doubles the scale, so all roundings before
//!   the last one sum up to less than it).
//! - Codes whose block of the source has the scale that the reader's ends with are copied, whatever number
//!   that scale is.

use super::descriptor::Element;
use super::geometry::SCALE_BYTES;
use super::number::{self, Bf16, Decoder, Extent, F16, F32, Number};
use super::plan::{Part, Segment};
use super::rows::Rows;

impl Part {
    /// Asserts that both memories are as long as their ranks' descriptors say.
    pub(super) fn check(&self, source: &[u8], reader: &[u8]) {
        assert!(self.source.end() <= source.len(), "the source's memory is as its descriptor says");
        assert!(self.reader.end() <= reader.len(), "the reader's memory is as its descriptor says");
    }

    /// Moves rows that need no scale to be known.
    pub(super) fn copy_rows(&self, rows: &Rows, source: &[u8], reader: &mut [u8]) {
        let bytes = (rows.length * self.source.element.bytes(), rows.length * self.reader.element.bytes());
        let convert = self.convert();
        rows.each(|from, to| {
            let from = &source[self.source.byte(from)..][..bytes.0];
            let to = &mut reader[self.reader.byte(to)..][..bytes.1];
            match convert {
                Some(convert) => convert(from, to),
                None => to.copy_from_slice(from),
            }
        });
    }

    /// Moves scales, and what comes under or from under other ones.
    pub(super) fn copy_scaled(&self, source: &[u8], reader: &mut [u8]) {
        self.each_scale(|from, to, bytes| reader[to..][..bytes].copy_from_slice(&source[from..][..bytes]));
        match (self.source.element, self.reader.element) {
            (Element::Fp8E4m3, Element::Fp8E4m3) => self.copy_to_scaled::<Codes>(source, reader),
            (Element::F32, Element::Fp8E4m3) => self.copy_to_scaled::<F32>(source, reader),
            (Element::Bf16, Element::Fp8E4m3) => self.copy_to_scaled::<Bf16>(source, reader),
            (Element::F16, Element::Fp8E4m3) => self.copy_to_scaled::<F16>(source, reader),
            (Element::Fp8E4m3, Element::F32) => self.copy_from_scaled::<F32>(source, reader),
            (Element::Fp8E4m3, Element::Bf16) => self.copy_from_scaled::<Bf16>(source, reader),
            (Element::Fp8E4m3, Element::F16) => self.copy_from_scaled::<F16>(source, reader),
            _ => {}
        }
    }

    fn copy_from_scaled<R: Number>(&self, source: &[u8], reader: &mut [u8]) {
        for segment in &self.segments {
            for (layer, half, head) in self.scales() {
                let scale = read_scale(source, self.source_scale(segment, layer, half, head));
                let decoder = Decoder::<R>::new(scale, segment.tokens * self.source.dim);
                for (from, to) in self.head_rows(segment, layer, half, head) {
                    let bytes = self.reader.dim * self.reader.element.bytes();
                    decoder.decode(&source[from..][..self.source.dim], &mut reader[to..][..bytes]);
                }
            }
        }
    }

    fn copy_to_scaled<S: Scalable>(&self, source: &[u8], reader: &mut [u8]) {
        for segments in self.segments.chunk_by(|one, next| one.reader_block == next.reader_block) {
            if self.unchanged(&segments[0]) {
                continue;
            }
            let covered: usize = segments.iter().map(|segment| segment.tokens).sum();
            let filled = covered == self.reader.block_tokens;
            let block = segments[0].reader_block;
            for (layer, half, head) in self.scales() {
                let scale_at = self.reader.scale(block, layer, half, self.reader_head + head);
                let before = if filled { 0.0 } else { number::valid_scale(read_scale(reader, scale_at)) };
                let needed = S::scale(self, segments, layer, half, head, source);
                let scale = match before.max(needed) {
                    scale if scale > 0.0 => scale.max(f32::MIN_POSITIVE),
                    _ => 0.0,
                };
                if before > 0.0 && scale > before {
                    self.recode_beside(segments, layer, half, head, before / scale, reader);
                }
                for segment in segments {
                    let own = S::of_block(self, segment, layer, half, head, source);
                    for (from, to) in self.head_rows(segment, layer, half, head) {
                        let numbers = &source[from..][..self.source.dim * self.source.element.bytes()];
                        S::encode(numbers, own, scale, &mut reader[to..][..self.reader.dim]);
                    }
                }
                reader[scale_at..][..SCALE_BYTES].copy_from_slice(&scale.to_le_bytes());
            }
        }
    }

    /// Brings the codes of a reader's block that are not of the range under another scale.
    fn recode_beside(
        &self,
        segments: &[Segment],
        layer: usize,
        half: usize,
        head: usize,
        factor: f32,
        reader: &mut [u8],
    ) {
        let first = segments[0].reader_slot;
        let covered: usize = segments.iter().map(|segment| segment.tokens).sum();
        for slot in (0..first).chain(first + covered..self.reader.block_tokens) {
            let row = self.reader.row(segments[0].reader_block, layer, half, slot, self.reader_head + head);
            number::recode_in_place(&mut reader[row..][..self.reader.dim], factor);
        }
    }

    /// Every layer, half and head of the part that has a scale.
    fn scales(&self) -> impl Iterator<Item = (usize, usize, usize)> + use<> {
        let heads = self.heads;
        self.layers_and_halves().flat_map(move |(layer, half)| (0..heads).map(move |head| (layer, half, head)))
    }

    /// First bytes of a head's numbers of each token of a segment, at source and reader.
    fn head_rows(
        &self,
        segment: &Segment,
        layer: usize,
        half: usize,
        head: usize,
    ) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (source, reader) = (&self.source, &self.reader);
        let from = source.row(segment.source_block, layer, half, segment.source_slot, self.source_head + head);
        let to = reader.row(segment.reader_block, layer, half, segment.reader_slot, self.reader_head + head);
        let step = (source.strides.token * source.element.bytes(), reader.strides.token * reader.element.bytes());
        (0..segment.tokens).map(move |token| (from + token * step.0, to + token * step.1))
    }

    fn source_scale(&self, segment: &Segment, layer: usize, half: usize, head: usize) -> usize {
        self.source.scale(segment.source_block, layer, half, self.source_head + head)
    }
}

fn read_scale(memory: &[u8], first: usize) -> f32 {
    let bytes = memory[first..][..SCALE_BYTES].try_into().expect("as many");
    f32::from_le_bytes(bytes)
}

/// What can come under a scale of the reader's.
trait Scalable {
    /// The scale that a reader's block needs for the segments of it.
    fn scale(part: &Part, segments: &[Segment], layer: usize, half: usize, head: usize, source: &[u8]) -> f32;

    /// The scale that a segment's numbers have at the source; 1 when they have none.
    fn of_block(part: &Part, segment: &Segment, layer: usize, half: usize, head: usize, source: &[u8]) -> f32;

    /// Numbers under their own scale as codes under the reader's.
    fn encode(numbers: &[u8], own: f32, scale: f32, codes: &mut [u8]);
}

impl<S: Number> Scalable for S {
    fn scale(part: &Part, segments: &[Segment], layer: usize, half: usize, head: usize, source: &[u8]) -> f32 {
        let bytes = part.source.dim * part.source.element.bytes();
        let rows = segments.iter().flat_map(|segment| part.head_rows(segment, layer, half, head));
        let extents = rows.map(|(from, _)| S::extent(&source[from..][..bytes]));
        extents.fold(Extent::default(), Extent::and).scale()
    }

    fn of_block(_: &Part, _: &Segment, _: usize, _: usize, _: usize, _: &[u8]) -> f32 {
        1.0
    }

    fn encode(numbers: &[u8], _: f32, scale: f32, codes: &mut [u8]) {
        number::encode::<S>(numbers, number::inverse(scale), codes);
    }
}

/// Codes of fp8 with scales of their own: the largest of them serves all, and those under it stay as they are.
struct Codes;

impl Scalable for Codes {
    fn scale(part: &Part, segments: &[Segment], layer: usize, half: usize, head: usize, source: &[u8]) -> f32 {
        let scales = segments.iter().map(|segment| Self::of_block(part, segment, layer, half, head, source));
        scales.map(number::valid_scale).fold(0.0, f32::max)
    }

    fn of_block(part: &Part, segment: &Segment, layer: usize, half: usize, head: usize, source: &[u8]) -> f32 {
        read_scale(source, part.source_scale(segment, layer, half, head))
    }

    fn encode(numbers: &[u8], own: f32, scale: f32, codes: &mut [u8]) {
        if own == scale {
            codes.copy_from_slice(numbers);
        } else {
            number::recode(numbers, own / scale.max(f32::MIN_POSITIVE), codes);
        }
    }
}
