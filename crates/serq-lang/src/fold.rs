//! Values of constant expressions.
//!
//! The kernel evaluates with the same operations in the same order, so an
//! expression folded here has the bits it would have there. Elementary functions
//! are `libm`'s on every platform.

use serq_ir::{Binary, Expr, Fold, Function, List, Unary};

/// The value of an expression that reads nothing but numbers and the variables
/// of aggregates inside it.
pub(crate) fn value(e: &Expr, lists: &[List]) -> Option<f64> {
    evaluate(e, lists, &mut Vec::new())
}

/// The values of an expression inside aggregates of these counts, the outermost first.
pub(crate) fn values(e: &Expr, lists: &[List], counts: &[u32]) -> Vec<f64> {
    fn each(e: &Expr, lists: &[List], counts: &[u32], variables: &mut Vec<f64>, out: &mut Vec<f64>) {
        match counts {
            [] => out.extend(evaluate(e, lists, variables)),
            [count, rest @ ..] => {
                for k in 0..*count {
                    variables.push(f64::from(k));
                    each(e, lists, rest, variables, out);
                    variables.pop();
                }
            }
        }
    }
    let mut out = Vec::new();
    each(e, lists, counts, &mut Vec::new(), &mut out);
    out
}

fn evaluate(e: &Expr, lists: &[List], variables: &mut Vec<f64>) -> Option<f64> {
    Some(match e {
        Expr::Number(n) => n.0,
        Expr::Variable(k) => {
            let at = variables.len().checked_sub(*k as usize + 1)?;
            variables[at]
        }
        Expr::Unary(op, a) => unary(*op, evaluate(a, lists, variables)?),
        Expr::Binary(Binary::And, a, b) => {
            truth(evaluate(a, lists, variables)? != 0.0 && evaluate(b, lists, variables)? != 0.0)
        }
        Expr::Binary(Binary::Or, a, b) => {
            truth(evaluate(a, lists, variables)? != 0.0 || evaluate(b, lists, variables)? != 0.0)
        }
        Expr::Binary(op, a, b) => binary(*op, evaluate(a, lists, variables)?, evaluate(b, lists, variables)?),
        Expr::If(c, a, b) => {
            if evaluate(c, lists, variables)? != 0.0 {
                evaluate(a, lists, variables)?
            } else {
                evaluate(b, lists, variables)?
            }
        }
        Expr::Call(f, arguments) => {
            let first = evaluate(arguments.first()?, lists, variables)?;
            let second = match arguments.get(1) {
                Some(b) => evaluate(b, lists, variables)?,
                None => 0.0,
            };
            call(*f, first, second)
        }
        Expr::Element(list, index) => {
            let index = evaluate(index, lists, variables)?;
            let list = &lists.get(*list as usize)?.values;
            list.get(index as usize).filter(|_| index as usize as f64 == index)?.0
        }
        Expr::Aggregate { fold, count, body } => {
            let mut total: Option<f64> = None;
            for k in 0..*count {
                variables.push(f64::from(k));
                let term = evaluate(body, lists, variables);
                variables.pop();
                let term = term?;
                total = Some(match (total, fold) {
                    (None, _) => term,
                    (Some(t), Fold::Sum) => t + term,
                    (Some(t), Fold::Min) => t.min(term),
                    (Some(t), Fold::Max) => t.max(term),
                });
            }
            total?
        }
        Expr::Attribute(_) | Expr::Context(_) | Expr::Pool(..) | Expr::Stage(..) | Expr::Price(..) | Expr::Draw(..) => {
            return None;
        }
    })
}

fn truth(b: bool) -> f64 {
    f64::from(u8::from(b))
}

/// `-x`, `!x`.
pub(crate) fn unary(op: Unary, a: f64) -> f64 {
    match op {
        Unary::Negate => -a,
        Unary::Not => truth(a == 0.0),
    }
}

/// `a op b`.
pub(crate) fn binary(op: Binary, a: f64, b: f64) -> f64 {
    match op {
        Binary::Add => a + b,
        Binary::Subtract => a - b,
        Binary::Multiply => a * b,
        Binary::Divide => a / b,
        Binary::Power => libm::pow(a, b),
        Binary::Less => truth(a < b),
        Binary::LessEqual => truth(a <= b),
        Binary::Greater => truth(a > b),
        Binary::GreaterEqual => truth(a >= b),
        Binary::Equal => truth(a == b),
        Binary::NotEqual => truth(a != b),
        Binary::And => truth(a != 0.0 && b != 0.0),
        Binary::Or => truth(a != 0.0 || b != 0.0),
    }
}

/// `f(a)`, `f(a, b)`.
pub(crate) fn call(f: Function, a: f64, b: f64) -> f64 {
    match f {
        Function::Min => a.min(b),
        Function::Max => a.max(b),
        Function::Abs => a.abs(),
        Function::Floor => a.floor(),
        Function::Ceil => a.ceil(),
        Function::Sqrt => a.sqrt(),
        Function::Exp => libm::exp(a),
        Function::Ln => libm::log(a),
    }
}

/// A number in a message: short, whatever its size.
pub(crate) fn show(value: f64) -> String {
    let plain = format!("{value}");
    if plain.len() <= 12 { plain } else { format!("{value:e}") }
}
