//! A model's weights as its files store them.

mod tensor;

pub use tensor::{Stored, Tensor};
