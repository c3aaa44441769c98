//! SmolLM2's answers against those of `transformers` on the same weights, in singles
//! (tools/model/record.sh): 28 prompts of 1 to 2,000 tokens, 48 tokens each.

mod real_model;

use std::fs::File;
use std::path::Path as FilePath;

use flate2::read::GzDecoder;
use serde::Deserialize;
use serq_engine::kernels::{Compute, Path};
use serq_engine::kv::KvStore;
use serq_engine::model::{Model, Part, Runner};
use serq_engine::sampler::Sampling;
use serq_engine::workers::Workers;

#[derive(Deserialize)]
struct Recorded {
    stride: usize,
    prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
struct Prompt {
    name: String,
    ids: Vec<u32>,
    greedy: Vec<u32>,
    /// Of each token: how far the second largest logit is below it.
    margins: Vec<f32>,
    /// Every so many of the first token's logits.
    strided: Vec<f32>,
}

fn recorded() -> Recorded {
    let path = FilePath::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/engine/smollm2.json.gz");
    serde_json::from_reader(GzDecoder::new(File::open(path).unwrap())).unwrap()
}

/// Follows the recorded tokens. Answers the largest difference of a first token's logits, and of the
/// places where another token is the largest, the margin there was.
fn follow(model: &Model, recorded: &Recorded) -> (f32, Vec<(String, usize, f32)>) {
    let workers = Workers::new(1);
    let layout = model.kv_layout(16);
    let store = KvStore::new(layout, 150).unwrap();
    let table: Vec<u32> = (0..150).rev().collect();
    let mut runner = Runner::new(model, layout);
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    let (mut worst, mut others) = (0.0f32, Vec::new());
    for prompt in &recorded.prompts {
        // The recorded answer's tokens beside the prompt, in one step: what comes after each of them
        // is what would come if they were computed one after another.
        let mut parts = vec![Part { tokens: &prompt.ids, start: 0, blocks: &table, next: true }];
        let answer = prompt.greedy.chunks(1).zip(prompt.ids.len()..);
        parts.extend(answer.map(|(tokens, start)| Part { tokens, start, blocks: &table, next: true }));
        parts.pop();
        let logits = runner.step(model, &workers, &store, &parts);
        let rows = logits.chunks_exact_mut(model.config().vocabulary);
        for ((nth, logits), &expected) in rows.enumerate().zip(&prompt.greedy) {
            if nth == 0 {
                for (logit, expected) in logits.iter().step_by(recorded.stride).zip(&prompt.strided) {
                    worst = worst.max((logit - expected).abs());
                }
            }
            if greedy.sample(logits, &[], &[], nth).id != expected {
                others.push((prompt.name.clone(), nth, prompt.margins[nth]));
            }
        }
    }
    (worst, others)
}

/// In singles every token is the reference's, and logits differ by roundings.
#[test]
fn greedy_tokens_are_those_of_the_reference() {
    let Some(checkpoint) = real_model::smollm2() else { return };
    let recorded = recorded();
    assert!(recorded.prompts.len() >= 20 && recorded.prompts.iter().any(|prompt| prompt.ids.len() >= 1900));
    let model = Model::new(&checkpoint, Path::best(), Compute::F32);
    let (worst, others) = follow(&model, &recorded);
    println!("singles: logits off by at most {worst:e}");
    assert_eq!(others, [], "another token is the largest");
    assert!(worst < 1e-3, "logits are off by {worst}");
}

/// With activations rounded another token may be the largest, but only where two were close.
#[test]
fn rounded_activations_change_a_token_only_where_two_are_close() {
    let Some(checkpoint) = real_model::smollm2() else { return };
    let recorded = recorded();
    for (compute, most, bound) in [(Compute::Bf16, 0.01, 0.3), (Compute::Int8, 0.04, 0.5)] {
        let model = Model::new(&checkpoint, Path::best(), compute);
        let (worst, others) = follow(&model, &recorded);
        let all = recorded.prompts.iter().map(|prompt| prompt.greedy.len()).sum::<usize>();
        let widest = others.iter().map(|(_, _, margin)| *margin).fold(0.0, f32::max);
        println!(
            "{compute:?}: logits off by at most {worst}; {} of {all} tokens differ, at margins up to {widest}",
            others.len()
        );
        assert!((others.len() as f64) < most * all as f64 && widest < bound, "{compute:?}: {others:?}");
    }
}
