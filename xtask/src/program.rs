//! Program files, linked and run.

use std::fs;
use std::path::{Path, PathBuf};

use serq_ir::Program;
use serq_lang::diagnostic::{Style, render};
use serq_lang::{Settings, compile, load};
use serq_sim::{Options, Outcome, simulate};

/// Our text of the seed's program.
pub const SEED_PROGRAM: &str = "examples/pd-disaggregation/llmd_nixl_pull.sq";

/// The workspace's folder.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Settings that replace `let`s.
pub fn sets(sets: &[(&str, &str)]) -> Settings {
    let sets = sets.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Settings { sets, ..Settings::default() }
}

/// Reads and links a program with everything it `use`s.
///
/// # Errors
///
/// The file can't be read, or the diagnostics, drawn.
pub fn read(path: &Path, settings: &Settings) -> Result<Program, String> {
    let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    link(&path.to_string_lossy(), &text, settings)
}

/// Links a text that stands at a path.
///
/// # Errors
///
/// The diagnostics, drawn.
pub fn link(path: &str, text: &str, settings: &Settings) -> Result<Program, String> {
    let mut read = |path: &str| fs::read_to_string(path).map_err(|e| e.to_string());
    let (mut sources, mut diagnostics) = load(Some(path), text, &mut read);
    let (program, more) = compile(&mut sources, settings);
    diagnostics.extend(more);
    program.ok_or_else(|| render(&sources, &diagnostics, Style::Plain))
}

/// Runs a program to its end, with every sample and gauge change point.
///
/// # Errors
///
/// Why the run stopped.
pub fn run(program: &Program) -> Result<Outcome, String> {
    let options = Options { record: true, ..Options::default() };
    simulate(program, None, &options, &mut |_, _| true).map_err(|e| format!("{}: {e:?}", program.name))
}

/// Stems of the cases whose names begin with `kind`, sorted.
///
/// # Errors
///
/// The folder can't be read.
pub fn cases(kind: char) -> Result<Vec<PathBuf>, String> {
    let folder = root().join("tests/cases");
    let files = fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut found: Vec<PathBuf> = files
        .filter_map(|file| Some(file.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "sq"))
        .filter(|path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(kind)))
        .collect();
    found.sort();
    Ok(found)
}
