//! The built-in model and its random weights.
//!
//! A weight is made from whole numbers by one exact conversion and one multiplication, so a
//! seed gives the same bits on every machine. The mixer is Pelle Evensen's *moremur* (2019).

use std::collections::BTreeSet;

use super::config::{Architecture, ModelConfig, Weight};

/// Token ids of the built-in model above its 256 bytes, with the texts they stand for.
pub const TINY_SPECIALS: [(u32, &str); 3] = [(256, "<|endoftext|>"), (257, "<|im_start|>"), (258, "<|im_end|>")];

impl ModelConfig {
    /// The built-in model's: two layers, a token for each byte and three special ones.
    pub fn tiny(architecture: Architecture) -> Self {
        Self {
            architecture,
            layers: 2,
            hidden: 64,
            feed_forward: 128,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            vocabulary: 256 + TINY_SPECIALS.len(),
            context: 8192,
            rms_epsilon: 1e-5,
            rope_base: 10_000.0,
            rope_divisors: Vec::new(),
            tied_embedding: true,
            eos: BTreeSet::from([256, 258]),
        }
    }
}

/// The numbers of a weight: about 1 for a norm, about 0 for a matrix, such that activations
/// neither grow nor fade from layer to layer.
pub(super) fn numbers(weight: Weight, rows: usize, columns: usize, seed: u64) -> Vec<f32> {
    let (mean, spread) = match weight {
        // As large as a normed activation, so that what a text says shows in its logits.
        Weight::Embedding => (0.0, 1.0),
        _ if rows == 1 => (1.0, 0.25),
        // Uniform in ±√(3/columns) has the variance 1/columns; `sqrt` is rounded the same everywhere.
        _ => (0.0, (3.0 / columns as f32).sqrt()),
    };
    let key = mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15)) ^ mix(stream(weight));
    (0..(rows * columns) as u64)
        .map(|i| {
            let bits = mix(key.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
            let signed = (bits >> 40) as i32 - (1 << 23);
            mean + signed as f32 / (1 << 23) as f32 * spread
        })
        .collect()
}

/// A number of its own for each weight.
fn stream(weight: Weight) -> u64 {
    match weight {
        Weight::Embedding => 1,
        Weight::Output => 2,
        Weight::FinalNorm => 3,
        Weight::Layer(layer, weight) => (layer as u64 + 1) << 8 | weight as u64,
    }
}

fn mix(mut x: u64) -> u64 {
    x ^= x >> 27;
    x = x.wrapping_mul(0x3c79_ac49_2ba7_b653);
    x ^= x >> 33;
    x = x.wrapping_mul(0x1c69_b3f7_4ac4_ae35);
    x ^ (x >> 27)
}
