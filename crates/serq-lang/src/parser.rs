//! Tokens to tree, by recursive descent over the grammar of `docs/language.md`.
//!
//! A word is a keyword only where the grammar expects one, so `set hold = 2;` and an
//! attribute called `latency` are legal. Every mistake of a text is reported in one go:
//!
//! ```text
//!   mistake ─▶ reported once ─▶ Stop, up to the next list of statements, options
//!                               or items ─▶ skip to where the next one begins
//! ```
//!
//! A statement is skipped up to its `;`, but a block met on the way is read: its
//! statements have mistakes of their own. A missing `}` shows where a declaration
//! begins at the very start of a line.
//!
//! # Invariants
//!
//! - No input is too deep for the stack: expressions and blocks nest at most
//!   [`serq_ir::DEPTH_MAX`] deep, and the trees built are no higher, chains of
//!   left-associative operators included.
//! - One token is reported at most once, and a token the lexer reported never.
//! - A tree without diagnostics covers every token.

mod expression;
mod item;
mod statement;

use crate::ast;
use crate::diagnostic::Diagnostic;
use crate::lexer::{self, ERRORS_MAX, Lexed, Token, TokenKind};
use crate::nearest::{list, nearest};
use crate::source::Span;

/// Reads a program. What could not be read is reported and left out.
pub fn parse(file: u32, text: &str) -> (ast::File, Vec<Diagnostic>) {
    let lexed = lexer::lex(file, text);
    let parsed = parse_lexed(text, &lexed);
    (parsed.file, parsed.diagnostics)
}

/// Reads one expression, as in `--set name=expr`.
pub fn parse_expr(file: u32, text: &str) -> (ast::Expr, Vec<Diagnostic>) {
    let lexed = lexer::lex(file, text);
    let mut parser = Parser::new(text, &lexed);
    let whole = Span {
        file,
        start: 0,
        end: text.len().min(u32::MAX as usize) as u32,
    };
    let expr = parser.expression().and_then(|expr| match parser.kind() {
        TokenKind::End => Ok(expr),
        _ => Err(parser.unexpected("an operator or the end of the expression")),
    });
    let expr = expr.unwrap_or(ast::Expr {
        kind: ast::ExprKind::Error,
        span: whole,
    });
    (expr, parser.finish(&lexed))
}

/// A tree and what the formatter wants to know beside it.
pub(crate) struct Parsed {
    /// What could be read.
    pub(crate) file: ast::File,
    /// The lexer's and the parser's, in text order.
    pub(crate) diagnostics: Vec<Diagnostic>,
    /// How the tokens belong together.
    pub(crate) layout: Layout,
}

/// Facts about tokens (by index) that only the grammar knows.
#[derive(Default)]
pub(crate) struct Layout {
    /// First tokens of items, options and statements.
    pub(crate) units: Vec<usize>,
    /// Opening parentheses written directly behind their name: `f(x)`.
    pub(crate) hugging: Vec<usize>,
    /// Prefix operators.
    pub(crate) prefix: Vec<usize>,
    /// Semicolons that mean nothing.
    pub(crate) idle: Vec<usize>,
}

/// Reads the tokens of a program.
pub(crate) fn parse_lexed(text: &str, lexed: &Lexed) -> Parsed {
    let mut parser = Parser::new(text, lexed);
    let tree = parser.program();
    let layout = std::mem::take(&mut parser.layout);
    Parsed {
        file: tree,
        diagnostics: parser.finish(lexed),
        layout,
    }
}

/// Something was reported; whoever owns the surrounding list goes on from there.
struct Stop;

type Read<T> = Result<T, Stop>;

/// Which list is being read, for what may begin outside of it.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// Options, statements.
    Inner,
    /// A queue's items: pools are its own.
    Queue,
    /// A workload's items: the session is its own.
    Workload,
    /// The program.
    Top,
}

struct Parser<'a> {
    text: &'a str,
    /// The rest was not read as tokens, so the end says nothing.
    cut: bool,
    tokens: &'a [Token],
    at: usize,
    diagnostics: Vec<Diagnostic>,
    /// How often something was to be reported.
    reports: usize,
    /// The last token reported.
    reported: Option<usize>,
    /// Expressions inside expressions, here.
    nesting: usize,
    /// Blocks inside blocks, here.
    blocks: usize,
    layout: Layout,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str, lexed: &'a Lexed) -> Self {
        Self {
            text,
            cut: lexed
                .diagnostics
                .iter()
                .any(|one| matches!(one.code, "unclosed-comment" | "file-too-large")),
            tokens: &lexed.tokens,
            at: 0,
            diagnostics: Vec::new(),
            reports: 0,
            reported: None,
            nesting: 0,
            blocks: 0,
            layout: Layout::default(),
        }
    }

    /// Both phases' diagnostics in text order, at most [`ERRORS_MAX`].
    fn finish(self, lexed: &Lexed) -> Vec<Diagnostic> {
        let mut all = lexed.diagnostics.clone();
        all.extend(self.diagnostics);
        all.sort_by_key(|diagnostic| diagnostic.span.map_or(0, |span| span.start));
        if all.len() > ERRORS_MAX {
            all.truncate(ERRORS_MAX);
            let last = all.last().and_then(|diagnostic| diagnostic.span);
            let message = format!("more errors follow; only the first {ERRORS_MAX} are listed");
            all.push(
                Diagnostic::error("too-many-errors", last, message)
                    .help("mend these first, then look again"),
            );
        }
        all
    }

    // Looking.

    fn token(&self) -> Token {
        self.tokens[self.at]
    }

    fn kind(&self) -> TokenKind {
        self.token().kind
    }

    fn kind_ahead(&self, by: usize) -> TokenKind {
        self.tokens
            .get(self.at + by)
            .map_or(TokenKind::End, |token| token.kind)
    }

    fn spelling_at(&self, index: usize) -> &'a str {
        let span = self.tokens[index].span;
        &self.text[span.start as usize..span.end as usize]
    }

    /// The word here, or nothing where no name stands.
    fn word(&self) -> Option<&'a str> {
        (self.kind() == TokenKind::Name).then(|| self.spelling_at(self.at))
    }

    fn word_ahead(&self, by: usize) -> Option<&'a str> {
        (self.kind_ahead(by) == TokenKind::Name).then(|| self.spelling_at(self.at + by))
    }

    fn is_word(&self, word: &str) -> bool {
        self.word() == Some(word)
    }

    /// True when the token is the first of its line.
    fn begins_line(&self, index: usize) -> bool {
        let start = self.tokens[index].span.start as usize;
        let before = if index == 0 {
            0
        } else {
            self.tokens[index - 1].span.end as usize
        };
        index == 0 || self.text[before..start].contains('\n')
    }

    /// True when one of these words is the first of a line here.
    fn begins_word(&self, words: &[&str]) -> bool {
        self.word().is_some_and(|word| words.contains(&word)) && self.begins_line(self.at)
    }

    /// The span from a token to the last one read.
    fn span_from(&self, first: usize) -> Span {
        let start = self.tokens[first].span;
        if self.at > first {
            start.to(self.tokens[self.at - 1].span)
        } else {
            start
        }
    }

    // Reading.

    fn advance(&mut self) {
        // The last token is the end, and stays.
        if self.at + 1 < self.tokens.len() {
            self.at += 1;
        }
    }

    fn eat(&mut self, kind: TokenKind) -> bool {
        let found = self.kind() == kind;
        if found {
            self.advance();
        }
        found
    }

    fn eat_word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        if found {
            self.advance();
        }
        found
    }

    fn expect(&mut self, kind: TokenKind) -> Read<Span> {
        if self.kind() == kind {
            let span = self.token().span;
            self.advance();
            return Ok(span);
        }
        Err(self.unexpected(&format!("`{}`", kind.text())))
    }

    fn expect_word(&mut self, word: &str) -> Read<Span> {
        if self.is_word(word) {
            let span = self.token().span;
            self.advance();
            return Ok(span);
        }
        Err(self.unexpected(&format!("`{word}`")))
    }

    fn name(&mut self, what: &str) -> Read<ast::Name> {
        match self.word() {
            Some(text) => {
                let span = self.token().span;
                self.advance();
                Ok(ast::Name {
                    text: text.to_owned(),
                    span,
                })
            }
            None => Err(self.unexpected(what)),
        }
    }

    /// `a, b, c`
    fn names(&mut self, what: &str) -> Read<Vec<ast::Name>> {
        let mut names = vec![self.name(what)?];
        while self.eat(TokenKind::Comma) {
            names.push(self.name(what)?);
        }
        Ok(names)
    }

    /// The `)` or `]` of a pair opened at token `open`.
    fn close(&mut self, kind: TokenKind, open: usize) -> Read<Span> {
        if self.kind() == kind {
            let span = self.token().span;
            self.advance();
            return Ok(span);
        }
        let mut diagnostic = Diagnostic::error(
            "unclosed-parenthesis",
            self.token().span,
            format!("expected `{}`, found {}", kind.text(), self.found()),
        )
        .note(self.tokens[open].span, "to close this");
        diagnostic = diagnostic.help(match self.kind() {
            TokenKind::Assign => "to compare, write `==`".to_owned(),
            _ => format!("write `{}` where it ends", kind.text()),
        });
        Err(self.report(diagnostic))
    }

    /// `( expr )`
    fn parenthesised(&mut self) -> Read<ast::Expr> {
        let open = self.at;
        self.expect(TokenKind::ParenOpen)?;
        let expr = self.expression()?;
        self.close(TokenKind::ParenClose, open)?;
        Ok(expr)
    }

    /// `( expr , … )`, `()` where `empty` allows it.
    fn expressions(&mut self, empty: bool) -> Read<Vec<ast::Expr>> {
        let open = self.at;
        self.expect(TokenKind::ParenOpen)?;
        let mut all = Vec::new();
        if empty && self.eat(TokenKind::ParenClose) {
            return Ok(all);
        }
        loop {
            all.push(self.expression()?);
            if !self.eat(TokenKind::Comma) {
                break;
            }
        }
        self.close(TokenKind::ParenClose, open)?;
        Ok(all)
    }

    /// `( NAME , … )` or `()`
    fn parameters(&mut self) -> Read<Vec<ast::Name>> {
        let open = self.at;
        self.expect(TokenKind::ParenOpen)?;
        if self.eat(TokenKind::ParenClose) {
            return Ok(Vec::new());
        }
        let names = self.names("a parameter's name")?;
        self.close(TokenKind::ParenClose, open)?;
        Ok(names)
    }

    /// `[ expr ]` where one stands.
    fn bracketed(&mut self) -> Read<Option<ast::Expr>> {
        let open = self.at;
        if !self.eat(TokenKind::BracketOpen) {
            return Ok(None);
        }
        let expr = self.expression()?;
        self.close(TokenKind::BracketClose, open)?;
        Ok(Some(expr))
    }

    /// `NAME`, `NAME[e]`, `NAME.field`, `NAME[e].field`
    fn reference(&mut self, what: &str) -> Read<ast::Ref> {
        let first = self.at;
        let name = self.name(what)?;
        self.reference_from(first, name)
    }

    fn reference_from(&mut self, first: usize, name: ast::Name) -> Read<ast::Ref> {
        let index = self.bracketed()?.map(Box::new);
        let field = match self.eat(TokenKind::Dot) {
            true => Some(self.name("a name after `.`")?),
            false => None,
        };
        Ok(ast::Ref {
            name,
            index,
            field,
            span: self.span_from(first),
        })
    }

    /// The `;` that ends what began before. Where it is plainly forgotten, it is
    /// reported and reading goes on as if it stood there.
    fn semicolon(&mut self, words: &[&str]) -> Read<()> {
        if self.eat(TokenKind::Semicolon) {
            return Ok(());
        }
        let forgotten = matches!(self.kind(), TokenKind::BraceClose | TokenKind::End)
            || self.begins_line(self.at)
            || self.word().is_some_and(|word| words.contains(&word));
        if !forgotten {
            return Err(self.unexpected("`;`"));
        }
        let message = format!("expected `;`, found {}", self.found());
        let diagnostic = Diagnostic::error("missing-semicolon", self.token().span, message);
        let before = self.spelling_at(self.at.saturating_sub(1));
        let last = self.tokens[self.at.saturating_sub(1)].span;
        let end = Span {
            start: last.end,
            ..last
        };
        self.report(
            diagnostic
                .note(end, "it belongs here")
                .help(format!("write `{};`", lexer::shorten(before))),
        );
        Ok(())
    }

    /// A value and its `;`. A value that cannot be read stands in the tree as an error, so
    /// that the name it is given to is known.
    fn value(&mut self, words: &[&str]) -> Read<ast::Expr> {
        let first = self.at;
        // `let a =` and on the next line `let b = 1;`: a value does not begin like that.
        let forgotten = self.kind_ahead(1) == TokenKind::Name && self.begins_word(words);
        let value = match forgotten {
            true => Err(self.unexpected("an expression")),
            false => self.expression(),
        };
        match value {
            Ok(expr) => {
                if self.semicolon(words).is_err() {
                    self.skip_value(words);
                }
                Ok(expr)
            }
            Err(Stop) => {
                self.skip_value(words);
                Ok(ast::Expr {
                    kind: ast::ExprKind::Error,
                    span: self.span_from(first),
                })
            }
        }
    }

    // Reporting.

    fn found(&self) -> String {
        match self.kind() {
            TokenKind::End => "the end of the text".to_owned(),
            _ => format!("`{}`", lexer::shorten(self.spelling_at(self.at))),
        }
    }

    /// Reports that something else was expected here.
    fn unexpected(&mut self, expected: &str) -> Stop {
        let message = format!("expected {expected}, found {}", self.found());
        let mut diagnostic = Diagnostic::error("unexpected-token", self.token().span, message);
        if let Some(help) = self.help_for_unexpected(expected) {
            diagnostic = diagnostic.help(help);
        }
        self.report(diagnostic)
    }

    fn help_for_unexpected(&self, expected: &str) -> Option<String> {
        let found = self.found();
        let word = match expected
            .strip_prefix('`')
            .and_then(|rest| rest.strip_suffix('`'))
        {
            Some(word) if !word.contains('`') => Some(word),
            _ => None,
        };
        Some(match (self.kind(), word) {
            (TokenKind::String, _) => "only `use` and `trace` take a string".to_owned(),
            (TokenKind::Assign, Some(";")) => "to compare, write `==`".to_owned(),
            (TokenKind::Dot, _) => {
                "a name has no `.` in it; `Q.x` is read where a value stands".to_owned()
            }
            (TokenKind::Name | TokenKind::Number(_), Some("(")) => {
                format!("put it in parentheses: `({} …)`", found.trim_matches('`'))
            }
            (TokenKind::Name, Some(word)) if nearest(found.trim_matches('`'), [word]).is_some() => {
                format!("write `{word}`")
            }
            (TokenKind::Number(_), None) if expected.contains("name") => {
                "a name begins with a letter or `_`".to_owned()
            }
            (_, Some(";")) => {
                format!("end what stands before with `;`, or join {found} to it with an operator")
            }
            (TokenKind::End, Some(word)) => format!("write `{word}`"),
            (_, Some(word)) => format!("write `{word}` before {found}"),
            _ if expected == "an expression" => {
                "a value is a number, a name, a call `f(x)`, a draw `~exp(x)` or `(…)`".to_owned()
            }
            _ if expected.contains("name") => format!("write the name before {found}"),
            _ => return None,
        })
    }

    /// Reports a word that is none of those the place takes.
    fn unknown(&mut self, code: &'static str, what: &str, words: &[&str]) -> Stop {
        let Some(word) = self.word() else {
            return self.unexpected(&format!("{what}: {}", list(words)));
        };
        let message = format!("`{}` is no {what}", lexer::shorten(word));
        // The code is written out for the test that looks for codes.
        let mut diagnostic = match code {
            "unknown-kind" => Diagnostic::error("unknown-kind", self.token().span, message),
            "unknown-item" => Diagnostic::error("unknown-item", self.token().span, message),
            "unknown-statement" => {
                Diagnostic::error("unknown-statement", self.token().span, message)
            }
            _ => Diagnostic::error("unknown-option", self.token().span, message),
        };
        if let Some(near) = nearest(word, words.iter().copied()) {
            diagnostic = diagnostic.help(format!("write `{near}`"));
        } else {
            diagnostic = diagnostic.help(format!("write {}", list(words)));
        }
        self.report(diagnostic)
    }

    fn report(&mut self, diagnostic: Diagnostic) -> Stop {
        let repeated = self.reported == Some(self.at);
        let unread = self.kind() == TokenKind::End && self.cut;
        self.reported = Some(self.at);
        self.reports += 1;
        if !repeated && !unread && self.kind() != TokenKind::Bad {
            self.diagnostics.push(diagnostic);
        }
        // Enough is known of a text like this, and going on after a mistake is what could
        // take long.
        if self.diagnostics.len() > ERRORS_MAX || self.reports > 3 * ERRORS_MAX {
            self.at = self.tokens.len() - 1;
        }
        Stop
    }

    // Going on after a mistake.

    /// Over the rest of a value, its `;` included, up to what may come after it.
    fn skip_value(&mut self, words: &[&str]) {
        loop {
            match self.kind() {
                TokenKind::Semicolon => return self.advance(),
                TokenKind::End | TokenKind::BraceClose => return,
                TokenKind::BraceOpen => return self.skip_block(),
                _ if self.begins_word(words) || self.begins_item(Place::Inner) => return,
                _ => self.advance(),
            }
        }
    }

    /// Over the rest of an item or option: up to its `;`, over its block, or up to what
    /// plainly begins outside.
    fn skip_item(&mut self, place: Place) {
        let first = self.at;
        loop {
            match self.kind() {
                TokenKind::Semicolon => return self.advance(),
                TokenKind::End | TokenKind::BraceClose => return,
                TokenKind::BraceOpen => {
                    self.skip_block();
                    self.eat(TokenKind::Semicolon);
                    return;
                }
                _ if self.at > first && self.begins_item(place) => return,
                _ => self.advance(),
            }
        }
    }

    /// Over `{ … }`, without reading it.
    fn skip_block(&mut self) {
        let mut open = 0_usize;
        loop {
            match self.kind() {
                TokenKind::BraceOpen => open += 1,
                TokenKind::BraceClose => open -= 1,
                TokenKind::End => return,
                _ if self.begins_item(Place::Inner) => return,
                _ => {}
            }
            self.advance();
            if open == 0 {
                return;
            }
        }
    }

    /// True where a declaration begins that cannot stand in `place`: at the start of a
    /// line (at the top: anywhere), with the shape of one.
    fn begins_item(&self, place: Place) -> bool {
        let Some(word) = self.word() else {
            return false;
        };
        let start = self.token().span.start as usize;
        if place != Place::Top && start > 0 && !self.text[..start].ends_with('\n') {
            return false;
        }
        use TokenKind::{
            Assign, BraceOpen, BracketOpen, Colon, Name, ParenOpen, Semicolon, String,
        };
        let named =
            |then: &[TokenKind]| self.kind_ahead(1) == Name && then.contains(&self.kind_ahead(2));
        match word {
            "let" | "gauge" => named(&[Assign]),
            "use" => self.kind_ahead(1) == String,
            "def" => named(&[ParenOpen]),
            "pool" => place != Place::Queue && named(&[BraceOpen, BracketOpen]),
            "stage" => named(&[Colon, BracketOpen]),
            "queue" => named(&[BraceOpen, BracketOpen, Colon]),
            "share" => named(&[Semicolon]),
            "session" => place != Place::Workload && self.kind_ahead(1) == BraceOpen,
            "workload" | "server" | "run" => self.kind_ahead(1) == BraceOpen,
            _ => false,
        }
    }

    /// `{ … }` with what `read` reads, one after another, however many of them fail.
    fn braced<T>(
        &mut self,
        place: Place,
        mut read: impl FnMut(&mut Self) -> Read<T>,
        skip: impl Fn(&mut Self),
    ) -> Read<Vec<T>> {
        let open = self.at;
        self.expect(TokenKind::BraceOpen)?;
        let mut all = Vec::new();
        loop {
            if self.eat(TokenKind::BraceClose) {
                return Ok(all);
            }
            if self.kind() == TokenKind::End || self.begins_item(place) {
                let diagnostic = Diagnostic::error(
                    "unclosed-block",
                    self.token().span,
                    format!("expected `}}`, found {}", self.found()),
                );
                self.report(
                    diagnostic
                        .note(self.tokens[open].span, "to close this")
                        .help("write `}` where it ends"),
                );
                return Ok(all);
            }
            let first = self.at;
            self.layout.units.push(first);
            match read(self) {
                Ok(one) => all.push(one),
                Err(Stop) => skip(self),
            }
            if self.at == first {
                self.advance();
            }
        }
    }
}
