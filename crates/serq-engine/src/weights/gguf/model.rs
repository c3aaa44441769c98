//! What a GGUF file's keys and tensor names mean for the architectures this engine runs.

use std::collections::{BTreeMap, BTreeSet};

use super::super::checkpoint::{refuse_others, take};
use super::super::config::{Architecture, LayerWeight, ModelConfig, Weight};
use super::super::error::Trouble;
use super::super::tensor::Tensor;
use super::{CONTROL, Gguf};

/// The embedding, whose rows are the vocabulary.
const EMBEDDING: &str = "token_embd.weight";
/// What frequencies are divided by (Llama 3).
const ROPE_DIVISORS: &str = "rope_freqs.weight";

/// Special tokens that end a turn or a text in the architectures here. A file names one of
/// them, and its model writes others too: Llama 3 ends a turn with one and a text with another.
/// llama.cpp takes them by these names as well [llama.cpp: `llama-vocab.cpp`, `special_eog_ids`].
const ENDS: [&str; 6] = ["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "</s>"];

/// Keys of an architecture that change its forward pass in ways this engine does not have, each
/// with the value that changes nothing.
const ALTERING: [(&str, f64); 11] = [
    ("expert_count", 0.0),
    ("attention.sliding_window", 0.0),
    ("attention.clamp_kqv", 0.0),
    ("attention.max_alibi_bias", 0.0),
    ("attention.scale", 0.0),
    ("embedding_scale", 0.0),
    ("residual_scale", 0.0),
    ("logit_scale", 0.0),
    ("rope.scale_linear", 1.0),
    ("attn_logit_softcapping", 0.0),
    ("final_logit_softcapping", 0.0),
];

/// The configuration and the tensors by weight.
pub(crate) fn model(gguf: &mut Gguf) -> Result<(ModelConfig, BTreeMap<Weight, Tensor>), Trouble> {
    if let Some(count) = gguf.size("split.count")?.filter(|&count| count > 1) {
        return Err(Trouble::Unsupported(format!("a GGUF model split into {count} files")));
    }
    let mut tensors = gguf.take_tensors();
    let divisors = tensors.remove(ROPE_DIVISORS);
    let config = config(gguf, &tensors, divisors)?;
    let mut weights = BTreeMap::new();
    for weight in config.weights() {
        let tensor = take(&mut tensors, &config, weight, &name(weight))?;
        // Llama's converter puts a head's rows in pairs; Qwen3's leaves them in halves
        // [llama.cpp: `conversion/llama.py`, `permute`].
        let paired = config.architecture == Architecture::Llama
            && matches!(weight, Weight::Layer(_, LayerWeight::Query | LayerWeight::Key));
        let tensor = if paired { tensor.with_paired_rows(config.head_dim) } else { tensor };
        weights.insert(weight, tensor);
    }
    refuse_others(&tensors)?;
    Ok((config, weights))
}

fn config(gguf: &Gguf, tensors: &BTreeMap<String, Tensor>, divisors: Option<Tensor>) -> Result<ModelConfig, Trouble> {
    let name = gguf.text("general.architecture")?.ok_or_else(|| missing("general.architecture"))?;
    let architecture = match name {
        "llama" => Architecture::Llama,
        "qwen3" => Architecture::Qwen3,
        _ => return Err(Trouble::Unsupported(format!("the architecture `{name}`, only llama and qwen3 are"))),
    };
    let key = |end: &str| format!("{name}.{end}");
    let size = |end: &str| gguf.size(&key(end));
    let needed = |end: &str| size(end)?.ok_or_else(|| missing(&key(end)));
    refuse_altering(gguf, name)?;

    let hidden = needed("embedding_length")?;
    let heads = needed("attention.head_count")?;
    let head_dim = match size("attention.key_length")? {
        Some(length) => length,
        None => hidden.checked_div(heads).ok_or_else(|| Trouble::Damaged("a model without attention heads".into()))?,
    };
    for end in ["attention.value_length", "rope.dimension_count"] {
        if let Some(length) = size(end)?.filter(|&length| length != head_dim) {
            let key = key(end);
            return Err(Trouble::Unsupported(format!("the key `{key}` is {length} where a head has {head_dim}")));
        }
    }
    let vocabulary = tensors.get(EMBEDDING).ok_or_else(|| Trouble::Missing(EMBEDDING.into()))?.rows();
    let tokens = gguf.texts("tokenizer.ggml.tokens")?.unwrap_or_default();
    if !(tokens.is_empty() || tokens.len() == vocabulary) {
        let count = tokens.len();
        return Err(Trouble::Damaged(format!("the embedding has {vocabulary} rows and the tokens are {count}")));
    }
    let config = ModelConfig {
        architecture,
        layers: needed("block_count")?,
        hidden,
        feed_forward: needed("feed_forward_length")?,
        heads,
        kv_heads: size("attention.head_count_kv")?.unwrap_or(heads),
        head_dim,
        vocabulary,
        context: needed("context_length")?,
        rms_epsilon: gguf
            .number(&key("attention.layer_norm_rms_epsilon"))?
            .ok_or_else(|| missing(&key("attention.layer_norm_rms_epsilon")))? as f32,
        rope_base: gguf.number(&key("rope.freq_base"))?.unwrap_or(10_000.0),
        rope_divisors: divisors.map_or(Ok(Vec::new()), |divisors| rope_divisors(&divisors, head_dim))?,
        tied_embedding: !tensors.contains_key("output.weight"),
        eos: ends(gguf, &tokens)?,
    };
    config.check().map_err(Trouble::Damaged)?;
    Ok(config)
}

fn refuse_altering(gguf: &Gguf, architecture: &str) -> Result<(), Trouble> {
    for (end, nothing) in ALTERING {
        let key = format!("{architecture}.{end}");
        if let Some(value) = gguf.number(&key)?.filter(|&value| value != nothing) {
            return Err(Trouble::Unsupported(format!("the key `{key}` is {value}")));
        }
    }
    let key = format!("{architecture}.rope.scaling.type");
    match gguf.text(&key)? {
        None | Some("none") => Ok(()),
        Some(kind) => Err(Trouble::Unsupported(format!("rotary scaling of the type `{kind}`"))),
    }
}

fn ends(gguf: &Gguf, tokens: &[&str]) -> Result<BTreeSet<u32>, Trouble> {
    let mut ends = BTreeSet::new();
    for key in ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"] {
        ends.extend(id(gguf, key)?);
    }
    let kinds = gguf.integers("tokenizer.ggml.token_type")?.unwrap_or_default();
    for (id, (token, kind)) in tokens.iter().zip(kinds).enumerate() {
        if kind == CONTROL && ENDS.contains(token) {
            ends.insert(id as u32);
        }
    }
    Ok(ends)
}

fn id(gguf: &Gguf, key: &str) -> Result<Option<u32>, Trouble> {
    let id = gguf.size(key)?;
    id.map(|id| u32::try_from(id).map_err(|_| Trouble::Damaged(format!("the key `{key}` is {id}")))).transpose()
}

fn missing(key: &str) -> Trouble {
    Trouble::Damaged(format!("the key `{key}` is missing"))
}

fn rope_divisors(tensor: &Tensor, head_dim: usize) -> Result<Vec<f32>, Trouble> {
    let (found, expected) = ([tensor.rows(), tensor.columns()], [1, head_dim / 2]);
    if found != expected {
        return Err(Trouble::Shape { tensor: ROPE_DIVISORS.into(), found, expected });
    }
    let mut numbers = vec![0.0; tensor.columns()];
    tensor.row_f32(0, &mut numbers);
    Ok(numbers)
}

/// A weight's name in the file.
fn name(weight: Weight) -> String {
    match weight {
        Weight::Embedding => EMBEDDING.into(),
        Weight::Output => "output.weight".into(),
        Weight::FinalNorm => "output_norm.weight".into(),
        Weight::Layer(layer, weight) => {
            let part = match weight {
                LayerWeight::AttentionNorm => "attn_norm",
                LayerWeight::Query => "attn_q",
                LayerWeight::Key => "attn_k",
                LayerWeight::Value => "attn_v",
                LayerWeight::AttentionOutput => "attn_output",
                LayerWeight::QueryNorm => "attn_q_norm",
                LayerWeight::KeyNorm => "attn_k_norm",
                LayerWeight::FeedForwardNorm => "ffn_norm",
                LayerWeight::Gate => "ffn_gate",
                LayerWeight::Up => "ffn_up",
                LayerWeight::Down => "ffn_down",
            };
            format!("blk.{layer}.{part}.weight")
        }
    }
}
