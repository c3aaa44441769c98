//! Writes Hugging Face model folders, sound and unsound.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use serq_engine::weights::{Architecture, Checkpoint, LayerWeight, Weight};

use super::numbers;

/// A folder to be: files by name. It is gone when dropped.
pub(crate) struct Folder {
    path: PathBuf,
}

impl Folder {
    /// A folder of its own for a test, with the model in it, in singles and in so many files.
    pub(crate) fn of(model: &Checkpoint, files: usize, test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("serq-weights-{}-{test}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        let folder = Self { path };
        folder.write("config.json", config(model).to_string());
        let weights: Vec<Weight> = model.config.weights().collect();
        let mut places = BTreeMap::new();
        for (number, weights) in weights.chunks(weights.len().div_ceil(files)).enumerate() {
            let name = match files {
                1 => "model.safetensors".to_owned(),
                _ => format!("model-{:05}-of-{files:05}.safetensors", number + 1),
            };
            folder.write(&name, safetensors(model, weights));
            places.extend(weights.iter().map(|&weight| (self::name(weight), name.clone())));
        }
        if files > 1 {
            folder.write("model.safetensors.index.json", json!({ "weight_map": places }).to_string());
        }
        folder
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file of it.
    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path.join(name), content).unwrap();
    }

    /// Reads a file of it.
    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path.join(name)).unwrap()
    }

    /// Changes a JSON file of it.
    pub(crate) fn change(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut content = serde_json::from_slice(&self.read(name)).unwrap();
        change(&mut content);
        self.write(name, content.to_string());
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn config(model: &Checkpoint) -> Value {
    let config = &model.config;
    let class = match config.architecture {
        Architecture::Llama => "LlamaForCausalLM",
        Architecture::Qwen3 => "Qwen3ForCausalLM",
    };
    json!({
        "architectures": [class],
        "num_hidden_layers": config.layers,
        "hidden_size": config.hidden,
        "intermediate_size": config.feed_forward,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocabulary,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.rms_epsilon,
        "rope_theta": config.rope_base,
        "tie_word_embeddings": config.tied_embedding,
        "eos_token_id": config.eos,
    })
}

/// A safetensors file [safetensors: its README has the layout].
fn safetensors(model: &Checkpoint, weights: &[Weight]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for &weight in weights {
        let [rows, columns] = model.config.shape(weight);
        let start = data.len();
        data.extend(numbers(&model.tensor(weight)).iter().flat_map(|number| number.to_le_bytes()));
        let shape = if rows == 1 { json!([columns]) } else { json!([rows, columns]) };
        header.insert(name(weight), json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, data.len()] }));
    }
    let header = Value::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

fn name(weight: Weight) -> String {
    let Weight::Layer(layer, weight) = weight else {
        return match weight {
            Weight::Embedding => "model.embed_tokens.weight",
            Weight::Output => "lm_head.weight",
            _ => "model.norm.weight",
        }
        .into();
    };
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
