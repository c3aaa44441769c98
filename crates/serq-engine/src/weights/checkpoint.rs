//! A model's configuration with all its weights, checked against it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::config::{ModelConfig, Weight};
use super::error::{Trouble, WeightsError};
use super::folder;
use super::gguf::{self, Gguf};
use super::map::map;
use super::tensor::{Bytes, Tensor};

/// A model as its files have it. Every weight of the configuration is there and has its shape.
pub struct Checkpoint {
    /// Shape and constants.
    pub config: ModelConfig,
    weights: BTreeMap<Weight, Tensor>,
    pub(crate) texts: Texts,
}

/// Where the tokenizer and the chat template are.
pub(crate) enum Texts {
    /// Bytes, and one template for all.
    BuiltIn,
    /// In a GGUF file's keys.
    Gguf { path: PathBuf, keys: Gguf },
    /// In a folder's files.
    Folder(PathBuf),
}

impl Checkpoint {
    /// Opens a GGUF file or a Hugging Face folder. Numbers stay in the files until they are
    /// looked at.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, WeightsError> {
        let path = path.as_ref();
        if path.is_dir() {
            let (config, weights) = folder::read(path)?;
            return Ok(Self { config, weights, texts: Texts::Folder(path.to_owned()) });
        }
        if path.extension().is_some_and(|end| end == "safetensors") {
            return Err(Trouble::Unsupported("a safetensors file by itself; name the folder it is in".into()).of(path));
        }
        let bytes: Bytes = map(path)?;
        Self::of_gguf(bytes, path)
    }

    /// Reads a GGUF file that is in memory; `path` is what to call it.
    pub fn of_gguf(bytes: Bytes, path: impl Into<PathBuf>) -> Result<Self, WeightsError> {
        let path = path.into();
        let read = || {
            let mut keys = Gguf::read(bytes)?;
            let (config, weights) = gguf::model::model(&mut keys)?;
            Ok((config, weights, keys))
        };
        match read() {
            Ok((config, weights, keys)) => Ok(Self { config, weights, texts: Texts::Gguf { path, keys } }),
            Err(trouble) => Err(Trouble::of(trouble, path)),
        }
    }

    /// A weight. Where the output is tied it is the embedding.
    ///
    /// # Panics
    ///
    /// When the model has no such weight: a layer beyond the last, a head norm where the
    /// architecture has none.
    pub fn tensor(&self, weight: Weight) -> Tensor {
        let weight = match weight {
            Weight::Output if self.config.tied_embedding => Weight::Embedding,
            weight => weight,
        };
        self.weights.get(&weight).unwrap_or_else(|| panic!("the model has no {weight:?}")).clone()
    }

    /// Tells models apart: by their shape and constants, and by the ends of every weight.
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut all = Sha256::new_with_prefix(format!("{:?}", self.config));
        for (weight, tensor) in &self.weights {
            let (rows, columns) = (tensor.rows(), tensor.columns());
            all.update(format!("{weight:?} {rows} {columns} {:?}", tensor.stored()));
            [0, rows - 1].into_iter().for_each(|row| all.update(tensor.row(row)));
        }
        all.finalize().into()
    }

    /// A model of random weights. The same seed gives the same bits on every machine.
    pub fn random(config: ModelConfig, seed: u64) -> Self {
        let weights = config
            .weights()
            .map(|weight| {
                let [rows, columns] = config.shape(weight);
                let numbers = super::random::numbers(weight, rows, columns, seed);
                (weight, Tensor::from_f32(rows, columns, &numbers))
            })
            .collect();
        Self { config, weights, texts: Texts::BuiltIn }
    }

    /// The built-in model: two layers of random weights, bytes for tokens.
    pub fn tiny(seed: u64) -> Self {
        Self::random(ModelConfig::tiny(super::Architecture::Llama), seed)
    }
}

/// Takes a weight out of a file's tensors, if it has its shape.
pub(super) fn take(
    tensors: &mut BTreeMap<String, Tensor>,
    config: &ModelConfig,
    weight: Weight,
    name: &str,
) -> Result<Tensor, Trouble> {
    let tensor = tensors.remove(name).ok_or_else(|| Trouble::Missing(name.into()))?;
    let (found, expected) = ([tensor.rows(), tensor.columns()], config.shape(weight));
    if found == expected { Ok(tensor) } else { Err(Trouble::Shape { tensor: name.into(), found, expected }) }
}

/// A tensor nobody asked for is a part of the model that would be left out.
pub(super) fn refuse_others(tensors: &BTreeMap<String, Tensor>) -> Result<(), Trouble> {
    let Some(name) = tensors.keys().next() else { return Ok(()) };
    let why = if name.ends_with("bias") { "no bias is added" } else { "it belongs to another architecture" };
    Err(Trouble::Unsupported(format!("the tensor `{name}`: {why}")))
}
