//! One matrix or vector of a model, as stored.

use std::sync::Arc;

use super::stored::Stored;

/// The bytes of a file or of numbers made here, shared by the tensors in them.
pub type Bytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A matrix of `rows` × `columns` numbers, row by row; a vector has one row. Cloning it
/// copies no numbers.
#[derive(Clone)]
pub struct Tensor {
    rows: usize,
    columns: usize,
    stored: Stored,
    order: RowOrder,
    bytes: Bytes,
    start: usize,
}

/// Where a row is stored.
#[derive(Clone, Copy)]
enum RowOrder {
    /// Row after row.
    Plain,
    /// Each head's rows in pairs, the first of its first half beside the first of its second:
    /// 0, h/2, 1, h/2+1, …
    Paired { head_rows: usize },
}

impl Tensor {
    /// The matrix that begins at byte `start` of `bytes`; or in words what of it cannot be.
    pub fn read(rows: usize, columns: usize, stored: Stored, bytes: Bytes, start: usize) -> Result<Self, String> {
        let block = stored.block_numbers();
        if !columns.is_multiple_of(block) {
            return Err(format!("its rows of {columns} numbers are no whole blocks of {block}"));
        }
        let held = (*bytes).as_ref().len();
        let end = (columns / block)
            .checked_mul(stored.block_bytes())
            .and_then(|row| row.checked_mul(rows))
            .and_then(|size| size.checked_add(start));
        match end {
            Some(end) if end <= held => Ok(Self { rows, columns, stored, order: RowOrder::Plain, bytes, start }),
            Some(end) => Err(format!("it would end at byte {end}, and the file has {held}")),
            None => Err(format!("{rows} × {columns} numbers are more than memory can name")),
        }
    }

    /// The matrix that begins at byte `start` of `bytes`.
    ///
    /// # Panics
    ///
    /// When a row is not whole blocks, or the bytes end before the matrix does: who reads a
    /// file uses [`Tensor::read`].
    pub fn new(rows: usize, columns: usize, stored: Stored, bytes: Bytes, start: usize) -> Self {
        Self::read(rows, columns, stored, bytes, start).expect("whole blocks that the bytes hold")
    }

    /// A matrix of singles.
    pub fn from_f32(rows: usize, columns: usize, numbers: &[f32]) -> Self {
        assert_eq!(numbers.len(), rows * columns);
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        Self::new(rows, columns, Stored::F32, Arc::new(bytes), 0)
    }

    /// The same numbers, told that each head's rows are stored in pairs: row `i` and row
    /// `i + head_rows / 2` of a head stand side by side. Rows are then counted as if they were
    /// stored half after half.
    ///
    /// # Panics
    ///
    /// When the rows are no whole heads, or a head's are odd.
    pub fn with_paired_rows(self, head_rows: usize) -> Self {
        assert!(head_rows.is_multiple_of(2) && self.rows.is_multiple_of(head_rows), "whole heads, of two halves");
        Self { order: RowOrder::Paired { head_rows }, ..self }
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
        let place = match self.order {
            RowOrder::Plain => row,
            RowOrder::Paired { head_rows } => {
                let (head, row, half) = (row / head_rows, row % head_rows, head_rows / 2);
                head * head_rows + row % half * 2 + row / half
            }
        };
        &(*self.bytes).as_ref()[self.start + place * self.row_bytes()..][..self.row_bytes()]
    }

    /// A row as singles, into `numbers`.
    pub fn row_f32(&self, row: usize, numbers: &mut [f32]) {
        assert_eq!(numbers.len(), self.columns);
        self.stored.singles(self.row(row), numbers);
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} × {} {}", self.rows, self.columns, self.stored.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two heads of four rows; a row's one number says where it belongs.
    #[test]
    fn paired_rows_are_counted_half_after_half() {
        let stored = [0., 2., 1., 3., 4., 6., 5., 7.];
        let tensor = Tensor::from_f32(8, 1, &stored).with_paired_rows(4);
        for row in 0..8 {
            let mut number = [0.0];
            tensor.row_f32(row, &mut number);
            assert_eq!(number[0], row as f32);
        }
    }

    #[test]
    fn what_the_bytes_do_not_hold_is_told() {
        let bytes: Bytes = Arc::new(vec![0; 100]);
        let read = |rows, columns, stored, start| Tensor::read(rows, columns, stored, Arc::clone(&bytes), start).err();
        assert_eq!(read(5, 5, Stored::F32, 0), None);
        assert_eq!(read(5, 5, Stored::F32, 1).as_deref(), Some("it would end at byte 101, and the file has 100"));
        assert_eq!(read(1, 33, Stored::Q8_0, 0).as_deref(), Some("its rows of 33 numbers are no whole blocks of 32"));
        assert_eq!(
            read(usize::MAX / 2, 5, Stored::F32, 0).as_deref(),
            Some("9223372036854775807 × 5 numbers are more than memory can name")
        );
    }
}
