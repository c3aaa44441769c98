//! A program as those see it who serve it: each session is one request that came from outside.
//!
//! Who the clients are, when they come, think and come back, is theirs. So the workload's
//! `session` becomes one turn and one request to the route that it requests, and its `turn`
//! says what a request brings: the `request { … }` block, or where the program has none
//!
//! ```text
//!   hidden attributes                         max_tokens, which bounds them
//!   what `turn` sets, the first not hidden    prompt_tokens
//!   everything else `turn` sets               0
//! ```
//!
//! `init` stays. In a `request` block two names are the request's: `prompt_tokens`, how long its
//! prompt is, and `max_tokens`, how long its answer gets at most. An attribute set to plain
//! `max_tokens` follows: once the answer has ended, it is the answer's length.

use crate::ast::{self, ExprKind, Item, StmtKind, WorkloadItem};
use crate::diagnostic::Diagnostic;
use crate::parser;
use crate::source::{SourceMap, Span};
use crate::walk::{self, Visitor};

/// What a request's words are inside: the attributes in which a trace brings the same.
const WORDS: [(&str, &str); 2] = [("prompt_tokens", "new"), ("max_tokens", "out")];

/// In a `request` block the request's words mean its attributes.
pub(crate) fn name_words(files: &mut [ast::File]) {
    for workload in workloads(files) {
        for item in &mut workload.items {
            let WorkloadItem::Request(block, _) = item else { continue };
            for stmt in &mut block.stmts {
                if let StmtKind::Set(_, value) | StmtKind::Observe(_, value) = &mut stmt.kind {
                    name_words_in(value);
                }
            }
        }
    }
}

fn name_words_in(expr: &mut ast::Expr) {
    match &mut expr.kind {
        ExprKind::Ref(reference) if reference.index.is_none() && reference.field.is_none() => {
            if let Some((_, inside)) = WORDS.iter().find(|(word, _)| *word == reference.name.text) {
                reference.name.text = (*inside).to_owned();
            }
        }
        ExprKind::Unary(_, one) | ExprKind::Paren(one) => name_words_in(one),
        ExprKind::Binary(_, left, right) => [left, right].into_iter().for_each(|part| name_words_in(part)),
        ExprKind::If(test, then, otherwise) => {
            [test, then, otherwise].into_iter().for_each(|part| name_words_in(part));
        }
        ExprKind::Call(_, parts) | ExprKind::Draw(_, parts) | ExprKind::List(parts) => {
            parts.iter_mut().for_each(name_words_in);
        }
        ExprKind::Aggregate(_, _, count, body) => [count, body].into_iter().for_each(|part| name_words_in(part)),
        ExprKind::Ref(_) | ExprKind::Number(_) | ExprKind::Error => {}
    }
}

fn workloads(files: &mut [ast::File]) -> impl Iterator<Item = &mut ast::Workload> {
    files.iter_mut().flat_map(|file| &mut file.items).filter_map(|item| match item {
        Item::Workload(workload) => Some(workload),
        _ => None,
    })
}

/// Makes one request of each session.
///
/// # Errors
///
/// A program no request can be made to.
pub(crate) fn rewrite(sources: &mut SourceMap, files: &mut [ast::File]) -> Result<(), Box<Diagnostic>> {
    let at = files.iter().flat_map(|file| &file.items).find_map(|item| match item {
        Item::Workload(workload) => Some(workload.keyword_span),
        Item::Session(session) => Some(session.keyword_span),
        _ => None,
    });
    let nothing = || {
        let message = "no session requests a route, and that is what is served";
        let help =
            "write `workload { … session { … request router; … } }` with `queue router : gateway { route { … } }`";
        Box::new(Diagnostic::error("not-served", at, message).help(help))
    };
    let workload = workloads(files).next().ok_or_else(nothing)?;
    let mut requests = Vec::new();
    let mut said = None;
    let mut hidden = Vec::new();
    let mut set = Set::default();
    for item in &workload.items {
        match item {
            WorkloadItem::Session(session) => requests_of(&session.body, &mut requests),
            WorkloadItem::Request(block, _) => said = Some(block.clone()),
            WorkloadItem::Hidden(names, _) => hidden.extend(names.iter().map(|name| name.text.as_str())),
            WorkloadItem::Turn(block) => walk::block(block, &mut set),
            _ => {}
        }
    }
    let Some(first) = requests.first() else { return Err(nothing()) };
    let route = first.as_ref().map(|name| name.text.clone());
    if let Some(Some(other)) = requests.iter().find(|other| other.as_ref().map(|name| &name.text) != route.as_ref()) {
        let message = "the session requests several routes; which one does a client's request mean?";
        let found = Diagnostic::error("not-served", other.span, message).help("serve a program that requests one");
        return Err(Box::new(found));
    }
    let turn = match said {
        Some(block) => block,
        None => {
            let mut told = false;
            let mut lines = String::new();
            for name in &set.names {
                let brings = if hidden.contains(name) {
                    "max_tokens"
                } else if std::mem::replace(&mut told, true) {
                    "0"
                } else {
                    "prompt_tokens"
                };
                lines.push_str(&format!(" set {name} = {brings};"));
            }
            added(sources, "a request's attributes", &format!("request {{{lines} }}")).0
        }
    };
    let request = route.map_or_else(|| "request;".to_owned(), |route| format!("request {route};"));
    let (_, session) = added(sources, "a request", &format!("session {{ turn; {request} }}"));
    workload.items.retain(|item| matches!(item, WorkloadItem::Hidden(..) | WorkloadItem::Init(_)));
    workload.items.push(WorkloadItem::Turn(turn));
    workload.items.extend(session.map(WorkloadItem::Session));
    Ok(())
}

/// The workload of a text of our own: its request's block, and its session.
fn added(sources: &mut SourceMap, name: &str, text: &str) -> (ast::Block, Option<ast::SessionBlock>) {
    let text = format!("workload {{ {text} }}");
    let file = sources.add(name.to_owned(), text.clone());
    let (mut tree, found) = parser::parse(file, &text);
    assert!(found.is_empty(), "{text} is read: {found:?}");
    name_words(std::slice::from_mut(&mut tree));
    let (mut block, mut session) = (ast::Block { stmts: Vec::new(), span: Span::default() }, None);
    for item in tree.items {
        let Item::Workload(workload) = item else { continue };
        for item in workload.items {
            match item {
                WorkloadItem::Request(read, _) => block = read,
                WorkloadItem::Session(read) => session = Some(read),
                _ => {}
            }
        }
    }
    (block, session)
}

fn requests_of<'a>(block: &'a ast::Block, requests: &mut Vec<&'a Option<ast::Name>>) {
    for stmt in &block.stmts {
        match &stmt.kind {
            StmtKind::Request(name) => requests.push(name),
            StmtKind::Branch { then, otherwise, .. } => {
                requests_of(then, requests);
                otherwise.iter().for_each(|block| requests_of(block, requests));
            }
            StmtKind::Loop(body) | StmtKind::Shielded(body) | StmtKind::Fork(body) => requests_of(body, requests),
            StmtKind::Hold(hold) => requests_of(&hold.body, requests),
            _ => {}
        }
    }
}

/// What a block sets, each once, in text order.
#[derive(Default)]
struct Set<'a> {
    names: Vec<&'a str>,
}

impl<'a> Visitor<'a> for Set<'a> {
    fn reads(&mut self, _: &'a ast::Ref) {}

    fn sets(&mut self, name: &'a ast::Name, _mark: bool) {
        if !self.names.contains(&name.text.as_str()) {
            self.names.push(&name.text);
        }
    }
}
