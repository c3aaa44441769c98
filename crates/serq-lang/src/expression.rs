//! Expressions: every name becomes an index or a number, every definition its body.
//!
//! The clause an expression stands in comes along, so what may not be read there is
//! said where it is written. Constant parts are folded.

use serq_ir::json::Number;
use serq_ir::{self as ir, Binary, Function, Law, PoolFigure, StageFigure};

use crate::ast::{self, ExprKind};
use crate::fold;
use crate::link::Linker;
use crate::moment::{Clause, Moment};
use crate::nearest;
use crate::resolve::{Reported, Result};
use crate::scope::{Binding, ScopeId};
use crate::source::Span;

/// Functions of numbers: name, arguments.
pub(crate) const FUNCTIONS: [(&str, usize); 9] =
    [("min", 2), ("max", 2), ("abs", 1), ("floor", 1), ("ceil", 1), ("sqrt", 1), ("exp", 1), ("ln", 1), ("pow", 2)];

/// Figures of pools.
pub(crate) const POOL_FIGURES: [(&str, PoolFigure); 6] = [
    ("used", PoolFigure::Used),
    ("free", PoolFigure::Free),
    ("holders", PoolFigure::Holders),
    ("queued", PoolFigure::Queued),
    ("cachedin", PoolFigure::Cachedin),
    ("outstanding", PoolFigure::Outstanding),
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
        || matches!(name, "blocksize" | "price" | "sum" | "len")
}

fn function_names() -> Vec<&'static str> {
    let mut names: Vec<&str> = FUNCTIONS.iter().map(|(f, _)| *f).collect();
    names.extend(POOL_FIGURES.iter().map(|(f, _)| *f));
    names.extend(["blocksize", "len"]);
    names.extend(STAGE_FIGURES.iter().map(|(f, _)| *f));
    names.push("price");
    names
}

pub(crate) fn number(value: f64) -> ir::Expr {
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
        match fold::value(&linked, &self.lists) {
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
                if let ir::Expr::Number(c) = &c {
                    return Ok(if c.0 != 0.0 { a } else { b });
                }
                Ok(ir::Expr::If(Box::new(c), Box::new(a), Box::new(b)))
            }
            ExprKind::Call(name, arguments) => self.call(name, arguments, e.span, scope, at),
            ExprKind::List(_) => Err(self
                .error("wrong-kind", e.span, "a list stands only as the value of a `let`")
                .help("write `let NAME = [a, b, c];` and read `NAME[k]`")
                .done(self)),
            ExprKind::Draw(name, arguments) => self.draw(name, arguments, e.span, scope, at),
            ExprKind::Aggregate(fold, name, count, body) => self.aggregate(*fold, name, count, body, e.span, scope, at),
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
                .error(
                    "aggregate-name",
                    Span { end: name.span.end, ..span },
                    format!("`{word} {0} in`: `{0}` is also {what}", name.text),
                )
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
        let value = fold::value(&linked, &self.lists);
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
            let e = self.error("unknown-distribution", name.span, format!("no distribution is named `{}`", name.text));
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
                    // In a constant the law is the mistake, elsewhere the draw.
                    if at.moment() == Moment::Constant { name.span } else { span },
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
            "len" => {
                self.arity(name, arguments.len(), 1, 1)?;
                self.length(name, &arguments[0])
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

    /// `len(speeds)`
    fn length(&mut self, name: &ast::Name, list: &'a ast::Expr) -> Result<ir::Expr> {
        match &list.kind {
            ExprKind::Ref(r) if r.index.is_none() && r.field.is_none() && self.names.is_list(&r.name.text) => {
                let list = self.list(r)?;
                Ok(number(self.lists[list as usize].values.len() as f64))
            }
            _ => Err(self
                .error("wrong-kind", list.span, format!("`{}` counts the elements of a list", name.text))
                .help("name a list: `let speeds = [1, 2]; … len(speeds)`")
                .done(self)),
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
                let e = self.error("unknown-function", name.span, format!("no function is named `{}`", name.text));
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
