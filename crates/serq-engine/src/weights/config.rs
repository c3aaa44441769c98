//! A model's shape and constants, whichever file they came from.

use std::collections::BTreeSet;

/// A family of models that share a forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Llama 2 and 3, SmolLM2: RMS norms, rotary attention with grouped heads, SwiGLU.
    Llama,
    /// Qwen3: as Llama, with a norm of each query and key head.
    Qwen3,
}

impl Architecture {
    /// Its name in the field.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen3 => "qwen3",
        }
    }
}

/// A model's shape and constants.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The forward pass.
    pub architecture: Architecture,
    /// Transformer layers.
    pub layers: usize,
    /// Numbers of a token between layers.
    pub hidden: usize,
    /// Numbers inside the feed-forward part.
    pub feed_forward: usize,
    /// Query heads; a multiple of `kv_heads`.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Numbers of a head, even; not always `hidden / heads`.
    pub head_dim: usize,
    /// Token ids are below this.
    pub vocabulary: usize,
    /// Positions the model was made for.
    pub context: usize,
    /// Added to the mean square in a norm.
    pub rms_epsilon: f32,
    /// Rotary position: the base of the frequencies.
    pub rope_base: f64,
    /// What each of the `head_dim / 2` frequencies is divided by (Llama 3's scaling); empty
    /// when they are as the base says.
    pub rope_divisors: Vec<f32>,
    /// The output matrix is the embedding.
    pub tied_embedding: bool,
    /// Ids that end an answer.
    pub eos: BTreeSet<u32>,
}

/// Which matrix or vector of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Weight {
    /// A row a token id.
    Embedding,
    /// A row a token id, from the last layer to logits.
    Output,
    /// The norm before the output.
    FinalNorm,
    /// Of a layer, counted from 0.
    Layer(usize, LayerWeight),
}

/// Which matrix or vector of a layer. A matrix has a row an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LayerWeight {
    /// The norm before attention.
    AttentionNorm,
    /// To queries, head after head; a head's rows are for half-split rotation.
    Query,
    /// To keys, as queries.
    Key,
    /// To values.
    Value,
    /// From the heads' outputs back.
    AttentionOutput,
    /// The norm of each query head (Qwen3).
    QueryNorm,
    /// The norm of each key head (Qwen3).
    KeyNorm,
    /// The norm before the feed-forward part.
    FeedForwardNorm,
    /// What is let through.
    Gate,
    /// What may be let through.
    Up,
    /// Back.
    Down,
}

impl LayerWeight {
    /// All of them, in the order of use.
    pub const ALL: [Self; 11] = [
        Self::AttentionNorm,
        Self::Query,
        Self::Key,
        Self::Value,
        Self::AttentionOutput,
        Self::QueryNorm,
        Self::KeyNorm,
        Self::FeedForwardNorm,
        Self::Gate,
        Self::Up,
        Self::Down,
    ];
}

impl ModelConfig {
    /// Every weight this model has. A tied output is none of its own.
    pub fn weights(&self) -> impl Iterator<Item = Weight> {
        let output = (!self.tied_embedding).then_some(Weight::Output);
        let head_norms = self.architecture == Architecture::Qwen3;
        let layer = move |layer| {
            let has = move |weight: &LayerWeight| match weight {
                LayerWeight::QueryNorm | LayerWeight::KeyNorm => head_norms,
                _ => true,
            };
            LayerWeight::ALL.into_iter().filter(has).map(move |weight| Weight::Layer(layer, weight))
        };
        [Weight::Embedding, Weight::FinalNorm].into_iter().chain(output).chain((0..self.layers).flat_map(layer))
    }

    /// A weight's rows and columns; a vector has one row.
    pub fn shape(&self, weight: Weight) -> [usize; 2] {
        let Self { hidden, feed_forward, head_dim, vocabulary, .. } = *self;
        let (queries, keys) = (self.heads * head_dim, self.kv_heads * head_dim);
        match weight {
            Weight::Embedding | Weight::Output => [vocabulary, hidden],
            Weight::FinalNorm => [1, hidden],
            Weight::Layer(_, weight) => match weight {
                LayerWeight::AttentionNorm | LayerWeight::FeedForwardNorm => [1, hidden],
                LayerWeight::QueryNorm | LayerWeight::KeyNorm => [1, head_dim],
                LayerWeight::Query => [queries, hidden],
                LayerWeight::Key | LayerWeight::Value => [keys, hidden],
                LayerWeight::AttentionOutput => [hidden, queries],
                LayerWeight::Gate | LayerWeight::Up => [feed_forward, hidden],
                LayerWeight::Down => [hidden, feed_forward],
            },
        }
    }

    /// Radians a position turns each of a head's `head_dim / 2` pairs by.
    pub fn rope_frequencies(&self) -> Vec<f64> {
        let pairs = self.head_dim / 2;
        let divisor = |pair: usize| self.rope_divisors.get(pair).map_or(1.0, |&divisor| f64::from(divisor));
        let frequency = |pair: usize| libm::pow(self.rope_base, -(pair as f64) / pairs as f64);
        (0..pairs).map(|pair| frequency(pair) / divisor(pair)).collect()
    }

    /// Numbers in all weights.
    pub fn parameters(&self) -> usize {
        self.weights().map(|weight| self.shape(weight).iter().product::<usize>()).sum()
    }

    /// What no sound file says, in words.
    pub(crate) fn check(&self) -> Result<(), String> {
        // So far above any model, and so far below overflow of a product of three.
        const LARGEST: usize = 1 << 21;
        let sizes = [
            ("layers", self.layers),
            ("hidden size", self.hidden),
            ("feed-forward size", self.feed_forward),
            ("attention heads", self.heads),
            ("key and value heads", self.kv_heads),
            ("head dimension", self.head_dim),
            ("vocabulary", self.vocabulary),
        ];
        for (name, size) in sizes {
            if !(1..=LARGEST).contains(&size) {
                return Err(format!("{name} is {size}"));
            }
        }
        if self.context == 0 {
            return Err("context length is 0".into());
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(format!("{} attention heads share {} key and value heads", self.heads, self.kv_heads));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(format!("head dimension is {}, and rotation needs pairs", self.head_dim));
        }
        if !(self.rms_epsilon.is_finite() && self.rms_epsilon >= 0.0) {
            return Err(format!("the norms' epsilon is {}", self.rms_epsilon));
        }
        if !(self.rope_base.is_finite() && self.rope_base > 0.0) {
            return Err(format!("the rotary base is {}", self.rope_base));
        }
        if !(self.rope_divisors.is_empty() || self.rope_divisors.len() == self.head_dim / 2) {
            let [found, pairs] = [self.rope_divisors.len(), self.head_dim / 2];
            return Err(format!("{found} rotary factors for {pairs} pairs of a head"));
        }
        if let Some(divisor) = self.rope_divisors.iter().find(|divisor| !(divisor.is_finite() && **divisor > 0.0)) {
            return Err(format!("a rotary factor is {divisor}"));
        }
        if let Some(id) = self.eos.iter().find(|&&id| id as usize >= self.vocabulary) {
            return Err(format!("the end token {id} is outside the vocabulary of {}", self.vocabulary));
        }
        Ok(())
    }
}
