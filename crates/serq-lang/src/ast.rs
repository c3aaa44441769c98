//! The tree the parser builds: the text's shape, nothing resolved.
//!
//! Every node keeps its span. Words that are keywords only by position (options,
//! stage kinds, roles, laws) arrive as the enum the grammar allows there; names
//! stay text.

use crate::source::Span;

/// A name where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Name {
    /// As written.
    pub text: String,
    /// Where.
    pub span: Span,
}

/// A file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct File {
    /// In text order.
    pub items: Vec<Item>,
}

/// A top-level declaration.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// `let NAME = expr;`
    Let(Let),
    /// `use "path";`
    Use(Use),
    /// `vary "path";`
    Vary(Use),
    /// `def NAME(…) …`
    Def(Def),
    /// `pool NAME[n] { … }`
    Pool(Pool),
    /// `stage NAME[n] : kind;`
    Stage(Stage),
    /// `queue NAME[n] : roles { … }`
    Queue(Queue),
    /// `D pull P latency x share policy;` or `P push D …`
    Relation(Relation),
    /// `share policy;`
    Share(Share),
    /// `workload { … }`
    Workload(Workload),
    /// `session { … }`
    Session(SessionBlock),
    /// `server { … }`
    Server(SessionBlock),
    /// `gauge NAME = expr;`
    Gauge(Let),
    /// `run { … }`
    Run(Run),
}

/// `let NAME = expr;` and `gauge NAME = expr;`
#[derive(Clone, Debug, PartialEq)]
pub struct Let {
    /// The new name.
    pub name: Name,
    /// Its value.
    pub value: Expr,
    /// The whole item.
    pub span: Span,
}

/// `use "path";` and `vary "path";`
#[derive(Clone, Debug, PartialEq)]
pub struct Use {
    /// Between the quotes.
    pub path: String,
    /// The string with its quotes.
    pub path_span: Span,
    /// The whole item.
    pub span: Span,
}

/// `def NAME(parameters) = expr;` or `def NAME(parameters) { … }`
#[derive(Clone, Debug, PartialEq)]
pub struct Def {
    /// The new name.
    pub name: Name,
    /// In order.
    pub parameters: Vec<Name>,
    /// What a use is replaced by.
    pub body: DefBody,
    /// The whole item.
    pub span: Span,
}

/// Body of a definition.
#[derive(Clone, Debug, PartialEq)]
pub enum DefBody {
    /// `= expr;`
    Expr(Expr),
    /// `{ … }`
    Block(Block),
}

/// A pool, at the top or inside a queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// The new name.
    pub name: Name,
    /// `[n]`; always `None` inside a queue.
    pub size: Option<Expr>,
    /// In text order, repetitions included.
    pub options: Vec<PoolOption>,
    /// The whole item.
    pub span: Span,
}

/// One option of a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolOption {
    /// What it says.
    pub kind: PoolOptionKind,
    /// From its first word to its `;`.
    pub span: Span,
}

/// What an option of a pool says.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "a program has a handful of them")]
pub enum PoolOptionKind {
    /// `cap expr`
    Cap(Expr),
    /// `block expr`
    Block(Expr),
    /// `evict lru` (`None`) or `evict by (…)`
    Evict(Option<Vec<Expr>>),
    /// `preempt …`
    Preempt(Preempt),
    /// `queue fifo` (`None`) or `queue by (…)`
    Queue(Option<Vec<Expr>>),
    /// `admit via ref`
    AdmitVia(Ref),
    /// `share prefixes`, and whether `scheduled` follows.
    SharePrefixes(bool),
    /// `spill ref via ref (work) when (condition)`
    Spill {
        /// Where evicted pieces go.
        pool: Ref,
        /// What writes them.
        stage: Ref,
        /// The writing job's work.
        work: Expr,
        /// Which pieces.
        when: Expr,
    },
}

/// `preempt none | lifo | by (…)`
#[derive(Clone, Debug, PartialEq)]
pub enum Preempt {
    /// `none`
    None,
    /// `lifo`
    Lifo,
    /// `by (…)`
    By(Vec<Expr>),
}

/// A stage at the top.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// The new name.
    pub name: Name,
    /// `[n]`
    pub size: Option<Expr>,
    /// How it serves.
    pub kind: StageKind,
    /// The whole item.
    pub span: Span,
}

/// A stage's kind.
#[derive(Clone, Debug, PartialEq)]
pub struct StageKind {
    /// Which.
    pub kind: StageKindKind,
    /// From the kind's word to its last token.
    pub span: Span,
}

/// Which kind a stage is.
#[derive(Clone, Debug, PartialEq)]
pub enum StageKindKind {
    /// `fifo` or `fifo(c)`
    Fifo(Option<Expr>),
    /// `ps(rate)`
    Ps(Expr),
    /// `delay`
    Delay,
    /// `step { … }`
    Step(Vec<StepOption>),
}

/// One option of a step stage.
#[derive(Clone, Debug, PartialEq)]
pub struct StepOption {
    /// What it says.
    pub kind: StepOptionKind,
    /// From its first word to its `;`.
    pub span: Span,
}

/// What an option of a step stage says.
#[derive(Clone, Debug, PartialEq)]
pub enum StepOptionKind {
    /// `budget expr`
    Budget(Expr),
    /// `cost expr`
    Cost(Expr),
    /// `chunk expr`
    Chunk(Expr),
    /// `memory ref`
    Memory(Ref),
    /// `serve rule`
    Serve(ServeRule),
    /// `asynchronous expr fenced`
    Asynchronous(Expr, bool),
}

/// How a prefill goes on: `{ … } decode (n)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Then {
    /// What is noted in between.
    pub body: Block,
    /// Tokens to decode.
    pub work: Expr,
}

/// `serve …` of a step stage.
#[derive(Clone, Debug, PartialEq)]
pub enum ServeRule {
    /// `admission`
    Admission,
    /// `by (…)`
    By(Vec<Expr>),
    /// `decode first`
    DecodeFirst,
    /// `exclusive prefill`
    ExclusivePrefill,
    /// `only (p)` and what follows it (`admission`, `by` or `decode first`)
    Only(Expr, Option<Box<ServeRule>>),
}

/// A queue: one station's pools, stage, NIC and entries.
#[derive(Clone, Debug, PartialEq)]
pub struct Queue {
    /// The new name.
    pub name: Name,
    /// `[n]`
    pub size: Option<Expr>,
    /// As written; the linker knows the four.
    pub roles: Vec<Name>,
    /// In text order (the linker checks the order).
    pub items: Vec<QueueItem>,
    /// The whole item.
    pub span: Span,
}

/// An item of a queue.
#[derive(Clone, Debug, PartialEq)]
pub enum QueueItem {
    /// `pool NAME { … }`
    Pool(Pool),
    /// `serve kind latency x;`
    Serve {
        /// How the queue's own stage serves.
        kind: StageKind,
        /// `latency x` (link queues).
        latency: Option<Expr>,
        /// The whole item.
        span: Span,
    },
    /// `nic kind;`
    Nic {
        /// How it serves.
        kind: StageKind,
        /// The whole item.
        span: Span,
    },
    /// `VERB (parameters) from NAME { … }`
    Entry(Entry),
}

/// An entry of a queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// `route`, `prefill`, `decode`, `transfer`, or a word the linker refuses.
    pub verb: Name,
    /// `None` without parentheses.
    pub parameters: Option<Vec<Name>>,
    /// `from NAME`
    pub from: Option<Name>,
    /// What it does.
    pub body: Block,
    /// From the verb to the end of the header.
    pub header_span: Span,
    /// The whole item.
    pub span: Span,
}

/// `READER pull SOURCE latency x share policy;`
#[derive(Clone, Debug, PartialEq)]
pub struct Relation {
    /// The queue the data comes to: in front of `pull`, behind `push`.
    pub reader: Name,
    /// `push` instead of `pull`: the source begins a copy.
    pub push: bool,
    /// The word `pull` or `push`.
    pub verb_span: Span,
    /// The queue it comes from.
    pub source: Name,
    /// `latency x`
    pub latency: Option<Expr>,
    /// `share policy`
    pub policy: Policy,
    /// The whole item.
    pub span: Span,
}

/// `maxmin` or `bottleneck`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Policy {
    /// `maxmin`
    Maxmin,
    /// `bottleneck`
    Bottleneck,
}

/// `share policy;`
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// Which.
    pub policy: Policy,
    /// The whole item.
    pub span: Span,
}

/// `workload { … }`
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// In text order.
    pub items: Vec<WorkloadItem>,
    /// The word `workload`.
    pub keyword_span: Span,
    /// The whole item.
    pub span: Span,
}

/// An item of a workload.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkloadItem {
    /// `arrive law;`
    Arrive(Arrive, Span),
    /// `trace "path" ordered;`
    Trace {
        /// Between the quotes.
        path: String,
        /// `ordered`
        ordered: bool,
        /// The whole item.
        span: Span,
    },
    /// `hidden a, b;`
    Hidden(Vec<Name>, Span),
    /// `prefix (group, tokens);`, the list as long as it was written
    Prefix(Vec<Expr>, Span),
    /// `init { … }`
    Init(Block),
    /// `turn { … }`
    Turn(Block),
    /// `request { … }`, and the word
    Request(Block, Span),
    /// `session { … }`
    Session(SessionBlock),
}

/// An arrival law.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrive {
    /// `poisson(rate)`
    Poisson(Expr),
    /// `poisson(rate) for time, (rate) for time, repeat`
    Steps {
        /// At least one. Only the last may have no time, and only without `repeat`.
        pieces: Vec<Piece>,
        /// `repeat`
        repeat: bool,
    },
    /// `bursts(rate) for mean, (rate) for mean`
    Bursts(Vec<Piece>),
    /// `renewal(gap)`
    Renewal(Expr),
    /// `closed(n)`
    Closed(Expr),
    /// `batch(n)`
    Batch(Expr),
    /// `trace` or `trace(speed)`, and where the word stands
    Trace(Option<Expr>, Span),
    /// `none`
    None,
}

/// `(rate) for time`
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// In the parentheses.
    pub rate: Expr,
    /// After `for`.
    pub time: Option<Expr>,
}

/// `session { … }` or `server { … }`
#[derive(Clone, Debug, PartialEq)]
pub struct SessionBlock {
    /// The statements.
    pub body: Block,
    /// The word `session` or `server`.
    pub keyword_span: Span,
}

/// `run { … }`
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// In text order, repetitions included.
    pub fields: Vec<RunField>,
    /// The word `run`.
    pub keyword_span: Span,
}

/// A field of the run block.
#[derive(Clone, Debug, PartialEq)]
pub struct RunField {
    /// Which.
    pub kind: RunFieldKind,
    /// Its value.
    pub value: Expr,
    /// From its word to its `;`.
    pub span: Span,
}

/// Which field of the run block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RunFieldKind {
    /// `horizon`
    Horizon,
    /// `warmup`
    Warmup,
    /// `seed`
    Seed,
    /// `arrivals`
    Arrivals,
}

/// `{ … }`
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Block {
    /// In order.
    pub stmts: Vec<Stmt>,
    /// With the braces.
    pub span: Span,
}

/// A statement.
#[derive(Clone, Debug, PartialEq)]
pub struct Stmt {
    /// Which.
    pub kind: StmtKind,
    /// From its first word to its last token.
    pub span: Span,
}

/// Which statement.
#[derive(Clone, Debug, PartialEq)]
pub enum StmtKind {
    /// `set NAME = expr;`
    Set(Name, Expr),
    /// `observe NAME = expr;`
    Observe(Name, Expr),
    /// `mark NAME;`
    Mark(Name),
    /// `turn;`
    Turn,
    /// `end;`
    End,
    /// `fail;`
    Fail,
    /// `request;` or `request NAME;`
    Request(Option<Name>),
    /// `hold …`
    Hold(Box<Hold>),
    /// `grow P (d);`
    Grow(Ref, Expr),
    /// `load P (n);`
    Load(Ref, Expr),
    /// `drop P;`
    Drop(Ref),
    /// `release P after (t);`
    Release(Ref, Option<Expr>),
    /// `run A, B prefill (w) growing P;`
    Run {
        /// None: the queue's own stage.
        stages: Vec<Ref>,
        /// `prefill` or `decode`
        mode: Option<Mode>,
        /// The work.
        work: Expr,
        /// `{ … } decode (n)`
        then: Option<Box<Then>>,
        /// `growing P`
        growing: Option<Ref>,
        /// `from P fails (p)`
        reads: Option<Box<Reads>>,
    },
    /// `prefill …;`, `decode …;`, `tool …;`
    Serve {
        /// Which form.
        form: Form,
        /// `[e]`
        index: Option<Expr>,
        /// `on S`
        on: Option<Ref>,
        /// The work.
        work: Expr,
        /// `{ … } decode (n)`
        then: Option<Box<Then>>,
        /// `growing P`
        growing: Option<Ref>,
    },
    /// `transfer W from P to Q (n) fails (p) else …;`
    Transfer {
        /// `[e]`
        index: Option<Expr>,
        /// `on A, B`
        on: Vec<Ref>,
        /// The flow's work.
        work: Expr,
        /// `from P`
        from: Ref,
        /// `to Q`
        to: Ref,
        /// `(n)`
        load: Expr,
        /// `fails (p)`
        fails: Option<Box<Expr>>,
        /// `else …`
        otherwise: Option<Box<Otherwise>>,
    },
    /// `branch (e) A else B`
    Branch {
        /// `with`
        chance: bool,
        /// The guard.
        test: Expr,
        /// When 1.
        then: Block,
        /// When 0.
        otherwise: Option<Block>,
    },
    /// `loop A`
    Loop(Block),
    /// `shielded { … }`
    Shielded(Block),
    /// `fork { … }`
    Fork(Block),
    /// `join;`
    Join,
    /// `choose x in n by (…);`
    Choose(Name, Expr, Vec<Expr>),
    /// `Q[i].verb (…) from P[i] to M (m);`
    Call {
        /// `Q[i].verb`: family, index, and the verb as `field`.
        target: Ref,
        /// In order.
        arguments: Vec<Expr>,
        /// `from P[i]`
        from: Option<Ref>,
        /// `to M (m)`
        to: Option<(Ref, Expr)>,
    },
    /// `NAME (…);`, a statement definition
    Use(Name, Vec<Expr>),
}

/// `from P fails (p)` behind the work of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Reads {
    /// `P`
    pub pool: Ref,
    /// `(p)`
    pub fails: Option<Expr>,
}

/// `else retry k then recompute`: what becomes of a transfer that fails.
#[derive(Clone, Debug, PartialEq)]
pub struct Otherwise {
    /// `retry k`
    pub retries: Option<Expr>,
    /// `recompute`; without it `error`.
    pub recomputes: bool,
    /// The last word.
    pub last: Span,
}

/// `prefill` or `decode` behind `run`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// `prefill`
    Prefill,
    /// `decode`
    Decode,
}

/// A serving form.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Form {
    /// `prefill …;`
    Prefill,
    /// `decode …;`
    Decode,
    /// `tool …;`
    Tool,
}

/// A hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Hold {
    /// At least one.
    pub grabs: Vec<Grab>,
    /// `reuse (e)`
    pub reuse: Option<Expr>,
    /// `at admission (x = e, …)`
    pub bindings: Vec<(Name, Expr)>,
    /// The body.
    pub body: Block,
    /// `cache (e)`
    pub cache: Option<Expr>,
    /// `lease P (e)`
    pub lease: Option<(Ref, Expr)>,
    /// `renewed e every e` behind it
    pub renewed: Option<(Expr, Expr)>,
    /// `abandoned (e)` behind it
    pub abandoned: Option<Expr>,
}

/// `P (units) reserve (r)`
#[derive(Clone, Debug, PartialEq)]
pub struct Grab {
    /// Which pool.
    pub pool: Ref,
    /// The allocation.
    pub units: Expr,
    /// The room that must be there.
    pub reserve: Option<Expr>,
}

/// `NAME`, `NAME[e]`, `NAME.field`, `NAME[e].field`
#[derive(Clone, Debug, PartialEq)]
pub struct Ref {
    /// The first name.
    pub name: Name,
    /// `[e]`
    pub index: Option<Box<Expr>>,
    /// `.field`
    pub field: Option<Name>,
    /// All of it.
    pub span: Span,
}

/// An expression.
#[derive(Clone, Debug, PartialEq)]
pub struct Expr {
    /// Which.
    pub kind: ExprKind,
    /// All of it, parentheses included.
    pub span: Span,
}

/// Which expression.
#[derive(Clone, Debug, PartialEq)]
pub enum ExprKind {
    /// A literal, `inf` included.
    Number(f64),
    /// A name, `Q.x`, `kv[j]`, `D[j].kv`.
    Ref(Ref),
    /// `-x`, `!x`
    Unary(serq_ir::Unary, Box<Expr>),
    /// `a op b` (`^` is `Binary::Power`)
    Binary(serq_ir::Binary, Box<Expr>, Box<Expr>),
    /// `c ? a : b`
    If(Box<Expr>, Box<Expr>, Box<Expr>),
    /// `name(arguments)`
    Call(Name, Vec<Expr>),
    /// `~name(arguments)`
    Draw(Name, Vec<Expr>),
    /// `[a, b, c]`, the value of a `let`.
    List(Vec<Expr>),
    /// `max k in n (body)`
    Aggregate(serq_ir::Fold, Name, Box<Expr>, Box<Expr>),
    /// `(e)`: kept so that the formatter and messages show what was written.
    Paren(Box<Expr>),
    /// What stands where an expression could not be read; reported already.
    Error,
}
