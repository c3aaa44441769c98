//! References to stages: a program's, a queue's own, its `nic` and its waits.
//!
//! Inside an entry the queue's name is the member's own stage. An entry runs on its
//! own queue's stages, on a link's, and on stages that are in no queue.

use serq_ir::{self as ir, StageFigure};

use crate::ast;
use crate::link::Linker;
use crate::moment::Clause;
use crate::nearest;
use crate::reference::{Doing, UNKNOWN};
use crate::resolve::{Reported, Result};
use crate::scope::{Binding, Room, ScopeId, Thunk};
use crate::source::Span;

impl<'a> Linker<'a> {
    /// A figure of a stage.
    pub(crate) fn stage_figure(
        &mut self,
        name: &'a ast::Name,
        figure: StageFigure,
        argument: &'a ast::Expr,
        scope: ScopeId,
        at: Clause,
    ) -> Result<ir::Expr> {
        let word_span = name.span;
        if !at.may_read_stage(figure) {
            return Err(self.state_not_allowed(name, scope, at));
        }
        let found = self.findings.list.len();
        let stage = self.stage_argument(argument, scope, at);
        self.point_at_call(found, name, argument);
        let stage = stage?;
        self.constant_index_in_gauge(stage.member.as_deref(), argument.span, at)?;
        if figure == StageFigure::BudgetLeft
            && let Some(declared) = self.names.stages.get(stage.stage as usize)
            && !declared.is_step()
        {
            let (name, word, span) = (declared.name.clone(), declared.word(), declared.span);
            return Err(self
                .error(
                    "wrong-kind",
                    word_span.to(argument.span),
                    format!("`{name}` is a `{word}` stage and has no budget"),
                )
                .note(span, "declared here")
                .help("`budget_left` is a figure of `step` stages")
                .done(self));
        }
        Ok(ir::Expr::Stage(figure, stage))
    }

    pub(crate) fn stage_argument(
        &mut self,
        argument: &'a ast::Expr,
        scope: ScopeId,
        at: Clause,
    ) -> Result<ir::StageRef> {
        let Some(r) = Self::plain(argument) else {
            return Err(self
                .error("wrong-kind", argument.span, "a stage is named here")
                .help("write the stage's name")
                .done(self));
        };
        self.stage_ref(r, scope, at, Doing::Reads)
    }

    /// The stage a reference means.
    pub(crate) fn stage_ref(
        &mut self,
        r: &'a ast::Ref,
        scope: ScopeId,
        at: Clause,
        doing: Doing,
    ) -> Result<ir::StageRef> {
        self.deeper(r.span)?;
        let linked = self.stage_ref_inner(r, scope, at, doing);
        self.depth -= 1;
        linked
    }

    pub(crate) fn stage_ref_inner(
        &mut self,
        r: &'a ast::Ref,
        scope: ScopeId,
        at: Clause,
        doing: Doing,
    ) -> Result<ir::StageRef> {
        let word = r.name.text.as_str();
        if let Some(field) = &r.field {
            return self.queue_stage(r, field, scope, at, doing);
        }
        let mut index = r.index.as_deref().map(|expr| Thunk { expr, scope });
        let mut name = &r.name;
        match self.scopes.find(scope, word) {
            Some(Binding::Argument(thunk)) => match Self::plain(thunk.expr) {
                Some(inner) if r.index.is_none() => return self.stage_ref(inner, thunk.scope, at, doing),
                Some(inner) if inner.index.is_none() && inner.field.is_none() => name = &inner.name,
                _ => {
                    return Err(self
                        .error("wrong-kind", r.span, format!("`{word}` stands for a value here, not for a stage"))
                        .note(thunk.expr.span, "this is the argument")
                        .help("pass the stage's name")
                        .done(self));
                }
            },
            Some(Binding::Unknown) => return Ok(ir::StageRef { stage: UNKNOWN, member: None }),
            Some(Binding::From(_) | Binding::Variable(_)) => {
                return Err(self.error("wrong-kind", r.span, format!("`{word}` is no stage")).done(self));
            }
            Some(Binding::Bound(_)) | None => {}
        }
        let word = name.text.as_str();
        match self.scopes.room_of(scope) {
            Room::Entry { queue, .. } | Room::Options { queue }
                if self.names.queues[queue].declared.name.text == word =>
            {
                let Some(stage) = self.names.queues[queue].stage else {
                    return Err(self.no_serve(r.span, queue));
                };
                if r.index.is_some() {
                    return Err(self.own_index_written(r, queue, scope, "stage"));
                }
                let member = self.own_member(scope, at)?;
                return Ok(ir::StageRef { stage: stage as u32, member });
            }
            Room::Entry { queue, entry, .. } if !self.names.is_route(queue, entry) => {
                let foreign = self.names.stage_of.get(word).is_some_and(|&s| {
                    doing == Doing::Reads
                        || self.names.stages[s]
                            .queue
                            .is_some_and(|q| !self.names.queues[q].roles.contains(&crate::resolve::Role::Link))
                });
                if foreign {
                    let queue = self.names.queues[queue].declared.name.text.as_str();
                    let what = if doing == Doing::Reads { "reads" } else { "runs on" };
                    return Err(self
                        .entry_error(
                            "entry-reads-outside",
                            entry,
                            format!("`{queue}.{}` {what} `{word}`, a stage outside `{queue}`", entry.verb.text),
                        )
                        .note(r.span, "named here")
                        .help("an entry sees its own queue; it may `run` on a stage that is in no queue")
                        .done(self));
                }
            }
            _ => {}
        }
        if self.declined.contains(word) {
            return Err(Reported);
        }
        let Some(&stage) = self.names.stage_of.get(word) else {
            return Err(self.unknown_stage(r, name, scope));
        };
        // A family declared by a queue without `serve` keeps no stage of its name.
        let size = self.names.stages[stage].size;
        let member = self.member(index.take(), size, word, "stage", r.span, at)?;
        Ok(ir::StageRef { stage: stage as u32, member })
    }

    pub(crate) fn no_serve(&mut self, span: Span, queue: usize) -> Reported {
        let name = &self.names.queues[queue].declared.name;
        let (text, at) = (name.text.clone(), name.span);
        self.error("no-stage", span, format!("queue `{text}` has no `serve`, so it has no stage of its own"))
            .note(at, "declared here")
            .help("give it one, such as `serve fifo;`, or name a stage")
            .done(self)
    }

    pub(crate) fn unknown_stage(&mut self, r: &'a ast::Ref, name: &'a ast::Name, scope: ScopeId) -> Reported {
        let word = name.text.as_str();
        if self.declined.contains(word) || self.maybe_declared(word) {
            return Reported;
        }
        if let Some(&queue) = self.names.queue_of.get(word) {
            return self.no_serve(r.span, queue);
        }
        let e = self.error("unknown-stage", name.span, format!("no stage is named `{word}`"));
        let known: Vec<&str> = self.names.stages.iter().map(|s| s.name.as_str()).collect();
        let e = if self.names.pool_of.contains_key(word) {
            e.label("a pool of that name exists")
                .help("figures of a pool: `used(p)`, `free(p)`, `holders(p)`, `queued(p)`, `cachedin(p)`")
        } else {
            match nearest::nearest(word, known.iter().copied()) {
                Some(n) => e.help(format!("write `{n}`")),
                None if known.is_empty() => e.help(format!("declare it: `stage {word} : delay;`")),
                None => e.help(format!("the stages: {}", known.join(", "))),
            }
        };
        self.through(e, scope).done(self)
    }

    pub(crate) fn queue_stage(
        &mut self,
        r: &'a ast::Ref,
        field: &'a ast::Name,
        scope: ScopeId,
        at: Clause,
        doing: Doing,
    ) -> Result<ir::StageRef> {
        let (queue, index) = self.queue_of(r, scope)?;
        let text = self.names.queues[queue].declared.name.text.clone();
        let stage = match field.text.as_str() {
            "nic" => self.names.queues[queue].nic,
            "latency" => self.names.queues[queue].latency.map(|(s, _)| s),
            _ => None,
        };
        let Some(stage) = stage else {
            let e = self.error("unknown-stage", field.span, format!("queue `{text}` has no stage `{}`", field.text));
            let mut known = Vec::new();
            if self.names.queues[queue].stage.is_some() {
                known.push(format!("`{text}`, its own"));
            }
            if self.names.queues[queue].nic.is_some() {
                known.push(format!("`{text}.nic`"));
            }
            let e = if known.is_empty() { e } else { e.help(format!("its stages: {}", known.join(", "))) };
            return Err(self.through(e, scope).done(self));
        };
        if let Room::Entry { queue: own, entry, .. } = self.scopes.room_of(scope)
            && !self.names.is_route(own, entry)
        {
            if own == queue && index.is_none() {
                let member = self.own_member(scope, at)?;
                return Ok(ir::StageRef { stage: stage as u32, member });
            }
            if doing == Doing::Reads || doing != Doing::Names("on") {
                let own = self.names.queues[own].declared.name.text.as_str();
                return Err(self
                    .entry_error(
                        "entry-reads-outside",
                        entry,
                        format!("`{own}.{}` names `{text}.{}`, a stage of another queue", entry.verb.text, field.text),
                    )
                    .note(r.span, "named here")
                    .done(self));
            }
        }
        let size = self.names.stages[stage].size;
        let name = self.names.stages[stage].name.clone();
        let member = self.member(index, size, &name, "stage", r.span, at)?;
        Ok(ir::StageRef { stage: stage as u32, member })
    }
}
