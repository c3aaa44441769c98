//! Each kernel against plain sums of doubles, and the law: the same bits whatever stands
//! beside a token.

use std::sync::Arc;

use half::{bf16, f16};

use super::*;
use crate::weights::{Stored, Tensor};
use crate::workers::Workers;

/// Numbers from a seed [Marsaglia, "Xorshift RNGs", 2003].
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.bits() >> 11) as usize % end
    }

    /// From -1 to 1.
    fn number(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn numbers(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.number()).collect()
    }
}

fn paths() -> impl Iterator<Item = Path> {
    Path::ALL.into_iter().filter(|path| path.is_here())
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

/// A matrix packed in every way, with what its numbers are then.
fn packed(random: &mut Random, path: Path, outputs: usize, inputs: usize) -> Vec<(String, Compute, Matrix, Vec<f32>)> {
    let numbers = random.numbers(outputs * inputs);
    let tensor = Tensor::from_f32(outputs, inputs, &numbers);
    let rounded: Vec<f32> = numbers.iter().map(|&number| bf16::from_f32(number).to_f32()).collect();
    let mut all = vec![
        ("F32".to_owned(), Compute::F32, Matrix::pack(path, Compute::F32, &[&tensor]), numbers.clone()),
        ("Bf16".to_owned(), Compute::Bf16, Matrix::pack(path, Compute::Bf16, &[&tensor]), rounded),
        ("Int8".to_owned(), Compute::Int8, Matrix::pack(path, Compute::Int8, &[&tensor]), numbers),
    ];
    if inputs.is_multiple_of(32) {
        for stored in [Stored::Q8_0, Stored::Q4_0, Stored::Q4_1] {
            let (bytes, numbers) = random_blocks(random, stored, outputs * inputs / 32);
            let tensor = Tensor::new(outputs, inputs, stored, Arc::new(bytes), 0);
            let matrix = Matrix::pack(path, Compute::Int8, &[&tensor]);
            all.push((stored.name().to_owned(), Compute::Int8, matrix, numbers));
        }
    }
    all
}

/// Blocks as files store them, and their numbers.
fn random_blocks(random: &mut Random, stored: Stored, count: usize) -> (Vec<u8>, Vec<f32>) {
    let mut bytes: Vec<u8> = (0..count * stored.block_bytes()).map(|_| random.bits() as u8).collect();
    for block in bytes.chunks_exact_mut(stored.block_bytes()) {
        block[..2].copy_from_slice(&f16::from_f32(random.number() / 16.0).to_le_bytes());
        if stored == Stored::Q4_1 {
            block[2..4].copy_from_slice(&f16::from_f32(random.number()).to_le_bytes());
        }
    }
    let mut numbers = vec![0.0; count * stored.block_numbers()];
    stored.singles(&bytes, &mut numbers);
    (bytes, numbers)
}

fn prepared(workers: &Workers, path: Path, compute: Compute, x: &[f32], inputs: usize) -> Activations {
    let mut activations = Activations::new(path, compute);
    activations.prepare(workers, x, inputs);
    activations
}

/// Relative errors of rounding to bf16 and to a 254th of a block's largest, and what sums add.
fn bound(compute: Compute) -> f64 {
    match compute {
        Compute::F32 => 1e-6,
        Compute::Bf16 => 1.0 / 256.0,
        Compute::Int8 => 1.0 / 100.0,
    }
}

#[test]
fn a_product_is_the_sum_of_products() {
    let mut random = Random(1);
    let workers = Workers::new(2);
    for path in paths() {
        let few = [(1, 32, 32), (3, 70, 33), (7, 192, 96), (29, 45, 160), (12, 1, 1), (5, 130, 64)];
        let many = [(64, 33, 385), (300, 70, 416), (67, 200, 31)];
        for (rows, outputs, inputs) in few.into_iter().chain(many) {
            for (name, compute, matrix, numbers) in packed(&mut random, path, outputs, inputs) {
                let x = random.numbers(rows * inputs);
                let mut y = random.numbers(rows * outputs);
                let before = y.clone();
                let activations = prepared(&workers, path, compute, &x, inputs);
                matrix.multiply_add(&workers, &activations, &mut y);
                let mut stored = vec![f32::NAN; rows * outputs];
                matrix.multiply(&workers, &activations, &mut stored);
                for row in 0..rows {
                    for output in 0..outputs {
                        let products = || {
                            let x = &x[row * inputs..][..inputs];
                            x.iter().zip(&numbers[output * inputs..]).map(|(&x, &w)| f64::from(x) * f64::from(w))
                        };
                        let at = row * outputs + output;
                        let error = (f64::from(stored[at]) - products().sum::<f64>()).abs();
                        // Blocks of integers are rounded by their largest: so is the bound.
                        let size = if compute == Compute::Int8 {
                            let largest =
                                numbers[output * inputs..][..inputs].iter().fold(0.0f32, |a, b| a.max(b.abs()));
                            f64::from(largest) * inputs as f64
                        } else {
                            products().map(f64::abs).sum()
                        };
                        assert!(
                            error <= bound(compute) * size + 1e-9,
                            "{path} {name} {rows}×{outputs}×{inputs}: error {error} of {size}"
                        );
                        assert_eq!(y[at].to_bits(), (before[at] + stored[at]).to_bits(), "an addition of the product");
                    }
                }
            }
        }
    }
}

/// The integers' sums are exact, so blocks of integers allow of a bound like that of singles,
/// once activations are what their bytes say.
#[test]
fn products_of_blocks_are_exact_within_a_block() {
    let mut random = Random(2);
    let workers = Workers::new(1);
    let (rows, outputs, inputs) = (6, 96, 128);
    // Multiples of a power of two up to 127 of them: rounded to bytes, they stay what they are.
    let x: Vec<f32> = (0..rows * inputs)
        .map(|index| if index % 32 == 0 { 127.0 } else { random.below(255) as f32 - 127.0 } / 64.0)
        .collect();
    for path in paths() {
        for (name, compute, matrix, numbers) in packed(&mut random, path, outputs, inputs).split_off(3) {
            let mut y = vec![0.0; rows * outputs];
            matrix.multiply(&workers, &prepared(&workers, path, compute, &x, inputs), &mut y);
            for (row, y) in y.chunks(outputs).enumerate() {
                for (output, &y) in y.iter().enumerate() {
                    let products = x[row * inputs..][..inputs].iter().zip(&numbers[output * inputs..]);
                    let sum: f64 = products.map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
                    assert!((f64::from(y) - sum).abs() < 1e-3, "{path} {name}: {y}, not {sum}");
                }
            }
        }
    }
}

#[test]
fn a_row_of_a_product_is_the_same_in_any_batch_on_any_workers() {
    let mut random = Random(3);
    let pools = [1, 2, 3].map(Workers::new);
    let (outputs, inputs, most) = (200, 416, 310);
    for path in paths() {
        for (name, compute, matrix, _) in packed(&mut random, path, outputs, inputs) {
            let x = random.numbers(most * inputs);
            let weight = random.numbers(inputs);
            let product = |workers: &Workers, first: usize, rows: usize| {
                let mut activations = Activations::new(path, compute);
                activations.prepare_normed(workers, &x[first * inputs..][..rows * inputs], &weight, 1e-5);
                let mut y = vec![0.0; rows * outputs];
                matrix.multiply(workers, &activations, &mut y);
                bits(&y)
            };
            let alone: Vec<u32> = (0..most).flat_map(|row| product(&pools[0], row, 1)).collect();
            for workers in &pools {
                for rows in (2..=40).chain([64, 77, 265, most]) {
                    let first = random.below(most - rows + 1);
                    let batch = product(workers, first, rows);
                    assert!(batch == alone[first * outputs..][..rows * outputs], "{path} {name}: {rows} rows");
                }
            }
        }
    }
}

#[test]
fn stacked_tensors_give_what_each_gives() {
    let mut random = Random(4);
    let workers = Workers::new(2);
    let (rows, inputs) = (5, 64);
    let tensors = [40, 7, 64].map(|outputs| Tensor::from_f32(outputs, inputs, &random.numbers(outputs * inputs)));
    let x = random.numbers(rows * inputs);
    for path in paths() {
        for compute in [Compute::F32, Compute::Bf16, Compute::Int8] {
            let activations = prepared(&workers, path, compute, &x, inputs);
            let product = |matrix: Matrix| {
                let mut y = vec![0.0; rows * matrix.outputs()];
                matrix.multiply(&workers, &activations, &mut y);
                y
            };
            let stacked = product(Matrix::pack(path, compute, &tensors.each_ref()));
            let each = tensors.each_ref().map(|tensor| product(Matrix::pack(path, compute, &[tensor])));
            for row in 0..rows {
                let beside: Vec<f32> = each
                    .iter()
                    .zip(&tensors)
                    .flat_map(|(y, tensor)| &y[row * tensor.rows()..][..tensor.rows()])
                    .copied()
                    .collect();
                assert_eq!(bits(&stacked[row * 111..][..111]), bits(&beside), "{path} {compute:?}");
            }
        }
    }
}

/// The rows a gate lets through, read back by a product with the identity.
#[test]
fn a_gate_is_multiplied_with_what_it_lets_through() {
    let mut random = Random(5);
    let workers = Workers::new(2);
    let (most, inputs, outputs) = (90, 48, 72);
    let [gate, up] = [0, 1].map(|_| random.numbers(outputs * inputs));
    let identity: Vec<f32> = (0..outputs * outputs).map(|at| f32::from(u8::from(at % (outputs + 1) == 0))).collect();
    let x = random.numbers(most * inputs);
    for path in paths() {
        for (rows, compute) in [14, most]
            .into_iter()
            .flat_map(|rows| [Compute::F32, Compute::Bf16, Compute::Int8].map(|compute| (rows, compute)))
        {
            let tensor = |numbers: &[f32]| Tensor::from_f32(outputs, inputs, numbers);
            let matrix = Matrix::pack_gated(path, compute, &tensor(&gate), &tensor(&up));
            let mut through = Activations::new(path, compute);
            matrix.multiply_gated(
                &workers,
                &prepared(&workers, path, compute, &x[..rows * inputs], inputs),
                &mut through,
            );
            let identity = Matrix::pack(path, compute, &[&Tensor::from_f32(outputs, outputs, &identity)]);
            let mut y = vec![0.0; rows * outputs];
            identity.multiply(&workers, &through, &mut y);
            for (row, y) in y.chunks(outputs).enumerate() {
                let dot = |w: &[f32], output: usize| -> f64 {
                    x[row * inputs..][..inputs].iter().zip(&w[output * inputs..]).map(|(&x, &w)| f64::from(x * w)).sum()
                };
                let each = |output: usize| {
                    let (gate, up) = (dot(&gate, output), dot(&up, output));
                    (gate, up, gate / (1.0 + (-gate).exp()) * up)
                };
                let largest = (0..outputs).fold(0.0f64, |largest, output| largest.max(each(output).2.abs()));
                for (output, &y) in y.iter().enumerate() {
                    let (gate, up, expected) = each(output);
                    let error = (f64::from(y) - expected).abs();
                    // Both products' errors, and that of the product's own rounding: of integers, by a block's largest.
                    let rounding = if compute == Compute::F32 { 1e-5 } else { 0.05 };
                    let mut allowed = rounding * (1.0 + 1.2 * up.abs() + gate.abs() + 0.1 * expected.abs());
                    if compute == Compute::Int8 {
                        allowed += largest / 127.0;
                    }
                    assert!(error < allowed, "{path} {compute:?}: {y}, not {expected}");
                }
            }
        }
    }
}

/// A file may store a gate in other blocks than what it lets through.
#[test]
fn a_gate_may_be_stored_otherwise() {
    let mut random = Random(10);
    let workers = Workers::new(2);
    let (rows, inputs, outputs) = (7, 64, 96);
    let (bytes, _) = random_blocks(&mut random, Stored::Q4_1, outputs * inputs / 32);
    let gate = Tensor::new(outputs, inputs, Stored::Q4_1, Arc::new(bytes), 0);
    let up = Tensor::from_f32(outputs, inputs, &random.numbers(outputs * inputs));
    let identity: Vec<f32> = (0..outputs * outputs).map(|at| f32::from(u8::from(at % (outputs + 1) == 0))).collect();
    let x = random.numbers(rows * inputs);
    for path in paths() {
        let activations = prepared(&workers, path, Compute::Int8, &x, inputs);
        let mut through = Activations::new(path, Compute::Int8);
        Matrix::pack_gated(path, Compute::Int8, &gate, &up).multiply_gated(&workers, &activations, &mut through);
        let product = |tensor: &Tensor, x: &Activations| {
            let mut y = vec![0.0; rows * outputs];
            Matrix::pack(path, Compute::Int8, &[tensor]).multiply(&workers, x, &mut y);
            y
        };
        let y = product(&Tensor::from_f32(outputs, outputs, &identity), &through);
        let expected: Vec<f32> = product(&gate, &activations)
            .into_iter()
            .zip(product(&up, &activations))
            .map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up)
            .collect();
        for (y, expected) in y.chunks(32).zip(expected.chunks(32)) {
            // Rounded as a block, and the identity's ones are too.
            let largest = expected.iter().fold(0.0f32, |largest, number| largest.max(number.abs()));
            for (y, expected) in y.iter().zip(expected) {
                assert!((y - expected).abs() <= largest / 200.0, "{path}: {y}, not {expected}");
            }
        }
    }
}

#[test]
fn a_normed_row_has_the_mean_square_of_its_weight() {
    let mut random = Random(6);
    let workers = Workers::new(2);
    for path in paths() {
        for inputs in [3, 64, 576, 1000] {
            let (x, weight) = (random.numbers(2 * inputs), random.numbers(inputs));
            let mut activations = Activations::new(path, Compute::F32);
            activations.prepare_normed(&workers, &x, &weight, 1e-3);
            let identity: Vec<f32> =
                (0..inputs * inputs).map(|at| f32::from(u8::from(at % (inputs + 1) == 0))).collect();
            let mut y = vec![0.0; 2 * inputs];
            Matrix::pack(path, Compute::F32, &[&Tensor::from_f32(inputs, inputs, &identity)]).multiply(
                &workers,
                &activations,
                &mut y,
            );
            for (x, y) in x.chunks(inputs).zip(y.chunks(inputs)) {
                let square = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / inputs as f64;
                for ((x, y), weight) in x.iter().zip(y).zip(&weight) {
                    let expected = f64::from(*x) / (square + 1e-3).sqrt() * f64::from(*weight);
                    assert!((f64::from(*y) - expected).abs() < 1e-6, "{path}: {y}, not {expected}");
                }
            }
        }
    }
}

/// Sequences with their keys and values in blocks, in a store where every unwritten byte makes
/// a number that is none.
struct Sequences {
    store: Vec<u8>,
    tables: Vec<Vec<u32>>,
}

impl Sequences {
    fn new(random: &mut Random, layout: KvLayout, lengths: &[usize]) -> Self {
        let needed: usize = lengths.iter().map(|length| length.div_ceil(layout.block_tokens)).sum();
        let mut free: Vec<u32> = (0..needed as u32 + 3).collect();
        let tables = lengths
            .iter()
            .map(|length| {
                (0..length.div_ceil(layout.block_tokens)).map(|_| free.swap_remove(random.below(free.len()))).collect()
            })
            .collect();
        Self { store: vec![0xff; (needed + 3) * layout.block_bytes()], tables }
    }
}

/// What attention is tried on: each sequence's rows of queries, keys and values, per token.
struct Case {
    path: Path,
    layout: KvLayout,
    heads: usize,
    lengths: Vec<usize>,
    x: Vec<Vec<f32>>,
    cos: Vec<f32>,
    sin: Vec<f32>,
    norm: Vec<f32>,
}

const LAYER: usize = 1;

impl Case {
    fn new(random: &mut Random, path: Path, layout: KvLayout, heads: usize, lengths: &[usize]) -> Self {
        let numbers = (heads + 2 * layout.kv_heads) * layout.head_dim;
        let x = lengths.iter().map(|length| random.numbers(length * numbers)).collect();
        let most = *lengths.iter().max().expect("a sequence");
        let angles = || (0..most * layout.head_dim / 2).map(|at| (at % 977) as f32 * 0.37);
        Self {
            path,
            layout,
            heads,
            lengths: lengths.to_vec(),
            x,
            cos: angles().map(f32::cos).collect(),
            sin: angles().map(f32::sin).collect(),
            norm: random.numbers(layout.head_dim).iter().map(|number| number + 1.5).collect(),
        }
    }

    fn rotation(&self) -> Rotation<'_> {
        Rotation {
            cos: &self.cos,
            sin: &self.sin,
            norms: Some(HeadNorms { query: &self.norm, key: &self.norm, epsilon: 1e-6 }),
        }
    }

    /// Computes the sequences step by step; `steps` has each step's tokens of each sequence.
    fn run(&self, random: &mut Random, block_tokens: usize, workers: &Workers, steps: &[Vec<usize>]) -> Vec<Vec<f32>> {
        let layout = KvLayout { block_tokens, ..self.layout };
        let mut sequences = Sequences::new(random, layout, &self.lengths);
        let mut attention = Attention::new(self.path, layout, self.heads);
        let out_numbers = self.heads * layout.head_dim;
        let numbers = out_numbers + 2 * layout.kv_heads * layout.head_dim;
        let mut outs = vec![Vec::new(); self.lengths.len()];
        let mut done = vec![0; self.lengths.len()];
        for step in steps {
            let (mut x, mut chunks) = (Vec::new(), Vec::new());
            for (sequence, &tokens) in step.iter().enumerate().filter(|(_, tokens)| **tokens > 0) {
                let start = done[sequence];
                x.extend(&self.x[sequence][start * numbers..][..tokens * numbers]);
                chunks.push(Chunk { blocks: &sequences.tables[sequence], start, tokens });
            }
            let rows: usize = step.iter().sum();
            let mut queries = vec![0.0; rows * out_numbers];
            let store = &mut sequences.store;
            self.rotation().rotate_and_store(self.path, workers, &x, &chunks, &layout, LAYER, store, &mut queries);
            let mut out = vec![f32::NAN; rows * out_numbers];
            attention.attend(workers, &queries, &chunks, LAYER, store, &mut out);
            let mut rest = &out[..];
            for (sequence, &tokens) in step.iter().enumerate() {
                outs[sequence].extend_from_slice(&rest[..tokens * out_numbers]);
                rest = &rest[tokens * out_numbers..];
                done[sequence] += tokens;
            }
        }
        assert_eq!(done, self.lengths, "every token");
        outs
    }

    /// The same in doubles, a sequence's token after the other.
    fn reference(&self, sequence: usize) -> Vec<f64> {
        let KvLayout { kv_heads, head_dim, .. } = self.layout;
        let numbers = (self.heads + 2 * kv_heads) * head_dim;
        let turned = |position: usize, head: &[f32]| -> Vec<f64> {
            let head: Vec<f64> = head.iter().map(|&x| f64::from(x)).collect();
            let square = head.iter().map(|x| x * x).sum::<f64>() / head_dim as f64 + 1e-6;
            let head: Vec<f64> =
                head.iter().zip(&self.norm).map(|(x, &norm)| x / square.sqrt() * f64::from(norm)).collect();
            let half = head_dim / 2;
            (0..head_dim)
                .map(|index| {
                    let angle = position * half + index % half;
                    let (cos, sin) = (f64::from(self.cos[angle]), f64::from(self.sin[angle]));
                    if index < half {
                        head[index] * cos - head[index + half] * sin
                    } else {
                        head[index] * cos + head[index - half] * sin
                    }
                })
                .collect()
        };
        let heads: Vec<Vec<&[f32]>> =
            self.x[sequence].chunks(numbers).map(|row| row.chunks(head_dim).collect()).collect();
        let mut out = Vec::new();
        let keys: Vec<Vec<Vec<f64>>> = (0..kv_heads)
            .map(|head| (0..heads.len()).map(|position| turned(position, heads[position][self.heads + head])).collect())
            .collect();
        for position in 0..heads.len() {
            for head in 0..self.heads {
                let kv_head = head / (self.heads / kv_heads);
                let query = turned(position, heads[position][head]);
                let weights: Vec<f64> = keys[kv_head][..=position]
                    .iter()
                    .map(|key| {
                        let score: f64 = query.iter().zip(key).map(|(q, k)| q * k).sum();
                        (score / (head_dim as f64).sqrt()).exp()
                    })
                    .collect();
                let sum: f64 = weights.iter().sum();
                out.extend((0..head_dim).map(|index| {
                    let values = heads[..=position].iter().map(|row| row[self.heads + kv_heads + kv_head][index]);
                    values.zip(&weights).map(|(value, weight)| f64::from(value) * weight / sum).sum::<f64>()
                }));
            }
        }
        out
    }
}

fn layout(kv_heads: usize, head_dim: usize, element: Element) -> KvLayout {
    KvLayout { block_tokens: 16, layers: 2, kv_heads, head_dim, element }
}

#[test]
fn attention_is_the_mean_of_values_by_the_softmax_of_scores() {
    let mut random = Random(7);
    let workers = Workers::new(2);
    for path in paths() {
        for (element, allowed) in [(Element::F32, 2e-5), (Element::Bf16, 0.03)] {
            for (heads, kv_heads, head_dim) in [(6, 2, 64), (1, 1, 2), (4, 4, 80)] {
                let lengths = [37, SPAN + 70, 1];
                let case = Case::new(&mut random, path, layout(kv_heads, head_dim, element), heads, &lengths);
                let outs = case.run(&mut random, 16, &workers, &[lengths.to_vec()]);
                for (sequence, out) in outs.iter().enumerate() {
                    for (at, (&out, expected)) in out.iter().zip(case.reference(sequence)).enumerate() {
                        let error = (f64::from(out) - expected).abs();
                        assert!(error < allowed, "{path} {element:?} {sequence} at {at}: {out}, not {expected}");
                    }
                }
            }
        }
    }
}

/// One run of a whole prompt against every other way to compute it.
#[test]
fn attention_is_the_same_in_any_blocks_chunks_and_batches_on_any_workers() {
    let mut random = Random(8);
    let pools = [1, 2, 3].map(Workers::new);
    for path in paths() {
        for element in [Element::F32, Element::Bf16] {
            let lengths = [SPAN * 2 + 45, 19, 150];
            let case = Case::new(&mut random, path, layout(2, 32, element), 6, &lengths);
            let whole = case.run(&mut random, 16, &pools[0], &[lengths.to_vec()]);
            let whole: Vec<_> = whole.iter().map(|out| bits(out)).collect();
            let check = |what: &str, block_tokens: usize, workers: &Workers, steps: &[Vec<usize>]| {
                let outs = case.run(&mut Random(9), block_tokens, workers, steps);
                for (sequence, out) in outs.iter().enumerate() {
                    let out = bits(out);
                    let parted = out.iter().zip(&whole[sequence]).position(|(a, b)| a != b);
                    assert_eq!(parted, None, "{path} {element:?} {what}: sequence {sequence}");
                }
            };
            for block_tokens in [1, 8, 16, 32, 48, 128] {
                check("blocks", block_tokens, &pools[1], &[lengths.to_vec()]);
            }
            check("three workers", 16, &pools[2], &[lengths.to_vec()]);
            // One sequence after the other.
            let alone: Vec<Vec<usize>> =
                (0..3).map(|one| (0..3).map(|index| if index == one { lengths[one] } else { 0 }).collect()).collect();
            check("alone", 16, &pools[1], &alone);
            for worker in &pools {
                // A prompt and decodes: token by token at the end.
                let mut decodes = vec![vec![SPAN * 2 - 3, 0, 149]];
                decodes.extend((0..48).map(|step| vec![1, usize::from(step < 19), usize::from(step == 7)]));
                check("decodes", 16, worker, &decodes);
            }
            for block_tokens in [1, 16, 48] {
                let mut left = lengths;
                let mut steps = Vec::new();
                while left.iter().any(|left| *left > 0) {
                    let step: Vec<usize> = left.iter().map(|left| random.below(left + 1).min(97)).collect();
                    for (left, tokens) in left.iter_mut().zip(&step) {
                        *left -= tokens;
                    }
                    steps.push(step);
                }
                check("chunks", block_tokens, &pools[1], &steps);
            }
        }
    }
}

#[test]
fn exponentials_are_near_and_vanish_below() {
    struct Exp<'a>(&'a [f32], &'a mut Vec<f32>);
    impl Kernel for Exp<'_> {
        #[inline(always)]
        fn run<V: Vector>(self, v: V) {
            self.1.extend(self.0.iter().map(|&x| v.largest(v.exp(v.splat(x)))));
        }
    }
    let xs: Vec<f32> = (-8699..8800).map(|x| x as f32 / 100.0).collect();
    for path in paths() {
        let mut ys = Vec::new();
        dispatch(path, Exp(&xs, &mut ys));
        for (&x, &y) in xs.iter().zip(&ys) {
            let exact = f64::from(x).exp();
            assert!((f64::from(y) - exact).abs() < 3e-7 * exact, "{path}: e^{x} = {y}");
        }
        ys.clear();
        dispatch(path, Exp(&[f32::NEG_INFINITY, -1000.0, -87.0, 0.0], &mut ys));
        assert_eq!(ys, [0.0, 0.0, 0.0, 1.0], "{path}");
    }
}

#[test]
fn a_path_is_named_and_refused_where_it_is_not() {
    for path in Path::ALL {
        let parsed = path.name().parse::<Path>();
        assert_eq!(parsed, if path.is_here() { Ok(path) } else { Err(PathError::NotHere(path)) });
    }
    let error = "sse9".parse::<Path>().expect_err("no such path");
    assert_eq!(error.to_string(), "no kernels are named `sse9`: there are portable, avx2, avx512 and avx512-bf16");
}
