//! Declarations in text order: what exists, before anything has a value.
//!
//! A declaration that is refused is remembered, so that uses of its name stay silent.

use std::collections::{BTreeMap, BTreeSet};

use serq_ir as ir;

use crate::ast::{self, Item};
use crate::link::Linker;
use crate::moment;
use crate::resolve::{Def, Kind, Pool, Queue, Relation, Result, Role, Stage};
use crate::source::Span;

impl<'a> Linker<'a> {
    pub(crate) fn repeated(&mut self, name: &'a ast::Name, what: &str, first: Span) {
        self.error("repeated", name.span, format!("`{}` is declared twice", name.text))
            .label(format!("a second {what}"))
            .note(first, "first here")
            .help("rename or remove one")
            .done(self);
    }

    /// Gathers names in text order.
    pub(crate) fn declare(&mut self, items: &[&'a Item]) {
        // Definitions first: whether a name is one is asked while others are declared.
        for (at, item) in items.iter().enumerate() {
            if let Item::Let(declared) = item {
                if let Some(first) = self.names.lets.get(declared.name.text.as_str()) {
                    let first = first.name.span;
                    self.repeated(&declared.name, "`let`", first);
                } else {
                    self.names.lets.insert(&declared.name.text, declared);
                }
            }
            if let Item::Def(def) = item {
                if let Some(first) = self.names.defs.get(def.name.text.as_str()) {
                    let first = first.def.name.span;
                    self.repeated(&def.name, "definition", first);
                } else {
                    self.names.defs.insert(&def.name.text, Def { def, item: at });
                }
            }
        }
        for (at, item) in items.iter().enumerate() {
            match item {
                Item::Pool(pool) => self.declare_pool(pool, None),
                Item::Stage(stage) => {
                    self.declare_stage(
                        stage.name.text.clone(),
                        stage.name.span,
                        stage.size.as_ref(),
                        Kind::Written(&stage.kind),
                        None,
                        at,
                    );
                }
                Item::Queue(queue) => self.declare_queue(queue, at),
                Item::Relation(relation) => self.declare_relation(relation, at),
                Item::Share(share) => self.declare_share(share.policy, share.span),
                Item::Let(declared) => self.check_let_name(declared),
                _ => {}
            }
        }
        for (at, item) in items.iter().enumerate() {
            if let Item::Def(def) = item {
                self.check_definition_name(def);
                if self.names.defs.get(def.name.text.as_str()).is_some_and(|d| d.item == at) {
                    self.check_definition(def, at);
                }
            }
        }
    }

    pub(crate) fn check_let_name(&mut self, declared: &'a ast::Let) {
        let word = declared.name.text.as_str();
        if moment::context(word).is_some() || ir::BuiltIn::NAMES.contains(&word) || ["self", "inf"].contains(&word) {
            self.error("reserved-name", declared.name.span, format!("`{word}` is a name the language supplies"))
                .help("give the constant another name")
                .done(self);
        }
    }

    pub(crate) fn check_definition_name(&mut self, def: &'a ast::Def) {
        let word = def.name.text.as_str();
        let what = if crate::expression::is_supplied_function(word) {
            "a function of the language"
        } else if self.names.lets.contains_key(word) {
            "a `let`"
        } else if self.names.pool_of.contains_key(word) {
            "a pool"
        } else if self.names.stage_of.contains_key(word) {
            "a stage"
        } else {
            return;
        };
        self.bad_definitions.insert(word);
        self.error("reserved-name", def.name.span, format!("`{word}` is already {what}"))
            .help("give the definition another name")
            .done(self);
    }

    pub(crate) fn declare_share(&mut self, policy: ast::Policy, span: Span) {
        if let Some((_, first)) = self.names.share {
            self.error("repeated", span, "the program already says how flows share")
                .note(first, "here")
                .help("one `share`, or one `pull … share`, says it for the whole program")
                .done(self);
        } else {
            self.names.share = Some((policy, span));
        }
    }

    pub(crate) fn declare_pool(&mut self, declared: &'a ast::Pool, queue: Option<usize>) {
        let name = match queue {
            Some(queue) => format!("{}.{}", self.names.queues[queue].declared.name.text, declared.name.text),
            None => declared.name.text.clone(),
        };
        if let Some(&first) = self.names.pool_of.get(&name) {
            let first = self.names.pools[first].declared.name.span;
            self.repeated(&declared.name, "pool", first);
            return;
        }
        let at = self.names.pools.len();
        self.names.pool_of.insert(name.clone(), at);
        if let Some(queue) = queue {
            self.names.queues[queue].pools.insert(&declared.name.text, at);
        }
        self.names.pools.push(Pool { name, declared, queue, size: None, cap: f64::INFINITY, block: None });
    }

    pub(crate) fn declare_stage(
        &mut self,
        name: String,
        span: Span,
        size_expr: Option<&'a ast::Expr>,
        kind: Kind<'a>,
        queue: Option<usize>,
        item: usize,
    ) -> Option<usize> {
        if let Some(&first) = self.names.stage_of.get(&name) {
            let first = self.names.stages[first].span;
            self.error("repeated", span, format!("`{name}` is declared twice"))
                .label("a second stage")
                .note(first, "first here")
                .help("rename or remove one")
                .done(self);
            return None;
        }
        let at = self.names.stages.len();
        self.names.stage_of.insert(name.clone(), at);
        self.names.stages.push(Stage { name, span, size_expr, kind, queue, item, size: None, shared: false });
        Some(at)
    }

    pub(crate) fn declare_queue(&mut self, declared: &'a ast::Queue, item: usize) {
        if let Some(&first) = self.names.queue_of.get(declared.name.text.as_str()) {
            let first = self.names.queues[first].declared.name.span;
            self.repeated(&declared.name, "queue", first);
            return;
        }
        let at = self.names.queues.len();
        self.names.queue_of.insert(&declared.name.text, at);
        self.names.queues.push(Queue {
            declared,
            item,
            roles: BTreeSet::new(),
            pools: BTreeMap::new(),
            stage: None,
            nic: None,
            latency: None,
            entries: Vec::new(),
            relation: None,
            size: None,
        });
        self.declare_queue_parts(at);
    }

    pub(crate) fn declare_relation(&mut self, declared: &'a ast::Relation, item: usize) {
        let mut side = |name: &'a ast::Name| -> Result<usize> {
            let Some(&queue) = self.names.queue_of.get(name.text.as_str()) else {
                let known: Vec<&str> = self.names.queue_of.keys().copied().collect();
                let near = crate::nearest::nearest(&name.text, known.iter().copied());
                let e = self.error("unknown-queue", name.span, format!("no queue above is named `{}`", name.text));
                let e = match near {
                    Some(n) => e.help(format!("write `{n}`")),
                    None => e.help("a relation joins two queues declared above it"),
                };
                return Err(e.done(self));
            };
            if self.names.queues[queue].nic.is_none() {
                let at = self.names.queues[queue].declared.name.span;
                return Err(self
                    .error(
                        "bad-relation",
                        declared.source.span,
                        format!("queue `{}` has no `nic` to move data over", name.text),
                    )
                    .note(at, "declared here")
                    .help(format!("give `{}` one: `nic ps(1e5);`", name.text))
                    .done(self));
            }
            Ok(queue)
        };
        let (reader, source) = (side(&declared.reader), side(&declared.source));
        let (Ok(reader), Ok(source)) = (reader, source) else {
            self.relation_refused = true;
            if let Some(&reader) = self.names.queue_of.get(declared.reader.text.as_str()) {
                self.unrelated.insert(reader);
            }
            return;
        };
        if reader == source {
            self.unrelated.insert(reader);
            let does = if declared.push { "writes to" } else { "reads from" };
            let second = if declared.push { &declared.reader } else { &declared.source };
            self.error("bad-relation", second.span, format!("`{}` {does} itself", second.text))
                .help("a relation joins two queues")
                .done(self);
            return;
        }
        if let Some(first) = &self.names.queues[reader].relation {
            let first = first.declared.span;
            self.error(
                "repeated",
                declared.reader.span,
                format!("`{}` already is the reader of a relation", declared.reader.text),
            )
            .note(first, "here")
            .help("a reader has one relation")
            .done(self);
            return;
        }
        self.declare_share(declared.policy, declared.span);
        let latency = declared.latency.as_ref().and_then(|x| {
            // Whoever begins a copy waits before it.
            let waits = if declared.push { source } else { reader };
            let name = format!("{}.nic.latency", self.names.queues[waits].declared.name.text);
            let at = self.declare_stage(name, declared.span, None, Kind::Latency, Some(waits), item)?;
            Some((at, x))
        });
        self.names.queues[reader].relation = Some(Relation { declared, source, latency });
    }

    /// Every name some statement sets, as attributes in text order.
    pub(crate) fn collect_attributes(&mut self, items: &[&'a Item]) {
        let add = |linker: &mut Self, block: &'a ast::Block, queue: Option<&str>, route: bool| {
            let (sets, bound) = linker.names.sets_of(block);
            for (word, span, mark) in sets {
                let full = match queue {
                    Some(queue) if mark || !route => format!("{queue}.{word}"),
                    _ => word.to_string(),
                };
                linker.names.attribute(full, Some(span), None);
            }
            for (word, span, _) in bound {
                let full = match queue {
                    Some(queue) if !route => format!("{queue}.{word}"),
                    _ => word.to_string(),
                };
                if queue.is_none() || route {
                    // Checked before it is added: afterwards the name is an attribute.
                    linker.check_bound_name(word, span);
                }
                linker.names.attribute(full, None, Some(span));
            }
        };
        for item in items {
            match item {
                Item::Session(s) | Item::Server(s) => add(self, &s.body, None, false),
                Item::Workload(w) => {
                    for item in &w.items {
                        match item {
                            ast::WorkloadItem::Init(b)
                            | ast::WorkloadItem::Turn(b)
                            | ast::WorkloadItem::Request(b, _) => add(self, b, None, false),
                            ast::WorkloadItem::Session(s) => add(self, &s.body, None, false),
                            _ => {}
                        }
                    }
                }
                Item::Queue(q) => {
                    let Some(&queue) = self.names.queue_of.get(q.name.text.as_str()) else { continue };
                    for entry in self.names.queues[queue].entries.clone() {
                        let route = self.names.is_route(queue, entry);
                        add(self, &entry.body, Some(&q.name.text), route);
                    }
                }
                _ => {}
            }
        }
        // An `at admission` name and a `set` of the same name anywhere.
        for at in 0..self.names.attributes.len() {
            let a = &self.names.attributes[at];
            let word = a.name.rsplit('.').next().unwrap_or(&a.name).to_string();
            let outside = self.names.attribute_of.get(&word).and_then(|&o| self.names.attributes[o].set);
            if let (Some(bound), Some(set)) = (a.bound, a.set.or(outside)) {
                self.error(
                    "binding-name",
                    bound,
                    format!("the body reads `{word}`, which is also an attribute the program sets"),
                )
                .label("which one does the body mean?")
                .note(set, "set here")
                .help("rename the binding")
                .done(self);
            }
        }
        for item in items {
            if let Item::Workload(w) = item {
                for item in &w.items {
                    if let ast::WorkloadItem::Hidden(names, _) = item {
                        self.hide(names);
                    }
                }
            }
        }
    }

    pub(crate) fn check_bound_name(&mut self, word: &'a str, span: Span) {
        let what = if ir::BuiltIn::NAMES.contains(&word) {
            "an attribute the scheduler sets"
        } else if self.names.pool_of.contains_key(word) {
            "a pool"
        } else if self.names.stage_of.contains_key(word) {
            "a stage"
        } else if self.names.lets.contains_key(word) {
            "a `let`"
        } else if moment::context(word).is_some() {
            "a name the language supplies"
        } else {
            return;
        };
        self.error("binding-name", span, format!("the body reads `{word}`, which is also {what}"))
            .label("which one does the body mean?")
            .help("rename the binding")
            .done(self);
    }

    pub(crate) fn hide(&mut self, names: &'a [ast::Name]) {
        for name in names {
            let word = name.text.as_str();
            if let Some(&first) = self.hidden_at.get(word) {
                self.error("repeated", name.span, format!("`{word}` is hidden twice"))
                    .note(first, "first here")
                    .done(self);
                continue;
            }
            self.hidden_at.insert(word, name.span);
            match self.names.attribute_of.get(word) {
                Some(&at) if !matches!(word, "cached" | "computed") => self.names.attributes[at].hidden = true,
                Some(_) => {
                    self.error(
                        "hidden-name",
                        name.span,
                        format!("`{word}` is the scheduler's own and can't be hidden from it"),
                    )
                    .done(self);
                }
                None => {
                    let known: Vec<&str> =
                        self.names.attributes.iter().map(|a| a.name.as_str()).filter(|n| !n.contains('.')).collect();
                    let near = crate::nearest::nearest(word, known.iter().copied());
                    let e = self.error("hidden-name", name.span, format!("nothing sets `{word}`"));
                    let e = match near {
                        Some(n) => e.help(format!("write `{n}`")),
                        None => {
                            e.help(format!("`hidden` names attributes a session sets: `init {{ set {word} = …; }}`"))
                        }
                    };
                    e.done(self);
                }
            }
        }
    }

    /// The roles a queue names.
    pub(crate) fn roles_of(&mut self, declared: &'a ast::Queue) -> BTreeSet<Role> {
        let mut roles = BTreeSet::new();
        for role in &declared.roles {
            match Role::ALL.iter().find(|(word, _)| *word == role.text) {
                Some(&(_, known)) => {
                    if !roles.insert(known) {
                        self.error("repeated", role.span, format!("`{}` is named twice", role.text)).done(self);
                    }
                }
                None => {
                    let words = Role::ALL.map(|(word, _)| word);
                    let near = crate::nearest::nearest(&role.text, words);
                    let e = self.error("unknown-role", role.span, format!("no role is named `{}`", role.text));
                    let e = match near {
                        Some(n) => e.help(format!("write `{n}`")),
                        None => e,
                    };
                    e.help(format!("the roles: {}", words.join(", "))).done(self);
                    self.declined.insert(declared.name.text.clone());
                }
            }
        }
        roles
    }
}
