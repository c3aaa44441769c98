//! How many prefill and decode instances a load needs: xPyD.
//!
//! Averages over rates, rounded up. An instance that is all but fully busy keeps up on average
//! and lets a queue grow for as long as a burst lasts: `headroom` leaves a part of it idle, and
//! only a run (`serq run`) shows the queue.
//!
//! # Invariants
//!
//! - At least one instance of each kind.
//! - Without headroom, `busy ≤ 1`; with it, `busy ≤ 1 − headroom`; up to rounding.

use serde::Serialize;

/// What is asked.
pub(crate) struct Question {
    /// Requests a second.
    pub(crate) rate: f64,
    /// Mean tokens of a prompt; an answer each.
    pub(crate) prompts: Vec<u64>,
    /// Mean tokens of an answer.
    pub(crate) output: u64,
    /// Prompt tokens a second, of one prefill instance.
    pub(crate) prefill_rate: f64,
    /// Output tokens a second, of one decode instance within its TPOT.
    pub(crate) decode_rate: f64,
    /// Part of the prompt that the prefill instance has in its cache.
    pub(crate) hit: f64,
    /// Part of an instance that stays idle.
    pub(crate) headroom: f64,
    pub(crate) memory: Option<Memory>,
}

/// What a decode instance can hold.
pub(crate) struct Memory {
    /// Tokens of its KV pool.
    pub(crate) pool: u64,
    /// Between two tokens of a request, s.
    pub(crate) tpot_s: f64,
}

/// For one prompt length.
#[derive(Debug, Serialize)]
pub(crate) struct Answer {
    pub(crate) prompt: u64,
    /// `3P3D`.
    pub(crate) ratio: String,
    pub(crate) prefill: Need,
    pub(crate) decode: Need,
    /// Of the decode pools; it counts where it asks for more than `decode`.
    pub(crate) memory: Option<Need>,
    pub(crate) prefill_instances: f64,
    pub(crate) decode_instances: f64,
    pub(crate) prefill_busy: f64,
    pub(crate) decode_busy: f64,
}

/// A demand against what one instance supplies.
#[derive(Debug, Serialize)]
pub(crate) struct Need {
    /// Tokens a second; of memory, tokens.
    pub(crate) demand: f64,
    pub(crate) supply: f64,
    /// Their quotient, headroom minded.
    pub(crate) instances_exact: f64,
    pub(crate) instances: f64,
}

impl Need {
    fn of(demand: f64, supply: f64, headroom: f64) -> Self {
        let exact = demand / (supply * (1.0 - headroom));
        // A need of 3.0000000000000004 instances is 3, computed in doubles.
        let instances = (exact * (1.0 - 1e-9)).ceil().max(1.0);
        Self { demand, supply, instances_exact: exact, instances }
    }
}

/// Computes.
pub(crate) fn answers(question: &Question) -> Vec<Answer> {
    question.prompts.iter().map(|&prompt| answer(question, prompt)).collect()
}

fn answer(question: &Question, prompt: u64) -> Answer {
    let (rate, headroom, output) = (question.rate, question.headroom, question.output as f64);
    let prefill = Need::of(rate * prompt as f64 * (1.0 - question.hit), question.prefill_rate, headroom);
    let decode = Need::of(rate * output, question.decode_rate, headroom);
    // A request is there for its whole answer, with half of it on average.
    let memory = question.memory.as_ref().map(|memory| {
        Need::of(rate * output * memory.tpot_s * (prompt as f64 + output / 2.0), memory.pool as f64, headroom)
    });
    let (prefill_instances, by_rate) = (prefill.instances, decode.instances);
    let decode_instances = memory.as_ref().map_or(by_rate, |memory| memory.instances.max(by_rate));
    Answer {
        prompt,
        ratio: format!("{prefill_instances:.0}P{decode_instances:.0}D"),
        prefill_busy: prefill.demand / (prefill.supply * prefill_instances),
        decode_busy: decode.demand / (decode.supply * decode_instances),
        prefill,
        decode,
        memory,
        prefill_instances,
        decode_instances,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question() -> Question {
        Question {
            rate: 30.0,
            prompts: vec![2000, 8000],
            output: 300,
            prefill_rate: 20_000.0,
            decode_rate: 3000.0,
            hit: 0.0,
            headroom: 0.0,
            memory: None,
        }
    }

    fn ratios(question: &Question) -> Vec<String> {
        answers(question).into_iter().map(|answer| answer.ratio).collect()
    }

    #[test]
    fn the_exercise() {
        assert_eq!(ratios(&question()), ["3P3D", "12P3D"]);
    }

    #[test]
    fn headroom_hits_and_memory_move_it() {
        assert_eq!(ratios(&Question { headroom: 0.2, ..question() }), ["4P4D", "15P4D"]);
        assert_eq!(ratios(&Question { hit: 0.5, ..question() }), ["2P3D", "6P3D"]);
        // 30 · 300 · 0.05 s = 450 requests at once, of 2150 and 8150 tokens.
        let memory = Some(Memory { pool: 160_000, tpot_s: 0.05 });
        assert_eq!(ratios(&Question { memory, ..question() }), ["3P7D", "12P23D"]);
        assert_eq!(ratios(&Question { rate: 1e-6, ..question() }), ["1P1D", "1P1D"]);
    }

    #[test]
    fn a_quotient_that_is_whole_but_for_rounding_is_whole() {
        // 0.1 · 3 is more than 0.3 in doubles.
        assert_eq!(Need::of(0.1 * 3.0, 0.1, 0.0).instances, 3.0);
        assert_eq!(Need::of(3.001, 1.0, 0.0).instances, 4.0);
    }
}
