//! A program made ready to run: members numbered, statements flat, references resolved.
//!
//! [`Code`] is built once and shared by every run of the program. Families become
//! consecutive members; a reference with a constant index becomes a member's number;
//! blocks become one list of operations with jumps, so that a session's position is
//! one number.

use std::cell::Cell;

use serq_ir as ir;
use serq_ir::{Context, Place};

use crate::absence;
use crate::choice::{self, ChoiceCode, ChoicesCode};
use crate::expression::{Expr, Families, Family, PoolRef, Reads, StageRef};
use crate::gauge::GaugesCode;
use crate::roofline::Roofline;

/// A program as the kernel runs it.
#[derive(Debug)]
pub struct Code {
    pub(crate) attributes: usize,
    pub(crate) lists: Vec<ir::List>,
    pub(crate) families: Families,
    /// One per member.
    pub(crate) pools: Vec<PoolCode>,
    pub(crate) stages: Vec<StageCode>,
    pub(crate) share: Option<ir::SharePolicy>,
    /// By stage: what its flows share.
    pub(crate) capacities: Vec<f64>,
    pub(crate) ops: Vec<Op>,
    pub(crate) places: Vec<Place>,
    /// Where sessions begin (an [`Op::Init`]).
    pub(crate) start: u32,
    /// The [`Op::Abandon`].
    pub(crate) abandon: u32,
    pub(crate) init: Simple,
    pub(crate) turn: Simple,
    pub(crate) gauges: GaugesCode,
    pub(crate) choices: ChoicesCode,
    pub(crate) gap: Option<Expr>,
    /// Some expression reads a stage's estimates.
    pub(crate) estimates: bool,
    /// Some pool shares prefixes.
    pub(crate) shares_prefixes: bool,
    /// … and the program says which, whatever the trace does.
    pub(crate) names_prefix: bool,
    /// Attributes that are what a request has at most, until its answer has ended.
    pub(crate) bounded: Vec<u32>,
}

/// What `init` or `turn` does, in one go.
pub(crate) type Simple = Vec<(Place, SimpleOp)>;

#[derive(Debug)]
pub(crate) enum SimpleOp {
    Set(u32, Expr),
    Observe(u32, Expr),
    /// The group and the tokens of what the session's prompts begin with.
    Prefix(Expr, Expr),
}

/// What a member of a pool is, from its family's declaration.
#[derive(Debug)]
pub(crate) struct PoolCode {
    pub(crate) name: String,
    pub(crate) family: u32,
    /// Its number within the family.
    pub(crate) member: u32,
    pub(crate) cap: f64,
    pub(crate) block: Option<f64>,
    /// `None`: least recently released first.
    pub(crate) evict: Option<Vec<Expr>>,
    pub(crate) preempt: Preempt,
    /// `None`: joining order.
    pub(crate) order: Option<Vec<Expr>>,
    pub(crate) via: Option<u32>,
    pub(crate) share_prefixes: bool,
    pub(crate) found_scheduled: bool,
    pub(crate) spill: Option<SpillCode>,
    /// Where it shares prefixes and spills: how many blocks there one of its own is.
    pub(crate) parts: u32,
    /// A pool that shares prefixes, and that others spill into and no engine computes in: what holds take of it beyond
    /// what they find stays unknown.
    pub(crate) store: bool,
    /// Eviction keys or the spill read attributes, so entries keep a copy of them.
    pub(crate) snapshots: bool,
    /// The stages that count it as their memory.
    pub(crate) memory_of: Vec<u32>,
}

#[derive(Debug)]
pub(crate) enum Preempt {
    None,
    Lifo,
    By(Vec<Expr>),
}

#[derive(Debug)]
pub(crate) struct SpillCode {
    pub(crate) pool: u32,
    pub(crate) stage: u32,
    pub(crate) work: Expr,
    pub(crate) when: Expr,
}

/// What a member of a stage is.
#[derive(Debug)]
pub(crate) struct StageCode {
    pub(crate) name: String,
    pub(crate) family: u32,
    pub(crate) member: u32,
    pub(crate) kind: StageCodeKind,
}

impl StageCode {
    /// Its jobs are flows.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.kind, StageCodeKind::Shared { .. })
    }
}

#[derive(Debug)]
pub(crate) enum StageCodeKind {
    Fifo { servers: u32 },
    Ps { rate: Expr },
    Shared { capacity: f64 },
    Delay,
    Step(Box<StepCode>),
}

#[derive(Debug)]
pub(crate) struct StepCode {
    pub(crate) budget: Expr,
    pub(crate) chunk: Expr,
    pub(crate) cost: Expr,
    /// The same, where it has that form.
    pub(crate) roofline: Option<Roofline>,
    pub(crate) memory: Option<u32>,
    /// Units a quantum of that memory is; 0 without one.
    pub(crate) memory_quantum: f64,
    pub(crate) exclusive_prefill: bool,
    pub(crate) asynchronous: Option<ir::Asynchronous>,
    pub(crate) only: Option<Expr>,
    pub(crate) by: Vec<Expr>,
    /// Pools whose queues it serves, in declaration order.
    pub(crate) via: Vec<u32>,
    /// `budget` or `chunk` read figures of the residents.
    pub(crate) budget_reads: bool,
    /// `serve` reads figures of the residents beyond their own.
    pub(crate) serve_reads: bool,
    /// Anything of it reads `kv_decode` or `kv_prefill`.
    pub(crate) reads_kv: bool,
    /// `cost` reads figures of its iteration only: equal ones cost the same.
    pub(crate) cost_steady: bool,
    /// A gauge reads figures of the stage that may change at every step.
    pub(crate) watched: bool,
    /// A plan depends on the batch alone, so equal steps may be taken many at once.
    pub(crate) leaps: bool,
    /// … and its budget not on their blocks.
    pub(crate) goes_on: bool,
}

/// One operation.
#[derive(Debug)]
pub(crate) enum Op {
    Init,
    Set(u32, Expr),
    Observe(u32, Expr),
    Turn,
    End,
    Hold(Box<HoldCode>),
    /// The scope end of the innermost hold.
    Close,
    // What is rare is boxed, so that operations are short.
    Grow(PoolRef, Box<Expr>),
    Load(PoolRef, Box<LoadCode>),
    Drop(PoolRef),
    Release(PoolRef, Option<Box<Expr>>),
    /// A run that reads a pool begins; the operation it goes on with where there is nothing to read.
    Read(PoolRef, u32),
    /// … and has ended: whether it failed. With a probability, where time is modelled.
    HasRead(PoolRef, Option<Box<Expr>>),
    /// The session is over, and has failed.
    Fail,
    /// A leg begins with this operation.
    Fork(u32),
    /// The end of one.
    LegOver,
    /// Until all legs are over.
    Join,
    /// The session ends here, wherever it is: something of it can never be served.
    Abandon,
    /// A cancelled session goes on …
    Shield,
    /// … to here.
    Unshield,
    Run(Box<RunCode>),
    /// The end of what is noted between a prefill and its decode.
    Noted,
    Branch {
        test: Expr,
        chance: bool,
        /// Whether the test is `failed` and nothing else.
        on_failure: bool,
        otherwise: u32,
    },
    Jump(u32),
    Choose(Box<ChoiceCode>),
}

#[derive(Debug)]
pub(crate) struct LoadCode {
    pub(crate) units: Expr,
    pub(crate) draws: bool,
}

#[derive(Debug)]
pub(crate) struct LeaseCode {
    pub(crate) grab: usize,
    pub(crate) time: Expr,
    /// How long from a renewal on, and how often.
    pub(crate) renewed: Option<(Expr, Expr)>,
    pub(crate) abandoned: Option<Expr>,
}

#[derive(Debug)]
pub(crate) struct HoldCode {
    pub(crate) grabs: Vec<GrabCode>,
    pub(crate) reuse: Option<Expr>,
    pub(crate) cache: Option<Expr>,
    pub(crate) lease: Option<LeaseCode>,
    /// Its scope's end.
    pub(crate) over: u32,
    /// Units and reserves read attributes, the hold's own pools (their queues aside), and
    /// what the stage that serves it has left; so a refusal lasts until one of these changes.
    pub(crate) steady: bool,
    /// They read what the stage has left.
    pub(crate) reads_budget: bool,
}

#[derive(Debug)]
pub(crate) struct GrabCode {
    pub(crate) pool: PoolRef,
    pub(crate) units: Expr,
    pub(crate) reserve: Option<Expr>,
    /// The units read attributes and constants only, so whether the pool can ever serve
    /// them is known when the session joins.
    pub(crate) units_judged: bool,
    /// The same of the reserve, by itself.
    pub(crate) reserve_judged: bool,
}

#[derive(Debug)]
pub(crate) struct RunCode {
    pub(crate) stages: Vec<StageRef>,
    pub(crate) mode: Option<ir::Mode>,
    pub(crate) work: Expr,
    pub(crate) growing: Option<PoolRef>,
    /// The decode it goes on as. What is noted in between stands behind the run.
    pub(crate) then: Option<Expr>,
    /// What the session does behind it.
    pub(crate) next: u32,
}

impl Code {
    /// Makes a verified program ready to run.
    pub fn new(program: &ir::Program) -> Self {
        Builder::new(program).build()
    }

    /// Members of pools: name and number within the family, in declaration order.
    pub fn pool_members(&self) -> impl Iterator<Item = (&str, u32, u32)> {
        self.pools.iter().map(|p| (p.name.as_str(), p.family, p.member))
    }

    /// Members of stages: name, family and number within it, in declaration order.
    pub fn stage_members(&self) -> impl Iterator<Item = (&str, u32, u32)> {
        self.stages.iter().map(|s| (s.name.as_str(), s.family, s.member))
    }
}

/// Notes with each step stage the pools it serves, and with each pool the stages it is the
/// memory of, in declaration order.
fn pair_up(pools: &mut [PoolCode], stages: &mut [StageCode]) {
    for (stage, code) in stages.iter().enumerate() {
        if let StageCodeKind::Step(step) = &code.kind
            && let Some(pool) = step.memory
        {
            pools[pool as usize].memory_of.push(stage as u32);
        }
    }
    for (pool, code) in pools.iter().enumerate() {
        if let Some(stage) = code.via
            && let StageCodeKind::Step(step) = &mut stages[stage as usize].kind
        {
            step.via.push(pool as u32);
        }
    }
}

/// Whether a gauge reads figures of a step stage that may change at its every step.
fn watches_steps(gauge: &ir::Expr, family: u32) -> bool {
    use ir::StageFigure::{Busy, Queue};
    let all = Reads::of(gauge);
    let itself = gauge.any(&|expr| match expr {
        ir::Expr::Stage(figure, stage) => stage.stage == family && !matches!(figure, Queue | Busy),
        ir::Expr::Price(stage, ..) => stage.stage == family,
        _ => false,
    });
    itself || ((all.now || all.draws) && all.stages.contains(&family))
}

struct Builder<'a> {
    program: &'a ir::Program,
    families: Families,
    choices: ChoicesCode,
    ops: Vec<Op>,
    places: Vec<Place>,
    estimates: Cell<bool>,
}

fn families(sizes: impl Iterator<Item = Option<u32>>) -> Vec<Family> {
    let mut next = 0;
    sizes
        .map(|size| {
            let (first, size) = (next, size.unwrap_or(1));
            next += size;
            Family { first, size }
        })
        .collect()
}

/// Of each member: its cap, where what is used of it is always a whole number.
fn whole_caps(pool: &ir::Pool) -> impl Iterator<Item = Option<f64>> + use<> {
    let whole = |x: f64| x.fract() == 0.0 && x.abs() < 1e12;
    let cap = pool.cap.0;
    let exact = pool.block.is_some_and(|block| whole(block.0)) && whole(cap);
    std::iter::repeat_n(exact.then_some(cap), pool.size.unwrap_or(1) as usize)
}

/// Of each member of a stage: budget and chunk, where they are numbers.
fn budgets(stage: &ir::Stage) -> impl Iterator<Item = Option<(f64, f64)>> + use<> {
    let numbers = match &stage.kind {
        ir::StageKind::Step(step) => match (&step.budget, &step.chunk) {
            (ir::Expr::Number(budget), ir::Expr::Number(chunk)) => Some((budget.0, chunk.0)),
            _ => None,
        },
        _ => None,
    };
    std::iter::repeat_n(numbers, stage.size.unwrap_or(1) as usize)
}

impl<'a> Builder<'a> {
    fn new(program: &'a ir::Program) -> Self {
        let members = |size: Option<u32>| size.unwrap_or(1) as usize;
        let pools = program.pools.iter().map(|p| members(p.size)).sum();
        let stages = program.stages.iter().map(|s| members(s.size)).sum();
        Self {
            program,
            choices: ChoicesCode::new(pools, stages),
            families: Families {
                pools: families(program.pools.iter().map(|p| p.size)),
                stages: families(program.stages.iter().map(|s| s.size)),
                whole_caps: program.pools.iter().flat_map(whole_caps).collect(),
                budgets: program.stages.iter().flat_map(budgets).collect(),
            },
            ops: Vec::new(),
            places: Vec::new(),
            estimates: Cell::new(false),
        }
    }

    fn build(mut self) -> Code {
        self.push(Place::default(), Op::Init);
        self.block(&self.program.session);
        self.push(Place::default(), Op::End);
        let abandon = self.push(Place::default(), Op::Abandon) as u32;
        let workload = &self.program.workload;
        let (mut init, mut turn) = (self.simple(&workload.init), self.simple(&workload.turn));
        if let Some(ir::Prefix { group, tokens }) = &workload.prefix {
            for block in [&mut init, &mut turn] {
                block.push((Place::default(), SimpleOp::Prefix(self.expr(group), self.expr(tokens))));
            }
        }
        let gap = match &workload.arrive {
            ir::Arrive::Renewal(gap) => Some(self.expr(gap)),
            _ => None,
        };
        let mut pools = self.pools();
        let mut stages = self.stages();
        pair_up(&mut pools, &mut stages);
        if self.program.gauges.iter().any(|gauge| reads_estimates(&gauge.value)) {
            self.estimates.set(true);
        }
        let gauges = GaugesCode::new(&self.program.gauges, pools.len(), stages.len(), &self.families);
        let capacity = |stage: &StageCode| match stage.kind {
            StageCodeKind::Shared { capacity } => capacity,
            _ => f64::NAN,
        };
        Code {
            capacities: stages.iter().map(capacity).collect(),
            attributes: self.program.attributes.len(),
            lists: self.program.lists.clone(),
            families: self.families,
            pools,
            stages,
            share: self.program.share,
            ops: self.ops,
            places: self.places,
            start: 0,
            abandon,
            init,
            turn,
            gauges,
            choices: self.choices,
            gap,
            estimates: self.estimates.get(),
            shares_prefixes: self.program.pools.iter().any(|pool| pool.share_prefixes),
            names_prefix: workload.prefix.is_some(),
            bounded: crate::service::bounded(&workload.turn),
        }
    }

    fn push(&mut self, at: Place, op: Op) -> usize {
        self.ops.push(op);
        self.places.push(at);
        self.ops.len() - 1
    }

    fn here(&self) -> u32 {
        self.ops.len() as u32
    }

    fn block(&mut self, block: &ir::Block) {
        for stmt in block {
            self.stmt(stmt);
        }
    }

    fn stmt(&mut self, stmt: &ir::Stmt) {
        let at = stmt.at;
        let op = match &stmt.kind {
            ir::StmtKind::Set { attribute, value } => Op::Set(*attribute, self.expr(value)),
            ir::StmtKind::Observe { observe, value } => Op::Observe(*observe, self.expr(value)),
            ir::StmtKind::Turn => Op::Turn,
            ir::StmtKind::End => Op::End,
            ir::StmtKind::Fail => Op::Fail,
            ir::StmtKind::Grow { pool, units } => Op::Grow(self.pool_ref(pool), Box::new(self.expr(units))),
            ir::StmtKind::Load { pool, units } => {
                let load = LoadCode { units: self.expr(units), draws: Reads::of(units).draws };
                Op::Load(self.pool_ref(pool), Box::new(load))
            }
            ir::StmtKind::Drop { pool } => Op::Drop(self.pool_ref(pool)),
            ir::StmtKind::Release { pool, after } => {
                Op::Release(self.pool_ref(pool), after.as_ref().map(|e| Box::new(self.expr(e))))
            }
            ir::StmtKind::Run(run) => return self.run(at, run),
            ir::StmtKind::Choose { attribute, count, keys } => {
                let tracked = self.choices.track(self.program, &self.families, *attribute, count, keys);
                let keys_of_each = choice::keys_of_each(&self.families, *attribute, count, keys);
                let (count, keys) = (self.expr(count), self.exprs(keys));
                let indexed = absence::indexed_by(self.program, &self.families, *attribute);
                Op::Choose(Box::new(ChoiceCode { attribute: *attribute, count, keys, keys_of_each, tracked, indexed }))
            }
            ir::StmtKind::Hold(hold) => {
                let code = self.hold(hold);
                let begins = self.push(at, Op::Hold(Box::new(code)));
                self.block(&hold.body);
                let over = self.here();
                if let Op::Hold(code) = &mut self.ops[begins] {
                    code.over = over;
                }
                Op::Close
            }
            ir::StmtKind::Branch { test, chance, then, otherwise } => {
                let on_failure = matches!(test, ir::Expr::Context(ir::Context::Failed));
                let test = self.expr(test);
                let branch = self.push(at, Op::Branch { test, chance: *chance, on_failure, otherwise: 0 });
                self.block(then);
                let over = (!otherwise.is_empty()).then(|| self.push(at, Op::Jump(0)));
                let here = self.here();
                if let Op::Branch { otherwise, .. } = &mut self.ops[branch] {
                    *otherwise = here;
                }
                self.block(otherwise);
                if let Some(over) = over {
                    self.ops[over] = Op::Jump(self.here());
                }
                return;
            }
            ir::StmtKind::Loop { body } => {
                let top = self.here();
                self.block(body);
                Op::Jump(top)
            }
            ir::StmtKind::Fork { body } => {
                // The leg stands before its fork, behind which the session just goes on.
                let over = self.push(at, Op::Jump(0));
                self.block(body);
                self.push(at, Op::LegOver);
                self.ops[over] = Op::Jump(self.here());
                Op::Fork(over as u32 + 1)
            }
            ir::StmtKind::Join => Op::Join,
            ir::StmtKind::Shielded { body } => {
                self.push(at, Op::Shield);
                self.block(body);
                Op::Unshield
            }
        };
        self.push(at, op);
    }

    fn run(&mut self, at: Place, run: &ir::RunStmt) {
        let Some(reads) = &run.reads else { return self.plain_run(at, run) };
        let begins = self.push(at, Op::Read(self.pool_ref(&reads.pool), 0));
        self.plain_run(at, run);
        let fails = reads.fails.as_ref().map(|fails| Box::new(self.expr(fails)));
        self.push(at, Op::HasRead(self.pool_ref(&reads.pool), fails));
        let here = self.here();
        if let Op::Read(_, over) = &mut self.ops[begins] {
            *over = here;
        }
    }

    fn plain_run(&mut self, at: Place, run: &ir::RunStmt) {
        let code = RunCode {
            stages: run.stages.iter().map(|s| self.stage_ref(s)).collect(),
            mode: run.mode,
            work: self.expr(&run.work),
            growing: run.growing.as_ref().map(|p| self.pool_ref(p)),
            then: run.then.as_ref().map(|then| self.expr(&then.work)),
            next: 0,
        };
        let begins = self.push(at, Op::Run(Box::new(code)));
        if let Some(then) = &run.then {
            self.block(&then.body);
            self.push(at, Op::Noted);
        }
        let here = self.here();
        if let Op::Run(code) = &mut self.ops[begins] {
            code.next = here;
        }
    }

    fn hold(&self, hold: &ir::Hold) -> HoldCode {
        let grabs = hold.grabs.iter().map(|grab| GrabCode {
            pool: self.pool_ref(&grab.pool),
            units: self.expr(&grab.units),
            reserve: grab.reserve.as_ref().map(|r| self.expr(r)),
            units_judged: !Reads::of(&grab.units).live(),
            reserve_judged: grab.reserve.as_ref().is_some_and(|r| !Reads::of(r).live()),
        });
        let headers = || hold.grabs.iter().flat_map(|grab| std::iter::once(&grab.units).chain(&grab.reserve));
        HoldCode {
            steady: headers().all(|e| self.steady(hold, e)),
            reads_budget: headers().any(|e| !Reads::of(e).stages.is_empty()),
            grabs: grabs.collect(),
            reuse: hold.reuse.as_ref().map(|e| self.expr(e)),
            cache: hold.cache.as_ref().map(|e| self.expr(e)),
            over: 0,
            lease: hold.lease.as_ref().map(|l| LeaseCode {
                grab: l.grab as usize,
                time: self.expr(&l.time),
                renewed: l.renewed.as_ref().map(|r| (self.expr(&r.time), self.expr(&r.every))),
                abandoned: l.abandoned.as_ref().map(|e| self.expr(e)),
            }),
        }
    }

    /// See [`HoldCode::steady`].
    fn steady(&self, hold: &ir::Hold, expr: &ir::Expr) -> bool {
        let first = &hold.grabs[0].pool;
        let via = self.program.pools[first.pool as usize].via;
        !expr.any(&|expr| match expr {
            ir::Expr::Context(Context::Now) | ir::Expr::Draw(..) | ir::Expr::Price(..) => true,
            ir::Expr::Pool(figure, pool) => {
                *figure == ir::PoolFigure::Queued || hold.grabs.iter().all(|grab| grab.pool != *pool)
            }
            ir::Expr::Stage(figure, stage) => {
                *figure != ir::StageFigure::BudgetLeft || via != Some(stage.stage) || first.member != stage.member
            }
            _ => false,
        })
    }

    fn simple(&self, block: &ir::Block) -> Simple {
        block
            .iter()
            .filter_map(|stmt| match &stmt.kind {
                ir::StmtKind::Set { attribute, value } => Some((stmt.at, SimpleOp::Set(*attribute, self.expr(value)))),
                ir::StmtKind::Observe { observe, value } => {
                    Some((stmt.at, SimpleOp::Observe(*observe, self.expr(value))))
                }
                _ => None,
            })
            .collect()
    }

    fn pools(&self) -> Vec<PoolCode> {
        let mut pools = Vec::new();
        for (family, pool) in self.program.pools.iter().enumerate() {
            for member in 0..self.families.pools[family].size {
                let evict = match &pool.evict {
                    ir::Evict::Lru => None,
                    ir::Evict::By(keys) => Some(self.exprs(keys)),
                };
                let preempt = match &pool.preempt {
                    ir::Preempt::None => Preempt::None,
                    ir::Preempt::Lifo => Preempt::Lifo,
                    ir::Preempt::By(keys) => Preempt::By(self.exprs(keys)),
                };
                let order = match &pool.order {
                    ir::Order::Fifo => None,
                    ir::Order::By(keys) => Some(self.exprs(keys)),
                };
                let spill = pool.spill.as_ref().map(|spill| SpillCode {
                    pool: self.paired(&self.families.pools, spill.pool.pool, &spill.pool.member, member),
                    stage: self.paired(&self.families.stages, spill.stage.stage, &spill.stage.member, member),
                    work: self.expr(&spill.work),
                    when: self.expr(&spill.when),
                });
                let parts = pool.spill.as_ref().and_then(|spill| {
                    let there = self.program.pools[spill.pool.pool as usize].block?;
                    ir::whole_blocks(pool.block?.0, there.0)
                });
                let mut reads = Reads::default();
                if let ir::Evict::By(keys) = &pool.evict {
                    keys.iter().for_each(|key| reads.add(key));
                }
                if let Some(spill) = &pool.spill {
                    reads.add(&spill.work);
                    reads.add(&spill.when);
                }
                pools.push(PoolCode {
                    name: pool.name.clone(),
                    family: family as u32,
                    member,
                    cap: pool.cap.0,
                    block: pool.block.map(|b| b.0),
                    evict,
                    preempt,
                    order,
                    via: pool.via.map(|via| self.pair(self.families.stages[via as usize], member)),
                    share_prefixes: pool.share_prefixes,
                    found_scheduled: pool.found_scheduled,
                    spill,
                    parts: parts.unwrap_or(0),
                    store: pool.share_prefixes && self.is_store(family as u32),
                    snapshots: reads.attributes,
                    memory_of: Vec::new(),
                });
            }
        }
        pools
    }

    /// Some pool spills into it, and no engine has it for its memory.
    fn is_store(&self, family: u32) -> bool {
        let spills = |pool: &ir::Pool| pool.spill.as_ref().is_some_and(|spill| spill.pool.pool == family);
        let has_it = |stage: &ir::Stage| match &stage.kind {
            ir::StageKind::Step(step) => step.memory == Some(family),
            _ => false,
        };
        self.program.pools.iter().any(spills) && !self.program.stages.iter().any(has_it)
    }

    /// The member of a family that goes with `member`: the same number, or the only one.
    fn pair(&self, family: Family, member: u32) -> u32 {
        if family.size == 1 { family.first } else { family.first + member }
    }

    fn paired(&self, families: &[Family], family: u32, index: &Option<Box<ir::Expr>>, member: u32) -> u32 {
        let family = families[family as usize];
        match index.as_deref() {
            Some(ir::Expr::Number(n)) => family.first + n.0 as u32,
            _ => self.pair(family, member),
        }
    }

    fn stages(&self) -> Vec<StageCode> {
        let mut stages = Vec::new();
        for (family, stage) in self.program.stages.iter().enumerate() {
            for member in 0..self.families.stages[family].size {
                let kind = match &stage.kind {
                    ir::StageKind::Fifo { servers } => StageCodeKind::Fifo { servers: *servers },
                    ir::StageKind::Ps { rate: ir::Expr::Number(n) } if stage.shared => {
                        StageCodeKind::Shared { capacity: n.0 }
                    }
                    ir::StageKind::Ps { rate } => StageCodeKind::Ps { rate: self.expr(rate) },
                    ir::StageKind::Delay => StageCodeKind::Delay,
                    ir::StageKind::Step(step) => StageCodeKind::Step(Box::new(self.step(step, family as u32, member))),
                };
                stages.push(StageCode { name: stage.name.clone(), family: family as u32, member, kind });
            }
        }
        stages
    }

    fn step(&self, step: &ir::Step, family: u32, member: u32) -> StepCode {
        let residents = [Context::Residents, Context::Decoders, Context::KvDecode, Context::KvPrefill];
        let reads_any = |exprs: &[&ir::Expr], variables: &[Context]| {
            let mut reads = Reads::default();
            exprs.iter().for_each(|e| reads.add(e));
            variables.iter().any(|v| reads.contexts.contains(v))
        };
        let mut serve: Vec<&ir::Expr> = step.serve.by.iter().collect();
        serve.extend(&step.serve.only);
        let depends_on_batch = |expr: &ir::Expr| {
            let reads = Reads::of(expr);
            !reads.live() && !reads.draws
        };
        let watched = self.program.gauges.iter().any(|gauge| watches_steps(&gauge.value, family));
        let leaps = !watched
            && serve.is_empty()
            && step.asynchronous.is_none()
            && [&step.cost, &step.budget, &step.chunk].into_iter().all(depends_on_batch);
        StepCode {
            budget: self.expr(&step.budget),
            chunk: self.expr(&step.chunk),
            cost: self.expr(&step.cost),
            roofline: Roofline::of(&step.cost),
            memory: step.memory.map(|family| self.pair(self.families.pools[family as usize], member)),
            memory_quantum: step
                .memory
                .map_or(0.0, |family| self.program.pools[family as usize].block.map_or(1.0, |block| block.0)),
            exclusive_prefill: step.serve.exclusive_prefill,
            asynchronous: step.asynchronous,
            only: step.serve.only.as_ref().map(|e| self.expr(e)),
            by: self.exprs(&step.serve.by),
            via: Vec::new(),
            budget_reads: reads_any(&[&step.budget, &step.chunk], &residents),
            serve_reads: reads_any(&serve, &residents),
            reads_kv: reads_any(&serve, &residents[2..])
                || reads_any(&[&step.budget, &step.chunk, &step.cost], &residents[2..]),
            cost_steady: depends_on_batch(&step.cost),
            watched,
            leaps,
            goes_on: leaps && !reads_any(&[&step.budget], &residents[2..]),
        }
    }

    fn pool_ref(&self, pool: &ir::PoolRef) -> PoolRef {
        PoolRef::new(pool, &self.families)
    }

    fn stage_ref(&self, stage: &ir::StageRef) -> StageRef {
        StageRef::new(stage, &self.families)
    }

    fn exprs(&self, exprs: &[ir::Expr]) -> Vec<Expr> {
        exprs.iter().map(|e| self.expr(e)).collect()
    }

    fn expr(&self, expr: &ir::Expr) -> Expr {
        if reads_estimates(expr) {
            self.estimates.set(true);
        }
        Expr::new(expr, &self.families)
    }
}

fn reads_estimates(expr: &ir::Expr) -> bool {
    use ir::StageFigure::{EstLambda, EstRho, EstWait};
    expr.any(&|expr| match expr {
        ir::Expr::Stage(figure, _) => matches!(figure, EstLambda | EstRho | EstWait),
        ir::Expr::Price(..) => true,
        _ => false,
    })
}
