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

mod arrival;
mod expression;
mod item;
mod mistake;
mod statement;

use crate::ast;
use crate::diagnostic::Diagnostic;
use crate::lexer::{self, ERRORS_MAX, Lexed, Token, TokenKind};
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
    let whole = Span { file, start: 0, end: text.len().min(u32::MAX as usize) as u32 };
    let expr = parser.expression().and_then(|expr| match parser.kind() {
        TokenKind::End => Ok(expr),
        _ => Err(parser.unexpected("an operator or the end of the expression")),
    });
    let expr = expr.unwrap_or(ast::Expr { kind: ast::ExprKind::Error, span: whole });
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
    Parsed { file: tree, diagnostics: parser.finish(lexed), layout }
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
            cut: lexed.diagnostics.iter().any(|one| matches!(one.code, "unclosed-comment" | "file-too-large")),
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
            all.push(Diagnostic::error("too-many-errors", last, message).help("mend these first, then look again"));
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
        self.tokens.get(self.at + by).map_or(TokenKind::End, |token| token.kind)
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
        let before = if index == 0 { 0 } else { self.tokens[index - 1].span.end as usize };
        index == 0 || self.text[before..start].contains('\n')
    }

    /// True when one of these words is the first of a line here.
    fn begins_word(&self, words: &[&str]) -> bool {
        self.word().is_some_and(|word| words.contains(&word)) && self.begins_line(self.at)
    }

    /// The span from a token to the last one read.
    fn span_from(&self, first: usize) -> Span {
        let start = self.tokens[first].span;
        if self.at > first { start.to(self.tokens[self.at - 1].span) } else { start }
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
                Ok(ast::Name { text: text.to_owned(), span })
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
        Ok(ast::Ref { name, index, field, span: self.span_from(first) })
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
        let end = Span { start: last.end, ..last };
        self.report(diagnostic.note(end, "it belongs here").help(format!("write `{};`", lexer::shorten(before))));
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
                Ok(ast::Expr { kind: ast::ExprKind::Error, span: self.span_from(first) })
            }
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
                self.report(diagnostic.note(self.tokens[open].span, "to close this").help("write `}` where it ends"));
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
