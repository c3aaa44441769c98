//! Expressions: precedence climbing, with the height of every tree at hand.

use serq_ir::{Binary, DEPTH_MAX, Fold, Unary};

use super::{Parser, Read, Stop};
use crate::ast::{Expr, ExprKind};
use crate::diagnostic::Diagnostic;
use crate::lexer::TokenKind;
use crate::source::Span;

/// An expression and how many nodes lie on its longest path.
struct Tree {
    expr: Expr,
    height: usize,
}

/// How tightly an operator binds; the comparisons do not associate.
fn binding(kind: TokenKind) -> Option<(u8, Binary)> {
    Some(match kind {
        TokenKind::Or => (1, Binary::Or),
        TokenKind::And => (2, Binary::And),
        TokenKind::Less => (COMPARISON, Binary::Less),
        TokenKind::LessEqual => (COMPARISON, Binary::LessEqual),
        TokenKind::Greater => (COMPARISON, Binary::Greater),
        TokenKind::GreaterEqual => (COMPARISON, Binary::GreaterEqual),
        TokenKind::Equal => (COMPARISON, Binary::Equal),
        TokenKind::NotEqual => (COMPARISON, Binary::NotEqual),
        TokenKind::Plus => (4, Binary::Add),
        TokenKind::Minus => (4, Binary::Subtract),
        TokenKind::Star => (5, Binary::Multiply),
        TokenKind::Slash => (5, Binary::Divide),
        _ => return None,
    })
}

const COMPARISON: u8 = 3;

impl Parser<'_> {
    pub(super) fn expression(&mut self) -> Read<Expr> {
        self.conditional().map(|tree| tree.expr)
    }

    fn conditional(&mut self) -> Read<Tree> {
        self.nested(|parser| {
            let first = parser.at;
            let test = parser.binary(0)?;
            let question = parser.at;
            if !parser.eat(TokenKind::Question) {
                return Ok(test);
            }
            let then = parser.conditional()?;
            if parser.kind() != TokenKind::Colon {
                let message = format!("expected `:`, found {}", parser.found());
                let diagnostic = Diagnostic::error("unexpected-token", parser.token().span, message)
                    .note(parser.tokens[question].span, "this choice has no second value")
                    .help("write `condition ? value : other value`");
                return Err(parser.report(diagnostic));
            }
            parser.advance();
            let otherwise = parser.conditional()?;
            let height = test.height.max(then.height).max(otherwise.height);
            let kind = ExprKind::If(Box::new(test.expr), Box::new(then.expr), Box::new(otherwise.expr));
            parser.tree(first, kind, height)
        })
    }

    /// Operators that bind at least as tightly as `least`, left to right.
    fn binary(&mut self, least: u8) -> Read<Tree> {
        let first = self.at;
        let mut left = self.unary()?;
        let mut compared: Option<Span> = None;
        while let Some((level, operator)) = binding(self.kind()) {
            if level < least {
                break;
            }
            if level == COMPARISON
                && let Some(before) = compared
            {
                return Err(self.chained(before));
            }
            compared = (level == COMPARISON).then(|| self.token().span);
            self.advance();
            let right = self.binary(level + 1)?;
            let height = left.height.max(right.height);
            let kind = ExprKind::Binary(operator, Box::new(left.expr), Box::new(right.expr));
            left = self.tree(first, kind, height)?;
        }
        Ok(left)
    }

    fn chained(&mut self, before: Span) -> Stop {
        let message = "comparisons do not chain";
        let diagnostic = Diagnostic::error("chained-comparison", self.token().span, message)
            .label("a second comparison")
            .note(before, "of what this one answers, 0 or 1")
            .help("for a range write `a < b && b < c`; to compare the answer put the first comparison in parentheses");
        self.report(diagnostic)
    }

    fn unary(&mut self) -> Read<Tree> {
        let first = self.at;
        let mut operators = Vec::new();
        loop {
            let operator = match self.kind() {
                TokenKind::Minus => Unary::Negate,
                TokenKind::Not => Unary::Not,
                _ => break,
            };
            if operators.len() > DEPTH_MAX {
                return Err(self.too_deep());
            }
            operators.push((self.at, operator));
            self.layout.prefix.push(self.at);
            self.advance();
        }
        if self.kind() == TokenKind::Plus {
            let diagnostic =
                Diagnostic::error("unexpected-token", self.token().span, "expected an expression, found `+`");
            let help = if operators.is_empty() && first > 0 && self.tokens[first - 1].kind == TokenKind::Plus {
                "there is no `++`: write `set x = x + 1;`"
            } else {
                "there is no `+` in front of a value: leave it out"
            };
            return Err(self.report(diagnostic.help(help)));
        }
        let mut tree = self.power()?;
        for (at, operator) in operators.into_iter().rev() {
            let kind = ExprKind::Unary(operator, Box::new(tree.expr));
            tree = self.tree(at, kind, tree.height)?;
        }
        Ok(tree)
    }

    /// `a ^ b`: to the right, and its exponent may have a sign.
    fn power(&mut self) -> Read<Tree> {
        let first = self.at;
        let base = self.primary()?;
        if !self.eat(TokenKind::Caret) {
            return Ok(base);
        }
        let exponent = self.nested(Self::unary)?;
        let height = base.height.max(exponent.height);
        let kind = ExprKind::Binary(Binary::Power, Box::new(base.expr), Box::new(exponent.expr));
        self.tree(first, kind, height)
    }

    fn primary(&mut self) -> Read<Tree> {
        let first = self.at;
        match self.kind() {
            TokenKind::Number(value) => {
                self.advance();
                self.tree(first, ExprKind::Number(value), 0)
            }
            TokenKind::ParenOpen => {
                self.advance();
                let inner = self.conditional()?;
                self.close(TokenKind::ParenClose, first)?;
                self.tree(first, ExprKind::Paren(Box::new(inner.expr)), inner.height)
            }
            TokenKind::Tilde => {
                self.advance();
                self.layout.prefix.push(first);
                let law = self.name("a distribution's name after `~`")?;
                self.layout.hugging.push(self.at);
                let (arguments, height) = self.arguments()?;
                self.tree(first, ExprKind::Draw(law, arguments), height)
            }
            TokenKind::Name => self.named(),
            TokenKind::BracketOpen => {
                self.advance();
                let (elements, height) = self.listed(TokenKind::BracketClose, first)?;
                self.tree(first, ExprKind::List(elements), height)
            }
            _ => Err(self.unexpected("an expression")),
        }
    }

    /// What begins with a name: a reference, a call, an aggregate, `inf`.
    fn named(&mut self) -> Read<Tree> {
        let first = self.at;
        let word = self.spelling_at(first);
        // No expression has two names in a row, so the second decides.
        if self.kind_ahead(1) == TokenKind::Name && self.word_ahead(2) == Some("in") {
            let fold = match word {
                "max" => Some(Fold::Max),
                "min" => Some(Fold::Min),
                "sum" => Some(Fold::Sum),
                _ => None,
            };
            if let Some(fold) = fold {
                return self.aggregate(fold);
            }
        }
        let name = self.name("a name")?;
        if name.text == "inf" {
            return self.tree(first, ExprKind::Number(f64::INFINITY), 0);
        }
        if self.kind() == TokenKind::ParenOpen {
            self.layout.hugging.push(self.at);
            let (arguments, height) = self.arguments()?;
            return self.tree(first, ExprKind::Call(name, arguments), height);
        }
        let mut height = 0;
        let open = self.at;
        let index = if self.eat(TokenKind::BracketOpen) {
            let index = self.conditional()?;
            self.close(TokenKind::BracketClose, open)?;
            height = index.height;
            Some(Box::new(index.expr))
        } else {
            None
        };
        let field = match self.eat(TokenKind::Dot) {
            true => Some(self.name("a name after `.`")?),
            false => None,
        };
        let span = self.span_from(first);
        self.tree(first, ExprKind::Ref(crate::ast::Ref { name, index, field, span }), height)
    }

    /// `max k in n (body)`
    fn aggregate(&mut self, fold: Fold) -> Read<Tree> {
        let first = self.at;
        self.advance();
        let variable = self.name("a name")?;
        self.expect_word("in")?;
        let count = match self.kind() {
            TokenKind::ParenOpen => self.primary()?,
            TokenKind::Number(_) => self.primary()?,
            TokenKind::Name => {
                let at = self.at;
                let name = self.name("a name")?;
                let kind = if name.text == "inf" {
                    ExprKind::Number(f64::INFINITY)
                } else {
                    let span = name.span;
                    ExprKind::Ref(crate::ast::Ref { name, index: None, field: None, span })
                };
                self.tree(at, kind, 0)?
            }
            _ => return Err(self.unexpected("a number, a name or `(`, how many terms there are")),
        };
        if self.kind() != TokenKind::ParenOpen {
            let message = format!("expected `(`, found {}", self.found());
            let diagnostic = Diagnostic::error("unexpected-token", self.token().span, message)
                .label("the term stands in parentheses")
                .help("write `max k in N (term)`; a computed N stands in parentheses too");
            return Err(self.report(diagnostic));
        }
        let open = self.at;
        self.advance();
        let body = self.conditional()?;
        self.close(TokenKind::ParenClose, open)?;
        let height = count.height.max(body.height);
        let kind = ExprKind::Aggregate(fold, variable, Box::new(count.expr), Box::new(body.expr));
        self.tree(first, kind, height)
    }

    fn arguments(&mut self) -> Read<(Vec<Expr>, usize)> {
        let open = self.at;
        self.expect(TokenKind::ParenOpen)?;
        self.listed(TokenKind::ParenClose, open)
    }

    /// Expressions with commas between them, and what closes them.
    fn listed(&mut self, close: TokenKind, open: usize) -> Read<(Vec<Expr>, usize)> {
        let mut listed = Vec::new();
        let mut height = 0;
        if self.eat(close) {
            return Ok((listed, height));
        }
        loop {
            let one = self.conditional()?;
            height = height.max(one.height);
            listed.push(one.expr);
            if !self.eat(TokenKind::Comma) {
                break;
            }
        }
        self.close(close, open)?;
        Ok((listed, height))
    }

    /// A node above trees of this height.
    fn tree(&mut self, first: usize, kind: ExprKind, height: usize) -> Read<Tree> {
        if height >= DEPTH_MAX {
            return Err(self.too_deep());
        }
        Ok(Tree { expr: Expr { kind, span: self.span_from(first) }, height: height + 1 })
    }

    fn nested(&mut self, read: impl FnOnce(&mut Self) -> Read<Tree>) -> Read<Tree> {
        if self.nesting >= DEPTH_MAX {
            return Err(self.too_deep());
        }
        self.nesting += 1;
        let tree = read(self);
        self.nesting -= 1;
        tree
    }

    pub(super) fn too_deep(&mut self) -> Stop {
        let diagnostic =
            Diagnostic::error("too-deep", self.token().span, format!("nested more than {DEPTH_MAX} deep here"))
                .help("name a part: `let` for a constant, `set` for a value, `def` for statements");
        self.report(diagnostic)
    }
}
