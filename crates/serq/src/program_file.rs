//! From a file's name to a linked program, with its trace.
//!
//! The file holds program text, or IR as `serq ir` prints it: an IR is a JSON
//! object, and no program text begins with `{`. Paths in a program are relative to
//! the program; paths on the command line to where the command runs.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use serq_ir::{Arrive, Place, Program};
use serq_lang::Settings;
use serq_lang::diagnostic::{self, Diagnostic, Severity, Style};
use serq_lang::source::{SourceMap, Span};
use serq_sim::RunError;
use serq_sim::trace::{BadRows, TraceError, TraceFile};

use crate::failure::Failure;
use crate::flags::{MessageFlags, MessageFormat, ProgramFlags, SettingFlags};
use crate::output;

/// The code of a run-time error.
pub(crate) const RUN_ERROR: &str = "run-error";

/// A program's file, read.
pub(crate) struct ProgramFile {
    /// As given, or `<stdin>`.
    pub(crate) path: String,
    content: Content,
    message_format: MessageFormat,
}

enum Content {
    /// With what was wrong while reading: it is told together with what the linker finds.
    Text {
        sources: SourceMap,
        found: Vec<Diagnostic>,
    },
    Ir {
        program: Box<Program>,
    },
}

/// A program ready to run.
pub(crate) struct Linked {
    /// Closed, with the caller's settings.
    pub(crate) program: Program,
    /// For drawing run-time errors; empty for an IR.
    pub(crate) sources: SourceMap,
    /// What was found that does not stop it.
    pub(crate) warnings: Vec<Diagnostic>,
}

impl ProgramFile {
    /// Reads the file and everything it `use`s.
    pub(crate) fn open(flags: &ProgramFlags) -> Result<Self, Failure> {
        flags.settings.check()?;
        let text = read_text(&flags.file)?;
        let message_format = flags.messages.message_format;
        let (path, real) = if flags.file == "-" { ("<stdin>", None) } else { (&flags.file[..], Some(&flags.file[..])) };
        let path = path.to_owned();
        let start = text.trim_start_matches('\u{feff}').trim_start();
        if start.starts_with('{') {
            if !flags.settings.set.is_empty() || !flags.settings.def.is_empty() {
                return Err(Failure::Failed(format!(
                    "{path} is IR, where constants and definitions are folded: give --set and --def with the program's text"
                )));
            }
            let program = serq_ir::json::read(start).map_err(|what| Failure::Failed(format!("{path}: {what}")))?;
            return Ok(Self { path, content: Content::Ir { program: Box::new(program) }, message_format });
        }
        let mut read = |path: &str| {
            fs::read(path)
                .and_then(|bytes| String::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidData.into()))
                .map_err(|error| output::reason(&error))
        };
        let (sources, found) = serq_lang::load(real, &text, &mut read);
        Ok(Self { path, content: Content::Text { sources, found }, message_format })
    }

    /// Links with the caller's settings; errors have been drawn when this fails.
    pub(crate) fn link(
        &self,
        settings: &SettingFlags,
        more_sets: &[(String, String)],
        seed: Option<u64>,
    ) -> Result<Linked, Failure> {
        match &self.content {
            Content::Ir { program } => {
                let mut program = (**program).clone();
                override_run(&mut program, settings, seed)
                    .map_err(|what| Failure::Failed(format!("{}: {what}", self.path)))?;
                Ok(Linked { program, sources: SourceMap::default(), warnings: Vec::new() })
            }
            Content::Text { sources, found } => {
                let mut sources = sources.clone();
                let (program, more) = serq_lang::compile(&mut sources, &settings.settings(more_sets, seed));
                let diagnostics: Vec<Diagnostic> = found.iter().cloned().chain(more).collect();
                let wrong = diagnostics.iter().any(|found| found.severity == Severity::Error);
                match program {
                    Some(mut program) if !wrong => {
                        replace_trace(&mut program, settings)
                            .map_err(|what| Failure::Failed(format!("{}: {what}", self.path)))?;
                        Ok(Linked { program, sources, warnings: diagnostics })
                    }
                    _ => {
                        self.draw(&sources, &diagnostics);
                        Err(Failure::Told)
                    }
                }
            }
        }
    }

    /// Links a program's text to be served: a request from outside is its session.
    pub(crate) fn link_to_serve(&self, settings: &SettingFlags) -> Result<Linked, Failure> {
        // It is served for as long as anybody wants.
        self.link_as(Settings {
            served: true,
            horizon: Some(f64::MAX),
            warmup: Some(0.0),
            arrivals: None,
            ..settings.settings(&[], None)
        })
    }

    /// Links a program's text to be played: its sessions are clients.
    pub(crate) fn link_to_play(&self, settings: &SettingFlags, seed: Option<u64>) -> Result<Linked, Failure> {
        let mut linked = self.link_as(Settings { played: true, ..settings.settings(&[], seed) })?;
        replace_trace(&mut linked.program, settings)
            .map_err(|what| Failure::Failed(format!("{}: {what}", self.path)))?;
        Ok(linked)
    }

    /// Links a program's text as another than it is.
    fn link_as(&self, settings: Settings) -> Result<Linked, Failure> {
        let Content::Text { sources, found } = &self.content else {
            return Err(Failure::Failed(format!(
                "{} is IR, where requests are inlined: give the program's text",
                self.path
            )));
        };
        let mut sources = sources.clone();
        let (program, more) = serq_lang::compile(&mut sources, &settings);
        let found: Vec<Diagnostic> = found.iter().cloned().chain(more).collect();
        let wrong: Vec<Diagnostic> = found.into_iter().filter(|one| one.severity == Severity::Error).collect();
        match program {
            Some(program) if wrong.is_empty() => Ok(Linked { program, sources, warnings: Vec::new() }),
            _ => {
                self.draw(&sources, &wrong);
                Err(Failure::Told)
            }
        }
    }

    /// The program's texts, for a hash of their content; none of an IR.
    pub(crate) fn texts(&self) -> Vec<&str> {
        match &self.content {
            Content::Text { sources, .. } => sources.sources.iter().map(|source| &source.text[..]).collect(),
            Content::Ir { .. } => Vec::new(),
        }
    }

    /// Whether the file holds IR.
    pub(crate) fn is_ir(&self) -> bool {
        matches!(self.content, Content::Ir { .. })
    }

    /// Draws warnings on standard error.
    pub(crate) fn warn(&self, linked: &Linked) {
        self.draw(&linked.sources, &linked.warnings);
    }

    /// Reads the trace a linked program names.
    pub(crate) fn trace(&self, program: &Program, settings: &SettingFlags) -> Result<Option<TraceFile>, Failure> {
        let Some(trace) = &program.workload.trace else {
            return match &settings.trace {
                None => Ok(None),
                Some(_) => {
                    Err(Failure::Failed(format!("{} has no `trace` in its workload for --trace to replace", self.path)))
                }
            };
        };
        let path: PathBuf = match &settings.trace {
            Some(given) => given.into(),
            // Joining an absolute path answers that path.
            None => Path::new(&self.path).parent().unwrap_or(Path::new("")).join(&trace.path),
        };
        let cannot = |error: io::Error| output::cannot("read the trace", &path, &error);
        let bad_rows = if settings.skip_bad { BadRows::Skip } else { BadRows::Refuse };
        let read = open_unpacked(&path).map_err(cannot)?;
        let rows = TraceFile::read(read, bad_rows).map_err(|error| match error {
            TraceError::Unreadable(error) => cannot(error),
            wrong @ TraceError::Wrong { .. } => {
                Failure::Failed(format!("{}: {wrong}\n  --skip-bad leaves such rows out", path.display()))
            }
            TraceError::Empty => Failure::Failed(format!("{}: {error}", path.display())),
        })?;
        if matches!(program.workload.arrive, Arrive::Trace(_)) && rows.arrivals().is_none() {
            return Err(Failure::Failed(format!(
                "{} does not say when its sessions came, and {} has `arrive trace`: add a seventh column `at`, or write another law such as `arrive poisson(1)`",
                path.display(),
                self.path
            )));
        }
        Ok(Some(rows))
    }

    /// Draws a run-time error where it happened and answers the failure.
    pub(crate) fn refuse_run(&self, sources: &SourceMap, error: &RunError, run: &str) -> Failure {
        let session = error.session.map_or(String::new(), |session| format!("session {session}, "));
        let when = format!("{session}time {}", crate::number::exact(error.time));
        let run = if run.is_empty() { String::new() } else { format!(" in the run with {run}") };
        match error.at.and_then(|at| span(sources, at)) {
            Some(span) => {
                let message = format!("{}{run}", error.message);
                let diagnostic = Diagnostic::error(RUN_ERROR, span, message).label(when);
                self.draw(sources, &[diagnostic]);
                Failure::Told
            }
            None => {
                let place = match error.at {
                    Some(at) if at.line > 0 => format!(" (line {}, column {} of the source)", at.line, at.column),
                    _ => String::new(),
                };
                Failure::Failed(format!("{}: {}{run}: {when}{place}", self.path, error.message))
            }
        }
    }

    fn draw(&self, sources: &SourceMap, diagnostics: &[Diagnostic]) {
        draw(sources, diagnostics, self.message_format);
    }
}

/// Draws diagnostics on standard error, in colour if that is a terminal.
pub(crate) fn draw(sources: &SourceMap, diagnostics: &[Diagnostic], format: MessageFormat) {
    if diagnostics.is_empty() {
        return;
    }
    // The stream drops the colours where they are not wanted.
    let style = if format == MessageFormat::Short { Style::Short } else { Style::Colour };
    let text = diagnostic::render(sources, diagnostics, style);
    output::tell(text.trim_end());
}

/// Diagnostics of a text that belongs to no program.
pub(crate) fn draw_for(path: &str, text: &str, diagnostics: &[Diagnostic], flags: &MessageFlags) {
    draw(&SourceMap::new(path, text), diagnostics, flags.message_format);
}

/// A file's text, or standard input's for `-`.
pub(crate) fn read_text(path: &str) -> Result<String, Failure> {
    let bytes = if path == "-" {
        let mut bytes = Vec::new();
        io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes)
    } else {
        fs::read(path)
    };
    let name = if path == "-" { "standard input" } else { path };
    let bytes = bytes.map_err(|error| output::cannot("read", name, &error))?;
    String::from_utf8(bytes).map_err(|_| output::cannot("read", name, &io::ErrorKind::InvalidData.into()))
}

/// A file's content, unpacked if its first bytes say that it is gzip's, whatever its name is.
fn open_unpacked(path: &Path) -> io::Result<Box<dyn BufRead>> {
    const GZIP: [u8; 2] = [0x1f, 0x8b];
    let file = File::open(path)?;
    if file.metadata()?.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let mut read = BufReader::with_capacity(1 << 16, file);
    let packed = read.fill_buf()?.starts_with(&GZIP);
    Ok(if packed { Box::new(BufReader::new(MultiGzDecoder::new(read))) } else { Box::new(read) })
}

/// What can still be changed in an IR.
fn override_run(program: &mut Program, settings: &SettingFlags, seed: Option<u64>) -> Result<(), String> {
    let run = &mut program.run;
    run.horizon = settings.horizon.map_or(run.horizon, Into::into);
    run.warmup = settings.warmup.map_or(run.warmup, Into::into);
    run.seed = seed.unwrap_or(run.seed);
    run.arrivals = settings.arrivals.or(run.arrivals);
    if run.warmup >= run.horizon {
        return Err(format!("the warm-up {} must be below the horizon {}", run.warmup.0, run.horizon.0));
    }
    if settings.arrivals.is_some() && !program.workload.arrive.is_open() {
        return Err("--arrivals counts sessions that come one after another, and none do".into());
    }
    replace_trace(program, settings)
}

/// A printed IR names the trace it is to run with, and its speed.
fn replace_trace(program: &mut Program, settings: &SettingFlags) -> Result<(), String> {
    if let (Some(path), Some(trace)) = (&settings.trace, &mut program.workload.trace) {
        trace.path.clone_from(path);
    }
    match (settings.speed, &mut program.workload.arrive) {
        (None, _) => {}
        (Some(given), Arrive::Trace(speed)) => speed.0 = given,
        (Some(_), _) => return Err("--speed is an `arrive trace`'s, and the program has another law".into()),
    }
    Ok(())
}

/// The word or sign that stands at a place.
fn span(sources: &SourceMap, at: Place) -> Option<Span> {
    let text = &sources.sources.get(at.file as usize)?.text;
    let before = text.split_inclusive('\n').take(at.line.checked_sub(1)? as usize).map(str::len).sum::<usize>();
    let line = text.get(before..)?.lines().next()?;
    let column = at.column.checked_sub(1)? as usize;
    let (offset, first) = line.char_indices().nth(column)?;
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let length = if is_word(first) {
        line[offset..].find(|c| !is_word(c)).unwrap_or(line.len() - offset)
    } else {
        first.len_utf8()
    };
    let start = (before + offset) as u32;
    Some(Span { file: at.file, start, end: start + length as u32 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_becomes_the_word_that_stands_there() {
        let sources = SourceMap::new("a.sq", "x;\r\n  é run tool (1);\n");
        let word = |line, column| {
            span(&sources, Place { file: 0, line, column })
                .map(|span| &sources.sources[0].text[span.start as usize..span.end as usize])
        };
        assert_eq!(word(2, 5), Some("run"));
        assert_eq!(word(2, 14), Some("("));
        assert_eq!(word(1, 1), Some("x"));
        assert_eq!(word(0, 0), None);
        assert_eq!(word(9, 1), None);
        assert_eq!(word(1, 40), None);
    }
}
