//! What one hand-over moves, how long that takes, and how much of it hides behind the prefill.
//!
//! ```text
//!   after the prefill      │ prefill ············│ transfer ···│
//!
//!   layer by layer         │ 1 │ 2 │ 3 │ 4 │                    prefill, a layer each
//!                              │ 1 │ 2 │ 3 │ 4 │                transfer of the layer before
//!                                              ◀──▶ exposed
//! ```
//!
//! With L layers of equal size on a link that takes one after the other, the last transfer ends
//! max(0, transfer − prefill) · (L−1)/L + transfer/L after the prefill: the link is the slower of
//! the two and never waits, or it waits for each layer and has the last one left.
//!
//! # Invariants
//!
//! - `exposed_s + hidden_s == transfer_s`, up to rounding, and neither is negative.
//! - A faster link never takes longer.

use serde::Serialize;

use super::quantity::{Accelerators, Link};
use super::shape::Shape;

/// What is asked.
pub(crate) struct Question {
    pub(crate) shape: Shape,
    /// Of the prompt.
    pub(crate) tokens: u64,
    /// Of these, already in the decode instance's cache.
    pub(crate) tokens_cached: u64,
    /// Tokens that move as one.
    pub(crate) block: u64,
    /// A number of the KV.
    pub(crate) bytes: f64,
    pub(crate) links: Vec<Link>,
    /// Share of the line rate that a transfer gets.
    pub(crate) efficiency: f64,
    /// Before the first byte, s.
    pub(crate) latency_s: f64,
    /// Ranks of both sides; every rank has its own link.
    pub(crate) ranks: Option<(u32, u32)>,
    pub(crate) prefill: Option<Prefill>,
}

/// What the prompt is computed on.
pub(crate) struct Prefill {
    pub(crate) on: Accelerators,
    /// Share of the peak that is used.
    pub(crate) mfu: f64,
    /// Whether attention's own operations count.
    pub(crate) attention: bool,
}

/// What comes out, every digit.
#[derive(Debug, Serialize)]
pub(crate) struct Answer {
    pub(crate) kv_bytes_a_token: f64,
    /// Of layers with a window: fixed once the prompt is longer.
    pub(crate) kv_bytes_window: f64,
    pub(crate) tokens_moved: u64,
    /// Once, however many ranks hold it.
    pub(crate) kv_bytes: f64,
    pub(crate) fan_out: Option<FanOut>,
    pub(crate) prefill_s: Option<f64>,
    /// Of attention alone, whether or not it is counted in `prefill_s`.
    pub(crate) attention_s: Option<f64>,
    pub(crate) links: Vec<OverLink>,
}

/// From ranks to ranks.
#[derive(Debug, Serialize)]
pub(crate) struct FanOut {
    pub(crate) ranks_prefill: u32,
    pub(crate) ranks_decode: u32,
    /// Messages: each is read by one rank from one rank.
    pub(crate) pieces: u64,
    /// Decode ranks that keep the same heads.
    pub(crate) copies: u32,
    pub(crate) bytes_moved: f64,
    pub(crate) bytes_a_piece: f64,
}

/// Over one set of links.
#[derive(Debug, Serialize)]
pub(crate) struct OverLink {
    pub(crate) link: Link,
    /// Of all of them together, as far as they are used.
    pub(crate) bytes_per_s: f64,
    pub(crate) transfer_s: f64,
    /// After the prefill, when layers move one by one.
    pub(crate) exposed_s: Option<f64>,
    pub(crate) hidden_s: Option<f64>,
}

/// Why ranks cannot split a model's KV.
pub(crate) fn refuse_ranks(shape: &Shape, ranks: (u32, u32)) -> Option<String> {
    let parts = shape.kv_parts();
    [ranks.0, ranks.1].into_iter().find(|&side| !parts.is_multiple_of(side) && !side.is_multiple_of(parts)).map(
        |side| format!("{parts} KV heads do not split over {side} ranks: --tp takes divisors and multiples of {parts}"),
    )
}

/// Computes.
pub(crate) fn answer(question: &Question) -> Answer {
    let Question { shape, bytes, .. } = question;
    let tokens_moved = moved(question.tokens, question.tokens_cached, question.block);
    let kv_bytes = shape.kv_bytes(tokens_moved, *bytes);
    let fan_out = question.ranks.map(|ranks| fan_out(shape, kv_bytes, ranks));
    let prefill = question.prefill.as_ref();
    let speed = prefill.map(|prefill| prefill.on.flop_per_s * f64::from(prefill.on.count) * prefill.mfu);
    let attention_s = shape.flop_attention(question.tokens).zip(speed).map(|(flop, speed)| flop / speed);
    let prefill_s = shape.flop_weights(question.tokens).zip(speed).map(|(flop, speed)| {
        let attention = if prefill.is_some_and(|prefill| prefill.attention) { attention_s } else { None };
        flop / speed + attention.unwrap_or(0.0)
    });
    let over = |link: &Link| {
        let ranks = question.ranks.map_or(1, |(prefill, decode)| prefill.min(decode));
        let bytes_per_s = link.bytes_per_s * f64::from(link.count) * f64::from(ranks) * question.efficiency;
        let moving = fan_out.as_ref().map_or(kv_bytes, |fan_out| fan_out.bytes_moved) / bytes_per_s;
        let exposed_s = prefill_s.map(|prefill| question.latency_s + exposed(moving, prefill, shape.layers));
        let transfer_s = question.latency_s + moving;
        let hidden_s = exposed_s.map(|exposed| transfer_s - exposed);
        OverLink { link: link.clone(), bytes_per_s, transfer_s, exposed_s, hidden_s }
    };
    Answer {
        kv_bytes_a_token: shape.kv_bytes_a_token(*bytes),
        kv_bytes_window: shape.kv_bytes_window(tokens_moved, *bytes),
        tokens_moved,
        kv_bytes,
        links: question.links.iter().map(over).collect(),
        fan_out,
        prefill_s,
        attention_s,
    }
}

/// Prompt tokens a second: the weights' operations only.
pub(crate) fn prefill_rate(on: &Accelerators, mfu: f64, params_active: f64) -> f64 {
    on.flop_per_s * f64::from(on.count) * mfu / (2.0 * params_active)
}

/// Whole blocks past the whole blocks that are there.
fn moved(tokens: u64, cached: u64, block: u64) -> u64 {
    tokens.div_ceil(block) * block - cached.min(tokens) / block * block
}

/// What is left of a transfer after a prefill of so many equal layers.
pub(crate) fn exposed(transfer_s: f64, prefill_s: f64, layers: u32) -> f64 {
    let layers = f64::from(layers);
    (transfer_s - prefill_s).max(0.0) * ((layers - 1.0) / layers) + transfer_s / layers
}

fn fan_out(shape: &Shape, kv_bytes: f64, (prefill, decode): (u32, u32)) -> FanOut {
    let parts = shape.kv_parts();
    // Ranks beyond the heads hold copies: of the sender's one is read, every reader wants its own.
    let copies = (decode / parts).max(1);
    let pieces = lcm(u64::from(prefill.min(parts)), u64::from(decode));
    let bytes_moved = kv_bytes * f64::from(copies);
    let bytes_a_piece = bytes_moved / pieces as f64;
    FanOut { ranks_prefill: prefill, ranks_decode: decode, pieces, copies, bytes_moved, bytes_a_piece }
}

fn lcm(a: u64, b: u64) -> u64 {
    let (mut low, mut high) = (a, b);
    while low != 0 {
        (low, high) = (high % low, low);
    }
    a / high * b
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::catalogue::model;

    /// The picture above, layer after layer.
    fn exposed_by_hand(transfer: f64, prefill: f64, layers: u32) -> f64 {
        let mut link_free = 0.0_f64;
        for layer in 1..=layers {
            let computed = prefill / f64::from(layers) * f64::from(layer);
            link_free = link_free.max(computed) + transfer / f64::from(layers);
        }
        link_free - prefill
    }

    #[test]
    fn what_is_exposed_is_what_a_pipeline_of_layers_leaves() {
        for transfer in [0.001, 0.5, 1.0, 1.0001, 3.0, 50.0] {
            for layers in [1, 2, 61, 80] {
                let (formula, hand) = (exposed(transfer, 1.0, layers), exposed_by_hand(transfer, 1.0, layers));
                assert!((formula - hand).abs() < 1e-9 * transfer.max(1.0), "{transfer} {layers}: {formula} {hand}");
                assert!(formula > 0.0 && formula <= transfer * (1.0 + 1e-12));
            }
        }
    }

    #[test]
    fn blocks_are_whole_on_both_sides() {
        assert_eq!(moved(4096, 0, 1), 4096);
        assert_eq!(moved(4097, 0, 16), 4112);
        assert_eq!(moved(4097, 31, 16), 4112 - 16);
        assert_eq!(moved(100, 100, 16), 112 - 96);
        assert_eq!(moved(100, 1000, 1), 0);
    }

    #[test]
    fn pieces_are_what_every_reader_needs_from_every_holder() {
        // By hand: head h is with prefill rank h·P/8 and decode rank h·D/8; a piece is a pair that meets.
        let shape = model("llama-3-70b").unwrap().shape();
        for prefill in [1_u32, 2, 4, 8] {
            for decode in [1_u32, 2, 4, 8] {
                let pairs: std::collections::BTreeSet<_> = (0..8).map(|h| (h * prefill / 8, h * decode / 8)).collect();
                let out = fan_out(&shape, 1e9, (prefill, decode));
                assert_eq!((out.pieces, out.copies), (pairs.len() as u64, 1), "{prefill}:{decode}");
            }
        }
        // Sixteen readers of eight heads: every head twice.
        let out = fan_out(&shape, 1e9, (4, 16));
        assert_eq!((out.pieces, out.copies, out.bytes_moved), (16, 2, 2e9));
        // A latent does not split: every reader takes all of it.
        let out = fan_out(&model("deepseek-v3").unwrap().shape(), 1e9, (8, 8));
        assert_eq!((out.pieces, out.copies, out.bytes_moved), (8, 8, 8e9));
        assert!(refuse_ranks(&shape, (3, 8)).is_some() && refuse_ranks(&shape, (4, 16)).is_none());
    }
}
