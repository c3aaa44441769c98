//! Calls of entries, and the transfers between queues.
//!
//! A call is substitution: the entry's body is written out with the argument where the
//! parameter stands, the member's pools and stage where its own are named, and the
//! leased pool of `from P[i]` where the `from` name is.

use std::collections::BTreeSet;

use serq_ir as ir;

use crate::ast;
use crate::fold;
use crate::link::{Leases, Linker, Part};
use crate::moment::Clause;
use crate::nearest;
use crate::reference::{Doing, UNKNOWN};
use crate::resolve::{Reported, Result, Role};
use crate::run::Work;
use crate::scope::{Binding, From, Room, ScopeId, Thunk};
use crate::source::Span;
use crate::statement::written_as;

/// What a transfer between two queues runs over.
pub(crate) struct Moving {
    reader: usize,
}

impl<'a> Linker<'a> {
    /// `request Q;`
    pub(crate) fn request_route(
        &mut self,
        queue: usize,
        name: &'a ast::Name,
        span: Span,
        out: &mut ir::Block,
    ) -> Result<()> {
        if self.declined.contains(name.text.as_str()) {
            return Err(Reported);
        }
        if !self.names.queues[queue].roles.contains(&Role::Gateway) {
            let at = self.names.queues[queue].declared.name.span;
            return Err(self
                .error("request-misplaced", span, format!("queue `{}` is no gateway", name.text))
                .note(at, "declared here")
                .help("a gateway has a `route { … }` that answers a `request`; other entries are called")
                .done(self));
        }
        let route = self.names.queues[queue].entries.iter().find(|e| e.verb.text == "route").copied();
        let Some(route) = route else { return Err(Reported) };
        let called_at = Some(name.span);
        let scope = self.scopes.room(Room::Entry { queue, entry: route, member: None, called_at }, Vec::new());
        self.calls.push((queue, route.verb.span));
        self.serve(&route.body, scope, out);
        self.calls.pop();
        Ok(())
    }

    /// `Q[i].verb (e) from P[i] to M (m);`
    #[allow(clippy::too_many_arguments, reason = "the clauses of one statement")]
    pub(crate) fn call_entry(
        &mut self,
        target: &'a ast::Ref,
        arguments: &'a [ast::Expr],
        from: Option<&'a ast::Ref>,
        to: Option<&'a (ast::Ref, ast::Expr)>,
        span: Span,
        scope: ScopeId,
        out: &mut ir::Block,
    ) -> Result<()> {
        let verb = target.field.as_ref().map_or("", |f| f.text.as_str());
        let word = target.name.text.as_str();
        if self.declined.contains(word)
            || (self.broken && !self.names.queue_of.contains_key(word) && self.maybe_declared(word))
        {
            return Err(Reported);
        }
        let Some(&queue) = self.names.queue_of.get(word) else {
            let known: Vec<&str> = self.names.queue_of.keys().copied().collect();
            let near = nearest::nearest(word, known.iter().copied());
            let e = self.error("unknown-queue", span, format!("no queue is named `{word}`"));
            let e = match near {
                Some(n) => e.help(format!("write `{n}`")),
                None if known.is_empty() => e.help("a call names a queue's entry: `Q[i].prefill (n);`"),
                None => e.help(format!("the queues: {}", known.join(", "))),
            };
            return Err(e.done(self));
        };
        let candidates: Vec<&'a ast::Entry> =
            self.names.queues[queue].entries.iter().filter(|e| e.verb.text == verb).copied().collect();
        if candidates.is_empty() || verb == "route" {
            let verbs: BTreeSet<&str> = self.names.queues[queue].entries.iter().map(|e| e.verb.text.as_str()).collect();
            let e = self.error("unknown-entry", span, format!("queue `{word}` has no entry `{verb}`"));
            let e = if verb == "route" {
                e.help(format!("a route answers `request {word};`"))
            } else if verb == "transfer" && self.names.queues[queue].roles.contains(&Role::Link) {
                e.help(format!("its `serve` is its cost: `transfer on {word}[…] (n) from S to P (m);`"))
            } else {
                match nearest::nearest(verb, verbs.iter().copied()) {
                    Some(n) => e.help(format!("write `{n}`")),
                    None if verbs.is_empty() => e,
                    None => e.help(format!("its entries: {}", verbs.into_iter().collect::<Vec<_>>().join(", "))),
                }
            };
            return Err(e.done(self));
        }
        let link = verb == "transfer";
        let entry = candidates.iter().find(|e| link || e.from.is_some() == from.is_some()).copied();
        let Some(entry) = entry else {
            let e = self.error(
                "unknown-entry",
                span,
                format!("queue `{word}` has no `{verb} ({}) from …`", if arguments.is_empty() { "" } else { "x" }),
            );
            return Err(e
                .note(candidates[0].verb.span, "this one takes no `from`")
                .help(format!("add `{verb} (x) from src {{ … }}` to `{word}`"))
                .done(self));
        };
        let parameters = entry.parameters.as_deref().unwrap_or_default();
        if parameters.len() != arguments.len() {
            return Err(self
                .error(
                    "wrong-argument-count",
                    span,
                    format!(
                        "`{word}.{verb}` takes {} argument{}, got {}",
                        parameters.len(),
                        if parameters.len() == 1 { "" } else { "s" },
                        arguments.len()
                    ),
                )
                .note(entry.verb.span, "declared here")
                .done(self));
        }
        if link != to.is_some() {
            return Err(self
                .error(
                    "incomplete-transfer",
                    span,
                    if link {
                        format!("`{word}.transfer` names the pool it takes from and the pool it fills")
                    } else {
                        format!("`{word}.{verb}` fills no pool")
                    },
                )
                .help(if link {
                    format!("write `{word}.transfer (n) from S to P (m);`")
                } else {
                    "remove the `to`".to_string()
                })
                .done(self));
        }
        let size = self.names.queues[queue].size;
        let index = target.index.as_deref().map(|expr| Thunk { expr, scope });
        match (size, index) {
            (Some(count), None) => {
                return Err(self
                    .error("index-missing", span, format!("queue `{word}` has {count} members and the call says which"))
                    .help(format!("write `{word}[0].{verb} (…)`"))
                    .done(self));
            }
            (None, Some(index)) => {
                return Err(self
                    .error("index-not-needed", index.expr.span, format!("queue `{word}` is not a family"))
                    .help(format!("write `{word}.{verb} (…)`"))
                    .done(self));
            }
            _ => {}
        }
        let mut bad = false;
        if let Some(index) = index {
            bad |= self.member(Some(index), size, word, "queue", index.expr.span, Clause::Value).is_err();
        }
        for (parameter, argument) in parameters.iter().zip(arguments) {
            if self.draws(argument, scope) {
                self.error(
                    "argument-draws",
                    span,
                    format!("the argument for `{}` of `{word}.{verb}` draws", parameter.text),
                )
                .note(argument.span, "a sample, anew wherever the parameter is read")
                .help("draw first: `set x = ~…;`, and pass `x`")
                .done(self);
                bad = true;
            }
        }
        if self.recursive.contains(&entry.verb.span) {
            return Err(Reported);
        }
        if let Some(first) = self.calls.iter().find(|(q, v)| *q == queue && *v == entry.verb.span) {
            let at = first.1;
            // Said once for all entries on the way round.
            self.recursive.extend(self.calls.iter().map(|(_, verb)| *verb));
            return Err(self
                .error("recursion", span, format!("`{word}.{verb}` is called inside itself"))
                .note(at, "this entry")
                .help("a call is replaced by the entry's body, which would never end")
                .done(self));
        }
        let mut names: Vec<(&'a str, Binding<'a>)> = parameters
            .iter()
            .zip(arguments)
            .map(|(p, expr)| (p.text.as_str(), Binding::Argument(Thunk { expr, scope })))
            .collect();
        if let (Some(name), Some(from)) = (&entry.from, from) {
            match self.queue_read_from(queue, from, span, scope) {
                Ok(source) => names.push((&name.text, Binding::From(source))),
                Err(Reported) => bad = true,
            }
        }
        if bad {
            return Err(Reported);
        }
        self.called.insert((entry.verb.span.file, entry.verb.span.start));
        let inner = self.scopes.room(Room::Entry { queue, entry, member: index, called_at: Some(span) }, names);
        self.calls.push((queue, entry.verb.span));
        self.serve(&entry.body, inner, out);
        self.calls.pop();
        if let (Some(from), Some((pool, load))) = (from, to) {
            let source = self.pool_ref(from, scope, Clause::Value, Doing::GivesBack("from"));
            let target = self.pool_ref(pool, scope, Clause::Value, Doing::Allocates("to"));
            let load = self.expr(load, scope, Clause::Amount("load"));
            let (source, target, load) = (source?, target?, load?);
            let at = self.push(out, pool.span, ir::StmtKind::Load { pool: target, units: load });
            self.places.remember(at, Part::Reference(0), pool.span);
            let at = self.push(out, from.span, ir::StmtKind::Release { pool: source, after: None });
            let said = self.said_at(from, scope);
            self.places.remember(at, Part::Reference(0), said);
        }
        Ok(())
    }

    /// The queue and member behind `from`, and the pool it leased.
    pub(crate) fn queue_read_from(
        &mut self,
        reader: usize,
        from: &'a ast::Ref,
        span: Span,
        scope: ScopeId,
    ) -> Result<From<'a>> {
        // An entry may pass its own source on.
        if from.index.is_none()
            && from.field.is_none()
            && let Some(Binding::From(source)) = self.scopes.find(scope, &from.name.text)
        {
            return Ok(source);
        }
        let word = from.name.text.as_str();
        let reader_name = self.names.queues[reader].declared.name.text.as_str();
        if self.declined.contains(word) {
            return Err(Reported);
        }
        let queue = match self.names.queue_of.get(word) {
            Some(&queue) if from.field.is_none() => queue,
            _ => {
                let known: Vec<&str> = self.names.queue_of.keys().copied().collect();
                let near = nearest::nearest(word, known.iter().copied());
                let e = self.error("unknown-queue", span, format!("`from {}` names no queue", written_as(from)));
                let e = match near {
                    Some(n) if n != word => e.help(format!("write `from {n}`")),
                    _ => e.help("`from P[i]` names the member that prefilled"),
                };
                return Err(e.done(self));
            }
        };
        if let Some(relation) = &self.names.queues[reader].relation
            && relation.source != queue
        {
            let at = relation.declared.span;
            let source = self.names.queues[relation.source].declared.name.text.as_str();
            return Err(self
                .error("from-other-queue", span, format!("`{reader_name}` reads from `{source}`, not from `{word}`"))
                .note(at, "the relation")
                .done(self));
        }
        let pool = match self.leases[queue].clone() {
            Leases::Pools(pools) => pools[0],
            Leases::None(at, why) => {
                return Err(self
                    .error(
                        "from-without-lease",
                        span,
                        format!("`from {word}`: not every entry of `{word}` leases a pool to read from"),
                    )
                    .note(at, format!("this entry {why}"))
                    .help("end its hold with `lease kv (inf)`")
                    .done(self));
            }
            Leases::Unknown => {
                // Its entries have errors of their own, or it has none.
                if self.names.queues[queue].entries.is_empty() || self.findings.errors == 0 {
                    return Err(self
                        .error(
                            "from-without-lease",
                            span,
                            format!("`from {word}`: `{word}` has no entry that leases a pool"),
                        )
                        .done(self));
                }
                return Err(Reported);
            }
        };
        let index = from.index.as_deref().map(|expr| Thunk { expr, scope });
        let size = self.names.queues[queue].size;
        match (size, index) {
            (Some(count), None) => {
                return Err(self
                    .error("index-missing", span, format!("queue `{word}` has {count} members and `from` says which"))
                    .help(format!("write `from {word}[0]`"))
                    .done(self));
            }
            (None, Some(index)) => {
                return Err(self
                    .error("index-not-needed", index.expr.span, format!("queue `{word}` is not a family"))
                    .help(format!("write `from {word}`"))
                    .done(self));
            }
            _ => {}
        }
        if let Some(index) = index {
            self.member(Some(index), size, word, "queue", span, Clause::Value)?;
        }
        Ok(From { queue: Some(queue), index, pool: Some(pool), said_at: Some(from.span) })
    }

    /// The relation a transfer without `on` uses, if it stands in an entry.
    pub(crate) fn relation_of(
        &mut self,
        index: Option<&'a ast::Expr>,
        from: &'a ast::Ref,
        span: Span,
        scope: ScopeId,
    ) -> Result<Option<Moving>> {
        let Room::Entry { queue, .. } = self.scopes.room_of(scope) else { return Ok(None) };
        if index.is_some() {
            return Ok(None);
        }
        let reads_source = matches!(self.scopes.find(scope, &from.name.text), Some(Binding::From(_)));
        if self.names.queues[queue].relation.is_none() && (!reads_source || self.names.queues[queue].nic.is_none()) {
            return Ok(None);
        }
        if self.names.queues[queue].relation.is_some() {
            return Ok(Some(Moving { reader: queue }));
        }
        let name = self.names.queues[queue].declared.name.text.as_str();
        if self.declined.contains(name) || self.unrelated.contains(&queue) || self.relation_refused || self.broken {
            return Err(Reported);
        }
        let Room::Entry { called_at, .. } = self.scopes.room_of(scope) else { return Err(Reported) };
        if called_at.is_none() && !self.strict {
            return Err(Reported);
        }
        let e = self.error(
            "transfer-nowhere",
            called_at.unwrap_or(span),
            format!("`transfer` in queue `{name}`, which no queue's data comes to"),
        );
        let e = if called_at.is_some() { e.note(span, "in the entry called here") } else { e };
        Err(e
            .help(format!("declare `{name} pull P share maxmin;` below both queues, or write `transfer on LINK …`"))
            .done(self))
    }

    /// `run D.nic.latency[self] (x); run P.nic[i], D.nic[self] (W);`, of a push with the wait at
    /// `P.nic.latency[i]`.
    pub(crate) fn run_relation(
        &mut self,
        moving: &Moving,
        work: &'a ast::Expr,
        from: &'a ast::Ref,
        span: Span,
        scope: ScopeId,
        out: &mut ir::Block,
    ) -> Result<()> {
        let reader = moving.reader;
        let source = match self.scopes.find(scope, &from.name.text) {
            Some(Binding::From(source)) if from.index.is_none() && from.field.is_none() => source,
            _ => {
                return Err(self
                    .error(
                        "from-other-queue",
                        from.span,
                        format!("`{}` is not the `from` name of this entry", written_as(from)),
                    )
                    .help("a transfer over the relation reads from the member the entry was called with")
                    .done(self));
            }
        };
        let relation = self.names.queues[reader].relation.as_ref().expect("a transfer over it is being linked");
        let (sender, latency) = (relation.source, relation.latency);
        let pushed = relation.declared.push;
        let member = self.own_member(scope, Clause::Value)?;
        let size = self.names.queues[sender].size;
        let sent = match (source.queue, source.index) {
            (None, _) => size.map(|_| Box::new(self.unknown_value())),
            (Some(queue), Some(index)) if queue == sender => {
                let name = self.names.queues[sender].declared.name.text.clone();
                self.member(Some(index), size, &name, "queue", index.expr.span, Clause::Value)?
            }
            _ => None,
        };
        if let Some((stage, x)) = latency
            && let Ok(x) = self.latency(x)
        {
            let stage =
                ir::StageRef { stage: stage as u32, member: if pushed { sent.clone() } else { member.clone() } };
            let run = ir::RunStmt { stages: vec![stage], mode: None, work: x, growing: None, then: None, reads: None };
            self.push(out, span, ir::StmtKind::Run(Box::new(run)));
        }
        let nics = (self.names.queues[sender].nic, self.names.queues[reader].nic);
        let (Some(sending), Some(receiving)) = nics else { return Err(Reported) };
        let refs = vec![
            Ok(ir::StageRef { stage: sending as u32, member: sent }),
            Ok(ir::StageRef { stage: receiving as u32, member }),
        ];
        self.run_on(refs, &[span, span], Work::of(work), span, scope, out)
    }

    /// The wait of a link queue named by a transfer.
    pub(crate) fn link_latency(&mut self, stage: &ir::StageRef, span: Span, out: &mut ir::Block) {
        if stage.stage == UNKNOWN {
            return;
        }
        let Some(queue) = self.names.stages[stage.stage as usize].queue else { return };
        let Some((wait, x)) = self.names.queues[queue].latency else { return };
        if self.names.queues[queue].stage != Some(stage.stage as usize) {
            return;
        }
        if let Ok(x) = self.latency(x) {
            let stage = ir::StageRef { stage: wait as u32, member: stage.member.clone() };
            let run = ir::RunStmt { stages: vec![stage], mode: None, work: x, growing: None, then: None, reads: None };
            self.push(out, span, ir::StmtKind::Run(Box::new(run)));
        }
    }

    pub(crate) fn latency(&mut self, x: &'a ast::Expr) -> Result<ir::Expr> {
        let value = self.constant(x, "a latency")?;
        if value < 0.0 {
            return Err(self
                .error("bad-constant", x.span, format!("a latency of {value} is negative", value = fold::show(value)))
                .done(self));
        }
        Ok(ir::Expr::Number(ir::json::Number(value)))
    }

    /// Latencies are constants whether or not something crosses them.
    pub(crate) fn check_latencies(&mut self) {
        for queue in 0..self.names.queues.len() {
            let q = &self.names.queues[queue];
            let own = q.latency.map(|(_, x)| x);
            let relation = q.relation.as_ref().and_then(|r| r.latency).map(|(_, x)| x);
            for x in own.into_iter().chain(relation) {
                let _ = self.latency(x);
            }
        }
    }
}
