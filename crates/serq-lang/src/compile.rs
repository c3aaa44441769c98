//! The front door: texts in, a program and everything wrong with it out.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use serq_ir as ir;

use crate::ast::{self, Item};
use crate::diagnostic::{Diagnostic, Severity};
use crate::link::{self, Overrides};
use crate::nearest;
use crate::parser;
use crate::played;
use crate::service;
use crate::source::{SourceMap, Span};

/// What a caller may change without touching the text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// `--set name=expr`: replaces a `let`. The last of one name wins.
    pub sets: Vec<(String, String)>,
    /// `--def name=expr`: replaces the body of an expression definition.
    pub defs: Vec<(String, String)>,
    /// Replaces the program's horizon.
    pub horizon: Option<f64>,
    /// Replaces the program's warm-up.
    pub warmup: Option<f64>,
    /// Replaces the program's seed.
    pub seed: Option<u64>,
    /// Replaces the program's limit on arrivals.
    pub arrivals: Option<u64>,
    /// Replaces the program's trace file.
    pub trace: Option<String>,
    /// The program is to be served: each session is one request from outside. Its trace blocks,
    /// `new` and `out` are the request's, and nobody arrives by themselves.
    pub served: bool,
    /// The program is to be played: its sessions are clients of something else ([`crate::played`]).
    pub played: bool,
}

/// The path of a program given as text, which can't `use` files.
pub const TEXT: &str = "<text>";

/// Fills the map with what `use` statements name. `read` gets the path joined
/// relative to the file the `use` stands in and answers the text, or why not.
pub fn load(
    path: Option<&str>,
    text: &str,
    read: &mut dyn FnMut(&str) -> Result<String, String>,
) -> (SourceMap, Vec<Diagnostic>) {
    let mut sources = SourceMap::new(path.unwrap_or(TEXT), text);
    let mut diagnostics = Vec::new();
    if path.is_none() {
        return (sources, diagnostics);
    }
    let mut file = 0;
    while file < sources.sources.len() {
        let (tree, _) = parser::parse(file as u32, &sources.sources[file].text);
        for item in &tree.items {
            let (Item::Use(used) | Item::Vary(used)) = item else { continue };
            let joined = join(&sources.sources[file].path, &used.path);
            if find(&sources, &joined).is_some() || sources.unread.contains(&joined) {
                continue;
            }
            match read(&joined) {
                Ok(text) => {
                    sources.add(joined, text);
                }
                Err(why) => {
                    diagnostics.push(
                        Diagnostic::error("use", used.path_span, format!("`{}` can't be read: {why}", used.path))
                            .label(format!("looked for {joined}"))
                            .help("the path is relative to the file it stands in"),
                    );
                    sources.unread.push(joined);
                }
            }
        }
        file += 1;
    }
    (sources, diagnostics)
}

/// Where a `use` in `file` of `path` points.
fn join(file: &str, path: &str) -> String {
    let folder = Path::new(file).parent().unwrap_or(Path::new(""));
    folder.join(path).to_string_lossy().into_owned()
}

/// Two spellings of one path are one file.
fn plain(path: &str) -> PathBuf {
    let mut out = PathBuf::new();
    for part in Path::new(path).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if out.file_name().is_some() => {
                out.pop();
            }
            other => out.push(other),
        }
    }
    out
}

fn find(sources: &SourceMap, path: &str) -> Option<usize> {
    let wanted = plain(path);
    sources.sources.iter().position(|s| plain(&s.path) == wanted)
}

/// Text to program. Adds the texts of `--set` and `--def` to the map, so that
/// diagnostics can point into them.
///
/// All diagnostics of all phases come at once; the program only if none of them is
/// an error.
pub fn compile(sources: &mut SourceMap, settings: &Settings) -> (Option<ir::Program>, Vec<Diagnostic>) {
    let mut diagnostics = Vec::new();
    let program_files = sources.sources.len();
    let mut files: Vec<ast::File> = Vec::with_capacity(program_files);
    let mut broken = !sources.unread.is_empty();
    for (at, source) in sources.sources.iter().enumerate() {
        let (tree, found) = parser::parse(at as u32, &source.text);
        broken |= found.iter().any(|d| d.severity == Severity::Error);
        diagnostics.extend(found);
        files.push(tree);
    }
    let mut overrides = Overrides {
        lets: BTreeSet::new(),
        horizon: settings.horizon,
        warmup: settings.warmup,
        seed: settings.seed,
        arrivals: settings.arrivals,
        trace: settings.trace.clone(),
    };
    let base = vary(sources, &mut files, &mut overrides, &mut diagnostics);
    broken |= base.is_none();
    if settings.played
        && let Err(found) = played::rewrite(&mut files)
    {
        broken = true;
        diagnostics.push(*found);
    }
    service::name_words(&mut files);
    if settings.served
        && let Err(found) = service::rewrite(sources, &mut files)
    {
        broken = true;
        diagnostics.push(*found);
    }
    for (name, text) in &settings.sets {
        let (expr, found) = added(sources, "--set", name, text);
        broken |= !found.is_empty();
        diagnostics.extend(found);
        if replace_let(&mut files, name, expr) {
            overrides.lets.insert(name.clone());
        } else {
            broken = true;
            let known = names(&files, let_name);
            diagnostics.push(unknown("constant", name, &known));
        }
    }
    for (name, text) in &settings.defs {
        let (expr, found) = added(sources, "--def", name, text);
        broken |= !found.is_empty();
        diagnostics.extend(found);
        if !replace_def(&mut files, name, expr) {
            broken = true;
            let known = names(&files, |item| match item {
                Item::Def(ast::Def { name, body: ast::DefBody::Expr(_), .. }) => Some(&name.text),
                _ => None,
            });
            diagnostics.push(unknown("definition of a value", name, &known));
        }
    }
    let base = base.unwrap_or(0);
    let mut order =
        Order { sources, files: &files, base, seen: BTreeSet::new(), items: Vec::new(), diagnostics: Vec::new() };
    order.file(base);
    let Order { items, diagnostics: used, .. } = order;
    broken |= !used.is_empty();
    diagnostics.extend(used);
    let (mut program, found) = link::link(sources, name_of(&sources.sources[0].path), &items, overrides, broken);
    diagnostics.extend(found);
    if let Some(linked) = &program
        && let Err(why) = ir::verify::verify(linked)
    {
        // The kernel trusts a program; what the linker should have refused stops here.
        diagnostics.push(
            Diagnostic::error("not-verified", None, format!("the linked program is not sound: {why}"))
                .help("this is a mistake of serq, not of the program: please report it with the text"),
        );
        program = None;
    }
    (program, diagnostics)
}

/// Adds a setting's text to the map and reads it.
fn added(sources: &mut SourceMap, flag: &str, name: &str, text: &str) -> (ast::Expr, Vec<Diagnostic>) {
    let file = sources.add(format!("{flag} {name}"), text);
    parser::parse_expr(file, text)
}

fn replace_let(files: &mut [ast::File], name: &str, expr: ast::Expr) -> bool {
    for item in files.iter_mut().flat_map(|f| &mut f.items) {
        if let Item::Let(declared) = item
            && declared.name.text == name
        {
            declared.value = expr;
            return true;
        }
    }
    false
}

fn replace_def(files: &mut [ast::File], name: &str, expr: ast::Expr) -> bool {
    for item in files.iter_mut().flat_map(|f| &mut f.items) {
        if let Item::Def(ast::Def { name: defined, body: ast::DefBody::Expr(body), .. }) = item
            && defined.text == name
        {
            *body = expr;
            return true;
        }
    }
    false
}

/// Follows `vary`: the file of the program that the first one is a variant of, its `let`s and
/// its `run` replaced. `None`: something was wrong, and told.
fn vary(
    sources: &SourceMap,
    files: &mut [ast::File],
    overrides: &mut Overrides,
    diagnostics: &mut Vec<Diagnostic>,
) -> Option<usize> {
    let told = diagnostics.len();
    let mut variants = Vec::new();
    let mut file = 0;
    while let Some(Item::Vary(varied)) = files[file].items.iter().find(|item| matches!(item, Item::Vary(_))) {
        let joined = join(&sources.sources[file].path, &varied.path);
        let found = find(sources, &joined).filter(|found| *found < files.len());
        let said = match found {
            _ if sources.sources[file].path == TEXT => "a program given as text can't `vary` a file".to_owned(),
            Some(other) if other == file || variants.contains(&other) => {
                format!("`{}` is a variant of itself", varied.path)
            }
            // A file that can't be read is told where it is read.
            None if sources.unread.contains(&joined) => return None,
            None => format!("`{}` was not loaded", varied.path),
            Some(other) => {
                variants.push(file);
                file = other;
                continue;
            }
        };
        diagnostics.push(Diagnostic::error("vary", varied.path_span, said));
        return None;
    }
    // The innermost first: what is said further out is said last.
    for &variant in variants.iter().rev() {
        let path = sources.sources[variant].path.clone();
        for item in std::mem::take(&mut files[variant].items) {
            match item {
                Item::Vary(varied) if files[variant].items.is_empty() => {
                    move_trace(files, file, &varied.path);
                    files[variant].items.push(Item::Vary(varied));
                }
                Item::Let(declared) => {
                    let name = declared.name.text.clone();
                    if replace_let(&mut files[file..=file], &name, declared.value) {
                        overrides.lets.insert(name);
                    } else {
                        let known = names(&files[file..=file], let_name);
                        let span = declared.name.span;
                        diagnostics.push(Diagnostic { span: Some(span), ..unknown("constant", &name, &known) });
                    }
                }
                Item::Run(run) => {
                    files[file].items.retain(|item| !matches!(item, Item::Run(_)));
                    files[file].items.push(Item::Run(run));
                }
                other => diagnostics.push(
                    Diagnostic::error("vary", first_of(&other), "a variant says other numbers and no more")
                        .label("this is no `let` or `run`, or `vary` again")
                        .help(format!("{path} takes everything else from the program it varies")),
                ),
            }
        }
    }
    (diagnostics.len() == told).then_some(file)
}

/// A trace's path is relative to the program it is named in.
fn move_trace(files: &mut [ast::File], base: usize, varied: &str) {
    for item in &mut files[base].items {
        let Item::Workload(workload) = item else { continue };
        for part in &mut workload.items {
            if let ast::WorkloadItem::Trace { path, .. } = part {
                *path = join(varied, path);
            }
        }
    }
}

fn let_name(item: &Item) -> Option<&String> {
    match item {
        Item::Let(declared) => Some(&declared.name.text),
        _ => None,
    }
}

fn names<'f>(files: &'f [ast::File], pick: impl Fn(&'f Item) -> Option<&'f String>) -> Vec<&'f str> {
    files.iter().flat_map(|f| &f.items).filter_map(pick).map(String::as_str).collect()
}

fn unknown(what: &str, name: &str, known: &[&str]) -> Diagnostic {
    let d = Diagnostic::error("unknown-setting", None, format!("no {what} is named `{name}`"));
    let d = match nearest::nearest(name, known.iter().copied()) {
        Some(n) => d.help(format!("write `{n}`")),
        None => d,
    };
    match known {
        [] => d.help("the program declares none"),
        _ => d.help(format!("the program's: {}", known.join(", "))),
    }
}

/// The program's name: the file's stem.
fn name_of(path: &str) -> String {
    if path == TEXT {
        return "program".into();
    }
    Path::new(path).file_stem().map_or_else(|| "program".into(), |s| s.to_string_lossy().into_owned())
}

/// The items of a program with each `use` replaced by its file's, once.
struct Order<'s, 'a> {
    sources: &'s SourceMap,
    files: &'a [ast::File],
    /// The file of the program: the first, or what it varies.
    base: usize,
    seen: BTreeSet<usize>,
    items: Vec<&'a Item>,
    diagnostics: Vec<Diagnostic>,
}

impl Order<'_, '_> {
    fn file(&mut self, file: usize) {
        // Each file is visited once, so the recursion is as deep as there are files.
        self.seen.insert(file);
        let mut stack = vec![(file, 0)];
        while let Some((file, at)) = stack.pop() {
            let Some(item) = self.files[file].items.get(at) else { continue };
            stack.push((file, at + 1));
            match item {
                Item::Use(used) => {
                    if self.sources.sources[file].path == TEXT {
                        self.diagnostics.push(
                            Diagnostic::error("use", used.span, "a program given as text can't `use` a file")
                                .label("relative to which folder?")
                                .help("put the program into a file, or paste the definitions"),
                        );
                        continue;
                    }
                    let joined = join(&self.sources.sources[file].path, &used.path);
                    match find(self.sources, &joined) {
                        Some(other) if other < self.files.len() => {
                            if self.seen.insert(other) {
                                stack.push((other, 0));
                            }
                        }
                        _ if self.sources.unread.contains(&joined) => {}
                        _ => self.diagnostics.push(
                            Diagnostic::error("use", used.path_span, format!("`{}` was not loaded", used.path))
                                .label(format!("looked for {joined}")),
                        ),
                    }
                }
                Item::Def(_) => self.items.push(item),
                _ if file != self.base => self.diagnostics.push(
                    Diagnostic::error("use", first_of(item), "a file that is `use`d holds definitions only")
                        .label("this is no `def` or `use`")
                        .help("move it into the program"),
                ),
                _ => self.items.push(item),
            }
        }
    }
}

/// Where an item begins.
fn first_of(item: &Item) -> Span {
    match item {
        Item::Let(i) | Item::Gauge(i) => i.name.span,
        Item::Use(i) | Item::Vary(i) => i.span,
        Item::Def(i) => i.name.span,
        Item::Pool(i) => i.name.span,
        Item::Stage(i) => i.name.span,
        Item::Queue(i) => i.name.span,
        Item::Relation(i) => i.reader.span,
        Item::Share(i) => i.span,
        Item::Workload(i) => i.keyword_span,
        Item::Session(i) | Item::Server(i) => i.keyword_span,
        Item::Run(i) => i.keyword_span,
    }
}
