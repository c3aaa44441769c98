//! The state file of a sweep: finished runs, so that an interrupted sweep goes on where it was.
//!
//! One JSON value a line. The first says what the file belongs to; then every cell's
//! figure names once, before its first run; then a line a run:
//!
//! ```text
//!   {"serq_sweep":1,"belongs_to":"9f2c…"}
//!   {"cell":"thr=1","names":[["observe","ttft",null,"mean"], …]}
//!   {"run":"thr=1","seed":3,"values":[0.0287, …],"notes":[],"stuck":false}
//! ```
//!
//! # Invariants
//!
//! - A line is whole or it is the last; a last line cut short is forgotten.
//! - A file is continued only by the program, settings and serq that began it
//!   ([`belongs_to`]). More seeds and more cells are the same sweep, continued.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serq_ir::json::Number;
use serq_sim::replicate::{FigureName, Figures, Part};

use crate::failure::Failure;
use crate::output;

/// The version of the file.
const VERSION: u32 = 1;

type NameLine = (String, String, Option<u32>, String);

#[derive(Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Line {
    Head {
        serq_sweep: u32,
        belongs_to: String,
    },
    Cell {
        cell: String,
        names: Vec<NameLine>,
    },
    Run {
        run: String,
        seed: u64,
        /// `None` for NaN.
        values: Vec<Option<Number>>,
        notes: Vec<String>,
        stuck: bool,
    },
}

/// An open state file and what it held.
pub(crate) struct StateFile {
    path: PathBuf,
    file: File,
    names: HashMap<String, Vec<FigureName>>,
    runs: HashMap<(String, u64), Figures>,
}

impl StateFile {
    /// Opens or begins a file.
    pub(crate) fn open(path: &Path, belongs_to: &str) -> Result<Self, Failure> {
        let cannot = |error: std::io::Error| output::cannot("use the state file", path, &error);
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(cannot)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(cannot)?;
        let mut state = Self { path: path.to_owned(), file, names: HashMap::new(), runs: HashMap::new() };
        // What stands after the last line end was cut short.
        let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let not_ours = || {
            Failure::Failed(format!("{} is no state file of a sweep: name another file for --resume", path.display()))
        };
        if whole == 0 && !bytes.is_empty() && !bytes.starts_with(b"{\"serq_sweep\"") {
            return Err(not_ours());
        }
        let text = std::str::from_utf8(&bytes[..whole]).map_err(|_| not_ours())?;
        for (at, line) in text.lines().enumerate() {
            let line: Line = serde_json::from_str(line).map_err(|_| not_ours())?;
            state.take(line, at == 0, belongs_to).ok_or_else(not_ours)??;
        }
        state.file.set_len(whole as u64).map_err(cannot)?;
        state.file.seek(SeekFrom::Start(whole as u64)).map_err(cannot)?;
        if whole == 0 {
            state.write(&Line::Head { serq_sweep: VERSION, belongs_to: belongs_to.to_owned() })?;
        }
        Ok(state)
    }

    /// `None` when the line has no place in a state file.
    fn take(&mut self, line: Line, first: bool, belongs_to: &str) -> Option<Result<(), Failure>> {
        match line {
            Line::Head { serq_sweep: VERSION, belongs_to: other } if first => {
                if other != belongs_to {
                    return Some(Err(Failure::Failed(format!(
                        "{} belongs to another program, other settings or another serq: name another file for --resume",
                        self.path.display()
                    ))));
                }
            }
            Line::Cell { cell, names } if !first => {
                let name = |(part, name, index, figure): NameLine| {
                    Some(FigureName { part: Part::from_word(&part)?, name, index, figure })
                };
                self.names.insert(cell, names.into_iter().map(name).collect::<Option<_>>()?);
            }
            Line::Run { run, seed, values, notes, stuck } if !first => {
                let names = self.names.get(&run).filter(|names| names.len() == values.len())?.clone();
                let values = values.into_iter().map(|value| value.map_or(f64::NAN, |Number(value)| value)).collect();
                self.runs.insert((run, seed), Figures { names, values, notes, stuck });
            }
            _ => return None,
        }
        Some(Ok(()))
    }

    /// A run that is finished.
    pub(crate) fn run(&self, cell: &str, seed: u64) -> Option<Figures> {
        self.runs.get(&(cell.to_owned(), seed)).cloned()
    }

    /// Whether a run is finished.
    pub(crate) fn has(&self, cell: &str, seed: u64) -> bool {
        self.runs.contains_key(&(cell.to_owned(), seed))
    }

    /// Adds a finished run.
    pub(crate) fn add(&mut self, cell: &str, seed: u64, run: &Figures) -> Result<(), Failure> {
        if !self.names.contains_key(cell) {
            let name = |n: &FigureName| (n.part.word().to_owned(), n.name.clone(), n.index, n.figure.clone());
            self.write(&Line::Cell { cell: cell.to_owned(), names: run.names.iter().map(name).collect() })?;
            self.names.insert(cell.to_owned(), run.names.clone());
        }
        self.write(&Line::Run {
            run: cell.to_owned(),
            seed,
            values: run.values.iter().map(|&value| (!value.is_nan()).then_some(Number(value))).collect(),
            notes: run.notes.clone(),
            stuck: run.stuck,
        })
    }

    fn write(&mut self, line: &Line) -> Result<(), Failure> {
        let mut text = serde_json::to_string(line).expect("a line has only JSON's types");
        text.push('\n');
        self.file
            .write_all(text.as_bytes())
            .and_then(|()| self.file.flush())
            .map_err(|error| output::cannot("write the state file", &self.path, &error))
    }
}

/// A hash of texts: 128 bits of FNV-1a. It guards against mistakes, not against malice.
pub(crate) fn belongs_to<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let mut hash = Fnv::default();
    for text in texts {
        // The length first, so that moving a letter to the next text is another hash.
        hash.add(&(text.len() as u64).to_le_bytes());
        hash.add(text.as_bytes());
    }
    hash.digits()
}

/// The hash of a value as it prints itself, which may be longer than should be kept.
pub(crate) fn digest(value: &impl fmt::Debug) -> String {
    let mut hash = Fnv::default();
    write!(hash, "{value:?}").expect("a hash takes every text");
    hash.digits()
}

/// FNV-1a of 128 bits.
struct Fnv(u128);

impl Default for Fnv {
    fn default() -> Self {
        Self(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }
}

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    }

    fn digits(&self) -> String {
        format!("{:032x}", self.0)
    }
}

impl fmt::Write for Fnv {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.add(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(values: &[f64]) -> Figures {
        let name = |at: usize| FigureName {
            part: Part::Pool,
            name: "P.kv".into(),
            index: Some(at as u32),
            figure: "mean_used".into(),
        };
        Figures {
            names: (0..values.len()).map(name).collect(),
            values: values.to_vec(),
            notes: vec!["a note".into()],
            stuck: true,
        }
    }

    fn path(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("serq-resume-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    }

    #[test]
    fn finished_runs_come_back_bit_for_bit_and_a_line_cut_short_does_not() {
        let path = path("whole");
        let run = figures(&[0.1 + 0.2, f64::INFINITY, f64::NAN, 5e-324]);
        let mut state = StateFile::open(&path, "x").unwrap();
        state.add("a=1", 7, &run).unwrap();
        state.add("a=1", 8, &run).unwrap();
        drop(state);
        let length = std::fs::metadata(&path).unwrap().len();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(length - 3).unwrap();
        let mut state = StateFile::open(&path, "x").unwrap();
        let back = state.run("a=1", 7).unwrap();
        assert_eq!(back.names, run.names);
        let bits = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&back.values), bits(&run.values));
        assert_eq!((back.notes, back.stuck), (run.notes.clone(), true));
        assert!(state.run("a=1", 8).is_none() && state.run("a=2", 7).is_none());
        state.add("a=1", 8, &run).unwrap();
        drop(state);
        assert!(StateFile::open(&path, "x").unwrap().run("a=1", 8).is_some());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn another_sweeps_file_and_any_other_file_are_refused() {
        let path = path("other");
        drop(StateFile::open(&path, "x").unwrap());
        let refused = |what: &str| match StateFile::open(&path, what) {
            Err(Failure::Failed(sentence)) => sentence,
            _ => panic!("not refused"),
        };
        assert!(refused("y").contains("belongs to another program"));
        for other in ["time,value\n1,2\n", "no line end", "{}\n", "\u{0}\u{1}\n"] {
            std::fs::write(&path, other).unwrap();
            assert!(refused("x").contains("no state file"), "{other}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), other);
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn the_hash_is_fnv_1a_over_lengths_and_texts() {
        assert_eq!(belongs_to([]), "6c62272e07bb014262b821756295c58d");
        assert_ne!(belongs_to(["ab", "c"]), belongs_to(["a", "bc"]));
    }
}
