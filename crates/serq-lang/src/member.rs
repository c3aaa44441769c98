//! Members: which one of a family an index means, and the member an entry stands in.
//!
//! A constant index is checked here, one over an aggregate's variable is tried out for
//! every term, and one that reads the state is left to the run.

use serq_ir as ir;

use crate::ast::{self, ExprKind};
use crate::fold;
use crate::link::Linker;
use crate::lint::reads_state;
use crate::moment::Clause;
use crate::resolve::{Reported, Result};
use crate::scope::{Binding, From, Room, ScopeId, Thunk};
use crate::source::Span;

/// Most terms of aggregates whose indices are tried out; further ones are left to
/// the run, which checks every index anyway.
const TERMS_TRIED_MAX: u64 = 4_000_000;

impl<'a> Linker<'a> {
    pub(crate) fn own_index_written(&mut self, r: &'a ast::Ref, queue: usize, scope: ScopeId, what: &str) -> Reported {
        let word = &r.name.text;
        let called = match self.scopes.room_of(scope) {
            Room::Entry { called_at: None, .. } if !self.strict => return Reported,
            Room::Entry { called_at, .. } => called_at,
            _ => None,
        };
        let queue = &self.names.queues[queue].declared.name.text;
        let e = self.error(
            "index-not-needed",
            called.unwrap_or(r.span),
            format!("`{word}[…]` inside queue `{queue}`: an own {what} is the member's"),
        );
        let e = if called.is_some() { e.note(r.span, "in the entry called here") } else { e };
        e.help(format!("write `{word}`")).done(self)
    }

    /// The call of the entry a scope is in.
    pub(crate) fn call_of(&self, scope: ScopeId) -> Option<Span> {
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
            let e = self.error(
                "outside-entry",
                called_at.unwrap_or(r.span),
                format!("`self` in queue `{text}`, which is not a family"),
            );
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
        let Some(value) = fold::value(&linked, &self.lists) else {
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

    pub(crate) fn no_member(
        &mut self,
        span: Span,
        index: Span,
        what: &str,
        name: &str,
        count: u32,
        value: f64,
    ) -> Reported {
        let range = if count == 1 { "0".to_string() } else { format!("0 to {}", count - 1) };
        let e = self.error(
            "index-out-of-range",
            span,
            format!("{what} `{name}` has no member {value}", value = fold::show(value)),
        );
        let e = if index.start > span.start && index.end <= span.end { e } else { e.note(index, "this index") };
        e.help(format!("its members: {range}")).done(self)
    }

    /// The values of an index that reads the variables of aggregates only.
    pub(crate) fn index_values(&mut self, index: &ir::Expr) -> Vec<f64> {
        let mut reads_variable = false;
        index.each(&mut |e| reads_variable |= matches!(e, ir::Expr::Variable(_)));
        if !reads_variable || reads_state(index) {
            return Vec::new();
        }
        let terms: u64 = self.aggregates.iter().map(|&n| u64::from(n)).product();
        self.terms_tried = self.terms_tried.saturating_add(terms);
        if self.terms_tried > TERMS_TRIED_MAX {
            return Vec::new();
        }
        fold::values(index, &self.lists, &self.aggregates)
    }

    /// An index; the `from` name as an index is the member's number.
    pub(crate) fn index(&mut self, thunk: Thunk<'a>, at: Clause) -> Result<ir::Expr> {
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
