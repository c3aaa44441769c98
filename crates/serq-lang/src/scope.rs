//! What a bare word means where it stands.
//!
//! Calls, definitions and `at admission` names are substitution: the argument's
//! text replaces the name and keeps meaning what it meant at the call. So a name is
//! bound to a [`Thunk`], the argument's tree together with the scope it was written
//! in, and linked anew at every use.
//!
//! ```text
//!   room (program | entry of D[j]) ◀─ definition's parameters ◀─ hold's names ◀─ aggregate's k
//! ```

use crate::ast;
use crate::source::Span;

/// Index into [`Scopes`].
pub(crate) type ScopeId = usize;

/// An expression and the scope it is written in.
#[derive(Clone, Copy)]
pub(crate) struct Thunk<'a> {
    pub(crate) expr: &'a ast::Expr,
    pub(crate) scope: ScopeId,
}

/// What a name is bound to.
#[derive(Clone, Copy)]
pub(crate) enum Binding<'a> {
    /// Replaced by this.
    Argument(Thunk<'a>),
    /// A parameter while an entry is looked at without a call.
    Unknown,
    /// The `from` name of an entry.
    From(From<'a>),
    /// The variable of the aggregate at this depth, counted from the outermost.
    Variable(usize),
    /// An `at admission` name inside the body that reads it: the attribute.
    Bound(usize),
}

/// `from P[i]`.
#[derive(Clone, Copy)]
pub(crate) struct From<'a> {
    pub(crate) queue: Option<usize>,
    pub(crate) index: Option<Thunk<'a>>,
    /// The pool its entries lease.
    pub(crate) pool: Option<usize>,
    /// The `from P[i]` of the call.
    pub(crate) said_at: Option<Span>,
}

/// Whose words are meant.
#[derive(Clone, Copy)]
pub(crate) enum Room<'a> {
    /// The program's.
    Program {
        /// Serving forms look at the stages above this item.
        item: usize,
    },
    /// A queue's entry.
    Entry {
        queue: usize,
        entry: &'a ast::Entry,
        /// Which member; `None` when the queue is no family or no call is given.
        member: Option<Thunk<'a>>,
        /// The call; none while an entry is looked at by itself.
        called_at: Option<Span>,
    },
    /// A queue's `serve`, `nic` and pool options.
    Options { queue: usize },
}

/// Names bound at one place.
pub(crate) struct Scope<'a> {
    pub(crate) parent: Option<ScopeId>,
    pub(crate) room: Room<'a>,
    pub(crate) names: Vec<(&'a str, Binding<'a>)>,
    /// Parameters of a definition: its body does not see those of another
    /// definition it is used in.
    pub(crate) definition: bool,
    /// Where the definition is used, for messages that point into its body.
    pub(crate) used_at: Option<Span>,
}

/// All scopes of one linking.
#[derive(Default)]
pub(crate) struct Scopes<'a> {
    list: Vec<Scope<'a>>,
}

impl<'a> Scopes<'a> {
    /// A scope without a parent.
    pub(crate) fn room(&mut self, room: Room<'a>, names: Vec<(&'a str, Binding<'a>)>) -> ScopeId {
        self.list.push(Scope { parent: None, room, names, definition: false, used_at: None });
        self.list.len() - 1
    }

    /// A scope inside another.
    pub(crate) fn inside(&mut self, parent: ScopeId, names: Vec<(&'a str, Binding<'a>)>) -> ScopeId {
        let Scope { room, used_at, .. } = self.list[parent];
        self.list.push(Scope { parent: Some(parent), room, names, definition: false, used_at });
        self.list.len() - 1
    }

    /// A definition's body used in a scope.
    pub(crate) fn definition(&mut self, parent: ScopeId, names: Vec<(&'a str, Binding<'a>)>, used_at: Span) -> ScopeId {
        let scope = self.inside(parent, names);
        let outer = self.list[parent].used_at;
        self.list[scope].definition = true;
        self.list[scope].used_at = outer.or(Some(used_at));
        scope
    }

    /// The room a scope is in.
    pub(crate) fn room_of(&self, scope: ScopeId) -> Room<'a> {
        self.list[scope].room
    }

    /// Where the definition this scope stands in was used.
    pub(crate) fn used_at(&self, scope: ScopeId) -> Option<Span> {
        self.list[scope].used_at
    }

    /// What a name is bound to, if anything short of the program binds it.
    pub(crate) fn find(&self, scope: ScopeId, name: &str) -> Option<Binding<'a>> {
        let mut at = Some(scope);
        let mut in_definition = false;
        while let Some(id) = at {
            let s = &self.list[id];
            if !(s.definition && in_definition)
                && let Some((_, b)) = s.names.iter().rev().find(|(n, _)| *n == name)
            {
                return Some(*b);
            }
            in_definition |= s.definition;
            at = s.parent;
        }
        None
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }
}
