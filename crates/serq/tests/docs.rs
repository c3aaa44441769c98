//! The code blocks of README.md and `docs/`, tried out. What stands behind the three
//! backticks says how:
//!
//! ```text
//! sq                  a whole program: it loads without a word and runs
//! sq fragment         a part: it parses as declarations, as statements, or as an expression
//! sq error[code]      a wrong program: it is refused with that code
//! sq later            not implemented yet: shown, not tried
//! console             `$ serq …` and what it prints, both streams; `…` stands for any text
//!                     in a line, and alone in a line for any lines
//! console slow        the same, in optimised builds only
//! ```
//!
//! Everything else (`text`, `sh`, `rust`, `ebnf`) is for reading only. A program whose
//! first line is a comment with a file's name is there under that name for the commands
//! of its page; `examples/`, `lib/` and `tests/oracle/` are there too. The pages of `docs/errors/` are tried
//! by `serq-lang`.
//!
//! `UPDATE_EXPECT=1` writes the output of commands anew, but for blocks with a `…`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serq_lang::{Settings, compile, load};
use serq_sim::{Options, simulate};

/// Most events a program of the documentation runs for.
const EVENTS_MAX: u64 = 5_000_000;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn pages() -> Vec<PathBuf> {
    fn below(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("the folder is there") {
            let path = entry.expect("it can be listed").path();
            if path.is_dir() {
                if path.file_name().is_some_and(|name| name != "errors") {
                    below(&path, found);
                }
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    let mut found: Vec<PathBuf> = ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md"]
        .into_iter()
        .map(|file| root().join(file))
        .filter(|path| path.exists())
        .collect();
    below(&root().join("docs"), &mut found);
    found.sort();
    found
}

/// A fenced block.
struct Block {
    /// What stands behind the backticks.
    kind: String,
    text: String,
    /// Of the first line inside, counted from 0.
    line: usize,
}

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (at, line) in page.lines().enumerate() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(kind)) => open = Some(Block { kind: kind.trim().into(), text: String::new(), line: at + 1 }),
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => block.text += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block is not closed");
    blocks
}

/// A folder for one page's commands, gone with this value.
struct Folder(PathBuf);

impl Folder {
    fn of(page: &Path) -> Self {
        let stem = page.file_stem().expect("a page has a name").to_string_lossy().into_owned();
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("docs-{stem}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("a folder can be made");
        for name in ["examples", "lib", "tests/oracle"] {
            copy(&root().join(name), &folder.join(name));
        }
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder can be made");
    for entry in fs::read_dir(from).expect("the folder is there") {
        let path = entry.expect("it can be listed").path();
        let target = to.join(path.file_name().expect("a file has a name"));
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).expect("a file can be copied");
        }
    }
}

/// The codes of what is wrong with a text, and the whole of it drawn.
fn look(text: &str, run: bool) -> (Vec<String>, String) {
    let mut read = |path: &str| fs::read_to_string(root().join(path)).map_err(|error| error.to_string());
    let here = root().join("page.sq");
    let (mut sources, mut found) = load(here.to_str(), text, &mut read);
    let (program, more) = compile(&mut sources, &Settings::default());
    found.extend(more);
    let mut codes: Vec<String> = found.iter().map(|one| one.code.to_owned()).collect();
    let mut drawn = serq_lang::diagnostic::render(&sources, &found, serq_lang::diagnostic::Style::Plain);
    if let Some(program) = program.filter(|_| run && found.is_empty()) {
        let options = Options { max_events: Some(EVENTS_MAX), ..Options::default() };
        if let Err(error) = simulate(&program, None, &options, &mut |_, _| true) {
            codes.push("run-error".into());
            drawn += &format!("{error:?}");
        }
    }
    (codes, drawn)
}

/// A part of a program parses as declarations, as statements, or as an expression.
fn fragment(text: &str) -> Result<(), String> {
    let as_items = serq_lang::parse(0, text).1;
    let as_statements = serq_lang::parse(0, &format!("session {{\n{text}\n}}")).1;
    let as_expression = serq_lang::parse(0, &format!("let x = ({text}\n);")).1;
    if as_items.is_empty() || as_statements.is_empty() || as_expression.is_empty() {
        return Ok(());
    }
    Err(format!("as declarations: {as_items:?}\nas statements: {as_statements:?}"))
}

/// What a command prints, both streams, the second after the first.
fn printed(command: &str, folder: &Path) -> Result<String, String> {
    let words = split(command);
    if words.first().is_none_or(|word| word != "serq") {
        return Err(format!("`{command}` is no serq command; a block of other commands is `sh`"));
    }
    let output = Command::new(env!("CARGO_BIN_EXE_serq"))
        .args(&words[1..])
        .current_dir(folder)
        .env_remove("COLUMNS")
        .output()
        .map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(text(&output.stdout) + &text(&output.stderr))
}

/// Words, with single quotes around those that have spaces or brackets.
fn split(command: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for character in command.chars() {
        match character {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            _ => words.last_mut().expect("there is always one").push(character),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Whether a line is as shown; `…` stands for any text.
fn line_matches(shown: &str, line: &str) -> bool {
    let mut parts = shown.split('…');
    let first = parts.next().expect("a split has a first part");
    let Some(mut rest) = line.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Whether all lines are as shown; a line of `…` stands for any lines.
fn matches(shown: &[&str], lines: &[&str]) -> bool {
    match (shown.split_first(), lines.split_first()) {
        (None, None) => true,
        (Some((&"…", shown)), _) => (0..=lines.len()).any(|skipped| matches(shown, &lines[skipped..])),
        (Some((first, shown)), Some((line, lines))) => line_matches(first, line) && matches(shown, lines),
        _ => false,
    }
}

fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim_end).collect()
}

/// Runs a block's commands; answers the block as it should be.
fn console(block: &Block, folder: &Path, wrong: &mut Vec<String>) -> String {
    let update = env::var_os("UPDATE_EXPECT").is_some() && !block.text.contains('…');
    let mut should = String::new();
    for part in format!("\n{}", block.text).split("\n$ ").skip(1) {
        let (command, shown) = part.split_once('\n').unwrap_or((part, ""));
        let output = match printed(command.trim(), folder) {
            Ok(output) => output,
            Err(what) => {
                wrong.push(what);
                continue;
            }
        };
        let (shown, now) = (lines(shown.trim_end()), lines(output.trim_end()));
        if !update && !matches(&shown, &now) {
            wrong.push(format!("`$ {command}` prints:\n{}\nnot:\n{}", now.join("\n"), shown.join("\n")));
        }
        should += &format!("$ {command}\n{}\n", now.join("\n"));
    }
    if update { should } else { block.text.clone() }
}

/// Tries a page; answers what is wrong with it.
fn check(page: &Path) -> Vec<String> {
    let text = fs::read_to_string(page).expect("the page can be read");
    let folder = Folder::of(page);
    let mut all = Vec::new();
    let mut replaced: Vec<String> = text.lines().map(Into::into).collect();
    // From the last block to the first, so that line numbers stand; files first.
    let blocks = blocks(&text);
    for block in &blocks {
        let first = block.text.lines().next().unwrap_or_default();
        if let Some(file) =
            first.strip_prefix("// ").filter(|name| block.kind.starts_with("sq") && name.ends_with(".sq"))
        {
            fs::write(folder.0.join(file), &block.text).expect("a file can be written");
        }
    }
    for block in blocks.iter().rev() {
        let mut wrong = Vec::new();
        match block.kind.split_once(' ').map_or((&block.kind[..], ""), |(kind, how)| (kind, how)) {
            ("sq", "") => {
                let (codes, drawn) = look(&block.text, true);
                if !codes.is_empty() {
                    wrong.push(drawn);
                }
            }
            ("sq", "fragment") => wrong.extend(fragment(&block.text).err()),
            ("sq", "later") => {}
            ("sq", how) => match how.strip_prefix("error[").and_then(|code| code.strip_suffix(']')) {
                Some(code) => {
                    let (codes, drawn) = look(&block.text, true);
                    if !codes.iter().any(|one| one == code) {
                        wrong.push(format!("it is not refused with `{code}`:\n{drawn}"));
                    }
                }
                None => wrong.push(format!("`sq {how}` is no kind of block")),
            },
            ("console", "slow") if cfg!(debug_assertions) => {}
            ("console", "" | "slow") => {
                let should = console(block, &folder.0, &mut wrong);
                let count = block.text.lines().count();
                replaced.splice(block.line..block.line + count, should.lines().map(Into::into));
            }
            ("text" | "sh" | "rust" | "ebnf" | "json" | "csv", _) => {}
            (kind, _) => wrong.push(format!("`{kind}` is no kind of block")),
        }
        let at = page.strip_prefix(root()).expect("it is ours").display();
        all.extend(wrong.into_iter().map(|one| format!("{at}:{}: {one}", block.line + 1)));
    }
    let replaced = replaced.join("\n") + "\n";
    if replaced != text && env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(page, replaced).expect("the page can be written");
    }
    all
}

#[test]
fn every_block_of_the_documentation_is_true() {
    let pages = pages();
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let checks: Vec<_> = pages.iter().map(|page| scope.spawn(|| check(page))).collect();
        checks.into_iter().flat_map(|one| one.join().expect("a page can be tried")).collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// A link to a file of the repository leads somewhere.
#[test]
fn every_relative_link_of_the_documentation_leads_somewhere() {
    let mut wrong = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).expect("the page can be read");
        for part in text.split("](").skip(1) {
            let target = part.split(')').next().unwrap_or_default();
            let file = target.split('#').next().unwrap_or_default();
            if file.is_empty() || file.contains("://") {
                continue;
            }
            if !page.parent().expect("a page is in a folder").join(file).exists() {
                wrong.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn dots_stand_for_any_text_and_any_lines() {
    assert!(matches(&["a …", "…", "z"], &["a b", "c", "d", "z"]));
    assert!(matches(&["…"], &[]));
    assert!(matches(&["a…c…e"], &["abcde"]));
    assert!(!matches(&["a…c"], &["abd"]));
    assert!(!matches(&["a"], &["a", "b"]));
}
