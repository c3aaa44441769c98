//! Models and accelerators by name: the tables `models.csv` and `accelerators.csv`.
//!
//! Column names are those of a model's `config.json`. `checked` says how far a row can be
//! trusted: [`Checked`]. Parameter counts are as publishers round them and checked nowhere,
//! save where the source says so.
//!
//! # Invariants
//!
//! - Both tables parse, names are unique, and every row names a source (tests).

use serde::{Deserialize, Serialize};
use serq_lang::nearest::nearest;

use super::shape::{Kept, Shape};

const MODELS: &str = include_str!("models.csv");
const ACCELERATORS: &str = include_str!("accelerators.csv");

/// Where a row's figures were compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Checked {
    /// The page this arithmetic comes from states them.
    Seed,
    /// Read in the publisher's own repository.
    Repo,
    /// Read in a public copy of the publisher's file, not in the file.
    Copy,
    /// Not verified here.
    No,
}

impl Checked {
    /// As a table has it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Seed => "seed",
            Self::Repo => "repo",
            Self::Copy => "copy",
            Self::No => "no",
        }
    }
}

/// A row of `models.csv`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Model {
    pub(crate) name: String,
    /// Where its `config.json` is published; empty where the weights are not.
    pub(crate) hub: String,
    pub(crate) layers: u32,
    pub(crate) heads: u32,
    pub(crate) kv_heads: Option<u32>,
    pub(crate) head_dim: Option<u32>,
    pub(crate) window_layers: u32,
    pub(crate) window: u32,
    pub(crate) kv_lora_rank: Option<u32>,
    pub(crate) qk_rope_head_dim: Option<u32>,
    pub(crate) qk_nope_head_dim: Option<u32>,
    pub(crate) v_head_dim: Option<u32>,
    /// Billions, all.
    pub(crate) params_b: f64,
    /// Billions that take part in a token.
    pub(crate) active_b: f64,
    pub(crate) checked: Checked,
    pub(crate) source: String,
}

impl Model {
    /// For the formulas.
    pub(crate) fn shape(&self) -> Shape {
        let kept = match (self.kv_heads, self.head_dim, self.kv_lora_rank, self.qk_rope_head_dim) {
            (Some(kv_heads), Some(head_dim), None, None) => Kept::Heads { kv_heads, head_dim },
            (None, None, Some(kv_lora_rank), Some(qk_rope_head_dim)) => Kept::Latent {
                kv_lora_rank,
                qk_rope_head_dim,
                qk_nope_head_dim: self.qk_nope_head_dim,
                v_head_dim: self.v_head_dim,
            },
            _ => unreachable!("{}: a row has KV heads or a latent; a test reads them all", self.name),
        };
        Shape {
            layers: self.layers,
            window_layers: self.window_layers,
            window: self.window,
            kept,
            heads: Some(self.heads),
            params_active: Some(self.active_b * 1e9),
        }
    }
}

/// A row of `accelerators.csv`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Accelerator {
    pub(crate) name: String,
    /// Dense, no sparsity.
    pub(crate) bf16_tflops: f64,
    pub(crate) hbm_gb_s: f64,
    pub(crate) hbm_gb: f64,
    /// To its neighbours, one direction.
    pub(crate) link_gb_s: f64,
    pub(crate) link: String,
    pub(crate) checked: Checked,
    pub(crate) source: String,
}

/// All models, in the table's order.
pub(crate) fn models() -> Vec<Model> {
    rows(MODELS)
}

/// All accelerators, in the table's order.
pub(crate) fn accelerators() -> Vec<Accelerator> {
    rows(ACCELERATORS)
}

fn rows<T: for<'a> Deserialize<'a>>(table: &str) -> Vec<T> {
    let rows: Result<Vec<T>, csv::Error> = csv::Reader::from_reader(table.as_bytes()).into_deserialize().collect();
    rows.expect("the tables are part of the binary, and a test reads them")
}

/// A model by its name or its hub's; capitals do not matter.
pub(crate) fn model(name: &str) -> Result<Model, String> {
    let models = models();
    let wanted = name.trim().to_lowercase();
    let is = |model: &&Model| model.name == wanted || (model.hub.to_lowercase() == wanted && !wanted.is_empty());
    models.iter().find(is).cloned().ok_or_else(|| {
        let names = models.iter().map(|model| &model.name[..]);
        let hint = hint(&wanted, names);
        format!(
            "no model is named `{}`: {hint}`serq plan models` lists them, or give --layers, --kv-heads and --head-dim",
            name.trim()
        )
    })
}

/// An accelerator by its name; capitals do not matter.
pub(crate) fn accelerator(name: &str) -> Result<Accelerator, String> {
    let all = accelerators();
    let wanted = name.trim().to_lowercase();
    all.iter().find(|accelerator| accelerator.name == wanted).cloned().ok_or_else(|| {
        let hint = hint(&wanted, all.iter().map(|accelerator| &accelerator.name[..]));
        format!(
            "no accelerator is named `{}`: {hint}`serq plan accelerators` lists them, or give its speed, as in 8x989TFLOP/s",
            name.trim()
        )
    })
}

/// What was probably meant: a misspelling's name, else the names that begin or end so.
fn hint<'a>(wanted: &str, names: impl Iterator<Item = &'a str> + Clone) -> String {
    if let Some(near) = nearest(wanted, names.clone()) {
        return format!("is it `{near}`? ");
    }
    let mut parts: Vec<&str> = names.filter(|name| !wanted.is_empty() && name.contains(wanted)).collect();
    // More would be the list itself.
    parts.truncate(4);
    match parts.as_slice() {
        [] => String::new(),
        parts => format!("is it `{}`? ", parts.join("` or `")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_row_reads_and_names_its_source() {
        let mut names = HashSet::new();
        for model in models() {
            assert!(names.insert(model.name.clone()), "{} is there twice", model.name);
            assert_eq!(model.name, model.name.to_lowercase());
            let shape = model.shape();
            assert!(shape.layers > 0 && shape.window_layers <= shape.layers, "{}", model.name);
            assert_eq!(shape.window_layers == 0, shape.window == 0, "{}", model.name);
            assert_eq!(model.heads % shape.kv_parts(), 0, "{}", model.name);
            assert!(model.active_b > 0.0 && model.active_b <= model.params_b, "{}", model.name);
            assert!(!model.source.is_empty(), "{}", model.name);
            assert!(model.hub.contains('/') || model.name == "opt-175b", "{}", model.name);
        }
        for accelerator in accelerators() {
            assert!(names.insert(accelerator.name.clone()), "{} is there twice", accelerator.name);
            assert!(accelerator.bf16_tflops > 0.0 && !accelerator.source.is_empty());
        }
    }

    #[test]
    fn kv_of_a_token_as_published() {
        for (name, bytes, window_bytes) in [
            ("llama-3-70b", 327_680.0, 0.0),
            ("qwen3-0.6b", 7840.0 * 1024.0 / 70.0, 0.0),
            ("deepseek-v3", 70_272.0, 0.0),
            ("gpt-oss-120b", 36_864.0, 4_718_592.0),
            ("gemma-3-27b", 81_920.0, 436_207_616.0),
            ("opt-175b", 4_718_592.0, 0.0),
        ] {
            let shape = model(name).unwrap().shape();
            assert_eq!(shape.kv_bytes_a_token(2.0), bytes, "{name}");
            assert_eq!(shape.kv_bytes_window(1_000_000, 2.0), window_bytes, "{name}");
        }
    }

    #[test]
    fn an_unknown_name_gets_the_nearest_and_the_list() {
        let said = model("llama3-70b").unwrap_err();
        assert!(said.contains("is it `llama-3-70b`?") && said.contains("serq plan models"), "{said}");
        assert!(accelerator("H100").unwrap_err().contains("is it `h100-sxm` or `h100-pcie`?"));
        assert!(model("").unwrap_err().starts_with("no model is named ``: `serq plan models`"));
        assert!(model("Qwen/Qwen3-32B").is_ok() && accelerator("H100-SXM").is_ok());
    }
}
