//! What is computed most: products of activations with packed weights, and attention.
//!
//! ```text
//!   Tensor ──pack──▶ Matrix ─┐
//!                            ├─multiply, multiply_add, multiply_gated──▶ rows of singles
//!   rows ──prepare──▶ Activations ─┘                                     or Activations
//!
//!   query, key, value rows ──rotate_and_store──▶ queries, KV blocks ──attend──▶ rows
//! ```
//!
//! # The law
//!
//! What comes out for a token depends on its own numbers only: the same bits come out
//! whichever other rows stand beside it in a batch, however its prompt is cut into chunks,
//! however many slots a KV block has, whether a position was just computed or computed
//! again, and whichever worker did it. So
//!
//! - a number of a product is summed over its inputs in one order, the panel it stands in and
//!   the rows it is computed with notwithstanding ([`Matrix`]);
//! - attention is summed over spans of [`SPAN`] positions counted from the sequence's first,
//!   each by itself, then span after span ([`Attention`]); a position that a token does not
//!   see adds nothing;
//! - norms and rotations are computed row by row.
//!
//! The law holds within a [`Path`]: another may round otherwise.
//!
//! Kernels are written once, over the vectors of `vector`, and compiled for each path.

// A path's instructions are called after the machine was asked for them, and workers write
// disjoint parts of one buffer: each module gives its reasons where it does so.
#![allow(unsafe_code)]

mod activations;
mod attention;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod buffer;
mod kv;
mod matrix;
mod portable;
mod rotate;
#[cfg(test)]
mod tests;
mod tile;
mod vector;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::fmt;
use std::str::FromStr;

pub use activations::Activations;
pub use attention::{Attention, SPAN};
pub use kv::{Chunk, Element, KvLayout};
pub use matrix::Matrix;
pub use rotate::{HeadNorms, Rotation};
use vector::{Kernel, Vector};

/// With which instructions to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Any machine's. The same bits come out on all of them.
    Portable,
    /// x86 with AVX2, FMA and F16C.
    Avx2,
    /// x86 with AVX-512 F, BW, VL, DQ and VNNI.
    Avx512,
    /// The same with BF16: bf16 are multiplied in pairs, as AMD's machines do it twice as fast.
    Avx512Bf16,
}

impl Path {
    /// All of them. Where a machine has several, the best is mostly the last.
    pub const ALL: [Self; 4] = [Self::Portable, Self::Avx2, Self::Avx512, Self::Avx512Bf16];

    /// The best this machine has.
    pub fn best() -> Self {
        Self::ALL.into_iter().rfind(|path| path.is_here() && !path.is_slow()).unwrap_or(Self::Portable)
    }

    /// Whether this machine has the instructions, and is quicker without.
    fn is_slow(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        let slow = avx512::pairs_are_slow();
        #[cfg(not(target_arch = "x86_64"))]
        let slow = true;
        self == Self::Avx512Bf16 && slow
    }

    /// Whether bf16 are multiplied in pairs, or else widened and multiplied as singles.
    fn multiplies_pairs(self) -> bool {
        match self {
            Self::Portable => portable::Portable::PAIRS,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => avx2::Avx2::PAIRS,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => avx512::Avx512::<false>::PAIRS,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 => avx512::Avx512::<true>::PAIRS,
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 | Self::Avx512Bf16 => panic!("{}", PathError::NotHere(self)),
        }
    }

    /// Whether this machine has it.
    pub fn is_here(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => avx2::Avx2::detect().is_some(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => avx512::Avx512::<false>::detect().is_some(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 => avx512::Avx512::<true>::detect().is_some(),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 | Self::Avx512Bf16 => false,
        }
    }

    /// Its name as a flag's value.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Avx512Bf16 => "avx512-bf16",
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Why a path cannot be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathError {
    /// No path has this name.
    Unknown(String),
    /// This machine lacks its instructions.
    NotHere(Path),
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(name) => {
                write!(f, "no kernels are named `{name}`: there are portable, avx2, avx512 and avx512-bf16")
            }
            Self::NotHere(path) => write!(f, "this machine lacks instructions of {path}; its best is {}", Path::best()),
        }
    }
}

impl std::error::Error for PathError {}

impl FromStr for Path {
    type Err = PathError;

    fn from_str(name: &str) -> Result<Self, PathError> {
        match Self::ALL.into_iter().find(|path| path.name() == name) {
            None => Err(PathError::Unknown(name.to_owned())),
            Some(path) if path.is_here() => Ok(path),
            Some(path) => Err(PathError::NotHere(path)),
        }
    }
}

/// In what a matrix is multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compute {
    /// Weights and activations are singles.
    F32,
    /// Weights are rounded to bf16, and so are activations where a [`Path`] multiplies bf16 in
    /// pairs; sums are singles.
    Bf16,
    /// Weights are integers of 8 or 4 bits in blocks of 32 along a row, each with a scale.
    /// Activations are rounded to integers of 8 bits in the same blocks; a block's products
    /// are summed exactly, blocks in singles.
    Int8,
}

/// Runs a kernel with a path's vectors.
///
/// # Panics
///
/// When this machine lacks them.
fn dispatch(path: Path, kernel: impl Kernel) {
    match path {
        Path::Portable => portable::Portable.call(kernel),
        #[cfg(target_arch = "x86_64")]
        Path::Avx2 => avx2::Avx2::detect().expect("a path that is here").call(kernel),
        #[cfg(target_arch = "x86_64")]
        Path::Avx512 => avx512::Avx512::<false>::detect().expect("a path that is here").call(kernel),
        #[cfg(target_arch = "x86_64")]
        Path::Avx512Bf16 => avx512::Avx512::<true>::detect().expect("a path that is here").call(kernel),
        #[cfg(not(target_arch = "x86_64"))]
        Path::Avx2 | Path::Avx512 | Path::Avx512Bf16 => panic!("{}", PathError::NotHere(path)),
    }
}
