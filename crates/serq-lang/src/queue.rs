//! Queues are sugar: here they become plain pools, stages and statements.
//!
//! ```text
//!   queue D[2] : decode {                 pool  D.kv[2]
//!     pool kv { … }                       stage D[2], D.nic[2]
//!     serve step { … }  nic ps(…);   ──▶
//!     decode (x) from src { … }           D[j].decode (e) from P[i];
//!   }                                       = the body, kv ↦ D.kv[j], src ↦ P.kv[i], x ↦ e
//! ```
//!
//! An entry is linked once alone, whether or not somebody calls it, so that its
//! mistakes are found; that also tells which pool it leases. Then it is written out
//! at every call.

use std::collections::BTreeSet;
use std::rc::Rc;

use serq_ir::{self as ir};

use crate::ast::{self, QueueItem};
use crate::link::{Leases, Linker};
use crate::nearest;
use crate::resolve::{Kind, Role};
use crate::scope::{Binding, From, Room};
use crate::source::Span;

impl<'a> Linker<'a> {
    /// Declares what a queue contains, in its order, and checks its shape.
    pub(crate) fn declare_queue_parts(&mut self, at: usize) {
        let (declared, item) = (self.names.queues[at].declared, self.names.queues[at].item);
        let name = &declared.name;
        let known_roles = declared.roles.iter().all(|r| Role::ALL.iter().any(|(w, _)| *w == r.text));
        let roles = self.roles_of(declared);
        self.names.queues[at].roles = roles.clone();
        if roles.contains(&Role::Gateway)
            && let Some(size) = &declared.size
        {
            let whole = Span { end: size.span.end, ..declared.span };
            self.error("role-entry", whole, format!("gateway `{}` is a family", name.text))
                .help("a gateway is one queue: declare two gateways instead")
                .done(self);
        }
        let (mut served, mut nic, mut entered): (Option<Span>, Option<Span>, Option<Span>) = (None, None, None);
        for part in &declared.items {
            match part {
                QueueItem::Pool(pool) => {
                    if let Some(before) = served.or(entered) {
                        let start = Span { end: pool.name.span.end, ..pool.span };
                        self.error(
                            "queue-order",
                            start,
                            format!("pool `{}` stands behind the `serve` or an entry", pool.name.text),
                        )
                        .note(before, "this comes after the pools")
                        .help("pools, then `serve` and `nic`, then entries")
                        .done(self);
                    }
                    self.declare_pool(pool, Some(at));
                }
                QueueItem::Serve { kind, latency, span } => {
                    if let Some(first) = served {
                        self.error("repeated", *span, format!("queue `{}` serves twice", name.text))
                            .note(first, "first here")
                            .done(self);
                        continue;
                    }
                    self.before_entries(*span, "serve", entered);
                    served = Some(*span);
                    let stage =
                        self.declare_stage(name.text.clone(), kind.span, None, Kind::Written(kind), Some(at), item);
                    self.names.queues[at].stage = stage;
                    if let Some(x) = latency {
                        if !roles.contains(&Role::Link) {
                            let whole = self.places.back_to_word("latency", x.span);
                            self.error(
                                "latency-misplaced",
                                whole,
                                format!("queue `{}` has a `latency` and is no link", name.text),
                            )
                            .help(format!("write `queue {} : link {{ … }}`, or remove it", name.text))
                            .done(self);
                            continue;
                        }
                        let stage = self.declare_stage(
                            format!("{}.latency", name.text),
                            x.span,
                            None,
                            Kind::Latency,
                            Some(at),
                            item,
                        );
                        self.names.queues[at].latency = stage.map(|s| (s, x));
                    }
                }
                QueueItem::Nic { kind, span } => {
                    if let Some(first) = nic {
                        self.error("repeated", *span, format!("queue `{}` has two `nic`s", name.text))
                            .note(first, "first here")
                            .done(self);
                        continue;
                    }
                    self.before_entries(*span, "nic", entered);
                    nic = Some(*span);
                    let stage = self.declare_stage(
                        format!("{}.nic", name.text),
                        kind.span,
                        None,
                        Kind::Written(kind),
                        Some(at),
                        item,
                    );
                    self.names.queues[at].nic = stage;
                }
                QueueItem::Entry(entry) => {
                    entered = entered.or(Some(entry.header_span));
                    self.declare_entry(at, entry, known_roles);
                }
            }
        }
        if known_roles {
            self.check_roles(at);
        }
    }

    fn before_entries(&mut self, span: Span, what: &str, entered: Option<Span>) {
        if let Some(entry) = entered {
            self.error("queue-order", span, format!("`{what}` stands behind an entry"))
                .note(entry, "this entry")
                .help("pools, then `serve` and `nic`, then entries")
                .done(self);
        }
    }

    fn declare_entry(&mut self, at: usize, entry: &'a ast::Entry, known_roles: bool) {
        let queue = &self.names.queues[at];
        let (name, roles) = (queue.declared.name.text.as_str(), queue.roles.clone());
        let verb = entry.verb.text.as_str();
        let role = Role::ALL.iter().map(|&(_, r)| r).find(|r| r.verb() == verb);
        let Some(role) = role.filter(|r| roles.contains(r)) else {
            if known_roles {
                let verbs: Vec<&str> = roles.iter().map(|r| r.verb()).collect();
                let near = nearest::nearest(verb, verbs.iter().copied());
                let e = self.error(
                    "unknown-entry",
                    entry.verb.span,
                    format!("queue `{name}` plays no role with an entry `{verb}`"),
                );
                let e = match (near, role) {
                    (Some(n), _) => e.help(format!("write `{n}`")),
                    (None, Some(role)) => e.help(format!(
                        "add the role: `queue {name} : {}`",
                        roles.iter().chain([&role]).map(|r| r.word()).collect::<Vec<_>>().join(", ")
                    )),
                    (None, None) if verbs.is_empty() => {
                        e.help(format!("give the queue a role: `queue {name} : prefill`"))
                    }
                    (None, None) => e.help(format!("its entries: {}", verbs.join(", "))),
                };
                e.done(self);
            }
            return;
        };
        let parameters = entry.parameters.as_ref().map_or(0, Vec::len);
        let takes = usize::from(role != Role::Gateway);
        if parameters != takes {
            let shape = if takes == 0 {
                format!("`{verb} {{ … }}`, without parameters")
            } else {
                format!("`{verb} (x) {{ … }}`, with one parameter")
            };
            self.entry_error("entry-parameters", entry, format!("`{name}.{verb}` has {parameters} parameters"))
                .help(format!("the role's entry is {shape}"))
                .done(self);
            self.declined.insert(self.names.queues[at].declared.name.text.clone());
            return;
        }
        if let Some(from) = &entry.from
            && role != Role::Decode
        {
            let start = self.names.queues[at].declared;
            let span = Span { end: start.name.span.end, ..start.span };
            self.error("entry-parameters", span, format!("`{name}.{verb}` takes a `from`"))
                .note(from.span, "only `decode` reads from a prefill")
                .help(format!("write `{verb} (x) {{ … }}`"))
                .done(self);
            self.declined.insert(start.name.text.clone());
            return;
        }
        if let (Some(from), Some([parameter])) = (&entry.from, entry.parameters.as_deref())
            && from.text == parameter.text
        {
            self.error("repeated", from.span, format!("`{}` is named twice", from.text))
                .note(parameter.span, "first here")
                .done(self);
            return;
        }
        let same = |e: &&&ast::Entry| e.verb.text == verb && e.from.is_some() == entry.from.is_some();
        if let Some(first) = self.names.queues[at].entries.iter().find(same) {
            let first = first.verb.span;
            self.entry_error("repeated", entry, format!("`{name}.{verb}` is written twice"))
                .note(first, "first here")
                .done(self);
            return;
        }
        self.names.queues[at].entries.push(entry);
    }

    fn check_roles(&mut self, at: usize) {
        let queue = &self.names.queues[at];
        let (declared, roles) = (queue.declared, queue.roles.clone());
        let name = declared.name.text.as_str();
        // From the word `queue`, which is where the declaration as a whole begins.
        let span = Span { end: declared.name.span.end, ..declared.span };
        for role in roles {
            let written = declared.items.iter().any(|i| matches!(i, QueueItem::Entry(e) if e.verb.text == role.verb()));
            let plain = self.names.queues[at].entries.iter().any(|e| e.verb.text == role.verb() && e.from.is_none());
            match role {
                Role::Link => {
                    if !written && self.names.queues[at].stage.is_none() {
                        self.error(
                            "role-entry",
                            span,
                            format!("link `{name}` has neither a `serve` nor a `transfer` entry"),
                        )
                        .label("nothing says what a transfer over it costs")
                        .help("write `serve ps(1e5);`")
                        .done(self);
                    }
                    if written && let Some((_, x)) = self.names.queues[at].latency {
                        self.error(
                            "latency-misplaced",
                            span,
                            format!("link `{name}` has a `latency` and a `transfer` entry"),
                        )
                        .note(x.span, "this latency")
                        .help("a link with an entry waits in its entry")
                        .done(self);
                    }
                }
                _ if !written => {
                    let shape = if role == Role::Gateway {
                        "route { … }".to_string()
                    } else {
                        format!("{} (x) {{ … }}", role.verb())
                    };
                    self.error(
                        "role-entry",
                        span,
                        format!("queue `{name}` plays `{}` and has no entry `{}`", role.word(), role.verb()),
                    )
                    .help(format!("write `{shape}` in it"))
                    .done(self);
                    self.declined.insert(declared.name.text.clone());
                }
                Role::Decode if !plain && self.names.queues[at].entries.iter().any(|e| e.verb.text == "decode") => {
                    self.error(
                        "role-entry",
                        span,
                        format!("queue `{name}` has `decode (x) from …` and no `decode (x)`"),
                    )
                    .help("write a plain `decode (x) { … }` too")
                    .done(self);
                    self.declined.insert(declared.name.text.clone());
                }
                _ => {}
            }
        }
    }

    /// Names an entry sets, marks or binds for a body.
    pub(crate) fn entry_sets(&mut self, _queue: usize, entry: &'a ast::Entry) -> Rc<BTreeSet<&'a str>> {
        let key = (entry.verb.span.file, entry.verb.span.start);
        if let Some(known) = self.entry_sets.get(&key) {
            return known.clone();
        }
        let (sets, bound) = self.names.sets_of(&entry.body);
        // A marked moment is for the caller; the entry itself does not read it.
        let own = sets.iter().filter(|(_, _, mark)| !mark).chain(&bound);
        let all: Rc<BTreeSet<&str>> = Rc::new(own.map(|(n, _, _)| *n).collect());
        self.entry_sets.insert(key, all.clone());
        all
    }

    /// Links every entry without a call, for its mistakes and its leases.
    pub(crate) fn look_at_entries(&mut self) {
        let serving = std::mem::replace(&mut self.request.serving, true);
        let multi_run = self.multi_run;
        let shared: Vec<bool> = self.names.stages.iter().map(|s| s.shared).collect();
        if !self.strict {
            self.leases = vec![Leases::Unknown; self.names.queues.len()];
        }
        for queue in 0..self.names.queues.len() {
            let mut found: Option<Leases> = None;
            for entry in self.names.queues[queue].entries.clone() {
                if self.names.is_route(queue, entry) {
                    continue;
                }
                if self.strict && self.called.contains(&(entry.verb.span.file, entry.verb.span.start)) {
                    continue;
                }
                let errors = self.findings.errors;
                let parameters = entry.parameters.iter().flatten().map(|p| (p.text.as_str(), Binding::Unknown));
                let from = entry.from.iter().map(|f| {
                    (f.text.as_str(), Binding::From(From { queue: None, index: None, pool: None, said_at: None }))
                });
                let names = parameters.chain(from).collect();
                let scope = self.scopes.room(Room::Entry { queue, entry, member: None, called_at: None }, names);
                let observes = (self.observes.clone(), self.observe_of.clone());
                let mut body = ir::Block::new();
                self.calls.push((queue, entry.verb.span));
                self.block(&entry.body, scope, &mut body);
                self.calls.pop();
                (self.observes, self.observe_of) = observes;
                let this =
                    if self.findings.errors > errors { Leases::Unknown } else { self.leases_of(queue, entry, &body) };
                found = Some(match (found, this) {
                    (None, this) => this,
                    (Some(Leases::Unknown), _) | (_, Leases::Unknown) => Leases::Unknown,
                    (Some(Leases::None(at, why)), _) | (Some(Leases::Pools(_)), Leases::None(at, why)) => {
                        Leases::None(at, why)
                    }
                    (Some(Leases::Pools(a)), Leases::Pools(b)) => {
                        let both: Vec<usize> = a.into_iter().filter(|p| b.contains(p)).collect();
                        if both.is_empty() {
                            Leases::None(entry.verb.span, "leases another pool than the entry above".into())
                        } else {
                            Leases::Pools(both)
                        }
                    }
                });
            }
            if let Some(found) = found
                && !self.strict
            {
                self.leases[queue] = found;
            }
        }
        // What a run over several stages found out here counts where it is called.
        self.multi_run = multi_run;
        for (stage, shared) in self.names.stages.iter_mut().zip(shared) {
            stage.shared = shared;
        }
        self.request.serving = serving;
    }

    /// Entries nobody calls: what is said at a call is said at the entry.
    pub(crate) fn look_at_uncalled_entries(&mut self) {
        self.strict = true;
        self.look_at_entries();
        self.strict = false;
    }

    fn leases_of(&self, queue: usize, entry: &'a ast::Entry, body: &[ir::Stmt]) -> Leases {
        let own = |p: &usize| self.names.pools.get(*p).is_some_and(|p| p.queue == Some(queue));
        let pools: Vec<usize> = certain_leases(body).into_iter().map(|p| p as usize).filter(own).collect();
        match pools.as_slice() {
            [] => Leases::None(entry.verb.span, "does not lease a pool on every path".into()),
            _ => Leases::Pools(pools),
        }
    }
}

/// Pools leased on every path through a block, the earliest hold first.
fn certain_leases(block: &[ir::Stmt]) -> Vec<u32> {
    let mut leased = Vec::new();
    for stmt in block {
        match &stmt.kind {
            ir::StmtKind::Hold(hold) => {
                leased.extend(hold.lease.iter().map(|l| hold.grabs[l.grab as usize].pool.pool));
                leased.extend(certain_leases(&hold.body));
            }
            ir::StmtKind::Branch { then, otherwise, .. } => {
                let (a, b) = (certain_leases(then), certain_leases(otherwise));
                leased.extend(a.into_iter().filter(|p| b.contains(p)));
            }
            ir::StmtKind::Fork { body } | ir::StmtKind::Shielded { body } => leased.extend(certain_leases(body)),
            // Nothing comes behind a loop.
            _ => {}
        }
    }
    leased
}
