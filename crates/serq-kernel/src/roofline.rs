//! A step's cost in its usual form, without the interpreter.
//!
//! What a step costs is nearly always the larger of reading memory and computing, or a sum of
//! products fitted to measurements. Both are this, of figures x to v of the iteration and
//! numbers m, n and c:
//!
//! ```text
//!   cost = max(line, line) + c
//!   line = ((x + y) × m + c) + (u + v) × n
//! ```
//!
//! # Invariants
//!
//! - The operations of the expression are done, in its order, and others that change nothing, not
//!   even the sign of a zero: × 1 and + -0. So the cost is the expression's, bit for bit. Debug
//!   builds compare ([`crate::kernel::Kernel::cost_anew`]).
//!
//! The two lines are the roofline of Williams, Waterman and Patterson, "Roofline: An Insightful
//! Visual Performance Model for Multicore Architectures", CACM 52(4), 2009.

use serq_ir as ir;
use serq_ir::{Binary, Context, Function};

/// The figures of an iteration by [`Context`], and behind them [`NOTHING`].
pub(crate) type Figures = [f64; PLACES];

const PLACES: usize = Context::OF_ITERATION + 1;

/// What is left out of a sum.
pub(crate) const NOTHING: f64 = -0.0;

/// max(a, b) + constant
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Roofline {
    a: Line,
    b: Line,
    constant: f64,
}

/// (first + constant) + second
#[derive(Clone, Copy, Debug, PartialEq)]
struct Line {
    first: Product,
    constant: f64,
    second: Product,
}

/// (x + y) × factor, of the figures in these places.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Product {
    x: u8,
    y: u8,
    factor: f64,
}

impl Roofline {
    /// Of an expression that has the form.
    pub(crate) fn of(expr: &ir::Expr) -> Option<Self> {
        let (roof, constant) = match expr {
            ir::Expr::Binary(Binary::Add, a, b) => match (&**a, &**b) {
                (ir::Expr::Number(n), roof @ ir::Expr::Call(..)) | (roof @ ir::Expr::Call(..), ir::Expr::Number(n)) => {
                    (roof, n.0)
                }
                _ => (expr, NOTHING),
            },
            _ => (expr, NOTHING),
        };
        let (a, b) = match roof {
            ir::Expr::Call(Function::Max, sides) => (Line::of(&sides[0])?, Line::of(&sides[1])?),
            _ => (Line::of(roof)?, Line::of(roof)?),
        };
        Some(Self { a, b, constant })
    }

    #[inline(always)]
    pub(crate) fn at(&self, figures: &Figures) -> f64 {
        self.a.at(figures).max(self.b.at(figures)) + self.constant
    }
}

impl Line {
    fn of(expr: &ir::Expr) -> Option<Self> {
        if let Some(first) = Product::of(expr) {
            return Some(Self { first, constant: NOTHING, second: Product::NOTHING });
        }
        match expr {
            ir::Expr::Number(n) => Some(Self { first: Product::NOTHING, constant: n.0, second: Product::NOTHING }),
            // Either side of a sum may come first.
            ir::Expr::Binary(Binary::Add, a, b) => Self::sum(a, b).or_else(|| Self::sum(b, a)),
            _ => None,
        }
    }

    fn sum(line: &ir::Expr, last: &ir::Expr) -> Option<Self> {
        let line = Self::of(line).filter(|line| line.second == Product::NOTHING)?;
        match last {
            ir::Expr::Number(n) if line.constant.to_bits() == NOTHING.to_bits() => Some(Self { constant: n.0, ..line }),
            _ if line.first == Product::NOTHING => Some(Self { first: Product::of(last)?, ..line }),
            _ => Some(Self { second: Product::of(last)?, ..line }),
        }
    }

    #[inline(always)]
    fn at(&self, figures: &Figures) -> f64 {
        (self.first.at(figures) + self.constant) + self.second.at(figures)
    }
}

impl Product {
    const NOTHING: Self = Self { x: PLACES as u8 - 1, y: PLACES as u8 - 1, factor: 1.0 };

    fn of(expr: &ir::Expr) -> Option<Self> {
        match expr {
            ir::Expr::Binary(Binary::Multiply, a, b) => match (&**a, &**b) {
                (ir::Expr::Number(n), sum) | (sum, ir::Expr::Number(n)) => {
                    Product::of(sum).filter(|sum| sum.factor == 1.0).map(|sum| Self { factor: n.0, ..sum })
                }
                _ => None,
            },
            ir::Expr::Binary(Binary::Add, a, b) => Some(Self { x: figure(a)?, y: figure(b)?, factor: 1.0 }),
            _ => Some(Self { x: figure(expr)?, ..Self::NOTHING }),
        }
    }

    #[inline(always)]
    fn at(&self, figures: &Figures) -> f64 {
        // A place is below PLACES, which is a power of two: that the remainder says so costs nothing.
        let [x, y] = [self.x, self.y].map(|place| figures[usize::from(place) % PLACES]);
        (x + y) * self.factor
    }
}

/// The place of a figure of the iteration.
fn figure(expr: &ir::Expr) -> Option<u8> {
    match expr {
        ir::Expr::Context(context) => Some(*context as u8).filter(|place| usize::from(*place) < Context::OF_ITERATION),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(n: f64) -> ir::Expr {
        ir::Expr::Number(n.into())
    }

    fn binary(op: Binary, a: ir::Expr, b: ir::Expr) -> ir::Expr {
        ir::Expr::Binary(op, Box::new(a), Box::new(b))
    }

    /// As the interpreter does it.
    fn evaluated(expr: &ir::Expr, figures: &Figures) -> f64 {
        match expr {
            ir::Expr::Number(n) => n.0,
            ir::Expr::Context(context) => figures[*context as usize],
            ir::Expr::Binary(Binary::Add, a, b) => evaluated(a, figures) + evaluated(b, figures),
            ir::Expr::Binary(Binary::Multiply, a, b) => evaluated(a, figures) * evaluated(b, figures),
            ir::Expr::Call(Function::Max, sides) => evaluated(&sides[0], figures).max(evaluated(&sides[1], figures)),
            _ => unreachable!("it is not in the grammar below"),
        }
    }

    /// Expressions of a little grammar, the form's and others, by the digits of a number.
    fn expression(code: &mut u64, depth: u32) -> ir::Expr {
        let mut digit = |below: u64| {
            let digit = *code % below;
            *code /= below;
            digit
        };
        let choice = digit(if depth == 0 { 2 } else { 5 });
        let (which, swapped) = (digit(7), digit(2) == 1);
        if choice == 0 {
            return number([0.1, 1.0, 0.0, -0.0, 3e-5, -2.5, 1e9][which as usize]);
        }
        if choice == 1 {
            use Context::{Attention, Decoders, KvDecode, KvPrefill, Prefilled, Residents, Tokens};
            let figures = [KvDecode, Tokens, Residents, Decoders, Prefilled, Attention, KvPrefill];
            return ir::Expr::Context(figures[which as usize]);
        }
        let (mut a, mut b) = (expression(code, depth - 1), expression(code, depth - 1));
        if swapped {
            std::mem::swap(&mut a, &mut b);
        }
        match choice {
            2 => binary(Binary::Multiply, a, b),
            3 => binary(Binary::Add, a, b),
            _ => ir::Expr::Call(Function::Max, vec![a, b]),
        }
    }

    /// Whatever has the form costs what it would in full, to the last bit.
    #[test]
    fn the_form_has_the_bits_of_the_expression() {
        let all = [
            [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, NOTHING],
            [4_112.0, 3.0, 3.0, 3.0, 0.0, 0.0, 0.0, NOTHING],
            [7.0, 8_192.0, 2.0, 1.0, 8_191.0, 1e7 / 3.0, 1_031.0, NOTHING],
        ];
        let mut known = 0;
        let mut state = 1_u64;
        for _ in 0..200_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let expr = expression(&mut (state >> 4), 4);
            let Some(roofline) = Roofline::of(&expr) else { continue };
            known += 1;
            for figures in &all {
                let (short, full) = (roofline.at(figures), evaluated(&expr, figures));
                // Of two zeros either may be the larger.
                assert!(short.to_bits() == full.to_bits() || (short, full) == (0.0, 0.0), "{expr:?} {figures:?}");
            }
        }
        assert!(known > 10_000, "{known}");
    }

    /// c0 + max(omega + beta * (kv_decode + kv_prefill), tokens * a), and a line fitted.
    #[test]
    fn usual_costs_have_the_form() {
        let context = ir::Expr::Context;
        let (kv, tokens) =
            (binary(Binary::Add, context(Context::KvDecode), context(Context::KvPrefill)), context(Context::Tokens));
        let memory = binary(Binary::Add, number(2e-4), binary(Binary::Multiply, number(2e-9), kv.clone()));
        let compute = binary(Binary::Multiply, tokens.clone(), number(2e-5));
        let roof = binary(Binary::Add, number(0.0), ir::Expr::Call(Function::Max, vec![memory, compute]));
        assert!(Roofline::of(&roof).is_some());
        let first = binary(Binary::Add, number(0.01), binary(Binary::Multiply, number(2e-4), tokens));
        let fitted = binary(Binary::Add, first, binary(Binary::Multiply, number(1e-6), kv));
        assert!(Roofline::of(&fitted).is_some());
        assert!(Roofline::of(&context(Context::Now)).is_none());
    }
}
