//! What `config.json` means for the architectures this engine runs [transformers:
//! `configuration_llama.py`, `configuration_qwen3.py`, `modeling_rope_utils.py`].

use std::collections::BTreeSet;
use std::f64::consts::TAU;

use serde::Deserialize;
use serde_json::Value;

use super::super::config::{Architecture, ModelConfig};
use super::super::error::Trouble;

/// `config.json`, as far as it matters here.
#[derive(Deserialize)]
pub(super) struct Config {
    architectures: Option<Vec<String>>,
    model_type: Option<String>,
    num_hidden_layers: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    vocab_size: usize,
    max_position_embeddings: usize,
    rms_norm_eps: f64,
    hidden_act: Option<String>,
    tie_word_embeddings: Option<bool>,
    rope_theta: Option<f64>,
    rope_scaling: Option<Rope>,
    /// What both became in transformers 5.
    rope_parameters: Option<Rope>,
    #[serde(flatten)]
    ends: Ends,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default)]
    use_sliding_window: bool,
    layer_types: Option<Vec<String>>,
    quantization_config: Option<Value>,
}

/// What ends an answer, in `config.json` and in `generation_config.json`.
#[derive(Default, Deserialize)]
pub(super) struct Ends {
    eos_token_id: Option<OneOrMore>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(u32),
    More(Vec<u32>),
}

#[derive(Default, Deserialize)]
struct Rope {
    rope_type: Option<String>,
    /// The same, before transformers 4.45.
    #[serde(rename = "type")]
    kind: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    partial_rotary_factor: Option<f64>,
}

/// The configuration. Where the file leaves open whether the output is tied, an output matrix
/// says it is not.
pub(super) fn model(config: Config, generation: Ends, has_output: bool) -> Result<ModelConfig, Trouble> {
    let architecture = architecture(&config)?;
    refuse_altering(&config)?;
    let heads = config.num_attention_heads;
    let head_dim = match config.head_dim {
        Some(size) => size,
        None if architecture == Architecture::Qwen3 => 128,
        None => config
            .hidden_size
            .checked_div(heads)
            .ok_or_else(|| Trouble::Damaged("a model without attention heads".into()))?,
    };
    let rope = config.rope_parameters.or(config.rope_scaling).unwrap_or_default();
    let rope_base = rope.rope_theta.or(config.rope_theta).unwrap_or(10_000.0);
    let mut eos = BTreeSet::new();
    for ends in [&config.ends, &generation] {
        match &ends.eos_token_id {
            None => {}
            Some(OneOrMore::One(id)) => eos.extend([*id]),
            Some(OneOrMore::More(ids)) => eos.extend(ids),
        }
    }
    let mut model = ModelConfig {
        architecture,
        layers: config.num_hidden_layers,
        hidden: config.hidden_size,
        feed_forward: config.intermediate_size,
        heads,
        kv_heads: config.num_key_value_heads.unwrap_or(heads),
        head_dim,
        vocabulary: config.vocab_size,
        context: config.max_position_embeddings,
        rms_epsilon: config.rms_norm_eps as f32,
        rope_base,
        rope_divisors: Vec::new(),
        tied_embedding: config.tie_word_embeddings.unwrap_or(!has_output),
        eos,
    };
    model.check().map_err(Trouble::Damaged)?;
    model.rope_divisors = rope_divisors(&rope, &model)?;
    model.check().map_err(Trouble::Damaged)?;
    Ok(model)
}

fn architecture(config: &Config) -> Result<Architecture, Trouble> {
    let class = config.architectures.as_ref().and_then(|classes| classes.first());
    match (class.map(|class| &class[..]), config.model_type.as_deref()) {
        (Some("LlamaForCausalLM"), _) | (None, Some("llama")) => Ok(Architecture::Llama),
        (Some("Qwen3ForCausalLM"), _) | (None, Some("qwen3")) => Ok(Architecture::Qwen3),
        (class, kind) => {
            let name = class.or(kind).unwrap_or("no name");
            let only = "only LlamaForCausalLM and Qwen3ForCausalLM are";
            Err(Trouble::Unsupported(format!("the architecture `{name}`, {only}")))
        }
    }
}

fn refuse_altering(config: &Config) -> Result<(), Trouble> {
    let what = if config.attention_bias {
        "attention_bias is true".into()
    } else if config.mlp_bias {
        "mlp_bias is true".into()
    } else if config.use_sliding_window {
        "use_sliding_window is true".into()
    } else if let Some(kind) = config.layer_types.iter().flatten().find(|kind| *kind != "full_attention") {
        format!("a layer of the type `{kind}`")
    } else if let Some(activation) = config.hidden_act.as_ref().filter(|activation| *activation != "silu") {
        format!("the activation `{activation}`")
    } else if let Some(quantization) = &config.quantization_config {
        let method = quantization.get("quant_method").and_then(Value::as_str).unwrap_or("an unnamed method");
        format!("weights quantised by {method}")
    } else {
        return Ok(());
    };
    Err(Trouble::Unsupported(what))
}

/// Llama 3's scaling: what turns slower than the old context is slowed by the factor, what turns
/// fast is left alone, and between the two it is blended.
fn rope_divisors(rope: &Rope, model: &ModelConfig) -> Result<Vec<f32>, Trouble> {
    if let Some(part) = rope.partial_rotary_factor.filter(|&part| part != 1.0) {
        return Err(Trouble::Unsupported(format!("partial_rotary_factor is {part}")));
    }
    match rope.rope_type.as_deref().or(rope.kind.as_deref()) {
        None | Some("default") => return Ok(Vec::new()),
        Some("llama3") => {}
        Some(kind) => return Err(Trouble::Unsupported(format!("rotary scaling of the type `{kind}`"))),
    }
    let needed = |name: &str, value: Option<f64>| match value {
        Some(value) if value.is_finite() && value > 0.0 => Ok(value),
        _ => Err(Trouble::Damaged(format!("rotary scaling of the type `llama3` needs {name}"))),
    };
    let factor = needed("factor", rope.factor)?;
    let low = needed("low_freq_factor", rope.low_freq_factor)?;
    let high = needed("high_freq_factor", rope.high_freq_factor)?;
    let context = needed("original_max_position_embeddings", rope.original_max_position_embeddings)?;
    let divisor = |frequency: f64| {
        let turns = context * frequency / TAU;
        if turns > high {
            1.0
        } else if turns < low {
            factor
        } else {
            let smooth = (turns - low) / (high - low);
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    };
    Ok(model.rope_frequencies().into_iter().map(|frequency| divisor(frequency) as f32).collect())
}
