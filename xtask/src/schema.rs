//! The IR's JSON Schema, as shipped.

use std::fs;
use std::path::PathBuf;

use crate::program::root;

/// Where the schema is kept.
pub fn path() -> PathBuf {
    root().join("docs/ir.schema.json")
}

/// Writes the schema of the IR as it is now.
///
/// # Errors
///
/// The file can't be written.
pub fn write() -> Result<String, String> {
    fs::write(path(), serq_ir::json::schema()).map_err(|e| format!("{}: {e}", path().display()))?;
    Ok("docs/ir.schema.json written".into())
}
