//! How fast a model computes: a prompt of 512 tokens, and one token of each of several texts.
//!
//! ```sh
//! cargo run --release -p serq-engine --example model_bench -- --model smollm2-135m --compute bf16
//! ```
//!
//! Prints a line a figure: its name, the tokens a second of the quickest and of the median repetition.
//! benches/engine.py runs it beside llama.cpp.

use std::env;
use std::time::Instant;

use serq_engine::kernels::{Compute, Path};
use serq_engine::kv::KvStore;
use serq_engine::model::{Model, Part, Runner};
use serq_engine::model_files;
use serq_engine::workers::Workers;

fn main() {
    let mut arguments = env::args().skip(1);
    let (mut name, mut compute, mut threads, mut repetitions) = ("tiny".to_owned(), "bf16".to_owned(), 2, 5);
    while let Some(flag) = arguments.next() {
        let value = arguments.next().unwrap_or_default();
        match flag.as_str() {
            "--model" => name = value,
            "--compute" => compute = value,
            "--threads" => threads = value.parse().expect("a number of threads"),
            "--repetitions" => repetitions = value.parse().expect("a number of repetitions"),
            other => panic!("{other} is no flag: --model, --compute, --threads, --repetitions"),
        }
    }
    let checkpoint = model_files::open(&name).unwrap_or_else(|error| panic!("{error}"));
    let compute = match compute.as_str() {
        "f32" => Compute::F32,
        "bf16" => Compute::Bf16,
        "int8" => Compute::Int8,
        other => panic!("{other} is none of f32, bf16, int8"),
    };
    let model = Model::new(&checkpoint, Path::best(), compute);
    let workers = Workers::new(threads);
    let vocabulary = model.config().vocabulary as u32;
    let token = |at: usize| (at as u32 * 7919 + 11) % vocabulary;
    let layout = model.kv_layout(16);
    const PROMPT: usize = 512;
    const STEPS: usize = 64;
    const TEXTS: usize = 16;
    const SERVED: usize = 264;
    let blocks = (PROMPT + STEPS).div_ceil(16);
    let store = KvStore::new(layout, blocks * TEXTS).unwrap();
    let tables: Vec<Vec<u32>> =
        (0..TEXTS).map(|text| (0..blocks).map(|at| (text * blocks + at) as u32).collect()).collect();
    let mut runner = Runner::new(&model, layout);
    let prompt: Vec<u32> = (0..PROMPT).map(token).collect();
    let measure = |name: &str, tokens: usize, runner: &mut Runner, once: &mut dyn FnMut(&mut Runner)| {
        once(runner);
        let mut seconds: Vec<f64> = (0..repetitions)
            .map(|_| {
                let began = Instant::now();
                once(runner);
                began.elapsed().as_secs_f64()
            })
            .collect();
        seconds.sort_by(f64::total_cmp);
        let rate = |seconds: f64| tokens as f64 / seconds;
        println!("{name} {:.1} {:.1}", rate(seconds[0]), rate(seconds[seconds.len() / 2]));
    };
    measure("prefill_512", PROMPT, &mut runner, &mut |runner| {
        let part = Part { tokens: &prompt, start: 0, blocks: &tables[0], next: true };
        runner.step(&model, &workers, &store, &[part]);
    });
    // As llama-bench does: from an empty text on. The last are as long as what benches/engine.py has served.
    for (name, texts, steps) in
        [("decode_1", 1, STEPS), ("decode_8", 8, STEPS), ("decode_16", 16, STEPS), ("decode_16_long", 16, SERVED)]
    {
        measure(name, texts * steps, &mut runner, &mut |runner| {
            for at in 0..steps {
                let next = [token(at)];
                let parts: Vec<Part<'_>> = tables[..texts]
                    .iter()
                    .map(|blocks| Part { tokens: &next, start: at, blocks, next: true })
                    .collect();
                runner.step(&model, &workers, &store, &parts);
            }
        });
    }
    println!("weights_bytes {} {}", model.bytes(), model.bytes());
}
