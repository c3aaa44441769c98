//! Expressions, made ready and evaluated.
//!
//! An expression is read at one moment (docs/language.md, "Moments"): the [`Frame`]
//! says whose session it is, which context variables exist, and which stream a draw
//! comes from. Values are doubles; a bad
//! index is recorded once ([`Kernel::record_fault`]) and the run stops at the end
//! of the statement, so evaluation itself never fails.
//!
//! It is a list of operations on one number, the *value*, and a stack of numbers put by:
//!
//! ```text
//!   used(D[j].kv) / (used(D[j].kv) + cap) * 2
//!
//!   load j · pool used of D.kv · push · load j · pool used of D.kv · with + cap · popped / · with * 2
//! ```

use serq_ir as ir;
use serq_ir::{Binary, Context, Fold, Function, Law, PoolFigure, StageFigure};

use crate::kernel::Kernel;
use crate::operation::{self, Dyadic, Leaf, Side, Step, truth};
use crate::world::{Purpose, Stream, World};

/// Phases of an erlang law, at most: its coefficient of variation is 0.01 there.
const PHASES_MAX: f64 = 1e4;

/// No session.
pub(crate) const NOBODY: u32 = u32::MAX;

/// An expression.
#[derive(Debug)]
pub(crate) enum Expr {
    /// One operation: what most are.
    One(Step),
    /// Arithmetic without detours: one step after the other.
    Straight(Box<[Step]>),
    Winding(Box<Winding>),
}

/// An expression with detours.
#[derive(Debug)]
pub(crate) struct Winding {
    ops: Box<[Op]>,
    aggregates: Box<[Aggregate]>,
    /// Most numbers put by at a time.
    depth: usize,
}

#[derive(Clone, Copy, Debug)]
enum Op {
    /// Arithmetic.
    Step(Step),
    Push,
    /// value := the number put by op value
    Popped(Step),
    /// Where the value is 0, it stays and what follows is passed over up to here; or where it
    /// is not, it is 1.
    AndSkip(u32),
    OrSkip(u32),
    /// Where the value is 0.
    ElseSkip(u32),
    Skip(u32),
    /// Of the member whose index is the value.
    PoolAt(PoolFigure, Family),
    Stage(StageFigure, u32),
    StageAt(StageFigure, Family),
    /// The member whose index is the value, by number.
    StageNumber(Family),
    /// Of the stage and `h` put by, and the value, `d`.
    Price,
    /// One argument, the value; or two, the first put by.
    Draw(Law, bool),
    /// Of a list, at the place that is the value.
    Element(u32),
    Aggregate(u32),
}

/// The first member and how many there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Family {
    pub(crate) first: u32,
    pub(crate) size: u32,
}

impl Family {
    /// The member with this index.
    fn member(self, index: f64) -> Option<u32> {
        let whole = index as u32;
        (f64::from(whole) == index && whole < self.size).then(|| self.first + whole)
    }
}

#[derive(Debug)]
struct Aggregate {
    fold: Fold,
    count: u32,
    body: Expr,
}

/// The families of a program's pools and stages.
#[derive(Debug, Default)]
pub(crate) struct Families {
    pub(crate) pools: Vec<Family>,
    pub(crate) stages: Vec<Family>,
    /// The caps of those members of pools whose amounts are whole numbers: there used + free
    /// is the cap, exactly.
    pub(crate) whole_caps: Vec<Option<f64>>,
    /// Of the members of stages: the budget and the chunk of an iteration, where both are written
    /// down as numbers.
    pub(crate) budgets: Vec<Option<(f64, f64)>>,
}

/// What stands for a number known when the program is made ready.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    /// An aggregate's variable.
    Term(u32),
    /// The attribute a choice sets, and whether in its pools the session has nothing cached.
    Candidate { attribute: u32, candidate: u32, absent: bool },
}

impl Expr {
    pub(crate) fn new(expr: &ir::Expr, families: &Families) -> Self {
        Self::with(expr, families, None, &mut |_| None)
    }

    /// With what is bound put in, and with those aggregates taken from folds for which
    /// `fold_of` has one.
    pub(crate) fn with(
        expr: &ir::Expr,
        families: &Families,
        bound: Option<Bound>,
        fold_of: &mut dyn FnMut(&ir::Expr) -> Option<u32>,
    ) -> Self {
        let mut writer = Writer::new(families, bound, fold_of, Form::Straight);
        writer.write(expr);
        if let Form::Straight = writer.form {
            let step = |op: Op| if let Op::Step(step) = op { step } else { unreachable!("a detour") };
            let steps: Box<[Step]> = writer.ops.into_iter().map(step).collect();
            return if let [step] = *steps { Self::One(step) } else { Self::Straight(steps) };
        }
        let mut writer = Writer::new(families, bound, fold_of, Form::Detours);
        writer.write(expr);
        let (ops, aggregates) = (writer.ops.into(), writer.aggregates.into());
        Self::Winding(Box::new(Winding { ops, aggregates, depth: writer.depth }))
    }
}

/// How an expression is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// One step after the other, both sides of a condition included. That takes an expression
    /// that draws nothing and makes nobody evaluate another one, and sides that meet no fault.
    Straight,
    /// With detours: conditions skip what they don't need, and numbers are put by on a stack.
    Detours,
}

/// Writes the operations of one expression.
struct Writer<'a> {
    /// Found to be otherwise while it is written: then it is written anew.
    form: Form,
    families: &'a Families,
    bound: Option<Bound>,
    fold_of: &'a mut dyn FnMut(&ir::Expr) -> Option<u32>,
    ops: Vec<Op>,
    aggregates: Vec<Aggregate>,
    put_by: usize,
    depth: usize,
    /// What is written may not be needed.
    conditional: bool,
}

impl<'a> Writer<'a> {
    fn new(
        families: &'a Families,
        bound: Option<Bound>,
        fold_of: &'a mut dyn FnMut(&ir::Expr) -> Option<u32>,
        form: Form,
    ) -> Self {
        Self {
            form,
            families,
            bound,
            fold_of,
            ops: Vec::new(),
            aggregates: Vec::new(),
            put_by: 0,
            depth: 0,
            conditional: false,
        }
    }

    /// Puts the value by. Answers its place.
    fn push(&mut self) -> u32 {
        let place = self.put_by as u32;
        if self.put_by == PLACES {
            self.form = Form::Detours;
        }
        self.ops.push(match self.form {
            Form::Straight => Op::Step(operation::put_by(place)),
            Form::Detours => Op::Push,
        });
        self.put_by += 1;
        self.depth = self.depth.max(self.put_by);
        place
    }

    /// An operation that is no step.
    fn detour(&mut self, op: Op) {
        self.form = Form::Detours;
        self.ops.push(op);
    }

    /// value := op (a number put by, value)
    fn popped(&mut self, op: Dyadic) {
        self.put_by -= 1;
        self.ops.push(match self.form {
            Form::Straight => Op::Step(operation::dyadic(op, Leaf::PutBy(self.put_by as u32), Side::Left)),
            Form::Detours => Op::Popped(operation::of_number(op)),
        });
    }

    fn here(&self) -> u32 {
        self.ops.len() as u32
    }

    fn load(&mut self, leaf: Leaf) {
        self.step(operation::load(leaf));
    }

    fn step(&mut self, step: Step) {
        self.ops.push(Op::Step(step));
    }

    fn leaf(&mut self, expr: &ir::Expr) -> Option<Leaf> {
        Some(match expr {
            ir::Expr::Number(n) => Leaf::Number(n.0),
            ir::Expr::Attribute(_) | ir::Expr::Variable(_) if self.number(expr).is_some() => {
                Leaf::Number(self.number(expr)?)
            }
            ir::Expr::Attribute(a) => Leaf::Attribute(*a),
            ir::Expr::Context(Context::Now) => Leaf::Now,
            ir::Expr::Context(Context::Reached) => Leaf::Reached,
            ir::Expr::Context(Context::Failed) => Leaf::Failed,
            ir::Expr::Context(context) => Leaf::Context(*context),
            ir::Expr::Variable(depth) => Leaf::Variable(*depth),
            ir::Expr::Pool(figure, pool) => {
                let family = self.families.pools[pool.pool as usize];
                // An attribute that is known is the one of a choice's candidates.
                let by_attribute = matches!(pool.member.as_deref(), Some(ir::Expr::Attribute(_)));
                let absent = by_attribute && matches!(self.bound, Some(Bound::Candidate { absent: true, .. }));
                let pool = self.fixed(family, pool.member.as_deref())?;
                match figure {
                    PoolFigure::Cachedin if absent => Leaf::Number(0.0),
                    PoolFigure::Used => Leaf::Used(pool),
                    PoolFigure::Free => Leaf::Free(pool),
                    PoolFigure::Holders => Leaf::Holders(pool),
                    PoolFigure::Queued => Leaf::Queued(pool),
                    PoolFigure::Cachedin => Leaf::Cachedin(pool),
                    PoolFigure::Outstanding => return None,
                }
            }
            ir::Expr::Binary(Binary::Add, used, free) => match (self.leaf(used)?, self.leaf(free)?) {
                (Leaf::Used(used), Leaf::Free(free)) if used == free => {
                    Leaf::Number(self.families.whole_caps[used as usize]?)
                }
                _ => return None,
            },
            ir::Expr::Aggregate { .. } => Leaf::Folded((self.fold_of)(expr)?),
            ir::Expr::Stage(StageFigure::BudgetLeft, stage) => {
                let family = self.families.stages[stage.stage as usize];
                let stage = self.fixed(family, stage.member.as_deref())?;
                self.families.budgets[stage as usize]?;
                Leaf::BudgetLeft(stage)
            }
            _ => return None,
        })
    }

    /// What is bound, or written as a number.
    fn number(&self, expr: &ir::Expr) -> Option<f64> {
        match (expr, self.bound) {
            (ir::Expr::Number(n), _) => Some(n.0),
            (ir::Expr::Variable(_), Some(Bound::Term(term))) => Some(f64::from(term)),
            (ir::Expr::Attribute(a), Some(Bound::Candidate { attribute, candidate, .. })) if *a == attribute => {
                Some(f64::from(candidate))
            }
            _ => None,
        }
    }

    fn fixed(&self, family: Family, index: Option<&ir::Expr>) -> Option<u32> {
        // Only a family of one goes without an index.
        family.member(index.map_or(Some(0.0), |index| self.number(index))?)
    }

    /// The attribute that is an index, where the step that reads it may be one of a straight
    /// expression: a fault of it must be one that is met.
    fn straight_index(&self, index: Option<&ir::Expr>) -> Option<u32> {
        let index = index?;
        // A bound one is no attribute, but a number that no member has.
        let straight = self.form == Form::Straight && !self.conditional && self.number(index).is_none();
        match index {
            ir::Expr::Attribute(attribute) if straight => Some(*attribute),
            _ => None,
        }
    }

    fn write_conditional(&mut self, expr: &ir::Expr) {
        let outer = std::mem::replace(&mut self.conditional, true);
        self.write(expr);
        self.conditional = outer;
    }

    fn write(&mut self, expr: &ir::Expr) {
        if let Some(leaf) = self.leaf(expr) {
            self.load(leaf);
            return;
        }
        match expr {
            ir::Expr::Unary(op, a) => {
                self.write(a);
                self.step(operation::unary(*op));
            }
            ir::Expr::Binary(op @ (Binary::And | Binary::Or), a, b) => {
                self.write(a);
                if self.form == Form::Straight {
                    self.push();
                    self.write_conditional(b);
                    self.popped(Dyadic::Binary(*op));
                    return;
                }
                // An operand that is not needed takes no draw.
                let skip = self.ops.len();
                self.ops.push(Op::Skip(0));
                self.write(b);
                self.step(operation::TRUTH);
                let here = self.here();
                self.ops[skip] = if *op == Binary::And { Op::AndSkip(here) } else { Op::OrSkip(here) };
            }
            ir::Expr::Binary(op, a, b) => self.dyadic(Dyadic::Binary(*op), a, b),
            ir::Expr::If(c, a, b) => {
                self.write(c);
                if self.form == Form::Straight {
                    let condition = self.push();
                    self.write_conditional(a);
                    self.push();
                    self.write_conditional(b);
                    self.step(operation::select(condition));
                    self.put_by -= 2;
                    return;
                }
                let otherwise = self.ops.len();
                self.ops.push(Op::Skip(0));
                self.write(a);
                let over = self.ops.len();
                self.ops.push(Op::Skip(0));
                self.ops[otherwise] = Op::ElseSkip(self.here());
                self.write(b);
                self.ops[over] = Op::Skip(self.here());
            }
            ir::Expr::Call(Function::Min, arguments) => self.dyadic(Dyadic::Min, &arguments[0], &arguments[1]),
            ir::Expr::Call(Function::Max, arguments) => self.dyadic(Dyadic::Max, &arguments[0], &arguments[1]),
            ir::Expr::Call(function, arguments) => {
                self.write(&arguments[0]);
                self.step(operation::function(*function));
            }
            ir::Expr::Pool(figure, pool) => {
                if let Some(attribute) = self.straight_index(pool.member.as_deref()) {
                    self.step(operation::pool_by(*figure, pool.pool, attribute));
                } else {
                    let family = self.families.pools[pool.pool as usize];
                    self.index(pool.member.as_deref());
                    self.detour(Op::PoolAt(*figure, family));
                }
            }
            ir::Expr::Stage(figure, stage) => {
                let family = self.families.stages[stage.stage as usize];
                if let Some(stage) = self.fixed(family, stage.member.as_deref()) {
                    self.detour(Op::Stage(*figure, stage));
                } else if let (StageFigure::BudgetLeft, true, Some(attribute)) = (
                    figure,
                    self.families.budgets[family.first as usize].is_some(),
                    self.straight_index(stage.member.as_deref()),
                ) {
                    self.step(operation::budget_left_by(stage.stage, attribute));
                } else {
                    self.index(stage.member.as_deref());
                    self.detour(Op::StageAt(*figure, family));
                }
            }
            ir::Expr::Price(stage, h, d) => {
                self.index(stage.member.as_deref());
                self.detour(Op::StageNumber(self.families.stages[stage.stage as usize]));
                self.push();
                self.write(h);
                self.push();
                self.write(d);
                self.detour(Op::Price);
                self.put_by -= 2;
            }
            ir::Expr::Draw(law, arguments) => {
                self.write(&arguments[0]);
                let two = arguments.len() > 1;
                if two {
                    self.push();
                    self.write(&arguments[1]);
                    self.put_by -= 1;
                }
                self.detour(Op::Draw(*law, two));
            }
            ir::Expr::Element(list, index) => {
                self.write(index);
                self.detour(Op::Element(*list));
            }
            ir::Expr::Aggregate { fold, count, body } => {
                let body = Expr::new(body, self.families);
                self.detour(Op::Aggregate(self.aggregates.len() as u32));
                self.aggregates.push(Aggregate { fold: *fold, count: *count, body });
            }
            ir::Expr::Number(_) | ir::Expr::Attribute(_) | ir::Expr::Context(_) | ir::Expr::Variable(_) => {
                unreachable!("a leaf")
            }
        }
    }

    /// The index of a member; of a family of one it may be left out.
    fn index(&mut self, index: Option<&ir::Expr>) {
        match index {
            Some(index) => self.write(index),
            None => self.load(Leaf::Number(0.0)),
        }
    }

    fn dyadic(&mut self, op: Dyadic, a: &ir::Expr, b: &ir::Expr) {
        let (a_leaf, b_leaf) = (self.leaf(a), self.leaf(b));
        if let (Some(a), Some(b)) = (a_leaf, b_leaf)
            && let Some(step) = operation::of_leaves(op, a, b)
        {
            self.step(step);
        } else if let Some(leaf) = b_leaf {
            self.write(a);
            self.step(operation::dyadic(op, leaf, Side::Right));
        } else if let Some(leaf) = a_leaf {
            self.write(b);
            self.step(operation::dyadic(op, leaf, Side::Left));
        } else {
            self.write(a);
            self.push();
            self.write(b);
            self.popped(op);
        }
    }
}

/// A reference to a member.
#[derive(Debug)]
pub(crate) enum Member {
    /// Known.
    Fixed(u32),
    /// By an attribute that is its index.
    Attribute(Family, u32),
    /// By another index.
    Computed(Family, Box<Expr>),
}

impl Member {
    /// Whether it is this member, as far as that is known before it is asked for.
    pub(crate) fn may_be(&self, member: u32) -> bool {
        match self {
            Self::Fixed(fixed) => *fixed == member,
            Self::Attribute(family, _) | Self::Computed(family, _) => {
                (family.first..family.first + family.size).contains(&member)
            }
        }
    }

    fn new(family: Family, index: Option<&ir::Expr>, families: &Families) -> Self {
        match index {
            // Only a family of one goes without an index.
            None => Self::Fixed(family.first),
            Some(ir::Expr::Number(n)) if family.member(n.0).is_some() => Self::Fixed(family.first + n.0 as u32),
            Some(ir::Expr::Attribute(attribute)) => Self::Attribute(family, *attribute),
            Some(index) => Self::Computed(family, Box::new(Expr::new(index, families))),
        }
    }
}

/// A member of a pool family.
#[derive(Debug)]
pub(crate) struct PoolRef(pub(crate) Member);

impl PoolRef {
    pub(crate) fn new(pool: &ir::PoolRef, families: &Families) -> Self {
        Self(Member::new(families.pools[pool.pool as usize], pool.member.as_deref(), families))
    }
}

/// A member of a stage family.
#[derive(Debug)]
pub(crate) struct StageRef(pub(crate) Member);

impl StageRef {
    pub(crate) fn new(stage: &ir::StageRef, families: &Families) -> Self {
        Self(Member::new(families.stages[stage.stage as usize], stage.member.as_deref(), families))
    }
}

/// What an expression reads, found once.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    pub(crate) now: bool,
    pub(crate) draws: bool,
    pub(crate) attributes: bool,
    pub(crate) pools: Vec<u32>,
    pub(crate) stages: Vec<u32>,
    pub(crate) contexts: Vec<Context>,
}

impl Reads {
    pub(crate) fn of(expr: &ir::Expr) -> Self {
        let mut reads = Self::default();
        reads.add(expr);
        reads
    }

    pub(crate) fn add(&mut self, expr: &ir::Expr) {
        expr.each(&mut |expr| match expr {
            ir::Expr::Attribute(_) => self.attributes = true,
            ir::Expr::Context(Context::Now) => self.now = true,
            ir::Expr::Context(context) => self.contexts.push(*context),
            ir::Expr::Draw(..) => self.draws = true,
            ir::Expr::Pool(_, pool) => note(&mut self.pools, pool.pool),
            ir::Expr::Stage(_, stage) | ir::Expr::Price(stage, ..) => note(&mut self.stages, stage.stage),
            _ => {}
        });
    }

    /// The clock or any figure of a pool or stage.
    pub(crate) fn live(&self) -> bool {
        self.now || !self.pools.is_empty() || !self.stages.is_empty()
    }
}

fn note(families: &mut Vec<u32>, family: u32) {
    if !families.contains(&family) {
        families.push(family);
    }
}

/// The values of context variables, by [`Context`].
pub(crate) type Variables = [f64; Context::COUNT];

pub(crate) const NO_VARIABLES: &Variables = &[0.0; Context::COUNT];

/// Who reads, and when.
#[derive(Clone, Copy)]
pub(crate) struct Frame<'a> {
    /// Slot of the session, or [`NOBODY`].
    pub(crate) session: u32,
    /// Where its attributes begin among those of all sessions; of nobody, beyond them.
    pub(crate) attributes: usize,
    /// A copy of the attributes of a session that is gone.
    pub(crate) snapshot: Option<&'a [f64]>,
    /// By [`Context`], as far as there are any.
    pub(crate) variables: &'a [f64],
    pub(crate) draws: Draws,
    pub(crate) scope: Option<&'a Scope<'a>>,
}

/// Where a draw comes from.
#[derive(Clone, Copy)]
pub(crate) enum Draws {
    /// The session's statements.
    Session,
    /// The session's `init` or `turn` block.
    Turn,
    /// A machine: which purpose, which member.
    Machine(Purpose, u32),
}

/// An aggregate's variable and those around it.
#[derive(Clone, Copy)]
pub(crate) struct Scope<'a> {
    pub(crate) value: f64,
    pub(crate) outer: Option<&'a Scope<'a>>,
}

impl<'a> Frame<'a> {
    pub(crate) const fn machine(purpose: Purpose, id: u32, variables: &'a [f64]) -> Self {
        let draws = Draws::Machine(purpose, id);
        Self { session: NOBODY, attributes: usize::MAX / 2, snapshot: None, variables, draws, scope: None }
    }
}

impl Kernel<'_> {
    /// A session reads, in its statements.
    #[inline]
    pub(crate) fn frame(&self, session: u32) -> Frame<'static> {
        let attributes = self.attributes_from(session);
        Frame { session, attributes, snapshot: None, variables: NO_VARIABLES, draws: Draws::Session, scope: None }
    }

    /// A machine reads, for a session, or for nobody.
    pub(crate) fn frame_for<'a>(&self, session: u32, machine: Frame<'a>) -> Frame<'a> {
        Frame { session, attributes: self.attributes_from(session), ..machine }
    }
}

/// Places for numbers put by in straight expressions.
pub(crate) const PLACES: usize = 16;

/// Numbers put by without taking memory for them.
const DEPTH_SMALL: usize = 8;

impl Kernel<'_> {
    #[inline]
    pub(crate) fn eval<W: World>(&self, world: &mut W, expr: &Expr, frame: &Frame<'_>) -> f64 {
        match expr {
            Expr::One(step) => step.take(self, frame, 0.0),
            Expr::Straight(steps) => steps.iter().fold(0.0, |value, step| step.take(self, frame, value)),
            Expr::Winding(winding) => self.eval_ops(world, winding, frame),
        }
    }

    #[inline(never)]
    fn eval_ops<W: World>(&self, world: &mut W, expr: &Winding, frame: &Frame<'_>) -> f64 {
        if expr.depth <= DEPTH_SMALL {
            self.run_ops(world, expr, frame, &mut [0.0; DEPTH_SMALL])
        } else {
            self.eval_deep(world, expr, frame)
        }
    }

    #[cold]
    fn eval_deep<W: World>(&self, world: &mut W, expr: &Winding, frame: &Frame<'_>) -> f64 {
        self.run_ops(world, expr, frame, &mut vec![0.0; expr.depth])
    }

    #[inline(always)]
    fn run_ops<W: World>(&self, world: &mut W, expr: &Winding, frame: &Frame<'_>, stack: &mut [f64]) -> f64 {
        let (mut value, mut at, mut top) = (0.0, 0, 0);
        while let Some(op) = expr.ops.get(at) {
            at += 1;
            match *op {
                Op::Step(step) => value = step.take(self, frame, value),
                Op::Push => {
                    stack[top] = value;
                    top += 1;
                }
                Op::Popped(op) => {
                    top -= 1;
                    value = op.given(stack[top]).take(self, frame, value);
                }
                Op::AndSkip(to) if value == 0.0 => {
                    value = 0.0;
                    at = to as usize;
                }
                Op::OrSkip(to) if value != 0.0 => {
                    value = 1.0;
                    at = to as usize;
                }
                Op::ElseSkip(to) if value == 0.0 => at = to as usize,
                Op::AndSkip(_) | Op::OrSkip(_) | Op::ElseSkip(_) => {}
                Op::Skip(to) => at = to as usize,
                op => value = self.rare_op(world, expr, op, value, (stack, &mut top), frame),
            }
        }
        value
    }

    /// Those that are no arithmetic.
    #[inline(never)]
    fn rare_op<W: World>(
        &self,
        world: &mut W,
        expr: &Winding,
        op: Op,
        value: f64,
        (stack, top): (&mut [f64], &mut usize),
        frame: &Frame<'_>,
    ) -> f64 {
        match op {
            Op::PoolAt(figure, family) => {
                let pool = self.pool_at(family, value, frame);
                self.pool_figure(figure, pool, frame.session)
            }
            Op::Stage(figure, stage) => self.stage_figure(world, figure, stage),
            Op::StageAt(figure, family) => {
                let stage = self.stage_at(family, value, frame);
                self.stage_figure(world, figure, stage)
            }
            Op::StageNumber(family) => {
                let stage = self.stage_at(family, value, frame);
                f64::from(stage)
            }
            Op::Price => {
                *top -= 2;
                self.price(world, stack[*top] as u32, stack[*top + 1], value)
            }
            Op::Draw(law, false) => self.draw(world, law, value, 0.0, frame),
            Op::Draw(law, true) => {
                *top -= 1;
                self.draw(world, law, stack[*top], value, frame)
            }
            Op::Element(list) => self.element(list, value, frame),
            Op::Aggregate(id) => {
                let Aggregate { fold, count, body } = &expr.aggregates[id as usize];
                self.aggregate(world, (*fold, body), 0, count.next_power_of_two(), *count, frame)
            }
            _ => unreachable!("arithmetic is done where it is met"),
        }
    }

    fn element(&self, list: u32, index: f64, frame: &Frame<'_>) -> f64 {
        let list = &self.code.lists[list as usize];
        let at = index as usize;
        match list.values.get(at) {
            Some(value) if at as f64 == index => value.0,
            _ => {
                let message =
                    format!("index {index} of {}: its elements are 0 to {}", list.name, list.values.len() - 1);
                self.record_fault(message, frame.session);
                f64::NAN
            }
        }
    }

    fn price<W: World>(&self, world: &mut W, stage: u32, h: f64, d: f64) -> f64 {
        let lambda = self.stage_figure(world, StageFigure::EstLambda, stage);
        let rho = self.stage_figure(world, StageFigure::EstRho, stage);
        let wait = self.stage_figure(world, StageFigure::EstWait, stage);
        d + lambda * ((h + d) * (h + d) - h * h) / (2.0 * (1.0 - rho)) + lambda * wait * d / (1.0 - rho)
    }

    /// Terms `first` to `first + size` (a power of two; `count` terms in all), folded pairwise.
    fn aggregate<W: World>(
        &self,
        world: &mut W,
        (kind, body): (Fold, &Expr),
        first: u32,
        size: u32,
        count: u32,
        frame: &Frame<'_>,
    ) -> f64 {
        if size == 1 {
            let scope = Scope { value: f64::from(first), outer: frame.scope };
            return self.eval(world, body, &Frame { scope: Some(&scope), ..*frame });
        }
        let half = size / 2;
        let left = self.aggregate(world, (kind, body), first, half, count, frame);
        if first + half >= count {
            return left;
        }
        fold(kind, left, self.aggregate(world, (kind, body), first + half, half, count, frame))
    }

    /// The keys, appended to `out`.
    pub(crate) fn eval_keys<W: World>(&self, world: &mut W, keys: &[Expr], frame: &Frame<'_>, out: &mut Vec<f64>) {
        for key in keys {
            let value = self.eval(world, key, frame);
            out.push(value);
        }
    }

    #[inline]
    pub(crate) fn pool_member<W: World>(&self, world: &mut W, pool: &PoolRef, frame: &Frame<'_>) -> u32 {
        self.member(world, &pool.0, frame, |at| &self.code.pools[at as usize].name)
    }

    #[inline]
    pub(crate) fn stage_member<W: World>(&self, world: &mut W, stage: &StageRef, frame: &Frame<'_>) -> u32 {
        self.member(world, &stage.0, frame, |at| &self.code.stages[at as usize].name)
    }

    #[inline]
    fn member<'n, W: World>(
        &self,
        world: &mut W,
        member: &Member,
        frame: &Frame<'_>,
        name: impl Fn(u32) -> &'n String,
    ) -> u32 {
        match member {
            Member::Fixed(id) => *id,
            // References are a session's.
            Member::Attribute(family, attribute) => {
                self.member_at(*family, operation::read_attribute(self, frame, *attribute), frame, name)
            }
            Member::Computed(family, index) => {
                let index = self.eval(world, index, frame);
                self.member_at(*family, index, frame, name)
            }
        }
    }

    #[inline]
    pub(crate) fn pool_at(&self, family: Family, index: f64, frame: &Frame<'_>) -> u32 {
        self.member_at(family, index, frame, |at| &self.code.pools[at as usize].name)
    }

    #[inline]
    pub(crate) fn stage_at(&self, family: Family, index: f64, frame: &Frame<'_>) -> u32 {
        self.member_at(family, index, frame, |at| &self.code.stages[at as usize].name)
    }

    #[inline(always)]
    fn member_at<'n>(&self, family: Family, index: f64, frame: &Frame<'_>, name: impl Fn(u32) -> &'n String) -> u32 {
        family.member(index).unwrap_or_else(|| self.record_index(family, index, frame.session, name(family.first)))
    }

    /// A bad index stands for the first member until the run stops for it.
    #[cold]
    fn record_index(&self, family: Family, index: f64, session: u32, name: &str) -> u32 {
        let message = format!("index {index} of {name}: its members are 0 to {}", family.size - 1);
        self.record_fault(message, session);
        family.first
    }

    fn uniform<W: World>(&self, world: &mut W, frame: &Frame<'_>) -> f64 {
        let (purpose, owner, turn, counter) = match frame.draws {
            Draws::Session => {
                let session = &self.sessions[frame.session as usize];
                if session.leg == 0 {
                    (Purpose::Session, session.serial, 0, &session.draws)
                } else {
                    (Purpose::Leg, session.serial, session.turns + (u64::from(session.leg) << 32), &session.draws)
                }
            }
            Draws::Turn => {
                let session = &self.sessions[frame.session as usize];
                (Purpose::Turn, session.serial, session.turns, &self.turn_draws)
            }
            Draws::Machine(purpose, id) => (purpose, u64::from(id), 0, self.machine_draws(purpose, id)),
        };
        let stream = Stream { purpose, owner, turn, counter: counter.get() };
        counter.set(stream.counter + 1);
        world.uniform(stream)
    }

    fn exponential<W: World>(&self, world: &mut W, frame: &Frame<'_>, mean: f64) -> f64 {
        -mean * libm::log(1.0 - self.uniform(world, frame))
    }

    fn draw<W: World>(&self, world: &mut W, law: Law, a: f64, b: f64, frame: &Frame<'_>) -> f64 {
        match law {
            Law::Exp => self.exponential(world, frame, a),
            Law::Det => a,
            Law::Uniform => a + (b - a) * self.uniform(world, frame),
            Law::Erlang => {
                if a.is_nan() {
                    return f64::NAN;
                }
                let phases = a.floor().max(1.0);
                if phases > PHASES_MAX {
                    let message = format!("an erlang law of {phases} phases; {PHASES_MAX} is the most");
                    self.record_fault(message, frame.session);
                    return f64::NAN;
                }
                let mean = b / phases;
                let mut sum = 0.0;
                for _ in 0..phases as u32 {
                    sum += self.exponential(world, frame, mean);
                }
                sum
            }
            Law::H2 => {
                let v = b.max(1.0);
                let p = 0.5 * (1.0 + libm::sqrt((v - 1.0) / (v + 1.0)));
                let mean = if self.uniform(world, frame) < p { a / (2.0 * p) } else { a / (2.0 * (1.0 - p)) };
                self.exponential(world, frame, mean)
            }
            Law::Bernoulli => truth(self.uniform(world, frame) < a),
        }
    }

    /// A draw that is 1 with probability `p`, for `branch with`.
    pub(crate) fn chance<W: World>(&self, world: &mut W, p: f64, frame: &Frame<'_>) -> bool {
        self.uniform(world, frame) < p
    }
}

/// Two terms as one; of equal ones the left.
#[inline(always)]
pub(crate) fn fold(kind: Fold, a: f64, b: f64) -> f64 {
    match kind {
        Fold::Min if b < a || a.is_nan() => b,
        Fold::Max if b > a || a.is_nan() => b,
        Fold::Min | Fold::Max => a,
        Fold::Sum => a + b,
    }
}
