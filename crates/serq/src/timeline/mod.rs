//! `--timeline FILE`: a run written down as it goes on.
//!
//! ```text
//!   kernel ─ moves, steps ─▶ serq_sim::record::Recorder ─┬─▶ out.json   trace events: ui.perfetto.dev
//!                                                         └─▶ out.txt    the same in words
//! ```
//!
//! # Invariants
//!
//! - The file grows with the run and memory does not: only what goes on is remembered.
//! - The same run writes the same bytes.
//! - Leaps stay leaps: equal steps taken at once are one entry with their count.

pub(crate) mod members;
mod trace_events;
mod words;

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::rc::Rc;

use flate2::Compression;
use flate2::write::GzEncoder;
use serq_ir::Program;
use serq_sim::record::Recorder;

use crate::failure::Failure;
use crate::output;
use trace_events::TraceEvents;
use words::Words;

/// What part of a run is written.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    /// What ended before is left out.
    pub(crate) from: f64,
    /// What began after is left out.
    pub(crate) to: f64,
}

impl Span {
    fn meets(self, start: f64, end: f64) -> bool {
        end >= self.from && start <= self.to
    }
}

/// What a file is to look like.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    TraceEvents,
    Words,
}

/// The form a file's name asks for, and whether it is to be compressed.
pub(crate) fn form(path: &Path) -> Result<(Form, bool), Failure> {
    let name = path.to_string_lossy();
    let (stem, compressed) = name.strip_suffix(".gz").map_or((&*name, false), |stem| (stem, true));
    match Path::new(stem).extension().and_then(|e| e.to_str()) {
        Some("json") => Ok((Form::TraceEvents, compressed)),
        Some("txt") => Ok((Form::Words, compressed)),
        _ => Err(Failure::Usage(format!(
            "--timeline {name}: write out.json (trace events for ui.perfetto.dev), out.json.gz or out.txt (words)"
        ))),
    }
}

/// A timeline being written.
pub(crate) struct Timeline {
    recorder: Box<dyn Recorder>,
    out: Pen,
}

impl Timeline {
    /// Opens the file, so that a wrong one is told before a long run.
    pub(crate) fn create(path: &Path, program: &Program, span: Span) -> Result<Self, Failure> {
        let (form, compressed) = form(path)?;
        let file = File::create(path).map_err(|error| output::cannot("write", path, &error))?;
        let file = BufWriter::new(file);
        let sink =
            if compressed { Sink::Compressed(GzEncoder::new(file, Compression::default())) } else { Sink::Plain(file) };
        let out = Pen(Rc::new(RefCell::new(Paper { sink: Some(sink), error: None })));
        let recorder: Box<dyn Recorder> = match form {
            Form::TraceEvents => Box::new(TraceEvents::new(program, span, out.clone())),
            Form::Words => Box::new(Words::new(program, span, out.clone())),
        };
        Ok(Self { recorder, out })
    }

    /// For the simulation, and a way to ask whether the file can still be written.
    pub(crate) fn parts(&mut self) -> (&mut dyn Recorder, Pen) {
        (&mut *self.recorder, self.out.clone())
    }

    /// Closes the file.
    pub(crate) fn finish(self, path: &Path) -> Result<(), Failure> {
        self.out.close().map_err(|error| output::cannot("write", path, &error))
    }
}

/// The steps an engine takes.
struct Steps {
    since: f64,
    cost: f64,
    /// Session and tokens in each step.
    jobs: Vec<(u64, f64)>,
}

enum Sink {
    Plain(BufWriter<File>),
    Compressed(GzEncoder<BufWriter<File>>),
}

struct Paper {
    sink: Option<Sink>,
    /// The first one; nothing is written after it.
    error: Option<io::Error>,
}

/// Writes into the file; keeps the first error for the end.
#[derive(Clone)]
pub(crate) struct Pen(Rc<RefCell<Paper>>);

impl Pen {
    /// Whether an error keeps it from writing.
    pub(crate) fn is_broken(&self) -> bool {
        self.0.borrow().error.is_some()
    }

    fn write(&self, text: &str) {
        let paper = &mut *self.0.borrow_mut();
        if paper.error.is_some() {
            return;
        }
        let written = match &mut paper.sink {
            Some(Sink::Plain(file)) => file.write_all(text.as_bytes()),
            Some(Sink::Compressed(file)) => file.write_all(text.as_bytes()),
            None => Ok(()),
        };
        paper.error = written.err();
    }

    fn close(&self) -> io::Result<()> {
        let paper = &mut *self.0.borrow_mut();
        if let Some(error) = paper.error.take() {
            return Err(error);
        }
        match paper.sink.take() {
            Some(Sink::Plain(mut file)) => file.flush(),
            Some(Sink::Compressed(file)) => file.finish()?.flush(),
            None => Ok(()),
        }
    }
}
