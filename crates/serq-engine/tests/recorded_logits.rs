//! Tiny models' logits against those of transformers on the same weights (tools/model/tiny.py):
//! folders in single and bfloat16, and a GGUF file in each format, dequantised for transformers.
//! A row in the wrong order, a wrong rotary factor or a wrong block would show as noise.

use std::fs::File;
use std::io::Read;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use flate2::read::GzDecoder;
use serde::Deserialize;
use serq_engine::kernels::{Compute, Path};
use serq_engine::kv::KvStore;
use serq_engine::model::{Model, Part, Runner};
use serq_engine::weights::Checkpoint;
use serq_engine::workers::Workers;

#[derive(Deserialize)]
struct Text {
    ids: Vec<u32>,
    positions: Vec<usize>,
    logits: Vec<Vec<f32>>,
}

#[derive(Deserialize)]
struct OfFile {
    texts: Vec<Text>,
}

fn path(name: &str) -> PathBuf {
    FilePath::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/engine").join(name)
}

fn unpacked(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    GzDecoder::new(File::open(path(name)).unwrap()).read_to_end(&mut bytes).unwrap();
    bytes
}

/// The largest difference of a logit, as a part of the logits' spread.
fn difference(checkpoint: &Checkpoint, texts: &[Text]) -> f32 {
    let model = Model::new(checkpoint, Path::best(), Compute::F32);
    let workers = Workers::new(1);
    let layout = model.kv_layout(16);
    let store = KvStore::new(layout, 8).unwrap();
    let table: Vec<u32> = (0..8).rev().collect();
    let mut runner = Runner::new(&model, layout);
    let mut worst = 0.0_f32;
    let mut compared = 0;
    for Text { ids, positions, logits } in texts {
        for (at, token) in ids.iter().enumerate() {
            let part = Part { tokens: &[*token], start: at, blocks: &table, next: true };
            let found = runner.step(&model, &workers, &store, &[part]).to_vec();
            let Some(expected) = positions.iter().position(|&position| position == at).map(|row| &logits[row]) else {
                continue;
            };
            let mean = expected.iter().sum::<f32>() / expected.len() as f32;
            let spread =
                (expected.iter().map(|logit| (logit - mean).powi(2)).sum::<f32>() / expected.len() as f32).sqrt();
            let differences = found.iter().zip(expected).map(|(found, expected)| (found - expected).abs());
            worst = differences.fold(worst, |worst, difference| worst.max(difference / spread));
            compared += 1;
        }
    }
    assert!(compared > 4, "something was compared");
    worst
}

#[test]
fn folders_compute_what_transformers_does() {
    for name in ["llama", "qwen3"] {
        let checkpoint = Checkpoint::open(path(name)).unwrap();
        let texts: Vec<Text> = serde_json::from_slice(&unpacked(&format!("{name}/logits.json.gz"))).unwrap();
        let worst = difference(&checkpoint, &texts);
        println!("{name}: {worst:e}");
        assert!(worst < 1e-4, "{name}: {worst:e}");
    }
}

#[test]
fn gguf_files_compute_what_transformers_does() {
    let llama = ["f16", "bf16", "q8_0", "q4_0", "q4_1", "q4_k", "q6_k"].map(|format| format!("llama_{format}"));
    for name in llama.into_iter().chain(["qwen3_q8_0".to_owned()]) {
        let bytes = unpacked(&format!("gguf/{name}.gguf.gz"));
        let checkpoint = Checkpoint::of_gguf(Arc::new(bytes), &name).unwrap();
        let recorded: OfFile = serde_json::from_slice(&unpacked(&format!("gguf/{name}.json.gz"))).unwrap();
        let worst = difference(&checkpoint, &recorded.texts);
        println!("{name}: {worst:e}");
        assert!(worst < 1e-4, "{name}: {worst:e}");
    }
}
