//! Statements: the session's program, with every definition, server, route and
//! entry written out where it is used.

use serq_ir::{self as ir};

use crate::ast::{self, StmtKind};
use crate::definition::NAMES_MAX;
use crate::fold;
use crate::link::{Linker, Part};
use crate::moment::{self, Clause};
use crate::nearest;
use crate::reference::{Doing, UNKNOWN};
use crate::resolve::{Kind, Reported, Result};
use crate::scope::{Binding, Room, ScopeId, Thunk};
use crate::source::Span;

impl<'a> Linker<'a> {
    /// Links the statements of a block, in order, behind those already there.
    pub(crate) fn block(&mut self, block: &'a ast::Block, scope: ScopeId, out: &mut ir::Block) {
        self.blocks += 1;
        if self.blocks > ir::DEPTH_MAX {
            self.error("too-deep", block.span, format!("once everything is written out, blocks nest more than {} deep here", ir::DEPTH_MAX))
                .done(self);
        } else {
            for stmt in &block.stmts {
                // What could not be linked is reported; the rest goes on.
                let _ = self.stmt(stmt, scope, out);
            }
        }
        self.blocks -= 1;
    }

    fn inner_block(&mut self, block: &'a ast::Block, scope: ScopeId) -> ir::Block {
        let mut out = ir::Block::new();
        self.block(block, scope, &mut out);
        out
    }

    fn stmt(&mut self, stmt: &'a ast::Stmt, scope: ScopeId, out: &mut ir::Block) -> Result<()> {
        self.deeper(stmt.span)?;
        let linked = self.stmt_kind(stmt, scope, out);
        self.depth -= 1;
        linked
    }

    /// Adds a statement that stands at a span.
    pub(crate) fn push(&mut self, out: &mut ir::Block, span: Span, kind: ir::StmtKind) -> ir::Place {
        let at = self.places.place(span);
        self.places.remember(at, Part::Whole, span);
        out.push(ir::Stmt { at, kind });
        at
    }

    fn stmt_kind(&mut self, stmt: &'a ast::Stmt, scope: ScopeId, out: &mut ir::Block) -> Result<()> {
        let span = stmt.span;
        match &stmt.kind {
            StmtKind::Set(name, value) => self.set(name, value, span, scope, out),
            StmtKind::Observe(name, value) => {
                let value = self.expr(value, scope, Clause::Value)?;
                let observe = self.observation(&name.text);
                self.push(out, span, ir::StmtKind::Observe { observe, value });
                Ok(())
            }
            StmtKind::Mark(name) => self.mark(name, span, scope, out),
            StmtKind::Turn | StmtKind::End => {
                let (word, kind) = match stmt.kind {
                    StmtKind::Turn => ("turn", ir::StmtKind::Turn),
                    _ => ("end", ir::StmtKind::End),
                };
                if self.request.serving {
                    return Err(self
                        .error("misplaced-statement", span, format!("`{word};` in a server, route or entry"))
                        .label("the session's own statement")
                        .help("a server answers a request; turns and the end are the session's")
                        .done(self));
                }
                self.push(out, span, kind);
                Ok(())
            }
            StmtKind::Request(name) => self.request(name.as_ref(), span, out),
            StmtKind::Hold(hold) => self.hold(hold, span, scope, out),
            StmtKind::Grow(pool, units) => {
                let target = self.pool_ref(pool, scope, Clause::Amount("grow"), Doing::Allocates("grow"));
                let units = self.expr(units, scope, Clause::Amount("grow"));
                let at = self.push_when(out, span, target, units, |pool, units| ir::StmtKind::Grow { pool, units })?;
                let said = self.said_at(pool, scope);
                self.places.remember(at, Part::Reference(0), said);
                Ok(())
            }
            StmtKind::Load(pool, units) => {
                let target = self.pool_ref(pool, scope, Clause::Amount("load"), Doing::Allocates("load"));
                let units = self.expr(units, scope, Clause::Amount("load"));
                let at = self.push_when(out, span, target, units, |pool, units| ir::StmtKind::Load { pool, units })?;
                let said = self.said_at(pool, scope);
                self.places.remember(at, Part::Reference(0), said);
                Ok(())
            }
            StmtKind::Drop(pool) => {
                let target = self.pool_ref(pool, scope, Clause::Value, Doing::GivesBack("drop"))?;
                let at = self.push(out, span, ir::StmtKind::Drop { pool: target });
                self.places.remember(at, Part::Reference(0), pool.span);
                Ok(())
            }
            StmtKind::Release(pool) => {
                let target = self.pool_ref(pool, scope, Clause::Value, Doing::GivesBack("release"))?;
                let at = self.push(out, span, ir::StmtKind::Release { pool: target });
                let said = self.said_at(pool, scope);
                self.places.remember(at, Part::Reference(0), said);
                Ok(())
            }
            StmtKind::Run { stages, mode, work, growing } => {
                let mode = mode.map(mode_of);
                self.run(stages, mode, work, growing.as_ref(), span, scope, out)
            }
            StmtKind::Serve { form, index, on, work, growing } => {
                self.form(*form, index.as_ref(), on.as_ref(), work, growing.as_ref(), span, scope, out)
            }
            StmtKind::Transfer { index, on, work, from, to, load } => {
                self.transfer(index.as_ref(), on, work, from, to, load, span, scope, out)
            }
            StmtKind::Branch { chance, test, then, otherwise } => {
                self.branch(*chance, test, then, otherwise.as_ref(), span, scope, out)
            }
            StmtKind::Loop(body) => {
                let body = self.inner_block(body, scope);
                self.push(out, span, ir::StmtKind::Loop { body });
                Ok(())
            }
            StmtKind::Choose(name, count, keys) => {
                let attribute = Ok(self.assigned(name, "choose", scope)?);
                let count = self.expr(count, scope, Clause::Count);
                let keys: Vec<_> = keys.iter().map(|k| self.expr(k, scope, Clause::ChooseKey)).collect();
                let (attribute, count) = (attribute?, count?);
                let keys = keys.into_iter().collect::<Result<Vec<_>>>()?;
                self.push(out, span, ir::StmtKind::Choose { attribute: attribute as u32, count, keys });
                Ok(())
            }
            StmtKind::Call { target, arguments, from, to } => {
                self.call_entry(target, arguments, from.as_ref(), to.as_ref(), span, scope, out)
            }
            StmtKind::Use(name, arguments) => self.use_of_statements(name, arguments, scope, out),
        }
    }

    fn push_when(
        &mut self,
        out: &mut ir::Block,
        span: Span,
        pool: Result<ir::PoolRef>,
        units: Result<ir::Expr>,
        kind: impl FnOnce(ir::PoolRef, ir::Expr) -> ir::StmtKind,
    ) -> Result<ir::Place> {
        let kind = kind(pool?, units?);
        Ok(self.push(out, span, kind))
    }

    /// The number of an observation, new at its first appearance.
    fn observation(&mut self, name: &'a str) -> u32 {
        let next = self.observes.len();
        let at = *self.observe_of.entry(name).or_insert(next);
        if at == next {
            self.observes.push(name.to_string());
        }
        at as u32
    }

    fn set(
        &mut self,
        name: &'a ast::Name,
        value: &'a ast::Expr,
        span: Span,
        scope: ScopeId,
        out: &mut ir::Block,
    ) -> Result<()> {
        let attribute = self.assigned(name, "set", scope);
        let linked = self.expr(value, scope, Clause::Value);
        let (attribute, linked) = (attribute? as u32, linked?);
        let at = self.push(out, span, ir::StmtKind::Set { attribute, value: linked });
        self.places.remember(at, Part::Value, value.span);
        Ok(())
    }

    fn mark(&mut self, name: &'a ast::Name, span: Span, scope: ScopeId, out: &mut ir::Block) -> Result<()> {
        let Room::Entry { queue, .. } = self.scopes.room_of(scope) else {
            return Err(self
                .error("outside-entry", span, "`mark` is a queue entry's statement")
                .label("names a moment for the caller to read")
                .help(format!("write `set {} = now;`", name.text))
                .done(self));
        };
        self.assignable(name, "mark", scope)?;
        let full = format!("{}.{}", self.names.queues[queue].declared.name.text, name.text);
        let attribute = self.names.attribute(full, Some(name.span), None) as u32;
        let at = self.push(out, span, ir::StmtKind::Set { attribute, value: ir::Expr::Context(ir::Context::Now) });
        self.places.remember(at, Part::Value, span);
        Ok(())
    }

    /// Refuses names that stand for something else here.
    fn assignable(&mut self, name: &'a ast::Name, verb: &str, scope: ScopeId) -> Result<()> {
        let word = name.text.as_str();
        if verb != "mark" && matches!(self.scopes.find(scope, word), Some(Binding::Argument(_) | Binding::Unknown | Binding::From(_))) {
            if let Room::Entry { queue, entry, .. } = self.scopes.room_of(scope) {
                let queue = &self.names.queues[queue].declared.name.text;
                return Err(self
                    .entry_error("not-assignable", entry, format!("`{queue}.{}` sets its parameter `{word}`", entry.verb.text))
                    .note(name.span, "assigned here")
                    .help("a parameter is replaced by its argument; set another name")
                    .done(self));
            }
            return Err(self
                .error("not-assignable", name.span, format!("`{word}` is a parameter"))
                .help("a parameter is replaced by its argument; set another name")
                .done(self));
        }
        if let Some(declared) = self.names.lets.get(word) {
            let at = declared.name.span;
            return Err(self
                .error("not-assignable", name.span, format!("`{verb} {word}`: `{word}` is a constant"))
                .note(at, "declared here")
                .help("an attribute needs a name of its own")
                .done(self));
        }
        if moment::context(word).is_some() || word == "self" && matches!(self.scopes.room_of(scope), Room::Entry { .. }) {
            return Err(self
                .error("reserved-name", name.span, format!("`{word}` is a name the language supplies"))
                .help("give the attribute another name")
                .done(self));
        }
        Ok(())
    }

    /// The attribute a `set` or `choose` of this name assigns.
    fn assigned(&mut self, name: &'a ast::Name, verb: &str, scope: ScopeId) -> Result<usize> {
        self.assignable(name, verb, scope)?;
        let word = name.text.as_str();
        let full = match self.scopes.room_of(scope) {
            Room::Entry { queue, entry, .. } if !self.names.is_route(queue, entry) => {
                format!("{}.{word}", self.names.queues[queue].declared.name.text)
            }
            _ => word.to_string(),
        };
        Ok(self.names.attribute(full, Some(name.span), None))
    }

    fn request(&mut self, name: Option<&'a ast::Name>, span: Span, out: &mut ir::Block) -> Result<()> {
        if self.request.serving {
            return Err(self
                .error("request-misplaced", span, "`request` inside a server, route or entry")
                .help("a server does not request itself; to use another queue, call its entry")
                .done(self));
        }
        if !self.request.allowed {
            return Err(self
                .error("request-misplaced", span, "`request` outside the workload's session")
                .help("write `workload { … session { … request; … } }`")
                .done(self));
        }
        let Some(name) = name else {
            self.request.server_used = true;
            let Some(server) = self.request.server else {
                return Err(self
                    .error("request-misplaced", span, "`request;` and no `server { … }`")
                    .help("write a `server { … }` block, or name a gateway: `request gw;`")
                    .done(self));
            };
            let scope = self.program;
            self.serve(&server.body, scope, out);
            return Ok(());
        };
        let Some(&queue) = self.names.queue_of.get(name.text.as_str()) else {
            let known: Vec<&str> = self
                .names
                .queues
                .iter()
                .filter(|q| q.roles.contains(&crate::resolve::Role::Gateway))
                .map(|q| q.declared.name.text.as_str())
                .collect();
            let near = nearest::nearest(&name.text, known.iter().copied());
            if self.maybe_declared(&name.text) {
                return Err(Reported);
            }
            let e = self.error("unknown-queue", name.span, format!("no queue is named `{}`", name.text));
            let e = match near {
                Some(n) => e.help(format!("write `request {n};`")),
                None if known.is_empty() => e.help(format!("declare it: `queue {} : gateway {{ route {{ … }} }}`", name.text)),
                None => e.help(format!("the gateways: {}", known.join(", "))),
            };
            return Err(e.done(self));
        };
        self.request_route(queue, name, span, out)
    }

    /// Writes out a block that serves a request.
    pub(crate) fn serve(&mut self, block: &'a ast::Block, scope: ScopeId, out: &mut ir::Block) {
        let serving = std::mem::replace(&mut self.request.serving, true);
        self.block(block, scope, out);
        self.request.serving = serving;
    }

    #[allow(clippy::too_many_arguments, reason = "the clauses of one statement")]
    fn branch(
        &mut self,
        chance: bool,
        test: &'a ast::Expr,
        then: &'a ast::Block,
        otherwise: Option<&'a ast::Block>,
        span: Span,
        scope: ScopeId,
        out: &mut ir::Block,
    ) -> Result<()> {
        let linked = self.expr(test, scope, if chance { Clause::Chance } else { Clause::Guard });
        let then = self.inner_block(then, scope);
        let otherwise = otherwise.map(|b| self.inner_block(b, scope)).unwrap_or_default();
        let linked = linked?;
        if !chance
            && let Some(value) = fold::value(&linked)
            && value != 0.0
            && value != 1.0
        {
            let e = self.error("branch-guard", test.span, format!("a guard is 0 or 1, this is {value}", value = fold::show(value)));
            let e = if value > 0.0 && value < 1.0 {
                e.label("a probability").help(format!("to draw, write `branch with ({value})`", value = fold::show(value)))
            } else {
                e.help("write a comparison, such as `branch (n > 0)`")
            };
            return Err(e.done(self));
        }
        self.push(out, span, ir::StmtKind::Branch { test: linked, chance, then, otherwise });
        Ok(())
    }

    fn use_of_statements(
        &mut self,
        name: &'a ast::Name,
        arguments: &'a [ast::Expr],
        scope: ScopeId,
        out: &mut ir::Block,
    ) -> Result<()> {
        let Some(def) = self.definition(name, scope)? else {
            let known: Vec<&str> = self.names.defs.keys().copied().collect();
            let near = nearest::nearest(&name.text, known.iter().copied());
            let e = self.error("unknown-function", name.span, format!("no definition is named `{}`", name.text));
            let e = match near {
                Some(n) => e.help(format!("write `{n}`")),
                None => e.help(format!("define it: `def {}(…) {{ … }}`", name.text)),
            };
            return Err(e.done(self));
        };
        let ast::DefBody::Block(body) = &def.body else {
            return Err(self
                .error("wrong-kind", name.span, format!("`{}` is a definition of a value, used as a statement", name.text))
                .note(def.name.span, "defined here with `=`")
                .help(format!("use it in an expression: `set x = {}(…);`", name.text))
                .done(self));
        };
        let inner = self.bind_arguments(def, name, arguments, scope)?;
        self.block(body, inner, out);
        Ok(())
    }

    /// Is the scope inside the body of a hold that binds this name?
    pub(crate) fn binds_around(&self, scope: ScopeId, word: &str) -> bool {
        matches!(self.scopes.find(scope, word), Some(Binding::Bound(_)))
    }

    fn hold(&mut self, hold: &'a ast::Hold, span: Span, scope: ScopeId, out: &mut ir::Block) -> Result<()> {
        let found = self.findings.list.len();
        let (header, bad) = self.header_names(hold, scope);
        self.point_at_hold(found, hold, &["wrong-moment", "hidden-attribute"]);
        let found = self.findings.list.len();
        let mut grabs = Vec::with_capacity(hold.grabs.len());
        for grab in &hold.grabs {
            let pool = self.pool_ref(&grab.pool, scope, Clause::Value, Doing::Allocates("hold"));
            let units = self.expr(&grab.units, header, Clause::Units);
            let reserve = grab.reserve.as_ref().map(|e| self.expr(e, header, Clause::Reserve)).transpose();
            grabs.push((pool, units, reserve));
        }
        let reuse = hold.reuse.as_ref().map(|e| self.expr(e, header, Clause::Reuse)).transpose();
        self.point_at_hold(found, hold, &["draw-not-allowed", "wrong-moment", "hidden-attribute"]);
        let (body_scope, mut body) = self.body_names(hold, header, scope);
        self.block(&hold.body, body_scope, &mut body);
        let cache = hold.cache.as_ref().map(|e| self.expr(e, header, Clause::Cache)).transpose();
        let lease = hold.lease.as_ref().map(|(pool, time)| {
            let target = self.pool_ref(pool, scope, Clause::Value, Doing::Allocates("lease"));
            (target, self.expr(time, header, Clause::LeaseTime))
        });
        if hold.reuse.is_some() && hold.cache.is_none() {
            let at = hold.reuse.as_ref().map_or(span, |e| e.span);
            return Err(self
                .error("reuse-without-cache", at, "`reuse` in a hold without `cache`")
                .label("such a hold consumes no cached prefix")
                .help("write `cache (0)` behind the body to consume and keep nothing, or `cache (n)` to keep n")
                .done(self));
        }
        if bad {
            return Err(Reported);
        }
        let mut linked = Vec::with_capacity(grabs.len());
        for (pool, units, reserve) in grabs {
            linked.push(ir::Grab { pool: pool?, units: units?, reserve: reserve? });
        }
        self.no_pool_twice(hold, &linked)?;
        let lease = match lease {
            None => None,
            Some((pool, time)) => {
                let (pool, time) = (pool?, time?);
                let Some(grab) = linked.iter().position(|g| g.pool == pool) else {
                    let (written, _) = hold.lease.as_ref().expect("it was linked");
                    let held: Vec<String> = hold.grabs.iter().map(|g| written_as(&g.pool)).collect();
                    return Err(self
                        .error("outside-hold", hold.grabs[0].pool.span, format!("`lease {}`: this hold does not hold it", written_as(written)))
                    .note(written.span, "leased here")
                        .help(format!("it holds {}", held.join(", ")))
                        .done(self));
                };
                Some(ir::Lease { grab: grab as u32, time })
            }
        };
        let kind = ir::StmtKind::Hold(Box::new(ir::Hold { grabs: linked, reuse: reuse?, body, cache: cache?, lease }));
        let at = self.push(out, span, kind);
        for (k, grab) in hold.grabs.iter().enumerate() {
            self.places.remember(at, Part::Reference(k), grab.pool.span);
            self.places.remember(at, Part::Units(k), grab.units.span);
            if let Some(reserve) = &grab.reserve {
                self.places.remember(at, Part::Reserve(k), reserve.span);
            }
        }
        if let Some(reuse) = &hold.reuse {
            self.places.remember(at, Part::Value, reuse.span);
        }
        Ok(())
    }

    fn no_pool_twice(&mut self, hold: &'a ast::Hold, linked: &[ir::Grab]) -> Result<()> {
        for (k, grab) in linked.iter().enumerate() {
            if grab.pool.pool == UNKNOWN {
                continue;
            }
            if let Some(first) = linked[..k].iter().position(|g| g.pool == grab.pool) {
                return Err(self
                    .error("held-twice", hold.grabs[first].pool.span, format!("this hold takes `{}` twice", written_as(&hold.grabs[first].pool)))
                    .note(hold.grabs[k].pool.span, "again here")
                    .help("hold it once, with the units (and any `reserve`) added")
                    .done(self));
            }
        }
        Ok(())
    }

    /// What a header may not read is the hold's mistake: said at its first pool.
    fn point_at_hold(&mut self, found: usize, hold: &'a ast::Hold, codes: &[&str]) {
        for d in &mut self.findings.list[found..] {
            if codes.contains(&d.code)
                && let Some(at) = d.span.replace(hold.grabs[0].pool.span)
            {
                let label = std::mem::take(&mut d.label);
                d.notes.insert(0, (at, if label.is_empty() { "read here".into() } else { label }));
            }
        }
    }

    /// The scope of a header: its `at admission` names stand for their expressions.
    /// And whether one of them was refused; it then stands for anything.
    fn header_names(&mut self, hold: &'a ast::Hold, scope: ScopeId) -> (ScopeId, bool) {
        let mut bad = false;
        if let Some((name, _)) = hold.bindings.get(NAMES_MAX) {
            self.error("too-large", name.span, format!("one hold names at most {NAMES_MAX} values at admission"))
                .done(self);
            bad = true;
        }
        let mut header = scope;
        for (k, (name, value)) in hold.bindings.iter().enumerate().take(NAMES_MAX) {
            let word = name.text.as_str();
            if let Some((first, _)) = hold.bindings[..k].iter().find(|(n, _)| n.text == name.text) {
                self.error("repeated", name.span, format!("`{word}` is bound twice"))
                    .note(first.span, "first here")
                    .done(self);
                bad = true;
                continue;
            }
            let later: Vec<&str> = hold.bindings[k..].iter().map(|(n, _)| n.text.as_str()).collect();
            if let Some((reads, at)) = first_read(value, &later) {
                let place = if reads == word { at } else { name.span };
                self.error("declared-below", place, format!("`{word}` reads `{reads}`, which has no value before it is bound"))
                    .note(if reads == word { name.span } else { at }, if reads == word { "bound here" } else { "read here" })
                    .help("an `at admission` name reads those before it")
                    .done(self);
                bad = true;
                header = self.scopes.inside(header, vec![(word, Binding::Unknown)]);
                continue;
            }
            // Looked at once here, so that a name nobody reads is checked too.
            let binding = match self.expr(value, header, Clause::Binding) {
                Ok(_) => Binding::Argument(Thunk { expr: value, scope: header }),
                Err(Reported) => {
                    bad = true;
                    Binding::Unknown
                }
            };
            header = self.scopes.inside(header, vec![(word, binding)]);
        }
        (header, bad)
    }

    /// The scope of a body: `at admission` names it reads are attributes, set first.
    fn body_names(&mut self, hold: &'a ast::Hold, header: ScopeId, scope: ScopeId) -> (ScopeId, ir::Block) {
        let mut body = ir::Block::new();
        if hold.bindings.is_empty() {
            return (scope, body);
        }
        let reads = self.names.reads_of(&hold.body);
        let mut names = Vec::new();
        for (name, _) in hold.bindings.iter().take(NAMES_MAX) {
            let word = name.text.as_str();
            if !reads.contains(word) {
                continue;
            }
            let full = match self.scopes.room_of(scope) {
                Room::Entry { queue, entry, .. } if !self.names.is_route(queue, entry) => {
                    format!("{}.{word}", self.names.queues[queue].declared.name.text)
                }
                _ => word.to_string(),
            };
            let attribute = self.names.attribute(full, None, Some(name.span));
            names.push((word, Binding::Bound(attribute)));
            let thunk = match self.scopes.find(header, word) {
                Some(Binding::Argument(thunk)) => thunk,
                // Refused already; the body may read it all the same.
                _ => continue,
            };
            let errors = self.findings.list.len();
            match self.argument(thunk, Clause::BindingBody) {
                Ok(value) => {
                    let kind = ir::StmtKind::Set { attribute: attribute as u32, value };
                    self.push(&mut body, name.span, kind);
                }
                Err(Reported) => {
                    // The position is the name's: the body is what asks for more.
                    for d in &mut self.findings.list[errors..] {
                        if d.code == "wrong-moment" || d.code == "binding-reads-state" {
                            let at = d.span.replace(name.span);
                            d.code = "binding-reads-state";
                            d.message = format!("the body reads `{word}`, so its value may read attributes and constants only");
                            d.label = "set again at the top of the body".into();
                            d.notes.extend(at.map(|at| (at, "this changes between admission and body".into())));
                            d.help = vec![format!("read it in the body itself: `set {word} = …;`")];
                        }
                    }
                }
            }
        }
        (self.scopes.inside(scope, names), body)
    }

    #[allow(clippy::too_many_arguments, reason = "the clauses of one statement")]
    pub(crate) fn run(
        &mut self,
        stages: &'a [ast::Ref],
        mode: Option<ir::Mode>,
        work: &'a ast::Expr,
        growing: Option<&'a ast::Ref>,
        span: Span,
        scope: ScopeId,
        out: &mut ir::Block,
    ) -> Result<()> {
        let mut refs = Vec::new();
        let mut spans = Vec::new();
        if stages.is_empty() {
            let at = self.places.parenthesis(span);
            refs.push(self.own_stage("run", at, scope));
            spans.push(at);
        }
        for r in stages {
            refs.push(self.stage_ref(r, scope, Clause::Value, Doing::Names("run")));
            spans.push(r.span);
        }
        self.run_on(refs, &spans, mode, work, growing, span, scope, out)
    }

    /// A run on stages already found.
    #[allow(clippy::too_many_arguments, reason = "the clauses of one statement")]
    pub(crate) fn run_on(
        &mut self,
        refs: Vec<Result<ir::StageRef>>,
        spans: &[Span],
        mode: Option<ir::Mode>,
        work: &'a ast::Expr,
        growing: Option<&'a ast::Ref>,
        span: Span,
        scope: ScopeId,
        out: &mut ir::Block,
    ) -> Result<()> {
        let work = self.expr(work, scope, Clause::Work);
        let grown = growing.map(|r| self.pool_ref(r, scope, Clause::Value, Doing::Allocates("growing"))).transpose();
        let stages = refs.into_iter().collect::<Result<Vec<_>>>()?;
        if stages.len() > 1 {
            self.check_flow(&stages, spans, mode, growing, span)?;
        } else {
            self.check_mode(&stages[0], spans[0], mode, growing, span)?;
        }
        let kind = ir::StmtKind::Run(Box::new(ir::RunStmt { stages, mode, work: work?, growing: grown? }));
        let at = self.push(out, span, kind);
        for (k, span) in spans.iter().enumerate() {
            self.places.remember(at, Part::Reference(k), *span);
        }
        if let Some(growing) = growing {
            self.places.remember(at, Part::Second, growing.span);
        }
        Ok(())
    }

    fn check_mode(
        &mut self,
        stage: &ir::StageRef,
        at: Span,
        mode: Option<ir::Mode>,
        growing: Option<&'a ast::Ref>,
        span: Span,
    ) -> Result<()> {
        let Some(known) = self.names.stages.get(stage.stage as usize) else { return Ok(()) };
        let (name, word, declared, step) = (known.name.clone(), known.word(), known.span, known.is_step());
        if step && mode.is_none() {
            return Err(self
                .error("wrong-mode", at.to(span), format!("a run on step stage `{name}` says `prefill` or `decode`"))
                .note(declared, "a `step` stage")
                .help(format!("write `run {name} prefill (n)` or `run {name} decode (n)`"))
                .done(self));
        }
        if !step && mode.is_some() {
            return Err(self
                .error("wrong-mode", at.to(span), format!("`{name}` is a `{word}` stage and knows no `prefill` or `decode`"))
                .note(declared, "declared here")
                .help(format!("write `run {name} (w)`"))
                .done(self));
        }
        if !step && let Some(growing) = growing {
            return Err(self
                .error("wrong-mode", at.to(span), format!("`growing {}` on `{name}`, a `{word}` stage", written_as(growing)))
                .note(growing.span, "only a `step` stage serves tokens that grow a pool")
                .help("take the units in the hold, or `grow` them")
                .done(self));
        }
        Ok(())
    }

    fn check_flow(
        &mut self,
        stages: &[ir::StageRef],
        spans: &[Span],
        mode: Option<ir::Mode>,
        growing: Option<&'a ast::Ref>,
        span: Span,
    ) -> Result<()> {
        if mode.is_some() || growing.is_some() {
            return Err(self
                .error("flow-stage", spans[0].to(span), "a run over several stages has no `prefill`, `decode` or `growing`")
                .help("those are for one `step` stage")
                .done(self));
        }
        let mut bad = false;
        let mut refused: Vec<u32> = Vec::new();
        for (k, stage) in stages.iter().enumerate() {
            if refused.contains(&stage.stage) {
                continue;
            }
            let Some(known) = self.names.stages.get(stage.stage as usize) else { continue };
            let (name, word, declared) = (known.name.clone(), known.word(), known.span);
            if stages[..k].iter().any(|s| s.stage == stage.stage) {
                bad = true;
                self.error("flow-stage", spans[k], format!("`{name}` is named twice in one run"))
                    .help("a flow crosses each link once; two members of one array need two arrays")
                    .done(self);
                continue;
            }
            let Kind::Written(ast::StageKind { kind: ast::StageKindKind::Ps(rate), .. }) = known.kind else {
                bad = true;
                refused.push(stage.stage);
                self.error("flow-stage", spans[k], format!("`{name}` is a `{word}` stage; a run over several stages takes `ps` stages"))
                    .note(declared, "declared here")
                    .help(format!("a link of constant rate is `{name} : ps(1e5)`"))
                    .done(self);
                continue;
            };
            if self.constant_rate(rate).is_none() {
                bad = true;
                self.error("flow-stage", spans[k], format!("the rate of `{name}` must be a positive constant to be shared"))
                    .note(rate.span, "this rate")
                    .done(self);
                continue;
            }
            self.names.stages[stage.stage as usize].shared = true;
        }
        if bad {
            return Err(Reported);
        }
        self.multi_run = self.multi_run.or(Some(span));
        Ok(())
    }

    /// A `ps` rate that is a positive number.
    fn constant_rate(&mut self, rate: &'a ast::Expr) -> Option<f64> {
        let scope = self.program;
        let findings = (self.findings.list.len(), self.findings.errors);
        let linked = self.expr(rate, scope, Clause::Rate);
        debug_assert!(linked.is_ok() || self.findings.errors >= findings.1);
        let value = fold::value(&linked.ok()?)?;
        (value > 0.0 && !value.is_nan()).then_some(value)
    }

    /// The stage of the queue a statement stands in.
    pub(crate) fn own_stage(&mut self, word: &str, at: Span, scope: ScopeId) -> Result<ir::StageRef> {
        let Room::Entry { queue, .. } = self.scopes.room_of(scope) else {
            return Err(self
                .error("no-stage", at, format!("`{word}` names no stage"))
                .help(format!("write `{word} STAGE (w);`; only an entry has a stage of its own"))
                .done(self));
        };
        let Some(stage) = self.names.queues[queue].stage else {
            return Err(self.no_serve(at, queue));
        };
        let member = self.own_member(scope, Clause::Value)?;
        Ok(ir::StageRef { stage: stage as u32, member })
    }

    #[allow(clippy::too_many_arguments, reason = "the clauses of one statement")]
    fn form(
        &mut self,
        form: ast::Form,
        index: Option<&'a ast::Expr>,
        on: Option<&'a ast::Ref>,
        work: &'a ast::Expr,
        growing: Option<&'a ast::Ref>,
        span: Span,
        scope: ScopeId,
        out: &mut ir::Block,
    ) -> Result<()> {
        let (word, mode) = match form {
            ast::Form::Prefill => ("prefill", Some(ir::Mode::Prefill)),
            ast::Form::Decode => ("decode", Some(ir::Mode::Decode)),
            ast::Form::Tool => ("tool", None),
        };
        let (stage, at) = match on {
            Some(on) => (self.stage_ref(on, scope, Clause::Value, Doing::Names("run")), on.span),
            None => (self.stage_of_form(word, index, span, scope), span),
        };
        // A stage that happens to be called `prefill` need not be an engine.
        let step = match &stage {
            Ok(s) => self.names.stages.get(s.stage as usize).is_none_or(|s| s.is_step()),
            Err(Reported) => true,
        };
        let mode = mode.filter(|_| step);
        self.run_on(vec![stage], &[at], mode, work, growing, span, scope, out)
    }

    /// The stage a serving form means: the queue's own engine, the stage of that
    /// name above, or the only engine above.
    fn stage_of_form(
        &mut self,
        word: &'static str,
        index: Option<&'a ast::Expr>,
        span: Span,
        scope: ScopeId,
    ) -> Result<ir::StageRef> {
        let item = match self.scopes.room_of(scope) {
            Room::Program { item } => item,
            Room::Entry { queue, .. } => {
                let own = self.names.queues[queue].stage;
                if matches!(word, "prefill" | "decode")
                    && let Some(own) = own
                    && self.names.stages[own].is_step()
                {
                    if let Some(index) = index {
                        return Err(self
                            .error("index-not-needed", index.span, format!("`{word}` without `on` is the member's own stage and takes no index"))
                            .help(format!("write `{word} (n);`"))
                            .done(self));
                    }
                    return self.own_stage(word, span, scope);
                }
                self.names.queues[queue].item
            }
            Room::Options { queue } => self.names.queues[queue].item,
        };
        let in_entry = matches!(self.scopes.room_of(scope), Room::Entry { .. });
        let words: &[&str] = if word == "transfer" { &["link", "transfer"] } else { &[word] };
        let mut candidates: Vec<usize> = Vec::new();
        for (k, stage) in self.names.stages.iter().enumerate() {
            if stage.item >= item || stage.queue.is_some() && in_entry {
                continue;
            }
            let engine = matches!(word, "prefill" | "decode") && stage.is_step() && !in_entry;
            if words.contains(&stage.name.as_str()) || engine {
                candidates.push(k);
            }
        }
        // A stage of the form's own name is meant before any engine.
        if let Some(&named) = candidates.iter().find(|&&k| self.names.stages[k].name == word)
            && word != "transfer"
        {
            candidates = vec![named];
        }
        match candidates.as_slice() {
            [stage] => {
                let (stage, size) = (*stage, self.names.stages[*stage].size);
                let name = self.names.stages[stage].name.clone();
                let index = index.map(|expr| Thunk { expr, scope });
                let member = self.member(index, size, &name, "stage", span, Clause::Value)?;
                Ok(ir::StageRef { stage: stage as u32, member })
            }
            [] => {
                let below = self.names.stages.iter().find(|s| words.contains(&s.name.as_str()));
                let e = self.error("no-stage", span, format!("no stage declared above plays `{word}`"));
                let e = match below {
                    Some(s) => e.note(s.span, "this one is declared below"),
                    None => e,
                };
                let names = words.join("` or `");
                Err(e
                    .help(match word {
                        "prefill" | "decode" => format!("declare a `step` stage above, or write `{word} on STAGE (n);`"),
                        _ => format!("name a stage `{names}` above, or write `{word} on STAGE …`"),
                    })
                    .done(self))
            }
            several => {
                let names: Vec<&str> = several.iter().map(|&k| self.names.stages[k].name.as_str()).collect();
                Err(self
                    .error("several-stages", span, format!("several stages play `{word}`: {}", names.join(", ")))
                    .help(format!("say which: `{word} on {} …`", names[0]))
                    .done(self))
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the clauses of one statement")]
    fn transfer(
        &mut self,
        index: Option<&'a ast::Expr>,
        on: &'a [ast::Ref],
        work: &'a ast::Expr,
        from: &'a ast::Ref,
        to: &'a ast::Ref,
        load: &'a ast::Expr,
        span: Span,
        scope: ScopeId,
        out: &mut ir::Block,
    ) -> Result<()> {
        let source = self.pool_ref(from, scope, Clause::Value, Doing::GivesBack("from"));
        let target = self.pool_ref(to, scope, Clause::Value, Doing::Allocates("to"));
        let load = self.expr(load, scope, Clause::Amount("load"));
        let moved = if on.is_empty() {
            match self.relation_of(index, from, span, scope)? {
                Some(relation) => self.run_relation(&relation, work, from, span, scope, out),
                None => {
                    let stage = self.stage_of_form("transfer", index, span, scope);
                    self.run_on(vec![stage], &[span], None, work, None, span, scope, out)
                }
            }
        } else {
            let mut refs = Vec::new();
            let mut spans = Vec::new();
            for r in on {
                let stage = self.stage_ref(r, scope, Clause::Value, Doing::Names("on"));
                if let Ok(stage) = &stage {
                    self.link_latency(stage, r.span, out);
                }
                refs.push(stage);
                spans.push(r.span);
            }
            self.run_on(refs, &spans, None, work, None, span, scope, out)
        };
        let (source, target, load) = (source?, target?, load?);
        moved?;
        let at = self.push(out, to.span, ir::StmtKind::Load { pool: target, units: load });
        self.places.remember(at, Part::Reference(0), to.span);
        let at = self.push(out, from.span, ir::StmtKind::Release { pool: source });
        let said = self.said_at(from, scope);
        self.places.remember(at, Part::Reference(0), said);
        Ok(())
    }
}

fn mode_of(mode: ast::Mode) -> ir::Mode {
    match mode {
        ast::Mode::Prefill => ir::Mode::Prefill,
        ast::Mode::Decode => ir::Mode::Decode,
    }
}

/// A reference about as written.
pub(crate) fn written_as(r: &ast::Ref) -> String {
    let index = if r.index.is_some() { "[…]" } else { "" };
    match &r.field {
        Some(field) => format!("{}{index}.{}", r.name.text, field.text),
        None => format!("{}{index}", r.name.text),
    }
}

/// The first of these names an expression reads.
fn first_read<'a>(e: &'a ast::Expr, names: &[&str]) -> Option<(&'a str, Span)> {
    struct First<'n, 'a> {
        names: &'n [&'n str],
        found: Option<(&'a str, Span)>,
    }
    impl<'a> crate::walk::Visitor<'a> for First<'_, 'a> {
        fn reads(&mut self, r: &'a ast::Ref) {
            if self.found.is_none() && r.field.is_none() && self.names.contains(&r.name.text.as_str()) {
                self.found = Some((&r.name.text, r.span));
            }
        }
    }
    let mut v = First { names, found: None };
    crate::walk::expr(e, &mut v);
    v.found
}
