//! Reports as a person or a program reads them.

pub(crate) mod lines;
pub(crate) mod over_cells;
pub(crate) mod over_pair;
pub(crate) mod over_seeds;
pub(crate) mod text;
