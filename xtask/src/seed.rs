//! Our text of the seed's program against the seed's own text.
//!
//! Ours has other comments and another library file, and must be the same program: for
//! some settings and seeds both run, and every sample, gauge point and figure must have
//! the same bits. The hash of all of them is kept in `tests/pd/seed_identity.json`; a test
//! runs ours again and compares, so the two stay one program without the seed's text here.
//!
//! A change of the simulator that changes bits on purpose (another order of additions)
//! needs a new record: `cargo xtask seed FOLDER`.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use serq_ir::Program;
use serq_lang::Settings;

use crate::fingerprint::{Hash, differences, figures, hash};
use crate::parallel;
use crate::program::{self, SEED_PROGRAM, root};

/// How long a run is.
pub const HORIZON: f64 = 2000.0;
/// Seeds of each setting.
pub const SEEDS: std::ops::RangeInclusive<u64> = 1..=5;

/// The settings compared. `1e18`: never remote.
pub const SETTINGS: [&[(&str, &str)]; 5] =
    [&[], &[("thr", "1")], &[("thr", "1e18")], &[("blocksD", "1100"), ("Lambda", "1.2")], &[("NP", "4"), ("ND", "8")]];

/// A setting and a seed, and what came of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// `--set`s.
    pub sets: Vec<(String, String)>,
    /// `--seed`.
    pub seed: u64,
    /// Numbers hashed.
    pub numbers: usize,
    /// Of all numbers.
    pub hash: Hash,
}

/// Where the rows are kept.
pub fn record() -> PathBuf {
    root().join("tests/pd/seed_identity.json")
}

fn load(path: &Path, sets: &[(String, String)], seed: u64) -> Result<Program, String> {
    let settings = Settings { sets: sets.to_vec(), horizon: Some(HORIZON), seed: Some(seed), ..Settings::default() };
    program::read(path, &settings)
}

/// Runs our program with a setting and a seed.
///
/// # Errors
///
/// It doesn't load or stops.
pub fn ours(sets: &[(String, String)], seed: u64) -> Result<Row, String> {
    let program = load(&root().join(SEED_PROGRAM), sets, seed)?;
    let figures = figures(&program, &program::run(&program)?);
    Ok(Row { sets: sets.to_vec(), seed, numbers: figures.len(), hash: hash(&figures) })
}

fn compare(theirs: &Path, sets: &[(String, String)], seed: u64) -> Result<Row, String> {
    let their_program = load(theirs, sets, seed)?;
    let our_program = load(&root().join(SEED_PROGRAM), sets, seed)?;
    let theirs = figures(&their_program, &program::run(&their_program)?);
    let ours = figures(&our_program, &program::run(&our_program)?);
    let differences = differences(&theirs, &ours);
    if differences.is_empty() {
        Ok(Row { sets: sets.to_vec(), seed, numbers: ours.len(), hash: hash(&ours) })
    } else {
        Err(format!("{sets:?}, seed {seed}: not the seed's program\n  {}", differences.join("\n  ")))
    }
}

/// Compares all settings and seeds, and records the rows.
///
/// # Errors
///
/// Where the two programs part, or a file can't be read or written.
pub fn compare_and_record(folder: &Path) -> Result<String, String> {
    let theirs = folder.join("seeds").join(SEED_PROGRAM);
    let all: Vec<(Vec<(String, String)>, u64)> =
        SETTINGS.iter().flat_map(|sets| SEEDS.map(move |seed| (program::sets(sets).sets, seed))).collect();
    let rows: Vec<Row> =
        parallel::map(&all, |(sets, seed)| compare(&theirs, sets, *seed)).into_iter().collect::<Result<_, _>>()?;
    let list: Vec<String> = rows.iter().map(|row| format!("    {}", print(row))).collect();
    let text = format!("{{\n  \"horizon\": {HORIZON},\n  \"rows\": [\n{}\n  ]\n}}\n", list.join(",\n"));
    fs::write(record(), text).map_err(|e| format!("{}: {e}", record().display()))?;
    let numbers: usize = rows.iter().map(|row| row.numbers).sum();
    Ok(format!("{} runs, {numbers} numbers: the same bits as the seed's program", rows.len()))
}

fn print(row: &Row) -> Value {
    let sets: serde_json::Map<String, Value> =
        row.sets.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str()))).collect();
    json!({ "sets": sets, "seed": row.seed, "numbers": row.numbers, "hash": format!("{:016x}", row.hash.0) })
}

/// The recorded rows.
///
/// # Errors
///
/// The file can't be read or is not what [`compare_and_record`] writes.
pub fn recorded() -> Result<Vec<Row>, String> {
    let text = fs::read_to_string(record()).map_err(|e| format!("{}: {e}", record().display()))?;
    let value: Value = serde_json::from_str(&text).map_err(|e| format!("{}: {e}", record().display()))?;
    let rows = value["rows"].as_array().ok_or("no rows are recorded")?;
    rows.iter().map(|row| read_row(row).ok_or_else(|| format!("not a row: {row}"))).collect()
}

fn read_row(row: &Value) -> Option<Row> {
    let sets = row["sets"].as_object()?;
    let sets = sets.iter().map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())));
    Some(Row {
        sets: sets.collect::<Option<_>>()?,
        seed: row["seed"].as_u64()?,
        numbers: usize::try_from(row["numbers"].as_u64()?).ok()?,
        hash: Hash(u64::from_str_radix(row["hash"].as_str()?, 16).ok()?),
    })
}
