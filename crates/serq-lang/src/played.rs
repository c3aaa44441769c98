//! A program as its clients see it: the sessions come, turn, think and ask, and what serves them
//! is somewhere else.
//!
//! A request is the call of a decode entry. What a client sees of it is when the first token comes
//! and when the answer ends:
//!
//! ```text
//!   decode (x) { …           run «first token» (x);            a request of x prompt tokens goes out
//!     prefill …;        ─▶   mark first_token;                 the marks behind a prefill
//!     mark first_token;      run «rest of the answer» (n);     n: the answer's length
//!     decode …; … }          mark …;                           the marks behind the decode
//! ```
//!
//! Whoever drives the kernel ends the two runs when that happens, so a route's own `observe ttft =
//! D.first_token - asked` is what the client measures. Prefill entries, and what a route runs, moves
//! or holds, are the server's and become nothing. What is set there nobody here knows: it is NaN, and
//! where time went by unseen stands a `set` of [`LEFT_OUT`].

use crate::ast::{self, ExprKind, Item, QueueItem, StmtKind, WorkloadItem};
use crate::diagnostic::Diagnostic;
use crate::source::Span;
use crate::walk::{self, Visitor};

/// The stage on which a request waits for its first token; its work is the prompt's length.
pub const FIRST_TOKEN: &str = "first token";
/// The stage on which it waits for the rest; its work is the answer's length.
pub const ANSWER: &str = "rest of the answer";
/// How the name of an attribute ends that is set where the server does something unseen.
pub const LEFT_OUT: &str = "left out";

/// When something is marked, as far as a client can tell.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum When {
    Unseen,
    FirstToken,
    End,
}

/// What the entries of a queue say.
#[derive(Default)]
struct Said {
    marks: Vec<(String, When)>,
    /// What is set, and nobody here knows.
    sets: Vec<String>,
    observes: Vec<String>,
}

/// Makes clients of the sessions.
///
/// # Errors
///
/// A program in which no request can be told.
pub(crate) fn rewrite(files: &mut [ast::File]) -> Result<(), Box<Diagnostic>> {
    let is_decode = |item: &QueueItem| matches!(item, QueueItem::Entry(entry) if entry.verb.text == "decode");
    let asks = |item: &Item| matches!(item, Item::Queue(queue) if queue.items.iter().any(is_decode));
    if !files.iter().flat_map(|file| &file.items).any(asks) {
        let message = "no queue has a `decode` entry, and a call of one is what a client's request is";
        let help = "write `queue D : decode { … decode (x) { … } }`, and call it in a route: `D.decode (prompt);`";
        return Err(Box::new(Diagnostic::error("not-played", None, message).help(help)));
    }
    refuse_forked_requests(files)?;
    let answer = answer_of(files)?;
    let definitions: Vec<ast::Def> = files
        .iter()
        .flat_map(|file| &file.items)
        .filter_map(|item| match item {
            Item::Def(def) if matches!(def.body, ast::DefBody::Block(_)) => Some(def.clone()),
            _ => None,
        })
        .collect();
    let mut used = Vec::new();
    let mut shares = false;
    for item in files.iter_mut().flat_map(|file| &mut file.items) {
        match item {
            Item::Server(server) => strip(&mut server.body, &mut used),
            Item::Session(session) => shares |= drop_sources(&mut session.body),
            Item::Workload(workload) => {
                for part in &mut workload.items {
                    if let WorkloadItem::Session(session) = part {
                        shares |= drop_sources(&mut session.body);
                    }
                }
            }
            Item::Queue(queue) => play_queue(queue, &definitions, &answer, &mut used),
            _ => {}
        }
    }
    add_definitions(files, &definitions, used);
    let stage = |name: &str| {
        let kind = ast::StageKind { kind: ast::StageKindKind::Delay, span: Span::default() };
        Item::Stage(ast::Stage { name: name_of(name), size: None, kind, span: Span::default() })
    };
    for file in files {
        // The flows between queues are the server's.
        file.items.retain(|item| match item {
            Item::Relation(_) => false,
            Item::Share(_) => shares,
            _ => true,
        });
        if file.items.iter().any(|item| matches!(item, Item::Queue(_))) {
            file.items.splice(0..0, [stage(FIRST_TOKEN), stage(ANSWER)]);
        }
    }
    Ok(())
}

/// A leg that asks for nothing is the server's. One that does, or is the session's own, is not played.
fn refuse_forked_requests(files: &[ast::File]) -> Result<(), Box<Diagnostic>> {
    let mut found = None;
    for file in files {
        let mut legs = Legs::default();
        walk::statements(file, &mut legs);
        let asks = |fork: &&ast::Stmt| {
            let mut leg = Asks::default();
            walk::stmt(fork, &mut leg);
            leg.decodes
        };
        let mut own = Legs::default();
        for item in &file.items {
            match item {
                Item::Session(session) => walk::block(&session.body, &mut own),
                Item::Workload(workload) => workload.items.iter().for_each(|item| {
                    if let WorkloadItem::Session(session) = item {
                        walk::block(&session.body, &mut own);
                    }
                }),
                _ => {}
            }
        }
        found = found.or(legs.forks.iter().copied().find(asks).or(own.forks.first().copied()));
    }
    let Some(fork) = found else { return Ok(()) };
    let message = "a client's session does one thing after another: it asks for nothing in a `fork`'s leg";
    let span = Span { end: fork.span.start + 4, ..fork.span };
    let help = "play the program with the leg's statements before what follows it";
    Err(Box::new(Diagnostic::error("not-played", span, message).help(help)))
}

/// Every `fork`.
#[derive(Default)]
struct Legs<'a> {
    forks: Vec<&'a ast::Stmt>,
}

impl<'a> Visitor<'a> for Legs<'a> {
    fn reads(&mut self, _: &'a ast::Ref) {}

    fn forks(&mut self, fork: &'a ast::Stmt) {
        self.forks.push(fork);
    }
}

/// Whether decode entries are called.
#[derive(Default)]
struct Asks {
    decodes: bool,
}

impl<'a> Visitor<'a> for Asks {
    fn reads(&mut self, _: &'a ast::Ref) {}

    fn enters(&mut self, entry: &'a ast::Ref) {
        self.decodes |= entry.field.as_ref().is_some_and(|verb| verb.text == "decode");
    }
}

/// The attribute that is an answer's length: the one set to plain `max_tokens` where the program says what
/// a request brings, else the only hidden one.
fn answer_of(files: &[ast::File]) -> Result<ast::Name, Box<Diagnostic>> {
    let mut hidden: Vec<&ast::Name> = Vec::new();
    let mut said: Vec<&ast::Name> = Vec::new();
    let items = files.iter().flat_map(|file| &file.items);
    for part in items.filter_map(|item| if let Item::Workload(w) = item { Some(&w.items) } else { None }).flatten() {
        match part {
            WorkloadItem::Hidden(names, _) => hidden.extend(names),
            WorkloadItem::Request(block, _) => said.extend(block.stmts.iter().filter_map(|stmt| match &stmt.kind {
                StmtKind::Set(name, value) if is_plain(value, "max_tokens") => Some(name),
                _ => None,
            })),
            _ => {}
        }
    }
    if hidden.len() > 1 {
        // What a program makes of a trace's `out` is meant, not `out`.
        hidden.retain(|name| name.text != "out");
    }
    match (&said[..], &hidden[..]) {
        ([one], _) | ([], [one]) => Ok((*one).clone()),
        (all, _) => {
            let message = match all {
                [] => "which attribute is an answer's length?",
                _ => "several attributes are an answer's length",
            };
            let span = said.get(1).or(hidden.get(1)).map(|name| name.span);
            let help = "say it in the workload: `hidden answer;` and `request { … set answer = max_tokens; }`";
            Err(Box::new(Diagnostic::error("not-played", span, message).help(help)))
        }
    }
}

fn is_plain(expr: &ast::Expr, word: &str) -> bool {
    match &expr.kind {
        ExprKind::Paren(inner) => is_plain(inner, word),
        ExprKind::Ref(reference) => {
            reference.index.is_none() && reference.field.is_none() && reference.name.text == word
        }
        _ => false,
    }
}

/// Writes a queue's entries as clients see them.
fn play_queue(queue: &mut ast::Queue, definitions: &[ast::Def], answer: &ast::Name, used: &mut Vec<String>) {
    let mut said = Said::default();
    for item in &mut queue.items {
        let QueueItem::Entry(entry) = item else { continue };
        match entry.verb.text.as_str() {
            "route" => strip(&mut entry.body, used),
            "decode" => said.hear(&entry.body, definitions, &mut When::Unseen, 0),
            _ => {
                let mut unseen = Said::default();
                unseen.hear(&entry.body, definitions, &mut When::Unseen, 0);
                let mut names = unseen.sets;
                names.extend(unseen.marks.into_iter().map(|(name, _)| name));
                names.push(LEFT_OUT.to_owned());
                entry.body.stmts = names.iter().map(|name| unknown(name, entry.span)).collect();
            }
        }
    }
    let is_read = |item: &QueueItem| matches!(item, QueueItem::Entry(e) if e.verb.text == "decode" && e.from.is_some());
    queue.items.retain(|item| !is_read(item));
    for item in &mut queue.items {
        let QueueItem::Entry(entry) = item else { continue };
        let (true, Some([parameter])) = (entry.verb.text == "decode", entry.parameters.as_deref()) else { continue };
        let at = entry.span;
        let work = |name: &ast::Name| {
            let value = expr(ExprKind::Ref(reference(&name.text)), at);
            expr(ExprKind::Call(name_of("max"), vec![value, number(1.0, at)]), at)
        };
        let run = |stage: &str, work: ast::Expr| {
            stmt(
                StmtKind::Run {
                    stages: vec![reference(stage)],
                    mode: None,
                    work,
                    then: None,
                    growing: None,
                    reads: None,
                },
                at,
            )
        };
        let marks = |when: When| {
            let marked = said.marks.iter().filter(move |(_, at)| *at == when);
            marked.map(|(name, _)| stmt(StmtKind::Mark(name_of(name)), at))
        };
        let unseen = said.marks.iter().filter(|(_, when)| *when == When::Unseen).map(|(name, _)| name);
        let mut stmts: Vec<ast::Stmt> = said.sets.iter().chain(unseen).map(|name| unknown(name, at)).collect();
        stmts.push(run(FIRST_TOKEN, work(parameter)));
        stmts.extend(marks(When::FirstToken));
        stmts.push(run(ANSWER, work(answer)));
        stmts.extend(marks(When::End));
        // Named, so that it can be had from the server.
        stmts.extend(said.observes.iter().map(|name| stmt(StmtKind::Observe(name_of(name), nothing(at)), at)));
        entry.body.stmts = stmts;
    }
}

impl Said {
    fn hear(&mut self, block: &ast::Block, definitions: &[ast::Def], when: &mut When, depth: usize) {
        for one in &block.stmts {
            match &one.kind {
                StmtKind::Mark(name) => self.mark(name, *when),
                StmtKind::Set(name, value) if is_plain(value, "now") => self.mark(name, *when),
                StmtKind::Set(name, _) | StmtKind::Choose(name, ..) if !self.sets.contains(&name.text) => {
                    self.sets.push(name.text.clone());
                }
                StmtKind::Observe(name, _) if !self.observes.contains(&name.text) => {
                    self.observes.push(name.text.clone());
                }
                StmtKind::Run { mode, then, .. } => {
                    let decodes = *mode == Some(ast::Mode::Decode);
                    self.hear_run(
                        *mode == Some(ast::Mode::Prefill),
                        decodes,
                        then.as_deref(),
                        definitions,
                        when,
                        depth,
                    );
                }
                StmtKind::Serve { form, then, .. } => {
                    let (prefills, decodes) = (*form == ast::Form::Prefill, *form == ast::Form::Decode);
                    self.hear_run(prefills, decodes, then.as_deref(), definitions, when, depth);
                }
                StmtKind::Hold(hold) => self.hear(&hold.body, definitions, when, depth),
                StmtKind::Loop(body) | StmtKind::Shielded(body) | StmtKind::Fork(body) => {
                    self.hear(body, definitions, when, depth);
                }
                StmtKind::Branch { then, otherwise, .. } => {
                    let (before, mut other) = (*when, *when);
                    self.hear(then, definitions, when, depth);
                    if let Some(otherwise) = otherwise {
                        self.hear(otherwise, definitions, &mut other, depth);
                    }
                    *when = (*when).max(other).max(before);
                }
                // One that uses itself is refused where it is linked.
                StmtKind::Use(name, _) if depth < definitions.len() => {
                    if let Some(ast::DefBody::Block(body)) =
                        definitions.iter().find(|def| def.name.text == name.text).map(|def| &def.body)
                    {
                        self.hear(body, definitions, when, depth + 1);
                    }
                }
                _ => {}
            }
        }
    }

    fn hear_run(
        &mut self,
        prefills: bool,
        decodes: bool,
        then: Option<&ast::Then>,
        definitions: &[ast::Def],
        when: &mut When,
        depth: usize,
    ) {
        if prefills {
            *when = (*when).max(When::FirstToken);
        }
        if let Some(then) = then {
            self.hear(&then.body, definitions, when, depth);
        }
        if decodes || then.is_some() {
            *when = When::End;
        }
    }

    /// A mark; `first_token` is that wherever it stands.
    fn mark(&mut self, name: &ast::Name, when: When) {
        let when = if name.text == "first_token" { When::FirstToken } else { when };
        match self.marks.iter_mut().find(|(known, _)| *known == name.text) {
            Some((_, known)) => *known = (*known).max(when),
            None => self.marks.push((name.text.clone(), when)),
        }
        self.sets.retain(|set| *set != name.text);
    }
}

/// Leaves out of a route what the server does.
fn strip(block: &mut ast::Block, used: &mut Vec<String>) {
    let mut stmts = Vec::new();
    for mut one in std::mem::take(&mut block.stmts) {
        let at = one.span;
        match &mut one.kind {
            StmtKind::Run { then, .. } | StmtKind::Serve { then, .. } => {
                stmts.push(unknown(LEFT_OUT, at));
                if let Some(mut then) = then.take() {
                    strip(&mut then.body, used);
                    stmts.append(&mut then.body.stmts);
                }
                continue;
            }
            StmtKind::Transfer { .. } => {
                stmts.push(unknown(LEFT_OUT, at));
                continue;
            }
            StmtKind::Grow(..) | StmtKind::Load(..) | StmtKind::Drop(_) | StmtKind::Release(..) | StmtKind::Fail => {
                continue;
            }
            // What a leg sets nobody else sees.
            StmtKind::Fork(_) | StmtKind::Join => {
                stmts.push(unknown(LEFT_OUT, at));
                continue;
            }
            StmtKind::Hold(hold) => {
                stmts.push(unknown(LEFT_OUT, at));
                stmts.extend(hold.bindings.iter().map(|(name, _)| unknown(&name.text, at)));
                strip(&mut hold.body, used);
                stmts.append(&mut hold.body.stmts);
                continue;
            }
            StmtKind::Call { target, from, to, .. } => {
                if target.field.as_ref().is_some_and(|verb| verb.text == "transfer") {
                    stmts.push(unknown(LEFT_OUT, at));
                    continue;
                }
                (*from, *to) = (None, None);
            }
            StmtKind::Branch { then, otherwise, .. } => {
                strip(then, used);
                otherwise.iter_mut().for_each(|block| strip(block, used));
            }
            StmtKind::Loop(body) | StmtKind::Shielded(body) => strip(body, used),
            StmtKind::Use(name, _) => {
                used.push(name.text.clone());
                name.text = played(&name.text);
            }
            _ => {}
        }
        stmts.push(one);
    }
    block.stmts = stmts;
}

/// A session may call entries itself: nothing is read from anywhere. Answers whether it runs over several
/// stages.
fn drop_sources(block: &mut ast::Block) -> bool {
    let mut shares = false;
    for one in &mut block.stmts {
        shares |= match &mut one.kind {
            StmtKind::Call { from, .. } => {
                *from = None;
                false
            }
            StmtKind::Branch { then, otherwise, .. } => {
                drop_sources(then) | otherwise.as_mut().is_some_and(drop_sources)
            }
            StmtKind::Loop(body) | StmtKind::Shielded(body) => drop_sources(body),
            StmtKind::Hold(hold) => drop_sources(&mut hold.body),
            StmtKind::Run { stages, .. } => stages.len() > 1,
            StmtKind::Transfer { on, .. } => on.len() > 1,
            _ => false,
        };
    }
    shares
}

/// The definitions that routes use, as clients see them, each behind the one it is of.
fn add_definitions(files: &mut [ast::File], definitions: &[ast::Def], mut used: Vec<String>) {
    let mut added: Vec<ast::Def> = Vec::new();
    while let Some(name) = used.pop() {
        let known = added.iter().any(|def| def.name.text == played(&name));
        let Some(def) = definitions.iter().find(|def| def.name.text == name).filter(|_| !known) else { continue };
        let mut def = def.clone();
        def.name.text = played(&name);
        if let ast::DefBody::Block(body) = &mut def.body {
            strip(body, &mut used);
        }
        added.push(def);
    }
    for file in files {
        let items = std::mem::take(&mut file.items);
        for item in items {
            let copy = match &item {
                Item::Def(def) => added.iter().position(|copy| copy.name.text == played(&def.name.text)),
                _ => None,
            };
            file.items.push(item);
            file.items.extend(copy.map(|at| Item::Def(added.swap_remove(at))));
        }
    }
}

/// A name no text has.
fn played(name: &str) -> String {
    format!("{name}, played")
}

fn name_of(text: &str) -> ast::Name {
    ast::Name { text: text.to_owned(), span: Span::default() }
}

fn reference(name: &str) -> ast::Ref {
    ast::Ref { name: name_of(name), index: None, field: None, span: Span::default() }
}

fn stmt(kind: StmtKind, span: Span) -> ast::Stmt {
    ast::Stmt { kind, span }
}

fn expr(kind: ExprKind, span: Span) -> ast::Expr {
    ast::Expr { kind, span }
}

fn number(value: f64, span: Span) -> ast::Expr {
    expr(ExprKind::Number(value), span)
}

/// NaN.
fn nothing(span: Span) -> ast::Expr {
    let zero = || Box::new(number(0.0, span));
    expr(ExprKind::Binary(serq_ir::Binary::Divide, zero(), zero()), span)
}

fn unknown(name: &str, span: Span) -> ast::Stmt {
    stmt(StmtKind::Set(name_of(name), nothing(span)), span)
}
