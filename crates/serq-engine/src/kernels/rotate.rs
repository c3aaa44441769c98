//! From a product's row to queries, and keys and values in their slots.

use super::activations::mean_square;
use super::buffer::Shared;
use super::kv::{self, Chunk, Half, KvLayout};
use super::vector::{Kernel, Vector};
use super::{Path, dispatch};
use crate::workers::Workers;

/// How queries and keys are turned by their position: numbers i and i + head_dim/2 of a head
/// are a point of the plane, turned by the angle of position and i [Su, "RoFormer", 2021; the
/// halves as in GPT-NeoX].
#[derive(Clone, Copy)]
pub struct Rotation<'a> {
    /// Cosines: head_dim/2 for each position.
    pub cos: &'a [f32],
    /// Sines, in the same order.
    pub sin: &'a [f32],
    /// Before they are turned, queries' and keys' heads may be normed.
    pub norms: Option<HeadNorms<'a>>,
}

/// Weights of the norms of each head's queries and keys, of `head_dim` numbers [Qwen3].
#[derive(Clone, Copy)]
pub struct HeadNorms<'a> {
    /// The queries'.
    pub query: &'a [f32],
    /// The keys'.
    pub key: &'a [f32],
    /// Added to the mean square.
    pub epsilon: f32,
}

/// The most numbers of a head.
const HEAD_MOST: usize = 512;

impl Rotation<'_> {
    /// Turns the queries of each row into `queries`, `[row][head][head_dim]`, and stores its
    /// keys, turned, and its values into the slots of its position. A row of `x` is the
    /// queries', the keys' and the values' heads.
    ///
    /// # Panics
    ///
    /// When lengths do not fit the chunks' tokens, a position has no angles or no block, or a
    /// head has more than 512 numbers.
    #[expect(clippy::too_many_arguments, reason = "each is the step's, and none belongs to another")]
    pub fn rotate_and_store(
        &self,
        path: Path,
        workers: &Workers,
        x: &[f32],
        chunks: &[Chunk<'_>],
        layout: &KvLayout,
        layer: usize,
        store: &mut [u8],
        queries: &mut [f32],
    ) {
        kv::check(layout, layer, chunks, store.len());
        let rows: usize = chunks.iter().map(|chunk| chunk.tokens).sum();
        let positions = chunks.iter().map(|chunk| chunk.start + chunk.tokens).max().unwrap_or(0);
        let kv_numbers = layout.kv_heads * layout.head_dim;
        let query_numbers = queries.len().checked_div(rows).unwrap_or(0);
        assert!(layout.head_dim <= HEAD_MOST, "a head of at most {HEAD_MOST} numbers");
        assert!(query_numbers.is_multiple_of(layout.head_dim) && queries.len() == rows * query_numbers, "whole heads");
        assert_eq!(x.len(), rows * (query_numbers + 2 * kv_numbers), "queries, keys and values of each row");
        assert!(positions * layout.head_dim / 2 <= self.cos.len().min(self.sin.len()), "angles of every position");
        // A worker is quicker alone with few.
        let parts = if x.len() < 1 << 13 { 1 } else { workers.count() };
        let (store, queries) = (Shared::new(store), Shared::new(queries));
        workers.run(parts, &|_, part| {
            dispatch(
                path,
                Turn { rotation: self, x, rows, query_numbers, chunks, layout, layer, store, queries, part, parts },
            );
        });
    }
}

/// Part `part` of `parts`: of the queries, those of some rows; of keys and values, those in
/// some blocks, so that no two workers write one slot, whatever the tables say.
struct Turn<'a> {
    rotation: &'a Rotation<'a>,
    x: &'a [f32],
    rows: usize,
    query_numbers: usize,
    chunks: &'a [Chunk<'a>],
    layout: &'a KvLayout,
    layer: usize,
    store: Shared<u8>,
    queries: Shared<f32>,
    part: usize,
    parts: usize,
}

impl Kernel for Turn<'_> {
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let KvLayout { block_tokens, kv_heads, head_dim, element, .. } = *self.layout;
        let own = self.rows * self.part / self.parts..self.rows * (self.part + 1) / self.parts;
        let kv_numbers = kv_heads * head_dim;
        let mut head = [0.0; HEAD_MOST];
        let head = &mut head[..head_dim];
        let positions = self.chunks.iter().flat_map(|chunk| (0..chunk.tokens).map(move |token| (chunk, token)));
        for ((row, x), (chunk, token)) in
            self.x.chunks_exact(self.query_numbers + 2 * kv_numbers).enumerate().zip(positions)
        {
            let position = chunk.start + token;
            let (query, keys_values) = x.split_at(self.query_numbers);
            let (keys, values) = keys_values.split_at(kv_numbers);
            if own.contains(&row) {
                for (index, numbers) in query.chunks_exact(head_dim).enumerate() {
                    head.copy_from_slice(numbers);
                    self.turn(v, position, self.rotation.norms.map(|norms| (norms.query, norms.epsilon)), head);
                    // SAFETY: the queries have as many rows, checked before; a row is one part's.
                    unsafe {
                        let to = self.queries.at(row * self.query_numbers + index * head_dim);
                        to.copy_from_nonoverlapping(head.as_ptr(), head_dim);
                    }
                }
            }
            if chunk.blocks[position / block_tokens] as usize % self.parts == self.part {
                let slot = |half| self.layout.slot(chunk.blocks, self.layer, half, position);
                let (keys_at, values_at) = (slot(Half::Keys), slot(Half::Values));
                for (index, numbers) in keys.chunks_exact(head_dim).enumerate() {
                    head.copy_from_slice(numbers);
                    self.turn(v, position, self.rotation.norms.map(|norms| (norms.key, norms.epsilon)), head);
                    // SAFETY: the slot is in the store, checked before, in a block of this part.
                    unsafe { kv::store(v, element, head, self.store.at(keys_at + index * self.layout.head_bytes())) };
                }
                // SAFETY: as above.
                unsafe { kv::store(v, element, values, self.store.at(values_at)) };
            }
        }
    }
}

impl Turn<'_> {
    #[inline(always)]
    fn turn<V: Vector>(&self, v: V, position: usize, norm: Option<(&[f32], f32)>, head: &mut [f32]) {
        if let Some((weight, epsilon)) = norm {
            let factor = 1.0 / (mean_square(v, head) + epsilon).sqrt();
            for (number, weight) in head.iter_mut().zip(weight) {
                *number = *number * factor * weight;
            }
        }
        let half = head.len() / 2;
        let (first, second) = head.split_at_mut(half);
        let cos = &self.rotation.cos[position * half..][..half];
        let sin = &self.rotation.sin[position * half..][..half];
        for index in 0..half {
            let (a, b) = (first[index], second[index]);
            first[index] = a * cos[index] - b * sin[index];
            second[index] = b * cos[index] + a * sin[index];
        }
    }
}
