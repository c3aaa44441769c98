//! The arithmetic of expressions: one function for each operator and kind of operand.
//!
//! An expression's operations are chosen when the program is made ready, so evaluating
//! one is a call of a function that does just that: `value + 2`, `used(kv[3]) / value`.

use serq_ir::{Binary, Context, Function, PoolFigure, Unary};

use crate::expression::Frame;
use crate::kernel::Kernel;

/// Makes a value of the value so far and an operand, or of two operands alone. They are the
/// step's.
type Make = for<'k, 'f> fn(&Kernel<'k>, &Frame<'f>, f64, &Step) -> f64;

/// One operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    make: Make,
    /// Of its operand.
    bits: u64,
    /// Of the second of two operands.
    second: u64,
}

impl Step {
    const fn new(make: Make, bits: u64) -> Self {
        Self { make, bits, second: 0 }
    }

    /// The same of this number.
    pub(crate) fn given(self, number: f64) -> Self {
        Self { bits: number.to_bits(), ..self }
    }

    /// The value that comes after this one.
    #[inline(always)]
    pub(crate) fn take(&self, kernel: &Kernel<'_>, frame: &Frame<'_>, value: f64) -> f64 {
        (self.make)(kernel, frame, value, self)
    }
}

/// What is read without further ado.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Leaf {
    Number(f64),
    Attribute(u32),
    Context(Context),
    Now,
    Reached,
    Failed,
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
    Failed(kernel, frame, _bits) = f64::from(u8::from(kernel.sessions[frame.session as usize].read.failed));
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

#[inline(always)]
pub(crate) fn read_attribute(kernel: &Kernel<'_>, frame: &Frame<'_>, attribute: u32) -> f64 {
    match kernel.attributes.get(frame.attributes + attribute as usize) {
        Some(&value) => value,
        None => read_gone(frame, attribute),
    }
}

/// … of a session that is gone, or of nobody.
#[cold]
fn read_gone(frame: &Frame<'_>, attribute: u32) -> f64 {
    frame.snapshot.map_or(0.0, |attributes| attributes[attribute as usize])
}

fn read_variable(frame: &Frame<'_>, depth: u64) -> f64 {
    let mut scope = frame.scope;
    for _ in 0..depth {
        scope = scope.and_then(|s| s.outer);
    }
    scope.map_or(0.0, |s| s.value)
}

fn with<O: Operator, P: Operand>(kernel: &Kernel<'_>, frame: &Frame<'_>, value: f64, step: &Step) -> f64 {
    O::apply(value, P::read(kernel, frame, step.bits))
}

fn under<O: Operator, P: Operand>(kernel: &Kernel<'_>, frame: &Frame<'_>, value: f64, step: &Step) -> f64 {
    O::apply(P::read(kernel, frame, step.bits), value)
}

fn of_both<O: Operator, P: Operand, Q: Operand>(kernel: &Kernel<'_>, frame: &Frame<'_>, _: f64, step: &Step) -> f64 {
    O::apply(P::read(kernel, frame, step.bits), Q::read(kernel, frame, step.second))
}

/// value := figure of the member of a pool whose index is an attribute
pub(crate) fn pool_by(figure: PoolFigure, pool: u32, attribute: u32) -> Step {
    let make: Make = match figure {
        PoolFigure::Used => |k, f, _, step| k.pools[k.pool_by(f, step.bits) as usize].used_units(),
        PoolFigure::Free => |k, f, _, step| k.pools[k.pool_by(f, step.bits) as usize].free_units(),
        PoolFigure::Holders => |k, f, _, step| f64::from(k.pools[k.pool_by(f, step.bits) as usize].holders),
        PoolFigure::Queued => |k, f, _, step| k.pools[k.pool_by(f, step.bits) as usize].waiting() as f64,
        PoolFigure::Cachedin => |k, f, _, step| k.cachedin(f.session, k.pool_by(f, step.bits)),
        PoolFigure::Outstanding => |k, f, _, step| k.outstanding(k.pool_by(f, step.bits)),
    };
    Step::new(make, family_and_attribute(pool, attribute))
}

/// value := what the budget, a number, of such a member of a stage has left
pub(crate) fn budget_left_by(stage: u32, attribute: u32) -> Step {
    let make: Make = |k, f, _, step| {
        let (stage, index) = family_and_index(k, f, step.bits);
        k.budget_left_of_numbers(k.stage_at(k.code.families.stages[stage], index, f))
    };
    Step::new(make, family_and_attribute(stage, attribute))
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

fn with_operand<O: Operator>(leaf: Leaf, side: Side) -> Step {
    macro_rules! step {
        ($operand:ident, $bits:expr) => {
            Step::new(if side == Side::Right { with::<O, $operand> } else { under::<O, $operand> }, $bits)
        };
    }
    match leaf {
        Leaf::Number(n) => step!(Number, n.to_bits()),
        Leaf::Attribute(a) => step!(Attribute, u64::from(a)),
        Leaf::Context(context) => step!(ContextVariable, context as u64),
        Leaf::Now => step!(Now, 0),
        Leaf::Reached => step!(Reached, 0),
        Leaf::Failed => step!(Failed, 0),
        Leaf::Variable(depth) => step!(Variable, u64::from(depth)),
        Leaf::Used(pool) => step!(Used, u64::from(pool)),
        Leaf::Free(pool) => step!(Free, u64::from(pool)),
        Leaf::Holders(pool) => step!(Holders, u64::from(pool)),
        Leaf::Queued(pool) => step!(Queued, u64::from(pool)),
        Leaf::Cachedin(pool) => step!(Cachedin, u64::from(pool)),
        Leaf::BudgetLeft(stage) => step!(BudgetLeft, u64::from(stage)),
        Leaf::Folded(id) => step!(Folded, u64::from(id)),
        Leaf::PutBy(place) => step!(PutBy, u64::from(place)),
    }
}

/// Of the pairs of operands that are often met.
fn with_both<O: Operator>(a: Leaf, b: Leaf) -> Option<Step> {
    macro_rules! step {
        ($first:ident $bits:expr, $second:ident $more:expr) => {
            Step { make: of_both::<O, $first, $second>, bits: $bits, second: $more }
        };
    }
    Some(match (a, b) {
        (Leaf::Attribute(a), Leaf::Attribute(b)) => step!(Attribute u64::from(a), Attribute u64::from(b)),
        (Leaf::Attribute(a), Leaf::Number(n)) => step!(Attribute u64::from(a), Number n.to_bits()),
        (Leaf::Number(n), Leaf::Attribute(b)) => step!(Number n.to_bits(), Attribute u64::from(b)),
        (Leaf::Now, Leaf::Attribute(b)) => step!(Now 0, Attribute u64::from(b)),
        (Leaf::Context(a), Leaf::Context(b)) => step!(ContextVariable a as u64, ContextVariable b as u64),
        (Leaf::Context(a), Leaf::Number(n)) => step!(ContextVariable a as u64, Number n.to_bits()),
        (Leaf::Used(a), Leaf::Number(n)) => step!(Used u64::from(a), Number n.to_bits()),
        (Leaf::Holders(a), Leaf::Queued(b)) => step!(Holders u64::from(a), Queued u64::from(b)),
        (Leaf::Folded(a), Leaf::Folded(b)) => step!(Folded u64::from(a), Folded u64::from(b)),
        (Leaf::Folded(a), Leaf::Number(n)) => step!(Folded u64::from(a), Number n.to_bits()),
        _ => return None,
    })
}

/// value := leaf
pub(crate) fn load(leaf: Leaf) -> Step {
    with_operand::<Load>(leaf, Side::Right)
}

/// What `$choose` makes of an operator, by its type.
macro_rules! by_operator {
    ($op:expr, $choose:ident($($argument:expr),*)) => {
        match $op {
            Dyadic::Binary(Binary::Add) => $choose::<Add>($($argument),*),
            Dyadic::Binary(Binary::Subtract) => $choose::<Subtract>($($argument),*),
            Dyadic::Binary(Binary::Multiply) => $choose::<Multiply>($($argument),*),
            Dyadic::Binary(Binary::Divide) => $choose::<Divide>($($argument),*),
            Dyadic::Binary(Binary::Power) => $choose::<Power>($($argument),*),
            Dyadic::Binary(Binary::Less) => $choose::<Less>($($argument),*),
            Dyadic::Binary(Binary::LessEqual) => $choose::<LessEqual>($($argument),*),
            Dyadic::Binary(Binary::Greater) => $choose::<Greater>($($argument),*),
            Dyadic::Binary(Binary::GreaterEqual) => $choose::<GreaterEqual>($($argument),*),
            Dyadic::Binary(Binary::Equal) => $choose::<Equal>($($argument),*),
            Dyadic::Binary(Binary::NotEqual) => $choose::<NotEqual>($($argument),*),
            Dyadic::Binary(Binary::And) => $choose::<And>($($argument),*),
            Dyadic::Binary(Binary::Or) => $choose::<Or>($($argument),*),
            Dyadic::Min => $choose::<Min>($($argument),*),
            Dyadic::Max => $choose::<Max>($($argument),*),
        }
    };
}

/// value := value op leaf, or leaf op value
pub(crate) fn dyadic(op: Dyadic, leaf: Leaf, side: Side) -> Step {
    by_operator!(op, with_operand(leaf, side))
}

/// value := leaf op leaf, where that is one operation
pub(crate) fn of_leaves(op: Dyadic, a: Leaf, b: Leaf) -> Option<Step> {
    by_operator!(op, with_both(a, b))
}

/// value := a number yet to be given, op value
pub(crate) fn of_number(op: Dyadic) -> Step {
    dyadic(op, Leaf::Number(0.0), Side::Left)
}

/// Puts the value by in the place of this number.
pub(crate) fn put_by(place: u32) -> Step {
    let make: Make = |kernel, _, a, step| {
        kernel.put_by[step.bits as usize].set(a);
        a
    };
    Step::new(make, u64::from(place))
}

/// Of two numbers put by one after the other, from the place of this number, and the value: where
/// the first is not 0, the second, else the value.
pub(crate) fn select(place: u32) -> Step {
    let make: Make = |kernel, _, a, step| {
        let at = step.bits as usize;
        if kernel.put_by[at].get() != 0.0 { kernel.put_by[at + 1].get() } else { a }
    };
    Step::new(make, u64::from(place))
}

/// value := 1 unless it is 0
pub(crate) const TRUTH: Step = Step::new(|_, _, a, _| truth(a != 0.0), 0);

/// value := op value
pub(crate) fn unary(op: Unary) -> Step {
    let make: Make = match op {
        Unary::Negate => |_, _, a, _| -a,
        Unary::Not => |_, _, a, _| truth(a == 0.0),
    };
    Step::new(make, 0)
}

/// value := function (value)
pub(crate) fn function(function: Function) -> Step {
    let make: Make = match function {
        Function::Abs => |_, _, a, _| a.abs(),
        Function::Floor => |_, _, a, _| a.floor(),
        Function::Ceil => |_, _, a, _| a.ceil(),
        Function::Sqrt => |_, _, a, _| libm::sqrt(a),
        Function::Exp => |_, _, a, _| libm::exp(a),
        Function::Ln => |_, _, a, _| libm::log(a),
        Function::Min | Function::Max => unreachable!("they have two arguments"),
    };
    Step::new(make, 0)
}
