//! The workload's arrival law: its numbers folded and checked.

use serq_ir as ir;
use serq_ir::json::Number;

use crate::ast;
use crate::fold;
use crate::link::{Draft, Linker};
use crate::moment::Clause;
use crate::resolve::{Reported, Result};

/// Most sessions of `closed` and `batch`.
const SESSIONS_MAX: f64 = 1e6;

impl<'a> Linker<'a> {
    /// `arrive law;`
    pub(crate) fn arrive(&mut self, law: &'a ast::Arrive) -> Result<ir::Arrive> {
        Ok(match law {
            ast::Arrive::None => ir::Arrive::None,
            ast::Arrive::Poisson(e) => {
                let rate = self.constant(e, "the rate of `poisson`")?;
                if !(rate > 0.0 && rate.is_finite()) {
                    return Err(self
                        .not_positive("rate", rate, e)
                        .help("arrivals in one unit of time, such as `poisson(0.5)`")
                        .done(self));
                }
                ir::Arrive::Poisson(Number(rate))
            }
            ast::Arrive::Steps { pieces, repeat } => {
                ir::Arrive::Steps { pieces: self.pieces(pieces, "poisson")?, repeat: *repeat }
            }
            ast::Arrive::Bursts(pieces) => ir::Arrive::Bursts { pieces: self.pieces(pieces, "bursts")? },
            ast::Arrive::Renewal(e) => {
                let scope = self.program;
                let gap = self.expr(e, scope, Clause::Gap)?;
                if let Some(value) = fold::value(&gap, &self.lists)
                    && !(value > 0.0 && value.is_finite())
                {
                    return Err(self.not_positive("gap", value, e).done(self));
                }
                ir::Arrive::Renewal(gap)
            }
            ast::Arrive::Closed(e) => ir::Arrive::Closed(self.sessions(e, "closed")?),
            ast::Arrive::Batch(e) => ir::Arrive::Batch(self.sessions(e, "batch")?),
            ast::Arrive::Trace(None, _) => ir::Arrive::Trace(Number(1.0)),
            ast::Arrive::Trace(Some(e), _) => {
                let speed = self.constant(e, "the speed of `trace`")?;
                if !(speed > 0.0 && speed.is_finite()) {
                    return Err(self
                        .not_positive("speed", speed, e)
                        .help("`trace(2)` has arrivals in half the time, `trace` as they were")
                        .done(self));
                }
                ir::Arrive::Trace(Number(speed))
            }
        })
    }

    fn not_positive(&self, what: &str, value: f64, e: &ast::Expr) -> Draft {
        let message = format!("a {what} of {value} is not positive and finite", value = fold::show(value));
        self.error("bad-constant", e.span, message)
    }

    /// Every mistake of the list is told.
    fn pieces(&mut self, pieces: &'a [ast::Piece], law: &str) -> Result<Vec<ir::Piece>> {
        let linked: Vec<Result<ir::Piece>> = pieces.iter().map(|piece| self.piece(piece)).collect();
        let linked: Vec<ir::Piece> = linked.into_iter().collect::<Result<_>>()?;
        let Some(first) = pieces.first() else { return Err(Reported) };
        if linked.iter().all(|piece| piece.rate.0 == 0.0) {
            return Err(self
                .error("bad-constant", first.rate.span, "no rate is above 0: nobody would ever come")
                .help(format!("arrivals in one unit of time, such as `{law}(0.5) for 60, (0) for 60`"))
                .done(self));
        }
        let time: f64 = linked.iter().map(|piece| piece.time.0).filter(|time| time.is_finite()).sum();
        if time == f64::INFINITY {
            let message = "the times of the pieces are infinite together";
            return Err(self.error("bad-constant", first.rate.span, message).done(self));
        }
        Ok(linked)
    }

    fn piece(&mut self, piece: &'a ast::Piece) -> Result<ir::Piece> {
        let rate = self.constant(&piece.rate, "the rate of a piece").and_then(|rate| {
            if rate >= 0.0 && rate.is_finite() {
                return Ok(rate);
            }
            let message = format!("a rate of {rate} is not finite and at least 0", rate = fold::show(rate));
            Err(self.error("bad-constant", piece.rate.span, message).done(self))
        });
        let time = match &piece.time {
            None => Ok(f64::INFINITY),
            Some(e) => self.constant(e, "the time of a piece").and_then(|time| match time > 0.0 && time.is_finite() {
                true => Ok(time),
                false => Err(self.not_positive("time", time, e).done(self)),
            }),
        };
        // A minus zero would be printed as such.
        Ok(ir::Piece { rate: Number(rate? + 0.0), time: Number(time?) })
    }

    fn sessions(&mut self, e: &'a ast::Expr, word: &str) -> Result<u32> {
        let value = self.constant(e, "the number of sessions")?;
        if value >= 1.0 && value.fract() == 0.0 && value <= SESSIONS_MAX {
            return Ok(value as u32);
        }
        Err(self
            .error(
                "bad-constant",
                e.span,
                format!(
                    "`{word}` takes a whole number from 1 to {SESSIONS_MAX}, not {value}",
                    value = fold::show(value)
                ),
            )
            .done(self))
    }
}
