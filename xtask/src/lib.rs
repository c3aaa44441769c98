//! The project's chores: `cargo xtask --help` lists them.

pub mod differential;

/// Where the repository is.
pub mod program {
    /// The workspace's folder.
    pub fn root() -> std::path::PathBuf {
        std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
    }
}
