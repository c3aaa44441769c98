//! A program in which the clock runs twice as fast and a pool's unit is four times smaller.
//!
//! Only the border between the program and the machine is touched. Whatever the program
//! hands to the machine as a time or as units is multiplied, whatever it reads back as one
//! is divided; in between, attributes, samples and decisions keep their values.
//!
//! | handed over | factor | read back | factor |
//! |---|---|---|---|
//! | horizon, warm-up, `renewal` gaps, step cost, lease times, work on `fifo` and `delay` | 2 | `now` `waited` `age` `last` `est_wait`, `work` of `fifo` and `delay`, `price` | 1/2 |
//! | `poisson` rate, φ of `ps` | 1/2 | `est_lambda` | 2 |
//! | `cap`, `block`, units, `reserve`, `reuse`, `grow`, `load`, `cache` | 4 | `used` `free` `cachedin` `size` `position` `kv_decode` `kv_prefill` `cached` `computed` | 1/4 |
//!
//! Work on `ps` and its `work` keep their values: half the rate makes it last twice as
//! long. Tokens, budgets and chunks keep theirs: time comes from the cost. `price` is
//! homogeneous in its two works: price(2h, 2d) = 2 price(h, d) when λ halves and W doubles.
//!
//! # Which pools keep their unit
//!
//! * A pool that some run names in `growing`: such a run takes one unit a token, and a
//!   decode run does one token an iteration, whatever the unit is called. So one unit is one
//!   token there, and `attention`, which mixes the two, keeps its value too.
//! * A pool that shares an amount with such a pool: the pools of one hold with `cache` (one
//!   `cache` and one `reuse` bound all of them), a pool and where it spills to, and, in a
//!   program that reads `cached` or `computed`, all pools those can come from.
//!
//! Every other pool is scaled, slot pools of engines included.

use serq_ir::json::Number;
use serq_ir::{
    Arrive, Binary, Block, BuiltIn, Context, Evict, Expr, Function, Order, PoolFigure, PoolRef, Preempt, Program,
    StageFigure, StageKind, StageRef, Stmt, StmtKind, Unary,
};

use crate::fingerprint::Unit;

const TIME: f64 = 2.0;
const UNITS: f64 = 4.0;

/// What a program was scaled by.
#[derive(Clone, Debug)]
pub struct Factors {
    pools: Vec<f64>,
}

impl Factors {
    /// By which a figure grows.
    pub fn of(&self, unit: Unit) -> f64 {
        match unit {
            Unit::One => 1.0,
            Unit::Time | Unit::Bucket => TIME,
            Unit::Rate => 1.0 / TIME,
            Unit::Pool(family) => self.pools[family],
        }
    }

    /// Families whose units were scaled.
    pub fn pools_scaled(&self) -> usize {
        self.pools.iter().filter(|factor| **factor != 1.0).count()
    }
}

/// Scales a program.
pub fn scale(program: &Program) -> (Program, Factors) {
    let units = Units::of(program);
    let scaling = Scaling {
        pools: &units.factors,
        prefix: units.prefix,
        memory: program.stages.iter().map(|stage| memory(&stage.kind)).collect(),
        timed: program.stages.iter().map(|s| matches!(s.kind, StageKind::Fifo { .. } | StageKind::Delay)).collect(),
    };
    let mut scaled = program.clone();
    scaling.program(&mut scaled);
    (scaled, Factors { pools: units.factors })
}

fn memory(kind: &StageKind) -> Option<usize> {
    match kind {
        StageKind::Step(step) => step.memory.map(|family| family as usize),
        _ => None,
    }
}

// ---- which factor each pool has

struct Units {
    factors: Vec<f64>,
    /// Of `cached` and `computed`.
    prefix: f64,
}

impl Units {
    fn of(program: &Program) -> Self {
        let mut groups = Groups { parent: (0..program.pools.len()).collect(), grown: Vec::new(), cached: Vec::new() };
        for (at, pool) in program.pools.iter().enumerate() {
            if let Some(spill) = &pool.spill {
                groups.join(at, spill.pool.pool as usize);
            }
            if pool.preempt != Preempt::None {
                groups.cached.push(at);
            }
        }
        groups.block(&program.session);
        if reads_prefix(program) {
            let cached = groups.cached.clone();
            cached.windows(2).for_each(|pair| groups.join(pair[0], pair[1]));
        }
        let grown: Vec<usize> = groups.grown.iter().map(|&pool| groups.root(pool)).collect();
        let factor = |pool| if grown.contains(&groups.root(pool)) { 1.0 } else { UNITS };
        let prefix = groups.cached.first().map_or(1.0, |&pool| factor(pool));
        Self { factors: (0..program.pools.len()).map(factor).collect(), prefix }
    }
}

/// Pools that must have one factor.
struct Groups {
    parent: Vec<usize>,
    /// Named in `growing`.
    grown: Vec<usize>,
    /// `cached` or `computed` can come from them.
    cached: Vec<usize>,
}

impl Groups {
    fn root(&self, mut pool: usize) -> usize {
        while self.parent[pool] != pool {
            pool = self.parent[pool];
        }
        pool
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        self.parent[a] = b;
    }

    fn block(&mut self, block: &Block) {
        for stmt in block {
            match &stmt.kind {
                StmtKind::Run(run) => self.grown.extend(run.growing.iter().map(|p| p.pool as usize)),
                StmtKind::Hold(hold) => {
                    if hold.cache.is_some() {
                        let pools: Vec<usize> = hold.grabs.iter().map(|g| g.pool.pool as usize).collect();
                        pools.windows(2).for_each(|pair| self.join(pair[0], pair[1]));
                        self.cached.extend(pools);
                    }
                    self.block(&hold.body);
                }
                StmtKind::Branch { then, otherwise, .. } => {
                    self.block(then);
                    self.block(otherwise);
                }
                StmtKind::Loop { body } | StmtKind::Shielded { body } | StmtKind::Fork { body } => self.block(body),
                _ => {}
            }
        }
    }
}

fn reads_prefix(program: &Program) -> bool {
    let text = serde_json::to_value(program).expect("a program is JSON");
    fn reads(value: &serde_json::Value) -> bool {
        match value {
            serde_json::Value::Object(map) => map.iter().any(|(key, value)| {
                let attribute = key == "attribute" && value.as_u64().is_some_and(is_prefix);
                attribute || reads(value)
            }),
            serde_json::Value::Array(list) => list.iter().any(reads),
            _ => false,
        }
    }
    reads(&text)
}

fn is_prefix(attribute: u64) -> bool {
    attribute == BuiltIn::Cached as u64 || attribute == BuiltIn::Computed as u64
}

// ---- the program

struct Scaling<'a> {
    pools: &'a [f64],
    prefix: f64,
    /// Each stage family's memory.
    memory: Vec<Option<usize>>,
    /// Work is time there.
    timed: Vec<bool>,
}

/// In whose clause an expression stands: what `size` and `kv_decode` are units of.
#[derive(Clone, Copy)]
struct Of {
    units: f64,
}

const NOBODY: Of = Of { units: 1.0 };

impl Scaling<'_> {
    fn program(&self, program: &mut Program) {
        program.run.horizon.0 *= TIME;
        program.run.warmup.0 *= TIME;
        match &mut program.workload.arrive {
            Arrive::Poisson(rate) => rate.0 /= TIME,
            Arrive::Steps { pieces, .. } | Arrive::Bursts { pieces } => {
                for piece in pieces {
                    piece.rate.0 /= TIME;
                    piece.time.0 *= TIME;
                }
            }
            Arrive::Trace(speed) => speed.0 /= TIME,
            Arrive::Renewal(gap) => self.hand_over(gap, TIME, NOBODY),
            Arrive::None | Arrive::Closed(_) | Arrive::Batch(_) => {}
        }
        for (at, pool) in program.pools.iter_mut().enumerate() {
            let units = self.pools[at];
            let of = Of { units };
            pool.cap.0 *= units;
            if let Some(block) = &mut pool.block {
                block.0 *= units;
            }
            if let Evict::By(keys) = &mut pool.evict {
                keys.iter_mut().for_each(|key| self.expr(key, of));
            }
            if let Preempt::By(keys) = &mut pool.preempt {
                keys.iter_mut().for_each(|key| self.expr(key, of));
            }
            if let Order::By(keys) = &mut pool.order {
                keys.iter_mut().for_each(|key| self.expr(key, of));
            }
            if let Some(spill) = &mut pool.spill {
                self.pool(&mut spill.pool, of);
                let work = self.work(&spill.stage);
                self.stage(&mut spill.stage, of);
                self.hand_over(&mut spill.work, work, of);
                self.expr(&mut spill.when, of);
            }
        }
        for (at, stage) in program.stages.iter_mut().enumerate() {
            match &mut stage.kind {
                StageKind::Fifo { .. } | StageKind::Delay => {}
                StageKind::Ps { rate } => self.hand_over(rate, 1.0 / TIME, NOBODY),
                StageKind::Step(step) => {
                    let of = Of { units: self.memory[at].map_or(1.0, |pool| self.pools[pool]) };
                    self.expr(&mut step.budget, of);
                    self.expr(&mut step.chunk, of);
                    self.hand_over(&mut step.cost, TIME, of);
                    step.serve.only.iter_mut().for_each(|only| self.expr(only, of));
                    step.serve.by.iter_mut().for_each(|key| self.expr(key, of));
                }
            }
        }
        self.block(&mut program.workload.init);
        self.block(&mut program.workload.turn);
        self.block(&mut program.session);
        program.gauges.iter_mut().for_each(|gauge| self.expr(&mut gauge.value, NOBODY));
    }

    fn block(&self, block: &mut Block) {
        block.iter_mut().for_each(|stmt| self.stmt(stmt));
    }

    fn stmt(&self, stmt: &mut Stmt) {
        match &mut stmt.kind {
            StmtKind::Set { attribute, value } => {
                let factor = if is_prefix(u64::from(*attribute)) { self.prefix } else { 1.0 };
                self.hand_over(value, factor, NOBODY);
            }
            StmtKind::Observe { value, .. } => self.expr(value, NOBODY),
            StmtKind::Turn | StmtKind::End | StmtKind::Fail | StmtKind::Join => {}
            StmtKind::Hold(hold) => {
                let units = |pool: &PoolRef| self.pools[pool.pool as usize];
                // With `cache` all pools of the hold have one factor.
                let all = units(&hold.grabs[0].pool);
                for grab in &mut hold.grabs {
                    let factor = units(&grab.pool);
                    self.pool(&mut grab.pool, NOBODY);
                    self.hand_over(&mut grab.units, factor, NOBODY);
                    grab.reserve.iter_mut().for_each(|reserve| self.hand_over(reserve, factor, NOBODY));
                }
                hold.reuse.iter_mut().for_each(|reuse| self.hand_over(reuse, all, NOBODY));
                hold.cache.iter_mut().for_each(|cache| self.hand_over(cache, all, NOBODY));
                hold.lease.iter_mut().for_each(|lease| {
                    self.hand_over(&mut lease.time, TIME, NOBODY);
                    let renewed = lease.renewed.iter_mut().flat_map(|renewed| [&mut renewed.time, &mut renewed.every]);
                    renewed.for_each(|time| self.hand_over(time, TIME, NOBODY));
                    lease.abandoned.iter_mut().for_each(|time| self.hand_over(time, TIME, NOBODY));
                });
                self.block(&mut hold.body);
            }
            StmtKind::Grow { pool, units } | StmtKind::Load { pool, units } => {
                let factor = self.pools[pool.pool as usize];
                self.pool(pool, NOBODY);
                self.hand_over(units, factor, NOBODY);
            }
            StmtKind::Drop { pool } => self.pool(pool, NOBODY),
            StmtKind::Release { pool, after } => {
                self.pool(pool, NOBODY);
                after.iter_mut().for_each(|after| self.hand_over(after, TIME, NOBODY));
            }
            StmtKind::Run(run) => {
                let work = self.work(&run.stages[0]);
                run.stages.iter_mut().for_each(|stage| self.stage(stage, NOBODY));
                self.hand_over(&mut run.work, work, NOBODY);
                run.growing.iter_mut().for_each(|pool| self.pool(pool, NOBODY));
                if let Some(reads) = &mut run.reads {
                    self.pool(&mut reads.pool, NOBODY);
                    reads.fails.iter_mut().for_each(|chance| self.expr(chance, NOBODY));
                }
                if let Some(then) = &mut run.then {
                    self.block(&mut then.body);
                    self.hand_over(&mut then.work, work, NOBODY);
                }
            }
            StmtKind::Branch { test, then, otherwise, .. } => {
                self.expr(test, NOBODY);
                self.block(then);
                self.block(otherwise);
            }
            StmtKind::Loop { body } | StmtKind::Shielded { body } | StmtKind::Fork { body } => self.block(body),
            StmtKind::Choose { attribute, count, keys } => {
                assert!(!is_prefix(u64::from(*attribute)) || self.prefix == 1.0, "a choice is no prefix");
                self.expr(count, NOBODY);
                keys.iter_mut().for_each(|key| self.expr(key, NOBODY));
            }
        }
    }

    fn work(&self, stage: &StageRef) -> f64 {
        if self.timed[stage.stage as usize] { TIME } else { 1.0 }
    }

    fn pool(&self, pool: &mut PoolRef, of: Of) {
        pool.member.iter_mut().for_each(|member| self.expr(member, of));
    }

    fn stage(&self, stage: &mut StageRef, of: Of) {
        stage.member.iter_mut().for_each(|member| self.expr(member, of));
    }

    /// Scales what an expression reads, then the expression.
    fn hand_over(&self, expr: &mut Expr, factor: f64, of: Of) {
        self.expr(expr, of);
        multiply(expr, factor);
    }

    /// Scales what an expression reads.
    fn expr(&self, expr: &mut Expr, of: Of) {
        match expr {
            Expr::Number(_) | Expr::Variable(_) => {}
            Expr::Attribute(attribute) => {
                if is_prefix(u64::from(*attribute)) {
                    multiply(expr, 1.0 / self.prefix);
                }
            }
            Expr::Context(context) => {
                let factor = match context {
                    Context::Now | Context::Waited | Context::Age | Context::Last => TIME,
                    Context::Size | Context::Position | Context::Reached | Context::KvDecode | Context::KvPrefill => {
                        of.units
                    }
                    Context::Waiting
                    | Context::Admission
                    | Context::Decoding
                    | Context::Present
                    | Context::Residents
                    | Context::Decoders
                    | Context::Remaining
                    | Context::Tokens
                    | Context::Prefilled
                    | Context::Attention
                    | Context::Member
                    | Context::Failed => 1.0,
                };
                multiply(expr, 1.0 / factor);
            }
            Expr::Unary(Unary::Negate | Unary::Not, a) => self.expr(a, of),
            Expr::Binary(_, a, b) => {
                self.expr(a, of);
                self.expr(b, of);
            }
            Expr::If(a, b, c) => {
                self.expr(a, of);
                self.expr(b, of);
                self.expr(c, of);
            }
            Expr::Call(
                Function::Min
                | Function::Max
                | Function::Abs
                | Function::Floor
                | Function::Ceil
                | Function::Sqrt
                | Function::Exp
                | Function::Ln,
                arguments,
            )
            | Expr::Draw(_, arguments) => arguments.iter_mut().for_each(|a| self.expr(a, of)),
            Expr::Element(_, index) => self.expr(index, of),
            Expr::Pool(figure, pool) => {
                self.pool(pool, of);
                let factor = match figure {
                    PoolFigure::Used | PoolFigure::Free | PoolFigure::Cachedin | PoolFigure::Outstanding => {
                        self.pools[pool.pool as usize]
                    }
                    PoolFigure::Holders | PoolFigure::Queued => 1.0,
                };
                multiply(expr, 1.0 / factor);
            }
            Expr::Stage(figure, stage) => {
                self.stage(stage, of);
                let factor = match figure {
                    StageFigure::Work => self.work(stage),
                    StageFigure::EstWait => TIME,
                    StageFigure::EstLambda => 1.0 / TIME,
                    StageFigure::Queue | StageFigure::Busy | StageFigure::BudgetLeft | StageFigure::EstRho => 1.0,
                };
                multiply(expr, 1.0 / factor);
            }
            Expr::Price(stage, h, d) => {
                self.stage(stage, of);
                self.hand_over(h, TIME, of);
                self.hand_over(d, TIME, of);
                multiply(expr, 1.0 / TIME);
            }
            Expr::Aggregate { body, .. } => self.expr(body, of),
        }
    }
}

fn multiply(expr: &mut Expr, factor: f64) {
    if factor == 1.0 {
        return;
    }
    match expr {
        Expr::Number(number) => number.0 *= factor,
        _ => {
            let inner = std::mem::replace(expr, Expr::Number(Number(0.0)));
            *expr = Expr::Binary(Binary::Multiply, Box::new(Expr::Number(Number(factor))), Box::new(inner));
        }
    }
}
