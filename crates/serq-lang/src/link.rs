//! A parsed program becomes an [`ir::Program`].
//!
//! ```text
//!   items ─declare─▶ names ─fold─▶ constants, sizes ─┬─▶ pools, stages (family.rs)
//!                                                     ├─▶ entries alone, leases (queue.rs)
//!                                                     ├─▶ session, workload (statement.rs, workload.rs)
//!                                                     └─▶ lints over the result (lint.rs)
//! ```
//!
//! A step that finds a mistake reports it and answers [`Reported`]; the others go
//! on, so one mistake is one message and all mistakes come at once.
//!
//! # Invariants
//!
//! - What was reported is not reported again: a declaration that was refused is
//!   remembered in `declined` and uses of its name stay silent.
//! - A program is answered only if nothing was reported as an error.
//! - The result has at most [`NODES_MAX`] nodes and nests at most
//!   [`serq_ir::DEPTH_MAX`] deep, whatever substitution would make of the text.

use std::collections::{BTreeMap, BTreeSet};

use serq_ir::json::Number;
use serq_ir::{self as ir, DEPTH_MAX, MEMBERS_MAX};

use crate::ast::{self, Item};
use crate::diagnostic::Diagnostic;
use crate::fold;
use crate::lint;
use crate::moment::{self, Clause};
use crate::resolve::{Findings, Names, Reported, Result};
use crate::scope::{Room, ScopeId, Scopes};
use crate::source::{SourceMap, Span};

/// Most nodes of a linked program: substitution can double a text at every line.
pub(crate) const NODES_MAX: usize = 2_000_000;

/// Deepest recursion of the linker, parentheses and substitutions included.
const RECURSION_MAX: usize = 3 * DEPTH_MAX;

/// Replacements of `let`s by the caller, and the caller's run settings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overrides {
    pub(crate) lets: BTreeSet<String>,
    pub(crate) horizon: Option<f64>,
    pub(crate) warmup: Option<f64>,
    pub(crate) seed: Option<u64>,
    pub(crate) arrivals: Option<u64>,
    pub(crate) trace: Option<String>,
}

/// The state of one linking.
pub(crate) struct Linker<'a> {
    pub(crate) names: Names<'a>,
    pub(crate) findings: Findings,
    pub(crate) scopes: Scopes<'a>,
    /// The program's own scope, below every declaration.
    pub(crate) program: ScopeId,
    /// Values of the `let`s above.
    pub(crate) constants: BTreeMap<&'a str, Result<f64>>,
    pub(crate) constant_order: Vec<&'a str>,
    /// Values of the `let`s above that are lists, and their places.
    pub(crate) lists: Vec<ir::List>,
    pub(crate) list_of: BTreeMap<&'a str, Result<u32>>,
    /// Constants are being folded, so some may be missing.
    pub(crate) folding: bool,
    /// Recursion, here.
    pub(crate) depth: usize,
    /// Nodes on the way from the root of the expression being linked.
    pub(crate) height: usize,
    /// Blocks inside blocks, here.
    pub(crate) blocks: usize,
    pub(crate) nodes: usize,
    pub(crate) too_large: bool,
    /// Terms the enclosing aggregates write out.
    pub(crate) terms: u64,
    /// Counts of the enclosing aggregates, the outermost first.
    pub(crate) aggregates: Vec<u32>,
    /// Terms whose indices were tried out so far.
    pub(crate) terms_tried: u64,
    /// Some text could not be read, so a name may lack its declaration.
    pub(crate) broken: bool,
    /// Statements that were refused, as far as lints over the rest would misread that.
    pub(crate) gaps: Gaps,
    /// Entries somebody calls.
    pub(crate) called: BTreeSet<(u32, u32)>,
    /// An entry nobody calls is looked at: what a call would report is reported.
    pub(crate) strict: bool,
    pub(crate) hidden_at: BTreeMap<&'a str, Span>,
    /// Names whose declaration was refused.
    pub(crate) declined: BTreeSet<String>,
    pub(crate) bad_definitions: BTreeSet<&'a str>,
    /// The `fork` whose leg is being linked.
    pub(crate) leg: Option<Span>,
    /// Readers whose relation was refused.
    pub(crate) unrelated: BTreeSet<usize>,
    /// A relation names a queue that does not exist.
    pub(crate) relation_refused: bool,
    /// Verbs of entries that call themselves round some corner; said once.
    pub(crate) recursive: BTreeSet<Span>,
    pub(crate) entry_sets: BTreeMap<(u32, u32), std::rc::Rc<BTreeSet<&'a str>>>,
    /// Per queue: the pool all its entries lease.
    pub(crate) leases: Vec<Leases>,
    pub(crate) observes: Vec<String>,
    pub(crate) observe_of: BTreeMap<&'a str, usize>,
    pub(crate) calls: Vec<(usize, Span)>,
    pub(crate) request: Requests<'a>,
    pub(crate) multi_run: Option<Span>,
    pub(crate) places: Places,
    pub(crate) overrides: Overrides,
}

/// What `from Q` finds out about the entries of Q.
#[derive(Clone)]
pub(crate) enum Leases {
    /// All lease these; the first is meant.
    Pools(Vec<usize>),
    /// This entry does not, or they differ: why.
    None(Span, String),
    /// The entries have errors of their own.
    Unknown,
}

/// Who answers `request` and where it was written.
#[derive(Default)]
pub(crate) struct Requests<'a> {
    pub(crate) server: Option<&'a ast::SessionBlock>,
    /// `request;` has been met.
    pub(crate) server_used: bool,
    /// The statements being linked are the workload's session.
    pub(crate) allowed: bool,
    /// The statements being linked are in a server, route or entry.
    pub(crate) serving: bool,
}

/// Places of the linked statements, and their spans for the lints.
pub(crate) struct Places {
    lines: Vec<Vec<u32>>,
    texts: Vec<String>,
    spans: BTreeMap<(u32, u32, u32), Vec<(Part, Span)>>,
}

/// A part of a statement a lint may point at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Whole,
    /// The k-th pool or stage named.
    Reference(usize),
    Units(usize),
    Reserve(usize),
    Value,
    /// The pool of `lease`, `growing` or a transfer's target.
    Second,
}

impl Places {
    fn new(sources: &SourceMap) -> Self {
        let lines = sources
            .sources
            .iter()
            .map(|s| {
                let newlines = s.text.bytes().enumerate().filter(|(_, b)| *b == b'\n');
                std::iter::once(0).chain(newlines.map(|(at, _)| at as u32 + 1)).collect()
            })
            .collect();
        let texts = sources.sources.iter().map(|s| s.text.clone()).collect();
        Self { lines, texts, spans: BTreeMap::new() }
    }

    /// The text of a span, if it is short enough to quote.
    pub(crate) fn text(&self, span: Span) -> Option<&str> {
        let text = self.texts[span.file as usize].get(span.start as usize..span.end as usize)?;
        (text.len() <= 60 && !text.contains('\n')).then_some(text)
    }

    /// The first `(` of a statement, where an own stage is not named.
    pub(crate) fn parenthesis(&self, span: Span) -> Span {
        let text = &self.texts[span.file as usize];
        let found = text.get(span.start as usize..span.end as usize).and_then(|t| t.find('('));
        found.map_or(span, |at| Span { start: span.start + at as u32, ..span })
    }

    /// From a word that stands before a span to its end.
    pub(crate) fn back_to_word(&self, word: &str, span: Span) -> Span {
        let before = self.texts[span.file as usize].get(..span.start as usize);
        let found = before.and_then(|t| t.rfind(word));
        found.map_or(span, |at| Span { start: at as u32, ..span })
    }

    /// Does some text declare or set this name, readable or not?
    fn declares(&self, word: &str) -> bool {
        let before = ["pool", "stage", "queue", "let", "def", "set", "choose", "mark"];
        self.texts.iter().any(|text| {
            let mut last = "";
            text.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|w| !w.is_empty()).any(|w| {
                let found = w == word && before.contains(&last);
                last = w;
                found
            })
        })
    }

    /// The place of a span's first character.
    pub(crate) fn place(&self, span: Span) -> ir::Place {
        let file = span.file as usize;
        let line = self.lines[file].partition_point(|&start| start <= span.start) - 1;
        let start = self.lines[file][line] as usize;
        let column = self.texts[file].get(start..span.start as usize).map_or(0, |t| t.chars().count());
        ir::Place { file: span.file, line: line as u32 + 1, column: column as u32 + 1 }
    }

    /// Remembers where the parts of the statement at a place are.
    pub(crate) fn remember(&mut self, at: ir::Place, part: Part, span: Span) {
        let parts = self.spans.entry((at.file, at.line, at.column)).or_default();
        // A call knows more than the entry alone, so what comes later counts.
        match parts.iter_mut().find(|(p, _)| *p == part) {
            Some((_, known)) => *known = span,
            None => parts.push((part, span)),
        }
    }

    /// Where a part of the statement is, or the statement.
    pub(crate) fn span(&self, at: ir::Place, part: Part) -> Option<Span> {
        let parts = self.spans.get(&(at.file, at.line, at.column))?;
        let found = parts.iter().find(|(p, _)| *p == part);
        found.or_else(|| parts.iter().find(|(p, _)| *p == Part::Whole)).map(|(_, s)| *s)
    }
}

/// A diagnostic being written.
pub(crate) struct Draft(pub(crate) Diagnostic);

impl Draft {
    pub(crate) fn label(self, text: impl Into<String>) -> Self {
        Self(self.0.label(text))
    }
    pub(crate) fn note(self, span: Span, text: impl Into<String>) -> Self {
        Self(self.0.note(span, text))
    }
    pub(crate) fn help(self, text: impl Into<String>) -> Self {
        Self(self.0.help(text))
    }
    pub(crate) fn done(self, linker: &mut Linker<'_>) -> Reported {
        linker.findings.report(self.0)
    }
}

/// What refused statements leave unknown of the session.
#[derive(Debug, Default)]
pub(crate) struct Gaps {
    /// Which statements run, inside of which holds.
    pub(crate) order: bool,
    /// Where time passes.
    pub(crate) time: bool,
}

/// Links the items of a program, in text order.
pub(crate) fn link(
    sources: &SourceMap,
    name: String,
    items: &[&Item],
    overrides: Overrides,
    broken: bool,
) -> (Option<ir::Program>, Vec<Diagnostic>) {
    let mut scopes = Scopes::default();
    let program = scopes.room(Room::Program { item: usize::MAX }, Vec::new());
    let mut linker = Linker {
        names: Names::default(),
        findings: Findings::default(),
        scopes,
        program,
        constants: BTreeMap::new(),
        constant_order: Vec::new(),
        lists: Vec::new(),
        list_of: BTreeMap::new(),
        folding: true,
        depth: 0,
        height: 0,
        blocks: 0,
        nodes: 0,
        too_large: false,
        terms: 1,
        aggregates: Vec::new(),
        terms_tried: 0,
        broken,
        gaps: Gaps::default(),
        called: BTreeSet::new(),
        strict: false,
        hidden_at: BTreeMap::new(),
        declined: BTreeSet::new(),
        bad_definitions: BTreeSet::new(),
        unrelated: BTreeSet::new(),
        relation_refused: false,
        leg: None,
        recursive: BTreeSet::new(),
        entry_sets: BTreeMap::new(),
        leases: Vec::new(),
        observes: Vec::new(),
        observe_of: BTreeMap::new(),
        calls: Vec::new(),
        request: Requests::default(),
        multi_run: None,
        places: Places::new(sources),
        overrides,
    };
    let program = linker.program_of(name, items);
    let mut findings = linker.findings.list;
    findings.sort_by_key(|d| d.span.map_or((u32::MAX, 0), |s| (s.file, s.start)));
    (program, findings)
}

impl<'a> Linker<'a> {
    /// Starts an error.
    pub(crate) fn error(&self, code: &'static str, span: impl Into<Option<Span>>, message: impl Into<String>) -> Draft {
        Draft(Diagnostic::error(code, span, message))
    }

    /// Starts an error, or a warning where it is only likely.
    pub(crate) fn finding(&self, error: bool, code: &'static str, span: Option<Span>, message: String) -> Draft {
        if error { self.error(code, span, message) } else { Draft(Diagnostic::warning(code, span, message)) }
    }

    /// One level deeper; the caller comes back up.
    pub(crate) fn deeper(&mut self, span: Span) -> Result<()> {
        if self.too_large || self.findings.enough() {
            return Err(Reported);
        }
        self.nodes += 1;
        if self.nodes + self.scopes.len() > NODES_MAX {
            self.too_large = true;
            return Err(self
                .error(
                    "too-large",
                    span,
                    format!("the program is larger than {NODES_MAX} nodes once everything is written out"),
                )
                .help("definitions and entries are written out at every use: use fewer of them inside each other")
                .done(self));
        }
        if self.depth >= RECURSION_MAX || self.height > DEPTH_MAX {
            return Err(self
                .error(
                    "too-deep",
                    span,
                    format!("once definitions are written out, this nests more than {DEPTH_MAX} deep"),
                )
                .done(self));
        }
        self.depth += 1;
        Ok(())
    }

    /// Is the declaration of this name perhaps in text that could not be read?
    pub(crate) fn maybe_declared(&self, word: &str) -> bool {
        self.broken && self.places.declares(word)
    }

    /// A value nobody knows, while an entry is looked at without a call.
    pub(crate) fn unknown_value(&self) -> ir::Expr {
        ir::Expr::Attribute(crate::reference::UNKNOWN)
    }

    /// What else of the program has this name, for names that may be nothing else.
    pub(crate) fn taken_by(&self, name: &str) -> Option<&'static str> {
        if self.names.pool_of.contains_key(name) {
            Some("a pool")
        } else if self.names.stage_of.contains_key(name) {
            Some("a stage")
        } else if self.names.lets.contains_key(name) {
            Some("a `let`")
        } else if moment::context(name).is_some() {
            Some("a name the language supplies")
        } else if ir::BuiltIn::NAMES.contains(&name) {
            Some("a built-in attribute")
        } else if self.names.attribute_of.contains_key(name) {
            Some("an attribute")
        } else {
            None
        }
    }

    fn program_of(&mut self, name: String, items: &[&'a Item]) -> Option<ir::Program> {
        self.names.built_in();
        self.declare(items);
        self.fold_constants(items);
        self.sizes();
        self.collect_attributes(items);
        self.look_at_entries();

        let pools = self.link_pools();
        let stages = self.link_stages();
        let (workload, session) = self.link_sessions(items);
        self.look_at_uncalled_entries();
        let gauges = self.link_gauges(items);
        let run = self.link_run(items, &workload);
        let share = self.link_share();
        if self.findings.errors > 0 && self.too_large {
            return None;
        }
        lint::check(self, &session, &workload);
        if self.findings.errors > 0 || self.broken {
            return None;
        }
        let mut stages = stages.ok()?;
        for (stage, known) in stages.iter_mut().zip(&self.names.stages) {
            stage.shared = known.shared;
        }
        Some(ir::Program {
            ir_version: ir::IR_VERSION,
            name,
            constants: self
                .constant_order
                .iter()
                .filter_map(|&name| {
                    let value = (*self.constants.get(name)?).ok()?;
                    Some(ir::Constant { name: name.to_string(), value: Number(value) })
                })
                .collect(),
            lists: std::mem::take(&mut self.lists),
            attributes: self
                .names
                .attributes
                .iter()
                .map(|a| ir::Attribute { name: a.name.clone(), hidden: a.hidden })
                .collect(),
            pools: pools.ok()?,
            stages,
            share,
            workload,
            session,
            observes: std::mem::take(&mut self.observes),
            gauges,
            run: run.ok()?,
        })
    }

    fn fold_constants(&mut self, items: &[&'a Item]) {
        for (at, item) in items.iter().enumerate() {
            let Item::Let(declared) = item else { continue };
            let word = declared.name.text.as_str();
            if self.constants.contains_key(word) || self.list_of.contains_key(word) {
                continue;
            }
            let scope = self.scopes.room(Room::Program { item: at }, Vec::new());
            let replaced = self.overrides.lets.contains(word);
            // A replacement is the caller's, who does not know the order of the text.
            let hidden = replaced.then(|| std::mem::take(&mut self.constants));
            let lets = replaced.then(|| std::mem::take(&mut self.names.lets));
            let elements = match &declared.value.kind {
                ast::ExprKind::List(elements) => Some(elements.as_slice()),
                _ => None,
            };
            let values: Vec<_> = elements
                .unwrap_or(std::slice::from_ref(&declared.value))
                .iter()
                .map(|value| self.let_value(word, value, scope))
                .collect();
            if let Some(constants) = hidden {
                self.constants = constants;
            }
            if let Some(lets) = lets {
                self.names.lets = lets;
            }
            if elements.is_some() {
                let list = self.add_list(declared, values);
                self.list_of.insert(word, list);
            } else {
                self.constants.insert(word, values[0]);
                self.constant_order.push(word);
            }
        }
        self.folding = false;
    }

    /// The value of a `let`, or of an element of its list.
    fn let_value(&mut self, word: &str, value: &'a ast::Expr, scope: ScopeId) -> Result<f64> {
        let linked = self.expr(value, scope, Clause::Let)?;
        match fold::value(&linked, &self.lists) {
            Some(v) if v.is_nan() => Err(self
                .error("bad-constant", value.span, format!("`{word}` is not a number"))
                .label("this has no value (0/0, or the like)")
                .done(self)),
            Some(v) => Ok(v),
            None => Err(self.error("not-constant", value.span, format!("`{word}` is not a constant")).done(self)),
        }
    }

    fn add_list(&mut self, declared: &ast::Let, values: Vec<Result<f64>>) -> Result<u32> {
        let name = declared.name.text.clone();
        if values.is_empty() || values.len() > ir::LIST_MAX {
            let message = format!("`{name}` has {} elements, not 1 to {}", values.len(), ir::LIST_MAX);
            return Err(self.error("bad-constant", declared.value.span, message).done(self));
        }
        let values = values.into_iter().map(|value| value.map(Number)).collect::<Result<_>>()?;
        self.lists.push(ir::List { name, values });
        Ok(self.lists.len() as u32 - 1)
    }

    /// Family sizes, caps and blocks.
    fn sizes(&mut self) {
        for q in 0..self.names.queues.len() {
            let declared = self.names.queues[q].declared;
            self.names.queues[q].size = declared.size.as_ref().and_then(|e| self.family_size(e, &declared.name));
        }
        for p in 0..self.names.pools.len() {
            let (declared, queue) = (self.names.pools[p].declared, self.names.pools[p].queue);
            self.names.pools[p].size = match queue {
                Some(q) => self.names.queues[q].size,
                None => declared.size.as_ref().and_then(|e| self.family_size(e, &declared.name)),
            };
            self.cap_and_block(p);
        }
        for s in 0..self.names.stages.len() {
            let stage = &self.names.stages[s];
            let (queue, size) = (stage.queue, stage.size_expr);
            self.names.stages[s].size = match (queue, size) {
                (Some(q), _) => self.names.queues[q].size,
                (None, Some(e)) => {
                    let size = self.size_of(e);
                    if size.is_none() {
                        let name = self.names.stages[s].name.clone();
                        self.declined.insert(name);
                    }
                    size
                }
                (None, None) => None,
            };
        }
        let total = |sizes: &mut dyn Iterator<Item = Option<u32>>| -> u64 {
            sizes.map(|size| u64::from(size.unwrap_or(1))).sum()
        };
        let pools = total(&mut self.names.pools.iter().map(|p| p.size));
        let stages = total(&mut self.names.stages.iter().map(|s| s.size));
        for (what, members) in [("pools", pools), ("stages", stages)] {
            if members > ir::MEMBERS_TOTAL_MAX {
                let message =
                    format!("all {what} together have {members} members; {} is the most", ir::MEMBERS_TOTAL_MAX);
                self.error("too-large", None, message).done(self);
                self.too_large = true;
            }
        }
    }

    fn family_size(&mut self, e: &'a ast::Expr, name: &'a ast::Name) -> Option<u32> {
        let size = self.size_of(e);
        if size.is_none() {
            self.declined.insert(name.text.clone());
        }
        size
    }

    fn size_of(&mut self, e: &'a ast::Expr) -> Option<u32> {
        let value = self.constant(e, "the size of a family").ok()?;
        if value >= 1.0 && value.fract() == 0.0 && value <= f64::from(MEMBERS_MAX) {
            return Some(value as u32);
        }
        self.error(
            "bad-constant",
            e.span,
            format!("a family has 1 to {MEMBERS_MAX} members, not {value}", value = fold::show(value)),
        )
        .done(self);
        None
    }

    fn link_gauges(&mut self, items: &[&'a Item]) -> Vec<ir::Gauge> {
        let mut gauges: Vec<ir::Gauge> = Vec::new();
        let mut declared: BTreeMap<&str, Span> = BTreeMap::new();
        for item in items {
            let Item::Gauge(gauge) = item else { continue };
            let word = gauge.name.text.as_str();
            if let Some(&first) = declared.get(word) {
                self.repeated(&gauge.name, "gauge", first);
                continue;
            }
            declared.insert(word, gauge.name.span);
            if self.observe_of.contains_key(word) {
                self.error("repeated", gauge.name.span, format!("`{word}` is also an observation"))
                    .help("give the gauge another name")
                    .done(self);
                continue;
            }
            let scope = self.program;
            if let Ok(value) = self.expr(&gauge.value, scope, Clause::Gauge) {
                gauges.push(ir::Gauge { name: word.to_string(), value });
            }
        }
        gauges
    }

    fn link_share(&mut self) -> Option<ir::SharePolicy> {
        match (self.names.share, self.multi_run) {
            (Some((policy, _)), Some(_)) => Some(match policy {
                ast::Policy::Maxmin => ir::SharePolicy::Maxmin,
                ast::Policy::Bottleneck => ir::SharePolicy::Bottleneck,
            }),
            (None, Some(run)) => {
                self.error("share", run, "a run over several stages needs the program's `share`")
                    .help("write `share maxmin;` or `share bottleneck;` at the top")
                    .done(self);
                None
            }
            (Some((_, span)), None) => {
                if self.findings.errors == 0 {
                    self.error("share", span, "nothing runs over several stages, so there is nothing to share")
                        .help("remove it, or name several stages in one `run`")
                        .done(self);
                }
                None
            }
            (None, None) => None,
        }
    }
}
