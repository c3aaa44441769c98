//! References: which pool or stage a name means, and which of its members.
//!
//! Inside an entry a bare name is the member's own; outside, a queue's parts are
//! written `Q[i].kv`. A parameter may name a pool or stage when its argument is a
//! plain reference. An index is linked in the clause it is read in.

use serq_ir::{self as ir, PoolFigure};

use crate::ast::{self, ExprKind};
use crate::diagnostic::Diagnostic;
use crate::link::{Draft, Linker};
use crate::moment::Clause;
use crate::nearest;
use crate::resolve::{Reported, Result};
use crate::scope::{Binding, From, Room, ScopeId, Thunk};
use crate::source::Span;

/// Stands for a pool or stage while an entry is looked at without a call.
pub(crate) const UNKNOWN: u32 = u32::MAX;

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
    pub(crate) fn plain(e: &'a ast::Expr) -> Option<&'a ast::Ref> {
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
        let allowed = match figure {
            PoolFigure::Cachedin | PoolFigure::Outstanding => at.may_read_own_cache(),
            _ => at.may_read_state(),
        };
        if !allowed {
            return Err(self.state_not_allowed(name, scope, at));
        }
        let pool = self.pool_argument(name, argument, scope, at)?;
        self.constant_index_in_gauge(pool.member.as_deref(), argument.span, at)?;
        Ok(ir::Expr::Pool(figure, pool))
    }

    pub(crate) fn constant_index_in_gauge(&mut self, member: Option<&ir::Expr>, span: Span, at: Clause) -> Result<()> {
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
    pub(crate) fn point_at_call(&mut self, found: usize, name: &ast::Name, argument: &ast::Expr) {
        for d in &mut self.findings.list[found..] {
            let Some(span) = d.span else { continue };
            let inside =
                span.file == argument.span.file && span.start > argument.span.start && span.end <= argument.span.end;
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

    fn pool_ref_inner(&mut self, r: &'a ast::Ref, scope: ScopeId, at: Clause, doing: Doing) -> Result<ir::PoolRef> {
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
            && self.names.pool_of.get(word).is_some_and(|&pool| !self.is_store(pool))
        {
            return Err(self.outside_pool(r, word, queue, entry, doing));
        }
        let (pool, size) = self.pool_family(r, scope, doing)?;
        let index = r.index.as_deref().map(|expr| Thunk { expr, scope });
        let name = self.names.pools[pool].name.clone();
        let member = self.member(index, size, &name, "pool", r.span, at)?;
        Ok(ir::PoolRef { pool: pool as u32, member })
    }

    /// A pool of no queue that shares prefixes: every scheduler sees it.
    fn is_store(&self, pool: usize) -> bool {
        let pool = &self.names.pools[pool];
        let shares = |option: &ast::PoolOption| matches!(option.kind, ast::PoolOptionKind::SharePrefixes(_));
        pool.queue.is_none() && pool.declared.options.iter().any(shares)
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
                .entry_error(
                    "entry-reads-outside",
                    entry,
                    format!("`{queue}.{verb}` reads `{written}`, a pool outside `{queue}`"),
                )
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
            Room::Options { .. } if matches!(at, Clause::Budget | Clause::Chunk) => {
                self.names.pools[pool].size.map(|_| Box::new(ir::Expr::Context(ir::Context::Member)))
            }
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

    fn pool_read_from(
        &mut self,
        r: &'a ast::Ref,
        from: From<'a>,
        scope: ScopeId,
        at: Clause,
        doing: Doing,
    ) -> Result<ir::PoolRef> {
        if r.index.is_some() {
            let called = from.said_at;
            if called.is_none() && !self.strict {
                return Err(Reported);
            }
            let place = called.map_or(r.span, |_| self.call_of(scope).unwrap_or(r.span));
            let e = self.error(
                "index-not-needed",
                place,
                format!("`{}` is one member's pool and takes no index", r.name.text),
            );
            let e = if place == r.span { e } else { e.note(r.span, "in the entry called here") };
            return Err(e.help(format!("write `{}`", r.name.text)).done(self));
        }
        if matches!(doing, Doing::Allocates("load" | "to")) {
            if from.said_at.is_none() && !self.strict {
                return Err(Reported);
            }
            let place = from.said_at.unwrap_or(r.span);
            let e =
                self.error("outside-hold", place, format!("`{}` is read from, nothing is loaded into it", r.name.text));
            let e = if place == r.span { e } else { e.note(r.span, "in the entry called with it") };
            return Err(e.help("`load` names a pool this entry holds").done(self));
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
        let mut known: Vec<&str> =
            self.names.pools.iter().filter(|p| p.queue.is_none()).map(|p| p.name.as_str()).collect();
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
        } else if let Some(owner) = self.names.pools.iter().find(|p| p.queue.is_some() && p.declared.name.text == word)
        {
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
    pub(crate) fn queue_of(&mut self, r: &'a ast::Ref, scope: ScopeId) -> Result<(usize, Option<Thunk<'a>>)> {
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
                    format!(
                        "`{verb} {text}.{0}`: `{0}` is a pool of queue `{text}`, and only its entries hold it",
                        field.text
                    ),
                )
                .help(format!("call an entry: `{text}.verb (…)`"))
                .done(self));
        }
        let size = self.names.queues[queue].size;
        let name = self.names.pools[pool].name.clone();
        let member = self.member(index, size, &name, "pool", r.span, at)?;
        Ok(ir::PoolRef { pool: pool as u32, member })
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
                .entry_error(
                    "entry-reads-outside",
                    entry,
                    format!("`{own}.{}` reads `{text}.{}`", entry.verb.text, field.text),
                )
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
                    .error(
                        "index-not-needed",
                        r.span,
                        format!("`{text}.{}` is the request's, not a member's", field.text),
                    )
                    .help(format!("write `{text}.{}`", field.text))
                    .done(self));
            }
            return self.attribute_value(attribute, r, scope, at);
        }
        if self.names.queues[queue].pools.contains_key(field.text.as_str()) {
            return Err(self
                .error("wrong-kind", r.span, format!("`{text}.{}` is a pool, not a number", field.text))
                .help(format!(
                    "read a figure of it, such as `used({})`",
                    indexed_field(&text, &field.text, self.names.queues[queue].size)
                ))
                .done(self));
        }
        let prefix = format!("{text}.");
        let known: Vec<&str> = self.names.attributes.iter().filter_map(|a| a.name.strip_prefix(&prefix)).collect();
        let e = self.error("unknown-name", r.span, format!("no entry of `{text}` sets or marks `{}`", field.text));
        let e = match nearest::nearest(&field.text, known.iter().copied()) {
            Some(n) => e.help(format!("write `{text}.{n}`")),
            None if known.is_empty() => {
                e.help(format!("`mark {};` in an entry of `{text}` names a moment", field.text))
            }
            None => e.help(format!("its attributes: {}", known.join(", "))),
        };
        Err(self.through(e, scope).done(self))
    }

    /// Starts an error at an entry's verb: the whole entry is refused.
    pub(crate) fn entry_error(&self, code: &'static str, entry: &'a ast::Entry, message: String) -> Draft {
        Draft(Diagnostic::error(code, entry.verb.span, message))
    }
}

fn indexed_field(queue: &str, field: &str, size: Option<u32>) -> String {
    if size.is_some() { format!("{queue}[0].{field}") } else { format!("{queue}.{field}") }
}
