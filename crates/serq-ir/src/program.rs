//! The types of a linked program.
//!
//! Families and members: a `pool kv[4]` is one [`Pool`] with `size: Some(4)`; the
//! kernel gives its members consecutive numbers. A reference names a family and,
//! where the text has an index, the expression of that index.
//!
//! Names stay for reports and messages only; nothing looks them up.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::json::Number;

/// The version this crate writes and reads.
pub const IR_VERSION: u32 = 2;

/// Most members one family of pools or stages may have.
pub const MEMBERS_MAX: u32 = 65_536;
/// Most members all families of pools, or all of stages, may have together.
pub const MEMBERS_TOTAL_MAX: u64 = 1 << 20;
/// Most terms one aggregate writes out (nested aggregates: the product).
pub const AGGREGATE_TERMS_MAX: u64 = 4_096;
/// Deepest nesting of expressions or statements.
pub const DEPTH_MAX: usize = 200;

/// A whole linked program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// [`IR_VERSION`] of the writer.
    pub ir_version: u32,
    /// The program's name: the file's stem.
    pub name: String,
    /// The `let`s with their folded values, in text order (for messages and `check --json`).
    pub constants: Vec<Constant>,
    /// The `let`s that are lists, in text order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lists: Vec<List>,
    /// Every attribute a session carries. The first are [`BuiltIn`], in its order.
    pub attributes: Vec<Attribute>,
    /// Pool families in declaration order.
    pub pools: Vec<Pool>,
    /// Stage families in declaration order.
    pub stages: Vec<Stage>,
    /// How flows over several stages divide them; present iff some run names several stages.
    pub share: Option<SharePolicy>,
    /// Arrivals and what a session brings.
    pub workload: Workload,
    /// What a session does.
    pub session: Block,
    /// Names of the observations, in order of first appearance in the text.
    pub observes: Vec<String>,
    /// Time-averaged functions of the state.
    pub gauges: Vec<Gauge>,
    /// Horizon, warm-up, seed, arrivals.
    pub run: Run,
}

/// A `let` and its value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Constant {
    /// As written.
    pub name: String,
    /// Folded.
    pub value: Number,
}

/// A `let` whose value is a list of numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// As written.
    pub name: String,
    /// Folded; at least one, at most [`LIST_MAX`].
    pub values: Vec<Number>,
}

/// Most numbers in a list.
pub const LIST_MAX: usize = 65_536;

/// One attribute of every session, initially 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Attribute {
    /// `K`, or `D.first` for an attribute of a queue.
    pub name: String,
    /// What a scheduler can't know (workload's `hidden`).
    pub hidden: bool,
}

/// The attributes every program has, at these indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum BuiltIn {
    /// Arrival number, from 0.
    Serial = 0,
    /// Turns begun.
    TurnNo = 1,
    /// Largest prefix the latest admission found.
    Cached = 2,
    /// Position at the preemption of the hold being executed again.
    Computed = 3,
    /// Trace: new tokens of this turn.
    New = 4,
    /// Trace: output tokens.
    Out = 5,
    /// Trace: think time.
    Think = 6,
    /// Trace: 1 while there are further turns.
    More = 7,
    /// Trace: the sixth column.
    Forced = 8,
}

impl BuiltIn {
    /// Names in index order.
    pub const NAMES: [&str; 9] = ["serial", "turn_no", "cached", "computed", "new", "out", "think", "more", "forced"];
}

/// Where in the text a statement or declaration stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// Index in the source map (0: the program's own file; `use`d files follow).
    pub file: u32,
    /// From 1; 0 when unknown.
    pub line: u32,
    /// From 1, in characters.
    pub column: u32,
}

/// A pool family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// `kv`, or `D.kv` inside queue `D`.
    pub name: String,
    /// Members; `None` for a scalar.
    pub size: Option<u32>,
    /// Units; may be infinite.
    pub cap: Number,
    /// Granularity of allocation, caching and eviction; `None` for exact units.
    pub block: Option<Number>,
    /// Which cache entry goes first.
    pub evict: Evict,
    /// What a growth does that does not fit.
    pub preempt: Preempt,
    /// Who is served first.
    pub order: Order,
    /// The step stage family that serves the queue (member k by member k, or a scalar for all).
    pub via: Option<u32>,
    /// Blocks of equal content are one block (needs `block`, `Evict::Lru`; a `spill` goes to a pool that shares, too).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub share_prefixes: bool,
    /// A shared prefix is found from when its computation is scheduled, not from when it is done
    /// (needs `share_prefixes`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub found_scheduled: bool,
    /// Where evicted pieces go.
    pub spill: Option<Spill>,
}

/// Eviction order. Smallest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Evict {
    /// The entry released longest ago.
    Lru,
    /// The smallest key tuple (moment Evict).
    By(Vec<Expr>),
}

/// Preemption rule of a pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Preempt {
    /// The growth waits.
    None,
    /// The candidate admitted last.
    Lifo,
    /// The smallest key tuple (moment Preempt).
    By(Vec<Expr>),
}

/// Queue order of a pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Joining order.
    Fifo,
    /// Smallest key tuple (moment Admit and `waited`), ties in joining order.
    By(Vec<Expr>),
}

/// How many blocks of another size one is, where that is a whole number up to 65 536.
pub fn whole_blocks(block: f64, there: f64) -> Option<u32> {
    let parts = (block / there).round();
    ((1.0..=65_536.0).contains(&parts) && parts * there == block).then_some(parts as u32)
}

/// `spill T via L (work) when (condition)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Spill {
    /// Target pool (member k of a family pairs with member k, or the index given).
    pub pool: PoolRef,
    /// Stage the writing job runs on.
    pub stage: StageRef,
    /// The job's work (moment Evict).
    pub work: Expr,
    /// Non-zero: this piece is spilled (moment Evict).
    pub when: Expr,
}

/// A stage family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// `tool`, `P` (a queue's engine), `P.nic`, `D.nic.latency`.
    pub name: String,
    /// Members; `None` for a scalar.
    pub size: Option<u32>,
    /// How it serves.
    pub kind: StageKind,
    /// Named in some run over several stages: every job on it is a flow.
    pub shared: bool,
}

/// Service discipline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum StageKind {
    /// Arrival order, this many servers.
    Fifo {
        /// At least 1.
        servers: u32,
    },
    /// Processor sharing at total rate `rate` (moment Ps).
    Ps {
        /// φ; of a shared stage always a number.
        rate: Expr,
    },
    /// Every job alone at rate 1.
    Delay,
    /// An engine that iterates.
    Step(Box<Step>),
}

/// A step stage's options.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Tokens an iteration may schedule (moment Budget); `inf` when not given.
    pub budget: Expr,
    /// Prefill tokens a resident may get per iteration (moment Budget); 0: no cap.
    pub chunk: Expr,
    /// Duration of an iteration (moment Step).
    pub cost: Expr,
    /// The pool family whose allocations `kv_decode` and `kv_prefill` count.
    pub memory: Option<u32>,
    /// Who is served first.
    pub serve: Serve,
    /// Whether an iteration is planned while the one before it runs; `None`: it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asynchronous: Option<Asynchronous>,
}

/// `asynchronous 1`: iterations are planned one ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Asynchronous {
    /// `fenced`: what a planned iteration writes to is given back when that is over.
    pub fenced: bool,
}

/// Serve rule of a step stage. `decode first` is written as `by (decoding ? 0 : 1)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Serve {
    /// `serve exclusive prefill`.
    pub exclusive_prefill: bool,
    /// Leaves out residents for which it is 0 (moment Serve).
    pub only: Option<Expr>,
    /// Smallest tuple first, stable on admission order (moment Serve); empty: admission order.
    pub by: Vec<Expr>,
}

/// `share maxmin` or `share bottleneck`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SharePolicy {
    /// Progressive filling.
    Maxmin,
    /// Least of capacity / flows over the flow's stages.
    Bottleneck,
}

/// Arrivals and what sessions bring.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Arrival law.
    pub arrive: Arrive,
    /// Turns from a file.
    pub trace: Option<Trace>,
    /// What the session's prompts begin with; in the place of the trace's block ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<Prefix>,
    /// Runs at arrival: `set` and `observe` only.
    pub init: Block,
    /// Runs at every `turn;` after the trace values: `set` and `observe` only.
    pub turn: Block,
}

/// Arrival law.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Arrive {
    /// Nobody.
    None,
    /// First at 0, then exponential gaps of mean 1/rate.
    Poisson(Number),
    /// A Poisson process whose rate changes in time; first at 0 where the first rate is not 0.
    Steps {
        /// At least one, one of them with a rate above 0. Only the last may go on for ever, and
        /// only where nothing repeats.
        pieces: Vec<Piece>,
        /// After the last piece the first begins again; otherwise nobody comes any more.
        repeat: bool,
    },
    /// The same with pieces of exponential lengths, whose means are the pieces' times; they
    /// come in a circle.
    Bursts {
        /// At least two, one of them with a rate above 0.
        pieces: Vec<Piece>,
    },
    /// At the trace's arrival times divided by this speed; session k replays trace session k.
    Trace(Number),
    /// First after one gap; constants and draws only.
    Renewal(Expr),
    /// This many at 0, a new one whenever one ends.
    Closed(u32),
    /// This many at 0.
    Batch(u32),
}

impl Arrive {
    /// Whether sessions come one after another, whatever becomes of those before. Their number
    /// can be limited ([`Run::arrivals`]).
    pub fn is_open(&self) -> bool {
        match self {
            Self::Poisson(_) | Self::Steps { .. } | Self::Bursts { .. } | Self::Renewal(_) | Self::Trace(_) => true,
            Self::None | Self::Closed(_) | Self::Batch(_) => false,
        }
    }
}

/// A stretch of time with one arrival rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Piece {
    /// Arrivals a clock unit; finite, at least 0.
    pub rate: Number,
    /// How long, or how long on average; positive, finite but where said.
    pub time: Number,
}

/// `trace "file" [ordered];`. The binary reads the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Trace {
    /// As written, relative to the program's file.
    pub path: String,
    /// Session k replays trace session k mod count; otherwise a random one.
    pub ordered: bool,
}

/// `prefix (group, tokens);`: sessions of one group begin with the same tokens. Read after
/// `init` and after every `turn` block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Prefix {
    /// Which.
    pub group: Expr,
    /// How long it is.
    pub tokens: Expr,
}

/// Statements in order.
pub type Block = Vec<Stmt>;

/// A statement and where it stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stmt {
    /// In the text, for messages.
    pub at: Place,
    /// What it does.
    #[serde(rename = "do")]
    pub kind: StmtKind,
}

/// What a statement does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum StmtKind {
    /// Assign an attribute.
    Set {
        /// Index into [`Program::attributes`].
        attribute: u32,
        /// Its new value.
        value: Expr,
    },
    /// One sample.
    Observe {
        /// Index into [`Program::observes`].
        observe: u32,
        /// The sample.
        value: Expr,
    },
    /// turn_no += 1, trace values, the workload's turn block.
    Turn,
    /// The session is over.
    End,
    /// The session is over, and has failed.
    Fail,
    /// Wait for units of one or more pools, run the body inside.
    Hold(Box<Hold>),
    /// Add units to the innermost hold on the pool.
    Grow {
        /// Which.
        pool: PoolRef,
        /// How many, rounded up to blocks by the kernel.
        units: Expr,
    },
    /// The innermost hold's position advances.
    Load {
        /// Which pool.
        pool: PoolRef,
        /// By how much.
        units: Expr,
    },
    /// Forget the session's cached entry.
    Drop {
        /// Where.
        pool: PoolRef,
    },
    /// End the innermost enclosing hold's share, else the oldest lease, else nothing.
    Release {
        /// Of which pool.
        pool: PoolRef,
        /// How much later the lease ends; there is no enclosing hold then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<Expr>,
    },
    /// Work on a stage, or one flow over several.
    Run(Box<RunStmt>),
    /// Two ways.
    Branch {
        /// 1 or 0; with `chance`, the probability of `then`.
        test: Expr,
        /// `branch with`.
        chance: bool,
        /// When 1.
        then: Block,
        /// When 0.
        otherwise: Block,
    },
    /// A session that is cancelled inside goes on to the end of it.
    Shielded {
        /// What is done to its end.
        body: Block,
    },
    /// A leg of the session runs beside it from here on, with a copy of its attributes.
    Fork {
        /// What the leg does.
        body: Block,
    },
    /// Wait until every leg of the session is over.
    Join,
    /// For ever, until `end`.
    Loop {
        /// Repeated.
        body: Block,
    },
    /// attribute := the candidate in 0 … count-1 with the least key tuple.
    Choose {
        /// Holds the candidate while keys are read, and the choice after.
        attribute: u32,
        /// How many candidates.
        count: Expr,
        /// Compared in order.
        keys: Vec<Expr>,
    },
}

/// A hold: header, body, what happens at its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Hold {
    /// At least one; the first pool's queue is joined.
    pub grabs: Vec<Grab>,
    /// Bound on the consumed prefix (moment Admit).
    pub reuse: Option<Expr>,
    /// Runs inside. Where the text's body reads an `at admission` name, it starts with its `set`.
    pub body: Block,
    /// How many units stay cached (read at the end).
    pub cache: Option<Expr>,
    /// The pool whose allocation outlives the scope.
    pub lease: Option<Lease>,
}

/// One pool of a hold's header (moment Admit).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Grab {
    /// Which pool.
    pub pool: PoolRef,
    /// The allocation.
    pub units: Expr,
    /// The room that must be there; `None`: the units.
    pub reserve: Option<Expr>,
}

/// `lease P (t) renewed r every e`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Lease {
    /// Index into the hold's `grabs`.
    pub grab: u32,
    /// How long, in clock units; may be infinite.
    pub time: Expr,
    /// How it goes on while its reader is there; `None`: it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renewed: Option<Renewal>,
    /// How long once its session was cancelled; `None`: it ends then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub abandoned: Option<Expr>,
}

/// `renewed r every e`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Renewal {
    /// How long the lease lasts from a renewal on, at least.
    pub time: Expr,
    /// Between two renewals, from the lease's begin.
    pub every: Expr,
}

/// Work on one stage, or a flow over several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunStmt {
    /// One, or several shared `ps` stages.
    pub stages: Vec<StageRef>,
    /// On step stages, and only there.
    pub mode: Option<Mode>,
    /// Units of the stage.
    pub work: Expr,
    /// The pool whose innermost hold grows with the tokens.
    pub growing: Option<PoolRef>,
    /// Of a prefill that goes on as a decode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<Then>,
    /// Of work that reads what a pool holds for the session, and may fail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reads: Option<Reads>,
}

/// `from P fails (p)`: the run fails where the session holds and leases nothing of P when it begins or ends, or where
/// its driver says so. [`Context::Failed`] is whether its latest one did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reads {
    /// P.
    pub pool: PoolRef,
    /// With this probability it fails at its end, where time is modelled; `None`: with none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fails: Option<Expr>,
}

/// `{ … } decode (n)`: how a prefill goes on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Then {
    /// What is noted once the prefill is over: sets, observes and branches.
    pub body: Block,
    /// Tokens to decode, read when the run begins.
    pub work: Expr,
}

/// What tokens on a step stage are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Prompt tokens: as many an iteration as budget and chunk allow.
    Prefill,
    /// One token an iteration.
    Decode,
}

/// A pool family and the member meant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolRef {
    /// Index into [`Program::pools`].
    pub pool: u32,
    /// `None`: the only member (in a pool's own clauses: the member that corresponds).
    pub member: Option<Box<Expr>>,
}

/// A stage family and the member meant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StageRef {
    /// Index into [`Program::stages`].
    pub stage: u32,
    /// `None`: the only member (in a pool's own clauses: the member that corresponds).
    pub member: Option<Box<Expr>>,
}

/// A time-averaged function of the state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Gauge {
    /// As written.
    pub name: String,
    /// Reads pools and stages with constant indices only (moment Gauge).
    pub value: Expr,
}

/// The run's settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Positive, finite.
    pub horizon: Number,
    /// At least 0, below the horizon.
    pub warmup: Number,
    /// Default 1.
    pub seed: u64,
    /// Arrivals stop after this many and the run ends when the last session has.
    pub arrivals: Option<u64>,
}

/// An expression. All values are doubles; truth is 1 and 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Expr {
    /// A constant, possibly infinite.
    Number(Number),
    /// The session's attribute.
    Attribute(u32),
    /// What is readable at this moment only.
    Context(Context),
    /// The variable of the enclosing aggregate, counted from the innermost (0).
    Variable(u32),
    /// `-x` or `!x`.
    Unary(Unary, Box<Expr>),
    /// `a op b`; `&&` and `||` evaluate only what they need.
    Binary(Binary, Box<Expr>, Box<Expr>),
    /// `c ? a : b`.
    If(Box<Expr>, Box<Expr>, Box<Expr>),
    /// A function of numbers.
    Call(Function, Vec<Expr>),
    /// `used(kv[j])` and its like.
    Pool(PoolFigure, PoolRef),
    /// `work(P[i])` and its like.
    Stage(StageFigure, StageRef),
    /// `price(s, h, d)`.
    Price(StageRef, Box<Expr>, Box<Expr>),
    /// `~law(arguments)`.
    Draw(Law, Vec<Expr>),
    /// `speeds[j]`: the number at this place, from 0, of the list of this index.
    Element(u32, Box<Expr>),
    /// `max k in n (body)`, k = 0 … n-1. A sum is added pairwise: (0 + 1) + (2 + 3) …
    Aggregate {
        /// How terms combine.
        fold: Fold,
        /// At least 1.
        count: u32,
        /// Reads `Variable(0)`.
        body: Box<Expr>,
    },
}

impl Expr {
    /// The expressions directly inside this one, in evaluation order.
    pub fn children(&self) -> impl Iterator<Item = &Self> {
        let (boxed, list): ([Option<&Self>; 3], &[Self]) = match self {
            Self::Number(_) | Self::Attribute(_) | Self::Context(_) | Self::Variable(_) => ([None; 3], &[]),
            Self::Unary(_, a) | Self::Element(_, a) | Self::Aggregate { body: a, .. } => ([Some(a), None, None], &[]),
            Self::Binary(_, a, b) => ([Some(a), Some(b), None], &[]),
            Self::If(c, a, b) => ([Some(c), Some(a), Some(b)], &[]),
            Self::Call(_, arguments) | Self::Draw(_, arguments) => ([None; 3], arguments),
            Self::Pool(_, pool) => ([pool.member.as_deref(), None, None], &[]),
            Self::Stage(_, stage) => ([stage.member.as_deref(), None, None], &[]),
            Self::Price(stage, h, d) => ([stage.member.as_deref(), Some(h), Some(d)], &[]),
        };
        boxed.into_iter().flatten().chain(list)
    }

    /// Visits this expression and all inside it, in evaluation order, outer ones first.
    pub fn each<'e>(&'e self, visit: &mut dyn FnMut(&'e Self)) {
        visit(self);
        self.children().for_each(|child| child.each(visit));
    }

    /// Whether it is what only the entry of one session has: a block that is shared has no such thing.
    pub fn is_of_an_entry(&self) -> bool {
        matches!(self, Self::Attribute(_) | Self::Context(Context::Age | Context::Last | Context::Waiting))
    }

    /// Whether this expression, or one inside it, is as `test` says.
    pub fn any(&self, test: &dyn Fn(&Self) -> bool) -> bool {
        test(self) || self.children().any(|child| child.any(test))
    }
}

impl Stmt {
    /// Visits the expressions this statement itself reads, its blocks' not.
    pub fn each_expr<'s>(&'s self, visit: &mut dyn FnMut(&'s Expr)) {
        match &self.kind {
            StmtKind::Set { value, .. } | StmtKind::Observe { value, .. } => visit(value),
            StmtKind::Turn
            | StmtKind::End
            | StmtKind::Fail
            | StmtKind::Join
            | StmtKind::Fork { .. }
            | StmtKind::Loop { .. }
            | StmtKind::Shielded { .. } => {}
            StmtKind::Drop { pool } => pool.member.iter().for_each(|m| visit(m)),
            StmtKind::Release { pool, after } => pool.member.as_deref().into_iter().chain(after).for_each(visit),
            StmtKind::Hold(hold) => {
                for grab in &hold.grabs {
                    grab.pool.member.iter().for_each(|m| visit(m));
                    visit(&grab.units);
                    grab.reserve.iter().for_each(&mut *visit);
                }
                hold.reuse.iter().for_each(&mut *visit);
                hold.cache.iter().for_each(&mut *visit);
                hold.lease.iter().for_each(|l| {
                    visit(&l.time);
                    l.renewed.iter().flat_map(|r| [&r.time, &r.every]).for_each(&mut *visit);
                    l.abandoned.iter().for_each(&mut *visit);
                });
            }
            StmtKind::Grow { pool, units } | StmtKind::Load { pool, units } => {
                pool.member.iter().for_each(|m| visit(m));
                visit(units);
            }
            StmtKind::Run(run) => {
                run.stages.iter().flat_map(|s| &s.member).for_each(|m| visit(m));
                visit(&run.work);
                run.growing.iter().flat_map(|p| &p.member).for_each(|m| visit(m));
                run.then.iter().for_each(|then| visit(&then.work));
                run.reads.iter().flat_map(|r| r.pool.member.as_deref().into_iter().chain(&r.fails)).for_each(visit);
            }
            StmtKind::Branch { test, .. } => visit(test),
            StmtKind::Choose { count, keys, .. } => {
                visit(count);
                keys.iter().for_each(visit);
            }
        }
    }
}

/// Visits every statement of a block, inner ones too.
pub fn each_stmt<'s>(block: &'s [Stmt], visit: &mut dyn FnMut(&'s Stmt)) {
    for stmt in block {
        visit(stmt);
        match &stmt.kind {
            StmtKind::Hold(hold) => each_stmt(&hold.body, visit),
            StmtKind::Branch { then, otherwise, .. } => {
                each_stmt(then, visit);
                each_stmt(otherwise, visit);
            }
            StmtKind::Fork { body } | StmtKind::Loop { body } | StmtKind::Shielded { body } => each_stmt(body, visit),
            StmtKind::Run(run) => run.then.iter().for_each(|then| each_stmt(&then.body, visit)),
            _ => {}
        }
    }
}

/// The first statement of a block that does more than note: set, observe or choose a way.
pub fn beyond_notes(block: &[Stmt]) -> Option<&Stmt> {
    block.iter().find_map(|stmt| match &stmt.kind {
        StmtKind::Set { .. } | StmtKind::Observe { .. } => None,
        StmtKind::Branch { then, otherwise, .. } => beyond_notes(then).or_else(|| beyond_notes(otherwise)),
        _ => Some(stmt),
    })
}

/// Variables that exist at certain moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
#[allow(missing_docs, reason = "docs/language.md has the table")]
pub enum Context {
    KvDecode,
    Tokens,
    Residents,
    Decoders,
    Prefilled,
    Attention,
    KvPrefill,
    Now,
    Waited,
    Size,
    Age,
    Last,
    Waiting,
    Admission,
    Position,
    Decoding,
    Present,
    Remaining,
    /// `self` of an engine: its number in its family.
    Member,
    /// Farthest position at a preemption of the hold the session executes again.
    Reached,
    /// Whether the session's latest run that reads a pool failed.
    Failed,
}

impl Context {
    /// The first so many are the figures of an iteration.
    pub const OF_ITERATION: usize = 7;
    /// All of them.
    pub const COUNT: usize = 21;
}

/// Unary operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names say it")]
pub enum Unary {
    Negate,
    Not,
}

/// Binary operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names say it")]
pub enum Binary {
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
    And,
    Or,
}

/// Functions of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names say it")]
pub enum Function {
    Min,
    Max,
    Abs,
    Floor,
    Ceil,
    Sqrt,
    Exp,
    Ln,
}

/// What can be read of a pool. `free(p)` is cap - used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PoolFigure {
    /// Allocated units.
    Used,
    /// cap - used.
    Free,
    /// Holds and leases.
    Holders,
    /// Sessions waiting in its own queue.
    Queued,
    /// Units of this session's entry.
    Cachedin,
    /// Units that the prefill runs growing it will still take, on engines whose memory it is.
    Outstanding,
}

/// What can be read of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StageFigure {
    /// Jobs waiting or served.
    Queue,
    /// Jobs in service; on a step stage those of the running iteration.
    Busy,
    /// Unfinished work.
    Work,
    /// Tokens the iteration being planned has left, else what a fresh plan would leave.
    BudgetLeft,
    /// 1 / mean gap between job starts (EWMA 0.01).
    EstLambda,
    /// That times the mean service, at most 0.99.
    EstRho,
    /// Mean wait.
    EstWait,
}

/// Laws of draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names say it")]
pub enum Law {
    Exp,
    Det,
    Uniform,
    Erlang,
    H2,
    Bernoulli,
}

/// How an aggregate's terms combine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names say it")]
pub enum Fold {
    Min,
    Max,
    Sum,
}
