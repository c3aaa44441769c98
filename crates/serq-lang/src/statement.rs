//! Statements: the session's program, with every definition, server, route and
//! entry written out where it is used.

use serq_ir::{self as ir};

use crate::ast::{self, StmtKind};
use crate::expression::number;
use crate::fold;
use crate::link::{Linker, Part};
use crate::moment::{self, Clause};
use crate::nearest;
use crate::reference::Doing;
use crate::resolve::{Reported, Result};
use crate::run::{Moved, Work};
use crate::scope::{Binding, Room, ScopeId};
use crate::source::Span;

impl<'a> Linker<'a> {
    /// Links the statements of a block, in order, behind those already there.
    pub(crate) fn block(&mut self, block: &'a ast::Block, scope: ScopeId, out: &mut ir::Block) {
        self.blocks += 1;
        if self.blocks > ir::DEPTH_MAX {
            self.error(
                "too-deep",
                block.span,
                format!("once everything is written out, blocks nest more than {} deep here", ir::DEPTH_MAX),
            )
            .done(self);
        } else {
            for stmt in &block.stmts {
                // What could not be linked is reported; the rest goes on.
                if self.stmt(stmt, scope, out).is_err() {
                    self.leave_gap(stmt);
                }
            }
        }
        self.blocks -= 1;
    }

    /// Notes what a refused statement leaves unknown. An assignment is linked all the same,
    /// and the others not named here decide neither what runs nor when.
    fn leave_gap(&mut self, stmt: &ast::Stmt) {
        match &stmt.kind {
            StmtKind::Set(..)
            | StmtKind::Observe(..)
            | StmtKind::Grow(..)
            | StmtKind::Load(..)
            | StmtKind::Drop(..)
            | StmtKind::Release(..) => {}
            StmtKind::Run { .. } | StmtKind::Serve { .. } => self.gaps.time = true,
            _ => {
                self.gaps.order = true;
                self.gaps.time = true;
            }
        }
    }

    pub(crate) fn inner_block(&mut self, block: &'a ast::Block, scope: ScopeId) -> ir::Block {
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
        self.refuse_in_leg(stmt)?;
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
            StmtKind::Fail => {
                self.push(out, span, ir::StmtKind::Fail);
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
            StmtKind::Release(pool, after) => {
                let target = self.pool_ref(pool, scope, Clause::Value, Doing::GivesBack("release"));
                let after = after.as_ref().map(|after| self.expr(after, scope, Clause::Value)).transpose()?;
                let at = self.push(out, span, ir::StmtKind::Release { pool: target?, after });
                let said = self.said_at(pool, scope);
                self.places.remember(at, Part::Reference(0), said);
                Ok(())
            }
            StmtKind::Run { stages, mode, work, then, growing, reads } => {
                let work = Work { mode: mode.map(mode_of), work, then: then.as_deref(), growing: growing.as_ref() };
                self.run(stages, work, span, scope, out)?;
                match reads {
                    Some(reads) => self.run_reads(reads, scope, out),
                    None => Ok(()),
                }
            }
            StmtKind::Serve { form, index, on, work, then, growing } => {
                let work = Work { mode: None, work, then: then.as_deref(), growing: growing.as_ref() };
                self.form(*form, index.as_ref(), on.as_ref(), work, span, scope, out)
            }
            StmtKind::Transfer { index, on, work, from, to, load, fails, otherwise } => {
                let moved = Moved { index: index.as_ref(), on, work, from, to, load };
                self.transfer(moved, fails.as_deref(), otherwise.as_deref(), span, scope, out)
            }
            StmtKind::Branch { chance, test, then, otherwise } => {
                self.branch(*chance, test, then, otherwise.as_ref(), span, scope, out)
            }
            StmtKind::Loop(body) => {
                let body = self.inner_block(body, scope);
                self.push(out, span, ir::StmtKind::Loop { body });
                Ok(())
            }
            StmtKind::Fork(body) => {
                self.leg = Some(Span { end: span.start + 4, ..span });
                let body = self.inner_block(body, scope);
                self.leg = None;
                self.push(out, span, ir::StmtKind::Fork { body });
                Ok(())
            }
            StmtKind::Join => {
                self.push(out, span, ir::StmtKind::Join);
                Ok(())
            }
            StmtKind::Shielded(body) => {
                let body = self.inner_block(body, scope);
                self.push(out, span, ir::StmtKind::Shielded { body });
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

    /// A leg is a part of the session beside it: what is the whole session's is not the leg's.
    fn refuse_in_leg(&mut self, stmt: &ast::Stmt) -> Result<()> {
        let Some(leg) = self.leg else { return Ok(()) };
        let (word, help) = match stmt.kind {
            StmtKind::Turn => ("turn", "begin the turn before the `fork`, or behind the `join`"),
            StmtKind::End => ("end", "a leg ends with its last statement; the session ends behind a `join`"),
            StmtKind::Fail => ("fail", "a leg ends with its last statement; the session may fail behind a `join`"),
            StmtKind::Join => ("join", "the session waits for its legs; a leg waits for nobody"),
            StmtKind::Fork(_) => ("fork", "the session forks all its legs itself, one behind the other"),
            StmtKind::Shielded(_) => ("shielded", "shield the session's own statements, the `join` among them"),
            StmtKind::Transfer { otherwise: Some(ref policy), .. } if !policy.recomputes => {
                ("transfer", "write `else recompute`: a leg does not end its session")
            }
            _ => return Ok(()),
        };
        let span = Span { end: stmt.span.start + word.len() as u32, ..stmt.span };
        Err(self
            .error("misplaced-statement", span, format!("`{word}` in the leg of a `fork`"))
            .note(leg, "this leg")
            .help(help)
            .done(self))
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
        let attribute = attribute? as u32;
        // A refused value is assigned all the same: what the attribute was before is gone.
        let (value_linked, done) = match linked {
            Ok(linked) => (linked, Ok(())),
            Err(reported) => (number(0.0), Err(reported)),
        };
        let at = self.push(out, span, ir::StmtKind::Set { attribute, value: value_linked });
        self.places.remember(at, Part::Value, value.span);
        done
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
        if verb != "mark"
            && matches!(self.scopes.find(scope, word), Some(Binding::Argument(_) | Binding::Unknown | Binding::From(_)))
        {
            if let Room::Entry { queue, entry, .. } = self.scopes.room_of(scope) {
                let queue = &self.names.queues[queue].declared.name.text;
                return Err(self
                    .entry_error(
                        "not-assignable",
                        entry,
                        format!("`{queue}.{}` sets its parameter `{word}`", entry.verb.text),
                    )
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
        let in_entry = matches!(self.scopes.room_of(scope), Room::Entry { .. });
        if moment::context(word).is_some() || word == "inf" || word == "self" && in_entry {
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
                None if known.is_empty() => {
                    e.help(format!("declare it: `queue {} : gateway {{ route {{ … }} }}`", name.text))
                }
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
            && let Some(value) = fold::value(&linked, &self.lists)
            && value != 0.0
            && value != 1.0
        {
            let e = self.error(
                "branch-guard",
                test.span,
                format!("a guard is 0 or 1, this is {value}", value = fold::show(value)),
            );
            let e = if value > 0.0 && value < 1.0 {
                e.label("a probability")
                    .help(format!("to draw, write `branch with ({value})`", value = fold::show(value)))
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
                .error(
                    "wrong-kind",
                    name.span,
                    format!("`{}` is a definition of a value, used as a statement", name.text),
                )
                .note(def.name.span, "defined here with `=`")
                .help(format!("use it in an expression: `set x = {}(…);`", name.text))
                .done(self));
        };
        let inner = self.bind_arguments(def, name, arguments, scope)?;
        self.block(body, inner, out);
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
