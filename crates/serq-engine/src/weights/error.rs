//! Why a model's files are not read.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// What is wrong with a model's files.
#[derive(Debug)]
pub struct WeightsError {
    /// The file or folder.
    pub path: PathBuf,
    /// What is wrong with it.
    pub trouble: Trouble,
}

/// What is wrong with a file.
#[derive(Debug)]
pub enum Trouble {
    /// The system does not give it.
    Unreadable(io::Error),
    /// It breaks its format's rules, or ends too early.
    Damaged(String),
    /// It is sound as far as it was read, and this engine cannot run it.
    Unsupported(String),
    /// It lacks a tensor its configuration asks for.
    Missing(String),
    /// A tensor is not as large as the configuration says.
    Shape {
        /// Its name in the file.
        tensor: String,
        /// Rows and columns there.
        found: [usize; 2],
        /// Rows and columns the configuration asks for.
        expected: [usize; 2],
    },
}

impl Trouble {
    /// Says whose trouble it is.
    pub(crate) fn of(self, path: impl Into<PathBuf>) -> WeightsError {
        WeightsError { path: path.into(), trouble: self }
    }
}

impl fmt::Display for WeightsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.trouble)
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(cause) => write!(f, "cannot be read: {cause}"),
            Self::Damaged(what) => write!(f, "damaged: {what}"),
            Self::Unsupported(what) => write!(f, "not supported: {what}"),
            Self::Missing(tensor) => write!(f, "the tensor `{tensor}` is missing"),
            Self::Shape { tensor, found: [rows, columns], expected: [rows_expected, columns_expected] } => write!(
                f,
                "the tensor `{tensor}` is {rows} × {columns}, by the configuration it is \
                 {rows_expected} × {columns_expected}"
            ),
        }
    }
}

impl std::error::Error for WeightsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.trouble {
            Trouble::Unreadable(cause) => Some(cause),
            _ => None,
        }
    }
}
