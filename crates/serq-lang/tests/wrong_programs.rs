//! Wrong programs and what is said of them: every case of every file of `tests/lang/`.
//!
//! ```text
//! --- unknown pool ---
//! pool kv { cap 10; }
//! session { hold kw (1) { } }
//! //             ^^ error[unknown-pool]: no pool is named `kw`
//! //             help: write `kv`
//! ```
//!
//! The comments that say what is expected are taken out before the text is read, so a
//! place at the end of a line or of the text can be shown. Columns under the slashes are
//! written as numbers, `// 1-2: error[…]`. `UPDATE_EXPECT=1` writes what is said now.

use std::fmt::Write as _;
use std::path::Path;

use serq_lang::diagnostic::{Diagnostic, Severity};
use serq_lang::source::SourceMap;

/// What is said of a program. The cases of `syntax.sq` are parts of programs, read
/// and not linked; all others are linked, with a horizon, which hardly any of them says.
fn diagnostics(file: &str, sources: &mut SourceMap) -> Vec<Diagnostic> {
    if file == "syntax.sq" {
        return serq_lang::parse(0, &sources.sources[0].text).1;
    }
    let settings = serq_lang::Settings {
        horizon: (!sources.sources[0].text.contains("run {")).then_some(100.0),
        ..serq_lang::Settings::default()
    };
    serq_lang::compile(sources, &settings).1
}

/// One diagnostic as a case writes it.
#[derive(Debug)]
struct Said {
    /// Line of the text, from 0.
    line: usize,
    /// First column from 1, and how many.
    columns: (usize, usize),
    /// `error[code]: message`
    message: String,
    help: Vec<String>,
}

impl Said {
    /// A message and helps may be cut short in the file, and helps left out.
    fn meets(&self, written: &Said) -> bool {
        self.line == written.line
            && self.columns == written.columns
            && self.message.starts_with(&written.message)
            && written.help.iter().all(|help| self.help.iter().any(|said| said.starts_with(help)))
    }

    fn print(&self) -> String {
        let (first, count) = self.columns;
        let mut text = if first > 3 {
            format!("//{}{} {}\n", " ".repeat(first - 3), "^".repeat(count), self.message)
        } else {
            format!("// {first}-{}: {}\n", first + count - 1, self.message)
        };
        let indent = if first > 3 { first - 3 } else { 1 };
        for help in &self.help {
            writeln!(text, "//{}help: {help}", " ".repeat(indent)).unwrap();
        }
        text
    }
}

struct Case {
    title: String,
    text: String,
    written: Vec<Said>,
}

fn read(file: &str) -> (String, Vec<Case>) {
    let mut header = String::new();
    let mut cases: Vec<Case> = Vec::new();
    for line in file.lines() {
        if let Some(title) = line.strip_prefix("--- ").and_then(|rest| rest.strip_suffix(" ---")) {
            cases.push(Case { title: title.to_owned(), text: String::new(), written: Vec::new() });
            continue;
        }
        let Some(case) = cases.last_mut() else {
            header.push_str(line);
            header.push('\n');
            continue;
        };
        let count = case.text.lines().count();
        match said(line, count.saturating_sub(1)) {
            Some(said) => case.written.push(said),
            None => match (line.trim_start().strip_prefix("//"), case.written.last_mut()) {
                (Some(comment), Some(last)) if comment.trim_start().starts_with("help: ") => {
                    last.help.push(comment.trim_start()["help: ".len()..].to_owned());
                }
                _ => {
                    case.text.push_str(line);
                    case.text.push('\n');
                }
            },
        }
    }
    for case in &mut cases {
        case.text.truncate(case.text.trim_end_matches('\n').len());
    }
    (header, cases)
}

/// The line as an expectation, if it is one.
fn said(line: &str, of: usize) -> Option<Said> {
    let comment = line.strip_prefix("//")?;
    let rest = comment.trim_start();
    let (columns, message) = if rest.starts_with('^') {
        let carets = rest.len() - rest.trim_start_matches('^').len();
        let first = 3 + comment.len() - rest.len();
        ((first, carets), rest[carets..].trim_start())
    } else {
        let (range, message) = rest.split_once(": ")?;
        let (first, last) = range.split_once('-')?;
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        ((first, last + 1 - first), message)
    };
    let is_message = message.starts_with("error[") || message.starts_with("warning[");
    is_message.then(|| Said { line: of, columns, message: message.to_owned(), help: Vec::new() })
}

/// What is said of a text now.
fn say(file: &str, text: &str) -> Vec<Said> {
    let mut sources = SourceMap::new("case.sq", text);
    let mut all = diagnostics(file, &mut sources);
    all.sort_by_key(|diagnostic| diagnostic.span.map(|span| span.start));
    all.into_iter()
        .map(|diagnostic| {
            let span = diagnostic.span.unwrap_or_default();
            let (line, column) = sources.line_column(span);
            let marked = &text[span.start as usize..span.end as usize];
            let count = marked.lines().next().map_or(0, |line| line.chars().count()).max(1);
            let severity = match diagnostic.severity {
                Severity::Error => "error",
                Severity::Warning => "warning",
            };
            Said {
                line: line as usize - 1,
                columns: (column as usize, count),
                message: format!("{severity}[{}]: {}", diagnostic.code, diagnostic.message),
                help: diagnostic.help,
            }
        })
        .collect()
}

fn print(name: &str, header: &str, cases: &[Case]) -> String {
    let mut file = header.to_owned();
    for (index, case) in cases.iter().enumerate() {
        if index > 0 {
            file.push('\n');
        }
        writeln!(file, "--- {} ---", case.title).unwrap();
        let said = say(name, &case.text);
        for (number, line) in case.text.split('\n').enumerate() {
            writeln!(file, "{line}").unwrap();
            for one in said.iter().filter(|one| one.line == number) {
                file.push_str(&one.print());
            }
        }
    }
    file
}

#[test]
fn wrong_programs_say_where_and_what() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/lang");
    let mut paths: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "sq"))
        .collect();
    paths.sort();
    let mut failures = String::new();
    for path in paths {
        let (header, cases) = read(&std::fs::read_to_string(&path).unwrap());
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            std::fs::write(&path, print(&name, &header, &cases)).unwrap();
            continue;
        }
        for case in &cases {
            let said = say(&name, &case.text);
            let equal = said.len() == case.written.len()
                && said.iter().zip(&case.written).all(|(said, written)| said.meets(written));
            if !equal {
                let one = Case { title: case.title.clone(), text: case.text.clone(), written: Vec::new() };
                writeln!(failures, "{name}, now:\n{}", print(&name, "", &[one])).unwrap();
            }
        }
    }
    assert!(failures.is_empty(), "\n{failures}(UPDATE_EXPECT=1 writes this into the files)");
}
