//! The canonical layout of a program.
//!
//! Works on tokens: what is written stays, in its order, comments included; only white
//! space changes (and a `;` that means nothing goes). The author keeps three choices:
//! blank lines, one at most; where a long statement is continued; and whether a short
//! block stands on one line.
//!
//! ```text
//!   hold reqs (1), kv (x) reserve (prompt)        a continued line stands behind the
//!        at admission (x = a,                     first word, the `=`, or the innermost
//!                      y = b) {                   open parenthesis
//!     prefill (x) growing kv;   // why            trailing comments keep a shared column
//!   } cache (prompt) lease kv (inf);
//! ```
//!
//! # Invariants
//!
//! - `format(format(x)) == format(x)`.
//! - Both parse to the same tree, places aside.

use std::collections::HashSet;

use crate::diagnostic::Diagnostic;
use crate::lexer::{Lexed, TokenKind, lex};
use crate::parser::{Layout, parse_lexed};

/// Lines are broken where they would be longer, if they can be.
const WIDTH: usize = 100;

/// A continued line begins no further right than this; else four columns in.
const CONTINUED_MAX: usize = 60;

/// Most columns between code and its trailing comment, if no neighbour shares the column.
const DRIFT_MAX: usize = 32;

/// Lays a program out, or says why it is none.
pub fn format(text: &str) -> Result<String, Vec<Diagnostic>> {
    let lexed = lex(0, text);
    let parsed = parse_lexed(text, &lexed);
    if !parsed.diagnostics.is_empty() {
        return Err(parsed.diagnostics);
    }
    let mut formatter = Formatter::new(pieces(text, &lexed, &parsed.layout));
    formatter.run();
    Ok(print(&formatter.lines))
}

/// A token or a comment, and how it stood.
struct Piece<'a> {
    text: &'a str,
    kind: Kind,
    /// Line ends between it and what stood before.
    newlines: usize,
    /// Characters before it on its line, of a `//` comment.
    column: usize,
    /// The nearest tokens before and after it, comments left out.
    before: Option<usize>,
    after: Option<usize>,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Token { kind: TokenKind, unit: bool, hugging: bool, prefix: bool },
    LineComment,
    BlockComment,
}

impl Piece<'_> {
    fn is(&self, token: TokenKind) -> bool {
        matches!(self.kind, Kind::Token { kind, .. } if kind == token)
    }

    fn is_unit(&self) -> bool {
        matches!(self.kind, Kind::Token { unit: true, .. })
    }

    fn is_comment(&self) -> bool {
        !matches!(self.kind, Kind::Token { .. })
    }

    /// An operator between two values.
    fn is_operator(&self) -> bool {
        use TokenKind::*;
        matches!(
            self.kind,
            Kind::Token {
                prefix: false,
                kind: Plus
                    | Minus
                    | Star
                    | Slash
                    | Less
                    | LessEqual
                    | Greater
                    | GreaterEqual
                    | Equal
                    | NotEqual
                    | And
                    | Or
                    | Question,
                ..
            }
        )
    }

    fn width(&self) -> usize {
        self.text.chars().count()
    }
}

fn pieces<'a>(text: &'a str, lexed: &Lexed, layout: &Layout) -> Vec<Piece<'a>> {
    let set = |indices: &[usize]| indices.iter().copied().collect::<HashSet<usize>>();
    let (units, hugging) = (set(&layout.units), set(&layout.hugging));
    let (prefix, idle) = (set(&layout.prefix), set(&layout.idle));
    let mut marks: Vec<(usize, usize, Option<Kind>)> = Vec::new();
    for (index, token) in lexed.tokens.iter().enumerate() {
        let kind = Kind::Token {
            kind: token.kind,
            unit: units.contains(&index),
            hugging: hugging.contains(&index),
            prefix: prefix.contains(&index),
        };
        if token.kind != TokenKind::End {
            let kind = (!idle.contains(&index)).then_some(kind);
            marks.push((token.span.start as usize, token.span.end as usize, kind));
        }
    }
    for comment in &lexed.comments {
        let kind = if comment.block { Kind::BlockComment } else { Kind::LineComment };
        marks.push((comment.span.start as usize, comment.span.end as usize, Some(kind)));
    }
    marks.sort_by_key(|(start, _, _)| *start);

    let mut pieces: Vec<Piece> = Vec::new();
    let mut before = 0;
    let mut line_start = 0;
    let mut newlines_left_out = 0;
    for (start, end, kind) in marks {
        let between = &text[before..start];
        let newlines = between.matches('\n').count().max(newlines_left_out);
        if let Some(at) = between.rfind('\n') {
            line_start = before + at + 1;
        }
        // Asked for at most once a line, so a line of any length costs its length once.
        let column = match kind {
            Some(Kind::LineComment) => text[line_start..start].chars().count(),
            _ => 0,
        };
        if let Some(at) = text[start..end].rfind('\n') {
            line_start = start + at + 1;
        }
        before = end;
        newlines_left_out = 0;
        match kind {
            Some(kind) => {
                pieces.push(Piece { text: &text[start..end], kind, newlines, column, before: None, after: None })
            }
            None => newlines_left_out = newlines,
        }
    }
    let mut last = None;
    for (index, piece) in pieces.iter_mut().enumerate() {
        piece.before = last;
        last = if piece.is_comment() { last } else { Some(index) };
    }
    let mut next = None;
    for (index, piece) in pieces.iter_mut().enumerate().rev() {
        piece.after = next;
        next = if piece.is_comment() { next } else { Some(index) };
    }
    pieces
}

/// One line of the result.
#[derive(Clone, Default)]
struct Line {
    indent: usize,
    code: String,
    /// A trailing comment and the column it had.
    comment: Option<(String, usize)>,
    blank_before: bool,
}

impl Line {
    /// Column behind the code.
    fn end(&self) -> usize {
        match self.code.rfind('\n') {
            Some(at) => self.code[at + 1..].chars().count(),
            None => self.indent + self.code.chars().count(),
        }
    }
}

/// Where in a statement the next token stands.
#[derive(Clone, Default)]
struct State {
    /// The statement's own indentation.
    indent: usize,
    /// Tokens of it so far.
    count: usize,
    /// Column of its second word.
    second: Option<usize>,
    /// Column of the first token behind its `=`.
    value: Option<usize>,
    /// The next token is the one behind the `=`.
    value_next: bool,
    /// Columns behind the open parentheses.
    open: Vec<usize>,
}

/// A place where the line may be broken, and what to go back to.
struct Chance {
    piece: usize,
    line: Line,
    state: State,
}

struct Formatter<'a> {
    pieces: Vec<Piece<'a>>,
    lines: Vec<Line>,
    line: Line,
    state: State,
    /// Open blocks with lines of their own.
    level: usize,
    /// Open blocks that stand on this line.
    flat: usize,
    chances: Vec<Chance>,
    /// Pieces the line must be broken before.
    forced: HashSet<usize>,
}

impl<'a> Formatter<'a> {
    fn new(pieces: Vec<Piece<'a>>) -> Self {
        Self {
            pieces,
            lines: Vec::new(),
            line: Line::default(),
            state: State::default(),
            level: 0,
            flat: 0,
            chances: Vec::new(),
            forced: HashSet::new(),
        }
    }

    fn run(&mut self) {
        let mut at = 0;
        while at < self.pieces.len() {
            at = match self.pieces[at].kind {
                Kind::Token { kind, .. } => self.token(at, kind),
                _ => self.comment(at),
            };
        }
        self.end_line();
    }

    fn comment(&mut self, at: usize) -> usize {
        let piece = &self.pieces[at];
        let text = piece.text.replace("\r\n", "\n");
        let text = text.trim_end().to_owned();
        let own_line = at == 0 || piece.newlines > 0;
        if own_line {
            let between = piece.after.is_none_or(|after| {
                let after = &self.pieces[after];
                after.is_unit() || after.is(TokenKind::BraceClose)
            });
            let indent = if between { 2 * self.level } else { self.continued(at) };
            self.new_line(indent, between && self.blank_before(at));
            self.line.code = text;
        } else if piece.kind == Kind::LineComment {
            self.line.comment = Some((text, piece.column));
        } else {
            self.line.code.push(' ');
            self.line.code.push_str(&text);
        }
        at + 1
    }

    fn token(&mut self, at: usize, kind: TokenKind) -> usize {
        let closes_lines = kind == TokenKind::BraceClose && self.flat == 0;
        if closes_lines {
            self.level -= 1;
        }
        let unit = self.pieces[at].is_unit();
        let behind_comment = at > 0 && self.pieces[at - 1].kind == Kind::LineComment;
        // A block comment at the start of a line stays in front of what it was put before.
        let beside_comment = at > 0
            && self.pieces[at].newlines == 0
            && self.pieces[at - 1].kind == Kind::BlockComment
            && (at == 1 || self.pieces[at - 1].newlines > 0);
        let starts = (unit && self.flat == 0) || closes_lines;
        if starts && self.after_empty_brace(at) {
            self.line.code.push(' ');
        } else if starts && !(beside_comment && unit) {
            self.new_line(2 * self.level, unit && self.blank_before(at));
        } else if behind_comment || self.forced.contains(&at) || self.keeps_break(at) {
            let indent = self.continued(at);
            self.new_line(indent, false);
        } else if at > 0 && self.space_before(at) {
            if self.breaks_before(at) {
                let chance = Chance { piece: at, line: self.line.clone(), state: self.state.clone() };
                self.chances.push(chance);
            }
            self.line.code.push(' ');
        }
        if starts {
            self.state = State { indent: 2 * self.level, ..State::default() };
        }
        let column = self.line.end();
        let piece = &self.pieces[at];
        if self.flat == 0
            && column + piece.width() > WIDTH
            && let Some(back) = self.go_back()
        {
            return back;
        }
        self.line.code.push_str(self.pieces[at].text);
        self.note(at, kind, column);
        at + 1
    }

    /// What the token says about the ones behind it.
    fn note(&mut self, at: usize, kind: TokenKind, column: usize) {
        let spaced = at > 0 && self.space_before(at);
        let end = self.line.end();
        let state = &mut self.state;
        state.count += 1;
        if state.count == 2 && spaced {
            state.second = Some(column);
        }
        if state.value_next {
            state.value = Some(column);
            state.value_next = false;
        }
        match kind {
            TokenKind::ParenOpen | TokenKind::BracketOpen => state.open.push(end),
            TokenKind::ParenClose | TokenKind::BracketClose => {
                state.open.pop();
            }
            TokenKind::Assign if state.open.is_empty() && state.value.is_none() => {
                state.value_next = true;
            }
            TokenKind::BraceOpen => {
                if self.flat > 0 || self.fits_flat(at, column) {
                    self.flat += 1;
                } else {
                    self.level += 1;
                }
            }
            TokenKind::BraceClose => {
                self.flat = self.flat.saturating_sub(1);
                // What follows a block continues the statement, two words in.
                state.count = 2;
                state.second = None;
                state.value = None;
            }
            _ => {}
        }
    }

    /// How closely what stands around a chance belongs together: parentheses first, then
    /// the operator.
    fn tightness(&self, chance: &Chance) -> (usize, u8) {
        use TokenKind::*;
        let Kind::Token { kind, .. } = self.pieces[chance.piece].kind else {
            return (0, 0);
        };
        let operator = match kind {
            Question => 1,
            Or => 2,
            And => 3,
            Less | LessEqual | Greater | GreaterEqual | Equal | NotEqual => 4,
            Plus | Minus => 5,
            Star | Slash => 6,
            _ => 0,
        };
        (chance.state.open.len(), operator)
    }

    /// Breaks the line where it may be broken: where least belongs together, then as late
    /// as possible.
    fn go_back(&mut self) -> Option<usize> {
        let loosest = self.chances.iter().map(|one| self.tightness(one)).min()?;
        let last = self.chances.iter().rposition(|one| self.tightness(one) == loosest)?;
        let chance = self.chances.swap_remove(last);
        self.chances.clear();
        self.forced.insert(chance.piece);
        self.line = chance.line;
        self.state = chance.state;
        Some(chance.piece)
    }

    /// The end of a line with a `{` that nothing stands in.
    fn after_empty_brace(&self, at: usize) -> bool {
        at > 0 && self.pieces[at].is(TokenKind::BraceClose) && self.pieces[at - 1].is(TokenKind::BraceOpen)
    }

    /// A line the author broke inside of a statement stays broken, except before what
    /// never begins a line.
    fn keeps_break(&self, at: usize) -> bool {
        use TokenKind::*;
        let piece = &self.pieces[at];
        if at == 0 || self.flat > 0 || piece.newlines == 0 {
            return false;
        }
        let before = &self.pieces[at - 1];
        // Behind a comment with a line of its own there is nothing to join.
        if before.is_comment() {
            return true;
        }
        let joins = [BraceOpen, ParenClose, BracketClose, Semicolon, Comma, Dot];
        let joined = [ParenOpen, BracketOpen, Dot, Tilde, BraceClose];
        !joins.iter().any(|&kind| piece.is(kind))
            && !joined.iter().any(|&kind| before.is(kind))
            && self.space_before(at)
    }

    /// Where a line may be broken although the author did not.
    fn breaks_before(&self, at: usize) -> bool {
        self.flat == 0
            && !self.pieces[at - 1].is_comment()
            && (self.pieces[at].is_operator() || self.pieces[at - 1].is(TokenKind::Comma))
    }

    fn blank_before(&self, at: usize) -> bool {
        at > 0 && self.pieces[at].newlines >= 2 && !self.pieces[at - 1].is(TokenKind::BraceOpen)
    }

    /// The column at which a statement is continued.
    fn continued(&self, at: usize) -> usize {
        let last = self.pieces[at].before;
        if last.is_some_and(|last| self.pieces[last].is(TokenKind::BraceClose)) {
            return 2 * self.level;
        }
        let state = &self.state;
        let operator = self.pieces[at].is_operator();
        let column = match (state.open.last(), state.value, state.second) {
            (Some(&open), _, _) => open,
            // An operator stands out, so that what it joins is aligned.
            (None, Some(value), _) if operator => value.saturating_sub(self.pieces[at].width() + 1),
            (None, Some(value), _) => value,
            (None, None, Some(second)) => second,
            (None, None, None) => state.indent + 4,
        };
        if column > CONTINUED_MAX { state.indent + 4 } else { column }
    }

    /// True when the block opened here was on one line, and still fits on one.
    fn fits_flat(&self, at: usize, column: usize) -> bool {
        let mut open = 0_usize;
        let mut width = 0;
        let mut closed = false;
        for index in at..self.pieces.len() {
            let piece = &self.pieces[index];
            if closed
                && (piece.is_unit()
                    || piece.is_comment()
                    || piece.is(TokenKind::BraceOpen)
                    || piece.is(TokenKind::BraceClose))
            {
                break;
            }
            if !closed && index > at && (piece.newlines > 0 || piece.kind == Kind::LineComment) {
                // Nothing inside: the line's end is no choice of layout.
                return index == at + 1 && piece.is(TokenKind::BraceClose);
            }
            width += piece.width() + usize::from(index > at && self.space_before(index));
            if piece.is(TokenKind::BraceOpen) {
                open += 1;
            } else if piece.is(TokenKind::BraceClose) {
                open -= 1;
                closed = closed || open == 0;
            }
            if column + width > WIDTH {
                return closed && index == at + 1;
            }
        }
        true
    }

    fn space_before(&self, at: usize) -> bool {
        use TokenKind::*;
        let (before, piece) = (&self.pieces[at - 1], &self.pieces[at]);
        let Kind::Token { kind, hugging, .. } = piece.kind else {
            return true;
        };
        let Kind::Token { kind: last, prefix, .. } = before.kind else {
            return true;
        };
        match kind {
            Comma | Semicolon | ParenClose | BracketClose | Dot => false,
            _ if prefix || matches!(last, ParenOpen | BracketOpen | Dot) => false,
            // An index stands at its name, a list by itself.
            BracketOpen => last != Name,
            ParenOpen => !hugging,
            _ => true,
        }
    }

    fn new_line(&mut self, indent: usize, blank_before: bool) {
        self.end_line();
        self.line = Line { indent, blank_before, ..Line::default() };
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        if !line.code.is_empty() || line.comment.is_some() {
            self.lines.push(line);
        }
        self.chances.clear();
    }
}

/// The lines as text, trailing comments in their columns.
fn print(lines: &[Line]) -> String {
    let mut columns: Vec<usize> = Vec::with_capacity(lines.len());
    let mut first = 0;
    while first < lines.len() {
        // Neighbours whose comments stood in one column share one.
        let shares = |line: &Line| line.comment.as_ref().map(|(_, column)| *column);
        let column = shares(&lines[first]);
        let mut last = first + 1;
        while column.is_some() && last < lines.len() && !lines[last].blank_before && shares(&lines[last]) == column {
            last += 1;
        }
        let widest = lines[first..last].iter().map(Line::end).max().unwrap_or(0);
        let column = match column {
            Some(column) if last - first > 1 && column > widest => column,
            // A lone one keeps its column too, unless it has drifted far from its code.
            Some(column) if (widest + 2..=widest + DRIFT_MAX).contains(&column) => column,
            _ => widest + 2,
        };
        columns.resize(last, column);
        first = last;
    }

    let mut text = String::new();
    for (line, column) in lines.iter().zip(columns) {
        if line.blank_before && !text.is_empty() {
            text.push('\n');
        }
        text.extend(std::iter::repeat_n(' ', line.indent));
        text.push_str(&line.code);
        if let Some((comment, _)) = &line.comment {
            text.extend(std::iter::repeat_n(' ', column.saturating_sub(line.end())));
            text.push_str(comment);
        }
        text.push('\n');
    }
    text
}
