//! Model files: read back as written, and refused in one sentence where they are wrong.

mod chats;
mod folder;
mod folder_writer;
mod gguf;
mod gguf_writer;
#[path = "../real_model/mod.rs"]
mod real_model;
mod recorded;
mod tokenizing;

use serq_engine::weights::{Architecture, Checkpoint, LayerWeight, ModelConfig, Stored, Tensor, Weight};

/// A small model of an architecture, unlike the built-in one in everything that may differ.
fn small(architecture: Architecture) -> Checkpoint {
    let config = ModelConfig {
        heads: 6,
        kv_heads: 3,
        head_dim: 8,
        hidden: 32,
        tied_embedding: false,
        rope_divisors: vec![1.0, 1.5, 4.0, 8.0],
        ..ModelConfig::tiny(architecture)
    };
    Checkpoint::random(config, 7)
}

/// All numbers, row by row.
fn numbers(tensor: &Tensor) -> Vec<f32> {
    let mut all = vec![0.0; tensor.rows() * tensor.columns()];
    for (row, numbers) in all.chunks_mut(tensor.columns()).enumerate() {
        tensor.row_f32(row, numbers);
    }
    all
}

/// Fails unless both models are the same, number for number.
fn assert_same(one: &Checkpoint, other: &Checkpoint) {
    assert_eq!(one.config, other.config);
    for weight in one.config.weights() {
        assert_eq!(numbers(&one.tensor(weight)), numbers(&other.tensor(weight)), "{weight:?}");
    }
}

/// All bits of a model, as one number.
fn fingerprint(model: &Checkpoint) -> u64 {
    let all = model.config.weights().flat_map(|weight| numbers(&model.tensor(weight)));
    all.fold(0, |hash: u64, number| (hash.rotate_left(5) ^ u64::from(number.to_bits())).wrapping_mul(0x100_0000_01b3))
}

/// Bits pinned, so that every machine's built-in model is this one.
#[test]
fn the_built_in_model_is_the_same_everywhere() {
    let model = Checkpoint::tiny(1);
    assert_eq!(model.config.parameters(), 90_624);
    assert_eq!(numbers(&model.tensor(Weight::Output)), numbers(&model.tensor(Weight::Embedding)));
    assert_eq!(fingerprint(&model), 0xb890_0702_0ca8_1fa4);
    assert_eq!(fingerprint(&small(Architecture::Qwen3)), 0x2bb3_d04c_2a04_1a45);
}

/// As wide as the choice of its spread says, and about its mean.
#[test]
fn random_weights_neither_grow_nor_fade() {
    let model = Checkpoint::tiny(3);
    for (weight, mean, variance) in [
        (Weight::Embedding, 0.0, 1.0 / 3.0),
        (Weight::Layer(0, LayerWeight::Gate), 0.0, 1.0 / 64.0),
        (Weight::Layer(1, LayerWeight::Down), 0.0, 1.0 / 128.0),
    ] {
        let all = numbers(&model.tensor(weight));
        let count = all.len() as f32;
        let found = all.iter().sum::<f32>() / count;
        let spread = all.iter().map(|number| (number - found).powi(2)).sum::<f32>() / count;
        assert!((found - mean).abs() < 5.0 * (variance / count).sqrt(), "{weight:?}: mean {found}");
        assert!((spread / variance - 1.0).abs() < 0.05, "{weight:?}: variance {spread}");
    }
}

/// A block of each format has the size that its parts add up to.
#[test]
fn blocks_are_as_large_as_their_parts() {
    let parts = |stored| match stored {
        Stored::F32 => 4,
        Stored::F16 | Stored::Bf16 => 2,
        Stored::Q8_0 => 2 + 32,
        Stored::Q4_0 => 2 + 16,
        Stored::Q4_1 => 2 + 2 + 16,
        Stored::Q4K => 2 + 2 + 8 * 2 * 6 / 8 + 128,
        Stored::Q6K => 128 + 64 + 16 + 2,
    };
    for stored in Stored::ALL {
        assert_eq!(stored.block_bytes(), parts(stored), "{}", stored.name());
    }
}
