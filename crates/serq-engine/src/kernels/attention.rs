//! Causal attention over paged keys and values.
//!
//! A token's positions are cut into spans of [`SPAN`], counted from the sequence's first. A
//! span by itself gives the largest score, the sum of the exponentials of the others below it,
//! and the values' sum weighted with them; spans are merged in order, the larger score
//! deciding [Milakov and Gimelshein 2018; Dao's FlashAttention]. A prompt's chunk merges span
//! after span as it goes; a few tokens with many spans have them computed side by side and
//! merged then: the same numbers in the same order.
//!
//! Within a span both products are those of `tile`: keys and values are gathered from their
//! blocks into panels, once for all queries of a chunk that read them.
//!
//! # Invariants
//!
//! - A score is summed over the head's numbers, a value's weighted sum over positions upwards,
//!   whatever stands beside them.
//! - A slot after a token's position adds nothing to it. One that no token of the chunk sees is
//!   not read; one that a later token of the chunk sees is weighted with 0 exactly, and holds
//!   what this step's tokens were given, so it is finite where the model is.

use std::mem;

use super::buffer::{Aligned, Shared};
use super::kv::{self, Chunk, Element, Half, KvLayout};
use super::tile::{self, Format, PANEL, Product, Rows};
use super::vector::{Kernel, Vector};
use super::{Path, dispatch};
use crate::workers::Workers;

/// Positions of a span. Longer ones are merged less often; shorter ones let more workers share
/// a few tokens' attention, and are gathered into less of a core's own cache.
pub const SPAN: usize = 256;
/// The most rows of queries (tokens times heads that share a key) whose spans are computed
/// side by side.
const SPREAD_ROWS: usize = 16;
/// Tokens that read a gathered span together.
const TOKENS_TOGETHER: usize = 128;
/// The most rows of a tile.
const TILE_ROWS: usize = 12;

/// Attention of one model's heads, with buffers that are kept from step to step.
pub struct Attention {
    path: Path,
    layout: KvLayout,
    heads: usize,
    scale: f32,
    tasks: Vec<Task>,
    scratches: Vec<Scratch>,
    partials: Vec<f32>,
}

/// What a worker takes at once: the queries of some tokens of a chunk that share a key's head,
/// over some spans.
#[derive(Clone, Copy)]
struct Task {
    chunk: usize,
    /// The first token's row, and its number in the chunk.
    row: usize,
    token: usize,
    tokens: usize,
    kv_head: usize,
    first_span: usize,
    spans: usize,
    /// Where its partial result goes; none: it is whole.
    partial: Option<usize>,
}

/// A worker's buffers.
#[derive(Default)]
struct Scratch {
    queries: Aligned,
    keys: Aligned,
    values: Aligned,
    scores: Vec<f32>,
    weights: Aligned,
    /// Of a tile's rows in one span.
    mixes: Vec<f32>,
    /// Of a task's rows, merged.
    states: Vec<f32>,
}

impl Attention {
    /// Attention of `heads` query heads; scores are divided by the square root of the head's
    /// numbers.
    ///
    /// # Panics
    ///
    /// When the heads cannot share the keys' evenly.
    pub fn new(path: Path, layout: KvLayout, heads: usize) -> Self {
        assert!(heads.is_multiple_of(layout.kv_heads), "as many query heads for each key's");
        let scale = 1.0 / (layout.head_dim as f32).sqrt();
        Self { path, layout, heads, scale, tasks: Vec::new(), scratches: Vec::new(), partials: Vec::new() }
    }

    /// Attention of the chunks' tokens: `queries` and `out` are `[row][head][head_dim]`; the
    /// keys and values up to each token are in `store`.
    ///
    /// # Panics
    ///
    /// When lengths do not fit the chunks' tokens, or a position has no block in the store.
    pub fn attend(
        &mut self,
        workers: &Workers,
        queries: &[f32],
        chunks: &[Chunk<'_>],
        layer: usize,
        store: &[u8],
        out: &mut [f32],
    ) {
        kv::check(&self.layout, layer, chunks, store.len());
        let rows: usize = chunks.iter().map(|chunk| chunk.tokens).sum();
        assert_eq!(queries.len(), rows * self.heads * self.layout.head_dim, "a query for every head of a row");
        assert_eq!(queries.len(), out.len(), "as many numbers out");
        self.plan(chunks);
        let count = workers.count();
        self.scratches.resize_with(count.max(self.scratches.len()), Scratch::default);
        let mut scratches = mem::take(&mut self.scratches);
        let mut partials = mem::take(&mut self.partials);
        let step = Step {
            attention: self,
            chunks,
            layer,
            queries,
            store,
            partials: Shared::new(&mut partials),
            out: Shared::new(out),
        };
        let shared = Shared::new(&mut scratches);
        workers.run(self.tasks.len(), &|worker, task| {
            // SAFETY: each worker has its own.
            let scratch = unsafe { &mut *shared.at(worker) };
            dispatch(step.attention.path, Run { step: &step, task: &step.attention.tasks[task], scratch });
        });
        dispatch(self.path, Merge { step: &step });
        (self.scratches, self.partials) = (scratches, partials);
    }

    /// Numbers of a head, filled up to whole panels.
    fn padded(&self) -> usize {
        self.layout.head_dim.next_multiple_of(PANEL)
    }

    /// Numbers of a row's state: the values' sum, the largest score, the weights' sum.
    fn state(&self) -> usize {
        self.padded() + 2
    }

    /// Query heads that share a key's.
    fn group(&self) -> usize {
        self.heads / self.layout.kv_heads
    }

    fn plan(&mut self, chunks: &[Chunk<'_>]) {
        self.tasks.clear();
        let (group, state) = (self.group(), self.state());
        let (mut row, mut partials) = (0, 0);
        for (index, chunk) in chunks.iter().enumerate() {
            let spread = chunk.tokens * group <= SPREAD_ROWS && chunk.start + chunk.tokens > SPAN;
            for kv_head in 0..self.layout.kv_heads {
                for token in (0..chunk.tokens).step_by(TOKENS_TOGETHER) {
                    let tokens = TOKENS_TOGETHER.min(chunk.tokens - token);
                    let spans = (chunk.start + token + tokens).div_ceil(SPAN);
                    let row = row + token;
                    let whole = Task { chunk: index, row, token, tokens, kv_head, first_span: 0, spans, partial: None };
                    if spread {
                        for first_span in 0..spans {
                            self.tasks.push(Task { first_span, spans: 1, partial: Some(partials), ..whole });
                            partials += tokens * group * state;
                        }
                    } else {
                        self.tasks.push(whole);
                    }
                }
            }
            row += chunk.tokens;
        }
        if self.partials.len() < partials {
            self.partials.resize(partials, 0.0);
        }
        // The longest first, so that the workers end together. Equal ones keep their order.
        self.tasks.sort_by_key(|task| std::cmp::Reverse(task.tokens * task.spans));
    }
}

/// What the tasks of a step read and write.
struct Step<'a> {
    attention: &'a Attention,
    chunks: &'a [Chunk<'a>],
    layer: usize,
    queries: &'a [f32],
    store: &'a [u8],
    partials: Shared<f32>,
    out: Shared<f32>,
}

impl Step<'_> {
    /// Where in queries and results the task's row `row` stands: its heads beside each other,
    /// token after token.
    fn place(&self, task: &Task, row: usize) -> usize {
        let (group, heads) = (self.attention.group(), self.attention.heads);
        let (token, head) = (row / group, row % group);
        ((task.row + token) * heads + task.kv_head * group + head) * self.attention.layout.head_dim
    }

    /// Positions of span `span` that the task's row `row` sees.
    fn seen(&self, task: &Task, row: usize, span: usize) -> usize {
        let position = self.chunks[task.chunk].start + task.token + row / self.attention.group();
        (position + 1).saturating_sub(span * SPAN).min(SPAN)
    }
}

struct Run<'a> {
    step: &'a Step<'a>,
    task: &'a Task,
    scratch: &'a mut Scratch,
}

impl Kernel for Run<'_> {
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let Self { step, task, scratch } = self;
        let attention = step.attention;
        let KvLayout { head_dim, element, .. } = attention.layout;
        let (padded, state) = (attention.padded(), attention.state());
        let rows = task.tokens * attention.group();
        let format = match element {
            Element::F32 => Format::F32,
            Element::Bf16 => Format::Bf16,
        };
        // What keys and values are multiplied with.
        let rows_element = if V::PAIRS { element } else { Element::F32 };
        scratch.fit(attention, rows);
        let query_stride = head_dim * rows_element.bytes();
        for row in 0..rows {
            let query = &step.queries[step.place(task, row)..][..head_dim];
            // SAFETY: the scratch fits as many rows.
            unsafe { kv::store(v, rows_element, query, scratch.queries.as_mut_ptr().add(row * query_stride)) };
        }
        for span in task.first_span..task.first_span + task.spans {
            // The last row sees most.
            let positions = step.seen(task, rows - 1, span);
            gather(v, step, task, span, positions, scratch);
            let height = tile::tile_rows::<V>(format).min(TILE_ROWS);
            for row in (0..rows).step_by(height) {
                let height = height.min(rows - row);
                let most = step.seen(task, row + height - 1, span);
                if most == 0 {
                    continue;
                }
                // SAFETY: the scratch fits a tile's scores, weights and mixes over a span; the
                // rows have `head_dim` numbers, the gathered panels as many steps.
                unsafe {
                    let keys_steps = head_dim / format.step_inputs();
                    let product = Product {
                        format,
                        rows: rows_of(scratch.queries.as_ptr(), query_stride).from(row),
                        panels: scratch.keys.as_ptr(),
                        panel_bytes: keys_steps * format.step_bytes(),
                        steps: keys_steps,
                        goes_on: false,
                        to: scratch.scores.as_mut_ptr(),
                        to_stride: SPAN,
                    };
                    products(v, product, height, most.div_ceil(PANEL));
                    let weights_stride = SPAN * rows_element.bytes();
                    let mut peaks = [(0.0, 0.0); TILE_ROWS];
                    for (index, peak) in peaks.iter_mut().enumerate().take(height) {
                        let scores = scratch.scores.as_mut_ptr().add(index * SPAN);
                        let weights = scratch.weights.as_mut_ptr().add(index * weights_stride);
                        let seen = step.seen(task, row + index, span);
                        *peak = weigh(v, attention.scale, scores, seen, most, rows_element, weights);
                    }
                    let steps = most.div_ceil(format.step_inputs());
                    let product = Product {
                        format,
                        rows: rows_of(scratch.weights.as_ptr(), weights_stride),
                        panels: scratch.values.as_ptr(),
                        panel_bytes: SPAN / format.step_inputs() * format.step_bytes(),
                        steps,
                        goes_on: false,
                        to: scratch.mixes.as_mut_ptr(),
                        to_stride: state,
                    };
                    products(v, product, height, padded / PANEL);
                    for (index, peak) in peaks.into_iter().enumerate().take(height) {
                        let mix = &mut scratch.mixes[index * state..][..state];
                        (mix[padded], mix[padded + 1]) = peak;
                        let merged = &mut scratch.states[(row + index) * state..][..state];
                        if step.seen(task, row + index, span) > 0 {
                            merge(v, mix, merged, span == task.first_span);
                        }
                    }
                }
            }
        }
        for (row, merged) in scratch.states.chunks_exact(state).enumerate().take(rows) {
            // SAFETY: a partial's place is this task's, and so are its rows of this head.
            unsafe {
                match task.partial {
                    Some(partial) => {
                        let to = step.partials.at(partial + row * state);
                        to.copy_from_nonoverlapping(merged.as_ptr(), state);
                    }
                    None => finish(merged, head_dim, step.out.at(step.place(task, row))),
                }
            }
        }
    }
}

/// Merges what spans computed side by side.
struct Merge<'a> {
    step: &'a Step<'a>,
}

impl Kernel for Merge<'_> {
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let step = self.step;
        let attention = step.attention;
        let state = attention.state();
        for task in attention.tasks.iter().filter(|task| task.first_span == 0) {
            let Some(first) = task.partial else { continue };
            let rows = task.tokens * attention.group();
            let spans = (step.chunks[task.chunk].start + task.tokens).div_ceil(SPAN);
            for row in 0..rows {
                // SAFETY: the workers are done, so the partials are this function's alone; a
                // task's spans stand one after the other.
                unsafe {
                    let at = |span: usize| step.partials.at(first + (span * rows + row) * state);
                    let merged = std::slice::from_raw_parts_mut(at(0), state);
                    for span in (1..spans).filter(|&span| step.seen(task, row, span) > 0) {
                        merge(v, std::slice::from_raw_parts_mut(at(span), state), merged, false);
                    }
                    finish(merged, attention.layout.head_dim, step.out.at(step.place(task, row)));
                }
            }
        }
    }
}

/// Merges a later span's state into that of those before; the first is taken as it is.
#[inline(always)]
fn merge<V: Vector>(v: V, span: &mut [f32], merged: &mut [f32], first: bool) {
    let padded = span.len() - 2;
    // A sum may be -0 or 0 by how many zeros were added to it: it becomes 0.
    for number in &mut span[..padded] {
        *number += 0.0;
    }
    if first {
        merged.copy_from_slice(span);
        return;
    }
    let peak = merged[padded].max(span[padded]);
    let exp = |x: f32| v.largest(v.exp(v.splat(x)));
    let (old, new) = (exp(merged[padded] - peak), exp(span[padded] - peak));
    for (merged, span) in merged[..padded].iter_mut().zip(&span[..padded]) {
        *merged = *merged * old + span * new;
    }
    merged[padded] = peak;
    merged[padded + 1] = merged[padded + 1] * old + span[padded + 1] * new;
}

/// Divides a row's sum of values by its sum of weights.
#[inline(always)]
unsafe fn finish(state: &[f32], head_dim: usize, to: *mut f32) {
    let inverse = 1.0 / state[state.len() - 1];
    for (index, number) in state[..head_dim].iter().enumerate() {
        // SAFETY: the caller says that a head's numbers have room.
        unsafe { to.add(index).write(number * inverse) };
    }
}

fn rows_of(numbers: *const u8, stride: usize) -> Rows {
    Rows { numbers, stride, blocks: std::ptr::null(), blocks_stride: 0 }
}

/// A product with any number of panels.
///
/// # Safety
///
/// As [`tile::product`].
#[inline(always)]
unsafe fn products<V: Vector>(v: V, product: Product, rows: usize, panels: usize) {
    for panel in (0..panels).step_by(2) {
        // SAFETY: the caller's word.
        unsafe {
            let product = Product {
                panels: product.panels.add(panel * product.panel_bytes),
                to: product.to.add(panel * PANEL),
                ..product
            };
            tile::product(v, product, rows, (panels - panel).min(2));
        }
    }
}

/// From a row's scores to its weights: the exponentials of what they are below the largest, of
/// those it sees; zeros up to `most`. Returns the largest, scaled, and the weights' sum.
#[inline(always)]
unsafe fn weigh<V: Vector>(
    v: V,
    scale: f32,
    scores: *mut f32,
    seen: usize,
    most: usize,
    element: Element,
    weights: *mut u8,
) -> (f32, f32) {
    // SAFETY: a row's scores and weights are a span's, which is whole vectors.
    unsafe {
        for position in seen..seen.next_multiple_of(V::LANES) {
            scores.add(position).write(f32::NEG_INFINITY);
        }
        let mut peak = v.splat(f32::NEG_INFINITY);
        for at in (0..seen).step_by(V::LANES) {
            peak = v.max(peak, v.load(scores.add(at)));
        }
        let peak = v.largest(peak);
        let mut sum = v.splat(0.0);
        // A step of two positions may read one more than `most`.
        for at in (0..most.next_multiple_of(2)).step_by(V::LANES) {
            let mut weight = v.splat(0.0);
            if at < seen {
                weight = v.exp(v.mul(v.sub(v.load(scores.add(at)), v.splat(peak)), v.splat(scale)));
                sum = v.add(sum, weight);
            }
            match element {
                Element::F32 => v.store(weights.cast::<f32>().add(at), weight),
                Element::Bf16 => v.store_bf16(weights.cast::<u16>().add(at), weight),
            }
        }
        (peak * scale, v.sum(sum))
    }
}

/// Gathers the keys and values of a span's first `positions` positions into panels: keys with
/// a position as a column, values with a position as a step.
#[inline(always)]
fn gather<V: Vector>(v: V, step: &Step<'_>, task: &Task, span: usize, positions: usize, scratch: &mut Scratch) {
    let layout = &step.attention.layout;
    let chunk = &step.chunks[task.chunk];
    let words = layout.head_bytes() / 4;
    let values_after = layout.block_tokens * layout.slot_bytes();
    // Where each position's key stands. Columns after the last repeat it: nobody looks.
    let mut slots = [step.store.as_ptr(); SPAN];
    let mut position = 0;
    while position < positions {
        let at = span * SPAN + position;
        let slot = layout.slot(chunk.blocks, step.layer, Half::Keys, at) + task.kv_head * layout.head_bytes();
        let run = (layout.block_tokens - at % layout.block_tokens).min(positions - position);
        for index in 0..run {
            let slot = step.store[slot + index * layout.slot_bytes()..].as_ptr();
            slots[position + index] = slot;
            // One head's numbers are a part of each slot: no pattern that the machine knows.
            for line in (0..layout.head_bytes()).step_by(64) {
                v.prefetch(slot.wrapping_add(line));
                v.prefetch(slot.wrapping_add(values_after + line));
            }
        }
        position += run;
    }
    let columns = positions.next_multiple_of(V::LANES);
    let last = slots[positions - 1];
    slots[positions..columns].fill(last);
    let keys = scratch.keys.as_mut_ptr().cast::<u32>();
    let values = scratch.values.as_mut_ptr().cast::<u32>();
    let whole = words / V::LANES * V::LANES;
    // SAFETY: slots are in the store with all their bytes, checked before; the buffers fit a
    // span's panels of so many words.
    unsafe {
        for column in (0..columns).step_by(V::LANES) {
            let panel = keys.add(column / PANEL * words * PANEL + column % PANEL);
            let slots = &slots[column..][..V::LANES];
            for word in (0..whole).step_by(V::LANES) {
                let mut rows = [slots[0]; PANEL];
                for (row, slot) in rows.iter_mut().zip(slots) {
                    *row = slot.add(word * 4);
                }
                v.transpose(&rows[..V::LANES], panel.add(word * PANEL), PANEL);
            }
            for word in whole..words {
                for (index, slot) in slots.iter().enumerate() {
                    panel.add(word * PANEL + index).write(slot.cast::<u32>().add(word).read_unaligned());
                }
            }
        }
        match layout.element {
            Element::F32 => {
                for (position, slot) in slots[..positions].iter().enumerate() {
                    let from = slot.add(values_after).cast::<u32>();
                    for at in (0..words).step_by(PANEL) {
                        let to = values.add((at / PANEL * SPAN + position) * PANEL);
                        to.copy_from_nonoverlapping(from.add(at), PANEL.min(words - at));
                    }
                }
            }
            Element::Bf16 => {
                for (pair, slots) in slots[..positions].chunks(2).enumerate() {
                    let low = slots[0].add(values_after).cast::<u16>();
                    // The last may be alone: a half of nothing then.
                    let high = slots.get(1).map(|slot| slot.add(values_after).cast::<u16>());
                    let to = |number: usize| values.add((number / PANEL * SPAN / 2 + pair) * PANEL + number % PANEL);
                    let whole = layout.head_dim / V::LANES * V::LANES;
                    for number in (0..whole).step_by(V::LANES) {
                        let high = high.map_or(v.splat_word(0), |high| v.load_shorts(high.add(number)));
                        v.store_words(to(number), v.pair(v.load_shorts(low.add(number)), high));
                    }
                    for number in whole..layout.head_dim {
                        let short = |from: *const u16| u32::from(from.add(number).read_unaligned());
                        to(number).write(short(low) | high.map_or(0, short) << 16);
                    }
                }
            }
        }
    }
}

impl Scratch {
    fn fit(&mut self, attention: &Attention, rows: usize) {
        let (padded, state, bytes) = (attention.padded(), attention.state(), attention.layout.element.bytes());
        self.queries.grow(rows * attention.layout.head_dim * size_of::<f32>());
        self.keys.grow(SPAN * attention.layout.head_bytes());
        self.values.grow(SPAN * padded * bytes);
        self.weights.grow(TILE_ROWS * SPAN * size_of::<f32>());
        for (buffer, numbers) in [
            (&mut self.scores, TILE_ROWS * SPAN),
            (&mut self.mixes, TILE_ROWS * state),
            (&mut self.states, rows * state),
        ] {
            if buffer.len() < numbers {
                buffer.resize(numbers, 0.0);
            }
        }
    }
}
