//! Expressions: every name becomes an index or a number, every definition its body.
//!
//! The clause an expression stands in comes along, so what may not be read there is
//! said where it is written. Constant parts are folded.

use serq_ir::json::Number;
use serq_ir::{self as ir, Binary, BuiltIn, Function, Law, PoolFigure, StageFigure};

use crate::ast::{self, ExprKind};
use crate::fold;
use crate::link::{Draft, Linker};
use crate::moment::{self, Clause};
use crate::nearest;
use crate::resolve::{Reported, Result};
use crate::scope::{Binding, Room, ScopeId, Thunk};
use crate::source::Span;

/// Functions of numbers: name, arguments.
pub(crate) const FUNCTIONS: [(&str, usize); 9] = [
    ("min", 2),
    ("max", 2),
    ("abs", 1),
    ("floor", 1),
    ("ceil", 1),
    ("sqrt", 1),
    ("exp", 1),
    ("ln", 1),
    ("pow", 2),
];

/// Figures of pools.
pub(crate) const POOL_FIGURES: [(&str, PoolFigure); 5] = [
    ("used", PoolFigure::Used),
    ("free", PoolFigure::Free),
    ("holders", PoolFigure::Holders),
    ("queued", PoolFigure::Queued),
    ("cachedin", PoolFigure::Cachedin),
];

/// Figures of stages.
pub(crate) const STAGE_FIGURES: [(&str, StageFigure); 7] = [
    ("queue", StageFigure::Queue),
    ("busy", StageFigure::Busy),
    ("work", StageFigure::Work),
    ("budget_left", StageFigure::BudgetLeft),
    ("est_lambda", StageFigure::EstLambda),
    ("est_rho", StageFigure::EstRho),
    ("est_wait", StageFigure::EstWait),
];

/// Distributions: name, law, arguments.
pub(crate) const LAWS: [(&str, Law, usize); 6] = [
    ("exp", Law::Exp, 1),
    ("det", Law::Det, 1),
    ("uniform", Law::Uniform, 2),
    ("erlang", Law::Erlang, 2),
    ("h2", Law::H2, 2),
    ("bernoulli", Law::Bernoulli, 1),
];

/// Is this the name of a function, a figure or a distribution?
pub(crate) fn is_supplied_function(name: &str) -> bool {
    FUNCTIONS.iter().any(|(f, _)| *f == name)
        || POOL_FIGURES.iter().any(|(f, _)| *f == name)
        || STAGE_FIGURES.iter().any(|(f, _)| *f == name)
        || LAWS.iter().any(|(f, _, _)| *f == name)
        || matches!(name, "blocksize" | "price" | "sum")
}

fn function_names() -> Vec<&'static str> {
    let mut names: Vec<&str> = FUNCTIONS.iter().map(|(f, _)| *f).collect();
    names.extend(POOL_FIGURES.iter().map(|(f, _)| *f));
    names.extend(["blocksize"]);
    names.extend(STAGE_FIGURES.iter().map(|(f, _)| *f));
    names.push("price");
    names
}

fn number(value: f64) -> ir::Expr {
    ir::Expr::Number(Number(value))
}

impl<'a> Linker<'a> {
    /// Links an expression.
    pub(crate) fn expr(&mut self, e: &'a ast::Expr, scope: ScopeId, at: Clause) -> Result<ir::Expr> {
        self.deeper(e.span)?;
        let emits = !matches!(e.kind, ExprKind::Paren(_) | ExprKind::Ref(_) | ExprKind::Number(_));
        self.height += usize::from(emits);
        let linked = self.expr_kind(e, scope, at);
        self.height -= usize::from(emits);
        self.depth -= 1;
        linked
    }

    /// A constant of the program.
    pub(crate) fn constant(&mut self, e: &'a ast::Expr, what: &'static str) -> Result<f64> {
        let scope = self.program;
        let linked = self.expr(e, scope, Clause::Constant(what))?;
        match fold::value(&linked) {
            Some(v) if v.is_nan() => {
                Err(self.error("bad-constant", e.span, format!("{what} is not a number")).done(self))
            }
            Some(v) => Ok(v),
            None => Err(self.error("not-constant", e.span, format!("{what} is not a constant")).done(self)),
        }
    }

    fn expr_kind(&mut self, e: &'a ast::Expr, scope: ScopeId, at: Clause) -> Result<ir::Expr> {
        match &e.kind {
            ExprKind::Error => Err(Reported),
            ExprKind::Paren(inner) => self.expr(inner, scope, at),
            ExprKind::Number(n) => Ok(number(*n)),
            ExprKind::Ref(r) => self.name(r, scope, at),
            ExprKind::Unary(op, a) => {
                let a = self.expr(a, scope, at)?;
                Ok(match a {
                    ir::Expr::Number(n) => folded(fold::unary(*op, n.0), || ir::Expr::Unary(*op, Box::new(a))),
                    a => ir::Expr::Unary(*op, Box::new(a)),
                })
            }
            ExprKind::Binary(op, a, b) => {
                let (a, b) = (self.expr(a, scope, at), self.expr(b, scope, at));
                Ok(binary(*op, a?, b?))
            }
            ExprKind::If(c, a, b) => {
                let c = self.expr(c, scope, at);
                let (a, b) = (self.expr(a, scope, at), self.expr(b, scope, at));
                let (c, a, b) = (c?, a?, b?);
                if let (ir::Expr::Number(c), ir::Expr::Number(_), ir::Expr::Number(_)) = (&c, &a, &b) {
                    return Ok(if c.0 != 0.0 { a } else { b });
                }
                Ok(ir::Expr::If(Box::new(c), Box::new(a), Box::new(b)))
            }
            ExprKind::Call(name, arguments) => self.call(name, arguments, e.span, scope, at),
            ExprKind::Draw(name, arguments) => self.draw(name, arguments, e.span, scope, at),
            ExprKind::Aggregate(fold, name, count, body) => {
                self.aggregate(*fold, name, count, body, e.span, scope, at)
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one expression")]
    fn aggregate(
        &mut self,
        fold: ir::Fold,
        name: &'a ast::Name,
        count: &'a ast::Expr,
        body: &'a ast::Expr,
        span: Span,
        scope: ScopeId,
        at: Clause,
    ) -> Result<ir::Expr> {
        let word = match fold {
            ir::Fold::Min => "min",
            ir::Fold::Max => "max",
            ir::Fold::Sum => "sum",
        };
        if let Some(what) = self.taken_by(&name.text) {
            return Err(self
                .error("aggregate-name", Span { end: name.span.end, ..span }, format!("`{word} {0} in`: `{0}` is also {what}", name.text))
                .label("counts 0, 1, … here and nothing else")
                .help("give it a name the program does not use")
                .done(self));
        }
        let terms = self.count_of_aggregate(word, &name.text, count, span, scope)?;
        let written = self.terms.saturating_mul(u64::from(terms));
        if written > ir::AGGREGATE_TERMS_MAX {
            return Err(self
                .error(
                    "aggregate-count",
                    Span { end: count.span.end, ..span },
                    format!("this writes out {written} terms, at most {} are taken", ir::AGGREGATE_TERMS_MAX),
                )
                .label(if self.terms > 1 { "counted with the aggregates around it" } else { "" })
                .done(self));
        }
        let outer = std::mem::replace(&mut self.terms, written);
        let inner = self.scopes.inside(scope, vec![(&name.text, Binding::Variable(self.aggregates.len()))]);
        self.aggregates.push(terms);
        let body = self.expr(body, inner, at);
        self.aggregates.pop();
        self.terms = outer;
        Ok(ir::Expr::Aggregate { fold, count: terms, body: Box::new(body?) })
    }

    fn count_of_aggregate(
        &mut self,
        word: &str,
        name: &str,
        count: &'a ast::Expr,
        span: Span,
        scope: ScopeId,
    ) -> Result<u32> {
        let span = Span { end: count.span.end, ..span };
        // The count is a constant wherever the aggregate stands, but a parameter of a
        // definition may stand for one.
        let linked = self.expr(count, scope, Clause::Constant("the count of an aggregate"))?;
        let value = fold::value(&linked);
        match value {
            Some(n) if n >= 1.0 && n.fract() == 0.0 && n <= ir::AGGREGATE_TERMS_MAX as f64 => Ok(n as u32),
            Some(n) => Err(self
                .error(
                    "aggregate-count",
                    span,
                    format!(
                        "`{word} {name} in` counts {n} terms, not a whole number from 1 to {}",
                        ir::AGGREGATE_TERMS_MAX
                    ),
                )
                .done(self)),
            None => Err(self
                .error("aggregate-count", span, format!("the count of `{word} {name} in` is not a constant"))
                .help("write a number, a `let`, or a constant expression in parentheses")
                .done(self)),
        }
    }

    fn draw(
        &mut self,
        name: &'a ast::Name,
        arguments: &'a [ast::Expr],
        span: Span,
        scope: ScopeId,
        at: Clause,
    ) -> Result<ir::Expr> {
        let Some(&(_, law, arity)) = LAWS.iter().find(|(l, _, _)| *l == name.text) else {
            let known: Vec<&str> = LAWS.iter().map(|(l, _, _)| *l).collect();
            let e = self.error(
                "unknown-distribution",
                name.span,
                format!("no distribution is named `{}`", name.text),
            );
            let e = match nearest::nearest(&name.text, known.iter().copied()) {
                Some(n) => e.help(format!("write `~{n}(…)`")),
                None => e,
            };
            return Err(e.help(format!("the distributions: {}", known.join(", "))).done(self));
        };
        if !at.may_draw() {
            let e = self
                .error(
                    "draw-not-allowed",
                    span,
                    format!("`~{}(…)` draws in {}, where no draw is taken", name.text, at.describe()),
                )
                .label("a sample, anew each time it is read");
            let e = if at.in_header() {
                e.help(format!("draw before the hold: `set x = ~{}(…);` and write `x` here", name.text))
            } else {
                e
            };
            return Err(self.through(e, scope).done(self));
        }
        self.arity(name, arguments.len(), arity, arity)?;
        let mut linked = Vec::with_capacity(arity);
        for a in arguments {
            linked.push(self.expr(a, scope, at));
        }
        Ok(ir::Expr::Draw(law, linked.into_iter().collect::<Result<_>>()?))
    }

    fn arity(&mut self, name: &ast::Name, got: usize, least: usize, most: usize) -> Result<()> {
        if (least..=most).contains(&got) {
            return Ok(());
        }
        let takes = if least == 1 { "1 argument".to_string() } else { format!("{least} arguments") };
        Err(self
            .error("wrong-argument-count", name.span, format!("`{}` takes {takes}, got {got}", name.text))
            .done(self))
    }

    fn call(
        &mut self,
        name: &'a ast::Name,
        arguments: &'a [ast::Expr],
        span: Span,
        scope: ScopeId,
        at: Clause,
    ) -> Result<ir::Expr> {
        let word = name.text.as_str();
        if let Some(&(_, arity)) = FUNCTIONS.iter().find(|(f, _)| *f == word) {
            self.arity(name, arguments.len(), arity, arity)?;
            let linked: Vec<_> = arguments.iter().map(|a| self.expr(a, scope, at)).collect();
            let linked = linked.into_iter().collect::<Result<Vec<_>>>()?;
            return Ok(function(word, linked));
        }
        if let Some(&(_, figure)) = POOL_FIGURES.iter().find(|(f, _)| *f == word) {
            self.arity(name, arguments.len(), 1, 1)?;
            return self.pool_figure(name, figure, &arguments[0], scope, at);
        }
        if let Some(&(_, figure)) = STAGE_FIGURES.iter().find(|(f, _)| *f == word) {
            self.arity(name, arguments.len(), 1, 1)?;
            return self.stage_figure(name, figure, &arguments[0], scope, at);
        }
        match word {
            "blocksize" => {
                self.arity(name, arguments.len(), 1, 1)?;
                self.block_size(name, &arguments[0], scope, at)
            }
            "price" => {
                self.arity(name, arguments.len(), 3, 3)?;
                if !at.may_read_state() {
                    return Err(self.state_not_allowed(name, scope, at));
                }
                let stage = self.stage_argument(&arguments[0], scope, at);
                let (h, d) = (self.expr(&arguments[1], scope, at), self.expr(&arguments[2], scope, at));
                Ok(ir::Expr::Price(stage?, Box::new(h?), Box::new(d?)))
            }
            _ => self.use_of_expression(name, arguments, span, scope, at),
        }
    }

    fn use_of_expression(
        &mut self,
        name: &'a ast::Name,
        arguments: &'a [ast::Expr],
        span: Span,
        scope: ScopeId,
        at: Clause,
    ) -> Result<ir::Expr> {
        let (def, body) = match self.definition(name, scope)? {
            Some(def) => match &def.body {
                ast::DefBody::Expr(body) => (def, body),
                ast::DefBody::Block(_) => {
                    return Err(self
                        .error(
                            "wrong-kind",
                            name.span,
                            format!("`{}` is a definition of statements, used as a value", name.text),
                        )
                        .note(def.name.span, "defined here with a block")
                        .help(format!("write `{} (…);` as a statement", name.text))
                        .done(self));
                }
            },
            None => {
                let mut known = function_names();
                known.extend(self.names.defs.keys());
                let e =
                    self.error("unknown-function", name.span, format!("no function is named `{}`", name.text));
                let e = match nearest::nearest(&name.text, known.iter().copied()) {
                    Some(n) => e.help(format!("write `{n}`")),
                    None if LAWS.iter().any(|(l, _, _)| *l == name.text) => {
                        e.help(format!("a draw is written `~{}(…)`", name.text))
                    }
                    None => e.help(format!("the functions: {}", known.join(", "))),
                };
                return Err(e.done(self));
            }
        };
        let inner = self.bind_arguments(def, name, arguments, scope)?;
        let _ = span;
        self.expr(body, inner, at)
    }

    fn name(&mut self, r: &'a ast::Ref, scope: ScopeId, at: Clause) -> Result<ir::Expr> {
        if let Some(field) = &r.field {
            return self.dotted(r, field, scope, at);
        }
        let word = r.name.text.as_str();
        let bound = self.scopes.find(scope, word);
        if let Some(index) = &r.index {
            // `kv[j]` standing alone: an argument may name a pool, a value may not.
            if bound.is_none() || !matches!(bound, Some(Binding::Unknown)) {
                let what = if self.names.pool_of.contains_key(word) { "pool" } else { "stage" };
                let _ = index;
                return Err(self
                    .error("wrong-kind", r.span, format!("`{word}[…]` is no value"))
                    .help(if self.names.pool_of.contains_key(word) || self.names.stage_of.contains_key(word) {
                        format!("`{word}` is a {what}; read a figure of it, such as `{}({word}[…])`",
                            if what == "pool" { "used" } else { "queue" })
                    } else {
                        "only pools and stages are indexed".into()
                    })
                    .done(self));
            }
        }
        match bound {
            Some(Binding::Argument(thunk)) => return self.argument(thunk, at),
            Some(Binding::Unknown) => return Ok(self.unknown_value()),
            Some(Binding::Variable(depth)) => {
                return Ok(ir::Expr::Variable((self.aggregates.len() - 1 - depth) as u32));
            }
            Some(Binding::Bound(attribute)) => return self.attribute_value(attribute, r, scope, at),
            Some(Binding::From(_)) => {
                let message = format!("`{word}` is the pool the prefill leased, not a number");
                let e = match self.scopes.room_of(scope) {
                    Room::Entry { entry, .. } => self.entry_error("wrong-kind", entry, message).note(r.span, "read here"),
                    _ => self.error("wrong-kind", r.span, message),
                };
                let e = e
                    .help(format!("read a figure of it, such as `used({word})`, or index a link with it"));
                return Err(e.done(self));
            }
            None => {}
        }
        if let Some(result) = self.constant_name(r, at) {
            return result;
        }
        match self.scopes.room_of(scope) {
            Room::Entry { queue, entry, .. } if !self.names.is_route(queue, entry) => {
                self.name_in_entry(r, queue, entry, scope, at)
            }
            room => self.name_in_program(r, room, scope, at),
        }
    }

    /// An argument stands where its parameter is named.
    pub(crate) fn argument(&mut self, thunk: Thunk<'a>, at: Clause) -> Result<ir::Expr> {
        self.expr(thunk.expr, thunk.scope, at)
    }

    /// A `let`, if the word is one.
    fn constant_name(&mut self, r: &'a ast::Ref, at: Clause) -> Option<Result<ir::Expr>> {
        let word = r.name.text.as_str();
        if let Some(value) = self.constants.get(word) {
            return Some(value.map(number));
        }
        let declared = self.names.lets.get(word)?;
        debug_assert!(self.folding, "after folding every let has a value");
        let _ = at;
        Some(Err(self
            .error("declared-below", r.span, format!("`{word}` is declared below"))
            .note(declared.name.span, "here")
            .help(format!("a `let` reads only the `let`s above it: move `let {word}` up"))
            .done(self)))
    }

    fn name_in_program(
        &mut self,
        r: &'a ast::Ref,
        room: Room<'a>,
        scope: ScopeId,
        at: Clause,
    ) -> Result<ir::Expr> {
        let word = r.name.text.as_str();
        if let Some(variable) = moment::context(word) {
            return self.context(variable, r, scope, at);
        }
        if let Some(&attribute) = self.names.attribute_of.get(word) {
            if let Some(bound) = self.names.attributes[attribute].bound
                && self.names.attributes[attribute].set.is_none()
            {
                return Err(self
                    .error(
                        "binding-escapes",
                        bound,
                        format!("`{word}` is read outside the body of the hold that binds it"),
                    )
                    .label("bound for the header and the body")
                    .note(r.span, "read here")
                    .help("name a value the rest of the program reads with `set`")
                    .done(self));
            }
            return self.attribute_value(attribute, r, scope, at);
        }
        if word == "self"
            && let Room::Entry { queue, .. } = room
        {
            return self.own_index(r, queue, scope, at);
        }
        if word == "self" {
            return match room {
                Room::Options { .. } => Err(self
                    .error("outside-entry", r.span, "`self` is read outside an entry")
                    .done(self)),
                _ => Err(self
                    .error("outside-entry", r.span, "`self` is a member's index and exists in the entries of a queue family")
                    .done(self)),
            };
        }
        Err(self.unknown_name(r, scope, at))
    }

    /// A word in an entry that nothing in it binds: its own attribute, a hidden one,
    /// `computed`, `now`, or something the entry may not see.
    fn name_in_entry(
        &mut self,
        r: &'a ast::Ref,
        queue: usize,
        entry: &'a ast::Entry,
        scope: ScopeId,
        at: Clause,
    ) -> Result<ir::Expr> {
        let word = r.name.text.as_str();
        let queue_name = self.names.queues[queue].declared.name.text.as_str();
        if word == "self" {
            return self.own_index(r, queue, scope, at);
        }
        let sets = self.entry_sets(queue, entry);
        let own = sets
            .contains(word)
            .then(|| self.names.attribute_of.get(&format!("{queue_name}.{word}")).copied())
            .flatten();
        let header = at.in_header();
        if let Some(attribute) = own {
            if header {
                return Err(self
                    .entry_error(
                        "entry-reads-outside",
                        entry,
                        format!("the header of `{queue_name}.{}` reads `{word}`, which the entry sets", entry.verb.text),
                    )
                    .note(r.span, "read here, at admission")
                    .help(format!("name it in the header: `at admission ({word} = …)`"))
                    .done(self));
            }
            if let Some(bound) = self.names.attributes[attribute].bound
                && self.names.attributes[attribute].set.is_none()
                && !self.binds_around(scope, word)
            {
                return Err(self
                    .error(
                        "binding-escapes",
                        bound,
                        format!("`{word}` is read outside the body of the hold that binds it"),
                    )
                    .note(r.span, "read here")
                    .help(format!("`set` a value the rest of the entry reads: `set x = {word};` in the body"))
                    .done(self));
            }
            return self.attribute_value(attribute, r, scope, at);
        }
        match word {
            "computed" => return self.attribute_value(BuiltIn::Computed as usize, r, scope, at),
            "cached" => return self.attribute_value(BuiltIn::Cached as usize, r, scope, at),
            _ => {}
        }
        if let Some(variable) = moment::context(word) {
            if header && variable == ir::Context::Now {
                return Err(self
                    .entry_error(
                        "entry-reads-outside",
                        entry,
                        format!("the header of `{queue_name}.{}` reads `now`", entry.verb.text),
                    )
                    .note(r.span, "read here, at admission")
                    .help("a header sees its parameters and the queue's own pools and stage: pass it as a parameter")
                    .done(self));
            }
            return self.context(variable, r, scope, at);
        }
        if let Some(&attribute) = self.names.attribute_of.get(word) {
            if self.names.attributes[attribute].hidden && !header {
                return self.attribute_value(attribute, r, scope, at);
            }
            let hidden = self.names.attributes[attribute].hidden;
            let what = if hidden { "hidden from the scheduler" } else { "set outside the queue" };
            let e = self.entry_error(
                "entry-reads-outside",
                entry,
                format!("`{queue_name}.{}` reads `{word}`, which is {what}", entry.verb.text),
            );
            return Err(e
                .note(r.span, "read here")
                .help(format!(
                    "pass it as a parameter: `{} ({word})`; a moment the caller wants is `mark`ed",
                    entry.verb.text
                ))
                .done(self));
        }
        if self.names.pool_of.contains_key(word) || self.names.stage_of.contains_key(word) || self.names.queues[queue].pools.contains_key(word) {
            return Err(self.unknown_name(r, scope, at));
        }
        Err(self
            .entry_error(
                "entry-reads-outside",
                entry,
                format!("`{queue_name}.{}` reads `{word}`, which nothing in the entry names", entry.verb.text),
            )
            .note(r.span, "read here")
            .help("an entry sees its parameters, its queue's pools and stage, what it sets itself, and the request's `hidden` attributes")
            .done(self))
    }

    fn context(&mut self, variable: ir::Context, r: &'a ast::Ref, scope: ScopeId, at: Clause) -> Result<ir::Expr> {
        if at.has(variable) {
            return Ok(ir::Expr::Context(variable));
        }
        let word = &r.name.text;
        let e = self
            .error("wrong-moment", r.span, format!("`{word}` does not exist in {}", at.describe()))
            .help(match at {
                Clause::Gauge if variable == ir::Context::Now => {
                    "a gauge is held constant between events; it reads pools and stages only".into()
                }
                Clause::Let | Clause::Constant(_) => "a constant is read once, before the program runs".into(),
                _ => format!("`{word}` is read in {}", moment::where_it_exists(variable)),
            });
        Err(self.through(e, scope).done(self))
    }

    /// Reads an attribute where the clause allows it.
    pub(crate) fn attribute_value(
        &mut self,
        attribute: usize,
        r: &'a ast::Ref,
        scope: ScopeId,
        at: Clause,
    ) -> Result<ir::Expr> {
        let name = self.names.attributes[attribute].name.clone();
        if !at.may_read_attributes() {
            let e = match at {
                Clause::Let | Clause::Constant(_) | Clause::Gap => self
                    .error("not-constant", r.span, format!("`{name}` is a session's attribute, not a constant"))
                    .label(format!("read in {}", at.describe())),
                _ => self
                    .error("wrong-moment", r.span, format!("`{name}` can't be read in {}", at.describe()))
                    .label("no one session is meant here"),
            };
            return Err(self.through(e, scope).done(self));
        }
        if at == Clause::BindingBody && attribute == BuiltIn::Cached as usize {
            return Err(self
                .error("binding-reads-state", r.span, "the body reads this name, so it can't read `cached`")
                .done(self));
        }
        if at == Clause::PreemptKey && attribute == BuiltIn::Computed as usize {
            return Err(self
                .error("wrong-moment", r.span, "`computed` can't be read in the keys of `preempt by`")
                .help("`position` is where the candidate is now")
                .done(self));
        }
        if self.names.attributes[attribute].hidden && !at.may_read_hidden() {
            let e = self
                .error(
                    "hidden-attribute",
                    r.span,
                    format!("`{name}` is hidden from the scheduler and can't be read in {}", at.describe()),
                )
                .help("a scheduler does not know it in advance; read what it knows, or take the name off `hidden`");
            let e = match self.hidden_at.get(name.as_str()) {
                Some(&span) => e.note(span, "hidden here"),
                None => e,
            };
            return Err(self.through(e, scope).done(self));
        }
        Ok(ir::Expr::Attribute(attribute as u32))
    }

    /// What a bare word could have meant.
    fn unknown_name(&mut self, r: &'a ast::Ref, scope: ScopeId, at: Clause) -> Reported {
        let word = r.name.text.as_str();
        if matches!(at, Clause::Let | Clause::Constant(_)) {
            if self.maybe_declared(word) {
                return Reported;
            }
            let known: Vec<&str> = self.constants.keys().copied().collect();
            let e = self.error("not-constant", r.span, format!("`{word}` is not a constant"));
            let e = match nearest::nearest(word, known.iter().copied()) {
                Some(n) => e.help(format!("write `{n}`")),
                None if known.is_empty() => e.help(format!("declare it: `let {word} = …;`")),
                None => e.help(format!("the constants: {}", known.join(", "))),
            };
            return self.through(e, scope).done(self);
        }
        if self.names.defs.contains_key(word) {
            return self
                .error("wrong-kind", r.span, format!("`{word}` is a definition; a use has parentheses"))
                .help(format!("write `{word}(…)`"))
                .done(self);
        }
        let kind = if self.names.pool_of.contains_key(word) {
            Some(("pool", "used"))
        } else if self.names.stage_of.contains_key(word) {
            Some(("stage", "queue"))
        } else if self.names.queue_of.contains_key(word) {
            return self.error("wrong-kind", r.span, format!("`{word}` is a queue, not a number")).done(self);
        } else {
            None
        };
        if let Some((what, figure)) = kind {
            return self
                .error("wrong-kind", r.span, format!("`{word}` is a {what}, not a number"))
                .help(format!("read a figure of it, such as `{figure}({word})`"))
                .done(self);
        }
        if self.maybe_declared(word) {
            return Reported;
        }
        let mut known: Vec<&str> = self.constants.keys().copied().collect();
        known.extend(self.names.attributes.iter().map(|a| a.name.as_str()));
        known.extend(moment::CONTEXT.iter().filter(|(_, c)| at.has(*c)).map(|(w, _)| *w));
        let e = self.error("unknown-name", r.span, format!("nothing is named `{word}`"));
        let e = match nearest::nearest(word, known.iter().copied()) {
            Some(n) => e.help(format!("write `{n}`")),
            None if is_supplied_function(word) => e.help(format!("`{word}` is a function: `{word}(…)`")),
            None => e.help(format!("declare a constant, `let {word} = …;`, or set an attribute, `set {word} = …;`")),
        };
        self.through(e, scope).done(self)
    }

    /// Adds where the definition was used that a finding stands in.
    pub(crate) fn through(&self, d: Draft, scope: ScopeId) -> Draft {
        match self.scopes.used_at(scope) {
            Some(span) => d.note(span, "in this use of the definition"),
            None => d,
        }
    }

    /// Is the clause one where state may be read at all?
    pub(crate) fn state_not_allowed(&mut self, name: &ast::Name, scope: ScopeId, at: Clause) -> Reported {
        let word = &name.text;
        let e = match at {
            Clause::Let | Clause::Constant(_) => self
                .error("not-constant", name.span, format!("`{word}(…)` is not a constant"))
                .label(format!("read in {}", at.describe()))
                .help("name the value with a `let` that both use"),
            Clause::BindingBody => self
                .error(
                    "binding-reads-state",
                    name.span,
                    format!("the body reads this name, so it can't read `{word}(…)`"),
                )
                .help("read by the body, it is read again there; let it read attributes and constants only"),
            _ => self.error("wrong-moment", name.span, format!("`{word}(…)` can't be read in {}", at.describe())),
        };
        self.through(e, scope).done(self)
    }
}

fn folded(value: f64, otherwise: impl FnOnce() -> ir::Expr) -> ir::Expr {
    if value.is_nan() { otherwise() } else { number(value) }
}

fn binary(op: Binary, a: ir::Expr, b: ir::Expr) -> ir::Expr {
    if let (ir::Expr::Number(x), ir::Expr::Number(y)) = (&a, &b) {
        let value = fold::binary(op, x.0, y.0);
        if !value.is_nan() {
            return number(value);
        }
    }
    ir::Expr::Binary(op, Box::new(a), Box::new(b))
}

fn function(word: &str, mut arguments: Vec<ir::Expr>) -> ir::Expr {
    let f = match word {
        "pow" => {
            let b = arguments.pop().expect("arity is checked");
            let a = arguments.pop().expect("arity is checked");
            return binary(Binary::Power, a, b);
        }
        "min" => Function::Min,
        "max" => Function::Max,
        "abs" => Function::Abs,
        "floor" => Function::Floor,
        "ceil" => Function::Ceil,
        "sqrt" => Function::Sqrt,
        "exp" => Function::Exp,
        _ => Function::Ln,
    };
    let numbers: Option<Vec<f64>> = arguments
        .iter()
        .map(|a| match a {
            ir::Expr::Number(n) => Some(n.0),
            _ => None,
        })
        .collect();
    if let Some(n) = numbers {
        let value = fold::call(f, n[0], n.get(1).copied().unwrap_or(0.0));
        if !value.is_nan() {
            return number(value);
        }
    }
    ir::Expr::Call(f, arguments)
}
