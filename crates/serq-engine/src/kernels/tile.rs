//! The inner loops of a product.
//!
//! A weight matrix is cut into panels of [`PANEL`] outputs, and a panel is stored in steps
//! along its inputs: what one step of the inner loop reads stands together.
//!
//! ```text
//!   F32       1 input      32 × f32
//!   Bf16      2 inputs     32 × (bf16, bf16)
//!   Q8       32 inputs     8 × 32 × (4 × u8)     32 × scale f16
//!   Q4       32 inputs     4 × 32 × (4 × u8)     32 × scale f16
//!   Q4Least  32 inputs     4 × 32 × (4 × u8)     32 × scale f16, 32 × least f16
//!
//!   an integer's byte is the integer + 128 (Q8), or holds those of inputs i low and i + 16
//!   high (Q4: + 8)
//! ```
//!
//! # Invariants
//!
//! - An output is summed in one accumulator from the first step to the last, the same in
//!   every tile: its bits do not depend on the tile's shape.

// A tile's row is an accumulator and a place in memory.
#![allow(clippy::needless_range_loop)]

use super::Path;
use super::vector::{Kernel, Vector};

/// Outputs in a panel: also the inputs in a block, so that a panel's outputs are a block.
pub(super) const PANEL: usize = 32;

/// How a panel is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    F32,
    Bf16,
    Q8,
    Q4,
    Q4Least,
}

impl Format {
    /// Whether a path multiplies it as singles.
    pub(super) fn is_singles(self, path: Path) -> bool {
        self == Self::F32 || self == Self::Bf16 && !path.multiplies_pairs()
    }

    /// Inputs of a step.
    pub(super) fn step_inputs(self) -> usize {
        match self {
            Self::F32 => 1,
            Self::Bf16 => 2,
            Self::Q8 | Self::Q4 | Self::Q4Least => PANEL,
        }
    }

    /// Bytes of a step, whole cache lines.
    pub(super) fn step_bytes(self) -> usize {
        match self {
            Self::F32 | Self::Bf16 => 4 * PANEL,
            Self::Q8 => 34 * PANEL,
            Self::Q4 => 18 * PANEL,
            Self::Q4Least => 20 * PANEL,
        }
    }

    /// Steps along so many inputs.
    pub(super) fn steps(self, inputs: usize) -> usize {
        inputs.div_ceil(self.step_inputs())
    }

    /// Bytes of a panel with so many inputs.
    pub(super) fn panel_bytes(self, inputs: usize) -> usize {
        self.steps(inputs) * self.step_bytes()
    }
}

/// What goes with a block of a row of integers.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Block {
    /// What an integer is to be multiplied with.
    pub(super) scale: f32,
    /// The integers' sum, multiplied.
    pub(super) scaled_sum: f32,
    /// The integers' sum.
    pub(super) sum: i32,
}

/// Rows of activations: as singles, as pairs of bf16 where these are multiplied so, or as bytes
/// with a [`Block`] for every 32.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) numbers: *const u8,
    /// Bytes from row to row.
    pub(super) stride: usize,
    /// For integers.
    pub(super) blocks: *const Block,
    /// Blocks from row to row.
    pub(super) blocks_stride: usize,
}

impl Rows {
    /// The rows from `row` on.
    pub(super) unsafe fn from(self, row: usize) -> Self {
        // SAFETY: the caller says that there is such a row; blocks are not followed without.
        let numbers = unsafe { self.numbers.add(row * self.stride) };
        Self { numbers, blocks: self.blocks.wrapping_add(row * self.blocks_stride), ..self }
    }

    /// Rows of numbers, from byte `at` of each on.
    pub(super) unsafe fn after(self, at: usize) -> Self {
        // SAFETY: the caller says that a row is longer.
        Self { numbers: unsafe { self.numbers.add(at) }, ..self }
    }
}

/// A product of rows with one panel or two, `panel_bytes` apart.
#[derive(Clone, Copy)]
pub(super) struct Product {
    pub(super) format: Format,
    pub(super) rows: Rows,
    pub(super) panels: *const u8,
    pub(super) panel_bytes: usize,
    pub(super) steps: usize,
    /// Whether sums go on from what stands there. Not for integers.
    pub(super) goes_on: bool,
    /// Where the first row's outputs go.
    pub(super) to: *mut f32,
    /// Singles from row to row.
    pub(super) to_stride: usize,
}

/// The rows of the highest tile: [`product`] is best called with as many at once.
pub(super) fn tile_rows<V: Vector>(format: Format) -> usize {
    shapes::<V>(format)[0].0
}

fn shapes<V: Vector>(format: Format) -> &'static [(usize, usize)] {
    match format {
        Format::F32 | Format::Bf16 => V::TILES,
        Format::Q8 | Format::Q4 | Format::Q4Least => V::BLOCK_TILES,
    }
}

/// Computes it for `rows` rows and `panels` panels, 1 or 2.
///
/// # Safety
///
/// Rows and panels are as long as `steps` says, and there is room for the outputs.
#[inline(always)]
pub(super) unsafe fn product<V: Vector>(v: V, product: Product, rows: usize, panels: usize) {
    let vectors = panels * PANEL / V::LANES;
    let mut row = 0;
    while row < rows {
        let fits = |&(height, width): &(usize, usize)| height <= rows - row && width <= vectors;
        let (height, width) = shapes::<V>(product.format).iter().copied().find(fits).expect("a tile of one row");
        for first in (0..vectors).step_by(width) {
            // SAFETY: the caller's word, for the rows from `row` on.
            let tile = unsafe {
                let to = product.to.add(row * product.to_stride);
                Tile { product: Product { rows: product.rows.from(row), to, ..product }, first }
            };
            run_tile(v, tile, height, width);
        }
        row += height;
    }
}

/// A tile of a product: its first rows, and of the panels' outputs those of the vectors from
/// `first` on.
struct Tile {
    product: Product,
    first: usize,
}

/// Bytes by which weights are asked for ahead: integers where several rows make a step so long
/// that the machine does not read ahead by itself (one row, and pairs of bf16, are slower with it
/// on a Zen 4), and bf16 that are widened.
const AHEAD: usize = 2048;

/// A tile of singles or of bf16, of so many rows and vectors.
struct NumberTile<const BF16: bool, const HEIGHT: usize, const WIDTH: usize>(Tile);
/// A tile of integers in one of the formats below, of so many rows and vectors.
struct BlockTile<const FORMAT: usize, const HEIGHT: usize, const WIDTH: usize>(Tile);

const Q8: usize = 0;
const Q4: usize = 1;
const Q4_LEAST: usize = 2;

#[inline(always)]
fn run_tile<V: Vector>(v: V, tile: Tile, height: usize, width: usize) {
    macro_rules! numbers {
        ($bf16:literal, $($height:literal x $width:literal),*) => {
            match (height, width) {
                $(($height, $width) => v.call(NumberTile::<$bf16, $height, $width>(tile)),)*
                _ => unreachable!("a tile of numbers of {height} x {width}"),
            }
        };
    }
    macro_rules! blocks {
        ($format:ident, $($height:literal x $width:literal),*) => {
            match (height, width) {
                $(($height, $width) => v.call(BlockTile::<$format, $height, $width>(tile)),)*
                _ => unreachable!("a tile of blocks of {height} x {width}"),
            }
        };
    }
    match tile.product.format {
        Format::F32 => numbers!(false, 12 x 2, 8 x 2, 6 x 2, 4 x 4, 4 x 2, 3 x 4, 3 x 2, 2 x 4, 2 x 2, 1 x 4, 1 x 2),
        Format::Bf16 => numbers!(true, 12 x 2, 8 x 2, 6 x 2, 4 x 4, 4 x 2, 3 x 4, 3 x 2, 2 x 4, 2 x 2, 1 x 4, 1 x 2),
        Format::Q8 => blocks!(Q8, 12 x 1, 8 x 1, 4 x 2, 4 x 1, 2 x 2, 1 x 4, 1 x 2),
        Format::Q4 => blocks!(Q4, 12 x 1, 8 x 1, 4 x 2, 4 x 1, 2 x 2, 1 x 4, 1 x 2),
        Format::Q4Least => blocks!(Q4_LEAST, 12 x 1, 8 x 1, 4 x 2, 4 x 1, 2 x 2, 1 x 4, 1 x 2),
    }
}

impl<const BF16: bool, const HEIGHT: usize, const WIDTH: usize> Kernel for NumberTile<BF16, HEIGHT, WIDTH> {
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let Tile { product, first } = self.0;
        // SAFETY: `product`'s caller's word.
        unsafe {
            let mut weights = [product.panels; WIDTH];
            for (index, weights) in weights.iter_mut().enumerate() {
                let output = (first + index) * V::LANES;
                *weights = weights.add(output / PANEL * product.panel_bytes + output % PANEL * 4);
            }
            let mut sums = [[v.splat(0.0); WIDTH]; HEIGHT];
            if product.goes_on {
                for row in 0..HEIGHT {
                    for column in 0..WIDTH {
                        sums[row][column] = v.load(place(v, &product, row, first + column));
                    }
                }
            }
            let Rows { numbers, stride, .. } = product.rows;
            for step in 0..product.steps {
                let step_weights = weights.map(|weights| weights.add(step * 4 * PANEL));
                if BF16 && !V::PAIRS {
                    let mut singles = [[v.splat(0.0); WIDTH]; 2];
                    for column in 0..WIDTH {
                        v.prefetch(step_weights[column].wrapping_add(AHEAD));
                        let words = v.load_words(step_weights[column]);
                        (singles[0][column], singles[1][column]) = (v.low_bf16(words), v.high_bf16(words));
                    }
                    for half in 0..2 {
                        for row in 0..HEIGHT {
                            let number = numbers.add(row * stride + step * 8 + half * 4).cast();
                            v.add_products(&mut sums[row], number, &singles[half]);
                        }
                    }
                } else if BF16 {
                    let words = step_weights.map(|weights| v.load_words(weights));
                    for row in 0..HEIGHT {
                        let pair = v.load_splat_word(numbers.add(row * stride + step * 4));
                        for column in 0..WIDTH {
                            sums[row][column] = v.dot_bf16(sums[row][column], pair, words[column]);
                        }
                    }
                } else {
                    let singles = step_weights.map(|weights| v.load(weights.cast()));
                    for row in 0..HEIGHT {
                        v.add_products(&mut sums[row], numbers.add(row * stride + step * 4).cast(), &singles);
                    }
                }
            }
            store_sums(v, &product, first, sums);
        }
    }
}

impl<const FORMAT: usize, const HEIGHT: usize, const WIDTH: usize> Kernel for BlockTile<FORMAT, HEIGHT, WIDTH> {
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let Tile { product, first } = self.0;
        let groups = if FORMAT == Q8 { 8 } else { 4 };
        // SAFETY: `product`'s caller's word.
        unsafe {
            let mut integers = [product.panels; WIDTH];
            let mut scales = [product.panels; WIDTH];
            for index in 0..WIDTH {
                let output = (first + index) * V::LANES;
                let panel = product.panels.add(output / PANEL * product.panel_bytes);
                integers[index] = panel.add(output % PANEL * 4);
                scales[index] = panel.add(groups * 4 * PANEL + output % PANEL * 2);
            }
            let mut sums = [[v.splat(0.0); WIDTH]; HEIGHT];
            for step in 0..product.steps {
                let at = step * product.format.step_bytes();
                let rows = Rows {
                    numbers: product.rows.numbers.add(step * PANEL),
                    blocks: product.rows.blocks.add(step),
                    ..product.rows
                };
                if HEIGHT <= 2 {
                    // Memory is read in its order.
                    let mut dots = [[v.splat_word(0); WIDTH]; HEIGHT];
                    for row in 0..HEIGHT {
                        dots[row] = [first_dot::<V, FORMAT>(v, rows, row); WIDTH];
                    }
                    for group in 0..groups {
                        for column in 0..WIDTH {
                            let loaded = v.load_words(integers[column].add(at + group * 4 * PANEL));
                            for row in 0..HEIGHT {
                                let dot = &mut dots[row][column];
                                if FORMAT == Q8 {
                                    *dot = v.dot_bytes(*dot, loaded, integer_group(v, rows, row, group));
                                } else {
                                    let (low, high) = (v.low_nibbles(loaded), v.high_nibbles(loaded));
                                    *dot = v.dot_nibbles(*dot, low, integer_group(v, rows, row, group));
                                    *dot = v.dot_nibbles(*dot, high, integer_group(v, rows, row, group + 4));
                                }
                            }
                        }
                    }
                    for column in 0..WIDTH {
                        let scale = Scale::<V, FORMAT>::load(v, scales[column].add(at));
                        for row in 0..HEIGHT {
                            scale.add(v, rows, row, dots[row][column], &mut sums[row][column]);
                        }
                    }
                    continue;
                }
                for column in 0..WIDTH {
                    let mut words = [v.splat_word(0); 8];
                    for group in 0..groups {
                        let from = integers[column].add(at + group * 4 * PANEL);
                        v.prefetch(from.wrapping_add(AHEAD));
                        let loaded = v.load_words(from);
                        if FORMAT == Q8 {
                            words[group] = loaded;
                        } else {
                            words[group] = v.low_nibbles(loaded);
                            words[group + 4] = v.high_nibbles(loaded);
                        }
                    }
                    let weights = BlockWeights { words, scale: Scale::<V, FORMAT>::load(v, scales[column].add(at)) };
                    // One after the other by hand: a loop's sums would not stay in registers.
                    weights.add_to_four(v, rows, &mut sums, 0, column);
                    if HEIGHT > 4 {
                        weights.add_to_four(v, rows, &mut sums, 4, column);
                    }
                    if HEIGHT > 8 {
                        weights.add_to_four(v, rows, &mut sums, 8, column);
                    }
                }
            }
            store_sums(v, &product, first, sums);
        }
    }
}

/// A block's weights, for as many outputs as a vector has lanes.
struct BlockWeights<V: Vector, const FORMAT: usize> {
    /// Four inputs of each output in a word.
    words: [V::I; 8],
    scale: Scale<V, FORMAT>,
}

impl<V: Vector, const FORMAT: usize> BlockWeights<V, FORMAT> {
    /// Adds the products with four rows' blocks to their sums. Dots of four rows are summed
    /// side by side, which hides how long an addition takes.
    #[inline(always)]
    unsafe fn add_to_four<const HEIGHT: usize, const WIDTH: usize>(
        &self,
        v: V,
        rows: Rows,
        sums: &mut [[V::F; WIDTH]; HEIGHT],
        first: usize,
        column: usize,
    ) {
        // SAFETY: `product`'s caller's word.
        unsafe {
            let mut dots = [v.splat_word(0); 4];
            for row in 0..4 {
                dots[row] = first_dot::<V, FORMAT>(v, rows, first + row);
            }
            for group in 0..8 {
                for row in 0..4 {
                    let integers = integer_group(v, rows, first + row, group);
                    dots[row] = if FORMAT == Q8 {
                        v.dot_bytes(dots[row], self.words[group], integers)
                    } else {
                        v.dot_nibbles(dots[row], self.words[group], integers)
                    };
                }
            }
            for row in 0..4 {
                self.scale.add(v, rows, first + row, dots[row], &mut sums[first + row][column]);
            }
        }
    }
}

/// What a row's block of dots begins with: what they come out too large by, taken away.
#[inline(always)]
unsafe fn first_dot<V: Vector, const FORMAT: usize>(v: V, rows: Rows, row: usize) -> V::I {
    let excess = [128, 8, 0][FORMAT];
    // SAFETY: the caller says that there is such a row.
    v.splat_word(-excess * unsafe { (*rows.blocks.add(row * rows.blocks_stride)).sum })
}

/// Four integers of a row, in every lane.
#[inline(always)]
unsafe fn integer_group<V: Vector>(v: V, rows: Rows, row: usize, group: usize) -> V::I {
    // SAFETY: the caller says that there is such a row.
    unsafe { v.load_splat_word(rows.numbers.add(row * rows.stride + group * 4)) }
}

/// What a block's dots are multiplied with, and what is added: of as many outputs as a vector
/// has lanes.
struct Scale<V: Vector, const FORMAT: usize> {
    scale: V::F,
    least: V::F,
}

impl<V: Vector, const FORMAT: usize> Scale<V, FORMAT> {
    #[inline(always)]
    unsafe fn load(v: V, from: *const u8) -> Self {
        // SAFETY: the caller says that they are there.
        unsafe {
            let scale = v.load_f16(from.cast());
            let least = if FORMAT == Q4_LEAST { v.load_f16(from.add(2 * PANEL).cast()) } else { scale };
            Self { scale, least }
        }
    }

    /// Adds a dot with a row's block to the row's sum.
    #[inline(always)]
    unsafe fn add(&self, v: V, rows: Rows, row: usize, dot: V::I, sum: &mut V::F) {
        // SAFETY: the caller says that there is such a row.
        let block = unsafe { &*rows.blocks.add(row * rows.blocks_stride) };
        let dot = v.mul(v.to_singles(dot), v.splat(block.scale));
        *sum = v.mul_add(dot, self.scale, *sum);
        if FORMAT == Q4_LEAST {
            *sum = v.mul_add(v.splat(block.scaled_sum), self.least, *sum);
        }
    }
}

#[inline(always)]
unsafe fn store_sums<V: Vector, const HEIGHT: usize, const WIDTH: usize>(
    v: V,
    product: &Product,
    first: usize,
    sums: [[V::F; WIDTH]; HEIGHT],
) {
    for row in 0..HEIGHT {
        for column in 0..WIDTH {
            // SAFETY: the caller's word.
            unsafe { v.store(place(v, product, row, first + column), sums[row][column]) };
        }
    }
}

/// Where a vector of sums goes.
#[inline(always)]
unsafe fn place<V: Vector>(_: V, product: &Product, row: usize, column: usize) -> *mut f32 {
    // SAFETY: the caller says that there is room.
    unsafe { product.to.add(row * product.to_stride + column * V::LANES) }
}

/// Writes steps of a panel of bf16 as those of a panel of singles, of which each is two.
///
/// # Safety
///
/// The steps are there, and there is room.
#[inline(always)]
pub(super) unsafe fn widen<V: Vector>(v: V, panel: *const u8, steps: usize, to: *mut f32) {
    for step in 0..steps {
        for at in (0..PANEL).step_by(V::LANES) {
            // SAFETY: the caller's word.
            unsafe {
                let words = v.load_words(panel.add((step * PANEL + at) * 4));
                v.store(to.add(2 * step * PANEL + at), v.low_bf16(words));
                v.store(to.add((2 * step + 1) * PANEL + at), v.high_bf16(words));
            }
        }
    }
}
