//! Arrival laws.
//!
//! ```text
//!   poisson(2)                                 one rate for ever
//!   poisson(2) for 600, (8) for 300            and then nobody
//!   poisson(2) for 600, (8) for 300, (3)       and then 3 for ever
//!   poisson(2) for 600, (8) for 300, repeat    and then from the first piece again
//!   bursts(8) for 10, (0.5) for 50             the times are means; they come in a circle
//! ```

use super::{Parser, Read};
use crate::ast::{self, Arrive, Piece};
use crate::lexer::TokenKind;

const LAWS: &[&str] = &["poisson", "bursts", "renewal", "closed", "batch", "trace", "none"];

impl Parser<'_> {
    /// What stands between `arrive` and its `;`.
    pub(super) fn law(&mut self) -> Read<Arrive> {
        let word = self.token().span;
        let law = self.choice(LAWS, "arrival law")?;
        if !matches!(law, "trace" | "none") || self.kind() == TokenKind::ParenOpen {
            self.layout.hugging.push(self.at);
        }
        Ok(match law {
            "poisson" => self.poisson()?,
            "bursts" => self.bursts()?,
            "renewal" => Arrive::Renewal(self.parenthesised()?),
            "closed" => Arrive::Closed(self.parenthesised()?),
            "batch" => Arrive::Batch(self.parenthesised()?),
            "trace" => {
                let speed = if self.kind() == TokenKind::ParenOpen { Some(self.parenthesised()?) } else { None };
                Arrive::Trace(speed, word)
            }
            _ => Arrive::None,
        })
    }

    /// `(rate)`, or pieces `(rate) for time, …` that end in `repeat`, in a rate for ever, or
    /// with the last time.
    fn poisson(&mut self) -> Read<Arrive> {
        let rate = self.parenthesised()?;
        if !self.is_word("for") {
            return match self.kind() {
                TokenKind::Comma => Err(self.unexpected("`for`")),
                _ => Ok(Arrive::Poisson(rate)),
            };
        }
        let mut pieces = vec![self.piece(rate)?];
        while self.eat(TokenKind::Comma) {
            if self.eat_word("repeat") {
                return Ok(Arrive::Steps { pieces, repeat: true });
            }
            let rate = self.parenthesised()?;
            if self.kind() == TokenKind::Semicolon {
                pieces.push(Piece { rate, time: None });
                break;
            }
            pieces.push(self.piece(rate)?);
        }
        Ok(Arrive::Steps { pieces, repeat: false })
    }

    /// `(rate) for mean, (rate) for mean, …`, two at least.
    fn bursts(&mut self) -> Read<Arrive> {
        let mut pieces = Vec::new();
        loop {
            let rate = self.parenthesised()?;
            pieces.push(self.piece(rate)?);
            if pieces.len() == 1 {
                self.expect(TokenKind::Comma)?;
            } else if !self.eat(TokenKind::Comma) {
                return Ok(Arrive::Bursts(pieces));
            }
        }
    }

    /// `for time` behind a rate.
    fn piece(&mut self, rate: ast::Expr) -> Read<Piece> {
        self.expect_word("for")?;
        Ok(Piece { rate, time: Some(self.expression()?) })
    }
}
