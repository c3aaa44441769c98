//! One matrix or vector of a model, as stored.

use std::sync::Arc;

use half::{bf16, f16};

/// How numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// The upper half of a single.
    Bf16,
}

impl Stored {
    /// Numbers in a block, the least that can be stored by itself.
    pub fn block_numbers(self) -> usize {
        1
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

/// A matrix of `rows` × `columns` numbers, row by row; a vector has one row. Cloning it
/// copies no numbers.
#[derive(Clone)]
pub struct Tensor {
    rows: usize,
    columns: usize,
    stored: Stored,
    bytes: Arc<dyn AsRef<[u8]> + Send + Sync>,
    start: usize,
}

impl Tensor {
    /// The matrix that begins at byte `start` of `bytes`.
    ///
    /// # Panics
    ///
    /// When a row is not whole blocks, or the bytes end before the matrix does: who reads a
    /// file checks both.
    pub fn new(
        rows: usize,
        columns: usize,
        stored: Stored,
        bytes: Arc<dyn AsRef<[u8]> + Send + Sync>,
        start: usize,
    ) -> Self {
        assert_eq!(columns % stored.block_numbers(), 0, "a row is whole blocks");
        let tensor = Self { rows, columns, stored, bytes, start };
        assert!(start + rows * tensor.row_bytes() <= (*tensor.bytes).as_ref().len(), "the bytes hold the matrix");
        tensor
    }

    /// A matrix of singles.
    pub fn from_f32(rows: usize, columns: usize, numbers: &[f32]) -> Self {
        assert_eq!(numbers.len(), rows * columns);
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        Self::new(rows, columns, Stored::F32, Arc::new(bytes), 0)
    }

    /// Rows: of a projection, its outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns: of a projection, its inputs.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// How its numbers are stored.
    pub fn stored(&self) -> Stored {
        self.stored
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.columns / self.stored.block_numbers() * self.stored.block_bytes()
    }

    /// A row as stored.
    pub fn row(&self, row: usize) -> &[u8] {
        assert!(row < self.rows);
        &(*self.bytes).as_ref()[self.start + row * self.row_bytes()..][..self.row_bytes()]
    }

    /// A row as singles, into `numbers`.
    pub fn row_f32(&self, row: usize, numbers: &mut [f32]) {
        assert_eq!(numbers.len(), self.columns);
        let row = self.row(row);
        match self.stored {
            Stored::F32 => {
                for (number, bytes) in numbers.iter_mut().zip(row.as_chunks().0) {
                    *number = f32::from_le_bytes(*bytes);
                }
            }
            Stored::F16 => {
                for (number, bytes) in numbers.iter_mut().zip(row.as_chunks().0) {
                    *number = f16::from_le_bytes(*bytes).to_f32();
                }
            }
            Stored::Bf16 => {
                for (number, bytes) in numbers.iter_mut().zip(row.as_chunks().0) {
                    *number = bf16::from_le_bytes(*bytes).to_f32();
                }
            }
        }
    }
}
