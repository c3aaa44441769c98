//! A model's weights as its files store them.
//!
//! ```text
//!   GGUF file ────────────┐  names, sizes, formats    ┌ config: ModelConfig
//!   safetensors, config ──┼──────────▶ Checkpoint ────┤
//!   a seed ───────────────┘                           └ tensor(Weight): Tensor, row by row
//! ```
//!
//! # Invariants
//!
//! - A [`Checkpoint`] is whole: every weight its configuration asks for is there and has the
//!   shape the configuration says; nothing else was in the file. What this engine would compute
//!   otherwise than the model's makers is refused when the file is opened.
//! - Query and key rows are in the order of half-split rotation (pair `i` of a head is its rows
//!   `i` and `i + head_dim / 2`), whatever the file's order.
//! - Numbers are not copied: a tensor is a part of the mapped file.
//! - No content of a file makes this module panic or take more memory than the file is large.

mod checkpoint;
mod config;
mod error;
mod folder;
pub(crate) mod gguf;
mod map;
mod random;
mod stored;
mod tensor;

pub use checkpoint::Checkpoint;
pub(crate) use checkpoint::Texts;
pub use config::{Architecture, LayerWeight, ModelConfig, Weight};
pub use error::{Trouble, WeightsError};
pub(crate) use folder::json;
pub use random::TINY_SPECIALS;
pub use stored::Stored;
pub use tensor::{Bytes, Tensor};
