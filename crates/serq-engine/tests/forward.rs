//! The forward pass against one written a second time, in doubles, without blocks, batches or
//! packed weights; and against itself however a text is cut.

use serq_engine::kernels::{Compute, Path};
use serq_engine::kv::KvStore;
use serq_engine::model::{Model, Part, Runner};
use serq_engine::weights::{Architecture, Checkpoint, LayerWeight, ModelConfig, Weight};
use serq_engine::workers::Workers;

/// All logits of a text, in doubles: rows of the vocabulary, one a token.
fn dense(checkpoint: &Checkpoint, tokens: &[u32]) -> Vec<Vec<f64>> {
    let config = &checkpoint.config;
    let row = |weight: Weight, row: usize| -> Vec<f64> {
        let tensor = checkpoint.tensor(weight);
        let mut numbers = vec![0.0; tensor.columns()];
        tensor.row_f32(row, &mut numbers);
        numbers.into_iter().map(f64::from).collect()
    };
    let product = |weight: Weight, x: &[f64]| -> Vec<f64> {
        let rows = checkpoint.tensor(weight).rows();
        (0..rows).map(|at| row(weight, at).iter().zip(x).map(|(w, x)| w * x).sum()).collect()
    };
    let norm = |x: &[f64], weight: &[f64]| -> Vec<f64> {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let by = 1.0 / (mean + f64::from(config.rms_epsilon)).sqrt();
        x.iter().zip(weight).map(|(x, w)| x * by * w).collect()
    };
    let dim = config.head_dim;
    let turn = |head: &mut [f64], position: usize| {
        for (pair, frequency) in config.rope_frequencies().into_iter().enumerate() {
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            let (a, b) = (head[pair], head[pair + dim / 2]);
            (head[pair], head[pair + dim / 2]) = (a * cos - b * sin, b * cos + a * sin);
        }
    };
    let mut keys = vec![Vec::new(); config.layers];
    let mut values = vec![Vec::new(); config.layers];
    let mut all = Vec::new();
    for (position, &token) in tokens.iter().enumerate() {
        let mut x = row(Weight::Embedding, token as usize);
        for layer in 0..config.layers {
            let of = |weight| Weight::Layer(layer, weight);
            let h = norm(&x, &row(of(LayerWeight::AttentionNorm), 0));
            let mut query = product(of(LayerWeight::Query), &h);
            let mut key = product(of(LayerWeight::Key), &h);
            let head_norms = config.architecture == Architecture::Qwen3;
            for (heads, weight) in [(&mut query, LayerWeight::QueryNorm), (&mut key, LayerWeight::KeyNorm)] {
                for head in heads.chunks_exact_mut(dim) {
                    if head_norms {
                        head.copy_from_slice(&norm(head, &row(of(weight), 0)));
                    }
                    turn(head, position);
                }
            }
            keys[layer].push(key);
            values[layer].push(product(of(LayerWeight::Value), &h));
            let mut out = vec![0.0; config.heads * dim];
            for head in 0..config.heads {
                let shared = head / (config.heads / config.kv_heads) * dim;
                let query = &query[head * dim..][..dim];
                let score = |key: &Vec<f64>| {
                    let dot: f64 = key[shared..][..dim].iter().zip(query).map(|(k, q)| k * q).sum();
                    dot / (dim as f64).sqrt()
                };
                let scores: Vec<f64> = keys[layer].iter().map(score).collect();
                let greatest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - greatest).exp()).collect();
                let sum: f64 = weights.iter().sum();
                for (weight, value) in weights.iter().zip(&values[layer]) {
                    for (out, value) in out[head * dim..][..dim].iter_mut().zip(&value[shared..][..dim]) {
                        *out += weight / sum * value;
                    }
                }
            }
            let back = product(of(LayerWeight::AttentionOutput), &out);
            x.iter_mut().zip(back).for_each(|(x, y)| *x += y);
            let h = norm(&x, &row(of(LayerWeight::FeedForwardNorm), 0));
            let (gate, up) = (product(of(LayerWeight::Gate), &h), product(of(LayerWeight::Up), &h));
            let inner: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            let back = product(of(LayerWeight::Down), &inner);
            x.iter_mut().zip(back).for_each(|(x, y)| *x += y);
        }
        all.push(product(Weight::Output, &norm(&x, &row(Weight::FinalNorm, 0))));
    }
    all
}

fn text(tokens: usize, vocabulary: usize) -> Vec<u32> {
    (0..tokens).map(|at| (at * at * 31 + at * 7 + 3) as u32 % vocabulary as u32).collect()
}

/// Logits of a text's every token: computed in chunks of these sizes, in blocks of so many tokens.
fn paged(model: &Model, workers: &Workers, tokens: &[u32], chunk: usize, block: usize) -> Vec<Vec<f32>> {
    let layout = model.kv_layout(block);
    let blocks = tokens.len().div_ceil(block);
    let store = KvStore::new(layout, blocks + 3).unwrap();
    // The last first, and not from the store's first.
    let table: Vec<u32> = (0..blocks as u32).rev().map(|at| at + 2).collect();
    let mut runner = Runner::new(model, layout);
    let mut all = Vec::new();
    let mut start = 0;
    while start < tokens.len() {
        let end = (start + chunk).min(tokens.len());
        let part = Part { tokens: &tokens[start..end], start, blocks: &table, next: true };
        all.push(runner.step(model, workers, &store, &[part]).to_vec());
        start = end;
    }
    all
}

fn models() -> Vec<Checkpoint> {
    let scaled = ModelConfig {
        rope_divisors: vec![1.0, 2.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0],
        ..ModelConfig::tiny(Architecture::Llama)
    };
    vec![
        Checkpoint::tiny(1),
        Checkpoint::random(scaled, 2),
        Checkpoint::random(ModelConfig::tiny(Architecture::Qwen3), 3),
    ]
}

/// Of singles, to 1e-5 of the logits' spread; bf16 and integers as far as their rounding goes.
#[test]
fn logits_are_those_of_the_dense_pass_in_doubles() {
    for checkpoint in models() {
        let tokens = text(70, checkpoint.config.vocabulary);
        let expected = dense(&checkpoint, &tokens);
        let spread = expected.iter().flatten().map(|logit| logit * logit).sum::<f64>();
        let spread = (spread / (expected.len() * expected[0].len()) as f64).sqrt();
        for path in Path::ALL.into_iter().filter(|path| path.is_here()) {
            for (compute, bound) in [(Compute::F32, 1e-5), (Compute::Bf16, 0.06), (Compute::Int8, 0.2)] {
                let model = Model::new(&checkpoint, path, compute);
                let found = paged(&model, &Workers::new(2), &tokens, 1, 16);
                let mut worst: f64 = 0.0;
                for (found, expected) in found.iter().zip(&expected) {
                    for (found, expected) in found.iter().zip(expected) {
                        worst = worst.max((f64::from(*found) - expected).abs() / spread);
                    }
                }
                assert!(worst < bound, "{path} {compute:?}: off by {worst} of the spread");
            }
        }
    }
}

/// The same bits, whatever the chunks, the blocks, the workers, and whoever is beside it.
#[test]
fn a_text_s_logits_depend_on_nothing_but_the_text() {
    for checkpoint in models() {
        let tokens = text(150, checkpoint.config.vocabulary);
        for path in Path::ALL.into_iter().filter(|path| path.is_here()) {
            for compute in [Compute::F32, Compute::Bf16, Compute::Int8] {
                let model = Model::new(&checkpoint, path, compute);
                let one = paged(&model, &Workers::new(1), &tokens, 1, 16);
                for (chunk, block, workers) in [(150, 1, 1), (64, 8, 2), (7, 32, 3), (33, 48, 2), (150, 128, 1)] {
                    let other = paged(&model, &Workers::new(workers), &tokens, chunk, block);
                    for (nth, logits) in other.iter().enumerate() {
                        let at = ((nth + 1) * chunk).min(tokens.len()) - 1;
                        assert_eq!(logits, &one[at], "{path} {compute:?}: chunks of {chunk}, blocks of {block}");
                    }
                }
            }
        }
    }
}
