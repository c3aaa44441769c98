//! Mistakes: how one is reported, and where reading goes on behind it.

use super::{Parser, Place, Stop};
use crate::diagnostic::Diagnostic;
use crate::lexer::{self, ERRORS_MAX, TokenKind};
use crate::nearest::{list, nearest};

impl Parser<'_> {
    pub(super) fn found(&self) -> String {
        match self.kind() {
            TokenKind::End => "the end of the text".to_owned(),
            _ => format!("`{}`", lexer::shorten(self.spelling_at(self.at))),
        }
    }

    /// Reports that something else was expected here.
    pub(super) fn unexpected(&mut self, expected: &str) -> Stop {
        let message = format!("expected {expected}, found {}", self.found());
        let mut diagnostic = Diagnostic::error("unexpected-token", self.token().span, message);
        if let Some(help) = self.help_for_unexpected(expected) {
            diagnostic = diagnostic.help(help);
        }
        self.report(diagnostic)
    }

    pub(super) fn help_for_unexpected(&self, expected: &str) -> Option<String> {
        let found = self.found();
        let word = match expected.strip_prefix('`').and_then(|rest| rest.strip_suffix('`')) {
            Some(word) if !word.contains('`') => Some(word),
            _ => None,
        };
        Some(match (self.kind(), word) {
            (TokenKind::String, _) => "only `use` and `trace` take a string".to_owned(),
            (TokenKind::Assign, Some(";")) => "to compare, write `==`".to_owned(),
            (TokenKind::Dot, _) => "a name has no `.` in it; `Q.x` is read where a value stands".to_owned(),
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
    pub(super) fn unknown(&mut self, code: &'static str, what: &str, words: &[&str]) -> Stop {
        let Some(word) = self.word() else {
            return self.unexpected(&format!("{what}: {}", list(words)));
        };
        let message = format!("`{}` is no {what}", lexer::shorten(word));
        // The code is written out for the test that looks for codes.
        let mut diagnostic = match code {
            "unknown-kind" => Diagnostic::error("unknown-kind", self.token().span, message),
            "unknown-item" => Diagnostic::error("unknown-item", self.token().span, message),
            "unknown-statement" => Diagnostic::error("unknown-statement", self.token().span, message),
            _ => Diagnostic::error("unknown-option", self.token().span, message),
        };
        if let Some(near) = nearest(word, words.iter().copied()) {
            diagnostic = diagnostic.help(format!("write `{near}`"));
        } else {
            diagnostic = diagnostic.help(format!("write {}", list(words)));
        }
        self.report(diagnostic)
    }

    pub(super) fn report(&mut self, diagnostic: Diagnostic) -> Stop {
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

    /// Over the rest of a value, its `;` included, up to what may come after it.
    pub(super) fn skip_value(&mut self, words: &[&str]) {
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
    pub(super) fn skip_item(&mut self, place: Place) {
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
    pub(super) fn skip_block(&mut self) {
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
    pub(super) fn begins_item(&self, place: Place) -> bool {
        let Some(word) = self.word() else {
            return false;
        };
        let start = self.token().span.start as usize;
        if place != Place::Top && start > 0 && !self.text[..start].ends_with('\n') {
            return false;
        }
        use TokenKind::{Assign, BraceOpen, BracketOpen, Colon, Name, ParenOpen, Semicolon, String};
        let named = |then: &[TokenKind]| self.kind_ahead(1) == Name && then.contains(&self.kind_ahead(2));
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
}
