//! Holds: the header with its `at admission` names, the body, and what ends it.
//!
//! An `at admission` name stands for its expression in the header, `cache` and `lease`.
//! Where the body reads it, it becomes an attribute too, set at the top of the body.

use serq_ir as ir;

use crate::ast;
use crate::definition::NAMES_MAX;
use crate::expression::number;
use crate::link::{Linker, Part};
use crate::moment::Clause;
use crate::reference::{Doing, UNKNOWN};
use crate::resolve::{Reported, Result};
use crate::scope::{Binding, Room, ScopeId, Thunk};
use crate::source::Span;
use crate::statement::written_as;

impl<'a> Linker<'a> {
    pub(crate) fn hold(&mut self, hold: &'a ast::Hold, span: Span, scope: ScopeId, out: &mut ir::Block) -> Result<()> {
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
            let abandoned = hold.abandoned.as_ref().map(|e| self.expr(e, header, Clause::LeaseTime)).transpose();
            let renewed = hold
                .renewed
                .as_ref()
                .map(|(time, every)| [time, every].map(|e| self.expr(e, header, Clause::LeaseTime)));
            (target, self.expr(time, header, Clause::LeaseTime), renewed, abandoned)
        });
        if hold.reuse.is_some() && hold.cache.is_none() {
            let at = hold.reuse.as_ref().map_or(span, |e| e.span);
            self.error("reuse-without-cache", at, "`reuse` in a hold without `cache`")
                .label("such a hold consumes no cached prefix")
                .help("write `cache (0)` behind the body to consume and keep nothing, or `cache (n)` to keep n")
                .done(self);
        }
        if bad {
            return Err(Reported);
        }
        // A refused amount is an amount all the same to what looks at the whole session.
        let amount = |linked: Result<ir::Expr>| linked.unwrap_or_else(|Reported| number(0.0));
        let optional = |linked: Result<Option<ir::Expr>>| linked.unwrap_or_else(|Reported| Some(number(0.0)));
        let mut linked = Vec::with_capacity(grabs.len());
        for (pool, units, reserve) in grabs {
            linked.push(ir::Grab { pool: pool?, units: amount(units), reserve: optional(reserve) });
        }
        self.no_pool_twice(hold, &linked)?;
        let lease = match lease {
            None => None,
            Some((pool, time, renewed, abandoned)) => {
                let (pool, time, abandoned) = (pool?, amount(time), abandoned?);
                let renewed = match renewed {
                    Some([time, every]) => Some(ir::Renewal { time: time?, every: every? }),
                    None => None,
                };
                let Some(grab) = linked.iter().position(|g| g.pool == pool) else {
                    let (written, _) = hold.lease.as_ref().expect("it was linked");
                    let held: Vec<String> = hold.grabs.iter().map(|g| written_as(&g.pool)).collect();
                    return Err(self
                        .error(
                            "outside-hold",
                            hold.grabs[0].pool.span,
                            format!("`lease {}`: this hold does not hold it", written_as(written)),
                        )
                        .note(written.span, "leased here")
                        .help(format!("it holds {}", held.join(", ")))
                        .done(self));
                };
                Some(ir::Lease { grab: grab as u32, time, renewed, abandoned })
            }
        };
        let (reuse, cache) = (optional(reuse), optional(cache));
        let kind = ir::StmtKind::Hold(Box::new(ir::Hold { grabs: linked, reuse, body, cache, lease }));
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

    pub(crate) fn no_pool_twice(&mut self, hold: &'a ast::Hold, linked: &[ir::Grab]) -> Result<()> {
        for (k, grab) in linked.iter().enumerate() {
            if grab.pool.pool == UNKNOWN {
                continue;
            }
            if let Some(first) = linked[..k].iter().position(|g| g.pool == grab.pool) {
                return Err(self
                    .error(
                        "held-twice",
                        hold.grabs[first].pool.span,
                        format!("this hold takes `{}` twice", written_as(&hold.grabs[first].pool)),
                    )
                    .note(hold.grabs[k].pool.span, "again here")
                    .help("hold it once, with the units (and any `reserve`) added")
                    .done(self));
            }
        }
        Ok(())
    }

    /// What a header may not read is the hold's mistake: said at its first pool.
    pub(crate) fn point_at_hold(&mut self, found: usize, hold: &'a ast::Hold, codes: &[&str]) {
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
    pub(crate) fn header_names(&mut self, hold: &'a ast::Hold, scope: ScopeId) -> (ScopeId, bool) {
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
                self.error(
                    "declared-below",
                    place,
                    format!("`{word}` reads `{reads}`, which has no value before it is bound"),
                )
                .note(
                    if reads == word { name.span } else { at },
                    if reads == word { "bound here" } else { "read here" },
                )
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
    pub(crate) fn body_names(&mut self, hold: &'a ast::Hold, header: ScopeId, scope: ScopeId) -> (ScopeId, ir::Block) {
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
                            d.message =
                                format!("the body reads `{word}`, so its value may read attributes and constants only");
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

    /// Is the scope inside the body of a hold that binds this name?
    pub(crate) fn binds_around(&self, scope: ScopeId, word: &str) -> bool {
        matches!(self.scopes.find(scope, word), Some(Binding::Bound(_)))
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
