//! Expressions, made ready and evaluated.
//!
//! An expression is read at one moment (docs/language.md, "Moments"): the [`Frame`]
//! says whose session it is, which context variables exist, and which stream a draw
//! comes from. Values are doubles; a bad
//! index is recorded once ([`Kernel::record_fault`]) and the run stops at the end
//! of the statement, so evaluation itself never fails.

use serq_ir as ir;
use serq_ir::{Binary, Context, Fold, Function, Law, PoolFigure, StageFigure, Unary};

use crate::kernel::Kernel;
use crate::world::{Purpose, Stream, World};

/// Phases of an erlang law, at most: its coefficient of variation is 0.01 there.
const PHASES_MAX: f64 = 1e4;

/// No session.
pub(crate) const NOBODY: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) enum Expr {
    Number(f64),
    Attribute(u32),
    Now,
    Context(Context),
    Variable(u32),
    Unary(Unary, Box<Expr>),
    Binary(Binary, Box<(Expr, Expr)>),
    If(Box<(Expr, Expr, Expr)>),
    Call(Function, Box<[Expr]>),
    Pool(PoolFigure, PoolRef),
    Stage(StageFigure, StageRef),
    Price(Box<(StageRef, Expr, Expr)>),
    Draw(Law, Box<[Expr]>),
    Aggregate {
        fold: Fold,
        count: u32,
        body: Box<Expr>,
    },
    /// An aggregate of a gauge, kept up to date ([`crate::gauge`]).
    Folded(u32),
}

/// A reference to a member.
#[derive(Debug)]
pub(crate) enum Member {
    /// Known.
    Fixed(u32),
    /// By index.
    Computed { first: u32, size: u32, index: Box<Expr> },
}

impl Member {
    fn new((first, size): (u32, u32), index: Option<&ir::Expr>, lower: impl Fn(&ir::Expr) -> Expr) -> Self {
        match index {
            // Only a family of one goes without an index.
            None => Self::Fixed(first),
            Some(ir::Expr::Number(n)) if n.0 >= 0.0 && n.0 < f64::from(size) && n.0.fract() == 0.0 => {
                Self::Fixed(first + n.0 as u32)
            }
            Some(index) => Self::Computed { first, size, index: Box::new(lower(index)) },
        }
    }
}

/// A member of a pool family.
#[derive(Debug)]
pub(crate) struct PoolRef(pub(crate) Member);

impl PoolRef {
    pub(crate) fn new(family: (u32, u32), index: Option<&ir::Expr>, lower: impl Fn(&ir::Expr) -> Expr) -> Self {
        Self(Member::new(family, index, lower))
    }
}

/// A member of a stage family.
#[derive(Debug)]
pub(crate) struct StageRef(pub(crate) Member);

impl StageRef {
    pub(crate) fn new(family: (u32, u32), index: Option<&ir::Expr>, lower: impl Fn(&ir::Expr) -> Expr) -> Self {
        Self(Member::new(family, index, lower))
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
        match expr {
            ir::Expr::Attribute(_) => self.attributes = true,
            ir::Expr::Context(Context::Now) => self.now = true,
            ir::Expr::Context(context) => self.contexts.push(*context),
            ir::Expr::Draw(..) => self.draws = true,
            ir::Expr::Pool(_, pool) => note(&mut self.pools, pool.pool),
            ir::Expr::Stage(_, stage) | ir::Expr::Price(stage, ..) => note(&mut self.stages, stage.stage),
            _ => {}
        }
        expr.children().for_each(|child| self.add(child));
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
pub(crate) type Variables = [f64; 18];

pub(crate) const NO_VARIABLES: &Variables = &[0.0; 18];

/// Who reads, and when.
#[derive(Clone, Copy)]
pub(crate) struct Frame<'a> {
    /// Slot of the session, or [`NOBODY`].
    pub(crate) session: u32,
    /// A copy of the attributes of a session that is gone.
    pub(crate) snapshot: Option<&'a [f64]>,
    pub(crate) variables: &'a Variables,
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
    value: f64,
    outer: Option<&'a Scope<'a>>,
}

impl Scope<'_> {
    pub(crate) fn of_term(term: u32) -> Self {
        Self { value: f64::from(term), outer: None }
    }
}

impl<'a> Frame<'a> {
    pub(crate) fn session(session: u32) -> Self {
        Self { session, snapshot: None, variables: NO_VARIABLES, draws: Draws::Session, scope: None }
    }

    pub(crate) fn machine(purpose: Purpose, id: u32, variables: &'a Variables) -> Self {
        Self { session: NOBODY, snapshot: None, variables, draws: Draws::Machine(purpose, id), scope: None }
    }
}

impl Kernel<'_> {
    /// The leaves of an expression are read here, without a call.
    #[inline(always)]
    pub(crate) fn eval<W: World>(&self, world: &mut W, expr: &Expr, frame: &Frame<'_>) -> f64 {
        match expr {
            Expr::Number(n) => *n,
            Expr::Attribute(a) => self.read_attribute(*a, frame),
            Expr::Context(context) => frame.variables[*context as usize],
            _ => self.eval_node(world, expr, frame),
        }
    }

    #[inline]
    fn read_attribute(&self, attribute: u32, frame: &Frame<'_>) -> f64 {
        match frame.snapshot {
            Some(attributes) => attributes[attribute as usize],
            None if frame.session == NOBODY => 0.0,
            None => self.attribute(frame.session, attribute),
        }
    }

    fn eval_node<W: World>(&self, world: &mut W, expr: &Expr, frame: &Frame<'_>) -> f64 {
        match expr {
            Expr::Number(n) => *n,
            Expr::Attribute(a) => self.read_attribute(*a, frame),
            Expr::Now => self.now,
            Expr::Context(context) => frame.variables[*context as usize],
            Expr::Variable(depth) => {
                let mut scope = frame.scope;
                for _ in 0..*depth {
                    scope = scope.and_then(|s| s.outer);
                }
                scope.map_or(0.0, |s| s.value)
            }
            Expr::Unary(Unary::Negate, a) => -self.eval(world, a, frame),
            Expr::Unary(Unary::Not, a) => truth(self.eval(world, a, frame) == 0.0),
            Expr::Binary(op, operands) => {
                let a = self.eval(world, &operands.0, frame);
                // Short circuits: an operand that is not needed takes no draw.
                match op {
                    Binary::And if a == 0.0 => 0.0,
                    Binary::Or if a != 0.0 => 1.0,
                    _ => binary(*op, a, self.eval(world, &operands.1, frame)),
                }
            }
            Expr::If(parts) => {
                let chosen = if self.eval(world, &parts.0, frame) != 0.0 { &parts.1 } else { &parts.2 };
                self.eval(world, chosen, frame)
            }
            Expr::Call(function, arguments) => {
                let a = self.eval(world, &arguments[0], frame);
                match function {
                    Function::Min => a.min(self.eval(world, &arguments[1], frame)),
                    Function::Max => a.max(self.eval(world, &arguments[1], frame)),
                    Function::Abs => a.abs(),
                    Function::Floor => a.floor(),
                    Function::Ceil => a.ceil(),
                    Function::Sqrt => libm::sqrt(a),
                    Function::Exp => libm::exp(a),
                    Function::Ln => libm::log(a),
                }
            }
            Expr::Pool(figure, pool) => {
                let pool = self.pool_member(world, pool, frame);
                self.pool_figure(*figure, pool, frame.session)
            }
            Expr::Stage(figure, stage) => {
                let stage = self.stage_member(world, stage, frame);
                self.stage_figure(world, *figure, stage)
            }
            Expr::Price(parts) => {
                let stage = self.stage_member(world, &parts.0, frame);
                let h = self.eval(world, &parts.1, frame);
                let d = self.eval(world, &parts.2, frame);
                let lambda = self.stage_figure(world, StageFigure::EstLambda, stage);
                let rho = self.stage_figure(world, StageFigure::EstRho, stage);
                let wait = self.stage_figure(world, StageFigure::EstWait, stage);
                d + lambda * ((h + d) * (h + d) - h * h) / (2.0 * (1.0 - rho)) + lambda * wait * d / (1.0 - rho)
            }
            Expr::Draw(law, arguments) => {
                let a = self.eval(world, &arguments[0], frame);
                let b = if arguments.len() > 1 { self.eval(world, &arguments[1], frame) } else { 0.0 };
                self.draw(world, *law, a, b, frame)
            }
            Expr::Aggregate { fold, count, body } => {
                self.aggregate(world, (*fold, body), 0, count.next_power_of_two(), *count, frame)
            }
            Expr::Folded(id) => self.gauges.root(*id),
        }
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

    #[inline(always)]
    fn member<'n, W: World>(
        &self,
        world: &mut W,
        member: &Member,
        frame: &Frame<'_>,
        name: impl Fn(u32) -> &'n String,
    ) -> u32 {
        match member {
            Member::Fixed(id) => *id,
            Member::Computed { first, size, index } => {
                let index = self.eval(world, index, frame);
                let whole = index as u32;
                if f64::from(whole) == index && whole < *size {
                    first + whole
                } else {
                    let message = format!("index {index} of {}: its members are 0 to {}", name(*first), size - 1);
                    self.record_fault(message, frame.session);
                    *first
                }
            }
        }
    }

    fn uniform<W: World>(&self, world: &mut W, frame: &Frame<'_>) -> f64 {
        let (purpose, owner, turn, counter) = match frame.draws {
            Draws::Session => {
                let session = &self.sessions[frame.session as usize];
                (Purpose::Session, session.serial, 0, &session.draws)
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
pub(crate) fn fold(kind: Fold, a: f64, b: f64) -> f64 {
    match kind {
        Fold::Min if b < a || a.is_nan() => b,
        Fold::Max if b > a || a.is_nan() => b,
        Fold::Min | Fold::Max => a,
        Fold::Sum => a + b,
    }
}

fn truth(value: bool) -> f64 {
    if value { 1.0 } else { 0.0 }
}

fn binary(op: Binary, a: f64, b: f64) -> f64 {
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
        Binary::And | Binary::Or => truth(b != 0.0),
    }
}
