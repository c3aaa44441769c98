//! What a model keeps of a token, and what a token costs to compute.
//!
//! Two parts of KV: what grows with the prompt, and what layers with a window keep, which stops
//! growing at the window.
//!
//! # Invariants
//!
//! - `window_layers ≤ layers`, checked where a shape is made.
//! - [`Shape::kv_bytes`] of n + m tokens is at most that of n plus that of m.

use serde::Serialize;

/// The fields of a model's configuration that matter here.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Shape {
    /// `num_hidden_layers`.
    pub(crate) layers: u32,
    /// Of these, layers that keep the last `window` tokens only.
    pub(crate) window_layers: u32,
    /// `sliding_window`, in tokens.
    pub(crate) window: u32,
    /// What a layer keeps of a token.
    pub(crate) kept: Kept,
    /// `num_attention_heads`: of queries.
    pub(crate) heads: Option<u32>,
    /// Parameters that take part in a token: all, or the active ones of a mixture of experts.
    pub(crate) params_active: Option<f64>,
}

/// What one layer keeps of one token.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kept {
    /// A key and a value for each KV head (MHA, GQA, MQA).
    Heads {
        /// `num_key_value_heads`.
        kv_heads: u32,
        /// `head_dim`.
        head_dim: u32,
    },
    /// One latent vector for all heads (MLA), and the key part that carries the position.
    Latent {
        /// `kv_lora_rank`.
        kv_lora_rank: u32,
        /// `qk_rope_head_dim`.
        qk_rope_head_dim: u32,
        /// `qk_nope_head_dim`, where it is known: computing needs it, keeping does not.
        qk_nope_head_dim: Option<u32>,
        /// `v_head_dim`, likewise.
        v_head_dim: Option<u32>,
    },
}

impl Shape {
    /// Numbers one layer keeps of one token.
    pub(crate) fn numbers_a_layer(&self) -> f64 {
        match self.kept {
            Kept::Heads { kv_heads, head_dim } => 2.0 * f64::from(kv_heads) * f64::from(head_dim),
            Kept::Latent { kv_lora_rank, qk_rope_head_dim, .. } => {
                f64::from(kv_lora_rank) + f64::from(qk_rope_head_dim)
            }
        }
    }

    /// Layers whose KV grows with every token.
    pub(crate) fn layers_full(&self) -> u32 {
        self.layers - self.window_layers
    }

    /// Bytes that every further token adds.
    pub(crate) fn kv_bytes_a_token(&self, bytes: f64) -> f64 {
        f64::from(self.layers_full()) * self.numbers_a_layer() * bytes
    }

    /// Bytes of the layers with a window, for a prompt of so many tokens.
    pub(crate) fn kv_bytes_window(&self, tokens: u64, bytes: f64) -> f64 {
        let kept = tokens.min(u64::from(self.window)) as f64;
        f64::from(self.window_layers) * self.numbers_a_layer() * bytes * kept
    }

    /// Bytes of so many tokens.
    pub(crate) fn kv_bytes(&self, tokens: u64, bytes: f64) -> f64 {
        self.kv_bytes_a_token(bytes) * tokens as f64 + self.kv_bytes_window(tokens, bytes)
    }

    /// Parts into which tensor parallelism can split a token's KV: its heads. A latent has one.
    pub(crate) fn kv_parts(&self) -> u32 {
        match self.kept {
            Kept::Heads { kv_heads, .. } => kv_heads,
            Kept::Latent { .. } => 1,
        }
    }

    /// Operations of the weights: a multiplication and an addition a parameter and token.
    pub(crate) fn flop_weights(&self, tokens: u64) -> Option<f64> {
        self.params_active.map(|params| 2.0 * params * tokens as f64)
    }

    /// Operations of attention proper: every query with every key before it, causal, windows minded.
    pub(crate) fn flop_attention(&self, tokens: u64) -> Option<f64> {
        let query_and_value = match self.kept {
            Kept::Heads { head_dim, .. } => 2.0 * f64::from(head_dim),
            Kept::Latent { qk_rope_head_dim, qk_nope_head_dim, v_head_dim, .. } => {
                f64::from(qk_rope_head_dim) + f64::from(qk_nope_head_dim?) + f64::from(v_head_dim?)
            }
        };
        let tokens = tokens as f64;
        let pairs = |seen: f64| if tokens <= seen { tokens * tokens / 2.0 } else { seen * (tokens - seen / 2.0) };
        let of_layers = f64::from(self.layers_full()) * pairs(f64::INFINITY)
            + f64::from(self.window_layers) * pairs(f64::from(self.window));
        self.heads.map(|heads| 2.0 * f64::from(heads) * query_and_value * of_layers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gqa(window_layers: u32) -> Shape {
        let kept = Kept::Heads { kv_heads: 8, head_dim: 64 };
        Shape { layers: 24, window_layers, window: 128, kept, heads: Some(64), params_active: Some(1e9) }
    }

    #[test]
    fn a_window_stops_growing() {
        let shape = gqa(12);
        assert_eq!(shape.kv_bytes_a_token(2.0), 24_576.0);
        assert_eq!(shape.kv_bytes_window(128, 2.0), 3_145_728.0);
        assert_eq!(shape.kv_bytes_window(100_000, 2.0), 3_145_728.0);
        assert_eq!(shape.kv_bytes(128, 2.0), gqa(0).kv_bytes(128, 2.0));
    }

    #[test]
    fn attention_counts_each_causal_pair_once() {
        // 2 · L · n² · heads · head_dim [docs/plan.md].
        assert_eq!(gqa(0).flop_attention(1000), Some(2.0 * 24.0 * 1e6 * 64.0 * 64.0));
        // A window as long as the prompt is none; a shorter one is a band.
        assert_eq!(gqa(24).flop_attention(128), gqa(0).flop_attention(128));
        let band = 128.0 * 128.0 / 2.0 + 128.0 * (1000.0 - 128.0);
        assert_eq!(gqa(24).flop_attention(1000), Some(4.0 * 64.0 * 64.0 * 24.0 * band));
    }
}
