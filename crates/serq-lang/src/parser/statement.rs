//! Blocks and statements.

use serq_ir::DEPTH_MAX;

use super::{Parser, Place, Read, Stop};
use crate::ast::{Block, Expr, Form, Grab, Hold, Mode, Otherwise, Reads, Ref, Stmt, StmtKind, Then};
use crate::diagnostic::Diagnostic;
use crate::lexer::TokenKind;
use crate::source::Span;

/// The words that begin a statement.
pub(super) const STATEMENTS: &[&str] = &[
    "set", "observe", "mark", "turn", "end", "request", "hold", "grow", "load", "drop", "release", "run", "prefill",
    "decode", "tool", "transfer", "branch", "loop", "shielded", "choose", "fork", "join", "fail",
];

impl Parser<'_> {
    pub(super) fn block(&mut self) -> Read<Block> {
        let first = self.at;
        if self.kind() == TokenKind::BraceOpen && self.blocks >= DEPTH_MAX {
            let stop = self.too_deep();
            self.skip_block();
            return Err(stop);
        }
        self.blocks += 1;
        let stmts = self.braced(Place::Inner, Self::statement, Self::skip_statement);
        self.blocks -= 1;
        Ok(Block { stmts: stmts?, span: self.span_from(first) })
    }

    /// Over the rest of a statement, reading the blocks that belong to it.
    fn skip_statement(&mut self) {
        loop {
            match self.kind() {
                TokenKind::Semicolon => return self.advance(),
                TokenKind::End | TokenKind::BraceClose => return,
                TokenKind::BraceOpen => {
                    // What it holds is reported; what it means is not known.
                    let _ = self.block();
                    if !matches!(self.word(), Some("else" | "cache" | "lease" | "decode")) {
                        return;
                    }
                }
                _ if self.begins_item(Place::Inner) => return,
                _ if self.begins_word(STATEMENTS) => return,
                _ => self.advance(),
            }
        }
    }

    fn statement(&mut self) -> Read<Stmt> {
        let first = self.at;
        let kind = self.statement_kind()?;
        Ok(Stmt { kind, span: self.span_from(first) })
    }

    fn statement_kind(&mut self) -> Read<StmtKind> {
        let Some(word) = self.word() else {
            return Err(self.no_statement());
        };
        if self.begins_call(word) {
            return self.call();
        }
        let keyword = self.token().span;
        let first = self.at;
        self.advance();
        Ok(match word {
            "set" => {
                let (name, value) = self.assignment("the attribute's name")?;
                StmtKind::Set(name, value)
            }
            "observe" => {
                let (name, value) = self.assignment("the observation's name")?;
                StmtKind::Observe(name, value)
            }
            "mark" => {
                let name = self.name("the moment's name")?;
                self.semicolon(STATEMENTS)?;
                StmtKind::Mark(name)
            }
            "turn" => {
                self.semicolon(STATEMENTS)?;
                StmtKind::Turn
            }
            "end" => {
                self.semicolon(STATEMENTS)?;
                StmtKind::End
            }
            "fail" => {
                self.semicolon(STATEMENTS)?;
                StmtKind::Fail
            }
            "request" => {
                let forgotten = self.begins_line(self.at);
                let name = match self.kind() {
                    TokenKind::Name if !forgotten => Some(self.name("a queue's name")?),
                    _ => None,
                };
                self.semicolon(STATEMENTS)?;
                StmtKind::Request(name)
            }
            "hold" => self.hold()?,
            "grow" => {
                let (pool, units) = self.reference_and_amount()?;
                self.semicolon(STATEMENTS)?;
                StmtKind::Grow(pool, units)
            }
            "load" => {
                let (pool, units) = self.reference_and_amount()?;
                self.semicolon(STATEMENTS)?;
                StmtKind::Load(pool, units)
            }
            "drop" => {
                let pool = self.reference("a pool's name")?;
                self.semicolon(STATEMENTS)?;
                StmtKind::Drop(pool)
            }
            "release" => {
                let pool = self.reference("a pool's name")?;
                let after = if self.eat_word("after") { Some(self.parenthesised()?) } else { None };
                self.semicolon(STATEMENTS)?;
                StmtKind::Release(pool, after)
            }
            "run" => self.run_statement()?,
            "prefill" => self.serve_form(Form::Prefill)?,
            "decode" => self.serve_form(Form::Decode)?,
            "tool" => self.serve_form(Form::Tool)?,
            "transfer" => self.transfer(keyword)?,
            "branch" => self.branch()?,
            "loop" => StmtKind::Loop(self.block()?),
            "shielded" => StmtKind::Shielded(self.block()?),
            "choose" => {
                let name = self.name("the attribute's name")?;
                self.expect_word("in")?;
                let count = self.expression()?;
                self.expect_word("by")?;
                let keys = self.expressions(false)?;
                self.semicolon(STATEMENTS)?;
                StmtKind::Choose(name, count, keys)
            }
            "fork" => StmtKind::Fork(self.block()?),
            "join" => {
                self.semicolon(STATEMENTS)?;
                StmtKind::Join
            }
            _ if self.kind() == TokenKind::ParenOpen && !self.call_has_block() => {
                self.layout.hugging.push(self.at);
                let arguments = self.expressions(true)?;
                self.semicolon(STATEMENTS)?;
                let name = crate::ast::Name { text: word.to_owned(), span: keyword };
                StmtKind::Use(name, arguments)
            }
            _ => {
                self.at = first;
                return Err(self.no_statement());
            }
        })
    }

    /// `Q.verb (` or `Q[i].verb (`, also when the queue's name is a statement's word.
    fn begins_call(&self, word: &str) -> bool {
        match self.kind_ahead(1) {
            TokenKind::Dot => true,
            TokenKind::BracketOpen if matches!(word, "prefill" | "decode" | "tool" | "transfer") => {
                self.after_pair(self.at + 1) == TokenKind::Dot
            }
            TokenKind::BracketOpen => true,
            _ => false,
        }
    }

    /// `while (x) {`: a word no statement begins with, before a block.
    fn call_has_block(&self) -> bool {
        self.after_pair(self.at) == TokenKind::BraceOpen
    }

    /// The token behind the `)` or `]` that closes the pair opened at `index`.
    fn after_pair(&self, index: usize) -> TokenKind {
        let mut open = 0_usize;
        for (offset, token) in self.tokens[index..].iter().enumerate() {
            match token.kind {
                TokenKind::BracketOpen | TokenKind::ParenOpen => open += 1,
                TokenKind::BracketClose | TokenKind::ParenClose => open -= 1,
                TokenKind::Semicolon | TokenKind::BraceOpen | TokenKind::BraceClose => break,
                _ => {}
            }
            if open == 0 {
                return self.tokens.get(index + offset + 1).map_or(TokenKind::End, |next| next.kind);
            }
        }
        TokenKind::End
    }

    fn no_statement(&mut self) -> Stop {
        let Some(word) = self.word() else {
            if self.kind() == TokenKind::Semicolon {
                return self.stray_semicolon();
            }
            return self.unexpected("a statement");
        };
        let span = self.token().span;
        let message = format!("no statement begins with `{}`", crate::lexer::shorten(word));
        let diagnostic = Diagnostic::error("unknown-statement", span, message);
        let short = crate::lexer::shorten(word);
        let near = crate::nearest::nearest(word, STATEMENTS.iter().copied());
        let help = match word {
            _ if self.kind_ahead(1) == TokenKind::Assign => {
                format!("to assign, write `set {short} = …;`")
            }
            "if" => "write `branch (condition) { … } else { … }`".to_owned(),
            "while" | "for" => "write `loop { … }` and leave it with `end;`".to_owned(),
            "else" => "`else` stands directly behind the block of a `branch`".to_owned(),
            "cache" | "lease" | "reuse" | "reserve" => format!("`{short}` belongs to a `hold`"),
            "renewed" | "abandoned" => format!("`{short}` stands behind the `lease` of a `hold`"),
            "return" | "break" => "a session is left with `end;`".to_owned(),
            "let" => "`let` stands outside of sessions; to assign here, write `set`".to_owned(),
            _ => match near {
                Some(near) => format!("write `{near}`"),
                None => format!("write {}", crate::nearest::list(STATEMENTS)),
            },
        };
        self.report(diagnostic.help(help))
    }

    pub(super) fn stray_semicolon(&mut self) -> Stop {
        let diagnostic = Diagnostic::error("stray-semicolon", self.token().span, "this `;` ends nothing");
        let after_block = self.at > 0 && self.tokens[self.at - 1].kind == TokenKind::BraceClose;
        let help = match after_block {
            true => "leave it out: a block needs no `;` behind it",
            false => "leave it out",
        };
        // Left standing: whoever skips to the next `;` is there at once.
        self.report(diagnostic.help(help))
    }

    /// `NAME = expr ;`
    fn assignment(&mut self, what: &str) -> Read<(crate::ast::Name, crate::ast::Expr)> {
        let name = self.name(what)?;
        self.expect(TokenKind::Assign)?;
        Ok((name, self.value(STATEMENTS)?))
    }

    /// `ref ( expr )`
    fn reference_and_amount(&mut self) -> Read<(Ref, crate::ast::Expr)> {
        Ok((self.reference("a pool's name")?, self.parenthesised()?))
    }

    fn hold(&mut self) -> Read<StmtKind> {
        let mut grabs = Vec::new();
        loop {
            let (pool, units) = self.reference_and_amount()?;
            let reserve = match self.eat_word("reserve") {
                true => Some(self.parenthesised()?),
                false => None,
            };
            grabs.push(Grab { pool, units, reserve });
            if !self.eat(TokenKind::Comma) {
                break;
            }
        }
        let reuse = match self.eat_word("reuse") {
            true => Some(self.parenthesised()?),
            false => None,
        };
        let mut bindings = Vec::new();
        if self.is_word("at") {
            self.advance();
            self.expect_word("admission")?;
            let open = self.at;
            self.expect(TokenKind::ParenOpen)?;
            loop {
                let name = self.name("the name of what is read at admission")?;
                self.expect(TokenKind::Assign)?;
                bindings.push((name, self.expression()?));
                if !self.eat(TokenKind::Comma) {
                    break;
                }
            }
            self.close(TokenKind::ParenClose, open)?;
        }
        if let Some(word @ ("reserve" | "reuse" | "at" | "cache" | "lease")) = self.word() {
            return Err(self.misplaced(word));
        }
        let body = self.block()?;
        let cache = match self.eat_word("cache") {
            true => Some(self.parenthesised()?),
            false => None,
        };
        let lease = match self.eat_word("lease") {
            true => Some(self.reference_and_amount()?),
            false => None,
        };
        let renewed = match lease.is_some() && self.eat_word("renewed") {
            true => {
                let time = self.expression()?;
                self.expect_word("every")?;
                Some((time, self.expression()?))
            }
            false => None,
        };
        let abandoned = match lease.is_some() && self.eat_word("abandoned") {
            true => Some(self.parenthesised()?),
            false => None,
        };
        // A word that would be a clause is no statement: these end none.
        if let Some(word @ ("cache" | "lease" | "reuse" | "reserve")) = self.word() {
            self.misplaced(word);
            return Err(Stop);
        }
        if self.kind() == TokenKind::Semicolon {
            // Behind a clause it reads as the end of the statement, behind the block as noise.
            if cache.is_none() && lease.is_none() {
                self.layout.idle.push(self.at);
            }
            self.advance();
        }
        Ok(StmtKind::Hold(Box::new(Hold { grabs, reuse, bindings, body, cache, lease, renewed, abandoned })))
    }

    fn misplaced(&mut self, word: &str) -> Stop {
        let message = format!("`{word}` cannot stand here");
        let diagnostic = Diagnostic::error("misplaced-clause", self.token().span, message).help(
            "the order is: hold POOL (units) reserve (r), … reuse (e) at admission (x = e) { … } cache (e) lease POOL (t); each once, `reserve` once a pool",
        );
        self.report(diagnostic)
    }

    fn run_statement(&mut self) -> Read<StmtKind> {
        let mut stages = Vec::new();
        let mut mode = None;
        if self.kind() == TokenKind::Name {
            stages.push(self.reference("a stage's name")?);
            while self.eat(TokenKind::Comma) {
                stages.push(self.reference("a stage's name")?);
            }
            mode = match self.word() {
                Some("prefill") => Some(Mode::Prefill),
                Some("decode") => Some(Mode::Decode),
                _ => None,
            };
            if mode.is_some() {
                self.advance();
            }
        }
        let work = self.parenthesised()?;
        let then = self.then(mode == Some(Mode::Prefill))?;
        let growing = self.growing()?;
        let reads = match self.eat_word("from") {
            true => Some(Box::new(Reads { pool: self.reference("the pool it is read from")?, fails: self.fails()? })),
            false => None,
        };
        self.semicolon(STATEMENTS)?;
        Ok(StmtKind::Run { stages, mode, work, then, growing, reads })
    }

    /// `{ … } decode (n)` behind a prefill's tokens.
    fn then(&mut self, prefill: bool) -> Read<Option<Box<Then>>> {
        if self.kind() != TokenKind::BraceOpen {
            return Ok(None);
        }
        let brace = self.token().span;
        let body = self.block()?;
        if !prefill || !self.eat_word("decode") {
            let diagnostic = Diagnostic::error("unexpected-token", brace, "a block behind the work of a run")
                .help("only a prefill has one, and goes on as a decode: `prefill (n) { … } decode (m)`");
            return Err(self.report(diagnostic));
        }
        Ok(Some(Box::new(Then { body, work: self.parenthesised()? })))
    }

    fn growing(&mut self) -> Read<Option<Ref>> {
        match self.eat_word("growing") {
            true => Ok(Some(self.reference("a pool's name")?)),
            false => Ok(None),
        }
    }

    fn serve_form(&mut self, form: Form) -> Read<StmtKind> {
        let index = self.bracketed()?;
        let mut on = None;
        if index.is_none() && self.is_word("on") && self.kind_ahead(1) == TokenKind::Name {
            self.advance();
            on = Some(self.reference("a stage's name")?);
        }
        let work = self.expression()?;
        let then = self.then(form == Form::Prefill)?;
        let growing = self.growing()?;
        self.semicolon(STATEMENTS)?;
        Ok(StmtKind::Serve { form, index, on, work, then, growing })
    }

    fn transfer(&mut self, keyword: Span) -> Read<StmtKind> {
        let index = self.bracketed()?;
        let mut on = Vec::new();
        if index.is_none() && self.is_word("on") && self.kind_ahead(1) == TokenKind::Name {
            self.advance();
            on.push(self.reference("a stage's name")?);
            while self.eat(TokenKind::Comma) {
                on.push(self.reference("a stage's name")?);
            }
        }
        let work = self.expression()?;
        if !self.is_word("from") {
            let diagnostic = Diagnostic::error(
                "incomplete-transfer",
                keyword,
                "this `transfer` does not say where from and where to",
            )
            .note(self.token().span, format!("expected `from`, found {}", self.found()))
            .help("write `transfer WORK from POOL to POOL (tokens);`; for work alone, `run STAGE (WORK);`");
            return Err(self.report(diagnostic));
        }
        self.advance();
        let from = self.reference("the pool it is read from")?;
        self.expect_word("to")?;
        let to = self.reference("the pool it is read into")?;
        let load = self.parenthesised()?;
        let fails = self.fails()?.map(Box::new);
        let otherwise = match self.eat_word("else") {
            true => Some(Box::new(self.otherwise()?)),
            false => None,
        };
        self.semicolon(STATEMENTS)?;
        Ok(StmtKind::Transfer { index, on, work, from, to, load, fails, otherwise })
    }

    fn fails(&mut self) -> Read<Option<Expr>> {
        if self.eat_word("fails") { self.parenthesised().map(Some) } else { Ok(None) }
    }

    /// `retry k then recompute`
    fn otherwise(&mut self) -> Read<Otherwise> {
        const POLICY: &str = "write `else recompute`, `else error`, or `else retry 2 then` and one of the two";
        let retries = match self.eat_word("retry") {
            true => Some(self.expression()?),
            false => None,
        };
        let then = retries.is_none() || self.eat_word("then");
        let last = self.token().span;
        match self.word() {
            Some(word @ ("recompute" | "error")) if then => {
                let recomputes = word == "recompute";
                self.advance();
                Ok(Otherwise { retries, recomputes, last })
            }
            _ => {
                let message =
                    if then { "what is done when a transfer fails" } else { "what is done after the retries" };
                let diagnostic = Diagnostic::error("failure-policy", last, format!("this does not say {message}"))
                    .note(last, format!("found {}", self.found()))
                    .help(POLICY);
                Err(self.report(diagnostic))
            }
        }
    }

    fn branch(&mut self) -> Read<StmtKind> {
        let chance = self.eat_word("with");
        let test = self.parenthesised()?;
        let then = self.block()?;
        let mut otherwise = None;
        if self.eat_word("else") {
            if self.kind() == TokenKind::BraceOpen {
                otherwise = Some(self.block()?);
            } else {
                let message = format!("expected `{{` after `else`, found {}", self.found());
                let diagnostic = Diagnostic::error("else-needs-block", self.token().span, message)
                    .help("write `else { … }`; a further choice is a `branch` inside that block");
                return Err(self.report(diagnostic));
            }
        }
        Ok(StmtKind::Branch { chance, test, then, otherwise })
    }

    /// `Q[i].verb (…) from P[i] to M (m);`
    fn call(&mut self) -> Read<StmtKind> {
        let target = self.reference("a queue's name")?;
        if target.field.is_none() {
            return Err(self.unexpected("`.` and the entry's name"));
        }
        let arguments = self.expressions(true)?;
        let from = match self.eat_word("from") {
            true => Some(self.reference("the queue it is read from")?),
            false => None,
        };
        let to = match self.eat_word("to") {
            true => Some(self.reference_and_amount()?),
            false => None,
        };
        self.semicolon(STATEMENTS)?;
        Ok(StmtKind::Call { target, arguments, from, to })
    }
}
