//! Hugging Face folders.

use serde_json::{Value, json};
use serq_engine::weights::{Architecture, Checkpoint, ModelConfig};

use super::folder_writer::Folder;
use super::{assert_same, small};

/// As `small`, with nothing a folder's configuration says otherwise.
fn model(architecture: Architecture) -> Checkpoint {
    Checkpoint::random(ModelConfig { rope_divisors: Vec::new(), ..small(architecture).config }, 5)
}

/// The sentence a changed folder is refused with, without the folder's name.
fn refused(test: &str, change: impl FnOnce(&Folder)) -> String {
    let folder = Folder::of(&model(Architecture::Llama), 1, test);
    change(&folder);
    match Checkpoint::open(folder.path()) {
        Ok(_) => panic!("the folder is read"),
        Err(error) => error.to_string().replace(folder.path().to_str().unwrap(), "model"),
    }
}

#[test]
fn a_model_in_one_file_or_several_is_read() {
    for architecture in [Architecture::Llama, Architecture::Qwen3] {
        let model = model(architecture);
        for files in [1, 3] {
            let folder = Folder::of(&model, files, &format!("read-{files}-{architecture:?}"));
            assert_same(&model, &Checkpoint::open(folder.path()).unwrap());
        }
    }
}

/// An output matrix that is written and by the configuration not used, rotary frequencies in
/// the file, an end in another file: all as transformers takes them.
#[test]
fn what_others_write_is_read_as_they_read_it() {
    let model = model(Architecture::Qwen3);
    let folder = Folder::of(&model, 1, "others");
    let open = || Checkpoint::open(folder.path()).unwrap();
    folder.change("config.json", |config| config["tie_word_embeddings"] = true.into());
    assert!(open().config.tied_embedding);
    folder.change("config.json", |config| config["tie_word_embeddings"] = Value::Null);
    assert!(!open().config.tied_embedding, "there is an output matrix");

    folder.change("config.json", |config| config["eos_token_id"] = 3.into());
    folder.write("generation_config.json", json!({ "eos_token_id": [3, 5] }).to_string());
    assert_eq!(open().config.eos, [3, 5].into());
}

/// Llama 3's factors, by hand: with an old context of 2π·64, a base of 10⁴ and four pairs, the
/// pairs turn 64, 6.4, 0.64 and 0.064 times. Above 8 nothing changes, below 0.4 the factor divides;
/// 6.4 is (6.4 − 0.4) / 7.6 of the way, 0.64 is 0.24 / 7.6.
#[test]
fn llama_3s_rotary_scaling_is_read_in_old_words_and_new() {
    let model = model(Architecture::Llama);
    let blended = |way: f64| (1.0 / ((1.0 - way) / 4.0 + way)) as f32;
    let expected = [1.0, blended(6.0 / 7.6), blended(0.24 / 7.6), 4.0];
    let scaling = json!({
        "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 0.4, "high_freq_factor": 8.0,
        "original_max_position_embeddings": 64.0 * std::f64::consts::TAU,
    });
    let folder = Folder::of(&model, 1, "rotary");
    folder.change("config.json", |config| config["rope_scaling"] = scaling.clone());
    let old = Checkpoint::open(folder.path()).unwrap().config;
    folder.change("config.json", |config| {
        config["rope_scaling"] = Value::Null;
        config["rope_theta"] = Value::Null;
        config["rope_parameters"] = scaling;
        config["rope_parameters"]["rope_theta"] = 10_000.into();
    });
    let new = Checkpoint::open(folder.path()).unwrap().config;
    assert_eq!(old, new);
    for (found, expected) in old.rope_divisors.iter().zip(expected) {
        assert!((found / expected - 1.0).abs() < 1e-6, "{:?}", old.rope_divisors);
    }
}

#[test]
fn what_cannot_be_run_is_refused_by_name() {
    let config = |test: &str, key: &str, value: Value| {
        refused(test, |folder| folder.change("config.json", |config| config[key] = value))
    };
    for (sentence, expected) in [
        (
            config("refused-1", "architectures", json!(["MambaForCausalLM"])),
            "model/config.json: not supported: the architecture `MambaForCausalLM`, only LlamaForCausalLM and \
             Qwen3ForCausalLM are",
        ),
        (
            config("refused-2", "attention_bias", true.into()),
            "model/config.json: not supported: attention_bias is true",
        ),
        (config("refused-3", "hidden_act", "gelu".into()), "model/config.json: not supported: the activation `gelu`"),
        (
            config("refused-4", "rope_scaling", json!({ "type": "yarn", "factor": 4.0 })),
            "model/config.json: not supported: rotary scaling of the type `yarn`",
        ),
        (
            config("refused-5", "rope_scaling", json!({ "rope_type": "llama3", "factor": 4.0 })),
            "model/config.json: damaged: rotary scaling of the type `llama3` needs low_freq_factor",
        ),
        (
            config("refused-6", "quantization_config", json!({ "quant_method": "gptq" })),
            "model/config.json: not supported: weights quantised by gptq",
        ),
        (
            config("refused-7", "layer_types", json!(["full_attention", "sliding_attention"])),
            "model/config.json: not supported: a layer of the type `sliding_attention`",
        ),
        (
            config("refused-8", "num_hidden_layers", json!(-1)),
            "model/config.json: damaged: invalid value: integer `-1`, expected usize",
        ),
        (
            config("refused-9", "num_hidden_layers", json!(3)),
            "model: the tensor `model.layers.2.input_layernorm.weight` is missing",
        ),
        (
            config("refused-10", "intermediate_size", json!(64)),
            "model: the tensor `model.layers.0.mlp.gate_proj.weight` is 128 × 32, by the configuration it is 64 × 32",
        ),
        (config("refused-11", "num_attention_heads", json!(0)), "model/config.json: damaged: attention heads is 0"),
        (
            refused("refused-12", |folder| std::fs::remove_file(folder.path().join("config.json")).unwrap()),
            "model: not supported: a folder without config.json is no Hugging Face model",
        ),
        (
            refused("refused-13", |folder| std::fs::remove_file(folder.path().join("model.safetensors")).unwrap()),
            "model: not supported: neither model.safetensors nor model.safetensors.index.json is there, and only \
             safetensors are read",
        ),
        (
            refused("refused-14", |folder| {
                let index = json!({ "weight_map": { "a": "../../model.safetensors" } });
                folder.write("model.safetensors.index.json", index.to_string());
            }),
            "model/model.safetensors.index.json: damaged: `../../model.safetensors` is no file's name",
        ),
        (
            refused("refused-15", |folder| {
                let index = json!({ "weight_map": { "a": "model.safetensors", "b": "copy.safetensors" } });
                folder.write("copy.safetensors", folder.read("model.safetensors"));
                folder.write("model.safetensors.index.json", index.to_string());
            }),
            "model/model.safetensors: damaged: the tensor `lm_head.weight` is in another file too",
        ),
        (
            refused("refused-16", |folder| {
                let bytes = folder.read("model.safetensors");
                let at = bytes.windows(3).position(|bytes| bytes == b"F32").unwrap();
                folder.write("model.safetensors", [&bytes[..at], b"I32", &bytes[at + 3..]].concat());
            }),
            "model/model.safetensors: not supported: the tensor `lm_head.weight` is stored in the format I32",
        ),
    ] {
        assert!(sentence.starts_with(expected), "{sentence}\nis not\n{expected}");
    }
}

#[test]
fn a_file_that_ends_too_early_is_refused() {
    let folder = Folder::of(&model(Architecture::Llama), 1, "truncated");
    let whole = folder.read("model.safetensors");
    for length in (0..3000).step_by(97).chain([whole.len() - 1]) {
        folder.write("model.safetensors", &whole[..length]);
        let error = Checkpoint::open(folder.path()).err().expect("refused").to_string();
        assert!(error.contains("model.safetensors: damaged: its header: "), "cut to {length}: {error}");
    }
}

/// Bytes of a safetensors header replaced: an answer or a sentence, no panic.
#[test]
fn no_change_of_a_header_breaks_the_reader() {
    let folder = Folder::of(&model(Architecture::Llama), 1, "mutated");
    let whole = folder.read("model.safetensors");
    let mut random = 1_u64;
    let mut draw = |below: usize| {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (random >> 33) as usize % below
    };
    for _ in 0..300 {
        let mut bytes = whole.clone();
        let at = draw(2000);
        match draw(3) {
            0 => bytes[at] = b"0123456789,:[]{}\"x"[draw(18)],
            1 => bytes[at] ^= 1 << draw(8),
            _ => bytes[..8].copy_from_slice(&[u64::MAX, 1 << 40, 0, 99_999_999][draw(4)].to_le_bytes()),
        }
        folder.write("model.safetensors", bytes);
        let _ = Checkpoint::open(folder.path());
    }
}
