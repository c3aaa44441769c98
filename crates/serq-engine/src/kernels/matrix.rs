//! Weights, packed for products.

use half::{bf16, f16};

use super::activations::Target;
use super::buffer::{Shared, Weights};
use super::tile::{self, Format, PANEL, Product, Rows};
use super::vector::{Kernel, Vector};
use super::{Activations, Compute, Path, dispatch};
use crate::weights::{Stored, Tensor};
use crate::workers::Workers;

/// A weight matrix, or several with the same inputs one below the other, packed into panels
/// for one [`Path`] and one [`Compute`].
pub struct Matrix {
    path: Path,
    compute: Compute,
    inputs: usize,
    outputs: usize,
    /// Whether panels alternate: a gate's, and that of what it lets through.
    gated: bool,
    panels: Vec<Panel>,
    bytes: Weights,
}

/// Up to [`PANEL`] outputs of one tensor.
#[derive(Clone, Copy)]
struct Panel {
    format: Format,
    /// Its first byte.
    start: usize,
    /// Its first output.
    output: usize,
    width: usize,
}

impl Matrix {
    /// Packs tensors of equal columns, their rows one below the other: the outputs of the
    /// first, of the second and so on are side by side in a product's row.
    ///
    /// For [`Compute::Int8`], blocks of 4 and of 8 bits stay what they are; what is stored
    /// otherwise is rounded to blocks of 8 bits.
    ///
    /// # Panics
    ///
    /// When the tensors are none, or their columns differ.
    pub fn pack(path: Path, compute: Compute, tensors: &[&Tensor]) -> Self {
        let mut matrix = Self::empty(path, compute, tensors);
        let mut start = 0;
        for tensor in tensors {
            start = matrix.append(tensor, matrix.outputs, start);
            matrix.outputs += tensor.rows();
        }
        matrix
    }

    /// Packs a gate and what it lets through, for [`Matrix::multiply_gated`].
    ///
    /// # Panics
    ///
    /// When they differ in rows or columns.
    pub fn pack_gated(path: Path, compute: Compute, gate: &Tensor, up: &Tensor) -> Self {
        assert_eq!((gate.rows(), gate.columns()), (up.rows(), up.columns()), "a gate for every output");
        let mut matrix = Self { gated: true, outputs: gate.rows(), ..Self::empty(path, compute, &[gate, up]) };
        let start = matrix.append(gate, 0, 0);
        matrix.append(up, 0, start);
        let (gate, up) = matrix.panels.split_at(matrix.panels.len() / 2);
        matrix.panels = gate.iter().zip(up).flat_map(|(gate, up)| [*gate, *up]).collect();
        matrix
    }

    /// Room for the tensors.
    fn empty(path: Path, compute: Compute, tensors: &[&Tensor]) -> Self {
        let inputs = tensors[0].columns();
        let panel_bytes = |tensor: &&Tensor| format(compute, tensor.stored()).panel_bytes(inputs);
        let bytes = tensors.iter().map(|tensor| tensor.rows().div_ceil(PANEL) * panel_bytes(tensor)).sum();
        Self { path, compute, inputs, outputs: 0, gated: false, panels: Vec::new(), bytes: Weights::zeros(bytes) }
    }

    /// Packs a tensor whose first output is `output` from byte `first` on. Returns its end.
    fn append(&mut self, tensor: &Tensor, output: usize, first: usize) -> usize {
        assert_eq!(tensor.columns(), self.inputs, "the same inputs");
        let format = format(self.compute, tensor.stored());
        let panel_bytes = format.panel_bytes(self.inputs);
        let mut singles = vec![0.0; self.inputs];
        for row in (0..tensor.rows()).step_by(PANEL) {
            let start = first + row / PANEL * panel_bytes;
            let width = PANEL.min(tensor.rows() - row);
            let panel = &mut self.bytes[start..][..panel_bytes];
            for column in 0..width {
                pack_row(tensor, row + column, format, column, &mut singles, panel);
            }
            self.panels.push(Panel { format, start, output: output + row, width });
        }
        first + tensor.rows().div_ceil(PANEL) * panel_bytes
    }

    /// Numbers of a row it is multiplied with.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Numbers of a row that comes out.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Bytes that a product reads.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// `y` = the product: a row of [`Matrix::outputs`] for each row of `x`.
    ///
    /// # Panics
    ///
    /// When `x` was prepared for another path, compute or number of inputs, or `y` is not as
    /// long as the rows that come out.
    pub fn multiply(&self, workers: &Workers, x: &Activations, y: &mut [f32]) {
        assert!(!self.gated, "a gate is multiplied by `multiply_gated`");
        assert_eq!(y.len(), x.rows() * self.outputs, "a row of outputs for each of inputs");
        self.run(workers, x, To::Store(Shared::new(y)));
    }

    /// `y` += the product, as [`Matrix::multiply`].
    ///
    /// # Panics
    ///
    /// As there.
    pub fn multiply_add(&self, workers: &Workers, x: &Activations, y: &mut [f32]) {
        assert!(!self.gated, "a gate is multiplied by `multiply_gated`");
        assert_eq!(y.len(), x.rows() * self.outputs, "a row of outputs for each of inputs");
        self.run(workers, x, To::Add(Shared::new(y)));
    }

    /// `y` = SiLU(gate's product) · (other product), prepared as the next product's rows.
    ///
    /// # Panics
    ///
    /// When the matrix was not packed by [`Matrix::pack_gated`], or as [`Matrix::multiply`].
    pub fn multiply_gated(&self, workers: &Workers, x: &Activations, y: &mut Activations) {
        assert!(self.gated, "a gate is packed by `pack_gated`");
        assert!(y.path() == self.path && y.compute() == self.compute, "rows for the same products");
        self.run(workers, x, To::Gate(y.resize(x.rows(), self.outputs)));
    }

    fn run(&self, workers: &Workers, x: &Activations, to: To) {
        assert!(x.path() == self.path && x.compute() == self.compute, "rows prepared for this matrix");
        assert!(x.inputs() == self.inputs, "{} inputs prepared, {} to be multiplied", x.inputs(), self.inputs);
        let unit = if self.gated { 2 } else { 1 };
        let units = self.panels.len() / unit;
        let many = x.rows() >= MANY_ROWS;
        let singles = many && self.panels.first().is_some_and(|panel| panel.format.is_singles(self.path));
        let (rows, columns) = if singles {
            let columns = self.panels.len() / (SINGLES_PANELS * workers.count());
            (rows_at_once(x, SINGLES_ROWS, SINGLES_ROWS_BYTES), columns.clamp(1, 4))
        } else if many {
            // A worker that is held up keeps the others waiting for one part only.
            (rows_at_once(x, usize::MAX, ROWS_BYTES), 4)
        } else {
            // Weights come from memory, best in long runs.
            (x.rows().max(1), 1)
        };
        let columns = workers.count() * columns;
        workers.run(columns * x.rows().div_ceil(rows), &|_, part| {
            let (first, column) = (part / columns * rows, part % columns);
            let panels = &self.panels[units * column / columns * unit..units * (column + 1) / columns * unit];
            let end = x.rows().min(first + rows);
            dispatch(self.path, Part { matrix: self, panels, rows: x.view(), first, end, singles, to });
        });
    }
}

fn format(compute: Compute, stored: Stored) -> Format {
    match (compute, stored) {
        (Compute::F32, _) => Format::F32,
        (Compute::Bf16, _) => Format::Bf16,
        (Compute::Int8, Stored::Q4_0) => Format::Q4,
        (Compute::Int8, Stored::Q4_1) => Format::Q4Least,
        (Compute::Int8, _) => Format::Q8,
    }
}

/// Writes a tensor's row as column `column` of a panel.
fn pack_row(tensor: &Tensor, row: usize, format: Format, column: usize, singles: &mut [f32], panel: &mut [u8]) {
    let steps = panel.chunks_exact_mut(format.step_bytes());
    match (format, tensor.stored()) {
        (Format::F32, _) => {
            tensor.row_f32(row, singles);
            for (step, single) in steps.zip(singles) {
                step[column * 4..][..4].copy_from_slice(&single.to_le_bytes());
            }
        }
        (Format::Bf16, _) => {
            tensor.row_f32(row, singles);
            for (step, pair) in steps.zip(singles.chunks(2)) {
                for (index, single) in pair.iter().enumerate() {
                    step[column * 4 + index * 2..][..2].copy_from_slice(&bf16::from_f32(*single).to_le_bytes());
                }
            }
        }
        (Format::Q8, Stored::Q8_0) => {
            for (step, block) in steps.zip(tensor.row(row).as_chunks().0) {
                pack_q8(block, column, step);
            }
        }
        (Format::Q8, _) => {
            tensor.row_f32(row, singles);
            for (step, singles) in steps.zip(singles.chunks(PANEL)) {
                pack_q8(&rounded_block(singles), column, step);
            }
        }
        (Format::Q4, _) => {
            for (step, block) in steps.zip(tensor.row(row).as_chunks().0) {
                let [scale_low, scale_high, nibbles @ ..]: &[u8; 18] = block;
                pack_words(nibbles, column, step);
                step[16 * PANEL + column * 2..][..2].copy_from_slice(&[*scale_low, *scale_high]);
            }
        }
        (Format::Q4Least, _) => {
            for (step, block) in steps.zip(tensor.row(row).as_chunks().0) {
                let [scale_low, scale_high, least_low, least_high, nibbles @ ..]: &[u8; 20] = block;
                pack_words(nibbles, column, step);
                step[16 * PANEL + column * 2..][..2].copy_from_slice(&[*scale_low, *scale_high]);
                step[18 * PANEL + column * 2..][..2].copy_from_slice(&[*least_low, *least_high]);
            }
        }
    }
}

fn pack_q8(block: &[u8; 34], column: usize, step: &mut [u8]) {
    let [scale_low, scale_high, integers @ ..] = block;
    pack_words(&integers.map(|byte| byte ^ 0x80), column, step);
    step[32 * PANEL + column * 2..][..2].copy_from_slice(&[*scale_low, *scale_high]);
}

/// Words of four bytes, each into its group's place for the column.
fn pack_words(bytes: &[u8], column: usize, step: &mut [u8]) {
    for (group, word) in step.chunks_exact_mut(4 * PANEL).zip(bytes.chunks_exact(4)) {
        group[column * 4..][..4].copy_from_slice(word);
    }
}

/// Up to 32 numbers as a block of Q8_0.
fn rounded_block(numbers: &[f32]) -> [u8; 34] {
    let largest = numbers.iter().fold(0.0f32, |largest, number| largest.max(number.abs()));
    let scale = f16::from_f32(largest / 127.0);
    let mut block = [0; 34];
    block[..2].copy_from_slice(&scale.to_le_bytes());
    if scale > f16::ZERO {
        for (byte, number) in block[2..].iter_mut().zip(numbers) {
            // The scale was rounded too: what it makes too large is cut.
            *byte = (number / scale.to_f32()).round_ties_even().clamp(-127.0, 127.0) as i8 as u8;
        }
    }
    block
}

/// Where a product's numbers go.
#[derive(Clone, Copy)]
enum To {
    Store(Shared<f32>),
    Add(Shared<f32>),
    Gate(Target),
}

/// Some panels of a product, for the rows from `first` to `end`.
struct Part<'a> {
    matrix: &'a Matrix,
    panels: &'a [Panel],
    rows: Rows,
    first: usize,
    end: usize,
    /// Whether they are multiplied as many rows of singles.
    singles: bool,
    to: To,
}

/// Rows from which a product is computed rather than read.
const MANY_ROWS: usize = 64;
/// The most rows of a tile.
const TILE_ROWS: usize = 12;
/// Bytes of rows that are multiplied with one panel after the other: they and a panel fit in
/// a core's own cache, of 1 MiB and more on the machines we know.
const ROWS_BYTES: usize = 384 << 10;
/// Inputs of which a panel's numbers, as singles, are multiplied with row after row: with a
/// tile's rows they fit in a core's first cache, of 32 KiB and more.
const SINGLES_INPUTS: usize = 192;
/// The most rows that are multiplied with them, and bytes of these rows.
const SINGLES_ROWS: usize = 22 * TILE_ROWS;
const SINGLES_ROWS_BYTES: usize = 1 << 20;
/// Panels at least that a part has then: fewer cost more bytes of rows.
const SINGLES_PANELS: usize = 8;

/// Rows of a part, where they are many: whole tiles, and all parts about as many.
fn rows_at_once(x: &Activations, most: usize, bytes: usize) -> usize {
    let most = (bytes / x.view().stride).clamp(TILE_ROWS, most) / TILE_ROWS * TILE_ROWS;
    x.rows().div_ceil(x.rows().div_ceil(most)).next_multiple_of(TILE_ROWS)
}

impl Kernel for Part<'_> {
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        if self.singles { self.run_singles(v) } else { self.run_tiles(v) }
    }
}

/// Numbers that begin with a cache line.
#[repr(align(64))]
struct Lines<const COUNT: usize>([f32; COUNT]);

impl Part<'_> {
    /// Tile after tile, each over all inputs.
    #[inline(always)]
    fn run_tiles<V: Vector>(&self, v: V) {
        let mut sums = [0.0; TILE_ROWS * 2 * PANEL];
        let mut panels = self.panels;
        while let [panel, rest @ ..] = panels {
            let pair = rest.first().filter(|next| self.matrix.gated || next.format == panel.format);
            let group = &panels[..if pair.is_some() { 2 } else { 1 }];
            panels = &panels[group.len()..];
            // A gate may be stored otherwise than what it lets through.
            let together = pair.is_none_or(|next| next.format == panel.format);
            let height = group.iter().map(|panel| tile::tile_rows::<V>(panel.format)).min().unwrap_or(1);
            for row in (self.first..self.end).step_by(height) {
                let rows = height.min(self.end - row);
                for (index, panel) in group.iter().enumerate().take(if together { 1 } else { 2 }) {
                    // SAFETY: rows and panels have the matrix's inputs, checked in
                    // `Matrix::run`; the sums have room for a tile.
                    unsafe {
                        let product = Product {
                            format: panel.format,
                            rows: self.rows.from(row),
                            panels: self.matrix.bytes.as_ptr().add(panel.start),
                            panel_bytes: pair.map_or(0, |next| next.start - group[0].start),
                            steps: panel.format.steps(self.matrix.inputs),
                            goes_on: false,
                            to: sums.as_mut_ptr().add(index * PANEL),
                            to_stride: 2 * PANEL,
                        };
                        tile::product(v, product, rows, if together { group.len() } else { 1 });
                    }
                }
                self.put(v, group, row, &sums.as_chunks::<{ 2 * PANEL }>().0[..rows]);
            }
        }
    }

    /// Panels of singles, or of bf16 that are multiplied as singles: some inputs after the
    /// other, each for all rows. Sums go on where they ended, so nothing comes out otherwise.
    #[inline(always)]
    fn run_singles<V: Vector>(&self, v: V) {
        let mut widened = Lines([0.0; SINGLES_INPUTS * PANEL]);
        let mut sums = Lines([0.0; SINGLES_ROWS * 2 * PANEL]);
        let format = self.panels.first().map_or(Format::F32, |panel| panel.format);
        let height = tile::tile_rows::<V>(format);
        let steps = format.steps(self.matrix.inputs);
        let steps_at_once = SINGLES_INPUTS / format.step_inputs();
        // Of the next inputs, as a rule; asked for while these are multiplied, tile by tile.
        let lines = (steps_at_once * format.step_bytes() / 64).div_ceil((self.end - self.first).div_ceil(height));
        for group in self.panels.chunks(2) {
            for (index, panel) in group.iter().enumerate() {
                for step in (0..steps).step_by(steps_at_once) {
                    let steps = steps_at_once.min(steps - step);
                    // SAFETY: the panel has the matrix's inputs, and so have the rows, filled up to
                    // whole blocks with zeros; the sums have room for a part's rows.
                    unsafe {
                        let mut singles = self.matrix.bytes.as_ptr().add(panel.start + step * format.step_bytes());
                        let mut next = singles.wrapping_add(steps * format.step_bytes());
                        if format == Format::Bf16 {
                            tile::widen(v, singles, steps, widened.0.as_mut_ptr());
                            singles = widened.0.as_ptr().cast();
                        }
                        for row in (self.first..self.end).step_by(height) {
                            for _ in 0..lines {
                                v.prefetch(next);
                                next = next.wrapping_add(64);
                            }
                            let product = Product {
                                format: Format::F32,
                                rows: self.rows.from(row).after(step * format.step_inputs() * size_of::<f32>()),
                                panels: singles,
                                panel_bytes: 0,
                                steps: steps * format.step_inputs(),
                                goes_on: step > 0,
                                to: sums.0.as_mut_ptr().add((row - self.first) * 2 * PANEL + index * PANEL),
                                to_stride: 2 * PANEL,
                            };
                            tile::product(v, product, height.min(self.end - row), 1);
                        }
                    }
                }
            }
            let sums = sums.0.as_chunks::<{ 2 * PANEL }>().0;
            self.put(v, group, self.first, &sums[..self.end - self.first]);
        }
    }

    /// Writes a tile's numbers where they go.
    #[inline(always)]
    fn put<V: Vector>(&self, v: V, group: &[Panel], row: usize, sums: &[[f32; 2 * PANEL]]) {
        let outputs = self.matrix.outputs;
        for (row, sums) in (row..).zip(sums) {
            let halves = sums.as_chunks::<PANEL>().0;
            // SAFETY: rows and outputs are the matrix's, for which there is room, checked
            // before the workers began; a panel is in one worker's part.
            unsafe {
                match self.to {
                    To::Store(to) => {
                        for (panel, sums) in group.iter().zip(halves) {
                            to.at(row * outputs + panel.output).copy_from_nonoverlapping(sums.as_ptr(), panel.width);
                        }
                    }
                    To::Add(to) => {
                        for (panel, sums) in group.iter().zip(halves) {
                            let to = to.at(row * outputs + panel.output);
                            for (index, sum) in sums.iter().enumerate().take(panel.width) {
                                *to.add(index) += sum;
                            }
                        }
                    }
                    To::Gate(to) => to.put(v, row, group[0].output / PANEL, &gated(v, &halves[0], &halves[1])),
                }
            }
        }
    }
}

/// SiLU(gate) · up.
#[inline(always)]
fn gated<V: Vector>(v: V, gate: &[f32; PANEL], up: &[f32; PANEL]) -> [f32; PANEL] {
    let mut block = [0.0; PANEL];
    for at in (0..PANEL).step_by(V::LANES) {
        // SAFETY: a block is whole vectors.
        unsafe {
            let (gate, up) = (v.load(gate.as_ptr().add(at)), v.load(up.as_ptr().add(at)));
            let below = v.add(v.splat(1.0), v.exp(v.sub(v.splat(0.0), gate)));
            v.store(block.as_mut_ptr().add(at), v.mul(v.div(gate, below), up));
        }
    }
    block
}
