//! A transformer, its weights packed for the kernels, and its forward pass over paged KV.
//!
//! ```text
//!   tokens ─▶ embedding ─▶ x ─┬─ norm ─▶ q,k,v ─▶ rotate, store ─▶ attend ─▶ out ─▶ + ─┐
//!                             └──────────────────────────────────────────────────────┘ │
//!                          ┌───────────────────────────────────────────────────────────┘
//!                          x ─┬─ norm ─▶ gate, up ─▶ down ─▶ + ─▶ x …  norm ─▶ head ─▶ logits
//!                             └──────────────────────────────┘
//! ```
//!
//! One pass computes rows of several texts, prefills and decodes beside each other. What comes of
//! a token depends on its text alone ([`crate::kernels`]: the law).

use crate::kernels::{Activations, Attention, Chunk, Compute, Element, HeadNorms, KvLayout, Matrix, Path, Rotation};
use crate::kv::KvStore;
use crate::weights::{Architecture, Checkpoint, LayerWeight, ModelConfig, Stored, Tensor, Weight};
use crate::workers::Workers;

/// A model ready to compute.
pub struct Model {
    config: ModelConfig,
    path: Path,
    compute: Compute,
    embedding: Tensor,
    layers: Vec<Layer>,
    final_norm: Vec<f32>,
    head: Matrix,
    /// Of each position, half a head's cosines and sines.
    cos: Vec<f32>,
    sin: Vec<f32>,
}

struct Layer {
    attention_norm: Vec<f32>,
    query_key_value: Matrix,
    /// Of each query and key head, where the architecture norms them.
    head_norms: Option<(Vec<f32>, Vec<f32>)>,
    attention_output: Matrix,
    feed_forward_norm: Vec<f32>,
    gate_up: Matrix,
    down: Matrix,
}

/// In what a model's matrices are best multiplied as they are stored.
pub fn compute_of(checkpoint: &Checkpoint) -> Compute {
    let matrices = checkpoint.config.weights().filter(|weight| checkpoint.config.shape(*weight)[0] > 1);
    let mut stored: Vec<Stored> = matrices.map(|weight| checkpoint.tensor(weight).stored()).collect();
    stored.dedup();
    if stored.contains(&Stored::F32) {
        Compute::F32
    } else if stored.iter().all(|stored| matches!(stored, Stored::Q8_0 | Stored::Q4_0 | Stored::Q4_1)) {
        Compute::Int8
    } else {
        Compute::Bf16
    }
}

impl Model {
    /// Packs a checkpoint's weights.
    pub fn new(checkpoint: &Checkpoint, path: Path, compute: Compute) -> Self {
        let config = checkpoint.config.clone();
        let vector = |weight: Weight| {
            let tensor = checkpoint.tensor(weight);
            let mut numbers = vec![0.0; tensor.columns()];
            tensor.row_f32(0, &mut numbers);
            numbers
        };
        let layers = (0..config.layers).map(|layer| {
            let of = |weight: LayerWeight| Weight::Layer(layer, weight);
            let matrix = |weights: &[LayerWeight]| {
                let tensors: Vec<Tensor> = weights.iter().map(|&weight| checkpoint.tensor(of(weight))).collect();
                Matrix::pack(path, compute, &tensors.iter().collect::<Vec<_>>())
            };
            Layer {
                attention_norm: vector(of(LayerWeight::AttentionNorm)),
                query_key_value: matrix(&[LayerWeight::Query, LayerWeight::Key, LayerWeight::Value]),
                head_norms: (config.architecture == Architecture::Qwen3)
                    .then(|| (vector(of(LayerWeight::QueryNorm)), vector(of(LayerWeight::KeyNorm)))),
                attention_output: matrix(&[LayerWeight::AttentionOutput]),
                feed_forward_norm: vector(of(LayerWeight::FeedForwardNorm)),
                gate_up: Matrix::pack_gated(
                    path,
                    compute,
                    &checkpoint.tensor(of(LayerWeight::Gate)),
                    &checkpoint.tensor(of(LayerWeight::Up)),
                ),
                down: matrix(&[LayerWeight::Down]),
            }
        });
        let layers = layers.collect();
        let frequencies = config.rope_frequencies();
        let angle = |position: usize| frequencies.iter().map(move |frequency| position as f64 * frequency);
        let angles = (0..config.context).flat_map(angle);
        let (cos, sin) = angles.map(|angle| (libm::cos(angle) as f32, libm::sin(angle) as f32)).unzip();
        Self {
            path,
            compute,
            embedding: checkpoint.tensor(Weight::Embedding),
            layers,
            final_norm: vector(Weight::FinalNorm),
            head: Matrix::pack(path, compute, &[&checkpoint.tensor(Weight::Output)]),
            cos,
            sin,
            config,
        }
    }

    /// Its shape.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// With which instructions it computes.
    pub fn path(&self) -> Path {
        self.path
    }

    /// In what its matrices are multiplied.
    pub fn compute(&self) -> Compute {
        self.compute
    }

    /// Bytes a step reads of its weights: all matrices once.
    pub fn bytes(&self) -> usize {
        let layer = |layer: &Layer| {
            let Layer { query_key_value, attention_output, gate_up, down, .. } = layer;
            [query_key_value, attention_output, gate_up, down].map(Matrix::bytes).iter().sum::<usize>()
        };
        self.layers.iter().map(layer).sum::<usize>() + self.head.bytes()
    }

    /// How its KV lies in blocks of so many tokens.
    pub fn kv_layout(&self, block_tokens: usize) -> KvLayout {
        KvLayout {
            block_tokens,
            layers: self.config.layers,
            kv_heads: self.config.kv_heads,
            head_dim: self.config.head_dim,
            element: if self.compute == Compute::F32 { Element::F32 } else { Element::Bf16 },
        }
    }
}

/// Computes steps of one model on one instance's blocks, with buffers kept from step to step.
pub struct Runner {
    attention: Attention,
    hidden: Activations,
    heads: Activations,
    gated: Activations,
    x: Vec<f32>,
    query_key_value: Vec<f32>,
    queries: Vec<f32>,
    attended: Vec<f32>,
    logits: Vec<f32>,
}

/// A part of a text that a step computes.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Its tokens.
    pub tokens: &'a [u32],
    /// The place of the first of them in the text.
    pub start: usize,
    /// The text's blocks, as far as the last of them.
    pub blocks: &'a [u32],
    /// Whether what comes after the last of them is wanted.
    pub next: bool,
}

impl Runner {
    /// Buffers for a model, and a layout of blocks.
    pub fn new(model: &Model, layout: KvLayout) -> Self {
        let activations = || Activations::new(model.path, model.compute);
        Self {
            attention: Attention::new(model.path, layout, model.config.heads),
            hidden: activations(),
            heads: activations(),
            gated: activations(),
            x: Vec::new(),
            query_key_value: Vec::new(),
            queries: Vec::new(),
            attended: Vec::new(),
            logits: Vec::new(),
        }
    }

    /// A forward pass. Answers the logits of those parts that want them, one after another: a row
    /// of the vocabulary each.
    ///
    /// # Panics
    ///
    /// When a token is none of the vocabulary, a place is beyond the model's context, or a table has
    /// no block for it.
    pub fn step(&mut self, model: &Model, workers: &Workers, store: &KvStore, parts: &[Part<'_>]) -> &mut [f32] {
        let ModelConfig { hidden, heads, head_dim, kv_heads, rms_epsilon: epsilon, .. } = model.config;
        let layout = store.layout();
        let rows: usize = parts.iter().map(|part| part.tokens.len()).sum();
        let mut chunks: Vec<Chunk<'_>> = parts
            .iter()
            .map(|part| Chunk { blocks: part.blocks, start: part.start, tokens: part.tokens.len() })
            .collect();
        self.x.resize(rows * hidden, 0.0);
        let tokens = parts.iter().flat_map(|part| part.tokens);
        for (row, &token) in self.x.chunks_exact_mut(hidden).zip(tokens) {
            model.embedding.row_f32(token as usize, row);
        }
        self.query_key_value.resize(rows * (heads + 2 * kv_heads) * head_dim, 0.0);
        self.queries.resize(rows * heads * head_dim, 0.0);
        self.attended.resize(rows * heads * head_dim, 0.0);
        // SAFETY: an instance runs one step at a time, and copies touch only blocks that the kernel
        // keeps out of it.
        #[allow(unsafe_code)]
        let bytes = unsafe { store.of_step() };
        for (nth, layer) in model.layers.iter().enumerate() {
            self.hidden.prepare_normed(workers, &self.x, &layer.attention_norm, epsilon);
            layer.query_key_value.multiply(workers, &self.hidden, &mut self.query_key_value);
            let norms = layer.head_norms.as_ref().map(|(query, key)| HeadNorms { query, key, epsilon });
            let rotation = Rotation { cos: &model.cos, sin: &model.sin, norms };
            let (from, queries) = (&self.query_key_value, &mut self.queries);
            rotation.rotate_and_store(model.path, workers, from, &chunks, &layout, nth, bytes, queries);
            if nth + 1 == model.layers.len() {
                chunks = self.keep_wanted(parts, hidden, heads * head_dim);
            }
            self.attention.attend(workers, &self.queries, &chunks, nth, bytes, &mut self.attended);
            self.heads.prepare(workers, &self.attended, heads * head_dim);
            layer.attention_output.multiply_add(workers, &self.heads, &mut self.x);
            self.hidden.prepare_normed(workers, &self.x, &layer.feed_forward_norm, epsilon);
            layer.gate_up.multiply_gated(workers, &self.hidden, &mut self.gated);
            layer.down.multiply_add(workers, &self.gated, &mut self.x);
        }
        self.logits.resize(chunks.len() * model.config.vocabulary, 0.0);
        self.hidden.prepare_normed(workers, &self.x, &model.final_norm, epsilon);
        model.head.multiply(workers, &self.hidden, &mut self.logits);
        &mut self.logits
    }

    /// Once the last layer's keys and values are stored, nothing is read any more but the rows after
    /// which a token is wanted. Answers these.
    fn keep_wanted<'a>(&mut self, parts: &[Part<'a>], hidden: usize, heads: usize) -> Vec<Chunk<'a>> {
        let mut wanted = Vec::new();
        let mut row = 0;
        for part in parts {
            row += part.tokens.len();
            if part.next {
                self.x.copy_within((row - 1) * hidden..row * hidden, wanted.len() * hidden);
                self.queries.copy_within((row - 1) * heads..row * heads, wanted.len() * heads);
                wanted.push(Chunk { blocks: part.blocks, start: part.start + part.tokens.len() - 1, tokens: 1 });
            }
        }
        self.x.truncate(wanted.len() * hidden);
        self.queries.truncate(wanted.len() * heads);
        self.attended.truncate(wanted.len() * heads);
        wanted
    }
}
