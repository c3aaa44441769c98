//! A model's configuration with all its weights, checked against it.

use std::collections::BTreeMap;
use std::path::Path;

use super::config::{ModelConfig, Weight};
use super::error::{Trouble, WeightsError};
use super::gguf::{self, Gguf};
use super::map::map;
use super::tensor::{Bytes, Tensor};

/// A model as its files have it. Every weight of the configuration is there and has its shape.
pub struct Checkpoint {
    /// Shape and constants.
    pub config: ModelConfig,
    weights: BTreeMap<Weight, Tensor>,
}

impl Checkpoint {
    /// Opens a GGUF file. Numbers stay in it until they are looked at.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, WeightsError> {
        let path = path.as_ref();
        let bytes: Bytes = map(path)?;
        Self::of_gguf(bytes).map_err(|trouble| trouble.of(path))
    }

    /// Reads a GGUF file that is in memory.
    pub fn of_gguf(bytes: Bytes) -> Result<Self, Trouble> {
        let mut gguf = Gguf::read(bytes)?;
        let (config, weights) = gguf::model::model(&mut gguf)?;
        Ok(Self { config, weights })
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
        Self { config, weights }
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
