//! A real model, on a prefill and a decode instance, against the same model in one piece.

use std::fs;
use std::sync::Arc;

use serq_engine::instances::LocalInstances;
use serq_engine::kernels::{Compute, Path};
use serq_engine::kv::KvStore;
use serq_engine::model::{Model, Part, Runner};
use serq_engine::model_files::{self, KNOWN, ModelError};
use serq_engine::sampler::Sampling;
use serq_engine::service::Service;
use serq_engine::weights::{Architecture, Checkpoint, ModelConfig};
use serq_engine::workers::Workers;

use crate::{PAIR, Random, ask_for, collect, compiled, nothing_is_left, root};

/// The answer as one text alone, token by token, in one block.
pub(crate) fn alone(model: &Model, prompt: &[u32], max_tokens: usize, sampling: &Sampling) -> Vec<u32> {
    let workers = Workers::new(1);
    let layout = model.kv_layout(prompt.len() + max_tokens);
    let store = KvStore::new(layout, 1).unwrap();
    let mut runner = Runner::new(model, layout);
    let (mut tokens, mut computed) = (prompt.to_vec(), 0);
    for nth in 0..max_tokens {
        let part = Part { tokens: &tokens[computed..], start: computed, blocks: &[0], next: true };
        let logits = runner.step(model, &workers, &store, &[part]);
        let token = sampling.sample(logits, prompt, &tokens[prompt.len()..], nth).id;
        computed = tokens.len();
        tokens.push(token);
        if sampling.ends.contains(&token) {
            break;
        }
    }
    tokens.split_off(prompt.len())
}

fn samplings(nth: u64) -> Sampling {
    match nth % 3 {
        0 => Sampling { temperature: 0.0, ..Sampling::default() },
        1 => Sampling { temperature: 0.8, top_p: 0.9, top_k: 40, seed: nth, ..Sampling::default() },
        // Some ids end it.
        _ => Sampling {
            temperature: 1.2,
            seed: nth,
            frequency_penalty: 0.5,
            repetition_penalty: 1.1,
            ends: (0..30).collect(),
            ..Sampling::default()
        },
    }
}

/// Preemptions of the prefiller's and of the decoder's requests.
type Preemptions = [u64; 2];

fn pair(checkpoint: &Checkpoint, compute: Compute, sets: &[(&str, String)], requests: u64, seed: u64) -> Preemptions {
    let model = Arc::new(Model::new(checkpoint, Path::best(), compute));
    // Prompts of one instance are computed beside each other, a few tokens of each in a step: so they
    // meet when room gets short.
    let path = root().join(PAIR);
    let text = fs::read_to_string(&path).unwrap().replace("budget B;", "budget B; chunk 12;");
    let served = compiled(&path, &text, sets);
    let instances = LocalInstances::new(&served, &model, 2, u64::MAX).unwrap();
    let service = Service::start(served, Box::new(instances), None);
    let mut random = Random(seed);
    let mut asked = Vec::new();
    let mut texts: Vec<Vec<u32>> = Vec::new();
    for nth in 0..requests {
        let length = 1 + random.below(100) as usize;
        let mut prompt: Vec<u32> = (0..length).map(|_| random.below(250) as u32).collect();
        if random.below(2) == 0 && !texts.is_empty() {
            let mut longer = texts[random.below(texts.len() as u64) as usize].clone();
            longer.extend(&prompt[..prompt.len().min(10)]);
            prompt = longer;
        }
        texts.push(prompt.clone());
        texts.last_mut().unwrap().truncate(100);
        let max_tokens = 1 + random.below(24) as usize;
        let sampling = samplings(nth);
        asked.push((ask_for(&service, prompt, max_tokens, vec![sampling.clone()]), sampling));
    }
    for (one, sampling) in &asked {
        let answers = collect(one).0;
        assert_eq!(
            answers[&0],
            alone(&model, &one.prompt, one.max_tokens, sampling),
            "a prompt of {}",
            one.prompt.len()
        );
    }
    nothing_is_left(&service);
    let look = service.look().unwrap();
    ["P.kv", "D.kv"].map(|name| {
        let pool = look.pools.iter().find(|pool| pool.name == name).expect("the instances' pools");
        pool.counts.preemptions
    })
}

/// Blocks of every two sizes, chunks, prefixes, preemption on both sides: token for token.
#[test]
fn prefill_here_and_decode_there_says_what_one_instance_says() {
    let llama = Checkpoint::tiny(7);
    let qwen = Checkpoint::random(ModelConfig::tiny(Architecture::Qwen3), 8);
    let (mut nth, mut preemptions) = (0, [0, 0]);
    for from in [1u64, 8, 16, 32, 48, 128] {
        for to in [1u64, 8, 16, 32, 48, 128] {
            nth += 1;
            let (checkpoint, compute) = match nth % 4 {
                0 => (&qwen, Compute::F32),
                1 => (&llama, Compute::Bf16),
                2 => (&llama, Compute::F32),
                _ => (&llama, Compute::Int8),
            };
            // What the longest needs, and not much more.
            let (tokens, tokens_prefill) = (220, 140);
            let sets = [
                ("bsP", from.to_string()),
                ("bsD", to.to_string()),
                ("blocksP", (tokens_prefill / from + 1).to_string()),
                ("blocksD", (tokens / to + 1).to_string()),
                ("thr", ["1", "20"][nth as usize % 2].to_owned()),
                ("B", ["32", "512"][nth as usize / 2 % 2].to_owned()),
            ];
            let found = pair(checkpoint, compute, &sets, 24, nth);
            preemptions = [preemptions[0] + found[0], preemptions[1] + found[1]];
        }
    }
    assert!(preemptions.iter().all(|&count| count > 0), "of both, some lost their blocks: {preemptions:?}");
}

/// Two hundred at once.
#[test]
fn two_hundred_at_once_say_what_each_says_alone() {
    pair(&Checkpoint::tiny(9), Compute::Bf16, &[("seats", "64".into()), ("thr", "16".into())], 200, 99);
}

/// The real model, for a part of the pairs: each size once on either side.
#[test]
fn smollm2_says_here_and_there_what_it_says_alone() {
    let checkpoint = match model_files::open(KNOWN[0].name) {
        Ok(checkpoint) => checkpoint,
        Err(error @ ModelError::NotFetched(_)) if std::env::var_os("SERQ_NEED_MODELS").is_none() => {
            eprintln!("\nSKIPPED, NOTHING WAS TESTED: {error}\n");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let pairs = [(1u64, 128u64), (8, 48), (16, 32), (32, 16), (48, 8), (128, 1)];
    for (nth, (from, to)) in pairs.into_iter().enumerate() {
        let compute = [Compute::Int8, Compute::Bf16][nth % 2];
        let sets = [
            ("bsP", from.to_string()),
            ("bsD", to.to_string()),
            ("blocksP", (400 / from + 1).to_string()),
            ("blocksD", (400 / to + 1).to_string()),
            ("thr", "8".to_owned()),
            ("B", "64".to_owned()),
        ];
        pair(&checkpoint, compute, &sets, 6, nth as u64);
    }
}
