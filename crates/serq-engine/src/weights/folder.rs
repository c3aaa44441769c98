//! A Hugging Face model folder: `config.json`, and safetensors in one file or several.

mod config;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::checkpoint::{refuse_others, take};
use super::config::{LayerWeight, ModelConfig, Weight};
use super::error::{Trouble, WeightsError};
use super::map::map;
use super::stored::Stored;
use super::tensor::{Bytes, Tensor};

const WHOLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const OUTPUT: &str = "lm_head.weight";

/// The configuration and the tensors by weight.
pub(super) fn read(folder: &Path) -> Result<(ModelConfig, BTreeMap<Weight, Tensor>), WeightsError> {
    let path = folder.join("config.json");
    let config = json(&path)?.ok_or_else(|| {
        Trouble::Unsupported("a folder without config.json is no Hugging Face model".into()).of(folder)
    })?;
    let generation = json(&folder.join("generation_config.json"))?.unwrap_or_default();
    let mut tensors = tensors(folder)?;
    let config = config::model(config, generation, tensors.contains_key(OUTPUT)).map_err(|trouble| trouble.of(path))?;
    let weights = weights(&config, &mut tensors).map_err(|trouble| trouble.of(folder))?;
    Ok((config, weights))
}

fn weights(config: &ModelConfig, tensors: &mut BTreeMap<String, Tensor>) -> Result<BTreeMap<Weight, Tensor>, Trouble> {
    if config.tied_embedding {
        // Written by some; by the configuration it is not used.
        tensors.remove(OUTPUT);
    }
    // Old files carry the rotary frequencies, which follow from the configuration.
    tensors.retain(|name, _| !name.ends_with(".rotary_emb.inv_freq"));
    let take = |weight| take(tensors, config, weight, &name(weight)).map(|tensor| (weight, tensor));
    let weights = config.weights().map(take).collect::<Result<_, _>>()?;
    refuse_others(tensors)?;
    Ok(weights)
}

/// What a JSON file says; nothing if it is not there.
pub(crate) fn json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, WeightsError> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(Trouble::Unreadable(cause).of(path)),
    };
    serde_json::from_slice(&text).map(Some).map_err(|error| Trouble::Damaged(error.to_string()).of(path))
}

/// Which file each tensor is in.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// All tensors of all files, by name.
fn tensors(folder: &Path) -> Result<BTreeMap<String, Tensor>, WeightsError> {
    let index = folder.join(INDEX);
    let files: BTreeSet<String> = match json::<Index>(&index)? {
        Some(Index { weight_map }) => weight_map.into_values().collect(),
        None if folder.join(WHOLE).exists() => [WHOLE.to_owned()].into(),
        None => {
            let what = format!("neither {WHOLE} nor {INDEX} is there, and only safetensors are read");
            return Err(Trouble::Unsupported(what).of(folder));
        }
    };
    let mut tensors = BTreeMap::new();
    for file in files {
        // An index names files beside it; another path is not followed.
        if Path::new(&file).file_name().is_none_or(|name| name != &file[..]) {
            return Err(Trouble::Damaged(format!("`{file}` is no file's name")).of(index));
        }
        let path = folder.join(&file);
        let found = file_tensors(map(&path)?).map_err(|trouble| trouble.of(&path))?;
        for (name, tensor) in found {
            if tensors.contains_key(&name) {
                return Err(Trouble::Damaged(format!("the tensor `{name}` is in another file too")).of(path));
            }
            tensors.insert(name, tensor);
        }
    }
    Ok(tensors)
}

/// The tensors of one file.
fn file_tensors(bytes: Bytes) -> Result<BTreeMap<String, Tensor>, Trouble> {
    let all = (*bytes).as_ref();
    let (header, metadata) =
        SafeTensors::read_metadata(all).map_err(|error| Trouble::Damaged(format!("its header: {error}")))?;
    // The header's length is a number of 8 bytes before it.
    let start = 8 + header;
    let read = |(name, info): (String, &safetensors::tensor::TensorInfo)| {
        let stored = match info.dtype {
            Dtype::F32 => Stored::F32,
            Dtype::F16 => Stored::F16,
            Dtype::BF16 => Stored::Bf16,
            other => {
                return Err(Trouble::Unsupported(format!("the tensor `{name}` is stored in the format {other:?}")));
            }
        };
        let (columns, rows) = match info.shape.split_last() {
            Some((columns, rows)) => (*columns, rows.iter().product()),
            None => (1, 1),
        };
        match Tensor::read(rows, columns, stored, bytes.clone(), start + info.data_offsets.0) {
            Ok(tensor) => Ok((name, tensor)),
            Err(why) => Err(Trouble::Damaged(format!("the tensor `{name}`: {why}"))),
        }
    };
    metadata.tensors().into_iter().map(read).collect()
}

/// A weight's name in the files.
fn name(weight: Weight) -> String {
    match weight {
        Weight::Embedding => "model.embed_tokens.weight".into(),
        Weight::Output => OUTPUT.into(),
        Weight::FinalNorm => "model.norm.weight".into(),
        Weight::Layer(layer, weight) => {
            let part = match weight {
                LayerWeight::AttentionNorm => "input_layernorm",
                LayerWeight::Query => "self_attn.q_proj",
                LayerWeight::Key => "self_attn.k_proj",
                LayerWeight::Value => "self_attn.v_proj",
                LayerWeight::AttentionOutput => "self_attn.o_proj",
                LayerWeight::QueryNorm => "self_attn.q_norm",
                LayerWeight::KeyNorm => "self_attn.k_norm",
                LayerWeight::FeedForwardNorm => "post_attention_layernorm",
                LayerWeight::Gate => "mlp.gate_proj",
                LayerWeight::Up => "mlp.up_proj",
                LayerWeight::Down => "mlp.down_proj",
            };
            format!("model.layers.{layer}.{part}.weight")
        }
    }
}
