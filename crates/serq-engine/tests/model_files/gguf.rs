//! GGUF files.

use std::sync::Arc;

use serq_engine::weights::{Architecture, Checkpoint, LayerWeight, Trouble, Weight};

use super::gguf_writer::{Gguf, Value};
use super::{assert_same, numbers, small};

fn read(file: &Gguf) -> Result<Checkpoint, Trouble> {
    of_bytes(file.bytes())
}

fn of_bytes(bytes: Vec<u8>) -> Result<Checkpoint, Trouble> {
    Checkpoint::of_gguf(Arc::new(bytes), "memory").map_err(|error| error.trouble)
}

/// The sentence a changed file is refused with.
fn refused(architecture: Architecture, change: impl FnOnce(&mut Gguf)) -> String {
    let mut file = Gguf::of(&small(architecture));
    change(&mut file);
    match read(&file) {
        Ok(_) => panic!("the file is read"),
        Err(trouble) => trouble.to_string(),
    }
}

/// With Llama's rows in pairs and Qwen3's not; with rotary factors; with and without an
/// output matrix of its own.
#[test]
fn a_model_written_is_the_model_read() {
    for architecture in [Architecture::Llama, Architecture::Qwen3] {
        let mut model = small(architecture);
        model.config.eos = [258].into();
        let file = Gguf::of(&model);
        assert_same(&model, &read(&file).unwrap());
        assert_same(&model, &read(&Gguf { version: 2, ..file.clone() }).unwrap());

        let tied = read(&Gguf {
            tensors: file.tensors.into_iter().filter(|tensor| tensor.name != "output.weight").collect(),
            ..file
        })
        .unwrap();
        assert!(tied.config.tied_embedding);
        assert_eq!(numbers(&tied.tensor(Weight::Output)), numbers(&model.tensor(Weight::Embedding)));
    }
}

#[test]
fn half_formats_are_read() {
    let model = small(Architecture::Llama);
    for (format, round) in [
        (1, (|number| half::f16::from_f32(number).to_le_bytes()) as fn(f32) -> [u8; 2]),
        (30, |number| half::bf16::from_f32(number).to_le_bytes()),
    ] {
        let mut file = Gguf::of(&model);
        for tensor in &mut file.tensors {
            let singles = tensor.bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            (tensor.format, tensor.bytes) = (format, singles.flat_map(round).collect());
        }
        let read = read(&file).unwrap();
        for weight in [Weight::Embedding, Weight::Layer(1, LayerWeight::Key)] {
            let expected = numbers(&model.tensor(weight));
            for (found, expected) in numbers(&read.tensor(weight)).into_iter().zip(expected) {
                assert!((found - expected).abs() <= expected.abs() / 256.0, "{found} for {expected}");
            }
        }
    }
}

#[test]
fn what_cannot_be_run_is_refused_by_name() {
    let llama = |change: fn(&mut Gguf)| refused(Architecture::Llama, change);
    for (sentence, expected) in [
        (llama(|file| file.version = 4), "not supported: GGUF version 4"),
        (llama(|file| file.version = 3_u32.swap_bytes()), "not supported: a big-endian GGUF file"),
        (
            llama(|file| file.set("general.architecture", Value::Text("rwkv7".into()))),
            "not supported: the architecture `rwkv7`, only llama and qwen3 are",
        ),
        (llama(|file| file.set("split.count", Value::U32(3))), "not supported: a GGUF model split into 3 files"),
        (
            llama(|file| file.set("llama.expert_count", Value::U32(8))),
            "not supported: the key `llama.expert_count` is 8",
        ),
        (
            llama(|file| file.set("llama.rope.scaling.type", Value::Text("yarn".into()))),
            "not supported: rotary scaling of the type `yarn`",
        ),
        (
            llama(|file| file.set("llama.rope.dimension_count", Value::U32(4))),
            "not supported: the key `llama.rope.dimension_count` is 4 where a head has 8",
        ),
        (
            llama(|file| {
                let mut bias = file.tensors[3].clone();
                bias.name = "blk.0.attn_q.bias".into();
                file.tensors.push(bias);
            }),
            "not supported: the tensor `blk.0.attn_q.bias`: no bias is added",
        ),
        (
            llama(|file| file.tensors[3].format = 21),
            "not supported: the tensor `blk.0.attn_norm.weight` is stored in the format IQ3_S",
        ),
        (
            llama(|file| file.tensors[3].format = 99),
            "not supported: the tensor `blk.0.attn_norm.weight` is stored in the format number 99",
        ),
        (
            refused(Architecture::Qwen3, |file| {
                file.set("general.architecture", Value::Text("llama".into()));
                for (key, _) in &mut file.keys {
                    *key = key.replace("qwen3.", "llama.");
                }
            }),
            "not supported: the tensor `blk.0.attn_k_norm.weight`: it belongs to another architecture",
        ),
    ] {
        assert_eq!(sentence, expected);
    }
}

#[test]
fn what_is_wrong_is_told_by_name() {
    let llama = |change: fn(&mut Gguf)| refused(Architecture::Llama, change);
    for (sentence, expected) in [
        (
            llama(|file| file.keys.retain(|(key, _)| key != "llama.block_count")),
            "damaged: the key `llama.block_count` is missing",
        ),
        (
            llama(|file| file.set("llama.block_count", Value::Text("two".into()))),
            "not supported: the key `llama.block_count` is not a whole number of 0 or more",
        ),
        (llama(|file| file.set("llama.block_count", Value::U32(3))), "the tensor `blk.2.attn_norm.weight` is missing"),
        (llama(|file| file.set("llama.block_count", Value::U32(0))), "damaged: layers is 0"),
        (
            llama(|file| file.set("llama.feed_forward_length", Value::U32(100))),
            "the tensor `blk.0.ffn_gate.weight` is 128 × 32, by the configuration it is 100 × 32",
        ),
        (
            llama(|file| file.set("llama.attention.head_count_kv", Value::U32(4))),
            "damaged: 6 attention heads share 4 key and value heads",
        ),
        (
            llama(|file| file.set("llama.attention.layer_norm_rms_epsilon", Value::F32(f32::NAN))),
            "damaged: the norms' epsilon is NaN",
        ),
        (
            llama(|file| file.set("tokenizer.ggml.eos_token_id", Value::U32(259))),
            "damaged: the end token 259 is outside the vocabulary of 259",
        ),
        (
            llama(|file| file.set("tokenizer.ggml.tokens", Value::Texts(vec!["a".into()]))),
            "damaged: the embedding has 259 rows and the tokens are 1",
        ),
        (
            llama(|file| file.tensors[3].name = "token_embd.weight".into()),
            "damaged: the tensor `token_embd.weight` is there twice",
        ),
        (llama(|file| file.tensors[3].columns = 0), "damaged: the tensor `blk.0.attn_norm.weight` has no numbers"),
        (
            llama(|file| (file.tensors[3].columns, file.tensors[3].rows) = (1 << 40, 1 << 40)),
            "damaged: the tensor `blk.0.attn_norm.weight`: 1099511627776 × 1099511627776 numbers are more \
             than memory can name",
        ),
        (
            llama(|file| file.tensors.last_mut().unwrap().columns = 3),
            "the tensor `rope_freqs.weight` is 1 × 3, by the configuration it is 1 × 4",
        ),
    ] {
        assert_eq!(sentence, expected);
    }
}

/// Every end the file may have been cut to.
#[test]
fn a_file_that_ends_too_early_is_refused() {
    let whole = Gguf::of(&small(Architecture::Llama)).bytes();
    let header = whole.len() - 1000;
    for length in (0..4000).chain((4000..header).step_by(997)).chain(header..whole.len()) {
        let trouble = of_bytes(whole[..length].to_vec()).err().expect("refused");
        assert!(matches!(trouble, Trouble::Damaged(_)), "cut to {length}: {trouble}");
    }
}

/// Bytes of the header replaced by what has broken readers before: nothing panics, and no
/// count is believed beyond the file.
#[test]
fn no_change_of_a_header_breaks_the_reader() {
    let mut file = Gguf::of(&small(Architecture::Qwen3));
    file.set("tokenizer.ggml.token_type", Value::I32s(vec![1; 259]));
    let whole = file.bytes();
    let header = 6000.min(whole.len());
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut draw = |below: usize| {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (random >> 33) as usize % below
    };
    let mut outcomes = [0, 0];
    for _ in 0..20_000 {
        let mut bytes = whole.clone();
        for _ in 0..=draw(3) {
            let at = draw(header);
            match draw(4) {
                0 => bytes[at] = draw(256) as u8,
                1 => bytes[at] ^= 1 << draw(8),
                2 => bytes[at..at + 8].copy_from_slice(&[u64::MAX, u64::MAX / 2, 1 << 40, 0][draw(4)].to_le_bytes()),
                _ => bytes.truncate(bytes.len() - draw(200)),
            }
        }
        outcomes[usize::from(of_bytes(bytes).is_ok())] += 1;
    }
    assert!(outcomes.iter().all(|&outcome| outcome > 1000), "both happen: {outcomes:?}");
}
