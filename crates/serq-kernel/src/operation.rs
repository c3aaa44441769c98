//! The arithmetic of expressions: one function for each operator and kind of operand.
//!
//! An expression's operations are chosen when the program is made ready, so evaluating
//! one is a call of a function that does just that: `value + 2`, `used(kv[3]) / value`.

use serq_ir::{Binary, Context, Function, PoolFigure, Unary};

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
    Reached,
    /// The variable of an aggregate, counted from the innermost.
    Variable(u32),
    /// Figures of a member of a pool.
    Used(u32),
    Free(u32),
    Holders(u32),
    Queued(u32),
    Cachedin(u32),
    /// What an engine's budget, a number, has left.
    BudgetLeft(u32),
    /// An aggregate of a gauge, kept up to date ([`crate::gauge`]).
    Folded(u32),
    /// A number put by.
    PutBy(u32),
}

/// An operator of two operands that both are read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Dyadic {
    Binary(Binary),
    Min,
    Max,
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
    And(a, b) = truth(a != 0.0 && b != 0.0);
    Or(a, b) = truth(a != 0.0 || b != 0.0);
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
    Reached(kernel, frame, _bits) = kernel.sessions[frame.session as usize].reached;
    Variable(_kernel, frame, bits) = read_variable(frame, bits);
    Used(kernel, _frame, bits) = kernel.pools[bits as usize].used_units();
    Free(kernel, _frame, bits) = kernel.pools[bits as usize].free_units();
    Holders(kernel, _frame, bits) = f64::from(kernel.pools[bits as usize].holders);
    Queued(kernel, _frame, bits) = kernel.pools[bits as usize].waiting() as f64;
    Cachedin(kernel, frame, bits) = kernel.cachedin(frame.session, bits as u32);
    BudgetLeft(kernel, _frame, bits) = kernel.budget_left_of_numbers(bits as u32);
    Folded(kernel, _frame, bits) = kernel.gauges.root(bits as u32);
    PutBy(kernel, _frame, bits) = kernel.put_by[bits as usize].get();
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

/// value := figure of the member of a pool whose index is an attribute
pub(crate) fn pool_by(figure: PoolFigure, pool: u32, attribute: u32) -> (Step, u64) {
    let step: Step = match figure {
        PoolFigure::Used => |k, f, _, bits| k.pools[k.pool_by(f, bits) as usize].used_units(),
        PoolFigure::Free => |k, f, _, bits| k.pools[k.pool_by(f, bits) as usize].free_units(),
        PoolFigure::Holders => |k, f, _, bits| f64::from(k.pools[k.pool_by(f, bits) as usize].holders),
        PoolFigure::Queued => |k, f, _, bits| k.pools[k.pool_by(f, bits) as usize].waiting() as f64,
        PoolFigure::Cachedin => |k, f, _, bits| k.cachedin(f.session, k.pool_by(f, bits)),
        PoolFigure::Outstanding => |k, f, _, bits| k.outstanding(k.pool_by(f, bits)),
    };
    (step, family_and_attribute(pool, attribute))
}

/// value := what the budget, a number, of such a member of a stage has left
pub(crate) fn budget_left_by(stage: u32, attribute: u32) -> (Step, u64) {
    let step: Step = |k, f, _, bits| {
        let (stage, index) = family_and_index(k, f, bits);
        k.budget_left_of_numbers(k.stage_at(k.code.families.stages[stage], index, f))
    };
    (step, family_and_attribute(stage, attribute))
}

fn family_and_attribute(family: u32, attribute: u32) -> u64 {
    u64::from(family) << 32 | u64::from(attribute)
}

fn family_and_index(kernel: &Kernel<'_>, frame: &Frame<'_>, bits: u64) -> (usize, f64) {
    ((bits >> 32) as usize, read_attribute(kernel, frame, bits as u32))
}

impl Kernel<'_> {
    fn pool_by(&self, frame: &Frame<'_>, bits: u64) -> u32 {
        let (pool, index) = family_and_index(self, frame, bits);
        self.pool_at(self.code.families.pools[pool], index, frame)
    }
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
        Leaf::Reached => (step!(Reached), 0),
        Leaf::Variable(depth) => (step!(Variable), u64::from(depth)),
        Leaf::Used(pool) => (step!(Used), u64::from(pool)),
        Leaf::Free(pool) => (step!(Free), u64::from(pool)),
        Leaf::Holders(pool) => (step!(Holders), u64::from(pool)),
        Leaf::Queued(pool) => (step!(Queued), u64::from(pool)),
        Leaf::Cachedin(pool) => (step!(Cachedin), u64::from(pool)),
        Leaf::BudgetLeft(stage) => (step!(BudgetLeft), u64::from(stage)),
        Leaf::Folded(id) => (step!(Folded), u64::from(id)),
        Leaf::PutBy(place) => (step!(PutBy), u64::from(place)),
    }
}

/// value := leaf
pub(crate) fn load(leaf: Leaf) -> (Step, u64) {
    with_operand::<Load>(leaf, Side::Right)
}

/// value := value op leaf, or leaf op value
pub(crate) fn dyadic(op: Dyadic, leaf: Leaf, side: Side) -> (Step, u64) {
    match op {
        Dyadic::Binary(Binary::Add) => with_operand::<Add>(leaf, side),
        Dyadic::Binary(Binary::Subtract) => with_operand::<Subtract>(leaf, side),
        Dyadic::Binary(Binary::Multiply) => with_operand::<Multiply>(leaf, side),
        Dyadic::Binary(Binary::Divide) => with_operand::<Divide>(leaf, side),
        Dyadic::Binary(Binary::Power) => with_operand::<Power>(leaf, side),
        Dyadic::Binary(Binary::Less) => with_operand::<Less>(leaf, side),
        Dyadic::Binary(Binary::LessEqual) => with_operand::<LessEqual>(leaf, side),
        Dyadic::Binary(Binary::Greater) => with_operand::<Greater>(leaf, side),
        Dyadic::Binary(Binary::GreaterEqual) => with_operand::<GreaterEqual>(leaf, side),
        Dyadic::Binary(Binary::Equal) => with_operand::<Equal>(leaf, side),
        Dyadic::Binary(Binary::NotEqual) => with_operand::<NotEqual>(leaf, side),
        Dyadic::Binary(Binary::And) => with_operand::<And>(leaf, side),
        Dyadic::Binary(Binary::Or) => with_operand::<Or>(leaf, side),
        Dyadic::Min => with_operand::<Min>(leaf, side),
        Dyadic::Max => with_operand::<Max>(leaf, side),
    }
}

/// value := a number put by, op value. The number's bits are the operand.
pub(crate) fn of_two(op: Dyadic) -> Step {
    dyadic(op, Leaf::Number(0.0), Side::Left).0
}

/// Puts the value by in the place of this number.
pub(crate) const PUT_BY: Step = |kernel, _, a, bits| {
    kernel.put_by[bits as usize].set(a);
    a
};

/// Of two numbers put by one after the other, from the place of this number, and the value: where
/// the first is not 0, the second, else the value.
pub(crate) const SELECT: Step = |kernel, _, a, bits| {
    let at = bits as usize;
    if kernel.put_by[at].get() != 0.0 { kernel.put_by[at + 1].get() } else { a }
};

/// value := 1 unless it is 0
pub(crate) const TRUTH: Step = |_, _, a, _| truth(a != 0.0);

/// value := op value
pub(crate) fn unary(op: Unary) -> Step {
    match op {
        Unary::Negate => |_, _, a, _| -a,
        Unary::Not => |_, _, a, _| truth(a == 0.0),
    }
}

/// value := function (value)
pub(crate) fn function(function: Function) -> Step {
    match function {
        Function::Abs => |_, _, a, _| a.abs(),
        Function::Floor => |_, _, a, _| a.floor(),
        Function::Ceil => |_, _, a, _| a.ceil(),
        Function::Sqrt => |_, _, a, _| libm::sqrt(a),
        Function::Exp => |_, _, a, _| libm::exp(a),
        Function::Ln => |_, _, a, _| libm::log(a),
        Function::Min | Function::Max => unreachable!("they have two arguments"),
    }
}
