//! Names in expressions: which `let`, attribute or context variable a word is, and
//! whether it may be read where it stands.
//!
//! ```text
//!   what binds it here (parameter, hold, aggregate) ─▶ let ─▶ in an entry: its own, hidden
//!                                                          └▶ else: context, attribute
//! ```

use serq_ir::{self as ir, BuiltIn};

use crate::ast;
use crate::expression::{is_supplied_function, number};
use crate::link::{Draft, Linker};
use crate::moment::{self, Clause};
use crate::nearest;
use crate::resolve::{Reported, Result};
use crate::scope::{Binding, Room, ScopeId, Thunk};

impl<'a> Linker<'a> {
    pub(crate) fn name(&mut self, r: &'a ast::Ref, scope: ScopeId, at: Clause) -> Result<ir::Expr> {
        if let Some(field) = &r.field {
            return self.dotted(r, field, scope, at);
        }
        let word = r.name.text.as_str();
        let bound = self.scopes.find(scope, word);
        if let Some(index) = &r.index {
            // `kv[j]` standing alone: an argument may name a pool, a value may not.
            if bound.is_none() && self.names.is_list(word) {
                return self.element(r, index, scope, at);
            }
            if bound.is_none() || !matches!(bound, Some(Binding::Unknown)) {
                let what = if self.names.pool_of.contains_key(word) { "pool" } else { "stage" };
                return Err(self
                    .error("wrong-kind", r.span, format!("`{word}[…]` is no value"))
                    .help(if self.names.pool_of.contains_key(word) || self.names.stage_of.contains_key(word) {
                        format!(
                            "`{word}` is a {what}; read a figure of it, such as `{}({word}[…])`",
                            if what == "pool" { "used" } else { "queue" }
                        )
                    } else {
                        "only pools, stages and lists are indexed".into()
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
                    Room::Entry { entry, .. } => {
                        self.entry_error("wrong-kind", entry, message).note(r.span, "read here")
                    }
                    _ => self.error("wrong-kind", r.span, message),
                };
                let e = e.help(format!("read a figure of it, such as `used({word})`, or index a link with it"));
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
    pub(crate) fn constant_name(&mut self, r: &'a ast::Ref, at: Clause) -> Option<Result<ir::Expr>> {
        let word = r.name.text.as_str();
        if let Some(value) = self.constants.get(word) {
            return Some(value.map(number));
        }
        if self.names.is_list(word) {
            return Some(Err(self
                .error("wrong-kind", r.span, format!("`{word}` is a list, not a number"))
                .help(format!("read an element of it: `{word}[k]`, k from 0"))
                .done(self)));
        }
        self.names.lets.get(word)?;
        debug_assert!(self.folding, "after folding every let has a value");
        let _ = at;
        Some(Err(self.declared_below(r)))
    }

    fn declared_below(&mut self, r: &ast::Ref) -> Reported {
        let word = r.name.text.as_str();
        let e = self.error("declared-below", r.span, format!("`{word}` is declared below"));
        let e = match self.names.lets.get(word) {
            Some(declared) => e.note(declared.name.span, "here"),
            None => e,
        };
        e.help(format!("a `let` reads only the `let`s above it: move `let {word}` up")).done(self)
    }

    /// The place of a list.
    pub(crate) fn list(&mut self, r: &ast::Ref) -> Result<u32> {
        match self.list_of.get(r.name.text.as_str()) {
            Some(list) => *list,
            None => Err(self.declared_below(r)),
        }
    }

    /// `speeds[j]`
    fn element(&mut self, r: &'a ast::Ref, index: &'a ast::Expr, scope: ScopeId, at: Clause) -> Result<ir::Expr> {
        let word = r.name.text.as_str();
        let linked = self.expr(index, scope, at);
        let list = self.list(r)?;
        let linked = linked?;
        let ir::Expr::Number(k) = linked else { return Ok(ir::Expr::Element(list, Box::new(linked))) };
        let values = &self.lists[list as usize].values;
        match values.get(k.0 as usize).filter(|_| k.0 >= 0.0 && k.0.fract() == 0.0) {
            Some(value) => Ok(number(value.0)),
            None => {
                let message = format!("`{word}` has no element {}", k.0);
                let help = format!("its elements are 0 to {}", values.len() - 1);
                Err(self.error("index-out-of-range", index.span, message).help(help).done(self))
            }
        }
    }

    pub(crate) fn name_in_program(
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
        if word == "self" && matches!(at, Clause::Budget | Clause::Chunk) {
            return Ok(ir::Expr::Context(ir::Context::Member));
        }
        if word == "self" {
            return match room {
                Room::Options { .. } => {
                    Err(self.error("outside-entry", r.span, "`self` is read outside an entry").done(self))
                }
                _ => Err(self
                    .error(
                        "outside-entry",
                        r.span,
                        "`self` is a member's index and exists in the entries of a queue family",
                    )
                    .done(self)),
            };
        }
        Err(self.unknown_name(r, scope, at))
    }

    /// A word in an entry that nothing in it binds: its own attribute, a hidden one,
    /// `computed`, `now`, or something the entry may not see.
    pub(crate) fn name_in_entry(
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
                        format!(
                            "the header of `{queue_name}.{}` reads `{word}`, which the entry sets",
                            entry.verb.text
                        ),
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
        if self.names.pool_of.contains_key(word)
            || self.names.stage_of.contains_key(word)
            || self.names.queues[queue].pools.contains_key(word)
        {
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

    pub(crate) fn context(
        &mut self,
        variable: ir::Context,
        r: &'a ast::Ref,
        scope: ScopeId,
        at: Clause,
    ) -> Result<ir::Expr> {
        if at.has(variable) {
            return Ok(ir::Expr::Context(variable));
        }
        let word = &r.name.text;
        let e = self.error("wrong-moment", r.span, format!("`{word}` does not exist in {}", at.describe())).help(
            match at {
                Clause::Gauge if variable == ir::Context::Now => {
                    "a gauge is held constant between events; it reads pools and stages only".into()
                }
                Clause::Let | Clause::Constant(_) => "a constant is read once, before the program runs".into(),
                _ => format!("`{word}` is read in {}", moment::where_it_exists(variable)),
            },
        );
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
    pub(crate) fn unknown_name(&mut self, r: &'a ast::Ref, scope: ScopeId, at: Clause) -> Reported {
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
