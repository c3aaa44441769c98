//! Rows of activations as a product reads them.
//!
//! Rows are prepared in blocks of [`PANEL`] numbers, each block by itself: as singles, rounded
//! to bf16 where these are multiplied in pairs, or rounded to integers of 8 bits. A block's
//! integers are its numbers divided by a 127th of the largest of them.

use super::buffer::{Aligned, Shared};
use super::tile::{Block, PANEL, Rows};
use super::vector::{Kernel, Vector};
use super::{Compute, Path, dispatch};
use crate::workers::Workers;

/// Rows prepared for products of one [`Compute`]. Kept from step to step: a buffer that is
/// large enough is used again.
pub struct Activations {
    path: Path,
    compute: Compute,
    rows: usize,
    inputs: usize,
    numbers: Aligned,
    blocks: Vec<Block>,
}

/// Numbers below which a caller is quicker alone than with others.
const ALONE: usize = 1 << 13;
/// The largest number of a block that is taken for none: its integers' scale were too small.
const NOTHING: f32 = 1e-30;

impl Activations {
    /// No rows.
    pub fn new(path: Path, compute: Compute) -> Self {
        Self { path, compute, rows: 0, inputs: 0, numbers: Aligned::default(), blocks: Vec::new() }
    }

    /// Rows prepared.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Numbers of a row.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    pub(super) fn path(&self) -> Path {
        self.path
    }

    pub(super) fn compute(&self) -> Compute {
        self.compute
    }

    /// Prepares rows of `inputs` numbers.
    ///
    /// # Panics
    ///
    /// When `x` is not whole rows.
    pub fn prepare(&mut self, workers: &Workers, x: &[f32], inputs: usize) {
        self.fill(workers, x, inputs, None);
    }

    /// Prepares rows of as many numbers as `weight` has, each divided by its root mean square
    /// (of which `epsilon` is added to the square) and multiplied with `weight`.
    ///
    /// # Panics
    ///
    /// When `x` is not whole rows.
    pub fn prepare_normed(&mut self, workers: &Workers, x: &[f32], weight: &[f32], epsilon: f32) {
        self.fill(workers, x, weight.len(), Some(Norm { weight, epsilon }));
    }

    fn fill(&mut self, workers: &Workers, x: &[f32], inputs: usize, norm: Option<Norm<'_>>) {
        assert!(inputs > 0 && x.len().is_multiple_of(inputs), "whole rows");
        let rows = x.len() / inputs;
        let to = self.resize(rows, inputs);
        let path = self.path;
        let fill = |part: usize, parts: usize| {
            let (first, end) = (rows * part / parts, rows * (part + 1) / parts);
            dispatch(path, Fill { x: &x[first * inputs..end * inputs], inputs, norm, to, first });
        };
        let parts = if x.len() < ALONE { 1 } else { workers.count() };
        workers.run(parts, &|_, part| fill(part, parts));
    }

    /// Makes room for rows that are then written block by block.
    pub(super) fn resize(&mut self, rows: usize, inputs: usize) -> Target {
        (self.rows, self.inputs) = (rows, inputs);
        self.numbers.grow(rows * self.stride());
        if self.compute == Compute::Int8 && self.blocks.len() < rows * self.blocks_stride() {
            self.blocks.resize(rows * self.blocks_stride(), Block::default());
        }
        Target {
            kept: self.kept(),
            stride: self.stride(),
            blocks_stride: self.blocks_stride(),
            numbers: Shared::new(&mut self.numbers),
            blocks: Shared::new(&mut self.blocks),
        }
    }

    /// Blocks of a row.
    fn blocks_stride(&self) -> usize {
        self.inputs.div_ceil(PANEL)
    }

    /// As what numbers are kept.
    fn kept(&self) -> Compute {
        if self.compute == Compute::Bf16 && !self.path.multiplies_pairs() { Compute::F32 } else { self.compute }
    }

    /// Bytes from row to row.
    fn stride(&self) -> usize {
        let number = match self.kept() {
            Compute::F32 => 4,
            Compute::Bf16 => 2,
            Compute::Int8 => 1,
        };
        let bytes = self.blocks_stride() * PANEL * number;
        // A tile's rows are read side by side: a few lines off a power of two, they do not
        // fall upon the same set of the cache.
        if bytes.is_multiple_of(1024) { bytes + 64 } else { bytes }
    }

    pub(super) fn view(&self) -> Rows {
        Rows {
            numbers: self.numbers.as_ptr(),
            stride: self.stride(),
            blocks: self.blocks.as_ptr(),
            blocks_stride: self.blocks_stride(),
        }
    }
}

/// Rows of [`Activations`] that are being written.
#[derive(Clone, Copy)]
pub(super) struct Target {
    kept: Compute,
    stride: usize,
    blocks_stride: usize,
    numbers: Shared<u8>,
    blocks: Shared<Block>,
}

impl Target {
    /// Writes block `index` of row `row`.
    ///
    /// # Safety
    ///
    /// There is such a block, and nobody else writes it.
    #[inline(always)]
    pub(super) unsafe fn put<V: Vector>(self, v: V, row: usize, index: usize, numbers: &[f32; PANEL]) {
        // SAFETY: a block has `PANEL` numbers here and there.
        unsafe {
            let to = self.numbers.at(row * self.stride);
            match self.kept {
                Compute::F32 => to.cast::<[f32; PANEL]>().add(index).write(*numbers),
                Compute::Bf16 => {
                    for at in (0..PANEL).step_by(V::LANES) {
                        v.store_bf16(to.cast::<u16>().add(index * PANEL + at), v.load(numbers.as_ptr().add(at)));
                    }
                }
                Compute::Int8 => {
                    let to = to.cast::<i8>().add(index * PANEL);
                    *self.blocks.at(row * self.blocks_stride + index) = round(v, numbers, to);
                }
            }
        }
    }
}

/// Rounds a block to integers.
#[inline(always)]
unsafe fn round<V: Vector>(v: V, numbers: &[f32; PANEL], to: *mut i8) -> Block {
    // SAFETY: there is room for `PANEL` bytes, says the caller.
    unsafe {
        let mut largest = v.splat(0.0);
        for at in (0..PANEL).step_by(V::LANES) {
            largest = v.max(largest, v.abs(v.load(numbers.as_ptr().add(at))));
        }
        let largest = v.largest(largest);
        let (scale, inverse) = if largest < NOTHING { (0.0, 0.0) } else { (largest / 127.0, 127.0 / largest) };
        for at in (0..PANEL).step_by(V::LANES) {
            let number = v.mul(v.load(numbers.as_ptr().add(at)), v.splat(inverse));
            v.store_i8(to.add(at), v.nearest(number));
        }
        let sum = to.cast::<[i8; PANEL]>().read().into_iter().map(i32::from).sum();
        Block { scale, scaled_sum: scale * sum as f32, sum }
    }
}

#[derive(Clone, Copy)]
struct Norm<'a> {
    weight: &'a [f32],
    epsilon: f32,
}

/// Prepares the rows of `x` as those from `first` on.
struct Fill<'a> {
    x: &'a [f32],
    inputs: usize,
    norm: Option<Norm<'a>>,
    to: Target,
    first: usize,
}

impl Kernel for Fill<'_> {
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        for (row, x) in self.x.chunks_exact(self.inputs).enumerate() {
            let factor = self.norm.map_or(1.0, |norm| 1.0 / (mean_square(v, x) + norm.epsilon).sqrt());
            // SAFETY: the target has rows of as many blocks; a row is one worker's.
            let put = |index, block: &_| unsafe { self.to.put(v, self.first + row, index, block) };
            let (blocks, rest) = x.as_chunks::<PANEL>();
            for (index, block) in blocks.iter().enumerate() {
                let mut block = *block;
                if let Some(norm) = self.norm {
                    let weights = &norm.weight.as_chunks::<PANEL>().0[index];
                    for (number, weight) in block.iter_mut().zip(weights) {
                        *number = *number * factor * weight;
                    }
                }
                put(index, &block);
            }
            if !rest.is_empty() {
                let mut block = [0.0; PANEL];
                for (index, number) in rest.iter().enumerate() {
                    let weight = self.norm.map_or(1.0, |norm| norm.weight[blocks.len() * PANEL + index]);
                    block[index] = number * factor * weight;
                }
                put(blocks.len(), &block);
            }
        }
    }
}

/// The mean of the numbers' squares, summed in four vectors, the rest one by one.
#[inline(always)]
pub(super) fn mean_square<V: Vector>(v: V, x: &[f32]) -> f32 {
    let mut sums = [v.splat(0.0); 4];
    let chunks = x.chunks_exact(4 * V::LANES);
    let rest: f32 = chunks.remainder().iter().map(|x| x * x).sum();
    for chunk in chunks {
        for (index, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the chunk has four vectors.
            let x = unsafe { v.load(chunk.as_ptr().add(index * V::LANES)) };
            *sum = v.mul_add(x, x, *sum);
        }
    }
    let sum = v.add(v.add(sums[0], sums[1]), v.add(sums[2], sums[3]));
    (v.sum(sum) + rest) / x.len() as f32
}
