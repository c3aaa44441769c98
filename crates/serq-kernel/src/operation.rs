//! The arithmetic of expressions: one function for each operator and kind of operand.
//!
//! An expression's operations are chosen when the program is made ready, so evaluating
//! one is a call of a function that does just that: `value + 2`, `used(kv[3]) / value`.

use serq_ir::Context;

use crate::expression::{Frame, NOBODY};
use crate::kernel::Kernel;

/// Makes a value of the value so far; the last argument is the operand's bits.
pub(crate) type Step = for<'k, 'f> fn(&Kernel<'k>, &Frame<'f>, f64, u64) -> f64;

/// What is read without further ado.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Leaf {
    Number(f64),
    Attribute(u32),
    Context(Context),
    Now,
    /// The variable of an aggregate, counted from the innermost.
    Variable(u32),
    /// Figures of a member of a pool.
    Used(u32),
    Free(u32),
    Holders(u32),
    Queued(u32),
    Cachedin(u32),
    /// An aggregate of a gauge, kept up to date ([`crate::gauge`]).
    Folded(u32),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Dyadic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Power,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Equal,
    NotEqual,
    Min,
    Max,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Monadic {
    Negate,
    Not,
    /// 1 unless 0.
    Truth,
    Abs,
    Floor,
    Ceil,
    Sqrt,
    Exp,
    Ln,
}

pub(crate) fn truth(value: bool) -> f64 {
    if value { 1.0 } else { 0.0 }
}

trait Operator {
    fn apply(a: f64, b: f64) -> f64;
}

macro_rules! operators {
    ($($name:ident($a:ident, $b:ident) = $value:expr;)*) => {$(
        struct $name;
        impl Operator for $name {
            #[inline(always)]
            fn apply($a: f64, $b: f64) -> f64 {
                $value
            }
        }
    )*};
}

operators! {
    // The operand itself, whatever the value was.
    Load(_a, b) = b;
    Add(a, b) = a + b;
    Subtract(a, b) = a - b;
    Multiply(a, b) = a * b;
    Divide(a, b) = a / b;
    Power(a, b) = libm::pow(a, b);
    Less(a, b) = truth(a < b);
    LessEqual(a, b) = truth(a <= b);
    Greater(a, b) = truth(a > b);
    GreaterEqual(a, b) = truth(a >= b);
    Equal(a, b) = truth(a == b);
    NotEqual(a, b) = truth(a != b);
    Min(a, b) = a.min(b);
    Max(a, b) = a.max(b);
}

trait Operand {
    fn read(kernel: &Kernel<'_>, frame: &Frame<'_>, bits: u64) -> f64;
}

macro_rules! operands {
    ($($name:ident($kernel:ident, $frame:ident, $bits:ident) = $value:expr;)*) => {$(
        struct $name;
        impl Operand for $name {
            #[inline(always)]
            fn read($kernel: &Kernel<'_>, $frame: &Frame<'_>, $bits: u64) -> f64 {
                $value
            }
        }
    )*};
}

operands! {
    Number(_kernel, _frame, bits) = f64::from_bits(bits);
    Attribute(kernel, frame, bits) = read_attribute(kernel, frame, bits as u32);
    ContextVariable(_kernel, frame, bits) = frame.variables[bits as usize];
    Now(kernel, _frame, _bits) = kernel.now;
    Variable(_kernel, frame, bits) = read_variable(frame, bits);
    Used(kernel, _frame, bits) = kernel.pools[bits as usize].used_units();
    Free(kernel, _frame, bits) = kernel.pools[bits as usize].free_units();
    Holders(kernel, _frame, bits) = f64::from(kernel.pools[bits as usize].holders);
    Queued(kernel, _frame, bits) = kernel.pools[bits as usize].waiting() as f64;
    Cachedin(kernel, frame, bits) = kernel.cachedin(frame.session, bits as u32);
    Folded(kernel, _frame, bits) = kernel.gauges.root(bits as u32);
}

#[inline]
fn read_attribute(kernel: &Kernel<'_>, frame: &Frame<'_>, attribute: u32) -> f64 {
    match frame.snapshot {
        Some(attributes) => attributes[attribute as usize],
        None if frame.session == NOBODY => 0.0,
        None => kernel.attribute(frame.session, attribute),
    }
}

fn read_variable(frame: &Frame<'_>, depth: u64) -> f64 {
    let mut scope = frame.scope;
    for _ in 0..depth {
        scope = scope.and_then(|s| s.outer);
    }
    scope.map_or(0.0, |s| s.value)
}

fn with<O: Operator, P: Operand>(kernel: &Kernel<'_>, frame: &Frame<'_>, value: f64, bits: u64) -> f64 {
    O::apply(value, P::read(kernel, frame, bits))
}

fn under<O: Operator, P: Operand>(kernel: &Kernel<'_>, frame: &Frame<'_>, value: f64, bits: u64) -> f64 {
    O::apply(P::read(kernel, frame, bits), value)
}

/// Which side of the operator the operand stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

fn with_operand<O: Operator>(leaf: Leaf, side: Side) -> (Step, u64) {
    macro_rules! step {
        ($operand:ident) => {
            if side == Side::Right { with::<O, $operand> as Step } else { under::<O, $operand> as Step }
        };
    }
    match leaf {
        Leaf::Number(n) => (step!(Number), n.to_bits()),
        Leaf::Attribute(a) => (step!(Attribute), u64::from(a)),
        Leaf::Context(context) => (step!(ContextVariable), context as u64),
        Leaf::Now => (step!(Now), 0),
        Leaf::Variable(depth) => (step!(Variable), u64::from(depth)),
        Leaf::Used(pool) => (step!(Used), u64::from(pool)),
        Leaf::Free(pool) => (step!(Free), u64::from(pool)),
        Leaf::Holders(pool) => (step!(Holders), u64::from(pool)),
        Leaf::Queued(pool) => (step!(Queued), u64::from(pool)),
        Leaf::Cachedin(pool) => (step!(Cachedin), u64::from(pool)),
        Leaf::Folded(id) => (step!(Folded), u64::from(id)),
    }
}

/// value := leaf
pub(crate) fn load(leaf: Leaf) -> (Step, u64) {
    with_operand::<Load>(leaf, Side::Right)
}

/// value := value op leaf, or leaf op value
pub(crate) fn dyadic(op: Dyadic, leaf: Leaf, side: Side) -> (Step, u64) {
    match op {
        Dyadic::Add => with_operand::<Add>(leaf, side),
        Dyadic::Subtract => with_operand::<Subtract>(leaf, side),
        Dyadic::Multiply => with_operand::<Multiply>(leaf, side),
        Dyadic::Divide => with_operand::<Divide>(leaf, side),
        Dyadic::Power => with_operand::<Power>(leaf, side),
        Dyadic::Less => with_operand::<Less>(leaf, side),
        Dyadic::LessEqual => with_operand::<LessEqual>(leaf, side),
        Dyadic::Greater => with_operand::<Greater>(leaf, side),
        Dyadic::GreaterEqual => with_operand::<GreaterEqual>(leaf, side),
        Dyadic::Equal => with_operand::<Equal>(leaf, side),
        Dyadic::NotEqual => with_operand::<NotEqual>(leaf, side),
        Dyadic::Min => with_operand::<Min>(leaf, side),
        Dyadic::Max => with_operand::<Max>(leaf, side),
    }
}

/// value := a number put by, op value
pub(crate) fn of_two(op: Dyadic) -> fn(f64, f64) -> f64 {
    match op {
        Dyadic::Add => Add::apply,
        Dyadic::Subtract => Subtract::apply,
        Dyadic::Multiply => Multiply::apply,
        Dyadic::Divide => Divide::apply,
        Dyadic::Power => Power::apply,
        Dyadic::Less => Less::apply,
        Dyadic::LessEqual => LessEqual::apply,
        Dyadic::Greater => Greater::apply,
        Dyadic::GreaterEqual => GreaterEqual::apply,
        Dyadic::Equal => Equal::apply,
        Dyadic::NotEqual => NotEqual::apply,
        Dyadic::Min => Min::apply,
        Dyadic::Max => Max::apply,
    }
}

/// value := op value
pub(crate) fn monadic(op: Monadic) -> Step {
    match op {
        Monadic::Negate => |_, _, a, _| -a,
        Monadic::Not => |_, _, a, _| truth(a == 0.0),
        Monadic::Truth => |_, _, a, _| truth(a != 0.0),
        Monadic::Abs => |_, _, a, _| a.abs(),
        Monadic::Floor => |_, _, a, _| a.floor(),
        Monadic::Ceil => |_, _, a, _| a.ceil(),
        Monadic::Sqrt => |_, _, a, _| libm::sqrt(a),
        Monadic::Exp => |_, _, a, _| libm::exp(a),
        Monadic::Ln => |_, _, a, _| libm::log(a),
    }
}
