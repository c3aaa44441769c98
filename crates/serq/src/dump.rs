//! `--dump DIR`: every sample and every change of a gauge, as CSV.
//!
//! ```text
//!   DIR/ttft.csv            time,session,turn,value
//!   DIR/gauge/load.csv      time,value
//! ```
//!
//! Numbers read back to the same double.

use std::fs;
use std::path::{Path, PathBuf};

use serq_ir::Program;
use serq_sim::Outcome;

use crate::failure::Failure;
use crate::number::exact;
use crate::output;

/// Makes the directory before a long run, so that a wrong one is told at once.
pub(crate) fn prepare(folder: &Path) -> Result<(), Failure> {
    let gauges = folder.join("gauge");
    fs::create_dir_all(&gauges).map_err(|error| output::cannot("make the directory", folder, &error))?;
    // A directory that is there need not be one we may write to.
    let probe = folder.join(".serq-writes-here");
    fs::write(&probe, "").map_err(|error| output::cannot("write to", folder, &error))?;
    fs::remove_file(&probe).map_err(|error| output::cannot("write to", folder, &error))
}

/// Writes all files.
pub(crate) fn write(folder: &Path, program: &Program, outcome: &Outcome) -> Result<(), Failure> {
    for (name, samples) in program.observes.iter().zip(&outcome.samples) {
        let rows = samples.iter().map(|s| [exact(s.time), s.session.to_string(), exact(s.turn), exact(s.value)]);
        table(&folder.join(file_name(name)), ["time", "session", "turn", "value"], rows)?;
    }
    for (gauge, points) in program.gauges.iter().zip(&outcome.gauge_points) {
        let rows = points.iter().map(|&(time, value)| [exact(time), exact(value)]);
        table(&folder.join("gauge").join(file_name(&gauge.name)), ["time", "value"], rows)?;
    }
    Ok(())
}

fn table<const N: usize>(
    path: &PathBuf,
    heads: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> Result<(), Failure> {
    let written = csv::Writer::from_path(path).and_then(|mut writer| {
        writer.write_record(heads)?;
        for row in rows {
            writer.write_record(row)?;
        }
        Ok(writer.flush()?)
    });
    written.map_err(|error| match error.into_kind() {
        csv::ErrorKind::Io(error) => output::cannot("write", path, &error),
        other => Failure::Failed(format!("cannot write {}: {other:?}", path.display())),
    })
}

/// A name from the program as a file of one directory: text's names are safe, an IR's may be anything.
fn file_name(name: &str) -> String {
    let mut safe = String::new();
    for (at, byte) in name.bytes().enumerate() {
        let plain = byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-' || (byte == b'.' && at > 0);
        if plain {
            safe.push(char::from(byte));
        } else {
            safe.push_str(&format!("%{byte:02X}"));
        }
    }
    // Longer names are no file names on most systems.
    safe.truncate(200);
    safe + ".csv"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_never_leaves_the_directory() {
        assert_eq!(file_name("ttft"), "ttft.csv");
        assert_eq!(file_name("D.first"), "D.first.csv");
        assert_eq!(file_name("../../etc/x"), "%2E.%2F..%2Fetc%2Fx.csv");
        assert_eq!(file_name(""), ".csv");
    }
}
