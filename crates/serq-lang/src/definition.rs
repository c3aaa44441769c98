//! Definitions: what may be defined, and what an argument may be.
//!
//! A use is replaced by the body, so an argument is read as often as the body names
//! the parameter, and when the body names it. Whatever would then mean something
//! else than at the call is refused here.

use std::collections::BTreeSet;

use crate::ast::{self, DefBody};
use crate::expression;
use crate::link::Linker;
use crate::resolve::{Reported, Result};
use crate::scope::{Binding, Room, ScopeId, Thunk};
use crate::source::Span;
use crate::walk::{self, Visitor};

/// Most parameters of a definition and most names of one `at admission`.
pub(crate) const NAMES_MAX: usize = 256;

/// What a body does with names.
#[derive(Default)]
struct Body<'a> {
    reads: Vec<(&'a str, Span)>,
    sets: Vec<(&'a str, Span)>,
    definitions: Vec<&'a ast::Name>,
    draws: bool,
    live: Option<(&'a str, Span)>,
    holds: Vec<&'a ast::Hold>,
    /// Variables of aggregates, observations.
    names: Vec<&'a ast::Name>,
}

impl<'a> Visitor<'a> for Body<'a> {
    fn reads(&mut self, r: &'a ast::Ref) {
        if r.field.is_none() {
            if r.name.text == "now" {
                self.live = self.live.or(Some(("now", r.span)));
            }
            self.reads.push((&r.name.text, r.span));
        }
    }
    fn sets(&mut self, name: &'a ast::Name, _: bool) {
        self.sets.push((&name.text, name.span));
    }
    fn calls(&mut self, name: &'a ast::Name) {
        let word = name.text.as_str();
        if expression::POOL_FIGURES.iter().any(|(f, _)| *f == word)
            || expression::STAGE_FIGURES.iter().any(|(f, _)| *f == word)
            || word == "price"
        {
            self.live = self.live.or(Some((word, name.span)));
        } else {
            self.definitions.push(name);
        }
    }
    fn uses(&mut self, name: &'a ast::Name) {
        self.definitions.push(name);
    }
    fn draws(&mut self, _: &'a ast::Name) {
        self.draws = true;
    }
    fn holds(&mut self, hold: &'a ast::Hold) {
        self.holds.push(hold);
    }
    fn aggregates(&mut self, name: &'a ast::Name) {
        self.names.push(name);
    }
    fn observes(&mut self, name: &'a ast::Name) {
        self.names.push(name);
    }
}

fn body_of<'a>(body: &'a DefBody) -> Body<'a> {
    let mut seen = Body::default();
    match body {
        DefBody::Expr(e) => walk::expr(e, &mut seen),
        DefBody::Block(b) => walk::block(b, &mut seen),
    }
    seen
}

impl<'a> Linker<'a> {
    /// Checks a definition once; a bad one is remembered and its uses stay silent.
    pub(crate) fn check_definition(&mut self, def: &'a ast::Def, item: usize) {
        let name = &def.name;
        if def.parameters.len() > NAMES_MAX {
            self.decline(name);
            self.error("too-large", name.span, format!("a definition takes at most {NAMES_MAX} parameters")).done(self);
            return;
        }
        for (k, p) in def.parameters.iter().enumerate() {
            if let Some(first) = def.parameters[..k].iter().find(|q| q.text == p.text) {
                self.decline(name);
                self.error("repeated", p.span, format!("`{}` is a parameter twice", p.text))
                    .note(first.span, "first here")
                    .done(self);
            }
        }
        for p in &def.parameters {
            if expression::is_supplied_function(&p.text) {
                self.decline(name);
                self.error("reserved-name", p.span, format!("`{}` is a function of the language", p.text))
                    .help("give the parameter another name")
                    .done(self);
            }
        }
        let body = body_of(&def.body);
        let assigned = body.sets.iter().copied();
        let bound = body.holds.iter().flat_map(|h| &h.bindings).map(|(n, _)| (n.text.as_str(), n.span));
        let counted = body.names.iter().map(|n| (n.text.as_str(), n.span));
        for (word, span) in assigned.chain(bound).chain(counted) {
            if let Some(p) = def.parameters.iter().find(|p| p.text == word) {
                self.decline(name);
                self.error(
                    "not-assignable",
                    name.span,
                    format!("`{}` assigns or binds its parameter `{word}`", name.text),
                )
                .note(span, "here")
                .note(p.span, "a parameter is replaced by its argument")
                .help("assign another name")
                .done(self);
            }
        }
        for used in body.definitions {
            let word = used.text.as_str();
            if word == name.text {
                self.decline(name);
                self.error("recursion", name.span, format!("`{word}` is defined by itself"))
                    .note(used.span, "used here")
                    .help("a use is replaced by the body, which would never end")
                    .done(self);
            } else if let Some(other) = self.names.defs.get(word)
                && other.item > item
            {
                let at = other.def.name.span;
                self.decline(name);
                self.error("declared-below", at, format!("`{word}` is defined below `{}`, which uses it", name.text))
                    .note(used.span, "used here")
                    .help("move the definition up")
                    .done(self);
            }
        }
    }

    fn decline(&mut self, name: &'a ast::Name) {
        self.bad_definitions.insert(&name.text);
    }

    /// The definition of this name, usable here.
    pub(crate) fn definition(&mut self, name: &'a ast::Name, scope: ScopeId) -> Result<Option<&'a ast::Def>> {
        let word = name.text.as_str();
        if self.bad_definitions.contains(word) {
            return Err(Reported);
        }
        let Some(def) = self.names.defs.get(word) else { return Ok(None) };
        let (def, defined) = (def.def, def.item);
        let used = match self.scopes.room_of(scope) {
            Room::Program { item } => item,
            Room::Entry { queue, .. } | Room::Options { queue } => self.names.queues[queue].item,
        };
        if used < defined {
            return Err(self
                .error("declared-below", name.span, format!("`{word}` is used above its definition"))
                .note(def.name.span, "defined here")
                .help("move the definition up")
                .done(self));
        }
        Ok(Some(def))
    }

    /// A scope in which the parameters are the arguments.
    pub(crate) fn bind_arguments(
        &mut self,
        def: &'a ast::Def,
        name: &'a ast::Name,
        arguments: &'a [ast::Expr],
        scope: ScopeId,
    ) -> Result<ScopeId> {
        if arguments.len() != def.parameters.len() {
            let takes = match def.parameters.len() {
                1 => "1 argument".to_string(),
                n => format!("{n} arguments"),
            };
            return Err(self
                .error(
                    "wrong-argument-count",
                    name.span,
                    format!("`{}` takes {takes}, got {}", name.text, arguments.len()),
                )
                .note(def.name.span, "defined here")
                .done(self));
        }
        let statements = matches!(def.body, DefBody::Block(_));
        let body = (!arguments.is_empty()).then(|| body_of(&def.body));
        for (parameter, argument) in def.parameters.iter().zip(arguments) {
            let body = body.as_ref().expect("there are arguments");
            let times = body.reads.iter().filter(|(n, _)| *n == parameter.text).count();
            if times > 1 && self.draws(argument, scope) {
                return Err(self
                    .error(
                        "argument-draws",
                        name.span,
                        format!("the argument for `{}` draws, and the body reads it {times} times", parameter.text),
                    )
                    .note(argument.span, "each reading would be another sample")
                    .help("draw first: `set x = ~…;`, and pass `x`")
                    .done(self));
            }
            let mut seen = Body::default();
            walk::expr(argument, &mut seen);
            let assigned = seen.reads.iter().find(|(n, _)| body.sets.iter().any(|(s, _)| s == n));
            if let Some(&(word, _)) = assigned {
                let at = body.sets.iter().find(|(s, _)| *s == word).map(|(_, at)| *at);
                let e = self.error(
                    "argument-assigned",
                    name.span,
                    format!("the argument for `{}` reads `{word}`, which `{}` assigns", parameter.text, name.text),
                );
                let e = match at {
                    Some(at) => e.note(at, "assigned here, before or after it is read"),
                    None => e,
                };
                return Err(e
                    .help(format!("keep the old value: `set before = {word};`, and pass `before`"))
                    .done(self));
            }
            if statements && let Some((word, at)) = seen.live {
                return Err(self
                    .error(
                        "argument-live",
                        name.span,
                        format!(
                            "the argument for `{}` reads `{word}`, which changes while the statements run",
                            parameter.text
                        ),
                    )
                    .note(at, "read anew wherever the parameter stands")
                    .help(format!("read it once: `set x = {word}…;`, and pass `x`"))
                    .done(self));
            }
        }
        let names = def
            .parameters
            .iter()
            .zip(arguments)
            .map(|(p, expr)| (p.text.as_str(), Binding::Argument(Thunk { expr, scope })))
            .collect();
        Ok(self.scopes.definition(scope, names, name.span))
    }

    /// Does an expression draw, through parameters and definitions?
    pub(crate) fn draws(&self, e: &'a ast::Expr, scope: ScopeId) -> bool {
        self.draws_inner(e, scope, &mut BTreeSet::new(), &mut BTreeSet::new(), 0)
    }

    fn draws_inner(
        &self,
        e: &'a ast::Expr,
        scope: ScopeId,
        definitions: &mut BTreeSet<&'a str>,
        names: &mut BTreeSet<(ScopeId, &'a str)>,
        depth: usize,
    ) -> bool {
        if depth > serq_ir::DEPTH_MAX {
            return false;
        }
        let mut body = Body::default();
        walk::expr(e, &mut body);
        if body.draws {
            return true;
        }
        for (word, _) in &body.reads {
            if names.insert((scope, word))
                && let Some(Binding::Argument(thunk)) = self.scopes.find(scope, word)
                && self.draws_inner(thunk.expr, thunk.scope, definitions, names, depth + 1)
            {
                return true;
            }
        }
        for used in body.definitions {
            if definitions.insert(&used.text)
                && let Some(def) = self.names.defs.get(used.text.as_str())
                && let DefBody::Expr(inner) = &def.def.body
                && !self.bad_definitions.contains(used.text.as_str())
                && self.draws_inner(inner, self.program, definitions, names, depth + 1)
            {
                return true;
            }
        }
        false
    }
}
