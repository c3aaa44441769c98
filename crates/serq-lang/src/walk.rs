//! Visits every name a piece of the tree reads or writes, nothing resolved.
//!
//! Resolution asks two things of a block before linking it: which attributes does
//! it set, and does it read this name. Both see through statement and expression
//! definitions, because a use is replaced by the body.

use crate::ast;

/// Called for what a walk meets.
pub(crate) trait Visitor<'a> {
    /// A reference in an expression or naming a pool or stage.
    fn reads(&mut self, reference: &'a ast::Ref);
    /// A name that `set`, `choose` or `mark` assigns.
    fn sets(&mut self, _name: &'a ast::Name, _mark: bool) {}
    /// A call of a function or expression definition.
    fn calls(&mut self, _name: &'a ast::Name) {}
    /// A use of a statement definition.
    fn uses(&mut self, _name: &'a ast::Name) {}
    /// An `observe`.
    fn observes(&mut self, _name: &'a ast::Name) {}
    /// A draw.
    fn draws(&mut self, _name: &'a ast::Name) {}
    /// The variable of an aggregate.
    fn aggregates(&mut self, _name: &'a ast::Name) {}
    /// The call of an entry.
    fn enters(&mut self, _entry: &'a ast::Ref) {}
    /// A `fork`, before its leg is walked.
    fn forks(&mut self, _fork: &'a ast::Stmt) {}
    /// A hold, before its parts are walked.
    fn holds(&mut self, _hold: &'a ast::Hold) {}
}

/// Every statement of a file's sessions, servers, entries and definitions.
pub(crate) fn statements<'a>(file: &'a ast::File, v: &mut dyn Visitor<'a>) {
    for item in &file.items {
        match item {
            ast::Item::Session(session) | ast::Item::Server(session) => block(&session.body, v),
            ast::Item::Queue(queue) => {
                for item in &queue.items {
                    if let ast::QueueItem::Entry(entry) = item {
                        block(&entry.body, v);
                    }
                }
            }
            ast::Item::Workload(workload) => {
                for item in &workload.items {
                    if let ast::WorkloadItem::Session(session) = item {
                        block(&session.body, v);
                    }
                }
            }
            ast::Item::Def(ast::Def { body: ast::DefBody::Block(body), .. }) => block(body, v),
            _ => {}
        }
    }
}

/// All statements of a block.
pub(crate) fn block<'a>(block: &'a ast::Block, v: &mut dyn Visitor<'a>) {
    for s in &block.stmts {
        stmt(s, v);
    }
}

/// A statement and what it contains.
pub(crate) fn stmt<'a>(s: &'a ast::Stmt, v: &mut dyn Visitor<'a>) {
    use ast::StmtKind as K;
    match &s.kind {
        K::Set(name, value) => {
            expr(value, v);
            v.sets(name, false);
        }
        K::Observe(name, value) => {
            v.observes(name);
            expr(value, v);
        }
        K::Mark(name) => v.sets(name, true),
        K::Turn | K::End | K::Fail | K::Request(_) | K::Join => {}
        K::Hold(hold) => {
            v.holds(hold);
            for grab in &hold.grabs {
                reference(&grab.pool, v);
                expr(&grab.units, v);
                grab.reserve.iter().for_each(|e| expr(e, v));
            }
            hold.reuse.iter().for_each(|e| expr(e, v));
            hold.bindings.iter().for_each(|(_, e)| expr(e, v));
            block(&hold.body, v);
            hold.cache.iter().for_each(|e| expr(e, v));
            if let Some((pool, time)) = &hold.lease {
                reference(pool, v);
                expr(time, v);
                hold.renewed.iter().flat_map(|(time, every)| [time, every]).for_each(|e| expr(e, v));
                hold.abandoned.iter().for_each(|e| expr(e, v));
            }
        }
        K::Grow(pool, units) | K::Load(pool, units) => {
            reference(pool, v);
            expr(units, v);
        }
        K::Drop(pool) => reference(pool, v),
        K::Release(pool, after) => {
            reference(pool, v);
            after.iter().for_each(|e| expr(e, v));
        }
        K::Run { stages, work, then, growing, reads, .. } => {
            stages.iter().for_each(|r| reference(r, v));
            expr(work, v);
            then.iter().for_each(|t| parts(t, v));
            growing.iter().for_each(|r| reference(r, v));
            if let Some(reads) = reads {
                reference(&reads.pool, v);
                reads.fails.iter().for_each(|e| expr(e, v));
            }
        }
        K::Serve { index, on, work, then, growing, .. } => {
            index.iter().for_each(|e| expr(e, v));
            on.iter().for_each(|r| reference(r, v));
            expr(work, v);
            then.iter().for_each(|t| parts(t, v));
            growing.iter().for_each(|r| reference(r, v));
        }
        K::Transfer { index, on, work, from, to, load, fails, otherwise } => {
            index.iter().for_each(|e| expr(e, v));
            on.iter().for_each(|r| reference(r, v));
            expr(work, v);
            reference(from, v);
            reference(to, v);
            expr(load, v);
            fails.iter().for_each(|e| expr(e, v));
            otherwise.iter().flat_map(|o| &o.retries).for_each(|e| expr(e, v));
        }
        K::Branch { test, then, otherwise, .. } => {
            expr(test, v);
            block(then, v);
            otherwise.iter().for_each(|b| block(b, v));
        }
        K::Fork(body) => {
            v.forks(s);
            block(body, v);
        }
        K::Loop(body) | K::Shielded(body) => block(body, v),
        K::Choose(name, count, keys) => {
            expr(count, v);
            keys.iter().for_each(|e| expr(e, v));
            v.sets(name, false);
        }
        K::Call { target, arguments, from, to } => {
            v.enters(target);
            target.index.iter().for_each(|e| expr(e, v));
            arguments.iter().for_each(|e| expr(e, v));
            from.iter().for_each(|r| reference(r, v));
            if let Some((pool, load)) = to {
                reference(pool, v);
                expr(load, v);
            }
        }
        K::Use(name, arguments) => {
            arguments.iter().for_each(|e| expr(e, v));
            v.uses(name);
        }
    }
}

fn parts<'a>(then: &'a ast::Then, v: &mut dyn Visitor<'a>) {
    block(&then.body, v);
    expr(&then.work, v);
}

/// A reference and its index.
pub(crate) fn reference<'a>(r: &'a ast::Ref, v: &mut dyn Visitor<'a>) {
    v.reads(r);
    r.index.iter().for_each(|e| expr(e, v));
}

/// An expression and what it contains.
pub(crate) fn expr<'a>(e: &'a ast::Expr, v: &mut dyn Visitor<'a>) {
    use ast::ExprKind as K;
    match &e.kind {
        K::Number(_) | K::Error => {}
        K::Ref(r) => reference(r, v),
        K::Unary(_, a) | K::Paren(a) => expr(a, v),
        K::Binary(_, a, b) => {
            expr(a, v);
            expr(b, v);
        }
        K::If(a, b, c) => {
            expr(a, v);
            expr(b, v);
            expr(c, v);
        }
        K::List(elements) => elements.iter().for_each(|a| expr(a, v)),
        K::Call(name, arguments) => {
            v.calls(name);
            arguments.iter().for_each(|a| expr(a, v));
        }
        K::Draw(name, arguments) => {
            v.draws(name);
            arguments.iter().for_each(|a| expr(a, v));
        }
        K::Aggregate(_, name, count, body) => {
            v.aggregates(name);
            expr(count, v);
            expr(body, &mut Without { name: &name.text, inner: v });
        }
    }
}

/// Hides the variable of an aggregate from the visitor outside.
struct Without<'v, 'a> {
    name: &'a str,
    inner: &'v mut dyn Visitor<'a>,
}

impl<'a> Visitor<'a> for Without<'_, 'a> {
    fn reads(&mut self, reference: &'a ast::Ref) {
        if reference.field.is_some() || reference.name.text != self.name {
            self.inner.reads(reference);
        }
    }
    fn calls(&mut self, name: &'a ast::Name) {
        self.inner.calls(name);
    }
    fn draws(&mut self, name: &'a ast::Name) {
        self.inner.draws(name);
    }
    fn aggregates(&mut self, name: &'a ast::Name) {
        self.inner.aggregates(name);
    }
}
