//! What the types cannot say.
//!
//! The kernel trusts a verified [`Program`]: every index is in range, every family
//! has members, every expression reads only what exists when it is evaluated, and
//! nothing nests deeper than [`DEPTH_MAX`]. The linker writes such programs; this
//! module holds programs read from outside to the same.
//!
//! # Invariants of a verified program
//!
//! - The first attributes are [`BuiltIn`]'s, names of one kind are unique.
//! - A pool's stage and memory, a stage's memory pair up member by member or are single.
//! - Draws, attributes, context variables and figures stand where `docs/language.md`
//!   allows them (the table of moments).
//! - Numbers are never NaN; caps are not negative, blocks and horizons positive.

use std::collections::BTreeSet;

use crate::program::*;

/// Checks a program read from outside.
///
/// # Errors
///
/// One sentence naming what is wrong.
pub fn verify(program: &Program) -> Result<(), String> {
    let v = Verifier { program };
    v.header()?;
    let total = |sizes: &mut dyn Iterator<Item = Option<u32>>| sizes.map(|s| u64::from(members(s))).sum::<u64>();
    let most = total(&mut program.pools.iter().map(|p| p.size)).max(total(&mut program.stages.iter().map(|s| s.size)));
    ensure(most <= MEMBERS_TOTAL_MAX, || format!("{most} members in all; {MEMBERS_TOTAL_MAX} is the most"))?;
    for pool in &program.pools {
        v.pool(pool).map_err(|e| format!("pool `{}`: {e}", pool.name))?;
    }
    for stage in &program.stages {
        v.stage(stage).map_err(|e| format!("stage `{}`: {e}", stage.name))?;
    }
    v.workload()?;
    v.block(&program.session, &mut Body::session())?;
    for gauge in &program.gauges {
        v.expr(&gauge.value, Moment::Gauge).map_err(|e| format!("gauge `{}`: {e}", gauge.name))?;
    }
    v.run()
}

type Check = Result<(), String>;

/// When an expression is evaluated; the table of moments.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moment {
    Session,
    Header,
    QueueKey,
    Evict,
    Preempt,
    Ps,
    Budget,
    Serve,
    ServeOnly,
    Step,
    Gauge,
    Gap,
}

impl Moment {
    fn name(self) -> &'static str {
        match self {
            Self::Session => "a statement",
            Self::Header => "a hold's header",
            Self::QueueKey => "queue keys",
            Self::Evict => "eviction keys or a spill",
            Self::Preempt => "preemption keys",
            Self::Ps => "a `ps` rate",
            Self::Budget => "`budget` or `chunk`",
            Self::Serve => "serve keys",
            Self::ServeOnly => "`serve only`",
            Self::Step => "`cost`",
            Self::Gauge => "a gauge",
            Self::Gap => "a renewal gap",
        }
    }

    fn draws(self) -> bool {
        matches!(self, Self::Session | Self::Evict | Self::Ps | Self::Budget | Self::Step | Self::Gap)
    }

    fn attributes(self) -> bool {
        !matches!(self, Self::Ps | Self::Budget | Self::Step | Self::Gauge | Self::Gap)
    }

    fn has(self, c: Context) -> bool {
        use Context as C;
        let resident = matches!(c, C::Residents | C::Decoders | C::KvDecode | C::KvPrefill);
        match self {
            Self::Gauge | Self::Gap => false,
            _ if c == C::Now => true,
            Self::Session => matches!(c, C::Reached | C::Failed),
            Self::Header => c == C::Reached,
            Self::QueueKey => matches!(c, C::Waited | C::Admission),
            Self::Evict => matches!(c, C::Size | C::Age | C::Last | C::Waiting),
            Self::Preempt => matches!(c, C::Admission | C::Position | C::Decoding),
            Self::Ps => c == C::Present,
            Self::Budget => resident || c == C::Member,
            Self::Serve | Self::ServeOnly => resident || matches!(c, C::Decoding | C::Admission | C::Remaining),
            Self::Step => resident || matches!(c, C::Tokens | C::Prefilled | C::Attention),
        }
    }

    fn pool(self, figure: PoolFigure) -> bool {
        match self {
            Self::Gap => false,
            Self::Gauge | Self::Ps | Self::Budget | Self::Step => {
                !matches!(figure, PoolFigure::Cachedin | PoolFigure::Outstanding)
            }
            _ => true,
        }
    }

    fn stage(self, figure: StageFigure) -> bool {
        !matches!(
            (self, figure),
            (Self::Gap, _)
                | (Self::Gauge | Self::ServeOnly, StageFigure::Work)
                | (Self::Gauge | Self::Budget | Self::Preempt, StageFigure::BudgetLeft)
        )
    }
}

struct Verifier<'p> {
    program: &'p Program,
}

/// Where a block stands.
struct Body {
    depth: usize,
    /// `init` and `turn` only assign and observe.
    workload: bool,
    /// Pools of the enclosing holds.
    held: Vec<u32>,
    /// In a leg.
    leg: bool,
}

impl Body {
    fn session() -> Self {
        Self { depth: 0, workload: false, held: Vec::new(), leg: false }
    }
}

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { Err(otherwise()) }
}

fn unique<'n>(what: &str, names: impl Iterator<Item = &'n str>) -> Check {
    let mut seen = BTreeSet::new();
    for name in names {
        ensure(seen.insert(name), || format!("two {what} are named `{name}`"))?;
    }
    Ok(())
}

fn members(size: Option<u32>) -> u32 {
    size.unwrap_or(1)
}

fn sized(size: Option<u32>) -> Check {
    ensure(size.is_none_or(|n| (1..=MEMBERS_MAX).contains(&n)), || format!("a family has 1 to {MEMBERS_MAX} members"))
}

impl Verifier<'_> {
    fn header(&self) -> Check {
        let p = self.program;
        ensure(p.ir_version == IR_VERSION, || format!("IR version {}, not {IR_VERSION}", p.ir_version))?;
        for (k, name) in BuiltIn::NAMES.iter().enumerate() {
            ensure(p.attributes.get(k).is_some_and(|a| a.name == *name), || {
                format!("attribute {k} is not the built-in `{name}`")
            })?;
        }
        unique("constants", p.constants.iter().map(|c| c.name.as_str()))?;
        unique("attributes", p.attributes.iter().map(|a| a.name.as_str()))?;
        unique("pools", p.pools.iter().map(|x| x.name.as_str()))?;
        unique("stages", p.stages.iter().map(|x| x.name.as_str()))?;
        unique("observations", p.observes.iter().map(String::as_str))?;
        unique(
            "gauges and observations",
            p.observes.iter().map(String::as_str).chain(p.gauges.iter().map(|g| g.name.as_str())),
        )?;
        for c in &p.constants {
            ensure(!c.value.0.is_nan(), || format!("constant `{}` is not a number", c.name))?;
        }
        ensure(p.share.is_some() == p.stages.iter().any(|s| s.shared), || {
            "`share` is given if and only if a stage is shared".into()
        })
    }

    fn pool(&self, pool: &Pool) -> Check {
        sized(pool.size)?;
        ensure(pool.cap.0 >= 0.0, || format!("a cap of {}", pool.cap.0))?;
        if let Some(block) = pool.block {
            ensure(block.0 > 0.0 && block.0.is_finite(), || format!("a block of {}", block.0))?;
        }
        if let Evict::By(keys) = &pool.evict {
            self.keys(keys, Moment::Evict)?;
        }
        if let Preempt::By(keys) = &pool.preempt {
            self.keys(keys, Moment::Preempt)?;
        }
        if let Order::By(keys) = &pool.order {
            self.keys(keys, Moment::QueueKey)?;
        }
        if let Some(via) = pool.via {
            let stage = self.stage_at(via)?;
            ensure(matches!(stage.kind, StageKind::Step(_)), || {
                format!("admitted via `{}`, no step stage", stage.name)
            })?;
            ensure(members(stage.size) == 1 || members(stage.size) == members(pool.size), || {
                format!("its members do not pair up with those of `{}`", stage.name)
            })?;
        }
        ensure(pool.share_prefixes || !pool.found_scheduled, || "prefixes found early, and not shared".into())?;
        if pool.share_prefixes {
            ensure(pool.block.is_some(), || "prefixes shared, and no block".into())?;
            ensure(pool.evict == Evict::Lru, || "prefixes shared, and eviction keys".into())?;
        }
        if let Some(spill) = &pool.spill {
            let to = self.pool_at(spill.pool.pool)?;
            ensure(to.share_prefixes == pool.share_prefixes, || {
                format!("it spills into `{}`, and one of them shares prefixes", to.name)
            })?;
            let via = self.stage_at(spill.stage.stage)?;
            ensure(!std::ptr::eq(to, pool), || "it spills into itself".into())?;
            ensure(!matches!(via.kind, StageKind::Step(_)), || format!("it spills via step stage `{}`", via.name))?;
            self.paired(members(pool.size), to.size, spill.pool.member.as_deref(), &to.name)?;
            self.paired(members(pool.size), via.size, spill.stage.member.as_deref(), &via.name)?;
            self.expr(&spill.work, Moment::Evict)?;
            self.expr(&spill.when, Moment::Evict)?;
            if pool.share_prefixes {
                let parts = pool.block.zip(to.block).and_then(|(block, there)| whole_blocks(block.0, there.0));
                ensure(parts.is_some(), || {
                    format!("its blocks are not so many whole ones of `{}`, which it spills into", to.name)
                })?;
                let own = self.program.pools.iter().position(|of| std::ptr::eq(of, pool));
                let comes = |of: &Pool| of.spill.as_ref().is_some_and(|spill| Some(spill.pool.pool as usize) == own);
                ensure(parts == Some(1) || !self.program.pools.iter().any(comes), || {
                    format!("what is spilled into it has no names in the smaller blocks of `{}`", to.name)
                })?;
                for expr in [&spill.work, &spill.when] {
                    ensure(!expr.any(&Expr::is_of_an_entry), || {
                        "a spill of shared blocks reads what an entry has".into()
                    })?;
                }
            }
        }
        Ok(())
    }

    /// In a pool's own clause: a single member, the one that corresponds, or the one named.
    fn paired(&self, own: u32, other: Option<u32>, member: Option<&Expr>, name: &str) -> Check {
        match member {
            None => ensure(members(other) == 1 || members(other) == own, || {
                format!("its members do not pair up with those of `{name}`")
            }),
            Some(e @ Expr::Number(_)) => self.constant_member(e, other, name),
            Some(_) => ensure(false, || format!("an index of `{name}` that is no number")),
        }
    }

    fn stage(&self, stage: &Stage) -> Check {
        sized(stage.size)?;
        match &stage.kind {
            StageKind::Fifo { servers } => ensure(*servers >= 1, || "no server".into())?,
            StageKind::Delay => {}
            StageKind::Ps { rate } => {
                if let Expr::Number(n) = rate {
                    ensure(n.0 >= 0.0 && n.0.is_finite(), || format!("a rate of {}", n.0))?;
                }
                self.expr(rate, Moment::Ps)?;
            }
            StageKind::Step(step) => {
                self.expr(&step.budget, Moment::Budget)?;
                self.expr(&step.chunk, Moment::Budget)?;
                self.expr(&step.cost, Moment::Step)?;
                if let Some(only) = &step.serve.only {
                    self.expr(only, Moment::ServeOnly)?;
                }
                self.keys_or_none(&step.serve.by, Moment::Serve)?;
                ensure(
                    !step.serve.exclusive_prefill || (step.serve.only.is_none() && step.serve.by.is_empty()),
                    || "`exclusive prefill` with another serve rule".into(),
                )?;
                if let Some(memory) = step.memory {
                    let pool = self.pool_at(memory)?;
                    ensure(members(pool.size) == 1 || members(pool.size) == members(stage.size), || {
                        format!("its members do not pair up with those of `{}`", pool.name)
                    })?;
                }
            }
        }
        if stage.shared {
            let constant = matches!(&stage.kind, StageKind::Ps { rate: Expr::Number(n) } if n.0 > 0.0);
            ensure(constant, || "shared, and no `ps` stage of constant positive rate".into())?;
        }
        Ok(())
    }

    fn workload(&self) -> Check {
        let w = &self.program.workload;
        match &w.arrive {
            Arrive::None => {}
            Arrive::Poisson(rate) => {
                ensure(rate.0 > 0.0 && rate.0.is_finite(), || format!("an arrival rate of {}", rate.0))?
            }
            Arrive::Renewal(gap) => {
                if let Expr::Number(n) = gap {
                    ensure(n.0 > 0.0 && n.0.is_finite(), || format!("an arrival gap of {}", n.0))?;
                }
                self.expr(gap, Moment::Gap)?;
            }
            Arrive::Steps { pieces, repeat } => {
                ensure(!pieces.is_empty(), || "an arrival rate of no pieces".into())?;
                self.pieces(pieces, !repeat)?;
            }
            Arrive::Bursts { pieces } => {
                ensure(pieces.len() >= 2, || "bursts of fewer than two pieces".into())?;
                self.pieces(pieces, false)?;
            }
            Arrive::Trace(speed) => {
                ensure(speed.0 > 0.0 && speed.0.is_finite(), || format!("a trace's speed of {}", speed.0))?;
                ensure(w.trace.is_some(), || "arrivals of a trace, and no trace".into())?;
            }
            Arrive::Closed(n) | Arrive::Batch(n) => {
                ensure((1..=1_000_000).contains(n), || format!("{n} sessions, not 1 to 1000000"))?;
            }
        }
        if let Some(prefix) = &w.prefix {
            self.expr(&prefix.group, Moment::Session)?;
            self.expr(&prefix.tokens, Moment::Session)?;
        }
        let mut body = Body { workload: true, ..Body::session() };
        self.block(&w.init, &mut body)?;
        self.block(&w.turn, &mut body)
    }

    fn pieces(&self, pieces: &[Piece], last_may_stay: bool) -> Check {
        let mut sum = 0.0;
        for (at, piece) in pieces.iter().enumerate() {
            let (rate, time) = (piece.rate.0, piece.time.0);
            ensure(rate >= 0.0 && rate.is_finite(), || format!("an arrival rate of {rate}"))?;
            let stays = last_may_stay && at + 1 == pieces.len() && time == f64::INFINITY;
            ensure(stays || (time > 0.0 && time.is_finite()), || format!("an arrival rate for a time of {time}"))?;
            sum += if stays { 0.0 } else { time };
        }
        ensure(sum.is_finite(), || "arrival rates for an infinite time".into())?;
        ensure(pieces.iter().any(|piece| piece.rate.0 > 0.0), || "no arrival rate above 0".into())
    }

    fn run(&self) -> Check {
        let run = &self.program.run;
        ensure(run.horizon.0 > 0.0 && run.horizon.0.is_finite(), || format!("a horizon of {}", run.horizon.0))?;
        ensure(run.warmup.0 >= 0.0 && run.warmup.0 < run.horizon.0, || {
            format!("a warm-up of {} before a horizon of {}", run.warmup.0, run.horizon.0)
        })?;
        if let Some(arrivals) = run.arrivals {
            ensure(arrivals >= 1 && self.program.workload.arrive.is_open(), || {
                "`arrivals` without arrivals to limit".into()
            })?;
        }
        Ok(())
    }

    fn block(&self, block: &[Stmt], body: &mut Body) -> Check {
        body.depth += 1;
        ensure(body.depth <= DEPTH_MAX, || format!("statements nest more than {DEPTH_MAX} deep"))?;
        for stmt in block {
            self.stmt(&stmt.kind, body).map_err(|e| {
                // The innermost statement names itself.
                if e.starts_with("line ") { e } else { format!("line {}: {e}", stmt.at.line) }
            })?;
        }
        body.depth -= 1;
        Ok(())
    }

    fn stmt(&self, kind: &StmtKind, body: &mut Body) -> Check {
        let assigns = matches!(kind, StmtKind::Set { .. } | StmtKind::Observe { .. });
        ensure(!body.workload || assigns, || "`init` and `turn` only set and observe".into())?;
        let held = |body: &Body, pool: &PoolRef, what: &str| {
            ensure(body.held.contains(&pool.pool), || format!("`{what}` outside a hold of its pool"))
        };
        match kind {
            StmtKind::Set { attribute, value } => {
                self.attribute(*attribute)?;
                self.expr(value, Moment::Session)
            }
            StmtKind::Observe { observe, value } => {
                ensure((*observe as usize) < self.program.observes.len(), || {
                    format!("observation {observe} does not exist")
                })?;
                self.expr(value, Moment::Session)
            }
            StmtKind::Turn
            | StmtKind::End
            | StmtKind::Fail
            | StmtKind::Join
            | StmtKind::Shielded { .. }
            | StmtKind::Fork { .. }
                if body.leg =>
            {
                Err("a leg turns, ends, fails, joins, shields or forks".into())
            }
            StmtKind::Turn | StmtKind::End | StmtKind::Fail | StmtKind::Join => Ok(()),
            StmtKind::Fork { body: inner } => {
                let preempts = |pool: &u32| self.program.pools[*pool as usize].preempt != Preempt::None;
                ensure(!body.held.iter().any(preempts), || {
                    "a `fork` inside a hold that may be preempted, and would fork again".into()
                })?;
                // What is held around it is the session's.
                let around = std::mem::take(&mut body.held);
                body.leg = true;
                self.block(inner, body)?;
                body.leg = false;
                body.held = around;
                Ok(())
            }
            StmtKind::Hold(hold) => self.hold(hold, body),
            StmtKind::Grow { pool, units } => {
                held(body, pool, "grow")?;
                self.pool_ref(pool, Moment::Session)?;
                self.expr(units, Moment::Session)
            }
            StmtKind::Load { pool, units } => {
                held(body, pool, "load")?;
                self.pool_ref(pool, Moment::Session)?;
                self.expr(units, Moment::Session)
            }
            StmtKind::Drop { pool } => self.pool_ref(pool, Moment::Session),
            StmtKind::Release { pool, after } => {
                self.pool_ref(pool, Moment::Session)?;
                after.iter().try_for_each(|after| self.expr(after, Moment::Session))
            }
            StmtKind::Run(run) => {
                if let Some(pool) = &run.growing {
                    held(body, pool, "growing")?;
                }
                if let Some(Reads { pool, fails }) = &run.reads {
                    ensure(run.mode.is_none(), || "a run of an engine that reads a pool".into())?;
                    self.pool_ref(pool, Moment::Session)?;
                    fails.iter().try_for_each(|fails| self.expr(fails, Moment::Session))?;
                }
                if let Some(then) = &run.then {
                    ensure(run.mode == Some(Mode::Prefill), || "only a prefill goes on as a decode".into())?;
                    ensure(beyond_notes(&then.body).is_none(), || {
                        "between a prefill and its decode is more than `set`, `observe` and `branch`".into()
                    })?;
                    self.block(&then.body, body)?;
                }
                self.run_stmt(run)
            }
            StmtKind::Branch { test, then, otherwise, .. } => {
                self.expr(test, Moment::Session)?;
                self.block(then, body)?;
                self.block(otherwise, body)
            }
            StmtKind::Loop { body: inner } | StmtKind::Shielded { body: inner } => self.block(inner, body),
            StmtKind::Choose { attribute, count, keys } => {
                self.attribute(*attribute)?;
                self.expr(count, Moment::Session)?;
                self.keys(keys, Moment::Session)
            }
        }
    }

    fn hold(&self, hold: &Hold, body: &mut Body) -> Check {
        ensure(!hold.grabs.is_empty(), || "a hold of nothing".into())?;
        for (k, grab) in hold.grabs.iter().enumerate() {
            self.pool_ref(&grab.pool, Moment::Session)?;
            self.expr(&grab.units, Moment::Header)?;
            if let Some(reserve) = &grab.reserve {
                self.expr(reserve, Moment::Header)?;
            }
            ensure(!hold.grabs[..k].iter().any(|g| g.pool == grab.pool), || "a hold names one pool twice".into())?;
        }
        ensure(hold.reuse.is_none() || hold.cache.is_some(), || "`reuse` without `cache`".into())?;
        if let Some(reuse) = &hold.reuse {
            self.expr(reuse, Moment::Header)?;
        }
        if let Some(cache) = &hold.cache {
            self.expr(cache, Moment::Session)?;
        }
        if let Some(lease) = &hold.lease {
            ensure((lease.grab as usize) < hold.grabs.len(), || "a lease of a pool the hold does not name".into())?;
            self.expr(&lease.time, Moment::Session)?;
            if let Some(renewed) = &lease.renewed {
                self.expr(&renewed.time, Moment::Session)?;
                self.expr(&renewed.every, Moment::Session)?;
            }
            lease.abandoned.iter().try_for_each(|e| self.expr(e, Moment::Session))?;
        }
        let before = body.held.len();
        body.held.extend(hold.grabs.iter().map(|g| g.pool.pool));
        self.block(&hold.body, body)?;
        body.held.truncate(before);
        Ok(())
    }

    fn run_stmt(&self, run: &RunStmt) -> Check {
        self.expr(&run.work, Moment::Session)?;
        if let Some(pool) = &run.growing {
            self.pool_ref(pool, Moment::Session)?;
        }
        if let Some(then) = &run.then {
            self.expr(&then.work, Moment::Session)?;
        }
        for stage in &run.stages {
            self.stage_ref(stage, Moment::Session)?;
        }
        match run.stages.as_slice() {
            [] => Err("a run on no stage".into()),
            [one] => {
                let stage = self.stage_at(one.stage)?;
                let step = matches!(stage.kind, StageKind::Step(_));
                ensure(step == run.mode.is_some(), || {
                    format!("`prefill` or `decode` belongs to step stages and only there (`{}`)", stage.name)
                })?;
                ensure(step || run.growing.is_none(), || "`growing` off a step stage".into())
            }
            several => {
                ensure(run.mode.is_none() && run.growing.is_none(), || {
                    "a flow with `prefill`, `decode` or `growing`".into()
                })?;
                for (k, one) in several.iter().enumerate() {
                    let stage = self.stage_at(one.stage)?;
                    ensure(stage.shared, || format!("a flow over `{}`, which is not shared", stage.name))?;
                    ensure(!several[..k].iter().any(|s| s.stage == one.stage), || {
                        format!("a flow names `{}` twice", stage.name)
                    })?;
                }
                Ok(())
            }
        }
    }

    fn attribute(&self, attribute: u32) -> Check {
        ensure((attribute as usize) < self.program.attributes.len(), || format!("attribute {attribute} does not exist"))
    }

    fn pool_at(&self, pool: u32) -> Result<&Pool, String> {
        self.program.pools.get(pool as usize).ok_or_else(|| format!("pool {pool} does not exist"))
    }

    fn stage_at(&self, stage: u32) -> Result<&Stage, String> {
        self.program.stages.get(stage as usize).ok_or_else(|| format!("stage {stage} does not exist"))
    }

    fn pool_ref(&self, r: &PoolRef, at: Moment) -> Check {
        self.pool_ref_inside(r, at, &mut Inside::default())
    }

    fn stage_ref(&self, r: &StageRef, at: Moment) -> Check {
        self.stage_ref_inside(r, at, &mut Inside::default())
    }

    fn pool_ref_inside(&self, r: &PoolRef, at: Moment, inside: &mut Inside) -> Check {
        let pool = self.pool_at(r.pool)?;
        self.member(r.member.as_deref(), pool.size, &pool.name, at, inside)
    }

    fn stage_ref_inside(&self, r: &StageRef, at: Moment, inside: &mut Inside) -> Check {
        let stage = self.stage_at(r.stage)?;
        self.member(r.member.as_deref(), stage.size, &stage.name, at, inside)
    }

    fn member(&self, member: Option<&Expr>, size: Option<u32>, name: &str, at: Moment, inside: &mut Inside) -> Check {
        let Some(e) = member else {
            return ensure(members(size) == 1, || format!("`{name}` has {} members and none is named", members(size)));
        };
        self.constant_member(e, size, name)?;
        let outer = std::mem::replace(&mut inside.gauge_index, at == Moment::Gauge);
        let checked = self.expr_inside(e, at, inside);
        inside.gauge_index = outer;
        checked
    }

    fn constant_member(&self, e: &Expr, size: Option<u32>, name: &str) -> Check {
        let Expr::Number(n) = e else { return Ok(()) };
        ensure(n.0.fract() == 0.0 && n.0 >= 0.0 && n.0 < f64::from(members(size)), || {
            format!("`{name}` has no member {}", n.0)
        })
    }

    fn keys(&self, keys: &[Expr], at: Moment) -> Check {
        ensure(!keys.is_empty(), || format!("no key in {}", at.name()))?;
        self.keys_or_none(keys, at)
    }

    fn keys_or_none(&self, keys: &[Expr], at: Moment) -> Check {
        keys.iter().try_for_each(|k| self.expr(k, at))
    }

    fn expr(&self, e: &Expr, at: Moment) -> Check {
        self.expr_inside(e, at, &mut Inside::default())
    }

    fn expr_inside(&self, e: &Expr, at: Moment, inside: &mut Inside) -> Check {
        match e {
            Expr::Number(n) => return ensure(!n.0.is_nan(), || "a constant is not a number".into()),
            Expr::Attribute(a) => {
                self.attribute(*a)?;
                let name = &self.program.attributes[*a as usize];
                ensure(at.attributes(), || format!("attribute `{}` read in {}", name.name, at.name()))?;
                ensure(!name.hidden || at == Moment::Session, || {
                    format!("hidden attribute `{}` read in {}", name.name, at.name())
                })?;
                return ensure(at != Moment::Preempt || *a != BuiltIn::Computed as u32, || {
                    "`computed` read in preemption keys".into()
                });
            }
            Expr::Context(c) => return ensure(at.has(*c), || format!("{c:?} read in {}", at.name())),
            Expr::Variable(k) => {
                return ensure((*k as usize) < inside.aggregates, || format!("variable {k} outside its aggregate"));
            }
            _ => {}
        }
        inside.depth += 1;
        ensure(inside.depth <= DEPTH_MAX, || format!("an expression nests more than {DEPTH_MAX} deep"))?;
        match e {
            Expr::Number(_) | Expr::Attribute(_) | Expr::Context(_) | Expr::Variable(_) => {}
            Expr::Unary(_, a) => self.expr_inside(a, at, inside)?,
            Expr::Binary(_, a, b) => {
                self.expr_inside(a, at, inside)?;
                self.expr_inside(b, at, inside)?;
            }
            Expr::If(c, a, b) => {
                self.expr_inside(c, at, inside)?;
                self.expr_inside(a, at, inside)?;
                self.expr_inside(b, at, inside)?;
            }
            Expr::Call(f, arguments) => {
                let takes = if matches!(f, Function::Min | Function::Max) { 2 } else { 1 };
                ensure(arguments.len() == takes, || format!("{f:?} takes {takes} arguments"))?;
                for a in arguments {
                    self.expr_inside(a, at, inside)?;
                }
            }
            Expr::Pool(figure, pool) => {
                ensure(at.pool(*figure) && !inside.gauge_index, || format!("{figure:?} read in {}", at.name()))?;
                self.pool_ref_inside(pool, at, inside)?;
            }
            Expr::Stage(figure, stage) => {
                ensure(at.stage(*figure) && !inside.gauge_index, || format!("{figure:?} read in {}", at.name()))?;
                if *figure == StageFigure::BudgetLeft {
                    let known = self.stage_at(stage.stage)?;
                    ensure(matches!(known.kind, StageKind::Step(_)), || {
                        format!("the budget of `{}`, no step stage", known.name)
                    })?;
                }
                self.stage_ref_inside(stage, at, inside)?;
            }
            Expr::Price(stage, h, d) => {
                ensure(at != Moment::Gap && !inside.gauge_index, || format!("`price` read in {}", at.name()))?;
                self.stage_ref_inside(stage, at, inside)?;
                self.expr_inside(h, at, inside)?;
                self.expr_inside(d, at, inside)?;
            }
            Expr::Draw(law, arguments) => {
                ensure(at.draws(), || format!("a draw in {}", at.name()))?;
                let takes = if matches!(law, Law::Uniform | Law::Erlang | Law::H2) { 2 } else { 1 };
                ensure(arguments.len() == takes, || format!("~{law:?} takes {takes} arguments"))?;
                for a in arguments {
                    self.expr_inside(a, at, inside)?;
                }
            }
            Expr::Element(list, index) => {
                let list =
                    self.program.lists.get(*list as usize).ok_or_else(|| format!("list {list} does not exist"))?;
                if let Expr::Number(n) = **index {
                    ensure(n.0.fract() == 0.0 && n.0 >= 0.0 && n.0 < list.values.len() as f64, || {
                        format!("`{}` has no element {}", list.name, n.0)
                    })?;
                }
                self.expr_inside(index, at, inside)?;
            }
            Expr::Aggregate { count, body, .. } => {
                let outer = inside.terms;
                inside.terms = outer.saturating_mul(u64::from(*count));
                ensure(*count >= 1 && inside.terms <= AGGREGATE_TERMS_MAX, || {
                    format!("an aggregate writes out {} terms, not 1 to {AGGREGATE_TERMS_MAX}", inside.terms)
                })?;
                inside.aggregates += 1;
                self.expr_inside(body, at, inside)?;
                inside.aggregates -= 1;
                inside.terms = outer;
            }
        }
        inside.depth -= 1;
        Ok(())
    }
}

/// Where in an expression.
struct Inside {
    depth: usize,
    aggregates: usize,
    terms: u64,
    /// In the index of a pool or stage of a gauge, which is constant.
    gauge_index: bool,
}

impl Default for Inside {
    fn default() -> Self {
        Self { depth: 0, aggregates: 0, terms: 1, gauge_index: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Number;

    fn program() -> Program {
        Program {
            ir_version: IR_VERSION,
            name: "test".into(),
            constants: Vec::new(),
            lists: Vec::new(),
            attributes: BuiltIn::NAMES.iter().map(|n| Attribute { name: (*n).into(), hidden: false }).collect(),
            pools: vec![Pool {
                name: "kv".into(),
                size: Some(2),
                cap: Number(10.0),
                block: None,
                evict: Evict::Lru,
                preempt: Preempt::None,
                order: Order::Fifo,
                via: None,
                share_prefixes: false,
                found_scheduled: false,
                spill: None,
            }],
            stages: vec![Stage { name: "s".into(), size: None, kind: StageKind::Delay, shared: false }],
            share: None,
            workload: Workload { arrive: Arrive::None, trace: None, prefix: None, init: Vec::new(), turn: Vec::new() },
            session: Vec::new(),
            observes: vec!["x".into()],
            gauges: Vec::new(),
            run: Run { horizon: Number(10.0), warmup: Number(0.0), seed: 1, arrivals: None },
        }
    }

    fn refused(change: impl FnOnce(&mut Program)) -> String {
        let mut p = program();
        change(&mut p);
        verify(&p).expect_err("it must be refused")
    }

    fn observe(value: Expr) -> Stmt {
        Stmt { at: Place { file: 0, line: 3, column: 1 }, kind: StmtKind::Observe { observe: 0, value } }
    }

    fn used(member: Option<Expr>) -> Expr {
        Expr::Pool(PoolFigure::Used, PoolRef { pool: 0, member: member.map(Box::new) })
    }

    #[test]
    fn a_plain_program_passes() {
        let mut p = program();
        p.session.push(observe(used(Some(Expr::Attribute(0)))));
        assert_eq!(verify(&p), Ok(()));
    }

    #[test]
    fn indices_are_in_range() {
        assert_eq!(refused(|p| p.session.push(observe(Expr::Attribute(9)))), "line 3: attribute 9 does not exist");
        assert_eq!(refused(|p| p.session.push(observe(used(None)))), "line 3: `kv` has 2 members and none is named");
        assert_eq!(
            refused(|p| p.session.push(observe(used(Some(Expr::Number(Number(2.0))))))),
            "line 3: `kv` has no member 2"
        );
        assert_eq!(refused(|p| p.pools[0].via = Some(7)), "pool `kv`: stage 7 does not exist");
        assert_eq!(refused(|p| p.pools[0].via = Some(0)), "pool `kv`: admitted via `s`, no step stage");
        assert_eq!(refused(|p| p.session.push(observe(Expr::Variable(0)))), "line 3: variable 0 outside its aggregate");
    }

    #[test]
    fn what_is_read_exists_when_it_is_read() {
        assert_eq!(
            refused(|p| p.session.push(observe(Expr::Context(Context::Tokens)))),
            "line 3: Tokens read in a statement"
        );
        let gauge = |value| Gauge { name: "g".into(), value };
        assert_eq!(
            refused(|p| p.gauges.push(gauge(Expr::Attribute(0)))),
            "gauge `g`: attribute `serial` read in a gauge"
        );
        assert_eq!(
            refused(|p| p.gauges.push(gauge(used(Some(used(Some(Expr::Number(Number(0.0))))))))),
            "gauge `g`: Used read in a gauge"
        );
        assert_eq!(
            refused(|p| p.pools[0].order = Order::By(vec![Expr::Draw(Law::Exp, vec![Expr::Number(Number(1.0))])])),
            "pool `kv`: a draw in queue keys"
        );
    }

    #[test]
    fn arrival_laws_are_possible() {
        let number = |value: f64| Number(value);
        let piece = |rate: f64, time: f64| Piece { rate: number(rate), time: number(time) };
        let stays = vec![piece(1.0, 2.0), piece(0.0, f64::INFINITY)];
        let mut p = program();
        p.workload.arrive = Arrive::Steps { pieces: stays.clone(), repeat: false };
        assert_eq!(verify(&p), Ok(()));
        for (law, what) in [
            (Arrive::Steps { pieces: Vec::new(), repeat: false }, "an arrival rate of no pieces"),
            (Arrive::Steps { pieces: stays.clone(), repeat: true }, "an arrival rate for a time of inf"),
            (Arrive::Steps { pieces: vec![piece(1.0, 0.0)], repeat: true }, "an arrival rate for a time of 0"),
            (Arrive::Steps { pieces: vec![piece(-1.0, 1.0)], repeat: true }, "an arrival rate of -1"),
            (Arrive::Steps { pieces: vec![piece(0.0, 1.0)], repeat: true }, "no arrival rate above 0"),
            (
                Arrive::Steps { pieces: vec![piece(1.0, 1e308), piece(1.0, 1e308)], repeat: true },
                "arrival rates for an infinite time",
            ),
            (Arrive::Bursts { pieces: vec![piece(1.0, 1.0)] }, "bursts of fewer than two pieces"),
            (Arrive::Bursts { pieces: stays }, "an arrival rate for a time of inf"),
            (Arrive::Trace(number(0.0)), "a trace's speed of 0"),
            (Arrive::Trace(number(1.0)), "arrivals of a trace, and no trace"),
        ] {
            assert_eq!(refused(|p| p.workload.arrive = law), what);
        }
    }

    #[test]
    fn nothing_is_too_deep_and_no_number_is_nan() {
        let mut deep = Expr::Attribute(0);
        for _ in 0..=DEPTH_MAX {
            deep = Expr::Unary(Unary::Not, Box::new(deep));
        }
        assert_eq!(refused(|p| p.session.push(observe(deep))), "line 3: an expression nests more than 200 deep");
        assert_eq!(
            refused(|p| p.session.push(observe(Expr::Number(Number(f64::NAN))))),
            "line 3: a constant is not a number"
        );
        assert_eq!(refused(|p| p.run.warmup = Number(10.0)), "a warm-up of 10 before a horizon of 10");
    }
}
