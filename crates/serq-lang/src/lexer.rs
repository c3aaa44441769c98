//! Text to tokens.
//!
//! Total: any text gives tokens, comments and diagnostics, and the last token is
//! always [`TokenKind::End`]. What cannot be a token becomes [`TokenKind::Bad`],
//! already reported, so that the parser neither reports it again nor joins what
//! stands on either side of it. Words are names here; which names are keywords
//! is a question of place, and the parser's.
//!
//! # Invariants
//!
//! - Tokens and comments together cover every byte that is not white space, in
//!   text order, without overlap. The formatter relies on it to lose nothing.
//! - Every span begins and ends at a character boundary.

use crate::diagnostic::Diagnostic;
use crate::source::Span;

/// Longest text read, in bytes. The longest program known has 12 kB; the limit keeps
/// a file taken by mistake (a trace, a model) from filling the memory with tokens.
pub const FILE_BYTES_MAX: usize = 4 << 20;

/// Most errors listed for one text; further ones are counted, not kept.
pub(crate) const ERRORS_MAX: usize = 100;

/// One token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Token {
    /// What it is.
    pub kind: TokenKind,
    /// Where.
    pub span: Span,
}

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "`TokenKind::text` has the spelling of each")]
pub enum TokenKind {
    /// A word.
    Name,
    /// A literal's value.
    Number(f64),
    /// A string with its quotes.
    String,
    /// Characters that are no token; reported already.
    Bad,
    /// The end of the text.
    End,
    BraceOpen,
    BraceClose,
    ParenOpen,
    ParenClose,
    BracketOpen,
    BracketClose,
    Comma,
    Semicolon,
    Colon,
    Question,
    Assign,
    Dot,
    Tilde,
    Plus,
    Minus,
    Star,
    Slash,
    Caret,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Equal,
    NotEqual,
    And,
    Or,
    Not,
}

impl TokenKind {
    /// Its spelling; for kinds with many spellings what to call them.
    pub fn text(self) -> &'static str {
        match self {
            Self::Name => "a name",
            Self::Number(_) => "a number",
            Self::String => "a string",
            Self::Bad => "an unknown character",
            Self::End => "the end of the text",
            Self::BraceOpen => "{",
            Self::BraceClose => "}",
            Self::ParenOpen => "(",
            Self::ParenClose => ")",
            Self::BracketOpen => "[",
            Self::BracketClose => "]",
            Self::Comma => ",",
            Self::Semicolon => ";",
            Self::Colon => ":",
            Self::Question => "?",
            Self::Assign => "=",
            Self::Dot => ".",
            Self::Tilde => "~",
            Self::Plus => "+",
            Self::Minus => "-",
            Self::Star => "*",
            Self::Slash => "/",
            Self::Caret => "^",
            Self::Less => "<",
            Self::LessEqual => "<=",
            Self::Greater => ">",
            Self::GreaterEqual => ">=",
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::And => "&&",
            Self::Or => "||",
            Self::Not => "!",
        }
    }
}

/// A comment, kept for the formatter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comment {
    /// With `//` or `/* */`, without the line's end.
    pub span: Span,
    /// `/* … */`
    pub block: bool,
}

/// A text's tokens and what is between them.
#[derive(Clone, Debug, Default)]
pub struct Lexed {
    /// In text order; the last is [`TokenKind::End`].
    pub tokens: Vec<Token>,
    /// In text order.
    pub comments: Vec<Comment>,
    /// What is no token.
    pub diagnostics: Vec<Diagnostic>,
}

/// Reads a text.
pub fn lex(file: u32, text: &str) -> Lexed {
    let mut lexer = Lexer { file, text, at: 0, out: Lexed::default() };
    if text.len() > FILE_BYTES_MAX {
        let message = format!("the text has {} bytes; the most that is read is {FILE_BYTES_MAX}", text.len());
        lexer.report(
            Diagnostic::error("file-too-large", lexer.span(0, 0), message)
                .help("a program is a few hundred lines; is this the file you meant?"),
        );
    } else {
        lexer.run();
    }
    let at = lexer.at;
    lexer.push(TokenKind::End, at, at);
    lexer.out
}

/// True for what may begin a name.
pub fn begins_name(c: char) -> bool {
    c == '_' || c.is_alphabetic()
}

/// True for what may go on a name.
pub fn continues_name(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

struct Lexer<'a> {
    file: u32,
    text: &'a str,
    at: usize,
    out: Lexed,
}

impl Lexer<'_> {
    fn run(&mut self) {
        if self.text.starts_with('\u{feff}') {
            self.at = '\u{feff}'.len_utf8();
            self.report(
                Diagnostic::error("byte-order-mark", self.span(0, self.at), "the text begins with a byte-order mark")
                    .help("save the file as UTF-8 without a byte-order mark"),
            );
        }
        while let Some(c) = self.peek() {
            let start = self.at;
            match c {
                ' ' | '\t' | '\r' | '\n' => self.at += 1,
                '/' if self.rest().starts_with("//") => {
                    let length = self.rest().find('\n').unwrap_or(self.rest().len());
                    let line = self.rest()[..length].trim_end_matches('\r');
                    let end = start + line.len();
                    self.at = start + length;
                    self.comment(start, end, false);
                }
                '/' if self.rest().starts_with("/*") => self.block_comment(),
                '"' => self.string(),
                '0'..='9' => self.number(),
                '.' if self.rest()[1..].starts_with(|c: char| c.is_ascii_digit()) => self.number(),
                c if begins_name(c) => {
                    self.skip_while(continues_name);
                    self.push(TokenKind::Name, start, self.at);
                }
                _ => match punctuation(self.rest()) {
                    Some(kind) => {
                        self.at += kind.text().len();
                        self.push(kind, start, self.at);
                    }
                    None => self.bad(c),
                },
            }
        }
    }

    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn span(&self, start: usize, end: usize) -> Span {
        // Texts of more than 4 GiB never come here, see FILE_BYTES_MAX.
        Span { file: self.file, start: start as u32, end: end as u32 }
    }

    fn push(&mut self, kind: TokenKind, start: usize, end: usize) {
        let span = self.span(start, end);
        self.out.tokens.push(Token { kind, span });
    }

    fn report(&mut self, diagnostic: Diagnostic) {
        // One more than are listed, so that it is known that more follow.
        if self.out.diagnostics.len() <= ERRORS_MAX {
            self.out.diagnostics.push(diagnostic);
        }
    }

    fn comment(&mut self, start: usize, end: usize, block: bool) {
        let span = self.span(start, end);
        self.out.comments.push(Comment { span, block });
    }

    fn skip_while(&mut self, mut keep: impl FnMut(char) -> bool) {
        let rest = self.rest();
        self.at += rest.find(|c| !keep(c)).unwrap_or(rest.len());
    }

    fn block_comment(&mut self) {
        let start = self.at;
        match self.rest()[2..].find("*/") {
            Some(length) => self.at = start + 2 + length + 2,
            None => {
                self.at = self.text.len();
                self.report(
                    Diagnostic::error("unclosed-comment", self.span(start, start + 2), "this comment is never closed")
                        .help("close it with `*/`, or write `//` for a comment to the end of the line"),
                );
            }
        }
        self.comment(start, self.at, true);
    }

    fn string(&mut self) {
        let start = self.at;
        let rest = &self.text[start + 1..];
        match rest.find(['"', '\n']) {
            Some(length) if rest.as_bytes()[length] == b'"' => {
                self.at = start + 1 + length + 1;
                self.push(TokenKind::String, start, self.at);
            }
            found => {
                let line = &rest[..found.unwrap_or(rest.len())];
                self.at = start + 1 + line.trim_end_matches('\r').len();
                self.report(
                    Diagnostic::error("unclosed-string", self.span(self.at, self.at), "the line ends inside a string")
                        .label("expected `\"`")
                        .note(self.span(start, start + 1), "the string begins here")
                        .help("close it with `\"` on the same line"),
                );
                self.push(TokenKind::Bad, start, self.at);
            }
        }
    }

    /// Digits, a fraction, an exponent; whatever sticks to it makes it no number.
    fn number(&mut self) {
        let start = self.at;
        let digit = |c: char| c.is_ascii_digit() || c == '_';
        self.skip_while(digit);
        if self.peek() == Some('.') {
            self.at += 1;
            self.skip_while(digit);
        }
        if let Some(length) = exponent(self.rest()) {
            self.at += length;
        }
        let end = self.at;
        // A point or a letter right behind belongs to what was meant as one word.
        self.skip_while(|c| c == '.' || continues_name(c));
        let spelling = &self.text[start..self.at];
        if self.at > end {
            let tail = &self.text[end..self.at];
            let help = if matches!(tail, "e" | "E") {
                format!("give the exponent digits, as in `{spelling}3`")
            } else if spelling.starts_with("0x") || spelling.starts_with("0b") {
                "numbers are decimal".to_owned()
            } else {
                "a number is digits, a fraction and an exponent: `12`, `1.5`, `.5`, `2e-5`".to_owned()
            };
            let message = format!("`{}` is not a number", shorten(spelling));
            let diagnostic = Diagnostic::error("bad-number", self.span(start, self.at), message);
            self.report(diagnostic.help(help));
            self.push(TokenKind::Bad, start, self.at);
            return;
        }
        let value = spelling.replace('_', "").parse().unwrap_or(f64::NAN);
        debug_assert!(!f64::is_nan(value), "{spelling} passed the lexer and is no number");
        self.push(TokenKind::Number(value), start, end);
    }

    /// One diagnostic for a run of the same unknown character.
    fn bad(&mut self, c: char) {
        let start = self.at;
        self.skip_while(|other| other == c);
        let shown = match c {
            c if c.is_control() || c.is_whitespace() || is_invisible(c) => {
                format!("the character U+{:04X}", c as u32)
            }
            c => format!("`{c}`"),
        };
        let diagnostic = Diagnostic::error(
            "unexpected-character",
            self.span(start, self.at),
            format!("{shown} has no meaning here"),
        );
        self.report(diagnostic.help(instead_of(c).unwrap_or("leave it out")));
        self.push(TokenKind::Bad, start, self.at);
    }
}

/// Length of an exponent at the start of the text, if one stands there.
fn exponent(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    if !matches!(bytes.first(), Some(b'e' | b'E')) {
        return None;
    }
    let sign = usize::from(matches!(bytes.get(1), Some(b'+' | b'-')));
    let digits = bytes[1 + sign..].iter().take_while(|b| b.is_ascii_digit()).count();
    (digits > 0).then_some(1 + sign + digits)
}

fn punctuation(text: &str) -> Option<TokenKind> {
    use TokenKind::*;
    let two = [("<=", LessEqual), (">=", GreaterEqual), ("==", Equal), ("!=", NotEqual), ("&&", And), ("||", Or)];
    if let Some((_, kind)) = two.iter().find(|(spelling, _)| text.starts_with(spelling)) {
        return Some(*kind);
    }
    Some(match text.as_bytes().first()? {
        b'{' => BraceOpen,
        b'}' => BraceClose,
        b'(' => ParenOpen,
        b')' => ParenClose,
        b'[' => BracketOpen,
        b']' => BracketClose,
        b',' => Comma,
        b';' => Semicolon,
        b':' => Colon,
        b'?' => Question,
        b'=' => Assign,
        b'.' => Dot,
        b'~' => Tilde,
        b'+' => Plus,
        b'-' => Minus,
        b'*' => Star,
        b'/' => Slash,
        b'^' => Caret,
        b'<' => Less,
        b'>' => Greater,
        b'!' => Not,
        _ => return None,
    })
}

/// What to write for a character that other languages or word processors use.
fn instead_of(c: char) -> Option<&'static str> {
    Some(match c {
        '#' => "a comment begins with `//`",
        '&' => "write `&&` for and",
        '|' => "write `||` for or",
        '%' => "there is no remainder: write `x - y * floor(x / y)`",
        '\'' | '`' | '“' | '”' | '„' | '«' | '»' => "a string is written between `\"` and `\"`",
        '×' | '·' => "write `*`",
        '÷' => "write `/`",
        '≤' => "write `<=`",
        '≥' => "write `>=`",
        '≠' => "write `!=`",
        '−' | '–' | '—' => "write `-`",
        '∞' => "write `inf`",
        '\u{a0}' | '\u{2007}' | '\u{202f}' | '\u{3000}' => "write an ordinary space",
        '\u{200b}' | '\u{feff}' | '\u{200e}' | '\u{200f}' => "delete it: it cannot be seen",
        _ => return None,
    })
}

fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// A spelling short enough for a message.
pub(crate) fn shorten(spelling: &str) -> String {
    const CHARACTERS_MAX: usize = 40;
    match spelling.char_indices().nth(CHARACTERS_MAX) {
        Some((at, _)) => format!("{}…", &spelling[..at]),
        None => spelling.to_owned(),
    }
}
