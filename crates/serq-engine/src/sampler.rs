//! From logits to a token.
//!
//! ```text
//!   logits ─▶ bias, penalties, forbidden ids ─▶ temperature ─▶ min-p ─▶ top-k ─▶ top-p ─▶ draw
//! ```
//!
//! # Invariants
//!
//! - What is drawn depends on the logits, the request's settings and tokens, and how many tokens
//!   it has so far, and on nothing else: not on the batch, nor on what was drawn for others.
//! - Of equal logits the smaller id stands first. At temperature 0 the first of them all is taken.
//! - Log-probabilities are those of the model, before anything is changed.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

/// How a request's tokens are chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// Divides the logits; 0: the largest is taken.
    pub temperature: f32,
    /// Only so many of the largest; 0: all.
    pub top_k: usize,
    /// Only the largest that together have this probability.
    pub top_p: f32,
    /// Only those with at least this part of the largest's probability.
    pub min_p: f32,
    /// Divides positive logits, and multiplies negative ones, of tokens in the prompt or the answer.
    pub repetition_penalty: f32,
    /// Taken off the logits of tokens in the answer.
    pub presence_penalty: f32,
    /// Taken off them for each time they are in it.
    pub frequency_penalty: f32,
    /// Added to the logits of these ids.
    pub bias: Vec<(u32, f32)>,
    /// Draws of equal seeds are equal.
    pub seed: u64,
    /// Ids that end the answer.
    pub ends: Vec<u32>,
    /// Tokens before which none of them is chosen, and no text ends the answer.
    pub min_tokens: usize,
    /// Of how many of the likeliest tokens the log-probability is told, beside the chosen one's;
    /// `None`: of none, nor of that.
    pub logprobs: Option<usize>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            bias: Vec::new(),
            seed: 0,
            ends: Vec::new(),
            min_tokens: 0,
            logprobs: None,
        }
    }
}

impl Sampling {
    /// Whether the tokens so far matter.
    pub fn looks_back(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// A token after `prompt` and `answer`, which are looked at only where [`Sampling::looks_back`];
    /// it is the `nth` of the answer, from 0.
    pub fn sample(&self, logits: &mut [f32], prompt: &[u32], answer: &[u32], nth: usize) -> Token {
        let told = self.logprobs.map(|count| Told::of(logits, count));
        self.change(logits, prompt, answer, nth);
        let id = if self.temperature <= 0.0 { first(logits) } else { self.draw(logits, nth) };
        Token { id, logprobs: told.map(|told| told.with(id)) }
    }

    fn change(&self, logits: &mut [f32], prompt: &[u32], answer: &[u32], nth: usize) {
        for &(id, bias) in &self.bias {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit += bias;
            }
        }
        if self.looks_back() {
            let mut seen = std::collections::BTreeMap::new();
            prompt.iter().for_each(|&id| {
                seen.entry(id).or_insert(0);
            });
            answer.iter().for_each(|&id| *seen.entry(id).or_insert(0) += 1);
            for (id, times) in seen {
                let Some(logit) = logits.get_mut(id as usize) else { continue };
                *logit = if *logit > 0.0 { *logit / self.repetition_penalty } else { *logit * self.repetition_penalty };
                if times > 0 {
                    *logit -= self.presence_penalty + self.frequency_penalty * times as f32;
                }
            }
        }
        if nth < self.min_tokens {
            for &id in &self.ends {
                if let Some(logit) = logits.get_mut(id as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }

    fn draw(&self, logits: &[f32], nth: usize) -> u32 {
        let temperature = f64::from(self.temperature);
        let greatest = f64::from(logits[first(logits) as usize]);
        if !greatest.is_finite() {
            return first(logits);
        }
        let weights: Vec<f64> = logits.iter().map(|&logit| exp((f64::from(logit) - greatest) / temperature)).collect();
        let weight = |id: u32| weights[id as usize];
        let mut ids: Vec<u32> =
            (0..logits.len() as u32).filter(|&id| logits[id as usize] > f32::NEG_INFINITY).collect();
        if self.min_p > 0.0 {
            ids.retain(|&id| weight(id) >= f64::from(self.min_p));
        }
        let order = |a: &u32, b: &u32| descending(logits, *a, *b);
        let mut sorted = false;
        if self.top_k > 0 && self.top_k < ids.len() {
            ids.select_nth_unstable_by(self.top_k - 1, order);
            ids.truncate(self.top_k);
            ids.sort_unstable_by(order);
            sorted = true;
        }
        if self.top_p < 1.0 {
            let all: f64 = ids.iter().map(|&id| weight(id)).sum();
            let wanted = all * f64::from(self.top_p);
            let mut most = if sorted { ids.len() } else { 64 };
            loop {
                most = most.min(ids.len());
                if !sorted && most < ids.len() {
                    ids.select_nth_unstable_by(most - 1, order);
                }
                if !sorted {
                    ids[..most].sort_unstable_by(order);
                }
                let mut sum = 0.0;
                let enough = ids[..most].iter().position(|&id| {
                    sum += weight(id);
                    sum >= wanted
                });
                if let Some(last) = enough {
                    ids.truncate(last + 1);
                    break;
                }
                if most == ids.len() {
                    break;
                }
                most *= 8;
            }
        }
        ids.sort_unstable();
        let sum: f64 = ids.iter().map(|&id| weight(id)).sum();
        let mut left = uniform(self.seed, nth as u64) * sum;
        for &id in &ids {
            left -= weight(id);
            if left < 0.0 {
                return id;
            }
        }
        // A rounding is left over; the last that has any weight.
        *ids.iter().rev().find(|&&id| weight(id) > 0.0).expect("the greatest has the weight 1")
    }
}

/// A token, and how likely the model found it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Where they were asked for.
    pub logprobs: Option<Logprobs>,
}

/// Log-probabilities of one place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Logprobs {
    /// Of the chosen token.
    pub chosen: f32,
    /// Of the likeliest ones, the likeliest first.
    pub likeliest: Vec<(u32, f32)>,
}

/// The model's own probabilities, before anything is changed.
struct Told {
    logits: Vec<f32>,
    /// log Σ exp.
    whole: f64,
    likeliest: Vec<u32>,
}

impl Told {
    fn of(logits: &[f32], count: usize) -> Self {
        let greatest = f64::from(logits[first(logits) as usize]);
        let sum: f64 = logits.iter().map(|&logit| libm::exp(f64::from(logit) - greatest)).sum();
        let mut likeliest: Vec<u32> = (0..logits.len() as u32).collect();
        let count = count.min(likeliest.len());
        if count > 0 && count < likeliest.len() {
            likeliest.select_nth_unstable_by(count - 1, |a, b| descending(logits, *a, *b));
        }
        likeliest.truncate(count);
        likeliest.sort_unstable_by(|a, b| descending(logits, *a, *b));
        Self { logits: logits.to_vec(), whole: greatest + libm::log(sum), likeliest }
    }

    fn with(self, id: u32) -> Logprobs {
        let of = |id: u32| (f64::from(self.logits[id as usize]) - self.whole) as f32;
        Logprobs { chosen: of(id), likeliest: self.likeliest.iter().map(|&id| (id, of(id))).collect() }
    }
}

/// e to the power of what is at most 0, to one part in 10⁹; 0 far below. The same bits everywhere, and
/// many at once.
fn exp(x: f64) -> f64 {
    /// Adding it rounds to whole numbers: then they are the last bits.
    const WHOLE: f64 = 6_755_399_441_055_744.0;
    let x = x.max(-700.0);
    let shifted = x * std::f64::consts::LOG2_E + WHOLE;
    let rest = (x - (shifted - WHOLE) * 0.693_147_180_369_123_8) - (shifted - WHOLE) * 1.908_214_929_270_587_7e-10;
    // Of at most half of ln 2.
    let series = [5040.0, 720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0];
    let part = series.iter().fold(1.0 / 40_320.0, |sum, below| sum * rest + 1.0 / below);
    let power = (shifted.to_bits().wrapping_add(1023)) << 52;
    part * f64::from_bits(power)
}

fn descending(logits: &[f32], a: u32, b: u32) -> Ordering {
    logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b))
}

/// The smallest id of the largest logit. A NaN is larger than none.
fn first(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, &logit) in logits.iter().enumerate() {
        if logit > logits[best] || (logits[best].is_nan() && !logit.is_nan()) {
            best = id;
        }
    }
    best as u32
}

/// The `nth` number in [0, 1) of a seed.
fn uniform(seed: u64, nth: u64) -> f64 {
    serq_kernel::Draws::new(seed).uniform(serq_kernel::Stream {
        purpose: serq_kernel::Purpose::Session,
        owner: 0,
        turn: 0,
        counter: nth,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits() -> Vec<f32> {
        vec![0.0, 3.0, 1.0, 3.0, -1.0, 2.0]
    }

    fn drawn(sampling: &Sampling) -> Vec<f64> {
        let mut counts = vec![0.0; 6];
        for nth in 0..20_000 {
            counts[sampling.sample(&mut logits(), &[], &[], nth).id as usize] += 1.0 / 20_000.0;
        }
        counts
    }

    #[test]
    fn at_temperature_0_the_smallest_id_of_the_largest_is_taken() {
        let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
        assert_eq!(greedy.sample(&mut logits(), &[], &[], 0).id, 1);
        let biased = Sampling { bias: vec![(4, 10.0), (99, 1.0)], ..greedy.clone() };
        assert_eq!(biased.sample(&mut logits(), &[], &[], 0).id, 4);
        let ends = Sampling { ends: vec![1, 3], min_tokens: 1, ..greedy };
        assert_eq!(ends.sample(&mut logits(), &[], &[], 0).id, 5);
        assert_eq!(ends.sample(&mut logits(), &[], &[], 1).id, 1);
    }

    #[test]
    fn frequencies_are_the_softmax() {
        let counts = drawn(&Sampling { temperature: 2.0, ..Sampling::default() });
        let weights: Vec<f64> = logits().iter().map(|&l| (f64::from(l) / 2.0).exp()).collect();
        let sum: f64 = weights.iter().sum();
        for (count, weight) in counts.iter().zip(weights) {
            assert!((count - weight / sum).abs() < 0.015, "{count} {}", weight / sum);
        }
    }

    #[test]
    fn top_k_top_p_and_min_p_leave_the_largest() {
        let left = |sampling: Sampling| -> Vec<usize> {
            drawn(&sampling).iter().enumerate().filter(|(_, c)| **c > 0.0).map(|(id, _)| id).collect()
        };
        assert_eq!(left(Sampling { top_k: 3, ..Sampling::default() }), [1, 3, 5]);
        // Two have 0.39 each, the third 0.14.
        assert_eq!(left(Sampling { top_p: 0.7, ..Sampling::default() }), [1, 3]);
        assert_eq!(left(Sampling { top_p: 0.8, ..Sampling::default() }), [1, 3, 5]);
        assert_eq!(left(Sampling { top_k: 4, top_p: 0.3, ..Sampling::default() }), [1]);
        assert_eq!(left(Sampling { min_p: 0.3, ..Sampling::default() }), [1, 3, 5]);
    }

    #[test]
    fn top_p_of_many_is_that_of_all_sorted() {
        let mut logits: Vec<f32> =
            (0..5000u32).map(|id| ((id.wrapping_mul(2_654_435_761)) >> 20) as f32 / 4096.0).collect();
        let sampling = Sampling { top_p: 0.9, ..Sampling::default() };
        let mut ids: Vec<u32> = (0..5000).collect();
        ids.sort_unstable_by(|a, b| descending(&logits, *a, *b));
        let weight = |id: u32| f64::from(logits[id as usize]).exp();
        let all: f64 = ids.iter().map(|&id| weight(id)).sum();
        let mut sum = 0.0;
        let most = ids
            .iter()
            .position(|&id| {
                sum += weight(id);
                sum >= 0.9f32 as f64 * all
            })
            .unwrap();
        let kept = &ids[..=most];
        for nth in 0..2000 {
            let id = sampling.sample(&mut logits, &[], &[], nth).id;
            assert!(kept.contains(&id), "{id}");
        }
    }

    #[test]
    fn penalties_are_those_of_tokens_that_came() {
        let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
        let repeated = Sampling { repetition_penalty: 2.0, ..greedy.clone() };
        assert_eq!(repeated.sample(&mut logits(), &[1], &[], 0).id, 3);
        assert_eq!(repeated.sample(&mut logits(), &[1], &[3], 1).id, 5);
        let present = Sampling { presence_penalty: 1.5, ..greedy.clone() };
        assert_eq!(present.sample(&mut logits(), &[1, 3], &[1], 1).id, 3, "of the answer only");
        let frequent = Sampling { frequency_penalty: 0.6, ..greedy };
        assert_eq!(frequent.sample(&mut logits(), &[], &[1, 3], 2).id, 1);
        assert_eq!(frequent.sample(&mut logits(), &[], &[1, 3, 1, 3], 4).id, 5);
    }

    #[test]
    fn the_weights_exponential_is_e_to_the_power() {
        for nth in 0..70_000 {
            let x = -f64::from(nth) / 100.0;
            let off = (exp(x) - libm::exp(x)).abs() / libm::exp(x);
            assert!(off < 1e-9, "{x}: {} {}", exp(x), libm::exp(x));
        }
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f64::NEG_INFINITY) < 1e-300);
    }

    #[test]
    fn log_probabilities_are_the_model_s() {
        let sampling = Sampling { temperature: 0.0, bias: vec![(0, 100.0)], logprobs: Some(2), ..Sampling::default() };
        let token = sampling.sample(&mut logits(), &[], &[], 0);
        let sum: f64 = logits().iter().map(|&l| f64::from(l).exp()).sum();
        let logprobs = token.logprobs.unwrap();
        assert_eq!(token.id, 0);
        assert!((f64::from(logprobs.chosen) - (0.0 - sum.ln())).abs() < 1e-6);
        assert_eq!(logprobs.likeliest.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 3]);
    }
}
