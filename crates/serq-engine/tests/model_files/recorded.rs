//! What other programs recorded of the same files (`tools/model/`).

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

use flate2::read::GzDecoder;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serq_engine::weights::{Architecture, Checkpoint, LayerWeight, Stored, Tensor, Weight};
use sha2::{Digest, Sha256};

use super::gguf_writer::name;
use super::real_model;

/// A file of the recordings.
pub(crate) fn path(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/engine")).join(name)
}

/// A gzipped file's bytes.
pub(crate) fn unpacked(name: &str) -> Vec<u8> {
    let file = fs::File::open(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut bytes = Vec::new();
    GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    bytes
}

/// A gzipped JSON file.
pub(crate) fn json<T: DeserializeOwned>(name: &str) -> T {
    serde_json::from_slice(&unpacked(name)).unwrap()
}

/// A gzipped GGUF file.
pub(crate) fn gguf(name: &str) -> Checkpoint {
    Checkpoint::of_gguf(Arc::new(unpacked(name)), name).unwrap()
}

/// SHA-256 of a matrix in singles, row by row.
fn fingerprint(tensor: &Tensor) -> String {
    let mut hash = Sha256::new();
    let mut numbers = vec![0.0; tensor.columns()];
    for row in 0..tensor.rows() {
        tensor.row_f32(row, &mut numbers);
        numbers.iter().for_each(|number| hash.update(number.to_le_bytes()));
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[derive(Deserialize)]
struct Quantised {
    tensors: BTreeMap<String, Print>,
}

#[derive(Deserialize)]
struct Print {
    format: String,
    sha256: String,
}

/// Files by llama.cpp's converter and quantiser: each format's numbers are gguf-py's, bit for
/// bit, and query and key rows are in the order transformers has them.
#[test]
fn every_formats_numbers_are_the_recorded_bits() {
    let mut formats = Vec::new();
    for file in ["llama_f16", "llama_bf16", "llama_q8_0", "llama_q4_0", "llama_q4_1", "llama_q4_k", "llama_q6_k"] {
        formats.push(check_quantised(file, Architecture::Llama));
    }
    formats.push(check_quantised("qwen3_q8_0", Architecture::Qwen3));
    for stored in Stored::ALL {
        assert!(stored == Stored::F32 || formats.contains(&stored), "{} was looked at", stored.name());
    }
}

fn check_quantised(file: &str, architecture: Architecture) -> Stored {
    let model = gguf(&format!("gguf/{file}.gguf.gz"));
    let Quantised { tensors } = json(&format!("gguf/{file}.json.gz"));
    assert_eq!(model.config.architecture, architecture);
    assert_eq!(tensors.len(), model.config.weights().count());
    for weight in model.config.weights() {
        let (tensor, recorded) = (model.tensor(weight), &tensors[&name(weight)]);
        assert_eq!(tensor.stored().name(), recorded.format, "{file}: {weight:?}");
        assert_eq!(fingerprint(&tensor), recorded.sha256, "{file}: {weight:?}");
    }
    model.tensor(Weight::Layer(0, LayerWeight::Query)).stored()
}

/// Llama 3's factors by llama.cpp's converter, and from `config.json` here.
#[test]
fn rotary_factors_are_the_converters() {
    let converted = gguf("gguf/llama_q8_0.gguf.gz").config.rope_divisors;
    assert_eq!(converted.len(), 16);
    let folder = Checkpoint::open(path("llama")).unwrap().config;
    assert_eq!(folder.rope_divisors.len(), 8);
    // Half as many pairs with the same base: each second one turns the same.
    for (one, other) in folder.rope_divisors.iter().zip(converted.iter().step_by(2)) {
        assert!((one / other - 1.0).abs() < 1e-5, "{:?} and {converted:?}", folder.rope_divisors);
    }
}

/// As transformers 5 writes them: singles in one file, and bfloat16 in three.
#[test]
fn folders_by_transformers_are_read() {
    let llama = Checkpoint::open(path("llama")).unwrap();
    let query = |model: &Checkpoint| model.tensor(Weight::Layer(1, LayerWeight::Query));
    assert_eq!((query(&llama).stored(), llama.config.tied_embedding), (Stored::F32, false));
    let qwen3 = Checkpoint::open(path("qwen3")).unwrap();
    assert_eq!((query(&qwen3).stored(), qwen3.config.tied_embedding), (Stored::Bf16, true));
    assert_eq!((query(&qwen3).rows(), query(&qwen3).columns()), (64, 32));
    assert_eq!((qwen3.config.rope_base, qwen3.config.eos), (1e6, [95].into()));
}

#[derive(Deserialize)]
struct Real {
    tensors: BTreeMap<String, String>,
}

#[test]
fn smollm2s_numbers_are_the_recorded_bits() {
    let Some(model) = real_model::smollm2() else { return };
    let Real { tensors } = json("smollm2.json.gz");
    assert_eq!(tensors.len(), 2 + 3 * 9);
    let checked = model.config.weights().filter_map(|weight| Some((weight, tensors.get(&name(weight))?)));
    let count = checked.map(|(weight, print)| assert_eq!(&fingerprint(&model.tensor(weight)), print, "{weight:?}"));
    assert_eq!(count.count(), tensors.len());
}
