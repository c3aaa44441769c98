//! References: which pool or stage a name means, and which of its members.
//!
//! Inside an entry a bare name is the member's own; outside, a queue's parts are
//! written `Q[i].kv`. A parameter may name a pool or stage when its argument is a
//! plain reference. An index is linked in the clause it is read in.

use serq_ir::{self as ir, PoolFigure, StageFigure};

use crate::ast::{self, ExprKind};
use crate::diagnostic::Diagnostic;
use crate::fold;
use crate::link::{Draft, Linker};
use crate::moment::Clause;
use crate::nearest;
use crate::resolve::{Reported, Result};
use crate::scope::{Binding, From, Room, ScopeId, Thunk};
use crate::source::Span;

/// Stands for a pool or stage while an entry is looked at without a call.
pub(crate) const UNKNOWN: u32 = u32::MAX;

/// Most terms of aggregates whose indices are tried out; further ones are left to
/// the run, which checks every index anyway.
const TERMS_TRIED_MAX: u64 = 4_000_000;

/// What a statement does with the pool it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Reads a figure of it.
    Reads,
    /// Allocates in it: `hold`, `grow`, `load`, `growing`, `lease`, `to`.
    Allocates(&'static str),
    /// `release`, `drop`, `from`.
    GivesBack(&'static str),
    /// An option of a pool or stage names it.
    Names(&'static str),
}

impl<'a> Linker<'a> {
    /// The plain reference an expression is, if it is one.
    fn plain(e: &'a ast::Expr) -> Option<&'a ast::Ref> {
        match &e.kind {
            ExprKind::Ref(r) => Some(r),
            _ => None,
        }
    }

    /// A figure of a pool.
    pub(crate) fn pool_figure(
        &mut self,
        name: &'a ast::Name,
        figure: PoolFigure,
        argument: &'a ast::Expr,
        scope: ScopeId,
        at: Clause,
    ) -> Result<ir::Expr> {
        let allowed =
            if figure == PoolFigure::Cachedin { at.may_read_own_cache() } else { at.may_read_state() };
        if !allowed {
            return Err(self.state_not_allowed(name, scope, at));
        }
        let pool = self.pool_argument(name, argument, scope, at)?;
        self.constant_index_in_gauge(pool.member.as_deref(), argument.span, at)?;
        Ok(ir::Expr::Pool(figure, pool))
    }

    fn constant_index_in_gauge(&mut self, member: Option<&ir::Expr>, span: Span, at: Clause) -> Result<()> {
        if at == Clause::Gauge
            && let Some(member) = member
            && crate::lint::reads_state(member)
        {
            return Err(self
                .error("not-constant", span, "the index of a pool or stage in a gauge is constant")
                .label("this one changes with the state")
                .help("an aggregate's variable is constant: `sum k in 2 (used(kv[k]))`")
                .done(self));
        }
        Ok(())
    }

    fn pool_argument(
        &mut self,
        name: &'a ast::Name,
        argument: &'a ast::Expr,
        scope: ScopeId,
        at: Clause,
    ) -> Result<ir::PoolRef> {
        let found = self.findings.list.len();
        let pool = self.pool_argument_inner(name, argument, scope, at);
        self.point_at_call(found, name, argument);
        pool
    }

    /// A family without its index is said at the figure's name.
    fn point_at_call(&mut self, found: usize, name: &ast::Name, argument: &ast::Expr) {
        for d in &mut self.findings.list[found..] {
            let Some(span) = d.span else { continue };
            let inside = span.file == argument.span.file && span.start > argument.span.start && span.end <= argument.span.end;
            if matches!(d.code, "index-missing" | "wrong-kind") && !inside {
                d.span = Some(name.span.to(argument.span));
            }
        }
    }

    fn pool_argument_inner(
        &mut self,
        name: &'a ast::Name,
        argument: &'a ast::Expr,
        scope: ScopeId,
        at: Clause,
    ) -> Result<ir::PoolRef> {
        let Some(r) = Self::plain(argument) else {
            return Err(self
                .error("wrong-kind", name.span.to(argument.span), format!("`{}` takes a pool", name.text))
                .help(format!("write `{}(kv)`, with the pool's name", name.text))
                .done(self));
        };
        self.pool_ref(r, scope, at, Doing::Reads)
    }

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
                .error("wrong-kind", word_span.to(argument.span), format!("`{name}` is a `{word}` stage and has no budget"))
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

    /// `blocksize(p)`, folded.
    pub(crate) fn block_size(
        &mut self,
        name: &'a ast::Name,
        argument: &'a ast::Expr,
        scope: ScopeId,
        at: Clause,
    ) -> Result<ir::Expr> {
        if matches!(at, Clause::Let | Clause::Constant(_)) {
            return Err(self.state_not_allowed(name, scope, at));
        }
        let pool = self.pool_argument(name, argument, scope, at)?;
        if pool.pool == UNKNOWN {
            return Ok(self.unknown_value());
        }
        let declared = &self.names.pools[pool.pool as usize];
        match declared.block {
            Some(block) => Ok(ir::Expr::Number(ir::json::Number(block))),
            None => {
                let (name, span) = (declared.name.clone(), declared.declared.name.span);
                Err(self
                    .error("no-block", argument.span, format!("`{name}` has no `block`"))
                    .note(span, "declared here")
                    .help("give the pool one: `block 16;`")
                    .done(self))
            }
        }
    }

    /// The pool a reference means.
    pub(crate) fn pool_ref(
        &mut self,
        r: &'a ast::Ref,
        scope: ScopeId,
        at: Clause,
        doing: Doing,
    ) -> Result<ir::PoolRef> {
        self.deeper(r.span)?;
        let linked = self.pool_ref_inner(r, scope, at, doing);
        self.depth -= 1;
        linked
    }

    fn pool_ref_inner(
        &mut self,
        r: &'a ast::Ref,
        scope: ScopeId,
        at: Clause,
        doing: Doing,
    ) -> Result<ir::PoolRef> {
        let word = r.name.text.as_str();
        if let Some(field) = &r.field {
            return self.queue_pool(r, field, scope, at, doing);
        }
        match self.scopes.find(scope, word) {
            Some(Binding::Argument(thunk)) => {
                return match Self::plain(thunk.expr) {
                    Some(inner) if r.index.is_none() => self.pool_ref(inner, thunk.scope, at, doing),
                    Some(inner) if inner.index.is_none() && inner.field.is_none() => {
                        // `p[k]` where the argument for `p` is a family's name.
                        let (pool, size) = self.pool_family(inner, thunk.scope, doing)?;
                        let index = r.index.as_deref().map(|expr| Thunk { expr, scope });
                        let name = self.names.pools[pool].name.clone();
                        let member = self.member(index, size, &name, "pool", r.span, at)?;
                        Ok(ir::PoolRef { pool: pool as u32, member })
                    }
                    _ => Err(self
                        .error("wrong-kind", r.span, format!("`{word}` stands for a value here, not for a pool"))
                        .note(thunk.expr.span, "this is the argument")
                        .help("pass the pool's name")
                        .done(self)),
                };
            }
            Some(Binding::Unknown) => return Ok(ir::PoolRef { pool: UNKNOWN, member: None }),
            Some(Binding::From(from)) => return self.pool_read_from(r, from, scope, at, doing),
            Some(Binding::Variable(_)) => {
                return Err(self.error("wrong-kind", r.span, format!("`{word}` is a number, not a pool")).done(self));
            }
            Some(Binding::Bound(_)) | None => {}
        }
        if let Room::Entry { queue, .. } | Room::Options { queue } = self.scopes.room_of(scope)
            && let Some(&pool) = self.names.queues[queue].pools.get(word)
        {
            return self.own_pool(r, queue, pool, scope, at, doing);
        }
        if let Room::Entry { queue, entry, .. } = self.scopes.room_of(scope)
            && !self.names.is_route(queue, entry)
            && self.names.pool_of.contains_key(word)
        {
            return Err(self.outside_pool(r, word, queue, entry, doing));
        }
        let (pool, size) = self.pool_family(r, scope, doing)?;
        let index = r.index.as_deref().map(|expr| Thunk { expr, scope });
        let name = self.names.pools[pool].name.clone();
        let member = self.member(index, size, &name, "pool", r.span, at)?;
        Ok(ir::PoolRef { pool: pool as u32, member })
    }

    fn outside_pool(
        &mut self,
        r: &'a ast::Ref,
        written: &str,
        queue: usize,
        entry: &'a ast::Entry,
        doing: Doing,
    ) -> Reported {
        let queue = self.names.queues[queue].declared.name.text.as_str();
        let verb = &entry.verb.text;
        match doing {
            Doing::Reads | Doing::Names(_) => self
                .entry_error("entry-reads-outside", entry, format!("`{queue}.{verb}` reads `{written}`, a pool outside `{queue}`"))
                .note(r.span, "read here")
                .help("an entry sees its own queue; the gateway reads across queues and passes what an entry needs")
                .done(self),
            Doing::Allocates(_) | Doing::GivesBack(_) => self
                .entry_error(
                    "entry-holds-outside",
                    entry,
                    format!("`{queue}.{verb}` holds `{written}`, which is not a pool of `{queue}`"),
                )
                .note(r.span, "named here")
                .help("an entry allocates its queue's own pools; declare the pool in the queue")
                .done(self),
        }
    }

    fn own_pool(
        &mut self,
        r: &'a ast::Ref,
        queue: usize,
        pool: usize,
        scope: ScopeId,
        at: Clause,
        doing: Doing,
    ) -> Result<ir::PoolRef> {
        if r.index.is_some() {
            return Err(self.own_index_written(r, queue, scope, "pool"));
        }
        let member = match self.scopes.room_of(scope) {
            Room::Options { .. } => {
                if matches!(doing, Doing::Reads) && self.names.pools[pool].size.is_some_and(|n| n > 1) {
                    let name = self.names.pools[pool].name.clone();
                    return Err(self
                        .error("index-missing", r.span, format!("`{name}` is a family and this clause has no member"))
                        .help("an option of a pool or stage is the whole family's")
                        .done(self));
                }
                None
            }
            _ => self.own_member(scope, at)?,
        };
        Ok(ir::PoolRef { pool: pool as u32, member })
    }

    fn own_index_written(&mut self, r: &'a ast::Ref, queue: usize, scope: ScopeId, what: &str) -> Reported {
        let word = &r.name.text;
        let called = match self.scopes.room_of(scope) {
            Room::Entry { called_at: None, .. } if !self.strict => return Reported,
            Room::Entry { called_at, .. } => called_at,
            _ => None,
        };
        let queue = &self.names.queues[queue].declared.name.text;
        let e = self.error("index-not-needed", called.unwrap_or(r.span), format!("`{word}[…]` inside queue `{queue}`: an own {what} is the member's"));
        let e = if called.is_some() { e.note(r.span, "in the entry called here") } else { e };
        e.help(format!("write `{word}`")).done(self)
    }

    /// The call of the entry a scope is in.
    fn call_of(&self, scope: ScopeId) -> Option<Span> {
        match self.scopes.room_of(scope) {
            Room::Entry { called_at, .. } => called_at,
            _ => None,
        }
    }

    /// Where a reference's pool is said: for a `from` name that is the call.
    pub(crate) fn said_at(&self, r: &'a ast::Ref, scope: ScopeId) -> Span {
        match self.scopes.find(scope, &r.name.text) {
            Some(Binding::From(From { said_at: Some(span), .. })) => span,
            _ => r.span,
        }
    }

    /// The member of the entry's own queue that the scope is in.
    pub(crate) fn own_member(&mut self, scope: ScopeId, at: Clause) -> Result<Option<Box<ir::Expr>>> {
        let Room::Entry { queue, member, called_at, .. } = self.scopes.room_of(scope) else {
            return Ok(None);
        };
        let size = self.names.queues[queue].size;
        let Some(count) = size else { return Ok(None) };
        match member {
            _ if called_at.is_none() => Ok(Some(Box::new(self.unknown_value()))),
            Some(thunk) => {
                let name = self.names.queues[queue].declared.name.text.clone();
                self.member(Some(thunk), Some(count), &name, "queue", thunk.expr.span, at)
            }
            None => Ok(None),
        }
    }

    /// `self`.
    pub(crate) fn own_index(&mut self, r: &'a ast::Ref, queue: usize, scope: ScopeId, at: Clause) -> Result<ir::Expr> {
        if self.names.queues[queue].size.is_none() {
            let name = &self.names.queues[queue].declared.name;
            let (text, span) = (name.text.clone(), name.span);
            let Room::Entry { called_at, .. } = self.scopes.room_of(scope) else { return Err(Reported) };
            if called_at.is_none() && !self.strict {
                return Ok(self.unknown_value());
            }
            let e = self.error("outside-entry", called_at.unwrap_or(r.span), format!("`self` in queue `{text}`, which is not a family"));
            let e = if called_at.is_some() { e.note(r.span, "read in the entry called here") } else { e };
            return Err(e
                .note(span, "declared without a size")
                .help(format!("a family has members: `queue {text}[2] : …`"))
                .done(self));
        }
        Ok(match self.own_member(scope, at)? {
            Some(member) => *member,
            None => ir::Expr::Number(ir::json::Number(0.0)),
        })
    }

    fn pool_read_from(&mut self, r: &'a ast::Ref, from: From<'a>, scope: ScopeId, at: Clause, doing: Doing) -> Result<ir::PoolRef> {
        if r.index.is_some() {
            let called = from.said_at;
            if called.is_none() && !self.strict {
                return Err(Reported);
            }
            let place = called.map_or(r.span, |_| self.call_of(scope).unwrap_or(r.span));
            let e = self.error("index-not-needed", place, format!("`{}` is one member's pool and takes no index", r.name.text));
            let e = if place == r.span { e } else { e.note(r.span, "in the entry called here") };
            return Err(e.help(format!("write `{}`", r.name.text)).done(self));
        }
        if matches!(doing, Doing::Allocates("load" | "to")) {
            if from.said_at.is_none() && !self.strict {
                return Err(Reported);
            }
            let place = from.said_at.unwrap_or(r.span);
            let e = self.error("outside-hold", place, format!("`{}` is read from, nothing is loaded into it", r.name.text));
            let e = if place == r.span { e } else { e.note(r.span, "in the entry called with it") };
            return Err(e
                .help("`load` names a pool this entry holds")
                .done(self));
        }
        let (Some(queue), Some(pool)) = (from.queue, from.pool) else {
            return Ok(ir::PoolRef { pool: UNKNOWN, member: None });
        };
        let size = self.names.queues[queue].size;
        let name = self.names.queues[queue].declared.name.text.clone();
        let member = match from.index {
            Some(thunk) => self.member(Some(thunk), size, &name, "queue", thunk.expr.span, at)?,
            None => None,
        };
        Ok(ir::PoolRef { pool: pool as u32, member })
    }

    /// A pool of the program by its bare name.
    fn pool_family(&mut self, r: &'a ast::Ref, scope: ScopeId, doing: Doing) -> Result<(usize, Option<u32>)> {
        let word = r.name.text.as_str();
        if self.declined.contains(word) {
            return Err(Reported);
        }
        if let Some(&pool) = self.names.pool_of.get(word) {
            return Ok((pool, self.names.pools[pool].size));
        }
        if self.declined.contains(word) || self.maybe_declared(word) {
            return Err(Reported);
        }
        let message = format!("no pool is named `{word}`");
        let e = match self.scopes.room_of(scope) {
            Room::Entry { queue, entry, .. } if doing != Doing::Reads && !self.names.is_route(queue, entry) => {
                self.entry_error("unknown-pool", entry, message).note(r.span, "named here")
            }
            _ => self.error("unknown-pool", r.span, message),
        };
        let mut known: Vec<&str> = self.names.pools.iter().filter(|p| p.queue.is_none()).map(|p| p.name.as_str()).collect();
        if let Room::Entry { queue, .. } | Room::Options { queue } = self.scopes.room_of(scope) {
            known.extend(self.names.queues[queue].pools.keys());
        }
        let near = nearest::nearest(word, known.iter().copied());
        let e = if self.names.stage_of.contains_key(word) {
            let e = e.label("a stage of that name exists");
            match doing {
                Doing::Reads => e.help(format!("figures of a stage: `queue({word})`, `busy({word})`, `work({word})`")),
                _ => e.help("a `hold` takes units of a pool; work on a stage is a `run`"),
            }
        } else if let Some(near) = near {
            let e = e.help(format!("write `{near}`"));
            match self.names.pool_of.get(near) {
                Some(&pool) => e.note(self.names.pools[pool].declared.name.span, "declared here"),
                None => e,
            }
        } else if let Some(owner) = self.names.pools.iter().find(|p| p.queue.is_some() && p.declared.name.text == word) {
            e.help(format!("a queue's pool is written with its queue: `{}`", owner.name))
        } else {
            match known.as_slice() {
                [] => e.help(format!("declare it: `pool {word} {{ cap 10; }}`")),
                _ => e.help(format!("the pools: {}", known.join(", "))),
            }
        };
        Err(self.through(e, scope).done(self))
    }

    /// The queue a dotted reference starts with and the index written.
    fn queue_of(&mut self, r: &'a ast::Ref, scope: ScopeId) -> Result<(usize, Option<Thunk<'a>>)> {
        let index = r.index.as_deref().map(|expr| Thunk { expr, scope });
        let mut name = &r.name;
        let mut index = index;
        if let Some(Binding::Argument(thunk)) = self.scopes.find(scope, &r.name.text)
            && let Some(inner) = Self::plain(thunk.expr)
            && inner.field.is_none()
        {
            name = &inner.name;
            if index.is_none() {
                index = inner.index.as_deref().map(|expr| Thunk { expr, scope: thunk.scope });
            }
        }
        match self.names.queue_of.get(name.text.as_str()) {
            Some(_) if self.declined.contains(name.text.as_str()) => Err(Reported),
            Some(&queue) => Ok((queue, index)),
            None if self.declined.contains(name.text.as_str()) || self.maybe_declared(&name.text) => Err(Reported),
            None => {
                let e = self.error("unknown-queue", name.span, format!("no queue is named `{}`", name.text));
                let known: Vec<&str> = self.names.queue_of.keys().copied().collect();
                let e = match nearest::nearest(&name.text, known.iter().copied()) {
                    Some(n) => e.help(format!("write `{n}`")),
                    None if known.is_empty() => e.help("a dotted name is a queue's: `Q.x`, `Q[i].kv`"),
                    None => e.help(format!("the queues: {}", known.join(", "))),
                };
                Err(self.through(e, scope).done(self))
            }
        }
    }

    fn queue_pool(
        &mut self,
        r: &'a ast::Ref,
        field: &'a ast::Name,
        scope: ScopeId,
        at: Clause,
        doing: Doing,
    ) -> Result<ir::PoolRef> {
        let (queue, index) = self.queue_of(r, scope)?;
        let text = self.names.queues[queue].declared.name.text.clone();
        if let Room::Entry { queue: own, entry, .. } = self.scopes.room_of(scope)
            && !self.names.is_route(own, entry)
        {
            let written = format!("{text}.{}", field.text);
            return Err(self.outside_pool(r, &written, own, entry, doing));
        }
        let Some(&pool) = self.names.queues[queue].pools.get(field.text.as_str()) else {
            let e = self.error("unknown-pool", field.span, format!("queue `{text}` has no pool `{}`", field.text));
            let known: Vec<&str> = self.names.queues[queue].pools.keys().copied().collect();
            let e = match nearest::nearest(&field.text, known.iter().copied()) {
                Some(n) => e.help(format!("write `{n}`")),
                None if known.is_empty() => e,
                None => e.help(format!("its pools: {}", known.join(", "))),
            };
            return Err(self.through(e, scope).done(self));
        };
        if let Doing::Allocates(verb) | Doing::GivesBack(verb) = doing {
            return Err(self
                .error(
                    "hold-queue-pool",
                    r.span,
                    format!("`{verb} {text}.{0}`: `{0}` is a pool of queue `{text}`, and only its entries hold it", field.text),
                )
                .help(format!("call an entry: `{text}.verb (…)`"))
                .done(self));
        }
        let size = self.names.queues[queue].size;
        let name = self.names.pools[pool].name.clone();
        let member = self.member(index, size, &name, "pool", r.span, at)?;
        Ok(ir::PoolRef { pool: pool as u32, member })
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

    fn stage_ref_inner(
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
                        .entry_error("entry-reads-outside", entry, format!("`{queue}.{}` {what} `{word}`, a stage outside `{queue}`", entry.verb.text))
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

    fn unknown_stage(&mut self, r: &'a ast::Ref, name: &'a ast::Name, scope: ScopeId) -> Reported {
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
            e.label("a pool of that name exists").help("figures of a pool: `used(p)`, `free(p)`, `holders(p)`, `queued(p)`, `cachedin(p)`")
        } else {
            match nearest::nearest(word, known.iter().copied()) {
                Some(n) => e.help(format!("write `{n}`")),
                None if known.is_empty() => e.help(format!("declare it: `stage {word} : delay;`")),
                None => e.help(format!("the stages: {}", known.join(", "))),
            }
        };
        self.through(e, scope).done(self)
    }

    fn queue_stage(
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
                    .entry_error("entry-reads-outside", entry, format!("`{own}.{}` names `{text}.{}`, a stage of another queue", entry.verb.text, field.text))
                    .note(r.span, "named here")
                    .done(self));
            }
        }
        let size = self.names.stages[stage].size;
        let name = self.names.stages[stage].name.clone();
        let member = self.member(index, size, &name, "stage", r.span, at)?;
        Ok(ir::StageRef { stage: stage as u32, member })
    }

    /// Which member: checks presence, and the range where the index is constant.
    pub(crate) fn member(
        &mut self,
        index: Option<Thunk<'a>>,
        size: Option<u32>,
        name: &str,
        what: &str,
        span: Span,
        at: Clause,
    ) -> Result<Option<Box<ir::Expr>>> {
        let count = size.unwrap_or(1);
        let Some(thunk) = index else {
            if count > 1 {
                return Err(self
                    .error("index-missing", span, format!("{what} `{name}` has {count} members and needs an index"))
                    .help(format!("write which: `{}`", indexed(name)))
                    .done(self));
            }
            return Ok(None);
        };
        let linked = self.index(thunk, at)?;
        let Some(value) = fold::value(&linked) else {
            let values = self.index_values(&linked);
            if let Some(&value) = values.iter().find(|v| !is_member(**v, count)) {
                return Err(self.no_member(span, thunk.expr.span, what, name, count, value));
            }
            return Ok(Some(Box::new(linked)));
        };
        if !is_member(value, count) {
            return Err(self.no_member(span, thunk.expr.span, what, name, count, value));
        }
        if count == 1 {
            return Ok(None);
        }
        Ok(Some(Box::new(ir::Expr::Number(ir::json::Number(value)))))
    }

    fn no_member(&mut self, span: Span, index: Span, what: &str, name: &str, count: u32, value: f64) -> Reported {
        let range = if count == 1 { "0".to_string() } else { format!("0 to {}", count - 1) };
        let e = self.error("index-out-of-range", span, format!("{what} `{name}` has no member {value}", value = fold::show(value)));
        let e = if index.start > span.start && index.end <= span.end { e } else { e.note(index, "this index") };
        e.help(format!("its members: {range}")).done(self)
    }

    /// The values of an index that reads the variables of aggregates only.
    fn index_values(&mut self, index: &ir::Expr) -> Vec<f64> {
        let mut reads_variable = false;
        crate::lint::each(index, &mut |e| reads_variable |= matches!(e, ir::Expr::Variable(_)));
        if !reads_variable || crate::lint::reads_state(index) {
            return Vec::new();
        }
        let terms: u64 = self.aggregates.iter().map(|&n| u64::from(n)).product();
        self.terms_tried = self.terms_tried.saturating_add(terms);
        if self.terms_tried > TERMS_TRIED_MAX {
            return Vec::new();
        }
        fold::values(index, &self.aggregates)
    }

    /// An index; the `from` name as an index is the member's number.
    fn index(&mut self, thunk: Thunk<'a>, at: Clause) -> Result<ir::Expr> {
        if let ExprKind::Ref(r) = &thunk.expr.kind
            && r.index.is_none()
            && r.field.is_none()
            && let Some(Binding::From(from)) = self.scopes.find(thunk.scope, &r.name.text)
        {
            return match from.index {
                Some(inner) => self.expr(inner.expr, inner.scope, at),
                None if from.queue.is_none() => Ok(self.unknown_value()),
                None => Ok(ir::Expr::Number(ir::json::Number(0.0))),
            };
        }
        self.expr(thunk.expr, thunk.scope, at)
    }

    /// `Q.x` as a value: an attribute of a queue.
    pub(crate) fn dotted(
        &mut self,
        r: &'a ast::Ref,
        field: &'a ast::Name,
        scope: ScopeId,
        at: Clause,
    ) -> Result<ir::Expr> {
        if let Room::Entry { queue: own, entry, .. } = self.scopes.room_of(scope)
            && !self.names.is_route(own, entry)
        {
            let text = r.name.text.as_str();
            let own = self.names.queues[own].declared.name.text.as_str();
            return Err(self
                .entry_error("entry-reads-outside", entry, format!("`{own}.{}` reads `{text}.{}`", entry.verb.text, field.text))
                .note(r.span, "read here")
                .help(if own == text {
                    format!("inside its queue it is `{}`", field.text)
                } else {
                    "the gateway reads across queues and passes what an entry needs".into()
                })
                .done(self));
        }
        let (queue, index) = self.queue_of(r, scope)?;
        let text = self.names.queues[queue].declared.name.text.clone();
        if let Some(&attribute) = self.names.attribute_of.get(&format!("{text}.{}", field.text)) {
            if index.is_some() {
                return Err(self
                    .error("index-not-needed", r.span, format!("`{text}.{}` is the request's, not a member's", field.text))
                    .help(format!("write `{text}.{}`", field.text))
                    .done(self));
            }
            return self.attribute_value(attribute, r, scope, at);
        }
        if self.names.queues[queue].pools.contains_key(field.text.as_str()) {
            return Err(self
                .error("wrong-kind", r.span, format!("`{text}.{}` is a pool, not a number", field.text))
                .help(format!("read a figure of it, such as `used({})`", indexed_field(&text, &field.text, self.names.queues[queue].size)))
                .done(self));
        }
        let prefix = format!("{text}.");
        let known: Vec<&str> =
            self.names.attributes.iter().filter_map(|a| a.name.strip_prefix(&prefix)).collect();
        let e = self.error("unknown-name", r.span, format!("no entry of `{text}` sets or marks `{}`", field.text));
        let e = match nearest::nearest(&field.text, known.iter().copied()) {
            Some(n) => e.help(format!("write `{text}.{n}`")),
            None if known.is_empty() => e.help(format!("`mark {};` in an entry of `{text}` names a moment", field.text)),
            None => e.help(format!("its attributes: {}", known.join(", "))),
        };
        Err(self.through(e, scope).done(self))
    }

    /// Starts an error at an entry's verb: the whole entry is refused.
    pub(crate) fn entry_error(&self, code: &'static str, entry: &'a ast::Entry, message: String) -> Draft {
        Draft(Diagnostic::error(code, entry.verb.span, message))
    }
}

fn is_member(value: f64, count: u32) -> bool {
    value.fract() == 0.0 && value >= 0.0 && value < f64::from(count)
}

/// `D.kv` with an index where it goes.
fn indexed(name: &str) -> String {
    match name.split_once('.') {
        Some((queue, field)) => format!("{queue}[0].{field}"),
        None => format!("{name}[0]"),
    }
}

fn indexed_field(queue: &str, field: &str, size: Option<u32>) -> String {
    if size.is_some() { format!("{queue}[0].{field}") } else { format!("{queue}.{field}") }
}
