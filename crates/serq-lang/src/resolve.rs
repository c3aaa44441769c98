//! What the names of a program stand for, before any expression is linked.
//!
//! Declarations are gathered in text order (a `use` stands for its file's items):
//! pool and stage families with the rows a queue or a relation adds, queues,
//! definitions, and every attribute that some statement anywhere sets. Text order
//! is the report's order and the scheduler's order, so it is kept as written.
//!
//! Nothing here knows a value: sizes, caps and constants are [`crate::link`]'s.

use std::collections::{BTreeMap, BTreeSet};

use serq_ir::BuiltIn;

use crate::ast;
use crate::diagnostic::{Diagnostic, Severity};
use crate::source::Span;
use crate::walk::{self, Visitor};

/// Everything declared.
#[derive(Default)]
pub(crate) struct Names<'a> {
    pub(crate) lets: BTreeMap<&'a str, &'a ast::Let>,
    pub(crate) defs: BTreeMap<&'a str, Def<'a>>,
    pub(crate) pools: Vec<Pool<'a>>,
    pub(crate) stages: Vec<Stage<'a>>,
    pub(crate) queues: Vec<Queue<'a>>,
    pub(crate) attributes: Vec<Attribute>,
    /// Full names (`D.kv`) to indices.
    pub(crate) pool_of: BTreeMap<String, usize>,
    pub(crate) stage_of: BTreeMap<String, usize>,
    pub(crate) queue_of: BTreeMap<&'a str, usize>,
    pub(crate) attribute_of: BTreeMap<String, usize>,
    /// The program's one `share` (a relation counts).
    pub(crate) share: Option<(ast::Policy, Span)>,
}

impl Names<'_> {
    /// Is this a `let` whose value is a list?
    pub(crate) fn is_list(&self, word: &str) -> bool {
        self.lets.get(word).is_some_and(|declared| matches!(declared.value.kind, ast::ExprKind::List(_)))
    }
}

/// A definition and its place in the text order.
pub(crate) struct Def<'a> {
    pub(crate) def: &'a ast::Def,
    /// Index of the item; uses stand below.
    pub(crate) item: usize,
}

/// A pool family.
pub(crate) struct Pool<'a> {
    pub(crate) name: String,
    pub(crate) declared: &'a ast::Pool,
    pub(crate) queue: Option<usize>,
    /// Filled in when sizes are folded; `None` for a scalar.
    pub(crate) size: Option<u32>,
    pub(crate) cap: f64,
    pub(crate) block: Option<f64>,
}

/// A stage family.
pub(crate) struct Stage<'a> {
    pub(crate) name: String,
    /// Where it is declared.
    pub(crate) span: Span,
    pub(crate) size_expr: Option<&'a ast::Expr>,
    pub(crate) kind: Kind<'a>,
    pub(crate) queue: Option<usize>,
    pub(crate) item: usize,
    pub(crate) size: Option<u32>,
    /// Named in a run over several stages.
    pub(crate) shared: bool,
}

/// How a stage serves.
#[derive(Clone, Copy)]
pub(crate) enum Kind<'a> {
    Written(&'a ast::StageKind),
    /// The wait of a relation or a link.
    Latency,
}

impl Stage<'_> {
    pub(crate) fn is_step(&self) -> bool {
        matches!(self.kind, Kind::Written(ast::StageKind { kind: ast::StageKindKind::Step(_), .. }))
    }

    pub(crate) fn word(&self) -> &'static str {
        match self.kind {
            Kind::Latency => "delay",
            Kind::Written(k) => match k.kind {
                ast::StageKindKind::Fifo(_) => "fifo",
                ast::StageKindKind::Ps(_) => "ps",
                ast::StageKindKind::Delay => "delay",
                ast::StageKindKind::Step(_) => "step",
            },
        }
    }
}

/// A queue: where its parts are.
pub(crate) struct Queue<'a> {
    pub(crate) declared: &'a ast::Queue,
    pub(crate) item: usize,
    pub(crate) roles: BTreeSet<Role>,
    /// Local names.
    pub(crate) pools: BTreeMap<&'a str, usize>,
    pub(crate) stage: Option<usize>,
    pub(crate) nic: Option<usize>,
    /// The wait of a link, and how long.
    pub(crate) latency: Option<(usize, &'a ast::Expr)>,
    pub(crate) entries: Vec<&'a ast::Entry>,
    pub(crate) relation: Option<Relation<'a>>,
    /// Names its entries set, and whether an entry binds it at admission (where).
    pub(crate) size: Option<u32>,
}

/// `D pull P` or `P push D`, kept at D.
pub(crate) struct Relation<'a> {
    pub(crate) declared: &'a ast::Relation,
    pub(crate) source: usize,
    pub(crate) latency: Option<(usize, &'a ast::Expr)>,
}

/// What a queue plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    Gateway,
    Prefill,
    Decode,
    Link,
}

impl Role {
    pub(crate) const ALL: [(&'static str, Role); 4] =
        [("gateway", Role::Gateway), ("prefill", Role::Prefill), ("decode", Role::Decode), ("link", Role::Link)];

    pub(crate) fn word(self) -> &'static str {
        Self::ALL.iter().find(|(_, r)| *r == self).map_or("", |(w, _)| w)
    }

    /// The entry's verb.
    pub(crate) fn verb(self) -> &'static str {
        match self {
            Role::Gateway => "route",
            Role::Prefill => "prefill",
            Role::Decode => "decode",
            Role::Link => "transfer",
        }
    }
}

/// An attribute of every session.
pub(crate) struct Attribute {
    pub(crate) name: String,
    pub(crate) hidden: bool,
    /// Bound by an `at admission` of this place and read in its body.
    pub(crate) bound: Option<Span>,
    /// First `set`, where one is written.
    pub(crate) set: Option<Span>,
}

/// What a block sets, in order of first appearance: name, place, `mark`.
pub(crate) type Sets<'a> = Vec<(&'a str, Span, bool)>;

impl<'a> Names<'a> {
    /// Bare names read in a block, definitions seen through.
    pub(crate) fn reads_of(&self, block: &'a ast::Block) -> BTreeSet<&'a str> {
        struct Reads<'n, 'a> {
            names: &'n Names<'a>,
            found: BTreeSet<&'a str>,
            /// Parameters of the definition being walked.
            parameters: &'a [ast::Name],
            seen: BTreeSet<&'a str>,
        }
        impl<'a> Reads<'_, 'a> {
            fn definition(&mut self, name: &'a str) {
                if let Some(def) = self.names.defs.get(name)
                    && self.seen.insert(name)
                {
                    let outer = std::mem::replace(&mut self.parameters, &def.def.parameters);
                    match &def.def.body {
                        ast::DefBody::Expr(e) => walk::expr(e, self),
                        ast::DefBody::Block(b) => walk::block(b, self),
                    }
                    self.parameters = outer;
                }
            }
        }
        impl<'a> Visitor<'a> for Reads<'_, 'a> {
            fn reads(&mut self, r: &'a ast::Ref) {
                if r.field.is_none() && !self.parameters.iter().any(|p| p.text == r.name.text) {
                    self.found.insert(&r.name.text);
                }
            }
            fn calls(&mut self, name: &'a ast::Name) {
                self.definition(&name.text);
            }
            fn uses(&mut self, name: &'a ast::Name) {
                self.definition(&name.text);
            }
        }
        let mut v = Reads { names: self, found: BTreeSet::new(), parameters: &[], seen: BTreeSet::new() };
        walk::block(block, &mut v);
        v.found
    }

    /// What a block sets (`set`, `choose`, `mark`) and binds at admission for its
    /// body, definitions seen through.
    pub(crate) fn sets_of(&self, block: &'a ast::Block) -> (Sets<'a>, Sets<'a>) {
        struct Collect<'n, 'a> {
            names: &'n Names<'a>,
            sets: Sets<'a>,
            holds: Vec<&'a ast::Hold>,
            seen: BTreeSet<&'a str>,
        }
        impl<'a> Visitor<'a> for Collect<'_, 'a> {
            fn reads(&mut self, _: &'a ast::Ref) {}
            fn sets(&mut self, name: &'a ast::Name, mark: bool) {
                self.sets.push((&name.text, name.span, mark));
            }
            fn uses(&mut self, name: &'a ast::Name) {
                if self.seen.insert(&name.text)
                    && let Some(def) = self.names.defs.get(name.text.as_str())
                    && let ast::DefBody::Block(b) = &def.def.body
                {
                    walk::block(b, self);
                }
            }
            fn holds(&mut self, hold: &'a ast::Hold) {
                self.holds.push(hold);
            }
        }
        let mut v = Collect { names: self, sets: Vec::new(), holds: Vec::new(), seen: BTreeSet::new() };
        walk::block(block, &mut v);
        let mut bound = Vec::new();
        for hold in v.holds {
            if hold.bindings.is_empty() {
                continue;
            }
            let reads = self.reads_of(&hold.body);
            for (name, _) in &hold.bindings {
                if reads.contains(name.text.as_str()) {
                    bound.push((name.text.as_str(), name.span, false));
                }
            }
        }
        (v.sets, bound)
    }

    /// Adds an attribute once.
    pub(crate) fn attribute(&mut self, name: String, set: Option<Span>, bound: Option<Span>) -> usize {
        if let Some(&at) = self.attribute_of.get(&name) {
            let known = &mut self.attributes[at];
            known.set = known.set.or(set);
            known.bound = known.bound.or(bound);
            return at;
        }
        let at = self.attributes.len();
        self.attribute_of.insert(name.clone(), at);
        self.attributes.push(Attribute { name, hidden: false, bound, set });
        at
    }

    /// The attributes every program has.
    pub(crate) fn built_in(&mut self) {
        for name in BuiltIn::NAMES {
            self.attribute(name.into(), None, None);
        }
    }

    /// The gateway's route reads and sets the session's attributes.
    pub(crate) fn is_route(&self, queue: usize, entry: &ast::Entry) -> bool {
        entry.verb.text == "route" && self.queues[queue].roles.contains(&Role::Gateway)
    }
}

/// Collects diagnostics; the same finding at the same place is kept once, because
/// an entry's text is linked once a call.
#[derive(Default)]
pub(crate) struct Findings {
    pub(crate) list: Vec<Diagnostic>,
    seen: BTreeSet<(&'static str, Span)>,
    pub(crate) errors: usize,
}

/// Most errors of linking listed for one program.
const ERRORS_MAX: usize = 100;

/// An error has been reported; whoever gets this says nothing more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reported;

/// What a linking step answers.
pub(crate) type Result<T> = std::result::Result<T, Reported>;

impl Findings {
    /// So much is wrong that more would not help; looking on costs time.
    pub(crate) fn enough(&self) -> bool {
        self.errors > ERRORS_MAX
    }

    /// Keeps a finding.
    pub(crate) fn report(&mut self, d: Diagnostic) -> Reported {
        if self.enough() {
            return Reported;
        }
        if d.severity == Severity::Error {
            self.errors += 1;
        }
        // Without a place nothing is said twice.
        if d.span.is_none_or(|span| self.seen.insert((d.code, span))) {
            if self.errors > ERRORS_MAX {
                self.list.push(
                    Diagnostic::error(
                        "too-many-errors",
                        d.span,
                        format!("more than {ERRORS_MAX} errors; the rest is not listed"),
                    )
                    .help("correct the first ones and look again"),
                );
            } else {
                self.list.push(d);
            }
        }
        Reported
    }
}
